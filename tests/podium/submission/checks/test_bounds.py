"""Bounds of the checks: a value at the bound has no finding, and one just beyond it has."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.core.finding import Finding
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.checks.all_checks import check_package

Event = dict[str, Any]


def check(root: Path, rules: str = "5.0.0") -> list[Finding]:
    return [finding for package in find_packages(root) for finding in check_package(package, ruleset(rules))]


def rules_of(root: Path, rules: str = "5.0.0") -> set[str]:
    return {finding.rule for finding in check(root, rules)}


def at(events: list[Event], key: str, which: int = 0) -> Event:
    return [event for event in events if event["key"] == key][which]


def move(key: str, ms: float, which: int = 0) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at(events, key, which)["time_ms"] += ms

    return change


@pytest.mark.parametrize(("accuracy", "right"), [(0.72, True), (0.7199999, False), (0.9999, True), (1.0, False)])
def test_an_accuracy_of_exactly_0_720_reaches_the_target(copy: Any, accuracy: float, right: bool) -> None:
    copy.edit(lambda events: at(events, "eval_accuracy", -1).update(value=accuracy))
    assert ("run_stop_status" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(("ms", "right"), [(-2_000, True), (-2_100, False)])
def test_times_may_go_back_by_the_allowed_clock_skew(copy: Any, ms: float, right: bool) -> None:
    copy.edit(move("block_start", ms, 3))
    assert ("times_backwards" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(("ms", "right"), [(-2_040, True), (-2_060, False)])
def test_run_stop_may_be_early_by_the_allowed_clock_skew(copy: Any, ms: float, right: bool) -> None:
    """run_stop is 50 ms after the evaluation, and one percent of the run is more than 2 s."""
    copy.edit(move("run_stop", ms))
    assert ("run_stop_early" not in rules_of(copy.root)) == right


def shorten(seconds: float) -> Callable[[list[Event]], None]:
    """Scale the run to `seconds` from run_start to the last evaluation, with run_stop at the same time."""

    def change(events: list[Event]) -> None:
        start, passed = at(events, "run_start")["time_ms"], at(events, "eval_accuracy", -1)["time_ms"]
        for event in events:
            if event["time_ms"] >= start:
                event["time_ms"] = start + min(1, (event["time_ms"] - start) / (passed - start)) * seconds * 1e3

    return change


@pytest.mark.parametrize(
    ("seconds", "ms", "right"),
    [(33, 326, True), (33, 328, False), (33, 1_999, False), (3, 50, True), (3, 51, False), (300, 2_000, True)],
)
def test_in_short_runs_run_stop_may_be_early_by_one_percent(copy: Any, seconds: float, ms: float, right: bool) -> None:
    copy.edit(shorten(seconds))
    copy.edit(move("run_stop", -ms))
    assert ("run_stop_early" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(("ms", "right"), [(0, True), (326, True), (334, False), (1_999, False)])
def test_in_short_runs_run_start_may_be_late_by_one_percent(copy: Any, ms: float, right: bool) -> None:
    """The run takes 33 s, less the delay of its start."""
    copy.edit(shorten(33))
    copy.edit(move("run_start", ms))
    assert ("order" not in rules_of(copy.root)) == right


@pytest.mark.parametrize("key", ["block_start", "epoch_start"])
def test_training_before_run_start_by_time_is_an_error(copy: Any, key: str) -> None:
    """The first evaluation is 1 ms after run_start."""

    def change(events: list[Event]) -> None:
        at(events, "run_start")["time_ms"] = at(events, "eval_accuracy")["time_ms"] - 1
        for event in events:
            if event["key"] in ("block_stop", "eval_start"):
                event["time_ms"] = max(event["time_ms"], at(events, "run_start")["time_ms"])
            event["key"] = event["key"].replace("block_", key.removesuffix("start"))

    copy.edit(change)
    found = [finding for finding in check(copy.root) if finding.rule == "order"]
    assert [finding.severity for finding in found] == ["error"] and found[0].message.startswith(key)


def test_training_logged_before_run_start_is_an_error(copy: Any) -> None:
    def change(events: list[Event]) -> None:
        start = at(events, "run_start")
        events.remove(start)
        events.insert(events.index(at(events, "block_stop")), start)

    copy.edit(change)
    assert "order" in rules_of(copy.root)


@pytest.mark.parametrize(("ms", "right"), [(91_900, True), (92_000, False)])
def test_run_stop_may_be_late_by_one_evaluation_interval(copy: Any, ms: float, right: bool) -> None:
    copy.edit(move("run_stop", ms))
    assert ("run_stop_late" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(
    ("division", "minutes", "right"),
    [("closed", 29.9, True), ("closed", 30, False), ("open", 239, True), ("open", 240, False)],
)
def test_initialisation_is_limited_by_the_division(copy: Any, division: str, minutes: float, right: bool) -> None:
    copy.describe(division=division)
    copy.edit(lambda events: at(events, "submission_division").update(value=division), range(10))
    copy.edit(move("init_start", 20_000 - 60_000 * minutes))
    assert ("initialisation" not in rules_of(copy.root)) == right


def test_round_1_1_limits_initialisation_to_30_minutes_in_open_too(copy: Any) -> None:
    copy.describe(division="open")
    copy.edit(lambda events: at(events, "submission_division").update(value="open"), range(10))
    copy.edit(move("init_start", -60_000 * 31))
    assert "initialisation" in rules_of(copy.root, "1.1.0") and "initialisation" not in rules_of(copy.root, "2.0.0")


@pytest.mark.parametrize(
    ("more", "severity"),
    [
        (-1_581, "warning"),
        (-1_580, None),
        (-80, None),
        (1_420, None),
        (1_421, "warning"),
        (25_800, "warning"),
        (25_900, "error"),
    ],
)
def test_the_first_evaluation_may_deviate_by_one_percent(copy: Any, more: int, severity: str | None) -> None:
    """The first one is 80 samples late, at the end of a batch; all others follow as before."""

    def change(events: list[Event]) -> None:
        for event in events:
            if event["key"] == "eval_accuracy":
                event["metadata"]["epoch_num"] += more

    copy.edit(change)
    found = {finding.severity for finding in check(copy.root) if finding.rule == "evaluation_schedule"}
    assert found == ({severity} if severity else set())


def test_the_open_division_has_no_rules_on_schedule_and_samples(copy: Any) -> None:
    def change(events: list[Event]) -> None:
        at(events, "submission_division")["value"] = "open"
        at(events, "eval_samples")["value"] = 20
        at(events, "opt_name")["value"] = "adamw"
        at(events, "train_samples")["value"] *= 3
        at(events, "opt_learning_rate_training_steps")["value"] *= 3
        for event in events:
            if event["key"] == "eval_accuracy":
                event["metadata"]["epoch_num"] *= 3

    copy.describe(division="open")
    copy.edit(change, range(10))
    assert rules_of(copy.root) == set()


@pytest.mark.parametrize(("more", "right"), [(448, True), (449, False), (-448, True), (-449, False)])
def test_train_samples_may_deviate_by_one_batch(copy: Any, more: int, right: bool) -> None:
    copy.edit(lambda events: at(events, "train_samples").update(value=at(events, "train_samples")["value"] + more))
    assert ("train_samples" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(("rules", "severity"), [("4.0.0", "warning"), ("4.1.0", "error"), ("5.0.0", "error")])
def test_seeds_are_required_from_ruleset_4_1_on(copy: Any, rules: str, severity: str) -> None:
    copy.edit(lambda events: at(events, "seed").update(value=101))
    copy.edit(lambda events: events.remove(at(events, "seed")), [5])
    found = {finding.rule: finding.severity for finding in check(copy.root, rules)}
    assert found == {"seed_repeated": severity, "seed_missing": severity}


@pytest.mark.parametrize(("rules", "wanted"), [("4.0.0", {"org", "log_status"}), ("4.1.0", {"org"}), ("5.0.0", set())])
def test_logged_names_are_required_by_the_rulesets_that_check_them(copy: Any, rules: str, wanted: set[str]) -> None:
    for key in ("submission_org", "submission_status"):
        copy.edit(lambda events, key=key: events.remove(at(events, key)))
    assert rules_of(copy.root, rules) == wanted


@pytest.mark.parametrize(
    ("rules", "division", "allowed"),
    [("2.0.0", "closed", False), ("2.1.0", "closed", True), ("5.0.0", "closed", True), ("5.0.0", "open", False)],
)
def test_scaling_json_is_allowed_only_where_scores_are_scaled(
    copy: Any, rules: str, division: str, allowed: bool
) -> None:
    copy.describe(division=division)
    (copy.results / "scaling.json").write_text('{"scaling_factor": 0.5}')
    (copy.results / "package_checker_params").touch()
    found = [finding for finding in check(copy.root, rules) if finding.rule in ("scaling", "unknown_file")]
    assert [(one.path, one.severity) for one in found] == (
        [] if allowed else [("results/mine/bert/scaling.json", "error")]
    )


def test_equal_values_logged_by_several_ranks_are_no_finding(copy: Any) -> None:
    copy.edit(lambda events: events.insert(9, dict(at(events, "opt_base_learning_rate"))), range(10))
    assert rules_of(copy.root) == set()


def test_a_run_submitted_for_two_systems_is_an_error(copy: Any) -> None:
    other = copy.root / "results" / "other" / "bert"
    other.mkdir(parents=True)
    for path in copy.results.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    found = [finding for finding in check(copy.root) if finding.rule == "copied"]
    assert len(found) == 10 and found[0].path == "results/other/bert/result_0.txt"
    assert "results/mine/bert/result_0.txt" in found[0].message


@pytest.mark.parametrize(("evaluations", "same_seed", "right"), [(1, False, True), (1, True, False), (3, False, False)])
def test_few_equal_accuracies_alone_do_not_mean_the_same_run(
    copy: Any, evaluations: int, same_seed: bool, right: bool
) -> None:
    """Runs 3 and 4 have different times; their last accuracies, and their seeds or not, are made equal."""

    def shorten(events: list[Event]) -> None:
        found = [event for event in events if event["key"] == "eval_accuracy"]
        for number, event in enumerate(found[-evaluations:]):
            event["value"] = 0.5 if number < evaluations - 1 else 0.75
            event["time_ms"] += copy_number
        for event in found[:-evaluations]:
            events.remove(event)
        if same_seed:
            at(events, "seed")["value"] = 17

    for copy_number in (3, 4):
        copy.edit(shorten, [copy_number])
    assert ("copied" not in rules_of(copy.root)) == right


def test_findings_name_file_and_line(copy: Any) -> None:
    copy.edit(lambda events: at(events, "eval_samples").update(value=20), range(10))
    found = check(copy.root)[3]
    line = copy.log().read_text().splitlines()[(found.line or 0) - 1]
    assert '"eval_samples"' in line
    assert (found.path, found.severity, found.source) == ("results/mine/bert/result_3.txt", "error", "podium")
    assert found.message == "eval_samples is 20; in the closed division it is 10,000"


def test_parts_of_a_package_are_checked_alone(copy: Any) -> None:
    assert check(copy.results) == [] and check(copy.results.parent) == []
    assert check(copy.log()) == []
    copy.log(5).unlink()
    assert {finding.rule for finding in check(copy.results)} == {"run_count"}


def test_links_out_of_the_package_are_not_followed(copy: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "code"
    outside.mkdir(parents=True)
    (outside / ".hidden").touch()
    implementations = copy.root / "benchmarks" / "bert" / "implementations"
    (implementations / "linked").symlink_to(outside)
    (copy.root / "results" / "linked").symlink_to(outside.parent)
    assert check(copy.root) == []


def test_code_in_subfolders_is_found(copy: Any) -> None:
    implementation = copy.root / "benchmarks" / "bert" / "implementations" / "podium"
    (implementation / "src").mkdir()
    (implementation / "train.py").rename(implementation / "src" / "train.py")
    assert check(copy.root) == []


@pytest.mark.parametrize(
    ("old", "new", "severity"),
    [
        ('"value": 10000,', '"value": NaN,', "error"),
        ('"value": 10000,', '"value": "10000",', "error"),
        ('"key": "block_start",', '"key": "block_start", "step": NaN,', "warning"),
        ('"INTERVAL_START"', '"START"', "warning"),
        (":::MLLOG {", ":::MLLOG {{", "error"),
        (":::MLLOG {", "0: :::MLLOG {", None),
        ("}\n", "}\r\n", None),
    ],
)
def test_damage_is_an_error_only_where_values_are_lost(copy: Any, old: str, new: str, severity: str | None) -> None:
    for number in range(10):
        copy.log(number).write_bytes(copy.log(number).read_bytes().replace(old.encode(), new.encode()))
    found = [finding.severity for finding in check(copy.root)]
    assert min(found, default=None) == severity


@pytest.mark.parametrize(("described", "severity"), [("closed", "error"), ("open", "warning")])
def test_a_log_of_the_other_division_is_an_error_only_in_a_closed_system(
    copy: Any, described: str, severity: str
) -> None:
    """An open system with closed logs was accepted; a closed one with open logs escapes the closed rules."""
    copy.describe(division=described)
    logged = {"closed": "open", "open": "closed"}[described]
    copy.edit(lambda events: at(events, "submission_division").update(value=logged), range(10))
    assert {(finding.rule, finding.severity) for finding in check(copy.root)} == {("division_differs", severity)}


@pytest.mark.parametrize(
    ("field", "severity"), [("accelerators_per_node", "error"), ("number_of_nodes", "warning"), ("division", "error")]
)
def test_a_field_that_is_not_text_is_an_error_only_where_official_tools_read_it(
    copy: Any, field: str, severity: str
) -> None:
    copy.describe(**{field: 8})
    assert {(finding.rule, finding.severity) for finding in check(copy.root)} == {("system_not_text", severity)}


@pytest.mark.parametrize(("name", "severity"), [("Bert", "error"), ("BERT", "error"), ("resnet", "error")])
@pytest.mark.parametrize(("other_results", "none"), [(False, "error"), (True, "warning")])
def test_a_package_without_results_of_bert_is_an_error_unless_others_have_some(
    copy: Any, name: str, severity: str, other_results: bool, none: str
) -> None:
    copy.results.rename(copy.results.with_name(name))
    (package,) = find_packages(copy.root)
    found = check_package(package, ruleset("5.0.0"), other_results=other_results)
    expected = {("no_results", none), ("benchmark_unknown", severity)}
    assert {(finding.rule, finding.severity) for finding in found} == expected


def test_a_misspelled_benchmark_beside_a_correct_one_is_an_error(copy: Any) -> None:
    shutil.copytree(copy.results, copy.root / "results" / "mine" / "Bert")
    found = {(finding.path, finding.rule, finding.severity) for finding in check(copy.root)}
    assert ("results/mine/Bert", "benchmark_unknown", "error") in found


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize(("share", "error"), [(0.991, False), (0.989, True), (1e-6, True), (1.5, False)])
def test_fewer_train_samples_than_evaluated_is_an_error_in_closed(
    copy: Any, division: str, share: float, error: bool
) -> None:
    def change(events: list[Event]) -> None:
        at(events, "submission_division")["value"] = division
        at(events, "train_samples")["value"] = int(at(events, "eval_accuracy", -1)["metadata"]["epoch_num"] * share)

    copy.describe(division=division)
    copy.edit(change, range(10))
    found = [finding.severity for finding in check(copy.root) if finding.rule == "train_samples"]
    assert found == ["error" if error and division == "closed" else "warning"] * 10


def test_train_samples_may_be_one_large_batch_short(copy: Any) -> None:
    """The batch size is 1/16 of the run's samples: training takes whole batches."""
    copy.edit(lambda events: at(events, "global_batch_size").update(value=150_080), range(10))
    copy.edit(lambda events: at(events, "train_samples").update(value=at(events, "train_samples")["value"] - 150_080))
    assert "train_samples" not in rules_of(copy.root)
    copy.edit(lambda events: at(events, "train_samples").update(value=at(events, "train_samples")["value"] - 1))
    assert [one.severity for one in check(copy.root) if one.rule == "train_samples"] == ["error"]


