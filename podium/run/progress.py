"""Progress display of a run: accuracy and its target, samples/s, time left."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import verbosity
from podium.core.text import truncate
from podium.run.time_left import TimeLeft, expected_samples

# Columns of a terminal from which on there is a bar, and those that all but the title takes, with and without it.
WIDE = 110
NARROW = 70
MIN_TITLE = 10


class Progress:
    """Prints notes and a progress bar to a console; if it is not a terminal, notes and evaluations as plain lines.

    Prints nothing with -q; with -v the time before each note.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        if not verbosity.quiet:
            self._console.print(f"{verbosity.time}{text} …", style="dim", markup=False, highlight=False)

    @contextmanager
    def run(self, config: RunConfig, folder: RunFolder, title: str) -> Iterator[Callable[[], None]]:
        """Show the progress of a run. Yields a function that is to be called regularly and reads the new metrics."""
        wide = self._console.width >= WIDE
        title = truncate(title, max(MIN_TITLE, self._console.width - (WIDE if wide else NARROW)))
        bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *([BarColumn(bar_width=24)] if wide else []),
            TextColumn("{task.completed:,.0f} samples"),
            TextColumn("{task.fields[speed_text]}"),
            TextColumn("[bold]{task.fields[accuracy]}[/bold]"),
            TimeElapsedColumn(Column(no_wrap=True)),
            TextColumn("[progress.remaining]{task.fields[left]}"),
            console=self._console,
            disable=verbosity.quiet or not self._console.is_terminal,
            transient=True,
        )
        with bar:
            task = bar.add_task(title, total=config.max_samples, speed_text="warming up", accuracy="", left="")
            left = TimeLeft(config, expected_samples(config, folder.path.parents[2], folder.path))
            metrics, printed_samples = MetricsReader(folder.metrics), 0
            target = "" if config.target_accuracy is None else f" of {config.target_accuracy:.3f}"

            def tick() -> None:
                nonlocal printed_samples
                events = list(metrics.lines())
                # Only the last step has just been taken: a resumed run's file begins with all earlier ones.
                steps = [event["samples"] for event in events if event["event"] == "step"]
                if steps:
                    left.add_step(steps[-1], restarted=metrics.is_new_file)
                for event in events:
                    if event["event"] == "evaluation":
                        left.add_evaluation(event["samples"], event["accuracy"])
                        text = f"accuracy {event['accuracy']:.4f}{target}"
                        bar.update(task, accuracy=text if wide else text.removeprefix("accuracy "))
                        # A restarted run repeats the evaluations since its checkpoint; they are printed once.
                        plain = not (self._console.is_terminal or verbosity.quiet)
                        if plain and event["samples"] > printed_samples:
                            printed_samples = event["samples"]
                            line = f"{verbosity.time}{title}: {event['samples']:,} samples, {text}"
                            self._console.print(line, markup=False, highlight=False)
                if steps:
                    total, speed = left.samples_to_target()[0], left.samples_per_second
                    bar.update(task, description=title, completed=steps[-1], total=total, left=left.text())
                    bar.update(task, speed_text=f"{speed:,.0f}/s" if speed else "")

            yield tick


class MetricsReader:
    """Incremental reader of a growing JSON-lines file; starts over if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._position, self._inode = path, 0, 0
        self.is_new_file = False  # whether the last call began to read a file

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the objects that were added since the last call; nothing if the file does not exist."""
        self.is_new_file = False
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            # A restarted run replaces the file by rename, so a new inode means that all of it is to be read.
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._position, self.is_new_file = inode, 0, True
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):  # the writer is in the middle of this line; read it next time
                    break
                self._position += len(line)
                yield json.loads(line)
