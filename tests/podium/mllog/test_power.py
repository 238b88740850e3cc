"""Power of runs: equal to the official summarizer's functions, and no exception for any bad input."""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.result_summarizer import result_summarizer

from podium.mllog import power
from podium.mllog.power import RunPower, digest_of, list_power_folder, power_from_json, read_power

START = 1_700_000_000_000
SECONDS = 617.25
Event = tuple[float, str, Any]  # ms after START, key, value
NODE: Sequence[Event] = (
    (0, "power_measurement_start", None),
    (0, "conversion_eff", 0.94),
    (1000, "power_reading", 2855.0),
    (2010, "power_reading", 8501),
    (5000, "power_reading", 10020.5),
    (5500, "power_measurement_stop", None),
)
SWITCH: Sequence[Event] = ((0, "conversion_eff", 0.9), (0, "interconnect_power_est", 16_100))


def write(path: Path, events: Sequence[Event], tail: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [
        {"namespace": "", "time_ms": START + ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        for ms, key, value in events
    ]
    lines = [":::MLLOG " + json.dumps({**one, "metadata": {}}) + "\n" for one in fields]
    path.write_text("".join(lines) + tail, encoding="utf-8")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the log of a run, which is not read here, with one node's power log."""
    write(tmp_path / "power" / "result_0" / "node_0.txt", NODE)
    return tmp_path / "result_0.txt"


def folder_of(log: Path) -> Path:
    return log.parent / "power" / "result_0"


def read(log: Path) -> RunPower:
    return read_power(list_power_folder(log), "")


def official(log: Path) -> float:
    found = result_summarizer._compute_total_power(str(log.parent), str(log), SECONDS * 1e3, "5.1.0")
    assert isinstance(found, float)
    return found


def test_energy_by_hand(log: Path) -> None:
    joules = 0.94 * (2855 * 1 + 8501 * 1.01 + 10020.5 * 2.99)
    assert read(log).joules(SECONDS) == pytest.approx(joules / 5.5 * SECONDS, rel=1e-12)
    assert read(log).problems == ()


@pytest.mark.parametrize(
    ("nodes", "switches"),
    [
        ([NODE], []),
        ([NODE] * 3, [SWITCH] * 2),
        ([NODE, [one for one in NODE if one[1] != "conversion_eff"]], []),
        ([NODE[::-1]], [SWITCH[::-1]]),
        ([[*NODE[3:], *NODE[:3]]], [SWITCH]),
        ([NODE[:-1]], []),
        ([NODE], [SWITCH[1:]]),
        ([[*NODE, (6000, "power_reading", 5000)]], []),
        ([[(-1000, "power_reading", 5000), *NODE]], []),
        ([[*NODE, (2500, "power_measurement_start", None)]], []),
        ([[*NODE, (7500, "power_measurement_stop", None), (3000, "conversion_eff", 0.5)]], []),
        ([[*NODE[:1], (0, "power_reading", 12), *NODE[1:]]], []),
        ([NODE], [[(0, "power_measurement_start", None), (1, "power_reading", 700)]]),
        ([[(ms, key, 1.05 if key == "conversion_eff" else value) for ms, key, value in NODE]], []),
        ([NODE], [[*SWITCH, (5, "interconnect_power_est", 1)]]),
    ],
    ids=[
        "one node",
        "nodes and switches",
        "no efficiency",
        "reversed",
        "readings out of order",
        "no stop",
        "switch without efficiency",
        "reading after the stop",
        "reading before the start",
        "two starts",
        "two stops and efficiencies",
        "reading at the start",
        "measured switch",
        "efficiency above 1",
        "two estimates",
    ],
)
def test_equal_to_the_official_value(
    log: Path, nodes: Sequence[Sequence[Event]], switches: Sequence[Sequence[Event]]
) -> None:
    for kind, logs in (("node", nodes), ("sw", switches)):
        for number, events in enumerate(logs):
            write(folder_of(log) / f"{kind}_{number}.txt", events)
    assert read(log).joules(SECONDS) == pytest.approx(official(log), rel=1e-12)


def test_random_logs_are_equal_to_the_official_value(log: Path) -> None:
    generator = random.Random(23)
    for _ in range(20):
        for number in range(generator.randint(1, 4)):
            events = [(generator.randint(0, 90_000), "power_reading", generator.uniform(0, 1e4)) for _ in range(50)]
            events += [(0, "power_measurement_start", None), (generator.randint(50_000, 99_999), *NODE[-1][1:])]
            generator.shuffle(events)
            write(folder_of(log) / f"node_{number}.txt", events)
        assert read(log).joules(SECONDS) == pytest.approx(official(log), rel=1e-12)


def test_damaged_lines_are_left_out_as_officially_and_noted(log: Path) -> None:
    write(folder_of(log) / "node_0.txt", NODE, tail=':::MLLOG {"time_ms": 1\nnoise\n')
    power_of_run = read(log)
    assert power_of_run.joules(SECONDS) == pytest.approx(official(log), rel=1e-12)
    (problem,) = power_of_run.problems
    assert problem.startswith("power/result_0/node_0.txt line 7 is not valid JSON")


def test_metadata_of_published_logs_is_no_problem(log: Path) -> None:
    path = folder_of(log) / "node_0.txt"
    path.write_text(path.read_text(encoding="utf-8").replace('"metadata": {}', '"metadata": ""'), encoding="utf-8")
    assert read(log).problems == () and read(log).watts is not None


def without(key: str) -> list[Event]:
    return [one for one in NODE if one[1] != key]


def with_value(key: str, value: Any) -> list[Event]:
    return [(ms, name, value if name == key else old) for ms, name, old in NODE]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "has no power_measurement_start"),
        (without("power_measurement_start"), "has no power_measurement_start"),
        (without("power_reading"), "has no power_reading in the measurement"),
        ([*NODE[:-1], (0, "power_measurement_stop", None)], "power_measurement_stop not after"),
        ([NODE[0], (0, "power_reading", 5)], "at one time"),
        (with_value("power_reading", "8 kW"), "has power_reading '8 kW' in line 3, not a number from 0"),
        (with_value("power_reading", -1), "has power_reading -1 in line 3"),
        (with_value("power_reading", True), "has power_reading True"),
        (with_value("power_reading", None), "has power_reading None"),
        (with_value("power_reading", [5000]), "has power_reading [5000]"),
        (with_value("power_reading", float("nan")), "has power_reading None"),
        (with_value("power_reading", 1e308), "has power_reading 1e+308"),
        (with_value("conversion_eff", "94%"), "has conversion_eff '94%'"),
    ],
)
def test_the_energy_is_unknown_and_the_reason_is_given(log: Path, events: Sequence[Event], words: str) -> None:
    write(folder_of(log) / "node_0.txt", events)
    power_of_run = read(log)
    assert power_of_run.watts is None and power_of_run.joules(SECONDS) is None
    assert power_of_run.problems[-1].startswith("power/result_0/node_0.txt has ") and words in power_of_run.problems[-1]


