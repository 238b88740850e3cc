"""Scaling over a submitter's sizes."""

import pytest

from podium.comparison.efficiency import families
from podium.comparison.result import Result
from tests.podium.comparison.conftest import make_result, make_run


def sized(accelerators: int | None, seconds: float, samples: float = 2_400_000.0, **changes: object) -> Result:
    return make_result([make_run(seconds, samples)] * 10, accelerators=accelerators, **changes)


def test_efficiencies() -> None:
    """Eight times the accelerators, seven times the throughput, a tenth more samples."""
    (family,) = families([sized(64, 1000.0 / 7 * 1.1, 2_640_000.0), sized(8, 1000.0)])
    assert [size.result.accelerators for size in family] == [8, 64]
    assert [size.throughput for size in family] == pytest.approx([1, 7 / 8])
    assert [size.time for size in family] == pytest.approx([1, 7 / 8 / 1.1])


def test_the_best_of_equal_sizes_counts() -> None:
    (family,) = families([sized(8, 1200.0), sized(8, 1000.0), sized(16, 500.0)])
    assert [size.result.minutes for size in family] == pytest.approx([1000 / 60, 500 / 60])


@pytest.mark.parametrize(
    "changes",
    [{"round": "v2.1"}, {"submitter": "X"}, {"division": "open"}, {"kind": None}, {"full_size": False}],
)
def test_other_families(changes: dict[str, object]) -> None:
    assert families([sized(8, 1000.0), sized(16, 500.0, **changes)]) == []


def test_sizes_that_are_not_known() -> None:
    failed = make_result([make_run(status="aborted")] * 10, accelerators=32)
    assert (
        families([sized(8, 1000.0), sized(None, 500.0), sized(0, 500.0), failed, make_result([], accelerators=4)]) == []
    )
