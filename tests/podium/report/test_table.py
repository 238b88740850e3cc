"""The tables in the terminal, and the JSON object."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.table import as_json, print_sets
from tests.podium.report.conftest import SETTINGS, MakeRun, step, summary

EVIL = "\x1b[31m\u202e[red]evil[/red]<script>alert(1)</script>"


def printed(*folders: Path, notes: Sequence[str] = (), width: int = 120) -> str:
    out = io.StringIO()
    print_sets(Console(file=out, width=width), read_sets(find_runs(folders)), notes)
    return out.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in cells}


def test_table_of_one_run(make_run: MakeRun) -> None:
    text = printed(make_run(totals=summary()))
    assert "Settings: system mine, recipe indexed, size tiny, division open" in text and "auto: bf16" in text
    found = rows(text)
    assert found["outcome"] == ["succeeded"] and found["time"] == ["40.00 s"]
    assert found["useful FLOP/s"] == ["200.0 GFLOP/s"] and "recipe" not in found
    assert found["balance (max/mean tokens)"] == ["1.0500"] and found["evaluation share"] == ["25.0%"]
    assert found["step: forward"] == ["20.00 ms, 25.0%"]


def test_few_runs_have_columns_and_their_mean(make_run: MakeRun) -> None:
    make_run(0, totals=summary(seconds=40.0))
    text = printed(make_run(1, totals=summary(seconds=42.0), settings={**SETTINGS, "seed": 8}).parent)
    found = rows(text)
    assert found["time"] == ["40.00 s", "42.00 s", "41.00 ± 1.41 s"]
    assert found["seed"] == ["7", "8", "differ"]
    assert "Settings of all: system mine, recipe indexed" in text and "seed 7" not in text
    assert found["outcome"][2] == "2 succeeded"


def test_many_runs_have_a_line_each(make_run: MakeRun) -> None:
    folders = [make_run(number, totals=summary(seconds=40.0 + number)) for number in range(10)]
    found = rows(printed(folders[0].parent))
    assert found["run_3"] == ["7", "43.00 s", "640", "0.7300", "16.0", "succeeded"]
    assert found["time"] == ["44.50 ± 3.03 s"] and found["MLPerf score"] == ["44.50 s"]


def test_an_outcome_in_the_message_is_not_repeated(make_run: MakeRun) -> None:
    failure = {"exit_code": 130, "message": "interrupted: stopped before the end", "stopped": "interrupted"}
    text = printed(make_run(failure__json=json.dumps(failure)), width=200)
    assert "run_0 interrupted: stopped before the end" in text and text.count("interrupted: ") == 1


def test_notes_and_failures_are_printed(make_run: MakeRun) -> None:
    failure = json.dumps({"exit_code": 1, "message": "a rank died"})
    text = printed(make_run(failure__json=failure, settings=None), notes=["older sets are left out"], width=200)
    assert "older sets are left out" in text
    assert "run_0: config.yaml: is missing" in text and "run_0 failed: a rank died" in text


def test_control_characters_are_removed(make_run: MakeRun) -> None:
    settings = {**SETTINGS, "system": EVIL, "recipe": EVIL, "seed": EVIL}
    source = json.dumps({"code": EVIL, "commit": EVIL})
    run = make_run(settings=settings, source__json=source, failure__json=json.dumps({"exit_code": 1, "message": EVIL}))
    make_run(1, totals=summary(phases_ms={EVIL: 1.0}, precision=EVIL))
    text = printed(run.parent, notes=[EVIL], width=400)
    assert "\x1b" not in text and "\u202e" not in text
    assert text.count("[red]evil[/red]") >= 4


def test_json_has_the_values(make_run: MakeRun) -> None:
    make_run(0, totals=summary())
    folder = make_run(1, metrics=[step(1), step(2, gradient_norm=float("inf"))])
    text = json.dumps(as_json(read_sets(find_runs([folder.parent])), ["a note"]), allow_nan=False)
    found = json.loads(text)
    assert found["notes"] == ["a note"]
    (one,) = found["sets"]
    assert one["over_runs"]["seconds"] == {"n": 1, "mean": 40.0, "sd": None, "least": 40.0, "greatest": 40.0}
    first, second = one["runs"]
    assert first["outcome"] == "succeeded" and first["seconds"] == 40.0 and first["phases_ms"]["forward"] == 20.0
    assert first["settings"]["optimizer.algorithm"] == "adamw"
    assert [one["accuracy"] for one in first["evaluations"]] == [0.4, 0.73]
    assert first["balance_quantiles"]["1"] > 1.09
    assert second["seconds"] is None and second["outcome"] == "unfinished" and second["steps"] == 2
    assert second["not_finite"] == {"gradient_norm": {"count": 1, "samples": 32}}
