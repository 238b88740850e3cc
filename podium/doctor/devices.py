"""Checks of GPUs, memory and load of this machine, as the kernel reports them, and of communication between ranks."""

import os
import re
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.core.finding import Finding, Severity, check_result
from podium.core.processes import processors
from podium.doctor.context import Examination

GIB = 2**30
STATE_BYTES = 16  # of a parameter on its device: itself, its gradient and two moments of the optimizer, in float32
# Of a token, layer and hidden unit with 16-bit activations, attention matrices left out since they are not kept
# (Korthikanti et al., Reducing activation recomputation, arXiv 2205.05198).
ACTIVATION_BYTES = 34
USUAL_TOKENS = 254.5  # of a sample of Wikipedia; a padded one has 512
FOREIGN_BYTES = GIB  # more than a driver and a bare context take of a GPU
BUSY = 0.1
# Bytes/s on the bus by device and whether nodes are crossed: half of what PCIe 4 × 16, 100 Gb/s between nodes or a
# gigabit Ethernet give. Less says that a wrong way is taken, such as TCP sockets where there is InfiniBand.
LEAST_BANDWIDTH = {("cpu", False): 0.1e9, ("cpu", True): 0.05e9, ("cuda", False): 10e9, ("cuda", True): 5e9}
SLOWEST = 0.8  # share of the median rank's speed
MODEL = re.compile(r"(?!sxm)[a-z]{1,3}[0-9]+[a-z]*")  # how a GPU's model is written
CLOCK_SECONDS, CLOCK_FAULT_SECONDS = 0.1, 10.0


def check_implementation(examination: Examination) -> Iterable[Finding]:
    """Whether its processes start at all."""
    advice = "mend what the sentence says; it is what a run would end with"
    if examination.device is None:
        yield Finding("device", "error", examination.device_fault, "a process that sees it", advice)
    if examination.ranks is None:
        yield Finding("ranks", "error", examination.ranks_fault, "all of them meet", advice)


def check_gpus(examination: Examination) -> Iterable[Finding]:
    """How many there are and what they are called, against what is started and what is described."""
    config, described = examination.config, examination.config.description
    if examination.device is None:
        return
    if not examination.cuda:
        if described.accelerators_per_node.strip() not in ("0", ""):
            found = f"launch.device is cpu, description.accelerators_per_node is {described.accelerators_per_node}"
            yield Finding("GPUs", "error", found, "a description of what is used", "write 0, or use device cuda")
        else:
            yield Finding("GPUs", "ok", "none used", "none")
        return
    gpus: list[dict[str, Any]] = examination.device["gpus"]
    processes = config.launch.processes_per_node
    wanted = f"{processes} for launch.processes_per_node"
    advice = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or set launch.processes_per_node to what is there"
    yield check_result("GPUs", len(gpus) >= processes, f"{len(gpus)} visible", wanted, advice)
    if described.accelerators_per_node.strip() != str(processes):
        found = f"description.accelerators_per_node is {described.accelerators_per_node}"
        yield Finding("GPUs described", "error", found, f"{processes}, as are used", "describe what is used")
    names = sorted({gpu["name"] for gpu in gpus})
    other = [name for name in names if not _alike(described.accelerator_model_name, name)]
    if other:
        found = f"{', '.join(other)}; description.accelerator_model_name is {described.accelerator_model_name}"
        yield Finding("GPU model", "error", found, "the one described", "describe the GPU that is used")
    elif names:
        yield Finding("GPU model", "ok", ", ".join(names), described.accelerator_model_name)
    used = [g["total_bytes"] - g["free_bytes"] for g in gpus[:processes]]
    if used and max(used) > FOREIGN_BYTES:
        found = f"{max(used) / GIB:.1f} GiB of GPU {used.index(max(used))} are in use"
        yield Finding("GPUs free", "error", found, "nobody else on them", "see nvidia-smi; end what runs there")


