"""Gradient buckets compared with PyTorch's rule and a real DDP model; exposed communication of a queue of buckets."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.sizes import LARGE, TINY
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.synthetic import synthetic_sample
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.model.bert import BertForPreTraining
from podium.planning.prediction.buckets import MIB, Gradient, backward_gradients, exposed_seconds, fill_buckets

WORD_EMBEDDING = 30_522 * 1024


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("wire", "mib", "count"), [(2, 25.0, 20), (4, 25.0, 37), (4, 50.0, 20), (2, None, 38), (4, None, 38), (2, 400, 2)]
)
def test_buckets_match_pytorch(wire: int, mib: float | None, count: int) -> None:
    """DDP's cap counts fp32, so `gradient_bucket_mib` is multiplied by 4 bytes over those of the wire."""
    gradients = backward_gradients(LARGE, 256.0)
    tensors = [torch.empty(gradient.elements, device="meta") for gradient in gradients]
    caps = [MIB, 25 * MIB] if mib is None else [int(mib * 4 / wire * MIB)]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors))
    found = fill_buckets(gradients, wire, mib)
    assert [b.size for b in found] == [wire * sum(tensors[i].numel() for i in part) for part in expected]
    assert len(found) == count
    assert found[-1].size >= wire * WORD_EMBEDDING
    assert found[-1].ready == 1


def test_separate_query_key_and_value_give_samsungs_22_buckets() -> None:
    shapes = reversed(LARGE.tensors(30_522).values())
    assert len(fill_buckets((Gradient(int(np.prod(shape)), 1.0) for shape in shapes), 2, 25)) == 22


def test_buckets_match_those_of_a_real_ddp_model(one_process: None) -> None:
    """DDP rebuilds its buckets after the first backward pass, in the order in which gradients were ready."""
    size = replace(TINY, vocabulary_size=2_048)
    rng = np.random.default_rng(0)
    batch = collate([synthetic_sample(32, 4, size.vocabulary_size, rng) for _ in range(2)])
    net = BertForPreTraining(size, size.vocabulary_size, dropout_probability=0.0)
    gradients = backward_gradients(size, 32.0)
    assert [gradient.elements for gradient in gradients] == [p.numel() for p in net.parameters()][::-1]
    ddp, _ = wrap_ddp(net, torch.device("cpu"), wire="fp32", bucket_mib=0.25)
    for _ in range(2):
        scores = ddp(batch)
        (scores.masked_lm.sum() + scores.next_sentence.sum()).backward()
    ddp_buckets = [bucket.buffer().numel() for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
    assert ddp_buckets == [bucket.size // 4 for bucket in fill_buckets(gradients, 4, 0.25)]
    assert len(ddp_buckets) > 3


def test_gradient_completion_times_follow_the_layers() -> None:
    gradients = backward_gradients(LARGE, 256.0)
    assert [g.ready for g in gradients] == sorted(g.ready for g in gradients)
    heads, layers = gradients[:9], gradients[9:-5]
    assert all(g.ready == 1 for g in gradients[-5:])  # embeddings
    assert 0.005 < heads[-1].ready < 0.05
    each = len(layers) // 24
    ends = [heads[-1].ready, *(layers[each * n - 1].ready for n in range(1, 25))]
    assert np.diff(ends) == pytest.approx((1 - heads[-1].ready) / 24)
    assert ends[-1] == pytest.approx(1)


def simulate_queue(ready: list[float], sending: list[float], backward: float) -> float:
    """Return the seconds after backward until the last bucket is sent, by advancing a clock bucket by bucket."""
    now = 0.0
    for share, seconds in zip(ready, sending, strict=True):
        if now < share * backward:
            now = share * backward
        now += seconds
    return now - backward


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 10)), min_size=1, max_size=40), st.floats(0, 10))
@settings(deadline=None, derandomize=True)
def test_exposed_seconds_match_a_simulated_queue(buckets: list[tuple[float, float]], backward: float) -> None:
    ready, sending = sorted(share for share, _ in buckets), [seconds for _, seconds in buckets]
    found = exposed_seconds(ready, sending, backward)
    assert found == pytest.approx(max(0.0, simulate_queue(ready, sending, backward)), abs=1e-9)
    assert found >= sum(sending) - backward - 1e-9
    assert exposed_seconds([1.0] * len(sending), sending, backward) == pytest.approx(sum(sending), abs=1e-9)


def test_backward_hides_all_but_the_last_bucket_if_long_enough() -> None:
    assert exposed_seconds([0.1, 0.5, 1.0], [0.001] * 3, 1.0) == pytest.approx(0.001)
    assert exposed_seconds([0.1, 0.5, 1.0], [1.0] * 3, 0.0) == 3.0
    assert exposed_seconds([0.1, 0.5, 1.0], [0.0] * 3, 1.0) == 0.0
