"""Podium's format of initial weights: one safetensors file with model size and vocabulary size in its metadata."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.names import PODIUM, podium_shapes
from benchmarks.bert.checkpoint.weights import SafetensorsFile, Weights, check_shapes, require_finite, write_safetensors
from benchmarks.bert.sizes import SIZES, Size
from podium.core.errors import UsageError, WorkError

FORMAT = "podium-checkpoint"
FORMAT_VERSION = "1"
ADVICE = "make one with `podium data checkpoint SOURCE OUT`"


class PodiumCheckpoint(SafetensorsFile):
    """An open checkpoint in Podium's format. Opening checks everything except the values.

    Raises UsageError if the file is missing or has another format, WorkError if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            found = "is a folder" if path.is_dir() else "there is no such checkpoint"
            raise UsageError(f"{path}: {found}; {ADVICE}")
        super().__init__(path)
        metadata = self.metadata
        if metadata.get("format") != FORMAT:
            raise UsageError(f"{path}: is not a Podium checkpoint; {ADVICE} from it")
        if metadata.get("format_version") != FORMAT_VERSION:
            found = metadata.get("format_version", "missing")
            raise UsageError(f"{path}: its format_version is {found}, allowed is {FORMAT_VERSION}; {ADVICE} again")
        name, vocabulary = metadata.get("size", "missing"), metadata.get("vocabulary", "missing")
        if name not in SIZES:
            raise WorkError(f"{path}: its size is {name}, allowed is {', '.join(SIZES)}; {ADVICE} again")
        embedding_rows = self.shape(PODIUM.word_embeddings)[:1] if PODIUM.word_embeddings in self.names else ()
        if embedding_rows and vocabulary != str(embedding_rows[0]):
            found = f"its vocabulary is {vocabulary}, but its word embeddings have {embedding_rows[0]} rows"
            raise WorkError(f"{path}: {found}; {ADVICE} again")
        self.size = SIZES[name]
        self.vocabulary_size: int = embedding_rows[0] if embedding_rows else 0
        check_shapes(self, PODIUM, self.size, self.vocabulary_size)
        more = sorted(set(self.names) - set(podium_shapes(self.size, self.vocabulary_size)))
        if more:
            raise WorkError(f"{path}: has {more[0]}, which size {name} does not have; {ADVICE} again")

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a float32 tensor. Raises WorkError if it cannot be read or has values that are not finite."""
        return require_finite(self.path, name, super().read(name))

    def require_model_size(self, size: Size, vocabulary: int | None = None) -> None:
        """Raise UsageError unless the weights have this model size and, if one is given, this vocabulary size."""
        if self.size != size:
            raise UsageError(f"{self.path}: the checkpoint is of size {self.size.name}, the model of size {size.name}")
        if vocabulary is not None and self.vocabulary_size != vocabulary:
            raise UsageError(
                f"{self.path}: the checkpoint has a vocabulary of {self.vocabulary_size} tokens, the vocabulary in use "
                f"{vocabulary}; use the vocabulary that the checkpoint was trained with"
            )


def write_podium_checkpoint(path: Path, weights: Weights) -> Path:
    """Write weights as a Podium checkpoint, atomically; return the path. Raises WorkError if it cannot be written."""
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "size": weights.size.name,
        "vocabulary": str(weights.vocabulary_size),
    }
    write_safetensors(path, weights.tensors, metadata)
    return path
