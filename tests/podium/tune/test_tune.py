"""`podium tune` end to end, its report and its chart."""

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

from podium.cli import main
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.run.progress import Progress
from podium.tune.tune import Options, Repeats, TuneResult, as_arguments, as_yaml, difference, tune, verdicts
from tests.podium.tune.conftest import SETTINGS, FakeTrainings

QUIET = Progress(Console(quiet=True))


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use temporary folders for runs and data, and a small part of the embedded text."""
    monkeypatch.setattr("podium.tune.tune.RUNS", tmp_path / "runs")
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "data")
    monkeypatch.setattr("benchmarks.bert.demo_text.ARTICLES_PER_PART", 2)
    monkeypatch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
    monkeypatch.setattr("podium.run.data.os.cpu_count", lambda: 1)


def tuned(searches: list[str], settings: tuple[str, ...] = (), **options: Any) -> tuple[TuneResult, list[str]]:
    reported: list[str] = []
    defaults = {"trials": None, "workers": 1, "repeats": 2, "folder": None} | options
    found = tune("laptop", None, [*SETTINGS, *settings], Options(tuple(searches), **defaults), QUIET, reported.append)
    return found, reported


def test_two_searches_with_one_budget(trainings: FakeTrainings, write_space: Any, tmp_path: Path) -> None:
    lamb = write_space("lamb", settings={"optimizer.algorithm": "lamb"})
    searches = [write_space("adamw"), lamb]
    found, reported = tuned(searches, workers=2, trials=2, repeats=1)
    assert [one.space.name for one in found.results] == ["adamw", "lamb"]
    assert all(len(one.trials) == 2 for one in found.results)
    drawn = [[trial.params["optimizer.learning_rate"] for trial in one.trials] for one in found.results]
    shipped_rate = found.shipped.optimizer.learning_rate
    assert all(shipped_rate not in rates for rates in drawn)  # no search starts with the shipped settings
    assert [one.name for one in found.repeats] == ["shipped", "adamw", "lamb"]
    assert all(len(one.objectives) == 1 and one.reached == 1 for one in found.repeats)
    assert len(reported) == 4 + 3
    algorithms = {
        path.parent.name.partition("_")[0]: yaml.safe_load(path.read_text(encoding="utf-8"))["optimizer"]["algorithm"]
        for path in sorted((tmp_path / "runs/laptop/tune/repeats").glob("*/config.yaml"))
    }
    assert algorithms == {"adamw": "adamw", "lamb": "lamb", "shipped": "adamw"}
    seeds = {
        path.parent.parent.name: yaml.safe_load(path.read_text(encoding="utf-8"))["seed"]
        for path in (tmp_path / "runs").rglob("seed_*/config.yaml")
    }
    assert set(seeds.values()) == {1001}
    assert len(seeds) == 3
    assert tuned(searches, trials=2, repeats=1)[1] == []  # nothing is missing


def test_single_search_starts_with_the_shipped_settings(trainings: FakeTrainings, write_space: Any) -> None:
    found, _ = tuned([write_space()], ("optimizer.algorithm=adamw", "optimizer.learning_rate=1.0e-3"))
    (one,) = found.results
    assert one.trials[0].params == {"optimizer.learning_rate": 1e-3}
    assert one.best.number == 0
    assert one.is_shipped
    assert [repeats.name for repeats in found.repeats] == ["shipped"]
    assert list(verdicts(found.results, found.repeats)) == ["rate: no trial was better than the shipped settings"]


def test_best_settings_are_reported_as_arguments_yaml_json_and_chart(
    trainings: FakeTrainings, write_space: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["tune", "laptop", "--search", write_space(), "--repeats", "2", "--folder", str(tmp_path / "out")]
    settings = [part for setting in (*SETTINGS, "optimizer.learning_rate=1.0e-5") for part in ("--set", setting)]
    main.app([*arguments, *settings, "--json"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    (search,) = report["searches"].values()
    best = search["settings"]["optimizer.learning_rate"]
    assert search["set"] == ["--set", "optimizer.algorithm=adamw", "--set", f"optimizer.learning_rate={best}"]
    kept = yaml.safe_load((tmp_path / "out/rate.yaml").read_text(encoding="utf-8"))
    assert kept == {"bert": {"optimizer": {"algorithm": "adamw", "learning_rate": best}}}
    assert search["best"]["objective"] == min(trial["objective"] for trial in search["results"])
    assert all(
        trial["samples_to_target"] == (trial["objective"] if trial["reached"] else None) for trial in search["results"]
    )
    assert all(trial["samples_trained"] > 0 for trial in search["results"])
    assert not search["is_shipped"]
    assert search["repeats_per_trial"] == 1
    assert report["repeats"]["rate"]["mean_objective"] < report["repeats"]["shipped"]["mean_objective"]
    svg = (tmp_path / "out/tuning.svg").read_bytes()
    ids = {element.get("id") for element in ElementTree.fromstring(svg).iter()}
    assert {"trials-rate", "best-rate", "repeats-rate", "repeats-shipped"} <= ids
    main.app([*arguments, *settings], standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"--set optimizer.learning_rate={best}" in printed
    assert "samples fewer than the shipped settings" in printed
    assert (tmp_path / "out/tuning.svg").read_bytes() == svg


def test_settings_are_not_recommended_if_no_trial_reached_the_target(
    trainings: FakeTrainings, write_space: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["tune", "laptop", "--search", write_space(), "--repeats", "0", "--folder", str(tmp_path / "out")]
    settings = [part for setting in (*SETTINGS, "target_accuracy=0.999") for part in ("--set", setting)]
    main.app([*arguments, *settings], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "no trial reached the target of 0.999; nearest: trial " in printed and "--set" not in printed


def test_arguments_and_yaml_are_read_back_with_their_types() -> None:
    settings = {"optimizer.epsilon": 1e-05, "clipping": None, "kernels": "auto", "optimizer.beta1": 0.5}
    settings |= {"optimizer.warmup_steps": 7, "attention": "grouped", "attention_widths": [256, 512]}
    arguments = as_arguments(settings)
    config = load_system("laptop", settings=[argument for argument in arguments if argument != "--set"])
    assert (config.optimizer.epsilon, config.clipping, config.optimizer.warmup_steps) == (1e-5, None, 7)
    assert config.attention_widths == (256, 512)
    assert yaml.safe_load(as_yaml(settings))["bert"]["optimizer"]["epsilon"] == 1e-5


def test_difference_has_a_standard_error() -> None:
    shipped, other = Repeats("shipped", (10.0, 12.0, 14.0), 3, 12.0), Repeats("x", (5.0, 7.0), 2, 6.0)
    fewer, error = difference(shipped, other)
    assert fewer == 6.0
    assert error == pytest.approx(math.sqrt(4 / 3 + 2 / 2))
    assert shipped.as_json()["sd_objective"] == 2.0
    one = Repeats("x", (5.0,), 1, 6.0)
    assert one.as_json()["sd_objective"] is None
    assert math.isnan(difference(shipped, one)[1])


@pytest.mark.parametrize(
    ("values", "comparison"),
    [
        ((5.0, 7.0), "6 ± 2 samples fewer than the shipped settings"),
        ((11.0, 12.0), "0 ± 1 samples fewer than the shipped settings, less than 2 standard errors"),
        ((20.0, 22.0), "9 ± 2 samples more than the shipped settings"),
        ((5.0,), "one repeat has no standard error"),
    ],
)
def test_verdicts(values: tuple[float, ...], comparison: str) -> None:
    found: Any = SimpleNamespace(space=SimpleNamespace(name="rate"), is_shipped=False)
    repeats = [Repeats("shipped", (10.0, 12.0, 14.0), 3, 12.0), Repeats("rate", values, 2, 6.0)]
    (sentence,) = verdicts([found], repeats)
    assert comparison in sentence
    assert list(verdicts([found], [])) == []


def test_penalties_are_no_samples_to_target() -> None:
    shipped, missed = Repeats("shipped", (10.0, 12.0), 2, 16.0), Repeats("rate", (30.0, 11.0), 1, 16.0)
    assert (shipped.as_json()["mean_samples_to_target"], missed.as_json()["mean_samples_to_target"]) == (11.0, None)
    found: Any = SimpleNamespace(space=SimpleNamespace(name="rate"), is_shipped=False)
    (sentence,) = verdicts([found], [shipped, missed])
    assert "of the trainings compared 1 missed the target and count with a penalty" in sentence


@pytest.mark.parametrize(
    ("spaces", "settings", "message"),
    [
        ({"a": {"trials": 97}, "b": {}}, (), "searches that are compared must have the same value"),
        ({"a": {"seed": 97}, "b": {}}, (), "searches that are compared must have the same value"),
        ({"shipped": {}}, (), "allowed are distinct names"),
        ({"a": {}}, ("target_accuracy=null",), "the objective is samples to a target"),
    ],
)
def test_searches_that_cannot_be_compared_are_an_error(
    write_space: Any, spaces: dict[str, dict[str, Any]], settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tuned([write_space(name, **changes) for name, changes in spaces.items()], settings)


def test_system_without_searches_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.tune.tune.searches_of", lambda system: [])
    with pytest.raises(UsageError, match="there is no search for laptop"):
        tuned([])


@pytest.mark.slow
def test_real_trainings(write_space: Any, tmp_path: Path) -> None:
    """A trial of the tiny BERT, with too few samples to reach the target."""
    space = {"optimizer.learning_rate": {"kind": "log", "low": 1e-4, "high": 1e-2}}
    found, _ = tuned(
        [write_space(space=space)],
        ("kernels=eager", "max_samples=64", "launch.threads_per_process=1"),
        trials=1,
        repeats=0,
    )
    (one,) = found.results
    (trial,) = one.trials
    assert trial.value is not None
    assert 64 < trial.value <= 128
    assert trial.user_attrs["samples"] == 64
    assert 0 <= trial.user_attrs["accuracy"] < 0.5
    assert not trial.user_attrs["failure"]
    assert not list(tmp_path.rglob("result_*.txt"))
