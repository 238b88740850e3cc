"""Flattening: batches are restored bit for bit, and share the array's memory."""

import pickle
from collections.abc import Callable

import pytest
import torch

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import ALIGNMENT, AttentionGroup, RaggedBatch, collate, flatten, unflatten

Maker = Callable[..., list[Sample]]


def assert_same(found: RaggedBatch | AttentionGroup, expected: RaggedBatch | AttentionGroup) -> None:
    assert vars(found).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        other = getattr(found, name)
        if isinstance(value, torch.Tensor):
            assert other.dtype == value.dtype
            assert other.tolist() == value.tolist()
        elif name == "groups":
            for one, another in zip(other, value, strict=True):
                assert_same(one, another)
        else:
            assert other == value
            assert type(other) is type(value)


@pytest.mark.parametrize("layout", [(None, 64), (512, 1), (None, 7)])
def test_unflattened_batches_equal_the_originals(make_samples: Maker, layout: tuple[int | None, int]) -> None:
    batches = [collate(make_samples(lengths, len(lengths)), *layout) for lengths in ([9], [500, 40, 41, 3, 90])]
    facts, content = flatten(batches)
    assert len(content) % ALIGNMENT == 0
    buffer = torch.from_numpy(content)
    restored = unflatten(pickle.loads(pickle.dumps(facts)), buffer)  # as sent to another process
    assert len(restored) == 2
    for found, expected in zip(restored, batches, strict=True):
        assert_same(found, expected)
    start, end = buffer.data_ptr(), buffer.data_ptr() + buffer.numel()
    for batch in restored:
        for tensor in batch.tensors():
            assert start <= tensor.data_ptr() < end
            assert (tensor.data_ptr() - start) % ALIGNMENT == 0


def test_no_batches_flatten_to_an_empty_array() -> None:
    facts, content = flatten([])
    assert (facts, len(content), unflatten(facts, torch.from_numpy(content))) == ([], 0, ())
