"""Comparison of the data that runs were trained on, between runs and with the stores on this machine."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Origin, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from podium.config.load import load_system, write_resolved
from podium.config.run_data import RunData, write_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import DataSettings
from podium.core.errors import WorkError
from podium.run.records import RunRecord
from podium.submission.package import data as package_data
from podium.submission.package.build import package
from podium.submission.package.data import compare_data


def make_store(folder: Path, word: int) -> Path:
    """One shard of one sample of five tokens."""
    folder.mkdir()
    flat = Samples(
        token_ids=np.array([2, word, 3, 7, 3], np.uint16),
        sample_offsets=np.array([0, 5]),
        first_segment_lengths=np.array([3], np.uint16),
        masked_positions=np.array([1], np.uint16),
        masked_token_ids=np.array([word], np.uint16),
        masked_offsets=np.array([0, 1]),
        next_sentence_labels=np.array([0], np.uint8),
    )
    write_shard(folder / "one.h5", flat, Origin.of_text("one", "cd" * 32, "ab" * 32, GenerationSettings()))
    update_manifest(folder)
    return folder


@pytest.fixture
def records(tmp_path: Path) -> list[RunRecord]:
    """Three runs with a record of the data that they were trained on."""
    train, evaluation = make_store(tmp_path / "train", 8), make_store(tmp_path / "eval", 9)
    stores = DataSettings(store=train, evaluation_store=evaluation, vocabulary=tmp_path / "vocab.txt")
    config = load_system("laptop", settings=["seed=1"]).model_copy(update={"data": stores})
    data = RunData({key: SampleStore(folder).manifest for key, folder in config.all_stores.items()})
    made = [RunFolder(tmp_path / f"run_{number}") for number in range(3)]
    for folder in made:
        folder.path.mkdir()
        write_resolved(config, folder.config)
        write_run_data(folder.data, data)
    return [RunRecord(folder) for folder in made]


def compare(records: list[RunRecord]) -> tuple[list[str], list[str]]:
    launch = records[0].config.launch
    return compare_data(records, launch, lambda message: None)


def test_runs_on_the_stores_of_this_machine_have_no_reason(records: list[RunRecord]) -> None:
    assert compare(records) == ([], [])


def test_a_store_that_is_not_on_this_machine_is_noted(
    records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store below the container's folder of the repository is looked up in the repository on this machine."""
    monkeypatch.setattr(package_data, "INSIDE", tmp_path / "train")
    monkeypatch.setattr(package_data, "WORKING_FOLDER", tmp_path / "moved")
    (tmp_path / "train").rename(tmp_path / "moved")
    (tmp_path / "eval").rename(tmp_path / "away")
    reasons, (note,) = compare(records)
    assert reasons == []
    assert note == (
        "data.evaluation_store not compared with what the runs were trained on: "
        f"the store {tmp_path}/eval is not on this machine"
    )


def test_a_store_changed_since_the_runs_is_an_error(records: list[RunRecord], tmp_path: Path) -> None:
    """Changed by a byte, or replaced by another valid shard."""
    path = tmp_path / "train" / "one.h5"
    content = path.read_bytes()
    tokens = SampleStore(path.parent).read(0).token_ids.tobytes()
    path.write_bytes(content.replace(tokens, tokens[:2] + b"\x09\x00" + tokens[4:]))
    (reason,), _ = compare(records)
    assert reason.startswith(f"data as trained on: {path}: the shard cannot be used: its content has the SHA-256 ")
    shutil.rmtree(path.parent)
    make_store(path.parent, 10)
    (reason,), _ = compare(records)
    assert reason.startswith(f"data as trained on: data.store: {path}: its content_sha256 is ")


def test_runs_on_different_data_are_an_error(records: list[RunRecord], tmp_path: Path) -> None:
    other = SampleStore(make_store(tmp_path / "other", 11)).manifest
    own = SampleStore(tmp_path / "eval").manifest
    write_run_data(records[1].folder.data, RunData({"data.store": other, "data.evaluation_store": own}))
    (reason,), notes = compare(records)
    assert reason.startswith(
        f"same data: {records[1].name}: data.store: {tmp_path}/train/one.h5: its content_sha256 is"
    )
    assert notes == []
    write_run_data(records[1].folder.data, RunData({"data.store": SampleStore(tmp_path / "train").manifest}))
    (reason,), _ = compare(records)
    assert f"{records[0].name} has a store data.evaluation_store, this run has none" in reason


def test_a_missing_or_broken_record_is_an_error(records: list[RunRecord]) -> None:
    records[2].folder.data.unlink()
    assert compare(records)[0] == [
        f"same data: {records[2].name}: data.json is missing, and other runs of the set have it; restore it"
    ]
    records[1].folder.data.write_text('{"format": "podium-data", "version": 1, "stores": []}', encoding="utf-8")
    (reason,), _ = compare(records)
    assert reason.startswith(
        f"same data: {records[1].folder.data}: cannot be used (it lists no stores); restore the file "
    )
    for record in records:
        record.folder.data.unlink(missing_ok=True)
    assert compare(records) == (
        [],
        ["data not compared: these runs have no record of it (data.json), as those of older versions"],
    )


def test_a_package_notes_data_not_compared_and_is_refused_for_different_data(
    make_set: Any, make_request: Any, records: list[RunRecord], tmp_path: Path
) -> None:
    made = make_set()
    packaged = package(make_request(made), lambda path, rules: [], lambda message: None)
    assert packaged.systems[0].notes[0].startswith("data not compared: these runs have no record of it")
    assert len(packaged.systems[0].compared) == 2
    for number in range(10):
        shutil.copy(records[0].folder.data, made.folder(number))
    write_run_data(RunFolder(made.folder(4)).data, RunData({}))
    with pytest.raises(WorkError, match=r"mine: same data: mine/set/run_4: mine/set/run_0 has a store data\.store, "):
        package(make_request(made, out=tmp_path / "again"), lambda path, rules: [], lambda message: None)
