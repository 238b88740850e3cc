"""Doubts about optimizer settings: those far from published ones, and schedules that do not fit the predicted steps."""

from collections.abc import Iterable
from math import log

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from benchmarks.bert.published.reading import read_learning_rates
from podium.config.schema import OptimizerSettings, RunConfig
from podium.planning.prediction.samples_to_target import Estimate

RATE_FACTOR = 4.0  # between the nearest published learning rate and one that samples to target are not known of
WEIGHT_DECAY_FACTOR = 10.0  # times the greatest published weight decay
DECAY_FACTOR = 1.5  # between published lengths of the decay, in steps to the target, and those doubted


def optimizer_doubts(config: RunConfig, samples: Estimate) -> list[str]:
    """A sentence for each setting of the optimizer with which a run of so many samples may not reach its target."""
    optimizer, batch = config.optimizer, config.global_batch_size
    # Of the size's runs to the target; the tiny BERT's sets are Podium's own.
    known = [
        (OptimizerSettings.model_validate(one.optimizer), _steps(one))
        for one in hyperparameter_sets().values()
        if one.size == config.size and one.samples is not None
    ]
    source = "published" if config.size == "large" else "known"
    has_target = config.target_accuracy is not None
    found = []
    if config.size == "large" and has_target:
        found += learning_rate_doubt(optimizer.algorithm, optimizer.learning_rate, batch)
    weight_decays = [one.weight_decay for one, _ in known]
    if optimizer.weight_decay > WEIGHT_DECAY_FACTOR * max(weight_decays):
        found.append(
            f"optimizer.weight_decay {optimizer.weight_decay:g} is far above those that are {source} "
            f"({_span(weight_decays)}), and training may not reach the target"
        )
    if optimizer.end_learning_rate > optimizer.learning_rate:
        found.append(
            f"optimizer.end_learning_rate {optimizer.end_learning_rate:g} is above learning_rate "
            f"{optimizer.learning_rate:g}, so the rate rises to its end ({source}: "
            f"{_span(one.end_learning_rate / one.learning_rate for one, _ in known)} of learning_rate)"
        )

    steps = samples.mean / batch
    of_run = f"of the {steps:,.0f} steps predicted to {'the target' if has_target else 'the end'} ({source}:"
    if (warm := _warm_up_end(optimizer)) >= steps:
        found.append(
            f"optimizer.warmup_steps {optimizer.warmup_steps:,} is longer than the run: the warm-up ends at "
            f"{warm / steps:.3g} {of_run} {_span(_warm_up_end(one) / its for one, its in known)})"
        )
    if optimizer.decay_from >= steps:
        found.append(
            f"optimizer.decay_from {optimizer.decay_from:,} begins the decay after the run, at "
            f"{optimizer.decay_from / steps:.3g} {of_run} {_span(one.decay_from / its for one, its in known)})"
        )
    if has_target:
        lengths = [one.decay_steps / its for one, its in known]
        share = optimizer.decay_steps / steps
        # At rate 0 nothing is learnt, so that not even the shortest of the published runs would reach the target.
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
            found.append(f"{decay_steps} {effect}: at {share:.3g} {of_run} {_span(lengths)})")
    return found


def _steps(known: HyperparameterSet) -> float:
    """Mean steps to the target with a set of settings."""
    assert known.samples is not None
    return known.samples / known.used_at[0]


def _warm_up_end(optimizer: OptimizerSettings) -> int:
    """The step from which the rate has its base."""
    return optimizer.warmup_steps + optimizer.start_warmup_step


def _span(values: Iterable[float]) -> str:
    values = list(values)
    return f"{min(values):.3g} to {max(values):.3g}"


def learning_rate_doubt(optimizer: str, rate: float, batch: int) -> list[str]:
    """A sentence if the learning rate lies far from those published at the nearest batch size."""
    known = [row for row in read_learning_rates() if row.optimizer == optimizer]
    if not known:
        return []
    nearest = min((row.global_batch_size for row in known), key=lambda size: (abs(log(size / batch)), size))
    rates = [row.learning_rate for row in known if row.global_batch_size == nearest]
    if min(rates) / RATE_FACTOR <= rate <= max(rates) * RATE_FACTOR:
        return []
    published = f"{min(rates):.3g}" if min(rates) == max(rates) else f"{min(rates):.3g} to {max(rates):.3g}"
    return [
        f"optimizer.learning_rate {rate:g} is far from what was published with {optimizer} at the nearest batch size "
        f"({published} at {nearest:,}), so the samples to target need not hold, and training may not reach the target"
    ]
