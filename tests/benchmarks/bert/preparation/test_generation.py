"""Sample generation: equal to the reference and to the literal algorithm, and what must hold for any text."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.preparation import generation
from benchmarks.bert.preparation.documents import Reader
from benchmarks.bert.preparation.reference import generate_literally
from benchmarks.bert.preparation.settings import GenerationSettings, usual_max_predictions
from benchmarks.bert.preparation.tokenization import SPECIAL_WORDS, Tokenizer, Vocabulary
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples
from podium.core.errors import UsageError, WorkError

REFERENCE = Path(__file__).parents[5] / "shared" / "data" / "wikipedia_sample"
TEXT_WORDS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (*SPECIAL_WORDS, *TEXT_WORDS)
VOCABULARY = Vocabulary(WORDS, "0" * 64)
CLS, SEP, MASK = (VOCABULARY.ids[word] for word in ("[CLS]", "[SEP]", "[MASK]"))

sentences = st.lists(st.sampled_from(TEXT_WORDS), min_size=1, max_size=30).map(" ".join)
documents = st.lists(sentences, min_size=1, max_size=8)
texts = st.lists(documents, min_size=1, max_size=5)
some_settings = st.builds(
    GenerationSettings,
    max_sequence_length=st.integers(5, 140),
    max_predictions=st.integers(1, 20),
    masked_lm_probability=st.floats(0, 1),
    duplicates=st.integers(1, 3),
    short_sequence_probability=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)


def lines_of(text: list[list[str]]) -> list[str]:
    return [line for document in text for line in [*document, ""]]


def generate_samples(
    lines: list[str], vocabulary: Vocabulary = VOCABULARY, chosen: GenerationSettings | None = None
) -> Samples:
    """By the compiled algorithm."""
    return generation.generate_samples(Reader(vocabulary).read("\n".join(lines).encode()), vocabulary, chosen)


def assert_equal(found: Samples, expected: Samples) -> None:
    for name, dtype in SAMPLE_DTYPES.items():
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype == dtype, name
        assert np.array_equal(one, other), name


def originals_of(samples: Samples, index: int) -> list[int]:
    """The tokens of a sample before masking."""
    tokens = samples.token_ids[samples.sample_offsets[index] : samples.sample_offsets[index + 1]].copy()
    masked = slice(samples.masked_offsets[index], samples.masked_offsets[index + 1])
    tokens[samples.masked_positions[masked]] = samples.masked_token_ids[masked]
    return list(tokens.tolist())


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference's samples are not on this machine (../shared)")
def test_the_samples_are_those_of_the_reference() -> None:
    vocabulary = Vocabulary.read(REFERENCE / "vocab.txt")
    documents = Reader(vocabulary).read((REFERENCE / "part-00000").read_bytes())
    samples = generation.generate_samples(documents, vocabulary)
    with np.load(REFERENCE / "reference_samples_part-00000.npz", allow_pickle=False) as reference:
        assert set(reference.files) == set(SAMPLE_DTYPES)
        for name in reference.files:
            found = getattr(samples, name)
            assert found.dtype == reference[name].dtype, name
            assert np.array_equal(found, reference[name]), name


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference's samples are not on this machine (../shared)")
def test_the_literal_algorithm_is_the_reference_s() -> None:
    vocabulary = Vocabulary.read(REFERENCE / "vocab.txt")
    text = (REFERENCE / "part-00000").read_text(encoding="utf-8")
    samples = generate_literally(text.split("\n"), vocabulary)
    with np.load(REFERENCE / "reference_samples_part-00000.npz", allow_pickle=False) as reference:
        assert_equal(samples, Samples(**{name: reference[name] for name in SAMPLE_DTYPES}))


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="real text is not on this machine (../shared)")
@pytest.mark.parametrize(
    ("length", "most", "masked"), [(128, None, 19), (128, 7, 7), (64, None, 10), (33, 4, 4), (5, None, 1)]
)
def test_samples_of_other_lengths_of_real_text_are_the_literal_algorithm_s(
    length: int, most: int | None, masked: int
) -> None:
    """Source: the reference's own options max_seq_length and max_predictions_per_seq, 128 and 20 by default."""
    vocabulary, chosen = Vocabulary.read(REFERENCE / "vocab.txt"), GenerationSettings.of_lengths(length, most)
    lines = (REFERENCE / "part-00001").read_text(encoding="utf-8").split("\n")[:1500]
    samples = generate_samples(lines, vocabulary, chosen)
    assert_equal(samples, generate_literally(lines, vocabulary, chosen))
    assert np.diff(samples.sample_offsets).max() == length
    assert np.diff(samples.masked_offsets).max() == masked  # of 128: 0.15 · 128 rounded is below the 20 allowed


