"""Estimate of the time until a run reaches its target accuracy.

From what is known best, in this order: the samples that the system's earlier runs with the same settings took; those of
published runs (of the tiny BERT: of Podium's runs); and, where neither is known or the run has passed them, the rise of
the accuracy between the last two evaluations. The rise slows down towards the target, so that this last estimate is a
lower bound. Without any of them `max_samples` bounds the time.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, attempt
from podium.planning.prediction.from_config import estimate_samples
from podium.run.records import RunRecord, runs_of_system

MAX_EARLIER_RUNS = 20  # the newest ones; each needs the parsing of its configuration
# Settings on which the samples to the target do not depend.
IRRELEVANT = ("description", "launch", "seed", "checkpoint", "system", "data", "max_samples", "prefetch_batches")
EVALUATIONS_TO_EXTRAPOLATE = 3
RECENT_SECONDS = 300.0  # the last steps, whose speed is taken for the rest of the run
ABOUT, AT_LEAST, AT_MOST = "about {} left", "{} or more left", "at most {} left"


def expected_samples(config: RunConfig, runs: Path, own: Path | None = None) -> float | None:
    """Samples to the target in earlier runs with these settings in `runs`/SYSTEM, else in published runs, if known.

    `own` is the folder of the run itself, which does not count.
    """
    if config.target_accuracy is None:
        return None
    settings = _relevant(config.model_dump(mode="json", by_alias=True))
    found: list[float] = []
    for record in list(reversed(runs_of_system(runs / config.system)))[:MAX_EARLIER_RUNS]:
        if record.path == own or record.summary_flag("reached_target") is not True:
            continue
        samples, earlier = record.summary_number("samples"), attempt(_settings_of, record)[0]
        if samples and earlier == settings:
            found.append(samples)
    if found:
        return median(found)
    known = config.size == "tiny" or config.initial_checkpoint is not None
    if config.target_accuracy != TARGET_ACCURACY or not known:
        return None
    try:
        return estimate_samples(config, []).mean
    except PodiumError:
        return None


def _settings_of(record: RunRecord) -> Mapping[str, Any]:
    return _relevant(record.config.model_dump(mode="json", by_alias=True))


def _relevant(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in IRRELEVANT}


@dataclass
class TimeLeft:
    """Estimate of a run's time left, from its steps and evaluations so far."""

    config: RunConfig
    expected: float | None  # samples to the target, as `expected_samples` returns
    clock: Callable[[], float] = time.monotonic
    _evaluations: list[tuple[float, float]] = field(default_factory=list)  # samples and accuracy
    _samples: float = 0.0
    _recent: deque[tuple[float, float]] = field(default_factory=deque)  # samples and times of steps in RECENT_SECONDS
    _seconds_per_sample: float = 0.0

    def add_step(self, samples: float, restarted: bool = False) -> None:
        """Note a step; its time is now. `restarted`: it is the first since the run began or resumed."""
        self._samples = samples
        now, recent = self.clock(), self._recent
        if restarted or (recent and samples < recent[-1][0]):
            recent.clear()
            self._seconds_per_sample = 0.0
        recent.append((samples, now))
        # Minutes and not the last steps only: evaluations take time too.
        while len(recent) > 2 and recent[1][1] <= now - RECENT_SECONDS:
            recent.popleft()
        if samples > recent[0][0]:
            self._seconds_per_sample = (now - recent[0][1]) / (samples - recent[0][0])

    @property
    def samples_per_second(self) -> float | None:
        """The speed of the last minutes; None as long as it is not known."""
        return 1 / self._seconds_per_sample if self._seconds_per_sample else None

    def add_evaluation(self, samples: float, accuracy: float) -> None:
        self._evaluations.append((samples, accuracy))

    def samples_to_target(self) -> tuple[float, str]:
        """The estimated samples at the end of the run, and a text for the time."""
        last, kind = float(self.config.max_samples), AT_MOST
        if self.config.target_accuracy is None:
            return last, ABOUT
        evaluated = self._evaluations[-1][0] if self._evaluations else 0.0
        if self.expected is not None and self._rounded(self.expected) > evaluated:
            last, kind = min(last, self._rounded(self.expected)), ABOUT
        elif (extrapolated := self._extrapolated()) is not None:
            last, kind = min(last, self._rounded(extrapolated)), AT_LEAST
        return max(last, self._samples), kind

    def _rounded(self, samples: float) -> float:
        """The next evaluation after a number of samples, since only an evaluation ends a run."""
        interval = self.config.evaluation_interval
        return float(-(-samples // interval) * interval)

    def _extrapolated(self) -> float | None:
        target, known = self.config.target_accuracy, self._evaluations
        if target is None or len(known) < (2 if self.expected else EVALUATIONS_TO_EXTRAPOLATE):
            return None
        (before, lower), (now, upper) = known[-2:]
        if upper <= lower or now <= before:
            return None
        return now + round((target - upper) * (now - before) / (upper - lower))

    def text(self) -> str:
        """The time left, such as "about 1:10 left"; empty as long as no speed is known."""
        if not self._seconds_per_sample:
            return ""
        samples, kind = self.samples_to_target()
        minutes, seconds = divmod(round((samples - self._samples) * self._seconds_per_sample), 60)
        hours, minutes = divmod(minutes, 60)
        return kind.format(f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}")
