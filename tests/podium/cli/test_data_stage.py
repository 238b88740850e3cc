"""`podium data stage` from the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bert.manifest import WHOLE_STORE, NodePart
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.shard import EVALUATION, Origin, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from podium.cli.stage import node_part
from podium.config.load import load_system
from podium.core.errors import UsageError
from tests.benchmarks.bert.test_store import make_samples, write
from tests.podium.conftest import run_podium

PER_RANK = ("shards=per_rank", "balancing=random", "launch.nodes=3", "launch.rendezvous=node0:29500")
OPTIONS = [part for setting in (*PER_RANK, "global_batch_size=24") for part in ("--set", setting)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    for number, name in enumerate("abc"):
        write(tmp_path / "store" / f"{name}.h5", make_samples([9 + number] * 8, seed=number))
    update_manifest(tmp_path / "store")
    return tmp_path


def test_store_is_copied_and_its_setting_is_printed(folder: Path) -> None:
    done = run_podium("data", "stage", "store", "local/store", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "local/store\n"), done.stderr
    assert "Files copied and verified: 4; kept from before: 0" in done.stderr
    assert f"podium run SYSTEM --set data.store={folder}/local/store" in done.stderr
    SampleStore(folder / "local" / "store").verify()


def test_only_the_shards_of_the_node_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    done = run_podium("data", "stage", "store", "local", "--system", "laptop", *OPTIONS, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Shards left out, which node 1 of 3 does not need: 2" in done.stderr
    assert f"podium run laptop {' '.join(OPTIONS)} --set data.store={folder}/local" in done.stderr
    assert [path.name for path in sorted((folder / "local").glob("*.h5"))] == ["b.h5"]
    SampleStore(folder / "local", NodePart(1, 3)).verify()


def test_evaluation_store_is_copied_completely(folder: Path) -> None:
    (folder / "evaluation").mkdir()
    for number, name in enumerate("abc"):
        origin = Origin.of_text(name, "ef" * 32, "ab" * 32, GenerationSettings())
        samples = make_samples([5 + number] * 4, seed=number)
        write_shard(folder / "evaluation" / f"{name}.h5", samples, replace(origin, selection=EVALUATION))
    update_manifest(folder / "evaluation")
    options = ("--system", "laptop", "--node-rank", "1", *OPTIONS)
    done = run_podium("data", "stage", "evaluation", "local", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "--set data.evaluation_store=" in done.stderr
    assert len(SampleStore(folder / "local")) == 12


def test_node_rank_is_given_or_that_of_the_slurm_step(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_system("laptop", None, [*PER_RANK, "global_batch_size=24"])
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    with pytest.raises(UsageError, match=r"--node-rank: laptop has 3 nodes, and SLURM_NODEID is not set; give 0 to 2"):
        node_part(config, None)
    with pytest.raises(UsageError, match=r"--node-rank: found 3, allowed is 0 to 2"):
        node_part(config, 3)
    assert node_part(config, 0) == NodePart(0, 3)
    monkeypatch.setenv("SLURM_NODEID", "3")
    with pytest.raises(UsageError, match="SLURM_NODEID is 3; give 0 to 2"):
        node_part(config, None)
    monkeypatch.setenv("SLURM_NODEID", "2")
    assert (node_part(config, None), node_part(config, 1)) == (NodePart(2, 3), NodePart(1, 3))
    shared = load_system("laptop", None, [*PER_RANK, "global_batch_size=24", "shards=shared"])
    assert node_part(shared, 1) == WHOLE_STORE
    monkeypatch.delenv("SLURM_NODEID")
    one_node = load_system("laptop", None, ["shards=per_rank", "balancing=random", "global_batch_size=24"])
    assert node_part(one_node, None) == NodePart(0, 1)


def test_errors_are_one_line(folder: Path) -> None:
    (folder / "store" / "b.h5").unlink()
    done = run_podium("data", "stage", "store", "local", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("podium: store/b.h5: ")
    for arguments in (("--node-rank", "1"), ("--set", "launch.nodes=2"), ("--system", "no_such_system")):
        done = run_podium("data", "stage", "store", "local", *arguments, cwd=folder)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
