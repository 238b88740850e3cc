"""Flipped bytes anywhere in a file: an error or a valid shard. HDF5 may crash or loop, which ends the worker only."""

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.formats.convert import FORMATS, export_shard, import_file
from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Origin, Shard, write_shard

ROOT = Path(__file__).resolve().parents[4]

# Imports damaged files one after another and prints the outcome of each; an unexpected exception ends it.
FLIP = """
import json, sys
from pathlib import Path
from benchmarks.bert.formats import hdf5
from benchmarks.bert.formats.convert import import_file
from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.shard import Shard
from podium.core.errors import PodiumError

folder, allowed, jobs = Path(sys.argv[1]), VocabularyFacts.from_file(Path(sys.argv[2])), json.loads(sys.argv[3])
hdf5.CPU_LIMIT_SECONDS = 0.3
damaged, shard = folder / "damaged", folder / "damaged.h5"
for file, content, place, bits in jobs:
    whole = Path(file).read_bytes()
    damaged.write_bytes(whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1:])
    print("at", place, bits, flush=True)
    try:
        import_file(damaged, "auto", allowed, shard)
    except PodiumError as error:
        assert str(error).startswith(str(damaged)) and len(str(error).splitlines()) == 1, error
        assert not shard.exists()
        print("refused", flush=True)
    else:
        Shard(shard).verify()
        same = Shard(shard).attributes["content_sha256"] == content
        shard.unlink()
        print("same" if same else "other", flush=True)
"""
FATAL_SIGNALS = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGVTALRM}

Flip = tuple[str, str, int, int]  # file, content hash of its samples, offset, bits to flip
# (format, whether the file is handmade or exported); TFRecord files are not exported.
KINDS = [*((name, True) for name in FORMATS), ("hdf5-fixed", False), ("hdf5-variable", False)]
Intact = Callable[[str, bool], tuple[Path, str]]


@pytest.fixture(scope="module")
def intact(
    tmp_path_factory: pytest.TempPathFactory,
    make_samples: Callable[..., Samples],
    allowed: VocabularyFacts,
    foreign_arrays: Callable[[str], dict[str, Any]],
    write_foreign: Callable[[str, Path, dict[str, Any]], Path],
) -> Intact:
    """Function that makes an intact file of a format, exported or handmade, and the content hash of its samples."""

    def make(format_name: str, foreign: bool) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("intact")
        shard, file = folder / "intact.h5", folder / "intact"
        if foreign:
            write_foreign(format_name, file, foreign_arrays(format_name))
            import_file(file, format_name, allowed, shard)
        else:
            origin = Origin.of_text("t", "ef" * 32, allowed.sha256, GenerationSettings(max_sequence_length=64))
            write_shard(shard, make_samples([5, 64, 30, 17], most=9), origin)
            export_shard(shard, format_name, file)
        return file, Shard(shard).attributes["content_sha256"]

    return make


def count_outcomes(flips: list[Flip], vocabulary: Path, folder: Path) -> dict[str, Counter[str]]:
    """Count the outcomes of each file. If the process is killed, a new one continues with the remaining flips."""
    counted: dict[str, Counter[str]] = {file: Counter() for file, *_ in flips}
    while flips:
        arguments = [str(folder), str(vocabulary), json.dumps(flips)]
        done = subprocess.run(
            [sys.executable, "-c", FLIP, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        lines = done.stdout.splitlines()
        assert done.returncode in {0, *FATAL_SIGNALS}, f"{lines[-1]}: {done.returncode} {done.stderr[-2000:]}"
        reported = [line for line in lines if not line.startswith("at ")]
        tried = len(lines) - len(reported)
        assert tried > 0, done.stderr
        reported += ["ended"] * (done.returncode != 0)
        for (file, *_), outcome in zip(flips[:tried], reported, strict=True):
            counted[file][outcome] += 1
        flips = flips[tried:]
    return counted


@pytest.mark.parametrize("flips", [50, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_flipped_bytes_are_errors_or_leave_valid_samples(
    intact: Intact, vocabulary: Path, tmp_path: Path, flips: int
) -> None:
    files = {kind: intact(*kind) for kind in KINDS}
    chosen: list[Flip] = []
    for file, content in files.values():
        size, random_ = file.stat().st_size, random.Random(7)
        places = [(random_.randrange(size), random_.choice((1, 0x41, 0x80, 0xFF))) for _ in range(flips)]
        chosen += [(str(file), content, *place) for place in places]
    of_files = count_outcomes(chosen, vocabulary, tmp_path)
    for (format_name, foreign), (file, _) in files.items():
        counted = of_files[str(file)]
        assert counted.total() == flips
        assert counted["refused"] > 0
        assert counted["ended"] <= flips // 20
        if format_name == "tfrecord":
            assert counted["refused"] == flips  # everything is under a checksum
        if format_name == "hdf5-fixed" and not foreign:
            assert counted["other"] == 0  # compressed, with gzip's checksums


def test_unexpected_exceptions_are_detected_by_these_tests(
    intact: Intact, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = intact("hdf5-fixed", True)
    monkeypatch.setattr(sys.modules[__name__], "FLIP", FLIP.replace("except PodiumError", "except ZeroDivisionError"))
    with pytest.raises(AssertionError, match="WorkError"):
        count_outcomes([(str(file), content, 0, 1)], vocabulary, tmp_path)


def test_hdf5_in_an_endless_loop_is_killed(intact: Intact, vocabulary: Path, tmp_path: Path) -> None:
    """In the heap of variable-length rows the length of a row is too large, on which HDF5 2.0 loops forever."""
    file, content = intact("hdf5-variable", True)
    size_of_seventh = file.read_bytes().index(b"GCOL") + 224 + 8
    counted = count_outcomes([(str(file), content, size_of_seventh, 0x80)], vocabulary, tmp_path)[str(file)]
    assert counted["ended"] + counted["refused"] == 1
