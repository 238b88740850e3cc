"""Metrics of a run in loggers, with small modules in place of their packages, or the packages where installed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError
from podium.run import loggers
from podium.run.loggers import LOGGERS, _has_wandb_key, parse_loggers, require_packages, scalars_of
from podium.run.metrics_export import MetricsExport, metrics_export

STEP = {
    **{"event": "step", "step": 1, "samples": 16, "tokens": 80, "slots": 100, "max_over_mean_tokens": 1.5},
    **{"loss": 7.5, "masked_lm_loss": 7.0, "next_sentence_loss": 0.5, "learning_rate": 0.001, "gradient_norm": 2.0},
}
EVALUATION = {"event": "evaluation", "samples": 32, "accuracy": 0.5, "masked_lm_loss": 4.0}


class Recorder:
    """A logger that keeps what it gets, by the folder of the run."""

    kept: list[Any]
    place = "here"

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], state: dict[str, str]) -> None:
        type(self).kept.append(("open", name, settings["global_batch_size"], dict(state)))
        state["id"] = "abc"

    def log(self, samples: int, scalars: Mapping[str, float]) -> None:
        type(self).kept.append((samples, dict(scalars)))

    def flush(self) -> None: ...

    def close(self, succeeded: bool) -> None:
        type(self).kept.append(("close", succeeded))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    kept: list[Any] = []

    class Kept(Recorder):
        pass

    Kept.kept = kept
    monkeypatch.setitem(LOGGERS, "tensorboard", (Kept, "json"))  # type: ignore[index]
    return Kept


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "laptop" / "set" / "run_0")
    folder.path.mkdir(parents=True)
    write_resolved(load_system("laptop"), folder.config)
    return folder


def append(run: RunFolder, *lines: Mapping[str, Any]) -> None:
    with run.metrics.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_scalars_of_a_step() -> None:
    assert scalars_of(STEP | {"gradient_norm": float("inf"), "rank_work_ms": [30.0, 10.0]}) == {
        **{"train/loss": 7.5, "train/masked_lm_loss": 7.0, "train/next_sentence_loss": 0.5},
        **{"train/learning_rate": 0.001, "train/max_over_mean_tokens": 1.5, "train/padding_share": pytest.approx(0.2)},
        "train/rank_work_max_over_mean": 1.5,
    }
    assert scalars_of({"event": "skipped", "samples": 16}) == {}


def test_run_is_copied_and_its_totals_are_added(run: RunFolder, recorder: type[Recorder]) -> None:
    with metrics_export(run, ["tensorboard"], lambda _: None):
        append(run, STEP, EVALUATION)
        run.summary.write_text('{"samples": 32, "seconds": 9.5, "reached_target": true, "phases_ms": {"forward": 1.5}}')
    opened, step, evaluation, totals, closed = recorder.kept
    assert opened == ("open", "laptop/set/run_0", 16, {})
    assert step == (16, scalars_of(STEP))
    assert evaluation == (32, {"evaluation/accuracy": 0.5, "evaluation/masked_lm_loss": 4.0})
    assert totals == (32, {"run/samples": 32, "run/seconds": 9.5, "run/phases_ms.forward": 1.5})
    assert closed == ("close", True)


def test_resumed_run_continues_the_same_record(run: RunFolder, recorder: type[Recorder]) -> None:
    append(run, STEP, STEP | {"samples": 32})
    with pytest.raises(KeyboardInterrupt), metrics_export(run, ["tensorboard"], lambda _: None):
        raise KeyboardInterrupt
    assert recorder.kept.pop() == ("close", False)
    recorder.kept.clear()
    append(run, STEP | {"samples": 32}, STEP | {"samples": 48})  # from a checkpoint after 16 samples
    with metrics_export(run, ["tensorboard"], lambda _: None):
        pass
    assert recorder.kept[0][3]["id"] == "abc"
    assert [one[0] for one in recorder.kept[1:-1]] == [48]


def test_logger_that_fails_is_left_out_with_a_note(run: RunFolder, recorder: type[Recorder]) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route\nto host")

    notes: list[str] = []
    recorder.log = fail  # type: ignore[assignment]
    append(run, STEP)
    with metrics_export(run, ["tensorboard"], notes.append):
        pass
    assert notes[1:] == ["--log-to tensorboard has failed and gets no more values: no route"]


def test_sequences_per_second_are_given_at_evaluations(run: RunFolder, recorder: type[Recorder]) -> None:
    append(run, STEP, EVALUATION)
    export = MetricsExport(run, ["tensorboard"], lambda _: None)
    export.copy(rates={32: 212.5})
    assert recorder.kept[-1][1]["train/sequences_per_second"] == 212.5


@pytest.mark.parametrize("text", ["tensorbord", "wandb,x", "", ","])
def test_unknown_loggers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--log-to: found .* allowed are tensorboard, wandb, mlflow, separated"):
        parse_loggers(text)


def test_missing_packages_are_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_loggers("wandb, mlflow,wandb") == ("wandb", "mlflow")
    monkeypatch.setattr(loggers, "find_spec", lambda name: None if name != "mlflow" else object())
    require_packages(["mlflow"])
    with pytest.raises(
        UsageError, match=r"tensorboard and wandb are not .* with: \S+ -m pip install tensorboard wandb$"
    ):
        require_packages(["tensorboard", "wandb", "mlflow"])


def test_wandb_key_of_the_user_is_found(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    environment = {"NETRC": str(netrc)}
    assert not _has_wandb_key(environment)
    netrc.write_text("machine other.example login a password b\ndefault login a password b\n", encoding="utf-8")
    assert not _has_wandb_key(environment)
    netrc.write_text("machine api.wandb.ai login user password x\n", encoding="utf-8")
    assert _has_wandb_key(environment)
    assert not _has_wandb_key(environment | {"WANDB_BASE_URL": "https://wandb.example:8080"})
    assert _has_wandb_key({"WANDB_API_KEY": "x"})


def test_tensorboard_reads_what_is_written(run: RunFolder) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    append(run, STEP, EVALUATION)
    with metrics_export(run, ["tensorboard"], lambda _: None):
        pass
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(16, 7.5)]
    assert [(one.step, one.value) for one in events.Scalars("evaluation/accuracy")] == [(32, 0.5)]
    assert b"global_batch_size | 16" in events.Tensors("configuration")[0].tensor_proto.string_val[0]


def test_mlflow_reads_what_is_written(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    append(run, STEP, EVALUATION)
    for _ in range(2):
        with metrics_export(run, ["mlflow"], lambda _: None):
            pass
    client = tracking.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("podium/laptop").experiment_id])
    assert (found.data.metrics["evaluation/accuracy"], found.data.params["global_batch_size"]) == (0.5, "16")
    assert found.info.status == "FINISHED"
