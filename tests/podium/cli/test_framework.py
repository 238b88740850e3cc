"""What all commands have in common: help, version, completion, -v and -q, errors of usage."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from benchmarks.bert.sizes import SIZES
from podium.cli import names
from podium.cli.main import PANELS, app
from podium.config.load import recipe_files, system_names
from podium.core.console import errors, print_command, print_note, print_status, verbosity
from podium.core.paths import CODE_FOLDER
from podium.run.progress import Progress
from podium.run.source import read_project
from tests.podium.conftest import run_podium

TOP: Any = get_command(app)
NARROW = {"COLUMNS": "80", "TERMINAL_WIDTH": ""}


def leaves(command: Any = TOP, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in command.commands.items():
        yield from leaves(inner, (*name, key)) if hasattr(inner, "commands") else [(*name, key)]


COMMANDS = list(leaves())


@pytest.fixture(autouse=True)
def normal_verbosity() -> Iterator[None]:
    yield
    verbosity.level = 0


def output(*arguments: str, exit_code: int = 0, **environment: str) -> str:
    done = CliRunner().invoke(app, arguments, env={**NARROW, **environment})
    assert done.exit_code == exit_code, done.output
    return done.output


def test_version_has_commit_python_and_torch() -> None:
    text = output("--version").strip()
    assert text.startswith(f"podium {read_project(CODE_FOLDER / 'pyproject.toml')['version']}")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in text and "torch" in text
    if (CODE_FOLDER / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=CODE_FOLDER, capture_output=True, text=True, check=True)
        assert f"(commit {head.stdout[:12]}" in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_no_python_types_and_fits_80_columns(command: tuple[str, ...]) -> None:
    text = output(*command, "-h")
    assert text == output(*command, "--help")
    assert not re.findall(r"<[\w\[\]| ]+>|\{\w+\}|\[\[|\.\.\.\.", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "--verbose" in text and "--quiet" in text
    assert re.search(rf"Examples?(, [\w ]+)?: .*podium\s+{command[0]}", text.replace("\n", " ")), "an example"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "laptop", "--runs", "0"), "'--runs': found 0, allowed are whole numbers from 1 on"),
        (("run", "laptop", "--runs", "few"), "'--runs': found few, allowed are whole numbers from 1 on"),
        (("run", "laptop", "--profile", "2000"), "'--profile': found 2000, allowed are whole numbers from 1 to 1,000"),
        (("sweep", "laptop", "--seeds", "0"), "'--seeds': found 0, allowed are whole numbers from 1 on"),
        (("compare", "--top", "0"), "'--top': found 0, allowed are whole numbers from 1 on"),
        (("compare", "--accelerators", "-1"), "'--accelerators': found -1, allowed are whole numbers from 0 on"),
        (("systems", "new", "x", "--gpus", "-1"), "'--gpus': found -1, allowed are whole numbers from 0 on"),
        (("data", "fetch", "inputs", "--timeout", "0"), "'--timeout': found 0, allowed are numbers from 0.1 to 3,600"),
    ],
)
def test_a_number_out_of_range_is_named_with_what_is_allowed(arguments: tuple[str, ...], message: str) -> None:
    assert message in output(*arguments, exit_code=2, COLUMNS="200", TERMINAL_WIDTH="200")


def test_commands_are_in_the_order_of_the_readme() -> None:
    readme = (CODE_FOLDER / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `podium (\w+)", readme[readme.index("## Commands") :], re.MULTILINE)
    listed = [name for panel in PANELS.values() for name in panel if name in TOP.commands]
    assert list(TOP.commands) == listed == list(dict.fromkeys(table))
    text = output("--help")
    assert re.findall(r"─ ([A-Z][\w ]+) ─", text) == ["Options", *PANELS]


def test_top_level_without_a_command_prints_its_help() -> None:
    assert "Before a run" in output(exit_code=2)


def test_a_missing_argument_is_explained_with_usage_and_example() -> None:
    text = output("run", exit_code=2)
    assert "Usage: podium run [OPTIONS] SYSTEM" in text.replace("root", "podium")
    assert "Missing argument 'SYSTEM'" in text and "Example: podium run laptop" in text


@pytest.mark.parametrize(("command", "meant"), [(("rnu",), "run"), (("data", "prepair"), "prepare")])
def test_an_unknown_command_names_the_nearest_one(command: tuple[str, ...], meant: str) -> None:
    assert f"Did you mean '{meant}'?" in output(*command, exit_code=2)


def test_names_for_help_and_completion_are_those_of_the_loaders() -> None:
    assert names.systems() == system_names()
    assert names.recipes() == [path.stem for path in recipe_files("pytorch")]
    assert tuple(SIZES) == names.SIZES
    assert {"seed=", "launch.nodes=", "optimizer.learning_rate="} <= set(names.settings())
    assert all(recipe in output("run", "--help") for recipe in names.recipes())


def completions(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    environment = {
        "_PODIUM_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; sys.argv = ['podium']; from podium.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("podium", "run", "lapt"), ["laptop", "laptop_2x"]),
        (("podium", "run", "laptop", "--recipe", "pa"), ["packed", "padded"]),
        (("podium", "run", "laptop", "--set", "launch.no"), ["launch.nodes="]),
        (("podium", "compare", "--benchmark", "llama31"), ["llama31_405b", "llama31_8b"]),
        (("podium", "tune", "laptop", "--search", "laptop_l"), ["laptop_lamb", "laptop_lamb_large"]),
        (("podium", "data", "prep"), ["prepare"]),
    ],
    ids=lambda value: value[-1],
)
def test_completion_in_bash(words: tuple[str, ...], expected: list[str]) -> None:
    assert completions(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion_prints_a_script(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: shell, raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell, raising=False)
    assert "_COMPLETE=complete" in output("--show-completion")


def test_starting_the_command_line_imports_no_slow_library() -> None:
    program = (
        "import sys; import podium.cli.main; print([m for m in ('torch', 'pydantic', 'numpy', 'numba', 'scipy', "
        "'matplotlib', 'h5py') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "level"), [((), 0), (("-v",), 1), (("-q",), -1), (("--verbose",), 1), (("--quiet",), -1)]
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_verbosity_is_given_before_or_after_the_command(options: tuple[str, ...], level: int, before: bool) -> None:
    command = ("balance", "--ranks", "2", "--local-batch", "2", "--steps", "1", "--json")
    output(*options, *command) if before else output(*command, *options)
    assert verbosity.level == level


def test_verbose_and_quiet_exclude_each_other() -> None:
    done = run_podium("study", "scaling", "-v", "-q")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "podium: --verbose and --quiet exclude each other; give one of them\n"


@pytest.mark.parametrize("level", [-1, 0, 1])
def test_progress_notes_and_commands_by_verbosity(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    verbosity.level = level
    Progress(errors).note("Checking the data")
    print_status("Trial 1")
    print_note("kept 1 shard")
    print_command(["docker", "run", "a b"])
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert printed.out == ""
    assert len(lines) == (0, 3, 4)[level + 1]
    assert ("$ docker run 'a b'" in printed.err) == (level > 0)
    assert all(re.match(r"\[ +[\d.]+ s\] ", line) for line in lines if "podium:" not in line) == (level != 0)


def test_verbose_leaves_standard_output_to_the_result() -> None:
    done = run_podium("balance", "--ranks", "2", "--local-batch", "2", "--steps", "1", "--json", "-v")
    assert json.loads(done.stdout)["steps"] == 1
    assert re.search(r"\[ +[\d.]+ s\] end of the command", done.stderr)


@pytest.mark.parametrize("environment", [{"LC_ALL": "C", "LANG": ""}, {"LC_ALL": "xx_YY.nowhere"}, {"NO_COLOR": "1"}])
def test_any_locale_and_no_color(environment: dict[str, str]) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONUTF8"))}
    for arguments in (["--help"], ["recipes", "list"], ["run", "läptop"]):
        done = subprocess.run(
            [sys.executable, "-m", "podium.cli", *arguments],
            env=plain | NARROW | environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == (2 if arguments[0] == "run" else 0)
        text = (done.stdout + done.stderr).decode("utf-8")
        assert "Traceback" not in text and "\x1b[" not in text
        assert arguments[0] != "run" or "läptop" in text


@pytest.mark.parametrize("arguments", [("--help",), ("recipes", "list"), ("run", "laptop", "--dry-run")])
def test_output_to_a_closed_pipe_prints_no_traceback(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "podium.cli", *arguments], stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert done.stderr == b""


def test_columns_are_respected() -> None:
    wide = output("recipes", "list", COLUMNS="200").splitlines()
    narrow = output("recipes", "list", COLUMNS="60").splitlines()
    assert max(map(len, wide)) <= 200 and max(map(len, narrow)) < max(map(len, wide))


def test_former_option_names_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.launch.launch.require_torch", lambda: None)
    for name in ("--baseline", "--against"):
        done = CliRunner().invoke(app, ["bench", "laptop", name, "jax"])
        assert "--baseline: found jax, allowed is huggingface" in str(done.exception), name
    assert "--against" not in output("bench", "--help")
    program = [sys.executable, "-m", "benchmarks.bert.bench"]
    help_text = subprocess.run([*program, "read", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--samples-per-shard" in help_text and "--samples-a-shard" not in help_text
