"""What a run shows: news from a file that grows, and plain lines where there is no terminal."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.files import write_whole
from podium.run.progress import News, Progress

STEP = {"event": "step", "step": 1, "samples": 16}
EVALUATION = {"event": "evaluation", "samples": 2048, "accuracy": 0.51239}


def line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_news_are_the_whole_lines_since_the_last_look(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    news = News(path)
    assert list(news.lines()) == []
    append(path, line(STEP) + line(EVALUATION)[:10])
    assert list(news.lines()) == [STEP]
    assert list(news.lines()) == []
    append(path, line(EVALUATION)[10:-1])
    assert list(news.lines()) == []
    append(path, b"\n" + line(STEP) + line(STEP))
    assert list(news.lines()) == [EVALUATION, STEP, STEP]


def test_every_cut_of_the_file_gives_every_line_once(tmp_path: Path) -> None:
    whole = line(STEP) + line(EVALUATION) + line(STEP)
    for size in range(1, 30):
        path = tmp_path / f"{size}.jsonl"
        news, found = News(path), []
        for start in range(0, len(whole), size):
            append(path, whole[start : start + size])
            found += list(news.lines())
        assert found == [STEP, EVALUATION, STEP]


def shown(config: RunConfig, folder: RunFolder, terminal: bool) -> str:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=terminal, width=100, legacy_windows=False))
    progress.note("Checking the data")
    with progress.run(config, folder, "Run 1 of 2") as tick:
        tick()
        for content in (line(STEP), line(STEP) + line(EVALUATION)[:9], line(EVALUATION)[9:]):
            append(folder.metrics, content)
            tick()
    return out.getvalue()


def test_where_there_is_no_terminal_evaluations_are_lines(open_config: RunConfig, run_folder: RunFolder) -> None:
    assert shown(open_config, run_folder, terminal=False) == (
        "Checking the data …\nRun 1 of 2: 2,048 samples, accuracy 0.5124 of 0.720\n"
    )


def test_a_run_without_a_target_shows_none(run_folder: RunFolder) -> None:
    config = load_system("laptop", settings=["target_accuracy=null"])
    assert shown(config, run_folder, terminal=False).endswith("2,048 samples, accuracy 0.5124\n")


def test_on_a_terminal_a_bar_is_shown_and_taken_away(open_config: RunConfig, run_folder: RunFolder) -> None:
    text = shown(open_config, run_folder, terminal=True)
    assert "warming up" in text
    assert "Run 1 of 2: 2,048 samples" not in text
    assert text.rstrip().endswith("\x1b[2K")  # the line is cleared


def test_a_note_is_shown_as_it_is() -> None:
    out = io.StringIO()
    Progress(Console(file=out, width=100)).note("Making samples from part[a].txt, [/b]")
    assert out.getvalue() == "Making samples from part[a].txt, [/b] …\n"


def test_a_file_that_was_begun_again_is_read_from_its_start(tmp_path: Path) -> None:
    """A restarted run's metrics are cut to where its checkpoint was and grow again, not always to the same bytes."""
    path = tmp_path / "metrics.jsonl"
    news = News(path)
    append(path, line(STEP) + line(EVALUATION) + line(STEP))
    assert len(list(news.lines())) == 3
    write_whole(path, line(STEP))
    append(path, line(EVALUATION) + line(STEP) + line(EVALUATION))
    assert list(news.lines()) == [STEP, EVALUATION, STEP, EVALUATION]


def test_evaluations_are_told_once_however_often_a_run_is_begun_again(tmp_path: Path, open_config: RunConfig) -> None:
    out, folder = io.StringIO(), RunFolder(tmp_path)
    with Progress(Console(file=out, width=100)).run(open_config, folder, "Run 1 of 1") as tick:
        for _ in range(2):
            write_whole(folder.metrics, line(STEP) + line(EVALUATION))
            tick()
        append(folder.metrics, line(EVALUATION | {"samples": 4096}))
        tick()
    assert [words.split(",")[1] for words in out.getvalue().splitlines()] == ["048 samples", "096 samples"]
