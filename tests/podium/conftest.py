"""Shared fixtures of the harness's tests: system files, configurations, result logs, packages and commands."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from itertools import islice
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import yaml

from podium.cli.main import main
from podium.config.load import SYSTEMS, load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core import yaml_files
from podium.core.paths import CODE_FOLDER
from podium.launch.launch import Node, command
from podium.mllog.write import ABORTED, SUCCESS, NumericalPrecision, OptimizerHyperparameters, ResultLog
from podium.run.dry_run import dry_run
from podium.run.run_set import RunRequest


@pytest.fixture(scope="session", autouse=True)
def parsed_once() -> Iterator[None]:
    """Parse equal YAML files once: most tests load the same systems and recipes, which is a tenth of their time.

    What read_yaml does with a file's text, and its errors, are as without this; test_yaml_files.py tests parse_yaml.
    """
    parsed: dict[tuple[str, bool], Any] = {}
    parse = yaml_files.parse_yaml

    def parse_once(text: str, source: str, as_text: bool = False) -> Any:
        key = (text, as_text)
        if key not in parsed:
            parsed[key] = parse(text, source, as_text)  # which raises for text that is not valid
        return deepcopy(parsed[key])  # readers change what they get

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_files, "parse_yaml", parse_once)
        yield


LAPTOP = yaml.safe_load((SYSTEMS / "laptop.yaml").read_text(encoding="utf-8"))

CLOSED_OPTIMIZER = {
    "algorithm": "lamb",
    "learning_rate": 4e-4,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-6,
    "weight_decay": 0.01,
    "warmup_steps": 0,
    "decay_steps": 7100,
}


class WriteSystem(Protocol):
    """Write a system's YAML: the laptop's, with dotted keys set, or removed where the value is `...`."""

    def __call__(self, changes: dict[str, Any] | None = None, name: str = "mine") -> Path: ...


def changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a document with dotted keys set, or removed where the value is `...`."""
    whole = yaml.safe_load(yaml.safe_dump(document))
    for key, value in changes.items():
        *above, last = key.split(".")
        section = whole
        for part in above:
            section = section.setdefault(part, {})
        if value is ...:
            del section[last]
        else:
            section[last] = deepcopy(value)
    return dict(whole)


