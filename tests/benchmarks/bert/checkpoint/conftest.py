"""Fixtures of the checkpoint tests: a very small BERT, its weights, and real TensorFlow checkpoints of it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.names import huggingface_parts, podium_shapes
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.sizes import SIZES, Size

FIXTURE = Path(__file__).parent / "fixture"
SIZE = Size(
    "fixture", layers=1, hidden=8, heads=2, feed_forward=16, evaluation_samples=1, evaluation_interval=1, positions=12
)
VOCABULARY = 31

Tensors = dict[str, NDArray[np.float32]]


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> Size:
    """The model size of the checkpoints in fixture/, registered in SIZES for these tests."""
    monkeypatch.setitem(SIZES, SIZE.name, SIZE)
    return SIZE


@pytest.fixture
def vocabulary() -> int:
    return VOCABULARY


@pytest.fixture
def reference_weights() -> Tensors:
    """The weights that fixture/make.py wrote to the checkpoints, under the reference's names."""
    random = np.random.default_rng(20)
    return {name: random.standard_normal(shape, np.float32) for name, shape in SIZE.tensors(VOCABULARY).items()}


@pytest.fixture
def weights() -> Weights:
    """Other weights, under Podium's names."""
    random = np.random.default_rng(21)
    shapes = podium_shapes(SIZE, VOCABULARY)
    return Weights(SIZE, VOCABULARY, {name: random.standard_normal(shapes[name], np.float32) for name in shapes})


@pytest.fixture
def huggingface_tensors(weights: Weights) -> Tensors:
    """The values of `weights` under Hugging Face's names."""
    parts = huggingface_parts(SIZE, VOCABULARY)
    return {part.name: weights.tensors[part.podium_name][part.rows].copy() for part in parts}


@pytest.fixture
def tensorflow(tmp_path: Path) -> Callable[[str], Path]:
    """Function that copies a checkpoint of fixture/ to an empty folder and returns the prefix of the copy."""

    def copy(name: str = "model.ckpt-28252") -> Path:
        folder = tmp_path / "tensorflow"
        folder.mkdir()
        for path in FIXTURE.glob(f"{name}.*"):
            shutil.copy(path, folder)
        return folder / name

    return copy
