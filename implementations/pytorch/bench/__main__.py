"""Timings of training steps as one process of several: `torchrun … -m implementations.pytorch.bench CONFIG FOLDER`.

CONFIG is a resolved configuration; the measurements are written to FOLDER/summary.json. `podium bench SYSTEM` starts
it. Exit codes: 0 done, 1 failed (then FOLDER/failure.json has the error message), 2 wrong usage.
"""

import argparse
import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bert.lengths import read_histogram, wikipedia_histogram
from benchmarks.bert.sizes import VOCABULARY_SIZE, Size
from implementations.pytorch.bench.huggingface import HuggingFace, attention_implementations, require_memory
from implementations.pytorch.bench.step_costs import measure_costs
from implementations.pytorch.bench.variants import Podium, Side, Times, mixed_lengths, resized, time_in_turn, variants
from implementations.pytorch.distributed.process_group import Processes, joined
from implementations.pytorch.precision import matmul_peak
from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.files import write_whole
from podium.core.processes import end_with_parent
from podium.planning.batch_plan import SHAPE_STEPS

FULL = "podium"
# Word numbers are stored in 16 bits.
LARGEST = {"steps": 2**31 - 1, "vocabulary": 2**16, "layers": 2**31 - 1, "hidden": 2**31 - 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium bench` writes it")
    parser.add_argument("folder", type=Path, help="where to write what was measured")
    parser.add_argument("--steps", type=int, default=8, help="steps of each side that are counted")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY_SIZE, help="words of the model")
    parser.add_argument("--layers", type=int, help="another number of layers than the size's")
    parser.add_argument("--hidden", type=int, help="another width than the size's, with heads of 64")
    parser.add_argument("--lengths", type=Path, help="a JSON list: how many samples have 1, 2, … tokens")
    parser.add_argument("--ablate", action="store_true", help="turn every optimisation off, one at a time")
    parser.add_argument("--against", choices=["huggingface"], help="another implementation to time in turn")
    parser.add_argument("--costs", action="store_true", help="fit what a token, a pair and so on costs")
    arguments = parser.parse_args()
    end_with_parent()
    folder = RunFolder(arguments.folder)
    try:
        config = load_resolved(arguments.config)
        with joined(config) as processes:
            result = _bench(arguments, config, processes)
            if processes.first:
                write_whole(folder.summary, json.dumps(result, indent=2) + "\n")
    except PodiumError as error:
        print(error, file=sys.stderr)
        folder.tell_failure(error)
        return error.exit_code
    return 0


def _bench(arguments: argparse.Namespace, config: RunConfig, processes: Processes) -> dict[str, Any]:
    device, words, size = processes.device, arguments.vocabulary, _size(arguments, config.model_size)
    micro_batch = config.local_batch_size // config.gradient_accumulation_steps
    histogram = wikipedia_histogram() if arguments.lengths is None else read_histogram(arguments.lengths)
    lengths = mixed_lengths(histogram, arguments.steps * config.global_batch_size)
    full = Podium(config, processes, lengths, words, size)
    sides: dict[str, Side] = {FULL: full}
    whats: dict[str, str] = {}
    if arguments.ablate:
        for name, (what, changed) in variants(config, device.type).items():
            sides[name], whats[name] = Podium(changed, processes, lengths, words, size), what
    opponents = []
    if arguments.against == "huggingface":
        opponents = attention_implementations(device)
        require_memory(micro_batch, words, device)
        if full.steps[0].micro_batches[0].slot_width is not None:
            raise UsageError("--against huggingface: balancing is padded; it is compared with unpadded steps")
        for attention in opponents:
            precision = full.stepper.precision
            sides[attention] = HuggingFace(attention, full.steps, config, size, words, precision, device)

    before = matmul_peak(full.stepper.precision, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = time_in_turn(sides, arguments.steps, device)
    peak = max(before, matmul_peak(full.stepper.precision, device))
    result = _rates(full, times[FULL], config, processes, size, words, peak)
    result["ablation"] = _ablation(whats, times) if arguments.ablate else None
    result["huggingface"] = _huggingface(opponents, times, config)
    ratio = result["huggingface"] and result["huggingface"]["milliseconds"]["total"] / (1000 * times[FULL].total)
    result["ratio_to_huggingface"] = ratio
    if arguments.costs:
        shape_step = config.shape_step or SHAPE_STEPS[device.type]
        costs = measure_costs(full.stepper, mixed_lengths(histogram, micro_batch), shape_step, words)
        result["step_costs"] = vars(costs)
    return result


def _rates(
    full: Podium, times: Times, config: RunConfig, processes: Processes, size: Size, words: int, peak: float
) -> dict[str, Any]:
    wholes = [step.whole for step in full.steps]
    useful, model = (
        sum(size.training_flops(w.lengths, w.masked, words, last_layer) for w in wholes)
        for last_layer in (config.last_layer, "all")
    )
    peaks = peak * processes.ranks
    samples = sum(whole.samples for whole in wholes)
    return {
        "sequences_per_second": samples / times.total,
        "useful_tflops": useful / times.total / 1e12,
        "share_of_peak": useful / times.total / peaks,
        "model_flops_utilization": model / times.total / peaks,
        "peak_tflops": peaks / 1e12,
        "milliseconds": times.milliseconds,
        "phases_ms": full.phases_ms,
        "memory_bytes": _memory(processes.device),
        "padding_share": 1 - sum(w.tokens for w in wholes) / sum(w.slots for w in wholes),
        "max_over_mean_tokens": float(np.mean([w.max_over_mean_tokens for w in wholes])),
        "steps": len(times.seconds),
        "global_batch_size": config.global_batch_size,
        "ranks": processes.ranks,
        "device": _name(processes.device),
        "threads": torch.get_num_threads(),
        "precision": full.stepper.precision,
        "graphs": len(full.stepper.graphs or ()),
        "layers": size.layers,
        "hidden": size.hidden,
        "vocabulary": words,
        "torch": torch.__version__,
    }


def _ablation(whats: Mapping[str, str], times: Mapping[str, Times]) -> list[dict[str, Any]]:
    """How many times as long a step takes without each thing, by summed times and step by step."""
    return [
        {
            "without": name,
            "what": what,
            "ratio": times[name].total / times[FULL].total,
            "ratio_by_step": times[name].ratios(times[FULL]),
            "milliseconds": times[name].milliseconds,
        }
        for name, what in whats.items()
    ]


def _huggingface(opponents: list[str], times: Mapping[str, Times], config: RunConfig) -> dict[str, Any] | None:
    """The fastest of its attention implementations, and what each took."""
    if not opponents:
        return None
    best = min(opponents, key=lambda name: times[name].total)
    totals = {name: 1000 * times[name].total for name in opponents}
    rate = len(times[best].seconds) * config.global_batch_size / times[best].total
    return {
        "attention": best,
        "sequences_per_second": rate,
        "milliseconds": {"total": totals[best], **times[best].milliseconds},
        "total_milliseconds_by_attention": totals,
    }


def _memory(device: torch.device) -> int:
    """Most memory in use: the GPU's in the timed steps, or on a CPU the process's since it started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _size(arguments: argparse.Namespace, size: Size) -> Size:
    """The configured size, or one of other dimensions."""
    for name in LARGEST:
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= LARGEST[name]:
            raise UsageError(f"--{name}: found {value}, allowed is 1 to {LARGEST[name]}")
    if not arguments.hidden and not arguments.layers:
        return size
    return resized(size, arguments.layers or size.layers, arguments.hidden or size.hidden)


if __name__ == "__main__":
    sys.exit(main())
