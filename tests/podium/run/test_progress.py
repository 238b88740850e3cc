"""Progress of a run: reading a growing metrics file, and the output with and without a terminal."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.files import write_atomically
from podium.run.progress import MetricsReader, Progress

STEP = {"event": "step", "step": 1, "samples": 16}
EVALUATION = {"event": "evaluation", "samples": 2048, "accuracy": 0.51239}


def line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_only_complete_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert list(reader.lines()) == []
    append(path, line(STEP) + line(EVALUATION)[:10])
    assert list(reader.lines()) == [STEP]
    assert list(reader.lines()) == []
    append(path, line(EVALUATION)[10:-1])
    assert list(reader.lines()) == []
    append(path, b"\n" + line(STEP) + line(STEP))
    assert list(reader.lines()) == [EVALUATION, STEP, STEP]


def test_every_line_is_read_once_however_it_is_written(tmp_path: Path) -> None:
    whole = line(STEP) + line(EVALUATION) + line(STEP)
    for size in range(1, 30):
        path = tmp_path / f"{size}.jsonl"
        reader, found = MetricsReader(path), []
        for start in range(0, len(whole), size):
            append(path, whole[start : start + size])
            found += list(reader.lines())
        assert found == [STEP, EVALUATION, STEP]


def shown(config: RunConfig, folder: RunFolder, terminal: bool, width: int = 100, title: str = "Run 1 of 2") -> str:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=terminal, width=width, legacy_windows=False))
    progress.note("Checking the data")
    with progress.run(config, folder, title) as tick:
        tick()
        for content in (line(STEP), line(STEP) + line(EVALUATION)[:9], line(EVALUATION)[9:]):
            append(folder.metrics, content)
            tick()
    return out.getvalue()


def test_without_a_terminal_evaluations_are_printed_as_lines(open_config: RunConfig, run_folder: RunFolder) -> None:
    assert shown(open_config, run_folder, terminal=False) == (
        "Checking the data …\nRun 1 of 2: 2,048 samples, accuracy 0.5124 of 0.720\n"
    )


def test_run_without_a_target_prints_accuracy_alone(run_folder: RunFolder) -> None:
    config = load_system("laptop", settings=["target_accuracy=null"])
    assert shown(config, run_folder, terminal=False).endswith("2,048 samples, accuracy 0.5124\n")


def test_progress_bar_is_cleared_on_a_terminal(open_config: RunConfig, run_folder: RunFolder) -> None:
    text = shown(open_config, run_folder, terminal=True)
    assert "warming up" in text
    assert "Run 1 of 2: 2,048 samples" not in text
    assert text.rstrip().endswith("\x1b[2K")  # the line is cleared


@pytest.mark.parametrize("width", [80, 120])
def test_accuracy_and_elapsed_time_are_whole_on_a_terminal(
    open_config: RunConfig, run_folder: RunFolder, width: int
) -> None:
    found = shown(open_config, run_folder, True, width, "optimizer.learning_rate=0.0015, max_samples=20000, seed 2")
    shown_lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found).splitlines()
    last = [one for one in shown_lines if "samples" in one][-1]
    assert "0:00:00" in last and "of 0.720" in last and "…" in last


def test_note_is_not_interpreted_as_markup() -> None:
    out = io.StringIO()
    Progress(Console(file=out, width=100)).note("Making samples from part[a].txt, [/b]")
    assert out.getvalue() == "Making samples from part[a].txt, [/b] …\n"


def test_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    """A restart cuts the metrics to their length at its checkpoint; the lines that follow may differ from before."""
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    append(path, line(STEP) + line(EVALUATION) + line(STEP))
    assert len(list(reader.lines())) == 3
    write_atomically(path, line(STEP))
    append(path, line(EVALUATION) + line(STEP) + line(EVALUATION))
    assert list(reader.lines()) == [STEP, EVALUATION, STEP, EVALUATION]


def test_evaluations_are_printed_once_if_a_run_is_restarted(tmp_path: Path, open_config: RunConfig) -> None:
    out, folder = io.StringIO(), RunFolder(tmp_path)
    with Progress(Console(file=out, width=100)).run(open_config, folder, "Run 1 of 1") as tick:
        for _ in range(2):
            write_atomically(folder.metrics, line(STEP) + line(EVALUATION))
            tick()
        append(folder.metrics, line(EVALUATION | {"samples": 4096}))
        tick()
    assert [line.split(",")[1] for line in out.getvalue().splitlines()] == ["048 samples", "096 samples"]
