"""docs/recipes.md: what it names exists, and its tables agree with the configuration and the published figures."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from benchmarks.bert.published.reading import read_runs
from podium.cli.predict import format_duration
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import plan_from_config
from podium.planning.prediction.predict import predict
from tests.podium.cli.test_predict import PUBLISHED

TEXT = (CODE_FOLDER / "docs" / "recipes.md").read_text(encoding="utf-8")
SYSTEMS = sorted(path.stem for path in (CODE_FOLDER / "systems").glob("*.yaml"))
RECIPES = sorted(path.stem for path in (CODE_FOLDER / "implementations" / "pytorch" / "recipes").glob("*.yaml"))
CLAIMS = ["claim", "source", "code", "test", "verdict", "why"]
VERDICTS = {"faithful", "partly", "not", "convention", "own"}
REFUSALS = {
    "phases.0.store is missing": "refused: store",
    "closed division, Data set: phases is 2": "refused: division",
    "no set of hyperparameters is known": "refused: optimizer",
}


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """The head and the rows of every table."""
    for block in re.findall(r"(?:^\|.*\|\n)+", TEXT, flags=re.MULTILINE):
        head, line, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines())
        assert set("".join(line)) == {"-"}
        assert all(len(row) == len(head) for row in rows), head
        yield head, rows


def table(first: str) -> tuple[list[str], list[list[str]]]:
    """The table whose first column has this head."""
    (found,) = [each for each in tables() if each[0][0] == first]
    return found


def claims() -> list[dict[str, str]]:
    return [dict(zip(head, row, strict=True)) for head, rows in tables() if head == CLAIMS for row in rows]


@cache
def names_in(file: str) -> set[str]:
    """Functions, classes with their members, and module variables of a Python file; dotted keys of a YAML file."""
    text = (CODE_FOLDER / file).read_text(encoding="utf-8")
    return set(_keys(yaml.safe_load(text)) if file.endswith(".yaml") else _definitions(ast.parse(text).body))


def _keys(document: object, before: str = "") -> Iterator[str]:
    for key, value in document.items() if isinstance(document, dict) else ():
        yield before + key
        yield from _keys(value, f"{before}{key}.")


def _definitions(body: list[ast.stmt], before: str = "") -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield before + statement.name
        if isinstance(statement, ast.ClassDef):
            yield from _definitions(statement.body, f"{before}{statement.name}.")
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield before + statement.target.id


def test_every_claim_has_a_verdict_and_a_reason_where_it_is_not_faithful() -> None:
    assert len(claims()) > 50
    for claim in claims():
        assert claim["verdict"] in VERDICTS and claim["claim"] and claim["source"], claim
        assert claim["verdict"] not in ("partly", "not") or claim["why"], claim
        assert claim["code"].startswith("`"), claim
        assert claim["test"].startswith("`tests/") or (claim["test"], claim["verdict"]) == ("none", "not"), claim


def test_all_code_and_tests_that_are_named_exist() -> None:
    for claim in claims():
        for column in ("code", "test"):
            for named in re.findall("`([^`]+)`", claim[column]):
                file, _, name = named.partition("::")
                assert (CODE_FOLDER / file).is_file(), named
                assert name in names_in(file), f"{named}: {claim['claim']}"
                assert (column == "test") == file.startswith("tests/") == name.startswith("test_"), named


def test_every_recipe_has_its_claims() -> None:
    headings = "".join(re.findall("^## (.*:.*)$", TEXT, flags=re.MULTILINE))
    assert all(f"`{recipe}`" in headings for recipe in RECIPES)
    assert all(f"recipes/{recipe}.yaml" in TEXT for recipe in RECIPES if recipe not in ("padded", "random"))


def test_every_system_has_a_row() -> None:
    head, rows = table("system")
    assert [row[0] for row in rows] == [f"`{name}`" for name in SYSTEMS]
    assert sorted(cell.strip("`") for cell in head[3:]) == RECIPES


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_recipe_starts_or_is_refused_as_by_loading(system: str) -> None:
    head, rows = table("system")
    (row,) = [row for row in rows if row[0] == f"`{system}`"]
    own = load_system(system)
    gpus = own.launch.ranks if own.launch.device == "cuda" else 0
    assert row[1:3] == [f"{gpus:,}", f"{own.global_batch_size:,}"]
    for recipe, cell in zip([name.strip("`") for name in head[3:]], row[3:], strict=True):
        expected = outcome(system, recipe)
        assert cell == (f"**{expected}**" if recipe == own.recipe else expected), recipe


def test_the_systems_of_each_recipe_are_listed() -> None:
    listed = re.findall(r"^- (.*) starts? on (.*?)[.]", TEXT, flags=re.MULTILINE)
    found = {name: where for names, where in listed for name in re.findall("`([^`]+)`", names)}
    for recipe in RECIPES:
        starts = [f"`{system}`" for system in SYSTEMS if not outcome(system, recipe).startswith("refused")]
        expected = f"all {len(SYSTEMS)} systems" if len(starts) == len(SYSTEMS) else ", ".join(starts)
        assert found[recipe] == expected, recipe


@cache
def outcome(system: str, recipe: str) -> str:
    try:
        return f"`{load_system(system, recipe).hyperparameters}`"
    except UsageError as error:
        (reason,) = [text for part, text in REFUSALS.items() if part in str(error)]
        assert f"- **{reason}**" in TEXT
        return reason


def test_published_figures_are_those_of_the_sets_and_the_logs() -> None:
    _, rows = table("set")
    scores = {f"{run.round} {run.submitter} {run.system}": f"{run.score_seconds:,.2f}" for run in read_runs()}
    assert [row[0] for row in rows] == [f"`{name}`" for name in hyperparameter_sets()]
    for row, known in zip(rows, hyperparameter_sets().values(), strict=True):
        batches = " and ".join(f"{batch:,}" for batch in known.used_at)
        assert row[1:4] == [known.source, batches, f"{known.samples:,}" if known.samples else "not known"]
        assert row[4] == scores.get(known.source, row[4])
    assert sum(row[1] in scores for row in rows) >= 6


@pytest.mark.parametrize(
    ("system", "found"),
    [
        ("2.1 NVIDIA dgxa100_ngc22.09_pytorch", "1,012.93 s and 2,460,237 samples"),
        ("2.1 NVIDIA dgxa100_n8_ngc22.09_pytorch", "149.85 s and 2,732,237"),
        ("2.0 Samsung samsung_supercomputer21_dgxa100_n171_pytorch", "21.41 s and 2,938,464"),
    ],
)
def test_other_systems_of_a_set_have_their_figures(system: str, found: str) -> None:
    (run,) = [each for each in read_runs() if f"{each.round} {each.submitter} {each.system}" == system]
    score, samples = found.removesuffix(" samples").split(" s and ")
    assert (f"{run.score_seconds:,.2f}", f"{run.mean_samples:,.0f}") == (score, samples)
    assert found in TEXT


def test_what_is_predicted_stands_beside_every_published_result_of_a_shipped_system() -> None:
    scores = {run.name: run.score_seconds for run in read_runs()}
    _, sets = table("set")
    (h100,) = [(row[1], float(row[4].replace(",", ""))) for row in sets if row[0] == "`lamb_768`"]
    lin = ("arXiv 2008.00177, abstract", 12 * 86_400.0)
    known = {system: [(name, scores[name]) for name in names] for system, names in PUBLISHED.items()}
    known |= {"dgxh100_n1": [h100], "academic_t4": [lin], "academic_t4_10g": [lin]}
    expected, constants = [], load_constants()
    for system in sorted(known):
        found = predict(plan_from_config(load_system(system), None, constants), constants)
        for name, score in known[system]:
            interval = f"{format_duration(found.low)} to {format_duration(found.high)}"
            inside = "inside" if found.low <= score <= found.high else "outside: the reasons below"
            expected.append(
                [f"`{system}`", name, format_duration(score), format_duration(found.seconds), interval, inside]
            )
    assert table("shipped system")[1] == expected
    assert {row[0].strip("`") for row in expected} < set(SYSTEMS)
    assert [row[0] for row in expected if row[5] != "inside"] == ["`academic_t4`", "`academic_t4_10g`"]
