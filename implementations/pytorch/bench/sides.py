"""The sides of `podium bench`: Podium, its variants and Hugging Face's model, with estimates of their memory."""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.bert.sizes import Size
from implementations.pytorch.bench.huggingface import HuggingFaceRunner
from implementations.pytorch.bench.memory import (
    Extent,
    hugging_face_bytes,
    hugging_face_extent,
    podium_bytes,
    podium_extent,
)
from implementations.pytorch.bench.turns import Side
from implementations.pytorch.bench.variants import PodiumRunner, bench_order
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.choose import resolve_kernels
from implementations.pytorch.model.attention.selection import resolve_attention
from implementations.pytorch.precision import COMPUTE_TYPES, resolve_precision
from podium.config.schema import RunConfig
from podium.core.errors import UsageError


@dataclass(frozen=True)
class Problem:
    """What all sides have in common: processes, lengths of all steps' samples, and dimensions of the model."""

    processes: Processes
    lengths: np.ndarray
    vocabulary_size: int
    size: Size

    @property
    def device(self) -> torch.device:
        return self.processes.device


def podium_side(name: str, config: RunConfig, problem: Problem) -> Side:
    """Return Podium with a configuration, which this device may not support: then building raises UsageError."""

    def build() -> PodiumRunner:
        return PodiumRunner(config, problem.processes, problem.lengths, problem.vocabulary_size, problem.size)

    try:
        return Side(name, build, _needed_bytes(config, problem))
    except UsageError:
        return Side(name, build, 0)


def _needed_bytes(config: RunConfig, problem: Problem) -> int:
    device = problem.device
    precision = resolve_precision(config.precision, device)
    attention = resolve_attention(config.attention, device, COMPUTE_TYPES[precision])
    order = bench_order(config, problem.lengths, problem.vocabulary_size, device)
    extent = Extent(0, 0, 0)
    for number in range(len(problem.lengths) // config.global_batch_size):
        for batch in synthetic_step(order, number, problem.processes.rank, problem.vocabulary_size).micro_batches:
            extent = extent.union(podium_extent(batch, attention, precision, device))
    return podium_bytes(
        problem.size,
        problem.vocabulary_size,
        extent,
        precision,
        resolve_kernels(config.kernels, device),
        device,
        problem.processes.ranks,
    )


def hugging_face_side(attention: str, config: RunConfig, problem: Problem) -> Side:
    """Return Hugging Face's model, on the samples of Podium's steps with `config`. Raises UsageError if padded."""
    if config.balancing == "padded":
        raise UsageError(
            "--baseline huggingface: balancing is padded; use another one, since it is compared with unpadded steps"
        )
    precision = resolve_precision(config.precision, problem.device)
    micro_batch = config.local_batch_size // config.gradient_accumulation_steps

    def build() -> HuggingFaceRunner:
        order = bench_order(config, problem.lengths, problem.vocabulary_size, problem.device)
        steps = [
            synthetic_step(order, number, problem.processes.rank, problem.vocabulary_size)
            for number in range(len(problem.lengths) // config.global_batch_size)
        ]
        return HuggingFaceRunner(
            attention, steps, config, problem.size, problem.vocabulary_size, precision, problem.device
        )

    extent = hugging_face_extent(micro_batch, attention)
    return Side(
        attention, build, hugging_face_bytes(problem.size, problem.vocabulary_size, extent, precision, problem.device)
    )
