"""The HTML page of a comparison, and its charts as SVG files: `python -m podium.comparison.page.page FOLDER PATH…`.

The page has tables of all results, and charts of each benchmark. The SVG files are the page's charts in light colours
on white.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from podium.comparison.cost import Costs
from podium.comparison.load import Comparison, RunCache, load_results
from podium.comparison.page.charts import (
    best_rates_chart,
    curve_targets,
    curves_chart,
    metric_curves,
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
from podium.core.text import one_line
from podium.html.chart import Chart, standalone_svg
from podium.html.page import Facts, Part, Points, Section, Text, render_page
from podium.mllog.benchmarks import find_benchmark
from podium.mllog.run import BERT


@dataclass(frozen=True)
class Limits:
    """How many results the charts of a benchmark have: fewer on a page of several benchmarks, to keep it small."""

    curves: int = 8
    bars: int = 16
    zoomed: bool = True  # whether there is a chart of the curves near the target

    @staticmethod
    def of_page(benchmarks: int) -> "Limits":
        """Return the limits of a page with charts of this number of benchmarks."""
        if benchmarks <= 1:
            return Limits()
        return Limits(max(32 // benchmarks, MIN_CURVES), max(64 // benchmarks, MIN_BARS), zoomed=False)


MIN_CURVES, MIN_BARS = 3, 6  # of a benchmark's charts, on a page of any number of benchmarks
MAX_OWN_RESULTS = 6  # local results in charts of curves and phases: the last ones of the comparison
MAX_RATES = 30
MAX_CHARTED = 32  # benchmarks with charts, those with the most results; there are 24 in the table of benchmarks
MAX_TIMED = 400  # results in the table of phases, for pages of several rounds
NOTES = (
    "A score is the mean of a result's runs without the fastest and the slowest, scaled where they needed fewer "
    "samples than the round's reference allows. Of results without a score, charts show the mean of the runs that "
    "converged.",
    "MFU (model FLOPs utilization) is the rate of floating-point operations that the model needs for its samples, "
    "divided by the dense bf16 peak that the accelerator's maker states. For BERT-large they are those of samples of "
    "the dataset's mean length without padding; for other benchmarks they are published by the model's authors, or "
    "MFU is unknown.",
    "This page is one file. It loads nothing and sends nothing.",
)


def comparison_page(comparison: Comparison, costs: Costs | None = None, title: str | None = None) -> str:
    """Return the page as HTML; equal comparisons give equal bytes. `costs` are those of the results, in their order."""
    results = comparison.results
    benchmarks = _benchmarks_by_name(results)
    large = [result for result in results if result.full_size]
    sections = [Section("Results", _results(comparison, list(benchmarks)))]
    if len(benchmarks) == 1:
        sections += _sections_of_one(results)
    else:
        sections += _sections_of_several(benchmarks)
    scaled = scaling_families(results)
    if scaled:
        sections.append(Section("Scaling", [scaling_table(scaled)]))
    if costs is not None:
        sections.append(Section("Cost", [cost_table(results, costs)]))
    timed = [result for result in large if result.converged]
    if timed:
        charts = phase_times_charts(group_by_family(results), Limits()) if len(benchmarks) == 1 else []
        sections.append(Section("Where the time goes", [*charts, *_time_tables(timed)]))
    anomalies: list[Part] = [Points(comparison.notes)] if comparison.notes else []
    if any(result.anomalies for result in results):
        anomalies.append(anomalies_table(results))
    sections.append(Section("Anomalies", anomalies or [Text(["None."])]))
    return render_page(title or _title(benchmarks), _summary_line(results, list(benchmarks)), sections, NOTES)


def _benchmarks_by_name(results: Sequence[Result]) -> Mapping[str, Sequence[Result]]:
    """Return the results of each benchmark, by its name."""
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: one.benchmark):
        found.setdefault(result.benchmark, []).append(result)
    return found


def _long_name(benchmark: str) -> str:
    """Return the title of a benchmark, such as Llama 3.1 8B pretraining; the name of one that is not in the table."""
    rules = find_benchmark(benchmark)
    return one_line(benchmark) if rules is None else rules.title


def _title(benchmarks: Mapping[str, Sequence[Result]]) -> str:
    names = [_long_name(name) for name in benchmarks]
    return f"MLPerf Training results: {names[0]}" if len(names) == 1 else "MLPerf Training results"


def _sections_of_one(results: Sequence[Result]) -> list[Section]:
    """Return the sections with charts of a page of one benchmark: a section for each kind of chart."""
    families = group_by_family(results)
    if not families.results:
        return []
    large = [result for result in results if result.full_size]
    throughput, convergence = throughput_charts(families), convergence_charts(families, Limits())
    return [
        Section("Time to train", [time_chart(families), *_omitted_results(large)]),
        Section("Throughput", throughput or [Text(["No result has samples to the target."])]),
        Section("Convergence", convergence or [Text(["No log has samples with its evaluations."])]),
    ]


def _sections_of_several(benchmarks: Mapping[str, Sequence[Result]]) -> list[Section]:
    """Return the sections with charts of a page of several benchmarks: a section for each benchmark."""
    families = {name: group_by_family(results) for name, results in benchmarks.items()}
    counts = Counter({name: len(one.results) for name, one in families.items() if one.results})
    charted = {name for name, _ in counts.most_common(MAX_CHARTED)}
    limits = Limits.of_page(len(charted))
    sections = []
    for name, results in benchmarks.items():
        if name not in charted:
            continue
        large = [result for result in results if result.full_size]
        charts = [chart for _, chart in _named_charts(families[name], limits)]
        parts: list[Part] = [Facts(_benchmark_facts(name, large))]
        parts += [replace(chart, title=f"{one_line(name)}: {chart.title}") for chart in charts]
        # gnn and rgat have the same title
        title = _long_name(name) if find_benchmark(name) is None else f"{_long_name(name)} ({one_line(name)})"
        sections.append(Section(title, [*parts, *_omitted_results(large)]))
    return sections


def _named_charts(families: Families, limits: Limits) -> list[tuple[str, Chart]]:
    """Return the charts of a benchmark's results, with the names of their SVG files."""
    named = (
        (("time-to-train",), [time_chart(families)]),
        (("throughput", "throughput-of-families"), throughput_charts(families)),
        (("convergence", "convergence-near-target"), convergence_charts(families, limits)),
        (("time-spent",), phase_times_charts(families, limits)),
    )
    return [pair for names, charts in named for pair in zip(names, charts, strict=False)]


