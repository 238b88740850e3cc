"""The predictor's constants; constants.json has each with its unit and source, and `fit` writes its values."""

import json
from dataclasses import asdict, dataclass, fields
from math import ceil, floor
from pathlib import Path

import numpy as np

from podium.core.files import write_atomically
from podium.core.paths import package_file
from podium.planning.prediction.interval import Miss

PATH = package_file("podium.planning.prediction", "constants.json")


@dataclass(frozen=True)
class Constants:
    """Values alone; constants.json says for each what it is, in what unit, and whether it was fitted or assumed."""

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
    misses: tuple[Miss, ...] = ()  # of the back-test with these constants, by kind of system

    def start_seconds(self, ranks: int) -> float:
        """From run_start until steps go at their full rate, by the logarithm of the ranks."""
        known = (8, 64, 1024)
        seconds = (self.start_seconds_8, self.start_seconds_64, self.start_seconds_1024)
        return float(np.interp(np.log(ranks), np.log(known), seconds))


def load_constants(path: Path = PATH) -> Constants:
    """ValueError for a file with other constants than these."""
    document = json.loads(path.read_text(encoding="utf-8"))
    entries = document["constants"]
    names = {field.name for field in fields(Constants)} - {"misses"}
    if set(entries) != names:
        raise ValueError(f"{path}: has the constants {sorted(entries)}, not {sorted(names)}")
    values = {name: float(entry["value"]) for name, entry in entries.items()}
    return Constants(**values, misses=tuple(Miss(**row) for row in document["misses"]["kinds"]))


def save_constants(constants: Constants, path: Path, fitted_on: list[str]) -> None:
    """Write these values in place of the committed ones, and the names of the systems fitted on."""
    document = json.loads(PATH.read_text(encoding="utf-8")) | {"fitted_on": fitted_on}
    for name, entry in document["constants"].items():
        entry["value"] = float(f"{getattr(constants, name):.5g}")
    document["misses"]["kinds"] = [
        row | {"low": floor(row["low"] * 1e4) / 1e4, "high": ceil(row["high"] * 1e4) / 1e4}  # never narrower
        for row in map(asdict, constants.misses)
    ]
    write_atomically(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
