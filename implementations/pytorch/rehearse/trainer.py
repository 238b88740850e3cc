"""Trainer of a rehearsal: a run's trainer with synthetic samples, the smallest model, and timers."""

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
from implementations.pytorch.data.exchange import ExchangePlan, ExchangeReader
from implementations.pytorch.data.loader import Loader, Prefetcher
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.rehearse.reader import VOCABULARY_SIZE, SyntheticReader
from implementations.pytorch.rehearse.settings import on_cpu
from implementations.pytorch.rehearse.stopwatch import Stopwatch
from implementations.pytorch.rehearse.usage import bytes_read, resident_memory
from implementations.pytorch.trainer import Trainer
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.planning.hardware import expected_attention

# Parts of a step, by their names in the report.
PLAN, EXCHANGE, LAYOUT, TOTALS, METRICS, FLUSH = (
    "global batch",
    "exchange plan",
    "layout of this rank's part",
    "totals",
    "metrics",
    "metrics of the step before",
)
SAMPLES = "synthetic samples"  # timed so that other parts do not include them; not reported
# Parts of the start that do not count for the system's host: here they run another model, on the CPU.
DEVICE_PARTS = ("model", "warm-up", "matmul rate")


@dataclass
class StartPart:
    """Cost of a part of the start."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads; hardly changes with other load on the machine
    own_bytes: int = 0  # increase of anonymous memory


class RehearsalDone(Exception):
    """All steps of the rehearsal are taken."""


class RehearsalTrainer(Trainer):
    """Trainer that initialises as in a run, takes some steps, and ends. Evaluations are prepared, not computed."""

    def __init__(self, config: RunConfig, processes: Processes, folder: RunFolder, steps: int) -> None:
        """`config`: the system's configuration, not yet adapted to this CPU."""
        super().__init__(on_cpu(config), processes, folder, None)
        self._graphs = replays_graphs(config, config.launch.device, expected_attention(config))
        self._steps = min(steps, config.steps)
        self.stopwatch = Stopwatch()
        self.start: dict[str, StartPart] = {}  # in the order of execution
        self.store_disk_bytes = 0  # read from disks to open the stores
        self.sample_bytes: list[int] = []  # of this rank's samples of each step, in the store's format

    def rehearse(self) -> None:
        """Initialise and take the steps."""
        with suppress(RehearsalDone):
            self.run()

    @contextmanager
    def _measure(self, part: str) -> Iterator[None]:
        """Measure the block as a part of the start."""
        anonymous, wall, cpu = resident_memory().anonymous, time.perf_counter(), time.process_time()
        yield
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        self.start[part] = StartPart(seconds, cpu_seconds, resident_memory().anonymous - anonymous)

    def _open_data(self) -> None:
        with self._measure("stores"):
            before, _ = bytes_read()
            super()._open_data()
            self.store_disk_bytes = bytes_read()[0] - before

    def _build_order(self) -> None:
        with self._measure("sampling order"):
            super()._build_order()

    def _build_model(self) -> None:
        with self._measure("model"):
            self.stepper = build_stepper(self.config, self.processes, VOCABULARY_SIZE, TINY)

    def _uses_graphs(self) -> bool:
        return self._graphs

    def _find_shapes(self) -> None:
        with self._measure("shapes of all steps"):
            super()._find_shapes()

    def _warm_up(self) -> None:
        with self._measure("warm-up"):
            warm_up(self.stepper, self.order, VOCABULARY_SIZE)
        self.stopwatch.wrap_method(self.order, "global_batch", PLAN)

    def _prepare_evaluation(self, vocabulary_size: int) -> None:
        super()._prepare_evaluation(VOCABULARY_SIZE)

    def _measure_peak(self) -> float:
        with self._measure("matmul rate"):
            return super()._measure_peak()

    def _make_loader(self) -> Loader:
        with self._measure("loader"):
            loader = super()._make_loader()
        assert isinstance(loader, Prefetcher), "DALI is not rehearsed"
        reader = loader.source
        reader.samples = SyntheticReader(self.store)
        self.stopwatch.wrap_method(reader.samples, "gather", SAMPLES)
        if isinstance(reader, ExchangeReader):
            self.stopwatch.wrap_method(reader, "plan", EXCHANGE)
            self.stopwatch.wrap_method(reader, "lay_out", LAYOUT)
            self._synthesise_received_samples(reader)
        else:
            self.stopwatch.wrap_method(reader, "read", LAYOUT)
        return loader

    def _synthesise_received_samples(self, reader: ExchangeReader) -> None:
        """Generate the samples that other ranks would send, since there are no other ranks."""
        samples, passed_on = reader.samples, reader.exchange_samples

        def exchange_samples(plan: ExchangePlan, read: Samples) -> Samples:
            passed_on(plan, read)
            return samples.gather(plan.arriving)

        vars(reader)["exchange_samples"] = exchange_samples

    def _read_evaluation_batches(
        self, reader: Callable[[SampleStore], BulkReader] = SyntheticReader
    ) -> list[RaggedBatch]:
        self.stopwatch.wrap_method(self.totals, "add", TOTALS)
        self.stopwatch.wrap_method(self.metrics, "step", METRICS)
        self.stopwatch.wrap_method(self.metrics, "flush", FLUSH)
        with self._measure("evaluation samples"):
            batches = super()._read_evaluation_batches(reader)
        return batches

    def _step(self, step: Step) -> None:
        super()._step(step)
        global_batch, sample_bytes = step.global_batch, 0
        for part in global_batch.micro_batches(self.processes.rank):
            sample_bytes += (
                int(record_lengths(global_batch.lengths[part], global_batch.masked_counts[part]).sum())
                * STORED_DTYPE.itemsize
            )
        self.sample_bytes.append(sample_bytes)
        if len(self.sample_bytes) == self._steps:
            raise RehearsalDone

    def _evaluate(self, last: bool) -> bool:
        """Skip the evaluation: the device computes it, and its cost for the host is negligible."""
        return False