def throughput_charts(families: Families) -> list[Chart]:
    """Return the charts of throughput of all results and of the best of each family; none if no rate is known."""
    if all(rate_of(result) is None for result in families.results):
        return []
    best = [max(results, key=lambda one: (rate_of(one) or 0.0, one.name)) for results in families.published.values()]
    rated = sorted((one for one in best if rate_of(one) is not None), key=lambda one: -(rate_of(one) or 0.0))
    return [throughput_chart(families), *([best_rates_chart(rated[:MAX_RATES])] if rated else [])]


def convergence_charts(families: Families, limits: Limits) -> list[Chart]:
    """Return the curves of each family's fastest result and of local results, in full and near the target."""
    published = [result for result in fastest_of_each_family(families) if metric_curves(result) is not None]
    own = [result for result in families.results if result.own and metric_curves(result) is not None]
    selected = [*own[-MAX_OWN_RESULTS:], *published[: limits.curves]]
    if not selected:
        return []
    zooms = (False, True) if limits.zoomed and curve_targets(selected) else (False,)
    return [curves_chart(selected, zoomed) for zoomed in zooms]


def phase_times_charts(families: Families, limits: Limits) -> list[Chart]:
    """Return the chart of phase times of local results, each family's fastest, and results with evaluation times."""
    own = [result for result in families.results if result.own]
    with_evaluation = [result for result in families.results if result.evaluation_share is not None and not result.own]
    selected = {
        result.name: result for result in [*own[-MAX_OWN_RESULTS:], *fastest_of_each_family(families), *with_evaluation]
    }
    bars = [result for result in selected.values() if phase_times(result) is not None][: limits.bars]
    return [phase_times_chart(bars)] if bars else []


