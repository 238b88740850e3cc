"""Families of results in charts."""

import pytest

from podium.comparison.page.families import (
    CPUS,
    MAX_FAMILIES,
    OTHERS,
    UNKNOWN,
    family_of,
    fastest_of_each_family,
    group_by_family,
    size_of,
)
from podium.comparison.result import Result
from podium.planning.accelerators import find_accelerator
from tests.podium.comparison.conftest import make_result, make_run


def timed(
    seconds: float, accelerators: int | None = 8, name: str | None = "NVIDIA A100-SXM4", **changes: object
) -> Result:
    kind = find_accelerator(name or "")
    runs = [make_run(seconds + n / 1000) for n in range(10)]
    return make_result(runs, accelerators=accelerators, accelerator=name, kind=kind, **changes)


def test_names_and_sizes_of_families() -> None:
    assert family_of(timed(1, name="NVIDIA H100-SXM5-80GB")) == "NVIDIA H100 SXM"
    assert family_of(timed(1, name="Unheard-of 9000")) == "Unheard-of 9000"
    assert family_of(timed(1, name=None)) == UNKNOWN
    cpus = timed(1, accelerators=0, name=None, nodes=16)
    assert (family_of(cpus), size_of(cpus)) == (CPUS, 16)
    assert size_of(timed(1, accelerators=0, nodes=None)) is None
    assert size_of(timed(1, accelerators=None)) is None


@pytest.mark.parametrize(
    ("name", "capacity", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "", "NVIDIA A100 SXM, 40 GB"),
        ("NVIDIA A100-SXM4-40GB", "80 GB", "NVIDIA A100 SXM, 40 GB"),
        ("NVIDIA A100-SXM4", "80 GiB", "NVIDIA A100 SXM, 80 GB"),
        ("NVIDIA A100", "40G", "NVIDIA A100, 40 GB"),
        ("NVIDIA A100-PCIe", "TODO", "NVIDIA A100 PCIe, memory unknown"),
        ("Tesla V100-SXM2-32GB (400W)", "32", "NVIDIA V100 SXM, 32 GB"),
    ],
)
def test_accelerators_of_different_memory_are_different_families(name: str, capacity: str, expected: str) -> None:
    assert family_of(timed(1, name=name, description={"accelerator_memory_capacity": capacity})) == expected


def test_only_results_of_bert_large_with_time_and_size_are_in_families() -> None:
    valid = timed(1, system="valid")
    invalid = [
        timed(1, full_size=False),
        timed(1, accelerators=None),
        timed(1, accelerators=0, nodes=0),
        make_result([make_run(status="aborted")]),
        make_result([]),
    ]
    assert group_by_family([valid, *invalid]).results == (valid,)


def test_families_are_ordered_by_number_of_results_and_name() -> None:
    results = [timed(1, name="B"), timed(2, name="A"), timed(3, name="C"), timed(4, name="C")]
    families = group_by_family(results)
    assert list(families.by_name) == ["C", "A", "B"]
    assert [len(found) for found in families.by_name.values()] == [2, 1, 1]
    assert [families.series_of(result) for result in results] == [2, 1, 0, 0]


def test_families_beyond_the_maximum_share_the_last_series() -> None:
    results = [timed(1, name=f"accelerator {n:02d}") for n in range(MAX_FAMILIES + 3)]
    families = group_by_family(results)
    assert len(families.by_name) == MAX_FAMILIES and len(families.by_name[OTHERS]) == 4
    assert families.series_of(results[-1]) == MAX_FAMILIES - 1
    assert sum(map(len, families.by_name.values())) == len(results)
    exactly = group_by_family(results[:MAX_FAMILIES])
    assert OTHERS not in exactly.by_name and len(exactly.by_name) == MAX_FAMILIES


def test_results_are_ranked_by_the_scaled_score() -> None:
    scaled = timed(100, scaling_factor=1.5)
    assert scaled.ranking_minutes() == 1.5 * (scaled.score_minutes or 0)
    two = make_result([make_run(60), make_run(120)])
    assert two.ranking_minutes() == 1.5
    other = timed(120)
    assert fastest_of_each_family(group_by_family([scaled, other])) == [other]


def test_the_best_of_a_family_is_of_the_closed_division_if_there_is_one() -> None:
    closed, open_one, lonely = timed(100), timed(10, division="open"), timed(10, name="B", division="open")
    own = timed(1, name="C", round=None)
    families = group_by_family([open_one, closed, lonely, own])
    assert fastest_of_each_family(families) == [closed, lonely]


def test_families_beyond_the_maximum_have_a_best_result() -> None:
    results = [timed(100 - n, name=f"accelerator {n:02d}") for n in range(MAX_FAMILIES + 3)]
    assert sorted(fastest_of_each_family(group_by_family(results)), key=lambda one: one.accelerator or "") == results