@pytest.fixture
def write_system(tmp_path: Path) -> WriteSystem:
    def write(changes: dict[str, Any] | None = None, name: str = "mine") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(changed(LAPTOP, changes or {}), sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture
def closed_changes() -> dict[str, Any]:
    """Changes with which the laptop's system is valid in the closed division."""
    return {
        "description.division": "closed",
        "bert.size": "large",
        "bert.global_batch_size": 448,
        "bert.max_samples": 4_500_000,
        "bert.optimizer": CLOSED_OPTIMIZER,
        "bert.initial_checkpoint": "/large.safetensors",
    }


@pytest.fixture
def open_config() -> RunConfig:
    return load_system("laptop", settings=["seed=7", "evaluation.samples=20", "optimizer.algorithm=adamw"])


@pytest.fixture
def closed_config(write_system: WriteSystem, closed_changes: dict[str, Any]) -> RunConfig:
    return load_system(str(write_system(closed_changes))).model_copy(update={"seed": 8})


class WriteLog(Protocol):
    """Write the result log of a run as the implementation does, and return its path.

    Tensor names make up four fifths of a log, and rulesets from 3.0 on do not require them: `tensors` limits them.
    """

    def __call__(
        self,
        config: RunConfig,
        accuracies: tuple[float, ...] = (0.4, 0.73),
        name: str = ...,
        tensors: int | None = None,
    ) -> Path: ...


@pytest.fixture
def write_log(tmp_path: Path) -> WriteLog:
    def write(
        config: RunConfig,
        accuracies: tuple[float, ...] = (0.4, 0.73),
        name: str = "run/result.txt",
        tensors: int | None = None,
    ) -> Path:
        """Calls and their order are those of implementations/pytorch/train.py and trainer.py."""
        settings, path = config.optimizer, tmp_path / name
        optimizer = OptimizerHyperparameters(
            algorithm=settings.algorithm,
            learning_rate=settings.learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            epsilon=settings.epsilon,
            weight_decay=settings.weight_decay,
            warmup_steps=settings.warmup_steps,
            start_warmup_step=settings.start_warmup_step,
            decay_from=settings.decay_from,
            decay_steps=settings.decay_steps,
            decay_power=settings.decay_power,
            end_learning_rate=settings.end_learning_rate,
        )
        target, samples = config.target_accuracy or 1.0, 0
        with ResultLog(path) as log:
            log.log_submission(config, caches_cleared=True)
            precision = NumericalPrecision(linear="bfloat16", attention="bfloat16", communication="fp32")
            names = islice(config.model_size.tensors(30_522), tensors)
            micro_batch_size = config.local_batch_size // config.gradient_accumulation_steps
            log.log_settings(config, optimizer, precision, micro_batch_size, names)
            log.log_run_start()
            time.sleep(0.002)  # a time-to-train of 0 ms is none
            for accuracy in accuracies:
                log.log_block_start(samples, config.evaluation_interval)
                first, samples = samples, samples + config.evaluation_interval
                log.log_block_stop(first, samples)
                log.log_evaluation_start(samples)
                log.log_evaluation_stop(samples, accuracy)
            log.log_run_stop(SUCCESS if accuracies[-1] >= target else ABORTED, samples)
        return path

    return write


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir(exist_ok=True)
    return RunFolder(tmp_path / "run")


@pytest.fixture
def as_implementation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Replace the implementation by a Python script, in which `folder` is the run's folder.

    It ends sooner than a training does, so whether it has is asked ten times as often.
    """

    class OftenAsked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(timeout and timeout / 10)

    monkeypatch.setattr("podium.launch.launch.threading", SimpleNamespace(Event=OftenAsked))

    def replace(script: str) -> None:
        path = tmp_path / "implementation.py"
        head = "import json, os, signal, sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"
        path.write_text(head + script, encoding="utf-8")

        def fake(
            config: RunConfig, folder: RunFolder, entry: str, options: Sequence[str], node: Node, private: Path
        ) -> list[str]:
            assert command(config, folder, entry, options, node, private)
            return [sys.executable, str(path), str(folder.path)]

        monkeypatch.setattr("podium.launch.launch.command", fake)

    return replace


SUMMARY: dict[str, Any] = {
    "reached_target": True,
    "seconds": 77.1,
    "samples": 10240,
    "steps": 640,
    "accuracy": 0.7483,
    "next_sentence_accuracy": 0.795,
    "sequences_per_second": 132.8,
    "useful_tflops": 0.1154,
    "peak_tflops": 0.986,
    "share_of_peak": 0.117,
    "precision": "bf16",
    "padding_share": 0.008,
    "max_over_mean_tokens": 1.03,
    "phases_ms": {"data_wait": 0.8, "forward": 47.7, "backward": 53.3, "synchronisation": 0.6, "optimizer": 3.4},
}


@pytest.fixture
def summary() -> dict[str, Any]:
    """A summary as the implementation writes it."""
    return changed(SUMMARY, {})


def run_podium(*arguments: str, cwd: Path = CODE_FOLDER, columns: int = 120) -> CompletedProcess[str]:
    """Run a command by its entry point in this process, since starting another one takes a second."""
    out, err, code = StringIO(), StringIO(), 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["podium", *arguments])
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "1")
        patch.setattr("podium.core.console.NOTICE_SECONDS", 3600.0)  # a busy machine prints no notices of waiting
        patch.chdir(cwd)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def dry_run_lines(request: RunRequest) -> list[str]:
    """Comments and commands of `podium run --dry-run`, each command on one line."""
    planned = dry_run(request)
    warnings = [f"# WARNING: {warning}" for warning in planned.warnings]
    return [*(f"# {one}" for one in planned.comments), *warnings, *(command.line for command in planned.commands)]


WritePackage = Callable[..., Path]


@pytest.fixture
def write_package(tmp_path: Path, closed_config: RunConfig, write_log: WriteLog) -> WritePackage:
    """Write a package of ten closed runs that the official tools accept, and return its folder."""

    def write(tensors: int | None = 2) -> Path:
        root, name = tmp_path / "ORG", closed_config.description.system_name
        for number in range(10):
            config = closed_config.model_copy(update={"seed": 1000 + number})
            accuracies = (*(0.4 + 0.01 * step + 1e-4 * number for step in range(15)), 0.73)
            write_log(config, accuracies, f"ORG/results/{name}/bert/result_{number}.txt", tensors)
        (root / "systems").mkdir()
        fields = closed_config.description.model_dump(by_alias=True)
        (root / "systems" / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
        code = root / "benchmarks" / "bert" / "implementations" / "podium"
        (code / "submitted").mkdir(parents=True)
        (code / closed_config.config_filename).write_text("bert: {}\n", encoding="utf-8")
        (code / "README.md").write_text("./run_and_time.sh\n", encoding="utf-8")
        (code / "train.py").write_text("print('training')\n", encoding="utf-8")
        return root

    return write
