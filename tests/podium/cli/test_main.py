"""The `podium` command: exit codes, error messages without tracebacks, and help."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.store import SampleStore
from podium.cli import main
from podium.cli.options import print_output
from podium.core.errors import Interrupted, WorkError
from podium.run.collect import FinishedRun
from tests.podium.conftest import run_podium

ROOT = Path(__file__).resolve().parents[3]


def refused(*arguments: str, cwd: Path = ROOT, exit_code: int = 2) -> str:
    """Return the error message, the only output of a command that fails."""
    done = run_podium(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("podium: ")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr.removeprefix("podium: ").rstrip("\n")


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("one", "a b c d\ne f\n\ng a\nb c\n"), ("two", "c c\nd a b\n\ne e\nf\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("command", [("run",), ("bench",), ("doctor",), ("tune",), ("data", "prepare")])
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    done = run_podium(*command, "--help")
    assert done.returncode == 0
    assert f"Example: podium {' '.join(command)} " in done.stdout


@pytest.mark.parametrize("group", [(), ("data",)])
def test_group_help_lists_its_commands(group: tuple[str, ...]) -> None:
    assert run_podium(*group, "--help").returncode == 0
    done = run_podium(*group)
    assert "prepare" in done.stdout + done.stderr or "run" in done.stdout + done.stderr


def test_unknown_system_is_a_usage_error_from_any_folder(tmp_path: Path) -> None:
    """The package is installed in editable mode, so its module is found from any folder."""
    message = refused("run", "lptop", cwd=tmp_path)
    command = [sys.executable, "-m", "podium.cli", "run", "lptop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"podium: {message}\n")
    assert message.startswith(f"there is no system 'lptop' in {ROOT}/systems (did you mean laptop?); the systems are ")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed", "--set seed: give it as key=value, such as --set global_batch_size=32"),
        ("sed=3", "--set sed: there is no such key (did you mean seed?); allowed are description, "),
        ("dropout=much", "--set dropout: found 'much'; allowed: a number"),
        ("seed=[1]", "--set seed: found [1]; allowed: a whole number"),
        ("size=[bold]", "--set size: found ['bold']; allowed are 'large', 'tiny'"),
    ],
)
def test_invalid_setting_is_a_usage_error(setting: str, message: str) -> None:
    assert refused("run", "laptop", "--set", setting).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("[red]", "--set [red]: give it as key=value"),
        ("[/red]", "--set [/red]: give it as key=value"),
        ("[link=x]", "--set [link: there is no such key"),
        ("size=x[/red]", "--set size: found 'x[/red]'; allowed are "),
    ],
)
def test_brackets_are_printed_unchanged(setting: str, message: str) -> None:
    assert refused("run", "laptop", "--set", setting).startswith(message)


def test_unknown_option_or_number_is_a_usage_error() -> None:
    for arguments in (("--rnus", "3"), ("--runs", "0"), ("--runs", "many")):
        done = run_podium("run", "laptop", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("also", [("--runs", "2"), ("--recipe", "padded")])
def test_resume_cannot_be_combined_with_runs_or_recipe(also: tuple[str, ...]) -> None:
    message = refused("run", "laptop", "--resume", "runs/laptop/x/run_0", *also)
    assert "--resume continues one run with its configuration; leave out --runs and --recipe" in message


def test_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    assert f"{tmp_path}: holds no config.yaml" in refused("run", "laptop", "--resume", str(tmp_path))


def test_unknown_recipe_is_a_usage_error() -> None:
    assert refused("run", "laptop", "--recipe", "indxed").startswith(
        "--recipe: there is no recipe 'indxed' (did you mean"
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_ended_runs_are_reported_if_a_later_one_fails(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    summary: dict[str, Any],
    as_json: bool,
) -> None:
    def run_set(*_: Any) -> Iterator[FinishedRun]:
        yield FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, summary, {"5.0.0": ""}, 0.72)
        error = WorkError("rank 1 was killed by [SIGKILL]")
        error.run_folder = tmp_path / "run_1"
        raise error

    monkeypatch.setattr("podium.run.run_set.run_set", run_set)
    monkeypatch.setattr(sys, "argv", ["podium", "run", "laptop", "--runs", "2", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 1
    shown = capsys.readouterr()
    assert shown.err == "podium: rank 1 was killed by [SIGKILL]\n"
    if as_json:
        found = json.loads(shown.out)
        assert found["runs"][0]["result_file"] == str(tmp_path / "result_0.txt")
        assert (found["outcome"], found["exit_code"], found["run_folder"]) == ("failed", 1, str(tmp_path / "run_1"))
        assert found["message"] == "rank 1 was killed by [SIGKILL]"
    else:
        assert "time-to-train" in shown.out


@pytest.mark.parametrize(("verdict", "code"), [("", 0), ("FAILED", 1)])
def test_noncompliant_result_exits_with_code_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    summary: dict[str, Any],
    verdict: str,
    code: int,
) -> None:
    finished = FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, summary, {"4.1.0": "", "5.0.0": verdict}, 0.72)
    monkeypatch.setattr("podium.run.run_set.run_set", lambda *_: iter([finished]))
    monkeypatch.setattr(sys, "argv", ["podium", "run", "laptop", "--json"])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == code
    assert ("compliance checker finds errors in" in capsys.readouterr().err) == bool(code)


def test_missed_target_exits_with_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], summary: dict[str, Any]
) -> None:
    missed = summary | {"reached_target": False}
    finished = FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, missed, {"5.0.0": ""}, 0.72)
    monkeypatch.setattr("podium.run.run_set.run_set", lambda *_: iter([finished]))
    monkeypatch.setattr(sys, "argv", ["podium", "run", "laptop", "--json"])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 1
    assert "target accuracy of 0.72 was not reached within max_samples 60000, so the status" in capsys.readouterr().err


def test_two_texts_are_prepared_from_any_folder(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    done = run_podium(
        "data", "prepare", "--text", "one", "--vocab", "vocab.txt", "--out", "new/out", "two", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["new/out/one.h5", "new/out/two.h5"]
    store = SampleStore(tmp_path / "new" / "out")
    store.verify()
    assert len(store) >= 2 * 2 * 10
    again = run_podium(
        "data", "prepare", *(a for text in texts for a in ("--text", str(text))),
        "--vocab", str(tmp_path / "vocab.txt"),
        "--out", str(tmp_path / "again"), "--processes", "1",
    )  # fmt: skip
    assert again.returncode == 0
    for name in ("one.h5", "two.h5"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "new" / "out" / name).read_bytes()


def test_prepared_exported_and_imported_files_as_json(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    def document(*arguments: str) -> Any:
        done = run_podium("data", *arguments, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    vocabulary = ("--vocab", "vocab.txt")
    prepare = ("prepare", "--text", "one", *vocabulary, "--out", "store", "--processes", "1")
    assert document(*prepare) == {"files": ["store/one.h5"], "kept": 0}
    assert document(*prepare)["kept"] == 1
    exported = ("export", "store", "--format", "hdf5-fixed", "--out", "hdf5", "--processes", "1")
    assert document(*exported) == {"files": ["hdf5/one.hdf5"]}
    imported = ("import", "hdf5/one.hdf5", *vocabulary, "--out", "again", "--processes", "1")
    assert document(*imported) == {"files": ["again/one.h5"]}
    assert document("upgrade", "again") == {"store": "again", "converted": [], "unchanged": ["again/one.h5"]}
    staged = document("stage", "store", "copy")
    assert staged["store"] == "copy" and staged["copied"] > 0 and staged["kept"] == 0


def test_json_has_null_for_numbers_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    """The score of runs of which too many missed the target is infinite, which JSON does not have."""
    print_output(True, {"score_seconds": math.inf, "runs": [math.nan, 1.5], "t": (1,)}, lambda _: None)
    assert json.loads(capsys.readouterr().out) == {"score_seconds": None, "runs": [None, 1.5], "t": [1]}


def test_unusable_texts_are_errors_of_one_line(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    def prepare(*text: str, vocab: str = "vocab.txt", exit_code: int = 2) -> str:
        arguments = ("--vocab", vocab, "--out", "out", "--processes", "1")
        return refused("data", "prepare", "--text", *text, *arguments, cwd=tmp_path, exit_code=exit_code)

    assert prepare("none") == "none: there is no such text file"
    assert prepare("one", vocab="none.txt").startswith("none.txt: there is no such vocabulary file; give the vocab.txt")
    assert prepare("one", "one") == "2 text files have the name one; a shard is named for its text, so rename them"
    (tmp_path / "bad").write_bytes(b"a\xff\n")
    assert (
        prepare("bad", exit_code=1) == "bad: the text is not UTF-8 at byte 1 (invalid start byte); convert it to UTF-8"
    )
    (tmp_path / "empty").touch()
    assert "no document" in prepare("empty", exit_code=1)
    (tmp_path / "few.txt").write_text("a\nb\n", encoding="utf-8")
    assert prepare("one", vocab="few.txt").startswith(
        "few.txt: the vocabulary lacks [PAD] [UNK] [CLS] [SEP] [MASK]; give the vocab.txt"
    )
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full here")
def test_full_output_device_is_an_error_of_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "podium.cli", "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "podium: the output cannot be written (No space left on device)\n"


@pytest.mark.parametrize("wrapped", [1, 2])
def test_interruption_in_compiled_code_exits_with_code_130(
    wrapped: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba wraps in SystemError what a signal handler raises while it loads code."""
    error: BaseException = Interrupted("interrupted")
    for _ in range(wrapped):
        outer = SystemError("returned a result with an exception set")
        outer.__cause__ = error
        error = outer

    def app() -> None:
        raise error

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == "podium: interrupted"


