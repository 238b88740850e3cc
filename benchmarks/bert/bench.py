"""Benchmarks of data preparation and reading: `python -m benchmarks.bert.bench prepare|read --help`.

Every figure is a ratio of two variants that take turns in one process. `prepare` times text to finished store with
the compiled algorithm against the reference one, and several processes against one. `read` times random reads of a
store against NVIDIA's variable-length HDF5 of the same samples, with a cold page cache (dropped on request) and a
warm one.
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

import h5py
import numpy as np

from benchmarks.bert.formats.convert import export_store
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.reference import generate_literally
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.shard import Origin, write_shard
from benchmarks.bert.store import SampleStore
from podium.core.errors import PodiumError
from podium.core.files import sha256_of

A = TypeVar("A")

VARIABLE_KEYS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bert.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare", help="time text → finished store")
    preparing.add_argument("--text", type=Path, nargs="+", required=True)
    preparing.add_argument("--vocab", type=Path, required=True)
    preparing.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    preparing.add_argument("--literal", action="store_true", help="against the literal algorithm too")
    preparing.add_argument("--repeat", type=int, default=5)
    preparing.set_defaults(function=bench_preparing)
    reading = commands.add_parser("read", help="time random reads of a store")
    reading.add_argument("--store", type=Path, required=True)
    reading.add_argument("--samples", type=int, default=10_000)
    reading.add_argument("--repeat", type=int, default=5)
    reading.add_argument("--scratch", type=Path, help="folder for the exported copy; default: a temporary one")
    reading.set_defaults(function=bench_reading)
    arguments = parser.parse_args()
    try:
        print(json.dumps(arguments.function(arguments), indent=2))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def bench_preparing(arguments: argparse.Namespace) -> dict[str, Any]:
    """MB/s and ratios; the first turn of each side is not counted, so start-up and compilation are left out of it."""
    texts: list[Path] = arguments.text
    megabytes = sum(text.stat().st_size for text in texts) / 1e6

    def literal(folder: Path) -> None:
        vocabulary, settings = Vocabulary.read(arguments.vocab), GenerationSettings()
        for text in texts:
            samples = generate_literally(text.read_text(encoding="utf-8").split("\n"), vocabulary, settings)
            origin = Origin.of_text(text.name, sha256_of(text), vocabulary.sha256, settings)
            write_shard(folder / f"{text.name}.h5", samples, origin)

    sides: dict[str, Callable[[Path], object]] = {"one process": partial(prepare, texts, arguments.vocab)}
    if arguments.processes > 1:
        several = partial(prepare, texts, arguments.vocab, processes=arguments.processes)
        sides[f"{arguments.processes} processes"] = several
    if arguments.literal:
        sides["literal"] = literal
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(arguments.repeat + 1):
        for name, side in sides.items():
            with tempfile.TemporaryDirectory() as folder:
                taken = _seconds(side, Path(folder))
            if turn:
                seconds[name].append(taken)
    return {
        "megabytes": megabytes,
        "sides": {
            name: {"seconds": taken, "megabytes_per_second": megabytes / median(taken)}
            for name, taken in seconds.items()
        },
        "one process ÷ side, median": {
            name: _median_ratio(seconds["one process"], taken) for name, taken in seconds.items()
        },
    }


def bench_reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds for whole samples at random places, opening included, and the ratios of the two formats."""
    store = SampleStore(arguments.store)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        files = export_store(store.paths, "hdf5-variable", Path(folder))
        os.sync()
        order = np.random.default_rng(0)
        counts = [len(shard) for shard in store.shards]
        formats: dict[str, tuple[Sequence[Path], Callable[[np.ndarray], int]]] = {
            "store": (store.paths, partial(_read_store, store.paths)),
            "variable": (files, partial(_read_variable, files, counts)),
        }
        seconds: dict[str, list[float]] = {}
        for turn in range(arguments.repeat):
            indices = order.integers(0, len(store), arguments.samples)
            for state in ("cold", "warm"):
                for name, (paths, read) in formats.items():
                    if state == "cold":
                        _forget(paths)
                    seconds.setdefault(f"{state} {name}", []).append(_seconds(read, indices))
            print(f"turn {turn + 1} of {arguments.repeat}", file=sys.stderr)
        return {
            "samples in the store": len(store),
            "bytes": {name: sum(path.stat().st_size for path in paths) for name, (paths, _) in formats.items()},
            "samples read": arguments.samples,
            "seconds": seconds,
            "variable ÷ store, median": {
                state: _median_ratio(seconds[f"{state} variable"], seconds[f"{state} store"])
                for state in ("cold", "warm")
            },
        }


def _seconds(work: Callable[[A], object], argument: A) -> float:
    start = perf_counter()
    work(argument)
    return perf_counter() - start


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


def _read_store(paths: Sequence[Path], indices: np.ndarray) -> int:
    store = SampleStore(paths)
    total = 0
    for index in indices.tolist():
        sample = store.read(index)
        total += int(sample.token_ids.sum()) + int(sample.masked_token_ids.sum()) + int(sample.masked_positions.sum())
    return total


def _read_variable(paths: Sequence[Path], counts: Sequence[int], indices: np.ndarray) -> int:
    starts = np.cumsum([0, *counts])
    with ExitStack() as stack:
        files = [stack.enter_context(h5py.File(path, "r")) for path in paths]
        datasets = [[file[key] for key in VARIABLE_KEYS] for file in files]
        total = 0
        for index in indices.tolist():
            shard = int(np.searchsorted(starts, index, side="right")) - 1
            arrays = [dataset[index - starts[shard]] for dataset in datasets[shard]]
            total += sum(int(array.sum()) for array in (arrays[0], arrays[3], arrays[2]))
        return total


def _forget(paths: Sequence[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
