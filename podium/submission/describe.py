"""`podium submit describe`: MLPerf's JSON of a system, and its file's fields compared with the detected hardware.

The values that this machine reports are detected by the fields of MLPerf's system description. Whether two values
agree is judged by how these fields are usually written: "AMD EPYC 7742" is "AMD EPYC 7742 64-Core Processor", "2 TB"
is 2,015 GB, "48" is not 64.
"""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from podium.config.schema import RunConfig
from podium.doctor.devices import MEMORY, memory_bytes
from podium.doctor.rules import MAY_BE_EMPTY, is_stated
from podium.submission.checks.systems import FIELDS

CPUINFO, CPUS, RELEASE = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu"), Path("/etc/os-release")
GIB = 2**30
SMI_FIELDS = ("driver_version", "clocks.max.sm")
SMI_SECONDS = 30.0
KINDS = {"Data": "d", "Instruction": "i"}


@dataclass(frozen=True)
class Detected:
    """Fields of the description that could be told, and versions of the software below the framework by its name."""

    fields: Mapping[str, str]
    software: Mapping[str, str] = field(default_factory=dict)


def detect(device: Mapping[str, Any] | None) -> Detected:
    """Everything that this machine tells; `device` is what the implementation's process sees, None where it fails."""
    driver, clock = _nvidia_smi()
    fields = processor_fields(CPUINFO, CPUS) | {"host_processor_vcpu_count": str(os.cpu_count() or "")}
    with suppress(OSError, ValueError, KeyError):
        fields["host_memory_capacity"] = _capacity(memory_bytes(MEMORY, "MemTotal"))
    with suppress(OSError, KeyError):
        fields["operating_system"] = os_name(RELEASE)
    software = {"kernel": platform.release(), "python": platform.python_version()}
    if device is not None:
        fields |= {"framework": f"PyTorch {str(device['torch']).partition('+')[0]}"} | gpu_fields(device["gpus"])
        told = {"cuda": device.get("cuda"), "cudnn": device.get("cudnn"), "nccl": device.get("nccl")}
        software |= {name: str(version) for name, version in told.items() if version and device["gpus"]}
    if driver:
        software["cuda_driver"] = driver
    if clock and fields.get("accelerators_per_node", "0") != "0":
        fields["accelerator_frequency"] = clock
    return Detected({key: value for key, value in fields.items() if value}, software)


