"""MLPerf's description of a system: 33 fields, all of them text."""

from typing import Any

import pytest
import yaml

from podium.config import Description, load_resolved, load_system, write_resolved
from podium.config.loading import SYSTEMS

FIELDS = yaml.safe_load((SYSTEMS / "laptop.yaml").read_text(encoding="utf-8"))["description"]


def test_it_has_the_33_fields_by_mlperf_s_names(open_config: Any) -> None:
    document = open_config.description.model_dump(by_alias=True)
    assert len(document) == 33
    assert list(document) == list(FIELDS)
    assert "accelerator_on-chip_memories" in document
    assert all(isinstance(value, str) for value in document.values())


def test_values_become_text_and_nothing_becomes_empty_text(write_system: Any) -> None:
    path = write_system({"description.number_of_nodes": 2, "description.cooling": 1.5, "description.hw_notes": ""})
    description = load_system(str(path)).description
    assert (description.number_of_nodes, description.cooling, description.hw_notes) == ("2", "1.5", "")


def test_on_chip_memories_are_read_by_mlperf_s_spelling(write_system: Any) -> None:
    path = write_system({"description.accelerator_on-chip_memories": "L2 50 MB"})
    assert load_system(str(path)).description.accelerator_on_chip_memories == "L2 50 MB"


@pytest.mark.parametrize(
    ("status", "logged"),
    [
        ("Available on-premise", "onprem"),
        ("Available cloud", "cloud"),
        ("Preview", "preview"),
        ("Research, Development, or Internal (RDI)", "research"),
    ],
)
def test_log_lines_spell_the_status_in_their_own_way(status: str, logged: str) -> None:
    assert Description.model_validate({**FIELDS, "status": status}).submission_status == logged


@pytest.mark.parametrize("written", ["22.10", "010", "1e3", "null", "~", "yes", "true", "2026-01-02", ""])
def test_values_keep_their_spelling(tmp_path: Any, written: str) -> None:
    """Ubuntu 22.10 is not Ubuntu 22.1."""
    text = (SYSTEMS / "laptop.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("operating_system: Linux", f"operating_system: {written}"), encoding="utf-8")
    config = load_system(str(path))
    assert config.description.operating_system == written
    assert load_system("laptop", settings=[f"description.operating_system={written}"]).description.operating_system == (
        written
    )
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config
