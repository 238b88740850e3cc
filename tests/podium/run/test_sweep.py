"""Sweeps: combinations, resuming, failures, and that their runs are no results."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, UsageError, WorkError
from podium.core.locks import shared_lock
from podium.mllog.write import SUCCESS
from podium.run.collect import FinishedRun
from podium.run.prepare import prepare_set
from podium.run.progress import Progress
from podium.run.set_record import read_set
from podium.run.sweep import EARLIER, SWEPT, Sweep, SweepRequest, plan_sweep, run_sweep, split_values, sweep_json
from tests.podium.conftest import WriteSystem

QUIET = Progress(Console(quiet=True))
SETTINGS = ("evaluation.samples=20", "optimizer.algorithm=adamw")
RATES = "optimizer.learning_rate=1e-3,2e-3"


def plan(recipes: Sequence[str] = (), settings: Sequence[str] = (), seeds: int = 2) -> Sweep:
    return plan_sweep(SweepRequest("laptop", recipes, [*SETTINGS, *settings], seeds))


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("a=1,2", ["a=1", "a=2"]),
        ("a=1", ["a=1"]),
        ("a=", ["a="]),
        ("a.b= 1 , 2 ", ["a.b=1", "a.b=2"]),
        ("a=[1,2]", ["a=[1,2]"]),
        ("a=[1,2],[3],null", ["a=[1,2]", "a=[3]", "a=null"]),
        ("a={b: [1,2], c: 3},{}", ["a={b: [1,2], c: 3}", "a={}"]),
        ("a='x,y',\"z,w\"", ["a='x,y'", 'a="z,w"']),
        ("a=it's,2", ["a=it's", "a=2"]),
        ("a=['],',b],c", ["a=['],',b]", "a=c"]),
        ("a=]b,c", ["a=]b", "a=c"]),
        ("a=[1,2", ["a=[1,2"]),
    ],
)
def test_values_are_separated_by_commas_outside_of_brackets_and_quotes(setting: str, values: list[str]) -> None:
    assert split_values(setting) == values


@pytest.mark.parametrize(("setting", "place"), [("a=1,", "2 of 2"), ("a=,1", "1 of 2"), ("a=1, ,2", "2 of 3")])
def test_empty_values_are_refused(setting: str, place: str) -> None:
    with pytest.raises(UsageError, match=f"value {place} is empty"):
        split_values(setting)


@pytest.mark.usefixtures("home")
def test_combinations_are_the_cross_product() -> None:
    sweep = plan(["indexed", "random"], [RATES, "max_samples=2000"])
    assert [one.name for one in sweep.sets] == [
        "indexed, optimizer.learning_rate=1e-3",
        "indexed, optimizer.learning_rate=2e-3",
        "random, optimizer.learning_rate=1e-3",
        "random, optimizer.learning_rate=2e-3",
    ]
    found = [(one.config.recipe, one.config.optimizer.learning_rate, one.config.max_samples) for one in sweep.sets]
    assert found == [(recipe, rate, 2000) for recipe in ("indexed", "random") for rate in (1e-3, 2e-3)]
    assert len({one.folder.name for one in sweep.sets}) == 4 and sweep.missing == 8
    assert all(re.fullmatch(r"[\w.=+-]+_[0-9a-f]{8}", one.folder.name) for one in sweep.sets)
    assert [one.name for one in plan().sets] == ["indexed"]
    assert [one.name for one in plan(["random"]).sets] == ["random"]


@pytest.mark.usefixtures("home")
def test_the_folder_of_a_combination_depends_on_its_configuration_alone() -> None:
    (one, _), (same, _, _) = plan(settings=[RATES]).sets, plan(settings=[f"{RATES},3e-3"], seeds=5).sets
    assert one.folder == same.folder
    assert one.folder != plan(settings=[RATES, "max_samples=2000"]).sets[0].folder


@pytest.mark.parametrize(
    ("recipes", "settings", "message"),
    [
        (
            ["indexed", "fast"],
            [RATES],
            "^2 of 4 combinations cannot be run, so nothing .*:\nfast, .*\nfast, ",
        ),
        ([], ["optimizer.learning_rate=1e-3,-1"], "^1 of 2 .*\noptimizer.learning_rate=-1: .*greater than 0"),
        ([], ["launch.nodes=1,2"], "launch.nodes"),
        ([], ["seed=1,2"], "--set seed: use --seeds N"),
        ([], ["recipe=indexed,random"], "use --recipe A,B"),
        ([], ["max_samples=2000", "bert.max_samples=3000"], "--set max_samples: is given twice"),
        (["indexed", "indexed"], [], "indexed: has the same configuration as indexed"),
        ([], ["max_samples=2000,2_000"], "max_samples=2_000: has the same configuration as max_samples=2000"),
        ([], [f"max_samples={','.join(map(str, range(1, 1002)))}"], "these are 1,001 combinations; allowed are up to"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_sweep_that_cannot_be_run_is_refused(recipes: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(recipes, settings)


def test_containers_are_refused(write_system: WriteSystem, home: Path) -> None:
    system = write_system({"launch.launcher": "docker", "launch.container": {"runtime": "docker", "image": "podium:1"}})
    with pytest.raises(UsageError, match=r"launch.launcher is docker.* with --set launch.launcher=torchrun"):
        plan_sweep(SweepRequest(str(system), [], [], 1))


@pytest.mark.usefixtures("home")
def test_the_launcher_is_refused_before_a_checkpoint_in_its_container() -> None:
    with pytest.raises(UsageError) as error:
        plan_sweep(SweepRequest("dgxh200_n1", [], [], 1))
    assert "launch.launcher is docker" in str(error.value) and "checkpoint" not in str(error.value)


def test_a_missing_checkpoint_is_named_with_file_and_key(
    write_system: WriteSystem, closed_changes: dict[str, Any], home: Path
) -> None:
    path = write_system(closed_changes)
    with pytest.raises(UsageError) as error:
        plan_sweep(SweepRequest(str(path), [], [], 1))
    assert str(error.value).startswith(
        f"{path}: bert.initial_checkpoint: /large.safetensors: there is no such checkpoint; make one with "
    )


@pytest.mark.parametrize("below", ["", "deeper/sweep"])
def test_an_existing_file_as_folder_is_refused_before_a_dry_run(home: Path, below: str) -> None:
    (file := home / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"file.*: the folder cannot be created, since a file exists at this path"):
        plan_sweep(SweepRequest("laptop", [], [], 1, file / below))
    assert list(home.glob("runs/*")) == [] and file.read_bytes() == b""


def test_a_closed_system_is_swept_with_stated_seeds(
    write_system: WriteSystem, closed_changes: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The division's rule of random seeds is for results, which these runs are not."""
    monkeypatch.setattr("podium.run.sweep.check_checkpoint", lambda *_: None)
    sweep = plan_sweep(SweepRequest(str(write_system(closed_changes)), [], [], 3))
    assert sweep.sets[0].config.division == "closed" and sweep.sets[0].missing == (0, 1, 2)


