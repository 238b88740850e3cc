"""Trials as processes: exact budgets, several at a time, pruned, failed, interrupted and resumed."""

import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.tune import search as search_module
from podium.tune.search import Workers, repeat, search
from podium.tune.space import SearchSpace, load_space
from podium.tune.study import best_trial, finished_trials, open_study
from tests.podium.tune.conftest import SETTINGS, FakeTrainings

ONE = Workers(1, 1)


@pytest.fixture
def base() -> RunConfig:
    return load_system("laptop", settings=SETTINGS)


@pytest.fixture
def space(write_space: Any) -> SearchSpace:
    return load_space(write_space())


def run_search(
    folder: Path, space: SearchSpace, base: RunConfig, workers: Workers = ONE, first: Any = None
) -> tuple[list[FrozenTrial], list[str]]:
    reported: list[str] = []
    search(folder, space, base, first, workers, reported.append)
    return finished_trials(open_study(folder, space)), reported


def test_search_runs_exactly_its_trials(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig
) -> None:
    folder = tmp_path / "search"
    trials, reported = run_search(folder, space, base, first={"optimizer.learning_rate": 2e-3})
    assert len(trials) == len(reported) == 3
    assert trials[0].params == {"optimizer.learning_rate": 2e-3}
    assert len({trial.params["optimizer.learning_rate"] for trial in trials}) == 3
    for trial in trials:
        assert 1e-5 <= trial.params["optimizer.learning_rate"] <= 1e-1
        text = (folder / f"trials/trial_{trial.number:04d}/config.yaml").read_text(encoding="utf-8")
        assert f"learning_rate: {trial.params['optimizer.learning_rate']!r}" in text
        assert "seed: 1\n" in text
        assert "threads_per_process: 1\n" in text
    needed = 2 + 3 * math.log10(2) + 0.1
    assert trials[0].value == pytest.approx(32 * needed, rel=1e-4)
    trained = trials[0].user_attrs["samples"]
    assert trained >= trials[0].value
    expected = f"rate: trial 1 of 3: {trials[0].value:,.0f} samples to the target (interpolated), {trained:,} trained"
    assert reported[0] == expected
    assert best_trial(trials) == min(trials, key=lambda trial: trial.value or 0.0)


def test_trial_value_is_the_mean_over_seeds(
    trainings: FakeTrainings, tmp_path: Path, write_space: Any, base: RunConfig
) -> None:
    space = load_space(write_space(trials=1, repeats_per_trial=3))
    (trial,), _ = run_search(tmp_path / "search", space, base, first={"optimizer.learning_rate": 2e-3})
    place = tmp_path / "search/trials/trial_0000"
    assert sorted(path.parent.name for path in place.rglob("config.yaml")) == ["seed_2", "seed_3", "trial_0000"]
    assert trial.value == pytest.approx(32 * (2 + 3 * math.log10(2) + 0.1 * (1 + 2 + 3) / 3), rel=1e-4)
    assert trial.user_attrs["reached"] is True
    assert trial.user_attrs["samples"] >= 3 * 96


def test_the_same_seed_draws_the_same_settings(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig
) -> None:
    two = space.model_copy(update={"trials": 2})
    rates = [[trial.params for trial in run_search(tmp_path / name, two, base)[0]] for name in "ab"]
    assert rates[0] == rates[1]


def test_several_workers_run_exactly_the_trials(
    trainings: FakeTrainings, tmp_path: Path, write_space: Any, base: RunConfig
) -> None:
    trainings.use(pause=0.05)
    trials, reported = run_search(tmp_path / "search", load_space(write_space(trials=5)), base, Workers(3, 1))
    assert len(trials) == len(reported) == 5
    spans = [(trial.datetime_start, trial.datetime_complete) for trial in trials]
    assert any(a[0] < b[0] < a[1] for a in spans for b in spans)  # type: ignore[operator]


def test_search_resumes_with_the_missing_trials(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig
) -> None:
    folder = tmp_path / "search"
    before, _ = run_search(folder, space.model_copy(update={"trials": 2}), base)
    trials, reported = run_search(folder, space, base, first={"optimizer.learning_rate": 2e-3})
    assert [trial.params for trial in trials[:2]] == [trial.params for trial in before]
    assert [line.partition(":")[2].partition(" of")[0] for line in reported] == [" trial 3"]
    assert run_search(folder, space, base)[1] == []


def test_trial_of_a_killed_process_is_run_again(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig
) -> None:
    folder = tmp_path / "search"
    run_search(folder, space.model_copy(update={"trials": 1}), base)
    study = open_study(folder, space, 99)
    lost = study.ask(fixed_distributions=space.distributions())
    trials, _ = run_search(folder, space, base)
    assert len(trials) == 3
    assert study.trials[lost.number].state == TrialState.FAIL
    assert [trial.params for trial in trials].count(lost.params) == 1


