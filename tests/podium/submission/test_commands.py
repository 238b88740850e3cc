"""`podium submit describe` and `package`: output, written files, refusals and exit codes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.cli import main
from podium.core.paths import CODE_FOLDER
from podium.run.source import commit_of, current_source
from tests.podium.submission.checks.other_benchmarks import RETINANET, write_package

DEVICE = {"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "nccl": None, "gpus": []}


@pytest.fixture
def podium(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process; returns exit code, standard output and standard error."""
    monkeypatch.setattr("podium.run.implementation.call_entry_point", lambda implementation, entry, options: DEVICE)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["podium", *arguments])
        try:
            main.main()
            code: Any = 0
        except SystemExit as error:
            code = error.code or 0
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_describe_writes_mlperfs_json(podium: Any, tmp_path: Path) -> None:
    out = tmp_path / "laptop.json"
    code, shown, errors = podium("submit", "describe", "laptop", "--out", str(out))
    assert code == 0 and "host_processor_vcpu_count" in shown and "warning" not in errors
    assert json.loads(out.read_text(encoding="utf-8"))["host_processor_vcpu_count"] == "not stated"


def test_describe_replaces_its_own_file_and_prints_where_it_is(podium: Any, tmp_path: Path) -> None:
    out = tmp_path / "laptop.json"
    for _ in range(2):
        code, _, errors = podium("submit", "describe", "laptop", "--out", str(out))
        assert code == 0 and f"MLPerf's description of laptop is in {out}" in errors.replace("\n", "")


@pytest.mark.parametrize("content", ["notes", "{}", '{"submitter": "Podium"}', "[1]"])
def test_describe_overwrites_no_other_file(podium: Any, tmp_path: Path, content: str) -> None:
    (out := tmp_path / "mine.json").write_text(content, encoding="utf-8")
    code, shown, errors = podium("submit", "describe", "laptop", "--out", str(out))
    assert code == 2 and shown == "" and out.read_text(encoding="utf-8") == content
    message = "exists and is not a JSON object with MLPerf's description of a system; remove it, or give another path"
    assert f"--out {out}: {message}" in " ".join(errors.split())


def test_describe_fills_only_with_fill_and_lists_the_fields(podium: Any, tmp_path: Path) -> None:
    out = tmp_path / "laptop.json"
    code, shown, errors = podium("submit", "describe", "laptop", "--fill", "--json", "--out", str(out))
    document = json.loads(shown)
    assert code == 0 and document["description"] == json.loads(out.read_text(encoding="utf-8"))
    assert "host_processor_vcpu_count" in document["filled"]
    for name in document["filled"]:
        assert f'  {name}: "' in errors
    assert {"field", "file", "detected", "verdict"} == set(document["fields"][0])


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 1)])
def test_a_difference_is_a_warning_unless_strict(
    podium: Any, write_system: Any, options: tuple[str, ...], code: int
) -> None:
    system = write_system({"description.host_processor_vcpu_count": 100_000})
    found, _, errors = podium("submit", "describe", str(system), *options)
    assert found == code
    assert "warning: host_processor_vcpu_count is stated as '100000', and detected as" in errors


def test_a_system_is_described_without_its_framework(podium: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from podium.core.errors import WorkError

    def fail(*_: Any) -> None:
        raise WorkError("libcudart.so.13 is missing")

    monkeypatch.setattr("podium.run.implementation.call_entry_point", fail)
    code, shown, errors = podium("submit", "describe", "laptop")
    assert code == 0 and "framework and GPUs cannot be detected: libcudart.so.13 is missing" in errors
    assert "PyTorch 2.13.0" in shown


@pytest.mark.skipif(commit_of(CODE_FOLDER) is None, reason="Podium is not in a git repository here")
@pytest.mark.parametrize("as_json", [False, True])
def test_package(podium: Any, make_set: Any, tmp_path: Path, as_json: bool) -> None:
    made = make_set([100 + n for n in range(12)], source=current_source())
    arguments = ["submit", "package", str(made.system), "--out", str(tmp_path / "out"), "--org", "Podium"]
    arguments += ["--results", str(made.results), "--runs", str(made.runs), "--allow-other-code"]
    code, shown, errors = podium(*arguments, *(["--json"] if as_json else []))
    assert code == 0, errors
    folder = tmp_path / "out" / "Podium"
    assert (folder / "results/mine/bert/result_9.txt").is_file()
    if as_json:
        document = json.loads(shown)
        assert document["package"] == str(folder)
        (one,) = document["systems"]
        assert one["window"] == 1 and one["score_seconds"] == 105.5 and len(one["window_scores"]) == 3
        assert one["convergence"] is None and not one["scaled"] and len(one["compared"]) == 2
    else:
        assert "3 windows of 10 consecutive runs" in shown and "105.500 s" in shown and str(folder) in shown
        assert shown.count("submitted") == 2  # of the window, and in the caption


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("--ruleset", "6.0.0"), "BERT is not a benchmark of that round", 2),
        (("--division", "Closed"), "--division: found 'Closed', allowed is closed or open", 2),
        (("--org", "../up"), "--org: found '../up'", 2),
        (("--org", "Another"), "logs must not be edited", 1),
    ],
)
def test_invalid_options_and_runs_are_refused(
    podium: Any,
    make_set: Any,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
    code: int,
) -> None:
    made = make_set()
    given = ["submit", "package", str(made.system), "--out", str(tmp_path / "out"), "--org", "Podium"]
    given += ["--results", str(made.results), "--runs", str(made.runs), *arguments]
    found, shown, error = podium(*given)
    assert (found, shown) == (code, "") and message in error
    assert not (tmp_path / "out").exists()


def test_package_of_logs(podium: Any, tmp_path: Path) -> None:
    given = write_package(RETINANET, tmp_path / "given")
    logs, description = given / "results/mine/retinanet", given / "systems/mine.json"
    arguments = ["submit", "package", str(logs), "--out", str(tmp_path / "out"), "--org", "ORG"]
    arguments += [
        "--description",
        str(description),
        "--code",
        str(given / "benchmarks/retinanet/implementations/podium"),
    ]
    for options, message in (
        ((), "--ruleset is missing"),
        (("--ruleset", "5.1.0", "--runs", "runs"), "--results, --runs and --allow-other-code are of Podium's runs"),
        (("--ruleset", "6.1.0"), "is not a benchmark of ruleset 6.1.0"),
    ):
        code, shown, errors = podium(*arguments, *options)
        assert (code, shown) == (2, "") and message in " ".join(errors.split()) and not (tmp_path / "out").exists()
    code, shown, errors = podium(*arguments, "--ruleset", "5.1.0")
    assert code == 0, errors
    rows = {row[1].strip(): row[2].strip() for line in shown.splitlines() if len(row := line.split("│")) == 4}
    assert rows["MLPerf score"].startswith("242.092 s") and rows["epochs to target"] == "4.000"
    assert (tmp_path / "out/ORG/results/mine/retinanet/result_4.txt").is_file()


def test_code_without_a_description_is_refused(podium: Any, tmp_path: Path) -> None:
    arguments = ("submit", "package", "laptop", "--out", str(tmp_path / "out"), "--org", "ORG", "--code", ".")
    code, shown, errors = podium(*arguments)
    assert (code, shown) == (2, "") and "--code is of packages of logs" in errors
