"""The image, really built and run: docker/check_image.sh with buildah, and Slurm jobs in what it has built.

It takes a Debian and a network to make the stand-in for NVIDIA's base, root, some 4 GB, and ten minutes:

    apt-get install buildah debootstrap slurm-wlm munge
    .venv/bin/pytest tests/docker/test_image.py -m ""
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podium.core.paths import CODE_FOLDER
from tests.conftest import copy_project

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

RUN = (
    "target_accuracy=null",
    "max_samples=160",
    "evaluation.samples=64",
    "evaluation.interval_samples=160",
    "launch.threads_per_process=1",
    "launch.launcher=slurm",
    "launch.nodes=2",
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the built image, and what the script has printed.

    PODIUM_IMAGE_FOLDER keeps the folder, or names one in which the script has built and checked the image before.
    """
    missing = [name for name in ("buildah", "debootstrap", "unshare", "ip") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} here; install buildah, debootstrap, util-linux and iproute2")
    if os.geteuid():
        pytest.skip("buildah makes namespaces and debootstrap devices, which needs root here")
    kept = os.environ.get("PODIUM_IMAGE_FOLDER")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("image")
    summary = folder / "summary.txt"
    try:
        if not summary.exists():
            command = ["docker/check_image.sh", "--engine", "buildah", "--folder", str(folder)]
            done = subprocess.run(command, cwd=CODE_FOLDER, check=False)
            assert done.returncode == 0, f"see standard error, and {folder}"
        yield folder, summary.read_text(encoding="utf-8")
    finally:
        if not kept:
            subprocess.run(["umount", "--recursive", f"{folder}/store/overlay"], check=False)  # buildah's own mount
            shutil.rmtree(folder)


def test_the_image_is_built_and_times_bert(image: tuple[Path, str]) -> None:
    """docker/check_image.sh itself fails where a log is not compliant or a file is not its user's."""
    _, printed = image
    assert printed.count("checker of 5.0.0: SUCCESS") == 2
    assert "apex: missing" in printed and "NOT CHECKED: NVIDIA's base image" in printed


@pytest.fixture
def slurm_run(image: tuple[Path, str], slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`podium run laptop` on both nodes of a Slurm, in a container of this runtime; gives the run's folder too."""
    folder, _ = image
    home, programs = tmp_path / "home", tmp_path / "bin"
    copy_project(CODE_FOLDER, home, "docker")
    programs.mkdir()
    (programs / "docker").symlink_to(folder / "bin" / "docker")
    stand_in = f'exec "{sys.executable}" "{CODE_FOLDER}/tests/docker/pyxis_by_docker.py" "{shutil.which("srun")}" "$@"'
    (programs / "srun").write_text(f"#!/bin/sh\n{stand_in}\n", encoding="utf-8")
    (programs / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def run(runtime: str, name: str) -> tuple[dict[str, Any], Path]:
        settings = (*RUN, f"launch.container={{runtime: {runtime}, image: '{name}'}}")
        command = [sys.executable, "-m", "podium.cli", "run", "laptop", "--json"]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = os.environ | {"PYTHONPATH": str(home)}
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (run_folder,) = (home / "runs" / "laptop").glob("*/run_0")
        return json.loads(done.stdout), run_folder

    return run


def assert_made_in_the_image(found: dict[str, Any], run_folder: Path) -> None:
    assert found["samples"] == 160 and found["compliance"] and all(found["compliance"].values())
    source = json.loads((run_folder / "source.json").read_text(encoding="utf-8"))
    assert source["base_image"].startswith("localhost/podium-stand-in@sha256:")
    assert (run_folder / "output_1.txt").is_file()


def test_a_slurm_job_with_pyxis_runs_in_the_image_on_two_nodes(slurm_run: Any) -> None:
    """With a stand-in for pyxis, on Slurm's own srun."""
    assert_made_in_the_image(*slurm_run("pyxis", "podium:latest"))


def test_a_slurm_job_with_apptainer_runs_in_the_image_on_two_nodes(image: tuple[Path, str], slurm_run: Any) -> None:
    if shutil.which("apptainer") is None:
        pytest.skip("there is no apptainer here; install it (Debian has it in sid)")
    folder, _ = image
    sif = folder / "podium.sif"
    if not sif.exists():
        subprocess.run(
            [folder / "bin" / "docker", "save", "--output", f"{folder}/podium.tar", "podium:latest"], check=True
        )
        definition = (CODE_FOLDER / "docker" / "apptainer.def").read_text(encoding="utf-8")
        definition = definition.replace("docker-daemon", "oci-archive").replace("podium:latest", f"{folder}/podium.tar")
        (folder / "podium.def").write_text(definition, encoding="utf-8")
        subprocess.run(["apptainer", "build", str(sif), f"{folder}/podium.def"], check=True)
    assert_made_in_the_image(*slurm_run("apptainer", str(sif)))
