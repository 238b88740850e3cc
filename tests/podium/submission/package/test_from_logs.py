"""Packages of logs by any framework: accepted by the official tools, the median window, scaling, and each refusal."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from podium.config.load import load_system
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.finding import Finding
from podium.mllog.rulesets import ruleset
from podium.submission.check import as_json, check, package_json
from podium.submission.describe import stated
from podium.submission.package.build import BuiltPackage
from podium.submission.package.from_logs import LogsRequest, package_logs
from tests.podium.submission.checks.other_benchmarks import (
    LLAMA,
    RETINANET,
    SYSTEM,
    Event,
    Shape,
    run_events,
    write_events,
)

PREAMBLE = b"starting \xff\r\nNCCL INFO ring 0\n"  # lines that are not events
SCALED = (14, 14, 14, 14, 14, 14, 14, 15, 15, 15)  # evaluations of runs that need fewer samples than the reference


class Inputs:
    """Logs, description and code below a folder, and a request for a package of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.description = root / "given" / f"{SYSTEM}.json"
        self.code = root / "llama"
        self.code.mkdir()
        for name, text in (("README.md", "run it\n"), ("train.py", "pass\n"), ("config.sh", "true\n")):
            (self.code / name).write_text(text, encoding="utf-8")
        self.describe()

    def describe(self, **changes: Any) -> None:
        fields = stated(load_system("laptop")) | {"division": "closed", "system_name": SYSTEM, "submitter": "ORG"}
        self.description.parent.mkdir(exist_ok=True)
        self.description.write_text(json.dumps(fields | changes), encoding="utf-8")

    def write_logs(
        self,
        shape: Shape,
        names: Callable[[int], str] = "result_{}.txt".format,
        change: Callable[[int, list[Event]], object] = lambda run, events: None,
    ) -> Path:
        """Write the logs of a benchmark's runs to a folder of its name."""
        folder = self.root / shape.benchmark
        folder.mkdir(exist_ok=True)
        for run in range(len(shape.evaluations)):
            events = run_events(shape, run)
            change(run, events)
            path = folder / names(run)
            write_events(path, events)
            path.write_bytes(PREAMBLE + path.read_bytes())
        return folder

    def request(self, *logs: Path, **changes: Any) -> LogsRequest:
        request = LogsRequest(
            logs, self.description, (str(self.code),), self.root / "out", "ORG", ruleset(LLAMA.ruleset)
        )
        return replace(request, **changes)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


def make(request: LogsRequest, *findings: Finding) -> BuiltPackage:
    """Make a package with a checker that returns these findings."""
    return package_logs(request, lambda path, rules: findings, lambda message: None)


def make_checked(request: LogsRequest) -> BuiltPackage:
    """Make a package with the checker of the command."""
    return package_logs(request, lambda path, rules: check(path, rules).findings, lambda message: None)


def set_value(key: str, value: Any) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        next(event for event in events if event["key"] == key)["value"] = value

    return change


def in_run(number: int, change: Callable[[list[Event]], object]) -> Callable[[int, list[Event]], object]:
    return lambda run, events: change(events) if run == number else None


def test_a_package_of_llama31_8b_is_accepted_under_6_1_0(inputs: Inputs) -> None:
    logs = inputs.write_logs(LLAMA)
    for name in ("setup.sh", "run_and_time.sh"):
        (inputs.code / name).write_text('echo "$1" in "$PWD"\n', encoding="utf-8")
    (inputs.code / ".git").mkdir()
    (inputs.code / ".git" / "config").write_text("secret\n", encoding="utf-8")
    made = make_checked(inputs.request(logs))
    assert (made.folder / "systems" / "mine.json").read_bytes() == inputs.description.read_bytes()
    for number in range(10):
        copied = made.folder / f"results/mine/llama31_8b/result_{number}.txt"
        assert copied.read_bytes() == (logs / copied.name).read_bytes()
    own = made.folder / "benchmarks" / "llama31_8b"
    assert sorted(path.name for path in (own / "implementations" / "llama").iterdir()) == [
        "README.md",
        "config.sh",
        "run_and_time.sh",
        "setup.sh",
        "train.py",
    ]
    assert {path.name for path in (own / "mine").iterdir()} == {
        "README.md",
        "mine_llama.json",
        "run_and_time.sh",
        "setup.sh",
    }
    shown = subprocess.run([own / "mine" / "setup.sh", "a b"], capture_output=True, text=True, check=True).stdout
    assert shown == f"a b in {own / 'implementations' / 'llama'}\n"
    (one,) = made.systems
    assert len(one.notes) == 1 and one.notes[0].startswith("the code has no init_datasets.sh at its top")
    assert {finding.rule for finding in made.findings} == {"licence"}


