"""Packages: files as MLPerf requires, accepted by the official tools, and nothing left behind after a refusal."""

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.finding import Finding
from podium.core.paths import CODE_FOLDER
from podium.mllog.read import read_log
from podium.mllog.rulesets import Ruleset, ruleset
from podium.mllog.write import DISCLOSED_KEYS
from podium.run.source import Source
from podium.submission.check import check, print_package
from podium.submission.package.build import BuiltPackage, PackageRequest, package, strip_log
from tests.conftest import installed_stamp
from tests.podium.submission.conftest import (
    GAP_MS,
    START_MS,
    commit_all,
    edit,
    resolved,
    set_times,
    set_value,
    source_of,
)

PODIUM_FILES = {"setup.sh", "init_datasets.sh", "run_and_time.sh", "README.md"}


def make(request: PackageRequest, *findings: Finding) -> BuiltPackage:
    """Make a package with a checker that returns these findings."""
    return package(request, lambda path, rules: findings, lambda message: None)


def make_checked(request: PackageRequest) -> BuiltPackage:
    """Make a package with the checker of the command."""
    return package(request, lambda path, rules: check(path, rules).findings, lambda message: None)


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


def shown(made: BuiltPackage) -> str:
    """Return the output of the command for a package."""
    console = Console(width=200, file=io.StringIO())
    print_package(console, made)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drop_disclosed_keys(events: list[dict[str, Any]]) -> None:
    events[:] = [event for event in events if event["key"] not in DISCLOSED_KEYS]


def summary_score(text: str) -> float:
    """Return the score in minutes from the table of the official summarizer."""
    table = text[text.index("division,availability") :].splitlines()
    return float(next(csv.DictReader(table))["bert"])


def test_a_package_has_the_expected_files(make_set: Any, make_request: Any, tmp_path: Path) -> None:
    made = make(make_request(make_set()))
    code = "benchmarks/bert/implementations/podium"
    assert made.folder == tmp_path / "out" / "Podium"
    assert files_of(made.folder) == {
        "systems/mine.json",
        *(f"results/mine/bert/result_{number}.txt" for number in range(10)),
        *(f"benchmarks/bert/mine/{name}" for name in (*PODIUM_FILES, "mine_podium.json")),
        *(f"{code}/{name}" for name in ("pyproject.toml", "setup.py", "setup.sh", "run_and_time.sh")),
        *(f"{code}/requirements/{path.name}" for path in (CODE_FOLDER / "requirements").iterdir()),
        *(f"{code}/{name}" for name in ("README.md", "README_PODIUM.md", "THIRD_PARTY.md", "submitted/mine.yaml")),
        *(f"{code}/{name}" for name in ("benchmarks/one.py", "implementations/two.py", "podium/three.py")),
    }
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []
    for script in ("setup.sh", "init_datasets.sh", "run_and_time.sh"):
        assert (made.folder / "benchmarks/bert/mine" / script).stat().st_mode & 0o111
    assert (made.folder / code / "run_and_time.sh").stat().st_mode & 0o111
    readme = (made.folder / code / "README.md").read_text(encoding="utf-8")
    assert "$ ./run_and_time.sh submitted/mine.yaml --runs 10" in readme
    assert "`.ci/run`" in readme and "`.gitignore`" in readme and "`link`" in readme and "spaces" in readme
    assert "Each run recorded the hash of its code" in readme
    third_party = (made.folder / code / "THIRD_PARTY.md").read_text(encoding="utf-8")
    assert re.search(r"\| mlperf-logging \| 4\.\S+ \| Apache", third_party)


def test_the_logs_name_the_configuration_of_the_package(make_set: Any, make_request: Any) -> None:
    made = make_checked(make_request(make_set(name="other")))
    assert [finding.rule for finding in made.findings] == ["licence"]
    (name,) = {
        event.value
        for log in (made.folder / "results/other/bert").iterdir()
        for event in read_log(log).all("config_filename")
    }
    place = made.folder / "benchmarks/bert/implementations/podium" / name
    assert load_system(str(place)).description.system_name == "other"


