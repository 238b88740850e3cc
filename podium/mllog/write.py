"""Writes the result log through mlperf_logging: one file per run, flushed line by line.

The content of a log that passes every ruleset from 1.1.0 to 5.0.0 is defined here; the implementation calls each
method at the right time.
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

# Podium's key in the log of a run that was restarted from a checkpoint: such a log must not be submitted.
RESTARTED = "podium_restarted"
PROFILED = "podium_profiled"  # likewise for a run of which steps were profiled, with their number
SWEPT = "podium_swept"  # likewise for a run of `podium sweep`, with its seed
# Podium's key in the log of a run during which the machine's clock was set, by that number of seconds.
CLOCK_STEPPED = "podium_clock_stepped"
# Ranks differ in their samples only: each has the whole model and whole sequences, and no layer has experts.
PARALLELISM = {
    constants.TENSOR_PARALLELISM: 1,
    constants.PIPELINE_PARALLELISM: 1,
    constants.CONTEXT_PARALLELISM: 1,
    constants.EXPERT_PARALLELISM: 1,
}
# The keys that ruleset 6.1.0 requires of every benchmark beside those of the earlier rulesets, which accept them.
DISCLOSED_KEYS = (
    constants.LOWEST_NUMERICAL_PRECISION_IN_LINEAR,
    constants.LOWEST_NUMERICAL_PRECISION_IN_ATTN,
    constants.LOWEST_NUMERICAL_PRECISION_IN_COMM,
    *PARALLELISM,
    constants.MICRO_BATCH_SIZE,
    constants.CONFIG_FILENAME,
)
CLOCK_TOLERANCE = 1.5  # seconds: a leap second is allowed
SUCCESS, ABORTED = constants.SUCCESS, constants.ABORTED


class _Handler(logging.FileHandler):
    """A file handler that raises WorkError where logging's own would print a write error and continue."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        raise WorkError(f"{self.baseFilename}: the log cannot be written ({error}); check that the disk has space")


class ResultLog:
    """A log being written. Appends, so that another process can close the log of a failed run as aborted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handler = _Handler(path, mode="a", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.Logger(f"mllog:{path}", level=logging.INFO)
        logger.addHandler(self._handler)
        # Times are the wall clock at opening plus time by a monotonic clock, so that setting the clock changes none of
        # them. They do not start before the last line of an existing log.
        self._opened = self._run_start = Moment.now()
        self._first_ms = max(1000 * self._opened.wall, _last_time_ms(path))
        self._mllog = mllog.MLLogger(logger=logger, default_stack_offset=3, root_dir=str(CODE_FOLDER))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Raises WorkError if the rest of it cannot be written."""
        try:
            self._handler.close()
        except OSError as error:
            raise write_error(self.path, error) from None

    def event(self, key: str, value: Any, **metadata: Any) -> None:
        """Log a point in time."""
        self._mllog.event(key, value, metadata, time_ms=self._now())

    def start(self, key: str, **metadata: Any) -> None:
        """Log the start of an interval."""
        self._mllog.start(key, metadata=metadata, time_ms=self._now())

    def end(self, key: str, **metadata: Any) -> None:
        """Log the end of an interval."""
        self._mllog.end(key, metadata=metadata, time_ms=self._now())

    def _now(self) -> int:
        return int(self._first_ms + 1000 * self._opened.elapsed())

    # The lines of a run, in order

    def log_submission(self, config: RunConfig, caches_cleared: bool) -> None:
        """Log the submission's description, whether caches were cleared, and the start of initialisation."""
        description = config.description
        self.event(constants.SUBMISSION_BENCHMARK, constants.BERT)
        self.event(constants.SUBMISSION_ORG, description.logged_submitter)
        self.event(constants.SUBMISSION_DIVISION, description.division)
        self.event(constants.SUBMISSION_STATUS, description.submission_status)
        self.event(constants.SUBMISSION_PLATFORM, description.system_name)
        self.event(constants.CACHE_CLEAR, caches_cleared)
        self.start(constants.INIT_START)

    def log_settings(
        self,
        config: RunConfig,
        optimizer: "OptimizerHyperparameters",
        precision: "NumericalPrecision",
        micro_batch_size: int,
        tensors: Iterable[str],
    ) -> None:
        """Log seed, hyper-parameters, precision and parallelism as used; in the closed division every tensor too."""
        self.event(constants.SEED, config.seed)
        self.event(constants.GLOBAL_BATCH_SIZE, config.global_batch_size)
        self.event(constants.GRADIENT_ACCUMULATION_STEPS, config.gradient_accumulation_steps)
        self.event(constants.MICRO_BATCH_SIZE, micro_batch_size)
        for key, value in (*optimizer.log_entries(), *precision.log_entries(), *PARALLELISM.items()):
            self.event(key, value)
        self.event(constants.CONFIG_FILENAME, config.config_filename)
        if config.clipping is not None:
            self.event(constants.OPT_GRADIENT_CLIP_NORM, config.clipping.max_norm)
        self.event(constants.EVAL_SAMPLES, config.evaluation_samples)
        if config.division == constants.CLOSED:
            for tensor in tensors:
                self.event(constants.WEIGHTS_INITIALIZATION, True, tensor=tensor)

    def log_run_start(self) -> None:
        """Log the end of initialisation and the start of the timed run."""
        self.end(constants.INIT_STOP)
        self._run_start = Moment.now()
        self.start(constants.RUN_START)

    def log_restart(self, number: int, samples: int) -> None:
        """Log the `number`-th restart of the run, after `samples` samples: it cannot be submitted."""
        self.event(RESTARTED, number, epoch_num=samples)

    def log_profile(self, steps: int) -> None:
        """Log that steps of the run are profiled: it cannot be submitted."""
        self.event(PROFILED, steps)

    def log_sweep(self, seed: int) -> None:
        """Log that the run is one of a sweep, with a stated seed: it cannot be submitted."""
        self.event(SWEPT, seed)

    def log_block_start(self, samples: int, samples_in_block: int) -> None:
        """Log the start of a block after `samples` samples, which is the unit of epoch_num."""
        self.start(constants.BLOCK_START, first_epoch_num=samples, epoch_count=samples_in_block)

    def log_block_stop(self, first_sample: int, samples: int) -> None:
        """Log the end of the block that started after `first_sample` samples."""
        self.end(constants.BLOCK_STOP, first_epoch_num=first_sample, epoch_num=samples)

    def log_evaluation_start(self, samples: int) -> None:
        """Log the start of an evaluation after `samples` samples."""
        self.start(constants.EVAL_START, epoch_num=samples)

    def log_evaluation_stop(self, samples: int, accuracy: float) -> None:
        """Log the accuracy of an evaluation, and its end."""
        self.event(constants.EVAL_ACCURACY, accuracy, epoch_num=samples)
        self.end(constants.EVAL_STOP, epoch_num=samples)

    def log_run_stop(self, status: str, samples: int) -> None:
        """Log the end of the timed run, and the number of samples trained on.

        Raises WorkError if the machine's clock was set meanwhile; the logged status is aborted then.
        """
        step_seconds = self._run_start.clock_step()
        was_stepped = abs(step_seconds) > CLOCK_TOLERANCE
        self.end(constants.RUN_STOP, status=ABORTED if was_stepped else status, epoch_num=samples)
        self.event(constants.TRAIN_SAMPLES, samples)
        if was_stepped:
            self.event(CLOCK_STEPPED, round(step_seconds, 3))
            raise WorkError(
                f"the clock of this machine was set by {step_seconds:+,.1f} s while the run was timed; at most "
                f"{CLOCK_TOLERANCE} s are allowed. The run is not a result: configure the time service to slew "
                "only (chronyd without makestep, ntpd -x), and start another run"
            )


