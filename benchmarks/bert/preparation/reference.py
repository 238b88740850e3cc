"""Sample generation in plain Python: the implementation that the compiled version is tested against.

It is written for readability; `generation` makes the same samples many times faster. Source of the algorithm: MLPerf
Training reference, create_pretraining_data. Every random draw is part of it, even a draw with one possible result: one
draw more or less changes all samples that follow.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, MASK, SEPARATOR, Tokenizer, Vocabulary
from benchmarks.bert.samples import Samples, offsets_of
from podium.core.errors import WorkError

Sentence = list[int]
Document = list[Sentence]

DRAWS_FOR_ANOTHER_DOCUMENT = 10


class _Pair(NamedTuple):
    """Two segments of text before truncation, and whether the second one was drawn at random."""

    first: Sentence
    second: Sentence
    random_next: bool


class _Instance(NamedTuple):
    """One sample as arrays of small integers, so that the samples of a whole text fit into memory."""

    token_ids: NDArray[np.uint16]
    first_segment_length: int
    masked_positions: NDArray[np.uint16]
    masked_token_ids: NDArray[np.uint16]
    random_next: bool


def generate_reference_samples(
    lines: Iterable[str],
    vocabulary: Vocabulary,
    settings: GenerationSettings | None = None,
    source: str = "the text",
) -> Samples:
    """Generate the samples of one text in plain Python, in the reference's order.

    Each line is one sentence, and a blank line separates documents. Raises WorkError, naming `source`, if no line has
    a token.
    """
    settings = settings or GenerationSettings()
    random = Random(settings.seed)
    documents = read_documents(lines, Tokenizer(vocabulary))
    if not documents:
        raise WorkError(f"{source}: there is no document in it; give a text with one sentence per line")
    random.shuffle(documents)
    maker = _InstanceMaker(documents, vocabulary, settings, random)
    instances = [
        instance
        for _ in range(settings.duplicates)
        for number in range(len(documents))
        for instance in maker.make_instances(number)
    ]
    random.shuffle(instances)
    return _flatten(instances)


def read_documents(lines: Iterable[str], tokenizer: Tokenizer) -> list[Document]:
    """Tokenize documents, in the order of the text; leave out sentences and documents without a token."""
    documents: list[Document] = [[]]
    for line in lines:
        sentence = line.replace("\r", "").strip()
        if not sentence:
            documents.append([])
        elif tokens := tokenizer.tokenize(sentence):
            documents[-1].append(tokens)
    return [document for document in documents if document]


class _InstanceMaker:
    """Generator of the samples of a document; all documents share one stream of random numbers."""

    def __init__(
        self, documents: list[Document], vocabulary: Vocabulary, settings: GenerationSettings, random: Random
    ) -> None:
        self._documents = documents
        self._settings = settings
        self._random = random
        self._last_token = len(vocabulary.tokens) - 1
        self._classification = vocabulary.ids[CLASSIFICATION]
        self._separator = vocabulary.ids[SEPARATOR]
        self._mask = vocabulary.ids[MASK]

    def make_instances(self, number: int) -> list[_Instance]:
        """Generate the samples of one pass over one document."""
        document = self._documents[number]
        target = self._draw_target_length()
        instances: list[_Instance] = []
        start = 0
        while start < len(document):
            chunk = _take_chunk(document, start, target)
            pair, used = self._split_chunk(chunk, number, target)
            start += used
            instances.append(self._make_instance(pair))
        return instances

    def _draw_target_length(self) -> int:
        longest = self._settings.max_text_tokens
        if self._random.random() < self._settings.short_sequence_probability:
            return self._random.randint(2, longest)
        return longest

    def _split_chunk(self, chunk: Sequence[Sentence], number: int, target: int) -> tuple[_Pair, int]:
        """Return a pair of segments and how many sentences of the chunk it uses; the next chunk begins behind them."""
        first_sentences = 1 if len(chunk) == 1 else self._random.randint(1, len(chunk) - 1)
        first = _join(chunk[:first_sentences])
        if len(chunk) == 1 or self._random.random() < 0.5:
            second = self._draw_random_next(number, target - len(first))
            return _Pair(first, second, random_next=True), first_sentences
        return _Pair(first, _join(chunk[first_sentences:]), random_next=False), len(chunk)

    def _draw_random_next(self, number: int, target: int) -> Sentence:
        """Draw sentences of another document up to the target length; of any document if ten draws find no other."""
        other = number
        for _ in range(DRAWS_FOR_ANOTHER_DOCUMENT):
            other = self._random.randint(0, len(self._documents) - 1)
            if other != number:
                break
        document = self._documents[other]
        start = self._random.randint(0, len(document) - 1)
        return _join(_take_chunk(document, start, target))

    def _make_instance(self, pair: _Pair) -> _Instance:
        first, second = self._truncate(pair.first, pair.second)
        token_ids = [self._classification, *first, self._separator, *second, self._separator]
        first_segment_length = len(first) + 2
        positions, originals = self._mask_tokens(token_ids, first_segment_length)
        return _Instance(
            np.array(token_ids, dtype=np.uint16),
            first_segment_length,
            np.array(positions, dtype=np.uint16),
            np.array(originals, dtype=np.uint16),
            pair.random_next,
        )

    def _truncate(self, first: Sentence, second: Sentence) -> tuple[Sentence, Sentence]:
        """Drop tokens from the front or back of the longer segment (the second, if equal) until both fit."""
        cuts = ([0, len(first)], [0, len(second)])
        lengths = [len(first), len(second)]
        for _ in range(sum(lengths) - self._settings.max_text_tokens):
            side = 0 if lengths[0] > lengths[1] else 1
            lengths[side] -= 1
            if self._random.random() < 0.5:
                cuts[side][0] += 1
            else:
                cuts[side][1] -= 1
        return first[slice(*cuts[0])], second[slice(*cuts[1])]

    def _mask_tokens(self, token_ids: list[int], first_segment_length: int) -> tuple[list[int], list[int]]:
        """Mask tokens in place; return the masked positions, ascending, and the original tokens there."""
        candidates = [*range(1, first_segment_length - 1), *range(first_segment_length, len(token_ids) - 1)]
        self._random.shuffle(candidates)
        wanted = max(1, round(self._settings.masked_lm_probability * len(token_ids)))
        positions = candidates[: min(self._settings.max_predictions, wanted)]
        originals = {position: token_ids[position] for position in positions}
        for position in positions:
            token_ids[position] = self._draw_replacement(originals[position])
        positions.sort()
        return positions, [originals[position] for position in positions]

    def _draw_replacement(self, token: int) -> int:
        """Return [MASK] with probability 80 %, the token itself with 10 %, any token of the vocabulary with 10 %."""
        if self._random.random() < 0.8:
            return self._mask
        if self._random.random() < 0.5:
            return token
        return self._random.randint(0, self._last_token)


def _take_chunk(document: Document, start: int, target: int) -> Sequence[Sentence]:
    """Return at least one sentence, and more until the target length or the end of the document is reached."""
    length = 0
    for end in range(start, len(document)):
        length += len(document[end])
        if length >= target:
            return document[start : end + 1]
    return document[start:]


def _join(sentences: Sequence[Sentence]) -> Sentence:
    return [token for sentence in sentences for token in sentence]


def _flatten(instances: Sequence[_Instance]) -> Samples:
    return Samples(
        token_ids=np.concatenate([instance.token_ids for instance in instances]),
        sample_offsets=offsets_of([len(instance.token_ids) for instance in instances]),
        first_segment_lengths=np.array([instance.first_segment_length for instance in instances], dtype=np.uint16),
        masked_positions=np.concatenate([instance.masked_positions for instance in instances]),
        masked_token_ids=np.concatenate([instance.masked_token_ids for instance in instances]),
        masked_offsets=offsets_of([len(instance.masked_positions) for instance in instances]),
        next_sentence_labels=np.array([instance.random_next for instance in instances], dtype=np.uint8),
    )
