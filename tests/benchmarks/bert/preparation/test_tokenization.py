"""The vocabulary file and the tokenizer of the reference."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, Tokenizer, Vocabulary, split_at_punctuation
from podium.core.errors import UsageError

TOKENS = [*ALL_SPECIAL_TOKENS, "cat", "##s", "un", "##aff", "##able", "a", "##a", "cafe", "!", "$", "—", "中", "国"]


VOCABULARY = Vocabulary(tuple(TOKENS), "0" * 64)


def pieces(line: str) -> list[str]:
    return [TOKENS[token] for token in Tokenizer(VOCABULARY).tokenize(line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cats", ["cat", "##s"]),
        ("CATS  cat\tcat\rcat", ["cat", "##s", "cat", "cat", "cat"]),
        ("unaffable", ["un", "##aff", "##able"]),
        ("unaffables!", ["un", "##aff", "##able", "##s", "!"]),
        ("catx", ["[UNK]"]),
        ("Café cafe\u0301", ["cafe", "cafe"]),
        ("cat!$cat—cat", ["cat", "!", "$", "cat", "—", "cat"]),
        ("中国cat", ["中", "国", "cat"]),
        ("c\u00adat c\x00at c\ufffdat c\x07at \ufeffcat", ["cat"] * 5),
        ("cat\u00a0cat\u3000cat\u2028cat", ["cat"] * 4),
        ("a" * 200, ["a", *["##a"] * 199]),
        ("a" * 201, ["[UNK]"]),
        ("\u0301 \u00ad \ufffd", []),
        ("[MASK]", ["[UNK]"] * 3),
        ("", []),
    ],
)
def test_tokens_of_a_line_equal_those_of_the_reference(line: str, expected: list[str]) -> None:
    assert pieces(line) == expected


def test_every_ascii_symbol_is_punctuation_and_other_symbols_are_not() -> None:
    symbols = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    assert split_at_punctuation(f"a{symbols}b") == ["a", *symbols, "b"]
    assert split_at_punctuation("a€b") == ["a€b"]


@given(st.text(alphabet=st.characters(codec="utf-8")))
@settings(deadline=None)
def test_ids_are_in_range_and_independent_of_the_cache(line: str) -> None:
    tokenizer = Tokenizer(VOCABULARY)
    first = tokenizer.tokenize(line)
    assert tokenizer.tokenize(line) == first
    assert all(0 <= token < len(TOKENS) for token in first)
    assert not {TOKENS.index(word) for word in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")} & set(first)


def test_a_vocabulary_is_read_with_the_hash_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*ALL_SPECIAL_TOKENS, "café", "\u2028x"]).encode())
    vocabulary = Vocabulary.read(path)
    assert vocabulary.tokens == (*ALL_SPECIAL_TOKENS, "café", "x")
    assert vocabulary.ids["café"] == 5
    assert vocabulary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks [PAD] [UNK] [CLS] [SEP] [MASK]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\ncat\n", r"lacks [MASK]"),
        (
            "\n".join([*ALL_SPECIAL_TOKENS, "cat", "dog", "cat"]).encode(),
            "lines 6 and 8 of the vocabulary are both 'cat'",
        ),
        ("\n".join([*ALL_SPECIAL_TOKENS, "", "dog"]).encode(), "line 6 of the vocabulary is empty"),
        ("\n".join([*ALL_SPECIAL_TOKENS, *map(str, range(65_531))]).encode(), "65536 tokens"),
        (b"[PAD]\n\xff\n", "not UTF-8 at byte 6"),
    ],
)
def test_invalid_vocabulary_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Vocabulary.read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_largest_vocabulary_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*ALL_SPECIAL_TOKENS, *map(str, range(65_530))]), encoding="utf-8")
    assert len(Vocabulary.read(path).tokens) == 65_535


def test_missing_vocabulary_or_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such vocabulary file"):
        Vocabulary.read(tmp_path / "vocab.txt")
    with pytest.raises(UsageError, match="cannot be read"):
        Vocabulary.read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_vocabulary_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.touch(mode=0)
    with pytest.raises(UsageError, match="cannot be read"):
        Vocabulary.read(path)
