"""Podium checkpoints: the contents must match the metadata and the model."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint, write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights, write_safetensors
from benchmarks.bert.sizes import LARGE, Size
from podium.core.errors import PodiumError, UsageError, WorkError

METADATA = {"format": "podium-checkpoint", "format_version": "1", "size": "fixture", "vocabulary": "31"}


def test_weights_are_written_and_read_back_bit_for_bit(tmp_path: Path, weights: Weights) -> None:
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    checkpoint = PodiumCheckpoint(tmp_path / "x.safetensors")
    assert (checkpoint.size, checkpoint.vocabulary_size) == (weights.size, 31)
    assert sorted(checkpoint.names) == sorted(weights.tensors)
    for name, values in weights.tensors.items():
        assert checkpoint.shape(name) == values.shape
        assert checkpoint.read(name).tobytes() == values.tobytes()
    checkpoint.require_model_size(weights.size)
    checkpoint.require_model_size(weights.size, 31)


def test_another_size_or_vocabulary_is_an_error(tmp_path: Path, weights: Weights, size: Size) -> None:
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    checkpoint = PodiumCheckpoint(tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match=r"x\.safetensors: the checkpoint is of size fixture, the model of size large"):
        checkpoint.require_model_size(LARGE)
    with pytest.raises(
        UsageError, match=r"a vocabulary of 31 tokens, the vocabulary in use 32; use the vocabulary that"
    ):
        checkpoint.require_model_size(size, 32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "pt"}, UsageError, r"is not a Podium checkpoint; make one with `podium data checkpoint SOURCE"),
        ({"format_version": "2"}, UsageError, "its format_version is 2, allowed is 1; make one"),
        ({"format_version": None}, UsageError, "its format_version is missing, allowed is 1; make one"),
        ({"size": "huge"}, WorkError, "its size is huge, allowed is large, tiny, fixture"),
        ({"size": None}, WorkError, "its size is missing, allowed is large, tiny, fixture"),
        ({"size": "tiny"}, WorkError, r"lacks layers\.1\.qkv\.weight, layers\.1\.qkv\.bias, .* and 9 more of the 3"),
        ({"vocabulary": "32"}, WorkError, "its vocabulary is 32, but its word embeddings have 31 rows"),
        ({"vocabulary": "x"}, WorkError, "its vocabulary is x, but its word embeddings have 31 rows"),
    ],
)
def test_invalid_metadata_is_an_error(
    tmp_path: Path, weights: Weights, change: dict[str, str | None], error: type[PodiumError], message: str
) -> None:
    path = tmp_path / "x.safetensors"
    metadata = {name: value for name, value in (METADATA | change).items() if value is not None}
    write_safetensors(path, weights.tensors, metadata)
    with pytest.raises(error, match=rf"x\.safetensors: {message}"):
        PodiumCheckpoint(path)


def test_invalid_tensors_are_errors(tmp_path: Path, weights: Weights) -> None:
    path = tmp_path / "x.safetensors"
    for change, message in (
        ({"pooler.bias": None}, r"lacks pooler\.bias of the 26 tensors of size fixture; use a complete"),
        ({"embeddings.word.weight": None}, r"lacks embeddings\.word\.weight of the 26"),
        ({"pooler.bias": np.zeros(9)}, r"pooler\.bias is \[9\], allowed for size fixture is \[8\]"),
        ({"embeddings.word.weight": np.zeros(())}, "its vocabulary is 31, and|lacks embeddings|is \\[\\], allowed"),
        ({"more": np.zeros(1)}, "has more, which size fixture does not have"),
    ):
        tensors = {**weights.tensors, **change}
        kept = {name: np.asarray(values, np.float32) for name, values in tensors.items() if values is not None}
        write_safetensors(path, kept, METADATA)
        with pytest.raises(WorkError, match=message):
            PodiumCheckpoint(path)


def test_values_that_are_not_finite_are_an_error(tmp_path: Path, weights: Weights) -> None:
    weights.tensors["pooler.bias"][:2] = np.nan, np.inf
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    checkpoint = PodiumCheckpoint(tmp_path / "x.safetensors")
    checkpoint.read("pooler.weight")
    with pytest.raises(
        WorkError, match=r"pooler\.bias has values that are infinite or NaN, 2 in all; use another checkpoint"
    ):
        checkpoint.read("pooler.bias")


def test_missing_file_or_folder_is_an_error_with_advice(tmp_path: Path) -> None:
    for path, found in ((tmp_path, "is a folder"), (tmp_path / "x", "there is no such checkpoint")):
        with pytest.raises(UsageError, match=f"{path}: {found}; make one with `podium data checkpoint SOURCE OUT`"):
            PodiumCheckpoint(path)
