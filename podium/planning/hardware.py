"""Check of a configuration against the hardware of the system's description, before a run starts.

An accelerator without a compute capability in the table of accelerators passes: the implementation checks the device
when a run starts.
"""

from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.accelerators import find_accelerator

# Lowest compute capabilities with bf16 and fp8 matrix products, and for PyTorch's flash attention.
BF16_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
FLASH_CAPABILITY = (8, 0)


def require_hardware(config: RunConfig) -> None:
    """Raise UsageError for the first setting that the system's device or accelerator cannot run."""
    on_cpu = config.launch.device == "cpu"
    kind = None if on_cpu else find_accelerator(config.description.accelerator_model_name)
    capability = kind.compute_capability if kind else None
    where = "a CPU (launch.device)"
    if not on_cpu:
        where = config.description.accelerator_model_name
        if capability is not None:
            where += (
                f" (description.accelerator_model_name), which has compute capability {_format_capability(capability)}"
            )

    def refused(key: str, why: str, allowed: str) -> UsageError:
        return UsageError(
            f"{config.system}: {key}: found {getattr(config, key)} on {where}, but {why}; allowed there are {allowed}"
        )

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
    if config.attention == "flash" and (lacks(FLASH_CAPABILITY) or config.precision == "fp32"):
        needed = f"it needs bf16 or fp16 on a GPU of compute capability {_format_capability(FLASH_CAPABILITY)} or more"
        found = f"{needed}, and precision is {config.precision}" if config.precision == "fp32" else needed
        raise refused("attention", found, "auto, padded, grouped, nested")
    if config.cuda_graph == "step" and on_cpu:
        raise refused("cuda_graph", "CUDA graphs need a GPU", "auto and none")
    is_nested = config.attention == "auto" and expected_attention(config) == "nested"
    without = "attention auto is nested where there is no flash attention"
    if config.cuda_graph == "step" and is_nested:
        raise refused("cuda_graph", f"{without}, and graphs need flash", "auto and none")
    if config.capacity_overflow is not None and is_nested:
        raise refused("capacity_overflow", without, "none, or any with attention grouped")


def expected_attention(config: RunConfig) -> str:
    """Attention that `auto` resolves to on the described hardware; for an unknown accelerator that of a recent GPU.

    Must agree with the implementation, which resolves it on the device.
    """
    if config.attention != "auto":
        return config.attention
    if config.launch.device == "cpu":
        return "grouped"
    kind = find_accelerator(config.description.accelerator_model_name)
    capability = kind.compute_capability if kind else None
    lacks_flash = capability is not None and capability < FLASH_CAPABILITY
    return "nested" if lacks_flash or config.precision == "fp32" else "flash"


def _format_capability(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
