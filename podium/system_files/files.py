"""Text of system files: the comment at a file's head, and YAML sections with comments."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from podium.core.files import read_bounded
from podium.core.text import one_line
from podium.core.yaml_files import MAX_YAML_BYTES, dump_yaml

COMMENT_WIDTH = 117
SCHEMA_LINE = "# yaml-language-server:"  # for editors: which schema completes and checks the file


def head_comment(path: Path) -> str:
    """Return the comment in a file's first lines as one paragraph; empty without one. OSError if it is unreadable."""
    lines = []
    for line in read_bounded(path, MAX_YAML_BYTES).decode("utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(SCHEMA_LINE):
            lines.append(line.lstrip("#").strip())
    return " ".join(lines)


def comment(text: str, indent: int = 0) -> str:
    """Return text, which may be untrusted, as lines of a YAML comment."""
    before = " " * indent + "# "
    return "".join(f"{before}{line}\n" for line in wrap(one_line(text, longest=2000), COMMENT_WIDTH - indent))


def section(name: str, values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Return a section of a system file as YAML; `comments` are put above the keys that they are of."""
    lines = [f"\n{name}:\n"]
    for key, value in values.items():
        if comments and key in comments:
            lines.append(comment(comments[key], indent=2))
        lines += [f"  {line}\n" for line in dump_yaml({key: value}).splitlines()]
    return "".join(lines)
