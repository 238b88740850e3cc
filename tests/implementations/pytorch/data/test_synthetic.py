"""Synthetic batches have the shapes of the run and random content."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.synthetic import synthetic_step
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step


@pytest.mark.parametrize("strategy", ["indexed", "padded"])
def test_synthetic_step_has_the_shapes_of_the_real_step(
    make_store: Callable[..., SampleStore],
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    strategy: str,
    vocabulary: int,
) -> None:
    store = make_store([5, 6, 512, *wikipedia_lengths(29, 3)])
    order = TrainingOrder(
        store, seed=0, strategy=strategy, global_batch_size=16, spec=AssignmentSpec(2, 2), accumulation_steps=2
    )
    expected = read_step(order, 0, 1).micro_batches[0]
    store.paths[0].unlink()  # the data may not be touched
    found = synthetic_step(order, 0, 1, vocabulary).micro_batches[0]
    assert found.lengths == expected.lengths
    assert sorted(found.masked_counts) == sorted(expected.masked_counts)
    for name in ("token_ids", "sequence_starts", "masked_positions", "masked_labels", "next_sentence"):
        assert getattr(found, name).shape == getattr(expected, name).shape
    assert [(g.rows, g.width) for g in found.groups] == [(g.rows, g.width) for g in expected.groups]
    assert int(found.token_ids.max()) < vocabulary
    assert len(set(found.masked_positions[: found.masked].tolist())) == found.masked
    again = synthetic_step(order, 0, 1, vocabulary).micro_batches[0]
    other = synthetic_step(order, 1, 1, vocabulary).micro_batches[0]
    assert torch.equal(found.token_ids, again.token_ids)
    assert not torch.equal(found.token_ids, other.token_ids)
