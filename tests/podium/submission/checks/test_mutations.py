"""Single faults in a good package: Podium finds each of them, and those that the official tools miss are recorded.

The official tools are run on each faulty package, so that the record stays true for their present version.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.config.schema import RunConfig
from podium.core.finding import Finding
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.mllog.write import PROFILED, RESTARTED, SWEPT
from podium.submission.check import check
from podium.submission.checks.all_checks import check_package
from tests.podium.submission.checks.conftest import write_log

Event = dict[str, Any]
Events = list[Event]
ALL = range(10)
HOUR = 3_600_000


def at(events: Events, key: str, which: int = 0) -> Event:
    return [event for event in events if event["key"] == key][which]


def value(key: str, new: Any) -> Callable[[Events], object]:
    return lambda events: at(events, key).update(value=new)


def renamed(key: str, name: str) -> Callable[[Events], object]:
    return lambda events: at(events, key).update(key=name)


def drop(key: str, which: int = 0) -> Callable[[Events], object]:
    return lambda events: events.remove(at(events, key, which))


def double(key: str) -> Callable[[Events], object]:
    return lambda events: events.insert(events.index(at(events, key)) + 1, dict(at(events, key)))


def stop(**metadata: Any) -> Callable[[Events], object]:
    return lambda events: at(events, "run_stop")["metadata"].update(metadata)


def later(key: str, ms: float, which: int = 0) -> Callable[[Events], object]:
    return lambda events: at(events, key, which).update(time_ms=at(events, key, which)["time_ms"] + ms)


def late_from(key: str, ms: float) -> Callable[[Events], None]:
    """Shift an event and all after it by `ms`."""

    def change(events: Events) -> None:
        for event in events[events.index(at(events, key)) :]:
            event["time_ms"] += ms

    return change


def without(events: Events, key: str) -> Events:
    return [event for event in events if event["key"] != key]


def late_start(events: Events) -> None:
    """Set the time of run_start to 1 ms before the first evaluation."""
    at(events, "run_start")["time_ms"] = at(events, "eval_accuracy")["time_ms"] - 1


def epochs(change: Callable[[float], Any]) -> Callable[[Events], None]:
    def apply(events: Events) -> None:
        for event in events:
            if event["key"] == "eval_accuracy":
                event["metadata"]["epoch_num"] = change(event["metadata"]["epoch_num"])

    return apply


def stop_before_its_evaluation(events: Events) -> None:
    """Move run_stop to before the last evaluation, by line and by time."""
    stopped, passed = at(events, "run_stop"), at(events, "eval_accuracy", -1)
    events.remove(stopped)
    events.insert(events.index(passed), stopped)
    stopped["time_ms"] = passed["time_ms"] - 5_000


def stop_printed_before(events: Events) -> None:
    """Move run_stop to before the last evaluation by line only."""
    stopped, passed = at(events, "run_stop"), at(events, "eval_accuracy", -1)
    events.remove(stopped)
    events.insert(events.index(passed), stopped)


def evaluates_after_target(events: Events) -> None:
    passed = at(events, "eval_accuracy", -1)
    more = {**passed, "value": 0.7219, "time_ms": passed["time_ms"] + 20}
    more["metadata"] = {**passed["metadata"], "epoch_num": passed["metadata"]["epoch_num"] + 150_080}
    events.insert(events.index(passed) + 1, more)


def no_pass(events: Events) -> None:
    at(events, "eval_accuracy", -1)["value"] = 0.7199


def fails(events: Events) -> None:
    no_pass(events)
    stop(status="aborted")(events)


def restarted(events: Events) -> None:
    start = at(events, "run_start")
    events.insert(events.index(start) + 1, {**start, "event_type": "POINT_IN_TIME", "key": RESTARTED, "value": 1})


def profiled(events: Events) -> None:
    start = at(events, "run_start")
    events.insert(events.index(start) + 1, {**start, "event_type": "POINT_IN_TIME", "key": PROFILED, "value": 4})


def swept(events: Events) -> None:
    start = at(events, "run_start")
    events.insert(events.index(start) + 1, {**start, "event_type": "POINT_IN_TIME", "key": SWEPT, "value": 0})


def fast(events: Events) -> None:
    """Let the run pass at its tenth evaluation, with far fewer samples than the reference needs."""
    passed = at(events, "eval_accuracy", -1)
    keep = [event for event in events if event["key"] not in ("run_stop", "train_samples")]
    evaluations = [event for event in keep if event["key"] == "eval_accuracy"]
    last = keep.index(evaluations[9])
    ends = [at(events, "run_stop"), at(events, "train_samples")]
    evaluations[9]["value"] = passed["value"]
    ends[1]["value"] = evaluations[9]["metadata"]["epoch_num"]
    for event in ends:
        event["time_ms"] = evaluations[9]["time_ms"] + 50
    events[:] = [*keep[: last + 2], *ends]


def in_file(path: Callable[[Any], Path], change: Callable[[bytes], bytes]) -> Callable[[Any], None]:
    def apply(copy: Any) -> None:
        content = path(copy).read_bytes()
        changed = change(content)
        assert changed != content
        path(copy).write_bytes(changed)

    return apply


def in_log(old: bytes, new: bytes) -> Callable[[Any], None]:
    return in_file(lambda copy: copy.log(), lambda content: content.replace(old, new, 1))


def copied(copy: Any) -> None:
    """Copy a run with another seed and at another time."""
    copy.log(4).write_bytes(copy.log(3).read_bytes())

    def disguise(events: Events) -> None:
        at(events, "seed")["value"] = 4321
        for event in events:
            event["time_ms"] += 3_000_000

    copy.edit(disguise, [4])


def copied_with_other_accuracies(copy: Any) -> None:
    copied(copy)

    def disguise(events: Events) -> None:
        for event in events:
            if event["key"] == "eval_accuracy":
                event["value"] += 1e-9

    copy.edit(disguise, [4])


def edited(change: Callable[[Events], object], numbers: Any = (3,)) -> Callable[[Any], None]:
    return lambda copy: copy.edit(change, numbers)


def described(**changes: Any) -> Callable[[Any], None]:
    return lambda copy: copy.describe(**changes)


def _implementation(copy: Any) -> Path:
    return Path(copy.root / "benchmarks" / "bert" / "implementations" / "podium")


# By fault: the rule of Podium's checks that finds it, and the function that plants it.
FAULTS: dict[str, tuple[str, Callable[[Any], object]]] = {
    # the timed run
    "aborted though it passed": ("run_stop_status", edited(stop(status="aborted"))),
    "an unknown status": ("run_stop_status", edited(stop(status="ok"))),
    "no status": ("run_stop_status", edited(lambda events: at(events, "run_stop")["metadata"].pop("status"))),
    "success though nothing passed": ("run_stop_status", edited(no_pass)),
    "no run_stop": ("run_stop_missing", edited(drop("run_stop"))),
    "run_stop twice": ("run_stop_twice", edited(double("run_stop"))),
    "no run_start": ("run_start_missing", edited(drop("run_start"))),
    "run_start twice": ("run_start_twice", edited(double("run_start"))),
    "run_stop before its evaluation": ("run_stop_early", edited(stop_before_its_evaluation)),
    "run_stop printed before its evaluation": ("run_stop_early", edited(stop_printed_before)),
    "run_stop long before its evaluation, by time": ("run_stop_early", edited(later("run_stop", -60_000))),
    "run_stop before run_start, by time": ("run_time", edited(later("run_stop", -HOUR))),
    "run_stop an hour late": ("run_stop_late", edited(late_from("run_stop", HOUR))),
    "a run of a month": ("run_time", edited(late_from("run_stop", 720 * HOUR), [9])),
    "an evaluation before run_start": ("order", edited(later("eval_accuracy", -HOUR))),
    "the clock starts after training": ("order", edited(late_start)),
    "a time that goes back": ("times_backwards", edited(later("block_start", -60_000, 3))),
    "a time_ms of 14 digits": ("time_digits", edited(lambda events: events[0].update(time_ms=17_000_000_000_000))),
    "40 minutes to init_stop": ("initialisation", edited(later("init_start", -40 * 60_000))),
    "40 minutes between init_stop and run_start": ("initialisation", edited(late_from("run_start", 40 * 60_000), [9])),
    "no cache_clear": ("cache_clear", edited(drop("cache_clear"))),
    "caches not cleared": ("cache_clear", edited(value("cache_clear", False))),
    "caches cleared after the start": ("cache_clear", edited(later("cache_clear", 60_000))),
    "restarted": ("restarted", edited(restarted)),
    "profiled": ("profiled", edited(profiled)),
    "swept": ("swept", edited(swept)),
    # evaluation and samples
    "an evaluation left out": ("evaluation_schedule", edited(drop("eval_accuracy", 5))),
    "twice as many samples between evaluations": ("evaluation_schedule", edited(epochs(lambda n: 2 * n))),
    "evaluations a few batches late": ("evaluation_schedule", edited(epochs(lambda n: n + 4 * 448))),
    "evaluations beyond the target": ("evaluation_after_target", edited(evaluates_after_target)),
    "epoch_num a constant": ("epoch_num", edited(epochs(lambda n: 1))),
    "epoch_num in epochs": ("epoch_num", edited(epochs(lambda n: n / 156_726_829))),
    "no epoch_num": ("epoch_num", edited(lambda events: at(events, "eval_accuracy")["metadata"].pop("epoch_num"))),
    "1,000 evaluation samples": ("eval_samples", edited(value("eval_samples", 1_000))),
    "no eval_samples": ("eval_samples", edited(drop("eval_samples"))),
    "the data's size as train_samples": ("train_samples", edited(value("train_samples", 156_726_829))),
    "train_samples a few batches off": ("train_samples", edited(value("train_samples", 17 * 150_080 + 900))),
    "train_samples of 1": ("train_samples", edited(value("train_samples", 1), ALL)),
    "no train_samples": ("train_samples", edited(drop("train_samples"))),
    "train_samples NaN": ("log_odd_json", edited(value("train_samples", float("nan")))),
    "an accuracy NaN": ("log_odd_json", edited(value("eval_accuracy", float("nan")))),
    "an accuracy in percent": ("eval_accuracy", edited(value("eval_accuracy", 35.2))),
    "an accuracy of 1": ("eval_accuracy", edited(value("eval_accuracy", 1.0))),
    "an accuracy as text": ("eval_accuracy", edited(value("eval_accuracy", "0.5"))),
    "an evaluation logged twice": ("eval_accuracy_repeated", edited(double("eval_accuracy"))),
    # settings
    "division with a capital in a log": ("division", edited(value("submission_division", "Closed"))),
    "division open in a log": ("division_differs", edited(value("submission_division", "open"))),
    "no division": ("division", edited(drop("submission_division"))),
    "another benchmark": ("benchmark", edited(value("submission_benchmark", "resnet"))),
    "a placeholder as org": ("org", edited(value("submission_org", "SUBMISSION_ORG_PLACEHOLDER"), ALL)),
    "an empty platform": ("platform", edited(value("submission_platform", ""), ALL)),
    "another org": ("org_differs", edited(value("submission_org", "NVIDIA"), ALL)),
    "another status": ("status_differs", edited(value("submission_status", "cloud"), ALL)),
    "a status that is none": ("log_status", edited(value("submission_status", "available"), ALL)),
    "no seed": ("seed_missing", edited(drop("seed"))),
    "a seed that is no number": ("seed_missing", edited(value("seed", "now"))),
    "the seed of another run": ("seed_repeated", edited(value("seed", 104))),
    "weight decay 0": ("weight_decay_zero", edited(value("opt_lamb_weight_decay_rate", 0.0), ALL)),
    "a beta above 1": ("setting", edited(value("opt_lamb_beta_2", 1.5), ALL)),
    "a learning rate of 0": ("setting", edited(value("opt_base_learning_rate", 0), ALL)),
    "another learning rate in one run": ("settings_differ", edited(value("opt_base_learning_rate", 5e-4))),
    "another batch size in one run": ("settings_differ", edited(value("global_batch_size", 449))),
    "two learning rates in one log": (
        "logged_twice",
        edited(lambda events: events.insert(9, {**at(events, "opt_base_learning_rate"), "value": 1e-4}), ALL),
    ),
    "two epsilons": ("contradiction", edited(value("opt_epsilon", 1e-8), ALL)),
    "two warm-ups": ("contradiction", edited(value("num_warmup_steps", 100), ALL)),
    "a schedule shorter than the run": ("contradiction", edited(value("opt_learning_rate_training_steps", 5_000), ALL)),
    "accumulation that does not divide": ("contradiction", edited(value("gradient_accumulation_steps", 3), ALL)),
    "adamw in closed": ("optimizer", edited(value("opt_name", "adamw"), ALL)),
    "a misspelled key": ("key_misspelled", edited(renamed("micro_batch_size", "micro_batchsize"), ALL)),
    "a key without one of its words": (
        "key_misspelled",
        edited(renamed("lowest_numerical_precision_in_linear", "lowest_numerical_precision_linear"), ALL),
    ),
    "another precision in one run": (
        "settings_differ",
        edited(value("lowest_numerical_precision_in_attn", "fp16")),
    ),
    "a configuration that is not in the package": (
        "config_filename",
        edited(value("config_filename", "config_DGXA100.sh"), ALL),
    ),
    "an empty config_filename": ("config_filename", edited(value("config_filename", ""), ALL)),
    # the set
    "nine runs": ("run_count", lambda copy: copy.log().unlink()),
    "eleven runs": ("run_count", lambda copy: (copy.results / "result_10.txt").write_bytes(copy.log().read_bytes())),
    "a result by another name": ("run_count", lambda copy: copy.log().rename(copy.results / "run_3.txt")),
    "a run copied": ("copied", copied),
    "a run copied with other accuracies": ("copied", copied_with_other_accuracies),
    "a result that is not numbered": ("result_names", lambda copy: copy.log().rename(copy.results / "result_x.txt")),
    "a result numbered 12": ("result_names", lambda copy: copy.log(9).rename(copy.log(12))),
    "two runs at once": ("overlap", edited(late_from("submission_benchmark", -2_900_000))),
    "two runs that failed": ("not_converged", edited(fails, [3, 4])),
    "one run that failed": ("one_not_converged", edited(fails)),
    "a file among the results": ("unknown_file", lambda copy: (copy.results / "notes.md").touch()),
    # the log as text
    "a line cut short": ("log_json", in_log(b'"lineno": ', b"\n")),
    "no metadata": ("log_fields", in_log(b'"metadata"', b'"meta"')),
    "two events on a line": ("log_two_events", in_log(b"}}\n", b"}}")),
    "a key twice in a line": ("log_odd_json", in_log(b'"value": "bert"', b'"value": "x", "value": "bert"')),
    "a damaged token": ("log_token", in_log(b":::MLLOG ", b":::MLLOG")),
    "Latin-1": ("log_not_utf8", in_log(b'"submission_platform", "value": "', b'"submission_platform", "value": "\xd6')),
    "an empty log": ("log_empty", in_file(lambda copy: copy.log(), lambda content: b"")),
    # descriptions
    "division with a capital in the description": ("system_division", described(division="Closed")),
    "a status of earlier rounds": ("system_status", described(status="onprem")),
    "a field missing": ("system_field_missing", described(sw_notes=...)),
    "a number that is no text": ("system_not_text", described(number_of_nodes=1)),
    "accelerators that are no text": ("system_not_text", described(accelerators_per_node=8)),
    "nodes in words": ("system_number", described(number_of_nodes="one")),
    "another system_name": ("system_name", described(system_name="other")),
    "an empty submitter": ("system_empty", described(framework=" ")),
    "a description by another name": (
        "system_missing",
        lambda copy: copy.system.rename(copy.system.with_name("other.json")),
    ),
    "a description that is no JSON": ("system_json", lambda copy: copy.system.write_text("{")),
    "a description with a key twice": (
        "system_json",
        in_file(lambda copy: copy.system, lambda content: content.replace(b"{", b'{"framework": "x", ', 1)),
    ),
    "a folder named after another submitter": ("folder_name", described(submitter="Another")),
    # the tree
    "no code": ("code_missing", lambda copy: (copy.root / "benchmarks").rename(copy.root.parent / "elsewhere")),
    "no implementation": ("code_missing", lambda copy: _implementation(copy).rename(copy.root / "code")),
    "no source file": ("code_missing", lambda copy: (_implementation(copy) / "train.py").unlink()),
    "no README": ("readme_missing", lambda copy: (_implementation(copy) / "README.md").unlink()),
    "no scripts of the system": (
        "system_code_missing",
        lambda copy: (copy.root / "benchmarks/bert/mine").rename(copy.root / "benchmarks/bert/other"),
    ),
    "a name with a space": ("file_name", lambda copy: (_implementation(copy) / "a b.py").touch()),
    "a name that begins with a dot": ("file_name", lambda copy: (_implementation(copy) / ".env").touch()),
    "a name with a colon": ("file_name", lambda copy: (_implementation(copy) / "a:b.py").touch()),
    "two names alike but for case": ("file_name", lambda copy: (_implementation(copy) / "Train.py").touch()),
    "results of BERT with capitals": (
        "benchmark_unknown",
        lambda copy: copy.results.rename(copy.results.with_name("BERT")),
    ),
    "results of another benchmark": ("no_results", lambda copy: copy.results.rename(copy.results.with_name("resnet"))),
    "an empty results/": ("no_results", lambda copy: _emptied(copy.results.parent.parent)),
    "an empty folder of a system": ("no_results", lambda copy: _emptied(copy.results.parent)),
    "results/ a file": ("no_results", lambda copy: _emptied(copy.results.parent.parent, as_file=True)),
    "a file among the systems": ("unknown_file", lambda copy: (copy.system.parent / "notes.md").touch()),
}


def _emptied(folder: Path, as_file: bool = False) -> None:
    shutil.rmtree(folder)
    folder.write_text("none\n") if as_file else folder.mkdir()


# Faults that the official tools find and Podium's checks do not.
OFFICIAL_ONLY: dict[str, Callable[[Any], object]] = {
    "fewer samples than the reference": edited(fast, ALL),
    "no gradient_accumulation_steps": edited(drop("gradient_accumulation_steps"), ALL),
    "no LAMB epsilon": edited(drop("opt_lamb_epsilon"), ALL),
    "no start_warmup_step": edited(drop("start_warmup_step"), ALL),
    "no init_stop": edited(drop("init_stop"), ALL),
    "no block_start": edited(lambda events: events.__setitem__(slice(None), without(events, "block_start")), ALL),
}

# Faults about which none of the five official tools reports anything.
MISSED = {
    "run_stop before its evaluation",
    "run_stop printed before its evaluation",
    "run_stop long before its evaluation, by time",
    "run_stop before run_start, by time",
    "run_stop an hour late",
    "a run of a month",
    "an evaluation before run_start",
    "a time that goes back",
    "a time_ms of 14 digits",
    "40 minutes between init_stop and run_start",
    "caches not cleared",
    "caches cleared after the start",
    "restarted",
    "profiled",
    "swept",
    "an evaluation left out",
    "twice as many samples between evaluations",
    "evaluations a few batches late",
    "evaluations beyond the target",
    "1,000 evaluation samples",
    "the data's size as train_samples",
    "train_samples a few batches off",
    "train_samples NaN",
    "an accuracy NaN",
    "an accuracy in percent",
    "an accuracy of 1",
    "division open in a log",
    "a placeholder as org",
    "an empty platform",
    "another org",
    "another status",
    "a status that is none",
    "weight decay 0",
    "a beta above 1",
    "a learning rate of 0",
    "another learning rate in one run",
    "two epsilons",
    "two warm-ups",
    "a schedule shorter than the run",
    "accumulation that does not divide",
    "adamw in closed",
    "a misspelled key",
    "a key without one of its words",
    "another precision in one run",
    "a configuration that is not in the package",
    "an empty config_filename",
    "a run copied",
    "a run copied with other accuracies",
    "a result that is not numbered",
    "a result numbered 12",
    "train_samples of 1",
    "the clock starts after training",
    "a folder named after another submitter",
    "results of another benchmark",
    "an empty results/",
    "an empty folder of a system",
    "results/ a file",
    "two runs at once",
    "a key twice in a line",
    "Latin-1",
    "division with a capital in the description",
    "a number that is no text",
    "another system_name",
    "an empty submitter",
    "a description by another name",
    "a description with a key twice",
    "no code",
    "no implementation",
    "no source file",
    "no README",
    "no scripts of the system",
    "a name with a colon",
    "two names alike but for case",
    "results of BERT with capitals",
    "a file among the systems",
}
# Faults that the official tools accept with a warning, which may be about something else.
WARNED = {
    "aborted though it passed",
    "an unknown status",
    "success though nothing passed",
    "no run_stop",
    "run_stop twice",
    "no run_start",
    "run_start twice",
    "40 minutes to init_stop",
    "no cache_clear",
    "no eval_samples",
    "no train_samples",
    "no division",
    "one run that failed",
    "a file among the results",
}


def own_findings(root: Path) -> list[Finding]:
    return [finding for package in find_packages(root) for finding in check_package(package, ruleset("5.0.0"))]


def test_there_are_more_than_forty_faults() -> None:
    assert len(FAULTS) >= 40


def test_podium_finds_nothing_in_the_good_package(good_package: Path) -> None:
    assert own_findings(good_package) == []


@pytest.mark.parametrize("name", FAULTS)
def test_podium_finds_the_fault(copy: Any, name: str) -> None:
    rule, plant = FAULTS[name]
    plant(copy)
    found = own_findings(copy.root)
    assert rule in {finding.rule for finding in found}, found
    for finding in found:
        json.dumps([finding.path, finding.message])
        assert finding.path and "\n" not in finding.message and len(finding.message) < 400


@pytest.fixture(scope="module", params=[8, pytest.param(1, marks=pytest.mark.exhaustive)])
def joined(
    request: pytest.FixtureRequest, good_package: Path, tmp_path_factory: pytest.TempPathFactory, plant_in: Any
) -> dict[str, list[Finding]]:
    """Findings of `podium submit check` by fault: of Podium's checks and the official tools.

    All faulty packages form one round. Every eighth fault is planted, or every one.
    """
    folder = tmp_path_factory.mktemp("round")
    plants = {
        "nothing": lambda copy: None,
        **{name: FAULTS[name][1] for name in list(FAULTS)[:: request.param]},
        **OFFICIAL_ONLY,
    }
    names = {}
    for number, (name, plant) in enumerate(plants.items()):
        names[f"fault_{number}"] = name
        copy = plant_in(good_package, folder / f"fault_{number}")
        copy.edit(value("submission_org", copy.root.name), ALL)
        copy.describe(submitter=copy.root.name)
        plant(copy)
    found: dict[str, list[Finding]] = {name: [] for name in plants}
    for finding in check(folder, ruleset("5.0.0")).findings:
        found[names[finding.path.split("/")[0]]].append(finding)
    return found


@pytest.mark.slow
def test_podium_and_the_official_tools_together_find_every_fault(joined: dict[str, list[Finding]]) -> None:
    assert {name for name, findings in joined.items() if not findings} == {"nothing"}
    own_findings = {
        name for name, findings in joined.items() if any(finding.source == "podium" for finding in findings)
    }
    assert FAULTS.keys() & joined.keys() <= own_findings


@pytest.mark.slow
def test_faults_missed_by_the_official_tools_are_those_recorded(joined: dict[str, list[Finding]]) -> None:
    official = {name: {f.severity for f in findings if f.source != "podium"} for name, findings in joined.items()}
    assert {name for name, severities in official.items() if not severities} - {"nothing"} == MISSED & joined.keys()
    assert {name for name, severities in official.items() if severities == {"warning"}} == WARNED & joined.keys()


def test_a_missing_tensor_initialisation_fails_in_round_2_0(good_config: RunConfig, tmp_path: Path) -> None:
    """A rule of the rounds up to 2.1 only, which the official tools check."""
    config = good_config.model_copy(update={"seed": 100})
    write_log(tmp_path / "result_0.txt", config, 16, tensors=None)
    write_log(tmp_path / "result_1.txt", config, 16, tensors=len(config.model_size.tensors(30_522)) - 1)
    assert check(tmp_path / "result_0.txt", ruleset("2.0.0")).files[0].official == "passed"
    report = check(tmp_path / "result_1.txt", ruleset("2.0.0"))
    assert {finding.source for finding in report.findings if finding.severity == "error"} >= {"compliance_checker"}
