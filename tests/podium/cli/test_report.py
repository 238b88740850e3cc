"""`podium report` from the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.core.errors import UsageError, WorkError
from podium.run.loggers import LOGGERS
from tests.podium.report.conftest import MakeRun, summary


def test_table_and_page(make_run: MakeRun, tmp_path: Path) -> None:
    folder, page = make_run(totals=summary()), tmp_path / "page.html"
    before = sorted(path.name for path in folder.iterdir())
    done = CliRunner().invoke(app, ["report", str(folder), "--html", str(page)])
    assert done.exit_code == 0 and "succeeded" in done.stdout
    assert "40.00 s" in page.read_text() and f"The page is {page}" in done.stderr.replace("\n", "")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_json_is_the_only_standard_output(make_run: MakeRun) -> None:
    done = CliRunner().invoke(app, ["report", str(make_run(totals=summary()).parent.parent), "--json"])
    assert json.loads(done.stdout)["sets"][0]["runs"][0]["seconds"] == 40.0


def test_failed_run_is_reported_with_exit_code_0(make_run: MakeRun) -> None:
    failed = make_run(failure__json=json.dumps({"exit_code": 1, "message": "a rank died"}))
    assert CliRunner().invoke(app, ["report", str(failed)]).exit_code == 0


def test_metrics_of_a_finished_run_are_copied_to_a_logger(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, dict[str, float]]] = []

    class Kept:
        place = "here"

        def __init__(self, *_: object) -> None: ...

        def log(self, samples: int, scalars: dict[str, float]) -> None:
            kept.append((samples, scalars))

        def flush(self) -> None: ...

        def close(self, succeeded: bool) -> None:
            assert succeeded

    monkeypatch.setitem(LOGGERS, "wandb", (Kept, "json"))  # type: ignore[index]
    folder = make_run(totals=summary())
    for _ in range(2):  # the second time nothing is new
        assert (
            CliRunner().invoke(app, ["report", str(folder), "--log-to", "wandb"], catch_exceptions=False).exit_code == 0
        )
    assert any("train/loss" in scalars for _, scalars in kept)
    assert [scalars["run/seconds"] for _, scalars in kept if "run/seconds" in scalars] == [40.0]


def test_missing_folder_and_unwritable_page_are_errors(make_run: MakeRun, tmp_path: Path) -> None:
    absent = CliRunner().invoke(app, ["report", str(tmp_path / "absent")])
    assert isinstance(absent.exception, UsageError)
    nowhere = CliRunner().invoke(app, ["report", str(make_run()), "--html", str(tmp_path / "no" / "page.html")])
    assert isinstance(nowhere.exception, WorkError)
    assert CliRunner().invoke(app, ["report"]).exit_code == 2


@pytest.mark.parametrize("name", ["runs/mine", "./runs/mine"])
def test_relative_path_is_resolved_from_the_current_folder(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make_run(totals=summary())
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["report", name]).exit_code == 0
