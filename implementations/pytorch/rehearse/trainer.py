"""A rank's trainer in a rehearsal: the run's own, on synthetic samples and with the smallest model."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.bert.sizes import TINY
from implementations.pytorch.build_run import build_stepper, warm_up
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.exchange import ExchangeReader
from implementations.pytorch.data.loader import Loader, Prefetcher
from implementations.pytorch.data.reader import Step
from implementations.pytorch.data.synthetic_store import JoinedSyntheticStores, SyntheticStore
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.rehearse.settings import RehearsedRun
from implementations.pytorch.rehearse.stopwatch import Stopwatch
from implementations.pytorch.rehearse.usage import memory
from implementations.pytorch.trainer import Trainer
from podium.config.run_folder import RunFolder
from podium.planning.batch_plan import run_shapes

# Parts of a step, by what they are called in the report.
PLAN, EXCHANGE, LAYOUT, TOTALS, METRICS, FLUSH = (
    "global batch",
    "exchange plan",
    "layout of this rank's part",
    "totals",
    "metrics",
    "metrics of the step before",
)
SAMPLES = "synthetic samples"  # which are not the system's
# Parts of the start whose time and memory are not those of the system's host, as this CPU computes another model.
DEVICE_PARTS = ("model", "warm-up", "matmul rate")


@dataclass
class Part:
    """What a part of the start took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads: the same beside any other load
    own_bytes: int = 0  # of memory, more than before


class Rehearsed(Exception):
    """All steps of the rehearsal are taken."""


class RehearsedTrainer(Trainer):
    """Initialises as a run does, takes some steps, and leaves. Evaluations are prepared and not computed."""

    def __init__(self, run: RehearsedRun, processes: Processes, folder: RunFolder, steps: int) -> None:
        super().__init__(run.config, processes, folder, None)
        self._run, self._steps = run, min(steps, run.config.steps)
        self.stopwatch = Stopwatch()
        self.start: dict[str, Part] = {}  # in their order
        self.sample_bytes: list[int] = []  # of this rank's samples of each step, as a store holds them

    def rehearse(self) -> None:
        """Start, and take the steps."""
        with suppress(Rehearsed):
            self.run()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        own, wall, cpu = memory().own, time.perf_counter(), time.process_time()
        yield
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        self.start[part] = Part(seconds, cpu_seconds, memory().own - own)

    def _open_data(self) -> None:
        with self._timed("length index"):
            stores = [
                SyntheticStore(index.path, index.mapped(), TINY.vocabulary_size) for index in self._run.indices.values()
            ]
            *training, self.evaluation_store = stores
            self.store = JoinedSyntheticStores(training) if len(training) > 1 else training[0]
            self.words = self.config.model_size.vocabulary_size

    def _build_order(self) -> None:
        with self._timed("sampling order"):
            super()._build_order()

    def _build_model(self) -> None:
        with self._timed("model"):
            self.stepper = build_stepper(self.config, self.processes, TINY.vocabulary_size, TINY)

    def _find_shapes(self) -> None:
        with self._timed("shapes of all steps"):
            self.shapes = run_shapes(self.order, self.processes.rank, self.last_step) if self._run.graphs else None

    def _warm_up(self) -> None:
        with self._timed("warm-up"):
            warm_up(self.stepper, self.order, TINY.vocabulary_size)
        self.stopwatch.watch(self.order, "global_batch", PLAN)

    def _peak(self) -> float:
        with self._timed("matmul rate"):
            return super()._peak()

    def _make_loader(self) -> Loader:
        with self._timed("loader"):
            loader = super()._make_loader()
        assert isinstance(loader, Prefetcher)
        reader = loader.source
        if isinstance(reader, ExchangeReader):
            self.stopwatch.watch(reader, "plan", EXCHANGE)
            self.stopwatch.watch(reader, "lay_out", LAYOUT)
        else:
            self.stopwatch.watch(reader, "read", LAYOUT)
        self.stopwatch.watch(reader.samples, "gather", SAMPLES)
        return loader

    def _share_evaluation(self) -> list[RaggedBatch]:
        self.stopwatch.watch(self.totals, "add", TOTALS)
        self.stopwatch.watch(self.metrics, "step", METRICS)
        self.stopwatch.watch(self.metrics, "flush", FLUSH)
        with self._timed("evaluation samples"):
            batches = super()._share_evaluation()
        return batches

    def _step(self, step: Step) -> None:
        super()._step(step)
        whole = step.whole
        here = 0
        for part in whole.micro_batches(self.processes.rank):
            here += (
                2 * int(whole.lengths[part].sum())
                + 4 * int(whole.masked_counts[part].sum())
                + 3 * (part.stop - part.start)
            )
        self.sample_bytes.append(here)
        if len(self.sample_bytes) == self._steps:
            raise Rehearsed

    def _evaluate(self, last: bool) -> bool:
        """Computed by the device: nothing for the host to do."""
        return False
