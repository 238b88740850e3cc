"""Tokenize the bytes of a text into documents with compiled code: same result as `reference`, many times faster.

A chunk is the text between two spaces, tabs or line feeds. The tokens of a line are the tokens of its chunks, one chunk
after another. An ASCII chunk is tokenized by compiled code over a trie of the vocabulary. Any other chunk is tokenized
by `Tokenizer`, which handles all of Unicode, and its tokens are cached.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.tokenization import MAX_CHARACTERS_PER_WORD, UNKNOWN, Tokenizer, Vocabulary
from podium.core.errors import WorkError
from podium.core.jit import compiled, compiled_leaf

# Kinds of ASCII characters in a chunk. DROPPED and STRIPPED are removed from the text; str.strip removes STRIPPED too,
# which matters for the decision whether a line is blank.
LETTER, PUNCTUATION, DROPPED, STRIPPED = range(4)

ROOT, NO_NODE = np.int64(0), np.int64(-1)
NO_TOKEN = -1

MAX_CACHED_CHUNKS = 200_000  # non-ASCII chunks that are cached between texts, about 50 MB


@dataclass(frozen=True, eq=False)
class Documents:
    """Tokenized text: D documents with S sentences and T tokens in all, in the order of the text; none is empty."""

    tokens: NDArray[np.uint16]  # [T]
    sentence_offsets: NDArray[np.int64]  # [S + 1]; sentence i is tokens[sentence_offsets[i]:sentence_offsets[i + 1]]
    document_offsets: NDArray[np.int64]  # [D + 1]; document i is the sentences document_offsets[i] to [i + 1]

    def __len__(self) -> int:
        return len(self.document_offsets) - 1


class Reader:
    """Tokenizer of whole texts with one vocabulary. The tokens of non-ASCII chunks are cached between texts."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [token.encode("utf-8") for token in vocabulary.tokens]
        ends = np.cumsum([len(token) for token in tokens], dtype=np.int64)
        self._edges, self._token_at = _build_trie(np.frombuffer(b"".join(tokens), np.uint8), ends)
        self._unknown = vocabulary.ids[UNKNOWN]
        self._tokenizer = Tokenizer(vocabulary)
        self._non_ascii = _NonAsciiChunks()

    def read(self, text: bytes, source: str = "the text") -> Documents:
        """Tokenize a text that has one sentence per line and a blank line between documents.

        Sentences and documents without a token are left out. Raises WorkError if the text is not UTF-8; the message
        names `source` and the offset of the first invalid byte.
        """
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"at byte {error.start} ({error.reason})"
            raise WorkError(f"{source}: the text is not UTF-8 {where}; convert it to UTF-8") from None
        text = text.replace(b"\r", b"")
        if len(self._non_ascii) > MAX_CACHED_CHUNKS:
            self._non_ascii = _NonAsciiChunks()
        characters = np.frombuffer(text, np.uint8)
        non_ascii = _find_non_ascii_chunks(characters)
        indices = self._non_ascii.lookup(text, non_ascii, self._tokenizer)
        lines = text.count(b"\n") + 1
        tokens, sentence_offsets, document_offsets = _tokenize(
            characters,
            lines,
            self._edges,
            self._token_at,
            self._unknown,
            non_ascii,
            indices,
            *self._non_ascii.arrays(),
        )
        return Documents(tokens, sentence_offsets, document_offsets)


