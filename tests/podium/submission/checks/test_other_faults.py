"""Single faults in good packages of benchmarks other than BERT: which are found, and by which checks.

docs/submitting.md has the table; the official tools are run on every faulty package, so that it stays true for their
present version.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.core.finding import Finding
from podium.core.paths import CODE_FOLDER
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.check import Report, check, infer_ruleset
from podium.submission.checks.all_checks import check_package
from tests.podium.submission.checks.other_benchmarks import (
    LLAMA,
    RETINANET,
    Event,
    FaultyCopy,
    Shape,
    copy_package,
    write_package,
)

Events = list[Event]
Plant = Callable[[FaultyCopy], object]
HOUR = 3_600_000
DOCS = CODE_FOLDER / "docs" / "submitting.md"


def at(events: Events, key: str, which: int = 0) -> Event:
    return [event for event in events if event["key"] == key][which]


def edited(change: Callable[[Events], object], every: bool = False) -> Plant:
    return lambda copy: copy.edit(change, copy.all_runs if every else (3,))


def value(key: str, new: Any, which: int = 0) -> Callable[[Events], object]:
    return lambda events: at(events, key, which).update(value=new)


def drop(key: str, which: int = 0) -> Callable[[Events], object]:
    return lambda events: events.remove(at(events, key, which))


def progress(key: str, new: Any, which: int) -> Callable[[Events], object]:
    return lambda events: at(events, "eval_accuracy", which)["metadata"].update({key: new})


def later(key: str, ms: float, which: int = 0) -> Callable[[Events], object]:
    return lambda events: at(events, key, which).update(time_ms=at(events, key, which)["time_ms"] + ms)


def late_from(key: str, ms: float) -> Callable[[Events], None]:
    def change(events: Events) -> None:
        for event in events[events.index(at(events, key)) :]:
            event["time_ms"] += ms

    return change


def misses(events: Events) -> None:
    at(events, "eval_accuracy", -1)["value"] = 3.4


def fails(events: Events) -> None:
    misses(events)
    at(events, "run_stop")["metadata"]["status"] = "aborted"


def stop_before_its_evaluation(events: Events) -> None:
    stopped, passed = at(events, "run_stop"), at(events, "eval_accuracy", -1)
    events.remove(stopped)
    events.insert(events.index(passed), stopped)
    stopped["time_ms"] = passed["time_ms"] - 5_000


def fast(events: Events) -> None:
    """Let the run pass at its tenth evaluation, with far fewer samples than the reference needs."""
    passed, stopped = at(events, "eval_accuracy", -1), at(events, "run_stop")
    tenth = at(events, "eval_accuracy", 9)
    tenth["value"] = passed["value"]
    last = events.index(tenth)
    stopped["time_ms"] = tenth["time_ms"] + 10
    events[:] = [*events[: last + 2], stopped]


def without_evaluations(events: Events) -> None:
    events[:] = [event for event in events if not event["key"].startswith("eval_") or event["key"] == "eval_samples"]


def copied(copy: FaultyCopy) -> None:
    """Copy a run with another seed and at another time."""
    copy.log(4).write_bytes(copy.log(3).read_bytes())

    def disguise(events: Events) -> None:
        at(events, "seed")["value"] = 4321
        for event in events:
            event["time_ms"] += 3_000_000

    copy.edit(disguise, [4])


def copied_to_another_system(copy: FaultyCopy) -> None:
    shutil.copytree(copy.results.parent, copy.results.parent.with_name("other"))
    text = copy.system.read_text(encoding="utf-8").replace('"system_name": "mine"', '"system_name": "other"')
    copy.system.with_name("other.json").write_text(text, encoding="utf-8")
    shutil.copytree(
        copy.root / "benchmarks" / copy.shape.benchmark / "mine",
        copy.root / "benchmarks" / copy.shape.benchmark / "other",
    )


def aborts_two(copy: FaultyCopy) -> None:
    copy.edit(fails, (3, 4))


def in_log(old: bytes, new: bytes) -> Plant:
    def apply(copy: FaultyCopy) -> None:
        content = copy.log().read_bytes()
        assert old in content
        copy.log().write_bytes(content.replace(old, new, 1))

    return apply


def in_seconds(events: Events) -> None:
    for event in events:
        event["time_ms"] //= 1000


def in_the_future(events: Events) -> None:
    for event in events:
        event["time_ms"] += 20 * 365 * 24 * HOUR


def resumed(events: Events) -> None:
    events.insert(9, at(events, "seed") | {"key": "init_checkpoint_step", "value": 5000})


def late_clock(events: Events) -> None:
    """Start the clock, and what comes before the first evaluation, 50 s late of the 60 s of the first interval."""
    for event in events[: events.index(at(events, "block_stop"))]:
        event["time_ms"] += 50_000


def epochs_in_samples(events: Events) -> None:
    for event in events:
        if "epoch_num" in event["metadata"]:
            event["metadata"]["epoch_num"] *= 1_170_301


def with_scaling(copy: FaultyCopy) -> None:
    (copy.results / "scaling.json").write_text('{"scaling_factor": 0.9}', encoding="utf-8")


L, R = LLAMA, RETINANET
# By fault: the benchmark, the rule of Podium's checks that finds it (None: only the official tools), and its plant.
FAULTS: dict[str, tuple[Shape, str | None, Plant]] = {
    # the set
    "nine runs instead of ten": (L, "run_count", lambda copy: copy.log().unlink()),
    "four runs instead of five": (R, "run_count", lambda copy: copy.log().unlink()),
    "two runs that did not converge": (L, "not_converged", aborts_two),
    "two runs with the same seed": (L, "seed_repeated", edited(value("seed", 104))),
    "a copied run with another seed and other times": (L, "copied", copied),
    "the runs of another system": (R, "copied", copied_to_another_system),
    "another learning rate in one run": (L, "settings_differ", edited(value("opt_base_learning_rate", 9e-4))),
    "another parallelism in one run": (L, "settings_differ", edited(value("tensor_parallelism", 2))),
    "another batch size in one run": (L, "settings_differ", edited(value("global_batch_size", 64))),
    "runs that overlap": (L, "overlap", edited(late_from("cache_clear", -2_900_000))),
    "a file that is not a result": (R, "unknown_file", lambda copy: (copy.results / "notes.md").touch()),
    "a forged scaling.json": (L, "scaling", with_scaling),
    # the timed run
    "status success, and the target is missed": (L, "run_stop_status", edited(misses)),
    "status aborted, and the target is reached": (
        L,
        "run_stop_status",
        edited(lambda events: at(events, "run_stop")["metadata"].update(status="aborted")),
    ),
    "run_stop before the evaluation that reaches the target": (L, "run_stop_early", edited(stop_before_its_evaluation)),
    "run_stop an hour late": (R, "run_stop_late", edited(late_from("run_stop", HOUR))),
    "run_stop before run_start": (L, "run_time", edited(later("run_stop", -HOUR))),
    "a time_ms below 0": (R, "time_digits", edited(lambda events: events[0].update(time_ms=-1))),
    "no run_stop": (R, "run_stop_missing", edited(drop("run_stop"))),
    "40 minutes from init_start to init_stop": (L, "initialisation", edited(later("init_start", -40 * 60_000))),
    "40 minutes from init_stop to run_start": (L, "initialisation", edited(late_from("run_start", 40 * 60_000))),
    "the clock starts after training": (R, "order", edited(later("run_start", 61_000))),
    "caches were not cleared": (R, "cache_clear", edited(value("cache_clear", False))),
    # evaluations
    "no evaluation": (L, "eval_accuracy", edited(without_evaluations)),
    "an evaluation left out": (L, "evaluation_schedule", edited(drop("eval_accuracy", 5))),
    "samples_count that goes backwards": (L, "progress", edited(progress("samples_count", 12_288, 5))),
    "epoch_num as text": (R, "progress", edited(progress("epoch_num", "2", 1))),
    "a loss of NaN": (L, "eval_accuracy", edited(value("eval_accuracy", float("nan"), 4))),
    "a loss of 0": (L, "eval_accuracy", edited(value("eval_accuracy", 0.0, 4))),
    "a negative loss": (L, "eval_accuracy", edited(value("eval_accuracy", -1.0, 4))),
    "an accuracy in percent": (R, "eval_accuracy", edited(value("eval_accuracy", 34.1, 2))),
    "512 evaluation samples": (L, None, edited(value("eval_samples", 512), every=True)),
    "fewer samples than the reference": (L, None, edited(fast, every=True)),
    # settings and names
    "no global_batch_size": (L, None, edited(drop("global_batch_size"), every=True)),
    "no context_parallelism, which 6.1 requires": (L, None, edited(drop("context_parallelism"), every=True)),
    "a micro-batch of 0": (L, "setting", edited(value("micro_batch_size", 0), every=True)),
    "a beta above 1": (R, "setting", edited(lambda events: events.insert(9, at(events, "seed") | BETA), every=True)),
    "another optimizer": (R, None, edited(value("opt_name", "sgd"), every=True)),
    "two learning rates in one log": (
        L,
        "logged_twice",
        edited(lambda events: events.insert(20, at(events, "opt_base_learning_rate") | {"value": 5e-4})),
    ),
    "division with a capital": (L, "division", edited(value("submission_division", "Closed"), every=True)),
    "logs of another benchmark": (
        R,
        "benchmark",
        edited(value("submission_benchmark", "rgat"), every=True),
    ),
    "another submitter in the logs": (R, "org_differs", edited(value("submission_org", "NVIDIA"), every=True)),
    "a folder of a misspelled benchmark": (
        L,
        "benchmark_unknown",
        lambda copy: copy.results.rename(copy.results.with_name("llama3_8b")),
    ),
    "a benchmark of an earlier round": (
        R,
        "benchmark_unknown",
        lambda copy: copy.results.rename(copy.results.with_name("ssd")),
    ),
    # the system and the text
    "another system_name": (R, "system_name", lambda copy: copy.describe(system_name="other")),
    "a status of earlier rounds": (L, "system_status", lambda copy: copy.describe(status="onprem")),
    "no code of the benchmark": (
        R,
        "code_missing",
        lambda copy: shutil.rmtree(copy.root / "benchmarks" / copy.shape.benchmark / "implementations"),
    ),
    "a NUL byte in a line": (L, "log_json", in_log(b'"value": true', b'"value": \x00true')),
    "a line cut short": (R, "log_json", in_log(b'"lineno": ', b"\n")),
    "a key twice in a line": (L, "log_odd_json", in_log(b'"value": 32,', b'"value": 64, "value": 32,')),
    # found in review
    "times in seconds": (L, "run_time", lambda copy: copy.edit(in_seconds, copy.all_runs)),
    "times of the future": (R, "run_time", lambda copy: copy.edit(in_the_future, copy.all_runs)),
    "training that resumed at step 5,000": (L, "resumed", edited(resumed, every=True)),
    "the clock starts late in the first interval": (L, "first_interval", edited(late_clock, every=True)),
    "epoch_num in samples": (R, "progress", edited(epochs_in_samples, every=True)),
}
BETA = {"key": "opt_adam_beta_1", "value": 1.5}


@pytest.fixture(scope="module")
def good_packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A package without faults of each benchmark; tests change copies of it."""
    return {
        shape.benchmark: write_package(shape, tmp_path_factory.mktemp(shape.benchmark) / "ORG")
        for shape in (LLAMA, RETINANET)
    }


