"""Text from anywhere, made fit to be shown: what a reader sees is what is there, and it keeps its place."""

import re

LONGEST = 600
"""Characters of one value; what is longer is cut."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""Control characters, marks that change the direction of the text around them, halves of surrogate pairs and
noncharacters: none is allowed in XML or none can be seen."""
_SEPARATORS = str.maketrans({"\r": " ", "\u2028": " ", "\u2029": " "})


def shown(text: str, longest: int = LONGEST) -> str:
    """The text with U+FFFD for each character that cannot be seen, cut to `longest` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return printable(cut)


def brief(text: str, longest: int) -> str:
    """As `shown`, on one line: what stands beside an axis or in a legend."""
    return shown(" ".join(text.split()) or "–", longest)


def printable(text: str) -> str:
    """As `shown`, uncut."""
    return _UNSEEN.sub("\ufffd", text.translate(_SEPARATORS))
