"""The record of a set: writing, reading, and errors of invalid records."""

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


def test_last_entry_of_a_run_counts(tmp_path: Path) -> None:
    assert read_set(tmp_path) is None
    add_ended(tmp_path, FIRST)
    assert list(tmp_path.iterdir()) == []  # a set of an older version has no record, and gets none
    write_set(tmp_path, SetRecord("laptop", 2))
    add_ended(tmp_path, FIRST)
    assert read_set(tmp_path) == SetRecord("laptop", 2, (FIRST,))
    for run in (SECOND, RESTARTED):
        add_ended(tmp_path, run)
    record = read_set(tmp_path)
    assert record is not None and record.ended == (FIRST, SECOND, RESTARTED) and record.complete
    assert record.by_number == {0: FIRST, 1: RESTARTED}
    assert [run.is_result for run in record.ended] == [True, False, False]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "other"}, "it is not the record of a set"),
        ({"version": 2}, "found version 2, allowed is 1"),
        ({"runs": 0}, "system, runs or ended has a wrong type"),
        ({"runs": True}, "system, runs or ended has a wrong type"),
        ({"system": None}, "system, runs or ended has a wrong type"),
        ({"ended": {}}, "system, runs or ended has a wrong type"),
        ({"ended": [{"number": 1}]}, "missing"),
        ({"ended": [7]}, ""),
        ({"ended": [{**asdict(FIRST), "more": 1}]}, "more"),
        ({"ended": [{**asdict(FIRST), "number": -1}]}, "the number of a run is not valid"),
        ({"ended": [{**asdict(FIRST), "status": 1}]}, "a value that is not a text"),
        ({"ended": [{**asdict(FIRST), "sha256": None}]}, "a log without a hash"),
        ({"ended": [{**asdict(FIRST), "log": "../../elsewhere.txt"}]}, "does not name a log of the set"),
        ({"ended": [{**asdict(FIRST), "sha256": "0"}]}, "or has no valid SHA-256"),
    ],
)
def test_invalid_record_is_an_error(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write_set(tmp_path, SetRecord("laptop", 2, (FIRST,)))
    document = json.loads((tmp_path / "set.json").read_text(encoding="utf-8"))
    (tmp_path / "set.json").write_text(json.dumps(document | change), encoding="utf-8")
    with pytest.raises(WorkError, match=rf"set\.json: cannot be used \(.*{reason}.*\); put back the file"):
        read_set(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"format": "podium-set", "version": 1}'])
def test_file_that_is_not_a_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "set.json").write_text(text, encoding="utf-8")
    with pytest.raises(WorkError, match=r"set\.json: cannot be used"):
        read_set(tmp_path)
