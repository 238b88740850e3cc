"""Back-test on published A100 systems that were not in the fit: `python -m podium.planning.prediction.backtest`.

Prints a table of systems and median errors, computed from committed figures only; `--fitted` lists the systems of the
fit. Throughput is predicted for the samples that a system trained on, time-to-train for the samples that the curve
expects. Scores are unscaled.

The formula of collectives was changed once after this list had been seen, without a new constant. The first formula, a
ring in each of two levels, had medians of 5.1% (sequences/s) and 11.4% (seconds) without Samsung's systems, and errors
of 20 to 40% for systems with four GPUs per node, because their traffic grew with the nodes. Later, equal buckets were
replaced by DDP's. The medians became 0.2 and 0.4 points worse; DDP's buckets were kept since gradients are sent in
them. The list is therefore not blind to these changes. The multi-node systems of round 1.1, listed last, are blind to
the first change: their rates were looked at only after it.

Intervals are computed from the errors of this list and of round 1.1's rates, so a score inside its interval tests
nothing. The leave-one-out counts at the end do: how many systems lie inside the interval computed from the others.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from statistics import median

from benchmarks.bert.published.reading import PublishedRun, read_runs, read_scores
from podium.planning.prediction.constants import Constants, load_constants
from podium.planning.prediction.interval import MAX_SMALL_GPUS
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import is_fitted, is_tested, known_samples, plan_from_published, predict_rate

LARGE_ERROR = 0.15
BETTER_SETTINGS = (
    "samples: at batch size 3,072 the only fitted system of 2.x, NVIDIA's of 2.0, needed 3.2 million; the settings "
    "of 2.1 need 2.7 million"
)
# Causes of large errors, by a part of the system's name; the first entry that matches is used.
ERROR_CAUSES: tuple[tuple[str, str], ...] = (
    (
        "Samsung",
        "rate: steps of 108 ms at 1,024 GPUs where 68 ms are predicted. No 8-GPU run of this code is published, so "
        "NVIDIA's rates are assumed; 2 s of each run went to loading data, and 6 to 8 steps were lost to overflow",
    ),
    (
        "n16_pytorch",
        "rate: 128 cloud GPUs are hardly faster than 64 of the same submitter; Azure's 1.1 systems of 1,024 and 2,048 "
        "GPUs are as far below NVIDIA's with the same adapters, and the model has no term for that",
    ),
    ("16N_pytorch", "samples: 28% more than expected from two 1.1 systems at batch size 6,144"),
    ("4N_pytorch", "samples: 19% more than expected at batch size 1,536, between two known batch sizes"),
    ("x1A100", "samples: batch size 92 is below all known batch sizes, and needed 55% more samples than those"),
    (
        "32xXE8545",
        "rate: with 24 samples per GPU less communication is hidden than with 48, and the model exposes too much of it",
    ),
    ("8_node_64_A100", BETTER_SETTINGS),
    ("2.1 Dell 16xXE8545", BETTER_SETTINGS),
    ("n8_ngc22.09", BETTER_SETTINGS),
    ("2.0 Dell R750xa", "samples: these ten runs happened to need 16% more than the median system at batch size 448"),
)


@dataclass(frozen=True)
class Comparison:
    """A published system and its prediction. Errors are predicted / published − 1."""

    run: PublishedRun
    prediction: Prediction
    sequences_per_second: float  # predicted, for the samples that the system trained on

    @property
    def rate_error(self) -> float:
        return self.sequences_per_second / self.run.sequences_per_second - 1

    @property
    def samples_error(self) -> float:
        return self.prediction.samples_to_target / self.run.mean_samples - 1

    @property
    def seconds_error(self) -> float:
        return self.prediction.seconds / self.run.score_seconds - 1

    @property
    def is_inside(self) -> bool:
        """Whether the score lies inside the predicted interval."""
        return self.prediction.low <= self.run.score_seconds <= self.prediction.high


def compare(runs: Iterable[PublishedRun], constants: Constants) -> list[Comparison]:
    """Predict each run and return the comparisons, sorted by number of GPUs and then by name.

    Samples to target come from `known_samples`, so no tested run contributes to its prediction.
    """
    published = known_samples(read_runs())
    comparisons = []
    for run in sorted(runs, key=lambda run: (run.gpus, run.name)):
        prediction = predict(plan_from_published(run, constants, published), constants)
        comparisons.append(Comparison(run, prediction, predict_rate(run, constants, published)))
    return comparisons


@dataclass(frozen=True)
class Medians:
    """Median absolute relative errors over a number of systems."""

    systems: int
    rate: float
    samples: float
    seconds: float

    @classmethod
    def from_comparisons(cls, comparisons: Sequence[Comparison]) -> "Medians":
        errors = [(abs(c.rate_error), abs(c.samples_error), abs(c.seconds_error)) for c in comparisons]
        rate, samples, seconds = (median(column) for column in zip(*errors, strict=True))
        return cls(len(comparisons), rate, samples, seconds)


def group_comparisons(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Group comparisons by code family, by GPU and by number of GPUs; the group "all" has all of them."""
    groups: dict[str, list[Comparison]] = {"all": list(comparisons)}
    sizes = ((1, 4), (5, 32), (33, 128), (129, 4096))
    for comparison in comparisons:
        run = comparison.run
        low, high = next(size for size in sizes if run.gpus <= size[1])
        for name in (f"code: {run.family}", f"GPU: {run.gpu}", f"{low:,} to {high:,} GPUs"):
            groups.setdefault(name, []).append(comparison)
    return groups


