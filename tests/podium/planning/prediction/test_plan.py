"""Accelerators and network adapters from system descriptions, and machines."""

import pytest

from podium.planning.prediction.plan import Machine, find_processor, parse_adapters


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("NVIDIA A100-SXM4-80GB (400W)", "a100_sxm"),
        ("NVIDIA A100-PCIe-80GB", "a100_pcie"),
        ("NVIDIA A100-PCIE-40GB (250W)", "a100_pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100-SXM5-80GB", "h100_sxm"),
        ("NVIDIA T4", "t4"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200-SXM5-141GB", "h200"),
        ("NVIDIA H100 NVL", "h100_sxm"),
        ("NVIDIA H2000", None),
        ("NVIDIA H20", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A1000-PCIE-40GB", None),
        ("NVIDIA B2000", None),
        ("Habana Gaudi2", None),
        ("none", None),
    ],
)
def test_processors(text: str, key: str | None) -> None:
    assert find_processor(text) == key


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        ("8x ConnectX-6 IB HDR 200Gb/Sec", (8, 200.0)),
        (
            "Storage: 2x ConnectX-6 IB HDR 200Gb/sec, Management: 1x ConnectX-6 Ethernet 100Gb/Sec, "
            "Compute: 8x ConnectX-6 IB HDR 200Gb/Sec",
            (8, 200.0),
        ),
        ("1x ConnectX-5 IB EDR 100Gb/Sec", (1, 100.0)),
        ("1x Ethernet 40Gb/Sec, 4 x Mellanox [ConnectX-6] HDR 200 Gb/Sec", (4, 200.0)),
        ("1x Ethernet 10Gb/sec", (1, 10.0)),
        ("1x Ethernet 50Gb/sec", (1, 50.0)),
        ("10GbE", (1, 10.0)),
        ("2x 25 GbE, 1x 1GbE", (2, 25.0)),
        ("Ethernet 10 Gbit/s", (1, 10.0)),
        ("Ethernet 0Gb/s", None),
        ("none", None),
        ("", None),
    ],
)
def test_adapters(text: str, adapters: tuple[int, float] | None) -> None:
    assert parse_adapters(text) == adapters


def test_eight_sxm_gpus_reach_their_adapters_through_switches() -> None:
    assert Machine("a100_sxm", 2, 8).uses_pcie_switches
    assert not Machine("a100_sxm", 2, 4).uses_pcie_switches
    assert not Machine("a100_pcie", 2, 8).uses_pcie_switches
    assert not Machine("t4", 2, 8).uses_pcie_switches
    assert Machine("a100_sxm", 3, 8).ranks == 24


def test_invalid_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="a100_sxm"):
        Machine("abacus", 1, 1)
    with pytest.raises(ValueError, match="found 0, 8, allowed are 1 and more"):
        Machine("h200", 0, 8)
