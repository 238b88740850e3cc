"""`podium config`: values with their origins, warnings, and the schema of system files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import SYSTEMS
from podium.config.reference import SCHEMA_FILE, schema_text
from podium.core.errors import UsageError

SHIPPED = sorted(SYSTEMS.glob("*.yaml"))


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["config", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def origins(*arguments: str) -> dict[str, tuple[Any, str]]:
    document = json.loads(output(*arguments, "--json"))
    return {one["key"]: (one["value"], one["origin"]) for one in document["keys"]}


def test_every_key_has_its_origin(write_system: Any) -> None:
    path = str(write_system({"bert.dropout": 0.2, "description.system_name": ...}))
    found = origins(path, "--recipe", "exchanged", "--set", "launch.nodes=2", "--set", "clipping.max_norm=3")
    file = f"system {path}"
    assert found["dropout"] == (0.2, file)
    assert found["balancing"] == ("exchanged", "recipe exchanged")
    assert found["clipping.max_norm"] == (3.0, "command line") and found["clipping.when"][1] == "recipe exchanged"
    assert found["launch.nodes"] == (2, "command line") and found["launch.device"] == ("cpu", file)
    assert found["optimizer.beta1"] == (0.88, "hyperparameters tiny_lamb_16")
    assert found["recipe"] == ("exchanged", "command line")
    assert found["seed"] == (None, "default") and found["launch.container"] == (None, "default")
    assert found["description.system_name"] == ("mine", "file name")
    assert found["description.accelerator_on-chip_memories"][1] == file


def test_a_section_that_is_replaced_as_a_whole_loses_its_origins(write_system: Any) -> None:
    path = str(write_system({"bert.clipping": None}))
    assert origins(path)["clipping"] == (None, f"system {path}")
    found = origins(path, "--recipe", "exchanged", "--set", "clipping.max_norm=2")
    assert found["clipping.max_norm"] == (2.0, "command line") and found["clipping.when"] == ("after", "default")


def test_lines_are_yaml() -> None:
    text = output("baidu_a100_n8")
    assert re.search(r"^exchange_steps: 100 +# recipe exchanged$", text, re.MULTILINE)
    read = yaml.safe_load(text)
    assert read["attention_widths"] == [128, 256, 384, 512] and read["launch.container.image"] == "podium.sqsh"


def test_a_system_that_changes_the_method_of_its_recipe_is_warned_of(write_system: Any) -> None:
    changes = {"bert.recipe": "exchanged", "bert.optimizer": {"algorithm": "adamw"}, "bert.attention": "grouped"}
    path = str(write_system(changes))
    expected = (
        f"warning: {path} overrides what makes recipe exchanged the published method: optimizer.algorithm is adamw "
        "(lamb in the recipe). "
    )
    for command in (["config", path], ["run", path, "--dry-run"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0 and done.stderr.count(expected) == 1 and expected not in done.stdout
    assert "warning" not in CliRunner().invoke(app, ["config", "laptop"]).stderr  # indexed is Podium's own method
    lamb = str(write_system(changes | {"bert.optimizer": {}}, name="lamb"))
    assert "warning" not in CliRunner().invoke(app, ["config", lamb]).stderr
    assert "optimizer" not in CliRunner().invoke(app, ["config", path, "--recipe", "packed"]).stderr


def test_a_method_that_is_changed_on_the_command_line_is_blamed_on_it() -> None:
    arguments = ["config", "laptop_2x", "--recipe", "exchanged", "--set", "optimizer.algorithm=adamw"]
    found = " ".join(CliRunner().invoke(app, arguments).stderr.split())
    assert (
        "warning: --set optimizer.algorithm=adamw overrides what makes recipe exchanged the published method" in found
    )
    assert "in the recipe). To train as published, leave it out" in found and "laptop_2x.yaml overrides" not in found


@pytest.mark.parametrize("arguments", [[], ["laptop", "--schema"], ["--schema", "--json"]])
def test_a_system_or_schema_is_needed(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["config", *arguments])
    assert done.exception is not None and "--schema" in str(done.exception)


def test_the_shipped_schema_is_the_generated_one() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text() == output("--schema"), (
        "run python -m podium.config.reference"
    )


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """Faults of a value by the keywords of JSON Schema that the schema uses."""
    if "$ref" in schema:
        return faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "anyOf" in schema:
        return [] if any(not faults(value, option, root, at) for option in schema["anyOf"]) else [at]
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    types |= {"array": list, "object": dict}
    names = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    good = [name for name in names if isinstance(value, types[name]) and (name == "boolean" or value is not True)]
    if names and not good:
        return [at]
    found = []
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        found.append(at)
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(at)
    if isinstance(value, int | float):
        bad = value < schema.get("minimum", value) or value > schema.get("maximum", value)
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        found += [at] if bad or (low is not None and value <= low) or (high is not None and value >= high) else []
    if isinstance(value, list):
        few = not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        found += [at] * few
        found += [
            one
            for number, item in enumerate(value)
            for one in faults(item, schema.get("items", {}), root, f"{at}.{number}")
        ]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{at}.{key}" for key in schema.get("required", ()) if key not in value]
        found += [f"{at}.{key}" for key in value if key not in known]
        found += [one for key in value if key in known for one in faults(value[key], known[key], root, f"{at}.{key}")]
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_systems_name_the_schema_and_match_it(path: Path) -> None:
    text, schema = path.read_text(encoding="utf-8"), json.loads(schema_text())
    assert text.startswith("# yaml-language-server: $schema=system.schema.json\n")
    assert faults(yaml.safe_load(text), schema, schema) == []


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("bert.max_samples", "60_000", True),  # YAML 1.2 reads 60_000 as text
        ("bert.optimizer.learning_rate", "1e-3", True),
        ("description.cooling", 3, True),
        ("description.cooling", None, True),
        ("description", None, True),
        ("bert.data.text", "text.txt", True),
        ("bert.data.text", ["text.txt"], True),
        ("bert.hyperparameters", "tiny_lamb_16", True),
        ("bert.clipping", None, True),
        ("bert.clipping", {"when": "before"}, True),
        ("bert.phases", [{"max_sequence_length": 128, "share": 0.9}, {}], True),
        ("bert.max_samples", "many", False),
        ("bert.max_samples", 0, False),
        ("bert.hyperparameters", "tiny_lamb_61", False),
        ("bert.recipe", "indxed", False),
        ("bert.sise", "tiny", False),
        ("bert.system", "mine", False),
        ("bert.optimizer.beta1", 1.5, False),
        ("bert.strata_counts", [1, 2], False),
        ("launch.device", "tpu", False),
        ("launch.container", {"runtime": "docker"}, False),
        ("launch.processes_per_node", ..., False),
        ("description.division", "half", False),
    ],
)
def test_the_schema_accepts_what_the_loader_reads(write_system: Any, key: str, value: Any, valid: bool) -> None:
    schema = json.loads(schema_text())
    document = yaml.safe_load(write_system({key: value}).read_text(encoding="utf-8"))
    assert (faults(document, schema, schema) == []) is valid


def test_what_the_accelerator_cannot_run_is_refused_as_by_run() -> None:
    settings = ["dgxa100_n1", "--set", "precision=fp8"]
    done = [CliRunner().invoke(app, [*command, *settings]) for command in (["config"], ["run", "--dry-run"])]
    messages = [str(one.exception) for one in done]
    assert messages[0] == messages[1] and "--set precision: found fp8 on NVIDIA A100" in messages[0]
    assert all(isinstance(one.exception, UsageError) for one in done)
