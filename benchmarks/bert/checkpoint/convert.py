"""Conversion of a checkpoint of any supported format to Podium's or Hugging Face's, with a report of its contents."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.bert.checkpoint.huggingface import HuggingFaceCheckpoint, write_huggingface_checkpoint
from benchmarks.bert.checkpoint.names import HUGGINGFACE, PODIUM, TENSORFLOW, Layout
from benchmarks.bert.checkpoint.podium import FORMAT, PodiumCheckpoint, write_podium_checkpoint
from benchmarks.bert.checkpoint.tensorflow import TensorFlowCheckpoint
from benchmarks.bert.checkpoint.weights import SUFFIX, SafetensorsFile, Source, load_weights
from benchmarks.bert.sizes import Size
from podium.core.errors import UsageError
from podium.core.files import has_md5, make_folder, sha256_of

OutputFormat = Literal["podium", "huggingface"]

# Size and MD5 of model.ckpt-28252.data-00000-of-00001, as published by MLPerf.
OFFICIAL_BYTES = 4_034_713_312
OFFICIAL_MD5 = "50797acd537880bfb5a7ade80d976129"
# A file name of a TensorFlow checkpoint: its prefix and an extension.
TENSORFLOW_FILE = re.compile(r"(.+)\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")


@dataclass(frozen=True)
class ConversionReport:
    """Report of a conversion: the source checkpoint and the file of weights that was written."""

    source: Path
    kind: str
    size: Size
    vocabulary_size: int
    tensors: int  # number of tensors in the reference's layout, where query, key and value are separate
    parameters: int
    official: bool  # whether the source is byte for byte MLPerf's checkpoint
    notes: tuple[str, ...]  # warnings for the user
    file: Path
    sha256: str


def convert(
    source: Path,
    out: Path,
    *,
    size: Size | None = None,
    to: OutputFormat = "podium",
    on_tensor: Callable[[int, int], None] = lambda *_: None,
) -> ConversionReport:
    """Read a checkpoint, check it and write it as a .safetensors file, or for Hugging Face as a folder.

    `size` is detected from the shapes unless it is given. Every value is copied bit for bit. `on_tensor` is called with
    the number of tensors read and their total. Raises UsageError for a missing checkpoint and for another size,
    WorkError for a damaged checkpoint and if the output cannot be written.
    """
    if to == "huggingface" and out.suffix == SUFFIX:
        raise UsageError(f"{out}: --to huggingface writes a folder; give the name of a folder")
    if to == "podium" and (out.suffix != SUFFIX or out.is_dir()):
        raise UsageError(f"{out}: the output is a file; give a file name that ends in {SUFFIX}")
    kind, checkpoint, layout = open_checkpoint(source)
    weights = load_weights(checkpoint, layout, size, on_tensor)
    notes = (
        checkpoint.check(weights.size, weights.vocabulary_size) if isinstance(checkpoint, HuggingFaceCheckpoint) else []
    )
    official = isinstance(checkpoint, TensorFlowCheckpoint) and is_official(checkpoint.shards)
    make_folder(out.parent)
    file = (write_huggingface_checkpoint if to == "huggingface" else write_podium_checkpoint)(out, weights)
    return ConversionReport(
        source=checkpoint.path,
        kind=kind,
        size=weights.size,
        vocabulary_size=weights.vocabulary_size,
        tensors=len(weights.size.tensors(weights.vocabulary_size)),
        parameters=weights.parameters,
        official=official,
        notes=tuple(notes),
        file=file,
        sha256=sha256_of(file),
    )


def open_checkpoint(source: Path) -> tuple[str, Source, Layout]:
    """Open the checkpoint that a path names; return a description of its kind, the open checkpoint and its layout.

    The path is a .safetensors file, a Hugging Face folder, a folder with one TensorFlow checkpoint, the prefix of a
    TensorFlow checkpoint or one of its files. Raises UsageError for any other path.
    """
    if source.is_file() and source.suffix == SUFFIX:
        if SafetensorsFile(source).metadata.get("format") == FORMAT:
            return "Podium's checkpoint", PodiumCheckpoint(source), PODIUM
        return "Hugging Face's file", HuggingFaceCheckpoint(source), HUGGINGFACE
    prefix = _tensorflow_prefix(source)
    if prefix is not None:
        return "TensorFlow's checkpoint", TensorFlowCheckpoint(prefix), TENSORFLOW
    if source.is_dir():
        return "Hugging Face's folder", HuggingFaceCheckpoint(source), HUGGINGFACE
    found = "is not a recognised checkpoint" if source.exists() else "there is no such checkpoint"
    allowed = f"a {SUFFIX} file, a Hugging Face folder, or the prefix of a TensorFlow checkpoint"
    raise UsageError(f"{source}: {found}; allowed are {allowed}")


def is_official(shards: list[Path]) -> bool:
    """Whether the data of a TensorFlow checkpoint are MLPerf's. The MD5 is computed only if the size matches."""
    return len(shards) == 1 and has_md5(shards[0], OFFICIAL_BYTES, OFFICIAL_MD5)


def _tensorflow_prefix(source: Path) -> Path | None:
    if source.is_dir():
        found = sorted(source.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(path.stem for path in found)
            raise UsageError(
                f"{source}: there are several TensorFlow checkpoints in this folder, {names}; give the prefix of one"
            )
        return found[0].with_suffix("") if found else None
    named = TENSORFLOW_FILE.fullmatch(source.name)
    if named and source.is_file():
        return source.with_name(named[1])
    beside = map(TENSORFLOW_FILE.fullmatch, (path.name for path in source.parent.glob("*.*")))
    return source if any(found and found[1] == source.name for found in beside) else None
