"""The text that is always at hand: articles in the invented language, and a vocabulary trained on them."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.sizes import TINY
from benchmarks.bert.text.language import Language
from benchmarks.bert.text.vocabulary import train_vocabulary
from benchmarks.files import make_folder, write_whole

LANGUAGE_SEED = 20_402
TRAINING_PARTS = 4
ARTICLES_A_PART = 320
EVALUATION_ARTICLES = 160


@dataclass(frozen=True)
class EmbeddedText:
    """Where the text was written."""

    training: tuple[Path, ...]
    evaluation: Path
    vocabulary: Path


def write_embedded_text(folder: Path) -> EmbeddedText:
    """Write the training parts, the evaluation text and vocab.txt into `folder`. The same bytes every time."""
    make_folder(folder)
    text = EmbeddedText(
        tuple(folder / f"part-{number:05d}" for number in range(TRAINING_PARTS)),
        folder / "eval.txt",
        folder / "vocab.txt",
    )
    language = Language(LANGUAGE_SEED)
    for number, path in enumerate((*text.training, text.evaluation), start=1):
        articles = EVALUATION_ARTICLES if path == text.evaluation else ARTICLES_A_PART
        write_whole(path, "\n".join("\n".join([*a, ""]) for a in language.articles(articles, LANGUAGE_SEED + number)))
    train_vocabulary(text.training, TINY.vocabulary_size, text.vocabulary)
    return text
