"""The comparison as tables in the terminal and as rows for JSON and CSV, with filters and scaling of system sizes."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from podium.comparison.load import Comparison
from podium.comparison.result import MEMORY, NO_VERDICT, Result
from podium.core.console import UNKNOWN, describe_left_out, print_figures, result_table
from podium.core.errors import UsageError
from podium.core.text import format_list, printable, short_repr, shorten_middle
from podium.mllog import system
from podium.mllog.rounds import parse_round


@dataclass(frozen=True)
class ScalingPoint:
    """One system size of a family, relative to the family's smallest size."""

    result: Result  # of several results of this size the one with the highest throughput
    throughput: float  # samples/s per accelerator, relative to the smallest size: 1 is linear scaling
    # Accelerator-minutes of the smallest size divided by those of this one. Unlike `throughput` this includes the
    # additional samples that larger batches need.
    time: float


def scaling_families(results: Sequence[Result]) -> list[list[ScalingPoint]]:
    """Group results by round, benchmark, submitter, division and accelerator; return groups of two sizes or more.

    Accelerators of one model with memory of different size are different ones.
    """
    groups: dict[tuple[str | None, ...], dict[int, ScalingPoint]] = {}
    for result in results:
        rate = result.samples_per_second_per_accelerator
        if rate is None or result.minutes is None or not result.comparable or not result.accelerators:
            continue
        sizes = groups.setdefault(
            (result.round, result.benchmark, result.submitter, result.division, result.variant), {}
        )
        best = sizes.get(result.accelerators)
        if best is None or rate > best.throughput:
            sizes[result.accelerators] = ScalingPoint(result, rate, result.minutes * result.accelerators)
    return [
        _relative_to_smallest([sizes[size] for size in sorted(sizes)]) for sizes in groups.values() if len(sizes) > 1
    ]


def _relative_to_smallest(sizes: Sequence[ScalingPoint]) -> list[ScalingPoint]:
    """Convert samples/s per accelerator and accelerator-minutes to ratios to those of the first size."""
    first = sizes[0]
    return [ScalingPoint(one.result, one.throughput / first.throughput, first.time / one.time) for one in sizes]


def describe_own_results(results: Sequence[Result], others: Sequence[Result] = ()) -> list[str]:
    """Compare each local result with published ones of the same accelerator; return a sentence fragment for each.

    `others` are published results in addition to those in `results`. With the same number of accelerators the times
    are compared, preferably within the same division. Otherwise the throughput per accelerator is compared with that
    of the nearest number.
    """
    published = [one for one in (*results, *others) if not one.own and one.comparable and one.minutes is not None]
    return [
        _describe_own_result(result, [one for one in published if one.benchmark == result.benchmark])
        for result in results
        if result.own
    ]


def _describe_own_result(result: Result, published: Sequence[Result]) -> str:
    name = f"your {result.system} ({result.hardware('size not known', 'no accelerators')})"
    if not result.full_size:
        return f"{name} did not train BERT-large, and is not compared with results that did"
    if result.other_targets:
        return f"{name} was not trained to MLPerf's target, and is not compared with results that were"
    if result.minutes is None:
        return f"{name} has no run that reached the target"
    same_family = [one for one in published if one.family == result.family and one.accelerators]
    if result.family is None or not result.accelerators or not same_family:
        return f"{name}: none of the results is of this accelerator, or their sizes are not known"
    own_time = _format_own_time(result)
    if result.evaluation_share is not None:
        own_time += f"; {result.evaluation_share:.0%} of it is evaluation"
    same = [one for one in same_family if one.accelerators == result.accelerators]
    same = [one for one in same if one.division == result.division] or same
    if same:
        best = min(same, key=lambda one: one.ranking_minutes())
        ratio = result.ranking_minutes() / best.ranking_minutes()
        return f"{name} is at {ratio:.2f}× the best published time ({_format_published(best)}): {own_time}"
    rate = result.samples_per_second_per_accelerator
    rated = [(other, one) for one in same_family if (other := one.samples_per_second_per_accelerator)]
    if not rate or not rated:
        return f"{name}: no published result has as many accelerators; {own_time}"
    size = result.accelerators
    other, nearest = min(rated, key=lambda pair: (abs((pair[1].accelerators or 0) - size), -pair[0]))
    return (
        f"{name} trains {format_rate(rate)} samples/s per accelerator, {rate / other:.2f}× as many as the nearest "
        f"published size, {nearest.accelerators:,} ({_format_published(nearest)}): {own_time}"
    )


