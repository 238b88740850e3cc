"""Reading of untrusted JSON: a document, or a ValueError with the reason."""

import os
from pathlib import Path

import pytest

from podium.core.json_files import parse_json, read_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "{", "\ud800", b"\xff\xff\xff"])
def test_invalid_or_deeply_nested_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^it is not a JSON document"):
        parse_json(text)


def test_json_larger_than_the_limit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1, 2]", encoding="utf-8")
    assert read_json(tmp_path / "a", 6) == [1, 2]
    with pytest.raises(ValueError, match="it has more than 5 bytes"):
        read_json(tmp_path / "a", 5)


def test_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe"):
        read_json(tmp_path / "pipe")
