"""Misspelled keys and missing configurations, in logs of BERT and of other benchmarks."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from podium.core.finding import Finding
from podium.mllog.read import read_log
from podium.mllog.results_tree import ResultFolder, find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.checks.all_checks import check_package
from podium.submission.checks.context import CheckedPackage, CheckedRun, CheckedSet
from podium.submission.checks.disclosure import CONFIGURATION_CHECKS, DISCLOSURE_CHECKS
from tests.podium.submission.checks.conftest import write_events

LATEST = ruleset("6.1.0")
NINE = (
    *(f"lowest_numerical_precision_in_{part}" for part in ("linear", "attn", "comm")),
    *(f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")),
    "micro_batch_size",
    "config_filename",
)


def checked_run(folder: Path, keys: Sequence[str], benchmark: str = "llama31_8b", **values: Any) -> CheckedRun:
    events = {"submission_benchmark": benchmark, "submission_division": "closed"} | dict.fromkeys(keys, 1) | values
    write_events(
        folder / "result_0.txt",
        [
            {"time_ms": 1_700_000_000_000, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {}}
            for key, value in events.items()
        ],
    )
    return CheckedRun("results/s/b/result_0.txt", read_log(folder / "result_0.txt"), None)


def misspelled(run: CheckedRun, rules: Any = LATEST) -> list[Finding]:
    return [finding for check in DISCLOSURE_CHECKS for finding in check(run, rules)]


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("lowest_numerical_precision_linear", "lowest_numerical_precision_in_linear"),
        ("lowest_numerical_precision_in_attention", "lowest_numerical_precision_in_attn"),
        ("lowest_numerical_precision_in_communication", "lowest_numerical_precision_in_comm"),
        ("lowest_numeric_precision_in_comm", "lowest_numerical_precision_in_comm"),
        ("tensor_paralelism", "tensor_parallelism"),
        ("tensor_parallel", "tensor_parallelism"),
        ("tensor_model_parallelism", "tensor_parallelism"),
        ("Pipeline-Parallelism", "pipeline_parallelism"),
        ("micro_batch", "micro_batch_size"),
        ("config_file_name", "config_filename"),
        ("train_samples ", "train_samples"),
    ],
)
def test_a_misspelled_key_is_an_error_where_the_ruleset_requires_it(tmp_path: Path, found: str, meant: str) -> None:
    keys = [key for key in (*NINE, "train_samples", "global_batch_size") if key != meant]
    (finding,) = misspelled(checked_run(tmp_path, [*keys, found]))
    assert (finding.rule, finding.severity) == ("key_misspelled", "error")
    assert finding.line == 2 + len(keys) + 1
    assert (
        f"{found!r} is not a key" in finding.message and f"no {meant}, which ruleset 6.1.0 requires" in finding.message
    )


def test_a_misspelled_key_of_a_later_ruleset_is_a_warning(tmp_path: Path) -> None:
    (finding,) = misspelled(checked_run(tmp_path, ["lowest_numerical_precision_linear"]), ruleset("5.0.0"))
    assert finding.severity == "warning" and "which ruleset 6.1.0 requires" in finding.message


@pytest.mark.parametrize(
    "key",
    [
        "tracked_stats",
        "train_loss",
        "target_accuracy",
        "local_batch_size",
        "d_batch_size",
        "max_predictions_per_seq",
        "data_file",
        "checkpoint",
        "tflops_per_sec_per_gpu",
        "samples",
        "podium_restarted",
        "podium_profiled",
        "podium_swept",
        "x" * 5_000,
        "",
        "_",
    ],
)
def test_other_keys_are_not_taken_for_misspelled_ones(tmp_path: Path, key: str) -> None:
    assert misspelled(checked_run(tmp_path, [key])) == []


def test_a_key_beside_the_right_one_is_not_reported(tmp_path: Path) -> None:
    assert misspelled(checked_run(tmp_path, [*NINE, "lowest_numerical_precision_linear"])) == []


def test_thousands_of_unknown_keys_take_a_bounded_time(tmp_path: Path) -> None:
    run = checked_run(tmp_path, [f"lowest_numerical_precision_{'abcdefghij'[n % 10] * 9}_{n}" for n in range(15_000)])
    assert len(run.log.by_key) > 10_000
    start = time.process_time()
    misspelled(run)
    assert time.process_time() - start < 3


def configuration(folder: Path, name: Any, files: Sequence[str], rules: Any = LATEST) -> list[Finding]:
    """Return the findings for a log that names a configuration, in a package with these files."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    (folder / "results").mkdir(exist_ok=True)
    (package,) = find_packages(folder)
    run = checked_run(folder, [], config_filename=name)
    results = CheckedSet("results/s/b", ResultFolder(folder, "s", "b", (), ()), None, (run,))
    checked = CheckedPackage(package, (results,))
    return [finding for check in CONFIGURATION_CHECKS for finding in check(checked, rules)]


CODE = "benchmarks/llama31_8b/implementations/nemo"


@pytest.mark.parametrize(
    "name",
    [
        "config_GB200.sh",
        "configs/config_GB200.sh",
        "./configs/config_GB200.sh",
        "../configs/config_GB200.sh",
        "implementations/nemo/configs/config_GB200.sh",
        "/workspace/llm/config_GB200.sh",
    ],
)
def test_a_configuration_is_found_by_name_or_path(tmp_path: Path, name: str) -> None:
    assert configuration(tmp_path, name, [f"{CODE}/configs/config_GB200.sh"]) == []


@pytest.mark.parametrize(
    "name", ["config_GB200.sh", "configs/config_GB200.sh", "configs", "/etc/passwd", "\x1b[31m", 7, ""]
)
def test_a_missing_configuration_is_an_error_where_the_ruleset_requires_it(tmp_path: Path, name: Any) -> None:
    files = [f"{CODE}/configs/config_B200.sh", "results/s/llama31_8b/config_GB200.sh"]
    (finding,) = configuration(tmp_path, name, files)
    assert (finding.rule, finding.severity, finding.line) == ("config_filename", "error", 3)
    assert "\x1b" not in finding.message
    (finding,) = configuration(tmp_path, name, files, ruleset("5.0.0"))
    assert finding.severity == "warning"


def test_a_configuration_in_another_folder_is_a_warning(tmp_path: Path) -> None:
    (finding,) = configuration(tmp_path, "submitted/a.yaml", [f"{CODE}/systems/a.yaml"])
    assert finding.severity == "warning" and "llama31_8b/implementations/nemo/systems/a.yaml" in finding.message


def test_a_package_without_code_is_not_checked_for_configurations(tmp_path: Path) -> None:
    assert configuration(tmp_path, "config_GB200.sh", []) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config_GB200.sh").touch()
    package = tmp_path / "ORG"
    (package / CODE).mkdir(parents=True)
    (package / CODE / "configs").symlink_to(outside)
    assert [finding.severity for finding in configuration(package, "config_GB200.sh", [])] == ["error"]


def test_a_whole_package_is_checked(copy: Any) -> None:
    (copy.root / "benchmarks/bert/implementations/podium/submitted/mine.yaml").unlink()
    (package,) = find_packages(copy.root)
    found = check_package(package, ruleset("5.0.0"))
    assert [(finding.rule, finding.severity) for finding in found] == [("config_filename", "warning")] * 10
