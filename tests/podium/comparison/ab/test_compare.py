"""A/B comparison of two sides, as text and JSON."""

import io
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from podium.comparison.ab.compare import ABComparison, as_json, compare_sides, format_p_value, print_ab
from podium.comparison.ab.operands import Side
from podium.core.errors import UsageError
from podium.mllog.run import Run
from podium.mllog.significance import RcpTest, Welch
from tests.podium.comparison.conftest import make_run


def make_side(runs: Sequence[Run], name: str = "one", **changes: Any) -> Side:
    side = Side(name, f"v2.0 ORG {name}", tuple(runs), True, {"global_batch_size": ("448",)}, False, {})
    return replace(side, **changes)


def make_runs(seconds: float, samples: float, n: int = 10, seed: int = 0, **changes: Any) -> list[Run]:
    """Return runs with standard deviations of 3% in samples and 0.5% in throughput."""
    draw = random.Random(seed)
    drawn = [(samples * draw.gauss(1, 0.03), draw.gauss(1, 0.005)) for _ in range(n)]
    return [make_run(round(seconds * count / samples * rate, 3), count, **changes) for count, rate in drawn]


def printed(ab: ABComparison, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_ab(console, ab)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


SLOW, FAST = make_runs(1100.0, 2.6e6), make_runs(1000.0, 2.4e6, seed=1)


def test_the_verdict_has_the_faster_side_and_the_cause() -> None:
    ab = compare_sides(make_side(FAST, "fast"), make_side(SLOW, "slow"))
    assert ab.verdict.startswith("A (v2.0 ORG fast) is faster than B (v2.0 ORG slow): it takes 0.9")
    assert "A needs significantly fewer samples (0.9" in ab.verdict
    assert ", and trains significantly more samples per second (1.0" in ab.verdict
    seconds = ab.quantities[0]
    assert isinstance(seconds.test, Welch) and seconds.test.significant and seconds.a.n == seconds.b.n == 10
    assert isinstance(ab.a_rcp_test, RcpTest) and ab.a_rcp_test.significant
    assert isinstance(ab.b_rcp_test, RcpTest) and not ab.b_rcp_test.significant and ab.b_rcp_test.p > 0.9
    assert ab.warnings == () and ab.differing == ()
    text = printed(ab)
    assert text.index("is faster than") < text.index("seconds")
    assert "A needs significantly fewer than B" in text.replace("\n", " ") and "No known setting differs." in text


def test_exchanging_the_sides_inverts_the_verdict() -> None:
    one = compare_sides(make_side(FAST), make_side(SLOW))
    other = compare_sides(make_side(SLOW), make_side(FAST))
    for a, b in zip(one.quantities, other.quantities, strict=True):
        if isinstance(a.test, Welch) and isinstance(b.test, Welch):
            assert a.test.p == pytest.approx(b.test.p) and a.test.ratio == pytest.approx(1 / b.test.ratio)
    assert (one.a_rcp_test, one.b_rcp_test) == (other.b_rcp_test, other.a_rcp_test)
    assert "is slower than" in other.verdict and "significantly more samples" in other.verdict


def test_a_verdict_without_difference_has_the_detectable_one() -> None:
    ab = compare_sides(make_side(make_runs(1000.0, 2.4e6)), make_side(make_runs(1000.0, 2.4e6, seed=1)))
    assert ab.verdict.startswith("No significant difference in time-to-train between A (")
    assert "% would be detected in four of five such comparisons." in ab.verdict
    assert "needs as many samples, with no significant difference" in ab.verdict


def has_no_nan(value: Any) -> bool:
    json.dumps(value, allow_nan=False)
    return True


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_runs_have_a_warning_and_no_nan(n: int) -> None:
    ab = compare_sides(make_side(FAST[:n]), make_side(SLOW))
    assert f"A has few runs ({n}): with these, a test detects only large differences" in ab.warnings
    text = printed(ab)
    assert "nan" not in text.lower() and has_no_nan(as_json(ab))
    seconds = as_json(ab)["quantities"]["seconds"]
    assert (seconds["welch"] is None) == (n < 2) and (seconds["untested"] is None) == (n >= 2)
    if n < 2:
        assert "cannot be tested: A has fewer than two values." in ab.verdict


def test_sides_without_spread_are_not_tested() -> None:
    a, b = ([make_run(seconds, 2.4e6, digest=f"{seconds} {n}") for n in range(10)] for seconds in (1000.0, 900.0))
    ab = compare_sides(make_side(a), make_side(b))
    assert "cannot be tested: neither side has any spread" in ab.verdict
    assert sum("need the same 2,400,000 samples" in warning for warning in ab.warnings) == 2
    assert "none, since the reference's runs all need the same number of samples." in printed(ab).replace("\n", " ")


def test_runs_that_did_not_reach_the_target_are_left_out() -> None:
    aborted = [replace(run, status="aborted", samples=None) for run in FAST[:1]]
    ab = compare_sides(make_side([*aborted, *FAST[1:]]), make_side(SLOW))
    assert ab.warnings == ("1 of A's 10 runs did not reach the target and are left out, in A's favour",)
    assert ab.quantities[0].a.n == 9 and isinstance(ab.a_rcp_test, RcpTest) and "9 of 10" in printed(ab)
    two = compare_sides(make_side([*aborted, replace(aborted[0], digest="x"), *FAST[2:]]), make_side(SLOW))
    assert two.a_rcp_test == "2 runs did not reach the target, and the rules allow one"


def test_logs_without_samples_have_a_warning() -> None:
    ab = compare_sides(make_side([*FAST[:7], *(replace(run, samples=None) for run in FAST[7:])]), make_side(SLOW))
    assert "samples: known of 7 of A's 10 runs" in ab.warnings
    assert ab.a_rcp_test == ab.b_rcp_test == "not every log has the samples to the target"


def test_runs_on_both_sides_have_a_warning() -> None:
    same = compare_sides(make_side(FAST), make_side(list(reversed(FAST))))
    assert same.verdict == "A (v2.0 ORG one) and B (v2.0 ORG one) are the same runs: there is nothing to compare."
    again = [replace(run, digest=f"again {n}") for n, run in enumerate(FAST[:2])]  # a log may be edited
    ab = compare_sides(make_side(FAST), make_side([*again, *SLOW]))
    assert ab.warnings[0] == "2 runs are on both sides, where a test needs independent ones"


def test_comparing_different_model_sizes_is_an_error() -> None:
    with pytest.raises(UsageError, match="A did not train BERT-large and B did: they cannot be compared"):
        compare_sides(make_side(FAST, full_size=False), make_side(SLOW))
    assert compare_sides(make_side(FAST, full_size=False), make_side(SLOW, full_size=False)).quantities[0].a.n == 10


@pytest.mark.parametrize(
    ("a", "b", "differing"),
    [
        ({"x": ("1",)}, {"x": ("1",)}, ()),
        ({"x": ("1",), "only": ("2",)}, {"x": ("3",)}, ("x",)),
        ({"recipe": ("1",), "y": ("2",)}, {"recipe": ("3",), "y": ("4",)}, ("recipe", "y")),
        ({"x": ("1",), "y": ("2",)}, {"x": ("3",), "y": ("4",)}, ("x", "y")),
    ],
)
def test_differing_settings_are_listed(a: Mapping[str, Any], b: Mapping[str, Any], differing: Sequence[str]) -> None:
    """Configurations are compared if both sides have one; more than one difference is a warning."""
    ab = compare_sides(
        make_side(FAST, settings=a, configured=True), make_side(SLOW, settings=b, configured=True, facts={"z": ("5",)})
    )
    assert tuple(one.key for one in ab.differing) == tuple(differing)
    warning = "the sides differ in 2 settings, and the test cannot separate their effects: x, y"
    assert (warning in ab.warnings) == (differing == ("x", "y")) and len(ab.warnings) == (differing == ("x", "y"))


def test_settings_in_logs_are_compared_if_one_side_has_no_configuration() -> None:
    a = [replace(run, hyperparameters={"opt_epsilon": 1e-6, "opt_name": "lamb"}) for run in FAST]
    b = [replace(run, hyperparameters={"opt_epsilon": 1e-8}, global_batch_size=512.0) for run in SLOW]
    ab = compare_sides(make_side(a, settings={"x": ("1",)}, configured=True), make_side(b))
    found = {one.key: (one.a, one.b) for one in ab.differing}
    assert ab.notes == ("the settings in the logs are compared: B's configuration is not known",)
    assert found == {"global_batch_size": (("448",), ("512",)), "opt_epsilon": (("1e-06",), ("1e-08",))}


def test_different_settings_within_a_side_have_a_warning() -> None:
    ab = compare_sides(make_side(FAST, settings={"global_batch_size": ("448", "512")}), make_side(SLOW))
    assert "A's runs do not have the same settings: they differ in global_batch_size" in ab.warnings


def test_control_characters_in_logs_are_not_printed() -> None:
    evil = "[bold]x[/]\x1b[2J"
    runs = [replace(run, hyperparameters={"opt_name": evil}) for run in FAST]
    ab = compare_sides(
        make_side(runs, name=evil, facts={evil: (evil,)}, notes=(evil,)),
        make_side(SLOW, facts={evil: ("other",)}),
    )
    text = printed(ab)
    assert "\x1b" not in text and "[bold]x[/]" in text


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0, "p < 1e-99"), (6.2e-5, "p = 6e-5"), (0.0312, "p = 0.031"), (0.25, "p = 0.25"), (0.9999, "p = 1.0")],
)
def test_format_of_p_values(p: float, text: str) -> None:
    assert format_p_value(p) == text


