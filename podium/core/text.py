"""Untrusted text made safe for display in a terminal, in HTML and SVG, or on a single line."""

import difflib
import re
from collections.abc import Sequence
from unicodedata import category

MAX_HTML_CHARACTERS = 600
LONGEST_LINE = 300

# Control, format (such as right-to-left marks), surrogate and private-use characters, line and paragraph separators.
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
# Control characters, direction marks, surrogates and noncharacters: not allowed in XML, or invisible.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_SEPARATORS = str.maketrans({"\r": " ", "\u2028": " ", "\u2029": " "})


def printable(text: str, keep: str = "") -> str:
    """Escape every character that a terminal might interpret or cannot print, except those in `keep`."""
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if category(character) in _UNPRINTABLE and character not in keep
        else character
        for character in text
    )


def is_printable(name: str) -> bool:
    """Whether `printable` leaves a text unchanged."""
    return printable(name) == name


def for_html(text: str, longest: int = MAX_HTML_CHARACTERS) -> str:
    """Replace invisible characters by U+FFFD and truncate to `longest` characters; the caller escapes markup."""
    return for_xml(truncate(text, longest))


def for_xml(text: str) -> str:
    """Replace invisible characters and characters that XML forbids by U+FFFD; the caller escapes markup."""
    return _INVISIBLE.sub("\ufffd", text.translate(_SEPARATORS))


def label(text: str, longest: int) -> str:
    """Text for an axis label or a legend: as `for_html`, on one line; a dash if it is empty."""
    return for_html(" ".join(text.split()) or "–", longest)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """One line of at most `longest` characters, with runs of spaces and unprintable characters as one space."""
    start = text[: 4 * longest]  # bounds the time for a huge text
    readable = "".join(character if character.isprintable() else " " for character in start)
    return " ".join(readable.split())[:longest]


def truncate(text: str, longest: int) -> str:
    """Truncate text to at most `longest` characters, the last of them … if anything was cut off."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shorten_middle(text: str, longest: int) -> str:
    """Truncate text to at most `longest` characters, with … in place of its middle."""
    kept = max(longest, 1) - 1
    return text if len(text) <= longest else f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def format_list(names: Sequence[str], most: int = 12) -> str:
    """Join the first `most` names with commas, and append the number of the others, such as ` and 3 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return ` (did you mean …?)` with the name that is most like one that does not exist; empty if none is."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def short_repr(value: object) -> str:
    """repr of a value for an error message, truncated to 60 characters."""
    try:
        return truncate(repr(value), 60)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or lists nested too deeply
        return f"a value of type {type(value).__name__} that cannot be shown"
