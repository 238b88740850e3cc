"""`podium submit describe`: write MLPerf's JSON of a system, and compare its fields with the detected hardware.

Hardware and software of this machine are detected as values of MLPerf's fields. Two values are compared with regard to
how a field is usually written: "AMD EPYC 7742" equals "AMD EPYC 7742 64-Core Processor", "2 TB" equals 2,015 GB, "48"
differs from 64.
"""

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from podium.config.schema import MAY_BE_EMPTY, Description, RunConfig, is_stated
from podium.core.errors import PodiumError, UsageError
from podium.core.files import open_regular
from podium.core.json_files import parse_json
from podium.doctor.accelerators import query_nvidia_smi
from podium.doctor.devices import MEMORY, memory_bytes
from podium.planning.accelerators import find_accelerator
from podium.run.records import runs_of_system
from podium.submission.checks.systems import FIELDS

CPUINFO, CPUS, RELEASE = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu"), Path("/etc/os-release")
GIB = 2**30
SMI_FIELDS = ("driver_version", "clocks.max.sm")
MAX_READ_RUNS = 40  # newest runs of a system
MAX_DESCRIPTION_BYTES = 1 << 20
# Keys that are in every description of a system and together in no other file.
IDENTIFYING_FIELDS = frozenset({"submitter", "division", "status", "system_name"})
CACHE_SUFFIXES = {"Data": "d", "Instruction": "i"}


@dataclass(frozen=True)
class Detected:
    """Detected fields of the description, and versions of the software below the framework by name."""

    fields: Mapping[str, str]
    software: Mapping[str, str] = field(default_factory=dict)


def detect(device: Mapping[str, Any] | None) -> Detected:
    """Detect this machine's fields and software; `device` is the implementation's report, None where it failed."""
    driver, clock = _query_nvidia_smi()
    fields = processor_fields(CPUINFO, CPUS) | {"host_processor_vcpu_count": str(os.cpu_count() or "")}
    with suppress(OSError, ValueError, KeyError):
        fields["host_memory_capacity"] = _format_capacity(memory_bytes(MEMORY, "MemTotal"))
    with suppress(OSError, KeyError):
        fields["operating_system"] = os_name(RELEASE)
    software = {"kernel": platform.release(), "python": platform.python_version()}
    if device is not None:
        fields |= {"framework": f"PyTorch {str(device['torch']).partition('+')[0]}"} | gpu_fields(device["gpus"])
        versions = {"cuda": device.get("cuda"), "cudnn": device.get("cudnn"), "nccl": device.get("nccl")}
        software |= {name: str(version) for name, version in versions.items() if version and device["gpus"]}
    if driver:
        software["cuda_driver"] = driver
    if clock and fields.get("accelerators_per_node", "0") != "0":
        fields["accelerator_frequency"] = clock
    return Detected({key: value for key, value in fields.items() if value}, software)


