"""Timings of training steps as one process of several: `torchrun … -m implementations.pytorch.bench CONFIG FOLDER`.

CONFIG is a resolved configuration; the measurements are written to FOLDER/summary.json. `podium bench SYSTEM` starts
it. Sides are timed in turn, and a side that fails does not end the others. Exit codes: 0 done, 1 a side failed (then
it is listed in summary.json) or everything (then FOLDER/failure.json has the error message), 2 wrong usage.
"""

import argparse
import json
import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.bert.lengths import read_histogram, wikipedia_histogram
from benchmarks.bert.sizes import VOCABULARY_SIZE, Size
from implementations.pytorch.bench.huggingface import attention_implementations
from implementations.pytorch.bench.sides import Problem, hugging_face_side, podium_side
from implementations.pytorch.bench.step_costs import measure_costs
from implementations.pytorch.bench.turns import REPETITIONS, SideResult, free_device, time_in_turns
from implementations.pytorch.bench.variants import (
    PodiumRunner,
    bench_order,
    min_median_max,
    mixed_lengths,
    resize,
    variants,
)
from implementations.pytorch.distributed.process_group import Processes, init_distributed
from implementations.pytorch.precision import matmul_peak, resolve_precision
from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.files import write_atomically
from podium.core.machine import this_machine
from podium.core.processes import end_with_parent
from podium.planning.batch_plan import SHAPE_STEPS, GlobalBatch

