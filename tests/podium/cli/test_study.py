"""`podium study`: tables, JSON and charts, and the commands in docs/studies.md."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from podium.cli.main import app
from podium.cli.study import NAMES, make_study, plot_study, print_study
from podium.core.errors import UsageError
from podium.planning.studies.study import Chart, Line, Study, Table
from podium.tune.space import load_space

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "studies.md"
BARS = Study(
    "contributions",
    "What is it worth?",
    ("It is worth much.",),
    (
        Table("Worth", "predicted by the model", ("without", "s"), ("", ".1f"), (("it", 2.25), ("that", None))),
        Table("Others", "published", ("batch",), (",d",), ((16_384,), ("none",))),
    ),
    Chart("Worth", "s", "", (Line("round 1", (2.25, 1.0), ()), Line("round 2", (2.0, 0.5), ())), names=("it", "that")),
)


def test_tables_have_the_source_of_their_figures() -> None:
    console = Console(width=80, record=True)
    print_study(console, BARS)
    text = console.export_text()
    for expected in ("What is it worth?", "predicted by the model", "published", "16,384", "It is worth much."):
        assert expected in text
    assert re.search(r"it +2\.2", text)
    assert re.search(r"that +–", text)


def test_chart_with_bars(tmp_path: Path) -> None:
    plot_study(BARS, tmp_path / "bars.svg")
    text = "".join(ElementTree.parse(tmp_path / "bars.svg").getroot().itertext())
    assert all(word in text for word in ("round 1", "round 2", "that"))


def test_command_writes_json_and_chart(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "buckets", "--out", str(tmp_path / "new"), "--json"])
    assert done.exit_code == 0, done.output
    assert '"name": "buckets"' in done.output
    picture = (tmp_path / "new" / "study-buckets.svg").read_text(encoding="utf-8")
    assert "clipped before" in picture
    assert picture == (ROOT / "docs/pictures/study-buckets.svg").read_text(encoding="utf-8")  # the same each time


def test_unknown_study_is_a_usage_error() -> None:
    for name in ("bucket", ""):
        with pytest.raises(UsageError, match="allowed are small-batches, lengths, scaling, buckets, contributions"):
            CliRunner().invoke(app, ["study", name], catch_exceptions=False)


def test_study_is_made_by_name() -> None:
    assert make_study("contributions").name == "contributions"


def test_commands_charts_and_searches_in_the_document_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert set(re.findall(r"podium study ([a-z-]+)", text)) == set(NAMES)
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"\$ (?:\.venv/bin/)?podium ([a-z]+)", text)) <= commands
    pictures = set(re.findall(r"\((pictures/[a-z-]+\.svg)\)", text))
    assert pictures == {f"pictures/study-{name}.svg" for name in NAMES}
    assert all((DOCUMENT.parent / name).stat().st_size < 60_000 for name in pictures)
    for name in re.findall(r"--search (\w+)", text):
        load_space(name)
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
