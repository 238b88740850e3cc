"""Time training steps, unpadded against padded, on the same samples in turn: `python -m implementations.pytorch.bench`.

Both sides are whole steps: forward, backward, clipping, optimizer, dropout 0.1. The padded side is what reference
implementations compute: every sequence in a slot of 512 tokens. Samples are synthetic; their lengths are evenly spaced
quantiles of a histogram, shuffled.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks.bert.sizes import SIZES, Size
from benchmarks.errors import PodiumError, UsageError
from implementations.pytorch.data.batch import SHAPE_STEP, RaggedBatch, collate
from implementations.pytorch.data.synthetic import synthetic_sample
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import loss_sums
from implementations.pytorch.optimization.build import build_optimizer
from implementations.pytorch.training.precision import autocast, matmul_peak, resolve_precision
from implementations.pytorch.training.processes import keep_freed_memory
from podium.config import OptimizerSettings

SLOT_WIDTH = 512
OPTIMIZER = OptimizerSettings(
    algorithm="lamb",
    learning_rate=1e-4,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    weight_decay=0.01,
    warmup_steps=0,
    decay_steps=1000,
)
MASKED_SHARE, MOST_MASKED = 0.15, 76
SIDES = {"padded": SLOT_WIDTH, "grouped": None}
"""Attention backend → slot width."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench", description=__doc__)
    parser.add_argument("--lengths", type=Path, required=True, help="JSON list: number of samples of length 1, 2, …")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--layers", type=int, help="another number of layers than the size's")
    parser.add_argument("--hidden", type=int, help="another width than the size's, with heads of 64")
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--steps", type=int, default=6, help="steps of each side, in turn")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    try:
        print(json.dumps(_bench(arguments), indent=2))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _bench(arguments: argparse.Namespace) -> dict[str, object]:
    keep_freed_memory()
    device = torch.device(arguments.device)
    precision = resolve_precision("auto", device)
    size = _size(arguments)
    batches = {name: _batches(arguments, width) for name, width in SIDES.items()}
    steps = {name: _stepper(size, name, arguments.vocabulary, device, precision) for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(-arguments.steps, arguments.steps):  # the first round, uncounted, meets every shape once
        for name, step in steps.items():
            started = time.perf_counter()
            step(batches[name][number])
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    peak = matmul_peak(precision, device)
    flops = sum(size.training_flops(b.lengths, b.masked, arguments.vocabulary) for b in batches["grouped"])
    ratios = [padded / grouped for padded, grouped in zip(seconds["padded"], seconds["grouped"], strict=True)]
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "layers": size.layers,
        "hidden": size.hidden,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "padding_share_of_padded": 1
        - sum(b.tokens for b in batches["padded"]) / sum(b.slots for b in batches["padded"]),
        "milliseconds": {name: 1000 * median(times) for name, times in seconds.items()},
        "share_of_peak": {name: flops / sum(times) / peak for name, times in seconds.items()},
        "ratio": sum(seconds["padded"]) / sum(seconds["grouped"]),
        "ratio_by_step": {"least": min(ratios), "median": median(ratios), "greatest": max(ratios)},
    }


def _size(arguments: argparse.Namespace) -> Size:
    size = SIZES[arguments.size]
    hidden = arguments.hidden or size.hidden
    if hidden % 64:
        raise UsageError(f"--hidden: found {hidden}, allowed are multiples of 64")
    return Size(
        name=f"{arguments.size}, changed" if arguments.hidden or arguments.layers else size.name,
        layers=arguments.layers or size.layers,
        hidden=hidden,
        heads=hidden // 64,
        feed_forward=4 * hidden,
        evaluation_samples=size.evaluation_samples,
        evaluation_interval=size.evaluation_interval,
    )


def _batches(arguments: argparse.Namespace, slot_width: int | None) -> list[RaggedBatch]:
    """The same samples for the same arguments, in slots of a fixed width or without padding."""
    try:
        histogram = np.array(json.loads(arguments.lengths.read_text(encoding="utf-8")), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise UsageError(f"{arguments.lengths}: cannot be read as a JSON list of numbers ({error})") from None
    if histogram[:2].any():
        raise UsageError(f"{arguments.lengths}: has samples of 1 or 2 tokens; a sample has [CLS], [SEP] and text")
    rng = np.random.default_rng(0)
    count = arguments.steps * arguments.batch
    quantiles = (np.arange(count) + 0.5) / count
    lengths = 1 + np.searchsorted(histogram.cumsum() / histogram.sum(), quantiles)
    lengths = rng.permutation(lengths).reshape(arguments.steps, arguments.batch)
    return [
        collate(
            [
                synthetic_sample(n, min(MOST_MASKED, max(1, round(MASKED_SHARE * n))), arguments.vocabulary, rng)
                for n in step.tolist()
            ],
            slot_width,
            SHAPE_STEP,
        )
        for step in lengths
    ]


def _stepper(
    size: Size, attention: str, vocabulary: int, device: torch.device, precision: str
) -> Callable[[RaggedBatch], None]:
    torch.manual_seed(0)
    model = BertForPreTraining(size, vocabulary, attention=attention, dropout_probability=0.1).to(device)
    optimizer = build_optimizer(model, OPTIMIZER)

    def step(batch: RaggedBatch) -> None:
        batch = batch.to(device)
        with autocast(precision, device):
            sums = loss_sums(model(batch), batch)
        optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(sums.mean(batch.masked, batch.sequences))
        clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


if __name__ == "__main__":
    sys.exit(main())
