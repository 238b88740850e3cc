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
    """The folder of the built image, and what the script has printed. PODIUM_IMAGE_FOLDER keeps the folder."""
    missing = [name for name in ("buildah", "debootstrap", "unshare", "ip") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} here; install buildah, debootstrap, util-linux and iproute2")
    if os.geteuid():
        pytest.skip("buildah makes namespaces and debootstrap devices, which needs root here")
    kept = os.environ.get("PODIUM_IMAGE_FOLDER")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("image")
    try:
        words = ["docker/check_image.sh", "--engine", "buildah", "--folder", str(folder)]
        done = subprocess.run(words, cwd=CODE_FOLDER, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, f"see standard error, and {folder}"
        yield folder, done.stdout
    finally:
        if not kept:
            shutil.rmtree(folder)


def test_the_image_is_built_and_times_bert(image: tuple[Path, str]) -> None:
    """docker/check_image.sh itself fails where a log is not compliant or a file is not its user's."""
    _, printed = image
    assert printed.count("checker of 5.0.0: SUCCESS") == 2
    assert "apex: missing" in printed and "NOT CHECKED: NVIDIA's base image" in printed


@pytest.fixture
def slurm_run(image: tuple[Path, str], slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`podium run laptop` on both nodes of a Slurm, in a container of this runtime."""
    folder, _ = image
    srun = shutil.which("srun")
    script = f'#!/bin/sh\nexec "{sys.executable}" "{CODE_FOLDER}/tests/docker/pyxis_by_docker.py" "{srun}" "$@"\n'
    (folder / "bin" / "srun").write_text(script, encoding="utf-8")
    (folder / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PODIUM_BUILDAH_STORE", str(folder))
    home = folder / "repository"
    assert (home / "docker" / "slurm.sub").is_file()
    shutil.rmtree(home / "runs")
    for path in (home, home / "results", home / "data"):
        shutil.chown(path, 0, 0)

    def run(runtime: str, name: str) -> dict[str, Any]:
        settings = (*RUN, f"launch.container={{runtime: {runtime}, image: '{name}'}}")
        words = [sys.executable, "-m", "podium.cli", "run", "laptop", "--json"]
        words += [word for setting in settings for word in ("--set", setting)]
        environment = os.environ | {"PYTHONPATH": str(home)}
        done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def assert_made_in_the_image(found: dict[str, Any], folder: Path) -> None:
    assert found["samples"] == 160 and found["compliance"] and all(found["compliance"].values())
    (source,) = (folder / "repository" / "runs" / "laptop").glob("*/run_0/source.json")
    base = json.loads(source.read_text(encoding="utf-8"))["base_image"]
    assert base.startswith("localhost/podium-stand-in@sha256:")
    assert (source.parent / "output_1.txt").is_file()


def test_a_slurm_job_with_pyxis_runs_in_the_image_on_two_nodes(image: tuple[Path, str], slurm_run: Any) -> None:
    assert_made_in_the_image(slurm_run("pyxis", "podium:latest"), image[0])


def test_a_slurm_job_with_apptainer_runs_in_the_image_on_two_nodes(image: tuple[Path, str], slurm_run: Any) -> None:
    if shutil.which("apptainer") is None:
        pytest.skip("there is no apptainer here; install it (Debian has it in sid)")
    folder, _ = image
    buildah = ["buildah", "--root", f"{folder}/store", "--runroot", f"{folder}/run"]
    subprocess.run([*buildah, "push", "podium:latest", f"oci-archive:{folder}/podium.tar"], check=True)
    definition = (CODE_FOLDER / "docker" / "apptainer.def").read_text(encoding="utf-8")
    definition = definition.replace("docker-daemon", "oci-archive").replace("podium:latest", f"{folder}/podium.tar")
    (folder / "podium.def").write_text(definition, encoding="utf-8")
    subprocess.run(["apptainer", "build", "--force", f"{folder}/podium.sif", f"{folder}/podium.def"], check=True)
    assert_made_in_the_image(slurm_run("apptainer", f"{folder}/podium.sif"), folder)
