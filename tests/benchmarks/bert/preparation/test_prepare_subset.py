"""Random subsets and the evaluation pick: which samples are kept, and how the shards are marked."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST, read_manifest
from benchmarks.bert.preparation import prepare as prepare_module
from benchmarks.bert.preparation.prepare import (
    EvaluationPick,
    PreparedShard,
    SmallestKeys,
    pick_evaluation_indices,
    prepare,
    prepare_subset,
)
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples, gather
from benchmarks.bert.shard import Shard
from benchmarks.bert.store import SampleStore
from podium.core.errors import UsageError, WorkError

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*ALL_SPECIAL_TOKENS, *LETTERS]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three texts of very different size."""
    folder, random = tmp_path_factory.mktemp("texts"), Random(1)
    paths = []
    for number, documents in enumerate((3, 60, 12)):
        lines = []
        for _ in range(documents):
            lines += [" ".join(random.choices(LETTERS, k=30)) for _ in range(40)] + [""]
        paths.append(folder / f"part-{number}")
        paths[-1].write_text("\n".join(lines), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def whole(texts: list[Path], vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return prepare(texts, vocabulary, tmp_path_factory.mktemp("whole"))


def rows(samples: Samples) -> list[bytes]:
    return [
        samples.token_ids[slice(*samples.sample_offsets[i : i + 2])].tobytes()
        + samples.masked_positions[slice(*samples.masked_offsets[i : i + 2])].tobytes()
        for i in range(len(samples))
    ]


def test_subset_has_the_samples_with_the_smallest_keys(
    texts: list[Path], vocabulary: Path, whole: list[Path], tmp_path: Path
) -> None:
    shards = prepare_subset(texts, vocabulary, tmp_path / "out", 300, seed=7)
    assert sorted((tmp_path / "out").iterdir()) == sorted(
        [*shards, tmp_path / "out" / FILE, tmp_path / "out" / MANIFEST]
    )
    assert read_manifest(tmp_path / "out") == SampleStore(shards).manifest
    keys = [SmallestKeys(7, 0).keys(text, len(Shard(shard))) for text, shard in zip(texts, whole, strict=True)]
    largest = np.sort(np.concatenate(keys))[299]
    for text_keys, shard, part in zip(keys, whole, shards, strict=True):
        expected = gather(Shard(shard).samples, np.flatnonzero(text_keys <= largest))
        found = Shard(part)
        found.verify()
        for name in SAMPLE_DTYPES:
            assert np.array_equal(getattr(found.samples, name), getattr(expected, name))
        attributes = found.attributes
        assert attributes["selection"] == "random"
        assert attributes["selected_from"] == sum(len(Shard(path)) for path in whole)
    assert len(SampleStore(shards)) == 300


def test_all_samples_are_equally_likely(whole: list[Path], texts: list[Path]) -> None:
    """Counts, over 400 seeds, how often each of 200 samples is among the 30% with the smallest keys."""
    counts = np.zeros(200)
    for seed in range(400):
        keys = SmallestKeys(seed, 0).keys(texts[0], 200)
        counts[np.argsort(keys)[:60]] += 1
    assert abs(counts.mean() - 120) < 1e-9
    assert 0.5 < counts.var() / (400 * 0.3 * 0.7) < 1.5
    one, other = (SmallestKeys(0, 0).keys(text, 1000).astype(float) for text in texts[:2])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2


def test_subset_is_independent_of_the_number_of_processes_and_order_of_texts(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    one = prepare_subset(texts, vocabulary, tmp_path / "one", 100)
    finished: list[PreparedShard] = []
    two = prepare_subset(texts[::-1], vocabulary, tmp_path / "two", 100, processes=2, on_finished=finished.append)
    assert sorted(prepared.text for prepared in finished) == sorted(texts)
    assert sorted(path.name for path in one) == sorted(path.name for path in two)
    assert {path.name: path.read_bytes() for path in one} == {path.name: path.read_bytes() for path in two}
    other = prepare_subset(texts, vocabulary, tmp_path / "other", 100, seed=1)
    assert [path.read_bytes() for path in other] != [path.read_bytes() for path in one]


def test_text_without_a_drawn_sample_has_no_shard(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    (shard,) = prepare_subset(texts, vocabulary, tmp_path / "out", 1)
    assert len(Shard(shard)) == 1
    assert sorted((tmp_path / "out").iterdir()) == [tmp_path / "out" / FILE, tmp_path / "out" / MANIFEST, shard]


def test_wrong_estimate_of_the_number_of_samples_does_not_change_the_subset(
    texts: list[Path], vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [path.read_bytes() for path in prepare_subset(texts, vocabulary, tmp_path / "out", 500)]
    for guess in (1e-9, 1e9):
        monkeypatch.setattr(prepare_module, "SAMPLES_PER_BYTE", guess)
        shards = prepare_subset(texts, vocabulary, tmp_path / f"{guess}", 500)
        assert [path.read_bytes() for path in shards] == expected


def test_subset_of_all_samples_is_possible_and_a_larger_one_is_an_error(
    texts: list[Path], vocabulary: Path, whole: list[Path], tmp_path: Path
) -> None:
    count = sum(len(Shard(path)) for path in whole)
    shards = prepare_subset(texts, vocabulary, tmp_path / "all", count)
    for shard, path in zip(shards, whole, strict=True):
        assert rows(Shard(shard).samples) == rows(Shard(path).samples)
    with pytest.raises(UsageError, match=f"{count + 1} samples was requested; the texts have {count} in all"):
        prepare_subset(texts, vocabulary, tmp_path / "more", count + 1)
    assert [*(tmp_path / "more").iterdir()] == []
    with pytest.raises(UsageError, match="a subset of 0 samples"):
        prepare_subset(texts, vocabulary, tmp_path / "none", 0)


def test_finished_subset_is_kept_and_an_interrupted_one_is_resumed(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    calls: list[PreparedShard] = []

    def interrupt(prepared: PreparedShard) -> None:
        calls.append(prepared)
        if len(calls) == 2:
            raise WorkError("interrupted")

    with pytest.raises(WorkError, match="interrupted"):
        prepare_subset(texts, vocabulary, out, 200, on_finished=interrupt)
    assert not [*out.glob("*.h5")]
    finished: list[PreparedShard] = []
    shards = prepare_subset(texts, vocabulary, out, 200, on_finished=finished.append)
    assert [prepared.kept for prepared in finished] == [True, True, False]
    content = [shard.read_bytes() for shard in shards]
    assert content == [path.read_bytes() for path in prepare_subset(texts, vocabulary, tmp_path / "at once", 200)]

    finished.clear()
    assert prepare_subset(texts, vocabulary, out, 200, on_finished=finished.append) == shards
    assert finished == []
    shards[0].write_bytes(b"broken")
    prepare_subset(texts, vocabulary, out, 200)
    assert [shard.read_bytes() for shard in shards] == content


def test_shards_of_two_subsets_cannot_be_in_one_store(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    one = prepare_subset(texts, vocabulary, tmp_path / "one", 300)
    two = prepare_subset(texts, vocabulary, tmp_path / "two", 301)
    with pytest.raises(WorkError, match="its selection_sha256 is"):
        SampleStore([one[0], two[1]])


def test_subset_is_an_error_in_the_closed_division(
    texts: list[Path], vocabulary: Path, whole: list[Path], tmp_path: Path
) -> None:
    SampleStore(whole).require_all_samples()
    subset = SampleStore(prepare_subset(texts, vocabulary, tmp_path / "out", 50))
    with pytest.raises(UsageError, match=r"closed division, Data set: found a random subset of the whole [\d,]+ sam"):
        subset.require_all_samples()


def test_evaluation_shard_has_the_reference_pick_and_is_marked(
    texts: list[Path], vocabulary: Path, whole: list[Path], tmp_path: Path
) -> None:
    (shard,) = prepare(texts[1:2], vocabulary, tmp_path / "out", selection=EvaluationPick(77))
    every = Shard(whole[1])
    picked = Shard(shard)
    expected = rows(every.samples)
    assert rows(picked.samples) == [expected[i] for i in pick_evaluation_indices(len(every), 77)]
    assert (picked.attributes["selection"], picked.attributes["selected_from"]) == ("evaluation", len(every))
    SampleStore([shard]).require_all_samples()
    with pytest.raises(UsageError, match=f"part-0: has {len(Shard(whole[0]))} samples, fewer than the 100000 "):
        prepare(texts[:1], vocabulary, tmp_path / "none", selection=EvaluationPick(100_000))
    assert [*(tmp_path / "none").iterdir()] == []
