"""The HTML page of a comparison: charts and filters first, then the tables."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from podium.comparison.cost import Costs
from podium.comparison.load import Comparison
from podium.comparison.page.charts import (
    OWN_SERIES,
    Records,
    best_rates_chart,
    curves_chart,
    fastest_chart,
    metric_curves,
    phase_times,
    phase_times_chart,
    throughput_chart,
    time_chart,
)
from podium.comparison.page.families import (
    Families,
    family_of,
    fastest_of_each_family,
    group_by_family,
    rate_of,
    size_of,
)
from podium.comparison.page.labels import format_minutes, tooltip
from podium.comparison.page.tables import (
    anomalies_table,
    cosmetic_table,
    cost_table,
    results_table,
    scaling_table,
    time_table,
)
from podium.comparison.result import Result
from podium.comparison.table import describe_own_results, scaling_families
from podium.core.text import one_line
from podium.html.page import Facts, Part, Points, Section, Text, render_page
from podium.html.plotly import Chart, Facet, Filters, chart_text
from podium.mllog.benchmarks import find_benchmark
from podium.mllog.run import BERT

MAX_CURVES = 16  # results of a benchmark with a curve
MAX_OWN_RESULTS = 6  # local results with a curve: the last ones of the comparison
MAX_CHARTED = 32  # benchmarks with charts, those with the most results; there are 24 in the table of benchmarks
NOTES = (
    "A score is the mean of a result's runs without the fastest and the slowest, scaled where they needed fewer "
    "samples than the round's reference allows. Of results without a score, charts show the mean of the runs that "
    "succeeded.",
    "MFU (model FLOPs utilization) is the rate of floating-point operations that the model needs for its samples, "
    "divided by the dense bf16 peak that the accelerator's maker states. For BERT-large they are those of samples of "
    "the dataset's mean length without padding; for other benchmarks they are published by the model's authors, or "
    "MFU is unknown.",
    "This page is one file. It loads nothing and sends nothing.",
)


def comparison_page(comparison: Comparison, costs: Costs | None = None, title: str | None = None) -> str:
    """Return the page as HTML; equal comparisons give equal bytes. `costs` are those of the results, in their order."""
    results = comparison.results
    records = {id(result): number for number, result in enumerate(results)}
    benchmarks = _benchmarks_by_name(results)
    families = {name: group_by_family(one) for name, one in benchmarks.items()}
    counts = Counter({name: len(one.results) for name, one in families.items() if one.results})
    charted = {name for name, _ in counts.most_common(MAX_CHARTED)}
    own = describe_own_results(results, comparison.others)
    sections = [Section("Your own results", [Points([_sentence(one) for one in own])])] if own else []
    sections += [
        Section(_section_title(name), _benchmark_parts(name, benchmarks[name], families[name], records))
        for name in benchmarks
        if name in charted
    ]
    sections.append(Section("Results", _results(results, list(benchmarks), records)))
    scaled = scaling_families(results)
    if scaled:
        sections.append(Section("Scaling", [scaling_table(scaled, records)]))
    if costs is not None:
        sections.append(Section("Cost", [cost_table(results, costs, records)]))
    timed = [result for result in results if result.comparable and result.timed]
    if timed:
        sections.append(Section("Where the time goes", [time_table(timed, records)]))
    anomalies: list[Part] = [Points(comparison.notes)] if comparison.notes else []
    tables = (anomalies_table(results, records), cosmetic_table(results, records))
    anomalies += [table for table in tables if table.rows]
    sections.append(Section("Anomalies", anomalies or [Text(["None."])]))
    largest = counts.most_common(1)[0][0] if counts else None
    return render_page(
        title or _title(benchmarks),
        _summary_line(results, list(benchmarks)),
        sections,
        NOTES,
        _filters(results, largest) if results else None,
    )


def _sentence(fragment: str) -> str:
    return f"{fragment[0].upper()}{fragment[1:]}."


def _filters(results: Sequence[Result], benchmark: str | None) -> Filters:
    """Return the filters of the page, which shows one benchmark at first."""
    facets = (
        Facet("Benchmark", [result.benchmark for result in results], benchmark, key="benchmark"),
        Facet("Accelerator", [family_of(result) for result in results], key="accelerator"),
        Facet("Number of accelerators", [result.accelerators for result in results], key="number"),
        Facet("Round", [result.round or OWN_SERIES for result in results], key="round"),
        Facet("Division", [result.division for result in results], key="division"),
    )
    return Filters(
        facets,
        [result.short_name for result in results],
        [chart_text(*tooltip(result).split("\n")) for result in results],
        "Submitter or system",
        [_ranked(result) for result in results],
        "benchmark",
    )


def _ranked(result: Result) -> tuple[float, str] | None:
    """Return the official score and the sentence that names it; None without one, or if it is not compared."""
    minutes = result.score_minutes_scaled
    if minutes is None or not result.comparable or result.division == "open":
        return None
    where = f"{result.short_name} ({result.round or OWN_SERIES})"
    return minutes, f"Fastest: {format_minutes(minutes)}, {where}, {result.hardware('accelerators unknown')}."


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


def _section_title(benchmark: str) -> str:
    # gnn and rgat have the same title
    known = find_benchmark(benchmark) is not None
    return f"{_long_name(benchmark)} ({one_line(benchmark)})" if known else _long_name(benchmark)


def _benchmark_parts(name: str, results: Sequence[Result], families: Families, records: Records) -> list[Part]:
    """Return the charts and facts of a benchmark that has results with a time."""
    large = [result for result in results if result.comparable]
    charts = [time_chart(families, records), fastest_chart(families, records)]
    if any(rate_of(result) is not None for result in families.results):
        charts += [throughput_chart(families, records), best_rates_chart(families, records)]
    charts += [*convergence_charts(families, records), *phase_times_charts(families, records)]
    return [*charts, Facts(_benchmark_facts(name, large)), *_omitted_results(large)]


def convergence_charts(families: Families, records: Records) -> list[Chart]:
    """Return the chart of curves of local results and the fastest of each family and round; none without curves."""
    own = [result for result in families.results if result.own]
    rounds = {result.round for result in families.results if not result.own}
    fastest = [
        one
        for name in sorted(rounds, key=str, reverse=True)
        for one in fastest_of_each_family(Families(tuple(r for r in families.results if r.round == name)))
    ]
    first = fastest_of_each_family(families)
    ordered = {id(result): result for result in [*own[-MAX_OWN_RESULTS:], *first, *fastest]}
    selected = [result for result in ordered.values() if metric_curves(result) is not None][:MAX_CURVES]
    return [curves_chart(selected, records)] if selected else []


def phase_times_charts(families: Families, records: Records) -> list[Chart]:
    """Return the chart of phase times of local results, the fastest of each family, and others; none if unknown."""
    own = [result for result in families.results if result.own]
    others = sorted(families.results, key=lambda result: (result.ranking_minutes(), result.name))
    ordered = {id(result): result for result in [*own[-MAX_OWN_RESULTS:], *fastest_of_each_family(families), *others]}
    known = [one for one in ordered.values() if (spent := phase_times(one)) is not None and spent.has_parts]
    return [phase_times_chart(known, records)] if known else []


def _summary_line(results: Sequence[Result], benchmarks: Sequence[str]) -> str:
    rounds = sorted({result.round for result in results if result.round})
    own = sum(result.own for result in results)
    counts = [f"{len(results) - own:,} published in {', '.join(rounds)}"] if rounds else []
    counts += [f"{own:,} of your own"] if own else []
    what = _long_name(benchmarks[0]) if len(benchmarks) == 1 else f"{len(benchmarks):,} benchmarks"
    return f"Results of MLPerf Training, {what}: {' and '.join(counts) or 'none were found'}."


def _best_first(result: Result) -> tuple[str, float, str]:
    """Return the sort key of tables: the benchmark, and then the score; results without one are last."""
    score = result.score_minutes_scaled
    return result.benchmark, math.inf if score is None else score, result.name


def _results(results: Sequence[Result], benchmarks: Sequence[str], records: Records) -> list[Part]:
    ordered = sorted(results, key=_best_first)
    large = [result for result in ordered if result.comparable]
    others = [result for result in ordered if not result.full_size]
    other_targets = [result for result in ordered if result.full_size and not result.comparable]
    parts: list[Part] = []
    if large:
        name = "All results" if len(benchmarks) > 1 else "BERT-large" if benchmarks[0] == BERT else benchmarks[0]
        parts.append(results_table(one_line(name), large, records))
    if others:
        caption = "These runs did not train BERT-large: they are not compared with the other results or in charts."
        parts.append(results_table("Other sizes of BERT", others, records, caption))
    if other_targets:
        caption = "These runs were not trained to MLPerf's target: they are not compared with the other results."
        parts.append(results_table("Other targets", other_targets, records, caption))
    return parts or [Text(["There are no results."])]


def _benchmark_facts(name: str, large: Sequence[Result]) -> list[tuple[str, str]]:
    """Return the counts and rules of one benchmark."""
    rules = find_benchmark(name)
    rounds = {result.round for result in large if result.round}
    # These counts do not follow the filters, which their names must make clear.
    where = " in all rounds" if len(rounds) > 1 else f" in {rounds.pop()}" if rounds else ""
    facts = [
        (f"Results{where}", f"{len(large):,}"),
        (f"Submitters{where}", f"{len({result.submitter for result in large if not result.own}):,}"),
        (f"Submitted again{where}", f"{sum(result.repeats is not None for result in large):,}"),
    ]
    if rules is None:
        facts.append(("Target and score", "not known"))
    else:
        targets = {str(target): None for result in large for run in result.runs for target in run.targets}
        facts.append(("Runs of a score", f"{rules.runs}, without {rules.dropped} at each end"))
        facts.append(("Sample", rules.sample))
        facts += [("Target", ", ".join(targets))] if targets else []
    return facts


def _omitted_results(large: Sequence[Result]) -> list[Part]:
    without_size = sum(result.minutes is not None and not size_of(result) for result in large)
    without_time = sum(result.minutes is None for result in large)
    counts = (
        (without_size, "have an unknown number of accelerators"),
        (without_time, "have no run that succeeded"),
    )
    texts = [f"{count:,} result(s) {why}: they are only in the table." for count, why in counts if count]
    return [Text(texts)] if texts else []
