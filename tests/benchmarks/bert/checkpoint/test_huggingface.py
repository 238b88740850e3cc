"""Hugging Face's folders: old names, tied tensors, and a configuration that must be that of MLPerf's BERT."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.huggingface import HuggingFaceCheckpoint, write_huggingface
from benchmarks.bert.checkpoint.names import HUGGINGFACE
from benchmarks.bert.checkpoint.weights import SafetensorsFile, Weights, gather, write_safetensors
from benchmarks.bert.sizes import Size
from podium.core.errors import UsageError, WorkError

Tensors = dict[str, NDArray[np.float32]]
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.fixture
def folder(tmp_path: Path, weights: Weights) -> Path:
    write_huggingface(tmp_path / "hf", weights)
    return tmp_path / "hf"


def same(found: Weights, expected: Weights) -> bool:
    assert found.tensors.keys() == expected.tensors.keys()
    return all(found.tensors[name].tobytes() == expected.tensors[name].tobytes() for name in expected.tensors)


@pytest.mark.parametrize("by_file", [False, True])
def test_weights_go_out_and_come_back_to_the_bit(folder: Path, weights: Weights, by_file: bool) -> None:
    checkpoint = HuggingFaceCheckpoint(folder / "model.safetensors" if by_file else folder)
    assert same(gather(checkpoint, HUGGINGFACE), weights)
    assert checkpoint.check(weights.size, weights.vocabulary) == []
    assert SafetensorsFile(folder / "model.safetensors").metadata == {"format": "pt"}
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_old_names_and_tied_tensors_are_understood(
    tmp_path: Path, huggingface_tensors: Tensors, weights: Weights
) -> None:
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in huggingface_tensors.items()
    }
    assert sum("gamma" in name for name in old) == 4
    more = {
        DECODER: huggingface_tensors[WORDS],
        "cls.predictions.decoder.bias": huggingface_tensors["cls.predictions.bias"],
        "bert.embeddings.position_ids": np.arange(12, dtype=np.float32)[None],
    }
    path = tmp_path / "model.safetensors"
    write_safetensors(path, old | more, {"format": "pt"})
    checkpoint = HuggingFaceCheckpoint(path)
    assert same(gather(checkpoint, HUGGINGFACE), weights)
    assert checkpoint.check(weights.size, 31) == [
        "there is no config.json beside it, so 2 heads and GELU with tanh are assumed"
    ]


@pytest.mark.parametrize("name", [DECODER, "cls.predictions.decoder.bias"])
def test_a_decoder_of_its_own_is_refused(tmp_path: Path, huggingface_tensors: Tensors, name: str) -> None:
    tied_to = WORDS if name == DECODER else "cls.predictions.bias"
    other = huggingface_tensors[tied_to].copy()
    other.flat[-1] += 1
    write_safetensors(tmp_path / "model.safetensors", huggingface_tensors | {name: other}, {"format": "pt"})
    with pytest.raises(WorkError, match=f"{name} differs from {tied_to}; in this BERT they are one"):
        HuggingFaceCheckpoint(tmp_path)


def test_a_tensor_too_many_is_refused(tmp_path: Path, huggingface_tensors: Tensors, size: Size) -> None:
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    more = {name: np.zeros((3, 3), np.float32)}
    write_safetensors(tmp_path / "model.safetensors", huggingface_tensors | more, {"format": "pt"})
    with pytest.raises(WorkError, match=f"holds {name}, which a BERT for pre-training of this size does not have"):
        HuggingFaceCheckpoint(tmp_path).check(size, 31)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_gelu_by_any_name_of_its_approximation_is_right(folder: Path, size: Size, activation: str) -> None:
    rewrite(folder, hidden_act=activation)
    assert HuggingFaceCheckpoint(folder).check(size, 31) == []


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in config.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "config.json says hidden_act gelu; here GELU is approximated with tanh, so scores"),
        ({"hidden_act": ...}, "config.json says hidden_act gelu; here GELU is approximated with tanh, so scores"),
        ({"layer_norm_eps": 1e-5}, "config.json says layer_norm_eps 1e-05; here it is 1e-12"),
    ],
)
def test_a_small_difference_is_told(folder: Path, size: Size, changes: dict[str, Any], words: str) -> None:
    rewrite(folder, **changes)
    (note,) = HuggingFaceCheckpoint(folder).check(size, 31)
    assert note.startswith(words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', allowed is gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, gelu"),
        ({"hidden_act": ["x"]}, r"hidden_act is \['x'\], allowed is"),
        ({"num_attention_heads": 4}, "num_attention_heads is 4, allowed for size fixture is 2"),
        ({"num_attention_heads": "2"}, "num_attention_heads is '2', allowed for size fixture is 2"),
    ],
)
def test_another_model_of_the_same_shapes_is_refused(
    folder: Path, size: Size, changes: dict[str, Any], words: str
) -> None:
    rewrite(folder, **changes)
    with pytest.raises(WorkError, match=rf"config\.json: {words}"):
        HuggingFaceCheckpoint(folder).check(size, 31)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b"[]", b'"x"'])
def test_a_configuration_that_is_none_is_a_sentence(folder: Path, size: Size, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(WorkError, match=r"config\.json: (cannot be read as JSON|holds no keys)"):
        HuggingFaceCheckpoint(folder).check(size, 31)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors.index.json", "the weights are in several files; save them with max_shard_size"),
        ("pytorch_model.bin", "pytorch_model.bin is a pickle, which can run code and is not opened; save it with"),
        ("other", r"there is neither model\.safetensors nor a TensorFlow checkpoint's \*\.index in it; name another"),
    ],
)
def test_a_folder_without_the_one_file_says_what_to_do(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"{tmp_path}: {words}"):
        HuggingFaceCheckpoint(tmp_path)


def test_a_folder_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise WorkError("no space")

    monkeypatch.setattr("benchmarks.bert.checkpoint.huggingface.write_atomically", fail)
    with pytest.raises(WorkError, match="no space"):
        write_huggingface(tmp_path / "hf", weights)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(WorkError, match=r"cannot be written \(No space left on device\)"):
        write_huggingface(tmp_path / "hf", weights)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_not_touched(folder: Path, tmp_path: Path, weights: Weights) -> None:
    before = (folder / "config.json").stat().st_mtime_ns
    (tmp_path / "file").touch()
    for place in (folder, tmp_path / "file"):
        with pytest.raises(UsageError, match=f"{place}: there is something already; name a new folder"):
            write_huggingface(place, weights)
    assert (folder / "config.json").stat().st_mtime_ns == before
    shutil.rmtree(folder)
    folder.mkdir()
    assert write_huggingface(folder, weights) == folder / "model.safetensors"


def test_the_folder_one_is_in_may_be_filled(tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_huggingface(Path(), weights)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