def test_masked_tokens_are_the_published_numbers_or_the_share_of_the_length() -> None:
    lengths = {128: 20, 512: 76, 5: 1, 33: 5, 64: 10, 256: 38}
    assert {length: usual_max_predictions(length) for length in lengths} == lengths
    assert GenerationSettings.of_lengths(None, None) == GenerationSettings()
    assert GenerationSettings.of_lengths(128, None) == GenerationSettings(128, 20)
    assert GenerationSettings.of_lengths(512, 512 - 3).max_predictions == 509


@pytest.mark.parametrize(
    ("length", "most", "words"),
    [
        (4, None, "max_sequence_length is 4; allowed is 5 to 65535"),
        (65536, None, "max_sequence_length is 65536; allowed is 5 to 65535"),
        (128, 0, "max_predictions is 0; allowed is 1 to 65535"),
        (128, 126, "max_predictions is 126; allowed is 1 to 125, the tokens of a sample of 128 without"),
    ],
)
def test_lengths_that_make_no_sample_are_refused(length: int, most: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GenerationSettings.of_lengths(length, most)


@given(texts, some_settings)
@settings(deadline=None, max_examples=100)
def test_the_compiled_algorithm_is_the_literal_one(text: list[list[str]], chosen: GenerationSettings) -> None:
    lines = lines_of(text)
    assert_equal(generate_samples(lines, chosen=chosen), generate_literally(lines, VOCABULARY, chosen))


@pytest.mark.parametrize("documents", [1, 2, 40])
@pytest.mark.parametrize("sentences", [1, 2, 60])
def test_the_algorithms_agree_on_many_and_long_documents(documents: int, sentences: int) -> None:
    random = np.random.default_rng(documents * 100 + sentences)
    lines: list[str] = []
    for _ in range(documents):
        lengths = random.integers(1, 90, random.integers(1, sentences + 1))
        lines += [" ".join(random.choice(list(TEXT_WORDS), length)) for length in lengths]
        lines.append("")
    for chosen in (None, GenerationSettings.of_lengths(128, None)):
        assert_equal(generate_samples(lines, chosen=chosen), generate_literally(lines, VOCABULARY, chosen))


@given(texts, some_settings)
@settings(deadline=None)
def test_what_holds_for_any_text(text: list[list[str]], chosen: GenerationSettings) -> None:
    samples = generate_samples(lines_of(text), VOCABULARY, chosen)
    lengths, masked_counts = np.diff(samples.sample_offsets), np.diff(samples.masked_offsets)

    assert {field.name: getattr(samples, field.name).dtype for field in fields(Samples)} == SAMPLE_DTYPES
    assert len(lengths) == len(masked_counts) == len(samples.first_segment_lengths) == len(samples) >= 1
    assert (samples.sample_offsets[0], samples.sample_offsets[-1]) == (0, len(samples.token_ids))
    assert (samples.masked_offsets[0], samples.masked_offsets[-1]) == (0, len(samples.masked_positions))
    assert len(samples.masked_positions) == len(samples.masked_token_ids)
    assert lengths.min() >= 5
    assert lengths.max() <= chosen.max_sequence_length
    for length, count in zip(lengths.tolist(), masked_counts.tolist(), strict=True):
        wanted = max(1, round(chosen.masked_lm_probability * length))
        assert count == min(chosen.max_predictions, wanted, length - 3)


@given(texts, some_settings)
@settings(deadline=None)
def test_without_masks_a_sample_is_text_between_special_tokens(
    text: list[list[str]], chosen: GenerationSettings
) -> None:
    samples = generate_samples(lines_of(text), VOCABULARY, chosen)
    tokenizer = Tokenizer(VOCABULARY)
    whole = [[token for line in document for token in tokenizer.tokenize(line)] for document in text]
    for index in range(len(samples)):
        tokens, first = originals_of(samples, index), int(samples.first_segment_lengths[index])
        assert [place for place, token in enumerate(tokens) if token < len(SPECIAL_WORDS)] == [
            0,
            first - 1,
            len(tokens) - 1,
        ]
        assert (tokens[0], tokens[first - 1], tokens[-1]) == (CLS, SEP, SEP)
        assert any(contains(document, tokens[1 : first - 1]) for document in whole)
        assert any(contains(document, tokens[first:-1]) for document in whole)


@given(texts, some_settings)
@settings(deadline=None)
def test_masks_are_sorted_and_spare_the_special_tokens(text: list[list[str]], chosen: GenerationSettings) -> None:
    samples = generate_samples(lines_of(text), VOCABULARY, chosen)
    for index in range(len(samples)):
        masked = slice(samples.masked_offsets[index], samples.masked_offsets[index + 1])
        positions = samples.masked_positions[masked].tolist()
        length = int(samples.sample_offsets[index + 1] - samples.sample_offsets[index])
        assert positions == sorted(set(positions))
        assert not {0, int(samples.first_segment_lengths[index]) - 1, length - 1} & set(positions)
        assert set(positions) <= set(range(length))


@given(texts)
@settings(deadline=None)
def test_only_the_lines_matter_not_how_they_end(text: list[list[str]]) -> None:
    lines = lines_of(text)
    plain = generate_samples(lines, VOCABULARY)
    windows = generate_samples([f"  {line}\r" for line in ["", *lines]], VOCABULARY)
    assert all(np.array_equal(getattr(plain, name), getattr(windows, name)) for name in SAMPLE_DTYPES)


def test_a_single_document_is_its_own_random_next() -> None:
    samples = generate_samples(["a b c", "d e f"], VOCABULARY)
    for index in np.flatnonzero(samples.next_sentence_labels).tolist():
        second = originals_of(samples, index)[int(samples.first_segment_lengths[index]) : -1]
        assert [WORDS[token] for token in second] in (list("abcdef"), list("def"))
    assert samples.next_sentence_labels.any()


def test_one_sentence_always_has_a_random_next() -> None:
    samples = generate_samples(["a b c", "", "d e f"], VOCABULARY)
    assert samples.next_sentence_labels.tolist() == [1] * 20
    texts_of = {tuple(token for token in originals_of(samples, index) if token > MASK) for index in range(20)}
    letters = {"".join(WORDS[token] for token in text) for text in texts_of}
    assert letters == {"abcdef", "defabc"}


def test_the_unused_sentences_of_a_chunk_are_put_back() -> None:
    chosen = GenerationSettings(duplicates=20, short_sequence_probability=0)
    samples = generate_samples(["a", "b", "c", "", "d"], VOCABULARY, chosen)
    firsts = [
        originals_of(samples, index)[1 : int(samples.first_segment_lengths[index]) - 1] for index in range(len(samples))
    ]
    seconds = [
        originals_of(samples, index)[int(samples.first_segment_lengths[index]) : -1] for index in range(len(samples))
    ]
    follows = [s for s, random in zip(seconds, samples.next_sentence_labels, strict=True) if not random]
    letters = [WORDS[token] for tokens in [*firsts, *follows] for token in tokens]
    assert {letter: letters.count(letter) for letter in "abcd"} == dict.fromkeys("abcd", 20)


def test_other_seeds_make_other_samples() -> None:
    lines = ["a b c d e f g", "h i j k", "", "l m n o p"]
    one = generate_samples(lines, VOCABULARY)
    two = generate_samples(lines, VOCABULARY, GenerationSettings(seed=1))
    assert not np.array_equal(one.masked_positions, two.masked_positions)


@pytest.mark.parametrize("lines", [[], ["", "  ", "\n"], ["\u00ad"]])
def test_a_text_without_a_document_is_refused(lines: list[str]) -> None:
    with pytest.raises(WorkError, match=r"part-7: there is no document in it; give a text"):
        generate_literally(lines, VOCABULARY, source="part-7")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_sequence_length", 4),
        ("max_sequence_length", 65_536),
        ("max_predictions", 0),
        ("masked_lm_probability", 1.5),
        ("masked_lm_probability", float("nan")),
        ("duplicates", 0),
        ("short_sequence_probability", -0.1),
        ("seed", -1),
    ],
)
def test_impossible_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}; allowed is"):
        GenerationSettings(**{name: value})  # type: ignore[arg-type]
