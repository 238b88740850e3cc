"""Layouts and file names of several rounds' result trees."""

from pathlib import Path

from podium.comparison.load import RunCache, load_results
from tests.podium.comparison.conftest import DESCRIPTION, event, log_text, write_system


def test_power_readings_and_checker_outputs_are_not_runs(tmp_path: Path) -> None:
    folder = write_system(tmp_path / "training_results_v4.0" / "ORG")
    for number in range(10):
        readings = folder / "power" / f"result_{number}" / "node_0.txt"
        readings.parent.mkdir(parents=True)
        readings.write_text(event("power_reading", 2090), encoding="utf-8")
    for name in ("compliance_230516211339670666882.out", "compliance_result.out", "test"):
        (folder / name).write_text("SUCCESS", encoding="utf-8")
    (result,) = load_results([tmp_path], RunCache(None)).results
    assert len(result.runs) == 10 and result.score_minutes is not None and result.energy_joules is None
    (anomaly,) = result.anomalies
    assert anomaly.startswith("the power of 10 run(s) is not known") and "has no power_measurement_start" in anomaly


def test_logs_named_by_job_ids_are_ordered_by_number(tmp_path: Path) -> None:
    folder = write_system(tmp_path / "v4.1" / "ORG")
    for number in range(10):
        (folder / f"result_{number}.txt").rename(folder / f"result_51-240510190402846980797_{number + 1}.txt")
    (result,) = load_results([tmp_path], RunCache(None)).results
    assert [run.seconds for run in result.runs] == [1000.0 + number for number in range(10)]


def test_a_folder_of_logs_inside_another_is_left_out(tmp_path: Path) -> None:
    org = tmp_path / "v1.0" / "ORG"
    folder = write_system(org)
    nested = org / "results" / "SYS" / "resnet" / "bert"
    nested.mkdir(parents=True)
    for number in range(10):
        (nested / f"result_{number}.txt").write_bytes((folder / f"result_{number}.txt").read_bytes())
        (nested.parent / f"result_{number}.txt").write_text(log_text(submission_benchmark="resnet"), encoding="utf-8")
    found = load_results([tmp_path], RunCache(None))
    assert [Path(result.source).name for result in found.results] == ["bert", "resnet"]
    assert [(result.benchmark, len(result.runs)) for result in found.results] == [("bert", 10), ("resnet", 10)]


def test_packages_with_the_same_logs_within_a_round_are_repeats(tmp_path: Path) -> None:
    for name in ("cloud", "cloud-ac-power", "cloud-dc-power"):
        write_system(tmp_path / "v4.0" / name, description={**DESCRIPTION, "submitter": "Cloud & Co"})
    results = load_results([tmp_path], RunCache(None)).results
    assert [result.repeats for result in results] == [None, *["v4.0 Cloud & Co SYS (in cloud)"] * 2]


def test_spelling_variants_of_divisions_and_numbers_are_accepted(tmp_path: Path) -> None:
    for number, (division, nodes) in enumerate([("close", 1.0), ("Closed", 4), ("Open ", "1.0")]):
        description = {**DESCRIPTION, "division": division, "number_of_nodes": nodes}
        write_system(tmp_path / "v1.0" / "ORG", f"SYS {number}+", 1000.0 + 20 * number, description)
    found = load_results([tmp_path], RunCache(None)).results
    assert [(one.division, one.nodes, one.accelerators) for one in found] == [
        ("closed", 1, 4),
        ("closed", 4, 16),
        ("open", 1, 4),
    ]