def test_json_has_the_whole_comparison() -> None:
    whole = as_json(compare_sides(make_side(FAST, "fast"), make_side(SLOW, "slow")))
    assert has_no_nan(whole) and whole["a"]["name"] == "v2.0 ORG fast" and whole["a"]["converged"] == 10
    seconds = whole["quantities"]["seconds"]
    assert seconds["welch"]["significant"] and len(seconds["a"]["values"]) == 10 and seconds["unit"] == "s"
    assert whole["rcp_test"]["a_needs_fewer"]["significant"] is True
    assert (
        whole["quantities"]["samples_per_second_without_evaluation"]["untested"] == "A and B have fewer than two values"
    )


@pytest.mark.parametrize("width", [60, 80, 84])
def test_no_figure_is_cut_at_any_width(width: int) -> None:
    """At 80 columns p had no heading, and 2e-7 was 2e-."""
    found = compare_sides(make_side(make_runs(1000.0, 4.6e6)), make_side(make_runs(1450.0, 4.6e6, seed=1)))
    table = printed(found, width).split("A/B: ratio")[0]
    assert all(len(line) <= width for line in table.splitlines() if not line.startswith(("A (", "Left out")))
    p = [format_p_value(one.test.p).split()[-1] for one in found.quantities if isinstance(one.test, Welch)]
    interval = found.quantities[0].test.interval if isinstance(found.quantities[0].test, Welch) else None
    assert interval is not None and f"({interval[0]:.3f}–{interval[1]:.3f})" in table
    assert p and all(re.search(rf"\s{re.escape(one)}\s", table) for one in (*p, "p"))
    assert ("median" in table.split("seconds")[0]) == (width > 60) and ("Left out at this width" in table) == (
        width == 60
    )