def own_findings(root: Path, shape: Shape) -> list[Finding]:
    return [one for package in find_packages(root) for one in check_package(package, ruleset(shape.ruleset))]


@pytest.mark.parametrize("shape", [LLAMA, RETINANET], ids=lambda shape: shape.benchmark)
def test_nothing_is_found_in_a_good_package(good_packages: dict[str, Path], shape: Shape) -> None:
    report = check(good_packages[shape.benchmark], ruleset(shape.ruleset))
    assert report.findings == ()
    assert {file.official for file in report.files} == {"passed"}
    assert [score.samples_from for score in report.scores] == [shape.progress]


@pytest.mark.parametrize("name", [name for name, (_, rule, _) in FAULTS.items() if rule is not None])
def test_podium_finds_the_fault(good_packages: dict[str, Path], tmp_path: Path, name: str) -> None:
    shape, rule, plant = FAULTS[name]
    copy = copy_package(good_packages[shape.benchmark], tmp_path / "ORG", shape)
    plant(copy)
    if rule == "scaling":  # compared with what the official package checker writes
        pytest.skip("found together with the official tools")
    found = own_findings(copy.root, shape)
    assert rule in {finding.rule for finding in found}, found
    assert all(finding.path and "\n" not in finding.message and len(finding.message) < 400 for finding in found)


