"""Table of accelerators: the names that system descriptions use for them, and their peak performance."""

import re
from dataclasses import dataclass

from podium.core.errors import UsageError
from podium.core.text import short_repr

UNSUPPORTED = (
    "Podium does not run on AMD GPUs (ROCm), Intel Gaudi, Google TPUs or other accelerators, only on NVIDIA GPUs by "
    "CUDA and on CPUs; `podium compare` reads their published results"
)
MAX_NAME_LENGTH = 200  # characters of a description's name that are matched: bounds the time of the patterns


@dataclass(frozen=True)
class Accelerator:
    """A model of accelerator with its peak performance in operations a second.

    Variants that differ only in memory size or power limit are one model.
    """

    name: str
    # Dense bf16 operations a second (fp16 where the accelerator has no bf16); a fused multiply-add counts as two. The
    # manufacturer's figure at boost clock, without sparsity; None where none is published.
    peak_flops: float | None
    # The same for fp32 without and with TF32, and for fp8. None: not published, or not supported.
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    fp8_flops: float | None = None
    compute_capability: tuple[int, int] | None = None  # of NVIDIA GPUs only; determines the available instructions
    memory_bytes_per_second: float | None = None  # the manufacturer's peak; None: not in the table


def find_accelerator(text: str) -> Accelerator | None:
    """Return the accelerator that a description's name refers to, such as `NVIDIA A100-SXM4-80GB (400W)`.

    None if no pattern of the table matches.
    """
    named = text[:MAX_NAME_LENGTH]
    return next((kind for pattern, kind in _KINDS if pattern.search(named)), None)


# Makers and products of accelerators other than NVIDIA's, also of models that the table lacks.
_OTHER_MAKERS = re.compile(
    r"\b(AMD|Radeon|Instinct|MI\d{3}|Intel|Habana|Gaudi|HL-?\d|Google|TPU|Trillium|Graphcore|IPU|Huawei|Ascend|Cerebras"
    r"|Trainium)",
    re.IGNORECASE,
)


def is_supported(name: str) -> bool:
    """Whether Podium runs on an accelerator of this name: not on one that is known to be none of NVIDIA's GPUs."""
    kind = find_accelerator(name)
    if kind is not None:
        return kind.name.startswith("NVIDIA")
    named = name[:MAX_NAME_LENGTH]
    return "nvidia" in named.lower() or not _OTHER_MAKERS.search(named)


def require_supported(name: str, place: str) -> None:
    """Raise UsageError for an accelerator that Podium does not run on; `place` is where it is named."""
    if not is_supported(name):
        raise UsageError(f"{place}: found {short_repr(name)}, but {UNSUPPORTED}")


def unknown_gpu_warning(name: str) -> str | None:
    """Return a warning for a GPU whose compute capability is not in the table; None for others and without a name."""
    kind = find_accelerator(name)
    if not name or (kind is not None and kind.compute_capability is not None):
        return None
    return (
        f"{short_repr(name)} is no GPU that Podium knows: whether it supports precision and attention, and whether its "
        "memory is enough, is not checked before a run; choose gradient_accumulation_steps by its memory, and state "
        "that in description.accelerator_memory_capacity"
    )


def memory_gigabytes(text: str) -> int | None:
    """Return the memory in GB of a GPU by the name in a description, which may state it, such as A100-SXM4-80GB.

    None if the name neither states it nor is in the table.
    """
    stated = re.search(r"(\d{1,4})\s?GB\b", text[:MAX_NAME_LENGTH], re.IGNORECASE)
    if stated:
        return int(stated[1])
    kind = find_accelerator(text)
    return None if kind is None else _MEMORIES.get(kind.name.removeprefix("NVIDIA "))


