"""Each check passes for a valid store and detects the faults that it is for."""

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
from benchmarks.bert.shard import SHARED_ATTRIBUTES, Origin, write_shard
from benchmarks.bert.store import SampleStore
from benchmarks.bert.verification import content as content_module
from benchmarks.bert.verification.checks import collect_statistics, gather_evidence, run_checks
from benchmarks.bert.verification.evidence import VerificationRequest
from podium.core.errors import UsageError, WorkError
from podium.core.finding import Finding, has_errors

SHARED = Path(__file__).resolve().parents[5] / "shared" / "data" / "wikipedia_sample"
Verify = Callable[..., dict[str, Finding]]
ValidSamples = Callable[[int], Samples]
ALWAYS_NOTED = {"official vocabulary", "words"}


def failed(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.severity == "error"}


def noted(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.severity == "note"} - ALWAYS_NOTED


def test_valid_store_passes_all_checks(write_store: Any, valid_samples: ValidSamples, verify: Verify) -> None:
    store, evaluation = (
        write_store(valid_samples(1), valid_samples(2), valid_samples(5)),
        write_store(valid_samples(3), name="evaluation"),
    )
    findings = verify(store, evaluation=evaluation)
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


def test_statistics_match_the_store(write_store: Any, valid_samples: ValidSamples, vocabulary: Path) -> None:
    folder = write_store(valid_samples(1), valid_samples(2))
    statistics = collect_statistics(gather_evidence(VerificationRequest(folder, vocabulary=vocabulary)))
    store, training = SampleStore(folder), statistics["training"]
    assert training["samples"] == len(store) == sum(training["lengths"])
    lengths = np.asarray(store.lengths)
    assert training["tokens"] == lengths.sum()
    assert training["mean_length"] == pytest.approx(lengths.mean())
    assert training["masked_share"] == pytest.approx(np.asarray(store.masked_counts).sum() / (lengths - 3.0).sum())
    assert training["lengths"] == np.bincount(lengths, minlength=513).tolist()
    assert statistics["evaluation"] is None
    assert statistics["hash_collisions"] == 0


def test_reference_samples_of_wikipedia_pass(tmp_path: Path) -> None:
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
    request = VerificationRequest(tmp_path / "store", vocabulary=vocabulary, texts=(text,))
    findings = {finding.rule: finding for finding in run_checks(gather_evidence(request))}
    assert failed(findings) == set()
    assert noted(findings) == {"lengths"}  # a part of 37 documents
    assert findings["structure"].message == "7,601 samples, all well-formed"
    assert findings["repeated samples"].message == "0 of 7,601 (0.0000%)"
    assert findings["masked share"].message.startswith("0.150081 ")
    assert findings["text"].severity == "ok"


Where = Callable[[Samples, int], int]  # from a sample's index to an index of an array, or to a value


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
    """Index of a text token of the sample that is not masked."""
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


@pytest.mark.parametrize(("plant", "expected", "needs_vocabulary"), FAULTS)
def test_malformed_sample_is_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, plant: Any, expected: str, needs_vocabulary: bool
) -> None:
    whole = valid_samples(2)
    index = next(i for i in range(77, len(whole)) if length(whole, i) > 30 and whole.first_segment_lengths[i] > 5)
    arrays = {name: np.copy(array) for name, array in vars(whole).items()}
    plant(whole, arrays, index)
    store = write_store(valid_samples(1), Samples(**arrays))
    finding = verify(store)["structure"]
    lines = [line for line in finding.message.splitlines() if line.startswith(expected)]
    assert finding.severity == "error"
    assert lines and lines[0].endswith(f"; the first is {store / 'b.h5'}, sample {index}")
    blind = verify(store, vocabulary=None)
    assert (blind["structure"].severity == "ok") == needs_vocabulary
    assert blind["words"].severity == "note"
    assert "no [CLS] at its start" in blind["words"].message


def test_several_malformed_samples_are_counted(write_store: Any, valid_samples: ValidSamples, verify: Verify) -> None:
    samples = replace(
        valid_samples(1), next_sentence_labels=np.where(np.arange(1_500) % 100 == 3, 9, 0).astype(np.uint8)
    )
    found = verify(write_store(samples, valid_samples(2)))["structure"].message
    assert "15 samples have a next-sentence label" in found
    assert found.endswith("a.h5, sample 3")


def test_special_tokens_are_valid_at_masked_positions_and_unknown_anywhere(
    write_store: Any, valid_samples: ValidSamples, verify: Verify
) -> None:
    arrays = {name: np.copy(array) for name, array in vars(valid_samples(1)).items()}
    for number, word in enumerate((0, 2, 3)):
        position = int(arrays["masked_positions"][first_mask(valid_samples(1), 5) + number])
        arrays["token_ids"][start(valid_samples(1), 5) + position] = word
    arrays["token_ids"][plain_place(valid_samples(1), 6)] = 1
    assert verify(write_store(Samples(**arrays)))["structure"].severity == "ok"


