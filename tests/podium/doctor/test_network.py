"""Findings about host names that do not resolve and a rendezvous that is not node 0."""

import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from podium.config.load import load_system
from podium.doctor.context import DiagnosticContext, Lookup
from podium.doctor.diagnose import run_checks
from podium.doctor.network import check_host_name, check_rendezvous, look_up_host, look_up_rendezvous

TWO = ("launch.nodes=2", "global_batch_size=16")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("localhost", ""),
        ("", "it is empty"),
        ("two words", "."),
        ("nowhere.invalid", "."),
        ("a" * 64, "a part of a host name has 1 to 63 characters"),
    ],
)
def test_host_name_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, make_context: Callable[..., DiagnosticContext], name: str, fault: str
) -> None:
    """A name that does not resolve is a note for a single node, and a warning for several."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    host = look_up_host()
    assert host.name == name
    assert bool(host.addresses) == (not fault)
    assert fault.strip(".") in host.fault
    alone, several = make_context(), load_system("laptop", settings=TWO)
    for config, verdict in ((alone.config, "note"), (several, "warning")):
        (finding,) = check_host_name(replace(alone, config=config, host=host))
        assert finding.severity == (verdict if fault else "ok")
        assert finding.message.startswith(f"{name!r}: {host.fault}" if fault else f"{name!r} is ")
        assert bool(finding.advice) == bool(fault)


@pytest.mark.parametrize(
    ("rendezvous", "found"),
    [
        ("127.0.0.1:29500", "launch.rendezvous=127.0.0.1:29500 is 127.0.0.1 on this node"),
        ("nowhere.invalid:29500", "launch.rendezvous: the host name nowhere.invalid does not resolve on this node ("),
        ("203.0.113.77:29500", "launch.rendezvous: 203.0.113.77 is not this node, which was started as node 0; this"),
        (None, "launch.nodes is 2, but launch.rendezvous is missing; set it to HOST:PORT"),
    ],
)
def test_rendezvous_of_several_nodes(
    make_context: Callable[..., DiagnosticContext], rendezvous: str | None, found: str
) -> None:
    settings = [*TWO, *([f"launch.rendezvous={rendezvous}"] if rendezvous else [])]
    config = load_system("laptop", settings=settings)
    context = replace(make_context(), config=config, rendezvous=look_up_rendezvous(config))
    (finding,) = check_rendezvous(context)
    assert finding.message.startswith(found)
    assert finding.severity == ("ok" if " is 127" in found else "error")
    assert bool(finding.advice) == (finding.severity == "error")


def test_network_checks_need_several_nodes_and_a_machine_of_the_run(
    make_context: Callable[..., DiagnosticContext],
) -> None:
    assert look_up_rendezvous(load_system("laptop")) is None
    assert {finding.rule for finding in run_checks(make_context())}.isdisjoint({"host name", "rendezvous"})
    found = run_checks(replace(make_context(), host=Lookup("a", "10.0.0.5"), rendezvous=Lookup("a", "10.0.0.5")))
    assert [finding.severity for finding in found if finding.rule in ("host name", "rendezvous")] == ["ok", "ok"]