# Pattern, name, peak in teraFLOP/s. The first pattern that matches counts: specific ones stand before general ones.
# Sources: the manufacturers' data sheets.
_TABLE: tuple[tuple[str, str, float | None], ...] = (
    (r"V100.*PCI", "NVIDIA V100 PCIe", 112),
    (r"V100.*SXM", "NVIDIA V100 SXM", 125),
    (r"V100", "NVIDIA V100", None),
    (r"A100.*PCI", "NVIDIA A100 PCIe", 312),
    (r"A100.*SXM", "NVIDIA A100 SXM", 312),
    (r"A100", "NVIDIA A100", 312),
    (r"\bT4\b", "NVIDIA T4", 65),
    (r"\bA30\b", "NVIDIA A30", 165),
    (r"\bA40\b", "NVIDIA A40", 149.7),
    (r"\bA10\b", "NVIDIA A10", 125),
    (r"GH200", "NVIDIA GH200", 989),
    (r"H200.*NVL", "NVIDIA H200 NVL", 835),
    (r"H200", "NVIDIA H200", 989),
    (r"H100.*NVL", "NVIDIA H100 NVL", 835),
    (r"H100.*PCI", "NVIDIA H100 PCIe", 756),
    (r"H100.*(SXM|HBM3)", "NVIDIA H100 SXM", 989),
    (r"H100", "NVIDIA H100", None),
    (r"GB300", "NVIDIA GB300", 2500),
    (r"GB200", "NVIDIA GB200", 2500),
    (r"B300", "NVIDIA B300", 2250),
    (r"B200", "NVIDIA B200", 2250),
    (r"L40S", "NVIDIA L40S", 362),
    (r"\bL40\b", "NVIDIA L40", 181),
    (r"\bL4\b", "NVIDIA L4", 121),
    (r"RTX A5000", "NVIDIA RTX A5000", 111.1),
    (r"RTX\W?4090", "NVIDIA RTX 4090", 165.2),
    (r"7900 XTX", "AMD Radeon RX 7900 XTX", 122.8),
    (r"MI325", "AMD MI325X", 1307),
    (r"MI300", "AMD MI300X", 1307),
    (r"MI250(?!X)", "AMD MI250", 362),
    (r"MI250X", "AMD MI250X", 383),
    (r"MI355", "AMD MI355X", 2500),
    (r"MI350", "AMD MI350X", 2300),
    (r"TPU[-_ ]?v6|trillium", "Google TPU v6e", 918),
    (r"TPU[-_ ]?v5p", "Google TPU v5p", 459),
    (r"TPU[-_ ]?v5", "Google TPU v5e", 197),
    (r"TPU[-_ ]?v4", "Google TPU v4", 275),
    (r"TPU[-_ ]?v3", "Google TPU v3", 123),
    (r"Bow", "Graphcore Bow IPU", 350),
    (r"GC200|Mk2|IPU", "Graphcore IPU GC200", 250),
    (r"Gaudi\W?3", "Intel Gaudi 3", 1835),
    (r"Gaudi\W?2|HL-?225", "Habana Gaudi 2", 432),
    (r"Gaudi|HL-?205", "Habana Gaudi", None),
    (r"Ascend\W?910", "Huawei Ascend 910", 256),
)
# Peaks of other precisions in teraFLOP/s: fp32 without TF32, TF32, fp8; None where the data sheet has no figure for
# this product. Dense figures: half of those that data sheets give with sparsity.
_OTHER_PEAKS: dict[str, tuple[float | None, float | None, float | None]] = {
    "NVIDIA V100 PCIe": (14, None, None),
    "NVIDIA V100 SXM": (15.7, None, None),
    "NVIDIA T4": (8.1, None, None),
    "NVIDIA A100 PCIe": (19.5, 156, None),
    "NVIDIA A100 SXM": (19.5, 156, None),
    "NVIDIA A100": (19.5, 156, None),
    "NVIDIA A30": (10.3, 82, None),
    "NVIDIA A40": (37.4, 74.8, None),
    "NVIDIA A10": (31.2, 62.5, None),
    "NVIDIA GH200": (67, 494.5, 1979),
    "NVIDIA H200 NVL": (60, 417.5, 1670.5),
    "NVIDIA H200": (67, 494.5, 1979),
    "NVIDIA H100 NVL": (60, 417.5, 1670.5),
    "NVIDIA H100 PCIe": (51, 378, 1513),
    "NVIDIA H100 SXM": (67, 494.5, 1979),
    "NVIDIA GB200": (80, 1250, 5000),
    "NVIDIA B200": (75, 1125, 4500),
    "NVIDIA L40S": (91.6, 183, 733),
    "NVIDIA L4": (30.3, 60, 242.5),
    "AMD MI300X": (163.4, 653.7, 2614.9),
    "AMD MI325X": (163.4, 653.7, 2614.9),
}
# NVIDIA's compute capabilities, which also decide which of PyTorch's kernels can run. Source: NVIDIA, "CUDA GPUs".
_CAPABILITIES: dict[tuple[int, int], tuple[str, ...]] = {
    (7, 0): ("V100 PCIe", "V100 SXM", "V100"),
    (7, 5): ("T4",),
    (8, 0): ("A100 PCIe", "A100 SXM", "A100", "A30"),
    (8, 6): ("A40", "A10", "RTX A5000"),
    (8, 9): ("L40S", "L40", "L4", "RTX 4090"),
    (9, 0): ("GH200", "H200 NVL", "H200", "H100 NVL", "H100 PCIe", "H100 SXM", "H100"),
    (10, 0): ("GB200", "B200"),
    (10, 3): ("GB300", "B300"),
}
# Memory bandwidth in TB/s of NVIDIA's GPUs. Source: data sheets; of the A100 SXM that with 80 GB.
_MEMORY_BANDWIDTHS = {
    "NVIDIA T4": 0.32,
    "NVIDIA A100 PCIe": 1.935,
    "NVIDIA A100 SXM": 2.039,
    "NVIDIA A100": 2.039,
    "NVIDIA H100 PCIe": 2.0,
    "NVIDIA H100 NVL": 3.9,
    "NVIDIA H100 SXM": 3.35,
    "NVIDIA H200 NVL": 4.8,
    "NVIDIA H200": 4.8,
    "NVIDIA GB200": 8.0,
    "NVIDIA B200": 8.0,
}
# Memory in GB of NVIDIA's GPUs, of several variants the least. Source: data sheets.
_MEMORIES = {
    "V100 PCIe": 16,
    "V100 SXM": 16,
    "V100": 16,
    "T4": 16,
    "A100 PCIe": 40,
    "A100 SXM": 40,
    "A100": 40,
    "A30": 24,
    "A40": 48,
    "A10": 24,
    "GH200": 96,
    "H200 NVL": 141,
    "H200": 141,
    "H100 NVL": 94,
    "H100 PCIe": 80,
    "H100 SXM": 80,
    "H100": 80,
    "GB200": 186,
    "B200": 180,
    "L40S": 48,
    "L40": 48,
    "L4": 24,
    "RTX A5000": 24,
    "RTX 4090": 24,
}
_CAPABILITY_OF = {f"NVIDIA {name}": capability for capability, names in _CAPABILITIES.items() for name in names}