@pytest.mark.parametrize(
    ("origin", "sound_counts"),
    [
        ({"generation": GenerationSettings(masked_lm_probability=0.2)}, False),
        ({"generation": GenerationSettings(max_predictions=20), "max_predictions": 20}, None),
        ({"made_by": "hdf5-variable", "generation": None}, True),
        ({"made_by": "hdf5-variable", "generation": None, "max_predictions": 77}, False),
    ],
)
def test_expected_masked_tokens_follow_the_settings(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, origin: dict[str, Any], sound_counts: bool | None
) -> None:
    findings = verify(write_store(valid_samples(1), **origin))
    if sound_counts is None:  # more masked tokens than the shard's max_predictions: it cannot be opened
        assert failed(findings) == {"content"}
    elif sound_counts:
        assert failed(findings) == set()
    else:
        assert failed(findings) == {"structure", "masked share"}
        assert "another number of masked tokens" in findings["structure"].message


def test_masked_counts_round_half_to_even_and_are_bounded_by_the_text() -> None:
    from benchmarks.bert.verification.shard_stats import expected_masked_counts

    counts = expected_masked_counts(Origin.of_text("a", "", "", GenerationSettings()))
    assert counts[[5, 10, 30, 50, 70, 506, 507, 512]].tolist() == [1, 2, 4, 8, 10, 76, 76, 76]
    many = GenerationSettings(masked_lm_probability=1.0, max_predictions=60)
    assert expected_masked_counts(Origin.of_text("a", "", "", many))[[5, 10, 62, 64]].tolist() == [2, 7, 59, 60]


def with_marks(samples: Samples, change: Callable[[Any, Any], Any]) -> Samples:
    """Replace the tokens at masked positions by change(tokens there, original tokens)."""
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
def test_replacement_shares_of_masked_tokens_are_checked(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, change: Any, expected: set[str]
) -> None:
    findings = verify(write_store(with_marks(valid_samples(1), change)))
    assert failed(findings) == expected


@pytest.mark.parametrize(
    ("share", "level"), [(0.0, "error"), (0.2, "error"), (0.4, "note"), (0.5, "ok"), (0.72, "note"), (0.8, "error")]
)
def test_random_next_share_is_checked(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, share: float, level: str
) -> None:
    labels = (np.random.default_rng(0).random(1_500) < share).astype(np.uint8)
    finding = verify(write_store(replace(valid_samples(1), next_sentence_labels=labels)))["random-next share"]
    assert (finding.severity, bool(finding.advice)) == (level, level != "ok")


def test_short_samples_may_all_have_a_random_second_segment(
    write_store: Any, make_samples: Callable[..., Samples], verify: Verify
) -> None:
    """A single sentence often fills them; for longer samples the same labels are an error."""
    for longest, level in ((127, "note"), (128, "error")):
        samples = replace(make_samples(800, 4, short=True), next_sentence_labels=np.ones(800, dtype=np.uint8))
        assert np.diff(samples.sample_offsets).max() <= longest
        settings = GenerationSettings.from_lengths(longest, None)
        origin = {"max_sequence_length": longest, "max_predictions": settings.max_predictions, "generation": settings}
        assert verify(write_store(samples, name=f"of_{longest}", **origin))["random-next share"].severity == level


def test_few_labels_are_within_the_tolerance(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Any
) -> None:
    few = reorder(valid_samples(1), range(6))
    labels = np.array([1, 1, 1, 1, 1, 0], dtype=np.uint8)
    assert verify(write_store(replace(few, next_sentence_labels=labels)))["random-next share"].severity != "error"


def test_other_lengths_are_a_note_and_an_error_for_official_data(
    write_store: Any, make_samples: Callable[..., Samples], valid_samples: ValidSamples, verify: Verify
) -> None:
    store, evaluation = write_store(make_samples(800, 4, short=True)), write_store(valid_samples(3), name="evaluation")
    assert verify(store)["lengths"].severity == "note"
    assert verify(store, evaluation=evaluation, official=True)["lengths"].severity == "error"
    longer = write_store(valid_samples(1), name="longer", max_sequence_length=600, generation=None, made_by="tfrecord")
    assert verify(longer)["lengths"].severity == "note"


