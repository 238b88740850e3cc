"""`podium data …`: prepare, import, export, convert and verify what BERT is trained on."""

import os
from pathlib import Path
from typing import Annotated

import typer

from podium.console import errors

data = typer.Typer(no_args_is_help=True, help="Prepare the data that BERT is trained on.")


@data.command(epilog="Example: [bold]podium data prepare --text part-00000 --vocab vocab.txt --out data/mine[/bold]")
def prepare(
    text: Annotated[
        list[Path], typer.Option("--text", help="A text file: one sentence a line, blank line between documents.")
    ],
    vocab: Annotated[Path, typer.Option("--vocab", help="WordPiece vocabulary, one word a line.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the shards, one a text file.")],
    more_text: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More text files.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes to share the text files.")] = os.cpu_count() or 1,
) -> None:
    """Turn text into samples as MLPerf's reference does, to the bit: one shard OUT/NAME.h5 for each text file NAME."""
    from rich.progress import Progress as Bar

    from benchmarks.bert.preparation.prepare import prepare as prepare_texts

    texts = [*text, *(more_text or [])]
    with Bar(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("Making samples", total=len(texts))
        shards = prepare_texts(texts, vocab, out, processes=processes, on_finished=lambda _: bar.advance(task))
    for shard in shards:
        print(shard)
