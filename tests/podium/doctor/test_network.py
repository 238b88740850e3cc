"""Host names that do not resolve, and a rendezvous that is not node 0's, as `podium doctor` finds them."""

import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from podium.config.load import load_system
from podium.doctor.context import Examination, Lookup
from podium.doctor.diagnose import findings_of
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
def test_the_machines_own_name(
    monkeypatch: pytest.MonkeyPatch, examine: Callable[..., Examination], name: str, fault: str
) -> None:
    """One node needs none; where there are several it is a warning."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    host = look_up_host()
    assert host.name == name
    assert bool(host.addresses) == (not fault)
    assert fault.strip(".") in host.fault
    alone, several = examine(), load_system("laptop", settings=TWO)
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
        ("203.0.113.77:29500", "launch.rendezvous: 203.0.113.77 is not this node, which was started as node 0; its"),
        (None, "launch.nodes is 2, but launch.rendezvous is missing; name HOST:PORT"),
    ],
)
def test_where_several_nodes_meet(examine: Callable[..., Examination], rendezvous: str | None, found: str) -> None:
    settings = [*TWO, *([f"launch.rendezvous={rendezvous}"] if rendezvous else [])]
    config = load_system("laptop", settings=settings)
    examination = replace(examine(), config=config, rendezvous=look_up_rendezvous(config))
    (finding,) = check_rendezvous(examination)
    assert finding.message.startswith(found)
    assert finding.severity == ("ok" if " is 127" in found else "error")
    assert bool(finding.advice) == (finding.severity == "error")


def test_a_single_node_meets_no_other_and_other_machines_are_not_judged(examine: Callable[..., Examination]) -> None:
    assert look_up_rendezvous(load_system("laptop")) is None
    assert {finding.rule for finding in findings_of(examine())}.isdisjoint({"host name", "rendezvous"})
    found = findings_of(replace(examine(), host=Lookup("a", "10.0.0.5"), rendezvous=Lookup("a", "10.0.0.5")))
    assert [finding.severity for finding in found if finding.rule in ("host name", "rendezvous")] == ["ok", "ok"]
