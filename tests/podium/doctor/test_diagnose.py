"""Complete runs of `podium doctor` on this machine, with the implementation's real processes."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.cli import main
from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, UsageError, WorkError
from podium.core.finding import Finding
from podium.doctor import diagnose as diagnose_module
from podium.doctor.context import Places
from podium.doctor.diagnose import collect_context, diagnose
from podium.launch.node_group import NodeGroup
from podium.run.implementation import call_entry_point
from tests.podium.conftest import run_podium
from tests.podium.doctor.conftest import LAPTOP


@pytest.fixture(autouse=True)
def own_places(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.run_set.RUNS", places.runs)
    monkeypatch.setattr("podium.run.results.RESULTS", places.results)


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings}


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_report_on_two_ranks_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """With a real training step and a real process group."""
    settings = [argument for setting in LAPTOP for argument in ("--set", setting)]
    main.app(["doctor", "laptop", *settings, "--json"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in report["findings"]}
    assert report["ready"] is True
    assert report["system"] == "laptop"
    assert found["step"]["verdict"] == "ok"
    assert found["step"]["found"] == "8 samples, adamw"
    assert found["ranks"]["found"].startswith("2 on ")
    assert found["clocks"]["found"] == "alike"
    assert "GB/s, all gradients in" in found["gloo all-reduce"]["found"]


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_gpu_system_on_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real processes report it. The rank is started without torchrun."""

    def command(config: RunConfig, folder: RunFolder, entry: str, *_: Any) -> list[str]:
        return [sys.executable, "-m", f"implementations.pytorch.{entry}", str(folder.config), str(folder.path)]

    monkeypatch.setattr("podium.launch.launch.command", command)
    no_gpu = by_check(
        diagnose(
            "h200_1x", None, ["size=tiny", "hyperparameters=tiny_lamb_16", "evaluation.samples=20"], lambda _: None
        )
    )
    if no_gpu["GPUs"].severity == "ok":
        pytest.skip("there is a GPU here")
    assert no_gpu["GPUs"].message == "0 visible"
    assert "torch sees no GPU here" in no_gpu["ranks"].message


@pytest.mark.parametrize(
    ("changes", "check", "message"),
    [
        ({"bert.dropout": 0.2}, "closed division", "Hyper-parameters: dropout is 0.2"),
        ({"bert.seed": 3}, "closed division", "Random seeds"),
        ({"bert.global_batch": 3}, "configuration", "there is no such key (did you mean global_batch_size?)"),
        ({"launch.processes_per_node": 5}, "configuration", "allowed are multiples of 5"),
    ],
)
def test_invalid_configuration_is_a_finding(
    write_system: Any, closed_changes: dict[str, Any], changes: dict[str, Any], check: str, message: str
) -> None:
    (finding,) = diagnose(str(write_system(closed_changes | changes)), None, [], lambda _: None)
    assert (finding.rule, finding.severity) == (check, "error")
    assert message in finding.message
    assert finding.advice


@pytest.mark.parametrize("option", [(), ("--json",)])
@pytest.mark.parametrize(
    "invalid", [("--set", "sed=1"), ("--set", "dropout=2"), ("--recipe", "none"), ("--set", "launch.nodes=0")]
)
def test_an_invalid_configuration_has_the_exit_code_of_wrong_usage(
    invalid: tuple[str, ...], option: tuple[str, ...]
) -> None:
    done = run_podium("doctor", "laptop", *invalid, *option)
    assert done.returncode == 2
    assert "configuration" in done.stdout and invalid[1].partition("=")[0] in done.stdout


def test_another_error_has_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("GPUs", "error", "0 visible", "1", "see nvidia-smi")]
    monkeypatch.setattr("podium.doctor.diagnose.diagnose", lambda *_: found)
    assert run_podium("doctor", "laptop").returncode == 1


def test_unknown_system_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="there is no system 'lptop'"):
        diagnose("lptop", None, [], lambda _: None)


class Clock:
    """A clock that advances 200 seconds at each call."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 200.0
        return self.now


def test_hanging_ranks_time_out(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_implementation("time.sleep(60)")
    monkeypatch.setattr("podium.doctor.diagnose.time", Clock())
    with pytest.raises(WorkError, match="not all 1 ranks were connected"):
        diagnose_module._diagnose_ranks(open_config, run_folder, NodeGroup())


@pytest.mark.usefixtures("data")
def test_diagnostics_run_with_unwritable_runs_folder(
    places: Places, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_implementation("(folder / 'summary.json').write_text('{\"ranks\": []}')")
    monkeypatch.setattr(diagnose_module, call_entry_point.__name__, lambda *_: {"torch": "2.13.0"})
    places.runs.write_text("in the way", encoding="utf-8")
    progress: list[str] = []
    context = collect_context(load_system("laptop", settings=LAPTOP), places, progress.append)
    assert progress[-2:] == ["Trying a step on this machine", "Starting 2 ranks"]
    assert context.ranks == {"ranks": []}
    assert context.device == {"torch": "2.13.0"}


@pytest.mark.usefixtures("data")
def test_diagnostics_run_without_the_other_nodes(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_module, call_entry_point.__name__, lambda *_: {"torch": "2.13.0"})
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.0)
    two = [*LAPTOP, "launch.nodes=2", "launch.processes_per_node=1"]
    nowhere = collect_context(load_system("laptop", settings=two), places, lambda _: None)
    assert "launch.rendezvous is missing; set it to HOST:PORT" in nowhere.ranks_fault
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    alone = collect_context(
        load_system("laptop", settings=[*two, f"launch.rendezvous=127.0.0.1:{port}"]), places, lambda _: None
    )
    assert (
        f"nodes 1 have not connected to 127.0.0.1:{port + 1} within 0 s; start the same command there"
        in alone.ranks_fault
    )
    for context in (nowhere, alone):
        assert context.ranks is None
        assert context.device == {"torch": "2.13.0"}
        assert context.store is not None


@pytest.mark.usefixtures("data")
def test_interruption_ends_the_diagnostics(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise Interrupted("interrupted")

    config = load_system("laptop", settings=LAPTOP)
    for what in (
        "podium.doctor.diagnose.node_group",
        f"podium.doctor.diagnose.{call_entry_point.__name__}",
        "podium.launch.node_group.launch",
        "podium.doctor.diagnose.data_module.with_data",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(diagnose_module, call_entry_point.__name__, lambda *_: {})
            patch.setattr("podium.launch.node_group.launch", lambda *_: None)
            patch.setattr(what, interrupted)
            with pytest.raises(Interrupted):
                collect_context(config, places, lambda _: None)


def test_exit_code_is_1_with_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    findings = [Finding("one", "ok", "a [thing]", "it"), Finding("two", "warning", "b", "c", "do that")]
    monkeypatch.setattr("podium.doctor.diagnose.diagnose", lambda *_: findings)
    main.app(["doctor", "laptop"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "a [thing]" in printed
    assert "two: do that" in printed
    assert printed.rstrip().endswith("ready: 1 warning")
    findings.append(Finding("three", "error", "d", "e", "f"))
    assert main.app(["doctor", "laptop"], standalone_mode=False) == 1
    assert capsys.readouterr().out.rstrip().endswith("not ready: 1 error, 1 warning")
