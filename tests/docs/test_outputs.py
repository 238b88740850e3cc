"""Outputs in README and docs are what the commands print; times and how lines wrap may differ."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.bert.rules import RULESETS
from podium.cli.main import app
from podium.config.load import load_system
from podium.core.paths import CODE_FOLDER
from podium.run.collect import FinishedRun
from podium.run.summary import print_table

README = (CODE_FOLDER / "README.md").read_text(encoding="utf-8")
PERFORMANCE = (CODE_FOLDER / "docs" / "performance.md").read_text(encoding="utf-8")
SUBMITTING = (CODE_FOLDER / "docs" / "submitting.md").read_text(encoding="utf-8")
PICTURE = (CODE_FOLDER / "docs" / "pictures" / "balance.svg").read_text(encoding="utf-8")
MILLISECONDS = r"[\d.]+ │$"  # the last column of the strategies


def tokens_of(text: str) -> list[str]:
    return re.sub(MILLISECONDS, "", text, flags=re.MULTILINE).split()


def shown(command: str, page: str = PERFORMANCE) -> str:
    """The output that follows a command in docs/performance.md, or in another page."""
    (found,) = re.findall(rf"^\$ {command}\b.*\n((?:(?!```|\$ ).*\n)+)", page, flags=re.MULTILINE)
    return str(found)


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("podium predict h200_1x", PERFORMANCE),
        ("podium balance --ranks 1024 --local-batch 16", PERFORMANCE),
        (
            "podium submit rcp --benchmark llama31_8b --ruleset 5.1.0 --batch-size 32 --samples 172032,172032,184320",
            SUBMITTING,
        ),
    ],
)
def test_the_output_of_a_command_is_what_it_prints(command: str, page: str) -> None:
    found = CliRunner().invoke(app, command.split()[1:], env={"COLUMNS": "95"}, catch_exceptions=False)
    assert found.exit_code == 0
    assert tokens_of(shown(command, page)) == tokens_of(found.stdout)  # notices of waiting are in stderr


def test_the_picture_has_the_figures_of_the_output() -> None:
    rows = re.findall(r"^│ (\w+) +│[^│]+│ ([\d.]+) /", shown("podium balance"), flags=re.MULTILINE)
    assert len(rows) == 7
    for name, cost in rows:
        assert f">{name}<" in PICTURE and f">{cost}<" in PICTURE, name


def test_the_readme_shows_a_run_as_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = README[README.index(" laptop, recipe indexed") : README.index("```\n\nHow much")]
    numbers = {
        label.strip(): value.strip() for label, value in re.findall(r"^│ (.+?) │ +(.+?) │$", table, re.MULTILINE)
    }

    def number(label: str) -> float:
        return float(numbers[label].split()[0].rstrip("%").replace(",", ""))

    phases = ("data wait", "forward", "backward", "synchronisation", "optimizer", "evaluation")
    summary: dict[str, Any] = {
        "reached_target": True,
        "seconds": number("time-to-train"),
        "accuracy": number("accuracy"),
        "samples": int(number("samples")),
        "sequences_per_second": number("sequences/s"),
        "useful_tflops": number("useful FLOP/s") / 1000,
        "share_of_peak": number("of the matmul peak") / 100,
        "peak_tflops": float(numbers["of the matmul peak"].split()[2]) / 1000,
        "precision": "bf16",
        "padding_share": number("padding share") / 100,
        "max_over_mean_tokens": number("balance (max/mean tokens)"),
        "phases_ms": {phase.replace(" ", "_"): number(phase) for phase in phases},
    }
    monkeypatch.chdir("/")
    here = Path("/")
    run = FinishedRun(
        here / numbers["result"], here / numbers["side files"], 1, summary, dict.fromkeys(RULESETS, ""), 0.72
    )
    out = io.StringIO()
    print_table(Console(file=out, width=80), load_system("laptop"), [run])
    assert out.getvalue().split() == table.split()
