"""With what settings runs were made, and in which of them two sides differ."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.text import one_line
from podium.reading.run_log import Run

Values = Mapping[str, tuple[str, ...]]
"""By setting, the values that runs have, without repetitions, as text. Runs of one setting have one value."""

FACTS = (
    "number_of_nodes",
    "accelerators_per_node",
    "accelerator_model_name",
    "host_processor_model_name",
    "framework",
)
"""Of a description: what differs and may matter."""
ASIDE = ("seed", "system", "description", "launch.rendezvous", "launch.timeout_seconds")
"""Of a configuration: what differs from run to run, and what changes no number. FACTS tell of the description."""


@dataclass(frozen=True)
class Difference:
    """A setting that two sides do not have in common."""

    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def logged(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """What logs tell of the settings."""
    pairs: list[tuple[str, Any]] = []
    for run in runs:
        pairs += [("global_batch_size", run.global_batch_size), ("eval_samples", run.eval_samples)]
        pairs += run.hyperparameters.items()
    return gathered(pairs)


def configured(configs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """What configurations of runs tell, as dotted keys."""
    return gathered(pair for config in configs for pair in flat(config))


def facts(description: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What a description tells of a system."""
    return gathered((key, description[key]) for key in FACTS if description.get(key) not in (None, ""))


def flat(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """The keys of a configuration that count, with dots between their parts, and their values."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        name = f"{above}{key}"
        if name in ASIDE:
            continue
        if isinstance(value, Mapping):
            found += flat(value, f"{name}.")
        else:
            found.append((name, value))
    return found


def gathered(pairs: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Settings with their values, those that are None left out."""
    found: dict[str, dict[str, None]] = {}
    for key, value in pairs:
        if value is not None:
            found.setdefault(one_line(key), {})[_text(value)] = None
    return {key: tuple(sorted(values)) for key, values in found.items()}


def unequal(settings: Values) -> list[str]:
    """The settings that runs of one side do not have in common."""
    return [key for key, values in settings.items() if len(values) > 1]


def differences(a: Values, b: Values) -> tuple[Difference, ...]:
    """In the order of the keys; a key that one side does not tell is no difference."""
    return tuple(Difference(key, a[key], b[key]) for key in sorted(a) if key in b and a[key] != b[key])


def _text(value: Any) -> str:
    """Numbers that are equal are one text."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.10g}"
    return one_line(json.dumps(value, default=str))
