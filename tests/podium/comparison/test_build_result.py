"""Repeated results, and scaling factors: published ones, and those of the official checker for local runs."""

from pathlib import Path

import pytest

from podium.comparison.build_result import check_convergence, mark_repeats
from podium.mllog import rcp
from podium.mllog.results_tree import ResultFolder, read_results
from podium.mllog.run import Run
from tests.podium.comparison.conftest import log_text, make_result, make_run

FAST = [make_run(1000.0 + n, 2_350_000.0) for n in range(10)]  # fewer samples than the reference, but accepted
FACTOR = rcp.require_reference("bert", "5.0.0").verdict(448, [2_350_000.0] * 10).factor
RUNS = [make_run(1000.0 + n, 2_000_000.0 + n) for n in range(10)]


def test_a_later_round_repeats_an_earlier_one_in_any_order() -> None:
    later, earlier = make_result(RUNS, round="v2.1", system="NEW"), make_result(RUNS)
    marked = mark_repeats([later, earlier])
    assert [one.repeats for one in marked] == ["v2.0 ORG SYS", None]
    assert [one.round for one in marked] == ["v2.1", "v2.0"]


def test_within_a_round_the_second_repeats_the_first() -> None:
    marked = mark_repeats([make_result(RUNS), make_result(list(reversed(RUNS)), system="AGAIN")])
    assert [one.repeats for one in marked] == [None, "v2.0 ORG SYS"]


def test_runs_with_a_shifted_clock_are_repeats() -> None:
    shifted = [
        make_run(run.seconds or 0, run.samples, start_ms=1e12, stop_ms=1e12 + (run.seconds or 0) * 1e3) for run in RUNS
    ]
    assert mark_repeats([make_result(RUNS), make_result(shifted, round="v2.1")])[1].repeats == "v2.0 ORG SYS"


def test_half_of_the_runs_in_common_make_a_repeat() -> None:
    others = [make_run(2000.0 + n, 3_000_000.0) for n in range(10)]
    half = mark_repeats([make_result(RUNS), make_result([*RUNS[:5], *others[:5]], round="v2.1")])
    fewer = mark_repeats([make_result(RUNS), make_result([*RUNS[:4], *others[:6]], round="v2.1")])
    assert half[1].repeats == "v2.0 ORG SYS" and fewer[1].repeats is None


def test_one_run_in_common_is_not_a_repeat() -> None:
    assert mark_repeats([make_result(RUNS[:1]), make_result(RUNS[:1], round="v2.1")])[1].repeats is None


def test_runs_with_equal_times_and_different_samples_are_not_repeats() -> None:
    other = [make_run(run.seconds or 0, (run.samples or 0) + 1) for run in RUNS]
    assert mark_repeats([make_result(RUNS), make_result(other, round="v2.1")])[1].repeats is None


def test_local_results_repeat_published_ones() -> None:
    marked = mark_repeats([make_result(RUNS, round=None), make_result(RUNS)])
    assert [one.repeats for one in marked] == ["v2.0 ORG SYS", None]


def test_runs_without_times_are_never_repeats() -> None:
    lost = [make_run(stop_ms=None) for _ in range(10)]
    assert mark_repeats([make_result(lost), make_result(lost, round="v2.1")])[1].repeats is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "SYS" / "bert"
    path.mkdir(parents=True)
    for number in range(10):
        (path / f"result_{number}.txt").write_text(log_text(1000.0 + number), encoding="utf-8")
    return path


def result_folder(path: Path) -> ResultFolder:
    return read_results(path, "SYS", "bert")


def test_a_published_scaling_factor_is_used(folder: Path) -> None:
    (folder / "scaling.json").write_text(f'{{"scaling_factor": {FACTOR!r}}}', encoding="utf-8")
    anomalies: list[str] = []
    for round_name in ("v2.1", "v5.0", None):
        result = make_result(FAST, round=round_name)
        assert check_convergence(result, result_folder(folder), anomalies) == ("Pass", FACTOR)
    assert anomalies == []