def _last_time_ms(path: Path) -> float:
    """Latest time_ms in an existing log; 0 without events."""
    if not path.is_file():
        return 0.0
    return max(
        (item.time_ms for item in parse_stream(BytesIO(path.read_bytes())) if isinstance(item, Event)), default=0
    )


@dataclass(frozen=True)
class OptimizerHyperparameters:
    """Hyper-parameters in use, read from the optimizer's parameter groups and schedule, not from the configuration."""

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

    def log_entries(self) -> Iterator[tuple[str, Any]]:
        """Yield key and value of each log line; both names of LAMB's epsilon, since rulesets differ."""
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


@dataclass(frozen=True)
class NumericalPrecision:
    """Lowest numerical precision in use by MLPerf's names (fp32, bfloat16, …), read from the model, not configured."""

    linear: str  # of the operands of linear layers' matrix products, forward and backward
    attention: str  # of the operands of attention's matrix products
    communication: str  # of gradients and weights as ranks send them

    def log_entries(self) -> Iterator[tuple[str, str]]:
        """Yield key and value of each log line."""
        yield constants.LOWEST_NUMERICAL_PRECISION_IN_LINEAR, self.linear
        yield constants.LOWEST_NUMERICAL_PRECISION_IN_ATTN, self.attention
        yield constants.LOWEST_NUMERICAL_PRECISION_IN_COMM, self.communication


def close_as_aborted(path: Path, samples: int = 0) -> bool:
    """Complete the log of a run that failed after run_start as aborted; False if the log has no run_start.

    The samples trained on are `samples`, or the largest epoch_num in the log. A cut-off last line is removed. A log
    that is complete is not changed.
    """
    if not path.is_file():
        return False
    content = path.read_bytes()
    # A line without its end may be half an event, which the next line must not continue.
    complete = content[: content.rfind(b"\n") + 1]
    events = [item for item in parse_stream(BytesIO(complete)) if isinstance(item, Event)]
    keys = {event.key for event in events}
    if constants.RUN_START not in keys:
        return False
    if complete != content:
        write_atomically(path, complete)
    samples = max(samples, *(event.metadata.get("epoch_num", 0) for event in events))
    with ResultLog(path) as log:
        if constants.RUN_STOP not in keys:
            log.log_run_stop(ABORTED, samples)
        elif constants.TRAIN_SAMPLES not in keys:
            log.event(constants.TRAIN_SAMPLES, samples)
    return True
