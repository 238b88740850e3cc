"""The HTML page of a comparison, and its charts as SVG files: `python -m podium.comparison.page.page FOLDER PATH…`.

The page has all findings as tables, and the results of BERT-large as charts. The SVG files are the page's charts, in
their light colours on white.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bert.rules import RUNS
from podium.comparison.cost import Costs
from podium.comparison.load import Comparison, RunCache, gather
from podium.comparison.page.charts import (
    accuracies,
    best_rates_chart,
    curves_chart,
    throughput_chart,
    time_chart,
    time_spent,
    time_spent_chart,
)
from podium.comparison.page.families import Families, best_of_each, families_of, rate_of, size_of
from podium.comparison.page.labels import minutes_text
from podium.comparison.page.tables import cost_table, oddities_table, results_table, scaling_table, time_table
from podium.comparison.result import Result
from podium.comparison.table import families as scaling_families
from podium.comparison.table import own_sentences
from podium.core.console import print_message
from podium.core.errors import PodiumError
from podium.core.files import make_folder, user_cache_folder, write_atomically
from podium.html.chart import Chart, standalone_svg
from podium.html.page import Facts, Part, Points, Section, Text, page

MOST_CURVES = 8
MOST_OWN = 6  # own results in a chart of a few; the last ones of the comparison
MOST_BARS = 16
MOST_RATES = 30
NOTES = (
    f"A score is the mean of {RUNS} runs without the fastest and the slowest, scaled where they needed fewer samples "
    "than the round's reference allows. Of results without a score, charts show the mean of the runs that converged.",
    "MFU is by the operations that BERT-large needs for samples of the dataset's mean length without padding, against "
    "the dense bf16 peak that the accelerator's maker states.",
    "This page is one file. It loads nothing and sends nothing.",
)


def comparison_page(comparison: Comparison, costs: Costs | None = None, title: str = "MLPerf BERT results") -> str:
    """The whole HTML. The same comparison gives the same bytes. `costs` are of the results in their order."""
    families = families_of(comparison.results)
    large = [result for result in comparison.results if result.full_size]
    sections = [Section("Results", _results(comparison))]
    if families.results:
        sections += [
            Section("Time to train", [time_chart(families), *_left_out(large)]),
            Section(
                "Throughput", throughput_charts(families) or [Text(["No result tells its samples to the target."])]
            ),
            Section("Accuracy", accuracy_charts(families) or [Text(["No log tells samples with its accuracies."])]),
        ]
    scaled = scaling_families(comparison.results)
    if scaled:
        sections.append(Section("Scaling", [scaling_table(scaled)]))
    if costs is not None:
        sections.append(Section("Cost", [cost_table(comparison.results, costs)]))
    if any(result.converged for result in large):
        sections.append(Section("Where the time goes", [*time_spent_charts(families), time_table(large)]))
    odd: list[Part] = [Points(comparison.notes)] if comparison.notes else []
    if any(result.oddities for result in comparison.results):
        odd.append(oddities_table(comparison.results))
    sections.append(Section("What is odd", odd or [Text(["Nothing."])]))
    return page(title, _lead(comparison.results), sections, NOTES)


def throughput_charts(families: Families) -> list[Chart]:
    """Of all results, and of the best of each family; none where no rate is known."""
    if all(rate_of(result) is None for result in families.results):
        return []
    best = [max(results, key=lambda one: (rate_of(one) or 0.0, one.name)) for results in families.published.values()]
    rated = sorted((one for one in best if rate_of(one) is not None), key=lambda one: -(rate_of(one) or 0.0))
    return [throughput_chart(families), *([best_rates_chart(rated[:MOST_RATES])] if rated else [])]


def accuracy_charts(families: Families) -> list[Chart]:
    """The curves of the fastest result of each family and of one's own, whole and near the target."""
    published = [result for result in best_of_each(families) if accuracies(result) is not None]
    own = [result for result in families.results if result.own and accuracies(result) is not None]
    chosen = [*own[-MOST_OWN:], *published[:MOST_CURVES]]
    return [curves_chart(chosen, closely) for closely in (False, True)] if chosen else []


