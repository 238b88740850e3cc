"""What contributors use is valid, and has the same checks as run_tests.sh."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CHECKS = [line.split(" ", 1) for line in (ROOT / "tools" / "checks.txt").read_text(encoding="utf-8").splitlines()]
TARGETS = {"all", "help", "lint", "lock", "types", "unit"}


def document(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_checks_have_one_home() -> None:
    assert [command for _, command in CHECKS] == ["ruff check", "ruff format --check", "mypy"]
    run_tests = (ROOT / "run_tests.sh").read_text(encoding="utf-8")
    for text in (run_tests, MAKEFILE):
        assert "tools/checks.txt" in text and "ruff" not in text
    (repository,) = document(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == [f".venv/bin/{command}" for _, command in CHECKS]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_makefile_runs_what_run_tests_runs() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == TARGETS
    assert {
        target for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) for target in line.split()
    } == TARGETS
    commands = {
        name: subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in TARGETS
    }
    assert "./run_tests.sh" in commands["all"] and "tools/lock.py" in commands["lock"]
    assert {name for name, _ in CHECKS} == {name for name in TARGETS if "tools/checks.txt" in commands[name]}
    assert "pytest --numprocesses 2 --dist loadfile" in commands["unit"]


def test_the_workflow_runs_the_two_commands_on_the_oldest_and_newest_python() -> None:
    (job,) = document(".github/workflows/ci.yml")["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    assert [step["run"] for step in job["steps"] if "run" in step] == ["./run_tests.sh", "./run_and_time.sh"]
    pythons = re.findall(r'"(\d\d\d)"', (ROOT / "tools" / "lock.py").read_text(encoding="utf-8"))
    assert [python.replace(".", "") for python in job["strategy"]["matrix"]["python"]] == [pythons[0], pythons[-1]]


def test_the_changelog_names_the_version_of_pyproject() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version]
