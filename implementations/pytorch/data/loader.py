"""The data loader: the steps of one rank, read and collated in the background while the device trains."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping

from implementations.pytorch.data.dali import DaliPrefetcher
from implementations.pytorch.data.exchange import ExchangeReader, ExchangeStats
from implementations.pytorch.data.reader import WINDOW, Step, StepReader
from podium.planning.batch_plan import TrainingOrder

# Seconds between the taking of a step and the reading of another one, where the queue was full. The thread that takes a
# step lets go of the interpreter's lock for a moment before it goes on. Whoever wakes up just then takes the lock and
# keeps it waiting, for no good: there are steps enough by then.
REST_SECONDS = 0.001


class Prefetcher:
    """Reads steps ahead in a thread, at most `depth` of them; an error in it is raised where the steps are taken.

    Making one reads metadata alone, entering it begins to read samples. Use as a context manager, or `close` it: the
    thread ends then.
    """

    reader: type[StepReader | ExchangeReader] = StepReader

    def __init__(
        self,
        order: TrainingOrder,
        rank: int,
        steps: range,
        depth: int,
        masked_slots: Mapping[int, int] | None = None,
        pins: bool = False,
        window: int = WINDOW,
    ) -> None:
        """`pins` batches in memory that a GPU reads by itself; the rest as in the reader."""
        self.source = self.reader(order, rank, masked_slots, window)
        self._steps, self._pins = steps, pins
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
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _read_ahead(self) -> None:
        try:
            with self.source:
                for step in self.source.steps(self._steps):
                    if self._pins:
                        step = Step(tuple(batch.pinned() for batch in step.micro_batches), step.whole)
                    if not self._put(step):
                        return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 — handed over to the thread that takes the steps
            self._put(error)

    def _put(self, item: Step | BaseException | None) -> bool:
        """Hand over an item as soon as there is room; False if nobody wants it any more."""
        waited = False
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1 if waited else 0)
            except queue.Full:
                waited = True
                continue
            if waited:
                time.sleep(REST_SECONDS)
            return True
        return False


class ExchangePrefetcher(Prefetcher):
    """Steps of samples that the ranks' readers pass on to each other, `window` steps at a time: see `ExchangeReader`.

    All ranks make one together. Leaving it waits for all ranks to leave theirs, unless an error leaves it.
    """

    reader = ExchangeReader
    source: ExchangeReader

    def __exit__(self, *error: object) -> None:
        if any(error):
            self.source.abort()
        self.close()

    @property
    def measured(self) -> ExchangeStats:
        """What passing samples on has taken so far."""
        return self.source.measured


Loader = Prefetcher | DaliPrefetcher
# By the configuration's `loader`.
LOADERS: dict[str, type[Prefetcher] | type[DaliPrefetcher]] = {
    "own": Prefetcher,
    "dali": DaliPrefetcher,
    "exchange": ExchangePrefetcher,
}
