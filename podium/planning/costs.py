"""Cost model of a training step on a system: five coefficients, measured by `podium bench`.

A user's measurement is in runs/SYSTEM/costs.json; systems/costs/SYSTEM.json are shipped references, used where there
is none. Both are used only for configurations of the same model and device.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.bert.sizes import MASKED_SHARE
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import write_atomically
from podium.core.json_files import read_json
from podium.core.machine import MAX_OTHER_LOAD, Machine, gpu_models, this_machine
from podium.core.paths import WORKING_FOLDER, shorten_paths, user_or_shipped_path
from podium.core.text import short_repr
from podium.planning.accelerators import find_accelerator

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


RUNS, COSTS = WORKING_FOLDER / "runs", WORKING_FOLDER / "systems" / "costs"


def own_costs_path(system: str) -> Path:
    """Path that `podium bench` writes a system's costs to: with the user's runs, not with the shipped files."""
    return RUNS / system / "costs.json"


def costs_path(system: str) -> Path:
    """Path that a system's costs are read from: the user's measurement, or else the shipped one."""
    own = own_costs_path(system)
    return own if own.exists() else user_or_shipped_path(COSTS / f"{system}.json")


Relation = Literal["this machine", "same model", "described", "another machine", "unknown machine"]


@dataclass(frozen=True)
class CostsOrigin:
    """Where and when step costs were measured, and how that machine relates to this one and to the system."""

    path: Path
    date: str | None
    machine: Machine | None
    device: str | None  # model of the GPU, or cpu
    relation: Relation
    this_machine: str  # model of this machine's GPU or processor
    other_load: float | None = None  # share of the processors that other processes used meanwhile

    @property
    def is_comparable(self) -> bool:
        """Whether steps of the system may be expected to take as long as the measured ones."""
        return self.relation in ("this machine", "same model", "described")

    @property
    def statement(self) -> str:
        """One line: machine, date and relation."""
        where = self.device if self.device not in (None, "cpu") else None
        if self.machine is not None:
            where = f"{where or self.machine.model}{f' (host {self.machine.host})' if self.machine.host else ''}"
        relation = {
            "this machine": "this machine",
            "same model": "another machine of the same model as this one",
            "described": f"the model of the system's description; this machine: {self.this_machine}",
            "another machine": f"another machine; this one: {self.this_machine}",
            "unknown machine": f"whether it was one like this is not recorded: {self.this_machine}",
        }[self.relation]
        date = f" on {self.date}" if self.date else ""
        statement = f"step costs: measured on {where or 'an unknown machine'}{date} by `podium bench` ({relation})"
        if self.other_load is not None and self.other_load > MAX_OTHER_LOAD:
            statement += (
                f"; other processes used {self.other_load:.0%} of its processors meanwhile, so they are too high: run "
                "`podium bench` again without these"
            )
        return statement

    def as_json(self) -> dict[str, Any]:
        return {
            "path": shorten_paths(str(self.path)),
            "date": self.date,
            "machine": self.machine and self.machine.as_json(),
            "device": self.device,
            "relation": self.relation,
            "this_machine": self.this_machine,
            "other_load": self.other_load,
            "statement": self.statement,
        }


def costs_origin(config: RunConfig, path: Path, measured: Mapping[str, Any]) -> CostsOrigin:
    """Compare the machine recorded in a costs file with this one and with the system's description."""
    machine, here = Machine.from_json(measured.get("machine")), this_machine()
    date, device = (value if isinstance(value := measured.get(key), str) else None for key in ("date", "device"))
    relation: Relation = "unknown machine"
    if config.launch.device == "cpu":
        here_model = here.model
        if machine is not None:
            described = config.description.host_processor_model_name.lower()
            same = machine.same_model(here)
            relation = (
                "this machine" if same and machine.host == here.host else "same model" if same else "another machine"
            )
            if not same and machine.processor and machine.processor.lower() in described:
                relation = "described"
    else:
        gpus = gpu_models()
        here_model = gpus[0] if gpus else f"{here.model}, no NVIDIA GPU"
        if device is not None:
            same = device in gpus
            kinds = [find_accelerator(name) for name in (device, config.description.accelerator_model_name)]
            same_host = machine is not None and machine.host == here.host
            relation = "this machine" if same and same_host else "same model" if same else "another machine"
            if not same and kinds[0] is not None and kinds[0] == kinds[1]:
                relation = "described"
    load = measured.get("other_load")
    other_load = float(load) if isinstance(load, float | int) else None
    return CostsOrigin(path, date, machine, device, relation, here_model, other_load)


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
