"""Step costs are of a model and a device; of other settings they are doubtful."""

from typing import Any

import pytest

from podium.config import load_system
from podium.config.measured import differing

MEASURED: dict[str, Any] = {
    "recipe": "indexed",
    "attention": "grouped",
    "kernels": "auto",
    "device": "cpu",
    "precision": "bf16",
    "layers": 2,
    "hidden": 128,
    "global_batch_size": 16,
    "ranks": 1,
}


@pytest.mark.parametrize(
    ("settings", "others", "doubts"),
    [
        ([], [], []),
        (["size=large"], ["layers 2, not 24", "hidden 128, not 1024"], []),
        (["precision=fp32"], [], ["precision bf16, not fp32"]),
        (["precision=bf16"], [], []),
        (
            ["global_batch_size=32", "attention=padded"],
            [],
            ["attention grouped, not padded", "global_batch_size 16, not 32"],
        ),
        (["launch.processes_per_node=2"], [], ["ranks 1, not 2"]),
        (["launch.device=cuda"], ["device cpu, not cuda"], []),
    ],
)
def test_what_differs_is_named(settings: list[str], others: list[str], doubts: list[str]) -> None:
    assert differing(load_system("laptop", settings=settings), MEASURED) == (others, doubts)


def test_a_gpu_by_whatever_name_is_a_gpu() -> None:
    others, _ = differing(load_system("h200_1x"), {"device": "NVIDIA H200", "layers": 24, "hidden": 1024})
    assert others == []


def test_what_a_file_does_not_tell_does_not_differ() -> None:
    assert differing(load_system("laptop"), {}) == ([], [])
