"""An estimate of the device memory that a run takes, and the doubt where its accelerators have less.

For each parameter: fp32 values and gradients, 4 bytes each; two moments, 8 bytes (shared by the ranks where the
optimizer is sharded); in half precision 2 bytes for the cast values; on a half-precision wire 2 for what is sent.
For each token of the busiest micro-batch and each layer: 34·hidden bytes of activations in half precision, that is 16
half-precision values and two dropout masks of a byte for each of the hidden width (66·hidden in fp32), and with padded
attention 5·heads·longest bytes for the probabilities (Korthikanti et al., arXiv 2205.05198, equation 1; other attention
keeps none). For each masked token: the vocabulary's logits and their fp32 gradients. Besides: the CUDA context, NCCL
and workspaces, assumed. What the allocator wastes is not counted.
"""

import re

from podium.core.errors import UsageError
from podium.planning.prediction.plan import FULL, PROCESSORS, Plan
from podium.planning.prediction.rank_load import load

CONTEXT_BYTES = 1.5e9
FAR_BEYOND = 2.0  # times the memory from which a plan is refused: the estimate is nearer than that


def needed_bytes(plan: Plan) -> float:
    """Bytes on the device of the rank with the busiest micro-batch."""
    size, value = plan.size, 2 if plan.half_precision else 4
    owners = 1 if plan.sharing == "none" else plan.machine.ranks
    wire = plan.gradient_bytes if plan.gradient_bytes < FULL and plan.machine.ranks > 1 else 0
    parameter = 4 + 4 + 8 / owners + (value if plan.half_precision else 0) + wire
    token = float((16 * value + 2) * size.hidden)
    if plan.dense_attention:
        token += 5 * size.heads * plan.lengths.longest * value / 2
    tokens = load(plan).busiest_tokens
    masked = tokens * plan.lengths.means[2] / plan.lengths.means[0]
    head = masked * size.vocabulary_size * (value + 4)
    return float(parameter * plan.parameters + size.layers * token * tokens + head + CONTEXT_BYTES)


def stated_bytes(capacity: str, name: str, processor: str) -> float | None:
    """An accelerator's memory, from its description's capacity (`80 GB`), its name, or the table; None if unknown."""
    for text in (capacity, name):
        if found := re.search(r"(\d+(?:\.\d+)?)\s*(G|T)i?B", text[:200], re.IGNORECASE):
            return float(found[1]) * (1e9 if found[2].upper() == "G" else 1e12)
    return PROCESSORS[processor].memory_bytes


def memory_doubt(plan: Plan, system: str, name: str) -> list[str]:
    """A sentence if the plan needs more memory than accelerators of this name have. UsageError if it needs far more."""
    needed, gb = needed_bytes(plan), 1e9
    if plan.memory_bytes is None:
        return [f"the memory of {name} is not stated; about {needed / gb:.0f} GB are needed"]
    if needed <= plan.memory_bytes:
        return []
    found = f"about {needed / gb:.0f} GB of the {plan.memory_bytes / gb:.0f} GB of {name}"
    local = plan.global_batch_size // (plan.machine.ranks * plan.accumulation_steps)
    if needed > FAR_BEYOND * plan.memory_bytes:
        raise UsageError(
            f"{system}: global_batch_size {plan.global_batch_size:,} needs {found} for micro-batches of {local:,} "
            "samples; use more gradient_accumulation_steps, or a smaller global_batch_size"
        )
    return [
        f"micro-batches of {local:,} samples need {found}, by an estimate; more gradient_accumulation_steps need less"
    ]
