"""README and docs: links and anchors resolve, commands and keys exist, everything that is shipped is named."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from podium.cli.main import app
from podium.config.load import load_system, parse_settings, system_names
from podium.config.schema import RunConfig
from podium.core.paths import CODE_FOLDER
from podium.core.yaml_files import dump_yaml, parse_yaml

README = CODE_FOLDER / "README.md"
PAGES = [
    README,
    *sorted((CODE_FOLDER / "docs").glob("*.md")),
    *(CODE_FOLDER / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
]
TESTED = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
RECORDS = ("lab-notebook.md", "CHANGELOG.md")  # they record what was measured on a day, under the names of that day
LARGEST_LINES, LONGEST_LINE = 150, 120
COMMAND: Any = get_command(app)
TOP_LEVEL_OPTIONS = ("--version", "--install-completion")
OF_A_SYSTEM = ("run", "doctor", "bench", "balance", "predict", "rehearse", "tune", "submit describe", "submit package")
RECIPES = [path.stem for path in (CODE_FOLDER / "implementations" / "pytorch" / "recipes").glob("*.yaml")]
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*…?|.*[/.].*")  # such as SYSTEM or path/to/my_system.yaml
REPOSITORY_PATH = r"(?:podium|benchmarks|implementations|systems|docker|docs|tests)/[\w./-]*\w\.\w+"


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def shell_lines(page: Path) -> Iterator[list[str]]:
    """The arguments of every command line in the page's console blocks, without environment and comments."""
    for block in re.findall(r"^```console\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), flags=re.MULTILINE):
            arguments = shlex.split(line, comments=True)
            yield arguments[: arguments.index(">")] if ">" in arguments else arguments


def inline_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `podium …` in the page's text."""
    for code in re.findall(r"`(podium [^`]*)`", prose_of(page)):
        yield re.sub(r"\s\[([^\]]*)\]", r" \1", code).split()


def resolve(arguments: list[str]) -> tuple[str, Any, list[str]]:
    """The name, the command and the remaining arguments of `podium …` without its first word."""
    command, names = COMMAND, []
    while hasattr(command, "commands") and not (arguments and arguments[0] in TOP_LEVEL_OPTIONS):
        assert arguments and arguments[0] in command.commands, f"podium {' '.join([*names, *arguments])}"
        command, names, arguments = command.commands[arguments[0]], [*names, arguments[0]], arguments[1:]
    return " ".join(names), command, arguments


def leaves(command: Any = COMMAND, name: str = "podium") -> Iterator[str]:
    """The full names of all commands."""
    for key, inner in command.commands.items():
        yield from leaves(inner, f"{name} {key}") if hasattr(inner, "commands") else [f"{name} {key}"]


def require_key(key: str) -> None:
    """A dotted key of `--set` is one of the schema."""
    schema = RunConfig.model_json_schema()
    part: dict[str, Any] = schema
    for name in key.removeprefix("bert.").split("."):
        assert name in part.get("properties", {}), f"--set {key}"
        value = part["properties"][name]
        references = re.findall(r"#/\$defs/(\w+)", str(value))
        part = schema["$defs"][references[0]] if references else {}


def test_the_readme_is_one_screen() -> None:
    lines = text_of(README).splitlines()
    assert len(lines) <= LARGEST_LINES
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@TESTED
def test_links_and_anchors_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found.resolve()), target


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", text_of(README)))
    assert linked == {f"docs/{page.name}" for page in PAGES if page.parent != CODE_FOLDER}


@TESTED
def test_commands_in_code_blocks_are_podiums(page: Path) -> None:
    for line in shell_lines(page):
        if line[0] == "./run_and_time.sh":
            line = ["podium", "run", *(line[1:] if line[1:] and line[1][0] != "-" else ["laptop", *line[1:]])]
        module = next((after for argument, after in pairwise(line) if argument == "-m"), None)
        assert module is None or find_spec(module), module
        start = next((number for number, word in enumerate(line) if Path(word).name == "podium"), None)
        if start is None or line[0] in ("pip", "cd"):
            continue
        name, command, arguments = resolve(line[start + 1 :])
        context = command.make_context(name, [*arguments])  # raises for options that are not there and for missing ones
        given = context.params
        require_known(name, [arguments[0]] if arguments else [], given)


