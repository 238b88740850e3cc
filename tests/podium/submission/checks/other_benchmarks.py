"""Synthetic packages of benchmarks other than BERT that every official checker accepts, to plant faults in."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.config.load import load_system

Event = dict[str, Any]
START_MS = 1_760_000_000_000  # October 2025
RUN_MS = 3_000_000  # from the start of one run's log to that of the next
SYSTEM = "mine"


@dataclass(frozen=True)
class Shape:
    """What a synthetic benchmark logs."""

    benchmark: str
    ruleset: str
    settings: Mapping[str, Any]
    progress: str  # key of the metadata of evaluations
    interval: float
    evaluations: tuple[int, ...]  # of each run
    first_value: float
    target: float  # the last value is better than it by 0.001 at most


DISCLOSED = {
    **{f"lowest_numerical_precision_in_{part}": "bfloat16" for part in ("linear", "attn", "comm")},
    **{f"{kind}_parallelism": 1 for kind in ("tensor", "pipeline", "context", "expert")},
    "micro_batch_size": 2,
    "config_filename": "config.sh",
}
LLAMA = Shape(
    "llama31_8b",
    "6.1.0",
    {
        "global_batch_size": 32,
        "max_sequence_length": 8192,
        "eval_samples": 1024,
        "train_samples": 1_574_207_408,
        "opt_name": "adamw",
        "opt_base_learning_rate": 1e-3,
        "opt_end_learning_rate": 1e-4,
        "opt_learning_rate_warmup_steps": 500,
        "opt_learning_rate_decay_steps": 1_199_500,
        "opt_learning_rate_decay_schedule": "cosine with linear warmup",
        "opt_adamw_beta_1": 0.9,
        "opt_adamw_beta_2": 0.95,
        "opt_adamw_epsilon": 1e-5,
        "opt_adamw_weight_decay": 0.1,
        "opt_gradient_clip_norm": 1.0,
        "gradient_accumulation_steps": 2,
        "max_steps": 1_200_000,
        **DISCLOSED,
    },
    "samples_count",
    12_288,
    (15, 15, 16, 15, 15, 15, 16, 15, 15, 15),
    6.0,
    3.3,
)
RETINANET = Shape(
    "retinanet",
    "5.1.0",
    {
        "global_batch_size": 256,
        "eval_samples": 97,
        "train_samples": 4572,
        "opt_name": "adam",
        "opt_base_learning_rate": 1e-4,
        "opt_weight_decay": 0.0,
        "opt_learning_rate_warmup_epochs": 1,
        "opt_learning_rate_warmup_factor": 1e-3,
        "gradient_accumulation_steps": 1,
    },
    "epoch_num",
    1,
    (4, 4, 5, 4, 4),
    0.1,
    0.34,
)


def run_events(shape: Shape, run: int) -> list[Event]:
    """The events of a run, in the order and with the times of an implementation."""
    found: list[Event] = []
    time = START_MS + run * RUN_MS

    def log(key: str, value: Any = None, ms: int = 1, kind: str = "POINT_IN_TIME", **metadata: Any) -> None:
        nonlocal time
        time += ms
        where = {"file": "train.py", "lineno": 10}
        found.append(
            {
                "namespace": "",
                "time_ms": time,
                "event_type": kind,
                "key": key,
                "value": value,
                "metadata": where | metadata,
            }
        )

    log("cache_clear", True)
    log("init_start", kind="INTERVAL_START")
    log("submission_benchmark", shape.benchmark)
    log("submission_org", "ORG")
    log("submission_division", "closed")
    log("submission_platform", SYSTEM)
    log("seed", 100 + run)
    for key, value in shape.settings.items():
        log(key, value)
    log("init_stop", ms=20_000, kind="INTERVAL_END")
    log("run_start", kind="INTERVAL_START")
    count = shape.evaluations[run]
    for number in range(1, count + 1):
        now = {shape.progress: number * shape.interval}
        before = {shape.progress: (number - 1) * shape.interval}
        if shape.progress == "epoch_num":
            log("epoch_start", kind="INTERVAL_START", **now)
            log("epoch_stop", ms=60_000 + 7 * run, kind="INTERVAL_END", **now)
        else:
            log("block_start", kind="INTERVAL_START", **before)
            log("block_stop", ms=60_000 + 7 * run, kind="INTERVAL_END", **now)
        log("eval_start", kind="INTERVAL_START", **now)
        left = (count - number) / count
        value = shape.target + (shape.first_value - shape.target) * left
        better = -1e-4 if shape.first_value > shape.target else 1e-4
        log("eval_accuracy", value + better * (1 + run / 10), ms=500, **now)
        log("eval_stop", kind="INTERVAL_END", **now)
    log("run_stop", ms=5, kind="INTERVAL_END", status="success", **{shape.progress: count * shape.interval})
    return found


def write_package(shape: Shape, root: Path) -> Path:
    """Write the package of ten runs, or as many as the benchmark needs."""
    for run in range(len(shape.evaluations)):
        path = root / "results" / SYSTEM / shape.benchmark / f"result_{run}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_events(path, run_events(shape, run))
    description = load_system("laptop").description.model_dump(by_alias=True)
    description |= {"division": "closed", "system_name": SYSTEM, "submitter": "ORG"}
    code = f"benchmarks/{shape.benchmark}"
    files = {
        f"systems/{SYSTEM}.json": json.dumps(description, indent=2),
        f"{code}/implementations/podium/README.md": "./run_and_time.sh mine\n",
        f"{code}/implementations/podium/train.py": "print('seed')\n",
        f"{code}/implementations/podium/config.sh": "true\n",
        f"{code}/{SYSTEM}/run_and_time.sh": "true\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return root


def write_events(path: Path, events: Iterable[Event]) -> None:
    path.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events), encoding="utf-8")


@dataclass(frozen=True)
class FaultyCopy:
    """A copy of a good package in which a fault is planted."""

    root: Path
    shape: Shape

    @property
    def results(self) -> Path:
        return self.root / "results" / SYSTEM / self.shape.benchmark

    @property
    def system(self) -> Path:
        return self.root / "systems" / f"{SYSTEM}.json"

    @property
    def all_runs(self) -> range:
        return range(len(self.shape.evaluations))

    def log(self, number: int = 3) -> Path:
        return self.results / f"result_{number}.txt"

    def edit(self, change: Callable[[list[Event]], object], numbers: Iterable[int] = (3,)) -> None:
        """Change the events of these logs in place."""
        for number in numbers:
            lines = self.log(number).read_text(encoding="utf-8").splitlines()
            events = [json.loads(line.partition(" ")[2]) for line in lines]
            change(events)
            write_events(self.log(number), events)

    def describe(self, **changes: Any) -> None:
        self.system.write_text(json.dumps(json.loads(self.system.read_text(encoding="utf-8")) | changes))


def copy_package(package: Path, folder: Path, shape: Shape) -> FaultyCopy:
    return FaultyCopy(Path(shutil.copytree(package, folder)), shape)
