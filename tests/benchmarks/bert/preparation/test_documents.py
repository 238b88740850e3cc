"""Reading a text, compiled: the same documents as the literal reader's, for hostile text too."""

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
from benchmarks.bert.preparation.tokenization import SPECIAL_WORDS, Tokenizer, Vocabulary
from podium.core.errors import WorkError

REFERENCE = Path(__file__).parents[5] / "shared" / "data" / "wikipedia_sample"
WORDS = (
    *SPECIAL_WORDS,
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
VOCABULARY = Vocabulary(tuple(dict.fromkeys(WORDS)), "0" * 64)
WITHOUT_CONTINUATIONS = Vocabulary((*SPECIAL_WORDS, "a", "the"), "1" * 64)


def nested(documents: Documents) -> list[list[list[int]]]:
    sentences = [
        documents.tokens[slice(*documents.sentence_offsets[i : i + 2])].tolist()
        for i in range(len(documents.sentence_offsets) - 1)
    ]
    return [sentences[slice(*documents.document_offsets[i : i + 2])] for i in range(len(documents))]


def assert_read_alike(text: str, vocabulary: Vocabulary = VOCABULARY) -> None:
    found = Reader(vocabulary).read(text.encode())
    assert nested(found) == read_documents(text.split("\n"), Tokenizer(vocabulary))
    assert found.tokens.dtype == np.uint16
    assert found.sentence_offsets[0] == found.document_offsets[0] == 0
    assert found.sentence_offsets[-1] == len(found.tokens)
    assert found.document_offsets[-1] == len(found.sentence_offsets) - 1


ONE_OF_EACH_CATEGORY = {
    unicodedata.category(chr(code)): chr(code) for code in [*range(sys.maxunicode, 0xDFFF, -1), *range(0xD7FF, -1, -1)]
}
"""The smallest character of every category but Cs, which UTF-8 cannot have."""
HOSTILE = [
    *ONE_OF_EACH_CATEGORY.values(),
    *"\0\x01\t\x0b\x0c\r\x1c\x1f \x7f\x80\x85\xa0\xad\u200b\u2028\u2029\u3000\ufeff\ufffd",
    *"\u0301\u0345\u0130\u03a3\u1e9e\ufb03\u00e9\uac00\u4e00\u9fff\u3400\uf900\U00020000\U0002ceaf\U0002f800\U0002ebf0",
    *"\ue000\U0010ffff\u0378\U0001f600$+<=>^`|~_-'\"",
    *("the", "THE", "thing", "a", "z", "az", "ΑΣ", "ΑΣ.", "e\u0301", "\r\n", "\n", "\n\n", " ", "a" * 200, "b" * 201),
    *("中" * 3, "é" * 201, "\u0301" * 3, "a\rb", "a\0b", "[MASK]", "##a", "#"),
]


@given(st.lists(st.sampled_from(HOSTILE), max_size=40).map("".join))
@settings(deadline=None, max_examples=400)
def test_hostile_text_is_read_as_the_literal_reader_does(text: str) -> None:
    assert_read_alike(text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@settings(deadline=None, max_examples=150)
def test_any_text_is_read_as_the_literal_reader_does(text: str) -> None:
    assert_read_alike(text)
    assert_read_alike(text, WITHOUT_CONTINUATIONS)


def read_each(codes: Iterable[int]) -> None:
    characters = map(chr, codes)
    assert_read_alike("\n".join(f"a{c}a {c} {c}the" for c in characters if c != "\n"))


def is_telling(code: int) -> bool:
    """Whether a character may be read unlike its neighbours: in scripts with many rules, at the edge of a category or
    of a block (these are multiples of 16), and where it is changed by normalising or by case."""
    character, category = chr(code), unicodedata.category(chr(code))
    at_an_edge = category != unicodedata.category(chr(code - 1)) or category != unicodedata.category(chr(code + 1))
    is_changed = character.lower() != character or bool(unicodedata.decomposition(character))
    return at_an_edge or is_changed or (code % 16 in (0, 15) and category not in ("Cn", "Co"))


def test_every_kind_of_character_is_read_as_the_literal_reader_does() -> None:
    above = (code for code in range(0x3400, sys.maxunicode) if not 0xD800 <= code <= 0xDFFF)
    read_each([*range(0x3400), *filter(is_telling, above), sys.maxunicode])


@pytest.mark.exhaustive
def test_every_character_is_read_as_the_literal_reader_does() -> None:
    read_each(code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="real text is not on this machine (../shared)")
def test_real_text_is_read_as_the_literal_reader_does() -> None:
    vocabulary = Vocabulary.read(REFERENCE / "vocab.txt")
    text = (REFERENCE / "part-00001").read_text(encoding="utf-8")
    assert_read_alike(text, vocabulary)


def test_lines_without_a_token_are_no_sentences_and_separate_nothing() -> None:
    lines = ["", "a b", "\u00ad", "c", " \t", "\r", "\u0301", "", "d"]
    a, b, c, d = (VOCABULARY.ids[letter] for letter in "abcd")
    assert nested(Reader(VOCABULARY).read("\n".join(lines).encode())) == [[[a, b], [c]], [[d]]]


def test_lines_end_at_line_feeds_only() -> None:
    read = nested(Reader(VOCABULARY).read("a\u2028b\x85c\x0bd\re\r\nf".encode()))
    words = [[VOCABULARY.words[token] for token in sentence] for document in read for sentence in document]
    assert words == [["a", "b", "##c", "##d", "##e"], ["f"]]


@pytest.mark.parametrize("text", ["", "\n\n \n", "\u00ad", "\x01\n\x02"])
def test_a_text_without_a_token_has_no_document(text: str) -> None:
    assert len(Reader(VOCABULARY).read(text.encode())) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("é\n".encode() + b"ab\xffcd\n", r"part-7: the text is not UTF-8 at byte 5 \(invalid start byte\)"),
        ("aé".encode()[:-1], r"part-7: the text is not UTF-8 at byte 1 \(unexpected end of data\)"),
        (b"a\xed\xa0\x80", r"not UTF-8 at byte 1"),  # a lone surrogate
        ("text".encode("utf-16"), r"not UTF-8 at byte 0"),
    ],
)
def test_what_is_not_utf_8_is_named_with_its_byte(content: bytes, said: str) -> None:
    with pytest.raises(WorkError, match=said):
        Reader(VOCABULARY).read(content, "part-7")


def test_a_reader_forgets_when_it_has_seen_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MOST_REMEMBERED", 1)
    reader = Reader(VOCABULARY)
    for text in ("é ü ß\n\né", "ß é", "ö", "é"):
        assert nested(reader.read(text.encode())) == read_documents(text.split("\n"), Tokenizer(VOCABULARY))
