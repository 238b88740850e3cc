"""`podium data …`: fetch, prepare, import, export, convert and verify the training data of BERT."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from podium.cli import names
from podium.cli.fetch import fetch
from podium.cli.framework import CommandGroup
from podium.cli.options import AsJson, Processes, print_output
from podium.cli.stage import stage
from podium.core.console import Console, print_findings, print_message, print_note, print_text, progress_bar
from podium.core.errors import UsageError

if TYPE_CHECKING:  # each command imports its libraries itself, so that the other commands start faster
    from benchmarks.bert.sizes import Size

MaxSequenceLength = Annotated[
    int | None,
    typer.Option(help="Maximum tokens of a sample, including [CLS] and both [SEP]. Default: 512."),
]
MaxPredictions = Annotated[
    int | None,
    typer.Option(
        help="Maximum masked tokens of a sample. Default: 76 for 512 tokens, 20 for 128, else 0.15 of the maximum "
        "length."
    ),
]

data = CommandGroup(help="Fetch, prepare, convert, verify and copy the training data of BERT.")
data.command(
    epilog="Example: [bold]podium data fetch --out data/mlperf --accept-licence[/bold]",
)(fetch)
data.command(
    epilog="Example, on every node of a Slurm job: [bold]srun --ntasks-per-node=1 podium data stage data/wikipedia "
    "/local/wikipedia[/bold]",
)(stage)


@data.command(epilog="Example: [bold]podium data prepare --text part-* --vocab vocab.txt --out data/wikipedia[/bold]")
def prepare(
    text: Annotated[
        list[Path],
        typer.Option(
            "--text", metavar="FILE", help="A text file with one sentence a line and a blank line between documents."
        ),
    ],
    vocab: Annotated[
        Path, typer.Option("--vocab", metavar="FILE", help="WordPiece vocabulary file, one token a line.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the shards, one for each text file.")
    ],
    more_text: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More text files.")] = None,
    processes: Processes = os.cpu_count() or 1,
    evaluation: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Make an evaluation store: keep this many samples, picked as the reference does (10000 of eval.txt).",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Keep a random subset of this many samples of all texts. Open division only."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random subset.")] = 0,
    max_sequence_length: MaxSequenceLength = None,
    max_predictions: MaxPredictions = None,
    as_json: AsJson = False,
) -> None:
    """Turn text into samples, bit-identical to MLPerf's reference: one shard OUT/NAME.h5 for each text file NAME.

    Finished shards are kept: run the same command again to resume after an interruption.
    """
    from benchmarks.bert.preparation.prepare import WHOLE_TEXT, EvaluationPick, PreparedShard, prepare_subset
    from benchmarks.bert.preparation.prepare import prepare as prepare_texts
    from benchmarks.bert.preparation.settings import GenerationSettings

    texts = [*text, *(more_text or [])]
    if evaluation and (samples or len(texts) > 1):
        other = "--samples" if samples else f"{len(texts)} text files"
        raise UsageError(f"--evaluation: cannot be combined with {other}; use it with one text file, eval.txt")
    if seed and not samples:
        raise UsageError("--seed: has no effect without --samples, since nothing else is random; leave it out")
    settings = GenerationSettings.from_lengths(max_sequence_length, max_predictions)
    kept = 0
    with progress_bar() as bar:
        task = bar.add_task("Making samples", total=sum(path.stat().st_size for path in texts if path.is_file()))

        def on_finished(prepared: PreparedShard) -> None:
            nonlocal kept
            kept += prepared.kept
            bar.advance(task, prepared.text.stat().st_size)
            if prepared.note:
                print_message(f"{prepared.text}: {prepared.note}")

        if samples:
            shards = prepare_subset(texts, vocab, out, samples, settings, processes, seed, on_finished=on_finished)
        else:
            selection = EvaluationPick(evaluation) if evaluation else WHOLE_TEXT
            shards = prepare_texts(texts, vocab, out, settings, processes, selection, on_finished=on_finished)
    if kept:
        print_note(f"kept {kept} of {len(texts)} shards, which were complete and made from the same text")
    _print_files(shards, as_json, kept=kept)


@data.command(
    epilog="Example: [bold]podium data checkpoint model.ckpt-28252 data/large.safetensors --size large[/bold]"
)
def checkpoint(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="The prefix of a TensorFlow checkpoint, a Hugging Face folder, or a .safetensors file.",
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The .safetensors file to write, or a new folder for Hugging Face.")
    ],
    size: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(names.SIZES), help="The model size that is required. Default: detected from the shapes."
        ),
    ] = None,
    to: Annotated[Literal["podium", "huggingface"], typer.Option(help="The format to write.")] = "podium",
    as_json: AsJson = False,
) -> None:
    """Convert the weights of a BERT to the initial checkpoint of a run, bit for bit, and check them."""
    from benchmarks.bert.checkpoint.convert import convert

    required_size = None if size is None else _parse_size(size)
    with progress_bar() as bar:
        task = bar.add_task("Reading tensors", total=None)
        converted = convert(
            source,
            out,
            size=required_size,
            to=to,
            on_tensor=lambda number, total: bar.update(task, completed=number, total=total),
        )
    lines = {
        "from": f"{converted.source} ({converted.kind})",
        "size": f"{converted.size.name}, vocabulary of {converted.vocabulary_size}",
        "tensors": f"{converted.tensors}, with the reference's names, all finite",
        "parameters": f"{converted.parameters:,}",
        "MLPerf's own": "yes, byte for byte" if converted.official else "no",
        "sha256": converted.sha256,
    }
    document = {
        "file": str(converted.file),
        "source": str(converted.source),
        "kind": converted.kind,
        "size": converted.size.name,
        "vocabulary_size": converted.vocabulary_size,
        "tensors": converted.tensors,
        "parameters": converted.parameters,
        "official": converted.official,
        "sha256": converted.sha256,
        "notes": list(converted.notes),
    }

    def print_lines(_: Console) -> None:
        print_text(converted.file)
        for name, value in [*lines.items(), *(("note", note) for note in converted.notes)]:
            print_text(f"  {name:13} {value}")

    print_output(as_json, document, print_lines)


@data.command(
    "import",
    epilog="Example: [bold]podium data import --vocab vocab.txt --out data/wikipedia hdf5/part_*.hdf5[/bold]",
)
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of samples, all in the same format.")],
    vocab: Annotated[
        Path, typer.Option("--vocab", metavar="FILE", help="The vocabulary file that the samples were made with.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the shards, one for each file.")],
    format_name: Annotated[
        Literal["auto", "hdf5-fixed", "hdf5-variable", "tfrecord"],
        typer.Option("--from", help="The format of the files; auto detects it from their content."),
    ] = "auto",
    processes: Processes = os.cpu_count() or 1,
    max_sequence_length: MaxSequenceLength = None,
    max_predictions: MaxPredictions = None,
    as_json: AsJson = False,
) -> None:
    """Convert samples from other formats to shards, OUT/NAME.h5 for each file NAME, and check every row.

    hdf5-fixed has padded rows, hdf5-variable is NVIDIA's format without padding, tfrecord is the reference's. Files
    from `podium data export` become the same shards again, byte for byte. Rows without padding do not contain the
    maximum lengths that their samples were made with: give them if they are not MLPerf's.
    """
    from benchmarks.bert.formats.convert import import_files
    from benchmarks.bert.preparation.settings import GenerationSettings

    settings = None
    if max_sequence_length is not None or max_predictions is not None:
        settings = GenerationSettings.from_lengths(max_sequence_length, max_predictions)

    with progress_bar() as bar:
        task = bar.add_task("Importing files", total=len(files))
        shards = import_files(files, format_name, vocab, out, processes, lambda _: bar.advance(task), settings)
    _print_files(shards, as_json)


@data.command(
    epilog="Example: [bold]podium data export data/wikipedia --format hdf5-variable --out hdf5[/bold]",
)
def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A folder of shards.")],
    format_name: Annotated[
        Literal["hdf5-fixed", "hdf5-variable"],
        typer.Option("--format", help="hdf5-fixed: padded rows; hdf5-variable: NVIDIA's format without padding."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the files, one for each shard.")],
    processes: Processes = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Convert the samples of shards to a format of other BERT code, OUT/NAME.hdf5 for each shard NAME.h5.

    The conversion is lossless: `podium data import` makes the same shards from the files, byte for byte.
    """
    from benchmarks.bert.formats.convert import export_store
    from benchmarks.bert.shard import SUFFIX

    with progress_bar() as bar:
        task = bar.add_task("Exporting shards", total=len([*store.glob(f"*{SUFFIX}")]))
        written = export_store(store, format_name, out, processes, lambda _: bar.advance(task))
    _print_files(written, as_json)


