"""Demo text without a download: generated articles in an invented language, and training of WordPiece vocabularies.

The text has MLPerf's format: one sentence a line, a blank line between articles. A model can learn from the language,
from the nearest to the farthest dependency:

- word classes and their order: connective, determiner, adjective, noun, verb, preposition;
- agreement: determiner, adjective and noun share gender and number by their endings, the verb takes its subject's
  number;
- collocations: a noun prefers one adjective and one verb, a verb one object and one preposition;
- topics: an article uses the vocabulary of one topic, so sentences of one article fit together and a sentence of
  another one does not: next-sentence prediction can be learned.

Article lengths are log-normal, truncated so that sample lengths vary like Wikipedia's. The only source of randomness is
`random.Random.random`, whose sequence Python guarantees, so a seed gives the same bytes on every Python version.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self, TypeVar

from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, UNKNOWN
from benchmarks.bert.sizes import TINY
from podium.core.files import make_folder, write_if_changed

T = TypeVar("T")

GENDERS = ("a", "o", "i")
NUMBERS = ("", "n")
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr", "kl", "st")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "l", "n", "r", "s")


TOPICS, CONNECTIVES, PREPOSITIONS = 8, 4, 4
NOUNS, ADJECTIVES, VERBS, PLACES = 4, 3, 3, 2  # in each topic
PREFERENCE = 0.9  # probability of a word's preferred collocation
# Mean and standard deviation of the logarithm of an article's number of sentences.
MEAN_LOG_SENTENCES, STD_LOG_SENTENCES = 3.25, 1.25


@dataclass(frozen=True)
class Noun:
    """A noun with its gender, and the indices of its preferred adjective and verb in the topic."""

    stem: str
    gender: int
    adjective: int
    verb: int


@dataclass(frozen=True)
class Verb:
    """A verb with the indices of its preferred object, preposition and place."""

    stem: str
    object: int
    preposition: int
    place: int


@dataclass(frozen=True)
class Topic:
    """The vocabulary of one topic."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[Verb, ...]
    places: tuple[Noun, ...]


