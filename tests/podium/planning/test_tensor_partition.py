"""Balance of tensors over ranks, within the bound that the largest tensor sets."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bert.sizes import SIZES
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from podium.planning.tensor_partition import MIN_SHARDED_SIZE, owners


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60), ranks=st.integers(1, 20))
def test_owners_are_even(sizes: list[int], ranks: int) -> None:
    """No rank exceeds Graham's bound: the mean plus (1 − 1/ranks) of the largest tensor."""
    found = owners(sizes, ranks)
    loads = [sum(size for size, owner in zip(sizes, found, strict=True) if owner == rank) for rank in range(ranks)]
    assert sum(loads) == sum(sizes)
    assert max(loads) <= sum(sizes) / ranks + max(sizes) * (1 - 1 / ranks) + 1e-9


def test_large_bert_is_partitioned_evenly_up_to_its_embedding() -> None:
    with torch.device("meta"):
        model = BertForPreTraining(
            SIZES["large"], 30_522, dropout_probability=0.0, model_options=ModelOptions(attention="padded")
        )
    sizes = [p.numel() for p in model.parameters() if p.numel() >= MIN_SHARDED_SIZE]
    small = sum(p.numel() for p in model.parameters()) - sum(sizes)
    assert small < 0.002 * sum(sizes)
    for ranks, most in ((8, 1.02 / 8), (256, 31_254_528 / sum(sizes))):
        found = owners(sizes, ranks)
        loads = [sum(size for size, owner in zip(sizes, found, strict=True) if owner == rank) for rank in range(ranks)]
        assert max(loads) / sum(sizes) <= most + 1e-12
