"""Checks of GPUs, memory and load of this machine, as the kernel reports them, and of communication between ranks."""

import re
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.config.schema import is_stated
from podium.core.finding import Finding, Severity, check_result
from podium.core.machine import MAX_OTHER_LOAD, OtherLoad
from podium.core.processes import processors
from podium.doctor.context import DiagnosticContext

GIB = 2**30
STATE_BYTES = 16  # per parameter on its device: weight, gradient and two moments of the optimizer, in float32
# Per token, layer and hidden unit with 16-bit activations, without attention matrices, which are not stored
# (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198).
ACTIVATION_BYTES = 34
MEAN_TOKENS = 254.5  # of a sample of Wikipedia; a padded one has 512
MAX_USED_BYTES = GIB  # more than the driver and an empty context use of a GPU
# Bus bandwidth in bytes/s by device and whether there are several nodes: half of PCIe 4 × 16, of 100 Gb/s between
# nodes, or of gigabit Ethernet. A lower value indicates a wrong path, such as TCP sockets in place of InfiniBand.
MIN_BANDWIDTH = {("cpu", False): 0.1e9, ("cpu", True): 0.05e9, ("cuda", False): 10e9, ("cuda", True): 5e9}
MIN_RELATIVE_SPEED = 0.8  # of a rank's speed to the median rank's
GPU_MODEL = re.compile(r"(?!sxm)[a-z]{1,3}[0-9]+[a-z]*")  # such as a100, but not the form factor sxm4
CLOCK_SECONDS, CLOCK_FAULT_SECONDS = 0.1, 10.0


