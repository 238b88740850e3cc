"""How the figures of a run are called and written, alike in the terminal and on the page."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podium.run_report.run import ReportedRun, Setting
from podium.run_report.spread import Spread


@dataclass(frozen=True)
class Figure:
    """One row of a table of figures."""

    key: str
    """In summary.json."""
    title: str
    column: str
    """A shorter title."""
    write: Callable[[float], str]

    @property
    def help(self) -> str:
        """What the shorter title leaves unsaid."""
        return self.title if self.title != self.column else ""


def _digits(digits: int, unit: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}{unit}" if abs(value) < 1e15 else f"{value:.3e}{unit}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if abs(value) < 1e6 else f"{value:.3e}"


def _flops(value: float) -> str:
    return _digits(1, " GFLOP/s")(1e3 * value) if abs(value) < 1 else _digits(1, " TFLOP/s")(value)


FIGURES = (
    Figure("seconds", "time", "time", _digits(2, " s")),
    Figure("samples", "samples", "samples", _digits(0)),
    Figure("accuracy", "masked-LM accuracy", "accuracy", _digits(4)),
    Figure("next_sentence_accuracy", "next-sentence accuracy", "next sentence", _digits(3)),
    Figure("sequences_per_second", "sequences/s", "seq./s", _digits(1)),
    Figure("useful_tflops", "useful FLOP/s", "useful", _flops),
    Figure("share_of_peak", "of the matmul peak", "of peak", _percent),
    Figure("padding_share", "padding share", "padding", _percent),
    Figure("max_over_mean_tokens", "balance (max/mean tokens)", "max/mean", _digits(4)),
    Figure("evaluation_share", "evaluation share", "evaluation", _percent),
)
"""In the order of the tables."""

SETTINGS: Mapping[str, str] = {
    "system": "system",
    "recipe": "recipe",
    "size": "size",
    "description.division": "division",
    "launch.device": "device",
    "launch.nodes": "nodes",
    "launch.processes_per_node": "processes a node",
    "global_batch_size": "global batch",
    "gradient_accumulation_steps": "accumulation steps",
    "optimizer.algorithm": "optimizer",
    "optimizer.learning_rate": "learning rate",
    "optimizer.warmup_steps": "warm-up steps",
    "optimizer.decay_steps": "decay steps",
    "optimizer.beta1": "beta 1",
    "optimizer.beta2": "beta 2",
    "optimizer.weight_decay": "weight decay",
    "clipping.max_norm": "clipped to norm",
    "precision": "precision",
    "balancing": "balancing",
    "attention": "attention",
    "dropout": "dropout",
    "target_accuracy": "target accuracy",
    "max_samples": "samples at most",
    "seed": "seed",
}
"""Settings that matter, by their keys in the resolved configuration."""


def written(value: Setting) -> str:
    """A setting as it would be typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return str(value)


def settings_of(run: ReportedRun) -> dict[str, Setting]:
    """Those of SETTINGS that are known, with the precision that `auto` came to."""
    found = {key: run.settings[key] for key in SETTINGS if key in run.settings}
    if found.get("precision") == "auto" and run.precision not in (None, "auto"):
        found["precision"] = f"auto: {run.precision}"
    return found


def with_spread(figure: Figure, over: Spread) -> str:
    """Mean ± standard deviation, with their unit once; the mean alone where there is no deviation to tell."""
    mean = figure.write(over.mean)
    if over.sd is None:
        return mean
    sd = figure.write(over.sd)
    value, _, unit = mean.partition(" ")
    return f"{value if unit and sd.endswith(f' {unit}') else mean} ± {sd}"
