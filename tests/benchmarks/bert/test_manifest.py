"""The manifest of a store: comparison with the shards, and errors for invalid files."""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.bert.manifest import (
    MANIFEST,
    MAX_BYTES,
    Manifest,
    ManifestError,
    has_manifest,
    mark_unfinished,
    read_manifest,
    write_manifest,
)
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import SampleStore, update_manifest
from podium.core.errors import WorkError
from tests.benchmarks.bert.test_store import make_samples, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of three shards with its manifest."""
    for number, name in enumerate("abc"):
        write(tmp_path / f"{name}.h5", make_samples([5, 60, 7 + number], seed=number))
    update_manifest(tmp_path)
    return tmp_path


def test_manifest_has_the_attributes_and_hashes_of_the_shards(folder: Path) -> None:
    document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    shards = document.pop("shards")
    assert document == {
        "format": "podium-manifest",
        "version": 2,
        "vocabulary_sha256": "ab" * 32,
        "max_sequence_length": 512,
        "max_predictions": 76,
        "selection": "whole",
        "lengths_sha256": hashlib.sha256((folder / "lengths.bin").read_bytes()).hexdigest(),
        "samples": 9,
    }
    store = SampleStore(folder)
    attributes = store.shards[1].attributes
    names = ("samples", "tokens", "masked_tokens", "content_sha256")
    assert shards[1] == {"name": "b.h5", **{name: attributes[name] for name in names}}
    assert [shard["name"] for shard in shards] == ["a.h5", "b.h5", "c.h5"]
    assert read_manifest(folder) == store.manifest == SampleStore(store.paths).manifest


def test_digest_depends_only_on_the_data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    digest = SampleStore(folder).manifest.digest
    other = tmp_path_factory.mktemp("other")
    for number, name in enumerate("abc"):
        write(other / f"{name}.h5", make_samples([5, 60, 7 + number], seed=number))
    assert SampleStore(other).manifest.digest == digest
    (other / "c.h5").rename(other / "0.h5")
    assert SampleStore([*other.glob("*.h5")]).manifest.digest != digest


def replace_b(folder: Path) -> None:
    write(folder / "b.h5", make_samples([5, 60, 8], seed=77))


def rename_c(folder: Path) -> None:
    (folder / "c.h5").unlink()
    write(folder / "d.h5", make_samples([5, 60, 9], seed=2))


def another_vocabulary(folder: Path) -> None:
    for path in folder.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["vocabulary_sha256"] = np.bytes_("cd" * 32)


def another_length(folder: Path) -> None:
    for number, name in enumerate("abc"):
        samples = make_samples([5, 60, 7 + number], seed=number)
        write(folder / f"{name}.h5", samples, chosen=GenerationSettings(max_sequence_length=100))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: (folder / "b.h5").unlink(), r"/b\.h5 is missing, manifest\.json has it; copy the missing"),
        (lambda folder: write(folder / "d.h5"), r"/d\.h5 is one shard too many, manifest\.json does not have it; see"),
        (rename_c, r"/c\.h5 is missing, .* \(1 more difference\); (see|copy)"),
        (replace_b, r"/b\.h5: its masked_tokens is \d+, manifest\.json has \d+; see|content_sha256 is [0-9a-f]{19}…"),
        (lambda folder: write(folder / "a.h5"), r"/a\.h5: its tokens is 594, manifest\.json has 72; see"),
        (another_vocabulary, r"/a\.h5: its vocabulary_sha256 is cdcd.*…, manifest\.json has abab"),
        (another_length, r"/a\.h5: its max_sequence_length is 100, manifest\.json has 512"),
    ],
)
def test_shards_that_differ_from_the_manifest_are_an_error(
    folder: Path, change: Callable[[Path], Any], expected: str
) -> None:
    change(folder)
    with pytest.raises(ManifestError, match=expected) as caught:
        SampleStore(folder).verify()
    message = str(caught.value)
    for advice in ("`podium data prepare`", f"remove {folder / MANIFEST}"):
        assert advice in message
    assert "`podium data stage`" in message if " is missing, " in message else "`podium data verify" in message
    SampleStore(sorted(folder.glob("*.h5")))  # of paths there is no manifest
    (folder / MANIFEST).unlink()
    store = SampleStore(folder)
    store.write_missing_manifest()
    assert read_manifest(folder) == store.manifest


def test_missing_manifest_is_written_once(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    SampleStore(sorted(folder.glob("*.h5"))).write_missing_manifest()
    assert not has_manifest(folder)
    store = SampleStore(folder)
    store.write_missing_manifest()
    assert read_manifest(folder) == store.manifest
    (folder / "c.h5").unlink()
    SampleStore(sorted(folder.glob("*.h5"))).write_missing_manifest()
    assert read_manifest(folder) == store.manifest


def test_manifest_is_not_written_for_a_changed_or_locked_folder(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    store = SampleStore(folder)
    write(folder / "d.h5")
    store.write_missing_manifest()
    assert not has_manifest(folder)
    (folder / "d.h5").unlink()
    preparing = os.open(folder, os.O_RDONLY)
    fcntl.flock(preparing, fcntl.LOCK_EX)
    store.write_missing_manifest()
    assert not has_manifest(folder)
    os.close(preparing)
    store.write_missing_manifest()
    assert has_manifest(folder)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_read_only_folder_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """As on a file system that is mounted read-only; permissions would not stop root."""
    for name in (MANIFEST, "lengths.bin"):
        (folder / name).unlink()
    really_open = Path.open

    def read_only(*arguments: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opens(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        return read_only() if "x" in mode or "w" in mode else really_open(path, mode, *arguments, **more)

    if call == "open":
        monkeypatch.setattr(Path, "open", opens)
    else:
        monkeypatch.setattr(Path, "replace", read_only)
    store = SampleStore(folder)
    store.write_missing_manifest()
    assert sorted(path.name for path in folder.iterdir()) == ["a.h5", "b.h5", "c.h5"]
    with pytest.raises(WorkError, match=r"manifest\.json: cannot be written \(Read-only file system\)"):
        write_manifest(folder, store.manifest)


GOOD: dict[str, Any] = {
    "format": "podium-manifest",
    "version": 1,
    "vocabulary_sha256": "ab",
    "max_sequence_length": 512,
    "samples": 3,
    "shards": [{"name": "a.h5", "samples": 3, "tokens": 9, "masked_tokens": 3, "content_sha256": "cd"}],
}


# Keys added by version 2.
NEWER = {"version": 2, "max_predictions": 1, "selection": "whole", "lengths_sha256": "ef"}


def shard(**changes: Any) -> str:
    return json.dumps(GOOD | {"shards": [GOOD["shards"][0] | changes]})


def test_valid_documents_are_accepted_with_equal_digests() -> None:
    for document in (GOOD, GOOD | NEWER):
        assert Manifest.of_document(document).document() == document
    assert Manifest.of_document(GOOD).digest == Manifest.of_document(GOOD | NEWER).digest  # the samples are the same


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "it is not a JSON document"),
        ("{", "it is not a JSON document"),
        (b"\xff\xfe{}", "it is not a JSON document"),
        ("[" * 1_000_000, "it is not a JSON document"),
        (json.dumps(GOOD).replace("512", "1" * 5000), "it is not a JSON document"),
        ("[]", "its format is not 'podium-manifest'"),
        ('{"format": []}', "its format is not 'podium-manifest'"),
        (
            json.dumps(GOOD | {"version": 3}),
            "its version is 3, not 2 or 1; update Podium if",
        ),
        (shard(tokens=2), r"its shards\[0\] has 2 tokens in 3 samples"),
        (shard(tokens=3 * 512 + 1), r"its shards\[0\] has 1,537 tokens in 3 samples"),
        (shard(masked_tokens=2), r"its shards\[0\] has 2 masked_tokens in 3 samples"),
        (json.dumps(json.loads(shard(masked_tokens=4)) | NEWER), r"its shards\[0\] has 4 masked_tokens in 3 samples"),
        (json.dumps(GOOD | {"version": 2}), "its max_predictions is not of type int"),
        (json.dumps(GOOD | NEWER | {"max_predictions": 0}), "its max_predictions is 0, allowed is 1 to"),
        (json.dumps(GOOD | NEWER | {"lengths_sha256": 7}), "its lengths_sha256 is not of type str"),
        (json.dumps(GOOD | NEWER | {"version": 1}), "other keys than a manifest"),
        (json.dumps(GOOD | {"version": [[1]] * 1000}), "its version is "),
        (json.dumps(GOOD | {"vocabulary_sha256": None}), "its vocabulary_sha256 is not of type str"),
        (json.dumps(GOOD | {"max_sequence_length": True}), "its max_sequence_length is not of type int"),
        (json.dumps(GOOD | {"max_sequence_length": 512.0}), "its max_sequence_length is not of type int"),
        (json.dumps(GOOD | {"samples": 3.0}), "its samples is not of type int"),
        (json.dumps(GOOD | {"version": True}), "its version is True, not 2 or 1"),
        (json.dumps(GOOD | {"version": 1.0}), r"its version is 1\.0, not 2 or 1"),
        (json.dumps(GOOD | {"samples": 4}), "its samples are not the sum"),
        (json.dumps(GOOD | {"more": 4}), "other keys than a manifest"),
        (json.dumps(GOOD | {"shards": {}}), "its shards are not a list"),
        (json.dumps(GOOD | {"shards": []}), "its shards are empty"),
        (json.dumps(GOOD | {"shards": GOOD["shards"] * 2}), "not in ascending order of their names"),
        (json.dumps(GOOD | {"shards": ["a.h5"]}), r"its shards\[0\] must have exactly the keys name, samples"),
        (shard(more=1), r"its shards\[0\] must have exactly the keys"),
        (shard(name=7), r"its shards\[0\]\.name is not of type str"),
        (shard(samples=-1), r"its shards\[0\]\.samples is -1, allowed is 1 to"),
        (shard(tokens=2**70), r"its shards\[0\]\.tokens is 1180591620717411303424, allowed is 1 to"),
        (shard(masked_tokens="3"), r"its shards\[0\]\.masked_tokens is not of type int"),
        (shard(content_sha256=["cd"]), r"its shards\[0\]\.content_sha256 is not of type str"),
        *(
            (shard(name=name), r"its shards\[0\]\.name is .*, which is not a file name")
            for name in ("../a.h5", "/etc/passwd", "a\\b.h5", "a\0.h5", "", "..", "a" * 256)
        ),
    ],
)
def test_invalid_manifest_is_an_error(folder: Path, content: str | bytes, expected: str) -> None:
    path = folder / MANIFEST
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ManifestError, match=expected) as caught:
        SampleStore(folder)
    text = str(caught.value)
    assert text.startswith(f"{path}: the manifest cannot be used: ") and len(text) < 700 and text.isprintable()
    assert "remove it if the shards are as intended" in text


def test_unprintable_name_is_escaped(folder: Path) -> None:
    (folder / MANIFEST).write_text(shard(name="\ud800\x1b[31m.h5"), encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        SampleStore(folder)
    assert str(caught.value).isprintable()


def test_too_large_or_unreadable_manifest_is_an_error(folder: Path) -> None:
    path = folder / MANIFEST
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(ManifestError, match=f"it has more than {MAX_BYTES:,} bytes"):
        SampleStore(folder)
    for make in (lambda: path.symlink_to("/dev/zero"), lambda: path.symlink_to("none"), path.mkdir):
        path.unlink()
        make()
        with pytest.raises(ManifestError, match="the manifest cannot be used: it cannot be read"):
            SampleStore(folder)


def test_unfinished_store_is_an_error_and_gets_no_manifest(folder: Path) -> None:
    store = SampleStore(folder)
    mark_unfinished(folder)
    with pytest.raises(
        ManifestError, match=r"manifest\.unfinished: the preparation .* run the same `podium data prepar"
    ):
        SampleStore(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(ManifestError, match=r"manifest\.unfinished: the preparation"):
        SampleStore(folder)
    store.write_missing_manifest()
    assert not has_manifest(folder)
    update_manifest(folder)
    assert SampleStore(folder).manifest == read_manifest(folder) == store.manifest


def test_manifest_above_the_size_limit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.bert.manifest.MAX_BYTES", 100)
    with pytest.raises(WorkError, match=r"manifest\.json: would have \d+ bytes for 1 shards, allowed are 100"):
        write_manifest(tmp_path, Manifest.of_document(GOOD))
    assert not [*tmp_path.iterdir()]
