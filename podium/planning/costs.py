"""The cost of a training step on a system: a few coefficients, measured by `podium bench`.

They are stored in systems/costs/NAME.json, and used for a configuration only where it agrees with what was measured.
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
    """Seconds of one step of one process: `step` once, and so much for each token slot, each pair of tokens within a
    sequence, each masked token and each sequence. None is negative."""

    step: float
    token: float
    pair: float
    masked: float
    sequence: float
    median_relative_error: float = 0.0  # over the steps that it was fitted to

    def seconds(self, lengths: np.ndarray, masked: int) -> float:
        """Of a step on sequences of these lengths, of whose tokens so many are masked."""
        return float(_terms(lengths, masked) @ [getattr(self, term) for term in TERMS])

    def relative(self) -> tuple[float, float] | None:
        """What a pair of tokens and a sequence cost in units of one token's cost, its share of masked tokens included.

        None where tokens were found to cost nothing.
        """
        token = self.token + MASKED_SHARE * self.masked
        return (self.pair / token, self.sequence / token) if token > 0 else None


def fit(steps: Sequence[tuple[np.ndarray, int, float]]) -> StepCosts:
    """The costs of least relative squared error over steps: lengths, masked tokens and seconds of each.

    No coefficient is negative. Raises ValueError for fewer steps than terms.
    """
    from scipy.optimize import nnls  # here, since it takes long to import

    if len(steps) < len(TERMS):
        raise ValueError(f"{len(steps)} steps cannot tell {len(TERMS)} coefficients apart")
    seconds = np.array([s for _, _, s in steps])
    matrix = np.stack([_terms(lengths, masked) for lengths, masked, _ in steps]) / seconds[:, None]
    scale = matrix.max(axis=0)  # positive, since every step has tokens, one of them masked
    best = nnls(matrix / scale, np.ones(len(steps)))[0] / scale
    errors = np.abs(matrix @ best - 1)
    found = dict(zip(TERMS, best.tolist(), strict=True))
    return StepCosts(**found, median_relative_error=float(np.median(errors)))


def _terms(lengths: np.ndarray, masked: int) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.float64)
    return np.array([1.0, lengths.sum(), np.square(lengths).sum(), masked, len(lengths)])


def save_costs(costs: StepCosts, path: Path, measured: dict[str, object]) -> None:
    """Write the coefficients with what was measured (system, device, size, settings, date)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"seconds": asdict(costs), "measured": measured}, indent=2) + "\n")


def load_costs(path: Path) -> tuple[StepCosts, dict[str, Any]]:
    """The costs and what was measured. Raises UsageError for a file that is missing or holds anything but what
    `save_costs` writes."""
    advice = "make it again with `podium bench SYSTEM`"
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


BESIDE = ("recipe", "attention", "kernels", "global_batch_size")


def differing(config: RunConfig, measured: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """In what a costs file's `measured` differs from a configuration, as "KEY HAS, not WANTED".

    First what makes them another model's or another device's, then what makes them doubtful. What the file does not
    tell does not differ.
    """
    size, device = config.model_size, config.launch.device
    on = {"device": "cpu" if measured.get("device") == "cpu" else "cuda"} if "device" in measured else {}
    others = _differing({**measured, **on}, {"layers": size.layers, "hidden": size.hidden, "device": device})
    wanted = {key: getattr(config, key) for key in BESIDE} | {"ranks": config.launch.ranks}
    if config.precision != "auto":
        wanted["precision"] = config.precision
    if "auto" in (config.attention, measured.get("attention")):  # the device's own choice, and the device is the same
        del wanted["attention"]
    return others, _differing(measured, wanted)


def _differing(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [f"{key} {measured[key]}, not {want}" for key, want in wanted.items() if measured.get(key, want) != want]


COSTS = WORKING_FOLDER / "systems" / "costs"


def own_costs_path(system: str) -> Path:
    """Where what is measured here belongs."""
    return COSTS / f"{system}.json"


def costs_path(system: str) -> Path:
    """Where what was measured is read: here, or else as it was shipped."""
    return user_or_shipped_path(own_costs_path(system))


def with_measured_costs(config: RunConfig) -> RunConfig:
    """The configuration with the costs to balance by that were measured on its system, where it names none.

    Unchanged where the system, its device or this model was not measured. Raises UsageError for a damaged file.
    """
    path = costs_path(config.system)
    if not path.exists():
        return config
    costs, measured = load_costs(path)
    others, _ = differing(config, measured)
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