def test_a_package_of_retinanet_is_accepted_under_5_1_0(inputs: Inputs) -> None:
    made = make_checked(inputs.request(inputs.write_logs(RETINANET), ruleset=ruleset("5.1.0")))
    report = as_json(check(made.folder, ruleset("5.1.0")))
    assert report["accepted"] and len(report["scores"]) == 1
    (one,) = package_json(made)["systems"]
    assert one["benchmark"] == "retinanet" and len(one["runs"]) == 5 and one["window_scores"] == [one["score_seconds"]]
    assert one["score_seconds"] / 60 == pytest.approx(report["scores"][0]["minutes"])
    assert one["convergence"]["samples"] == 4 and not one["scaled"]


def test_of_twelve_runs_the_window_with_the_median_score_is_packaged(inputs: Inputs) -> None:
    """Of the three windows the first is the slowest by an evaluation, the last the middle one by some milliseconds."""
    shape = replace(LLAMA, evaluations=(16, 15, 15, 15, 15, 15, 16, 16, 15, 15, 15, 15))
    logs = inputs.write_logs(shape, names=lambda run: f"{'zyxwvutsrqpo'[run]}.log")
    made = make(inputs.request(logs))
    (one,) = made.systems
    assert one.selection.scores[1] < one.selection.scores[2] < one.selection.scores[0]
    assert one.selection.window == 2 and len(one.selection.scores) == 3
    assert [run.name for run in one.selection.selected_runs] == [f"{letter}.log" for letter in "xwvutsrqpo"]
    for number, letter in enumerate("xwvutsrqpo"):
        copied = made.folder / f"results/mine/llama31_8b/result_{number}.txt"
        assert copied.read_bytes() == (logs / f"{letter}.log").read_bytes()
    readme = (made.folder / "benchmarks/llama31_8b/mine/README.md").read_text(encoding="utf-8")
    assert "12 consecutive runs were made; of the 3 windows of 10" in readme and "result_0.txt: `x.log`" in readme


@pytest.mark.parametrize("division", ["closed", "open"])
def test_scaling_json_has_the_factor_of_the_official_checker(inputs: Inputs, division: str) -> None:
    shape = replace(LLAMA, evaluations=SCALED)
    logs = inputs.write_logs(shape, change=lambda run, events: set_value("submission_division", division)(events))
    inputs.describe(division=division)
    made = make_checked(inputs.request(logs)) if division == "closed" else make(inputs.request(logs))
    written = made.folder / "results/mine/llama31_8b/scaling.json"
    (one,) = package_json(made)["systems"]
    if division == "open":
        assert not written.exists() and one["convergence"] is None and not one["scaled"]
        return
    copy = Path(shutil.copytree(logs, inputs.root / "copy"))
    passed, _, factor = rcp_checker.check_directory(
        str(copy), "training", "6.1.0", False, False, rcp_pass="pruned_rcps", set_scaling=True
    )
    assert passed and factor > 1.01
    assert written.read_bytes() == (copy / "scaling.json").read_bytes()
    assert json.loads(written.read_bytes())["scaling_factor"] == factor == one["convergence"]["factor"]
    assert one["scaled_score_seconds"] == one["score_seconds"] * factor


