"""`podium predict`: predicts a run's time-to-train and its parts, as a table, as JSON and as SVG.

Runs in this process for any number of ranks, without torch and without a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from podium.comparison.cost import Prices, billed_seconds, format_money, hourly_price, read_prices
from podium.config.schema import RunConfig
from podium.core.console import waiting
from podium.core.errors import UsageError, attempt
from podium.planning.accelerators import find_accelerator
from podium.planning.costs import costs_path, load_costs
from podium.planning.hardware import require_hardware
from podium.planning.prediction.constants import Constants, load_constants
from podium.planning.prediction.from_config import plan_from_config
from podium.planning.prediction.outside import find_outlying_scores
from podium.planning.prediction.plan import Plan
from podium.planning.prediction.predict import Prediction
from podium.planning.prediction.predict import predict as predict_plan
from podium.planning.prediction.scaling import predict_scaling, published_points
from podium.run.data import with_data
from podium.run.progress import Progress
from podium.run.records import differing_settings, runs_of_system
from podium.run.run_set import RUNS

BAR_WIDTH = 40  # characters of the longest bar
MAX_GPUS = 1 << 17


def predict_run(
    config: RunConfig,
    scale: str | None,
    progress: Progress,
    prices: Path | None = None,
    locate: Callable[[tuple[str, ...]], str] | None = None,
) -> dict[str, Any]:
    """Return the prediction as the JSON object of `podium predict --json`.

    `scale` is a comma-separated list of GPU counts, `prices` a file as for `podium compare --cost`. `locate`
    returns where a key is set, for messages. Prepares the embedded text if necessary, since its sample lengths are
    needed, but no other text. Raises UsageError or WorkError.
    """
    require_hardware(config, locate)  # as `podium run` does
    gpus = [] if scale is None else _parse_gpu_counts(scale)
    if scale is not None and config.target_accuracy is None:
        raise UsageError(
            f"--scale: {config.system} has target_accuracy null, and the curve shows times to a target; leave out "
            "--scale, or give --set target_accuracy=0.72"
        )
    tariff = None if prices is None else find_tariff(config, prices)
    if config.data.kind == "embedded" and config.size == "tiny":
        config = with_data(config, progress.note)
    with waiting("Predicting the time of a run"):
        predicted = _predict(config, gpus, locate)
    if tariff is not None:
        predicted["cost"] = predicted_cost(tariff, predicted)
    return predicted


def _predict(config: RunConfig, gpus: list[int], locate: Callable[[tuple[str, ...]], str] | None) -> dict[str, Any]:
    costs, constants = costs_path(config.system), load_constants()
    plan = plan_from_config(config, costs if costs.is_file() else None, constants, locate)
    predicted = _as_json(predict_plan(plan, constants)) | {
        "ranks": plan.machine.ranks,
        "processor": plan.machine.processor,
        "global_batch_size": plan.global_batch_size,
        "balancing": plan.strategy,
        "code": plan.code,
        "step_costs": plan.costs_origin and plan.costs_origin.as_json(),
        "calibration": _calibration(config, plan, constants),
        "scale": _predict_scale(plan, gpus, constants) if gpus else [],
        "published": published_points() if gpus else [],
    }
    predicted["own_runs"] = compare_with_runs(config, predicted["sequences_per_second"])
    return predicted


CPU_CALIBRATION_RUNS = 10  # behind `cpu_run_over_bench` in constants.json
MAX_COMPARED_RUNS, MAX_READ_RUNS = 10, 40  # newest runs of a system; reading a configuration takes some milliseconds


def _calibration(config: RunConfig, plan: Plan, constants: Constants) -> dict[str, Any] | None:
    """Return how measured steps were turned into those of a run; None for steps that were not measured."""
    if plan.costs_origin is None:
        return None
    fit_error, on_cpu = load_costs(plan.costs_origin.path)[0].median_relative_error, config.launch.device == "cpu"
    factor, runs = (constants.cpu_run_over_bench, CPU_CALIBRATION_RUNS) if on_cpu else (1.0, 0)
    how = (
        f"times {factor:g}, the ratio of a run's steps to those of `podium bench` in {runs} runs on a laptop"
        if runs
        else "as measured, not compared with runs"
    )
    statement = f"calibration: measured steps {how}; median error of the fitted costs {fit_error:.1%}"
    return {"factor": factor, "runs": runs, "fit_median_relative_error": fit_error, "statement": statement}


def compare_with_runs(config: RunConfig, predicted_rate: float) -> dict[str, Any] | None:
    """Return the ratio of the predicted rate to that of the system's newest runs with these settings; None without any.

    Runs that were resumed, restarted or profiled, or that missed their target, do not count. A ratio of 1.5 means that
    runs took 1.5 times as long as the prediction for the same number of samples.
    """
    ratios: list[float] = []
    for record in runs_of_system(RUNS / config.system)[: -MAX_READ_RUNS - 1 : -1]:
        rate = record.summary_number("sequences_per_second")
        if not rate or rate < 0 or not record.configured or record.folder.was_restarted or record.folder.was_profiled:
            continue
        if config.target_accuracy is not None and not record.summary_flag("reached_target"):
            continue
        ran, _ = attempt(getattr, record, "config")  # None: written by another version
        if ran is not None and not differing_settings(ran, config):
            ratios.append(predicted_rate / rate)
        if len(ratios) == MAX_COMPARED_RUNS:
            break
    if not ratios:
        return None
    middle, count = median(ratios), len(ratios)
    statement = (
        f"{count} run{'s' if count > 1 else ''} of this configuration in runs/{config.system} took {middle:.2f} times "
        f"as long as predicted for {'their' if count > 1 else 'its'} samples"
        + (f" ({min(ratios):.2f} to {max(ratios):.2f})" if count > 1 else "")
    )
    return {"runs": count, "median": middle, "min": min(ratios), "max": max(ratios), "statement": statement}


def _as_json(prediction: Prediction) -> dict[str, Any]:
    document = {key: value for key, value in asdict(prediction).items() if key != "unsure"}
    return document | {
        "warnings": list(prediction.unsure),
        "sequences_per_second": prediction.sequences_per_second,
        "interval": asdict(prediction.interval) | {"statement": prediction.interval.statement},
    }


@dataclass(frozen=True)
class PredictedSystem:
    """The properties of a configured system that entries of a prices file are matched with."""

    accelerator: str | None
    family: str | None
    system: str | None
    submitter: str | None
    accelerators: int | None
    nodes: int | None
    round: str | None = None  # matches `own` in a prices file


@dataclass(frozen=True)
class Tariff:
    """The prices file, and what it makes of an hour of the system."""

    prices: Prices
    per_hour: float


def find_tariff(config: RunConfig, path: Path) -> Tariff:
    """Read a prices file and find the price of the system. UsageError if none fits."""
    prices, description, launch = read_prices(path), config.description, config.launch
    name = description.accelerator_model_name
    kind, on_cpu = find_accelerator(name), launch.device == "cpu"
    system = PredictedSystem(
        accelerator=None if on_cpu else name,
        family=None if on_cpu or kind is None else kind.name,
        system=config.system,
        submitter=description.submitter,
        accelerators=0 if on_cpu else launch.ranks,
        nodes=launch.nodes,
    )
    entry = prices.entry_for(system)
    if entry is None:
        raise UsageError(
            f"{path}: no entry of prices fits {config.system} ({name}); add one, such as system: {config.system}"
        )
    per_hour = hourly_price(system, prices, entry)
    if isinstance(per_hour, str):  # the reason why the entry's unit cannot be applied to this system
        raise UsageError(f"{path}: {per_hour}; use another unit for {config.system}")
    return Tariff(prices, per_hour)


def predicted_cost(tariff: Tariff, predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost of the predicted run and of both ends of its interval."""
    prices, per_hour = tariff.prices, tariff.per_hour

    def cost(seconds: float) -> float:
        return per_hour * billed_seconds(seconds, prices) / 3600

    return {
        "currency": prices.currency,
        "cost_to_train": cost(predicted["seconds"]),
        "low": cost(predicted["low"]),
        "high": cost(predicted["high"]),
        "cost_per_hour": per_hour,
        "without_initialisation": prices.initialisation,  # the time before run_start is billed, but not predicted
    }


