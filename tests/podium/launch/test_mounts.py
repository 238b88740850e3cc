"""Checks of a container's mounts and data paths before it or its job is started."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.launch import mounts as mounts_module
from podium.launch.container import launcher_argv
from podium.launch.mounts import container_errors, unmounted_paths_warning
from podium.run.dry_run import dry_run
from podium.run.run_set import RunRequest
from tests.podium.conftest import dry_run_lines

LOCAL = ["data.store=/local/wikipedia", "data.evaluation_store=/local/evaluation"]
ADDED = '["data:/data:ro", "/local/wikipedia:/local/wikipedia:ro", "/local/evaluation:/local/evaluation:ro"]'


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the repository, with the image and the data of dgxa100_n8 and dgxa100_n1."""
    monkeypatch.setattr(mounts_module, "WORKING_FOLDER", tmp_path)
    for name in ("wikipedia", "evaluation", "vocab.txt", "large.safetensors"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "podium.sqsh").touch()
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Command lines that `podium run` would have started."""
    started: list[Any] = []

    def record(_: Any, argv: list[str]) -> None:
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr("podium.run.run_set.exec_launcher", record)
    return started


def errors(system: str, *settings: str) -> list[str]:
    return container_errors(load_system(system, settings=settings, paths_as_written=True))


def unmounted(system: str, *settings: str) -> str:
    return unmounted_paths_warning(
        load_system(system, settings=settings, paths_as_written=True), Path("systems/mine.yaml")
    )


def with_container(*mounts: str, runtime: str = "docker", image: str = "x") -> list[str]:
    launcher = "docker" if runtime == "docker" else "slurm"
    container = {"runtime": runtime, "image": image, "mounts": list(mounts)}
    return [f"launch.launcher={launcher}", f"launch.container={container}"]


def store(path: object) -> list[str]:
    return [f"data={{store: '{path}', evaluation_store: '{path}', vocabulary: '{path}'}}"]


@pytest.mark.parametrize("system", ["dgxa100_n1", "dgxa100_n8"])
def test_warning_names_stores_that_are_not_mounted(system: str) -> None:
    """The example of docs/submitting.md without and with its mount."""
    assert (errors(system), unmounted(system)) == ([], "")
    message = unmounted(system, *LOCAL)
    assert message.startswith(
        "data.store: /local/wikipedia and data.evaluation_store: /local/evaluation are under no mount of the container "
    )
    assert message.endswith(f"launch.container.mounts in systems/mine.yaml, or --set 'launch.container.mounts={ADDED}'")
    assert unmounted(system, *LOCAL, f"launch.container.mounts={ADDED}") == ""
    assert unmounted("dgxa100_n8", *LOCAL, 'launch.container.mounts=["data:/data:ro", "/local:/local:ro"]') == ""


def test_run_and_dry_run_warn_of_unmounted_paths(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    settings = [argument for setting in LOCAL for argument in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "dgxa100_n8", *settings])
    assert (done.exit_code, len(started)) == (0, 1)
    warning = "data.store: /local/wikipedia and data.evaluation_store: /local/evaluation are under no mount"
    assert f"podium: warning: {warning}" in done.stderr
    lines = dry_run_lines(RunRequest("dgxa100_n8", LOCAL))
    assert any(line.startswith(f"# WARNING: {warning}") for line in lines) and " && sbatch --wait " in lines[-1]


def test_missing_image_and_data_end_a_run_before_it_starts(root: Path, started: list[Any]) -> None:
    (root / "podium.sqsh").unlink()
    (root / "data" / "vocab.txt").rmdir()
    done = CliRunner().invoke(app, ["run", "dgxa100_n8"])
    assert isinstance(done.exception, UsageError) and started == []
    image, vocabulary = str(done.exception).splitlines()
    assert image.startswith(f"launch.container.image: {root}/podium.sqsh does not exist; make it by `enroot import`")
    assert vocabulary.startswith(
        f"data.vocabulary: /data/vocab.txt in the container is {root}/data/vocab.txt on this machine, "
    )
    dry = dry_run_lines(RunRequest("dgxa100_n8"))
    assert {f"# WARNING: `podium run` would fail: {fault}" for fault in (image, vocabulary)} <= set(dry)
    assert " && sbatch --wait " in dry[-1]


def test_line_breaks_in_paths_stay_inside_a_dry_runs_comments() -> None:
    text = dry_run(RunRequest("dgxa100_n8", ['data.store="/a\\nrm"'])).text
    starts = [line[:3] for line in text.splitlines()]
    assert [start for start in dict.fromkeys(starts) if not start.startswith("  ")] == ["# r", "# W", "cd "]


def test_missing_and_duplicate_mounts_are_errors() -> None:
    (fault,) = errors("dgxa100_n1", "launch.container.mounts=['/raid/no:/data:ro']")
    assert fault.startswith("launch.container.mounts: /raid/no does not exist; ")
    twice = "launch.container.mounts: /data is the target of two mounts; remove one"
    assert errors("dgxa100_n1", "launch.container.mounts=['data:/data', 'data:/data:ro']") == [twice]


def test_only_paths_below_the_repository_are_checked_for_a_job() -> None:
    nodes_own = with_container("/raid/no:/data:ro", runtime="pyxis", image="/raid/podium.sqsh")
    assert errors("laptop", *nodes_own, *store("/data/wikipedia")) == []
    (fault,) = errors("laptop", *with_container("../no:/data:ro", runtime="pyxis"), *store("/data/wikipedia"))
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
def test_paths_are_resolved_as_in_the_container(
    root: Path, path: str, missing: bool, under_no_mount: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    settings = [*with_container(), *store(path.format(root=root))]
    assert bool(errors("laptop", *settings)) == missing
    message = unmounted("laptop", *settings)
    assert bool(message) == under_no_mount
    if path.startswith("stores"):
        assert '["stores/wikipedia:/workspace/podium/stores/wikipedia:ro"]' in message


def test_link_out_of_its_mount_is_reported(root: Path) -> None:
    (root / "big").mkdir()
    (root / "data" / "linked").symlink_to(root / "big")
    message = unmounted("laptop", *with_container(), *store("data/linked"))
    assert f"data/linked, which is a link to {root}/big, " in message and f'["{root}/big:{root}/big:ro"]' in message
    assert unmounted("laptop", *with_container(f"{root}:{root}:ro"), *store("data/linked")) == ""
    (root / "data" / "short").symlink_to("wikipedia")
    assert unmounted("laptop", *with_container(), *store("data/short")) == ""


def test_mount_over_a_shared_folder_replaces_it() -> None:
    settings = with_container("/big:/workspace/podium/data")
    argv = launcher_argv(load_system("laptop", settings=settings), "laptop", [], 0)
    assert [option for option in argv if option.endswith("/workspace/podium/data")] == [
        "--volume=/big:/workspace/podium/data"
    ]


def test_repository_path_with_a_colon_cannot_be_mounted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts_module, "WORKING_FOLDER", root / "a:b")
    with pytest.raises(UsageError, match=r"a:b/results:/workspace/podium/results: cannot be mounted in a container"):
        launcher_argv(load_system("laptop", settings=with_container()), "laptop", [], 0)


@pytest.mark.parametrize("target", ["/", "/data/../etc", "/data/./x"])
def test_invalid_mount_target_is_an_error(target: str) -> None:
    (fault,) = errors("dgxa100_n1", f"launch.container.mounts=['data:/data:ro', 'runs:{target}']")
    assert fault.startswith(f"launch.container.mounts: {target} cannot be a mount target; ")