def processor_fields(cpuinfo: Path, cpus: Path) -> dict[str, str]:
    """Sockets, model, cores of a processor, its greatest frequency and its caches, as far as the kernel tells."""
    found: dict[str, str] = {}
    with suppress(OSError):
        processors = _processors(cpuinfo.read_text(encoding="utf-8", errors="replace"))
        models = {one["model name"] for one in processors if "model name" in one}
        if len(models) == 1:
            found["host_processor_model_name"] = models.pop()
        cores = {(one.get("physical id"), one.get("core id")) for one in processors if "physical id" in one}
        sockets = {socket for socket, _ in cores}
        if sockets:
            found["host_processors_per_node"] = str(len(sockets))
            found["host_processor_core_count"] = str(len(cores) // len(sockets))
    with suppress(OSError, ValueError):
        kilohertz = int((cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq").read_text(encoding="ascii"))
        found["host_processor_frequency"] = f"{kilohertz / 1e6:.2f} GHz"
    caches = _caches(cpus / "cpu0" / "cache")
    return found | ({"host_processor_caches": caches} if caches else {})


def os_name(release: Path) -> str:
    """Name and version, such as Ubuntu 24.04.1 LTS."""
    lines = (line.partition("=") for line in release.read_text(encoding="utf-8").splitlines())
    return {key: value.strip("\"' ") for key, _, value in lines}["PRETTY_NAME"]


def gpu_fields(gpus: list[Mapping[str, Any]]) -> dict[str, str]:
    """Number, model and memory of the GPUs; the model and the memory only where all are alike."""
    found = {"accelerators_per_node": str(len(gpus))}
    if len({gpu["name"] for gpu in gpus}) == 1:
        found["accelerator_model_name"] = str(gpus[0]["name"])
        found["accelerator_memory_capacity"] = _capacity(min(int(gpu["total_bytes"]) for gpu in gpus))
    return found


def _processors(text: str) -> list[dict[str, str]]:
    blocks = (block.splitlines() for block in text.strip().split("\n\n"))
    return [{k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block)} for block in blocks]


def _caches(folder: Path) -> str:
    """Those that the first core sees: L1d 48 KiB, L2 1 MiB, L3 32 MiB."""
    names = []
    for index in sorted(folder.glob("index[0-9]*")):
        with suppress(OSError, ValueError):
            texts = ((index / name).read_text(encoding="ascii") for name in ("level", "type", "size"))
            level, kind, size = map(str.strip, texts)
            kibibytes = int(size.removesuffix("K"))
            amount = f"{kibibytes // 1024} MiB" if kibibytes % 1024 == 0 else f"{kibibytes} KiB"
            names.append(f"L{level}{KINDS.get(kind, '')} {amount}")
    return ", ".join(names)


def _nvidia_smi() -> tuple[str, str]:
    """The driver's version and the greatest clock rate of the first GPU, each empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", ""
    query = [program, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    match = re.match(r"\s*([\d.]+)\s*,\s*(\d+)\s*$", (done.stdout.splitlines() or [""])[0])
    if done.returncode or match is None:
        return "", ""
    return match[1], f"{int(match[2])} MHz"


def _capacity(size: int) -> str:
    """Bytes in the unit in which memory is sold: GB, which are GiB."""
    return f"{size / GIB:.0f} GB"


Verdict = Literal["same", "differs", "not stated", "cannot be told"]
SIZE_TOLERANCE = 0.12  # between what is sold as 2 TB and the bytes that a kernel manages of it
CLOCK_TOLERANCE = 0.02
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SIZE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*([kmgt])(?:i?b|hz)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One field of the description, or one part of its software stack."""

    name: str
    stated: str
    detected: str  # empty where this machine cannot tell
    verdict: Verdict


def system_json(description: Mapping[str, str]) -> str:
    """The content of systems/NAME.json: MLPerf's 33 fields in MLPerf's order, all of them text."""
    assert tuple(description) == FIELDS and all(isinstance(value, str) for value in description.values())
    return json.dumps(description, indent=4, ensure_ascii=False) + "\n"


def stated(config: RunConfig) -> dict[str, str]:
    """What the system's file says, by MLPerf's names, in MLPerf's order."""
    return config.description.model_dump(by_alias=True)


def compare(config: RunConfig, detected: Detected) -> list[Field]:
    """Every field of the description, then every software version that was detected."""
    told = dict(detected.fields) | {"number_of_nodes": str(config.launch.nodes)}
    if config.launch.device == "cpu":
        told = {key: value for key, value in told.items() if not key.startswith("accelerator")}
        told["accelerators_per_node"] = "0"
    fields = [_compared(name, text, told.get(name, "")) for name, text in stated(config).items()]
    stack = config.description.other_software_stack
    return fields + [
        Field(f"other_software_stack: {name}", _version_in(stack, name) or "", version, _software(stack, name, version))
        for name, version in detected.software.items()
    ]


def filled(config: RunConfig, fields: Sequence[Field]) -> tuple[dict[str, str], list[str]]:
    """The description with all that is not stated taken from what was detected, and the names of what was taken."""
    description, taken = stated(config), []
    for one in fields:
        if one.verdict == "not stated" and one.detected and one.name in description:
            description[one.name] = one.detected
            taken.append(one.name)
    software = [one for one in fields if one.name not in description and one.verdict == "not stated"]
    if software:
        parts = [f"{one.name.partition(': ')[2]}_version {one.detected}" for one in software]
        was = description["other_software_stack"]
        description["other_software_stack"] = ", ".join([*([was] if is_stated(was) else []), *parts])
        taken.append("other_software_stack")
    return description, taken


def differing(fields: Sequence[Field]) -> list[Field]:
    return [one for one in fields if one.verdict == "differs"]


def as_json(description: Mapping[str, str], fields: Sequence[Field], taken: Sequence[str]) -> dict[str, Any]:
    rows = [{"field": f.name, "file": f.stated, "detected": f.detected, "verdict": f.verdict} for f in fields]
    return {"description": dict(description), "filled": list(taken), "fields": rows}


def _compared(name: str, text: str, found: str) -> Field:
    if not is_stated(text):
        silent = name in MAY_BE_EMPTY and not text.strip()
        return Field(name, text, found, "cannot be told" if silent and not found else "not stated")
    if not found:
        return Field(name, text, "", "cannot be told")
    return Field(name, text, found, "same" if WAYS.get(name, same_text)(text, found) else "differs")


def same_number(text: str, found: str) -> bool:
    return text.strip().removesuffix(".0") == found


def same_words(text: str, found: str) -> bool:
    """Whether all words of one are words of the other, trademark signs and capitals aside."""
    plain = (re.sub(r"\((r|tm|c)\)", " ", side.lower()) for side in (text, found))
    one, other = ({*re.findall(r"[a-z0-9.]+", side)} for side in plain)
    return bool(one and other) and (one <= other or other <= one)


def same_text(text: str, found: str) -> bool:
    return " ".join(text.lower().split()) == " ".join(found.lower().split())


def same_amount(text: str, found: str, tolerance: float) -> bool:
    """Whether the first amount of memory, or the first clock rate, of both is the same within a tolerance."""
    one, other = next(_amounts(text), None), next(_amounts(found), None)
    return one is not None and other is not None and abs(one - other) <= tolerance * max(one, other)


same_size = partial(same_amount, tolerance=SIZE_TOLERANCE)
same_clock = partial(same_amount, tolerance=CLOCK_TOLERANCE)


def same_sizes(text: str, found: str) -> bool:
    """Whether every amount of one text is an amount of the other, whatever is said around it."""
    there = list(_amounts(found))
    given = list(_amounts(text))
    return bool(given) and all(any(abs(a - b) <= CLOCK_TOLERANCE * b for b in there) for a in given)


def same_framework(text: str, found: str) -> bool:
    """Whether the version that is named is the one that runs."""
    name, version = found.split(" ", 1)
    named = re.search(r"\d+\.\d+[\d.]*", text)
    return name.lower() in text.lower() and (named is None or f"{version}.".startswith(f"{named[0].rstrip('.')}."))


# How a field is compared with what was detected.
WAYS: dict[str, Callable[[str, str], bool]] = {
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


def _software(stack: str, name: str, version: str) -> Verdict:
    """Of one library: its version is in the text, another one is, or nothing is said of it."""
    given = _version_in(stack, name)
    if given is None:
        return "not stated"
    same = f"{version}.".startswith(f"{given}.") or given.startswith(f"{version}.")
    return "same" if same else "differs"


def _version_in(stack: str, name: str) -> str | None:
    """The version that a text gives for a name, as in "cuda_version 12.4" or "NCCL: 2.20.5"."""
    match = re.search(rf"(?<![a-z_]){name}(?:[ _]version)?[\s:=\"']+v?(\d[\w.+-]*)", stack, re.IGNORECASE)
    return match[1].rstrip(".") if match else None


def _amounts(text: str) -> Iterator[float]:
    for number, unit in SIZE.findall(text):
        yield float(number.replace(",", "")) * UNITS[unit.lower()]
