"""`podium compare`: compares results of any MLPerf round and local results."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podium.core.console import Console, errors, print_json, print_text, progress_bar, tell

if TYPE_CHECKING:
    from podium.comparison.load import RunCache
    from podium.comparison.result import Result


def compare(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Clones of rounds' results or parts of them (a submitter, a system, a log), archives of these, and "
            "results/ of your own. With --ab there may be none.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        list[str] | None, typer.Option("--round", metavar="ROUND", help="Such as v2.1, or own; may be repeated.")
    ] = None,
    accelerators: Annotated[
        list[str] | None, typer.Option("--accelerator", metavar="NAME", help="A part of its name; may be repeated.")
    ] = None,
    divisions: Annotated[list[str] | None, typer.Option("--division", metavar="closed|open")] = None,
    per: Annotated[str, typer.Option(metavar="accelerator|node", help="What throughput is shown for.")] = "accelerator",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects instead of tables.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that opens offline.")] = None,
    ab: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Hold two sides against each other, with p-values: each a result (SYSTEM, SUBMITTER/SYSTEM, "
            "ROUND/SUBMITTER/SYSTEM), a folder of results, a set of runs (runs/SYSTEM/DATE_TIME), or the COMMIT or "
            "COMMIT:SYSTEM that made runs.",
        ),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Add what it costs to train once, at your prices: see docs/prices.yaml."),
    ] = None,
    oddities: Annotated[
        bool, typer.Option("--oddities", help="Tell what does not fit together, result by result.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Read every log anew, and keep nothing.")] = False,
) -> None:
    """Compare published results of BERT, and your own beside them: scores, spread, throughput, MFU, scaling.

    Logs are read as they are; what does not fit together is told. Scores are olympic means; where the rules scale one
    both are shown. What was read is kept by its content under ~/.cache/podium.
    """
    from podium.comparison.cost import cost_json, costs, print_costs, read_prices
    from podium.comparison.load import RunCache, gather
    from podium.comparison.table import as_csv as rows_csv
    from podium.comparison.table import choose, print_comparison, rows
    from podium.core.errors import UsageError
    from podium.core.files import user_cache_folder
    from podium.html.page import require_page, write_page

    if per not in ("accelerator", "node"):
        raise UsageError(f"--per {per}: allowed is accelerator or node")
    if as_json and as_csv:
        raise UsageError("--json and --csv: give one of them")
    if ab is not None and (as_csv or html is not None or cost is not None):
        raise UsageError("--ab: is told as a table or as --json; leave --csv, --html and --cost out")
    if not paths and ab is None:
        raise UsageError("no PATH is given; name a clone of a round's results, or results/ of your own")
    if html is not None:
        require_page(html)
    prices = None if cost is None else read_prices(cost)
    cache = RunCache(None if no_cache else user_cache_folder())
    with progress_bar() as bar:
        task = bar.add_task("Reading logs", total=None)
        found = gather(
            paths or [],
            cache,
            starting=lambda logs: bar.update(task, total=logs),
            told=lambda logs: bar.advance(task, logs),
        )
    for note in found.notes:
        tell(f"note: {note}")
    shown = choose(found, rounds or [], accelerators or [], divisions or [])
    if ab is not None:
        _hold_against(ab, shown.results, cache, as_json)
        return
    if not shown.results:
        raise UsageError(
            f"none of the {len(found.results)} results is of what --round, --accelerator and --division name"
        )
    objects = rows(shown.results)
    priced = None
    if prices is not None and cost is not None:
        priced = costs(shown.results, prices, cost)
        for row, one in zip(objects, priced.costs, strict=True):
            row.update(cost_json(one, priced.currency))
    if html is not None:
        from podium.comparison.page.page import comparison_page

        write_page(html, comparison_page(shown, priced))
        errors.print(f"The page is {html}", markup=False, highlight=False)
    if as_json:
        print_json(objects)
    elif as_csv:
        print_text(rows_csv(objects).removesuffix("\n"))
    elif html is None:
        print_comparison(Console(), shown, per, oddities)
        if priced is not None:
            print_costs(Console(), shown.results, priced)


def _hold_against(ab: tuple[str, str], results: "Sequence[Result]", cache: "RunCache", as_json: bool) -> None:
    from podium.comparison.ab.compare import as_json as ab_json
    from podium.comparison.ab.compare import held_against, print_ab
    from podium.comparison.ab.operands import Readers, find_side
    from podium.comparison.load import gather, read_runs

    readers = Readers(lambda path: gather([path], cache).results, lambda logs: read_runs(logs, cache))
    found = held_against(*(find_side(asked, results, readers) for asked in ab))
    if as_json:
        print_json(ab_json(found))
    else:
        print_ab(Console(), found)
