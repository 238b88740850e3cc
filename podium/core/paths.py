"""Where Podium's own files lie and where it writes, in a clone of the repository and installed from a wheel.

                                             in a clone        installed
CODE_FOLDER     the three packages           the repository    site-packages
SHIPPED_FOLDER  systems/, docker/            the repository    inside the package podium
WORKING_FOLDER  runs/, data/, results/       the repository    the current folder
"""

import os
import re
import sys
from base64 import urlsafe_b64decode
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from podium.core.errors import UsageError

PACKAGES = ("benchmarks", "implementations", "podium")
# A path of two or more names from the root on, which is no part of a URL or of a longer word.
ABSOLUTE = re.compile(r"(?<![\w./:-])/(?:[\w.+@%~-]+/)+([\w.+@%~-]*)")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed: as the shell names it, where there may be another one by now
        return Path(os.environ.get("PWD", os.sep))


_PODIUM = Path(str(files("podium"))).resolve()
CODE_FOLDER = _PODIUM.parent
INSTALLED = (_PODIUM / "systems").is_dir()  # whether this is an installation; a clone has systems/ beside the package
SHIPPED_FOLDER = _PODIUM if INSTALLED else CODE_FOLDER  # also holds pyproject.toml and requirements/
WORKING_FOLDER = _current_folder() if INSTALLED else CODE_FOLDER


def package_file(package: str, name: str) -> Path:
    """A data file of one of Podium's packages, such as podium.html."""
    return CODE_FOLDER.joinpath(*package.split("."), name)


def own_and_shipped(path: Path) -> list[Path]:
    """A path in the working folder, and what was shipped under the same name: one path in a clone."""
    if not path.is_relative_to(WORKING_FOLDER):
        return [path]
    return list(dict.fromkeys((path, SHIPPED_FOLDER / path.relative_to(WORKING_FOLDER))))


def own_or_shipped(path: Path) -> Path:
    """A path in the working folder where that exists, else the shipped one."""
    return next((one for one in own_and_shipped(path) if one.exists()), path)


def without_folders(text: str) -> str:
    """Text for other people: paths in the working or current folder from there on, the name alone of all others."""
    if "/" not in text:
        return text
    for folder in {str(WORKING_FOLDER), str(_current_folder())} - {os.sep}:
        text = re.sub(rf"(?<![\w./:-]){re.escape(folder)}/", "", text)
    return ABSOLUTE.sub(lambda found: found[1], text)


def process_environment() -> dict[str, str]:
    """What makes a process that an installation starts import Podium's packages; nothing in a clone.

    Its working folder may hold a `benchmarks` or `implementations` of its own, as submissions to MLPerf do, and so may
    PYTHONPATH. site-packages cannot be put on PYTHONPATH, where it would hide the standard library.
    """
    if not INSTALLED:
        return {}
    given = os.environ.get("PYTHONPATH", "")
    entries = [entry for entry in given.split(os.pathsep) if not _hides_podium(entry)]
    return {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(entries)} if given else {})


def prefer_own_packages() -> None:
    """In an installation, have this process import Podium's packages, whatever else is on its path."""
    if INSTALLED:
        sys.path.sort(key=_hides_podium)  # stable: those that hide a package of ours come last


def require_own_packages() -> None:
    """UsageError where another distribution has written over the `__init__.py` of a package of ours."""
    for package in PACKAGES if INSTALLED else ():
        path = CODE_FOLDER / package / "__init__.py"
        recorded = _recorded_hash(f"{package}/__init__.py")
        if recorded is not None and not (path.is_file() and sha256(path.read_bytes()).digest() == recorded):
            raise UsageError(
                f"{path}: is not Podium's, since another distribution has a package `{package}` too; install Podium "
                "in an environment of its own"
            )


def _hides_podium(entry: str) -> bool:
    """Whether an entry of sys.path has a package or module of one of our names. A folder without `__init__.py` hides
    none: Python takes a package on a later entry before it."""
    folder = Path(entry)
    if folder.resolve() == CODE_FOLDER:
        return False
    return any((folder / name / "__init__.py").exists() or (folder / f"{name}.py").exists() for name in PACKAGES)


def _recorded_hash(name: str) -> bytes | None:
    """SHA-256 of an installed file by the record of Podium's distribution; None where it has none."""
    try:
        recorded = metadata.distribution("podium").read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return None
    found = [line.split(",")[1] for line in recorded.splitlines() if line.startswith(f"{name},sha256=")]
    return urlsafe_b64decode(found[0].removeprefix("sha256=") + "=") if found else None