def test_a_switch_with_an_estimate_that_is_no_number(log: Path) -> None:
    write(folder_of(log) / "sw_0.txt", [(0, "interconnect_power_est", "16 kW")])
    assert read(log).watts is None and "sw_0.txt has interconnect_power_est '16 kW'" in read(log).problems[0]


def test_a_measured_switch_is_noted(log: Path) -> None:
    write(folder_of(log) / "sw_0.txt", NODE)
    assert read(log).watts is not None and "sw_0.txt has no interconnect_power_est" in read(log).problems[0]


def _remove(log: Path) -> None:
    (folder_of(log) / "node_0.txt").unlink()


def _no_folder(log: Path) -> None:
    _remove(log)
    folder_of(log).rmdir()


def _file_as_folder(log: Path) -> None:
    _no_folder(log)
    folder_of(log).write_text("", encoding="utf-8")


def _linked(log: Path) -> None:
    target = folder_of(log) / "node_0.txt"
    target.rename(log.parent / "elsewhere.txt")
    target.symlink_to(log.parent / "elsewhere.txt")


def _linked_folder(log: Path) -> None:
    folder_of(log).rename(log.parent / "elsewhere")
    folder_of(log).symlink_to(log.parent / "elsewhere")


def _linked_power(log: Path) -> None:
    (log.parent / "power").rename(log.parent / "elsewhere")
    (log.parent / "power").symlink_to(log.parent / "elsewhere")


def _pipe(log: Path) -> None:
    os.mkfifo(folder_of(log) / "node_1.txt")


def _folder_as_log(log: Path) -> None:
    (folder_of(log) / "sw_0.txt").mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_remove, "power/result_0 has no node_*.txt"),
        (_no_folder, "has no power/result_0"),
        (_file_as_folder, "power/result_0 is not a folder"),
        (_linked, "power/result_0/node_0.txt is not a regular file"),
        (_linked_folder, "power/result_0 is not a folder"),
        (_linked_power, "power/result_0 is not a folder"),
        (_pipe, "power/result_0/node_1.txt is not a regular file"),
        (_folder_as_log, "power/result_0/sw_0.txt is not a regular file"),
    ],
)
def test_folders_that_cannot_be_used(log: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(log)
    assert list_power_folder(log).problem == words
    assert read(log) == RunPower("", None, (words,))


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [
        ("MAX_ENTRIES", 0, "has more than 0 files"),
        ("MAX_LOG_BYTES", 100, "is too large"),
        ("MAX_RUN_BYTES", 100, "is too large"),
        ("MAX_EVENTS", 5, "has more than 5 events"),
    ],
)
def test_sizes_are_bounded(log: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, words: str) -> None:
    assert read(log).watts is not None
    monkeypatch.setattr(power, bound, value)
    assert read(log).watts is None and words in read(log).problems[0]


def test_a_log_that_vanishes_is_a_problem(log: Path) -> None:
    folder = list_power_folder(log)
    _remove(log)
    assert read_power(folder, "").watts is None and "node_0.txt cannot be read" in read_power(folder, "").problems[0]


def test_names_with_control_characters_are_escaped(log: Path) -> None:
    write(folder_of(log) / "node_\x1b[31m.txt", [])
    (problem,) = read(log).problems
    assert problem.isprintable()


def test_the_digest_depends_on_names_and_contents(log: Path) -> None:
    first = digest_of(list_power_folder(log))
    (folder_of(log) / "notes.txt").write_text("", encoding="utf-8")
    assert digest_of(list_power_folder(log)) == first
    (folder_of(log) / "node_0.txt").rename(folder_of(log) / "node_1.txt")
    second = digest_of(list_power_folder(log))
    write(folder_of(log) / "node_1.txt", NODE[:-1])
    assert len({first, second, digest_of(list_power_folder(log))}) == 3


def test_power_is_rebuilt_from_json() -> None:
    for one in (RunPower("d", 8000.5, ("a", "b")), RunPower("d", None, ())):
        assert power_from_json(json.loads(json.dumps(one._asdict()))) == one
