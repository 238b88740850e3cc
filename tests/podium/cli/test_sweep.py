"""`podium sweep` from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import Interrupted, WorkError
from podium.run.progress import Progress
from podium.run.set_record import EndedRun, SetRecord, write_set
from podium.run.sweep import SWEPT, Sweep
from tests.podium.conftest import run_podium
from tests.podium.report.conftest import SETTINGS, evaluation, lines, step, summary

ARGUMENTS = ("sweep", "laptop", "--set", "optimizer.learning_rate=1e-3,2e-3", "--seeds", "2", "--out")


def write_run(folder: Path, rate: float, seed: int) -> None:
    """Write a finished run of a sweep."""
    run = folder / f"run_{seed}"
    run.mkdir(parents=True)
    settings = {**SETTINGS, "optimizer": {**SETTINGS["optimizer"], "learning_rate": rate}, "seed": seed}
    (run / "config.yaml").write_text(json.dumps(settings))
    (run / "metrics.jsonl").write_text(lines([step(1), evaluation(640, 0.73)]))
    (run / "summary.json").write_text(json.dumps(summary(seconds=40.0 + seed)))
    ended = tuple(EndedRun(number, "success", "result_0.txt", "0" * 64, fault=SWEPT) for number in range(seed + 1))
    write_set(folder, SetRecord("laptop", 2, ended))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the missing runs of a sweep instead of training; that of seed 1 of the second set fails."""

    def run(sweep: Sweep, _: Progress) -> Iterator[tuple[Any, int, Any]]:
        for place, one in enumerate(sweep.sets):
            for seed in one.missing:
                if (place, seed) == (1, 1):
                    yield one, seed, WorkError("the disk is full")
                    continue
                write_run(one.folder, one.config.optimizer.learning_rate, seed)
                yield one, seed, None

    monkeypatch.setattr("podium.run.sweep.run_sweep", run)


def test_dry_run_lists_the_combinations_and_writes_nothing(tmp_path: Path) -> None:
    done = run_podium(*ARGUMENTS, str(tmp_path / "out"), "--dry-run")
    assert done.returncode == 0 and "optimizer.learning_rate=2e-3" in done.stdout and not (tmp_path / "out").exists()
    found = json.loads(run_podium(*ARGUMENTS, str(tmp_path / "out"), "--dry-run", "--json").stdout)
    assert [(one["finished_seeds"], one["missing_seeds"]) for one in found["sets"]] == [([], [0, 1])] * 2


@pytest.mark.usefixtures("made")
def test_a_sweep_ends_in_a_table_and_a_page_and_reports_failures(tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    done = run_podium(*ARGUMENTS, str(out), "--html", str(page))
    assert done.returncode == 1
    assert "optimizer.learning_rate=2e-3, seed 1: failed: the disk is full" in done.stderr
    assert "1 learning rate 0.001" in done.stdout and "40.50 ± 0.71 s" in done.stdout
    assert "learning rate 0.002" in page.read_text(encoding="utf-8")
    found = json.loads(run_podium(*ARGUMENTS, str(out), "--json").stdout)
    assert [one["name"] for one in found["sets"]] == ["learning rate 0.001", "learning rate 0.002"]
    assert [(one["seed"], one["message"]) for one in found["sweep"]["failures"]] == [(1, "the disk is full")]
    assert [one["missing_seeds"] for one in found["sweep"]["sets"]] == [[], [1]]
    report = run_podium("report", str(out))
    assert report.returncode == 0 and "2 learning rate 0.002" in report.stdout, "a sweep's folder stands for its sets"


def test_an_interrupted_sweep_names_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(sweep: Sweep, _: Progress) -> Iterator[tuple[Any, int, Any]]:
        write_run(sweep.sets[0].folder, 1e-3, 0)
        yield sweep.sets[0], 0, None
        raise Interrupted("interrupted")

    monkeypatch.setattr("podium.run.sweep.run_sweep", run)
    done = run_podium(*ARGUMENTS, str(tmp_path / "out"))
    assert done.returncode == 130
    assert "1 of 4 runs were finished, and the same command makes the other 3" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "indexed,,random"], "--recipe indexed,,random: a name is empty"),
        (
            ["--recipe", "fast,slow"],
            "2 of 2 combinations cannot be run, so nothing was started:\nfast: --recipe: there is",
        ),
        (["--set", "max_samples=1,"], "value 2 of 2 is empty"),
        (["--set", "max_samples=0"], "podium: --set max_samples: found 0"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_podium("sweep", "laptop", *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
