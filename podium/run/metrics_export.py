"""Copies the metrics of a run to loggers while it runs, in a thread of the harness, or when it has ended.

The ranks that are timed do not take part: they write metrics.jsonl as ever. A logger that fails is closed with a note,
and the run continues.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError, attempt
from podium.core.files import write_atomically
from podium.core.json_files import read_json
from podium.core.locks import is_locked
from podium.core.yaml_files import read_yaml
from podium.run.loggers import LOGGERS, Logger, scalars_of
from podium.run.progress import MetricsReader

INTERVAL_SECONDS = 2.0
STATE = "loggers.json"  # in a run's folder: what identifies the run to each logger, and what it has


class MetricsExport:
    """The metrics of one run and the loggers that they are copied to."""

    def __init__(self, folder: RunFolder, names: Sequence[str], note: Callable[[str], None]) -> None:
        """Open the loggers. One that cannot be opened is left out, with a note."""
        self._folder, self._note, self._reader = folder, note, MetricsReader(folder.metrics)
        self._path = folder.path / STATE
        self._state = self._read_state()
        self._loggers: dict[str, Logger] = {}
        self._last_rate = (0, 0.0)  # samples and time
        settings = dict(flatten(read_yaml(folder.config)))
        title = "/".join(folder.path.parts[-3:])
        for name in names:
            state = self._state.setdefault(name, {})

            def open_logger(name: str = name, state: dict[str, Any] = state) -> None:
                self._loggers[name] = LOGGERS[name][0](folder.path, title, settings, state)

            if self._guarded(name, open_logger):
                note(f"Metrics are copied to {name}: {self._loggers[name].place}")
        self._write_state()

    def copy(self, rates: Mapping[int, float] | None = None) -> None:
        """Copy the lines that were added to metrics.jsonl since the last call.

        `rates`: sequences/s by number of samples; by default they are measured from call to call.
        """
        last = 0
        for line in self._reader.lines():
            samples, scalars = int(line["samples"]), scalars_of(line)
            if rates is not None and line["event"] == "evaluation" and samples in rates:
                scalars["train/sequences_per_second"] = rates[samples]
            last = max(last, samples)
            self._log(line["event"], samples, scalars)
        if last and rates is None:
            before, since = self._last_rate
            now = time.monotonic()
            if since and last > before:
                self._log("rate", last, {"train/sequences_per_second": (last - before) / (now - since)})
            self._last_rate = (last, now)
        for name, logger in list(self._loggers.items()):
            self._guarded(name, logger.flush)
        if last:
            self._write_state()

    def close(self, succeeded: bool) -> None:
        """Add the totals of a run that has ended, and close the loggers."""
        summary, _ = attempt(self._folder.read_summary)
        totals = {f"run/{key}": float(value) for key, value in flatten(summary or {}) if type(value) in (int, float)}
        if summary and totals:
            self._log("totals", int(summary["samples"]), totals)
        for name, logger in list(self._loggers.items()):
            self._guarded(name, partial(logger.close, succeeded))
        self._write_state()

    def _log(self, event: str, samples: int, scalars: Mapping[str, float]) -> None:
        """Log values of an event unless a logger has them already, as when a resumed run repeats steps."""
        for name, logger in list(self._loggers.items()):
            copied = self._state[name].setdefault("copied", {})
            if scalars and samples > copied.get(event, -1):
                self._guarded(name, partial(logger.log, samples, scalars))
                copied[event] = samples

    def _guarded(self, name: str, work: Callable[[], None]) -> bool:
        """Call a logger; without it from then on if it fails, whatever its package raises."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 — of another package: a run of hours must not end for it
            self._loggers.pop(name, None)
            text = str(error).strip().partition("\n")[0] or type(error).__name__
            self._note(f"--log-to {name} has failed and gets no more values: {text[:300]}")
            return False
        return True

    def _read_state(self) -> dict[str, dict[str, Any]]:
        try:
            document = read_json(self._path)
        except ValueError:
            return {}
        entries = document.items() if isinstance(document, dict) else ()
        return {str(name): dict(value) for name, value in entries if isinstance(value, dict)}

    def _write_state(self) -> None:
        attempt(write_atomically, self._path, json.dumps(self._state, indent=1) + "\n")


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a document with its dotted key; lists as text."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from flatten(below, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, json.dumps(value) if isinstance(value, list) else value


def export_finished(
    folder: RunFolder, names: Sequence[str], rates: Mapping[int, float], succeeded: bool, note: Callable[[str], None]
) -> None:
    """Copy the metrics of a run that has ended; `rates`: sequences/s by number of samples. UsageError if it runs."""
    if is_locked(folder.lock):
        raise UsageError(f"{folder.path}: is under way; use `podium run --log-to`, or wait for its end")
    export = MetricsExport(folder, names, note)
    export.copy(rates)
    export.close(succeeded)


@contextmanager
def metrics_export(folder: RunFolder, names: Sequence[str], note: Callable[[str], None]) -> Iterator[None]:
    """Copy the metrics of a run to loggers during the block."""
    if not names:
        yield
        return
    export, ended, succeeded = MetricsExport(folder, names, note), threading.Event(), False

    def follow() -> None:
        while not ended.wait(INTERVAL_SECONDS):
            export.copy()

    thread = threading.Thread(target=follow, name="metrics export", daemon=True)
    thread.start()
    try:
        yield
        succeeded = True
    finally:
        ended.set()
        thread.join()
        export.copy()
        export.close(succeeded)