def _format_own_time(result: Result) -> str:
    if result.score_minutes is None:
        return f"{result.minutes:.2f} min, the mean of {len(result.converged)} run(s) and no score yet"
    scaled = "" if result.scaling_factor is None else f" ({result.score_minutes_scaled:.2f} min as the rules scale it)"
    return f"{result.score_minutes:.2f} min{scaled}"


def _format_published(result: Result) -> str:
    division = "" if result.division == "closed" else f", {result.division or 'division not known'}"
    return f"{result.name}, {result.ranking_minutes():.2f} min{division}"


NODE = "node"


class Column(NamedTuple):
    """A column of numbers in the table of results."""

    heading: str
    priority: int  # where a terminal is too narrow for all columns, those with the largest are left out
    key: str  # of `rows`, by which results are sorted
    cell: Callable[[Result, str], str]  # formats the cell of a result; the second argument is accelerator or node


SPREAD = "spread"
COLUMNS = (
    Column("minutes", 0, "time_to_train", lambda one, per: _format_minutes(one)),
    Column(SPREAD, 2, "spread", lambda one, per: _format_spread(one)),
    Column("samples", 7, "samples_to_target", lambda one, per: _format_or_unknown(one.samples_to_target, "{:,.0f}")),
    Column("batch", 8, "GBS", lambda one, per: _format_or_unknown(one.global_batch_size, "{:,.0f}")),
    Column("samples/s\nper {unit}", 1, "samples_per_second_per_{per}", lambda one, per: _rate_text(one, per)),
    Column("MFU", 3, "mfu", lambda one, per: _format_or_unknown(one.utilization, "{:.1%}")),
    Column("eval.", 4, "evaluation_share", lambda one, per: _format_or_unknown(one.evaluation_share, "{:.1%}")),
    Column("RCP", 5, "RCP", lambda one, per: UNKNOWN if one.rcp in (None, NO_VERDICT) else one.rcp),
    Column("energy\nMJ", 6, "Energy", lambda one, per: _format_or_unknown(_megajoules(one), "{:,.1f}")),
)
NAMES = "submitter,\nsystem"
BETWEEN = 2  # characters between two columns
NAME_WIDTH = 0.3  # share of the terminal's width that a name keeps before a column is left out
HARDWARE_WIDTH = 0.25  # likewise, of the accelerators
ALWAYS = 2  # columns up to this priority are in every table, whether a value is known or not


class Detail(Enum):
    """How anomalies are printed."""

    COUNTED = "counted"
    AFFECTING = "affecting"  # those that may affect a figure, one by one; the cosmetic ones counted
    ALL = "all"


def print_comparison(
    console: Console,
    comparison: Comparison,
    per: str,
    anomalies: Detail = Detail.COUNTED,
    sorted_by: str | None = None,
) -> None:
    """Print tables of the results, the scaling, a sentence for each local result, and anomalies.

    There is a table for each round and benchmark, or of results that are `sorted_by` a key of `rows` one for each
    benchmark, without scaling. The columns that a table has no room for are named below.
    """
    ranking = sorted_by is not None
    results = comparison.results
    groups: dict[str, list[Result]] = {}
    for one in results:
        title = one.benchmark if ranking else f"{one.round or OWN} {one.benchmark}"
        groups.setdefault(title, []).append(one)
    shown, left_out = dict[str, None](), dict[str, None]()
    for title, group in groups.items():
        table, with_room, without = _table(title, group, per, console.width, sorted_by)
        print_figures(console, table)
        shown.update(dict.fromkeys(with_room))
        left_out.update(dict.fromkeys(without))
    console.print(_legend(results, SPREAD in shown), style="dim")
    if left_out:
        console.print(describe_left_out([*left_out], "--json or --csv"), style="dim", markup=False, highlight=False)
    scaled = [] if ranking else scaling_families(results)
    if scaled:
        print_figures(console, _scaling_table(scaled, console.width))
    for sentence in describe_own_results(results, comparison.others):
        console.print(f"• {sentence}", markup=False, highlight=False)
    _print_anomalies(console, results, anomalies)


