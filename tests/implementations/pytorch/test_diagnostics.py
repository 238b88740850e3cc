"""Diagnostics: bounds on clock offsets from synthetic timestamps with known offsets, and checks of one process.

Several ranks are tested through `podium doctor`.
"""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.bert.sizes import TINY
from implementations.pytorch import diagnostics, doctor
from implementations.pytorch.diagnostics import (
    ClockOffset,
    diagnose_device,
    diagnose_ranks,
    measure_all_reduce,
    missing_paths,
    offset_bounds,
)
from implementations.pytorch.distributed.process_group import single_process
from podium.config.load import load_system, write_resolved
from podium.config.schema import RunConfig

OFFSETS_R = torch.tensor([0.0, 2.5, -0.75], dtype=torch.float64)


def exchanges(rounds: int, slowest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the times [N, R] at which ranks sent and received, by clocks that differ by OFFSETS_R. All ranks send
    within `slowest` seconds, and receive within that time after the last has sent."""
    generator = torch.Generator().manual_seed(3)
    begin_N1 = 100.0 * torch.arange(rounds, dtype=torch.float64)[:, None]
    sent_NR = begin_N1 + slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    delays_NR = slowest * torch.rand(rounds, 3, generator=generator, dtype=torch.float64)
    received_NR = sent_NR.max(dim=1, keepdim=True).values + delays_NR
    return sent_NR + OFFSETS_R, received_NR + OFFSETS_R


@pytest.mark.parametrize(("rounds", "slowest", "width"), [(1, 0.01, 0.05), (50, 0.01, 0.012), (50, 1.0, 1.2)])
def test_the_true_offset_lies_within_the_bounds(rounds: int, slowest: float, width: float) -> None:
    found = offset_bounds(*exchanges(rounds, slowest))
    assert found[0] == ClockOffset(0.0, 0.0)
    for offset, true in zip(found, OFFSETS_R.tolist(), strict=True):
        assert offset.lower <= true <= offset.upper
        assert offset.upper - offset.lower <= width


def test_the_minimum_difference_is_the_bound_nearer_to_zero() -> None:
    assert [ClockOffset(*bounds).minimum_difference for bounds in ((-1, 2), (0.5, 2), (-3, -1.5))] == [0.0, 0.5, 1.5]


def test_more_rounds_never_loosen_the_bounds() -> None:
    sent_NR, received_NR = exchanges(30, 0.1)
    few, many = offset_bounds(sent_NR[:5], received_NR[:5])[1], offset_bounds(sent_NR, received_NR)[1]
    assert few.lower <= many.lower <= many.upper <= few.upper


CPU = torch.device("cpu")
# One thread, so that no thread waits for another under other load.
QUICK = ["launch.threads_per_process=1", "global_batch_size=4"]


@pytest.fixture
def config() -> RunConfig:
    return load_system("laptop", settings=["seed=1", "precision=fp32", "kernels=eager", *QUICK])


def test_a_process_prints_the_resolved_features(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor", str(tmp_path / "config.yaml")])
    write_resolved(config, tmp_path / "config.yaml")
    assert doctor.main() == 0
    result = json.loads(capsys.readouterr().out)
    assert result["torch"] == torch.__version__
    assert {check["what"]: check["found"] for check in result["possible"]} == {
        "precision": "fp32",
        "attention": "grouped",
        "kernels": "eager",
        "cuda_graph": "none",
        "loader": "own",
        "step": "4 samples, adamw",
    }


def test_an_unreadable_configuration_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor", str(tmp_path / "no.yaml"), str(tmp_path)])
    assert doctor.main() == 2
    assert "cannot be read" in capsys.readouterr().err
    assert "cannot be read" in json.loads((tmp_path / "failure.json").read_text(encoding="utf-8"))["message"]


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({"attention": "flash"}, "attention", "needs bf16 or fp16 on cuda"),
        ({"precision": "fp8"}, "precision", "does not support"),
        ({"kernels": "triton"}, "kernels", "found triton on cpu"),
        ({"cuda_graph": "step"}, "cuda_graph", "CUDA graphs need cuda"),
    ],
)
def test_features_that_a_cpu_lacks_are_reported(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], name: str, message: str
) -> None:
    monkeypatch.delitem(diagnostics.CHECKS, "step")
    checks = diagnose_device(config.model_copy(update=change))["possible"]
    reasons = {check["what"]: check["why_not"] for check in checks}
    assert message in reasons[name]
    assert reasons["loader"] is None


def test_missing_dali_is_reported(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "find_spec", lambda _: None)
    monkeypatch.delitem(diagnostics.CHECKS, "step")
    checks = diagnose_device(config.model_copy(update={"loader": "dali"}))["possible"]
    reasons = {check["what"]: check["why_not"] for check in checks}
    assert "install it with" in reasons["loader"]


def test_any_exception_of_the_step_is_reported(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: out of something\nmore lines")

    monkeypatch.setattr(diagnostics, "PodiumRunner", fails)
    (step,) = [check for check in diagnose_device(config)["possible"] if check["what"] == "step"]
    assert step["why_not"] == "RuntimeError: CUDA error: out of something"


def test_weights_that_are_not_finite_are_reported(config: RunConfig) -> None:
    optimizer = config.optimizer.model_copy(update={"learning_rate": 1e38, "warmup_steps": 0})
    step = diagnose_device(config.model_copy(update={"optimizer": optimizer}))["possible"][-1]
    assert "is not finite" in step["why_not"]


@pytest.mark.parametrize(("local", "parts", "expected"), [(3, 1, "3 samples, adamw"), (8, 4, "8 samples, adamw")])
def test_the_step_uses_the_accumulation_of_the_run(config: RunConfig, local: int, parts: int, expected: str) -> None:
    changed = config.model_copy(update={"global_batch_size": local, "gradient_accumulation_steps": parts})
    assert diagnose_device(changed)["possible"][-1]["found"] == expected


def test_diagnosis_of_a_single_rank(config: RunConfig) -> None:
    with single_process(CPU) as processes:
        found = diagnose_ranks(config, processes, 512)
        all_reduce = measure_all_reduce(processes, TINY, 1000)
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["device"], rank["clock_seconds"]) == (0, "cpu", [0.0, 0.0])
    assert rank["matmul_flops"] > 0
    assert found["all_reduce"]["bus_bandwidth"] == 0
    assert all_reduce["bytes"] == all_reduce["gradient_bytes"] == 4 * TINY.parameters(1000)
    assert all_reduce["right"] == 1.0


def test_unreadable_paths_are_listed(tmp_path: Path) -> None:
    assert missing_paths([tmp_path, tmp_path / "no"]) == [str(tmp_path / "no")]
