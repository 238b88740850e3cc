"""A set of runs, from data to verdict, with a script in the place of the implementation."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.errors import UsageError, WorkError
from podium.config import RunConfig, load_resolved
from podium.mllog import read_events
from podium.progress import Progress
from podium.results import ResultSet
from podium.running import FinishedRun, run_set

QUIET = Progress(Console(quiet=True))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results, runs and data of these tests."""
    monkeypatch.setattr("podium.running.RUNS", tmp_path / "runs")
    monkeypatch.setattr("podium.data.DATA", tmp_path / "data")
    monkeypatch.setattr("benchmarks.bert.text.embedded.ARTICLES_A_PART", 2)
    monkeypatch.setattr("benchmarks.bert.text.embedded.EVALUATION_ARTICLES", 2)
    monkeypatch.setattr("podium.data.os.cpu_count", lambda: 1)

    def result_set(system: str, replaced: Path) -> ResultSet:
        return ResultSet(system, replaced, root=tmp_path / "results")

    monkeypatch.setattr("podium.running.ResultSet", result_set)
    return tmp_path


@pytest.fixture
def implementation(write_log: Any, open_config: RunConfig, as_implementation: Any, summary: dict[str, Any]) -> Any:
    """An implementation that leaves a whole log (or its first lines) and a summary."""

    def make(log_until: str | None = None, then: str = "", summarise: bool = True) -> None:
        text = write_log(open_config, name="sample.txt").read_text(encoding="utf-8")
        if log_until:
            text = text[: text.index("\n", text.index(f'"{log_until}"')) + 1]
        script = f"(folder / 'result.partial.txt').write_text({text!r})\n{then}\n"
        as_implementation(
            script + (f"(folder / 'summary.json').write_text({json.dumps(summary)!r})" if summarise else "")
        )

    return make


def test_runs_become_results_with_seeds_of_their_own(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    config = open_config.model_copy(update={"seed": None})
    runs = list(run_set(config, 2, QUIET))
    assert [run.result for run in runs] == [place / "results/laptop/bert" / f"result_{n}.txt" for n in (0, 1)]
    assert all(run.reached_target and run.compliant for run in runs)
    seeds = [load_resolved(run.folder / "config.yaml").seed for run in runs]
    assert seeds == [run.seed for run in runs]
    assert seeds[0] != seeds[1]
    assert load_resolved(runs[0].folder / "config.yaml").data.kind == "store"
    assert runs[0].folder.parent == runs[1].folder.parent
    assert not (runs[0].folder / "result.partial.txt").exists()
    list(run_set(config, 1, QUIET))
    assert [path.name for path in (place / "results/laptop/bert").iterdir()] == ["result_0.txt"]
    assert len(list((place / "runs").rglob("replaced_results/result_*.txt"))) == 2


def test_a_fixed_seed_is_used(open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (run,) = run_set(open_config, 1, QUIET)
    assert run.seed == open_config.seed == 7


def test_a_run_that_breaks_off_is_among_the_results_as_aborted(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then="sys.exit(3)", summarise=False)
    result = place / "results/laptop/bert/result_0.txt"
    with pytest.raises(WorkError, match=f"ended with exit code 3, .*; its log says aborted: {result}$"):
        list(run_set(open_config, 3, QUIET))
    assert [e["metadata"]["status"] for e in read_events(result) if e["key"] == "run_stop"] == ["aborted"]


def test_a_run_that_had_not_begun_leaves_the_results_alone(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("init_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError, match=r"ended with exit code 3, .*; it had not begun: no result file$"):
        list(run_set(open_config, 1, QUIET))
    assert not list((place / "results").rglob("*.txt"))


def test_a_run_that_failed_after_its_end_is_not_said_to_be_aborted(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation(then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    (result,) = (place / "results").rglob("result_0.txt")
    assert [e["metadata"]["status"] for e in read_events(result) if e["key"] == "run_stop"] == ["success"]
    assert str(caught.value).endswith(f"; its log says success: {result}")


def test_a_finished_run_is_one_object(tmp_path: Path, summary: dict[str, Any]) -> None:
    run = FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, summary, {"4.1.0": "", "5.0.0": "FAILED"})
    assert (run.reached_target, run.compliant) == (True, False)
    assert run.as_json()["compliance"] == {"4.1.0": True, "5.0.0": False}


def test_two_sets_of_runs_at_once_are_refused(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    runs = run_set(open_config, 2, QUIET)
    next(runs)
    with pytest.raises(UsageError, match="another `podium run` is at work on this system"):
        next(run_set(open_config, 1, QUIET))
    next(runs)