class _NonAsciiChunks:
    """Cache of distinct non-ASCII chunks: their tokens, and whether str.strip leaves any of their characters."""

    def __init__(self) -> None:
        self._indices: dict[bytes, int] = {}
        self._tokens: list[int] = []
        self._ends = [0]
        self._blank: list[bool] = []

    def __len__(self) -> int:
        return len(self._indices)

    def lookup(self, text: bytes, places: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.int64]:
        """Return the cache index [n] of the chunk at each place [n, 2] (start, end); tokenize chunks that are new."""
        seen = self._indices
        indices = np.empty(len(places), np.int64)
        for i, (start, end) in enumerate(places.tolist()):
            chunk = text[start:end]
            index = seen.get(chunk)
            if index is None:
                index = seen[chunk] = len(seen)
                characters = chunk.decode("utf-8")
                self._tokens += tokenizer.tokenize(characters)
                self._ends.append(len(self._tokens))
                self._blank.append(not characters.strip())
            indices[i] = index
        return indices

    def arrays(self) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the tokens of all chunks, their offsets [chunks + 1] by chunk, and which chunks [chunks] are blank."""
        return np.array(self._tokens, np.uint16), np.array(self._ends, np.int64), np.array(self._blank, np.bool_)


def _classify_ascii() -> NDArray[np.uint8]:
    kinds = np.full(128, LETTER, np.uint8)
    kinds[:32] = DROPPED
    kinds[127] = DROPPED
    for code in range(33, 127):
        if not chr(code).isalnum():
            kinds[code] = PUNCTUATION
    for code in range(32):
        if chr(code).isspace():
            kinds[code] = STRIPPED
    return kinds


ASCII_KINDS = _classify_ascii()
ASCII_LOWER = np.array([ord(chr(code).lower()) for code in range(128)], np.uint8)
SPACE, TAB, LINE_FEED, HASH = map(ord, " \t\n#")


# The trie is one open-addressing hash table of its edges (node, byte) → child. An entry has key + 1 in its upper 32
# bits and the child in its lower 32 bits. The + 1 leaves 0 for empty slots, since the key of edge (0, 0) is 0.


@compiled_leaf
def _find_slot(edges: NDArray[np.uint64], key: np.uint64) -> np.int64:
    """Return the slot of the edge with this key, or the empty slot where it is to be inserted (linear probing)."""
    mask = np.uint64(len(edges) - 1)  # the table's size is a power of 2
    # Fibonacci hashing: 2⁶⁴ / golden ratio spreads keys that differ in their lowest bits only.
    slot = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while edges[slot] != 0 and edges[slot] >> np.uint64(32) != key + np.uint64(1):
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled_leaf
def _child(edges: NDArray[np.uint64], node: np.int64, character: int) -> np.int64:
    entry = edges[_find_slot(edges, np.uint64(node) << np.uint64(8) | np.uint64(character))]
    return np.int64(entry & np.uint64(0xFFFFFFFF)) if entry != 0 else NO_NODE


@compiled
def _build_trie(characters: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Build the trie of all tokens: its edges, and the id of the token that ends at each node, else NO_TOKEN.

    `characters` has the bytes of all tokens, and token i ends at ends[i].
    """
    size = 2  # a load factor of at most 1/2 keeps linear probing short
    while size < 2 * len(characters):
        size *= 2
    edges = np.zeros(size, np.uint64)
    token_at = np.full(len(characters) + 1, NO_TOKEN, np.int32)
    nodes = 1
    start = 0
    for token in range(len(ends)):
        node = ROOT
        for i in range(start, ends[token]):
            key = np.uint64(node) << np.uint64(8) | np.uint64(characters[i])
            slot = _find_slot(edges, key)
            if edges[slot] == 0:
                edges[slot] = (key + np.uint64(1)) << np.uint64(32) | np.uint64(nodes)
                nodes += 1
            node = np.int64(edges[slot] & np.uint64(0xFFFFFFFF))
        token_at[node] = token
        start = ends[token]
    return edges, token_at[:nodes].copy()