def check_memory(examination: Examination) -> Iterable[Finding]:
    """Room for weights, gradients and optimizer, and by a formula for activations, which is an estimate."""
    config, launch = examination.config, examination.config.launch
    state = STATE_BYTES * config.model_size.parameters(config.model_size.vocabulary_size)
    tokens = SEQUENCE_LENGTH if config.balancing == "padded" else USUAL_TOKENS
    samples = config.local_batch_size // config.gradient_accumulation_steps
    bytes_a_value = 2 if config.precision == "fp32" or not examination.cuda else 1
    size = config.model_size
    activations = ACTIVATION_BYTES * bytes_a_value * samples * tokens * size.hidden * size.layers
    if examination.cuda:
        gpus = examination.device["gpus"] if examination.device else []
        if not gpus:
            return
        there, sharing, where = min(gpu["free_bytes"] for gpu in gpus), 1, "of the GPU with least"
    elif "memory" in examination.machine:
        there, sharing, where = examination.machine["memory"], launch.processes_per_node, "of this machine"
    else:
        return
    wanted = f"{sharing * state / GIB:.1f} GiB, with activations about {sharing * (state + activations) / GIB:.1f} GiB"
    found = f"{there / GIB:,.1f} GiB {where}"
    advice = "use a smaller global_batch_size or more gradient_accumulation_steps, or end what else takes memory"
    if there < sharing * state:
        yield Finding("memory", "error", found, wanted, advice)
    else:
        yield check_result("memory", there >= sharing * (state + activations), found, wanted, advice, "warning")


def check_load(examination: Examination) -> Iterable[Finding]:
    """What else runs on this machine's processors."""
    busy = examination.machine.get("busy")
    if busy is not None:
        found = f"others use {busy:.0%} of {examination.machine['processors']:.0f} processors"
        advice = "end what else runs, else times mean nothing"
        yield check_result("other load", busy <= BUSY, found, f"at most {BUSY:.0%}", advice, "warning")


def check_possible(examination: Examination) -> Iterable[Finding]:
    """What the recipe asks of the device; the last is a whole training step of one layer."""
    for asked in examination.device["possible"] if examination.device else ():
        wanted = str(getattr(examination.config, asked["what"], "one step of one layer"))
        found, why_not = asked["found"], asked["why_not"]
        advice = "choose what this device has with --set or in the system's file"
        yield check_result(asked["what"].replace("_", " "), why_not is None, why_not or found, wanted, advice)


def check_ranks(examination: Examination) -> Iterable[Finding]:
    """As many as configured, on as many nodes, all alike and equally fast; nodes that share a host are a warning."""
    if examination.ranks is None:
        return
    ranks, launch = examination.ranks["ranks"], examination.config.launch
    hosts = {rank["host"] for rank in ranks}
    good = len(ranks) == launch.ranks and len(hosts) == launch.nodes
    fault: Severity = "warning" if len(ranks) == launch.ranks and len(hosts) < launch.nodes else "error"
    found = f"{len(ranks)} on {', '.join(sorted(hosts))}"
    advice = "see that the launcher starts one set of processes on every node, and that hosts have names of their own"
    wanted = f"{launch.ranks} on {launch.nodes} node{'s' if launch.nodes > 1 else ''}"
    yield check_result("ranks", good, found, wanted, advice, fault)
    for what in ("python", "torch", "device"):
        kinds = sorted({rank[what] for rank in ranks})
        if len(kinds) > 1:
            odd = [f"{rank['host']}: {rank[what]}" for rank in ranks if rank[what] != ranks[0][what]]
            found = f"{ranks[0]['host']}: {ranks[0][what]}, {', '.join(odd[:4])}"
            yield Finding(f"{what} of ranks", "error", found, "the same on all", "use one container or environment")
    speeds = [rank["matmul_flops"] for rank in ranks]
    usual = median(speeds)
    slow = [r for r in ranks if r["matmul_flops"] < SLOWEST * usual]
    found = f"{usual / 1e12:.3g} TFLOP/s, the slowest {min(speeds) / usual:.0%} of that"
    if slow:
        found += f": rank {', '.join(str(r['rank']) for r in slow)} on {', '.join(sorted({r['host'] for r in slow}))}"
    advice = "all ranks wait for the slowest; see its clock rate, temperature and what else runs there"
    yield check_result("speed of ranks", not slow, found, f"at least {SLOWEST:.0%} of the median", advice, "warning")


