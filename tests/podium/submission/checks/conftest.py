"""A closed package of ten runs that every official checker accepts, and helpers to plant a fault in a copy."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from podium.config.load import SYSTEMS, load_system
from podium.config.schema import RunConfig
from podium.mllog.read import read_log
from podium.mllog.run import RunLog
from podium.mllog.write import SUCCESS, NumericalPrecision, OptimizerHyperparameters, ResultLog
from podium.submission.checks import context

START_MS = 1_700_000_000_000
RUN_MS = 3_000_000  # from the start of one run's log to that of the next
EVALUATION_MS = 90_000
BATCH = 448
INTERVAL = 335 * BATCH  # 150,000 samples in whole batches
# Number of evaluations of each run: with these the samples to target are a little above the reference's 2,414,421.
EVALUATIONS = (16, 17, 16, 17, 17, 16, 17, 16, 17, 17)
Event = dict[str, Any]
SYSTEM = "mine"


def _config(folder: Path) -> RunConfig:
    system = yaml.safe_load((SYSTEMS / "laptop.yaml").read_text(encoding="utf-8"))
    system["description"] |= {"division": "closed", "system_name": SYSTEM, "submitter": "ORG"}
    system["bert"] |= {
        "size": "large",
        "global_batch_size": BATCH,
        "max_samples": 4_500_000,
        "initial_checkpoint": "/large.safetensors",
        "optimizer": {
            "algorithm": "lamb",
            "learning_rate": 4e-4,
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-6,
            "weight_decay": 0.01,
            "warmup_steps": 0,
            "decay_steps": 7100,
        },
    }
    path = folder / f"{SYSTEM}.yaml"
    path.write_text(yaml.safe_dump(system, sort_keys=False), encoding="utf-8")
    return load_system(str(path))


def write_log(path: Path, config: RunConfig, evaluations: int, tensors: int | None = 0) -> None:
    """Write a log with an implementation's calls in their order; rulesets from 3.0 on do not require tensors."""
    settings = config.optimizer
    names = ("algorithm", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "warmup_steps")
    names += ("start_warmup_step", "decay_from", "decay_steps", "decay_power", "end_learning_rate")
    with ResultLog(path) as log:
        log.log_submission(config, caches_cleared=True)
        optimizer = OptimizerHyperparameters(**{name: getattr(settings, name) for name in names})
        precision = NumericalPrecision(linear="bfloat16", attention="bfloat16", communication="fp32")
        names_of_tensors = islice(config.model_size.tensors(30_522), tensors)
        log.log_settings(config, optimizer, precision, config.local_batch_size, names_of_tensors)
        log.log_run_start()
        for number in range(evaluations):
            log.log_block_start(number * INTERVAL, INTERVAL)
            log.log_block_stop(number * INTERVAL, (number + 1) * INTERVAL)
            log.log_evaluation_start((number + 1) * INTERVAL)
            accuracy = 0.7213 - 0.01 * (evaluations - 1 - number) - 1e-6 * config.seed  # type: ignore[operator]
            log.log_evaluation_stop((number + 1) * INTERVAL, accuracy)
        log.log_run_stop(SUCCESS, evaluations * INTERVAL)


def _set_times(events: list[Event], run: int) -> None:
    """Set times: 20 s to run_start, 90 s and `run` ms to each evaluation, then 50 ms to run_stop."""
    start = START_MS + run * RUN_MS
    time = start
    for event in events:
        if event["key"] == "run_start":
            time = start + 20_000
        elif event["key"] == "block_stop":
            time += EVALUATION_MS + run
        elif event["key"] == "run_stop":
            time += 50
        event["time_ms"] = time


def read_events(path: Path) -> list[Event]:
    return [json.loads(line.partition(" ")[2]) for line in path.read_text(encoding="utf-8").splitlines()]


def write_events(path: Path, events: Iterable[Event]) -> None:
    path.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events), encoding="utf-8")


@pytest.fixture(scope="session")
def good_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return _config(tmp_path_factory.mktemp("system"))


@pytest.fixture(scope="session")
def good_package(tmp_path_factory: pytest.TempPathFactory, good_config: RunConfig) -> Path:
    """A package without faults; tests change copies of it."""
    root = tmp_path_factory.mktemp("package") / "ORG"
    for number, evaluations in enumerate(EVALUATIONS):
        path = root / "results" / SYSTEM / "bert" / f"result_{number}.txt"
        write_log(path, good_config.model_copy(update={"seed": 100 + number}), evaluations)
        events = read_events(path)
        _set_times(events, number)
        write_events(path, events)
    description = good_config.description.model_dump(by_alias=True)
    files = {
        f"systems/{SYSTEM}.json": json.dumps(description, indent=2),
        "benchmarks/bert/implementations/podium/README.md": "./run_and_time.sh mine\n",
        "benchmarks/bert/implementations/podium/train.py": "print('seed')\n",
        f"benchmarks/bert/implementations/podium/submitted/{SYSTEM}.yaml": "bert: {}\n",
        f"benchmarks/bert/{SYSTEM}/{SYSTEM}_podium.json": "{}\n",
        f"benchmarks/bert/{SYSTEM}/README.md": "./run_and_time.sh mine\n",
        **{f"benchmarks/bert/{SYSTEM}/{name}.sh": "true\n" for name in ("setup", "init_datasets", "run_and_time")},
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return root


@pytest.fixture(autouse=True, scope="module")
def read_once(read_logs: dict[bytes, RunLog]) -> Iterator[None]:
    """Parse equal logs once: a fault is in one log of ten, and the others are the same in every test."""

    def read(path: Path, round_name: str) -> RunLog:
        key = path.read_bytes() + round_name.encode()
        if key not in read_logs:
            read_logs[key] = read_log(path, round_name)
        return replace(read_logs[key], path=path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "read_log", read)
        yield


@pytest.fixture(scope="session")
def read_logs() -> dict[bytes, RunLog]:
    return {}


@dataclass(frozen=True)
class Copy:
    """A copy of the good package in which faults are planted."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results" / SYSTEM / "bert"

    @property
    def system(self) -> Path:
        return self.root / "systems" / f"{SYSTEM}.json"

    def log(self, number: int = 3) -> Path:
        return self.results / f"result_{number}.txt"

    def edit(self, change: Callable[[list[Event]], object], numbers: Iterable[int] = (3,)) -> None:
        """Change the events of these logs in place."""
        for number in numbers:
            events = read_events(self.log(number))
            change(events)
            write_events(self.log(number), events)

    def replace(self, old: str, new: str, number: int = 3) -> None:
        """Replace a text that a log must have."""
        text = self.log(number).read_text(encoding="utf-8")
        assert old in text
        self.log(number).write_text(text.replace(old, new), encoding="utf-8")

    def describe(self, **changes: Any) -> None:
        """Change fields of the description; `...` removes one."""
        fields = json.loads(self.system.read_text(encoding="utf-8")) | changes
        kept = {name: value for name, value in fields.items() if value is not ...}
        self.system.write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture(scope="session")
def plant_in() -> Callable[[Path, Path], Copy]:
    return lambda package, folder: Copy(Path(shutil.copytree(package, folder)))


@pytest.fixture
def copy(good_package: Path, tmp_path: Path) -> Copy:
    return Copy(Path(shutil.copytree(good_package, tmp_path / "ORG")))
