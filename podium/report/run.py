"""A run as read from its folder. A value that the folder does not contain is None, never a guess."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from podium.mllog.score import score_seconds
from podium.report.metrics import Metrics, Spread, spread
from podium.report.rates import Rate

REACHED, TRAINED, MISSED = "reached target", "trained to the end", "target not reached"
UNDER_WAY, SAVED, BROKE_OFF, SILENT, NOT_BEGUN = "under way", "stopped and saved", "broke off", "no end", "not begun"
# What can have become of a run.
OUTCOMES: Mapping[str, str] = {
    REACHED: "reached its target accuracy",
    TRAINED: "has no target accuracy and trained all its samples",
    MISSED: "trained all its samples without reaching its target accuracy",
    UNDER_WAY: "its processes are at work",
    SAVED: "was asked to stop and can be gone on with",
    BROKE_OFF: "failed, and said why",
    SILENT: "left no totals: killed, or under way on another machine",
    NOT_BEGUN: "left no step",
}
Setting = str | int | float | bool | None


@dataclass(frozen=True)
class ReportedRun:
    """One run, or one trial of `podium tune`."""

    folder: Path
    outcome: str  # one of OUTCOMES
    settings: Mapping[str, Setting]  # of the resolved configuration, by dotted keys: bert's keys have no section
    code: str | None  # the hash of the code that made it
    commit: str | None
    metrics: Metrics
    totals: Mapping[str, float]  # the numbers of summary.json by its keys, and `evaluation_share`; empty without one
    phases_ms: Mapping[str, float]  # milliseconds a step of each phase, in the order of a step
    precision: str | None  # as trained, where the settings leave it to the machine
    # Sequences/s between evaluations, where a log of the run is found and no restart stood between.
    rates: tuple[Rate, ...]
    failure: str | None
    restarts: tuple[float, ...]  # samples that each restart went on from
    notes: tuple[str, ...]  # what is damaged or missing in the folder: a sentence each

    @property
    def name(self) -> str:
        """Such as run_0."""
        return self.folder.name

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return bool(self.totals)

    @property
    def target(self) -> float | None:
        target = self.settings.get("target_accuracy")
        return target if isinstance(target, float) and 0 < target <= 1 else None

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """The totals; of a run without, what its metrics tell so far, which holds no times."""
        if self.totals:
            return self.totals
        metrics = self.metrics
        last = metrics.evaluations[-1] if metrics.evaluations else None
        balance = metrics.curves.get("max_over_mean_tokens")
        found = {
            "samples": metrics.samples if metrics.steps else None,
            "steps": metrics.steps or None,
            "accuracy": last.accuracy if last else None,
            "next_sentence_accuracy": last.next_sentence_accuracy if last else None,
            "padding_share": metrics.padding_share,
            "max_over_mean_tokens": balance.mean_of_all if balance else None,
        }
        return {key: float(value) for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class ReportedSet:
    """Runs of one folder, in the order of their numbers."""

    path: Path
    runs: tuple[ReportedRun, ...]

    @property
    def name(self) -> str:
        """SYSTEM/DATE_TIME."""
        return "/".join(filter(None, (self.path.parent.name, self.path.name)))

    @cached_property
    def to_target(self) -> tuple[ReportedRun, ...]:
        """Those whose seconds and samples are to be held together: if any reached a target, all that did."""
        reached = tuple(run for run in self.runs if run.outcome == REACHED)
        return reached or tuple(run for run in self.runs if run.ended)

    def over_runs(self, key: str) -> Spread | None:
        """A figure over the runs of `to_target`; None where none of them has it."""
        return spread(run.figures[key] for run in self.to_target if key in run.figures)

    @property
    def score_seconds(self) -> float | None:
        """MLPerf's score; None unless it is ten runs with a target that came to their end without a restart."""
        if any(run.outcome not in (REACHED, MISSED) or run.restarts for run in self.runs):
            return None
        times = [run.totals.get("seconds") if run.outcome == REACHED else float("inf") for run in self.runs]
        known = [time for time in times if time is not None]
        return score_seconds(known) if len(known) == len(times) else None

    @cached_property
    def accuracies(self) -> Mapping[float, Spread]:
        """Accuracy over runs by the samples of the evaluation, for those that at least one run made."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            for samples, accuracy in {one.samples: one.accuracy for one in run.metrics.evaluations}.items():
                found.setdefault(samples, []).append(accuracy)
        return {samples: over for samples, values in sorted(found.items()) if (over := spread(values)) is not None}

    @cached_property
    def common_settings(self) -> Mapping[str, Setting]:
        """Settings that all runs share."""
        first, *others = (run.settings for run in self.runs)
        return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}

    @cached_property
    def differing_settings(self) -> tuple[str, ...]:
        """Keys of settings in which runs differ, in the order in which they come."""
        keys = dict.fromkeys(key for run in self.runs for key in run.settings)
        return tuple(key for key in keys if key not in self.common_settings)