@pytest.mark.usefixtures("home")
def test_a_gpu_that_the_table_lacks_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.sweep.check_checkpoint", lambda *_: None)
    sweep = plan_sweep(SweepRequest("h200_1x", [], ["description.accelerator_model_name=NVIDIA H20"], 1))
    assert any("'NVIDIA H20' is no GPU that Podium knows" in message for message in sweep.messages)


def outcomes(sweep: Sweep) -> list[tuple[str, int, bool]]:
    return [(one.name, seed, isinstance(result, FinishedRun)) for one, seed, result in run_sweep(sweep, QUIET)]


def test_sets_see_the_same_seeds_and_are_no_results(home: Path, implementation: Any) -> None:
    implementation()
    sweep = plan(settings=[RATES])
    found = list(run_sweep(sweep, QUIET))
    assert [(one.name[-4:], seed) for one, seed, _ in found] == [("1e-3", 0), ("2e-3", 0), ("2e-3", 1), ("1e-3", 1)]
    for one, seed, run in found:
        assert isinstance(run, FinishedRun) and run.seed == seed and run.result == one.folder / f"result_{seed}.txt"
        record = read_set(one.folder)
        assert record is not None and record.runs == 2 and record.complete
        ended = record.by_number[seed]
        assert ended.status == SUCCESS and ended.fault == SWEPT and not ended.is_result
    assert not (home / "results").exists() and sweep.missing == 0
    assert [one["finished_seeds"] for one in sweep_json(sweep)["sets"]] == [[0, 1], [0, 1]]