def test_every_damaged_shard_is_reported(write_store: Any, valid_samples: ValidSamples, verify: Verify) -> None:
    store = write_store(*map(valid_samples, range(1, 7)))
    for name in ("b.h5", "e.h5"):
        content = bytearray((store / name).read_bytes())
        with h5py.File(store / name) as file:
            content[file["records"].id.get_offset() + 999] ^= 1
        (store / name).write_bytes(bytes(content))
    (store / "c.h5").write_bytes(b"no shard")
    os.truncate(store / "f.h5", 1000)
    finding = verify(store)["content"]
    assert finding.severity == "error"
    lines = finding.message.splitlines()
    assert lines[0] == "4 of 6 shards are unreadable or damaged"
    assert [Path(line.split(":")[0]).name for line in lines[1:]] == ["c.h5", "f.h5", "b.h5", "e.h5"]
    assert verify(store)["counts"].message.endswith("4 shards")


def test_store_without_a_readable_shard_is_reported(
    write_store: Any, valid_samples: ValidSamples, vocabulary: Path
) -> None:
    store = write_store(valid_samples(1))
    os.truncate(store / "a.h5", 10)
    evidence = gather_evidence(VerificationRequest(store, vocabulary=vocabulary, evaluation=store))
    findings = run_checks(evidence)
    assert [f.rule for f in findings if f.severity == "error"] == ["content", "evaluation content"]
    assert collect_statistics(evidence)["training"] == {"shards": 1, "readable": 0}


@pytest.mark.parametrize("name", ["vocabulary_sha256", "max_sequence_length", "selection", "selection_sha256"])
def test_incompatible_shards_are_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, vocabulary: Path, name: str
) -> None:
    other: dict[str, Any] = {"max_sequence_length": 600, "selection": "random", "vocabulary_sha256": "0" * 64}
    change = {name: other.get(name, "x")} | ({"made_by": "x", "generation": None} if name.startswith("max") else {})
    store, alien = (
        write_store(valid_samples(1), valid_samples(2)),
        write_store(valid_samples(3), name="alien", **change),
    )
    (alien / "a.h5").rename(store / "z.h5")
    with pytest.raises(WorkError):
        SampleStore(store)
    finding = verify(store, evaluation=store)["shards"]
    assert finding.severity == "error"
    assert f"{store / 'z.h5'}: its {name} is " in finding.message
    assert name in SHARED_ATTRIBUTES


def test_other_vocabulary_is_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, tmp_path: Path
) -> None:
    store = write_store(valid_samples(1))
    (tmp_path / "other.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8")
    findings = verify(store, vocabulary=tmp_path / "other.txt")
    assert failed(findings) == {"vocabulary"}
    assert findings["words"].advice == "name the store's own vocabulary"
    assert "[MASK] share" not in findings


def test_random_subset_is_a_note_and_an_error_for_official_data(
    write_store: Any, valid_samples: ValidSamples, verify: Verify
) -> None:
    store = write_store(valid_samples(1), selection="random", selected_from=9_000)
    finding = verify(store)["selection"]
    assert (finding.severity, finding.message) == ("note", "a random subset of 9,000 samples")
    evaluation = write_store(valid_samples(2), name="evaluation", selection="evaluation")
    findings = verify(store, evaluation=evaluation, official=True)
    assert findings["selection"].severity == "error"
    assert findings["evaluation selection"].severity == "ok"


def test_official_sample_counts_are_checked(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, evaluation = write_store(valid_samples(1)), write_store(valid_samples(2), name="evaluation")
    findings = verify(store, evaluation=evaluation, official=True)
    assert {"counts", "evaluation counts", "official vocabulary"} <= failed(findings)
    assert "156,726,829" in findings["counts"].expected
    assert "10,000" in findings["evaluation counts"].expected
    monkeypatch.setattr(content_module, "TRAINING_SAMPLES", 1_500)
    for enough, level in ((1_500, "ok"), (1_499, "ok"), (1_501, "error")):
        monkeypatch.setattr(content_module, "EVALUATION_SAMPLES", enough)
        findings = verify(store, evaluation=evaluation, official=True)
        assert (findings["counts"].severity, findings["evaluation counts"].severity) == ("ok", level)
    monkeypatch.setattr(content_module, "TRAINING_SAMPLES", 1_499)
    assert verify(store, evaluation=evaluation, official=True)["counts"].severity == "error"


def test_official_without_vocabulary_or_evaluation_is_an_error(
    write_store: Any, valid_samples: ValidSamples, vocabulary: Path
) -> None:
    store = write_store(valid_samples(1))
    for given in ({}, {"vocabulary": vocabulary}, {"evaluation": store}):
        with pytest.raises(UsageError, match=r"--official: needs --vocab and --evaluation"):
            gather_evidence(VerificationRequest(store, official=True, **given))


def test_missing_files_are_usage_errors(write_store: Any, valid_samples: ValidSamples, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: there is no such text file"):
        gather_evidence(VerificationRequest(write_store(valid_samples(1)), texts=(tmp_path / "none",)))
    with pytest.raises(UsageError, match="there is no such folder of shards"):
        gather_evidence(VerificationRequest(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"no \*\.h5 shard is in it"):
        gather_evidence(VerificationRequest(tmp_path))
