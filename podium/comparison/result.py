"""A result: the runs of one system in one round, and the figures derived from them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median
from typing import NamedTuple

from mlperf_logging.mllog.constants import SUCCESS

from podium.mllog.benchmarks import Benchmark, find_benchmark
from podium.mllog.run import BERT, Run
from podium.mllog.score import TimeSpread, counted_seconds, score_seconds, time_spread
from podium.planning.accelerators import Accelerator

NO_VERDICT = "Unknown state"  # the official word for runs that no reference points are compared with
BERT_LARGE_TENSORS = 398  # weight tensors that a log of BERT-large lists; 0 where it lists none


MEMORY = re.compile(r"(?<![\d.])(\d{1,4}) ?GB", re.IGNORECASE)
MAX_SECONDS = 366 * 86_400.0  # upper bound on the plausible time of a run
# A clock is wrong if a run's time is this many times the median of its set, or that fraction of it. In published sets
# the samples that runs need differ by a factor of 4 at most.
MAX_TIME_RATIO = 10.0


class Cosmetic(NamedTuple):
    """An inconsistency that affects no figure."""

    kind: str  # what results with it have in common
    message: str  # of this result, as a sentence fragment


@dataclass(frozen=True)
class Result:
    """The runs in results/SYSTEM/BENCHMARK of a submitter. Values that are in neither logs nor description are None."""

    benchmark: str  # name in MLPerf's logs, such as bert; may be one that is not in the table of benchmarks
    round: str | None  # such as v2.1; None for local results, which belong to no round
    submitter: str
    system: str
    division: str | None  # closed or open
    source: str  # path of the logs, as it is shown to users
    runs: tuple[Run, ...]  # in the order of the numbers in their names
    description: Mapping[str, str]  # MLPerf's fields of the system; empty if there is no description
    nodes: int | None
    accelerators: int | None  # in all nodes; 0 for a system that trains on its CPUs
    accelerator: str | None  # the description's name of it
    kind: Accelerator | None  # Podium's data of this accelerator; None for an unknown one
    # The factor by which the round's rules scale the score if the runs needed fewer samples than the reference allows.
    # None: the score is not scaled.
    scaling_factor: float | None = None
    # The verdict on its reference convergence points (RCPs), in the words of the official summarizer: Pass, Fail,
    # Interp. Fail, Missing, No RCP, Unknown state (NO_VERDICT). None where the rules do not compare it, as in the open
    # division.
    rcp: str | None = None
    energy_joules: float | None = None  # of one run: mean of the scored runs, scaled as the score; None: not measured
    # The earlier result that has the same runs: "ROUND SUBMITTER SYSTEM", and its package if it has the same name.
    repeats: str | None = None
    # False if the runs did not train BERT-large: then they are not compared with runs that did.
    full_size: bool = True
    # Target accuracies of local runs that are not MLPerf's, None for runs without a target; empty if all have MLPerf's,
    # or it is not known. With any, there is no score, and the result is not compared.
    other_targets: tuple[float | None, ...] = ()
    logs: tuple[str, ...] = ()  # names of the runs' logs, in the order of `runs`; empty where they are not known
    # Inconsistencies in logs and description that may affect a figure, as sentence fragments.
    anomalies: tuple[str, ...] = ()
    cosmetic: tuple[Cosmetic, ...] = ()  # inconsistencies that affect no figure

    @property
    def name(self) -> str:
        """ROUND SUBMITTER SYSTEM. Unique in a benchmark, unless a system was submitted twice in a round."""
        return f"{self.round or 'own'} {self.short_name}"

    @property
    def rules(self) -> Benchmark | None:
        """The entry of the table of benchmarks; None for one that is not in the table."""
        return find_benchmark(self.benchmark)

    @property
    def short_name(self) -> str:
        return f"{self.submitter} {self.system}"

    @property
    def comparable(self) -> bool:
        """Whether the runs trained the benchmark's model to MLPerf's target; others are not compared with these."""
        return self.full_size and not self.other_targets

    @property
    def own(self) -> bool:
        """Whether this is a local result and not a published one."""
        return self.round is None

    @property
    def family(self) -> str | None:
        """The accelerator's usual name, such as NVIDIA A100 SXM; the description's name of an unknown accelerator."""
        return self.kind.name if self.kind is not None else self.accelerator

    @property
    def memory_gb(self) -> int | None:
        """GB of one accelerator's memory, as the description's name of it states it; None if it does not."""
        found = None if self.accelerator is None else MEMORY.search(self.accelerator)
        return None if found is None else int(found[1])

    @property
    def variant(self) -> str | None:
        """The family with its memory, such as NVIDIA A100 SXM 40 GB, where the name of the accelerator states it."""
        stated = self.kind is None or self.memory_gb is None
        return self.family if stated else f"{self.family} {self.memory_gb} GB"

    def hardware(self, unknown: str, none: str = "none (CPU)") -> str:
        """Format the accelerators, such as `8×NVIDIA A100 SXM`; `none` if there are none, `unknown` if unknown."""
        if not self.accelerators:
            return unknown if self.accelerators is None else none
        return f"{self.accelerators:,}×{self.family or 'unknown accelerator'}"

    @cached_property
    def score_minutes(self) -> float | None:
        """The score as measured: the olympic mean. None if there is no score."""
        if self.rules is None or self.other_targets:
            return None
        seconds = score_seconds([counted_seconds(run) for run in self.runs], self.rules.runs, self.rules.dropped)
        return None if seconds is None else seconds / 60

    @property
    def scored_runs(self) -> tuple[Run, ...]:
        """The runs whose mean is the score, fastest first; without a score all that converged."""
        return tuple(self.runs[number] for number in self.scored_indices)

    @property
    def scored_indices(self) -> tuple[int, ...]:
        """The indices of `scored_runs` in `runs`."""
        numbers = range(len(self.runs))
        if self.score_minutes is None or self.rules is None:
            return tuple(number for number in numbers if self.runs[number].converged)
        fastest_first = sorted(numbers, key=lambda number: counted_seconds(self.runs[number]))
        return tuple(fastest_first[self.rules.dropped : len(self.runs) - self.rules.dropped])

    @property
    def score_minutes_scaled(self) -> float | None:
        """The official score: scaled by the reference convergence points (RCPs) where the rules scale it."""
        if self.score_minutes is None:
            return None
        return self.score_minutes * (self.scaling_factor if self.scaling_factor is not None else 1.0)

    @property
    def minutes(self) -> float | None:
        """The score as measured, or without a score the mean of the runs that converged."""
        if self.score_minutes is not None or not self.converged:
            return self.score_minutes
        return mean(run.seconds for run in self.converged if run.seconds is not None) / 60

    def ranking_minutes(self) -> float:
        """The time that results are ranked by: the official score, or the mean of the runs that converged.

        Only for results whose `minutes` are known.
        """
        minutes = self.score_minutes_scaled if self.score_minutes_scaled is not None else self.minutes
        assert minutes is not None, "only results with a time are compared by it"
        return minutes

    @property
    def converged(self) -> tuple[Run, ...]:
        """The runs that reached the target."""
        return tuple(run for run in self.runs if run.converged)

    @cached_property
    def timed(self) -> tuple[Run, ...]:
        """The runs that reached the target in a time that can be right; spread and rates are of these."""
        seconds = [run.seconds for run in self.converged if run.seconds is not None and run.seconds <= MAX_SECONDS]
        if not seconds:
            return ()
        middle = median(seconds)
        low, high = (middle / MAX_TIME_RATIO, middle * MAX_TIME_RATIO) if len(seconds) > 2 else (0, MAX_SECONDS)
        return tuple(run for run in self.converged if run.seconds is not None and low <= run.seconds <= high)

    @cached_property
    def spread(self) -> TimeSpread | None:
        """Variation of the runs' times; None if it cannot be computed."""
        return time_spread(self.timed)

    @cached_property
    def global_batch_size(self) -> int | None:
        """The global batch size in samples; None if the runs have different ones."""
        sizes = {run.global_batch_size for run in self.runs}
        size = sizes.pop() if len(sizes) == 1 else None
        return None if size is None else int(size)

    @cached_property
    def samples_to_target(self) -> float | None:
        """Mean samples to the target of the runs that converged; None if one of them did not log it."""
        return mean_if_all_known([run.samples for run in self.converged])

    @cached_property
    def samples_to_converge(self) -> float | None:
        """Olympic mean of the runs' progress in the unit of the benchmark's reference points: samples, epochs, tokens.

        As the official summarizer's field of this name. None if it is not known, or if too few runs converged.
        """
        progress = self.progress_of_runs
        if progress is None or self.rules is None or len(progress) <= 2 * self.rules.dropped:
            return None
        counted = sorted(math.inf if one is None else one for one in progress)[self.rules.dropped : -self.rules.dropped]
        return mean(counted) if math.isfinite(counted[-1]) else None

    @cached_property
    def progress_of_runs(self) -> tuple[float | None, ...] | None:
        """Progress of each run as the official RCP checker reads it: None without status success, whatever its reason.

        None as a whole if a run with status success does not log its progress.
        """
        succeeded = [run.status == SUCCESS for run in self.runs]
        progress = tuple(run.progress if one else None for run, one in zip(self.runs, succeeded, strict=True))
        unknown = any(one and count is None for one, count in zip(succeeded, progress, strict=True))
        return None if unknown else progress

    @cached_property
    def samples_trained(self) -> float | None:
        """As `samples_to_target`, including samples that were trained on after the target was reached."""
        return mean_if_all_known([None if run.samples is None else run.trained for run in self.converged])

    @cached_property
    def samples_per_second(self) -> float | None:
        """Samples trained on divided by run time, evaluation included, of the runs that converged."""
        trained = mean_if_all_known([None if run.samples is None else run.trained for run in self.timed])
        return None if trained is None else trained / mean(run.seconds for run in self.timed if run.seconds is not None)

    @property
    def samples_per_second_per_accelerator(self) -> float | None:
        return self.per_accelerator(self.samples_per_second)

    @cached_property
    def evaluation_share(self) -> float | None:
        """Fraction of the runs' time that was spent in evaluation; None if a run did not log it."""
        times = [(run.evaluating_seconds, run.seconds) for run in self.timed]
        evaluating = [time for time, _ in times if time is not None]
        if not times or len(evaluating) < len(times):
            return None
        return sum(evaluating) / sum(seconds for _, seconds in times if seconds is not None)

    @property
    def training_samples_per_second(self) -> float | None:
        """As `samples_per_second`, excluding the time of evaluation."""
        if self.samples_per_second is None or self.evaluation_share is None or self.evaluation_share >= 1:
            return None
        return self.samples_per_second / (1 - self.evaluation_share)

    @cached_property
    def steady_samples_per_second(self) -> float | None:
        """Mean of the runs' sequences/s between their first and last evaluation; None if one of them is unknown."""
        return mean_if_all_known([run.steady_rate for run in self.timed])

    @cached_property
    def startup_seconds(self) -> float | None:
        """Mean delay of the runs' first evaluation compared with their later pace; None if one of them is unknown."""
        return mean_if_all_known([run.startup_seconds for run in self.timed])

    def per_accelerator(self, rate: float | None) -> float | None:
        return None if rate is None or not self.accelerators else rate / self.accelerators

    def per_node(self, rate: float | None) -> float | None:
        return None if rate is None or not self.nodes else rate / self.nodes

    @property
    def utilization(self) -> float | None:
        """Model FLOPs utilization: FLOP/s of the model at this rate, without padding, over the dense bf16 peak.

        None if the accelerator's peak or the benchmark's FLOPs are unknown, or if the model is not known to be the
        benchmark's: in the open division it may be any, unless the logs list the tensors of BERT-large.
        """
        rate, flops = (
            self.samples_per_second_per_accelerator,
            None if self.rules is None else self.rules.flops_per_sample,
        )
        if rate is None or flops is None or self.kind is None or self.kind.peak_flops is None or not self.full_size:
            return None
        listed = all(run.tensors == BERT_LARGE_TENSORS for run in self.runs)
        if self.division != "closed" and not self.own and not (self.benchmark == BERT and listed):
            return None
        return rate * flops / self.kind.peak_flops


def mean_if_all_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values; None if there are none, or if one is unknown (None)."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None
