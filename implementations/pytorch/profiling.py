"""Profile of a rank's training steps: torch.profiler's trace, on a GPU also NVTX ranges and a memory snapshot.

Files in the run's folder `profile`: `rank_N.json.gz`, a trace that chrome://tracing and ui.perfetto.dev open;
`rank_N.txt`, a table of the operators that took longest; and on a GPU `rank_N_memory.pickle`, which PyTorch writes and
https://pytorch.org/memory_viz draws. That is a pickle, which Podium never reads; open one only if you trust its origin.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from podium.config.run_folder import WARM_STEPS

Item = TypeVar("Item")

MAX_MEMORY_EVENTS = 100_000
TABLE_ROWS = 40


class StepProfiler:
    """Profiles a number of steps of this rank; 0 steps profile nothing. Use as a context manager around training.

    `after_pause` is called after the profile has started, and after its files are written: seconds that are no part of
    any step.
    """

    def __init__(
        self,
        steps: int,
        folder: Path,
        rank: int,
        device: torch.device,
        after_pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._after_pause = after_pause
        self._steps, self._path, self._on_gpu = steps, folder / f"rank_{rank}", device.type == "cuda"
        self._taken = 0
        self._profile: profile | None = None
        self._waiting: int | None = None  # NVTX range of the current wait for other ranks

    def __enter__(self) -> "StepProfiler":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def range(self, name: str) -> AbstractContextManager[object]:
        """A named range in the trace while steps are profiled, else nothing."""
        return nullcontext() if self._profile is None else self._named_range(name)

    @contextmanager
    def _named_range(self, name: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(record_function(name))
            if self._on_gpu:
                stack.enter_context(torch.cuda.nvtx.range(name))
            yield

    def begin_synchronisation(self) -> None:
        """Begin the NVTX range of exposed communication: the last gradients are computed. Called in any thread."""
        if self._profile is not None and self._on_gpu:
            self._waiting = torch.cuda.nvtx.range_start("synchronisation")

    def end_synchronisation(self) -> None:
        if self._waiting is not None:
            torch.cuda.nvtx.range_end(self._waiting)
            self._waiting = None

    def steps(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the steps of a run; starts the profile after WARM_STEPS of them, and ends it."""
        iterator = iter(items)
        while True:
            if self._steps and self._taken == WARM_STEPS:
                self._start()
                self._after_pause()
            with self.range("data_wait"):
                item = next(iterator, None)
            if item is None:
                return
            yield item
            self._taken += 1
            if self._taken == WARM_STEPS + self._steps:
                self._stop()
                self._after_pause()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=MAX_MEMORY_EVENTS)
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()
        self._began = time.perf_counter()

    def _stop(self) -> None:
        """End the profile and write its files."""
        if self._profile is None:
            return
        self._profile.stop()
        ended, self._profile = self._profile, None
        steps = self._taken - WARM_STEPS
        if not steps:  # the run has ended just before
            return
        seconds = time.perf_counter() - self._began
        self._path.parent.mkdir(parents=True, exist_ok=True)
        ended.export_chrome_trace(str(self._path.with_suffix(".json.gz")))
        by = "self_device_time_total" if self._on_gpu else "self_cpu_time_total"
        table = ended.key_averages().table(sort_by=by, row_limit=TABLE_ROWS, max_name_column_width=60)
        heading = f"{steps} steps after the first {WARM_STEPS}, {seconds:.3f} s with the profiler\n"
        self._path.with_suffix(".txt").write_text(heading + table + "\n", encoding="utf-8")
        if self._on_gpu:
            snapshot = self._path.with_name(f"{self._path.name}_memory.pickle")
            torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(enabled=None)
