"""Fixtures: small valid stores, and their verification."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from benchmarks.bert.lengths import WIKIPEDIA
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS, Vocabulary
from benchmarks.bert.samples import Samples, gather, offsets_of
from benchmarks.bert.shard import Origin, write_shard
from benchmarks.bert.verification.checks import gather_evidence, run_checks
from benchmarks.bert.verification.evidence import VerificationRequest
from podium.core.finding import Finding

WORDS = 400
CLS, SEP, MASK = (ALL_SPECIAL_TOKENS.index(word) for word in ("[CLS]", "[SEP]", "[MASK]"))


def generate_valid_samples(count: int, seed: int, short: bool = False) -> Samples:
    """Samples of Wikipedia's lengths (or of 20 to 40 tokens), masked as the reference does."""
    random = np.random.default_rng(seed)
    shares = np.array(WIKIPEDIA) / sum(WIKIPEDIA)
    lengths = random.integers(20, 41, count) if short else 1 + random.choice(512, count, p=shares)
    tokens, firsts, positions, originals = [], [], [], []
    for length in lengths.tolist():
        ids = random.integers(len(ALL_SPECIAL_TOKENS), WORDS, length)
        first = int(random.integers(3, length - 1))
        ids[0], ids[first - 1], ids[-1] = CLS, SEP, SEP
        text = [place for place in range(1, length - 1) if place != first - 1]
        chosen = np.sort(random.choice(text, min(76, max(1, round(0.15 * length))), replace=False))
        originals.append(ids[chosen].copy())
        draw = random.random(len(chosen))
        ids[chosen[draw < 0.8]] = MASK
        drawn = chosen[draw >= 0.9]
        ids[drawn] = random.integers(0, WORDS, len(drawn))
        tokens.append(ids)
        firsts.append(first)
        positions.append(chosen)
    return Samples(
        np.concatenate(tokens).astype(np.uint16),
        offsets_of(lengths),
        np.array(firsts, dtype=np.uint16),
        np.concatenate(positions).astype(np.uint16),
        np.concatenate(originals).astype(np.uint16),
        offsets_of([*map(len, positions)]),
        (random.random(count) < 0.53).astype(np.uint8),
    )


class WriteStore(Protocol):
    """Write a store of shards a.h5, b.h5, …; keywords change fields of their Origin."""

    def __call__(self, *shards: Samples, name: str = "store", **origin: Any) -> Path: ...


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join([*ALL_SPECIAL_TOKENS, *(f"w{i}" for i in range(5, WORDS))]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def write_store(tmp_path: Path, vocabulary: Path) -> WriteStore:
    sha256 = Vocabulary.read(vocabulary).sha256

    def write(*shards: Samples, name: str = "store", **origin: Any) -> Path:
        (tmp_path / name).mkdir()
        for letter, samples in zip("abcdefghij", shards, strict=False):
            made = Origin.of_text(letter, "ef" * 32, sha256, GenerationSettings())
            write_shard(tmp_path / name / f"{letter}.h5", samples, replace(made, **origin))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def valid_samples() -> Callable[[int], Samples]:
    """A function from a seed to 1,500 samples, cached."""
    return cache(lambda seed: generate_valid_samples(1_500, seed))


@pytest.fixture
def reorder() -> Callable[[Samples, Any], Samples]:
    """A function that selects samples by their indices, in any order and with repetitions."""
    return lambda samples, order: gather(samples, np.array(order, dtype=np.int64))


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., Samples]:
    return generate_valid_samples


@pytest.fixture
def verify(vocabulary: Path) -> Callable[..., dict[str, Finding]]:
    """A function that verifies a store and returns the findings by rule; keywords are fields of Subject."""

    def findings(store: Path, **given: Any) -> dict[str, Finding]:
        found = run_checks(gather_evidence(VerificationRequest(store, **{"vocabulary": vocabulary, **given}), 2))
        names = [finding.rule for finding in found]
        assert len(names) == len(set(names)), names
        return {finding.rule: finding for finding in found}

    return findings
