"""The two commands' shell: arguments go through, and nothing is installed where nothing is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import installed_stamp

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder in which everything is installed already, and `podium` only prints its arguments."""
    for name in ("run_and_time.sh", "setup.sh", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    podium = tmp_path / ".venv" / "bin" / "podium"
    podium.parent.mkdir(parents=True)
    podium.write_text('#!/bin/sh\nfor word; do echo "[$word]"; done\n', encoding="utf-8")
    python = podium.with_name("python")
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    for program in (podium, python):
        program.chmod(0o755)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv" / "podium.installed").write_text(installed_stamp(tmp_path), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["run", "laptop"]),
        (("--runs", "10"), ["run", "laptop", "--runs", "10"]),
        (("--set", "seed=1", "--json"), ["run", "laptop", "--set", "seed=1", "--json"]),
        (("laptop", "--json"), ["run", "laptop", "--json"]),
        (("my systems/one.yaml",), ["run", "my systems/one.yaml"]),
    ],
)
def test_arguments_reach_podium_as_they_are(home: Path, arguments: tuple[str, ...], expected: list[str]) -> None:
    before = sorted(path.name for path in (home / ".venv").iterdir())
    done = subprocess.run(
        [home / "run_and_time.sh", *arguments],
        cwd="/",
        env=os.environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"[{word}]" for word in expected], done.stderr
    assert done.returncode == 0 and done.stderr == ""
    assert sorted(path.name for path in (home / ".venv").iterdir()) == before


def test_both_commands_and_ci_name_what_they_install() -> None:
    """A sourced script without arguments would take the caller's."""
    assert 'source ./setup.sh ""' in (ROOT / "run_and_time.sh").read_text(encoding="utf-8")
    assert "source ./setup.sh test" in (ROOT / "run_tests.sh").read_text(encoding="utf-8")
    assert "run_tests.sh" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
