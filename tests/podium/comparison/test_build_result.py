"""Repeated results, and scaling factors: published ones, and those of the official checker for local runs."""

from pathlib import Path

import pytest

from podium.comparison import build_result
from podium.comparison.build_result import find_scaling_factor, mark_repeats
from podium.core.errors import WorkError
from podium.mllog.results_tree import ResultFolder, read_results
from podium.submission.rcp import Convergence
from tests.podium.comparison.conftest import log_text, make_result, make_run

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
    (folder / "scaling.json").write_text('{"scaling_factor": 1.0096578558028884}', encoding="utf-8")
    anomalies: list[str] = []
    assert (
        find_scaling_factor(make_result(), result_folder(folder), anomalies) == 1.0096578558028884 and anomalies == []
    )
    assert find_scaling_factor(make_result(round=None), result_folder(folder), anomalies) == 1.0096578558028884


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
    assert find_scaling_factor(make_result(), result_folder(folder), anomalies) is None
    assert len(anomalies) == 1 and "scaling.json is not used" in anomalies[0] and message in anomalies[0]


def test_a_scaling_file_that_is_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_text('{"scaling_factor": 1.01}', encoding="utf-8")
    (folder / "scaling.json").symlink_to(tmp_path / "else")
    anomalies: list[str] = []
    assert (
        find_scaling_factor(make_result(), result_folder(folder), anomalies) is None
        and "is not a regular file" in anomalies[0]
    )


def test_published_results_without_a_file_are_not_scaled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: pytest.fail("the official checker was called"))
    for changes in (
        {},
        {"round": None, "division": "open"},
        {"round": None, "full_size": False},
        {"round": None, "runs": ()},
    ):
        assert find_scaling_factor(make_result(**changes), result_folder(folder), []) is None


def test_own_results_are_scaled_by_the_official_checker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Convergence(True, "", 1.02, 2.4e6, 2.45e6, 2.3e6, 448, b"{}")
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: found)
    assert find_scaling_factor(make_result(round=None), result_folder(folder), []) == 1.02


def test_own_results_that_the_checker_refuses_are_not_scaled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anomalies: list[str] = []
    found = Convergence(False, "RCP found, no", 1.5, 1e6, 2.45e6, 2.3e6, 448, None)
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: found)
    assert find_scaling_factor(make_result(round=None), result_folder(folder), anomalies) is None
    assert anomalies == ["needs fewer samples than ruleset 5.0.0 accepts: RCP found, no"]

    def broken(logs: object, rules: object) -> Convergence:
        raise WorkError("it broke off")

    monkeypatch.setattr(build_result, "convergence", broken)
    assert (
        find_scaling_factor(make_result(round=None), result_folder(folder), anomalies) is None
        and "it broke off" in anomalies[1]
    )


def test_the_official_checker_computes_the_factor_of_logs(folder: Path) -> None:
    """The reference needs 2,414,421 samples at batch size 448, and the least accepted are 2,274,732."""
    for number in range(10):
        text = log_text(1000.0 + number).replace('"epoch_num": 1792000', '"epoch_num": 2350000')
        (folder / f"result_{number}.txt").write_text(text, encoding="utf-8")
    anomalies: list[str] = []
    found = find_scaling_factor(make_result(round=None), result_folder(folder), anomalies)
    assert found == pytest.approx(2_414_421 / 2_350_000, rel=1e-4), anomalies
