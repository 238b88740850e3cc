"""Throughput between evaluations, from the run's result log."""

import json
from pathlib import Path

import pytest

from podium.core.errors import Interrupted
from podium.mllog.run import RunLog
from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.rates import Rate
from tests.podium.report.conftest import SETTINGS, MakeRun, summary

LATER = ["2026-11-21_10-30-00_1", "2026-11-21_11-00-00_1"]


def log(seed: int = 7, accuracies: tuple[float, ...] = (0.4, 0.73)) -> str:
    """Return a log with blocks of 320 samples that take two and four seconds."""
    events: list[tuple[int, str, object, dict[str, int]]] = [(0, "seed", seed, {})]
    for number, accuracy in enumerate(accuracies):
        start, samples = 1_000 + 10_000 * number, 320 * (number + 1)
        stop = start + 2_000 * (number + 1)
        events += [
            (start, "block_start", None, {"first_epoch_num": samples - 320, "epoch_count": 320}),
            (stop, "block_stop", None, {"first_epoch_num": samples - 320, "epoch_num": samples}),
            (stop + 500, "eval_accuracy", accuracy, {"epoch_num": samples}),
        ]
    return "".join(
        ":::MLLOG "
        + json.dumps({"time_ms": time, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": metadata})
        + "\n"
        for time, key, value, metadata in events
    )


def rates(folder: Path) -> tuple[Rate, ...]:
    return read_sets(find_runs([folder]))[0].runs[0].rates


RATES = (Rate(320, 160.0), Rate(640, 80.0))


def place(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_log_of_a_run_in_progress_is_in_its_folder(make_run: MakeRun) -> None:
    assert rates(make_run(result__partial__txt=log(accuracies=(0.4,)))) == RATES[:1]
    assert rates(make_run(1, result__partial__txt=log(seed=8))) == ()


def test_log_among_results_is_matched_by_seed_and_accuracies(make_run: MakeRun, tmp_path: Path) -> None:
    folder, results = make_run(totals=summary()), tmp_path / "results/mine/bert"
    assert rates(folder) == ()
    place(results / "result_0.txt", log(seed=8))
    place(results / "result_1.txt", log(accuracies=(0.4, 0.74)))
    assert rates(folder) == ()
    place(results / "result_5.txt", log())
    assert rates(folder) == RATES


def test_log_in_the_folder_of_its_set(make_run: MakeRun) -> None:
    folder = make_run(totals=summary())
    place(folder.parent / "result_0.txt", log())
    assert rates(folder) == RATES


def test_log_moved_by_a_later_set(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(totals=summary())
    (tmp_path / "runs/mine" / LATER[0]).mkdir()  # a set without a result moves none
    place(tmp_path / "runs/mine" / LATER[1] / "replaced_results/result_0.txt", log())
    assert rates(folder) == RATES


def test_results_moved_by_earlier_sets_are_not_searched(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(totals=summary())
    for hour in range(5):
        place(tmp_path / "runs/mine" / f"2026-11-20_0{hour}-00-00/replaced_results/result_0.txt", log(seed=hour))
    place(tmp_path / "runs/mine" / LATER[0] / "replaced_results/result_0.txt", log())
    assert rates(folder) == RATES


def test_restarted_run_has_no_rates(make_run: MakeRun, tmp_path: Path) -> None:
    place(tmp_path / "results/mine/bert/result_0.txt", log())
    assert rates(make_run(0, totals=summary())) == RATES
    assert rates(make_run(1, totals=summary(), restarts__jsonl='{"samples": 320}\n')) == ()


@pytest.mark.parametrize("settings", [None, {**SETTINGS, "seed": "seven"}, {**SETTINGS, "seed": None}])
def test_run_without_a_seed_has_no_rates(make_run: MakeRun, tmp_path: Path, settings: dict[str, object] | None) -> None:
    place(tmp_path / "results/mine/bert/result_0.txt", log())
    assert rates(make_run(settings=settings)) == ()


def test_interruption_while_reading_a_log_ends_the_report(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> RunLog:
        raise Interrupted("interrupted")

    place(tmp_path / "results/mine/bert/result_0.txt", log())
    folder = make_run(totals=summary())
    monkeypatch.setattr("podium.report.rates.read_log", interrupted)
    with pytest.raises(Interrupted):
        rates(folder)


def test_damaged_logs_are_skipped(make_run: MakeRun, tmp_path: Path) -> None:
    results = tmp_path / "results/mine/bert"
    (results / "result_0.txt").mkdir(parents=True)
    place(results / "result_1.txt", "\0" * 100)
    backwards = log().replace('"first_epoch_num": 320', '"first_epoch_num": 9000')
    place(results / "result_2.txt", backwards)
    assert rates(make_run()) == RATES[:1]
