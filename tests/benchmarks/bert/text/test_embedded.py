"""The embedded text: the same bytes every time, and samples as mixed in length as Wikipedia's."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.preparation.generation import generate_samples
from benchmarks.bert.preparation.reading import Reader
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.sizes import TINY
from benchmarks.bert.text.embedded import EmbeddedText, write_embedded_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedText:
    return write_embedded_text(tmp_path_factory.mktemp("embedded"))


def files(text: EmbeddedText) -> list[Path]:
    return [*text.training, text.evaluation, text.vocabulary]


def test_it_is_the_same_every_time(text: EmbeddedText, tmp_path: Path) -> None:
    again = write_embedded_text(tmp_path / "new" / "folder")
    for one, two in zip(files(text), files(again), strict=True):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes()
    assert sorted(again.vocabulary.parent.iterdir()) == sorted(files(again))


def test_no_article_occurs_twice(text: EmbeddedText) -> None:
    articles = [a for path in files(text)[:-1] for a in path.read_text(encoding="utf-8").strip("\n").split("\n\n")]
    assert len(articles) == 4 * 320 + 160
    longer = [article for article in articles if article.count("\n") > 2]
    assert len(set(longer)) == len(longer) > 1000


def test_the_vocabulary_knows_every_word_of_the_evaluation_text(text: EmbeddedText) -> None:
    vocabulary = Vocabulary.read(text.vocabulary)
    assert len(vocabulary.words) == TINY.vocabulary_size
    assert vocabulary.ids["[UNK]"] not in Reader(vocabulary).read(text.evaluation.read_bytes()).tokens


def test_samples_are_as_mixed_in_length_as_wikipedia_s(text: EmbeddedText) -> None:
    vocabulary, once = Vocabulary.read(text.vocabulary), GenerationSettings(duplicates=2)
    parts = [Reader(vocabulary).read(part.read_bytes()) for part in text.training]
    lengths = np.concatenate([np.diff(generate_samples(part, vocabulary, once).sample_offsets) for part in parts])
    assert 220 < lengths.mean() < 290
    assert lengths.max() <= 512
    batches = np.random.default_rng(0).choice(lengths, (100, 64))
    padding = 1 - batches.sum(axis=1) / (64 * 512)
    assert np.all((padding > 0.35) & (padding < 0.65))
    assert 0.4 < padding.mean() < 0.6
