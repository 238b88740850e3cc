"""Results as rows of plain values, for programs: JSON and CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from podium.comparison.efficiency import families
from podium.comparison.result import Result

FORMULA = ("=", "+", "-", "@", "\t")
"""What a text begins with that a spreadsheet takes for a formula."""


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object a result. What is not known is None; minutes and seconds are not rounded."""
    scaled = {id(size.result): size for family in families(results) for size in family}
    return [
        {
            "round": one.round,
            "submitter": one.submitter,
            "system": one.system,
            "division": one.division,
            "score_minutes": one.score_minutes,
            "score_minutes_scaled": one.score_minutes_scaled,
            "scaling_factor": one.scaling_factor,
            "runs_seconds": [run.seconds for run in one.runs],
            "runs_converged": [run.converged for run in one.runs],
            "runs_samples_to_target": [_whole(run.samples) for run in one.runs],
            "global_batch_size": one.global_batch_size,
            "nodes": one.nodes,
            "accelerators": one.accelerators,
            "accelerator": one.accelerator,
            "accelerator_family": one.family,
            "samples_to_target": one.samples_to_target,
            "samples_trained": one.samples_trained,
            "sequences_per_second": one.sequences_per_second,
            "sequences_per_second_without_evaluation": one.training_sequences_per_second,
            "sequences_per_second_between_evaluations": one.steady_sequences_per_second,
            "sequences_per_second_per_accelerator": one.per_accelerator(one.sequences_per_second),
            "sequences_per_second_per_node": one.per_node(one.sequences_per_second),
            "mfu": one.utilization,
            "evaluation_share": one.evaluation_share,
            "startup_seconds": one.startup_seconds,
            "spread": None if one.spread is None else one.spread.relative,
            "spread_from_samples": None if one.spread is None else one.spread.samples_share,
            "scaling_efficiency": scaled[id(one)].throughput if id(one) in scaled else None,
            "scaling_efficiency_time": scaled[id(one)].time if id(one) in scaled else None,
            "repeats": one.repeats,
            "full_size": one.full_size,
            "framework": one.description.get("framework"),
            "source": one.source,
            "oddities": list(one.oddities),
        }
        for one in results
    ]


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """Rows with a heading. Lists are joined by blanks; a text is one line, and no formula to a spreadsheet."""
    out = io.StringIO()
    if found:
        writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in found)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        joined = "; " if value and isinstance(value[0], str) else " "
        value = joined.join("" if item is None else str(item) for item in value)
    if isinstance(value, str):
        line = " ".join(value.splitlines())
        return f"'{line}" if line.startswith(FORMULA) else line
    return "" if value is None else value


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else value
