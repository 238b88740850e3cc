"""Comparison of logs with their runs' records: every tampering is refused, with a set's record and without."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.core.files import sha256_of
from podium.run.set_record import EndedRun, add_ended, read_set, write_set
from podium.run.source import Source, read_source, write_source
from podium.submission.package.compare_records import (
    RECORD_RULES,
    RecordedRuns,
    describe_comparison,
    find_contradictions,
)
from podium.submission.package.find_runs import find_records, read_runs, runs_folder
from tests.podium.submission.conftest import GAP_MS, START_MS, MadeSet, edit, set_times, set_value

Events = list[dict[str, Any]]


def recorded(made: MadeSet, logs: Path | None = None) -> RecordedRuns:
    runs = read_runs(logs or made.logs[0].parent)
    records = find_records(runs, runs_folder(runs[0].path.parent, made.name, made.runs))
    return RecordedRuns(runs, records, load_system(str(made.system)).description)


def reasons(made: MadeSet) -> list[str]:
    return find_contradictions(recorded(made))


def at(number: int, seconds: float) -> Callable[[Events], None]:
    return set_times(START_MS + number * GAP_MS, seconds)


def succeed(events: Events) -> None:
    next(event for event in events if event["key"] == "run_stop")["metadata"]["status"] = "success"


def reach(events: Events) -> None:
    """Edit a failed run to one that reached the target, in every event that shows it."""
    succeed(events)
    [event for event in events if event["key"] == "eval_accuracy"][-1]["value"] = 0.7301


def edited(change: Callable[[Events], None], number: int = 3) -> Callable[[MadeSet], None]:
    return lambda made: edit(made.logs[number], change)


def copied(made: MadeSet) -> None:
    """Replace a log by a copy of the fastest one, with the seed and times of the replaced run."""
    times = json.loads(made.logs[0].read_text(encoding="utf-8").splitlines()[0].partition(" ")[2])["time_ms"]
    there = json.loads(made.logs[7].read_text(encoding="utf-8").splitlines()[0].partition(" ")[2])["time_ms"]
    shutil.copy(made.logs[0], made.logs[7])
    edit(made.logs[7], set_value("seed", 1007))

    def later(events: Events) -> None:
        for event in events:
            event["time_ms"] += there - times

    edit(made.logs[7], later)


def without_folder(made: MadeSet) -> None:
    """Delete a run with its logs and its folder."""
    made.logs[4].unlink()
    (made.set_folder / "result_4.txt").unlink(missing_ok=True)
    shutil.rmtree(made.folder(4))


def totals(**changes: Any) -> Callable[[MadeSet], None]:
    def change(made: MadeSet) -> None:
        path = RunFolder(made.folder(3)).summary
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")

    return change


def metrics(change: Callable[[str], str]) -> Callable[[MadeSet], None]:
    def write(made: MadeSet) -> None:
        path = RunFolder(made.folder(3)).metrics
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    return write


def resumed_by(code: str) -> Callable[[MadeSet], None]:
    def change(made: MadeSet) -> None:
        folder = RunFolder(made.folder(3))
        folder.mark_resumed()
        source = read_source(folder.source)
        assert source is not None
        write_source(folder.source, replace(source, resumed=(Source(code * 64, None),)))

    return change


def made_by(code: str) -> Callable[[MadeSet], None]:
    return lambda made: write_source(RunFolder(made.folder(3)).source, Source(code * 64, None))


# Tampering: the change, the rule that refuses it, a part of its message, and whether it is found without set.json.
TAMPERINGS: dict[str, tuple[Callable[[MadeSet], None], str, str, bool]] = {
    "0.9% faster": (edited(at(3, 103 * 0.991)), "logs as written", "result_3.txt", True),
    "a hundredth of a second faster": (edited(at(3, 102.99)), "logs as written", "is not the log that", False),
    "halved": (edited(at(3, 51.5)), "logs as written", "51.50 s", True),
    "failed to success": (edited(reach, 5), "logs as written", "reached_target is false", True),
    "status alone": (edited(succeed, 5), "logs as written", "has the status success, and", True),
    "another run's log": (copied, "logs as written", "result_7.txt has a run of 100.00 s", True),
    "another accuracy": (edited(set_value("eval_accuracy", 0.8)), "logs as written", "has accuracy 0.8", True),
    "other samples": (edited(set_value("train_samples", 16)), "logs as written", "has samples 16", True),
    "run deleted": (without_folder, "no run left out", "run_4", True),
    "resumed": (lambda made: RunFolder(made.folder(3)).mark_resumed(), "no restarted run", "result_3.txt", True),
    "restarted": (
        lambda made: RunFolder(made.folder(3)).reset_for_restart(None),
        "no restarted run",
        "result_3.txt",
        True,
    ),
    "restarts in totals": (totals(restarts=1), "no restarted run", "result_3.txt", True),
    "resumed by other code": (resumed_by("e"), "no restarted run", "resumed by eeeeeeeeeeee", True),
    "other code": (made_by("e"), "same code", "result_3.txt by eeeeeeeeeeee", True),
    "summary without success": (
        totals(reached_target=False),
        "logs as written",
        "result_3.txt has the status success",
        True,
    ),
    "summary of other samples": (totals(samples=7), "logs as written", "has samples", True),
    "summary of another accuracy": (totals(accuracy=0.99), "logs as written", "has accuracy", True),
    "summary of another time": (totals(seconds=110.0), "logs as written", "110.00 s", True),
    "metrics of another accuracy": (metrics(lambda text: text.replace("0.4", "0.5")), "logs as written", "0.5", True),
    "metrics cut off": (metrics(lambda text: text.splitlines()[0]), "logs as written", "has 2 evaluations", True),
    "metrics damaged": (metrics(lambda text: text + '{"event": "evaluation"'), "logs as written", "cannot be", True),
    "metrics deleted": (
        lambda made: RunFolder(made.folder(3)).metrics.unlink(),
        "logs as written",
        "cannot be compared",
        True,
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_tampering_is_refused(make_set: Any, name: str) -> None:
    tamper, rule, text, without_record = TAMPERINGS[name]
    made = make_set(failed=[5])
    assert reasons(made) == []
    tamper(made)
    found = reasons(made)
    assert any(one.startswith(f"{rule}: ") and text in one for one in found), found
    if (made.set_folder / "set.json").is_file():
        made.remove_set_record()
    assert bool(reasons(made)) == without_record


def test_a_missing_or_shortened_set_record_is_refused(make_set: Any) -> None:
    made: MadeSet = make_set()
    record = made.set_folder / "set.json"
    content = record.read_text(encoding="utf-8")
    record.write_text(content.replace('"runs": 10', '"runs": 9'), encoding="utf-8")
    assert any("9 runs were requested, and 10 have ended" in one for one in reasons(made))
    record.unlink()
    assert any(one.startswith("whole set: ") and "set.json is missing" in one for one in reasons(made))


def test_every_rule_has_a_tampering() -> None:
    tested_elsewhere = {"one set", "whole set", "described machine"}  # below, and in test_build.py
    assert {rule for _, rule, _, _ in TAMPERINGS.values()} | tested_elsewhere == set(RECORD_RULES)


def test_an_incomplete_set_is_refused(make_set: Any) -> None:
    """No run may be left out because it is slow, restarted or not a result."""
    made = make_set([100] * 11)
    record = read_set(made.set_folder)
    assert record is not None
    write_set(made.set_folder, replace(record, runs=14))
    (reason,) = reasons(made)
    assert reason.startswith("whole set: ") and "14 runs were requested, and 11 have ended" in reason
    write_set(made.set_folder, record)
    made.logs[10].unlink()
    (reason,) = reasons(made)
    assert reason.startswith("no run left out: ") and "set.json has result_10.txt, success" in reason
    add_ended(made.set_folder, EndedRun(10, "success", "run_10/result.restarted.txt", "0" * 64, restarted=True))
    (reason,) = reasons(made)
    assert reason.startswith("no restarted run: ") and "run_10 was restarted or resumed" in reason
    log = made.set_folder / "result_10.txt"
    add_ended(made.set_folder, EndedRun(10, "success", log.name, sha256_of(log), fault="its data was changed"))
    (reason,) = reasons(made)
    assert reason.startswith("whole set: ") and "its log is not a result: its data was changed" in reason


def test_a_run_that_broke_off_is_compared_without_a_summary(make_set: Any) -> None:
    """The run has no summary, and its metrics may have one evaluation more or less than its log."""
    made = make_set(failed=[5])
    RunFolder(made.folder(5)).summary.unlink()
    path = RunFolder(made.folder(5)).metrics
    text = path.read_text(encoding="utf-8")
    assert reasons(made) == []
    path.write_text(text.splitlines()[0], encoding="utf-8")
    assert reasons(made) == []
    path.write_text(text.replace("0.3", "0.35"), encoding="utf-8")
    assert "0.35" in reasons(made)[0]


def test_an_edited_copy_is_refused_and_the_sets_log_is_named(make_set: Any) -> None:
    made = make_set()
    edit(made.logs[3], at(3, 102.99))
    (reason,) = reasons(made)
    assert reason.endswith(f"logs must not be edited: restore {made.set_folder / 'result_3.txt'}")
    assert find_contradictions(recorded(made, made.set_folder)) == []


def test_compared_and_not_compared_records_are_described(make_set: Any) -> None:
    made = make_set()
    found, not_compared = describe_comparison(recorded(made))
    assert not_compared == [] and len(found) == 2
    assert found[0].startswith("runs/mine/set: 10 runs were requested and 10 have ended; the logs have the SHA-256")
    assert found[1].startswith("10 logs: status, seconds, samples and accuracy") and "made by code" in found[1]
    made.remove_set_record()
    found, not_compared = describe_comparison(recorded(made))
    assert len(found) == 1 and "is a set of an older version without set.json" in not_compared[0]
