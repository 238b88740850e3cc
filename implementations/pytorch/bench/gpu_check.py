"""Measurements of a machine and of BERT-large's step on it: `python -m implementations.pytorch.bench.gpu_check PART`.

tools/gpu_check.py starts each part as a process. Every result is appended at once, as a JSON line, to the file that
PODIUM_GPU_RESULTS names; larger tables are written to the folder PODIUM_GPU_FOLDER. `--tiny` measures a small model on
the CPU, its Triton kernels in Triton's interpreter, to try the measurements themselves. Exit codes: 0 done, 77 not
possible on this machine.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import VOCABULARY_SIZE, Size
from implementations.pytorch.bench.kernel_cases import CASES, large_shapes, tiny_shapes
from implementations.pytorch.bench.variants import PodiumRunner, mixed_lengths
from implementations.pytorch.diagnostics import visible_device
from implementations.pytorch.distributed.process_group import single_process
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.precision import matmul_peak, measure_seconds
from podium.config.load import load_system
from podium.config.schema import RunConfig

RESULTS, FOLDER = "PODIUM_GPU_RESULTS", "PODIUM_GPU_FOLDER"
NOT_POSSIBLE = 77  # exit code
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def write_result(**values: Any) -> None:
    """Append a result to the file of results, or print it if there is none."""
    line = json.dumps(values)
    if (path := os.environ.get(RESULTS)) is None:
        print(line, flush=True)
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def write_table(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a table to the folder of results, one JSON object a line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (Path(os.environ.get(FOLDER, ".")) / name).write_text(text, encoding="utf-8")


def versions(device: torch.device) -> None:
    """Software, and the GPU with its clock rates and limits."""
    software = {name: _version(name) for name in ("triton", "transformers", "numba", "numpy", "nvidia-cudnn-frontend")}
    found = visible_device() | {"python": platform.python_version(), "architectures": torch.cuda.get_arch_list()}
    write_result(part="versions", **found, **software)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        names = ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
        write_result(part="versions", device={name: getattr(properties, name, None) for name in names})
        write_result(part="versions", nvidia_smi=_nvidia_smi())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


SMI_FIELDS = (
    *("name", "driver_version", "pstate", "temperature.gpu", "power.draw", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "memory.total", "memory.used"),
)


def _nvidia_smi() -> Any:
    """Return the driver's fields of each GPU, or why there are none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return [dict(zip(SMI_FIELDS, line.split(", "), strict=False)) for line in done.stdout.splitlines()]


COPY_BYTES = {"cpu": 2**26, "cuda": 2**32}
FP8_WIDTH = 8192
PEAK_SECONDS = 0.5


def best_seconds(function: Callable[[], object], device: torch.device, seconds: float = PEAK_SECONDS) -> float:
    """Return the shortest time of repeated calls, measured for about `seconds` after one call that is not counted."""
    function()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, measure_seconds(function, device))
    return best


def peaks(device: torch.device) -> None:
    """FLOP/s of large matrix products by dtype, and bytes/s of copies, each the best of repeated calls."""
    for precision in ("bf16", "fp16", "fp32"):
        write_result(part="peaks", product=precision, tflops=matmul_peak(precision, device) / 1e12)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        write_result(part="peaks", product="tf32", tflops=matmul_peak("fp32", device) / 1e12)
        torch.backends.cuda.matmul.allow_tf32 = False
        _fp8_peaks(device)
    count = COPY_BYTES[device.type]
    source, target = (torch.ones(count, dtype=torch.uint8, device=device) for _ in range(2))
    write_result(part="peaks", copy_gb_per_second=2 * count / best_seconds(lambda: target.copy_(source), device) / 1e9)
    write_result(part="peaks", fill_gb_per_second=count / best_seconds(lambda: target.fill_(1), device) / 1e9)
    write_result(part="peaks", nvidia_smi_after=_nvidia_smi() if device.type == "cuda" else None)