def check_all_reduce(examination: Examination) -> Iterable[Finding]:
    """Whether it adds up, and how fast."""
    if examination.ranks is None or len(examination.ranks["ranks"]) < 2:
        return
    found, launch = examination.ranks["all_reduce"], examination.config.launch
    name = f"{examination.ranks['backend']} all-reduce"
    if not found["right"]:
        yield Finding(name, "error", "the sums are wrong", "exact sums", "see the network's driver and its log")
        return
    whole = found["gradient_bytes"] / found["bytes"] * found["seconds"]
    words = f"{found['bus_bandwidth'] / 1e9:.2f} GB/s, all gradients in {1000 * whole:,.1f} ms"
    least = LEAST_BANDWIDTH[launch.device, launch.nodes > 1]
    advice = (
        "see which way is taken: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA"
        if examination.cuda
        else "see GLOO_SOCKET_IFNAME, and what else uses the processors"
    )
    yield check_result(name, found["bus_bandwidth"] >= least, words, f"{least / 1e9:g} GB/s", advice, "warning")


def check_clocks(examination: Examination) -> Iterable[Finding]:
    """How far any rank's clock is at least from rank 0's."""
    if examination.ranks is None or len(examination.ranks["ranks"]) < 2:
        return
    worst = max(examination.ranks["ranks"], key=lambda rank: float(rank["clock_seconds_certain"]))
    apart = worst["clock_seconds_certain"]
    found = f"{apart:.3g} s or more between rank 0 and rank {worst['rank']} on {worst['host']}" if apart else "alike"
    fault: Severity = "error" if apart > CLOCK_FAULT_SECONDS else "warning"
    advice = "set the nodes' clocks by NTP or chrony; logs of several nodes cannot be put in order otherwise"
    yield check_result("clocks", apart <= CLOCK_SECONDS, found, f"within {CLOCK_SECONDS:g} s", advice, fault)


def _alike(described: str, found: str) -> bool:
    """Whether the model of a description, such as A100, is in the driver's name: NVIDIA A100-SXM4-80GB."""
    models = [word for word in _words(described) if MODEL.fullmatch(word)]
    return models[0] in _words(found) if models else " ".join(_words(described)) == " ".join(_words(found))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


STAT, MEMORY, CGROUP_MEMORY = Path("/proc/stat"), Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
SECONDS = 0.5
IDLE = (3, 4)  # the columns of /proc/stat in which a processor waits: idle and iowait


def machine() -> dict[str, float]:
    """`busy` share of our processors, `processors`, `memory` available in bytes, `limit` of open files, where known."""
    found: dict[str, float] = {"processors": processors(), "limit": _open_files()}
    with suppress(OSError, ValueError, IndexError):
        found["busy"] = busy_share(SECONDS)
    with suppress(OSError, ValueError, KeyError):
        found["memory"] = _available_memory()
    return found


def busy_share(seconds: float) -> float:
    """Share of the time that the processors of this process were busy, while it slept for so long."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    total = sum(a[0] - b[0] for a, b in zip(after, before, strict=True))
    idle = sum(a[1] - b[1] for a, b in zip(after, before, strict=True))
    return 1 - idle / total if total else 0.0


def _jiffies() -> list[tuple[int, int]]:
    """All and idle time of each processor that this process may use."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
    counts = [[int(count) for count in fields[1:9]] for fields in lines if fields[0] in ours]
    return [(sum(times), sum(times[column] for column in IDLE)) for times in counts]


def memory_bytes(meminfo: Path, key: str) -> int:
    """What /proc/meminfo reports under a key such as MemTotal."""
    lines = dict(line.split(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    return 1024 * int(lines[key].split()[0])


def _available_memory() -> int:
    """Bytes that can be had without swapping, no more than a container's limit."""
    available = memory_bytes(MEMORY, "MemAvailable")
    with suppress(OSError, ValueError):  # ValueError: "max"
        available = min(available, int(CGROUP_MEMORY.read_text(encoding="ascii")))
    return available


def _open_files() -> float:
    """Files that a process may have open, once it has raised its own limit as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)
