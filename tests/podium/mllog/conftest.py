"""Fixtures of the tests of podium.mllog: logs made of lines, and the published rounds."""

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data"
START = 1_700_000_000_000


def make_line(key: str, value: Any = None, after_ms: int = 0, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    """Return a log line with a time `after_ms` after START."""
    event = {"namespace": "", "time_ms": START + after_ms, "event_type": kind, "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**event, "metadata": {"file": "train.py", "lineno": 1, **metadata}})


def make_run(accuracies: Iterable[float] = (0.5, 0.73), status: str = "success") -> Iterator[str]:
    """Yield the lines of a short run at batch size 448, with an evaluation every 150,080 samples."""
    yield make_line("submission_benchmark", "bert")
    yield make_line("global_batch_size", 448, 1)
    yield make_line("seed", 7, 2)
    yield make_line("run_start", None, 1000, "INTERVAL_START")
    number = 0
    for number, accuracy in enumerate(accuracies, 1):
        yield make_line("eval_accuracy", accuracy, 1000 + 60_000 * number, epoch_num=150_080 * number)
    yield make_line("run_stop", None, 1500 + 60_000 * number, "INTERVAL_END", status=status)
    yield make_line("train_samples", 150_080 * number, 1501 + 60_000 * number)
    yield make_line("eval_samples", 10_000, 1501 + 60_000 * number)


@pytest.fixture
def line() -> Callable[..., str]:
    return make_line


@pytest.fixture
def run_lines() -> Callable[..., Iterator[str]]:
    return make_run


class WriteLogFile(Protocol):
    """Writes lines, or bytes, as a log and returns its path."""

    def __call__(self, lines: Iterable[str] | bytes, ending: str = "\n", name: str = "result_0.txt") -> Path: ...


@pytest.fixture
def write_log_file(tmp_path: Path) -> WriteLogFile:
    def write(lines: Iterable[str] | bytes, ending: str = "\n", name: str = "result_0.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(text + ending for text in lines).encode())
        return path

    return write


@pytest.fixture(scope="session")
def round_2_0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _round("v2.0", tmp_path_factory.mktemp("round"))


@pytest.fixture(scope="session")
def round_2_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _round("v2.1", tmp_path_factory.mktemp("round"))


def _round(name: str, folder: Path) -> Path:
    archive = PUBLISHED / f"published-bert-{name}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / name if (folder / name).is_dir() else folder
