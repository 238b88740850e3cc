"""Gradients of 2 and 4 ranks, clipped and averaged in all modes, compared with formulas on the local buckets."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.bert.sizes import LARGE
from implementations.pytorch.distributed.gradient_sync import HOOKS, WIRE_TYPES, fp32_bucket_mib, wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.optim.clipping import clip_factor, total_norm
from podium.config.schema import Clipping

WORKER = Path(__file__).with_name("sync_worker.py")
RANKS = (2, 4)
STEPS = range(3)
Cases = list[dict[str, Any]]  # by rank: results by name of the case


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


def sorted_values(tensors: list[Tensor]) -> Tensor:
    """All values sorted by size, since DDP decides the order of gradients in buckets."""
    return torch.cat([tensor.flatten() for tensor in tensors]).sort().values


def clipped(tensor: Tensor, limit: float) -> Tensor:
    norm = float(tensor.double().norm())
    return tensor * min(1.0, limit / norm)


def averaged_gradients(cases: Cases, name: str, step: int) -> Tensor:
    """The averaged gradients, which are identical on all ranks, as sorted values."""
    ends = [mine[name][step]["gradients"] for mine in cases]
    for other in ends[1:]:
        assert all(torch.equal(ends[0][key], other[key]) for key in ends[0])
    return sorted_values(list(ends[0].values()))


def local_buckets(cases: Cases, name: str, step: int) -> list[list[Tensor]]:
    """Each rank's local gradients by bucket."""
    return [mine[name][step]["buckets"] for mine in cases]