def _print_anomalies(console: Console, results: Sequence[Result], detail: Detail) -> None:
    """Print the anomalies that may affect a figure, or their number, and then the cosmetic ones."""
    lines = list[str]()
    affected = sum(bool(one.anomalies) for one in results)
    if detail is not Detail.COUNTED:
        lines += [f"{_name_with_benchmark(one)}: {what}" for one in results for what in one.anomalies]
    elif affected:
        lines.append(
            f"{affected} of {len(results)} have anomalies in logs or descriptions that may affect a figure; see "
            "--anomalies"
        )
    if detail is Detail.ALL:
        lines += [f"{_name_with_benchmark(one)}: {what} (cosmetic)" for one in results for _, what in one.cosmetic]
    elif detail is Detail.AFFECTING:
        kinds = Counter(kind for one in results for kind in {kind for kind, _ in one.cosmetic})
        lines += [f"{count} of {len(results)}, cosmetic: {kind}" for kind, count in kinds.most_common()]
        if kinds:
            lines.append("Cosmetic anomalies affect no figure; --all-anomalies lists them too")
    for line in lines:
        console.print(line, markup=False, highlight=False, style="dim")


def _name_with_benchmark(result: Result) -> str:
    return f"{result.round or OWN} {result.benchmark} {result.short_name}"


def _table(
    title: str, results: Sequence[Result], per: str, width: int, sorted_by: str | None
) -> tuple[Table, list[str], list[str]]:
    """Return a table of results, with the columns that fit a terminal of this width and have a known value.

    The column that the results are sorted by comes before all others. Also returns the headings of the columns that
    the table has, and of those that have no room.
    """
    texts: dict[str, list[str]] = {NAMES: []}
    if sorted_by is not None:
        texts["round"] = [one.round or OWN for one in results]
    widest = max(int(width * HARDWARE_WIDTH), len("accelerators"))
    texts["accelerators"] = [shorten_middle(one.hardware(UNKNOWN), widest) for one in results]
    found = [(column, [column.cell(one, per) for one in results]) for column in COLUMNS]
    candidates = [
        (
            -1 if column.key.format(per=per) == sorted_by else column.priority,
            column.heading.format(unit=NODE if per == NODE else "accel."),
            cells,
        )
        for column, cells in found
        if column.priority <= ALWAYS or any(cell != UNKNOWN for cell in cells)
    ]
    names = [(one.submitter, f"{one.system} {_marks(one)}".strip()) for one in results]
    fixed = 1 + sum(_cell_width(heading, cells) + BETWEEN for heading, cells in texts.items()) - _cell_width(NAMES, ())
    longest = max(cell_len(f"{submitter} {system}") for submitter, system in names)
    room = width - fixed - min(max(longest, _cell_width(NAMES, ())), int(width * NAME_WIDTH))
    shown = set[int]()
    for priority, heading, cells in sorted(candidates, key=lambda one: one[0]):
        room -= _cell_width(heading, cells) + BETWEEN
        if room < 0 and shown:
            break
        shown.add(priority)
    numbers = [(heading, cells) for priority, heading, cells in candidates if priority in shown]
    left_out = [heading.replace("\n", " ") for priority, heading, _ in candidates if priority not in shown]
    table = result_table(f"{printable(title)}: {len(results)} result(s)", (), ())
    for heading in texts:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for heading, _ in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    taken = fixed + sum(_cell_width(heading, cells) + BETWEEN for heading, cells in numbers)
    texts[NAMES] = [_shorten_name(*name, max(width - taken, 10)) for name in names]
    for number in range(len(results)):
        cells = [escape(cells[number]) for heading, cells in texts.items() if heading != NAMES]
        table.add_row(texts[NAMES][number], *cells, *(column[number] for _, column in numbers))
    return table, [heading for heading, _ in numbers], left_out


def _cell_width(heading: str, cells: Sequence[str]) -> int:
    """Return the width of a column in characters, without padding."""
    return max(cell_len(line) for cell in (heading, *cells) for line in cell.split("\n"))