@pytest.fixture(scope="module", params=[10, pytest.param(1, marks=pytest.mark.exhaustive)])
def reports(
    request: pytest.FixtureRequest, good_packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Report]:
    """Reports of `podium submit check` by fault; of every tenth fault, or of every one."""
    found = {}
    for number, name in enumerate(FAULTS):
        if number % request.param == 0:
            shape, _, plant = FAULTS[name]
            copy = copy_package(good_packages[shape.benchmark], tmp_path_factory.mktemp("fault") / "ORG", shape)
            plant(copy)
            found[name] = check(copy.root, ruleset(shape.ruleset))
    return found


@pytest.mark.slow
def test_the_documented_table_is_what_the_tools_find(reports: dict[str, Report]) -> None:
    rows = re.findall(
        r"^\| (\w+) \| (.+?) \| (error|warning|–) \| (error|warning|–) \|$", DOCS.read_text(), re.MULTILINE
    )
    documented = {name: (benchmark, official, own) for benchmark, name, official, own in rows}
    assert documented.keys() == FAULTS.keys()
    for name, report in reports.items():
        found = [
            min((f.severity for f in report.findings if (f.source == "podium") == own), default="–")
            for own in (False, True)
        ]
        assert documented[name] == (FAULTS[name][0].benchmark, *found), name


