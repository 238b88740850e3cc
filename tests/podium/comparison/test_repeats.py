"""Results that come again."""

from podium.comparison.repeats import mark_repeats
from tests.podium.comparison.conftest import make_result, make_run

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
