"""metrics.jsonl of a run: one pass over its lines, however many they are, leaves curves, evaluations and totals.

A file that is still being written ends in half a line, and a file of a disk that failed may hold anything: a line that
is no step, no evaluation and no skipped step is counted and told, never guessed at.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.reading.json_text import parse
from podium.reading.run_log import as_number
from podium.run_report.spread import Distribution
from podium.run_report.thinning import Curve, Thinner

MAX_LINE = 1 << 16
"""Bytes; a step's line has about 300."""
MOST_EVALUATIONS = 10_000
GREATEST = 1e100
"""A quantity beyond it counts as not finite: sums of such values have no meaning."""
NOTHING = math.nan


def _padding(line: Mapping[str, Any]) -> Any:
    tokens, slots = as_number(line.get("tokens")), as_number(line.get("slots"))
    return 1 - tokens / slots if tokens is not None and slots and 0 <= tokens <= slots else NOTHING


def _key(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda line: line.get(name, NOTHING)


QUANTITIES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    **{
        name: _key(name)
        for name in (
            "masked_lm_loss",
            "next_sentence_loss",
            "loss",
            "learning_rate",
            "gradient_norm",
            "max_over_mean_tokens",
        )
    },
    "padding_share": _padding,
}
"""Of a step: a number, NOTHING where the step does not tell, anything else where it was not finite."""
_NAMES = tuple(QUANTITIES)
_BALANCE = _NAMES.index("max_over_mean_tokens")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run."""

    samples: float
    """Trained on until then."""
    accuracy: float
    next_sentence_accuracy: float | None
    masked_lm_loss: float | None


@dataclass
class NotFinite:
    """Values of one quantity that were infinite, or no number."""

    count: int
    samples: float
    """Trained on at the first of them."""


@dataclass
class Metrics:
    """What the lines of a run told."""

    steps: int = 0
    samples: float = 0
    """The most that any step tells."""
    tokens: float = 0
    slots: float = 0
    skipped: int = 0
    """Steps that overflow had skipped."""
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """Of QUANTITIES, those that are told at all."""
    balance: Distribution = field(default_factory=Distribution)
    """Of the busiest rank's tokens by the mean rank's, over the steps."""
    evaluations: list[Evaluation] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)
    damaged: int = 0
    first_damaged: int = 0
    """Number of the first damaged line, from 1."""
    why_damaged: str = ""
    backwards: int = 0
    """Number of the first line whose samples are fewer than those of the line before; 0 for none."""
    unfinished: bool = False
    """Whether the last line has no end."""

    @property
    def padding_share(self) -> float | None:
        return 1 - self.tokens / self.slots if self.slots else None


def read_metrics(path: Path) -> Metrics:
    """Read a run's metrics; empty ones where there is no file yet. Raises OSError where it cannot be read."""
    metrics, thinner = Metrics(), Thinner(len(QUANTITIES))
    if not path.is_file():
        return metrics
    before = 0.0
    for number, content in _lines(path, metrics):
        try:
            line = _event(content)
            samples = line["samples"]
            _TAKE[line["event"]](metrics, thinner, line)
        except ValueError as error:
            metrics.damaged += 1
            if metrics.damaged == 1:
                metrics.first_damaged, metrics.why_damaged = number, str(error)
            continue
        if line["event"] == "step":
            if samples < before and not metrics.backwards:
                metrics.backwards = number
            before = samples
    metrics.curves = {name: curve for name, curve in zip(_NAMES, thinner.curves(), strict=True) if curve is not None}
    return metrics


def _lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each finished line; of one that is too long, its beginning."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE)
                if not rest:
                    metrics.unfinished = True
                    return
            yield number, line


def _event(content: bytes) -> dict[str, Any]:
    """The line as a JSON object with a known event and its number of samples. ValueError says why it is none."""
    if len(content) >= MAX_LINE:
        raise ValueError(f"is longer than {MAX_LINE:,} bytes")
    try:
        line, _ = parse(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not isinstance(line, dict):
        raise ValueError("is no JSON object")
    if not isinstance(line.get("event"), str) or line["event"] not in _TAKE:
        raise ValueError(f"has an event that is none of {', '.join(_TAKE)}")
    samples = as_number(line.get("samples"))
    if samples is None or not 0 <= samples <= GREATEST:
        raise ValueError("has no number of samples")
    return {**line, "samples": samples}


def _take_step(metrics: Metrics, thinner: Thinner, line: Mapping[str, Any]) -> None:
    values = [NOTHING] * len(_NAMES)
    for place, (name, quantity) in enumerate(QUANTITIES.items()):
        value = quantity(line)
        if type(value) is not float and (type(value) is not int or abs(value) > GREATEST):
            value = math.inf
        if abs(value) > GREATEST:
            found = metrics.not_finite.setdefault(name, NotFinite(0, line["samples"]))
            found.count += 1
            value = NOTHING
        values[place] = value
    metrics.steps += 1
    metrics.samples = max(metrics.samples, line["samples"])
    if not math.isnan(values[-1]):
        metrics.tokens += as_number(line["tokens"]) or 0
        metrics.slots += as_number(line["slots"]) or 0
    if values[_BALANCE] > 0:
        metrics.balance.add(values[_BALANCE])
    thinner.add(line["samples"], values)


def _take_evaluation(metrics: Metrics, _: Thinner, line: Mapping[str, Any]) -> None:
    accuracy = as_number(line.get("accuracy"))
    if accuracy is None or not 0 <= accuracy <= 1:
        raise ValueError("is an evaluation whose accuracy is no share")
    if len(metrics.evaluations) >= MOST_EVALUATIONS:
        raise ValueError(f"is an evaluation after {MOST_EVALUATIONS:,} of them")
    rest = (as_number(line.get(key)) for key in ("next_sentence_accuracy", "masked_lm_loss"))
    metrics.evaluations.append(Evaluation(line["samples"], accuracy, *rest))


def _take_skipped(metrics: Metrics, _thinner: Thinner, _line: Mapping[str, Any]) -> None:
    metrics.skipped += 1


_TAKE: Mapping[str, Callable[[Metrics, Thinner, Mapping[str, Any]], None]] = {
    "step": _take_step,
    "evaluation": _take_evaluation,
    "skipped": _take_skipped,
}
