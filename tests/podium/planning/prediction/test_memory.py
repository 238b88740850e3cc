"""Device memory: the formula by hand, and plans that fit, get a warning, or are refused."""

from dataclasses import replace

import pytest

from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import plan_from_config
from podium.planning.prediction.memory import CONTEXT_BYTES, accelerator_memory_bytes, estimate_memory_bytes
from podium.planning.prediction.plan import Plan
from podium.planning.prediction.rank_load import compute_load

CONSTANTS = load_constants()
PARAMETERS = 336_226_108


def make_plan(system: str, *settings: str) -> Plan:
    return plan_from_config(load_system(system, settings=settings), None, CONSTANTS)


def memory_warnings_of(plan: Plan) -> list[str]:
    return [sentence for sentence in plan.unsure if "GB of" in sentence]


def test_the_formula_by_hand() -> None:
    found = make_plan("dgxa100_n1")
    tokens = compute_load(found).busiest_tokens
    assert 56 * 250 < tokens < 56 * 300
    masked = tokens * found.lengths.means[2] / found.lengths.means[0]
    wire = 2 if found.gradient_bytes == 2 else 0
    expected = (18 + wire) * PARAMETERS + 24 * 34 * 1024 * tokens + 6 * 30_522 * masked + CONTEXT_BYTES
    assert estimate_memory_bytes(found) == pytest.approx(expected)
    sharded = replace(found, sharding="whole_tensors")
    assert estimate_memory_bytes(found) - estimate_memory_bytes(sharded) == pytest.approx(7 * PARAMETERS)
    assert estimate_memory_bytes(replace(found, half_precision=False)) > 1.5 * estimate_memory_bytes(found) - 6e9


def test_padded_attention_stores_the_probability_of_every_pair() -> None:
    padded = make_plan("dgxa100_n1", "balancing=padded", "attention=padded")
    assert compute_load(padded).busiest_tokens == 56 * 512
    without = replace(padded, dense_attention=False)
    assert estimate_memory_bytes(padded) - estimate_memory_bytes(without) == pytest.approx(24 * 5 * 16 * 512**2 * 56)
    assert memory_warnings_of(padded) == []


@pytest.mark.parametrize("system", ["dgxa100_n1", "academic_t4"])
def test_56_samples_fit_into_80_gb_and_seven_into_16(system: str) -> None:
    found = make_plan(system)
    assert found.memory_bytes in (80e9, 16e9)
    assert memory_warnings_of(found) == []


def test_too_large_micro_batch_gets_a_warning_and_far_too_large_one_is_an_error() -> None:
    indexed = ("academic_t4", "recipe=indexed")
    assert memory_warnings_of(make_plan(*indexed)) == []
    (sentence,) = memory_warnings_of(make_plan(*indexed, "gradient_accumulation_steps=2"))
    assert "micro-batches of 64 samples need about" in sentence
    assert "more than the 16 GB of NVIDIA T4" in sentence
    with pytest.raises(
        UsageError,
        match=r"academic_t4: global_batch_size 4,096: micro-batches .* need about .*, far more than the 16 GB",
    ):
        make_plan(*indexed, "gradient_accumulation_steps=1")


def test_memory_comes_from_the_description_the_name_or_the_table() -> None:
    assert accelerator_memory_bytes("80 GB", "NVIDIA A100", "a100_sxm") == 80e9
    assert accelerator_memory_bytes("not stated", "NVIDIA A100-SXM4-40GB", "a100_sxm") == 40e9
    assert accelerator_memory_bytes("not stated", "NVIDIA T4", "t4") == 16e9
    assert accelerator_memory_bytes("", "NVIDIA A100", "a100_sxm") is None
    assert accelerator_memory_bytes("1.5 TB", "", "h200") == 1.5e12
