"""The embedded text: constant bytes, sample lengths like Wikipedia's. Vocabularies: constant bytes, full coverage."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.demo_text import EmbeddedText, Language, train_vocabulary, write_embedded_text
from benchmarks.bert.preparation.documents import Reader
from benchmarks.bert.preparation.generation import generate_samples
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, Tokenizer, Vocabulary
from benchmarks.bert.sizes import TINY


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedText:
    return write_embedded_text(tmp_path_factory.mktemp("embedded") / "new" / "folder")


def files(text: EmbeddedText) -> list[Path]:
    return [*text.training, text.evaluation, text.vocabulary]


def test_embedded_text_has_constant_bytes(text: EmbeddedText) -> None:
    # is_written compares with a constant hash
    assert text.is_written()
    assert sorted(text.vocabulary.parent.iterdir()) == sorted(files(text))


def test_changed_byte_is_detected(text: EmbeddedText, tmp_path: Path) -> None:
    copy = EmbeddedText.of(tmp_path / "copy")
    assert not copy.is_written()
    shutil.copytree(text.evaluation.parent, tmp_path / "copy")
    assert copy.is_written()
    copy.evaluation.write_bytes(copy.evaluation.read_bytes().replace(b"a", b"b", 1))
    assert not copy.is_written()


def test_no_article_occurs_twice(text: EmbeddedText) -> None:
    articles = [a for path in files(text)[:-1] for a in path.read_text(encoding="utf-8").strip("\n").split("\n\n")]
    assert len(articles) == 4 * 320 + 160
    longer = [article for article in articles if article.count("\n") > 2]
    assert len(set(longer)) == len(longer) > 1000


def test_vocabulary_covers_the_evaluation_text(text: EmbeddedText) -> None:
    vocabulary = Vocabulary.read(text.vocabulary)
    assert len(vocabulary.tokens) == TINY.vocabulary_size
    assert vocabulary.ids["[UNK]"] not in Reader(vocabulary).read(text.evaluation.read_bytes()).tokens


def test_sample_lengths_vary_like_wikipedias(text: EmbeddedText) -> None:
    vocabulary, once = Vocabulary.read(text.vocabulary), GenerationSettings(duplicates=2)
    parts = [Reader(vocabulary).read(part.read_bytes()) for part in text.training]
    lengths = np.concatenate([np.diff(generate_samples(part, vocabulary, once).sample_offsets) for part in parts])
    assert 220 < lengths.mean() < 290
    assert lengths.max() <= 512
    batches = np.random.default_rng(0).choice(lengths, (100, 64))
    padding = 1 - batches.sum(axis=1) / (64 * 512)
    assert np.all((padding > 0.35) & (padding < 0.65))
    assert 0.4 < padding.mean() < 0.6


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    paths = []
    for number, accents in enumerate(("", "Zwölf Ähren, ÉTÉ! 東京\n")):
        paths.append(tmp_path / f"part-{number}")
        sentences = [sentence for article in Language(3).articles(5, number) for sentence in article]
        paths[-1].write_text(accents + "\n".join(sentences), encoding="utf-8")
    return paths


def test_two_processes_train_the_same_vocabulary(texts: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from benchmarks.bert.demo_text import train_vocabulary;"
        "train_vocabulary([Path(p) for p in sys.argv[2:]], 200, Path(sys.argv[1]))"
    )
    written = set()
    for number in range(2):
        out = tmp_path / f"vocab-{number}"
        subprocess.run([sys.executable, "-c", code, str(out), *map(str, texts)], cwd=ROOT, check=True)
        written.add(out.read_bytes())
    assert len(written) == 1


def test_vocabulary_starts_with_the_special_words(texts: list[Path], tmp_path: Path) -> None:
    train_vocabulary(texts, 200, tmp_path / "vocab.txt")
    vocabulary = Vocabulary.read(tmp_path / "vocab.txt")
    assert vocabulary.tokens[:5] == ALL_SPECIAL_TOKENS
    assert len(vocabulary.tokens) == 200
    assert all(word == word.lower() for word in vocabulary.tokens[5:])


def test_vocabulary_covers_its_training_text(texts: list[Path], tmp_path: Path) -> None:
    train_vocabulary(texts, 200, tmp_path / "vocab.txt")
    vocabulary = Vocabulary.read(tmp_path / "vocab.txt")
    tokenizer = Tokenizer(vocabulary)
    for text in texts:
        for line in text.read_text(encoding="utf-8").splitlines():
            assert vocabulary.ids["[UNK]"] not in tokenizer.tokenize(line)


def test_frequent_word_is_one_token(texts: list[Path], tmp_path: Path) -> None:
    train_vocabulary(texts, 512, tmp_path / "vocab.txt")
    tokenizer = Tokenizer(Vocabulary.read(tmp_path / "vocab.txt"))
    assert len(tokenizer.tokenize(Language(3).determiners[0] + "a")) == 1
