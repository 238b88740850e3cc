"""Compiled tokenization of a text: the same documents as the plain Python implementation, also for hostile text."""

import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.preparation import documents as documents_module
from benchmarks.bert.preparation.documents import Documents, Reader
from benchmarks.bert.preparation.reference import read_documents
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, Tokenizer, Vocabulary
from podium.core.errors import WorkError

SAMPLE_DATA = Path(__file__).parents[5] / "shared" / "data" / "wikipedia_sample"
TOKENS = (
    *ALL_SPECIAL_TOKENS,
    *(chr(code) for code in range(33, 127) if not chr(code).isupper()),
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxy"),  # "z" has no continuation
    *(
        "the",
        "##ing",
        "th",
        "##he",
        "##the",
        "##",
        "##é",
        "é",
        "ß",
        "σ",
        "ς",
        "##ς",
        "中",
        "##中",
        "i",
        "##\u1100",
        "—",
    ),
)
VOCABULARY = Vocabulary(tuple(dict.fromkeys(TOKENS)), "0" * 64)
WITHOUT_CONTINUATIONS = Vocabulary((*ALL_SPECIAL_TOKENS, "a", "the"), "1" * 64)


def as_lists(documents: Documents) -> list[list[list[int]]]:
    sentences = [
        documents.tokens[slice(*documents.sentence_offsets[i : i + 2])].tolist()
        for i in range(len(documents.sentence_offsets) - 1)
    ]
    return [sentences[slice(*documents.document_offsets[i : i + 2])] for i in range(len(documents))]


def assert_same_documents(text: str, vocabulary: Vocabulary = VOCABULARY) -> None:
    found = Reader(vocabulary).read(text.encode())
    assert as_lists(found) == read_documents(text.split("\n"), Tokenizer(vocabulary))
    assert found.tokens.dtype == np.uint16
    assert found.sentence_offsets[0] == found.document_offsets[0] == 0
    assert found.sentence_offsets[-1] == len(found.tokens)
    assert found.document_offsets[-1] == len(found.sentence_offsets) - 1


# The smallest character of every category except Cs (surrogates), which UTF-8 cannot encode.
ONE_CHARACTER_PER_CATEGORY = {
    unicodedata.category(chr(code)): chr(code) for code in [*range(sys.maxunicode, 0xDFFF, -1), *range(0xD7FF, -1, -1)]
}
HOSTILE = [
    *ONE_CHARACTER_PER_CATEGORY.values(),
    *"\0\x01\t\x0b\x0c\r\x1c\x1f \x7f\x80\x85\xa0\xad\u200b\u2028\u2029\u3000\ufeff\ufffd",
    *"\u0301\u0345\u0130\u03a3\u1e9e\ufb03\u00e9\uac00\u4e00\u9fff\u3400\uf900\U00020000\U0002ceaf\U0002f800\U0002ebf0",
    *"\ue000\U0010ffff\u0378\U0001f600$+<=>^`|~_-'\"",
    *("the", "THE", "thing", "a", "z", "az", "ΑΣ", "ΑΣ.", "e\u0301", "\r\n", "\n", "\n\n", " ", "a" * 200, "b" * 201),
    *("中" * 3, "é" * 201, "\u0301" * 3, "a\rb", "a\0b", "[MASK]", "##a", "#"),
]


@given(st.lists(st.sampled_from(HOSTILE), max_size=40).map("".join))
@settings(deadline=None, max_examples=400)
def test_hostile_text_is_tokenized_as_by_the_reference(text: str) -> None:
    assert_same_documents(text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@settings(deadline=None, max_examples=150)
def test_any_text_is_tokenized_as_by_the_reference(text: str) -> None:
    assert_same_documents(text)
    assert_same_documents(text, WITHOUT_CONTINUATIONS)


def check_each(codes: Iterable[int]) -> None:
    characters = map(chr, codes)
    assert_same_documents("\n".join(f"a{c}a {c} {c}the" for c in characters if c != "\n"))


def is_special(code: int) -> bool:
    """Whether a character may be tokenized unlike its neighbours.

    That is at the edge of a category or of a block (multiples of 16), and if normalisation or lower case changes it.
    """
    character, category = chr(code), unicodedata.category(chr(code))
    at_an_edge = category != unicodedata.category(chr(code - 1)) or category != unicodedata.category(chr(code + 1))
    is_changed = character.lower() != character or bool(unicodedata.decomposition(character))
    return at_an_edge or is_changed or (code % 16 in (0, 15) and category not in ("Cn", "Co"))


def test_every_kind_of_character_is_tokenized_as_by_the_reference() -> None:
    above = (code for code in range(0x3400, sys.maxunicode) if not 0xD800 <= code <= 0xDFFF)
    check_each([*range(0x3400), *filter(is_special, above), sys.maxunicode])


@pytest.mark.exhaustive
def test_every_character_is_tokenized_as_by_the_reference() -> None:
    check_each(code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)


@pytest.mark.skipif(not SAMPLE_DATA.is_dir(), reason="real text is not on this machine (../shared)")
def test_real_text_is_tokenized_as_by_the_reference() -> None:
    vocabulary = Vocabulary.read(SAMPLE_DATA / "vocab.txt")
    text = (SAMPLE_DATA / "part-00001").read_text(encoding="utf-8")
    assert_same_documents(text, vocabulary)


def test_lines_without_a_token_are_skipped_and_do_not_separate_documents() -> None:
    lines = ["", "a b", "\u00ad", "c", " \t", "\r", "\u0301", "", "d"]
    a, b, c, d = (VOCABULARY.ids[letter] for letter in "abcd")
    assert as_lists(Reader(VOCABULARY).read("\n".join(lines).encode())) == [[[a, b], [c]], [[d]]]


def test_lines_end_at_line_feeds_only() -> None:
    read = as_lists(Reader(VOCABULARY).read("a\u2028b\x85c\x0bd\re\r\nf".encode()))
    tokens = [[VOCABULARY.tokens[token] for token in sentence] for document in read for sentence in document]
    assert tokens == [["a", "b", "##c", "##d", "##e"], ["f"]]


@pytest.mark.parametrize("text", ["", "\n\n \n", "\u00ad", "\x01\n\x02"])
def test_a_text_without_a_token_has_no_document(text: str) -> None:
    assert len(Reader(VOCABULARY).read(text.encode())) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("é\n".encode() + b"ab\xffcd\n", r"part-7: the text is not UTF-8 at byte 5 \(invalid start byte\)"),
        ("aé".encode()[:-1], r"part-7: the text is not UTF-8 at byte 1 \(unexpected end of data\)"),
        (b"a\xed\xa0\x80", r"not UTF-8 at byte 1"),  # a lone surrogate
        ("text".encode("utf-16"), r"not UTF-8 at byte 0"),
    ],
)
def test_invalid_utf_8_is_reported_with_its_byte_offset(content: bytes, message: str) -> None:
    with pytest.raises(WorkError, match=message):
        Reader(VOCABULARY).read(content, "part-7")


def test_results_are_the_same_after_the_chunk_cache_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MAX_CACHED_CHUNKS", 1)
    reader = Reader(VOCABULARY)
    for text in ("é ü ß\n\né", "ß é", "ö", "é"):
        assert as_lists(reader.read(text.encode())) == read_documents(text.split("\n"), Tokenizer(VOCABULARY))
