"""Runs of a system beside the published ones that it reproduces: the sentence, and where the time went."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.comparison.load import RunCache, load_results
from podium.comparison.published import PublishedComparison, as_json, compare_published, print_published
from podium.core.errors import UsageError
from tests.podium.comparison.conftest import write_system as write_result
from tests.podium.comparison.own import RunFactory, read

SAMPLES = 448 * 4000


@pytest.fixture
def compare(tmp_path: Path, write_system: Callable[..., Path]) -> Callable[..., PublishedComparison]:
    """Compare own runs of these times with published runs of others; with `logs`, also with their logs."""

    def compare(
        own: list[float], published: list[float], samples: list[float] | None = None, logs: Path | None = None
    ) -> PublishedComparison:
        runs = RunFactory(tmp_path / "work", previous_layout=False)
        runs.make(own)
        reproduces = {"round": "v2.0", "submitter": "Org Inc.", "system": "SYS", "seconds": published}
        reproduces["samples"] = samples or [SAMPLES] * len(published)
        system = write_system({"reproduces": reproduces})
        results = load_results([logs], RunCache(None)).results if logs is not None else ()
        return compare_published(str(system), results, read, runs.folders)

    return compare


def test_equal_times_do_not_differ(compare: Callable[..., PublishedComparison]) -> None:
    found = compare([1000.0, 1010.0, 1020.0], [1001.0, 1011.0, 1019.0, 1006.0])
    assert "Time-to-train does not differ from that published: 1,010.00 s (n = 3)" in found.verdict
    assert "with 95% confidence, p = " in found.verdict and "would mostly be detected" in found.verdict
    assert "Samples to target is that published: 1,792,000 (n = 3)" in found.verdict
    assert as_json(found)["seconds"]["same"] is True
    assert "1 of your" not in " ".join(found.notes) and "3 of your runs against 4" in " ".join(found.notes)


def test_a_difference_is_split_into_samples_and_speed(compare: Callable[..., PublishedComparison]) -> None:
    found = compare([1200.0, 1210.0, 1190.0], [1000.0, 1001.0, 999.0], samples=[SAMPLES / 2] * 3)
    assert found.verdict.startswith("Time-to-train is not that published")
    by_samples, by_speed = found.parts
    assert by_samples.seconds > 0 > by_speed.seconds
    assert by_samples.seconds + by_speed.seconds == pytest.approx(200.0)
    assert "Of the difference of +200.00 s" in found.verdict
    assert any("name the published logs as PATH" in note for note in found.notes)


@pytest.mark.parametrize("width", [30, 60, 80])
def test_no_part_of_the_time_is_cut_at_any_width(compare: Callable[..., PublishedComparison], width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    print_published(console, compare([120_000.0, 121_000.0], [100_000.0, 100_100.0]))
    shown = console.export_text()
    assert all(f" {text} " in shown for text in ("120,500.00 s", "100,050.00 s", "+20,450.00 s"))


def test_published_logs_show_where_the_time_went(compare: Callable[..., PublishedComparison], tmp_path: Path) -> None:
    logs = write_result(tmp_path / "training_results_v2.0" / "ORG", first=600.0)
    published = [600.0 + number for number in range(10)]
    found = compare([1200.0, 1210.0, 1190.0], published, logs=logs)
    parts = {part.name: part for part in found.parts}
    assert list(parts) == ["by other samples to target", "in the speed of steps", "in evaluation", "in start-up"]
    assert sum(part.seconds for part in found.parts) == pytest.approx(1200.0 - 604.5)
    assert parts["in evaluation"].published == pytest.approx(0.4) == parts["in evaluation"].own
    assert parts["by other samples to target"].seconds == pytest.approx(0.0)
    assert parts["in the speed of steps"].seconds == pytest.approx(595.5, abs=1.0)


def test_one_run_is_compared_without_a_test(compare: Callable[..., PublishedComparison]) -> None:
    found = compare([1200.0], [1000.0, 1001.0])
    assert "Whether time-to-train is that published cannot be tested" in found.verdict
    assert as_json(found)["seconds"]["same"] is None and "a test needs two runs on either side" in found.verdict


def test_samples_that_no_log_states_are_not_tested(tmp_path: Path, write_system: Callable[..., Path]) -> None:
    runs = RunFactory(tmp_path / "work", previous_layout=False)
    runs.make([1000.0, 1001.0])
    reproduces = {"round": "v2.0", "submitter": "O", "system": "S", "seconds": [1000.0, 1002.0]}
    found = compare_published(str(write_system({"reproduces": reproduces})), (), read, runs.folders)
    assert "Samples to target cannot be compared: the logs state none" in found.verdict
    assert "MLPerf's target (of v2.0 O S)." in found.verdict


def test_runs_with_other_settings_are_left_out(tmp_path: Path, write_system: Callable[..., Path]) -> None:
    runs = RunFactory(tmp_path / "work", previous_layout=False)
    runs.make([500.0, 501.0], recipe="packed")
    runs.make([1000.0, 1001.0])
    reproduces = {"round": "v2.0", "submitter": "O", "system": "S", "seconds": [1000.0, 1002.0], "samples": []}
    found = compare_published(str(write_system({"reproduces": reproduces})), (), read, runs.folders)
    assert found.seconds[0].values == (1000.0, 1001.0)
    assert "2 runs with other settings than the newest are left out" in found.notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "reproduces is missing, the published result to compare with; write a system with `podium systems new"),
        ({"reproduces": {"round": "v2.0", "submitter": "O", "system": "S"}}, "has no runs of mine; start some"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, write_system: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        compare_published(str(write_system(changes)), (), read, RunFactory(tmp_path / "work").folders)
    assert message in str(refused.value)


def test_logs_of_another_result_are_refused(compare: Callable[..., PublishedComparison], tmp_path: Path) -> None:
    logs = write_result(tmp_path / "training_results_v2.0" / "ORG", system="OTHER")
    with pytest.raises(UsageError, match=r"has no result v2.0 Org Inc. SYS, which the system reproduces; it has"):
        compare([1000.0, 1001.0], [1000.0, 1001.0], logs=logs)


@pytest.mark.parametrize(
    ("own", "wanted", "message"),
    [
        ({"size": "tiny"}, {}, "not the same task: size tiny against large"),
        ({"target_accuracy": 0.01}, {}, "not the same task: target accuracy 0.01 against 0.72"),
        ({"target_accuracy": None}, {}, "target accuracy none against 0.72"),
        ({"target_accuracy": 0.72}, {"round": "v0.7"}, "target accuracy 0.72 against 0.712"),
        ({"size": "large"}, {"size": "tiny"}, "size large against tiny"),
    ],
)
def test_another_task_is_not_compared(
    tmp_path: Path, write_system: Callable[..., Path], own: dict[str, Any], wanted: dict[str, Any], message: str
) -> None:
    """Runs of the tiny BERT to an accuracy of 0.01 were compared with BERT-large, with a p-value."""
    runs = RunFactory(tmp_path / "work", previous_layout=False)
    runs.make([1000.0, 1001.0], **own)
    reproduces = {"round": "v2.0", "submitter": "O", "system": "S", "seconds": [1000.0, 1002.0]} | wanted
    with pytest.raises(UsageError) as refused:
        compare_published(str(write_system({"reproduces": reproduces})), (), read, runs.folders)
    assert message in str(refused.value)


def test_other_batches_and_accelerators_are_named_first(tmp_path: Path, write_system: Callable[..., Path]) -> None:
    runs = RunFactory(tmp_path / "work", previous_layout=False)
    launch = {"launcher": "torchrun", "nodes": 1, "processes_per_node": 4, "device": "cuda"}
    runs.make([1000.0, 1001.0], launch=launch, description={"accelerator_model_name": "NVIDIA A100-SXM4-80GB"})
    reproduces = {"round": "v2.0", "submitter": "O", "system": "S", "seconds": [1000.0, 1002.0], "accelerators": 8}
    reproduces |= {"global_batch_size": 768, "accelerator": "NVIDIA H200-SXM5-141GB"}
    found = compare_published(str(write_system({"reproduces": reproduces})), (), read, runs.folders)
    assert found.verdict.startswith(
        "Not the same task: global batch size 448 against 768; 4 accelerators against 8; "
        "accelerator NVIDIA A100-SXM4-80GB against NVIDIA H200-SXM5-141GB, v2.0 O S second. Time-to-train"
    )