def test_the_ruleset_is_that_of_the_path_or_of_the_logs(good_packages: dict[str, Path], tmp_path: Path) -> None:
    named = copy_package(good_packages["retinanet"], tmp_path / "training_results_v5.0" / "ORG", RETINANET)
    # A name with a number of a round that did not have the benchmark is another number.
    numbered = copy_package(good_packages["retinanet"], tmp_path / "tools-2.0" / "ORG", RETINANET)
    dated = copy_package(good_packages["retinanet"], tmp_path / "ORG", RETINANET)
    later_package = copy_package(good_packages["llama31_8b"], tmp_path / "later" / "ORG", LLAMA)
    year = 365 * 24 * HOUR
    later_package.edit(
        lambda events: [event.update(time_ms=event["time_ms"] + 2 * year) for event in events], range(10)
    )
    expected = {
        named.root: ("v5.0", "the path names round v5.0"),
        numbered.root: ("v5.1", "the logs' dates are those of round v5.1"),
        dated.root: ("v5.1", "the logs' dates are those of round v5.1"),
        dated.log(): ("v5.1", "the logs' dates are those of round v5.1"),
        later_package.root: ("v6.1", "the newest that includes llama31_8b"),
    }
    for path, found in expected.items():
        chosen = infer_ruleset(path, find_packages(path))
        assert (chosen.ruleset.round, chosen.reason) == found


def test_the_number_of_failures_is_that_of_the_benchmark(good_packages: dict[str, Path], tmp_path: Path) -> None:
    """Of the 40 runs of U-Net3D four may miss the target."""
    root = write_package(UNET, tmp_path / "ORG")
    copy = FaultyCopy(root, UNET)
    for failed, rules in ((4, {"one_not_converged"}), (5, {"not_converged"})):
        copy.edit(fails_unet, range(failed))
        assert {one.rule for one in own_findings(root, UNET)} == rules


