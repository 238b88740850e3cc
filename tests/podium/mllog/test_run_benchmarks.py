"""The table of benchmarks, and logs of benchmarks other than BERT."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from podium.mllog.benchmarks import benchmarks, find_benchmark, published_ms, round_at, round_number, rounds
from podium.mllog.read import read_log
from podium.mllog.run import Run
from tests.podium.comparison.conftest import START, event

MARCH_2024 = datetime(2024, 3, 1, tzinfo=UTC).timestamp() * 1e3 - START  # ms after START; before v4.0


def read_evaluations(
    folder: Path,
    benchmark: str | None,
    evaluations: Iterable[tuple[float, Any, dict[str, Any]]],
    after_ms: float = 0.0,
    **values: Any,
) -> Run:
    """Read a log of 100 s with evaluations of (seconds after its start, value, metadata)."""
    submission = {"submission_benchmark": benchmark, "submission_division": "closed", "global_batch_size": 32, **values}
    lines = [event(key, value, after_ms - 1_000) for key, value in submission.items()]
    lines.append(event("run_start", ms=after_ms))
    lines += [event("eval_accuracy", value, after_ms + 1e3 * at, **metadata) for at, value, metadata in evaluations]
    lines.append(event("run_stop", ms=after_ms + 100_000, status="success"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result_0.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return read_log(path).run("digest")


def test_every_benchmark_is_complete() -> None:
    for name, one in benchmarks().items():
        assert one.name == name and one.title and one.sample and one.sources, name
        assert 0 < 2 * one.dropped < one.runs, name
        assert set(one.rounds) <= set(rounds()) and list(one.rounds) == sorted(one.rounds, key=round_number), name
        for of_round in one.targets.values():
            assert all(target.reached(target.value) or target.more_than is not None for target in of_round), name


@pytest.mark.parametrize(
    ("name", "runs", "dropped", "target"),
    [
        ("bert", 10, 1, "masked-LM accuracy ≥ 0.72"),
        ("unet3d", 40, 4, "mean Dice score ≥ 0.908"),
        ("retinanet", 5, 1, "mAP ≥ 0.34"),
        ("llama31_405b", 3, 1, "log perplexity ≤ 5.6"),
    ],
)
def test_runs_and_targets(name: str, runs: int, dropped: int, target: str) -> None:
    found = find_benchmark(name)
    assert found is not None and (found.runs, found.dropped) == (runs, dropped)
    assert [str(one) for one in found.targets_in(None)] == [target]


def test_targets_and_units_change_with_the_round() -> None:
    ssd, unet3d = find_benchmark("ssd"), find_benchmark("unet3d")
    assert ssd is not None and unet3d is not None
    assert [ssd.targets_in(name)[0].value for name in ("v0.5", "v1.1", "v2.0", "v4.1")] == [0.23, 0.23, 0.34, 0.34]
    units = [unet3d.progress_in(name) for name in ("v3.0", "v3.1", None)]
    assert [None if one is None else one.samples for one in units] == [168, 1, 1]
    bert = find_benchmark("bert")
    assert bert is not None
    assert [bert.targets_in("v0.7", batch)[0].value for batch in (None, 8191, 8192)] == [0.712, 0.712, 0.706]
    assert find_benchmark("mask") is find_benchmark("maskrcnn") is not None and find_benchmark("other") is None


def test_rounds_by_date() -> None:
    published = published_ms("v5.0")
    assert published is not None
    assert [round_at(published + ms) for ms in (-1, 0)] == ["v5.0", "v5.1"]
    assert round_at(4e12) == "v6.1" and round_at(None) is None
    assert published_ms("v6.1") is None and published_ms("v9.9") is None


def test_of_a_loss_lower_is_better(tmp_path: Path) -> None:
    points = [(at, loss, {"samples_count": 1000 * at}) for at, loss in ((25, 4.0), (50, 3.31), (75, 3.3), (99, 3.2))]
    run = read_evaluations(tmp_path, "llama31_8b", points)
    assert (run.benchmark, run.converged, run.samples, run.trained, run.progress) == (
        "llama31_8b",
        True,
        75_000,
        99_000,
        99_000,
    )
    assert [point.passes for point in run.points] == [False, False, True, True] and run.rate == 990.0
    above = read_evaluations(tmp_path, "llama31_8b", points[:2])
    assert not above.converged and above.samples is None
    assert above.rejection_reason == "has status success, but no evaluation reaches log perplexity ≤ 3.3"
    zero = read_evaluations(tmp_path, "llama31_8b", [(50, 0.0, {"samples_count": 5})])
    assert not zero.converged, "a loss of 0 is no loss"


def test_an_epoch_has_the_samples_of_the_table(tmp_path: Path) -> None:
    run = read_evaluations(tmp_path, "retinanet", [(50, 0.2, {"epoch_num": 1}), (90, 0.35, {"epoch_num": 2})])
    assert (run.samples, run.progress) == (2 * 1_170_301, 2)
    unknown_size = read_evaluations(tmp_path, "rnnt", [(90, 0.05, {"epoch_num": 60})])
    assert unknown_size.converged and (unknown_size.samples, unknown_size.progress) == (None, 60)


def both(at: float, fid: float, clip: float, **progress: Any) -> list[tuple[float, Any, dict[str, Any]]]:
    return [(at, fid, {"metric": "FID", **progress}), (at, clip, {"metric": "CLIP", **progress})]


def test_all_metrics_must_reach_their_targets_at_the_same_progress(tmp_path: Path) -> None:
    """Checkpoints are evaluated after the run, in any order; the earliest that passes counts."""
    passing, late = both(200, 80, 0.16, samples_count=2048), both(210, 70, 0.2, samples_count=4096)
    too_high, too_low = both(230, 95, 0.2, samples_count=512), both(220, 50, 0.1, samples_count=1024)
    run = read_evaluations(tmp_path, "stable_diffusion", [*late, *passing, *too_low, *too_high], MARCH_2024)
    assert [(one.samples, one.accuracy, one.passes) for one in run.evaluations] == [
        (4096, 70, True),
        (2048, 80, True),
        (1024, 50, False),
        (512, 95, False),
    ]
    assert run.converged and (run.trained, run.progress, run.rate) == (2048, 2048, 20.48)
    assert run.steady_rate is None and run.closing_seconds is None, "times of evaluations are not of the run"
    apart = read_evaluations(tmp_path, "stable_diffusion", [*too_low, too_high[1]], MARCH_2024)
    assert not apart.converged
    only_fid = read_evaluations(tmp_path, "stable_diffusion", [passing[0]], MARCH_2024)
    assert only_fid.evaluations == ()


def test_steps_are_of_the_global_batch(tmp_path: Path) -> None:
    run = read_evaluations(tmp_path, "stable_diffusion", both(50, 80, 0.16, step_num=1000))
    assert (run.trained, run.progress) == (32_000, 1000)


def test_samples_to_the_target_are_those_of_the_earliest_checkpoint(tmp_path: Path) -> None:
    late, early = both(200, 70, 0.2, samples_count=4096), both(210, 80, 0.16, samples_count=2048)
    run = read_evaluations(tmp_path, "stable_diffusion", [*late, *early], MARCH_2024)
    assert run.samples == run.trained == 2048


def test_a_value_with_several_metrics(tmp_path: Path) -> None:
    values = [{"BBOX": 0.38, "SEGM": 0.3}, {"BBOX": 0.38, "SEGM": 0.34}, {"BBOX": "x"}, 0.9, {}]
    points = [(10 * n, value, {"epoch_num": n}) for n, value in enumerate(values, 1)]
    run = read_evaluations(tmp_path, "maskrcnn", points)
    assert [(one.accuracy, one.passes) for one in run.evaluations] == [(0.38, False), (0.38, True)]
    assert run.converged and run.samples is None and [one.metric for one in run.targets] == ["box AP", "mask AP"]


def test_an_unknown_benchmark_is_read_without_a_target(tmp_path: Path) -> None:
    run = read_evaluations(tmp_path, "chess_2030", [(50, 1500.0, {"samples_count": 5000})])
    assert (run.benchmark, run.rules, run.targets, run.seconds, run.converged) == ("chess_2030", None, (), 100.0, True)
    assert run.samples is None and run.trained == 5000
    assert [point.accuracy for point in run.points] == [1500.0]


def test_the_folder_names_the_benchmark_of_a_log_that_does_not(tmp_path: Path) -> None:
    points = [(50, 3.0, {"samples_count": 5000})]
    assert read_evaluations(tmp_path / "llama31_8b", None, points).benchmark == "llama31_8b"
    assert read_evaluations(tmp_path / "mask", None, []).benchmark == "maskrcnn"
    assert read_evaluations(tmp_path / "anything", None, points).benchmark is None
    assert read_evaluations(tmp_path / "resnet", "llama31_8b", points).benchmark == "llama31_8b", "the log counts"
