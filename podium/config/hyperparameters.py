"""Choice of the optimizer settings that a recipe trains with at a batch size: of a named set, or a system's own.

A recipe says which optimizer it trains with. Its numbers belong to that optimizer and the global batch size, so a
system names sets (`hyperparameters`, of benchmarks/bert/published/hyperparameters.yaml) and may change single numbers
of them. Numbers of one optimizer are never used with another.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from benchmarks.bert.sizes import SIZES
from podium.config.schema import OptimizerSettings, RunConfig
from podium.core.errors import UsageError

# Keys of `optimizer` that are no hyper-parameters, so that they go with any of them.
NOT_NUMBERS = ("algorithm", "backend", "sharded_from")
NEEDED = tuple(name for name, field in OptimizerSettings.model_fields.items() if field.is_required())


def choose_hyperparameters(
    system: Path, recipe: str, layers: Sequence[Mapping[str, Any]], own_algorithm: str | None
) -> HyperparameterSet | None:
    """The set that fills in what neither the system nor the command line gives; None where they give all of it.

    `layers` are the keys of the recipe, the system's `bert:` section and the command line; a later one counts more.
    `own_algorithm` is the optimizer that numbers in the system's file are for. A set that the system names for the
    optimizer of this run counts at every batch size (of several the one for this size), another one where it was
    trained with about this batch size.

    Raises UsageError where there is none, or where numbers or a set are for another optimizer.
    """
    _, own, given = layers
    algorithm = _given("optimizer.algorithm", layers)
    size, batch = _given("size", layers), _given("global_batch_size", layers)
    kept = sorted({*_numbers(own)} - {*_numbers(given)})
    if kept and own_algorithm is None:
        raise UsageError(
            f"{system}: bert.optimizer.algorithm is missing: nothing says which optimizer optimizer.{kept[0]} is for; "
            "add it, or name a recipe"
        )
    if kept and own_algorithm != algorithm:
        raise UsageError(
            f"{system}: bert.optimizer.{kept[0]} is for {own_algorithm}, but recipe {recipe} trains with {algorithm}; "
            f"set optimizer.algorithm={own_algorithm} to train with that, or move the numbers of {own_algorithm} into "
            "another system file"
        )
    source = "--set " if "hyperparameters" in given else f"{system}: bert."
    named = [_set_named(name, source) for name in _names(_given("hyperparameters", layers[1:]))]
    is_size = isinstance(size, str) and size in SIZES  # another is refused with the rest of the configuration
    matching = [one for one in named if one.algorithm == algorithm and (one.size == size or not is_size)]
    if matching:
        return next((one for one in matching if one.fits(size, algorithm, batch)), matching[0])
    if named and "hyperparameters" in given:
        raise UsageError(
            f"--set hyperparameters: found {named[0].name}, which is for {named[0].algorithm} and size "
            f"{named[0].size}, but recipe {recipe} trains with {algorithm} and size {size}; allowed with them are "
            f"{_listed(size, algorithm)} (another optimizer is chosen by optimizer.algorithm)"
        )
    if kept:
        return None
    found = next((one for one in hyperparameter_sets().values() if one.fits(size, algorithm, batch)), None)
    missing = [key for key in NEEDED if key not in (*_numbers(given), "algorithm")]
    is_algorithm = algorithm in {one.algorithm for one in hyperparameter_sets().values()}  # else refused later, too
    if found is None and missing and is_size and isinstance(batch, int) and is_algorithm:
        raise UsageError(
            f"{system}: recipe {recipe} trains size {size} with {algorithm}, and for global_batch_size {batch} no set "
            f"of hyperparameters is known; set {', '.join(f'optimizer.{key}' for key in missing)}, or name a set of "
            f"another batch size by --set hyperparameters=NAME; allowed are {_listed(size, algorithm)}"
        )
    return found


def hyperparameters_note(config: RunConfig) -> str:
    """Which set a run trains with, what was changed of it, and at which batch sizes it was used before."""
    optimizer = f"{config.optimizer.algorithm}, learning rate {config.optimizer.learning_rate:g}"
    known = hyperparameter_sets().get(config.hyperparameters or "")
    if known is None:
        return f"Optimizer: {optimizer}, as the system or the command line says"
    batches = " and ".join(f"{batch:,}" for batch in known.used_at)
    at = f"used at {batches} samples a step"
    here = "" if config.global_batch_size in known.used_at else f", here at {config.global_batch_size:,}"
    of_set = OptimizerSettings.model_validate(known.optimizer)  # what the set does not name has its default
    numbers = [key for key in OptimizerSettings.model_fields if key not in NOT_NUMBERS]
    changed = [key for key in numbers if getattr(config.optimizer, key) != getattr(of_set, key)]
    but = f" but for {', '.join(changed)}" if changed else ""
    return f"Optimizer: {optimizer}, hyperparameters {known.name}{but} ({at}{here})"


def _given(key: str, layers: Sequence[Mapping[str, Any]]) -> Any:
    """The value of a dotted key in the last layer that has it; None where none has, or not as keys below keys."""
    for layer in reversed(layers):
        value: Any = layer
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _numbers(layer: Mapping[str, Any]) -> list[str]:
    optimizer = layer.get("optimizer")
    return [key for key in optimizer if key not in NOT_NUMBERS] if isinstance(optimizer, Mapping) else []


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(name) for name in value] if isinstance(value, list | tuple) else [str(value)]


def _set_named(name: str, source: str) -> HyperparameterSet:
    sets = hyperparameter_sets()
    if name not in sets:
        close = difflib.get_close_matches(name, sets, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"{source}hyperparameters: there is no set {name!r}{hint}; allowed are {', '.join(sets)}")
    return sets[name]


def _listed(size: object, algorithm: object) -> str:
    sets = hyperparameter_sets().values()
    return ", ".join(one.name for one in sets if (one.size, one.algorithm) == (size, algorithm)) or "none"