def test_two_benchmarks_of_a_system_with_different_code(inputs: Inputs) -> None:
    logs = [inputs.write_logs(shape) for shape in (LLAMA, RETINANET)]
    other = Path(shutil.copytree(inputs.code, inputs.root / "vision"))
    code = (str(inputs.code), f"retinanet={other}")
    made = make(inputs.request(*logs, code=code, ruleset=ruleset("5.1.0")))
    assert [(one.benchmark, one.selection.length) for one in made.systems] == [("llama31_8b", 10), ("retinanet", 5)]
    assert (made.folder / "benchmarks/llama31_8b/implementations/llama/train.py").is_file()
    assert (made.folder / "benchmarks/retinanet/implementations/vision/train.py").is_file()


def test_a_system_file_of_podium_is_a_description(inputs: Inputs) -> None:
    made = make(inputs.request(inputs.write_logs(LLAMA), description=Path("systems/laptop.yaml").resolve()))
    name = load_system("laptop").description.system_name
    assert json.loads((made.folder / "systems" / f"{name}.json").read_bytes()) == stated(load_system("laptop"))


def test_a_system_name_that_is_no_folder_name_gives_way_to_the_file_name(inputs: Inputs) -> None:
    inputs.describe(system_name="Two Words")
    made = make(inputs.request(inputs.write_logs(LLAMA)))
    assert (made.folder / "systems/mine.json").is_file() and (made.folder / "results/mine/llama31_8b").is_dir()


def test_names_that_mlperf_rejects_are_left_out_and_listed(inputs: Inputs) -> None:
    (inputs.code / ".ci").mkdir()
    (inputs.code / ".ci" / "link").symlink_to("/etc/passwd")
    (inputs.code / "two words.txt").write_text("\n", encoding="utf-8")
    (inputs.code / "train.py").chmod(0o700)
    made = make(inputs.request(inputs.write_logs(LLAMA)))
    place = made.folder / "benchmarks/llama31_8b/implementations/llama"
    assert {path.name for path in place.iterdir()} == {"README.md", "train.py", "config.sh"}
    assert (place / "train.py").stat().st_mode & 0o777 == 0o755
    assert made.systems[0].notes[-1].endswith("such names: .ci, two words.txt")


