"""The HTML page of a comparison, and its charts as SVG files: `python -m podium.comparison.page.page FOLDER PATH…`.

The page has tables of all results, and charts of the results of BERT-large. The SVG files are the page's charts in
light colours on white.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bert.rules import RUNS
from podium.comparison.cost import Costs
from podium.comparison.load import Comparison, RunCache, load_results
from podium.comparison.page.charts import (
    accuracy_curves,
    best_rates_chart,
    curves_chart,
    phase_times,
    phase_times_chart,
    throughput_chart,
    time_chart,
)
from podium.comparison.page.families import Families, fastest_of_each_family, group_by_family, rate_of, size_of
from podium.comparison.page.labels import format_minutes
from podium.comparison.page.tables import anomalies_table, cost_table, results_table, scaling_table, time_table
from podium.comparison.result import Result
from podium.comparison.table import describe_own_results, scaling_families
from podium.core.console import print_message
from podium.core.errors import PodiumError
from podium.core.files import make_folder, user_cache_folder, write_atomically
from podium.html.chart import Chart, standalone_svg
from podium.html.page import Facts, Part, Points, Section, Text, render_page

MAX_CURVES = 8
MAX_OWN_RESULTS = 6  # local results in charts of accuracy and phases: the last ones of the comparison
MAX_BARS = 16
MAX_RATES = 30
NOTES = (
    f"A score is the mean of {RUNS} runs without the fastest and the slowest, scaled where they needed fewer samples "
    "than the round's reference allows. Of results without a score, charts show the mean of the runs that converged.",
    "MFU (model FLOPs utilization) is the rate of floating-point operations that BERT-large needs for samples of the "
    "dataset's mean length without padding, divided by the dense bf16 peak that the accelerator's maker states.",
    "This page is one file. It loads nothing and sends nothing.",
)


def comparison_page(comparison: Comparison, costs: Costs | None = None, title: str = "MLPerf BERT results") -> str:
    """Return the page as HTML; equal comparisons give equal bytes. `costs` are those of the results, in their order."""
    families = group_by_family(comparison.results)
    large = [result for result in comparison.results if result.full_size]
    sections = [Section("Results", _results(comparison))]
    if families.results:
        sections += [
            Section("Time to train", [time_chart(families), *_omitted_results(large)]),
            Section("Throughput", throughput_charts(families) or [Text(["No result has samples to the target."])]),
            Section("Accuracy", accuracy_charts(families) or [Text(["No log has samples with its accuracies."])]),
        ]
    scaled = scaling_families(comparison.results)
    if scaled:
        sections.append(Section("Scaling", [scaling_table(scaled)]))
    if costs is not None:
        sections.append(Section("Cost", [cost_table(comparison.results, costs)]))
    if any(result.converged for result in large):
        sections.append(Section("Where the time goes", [*phase_times_charts(families), time_table(large)]))
    anomalies: list[Part] = [Points(comparison.notes)] if comparison.notes else []
    if any(result.anomalies for result in comparison.results):
        anomalies.append(anomalies_table(comparison.results))
    sections.append(Section("Anomalies", anomalies or [Text(["None."])]))
    return render_page(title, _summary_line(comparison.results), sections, NOTES)


def throughput_charts(families: Families) -> list[Chart]:
    """Return the charts of throughput of all results and of the best of each family; none if no rate is known."""
    if all(rate_of(result) is None for result in families.results):
        return []
    best = [max(results, key=lambda one: (rate_of(one) or 0.0, one.name)) for results in families.published.values()]
    rated = sorted((one for one in best if rate_of(one) is not None), key=lambda one: -(rate_of(one) or 0.0))
    return [throughput_chart(families), *([best_rates_chart(rated[:MAX_RATES])] if rated else [])]


def accuracy_charts(families: Families) -> list[Chart]:
    """Return the accuracy curves of each family's fastest result and of local results, in full and near the target."""
    published = [result for result in fastest_of_each_family(families) if accuracy_curves(result) is not None]
    own = [result for result in families.results if result.own and accuracy_curves(result) is not None]
    selected = [*own[-MAX_OWN_RESULTS:], *published[:MAX_CURVES]]
    return [curves_chart(selected, zoomed) for zoomed in (False, True)] if selected else []


