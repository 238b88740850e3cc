"""Progress display of a run: accuracy relative to the target, samples a second, time left."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig


class _TimeLeft(ProgressColumn):
    """Time to the end of the samples allowed; the target usually ends a run long before."""

    def render(self, task: Task) -> Text:
        if not task.speed or task.time_remaining is None:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        return Text(f"at most {minutes}:{seconds:02d} left", style="progress.remaining")


class Progress:
    """Notes and bars on one console; on something that is no terminal, notes and evaluations as plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(f"{text} …", style="dim", markup=False, highlight=False)

    @contextmanager
    def run(self, config: RunConfig, folder: RunFolder, title: str) -> Iterator[Callable[[], None]]:
        """Show a run; what is given is to be called now and then to look for news."""
        bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f} samples"),
            TextColumn("{task.fields[speed_text]}"),
            TextColumn("[bold]{task.fields[accuracy]}[/bold]"),
            TimeElapsedColumn(),
            _TimeLeft(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        with bar:
            task = bar.add_task(f"{title}: warming up", total=config.max_samples, speed_text="", accuracy="")
            news, told = News(folder.metrics), 0
            target = "" if config.target_accuracy is None else f" of {config.target_accuracy:.3f}"

            def tick() -> None:
                nonlocal told
                for line in news.lines():
                    if line["event"] == "step":
                        bar.update(task, description=title, completed=line["samples"])
                        speed = bar.tasks[0].speed
                        bar.update(task, speed_text=f"{speed:,.0f}/s" if speed else "")
                    elif line["event"] == "evaluation":
                        text = f"accuracy {line['accuracy']:.4f}{target}"
                        bar.update(task, accuracy=text)
                        if not self._console.is_terminal and line["samples"] > told:
                            told = line["samples"]
                            self._console.print(f"{title}: {line['samples']:,} samples, {text}", highlight=False)

            yield tick


class News:
    """Lines added to a JSON-lines file since the last look; all of them where it was begun again."""

    def __init__(self, path: Path) -> None:
        self._path, self._position, self._number = path, 0, 0

    def lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            number = os.fstat(file.fileno()).st_ino
            if number != self._number:
                self._number, self._position = number, 0
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                yield json.loads(line)
