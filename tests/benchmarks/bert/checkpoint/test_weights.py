"""Safetensors files: reproducible bytes, permissions, and errors for invalid files."""

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.weights import SafetensorsFile, write_safetensors
from podium.core.errors import UsageError, WorkError

TENSORS: dict[str, NDArray[np.float32]] = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([np.float32(-0.0), np.float32(1e-45)]),
}


def header(content: dict[str, object], data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, TENSORS, {"format": "none", "more": "ä"})
    file = SafetensorsFile(path)
    assert sorted(file.names) == ["a", "b"]
    assert file.metadata == {"format": "none", "more": "ä"}
    for name, values in TENSORS.items():
        assert file.shape(name) == values.shape
        assert file.read(name).tobytes() == values.tobytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.safetensors"]


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    """The library itself writes the metadata in an order that differs between calls."""
    metadata = {name: name for name in "fedcba"}
    contents = set()
    for _ in range(10):
        write_safetensors(tmp_path / "x", TENSORS, metadata)
        contents.add((tmp_path / "x").read_bytes())
    assert len(contents) == 1


def test_permissions_are_those_of_other_new_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_safetensors(tmp_path / "x", TENSORS, {"a": ""})
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header too small"),
        (b"\xff" * 100, "header too large"),
        ((2**40).to_bytes(8, "little") + b"{}", "header too large"),
        ((2**26).to_bytes(8, "little") + b"{}", "invalid header length"),
        (header({})[:-1] + b"]", "invalid JSON"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 7), "incomplete metadata"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 9), "incomplete metadata"),
        (header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"\0" * 8), ""),
        (header({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}, b"\0" * 8), ""),
        (b"PK\x03\x04" + b"\0" * 60, ""),
    ],
)
def test_invalid_file_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(WorkError, match=rf"x\.safetensors: cannot be read as safetensors \(.*{message}.*; create or"):
        SafetensorsFile(path)


def test_folder_or_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; name a \.safetensors file"):
        SafetensorsFile(tmp_path)
    with pytest.raises(UsageError, match=r"none: there is no such file; name a \.safetensors file that exists"):
        SafetensorsFile(tmp_path / "none")


def test_other_types_than_float32_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(header({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4))
    for read in (SafetensorsFile(path).shape, SafetensorsFile(path).read):
        with pytest.raises(WorkError, match="x: a is F16, allowed is F32; save the weights as float32"):
            read("a")


def test_file_truncated_while_reading_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_safetensors(path, TENSORS, {"a": ""})
    file = SafetensorsFile(path)
    with path.open("r+b") as content:
        content.truncate(path.stat().st_size - 1)
    with pytest.raises(WorkError, match="x: b cannot be read"):
        for name in ("a", "b"):
            file.read(name)


def test_full_disk_leaves_the_old_file_and_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "x"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WorkError, match=r"x: cannot be written \(No space left on device\); check that the folder"):
        write_safetensors(path, TENSORS, {"a": ""})
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("x", b"old")]


def test_write_error_of_the_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def fail(_: object, path: Path, __: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("benchmarks.bert.checkpoint.weights.save_file", fail)
    with pytest.raises(WorkError, match=r"x: cannot be written \(.*No space left on device.*; check that the folder"):
        write_safetensors(tmp_path / "x", TENSORS, {"a": ""})
    with pytest.raises(WorkError, match="cannot be written"):
        write_safetensors(tmp_path / "none" / "x", TENSORS, {"a": ""})
    assert list(tmp_path.iterdir()) == []