def _predict_scale(plan: Plan, gpus: list[int], constants: Constants) -> list[dict[str, Any]]:
    return [
        {
            "gpus": scaled.gpus,
            "global_batch_size": scaled.global_batch_size,
            "accumulation_steps": scaled.accumulation_steps,
            **_as_json(scaled.prediction),
            "outside": [asdict(score) for score in find_outlying_scores(scaled.plan, scaled.prediction, constants)],
        }
        for scaled in predict_scaling(plan, gpus, constants)
    ]


def _parse_gpu_counts(text: str) -> list[int]:
    """Parse comma-separated GPU counts and return them sorted, without duplicates. UsageError for anything else."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > MAX_GPUS:
        raise UsageError(f"--scale: found {text}, allowed are numbers of GPUs up to {MAX_GPUS:,}, such as 8,64,1024")
    return counts


def print_prediction(console: Console, config: RunConfig, predicted: Mapping[str, Any]) -> None:
    """Print a table of the time and its parts, the uncertainties, and with --scale the curve over GPU counts."""
    table = Table(title=f"{config.system}, recipe {config.recipe}: predicted", show_header=False)
    table.add_column("what")
    table.add_column("figure", justify="right")
    ranks = f"{predicted['global_batch_size']:,} on {predicted['ranks']:,} rank{'s' if predicted['ranks'] > 1 else ''}"
    table.add_row(
        "as the best published code" if predicted["code"] == "other" else "time-to-train",
        format_duration(predicted["seconds"]),
    )
    table.add_row("  between", f"{format_duration(predicted['low'])} and {format_duration(predicted['high'])}")
    if predicted["as_counted"] is not None:
        table.add_row("  Podium's step, estimated, not measured", format_duration(predicted["as_counted"]))
    if cost := predicted.get("cost"):
        table.add_row(f"cost, {cost['currency']}", format_money(cost["cost_to_train"]))
        table.add_row("  between", f"{format_money(cost['low'])} and {format_money(cost['high'])}")
    table.add_row("samples", f"{predicted['samples_to_target']:,.0f}")
    table.add_row("sequences/s", f"{predicted['sequences_per_second']:,.1f}")
    table.add_row("a step", f"{predicted['step_milliseconds']:,.1f} ms")
    table.add_row("global batch", ranks, end_section=True)
    split = dict(predicted["split"])
    if predicted["code"] == "measured":  # the optimizer's time is only estimated; a measured step includes it
        split = {"compute and optimizer": split.pop("compute") + split.pop("optimizer"), **split}
    for part, seconds in split.items():
        table.add_row(part, f"{format_duration(seconds)}, {seconds / predicted['seconds']:5.1%}")
    console.print(table)
    for key in ("step_costs", "calibration", "own_runs"):
        if predicted.get(key):
            console.print(predicted[key]["statement"], markup=False, highlight=False)
    console.print(predicted["interval"]["statement"], markup=False, highlight=False)
    if predicted.get("cost", {}).get("without_initialisation"):
        console.print("the time before run_start is billed, but not predicted: the cost is without it", highlight=False)
    for sentence in predicted["warnings"]:
        console.print(f"unsure: {sentence}", markup=False, highlight=False)
    if predicted["scale"]:
        console.print(_scale_table(predicted))
        for row in predicted["scale"]:
            for score in row["outside"]:
                took = f"* {row['gpus']:,} GPUs: {score['system']} took {format_duration(score['seconds'])}"
                interval = f"{format_duration(row['low'])} to {format_duration(row['high'])}"
                line = f"{took}, {score['side']} the interval {interval}: {score['why']}"
                console.print(line, markup=False, highlight=False)
        more = dict.fromkeys(sentence for row in predicted["scale"] for sentence in row["warnings"])
        for sentence in (s for s in more if s not in predicted["warnings"]):
            console.print(f"unsure of the curve: {sentence}", markup=False, highlight=False)


def _scale_table(predicted: Mapping[str, Any]) -> Table:
    rows = predicted["scale"]
    longest = max(row["seconds"] for row in rows)
    accumulates = any(row["accumulation_steps"] > 1 for row in rows)
    notes = ["in N parts: gradient accumulation, with N micro-batches a step"] if accumulates else []
    if any(row["outside"] for row in rows):
        notes.append("*: a published score is outside the interval, for the reasons below")
    table = Table(
        title="Predicted at the best batch size, and times of published A100 systems",
        caption="\n".join(notes) or None,
    )
    for heading in ("GPUs", "batch", "predicted", "between", "exposed communication", "published"):
        table.add_column(heading, justify="right")
    table.add_column("", justify="left")
    for row in rows:
        times = [point["seconds"] for point in predicted["published"] if point["gpus"] == row["gpus"]]
        if len(times) > 1:
            published = f"{format_duration(min(times))} to {format_duration(max(times))}"
        else:
            published = "".join(map(format_duration, times)) or "–"
        parts = row["accumulation_steps"]
        table.add_row(
            f"{row['gpus']:,}",
            f"{row['global_batch_size']:,}" + (f" in {parts} parts" if parts > 1 else ""),
            format_duration(row["seconds"]),
            f"{format_duration(row['low'])} to {format_duration(row['high'])}",
            f"{row['split']['communication'] / row['seconds']:.0%}",
            published + (" *" if row["outside"] else ""),
            "█" * max(1, round(BAR_WIDTH * row["seconds"] / longest)),
        )
    return table


def format_duration(seconds: float) -> str:
    """Format a duration with about three digits, such as 12.3 s, 16.6 min, 3.4 h or 12.1 days."""
    for limit, unit, name in (
        (120, 1, "s"),
        (2 * 3600, 60, "min"),
        (48 * 3600, 3600, "h"),
        (float("inf"), 86_400, "days"),
    ):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}" if seconds / unit < 100 else f"{seconds / unit:.0f} {name}"
    raise ValueError(f"{seconds} seconds is not a duration")


def check_plot(scale: str | None, plot: Path | None) -> None:
    """UsageError for --plot without --scale, or with a file that is not SVG."""
    if plot is not None and scale is None:
        raise UsageError("--plot: needs --scale, whose curve it draws; add it, such as --scale 8,64,1024")
    if plot is not None and plot.suffix != ".svg":
        raise UsageError(f"--plot: found {plot.name}, allowed are names that end in .svg")


CURVE, FITTED, OTHERS = "predicted", "published-fitted", "published"  # ids in the SVG


def plot_scale(predicted: Mapping[str, Any], name: str, path: Path) -> None:
    """Draw `scale` and `published` of a prediction as SVG. WorkError if the file cannot be written."""
    from podium.html.chart import svg_axes  # here, since matplotlib takes long to import

    rows = predicted["scale"]
    with svg_axes(path, 8, 5) as axes:
        gpus = [row["gpus"] for row in rows]
        low, high = ([row[key] for row in rows] for key in ("low", "high"))
        axes.fill_between(gpus, low, high, color="#1f77b4", alpha=0.2)
        axes.plot(gpus, [row["seconds"] for row in rows], "o-", color="#1f77b4", label=f"{name}, predicted", gid=CURVE)
        for fitted, group_id, label, face in (
            (True, FITTED, "A100, published, fitted on", "#d62728"),
            (False, OTHERS, "A100, published, not fitted on", "none"),
        ):
            points = [point for point in predicted["published"] if point["fitted"] == fitted]
            coordinates = [point["gpus"] for point in points], [point["seconds"] for point in points]
            axes.scatter(*coordinates, s=18, facecolors=face, edgecolors="#d62728", label=label, gid=group_id)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axis.set_minor_formatter("")
        axes.set_xlabel("GPUs")
        axes.set_ylabel("seconds to train")
        axes.set_title("Time to train BERT by number of GPUs")
        axes.legend()
