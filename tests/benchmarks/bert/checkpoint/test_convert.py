"""Conversion of checkpoints: detection of formats, bit-exact conversion in all directions, and errors."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint import convert as convert_module
from benchmarks.bert.checkpoint.convert import convert, open_checkpoint
from benchmarks.bert.checkpoint.huggingface import write_huggingface_checkpoint
from benchmarks.bert.checkpoint.podium import write_podium_checkpoint
from benchmarks.bert.checkpoint.tensorflow import TensorFlowCheckpoint
from benchmarks.bert.checkpoint.weights import SafetensorsFile, Weights, write_safetensors
from benchmarks.bert.sizes import LARGE, SIZES, TINY, Size
from podium.core.errors import PodiumError, UsageError, WorkError

CopyFixture = Callable[..., Path]
Tensors = dict[str, NDArray[np.float32]]


@pytest.mark.parametrize("name", ["model.ckpt-28252", "split.ckpt-7"])
def test_tensorflow_checkpoint_is_converted_bit_for_bit(
    tmp_path: Path, tensorflow: CopyFixture, reference_weights: Tensors, size: Size, name: str
) -> None:
    out, progress = tmp_path / "new" / "x.safetensors", list[tuple[int, int]]()
    done = convert(tensorflow(name), out, on_tensor=lambda number, total: progress.append((number, total)))
    found, reference = SafetensorsFile(out), reference_weights
    layer = "bert/encoder/layer_0"
    three = [reference[f"{layer}/attention/self/{part}/kernel"].T for part in ("query", "key", "value")]
    assert np.array_equal(found.read("layers.0.qkv.weight"), np.concatenate(three))
    biases = [reference[f"{layer}/attention/self/{part}/bias"] for part in ("query", "key", "value")]
    assert np.array_equal(found.read("layers.0.qkv.bias"), np.concatenate(biases))
    for podium_name, expected in {
        "embeddings.word.weight": reference["bert/embeddings/word_embeddings"],
        "embeddings.position.weight": reference["bert/embeddings/position_embeddings"],
        "embeddings.segment.weight": reference["bert/embeddings/token_type_embeddings"],
        "embeddings.norm.weight": reference["bert/embeddings/LayerNorm/gamma"],
        "embeddings.norm.bias": reference["bert/embeddings/LayerNorm/beta"],
        "layers.0.attention_output.weight": reference[f"{layer}/attention/output/dense/kernel"].T,
        "layers.0.attention_output.bias": reference[f"{layer}/attention/output/dense/bias"],
        "layers.0.attention_norm.weight": reference[f"{layer}/attention/output/LayerNorm/gamma"],
        "layers.0.attention_norm.bias": reference[f"{layer}/attention/output/LayerNorm/beta"],
        "layers.0.intermediate.weight": reference[f"{layer}/intermediate/dense/kernel"].T,
        "layers.0.intermediate.bias": reference[f"{layer}/intermediate/dense/bias"],
        "layers.0.output.weight": reference[f"{layer}/output/dense/kernel"].T,
        "layers.0.output.bias": reference[f"{layer}/output/dense/bias"],
        "layers.0.output_norm.weight": reference[f"{layer}/output/LayerNorm/gamma"],
        "layers.0.output_norm.bias": reference[f"{layer}/output/LayerNorm/beta"],
        "pooler.weight": reference["bert/pooler/dense/kernel"].T,
        "pooler.bias": reference["bert/pooler/dense/bias"],
        "masked_lm.transform.weight": reference["cls/predictions/transform/dense/kernel"].T,
        "masked_lm.transform.bias": reference["cls/predictions/transform/dense/bias"],
        "masked_lm.norm.weight": reference["cls/predictions/transform/LayerNorm/gamma"],
        "masked_lm.norm.bias": reference["cls/predictions/transform/LayerNorm/beta"],
        "masked_lm.bias": reference["cls/predictions/output_bias"],
        "next_sentence.weight": reference["cls/seq_relationship/output_weights"],
        "next_sentence.bias": reference["cls/seq_relationship/output_bias"],
    }.items():
        assert found.read(podium_name).tobytes() == expected.tobytes(), podium_name
    assert len(found.names) == 26
    assert found.metadata == {
        "format": "podium-checkpoint",
        "format_version": "1",
        "size": "fixture",
        "vocabulary": "31",
    }
    assert (done.size, done.vocabulary_size, done.tensors, done.official) == (size, 31, 30, False)
    assert done.parameters == sum(values.size for values in reference.values()) == size.parameters(31)
    assert (done.file, done.sha256) == (out, hashlib.sha256(out.read_bytes()).hexdigest())
    assert progress == [(number, 30) for number in range(1, 31)]
    assert [path.name for path in out.parent.iterdir()] == ["x.safetensors"]


def test_conversions_through_all_formats_give_the_same_file(tmp_path: Path, tensorflow: CopyFixture) -> None:
    first = convert(tensorflow(), tmp_path / "a.safetensors")
    away = convert(first.file, tmp_path / "hf", to="huggingface")
    assert away.file == tmp_path / "hf" / "model.safetensors"
    directly = convert(tmp_path / "tensorflow", tmp_path / "hf2", to="huggingface")
    assert directly.file.read_bytes() == away.file.read_bytes()
    for source in (tmp_path / "hf", away.file, first.file):
        again = convert(source, tmp_path / "b.safetensors")
        assert again.file.read_bytes() == first.file.read_bytes()
        assert (again.sha256, again.tensors, again.parameters) == (first.sha256, 30, first.parameters)


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001"])
def test_tensorflow_checkpoint_is_found_by_prefix_file_or_folder(tensorflow: CopyFixture, ending: str) -> None:
    prefix = tensorflow()
    for source in (prefix.with_name(prefix.name + ending), prefix.parent):
        kind, checkpoint, _ = open_checkpoint(source)
        assert kind == "TensorFlow's checkpoint"
        assert checkpoint.path == prefix


def test_kind_of_checkpoint_is_detected(tmp_path: Path, weights: Weights) -> None:
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    write_huggingface_checkpoint(tmp_path / "hf", weights)
    kinds = [open_checkpoint(tmp_path / name)[0] for name in ("x.safetensors", "hf", "hf/model.safetensors")]
    assert kinds == ["Podium's checkpoint", "Hugging Face's folder", "Hugging Face's file"]


# Wrong sources


def error_of(source: Path, error: type[PodiumError], size: Size | None = None) -> str:
    """Return the error message of a conversion; check that nothing is written."""
    out = source.parent / "out" / "x.safetensors"
    with pytest.raises(error) as caught:
        convert(source, out, size=size)
    assert type(caught.value) is error
    assert not out.parent.exists()
    return str(caught.value)


def test_path_without_a_checkpoint_is_an_error(tmp_path: Path, tensorflow: CopyFixture) -> None:
    prefix = tensorflow()
    assert error_of(tmp_path / "none", UsageError).startswith(f"{tmp_path}/none: there is no such checkpoint; allowed ")
    (tmp_path / "text").touch()
    assert "text: is not a recognised checkpoint; allowed are" in error_of(tmp_path / "text", UsageError)
    (tmp_path / "empty").mkdir()
    assert "empty: has neither model.safetensors nor" in error_of(tmp_path / "empty", UsageError)
    (prefix.parent / "other.index").touch()
    message = error_of(prefix.parent, UsageError)
    assert message.endswith("in this folder, model.ckpt-28252, other; give the prefix of one")
    prefix.with_name(f"{prefix.name}.index").unlink()
    assert error_of(prefix, UsageError).startswith(
        f"{prefix}.index: there is no such file; name a checkpoint by its pre"
    )


def test_folder_with_a_file_suffix_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    assert "has neither model.safetensors" in error_of(tmp_path / "x.safetensors", UsageError)


def test_damaged_checkpoint_is_an_error_and_nothing_is_written(tensorflow: CopyFixture) -> None:
    prefix = tensorflow()
    (data,) = TensorFlowCheckpoint(prefix).shards
    content = bytearray(data.read_bytes())
    content[4] ^= 1
    data.write_bytes(content)
    assert "do not match their checksum" in error_of(prefix, WorkError)
    data.write_bytes(content[:-2000])
    assert "ends at byte" in error_of(prefix, WorkError)


def test_another_size_than_requested_is_an_error(tensorflow: CopyFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tensorflow()
    assert error_of(prefix, UsageError, size=TINY) == (
        f"{prefix}: its encoder has 1 layer(s) of width 8, size fixture; size tiny was requested, which is 2 × 128"
    )
    monkeypatch.delitem(SIZES, "fixture")
    assert error_of(prefix, UsageError) == (
        f"{prefix}: its encoder has 1 layer(s) of width 8; the sizes are large 24 × 1024, tiny 2 × 128"
    )
    assert error_of(prefix, UsageError, size=LARGE).endswith("size large was requested, which is 24 × 1024")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bert.pooler.dense.bias": None}, "lacks bert.pooler.dense.bias of the 30 tensors of size fixture; use a"),
        (
            {f"cls.seq_relationship.{word}": None for word in ("weight", "bias")}
            | {f"cls.predictions.transform.dense.{word}": None for word in ("weight", "bias")},
            "lacks cls.predictions.transform.dense.weight, cls.predictions.transform.dense.bias, "
            "cls.seq_relationship.weight and 1 more of the 30 tensors",
        ),
        (
            {"bert.encoder.layer.0.output.dense.weight": (16, 8)},
            "bert.encoder.layer.0.output.dense.weight is [16, 8], allowed for size fixture is [8, 16]",
        ),
        (
            {"bert.embeddings.position_embeddings.weight": (13, 8)},
            "bert.embeddings.position_embeddings.weight is [13, 8], allowed for size fixture is [12, 8]",
        ),
        ({"bert.embeddings.word_embeddings.weight": None}, "lacks bert.embeddings.word_embeddings.weight, so it is no"),
        ({"bert.embeddings.word_embeddings.weight": (31,)}, "is [31], allowed is [vocabulary, hidden]"),
        ({"bert.encoder.layer.1.output.dense.bias": (8,)}, "its encoder has 2 layer(s) of width 8"),
        ({"more": (1,)}, "has more, which a BERT for pre-training of this size does not have"),
    ],
)
def test_missing_or_misshapen_tensor_is_reported(
    tmp_path: Path, huggingface_tensors: Tensors, change: dict[str, tuple[int, ...] | None], message: str
) -> None:
    tensors = dict(huggingface_tensors)
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    write_safetensors(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    kind = UsageError if "its encoder has" in message else WorkError
    assert message in error_of(tmp_path / "x.safetensors", kind)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_an_error(tmp_path: Path, huggingface_tensors: Tensors, value: float) -> None:
    huggingface_tensors["bert.encoder.layer.0.attention.self.value.weight"][-1, -1] = value
    write_safetensors(tmp_path / "x.safetensors", huggingface_tensors, {"format": "pt"})
    message = "self.value.weight has values that are infinite or NaN, 1 in all; use another checkpoint"
    assert error_of(tmp_path / "x.safetensors", WorkError).endswith(message)


# Wrong output paths


def test_invalid_output_path_is_an_error_before_reading(tmp_path: Path) -> None:
    source = tmp_path / "none"
    with pytest.raises(UsageError, match=r"out: the output is a file; give a file name that ends in \.safetensors"):
        convert(source, tmp_path / "out")
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(UsageError, match=r"the output is a file; give a file name that ends in \.safetensors"):
        convert(source, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="--to huggingface writes a folder; give the name of a folder"):
        convert(source, tmp_path / "y.safetensors", to="huggingface")


@pytest.mark.parametrize("to", ["podium", "huggingface"])
def test_full_disk_leaves_no_partial_file(
    tensorflow: CopyFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    source = tensorflow()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("os.fsync", fail)
    out = tmp_path / "out" / ("x.safetensors" if to == "podium" else "hf")
    with pytest.raises(WorkError, match=r"cannot be written \(No space left on device\)"):
        convert(source, out, to=to)  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


# Recognition of MLPerf's checkpoint


def test_mlperf_checkpoint_is_recognised_by_size_and_md5(
    tensorflow: CopyFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (convert_module.OFFICIAL_BYTES, convert_module.OFFICIAL_MD5) == (
        4_034_713_312,
        "50797acd537880bfb5a7ade80d976129",
    )
    prefix = tensorflow()
    content = TensorFlowCheckpoint(prefix).shards[0].read_bytes()
    monkeypatch.setattr(convert_module, "OFFICIAL_BYTES", len(content))
    assert not convert(prefix, tmp_path / "x.safetensors").official
    monkeypatch.setattr(convert_module, "OFFICIAL_MD5", hashlib.md5(content).hexdigest())
    done = convert(prefix, tmp_path / "x.safetensors")
    assert done.official
    assert not convert(done.file, tmp_path / "y.safetensors").official
    monkeypatch.setattr(convert_module, "OFFICIAL_BYTES", len(content) + 1)
    monkeypatch.setattr(hashlib, "file_digest", None)  # must not be called
    assert not convert_module.is_official(TensorFlowCheckpoint(prefix).shards)
