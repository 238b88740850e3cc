"""`podium data checkpoint` from the command line: output, exit codes and help."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.checkpoint.names import podium_shapes
from benchmarks.bert.checkpoint.podium import PodiumCheckpoint, write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.sizes import TINY
from tests.podium.conftest import run_podium

ROOT = Path(__file__).resolve().parents[3]
FIXTURE = ROOT / "tests" / "benchmarks" / "bert" / "checkpoint" / "fixture"


def checkpoint(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_podium("data", "checkpoint", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, shapes = np.random.default_rng(4), podium_shapes(TINY, 12)
    tensors = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    write_podium_checkpoint(path, Weights(TINY, 12, tensors))
    return path


def test_conversion_to_hugging_face_and_back(tmp_path: Path, tiny: Path) -> None:
    done = checkpoint(str(tiny), "hf", "--to", "huggingface", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["config.json", "model.safetensors"]
    back = checkpoint("hf", "new/back.safetensors", "--size", "tiny", cwd=tmp_path)
    assert (back.returncode, back.stderr) == (0, "")
    content = (tmp_path / "new" / "back.safetensors").read_bytes()
    assert content == tiny.read_bytes()
    assert back.stdout.splitlines() == [
        "new/back.safetensors",
        "  from          hf/model.safetensors (Hugging Face's folder)",
        "  size          tiny, vocabulary of 12",
        "  tensors       46, with the reference's names, all finite",
        f"  parameters    {TINY.parameters(12):,}",
        "  MLPerf's own  no",
        f"  sha256        {hashlib.sha256(content).hexdigest()}",
    ]
    (tmp_path / "hf" / "config.json").unlink()
    again = checkpoint("hf", "new/back.safetensors", cwd=tmp_path)
    note = "  note          there is no config.json beside it, so 2 heads and GELU with tanh are assumed"
    assert again.stdout.splitlines() == [*back.stdout.splitlines(), note]
    assert PodiumCheckpoint(tmp_path / "new" / "back.safetensors").vocabulary_size == 12


def refused(*arguments: str, cwd: Path, exit_code: int = 2) -> str:
    """Return the error message, the only output of a command that fails and writes no file."""
    before = sorted(cwd.rglob("*"))
    done = checkpoint(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert done.stderr.startswith("podium: ")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(cwd.rglob("*")) == before
    return done.stderr.removeprefix("podium: ").rstrip("\n")


def test_errors_are_one_line(tmp_path: Path, tiny: Path) -> None:
    assert refused("none", "x.safetensors", cwd=tmp_path).startswith(
        "none: there is no such checkpoint; allowed are a "
    )
    assert (
        refused(str(tiny), "x", cwd=tmp_path) == "x: the output is a file; give a file name that ends in .safetensors"
    )
    assert refused(str(tiny), "x.safetensors", "--size", "huge", cwd=tmp_path) == (
        "--size: found 'huge', allowed is large, tiny"
    )
    assert "size large was requested" in refused(str(tiny), "x.safetensors", "--size", "large", cwd=tmp_path)
    for path in FIXTURE.glob("model.ckpt-28252.*"):
        shutil.copy(path, tmp_path)
    assert refused("model.ckpt-28252", "x.safetensors", cwd=tmp_path) == (
        "model.ckpt-28252: its encoder has 1 layer(s) of width 8; the sizes are large 24 × 1024, tiny 2 × 128"
    )
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    message = refused("bad.safetensors", "x.safetensors", cwd=tmp_path, exit_code=1)
    assert message.startswith("bad.safetensors: cannot be read as safetensors (")
    assert checkpoint(str(tiny), "x", "--to", "onnx", cwd=tmp_path).returncode == 2


def test_help_has_an_example() -> None:
    done = checkpoint("--help")
    assert done.returncode == 0
    assert "Example: podium data checkpoint " in done.stdout


def test_control_characters_in_a_config_are_escaped(tmp_path: Path, tiny: Path) -> None:
    assert checkpoint(str(tiny), "hf", "--to", "huggingface", cwd=tmp_path).returncode == 0
    config = tmp_path / "hf" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_eps": "\x1b[2J\x9b\u202e"}))
    done = checkpoint("hf", "back.safetensors", cwd=tmp_path)
    assert done.returncode == 0
    assert r"layer_norm_eps in config.json is \x1b[2J\x9b\u202e; here it is" in done.stdout
