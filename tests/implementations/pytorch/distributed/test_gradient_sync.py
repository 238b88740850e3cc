"""Gradients of 2 and 4 processes, clipped and averaged in every way, against formulas on what went into buckets."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.bert.sizes import LARGE
from implementations.pytorch.distributed.gradient_sync import HOOKS, fp32_bucket_mib, synchronised
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.model.bert import BertForPreTraining, Making
from implementations.pytorch.optim.clipping import clip_factor, total_norm
from podium.config.schema import Clipping

WORKER = Path(__file__).with_name("sync_worker.py")
RANKS = (2, 4)
STEPS = range(3)
Cases = list[dict[str, Any]]
"""What every rank saw and ended with, by name of the case."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, start_ranks: Callable[..., None]) -> dict[int, Cases]:
    folder, found = tmp_path_factory.mktemp("sync"), {}
    for ranks in RANKS:
        outs = [folder / f"{ranks}_{rank}.pt" for rank in range(ranks)]
        start_ranks(WORKER, [(folder / f"group_{ranks}", rank, ranks, out) for rank, out in enumerate(outs)])
        found[ranks] = [torch.load(out) for out in outs]
    return found


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def multiset(tensors: list[Tensor]) -> Tensor:
    """All values in order of size: buckets hold the gradients in an order of DDP's own."""
    return torch.cat([tensor.flatten() for tensor in tensors]).sort().values


def clipped(tensor: Tensor, limit: float) -> Tensor:
    norm = float(tensor.double().norm())
    return tensor * min(1.0, limit / norm)


def came_out(cases: Cases, name: str, step: int) -> Tensor:
    """The gradients that all ranks have ended with."""
    ends = [mine[name][step]["gradients"] for mine in cases]
    for other in ends[1:]:
        assert all(torch.equal(ends[0][key], other[key]) for key in ends[0])
    return multiset(list(ends[0].values()))


def went_in(cases: Cases, name: str, step: int) -> list[list[Tensor]]:
    """Each rank's own gradients by bucket."""
    return [mine[name][step]["buckets"] for mine in cases]