@pytest.mark.parametrize("value", ["config.yaml", "submitted/another.yaml"])
def test_logs_that_name_another_configuration_are_refused(make_set: Any, make_request: Any, value: str) -> None:
    made_set = make_set()
    for log in made_set.logs:
        edit(log, set_value("config_filename", value))
    made_set.record()
    refused(
        make_request(made_set), WorkError, f"config_filename is {value!r}, .* configured with 'submitted/mine.yaml'"
    )


def test_logs_of_an_older_version_without_the_keys_of_6_1_are_packaged(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    for log in made_set.logs:
        edit(log, drop_disclosed_keys)
    made_set.record()
    made = make_checked(make_request(made_set))
    assert [finding.rule for finding in made.findings] == ["licence"]
    assert "micro_batch_size" not in (made.folder / "results/mine/bert/result_0.txt").read_text(encoding="utf-8")


def test_logs_are_copied_unchanged_in_the_order_of_time(make_set: Any, make_request: Any) -> None:
    made_set = make_set([200, *range(100, 110)])
    made = make(make_request(made_set))
    (one,) = made.systems
    assert one.selection.window == 0 and len(one.selection.scores) == 2
    for number, log in enumerate(made_set.logs[:10]):
        assert (made.folder / f"results/mine/bert/result_{number}.txt").read_bytes() == log.read_bytes()


def test_stripping_keeps_events_and_edits_nothing() -> None:
    log = b'noise\n0: :::MLLOG {"key": "a",  "value": 1}\r\n:::MLLOG {"key": "b"} \n\nmore noise'
    assert strip_log(log) == b':::MLLOG {"key": "a",  "value": 1}\n:::MLLOG {"key": "b"} \n'


def test_the_official_tools_accept_an_open_package(make_set: Any, make_request: Any, official: Any) -> None:
    made = make_checked(make_request(make_set([60.5 + 3 * number for number in range(10)])))
    assert [finding.rule for finding in made.findings] == ["licence"]
    output = official("package_checker", made.folder, "training", "5.0.0")
    assert "PACKAGE CHECKER FOUND NO ERRORS" in output and "WARNING" not in output
    assert "ALL CHECKS PASSED" in official("repo_checker", made.folder, "training", "5.0.0")
    output = official("system_desc_checker", made.folder, "training", "5.0.0", of="systems/mine.json")
    assert "System description checker passed for mine" in output
    summary = official("result_summarizer", made.folder, "training", "5.0.0", "--csv", "summary.csv")
    assert summary_score(summary) == pytest.approx(made.systems[0].selection.score / 60, rel=1e-12)
    assert made.systems[0].selection.score == 74


def test_a_closed_package_is_scaled_as_by_the_official_tools(closed_set: Any, make_request: Any, official: Any) -> None:
    """16 evaluations of 150,000 samples are fewer than the reference needs, and still accepted."""
    made = make_checked(make_request(closed_set(evaluations=[16] * 9 + [17])))
    (one,) = made.systems
    assert [finding for finding in made.findings if finding.severity == "error"] == []
    assert one.convergence is not None and one.convergence.passed
    assert one.convergence.samples == 2_400_000
    assert one.convergence.reference_samples == pytest.approx(2_414_421, abs=1)
    factor = one.convergence.factor
    assert factor == pytest.approx(2_414_421.33 / 2_400_000, rel=1e-8)
    scaling = made.folder / "results/large/bert/scaling.json"
    assert json.loads(scaling.read_text(encoding="utf-8")) == {"scaling_factor": factor}
    output = official("package_checker", made.folder, "training", "5.0.0")
    assert "PACKAGE CHECKER FOUND NO ERRORS" in output and "ERROR -" not in output
    summary = official("result_summarizer", made.folder, "training", "5.0.0", "--csv", "summary.csv")
    assert summary_score(summary) == pytest.approx(one.selection.score * factor / 60, rel=1e-12)
    readme = (made.folder / "benchmarks/bert/large/README.md").read_text(encoding="utf-8")
    assert "2,400,000 samples, the reference 2,414,421" in readme and "scaling.json" in readme


def test_scaling_is_written_only_where_the_ruleset_scales(closed_set: Any, make_request: Any, tmp_path: Path) -> None:
    slower, faster = closed_set(evaluations=[17] * 10, name="slower"), closed_set(evaluations=[16] * 10, name="faster")
    made = make(make_request(slower, faster))
    assert re.search(r"scaled +│ +no ", shown(made)) and re.search(
        r"scaled by \(scaling.json\) +│ +1\.00600", shown(made)
    )
    assert [one.convergence and one.convergence.factor == 1 for one in made.systems] == [True, False]
    assert [path.parent.parent.name for path in made.folder.rglob("scaling.json")] == ["faster"]
    earlier = make(make_request(slower, out=tmp_path / "earlier", ruleset=ruleset("2.0.0")))
    (one,) = earlier.systems
    assert one.convergence is not None and one.convergence.passed and one.convergence.factor > 1.005
    assert not list(earlier.folder.rglob("scaling.json"))
    assert f"{one.convergence.factor:.6f}, not applied under this ruleset" in shown(earlier)


def test_a_package_may_have_several_systems(make_set: Any, closed_set: Any, make_request: Any, official: Any) -> None:
    made = make(make_request(make_set(name="one"), closed_set(name="two")))
    assert sorted(path.name for path in (made.folder / "systems").iterdir()) == ["one.json", "two.json"]
    submitted = made.folder / "benchmarks/bert/implementations/podium/submitted"
    assert sorted(path.name for path in submitted.iterdir()) == ["one.yaml", "two.yaml"]
    assert "FOUND NO ERRORS" in official("package_checker", made.folder, "training", "5.0.0")


def test_systems_of_different_commits_have_separate_code(make_set: Any, make_request: Any, repository: Path) -> None:
    first = make_set(name="one")
    (repository / "podium" / "three.py").write_text("CHANGED = True\n", encoding="utf-8")
    commit_all(repository, "Second")
    made = make(make_request(first, make_set(name="two")))
    implementations = made.folder / "benchmarks/bert/implementations"
    assert "NAME" in (implementations / "podium/podium/three.py").read_text(encoding="utf-8")
    assert "CHANGED" in (implementations / "podium_2/podium/three.py").read_text(encoding="utf-8")
    assert (made.folder / "benchmarks/bert/two/two_podium_2.json").is_file()
    script = (made.folder / "benchmarks/bert/two/run_and_time.sh").read_text(encoding="utf-8")
    assert "../implementations/podium_2\n" in script
    assert [path.name for path in (implementations / "podium_2/submitted").iterdir()] == ["two.yaml"]


def test_the_submitted_configuration_is_that_of_the_runs(make_set: Any, make_request: Any, tmp_path: Path) -> None:
    made_set = make_set(changes={"bert.global_batch_size": 32, "bert.clipping": None})
    made = make(make_request(made_set))
    place = shutil.copy(made.folder / "benchmarks/bert/implementations/podium/submitted/mine.yaml", tmp_path)
    again, runs = load_system(str(place)), resolved(made_set)
    assert again.model_dump(exclude={"seed", "data"}) == runs.model_dump(exclude={"seed", "data"})
    assert again.seed is None and again.data.kind == "embedded"


def test_the_description_is_that_of_the_present_system_file(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    document = yaml.safe_load(made_set.system.read_text(encoding="utf-8"))
    document["description"]["cooling"] = "liquid"
    made_set.system.write_text(yaml.safe_dump(document), encoding="utf-8")
    described = json.loads((make(make_request(made_set)).folder / "systems/mine.json").read_text(encoding="utf-8"))
    assert described["cooling"] == "liquid" and len(described) == 33


def test_all_missing_fields_of_the_description_are_named(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    document = yaml.safe_load(made_set.system.read_text(encoding="utf-8"))
    document["description"] |= {"cooling": "", "submitter": ""}
    del document["description"]["accelerator_on-chip_memories"]
    made_set.system.write_text(yaml.safe_dump(document), encoding="utf-8")
    lacking = (
        "mine.yaml: description lacks 3 of the 33 fields .* submitter, accelerator_on-chip_memories, cooling; add "
    )
    refused(make_request(made_set), UsageError, lacking)


@pytest.mark.parametrize("later", [True, False])
def test_a_set_is_packaged_by_its_folder_or_its_copies(make_set: Any, make_request: Any, later: bool) -> None:
    made_set = make_set(name="laptop")
    if later:
        shutil.rmtree(made_set.results)
        make_set([55.0], name="mine")
    folder = str(made_set.set_folder if later else made_set.logs[0].parent)
    more = {} if later else {"runs": made_set.runs}
    made = make(make_request(made_set, systems=(folder,), **({"results": None, "runs": None} | more)))
    assert made.systems[0].selection.score == 104.5 and made.systems[0].system == "laptop"
    assert "compared: laptop: runs/laptop/set: 10 runs were requested and 10 have ended" in shown(made)
    readme = (made.folder / "benchmarks/bert/laptop/README.md").read_text(encoding="utf-8")
    assert "What was compared when this package was made:\n\n- runs/laptop/set: 10 runs were requested" in readme
    assert "What could not be compared:\n\n- data not compared" in readme


def refused(request: PackageRequest, error: type[PodiumError], match: str, *findings: Finding) -> None:
    """Assert that a package is refused with an error that matches, and that nothing is left behind."""
    before = files_of(request.out.parent)
    with pytest.raises(error, match=match):
        make(request, *findings)
    assert files_of(request.out.parent) == before
    assert not [path for path in request.out.parent.iterdir() if "partial" in path.name]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".git", "a/b", "a b", "a\nb", "-a", "a..b", "a.", "x" * 101, "\x1b[31m"]
)
def test_names_that_are_not_valid_folders_are_refused(make_set: Any, make_request: Any, name: str) -> None:
    """Names are checked before any run is read: the sets have none."""
    refused(make_request(make_set(()), org=name), UsageError, "--org: found")
    if name:
        system = make_set((), changes={"description.system_name": name}, name="other")
        refused(make_request(system), UsageError, "description.system_name: found")


def test_an_existing_output_is_refused(make_set: Any, make_request: Any, tmp_path: Path) -> None:
    made_set = make_set()
    (tmp_path / "file").write_text("mine\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine\n", encoding="utf-8")
    for name in ("file", "link", "full"):
        refused(make_request(made_set, out=tmp_path / name), UsageError, "exists and is not an empty folder")
    (tmp_path / "empty").mkdir()
    assert make(make_request(made_set, out=tmp_path / "empty")).folder.is_dir()


def test_a_rejected_package_is_removed(make_set: Any, make_request: Any) -> None:
    fault = Finding.error("results/mine", "a_rule", "is wrong; fix it")
    refused(
        make_request(make_set()), WorkError, "rejected under ruleset 5.0.0(.|\n)*a_rule: results/mine: is wrong", fault
    )


def test_a_package_with_a_warning_is_made(make_set: Any, make_request: Any) -> None:
    warning = Finding.warning("results/mine", "a_rule", "looks odd")
    assert warning in make(make_request(make_set()), warning).findings


def test_a_missing_licence_is_a_warning(make_set: Any, make_request: Any, repository: Path) -> None:
    made = make(make_request(make_set()))
    (finding,) = made.findings
    assert (finding.severity, finding.path) == ("warning", "benchmarks/bert/implementations/podium")
    assert "warning: licence: " in shown(made) and "MLPerf expects openly licensed code" in shown(made)


def test_a_package_with_a_licence_has_no_warning(make_set: Any, make_request: Any, repository: Path) -> None:
    (repository / "LICENSE").write_text("a licence\n", encoding="utf-8")
    commit_all(repository, "Licence")
    made_set = make_set(source=source_of(repository))
    assert make(make_request(made_set)).findings == ()


def test_the_whole_package_is_checked_before_it_is_renamed(make_set: Any, make_request: Any) -> None:
    request, calls = make_request(make_set()), []

    def checker(path: Path, rules: Ruleset) -> list[Finding]:
        calls.append((path.name, rules.name, len(files_of(path)), request.out.exists()))
        return []

    made = package(request, checker, lambda message: None)
    assert calls == [("Podium", "5.0.0", len(files_of(made.folder)), False)]


def test_runs_that_break_a_rule_are_refused_with_every_reason(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    edit(made_set.logs[1], set_value("seed", 1000))
    edit(made_set.logs[2], set_value("opt_base_learning_rate", 1.0))
    match = r"mine: same settings: .*opt_base_learning_rate(.|\n)*mine: distinct seeds: "
    refused(make_request(made_set), WorkError, match)


def test_logged_settings_that_differ_from_the_configuration_are_refused(make_set: Any, make_request: Any) -> None:
    """The value is wrong in all ten logs, as where a default is logged instead of the value used."""
    made_set = make_set()
    for log in made_set.logs:
        edit(log, set_value("opt_adamw_weight_decay", 0.0))
    made_set.record()
    refused(
        make_request(made_set), WorkError, r"not_as_configured: result_9.txt: opt_adamw_weight_decay is 0.0, .* 0\.01"
    )


def test_converging_faster_than_the_reference_allows_is_rejected(closed_set: Any, make_request: Any) -> None:
    request = make_request(closed_set(evaluations=[14] * 10))
    with pytest.raises(WorkError, match=r"rejected under ruleset 5.0.0(.|\n)*RCP"):
        make_checked(request)
    assert not request.out.exists()


def test_another_organisation_is_refused(make_set: Any, make_request: Any) -> None:
    refused(make_request(make_set(), org="Another"), WorkError, "submission_org is 'Podium', expected is 'Another'")


def test_the_other_division_is_refused(make_set: Any, make_request: Any) -> None:
    refused(make_request(make_set(), division="closed"), UsageError, "--division closed: .* open division")


def test_two_systems_with_the_same_name_are_refused(make_set: Any, make_request: Any) -> None:
    one, two = make_set(name="one"), make_set(changes={"description.system_name": "One"}, name="two")
    refused(make_request(one, two), UsageError, "two systems have the description.system_name one")


def test_different_settings_that_are_not_logged_are_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    path = made_set.folder(4) / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("dropout: 0.1", "dropout: 0.2"), encoding="utf-8")
    refused(make_request(made_set), WorkError, "differ in dropout: 0.1 and 0.2")


def test_a_restarted_run_between_the_others_is_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set([100] * 11)
    made_set.remove_set_record()
    made_set.logs[6].rename(made_set.folder(6) / "result.restarted.txt")
    refused(
        make_request(made_set), WorkError, "no restarted run: .*run_6/result.restarted.txt began between these runs"
    )


def test_a_restarted_run_after_the_others_is_allowed(make_set: Any, make_request: Any) -> None:
    """The set has no record of the number of requested runs."""
    made_set = make_set([100] * 11)
    made_set.remove_set_record()
    made_set.logs[10].rename(made_set.folder(10) / "result.restarted.txt")
    assert make(make_request(made_set)).folder.is_dir()


def test_deleted_logs_are_refused(make_set: Any, make_request: Any) -> None:
    for number in (0, 6, 12):
        made_set = make_set([100] * 13)
        made_set.logs[number].unlink()
        refused(make_request(made_set), WorkError, f"no run left out: .*run_{number} is a run of this set")


@pytest.mark.parametrize("kept", ["summary", "metrics", "log"])
def test_a_run_that_broke_off_counts_as_one_of_the_set(make_set: Any, make_request: Any, kept: str) -> None:
    made_set = make_set([100] * 11)
    made_set.remove_set_record()
    folder, log = RunFolder(made_set.folder(10)), made_set.logs[10].read_text(encoding="utf-8")
    made_set.logs[10].unlink()
    folder.metrics.unlink()
    if kept != "summary":
        folder.summary.unlink()
        assert make(make_request(made_set, out=made_set.runs.parent / "never_began")).folder.is_dir()
        folder.log.write_text(log[: log.index("run_start")], encoding="utf-8")
        assert make(make_request(made_set, out=made_set.runs.parent / "initialised")).folder.is_dir()
    if kept == "metrics":
        folder.metrics.write_text('{"samples": 16}\n', encoding="utf-8")
    if kept == "log":
        folder.log.write_text(log, encoding="utf-8")
    refused(make_request(made_set), WorkError, "no run left out: .*run_10 is a run of this set")


def test_runs_of_two_sets_are_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    for number in range(5, 10):
        other = made_set.runs / "mine" / "another" / f"run_{number}"
        other.parent.mkdir(exist_ok=True)
        made_set.folder(number).rename(other)
    refused(
        make_request(made_set), WorkError, "one set: result_[0-9].txt was made in the set .* runs of two sets are not"
    )


def test_a_run_without_a_folder_is_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    shutil.rmtree(made_set.folder(4))
    refused(make_request(made_set), WorkError, "one set: result_4.txt: no run folder has this log.s seed")


def test_edited_times_are_refused(make_set: Any, make_request: Any, tmp_path: Path) -> None:
    """A log's time may exceed the run's, whose clock starts after a barrier of all ranks, but hardly be shorter."""
    made_set = make_set([100] * 10)
    made_set.remove_set_record()
    for seconds in (100.9, 99.95):
        edit(made_set.logs[3], set_times(START_MS + 3 * GAP_MS, seconds))
        assert make(make_request(made_set, out=tmp_path / f"near_{seconds}")).folder.is_dir()
    for seconds in (50, 98.9, 99.1, 101.1):
        edit(made_set.logs[3], set_times(START_MS + 3 * GAP_MS, seconds))
        refused(make_request(made_set), WorkError, "logs as written: result_3.txt .* 100.00 s; logs must not be edited")


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"seconds": "fast"}', '{"seconds": NaN}', "[" * 100_000])
def test_a_summary_without_a_time_is_refused(make_set: Any, make_request: Any, text: str | None) -> None:
    made_set = make_set()
    summary = RunFolder(made_set.folder(3)).summary
    summary.unlink() if text is None else summary.write_text(text, encoding="utf-8")
    refused(make_request(made_set), WorkError, "logs as written: result_3.txt")