def fails_unet(events: Events) -> None:
    at(events, "eval_accuracy", -1)["value"] = 0.9
    at(events, "run_stop")["metadata"]["status"] = "aborted"


UNET_SETTINGS = {"submission_status": "onprem", "global_batch_size": 56, "eval_samples": 42, "train_samples": 168}
UNET = Shape("unet3d", "4.0.0", UNET_SETTINGS, "epoch_num", 117_600, (3,) * 40, 0.5, 0.908)


def test_checkpoints_may_be_evaluated_after_the_run_in_any_order(tmp_path: Path) -> None:
    root = write_package(STABLE_DIFFUSION, tmp_path / "ORG")
    copy = FaultyCopy(root, STABLE_DIFFUSION)

    def evaluate_later(events: Events) -> None:
        evaluations = [event for event in events if event["key"] == "eval_accuracy"]
        events[:] = [
            event for event in events if not event["key"].startswith("eval_") or event["key"] == "eval_samples"
        ]
        for event in reversed(evaluations):
            passes = event is evaluations[-1]
            for metric, good, bad in (("FID", 80.0, 100 + event["value"]), ("CLIP", 0.16, 0.1)):
                metadata = event["metadata"] | {"metric": metric}
                time = events[-1]["time_ms"] + 60_000
                events.append(event | {"value": good if passes else bad, "metadata": metadata, "time_ms": time})

    copy.edit(evaluate_later, range(10))
    assert [one for one in own_findings(root, STABLE_DIFFUSION) if one.rule != "copied"] == []
    copy.edit(lambda events: later("run_stop", -100_000)(events))
    (found,) = [one for one in own_findings(root, STABLE_DIFFUSION) if one.rule == "run_stop_early"]
    assert "block_stop" in found.message
    copy.edit(lambda events: later("run_stop", 100_000)(events))
    copy.edit(lambda events: at(events, "eval_accuracy", 2)["metadata"].update(metric="IS"))
    (found,) = [one for one in own_findings(root, STABLE_DIFFUSION) if one.rule == "eval_accuracy"]
    assert found.message == "eval_accuracy has the metric 'IS' in its metadata; it must be one of FID, CLIP"


SD_SETTINGS = {"global_batch_size": 512, "eval_samples": 30_000, "train_samples": 6_513_144}
STABLE_DIFFUSION = Shape("stable_diffusion", "5.0.0", SD_SETTINGS, "samples_count", 512_000, (3,) * 10, 200.0, 80.0)


def test_the_software_stack_may_be_an_object_or_a_list(good_packages: dict[str, Path], tmp_path: Path) -> None:
    copy = copy_package(good_packages["retinanet"], tmp_path / "ORG", RETINANET)
    for stack, rules in (({"cuda": "13.0"}, set()), ([{"cuda": "13.0"}, "x"], set()), (13.0, {"system_not_text"})):
        copy.describe(other_software_stack=stack)
        assert {one.rule for one in own_findings(copy.root, RETINANET)} == rules


def test_any_quality_may_end_a_run_of_the_open_division(good_packages: dict[str, Path], tmp_path: Path) -> None:
    copy = copy_package(good_packages["llama31_8b"], tmp_path / "ORG", LLAMA)
    copy.describe(division="open")
    copy.edit(lambda events: at(events, "submission_division").update(value="open"), range(10))
    copy.edit(misses)
    (found,) = own_findings(copy.root, LLAMA)
    assert (found.rule, found.severity) == ("run_stop_status", "warning")
    assert found.message.endswith("in the open division, state the quality that was reached")


def test_every_file_of_a_package_stays_as_it_is(good_packages: dict[str, Path], tmp_path: Path) -> None:
    """The official tools delete scaling.json or write it where they are run on a package itself."""
    copy = copy_package(good_packages["retinanet"], tmp_path / "ORG", RETINANET)
    (copy.results / "scaling.json").write_text('{"scaling_factor": 1.5}', encoding="utf-8")
    before = {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")}
    report = check(copy.root, ruleset("5.1.0"))
    assert "scaling" in {finding.rule for finding in report.findings}
    after = {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")}
    assert after == before
