"""Loading of run folders: complete, of older versions, failed, damaged and hostile."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from podium.core.locks import shared_lock
from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.run import ReportedRun
from podium.run.outcome import Outcome
from tests.podium.report.conftest import PHASES, SETTINGS, MakeRun, lines, step, summary


def read(folder: Path) -> ReportedRun:
    (one,) = read_sets(find_runs([folder]))
    (run,) = one.runs
    return run


def test_run_that_reached_its_target(make_run: MakeRun) -> None:
    source = json.dumps({"code": "c" * 64, "commit": "d" * 40})
    run = read(make_run(totals=summary(), source__json=source))
    assert run.outcome == Outcome.SUCCEEDED and run.ended and not run.notes
    assert run.totals_so_far["seconds"] == 40.0 and run.totals_so_far["evaluation_share"] == 0.25
    assert run.phases_ms == PHASES and list(run.phases_ms) == list(PHASES)
    assert (run.code, run.commit, run.precision) == ("c" * 64, "d" * 40, "bf16")
    assert run.settings["optimizer.learning_rate"] == 0.0015 and run.settings["launch.processes_per_node"] == 2
    assert run.settings["phases"] == "none" and run.target == 0.72
    assert run.metrics.steps == 40 and len(run.metrics.evaluations) == 2


@pytest.mark.parametrize(("target", "outcome"), [(0.72, Outcome.MISSED), (None, Outcome.COMPLETED)])
def test_run_that_trained_all_its_samples(make_run: MakeRun, target: float | None, outcome: str) -> None:
    settings = {**SETTINGS, "target_accuracy": target}
    assert read(make_run(totals=summary(reached_target=False), settings=settings)).outcome == outcome


def test_run_of_an_older_version(make_run: MakeRun) -> None:
    old = summary()
    for key in ("evaluation", "precision"):
        del old[key]
    run = read(make_run(totals=old))
    assert run.outcome == Outcome.SUCCEEDED and not run.notes and run.code is None
    assert run.totals_so_far["evaluation_share"] == pytest.approx(20 / 80)
    assert run.precision == "auto"


def test_run_in_progress_has_the_totals_of_its_metrics(make_run: MakeRun) -> None:
    folder = make_run(metrics=lines([step(1), step(2)]) + '{"event": "st')
    with shared_lock(folder / ".lock"):
        run = read(folder)
    assert run.outcome == Outcome.RUNNING and not run.ended and not run.notes
    assert dict(run.totals_so_far) == {
        "samples": 32,
        "steps": 2,
        "padding_share": pytest.approx(0.025),
        "max_over_mean_tokens": pytest.approx(1.05),
    }
    assert read(folder).outcome == Outcome.UNFINISHED, "without its lock"


@pytest.mark.parametrize(
    ("code", "outcome"), [(1, Outcome.FAILED), (2, Outcome.FAILED), (130, Outcome.INTERRUPTED), (143, Outcome.SAVED)]
)
def test_failed_run_has_an_error_message(make_run: MakeRun, code: int, outcome: str) -> None:
    failure = json.dumps({"exit_code": code, "message": "the disk is full", "final": True})
    run = read(make_run(failure__json=failure))
    assert (run.outcome, run.failure) == (outcome, "the disk is full")


def test_finished_run_has_no_failure(make_run: MakeRun) -> None:
    run = read(make_run(totals=summary(), failure__json=json.dumps({"exit_code": 1, "message": "a rank died"})))
    assert (run.outcome, run.failure) == (Outcome.SUCCEEDED, None)


def test_restarted_run(make_run: MakeRun) -> None:
    restarts = '{"time": "t", "samples": 320}\n{"time": "t", "samples": 640}\n'
    assert read(make_run(restarts__jsonl=restarts)).restarts == (320, 640)
    assert read(make_run(1, restarts__jsonl="{}\n")).notes == ("restarts.jsonl: has a line that is not a restart",)


def test_run_without_steps(make_run: MakeRun) -> None:
    run = read(make_run(metrics=None))
    assert run.outcome == Outcome.NOT_STARTED and not run.totals_so_far and not run.notes


def has_note(run: ReportedRun, message: str) -> bool:
    return any(message in note for note in run.notes)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"settings": None}, "config.yaml: is missing"),
        ({"settings": "a: [1"}, "config.yaml: is not valid YAML"),
        ({"settings": "a: &a [1]\nb: *a"}, "config.yaml: is not valid YAML"),
        ({"settings": "a: " + "1" * 5_000}, "config.yaml: is not valid YAML"),
        ({"settings": "[" * 5_000}, "config.yaml: is not valid YAML"),
        ({"settings": "a: " + "x" * (1 << 20)}, "config.yaml: has more than 1,048,576 bytes"),
        ({"settings": {f"key_{number}": 1 for number in range(600)}}, "config.yaml: has more than 500 settings"),
        ({"totals": "{"}, "summary.json: is not valid JSON"),
        ({"totals": "[]"}, "summary.json: is not a JSON object"),
        ({"totals": '{"intercept": 1}'}, "summary.json: has no totals of a run"),
        ({"failure__json": "{"}, "failure.json: is not valid JSON"),
        ({"totals": summary(), "metrics": None}, "metrics.jsonl: is missing or empty"),
        ({"totals": summary(), "metrics": lines([step(1)]) + "{"}, "metrics.jsonl: its last line is incomplete"),
        ({"metrics": "x\n"}, "metrics.jsonl: 1 line is left out; the first, line 1, is not valid JSON"),
        ({"metrics": lines([step(2), step(1)])}, "metrics.jsonl: samples decrease in line 2"),
        ({"metrics": lines([step(1, loss=float("inf"))])}, "loss was not a finite number once, first after 16 samples"),
        ({"not_finite__json": "{}"}, "not_finite.json: has the batch whose loss was not finite"),
    ],
)
def test_missing_or_damaged_files_are_noted(make_run: MakeRun, files: dict[str, Any], message: str) -> None:
    assert has_note(read(make_run(**files)), message)


def test_folders_in_place_of_files_are_noted(make_run: MakeRun) -> None:
    folder = make_run(metrics=None, settings=None, output__txt="")
    for name in ("config.yaml", "summary.json", "failure.json", "metrics.jsonl"):
        (folder / name).mkdir()
    run = read(folder)
    assert run.outcome == Outcome.NOT_STARTED
    assert [note.partition(":")[0] for note in run.notes] == ["config.yaml", "summary.json", "failure.json"]


def test_settings_of_all_types_are_shortened(make_run: MakeRun) -> None:
    odd = "a: 2026-01-01\nb: {c: {d: yes}}\ne: [1, 2]\nf: [[1]]\n7: x\ng: .nan\nh: !!set {p}\ni: " + "9" * 30
    settings = read(make_run(settings=odd)).settings
    assert settings["a"] == "2026-01-01" and settings["b.c.d"] is True and settings["e"] == "[1, 2]"
    assert settings["f"] == "a list" and settings["7"] == "x" and settings["i"] == "a number of many digits"
    assert all(len(str(value)) <= 300 for value in settings.values())


def test_invalid_values_of_a_summary_are_omitted(make_run: MakeRun) -> None:
    odd = summary(
        samples="many", accuracy=None, share_of_peak=[0.2], evaluation=7, phases_ms={"a": 1, "b": "x", "c": -1}
    )
    run = read(make_run(totals=odd))
    assert run.outcome == Outcome.SUCCEEDED and run.phases_ms == {"a": 1}
    assert not {"samples", "accuracy", "share_of_peak", "evaluation_share"} & set(run.totals_so_far)


def test_pipes_in_place_of_files_do_not_block(make_run: MakeRun) -> None:
    path = make_run()
    names = ("config.yaml", "summary.json", "failure.json", "restarts.jsonl", "source.json", "metrics.jsonl")
    for name in names:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    (path / "output.txt").touch()
    notes = read(path).notes
    assert all(any(note.startswith(f"{name}: ") for note in notes) for name in names[:-2]), notes


def test_resume_with_changed_code_is_noted(make_run: MakeRun) -> None:
    later = [{"code": letter * 64, "commit": None} for letter in "cee"]
    source = json.dumps({"code": "c" * 64, "commit": "d" * 40, "resumed": later})
    run = read(make_run(source__json=source))
    assert run.notes[-1] == (
        f"source.json: started by code {'c' * 12}, then by {'e' * 12}: the code was changed before the run was resumed"
    )
    same = json.dumps({"code": "c" * 64, "commit": None, "resumed": later[:1]})
    assert not [note for note in read(make_run(1, source__json=same)).notes if "source" in note]
