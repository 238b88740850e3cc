"""Results for programs."""

import csv
import io
import json

from podium.comparison.rows import as_csv, rows
from tests.podium.comparison.conftest import make_result, make_run

PROMISED = {
    "round",
    "submitter",
    "system",
    "division",
    "score_minutes",
    "score_minutes_scaled",
    "runs_seconds",
    "global_batch_size",
    "accelerators",
    "accelerator",
    "samples_to_target",
    "sequences_per_second",
}


def test_what_is_promised_is_there() -> None:
    (row,) = rows([make_result(scaling_factor=1.5)])
    assert set(row) >= PROMISED
    assert row["score_minutes_scaled"] == 1.5 * row["score_minutes"] and row["runs_seconds"][1] == 1101.0
    assert (row["global_batch_size"], row["accelerators"], row["accelerator"]) == (448, 8, "NVIDIA A100-SXM4-80GB")
    assert row["samples_to_target"] == 2_520_000 and row["runs_samples_to_target"][:2] == [2_400_000, 2_640_000]
    assert row["sequences_per_second_per_accelerator"] == row["sequences_per_second"] / 8
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_what_is_not_known_is_null() -> None:
    runs = [make_run(stop_ms=None, samples=None, global_batch_size=None)]
    (row,) = rows([make_result(runs, nodes=None, accelerators=None, accelerator=None, kind=None, division=None)])
    known = {key: value for key, value in row.items() if value is not None}
    assert row["runs_seconds"] == [None] and row["runs_converged"] == [False]
    assert set(known) <= {"round", "submitter", "system", "source", "full_size", "oddities"} | {
        key for key in row if key.startswith("runs_")
    }


def test_scaling_is_told_with_each_size() -> None:
    few, many = make_result(), make_result([make_run(500.0)] * 10, accelerators=32)
    first, second, other = rows([few, many, make_result(round="v2.1")])
    assert first["scaling_efficiency"] == 1.0 == first["scaling_efficiency_time"]
    assert 0 < second["scaling_efficiency"] < 1 and other["scaling_efficiency"] is None


def test_csv_is_read_back() -> None:
    result = make_result(submitter='a "b", c\nd', oddities=("one", "two"))
    (read,) = csv.DictReader(io.StringIO(as_csv(rows([result]))))
    assert read["submitter"] == 'a "b", c d' and read["oddities"] == "one; two"
    assert [float(text) for text in read["runs_seconds"].split()] == [run.seconds for run in result.runs]
    assert read["mfu"] != "" and read["repeats"] == "" and as_csv([]) == ""


def test_no_cell_is_a_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@x", "\t=1"):
        (read,) = csv.DictReader(io.StringIO(as_csv(rows([make_result(submitter=text)]))))
        assert read["submitter"] == f"'{text}"
    (read,) = csv.DictReader(io.StringIO(as_csv(rows([make_result([make_run(1.0)], oddities=("=x",))]))))
    assert read["oddities"] == "'=x"
