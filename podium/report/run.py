"""A run as read from its folder. A value that the folder does not contain is None, never a guess."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path

from podium.mllog.score import score_seconds
from podium.report.metrics import Metrics, Statistics, summarise
from podium.report.rates import Rate
from podium.run.outcome import GOOD, Outcome

Setting = str | int | float | bool | None
# Titles of the settings that are reported, by their keys in the resolved configuration.
SETTINGS: Mapping[str, str] = {
    "system": "system",
    "recipe": "recipe",
    "size": "size",
    "description.division": "division",
    "launch.device": "device",
    "launch.nodes": "nodes",
    "launch.processes_per_node": "processes per node",
    "global_batch_size": "global batch",
    "gradient_accumulation_steps": "accumulation steps",
    "optimizer.algorithm": "optimizer",
    "optimizer.learning_rate": "learning rate",
    "optimizer.warmup_steps": "warm-up steps",
    "optimizer.decay_from": "decay from step",
    "optimizer.decay_steps": "decay steps",
    "optimizer.beta1": "beta 1",
    "optimizer.beta2": "beta 2",
    "optimizer.weight_decay": "weight decay",
    "clipping.max_norm": "clipping norm",
    "precision": "precision",
    "balancing": "balancing",
    "attention": "attention",
    "dropout": "dropout",
    "target_accuracy": "target accuracy",
    "max_samples": "maximum samples",
    "seed": "seed",
}


def format_setting(value: Setting) -> str:
    """Format a setting's value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if isfinite(value) else str(value)
    return str(value)


@dataclass(frozen=True)
class ReportedRun:
    """One run, or one trial of `podium tune`."""

    folder: Path
    outcome: Outcome
    settings: Mapping[str, Setting]  # of the resolved configuration, by dotted keys; those of `bert` have no prefix
    code: str | None  # hash of the code that ran it
    commit: str | None
    metrics: Metrics
    totals: Mapping[str, float]  # the numbers of summary.json by its keys, and `evaluation_share`; empty without one
    phases_ms: Mapping[str, float]  # milliseconds per step of each phase, in the order of a step
    precision: str | None  # as used, where the settings have `auto`
    # Sequences/s between evaluations; empty if no log of the run is found, or if it was restarted.
    rates: tuple[Rate, ...]
    failure: str | None
    restarts: tuple[float, ...]  # samples at which each restart resumed
    hosts: Mapping[str, str]  # host names by the number of the node, where they are known
    notes: tuple[str, ...]  # sentences on what is damaged or missing in the folder

    @property
    def name(self) -> str:
        """Name of the folder, such as run_0."""
        return self.folder.name

    @property
    def failure_with_outcome(self) -> str:
        """The outcome and the message of a run that failed; some messages begin with the outcome already."""
        message = self.failure or ""
        return message if message.startswith(f"{self.outcome}: ") else f"{self.outcome}: {message}"

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    def host(self, rank: int) -> str | None:
        """Host name of the node of a rank, if it is known."""
        per_node = self.settings.get("launch.processes_per_node")
        return self.hosts.get(str(rank // per_node)) if isinstance(per_node, int) and per_node > 0 else None

    @property
    def ended(self) -> bool:
        """Whether the run finished."""
        return bool(self.totals)

    @property
    def target(self) -> float | None:
        """Target accuracy, if the settings have a valid one."""
        target = self.settings.get("target_accuracy")
        return target if isinstance(target, float) and 0 < target <= 1 else None

    @cached_property
    def totals_so_far(self) -> Mapping[str, float]:
        """Totals; of an unfinished run those of its metrics so far, which have no times."""
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
    """Runs of one folder, sorted by their numbers."""

    path: Path
    runs: tuple[ReportedRun, ...]

    @property
    def name(self) -> str:
        """Name of the set, SYSTEM/DATE_TIME."""
        return "/".join(filter(None, (self.path.parent.name, self.path.name)))

    @cached_property
    def counted_runs(self) -> tuple[ReportedRun, ...]:
        """Runs that statistics include: those that reached their target; without any, all that finished."""
        reached = tuple(run for run in self.runs if run.outcome is Outcome.SUCCEEDED)
        return reached or tuple(run for run in self.runs if run.ended)

    @cached_property
    def good_runs(self) -> tuple[ReportedRun, ...]:
        """Runs that reached their target, or that have none and trained all their samples: those with a time."""
        return tuple(run for run in self.runs if run.outcome in GOOD)

    def statistics(self, key: str) -> Statistics | None:
        """Statistics of a total over `counted_runs`; None if none of them has it."""
        return summarise(run.totals_so_far[key] for run in self.counted_runs if key in run.totals_so_far)

    @property
    def score_seconds(self) -> float | None:
        """MLPerf's score; None unless these are ten finished runs with a target and without restarts."""
        if any(run.outcome not in (Outcome.SUCCEEDED, Outcome.MISSED) or run.restarts for run in self.runs):
            return None
        times = [run.totals.get("seconds") if run.outcome is Outcome.SUCCEEDED else float("inf") for run in self.runs]
        known = [time for time in times if time is not None]
        return score_seconds(known) if len(known) == len(times) else None

    @cached_property
    def accuracy_by_samples(self) -> Mapping[float, Statistics]:
        """Statistics of accuracy over runs, by the samples of the evaluation."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            for samples, accuracy in {one.samples: one.accuracy for one in run.metrics.evaluations}.items():
                found.setdefault(samples, []).append(accuracy)
        return {samples: over for samples, values in sorted(found.items()) if (over := summarise(values)) is not None}

    @cached_property
    def common_settings(self) -> Mapping[str, Setting]:
        """Settings with the same value in all runs whose settings are known."""
        first, *others = [run.settings for run in self.runs if run.settings] or [{}]
        return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}

    @cached_property
    def differing_settings(self) -> tuple[str, ...]:
        """Keys of settings in which runs differ, in the order of the configuration."""
        keys = dict.fromkeys(key for run in self.runs for key in run.settings)
        return tuple(key for key in keys if key not in self.common_settings)
