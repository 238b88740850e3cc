"""The summary of runs, as a table and as JSON."""

import io
import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from rich.console import Console

from benchmarks.bert.rules import RULESETS
from podium.config.schema import RunConfig
from podium.mllog.score import score_seconds
from podium.run.collect import FinishedRun
from podium.run.summary import as_json, print_table

KEYS = {
    "result_file",
    "reached_target",
    "seconds",
    "samples",
    "sequences_per_second",
    "useful_tflops",
    "share_of_peak",
    "padding_share",
    "max_over_mean_tokens",
    "phases_ms",
}


@pytest.fixture
def finished(summary: dict[str, Any]) -> Any:
    def make(number: int = 0, compliance: dict[str, str] | None = None, **changes: Any) -> FinishedRun:
        return FinishedRun(
            result=Path(f"/home/username/podium/results/laptop/bert/result_{number}.txt"),
            folder=Path(f"/home/username/podium/runs/laptop/2026-11-20_23-23-18_148667/run_{number}"),
            seed=2**31 - 1 - number,
            summary=summary | changes,
            compliance=dict.fromkeys(RULESETS, "") | (compliance or {}),
            target=0.72,
        )

    return make


def printed(config: RunConfig, runs: list[FinishedRun], width: int = 80) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=width), config, runs)
    return out.getvalue()


def test_json_of_one_run(finished: Any, summary: dict[str, Any]) -> None:
    found = json.loads(json.dumps(as_json([finished()])))
    assert set(found) >= KEYS
    assert found["result_file"].endswith("results/laptop/bert/result_0.txt")
    assert {key: found[key] for key in summary} == summary
    assert found["compliance"] == dict.fromkeys(RULESETS, True)
    assert found["seed"] == 2**31 - 1 and found["outcome"] == "succeeded"


def test_json_of_several_runs_has_means_and_each_run(finished: Any, summary: dict[str, Any]) -> None:
    runs = [
        finished(0, seconds=10.0, samples=100),
        finished(1, seconds=14.0, samples=300, phases_ms={**summary["phases_ms"], "forward": 50.7}),
    ]
    found = json.loads(json.dumps(as_json(runs)))
    assert set(found) >= KEYS
    assert (found["seconds"], found["samples"], found["reached_target"]) == (12.0, 200, True)
    assert found["phases_ms"]["forward"] == pytest.approx(49.2)
    assert found["runs"] == [as_json([run]) for run in runs]
    assert found["score_seconds"] is None
    assert as_json([runs[0], finished(1, reached_target=False)])["reached_target"] is False


def test_score_of_ten_runs_omits_the_fastest_and_the_slowest(finished: Any) -> None:
    seconds = [5.0, 1.0, 9.0, 3.0, 100.0, 2.0, 8.0, 4.0, 7.0, 6.0]
    score = mean([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    assert score_seconds(seconds) == score == 5.5
    assert as_json([finished(n, seconds=s) for n, s in enumerate(seconds)])["score_seconds"] == score


@pytest.mark.parametrize("count", [0, 1, 2, 9, 11])
def test_other_numbers_of_runs_have_no_score(count: int) -> None:
    assert score_seconds([1.0] * count) is None


def test_one_run_that_did_not_converge_is_the_slowest(finished: Any) -> None:
    runs = [finished(n, seconds=10.0 + n) for n in range(9)] + [finished(9, seconds=1.0, reached_target=False)]
    assert as_json(runs)["score_seconds"] == mean(11.0 + n for n in range(8))


def test_two_runs_that_did_not_converge_leave_no_score(finished: Any) -> None:
    runs = [finished(n, seconds=10.0 + n, reached_target=n > 1) for n in range(10)]
    assert as_json(runs)["score_seconds"] is None


@pytest.mark.parametrize("count", [1, 10])
def test_table_fits_80_columns(open_config: RunConfig, finished: Any, count: int) -> None:
    text = printed(open_config, [finished(n, seconds=1000.0 + n) for n in range(count)])
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "laptop, recipe indexed",
        "time-to-train",
        "of the matmul peak",
        "11.7% of 986 GFLOP/s bf16",
        "115.4 GFLOP/s",
        "0.8%",
        "1.0300",
        "0.7483 (target 0.72)",
        "data wait",
        "SUCCESS",
    ):
        assert expected in text
    shares = sum(float(line.rsplit(",", 1)[1].strip(" │┃%")) for line in text.splitlines() if "ms a step" in line)
    assert shares == pytest.approx(100, abs=0.3)
    if count == 10:
        assert "1004.50 s" in text
        assert "MLPerf score" in text
        assert "mean of 10 runs" in text


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_cut_off_in_80_columns(open_config: RunConfig, finished: Any, count: int) -> None:
    assert "…" not in printed(open_config, [finished(n, seconds=1000.0 + n) for n in range(count)])


def test_run_that_missed_its_target_has_its_outcome_in_the_table(open_config: RunConfig, finished: Any) -> None:
    assert "time-to-train" not in printed(open_config, [finished(reached_target=False)])
    text = printed(open_config, [finished(0), finished(1, reached_target=False)])
    assert "missed target" in text
    assert "succeeded" in text


def test_failed_ruleset_is_printed(open_config: RunConfig, finished: Any) -> None:
    text = printed(open_config, [finished(), finished(1, compliance={"2.0.0": "eval_accuracy is missing"})])
    assert "FAILED (2.0.0)" in text
    assert "result_1.txt fails ruleset 2.0.0:\neval_accuracy is missing" in text
    assert "result_0.txt fails" not in text


def test_output_of_the_checker_is_not_interpreted_as_markup(open_config: RunConfig, finished: Any) -> None:
    output = "CHECK for 'eval_accuracy' failed\nfailed test: v['value'] > 0\ncurrent context[s]={}\n[/b] [red]"
    text = printed(open_config, [finished(compliance={"2.0.0": output})])
    assert output in text
