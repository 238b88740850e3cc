"""Bounds of clock offsets from made-up exchanges, whose true offsets are known.

What one process and what a group of one tell; several ranks are tested through `podium doctor`.
"""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.bert.sizes import TINY
from implementations.pytorch import diagnostics, doctor
from implementations.pytorch.diagnostics import (
    Offset,
    examine_device,
    examine_together,
    measure_all_reduce,
    missing_paths,
    offsets,
)
from implementations.pytorch.distributed.process_group import alone
from podium.config.load import load_system, write_resolved
from podium.config.schema import RunConfig

OFFSETS_R = torch.tensor([0.0, 2.5, -0.75], dtype=torch.float64)


def exchanges(rounds: int, slowest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds in which everybody sends within a while and receives after the last has sent, by clocks that differ."""
    generator = torch.Generator().manual_seed(3)
    begin_N1 = 100.0 * torch.arange(rounds, dtype=torch.float64)[:, None]
    sent_NR = begin_N1 + slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    delays_NR = slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    received_NR = sent_NR.max(dim=1, keepdim=True).values + delays_NR
    return sent_NR + OFFSETS_R, received_NR + OFFSETS_R


@pytest.mark.parametrize(("rounds", "slowest", "width"), [(1, 0.01, 0.05), (50, 0.01, 0.012), (50, 1.0, 1.2)])
def test_the_true_offset_lies_within_the_bounds(rounds: int, slowest: float, width: float) -> None:
    found = offsets(*exchanges(rounds, slowest))
    assert found[0] == Offset(0.0, 0.0)
    for offset, true in zip(found, OFFSETS_R.tolist(), strict=True):
        assert offset.least <= true <= offset.greatest
        assert offset.greatest - offset.least <= width


def test_what_is_certain_is_the_nearer_bound() -> None:
    assert [Offset(*bounds).certain for bounds in ((-1, 2), (0.5, 2), (-3, -1.5))] == [0.0, 0.5, 1.5]


def test_more_rounds_are_never_worse() -> None:
    sent_NR, received_NR = exchanges(30, 0.1)
    few, many = offsets(sent_NR[:5], received_NR[:5])[1], offsets(sent_NR, received_NR)[1]
    assert few.least <= many.least <= many.greatest <= few.greatest


CPU = torch.device("cpu")
QUICK = ["launch.threads_per_process=1", "global_batch_size=4"]
"""One thread, so that beside other load none waits for another."""


@pytest.fixture
def config() -> RunConfig:
    return load_system("laptop", settings=["seed=1", "precision=fp32", "kernels=eager", *QUICK])


def test_a_process_prints_what_is_possible(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor", str(tmp_path / "config.yaml")])
    write_resolved(config, tmp_path / "config.yaml")
    assert doctor.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert told["torch"] == torch.__version__
    assert {asked["what"]: asked["found"] for asked in told["possible"]} == {
        "precision": "fp32",
        "attention": "grouped",
        "kernels": "eager",
        "cuda_graph": "none",
        "loader": "own",
        "step": "4 samples, adamw",
    }


def test_a_file_that_is_no_configuration_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor", str(tmp_path / "no.yaml"), str(tmp_path)])
    assert doctor.main() == 2
    assert "cannot be read" in capsys.readouterr().err
    assert "cannot be read" in json.loads((tmp_path / "failure.json").read_text(encoding="utf-8"))["message"]


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"attention": "flash"}, "attention", "needs bf16 or fp16 on cuda"),
        ({"precision": "fp8"}, "precision", "cannot multiply"),
        ({"kernels": "triton"}, "kernels", "found triton on cpu"),
        ({"cuda_graph": "step"}, "cuda_graph", "CUDA graphs need cuda"),
    ],
)
def test_what_a_cpu_cannot_do_is_said(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], what: str, words: str
) -> None:
    monkeypatch.delitem(diagnostics.ASKED, "step")
    told = {asked["what"]: asked["why_not"] for asked in examine_device(config.model_copy(update=change))["possible"]}
    assert words in told[what]
    assert told["loader"] is None


def test_dali_is_missed_before_a_run(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "find_spec", lambda _: None)
    monkeypatch.delitem(diagnostics.ASKED, "step")
    told = {a["what"]: a["why_not"] for a in examine_device(config.model_copy(update={"loader": "dali"}))["possible"]}
    assert "install it with" in told["loader"]


def test_a_step_that_fails_by_anything_is_a_sentence(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: out of something\nmore lines")

    monkeypatch.setattr(diagnostics, "Podium", fails)
    (told,) = [asked for asked in examine_device(config)["possible"] if asked["what"] == "step"]
    assert told["why_not"] == "RuntimeError: CUDA error: out of something"


def test_a_step_that_ends_in_nonsense_is_not_possible(config: RunConfig) -> None:
    optimizer = config.optimizer.model_copy(update={"learning_rate": 1e38, "warmup_steps": 0})
    (told,) = [a for a in examine_device(config.model_copy(update={"optimizer": optimizer}))["possible"][-1:]]
    assert "is not finite" in told["why_not"]


@pytest.mark.parametrize(("local", "parts", "expected"), [(3, 1, "3 samples, adamw"), (8, 4, "8 samples, adamw")])
def test_the_step_has_the_accumulation_of_the_run(config: RunConfig, local: int, parts: int, expected: str) -> None:
    changed = config.model_copy(update={"global_batch_size": local, "gradient_accumulation_steps": parts})
    assert examine_device(changed)["possible"][-1]["found"] == expected


def test_a_group_of_one(config: RunConfig) -> None:
    with alone(CPU) as processes:
        found = examine_together(config, processes, 512)
        monkey = measure_all_reduce(processes, TINY, 1000)
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["device"], rank["clock_seconds"]) == (0, "cpu", [0.0, 0.0])
    assert rank["matmul_flops"] > 0
    assert found["all_reduce"]["bus_bandwidth"] == 0
    assert monkey["bytes"] == monkey["gradient_bytes"] == 4 * TINY.parameters(1000)
    assert monkey["right"] == 1.0


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    assert missing_paths([tmp_path, tmp_path / "no"]) == [str(tmp_path / "no")]
