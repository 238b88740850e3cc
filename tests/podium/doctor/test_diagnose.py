"""The whole diagnosis of this machine, with the implementation's real processes."""

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
from podium.doctor.diagnose import diagnose, examine
from podium.launch.node_group import NodeGroup
from tests.podium.doctor.conftest import LAPTOP


@pytest.fixture(autouse=True)
def own_places(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.run_set.RUNS", places.runs)
    monkeypatch.setattr("podium.run.results.RESULTS", places.results)


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings}


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_two_ranks_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """A step that is really taken, ranks that really meet; what is told here is told as a table and as JSON."""
    settings = [word for setting in LAPTOP for word in ("--set", setting)]
    main.app(["doctor", "laptop", *settings, "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in told["findings"]}
    assert told["ready"] is True
    assert told["system"] == "laptop"
    assert found["step"]["verdict"] == "ok"
    assert found["step"]["found"] == "8 samples, adamw"
    assert found["ranks"]["found"].startswith("2 on ")
    assert found["clocks"]["found"] == "alike"
    assert "GB/s, all gradients in" in found["gloo all-reduce"]["found"]


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_what_this_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU system on a machine without: said by the real processes. The rank is started without torchrun."""

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
    ("changes", "check", "words"),
    [
        ({"bert.dropout": 0.2}, "closed division", "Hyper-parameters: dropout is 0.2"),
        ({"bert.seed": 3}, "closed division", "Random seeds"),
        ({"bert.global_batch": 3}, "configuration", "there is no such key (did you mean global_batch_size?)"),
        ({"launch.processes_per_node": 5}, "configuration", "allowed are multiples of 5"),
    ],
)
def test_a_configuration_that_is_refused_is_a_finding(
    write_system: Any, closed_changes: dict[str, Any], changes: dict[str, Any], check: str, words: str
) -> None:
    (finding,) = diagnose(str(write_system(closed_changes | changes)), None, [], lambda _: None)
    assert (finding.rule, finding.severity) == (check, "error")
    assert words in finding.message
    assert finding.advice


def test_a_system_that_there_is_not_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="there is no system 'lptop'"):
        diagnose("lptop", None, [], lambda _: None)


class Clock:
    """Each look at it takes long."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 200.0
        return self.now


def test_ranks_that_hang_are_not_waited_for(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_implementation("time.sleep(60)")
    monkeypatch.setattr("podium.doctor.diagnose.time", Clock())
    with pytest.raises(WorkError, match="not all 1 ranks had met"):
        diagnose_module._together(open_config, run_folder, NodeGroup())


@pytest.mark.usefixtures("data")
def test_where_runs_cannot_be_written_the_rest_is_still_found(
    places: Places, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_implementation("(folder / 'summary.json').write_text('{\"ranks\": []}')")
    monkeypatch.setattr("podium.doctor.diagnose.ask", lambda *_: {"torch": "2.13.0"})
    places.runs.write_text("in the way", encoding="utf-8")
    progress: list[str] = []
    examination = examine(load_system("laptop", settings=LAPTOP), places, progress.append)
    assert progress[-2:] == ["Trying a step on this machine", "Having 2 ranks meet"]
    assert examination.ranks == {"ranks": []}
    assert examination.device == {"torch": "2.13.0"}


@pytest.mark.usefixtures("data")
def test_nodes_that_do_not_meet_are_found_and_the_rest_is_examined(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.doctor.diagnose.ask", lambda *_: {"torch": "2.13.0"})
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.0)
    two = [*LAPTOP, "launch.nodes=2", "launch.processes_per_node=1"]
    nowhere = examine(load_system("laptop", settings=two), places, lambda _: None)
    assert "launch.rendezvous is missing; name HOST:PORT" in nowhere.ranks_fault
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    alone = examine(
        load_system("laptop", settings=[*two, f"launch.rendezvous=127.0.0.1:{port}"]), places, lambda _: None
    )
    assert f"nodes 1 have not come to 127.0.0.1:{port + 1} in 0 s; start the same command there" in alone.ranks_fault
    for examination in (nowhere, alone):
        assert examination.ranks is None
        assert examination.device == {"torch": "2.13.0"}
        assert examination.store is not None


@pytest.mark.usefixtures("data")
def test_an_interruption_ends_it(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise Interrupted("interrupted")

    config = load_system("laptop", settings=LAPTOP)
    for what in (
        "podium.doctor.diagnose.node_group",
        "podium.doctor.diagnose.ask",
        "podium.launch.node_group.launch",
        "podium.doctor.diagnose.data_module.with_data",
    ):
        with monkeypatch.context() as patch:
            patch.setattr("podium.doctor.diagnose.ask", lambda *_: {})
            patch.setattr("podium.launch.node_group.launch", lambda *_: None)
            patch.setattr(what, interrupted)
            with pytest.raises(Interrupted):
                examine(config, places, lambda _: None)


def test_the_exit_code_tells_of_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = [Finding("one", "ok", "a [thing]", "it"), Finding("two", "warning", "b", "c", "do that")]
    monkeypatch.setattr("podium.doctor.diagnose.diagnose", lambda *_: told)
    main.app(["doctor", "laptop"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "a [thing]" in printed
    assert "two: do that" in printed
    assert printed.rstrip().endswith("ready: 1 warning")
    told.append(Finding("three", "error", "d", "e", "f"))
    assert main.app(["doctor", "laptop"], standalone_mode=False) == 1
    assert capsys.readouterr().out.rstrip().endswith("not ready: 1 error, 1 warning")
