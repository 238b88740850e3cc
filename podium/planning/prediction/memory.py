"""Estimate of the device memory of a run, and a warning if its accelerators have less.

Per parameter: fp32 values and gradients, 4 bytes each; two moments, 8 bytes (divided by the ranks if the optimizer is
sharded); in half precision 2 bytes for the cast values; with half-precision communication 2 bytes for the send buffer.
Per token of the largest micro-batch and per layer: 34·hidden bytes of activations in half precision (16 half-precision
values and two dropout masks of one byte for each hidden unit; 66·hidden in fp32), and with padded attention
5·heads·max_length bytes for the probabilities (Korthikanti et al., arXiv 2205.05198, equation 1; other attention stores
none). Per masked token: the logits of the vocabulary and their fp32 gradients. In addition an assumed constant for the
CUDA context, NCCL and workspaces. Fragmentation of the allocator is not included.
"""

import re

from podium.core.errors import UsageError
from podium.planning.prediction.plan import FULL_BYTES, PROCESSORS, Plan
from podium.planning.prediction.rank_load import compute_load

CONTEXT_BYTES = 1.5e9
# A plan that needs more than this many times the memory is refused; the error of the estimate is smaller.
REFUSAL_FACTOR = 2.0


def estimate_memory_bytes(plan: Plan) -> float:
    """Return the estimated device memory, in bytes, of the rank with the largest micro-batch."""
    size, value = plan.size, 2 if plan.half_precision else 4
    owners = 1 if plan.sharding == "none" else plan.machine.ranks
    wire = plan.gradient_bytes if plan.gradient_bytes < FULL_BYTES and plan.machine.ranks > 1 else 0
    parameter = 4 + 4 + 8 / owners + (value if plan.half_precision else 0) + wire
    token = float((16 * value + 2) * size.hidden)
    if plan.dense_attention:
        token += 5 * size.heads * plan.lengths.max_length * value / 2
    tokens = compute_load(plan).busiest_tokens
    masked = tokens * plan.lengths.means[2] / plan.lengths.means[0]
    head = masked * size.vocabulary_size * (value + 4)
    return float(parameter * plan.parameters + size.layers * token * tokens + head + CONTEXT_BYTES)


def accelerator_memory_bytes(capacity: str, name: str, processor: str) -> float | None:
    """Return an accelerator's memory in bytes; None if unknown.

    It is read from the capacity in the description (`80 GB`), else from the name, else from PROCESSORS.
    """
    for text in (capacity, name):
        # The slice bounds the search in text from a configuration file.
        if found := re.search(r"(\d+(?:\.\d+)?)\s*(G|T)i?B", text[:200], re.IGNORECASE):
            return float(found[1]) * (1e9 if found[2].upper() == "G" else 1e12)
    return PROCESSORS[processor].memory_bytes


def memory_warnings(plan: Plan, system: str, name: str) -> list[str]:
    """Return a warning if the plan needs more memory than the accelerator has, or if its memory is not stated.

    Raises UsageError if it needs more than REFUSAL_FACTOR times the memory.
    """
    needed, gb = estimate_memory_bytes(plan), 1e9
    if plan.memory_bytes is None:
        return [f"the memory of {name} is not stated; the run needs about {needed / gb:.0f} GB"]
    if needed <= plan.memory_bytes:
        return []
    capacity = f"the {plan.memory_bytes / gb:.0f} GB of {name}"
    local = plan.global_batch_size // (plan.machine.ranks * plan.accumulation_steps)
    if needed > REFUSAL_FACTOR * plan.memory_bytes:
        raise UsageError(
            f"{system}: global_batch_size {plan.global_batch_size:,}: micro-batches of {local:,} samples need about "
            f"{needed / gb:.0f} GB, far more than {capacity}; use more gradient_accumulation_steps, or a smaller "
            "global_batch_size"
        )
    return [
        f"micro-batches of {local:,} samples need about {needed / gb:.0f} GB by an estimate, more than {capacity}; use "
        "more gradient_accumulation_steps"
    ]
