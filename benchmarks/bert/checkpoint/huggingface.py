"""Hugging Face's checkpoint folders: model.safetensors and config.json of transformers' `BertForPreTraining`."""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.checkpoint.names import huggingface_parts
from benchmarks.bert.checkpoint.weights import SafetensorsFile, Weights, write_safetensors
from benchmarks.bert.rules import CLOSED_DROPOUT
from benchmarks.bert.sizes import Size
from podium.core.errors import UsageError, WorkError
from podium.core.files import PARTIAL_SUFFIX, make_folder, write_atomically

MODEL, CONFIG = "model.safetensors", "config.json"
# Tensors that may be kept besides those they are tied to.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
COUNTED = "bert.embeddings.position_ids"  # 0, 1, 2, …, which older versions kept with the weights
LARGEST_CONFIG = 2**20
LAYER_NORM_EPS = 1e-12
# Names of GELU's approximation with tanh, which is what MLPerf's BERT uses.
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EXACT_GELU = ("gelu", "gelu_python")


class HuggingFaceCheckpoint:
    """A folder, or its model.safetensors; the config.json beside it is checked where there is one.

    Raises UsageError where a file is missing and WorkError where one is damaged or of another model.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            path = _model_in(path)
        self.path = path
        self._file = SafetensorsFile(path)
        # By today's name; files of the first versions have gamma and beta in LayerNorm.
        self._own_names = {
            name.replace(".LayerNorm.gamma", ".LayerNorm.weight").replace(".LayerNorm.beta", ".LayerNorm.bias"): name
            for name in self._file.names
            if name not in (*TIED, COUNTED)
        }
        self.names = list(self._own_names)
        for name, tied_to in TIED.items():
            if name not in self._file.names or tied_to not in self._file.names:
                continue
            if not np.array_equal(self._file.read(name).view(np.uint32), self._file.read(tied_to).view(np.uint32)):
                raise WorkError(f"{path}: {name} differs from {tied_to}; in this BERT they are one")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._own_names[name])

    def read(self, name: str) -> NDArray[np.float32]:
        return self._file.read(self._own_names[name])

    def check(self, size: Size, vocabulary: int) -> list[str]:
        """Compare with the model of this size what shapes do not tell. Returns what a person should know.

        Raises WorkError for tensors that such a model does not have and for another activation or number of heads.
        """
        more = sorted(set(self.names) - {part.name for part in huggingface_parts(size, vocabulary)})
        if more:
            raise WorkError(f"{self.path}: holds {more[0]}, which a BERT for pre-training of this size does not have")
        path = self.path.with_name(CONFIG)
        if not path.is_file():
            return [f"there is no {CONFIG} beside it, so {size.heads} heads and GELU with tanh are assumed"]
        try:
            with path.open("rb") as file:
                config = json.loads(file.read(LARGEST_CONFIG))
        except (OSError, ValueError, RecursionError) as error:
            raise WorkError(f"{path}: cannot be read as JSON ({error}); correct it") from error
        if not isinstance(config, dict):
            raise WorkError(f"{path}: holds no keys; a mapping of keys to values is expected")
        heads = config.get("num_attention_heads", size.heads)
        if heads != size.heads:
            raise WorkError(f"{path}: num_attention_heads is {heads!r}, allowed for size {size.name} is {size.heads}")
        notes = []
        activation = config.get("hidden_act", EXACT_GELU[0])  # transformers' default
        if activation not in TANH_GELU + EXACT_GELU:
            raise WorkError(f"{path}: hidden_act is {activation!r}, allowed is {', '.join(TANH_GELU + EXACT_GELU)}")
        if activation in EXACT_GELU:
            found = f"{CONFIG} says hidden_act {activation}"
            notes.append(f"{found}; here GELU is approximated with tanh, so scores differ a little")
        epsilon = config.get("layer_norm_eps", LAYER_NORM_EPS)
        if epsilon != LAYER_NORM_EPS:
            notes.append(f"{CONFIG} says layer_norm_eps {epsilon}; here it is {LAYER_NORM_EPS}")
        return notes


def write_huggingface(folder: Path, weights: Weights) -> Path:
    """Write a folder that `BertForPreTraining.from_pretrained` reads, whole or not at all; the path of its weights.

    Raises UsageError if something is there already, WorkError if the disk or the permissions do not allow it.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder}: there is something already; name a new folder")
    parts = huggingface_parts(weights.size, weights.vocabulary)
    place = folder.resolve()
    unfinished = make_folder(place.with_name(f".{place.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"))
    try:
        tensors = {part.name: weights.tensors[part.podium][part.rows] for part in parts}
        write_safetensors(unfinished / MODEL, tensors, {"format": "pt"})
        config = json.dumps(_config(weights.size, weights.vocabulary), indent=2) + "\n"
        write_atomically(unfinished / CONFIG, config)
        unfinished.replace(place)
    except OSError as error:
        raise WorkError(f"{folder}: cannot be written ({error.strerror or error}); see who may write there") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder / MODEL


def _config(size: Size, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.feed_forward,
        "max_position_embeddings": size.positions,
        "type_vocab_size": size.segments,
        "hidden_act": TANH_GELU[0],
        "layer_norm_eps": LAYER_NORM_EPS,
        "hidden_dropout_prob": CLOSED_DROPOUT,
        "attention_probs_dropout_prob": CLOSED_DROPOUT,
        "initializer_range": size.initial_std,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _model_in(folder: Path) -> Path:
    path = folder / MODEL
    if path.is_file():
        return path
    if (folder / f"{MODEL}.index.json").is_file():
        raise UsageError(f"{folder}: the weights are in several files; save them with max_shard_size='50GB'")
    if (folder / "pytorch_model.bin").is_file():
        raise UsageError(
            f"{folder}: pytorch_model.bin is a pickle, which can run code and is not opened; "
            "save it with transformers 5, which writes model.safetensors"
        )
    raise UsageError(f"{folder}: there is neither {MODEL} nor a TensorFlow checkpoint's *.index in it; name another")
