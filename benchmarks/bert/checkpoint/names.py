"""Names of BERT's weights in the reference's TensorFlow checkpoint, in Hugging Face's, and in Podium's.

One table lists, for each of the reference's tensors, its name in every layout, and which rows of which of Podium's
tensors contain its values. Podium's names are those of `BertForPreTraining.state_dict()` of an implementation;
there, queries, keys and values are one tensor [3·hidden, hidden], in this order.

Hugging Face's names are those of transformers' `BertForPreTraining`. In all three layouts the next-sentence head's
output 0 stands for "is next" and 1 for "random".
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.bert.sizes import Size

Shape = tuple[int, ...]
Third = int | None

# TensorFlow's module or tensor → Hugging Face's, the project's, and the third of its rows.
_MODULES: dict[str, tuple[str, str, Third]] = {
    "bert/embeddings/word_embeddings": ("bert.embeddings.word_embeddings.weight", "embeddings.word.weight", None),
    "bert/embeddings/position_embeddings": (
        "bert.embeddings.position_embeddings.weight",
        "embeddings.position.weight",
        None,
    ),
    "bert/embeddings/token_type_embeddings": (
        "bert.embeddings.token_type_embeddings.weight",
        "embeddings.segment.weight",
        None,
    ),
    "bert/embeddings/LayerNorm": ("bert.embeddings.LayerNorm", "embeddings.norm", None),
    "bert/pooler/dense": ("bert.pooler.dense", "pooler", None),
    "cls/predictions/output_bias": ("cls.predictions.bias", "masked_lm.bias", None),
    "cls/predictions/transform/dense": ("cls.predictions.transform.dense", "masked_lm.transform", None),
    "cls/predictions/transform/LayerNorm": ("cls.predictions.transform.LayerNorm", "masked_lm.norm", None),
    "cls/seq_relationship/output_weights": ("cls.seq_relationship.weight", "next_sentence.weight", None),
    "cls/seq_relationship/output_bias": ("cls.seq_relationship.bias", "next_sentence.bias", None),
}

# The same below each layer.
_LAYER_MODULES: dict[str, tuple[str, str, Third]] = {
    "attention/self/query": ("attention.self.query", "qkv", 0),
    "attention/self/key": ("attention.self.key", "qkv", 1),
    "attention/self/value": ("attention.self.value", "qkv", 2),
    "attention/output/dense": ("attention.output.dense", "attention_output", None),
    "attention/output/LayerNorm": ("attention.output.LayerNorm", "attention_norm", None),
    "intermediate/dense": ("intermediate.dense", "intermediate", None),
    "output/dense": ("output.dense", "output", None),
    "output/LayerNorm": ("output.LayerNorm", "output_norm", None),
}

# TensorFlow's last word for a parameter of a module → PyTorch's.
_PARAMETERS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class Part:
    """One tensor of a layout, and where its values lie among the project's.

    `rows` of the project's tensor `podium` are this tensor, turned over if `transposed`.
    """

    name: str
    shape: Shape
    podium: str
    rows: slice = field(default_factory=lambda: slice(None))
    transposed: bool = False


@dataclass(frozen=True)
class Layout:
    """How a kind of checkpoint names its tensors; `parts` gives them for a size and a number of words."""

    words: str  # the tensor [vocabulary, hidden] of word embeddings
    layer: re.Pattern[str]  # finds the number of the layer in a name
    parts: Callable[[Size, int], list[Part]]


def podium_shapes(size: Size, vocabulary: int) -> dict[str, Shape]:
    """Name and shape of each of the project's tensors."""
    shapes: dict[str, Shape] = {}
    for part in tensorflow_parts(size, vocabulary):
        own = part.shape[::-1] if part.transposed else part.shape
        shapes[part.podium] = own if part.rows == slice(None) else (3 * size.hidden, *own[1:])
    return shapes


def tensorflow_parts(size: Size, vocabulary: int) -> list[Part]:
    """The reference's tensors; kernels are [inputs, outputs] there and [outputs, inputs] here."""
    return [part for part, _ in _both(size, vocabulary)]


def huggingface_parts(size: Size, vocabulary: int) -> list[Part]:
    """Hugging Face's tensors without the decoder, which is tied to the word embeddings."""
    return [
        Part(name, part.shape[::-1] if part.transposed else part.shape, part.podium, part.rows)
        for part, name in _both(size, vocabulary)
    ]


def podium_parts(size: Size, vocabulary: int) -> list[Part]:
    """The project's own tensors."""
    return [Part(name, shape, name) for name, shape in podium_shapes(size, vocabulary).items()]


TENSORFLOW = Layout("bert/embeddings/word_embeddings", re.compile(r"^bert/encoder/layer_(\d+)/"), tensorflow_parts)
HUGGINGFACE = Layout(
    "bert.embeddings.word_embeddings.weight", re.compile(r"^bert\.encoder\.layer\.(\d+)\."), huggingface_parts
)
PODIUM = Layout("embeddings.word.weight", re.compile(r"^layers\.(\d+)\."), podium_parts)


def _both(size: Size, vocabulary: int) -> Iterator[tuple[Part, str]]:
    """Every tensor of the reference, and Hugging Face's name of it."""
    for name, shape in size.tensors(vocabulary).items():
        huggingface, podium, third, parameter = _named(name)
        rows = slice(None) if third is None else slice(third * size.hidden, (third + 1) * size.hidden)
        yield Part(name, shape, podium, rows, transposed=parameter == "kernel"), huggingface


def _named(tensorflow: str) -> tuple[str, str, Third, str]:
    """Hugging Face's name, the project's, the third of its rows, and TensorFlow's word for the parameter."""
    if tensorflow in _MODULES:
        return (*_MODULES[tensorflow], "")
    module, _, parameter = tensorflow.rpartition("/")
    layer = re.fullmatch(r"bert/encoder/layer_(\d+)/(.+)", module)
    if layer:
        huggingface, podium, third = _LAYER_MODULES[layer[2]]
        huggingface, podium = f"bert.encoder.layer.{layer[1]}.{huggingface}", f"layers.{layer[1]}.{podium}"
    else:
        huggingface, podium, third = _MODULES[module]
    word = _PARAMETERS[parameter]
    return f"{huggingface}.{word}", f"{podium}.{word}", third, parameter
