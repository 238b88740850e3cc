"""Hugging Face checkpoint folders: model.safetensors and config.json of transformers' `BertForPreTraining`."""

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
# Tied tensors that a file may have besides the tensors they are tied to.
TIED_TENSORS = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
POSITION_IDS = "bert.embeddings.position_ids"  # 0, 1, 2, …, a buffer that older versions of transformers saved
MAX_CONFIG_BYTES = 2**20  # bytes of config.json that are read
LAYER_NORM_EPS = 1e-12
# Names of GELU's approximation with tanh, which is what MLPerf's BERT uses.
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EXACT_GELU = ("gelu", "gelu_python")


class HuggingFaceCheckpoint:
    """An open Hugging Face checkpoint: a folder or its model.safetensors.

    Raises UsageError if a file is missing and WorkError if a file is damaged or its tied tensors differ.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            path = _find_model_file(path)
        self.path = path
        self._file = SafetensorsFile(path)
        # From today's names to the file's: the first versions of transformers had gamma and beta in LayerNorm.
        self._stored_names = {
            name.replace(".LayerNorm.gamma", ".LayerNorm.weight").replace(".LayerNorm.beta", ".LayerNorm.bias"): name
            for name in self._file.names
            if name not in (*TIED_TENSORS, POSITION_IDS)
        }
        self.names = list(self._stored_names)
        for name, tied_to in TIED_TENSORS.items():
            if name not in self._file.names or tied_to not in self._file.names:
                continue
            # Compared as bits, since NaN differs from itself and -0 equals 0.
            if not np.array_equal(self._file.read(name).view(np.uint32), self._file.read(tied_to).view(np.uint32)):
                raise WorkError(f"{path}: {name} differs from {tied_to}; in this model they are tied and must be equal")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._stored_names[name])

    def read(self, name: str) -> NDArray[np.float32]:
        return self._file.read(self._stored_names[name])

    def check(self, size: Size, vocabulary: int) -> list[str]:
        """Compare the tensor names and config.json with a model of this size; return warnings for the user.

        Raises WorkError for additional tensors and for another activation function or number of heads.
        """
        more = sorted(set(self.names) - {part.name for part in huggingface_parts(size, vocabulary)})
        if more:
            raise WorkError(f"{self.path}: has {more[0]}, which a BERT for pre-training of this size does not have")
        path = self.path.with_name(CONFIG)
        if not path.is_file():
            return [f"there is no {CONFIG} beside it, so {size.heads} heads and GELU with tanh are assumed"]
        try:
            with path.open("rb") as file:
                config = json.loads(file.read(MAX_CONFIG_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise WorkError(f"{path}: cannot be read as JSON ({error}); correct it") from error
        if not isinstance(config, dict):
            raise WorkError(f"{path}: is not a JSON object of keys and values; correct it")
        heads = config.get("num_attention_heads", size.heads)
        if heads != size.heads:
            raise WorkError(f"{path}: num_attention_heads is {heads!r}, allowed for size {size.name} is {size.heads}")
        notes = []
        activation = config.get("hidden_act", EXACT_GELU[0])  # transformers' default
        if activation not in TANH_GELU + EXACT_GELU:
            raise WorkError(f"{path}: hidden_act is {activation!r}, allowed is {', '.join(TANH_GELU + EXACT_GELU)}")
        if activation in EXACT_GELU:
            found = f"hidden_act in {CONFIG} is {activation}"
            notes.append(f"{found}; here GELU is approximated with tanh, so scores differ a little")
        epsilon = config.get("layer_norm_eps", LAYER_NORM_EPS)
        if epsilon != LAYER_NORM_EPS:
            notes.append(f"layer_norm_eps in {CONFIG} is {epsilon}; here it is {LAYER_NORM_EPS}")
        return notes


def write_huggingface_checkpoint(folder: Path, weights: Weights) -> Path:
    """Write a folder that `BertForPreTraining.from_pretrained` reads, atomically; return the path of its weights.

    Raises UsageError if the folder exists and is not empty, WorkError if it cannot be written.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder}: exists already; name a new folder")
    parts = huggingface_parts(weights.size, weights.vocabulary_size)
    place = folder.resolve()
    unfinished = make_folder(place.with_name(f".{place.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"))
    try:
        tensors = {part.name: weights.tensors[part.podium_name][part.rows] for part in parts}
        write_safetensors(unfinished / MODEL, tensors, {"format": "pt"})
        config = json.dumps(_config(weights.size, weights.vocabulary_size), indent=2) + "\n"
        write_atomically(unfinished / CONFIG, config)
        # rename(2) replaces an empty folder and fails on any other, so nothing is overwritten in a race.
        unfinished.replace(place)
    except OSError as error:
        raise WorkError(f"{folder}: cannot be written ({error.strerror or error}); check its permissions") from error
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


def _find_model_file(folder: Path) -> Path:
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
    raise UsageError(f"{folder}: has neither {MODEL} nor the *.index of a TensorFlow checkpoint; name another folder")
