"""Names of folders and files in a package."""

import re

from benchmarks.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def checked_name(name: str, what: str) -> str:
    """A name that is one folder or file, that git and MLPerf's repo_checker take; else UsageError.

    `what` says where it was given, such as --org.
    """
    if not NAME.fullmatch(name) or ".." in name or name.endswith("."):
        raise UsageError(
            f"{what}: found {name!r}; allowed is a name of up to 100 letters, digits and _ . + - that begins with a "
            "letter or a digit, since it becomes a folder of MLPerf's repository"
        )
    return name
