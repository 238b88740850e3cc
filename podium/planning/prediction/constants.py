"""The predictor's constants; constants.json has each with its unit and source, and `fit` writes its values."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from podium.core.files import write_whole
from podium.core.paths import package_file

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
    throughput_error: float

    def start_seconds(self, ranks: int) -> float:
        """From run_start until steps go at their full rate, by the logarithm of the ranks."""
        known = (8, 64, 1024)
        seconds = (self.start_seconds_8, self.start_seconds_64, self.start_seconds_1024)
        return float(np.interp(np.log(ranks), np.log(known), seconds))


def load_constants(path: Path = PATH) -> Constants:
    """ValueError for a file with other constants than these."""
    entries = json.loads(path.read_text(encoding="utf-8"))["constants"]
    names = {field.name for field in fields(Constants)}
    if set(entries) != names:
        raise ValueError(f"{path}: has the constants {sorted(entries)}, not {sorted(names)}")
    return Constants(**{name: float(entry["value"]) for name, entry in entries.items()})


def save_constants(constants: Constants, path: Path, fitted_on: list[str]) -> None:
    """Write these values in place of the committed ones, and the names of the systems fitted on."""
    document = json.loads(PATH.read_text(encoding="utf-8")) | {"fitted_on": fitted_on}
    for name, entry in document["constants"].items():
        entry["value"] = float(f"{getattr(constants, name):.5g}")
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