FAULTS: list[tuple[str, str, type[PodiumError], Callable[[Inputs], LogsRequest]]] = [
    (
        "a benchmark of other rounds",
        "submission_benchmark is 'retinanet', which is not a benchmark of ruleset 6.1.0, but of the rounds",
        UsageError,
        lambda given: given.request(given.write_logs(RETINANET)),
    ),
    (
        "an unknown benchmark",
        "submission_benchmark is 'llama9', which is not a benchmark",
        UsageError,
        lambda given: given.request(given.write_logs(replace(LLAMA, benchmark="llama9"))),
    ),
    (
        "two benchmarks",
        "submission_benchmark: is 'llama31_8b' in result_0.txt, 'flux1' in result_3.txt",
        WorkError,
        lambda given: given.request(
            given.write_logs(LLAMA, change=in_run(3, set_value("submission_benchmark", "flux1")))
        ),
    ),
    (
        "two batch sizes",
        "global_batch_size: is 32 in result_0.txt, 64 in result_3.txt",
        WorkError,
        lambda given: given.request(given.write_logs(LLAMA, change=in_run(3, set_value("global_batch_size", 64)))),
    ),
    (
        "two platforms",
        "submission_platform: is 'mine' in result_0.txt, 'other' in result_3.txt",
        WorkError,
        lambda given: given.request(
            given.write_logs(LLAMA, change=in_run(3, set_value("submission_platform", "other")))
        ),
    ),
    (
        "too few runs",
        "has 8 runs; a result of llama31_8b needs 10 consecutive ones: 2 more",
        WorkError,
        lambda given: given.request(given.write_logs(replace(LLAMA, evaluations=LLAMA.evaluations[:8]))),
    ),
    (
        "a log without run_start",
        "run_start: not in result_3.txt",
        WorkError,
        lambda given: given.request(
            given.write_logs(
                LLAMA,
                change=in_run(3, lambda events: events.remove(next(e for e in events if e["key"] == "run_start"))),
            )
        ),
    ),
    ("no logs", "has no logs", UsageError, lambda given: given.request(given.code.parent / "given")),
    (
        "one benchmark twice",
        "has logs of llama31_8b, as",
        UsageError,
        lambda given: given.request(
            given.write_logs(LLAMA), Path(shutil.copytree(given.root / "llama31_8b", given.root / "again"))
        ),
    ),
    (
        "a link among the logs",
        "is a link; a run's log must be a regular file",
        UsageError,
        lambda given: (
            (given.write_logs(LLAMA) / "result_99.txt").symlink_to("/etc/passwd"),
            given.request(given.root / "llama31_8b"),
        )[1],
    ),
    (
        "a link in the code",
        "out/x: is a symbolic link to /etc/passwd, out of the package",
        WorkError,
        lambda given: (
            (given.code / "out").mkdir(),
            (given.code / "out" / "x").symlink_to("/etc/passwd"),
            given.request(given.write_logs(LLAMA)),
        )[2],
    ),
    (
        "no README",
        "has no README; MLPerf requires one",
        UsageError,
        lambda given: ((given.code / "README.md").unlink(), given.request(given.write_logs(LLAMA)))[1],
    ),
    (
        "code of a benchmark without logs",
        "there are no logs of retinanet, but of llama31_8b",
        UsageError,
        lambda given: given.request(given.write_logs(LLAMA), code=(f"retinanet={given.code}",)),
    ),
    (
        "no code of a benchmark",
        "no folder is named for retinanet",
        UsageError,
        lambda given: given.request(
            given.write_logs(LLAMA),
            given.write_logs(RETINANET),
            code=(f"llama31_8b={given.code}",),
            ruleset=ruleset("5.1.0"),
        ),
    ),
    (
        "the package within the code",
        "contains --out",
        UsageError,
        lambda given: given.request(given.write_logs(LLAMA), out=given.code / "new"),
    ),
    (
        "the other division",
        "is of the closed division",
        UsageError,
        lambda given: given.request(given.write_logs(LLAMA), division="open"),
    ),
    (
        "a description that is no JSON",
        "is not valid JSON",
        UsageError,
        lambda given: (given.description.write_text("{"), given.request(given.write_logs(LLAMA)))[1],
    ),
    (
        "a description without a division",
        "division: found None, allowed is closed or open",
        UsageError,
        lambda given: (given.describe(division=None), given.request(given.write_logs(LLAMA)))[1],
    ),
    (
        "a missing description",
        "is no such file",
        UsageError,
        lambda given: given.request(given.write_logs(LLAMA), description=given.root / "none.json"),
    ),
]


@pytest.mark.parametrize(("message", "error", "fault"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_what_cannot_be_packaged_is_refused_and_leaves_nothing(
    inputs: Inputs, message: str, error: type[PodiumError], fault: Callable[[Inputs], LogsRequest]
) -> None:
    request = fault(inputs)
    before = set(inputs.root.rglob("*"))
    with pytest.raises(error) as caught:
        make(request)
    assert message in str(caught.value)
    assert set(inputs.root.rglob("*")) == before


def test_a_configuration_that_the_package_lacks_is_rejected(inputs: Inputs) -> None:
    (inputs.code / "config.sh").unlink()
    with pytest.raises(WorkError, match=r"would be rejected under ruleset 6\.1\.0 [^$]*config_filename is 'config.sh'"):
        make_checked(inputs.request(inputs.write_logs(LLAMA)))
    assert {path.name for path in inputs.root.iterdir()} == {"given", "llama", "llama31_8b"}


def test_an_existing_package_is_kept(inputs: Inputs) -> None:
    (inputs.root / "out").mkdir()
    (inputs.root / "out" / "kept").write_text("\n", encoding="utf-8")
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        make(inputs.request(inputs.write_logs(LLAMA)))
    assert [path.name for path in (inputs.root / "out").iterdir()] == ["kept"]
