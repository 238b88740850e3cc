"""Conversion of a checkpoint of any format to Podium's or Hugging Face's, with a report of what was found."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.bert.checkpoint.huggingface import HuggingFaceCheckpoint, write_huggingface
from benchmarks.bert.checkpoint.names import HUGGINGFACE, PODIUM, TENSORFLOW, Layout
from benchmarks.bert.checkpoint.podium import FORMAT, PodiumCheckpoint, write_podium
from benchmarks.bert.checkpoint.tensorflow import TensorFlowCheckpoint
from benchmarks.bert.checkpoint.weights import SUFFIX, SafetensorsFile, Source, gather
from benchmarks.bert.sizes import Size
from podium.core.errors import UsageError
from podium.core.files import has_md5, make_folder, sha256_of

Target = Literal["podium", "huggingface"]

OFFICIAL_BYTES = 4_034_713_312
OFFICIAL_MD5 = "50797acd537880bfb5a7ade80d976129"  # of model.ckpt-28252.data-00000-of-00001, as MLPerf publishes them
# The name of a TensorFlow checkpoint's file, which begins with its prefix.
TENSORFLOW_FILE = re.compile(r"(.+)\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")


@dataclass(frozen=True)
class Converted:
    """What was read from where, and the file of weights that it became."""

    source: Path
    kind: str
    size: Size
    vocabulary: int
    tensors: int  # tensors, counted as the reference does: queries, keys and values each for itself
    parameters: int
    official: bool  # whether the source is MLPerf's own checkpoint, to the byte
    notes: tuple[str, ...]  # what a person should know
    file: Path
    sha256: str


def convert(
    source: Path,
    out: Path,
    *,
    size: Size | None = None,
    to: Target = "podium",
    on_tensor: Callable[[int, int], None] = lambda *_: None,
) -> Converted:
    """Read a checkpoint, check it and write it anew: a .safetensors file, or for Hugging Face a folder.

    `size` is found from the shapes unless it is given. Every value stays as it is, bit for bit. Raises UsageError for
    what is missing or not of this size, WorkError for what is damaged or cannot be written.
    """
    if to == "huggingface" and out.suffix == SUFFIX:
        raise UsageError(f"{out}: with --to huggingface a folder is written; name one")
    if to == "podium" and (out.suffix != SUFFIX or out.is_dir()):
        raise UsageError(f"{out}: a file is written, and its name ends in {SUFFIX}; name one")
    kind, opened, layout = open_checkpoint(source)
    weights = gather(opened, layout, size, on_tensor)
    notes = opened.check(weights.size, weights.vocabulary) if isinstance(opened, HuggingFaceCheckpoint) else []
    official = isinstance(opened, TensorFlowCheckpoint) and is_official(opened.shards)
    make_folder(out.parent)
    file = (write_huggingface if to == "huggingface" else write_podium)(out, weights)
    return Converted(
        source=opened.path,
        kind=kind,
        size=weights.size,
        vocabulary=weights.vocabulary,
        tensors=len(weights.size.tensors(weights.vocabulary)),
        parameters=weights.parameters,
        official=official,
        notes=tuple(notes),
        file=file,
        sha256=sha256_of(file),
    )


def open_checkpoint(source: Path) -> tuple[str, Source, Layout]:
    """What kind of checkpoint a path names, the checkpoint opened, and its layout.

    A path is that of a .safetensors file, of Hugging Face's folder, of a folder with one TensorFlow checkpoint, its
    prefix or one of its files. Raises UsageError for any other.
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
    found = "is no checkpoint that is known by its name" if source.exists() else "there is no such checkpoint"
    allowed = f"a {SUFFIX} file, Hugging Face's folder, or a TensorFlow checkpoint by its prefix"
    raise UsageError(f"{source}: {found}; allowed are {allowed}")


def is_official(shards: list[Path]) -> bool:
    """Whether a TensorFlow checkpoint's data are MLPerf's; the MD5 is computed only where the size agrees."""
    return len(shards) == 1 and has_md5(shards[0], OFFICIAL_BYTES, OFFICIAL_MD5)


def _tensorflow_prefix(source: Path) -> Path | None:
    if source.is_dir():
        found = sorted(source.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(path.stem for path in found)
            raise UsageError(
                f"{source}: there are several TensorFlow checkpoints in it, {names}; name one by its prefix"
            )
        return found[0].with_suffix("") if found else None
    named = TENSORFLOW_FILE.fullmatch(source.name)
    if named and source.is_file():
        return source.with_name(named[1])
    beside = map(TENSORFLOW_FILE.fullmatch, (path.name for path in source.parent.glob("*.*")))
    return source if any(found and found[1] == source.name for found in beside) else None
