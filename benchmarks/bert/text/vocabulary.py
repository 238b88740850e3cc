"""Train a WordPiece vocabulary on a text, in the order and with the special words that BERT expects."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.bert.preparation.tokenization import SPECIAL_WORDS, UNKNOWN
from benchmarks.files import write_whole

CONTINUATION = "##"


def train_vocabulary(texts: Sequence[Path], size: int, out: Path) -> None:
    """Write a lower-case WordPiece vocabulary of at most `size` words to `out`, one word a line, special words first.

    Uses the `tokenizers` library. The same texts and size give the same bytes: the library numbers the characters in
    an order that changes from process to process and breaks ties by these numbers, so they are handed to it in sorted
    order.
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
    alphabet = sorted(character for character in characters if not character.isspace())
    numbered = [*SPECIAL_WORDS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=numbered, continuing_subword_prefix=CONTINUATION, show_progress=False
    )
    tokenizer.train([str(text) for text in texts], trainer)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    words = sorted(ids, key=lambda word: ids[word])
    write_whole(out, "".join(f"{word}\n" for word in words))
