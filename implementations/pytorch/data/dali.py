"""Data loader with NVIDIA DALI: a separate process reads and collates steps, and DALI queues them.

It uses DALI's parallel external source (https://docs.nvidia.com/deeplearning/dali). On a GPU, DALI also copies each
step to the device, as one array, while the previous step is trained on.
"""

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from implementations.pytorch.data.batch import flatten, unflatten
from implementations.pytorch.data.reader import WINDOW, Step, StepReader
from podium.core.errors import UsageError
from podium.planning.batch_plan import TrainingOrder


class DaliPrefetcher:
    """Data loader that reads up to `depth` steps ahead in another process; yields the same steps as `Prefetcher`.

    An exception in the process is raised by the iteration. The constructor starts the process, which opens the store
    and reads only metadata; samples are read after `__enter__`. Use as a context manager or call `close`, which ends
    the process.
    """

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
        """Parameters are those of `Prefetcher`; with `pin_memory` batches are on the current GPU, not in pinned memory.

        Raises UsageError if DALI is not installed.
        """
        try:
            from nvidia.dali import Pipeline, fn, types
        except ImportError as error:
            raise UsageError(
                f"loader: found dali, which needs NVIDIA DALI ({error}); install it with "
                "`.venv/bin/python -m pip install --editable '.[dali]'`, or use loader=own"
            ) from error
        self._count, self._on_gpu = len(steps), pin_memory
        self._device = torch.device("cuda", torch.cuda.current_device()) if pin_memory else torch.device("cpu")
        self._pipeline = Pipeline(
            batch_size=1,
            num_threads=1,
            device_id=self._device.index,
            prefetch_queue_depth=depth,
            py_num_workers=1,
            py_start_method="spawn",  # a forked process would inherit CUDA's state
        )
        with self._pipeline:
            facts, content = fn.external_source(
                source=_Source(order, rank, steps, masked_slots, window),
                num_outputs=2,
                dtype=[types.UINT8, types.UINT8],
                ndim=[1, 1],
                batch=False,
                parallel=True,
                prefetch_queue_depth=depth,
            )
            self._pipeline.set_outputs(facts, content.gpu() if pin_memory else content)
        self._pipeline.build()
        self._pipeline.start_py_workers()
        self._open = True

    def __enter__(self) -> "DaliPrefetcher":
        if self._count:
            self._pipeline.schedule_run()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Step]:
        for _ in range(self._count):
            facts, content = self._pipeline.share_outputs()
            known = pickle.loads(np.asarray(facts[0]).tobytes())  # noqa: S301 — from a child process
            if isinstance(known, Exception):
                raise known
            global_batch, described = known
            here = self._copy(content[0])
            self._pipeline.release_outputs()
            self._pipeline.schedule_run()
            yield Step(unflatten(described, here), global_batch)

    def close(self) -> None:
        """End the process; steps that were read ahead are dropped."""
        if self._open:
            self._open = False
            del self._pipeline  # its destructor ends the worker process

    def _copy(self, content: Any) -> torch.Tensor:
        """Return a copy of DALI's output [bytes] uint8, since DALI reuses its buffer for later steps."""
        if not self._on_gpu:
            return torch.from_numpy(np.array(content))
        from nvidia.dali.plugin.pytorch import feed_ndarray

        own = torch.empty(content.shape(), dtype=torch.uint8, device=self._device)
        feed_ndarray(content, own, cuda_stream=torch.cuda.current_stream(self._device))
        return own


class _Source:
    """Callable that DALI's process calls for each step; returns pickled metadata and tensor contents, both uint8."""

    def __init__(
        self, order: TrainingOrder, rank: int, steps: range, masked_slots: Mapping[int, int] | None, window: int
    ) -> None:
        self._settings = order, rank, masked_slots, window
        self._numbers = steps
        self._steps: Iterator[Step] | None = None
        self._taken = 0

    def __call__(self, info: Any) -> tuple[np.ndarray, np.ndarray]:
        if info.idx_in_epoch >= len(self._numbers):
            raise StopIteration
        try:
            return self._read(info.idx_in_epoch)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 — raised in the process that takes the steps
            return _pickled(error), np.zeros(1, dtype=np.uint8)

    def _read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if self._steps is None:
            # Opened here and not in __init__, which runs in the parent process: this object is pickled to the worker.
            self._steps = StepReader(*self._settings).steps(self._numbers)
        assert number == self._taken, "one process takes all steps in their order"
        self._taken += 1
        step = next(self._steps)
        facts, content = flatten(step.micro_batches)
        return _pickled((step.global_batch, facts)), content


def _pickled(value: object) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), dtype=np.uint8)
