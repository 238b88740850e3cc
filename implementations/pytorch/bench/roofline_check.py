"""Check of the counted times where they can be measured: `python -m implementations.pytorch.bench.roofline_check`.

Runs whole training steps of a small BERT on this machine's CPU, with PyTorch's operators only, and times each operator.
The same operators are counted as on a GPU, with this machine's measured rates of matrix products and copies. Prints
both by part of the step and by operator, and how well their orders agree (Spearman's rank correlation).
"""

import argparse
from collections import defaultdict
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.bert.lengths import wikipedia_histogram
from implementations.pytorch import build_run
from implementations.pytorch.bench.roofline import PARTS, KernelCounter, counted_parts, mark_heads
from implementations.pytorch.bench.variants import SEED, Lengths, mixed_lengths, resize
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import Processes, keep_freed_memory, rehearsal_process_group
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import matmul_peak, resolve_precision
from podium.config.load import load_system
from podium.planning.accelerators import ReachableRates

CPU = torch.device("cpu")
# Kernels and attention whose work is operators of PyTorch, which can be timed one by one.
SETTINGS = ("kernels=eager", "attention=padded", "initial_checkpoint=null", "seed=0")
COPY_ELEMENTS = 2**26  # of float32: larger than caches
SHOWN_SHARE = 0.01


class TimedCounter(KernelCounter):  # type: ignore[no-untyped-call]
    """A counter of operators that run, with the seconds that each takes."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.seconds: list[float] = []
        self._last = 0.0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = perf_counter()
        outputs = func(*args, **kwargs)
        self._last = perf_counter() - started
        return outputs

    def record(self, name: str, moved: int, flops: float = 0.0, unit: str = "half", launches: int = 1) -> None:
        super().record(name, moved, flops, unit, launches)
        if self.enabled:
            self.seconds.append(self._last)


def copy_bandwidth() -> float:
    """Return the bytes per second, read and written, of the fastest of ten large copies."""
    source, target = torch.ones(COPY_ELEMENTS), torch.empty(COPY_ELEMENTS)
    times = []
    for _ in range(10):
        started = perf_counter()
        target.copy_(source)
        times.append(perf_counter() - started)
    return 2 * source.nbytes / min(times)


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Return Spearman's rank correlation of two lists without ties."""

    def ranks(values: list[float]) -> list[int]:
        order = sorted(range(len(values)), key=values.__getitem__)
        return [order.index(number) for number in range(len(values))]

    squares = sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True))
    return 1 - 6 * squares / (len(first) * (len(first) ** 2 - 1))


def measure(layers: int, hidden: int, sequences: int, steps: int, precision: str) -> None:
    """Run and print the comparison."""
    config = load_system("laptop", settings=[*SETTINGS, f"global_batch_size={sequences}", f"precision={precision}"])
    size, vocabulary = resize(config.model_size, layers, hidden), 30_522
    counter = TimedCounter(hidden)
    order = build_run.build_order(
        config, Lengths(mixed_lengths(wikipedia_histogram(), sequences)), vocabulary, CPU, SEED
    )
    step = synthetic_step(order, 0, 0, vocabulary)
    resolved = resolve_precision(config.precision, CPU)
    with rehearsal_process_group(0, 1), counter, counted_parts(counter):
        stepper = build_run.build_stepper(config, Processes(0, 1, CPU), vocabulary, size)
        counter.is_building = False
        mark_heads(stepper.model.module, counter)
        by_step: list[tuple[list[Any], list[float]]] = []
        with patch.object(torch.autograd, "backward", stepper.model.backward):
            for number in range(steps + 1):
                counter.enabled = number > 0
                counter.kernels, counter.seconds = [], []
                stepper.take(step, PhaseClock())
                by_step.append((counter.kernels, counter.seconds))
    before = matmul_peak(resolved, CPU)
    rate, fp32, copies = max(before, matmul_peak(resolved, CPU)), matmul_peak("fp32", CPU), copy_bandwidth()
    rates = ReachableRates({"half": rate, "fp32": fp32, "flash": rate, "cudnn": rate}, copies)
    tokens = sum(step.micro_batches[0].lengths)
    print(
        f"{layers} layers x {hidden}, {sequences} sequences, {tokens:,} tokens, {resolved}, "
        f"{torch.get_num_threads()} threads, n = {steps} steps; {rate / 1e12:.3f} TFLOP/s, {copies / 1e9:.1f} GB/s"
    )
    for title, names in (("part", PARTS), ("operator", None)):
        counted: dict[str, float] = defaultdict(float)
        times: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
        for number, (kernels, seconds) in enumerate(by_step[1:]):
            for kernel, taken in zip(kernels, seconds, strict=True):
                name = kernel.part if names else f"{kernel.part}: {kernel.name}"
                times[name][number] += 1000 * taken
                counted[name] += 1000 * kernel.seconds(rates) / steps
        total = sum(counted.values())
        shown = [
            name
            for name in sorted(counted, key=lambda name: -counted[name])
            if names or counted[name] >= SHOWN_SHARE * total
        ]
        print(f"\n{title:60} {'counted ms':>10} {'measured ms':>11} {'measured / counted':>18}")
        for name in shown:
            typical = median(times[name])
            print(f"{name:60} {counted[name]:10.1f} {typical:11.1f} {typical / counted[name]:18.2f}")
        agreement = rank_correlation([counted[name] for name in shown], [median(times[name]) for name in shown])
        print(f"{'rank correlation, n = ' + str(len(shown)):60} {agreement:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.roofline_check", description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    arguments = parser.parse_args()
    keep_freed_memory()  # as a run does: every large result would otherwise be new memory, which the kernel clears
    measure(arguments.layers, arguments.hidden, arguments.sequences, arguments.steps, arguments.precision)


if __name__ == "__main__":
    main()
