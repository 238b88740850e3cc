"""The tables of tensor names: every tensor exactly once, in three layouts."""

import pytest

from benchmarks.bert.checkpoint.names import (
    HUGGINGFACE,
    PODIUM,
    TENSORFLOW,
    Layout,
    Part,
    huggingface_parts,
    podium_shapes,
    tensorflow_parts,
)
from benchmarks.bert.sizes import LARGE, TINY, Size


def part(parts: list[Part], name: str) -> Part:
    return next(part for part in parts if part.name == name)


def test_kernels_are_transposed_and_query_key_value_are_joined(size: Size) -> None:
    parts = tensorflow_parts(size, 31)
    assert part(parts, "bert/encoder/layer_0/attention/self/value/kernel") == Part(
        "bert/encoder/layer_0/attention/self/value/kernel", (8, 8), "layers.0.qkv.weight", slice(16, 24), True
    )
    assert part(parts, "bert/encoder/layer_0/attention/self/key/bias") == Part(
        "bert/encoder/layer_0/attention/self/key/bias", (8,), "layers.0.qkv.bias", slice(8, 16), False
    )
    assert part(parts, "bert/encoder/layer_0/output/dense/kernel") == Part(
        "bert/encoder/layer_0/output/dense/kernel", (16, 8), "layers.0.output.weight", slice(None), True
    )
    assert part(parts, "cls/seq_relationship/output_weights") == Part(
        "cls/seq_relationship/output_weights", (2, 8), "next_sentence.weight", slice(None), False
    )
    assert part(huggingface_parts(size, 31), "bert.encoder.layer.0.output.dense.weight") == Part(
        "bert.encoder.layer.0.output.dense.weight", (8, 16), "layers.0.output.weight", slice(None), False
    )


@pytest.mark.parametrize("layout", [TENSORFLOW, HUGGINGFACE, PODIUM], ids=["tensorflow", "huggingface", "podium"])
@pytest.mark.parametrize("model_size", [LARGE, TINY], ids=lambda size: size.name)
def test_every_row_of_every_tensor_belongs_to_one_part(layout: Layout, model_size: Size) -> None:
    shapes, parts = podium_shapes(model_size, 100), layout.parts(model_size, 100)
    assert len({part.name for part in parts}) == len(parts)
    rows = {name: [0] * shape[0] for name, shape in shapes.items()}
    for one in parts:
        podium_shape = one.shape[::-1] if one.transposed else one.shape
        covered = range(shapes[one.podium_name][0])[one.rows]
        assert podium_shape == (len(covered), *shapes[one.podium_name][1:]), one.name
        for row in covered:
            rows[one.podium_name][row] += 1
    assert all(count == 1 for counts in rows.values() for count in counts)
    numbers = {int(found[1]) for found in (layout.layer.match(one.name) for one in parts) if found}
    assert numbers == set(range(model_size.layers))
    assert next(one.podium_name for one in parts if one.name == layout.word_embeddings) == "embeddings.word.weight"


def test_large_has_the_tensors_of_the_reference() -> None:
    parts = tensorflow_parts(LARGE, 30_522)
    assert {part.name: part.shape for part in parts} == LARGE.tensors(30_522)
    assert len(parts) == len(huggingface_parts(LARGE, 30_522)) == 398
    assert len(podium_shapes(LARGE, 30_522)) == 398 - 24 * 2 * 2
