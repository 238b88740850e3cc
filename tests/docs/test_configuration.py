"""docs/configuration.md: its reference is what the schema generates, and its table of systems is what is shipped."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from podium.config import schema
from podium.config.load import load_system
from podium.config.reference import BEGIN, END, PAGE, configuration_reference, main, update_reference
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER

TEXT = PAGE.read_text(encoding="utf-8")
SYSTEMS = sorted(path.stem for path in (CODE_FOLDER / "systems").glob("*.yaml"))
LAUNCHERS = {("torchrun", None): "torchrun", ("docker", "docker"): "Docker"}
LAUNCHERS |= {("slurm", "pyxis"): "Slurm with pyxis", ("slurm", "apptainer"): "Slurm with Apptainer"}


def models() -> Iterator[type[BaseModel]]:
    """All sections of the configuration."""
    for value in vars(schema).values():
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == schema.__name__:
            yield value


def test_the_reference_is_what_the_schema_generates() -> None:
    assert update_reference(TEXT) == TEXT, "run python -m podium.config.reference"


def test_every_field_of_the_schema_is_described_and_has_a_row() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", configuration_reference(), flags=re.MULTILINE)
    fields = [
        (field.alias or name, field.description)
        for model in models()
        for name, field in model.model_fields.items()
        if (model, name) not in [(schema.RunConfig, key) for key in ("system", "description", "launch", "reproduces")]
    ]
    assert len(fields) > 110
    assert all(text and text[0] not in " ." and not text.endswith(".") for _, text in fields), fields
    assert sorted(rows) == sorted(key for key, _ in fields)


@pytest.mark.parametrize(
    "row",
    [
        "| `nodes` | whole number ≥ 1 | `1` |",
        "| `processes_per_node` | whole number ≥ 1 | required |",
        "| `container` | [`launch.container`](#launchcontainer) | – |",
        "| `strata_counts` | list of 4: whole number ≥ 0 | – |",
        "| `dropout` | number ≥ 0, ≤ 0.9 | of the recipe |",
        "| `beta1` | number ≥ 0, < 1 | of `hyperparameters` |",
        "| `max_norm` | number > 0 | of the recipe |",
        "| `phases` | list of [`phases`](#phases) | – |",
        "| `accelerator_on-chip_memories` | text | – |",
        "| `loader` | `own`, `dali`, `exchange` | `own` |",
    ],
)
def test_a_row_has_what_is_allowed_and_the_default(row: str) -> None:
    assert f"\n{row}" in configuration_reference()


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(UsageError, match="reference: begin"):
        update_reference(TEXT.replace(BEGIN, ""))


def test_the_command_writes_the_reference_into_its_page(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    with pytest.raises(UsageError, match="there is no such page"):
        main(page, tmp_path / "schema.json")
    before, _, after = TEXT.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\nold\n{END}{after.partition(END)[2]}", encoding="utf-8")
    main(page, tmp_path / "schema.json")
    assert page.read_text(encoding="utf-8") == TEXT


def test_the_table_of_systems_is_what_is_shipped() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| `(\w+)` \|$", TEXT.partition(BEGIN)[0], flags=re.MULTILINE)
    assert sorted(name for name, *_ in rows) == SYSTEMS
    for name, hardware, launcher, recipe in rows:
        config = load_system(name)
        container = config.launch.container
        assert launcher == LAUNCHERS[config.launch.launcher, container.runtime if container else None], name
        assert recipe == config.recipe, name
        counted = re.match(r"([\d,]+) (\w+)", hardware)
        if config.launch.device == "cuda":
            assert counted and int(counted[1].replace(",", "")) == config.launch.ranks, name
            assert counted[2] in config.description.accelerator_model_name, name
        else:
            assert f"{config.launch.ranks} process" in hardware, name