def check_implementation(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether the implementation's processes start and initialize their process group."""
    advice = "fix the reported error: a run would end with it"
    if context.device is None:
        yield Finding("device", "error", context.device_fault, "a process that can use it", advice)
    if context.ranks is None:
        yield Finding("ranks", "error", context.ranks_fault, "a process group of all ranks", advice)


def check_gpus(context: DiagnosticContext) -> Iterable[Finding]:
    """Number and model of the GPUs, compared with the processes to start and the description."""
    config, described = context.config, context.config.description
    if context.device is None:
        return
    if not context.cuda:
        if described.accelerators_per_node.strip() not in ("0", ""):
            found = f"launch.device is cpu, description.accelerators_per_node is {described.accelerators_per_node}"
            yield Finding("GPUs", "error", found, "a description of what is used", "write 0, or use device cuda")
        else:
            yield Finding("GPUs", "ok", "none used", "none")
        return
    gpus: list[dict[str, Any]] = context.device["gpus"]
    processes = config.launch.processes_per_node
    wanted = f"{processes} for launch.processes_per_node"
    advice = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or set launch.processes_per_node to the number of GPUs"
    yield check_result("GPUs", len(gpus) >= processes, f"{len(gpus)} visible", wanted, advice)
    if described.accelerators_per_node.strip() != str(processes):
        found = f"description.accelerators_per_node is {described.accelerators_per_node}"
        yield Finding("GPUs described", "error", found, f"{processes}, as are used", "describe what is used")
    names = sorted({gpu["name"] for gpu in gpus})
    model = described.accelerator_model_name
    other = [name for name in names if not _same_model(model, name)]
    if names and not is_stated(model):
        yield Finding("GPU model", "ok", ", ".join(names), "any; description.accelerator_model_name is not stated")
    elif other:
        found = f"{', '.join(other)}; description.accelerator_model_name is {model}"
        yield Finding("GPU model", "error", found, "the one described", "describe the GPU that is used")
    elif names:
        yield Finding("GPU model", "ok", ", ".join(names), model)
    used = [g["total_bytes"] - g["free_bytes"] for g in gpus[:processes]]
    if used and max(used) > MAX_USED_BYTES:
        found = f"{max(used) / GIB:.1f} GiB of GPU {used.index(max(used))} are in use"
        yield Finding("GPUs free", "error", found, "no other process on them", "see nvidia-smi; end what runs there")


def check_memory(context: DiagnosticContext) -> Iterable[Finding]:
    """Memory for weights, gradients and optimizer state, and an estimate for activations."""
    config, launch = context.config, context.config.launch
    state = STATE_BYTES * config.model_size.parameters(config.model_size.vocabulary_size)
    tokens = SEQUENCE_LENGTH if config.balancing == "padded" else MEAN_TOKENS
    samples = config.local_batch_size // config.gradient_accumulation_steps
    bytes_per_value = 2 if config.precision == "fp32" or not context.cuda else 1
    size = config.model_size
    activations = ACTIVATION_BYTES * bytes_per_value * samples * tokens * size.hidden * size.layers
    if context.cuda:
        gpus = context.device["gpus"] if context.device else []
        if not gpus:
            return
        available, sharing, where = min(gpu["free_bytes"] for gpu in gpus), 1, "of the GPU with the least"
    elif "memory" in context.machine:
        available, sharing, where = context.machine["memory"], launch.processes_per_node, "of this machine"
    else:
        return
    wanted = f"{sharing * state / GIB:.1f} GiB, with activations about {sharing * (state + activations) / GIB:.1f} GiB"
    found = f"{available / GIB:,.1f} GiB {where}"
    advice = "use a smaller global_batch_size or more gradient_accumulation_steps, or end other users of memory"
    if available < sharing * state:
        yield Finding("memory", "error", found, wanted, advice)
    else:
        yield check_result("memory", available >= sharing * (state + activations), found, wanted, advice, "warning")


def check_load(context: DiagnosticContext) -> Iterable[Finding]:
    """Other load on this machine's processors."""
    busy = context.machine.get("busy")
    if busy is not None:
        found = f"other processes use {busy:.0%} of {context.machine['processors']:.0f} processors"
        advice = "end other processes, else measured times are meaningless"
        yield check_result(
            "other load", busy <= MAX_OTHER_LOAD, found, f"at most {MAX_OTHER_LOAD:.0%}", advice, "warning"
        )


def check_capabilities(context: DiagnosticContext) -> Iterable[Finding]:
    """Capabilities of the device that the recipe needs; the last is a training step of a model with one layer."""
    for capability in context.device["possible"] if context.device else ():
        wanted = str(getattr(context.config, capability["what"], "one step of one layer"))
        found, why_not = capability["found"], capability["why_not"]
        advice = "choose a value that this device supports, with --set or in the system file"
        yield check_result(capability["what"].replace("_", " "), why_not is None, why_not or found, wanted, advice)


def check_ranks(context: DiagnosticContext) -> Iterable[Finding]:
    """Number of ranks and nodes, equal versions and devices, and equal speed; nodes on one host are a warning."""
    if context.ranks is None:
        return
    ranks, launch = context.ranks["ranks"], context.config.launch
    hosts = {rank["host"] for rank in ranks}
    good = len(ranks) == launch.ranks and len(hosts) == launch.nodes
    fault: Severity = "warning" if len(ranks) == launch.ranks and len(hosts) < launch.nodes else "error"
    found = f"{len(ranks)} on {', '.join(sorted(hosts))}"
    advice = "check that the launcher starts one set of processes on every node, and that all host names differ"
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
    slow = [r for r in ranks if r["matmul_flops"] < MIN_RELATIVE_SPEED * usual]
    found = f"median {usual / 1e12:.3g} TFLOP/s, the slowest {min(speeds) / usual:.0%} of that"
    if slow:
        found += f": rank {', '.join(str(r['rank']) for r in slow)} on {', '.join(sorted({r['host'] for r in slow}))}"
    advice = "all ranks wait for the slowest; see its clock rate, temperature and other processes there"
    wanted = f"at least {MIN_RELATIVE_SPEED:.0%} of the median"
    yield check_result("speed of ranks", not slow, found, wanted, advice, "warning")


def check_all_reduce(context: DiagnosticContext) -> Iterable[Finding]:
    """Correct sums and bandwidth of an all-reduce over all ranks."""
    if context.ranks is None or len(context.ranks["ranks"]) < 2:
        return
    found, launch = context.ranks["all_reduce"], context.config.launch
    name = f"{context.ranks['backend']} all-reduce"
    if not found["right"]:
        yield Finding(name, "error", "the sums are wrong", "exact sums", "see the log of the network's driver")
        return
    whole = found["gradient_bytes"] / found["bytes"] * found["seconds"]
    rate = f"{found['bus_bandwidth'] / 1e9:.2f} GB/s, all gradients in {1000 * whole:,.1f} ms"
    least = MIN_BANDWIDTH[launch.device, launch.nodes > 1]
    advice = (
        "check the path between the ranks: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA"
        if context.cuda
        else "check GLOO_SOCKET_IFNAME, and other load on the processors"
    )
    yield check_result(name, found["bus_bandwidth"] >= least, rate, f"{least / 1e9:g} GB/s", advice, "warning")


def check_clocks(context: DiagnosticContext) -> Iterable[Finding]:
    """Lower bound on the difference between the clocks of rank 0 and any other rank."""
    if context.ranks is None or len(context.ranks["ranks"]) < 2:
        return
    worst = max(context.ranks["ranks"], key=lambda rank: float(rank["clock_seconds_certain"]))
    apart = worst["clock_seconds_certain"]
    found = f"{apart:.3g} s or more between rank 0 and rank {worst['rank']} on {worst['host']}" if apart else "alike"
    fault: Severity = "error" if apart > CLOCK_FAULT_SECONDS else "warning"
    advice = "set the nodes' clocks by NTP or chrony; logs of several nodes cannot be put in order otherwise"
    yield check_result("clocks", apart <= CLOCK_SECONDS, found, f"within {CLOCK_SECONDS:g} s", advice, fault)


def _same_model(described: str, found: str) -> bool:
    """Whether a described model, such as A100, is in the driver's name, such as NVIDIA A100-SXM4-80GB."""
    models = [part for part in _name_parts(described) if GPU_MODEL.fullmatch(part)]
    return (
        models[0] in _name_parts(found) if models else " ".join(_name_parts(described)) == " ".join(_name_parts(found))
    )


def _name_parts(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


MEMORY, CGROUP_MEMORY = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
LOAD_SECONDS = 0.5


def measure_machine() -> dict[str, float]:
    """Measure `busy` share and number of `processors`, available `memory` in bytes, and `limit` of open files.

    `busy` and `memory` are left out if the kernel does not report them.
    """
    found: dict[str, float] = {"processors": processors(), "limit": _open_files()}
    load = OtherLoad()
    time.sleep(LOAD_SECONDS)
    if (busy := load.share()) is not None:
        found["busy"] = busy
    with suppress(OSError, ValueError, KeyError):
        found["memory"] = _available_memory()
    return found


def memory_bytes(meminfo: Path, key: str) -> int:
    """Bytes that /proc/meminfo reports under a key such as MemTotal."""
    lines = dict(line.split(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    return 1024 * int(lines[key].split()[0])


def _available_memory() -> int:
    """Bytes of memory available without swapping, at most the container's limit."""
    available = memory_bytes(MEMORY, "MemAvailable")
    with suppress(OSError, ValueError):  # ValueError: "max"
        available = min(available, int(CGROUP_MEMORY.read_text(encoding="ascii")))
    return available


def _open_files() -> float:
    """Hard limit of open files, up to which a process may raise its soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)
