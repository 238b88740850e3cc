"""MLPerf's JSON of a system, and what its file says of it against what this machine tells.

Whether two texts say the same is judged as people write these fields: "AMD EPYC 7742" is "AMD EPYC 7742 64-Core
Processor", "2 TB" is 2,015 GB, "48" is not 64.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from podium.config import RunConfig
from podium.config.description import Description
from podium.doctor.rules import MAY_BE_EMPTY, NOT_STATED
from podium.submission.detecting import Detected

Verdict = Literal["same", "differs", "not stated", "cannot be told"]
SIZE_TOLERANCE = 0.12
"""Between what is sold as 2 TB and the bytes that a kernel manages of it."""
CLOCK_TOLERANCE = 0.02
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b|hz)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One field of the description, or one part of its software stack."""

    name: str
    stated: str
    detected: str
    """Empty where this machine cannot tell."""
    verdict: Verdict


def system_json(description: Mapping[str, str]) -> str:
    """The content of systems/NAME.json: MLPerf's 33 fields in MLPerf's order, all of them text."""
    assert list(description) == list(_fields_of_mlperf()) and all(isinstance(v, str) for v in description.values())
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


def is_stated(text: str) -> bool:
    return text.strip().lower() not in NOT_STATED


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
    """Whether all words of one are words of the other."""
    one, other = ({*re.findall(r"[a-z0-9.]+", _unmarked(side))} for side in (text, found))
    return bool(one and other) and (one <= other or other <= one)


def same_text(text: str, found: str) -> bool:
    return " ".join(text.lower().split()) == " ".join(found.lower().split())


def same_size(text: str, found: str) -> bool:
    """Whether the first amount of memory of both is the same, as memory is sold."""
    return _near(text, found, SIZE_TOLERANCE)


def same_clock(text: str, found: str) -> bool:
    return _near(text, found, CLOCK_TOLERANCE)


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
"""How a field is compared with what was detected."""


def _software(stack: str, name: str, version: str) -> Verdict:
    """Of one library: its version is in the text, another one is, or nothing is said of it."""
    given = _version_in(stack, name)
    if given is None:
        return "not stated"
    return (
        "same" if given == version or version.startswith(f"{given}.") or given.startswith(f"{version}.") else "differs"
    )


def _version_in(stack: str, name: str) -> str | None:
    """The version that a text gives for a name, as in "cuda_version 12.4" or "NCCL: 2.20.5"."""
    match = re.search(rf"(?<![a-z_]){name}(?:[ _]version)?[\s:=\"']+v?(\d[\w.+-]*)", stack, re.IGNORECASE)
    return match[1].rstrip(".") if match else None


def _amounts(text: str) -> Iterator[float]:
    for number, unit in SIZE.findall(text):
        yield float(number) * UNITS[unit.lower()]


def _near(text: str, found: str, tolerance: float) -> bool:
    one, other = next(_amounts(text), None), next(_amounts(found), None)
    return one is not None and other is not None and abs(one - other) <= tolerance * max(one, other)


def _unmarked(text: str) -> str:
    """Without trademark signs, in lower case."""
    return re.sub(r"\((r|tm|c)\)", " ", text.lower())


def _fields_of_mlperf() -> Iterator[str]:
    for name, info in Description.model_fields.items():
        yield info.alias or name
