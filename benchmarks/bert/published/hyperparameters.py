"""Named sets of optimizer hyper-parameters, published and Podium's own, from hyperparameters.yaml in this folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from podium.core.paths import package_file
from podium.core.yaml_files import read_yaml

PATH = package_file("benchmarks.bert.published", "hyperparameters.yaml")
BATCH_SIZE_TOLERANCE = 0.01  # relative; a set applies to batch sizes this close to one that it was trained with


@dataclass(frozen=True)
class HyperparameterSet:
    """Hyper-parameters of one optimizer for a model size and some global batch sizes."""

    name: str
    source: str  # ROUND SUBMITTER SYSTEM whose result logs have them, or another source such as Podium
    size: str
    used_at: tuple[int, ...]  # global batch sizes that it was trained with
    samples: int | None  # mean samples to target; None: unknown
    optimizer: Mapping[str, Any]  # values by keys of `bert.optimizer`
    # Numbers and models of the accelerators that it was published on, such as `8 H100`; () if it was not published.
    published_on: tuple[str, ...] = ()

    @property
    def algorithm(self) -> str:
        return str(self.optimizer["algorithm"])

    @property
    def is_published(self) -> bool:
        """Whether a result of MLPerf has it."""
        return self.source[:1].isdigit()

    def fits(self, size: object, algorithm: object, global_batch_size: object) -> bool:
        """Whether it was trained with this model size, optimizer, and about this global batch size."""
        if (self.size, self.algorithm) != (size, algorithm) or not isinstance(global_batch_size, int):
            return False
        return any(abs(global_batch_size / batch - 1) <= BATCH_SIZE_TOLERANCE for batch in self.used_at)


@cache
def hyperparameter_sets() -> Mapping[str, HyperparameterSet]:
    """All sets by name, in the order of the file."""
    sets = {}
    for name, entry in read_yaml(PATH).items():
        lists = {key: tuple(entry[key]) for key in ("used_at", "published_on") if key in entry}
        sets[name] = HyperparameterSet(name, **(entry | lists))
    return sets
