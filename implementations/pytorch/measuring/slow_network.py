"""Two hosts on one machine: network namespaces joined by a link of a given rate and delay (Linux, as root).

The rate is kept by the kernel's token bucket filter, which most kernels have; a delay needs its network emulator.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.errors import PodiumError, UsageError, WorkError

LINK = "podium0"
TOKEN_BUCKET = ("burst", "256kb", "latency", "400ms")
QUEUED_PACKETS = 10_000


@dataclass(frozen=True)
class Host:
    """One end of the link."""

    address: str
    command: tuple[str, ...]
    """What a command is put after to run there."""


@contextmanager
def two_hosts(rate: str, delay: str | None = None) -> Iterator[tuple[Host, Host]]:
    """Both ends send at `rate` at most and each packet arrives `delay` later, both in tc's words ("400mbit", "1ms");
    without a delay as soon as it is sent.

    Raises UsageError where this machine does not allow that. Hosts and link are gone afterwards.
    """
    if os.geteuid() != 0:
        raise UsageError("two hosts on one machine: found no root rights; run this as root")
    names = [f"podium-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        first, second = (("ip", "-n", name) for name in names)
        _run(*first, "link", "add", "name", LINK, "type", "veth", "peer", "name", LINK, "netns", names[1])
        hosts = []
        for number, (name, ip) in enumerate(zip(names, (first, second), strict=True), start=1):
            address = f"10.77.0.{number}"
            _run(*ip, "address", "add", f"{address}/24", "dev", LINK)
            _run(*ip, "link", "set", LINK, "up")
            _run(*ip, "link", "set", "lo", "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", LINK, "root", *_shape(rate, delay))
            hosts.append(Host(address, ("ip", "netns", "exec", name)))
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            with suppress(PodiumError):
                _run("ip", "netns", "delete", name)


def _shape(rate: str, delay: str | None) -> tuple[str, ...]:
    if delay is None:
        return ("tbf", "rate", rate, *TOKEN_BUCKET)
    return ("netem", "rate", rate, "delay", delay, "limit", str(QUEUED_PACKETS))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: not found; install iproute2") from error
    if done.returncode:
        raise WorkError(f"{' '.join(command)}: {done.stderr.strip()}; this machine does not allow two hosts on it")
