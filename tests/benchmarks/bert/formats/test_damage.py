"""Bytes flipped anywhere: a sentence or a sound shard; where HDF5 crashes or gets lost it ends its process only."""

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

from benchmarks.bert.formats.convert import FORMATS, export_shard, import_files
from benchmarks.bert.formats.rows import AllowedTokens
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples
from benchmarks.bert.store import Origin, Shard, write_shard

ROOT = Path(__file__).resolve().parents[4]

FLIP = """
import json, sys
from pathlib import Path
from benchmarks.bert.formats import hdf5
from benchmarks.bert.formats.convert import import_file
from benchmarks.bert.formats.rows import AllowedTokens
from benchmarks.bert.store import Shard
from podium.core.errors import PodiumError

folder, vocabulary, whole = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_bytes()
hdf5.CPU_SECONDS = 1.0
allowed, places = AllowedTokens.of(vocabulary), json.loads(sys.argv[4])
damaged, shard = folder / "damaged", folder / "damaged.h5"
for place, bits in places:
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
        same = Shard(shard).attributes["content_sha256"] == sys.argv[5]
        shard.unlink()
        print("same" if same else "other", flush=True)
"""
"""Imports damaged files one after another and says what became of each; an exception ends it."""
ENDED = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGVTALRM}
"""By what HDF5 itself, or its getting lost, ends the process that reads a corrupt file."""


@pytest.fixture
def intact(
    tmp_path: Path,
    make_samples: Callable[..., Samples],
    allowed: AllowedTokens,
    foreign_arrays: Callable[[str], dict[str, Any]],
    write_foreign: Callable[[str, Path, dict[str, Any]], Path],
) -> Callable[[str, bool], tuple[Path, str]]:
    """A file of a format, exported or as others write it, and the content hash of its samples."""

    def make(format_name: str, foreign: bool) -> tuple[Path, str]:
        shard, file = tmp_path / "intact.h5", tmp_path / "intact"
        if foreign:
            write_foreign(format_name, file, foreign_arrays(format_name))
            (shard,) = import_files([file], format_name, allowed.vocabulary, tmp_path)
        else:
            origin = Origin.of_text("t", "ef" * 32, allowed.sha256, GenerationSettings(max_sequence_length=64))
            write_shard(shard, make_samples([5, 64, 30, 17], most=9), origin)
            export_shard(shard, format_name, file)
        return file, Shard(shard).attributes["content_sha256"]

    return make


def outcomes(file: Path, content: str, vocabulary: Path, places: list[tuple[int, int]]) -> Counter[str]:
    """What became of the file with each place flipped; where the process ends, a new one goes on with the rest."""
    counted: Counter[str] = Counter()
    while places:
        arguments = [str(file.parent), str(vocabulary), str(file), json.dumps(places), content]
        done = subprocess.run(
            [sys.executable, "-c", FLIP, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        lines = done.stdout.splitlines()
        counted.update(line for line in lines if not line.startswith("at "))
        assert done.returncode in {0, *ENDED}, f"{lines[-1]}: {done.returncode} {done.stderr[-2000:]}"
        tried = sum(line.startswith("at ") for line in lines)
        assert tried > 0, done.stderr
        counted["ended"] += done.returncode != 0
        places = places[tried:]
    return counted


@pytest.mark.parametrize("flips", [50, pytest.param(200, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("format_name", "foreign"),
    [*((name, True) for name in FORMATS), ("hdf5-fixed", False), ("hdf5-variable", False)],  # no TFRecord is exported
)
def test_flipped_bytes_are_refused_or_leave_sound_samples(
    intact: Callable[[str, bool], tuple[Path, str]], vocabulary: Path, format_name: str, foreign: bool, flips: int
) -> None:
    file, content = intact(format_name, foreign)
    size, chosen = file.stat().st_size, random.Random(7)
    places = [(chosen.randrange(size), chosen.choice((1, 0x41, 0x80, 0xFF))) for _ in range(flips)]
    counted = outcomes(file, content, vocabulary, places)
    assert counted.total() == flips
    assert counted["refused"] > 0
    assert counted["ended"] <= flips // 20
    if format_name == "tfrecord":
        assert counted["refused"] == flips  # everything is under a checksum
    if format_name == "hdf5-fixed" and not foreign:
        assert counted["other"] == 0  # compressed, with gzip's checksums


def test_the_judge_would_see_an_exception(
    intact: Callable[[str, bool], tuple[Path, str]], vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = intact("hdf5-fixed", True)
    monkeypatch.setattr(sys.modules[__name__], "FLIP", FLIP.replace("except PodiumError", "except ZeroDivisionError"))
    with pytest.raises(AssertionError, match="WorkError"):
        outcomes(file, content, vocabulary, [(0, 1)])


def test_hdf5_that_gets_lost_is_ended(intact: Callable[[str, bool], tuple[Path, str]], vocabulary: Path) -> None:
    """The heap of variable-length rows says that a row is longer than it is; HDF5 2.0 then goes round for ever."""
    file, content = intact("hdf5-variable", True)
    size_of_seventh = file.read_bytes().index(b"GCOL") + 224 + 8
    counted = outcomes(file, content, vocabulary, [(size_of_seventh, 0x80)])
    assert counted["ended"] + counted["refused"] == 1
