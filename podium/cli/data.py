"""`podium data …`: prepare, import, export, convert and verify the training data of BERT."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from podium.cli.options import AsJson, Processes, show
from podium.cli.stage import stage
from podium.core.console import print_findings, print_text, progress_bar, tell
from podium.core.errors import UsageError

if TYPE_CHECKING:  # commands import what they need, so that others start without it
    from benchmarks.bert.sizes import Size

LongestSample = Annotated[
    int | None,
    typer.Option(help="Most tokens of a sample, [CLS] and both [SEP] included; 512 unless given."),
]
MostMasked = Annotated[
    int | None,
    typer.Option(
        help="Most masked tokens of a sample; unless given 76 with 512, 20 with 128, else 0.15 of the length."
    ),
]

data = typer.Typer(no_args_is_help=True, help="Prepare the data that BERT is trained on.")
data.command(
    epilog="Example, on every node of a Slurm job: [bold]srun --ntasks-per-node=1 podium data stage data/wikipedia "
    "/local/wikipedia[/bold]",
)(stage)


@data.command(epilog="Example: [bold]podium data prepare --text part-* --vocab vocab.txt --out data/wikipedia[/bold]")
def prepare(
    text: Annotated[
        list[Path], typer.Option("--text", help="A text file: one sentence a line, blank line between documents.")
    ],
    vocab: Annotated[Path, typer.Option("--vocab", help="WordPiece vocabulary, one word a line.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the shards, one a text file.")],
    more_text: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More text files.")] = None,
    processes: Processes = os.cpu_count() or 1,
    evaluation: Annotated[
        int | None,
        typer.Option(min=1, help="Keep this many, as the reference picks them: 10000 of eval.txt's."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Keep a random subset of this many, drawn from all texts; open division only."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random subset.")] = 0,
    max_sequence_length: LongestSample = None,
    max_predictions: MostMasked = None,
) -> None:
    """Turn text into samples as MLPerf's reference does, to the bit: one shard OUT/NAME.h5 for each text file NAME.

    Shards that are finished are kept: give the same command again to go on where it was broken off.
    """
    from benchmarks.bert.preparation.prepare import WHOLE_TEXT, EvaluationPick, Prepared, prepare_subset
    from benchmarks.bert.preparation.prepare import prepare as prepare_texts
    from benchmarks.bert.preparation.settings import GenerationSettings

    texts = [*text, *(more_text or [])]
    if evaluation and (samples or len(texts) > 1):
        other = "--samples" if samples else f"{len(texts)} text files"
        raise UsageError(f"--evaluation: does not go with {other}; give it with one text file, eval.txt")
    if seed and not samples:
        raise UsageError("--seed: has no use without --samples; nothing else is random here")
    settings = GenerationSettings.of_lengths(max_sequence_length, max_predictions)
    kept = 0
    with progress_bar() as bar:
        task = bar.add_task("Making samples", total=sum(path.stat().st_size for path in texts if path.is_file()))

        def show(prepared: Prepared) -> None:
            nonlocal kept
            kept += prepared.kept
            bar.advance(task, prepared.text.stat().st_size)
            if prepared.note:
                tell(f"{prepared.text}: {prepared.note}")

        if samples:
            shards = prepare_subset(texts, vocab, out, samples, settings, processes, seed, on_finished=show)
        else:
            selection = EvaluationPick(evaluation) if evaluation else WHOLE_TEXT
            shards = prepare_texts(texts, vocab, out, settings, processes, selection, on_finished=show)
    if kept:
        tell(f"{kept} of {len(texts)} shards were there already, whole and of the same text; they were kept")
    for shard in shards:
        print_text(shard)


@data.command(
    epilog="Example: [bold]podium data checkpoint model.ckpt-28252 data/large.safetensors --size large[/bold]"
)
def checkpoint(
    source: Annotated[
        Path,
        typer.Argument(help="TensorFlow's checkpoint by its prefix, Hugging Face's folder, or a .safetensors file."),
    ],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write; for Hugging Face a new folder.")],
    size: Annotated[str | None, typer.Option(help="The size it must have; else it is found from the shapes.")] = None,
    to: Annotated[Literal["podium", "huggingface"], typer.Option(help="The format to write.")] = "podium",
) -> None:
    """Turn the weights of a BERT into a checkpoint that a run starts from, bit for bit, and check them on the way."""
    from benchmarks.bert.checkpoint.convert import convert

    chosen = None if size is None else _size(size)
    with progress_bar() as bar:
        task = bar.add_task("Reading tensors", total=None)
        done = convert(
            source,
            out,
            size=chosen,
            to=to,
            on_tensor=lambda number, total: bar.update(task, completed=number, total=total),
        )
    lines = {
        "from": f"{done.source} ({done.kind})",
        "size": f"{done.size.name}, {done.vocabulary} words",
        "tensors": f"{done.tensors} of the reference's names, all finite",
        "parameters": f"{done.parameters:,}",
        "MLPerf's own": "yes, to the byte" if done.official else "no",
        "sha256": done.sha256,
    }
    print_text(done.file)
    for name, value in [*lines.items(), *(("note", note) for note in done.notes)]:
        print_text(f"  {name:13} {value}")


@data.command(
    "import",
    epilog="Example: [bold]podium data import --vocab vocab.txt --out data/wikipedia hdf5/part_*.hdf5[/bold]",
)
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of samples, all of one format.")],
    vocab: Annotated[Path, typer.Option("--vocab", help="The vocabulary that the samples were made with.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the shards, one a file.")],
    format_name: Annotated[
        Literal["auto", "hdf5-fixed", "hdf5-variable", "tfrecord"],
        typer.Option("--from", help="The format of the files; auto looks into each."),
    ] = "auto",
    processes: Processes = os.cpu_count() or 1,
    max_sequence_length: LongestSample = None,
    max_predictions: MostMasked = None,
) -> None:
    """Turn samples in the formats of others into shards: OUT/NAME.h5 for each file NAME, every row checked.

    hdf5-fixed has padded rows, hdf5-variable is NVIDIA's without padding, tfrecord is the reference's. What
    `podium data export` wrote comes back to the byte. Rows without padding do not say which lengths their samples were
    made with: state them where they are not MLPerf's.
    """
    from benchmarks.bert.formats.convert import import_files
    from benchmarks.bert.preparation.settings import GenerationSettings

    settings = None
    if max_sequence_length is not None or max_predictions is not None:
        settings = GenerationSettings.of_lengths(max_sequence_length, max_predictions)

    with progress_bar() as bar:
        task = bar.add_task("Importing files", total=len(files))
        shards = import_files(files, format_name, vocab, out, processes, lambda _: bar.advance(task), settings)
    for shard in shards:
        print_text(shard)


@data.command(
    epilog="Example: [bold]podium data export data/wikipedia --format hdf5-variable --out hdf5[/bold]",
)
def export(
    store: Annotated[Path, typer.Argument(help="A folder of shards.")],
    format_name: Annotated[
        Literal["hdf5-fixed", "hdf5-variable"],
        typer.Option("--format", help="Padded rows, or rows of their own length as NVIDIA's code reads them."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the files, one a shard.")],
    processes: Processes = os.cpu_count() or 1,
) -> None:
    """Write the samples of shards in a format that the code of others reads: OUT/NAME.hdf5 for each shard NAME.h5.

    Nothing is lost: `podium data import` makes the same shards of the files, to the byte.
    """
    from benchmarks.bert.formats.convert import export_store
    from benchmarks.bert.shard import SUFFIX

    with progress_bar() as bar:
        task = bar.add_task("Exporting shards", total=len([*store.glob(f"*{SUFFIX}")]))
        written = export_store(store, format_name, out, processes, lambda _: bar.advance(task))
    for file in written:
        print_text(file)


@data.command(epilog="Example: [bold]podium data upgrade data/wikipedia[/bold]")
def upgrade(
    store: Annotated[Path, typer.Argument(help="The folder of shards.")], processes: Processes = os.cpu_count() or 1
) -> None:
    """Convert the shards of an older version of Podium in place, and write the length index of the store anew.

    Every shard is verified on the way. The samples stay the same, and so does the digest of the store: runs that were
    made with it can be resumed. What is converted is kept: give the same command again after an interruption.
    """
    from benchmarks.bert.store import shard_paths
    from benchmarks.bert.upgrade import upgrade as upgrade_store

    with progress_bar() as bar:
        task = bar.add_task("Converting shards", total=len(shard_paths(store)))
        converted, others = upgrade_store(store, processes, lambda: bar.advance(task))
    print_text(f"{store}: {len(converted)} shards converted, {len(others)} were of this version; all verified")


@data.command(
    epilog="Example: [bold]podium data verify data/wikipedia --evaluation data/evaluation --vocab vocab.txt "
    "--official[/bold]"
)
def verify(
    store: Annotated[Path, typer.Argument(help="The folder of shards to train on.")],
    evaluation: Annotated[Path | None, typer.Option(help="The folder of shards to evaluate on.")] = None,
    vocab: Annotated[Path | None, typer.Option("--vocab", help="The vocabulary that they were made with.")] = None,
    text: Annotated[list[Path] | None, typer.Option("--text", help="A text file that a shard was made from.")] = None,
    checkpoint_file: Annotated[
        Path | None, typer.Option("--checkpoint", help="Evaluate these weights on the evaluation samples too.")
    ] = None,
    size: Annotated[str, typer.Option(help="The size of the checkpoint.")] = "large",
    samples: Annotated[int | None, typer.Option(min=1, help="Evaluation samples; else those of the size.")] = None,
    official: Annotated[bool, typer.Option("--official", help="It has to be MLPerf's own data, to the byte.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the lengths beside Wikipedia's, as SVG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a prepared store is right: every byte, every sample, no duplicates, the masks, labels and lengths.

    The verdict is the last line. Exit code 1 if a check failed.
    """
    from benchmarks.bert.verification.evidence import Subject
    from benchmarks.bert.verification.shard_stats import bytes_of
    from podium.cli.verify import checkpoint_evaluation, verify_store

    _size(size)
    subject = Subject(store, evaluation, vocab, tuple(text or ()), official)
    asked = checkpoint_evaluation(subject, checkpoint_file, size, samples)
    with progress_bar() as bar:
        task = bar.add_task("Reading shards", total=bytes_of(subject.stores))
        found = verify_store(subject, asked, on_read=lambda read: bar.advance(task, read))
    if plot is not None and found.evidence.training.shards:
        from podium.html.chart import plot_lengths

        plot_lengths(found.evidence.training.lengths, store.resolve().name, plot)
    elif plot is not None:
        tell(f"{plot}: not drawn, since no shard can be read")
    show(as_json, found.as_json(), lambda to: print_findings(to, found.findings, found.verdict))
    if not found.sound:
        raise typer.Exit(1)


def _size(name: str) -> "Size":
    from benchmarks.bert.sizes import SIZES

    if name not in SIZES:
        raise UsageError(f"--size: found {name!r}, allowed is {', '.join(SIZES)}")
    return SIZES[name]
