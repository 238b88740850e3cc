"""Cost of the gradient synchronisation modes over a slow network: whole steps of two processes, interleaved.

    $ python -m implementations.pytorch.bench.network --rate 400mbit --bucket-mib 0.25,1,4,16

Each process runs in a network namespace, so this needs Linux and root. The namespaces are joined by a link whose rate
is enforced by the kernel's token bucket filter; a delay needs its network emulator. Prints one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bert.lengths import wikipedia_histogram
from implementations.pytorch.bench.variants import PodiumRunner, StepTimes, mixed_lengths, resize, time_interleaved
from implementations.pytorch.distributed.process_group import init_distributed
from podium.config.load import load_system
from podium.config.schema import Clipping
from podium.core.errors import PodiumError, UsageError, WorkError

LINK = "podium0"
# The queue holds 400 ms of data, so that bursts of a whole bucket of gradients are delayed and not dropped.
TOKEN_BUCKET = ("burst", "256kb", "latency", "400ms")
QUEUED_PACKETS = 10_000  # limit of the network emulator, for the same reason


ADDRESS = "10.77.0.{}"  # of hosts 1 and 2
IN_NAMESPACE = ("ip", "netns", "exec")  # command prefix, followed by the namespace and the command to run in it


@contextmanager
def two_hosts(rate: str, delay: str | None) -> Iterator[list[str]]:
    """Create two network namespaces with a link between them. Yields their names, and removes them afterwards.

    Both ends send with at most `rate`, and packets arrive `delay` later (None: no delay), in tc's units ("400mbit",
    "1ms"). Raises UsageError without root rights or iproute2, WorkError if the kernel does not allow it.
    """
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root rights; run this as root")
    names = [f"podium-{os.getpid()}-{number}" for number in range(2)]
    shape = ["tbf", "rate", rate, *TOKEN_BUCKET]
    if delay is not None:
        shape = ["netem", "rate", rate, "delay", delay, "limit", str(QUEUED_PACKETS)]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        first, second = (("ip", "-n", name) for name in names)
        _run(*first, "link", "add", "name", LINK, "type", "veth", "peer", "name", LINK, "netns", names[1])
        for number, (name, ip) in enumerate(zip(names, (first, second), strict=True), start=1):
            _run(*ip, "address", "add", f"{ADDRESS.format(number)}/24", "dev", LINK)
            _run(*ip, "link", "set", LINK, "up")
            _run(*ip, "link", "set", "lo", "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", LINK, "root", *shape)
        yield names
    finally:
        # Deleting a namespace deletes its end of the link too.
        for name in names:
            with suppress(PodiumError):
                _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    """Run a command of iproute2. Raises UsageError if it is not installed, WorkError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: not found; install iproute2") from error
    if done.returncode:
        raise WorkError(
            f"{' '.join(command)}: {done.stderr.strip()}; this machine does not allow "
            "network namespaces with a shaped link"
        )


