"""Text from files and users, made safe for the place it is shown in: a terminal, HTML and SVG, a single line."""

import re
from collections.abc import Sequence
from unicodedata import category

LONGEST_IN_HTML = 600
LONGEST_LINE = 300

# Control, format (such as right-to-left marks), surrogate and private-use characters, line and paragraph separators.
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
# Control characters, direction marks, surrogates and noncharacters: not allowed in XML, or invisible.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_SEPARATORS = str.maketrans({"\r": " ", "\u2028": " ", "\u2029": " "})


def printable(text: str, keep: str = "") -> str:
    """Text with escapes for every character that a terminal might act on or cannot print, except those in `keep`."""
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if category(character) in _UNPRINTABLE and character not in keep
        else character
        for character in text
    )


def is_printable(name: str) -> bool:
    """Whether a file name can be printed in a terminal as it is."""
    return printable(name) == name


def for_html(text: str, longest: int = LONGEST_IN_HTML) -> str:
    """Text with U+FFFD for each invisible character, cut to `longest` characters; the caller escapes the markup."""
    return for_xml(cut(text, longest))


def for_xml(text: str) -> str:
    """Text with U+FFFD for each invisible character, uncut."""
    return _INVISIBLE.sub("\ufffd", text.translate(_SEPARATORS))


def label(text: str, longest: int) -> str:
    """Text as `for_html` on one line, as it stands beside an axis or in a legend; a dash for empty text."""
    return for_html(" ".join(text.split()) or "–", longest)


def one_line(text: str) -> str:
    """Printable characters on one line of at most LONGEST_LINE characters, spaces for all others."""
    start = text[: 4 * LONGEST_LINE]
    readable = "".join(character if character.isprintable() else " " for character in start)
    return " ".join(readable.split())[:LONGEST_LINE]


def cut(text: str, longest: int) -> str:
    """Text of at most `longest` characters, with … where the rest was cut."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first `most` names with commas between them, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def quoted(value: object) -> str:
    """A value for an error message: on one line of at most 60 characters."""
    try:
        return cut(repr(value), 60)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists without end
        return f"a value of type {type(value).__name__} that cannot be shown"