def time_spent_charts(families: Families) -> list[Chart]:
    """Bars of one's own results, of the fastest of each family, and of others whose logs tell evaluation apart."""
    own = [result for result in families.results if result.own]
    telling = [result for result in families.results if result.evaluation_share is not None and not result.own]
    chosen = {result.name: result for result in [*own[-MOST_OWN:], *best_of_each(families), *telling]}
    bars = [result for result in chosen.values() if time_spent(result) is not None][:MOST_BARS]
    return [time_spent_chart(bars)] if bars else []


def _lead(results: Sequence[Result]) -> str:
    rounds = sorted({result.round for result in results if result.round})
    own = sum(result.own for result in results)
    told = [f"{len(results) - own:,} published in {', '.join(rounds)}"] if rounds else []
    told += [f"{own:,} of your own"] if own else []
    return f"Results of MLPerf Training's BERT: {' and '.join(told) or 'none were found'}."


def _results(comparison: Comparison) -> list[Part]:
    results = comparison.results
    large = [result for result in results if result.full_size]
    others = [result for result in results if not result.full_size]
    parts: list[Part] = [Facts(_facts(large))] if large else []
    own = own_sentences(results, comparison.others)
    if own:
        parts.append(Points([sentence[0].upper() + sentence[1:] + "." for sentence in own]))
    if large:
        parts.append(results_table("BERT-large", large))
    if others:
        told = "These runs did not train BERT-large: their times are not held against the others', and are in no chart."
        parts.append(results_table("Other sizes of BERT", others, told))
    return parts or [Text(["There are no results."])]


def _facts(large: Sequence[Result]) -> list[tuple[str, str]]:
    facts = [
        ("Results", f"{len(large):,}"),
        ("Submitters", f"{len({result.submitter for result in large if not result.own}):,}"),
        ("Handed in again", f"{sum(result.repeats is not None for result in large):,}"),
    ]
    scored = [
        (result.score_minutes_scaled, result.name, result.short_name)
        for result in large
        if result.score_minutes_scaled is not None and result.division != "open" and not result.own
    ]
    if scored:
        minutes, _, name = min(scored)
        facts.append(("Fastest, closed division", f"{minutes_text(minutes)}: {name}"))
    return facts


def _left_out(large: Sequence[Result]) -> list[Part]:
    unplaced = sum(result.minutes is not None and not size_of(result) for result in large)
    timeless = sum(result.minutes is None for result in large)
    counts = ((unplaced, "do not tell how many accelerators they had"), (timeless, "have no run that converged"))
    told = [f"{count:,} result(s) {why}: they are in the table alone." for count, why in counts if count]
    return [Text(told)] if told else []


def charts_by_name(comparison: Comparison) -> Mapping[str, Chart]:
    """Those that the comparison has results for."""
    families = families_of(comparison.results)
    if not families.results:
        return {}
    named = (
        (("time-to-train",), [time_chart(families)]),
        (("throughput", "throughput-of-families"), throughput_charts(families)),
        (("accuracy", "accuracy-near-target"), accuracy_charts(families)),
        (("time-spent",), time_spent_charts(families)),
    )
    return {name: chart for names, charts in named for name, chart in zip(names, charts, strict=False)}


def write_pictures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write NAME.svg for each chart, and return what was written. WorkError if a file cannot be."""
    make_folder(folder)
    written = []
    for name, chart in charts_by_name(comparison).items():
        path = folder / f"{name}.svg"
        write_atomically(path, standalone_svg(chart))
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m podium.comparison.page.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("paths", type=Path, nargs="+", help="results, as podium compare takes them")
    given = parser.parse_args()
    try:
        for path in write_pictures(gather(given.paths, RunCache(user_cache_folder())), given.folder):
            print(path)
    except PodiumError as error:
        print_message(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
