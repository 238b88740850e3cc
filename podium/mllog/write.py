"""Writes the result log: every line through mlperf_logging, one file a run, flushed line by line.

What a log must contain to pass every ruleset from 1.1.0 to 5.0.0 is written here once; the implementation determines
when each line is due.
"""

import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from mlperf_logging.mllog import constants, mllog

from podium.config.schema import RunConfig
from podium.core.clock import Moment
from podium.core.errors import WorkError
from podium.core.files import write_atomically, write_error
from podium.core.paths import CODE_FOLDER
from podium.mllog.lines import Event, parse_stream

# A key of our own, in the log of a run that was begun again from a checkpoint: no submission may include it.
RESTARTED = "podium_restarted"
# And in the log of a run during which the machine's clock was set, which is no result either: by how many seconds.
CLOCK_STEPPED = "podium_clock_stepped"
CLOCK_TOLERANCE = 1.5  # seconds: a leap second is no fault
SUCCESS, ABORTED = constants.SUCCESS, constants.ABORTED


class _Handler(logging.FileHandler):
    """A file handler that does not swallow a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        raise WorkError(f"{self.baseFilename}: the log cannot be written ({error}); see that the disk has space")


class ResultLog:
    """A log being written. Appends, so that a run that broke off can be closed as aborted by another process.

    Times are the machine's clock when the log was opened, and what has passed since by a clock that is never set.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handler = _Handler(path, mode="a", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.Logger(f"mllog:{path}", level=logging.INFO)
        logger.addHandler(self._handler)
        self._opened = self._run_start = Moment.now()
        self._first_ms = max(1000 * self._opened.wall, _last_time(path))
        self._mllog = mllog.MLLogger(logger=logger, default_stack_offset=3, root_dir=str(CODE_FOLDER))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """WorkError where a line is left over that the disk did not take."""
        try:
            self._handler.close()
        except OSError as error:
            raise write_error(self.path, error) from None

    def event(self, key: str, value: Any, **metadata: Any) -> None:
        """A point in time."""
        self._mllog.event(key, value, metadata, time_ms=self._now())

    def start(self, key: str, **metadata: Any) -> None:
        """The start of an interval."""
        self._mllog.start(key, metadata=metadata, time_ms=self._now())

    def end(self, key: str, **metadata: Any) -> None:
        """The end of an interval."""
        self._mllog.end(key, metadata=metadata, time_ms=self._now())

    def _now(self) -> int:
        return int(self._first_ms + 1000 * self._opened.elapsed())

    # The lines of a run, in their order

    def submission(self, config: RunConfig, caches_cleared: bool) -> None:
        """Who submits what, whether caches were cleared, and that initialisation begins."""
        description = config.description
        self.event(constants.SUBMISSION_BENCHMARK, constants.BERT)
        self.event(constants.SUBMISSION_ORG, description.submitter)
        self.event(constants.SUBMISSION_DIVISION, description.division)
        self.event(constants.SUBMISSION_STATUS, description.submission_status)
        self.event(constants.SUBMISSION_PLATFORM, description.system_name)
        self.event(constants.CACHE_CLEAR, caches_cleared)
        self.start(constants.INIT_START)

    def settings(self, config: RunConfig, optimizer: "UsedOptimizer", tensors: Iterable[str]) -> None:
        """Seed and hyper-parameters as they are used; in the closed division every initialised tensor too."""
        self.event(constants.SEED, config.seed)
        self.event(constants.GLOBAL_BATCH_SIZE, config.global_batch_size)
        self.event(constants.GRADIENT_ACCUMULATION_STEPS, config.gradient_accumulation_steps)
        for key, value in optimizer.lines():
            self.event(key, value)
        if config.clipping is not None:
            self.event(constants.OPT_GRADIENT_CLIP_NORM, config.clipping.max_norm)
        self.event(constants.EVAL_SAMPLES, config.evaluation_samples)
        if config.division == constants.CLOSED:
            for tensor in tensors:
                self.event(constants.WEIGHTS_INITIALIZATION, True, tensor=tensor)

    def run_starts(self) -> None:
        self.end(constants.INIT_STOP)
        self._run_start = Moment.now()
        self.start(constants.RUN_START)

    def restarts(self, number: int, samples: int) -> None:
        """The run was begun again for the `number`-th time, where `samples` had been trained on: it is no result."""
        self.event(RESTARTED, number, epoch_num=samples)

    def block_starts(self, samples: int, samples_in_block: int) -> None:
        """`samples` were trained on so far; epochs are counted in samples."""
        self.start(constants.BLOCK_START, first_epoch_num=samples, epoch_count=samples_in_block)

    def block_stops(self, first_sample: int, samples: int) -> None:
        self.end(constants.BLOCK_STOP, first_epoch_num=first_sample, epoch_num=samples)

    def evaluation_starts(self, samples: int) -> None:
        self.start(constants.EVAL_START, epoch_num=samples)

    def evaluation_stops(self, samples: int, accuracy: float) -> None:
        self.event(constants.EVAL_ACCURACY, accuracy, epoch_num=samples)
        self.end(constants.EVAL_STOP, epoch_num=samples)

    def run_stops(self, status: str, samples: int) -> None:
        """The end of the timed run, and the number of samples that it was trained on.

        Raises WorkError where the machine's clock was set meanwhile: then the log says aborted, whatever the status.
        """
        stepped = self._run_start.clock_step()
        was_stepped = abs(stepped) > CLOCK_TOLERANCE
        self.end(constants.RUN_STOP, status=ABORTED if was_stepped else status, epoch_num=samples)
        self.event(constants.TRAIN_SAMPLES, samples)
        if was_stepped:
            self.event(CLOCK_STEPPED, round(stepped, 3))
            raise WorkError(
                f"the clock of this machine was set by {stepped:+,.1f} s while the run was timed, allowed are "
                f"{CLOCK_TOLERANCE} s; the run is no result: keep clocks by slewing alone (chronyd without makestep, "
                "ntpd -x), and start another one"
            )


