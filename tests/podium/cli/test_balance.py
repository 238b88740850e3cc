"""`podium balance`: its options, table, chart and JSON."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bert.sizes import LARGE, VOCABULARY_SIZE
from podium.cli.balance import plot_balance, print_balance, print_packing
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning import costs
from podium.planning.balance_report import Cluster, balance_report
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.costs import StepCosts, save_costs

USUAL_COSTS = LARGE.relative_costs(VOCABULARY_SIZE)

ROW = {
    "max_over_mean_tokens": 1.2,
    "max_over_mean_tokens_p99": 1.3,
    "max_over_mean_cost": 1.25,
    "max_over_mean_cost_p99": 1.35,
    "padding_share": 0.5,
    "lower_bound_cost": 1.1,
    "milliseconds": 0.7,
    "communication": "none",
    "bytes_per_step": 0.0,
}
SENDS = {**ROW, "padding_share": 0.0, "max_over_mean_cost": 1.0, "bytes_per_step": 2.5e6}
MEASURED = {"strategies": {"padded": ROW, "exchanged": SENDS}, "steps": 64, "infeasible": {"stratified": "too small"}}


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(costs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs")
    return load_system("laptop", None, ["launch.processes_per_node=2", "gradient_accumulation_steps=4"])


def printed(cluster: Cluster) -> str:
    console = Console(width=80, record=True)
    print_balance(console, cluster, MEASURED)
    return console.export_text()


def test_table_fits_80_columns_and_shows_every_figure() -> None:
    text = printed(Cluster(AssignmentSpec(64, 8), 48))
    assert "64 ranks × 48 samples" in text
    assert re.search(r"padded +│ 1\.200 / 1\.300 │ 1\.250 / 1\.350 │ +50\.0% │ +– │ 0\.70", text)
    assert re.search(r"exchanged +│ .* 2\.50 MB │ 0\.70", text)
    assert "stratified is impossible here: too small" in text
    assert max(map(len, text.splitlines())) <= 80


def test_indexed_strategy_is_compared_with_the_lower_bound() -> None:
    console = Console(width=80, record=True)
    print_balance(
        console, Cluster(AssignmentSpec(4, 4), 8), {"strategies": {"indexed": ROW}, "steps": 64, "infeasible": {}}
    )
    assert "lower bound of the cost: 1.1000; indexed reaches 1.2500" in console.export_text()
    assert "lower bound" not in printed(Cluster(AssignmentSpec(4, 4), 8))


def test_packing_table() -> None:
    rows = [
        {"method": "least squares", "depth": 3, "efficiency": 0.99751, "sequences_per_row": 1.9987},
        {"method": "longest pack first", "depth": None, "efficiency": 0.9, "sequences_per_row": 2.0},
    ]
    console = Console(width=80, record=True)
    print_packing(console, {"packing": rows})
    text = console.export_text()
    assert re.search(r"least squares +│ +3 │ 99\.75% │ +1\.999", text)
    assert re.search(r"longest pack first +│ +any │ 90\.00% │ +2\.000", text)


def test_bar_parts_add_up_to_a_step() -> None:
    """The busiest rank has 1.25 times the mean cost: 20% waiting, and half of the rest on padding."""
    lines = [line for line in printed(Cluster(AssignmentSpec(1, 1), 48)).splitlines() if "working" in line]
    padded, exchanged = (line.split()[1] for line in lines[:2])
    assert (padded.count("█"), padded.count("▒"), padded.count("·")) == (19, 19, 10)
    assert set(exchanged) == {"█"}
    assert "1 rank × 48 samples" in printed(Cluster(AssignmentSpec(1, 1), 48))


def test_cluster_of_a_system_has_its_ranks_and_batch(laptop: RunConfig) -> None:
    cluster = Cluster.of_system(laptop)
    assert cluster == Cluster(AssignmentSpec(2, 2, *USUAL_COSTS), 8, accumulation_steps=4)


def test_measured_costs_are_used(laptop: RunConfig) -> None:
    save_costs(StepCosts(1e-3, 1e-6, 3e-9, 2e-6, 4e-6), costs.own_costs_path("laptop"), {})
    token = 1e-6 + 0.15 * 2e-6
    spec = Cluster.of_system(laptop).spec
    assert spec.pair_cost == pytest.approx(3e-9 / token)
    assert spec.sequence_cost == pytest.approx(4e-6 / token)
    assert Cluster.of_system(laptop.model_copy(update={"pair_cost": 0.5})).spec.pair_cost == 0.5


def test_costs_measured_on_another_model_are_ignored(laptop: RunConfig) -> None:
    save_costs(StepCosts(1e-3, 1e-6, 3e-9, 2e-6, 4e-6), costs.own_costs_path("laptop"), {"layers": 24})
    assert Cluster.of_system(laptop).spec == AssignmentSpec(2, 2, *USUAL_COSTS)


def test_costs_without_a_token_cost_are_ignored(laptop: RunConfig) -> None:
    save_costs(StepCosts(1e-3, 0, 3e-9, 0, 4e-6), costs.own_costs_path("laptop"), {})
    assert Cluster.of_system(laptop).spec == AssignmentSpec(2, 2, *USUAL_COSTS)


def test_default_ranks_per_node_is_8_if_that_divides_the_ranks() -> None:
    assert Cluster.of_ranks(64, 4, None, None, None).spec.parts_per_node == 8
    assert Cluster.of_ranks(12, 4, None, None, None).spec.parts_per_node == 12
    assert Cluster.of_ranks(12, 4, 3, "free", "snake") == Cluster(
        AssignmentSpec(12, 3, *USUAL_COSTS, counts="free", scan="snake"), 4
    )


def test_report_uses_the_cluster_and_the_options(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.json"
    lengths.write_text("[0, 0, 1, 1]")
    report = balance_report(
        Cluster(AssignmentSpec(2, 1, 0.25, 2.0, counts="free"), 4, 2), ["indexed", "padded"], lengths, 3
    )
    assert list(report["strategies"]) == ["indexed", "padded"]
    assert (report["pair_cost"], report["sequence_cost"]) == (0.25, 2.0)
    with pytest.raises(UsageError, match="--strategy: found best, allowed are all, padded"):
        balance_report(Cluster(AssignmentSpec(2, 2), 4), ["best"], None, 1)


def test_plot_is_a_reproducible_svg_of_every_strategy(tmp_path: Path) -> None:
    path = tmp_path / "balance.svg"
    plot_balance(Cluster(AssignmentSpec(64, 8), 48), MEASURED, path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    for expected in ("padded", "exchanged", "64 ranks × 48 samples", "1.250", "waiting"):
        assert expected in text
    before = path.read_bytes()
    plot_balance(Cluster(AssignmentSpec(64, 8), 48), MEASURED, path)
    assert path.read_bytes() == before
    with pytest.raises(UsageError, match=r"allowed is a path that ends with \.svg"):
        plot_balance(Cluster(AssignmentSpec(64, 8), 48), MEASURED, tmp_path / "balance.png")


@pytest.mark.parametrize(("counts", "unequal"), [("equal", False), ("free", True)])
def test_counts_option_is_applied(counts: str, unequal: bool) -> None:
    """With two samples a rank, max/mean cost is at least 1.17 with equal counts, but it can with free ones."""
    report = balance_report(Cluster.of_ranks(64, 2, None, counts, None), ["indexed"], None, 3)
    assert (report["strategies"]["indexed"]["max_over_mean_cost"] < 1.15) == unequal


def test_scan_option_is_applied() -> None:
    snake, default = (
        balance_report(Cluster.of_ranks(64, 16, None, None, scan), ["exchanged"], None, 3)["strategies"]["exchanged"]
        for scan in ("snake", None)
    )
    assert snake["max_over_mean_tokens"] < 1.01 < default["max_over_mean_tokens"]


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from podium.cli import main as cli

    arguments = [
        "podium",
        "balance",
        "--ranks",
        "8",
        "--local-batch",
        "8",
        "--strategy",
        "indexed",
        "--steps",
        "2",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as end:
        cli.app()
    assert end.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"] == 2
    (row,) = printed["strategies"].values()
    assert row.keys() >= {"max_over_mean_tokens", "max_over_mean_cost", "padding_share", "milliseconds"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a system, such as laptop, or both --ranks and --local-batch"),
        (["--ranks", "8"], "give a system, such as laptop, or both"),
        (["laptop", "--ranks", "8"], "give either a system or --ranks and --local-batch"),
        (["--ranks", "8", "--local-batch", "8", "--set", "seed=1"], "give a system too"),
        (["nowhere"], "there is no system 'nowhere'"),
        (["--ranks", "8", "--local-batch", "8", "--counts", "any"], "--counts: found any, allowed are equal, free"),
        (["--ranks", "8", "--local-batch", "8", "--scan", "any"], "--scan: found any, allowed are stride, snake"),
        (["laptop", "--counts", "free"], "change a system's settings with --set"),
        (["--ranks", "0", "--local-batch", "4"], "Invalid value for '--ranks'"),
        (["--ranks", "4", "--local-batch", "4", "--steps", "0"], "Invalid value for '--steps'"),
        (["--ranks", "4", "--local-batch", "4", "--ranks-per-node", "3"], "--ranks-per-node: found 3"),
        (["laptop", "--set", "gradient_accumulation_steps=3"], "ranks × 3 accumulation steps; allowed"),
    ],
)
def test_usage_errors_exit_with_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from podium.cli import main as cli

    monkeypatch.setattr("sys.argv", ["podium", "balance", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
