"""Checks against published checksums of MLPerf's data, and NVIDIA's md5 of the evaluation samples."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.lengths import WIKIPEDIA
from benchmarks.bert.preparation.prepare import pick_evaluation_indices
from benchmarks.bert.samples import Samples
from benchmarks.bert.store import SampleStore
from benchmarks.bert.verification import content as content_module
from benchmarks.bert.verification import official_data
from benchmarks.bert.verification.official_data import PublishedFile, input_ids_md5
from podium.core.errors import WorkError
from podium.core.finding import Finding

Verify = Callable[..., dict[str, Finding]]
ValidSamples = Callable[[int], Samples]


def published(path: Path) -> PublishedFile:
    content = path.read_bytes()
    return PublishedFile(len(content), hashlib.md5(content).hexdigest())


def test_md5_of_token_ids_follows_nvidias_formula() -> None:
    """The published formula, applied to a padded numpy array."""
    rows = np.zeros((3, 512), dtype=np.int16)
    for number, width in enumerate((5, 512, 77)):
        rows[number, :width] = np.arange(1, width + 1) % 300 + 1
    inner = [hashlib.md5(str(row.tolist()).encode()).hexdigest() for row in rows]
    wanted = hashlib.md5(str(inner).encode()).hexdigest()
    assert input_ids_md5(iter([row[row > 0].tolist() for row in rows])) == wanted


@pytest.mark.parametrize("picked", [1_500, 1_000])
def test_evaluation_samples_are_checked_by_md5(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, monkeypatch: pytest.MonkeyPatch, picked: int
) -> None:
    monkeypatch.setattr(official_data, "EVALUATION_SAMPLES", picked)
    store, evaluation = write_store(valid_samples(1)), write_store(valid_samples(2), name="evaluation")
    opened = SampleStore(evaluation)
    rows = (opened.read(int(i)).token_ids.tolist() for i in pick_evaluation_indices(1_500, picked))
    wanted = input_ids_md5(rows)
    check = "official evaluation samples"
    finding = verify(store, evaluation=evaluation)[check]
    assert (finding.severity, wanted in finding.message) == ("note", True)
    assert verify(store, evaluation=evaluation, official=True)[check].severity == "error"
    monkeypatch.setattr(official_data, "EVALUATION_MD5", wanted)
    assert verify(store, evaluation=evaluation, official=True)[check].severity == "ok"
    monkeypatch.setattr(official_data, "EVALUATION_SAMPLES", 1_501)
    assert check not in verify(store, evaluation=evaluation)


def test_vocabulary_is_checked_by_size_and_md5(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, monkeypatch: pytest.MonkeyPatch, vocabulary: Path
) -> None:
    store = write_store(valid_samples(1))
    right = published(vocabulary)
    for known, level in (
        (official_data.VOCABULARY, "note"),
        (right, "ok"),
        (PublishedFile(right.size, "0" * 32), "note"),
    ):
        monkeypatch.setattr(official_data, "VOCABULARY", known)
        assert verify(store)["official vocabulary"].severity == level
    assert "official vocabulary" not in verify(store, vocabulary=None)


def test_texts_are_checked_against_the_shards_sources(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, tmp_path: Path
) -> None:
    for name, content in (("a", "one"), ("b", "two"), ("elsewhere", "three")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    sha256 = hashlib.sha256(b"one").hexdigest()
    store = write_store(valid_samples(1), source_sha256=sha256)
    assert verify(store, texts=(tmp_path / "a",))["text"].severity == "ok"
    other = write_store(valid_samples(1), valid_samples(2), name="other", source_sha256=sha256)
    finding = verify(other, texts=(tmp_path / "b",))["text"]
    assert (finding.severity, "is not what its shard was made from" in finding.message) == ("error", True)
    unknown = verify(store, texts=(tmp_path / "elsewhere",))["text"]
    assert (unknown.severity, unknown.message) == ("note", f"{tmp_path / 'elsewhere'}: no shard was made from it")


def test_evaluation_text_is_recognized_by_name_or_size(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, check = write_store(valid_samples(1)), "official evaluation text"
    for name in ("eval.txt", "renamed"):
        (tmp_path / name).write_text("a text", encoding="utf-8")
    assert verify(store, texts=(tmp_path / "eval.txt",))[check].severity == "note"
    assert check not in verify(store, texts=(tmp_path / "renamed",))
    monkeypatch.setattr(official_data, "EVALUATION_TEXT", published(tmp_path / "renamed"))
    for name in ("eval.txt", "renamed"):
        assert verify(store, texts=(tmp_path / name,))[check].severity == "ok"
    (tmp_path / "renamed").write_text("b text", encoding="utf-8")
    assert verify(store, texts=(tmp_path / "renamed",))[check].severity == "note"
    evaluation = write_store(valid_samples(2), name="evaluation")
    texts = (tmp_path / "renamed",)
    assert verify(store, texts=texts, evaluation=evaluation, official=True)[check].severity == "error"


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="none: cannot be read"):
        official_data.is_official_vocabulary(tmp_path / "none")


def test_published_values_are_unchanged() -> None:
    assert official_data.VOCABULARY == (231_508, "64800d5d8528ce344256daf115d4965e")
    assert official_data.EVALUATION_TEXT == (32_851_144, "2a220f790517261547b1b45ed3ada07a")
    assert official_data.EVALUATION_MD5 == "611d8bae26646145e1c33338a27ba124"
    assert (len(WIKIPEDIA), sum(WIKIPEDIA), WIKIPEDIA[4], WIKIPEDIA[-1]) == (512, 16_279_552, 1_821, 3_815_044)
    assert content_module.mean_length(content_module.wikipedia_histogram()) == pytest.approx(255.83, abs=0.005)


def test_total_variation_distance_of_histograms() -> None:
    wikipedia = content_module.wikipedia_histogram()
    assert content_module.total_variation_distance(wikipedia, 3 * wikipedia) == pytest.approx(0)
    short, long = np.zeros(513, dtype=np.int64), np.zeros(513, dtype=np.int64)
    short[32], long[33] = 10, 7
    assert content_module.total_variation_distance(short, long) == 1
    long[1] = 7
    assert content_module.total_variation_distance(short, long) == 0.5
