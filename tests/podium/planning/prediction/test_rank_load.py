"""Loads of ranks: costs by hand, padding, strata, and the balance of published systems."""

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.planning.costs import StepCosts
from podium.planning.prediction.plan import Lengths, Machine, Plan
from podium.planning.prediction.published import wikipedia_lengths
from podium.planning.prediction.rank_load import RankLoad, compute_load
from podium.planning.prediction.samples_to_target import Estimate

TOKENS = StepCosts(step=9.0, token=1e-6, pair=0.0, masked=0.0, sequence=0.0)
MIXED = StepCosts(step=0.0, token=3e-6, pair=6e-9, masked=4e-6, sequence=1e-5)
CONSTANT = Lengths(np.full(1000, 100), np.full(1000, 15))


def load(
    strategy: str,
    batch: int,
    ranks: int,
    costs: StepCosts,
    lengths: Lengths,
    accumulation_steps: int = 1,
    strata_counts: tuple[int, ...] | None = None,
) -> RankLoad:
    """Return the load of ranks in nodes of eight."""
    machine, samples = Machine("a100_sxm", ranks // 8, 8), Estimate(1.0, 1.0, 1.0)
    return compute_load(Plan(machine, batch, lengths, costs, samples, strategy, accumulation_steps, strata_counts))


def ratio(found: RankLoad) -> float:
    return found.slowest / found.mean


def test_a_load_by_hand_and_without_the_step() -> None:
    found = load("indexed", 64, 8, MIXED, CONSTANT)
    assert found.mean == pytest.approx(8 * (3e-4 + 6e-9 * 1e4 + 4e-6 * 15 + 1e-5))
    assert found.slowest == pytest.approx(found.mean)


def test_zero_costs_give_zero_load() -> None:
    assert load("random", 64, 8, StepCosts(1.0, 0, 0, 0, 0), wikipedia_lengths()) == RankLoad(0.0, 0.0)


def test_padded_ranks_have_equal_load() -> None:
    found = load("padded", 64, 8, TOKENS, wikipedia_lengths())
    assert found.mean == pytest.approx(8 * 512e-6)
    assert ratio(found) == pytest.approx(1.0)


def test_wikipedia_has_the_published_mean_length() -> None:
    assert wikipedia_lengths().tokens.mean() == pytest.approx(255.83, abs=0.01)
    assert load("random", 64, 8, TOKENS, wikipedia_lengths()).mean == pytest.approx(8 * 255.83e-6, rel=1e-4)


@pytest.mark.parametrize(
    ("strategy", "batch", "ranks", "published"),
    [
        ("random", 448, 8, 1.135),
        ("exchanged", 448, 8, 1.015),
        ("random", 3072, 64, 1.244),
        ("exchanged", 3072, 64, 1.02),
    ],
)
def test_balance_matches_published_systems(strategy: str, batch: int, ranks: int, published: float) -> None:
    assert ratio(load(strategy, batch, ranks, TOKENS, wikipedia_lengths())) == pytest.approx(published, abs=0.012)


def test_strategies_with_strata_draw_stratified_samples() -> None:
    presorted = load("presorted", 16_384, 1024, TOKENS, wikipedia_lengths())
    assert ratio(presorted) == pytest.approx(1.041, abs=0.01)


@pytest.mark.parametrize(
    ("counts", "tokens"), [((4, 2, 2, 4), 4 * 64 + 2 * 200 + 2 * 300 + 4 * 500), (None, 5 * 64 + 2 * 200 + 300 + 2000)]
)
def test_mean_load_follows_the_strata_counts(counts: tuple[int, ...] | None, tokens: int) -> None:
    """The data has other shares of the strata than the counts."""
    lengths = np.repeat([64, 200, 300, 500], [3694, 1969, 1173, 3164])
    found = load("presorted", 96, 8, TOKENS, Lengths(lengths, np.zeros(10_000)), strata_counts=counts)
    assert found.mean == pytest.approx(tokens * 1e-6, rel=1e-8)
    assert ratio(found) == pytest.approx(1.0)


def test_stratified_samples_of_small_batches_are_shorter_than_the_data() -> None:
    drawn = load("presorted", 8192, 1024, TOKENS, wikipedia_lengths()).mean / 8e-6
    assert drawn / wikipedia_lengths().tokens.mean() == pytest.approx(0.92, abs=0.005)


def test_invalid_strata_counts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"strata_counts: found \[16, 0, 0, 0\], but the .* do not match"):
        load("presorted", 1024, 64, TOKENS, wikipedia_lengths(), strata_counts=(16, 0, 0, 0))


def test_better_strategies_wait_less() -> None:
    found = {s: ratio(load(s, 4096, 512, MIXED, wikipedia_lengths())) for s in ("random", "exchanged", "indexed")}
    assert 1 <= found["indexed"] < found["exchanged"] < found["random"]


def test_ranks_wait_once_a_step_not_once_a_micro_batch() -> None:
    whole = load("random", 2048, 8, TOKENS, wikipedia_lengths())
    parts = load("random", 2048, 8, TOKENS, wikipedia_lengths(), 8)
    assert parts.mean == pytest.approx(whole.mean)
    assert parts.slowest == pytest.approx(whole.slowest, rel=1e-6)


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="100"):
        load("indexed", 100, 8, TOKENS, CONSTANT)
