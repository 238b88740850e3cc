"""Estimates of memory, compared with what autograd saves, and for BERT-large on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE, VOCABULARY_SIZE
from implementations.pytorch.bench import memory
from implementations.pytorch.bench.huggingface import HuggingFaceRunner
from implementations.pytorch.bench.memory import (
    EAGER_ON_CPU,
    FUSED_ON_CPU,
    HUGGING_FACE,
    Extent,
    hugging_face_bytes,
    hugging_face_extent,
    podium_bytes,
    podium_extent,
    saved_bytes,
)
from implementations.pytorch.bench.variants import bench_order, mixed_lengths, resize
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.precision import autocast
from podium.config.schema import RunConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Configs = Callable[..., RunConfig]
SEQUENCES, VOCABULARY, HIDDEN = 3, 500, 128
GIB = 2**30


def bytes_saved(forward: Callable[[], object], model: torch.nn.Module) -> int:
    """Bytes of all storages, except those of parameters and their copies, that autograd saves in a forward pass."""
    shapes = {tuple(p.shape) for p in model.parameters()} | {tuple(p.t().shape) for p in model.parameters()}
    found: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) not in shapes:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(count for count, _ in found.values())


def steps(config: RunConfig) -> list[Any]:
    lengths = mixed_lengths(wikipedia_histogram(), SEQUENCES)
    return [synthetic_step(bench_order(config, lengths, VOCABULARY, CPU), 0, 0, VOCABULARY)]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("kernels", "balancing", "saved"),
    [("eager", "padded", EAGER_ON_CPU), ("eager", "indexed", EAGER_ON_CPU), ("numba", "padded", FUSED_ON_CPU)],
)
def test_estimate_of_a_podium_layer(
    make_config: Configs, precision: str, kernels: str, balancing: str, saved: memory.Saved
) -> None:
    config = make_config(global_batch_size=SEQUENCES, balancing=balancing, attention="grouped")
    (batch,) = steps(config)[0].micro_batches
    options = ModelOptions(attention="grouped", kernels=load_kernels(kernels), last_layer="all")

    def measured(layers: int) -> int:
        size = resize(LARGE, layers, HIDDEN)
        model = BertForPreTraining(size, VOCABULARY, dropout_probability=0.1, model_options=options)
        with autocast(precision, CPU):
            return bytes_saved(lambda: model(batch), model)

    extent = podium_extent(batch, "grouped", precision, CPU)
    estimate = saved_bytes(resize(LARGE, 1, HIDDEN), 1, extent, precision, saved, CPU)
    assert estimate == pytest.approx(measured(3) - measured(2), rel=0.15)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_estimate_of_a_hugging_face_layer(make_config: Configs, attention: str) -> None:
    """On a CPU both compute the matrix of scores."""
    config = make_config(global_batch_size=SEQUENCES)
    prepared = steps(config)

    def measured(layers: int) -> int:
        size = resize(LARGE, layers, HIDDEN)
        runner = HuggingFaceRunner(attention, prepared, config, size, VOCABULARY, "bf16", CPU)
        with autocast("bf16", CPU):
            return bytes_saved(lambda: runner.model(**runner.batches[0][0]), runner.model)

    extent = hugging_face_extent(SEQUENCES, "eager")
    estimate = saved_bytes(resize(LARGE, 1, HIDDEN), 1, extent, "bf16", HUGGING_FACE, CPU)
    assert estimate == pytest.approx(measured(3) - measured(2), rel=0.2)


def test_scores_are_counted_where_they_are_computed(make_config: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = steps(make_config(global_batch_size=SEQUENCES))[0].micro_batches
    (rectangle,) = steps(make_config(global_batch_size=SEQUENCES, balancing="padded", attention="padded"))[
        0
    ].micro_batches
    grouped = podium_extent(batch, "grouped", "bf16", CPU).scores
    assert sum(n * n for n in batch.lengths) <= grouped <= SEQUENCES * 512**2
    assert podium_extent(batch, "padded", "bf16", CPU).scores == SEQUENCES * max(batch.lengths) ** 2
    assert podium_extent(rectangle, "grouped", "bf16", CPU).scores == SEQUENCES * 512**2
    monkeypatch.setattr(memory, "is_flash_available", lambda device, dtype: dtype == torch.bfloat16)
    assert podium_extent(batch, "flash", "bf16", GPU).scores == podium_extent(batch, "grouped", "bf16", GPU).scores == 0
    assert podium_extent(rectangle, "grouped", "bf16", GPU).scores == SEQUENCES * 512**2
    assert hugging_face_extent(2, "sdpa") == Extent(1024, 1024, 0)


def test_bert_large_with_56_sequences_fits_an_h100() -> None:
    """Each side but those with a matrix of scores for every sequence."""
    lengths = mixed_lengths(wikipedia_histogram(), 56)
    slots, rectangle = int(lengths.sum()), 56 * 512
    unpadded, padded = Extent(slots, round(0.15 * slots), 0), Extent(rectangle, 56 * 76, 56 * 512**2)

    def gib(extent: Extent, kernels: str) -> float:
        return podium_bytes(LARGE, VOCABULARY_SIZE, extent, "bf16", kernels, GPU, 1) / GIB

    assert 17 < gib(unpadded, "compiled") < gib(unpadded, "eager") < 30
    assert gib(padded, "eager") > gib(padded, "triton") > 70
    sdpa, eager = (
        hugging_face_bytes(LARGE, VOCABULARY_SIZE, hugging_face_extent(56, attention), "bf16", GPU) / GIB
        for attention in ("sdpa", "eager")
    )
    assert 45 < sdpa < 78 < eager


def test_free_memory_is_that_of_the_machine() -> None:
    assert 2**20 < memory.free_memory(CPU) < 2**50