def _from_tera(peak: float | None) -> float | None:
    return None if peak is None else peak * 1e12


def _build_accelerator(name: str, peak: float | None) -> Accelerator:
    fp32, tf32, fp8 = map(_from_tera, _OTHER_PEAKS.get(name, (None, None, None)))
    bandwidth = _from_tera(_MEMORY_BANDWIDTHS.get(name))
    return Accelerator(name, _from_tera(peak), fp32, tf32, fp8, _CAPABILITY_OF.get(name), bandwidth)


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern so that none of its numbers, such as that of H200, is the beginning of another (H2000)."""
    return re.compile(re.sub(r"\d(?!\d)", r"\g<0>(?!\\d)", pattern), re.IGNORECASE)


_KINDS = tuple((_compile(pattern), _build_accelerator(name, peak)) for pattern, name, peak in _TABLE)


@dataclass(frozen=True)
class ReachableRates:
    """Rates that large kernels are assumed to reach on a GPU: FLOP/s by what computes them, and bytes/s.

    Keys of `flops`: half (bf16 and fp16), fp8 and fp32 matrix products, and attention with flash attention 2 and cuDNN.
    """

    flops: dict[str, float]
    bytes_per_second: float


# Reachable on an H200: bf16 products measured, 790 of 989 TFLOP/s; fp8 products 1,050 of 1,979 in practice; 4.3 of 4.8
# TB/s. Other GPUs are assumed to reach the same shares of their peaks.
_HALF_SHARE, _FP8_SHARE, _MEMORY_SHARE = 790 / 989, 1050 / 1979, 4.3 / 4.8
# FLOP/s of attention of variable length with dropout, forward and backward together, backward as twice forward.
# Reported, not measured: on an H200 13 ms with flash attention 2 and 6 to 7 ms with cuDNN, for 56 sequences of
# Wikipedia's lengths in BERT-large, whose 5.53 million pairs of tokens take 12 · 24 layers · 1,024 FLOPs each.
_REPORTED_FLOPS = 12 * 24 * 1024 * 5_533_083
_HOPPER_FLASH, _HOPPER_CUDNN = _REPORTED_FLOPS / 13e-3, _REPORTED_FLOPS / 6.5e-3
# Flash attention 2 uses Ampere's instructions on all later GPUs. Its forward pass reaches 230 TFLOP/s on an A100 and
# 335 on an H100 (Dao, arXiv 2307.08691), so here the A100's share of its peak is taken as 230/335 of the H200's rate.
_AMPERE_FLASH_SHARE = _HOPPER_FLASH * 230 / 335 / 312e12
# All GPUs from Hopper on are assumed to have the H200's rates, also Blackwell, for which nothing is reported: flash
# attention 2 does not use its new instructions, and the table of backends does not have cuDNN there.
_HOPPER = (9, 0)


def reachable_rates(kind: Accelerator) -> ReachableRates | None:
    """Return the reachable rates of a GPU; None if its peaks are not in the table."""
    if not (kind.peak_flops and kind.memory_bytes_per_second and kind.compute_capability):
        return None
    is_hopper = kind.compute_capability >= _HOPPER
    flash = _HOPPER_FLASH if is_hopper else _AMPERE_FLASH_SHARE * kind.peak_flops
    flops = {
        "half": _HALF_SHARE * kind.peak_flops,
        "flash": flash,
        "cudnn": _HOPPER_CUDNN if is_hopper else flash,
    }
    if kind.fp32_flops is not None:
        flops["fp32"] = _HALF_SHARE * kind.fp32_flops
    if kind.fp8_flops is not None:
        flops["fp8"] = _FP8_SHARE * kind.fp8_flops
    return ReachableRates(flops, _MEMORY_SHARE * kind.memory_bytes_per_second)


# Precision → the units that compute its matrix products, keys of ReachableRates.flops. With fp8 the head's are bf16.
PRODUCT_UNITS = {"bf16": ("half",), "fp16": ("half",), "fp32": ("fp32",), "fp8": ("half", "fp8")}
# Words of a GPU's full name besides its model: form, memory and power, such as SXM4, 80GB and 400W.
_OTHER_WORDS = re.compile(r"NVIDIA|TESLA|SXM\d?|PCI|NVL\d+|HBM\d\w?|\d+GB|\d+W", re.IGNORECASE)


def _is_name_of(text: str, kind: Accelerator) -> bool:
    """Whether a text is a name of the model and nothing else."""
    own = kind.name.lower().split()
    words = re.findall(r"\w+", text)
    return all(word.lower() in own or _OTHER_WORDS.fullmatch(word) for word in words)


def require_gpu(name: str, system: str | None = None) -> tuple[Accelerator, ReachableRates]:
    """Return the GPU of a name such as h200 with its reachable rates; the SXM variant where the name leaves it open.

    The name is that of --gpu, or with `system` that of the system's description, which may have more words. Raises
    UsageError for a GPU whose peaks are not in the table.
    """
    kinds = [kind for text in (name, f"{name} SXM") if (kind := find_accelerator(text))]
    if system is None:
        kinds = [kind for kind in kinds if _is_name_of(name, kind)]
    for kind in kinds:
        rates = reachable_rates(kind)
        if rates:
            return kind, rates
    known = ", ".join(kind.removeprefix("NVIDIA ") for kind in _MEMORY_BANDWIDTHS)
    found = f"found {short_repr(name)}"
    if kinds:
        found += f", which is known ({kinds[0].name}), but its memory bandwidth is not in the table of accelerators"
    if system is None:
        raise UsageError(f"--gpu: {found}; allowed are {known}; name one of them")
    raise UsageError(
        f"{system}: description.accelerator_model_name: {found}; name the GPU to count for with --gpu, one of {known}"
    )


def require_rates(kind: Accelerator, rates: ReachableRates, precision: str) -> None:
    """Raise UsageError if the rate of a precision's matrix products is not known; that of `auto` always is."""
    allowed = ["auto", *(key for key, units in PRODUCT_UNITS.items() if all(unit in rates.flops for unit in units))]
    if precision not in allowed:
        raise UsageError(
            f"precision: found {precision}, whose rate on {kind.name} is not in the table of accelerators; allowed "
            f"there are {', '.join(allowed)}"
        )