def processor_fields(cpuinfo: Path, cpus: Path) -> dict[str, str]:
    """Return sockets, model, cores per processor, maximum frequency and caches, where the kernel reports them."""
    found: dict[str, str] = {}
    with suppress(OSError):
        processors = _parse_cpuinfo(cpuinfo.read_text(encoding="utf-8", errors="replace"))
        models = {one["model name"] for one in processors if "model name" in one}
        if len(models) == 1:
            found["host_processor_model_name"] = models.pop()
        # A core is counted once for all its threads; some ARM kernels report no physical id at all.
        cores = {(one.get("physical id"), one.get("core id")) for one in processors if "physical id" in one}
        sockets = {socket for socket, _ in cores}
        if sockets:
            found["host_processors_per_node"] = str(len(sockets))
            found["host_processor_core_count"] = str(len(cores) // len(sockets))
    with suppress(OSError, ValueError):
        kilohertz = int((cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq").read_text(encoding="ascii"))
        found["host_processor_frequency"] = f"{kilohertz / 1e6:.2f} GHz"
    caches = _format_caches(cpus / "cpu0" / "cache")
    return found | ({"host_processor_caches": caches} if caches else {})


def os_name(release: Path) -> str:
    """Return the operating system's name and version, such as Ubuntu 24.04.1 LTS."""
    lines = (line.partition("=") for line in release.read_text(encoding="utf-8").splitlines())
    return {key: value.strip("\"' ") for key, _, value in lines}["PRETTY_NAME"]


def gpu_fields(gpus: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return number, model and memory of the GPUs; model and memory only if all GPUs have the same model."""
    found = {"accelerators_per_node": str(len(gpus))}
    if len({gpu["name"] for gpu in gpus}) == 1:
        found["accelerator_model_name"] = str(gpus[0]["name"])
        found["accelerator_memory_capacity"] = _format_capacity(min(int(gpu["total_bytes"]) for gpu in gpus))
    return found


def _parse_cpuinfo(text: str) -> list[dict[str, str]]:
    blocks = (block.splitlines() for block in text.strip().split("\n\n"))
    return [{k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block)} for block in blocks]


def _format_caches(folder: Path) -> str:
    """Return the caches of the first core, such as L1d 48 KiB, L2 1 MiB, L3 32 MiB."""
    names = []
    for index in sorted(folder.glob("index[0-9]*")):
        with suppress(OSError, ValueError):
            texts = ((index / name).read_text(encoding="ascii") for name in ("level", "type", "size"))
            level, kind, size = map(str.strip, texts)
            kibibytes = int(size.removesuffix("K"))
            amount = f"{kibibytes // 1024} MiB" if kibibytes % 1024 == 0 else f"{kibibytes} KiB"
            names.append(f"L{level}{CACHE_SUFFIXES.get(kind, '')} {amount}")
    return ", ".join(names)


def _query_nvidia_smi() -> tuple[str, str]:
    """Return the driver's version and the maximum clock rate of the first GPU; empty where nvidia-smi has none."""
    rows = query_nvidia_smi(SMI_FIELDS)
    match = re.match(r"([\d.]+),(\d+)$", ",".join(rows[0]) if rows else "")
    if match is None:
        return "", ""
    return match[1], f"{int(match[2])} MHz"


def _format_capacity(size: int) -> str:
    """Return bytes as memory is sold: in GiB, written as GB."""
    return f"{size / GIB:.0f} GB"


Verdict = Literal[
    "same",
    "differs",
    "not stated",
    "not detected",
    "not checked: needs all nodes",
    "not checked: this machine is not one of its nodes",
]
NEEDS_ALL_NODES: Verdict = "not checked: needs all nodes"
NOT_A_NODE: Verdict = "not checked: this machine is not one of its nodes"
# Fields of a system of several nodes that one of them does not show.
FIELDS_OF_ALL_NODES = ("number_of_nodes", "host_networking_topology")
# Stated accelerators are compared on any machine: they show that it is not a node.
FIELDS_OF_ACCELERATORS = ("accelerators_per_node", "accelerator_model_name")
SIZE_TOLERANCE = 0.12  # between memory as it is sold, such as 2 TB, and the part that the kernel reports
CLOCK_TOLERANCE = 0.02
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SIZE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*([kmgt])(?:i?b|hz)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One field of the description, or one part of its software stack."""

    name: str
    stated: str
    detected: str  # empty where it cannot be detected on this machine
    verdict: Verdict


def system_json(description: Mapping[str, str]) -> str:
    """Return the content of systems/NAME.json: MLPerf's 33 fields in MLPerf's order, all of them text."""
    assert tuple(description) == FIELDS and all(isinstance(value, str) for value in description.values())
    return json.dumps(description, indent=4, ensure_ascii=False) + "\n"


def require_description_or_no_file(path: Path) -> None:
    """Raise UsageError if the file exists and is no system's description, so that no other file is overwritten."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_DESCRIPTION_BYTES)
    except OSError:  # no such file, or a device or pipe; if it is unreadable, writing it reports the error
        return
    try:
        document = parse_json(content)
    except ValueError:
        document = None
    if content and not (isinstance(document, dict) and document.keys() >= IDENTIFYING_FIELDS):
        raise UsageError(
            f"--out {path}: exists and is not a JSON object with MLPerf's description of a system; remove it, or give "
            "another path"
        )


def stated(config: RunConfig) -> dict[str, str]:
    """Return the description in the system file, by MLPerf's names and in MLPerf's order."""
    return config.description.model_dump(by_alias=True)


def require_complete(path: str, description: Mapping[str, str]) -> None:
    """Raise UsageError with the names of all fields that a submission needs and a system's file lacks."""
    missing = Description.model_validate(description).missing_fields()
    if missing:
        raise UsageError(
            f"{path}: description lacks {len(missing)} of the {len(FIELDS)} fields that MLPerf requires for a "
            f"submission: {', '.join(missing)}; add them under description: (`podium submit describe {path} --fill` "
            "prints those that it detects on a node of the system; write `not stated` where nothing can be stated)"
        )


def compare(config: RunConfig, detected: Detected, ran_on_nodes: int | None = None) -> list[Field]:
    """Compare every field of the description, then every detected software version, with the system file.

    `ran_on_nodes` is the number of nodes of a finished run of the system, None without one. Where the launch has
    several nodes and none of its runs is known, fields that one machine does not show are not checked. On a machine
    that has other accelerators than the described ones only these are compared.
    """
    nodes = config.launch.nodes
    is_node = not has_other_accelerators(config, detected)
    found = dict(detected.fields) | {"number_of_nodes": str(ran_on_nodes or nodes)}
    if config.launch.device == "cpu":
        # GPUs that the launch does not use are not part of the described system.
        found = {key: value for key, value in found.items() if not key.startswith("accelerator")}
        found["accelerators_per_node"] = "0"
    fields = [_compare_field(name, text, found.get(name, "")) for name, text in stated(config).items()]
    if nodes > 1:
        fields = [_without_other_nodes(one, ran_on_nodes is not None) for one in fields]
    if not is_node:
        fields = [_on_other_machine(one) for one in fields]
    stack = config.description.other_software_stack
    software = [
        Field(
            f"other_software_stack: {name}",
            _find_version(stack, name) or "",
            version,
            _software_verdict(stack, name, version),
        )
        for name, version in detected.software.items()
    ]
    return fields + (software if is_node else [_on_other_machine(one) for one in software])


def has_other_accelerators(config: RunConfig, detected: Detected) -> bool:
    """Whether this machine is evidently not a node of the system: the described accelerators are not in it.

    A machine with fewer or more of the described accelerators may be the node of a system that Slurm does not start.
    """
    number = detected.fields.get("accelerators_per_node")
    if config.launch.device == "cpu" or number is None:
        return False
    if number == "0":
        return True
    model, here = config.description.accelerator_model_name, detected.fields.get("accelerator_model_name", "")
    if is_stated(model) and here and not same_accelerator(model, here):
        return True
    return config.launch.launcher == "slurm" and number != str(config.launch.processes_per_node)


def _on_other_machine(one: Field) -> Field:
    """Return the field as on a machine that is not one of the system's nodes: without what is detected on it."""
    if not one.detected or one.name == "number_of_nodes":
        return one
    if one.verdict == "not stated":
        return replace(one, detected="")
    return one if one.name in FIELDS_OF_ACCELERATORS else replace(one, detected="", verdict=NOT_A_NODE)


def _without_other_nodes(one: Field, ran: bool) -> Field:
    """Return the field as one machine of several shows it; `ran` is whether the number of nodes is that of a run."""
    if one.name not in FIELDS_OF_ALL_NODES or one.verdict == "not stated":
        return one
    if one.name == "number_of_nodes" and (ran or one.verdict == "differs"):  # it contradicts the run, or launch.nodes
        return one
    return replace(one, detected="", verdict=NEEDS_ALL_NODES)


def nodes_of_runs(config: RunConfig, runs: Path) -> int | None:
    """Return the number of nodes of the system's newest finished run with this launch; None without one.

    `runs` is the folder with the runs of all systems.
    """
    for record in runs_of_system(runs / config.system)[: -MAX_READ_RUNS - 1 : -1]:
        if record.summary_number("seconds") is None or not record.configured:
            continue
        try:
            nodes = record.settings["launch"]["nodes"]
        except (PodiumError, KeyError, TypeError):  # written by another version
            continue
        if nodes == config.launch.nodes:
            return config.launch.nodes
    return None


def fill_description(config: RunConfig, fields: Sequence[Field]) -> tuple[dict[str, str], list[str]]:
    """Return the description with fields that are not stated filled from the detected ones, and the filled names."""
    description, filled_names = stated(config), []
    for one in fields:
        if one.verdict == "not stated" and one.detected and one.name in description:
            description[one.name] = one.detected
            filled_names.append(one.name)
    software = [one for one in fields if one.name not in description and one.verdict == "not stated" and one.detected]
    if software:
        parts = [f"{one.name.partition(': ')[2]}_version {one.detected}" for one in software]
        present = description["other_software_stack"]
        description["other_software_stack"] = ", ".join([*([present] if is_stated(present) else []), *parts])
        filled_names.append("other_software_stack")
    return description, filled_names


def differing_fields(fields: Sequence[Field]) -> list[Field]:
    return [one for one in fields if one.verdict == "differs"]


def as_json(description: Mapping[str, str], fields: Sequence[Field], filled_names: Sequence[str]) -> dict[str, Any]:
    """Return the result of `podium submit describe` as a JSON object."""
    rows = [{"field": f.name, "file": f.stated, "detected": f.detected, "verdict": f.verdict} for f in fields]
    return {"description": dict(description), "filled": list(filled_names), "fields": rows}


def _compare_field(name: str, text: str, found: str) -> Field:
    if not is_stated(text):
        may_be_empty = name in MAY_BE_EMPTY and not text.strip()
        return Field(name, text, found, "not detected" if may_be_empty and not found else "not stated")
    if not found:
        return Field(name, text, "", "not detected")
    return Field(name, text, found, "same" if COMPARISONS.get(name, same_text)(text, found) else "differs")


def same_number(text: str, found: str) -> bool:
    return text.strip().removesuffix(".0") == found


def same_words(text: str, found: str) -> bool:
    """Whether all words of one text are words of the other, ignoring case and trademark signs."""
    plain = (re.sub(r"\((r|tm|c)\)", " ", side.lower()) for side in (text, found))
    one, other = ({*re.findall(r"[a-z0-9.]+", side)} for side in plain)
    return bool(one and other) and (one <= other or other <= one)


def same_accelerator(text: str, found: str) -> bool:
    """Whether two names are of one model, such as "H200" and "NVIDIA H200"; memory and cooling are not compared."""
    kind = find_accelerator(text)
    return same_words(text, found) or (kind is not None and kind == find_accelerator(found))


def same_text(text: str, found: str) -> bool:
    return " ".join(text.lower().split()) == " ".join(found.lower().split())


def same_amount(text: str, found: str, tolerance: float) -> bool:
    """Whether the first amounts of memory, or clock rates, of both texts are equal within a relative tolerance."""
    one, other = next(_parse_amounts(text), None), next(_parse_amounts(found), None)
    return one is not None and other is not None and abs(one - other) <= tolerance * max(one, other)


same_size = partial(same_amount, tolerance=SIZE_TOLERANCE)
same_clock = partial(same_amount, tolerance=CLOCK_TOLERANCE)


def same_sizes(text: str, found: str) -> bool:
    """Whether every amount in `text` occurs in `found`; other text is ignored."""
    detected = list(_parse_amounts(found))
    amounts = list(_parse_amounts(text))
    return bool(amounts) and all(any(abs(a - b) <= CLOCK_TOLERANCE * b for b in detected) for a in amounts)


def same_framework(text: str, found: str) -> bool:
    """Whether `text` names the detected framework, and its version if it names one."""
    name, version = found.split(" ", 1)
    named = re.search(r"\d+\.\d+[\d.]*", text)
    return name.lower() in text.lower() and (named is None or f"{version}.".startswith(f"{named[0].rstrip('.')}."))


# How a field is compared with the detected value; all others by `same_text`.
COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "number_of_nodes": same_number,
    "host_processors_per_node": same_number,
    "host_processor_core_count": same_number,
    "host_processor_vcpu_count": same_number,
    "accelerators_per_node": same_number,
    "host_processor_model_name": same_words,
    "accelerator_model_name": same_words,
    "operating_system": same_words,
    "host_memory_capacity": same_size,
    "accelerator_memory_capacity": same_size,
    "host_processor_frequency": same_clock,
    "accelerator_frequency": same_clock,
    "host_processor_caches": same_sizes,
    "framework": same_framework,
}


def _software_verdict(stack: str, name: str, version: str) -> Verdict:
    """Return the verdict on one library: whether the text states its version, another one, or none."""
    version_stated = _find_version(stack, name)
    if version_stated is None:
        return "not stated"
    same = f"{version}.".startswith(f"{version_stated}.") or version_stated.startswith(f"{version}.")
    return "same" if same else "differs"


def _find_version(stack: str, name: str) -> str | None:
    """Return the version that a text gives for a name, as in "cuda_version 12.4" or "NCCL: 2.20.5"."""
    match = re.search(rf"(?<![a-z_]){name}(?:[ _]version)?[\s:=\"']+v?(\d[\w.+-]*)", stack, re.IGNORECASE)
    return match[1].rstrip(".") if match else None


def _parse_amounts(text: str) -> Iterator[float]:
    for number, unit in SIZE.findall(text):
        yield float(number.replace(",", "")) * UNITS[unit.lower()]
