"""`podium data import` and `podium data export` from the command line."""

import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchmarks.bert.store import SampleStore
from tests.podium.conftest import run_podium

ROOT = Path(__file__).resolve().parents[3]


def podium(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_podium("data", *arguments, cwd=cwd)


def refused(*arguments: str, cwd: Path, exit_code: int) -> str:
    """Return the error message, the only output of a command that fails."""
    done = podium(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert done.stderr.startswith("podium: ") and len(done.stderr.splitlines()) == 1
    return done.stderr.removeprefix("podium: ").rstrip("\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a vocabulary and two HDF5 files of padded samples [CLS] a [SEP] b [SEP]."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    for name, token_id in (("one.hdf5", 6), ("two.hdf5", 7)):
        with h5py.File(tmp_path / name, "w") as file:
            file["input_ids"] = np.array([[2, 4, 3, token_id, 3, 0]] * 3, "i2")
            file["input_mask"] = np.array([[1, 1, 1, 1, 1, 0]] * 3, "i1")
            file["segment_ids"] = np.array([[0, 0, 0, 1, 1, 0]] * 3, "i1")
            file["masked_lm_positions"] = np.array([[1, 0]] * 3, "i2")
            file["masked_lm_ids"] = np.array([[5, 0]] * 3, "i2")
            file["next_sentence_labels"] = np.array([0, 1, 0], "i1")
    return tmp_path


@pytest.mark.parametrize("command", ["import", "export"])
def test_help_has_an_example(tmp_path: Path, command: str) -> None:
    done = podium(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Example: podium data {command} " in done.stdout
    listed = podium("--help", cwd=tmp_path).stdout
    assert f" {command} " in listed


def test_import_and_export_round_trip(folder: Path) -> None:
    done = podium("import", "one.hdf5", "--vocab", "vocab.txt", "--out", "new/store", "two.hdf5", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["new/store/one.h5", "new/store/two.h5"]
    store = SampleStore(folder / "new" / "store")
    store.verify()
    assert len(store) == 6
    assert store.shards[0].origin.made_by == "hdf5-fixed"
    for format_name, padded in (("hdf5-fixed", True), ("hdf5-variable", False)):
        done = podium("export", "new/store", "--format", format_name, "--out", format_name, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [f"{format_name}/one.hdf5", f"{format_name}/two.hdf5"]
        with h5py.File(folder / format_name / "one.hdf5") as file:
            assert ("input_mask" in file) is padded
        arguments = ("--from", format_name, "--vocab", "vocab.txt", "--out", "back", "--processes", "1")
        done = podium("import", f"{format_name}/one.hdf5", *arguments, cwd=folder)
        assert (done.returncode, done.stdout) == (0, "back/one.h5\n"), done.stderr
        assert (folder / "back" / "one.h5").read_bytes() == (folder / "new" / "store" / "one.h5").read_bytes()


def test_unusable_files_are_errors_of_one_line(folder: Path) -> None:
    def refused_import(*files: str, exit_code: int = 2) -> str:
        return refused("import", *files, "--vocab", "vocab.txt", "--out", "out", cwd=folder, exit_code=exit_code)

    assert refused_import("none.hdf5") == "none.hdf5: there is no such sample file"
    assert "would both become one" in refused_import("one.hdf5", str(folder / "one.hdf5"))
    with h5py.File(folder / "two.hdf5", "r+") as file:
        file["input_mask"][1, 2] = 0
    assert refused_import("two.hdf5", exit_code=1) == (
        "two.hdf5: the file cannot be imported: row 1, counted from 0: input_mask is not ones and then zeros; see how "
        "the file was made, or get it again"
    )
    (folder / "text").write_text("a text", encoding="utf-8")
    assert "it looks like none of hdf5-fixed, hdf5-variable, tfrecord" in refused_import("text", exit_code=1)
    assert list((folder / "out").iterdir()) == []
    message = refused("export", "none", "--format", "hdf5-fixed", "--out", "out", cwd=folder, exit_code=2)
    assert message.startswith("none: there is no such folder of shards")


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "one.hdf5", "--vocab", "vocab.txt", "--out", "out", "--from", "parquet"),
        ("import", "--vocab", "vocab.txt", "--out", "out"),
        ("import", "one.hdf5", "--out", "out"),
        ("export", ".", "--format", "tfrecord", "--out", "out"),
        ("export", ".", "--out", "out"),
    ],
)
def test_invalid_options_are_usage_errors(folder: Path, arguments: tuple[str, ...]) -> None:
    done = podium(*arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stderr and "Traceback" not in done.stderr
    assert not (folder / "out").exists()
