"""Settings that the described hardware does not support are errors before a run starts."""

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.planning.accelerators import _CAPABILITY_OF, _TABLE
from podium.planning.hardware import hardware_warnings, require_hardware

A100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA T4"


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        (
            "dgxa100_n8",
            ["precision=fp8"],
            f"--set precision: found fp8 on {A100} (description.accelerator_model_name), which has compute "
            "capability 8.0, but only GPUs of compute capability 8.9 or more support fp8; allowed there are auto, "
            "bf16, fp16, fp32",
        ),
        (
            "academic_t4",
            ["precision=fp8"],
            "capability 7.5, but only GPUs of compute capability 8.9 or more support fp8; ",
        ),
        ("academic_t4", ["precision=bf16"], "found bf16 on NVIDIA T4 (description.accelerator_model_name)"),
        ("academic_t4", ["attention=flash", "balancing=random"], "attention: found flash on NVIDIA T4"),
        ("h200_1x", ["attention=flash", "precision=fp32"], "8.0 or more, and precision is fp32"),
        ("h200_1x", ["attention=cudnn", "precision=fp32"], "attention: found cudnn on NVIDIA H200"),
        ("academic_t4", ["attention=cudnn", "balancing=random"], "attention: found cudnn on NVIDIA T4"),
        ("laptop", ["attention=cudnn"], "attention: found cudnn on a CPU"),
        ("h200_1x", ["attention=cudnn", "balancing=padded"], "attention is cudnn, which does not support padding"),
        ("h200_1x", ["kernels=numba"], "kernels: found numba on NVIDIA H200 (description.accelerator_model_name)"),
        (
            "laptop",
            ["kernels=triton"],
            "kernels: found triton on a CPU (launch.device), but these kernels run on a GPU",
        ),
        ("laptop", ["precision=fp8"], "precision: found fp8 on a CPU"),
        ("laptop", ["attention=flash"], "attention: found flash on a CPU"),
        ("laptop", ["cuda_graph=step"], "cuda_graph: found step on a CPU"),
        ("h200_1x", ["cuda_graph=step", "precision=fp32"], "attention auto is nested where there is no flash"),
        ("h200_1x", ["capacity_overflow=0.01", "precision=fp32"], "capacity_overflow: found 0.01 on NVIDIA H200"),
    ],
)
def test_unsupported_setting_is_an_error_of_a_dry_run(system: str, settings: list[str], message: str) -> None:
    options = [argument for setting in settings for argument in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", system, "--dry-run", *options])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        ("NVIDIA H100-SXM5-80GB", ["precision=fp8"], False),
        ("NVIDIA L40S", ["precision=fp8"], False),
        ("NVIDIA A40", ["precision=fp8"], True),
        ("NVIDIA B200", ["precision=fp8", "attention=flash"], False),
        ("NVIDIA H100-SXM5-80GB", ["precision=fp8", "attention=cudnn", "capacity_overflow=0.01"], False),
        ("NVIDIA H100-SXM5-80GB", ["cuda_graph=step", "attention=cudnn"], False),
        ("Tesla V100-SXM2-32GB", ["attention=flash", "precision=fp16"], True),
        ("Tesla V100-SXM2-32GB", ["attention=nested", "precision=fp16"], False),
        ("Tesla V100-SXM2-32GB", ["cuda_graph=step", "precision=fp16"], True),
        ("Example Accelerator 1", ["precision=fp8", "attention=flash"], False),  # only the implementation checks it
        (T4, ["precision=auto"], False),
        (T4, ["capacity_overflow=0.01", "precision=fp16"], True),
    ],
)
def test_support_depends_on_the_described_accelerator(name: str, settings: list[str], refused: bool) -> None:
    config = load_system("h200_1x", settings=[f"description.accelerator_model_name={name}", *settings])
    if refused:
        with pytest.raises(UsageError, match=f"on {name}".replace("(", r"\(")):
            require_hardware(config)
    else:
        require_hardware(config)


def test_every_nvidia_accelerator_has_a_capability() -> None:
    assert set(_CAPABILITY_OF) == {name for _, name, _ in _TABLE if name.startswith("NVIDIA ")}


@pytest.mark.parametrize("command", [["run", "--dry-run"], ["predict"]])
def test_accelerators_that_are_not_supported_are_refused(command: list[str]) -> None:
    name = "description.accelerator_model_name=AMD Instinct MI300X"
    done = CliRunner().invoke(app, [command[0], "h200_1x", *command[1:], "--set", name])
    assert isinstance(done.exception, UsageError)
    assert "description.accelerator_model_name: found 'AMD Instinct MI300X', but" in str(done.exception)
    assert "does not run on AMD GPUs (ROCm)" in str(done.exception)


def test_an_accelerator_that_the_table_lacks_may_run() -> None:
    for name, warned in (("NVIDIA H20", True), ("A new GPU", True), ("", False), ("NVIDIA H200", False)):
        config = load_system("h200_1x", settings=[f"description.accelerator_model_name={name}"])
        require_hardware(config)
        warnings = hardware_warnings(config)
        assert [one for one in warnings if f"{name!r} is no GPU that Podium knows" in one] == [*warnings]
        assert bool(warnings) is warned
