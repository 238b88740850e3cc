"""`podium data verify` from the command line: verdict, exit code, JSON, plot, usage errors, initial accuracy."""

import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS
from benchmarks.bert.verification.evidence import VerificationRequest
from podium.cli.data import data
from podium.cli.verify import verify_store
from podium.core.errors import UsageError, WorkError
from podium.html.chart import plot_lengths
from podium.run import implementation
from podium.run.implementation import Evaluation, check_initial_accuracy
from tests.podium.conftest import run_podium

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def podium(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_podium("data", "verify", *arguments, cwd=cwd, columns=160)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with store/ of one.h5 and two.h5, evaluation/ of eval.txt.h5, and vocab.txt."""
    folder = tmp_path_factory.mktemp("prepared")
    random = np.random.default_rng(5)
    words = [f"w{'abcdefghij'[i // 10]}{'abcdefghij'[i % 10]}" for i in range(100)]
    (folder / "vocab.txt").write_text("\n".join([*ALL_SPECIAL_TOKENS, *words]) + "\n", encoding="utf-8")
    for name in ("one", "two", "eval.txt"):
        documents = (
            "\n".join(" ".join(random.choice(words, random.integers(5, 20))) for _ in range(random.integers(20, 60)))
            for _ in range(30)
        )
        (folder / name).write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    prepare([folder / "one", folder / "two"], folder / "vocab.txt", folder / "store")
    prepare([folder / "eval.txt"], folder / "vocab.txt", folder / "evaluation")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of `prepared` that a test may change."""
    return shutil.copytree(prepared, tmp_path / "folder")


GIVEN = ("store", "--evaluation", "evaluation", "--vocab", "vocab.txt")


def test_sound_store(prepared: Path) -> None:
    done = podium(*GIVEN, "--text", "one", "--text", "eval.txt", cwd=prepared)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "found", "expected"]
    assert lines[-1] == "sound"
    assert any(line.startswith("structure ") and line.rstrip().endswith("✓") for line in lines)
    assert any(line.startswith("official vocabulary ") and line.rstrip().endswith("!") for line in lines)
    assert "✗" not in done.stdout


def test_faulty_store_is_reported_with_advice(folder: Path) -> None:
    shutil.copy(folder / "store" / "one.h5", folder / "store" / "three.h5")
    content = bytearray((folder / "store" / "two.h5").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "store" / "two.h5").write_bytes(bytes(content))
    done = podium("store", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].startswith("not sound: ")
    assert "    store/one.h5 and store/three.h5 share 100.0%" in done.stdout.splitlines()
    assert any(
        line.startswith("    store/two.h5: the shard cannot be used: its content") for line in done.stdout.splitlines()
    )
    assert any(
        line.startswith("shared samples: make sure that each shard has a different text")
        for line in done.stdout.splitlines()
    )
    assert any(line.startswith("content ") and line.rstrip().endswith("✗") for line in done.stdout.splitlines())


