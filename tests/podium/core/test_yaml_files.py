"""Strict reading of YAML: what is refused, and with which message."""

import os
import re
from pathlib import Path

import pytest

from podium.core.errors import UsageError
from podium.core.yaml_files import MAX_YAML_BYTES, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 0x" + "f" * 5000, "a number of more than 100 digits is not supported"),
        ("a: 0b" + "1" * 5000, "a number of more than 100 digits is not supported"),
        ("a: !!int " + "7" * 5000, "a number of more than 100 digits is not supported"),
        ('a: "\\0"', "text must not contain a NUL or a lone surrogate"),
        ('a: "\\ud800"', "text must not contain a NUL or a lone surrogate"),
        ('"\\ud800": 1', "text must not contain a NUL or a lone surrogate"),
        ("a: \udcff", "is not valid YAML"),
        ("a: " + "1:" * MAX_YAML_BYTES, "is longer than 131,072 characters"),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_invalid_scalars_are_errors(text: str, message: str, as_text: bool) -> None:
    if as_text and "digits" in message:
        pytest.skip("a text may have any digits")
    with pytest.raises(UsageError, match=f"^here: .*{re.escape(message)}"):
        parse_yaml(text, "here", as_text)


def test_numbers_are_parsed_and_times_stay_text() -> None:
    assert parse_yaml("[0x10, 017, 4:00:00, 1e3, " + "9" * 30 + "]", "here") == [16, 15, "4:00:00", "1e3", 10**30 - 1]


def test_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "system.yaml")
    with pytest.raises(UsageError, match=r"cannot be read .it is a pipe"):
        read_yaml(tmp_path / "system.yaml")