def test_a_factor_other_than_that_of_the_reference_points_is_an_anomaly(folder: Path) -> None:
    result, anomalies = make_result(FAST, round="v2.1"), list[str]()
    assert check_convergence(result, result_folder(folder), anomalies) == ("Pass", None)
    (folder / "scaling.json").write_text('{"scaling_factor": 1.05}', encoding="utf-8")
    assert check_convergence(result, result_folder(folder), anomalies) == ("Pass", 1.05)
    expected = f"by ruleset 2.1.0's reference points it is {FACTOR:.6g}"
    assert anomalies == [f"its score is scaled by {stated}; {expected}" for stated in ("1", "1.05")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"[1.01]", "has no scaling_factor"),
        (b'{"scaling_factor": "1.01"}', "has no scaling_factor"),
        (b'{"scaling_factor": 0.5}', "has no scaling_factor from 1 to 2"),
        (b'{"scaling_factor": 1e999}', "has no scaling_factor"),
        (b'{"scaling_factor": 50}', "has no scaling_factor from 1 to 2"),
        (b"\xff", "utf-8"),
        (b" " * 100_000, "is larger than"),
    ],
)
def test_an_invalid_scaling_file_is_an_anomaly(folder: Path, text: bytes, message: str) -> None:
    (folder / "scaling.json").write_bytes(text)
    anomalies: list[str] = []
    assert check_convergence(make_result(), result_folder(folder), anomalies) == ("Pass", None)
    assert len(anomalies) == 1 and "scaling.json is not used" in anomalies[0] and message in anomalies[0]


def test_a_scaling_file_that_is_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_text('{"scaling_factor": 1.01}', encoding="utf-8")
    (folder / "scaling.json").symlink_to(tmp_path / "else")
    anomalies: list[str] = []
    assert check_convergence(make_result(), result_folder(folder), anomalies) == ("Pass", None)
    assert "is not a regular file" in anomalies[0]


def test_the_reference_of_batch_size_448_is_the_published_one() -> None:
    assert pytest.approx(2_414_421 / 2_350_000, rel=1e-6) == FACTOR


def test_results_that_the_rules_do_not_compare_have_no_verdict(folder: Path) -> None:
    for changes in (
        {"division": "open"},
        {"full_size": False},
        {"runs": ()},
        {"benchmark": "unknown"},
        {"round": "v0.7"},
        {"round": None, "runs": tuple(FAST[:9])},
    ):
        result = make_result(**{"runs": FAST, "round": "v5.0", **changes})
        assert check_convergence(result, result_folder(folder), []) == (None, None), changes


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([make_run(1000.0, 2_000_000.0)] * 10, "Fail"),
        ([make_run(1000.0, 2_000_000.0, global_batch_size=1000.0)] * 10, "Interp. Fail"),
        ([make_run(1000.0, 9_000_000.0, global_batch_size=32768.0)] * 10, "Missing"),
        ([*FAST[:9], make_run(1000.0, 2_350_000.0, global_batch_size=512.0)], "Unknown state"),
        ([*FAST[:8], *[make_run(1000.0, status="aborted")] * 2], "Unknown state"),
        ([*FAST[:9], make_run(1000.0, status="aborted")], "Pass"),
    ],
)
def test_verdicts_are_in_the_words_of_the_official_summarizer(folder: Path, runs: list[Run], verdict: str) -> None:
    assert check_convergence(make_result(runs, round="v5.0"), result_folder(folder), [])[0] == verdict


def test_own_results_are_scaled_by_the_reference_points(folder: Path) -> None:
    anomalies: list[str] = []
    own = make_result(FAST, round=None)
    assert check_convergence(own, result_folder(folder), anomalies) == ("Pass", FACTOR) and anomalies == []
    too_fast = make_result([make_run(1000.0, 2_000_000.0 + n) for n in range(10)], round=None)
    assert check_convergence(too_fast, result_folder(folder), anomalies) == ("Fail", None)
    assert anomalies == ["needs fewer samples than ruleset 5.0.0 accepts: RCP found"]
