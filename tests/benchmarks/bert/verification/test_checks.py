"""Each check passes what is sound and finds the fault that is planted for it."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import ALIKE, Origin, write_shard
from benchmarks.bert.store import SampleStore
from benchmarks.bert.verification import content as content_module
from benchmarks.bert.verification.checks import findings_of, gather_evidence, statistics_of
from benchmarks.bert.verification.evidence import Subject
from podium.core.errors import UsageError, WorkError
from podium.core.finding import Finding, has_errors

SHARED = Path(__file__).resolve().parents[5] / "shared" / "data" / "wikipedia_sample"
Look = Callable[..., dict[str, Finding]]
Sound = Callable[[int], Samples]
ALWAYS_NOTED = {"official vocabulary", "words"}


def failed(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.severity == "error"}


def noted(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.severity == "note"} - ALWAYS_NOTED


def test_a_sound_store_is_sound(stores: Any, sound: Sound, look: Look) -> None:
    store, evaluation = stores(sound(1), sound(2), sound(5)), stores(sound(3), name="evaluation")
    findings = look(store, evaluation=evaluation)
    assert (failed(findings), noted(findings)) == (set(), set())
    assert not has_errors(findings.values())
    assert {name for name in findings if name.startswith("evaluation ")} == {
        f"evaluation {name}"
        for name in (
            *("content", "manifest", "shards", "counts", "selection", "structure", "repeats in a row"),
            *("masked share", "[MASK] share", "kept share", "random-next share", "vocabulary"),
        )
    }
    assert findings["counts"].message.startswith("4,500 samples, ")
    assert findings["counts"].message.endswith(", 3 shards")
    assert findings["repeated samples"].message == "0 of 6,000 (0.0000%)"
    assert findings["shared samples"].message == "at most 0.00%, of any two of 4 shards"
    assert all(finding.advice for finding in findings.values() if finding.severity == "error")


def test_statistics_are_those_of_the_store(stores: Any, sound: Sound, vocabulary: Path) -> None:
    folder = stores(sound(1), sound(2))
    statistics = statistics_of(gather_evidence(Subject(folder, vocabulary=vocabulary)))
    store, training = SampleStore(folder), statistics["training"]
    assert training["samples"] == len(store) == sum(training["lengths"])
    lengths = np.asarray(store.lengths)
    assert training["tokens"] == lengths.sum()
    assert training["mean_length"] == pytest.approx(lengths.mean())
    assert training["masked_share"] == pytest.approx(np.asarray(store.masked_counts).sum() / (lengths - 3.0).sum())
    assert training["lengths"] == np.bincount(lengths, minlength=513).tolist()
    assert statistics["evaluation"] is None
    assert statistics["hash_collisions"] == 0


def test_the_real_sample_is_sound(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"the real sample is not at {SHARED}")
    vocabulary = SHARED / "vocab.txt"
    with np.load(SHARED / "reference_samples_part-00000.npz") as arrays:
        samples = Samples(**{name: arrays[name] for name in arrays})
    (tmp_path / "store").mkdir()
    text = SHARED / "part-00000"
    from podium.core.files import sha256_of

    origin = Origin.of_text(text.name, sha256_of(text), Vocabulary.read(vocabulary).sha256, GenerationSettings())
    write_shard(tmp_path / "store" / "part-00000.h5", samples, origin)
    subject = Subject(tmp_path / "store", vocabulary=vocabulary, texts=(text,))
    findings = {finding.rule: finding for finding in findings_of(gather_evidence(subject))}
    assert failed(findings) == set()
    assert noted(findings) == {"lengths"}  # a part of 37 documents
    assert findings["structure"].message == "7,601 samples, all well-formed"
    assert findings["repeated samples"].message == "0 of 7,601 (0.0000%)"
    assert findings["masked share"].message.startswith("0.150081 ")
    assert findings["text"].severity == "ok"


Where = Callable[[Samples, int], int]
"""A place in an array, or a value, for a sample by its number."""


def start(samples: Samples, index: int) -> int:
    return int(samples.sample_offsets[index])


def last(samples: Samples, index: int) -> int:
    return int(samples.sample_offsets[index + 1]) - 1


def first_mask(samples: Samples, index: int) -> int:
    return int(samples.masked_offsets[index])


def last_mask(samples: Samples, index: int) -> int:
    return int(samples.masked_offsets[index + 1]) - 1


def length(samples: Samples, index: int) -> int:
    return last(samples, index) + 1 - start(samples, index)


def plain_place(samples: Samples, index: int) -> int:
    """A place of a sample's text that is not masked."""
    masked = samples.masked_positions[first_mask(samples, index) : last_mask(samples, index) + 1]
    taken = {*masked.tolist(), samples.first_segment_lengths[index] - 1}
    return next(start(samples, index) + n for n in range(1, length(samples, index) - 1) if n not in taken)


