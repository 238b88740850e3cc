"""The folder of one run: files of the harness and of the implementation, and its checkpoints.

A checkpoint is a subfolder of the run's folder. It is complete when its facts (facts.json) and the file of every rank
exist. Each of these files is written atomically, so that ranks need not wait for each other: the last file completes
the checkpoint, and until then a marker file shows that it is unfinished. The facts include the configuration that the
checkpoint was written with, which is compared with that of a run that resumes from it.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from podium.config.run_data import read_run_data
from podium.config.schema import RESUME_OVERRIDES, RESUME_OVERRIDES_ON_GPU, RunConfig
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, UsageError, WorkError
from podium.core.files import make_folder, write_atomically, write_error
from podium.core.json_files import json_digest, parse_json, read_json

FORMAT, VERSION = "podium-run", 2
FACTS = "facts.json"
WARM_STEPS = 10  # steps before the traced ones of --profile: caches and the loader's queue have filled
UNFINISHED_MARKER = "unfinished"  # marker file in a checkpoint that is being written
FOLDER_NAME = "batch_{:08d}"
# Facts that harness and implementation share, and their types.
REQUIRED_FACTS: Mapping[str, type] = {
    **dict.fromkeys(("batches", "samples", "ranks", "metrics_bytes"), int),
    **dict.fromkeys(("log", "digest"), str),
    "configuration": dict,
}


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    batches: int  # global batches consumed, including those of skipped steps
    samples: int  # samples trained on
    metrics_bytes: int  # length of the metrics file when it was written
    log: str  # content of the result log when it was written
    facts: Mapping[str, Any]  # the whole content of facts.json: everything but tensors


def checkpoint_path(folder: Path, batches: int) -> Path:
    """Path of the checkpoint after this number of global batches, whether or not it exists."""
    return folder / FOLDER_NAME.format(batches)


def rank_file(checkpoint: Path, rank: int) -> Path:
    """Path of the tensor file of one rank."""
    return checkpoint / f"rank_{rank}.safetensors"


def format_facts(
    batches: int,
    samples: int,
    ranks: int,
    metrics_bytes: int,
    log: str,
    configuration: Mapping[str, Any],
    rest: Mapping[str, Any],
    data: Mapping[str, str] | None = None,
) -> str:
    """Return the content of a checkpoint's facts.json, with its digest.

    `configuration` is the one that the run was started with (of `kept`), `data` the digests of its stores (of
    `RunData`; None if its folder has no such record), and `rest` further facts of the implementation.
    """
    known = {"batches": batches, "samples": samples, "ranks": ranks, "metrics_bytes": metrics_bytes, "log": log}
    facts = {"format": FORMAT, "version": VERSION, **known, "configuration": configuration, **rest}
    if data is not None:
        facts["data"] = dict(data)
    return json.dumps({**facts, "digest": json_digest(facts)}, indent=1) + "\n"


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read the checkpoint in this folder; None if it is incomplete, invalid or of another version."""
    try:
        facts = read_json(path / FACTS)
        known = (facts["format"], facts["version"]) == (FORMAT, VERSION)
        known = known and all(isinstance(facts[key], kind) for key, kind in REQUIRED_FACTS.items())
        whole = all(rank_file(path, rank).is_file() for rank in range(facts["ranks"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if not (known and whole):
        return None
    return Checkpoint(path, facts["batches"], facts["samples"], facts["metrics_bytes"], facts["log"], facts)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Folders of all checkpoints of a run, complete or not, oldest first."""
    return sorted(
        (path for path in folder.glob("batch_*") if path.name[6:].isdecimal() and path.is_dir()), key=_batches
    )


def _batches(path: Path) -> int:
    return int(path.name[6:])


def begin_checkpoint(folder: Path, batches: int) -> Path:
    """Create the folder of a checkpoint, and mark it as unfinished if this rank is the first."""
    path = checkpoint_path(make_folder(folder), batches)
    # mkdir is atomic: exactly one rank creates the folder and writes the marker.
    try:
        path.mkdir()
    except FileExistsError:
        return make_folder(path)
    except OSError as error:
        raise write_error(path, error) from None
    write_atomically(path / UNFINISHED_MARKER, "")
    return path


def finish_checkpoint(path: Path) -> None:
    """Remove the marker if the checkpoint is complete. Each rank calls this after its last file."""
    if read_checkpoint(path) is not None:
        with suppress(OSError):
            (path / UNFINISHED_MARKER).unlink(missing_ok=True)


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """Complete checkpoints of a run, oldest first."""
    found = [read_checkpoint(path) for path in checkpoint_folders(folder)]
    return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.batches)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint of a run; None if it has none."""
    return next(reversed(complete_checkpoints(folder)), None)


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Remove all complete checkpoints but the `keep` newest ones."""
    for checkpoint in complete_checkpoints(folder)[:-keep]:
        with suppress(OSError):
            (checkpoint.path / FACTS).unlink()  # first, so that a partly removed checkpoint is not seen as complete
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def remove_unfinished_checkpoints(folder: Path) -> None:
    """Remove checkpoints that were never completed because their processes died; a damaged one is not removed."""
    for path in checkpoint_folders(folder):
        finish_checkpoint(path)
        if (path / UNFINISHED_MARKER).exists() or not any(path.iterdir()):
            shutil.rmtree(path, ignore_errors=True)


class _RunPath:
    """Descriptor of a path in a run's folder, by file name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: type | None = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths and state of a run's folder. Its log is copied to results/ only when the run has ended."""

    path: Path

    config = _RunPath("config.yaml")  # the resolved configuration
    data = _RunPath("data.json")  # the manifests of its stores for training and evaluation
    source = _RunPath("source.json")  # the code of the run: commit and hash
    hosts = _RunPath("hosts.json")  # host names by node
    log = _RunPath("result.partial.txt")  # the result log while it is being written
    metrics = _RunPath("metrics.jsonl")  # JSON Lines: one object per step and per evaluation
    summary = _RunPath("summary.json")  # totals, written when the run has ended
    output = _RunPath("output.txt")  # standard output and standard error of the processes
    checkpoints = _RunPath("checkpoints")  # one subfolder per checkpoint
    changed_data_result = _RunPath("result.changed_data.txt")  # the log of a run whose data changed while it ran
    restarted_result = _RunPath("result.restarted.txt")  # the log of a restarted run that has ended
    profiled_result = _RunPath("result.profiled.txt")  # the log of a profiled run that has ended
    profile = _RunPath("profile")  # traces of --profile
    flight_recorder = _RunPath("flight_recorder")  # the last collectives of each rank of a run that hung
    not_finite = _RunPath("not_finite.json")  # the samples of the batch whose loss was not finite
    lock = _RunPath(".lock")  # held in shared mode by all processes of the run (podium/core/locks.py)
    _resumed = _RunPath("resumed")
    _profiled = _RunPath("profiled")
    _failure = _RunPath("failure.json")
    _restarts = _RunPath("restarts.jsonl")

    @property
    def was_started(self) -> bool:
        """Whether earlier processes of this run have written here, so that the next ones restart it."""
        return self.log.exists() or self.metrics.exists() or self.was_restarted

    @property
    def was_restarted(self) -> bool:
        """Whether the run was restarted, or marked by `podium run --resume`; its log is then not a valid result."""
        return self._resumed.exists() or self.restarts > 0

    def mark_resumed(self) -> None:
        """Mark the run as resumed. Called before its processes start, since they may die before they can record it."""
        write_atomically(self._resumed, "")

    @property
    def was_profiled(self) -> bool:
        """Whether steps of the run are profiled, which slows it; its log is then not a valid result."""
        return self._profiled.exists()

    def mark_profiled(self) -> None:
        """Mark the run as profiled. Called before its processes start."""
        write_atomically(self._profiled, "")

    @property
    def restarts(self) -> int:
        """Number of restarts, by torchrun or by `podium run --resume`."""
        return len(self._restarts.read_text(encoding="utf-8").splitlines()) if self._restarts.is_file() else 0

    def reset_for_restart(self, checkpoint: Checkpoint | None) -> None:
        """Record a restart, and reset log and metrics to their state in the checkpoint, or to empty without one.

        Unfinished checkpoints and the record of a failure are removed. Raises WorkError if the metrics file is shorter
        than it was when the checkpoint was written.
        """
        time, samples = datetime.now().isoformat(timespec="seconds"), checkpoint.samples if checkpoint else 0
        with self._restarts.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time, "samples": samples}) + "\n")
        remove_unfinished_checkpoints(self.checkpoints)
        metrics = self.metrics.read_bytes() if self.metrics.is_file() else b""
        length = checkpoint.metrics_bytes if checkpoint else 0
        if len(metrics) < length:
            raise WorkError(
                f"{self.metrics}: has {len(metrics)} bytes, but had {length} when the checkpoint "
                f"{checkpoint and checkpoint.path} was written; restore the whole file"
            )
        write_atomically(self.metrics, metrics[:length])
        write_atomically(self.log, checkpoint.log if checkpoint else "")
        self.clear_failure()

    def read_summary(self) -> dict[str, Any] | None:
        """Read the run's totals; None if the run has not ended. Raises WorkError if the file is invalid."""
        if not self.summary.is_file():
            return None
        try:
            summary = read_json(self.summary)
        except ValueError as error:
            raise WorkError(f"{self.summary}: is not a run summary ({error}); restore the file") from None
        if not isinstance(summary, dict):
            raise WorkError(f"{self.summary}: is not a run summary; restore the file")
        return summary

    def samples_trained(self) -> int:
        """Number of samples trained on so far, from the metrics file; unreadable lines are skipped."""
        samples = 0
        if self.metrics.is_file():
            with self.metrics.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    with suppress(ValueError, KeyError, TypeError, OverflowError):
                        samples = max(samples, int(parse_json(line)["samples"]))
        return samples

    def write_failure(self, error: PodiumError | Interrupted, final: bool = True) -> None:
        """Write a failure for the process that started the run; `final` if a restart would fail in the same way."""
        failure: dict[str, Any] = {"exit_code": error.exit_code, "message": str(error), "final": final}
        if isinstance(error, StoppedAfterSaving | Interrupted):  # the exit code is that of the signal
            failure["stopped"] = "saved" if isinstance(error, StoppedAfterSaving) else "interrupted"
        write_atomically(self._failure, json.dumps(failure))

    def read_failure(self, final_only: bool = False) -> PodiumError | None:
        """Read the failure that a process has written; None if there is none or it is not readable."""
        try:
            failure = read_json(self._failure)
            exit_code, message = failure["exit_code"], str(failure["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if final_only and not failure.get("final", True):
            return None
        if failure.get("stopped", "saved" if exit_code == StoppedAfterSaving.exit_code else None) == "saved":
            return StoppedAfterSaving(message)  # the exit code alone is that of runs of older versions
        return (UsageError if exit_code == UsageError.exit_code else WorkError)(message)

    def clear_failure(self) -> None:
        """Remove the record of a failure."""
        self._failure.unlink(missing_ok=True)


RESUME_OVERRIDES_BESIDE_LAUNCH = {"checkpoint"}  # besides keys of `launch`, those that a resumed run may change
MAX_KEYS_NAMED = 3


def fixed_configuration(config: RunConfig) -> dict[str, Any]:
    """Return the part of a configuration that results depend on and that a resumed run must not change, as JSON."""
    document = config.model_dump(mode="json", by_alias=True, exclude=RESUME_OVERRIDES_BESIDE_LAUNCH | {"launch"})
    left_out = {*RESUME_OVERRIDES, *(RESUME_OVERRIDES_ON_GPU if config.launch.device == "cuda" else ())}
    return {**document, "launch": config.launch.model_dump(mode="json", by_alias=True, exclude=left_out)}


def require_same_configuration(checkpoint: Checkpoint, config: RunConfig, file: Path) -> None:
    """Refuse to resume with another configuration than the checkpoint's, or from facts that were changed.

    `file` is the configuration's file, for the message. Raises WorkError for the facts, UsageError for the
    configuration.
    """
    facts = {key: value for key, value in checkpoint.facts.items() if key != "digest"}
    if json_digest(facts) != checkpoint.facts["digest"]:
        raise WorkError(
            f"{checkpoint.path / FACTS}: was changed after it was written; remove the folder {checkpoint.path} to "
            "resume from the previous checkpoint"
        )
    found = list(_differences(fixed_configuration(config), checkpoint.facts["configuration"]))
    if found:
        more = f", and {len(found) - MAX_KEYS_NAMED} more" if len(found) > MAX_KEYS_NAMED else ""
        raise UsageError(
            f"{file}: {', '.join(found[:MAX_KEYS_NAMED])}{more}, when {checkpoint.path} was written; a resumed run "
            "keeps its configuration: restore it, or start another run"
        )


def require_same_data(checkpoint: Checkpoint, run: RunFolder) -> None:
    """Raise WorkError if the checkpoint was made on other samples than those recorded in the run's folder.

    In runs of older versions neither the checkpoint nor the folder has a record.
    """
    data, made_on = read_run_data(run.data), checkpoint.facts.get("data")
    listed = data.digests if data else {}
    found = made_on if isinstance(made_on, dict) else {}
    if differing := [key for key in {**listed, **found} if listed.get(key) != found.get(key)]:
        raise WorkError(
            f"{checkpoint.path / FACTS}: was made on other samples than {run.data} lists ({', '.join(differing)}); "
            f"restore the {run.data.name} that `podium run` wrote, or start another run"
        )


def _differences(here: Any, there: Any, key: str = "") -> Iterator[str]:
    """Yield `KEY is HERE and was THERE` for each key in which two JSON documents differ."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in (*here, *(name for name in there if name not in here)):
            yield from _differences(here.get(name), there.get(name), f"{key}.{name}" if key else name)
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from _differences(one, other, f"{key}.{number}")
    elif here != there:
        yield f"{key} is {json.dumps(here, ensure_ascii=False)} and was {json.dumps(there, ensure_ascii=False)}"