def _shorten_name(submitter: str, system: str, width: int) -> str:
    """Return markup of a submitter and its system in at most `width` characters; … replaces the middle of long ones."""
    if len(submitter) + 1 + len(system) > width:
        submitter = shorten_middle(submitter, max(width // 3, width - 1 - len(system)))
        system = shorten_middle(system, width - 1 - len(submitter))
    return f"{escape(submitter)} [bold]{escape(system)}[/bold]"


def _legend(results: Sequence[Result], with_spread: bool) -> str:
    """Return the meaning of the marks that these results have in the tables, which may have a column of spreads."""
    marks = (
        ("* official score, scaled by the reference convergence points; (as measured)", any(map(_is_scaled, results))),
        ("o open division", any(one.division == "open" for one in results)),
        ("n mean of the runs that succeeded, no score", any(_has_no_score(one) for one in results)),
        ("r repeats an earlier result", any(one.repeats for one in results)),
        ("! an anomaly may affect a figure", any(one.anomalies for one in results)),
        ("s, t spread mostly by samples to target, by throughput", with_spread and any(one.spread for one in results)),
        (f"{UNKNOWN} not known", True),
    )
    return " · ".join(text for text, is_used in marks if is_used)


def _has_no_score(result: Result) -> bool:
    return result.score_minutes is None and result.minutes is not None


def _marks(result: Result) -> str:
    marks = (
        ("o", result.division == "open"),
        ("r", result.repeats),
        ("n", _has_no_score(result)),
        ("!", result.anomalies),
    )
    return "".join(mark for mark, is_set in marks if is_set)


def _megajoules(result: Result) -> float | None:
    return None if result.energy_joules is None else result.energy_joules / 1e6


def _rate_text(result: Result, per: str) -> str:
    rate = result.per_node if per == NODE else result.per_accelerator
    value = rate(result.samples_per_second)
    return UNKNOWN if value is None else format_rate(value)


def format_rate(samples_per_second: float) -> str:
    """Format samples/s with three significant digits, and all digits before the decimal point."""
    if 1e-6 <= samples_per_second < math.inf:
        return f"{samples_per_second:,.{max(2 - math.floor(math.log10(samples_per_second)), 0)}f}"
    return f"{samples_per_second:.3g}"


def _format_minutes(result: Result) -> str:
    if _is_scaled(result):
        return f"{result.score_minutes_scaled:.3f}*\n({result.score_minutes:.3f})"
    return _format_or_unknown(result.minutes, "{:.3f}")


def _is_scaled(result: Result) -> bool:
    return result.scaling_factor is not None and result.score_minutes is not None


def _format_spread(result: Result) -> str:
    if result.spread is None:
        return UNKNOWN
    cause = {"samples": " s", "throughput": " t", None: ""}[result.spread.cause]
    return f"{result.spread.relative:.1%}{cause}"


def _format_or_unknown(value: float | None, format_string: str) -> str:
    return UNKNOWN if value is None else format_string.format(value)


def _scaling_table(scaled: Sequence[Sequence[ScalingPoint]], width: int) -> Table:
    """Return the table of samples/s per accelerator and accelerator-minutes, relative to the smallest size."""
    table = result_table("Scaling, against a submitter's smallest size", (), ())
    rows = [(_scaling_cells(size), number, family) for family in scaled for number, size in enumerate(family)]
    figures = ("number", "batch", "minutes\nmeasured", "samples/s", "time")
    columns = zip(*(cells for cells, _, _ in rows), strict=True)
    taken = sum(_cell_width(heading, cells) + BETWEEN for heading, cells in zip(figures, columns, strict=True))
    # The heading is folded where it is wider than the names: a no_wrap one would take the width from the numbers.
    table.add_column("round, benchmark, submitter, accelerator", overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells, number, family in rows:
        one = family[0].result
        name = f"{one.round or OWN} {one.benchmark} {one.submitter}, {one.variant}"
        shown = "" if number else escape(shorten_middle(name, max(width - taken - BETWEEN - 1, 16)))
        table.add_row(shown, *cells, end_section=number == len(family) - 1)
    return table


def _scaling_cells(size: ScalingPoint) -> tuple[str, ...]:
    one = size.result
    return (
        f"{one.accelerators:,}",
        _format_or_unknown(one.global_batch_size, "{:,.0f}"),
        _format_or_unknown(one.minutes, "{:.3f}"),
        f"{size.throughput:.0%}",
        f"{size.time:.0%}",
    )


# A spreadsheet evaluates a text cell with such a first character as a formula. Submitters choose these texts.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t")


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one JSON object for each result. Unknown values are None; minutes and seconds are not rounded."""
    scaled = {id(size.result): size for family in scaling_families(results) for size in family}
    return [
        {
            "round": one.round,
            "benchmark": one.benchmark,
            **official_fields(one),
            "score_minutes": one.score_minutes,
            "runs_seconds": [run.seconds for run in one.runs],
            "runs_converged": [run.converged for run in one.runs],
            "runs_samples_to_target": [_int_if_integral(run.samples) for run in one.runs],
            "accelerator_family": one.family,
            "samples_to_target": one.samples_to_target,
            "samples_trained": one.samples_trained,
            "samples_per_second": one.samples_per_second,
            "samples_per_second_without_evaluation": one.training_samples_per_second,
            "samples_per_second_between_evaluations": one.steady_samples_per_second,
            "samples_per_second_per_accelerator": one.samples_per_second_per_accelerator,
            "samples_per_second_per_node": one.per_node(one.samples_per_second),
            "mfu": one.utilization,
            "evaluation_share": one.evaluation_share,
            "startup_seconds": one.startup_seconds,
            "spread": None if one.spread is None else one.spread.relative,
            "spread_from_samples": None if one.spread is None else one.spread.samples_share,
            "scaling_efficiency": scaled[id(one)].throughput if id(one) in scaled else None,
            "scaling_efficiency_time": scaled[id(one)].time if id(one) in scaled else None,
            "repeats": one.repeats,
            "full_size": one.full_size,
            "other_targets": list(one.other_targets),
            "source": one.source,
            "anomalies": list(one.anomalies),
            "cosmetic_anomalies": [what for _, what in one.cosmetic],
        }
        for one in results
    ]


def official_fields(result: Result) -> dict[str, Any]:
    """Return the fields that the official result summarizer has in its JSON, by its names; minutes are not rounded.

    There is a row for each result here, where the summarizer has one for each system and names such as `bert:GBS`.
    """
    text = result.description.get
    processors = system.parse_count(text("host_processors_per_node"))
    return {
        "division": result.division,
        "availability": text("status"),
        "submitter": result.submitter,
        "system": result.system,
        "number_of_nodes": result.nodes,
        "host_processor_model_name": text("host_processor_model_name"),
        "host_processors_count": None if processors is None or result.nodes is None else processors * result.nodes,
        "accelerator_model_name": result.accelerator,
        "accelerators_count": result.accelerators,
        "framework": text("framework"),
        "notes": ";".join(note for name in ("hw_notes", "sw_notes") if (note := text(name))) or None,
        "time_to_train": result.score_minutes_scaled,
        "Energy": result.energy_joules,
        "GBS": result.global_batch_size,
        "samples_to_converge": result.samples_to_converge,
        "RCP": result.rcp,
        "rcp_scaling_factor": result.scaling_factor,
    }


def as_csv(objects: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as CSV with a heading. Lists are joined by spaces; texts are one line and never a formula."""
    out = io.StringIO()
    if objects:
        writer = csv.DictWriter(out, list(objects[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in objects)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        joined = "; " if value and isinstance(value[0], str) else " "
        value = joined.join("" if item is None else str(item) for item in value)
    if isinstance(value, str):
        line = " ".join(value.splitlines())
        return f"'{line}" if line.startswith(FORMULA_PREFIXES) else line
    return "" if value is None else value


def _int_if_integral(value: float | None) -> float | int | None:
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else value


OWN = "own"
WORD = re.compile(r"[^\W_]+")
MAX_FAMILIES = 12  # accelerators that a note lists
MAX_SIZES = 20  # numbers of accelerators that a message lists


def filter_results(
    comparison: Comparison,
    rounds: Sequence[str],
    accelerators: Sequence[str],
    divisions: Sequence[str],
    benchmarks: Sequence[str] = (),
    sizes: Sequence[int] = (),
) -> Comparison:
    """Return the comparison with only the results that match all of these; empty lists select all.

    The other results become the comparison's `others`. The round `own` is that of local results. Accelerators are
    selected as by `select_accelerators`. `sizes` are numbers of accelerators. Raises UsageError for a name or a number
    that no result has.
    """
    results = comparison.results
    wanted = {OWN if name.lower() == OWN else parse_round(name) or name for name in rounds}
    present = sorted({one.round or OWN for one in results})
    for name in sorted(wanted.difference(present)):
        raise UsageError(f"--round {name}: no result is of this round; there are {', '.join(present)}")
    named = set[int]()
    for text in accelerators:
        found = select_accelerators(text, results)
        if not found:
            known = sorted({one.family for one in results if one.family is not None})
            raise UsageError(
                f"--accelerator {printable(text)}: no result has this accelerator; there are "
                f"{printable(', '.join(known)) or 'none'}"
            )
        named |= set(map(id, found))
    numbers = sorted({one.accelerators for one in results if one.accelerators is not None})
    for size in sizes:
        if size not in numbers:
            available = format_list([f"{number:,}" for number in numbers], MAX_SIZES) or "none"
            raise UsageError(f"--accelerators {size}: no result has as many accelerators; there are {available}")
    known_benchmarks = sorted({one.benchmark for one in results})
    wanted_benchmarks = {name.casefold() for name in benchmarks}
    for name in benchmarks:
        if name.casefold() not in map(str.casefold, known_benchmarks):
            available = printable(", ".join(known_benchmarks)) or "none"
            raise UsageError(f"--benchmark {short_repr(name)}: no result is of this benchmark; there are {available}")
    for division in divisions:
        if division not in ("closed", "open"):
            raise UsageError(f"--division: found {division!r}, allowed is closed or open")
    selected, others = list[Result](), list(comparison.others)
    for one in results:
        of_round = not wanted or (one.round or OWN) in wanted
        of_accelerator = not named or id(one) in named
        of_size = not sizes or one.accelerators in sizes
        of_division = not divisions or one.division in divisions
        of_benchmark = not benchmarks or one.benchmark.casefold() in wanted_benchmarks
        is_selected = of_round and of_accelerator and of_size and of_division and of_benchmark
        (selected if is_selected else others).append(one)
    return replace(comparison, results=tuple(selected), others=tuple(others))


def describe_selection(accelerators: Sequence[str], results: Sequence[Result]) -> list[str]:
    """Return a sentence fragment for each text that selects accelerators of several models."""
    selected = [(text, {one.family or "" for one in select_accelerators(text, results)}) for text in accelerators]
    return [
        f"--accelerator {printable(text)} selects {printable(format_list(sorted(families), MAX_FAMILIES))}"
        for text, families in selected
        if len(families) > 1
    ]


def select_accelerators(text: str, results: Sequence[Result]) -> list[Result]:
    """Return the results whose accelerator a user's text selects: a model, and the size of its memory if stated.

    A model has the text as words of its name, as B200 is one of `NVIDIA B200` and not of `NVIDIA GB200`; if there are
    none, anywhere in its name, or in that with the memory. `-` and `_` separate words as spaces do. The size is stated
    as in `A100-40GB` or `NVIDIA A100 SXM 40 GB`, which is the name that tables and messages have.
    """
    size, words = MEMORY.search(text), _words(MEMORY.sub(" ", text))
    pool = [one for one in results if size is None or one.memory_gb == int(size[1])]
    named = [(one, f"{one.accelerator or ''} {one.family or ''}") for one in pool]
    if not words:
        return [one for one, name in named if size is not None or text.casefold() in name.casefold()]
    models = [(one, _words(MEMORY.sub(" ", name))) for one, name in named]
    return (
        [one for one, model in models if f" {words} " in f" {model} "]
        or [one for one, model in models if words in model]
        or [one for one, name in named if words in _words(name)]
    )


def _words(text: str) -> str:
    """Return the words of a name in lower case, with a space between them."""
    return " ".join(WORD.findall(text.casefold()))
