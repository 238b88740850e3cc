"""The folder of one run: files of the harness and of the implementation, and its checkpoints.

A checkpoint is a folder under the run's own. It is complete when its facts and the file of every rank exist. Each of
these files is written to a temporary name and renamed, so that no process waits for another: the last file to arrive
completes it, and until then another file says that it is unfinished. The facts contain the configuration that the
checkpoint was made with, which is compared with that of a run that resumes from it.
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
from podium.config.schema import FREE, FREE_ON_GPU, RunConfig
from podium.core.errors import PodiumError, Saved, UsageError, WorkError
from podium.core.files import make_folder, unwritable, write_whole
from podium.core.json_files import digest_of, parse_json, read_json

FORMAT, VERSION = "podium-run", 2
FACTS = "facts.json"
UNFINISHED = "unfinished"  # a file of a checkpoint that is being written
NAME = "batch_{:08d}"
# The facts that harness and implementation share, and their types.
KNOWN: Mapping[str, type] = {
    **dict.fromkeys(("batches", "samples", "ranks", "metrics_bytes"), int),
    **dict.fromkeys(("log", "digest"), str),
    "configuration": dict,
}


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    batches: int  # global batches that were taken, those of skipped steps included
    samples: int  # that were trained on
    metrics_bytes: int  # length of the run's metrics when it was made
    log: str  # the run's log when it was made
    facts: Mapping[str, Any]  # all that is no tensor


def checkpoint_path(folder: Path, batches: int) -> Path:
    """Where the checkpoint after so many global batches lies, or would lie."""
    return folder / NAME.format(batches)


def rank_file(checkpoint: Path, rank: int) -> Path:
    """The tensors that a rank has written."""
    return checkpoint / f"rank_{rank}.safetensors"


def facts_of(
    batches: int,
    samples: int,
    ranks: int,
    metrics_bytes: int,
    log: str,
    configuration: Mapping[str, Any],
    rest: Mapping[str, Any],
    data: Mapping[str, str] | None = None,
) -> str:
    """The content of a checkpoint's facts.

    `configuration` is what the run was made with (`kept`), `data` the digests of its stores (of `RunData`; None where
    its folder lists none), and `rest` is the implementation's own.
    """
    known = {"batches": batches, "samples": samples, "ranks": ranks, "metrics_bytes": metrics_bytes, "log": log}
    facts = {"format": FORMAT, "version": VERSION, **known, "configuration": configuration, **rest}
    if data is not None:
        facts["data"] = dict(data)
    return json.dumps({**facts, "digest": digest_of(facts)}, indent=1) + "\n"


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in this folder; None where it is not whole or of another version."""
    try:
        facts = read_json(path / FACTS)
        known = (facts["format"], facts["version"]) == (FORMAT, VERSION)
        known = known and all(isinstance(facts[key], kind) for key, kind in KNOWN.items())
        whole = all(rank_file(path, rank).is_file() for rank in range(facts["ranks"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    if not (known and whole):
        return None
    return Checkpoint(path, facts["batches"], facts["samples"], facts["metrics_bytes"], facts["log"], facts)


def checkpoint_folders(folder: Path) -> list[Path]:
    """The folders of all checkpoints of a run, whole or not, the oldest first."""
    return sorted(
        (path for path in folder.glob("batch_*") if path.name[6:].isdecimal() and path.is_dir()), key=_batches
    )


def _batches(path: Path) -> int:
    return int(path.name[6:])


def begin_checkpoint(folder: Path, batches: int) -> Path:
    """Make the folder of a checkpoint, marked as unfinished by the rank that comes first."""
    path = checkpoint_path(make_folder(folder), batches)
    try:
        path.mkdir()
    except FileExistsError:
        return make_folder(path)
    except OSError as error:
        raise unwritable(path, error) from None
    write_whole(path / UNFINISHED, "")
    return path


def finish_checkpoint(path: Path) -> None:
    """A rank has written all that it writes: the last one to do so ends the checkpoint."""
    if read_checkpoint(path) is not None:
        with suppress(OSError):
            (path / UNFINISHED).unlink(missing_ok=True)


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of a run, the oldest first."""
    found = [read_checkpoint(path) for path in checkpoint_folders(folder)]
    return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.batches)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    return next(reversed(whole_checkpoints(folder)), None)


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Remove all whole checkpoints but the newest ones. What is removed is no longer whole from the first moment on."""
    for checkpoint in whole_checkpoints(folder)[:-keep]:
        with suppress(OSError):
            (checkpoint.path / FACTS).unlink()
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def remove_unfinished_checkpoints(folder: Path) -> None:
    """Remove what processes that died have left half-written, and no checkpoint that was whole before."""
    for path in checkpoint_folders(folder):
        finish_checkpoint(path)
        if (path / UNFINISHED).exists() or not any(path.iterdir()):
            shutil.rmtree(path, ignore_errors=True)


class _Name:
    """A path in a run's folder, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: type | None = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Names of a run's files. None of them is a result: results/ gets its log when the run has ended."""

    path: Path

    config = _Name("config.yaml")  # the resolved configuration
    data = _Name("data.json")  # the manifests of the stores that it is trained and evaluated on
    source = _Name("source.json")  # which code makes the run
    log = _Name("result.partial.txt")  # the result log while it is being written
    metrics = _Name("metrics.jsonl")  # one JSON object a line: every step and every evaluation
    summary = _Name("summary.json")  # totals of a run that came to its end
    output = _Name("output.txt")  # what the processes print
    checkpoints = _Name("checkpoints")  # a folder with a folder for each checkpoint
    # the log of a run whose data was changed meanwhile
    changed_data_result = _Name("result.changed_data.txt")
    restarted_result = _Name("result.restarted.txt")  # the log of a run that was restarted, when it has ended
    not_finite = _Name("not_finite.json")  # the samples of the batch whose loss was not finite
    lock = _Name(".lock")  # locked by all processes of the run as long as they live (podium/core/locks.py)
    _resumed = _Name("resumed")
    _failure = _Name("failure.json")
    _restarts = _Name("restarts.jsonl")

    @property
    def begun(self) -> bool:
        """Whether processes have written here before: those that start now begin again."""
        return self.log.exists() or self.metrics.exists() or self.gone_on_with

    @property
    def gone_on_with(self) -> bool:
        """Whether the run was restarted, or `podium run --resume` has set out to: its log is no result."""
        return self._resumed.exists() or self.restarts > 0

    def mark_resumed(self) -> None:
        """Say that the run is gone on with, before any process of it starts: it may die before it can say so."""
        write_whole(self._resumed, "")

    @property
    def restarts(self) -> int:
        """How often the run was begun again, by torchrun or by `podium run --resume`."""
        return len(self._restarts.read_text(encoding="utf-8").splitlines()) if self._restarts.is_file() else 0

    def begin_again(self, checkpoint: Checkpoint | None) -> None:
        """Mark the run as restarted, and bring log and metrics to where they stood in the checkpoint, or to nothing.

        Unfinished checkpoints are removed, and a failure that the restart was made for is forgotten.
        """
        time, samples = datetime.now().isoformat(timespec="seconds"), checkpoint.samples if checkpoint else 0
        with self._restarts.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time, "samples": samples}) + "\n")
        remove_unfinished_checkpoints(self.checkpoints)
        metrics = self.metrics.read_bytes() if self.metrics.is_file() else b""
        length = checkpoint.metrics_bytes if checkpoint else 0
        if len(metrics) < length:
            raise WorkError(
                f"{self.metrics}: has {len(metrics)} bytes, and the checkpoint {checkpoint and checkpoint.path} was "
                f"made when it had {length}; put the whole file back"
            )
        write_whole(self.metrics, metrics[:length])
        write_whole(self.log, checkpoint.log if checkpoint else "")
        self.forget_failure()

    def read_summary(self) -> dict[str, Any] | None:
        """The totals, or None where the run did not come to its end. WorkError where they cannot be read."""
        if not self.summary.is_file():
            return None
        try:
            summary = read_json(self.summary)
        except ValueError as error:
            raise WorkError(f"{self.summary}: holds no totals of a run ({error}); put the whole file back") from None
        if not isinstance(summary, dict):
            raise WorkError(f"{self.summary}: holds no totals of a run; put the whole file back")
        return summary

    def samples_trained(self) -> int:
        """Samples that the run was trained on, as far as its metrics tell."""
        samples = 0
        if self.metrics.is_file():
            with self.metrics.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    with suppress(ValueError, KeyError, TypeError, OverflowError):
                        samples = max(samples, int(parse_json(line)["samples"]))
        return samples

    def tell_failure(self, error: PodiumError, final: bool = True) -> None:
        """Leave the sentence for whoever started the run. After a `final` one a restart would come to the same end."""
        failure = {"exit_code": error.exit_code, "message": str(error), "final": final}
        write_whole(self._failure, json.dumps(failure))

    def told_failure(self, final_only: bool = False) -> PodiumError | None:
        """The failure that a process has told of."""
        try:
            failure = read_json(self._failure)
            exit_code, message = failure["exit_code"], str(failure["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if final_only and not failure.get("final", True):
            return None
        kinds: dict[int, type[PodiumError]] = {kind.exit_code: kind for kind in (UsageError, Saved)}
        return kinds.get(exit_code, WorkError)(message)

    def forget_failure(self) -> None:
        self._failure.unlink(missing_ok=True)


FREE_BESIDE_LAUNCH = {"checkpoint"}  # keys that may be others when a run is gone on with: they change no number of it
MOST_NAMED = 3


def kept(config: RunConfig) -> dict[str, Any]:
    """All of a configuration that a run's numbers and its log depend on, as JSON holds it."""
    document = config.model_dump(mode="json", by_alias=True, exclude=FREE_BESIDE_LAUNCH | {"launch"})
    left_out = {*FREE, *(FREE_ON_GPU if config.launch.device == "cuda" else ())}
    return {**document, "launch": config.launch.model_dump(mode="json", by_alias=True, exclude=left_out)}


def require_kept(checkpoint: Checkpoint, config: RunConfig, file: Path) -> None:
    """Refuse to go on from a checkpoint whose facts were changed, or with another configuration than it was made with.

    `file` is where the configuration was read. Raises WorkError for the facts, UsageError for the configuration.
    """
    facts = {key: value for key, value in checkpoint.facts.items() if key != "digest"}
    if digest_of(facts) != checkpoint.facts["digest"]:
        raise WorkError(
            f"{checkpoint.path / FACTS}: is not as it was written; remove the folder {checkpoint.path}, and the run "
            "goes on from the checkpoint before it"
        )
    found = list(_differences(kept(config), checkpoint.facts["configuration"]))
    if found:
        more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise UsageError(
            f"{file}: {', '.join(found[:MOST_NAMED])}{more}, as {checkpoint.path} was made; a run goes on as it was "
            "configured: put that back, or start another run"
        )


def require_same_data(checkpoint: Checkpoint, run: RunFolder) -> None:
    """Raise WorkError for a checkpoint that was made on other samples than the run's folder lists.

    A checkpoint of an older version lists none, and neither does the folder of its run.
    """
    data, made_on = read_run_data(run.data), checkpoint.facts.get("data")
    listed = data.digests if data else {}
    found = made_on if isinstance(made_on, dict) else {}
    if differing := [key for key in {**listed, **found} if listed.get(key) != found.get(key)]:
        raise WorkError(
            f"{checkpoint.path / FACTS}: was made on other samples than {run.data} lists ({', '.join(differing)}); put "
            "back the file of that name which `podium run` wrote, or start another run"
        )


def _differences(here: Any, there: Any, key: str = "") -> Iterator[str]:
    """`KEY is HERE and was THERE` for each key of two documents that differs."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in (*here, *(name for name in there if name not in here)):
            yield from _differences(here.get(name), there.get(name), f"{key}.{name}" if key else name)
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from _differences(one, other, f"{key}.{number}")
    elif here != there:
        yield f"{key} is {json.dumps(here, ensure_ascii=False)} and was {json.dumps(there, ensure_ascii=False)}"
