"""`podium predict`: predictions for shipped systems, tables, charts and costs."""

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks.bert.published.reading import read_runs, read_tiny_samples
from podium.cli import predict as module
from podium.cli.predict import (
    CURVE,
    FITTED,
    OTHERS,
    check_plot,
    format_duration,
    plot_scale,
    predict_run,
    print_prediction,
)
from podium.config.load import load_system, resolve_system, system_names, system_path, write_resolved
from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError, WorkError
from podium.core.machine import this_machine
from podium.planning import costs
from podium.run.progress import Progress

SPLIT = {
    "compute": 60.0,
    "imbalance": 2.0,
    "communication": 30.0,
    "optimizer": 1.0,
    "evaluation": 5.0,
    "data": 2.0,
}
ROW: dict[str, Any] = {
    "gpus": 8,
    "global_batch_size": 448,
    "accumulation_steps": 1,
    "seconds": 1000.0,
    "low": 900.0,
    "high": 1200.0,
    "split": {**SPLIT, "communication": 250.0},
    "samples_to_target": 2.5e6,
    "step_milliseconds": 170.0,
    "sequences_per_second": 2500.0,
    "warnings": ["all of it", "the network"],
    "outside": [],
}
PREDICTED: dict[str, Any] = {
    "seconds": 100.0,
    "low": 90.0,
    "high": 125.0,
    "split": SPLIT,
    "samples_to_target": 2_500_000.0,
    "step_milliseconds": 35.5,
    "sequences_per_second": 25_000.0,
    "warnings": ["all of it"],
    "interval": {"coverage": 0.9, "systems": 11, "statement": "the interval is made to cover 90% of scores"},
    "as_counted": None,
    "ranks": 64,
    "processor": "a100_sxm",
    "global_batch_size": 3072,
    "balancing": "indexed",
    "code": "measured",
    "scale": [],
    "published": [],
}
POINTS = [
    {"gpus": 8, "seconds": 995.9, "global_batch_size": 448, "system": "B", "gpu": "a100_sxm", "fitted": True},
    {"gpus": 8, "seconds": 1500.0, "global_batch_size": 448, "system": "D", "gpu": "a100_pcie", "fitted": True},
    {"gpus": 64, "seconds": 148.6, "global_batch_size": 3072, "system": "C", "gpu": "a100_sxm", "fitted": False},
    {"gpus": 1024, "seconds": 25.3, "global_batch_size": 4096, "system": "N", "gpu": "a100_sxm", "fitted": False},
]
SCALED: dict[str, Any] = {
    **PREDICTED,
    "scale": [ROW, {**ROW, "gpus": 64, "global_batch_size": 3072, "seconds": 150.0, "low": 140.0, "high": 170.0}],
    "published": POINTS,
}


def shown(predicted: dict[str, Any], system: str = "laptop") -> str:
    text = StringIO()
    print_prediction(Console(file=text, width=150), load_system(system), predicted)
    return text.getvalue()


@pytest.fixture(autouse=True)
def temporary_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(costs, "RUNS", tmp_path / "runs")  # not the costs that a user has measured here


