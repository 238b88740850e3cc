"""One's own results beside the published ones."""

from podium.comparison.own import own_sentences
from podium.comparison.result import Result
from tests.podium.comparison.conftest import make_result, make_run


def timed(minutes: float, runs: int = 10, **changes: object) -> Result:
    return make_result([make_run(60 * minutes, 2_400_000.0, evaluating_seconds=3.6 * minutes)] * runs, **changes)


def sentence(*published: Result, **changes: object) -> str:
    (told,) = own_sentences([*published, timed(20.0, round=None, system="mine", **changes)])
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
    (told,) = own_sentences([timed(10.0), timed(20.0, 3, round=None)])
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
    assert "2.00× the best" in own_sentences([own], [timed(10.0), timed(1.0, round=None)])[0]


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
    (told,) = own_sentences([timed(10.0), make_result([make_run(status="aborted")], round=None)])
    assert "has no run that reached the target" in told


def test_published_results_have_no_sentence() -> None:
    assert own_sentences([timed(10.0)]) == []