def _fp8_peaks(device: torch.device) -> None:
    random = torch.randn(FP8_WIDTH, FP8_WIDTH, device=device)
    a, one = random.to(torch.float8_e4m3fn), torch.ones((), device=device)
    for gradient_type in (torch.float8_e4m3fn, torch.float8_e5m2):
        b = random.to(gradient_type).t()
        for fast in (True, False):
            product = partial(
                torch._scaled_mm, a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
            seconds = best_seconds(product, device)
            name = f"e4m3 x {str(gradient_type).removeprefix('torch.float8_')}"
            write_result(part="peaks", product=name, fast_accumulation=fast, tflops=2 * FP8_WIDTH**3 / seconds / 1e12)


@dataclass
class Launches:
    """Launches of a Triton kernel, and the bytes that they move."""

    calls: int = 0
    moved: int = 0


@contextmanager
def counted_launches() -> Iterator[dict[str, Launches]]:
    """Count Triton kernels instead of running them, by name; their results are undefined."""
    from implementations.pytorch.kernels.gpu.common import record_launches  # where Triton is

    counted: dict[str, Launches] = {}

    def record(name: str, moved: int, flops: float) -> None:
        launches = counted.setdefault(name, Launches())
        launches.calls += 1
        launches.moved += moved

    with record_launches(record):
        yield counted


def profiled(function: Callable[[], object], device: torch.device, calls: int) -> list[dict[str, Any]]:
    """Return the kernels of `calls` calls, those of most time first: name, launches and microseconds of one call.

    On a CPU they are PyTorch's operators.
    """
    cuda = device.type == "cuda"
    function()
    measure_seconds(lambda: None, device)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(calls):
            function()
        measure_seconds(lambda: None, device)
    kind = "CUDA" if cuda else "CPU"
    rows = [
        {
            "kernel": row.key[:200],
            "launches": row.count / calls,
            "microseconds": (row.self_device_time_total if cuda else row.self_cpu_time_total) / calls,
        }
        for row in profiler.key_averages()
        if row.device_type.name == kind
    ]
    return sorted(rows, key=lambda row: -row["microseconds"])


def with_bandwidth(rows: list[dict[str, Any]], counted: dict[str, Launches]) -> list[dict[str, Any]]:
    """Add the bytes of Triton kernels and their GB/s to the profiler's rows.

    Kernels of several modules that have one name are one row of the profiler, with the bytes of all.
    """
    moved: dict[str, int] = {}
    for name, launches in counted.items():
        plain = name.rpartition(".")[2]
        moved[plain] = moved.get(plain, 0) + launches.moved
    for row in rows:
        found = moved.get(row["kernel"].strip("_"))
        if found is not None:
            row["bytes"] = found
            row["gb_per_second"] = found / row["microseconds"] / 1e3 if row["microseconds"] else None
    return rows


def kernel_times(device: torch.device) -> None:
    """Time and GB/s of each Triton kernel, alone, in bf16 with dropout, at the sizes of 56 sequences."""
    shapes = large_shapes(device) if device.type == "cuda" else tiny_shapes()
    dtype = torch.bfloat16
    for field in fields(Kernels):
        case = CASES[field.name](shapes)
        inputs = case.inputs(dtype, dtype)
        kernels = load_kernels("triton")
        result = case.call(kernels, inputs, dtype, 0.1)
        upstream = torch.ones_like(result)

        def both_ways(
            call: Callable[..., Any] = case.call,
            kernels: Kernels = kernels,
            inputs: list[torch.Tensor] = inputs,
            upstream: torch.Tensor = upstream,
        ) -> None:
            torch.autograd.grad(call(kernels, inputs, dtype, 0.1), inputs, upstream)

        with counted_launches() as counted:
            both_ways()
        rows = with_bandwidth(profiled(both_ways, device, 10 if device.type == "cuda" else 1), counted)
        write_result(
            part="kernel_times",
            kernel=field.name,
            launched={name: asdict(launches) for name, launches in counted.items()},
            rows=rows[:12],
        )
        del case, inputs, result, upstream
        _free(device)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


STEPS = 12  # global batches, of which the one with most token slots is timed alone as well
REPETITIONS = 3
TABLE_ROWS = 200


def step(device: torch.device) -> None:
    """BERT-large's step in bf16 and fp8: seconds of each batch shape, memory, capture, and the profiler's table."""
    precisions = ("bf16", "fp8") if device.type == "cuda" else ("fp32",)
    for precision in precisions:
        try:
            _measure_step(precision, device)
        except Exception as error:
            write_result(part="step", precision=precision, error=f"{type(error).__name__}: {error}"[:2000])
            if precision == precisions[-1]:
                raise
        _free(device)


def step_config(precision: str, device: torch.device) -> tuple[RunConfig, Size, int]:
    """Return the configuration, model size and vocabulary size of the step that is measured."""
    config = load_system("h200_1x").model_copy(update={"seed": 1, "precision": precision})
    if device.type == "cuda":
        return config, config.model_size, VOCABULARY_SIZE
    launch = config.launch.model_copy(update={"device": "cpu"})
    changes = {"launch": launch, "global_batch_size": 4, "kernels": "eager", "attention": "grouped"}
    return config.model_copy(update=changes), tiny_shapes().size, tiny_shapes().vocabulary


def _measure_step(precision: str, device: torch.device) -> None:
    write = partial(write_result, part="step", precision=precision)
    config, size, vocabulary_size = step_config(precision, device)
    steps = STEPS if device.type == "cuda" else 2
    lengths = mixed_lengths(wikipedia_histogram(), steps * config.global_batch_size)
    lengths = np.minimum(lengths, size.positions)
    with single_process(device) as processes:
        for cuda_graph in ("none", "auto") if device.type == "cuda" else ("none",):
            changed = config.model_copy(update={"cuda_graph": cuda_graph})
            started = time.perf_counter()
            runner = PodiumRunner(changed, processes, lengths, vocabulary_size, size)
            measure_seconds(lambda: None, device)
            graphs = len(runner.stepper.graphs or ())
            write(graphs=graphs, setup_seconds=time.perf_counter() - started, memory_of_setup=_memory(device))
            _time_steps(runner, device, partial(write, graphs=graphs))
            if graphs:
                _time_capture(runner, partial(write, graphs=graphs))
            largest = partial(runner.take, _largest(runner))
            rows = profiled(largest, device, REPETITIONS)
            if config.kernels in ("auto", "triton") and not graphs and device.type == "cuda":
                with counted_launches() as counted:  # last: what it leaves in the weights is undefined
                    largest()
                rows = with_bandwidth(rows, counted)
            write_table(f"profile_{precision}_{'graphs' if graphs else 'launches'}.jsonl", rows[:TABLE_ROWS])
            total = sum(row["microseconds"] for row in rows)
            write(graphs=graphs, profiled_milliseconds=total / 1e3, kernels=len(rows), largest=rows[:15])
            del runner, largest
            _free(device)


def _largest(runner: PodiumRunner) -> int:
    """Number of the step with most token slots."""
    return int(np.argmax([step.global_batch.slots for step in runner.steps]))


def _time_steps(runner: PodiumRunner, device: torch.device, write: Callable[..., None]) -> None:
    """Time every batch alone, and all of them without waiting between them."""
    seconds = np.array(
        [
            [measure_seconds(partial(runner.take, number), device) for number in range(len(runner.steps))]
            for _ in range(REPETITIONS)
        ]
    )
    samples = sum(step.global_batch.samples for step in runner.steps)

    def all_steps() -> None:
        for number in range(len(runner.steps)):
            runner.take(number)

    in_a_row = best_seconds(all_steps, device, 1.0)
    best, largest = seconds.min(axis=0), _largest(runner)
    write(
        sequences_per_second=samples / in_a_row,
        milliseconds_a_step=1e3 * in_a_row / len(runner.steps),
        milliseconds_alone=[round(1e3 * value, 3) for value in best.tolist()],
        largest_slots=runner.steps[largest].global_batch.slots,
        largest_milliseconds=1e3 * float(best[largest]),
        memory=_memory(device),
        clocks=_nvidia_smi() if device.type == "cuda" else None,
    )


def _time_capture(runner: PodiumRunner, write: Callable[..., None]) -> None:
    """Time another capture of every shape; the new graphs replace the ones before."""
    stepper = runner.stepper
    graphs = stepper.use_graphs()
    started = time.perf_counter()
    for step in runner.steps:
        graphs.capture(step.micro_batches[0], stepper.loss_weights(step)[0])
    torch.cuda.synchronize()
    write(captured=len(graphs), capture_seconds=time.perf_counter() - started)


def _memory(device: torch.device) -> dict[str, int] | None:
    """Return allocated, peak and reserved bytes of the GPU since the last reset."""
    if device.type == "cpu":
        return None
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "peak": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }


PARTS = {part.__name__: part for part in (versions, peaks, kernel_times, step)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.gpu_check", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        print("there is no GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return NOT_POSSIBLE
    if arguments.tiny:
        torch.set_num_threads(1)
        load_kernels("numba")  # which takes as many threads
    else:
        torch.cuda.set_device(GPU)
    PARTS[arguments.part](CPU if arguments.tiny else GPU)
    return 0


if __name__ == "__main__":
    sys.exit(main())