@pytest.mark.parametrize("sound", [True, False])
def test_json_is_one_object(folder: Path, sound: bool) -> None:
    if not sound:
        shutil.copy(folder / "store" / "one.h5", folder / "store" / "three.h5")
    done = podium(*GIVEN, "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0 if sound else 1, "")
    found = json.loads(done.stdout)
    assert list(found) == ["verdict", "findings", "statistics"]
    assert found["verdict"] == ("sound" if sound else "not sound: 4 checks failed")
    assert all(list(f) == ["check", "level", "found", "expected", "advice"] for f in found["findings"])
    failed = [finding["check"] for finding in found["findings"] if finding["level"] == "fail"]
    assert failed == ([] if sound else ["manifest", "shards", "shared samples", "repeated samples"])
    training = found["statistics"]["training"]
    assert training["shards"] == (2 if sound else 3)
    assert sum(training["lengths"]) == training["samples"]
    assert found["statistics"]["seconds"] > 0


def test_complete_store_gets_a_manifest_and_a_wrong_manifest_is_an_error(folder: Path) -> None:
    manifests = [folder / "store" / MANIFEST, folder / "evaluation" / MANIFEST]
    before = [path.read_bytes() for path in manifests]
    for path in manifests:
        path.unlink()
    request = VerificationRequest(folder / "store", folder / "evaluation")
    assert verify_store(request).sound
    assert [path.read_bytes() for path in manifests] == before
    (folder / "store" / "two.h5").unlink()
    finding = next(finding for finding in verify_store(request).findings if finding.rule == "manifest")
    assert finding.severity == "error" and "two.h5 is missing, manifest.json has it" in finding.message
    manifests[0].unlink()
    content = bytearray((folder / "store" / "one.h5").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "store" / "one.h5").write_bytes(bytes(content))
    assert not verify_store(request).sound and not manifests[0].exists()


def test_brackets_in_names_are_not_markup(folder: Path) -> None:
    (folder / "vocab.txt").rename(folder / "[red]v")
    done = podium("store", "--vocab", "[red]v", cwd=folder)
    assert done.returncode == 0
    assert "[red]v" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none",), "none: there is no such folder of shards; make it with `podium data prepare`"),
        (("store", "--vocab", "none"), "none: there is no such vocabulary file; give the vocab.txt of MLPerf's BERT"),
        (("store", "--evaluation", "none"), "none: there is no such folder of shards"),
        (("store", "--text", "none"), "none: there is no such text file"),
        (("store", "--official"), "--official: needs --vocab and --evaluation too; "),
        (("store", "--samples", "3"), "--samples: has no effect without --checkpoint, "),
        (("store", "--checkpoint", "one"), "--checkpoint: needs --evaluation and --vocab too; "),
        ((*GIVEN, "--checkpoint", "none"), "none: there is no such checkpoint; make it with `podium data checkpoint`"),
        (("store", "--size", "huge"), "--size: found 'huge', allowed is large, tiny"),
    ],
)
def test_usage_errors_are_one_line(prepared: Path, arguments: tuple[str, ...], message: str) -> None:
    done = podium(*arguments, cwd=prepared)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"podium: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_unwritable_plot_is_an_error(prepared: Path) -> None:
    done = podium("store", "--plot", "none/lengths.svg", cwd=prepared)
    assert done.returncode == 1
    assert "none/lengths.svg: cannot be written" in done.stderr


def test_help_has_an_example() -> None:
    done = podium("--help")
    assert done.returncode == 0
    assert "Example: podium data verify data/wikipedia " in done.stdout


