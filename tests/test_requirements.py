"""requirements/: every package is locked with hashes, and fits pyproject.toml and the packages that are installed."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from podium.core.errors import WorkError
from podium.doctor.versions import NEWEST_TORCH, OLDEST_TORCH
from podium.run.source import pins
from tests.conftest import load_script

lock = load_script("tools/lock.py")
ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = {
    name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in lock.UNLOCKED
}
FILES = sorted(path.name for path in (ROOT / "requirements").iterdir())
TORCH_FILES = ("torch-cpu.txt", "torch-cuda.txt")


def locked(file: str) -> dict[str, str]:
    """Name → version of a lock file."""
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))


def needs(extra: str) -> list[Requirement]:
    """What a run and an extra need directly, without torch."""
    names = ("train",) if extra == "run" else ("train", extra)
    texts = [*PROJECT["dependencies"], *(text for name in names for text in EXTRAS[name])]
    return [need for need in map(Requirement, texts) if need.name != "torch"]


@pytest.mark.parametrize("file", FILES)
def test_every_package_has_hashes_and_one_version(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[\w.+]+( ; [^#]*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line[:100]
    assert len(locked(file)) == len(lines) > 0


def test_every_extra_has_a_file_and_every_file_a_use() -> None:
    expected = {"run.txt", "uv.txt", *TORCH_FILES, *(f"{extra}.txt" for extra in EXTRAS if extra != "train")}
    assert set(FILES) == expected


@pytest.mark.parametrize("extra", ["run", *(extra for extra in EXTRAS if extra != "train")])
def test_what_pyproject_needs_is_locked_within_its_range(extra: str) -> None:
    versions = locked(f"{extra}.txt")
    for need in needs(extra):
        assert need.specifier.contains(versions[canonicalize_name(need.name)]), need
    assert versions.items() >= locked("run.txt").items()
    assert "torch" not in versions


def test_torch_is_one_version_within_its_range_and_that_doctor_supports() -> None:
    (need,) = [need for need in map(Requirement, EXTRAS["train"]) if need.name == "torch"]
    cpu, cuda = (locked(file)["torch"] for file in TORCH_FILES)
    assert cpu == f"{cuda}+cpu" and cuda == lock.TORCH and need.specifier.contains(cuda)
    allowed = [f"2.{minor}.0" for minor in range(30) if need.specifier.contains(f"2.{minor}.0")]
    assert [allowed[0], allowed[-1]] == [f"{major}.{minor}.0" for major, minor in (OLDEST_TORCH, NEWEST_TORCH)]


def test_the_cpu_build_is_locked_for_every_python_and_machine() -> None:
    text = (ROOT / "requirements" / "torch-cpu.txt").read_text(encoding="utf-8")
    hashes = re.findall(r"--hash=sha256:(\w+)", text)
    assert len(set(hashes)) == len(lock.PYTHONS) * len(lock.MACHINES) == len(hashes)
    keys = [(python, machine) for machine in lock.MACHINES for python in lock.PYTHONS]
    assert lock.cpu_text(dict(zip(keys, hashes, strict=True))) == text


def test_the_files_agree_on_versions() -> None:
    for file in FILES:
        for other in FILES:
            mine, theirs = locked(file), locked(other)
            assert all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys() - {"torch"}), (file, other)


def test_the_python_versions_are_those_of_pyproject() -> None:
    assert PROJECT["requires-python"] == ">=3.11" and lock.PYTHONS[0] == "311"


def test_the_installed_packages_are_the_locked_ones_and_complete() -> None:
    """That all which packages need is locked: they were installed without looking at their needs."""
    versions = locked("test.txt")
    assert {name: metadata.version(name) for name in versions} == versions
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_pins_are_the_locked_versions(tmp_path: Path) -> None:
    found = pins(ROOT / "pyproject.toml")
    assert found["Jinja2"] == locked("run.txt")["jinja2"] and found["torch"] == lock.TORCH
    assert len(found) == len(PROJECT["dependencies"]) + len(EXTRAS["train"])
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\ndependencies = ["numpy==1.0"]\n', encoding="utf-8")
    assert pins(project) == {"numpy": "1.0"}  # a commit of before the lock
    project.write_text('[project]\ndependencies = ["numpy>=1.0"]\n', encoding="utf-8")
    with pytest.raises(WorkError, match="requirements: has no version of numpy; run `make lock`"):
        pins(project)


def test_a_pin_is_kept_with_its_marker_when_the_lock_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(
        "# numpy==0.1\nnumpy==2.4.6 \\\n    --hash=sha256:00\nsix==1.0 ; python_version < '3.12' \\\n"
        "    --hash=sha256:00\ntorch==2.13.0+cpu \\\n    --hash=sha256:00\n",
        encoding="utf-8",
    )
    assert lock.Lock.pins_of([path]) == {"numpy==2.4.6", "six==1.0 ; python_version < '3.12'"}