def require_known(name: str, first: list[str], given: dict[str, Any]) -> None:
    """Systems, recipes and keys that a command is given are there."""
    if name in OF_A_SYSTEM and first and not first[0].startswith("-") and not PLACEHOLDER.fullmatch(first[0]):
        assert first[0] in system_names(), first[0]
    assert given.get("recipe") is None or given["recipe"] in RECIPES
    for setting in given.get("settings") or ():
        parse_settings([setting])
        require_key(setting.partition("=")[0])


@TESTED
def test_keys_of_yaml_blocks_are_those_of_a_system(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL):
        for key in keys_of(parse_yaml(block, page.name)):
            require_key(key)


def keys_of(document: dict[str, Any], before: str = "") -> Iterator[str]:
    """Dotted keys of a system's file, without `bert`."""
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from keys_of(value, "" if not before and key == "bert" else f"{before}{key}.")
        else:
            yield before + key


@TESTED
def test_commands_in_the_text_are_podiums(page: Path) -> None:
    for line in inline_commands(page):
        if line[1] in ("…", "command", "COMMAND") or page.name in RECORDS:
            continue
        name, command, _ = resolve([word.strip("…") for word in line[1:]] if "…" in line[-1] else line[1:])
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for argument in line:
            option = argument.partition("=")[0]
            assert not option.startswith("--") or option in {*options, "--help"}, f"podium {name} {option}"


@TESTED
def test_modules_in_the_text_are_there(page: Path) -> None:
    for module in re.findall(r"`python -m ([\w.]+)[^`]*`", prose_of(page)):
        assert re.search("NAME|ENTRY", module) or page.name in RECORDS or find_spec(module), module


@TESTED
def test_files_of_the_repository_that_are_named_are_there(page: Path) -> None:
    if page.name in RECORDS:
        return
    for name in re.findall(rf"`({REPOSITORY_PATH})(?:::[^`]*)?`", prose_of(page)):
        is_example = re.search(r"NAME|SYSTEM|DATE|my_system", name) or name.startswith("docs/pictures/")
        assert is_example or (CODE_FOLDER / name).exists() or name.startswith("systems/costs/"), name


def test_every_command_system_and_recipe_is_named() -> None:
    pages = "\n".join(text_of(page) for page in PAGES if page.name not in RECORDS)
    assert [name for name in leaves() if name not in pages] == []
    assert [name for name in COMMAND.commands if f"`podium {name}" not in text_of(README)] == []
    assert [name for name in [*system_names(), *RECIPES] if f"`{name}`" not in pages] == []


def test_the_system_for_four_gpus_loads(tmp_path: Path) -> None:
    """The keys of Getting started, in a copy of the file that it names."""
    block = re.findall(
        r"^```yaml\n(.*?)^```$", text_of(CODE_FOLDER / "docs" / "getting-started.md"), re.MULTILINE | re.DOTALL
    )[0]
    changes = parse_yaml(block, "getting-started.md")
    system = parse_yaml((CODE_FOLDER / "systems" / "dgxa100_n1.yaml").read_text(encoding="utf-8"), "dgxa100_n1.yaml")
    for section, values in changes.items():
        system[section] = values if section == "launch" else {**system[section], **values}
    (tmp_path / "a100_4x.yaml").write_text(dump_yaml(system), encoding="utf-8")
    config = load_system(str(tmp_path / "a100_4x.yaml"))
    assert (config.launch.ranks, config.division, config.recipe) == (4, "closed", "indexed")
    assert config.optimizer.learning_rate == 3.6e-4, "lamb_256 of ASUSTeK's four A100"
