"""Checks of power logs: those of the official power checker, and of what it does not look at."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.package_checker.power_checker import PowerChecker

from podium.core.finding import Finding
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.checks.all_checks import check_package

NODES = 3
Change = Callable[[Path], object]


def line(ms: int, key: str, value: Any = None) -> str:
    fields = {"namespace": "", "time_ms": 1_700_000_000_000 + ms, "event_type": "POINT_IN_TIME", "key": key}
    return ":::MLLOG " + json.dumps({**fields, "value": value, "metadata": {}}) + "\n"


def node_text(watts: float) -> str:
    readings = "".join(line(1000 * n, "power_reading", watts + n) for n in range(1, 80))
    return line(0, "power_measurement_start") + readings + line(80_000, "power_measurement_stop")


@pytest.fixture
def power(copy: Any) -> Path:
    """Return the folder of power logs of a package of ten runs, three nodes and a switch each."""
    for number in range(10):
        folder = copy.results / "power" / f"result_{number}"
        folder.mkdir(parents=True)
        for node in range(NODES):
            (folder / f"node_{node}.txt").write_text(node_text(5000.0 + 100 * number + node), encoding="utf-8")
        (folder / "sw_0.txt").write_text(line(0, "interconnect_power_est", 480), encoding="utf-8")
    return copy.results / "power"  # type: ignore[no-any-return]


def findings(power: Path) -> list[Finding]:
    (package,) = find_packages(power.parents[3])
    return check_package(package, ruleset("5.0.0"))


def accepted_officially(power: Path) -> bool:
    logs = sorted(str(path) for path in power.parent.glob("result_*.txt"))
    try:
        valid, wrong = PowerChecker("5.0.0").check_power(str(power), logs)
    except (ValueError, OSError):
        return False
    return valid and not wrong


def test_good_power_logs_have_no_finding(power: Path) -> None:
    good = findings(power)
    assert [one.rule for one in good if "power" in one.path + one.rule] == [] and accepted_officially(power)
    shutil.rmtree(power)
    assert findings(power) == good


def rename(old: str, new: str) -> Change:
    return lambda power: (power / "result_3" / old).rename(power / "result_3" / new)


def write(name: str, content: str = "") -> Change:
    return lambda power: (power / "result_3" / name).write_text(content, encoding="utf-8")


def remove(name: str) -> Change:
    return lambda power: (power / "result_3" / name).unlink()


REJECTED: dict[str, tuple[str, Change]] = {
    "a run without a folder": ("power_missing", lambda power: shutil.rmtree(power / "result_3")),
    "no folder at all": ("power_missing", lambda power: [shutil.rmtree(path) for path in power.iterdir()]),
    "a file in place of the folder": (
        "power_missing",
        lambda power: (shutil.rmtree(power / "result_3"), (power / "result_3").touch()),
    ),
    "numbered from 1": ("power_names", rename("node_0.txt", "node_3.txt")),
    "no number": ("power_names", rename("node_1.txt", "node_b.txt")),
    "a switch numbered 1": ("power_names", rename("sw_0.txt", "sw_1.txt")),
    "a node less": ("power_counts", remove("node_2.txt")),
    "a node more": ("power_counts", write("node_3.txt", node_text(77.0))),
    "no switch": ("power_counts", remove("sw_0.txt")),
}
ACCEPTED: dict[str, tuple[str, Change]] = {
    "no stop after the start": (
        "power_logs",
        write("node_1.txt", line(0, "power_measurement_start") + line(0, "power_measurement_stop")),
    ),
    "no readings": ("power_logs", write("node_1.txt", "".join(node_text(5.0).splitlines(keepends=True)[::80]))),
    "an empty log": ("power_logs", write("node_1.txt")),
    "a text as reading": ("power_logs", write("node_1.txt", node_text(5.0) + line(9500, "power_reading", "8 kW"))),
    "a link": ("power_missing", lambda power: _link(power / "result_3" / "node_1.txt")),
}
WARNED: dict[str, tuple[str, Change]] = {
    "numbered from 1 with an image": (
        "power_names",
        lambda power: [
            ((folder / "node_0.txt").rename(folder / "node_3.txt"), (folder / "nodes_1_to_3.png").touch())
            for folder in power.iterdir()
        ],
    ),
    "a measured switch": ("power_logs", write("sw_0.txt", node_text(480.0))),
    "another file": ("unknown_file", write("total_power.txt")),
    "a folder of no run": ("unknown_file", lambda power: (power / "result_10").mkdir()),
    "the same power twice": (
        "power_copied",
        lambda power: shutil.copytree(power / "result_2", power / "result_3", dirs_exist_ok=True),
    ),
}


def _link(path: Path) -> None:
    path.rename(path.parents[4] / "elsewhere.txt")
    path.symlink_to(path.parents[4] / "elsewhere.txt")


@pytest.mark.parametrize("name", REJECTED)
def test_faults_that_the_official_checker_rejects_are_errors(power: Path, name: str) -> None:
    rule, change = REJECTED[name]
    change(power)
    assert not accepted_officially(power)
    assert ("error", rule) in {(one.severity, one.rule) for one in findings(power)}


@pytest.mark.parametrize("name", ACCEPTED)
def test_errors_that_the_official_checker_accepts(power: Path, name: str) -> None:
    rule, change = ACCEPTED[name]
    change(power)
    assert accepted_officially(power)
    (found,) = (one for one in findings(power) if one.rule == rule)
    assert found.severity == "error" and found.path.endswith("bert/result_3.txt") and "result_3" in found.message


@pytest.mark.parametrize("name", WARNED)
def test_warnings(power: Path, name: str) -> None:
    rule, change = WARNED[name]
    before = set(findings(power))
    change(power)
    assert {(one.severity, one.rule) for one in set(findings(power)) - before} >= {("warning", rule)}
    assert not [one for one in set(findings(power)) - before if one.severity == "error"]
    assert accepted_officially(power)


def test_power_that_is_no_folder(copy: Any) -> None:
    (copy.results / "power").touch()
    assert len([one for one in findings(copy.results / "power") if one.rule == "power_missing"]) == 10


def test_a_link_to_a_folder_of_power_logs(power: Path, tmp_path: Path) -> None:
    power.rename(tmp_path / "elsewhere")
    power.symlink_to(tmp_path / "elsewhere")
    assert len([one for one in findings(power) if one.rule == "power_missing"]) == 10
