"""The vocabulary and the tokenizer of MLPerf's BERT: lower case, split at punctuation, greedy WordPiece.

Source of the algorithm: MLPerf Training reference, create_pretraining_data and its BasicTokenizer and
WordpieceTokenizer.
"""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from podium.core.errors import UsageError
from podium.core.files import read_bounded

PAD, UNKNOWN, CLASSIFICATION, SEPARATOR, MASK = ALL_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_FILE_BYTES = 64 << 20  # bytes of a vocabulary file, a thousand per token; the published file has 231,508 bytes
MAX_VOCABULARY_SIZE = 65_535  # tokens of a vocabulary, so that an id fits into two bytes

MAX_CHARACTERS_PER_WORD = 200  # characters; a longer word becomes [UNK], as in the reference (max_input_chars_per_word)

# The blocks of CJK ideographs in the reference's BasicTokenizer._is_chinese_char.
_CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a WordPiece vocabulary. The id of a token is its line in the file, counted from 0."""

    tokens: tuple[str, ...] = field(repr=False)
    sha256: str  # SHA-256 of the file, in hexadecimal

    @cached_property
    def ids(self) -> Mapping[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read a vocab.txt: UTF-8, one token per line. Raises UsageError for a file that is no such vocabulary."""
        advice = "give the vocab.txt of MLPerf's BERT (UTF-8, one token per line)"
        try:
            content = read_bounded(path, MAX_FILE_BYTES)
        except FileNotFoundError:
            raise UsageError(f"{path}: there is no such vocabulary file; {advice}") from None
        except OSError as error:
            raise UsageError(f"{path}: the vocabulary cannot be read ({error.strerror}); {advice}") from error
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: the vocabulary is not UTF-8 at byte {error.start}; {advice}") from error
        tokens = tuple(line.strip() for line in text.removesuffix("\n").split("\n"))
        _check_tokens(path, tokens, advice)
        return cls(tokens, hashlib.sha256(content).hexdigest())


def _check_tokens(path: Path, tokens: tuple[str, ...], advice: str) -> None:
    """Raise UsageError unless the tokens are distinct, not empty, not too many, and include the special tokens."""
    if len(tokens) > MAX_VOCABULARY_SIZE:
        found = f"{len(tokens)} tokens, and at most {MAX_VOCABULARY_SIZE} are allowed"
        raise UsageError(f"{path}: the vocabulary has {found}; {advice}")
    first_lines: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        first = first_lines.setdefault(token, line)
        if first != line:
            raise UsageError(f"{path}: lines {first} and {line} of the vocabulary are both {token!r}; {advice}")
    missing = [token for token in ALL_SPECIAL_TOKENS if token not in first_lines]
    if missing:
        raise UsageError(f"{path}: the vocabulary lacks {' '.join(missing)}; {advice}")
    if "" in first_lines:
        raise UsageError(f"{path}: line {first_lines['']} of the vocabulary is empty; {advice}")


class _CleaningTable(dict[int, str]):
    """Table for str.translate: the replacement of each character before a line is split into words; filled lazily."""

    def __missing__(self, code: int) -> str:
        self[code] = cleaned = _clean(chr(code))
        return cleaned


def _clean(character: str) -> str:
    """Return a character's replacement: nothing for control characters, a space for white space, spaces around CJK."""
    if character in "\t\n\r":
        return " "
    category = unicodedata.category(character)
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    if category == "Zs":
        return " "
    if any(first <= ord(character) <= last for first, last in _CJK_RANGES):
        return f" {character} "
    return character


_CLEANING_TABLE = _CleaningTable()


def _is_punctuation(character: str) -> bool:
    """Whether a character is of Unicode category P or any ASCII symbol, also those outside of category P ($, +, ~)."""
    if character.isascii():
        return 33 <= ord(character) <= 126 and not character.isalnum()
    return unicodedata.category(character).startswith("P")


def split_at_punctuation(word: str) -> list[str]:
    """Split a word so that each punctuation character is a separate part."""
    parts: list[str] = []
    inside = False
    for character in word:
        if _is_punctuation(character):
            parts.append(character)
            inside = False
        elif inside:
            parts[-1] += character
        else:
            parts.append(character)
            inside = True
    return parts


class Tokenizer:
    """WordPiece tokenizer of lines; the tokens of each distinct word are cached."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._unknown = vocabulary.ids[UNKNOWN]
        self._seen: dict[str, tuple[int, ...]] = {}

    def tokenize(self, line: str) -> list[int]:
        """Return the token ids of one line, without special tokens; empty if the line has no text."""
        seen = self._seen
        tokens: list[int] = []
        for word in line.translate(_CLEANING_TABLE).split():
            pieces = seen.get(word)
            if pieces is None:
                pieces = seen[word] = self._tokenize_word(word)
            tokens.extend(pieces)
        return tokens

    def _tokenize_word(self, word: str) -> tuple[int, ...]:
        # Lower case first, then decompose and drop the accents (category Mn): the reference's order.
        decomposed = unicodedata.normalize("NFD", word.lower())
        without_accents = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        parts = split_at_punctuation(without_accents)
        return tuple(piece for part in parts for piece in self._tokenize_part(part))

    def _tokenize_part(self, part: str) -> list[int]:
        """Greedy WordPiece: the longest token at the start, then the longest '##' tokens; [UNK] if one is missing."""
        if len(part) > MAX_CHARACTERS_PER_WORD:
            return [self._unknown]
        pieces: list[int] = []
        start = 0
        while start < len(part):
            prefix = "##" if start else ""
            for end in range(len(part), start, -1):
                piece = self._ids.get(prefix + part[start:end])
                if piece is not None:
                    break
            else:
                return [self._unknown]
            pieces.append(piece)
            start = end
        return pieces
