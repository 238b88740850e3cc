"""Tensor files: stamp and content digest detect foreign and changed files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from implementations.pytorch.checkpointing import CONTENT_DIGEST, STAMP_KEY, TensorFile, content_digest, write_tensors
from podium.core.errors import WorkError

STAMP_OF_RANK_0 = {"batches": "3", "rank": "0"}
TENSORS = {
    "b.matrix": torch.arange(2000, dtype=torch.float32).reshape(40, 50),
    "a.half": torch.linspace(0, 1, 7, dtype=torch.bfloat16),
    "a.number": torch.tensor(5, dtype=torch.int64),
    "a.none": torch.empty(0, 3),
    "a.truth": torch.tensor([True, False]),
    "a.random": torch.arange(100, dtype=torch.uint8),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "batch_3" / "rank_0.safetensors"
    path.parent.mkdir()
    write_tensors(path, TENSORS, STAMP_OF_RANK_0)
    return path


def test_all_tensors_are_read_back(path: Path) -> None:
    file = TensorFile(path)
    file.verify(STAMP_OF_RANK_0)
    for name, tensor in TENSORS.items():
        assert torch.equal(file.get(name), tensor)
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_changed_byte_of_any_tensor_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in (start, len(whole) - 1, *range(start + 13, len(whole), 997)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        message = rf"^{path}: is damaged: .* remove the folder {path.parent} to resume from the previous checkpoint"
        with pytest.raises(WorkError, match=message):
            TensorFile(path).verify(STAMP_OF_RANK_0)


def rewrite(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors with the digest of TENSORS."""
    stamp = {**STAMP_OF_RANK_0, CONTENT_DIGEST: content_digest(sorted(TENSORS.items()))}
    save_file(tensors, path, metadata={STAMP_KEY: json.dumps(stamp)})


@pytest.mark.parametrize("metadata", [None, {"x": "y"}, {STAMP_KEY: "{"}, {STAMP_KEY: "[]"}])
def test_a_file_without_a_stamp_is_an_error(path: Path, metadata: dict[str, str] | None) -> None:
    save_file(TENSORS, path, metadata=metadata)
    with pytest.raises(WorkError, match="belongs to another checkpoint: its batches is None, expected 3"):
        TensorFile(path).verify(STAMP_OF_RANK_0)


def test_writing_is_reproducible(path: Path) -> None:
    whole = path.read_bytes()
    for _ in range(8):
        write_tensors(path, TENSORS, STAMP_OF_RANK_0)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("change", ["renamed", "type", "shape", "left out", "added"])
def test_a_changed_name_type_or_shape_is_detected(path: Path, change: str) -> None:
    tensors = load_file(path)
    rewrite(path, tensors)
    TensorFile(path).verify(STAMP_OF_RANK_0)
    if change == "renamed":
        tensors["a.other"] = tensors.pop("a.number")
    elif change == "type":
        tensors["a.number"] = tensors["a.number"].view(torch.float64)
    elif change == "shape":
        tensors["b.matrix"] = tensors["b.matrix"].reshape(50, 40)
    elif change == "left out":
        del tensors["a.none"]
    else:
        tensors["z"] = torch.empty(0)
    rewrite(path, tensors)
    with pytest.raises(WorkError, match="is damaged"):
        TensorFile(path).verify(STAMP_OF_RANK_0)


def test_the_error_names_the_differing_part_of_the_stamp(path: Path) -> None:
    message = "belongs to another checkpoint: its rank is 0, expected 1; restore the right file"
    with pytest.raises(WorkError, match=message):
        TensorFile(path).verify(STAMP_OF_RANK_0 | {"rank": "1"})


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(WorkError, match="file: a folder exists at this path"):
        write_tensors(tmp_path / "file", TENSORS, STAMP_OF_RANK_0)
    assert not list(tmp_path.glob(".*"))
