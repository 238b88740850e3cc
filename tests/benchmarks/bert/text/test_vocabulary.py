"""A vocabulary of our own: the same bytes everywhere, and all of its text can be written with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bert.preparation.tokenization import SPECIAL_WORDS, Tokenizer, Vocabulary
from benchmarks.bert.text.language import Language
from benchmarks.bert.text.vocabulary import train_vocabulary

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    paths = []
    for number, accents in enumerate(("", "Zwölf Ähren, ÉTÉ! 東京\n")):
        paths.append(tmp_path / f"part-{number}")
        sentences = [sentence for article in Language(3).articles(5, number) for sentence in article]
        paths[-1].write_text(accents + "\n".join(sentences), encoding="utf-8")
    return paths


def test_two_processes_train_the_same_bytes(texts: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from benchmarks.bert.text.vocabulary import train_vocabulary;"
        "train_vocabulary([Path(p) for p in sys.argv[2:]], 200, Path(sys.argv[1]))"
    )
    written = set()
    for number in range(3):
        out = tmp_path / f"vocab-{number}"
        subprocess.run([sys.executable, "-c", code, str(out), *map(str, texts)], cwd=ROOT, check=True)
        written.add(out.read_bytes())
    assert len(written) == 1


def test_the_vocabulary_is_one_that_can_be_read_and_starts_with_the_special_words(
    texts: list[Path], tmp_path: Path
) -> None:
    train_vocabulary(texts, 200, tmp_path / "vocab.txt")
    vocabulary = Vocabulary.read(tmp_path / "vocab.txt")
    assert vocabulary.words[:5] == SPECIAL_WORDS
    assert len(vocabulary.words) == 200
    assert all(word == word.lower() for word in vocabulary.words[5:])


def test_no_word_of_its_text_is_unknown(texts: list[Path], tmp_path: Path) -> None:
    train_vocabulary(texts, 200, tmp_path / "vocab.txt")
    vocabulary = Vocabulary.read(tmp_path / "vocab.txt")
    tokenizer = Tokenizer(vocabulary)
    for text in texts:
        for line in text.read_text(encoding="utf-8").splitlines():
            assert vocabulary.ids["[UNK]"] not in tokenizer.tokenize(line)


def test_a_frequent_word_is_one_piece(texts: list[Path], tmp_path: Path) -> None:
    train_vocabulary(texts, 512, tmp_path / "vocab.txt")
    tokenizer = Tokenizer(Vocabulary.read(tmp_path / "vocab.txt"))
    assert len(tokenizer.tokenize(Language(3).determiners[0] + "a")) == 1