def put(name: str, place: Where, value: int | Where) -> Callable[[Samples, dict[str, Any], int], None]:
    def plant(samples: Samples, arrays: dict[str, Any], index: int) -> None:
        arrays[name][place(samples, index)] = value if isinstance(value, int) else value(samples, index)

    return plant


def swap_positions(samples: Samples, arrays: dict[str, Any], index: int) -> None:
    first, positions = first_mask(samples, index), arrays["masked_positions"]
    positions[first], positions[first + 1] = positions[first + 1], positions[first]


FAULTS = [
    *(
        (put("first_segment_lengths", lambda s, i: i, value), "1 sample has a first segment", False)
        for value in (2, lambda s, i: length(s, i) - 1, 0, 65_535)
    ),
    (put("next_sentence_labels", lambda s, i: i, 2), "1 sample has a next-sentence label", False),
    (swap_positions, "1 sample has masked positions", False),
    (
        put("masked_positions", lambda s, i: first_mask(s, i) + 1, lambda s, i: s.masked_positions[first_mask(s, i)]),
        "1 sample has masked positions",
        False,
    ),
    (put("masked_positions", last_mask, length), "1 sample has masked positions", False),
    (put("masked_positions", last_mask, lambda s, i: length(s, i) - 1), "1 sample has a mask on [CLS] or [SEP]", False),
    (put("masked_positions", first_mask, 0), "1 sample has a mask on [CLS] or [SEP]", False),
    (put("token_ids", plain_place, 400), "1 sample has a token id beyond the vocabulary", True),
    (put("masked_token_ids", first_mask, 400), "1 sample has a token id beyond the vocabulary", True),
    (put("token_ids", start, 7), "1 sample has no [CLS] at its start", True),
    (put("token_ids", last, 7), "1 sample has no [SEP] at the end", True),
    (
        put("token_ids", lambda s, i: start(s, i) + int(s.first_segment_lengths[i]) - 1, 7),
        "1 sample has no [SEP] at the end",
        True,
    ),
    *(
        (put("token_ids", plain_place, word), "1 sample has [CLS], [SEP], [MASK] or [PAD]", True)
        for word in (0, 2, 3, 4)
    ),
    (put("masked_token_ids", first_mask, 3), "1 sample has [CLS], [SEP], [MASK] or [PAD]", True),
]


@pytest.mark.parametrize(("plant", "said", "needs_words"), FAULTS)
def test_a_malformed_sample_is_found(
    stores: Any, sound: Sound, look: Look, plant: Any, said: str, needs_words: bool
) -> None:
    whole = sound(2)
    index = next(i for i in range(77, len(whole)) if length(whole, i) > 30 and whole.first_segment_lengths[i] > 5)
    arrays = {name: np.copy(array) for name, array in vars(whole).items()}
    plant(whole, arrays, index)
    store = stores(sound(1), Samples(**arrays))
    finding = look(store)["structure"]
    lines = [line for line in finding.message.splitlines() if line.startswith(said)]
    assert finding.severity == "error"
    assert lines and lines[0].endswith(f"; the first is {store / 'b.h5'}, sample {index}")
    blind = look(store, vocabulary=None)
    assert (blind["structure"].severity == "ok") == needs_words
    assert blind["words"].severity == "note"
    assert "no [CLS] at its start" in blind["words"].message


def test_several_malformed_samples_are_counted(stores: Any, sound: Sound, look: Look) -> None:
    samples = replace(sound(1), next_sentence_labels=np.where(np.arange(1_500) % 100 == 3, 9, 0).astype(np.uint8))
    found = look(stores(samples, sound(2)))["structure"].message
    assert "15 samples have a next-sentence label" in found
    assert found.endswith("a.h5, sample 3")


def test_special_words_may_stand_at_masked_positions_and_unknown_ones_anywhere(
    stores: Any, sound: Sound, look: Look
) -> None:
    arrays = {name: np.copy(array) for name, array in vars(sound(1)).items()}
    for number, word in enumerate((0, 2, 3)):
        position = int(arrays["masked_positions"][first_mask(sound(1), 5) + number])
        arrays["token_ids"][start(sound(1), 5) + position] = word
    arrays["token_ids"][plain_place(sound(1), 6)] = 1
    assert look(stores(Samples(**arrays)))["structure"].severity == "ok"