def mean(by_rank: list[list[Tensor]]) -> Tensor:
    return multiset([torch.stack(buckets).mean(0) for buckets in zip(*by_rank, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", STEPS)
def test_what_is_not_clipped_is_the_mean(cases: dict[int, Cases], ranks: int, step: int) -> None:
    """Also where clipping is on, but nothing exceeds what is allowed."""
    expected = mean(went_in(cases[ranks], "mean", step))
    for name in ("mean", "after loose", "before loose", "bucket loose"):
        torch.testing.assert_close(came_out(cases[ranks], name, step), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", ["bucket tight", "bucket accumulated", "bucket scaled"])
def test_each_bucket_is_clipped_to_its_share_of_the_norm(
    cases: dict[int, Cases], ranks: int, step: int, case: str
) -> None:
    """To max_norm / √buckets, the rank's own, before the mean; a scaled gradient to as many times that."""
    scale = 1024.0 if "scaled" in case else 1.0
    by_rank = went_in(cases[ranks], case, step)
    limit = scale * 0.5 / math.sqrt(len(by_rank[0]))
    assert all(bucket.norm() > limit for buckets in by_rank for bucket in buckets)
    expected = mean([[clipped(bucket, limit) for bucket in buckets] for buckets in by_rank])
    found = came_out(cases[ranks], case, step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7 * scale)
    assert found.norm() <= scale * 0.5 * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_a_loose_bucket_stays_beside_a_tight_one(cases: dict[int, Cases], ranks: int) -> None:
    """A limit between the norms of the buckets: taken from the buckets of the mean, all of which must not exceed it."""
    by_rank = went_in(cases[ranks], "bucket middle", 2)
    limit = 20.0 / math.sqrt(len(by_rank[0]))
    exceeding = [bool(bucket.norm() > limit) for buckets in by_rank for bucket in buckets]
    assert any(exceeding)
    assert not all(exceeding)
    expected = mean([[clipped(bucket, limit) for bucket in buckets] for buckets in by_rank])
    torch.testing.assert_close(came_out(cases[ranks], "bucket middle", 2), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_buckets_are_counted_before_and_after_ddp_makes_them_anew(cases: dict[int, Cases], ranks: int) -> None:
    counts = []
    for step in STEPS:
        end = cases[ranks][0]["bucket tight"][step]
        assert end["counted"] == len(end["buckets"])
        counts.append(end["counted"])
    assert counts[0] == 1
    assert counts[1] == counts[2] > 2


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", ["before tight", "before accumulated", "before scaled"])
def test_before_clips_each_ranks_whole_gradient(cases: dict[int, Cases], ranks: int, step: int, case: str) -> None:
    scale = 1024.0 if "scaled" in case else 1.0
    by_rank = went_in(cases[ranks], case, step)
    norms = [float(torch.cat(buckets).double().norm()) for buckets in by_rank]
    expected = mean(
        [[bucket * min(1.0, scale * 0.5 / norm) for bucket in own] for own, norm in zip(by_rank, norms, strict=True)]
    )
    torch.testing.assert_close(came_out(cases[ranks], case, step), expected, rtol=1e-5, atol=1e-7 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("when", ["before", "bucket"])
def test_the_norm_told_is_the_ranks_own_and_unscaled(cases: dict[int, Cases], ranks: int, when: str) -> None:
    for kind, scale in (("tight", 1.0), ("scaled", 1024.0), ("loose", 1.0)):
        for mine in cases[ranks]:
            end = mine[f"{when} {kind}"][2]
            expected = float(torch.cat(end["buckets"]).double().norm()) / scale
            assert end["norm"] == pytest.approx(expected, rel=1e-5)
    assert len({mine[f"{when} tight"][2]["norm"] for mine in cases[ranks]}) == ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("when", ["after", "before", "bucket"])
def test_accumulation_sends_the_sum_once(cases: dict[int, Cases], ranks: int, when: str) -> None:
    for step in STEPS:
        one, four = (
            [torch.cat(b) for b in went_in(cases[ranks], f"{when} {k}", step)] for k in ("tight", "accumulated")
        )
        torch.testing.assert_close(four, one, rtol=1e-4, atol=1e-5)
        end = cases[ranks][0][f"{when} accumulated"][step]
        assert len(end["times"]["asked"]) == len(end["buckets"])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_half_precision_rounds_what_is_sent(cases: dict[int, Cases], ranks: int) -> None:
    """Each share is rounded once, and sums of two shares once more for each of the additions."""
    for wire, rounding in (("fp16", 2.0**-11), ("bf16", 2.0**-8)):
        by_rank = went_in(cases[ranks], wire, 2)
        shares = torch.cat([torch.stack(buckets).abs().sum(0) / ranks for buckets in zip(*by_rank, strict=True)])
        expected, found = mean(by_rank), came_out(cases[ranks], wire, 2)
        error = float((found - expected).norm() / expected.norm())
        assert 0 < error < ranks * rounding * float(shares.norm() / expected.norm())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_clipping_and_compression_go_together(cases: dict[int, Cases], ranks: int) -> None:
    full, half = (came_out(cases[ranks], name, 2) for name in ("bucket tight", "bucket bf16"))
    assert 0 < float((half - full).norm() / full.norm()) < 4 * 2.0**-8


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_only_a_mean_that_fp16_does_not_hold_overflows(cases: dict[int, Cases], ranks: int) -> None:
    """fp16 ends at 65,504: a mean below comes through, whatever the sum is or a single share of it; one above is
    infinite, as the loss scaler wants it."""
    for mine in cases[ranks]:
        sent = mine["sent"]
        assert sent["all 60,000"] == {"fp32": 6e4, "fp16": 6e4, "bf16": pytest.approx(6e4, rel=2.0**-8)}
        assert sent["all 70,000"] == {"fp32": 7e4, "fp16": math.inf, "bf16": pytest.approx(7e4, rel=2.0**-8)}
        one = 1e5 / ranks
        expected = pytest.approx(one, rel=2.0**-10)
        assert sent["first 100,000"] == {"fp32": one, "fp16": expected, "bf16": pytest.approx(one, rel=2.0**-8)}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_buckets_are_sent_while_backward_goes_on(cases: dict[int, Cases], ranks: int) -> None:
    """Backward takes 0.15 s more after the first bucket is full. Then its sum has come; `before` has sent nothing."""
    for mine in cases[ranks]:
        for name in ("mean", "after tight", "bucket tight", "bucket accumulated", "fp16"):
            end = mine[name][2]
            times = end["times"]
            assert times["ready"][-1] - times["ready"][0] > 0.1
            assert times["asked"][0] < times["ready"][0] + 0.1 < times["ready"][-1] < times["finished"], name
            assert min(times["come"]) < times["ready"][-1], name
            assert times["ready"][-1] - 0.05 < end["marked"] <= times["ready"][-1], name
        held = mine["before tight"][2]["times"]
        assert held["asked"][0] > held["ready"][-1]
        assert len(held["asked"]) == len(held["ready"]) > 2


@pytest.mark.parametrize(("norm", "expected"), [(0.0, 1.0), (0.25, 1.0), (2.0, 1.0), (8.0, 0.25), (math.inf, 0.0)])
def test_factors_are_one_at_most(norm: float, expected: float) -> None:
    assert float(clip_factor(torch.tensor(norm), 2.0)) == expected
    assert float(clip_factor(torch.tensor(norm), torch.tensor(2.0))) == expected


def test_what_is_not_finite_stays_so() -> None:
    for value in (math.inf, -math.inf, math.nan):
        gradient = torch.tensor([1.0, value])
        assert not (gradient * clip_factor(gradient.norm(), 1.0)).isfinite().all()


def test_norms_of_parts_are_that_of_the_whole() -> None:
    parts = [torch.randn(5), torch.randn(3, 2), torch.zeros(4)]
    whole = torch.cat([part.flatten() for part in parts]).norm()
    torch.testing.assert_close(total_norm([part.norm() for part in parts]), whole)


def test_every_way_of_clipping_has_its_hook() -> None:
    assert set(HOOKS) == {"after", "before", "bucket"}


def test_buckets_must_have_been_counted(processes: Processes) -> None:
    model, _ = synchronised(nn.Linear(2, 2), processes.device, Clipping(max_norm=1.0, when="bucket"))
    with pytest.raises(AssertionError, match="begin comes before backward"):
        model(torch.ones(1, 2)).sum().backward()


def counted(elements: list[int], wire: str, mib: float) -> int:
    """Buckets that DDP makes of tensors of so many elements, by its own rule, on the meta device."""
    limit = int(fp32_bucket_mib(mib, wire) * 2**20)
    tensors = [torch.empty(count, device="meta") for count in elements]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, [limit], [False] * len(tensors))
    return len(buckets)


def test_buckets_are_counted_as_they_are_sent() -> None:
    """Of BERT-large's gradients, last layer first. Published code, whose queries, keys and values are tensors apart,
    made 22 buckets of 25 MiB of half precision; here they are one tensor, which makes 20."""
    with torch.device("meta"):
        making = Making(attention="padded", kernels=load_kernels("eager"), compiles=False, last_layer="needed")
        model = BertForPreTraining(LARGE, LARGE.vocabulary_size, dropout_probability=0.1, making=making)
    ours = [parameter.numel() for parameter in reversed(list(model.parameters()))]
    apart = [math.prod(shape) for shape in reversed(LARGE.tensors(LARGE.vocabulary_size).values())]
    assert sum(ours) == sum(apart) == 336_226_108
    assert [counted(apart, "fp16", 25), counted(apart, "bf16", 25), counted(apart, "fp32", 50)] == [22, 22, 22]
    assert [counted(ours, "fp16", 25), counted(ours, "fp32", 50), counted(ours, "fp32", 25)] == [20, 20, 37]
