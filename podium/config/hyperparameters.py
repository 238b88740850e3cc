"""Choice of the optimizer's hyper-parameters for a recipe and a batch size: a named set, or values in a system's file.

The recipe chooses the optimizer. Hyper-parameters belong to one optimizer and one global batch size, so a system names
sets (`hyperparameters`, of benchmarks/bert/published/hyperparameters.yaml) and may override single values. Values for
one optimizer are never used with another.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from benchmarks.bert.sizes import SIZES
from podium.config.schema import OptimizerSettings, RunConfig
from podium.core.errors import UsageError
from podium.core.text import did_you_mean

# Keys of `optimizer` that are not hyper-parameters and can be combined with any set.
NON_NUMERIC_KEYS = ("algorithm", "backend", "sharded_from")
FAR_RATIO = 4  # of batch sizes: beyond it, a set is always warned of
REQUIRED_KEYS = tuple(name for name, field in OptimizerSettings.model_fields.items() if field.is_required())


def choose_hyperparameters(
    system: str, recipe: str, layers: Sequence[Mapping[str, Any]], system_algorithm: str | None
) -> HyperparameterSet | None:
    """Return the set that supplies values which neither the system nor the command line sets; None if not needed.

    `layers` are the keys of the recipe, the system's `bert:` section and the command line, later ones overriding
    earlier ones; `system` is the path of the system's file in messages. `system_algorithm` is the optimizer that values
    in the system's file are for. A set that the system names for this run's optimizer is used at every batch size (of
    several, the one for this batch size); other sets only near a batch size that they were trained with. `null` on the
    command line stands for no name.

    Raises UsageError if there is no set, or if values or a named set are for another optimizer.
    """
    _, own, given = layers
    algorithm = _lookup("optimizer.algorithm", layers)
    size, batch = _lookup("size", layers), _lookup("global_batch_size", layers)
    system_values = sorted({*_number_keys(own)} - {*_number_keys(given)})
    if system_values and system_algorithm is None:
        raise UsageError(
            f"{system}: bert.optimizer.algorithm is missing, so that it is unknown which optimizer "
            f"optimizer.{system_values[0]} is for; add it, or name a recipe"
        )
    if system_values and system_algorithm != algorithm:
        raise UsageError(
            f"{system}: bert.optimizer.{system_values[0]} is for {system_algorithm}, but recipe {recipe} trains with "
            f"{algorithm}; set optimizer.algorithm={system_algorithm} to train with that, or move the values for "
            f"{system_algorithm} into another system file"
        )
    source = "--set " if "hyperparameters" in given else f"{system}: bert."
    named = [_find_set(name, source) for name in names_of_sets(given if "hyperparameters" in given else own)]
    is_size = isinstance(size, str) and size in SIZES  # other values are refused by the schema, later
    matching = [one for one in named if one.algorithm == algorithm and (one.size == size or not is_size)]
    if matching:
        return next((one for one in matching if one.fits(size, algorithm, batch)), matching[0])
    if named and "hyperparameters" in given:
        raise UsageError(
            f"--set hyperparameters: found {named[0].name}, which is for {named[0].algorithm} and size "
            f"{named[0].size}, but recipe {recipe} trains with {algorithm} and size {size}; allowed with them are "
            f"{_matching_sets(size, algorithm)} (another optimizer is chosen by optimizer.algorithm)"
        )
    if system_values:
        return None
    found = next((one for one in hyperparameter_sets().values() if one.fits(size, algorithm, batch)), None)
    missing = [key for key in REQUIRED_KEYS if key not in (*_number_keys(given), "algorithm")]
    is_algorithm = algorithm in {
        one.algorithm for one in hyperparameter_sets().values()
    }  # others too are refused later
    if found is None and missing and is_size and isinstance(batch, int) and is_algorithm:
        options = [key for key in ("size", "global_batch_size", "optimizer.algorithm") if _lookup(key, [given])]
        options += ["hyperparameters=null"] if "hyperparameters" in given and not named else []
        place = ", ".join(f"--set {key}" for key in options) or f"{system}: bert.global_batch_size"
        raise UsageError(
            f"{place}: recipe {recipe} trains size {size} with {algorithm}, and for global_batch_size {batch} no set "
            f"of hyperparameters is known; set {', '.join(f'optimizer.{key}' for key in missing)}, or name a set of "
            f"another batch size{_nearest_set(size, algorithm, batch, system)}; allowed are "
            f"{_matching_sets(size, algorithm)}"
        )
    return found


def describe_hyperparameters(config: RunConfig) -> str:
    """Describe the set that a run trains with, which of its values are overridden, and its known batch sizes."""
    optimizer = f"{config.optimizer.algorithm}, learning rate {config.optimizer.learning_rate:g}"
    known = hyperparameter_sets().get(config.hyperparameters or "")
    if known is None:
        return f"Optimizer: {optimizer}, from the system file or the command line"
    batches = " and ".join(f"{batch:,}" for batch in known.used_at)
    at = f"used at {batches} samples a step"
    here = "" if config.global_batch_size in known.used_at else f", here at {config.global_batch_size:,}"
    of_set = OptimizerSettings.model_validate(known.optimizer)  # adds defaults
    numbers = [key for key in OptimizerSettings.model_fields if key not in NON_NUMERIC_KEYS]
    changed = [key for key in numbers if getattr(config.optimizer, key) != getattr(of_set, key)]
    but = f" but for {', '.join(changed)}" if changed else ""
    return f"Optimizer: {optimizer}, hyperparameters {known.name}{but} ({at}{here})"


def _lookup(key: str, layers: Sequence[Mapping[str, Any]]) -> Any:
    """Return the value of a dotted key in the last layer that sets it; None if none does."""
    for layer in reversed(layers):
        value: Any = layer
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _number_keys(layer: Mapping[str, Any]) -> list[str]:
    optimizer = layer.get("optimizer")
    return [key for key in optimizer if key not in NON_NUMERIC_KEYS] if isinstance(optimizer, Mapping) else []


def names_of_sets(keys: Mapping[str, Any]) -> list[str]:
    """The names of sets in the key `hyperparameters`, which is a name, a list of names, or null."""
    value = keys.get("hyperparameters")
    if value is None:
        return []
    return [str(name) for name in value] if isinstance(value, list | tuple) else [str(value)]


def other_batch_size_warning(
    chosen: HyperparameterSet | None, own: Mapping[str, Any], given: Mapping[str, Any]
) -> str | None:
    """Return a warning if a set is used far from its batch sizes, or not at them since the command line changed them.

    The latter only where the system names the set, and the command line does not.
    """
    batch = _lookup("global_batch_size", (own, given))
    if chosen is None or not isinstance(batch, int) or chosen.fits(chosen.size, chosen.algorithm, batch):
        return None
    is_far = batch > 0 and all(not 1 / FAR_RATIO < batch / used < FAR_RATIO for used in chosen.used_at)
    is_changed = "global_batch_size" in given and "hyperparameters" not in given
    if not is_far and not (is_changed and chosen.name in names_of_sets(own)):
        return None
    other = next(
        (one for one in hyperparameter_sets().values() if one.fits(chosen.size, chosen.algorithm, batch)), None
    )
    choice = (
        "no set is known for that" if other is None else f"--set hyperparameters=null chooses {other.name} for that"
    )
    return (
        f"hyperparameters {chosen.name} {'are' if chosen.source.startswith('Podium') else 'were published'} for "
        f"{' and '.join(f'{used:,}' for used in chosen.used_at)} samples a step, and are used at {batch:,}; {choice}"
    )


def _find_set(name: str, source: str) -> HyperparameterSet:
    sets = hyperparameter_sets()
    if name not in sets:
        raise UsageError(
            f"{source}hyperparameters: there is no set {name!r}{did_you_mean(name, list(sets))}; allowed are "
            f"{', '.join(sets)}"
        )
    return sets[name]


def _nearest_set(size: object, algorithm: object, batch: int, system: str) -> str:
    """Describe the set whose batch size has the ratio to `batch` that is nearest to 1, and how to use it."""
    sets = [one for one in hyperparameter_sets().values() if (one.size, one.algorithm) == (size, algorithm)]
    pairs = [(abs(math.log(used / max(1, batch))), used, one) for one in sets for used in one.used_at]
    if not pairs:
        return ""
    _, used, nearest = min(pairs, key=lambda pair: pair[0])
    samples = "not known" if nearest.samples is None else f"{nearest.samples:,}"
    return (
        f". The nearest is {nearest.name}: {used:,} samples a step, learning rate "
        f"{nearest.optimizer['learning_rate']:g}, samples to target {samples}; use it by `hyperparameters: "
        f"{nearest.name}` under bert: in {system}, or by --set hyperparameters={nearest.name}"
    )


def _matching_sets(size: object, algorithm: object) -> str:
    sets = hyperparameter_sets().values()
    return ", ".join(one.name for one in sets if (one.size, one.algorithm) == (size, algorithm)) or "none"