def test_finished_runs_are_not_made_again_and_further_ones_are_added(home: Path, implementation: Any) -> None:
    implementation()
    assert len(outcomes(plan(settings=[RATES], seeds=1))) == 2
    implementation("block_start", then="raise SystemExit(3)", summarise=False)  # would fail if it were run again
    assert outcomes(plan(settings=[RATES], seeds=1)) == []
    (home / "sample.txt").unlink()
    implementation()
    longer = outcomes(plan(settings=[f"{RATES},3e-3"]))
    assert [(name[-4:], seed) for name, seed, _ in longer] == [("3e-3", 0), ("3e-3", 1), ("2e-3", 1), ("1e-3", 1)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: (one.folder / "result_0.txt").unlink(), "result_0.txt is missing"),
        (lambda one: (one.folder / "result_0.txt").write_text("x"), "result_0.txt was changed after the run"),
        (lambda one: one.run(0).config.unlink(), "config.yaml is missing"),
        (lambda one: edit(one.run(0).config, "max_samples: 60000", "max_samples: 50000"), "other settings .* max_samp"),
        (lambda one: one.run(0).config.write_text("["), "its configuration cannot be read"),
        (lambda one: one.run(0).summary.unlink(), "it did not finish"),
        (lambda one: (one.folder / "set.json").unlink(), "set.json is missing"),
    ],
)
def test_a_run_whose_files_were_changed_is_made_again(
    home: Path, implementation: Any, change: Any, reason: str
) -> None:
    implementation()
    (one,) = (sweep := plan(seeds=1)).sets
    assert len(outcomes(sweep)) == 1 and one.missing == () and sweep.messages == []
    change(one)
    (note,) = sweep.messages
    assert one.missing == (0,) and re.search(reason, note) and str(one.run(0).path) in note
    (home / "sample.txt").unlink()
    implementation()
    assert len(outcomes(sweep)) == 1 and one.missing == () and (one.folder / EARLIER / "run_0_1").is_dir()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.usefixtures("home")
def test_an_unreadable_record_of_a_set_is_an_error(implementation: Any) -> None:
    implementation()
    (one,) = (sweep := plan(seeds=1)).sets
    outcomes(sweep)
    (one.folder / "set.json").write_text("{", encoding="utf-8")
    with pytest.raises(WorkError, match=r"set.json: cannot be used .*; or move .* away"):
        _ = sweep.missing


def test_a_failed_run_is_reported_and_made_again(home: Path, implementation: Any) -> None:
    implementation("block_start", then="if 'run_1' in str(folder): raise SystemExit(3)")
    sweep = plan(settings=[RATES])
    found = list(run_sweep(sweep, QUIET))
    assert [isinstance(result, WorkError) for _, _, result in found] == [False, False, True, True]
    failed = sweep.sets[0].run(1)
    assert sweep.sets[0].missing == (1,) and failed.read_failure() is not None
    (home / "sample.txt").unlink()
    implementation()
    assert [(seed, finished) for _, seed, finished in outcomes(sweep)] == [(1, True), (1, True)]
    earlier = failed.path.parent / EARLIER / "run_1_1"
    assert (earlier / "failure.json").is_file() and (earlier / "result_1.txt").is_file()
    assert sweep.missing == 0 and (failed.path.parent / "result_1.txt").is_file()


@pytest.mark.parametrize("error", [Interrupted("interrupted"), StoppedAfterSaving("stopped; `podium run` resumes it")])
def test_an_interrupted_sweep_is_resumed(
    home: Path, implementation: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    implementation()
    sweep = plan(settings=[RATES])
    begun = run_sweep(sweep, QUIET)
    next(begun)
    with monkeypatch.context() as patch:
        patch.setattr("podium.run.sweep.launch_and_collect", lambda *_, **__: (_ for _ in ()).throw(error))
        with pytest.raises(Interrupted, match=r"^(interrupted|stopped)$"):
            next(begun)
    assert sweep.missing == 3
    assert [seed for _, seed, _ in outcomes(sweep)] == [0, 1, 1] and sweep.missing == 0


def test_a_run_whose_processes_still_run_is_not_made_again(home: Path, implementation: Any) -> None:
    implementation()
    sweep = plan(seeds=1)
    run = sweep.sets[0].run(0)
    run.path.mkdir(parents=True)
    with shared_lock(run.lock):
        ((_, _, error),) = run_sweep(sweep, QUIET)
    assert isinstance(error, PodiumError) and "processes of this run are still running" in str(error)


def test_data_that_cannot_be_prepared_fails_a_set_and_the_sweep_continues(
    home: Path, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation()
    sweep = plan(settings=[RATES], seeds=1)

    def prepare(config: Any, *_: Any) -> Any:
        if config.optimizer.learning_rate == 1e-3:
            raise WorkError("a shard is damaged")
        return prepare_set(config, *_)

    monkeypatch.setattr("podium.run.sweep.prepare_set", prepare)
    assert [(name[-4:], finished) for name, _, finished in outcomes(sweep)] == [("1e-3", False), ("2e-3", True)]
