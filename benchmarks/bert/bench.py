"""Benchmarks of data preparation and reading: `python -m benchmarks.bert.bench prepare|read --help`.

Variants alternate in one process, so that a change of the machine's speed affects all of them. `prepare` times text to
finished store: the compiled algorithm against the reference algorithm, and several processes against one. `read`
measures requests, bytes, pages and time of one random sample with a cold page cache, in a store and in other file
layouts (bench_reads.py).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.bert.bench_reads import bench_reads
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.reference import generate_reference_samples
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.shard import Origin, write_shard
from podium.core.errors import PodiumError
from podium.core.files import make_folder, sha256_of

A = TypeVar("A")


def main() -> int:
    """Run the chosen benchmark and print its result as JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.bert.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare", help="time text → finished store")
    preparing.add_argument("--text", type=Path, nargs="+", required=True)
    preparing.add_argument("--vocab", type=Path, required=True)
    preparing.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    preparing.add_argument("--reference", action="store_true", help="also time the reference algorithm")
    preparing.add_argument("--literal", dest="reference", action="store_true", help=argparse.SUPPRESS)  # former name
    preparing.add_argument("--repeat", type=int, default=5)
    preparing.set_defaults(function=bench_prepare)
    reading = commands.add_parser("read", help="count and time cold random reads of each layout")
    reading.add_argument("--store", type=Path, help="default: a store of random samples is generated")
    reading.add_argument("--shards", type=int, default=6, help="shards of the generated store")
    reading.add_argument(
        "--samples-per-shard",
        type=int,
        default=313_453,
        help="samples in each; default: as in MLPerf's",
    )
    reading.add_argument("--samples-a-shard", dest="samples_per_shard", type=int, help=argparse.SUPPRESS)  # former name
    reading.add_argument("--samples", type=int, default=128, help="samples read in each turn")
    reading.add_argument("--batch", type=int, default=4, help="samples read between two clearings of the page cache")
    reading.add_argument("--layout", action="append", help="measure only this layout; may be repeated")
    reading.add_argument("--repeat", type=int, default=5)
    reading.add_argument("--scratch", type=Path, help="folder of the layouts, kept; default: temporary")
    reading.set_defaults(function=bench_read)
    arguments = parser.parse_args()
    try:
        print(json.dumps(arguments.function(arguments), indent=2))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def bench_prepare(arguments: argparse.Namespace) -> dict[str, Any]:
    """MB/s of each variant, and ratios to one process. The first turn only warms up: it includes compilation."""
    texts: list[Path] = arguments.text
    megabytes = sum(text.stat().st_size for text in texts) / 1e6

    def prepare_with_reference(folder: Path) -> None:
        vocabulary, settings = Vocabulary.read(arguments.vocab), GenerationSettings()
        for text in texts:
            samples = generate_reference_samples(text.read_text(encoding="utf-8").split("\n"), vocabulary, settings)
            origin = Origin.of_text(text.name, sha256_of(text), vocabulary.sha256, settings)
            write_shard(folder / f"{text.name}.h5", samples, origin)

    variants: dict[str, Callable[[Path], object]] = {"one process": partial(prepare, texts, arguments.vocab)}
    if arguments.processes > 1:
        several = partial(prepare, texts, arguments.vocab, processes=arguments.processes)
        variants[f"{arguments.processes} processes"] = several
    if arguments.reference:
        variants["literal"] = prepare_with_reference
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(arguments.repeat + 1):
        for name, variant in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                elapsed = _time(variant, Path(folder))
            if turn:
                seconds[name].append(elapsed)
    return {
        "megabytes": megabytes,
        "sides": {
            name: {"seconds": times, "megabytes_per_second": megabytes / median(times)}
            for name, times in seconds.items()
        },
        "one process ÷ side, median": {
            name: _median_ratio(seconds["one process"], times) for name, times in seconds.items()
        },
    }


def bench_read(arguments: argparse.Namespace) -> dict[str, Any]:
    """Cost of one random sample with a cold page cache in each layout; see bench_reads.py."""
    with ExitStack() as stack:
        scratch = arguments.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return bench_reads(
            arguments.store,
            make_folder(scratch),
            shards=arguments.shards,
            samples_per_shard=arguments.samples_per_shard,
            samples=arguments.samples,
            batch=arguments.batch,
            turns=arguments.repeat,
            chosen=arguments.layout or (),
        )


def _time(work: Callable[[A], object], argument: A) -> float:
    """Seconds of one call."""
    start = perf_counter()
    work(argument)
    return perf_counter() - start


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