@data.command(epilog="Example: [bold]podium data upgrade data/wikipedia[/bold]")
def upgrade(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The folder of shards.")],
    processes: Processes = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Convert shards of an older version of Podium in place, verify every shard, and rewrite the store's length index.

    The samples and the digest of the store stay the same, so runs that use it can be resumed. Converted shards are
    kept: run the same command again after an interruption.
    """
    from benchmarks.bert.store import shard_paths
    from benchmarks.bert.upgrade import upgrade as upgrade_store

    with progress_bar() as bar:
        task = bar.add_task("Converting shards", total=len(shard_paths(store)))
        converted, current = upgrade_store(store, processes, lambda: bar.advance(task))
    document = {"store": str(store), "converted": [*map(str, converted)], "unchanged": [*map(str, current)]}
    text = f"{store}: {len(converted)} shards converted, {len(current)} were of this version; all verified"
    print_output(as_json, document, lambda _: print_text(text))


@data.command(
    epilog="Example: [bold]podium data verify data/wikipedia --evaluation data/evaluation --vocab vocab.txt "
    "--official[/bold]"
)
def verify(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The folder of shards to train on.")],
    evaluation: Annotated[
        Path | None, typer.Option(metavar="STORE", help="The folder of shards to evaluate on.")
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option("--vocab", metavar="FILE", help="The vocabulary file that the samples were made with."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="A text file that a shard was made from. May be repeated."),
    ] = None,
    checkpoint_file: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FILE", help="Also evaluate this checkpoint on the evaluation samples."),
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="|".join(names.SIZES), help="The model size of the checkpoint.")
    ] = "large",
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Number of samples to evaluate the checkpoint on. Default: that of the size."),
    ] = None,
    official: Annotated[
        bool, typer.Option("--official", help="Require that the data is MLPerf's, byte for byte.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the sample lengths and Wikipedia's as an SVG file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a store: every byte and sample, duplicates, masking, next-sentence labels and lengths.

    The last line is the verdict. Exit code 1 if a check failed.
    """
    from benchmarks.bert.verification.evidence import VerificationRequest
    from benchmarks.bert.verification.shard_stats import total_shard_bytes
    from podium.cli.verify import checkpoint_evaluation, verify_store

    _parse_size(size)
    request = VerificationRequest(store, evaluation, vocab, tuple(text or ()), official)
    checkpoint_to_evaluate = checkpoint_evaluation(request, checkpoint_file, size, samples)
    with progress_bar() as bar:
        task = bar.add_task("Reading shards", total=total_shard_bytes(request.stores))
        result = verify_store(request, checkpoint_to_evaluate, on_read=lambda read: bar.advance(task, read))
    if plot is not None and result.evidence.training.shards:
        from podium.html.chart import plot_lengths

        plot_lengths(result.evidence.training.lengths, store.resolve().name, plot)
    elif plot is not None:
        print_message(f"{plot}: not drawn, since no shard can be read")
    print_output(as_json, result.as_json(), lambda to: print_findings(to, result.findings, result.verdict))
    if not result.sound:
        raise typer.Exit(1)


def _print_files(files: Sequence[Path], as_json: bool, **facts: int) -> None:
    """Print the files that were written, one a line or as an object with `files` and these facts."""

    def print_lines(_: Console) -> None:
        for file in files:
            print_text(file)

    print_output(as_json, {"files": [*map(str, files)], **facts}, print_lines)


def _parse_size(name: str) -> "Size":
    from benchmarks.bert.sizes import SIZES

    if name not in SIZES:
        raise UsageError(f"--size: found {name!r}, allowed is {', '.join(SIZES)}")
    return SIZES[name]
