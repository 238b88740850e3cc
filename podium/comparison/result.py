"""A result: the runs of one system in one round, and the figures derived from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from podium.mllog.run import Run
from podium.mllog.score import TimeSpread, counted_seconds, score_seconds, time_spread
from podium.planning.accelerators import Accelerator


@dataclass(frozen=True)
class Result:
    """results/SYSTEM/bert of a submitter. What neither logs nor description say is None."""

    round: str | None  # such as v2.1; None for results of no round, which are one's own
    submitter: str
    system: str
    division: str | None  # closed or open
    source: str  # where the logs are, for people
    runs: tuple[Run, ...]  # in the order of the numbers in their names
    description: Mapping[str, str]  # MLPerf's fields of the system; empty where there are none
    nodes: int | None
    accelerators: int | None  # in all nodes; 0 for a system that trains on its CPUs
    accelerator: str | None  # as the description names it; None where it names none
    kind: Accelerator | None  # the accelerator as Podium knows it
    # By which the round's rules scale the score, since the runs needed fewer samples than the reference; None: not.
    scaling_factor: float | None = None
    # The earlier result that has the same runs: "ROUND SUBMITTER SYSTEM", and its package if it has the same name.
    repeats: str | None = None
    # False where the runs did not train BERT-large: then they are not held against those that did.
    full_size: bool = True
    oddities: tuple[str, ...] = ()  # what does not fit together: a sentence each

    @property
    def name(self) -> str:
        """Tells it from other results, but for those that a submitter handed in twice in a round."""
        return f"{self.round or 'own'} {self.short_name}"

    @property
    def short_name(self) -> str:
        return f"{self.submitter} {self.system}"

    @property
    def own(self) -> bool:
        return self.round is None

    @property
    def family(self) -> str | None:
        """The accelerator's usual name, such as NVIDIA A100 SXM; as the description has it for one not known."""
        return self.kind.name if self.kind is not None else self.accelerator

    def hardware(self, unknown: str, none: str = "none (CPU)") -> str:
        """Such as `8×NVIDIA A100 SXM`; `none` without accelerators, `unknown` where their number is not known."""
        if not self.accelerators:
            return unknown if self.accelerators is None else none
        return f"{self.accelerators:,}×{self.family or 'unknown accelerator'}"

    @cached_property
    def score_minutes(self) -> float | None:
        """The olympic mean as measured; None where there is no score."""
        seconds = score_seconds([counted_seconds(run) for run in self.runs])
        return None if seconds is None else seconds / 60

    @property
    def score_minutes_scaled(self) -> float | None:
        """The score as it counts: by the reference convergence points where the rules scale it."""
        if self.score_minutes is None:
            return None
        return self.score_minutes * (self.scaling_factor if self.scaling_factor is not None else 1.0)

    @property
    def minutes(self) -> float | None:
        """The score, or where there is none the mean of the runs that converged."""
        if self.score_minutes is not None or not self.converged:
            return self.score_minutes
        return mean(run.seconds for run in self.converged if run.seconds is not None) / 60

    def counted_minutes(self) -> float:
        """Of a result with a time: the score as it counts, or the mean of the runs that converged."""
        minutes = self.score_minutes_scaled if self.score_minutes_scaled is not None else self.minutes
        assert minutes is not None, "only results with a time are compared by it"
        return minutes

    @property
    def converged(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.converged)

    @cached_property
    def spread(self) -> TimeSpread | None:
        return time_spread(self.runs)

    @cached_property
    def global_batch_size(self) -> int | None:
        """None where the runs do not all have the same."""
        sizes = {run.global_batch_size for run in self.runs}
        size = sizes.pop() if len(sizes) == 1 else None
        return None if size is None else int(size)

    @cached_property
    def samples_to_target(self) -> float | None:
        """Mean of the runs that converged; None where one of them does not tell."""
        return known_mean([run.samples for run in self.converged])

    @cached_property
    def samples_trained(self) -> float | None:
        """As `samples_to_target`, and what was trained on after it, before run_stop."""
        return known_mean([None if run.samples is None else run.trained for run in self.converged])

    @cached_property
    def sequences_per_second(self) -> float | None:
        """Samples trained on by the time taken, evaluation included, of the runs that converged."""
        if self.samples_trained is None:
            return None
        return self.samples_trained / mean(run.seconds for run in self.converged if run.seconds is not None)

    @property
    def sequences_per_second_per_accelerator(self) -> float | None:
        return self.per_accelerator(self.sequences_per_second)

    @cached_property
    def evaluation_share(self) -> float | None:
        """Of the runs' time, what was spent in evaluation; None where a run's log does not tell."""
        times = [(run.evaluating_seconds, run.seconds) for run in self.converged]
        evaluating = [time for time, _ in times if time is not None]
        if not times or len(evaluating) < len(times):
            return None
        return sum(evaluating) / sum(seconds for _, seconds in times if seconds is not None)

    @property
    def training_sequences_per_second(self) -> float | None:
        """As `sequences_per_second`, without the time in evaluation."""
        if self.sequences_per_second is None or self.evaluation_share is None or self.evaluation_share >= 1:
            return None
        return self.sequences_per_second / (1 - self.evaluation_share)

    @cached_property
    def steady_sequences_per_second(self) -> float | None:
        """Mean of the runs' rates between their first and their last evaluation; None where one does not tell."""
        return known_mean([run.steady_rate for run in self.converged])

    @cached_property
    def startup_seconds(self) -> float | None:
        """Mean of what the runs lost at their start, by their first evaluation; None where one does not tell."""
        return known_mean([run.startup_seconds for run in self.converged])

    def per_accelerator(self, rate: float | None) -> float | None:
        return None if rate is None or not self.accelerators else rate / self.accelerators

    def per_node(self, rate: float | None) -> float | None:
        return None if rate is None or not self.nodes else rate / self.nodes

    @property
    def utilization(self) -> float | None:
        """MFU: the FLOPs that BERT-large needs for samples of the dataset's mean length, unpadded, by the peak."""
        rate = self.sequences_per_second_per_accelerator
        if rate is None or self.kind is None or self.kind.peak_flops is None or not self.full_size:
            return None
        return rate * FLOPS_PER_SEQUENCE / self.kind.peak_flops


def known_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values; None where there are none, or one is not known."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


# Forward and backward of BERT-large on a sample of Wikipedia's mean length (254.5 tokens, mean square 98.8k).
FLOPS_PER_SEQUENCE = 497.5e9
