"""Hugging Face folders: old names, tied tensors, and a config.json that must match MLPerf's BERT."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.huggingface import HuggingFaceCheckpoint, write_huggingface_checkpoint
from benchmarks.bert.checkpoint.names import HUGGINGFACE
from benchmarks.bert.checkpoint.weights import SafetensorsFile, Weights, load_weights, write_safetensors
from benchmarks.bert.sizes import Size
from podium.core.errors import UsageError, WorkError

Tensors = dict[str, NDArray[np.float32]]
WORD_EMBEDDINGS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.fixture
def folder(tmp_path: Path, weights: Weights) -> Path:
    write_huggingface_checkpoint(tmp_path / "hf", weights)
    return tmp_path / "hf"


def equal_bits(found: Weights, expected: Weights) -> bool:
    assert found.tensors.keys() == expected.tensors.keys()
    return all(found.tensors[name].tobytes() == expected.tensors[name].tobytes() for name in expected.tensors)


@pytest.mark.parametrize("by_file", [False, True])
def test_weights_are_written_and_read_back_bit_for_bit(folder: Path, weights: Weights, by_file: bool) -> None:
    checkpoint = HuggingFaceCheckpoint(folder / "model.safetensors" if by_file else folder)
    assert equal_bits(load_weights(checkpoint, HUGGINGFACE), weights)
    assert checkpoint.check(weights.size, weights.vocabulary_size) == []
    assert SafetensorsFile(folder / "model.safetensors").metadata == {"format": "pt"}
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_old_names_and_tied_tensors_are_read(tmp_path: Path, huggingface_tensors: Tensors, weights: Weights) -> None:
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in huggingface_tensors.items()
    }
    assert sum("gamma" in name for name in old) == 4
    more = {
        DECODER: huggingface_tensors[WORD_EMBEDDINGS],
        "cls.predictions.decoder.bias": huggingface_tensors["cls.predictions.bias"],
        "bert.embeddings.position_ids": np.arange(12, dtype=np.float32)[None],
    }
    path = tmp_path / "model.safetensors"
    write_safetensors(path, old | more, {"format": "pt"})
    checkpoint = HuggingFaceCheckpoint(path)
    assert equal_bits(load_weights(checkpoint, HUGGINGFACE), weights)
    assert checkpoint.check(weights.size, 31) == [
        "there is no config.json beside it, so 2 heads and GELU with tanh are assumed"
    ]


@pytest.mark.parametrize("name", [DECODER, "cls.predictions.decoder.bias"])
def test_untied_decoder_is_an_error(tmp_path: Path, huggingface_tensors: Tensors, name: str) -> None:
    tied_to = WORD_EMBEDDINGS if name == DECODER else "cls.predictions.bias"
    other = huggingface_tensors[tied_to].copy()
    other.flat[-1] += 1
    write_safetensors(tmp_path / "model.safetensors", huggingface_tensors | {name: other}, {"format": "pt"})
    with pytest.raises(WorkError, match=f"{name} differs from {tied_to}; in this model they are tied"):
        HuggingFaceCheckpoint(tmp_path)


def test_additional_tensor_is_an_error(tmp_path: Path, huggingface_tensors: Tensors, size: Size) -> None:
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    more = {name: np.zeros((3, 3), np.float32)}
    write_safetensors(tmp_path / "model.safetensors", huggingface_tensors | more, {"format": "pt"})
    with pytest.raises(WorkError, match=f"has {name}, which a BERT for pre-training of this size does not have"):
        HuggingFaceCheckpoint(tmp_path).check(size, 31)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_all_names_of_approximated_gelu_are_accepted(folder: Path, size: Size, activation: str) -> None:
    change_config(folder, hidden_act=activation)
    assert HuggingFaceCheckpoint(folder).check(size, 31) == []


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in config.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act in config.json is gelu; here GELU is approximated with tanh, so scores"),
        ({"hidden_act": ...}, "hidden_act in config.json is gelu; here GELU is approximated with tanh, so scores"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps in config.json is 1e-05; here it is 1e-12"),
    ],
)
def test_small_differences_are_reported(folder: Path, size: Size, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    (note,) = HuggingFaceCheckpoint(folder).check(size, 31)
    assert note.startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', allowed is gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, gelu"),
        ({"hidden_act": ["x"]}, r"hidden_act is \['x'\], allowed is"),
        ({"num_attention_heads": 4}, "num_attention_heads is 4, allowed for size fixture is 2"),
        ({"num_attention_heads": "2"}, "num_attention_heads is '2', allowed for size fixture is 2"),
    ],
)
def test_another_model_of_the_same_shapes_is_an_error(
    folder: Path, size: Size, changes: dict[str, Any], message: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(WorkError, match=rf"config\.json: {message}"):
        HuggingFaceCheckpoint(folder).check(size, 31)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b"[]", b'"x"'])
def test_invalid_config_json_is_an_error(folder: Path, size: Size, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(WorkError, match=r"config\.json: (cannot be read as JSON|is not a JSON object)"):
        HuggingFaceCheckpoint(folder).check(size, 31)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors.index.json", "the weights are in several files; save them with max_shard_size"),
        ("pytorch_model.bin", "pytorch_model.bin is a pickle, which can run code and is not opened; save it with"),
        ("other", r"has neither model\.safetensors nor the \*\.index of a TensorFlow checkpoint; name another"),
    ],
)
def test_folder_without_the_weights_is_an_error_with_advice(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"{tmp_path}: {message}"):
        HuggingFaceCheckpoint(tmp_path)


def test_folder_is_written_atomically(tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise WorkError("no space")

    monkeypatch.setattr("benchmarks.bert.checkpoint.huggingface.write_atomically", fail)
    with pytest.raises(WorkError, match="no space"):
        write_huggingface_checkpoint(tmp_path / "hf", weights)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(WorkError, match=r"cannot be written \(No space left on device\)"):
        write_huggingface_checkpoint(tmp_path / "hf", weights)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_not_empty_is_not_changed(folder: Path, tmp_path: Path, weights: Weights) -> None:
    before = (folder / "config.json").stat().st_mtime_ns
    (tmp_path / "file").touch()
    for place in (folder, tmp_path / "file"):
        with pytest.raises(UsageError, match=f"{place}: exists already; name a new folder"):
            write_huggingface_checkpoint(place, weights)
    assert (folder / "config.json").stat().st_mtime_ns == before
    shutil.rmtree(folder)
    folder.mkdir()
    assert write_huggingface_checkpoint(folder, weights) == folder / "model.safetensors"


def test_checkpoint_can_be_written_to_the_current_folder(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_huggingface_checkpoint(Path(), weights)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
