"""The text of `podium --version`, made without an import of PyTorch."""

import platform
from importlib import metadata

from podium.core.paths import CODE_FOLDER, SHIPPED_FOLDER
from podium.run.source import commit_of, git, read_project


def version_text() -> str:
    """One line, such as `podium 0.1.0 (commit 0123456789ab), Python 3.11.9, torch 2.13.0+cpu`."""
    number = read_project(SHIPPED_FOLDER / "pyproject.toml")["version"]
    commit = commit_of(CODE_FOLDER)
    clone = "" if commit is None else f" (commit {commit[:12]}{', with changes' if _has_changes() else ''})"
    try:
        torch = f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "torch is not installed"
    return f"podium {number}{clone}, Python {platform.python_version()}, {torch}"


def _has_changes() -> bool:
    """Whether a tracked file of the clone differs from the commit."""
    return bool(git(CODE_FOLDER, "status", "--porcelain", "--untracked-files=no"))