@pytest.mark.parametrize(
    ("origin", "sound_counts"),
    [
        ({"generation": GenerationSettings(masked_lm_probability=0.2)}, False),
        ({"generation": GenerationSettings(max_predictions=20), "max_predictions": 20}, None),
        ({"made_by": "hdf5-variable", "generation": None}, True),
        ({"made_by": "hdf5-variable", "generation": None, "max_predictions": 77}, False),
    ],
)
def test_masks_are_counted_by_the_settings(
    stores: Any, sound: Sound, look: Look, origin: dict[str, Any], sound_counts: bool | None
) -> None:
    findings = look(stores(sound(1), **origin))
    if sound_counts is None:  # more masks than the shard says that it may have: it cannot be opened
        assert failed(findings) == {"content"}
    elif sound_counts:
        assert failed(findings) == set()
    else:
        assert failed(findings) == {"structure", "masked share"}
        assert "another number of masked tokens" in findings["structure"].message


def test_masks_are_rounded_half_to_even_and_bounded_by_the_text() -> None:
    from benchmarks.bert.verification.shard_stats import expected_masked_counts

    counts = expected_masked_counts(Origin.of_text("a", "", "", GenerationSettings()))
    assert counts[[5, 10, 30, 50, 70, 506, 507, 512]].tolist() == [1, 2, 4, 8, 10, 76, 76, 76]
    many = GenerationSettings(masked_lm_probability=1.0, max_predictions=60)
    assert expected_masked_counts(Origin.of_text("a", "", "", many))[[5, 10, 62, 64]].tolist() == [2, 7, 59, 60]


def with_marks(samples: Samples, change: Callable[[Any, Any], Any]) -> Samples:
    """Change what stands at masked positions: change(tokens there, originals) → tokens there."""
    tokens, positions = samples.token_ids.copy(), samples.masked_positions.astype(np.int64)
    places = positions + np.repeat(samples.sample_offsets[:-1], np.diff(samples.masked_offsets))
    tokens[places] = change(tokens[places], samples.masked_token_ids)
    return replace(samples, token_ids=tokens)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda there, original: np.full_like(there, 4), {"[MASK] share", "kept share"}),
        (lambda there, original: original, {"[MASK] share", "kept share"}),
        (lambda there, original: np.where(there == original, 9, there), {"kept share"}),
        (lambda there, original: np.where((there == 4) & (np.arange(len(there)) % 8 == 0), 9, there), {"[MASK] share"}),
        (lambda there, original: there, set()),
    ],
)
def test_replacements_are_as_the_reference_draws_them(
    stores: Any, sound: Sound, look: Look, change: Any, expected: set[str]
) -> None:
    findings = look(stores(with_marks(sound(1), change)))
    assert failed(findings) == expected


@pytest.mark.parametrize(
    ("share", "level"), [(0.0, "error"), (0.2, "error"), (0.4, "note"), (0.5, "ok"), (0.72, "note"), (0.8, "error")]
)
def test_labels_are_balanced(stores: Any, sound: Sound, look: Look, share: float, level: str) -> None:
    labels = (np.random.default_rng(0).random(1_500) < share).astype(np.uint8)
    finding = look(stores(replace(sound(1), next_sentence_labels=labels)))["random-next share"]
    assert (finding.severity, bool(finding.advice)) == (level, level != "ok")


def test_short_samples_may_nearly_all_have_a_random_b(stores: Any, make: Callable[..., Samples], look: Look) -> None:
    """A single sentence fills them: of 512 tokens the same labels are an error."""
    for longest, level in ((127, "note"), (128, "error")):
        samples = replace(make(800, 4, short=True), next_sentence_labels=np.ones(800, dtype=np.uint8))
        assert np.diff(samples.sample_offsets).max() <= longest
        settings = GenerationSettings.of_lengths(longest, None)
        origin = {"max_sequence_length": longest, "max_predictions": settings.max_predictions, "generation": settings}
        assert look(stores(samples, name=f"of_{longest}", **origin))["random-next share"].severity == level


def test_few_labels_may_be_anything(stores: Any, sound: Sound, look: Look, reorder: Any) -> None:
    few = reorder(sound(1), range(6))
    labels = np.array([1, 1, 1, 1, 1, 0], dtype=np.uint8)
    assert look(stores(replace(few, next_sentence_labels=labels)))["random-next share"].severity != "error"


def test_other_lengths_are_noted_and_are_not_official(
    stores: Any, make: Callable[..., Samples], sound: Sound, look: Look
) -> None:
    store, evaluation = stores(make(800, 4, short=True)), stores(sound(3), name="evaluation")
    assert look(store)["lengths"].severity == "note"
    assert look(store, evaluation=evaluation, official=True)["lengths"].severity == "error"
    longer = stores(sound(1), name="longer", max_sequence_length=600, generation=None, made_by="tfrecord")
    assert look(longer)["lengths"].severity == "note"