PODIUM = "podium"
# Largest values of options. Token IDs are stored in 16 bits.
ROUNDS = 3
OPTION_LIMITS = {"steps": 2**31 - 1, "rounds": 2**31 - 1, "vocabulary": 2**16, "layers": 2**31 - 1, "hidden": 2**31 - 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium bench` writes it")
    parser.add_argument("folder", type=Path, help="folder for summary.json")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each variant")
    parser.add_argument("--rounds", type=int, help=f"turns of each variant; default: {ROUNDS}, or 1 without others")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY_SIZE, help="vocabulary size of the model")
    parser.add_argument("--layers", type=int, help="number of layers; default: that of the model size")
    parser.add_argument("--hidden", type=int, help="hidden size, a multiple of 64; default: that of the model size")
    parser.add_argument("--lengths", type=Path, help="JSON list with the number of samples of each length")
    parser.add_argument("--ablate", action="store_true", help="turn off each optimisation, one at a time")
    parser.add_argument(
        "--baseline", choices=["huggingface"], help="another implementation to time, in turn with Podium"
    )
    parser.add_argument(
        "--costs", action="store_true", help="fit the cost of a token, a pair of tokens, a masked token and a sequence"
    )
    arguments = parser.parse_args()
    end_with_parent()
    folder = RunFolder(arguments.folder)
    try:
        config = load_resolved(arguments.config)
        with init_distributed(config) as processes:

            def save(result: dict[str, Any]) -> None:
                if processes.first:
                    write_atomically(folder.summary, json.dumps(result, indent=2) + "\n")

            result = _bench(arguments, config, processes, save)
            save(result)
    except PodiumError as error:
        print(error, file=sys.stderr)
        folder.write_failure(error)
        return error.exit_code
    return 1 if result["failures"] else 0


def _bench(
    arguments: argparse.Namespace, config: RunConfig, processes: Processes, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Time all sides in turn and return the results; those of the sides so far are saved after each turn."""
    device, vocabulary_size, size = processes.device, arguments.vocabulary, _size(arguments, config.model_size)
    histogram = wikipedia_histogram() if arguments.lengths is None else read_histogram(arguments.lengths)
    lengths = mixed_lengths(histogram, arguments.steps * config.global_batch_size)
    precision = resolve_precision(config.precision, device)
    found: dict[str, Any] = {"phases": Counter(), "taken": 0}

    def examine(runner: PodiumRunner, rounds_left: int) -> None:
        found["phases"].update(runner.clock.seconds)
        found["taken"] += runner.taken
        found["graphs"] = len(runner.stepper.graphs or ())
        found["attention"] = runner.stepper.model.module.model_options.attention
        found.setdefault("process_bytes", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # Linux: kilobytes
        if arguments.costs and rounds_left == 0:
            shape_step = config.shape_step or SHAPE_STEPS[device.type]
            micro_batch = config.local_batch_size // config.gradient_accumulation_steps
            costs = measure_costs(runner.stepper, mixed_lengths(histogram, micro_batch), shape_step, vocabulary_size)
            found["step_costs"] = vars(costs)

    problem = Problem(processes, lengths, vocabulary_size, size)
    sides = [replace(podium_side(PODIUM, config, problem), examine=examine)]
    descriptions: dict[str, str] = {}
    if arguments.ablate:
        for name, (description, changed) in variants(config, device.type).items():
            sides.append(podium_side(name, changed, problem))
            descriptions[name] = description
    attentions: list[str] = []
    if arguments.baseline == "huggingface":
        attentions = attention_implementations(device)
        sides += [hugging_face_side(attention, config, problem) for attention in attentions]

    rounds = min(arguments.steps, arguments.rounds or (ROUNDS if len(sides) > 1 else 1))
    order = bench_order(config, lengths, vocabulary_size, device)
    # Measured before and after, and the larger counts: a GPU's clock rate falls as it warms up.
    peak = matmul_peak(precision, device)
    free_device(device)

    def result(results: Mapping[str, SideResult], complete: bool) -> dict[str, Any]:
        podium = results[PODIUM]
        batches = [order.global_batch(step) for step in podium.steps]
        summary = _rates(batches, podium, config, processes, size, vocabulary_size, peak) | {
            "phase_milliseconds": {phase: 1000 * s / found["taken"] for phase, s in found["phases"].items() if s > 0},
            "memory_bytes": podium.peak_bytes or found["process_bytes"],
            "estimated_bytes": podium.needed_bytes,
            "precision": precision,
            "attention": found["attention"],
            "graphs": found["graphs"],
            "rounds": rounds,
            "ablation": _ablation(descriptions, results) if arguments.ablate else None,
            "huggingface": _huggingface(attentions, results, config),
            "misfits": {name: side.misfit for name, side in results.items() if side.misfit},
            "failures": {name: side.failure for name, side in results.items() if side.failure},
            "complete": complete,
        }
        of_huggingface = summary["huggingface"]
        summary["ratio_to_huggingface"] = of_huggingface and of_huggingface["ratio_by_round"]["median"]
        return summary | ({"step_costs": found["step_costs"]} if "step_costs" in found else {})

    def on_turn(results: Mapping[str, SideResult]) -> None:
        save(result(results, complete=False))

    results = time_in_turns(sides, arguments.steps, rounds, processes, on_turn)
    if results[PODIUM].misfit:
        raise UsageError(f"the step {results[PODIUM].misfit}; lower global_batch_size, or --layers or --hidden")
    peak = max(peak, matmul_peak(precision, device))
    return result(results, complete=True)


def _rates(
    batches: Sequence[GlobalBatch],
    podium: SideResult,
    config: RunConfig,
    processes: Processes,
    size: Size,
    vocabulary_size: int,
    peak: float,
) -> dict[str, Any]:
    times = podium.times
    useful, model = (
        sum(size.training_flops(b.lengths, b.masked, vocabulary_size, last_layer) for b in batches)
        for last_layer in (config.last_layer, "all")
    )
    peaks = peak * processes.ranks
    return {
        "sequences_per_second": sum(batch.samples for batch in batches) / times.total,
        "useful_tflops": useful / times.total / 1e12,
        "share_of_peak": useful / times.total / peaks,
        "model_flops_utilization": model / times.total / peaks,
        "peak_tflops": peaks / 1e12,
        "milliseconds": times.milliseconds,
        "padding_share": 1 - sum(b.tokens for b in batches) / sum(b.slots for b in batches),
        "max_over_mean_tokens": float(np.mean([b.max_over_mean_tokens for b in batches])),
        "steps": len(times.seconds),
        "repetitions": REPETITIONS[processes.device.type],
        "global_batch_size": config.global_batch_size,
        "ranks": processes.ranks,
        "device": _device_name(processes.device),
        "threads": torch.get_num_threads(),
        "layers": size.layers,
        "hidden": size.hidden,
        "vocabulary": vocabulary_size,
        "torch": torch.__version__,
        "machine": this_machine().as_json(),
    }


def _ablation(descriptions: Mapping[str, str], results: Mapping[str, SideResult]) -> list[dict[str, Any]]:
    """Return the time of each variant relative to Podium's in the same round, as JSON."""
    return [
        {"without": name, "what": description, **_relative(results[name], results[PODIUM])}
        for name, description in descriptions.items()
    ]


def _relative(side: SideResult, podium: SideResult) -> dict[str, Any]:
    """Return a side's ratios of time to Podium's, and its memory, as JSON; None for what was not measured."""
    ratios = side.ratios(podium)
    return {
        "ratio": median(ratios) if ratios else None,
        "ratio_by_round": min_median_max(ratios) if ratios else None,
        "milliseconds": side.times.milliseconds if ratios else None,
        "memory_bytes": side.peak_bytes,
        "estimated_bytes": side.needed_bytes,
        "obstacle": side.obstacle,
    }


def _huggingface(attentions: list[str], results: Mapping[str, SideResult], config: RunConfig) -> dict[str, Any] | None:
    """Return the times of Hugging Face's fastest attention implementation, and the total of each; None if not run."""
    by_attention = {name: _relative(results[name], results[PODIUM]) for name in attentions}
    timed = [name for name in attentions if by_attention[name]["ratio"] is not None]
    if not timed:
        return None
    best = min(timed, key=lambda name: float(by_attention[name]["ratio"]))
    times = results[best].times
    totals = {name: 1000 * results[name].times.total for name in timed}
    rate = len(times.seconds) * config.global_batch_size / times.total
    return {
        **by_attention[best],
        "attention": best,
        "sequences_per_second": rate,
        "milliseconds": {"total": totals[best], **times.milliseconds},
        "total_milliseconds_by_attention": totals,
        "by_attention": by_attention,
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _size(arguments: argparse.Namespace, size: Size) -> Size:
    """Return the model size with the dimensions of --layers and --hidden. Raises UsageError for values out of range."""
    for name in OPTION_LIMITS:
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= OPTION_LIMITS[name]:
            raise UsageError(f"--{name}: found {value}, allowed is 1 to {OPTION_LIMITS[name]}")
    if not arguments.hidden and not arguments.layers:
        return size
    return resize(size, arguments.layers or size.layers, arguments.hidden or size.hidden)


if __name__ == "__main__":
    sys.exit(main())
