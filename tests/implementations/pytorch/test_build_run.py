"""Setup of a run from its configuration: each option is resolved, and an error names the key of an unsupported one."""

import itertools
import math
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import build_stepper, model_options, uses_graphs
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import evaluate
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import autocast, resolve_precision
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

Configs = Callable[..., RunConfig]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_selects_kernels_by_device(make_config: Configs) -> None:
    config = make_config(attention="grouped")
    assert model_options(config, "bf16", CPU).kernels is NUMBA
    assert not model_options(config, "bf16", CPU).use_torch_compile
    on_gpu = model_options(config, "bf16", CUDA)
    assert on_gpu.kernels is load_kernels("triton")
    assert on_gpu.fused_layers
    assert not on_gpu.use_torch_compile
    compiled = model_options(make_config(attention="grouped", kernels="compiled"), "bf16", CUDA)
    assert compiled.kernels is EAGER
    assert compiled.use_torch_compile
    assert not compiled.fused_layers


@pytest.mark.parametrize("kernels", ["compiled", "eager"])
def test_fp8_needs_triton(kernels: str, make_config: Configs) -> None:
    with pytest.raises(UsageError, match=f"kernels: found {kernels} with precision fp8, which needs auto or triton"):
        model_options(make_config(attention="grouped", kernels=kernels), "fp8", CUDA)
    assert model_options(make_config(attention="grouped", kernels="triton"), "fp8", CUDA).fp8


@pytest.mark.parametrize(
    ("device", "changes", "message"),
    [
        (CPU, {"kernels": "triton"}, "kernels: found triton on cpu, allowed there are auto, eager, compiled, numba"),
        (CUDA, {"kernels": "numba"}, "kernels: found numba on cuda, allowed there are auto, eager, compiled, triton"),
        (CPU, {"attention": "flash"}, "attention: found flash with bfloat16 on cpu, but it needs bf16 or fp16 on cuda"),
    ],
)
def test_options_that_a_device_does_not_support_are_errors(
    device: torch.device, changes: dict[str, Any], message: str, make_config: Configs
) -> None:
    with pytest.raises(UsageError, match=message):
        model_options(make_config(**changes), "bf16", device)


def test_fp8_is_an_error_on_a_cpu() -> None:
    with pytest.raises(
        UsageError, match="precision: found fp8, which this cpu device does not support; allowed are bf16"
    ):
        resolve_precision("fp8", CPU)


def test_graphs_are_used_where_possible(make_config: Configs) -> None:
    flash = make_config(attention="flash")
    assert uses_graphs(flash, CUDA)
    assert uses_graphs(make_config(attention="cudnn"), CUDA)
    assert uses_graphs(flash.model_copy(update={"cuda_graph": "step"}), CUDA)
    assert not uses_graphs(flash.model_copy(update={"cuda_graph": "none"}), CUDA)
    assert not uses_graphs(make_config(attention="grouped"), CUDA)  # the groups' shapes differ from batch to batch
    assert not uses_graphs(make_config(attention="flash", gradient_accumulation_steps=2), CUDA)
    assert not uses_graphs(make_config(attention="flash", shape_step=1024), CUDA)  # spare slots longer than 512
    assert not uses_graphs(flash, CPU)


@pytest.mark.parametrize(
    ("device", "changes", "message"),
    [
        (CPU, {}, "cuda_graph: found step, but launch.device is cpu, and CUDA graphs need cuda; allowed here are auto"),
        (
            CUDA,
            {"attention": "grouped"},
            "cuda_graph: found step, but attention is grouped, and graphs need one of cudnn, flash",
        ),
        (CUDA, {"attention": "flash", "gradient_accumulation_steps": 2}, "graphs need gradient_accumulation_steps 1"),
    ],
)
def test_required_graphs_that_are_not_possible_are_an_error(
    device: torch.device, changes: dict[str, Any], message: str, make_config: Configs
) -> None:
    with pytest.raises(UsageError, match=message):
        uses_graphs(make_config(cuda_graph="step", **changes), device)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_have_equal_weights_and_different_dropout(
    ranks: int, make_config: Configs, processes: Processes, small: Size, vocabulary: int
) -> None:
    config = make_config(seed=5, ranks=ranks)
    ends = []
    for rank in range(ranks):
        here = Processes(rank, ranks, processes.device)
        stepper = build_stepper(config, here, vocabulary, small)
        ends.append((stepper.model.module.embeddings.word.weight.clone(), torch.rand(3)))
    assert all(torch.equal(weights, ends[0][0]) for weights, _ in ends)
    assert len({tuple(draws.tolist()) for _, draws in ends}) == ranks
    assert len(stepper.rates) == math.ceil(config.max_samples / config.global_batch_size)


