"""tools/gpu_check.py: a part that fails, hangs or is not possible does not keep the others from running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import load_script

gpu_check = load_script("tools/gpu_check.py")
Check, Part = gpu_check.Check, gpu_check.Part
WRITE = "import json, os; f = open(os.environ['PODIUM_GPU_RESULTS'], 'a'); "


def reported(**values: Any) -> str:
    return f"print(json.dumps({values!r}), file=f, flush=True); "


TWO_TESTS = f"{WRITE}{reported(test='a', outcome='passed')}{reported(test='b', outcome='failed')}exit(1)"


def python(name: str, source: str, seconds: float = 20.0, **options: Any) -> Any:
    return Part(name, seconds, [sys.executable, "-c", source], **options)


@pytest.fixture
def check(tmp_path: Path) -> Any:
    return Check(tmp_path, {"PODIUM_GPU_RESULTS": str(tmp_path / "results.jsonl")}, 60.0)


def summary(check: Any) -> dict[str, dict[str, Any]]:
    return {outcome["part"]: outcome for outcome in json.loads(check.summary.read_text(encoding="utf-8"))}


def test_parts_after_a_failure_run_and_all_is_written(check: Any) -> None:
    for part in (
        python("raises", "raise ValueError('broken')"),
        python("missing", "import sys; print('there is no GPU', file=sys.stderr); sys.exit(77)"),
        python(
            "tests", WRITE + reported(test="a", outcome="passed") + reported(test="b", outcome="failed") + "exit(1)"
        ),
        python("all_skipped", WRITE + reported(test="c", outcome="skipped", reason="Skipped: needs 2 GPUs")),
        python("prints", "print('note'); print('{\"rate\":\\n 3}')", prints_result=True),
        Part("not_there", 5.0, ["/there/is/no/such/program"]),
        python("last", "print('the last part')"),
    ):
        check.run(part)
    found = summary(check)
    assert {name: outcome["status"] for name, outcome in found.items()} == {
        "raises": "failed",
        "missing": "skipped",
        "tests": "failed",
        "all_skipped": "skipped",
        "prints": "passed",
        "not_there": "failed",
        "last": "passed",
    }
    assert found["raises"]["reason"] == "ValueError: broken"
    assert found["missing"]["reason"] == "there is no GPU"
    assert found["tests"]["reason"] == "1 of 2 tests: b"
    assert found["all_skipped"]["reason"] == "needs 2 GPUs"
    assert check.failed == ["raises", "tests", "not_there"]
    lines = [json.loads(line) for line in check.results.read_text(encoding="utf-8").splitlines()]
    assert lines[-1] == {"part": "prints", "result": {"rate": 3}}
    assert [line.get("test") for line in lines[:3]] == ["a", "b", "c"]
    assert "the last part" in check.log.read_text(encoding="utf-8")


def test_a_part_that_hangs_is_ended_with_its_processes(check: Any, tmp_path: Path) -> None:
    """What it has written until then is kept."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
    source = WRITE + reported(part="hangs", value=1)
    source += f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
    source += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(100)"
    outcome = check.run(python("hangs", source, seconds=1.5))
    assert (outcome.status, outcome.exit_code) == ("timed out", None)
    assert outcome.seconds < 12
    number = int((tmp_path / "pid").read_text())
    for _ in range(50):
        state = Path(f"/proc/{number}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.1)
    else:
        os.kill(number, signal.SIGKILL)
        pytest.fail("a process of the part is left")
    assert json.loads(check.results.read_text(encoding="utf-8")) == {"part": "hangs", "value": 1}


def test_the_total_time_ends_what_is_left(tmp_path: Path) -> None:
    check = Check(tmp_path, {"PODIUM_GPU_RESULTS": str(tmp_path / "results.jsonl")}, 1.5)
    assert check.run(python("long", "import time; time.sleep(100)")).status == "timed out"
    assert check.run(python("late", "pass")).status == "no time"
    assert check.failed == ["long", "late"]


def test_a_running_part_is_in_the_summary(check: Any, tmp_path: Path) -> None:
    """So that a machine that is taken away leaves which part it was in."""
    source = f"import shutil; shutil.copy({str(check.summary)!r}, {str(tmp_path / 'seen')!r})"
    check.run(python("first", source))
    (seen,) = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    assert (seen["part"], seen["status"]) == ("first", "running")


def test_parts_name_files_and_modules_that_exist() -> None:
    root = Path(gpu_check.HOME)
    for tiny in (False, True):
        parts = gpu_check.parts("python3", tiny)
        names = [part.name for part in parts]
        assert len(names) == len(set(names))
        for part in parts:
            for word in part.command:
                if word.endswith((".py", ".sh")):
                    assert (root / word).is_file(), word
    tested = {word for part in parts for word in part.command if word.startswith(gpu_check.TESTS)}
    marked = {path for path in (root / gpu_check.TESTS).glob("test_*.py") if "mark.gpu" in path.read_text("utf-8")}
    assert tested == {path.relative_to(root).as_posix() for path in marked}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--only", "none"], 2, "there is no part 'none'; allowed are versions, "),
        (["--only", "versions"], 1, "versions"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    """A Python that does nothing but fail, so that the part fails at once."""
    done = subprocess.run(
        [sys.executable, gpu_check.__file__, tmp_path / "folder", "--cpu", *arguments],
        env={"PATH": "/usr/bin:/bin", "PODIUM_PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    assert code == 2 or "not passed: versions" in done.stdout


@pytest.mark.parametrize(
    ("folder", "python", "options", "text"),
    [
        ("file", "/bin/false", [], "/file is not a folder; name another folder"),
        ("file/below", "/bin/false", [], "/file is not a folder; name another folder"),
        ("folder", "/there/is/no/python", [], "PODIUM_PYTHON: there is no program '/there/is/no/python'; name a"),
        *(("folder", "/bin/false", [f"--seconds={text}"], f"'{text}' is no number of") for text in ("nan", "0")),
        *(("folder", "/bin/false", [f"--seconds={text}"], f"'{text}' is no number of") for text in ("-1", "inf", "x")),
    ],
)
def test_wrong_usage_is_one_line(
    folder: str,
    python: str,
    options: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    monkeypatch.setenv("PODIUM_PYTHON", python)
    with pytest.raises(SystemExit) as raised:
        gpu_check.main([str(tmp_path / folder), *options])
    assert raised.value.code == 2
    printed = capsys.readouterr().err.splitlines()
    assert text in printed[-1]
    assert len(printed) == 1 or (printed[0].startswith("usage: ") and options)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_part_is_in_the_summary(
    number: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt if number == "SIGINT" else SystemExit(143)

    source = f"import os, signal, time; os.kill(os.getppid(), signal.{number}); time.sleep(60)"
    both = [python("stopped", source), python("never", "pass")]
    monkeypatch.setattr(gpu_check, "parts", lambda *_: both)
    before = signal.signal(getattr(signal, number), stop)
    try:
        assert gpu_check.main([str(tmp_path), "--cpu"]) == code
    finally:
        signal.signal(getattr(signal, number), before)
    (found,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (found["part"], found["status"]) == ("stopped", "interrupted")
    assert f"interrupted; what was found until then is in {tmp_path.resolve()}" in capsys.readouterr().out


def run_gpu_tests(python: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["./run_tests.sh", "--gpu", "--version"],
        cwd=gpu_check.HOME,
        env={"PATH": "/usr/bin:/bin", "PODIUM_PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


def test_gpu_tests_report_missing_packages(tmp_path: Path) -> None:
    """A Python without the packages that are installed beside it, and one that is not there."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    done = run_gpu_tests(str(bare))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r" lacks h5py, .*torch, triton, yaml; install them, .*tools/carry.py", done.stderr)
    done = run_gpu_tests("/there/is/no/python")
    assert done.returncode == 2
    assert done.stderr.startswith("./run_tests.sh: PODIUM_PYTHON: there is no program '/there/is/no/python'; name a")
    assert len(done.stderr.splitlines()) == 1
    done = run_gpu_tests(sys.executable)
    assert (done.returncode, done.stdout.split()[0]) == (0, "pytest"), done.stderr
