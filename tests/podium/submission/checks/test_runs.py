"""Comparison of logs of Podium's runs with their configurations."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.load import write_resolved
from podium.config.schema import RunConfig
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.checks.all_checks import check_package
from podium.submission.checks.runs import configurations_in


@pytest.fixture
def runs(tmp_path: Path, good_config: RunConfig) -> Path:
    """The folders of runs 3 and 4, and one with an invalid configuration."""
    for number in (3, 4):
        folder = tmp_path / "runs" / "2026" / f"run_{number}"
        folder.mkdir(parents=True)
        write_resolved(good_config.model_copy(update={"seed": 100 + number}), folder / "config.yaml")
    (tmp_path / "runs" / "2026" / "run_9").mkdir()
    (tmp_path / "runs" / "2026" / "run_9" / "config.yaml").write_text("- what\n")
    return tmp_path / "runs"


def check(copy: Any, runs: Path) -> list[tuple[str, str, str]]:
    (package,) = find_packages(copy.root)
    found = check_package(package, ruleset("5.0.0"), configurations_in(runs))
    return [(finding.path[-12:], finding.rule, finding.message) for finding in found if finding.severity == "error"]


def test_a_log_that_matches_its_configuration_has_no_error(copy: Any, runs: Path) -> None:
    assert set(configurations_in(runs)) == {103, 104}
    assert check(copy, runs) == []


def test_a_logged_value_that_differs_from_the_configuration_is_an_error(copy: Any, runs: Path) -> None:
    copy.replace('"value": 0.01', '"value": 0.02')
    message = "opt_lamb_weight_decay_rate is 0.02, but the run was configured with 0.01"
    assert ("result_3.txt", "not_as_configured", message) in check(copy, runs)


def test_a_configured_value_that_is_not_logged_is_an_error(copy: Any, runs: Path) -> None:
    copy.edit(
        lambda events: [events.remove(event) for event in list(events) if event["key"] == "start_warmup_step"], [4]
    )
    message = "start_warmup_step is not logged; the run was configured with 0"
    assert check(copy, runs) == [("result_4.txt", "not_as_configured", message)]


def test_logs_of_other_runs_are_not_compared(copy: Any, runs: Path) -> None:
    copy.edit(
        lambda events: [event.update(value=7_000) for event in events if "training_steps" in event["key"]], range(10)
    )
    assert [path for path, rule, _ in check(copy, runs) if rule == "not_as_configured"] == [
        "result_3.txt",
        "result_4.txt",
    ]


KEYS_OF_6_1 = (
    *(f"lowest_numerical_precision_in_{part}" for part in ("linear", "attn", "comm")),
    *(f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")),
    "micro_batch_size",
    "config_filename",
)


def test_a_log_of_an_older_version_without_the_keys_of_6_1_has_no_finding(copy: Any, runs: Path) -> None:
    copy.edit(lambda events: [events.remove(event) for event in list(events) if event["key"] in KEYS_OF_6_1], range(10))
    (package,) = find_packages(copy.root)
    assert len(list(package.results[0].logs)) == 10 and "micro_batch" not in copy.log().read_text(encoding="utf-8")
    assert check_package(package, ruleset("5.0.0"), configurations_in(runs)) == []


@pytest.mark.parametrize(
    ("key", "found", "configured"),
    [
        ("micro_batch_size", 56, "448"),
        ("tensor_parallelism", 8, "1"),
        ("config_filename", "mine.yaml", "'submitted/mine.yaml'"),
    ],
)
def test_a_disclosed_value_that_differs_from_the_configuration_is_an_error(
    copy: Any, runs: Path, key: str, found: Any, configured: str
) -> None:
    copy.edit(lambda events: [event.update(value=found) for event in events if event["key"] == key], range(10))
    message = f"{key} is {found!r}, but the run was configured with {configured}"
    assert [error for error in check(copy, runs) if error[0] == "result_4.txt"] == [
        ("result_4.txt", "not_as_configured", message)
    ]