def test_folder_with_trials_of_other_settings_is_an_error(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig, write_space: Any
) -> None:
    folder = tmp_path / "search"
    run_search(folder, space.model_copy(update={"trials": 1}), base)
    with pytest.raises(UsageError, match=r"base.yaml: this folder has trials of other settings"):
        run_search(folder, space, base.model_copy(update={"max_samples": 640}))
    with pytest.raises(UsageError, match=r"search.yaml: this folder has trials of other settings"):
        run_search(folder, load_space(write_space(seed=2)), base)


def test_bad_trial_is_pruned_while_it_runs(
    trainings: FakeTrainings, tmp_path: Path, write_space: Any, base: RunConfig
) -> None:
    """After good trials, one that would take all samples ends at its second or third evaluation."""
    folder, space = tmp_path / "search", load_space(write_space(trials=5))
    folder.mkdir()
    study = open_study(folder, space)
    for rate in (1e-3, 1.1e-3, 1.2e-3, 0.9e-3, 0.8e-3, 1e-5):
        study.enqueue_trial({"optimizer.learning_rate": rate})
    run_search(folder, space, base)
    trainings.use(pause=0.3)
    trials, reported = run_search(folder, space.model_copy(update={"trials": 6}), base)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 5 + ["PRUNED"]
    (line,) = reported
    assert re.fullmatch(r"rate: trial 6 of 6: pruned after \d+ samples, accuracy 0\.\d{4}", line)
    assert trials[5].user_attrs["samples"] in (64, 96)
    assert trials[5].user_attrs["accuracy"] < 0.3
    assert not (folder / "trials/trial_0005/summary.json").exists()
    assert best_trial(trials) == min(trials[:5], key=lambda trial: trial.value or 0.0)


def test_diverging_trial_has_its_penalty(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig
) -> None:
    trainings.use(diverges=1e-9)
    trials, _ = run_search(tmp_path / "search", space.model_copy(update={"trials": 1}), base)
    assert trials[0].value == 2 * base.max_samples
    assert "exit code 3" in trials[0].user_attrs["failure"]


def test_error_of_a_worker_is_raised(
    tmp_path: Path, space: SearchSpace, base: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, error in ((2, UsageError), (1, WorkError)):
        script = f"import sys\nprint('first', flush=True)\nprint('the sentence', file=sys.stderr)\nsys.exit({number})"
        monkeypatch.setattr(search_module, "WORKER", [sys.executable, "-c", script])
        with pytest.raises(PodiumError, match=r"^the sentence$") as caught:
            run_search(tmp_path / "search", space, base)
        assert type(caught.value) is error


def test_interruption_ends_all_workers(
    trainings: FakeTrainings, tmp_path: Path, space: SearchSpace, base: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running trial ends with its training, and is enqueued again with its settings."""
    trainings.use(pause=30.0)
    folder = tmp_path / "search"
    metrics = folder / "trials/trial_0000/metrics.jsonl"

    sleep, interrupted = time.sleep, list[bool]()

    def interrupted_once_it_trains(seconds: float) -> None:
        sleep(seconds)
        if metrics.exists() and not interrupted:
            interrupted.append(True)
            raise WorkError("interrupted")

    monkeypatch.setattr(search_module.time, "sleep", interrupted_once_it_trains)
    with pytest.raises(WorkError, match="interrupted"):
        run_search(folder, space, base, first={"optimizer.learning_rate": 2e-3})
    monkeypatch.undo()
    states = [(trial.state, trial.system_attrs.get("fixed_params")) for trial in open_study(folder, space).trials]
    assert states[0][0] == TrialState.FAIL
    assert states[1] == (TrialState.WAITING, {"optimizer.learning_rate": 2e-3})
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "fake_implementation.py") not in running


def test_each_repeat_runs_once(trainings: FakeTrainings, tmp_path: Path, base: RunConfig) -> None:
    folder, reported = tmp_path / "repeats", list[str]()
    values = [one.value for one in repeat(folder, base, range(10, 13), Workers(2, 1), reported.append)]
    assert values == sorted(values)
    assert len(set(values)) == len(reported) == 3
    again = list[str]()
    more = repeat(folder, base, range(10, 14), ONE, again.append)
    assert [one.value for one in more[:3]] == values
    assert base.target_accuracy is not None
    assert again == [f"repeats, seed 13: {more[3].describe(base.target_accuracy)}"]
    with pytest.raises(UsageError, match="has repeats of other settings"):
        repeat(folder, base.model_copy(update={"max_samples": 64}), range(10, 11), ONE, again.append)


def test_diverging_repeat_has_its_penalty(trainings: FakeTrainings, tmp_path: Path, base: RunConfig) -> None:
    trainings.use(diverges=1e-9)
    (one,) = repeat(tmp_path / "repeats", base, [3], ONE, lambda _: None)
    assert (one.reached, one.value) == (False, 2 * base.max_samples)


def test_threads_are_divided_among_workers(base: RunConfig) -> None:
    launch = base.launch.model_copy(update={"threads_per_process": 8})
    eight = base.model_copy(update={"launch": launch})
    assert [Workers.from_config(eight, count).threads for count in (1, 2, 3, 16)] == [8, 4, 2, 1]
