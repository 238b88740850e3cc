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
from implementations.pytorch.bench.huggingface import HuggingFaceRunner, attention_implementations, require_memory
from implementations.pytorch.bench.step_costs import measure_costs
from implementations.pytorch.bench.variants import (
    PodiumRunner,
    StepRunner,
    StepTimes,
    mixed_lengths,
    resize,
    time_interleaved,
    variants,
)
from implementations.pytorch.distributed.process_group import Processes, init_distributed
from implementations.pytorch.precision import matmul_peak
from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.files import write_atomically
from podium.core.processes import end_with_parent
from podium.planning.batch_plan import SHAPE_STEPS

PODIUM = "podium"
# Largest values of options. Token IDs are stored in 16 bits.
OPTION_LIMITS = {"steps": 2**31 - 1, "vocabulary": 2**16, "layers": 2**31 - 1, "hidden": 2**31 - 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium bench` writes it")
    parser.add_argument("folder", type=Path, help="folder for summary.json")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each variant")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY_SIZE, help="vocabulary size of the model")
    parser.add_argument("--layers", type=int, help="number of layers; default: that of the model size")
    parser.add_argument("--hidden", type=int, help="hidden size, a multiple of 64; default: that of the model size")
    parser.add_argument("--lengths", type=Path, help="JSON list with the number of samples of each length")
    parser.add_argument("--ablate", action="store_true", help="turn off each optimisation, one at a time")
    parser.add_argument(
        "--against", choices=["huggingface"], help="another implementation to time, steps interleaved with Podium's"
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
            result = _bench(arguments, config, processes)
            if processes.first:
                write_atomically(folder.summary, json.dumps(result, indent=2) + "\n")
    except PodiumError as error:
        print(error, file=sys.stderr)
        folder.write_failure(error)
        return error.exit_code
    return 0


def _bench(arguments: argparse.Namespace, config: RunConfig, processes: Processes) -> dict[str, Any]:
    device, vocabulary_size, size = processes.device, arguments.vocabulary, _size(arguments, config.model_size)
    micro_batch = config.local_batch_size // config.gradient_accumulation_steps
    histogram = wikipedia_histogram() if arguments.lengths is None else read_histogram(arguments.lengths)
    lengths = mixed_lengths(histogram, arguments.steps * config.global_batch_size)
    full = PodiumRunner(config, processes, lengths, vocabulary_size, size)
    runners: dict[str, StepRunner] = {PODIUM: full}
    descriptions: dict[str, str] = {}
    if arguments.ablate:
        for name, (description, changed) in variants(config, device.type).items():
            runners[name] = PodiumRunner(changed, processes, lengths, vocabulary_size, size)
            descriptions[name] = description
    attentions = []
    if arguments.against == "huggingface":
        attentions = attention_implementations(device)
        require_memory(micro_batch, vocabulary_size, device)
        if full.steps[0].micro_batches[0].slot_width is not None:
            raise UsageError(
                "--against huggingface: balancing is padded; use another one, since it is compared with unpadded steps"
            )
        for attention in attentions:
            precision = full.stepper.precision
            runners[attention] = HuggingFaceRunner(
                attention, full.steps, config, size, vocabulary_size, precision, device
            )

    # Measured before and after, and the larger counts: a GPU's clock rate falls as it warms up.
    before = matmul_peak(full.stepper.precision, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = time_interleaved(runners, arguments.steps, device)
    peak = max(before, matmul_peak(full.stepper.precision, device))
    result = _rates(full, times[PODIUM], config, processes, size, vocabulary_size, peak)
    result["ablation"] = _ablation(descriptions, times) if arguments.ablate else None
    result["huggingface"] = _huggingface(attentions, times, config)
    ratio = result["huggingface"] and result["huggingface"]["milliseconds"]["total"] / (1000 * times[PODIUM].total)
    result["ratio_to_huggingface"] = ratio
    if arguments.costs:
        shape_step = config.shape_step or SHAPE_STEPS[device.type]
        costs = measure_costs(full.stepper, mixed_lengths(histogram, micro_batch), shape_step, vocabulary_size)
        result["step_costs"] = vars(costs)
    return result


def _rates(
    full: PodiumRunner,
    times: StepTimes,
    config: RunConfig,
    processes: Processes,
    size: Size,
    vocabulary_size: int,
    peak: float,
) -> dict[str, Any]:
    wholes = [step.global_batch for step in full.steps]
    useful, model = (
        sum(size.training_flops(w.lengths, w.masked, vocabulary_size, last_layer) for w in wholes)
        for last_layer in (config.last_layer, "all")
    )
    peaks = peak * processes.ranks
    samples = sum(global_batch.samples for global_batch in wholes)
    return {
        "sequences_per_second": samples / times.total,
        "useful_tflops": useful / times.total / 1e12,
        "share_of_peak": useful / times.total / peaks,
        "model_flops_utilization": model / times.total / peaks,
        "peak_tflops": peaks / 1e12,
        "milliseconds": times.milliseconds,
        "phases_ms": full.phases_ms,
        "memory_bytes": _peak_memory(processes.device),
        "padding_share": 1 - sum(w.tokens for w in wholes) / sum(w.slots for w in wholes),
        "max_over_mean_tokens": float(np.mean([w.max_over_mean_tokens for w in wholes])),
        "steps": len(times.seconds),
        "global_batch_size": config.global_batch_size,
        "ranks": processes.ranks,
        "device": _device_name(processes.device),
        "threads": torch.get_num_threads(),
        "precision": full.stepper.precision,
        "attention": full.stepper.model.module.model_options.attention,
        "graphs": len(full.stepper.graphs or ()),
        "layers": size.layers,
        "hidden": size.hidden,
        "vocabulary": vocabulary_size,
        "torch": torch.__version__,
    }


def _ablation(descriptions: Mapping[str, str], times: Mapping[str, StepTimes]) -> list[dict[str, Any]]:
    """Return the time of each variant relative to Podium's, in total and step by step, as JSON."""
    return [
        {
            "without": name,
            "what": description,
            "ratio": times[name].total / times[PODIUM].total,
            "ratio_by_step": times[name].ratios(times[PODIUM]),
            "milliseconds": times[name].milliseconds,
        }
        for name, description in descriptions.items()
    ]


def _huggingface(attentions: list[str], times: Mapping[str, StepTimes], config: RunConfig) -> dict[str, Any] | None:
    """Return the times of Hugging Face's fastest attention implementation, and the total of each; None if not run."""
    if not attentions:
        return None
    best = min(attentions, key=lambda name: times[name].total)
    totals = {name: 1000 * times[name].total for name in attentions}
    rate = len(times[best].seconds) * config.global_batch_size / times[best].total
    return {
        "attention": best,
        "sequences_per_second": rate,
        "milliseconds": {"total": totals[best], **times[best].milliseconds},
        "total_milliseconds_by_attention": totals,
    }


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: the GPU's in the timed steps, or the process's since its start on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux gives kilobytes.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
