"""Choice of the checkpoint that a run resumes from; unusable ones are kept under another name."""

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from podium.config.checkpoint_choice import checkpoint_fault, checkpoint_faults, likely_checkpoint, usable_checkpoint
from podium.config.run_folder import FACTS, UNFINISHED_MARKER, checkpoint_path, format_facts, rank_file
from podium.config.tensor_files import make_stamp
from podium.core.errors import UsageError, WorkError
from podium.core.json_files import json_digest

CONFIGURATION = {"seed": 5}
CONTENT = bytes(range(12))


def write_rank(path: Path, batches: int, rank: int) -> None:
    """Write a safetensors file of one tensor by hand (tests/implementations/pytorch uses the library)."""
    digest = blake2b(b"a torch.float32 [3]\n" + CONTENT, digest_size=32).hexdigest()
    stamp = {**make_stamp(batches, rank, CONFIGURATION), "content_blake2b": digest}
    header = {
        "__metadata__": {"podium": json.dumps(stamp)},
        "a": {"dtype": "F32", "shape": [3], "data_offsets": [0, len(CONTENT)]},
    }
    text = json.dumps(header).encode()
    rank_file(path, rank).write_bytes(len(text).to_bytes(8, "little") + text + CONTENT)


def write(folder: Path, batches: int) -> Path:
    path = checkpoint_path(folder, batches)
    path.mkdir(parents=True)
    for rank in range(2):
        write_rank(path, batches, rank)
    facts = format_facts(batches, 1000 * batches, 2, 7, "a log\n", CONFIGURATION, {"own": [1]})
    (path / FACTS).write_text(facts, encoding="utf-8")
    return path


def with_facts(**changes: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8")) | changes
        facts.pop("digest")
        (path / FACTS).write_text(json.dumps({**facts, "digest": json_digest(facts)}), encoding="utf-8")

    return damage


def with_bit_flipped(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(rank_file(path, 1).read_bytes())
        content[offset] ^= 4
        rank_file(path, 1).write_bytes(content)

    return damage


def contents(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())


UNUSABLE: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: rank_file(path, 1).unlink(), "rank_1.safetensors is missing"),
    (lambda path: [rank_file(path, rank).unlink() for rank in (0, 1)], "rank_0.safetensors is missing and 1 more"),
    (lambda path: (path / FACTS).unlink(), "facts.json: cannot be read (it cannot be read (No such file"),
    (lambda path: (path / FACTS).write_text("{"), "facts.json: cannot be read"),
    (lambda path: (path / FACTS).write_text("[]"), "facts.json: cannot be read"),
    (with_facts(version=1), "an older Podium made this checkpoint: its version is 1, allowed is 2"),
    (with_facts(format="other"), "facts.json: is not the facts file of a checkpoint"),
    (with_facts(ranks=None), "facts.json: lacks required keys, or they have wrong types"),
    (with_facts(ranks=3), "rank_2.safetensors is missing"),
    (
        lambda path: (path / FACTS).write_text((path / FACTS).read_text().replace("2000", "2001")),
        "facts.json: was changed after it was written: its digest does not match",
    ),
    (with_bit_flipped(-1), "rank_1.safetensors: is damaged: its tensors do not match their digest"),
    (with_bit_flipped(0), "rank_1.safetensors: cannot be read"),
    (with_bit_flipped(40), "rank_1.safetensors: "),
    (lambda path: rank_file(path, 1).write_bytes(b""), "rank_1.safetensors: cannot be read"),
    (
        lambda path: rank_file(path, 1).write_bytes(rank_file(path, 1).read_bytes()[:-1]),
        "rank_1.safetensors: cannot be read (it is not a complete tensor file: a is cut off)",
    ),
    (
        lambda path: rank_file(path, 1).write_bytes(rank_file(path, 0).read_bytes()),
        "belongs to another checkpoint: its rank is 0, expected 1",
    ),
]


@pytest.mark.parametrize(("damage", "why"), UNUSABLE)
def test_unusable_checkpoint_is_renamed_and_kept(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    write(tmp_path, 1)
    damage(write(tmp_path, 2))
    before, notes = contents(tmp_path), list[str]()
    found = usable_checkpoint(tmp_path, notes.append)
    assert found and found.path == checkpoint_path(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch_00000001", "unusable_batch_00000002"]
    assert contents(tmp_path) == before
    (note,) = notes
    assert why in note
    assert note.endswith(
        "so that it was set aside as unusable_batch_00000002; the run resumes from batch_00000001, after 1,000 samples"
    )
    assert usable_checkpoint(tmp_path, notes.append) == found and len(notes) == 1


def test_complete_checkpoint_is_used_and_unfinished_one_removed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path, notes = write(tmp_path, 2), list[str]()
    unfinished = write(tmp_path, 3)
    rank_file(unfinished, 0).unlink()
    (unfinished / UNFINISHED_MARKER).touch()
    found = usable_checkpoint(tmp_path, notes.append)
    assert found and (found.path, found.samples, notes) == (path, 2000, [])
    assert not unfinished.exists()
    assert usable_checkpoint(tmp_path / "nothing", notes.append) is None


def test_checkpoint_of_a_newer_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    with_facts(version=3)(path)
    before = contents(tmp_path)
    for choose in (lambda: usable_checkpoint(tmp_path, print), lambda: likely_checkpoint(tmp_path)):
        with pytest.raises(UsageError, match=r"a newer Podium made this checkpoint: its version is 3, and "):
            choose()
    assert contents(tmp_path) == before and path.is_dir()


def test_no_usable_checkpoint_is_an_error(tmp_path: Path) -> None:
    for number in (1, 2):
        with_bit_flipped(-1)(write(tmp_path, number))
    with pytest.raises(WorkError, match=r"batch_00000002; .*batch_00000001; no checkpoint is left to resume from"):
        usable_checkpoint(tmp_path, print)
    with_bit_flipped(-1)(write(tmp_path, 2))  # the run was repeated up to this batch
    write(tmp_path, 1)
    assert usable_checkpoint(tmp_path, lambda _: None)
    assert {path.name for path in tmp_path.iterdir()} >= {"unusable_batch_00000002", "unusable_batch_00000002_2"}


def test_likely_checkpoint_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1)
    rank_file(write(tmp_path, 2), 1).unlink()
    found = likely_checkpoint(tmp_path)
    assert found and found.batches == 1
    assert checkpoint_path(tmp_path, 2).is_dir()
    assert likely_checkpoint(tmp_path / "nothing") is None
    assert checkpoint_fault(checkpoint_path(tmp_path, 1), tensors=True) is None


def test_checkpoint_faults_are_described_without_changes(tmp_path: Path) -> None:
    checkpoint_path(tmp_path, 3).write_text("a file of that name is no checkpoint")
    assert checkpoint_faults(tmp_path) == [] and usable_checkpoint(tmp_path, print) is None
    older, newer = write(tmp_path, 1), write(tmp_path, 2)
    (older / FACTS).write_bytes(b"")
    rank_file(newer, 0).unlink()
    before = contents(tmp_path)
    missing, unreadable = checkpoint_faults(tmp_path)
    assert "rank_0.safetensors is missing" in missing and f"{older / FACTS}: cannot be read" in unreadable
    assert contents(tmp_path) == before