def explain_errors(comparisons: Iterable[Comparison]) -> list[str]:
    """Return a line with the cause of each error of rate or time above LARGE_ERROR."""
    lines = []
    for c in comparisons:
        if max(abs(c.rate_error), abs(c.seconds_error)) > LARGE_ERROR:
            cause = next((cause for part, cause in ERROR_CAUSES if part in c.run.name), "not explained")
            lines.append(f"{c.run.name}: {cause}")
    return lines


def render_report(comparisons: Sequence[Comparison]) -> str:
    """Render the table of systems, the causes of large errors, and the median errors by group."""
    lines = [
        f"{'GPUs':>5} {'batch':>6} {'sequences/s':>19} {'error':>7} {'samples':>7} {'seconds':>19} {'error':>7}",
        f"{'':>5} {'':>6} {'published predicted':>19} {'':>7} {'error':>7} {'score     predicted':>19} {'':>7}",
    ]
    for c in comparisons:
        mark = " " if c.is_inside else "*"
        lines.append(
            f"{c.run.gpus:>5,} {c.run.global_batch_size:>6,} {c.run.sequences_per_second:>9,.0f} "
            f"{c.sequences_per_second:>9,.0f} {c.rate_error:>+7.1%} {c.samples_error:>+7.1%} "
            f"{c.run.score_seconds:>9,.1f} {c.prediction.seconds:>9,.1f} {c.seconds_error:>+7.1%} {mark}   "
            f"{c.run.name} ({c.run.family})"
        )
    inside_all = sum(c.is_inside for c in comparisons)
    lines += [
        "",
        *explain_errors(comparisons),
        "",
        f"* the score is outside the predicted interval; {inside_all} of {len(comparisons)} are inside",
        "",
        "median absolute error",
    ]
    lines.append(f"{'':<24}{'systems':>8}{'sequences/s':>13}{'samples':>9}{'seconds':>9}")
    for name, members in group_comparisons(comparisons).items():
        m = Medians.from_comparisons(members)
        lines.append(f"{name:<24}{m.systems:>8}{m.rate:>13.1%}{m.samples:>9.1%}{m.seconds:>9.1%}")
    return "\n".join(lines)


def render_round_1_1(constants: Constants) -> str:
    """Render the errors in sequences/s of round 1.1's multi-node systems, which influenced no choice of the model."""
    published = known_samples(read_runs())
    lines, errors = ["", "round 1.1, multi-node: sequences/s published, predicted, error"], []
    for run in sorted(read_scores(), key=lambda run: (run.gpus, run.name)):
        rate = predict_rate(run, constants, published)
        errors.append(rate / run.sequences_per_second - 1)
        lines.append(f"{run.gpus:>5,} {run.sequences_per_second:>9,.0f} {rate:>9,.0f} {errors[-1]:>+7.1%}   {run.name}")
    return "\n".join([*lines, f"median absolute error {median(map(abs, errors)):.1%}"])


def render_intervals(constants: Constants) -> str:
    """Render the interval of each kind of system, with its leave-one-out coverage."""
    lines = ["", "intervals: code, GPUs, quantity, factors below and above, coverage, inside when left out"]
    for interval in constants.error_intervals:
        gpus = f"up to {MAX_SMALL_GPUS} GPUs" if interval.gpus == "small" else f"more than {MAX_SMALL_GPUS} GPUs"
        coverage = "not stated" if interval.coverage is None else f"{interval.coverage:.0%}"
        lines.append(
            f"{interval.code:>6} {gpus:<17} {interval.of:<8} 1/{exp(-interval.low):.2f} {exp(interval.high):.2f} "
            f"{coverage:>10}   {interval.inside_left_out} of {interval.systems}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="podium.planning.prediction.backtest", description=__doc__)
    parser.add_argument("--fitted", action="store_true", help="list the systems of the fit instead of the tested ones")
    fitted, constants = parser.parse_args().fitted, load_constants()
    chosen = is_fitted if fitted else is_tested
    print(render_report(compare([run for run in read_runs() if chosen(run)], constants)))
    if not fitted:
        print(render_round_1_1(constants))
        print(render_intervals(constants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