def _last_time(path: Path) -> float:
    """The time in milliseconds of a log's last line so far; 0 where there is none."""
    if not path.is_file():
        return 0.0
    return max(
        (item.time_ms for item in parse_stream(BytesIO(path.read_bytes())) if isinstance(item, Event)), default=0
    )


@dataclass(frozen=True)
class UsedOptimizer:
    """What an optimizer really uses, read from its parameter groups and its schedule."""

    algorithm: str
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    warmup_steps: int
    start_warmup_step: int
    decay_from: int
    decay_steps: int
    decay_power: float
    end_learning_rate: float

    def lines(self) -> Iterator[tuple[str, Any]]:
        """The log lines that tell of it; both names of LAMB's epsilon, since rulesets differ."""
        yield constants.OPT_NAME, self.algorithm
        yield constants.OPT_BASE_LR, self.learning_rate
        yield constants.OPT_END_LR, self.end_learning_rate
        yield constants.OPT_LR_TRAINING_STEPS, self.decay_steps
        yield constants.OPT_LR_WARMUP_STEPS, self.warmup_steps
        yield "num_warmup_steps", self.warmup_steps
        yield "start_warmup_step", self.start_warmup_step
        if self.decay_from:
            yield "opt_learning_rate_decay_from", self.decay_from
        yield "opt_epsilon", self.epsilon
        if self.algorithm == constants.LAMB:
            yield constants.OPT_LAMB_EPSILON, self.epsilon
            yield constants.OPT_LAMB_BETA_1, self.beta1
            yield constants.OPT_LAMB_BETA_2, self.beta2
            yield constants.OPT_LAMB_WEIGHT_DECAY, self.weight_decay
            yield constants.OPT_LAMB_LR_DECAY_POLY_POWER, self.decay_power
        else:
            yield constants.OPT_ADAMW_EPSILON, self.epsilon
            yield constants.OPT_ADAMW_BETA_1, self.beta1
            yield constants.OPT_ADAMW_BETA_2, self.beta2
            yield constants.OPT_ADAMW_WEIGHT_DECAY, self.weight_decay


def close_as_aborted(path: Path, samples: int = 0) -> bool:
    """Say in a log that broke off after run_start that its run was aborted; False where there was no run to abort.

    The samples trained on are `samples`, or those of the last event that names more. A last line that was cut off is
    removed. A log that is closed already stays as it is.
    """
    if not path.is_file():
        return False
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    events = [item for item in parse_stream(BytesIO(whole)) if isinstance(item, Event)]
    keys = {event.key for event in events}
    if constants.RUN_START not in keys:
        return False
    if whole != content:
        write_atomically(path, whole)
    samples = max(samples, *(event.metadata.get("epoch_num", 0) for event in events))
    with ResultLog(path) as log:
        if constants.RUN_STOP not in keys:
            log.run_stops(ABORTED, samples)
        elif constants.TRAIN_SAMPLES not in keys:
            log.event(constants.TRAIN_SAMPLES, samples)
    return True