PLAIN = {"attention": "padded", "kernels": "eager", "last_layer": "all", "precision": "fp32"}
COMBINATIONS = [
    {"attention": attention, "kernels": kernels, "last_layer": last_layer, "precision": precision}
    for attention in ("padded", "grouped", "nested")
    for kernels in ("eager", "numba")
    for last_layer in ("needed", "all")
    for precision in ("fp32", "bf16")
]
# A pairwise covering: every two values of different settings occur together.
PAIRS = [COMBINATIONS[number] for number in (0, 7, 11, 12, 18, 21)]
OTHERS = [
    {"attention": "grouped", "attention_widths": (16, 64, 512)},
    {"attention": "grouped", "precision": "fp16"},
    {"attention": "padded", "balancing": "padded"},
]


def test_pairs_cover_every_two_values() -> None:
    def pairs(combinations: list[dict[str, str]]) -> set[Any]:
        return {pair for combination in combinations for pair in itertools.combinations(combination.items(), 2)}

    assert pairs(PAIRS) == pairs(COMBINATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "combinations", [PAIRS + OTHERS, pytest.param(COMBINATIONS, marks=pytest.mark.exhaustive)], ids=["pairs", "all"]
)
def test_every_combination_trains_to_the_same_loss(
    combinations: list[dict[str, Any]],
    make_store: Callable[..., SampleStore],
    make_config: Configs,
    processes: Processes,
    small: Size,
    vocabulary: int,
) -> None:
    """With dropout, on the same samples: the mean loss of the last steps is that of the plain model, up to the noise
    between seeds, which is measured with three plain runs."""
    store = make_store(np.random.default_rng(0).integers(5, 40, 24))

    def final_loss(seed: int = 1, **changes: Any) -> float:
        config = make_config(
            global_batch_size=4, seed=seed, optimizer={"learning_rate": 6e-3, "warmup_steps": 10}, **changes
        )
        order = TrainingOrder(
            store,
            seed=1,
            strategy=config.balancing,
            global_batch_size=4,
            spec=AssignmentSpec(1, 1),
            accumulation_steps=1,
            attention_widths=config.attention_widths,
        )
        stepper = build_stepper(config, processes, vocabulary, small)
        losses = [float(stepper.take(read_step(order, n, 0), PhaseClock()).masked_lm) for n in range(40)]
        return sum(losses[-16:]) / sum(losses[:6]) * 6 / 16

    ends = [final_loss(seed, **PLAIN) for seed in (1, 2, 3)]
    assert max(ends) < 0.9, "nothing is learned"
    mean, noise = sum(ends) / 3, max(ends) - min(ends)
    for combination in combinations:
        assert abs(final_loss(**combination) - mean) < 2 * noise + 0.03, combination


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_nothing_is_recompiled_during_a_run(
    backend: str,
    make_store: Callable[..., SampleStore],
    make_config: Configs,
    processes: Processes,
    small: Size,
    vocabulary: int,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For all shapes: one compiled graph serves all layers and lengths in training, another one in evaluation.

    Graphs are captured the same way for any backend; inductor's C++ compilation takes half a minute.
    """
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++ on a CPU")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    counters.clear()
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))
    config = make_config(global_batch_size=4, seed=1, kernels="compiled", precision="fp32", dropout=0.1)
    eager = config.model_copy(update={"kernels": "eager"})
    order = TrainingOrder(
        store, seed=7, strategy="indexed", global_batch_size=4, spec=AssignmentSpec(1, 1), accumulation_steps=1
    )
    stepper = build_stepper(config, processes, vocabulary, small)
    assert len({read_step(order, n, 0).micro_batches[0].slots for n in range(10)}) > 1, (
        "the batches have only one shape"
    )
    first = read_step(order, 0, 0)
    stepper.take(first, PhaseClock())
    evaluate(stepper.model.module, list(first.micro_batches), processes, "fp32")
    compiled = counters["stats"]["unique_graphs"]
    assert 0 < compiled <= 4
    for number in range(1, 10):
        step = read_step(order, number, 0)
        stepper.take(step, PhaseClock())
        evaluate(stepper.model.module, list(step.micro_batches), processes, "fp32")
    assert counters["stats"]["unique_graphs"] == compiled
    assert not counters["graph_break"]

    plain = build_stepper(eager, processes, vocabulary, small).model.module.eval()
    compiled_model = build_stepper(config, processes, vocabulary, small).model.module.eval()
    with torch.no_grad(), autocast("fp32", CPU):
        batch = first.micro_batches[0]
        torch.testing.assert_close(compiled_model(batch).masked_lm, plain(batch).masked_lm, rtol=1e-4, atol=1e-5)