def phase_times_charts(families: Families) -> list[Chart]:
    """Return the chart of phase times of local results, each family's fastest, and results with evaluation times."""
    own = [result for result in families.results if result.own]
    with_evaluation = [result for result in families.results if result.evaluation_share is not None and not result.own]
    selected = {
        result.name: result for result in [*own[-MAX_OWN_RESULTS:], *fastest_of_each_family(families), *with_evaluation]
    }
    bars = [result for result in selected.values() if phase_times(result) is not None][:MAX_BARS]
    return [phase_times_chart(bars)] if bars else []


def _summary_line(results: Sequence[Result]) -> str:
    rounds = sorted({result.round for result in results if result.round})
    own = sum(result.own for result in results)
    counts = [f"{len(results) - own:,} published in {', '.join(rounds)}"] if rounds else []
    counts += [f"{own:,} of your own"] if own else []
    return f"Results of MLPerf Training's BERT: {' and '.join(counts) or 'none were found'}."


def _results(comparison: Comparison) -> list[Part]:
    results = comparison.results
    large = [result for result in results if result.full_size]
    others = [result for result in results if not result.full_size]
    parts: list[Part] = [Facts(_facts(large))] if large else []
    own = describe_own_results(results, comparison.others)
    if own:
        parts.append(Points([sentence[0].upper() + sentence[1:] + "." for sentence in own]))
    if large:
        parts.append(results_table("BERT-large", large))
    if others:
        caption = "These runs did not train BERT-large: they are not compared with the other results or in charts."
        parts.append(results_table("Other sizes of BERT", others, caption))
    return parts or [Text(["There are no results."])]


def _facts(large: Sequence[Result]) -> list[tuple[str, str]]:
    facts = [
        ("Results", f"{len(large):,}"),
        ("Submitters", f"{len({result.submitter for result in large if not result.own}):,}"),
        ("Submitted again", f"{sum(result.repeats is not None for result in large):,}"),
    ]
    scored = [
        (result.score_minutes_scaled, result.name, result.short_name)
        for result in large
        if result.score_minutes_scaled is not None and result.division != "open" and not result.own
    ]
    if scored:
        minutes, _, name = min(scored)
        facts.append(("Fastest, closed division", f"{format_minutes(minutes)}: {name}"))
    return facts


def _omitted_results(large: Sequence[Result]) -> list[Part]:
    without_size = sum(result.minutes is not None and not size_of(result) for result in large)
    without_time = sum(result.minutes is None for result in large)
    counts = (
        (without_size, "have an unknown number of accelerators"),
        (without_time, "have no run that converged"),
    )
    texts = [f"{count:,} result(s) {why}: they are only in the table." for count, why in counts if count]
    return [Text(texts)] if texts else []


def charts_by_name(comparison: Comparison) -> Mapping[str, Chart]:
    """Return the charts that the comparison has results for, by the name of their SVG file."""
    families = group_by_family(comparison.results)
    if not families.results:
        return {}
    named = (
        (("time-to-train",), [time_chart(families)]),
        (("throughput", "throughput-of-families"), throughput_charts(families)),
        (("accuracy", "accuracy-near-target"), accuracy_charts(families)),
        (("time-spent",), phase_times_charts(families)),
    )
    return {name: chart for names, charts in named for name, chart in zip(names, charts, strict=False)}


def write_svg_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write NAME.svg for each chart and return the paths. Raises WorkError if a file cannot be written."""
    make_folder(folder)
    written = []
    for name, chart in charts_by_name(comparison).items():
        path = folder / f"{name}.svg"
        write_atomically(path, standalone_svg(chart))
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m podium.comparison.page.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the SVG files")
    parser.add_argument("paths", type=Path, nargs="+", help="results, as for podium compare")
    arguments = parser.parse_args()
    try:
        for path in write_svg_files(load_results(arguments.paths, RunCache(user_cache_folder())), arguments.folder):
            print(path)
    except PodiumError as error:
        print_message(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
