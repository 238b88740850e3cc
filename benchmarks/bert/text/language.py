"""An invented language with enough structure to be worth learning, in the official text format.

One sentence a line, a blank line between articles. What there is to learn, from the nearest to the farthest:

- word classes and their order: connective, determiner, adjective, noun, verb, preposition;
- agreement: determiner, adjective and noun share gender and number by their endings, the verb takes its subject's
  number;
- company: a noun prefers one adjective and one verb, a verb one object and one preposition;
- topics: an article keeps to the words of one topic, so sentences of one article fit together and a sentence of another
  does not: next-sentence prediction can be learned.

Article lengths are log-normal, cut so that samples are as mixed in length as Wikipedia's. Only `random.Random.random`
is drawn from, whose sequence Python guarantees, so the same seed gives the same bytes on every Python.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")

GENDERS = ("a", "o", "i")
NUMBERS = ("", "n")
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr", "kl", "st")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "l", "n", "r", "s")


@dataclass(frozen=True)
class LanguageSettings:
    """How rich the language is and how strict its habits; the defaults are the embedded benchmark's."""

    topics: int = 8
    nouns: int = 4
    adjectives: int = 3
    verbs: int = 3
    places: int = 2
    connectives: int = 4
    prepositions: int = 4
    habit: float = 0.9
    """Probability that a word keeps its preferred company."""
    mean_log_sentences: float = 3.25
    spread_log_sentences: float = 1.25


@dataclass(frozen=True)
class Noun:
    stem: str
    gender: int
    adjective: int
    verb: int


@dataclass(frozen=True)
class Verb:
    stem: str
    object: int
    preposition: int
    place: int


@dataclass(frozen=True)
class Topic:
    nouns: tuple[Noun, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[Verb, ...]
    places: tuple[Noun, ...]


class Language:
    """Words and habits drawn once from a seed; articles are then drawn from the language."""

    def __init__(self, seed: int, settings: LanguageSettings = LanguageSettings()) -> None:
        self.settings = settings
        self._rng = Random(seed)
        self._words: set[str] = set()
        s = settings
        self.determiners = tuple(self._word(1) for _ in range(2))
        self.connectives = tuple(self._word(2) for _ in range(s.connectives))
        self.prepositions = tuple(self._word(1) for _ in range(s.prepositions))
        self.topics = tuple(self._topic() for _ in range(s.topics))

    def articles(self, count: int, seed: int) -> Iterator[list[str]]:
        """`count` articles, each a list of sentences, from a seed of their own."""
        self._rng = Random(seed)
        for _ in range(count):
            topic = self._pick(self.topics)
            sentences = self._log_normal(self.settings.mean_log_sentences, self.settings.spread_log_sentences)
            yield [self._sentence(topic) for _ in range(max(2, round(sentences)))]

    # Words

    def _word(self, syllables: int) -> str:
        while True:
            parts = [self._pick(ONSETS) + self._pick(VOWELS) for _ in range(syllables)]
            word = "".join(parts) + self._pick(CODAS)
            if word not in self._words:
                self._words.add(word)
                return word

    def _noun(self) -> Noun:
        s = self.settings
        return Noun(self._word(2), self._below(len(GENDERS)), self._below(s.adjectives), self._below(s.verbs))

    def _topic(self) -> Topic:
        s = self.settings
        return Topic(
            nouns=tuple(self._noun() for _ in range(s.nouns)),
            adjectives=tuple(self._word(2) for _ in range(s.adjectives)),
            verbs=tuple(
                Verb(self._word(2), self._below(s.nouns), self._below(s.prepositions), self._below(s.places))
                for _ in range(s.verbs)
            ),
            places=tuple(self._noun() for _ in range(s.places)),
        )

    # Sentences

    def _sentence(self, topic: Topic) -> str:
        subject, number = self._pick(topic.nouns), self._below(2)
        verb = self._habitual(topic.verbs, subject.verb)
        words = self._noun_phrase(topic, subject, number)
        words.append(verb.stem + ("es" if number == 0 else "um"))
        words += self._noun_phrase(topic, self._habitual(topic.nouns, verb.object), self._below(2))
        if self._chance(0.5):
            words.append(self._habitual(self.prepositions, verb.preposition))
            words += self._noun_phrase(topic, self._habitual(topic.places, verb.place), 0)
        if self._chance(0.25):
            words = [self._pick(self.connectives), ",", *words]
        return " ".join(words).replace(" ,", ",") + "."

    def _noun_phrase(self, topic: Topic, noun: Noun, number: int) -> list[str]:
        ending = GENDERS[noun.gender] + NUMBERS[number]
        phrase = [self.determiners[number] + GENDERS[noun.gender]]
        if self._chance(0.5):
            phrase.append(self._habitual(topic.adjectives, noun.adjective) + ending)
        phrase.append(noun.stem + ending)
        return phrase

    # Draws

    def _below(self, bound: int) -> int:
        return int(self._rng.random() * bound)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[self._below(len(options))]

    def _habitual(self, options: Sequence[T], preferred: int) -> T:
        return options[preferred] if self._chance(self.settings.habit) else self._pick(options)

    def _log_normal(self, mean: float, spread: float) -> float:
        radius = math.sqrt(-2.0 * math.log(1.0 - self._rng.random()))
        return math.exp(mean + spread * radius * math.cos(2.0 * math.pi * self._rng.random()))