def test_interruption_lost_in_a_callback_is_repeated() -> None:
    code = (
        "import gc, os, signal, sys, time\n"
        "from podium.cli import main as cli\n"
        "class Callback:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "def app():\n"
        "    Callback()\n"
        "    time.sleep(30)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (130, "podium: interrupted")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interruption_lost_in_an_import_is_repeated(tmp_path: Path, name: str, code: int) -> None:
    """A library imports another one in a `try` that ignores whatever it raises, three times in a row."""
    (tmp_path / "optional.py").write_text(
        f"import signal, time\nsignal.raise_signal(signal.{name})\ntime.sleep(30)\n", encoding="utf-8"
    )
    library = "try:\n    import optional\nexcept BaseException:\n    optional = None\n" * 3
    (tmp_path / "library.py").write_text(library, encoding="utf-8")
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from podium.cli import main as cli\n"
        "def app():\n"
        "    import library\n"
        "    time.sleep(30)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (code, "podium: interrupted")


def test_interruption_is_not_repeated_during_the_work_that_ends_a_command() -> None:
    program = (
        "import signal, time\n"
        "from podium.cli import main as cli\n"
        "from podium.core.errors import Interrupted, StoppedAfterSaving\n"
        "def app():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    except Interrupted:\n"
        "        time.sleep(0.3)\n"
        "        raise StoppedAfterSaving('saved') from None\n"
        "    finally:\n"
        "        time.sleep(0.3)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (143, "podium: saved")


def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Run a command that fails in this process, and return its exit code and standard error."""
    monkeypatch.setattr(sys, "argv", ["podium", *arguments])
    with pytest.raises(SystemExit) as caught:
        main.main()
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "laptop", "--resume", "{}"),
        ("run", "{}.yaml"),
        ("report", "{}"),
        ("compare", "{}"),
        ("submit", "check", "{}"),
        ("data", "verify", "{}"),
        ("data", "import", "{}", "--vocab", "v", "--out", "o"),
        ("run", "laptop", "--dry-run", "--set", "data={store: {}, evaluation_store: e, vocabulary: v}"),
    ],
)
@pytest.mark.parametrize("path", ["a" * 10_000, "a/" * 5_000, "\udcff\udcfe"], ids=["name", "folders", "bytes"])
def test_impossible_paths_are_errors_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], path: str
) -> None:
    code, message = fails(monkeypatch, capsys, *(argument.replace("{}", path) for argument in arguments))
    assert code in (1, 2)
    assert message.startswith("podium: ")
    assert message.isprintable() or message.rstrip("\n").isprintable()


def test_symlink_loop_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, message = fails(monkeypatch, capsys, "run", "laptop", "--resume", str(tmp_path / "loop"))
    assert (code, message.startswith("podium: Symlink loop")) == (2, True)


def test_out_of_memory_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_memory(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("podium.run.run_set.run_set", out_of_memory)
    assert fails(monkeypatch, capsys, "run", "laptop") == (
        1,
        "podium: out of memory; check that the command was given the right files\n",
    )
