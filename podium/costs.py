"""What a step costs on each system, as `podium bench` measured it: systems/costs/NAME.json."""

from pathlib import Path

from benchmarks.bert.costs import StepCosts, load_costs
from podium.config import RunConfig
from podium.config.loading import SYSTEMS
from podium.config.measured import differing

COSTS = SYSTEMS / "costs"


def costs_path(system: str) -> Path:
    return COSTS / f"{system}.json"


def measured_costs(config: RunConfig) -> StepCosts | None:
    """None where the system, its device or this model was not measured. Raises UsageError for a damaged file."""
    path = costs_path(config.system)
    if not path.exists():
        return None
    costs, measured = load_costs(path)
    others, _ = differing(config, measured)
    return None if others else costs


def with_measured_costs(config: RunConfig) -> RunConfig:
    """The configuration with the costs to balance by that were measured on its system, where it names none."""
    measured = measured_costs(config)
    relative = measured.relative() if measured else None
    if relative is None:
        return config
    pair, sequence = relative
    return config.model_copy(
        update={
            "pair_cost": pair if config.pair_cost is None else config.pair_cost,
            "sequence_cost": sequence if config.sequence_cost is None else config.sequence_cost,
        }
    )