@compiled
def _find_non_ascii_chunks(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the start and end [n, 2] of the non-ASCII chunks."""
    places = np.empty((64, 2), np.int64)
    found = 0
    start = 0
    non_ascii = False
    for i in range(len(text) + 1):
        if i < len(text):
            character = text[i]
            if character >= 128:
                non_ascii = True
                continue
            if character != SPACE and character != LINE_FEED and character != TAB:
                continue
        if non_ascii:
            if found == len(places):
                more = np.empty((2 * found, 2), np.int64)
                more[:found] = places
                places = more
            places[found, 0], places[found, 1] = start, i
            found += 1
            non_ascii = False
        start = i + 1
    return places[:found].copy()


@compiled_leaf
def _append_wordpieces(
    part: NDArray[np.uint8],
    length: int,
    edges: NDArray[np.uint64],
    token_at: NDArray[np.int32],
    continuation: np.int64,
    unknown: int,
    tokens: NDArray[np.uint16],
    used: int,
) -> int:
    """Append the greedy WordPiece tokens of part[:length] at tokens[used:]; return the new number of used tokens."""
    if length > MAX_CHARACTERS_PER_WORD:
        tokens[used] = unknown
        return used + 1
    first = used
    start = 0
    while start < length:
        node = ROOT if start == 0 else continuation
        end = start
        for i in range(start, length):
            if node == NO_NODE:
                break
            node = _child(edges, node, part[i])
            if node != NO_NODE and token_at[node] != NO_TOKEN:
                tokens[used] = token_at[node]
                end = i + 1
        if end == start:
            # No token matches here: the reference replaces the whole part by one [UNK], also the pieces found so far.
            tokens[first] = unknown
            return first + 1
        used += 1
        start = end
    return used


@compiled
def _tokenize(
    text: NDArray[np.uint8],
    lines: int,
    edges: NDArray[np.uint64],
    token_at: NDArray[np.int32],
    unknown: int,
    non_ascii: NDArray[np.int64],
    indices: NDArray[np.int64],
    non_ascii_tokens: NDArray[np.uint16],
    non_ascii_starts: NDArray[np.int64],
    non_ascii_blank: NDArray[np.bool_],
) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens, sentence offsets and document offsets of a text whose non-ASCII chunks are tokenized already."""
    capacity = len(text) + 1  # an ASCII character makes at most one token
    for index in indices:
        capacity += non_ascii_starts[index + 1] - non_ascii_starts[index]
    tokens = np.empty(capacity, np.uint16)
    sentence_offsets = np.zeros(lines + 1, np.int64)
    document_offsets = np.zeros(lines + 1, np.int64)
    used = sentences = documents = next_non_ascii = 0
    continuation = _child(edges, ROOT, HASH)  # the node behind "##", where pieces inside a word begin
    if continuation != NO_NODE:
        continuation = _child(edges, continuation, HASH)
    part = np.empty(MAX_CHARACTERS_PER_WORD, np.uint8)
    length = 0  # of the part so far; may exceed len(part), since such a part becomes [UNK] whatever its characters
    blank = True
    i = 0
    while i <= len(text):
        if next_non_ascii < len(non_ascii) and non_ascii[next_non_ascii, 0] == i:
            index = indices[next_non_ascii]
            for k in range(non_ascii_starts[index], non_ascii_starts[index + 1]):
                tokens[used] = non_ascii_tokens[k]
                used += 1
            blank &= non_ascii_blank[index]
            i = non_ascii[next_non_ascii, 1]
            next_non_ascii += 1
            continue
        character = text[i] if i < len(text) else np.uint8(LINE_FEED)
        i += 1
        if character > SPACE:
            kind = ASCII_KINDS[character]
            if kind == LETTER:
                if length < MAX_CHARACTERS_PER_WORD:
                    part[length] = ASCII_LOWER[character]
                length += 1
                blank = False
                continue
            blank = False
            if kind == DROPPED:
                continue
            if length > 0:
                used = _append_wordpieces(part, length, edges, token_at, continuation, unknown, tokens, used)
            part[0] = character
            used = _append_wordpieces(part, 1, edges, token_at, continuation, unknown, tokens, used)
            length = 0
            continue
        if character != SPACE and character != LINE_FEED and character != TAB:
            blank &= ASCII_KINDS[character] == STRIPPED
            continue
        if length > 0:
            used = _append_wordpieces(part, length, edges, token_at, continuation, unknown, tokens, used)
            length = 0
        if character != LINE_FEED:
            continue
        if used > sentence_offsets[sentences]:
            sentences += 1
            sentence_offsets[sentences] = used
        if (blank or i > len(text)) and sentences > document_offsets[documents]:
            documents += 1
            document_offsets[documents] = sentences
        blank = True
    return tokens[:used].copy(), sentence_offsets[: sentences + 1].copy(), document_offsets[: documents + 1].copy()
