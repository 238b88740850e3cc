"""Checks of the versions of Python and the libraries against those of requirements/, which tests use."""

import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata

from podium.core.finding import Finding, check_result
from podium.doctor.context import Examination
from podium.run.source import pins, read_project

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 13)
INSTALL = "install Podium with its extra `train` in the environment that runs are started from: docs/getting-started.md"
VARIABLE = {"torch"}  # judged by the range that is supported, since containers bring a build of their own


def check_python(examination: Examination) -> Iterable[Finding]:
    wanted = str(read_project(examination.places.project)["requires-python"])
    least = _numbers(wanted)
    good = sys.version_info[: len(least)] >= least
    yield check_result(
        "python", good, platform.python_version(), wanted, f"install Python {wanted} and set up .venv anew"
    )


def check_libraries(examination: Examination) -> Iterable[Finding]:
    """Of this environment; a library that is missing is an error, another version than the pinned one a warning."""
    pinned = pins(examination.places.project)
    found = {name: installed(name) for name in pinned if name not in VARIABLE}
    missing = [f"{name} {pinned[name]}" for name, version in found.items() if version is None]
    others = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in found.items()
        if version is not None and version != pinned[name]
    ]
    wanted = f"the {len(found)} locked versions"
    if missing:
        yield Finding("libraries", "error", f"missing: {', '.join(missing)}", wanted, INSTALL)
    if others:
        yield Finding("libraries", "warning", ", ".join(others), wanted, f"not what was tested; {INSTALL}")
    if not missing and not others:
        yield Finding("libraries", "ok", wanted, wanted)


def check_torch(examination: Examination) -> Iterable[Finding]:
    """The one that the implementation's processes import, and that the description names."""
    if examination.device is None:
        return
    version = str(examination.device["torch"])
    range_ = f"{'.'.join(map(str, OLDEST_TORCH))} to {'.'.join(map(str, NEWEST_TORCH))}"
    good = OLDEST_TORCH <= _numbers(version)[:2] <= NEWEST_TORCH
    yield check_result("torch", good, version, range_, "install a version of torch in that range")
    match = re.search(r"\d+\.\d+[\d.]*", examination.config.description.framework)
    named = _numbers(match[0]) if match else ()
    if _numbers(version)[: len(named)] != named:  # 2.13.0 is of 2.13, and not of 2.1
        yield Finding(
            "framework",
            "error",
            f"description.framework is {examination.config.description.framework}",
            f"the version that runs, {version}",
            "write the version that runs into description.framework",
        )


def installed(name: str) -> str | None:
    """The version without its local part (`+cpu`); None where there is none."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0]))
