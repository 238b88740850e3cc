"""A rank's trainer in a rehearsal: the run's own, on synthetic samples and with the smallest model."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.bert.records import record_lengths
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import STORED_DTYPE
from benchmarks.bert.sizes import TINY
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.build_run import build_stepper, replays_graphs, warm_up
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.exchange import ExchangeReader, Plan
from implementations.pytorch.data.loader import Loader, Prefetcher
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.rehearse.reader import WORDS, SyntheticReader
from implementations.pytorch.rehearse.settings import on_cpu
from implementations.pytorch.rehearse.stopwatch import Stopwatch
from implementations.pytorch.rehearse.usage import bytes_read, memory
from implementations.pytorch.trainer import Trainer
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.planning.batch_plan import run_shapes
from podium.planning.hardware import attention_of

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

    def __init__(self, config: RunConfig, processes: Processes, folder: RunFolder, steps: int) -> None:
        """`config` is the system's."""
        super().__init__(on_cpu(config), processes, folder, None)
        self._graphs = replays_graphs(config, config.launch.device, attention_of(config))
        self._steps = min(steps, config.steps)
        self.stopwatch = Stopwatch()
        self.start: dict[str, Part] = {}  # in their order
        self.store_disk_bytes = 0  # read from disks to open the stores
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
        with self._timed("stores"):
            before, _ = bytes_read()
            super()._open_data()
            self.store_disk_bytes = bytes_read()[0] - before

    def _build_order(self) -> None:
        with self._timed("sampling order"):
            super()._build_order()

    def _build_model(self) -> None:
        with self._timed("model"):
            self.stepper = build_stepper(self.config, self.processes, WORDS, TINY)

    def _find_shapes(self) -> None:
        with self._timed("shapes of all steps"):
            self.shapes = run_shapes(self.order, self.processes.rank, self.last_step) if self._graphs else None

    def _warm_up(self) -> None:
        with self._timed("warm-up"):
            warm_up(self.stepper, self.order, WORDS)
        self.stopwatch.watch(self.order, "global_batch", PLAN)

    def _prepare_overlap(self, words: int) -> None:
        super()._prepare_overlap(WORDS)

    def _peak(self) -> float:
        with self._timed("matmul rate"):
            return super()._peak()

    def _make_loader(self) -> Loader:
        with self._timed("loader"):
            loader = super()._make_loader()
        assert isinstance(loader, Prefetcher), "DALI is left out"
        reader = loader.source
        reader.samples = SyntheticReader(self.store)
        self.stopwatch.watch(reader.samples, "gather", SAMPLES)
        if isinstance(reader, ExchangeReader):
            self.stopwatch.watch(reader, "plan", EXCHANGE)
            self.stopwatch.watch(reader, "lay_out", LAYOUT)
            self._replace_what_arrives(reader)
        else:
            self.stopwatch.watch(reader, "read", LAYOUT)
        return loader

    def _replace_what_arrives(self, reader: ExchangeReader) -> None:
        """No other rank sends anything, so samples that arrive are made up as those are that are read."""
        samples, passed_on = reader.samples, reader.pass_on

        def pass_on(plan: Plan, read: Samples) -> Samples:
            passed_on(plan, read)
            return samples.gather(plan.arriving)

        vars(reader)["pass_on"] = pass_on

    def _share_evaluation(self, reader: Callable[[SampleStore], BulkReader] = SyntheticReader) -> list[RaggedBatch]:
        self.stopwatch.watch(self.totals, "add", TOTALS)
        self.stopwatch.watch(self.metrics, "step", METRICS)
        self.stopwatch.watch(self.metrics, "flush", FLUSH)
        with self._timed("evaluation samples"):
            batches = super()._share_evaluation(reader)
        return batches

    def _step(self, step: Step) -> None:
        super()._step(step)
        whole, here = step.whole, 0
        for part in whole.micro_batches(self.processes.rank):
            here += int(record_lengths(whole.lengths[part], whole.masked_counts[part]).sum()) * STORED_DTYPE.itemsize
        self.sample_bytes.append(here)
        if len(self.sample_bytes) == self._steps:
            raise Rehearsed

    def _evaluate(self, last: bool) -> bool:
        """Computed by the device: nothing for the host to do."""
        return False
