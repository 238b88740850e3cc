"""`podium submit rcp`: what it reads, prints and refuses."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.rcp_checker import rcp_checker
from typer.testing import CliRunner

from podium.cli.main import app
from podium.core.errors import UsageError
from podium.mllog import rcp
from podium.submission.rcp_report import as_json, make_report

RUNS_OF_8B = "172032,172032,184320"


def line(key: str, value: Any, **metadata: Any) -> str:
    event = {"namespace": "", "time_ms": 1_700_000_000_000, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**event, "metadata": {"file": "train.py", "lineno": 1, **metadata}})


def run_lines(
    benchmark: str, batch_size: Any, progress: Sequence[dict[str, Any]], status: str = "success"
) -> Iterator[str]:
    yield line("submission_benchmark", benchmark)
    yield line("global_batch_size", batch_size)
    yield line("run_start", None)
    for metadata in progress:
        value = metadata.get("value", 0.9)
        yield line("eval_accuracy", value, **{key: one for key, one in metadata.items() if key != "value"})
    yield line("run_stop", None, status=status)
    yield line("eval_accuracy", 0.9, samples_count=1, epoch_num=1)  # after the run: counts for nothing


@pytest.fixture
def write_runs(tmp_path: Path) -> Callable[..., Path]:
    """Write the logs of one set, each from the arguments of `run_lines`, and return their folder."""

    def write(*runs: tuple[Any, ...]) -> Path:
        for number, arguments in enumerate(runs):
            text = "\n".join(run_lines(*arguments))
            (tmp_path / f"result_{number}.txt").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def counts(*values: int) -> list[dict[str, Any]]:
    return [{"samples_count": value} for value in values]


@pytest.mark.parametrize(
    ("benchmark", "ruleset", "batch_size", "progress", "expected"),
    [
        ("llama31_8b", "5.1.0", 32, counts(159_744, 172_032), 172_032),
        ("retinanet", "5.1.0", 256, [{"epoch_num": 3}, {"epoch_num": 4}], 4),
        ("rgat", "5.1.0", 16384, [{"epoch_num": 0.8000001}], 0.8),
        ("gpt3", "4.1.0", 1536, [{"epoch_num": 1_157_627_904}], 1_157_627_904),
        (
            "stable_diffusion",
            "5.0.0",
            512,
            [
                {"samples_count": count, "metric": metric, "value": value}
                for count, fid, clip in ((1_536_000, 95, 0.16), (2_048_000, 89, 0.16), (2_560_000, 88, 0.17))
                for metric, value in (("FID", fid), ("CLIP", clip))
            ],
            2_048_000,
        ),
    ],
)
def test_logs_are_read_as_the_official_checker_does(
    write_runs: Callable[..., Path], benchmark: str, ruleset: str, batch_size: int, progress: Any, expected: float
) -> None:
    folder = write_runs((benchmark, batch_size, progress), (benchmark, batch_size, progress, "aborted"))
    report = make_report([folder], None, None, None, ruleset)
    assert (report.reference.benchmark, report.batch_size) == (benchmark, batch_size)
    assert report.samples == (pytest.approx(expected, abs=1e-6), None)
    lines = [text for text in run_lines(benchmark, batch_size, progress) if '"time_ms"' in text][:-1]
    (folder / "before_stop.txt").write_text("\n".join(lines), encoding="utf-8")
    official = rcp_checker.read_submission_file(str(folder / "before_stop.txt"), ruleset, False)
    assert official[1:] == (expected, batch_size, benchmark)


def test_a_set_of_logs_has_the_official_verdict(write_runs: Callable[..., Path]) -> None:
    runs = [("llama31_8b", 32, counts(count)) for count in [172_032] * 8 + [184_320] * 2]
    report = make_report([write_runs(*runs)], None, None, None, "5.1.0")
    verdict = rcp.require_reference("llama31_8b", "5.1.0").verdict(32, [172_032] * 8 + [184_320] * 2)
    assert report.verdict == verdict and not report.accepted
    assert as_json(report)["verdict"]["message"] == "RCP found"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--benchmark is missing"),
        ({"benchmark": "x"}, "'x' has no reference points under any ruleset; those that have are bert, deepseekv3"),
        ({"benchmark": "bert", "ruleset": "6.1.0"}, "no reference points under ruleset 6.1.0; .* flux1"),
        ({"benchmark": "bert", "ruleset": "4.2.0"}, "--ruleset '4.2.0': .* allowed are 1.0.0, "),
        ({"benchmark": "bert", "batch_size": 0}, "--batch-size 0: allowed are 1 to 999,999,999"),
        ({"benchmark": "bert", "batch_size": -3}, "--batch-size -3"),
        ({"benchmark": "bert", "batch_size": 10**12}, "--batch-size 1000000000000"),
        ({"benchmark": "bert", "samples": "2e6"}, "--batch-size is missing"),
        ({"benchmark": "bert", "batch_size": 8, "samples": "2e6,many"}, "found 'many', allowed are positive numbers"),
        ({"benchmark": "bert", "batch_size": 8, "samples": "2e6,,3e6"}, "found ''"),
        ({"benchmark": "bert", "batch_size": 8, "samples": "nan"}, "found 'nan'"),
        ({"benchmark": "bert", "batch_size": 8, "samples": "inf"}, "found 'inf'"),
        ({"benchmark": "bert", "batch_size": 8, "samples": "-5"}, "found '-5'"),
        (
            {"benchmark": "bert", "batch_size": 8, "samples": ",".join(["3e6"] * 11)},
            "11 runs were given, .* bert has 10",
        ),
    ],
)
def test_options_that_are_wrong_are_named(options: dict[str, Any], message: str) -> None:
    defaults = dict.fromkeys(("benchmark", "batch_size", "samples", "ruleset"))
    with pytest.raises(UsageError, match=message):
        make_report([], **(defaults | options))


def test_logs_that_do_not_fit_are_named(write_runs: Callable[..., Path], tmp_path: Path) -> None:
    good = ("llama31_8b", 32, counts(172_032))

    def refused(message: str, *runs: Any, **options: Any) -> None:
        folder = write_runs(*runs)
        defaults: dict[str, Any] = dict.fromkeys(("benchmark", "batch_size", "samples", "ruleset"))
        with pytest.raises(UsageError, match=message):
            make_report([folder], **(defaults | options))

    refused(r"result_1\.txt: global_batch_size is 64, and 32 by .*result_0\.txt", good, (good[0], 64, good[2]))
    refused(r"result_1\.txt: submission_benchmark is 'flux1', and 'llama31_8b'", good, ("flux1", *good[1:]))
    refused(r"result_0\.txt: submission_benchmark is .* by --benchmark", good, good, benchmark="flux1")
    refused(r"result_0\.txt: global_batch_size is 32, and 16 by --batch-size", good, good, batch_size=16)
    refused("PATH and --samples", good, good, samples="1")
    refused(r"result_0\.txt: the run succeeded, but no evaluation has .* samples_count", (*good[:2], [{"step": 1}]))
    refused("global_batch_size is missing or not a whole number", (good[0], "many", good[2]))
    refused("submission_benchmark is missing", (None, *good[1:]))
    refused("41 logs were given, and no result has more than 40 runs", *[good] * 41)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no result_"):
        make_report([tmp_path / "empty"], None, None, None, None)
    with pytest.raises(UsageError, match="missing"):
        make_report([tmp_path / "missing"], None, None, None, None)


def invoke(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["submit", "rcp", *arguments], env={"COLUMNS": "100"})
    return found.exit_code, found.stdout


def test_the_command_prints_points_chances_and_what_they_rest_on() -> None:
    code, shown = invoke("--benchmark", "llama31_8b", "--batch-size", "32", "--samples", RUNS_OF_8B)
    assert code == 0 and "ruleset 6.1.0" in shown and "least accepted mean" in shown
    assert re.search(r"probability of passing +│ +\d+\.\d %", shown) and "Rests on 3 runs so far" in shown
    code, shown = invoke("--benchmark", "rgat", "--ruleset", "5.1.0")
    assert (
        code == 0
        and "epochs to the target" in shown
        and re.search(r"4,096 +│ +20 │ 0\.789 │", shown)
        and "probability" not in shown
    )
    code, shown = invoke("--benchmark", "bert", "--ruleset", "2.0.0", "--batch-size", "3000")
    assert code == 0 and "not scaled by this ruleset" in shown and "as these" in shown


def test_without_a_chance_the_exit_code_is_one() -> None:
    code, shown = invoke("--benchmark", "llama31_8b", "--batch-size", "4000")
    assert code == 1 and "Missing RCP, please submit RCP with BS = 4000" in shown and "20 runs" in shown
    code, shown = invoke("--benchmark", "llama31_8b", "--batch-size", "32", "--samples", ",".join(["159744"] * 10))
    assert code == 1 and "FAILED: RCP found" in shown


def test_json_has_the_figures_of_the_tables() -> None:
    code, shown = invoke("--benchmark", "llama2_70b_lora", "--batch-size", "12", "--samples", "3456,none", "--json")
    document = json.loads(shown)
    assert code == 0 and document["samples"] == [3456, None] and document["unit"] == "samples"
    assert [point["used"] for point in document["points"]] == [True, True, False, True]
    assert document["point"]["kind"] == "interpolated" and document["point"]["from_batch_sizes"] == [8, 16]
    forecast = document["forecast"]
    assert forecast["remaining_runs"] == 8 and 0 < forecast["passes"] < 1 and document["verdict"] is None
    assert forecast["factor_interval"][0] <= forecast["factor"] <= forecast["factor_interval"][1]
    assert set(forecast["needed_mean"]) == {"0.5", "0.95"}
    code, shown = invoke("--benchmark", "llama31_8b", "--batch-size", "4000", "--json")
    assert code == 1 and json.loads(shown)["point"]["kind"] == "missing"
