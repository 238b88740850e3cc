"""Constants of the predictor. constants.json lists each with unit and source; `fit` writes the values."""

import json
from dataclasses import asdict, dataclass, fields
from math import ceil, floor
from pathlib import Path

import numpy as np

from podium.core.files import write_atomically
from podium.core.paths import package_file
from podium.planning.prediction.interval import ErrorInterval

CONSTANTS_PATH = package_file("podium.planning.prediction", "constants.json")


@dataclass(frozen=True)
class Constants:
    """Values of the constants. constants.json has the meaning, unit and source (fitted, assumed, counted) of each."""

    sustained_flops_sxm: float
    sustained_flops_pcie: float
    micro_batch_seconds: float
    host_path_switched: float
    host_path_direct: float
    link_efficiency: float
    hop_inside: float
    hop_between: float
    memory_efficiency: float
    start_seconds_8: float
    start_seconds_64: float
    start_seconds_1024: float
    evaluation_share: float
    cpu_run_over_bench: float
    counted_products: float
    counted_attention: float
    counted_elements: float
    counted_head: float
    counted_parameters: float
    error_intervals: tuple[ErrorInterval, ...] = ()  # from the back-test with these constants, by kind of system

    def start_seconds(self, ranks: int) -> float:
        """Return the seconds from run_start until steps run at full rate, interpolated in the log of the ranks."""
        known = (8, 64, 1024)
        seconds = (self.start_seconds_8, self.start_seconds_64, self.start_seconds_1024)
        return float(np.interp(np.log(ranks), np.log(known), seconds))


def load_constants(path: Path = CONSTANTS_PATH) -> Constants:
    """Read constants from JSON. Raises ValueError if the file does not have exactly the fields of Constants."""
    document = json.loads(path.read_text(encoding="utf-8"))
    entries = document["constants"]
    names = {field.name for field in fields(Constants)} - {"error_intervals"}
    if set(entries) != names:
        raise ValueError(f"{path}: constants: found {sorted(entries)}, expected {sorted(names)}")
    values = {name: float(entry["value"]) for name, entry in entries.items()}
    return Constants(**values, error_intervals=tuple(ErrorInterval(**row) for row in document["misses"]["kinds"]))


def save_constants(constants: Constants, path: Path, fitted_on: list[str]) -> None:
    """Write a copy of the committed file with these values, and with the names of the systems in the fit."""
    document = json.loads(CONSTANTS_PATH.read_text(encoding="utf-8")) | {"fitted_on": fitted_on}
    for name, entry in document["constants"].items():
        entry["value"] = float(f"{getattr(constants, name):.5g}")
    document["misses"]["kinds"] = [
        row | {"low": floor(row["low"] * 1e4) / 1e4, "high": ceil(row["high"] * 1e4) / 1e4}  # rounded outwards
        for row in map(asdict, constants.error_intervals)
    ]
    write_atomically(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