def test_plot_shows_both_curves_and_is_reproducible(prepared: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        done = podium("store", "--plot", str(tmp_path / name), cwd=prepared)
        assert (done.returncode, done.stderr) == (0, "")
    content = (tmp_path / "one.svg").read_bytes()
    assert content == (tmp_path / "two.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]
    tree = ET.fromstring(content)  # our own file
    texts = [element.text for element in tree.iter(f"{SVG}text")]
    assert {"tokens of a sample", "% of samples, in steps of 8 tokens", "Wikipedia (arXiv 2107.02027)"} <= {*texts}
    assert any(text and text.startswith("store store (") for text in texts)
    for curve in ("store", "wikipedia"):
        group = next(element for element in tree.iter(f"{SVG}g") if element.get("id") == curve)
        path = next(group.iter(f"{SVG}path"))
        assert len(path.get("d", "").split()) > 100
    assert b"<dc:date>" not in content


def test_dollars_and_underscores_in_names_are_not_markup(tmp_path: Path) -> None:
    plot_lengths(np.bincount([9, 400, 512], minlength=513), "_a$b$", tmp_path / "a.svg")
    texts = [element.text for element in ET.parse(tmp_path / "a.svg").iter(f"{SVG}text")]
    assert "store _a$b$ (3 samples)" in texts
    with pytest.raises(WorkError, match="cannot be written"):
        plot_lengths(np.bincount([9]), "a", tmp_path / "none" / "a.svg")


EVALUATOR = """
import json, sys
print(json.dumps(sys.argv[1:]), file=open({log!r}, "w"))
print("evaluated 10 of 10", file=sys.stderr)
{body}
"""


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replaces the implementation's process by one that writes its arguments to a file and then runs `body`."""

    def put(body: str) -> Path:
        root, log = tmp_path / "root", tmp_path / "arguments"
        root.mkdir(exist_ok=True)
        (root / "evaluator.py").write_text(EVALUATOR.format(log=str(log), body=body), encoding="utf-8")
        monkeypatch.setattr(implementation, "WORKING_FOLDER", root)
        monkeypatch.setattr(implementation, "EVALUATE", "evaluator")
        return log

    return put


def printing(accuracy: float, samples: int = 10_000) -> str:
    return f"print(json.dumps({{'masked_lm_accuracy': {accuracy}, 'samples': {samples}, 'seconds': 1.0}}))"


EVALUATION = Evaluation(Path("x.safetensors"), Path("evaluation"), Path("vocab.txt"), "large")


@pytest.mark.parametrize(
    ("accuracy", "comparable", "official", "level"),
    [
        (0.34085, True, True, "ok"),
        (0.3450, True, False, "ok"),
        (0.3460, True, False, "note"),
        (0.3460, True, True, "error"),
        (0.3350, True, True, "error"),
        (0.34085, False, False, "note"),
        (0.9, False, False, "note"),
    ],
)
def test_the_initial_accuracy_is_compared(
    evaluator: Any, accuracy: float, comparable: bool, official: bool, level: str
) -> None:
    evaluator(printing(accuracy))
    finding = check_initial_accuracy(EVALUATION, 38.0, comparable, official)
    assert (finding.severity, finding.message) == (level, f"{accuracy:.5f} of 10,000 samples")
    assert finding.expected == ("0.34085 ± 0.00461 (6 sd)" if comparable else "any; the data are not MLPerf's")


def test_tolerance_grows_with_fewer_samples(evaluator: Any) -> None:
    evaluator(printing(0.3460, samples=1_000))
    assert check_initial_accuracy(EVALUATION, 38.0, True, True).severity == "ok"


def test_arguments_of_the_evaluating_process(
    evaluator: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    log = evaluator(printing(0.1))
    evaluation = Evaluation(Path("x.safetensors"), Path("e"), Path("v.txt"), "tiny", 30)
    check_initial_accuracy(evaluation, 38.0, False, False)
    assert json.loads(log.read_text(encoding="utf-8")) == [
        *("--checkpoint", str(tmp_path / "x.safetensors"), "--store", str(tmp_path / "e")),
        *("--vocabulary", str(tmp_path / "v.txt"), "--size", "tiny", "--samples", "30", "--json"),
    ]
    assert capfd.readouterr() == ("", "evaluated 10 of 10\n")
    check_initial_accuracy(EVALUATION, 38.0, False, False)
    assert "--samples" not in json.loads(log.read_text(encoding="utf-8"))
    assert implementation.REFERENCE_ACCURACY == 0.34085


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(3)", "x.safetensors was not evaluated: the process ended with exit code 3"),
        (printing(0.34085) + "; sys.exit(1)", "x.safetensors was not evaluated: the process ended with exit code 1"),
        ("print('no object')", "the evaluation of x.safetensors printed no result: 'no object'"),
        ("print('{}')", "the evaluation of x.safetensors printed no result: '{}'"),
        ("print('[]')", "the evaluation of x.safetensors printed no result: '[]'"),
    ],
)
def test_failed_evaluation_is_a_finding(evaluator: Any, body: str, message: str) -> None:
    evaluator(body)
    finding = check_initial_accuracy(EVALUATION, 38.0, True, False)
    assert (finding.severity, finding.message) == ("error", message)


def test_the_entry_point_exists() -> None:
    name = implementation.EVALUATE.replace(".", "/")
    assert implementation.EVALUATE == "implementations.pytorch.evaluate"
    assert (implementation.WORKING_FOLDER / f"{name}.py").is_file()


@pytest.mark.parametrize("vocabulary_is_official", [False, True])
def test_the_command_reports_the_initial_accuracy(
    prepared: Path, evaluator: Any, monkeypatch: pytest.MonkeyPatch, vocabulary_is_official: bool
) -> None:
    evaluator(printing(0.5))
    monkeypatch.chdir(prepared)
    monkeypatch.setattr("podium.cli.verify.is_official_vocabulary", lambda path: vocabulary_is_official)
    arguments = ["verify", *GIVEN, "--checkpoint", "one", "--json"]
    done = CliRunner().invoke(data, arguments)
    assert done.exit_code == 0
    finding = json.loads(done.stdout)["findings"][-1]
    assert (finding["check"], finding["level"]) == ("initial accuracy", "note")
    assert bool(finding["advice"]) == vocabulary_is_official


def test_data_that_is_not_mlperfs_fails_with_official(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    done = CliRunner().invoke(data, ["verify", *GIVEN, "--official", "--json"])
    assert done.exit_code == 1
    failed = {f["check"] for f in json.loads(done.stdout)["findings"] if f["level"] == "fail"}
    assert {"counts", "evaluation counts", "official vocabulary", "lengths"} <= failed
    assert not failed & {"content", "structure", "vocabulary", "masked share"}


def test_missing_store_is_a_usage_error(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    with pytest.raises(UsageError):
        CliRunner().invoke(data, ["verify", "none"], catch_exceptions=False)
