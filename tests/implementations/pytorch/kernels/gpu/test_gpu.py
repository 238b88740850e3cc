"""The Triton kernels without a GPU, and the layers and optimizers made of them: run by Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[4]
KERNELS = HERE / "interpreted.py"
LAYERS = HERE.parents[1] / "model/fused_layers_interpreted.py"
OPTIMIZERS = HERE.parents[1] / "optim/interpreted_fused.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By file, the text of what went wrong in each test, empty if nothing did.

    In a new process, since Triton reads TRITON_INTERPRET when it is imported, and in one, which imports it once.
    """
    path = tmp_path_factory.mktemp("interpreted") / "results.xml"
    files = (KERNELS, LAYERS, OPTIMIZERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", path, *files]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: a test has failed
    found: dict[str, dict[str, str]] = {file.stem: {} for file in files}
    for case in ElementTree.parse(path).iter("testcase"):
        module = case.attrib["classname"].rpartition(".")[2]
        found[module][case.attrib["name"]] = "\n".join(problem.text or "skipped" for problem in case)
    return found


def assert_passed(found: dict[str, str]) -> None:
    assert len(found) >= 30
    problems = {name: problem for name, problem in found.items() if problem}
    assert not problems, "\n".join(f"{name}: {problem}" for name, problem in problems.items())


def test_kernels_match_the_eager_reference(results: dict[str, dict[str, str]]) -> None:
    assert_passed(results[KERNELS.stem])


def test_fused_layers_match_the_eager_layers(results: dict[str, dict[str, str]]) -> None:
    assert_passed(results[LAYERS.stem])


def test_fused_optimizers_match_the_equations_and_the_plain_optimizers(results: dict[str, dict[str, str]]) -> None:
    assert_passed(results[OPTIMIZERS.stem])
