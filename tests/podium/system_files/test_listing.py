"""Lists of systems and of recipes, as tables and as JSON."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import system_names
from podium.core.errors import UsageError
from podium.doctor.accelerators import GIB, NvidiaGpu
from podium.system_files import listing
from podium.system_files.listing import print_system, print_systems, read_system, read_systems, system_json
from podium.system_files.recipes import find_recipe, read_recipes


def without_gpus(monkeypatch: pytest.MonkeyPatch, count: int = 0) -> None:
    monkeypatch.setattr(listing, "nvidia_gpus", lambda: [NvidiaGpu("NVIDIA H200", 141 * GIB)] * count)


def test_all_systems_are_listed_with_what_is_missing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpus(monkeypatch)
    monkeypatch.setenv("PATH", "")
    found = {one.name: system_json(one) for one in read_systems()}
    assert list(found) == system_names()
    assert found["laptop"]["runs_here"] and found["laptop"]["hardware"] == "CPU, 1 process"
    assert found["h200_1x"]["missing_here"] == ["needs 1 NVIDIA GPU, found 0"]
    assert found["dgxa100_n8"]["missing_here"] == ["sbatch is not installed"]
    assert found["dgxb200_n1"]["hardware"] == "8×NVIDIA B200"
    assert found["dgxh200_n1"]["hyperparameters_source"] == "2.1 NVIDIA dgxh100_preview"
    without_gpus(monkeypatch, count=1)
    assert system_json(read_system("h200_1x"))["runs_here"]


def test_a_file_with_errors_does_not_end_the_list(
    monkeypatch: pytest.MonkeyPatch, write_system: Callable[..., Path]
) -> None:
    broken = write_system({"bert.recipe": "packd"})
    monkeypatch.setattr(listing, "system_names", lambda: [str(broken), "laptop"])
    found = read_systems()
    assert [system_json(one)["valid"] for one in found] == [False, True]
    assert "packd" in system_json(found[0])["error"]
    console = Console(file=io.StringIO(), width=200)
    print_systems(console, found)
    assert "there is no recipe 'packd'" in console.file.getvalue()  # type: ignore[attr-defined]


def test_text_of_a_file_is_no_markup(write_system: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpus(monkeypatch)
    changes = {"launch.device": "cuda", "description.accelerator_model_name": "[red]\u202eGPU", "bert.data": {}}
    path = write_system({**changes, "description.accelerators_per_node": "1"})
    path.write_text(
        "# yaml-language-server: $schema=system.schema.json\n# Head [bold]\u202e\n# and more.\n" + path.read_text()
    )
    console = Console(file=io.StringIO(), width=200)
    print_system(console, read_system(str(path)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "yaml-language-server" not in shown
    assert "\u202e" not in shown and "[red]" in shown and "Head [bold]" in shown


def test_a_system_is_shown_with_its_source() -> None:
    found = CliRunner().invoke(app, ["systems", "show", "dgxb200_n1"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    assert "lamb_768, from 2.1 NVIDIA dgxh100_preview" in found.output and "nyx_n1_ngc25.04_pytorch" in found.output


def test_recipes_are_those_of_their_files() -> None:
    found = {one.name: one for one in read_recipes()}
    assert found["presorted"].papers == ("https://arxiv.org/abs/2402.02447",)
    assert found["presorted"].systems == ("dgxa100_n128", "dgxa100_n171")
    assert "optimizer.algorithm" in found["presorted"].own_settings
    assert "optimizer.algorithm" not in found["packed"].own_settings
    assert found["padded"].own_settings == ()
    assert found["academic"].settings["phases"][0]["max_sequence_length"] == 128
    with pytest.raises(UsageError, match=r"there is no recipe 'packd' \(did you mean packed\?\)"):
        find_recipe("packd")


@pytest.mark.parametrize("arguments", [["list"], ["show", "academic"]])
def test_recipes_are_printed_and_json(arguments: list[str]) -> None:
    shown = CliRunner().invoke(app, ["recipes", *arguments], env={"COLUMNS": "160"})
    assert shown.exit_code == 0 and "2008.00177" in shown.output
    document = json.loads(CliRunner().invoke(app, ["recipes", *arguments, "--json"]).output)
    one = document["recipes"][0] if "recipes" in document else document
    assert one["name"] == "academic" and "academic_t4" in one["systems"]
