"""Device memory: the formula by hand, what fits, what is doubted, and what is refused."""

from dataclasses import replace

import pytest

from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import plan_of_config
from podium.planning.prediction.memory import CONTEXT_BYTES, needed_bytes, stated_bytes
from podium.planning.prediction.plan import Plan
from podium.planning.prediction.rank_load import load

CONSTANTS = load_constants()
PARAMETERS = 336_226_108


def plan(system: str, *settings: str) -> Plan:
    return plan_of_config(load_system(system, settings=settings), None, CONSTANTS)


def doubts(found: Plan) -> list[str]:
    return [sentence for sentence in found.unsure if "GB of" in sentence]


def test_the_formula_by_hand() -> None:
    found = plan("dgxa100_n1")
    tokens = load(found).busiest_tokens
    assert 56 * 250 < tokens < 56 * 300
    masked = tokens * found.lengths.means[2] / found.lengths.means[0]
    wire = 2 if found.gradient_bytes == 2 else 0
    expected = (18 + wire) * PARAMETERS + 24 * 34 * 1024 * tokens + 6 * 30_522 * masked + CONTEXT_BYTES
    assert needed_bytes(found) == pytest.approx(expected)
    sharded = replace(found, sharing="whole_tensors")
    assert needed_bytes(found) - needed_bytes(sharded) == pytest.approx(7 * PARAMETERS)
    assert needed_bytes(replace(found, half_precision=False)) > 1.5 * needed_bytes(found) - 6e9


def test_padded_attention_keeps_every_pair() -> None:
    padded = plan("dgxa100_n1", "balancing=padded", "attention=padded")
    assert load(padded).busiest_tokens == 56 * 512
    without = replace(padded, dense_attention=False)
    assert needed_bytes(padded) - needed_bytes(without) == pytest.approx(24 * 5 * 16 * 512**2 * 56)
    assert doubts(padded) == []


@pytest.mark.parametrize("system", ["dgxa100_n1", "academic_t4"])
def test_56_samples_fit_into_80_gb_and_seven_into_16(system: str) -> None:
    found = plan(system)
    assert found.memory_bytes in (80e9, 16e9)
    assert doubts(found) == []


def test_too_large_a_micro_batch_is_doubted_and_far_too_large_a_one_refused() -> None:
    indexed = ("academic_t4", "recipe=indexed")
    assert doubts(plan(*indexed)) == []
    (sentence,) = doubts(plan(*indexed, "gradient_accumulation_steps=2"))
    assert "micro-batches of 64 samples need about" in sentence
    assert "of the 16 GB of NVIDIA T4" in sentence
    with pytest.raises(UsageError, match=r"academic_t4: global_batch_size 4,096 needs about .* of the 16 GB"):
        plan(*indexed, "gradient_accumulation_steps=1")


def test_memory_is_as_described_or_named_or_known() -> None:
    assert stated_bytes("80 GB", "NVIDIA A100", "a100_sxm") == 80e9
    assert stated_bytes("not stated", "NVIDIA A100-SXM4-40GB", "a100_sxm") == 40e9
    assert stated_bytes("not stated", "NVIDIA T4", "t4") == 16e9
    assert stated_bytes("", "NVIDIA A100", "a100_sxm") is None
    assert stated_bytes("1.5 TB", "", "h200") == 1.5e12