def mean(by_rank: list[list[Tensor]]) -> Tensor:
    return sorted_values([torch.stack(buckets).mean(0) for buckets in zip(*by_rank, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", STEPS)
def test_gradients_within_the_limit_are_averaged(cases: dict[int, Cases], ranks: int, step: int) -> None:
    """Also with clipping, if no norm exceeds the limit."""
    expected = mean(local_buckets(cases[ranks], "mean", step))
    for name in ("mean", "after loose", "before loose", "bucket loose"):
        torch.testing.assert_close(averaged_gradients(cases[ranks], name, step), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", ["bucket tight", "bucket accumulated", "bucket scaled"])
def test_each_bucket_is_clipped_to_its_share_of_the_norm(
    cases: dict[int, Cases], ranks: int, step: int, case: str
) -> None:
    """Each rank clips to max_norm / √buckets before the average; the limit is multiplied by the loss scale."""
    scale = 1024.0 if "scaled" in case else 1.0
    by_rank = local_buckets(cases[ranks], case, step)
    limit = scale * 0.5 / math.sqrt(len(by_rank[0]))
    assert all(bucket.norm() > limit for buckets in by_rank for bucket in buckets)
    expected = mean([[clipped(bucket, limit) for bucket in buckets] for buckets in by_rank])
    found = averaged_gradients(cases[ranks], case, step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7 * scale)
    assert found.norm() <= scale * 0.5 * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_only_buckets_above_the_limit_are_clipped(cases: dict[int, Cases], ranks: int) -> None:
    """With a limit between the norms of the buckets."""
    by_rank = local_buckets(cases[ranks], "bucket middle", 2)
    limit = 20.0 / math.sqrt(len(by_rank[0]))
    exceeding = [bool(bucket.norm() > limit) for buckets in by_rank for bucket in buckets]
    assert any(exceeding)
    assert not all(exceeding)
    expected = mean([[clipped(bucket, limit) for bucket in buckets] for buckets in by_rank])
    torch.testing.assert_close(averaged_gradients(cases[ranks], "bucket middle", 2), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_buckets_are_counted_before_and_after_ddp_rebuilds_them(cases: dict[int, Cases], ranks: int) -> None:
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
    by_rank = local_buckets(cases[ranks], case, step)
    norms = [float(torch.cat(buckets).double().norm()) for buckets in by_rank]
    expected = mean(
        [[bucket * min(1.0, scale * 0.5 / norm) for bucket in own] for own, norm in zip(by_rank, norms, strict=True)]
    )
    torch.testing.assert_close(averaged_gradients(cases[ranks], case, step), expected, rtol=1e-5, atol=1e-7 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("when", ["before", "bucket"])
def test_local_norm_is_the_unscaled_norm_of_the_ranks_gradient(cases: dict[int, Cases], ranks: int, when: str) -> None:
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
            [torch.cat(b) for b in local_buckets(cases[ranks], f"{when} {k}", step)] for k in ("tight", "accumulated")
        )
        torch.testing.assert_close(four, one, rtol=1e-4, atol=1e-5)
        end = cases[ranks][0][f"{when} accumulated"][step]
        assert len(end["times"]["started"]) == len(end["buckets"])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_half_precision_rounds_what_is_sent(cases: dict[int, Cases], ranks: int) -> None:
    """Each rank's contribution is rounded once, and each addition rounds once more."""
    for wire, rounding in (("fp16", 2.0**-11), ("bf16", 2.0**-8)):
        by_rank = local_buckets(cases[ranks], wire, 2)
        shares = torch.cat([torch.stack(buckets).abs().sum(0) / ranks for buckets in zip(*by_rank, strict=True)])
        expected, found = mean(by_rank), averaged_gradients(cases[ranks], wire, 2)
        error = float((found - expected).norm() / expected.norm())
        assert 0 < error < ranks * rounding * float(shares.norm() / expected.norm())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_clipping_and_half_precision_can_be_combined(cases: dict[int, Cases], ranks: int) -> None:
    full, half = (averaged_gradients(cases[ranks], name, 2) for name in ("bucket tight", "bucket bf16"))
    assert 0 < float((half - full).norm() / full.norm()) < 4 * 2.0**-8


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_fp16_overflows_only_if_the_mean_does(cases: dict[int, Cases], ranks: int) -> None:
    """The largest fp16 number is 65,504: a smaller mean does not overflow, even if the sum or one rank's gradient is
    larger. A larger mean becomes infinite, which the loss scaler detects."""
    for mine in cases[ranks]:
        sent = mine["sent"]
        assert sent["all 60,000"] == {"fp32": 6e4, "fp16": 6e4, "bf16": pytest.approx(6e4, rel=2.0**-8)}
        assert sent["all 70,000"] == {"fp32": 7e4, "fp16": math.inf, "bf16": pytest.approx(7e4, rel=2.0**-8)}
        one = 1e5 / ranks
        expected = pytest.approx(one, rel=2.0**-10)
        assert sent["first 100,000"] == {"fp32": one, "fp16": expected, "bf16": pytest.approx(one, rel=2.0**-8)}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_communication_overlaps_with_backward(cases: dict[int, Cases], ranks: int) -> None:
    """Backward takes 0.15 s after the first bucket is full. By its end that bucket has been summed; with `before`
    nothing has been sent."""
    for mine in cases[ranks]:
        for name in ("mean", "after tight", "bucket tight", "bucket accumulated", "fp16"):
            end = mine[name][2]
            times = end["times"]
            assert times["ready"][-1] - times["ready"][0] > 0.1
            assert times["started"][0] < times["ready"][0] + 0.1 < times["ready"][-1] < times["finished"], name
            assert min(times["completed"]) < times["ready"][-1], name
            assert times["ready"][-1] - 0.05 < end["marked"] <= times["ready"][-1], name
        held = mine["before tight"][2]["times"]
        assert held["started"][0] > held["ready"][-1]
        assert len(held["started"]) == len(held["ready"]) > 2


@pytest.mark.parametrize(
    ("backend", "wire", "ranks", "operation", "sent"),
    [
        ("nccl", "fp32", 4, dist.ReduceOp.AVG, 6.0),  # multiplied by 1 / ranks by NCCL, before the sum
        ("gloo", "fp32", 4, dist.ReduceOp.SUM, 1.5),
        ("nccl", "fp32", 1, dist.ReduceOp.SUM, 6.0),
        ("nccl", "fp16", 4, dist.ReduceOp.SUM, 1.5),
        ("nccl", "bf16", 4, dist.ReduceOp.SUM, 1.5),
        ("gloo", "fp16", 1, dist.ReduceOp.SUM, 6.0),
    ],
)
def test_the_division_by_the_ranks_is_no_pass_over_memory_where_another_operation_can_divide(
    backend: str,
    wire: Literal["fp32", "fp16", "bf16"],
    ranks: int,
    operation: dist.ReduceOp,
    sent: float,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is passed to the all-reduce: values in the wire type, divided before they are rounded, and its operation."""
    layer = nn.Linear(3, 1, bias=False)
    model, sync = wrap_ddp(layer, processes.device, wire=wire)
    sync._ranks, calls, all_reduce = ranks, [], dist.all_reduce

    def record(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        calls.append((tensor.dtype, tensor.tolist(), op))
        return all_reduce(tensor, **options)

    monkeypatch.setattr(dist, "all_reduce", record)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    sync.begin(model, None)
    loss = model(torch.full((1, 3), 6.0)).sum()
    torch.autograd.backward(loss)
    assert calls == [(WIRE_TYPES[wire], [sent] * 3, operation)]


@pytest.mark.parametrize(("norm", "expected"), [(0.0, 1.0), (0.25, 1.0), (2.0, 1.0), (8.0, 0.25), (math.inf, 0.0)])
def test_clip_factor_is_at_most_one(norm: float, expected: float) -> None:
    assert float(clip_factor(torch.tensor(norm), 2.0)) == expected
    assert float(clip_factor(torch.tensor(norm), torch.tensor(2.0))) == expected


def test_non_finite_gradients_stay_non_finite() -> None:
    for value in (math.inf, -math.inf, math.nan):
        gradient = torch.tensor([1.0, value])
        assert not (gradient * clip_factor(gradient.norm(), 1.0)).isfinite().all()


def test_total_norm_of_parts_is_the_norm_of_the_whole() -> None:
    parts = [torch.randn(5), torch.randn(3, 2), torch.zeros(4)]
    whole = torch.cat([part.flatten() for part in parts]).norm()
    torch.testing.assert_close(total_norm([part.norm() for part in parts]), whole)


def test_every_way_of_clipping_has_a_hook() -> None:
    assert set(HOOKS) == {"after", "before", "bucket"}


def test_bucket_clipping_without_begin_is_an_error(processes: Processes) -> None:
    model, _ = wrap_ddp(nn.Linear(2, 2), processes.device, Clipping(max_norm=1.0, when="bucket"))
    with pytest.raises(AssertionError, match="begin comes before backward"):
        model(torch.ones(1, 2)).sum().backward()


def count_buckets(elements: list[int], wire: str, mib: float) -> int:
    """Number of buckets that DDP divides tensors with these numbers of elements into."""
    limit = int(fp32_bucket_mib(mib, wire) * 2**20)
    tensors = [torch.empty(count, device="meta") for count in elements]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, [limit], [False] * len(tensors))
    return len(buckets)


def test_bucket_size_counts_gradients_in_the_wire_type() -> None:
    """With BERT-large's gradients, last layer first. Published code, which has separate tensors for queries, keys and
    values, has 22 buckets of 25 MiB in half precision; here they are one tensor, which gives 20 buckets."""
    with torch.device("meta"):
        model_options = ModelOptions(
            attention="padded", kernels=load_kernels("eager"), use_torch_compile=False, last_layer="needed"
        )
        model = BertForPreTraining(LARGE, LARGE.vocabulary_size, dropout_probability=0.1, model_options=model_options)
    fused = [parameter.numel() for parameter in reversed(list(model.parameters()))]
    apart = [math.prod(shape) for shape in reversed(LARGE.tensors(LARGE.vocabulary_size).values())]
    assert sum(fused) == sum(apart) == 336_226_108
    assert [count_buckets(apart, "fp16", 25), count_buckets(apart, "bf16", 25), count_buckets(apart, "fp32", 50)] == [
        22,
        22,
        22,
    ]
    assert [count_buckets(fused, "fp16", 25), count_buckets(fused, "fp32", 50), count_buckets(fused, "fp32", 25)] == [
        20,
        20,
        37,
    ]
