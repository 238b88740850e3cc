"""Scripts of a package: shell that prepares the configured data, called from any folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.store import SampleStore
from podium.config.schema import Container, DataSettings, RunConfig
from podium.core.paths import CODE_FOLDER
from podium.submission.package.code import Code
from podium.submission.package.files import (
    SubmittedSystem,
    init_datasets_script,
    run_and_time_script,
    setup_script,
    write_script,
)
from podium.submission.package.select_runs import WindowSelection

STORES = DataSettings(
    store=Path("data/wiki pedia"), evaluation_store=Path("data/evaluation"), vocabulary=Path("data/vocab.txt")
)


def one(config: RunConfig, name: str = "mine") -> SubmittedSystem:
    return SubmittedSystem(name, config, WindowSelection((), (), 0), None, Code("0123abc", True, ""))


def place(tmp_path: Path) -> tuple[Path, Path]:
    """Make a code folder that installs nothing and runs this Podium, and the folder of a system beside it."""
    code, system = tmp_path / "bert/implementations/podium", tmp_path / "bert/mine"
    (code / ".venv/bin").mkdir(parents=True)
    system.mkdir()
    (code / "setup.sh").write_text("echo set up >&2\n", encoding="utf-8")
    shim = f'#!/bin/sh\nPYTHONPATH="{CODE_FOLDER}" exec "{sys.executable}" -m podium.cli "$@"\n'
    (code / ".venv/bin/podium").write_text(shim, encoding="utf-8")
    (code / ".venv/bin/podium").chmod(0o755)
    return code, system


def test_init_datasets_prepares_and_verifies_the_data(tmp_path: Path, open_config: RunConfig) -> None:
    """A small text is prepared and verified by the commands in the script."""
    code, system = place(tmp_path)
    inputs = tmp_path / "the inputs"
    inputs.mkdir()
    from benchmarks.bert import demo_text as embedded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "ARTICLES_PER_PART", 40)
        patch.setattr(embedded, "EVALUATION_ARTICLES", 40)
        text = embedded.write_embedded_text(tmp_path / "text")
    for number, part in enumerate(text.training):
        shutil.copy(part, inputs / f"part-{number:05}-of-00500")
    shutil.copy(text.evaluation, inputs / "eval.txt")
    shutil.copy(text.vocabulary, inputs / "vocab.txt")
    evaluation = open_config.evaluation.model_copy(update={"samples": 30})
    config = open_config.model_copy(update={"data": STORES, "evaluation": evaluation})
    write_script(system / "init_datasets.sh", init_datasets_script(one(config)))
    done = subprocess.run(
        [str(system / "init_datasets.sh"), "the inputs"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "set up" in done.stderr
    assert len(SampleStore(code / "data/wiki pedia").paths) == len(text.training), done.stderr
    assert len(SampleStore(code / "data/evaluation")) == 30
    assert (code / "data/vocab.txt").read_bytes() == (inputs / "vocab.txt").read_bytes()
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout.splitlines()[-1][:5]) == (0, "sound"), done.stdout


def test_init_datasets_requires_the_inputs(tmp_path: Path, open_config: RunConfig) -> None:
    _, system = place(tmp_path)
    write_script(
        system / "init_datasets.sh", init_datasets_script(one(open_config.model_copy(update={"data": STORES})))
    )
    done = subprocess.run([str(system / "init_datasets.sh")], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "name the folder that holds part-*" in done.stderr


def test_a_closed_system_converts_the_checkpoint_and_verifies_official_data(closed_config: RunConfig) -> None:
    container = Container(runtime="docker", image="podium", mounts=("data:/data:ro",))
    launch = closed_config.launch.model_copy(update={"launcher": "docker", "container": container})
    data = DataSettings(
        store=Path("/data/wikipedia"), evaluation_store=Path("/data/evaluation"), vocabulary=Path("/data/vocab.txt")
    )
    update = {"launch": launch, "data": data, "initial_checkpoint": Path("/data/large.safetensors")}
    script = init_datasets_script(one(closed_config.model_copy(update=update)))
    podium = [line.removeprefix(".venv/bin/") for line in script.splitlines() if line.startswith(".venv/bin/podium")]
    assert podium == [
        'podium data prepare --text "$inputs"/part-* --vocab data/vocab.txt --out data/wikipedia',
        'podium data prepare --text "$inputs/eval.txt" --evaluation 10000 --vocab data/vocab.txt --out data/evaluation',
        'podium data checkpoint "$inputs/model.ckpt-28252" data/large.safetensors --size large',
        "podium data verify data/wikipedia --evaluation data/evaluation --vocab data/vocab.txt "
        "--checkpoint data/large.safetensors --size large --official",
    ]


@pytest.mark.parametrize("name", ["mine", "dgxa100_n8_ngc22.09"])
def test_every_script_is_valid_shell(tmp_path: Path, open_config: RunConfig, name: str) -> None:
    system = one(open_config, name)
    stores = open_config.model_copy(update={"data": STORES})
    texts: list[Any] = [setup_script(system), run_and_time_script(system), init_datasets_script(system)]
    for text in [*texts, init_datasets_script(one(stores, name))]:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert text.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail\n" in text
