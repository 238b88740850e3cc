"""Results that come again.

Published factors, and those that the official checker finds for one's own runs.
"""

from pathlib import Path

import pytest

from podium.comparison import build_result
from podium.comparison.build_result import factor, mark_repeats
from podium.core.errors import WorkError
from podium.mllog.results_tree import ResultFolder, read_results
from podium.submission.rcp import Convergence
from tests.podium.comparison.conftest import log_text, make_result, make_run

RUNS = [make_run(1000.0 + n, 2_000_000.0 + n) for n in range(10)]


def test_the_later_round_repeats_the_earlier_wherever_it_stands() -> None:
    later, earlier = make_result(RUNS, round="v2.1", system="NEW"), make_result(RUNS)
    marked = mark_repeats([later, earlier])
    assert [one.repeats for one in marked] == ["v2.0 ORG SYS", None]
    assert [one.round for one in marked] == ["v2.1", "v2.0"]


def test_within_a_round_the_second_repeats_the_first() -> None:
    marked = mark_repeats([make_result(RUNS), make_result(list(reversed(RUNS)), system="AGAIN")])
    assert [one.repeats for one in marked] == [None, "v2.0 ORG SYS"]


def test_another_clock_does_not_make_other_runs() -> None:
    shifted = [
        make_run(run.seconds or 0, run.samples, start_ms=1e12, stop_ms=1e12 + (run.seconds or 0) * 1e3) for run in RUNS
    ]
    assert mark_repeats([make_result(RUNS), make_result(shifted, round="v2.1")])[1].repeats == "v2.0 ORG SYS"


def test_half_of_the_runs_in_common() -> None:
    others = [make_run(2000.0 + n, 3_000_000.0) for n in range(10)]
    half = mark_repeats([make_result(RUNS), make_result([*RUNS[:5], *others[:5]], round="v2.1")])
    fewer = mark_repeats([make_result(RUNS), make_result([*RUNS[:4], *others[:6]], round="v2.1")])
    assert half[1].repeats == "v2.0 ORG SYS" and fewer[1].repeats is None


def test_one_run_in_common_is_chance() -> None:
    assert mark_repeats([make_result(RUNS[:1]), make_result(RUNS[:1], round="v2.1")])[1].repeats is None


def test_same_times_with_other_samples_are_other_runs() -> None:
    other = [make_run(run.seconds or 0, (run.samples or 0) + 1) for run in RUNS]
    assert mark_repeats([make_result(RUNS), make_result(other, round="v2.1")])[1].repeats is None


def test_own_results_come_after_all_rounds() -> None:
    marked = mark_repeats([make_result(RUNS, round=None), make_result(RUNS)])
    assert [one.repeats for one in marked] == ["v2.0 ORG SYS", None]


def test_runs_without_times_are_like_none() -> None:
    lost = [make_run(stop_ms=None) for _ in range(10)]
    assert mark_repeats([make_result(lost), make_result(lost, round="v2.1")])[1].repeats is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "SYS" / "bert"
    path.mkdir(parents=True)
    for number in range(10):
        (path / f"result_{number}.txt").write_text(log_text(1000.0 + number), encoding="utf-8")
    return path


def of(path: Path) -> ResultFolder:
    return read_results(path, "SYS", "bert")


def test_as_published(folder: Path) -> None:
    (folder / "scaling.json").write_text('{"scaling_factor": 1.0096578558028884}', encoding="utf-8")
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) == 1.0096578558028884 and odd == []
    assert factor(make_result(round=None), of(folder), odd) == 1.0096578558028884


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_a_file_that_tells_nothing(folder: Path, text: bytes, words: str) -> None:
    (folder / "scaling.json").write_bytes(text)
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) is None
    assert len(odd) == 1 and "scaling.json is not used" in odd[0] and words in odd[0]


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_text('{"scaling_factor": 1.01}', encoding="utf-8")
    (folder / "scaling.json").symlink_to(tmp_path / "else")
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) is None and "is no plain file" in odd[0]


def test_published_results_without_a_file_are_not_scaled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: pytest.fail("the official checker was asked"))
    for changes in (
        {},
        {"round": None, "division": "open"},
        {"round": None, "full_size": False},
        {"round": None, "runs": ()},
    ):
        assert factor(make_result(**changes), of(folder), []) is None


def test_own_results_are_scaled_as_they_will_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Convergence(True, "", 1.02, 2.4e6, 2.45e6, 2.3e6, 448, b"{}")
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: found)
    assert factor(make_result(round=None), of(folder), []) == 1.02


def test_own_results_that_are_not_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd: list[str] = []
    found = Convergence(False, "RCP found, no", 1.5, 1e6, 2.45e6, 2.3e6, 448, None)
    monkeypatch.setattr(build_result, "convergence", lambda logs, rules: found)
    assert factor(make_result(round=None), of(folder), odd) is None
    assert odd == ["needs fewer samples than ruleset 5.0.0 accepts: RCP found, no"]

    def broken(logs: object, rules: object) -> Convergence:
        raise WorkError("it broke off")

    monkeypatch.setattr(build_result, "convergence", broken)
    assert factor(make_result(round=None), of(folder), odd) is None and "it broke off" in odd[1]


def test_the_official_checker_scales_own_results(folder: Path) -> None:
    """The reference needs 2,414,421 samples at batch size 448, and the least accepted are 2,274,732."""
    for number in range(10):
        text = log_text(1000.0 + number).replace('"epoch_num": 1792000', '"epoch_num": 2350000')
        (folder / f"result_{number}.txt").write_text(text, encoding="utf-8")
    odd: list[str] = []
    found = factor(make_result(round=None), of(folder), odd)
    assert found == pytest.approx(2_414_421 / 2_350_000, rel=1e-4), odd
