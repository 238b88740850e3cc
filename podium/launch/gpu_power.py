"""Energy of the GPUs of a run: power sampled by nvidia-smi on each node, integrated from run_start to run_stop.

nvidia-smi runs as one process beside the ranks, and reads the power of the GPUs that they use once a second. Its lines
are in the run's folder, `power_N.csv` for node N. The energy is of the GPUs only, without hosts and network, and not a
measurement by MLPerf's power rules.
"""

import calendar
import csv
import os
import shutil
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.files import open_regular

PROGRAM = "nvidia-smi"
INTERVAL_MS = 1000
MAX_GAP_SECONDS = 10.0  # between two samples of a GPU; with a longer gap the energy is not known
MAX_BYTES = 256 << 20  # of a node's file: 8 GPUs for a week have 200 MB
TIME_FORMAT = "%Y/%m/%d %H:%M:%S"
METHOD = f"sum of nvidia-smi's power.draw of the run's GPUs, every {INTERVAL_MS / 1000:g} s, from run_start to run_stop"


def power_file(folder: RunFolder, node: int) -> Path:
    return folder.path / f"power_{node}.csv"


def power_command(config: RunConfig, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The nvidia-smi command that samples the GPUs of this node's ranks; None without GPUs or nvidia-smi."""
    if config.launch.device != "cuda" or shutil.which(PROGRAM, path=environment.get("PATH")) is None:
        return None
    count = config.launch.processes_per_node
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if any(name.startswith("MIG") for name in visible):
        return None  # a part of a GPU, whose power is not measured
    gpus = (visible or [str(number) for number in range(count)])[:count]
    return [
        *(PROGRAM, f"--id={','.join(gpus)}", "--query-gpu=timestamp,uuid,power.draw"),
        *("--format=csv,noheader,nounits", f"--loop-ms={INTERVAL_MS}"),
    ]


@contextmanager
def sampled_power(config: RunConfig, folder: RunFolder, node: int) -> Iterator[None]:
    """Sample the power of this node's GPUs during the block, where nvidia-smi is available."""
    argv = power_command(config)
    if argv is None:
        yield
        return
    process: subprocess.Popen[bytes] | None = None
    with suppress(OSError), power_file(folder, node).open("ab") as file:
        # TZ: the times are those of the log, which counts seconds since 1970.
        process = subprocess.Popen(
            argv, stdout=file, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=os.environ | {"TZ": "UTC"}
        )
    try:
        yield
    finally:
        if process is not None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


Samples = Mapping[str, Sequence[tuple[float, float]]]  # seconds since 1970 and watts, by GPU


def read_power(path: Path) -> Samples:
    """Read a node's samples; lines of another form, such as those of a GPU without a sensor, are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES).decode("ascii", errors="replace")
    except OSError:
        return found
    for row in csv.reader(content.splitlines()):
        with suppress(ValueError):
            when, gpu, watts = (cell.strip() for cell in row)
            whole, _, thousandths = when.partition(".")
            seconds = _seconds(whole) + float(f"0.{thousandths or 0}")
            if 0 <= float(watts) < 1e5:
                found.setdefault(gpu, []).append((seconds, float(watts)))
    return found


def _seconds(text: str) -> int:
    return calendar.timegm(time.strptime(text, TIME_FORMAT))


def integrate(samples: Sequence[tuple[float, float]], start: float, stop: float) -> float | None:
    """Joules between two times by the trapezoidal rule; None if samples do not cover them, or have a gap."""
    times = [when for when, _ in samples]
    if stop <= start or any(later < earlier for earlier, later in pairwise(times)):
        return None
    if not times or times[0] - start > MAX_GAP_SECONDS or stop - times[-1] > MAX_GAP_SECONDS:
        return None
    inside = [sample for sample in samples if start < sample[0] < stop]
    points = [(start, _at(samples, start)), *inside, (stop, _at(samples, stop))]
    if any(b[0] - a[0] > MAX_GAP_SECONDS for a, b in pairwise(points)):
        return None
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def _at(samples: Sequence[tuple[float, float]], when: float) -> float:
    """The power at a time, interpolated; outside of the samples that of the nearest."""
    place = bisect_left(samples, (when, 0.0))
    if place == 0:
        return samples[0][1]
    if place == len(samples):
        return samples[-1][1]
    (before, low), (after, high) = samples[place - 1], samples[place]
    return low + (high - low) * (when - before) / ((after - before) or 1.0)


@dataclass(frozen=True)
class Energy:
    """Energy of a run's GPUs."""

    joules: float
    gpus: int

    def as_json(self) -> dict[str, object]:
        """The keys of summary.json."""
        return {"energy_joules": self.joules, "energy_gpus": self.gpus, "energy_method": METHOD}


def run_energy(config: RunConfig, folder: RunFolder, start: float, stop: float) -> Energy | None:
    """Energy between two times, in seconds since 1970; None unless it is known for every GPU of every node."""
    joules, gpus = 0.0, 0
    for node in range(config.launch.nodes):
        samples = read_power(power_file(folder, node))
        if len(samples) != config.launch.processes_per_node:
            return None
        for one in samples.values():
            energy = integrate(one, start, stop)
            if energy is None:
                return None
            joules, gpus = joules + energy, gpus + 1
    return Energy(joules, gpus)
