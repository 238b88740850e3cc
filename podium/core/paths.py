"""Locations of Podium's files and of its output, in a clone of the repository and installed from a wheel.

                                             in a clone        installed
CODE_FOLDER     the three packages           the repository    site-packages
SHIPPED_FOLDER  systems/, docker/            the repository    inside the package podium
WORKING_FOLDER  runs/, data/, results/       the repository    the current folder
"""

import os
import re
import shlex
import sys
from base64 import urlsafe_b64decode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from podium.core.errors import UsageError

PACKAGES = ("benchmarks", "implementations", "podium")
# An absolute path of two or more components that is not part of a URL or of a relative path.
ABSOLUTE_PATH = re.compile(r"(?<![\w./:-])/(?:[\w.+@%~-]+/)+([\w.+@%~-]*)")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed; $PWD still has its path, where a new folder may exist
        return Path(os.environ.get("PWD", os.sep))


_PODIUM = Path(str(files("podium"))).resolve()
CODE_FOLDER = _PODIUM.parent
INSTALLED = (_PODIUM / "systems").is_dir()  # a wheel has systems/ inside the package, a clone beside it
SHIPPED_FOLDER = _PODIUM if INSTALLED else CODE_FOLDER  # also holds pyproject.toml and requirements/
WORKING_FOLDER = _current_folder() if INSTALLED else CODE_FOLDER


def package_file(package: str, name: str) -> Path:
    """Path of a data file in one of Podium's packages, such as podium.html."""
    return CODE_FOLDER.joinpath(*package.split("."), name)


def user_and_shipped_paths(path: Path) -> list[Path]:
    """Return a path in the working folder and the shipped path of the same name, which are one path in a clone."""
    if not path.is_relative_to(WORKING_FOLDER):
        return [path]
    return list(dict.fromkeys((path, SHIPPED_FOLDER / path.relative_to(WORKING_FOLDER))))


def user_or_shipped_path(path: Path) -> Path:
    """Return the path in the working folder if it exists, else the shipped one if that exists."""
    return next((one for one in user_and_shipped_paths(path) if one.exists()), path)


def shorten_paths(text: str) -> str:
    """Shorten absolute paths in a text to be published: relative to the working or current folder, else the name."""
    if "/" not in text:
        return text
    for folder in {str(WORKING_FOLDER), str(_current_folder())} - {os.sep}:
        text = re.sub(rf"(?<![\w./:-]){re.escape(folder)}/", "", text)
    return ABSOLUTE_PATH.sub(lambda found: found[1], text)


def child_environment() -> dict[str, str]:
    """Environment variables with which a child process of an installation imports Podium's packages; {} in a clone.

    The working folder or an entry of PYTHONPATH may have another `benchmarks` or `implementations`, as submissions to
    MLPerf do. PYTHONSAFEPATH leaves out the former and a filtered PYTHONPATH the latter: putting site-packages first
    instead would hide modules of the standard library.
    """
    if not INSTALLED:
        return {}
    given = os.environ.get("PYTHONPATH", "")
    entries = [entry for entry in given.split(os.pathsep) if not _hides_podium(entry)]
    return {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(entries)} if given else {})


def prefer_podium_packages() -> None:
    """In an installation, move entries of sys.path with packages of the same names as Podium's to the end."""
    if INSTALLED:
        sys.path.sort(key=_hides_podium)  # stable: the other entries keep their order


def require_podium_packages() -> None:
    """Raise UsageError if another distribution has overwritten the `__init__.py` of one of Podium's packages."""
    for package in PACKAGES if INSTALLED else ():
        path = CODE_FOLDER / package / "__init__.py"
        recorded = _recorded_hash(f"{package}/__init__.py")
        if recorded is not None and not (path.is_file() and sha256(path.read_bytes()).digest() == recorded):
            raise UsageError(
                f"{path}: was overwritten by another distribution, which has a package `{package}` too; install Podium "
                "in a separate environment"
            )


def _hides_podium(entry: str) -> bool:
    """Whether an entry of sys.path has a package or module with the name of one of Podium's packages.

    A folder without `__init__.py` does not count: Python prefers a regular package on a later entry.
    """
    folder = Path(entry)
    if folder.resolve() == CODE_FOLDER:
        return False
    return any((folder / name / "__init__.py").exists() or (folder / f"{name}.py").exists() for name in PACKAGES)


def _recorded_hash(name: str) -> bytes | None:
    """SHA-256 of an installed file from the RECORD of Podium's distribution; None if it is not recorded."""
    from importlib import metadata  # here, since it takes long to import and a clone does not need it

    try:
        recorded = metadata.distribution("podium").read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return None
    found = [line.split(",")[1] for line in recorded.splitlines() if line.startswith(f"{name},sha256=")]
    return urlsafe_b64decode(found[0].removeprefix("sha256=") + "=") if found else None


def install_command(*requirements: str) -> str:
    """Return the command that installs packages for the interpreter of this process."""
    interpreter = Path(sys.executable)
    shown = interpreter.relative_to(Path.cwd()) if interpreter.is_relative_to(Path.cwd()) else interpreter
    return shlex.join([str(shown), "-m", "pip", "install", *requirements])
