"""`podium compare`: compares published results of MLPerf rounds and local results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podium.cli import names
from podium.core.console import (
    Console,
    print_json,
    print_line,
    print_note,
    print_status,
    print_text,
    progress_bar,
)

if TYPE_CHECKING:
    from podium.comparison.load import RunCache
    from podium.comparison.result import Result


def compare(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Clones of MLPerf's results repositories, parts of them (a submitter, a system, a log), archives of "
            "these, or your own results/. Optional with --ab and --published.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        list[str] | None,
        typer.Option(
            "--round", metavar="ROUND", help="Show only results of this round, such as v2.1, or own. May be repeated."
        ),
    ] = None,
    accelerators: Annotated[
        list[str] | None,
        typer.Option(
            "--accelerator",
            metavar="NAME",
            help="Show only accelerators of this name, such as B200; of several models a note lists them. May be "
            "repeated.",
        ),
    ] = None,
    sizes: Annotated[
        list[int] | None,
        typer.Option(
            "--accelerators", metavar="N", min=0, help="Show only systems of N accelerators. May be repeated."
        ),
    ] = None,
    divisions: Annotated[
        list[str] | None,
        typer.Option("--division", metavar="closed|open", help="Show only results of this division. May be repeated."),
    ] = None,
    benchmarks: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmark",
            metavar="NAME",
            autocompletion=lambda incomplete: names.matching(names.benchmarks(), incomplete),
            help="Show only this benchmark, such as llama31_8b. May be repeated.",
        ),
    ] = None,
    per: Annotated[
        str, typer.Option(metavar="accelerator|node", help="The unit that throughput is divided by.")
    ] = "accelerator",
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Sort the results of each benchmark by this key of --json, or by a heading of the table; -KEY for the "
            "largest first. For example time_to_train, -mfu, Energy.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Show only the first N of each benchmark, by --sort or otherwise by time_to_train.", min=1
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects instead of tables.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of tables.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page that needs no network connection.")
    ] = None,
    ab: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare two results and print p-values. Each is a result (SYSTEM, SUBMITTER/SYSTEM or "
            "ROUND/SUBMITTER/SYSTEM), a folder of results, a set of runs (runs/SYSTEM/DATE_TIME), or all runs of a "
            "commit (COMMIT or COMMIT:SYSTEM).",
        ),
    ] = None,
    versus: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare two accelerators, such as B200 MI355X, over all benchmarks that both ran with the same "
            "number of accelerators, and print the geometric mean of the ratios of their times.",
        ),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="Compare the runs of a system that was written by `podium systems new --from` with the published "
            "ones. PATH: the published logs, which show how their time was spent. Optional.",
        ),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add the cost of one training run, by the prices in this file (see docs/prices.yaml)."
        ),
    ] = None,
    anomalies: Annotated[
        bool,
        typer.Option(
            "--anomalies",
            help="List the inconsistencies in each result's files that may affect a figure, and the number of others.",
        ),
    ] = False,
    all_anomalies: Annotated[
        bool, typer.Option("--all-anomalies", help="As --anomalies, and list those that affect no figure too.")
    ] = False,
    oddities: Annotated[bool, typer.Option("--oddities", hidden=True, help="The former name of --anomalies.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Parse every log again, and do not write to the cache.")
    ] = False,
) -> None:
    """Compare published results of all benchmarks and your own: scores, spread, throughput, MFU, scaling.

    Logs are used as published; inconsistencies in them are reported. Scores are olympic means. Where the rules scale a
    score, both values are shown. Parsed logs are cached by content in ~/.cache/podium.
    """
    from podium.comparison.cost import cost_json, costs, print_costs, read_prices
    from podium.comparison.load import RunCache, load_results
    from podium.comparison.ranking import DEFAULT_KEY, find_key, ranked
    from podium.comparison.table import (
        Detail,
        describe_selection,
        filter_results,
        print_comparison,
        rows,
        select_accelerators,
    )
    from podium.comparison.table import as_csv as rows_csv
    from podium.core.errors import UsageError
    from podium.core.files import user_cache_folder
    from podium.core.text import format_list, printable

    detail = Detail.ALL if all_anomalies else Detail.AFFECTING if anomalies or oddities else Detail.COUNTED
    if per not in ("accelerator", "node"):
        raise UsageError(f"--per: found {per}, allowed is accelerator or node")
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; use one of them")
    if ab is not None and (as_csv or html is not None or cost is not None):
        raise UsageError("--ab prints a table, or JSON with --json; leave out --csv, --html and --cost")
    ranking = sort is not None or top is not None
    if ranking and (ab is not None or versus is not None or html is not None):
        raise UsageError("--sort and --top are for the tables, --json and --csv; leave out --ab, --versus and --html")
    if detail is not Detail.COUNTED and (as_json or as_csv or html or ab or versus or published is not None):
        raise UsageError(
            f"{'--all-anomalies' if all_anomalies else '--anomalies'} is for the tables; leave it out: the page, "
            "--json and --csv have all anomalies, and --ab, --versus and --published list none"
        )
    if versus is not None and (as_csv or html is not None or ab is not None):
        raise UsageError("--versus prints a table, or JSON with --json; leave out --csv, --html and --ab")
    if published is not None and (as_csv or html is not None or ab is not None or versus is not None):
        raise UsageError("--published prints a sentence, or JSON; leave out --csv, --html, --ab, --versus")
    if not paths and ab is None and published is None:
        raise UsageError("no PATH is given; name a clone of a round's results, or your own results/")
    if html is not None:
        from podium.html.page import require_page_or_no_file

        require_page_or_no_file(html)
    prices = None if cost is None else read_prices(cost)
    cache = RunCache(None if no_cache else user_cache_folder())
    with progress_bar() as bar:
        task = bar.add_task("Reading logs", total=None)
        found = load_results(
            paths or [],
            cache,
            on_start=lambda logs: bar.update(task, total=logs),
            on_read=lambda logs: bar.advance(task, logs),
        )
    for note in found.notes:
        print_note(f"note: {note}")
    shown = filter_results(found, rounds or [], accelerators or [], divisions or [], benchmarks or [], sizes or [])
    for note in describe_selection(accelerators or [], found.results):
        print_note(f"note: {note}")
    if published is not None:
        _compare_published(published, found.results, cache, as_json)
        return
    if ab is not None:
        _compare_operands(ab, shown.results, cache, as_json)
        return
    given = (
        ("--round", rounds),
        ("--benchmark", benchmarks),
        ("--accelerator", accelerators),
        ("--accelerators", sizes),
        ("--division", divisions),
    )
    filters = format_list([option for option, values in given if values])
    if not shown.results:
        raise UsageError(f"none of the {len(found.results)} results matches {filters}; choose others")
    for text in versus or ():
        if select_accelerators(text, found.results) and not select_accelerators(text, shown.results):
            raise UsageError(f"--versus {printable(text)}: no result of this accelerator matches {filters}")
    objects = rows(shown.results)
    priced = None
    if prices is not None and cost is not None:
        priced = costs(shown.results, prices, cost)
        for row, row_cost in zip(objects, priced.costs, strict=True):
            row.update(cost_json(row_cost, priced.currency))
    sorted_by = None
    if ranking:
        order = ranked(objects, sort or DEFAULT_KEY, top)
        sorted_by = find_key(objects, (sort or DEFAULT_KEY).removeprefix("-"))
        objects = [objects[number] for number in order]
        shown = replace(shown, results=tuple(shown.results[number] for number in order))
        if priced is not None:
            priced = replace(priced, costs=tuple(priced.costs[number] for number in order))
    if versus is not None:
        from podium.comparison.versus import as_json as versus_json
        from podium.comparison.versus import compare_accelerators, print_versus

        compared = compare_accelerators(*versus, shown.results, None if priced is None else priced.costs)
        if as_json:
            print_json(versus_json(compared))
        else:
            print_versus(Console(), compared)
            if prices is not None and cost is not None:
                compared_results = [one for pair in compared.pairs for one in (pair.a, pair.b)]
                for note in costs(compared_results, prices, cost).notes:
                    print_line(Console(), note)
        return
    if html is not None:
        from podium.comparison.page.page import comparison_page
        from podium.html.page import write_page

        write_page(html, comparison_page(shown, priced))
        print_status(f"The page is {html}")
    if as_json:
        print_json(objects)
    elif as_csv:
        print_text(rows_csv(objects).removesuffix("\n"))
    elif html is None:
        print_comparison(Console(), shown, per, detail, sorted_by)
        if priced is not None:
            print_costs(Console(), shown.results, priced)


def _compare_published(system: str, results: "Sequence[Result]", cache: "RunCache", as_json: bool) -> None:
    from podium.comparison.load import read_runs
    from podium.comparison.published import as_json as published_json
    from podium.comparison.published import compare_published, print_published

    compared = compare_published(system, results, lambda logs: read_runs(logs, cache))
    if as_json:
        print_json(published_json(compared))
    else:
        print_published(Console(), compared)


def _compare_operands(ab: tuple[str, str], results: "Sequence[Result]", cache: "RunCache", as_json: bool) -> None:
    from podium.comparison.ab.compare import as_json as ab_json
    from podium.comparison.ab.compare import compare_sides, print_ab
    from podium.comparison.ab.operands import Readers, find_side
    from podium.comparison.load import load_results, read_runs

    readers = Readers(lambda path: load_results([path], cache).results, lambda logs: read_runs(logs, cache))
    comparison = compare_sides(*(find_side(operand, results, readers) for operand in ab))
    if as_json:
        print_json(ab_json(comparison))
    else:
        print_ab(Console(), comparison)
