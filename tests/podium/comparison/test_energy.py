"""The energy of results: equal to the official summarizer's, unknown where power logs are missing, and cached."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlperf_logging.result_summarizer import result_summarizer

from podium.comparison.load import RunCache, _power_key, load_results
from podium.comparison.result import Result
from podium.comparison.table import official_fields
from podium.mllog.power import PowerFolder, RunPower, list_power_folder, read_power
from tests.podium.comparison.conftest import event, log_text, write_system

SECONDS = (1003.0, 1000.0, 1009.0, 1001.0, 1004.0, 1008.0, 1002.0, 1006.0, 1005.0, 1007.0)


def power_text(watts: float) -> str:
    """Return a node's power log of three minutes."""
    lines = [event("power_measurement_start", ms=-500), event("conversion_eff", 0.95)]
    lines += [event("power_reading", watts + 10 * n, n * 1000.0) for n in range(180)]
    return "".join([*lines, event("power_measurement_stop", ms=180_000)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of ten runs, whose power does not depend on their time; two nodes and a switch each."""
    path = write_system(tmp_path / "ORG")
    for number, seconds in enumerate(SECONDS):
        (path / f"result_{number}.txt").write_text(log_text(seconds), encoding="utf-8")
        logs = path / "power" / f"result_{number}"
        logs.mkdir(parents=True)
        for node in range(2):
            text = power_text(5000.0 + 700 * (number % 3) + 20 * number + node)
            (logs / f"node_{node}.txt").write_text(text, encoding="utf-8")
        (logs / "sw_0.txt").write_text(event("interconnect_power_est", 480), encoding="utf-8")
    return path


def load_result(folder: Path, cache: RunCache | None = None) -> Result:
    (result,) = load_results([folder.parents[2]], cache or RunCache(None)).results
    return result


def official(folder: Path, failed: tuple[int, ...] = ()) -> float:
    """Return the energy by the official functions; `failed` are the numbers of the runs that did not converge."""
    numbers = [number for number in range(10) if number not in failed]
    energies = [
        result_summarizer._compute_total_power(
            str(folder), str(folder / f"result_{number}.txt"), SECONDS[number] * 1e3, "5.1.0"
        )
        for number in numbers
    ]
    fastest_first = sorted(range(len(numbers)), key=lambda index: SECONDS[numbers[index]])
    mean = result_summarizer._index_olympic_average(energies, fastest_first, len(failed), 1)
    assert isinstance(mean, float)
    return mean * result_summarizer._get_scaling_factor(str(folder))


def test_equal_to_the_official_value(folder: Path) -> None:
    result = load_result(folder)
    assert result.energy_joules == pytest.approx(official(folder), rel=1e-12)
    assert official_fields(result)["Energy"] == result.energy_joules
    assert not [one for one in result.anomalies if "power" in one]


def test_scaled_as_the_score(folder: Path) -> None:
    unscaled = load_result(folder).energy_joules
    (folder / "scaling.json").write_text(json.dumps({"scaling_factor": 1.125}), encoding="utf-8")
    found = load_result(folder).energy_joules
    assert found == pytest.approx(official(folder), rel=1e-12)
    assert unscaled is not None and found == pytest.approx(1.125 * unscaled, rel=1e-12)


def test_a_run_that_did_not_converge_is_the_slowest_and_needs_no_power(folder: Path) -> None:
    log = folder / "result_4.txt"
    log.write_text(log.read_text(encoding="utf-8").replace('"success"', '"aborted"'), encoding="utf-8")
    shutil.rmtree(folder / "power" / "result_4")
    assert load_result(folder).energy_joules == pytest.approx(official(folder, failed=(4,)), rel=1e-12)


def test_without_a_score_it_is_the_mean_of_the_runs_that_converged(folder: Path) -> None:
    for number in range(2, 10):
        (folder / f"result_{number}.txt").unlink()
    joules = [official_run(folder, number) for number in range(2)]
    assert load_result(folder).energy_joules == pytest.approx(sum(joules) / 2, rel=1e-12)


def official_run(folder: Path, number: int) -> float:
    log = str(folder / f"result_{number}.txt")
    found = result_summarizer._compute_total_power(str(folder), log, SECONDS[number] * 1e3, "5.1.0")
    assert isinstance(found, float)
    return found


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder / "power" / "result_2")


def _dropped_run(folder: Path) -> None:
    shutil.rmtree(folder / "power" / "result_1")  # the fastest


def _empty_log(folder: Path) -> None:
    (folder / "power" / "result_2" / "node_1.txt").write_text("", encoding="utf-8")


def _no_logs(folder: Path) -> None:
    for path in (folder / "power").iterdir():
        shutil.rmtree(path)


def _file(folder: Path) -> None:
    shutil.rmtree(folder / "power")
    (folder / "power").write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_folder, "the power of 1 run(s) is not known: has no power/result_2"),
        (_dropped_run, "the power of 1 run(s) is not known: has no power/result_1"),
        (_empty_log, "power/result_2/node_1.txt has no power_measurement_start"),
        (_no_logs, "the power of 10 run(s) is not known: has no power/result_0"),
        (_file, "the power of 10 run(s) is not known: has no power/result_0"),
    ],
)
def test_unknown_with_a_reason(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    result = load_result(folder)
    assert result.energy_joules is None and official_fields(result)["Energy"] is None
    assert len([one for one in result.anomalies if words in one]) == 1


def test_results_without_power_logs_have_neither_energy_nor_anomaly(folder: Path) -> None:
    shutil.rmtree(folder / "power")
    result = load_result(folder)
    assert result.energy_joules is None and not [one for one in result.anomalies if "power" in one]


def test_power_logs_are_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_result(folder, RunCache(tmp_path / "cache"))
    read = list[str]()

    def recorded(logs: object, digest: str) -> RunPower:
        read.append(digest)
        return RunPower(digest, 1000.0, ())

    monkeypatch.setattr("podium.comparison.load.read_power", recorded)
    assert load_result(folder, RunCache(tmp_path / "cache")) == first and read == []
    (folder / "power" / "result_0" / "node_1.txt").write_text(power_text(1.0), encoding="utf-8")
    assert load_result(folder, RunCache(tmp_path / "cache")) != first and len(read) == 1


def test_logs_that_are_written_to_meanwhile_are_not_cached(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, before = RunCache(tmp_path / "cache"), _digests(folder)

    def changed_while_read(logs: PowerFolder, digest: str) -> RunPower:
        if logs.path.name == "result_3":
            (logs.path / "node_0.txt").write_text(power_text(1.0), encoding="utf-8")
        return read_power(logs, digest)

    monkeypatch.setattr("podium.comparison.load.read_power", changed_while_read)
    load_result(folder, cache)
    assert len(cache.get_power(before)) == 9


def test_damaged_rows_of_the_cache_are_read_again(folder: Path, tmp_path: Path) -> None:
    cache = RunCache(tmp_path / "cache")
    first = load_result(folder, cache)
    digests = [one.digest for one in cache.get_power(_digests(folder)).values()]
    assert len(digests) == 10
    with cache._open() as database:
        for digest, text in zip(digests, ("[]", "{}", '{"digest": "other", "watts": 1, "problems": []}'), strict=False):
            database.execute("UPDATE runs SET run = ? WHERE digest = ?", [text, digest])
    assert len(cache.get_power(digests)) == 7
    assert load_result(folder, cache) == first


def _digests(folder: Path) -> list[str]:
    return [_power_key(list_power_folder(log)) for log in folder.glob("result_*.txt")]
