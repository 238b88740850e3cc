"""Loggers of experiments, to which a run's metrics are copied: TensorBoard, Weights & Biases, MLflow.

Their packages are optional, and imported only when a user names them with `--log-to`. Each logger's x-axis is the
number of samples trained on. What identifies a run to a logger is kept in the run's folder, so that a resumed run
continues the same run there.
"""

import math
import netrc
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from podium.core.errors import UsageError
from podium.core.paths import install_command

PROJECT = "podium"  # unless the logger's environment variable names another
MAX_PARAMETER = 500  # characters of a setting, MLflow's limit
BATCH = 1000  # metrics in one request, MLflow's limit

Scalars = Mapping[str, float]


class Logger(Protocol):
    """One logger's record of one run."""

    place: str  # for the user: where the values are

    def log(self, samples: int, scalars: Scalars) -> None:
        """Add values after a number of samples. May buffer them."""

    def flush(self) -> None:
        """Write or send what is buffered."""

    def close(self, succeeded: bool) -> None:
        """End the record."""


class TensorBoardLogger:
    """Writes an event file into the folder `tensorboard` of the run; a resumed run adds another file there."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], state: dict[str, str]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder / "tensorboard"))
        self.place = f"tensorboard --logdir {folder}"
        text = "\n".join(
            ["| setting | value |", "|---|---|", *(f"| {key} | {_cell(settings[key])} |" for key in settings)]
        )
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        metadata = create_summary_metadata(display_name="", description=name)
        value = Summary.Value(tag="configuration", tensor=tensor, metadata=metadata)
        self._writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))

    def log(self, samples: int, scalars: Scalars) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = self._event(wall_time=time.time(), step=samples, summary=self._summary(value=values))
        self._writer.add_event(event)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, succeeded: bool) -> None:
        self._writer.close()


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


class WandbLogger:
    """Logs to Weights & Biases; to files in the run's folder (mode offline) unless the user has a key or set a mode."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], state: dict[str, str]) -> None:
        import wandb

        offline = "WANDB_MODE" not in os.environ and not _has_wandb_key()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=state.setdefault("id", secrets.token_hex(4)),
            resume="allow",
            name=name,
            group=folder.parent.name,
            dir=str(folder),
            config=dict(settings),
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=True),  # standard output is Podium's, which may print JSON
        )
        # Not wandb's own step, which must increase: an asynchronous evaluation ends after later steps.
        self._run.define_metric("samples")
        self._run.define_metric("*", step_metric="samples")
        files = Path(str(self._run.dir)).parent
        self.place = f"wandb sync {files}" if offline else str(self._run.url or files)

    def log(self, samples: int, scalars: Scalars) -> None:
        self._run.log({"samples": samples, **scalars})

    def flush(self) -> None:
        """Do nothing: wandb's process sends the values."""

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


def _has_wandb_key(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has given wandb a key, by the environment or by `wandb login`."""
    if environment.get("WANDB_API_KEY"):
        return True
    host = urlparse(environment.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with suppress(OSError, netrc.NetrcParseError, RuntimeError):
        # Without a default entry, which belongs to any host.
        return host in netrc.netrc(environment.get("NETRC") or str(Path.home() / ".netrc")).hosts
    return False


class MlflowLogger:
    """Logs to MLflow at MLFLOW_TRACKING_URI, by default to files below runs/."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], state: dict[str, str]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._buffer = Metric, list[Any]()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or _default_mlflow_uri(folder.parents[2])
        self._client = MlflowClient(tracking_uri=uri)
        self._run: str
        if known := state.get("run"):
            self._run = known
            self._client.set_terminated(known, "RUNNING")  # a resumed run is no longer at its end
        else:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", f"{PROJECT}/{folder.parents[1].name}")
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            self._run = state["run"] = self._client.create_run(number, run_name=name).info.run_id
            parameters = [Param(key, str(value)[:MAX_PARAMETER]) for key, value in settings.items()]
            self._client.log_batch(self._run, params=parameters[:100])
            for start in range(100, len(parameters), 100):  # MLflow's limit for a request
                self._client.log_batch(self._run, params=parameters[start : start + 100])
        self.place = f"mlflow ui --backend-store-uri {uri}" if "://" not in uri or "sqlite" in uri else uri

    def log(self, samples: int, scalars: Scalars) -> None:
        now = int(time.time() * 1000)
        self._buffer += [self._metric(tag, value, now, samples) for tag, value in scalars.items()]
        if len(self._buffer) >= BATCH:
            self.flush()

    def flush(self) -> None:
        for start in range(0, len(self._buffer), BATCH):
            self._client.log_batch(self._run, metrics=self._buffer[start : start + BATCH])
        self._buffer.clear()

    def close(self, succeeded: bool) -> None:
        self.flush()
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")


def _default_mlflow_uri(runs: Path) -> str:
    """A database in runs/, or a folder of files with the small package mlflow-skinny, which has no database."""
    if find_spec("sqlalchemy"):
        return f"sqlite:///{runs / 'mlflow.db'}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 refuses folders
    return (runs / "mlflow").as_uri()


# Logger and the modules that it needs, by the name in `--log-to`, which is also that of the extra in pyproject.toml.
LOGGERS: Mapping[str, tuple[Callable[[Path, str, Mapping[str, Any], dict[str, str]], Logger], str]] = {
    "tensorboard": (TensorBoardLogger, "tensorboard"),
    "wandb": (WandbLogger, "wandb"),
    "mlflow": (MlflowLogger, "mlflow"),
}


def parse_loggers(text: str | None) -> tuple[str, ...]:
    """The names in the value of `--log-to`. UsageError for unknown ones."""
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if unknown := [name for name in names if name not in LOGGERS]:
        raise UsageError(
            f"--log-to: found {', '.join(map(repr, unknown))}, allowed are {', '.join(LOGGERS)}, separated by commas"
        )
    if text is not None and not names:
        raise UsageError(f"--log-to: found {text!r}, allowed are {', '.join(LOGGERS)}, separated by commas")
    return names


def require_packages(names: Sequence[str]) -> None:
    """Check that the loggers' packages are installed. UsageError with the command that installs the missing ones."""
    missing = [name for name in names if find_spec(LOGGERS[name][1]) is None]
    if missing:
        raise UsageError(
            f"--log-to: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here; install "
            f"with: {install_command(*missing)}"
        )


TRAINING = ("loss", "masked_lm_loss", "next_sentence_loss", "learning_rate", "gradient_norm", "max_over_mean_tokens")
EVALUATION = ("accuracy", "next_sentence_accuracy", "masked_lm_loss")


def scalars_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The values of a line of metrics.jsonl by their names in loggers; those that are not finite are left out."""
    kind, keys = ("evaluation", EVALUATION) if line.get("event") == "evaluation" else ("train", TRAINING)
    found = {f"{kind}/{key}": line[key] for key in keys if key in line}
    if kind == "train" and line.get("slots"):
        found["train/padding_share"] = 1 - line["tokens"] / line["slots"]
    if work := line.get("rank_work_ms"):
        found["train/rank_work_max_over_mean"] = max(work) * len(work) / (sum(work) or math.inf)
    return {
        key: float(value) for key, value in found.items() if isinstance(value, int | float) and math.isfinite(value)
    }
