"""Names of BERT's tensors in the reference's TensorFlow checkpoint, in Hugging Face's, and in Podium's.

Each of the reference's tensors is one of Podium's tensors, or some of its rows. Podium's names are those of
`BertForPreTraining.state_dict()` of an implementation. There the weights of query, key and value are one tensor
[3·hidden, hidden], in this order.

Hugging Face's names are those of transformers' `BertForPreTraining`. In all three layouts output 0 of the
next-sentence head means "is next" and output 1 means "random".
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.bert.sizes import Size

Shape = tuple[int, ...]

# TensorFlow's module or tensor → Podium's.
_MODULES = {
    "bert/embeddings/word_embeddings": "embeddings.word.weight",
    "bert/embeddings/position_embeddings": "embeddings.position.weight",
    "bert/embeddings/token_type_embeddings": "embeddings.segment.weight",
    "bert/embeddings/LayerNorm": "embeddings.norm",
    "bert/pooler/dense": "pooler",
    "cls/predictions/output_bias": "masked_lm.bias",
    "cls/predictions/transform/dense": "masked_lm.transform",
    "cls/predictions/transform/LayerNorm": "masked_lm.norm",
    "cls/seq_relationship/output_weights": "next_sentence.weight",
    "cls/seq_relationship/output_bias": "next_sentence.bias",
}

# The same for the modules of each layer.
_LAYER_MODULES = {
    "attention/self/query": "qkv",
    "attention/self/key": "qkv",
    "attention/self/value": "qkv",
    "attention/output/dense": "attention_output",
    "attention/output/LayerNorm": "attention_norm",
    "intermediate/dense": "intermediate",
    "output/dense": "output",
    "output/LayerNorm": "output_norm",
}
_QKV_ORDER = ("query", "key", "value")  # the order of their rows in qkv

# TensorFlow's parameter name (the last component) → PyTorch's.
_PARAMETERS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}


@dataclass(frozen=True)
class Part:
    """One tensor of a layout and its location in Podium's tensors.

    The tensor is `rows` of Podium's tensor `podium_name`, transposed if `transposed`.
    """

    name: str
    shape: Shape
    podium_name: str
    rows: slice = field(default_factory=lambda: slice(None))
    transposed: bool = False


@dataclass(frozen=True)
class Layout:
    """The tensors of one checkpoint format."""

    word_embeddings: str  # name of the word embeddings [vocabulary size, hidden]
    layer: re.Pattern[str]  # matches a tensor name; group 1 is the index of the layer
    parts: Callable[[Size, int], list[Part]]  # the tensors for a model size and a vocabulary size


def podium_shapes(size: Size, vocabulary: int) -> dict[str, Shape]:
    """Return the name and shape of each of Podium's tensors."""
    shapes: dict[str, Shape] = {}
    for part in tensorflow_parts(size, vocabulary):
        podium_shape = part.shape[::-1] if part.transposed else part.shape
        shapes[part.podium_name] = podium_shape if part.rows == slice(None) else (3 * size.hidden, *podium_shape[1:])
    return shapes


def tensorflow_parts(size: Size, vocabulary: int) -> list[Part]:
    """Return the reference's tensors. Its kernels are [inputs, outputs]; Podium's weights are [outputs, inputs]."""
    parts = []
    for name, shape in size.tensors(vocabulary).items():
        rows = slice(None)
        if third := re.search("/self/(query|key|value)/", name):
            start = _QKV_ORDER.index(third[1]) * size.hidden
            rows = slice(start, start + size.hidden)
        parts.append(Part(name, shape, _podium_name(name), rows, transposed=name.endswith("/kernel")))
    return parts


def huggingface_parts(size: Size, vocabulary: int) -> list[Part]:
    """Return Hugging Face's tensors without the decoder, which is tied to the word embeddings."""
    return [
        Part(
            _huggingface_name(part.name),
            part.shape[::-1] if part.transposed else part.shape,
            part.podium_name,
            part.rows,
        )
        for part in tensorflow_parts(size, vocabulary)
    ]


def podium_parts(size: Size, vocabulary: int) -> list[Part]:
    """Return Podium's tensors, each as one part."""
    return [Part(name, shape, name) for name, shape in podium_shapes(size, vocabulary).items()]


TENSORFLOW = Layout("bert/embeddings/word_embeddings", re.compile(r"^bert/encoder/layer_(\d+)/"), tensorflow_parts)
HUGGINGFACE = Layout(
    "bert.embeddings.word_embeddings.weight", re.compile(r"^bert\.encoder\.layer\.(\d+)\."), huggingface_parts
)
PODIUM = Layout("embeddings.word.weight", re.compile(r"^layers\.(\d+)\."), podium_parts)


def _podium_name(tensorflow: str) -> str:
    if tensorflow in _MODULES:
        return _MODULES[tensorflow]
    module, _, parameter = tensorflow.rpartition("/")
    layer = re.fullmatch(r"bert/encoder/layer_(\d+)/(.+)", module)
    module_name = f"layers.{layer[1]}.{_LAYER_MODULES[layer[2]]}" if layer else _MODULES[module]
    return f"{module_name}.{_PARAMETERS[parameter]}"


def _huggingface_name(tensorflow: str) -> str:
    """Return Hugging Face's name of a tensor, by the rule with which transformers reads TensorFlow checkpoints."""
    module, _, parameter = re.sub(r"/layer_(\d+)/", r"/layer/\1/", tensorflow).rpartition("/")
    return f"{module}/{_PARAMETERS.get(parameter, f'{parameter}/weight')}".replace("/", ".")
