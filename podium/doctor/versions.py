"""Checks of the versions of Python and the libraries against those of requirements/, which tests use."""

import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata

from podium.core.finding import Finding, check_result
from podium.doctor.context import DiagnosticContext
from podium.run.source import pins, read_project

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 13)
INSTALL_ADVICE = (
    "install Podium with its extra `train` in the environment that runs are started from: docs/getting-started.md"
)
UNPINNED = {"torch"}  # checked against the supported range instead, because containers have another build


def check_python(context: DiagnosticContext) -> Iterable[Finding]:
    wanted = str(read_project(context.places.project)["requires-python"])
    least = _numbers(wanted)
    good = sys.version_info[: len(least)] >= least
    yield check_result(
        "python", good, platform.python_version(), wanted, f"install Python {wanted} and set up .venv anew"
    )


def check_libraries(context: DiagnosticContext) -> Iterable[Finding]:
    """Installed libraries: a missing one is an error, a version other than the pinned one a warning."""
    pinned = pins(context.places.project)
    found = {name: installed_version(name) for name in pinned if name not in UNPINNED}
    missing = [f"{name} {pinned[name]}" for name, version in found.items() if version is None]
    others = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in found.items()
        if version is not None and version != pinned[name]
    ]
    wanted = f"the {len(found)} locked versions"
    if missing:
        yield Finding("libraries", "error", f"missing: {', '.join(missing)}", wanted, INSTALL_ADVICE)
    if others:
        yield Finding("libraries", "warning", ", ".join(others), wanted, f"not tested; {INSTALL_ADVICE}")
    if not missing and not others:
        yield Finding("libraries", "ok", wanted, wanted)


def check_torch(context: DiagnosticContext) -> Iterable[Finding]:
    """The torch version that the implementation's processes import: supported, and named by the description."""
    if context.device is None:
        return
    version = str(context.device["torch"])
    range_ = f"{'.'.join(map(str, OLDEST_TORCH))} to {'.'.join(map(str, NEWEST_TORCH))}"
    good = OLDEST_TORCH <= _numbers(version)[:2] <= NEWEST_TORCH
    yield check_result("torch", good, version, range_, "install a version of torch in that range")
    match = re.search(r"\d+\.\d+[\d.]*", context.config.description.framework)
    described = _numbers(match[0]) if match else ()
    # Numbers and not text are compared: 2.13.0 matches a description of 2.13, and not one of 2.1.
    if _numbers(version)[: len(described)] != described:
        yield Finding(
            "framework",
            "error",
            f"description.framework is {context.config.description.framework}",
            f"the version in use, {version}",
            "set description.framework to the version in use",
        )


def installed_version(name: str) -> str | None:
    """Version of an installed library without its local part (`+cpu`); None if it is not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0]))
