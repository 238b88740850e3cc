"""What a step costs on each system, as `podium bench` measured it: systems/costs/NAME.json."""

from pathlib import Path

from benchmarks.bert.costs import StepCosts, load_costs
from podium.config import RunConfig
from podium.config.loading import SYSTEMS

COSTS = SYSTEMS / "costs"


def costs_path(system: str) -> Path:
    return COSTS / f"{system}.json"


def measured_costs(config: RunConfig) -> StepCosts | None:
    """None where the system was not measured. Raises UsageError for a file that is damaged."""
    path = costs_path(config.system)
    return load_costs(path) if path.exists() else None


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
