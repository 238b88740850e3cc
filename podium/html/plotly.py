"""Charts of a page as Plotly figures in JSON, which the page's script filters, colours and draws.

Names in logs are untrusted. Plotly interprets some tags in its texts, so that every text that it shows comes from
`chart_text`; the script shows other texts, such as those of legends, as text of the document.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from podium.core.paths import shorten_paths
from podium.core.text import for_html, for_xml, label
from podium.html.colours import SERIES, named_colours

Trace = dict[str, Any]

# 11 is coprime to the 16 colours: colour and marker together distinguish 176 series.
MARKERS = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "x",
    "triangle-left",
    "triangle-right",
    "pentagon",
    "hexagon",
)
# Of the first series of each colour, of the second, and of all others.
DASHES = ("solid", "dash", "dot")
MARKER_OPACITY = 0.6  # so that points that cover one another can be distinguished
BAND_OPACITY = 0.15
SIGNIFICANT_DIGITS = 6  # of a drawn number
MAX_SERIES_CHARACTERS = 80  # of a name in a legend


def colour(name: str, opacity: float = 1.0) -> str:
    """Return the reference to a colour of `named_colours`, which the script replaces by its light or dark value."""
    if name not in named_colours():
        raise KeyError(name)
    return f"@{name}/{opacity:g}"


def series_colour(number: int) -> str:
    """Return the name of the colour of series `number`."""
    return f"series-{number % len(SERIES)}"


def series_style(number: int, size: float = 8, width: float = 1.6) -> Trace:
    """Return the marker and the line of series `number`, as fields of a Plotly trace."""
    own = colour(series_colour(number))
    return {
        "marker": {"color": own, "symbol": MARKERS[number % len(MARKERS)], "size": size},
        "line": {"color": own, "dash": DASHES[min(number // len(SERIES), len(DASHES) - 1)], "width": width},
    }


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], name: str, **fields: Any) -> Trace:
    """Return the area between two curves, in the colour `name`."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": colour(name, BAND_OPACITY),
        "line": {"width": 0, "color": colour(name, 0)},
        "hoverinfo": "skip",
        **fields,
    }


def target_lines(values: Sequence[float]) -> list[dict[str, Any]]:
    """Return dashed horizontal lines over the whole chart, as Plotly's shapes."""
    line = {"color": colour("ink"), "width": 1, "dash": "dash"}
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": one, "y1": one, "line": line} for one in values]


def chart_text(*lines: str) -> str:
    """Join lines as a text of Plotly that shows them literally: its tags and entities are escaped."""
    safe = (for_html(shorten_paths(line)).replace("\n", " ") for line in lines)
    return "<br>".join(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in safe)


@dataclass(frozen=True)
class Chart:
    """A chart of a page: traces and axes of Plotly, and what the script needs to filter it.

    Besides Plotly's fields, a trace may have:
    - `series`: name in the legend, whose button hides all traces of that name;
    - `records`: for each point, the index of the record of the page's filter that it belongs to; or `record`, that of
      the whole trace. Points and traces of records that are filtered out are not drawn;
    - `frontier`: whether a line connects the lowest of the drawn points at each x.

    Bars are horizontal. Every trace has a value for each of `labels`, which may have two lines. `records` and `groups`
    belong to these: only the first bar of each group that is not filtered out is drawn.
    """

    title: str
    caption: str  # what is drawn, and how to read it
    summary: str  # text alternative: the chart's values in a sentence
    traces: Sequence[Trace]
    x: Mapping[str, Any]  # Plotly's axes
    y: Mapping[str, Any]
    shapes: Sequence[Mapping[str, Any]] = ()
    kind: Literal["points", "bars"] = "points"
    height: int = 400  # pixels, without the legend; of bars, the script computes it
    wide: bool = False  # whether it takes the page's whole width
    most: int | None = None  # series, or bars, that are drawn at most: the first that are not filtered out
    labels: Sequence[str] = ()
    records: Sequence[int] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class Facet:
    """A property of a page's records, by which the reader can filter them."""

    name: str
    values: Sequence[str | int | None]  # one per record; None is unknown
    initial: str | int | None = None  # None: all are shown at first
    key: str = ""  # in the page's URL


@dataclass(frozen=True)
class Filters:
    """The records of a page, such as results, and how the reader can filter charts and tables by them."""

    facets: Sequence[Facet]
    names: Sequence[str]  # of each record, which are searched
    tooltips: Sequence[str]  # of each record's points, by chart_text
    search: str  # label of the search field
    # The value by which the best of the shown records is named, the least, with its text; None: not known.
    ranking: Sequence[tuple[float, str] | None] = ()
    ranking_facet: str = ""  # records of different values of this facet are not ranked


def page_data(charts: Mapping[str, Chart], filters: Filters | None) -> str:
    """Return the JSON of a page's charts, by the id of their element, and filters; safe inside a <script> element."""
    data = {
        "colours": named_colours(),
        "charts": {identity: _chart_data(chart) for identity, chart in charts.items()},
        "filters": None if filters is None else _filters_data(filters),
    }
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A name with </script> or <!-- would end or change the element; these characters only occur within strings.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _chart_data(chart: Chart) -> dict[str, Any]:
    return {
        "kind": chart.kind,
        "height": chart.height,
        "most": chart.most,
        "traces": [_with_safe_name(trace) for trace in chart.traces],
        "x": chart.x,
        "y": chart.y,
        "shapes": chart.shapes,
        "labels": [chart_text(*one.split("\n", 1)) for one in chart.labels],
        "records": chart.records,
        "groups": chart.groups,
    }


def _with_safe_name(trace: Trace) -> Trace:
    name = trace.get("series")
    return trace if name is None else {**trace, "series": label(shorten_paths(name), MAX_SERIES_CHARACTERS)}


def _filters_data(filters: Filters) -> dict[str, Any]:
    facets = []
    for facet in filters.facets:
        numbers = sorted({value for value in facet.values if isinstance(value, int)})
        texts = sorted({value for value in facet.values if isinstance(value, str)}, key=lambda one: one.casefold())
        values: list[str | int] = [*numbers, *texts]
        place = {value: index for index, value in enumerate(values)}
        facets.append(
            {
                "name": facet.name,
                "key": facet.key,
                "values": [f"{value:,}" if isinstance(value, int) else for_html(value, 80) for value in values],
                "of": [-1 if value is None else place[value] for value in facet.values],
                "initial": None if facet.initial is None else place[facet.initial],
            }
        )
    return {
        "facets": facets,
        "search": filters.search,
        "names": [for_html(shorten_paths(name)) for name in filters.names],
        "tooltips": filters.tooltips,
        "ranking": [None if one is None else [one[0], for_html(one[1])] for one in filters.ranking],
        "rankingFacet": filters.ranking_facet,
    }


def _finite(value: Any) -> Any:
    """Convert to what JSON has: numbers are rounded, non-finite ones become None, and invisible characters U+FFFD."""
    if isinstance(value, str):
        return for_xml(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_finite(one) for one in value]
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1e15 else float(f"{number:.{SIGNIFICANT_DIGITS}g}")
