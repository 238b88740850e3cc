"""Which results are shown.

Scaling over a submitter's sizes.

One's own results beside the published ones.

Results for programs.
"""

import csv
import io
import json

import pytest

from podium.comparison.load import Comparison
from podium.comparison.result import Result
from podium.comparison.table import as_csv, choose, describe_own_results, rows, scaling_families
from podium.core.errors import UsageError
from tests.podium.comparison.conftest import make_result, make_run

RESULTS = [
    make_result(),
    make_result(round="v2.1", accelerator="Habana Gaudi2", kind=None),
    make_result(round=None, division="open", accelerator=None, kind=None),
]
COMPARISON = Comparison(tuple(RESULTS), ("a note",))


@pytest.mark.parametrize(
    ("rounds", "accelerators", "divisions", "numbers"),
    [
        ([], [], [], [0, 1, 2]),
        (["2.1"], [], [], [1]),
        (["v2.0", "own"], [], [], [0, 2]),
        ([], ["a100"], [], [0]),
        ([], ["SXM4"], [], [0]),
        ([], ["gaudi", "A100"], [], [0, 1]),
        ([], [], ["open"], [2]),
        ([], [], ["open", "closed"], [0, 1, 2]),
        (["2.1"], ["A100"], [], []),
    ],
)
def test_choices(rounds: list[str], accelerators: list[str], divisions: list[str], numbers: list[int]) -> None:
    chosen = choose(COMPARISON, rounds, accelerators, divisions)
    assert chosen.results == tuple(RESULTS[number] for number in numbers)
    assert chosen.others == tuple(RESULTS[number] for number in range(3) if number not in numbers)
    assert chosen.notes == ("a note",)


def test_names_that_nothing_has() -> None:
    with pytest.raises(UsageError, match=r"--round v3\.0: no result is of it; there are own, v2\.0, v2\.1"):
        choose(COMPARISON, ["3.0"], [], [])
    with pytest.raises(UsageError, match="--accelerator h100: no result has one; there are Habana Gaudi2, NVIDIA A"):
        choose(COMPARISON, [], ["H100"], [])
    with pytest.raises(UsageError, match="--division Closed: allowed is closed or open"):
        choose(COMPARISON, [], [], ["Closed"])


def sized(accelerators: int | None, seconds: float, samples: float = 2_400_000.0, **changes: object) -> Result:
    return make_result([make_run(seconds, samples)] * 10, accelerators=accelerators, **changes)


def test_efficiencies() -> None:
    """Eight times the accelerators, seven times the throughput, a tenth more samples."""
    (family,) = scaling_families([sized(64, 1000.0 / 7 * 1.1, 2_640_000.0), sized(8, 1000.0)])
    assert [size.result.accelerators for size in family] == [8, 64]
    assert [size.throughput for size in family] == pytest.approx([1, 7 / 8])
    assert [size.time for size in family] == pytest.approx([1, 7 / 8 / 1.1])


def test_the_best_of_equal_sizes_counts() -> None:
    (family,) = scaling_families([sized(8, 1200.0), sized(8, 1000.0), sized(16, 500.0)])
    assert [size.result.minutes for size in family] == pytest.approx([1000 / 60, 500 / 60])


@pytest.mark.parametrize(
    "changes",
    [{"round": "v2.1"}, {"submitter": "X"}, {"division": "open"}, {"kind": None}, {"full_size": False}],
)
def test_other_families(changes: dict[str, object]) -> None:
    assert scaling_families([sized(8, 1000.0), sized(16, 500.0, **changes)]) == []


def test_sizes_that_are_not_known() -> None:
    failed = make_result([make_run(status="aborted")] * 10, accelerators=32)
    assert (
        scaling_families(
            [sized(8, 1000.0), sized(None, 500.0), sized(0, 500.0), failed, make_result([], accelerators=4)]
        )
        == []
    )


def timed(minutes: float, runs: int = 10, **changes: object) -> Result:
    return make_result([make_run(60 * minutes, 2_400_000.0, evaluating_seconds=3.6 * minutes)] * runs, **changes)


def sentence(*published: Result, **changes: object) -> str:
    (told,) = describe_own_results([*published, timed(20.0, round=None, system="mine", **changes)])
    return told


def test_against_the_best_of_the_same_number() -> None:
    told = sentence(timed(25.0), timed(18.5, system="BEST"), timed(1.0, accelerators=64), timed(2.0, kind=None))
    assert told == (
        "your mine (8×NVIDIA A100 SXM) is at 1.08× the best published time (v2.0 ORG BEST, 18.50 min): 20.00 min; "
        "6% of it is evaluation"
    )


def test_scaled_scores_count_on_both_sides() -> None:
    assert "1.10×" in sentence(timed(20.0), scaling_factor=1.1)
    assert "(22.00 min as the rules scale it)" in sentence(timed(20.0), scaling_factor=1.1)
    told = sentence(timed(20.0, scaling_factor=1.1), timed(21.0, accelerators=16))
    assert "0.91×" in told and "(v2.0 ORG SYS, 22.00 min)" in told


def test_fewer_than_ten_runs_are_no_score() -> None:
    (told,) = describe_own_results([timed(10.0), timed(20.0, 3, round=None)])
    assert "2.00×" in told and "the mean of 3 run(s) and no score yet" in told


def test_the_open_division_is_named() -> None:
    assert "18.00 min, open)" in sentence(timed(18.0, division="open"))
    assert "1.00× the best published time (v2.0 ORG SYS, 20.00 min)" in sentence(
        timed(5.0, division="open"), timed(20.0)
    )


def test_the_size_comes_before_the_division() -> None:
    told = sentence(timed(10.0), timed(1.0, division="open", accelerators=1024), division="open")
    assert "2.00× the best published time (v2.0 ORG SYS, 10.00 min)" in told


def test_others_that_are_not_shown_count() -> None:
    own = timed(20.0, round=None)
    assert "2.00× the best" in describe_own_results([own], [timed(10.0), timed(1.0, round=None)])[0]


def test_against_the_nearest_number() -> None:
    told = sentence(timed(2.0, accelerators=64, system="FAR"), timed(10.0, accelerators=16, system="NEAR"))
    assert (
        "trains 250.0 sequences/s an accelerator, 1.00× as many as the nearest published size, 16 (v2.0 ORG NEAR"
        in told
    )


def test_what_cannot_be_compared_says_so() -> None:
    assert "did not train BERT-large" in sentence(timed(10.0), full_size=False)
    assert "none of the results is of this accelerator" in sentence(timed(10.0, kind=None))
    assert "none of the results is of this accelerator" in sentence()
    assert "their sizes are not known" in sentence(timed(10.0), accelerators=None)
    (told,) = describe_own_results([timed(10.0), make_result([make_run(status="aborted")], round=None)])
    assert "has no run that reached the target" in told


def test_published_results_have_no_sentence() -> None:
    assert describe_own_results([timed(10.0)]) == []


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
