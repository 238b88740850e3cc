"""Sample generation: equal to the MLPerf reference and to plain Python, and the properties of samples of any text."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.preparation import generation
from benchmarks.bert.preparation.documents import Reader
from benchmarks.bert.preparation.reference import generate_reference_samples
from benchmarks.bert.preparation.settings import GenerationSettings, default_max_predictions
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, Tokenizer, Vocabulary
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples
from podium.core.errors import UsageError, WorkError

SAMPLE_DATA = Path(__file__).parents[5] / "shared" / "data" / "wikipedia_sample"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = (*ALL_SPECIAL_TOKENS, *LETTERS)
VOCABULARY = Vocabulary(TOKENS, "0" * 64)
CLS, SEP, MASK = (VOCABULARY.ids[word] for word in ("[CLS]", "[SEP]", "[MASK]"))

sentences = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=30).map(" ".join)
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


def to_lines(text: list[list[str]]) -> list[str]:
    return [line for document in text for line in [*document, ""]]


def generate_samples(
    lines: list[str], vocabulary: Vocabulary = VOCABULARY, generation_settings: GenerationSettings | None = None
) -> Samples:
    """Generate samples with the compiled implementation."""
    return generation.generate_samples(
        Reader(vocabulary).read("\n".join(lines).encode()), vocabulary, generation_settings
    )


def assert_equal(found: Samples, expected: Samples) -> None:
    for name, dtype in SAMPLE_DTYPES.items():
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype == dtype, name
        assert np.array_equal(one, other), name


def unmasked_tokens(samples: Samples, index: int) -> list[int]:
    """Return the tokens of a sample before masking."""
    tokens = samples.token_ids[samples.sample_offsets[index] : samples.sample_offsets[index + 1]].copy()
    masked = slice(samples.masked_offsets[index], samples.masked_offsets[index + 1])
    tokens[samples.masked_positions[masked]] = samples.masked_token_ids[masked]
    return list(tokens.tolist())


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


@pytest.mark.skipif(not SAMPLE_DATA.is_dir(), reason="the reference's samples are not on this machine (../shared)")
def test_samples_equal_those_of_the_mlperf_reference() -> None:
    vocabulary = Vocabulary.read(SAMPLE_DATA / "vocab.txt")
    documents = Reader(vocabulary).read((SAMPLE_DATA / "part-00000").read_bytes())
    samples = generation.generate_samples(documents, vocabulary)
    with np.load(SAMPLE_DATA / "reference_samples_part-00000.npz", allow_pickle=False) as reference:
        assert set(reference.files) == set(SAMPLE_DTYPES)
        for name in reference.files:
            found = getattr(samples, name)
            assert found.dtype == reference[name].dtype, name
            assert np.array_equal(found, reference[name]), name


@pytest.mark.skipif(not SAMPLE_DATA.is_dir(), reason="the reference's samples are not on this machine (../shared)")
def test_plain_python_samples_equal_those_of_the_mlperf_reference() -> None:
    vocabulary = Vocabulary.read(SAMPLE_DATA / "vocab.txt")
    text = (SAMPLE_DATA / "part-00000").read_text(encoding="utf-8")
    samples = generate_reference_samples(text.split("\n"), vocabulary)
    with np.load(SAMPLE_DATA / "reference_samples_part-00000.npz", allow_pickle=False) as reference:
        assert_equal(samples, Samples(**{name: reference[name] for name in SAMPLE_DTYPES}))


@pytest.mark.skipif(not SAMPLE_DATA.is_dir(), reason="real text is not on this machine (../shared)")
@pytest.mark.parametrize(
    ("length", "max_predictions", "masked"), [(128, None, 19), (128, 7, 7), (64, None, 10), (33, 4, 4), (5, None, 1)]
)
def test_samples_of_other_lengths_equal_those_of_plain_python(
    length: int, max_predictions: int | None, masked: int
) -> None:
    """Source: the options max_seq_length and max_predictions_per_seq of the reference, by default 128 and 20."""
    vocabulary, generation_settings = (
        Vocabulary.read(SAMPLE_DATA / "vocab.txt"),
        GenerationSettings.from_lengths(length, max_predictions),
    )
    lines = (SAMPLE_DATA / "part-00001").read_text(encoding="utf-8").split("\n")[:1500]
    samples = generate_samples(lines, vocabulary, generation_settings)
    assert_equal(samples, generate_reference_samples(lines, vocabulary, generation_settings))
    assert np.diff(samples.sample_offsets).max() == length
    assert np.diff(samples.masked_offsets).max() == masked  # of 128: 0.15 · 128 rounded is below the 20 allowed


def test_default_max_predictions_are_published_or_a_share_of_the_length() -> None:
    lengths = {128: 20, 512: 76, 5: 1, 33: 5, 64: 10, 256: 38}
    assert {length: default_max_predictions(length) for length in lengths} == lengths
    assert GenerationSettings.from_lengths(None, None) == GenerationSettings()
    assert GenerationSettings.from_lengths(128, None) == GenerationSettings(128, 20)
    assert GenerationSettings.from_lengths(512, 512 - 3).max_predictions == 509


@pytest.mark.parametrize(
    ("length", "max_predictions", "message"),
    [
        (4, None, "max_sequence_length is 4; allowed is 5 to 65535"),
        (65536, None, "max_sequence_length is 65536; allowed is 5 to 65535"),
        (128, 0, "max_predictions is 0; allowed is 1 to 65535"),
        (128, 126, "max_predictions is 126; allowed is 1 to 125, the tokens of a sample of 128 without"),
    ],
)
def test_lengths_too_small_for_a_sample_are_errors(length: int, max_predictions: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationSettings.from_lengths(length, max_predictions)


@given(texts, some_settings)
@settings(deadline=None, max_examples=100)
def test_compiled_samples_equal_those_of_plain_python(
    text: list[list[str]], generation_settings: GenerationSettings
) -> None:
    lines = to_lines(text)
    assert_equal(
        generate_samples(lines, generation_settings=generation_settings),
        generate_reference_samples(lines, VOCABULARY, generation_settings),
    )


@pytest.mark.parametrize("documents", [1, 2, 40])
@pytest.mark.parametrize("sentences", [1, 2, 60])
def test_compiled_samples_equal_plain_python_on_many_and_long_documents(documents: int, sentences: int) -> None:
    random = np.random.default_rng(documents * 100 + sentences)
    lines: list[str] = []
    for _ in range(documents):
        lengths = random.integers(1, 90, random.integers(1, sentences + 1))
        lines += [" ".join(random.choice(list(LETTERS), length)) for length in lengths]
        lines.append("")
    for generation_settings in (None, GenerationSettings.from_lengths(128, None)):
        assert_equal(
            generate_samples(lines, generation_settings=generation_settings),
            generate_reference_samples(lines, VOCABULARY, generation_settings),
        )


@given(texts, some_settings)
@settings(deadline=None)
def test_shapes_lengths_and_masked_counts_of_any_text(
    text: list[list[str]], generation_settings: GenerationSettings
) -> None:
    samples = generate_samples(to_lines(text), VOCABULARY, generation_settings)
    lengths, masked_counts = np.diff(samples.sample_offsets), np.diff(samples.masked_offsets)

    assert {field.name: getattr(samples, field.name).dtype for field in fields(Samples)} == SAMPLE_DTYPES
    assert len(lengths) == len(masked_counts) == len(samples.first_segment_lengths) == len(samples) >= 1
    assert (samples.sample_offsets[0], samples.sample_offsets[-1]) == (0, len(samples.token_ids))
    assert (samples.masked_offsets[0], samples.masked_offsets[-1]) == (0, len(samples.masked_positions))
    assert len(samples.masked_positions) == len(samples.masked_token_ids)
    assert lengths.min() >= 5
    assert lengths.max() <= generation_settings.max_sequence_length
    for length, count in zip(lengths.tolist(), masked_counts.tolist(), strict=True):
        wanted = max(1, round(generation_settings.masked_lm_probability * length))
        assert count == min(generation_settings.max_predictions, wanted, length - 3)


@given(texts, some_settings)
@settings(deadline=None)
def test_unmasked_samples_are_text_between_special_tokens(
    text: list[list[str]], generation_settings: GenerationSettings
) -> None:
    samples = generate_samples(to_lines(text), VOCABULARY, generation_settings)
    tokenizer = Tokenizer(VOCABULARY)
    whole = [[token for line in document for token in tokenizer.tokenize(line)] for document in text]
    for index in range(len(samples)):
        tokens, first = unmasked_tokens(samples, index), int(samples.first_segment_lengths[index])
        assert [place for place, token in enumerate(tokens) if token < len(ALL_SPECIAL_TOKENS)] == [
            0,
            first - 1,
            len(tokens) - 1,
        ]
        assert (tokens[0], tokens[first - 1], tokens[-1]) == (CLS, SEP, SEP)
        assert any(contains(document, tokens[1 : first - 1]) for document in whole)
        assert any(contains(document, tokens[first:-1]) for document in whole)


@given(texts, some_settings)
@settings(deadline=None)
def test_masked_positions_are_sorted_and_never_special_tokens(
    text: list[list[str]], generation_settings: GenerationSettings
) -> None:
    samples = generate_samples(to_lines(text), VOCABULARY, generation_settings)
    for index in range(len(samples)):
        masked = slice(samples.masked_offsets[index], samples.masked_offsets[index + 1])
        positions = samples.masked_positions[masked].tolist()
        length = int(samples.sample_offsets[index + 1] - samples.sample_offsets[index])
        assert positions == sorted(set(positions))
        assert not {0, int(samples.first_segment_lengths[index]) - 1, length - 1} & set(positions)
        assert set(positions) <= set(range(length))


@given(texts)
@settings(deadline=None)
def test_carriage_returns_and_surrounding_white_space_are_ignored(text: list[list[str]]) -> None:
    lines = to_lines(text)
    plain = generate_samples(lines, VOCABULARY)
    windows = generate_samples([f"  {line}\r" for line in ["", *lines]], VOCABULARY)
    assert all(np.array_equal(getattr(plain, name), getattr(windows, name)) for name in SAMPLE_DTYPES)


def test_a_single_document_is_its_own_random_next() -> None:
    samples = generate_samples(["a b c", "d e f"], VOCABULARY)
    for index in np.flatnonzero(samples.next_sentence_labels).tolist():
        second = unmasked_tokens(samples, index)[int(samples.first_segment_lengths[index]) : -1]
        assert [TOKENS[token] for token in second] in (list("abcdef"), list("def"))
    assert samples.next_sentence_labels.any()


def test_single_sentences_always_have_a_random_next() -> None:
    samples = generate_samples(["a b c", "", "d e f"], VOCABULARY)
    assert samples.next_sentence_labels.tolist() == [1] * 20
    texts_of = {tuple(token for token in unmasked_tokens(samples, index) if token > MASK) for index in range(20)}
    letters = {"".join(TOKENS[token] for token in text) for text in texts_of}
    assert letters == {"abcdef", "defabc"}


def test_unused_sentences_of_a_chunk_are_used_in_the_next() -> None:
    generation_settings = GenerationSettings(duplicates=20, short_sequence_probability=0)
    samples = generate_samples(["a", "b", "c", "", "d"], VOCABULARY, generation_settings)
    firsts = [
        unmasked_tokens(samples, index)[1 : int(samples.first_segment_lengths[index]) - 1]
        for index in range(len(samples))
    ]
    seconds = [
        unmasked_tokens(samples, index)[int(samples.first_segment_lengths[index]) : -1] for index in range(len(samples))
    ]
    follows = [s for s, random in zip(seconds, samples.next_sentence_labels, strict=True) if not random]
    letters = [TOKENS[token] for tokens in [*firsts, *follows] for token in tokens]
    assert {letter: letters.count(letter) for letter in "abcd"} == dict.fromkeys("abcd", 20)


def test_samples_depend_on_the_seed() -> None:
    lines = ["a b c d e f g", "h i j k", "", "l m n o p"]
    one = generate_samples(lines, VOCABULARY)
    two = generate_samples(lines, VOCABULARY, GenerationSettings(seed=1))
    assert not np.array_equal(one.masked_positions, two.masked_positions)


@pytest.mark.parametrize("lines", [[], ["", "  ", "\n"], ["\u00ad"]])
def test_text_without_a_document_is_an_error(lines: list[str]) -> None:
    with pytest.raises(WorkError, match=r"part-7: there is no document in it; give a text"):
        generate_reference_samples(lines, VOCABULARY, source="part-7")


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
def test_settings_out_of_range_are_errors(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}; allowed is"):
        GenerationSettings(**{name: value})  # type: ignore[arg-type]
