"""Data loaders: the steps of one rank, read and collated in the background while the device trains."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping

from implementations.pytorch.data.dali import DaliPrefetcher
from implementations.pytorch.data.exchange import ExchangeReader, ExchangeStats
from implementations.pytorch.data.reader import WINDOW, Step, StepReader
from podium.planning.batch_plan import TrainingOrder

# Pause between the taking of a step from a full queue and the reading of another one. The training thread releases the
# interpreter lock for a moment when it takes a step. A reader that woke up at that moment would take the lock and delay
# training, for no benefit, since the queue is still nearly full.
REST_SECONDS = 0.001


class Prefetcher:
    """Data loader that reads up to `depth` steps ahead in a thread.

    An exception in the thread is raised by the iteration, after the steps before it. The constructor reads only
    metadata; samples are read after `__enter__`. Use as a context manager or call `close`, which ends the thread.
    """

    reader: type[StepReader | ExchangeReader] = StepReader

    def __init__(
        self,
        order: TrainingOrder,
        rank: int,
        steps: range,
        depth: int,
        masked_slots: Mapping[int, int] | None = None,
        pin_memory: bool = False,
        window: int = WINDOW,
    ) -> None:
        """`steps` are the step numbers, from 0; with `pin_memory` batches are copied to page-locked memory for a GPU.

        The other parameters are those of `StepReader`.
        """
        self.source = self.reader(order, rank, masked_slots, window)
        self._steps, self._pins = steps, pin_memory
        self._queue: queue.Queue[Step | BaseException | None] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read_ahead, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Step]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """End the thread; steps that were read ahead are dropped."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _read_ahead(self) -> None:
        try:
            with self.source:
                for step in self.source.steps(self._steps):
                    if self._pins:
                        step = Step(tuple(batch.pin_memory() for batch in step.micro_batches), step.global_batch)
                    if not self._put(step):
                        return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 — raised in the thread that takes the steps
            self._put(error)

    def _put(self, item: Step | BaseException | None) -> bool:
        """Put an item into the queue as soon as there is room; return False if the loader has been closed."""
        waited = False
        while not self._closed.is_set():
            try:
                # A timeout, since nothing wakes up a blocked `put` when the loader is closed.
                self._queue.put(item, timeout=0.1 if waited else 0)
            except queue.Full:
                waited = True
                continue
            if waited:
                time.sleep(REST_SECONDS)
            return True
        return False


class ExchangePrefetcher(Prefetcher):
    """Data loader whose samples are exchanged between ranks, `window` steps at a time; see `ExchangeReader`.

    The constructor is a collective operation. `__exit__` waits for all ranks to exit, unless it is left by an error.
    """

    reader = ExchangeReader
    source: ExchangeReader

    def __exit__(self, *error: object) -> None:
        if any(error):
            self.source.abort()
        self.close()

    @property
    def stats(self) -> ExchangeStats:
        """Statistics of the exchange so far."""
        return self.source.stats


Loader = Prefetcher | DaliPrefetcher
# Data loader classes by the configuration's `loader`.
LOADERS: dict[str, type[Prefetcher] | type[DaliPrefetcher]] = {
    "own": Prefetcher,
    "dali": DaliPrefetcher,
    "exchange": ExchangePrefetcher,
}
