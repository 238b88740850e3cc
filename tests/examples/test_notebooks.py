"""The notebooks in examples: their code runs in order in a fresh process and prints the stored outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.core.paths import CODE_FOLDER

NOTEBOOKS = sorted((CODE_FOLDER / "examples").glob("*.ipynb"))
RUN = """
import json, sys
import matplotlib
matplotlib.use("Agg")
namespace = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin), 1):
    exec(compile(source, f"cell {number}", "exec"), namespace)
"""


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def stored_text(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def test_there_are_notebooks() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["comparing_results", "samples_and_balancing"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_prints_its_stored_outputs(notebook: Path, tmp_path: Path) -> None:
    cells = code_cells(notebook)
    environment = {**os.environ, "PYTHONPATH": str(CODE_FOLDER), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", RUN],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(stored_text(cell) for cell in cells)
    assert not list(tmp_path.glob("podium-example-*"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_outputs_have_charts_and_no_errors(notebook: Path) -> None:
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