@pytest.mark.parametrize(
    ("key", "value"), [("number_of_nodes", 64), ("number_of_nodes", "two"), ("accelerators_per_node", 8)]
)
def test_a_description_of_another_machine_is_refused(make_set: Any, make_request: Any, key: str, value: Any) -> None:
    made_set = make_set()
    document = yaml.safe_load(made_set.system.read_text(encoding="utf-8"))
    document["description"][key] = value
    made_set.system.write_text(yaml.safe_dump(document), encoding="utf-8")
    refused(make_request(made_set), WorkError, f"described machine: description.{key} is '{value}'")


def test_accelerators_must_match_the_processes(closed_set: Any, make_request: Any) -> None:
    made_set = closed_set()
    document = yaml.safe_load(made_set.system.read_text(encoding="utf-8"))
    document["description"]["accelerators_per_node"] = 0
    made_set.system.write_text(yaml.safe_dump(document), encoding="utf-8")
    config = resolved(made_set)
    assert config.launch.device == "cpu" and make(make_request(made_set)).folder.is_dir()
    for number in range(10):
        path = made_set.folder(number) / "config.yaml"
        path.write_text(path.read_text(encoding="utf-8").replace("device: cpu", "device: cuda"), encoding="utf-8")
    used = f"the runs used {config.launch.processes_per_node} .launch.processes_per_node"
    refused(make_request(made_set, out=made_set.runs.parent / "other"), WorkError, used)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (":::MLLOG [1,2]", "is not a JSON object"),
        (":::MLLOG " + "[" * 100_000, "result_3.txt: line"),
        (":::MLLOG {", "result_3.txt: line"),
    ],
)
def test_a_damaged_log_is_refused(make_set: Any, make_request: Any, line: str, match: str) -> None:
    made_set = make_set()
    with made_set.logs[3].open("a", encoding="utf-8") as log:
        log.write(line + "\n")
    refused(make_request(made_set), WorkError, f"whole logs: .*result_3.txt: .*{match}" if "JSON" in match else match)


