"""Cost of the gradient synchronisation modes over a slow network: whole steps of two processes, modes in turn.

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
from implementations.pytorch.bench.variants import Podium, Times, mixed_lengths, resized, time_in_turn
from implementations.pytorch.distributed.process_group import joined
from podium.config.load import load_system
from podium.config.schema import Clipping
from podium.core.errors import PodiumError, UsageError, WorkError

LINK = "podium0"
TOKEN_BUCKET = ("burst", "256kb", "latency", "400ms")
QUEUED_PACKETS = 10_000


ADDRESS = "10.77.0.{}"  # of the first and the second host
WITHIN = ("ip", "netns", "exec")  # before the name of a host and a command that is to run there


@contextmanager
def two_hosts(rate: str, delay: str | None) -> Iterator[list[str]]:
    """The names of two network namespaces with a link between them.

    Both ends send at `rate` at most and each packet arrives `delay` later, both in tc's words ("400mbit", "1ms");
    without a delay as soon as it is sent. Raises UsageError where this machine does not allow that. Namespaces and link
    are gone afterwards.
    """
    if os.geteuid() != 0:
        raise UsageError("two hosts on one machine: found no root rights; run this as root")
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
        for name in names:
            with suppress(PodiumError):
                _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: not found; install iproute2") from error
    if done.returncode:
        raise WorkError(f"{' '.join(command)}: {done.stderr.strip()}; this machine does not allow two hosts on it")


WAYS: dict[str, dict[str, Any]] = {
    "after": {"clipping": Clipping(max_norm=1.0)},
    "bucket": {"clipping": Clipping(max_norm=1.0, when="bucket")},
    "before": {"clipping": Clipping(max_norm=1.0, when="before")},
    "bucket, bf16 sent": {"clipping": Clipping(max_norm=1.0, when="bucket"), "gradient_wire": "bf16"},
}
PORT = 29_511
SECONDS_A_STEP = 60
REACHED_BYTES, REACHED_TRIES = 32 * 2**20, 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.network", description=__doc__)
    parser.add_argument("--rate", default="400mbit", help="of the link, in tc's words")
    parser.add_argument("--delay", help="of the link, in tc's words, where the kernel can delay")
    parser.add_argument("--steps", type=int, default=8, help="steps of each way that are counted")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=4_000)
    parser.add_argument("--local-batch", type=int, default=8)
    parser.add_argument(
        "--bucket-mib", type=_sizes, default=(2.0,), help="sizes of a bucket on the wire, between commas: each in turn"
    )
    parser.add_argument("--wire", action="store_true", help="also clip by bucket and send bf16")
    parser.add_argument("--of-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.of_rank:
            _measure(arguments)
        else:
            with two_hosts(arguments.rate, arguments.delay) as hosts:
                ways = len(ways_of(arguments))
                print(_start(hosts, SECONDS_A_STEP * (2 * arguments.steps + 4) * ways))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _sizes(text: str) -> tuple[float, ...]:
    sizes = tuple(float(one) for one in text.split(","))
    if min(sizes) <= 0:
        raise ValueError(text)
    return sizes


def ways_of(arguments: argparse.Namespace) -> dict[tuple[str, float], dict[str, Any]]:
    """What differs from the laptop's configuration, by way of clipping and size of a bucket."""
    return {
        (name, size): {**changes, "gradient_bucket_mib": size}
        for size in arguments.bucket_mib
        for name, changes in WAYS.items()
        if arguments.wire or "gradient_wire" not in changes
    }


def _start(hosts: list[str], seconds: int) -> str:
    """Start a process on each host. What the first of them prints."""
    command = [sys.executable, "-m", "implementations.pytorch.bench.network", *sys.argv[1:], "--of-rank"]
    joining = {"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": str(PORT), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    started = [
        subprocess.Popen(
            [*WITHIN, host, *command],
            env={**os.environ, **joining, "GLOO_SOCKET_IFNAME": LINK, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in started]
    except subprocess.TimeoutExpired as error:
        raise WorkError(f"two processes were not done after {seconds} s; take fewer steps or a faster link") from error
    finally:
        for process in started:
            process.kill()
            process.wait()
    failed = [process.returncode for process in started if process.returncode]
    if failed:
        raise WorkError(f"a process ended with exit code {failed[0]}; what it printed is above")
    return outputs[0].strip()


def _measure(arguments: argparse.Namespace) -> None:
    settings = [
        "launch.processes_per_node=2",
        f"global_batch_size={2 * arguments.local_batch}",
        "gradient_wire=fp32",
        "seed=1",
    ]
    config = load_system("laptop", settings=settings)
    size = resized(config.model_size, arguments.layers, arguments.hidden)
    lengths = mixed_lengths(wikipedia_histogram(), arguments.steps * config.global_batch_size)
    with joined(config) as processes:
        sides = {
            way: Podium(config.model_copy(update=changes), processes, lengths, arguments.vocabulary, size)
            for way, changes in ways_of(arguments).items()
        }
        by_name = {f"{name}, {size:g} MiB": side for (name, size), side in sides.items()}
        times = time_in_turn(by_name, arguments.steps, processes.device)
        reached = _gigabits()
    if not processes.first:
        return
    parameters = sum(parameter.numel() for parameter in next(iter(sides.values())).stepper.model.parameters())
    found = {
        "rate": arguments.rate,
        "delay": arguments.delay,
        "reached_gigabits": reached,
        "steps": arguments.steps,
        "gradient_mib": 4 * parameters / 2**20,
        "ways": [_found(way, sides, times, arguments.steps) for way in sides],
    }
    print(json.dumps(found, indent=2))


def _gigabits() -> float:
    """Gbit/s that the fastest of some all-reduces sends in each direction: of two ranks each sends all bytes once."""
    values = torch.ones(REACHED_BYTES // 4)
    seconds = []
    for _ in range(REACHED_TRIES):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - started)
        values.fill_(1)
    return 8 * REACHED_BYTES / min(seconds) / 1e9


def _found(
    way: tuple[str, float], sides: Mapping[tuple[str, float], Podium], times: Mapping[str, Times], steps: int
) -> dict[str, Any]:
    """A way's times, alone and in those of `after` with buckets of the same size."""
    name, size = way
    own, after = times[f"{name}, {size:g} MiB"], times[f"after, {size:g} MiB"]
    return {
        "clipping": name,
        "bucket_mib": size,
        "milliseconds": own.milliseconds,
        "times_after": own.total / after.total,
        "times_after_by_step": own.ratios(after),
        "phases_ms": {phase: 1000 * s / steps for phase, s in sides[way].clock.seconds.items()},
        "buckets": sides[way].stepper.sync.buckets or None,
    }


if __name__ == "__main__":
    sys.exit(main())
