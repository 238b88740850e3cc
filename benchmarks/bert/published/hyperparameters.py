"""Named sets of optimizer settings, published and Podium's own, from hyperparameters.yaml beside this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from podium.core.paths import package_file
from podium.core.yaml_files import read_yaml

PATH = package_file("benchmarks.bert.published", "hyperparameters.yaml")
NEAR = 0.01  # a published set is used by itself for batch sizes within this share of one that it was trained with


@dataclass(frozen=True)
class HyperparameterSet:
    """An optimizer's settings that train a model size at some global batch sizes."""

    name: str
    source: str  # ROUND SUBMITTER SYSTEM whose result logs have them, or Podium
    size: str
    used_at: tuple[int, ...]  # global batch sizes
    samples: int | None  # mean samples to target; None: never trained with
    optimizer: Mapping[str, Any]  # by the keys of `bert.optimizer`

    @property
    def algorithm(self) -> str:
        return str(self.optimizer["algorithm"])

    def fits(self, size: object, algorithm: object, global_batch_size: object) -> bool:
        """Whether it is for this model size and optimizer, and was trained with about this global batch size."""
        if (self.size, self.algorithm) != (size, algorithm) or not isinstance(global_batch_size, int):
            return False
        return any(abs(global_batch_size / batch - 1) <= NEAR for batch in self.used_at)


@cache
def hyperparameter_sets() -> Mapping[str, HyperparameterSet]:
    """All sets by name, in the order of the file."""
    sets = {}
    for name, entry in read_yaml(PATH).items():
        sets[name] = HyperparameterSet(name, **(entry | {"used_at": tuple(entry["used_at"])}))
    return sets
