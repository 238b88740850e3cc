"""Banned words do not come back; docs/style.md has what to write instead."""

import re
import subprocess
from pathlib import Path

import pytest

from podium.core.paths import CODE_FOLDER

# A word, and what to write instead.
BANNED = {
    r"tells?|told|telling": "report, print, show, message",
    r"says?|said|saying": "report, print, state, message",
    r"mends?|mended|mending": "fix, repair",
    r"nobody|anybody|somebody|everybody|whoever": "no process, any user, the caller",
    r"wish(?:es|ed)?": "request, options",
    r"of (?:its|their|his|our) own|by (?:itself|themselves)": "drop it, or name what is meant",
    r"so many": "the number",
    r"is had|are had": "is available",
    r"go(?:es|ing)? on|gone on|went on": "resume, continue",
    r"deals?|dealt|dealing": "assign, distribute",
    r"held against": "compared with",
    r"as far as the rights": "where permissions allow",
}
SUFFIXES = {".css", ".def", ".html", ".js", ".md", ".py", ".sh", ".sub", ".yaml", ".yml", ".toml", ""}
ALLOWED = ("tests/test_language.py", "docs/style.md", "podium/html/vendor/")  # files and folders
FOREIGN = re.compile(r"(?:\.|\bdef )(?:tell|ask)\(")  # methods of Optuna's studies and of files
PATTERN = re.compile(rf"(?<![^\W_])(?:{'|'.join(BANNED)})(?![^\W_])", re.IGNORECASE)


def plain(line: str) -> str:
    """The line with the parts of its identifiers as separate words, two each for `tell_failure` and `ToldOnce`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", FOREIGN.sub("(", line)).replace("_", " ")


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CODE_FOLDER, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    return [
        CODE_FOLDER / name for name in listed if name and Path(name).suffix in SUFFIXES and not name.startswith(ALLOWED)
    ]


@pytest.mark.parametrize(
    ("line", "banned"),
    [
        ("def tell_failure(path):", True),
        ("class ToldOnce:", True),
        ("It says so of its own accord.", True),
        ("a run goes on", True),
        ("intelligent, foretell, hello", False),
        ("deal = 3", True),
        ("the ideal size", False),
        ("recommended", False),
        ("study.tell(trial, value)", False),
    ],
)
def test_words_are_found_in_identifiers_too(line: str, banned: bool) -> None:
    assert bool(PATTERN.search(plain(line))) == banned


def test_no_file_uses_the_banned_words() -> None:
    files = tracked_files()
    if not files:
        pytest.skip("this folder is no clone, so that its files are not known")
    found = [
        f"{path.relative_to(CODE_FOLDER)}:{number}: {match[0]!r} in: {line.strip()[:100]}"
        for path in files
        if path.is_file()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in [PATTERN.search(plain(line))]
        if match
    ]
    assert not found, "\n".join(["these words are not used here; docs/style.md has what to write:", *found])
