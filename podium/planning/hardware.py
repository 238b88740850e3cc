"""Check of a configuration against the hardware of the system's description, before a run starts.

An accelerator without a compute capability in the table of accelerators passes, with a warning: the implementation
checks the device when a run starts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from podium.config.schema import RunConfig, is_stated
from podium.core.errors import UsageError
from podium.planning.accelerators import find_accelerator, require_supported, unknown_gpu_warning

# Lowest compute capabilities with bf16 and fp8 matrix products, and for variable-length attention of PyTorch and cuDNN.
BF16_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
FLASH_CAPABILITY = (8, 0)
VARLEN_ATTENTION = ("cudnn", "flash")  # backends that need FLASH_CAPABILITY, and bf16 or fp16


@dataclass(frozen=True)
class AttentionChoice:
    """Attention backends that `auto` tries on GPUs from one compute capability up to the next row's."""

    capability: tuple[int, int]
    backends: tuple[str, ...]  # the first that passes the check on the device is used
    evidence: str


# FlashAttention-3 and PyTorch's varlen_attn are in no row: they have no dropout, which BERT needs.
ATTENTION_CHOICES = (
    AttentionChoice((0, 0), ("nested",), "PyTorch's flash attention needs 8.0"),
    AttentionChoice(
        FLASH_CAPABILITY,
        ("flash", "nested"),
        "Ampere and Ada: PyTorch's flash attention 2 was written for Ampere; not measured by us",
    ),
    AttentionChoice(
        (9, 0),
        ("cudnn", "flash", "nested"),
        "Hopper: cuDNN is reported 1.7 to 2.3 times as fast as flash attention 2 on training shapes, and dropout to "
        "cost it 1.26 times on packed variable length, 1.03 times on rectangles; not measured by us",
    ),
    AttentionChoice(
        (10, 0),
        ("flash", "nested"),
        "Blackwell: no report for variable length with dropout, and cuDNN's dropout has had defects there (PyTorch "
        "passes other seed types to it on 10.0); not measured by us",
    ),
)


def attention_candidates(capability: tuple[int, int] | None, half: bool) -> tuple[str, ...]:
    """Return the backends that `attention: auto` tries in order on a GPU.

    `half` is whether activations are bf16 or fp16. A capability of None is an unknown GPU, and is taken for a recent
    one that the table lacks.
    """
    if not half:
        return ("nested",)
    if capability is None:
        return ("flash", "nested")
    return [row for row in ATTENTION_CHOICES if row.capability <= capability][-1].backends


def require_hardware(config: RunConfig, locate: Callable[[tuple[str, ...]], str] | None = None) -> None:
    """Raise UsageError for an accelerator that is not supported, or the first setting that the hardware cannot run.

    `locate` returns where a key is set, for the message: the file, or an option of the command line.
    """
    on_cpu = config.launch.device == "cpu"
    if not on_cpu:
        key = ("description", "accelerator_model_name")
        place = locate(key) if locate else f"{config.system}: {'.'.join(key)}"
        require_supported(config.description.accelerator_model_name, place)
    kind = None if on_cpu else find_accelerator(config.description.accelerator_model_name)
    capability = kind.compute_capability if kind else None
    where = "a CPU (launch.device)"
    if not on_cpu:
        where = config.description.accelerator_model_name or "a GPU (launch.device)"
        if capability is not None:
            where += (
                f" (description.accelerator_model_name), which has compute capability {_format_capability(capability)}"
            )

    def refused(key: str, why: str, allowed: str) -> UsageError:
        place = locate((key,)) if locate else f"{config.system}: {key}"
        return UsageError(f"{place}: found {getattr(config, key)} on {where}, but {why}; allowed there are {allowed}")

    def lacks(needed: tuple[int, int]) -> bool:
        return on_cpu or (capability is not None and capability < needed)

    if config.precision == "fp8" and lacks(FP8_CAPABILITY):
        allowed = "auto, bf16, fp16, fp32" if on_cpu or not lacks(BF16_CAPABILITY) else "auto, fp16, fp32"
        raise refused(
            "precision",
            f"only GPUs of compute capability {_format_capability(FP8_CAPABILITY)} or more support fp8",
            allowed,
        )
    if config.precision == "fp8" and config.kernels not in ("auto", "triton"):
        raise refused("kernels", "with precision fp8 only Triton's kernels cast to fp8", "auto, triton")
    if config.precision == "bf16" and not on_cpu and lacks(BF16_CAPABILITY):
        raise refused(
            "precision",
            f"only GPUs of compute capability {_format_capability(BF16_CAPABILITY)} or more support bf16",
            "auto, fp16, fp32",
        )
    if config.kernels == ("triton" if on_cpu else "numba"):
        own = "numba" if on_cpu else "triton"
        raise refused(
            "kernels", f"these kernels run on a {'GPU' if on_cpu else 'CPU'}", f"auto, eager, compiled, {own}"
        )
    if config.attention in VARLEN_ATTENTION and (lacks(FLASH_CAPABILITY) or config.precision == "fp32"):
        needed = f"it needs bf16 or fp16 on a GPU of compute capability {_format_capability(FLASH_CAPABILITY)} or more"
        found = f"{needed}, and precision is {config.precision}" if config.precision == "fp32" else needed
        raise refused("attention", found, "auto, padded, grouped, nested")
    if config.cuda_graph == "step" and on_cpu:
        raise refused("cuda_graph", "CUDA graphs need a GPU", "auto and none")
    is_nested = config.attention == "auto" and expected_attention(config) == "nested"
    without = "attention auto is nested where there is no flash attention"
    if config.cuda_graph == "step" and is_nested:
        raise refused("cuda_graph", f"{without}, and graphs need it", "auto and none")
    if config.capacity_overflow is not None and is_nested:
        raise refused("capacity_overflow", without, "none, or any with attention grouped")


def hardware_warnings(config: RunConfig) -> tuple[str, ...]:
    """Return a warning if the system describes a GPU for which nothing can be checked."""
    name = config.description.accelerator_model_name
    warning = unknown_gpu_warning(name) if config.launch.device == "cuda" and is_stated(name) else None
    return () if warning is None else (f"{config.system}: description.accelerator_model_name: {warning}",)


def expected_attention(config: RunConfig) -> str:
    """Attention that `auto` resolves to on the described hardware, if the check on the device passes."""
    if config.attention != "auto":
        return config.attention
    if config.launch.device == "cpu":
        return "grouped"
    kind = find_accelerator(config.description.accelerator_model_name)
    return attention_candidates(kind.compute_capability if kind else None, config.precision != "fp32")[0]


def _format_capability(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
