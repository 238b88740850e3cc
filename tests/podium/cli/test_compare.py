"""`podium compare` from the command line."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from podium.cli.main import app
from podium.core.errors import UsageError
from tests.podium.comparison.conftest import DESCRIPTION, write_system


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path / "caches" / "podium"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "training_results_v2.0"
    write_system(top / "ORG")
    write_system(top / "ORG", "BIG", 200.0, {**DESCRIPTION, "number_of_nodes": "16"})
    write_system(top / "OTHER", "CHIPS", 500.0, {**DESCRIPTION, "accelerator_model_name": "Chip 1", "division": "open"})
    return top


Compare = Callable[..., Result]


@pytest.fixture
def compare(tree: Path) -> Compare:
    def invoke(*options: str) -> Result:
        found = CliRunner().invoke(app, ["compare", str(tree), *options])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    return invoke


def test_table(compare: Compare) -> None:
    found = compare()
    assert found.exit_code == 0
    for expected in ("v2.0 bert: 3 result(s)", "8×NVIDIA A100 SXM", "16.742", "8×Chip 1", "o open division"):
        assert expected in found.stdout, expected
    assert "Scaling, against a submitter's smallest size" in found.stdout
    assert "samples/s" in found.stdout and "per accel." in found.stdout


@pytest.mark.parametrize(("columns", "there"), [("40", 1), ("60", 2), ("80", 4), ("140", 7)])
def test_narrow_terminal_shows_fewer_columns_and_all_names(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, columns: str, there: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = compare("--round", "v2.0").stdout.partition("o open division")[0]
    headings = ("minutes", "samples/s", "spread", "MFU", r"eval\.", "samples(?!/s)", "batch")
    assert [re.search(heading, shown) is not None for heading in headings] == [n < there for n in range(7)]
    assert all(name in shown for name in ("BIG", "CHIPS", "SYS")) and max(map(len, shown.splitlines())) <= int(columns)


def test_throughput_per_node(compare: Compare) -> None:
    per_accelerator, per_node = ("".join(compare("--per", per).stdout.split()) for per in ("accelerator", "node"))
    assert f"{1_792_000 / 1004.5 / 8:,.0f}" in per_accelerator and f"{1_792_000 / 1004.5 / 2:,.0f}" in per_node


def test_json_and_csv_agree(compare: Compare) -> None:
    found = json.loads(compare("--json").stdout)
    read = list(csv.DictReader(io.StringIO(compare("--csv").stdout)))
    assert [row["system"] for row in found] == [row["system"] for row in read] == ["BIG", "CHIPS", "SYS"]
    assert [float(row["score_minutes"]) for row in read] == [row["score_minutes"] for row in found]
    assert all(set(row) == set(found[0]) for row in [*found, *read])


def test_filters(compare: Compare) -> None:
    found = json.loads(compare("--json", "--accelerator", "chip", "--division", "open", "--round", "2.0").stdout)
    assert [row["system"] for row in found] == ["CHIPS"]
    with pytest.raises(UsageError, match=r"none of the 3 results matches --accelerator.*--division; choose") as raised:
        compare("--accelerator", "chip", "--division", "closed")
    assert "--round" not in str(raised.value) and "--accelerators" not in str(raised.value)
    with pytest.raises(UsageError, match="--versus CHIP: no result of this accelerator matches --division"):
        compare("--versus", "A100", "CHIP", "--division", "closed")


def test_own_results_are_compared_with_results_that_are_filtered_out(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "dgxa100_n1" / "bert"
    shutil.copytree(tree / "ORG" / "results" / "SYS" / "bert", folder)
    for log in folder.iterdir():
        log.write_text(log.read_text(encoding="utf-8").replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    found = CliRunner().invoke(app, ["compare", str(tree), str(tmp_path / "results"), "--round", "own"])
    assert "v2.0 bert: " not in found.stdout and "own bert: 1 result(s)" in found.stdout
    assert "your dgxa100_n1 (8×NVIDIA A100 SXM) is at 1.00× the best published time" in found.stdout


def test_anomalies_are_listed_on_request(tree: Path, compare: Compare) -> None:
    log = tree / "ORG" / "results" / "SYS" / "bert" / "result_0.txt"
    log.write_bytes(log.read_bytes().replace(b"\n", b"\r\n"))
    shown = " ".join(compare().stdout.split())
    assert "1 of 3 have anomalies in logs or descriptions that may affect a figure" in shown
    output = " ".join(compare("--anomalies").stdout.split())
    assert "v2.0 bert Org Inc. CHIPS: logs have division 'closed', the description 'open'" in output
    assert "1 of 3, cosmetic: line(s) end in CR LF" in output and "22 line(s)" not in output
    output = " ".join(compare("--all-anomalies").stdout.split())
    assert "v2.0 bert Org Inc. SYS: result_0.txt: 22 line(s) end in CR LF (cosmetic)" in output


def test_only_results_with_an_anomaly_that_affects_a_figure_are_marked(tree: Path, compare: Compare) -> None:
    log = tree / "ORG" / "results" / "SYS" / "bert" / "result_0.txt"
    log.write_bytes(log.read_bytes().replace(b"\n", b"\r\n"))
    shown = compare().stdout
    assert re.search(r"CHIPS o!", shown) and not re.search(r"SYS \S*!", shown) and "! an anomaly may affect" in shown


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        (("--sort", "time_to_train"), ["BIG", "CHIPS", "SYS"]),
        (("--sort", "-minutes"), ["SYS", "CHIPS", "BIG"]),
        (("--sort", "SYSTEM"), ["BIG", "CHIPS", "SYS"]),
        (("--sort", "-mfu"), ["SYS", "BIG", "CHIPS"]),  # the accelerator CHIPS is not known, and so it is last
        (("--sort", "mfu", "--top", "1"), ["BIG"]),
        (("--top", "2"), ["BIG", "CHIPS"]),
    ],
)
def test_results_are_sorted_by_a_key(compare: Compare, options: tuple[str, ...], systems: list[str]) -> None:
    assert [row["system"] for row in json.loads(compare(*options, "--json").stdout)] == systems
    assert [row["system"] for row in csv.DictReader(io.StringIO(compare(*options, "--csv").stdout))] == systems
    shown = compare(*options).stdout
    assert re.findall(r"(BIG|CHIPS|SYS)\b", shown.partition("o open")[0]) == systems and "Scaling" not in shown


def test_invalid_sorting_is_a_usage_error(compare: Compare) -> None:
    with pytest.raises(
        UsageError, match=r"--sort 'speed': results have no such key to sort by; allowed are accel.* mfu"
    ):
        compare("--sort", "speed")
    with pytest.raises(UsageError, match="known of none of these results"):
        compare("--sort", "Energy")
    with pytest.raises(UsageError, match="leave out --ab, --versus and --html"):
        compare("--top", "1", "--ab", "SYS", "BIG")


def test_narrow_tables_shorten_names_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "1xC885A_M8-8xH200-SXM-141GB_a_very_long_name_of_a_system"
    write_system(tmp_path / "v2.0" / "X", name, description={**DESCRIPTION, "submitter": "University-of-Somewhere"})
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "v2.0")]).stdout
    (row,) = [line for line in shown.splitlines() if "16.742" in line]
    assert re.search(r"Univ\S*… ?\S* 1xC\S*…\S*stem ", row) and "8×NVIDIA A100 SXM" in row
    assert max(map(len, shown.splitlines())) <= 80


def test_parsed_logs_are_cached_unless_disabled(compare: Compare, caches: Path) -> None:
    first = compare("--json", "--no-cache").stdout
    assert not caches.exists()
    assert compare("--json").stdout == first and (caches / "runs.sqlite").is_file()
    assert compare("--json").stdout == first


def test_invalid_options_are_usage_errors(compare: Compare) -> None:
    with pytest.raises(UsageError, match="--per: found gpu, allowed is accelerator or node"):
        compare("--per", "gpu")
    with pytest.raises(UsageError, match="use one of them"):
        compare("--json", "--csv")


def test_names_are_not_interpreted_as_markup(tmp_path: Path) -> None:
    write_system(tmp_path / "v2.0" / "X", "[red]a[bold]", description={**DESCRIPTION, "submitter": "[/] [link=x]"})
    found = CliRunner().invoke(app, ["compare", str(tmp_path / "v2.0"), "--oddities"])
    assert found.exit_code == 0 and "[red]a[bold]" in found.stdout and "[/] [link=x]" in found.stdout


def test_ab_comparison(compare: Compare) -> None:
    found = compare("--ab", "SYS", "BIG")
    assert found.exit_code == 0 and found.stdout.startswith(
        "A (v2.0 Org Inc. SYS) is slower than B (v2.0 Org Inc. BIG)"
    )
    whole = json.loads(compare("--ab", "org inc./sys", "BIG", "--json").stdout)
    assert whole["quantities"]["seconds"]["welch"]["p"] < 1e-9 and whole["a"]["name"] == "v2.0 Org Inc. SYS"


def test_ab_comparison_of_folders(tree: Path) -> None:
    sides = [str(tree / "ORG" / "results" / system / "bert") for system in ("SYS", "BIG")]
    found = CliRunner().invoke(app, ["compare", "--ab", *sides])
    assert found.exit_code == 0 and " is slower than B (" in found.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ab", "SYS", "org"), "--ab 'org': matches 3 results"),
        (("--ab", "SYS", "BIG", "--csv"), "leave out --csv, --html and --cost"),
        (("--ab", "SYS", "missing"), "there is no such result, path or commit"),
        (("--cost", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
    ],
)
def test_invalid_operands_and_prices_are_usage_errors(compare: Compare, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        compare(*options)


def test_missing_path_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no PATH is given"):
        CliRunner().invoke(app, ["compare"], catch_exceptions=False)


def test_costs(compare: Compare, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nprices:\n  - {accelerator: '*A100*', per: accelerator-hour, price: 2}\n")
    rows = {row["system"]: row for row in json.loads(compare("--cost", str(prices), "--json").stdout)}
    assert rows["SYS"]["cost_to_train"] == pytest.approx(1004.5 / 3600 * 8 * 2) and rows["SYS"]["currency"] == "EUR"
    assert rows["CHIPS"]["cost_to_train"] is None
    assert "cost_per_hour" in compare("--cost", str(prices), "--csv").stdout.splitlines()[0]
    shown = compare("--cost", str(prices)).stdout
    assert "4.46" in shown and "no price for 1 result: Chip 1 (1)" in shown
    page = tmp_path / "page.html"
    assert compare("--cost", str(prices), "--html", str(page)).exit_code == 0
    assert "EUR to train" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--anomalies", "--all-anomalies"])
@pytest.mark.parametrize("output", [["--json"], ["--csv"], ["--html", "page.html"], ["--versus", "A100", "Chip"]])
def test_anomalies_without_tables_are_refused(tree: Path, option: str, output: list[str]) -> None:
    with pytest.raises(UsageError, match=f"^{option} .*for the tables"):
        CliRunner().invoke(app, ["compare", str(tree), option, *output], catch_exceptions=False)


def test_a_name_that_selects_several_models_is_noted(compare: Compare) -> None:
    found = compare("--accelerator", "i", "--accelerators", "8")
    assert "note: --accelerator i selects Chip 1, NVIDIA A100 SXM" in found.stderr
    assert "BIG" not in found.stdout
