"""BERT's tensors by the names of the official checker, its parameters, and the operations of training."""

import ast
import json
from pathlib import Path

import mlperf_logging
import numpy as np
import pytest
import yaml

from benchmarks.bert.sizes import LARGE, SIZES, TINY, Size

VOCABULARY = 30_522
HISTOGRAM = Path(__file__).resolve().parents[4] / "shared" / "data" / "wikipedia_length_histogram_512.json"


def test_large_has_the_parameters_of_the_reference() -> None:
    assert len(LARGE.tensors(VOCABULARY)) == 398
    assert LARGE.parameters(VOCABULARY) == 336_226_108


def test_tensor_names_are_those_of_the_official_checker() -> None:
    rules = Path(mlperf_logging.__path__[0]) / "compliance_checker" / "training_2.0.0" / "closed_bert.yaml"
    (end,) = [rule["END"] for rule in yaml.safe_load(rules.read_text(encoding="utf-8")) if "END" in rule]
    names = [
        node.value
        for node in ast.walk(ast.parse(end["CHECK"].strip(), mode="eval"))
        if isinstance(node, ast.Constant) and "/" in str(node.value)
    ]
    assert len(names) == 398
    assert sorted(LARGE.tensors(VOCABULARY)) == sorted(names)


def test_tensor_shapes_follow_the_size() -> None:
    tensors = TINY.tensors(100)
    assert tensors["bert/embeddings/word_embeddings"] == (100, 128)
    assert tensors["bert/encoder/layer_1/intermediate/dense/kernel"] == (128, 512)
    assert tensors["cls/predictions/output_bias"] == (100,)
    assert not any("layer_2" in name for name in tensors)


@pytest.mark.parametrize("size", SIZES.values(), ids=lambda size: size.name)
def test_hidden_size_is_a_multiple_of_the_heads(size: Size) -> None:
    assert size.head_size * size.heads == size.hidden
    assert SIZES[size.name] is size
    assert len(size.local_heads) in (0, size.heads)


def masked(length: int) -> int:
    return min(76, max(1, round(0.15 * length)))


def test_a_padded_sequence_costs_1019_8_gflop() -> None:
    assert LARGE.training_flops([512], 76, VOCABULARY) / 1e9 == pytest.approx(1019.8, abs=0.1)


def test_the_mean_sequence_of_wikipedia_costs_497_5_gflop() -> None:
    lengths = [70, 439]  # their mean is 254.5 tokens and their mean square 98.8k, as of the data set
    assert LARGE.training_flops(lengths, 2 * 38, VOCABULARY) / 2 / 1e9 == pytest.approx(497.5, abs=0.3)


def test_a_sequence_of_wikipedia_costs_half_of_a_padded_one() -> None:
    if not HISTOGRAM.is_file():
        pytest.skip(f"there is no {HISTOGRAM}")
    counts = dict(enumerate(json.loads(HISTOGRAM.read_text(encoding="utf-8")), start=1))
    flops = sum(count * LARGE.training_flops([n], masked(n), VOCABULARY) for n, count in counts.items())
    assert flops / sum(counts.values()) / 1e9 == pytest.approx(497.5, rel=0.01)


def test_the_cost_of_a_batch_is_the_sum_over_its_sequences() -> None:
    whole = LARGE.training_flops([5, 100, 512], 3, VOCABULARY)
    assert whole == pytest.approx(sum(LARGE.training_flops([n], 1, VOCABULARY) for n in (5, 100, 512)))
    assert whole == LARGE.training_flops(iter([512, 100, 5]), 3, VOCABULARY)
    assert LARGE.training_flops([], 0, VOCABULARY) == 0
    lengths = np.array([5, 100, 512])
    assert (
        whole == LARGE.training_flops(lengths, 3, VOCABULARY) == LARGE.flops_from_totals(3, 617, 272_169, 3, VOCABULARY)
    )


def test_attention_costs_grow_with_the_square_of_the_length() -> None:
    one, two = LARGE.training_flops([100, 100], 0, VOCABULARY), LARGE.training_flops([200], 0, VOCABULARY)
    pairs, pooled_sequence = 200**2 - 2 * 100**2, 6 * (1024 * 1024 + 2 * 1024)
    assert two - one == pytest.approx(12 * 24 * 1024 * pairs - pooled_sequence)


def test_last_layer_can_count_only_the_needed_tokens() -> None:
    """100 tokens, of which 15 are masked and one is [CLS]: output product and both feed-forward products."""
    whole = LARGE.training_flops([100], 15, VOCABULARY)
    skipped = 6 * (1024 * 1024 + 2 * 1024 * 4096) * (100 - 15 - 1)
    assert LARGE.training_flops([100], 15, VOCABULARY, "needed") == pytest.approx(whole - skipped)
    assert LARGE.training_flops([100], 15, VOCABULARY, "all") == whole
