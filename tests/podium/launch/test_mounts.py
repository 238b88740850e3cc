"""What a container is given and sees of this machine, as far as that is known before it or its job is started."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.launch import mounts as mounts_module
from podium.launch.container import wrapped
from podium.launch.mounts import known_faults, unseen_paths
from podium.run.dry_run import commands
from podium.run.run_set import RunRequest

LOCAL = ["data.store=/local/wikipedia", "data.evaluation_store=/local/evaluation"]
ADDED = '["data:/data:ro", "/local/wikipedia:/local/wikipedia:ro", "/local/evaluation:/local/evaluation:ro"]'


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository's folder with the image and the data of dgxa100_n8 and dgxa100_n1."""
    monkeypatch.setattr(mounts_module, "WORKING_FOLDER", tmp_path)
    for name in ("wikipedia", "evaluation", "vocab.txt", "large.safetensors"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "podium.sqsh").touch()
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `podium run` would have started."""
    started: list[Any] = []

    def stop_there(_: Any, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.setattr("podium.run.run_set.become", stop_there)
    return started


def faults(system: str, *settings: str) -> list[str]:
    return known_faults(load_system(system, settings=settings, paths_as_written=True))


def unseen(system: str, *settings: str) -> str:
    return unseen_paths(load_system(system, settings=settings, paths_as_written=True), Path("systems/mine.yaml"))


def with_container(*mounts: str, runtime: str = "docker", image: str = "x") -> list[str]:
    launcher = "docker" if runtime == "docker" else "slurm"
    container = {"runtime": runtime, "image": image, "mounts": list(mounts)}
    return [f"launch.launcher={launcher}", f"launch.container={container}"]


def store(path: object) -> list[str]:
    return [f"data={{store: '{path}', evaluation_store: '{path}', vocabulary: '{path}'}}"]


@pytest.mark.parametrize("system", ["dgxa100_n1", "dgxa100_n8"])
def test_stores_on_the_nodes_disks_have_to_be_mounted(system: str) -> None:
    """The example of docs/submitting.md without and with its mount."""
    assert (faults(system), unseen(system)) == ([], "")
    message = unseen(system, *LOCAL)
    assert message.startswith(
        "data.store: /local/wikipedia and data.evaluation_store: /local/evaluation are under no mount of the container "
    )
    assert message.endswith(f"launch.container.mounts in systems/mine.yaml, or --set 'launch.container.mounts={ADDED}'")
    assert unseen(system, *LOCAL, f"launch.container.mounts={ADDED}") == ""
    assert unseen("dgxa100_n8", *LOCAL, 'launch.container.mounts=["data:/data:ro", "/local:/local:ro"]') == ""


def test_what_a_container_does_not_see_is_said_before_anything_is_started(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [word for setting in LOCAL for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "dgxa100_n8", *settings])
    assert (done.exit_code, len(started)) == (0, 1)
    warning = "data.store: /local/wikipedia and data.evaluation_store: /local/evaluation are under no mount"
    assert f"podium: warning: {warning}" in done.stderr
    lines = commands(RunRequest("dgxa100_n8", LOCAL))
    assert lines[1].startswith(f"# WARNING: {warning}") and lines[2].startswith("sbatch ") and len(lines) == 3


def test_what_is_known_to_be_missing_ends_a_run_before_it_is_started(root: Path, started: list[Any]) -> None:
    (root / "podium.sqsh").unlink()
    (root / "data" / "vocab.txt").rmdir()
    done = CliRunner().invoke(app, ["run", "dgxa100_n8"])
    assert isinstance(done.exception, UsageError) and started == []
    image, vocabulary = str(done.exception).splitlines()
    assert image.startswith(f"launch.container.image: {root}/podium.sqsh does not exist; make it by `enroot import`")
    assert vocabulary.startswith(
        f"data.vocabulary: /data/vocab.txt in the container is {root}/data/vocab.txt here, which does not exist; "
    )
    dry = commands(RunRequest("dgxa100_n8"))
    assert dry[1:3] == [f"# WARNING: `podium run` would fail: {fault}" for fault in (image, vocabulary)]
    assert dry[3].startswith("sbatch ")


def test_a_comment_of_a_dry_run_stays_one_whatever_a_path_has_in_it() -> None:
    lines = commands(RunRequest("dgxa100_n8", ['data.store="/a\\nrm"']))
    assert len(lines) == 3 and all("\n" not in line for line in lines[:2])


def test_a_folder_that_is_to_be_mounted_and_is_not_there_is_not_made_by_docker() -> None:
    (fault,) = faults("dgxa100_n1", "launch.container.mounts=['/raid/no:/data:ro']")
    assert fault.startswith("launch.container.mounts: /raid/no does not exist; ")
    twice = "launch.container.mounts: /data is named twice"
    assert faults("dgxa100_n1", "launch.container.mounts=['data:/data', 'data:/data:ro']") == [twice]


def test_of_a_jobs_nodes_only_the_repositorys_folder_is_known() -> None:
    nodes_own = with_container("/raid/no:/data:ro", runtime="pyxis", image="/raid/podium.sqsh")
    assert faults("laptop", *nodes_own, *store("/data/wikipedia")) == []
    (fault,) = faults("laptop", *with_container("../no:/data:ro", runtime="pyxis"), *store("/data/wikipedia"))
    assert fault.startswith("launch.container.mounts: ") and "../no does not exist" in fault


@pytest.mark.parametrize(
    ("path", "missing", "under_no_mount"),
    [
        ("data/wikipedia", False, False),  # as it is read in the container, from its copy of the repository
        ("./data/../data/wikipedia", False, False),
        ("data/no", True, False),
        ("/workspace/podium/data/wikipedia", False, False),
        ("stores/wikipedia", False, True),
        ("{root}/data/wikipedia", False, True),  # here, and not under this name in the container
    ],
)
def test_paths_are_taken_as_the_container_reads_them(
    root: Path, path: str, missing: bool, under_no_mount: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    settings = [*with_container(), *store(path.format(root=root))]
    assert bool(faults("laptop", *settings)) == missing
    message = unseen("laptop", *settings)
    assert bool(message) == under_no_mount
    if path.startswith("stores"):
        assert '["stores/wikipedia:/workspace/podium/stores/wikipedia:ro"]' in message


def test_a_link_that_leads_out_of_its_mount_leads_nowhere_in_the_container(root: Path) -> None:
    (root / "big").mkdir()
    (root / "data" / "linked").symlink_to(root / "big")
    message = unseen("laptop", *with_container(), *store("data/linked"))
    assert f"data/linked, which is a link to {root}/big, " in message and f'["{root}/big:{root}/big:ro"]' in message
    assert unseen("laptop", *with_container(f"{root}:{root}:ro"), *store("data/linked")) == ""
    (root / "data" / "short").symlink_to("wikipedia")
    assert unseen("laptop", *with_container(), *store("data/short")) == ""


def test_a_mount_in_the_place_of_a_shared_folder_takes_it() -> None:
    settings = with_container("/big:/workspace/podium/data")
    words = wrapped(load_system("laptop", settings=settings), "laptop", [], 0)
    assert [word for word in words if word.endswith("/workspace/podium/data")] == [
        "--volume=/big:/workspace/podium/data"
    ]


def test_a_repository_whose_path_cannot_be_mounted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts_module, "WORKING_FOLDER", root / "a:b")
    with pytest.raises(UsageError, match=r"a:b/results:/workspace/podium/results: cannot be mounted in a container"):
        wrapped(load_system("laptop", settings=with_container()), "laptop", [], 0)


@pytest.mark.parametrize("place", ["/", "/data/../etc", "/data/./x"])
def test_a_place_that_is_no_folder_below_the_root_is_not_mounted_on(place: str) -> None:
    (fault,) = faults("dgxa100_n1", f"launch.container.mounts=['data:/data:ro', 'runs:{place}']")
    assert fault.startswith(f"launch.container.mounts: {place} cannot be mounted on; ")
