"""The record of a set: what is written is read back, and what cannot be used is refused with the reason."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import WorkError
from podium.run.set_record import EndedRun, SetRecord, add_ended, read_set, write_set

FIRST = EndedRun(0, "success", "result_0.txt", "0" * 64)
SECOND = EndedRun(1, None, None, None)
RESTARTED = EndedRun(1, "success", "run_1/result.restarted.txt", "1" * 64, restarted=True)


def test_entries_are_added_and_the_last_of_a_run_counts(tmp_path: Path) -> None:
    assert read_set(tmp_path) is None
    add_ended(tmp_path, FIRST)
    assert list(tmp_path.iterdir()) == []  # a set of the layout before has no record, and gets none
    write_set(tmp_path, SetRecord("laptop", 2))
    add_ended(tmp_path, FIRST)
    assert read_set(tmp_path) == SetRecord("laptop", 2, (FIRST,))
    for run in (SECOND, RESTARTED):
        add_ended(tmp_path, run)
    record = read_set(tmp_path)
    assert record is not None and record.ended == (FIRST, SECOND, RESTARTED) and record.whole
    assert record.by_number == {0: FIRST, 1: RESTARTED}
    assert [run.is_result for run in record.ended] == [True, False, False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "other"}, "it is no record of a set"),
        ({"version": 2}, "its version is 2, and this one is 1"),
        ({"runs": 0}, "system, runs or ended is not"),
        ({"runs": True}, "system, runs or ended is not"),
        ({"system": None}, "system, runs or ended is not"),
        ({"ended": {}}, "system, runs or ended is not"),
        ({"ended": [{"number": 1}]}, "missing"),
        ({"ended": [7]}, ""),
        ({"ended": [{**asdict(FIRST), "more": 1}]}, "more"),
        ({"ended": [{**asdict(FIRST), "number": -1}]}, "the number of a run is none"),
        ({"ended": [{**asdict(FIRST), "status": 1}]}, "a value that is no text"),
        ({"ended": [{**asdict(FIRST), "sha256": None}]}, "a log without a hash"),
        ({"ended": [{**asdict(FIRST), "log": "../../elsewhere.txt"}]}, "names no log of the set"),
        ({"ended": [{**asdict(FIRST), "sha256": "0"}]}, "or no SHA-256"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    write_set(tmp_path, SetRecord("laptop", 2, (FIRST,)))
    document = json.loads((tmp_path / "set.json").read_text(encoding="utf-8"))
    (tmp_path / "set.json").write_text(json.dumps(document | change), encoding="utf-8")
    with pytest.raises(WorkError, match=rf"set\.json: cannot be used \(.*{why}.*\); put back the file"):
        read_set(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"format": "podium-set", "version": 1}'])
def test_a_record_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "set.json").write_text(text, encoding="utf-8")
    with pytest.raises(WorkError, match=r"set\.json: cannot be used"):
        read_set(tmp_path)