@pytest.mark.parametrize(
    ("moved", "evaluations", "seconds", "right"),
    [(0, 3, 90, False), (1, 3, 90, True), (0, 2, 90, True), (0, 16, 0.5, True), (0, 16, 1.2, False)],
)
def test_equal_times_of_several_evaluations_mean_the_same_run(
    copy: Any, moved: int, evaluations: int, seconds: float, right: bool
) -> None:
    """Both runs have different accuracies and seeds; `seconds` is from run_start to the last evaluation."""

    def change(events: list[Event]) -> None:
        start = at(events, "run_start")["time_ms"]
        found = [event for event in events if event["key"] == "eval_accuracy"]
        for event in found[:-evaluations]:
            events.remove(event)
        for number, event in enumerate(found[-evaluations:], 1):
            event["time_ms"] = start + round(seconds * 1e3 * number / evaluations)

    copy.edit(change, [2, 5])
    copy.edit(move("eval_accuracy", moved, -1), [5])
    assert ("copied" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(
    ("names", "right"),
    [
        ([f"result_{number}.txt" for number in range(1, 11)], True),
        ([f"result_{number:02}.txt" for number in range(1, 11)], True),
        ([f"result_{number}.txt" for number in range(2, 12)], False),
        ([f"result_{number}.txt" for number in (*range(9), 10)], False),
        ([*(f"result_{number}.txt" for number in range(9)), "result_08.txt"], False),
        ([f"result_{number}_a.txt" for number in range(10)], False),
    ],
)
def test_results_are_numbered_from_0_or_1(copy: Any, names: list[str], right: bool) -> None:
    contents = [copy.log(number).read_bytes() for number in range(10)]
    for number in range(10):
        copy.log(number).unlink()
    for name, content in zip(names, contents, strict=True):
        (copy.results / name).write_bytes(content)
    found = {(finding.rule, finding.severity) for finding in check(copy.root)}
    assert found == (set() if right else {("result_names", "warning")})


def test_the_folder_must_have_the_submitters_name_in_any_case(copy: Any) -> None:
    copy.root.rename(copy.root.with_name("org"))
    assert check(copy.root.with_name("org")) == []
    copy.root.with_name("org").rename(copy.root.with_name("other"))
    found = check(copy.root.with_name("other"))
    assert [(finding.path, finding.rule, finding.severity) for finding in found] == [(".", "folder_name", "warning")]


def test_one_false_cache_clear_among_several_is_an_error(copy: Any) -> None:
    copy.edit(lambda events: events.insert(0, {**at(events, "cache_clear"), "value": False}))
    assert {(finding.rule, finding.severity) for finding in check(copy.root)} == {("cache_clear", "error")}


@pytest.mark.parametrize(("value", "right"), [(0, True), (0.9999, True), (1, False)])
def test_beta_must_be_below_1(copy: Any, value: float, right: bool) -> None:
    copy.edit(lambda events: at(events, "opt_lamb_beta_2").update(value=value), range(10))
    assert (not any("opt_lamb_beta_2" in finding.message for finding in check(copy.root))) == right


@pytest.mark.parametrize(("value", "right"), [(448.0, True), (449, False)])
def test_equal_numbers_written_differently_are_the_same_setting(copy: Any, value: float, right: bool) -> None:
    copy.edit(lambda events: at(events, "global_batch_size").update(value=value))
    assert ("settings_differ" not in rules_of(copy.root)) == right


@pytest.mark.parametrize(("more", "right"), [(0, True), (1, False)])
def test_paths_above_255_characters_are_reported(copy: Any, more: int, right: bool) -> None:
    folder = "benchmarks/bert/implementations/podium/long"
    name = folder + "/" + "a" * (200 - len(folder)) + "/" + "b" * (53 + more)
    assert len(name) == 255 + more
    (copy.root / name).parent.mkdir(parents=True)
    (copy.root / name).write_text("", encoding="utf-8")
    assert (not any("characters; allowed are 255" in finding.message for finding in check(copy.root))) == right