@pytest.fixture
def quiet() -> Progress:
    return Progress(Console(file=StringIO()))


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the preparation of data; the list of systems whose data would have been prepared."""
    prepared: list[str] = []

    def with_data(config: Any, note: Callable[[str], None]) -> Any:
        prepared.append(config.system)
        return config

    monkeypatch.setattr(module, "with_data", with_data)
    return prepared


def test_prediction_for_a_laptop(quiet: Progress, no_data: list[str], tmp_path: Path) -> None:
    predicted = predict_run(load_system("laptop"), None, quiet)
    assert predicted["low"] < predicted["seconds"] < predicted["high"]
    assert set(predicted["split"]) == set(SPLIT)
    assert sum(predicted["split"].values()) == pytest.approx(predicted["seconds"])
    assert predicted["samples_to_target"] == read_tiny_samples()[0].mean
    assert predicted["step_milliseconds"] > 1
    assert predicted["warnings"]
    assert (predicted["scale"], predicted["published"]) == ([], [])
    assert no_data == ["laptop"]
    assert predicted["step_costs"]["relation"] == "unknown machine"
    assert "systems/costs/laptop.json" in predicted["step_costs"]["path"]
    assert not (tmp_path / "runs" / "laptop").exists()
    text = shown(predicted)
    assert "time-to-train" in text and "compute and optimizer" in text and text.count("optimizer") == 1


def test_gpu_system_needs_neither_data_nor_costs(quiet: Progress, no_data: list[str]) -> None:
    predicted = predict_run(load_system("h200_1x"), "64,8,8", quiet)
    assert no_data == []
    assert [row["gpus"] for row in predicted["scale"]] == [8, 64]
    for row in predicted["scale"]:
        assert sum(row["split"].values()) == pytest.approx(row["seconds"])
        assert row["low"] < row["seconds"] < row["high"]
        assert row["global_batch_size"] % row["gpus"] == 0
    assert predicted["published"]
    assert (predicted["ranks"], predicted["processor"], predicted["balancing"]) == (1, "h200", "indexed")
    assert any("no costs file" in sentence for sentence in predicted["warnings"])


def test_costs_file_is_used_if_there_is_one(
    quiet: Progress, no_data: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(costs, "COSTS", tmp_path)
    with pytest.raises(UsageError, match="podium bench laptop"):
        predict_run(load_system("laptop"), None, quiet)
    seconds = {"step": 1.0, "token": 0.0, "pair": 0.0, "masked": 0.0, "sequence": 0.0, "median_relative_error": 0.0}
    (tmp_path / "laptop.json").write_text(json.dumps({"seconds": seconds, "measured": {}}), encoding="utf-8")
    assert predict_run(load_system("laptop"), None, quiet)["step_milliseconds"] > 1000


SECONDS = {"step": 0.03, "token": 0.0, "pair": 0.0, "masked": 0.0, "sequence": 0.0, "median_relative_error": 0.04}


def write_own_costs(folder: Path, measured: dict[str, Any]) -> None:
    path = folder / "runs" / "laptop" / "costs.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"seconds": SECONDS, "measured": measured}), encoding="utf-8")


def test_own_costs_of_this_machine_come_before_the_shipped_ones(
    quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    write_own_costs(tmp_path, {"device": "cpu", "date": "2026-11-24", "machine": this_machine().as_json()})
    predicted = predict_run(load_system("laptop"), None, quiet)
    found = predicted["step_costs"]
    assert (found["relation"], found["machine"]) == ("this machine", this_machine().as_json())
    assert re.fullmatch(
        r"step costs: measured on .+ on 2026-11-24 by `podium bench` \(this machine\)", found["statement"]
    )
    assert found["statement"] in shown(predicted).replace("\n", " ")
    assert found["other_load"] is None
    assert predicted["calibration"]["fit_median_relative_error"] == 0.04
    assert "10 runs on a laptop; median error of the fitted costs 4.0%" in predicted["calibration"]["statement"]
    assert not any("half or twice" in sentence for sentence in predicted["warnings"])


def test_costs_that_were_measured_beside_other_load_are_called_too_high(
    quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    measured = {"device": "cpu", "date": "2026-11-24", "machine": this_machine().as_json(), "other_load": 0.35}
    write_own_costs(tmp_path, measured)
    found = predict_run(load_system("laptop"), None, quiet)["step_costs"]
    assert found["other_load"] == 0.35
    assert "other processes used 35% of its processors meanwhile, so they are too high" in found["statement"]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"host": "node7", "processor": "Other CPU", "cores": 96}, "measured on Other CPU, 96 cores (host node7) on"),
        (None, "measured on an unknown machine on 2026-11-24"),
        ({"host": 7}, "measured on an unknown machine on 2026-11-24"),
    ],
)
def test_costs_of_another_or_an_unknown_machine_widen_the_interval(
    machine: Any, expected: str, quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    write_own_costs(tmp_path, {"device": "cpu", "date": "2026-11-24", "machine": machine})
    predicted = predict_run(load_system("laptop"), None, quiet)
    assert expected in predicted["step_costs"]["statement"]
    assert predicted["low"] <= predicted["seconds"] / 2 and predicted["high"] >= 2 * predicted["seconds"]
    assert any("podium bench laptop" in sentence for sentence in predicted["warnings"])


def test_prediction_is_compared_with_own_runs_of_the_same_configuration(
    quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    config = load_system("laptop")
    write_own_costs(tmp_path, {"device": "cpu", "machine": this_machine().as_json()})
    assert predict_run(config, None, quiet)["own_runs"] is None
    for number, (rate, ran) in enumerate([(100.0, config), (50.0, config), (1.0, load_system("laptop", "padded"))]):
        folder = RunFolder(tmp_path / "runs" / "laptop" / "2026-11-24_00-00-00" / f"run_{number}")
        folder.path.mkdir(parents=True)
        write_resolved(ran, folder.config)
        summary = {"sequences_per_second": rate, "reached_target": True}
        folder.summary.write_text(json.dumps(summary), encoding="utf-8")
    predicted = predict_run(config, None, quiet)
    rate, found = predicted["sequences_per_second"], predicted["own_runs"]
    assert (found["runs"], found["min"], found["max"]) == (2, rate / 100, rate / 50)
    assert found["statement"].startswith("2 runs of this configuration in runs/laptop took")


@pytest.mark.parametrize(
    ("settings", "reached", "mark"),
    [
        (["max_samples=320"], True, None),
        (["evaluation.samples=128"], True, None),
        ([], False, None),
        ([], True, RunFolder.mark_profiled),
        ([], True, RunFolder.mark_resumed),
    ],
)
def test_other_runs_are_not_compared_with_a_prediction(
    settings: list[str], reached: bool, mark: Any, quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "runs" / "laptop" / "2026-11-24_00-00-00" / "run_0")
    folder.path.mkdir(parents=True)
    write_resolved(load_system("laptop", settings=settings), folder.config)
    summary = {"sequences_per_second": 50, "reached_target": reached}
    folder.summary.write_text(json.dumps(summary), encoding="utf-8")
    if mark is not None:
        mark(folder)
    assert predict_run(load_system("laptop"), None, quiet)["own_runs"] is None


@pytest.mark.parametrize("name", ["NVIDIA H2000", "NVIDIA A1000", "AMD MI300X"])
def test_a_refused_accelerator_is_located_in_the_system_file(
    name: str, quiet: Progress, no_data: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    shipped = system_path("dgxh200_n1").read_text(encoding="utf-8")
    file.write_text(shipped.replace("NVIDIA H200-SXM5-141GB", name), encoding="utf-8")
    loaded = resolve_system(str(file))
    with pytest.raises(UsageError, match=rf"mine\.yaml: description\.accelerator_model_name: found '{name}'"):
        predict_run(loaded.config, None, quiet, None, loaded.origins.locate)


def test_invalid_scale_is_a_usage_error(quiet: Progress, no_data: list[str]) -> None:
    with pytest.raises(UsageError, match=r"--scale: found 8,x"):
        predict_run(load_system("h200_1x"), "8,x", quiet)
    with pytest.raises(UsageError, match=r"--scale: .*GPUs"):
        predict_run(load_system("laptop"), "8", quiet)


def test_options_are_checked_before_the_data_is_prepared(quiet: Progress, no_data: list[str], tmp_path: Path) -> None:
    for scale, prices in (("8,x", None), ("8", tmp_path / "none.yaml")):
        with pytest.raises(UsageError, match=r"--scale: found 8,x|none\.yaml"):
            predict_run(load_system("laptop"), scale, quiet, prices)
    assert no_data == []


def test_unknown_systems_and_recipes_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="there is no system 'lapdog'"):
        load_system("lapdog")
    with pytest.raises(UsageError, match="there is no recipe 'magic'"):
        load_system("laptop", "magic")


@pytest.mark.parametrize("scale", ["8,many", "0", "", "8,,64", "1000000"])
def test_invalid_gpu_counts_are_usage_errors(quiet: Progress, scale: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--scale: found {scale}, allowed are numbers of GPUs"):
        predict_run(load_system("h200_1x"), scale, quiet)
    assert not (tmp_path / "runs").exists()


def test_table_has_the_time_its_parts_and_the_uncertainties() -> None:
    text = shown(PREDICTED)
    for expected in (
        "100 s",
        "90 s and 2.08 min",
        "2,500,000",
        "25,000.0",
        "35.5 ms",
        "3,072 on 64 ranks",
        "30 s, 30.0%",
        "61 s, 61.0%",
        "unsure: all of it",
        "time-to-train",
        "the interval is made to cover 90% of scores",
    ):
        assert expected in text, expected
    assert "estimated" not in text
    assert "published" not in text
    assert "16 on 1 rank " in shown({**PREDICTED, "ranks": 1, "global_batch_size": 16})


def test_scale_table_has_predicted_and_published_times() -> None:
    text = shown(SCALED)
    for expected in (
        "16.7 min",
        "16.6 min to 25 min",
        "15 min to 20 min",
        "2.48 min",
        "25%",
        "unsure of the curve: the network",
    ):
        assert expected in text, expected
    assert text.count("all of it") == 1
    bars = [line.count("█") for line in text.splitlines() if "█" in line]
    assert bars[0] > 6 * bars[1] > 0
    assert "parts" not in text
    assert "*" not in text


def test_a_score_outside_the_interval_is_marked_and_explained() -> None:
    missed = {"system": "2.0 N n512", "seconds": 12.3, "side": "below", "why": "it trains [otherwise]"}
    text = shown({**SCALED, "scale": [ROW, {**ROW, "gpus": 1024, "outside": [missed]}]})
    assert text.count("25.3 s *") == 1
    assert "*: a published score is outside the interval, for the reasons below" in text
    assert "* 1,024 GPUs: 2.0 N n512 took 12.3 s, below the interval 15 min to 20 min: it trains [otherwise]" in text


def test_every_published_score_outside_its_interval_has_a_reason(quiet: Progress, no_data: list[str]) -> None:
    predicted = predict_run(load_system("dgxa100_n8"), "512,1024,4096", quiet)
    for row in predicted["scale"]:
        near = {point["system"]: point["seconds"] for point in predicted["published"] if point["gpus"] == row["gpus"]}
        missed = {name for name, seconds in near.items() if not row["low"] <= seconds <= row["high"]}
        assert missed == {each["system"] for each in row["outside"]}
    (largest,) = predicted["scale"][-1]["outside"]
    assert (largest["system"], largest["side"]) == ("2.0 NVIDIA dgxa100_n512_ngc22.04_pytorch", "below")
    assert "each GPU runs its slice of the optimizer there (here gradients are all-reduced" in largest["why"]
    assert json.loads(json.dumps(predicted)) == predicted


def test_scale_table_marks_gradient_accumulation() -> None:
    text = shown({**SCALED, "scale": [{**ROW, "accumulation_steps": 4}, ROW]})
    assert "in 4 parts" in text and text.count(" in 1 parts") == 0
    assert "in N parts: gradient accumulation, with N micro-batches a step" in " ".join(text.split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (12.345, "12.3 s"),
        (119.9, "120 s"),
        (120.0, "2 min"),
        (995.9, "16.6 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (48 * 3600.0 - 1, "48 h"),
        (48 * 3600.0, "2 days"),
        (1e6, "11.6 days"),
    ],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_plot_has_the_curve_and_every_point_and_is_reproducible(tmp_path: Path) -> None:
    plot_scale(SCALED, "mine", tmp_path / "a.svg")
    plot_scale(SCALED, "mine", tmp_path / "b.svg")
    image = (tmp_path / "a.svg").read_bytes()
    assert image == (tmp_path / "b.svg").read_bytes()
    svg = "{http://www.w3.org/2000/svg}"
    groups = {group.get("id"): group for group in ElementTree.fromstring(image).iter(f"{svg}g")}
    points = {name: len(list(groups[name].iter("{http://www.w3.org/2000/svg}use"))) for name in (CURVE, FITTED, OTHERS)}
    assert points == {CURVE: 2, FITTED: 2, OTHERS: 2}
    assert b"mine, predicted" in image


def test_plot_needs_scale_and_is_svg(tmp_path: Path) -> None:
    check_plot("8", Path("curve.svg"))
    check_plot(None, None)
    with pytest.raises(UsageError, match=r"--plot.*--scale"):
        check_plot(None, Path("curve.svg"))
    with pytest.raises(UsageError, match=r"curve\.png.*\.svg"):
        check_plot("8", Path("curve.png"))
    with pytest.raises(WorkError, match="cannot be written"):
        plot_scale(SCALED, "mine", tmp_path / "nowhere" / "a.svg")


def test_table_has_the_published_codes_time_and_the_estimate_for_podium() -> None:
    text = shown({**PREDICTED, "code": "other", "as_counted": 110.0})
    assert "as the best published code" in text
    assert "Podium's step, estimated, not measured" in text
    assert "110 s" in text
    assert "time-to-train" not in text


PRICES = """
currency: USD
prices:
  - accelerator: "*T4*"
    per: accelerator-hour
    price: 0.5
  - accelerator: NVIDIA A100 SXM
    per: node-hour
    price: 30
