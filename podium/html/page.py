"""Renders sections of charts, tables and text as one HTML file that loads nothing from the network.

Its scripts are Plotly, which the package has, and script.js, which draws the charts, and sorts and filters.
"""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from podium.core.errors import UsageError
from podium.core.files import open_regular, write_atomically
from podium.core.paths import package_file, shorten_paths
from podium.core.text import for_html
from podium.html.colours import style_sheet
from podium.html.plotly import Chart, Filters, page_data
from podium.html.table import Table

GENERATOR_TAG = b'<meta name="generator" content="Podium">'  # marks a file as a page that may be overwritten
PLOTLY = "vendor/plotly-basic.min.js"
HEAD_BYTES = 4096  # at the start of a file, in which the tag is searched


@dataclass(frozen=True)
class Text:
    """Paragraphs of text."""

    paragraphs: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """A list of names and values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Points:
    """A bullet list of sentences."""

    sentences: Sequence[str]


Part = Chart | Table | Text | Facts | Points


@dataclass(frozen=True)
class Section:
    """A section of a page, with its heading."""

    title: str
    parts: Sequence[Part]


def render_page(
    title: str, lead: str, sections: Sequence[Section], notes: Sequence[str] = (), filters: Filters | None = None
) -> str:
    """Render the page as HTML. All arguments are text, which is escaped; `notes` become the footer."""
    charts: dict[str, Chart] = {}
    column_rules: list[str] = []
    for section_number, section in enumerate(sections, 1):
        for part_number, part in enumerate(section.parts, 1):
            identity = f"s{section_number}p{part_number}"
            if isinstance(part, Chart):
                charts[identity] = part
            elif isinstance(part, Table):
                column_rules += part.style_rules(identity)
    style = style_sheet() + _read_asset("style.css") + "\n".join(column_rules)
    plotly, script = (_read_asset(PLOTLY), _read_asset("script.js")) if charts else ("", _read_asset("script.js"))
    data = page_data(charts, filters)
    texts = {"title": title, "lead": lead, "notes": notes, "style": style, "script": script, "plotly": plotly}
    template = _environment().get_template("template.html")
    policy = _content_security_policy(style, [plotly, script])
    return template.render(texts, sections=sections, policy=policy, data=data, has_filters=filters is not None)


def write_page(path: Path, html: str) -> None:
    """Write a page, replacing an older one. Raises UsageError if the file is not a page, WorkError if writing fails."""
    require_page_or_no_file(path)
    write_atomically(path, html)


def require_page_or_no_file(path: Path) -> None:
    """Raise UsageError if the file exists and is not a page, so that no other file is overwritten."""
    try:
        with open_regular(path) as file:
            start = file.read(HEAD_BYTES)
    except OSError:  # no such file, or a device or pipe; if it is unreadable, writing it reports the error
        return
    if start and GENERATOR_TAG not in start:
        raise UsageError(f"--html {path}: exists and is not a page of Podium; remove it, or give another path")


def _content_security_policy(style: str, scripts: Sequence[str]) -> str:
    """Return the page's Content-Security-Policy: nothing is loaded, and only the page's scripts and style apply."""
    # A second barrier behind escaping: names in logs are untrusted. Plotly sets style attributes, which have no hashes.
    own_style, own_scripts = f"'{_hash(style)}'", " ".join(f"'{_hash(script)}'" for script in scripts if script)
    return (
        f"default-src 'none'; script-src {own_scripts}; style-src {own_style}; style-src-elem {own_style}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _read_asset(name: str) -> str:
    return package_file("podium.html", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_sanitise,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment


def _sanitise(value: Any) -> Any:
    """Remove invisible characters and folders of this machine from a text that the template writes.

    Text that the template marks as safe comes from this package.
    """
    return for_html(shorten_paths(value)) if isinstance(value, str) and not isinstance(value, Markup) else value
