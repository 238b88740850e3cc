"""Warnings about optimizer settings far from published ones, and schedules that do not fit the predicted steps."""

from collections.abc import Iterable
from math import log

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from benchmarks.bert.published.reading import read_learning_rates
from podium.config.schema import OptimizerSettings, RunConfig
from podium.planning.prediction.samples_to_target import Estimate

RATE_FACTOR = 4.0  # tolerated between a learning rate and the nearest published one
WEIGHT_DECAY_FACTOR = 10.0  # tolerated above the greatest published weight decay
DECAY_FACTOR = 1.5  # tolerated beyond the published range of decay_steps / steps to the target


def optimizer_warnings(config: RunConfig, samples: Estimate) -> list[str]:
    """Return a warning for each optimizer setting with which a run of `samples` may not reach its target."""
    optimizer, batch = config.optimizer, config.global_batch_size
    # Only sets of this model size that reached the target; those of the tiny BERT come from Podium's runs.
    known = [
        (OptimizerSettings.model_validate(one.optimizer), _steps_to_target(one))
        for one in hyperparameter_sets().values()
        if one.size == config.size and one.samples is not None
    ]
    source = "published" if config.size == "large" else "known"
    has_target = config.target_accuracy is not None
    warnings = []
    if config.size == "large" and has_target:
        warnings += learning_rate_warnings(optimizer.algorithm, optimizer.learning_rate, batch)
    weight_decays = [one.weight_decay for one, _ in known]
    if optimizer.weight_decay > WEIGHT_DECAY_FACTOR * max(weight_decays):
        warnings.append(
            f"optimizer.weight_decay {optimizer.weight_decay:g} is far above {source} values "
            f"({_format_range(weight_decays)}); training may not reach the target"
        )
    if optimizer.end_learning_rate > optimizer.learning_rate:
        warnings.append(
            f"optimizer.end_learning_rate {optimizer.end_learning_rate:g} is above learning_rate "
            f"{optimizer.learning_rate:g}, so the learning rate rises ({source}: "
            f"{_format_range(one.end_learning_rate / one.learning_rate for one, _ in known)} of learning_rate)"
        )

    steps = samples.mean / batch
    of_run = f"of the {steps:,.0f} steps predicted to {'the target' if has_target else 'the end'} ({source}:"
    if (warm := _warmup_end(optimizer)) >= steps:
        warnings.append(
            f"optimizer.warmup_steps {optimizer.warmup_steps:,} is longer than the run: the warm-up ends at "
            f"{warm / steps:.3g} {of_run} {_format_range(_warmup_end(one) / its for one, its in known)})"
        )
    if optimizer.decay_from >= steps:
        warnings.append(
            f"optimizer.decay_from {optimizer.decay_from:,} begins the decay after the run, at "
            f"{optimizer.decay_from / steps:.3g} {of_run} {_format_range(one.decay_from / its for one, its in known)})"
        )
    if has_target:
        lengths = [one.decay_steps / its for one, its in known]
        share = optimizer.decay_steps / steps
        # A learning rate of 0 ends training, so not even the shortest published run would reach the target.
        ends_at_zero = optimizer.end_learning_rate == 0 and optimizer.decay_steps * batch < samples.least
        effect = (
            "ends the schedule before the target"
            if ends_at_zero or share < min(lengths) / DECAY_FACTOR
            else "lets the rate decay little before the target"
            if share > max(lengths) * DECAY_FACTOR
            else None
        )
        if effect:
            decay_steps = f"optimizer.decay_steps {optimizer.decay_steps:,}"
            warnings.append(f"{decay_steps} {effect}: at {share:.3g} {of_run} {_format_range(lengths)})")
    return warnings


def _steps_to_target(known: HyperparameterSet) -> float:
    """Return the mean steps to the target with a set of hyper-parameters."""
    assert known.samples is not None
    return known.samples / known.used_at[0]


def _warmup_end(optimizer: OptimizerSettings) -> int:
    """Return the first step at the base learning rate."""
    return max(0, optimizer.warmup_steps + optimizer.start_warmup_step)


def _format_range(values: Iterable[float]) -> str:
    values = list(values)
    return f"{min(values):.3g} to {max(values):.3g}"


def learning_rate_warnings(optimizer: str, rate: float, batch: int) -> list[str]:
    """Return a warning if the learning rate is far from those published at the nearest batch size, else nothing."""
    known = [row for row in read_learning_rates() if row.optimizer == optimizer]
    if not known:
        return []
    nearest = min((row.global_batch_size for row in known), key=lambda size: (abs(log(size / batch)), size))
    rates = [row.learning_rate for row in known if row.global_batch_size == nearest]
    if min(rates) / RATE_FACTOR <= rate <= max(rates) * RATE_FACTOR:
        return []
    published = f"{min(rates):.3g}" if min(rates) == max(rates) else f"{min(rates):.3g} to {max(rates):.3g}"
    return [
        f"optimizer.learning_rate {rate:g} is far from the rates published with {optimizer} at the nearest batch size "
        f"({published} at {nearest:,}): the samples to target may be wrong, and training may not reach the target"
    ]