MODES: dict[str, dict[str, Any]] = {
    "after": {"clipping": Clipping(max_norm=1.0)},
    "bucket": {"clipping": Clipping(max_norm=1.0, when="bucket")},
    "before": {"clipping": Clipping(max_norm=1.0, when="before")},
    "bucket, bf16 sent": {"clipping": Clipping(max_norm=1.0, when="bucket"), "gradient_wire": "bf16"},
}
PORT = 29_511  # of the rendezvous
SECONDS_PER_STEP = 60
THROUGHPUT_BYTES, THROUGHPUT_ROUNDS = 32 * 2**20, 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.network", description=__doc__)
    parser.add_argument("--rate", default="400mbit", help="rate of the link in tc's units, as 400mbit")
    parser.add_argument("--delay", help="delay of the link in tc's units, as 1ms, if the kernel has netem")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each mode")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=4_000)
    parser.add_argument("--local-batch", type=int, default=8)
    parser.add_argument(
        "--bucket-mib", type=_sizes, default=(2.0,), help="bucket sizes on the wire, separated by commas"
    )
    parser.add_argument("--wire", action="store_true", help="also time clipping by bucket with gradients sent as bf16")
    parser.add_argument("--of-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.of_rank:
            _measure(arguments)
        else:
            with two_hosts(arguments.rate, arguments.delay) as hosts:
                mode_count = len(synchronisation_modes(arguments))
                print(_run_ranks(hosts, SECONDS_PER_STEP * (2 * arguments.steps + 4) * mode_count))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _sizes(text: str) -> tuple[float, ...]:
    sizes = tuple(float(size) for size in text.split(","))
    if min(sizes) <= 0:
        raise ValueError(text)
    return sizes


def synchronisation_modes(arguments: argparse.Namespace) -> dict[tuple[str, float], dict[str, Any]]:
    """Return the changes to the laptop's configuration by mode and bucket size in MiB."""
    return {
        (name, size): {**changes, "gradient_bucket_mib": size}
        for size in arguments.bucket_mib
        for name, changes in MODES.items()
        if arguments.wire or "gradient_wire" not in changes
    }


def _run_ranks(hosts: list[str], seconds: int) -> str:
    """Run one rank in each namespace. Returns the standard output of the first. Raises WorkError if one fails."""
    command = [sys.executable, "-m", "implementations.pytorch.bench.network", *sys.argv[1:], "--of-rank"]
    rendezvous = {"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": str(PORT), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    started = [
        subprocess.Popen(
            [*IN_NAMESPACE, host, *command],
            env={**os.environ, **rendezvous, "GLOO_SOCKET_IFNAME": LINK, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in started]
    except subprocess.TimeoutExpired as error:
        raise WorkError(
            f"two processes did not end within {seconds} s; use fewer --steps or a higher --rate"
        ) from error
    finally:
        for process in started:
            process.kill()
            process.wait()
    failed = [process.returncode for process in started if process.returncode]
    if failed:
        raise WorkError(f"a process ended with exit code {failed[0]}; its output is above")
    return outputs[0].strip()


def _measure(arguments: argparse.Namespace) -> None:
    settings = [
        "launch.processes_per_node=2",
        f"global_batch_size={2 * arguments.local_batch}",
        "gradient_wire=fp32",
        "seed=1",
    ]
    config = load_system("laptop", settings=settings)
    size = resize(config.model_size, arguments.layers, arguments.hidden)
    lengths = mixed_lengths(wikipedia_histogram(), arguments.steps * config.global_batch_size)
    with init_distributed(config) as processes:
        runners = {
            mode: PodiumRunner(config.model_copy(update=changes), processes, lengths, arguments.vocabulary, size)
            for mode, changes in synchronisation_modes(arguments).items()
        }
        by_name = {f"{name}, {size:g} MiB": runner for (name, size), runner in runners.items()}
        times = time_interleaved(by_name, arguments.steps, processes.device)
        gigabits = _measure_throughput()
    if not processes.first:
        return
    parameters = sum(parameter.numel() for parameter in next(iter(runners.values())).stepper.model.parameters())
    result = {
        "rate": arguments.rate,
        "delay": arguments.delay,
        "reached_gigabits": gigabits,
        "steps": arguments.steps,
        "gradient_mib": 4 * parameters / 2**20,
        "ways": [_mode_result(mode, runners, times, arguments.steps) for mode in runners],
    }
    print(json.dumps(result, indent=2))


def _measure_throughput() -> float:
    """Measure Gbit/s in each direction in the fastest of some all-reduces: each of two ranks sends all bytes once."""
    values = torch.ones(THROUGHPUT_BYTES // 4)
    seconds = []
    for _ in range(THROUGHPUT_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - started)
        values.fill_(1)
    return 8 * THROUGHPUT_BYTES / min(seconds) / 1e9


def _mode_result(
    mode: tuple[str, float],
    runners: Mapping[tuple[str, float], PodiumRunner],
    times: Mapping[str, StepTimes],
    steps: int,
) -> dict[str, Any]:
    """Return the times of a mode, and relative to `after` with the same bucket size, as JSON."""
    name, size = mode
    own, after = times[f"{name}, {size:g} MiB"], times[f"after, {size:g} MiB"]
    return {
        "clipping": name,
        "bucket_mib": size,
        "milliseconds": own.milliseconds,
        "times_after": own.total / after.total,
        "times_after_by_step": own.ratios(after),
        "phase_milliseconds": {phase: 1000 * s / steps for phase, s in runners[mode].clock.seconds.items()},
        "buckets": runners[mode].stepper.sync.buckets or None,
    }


if __name__ == "__main__":
    sys.exit(main())
