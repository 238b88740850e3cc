"""`podium sweep` from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import write_resolved
from podium.core.errors import Interrupted, WorkError
from podium.core.files import sha256_of
from podium.run.progress import Progress
from podium.run.set_record import EndedRun, SetRecord, write_set
from podium.run.sweep import SWEPT, Sweep, SweepSet
from tests.podium.conftest import run_podium
from tests.podium.report.conftest import evaluation, lines, step, summary

ARGUMENTS = ("sweep", "laptop", "--set", "optimizer.learning_rate=1e-3,2e-3", "--seeds", "2", "--out")


def write_run(one: SweepSet, seed: int) -> None:
    """Write a finished run of a sweep."""
    run, log = one.folder / f"run_{seed}", one.folder / "result_0.txt"
    run.mkdir(parents=True)
    write_resolved(one.config.model_copy(update={"seed": seed}), run / "config.yaml")
    log.write_text("log")
    (run / "metrics.jsonl").write_text(lines([step(1), evaluation(640, 0.73)]))
    (run / "summary.json").write_text(json.dumps(summary(seconds=40.0 + seed)))
    ended = tuple(EndedRun(number, "success", log.name, sha256_of(log), fault=SWEPT) for number in range(seed + 1))
    write_set(one.folder, SetRecord("laptop", 2, ended))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the missing runs of a sweep instead of training; that of seed 1 of the second set fails."""

    def run(sweep: Sweep, _: Progress) -> Iterator[tuple[Any, int, Any]]:
        for place, one in enumerate(sweep.sets):
            for seed in one.missing:
                if (place, seed) == (1, 1):
                    yield one, seed, WorkError("the disk is full")
                    continue
                write_run(one, seed)
                yield one, seed, None

    monkeypatch.setattr("podium.run.sweep.run_sweep", run)


def test_dry_run_lists_the_combinations_and_writes_nothing(tmp_path: Path) -> None:
    done = run_podium(*ARGUMENTS, str(tmp_path / "out"), "--dry-run")
    assert done.returncode == 0 and "optimizer.learning_rate=2e-3" in done.stdout and not (tmp_path / "out").exists()
    found = json.loads(run_podium(*ARGUMENTS, str(tmp_path / "out"), "--dry-run", "--json").stdout)
    assert [(one["finished_seeds"], one["missing_seeds"]) for one in found["sets"]] == [([], [0, 1])] * 2


def test_dry_run_notes_what_differs_besides_and_prints_each_warning_once(tmp_path: Path) -> None:
    done = run_podium("sweep", "laptop", "--recipe", "indexed,exchanged", "--out", str(tmp_path / "out"), "--dry-run")
    assert "the sets differ in optimizer (adamw, lamb)" in " ".join(done.stderr.split())
    arguments = ["--set", "optimizer.algorithm=adamw", "--set", "optimizer.learning_rate=1e-3,2e-3"]
    done = run_podium("sweep", "laptop", "--recipe", "exchanged", *arguments, "--out", str(tmp_path), "--dry-run")
    assert done.stderr.count("--set optimizer.algorithm=adamw overrides what makes recipe exchanged") == 1
    assert "the sets differ" not in done.stderr


@pytest.mark.usefixtures("made")
def test_a_run_that_was_edited_is_noted_and_not_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_podium(*ARGUMENTS, str(out))
    first = sorted(out.iterdir())[0]
    (first / "run_1" / "config.yaml").unlink()
    done = run_podium(*ARGUMENTS, str(out), "--dry-run")
    assert f"{first / 'run_1'}: config.yaml is missing; the run is made again" in done.stderr
    found = json.loads(run_podium(*ARGUMENTS, str(out), "--dry-run", "--json").stdout)["sets"][0]
    assert (found["finished_seeds"], found["missing_seeds"]) == ([0], [1]) and len(found["notes"]) == 1
    names = [one["name"] for one in json.loads(run_podium("report", str(out), "--json").stdout)["sets"]]
    assert names == ["learning rate 0.001", "learning rate 0.002"], "not folders with hashes"
    (first / "set.json").write_text("{")
    done = run_podium(*ARGUMENTS, str(out), "--dry-run")
    assert done.returncode == 1 and "set.json: cannot be used" in done.stderr and "move " in done.stderr


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
        write_run(sweep.sets[0], 0)
        yield sweep.sets[0], 0, None
        raise Interrupted("interrupted")

    monkeypatch.setattr("podium.run.sweep.run_sweep", run)
    done = run_podium(*ARGUMENTS, str(tmp_path / "out"))
    assert done.returncode == 130
    assert "1 of 4 runs are finished, and the same command makes the other 3" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "indexed,,random"], "--recipe indexed,,random: a name is empty"),
        (
            ["--recipe", "fast,slow"],
            "2 of 2 combinations cannot be run, so nothing was started:\nfast: --recipe: there is no",
        ),
        (["--set", "max_samples=1,"], "value 2 of 2 is empty"),
        (["--set", "max_samples=0"], "podium: --set max_samples: found 0"),
        (["--out", "results/mine"], "--out results/mine: is in "),
        (["--out", "/proc/mine"], "/proc/mine: the folder cannot be created"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], message: str) -> None:
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    done = run_podium("sweep", "laptop", *arguments, *out)
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
