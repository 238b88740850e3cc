"""A page: sections of charts, tables and text as one HTML file that loads nothing from outside."""

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
from podium.html.chart import Chart, page_svg, style_sheet
from podium.html.table import Table

OURS = b'<meta name="generator" content="Podium">'  # what tells a page from any other file
LOOKED_AT = 4096  # bytes at its beginning


@dataclass(frozen=True)
class Text:
    paragraphs: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """What is called what: a list of names and values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    sentences: Sequence[str]


Part = Chart | Table | Text | Facts | Points


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]


def page(title: str, lead: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """The whole HTML. Everything given is text, which is escaped; `notes` stand at the end."""
    style, script = style_sheet() + _beside("style.css"), _beside("script.js")
    texts = {"title": title, "lead": lead, "notes": notes, "style": style, "script": script}
    template = _environment().get_template("template.html")
    return template.render(texts, sections=sections, policy=_policy(style, script))


def write_page(path: Path, html: str) -> None:
    """Write a page, over an older one too. UsageError where another kind of file has this name, WorkError where it
    cannot be written."""
    require_page(path)
    write_atomically(path, html)


def require_page(path: Path) -> None:
    """Raises UsageError where a file of this name holds something else than such a page."""
    try:
        with open_regular(path) as file:
            start = file.read(LOOKED_AT)
    except OSError:  # there is none, it is a device or a pipe, or writing fails too
        return
    if start and OURS not in start:
        raise UsageError(f"--html {path}: is a file that holds no page of Podium; remove it, or name another place")


def _policy(style: str, script: str) -> str:
    """Of the page's Content-Security-Policy: nothing is loaded, and no script runs but the page's own.

    Charts have style attributes, which a hash cannot name.
    """
    own_style, own_script = f"'{_hash(style)}'", f"'{_hash(script)}'"
    return (
        f"default-src 'none'; script-src {own_script}; style-src {own_style}; style-src-elem {own_style}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _beside(name: str) -> str:
    return package_file("podium.html", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_beside),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fit,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["chart_svg"] = page_svg
    return environment


def _fit(value: Any) -> Any:
    """What a template writes: a text without what cannot be seen, and without folders of this machine.

    What a template calls safe is this package's own.
    """
    return for_html(shorten_paths(value)) if isinstance(value, str) and not isinstance(value, Markup) else value