class Language:
    """A random language: words and collocations are drawn from the seed, articles from the language."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._words: set[str] = set()
        self.determiners = tuple(self._draw_word(1) for _ in range(2))
        self.connectives = tuple(self._draw_word(2) for _ in range(CONNECTIVES))
        self.prepositions = tuple(self._draw_word(1) for _ in range(PREPOSITIONS))
        self.topics = tuple(self._draw_topic() for _ in range(TOPICS))

    def articles(self, count: int, seed: int) -> Iterator[list[str]]:
        """Generate `count` articles, each a list of sentences; they depend on `seed` and not on earlier calls."""
        self._rng = Random(seed)
        for _ in range(count):
            topic = self._pick(self.topics)
            # Box–Muller, since only `random` has a guaranteed sequence, and `gauss` has not
            radius = math.sqrt(-2.0 * math.log(1.0 - self._rng.random()))
            angle = 2.0 * math.pi * self._rng.random()
            sentences = math.exp(MEAN_LOG_SENTENCES + STD_LOG_SENTENCES * radius * math.cos(angle))
            yield [self._draw_sentence(topic) for _ in range(max(2, round(sentences)))]

    # Words

    def _draw_word(self, syllables: int) -> str:
        while True:
            parts = [self._pick(ONSETS) + self._pick(VOWELS) for _ in range(syllables)]
            word = "".join(parts) + self._pick(CODAS)
            if word not in self._words:
                self._words.add(word)
                return word

    def _draw_noun(self) -> Noun:
        return Noun(
            self._draw_word(2), self._draw_below(len(GENDERS)), self._draw_below(ADJECTIVES), self._draw_below(VERBS)
        )

    def _draw_topic(self) -> Topic:
        return Topic(
            nouns=tuple(self._draw_noun() for _ in range(NOUNS)),
            adjectives=tuple(self._draw_word(2) for _ in range(ADJECTIVES)),
            verbs=tuple(
                Verb(
                    self._draw_word(2),
                    self._draw_below(NOUNS),
                    self._draw_below(PREPOSITIONS),
                    self._draw_below(PLACES),
                )
                for _ in range(VERBS)
            ),
            places=tuple(self._draw_noun() for _ in range(PLACES)),
        )

    # Sentences

    def _draw_sentence(self, topic: Topic) -> str:
        subject, number = self._pick(topic.nouns), self._draw_below(2)
        verb = self._pick_preferred(topic.verbs, subject.verb)
        words = self._draw_noun_phrase(topic, subject, number)
        words.append(verb.stem + ("es" if number == 0 else "um"))
        words += self._draw_noun_phrase(topic, self._pick_preferred(topic.nouns, verb.object), self._draw_below(2))
        if self._chance(0.5):
            words.append(self._pick_preferred(self.prepositions, verb.preposition))
            words += self._draw_noun_phrase(topic, self._pick_preferred(topic.places, verb.place), 0)
        if self._chance(0.25):
            words = [self._pick(self.connectives), ",", *words]
        return " ".join(words).replace(" ,", ",") + "."

    def _draw_noun_phrase(self, topic: Topic, noun: Noun, number: int) -> list[str]:
        ending = GENDERS[noun.gender] + NUMBERS[number]
        phrase = [self.determiners[number] + GENDERS[noun.gender]]
        if self._chance(0.5):
            phrase.append(self._pick_preferred(topic.adjectives, noun.adjective) + ending)
        phrase.append(noun.stem + ending)
        return phrase

    # Draws

    def _draw_below(self, bound: int) -> int:
        return int(self._rng.random() * bound)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[self._draw_below(len(options))]

    def _pick_preferred(self, options: Sequence[T], preferred: int) -> T:
        return options[preferred] if self._chance(PREFERENCE) else self._pick(options)


CONTINUATION = "##"


def train_vocabulary(texts: Sequence[Path], size: int, out: Path) -> None:
    """Train a lower-case WordPiece vocabulary of at most `size` words and write it to `out`.

    One word a line, special words first, as BERT expects. The same texts and size give the same bytes.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters: set[str] = set()
    for text in texts:
        with text.open(encoding="utf-8") as lines:
            for line in lines:
                characters.update(normalizer.normalize_str(line))
    # The `tokenizers` library numbers characters in an order that differs between processes, and breaks ties by these
    # numbers. Passed as special tokens, they are numbered in sorted order.
    alphabet = sorted(character for character in characters if not character.isspace())
    numbered = [*ALL_SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=numbered, continuing_subword_prefix=CONTINUATION, show_progress=False
    )
    tokenizer.train([str(text) for text in texts], trainer)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    words = sorted(ids, key=lambda word: ids[word])
    write_if_changed(out, "".join(f"{word}\n" for word in words))


LANGUAGE_SEED = 20_402
TRAINING_PARTS = 4
ARTICLES_PER_PART = 320
EVALUATION_ARTICLES = 160
TEXT_SHA256 = (
    "c18ad6310a6e9aae591ca9a995382fbe452de6cba357fb23c4df1c5184dbaf0a"  # of all files, concatenated in their order
)


@dataclass(frozen=True)
class EmbeddedText:
    """Paths of the embedded text's files in a folder."""

    training: tuple[Path, ...]
    evaluation: Path
    vocabulary: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The paths in `folder`, whether the files exist or not."""
        parts = tuple(folder / f"part-{number:05d}" for number in range(TRAINING_PARTS))
        return cls(parts, folder / "eval.txt", folder / "vocab.txt")

    def is_written(self) -> bool:
        """Whether all files exist with the bytes that `write_embedded_text` writes."""
        files = (*self.training, self.evaluation, self.vocabulary)
        if not all(file.is_file() for file in files):
            return False
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() == TEXT_SHA256


def write_embedded_text(folder: Path) -> EmbeddedText:
    """Write the training parts, the evaluation text and vocab.txt into `folder`, which may be missing.

    The bytes are always the same. Files that are up to date are not written again, so the folder may be read-only.
    """
    make_folder(folder)
    text = EmbeddedText.of(folder)
    language = Language(LANGUAGE_SEED)
    for number, path in enumerate((*text.training, text.evaluation), start=1):
        articles = EVALUATION_ARTICLES if path == text.evaluation else ARTICLES_PER_PART
        write_if_changed(
            path, "\n".join("\n".join([*a, ""]) for a in language.articles(articles, LANGUAGE_SEED + number))
        )
    train_vocabulary(text.training, TINY.vocabulary_size, text.vocabulary)
    return text
