"""`podium data prepare` with other lengths, from the command line."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import SampleStore
from tests.podium.conftest import run_podium

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a vocabulary and a text of three documents, longer than a sample of 128 tokens."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    random = np.random.default_rng(0)
    documents = ["\n".join(" ".join(random.choice(WORDS[5:], 20)) for _ in range(30)) for _ in range(3)]
    (tmp_path / "text").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return tmp_path


def test_samples_have_the_given_lengths_and_other_stores_are_not_replaced(folder: Path) -> None:
    command = ["data", "prepare", "--text", "text", "--vocab", "vocab.txt"]
    done = run_podium(*command, "--out", "store", "--max-sequence-length", "128", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    store = SampleStore(folder / "store")
    assert store.shards[0].origin.generation == GenerationSettings(128, 20)
    assert (np.asarray(store.lengths).max(), np.asarray(store.masked_counts).max()) == (128, 19)
    fewer = ["--max-sequence-length", "128", "--max-predictions", "5", "--samples", "9"]
    refused = run_podium(*command, "--out", "store", *fewer, cwd=folder)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "max_predictions 20 (here 5), selection whole (here random), which would be replaced" in refused.stderr
    done = run_podium(*command, "--out", "other", *fewer, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    store = SampleStore(folder / "other")
    assert (len(store), np.asarray(store.masked_counts).max(), store.max_sequence_length) == (9, 5, 128)


def test_invalid_length_is_an_error_of_one_line(folder: Path) -> None:
    done = run_podium(
        "data",
        "prepare",
        "--text",
        "text",
        "--vocab",
        "vocab.txt",
        "--out",
        "o",
        "--max-sequence-length",
        "4",
        cwd=folder,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "podium: generation setting max_sequence_length is 4; allowed is 5 to 65535\n"
    assert not (folder / "o").exists()