def test_every_broken_shard_is_named(stores: Any, sound: Sound, look: Look) -> None:
    store = stores(*map(sound, range(1, 7)))
    for name in ("b.h5", "e.h5"):
        content = bytearray((store / name).read_bytes())
        with h5py.File(store / name) as file:
            content[file["records"].id.get_offset() + 999] ^= 1
        (store / name).write_bytes(bytes(content))
    (store / "c.h5").write_bytes(b"no shard")
    os.truncate(store / "f.h5", 1000)
    finding = look(store)["content"]
    assert finding.severity == "error"
    lines = finding.message.splitlines()
    assert lines[0] == "4 of 6 shards cannot be trusted"
    assert [Path(line.split(":")[0]).name for line in lines[1:]] == ["c.h5", "f.h5", "b.h5", "e.h5"]
    assert look(store)["counts"].message.endswith("4 shards")


def test_a_store_of_broken_shards_alone_is_told(stores: Any, sound: Sound, vocabulary: Path) -> None:
    store = stores(sound(1))
    os.truncate(store / "a.h5", 10)
    evidence = gather_evidence(Subject(store, vocabulary=vocabulary, evaluation=store))
    findings = findings_of(evidence)
    assert [f.rule for f in findings if f.severity == "error"] == ["content", "evaluation content"]
    assert statistics_of(evidence)["training"] == {"shards": 1, "readable": 0}


@pytest.mark.parametrize("name", ["vocabulary_sha256", "max_sequence_length", "selection", "selection_sha256"])
def test_shards_that_do_not_belong_together_are_found_as_the_store_does(
    stores: Any, sound: Sound, look: Look, vocabulary: Path, name: str
) -> None:
    other: dict[str, Any] = {"max_sequence_length": 600, "selection": "random", "vocabulary_sha256": "0" * 64}
    change = {name: other.get(name, "x")} | ({"made_by": "x", "generation": None} if name.startswith("max") else {})
    store, alien = stores(sound(1), sound(2)), stores(sound(3), name="alien", **change)
    (alien / "a.h5").rename(store / "z.h5")
    with pytest.raises(WorkError):
        SampleStore(store)
    finding = look(store, evaluation=store)["shards"]
    assert finding.severity == "error"
    assert f"{store / 'z.h5'}: its {name} is " in finding.message
    assert name in ALIKE


def test_another_vocabulary_is_found(stores: Any, sound: Sound, look: Look, tmp_path: Path) -> None:
    store = stores(sound(1))
    (tmp_path / "other.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8")
    findings = look(store, vocabulary=tmp_path / "other.txt")
    assert failed(findings) == {"vocabulary"}
    assert findings["words"].advice == "name the store's own vocabulary"
    assert "[MASK] share" not in findings


def test_a_random_subset_is_noted_and_is_not_official(stores: Any, sound: Sound, look: Look) -> None:
    store = stores(sound(1), selection="random", selected_from=9_000)
    finding = look(store)["selection"]
    assert (finding.severity, finding.message) == ("note", "a random subset of 9,000 samples")
    evaluation = stores(sound(2), name="evaluation", selection="evaluation")
    findings = look(store, evaluation=evaluation, official=True)
    assert findings["selection"].severity == "error"
    assert findings["evaluation selection"].severity == "ok"


def test_official_counts(stores: Any, sound: Sound, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    store, evaluation = stores(sound(1)), stores(sound(2), name="evaluation")
    findings = look(store, evaluation=evaluation, official=True)
    assert {"counts", "evaluation counts", "official vocabulary"} <= failed(findings)
    assert "156,726,829" in findings["counts"].expected
    assert "10,000" in findings["evaluation counts"].expected
    monkeypatch.setattr(content_module, "TRAINING_SAMPLES", 1_500)
    for enough, level in ((1_500, "ok"), (1_499, "ok"), (1_501, "error")):
        monkeypatch.setattr(content_module, "EVALUATION_SAMPLES", enough)
        findings = look(store, evaluation=evaluation, official=True)
        assert (findings["counts"].severity, findings["evaluation counts"].severity) == ("ok", level)
    monkeypatch.setattr(content_module, "TRAINING_SAMPLES", 1_499)
    assert look(store, evaluation=evaluation, official=True)["counts"].severity == "error"


def test_what_official_needs_is_asked_for_at_once(stores: Any, sound: Sound, vocabulary: Path) -> None:
    store = stores(sound(1))
    for given in ({}, {"vocabulary": vocabulary}, {"evaluation": store}):
        with pytest.raises(UsageError, match=r"--official: needs --vocab and --evaluation"):
            gather_evidence(Subject(store, official=True, **given))


def test_what_is_not_there_is_wrong_use(stores: Any, sound: Sound, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: there is no such text file"):
        gather_evidence(Subject(stores(sound(1)), texts=(tmp_path / "none",)))
    with pytest.raises(UsageError, match="there is no such folder of shards"):
        gather_evidence(Subject(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"no \*\.h5 shard is in it"):
        gather_evidence(Subject(tmp_path))
