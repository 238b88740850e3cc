"""`podium data stage` from outside."""

from pathlib import Path

import pytest

from benchmarks.bert.store import SampleStore, renew_manifest
from tests.benchmarks.bert.test_store import make_samples, write
from tests.podium.conftest import run_podium

PER_RANK = ("shards=per_rank", "balancing=random", "launch.nodes=3", "launch.rendezvous=node0:29500")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    for number, name in enumerate("abc"):
        write(tmp_path / "store" / f"{name}.h5", make_samples([9 + number] * 8, seed=number))
    renew_manifest(tmp_path / "store")
    return tmp_path


def test_a_store_is_staged_and_its_use_named(folder: Path) -> None:
    done = run_podium("data", "stage", "store", "local/store", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "local/store\n"), done.stderr
    assert "0 were there already" in done.stderr
    assert "podium run SYSTEM --set data.store=local/store" in done.stderr
    SampleStore(folder / "local" / "store").verify()


def test_a_node_gets_the_shards_that_its_ranks_need(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    settings = [part for setting in (*PER_RANK, "global_batch_size=24") for part in ("--set", setting)]
    done = run_podium("data", "stage", "store", "local", "--system", "laptop", *settings, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "2 shards left out that this node does not need" in done.stderr
    assert [path.name for path in sorted((folder / "local").glob("*.h5"))] == ["b.h5"]


def test_failures_are_sentences(folder: Path) -> None:
    (folder / "store" / "b.h5").unlink()
    done = run_podium("data", "stage", "store", "local", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("podium: store/b.h5: ")
    for arguments in (("--node-rank", "1"), ("--set", "launch.nodes=2"), ("--system", "no_such_system")):
        done = run_podium("data", "stage", "store", "local", *arguments, cwd=folder)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
