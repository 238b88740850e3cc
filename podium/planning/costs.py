"""Cost model of a training step on a system: five coefficients, measured by `podium bench`.

They are stored in systems/costs/NAME.json, and used only for configurations of the same model and device.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.sizes import MASKED_SHARE
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import write_atomically
from podium.core.json_files import read_json
from podium.core.paths import WORKING_FOLDER, user_or_shipped_path
from podium.core.text import short_repr

TERMS = ("step", "token", "pair", "masked", "sequence")


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one process in one step: a constant (`step`) and coefficients, none of them negative.

    The coefficients are per token slot, pair of tokens within a sequence, masked token and sequence.
    """

    step: float
    token: float
    pair: float
    masked: float
    sequence: float
    median_relative_error: float = 0.0  # of the fit, over its steps

    def seconds(self, lengths: np.ndarray, masked: int) -> float:
        """Seconds of a step on sequences of these lengths [n] with `masked` masked tokens in all."""
        return float(_terms(lengths, masked) @ [getattr(self, term) for term in TERMS])

    def relative(self) -> tuple[float, float] | None:
        """Costs of a pair of tokens and of a sequence in units of one token's, its share of masked tokens included.

        None if the fitted cost of a token is zero.
        """
        token = self.token + MASKED_SHARE * self.masked
        return (self.pair / token, self.sequence / token) if token > 0 else None


def fit(steps: Sequence[tuple[np.ndarray, int, float]]) -> StepCosts:
    """Fit costs to steps (lengths [n], masked tokens, seconds) by non-negative least squares of the relative error.

    Raises ValueError for fewer steps than coefficients.
    """
    from scipy.optimize import nnls  # here: slow to import

    if len(steps) < len(TERMS):
        raise ValueError(
            f"{len(steps)} steps are too few for {len(TERMS)} coefficients; {len(TERMS)} or more are needed"
        )
    seconds = np.array([s for _, _, s in steps])
    matrix = np.stack([_terms(lengths, masked) for lengths, masked, _ in steps]) / seconds[:, None]
    # Columns differ by many orders of magnitude: scaled to 1 for the conditioning of the problem. Each maximum is
    # positive, since every step has tokens, one of them masked.
    scale = matrix.max(axis=0)
    best = nnls(matrix / scale, np.ones(len(steps)))[0] / scale
    errors = np.abs(matrix @ best - 1)
    found = dict(zip(TERMS, best.tolist(), strict=True))
    return StepCosts(**found, median_relative_error=float(np.median(errors)))


def _terms(lengths: np.ndarray, masked: int) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.float64)
    return np.array([1.0, lengths.sum(), np.square(lengths).sum(), masked, len(lengths)])


def save_costs(costs: StepCosts, path: Path, measured: dict[str, object]) -> None:
    """Write the coefficients and the conditions of the measurement (system, device, size, settings, date)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"seconds": asdict(costs), "measured": measured}, indent=2) + "\n")


def load_costs(path: Path) -> tuple[StepCosts, dict[str, Any]]:
    """Read the costs and the conditions of their measurement.

    Raises UsageError for a file that is missing or does not have the format of `save_costs`.
    """
    advice = "write it again with `podium bench SYSTEM`"
    try:
        document = read_json(path)
        seconds, measured = document["seconds"], dict(document["measured"])
        values = {field.name: float(seconds[field.name]) for field in fields(StepCosts)}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"{path}: no step costs could be read ({short_repr(error)}); {advice}") from None
    for name, value in values.items():
        if not isfinite(value) or value < 0:
            raise UsageError(f"{path}: seconds.{name}: found {value}, allowed are numbers from 0 on; {advice}")
    return StepCosts(**values), measured


# Keys whose values also change the costs, so that those of another value are doubtful.
CONDITION_KEYS = ("recipe", "attention", "kernels", "global_batch_size")


def find_differences(config: RunConfig, measured: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare a costs file's `measured` with a configuration; each difference is "KEY HAS, not WANTED".

    Returns first the differences that make the costs those of another model or device, then those that make them
    doubtful. Keys that the file lacks count as equal.
    """
    size, device = config.model_size, config.launch.device
    on = {"device": "cpu" if measured.get("device") == "cpu" else "cuda"} if "device" in measured else {}
    others = _describe_differences({**measured, **on}, {"layers": size.layers, "hidden": size.hidden, "device": device})
    wanted = {key: getattr(config, key) for key in CONDITION_KEYS} | {"ranks": config.launch.ranks}
    if config.precision != "auto":
        wanted["precision"] = config.precision
    if "auto" in (config.attention, measured.get("attention")):  # chosen by the device, which is compared above
        del wanted["attention"]
    return others, _describe_differences(measured, wanted)


def _describe_differences(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [f"{key} {measured[key]}, not {want}" for key, want in wanted.items() if measured.get(key, want) != want]


COSTS = WORKING_FOLDER / "systems" / "costs"


def own_costs_path(system: str) -> Path:
    """Path that `podium bench` writes a system's costs to, in the working folder."""
    return COSTS / f"{system}.json"


def costs_path(system: str) -> Path:
    """Path that a system's costs are read from: in the working folder, or else the shipped file."""
    return user_or_shipped_path(own_costs_path(system))


def with_measured_costs(config: RunConfig) -> RunConfig:
    """Return the configuration with the measured pair and sequence costs of its system, where it sets none.

    Unchanged if there are no costs of this system, device and model. Raises UsageError for a damaged file.
    """
    path = costs_path(config.system)
    if not path.exists():
        return config
    costs, measured = load_costs(path)
    others, _ = find_differences(config, measured)
    relative = costs.relative()
    if others or relative is None:
        return config
    pair, sequence = relative
    return config.model_copy(
        update={
            "pair_cost": pair if config.pair_cost is None else config.pair_cost,
            "sequence_cost": sequence if config.sequence_cost is None else config.sequence_cost,
        }
    )