def _time_tables(timed: Sequence[Result]) -> list[Part]:
    """Return the table of phases: of all results, or of the newest round and local ones where they are many."""
    if len(timed) <= MAX_TIMED:
        return [time_table(timed)]
    newest = max((result.round for result in timed if result.round), default=None)
    shown = [result for result in timed if result.own or result.round == newest]
    text = (
        f"Of {len(timed):,} results, those of the newest round and your own are shown; compare fewer rounds for others."
    )
    return [Text([text]), time_table(shown)]


def _summary_line(results: Sequence[Result], benchmarks: Sequence[str]) -> str:
    rounds = sorted({result.round for result in results if result.round})
    own = sum(result.own for result in results)
    counts = [f"{len(results) - own:,} published in {', '.join(rounds)}"] if rounds else []
    counts += [f"{own:,} of your own"] if own else []
    what = _long_name(benchmarks[0]) if len(benchmarks) == 1 else f"{len(benchmarks):,} benchmarks"
    return f"Results of MLPerf Training, {what}: {' and '.join(counts) or 'none were found'}."


def _results(comparison: Comparison, benchmarks: Sequence[str]) -> list[Part]:
    results = comparison.results
    large = [result for result in results if result.full_size]
    others = [result for result in results if not result.full_size]
    parts: list[Part] = []
    if large:
        only = benchmarks[0] if len(benchmarks) == 1 else None
        parts.append(Facts(_facts(large) if only is None else _benchmark_facts(only, large)))
    own = describe_own_results(results, comparison.others)
    if own:
        parts.append(Points([sentence[0].upper() + sentence[1:] + "." for sentence in own]))
    if large:
        name = "All results" if len(benchmarks) > 1 else "BERT-large" if benchmarks[0] == BERT else benchmarks[0]
        parts.append(results_table(one_line(name), large))
    if others:
        caption = "These runs did not train BERT-large: they are not compared with the other results or in charts."
        parts.append(results_table("Other sizes of BERT", others, caption))
    return parts or [Text(["There are no results."])]


def _facts(large: Sequence[Result]) -> list[tuple[str, str]]:
    return [
        ("Results", f"{len(large):,}"),
        ("Benchmarks", f"{len({result.benchmark for result in large}):,}"),
        ("Submitters", f"{len({result.submitter for result in large if not result.own}):,}"),
        ("Submitted again", f"{sum(result.repeats is not None for result in large):,}"),
    ]


def _benchmark_facts(name: str, large: Sequence[Result]) -> list[tuple[str, str]]:
    """Return the counts, rules and fastest result of one benchmark."""
    rules = find_benchmark(name)
    facts = [
        ("Results", f"{len(large):,}"),
        ("Submitters", f"{len({result.submitter for result in large if not result.own}):,}"),
        ("Submitted again", f"{sum(result.repeats is not None for result in large):,}"),
    ]
    if rules is None:
        facts.append(("Target and score", "not known"))
    else:
        targets = {str(target): None for result in large for run in result.runs for target in run.targets}
        facts.append(("Runs of a score", f"{rules.runs}, without {rules.dropped} at each end"))
        facts.append(("Sample", rules.sample))
        facts += [("Target", ", ".join(targets))] if targets else []
    scored = [
        (result.score_minutes_scaled, result.name, result.short_name)
        for result in large
        if result.score_minutes_scaled is not None and result.division != "open" and not result.own
    ]
    if scored:
        minutes, fastest, _ = min(scored)
        facts.append(("Fastest, closed division", f"{format_minutes(minutes)}: {fastest}"))
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
    """Return the charts that the comparison has results for, by the name of their SVG file.

    Those of several benchmarks begin with the benchmark's name; a benchmark that is not in the table has none then.
    """
    benchmarks = _benchmarks_by_name(comparison.results)
    found: dict[str, Chart] = {}
    for name, results in benchmarks.items():
        families = group_by_family(results)
        if not families.results or (len(benchmarks) > 1 and find_benchmark(name) is None):
            continue
        prefix = f"{name}-" if len(benchmarks) > 1 else ""
        found.update({f"{prefix}{file}": chart for file, chart in _named_charts(families, Limits())})
    return found


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