"""


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES, encoding="utf-8")
    return path


def test_prediction_and_cost_for_an_academic_cluster(quiet: Progress, no_data: list[str], prices: Path) -> None:
    config = load_system("academic_t4")
    predicted = predict_run(config, None, quiet, prices)
    assert predicted["processor"] == "t4"
    assert predicted["high"] / predicted["low"] >= 2
    assert any("NVIDIA T4: not fitted on any run" in sentence for sentence in predicted["warnings"])
    cost = predicted["cost"]
    assert cost["cost_per_hour"] == 32 * 0.5
    for key, seconds in (("cost_to_train", "seconds"), ("low", "low"), ("high", "high")):
        assert cost[key] == pytest.approx(16 * predicted[seconds] / 3600)
    text = StringIO()
    print_prediction(Console(file=text, width=150), config, predicted)
    assert "cost, USD" in text.getvalue()


def test_long_durations_are_in_days(quiet: Progress, no_data: list[str]) -> None:
    settings = ["target_accuracy=null", "max_samples=900000000", "launch.nodes=1", "gradient_accumulation_steps=128"]
    config = load_system("academic_t4", settings=settings)
    text = StringIO()
    print_prediction(Console(file=text, width=150), config, predict_run(config, None, quiet))
    assert " days" in text.getvalue()


def test_minimum_and_initialisation_are_billed_and_missing_prices_are_errors(
    quiet: Progress, no_data: list[str], prices: Path
) -> None:
    prices.write_text(PRICES + "minimum_minutes: 600\ninitialisation: true\n", encoding="utf-8")
    config = load_system("dgxa100_n8")
    predicted = predict_run(config, None, quiet, prices)
    assert predicted["cost"]["cost_to_train"] == pytest.approx(8 * 30 * 10)
    text = StringIO()
    print_prediction(Console(file=text, width=150), config, predicted)
    assert "the time before run_start is billed, but not predicted" in text.getvalue()
    with pytest.raises(UsageError, match=r"prices.yaml: no entry of prices fits h200_1x"):
        predict_run(load_system("h200_1x"), None, quiet, prices)


# The published systems that each shipped system with A100s reproduces.
PUBLISHED = {
    "baidu_a100_n1": ("2.0 Baidu XMan4.0_1_node_8_A100_PaddlePaddle",),
    "baidu_a100_n8": ("2.1 Baidu 8_node_64_A100_PaddlePaddle",),
    "dgxa100_n1": ("2.1 NVIDIA dgxa100_ngc22.09_pytorch", "2.0 Baidu XMan4.0_1_node_8_A100_PaddlePaddle"),
    "dgxa100_n8": ("2.1 NVIDIA dgxa100_n8_ngc22.09_pytorch", "2.1 Baidu 8_node_64_A100_PaddlePaddle"),
    "dgxa100_n64": (),  # no result of 512 GPUs was published
    "dgxa100_n128": ("2.0 Samsung samsung_supercomputer21_dgxa100_n128_pytorch",),
    "dgxa100_n171": ("2.0 Samsung samsung_supercomputer21_dgxa100_n171_pytorch",),
}


@pytest.mark.parametrize(
    ("system", "wire"),
    [(name, "auto") for name in system_names() if "a100" in name] + [("dgxa100_n1", "fp32"), ("dgxa100_n128", "fp32")],
)
def test_published_scores_lie_inside_the_interval_of_the_shipped_system(
    system: str, wire: str, quiet: Progress, no_data: list[str]
) -> None:
    assert system in PUBLISHED, "name the published systems that it reproduces, or none"
    scores = {run.name: run.score_seconds for run in read_runs()}
    predicted = predict_run(
        load_system(system, settings=[] if wire == "auto" else [f"gradient_wire={wire}"]), None, quiet
    )
    for name in PUBLISHED[system]:
        assert predicted["low"] < scores[name] < predicted["high"], name
    assert predicted["interval"]["systems"] == 3
    assert "no stated coverage" in predicted["interval"]["statement"]