@pytest.mark.parametrize("seed", [[1], {"a": 1}, None, True, "1003", 1.5])
def test_a_seed_that_is_not_an_integer_is_refused(make_set: Any, make_request: Any, seed: Any) -> None:
    made_set = make_set()
    edit(made_set.logs[3], set_value("seed", seed))
    refused(make_request(made_set), WorkError, "distinct seeds: .*result_3.txt logs the seed .* not a whole number")


@pytest.mark.parametrize("kind", ["dangling", "link", "folder"])
def test_a_log_that_is_not_a_regular_file_is_refused(make_set: Any, make_request: Any, kind: str) -> None:
    made_set = make_set()
    log = made_set.logs[3]
    kept = log.rename(log.with_name("kept.txt"))
    if kind == "folder":
        log.mkdir()
    else:
        log.symlink_to(kept if kind == "link" else "nowhere")
    refused(make_request(made_set), UsageError, "result_3.txt: is (a link|not a file)")


def test_runs_of_another_version_of_podium_are_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    with (made_set.folder(3) / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("gone: 1\n")
    refused(
        make_request(made_set),
        UsageError,
        r"run_3/config.yaml: another version of Podium made this run \(gone: .*cannot",
    )


def test_runs_without_their_folders_are_refused(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    shutil.rmtree(made_set.runs)
    refused(make_request(made_set), WorkError, "resolved configuration: no folder in .* is of these runs")


def test_runs_of_unknown_code_need_a_flag_and_are_noted_in_the_readme(make_set: Any, make_request: Any) -> None:
    made_set = make_set()
    (made_set.folder(3) / "source.json").unlink()
    refused(
        make_request(made_set), UsageError, "at least one run did not record which code made it.*--allow-other-code"
    )
    made = make(make_request(made_set, allow_other_code=True))
    readme = (made.folder / "benchmarks/bert/implementations/podium/README.md").read_text(encoding="utf-8")
    assert "not certain that this is the code of the runs: at least one run did not record" in readme
    assert not made.systems[0].code.made_the_runs


def test_runs_of_uncommitted_code_are_refused(make_set: Any, make_request: Any, repository: Path) -> None:
    (repository / "podium" / "three.py").write_text("DIRTY = True\n", encoding="utf-8")
    made_set = make_set()
    refused(make_request(made_set), UsageError, "files had been changed")


def test_runs_of_different_code_are_refused(make_set: Any, make_request: Any, repository: Path) -> None:
    made_set = make_set()
    (made_set.folder(3) / "source.json").write_text(json.dumps({"code": "0" * 64, "commit": None}), encoding="utf-8")
    for allow in (False, True):
        refused(
            make_request(made_set, allow_other_code=allow),
            WorkError,
            "same code: result_0.txt .* result_3.txt by 0000000",
        )


def test_the_commit_that_made_the_runs_is_packaged(make_set: Any, make_request: Any, repository: Path) -> None:
    made_set = make_set()
    commit = source_of(repository).commit
    (repository / "podium" / "three.py").write_text("LATER = True\n", encoding="utf-8")
    commit_all(repository, "Later")
    made = make(make_request(made_set))
    assert made.systems[0].code.commit == commit
    code = made.folder / "benchmarks/bert/implementations/podium/podium/three.py"
    assert "LATER" not in code.read_text(encoding="utf-8")


def test_the_commit_of_runs_without_a_repository_is_found_by_hash(
    make_set: Any, make_request: Any, repository: Path
) -> None:
    source = Source(source_of(repository).code, None)
    assert make(make_request(make_set(source=source))).systems[0].code.made_the_runs


def test_packaging_without_a_repository_is_refused(make_set: Any, make_request: Any, repository: Path) -> None:
    made_set = make_set()
    shutil.rmtree(repository / ".git")
    refused(make_request(made_set), UsageError, "is not a git repository")


def test_scripts_start_the_submitted_configuration(make_set: Any, make_request: Any, tmp_path: Path) -> None:
    """The code folder's environment has a podium that prints its arguments."""
    made = make(make_request(make_set()))
    code = made.folder / "benchmarks/bert/implementations/podium"
    podium = code / ".venv" / "bin" / "podium"
    podium.parent.mkdir(parents=True)
    podium.write_text('#!/bin/sh\necho "$PWD: $*"\n', encoding="utf-8")
    podium.with_name("python").write_text("#!/bin/sh\n", encoding="utf-8")
    for program in podium.parent.iterdir():
        program.chmod(0o755)
    (code / ".venv" / "podium.installed").write_text(installed_stamp(code), encoding="utf-8")

    def run(script: str, *arguments: str) -> str:
        command = [str(made.folder / "benchmarks/bert/mine" / script), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert run("setup.sh") == ""
    assert run("run_and_time.sh") == f"{code}: run submitted/mine.yaml --runs 10\n"
    assert run("run_and_time.sh", "--dry-run") == f"{code}: run submitted/mine.yaml --dry-run\n"
    assert "nothing is to be done" in run("init_datasets.sh")
