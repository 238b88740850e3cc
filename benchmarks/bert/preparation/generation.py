"""Sample generation from one text, compiled: bit-identical to the samples of MLPerf's reference generator.

The algorithm is that of `reference`, step by step, with the same random draws in the same order. Documents,
sentences and samples are slices of flat arrays here, and a pair of segments is copied once, into its sample.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.documents import Documents
from benchmarks.bert.preparation.mt19937 import State, copy_state, draw_below, draw_float, shuffle
from benchmarks.bert.preparation.settings import SPECIAL_TOKENS_PER_SAMPLE, GenerationSettings, masked_counts
from benchmarks.bert.preparation.tokenization import CLASSIFICATION, MASK, SEPARATOR, Vocabulary
from benchmarks.bert.samples import FlatArrays, Samples, gather
from podium.core.jit import compiled, compiled_leaf

DRAWS_FOR_ANOTHER_DOCUMENT = 10
NOT_MASKED = -1


def generate_samples(
    documents: Documents, vocabulary: Vocabulary, settings: GenerationSettings | None = None
) -> Samples:
    """Generate the samples of one text, in the reference's order. `documents` must have at least one document.

    Source: MLPerf Training reference, create_pretraining_data.
    """
    settings = settings or GenerationSettings()
    assert len(documents) > 0, "a text has at least one document"
    state = copy_state(Random(settings.seed))
    arrays = _make_samples(
        state,
        documents.tokens,
        documents.sentence_offsets,
        documents.document_offsets,
        settings.duplicates,
        settings.max_sequence_length,
        settings.short_sequence_probability,
        masked_counts(settings.masked_lm_probability, settings.max_predictions, settings.max_sequence_length),
        vocabulary.ids[CLASSIFICATION],
        vocabulary.ids[SEPARATOR],
        vocabulary.ids[MASK],
        len(vocabulary.tokens),
    )
    order = np.arange(len(arrays[-1]))
    shuffle(state, order, len(order))
    return gather(Samples(*arrays), order)


@compiled
def _ensure_capacity(array: NDArray[np.uint16], used: int, more: int) -> NDArray[np.uint16]:
    """Return the array, or a copy of twice its length if `more` elements do not fit after the `used` ones."""
    if used + more <= len(array):
        return array
    grown = np.empty(2 * len(array) + more, array.dtype)
    grown[:used] = array[:used]
    return grown


@compiled_leaf
def _find_chunk_end(sentence_offsets: NDArray[np.int64], start: int, last: int, target: int) -> int:
    """Return the end of a chunk of sentences from `start`: at least one, then more until `target` tokens or `last`."""
    end = start + 1
    while end < last and sentence_offsets[end] - sentence_offsets[start] < target:
        end += 1
    return end


@compiled_leaf
def _mask(
    state: State,
    tokens: NDArray[np.uint16],
    first_length: int,
    wanted: int,
    mask: int,
    vocabulary_size: int,
    candidates: NDArray[np.int64],
    originals: NDArray[np.int64],
) -> int:
    """Mask `wanted` tokens of one sample in place, or all its text tokens if it has fewer; return how many.

    originals[position] becomes the token before masking, or NOT_MASKED. `candidates` is scratch space.
    """
    for position in range(len(tokens)):
        originals[position] = NOT_MASKED
    count = 0
    for position in range(1, len(tokens) - 1):
        if position != first_length - 1:
            candidates[count] = position
            count += 1
    shuffle(state, candidates, count)
    wanted = min(wanted, count)
    for i in range(wanted):
        position = candidates[i]
        token = np.int64(tokens[position])
        originals[position] = token
        if draw_float(state) < 0.8:
            tokens[position] = mask
        elif draw_float(state) >= 0.5:
            tokens[position] = draw_below(state, vocabulary_size)
    return wanted


@compiled
def _make_samples(
    state: State,
    tokens: NDArray[np.uint16],
    sentence_offsets: NDArray[np.int64],
    document_offsets: NDArray[np.int64],
    duplicates: int,
    max_length: int,
    short_probability: float,
    masked_counts: NDArray[np.int64],
    classification: int,
    separator: int,
    mask: int,
    vocabulary_size: int,
) -> FlatArrays:
    """Return the arrays of `Samples`, in the order in which the samples are generated."""
    documents = len(document_offsets) - 1
    order = np.arange(documents)
    shuffle(state, order, documents)
    max_text_length = max_length - SPECIAL_TOKENS_PER_SAMPLE

    max_samples = duplicates * (len(sentence_offsets) - 1)  # a sample uses up at least one sentence
    out = np.empty(duplicates * len(tokens) + max_length, np.uint16)
    sample_offsets = np.zeros(max_samples + 1, np.int64)
    first_lengths = np.empty(max_samples, np.uint16)
    masked_positions = np.empty(len(out) // 4 + max_length, np.uint16)
    masked_tokens = np.empty(len(out) // 4 + max_length, np.uint16)
    masked_offsets = np.zeros(max_samples + 1, np.int64)
    labels = np.empty(max_samples, np.uint8)
    candidates = np.empty(max_length, np.int64)
    originals = np.empty(max_length, np.int64)
    samples = used = masked = 0

    for _ in range(duplicates):
        for place in range(documents):
            start, last = document_offsets[order[place]], document_offsets[order[place] + 1]
            target = max_text_length
            if draw_float(state) < short_probability:
                target = 2 + draw_below(state, max_text_length - 1)
            while start < last:
                end = _find_chunk_end(sentence_offsets, start, last, target)
                first_end = start + 1
                if end - start > 1:
                    first_end += draw_below(state, end - start - 1)
                first_from, first_to = sentence_offsets[start], sentence_offsets[first_end]
                random_next = end - start == 1 or draw_float(state) < 0.5
                if random_next:
                    other = place
                    for _ in range(DRAWS_FOR_ANOTHER_DOCUMENT):
                        other = draw_below(state, documents)
                        if other != place:
                            break
                    begin, close = document_offsets[order[other]], document_offsets[order[other] + 1]
                    begin += draw_below(state, close - begin)
                    close = _find_chunk_end(sentence_offsets, begin, close, target - (first_to - first_from))
                    second_from, second_to = sentence_offsets[begin], sentence_offsets[close]
                    start = first_end
                else:
                    second_from, second_to = sentence_offsets[first_end], sentence_offsets[end]
                    start = end

                for _ in range(first_to - first_from + second_to - second_from - max_text_length):
                    # One draw per dropped token, before the side is chosen, as in the reference.
                    from_front = draw_float(state) < 0.5
                    if first_to - first_from > second_to - second_from:
                        if from_front:
                            first_from += 1
                        else:
                            first_to -= 1
                    elif from_front:
                        second_from += 1
                    else:
                        second_to -= 1

                out = _ensure_capacity(out, used, max_length)
                first_length = first_to - first_from + 2
                length = first_length + second_to - second_from + 1
                sample = out[used : used + length]
                sample[0] = classification
                sample[1 : first_length - 1] = tokens[first_from:first_to]
                sample[first_length - 1] = separator
                sample[first_length : length - 1] = tokens[second_from:second_to]
                sample[length - 1] = separator
                count = _mask(
                    state, sample, first_length, masked_counts[length], mask, vocabulary_size, candidates, originals
                )
                masked_positions = _ensure_capacity(masked_positions, masked, count)
                masked_tokens = _ensure_capacity(masked_tokens, masked, count)
                for position in range(length):
                    if originals[position] != NOT_MASKED:
                        masked_positions[masked] = position
                        masked_tokens[masked] = originals[position]
                        masked += 1
                used += length
                first_lengths[samples] = first_length
                labels[samples] = random_next
                samples += 1
                sample_offsets[samples] = used
                masked_offsets[samples] = masked

    return (
        out[:used],
        sample_offsets[: samples + 1],
        first_lengths[:samples],
        masked_positions[:masked],
        masked_tokens[:masked],
        masked_offsets[: samples + 1],
        labels[:samples],
    )
