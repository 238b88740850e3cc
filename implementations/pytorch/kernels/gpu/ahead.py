"""Launch signatures of the Triton kernels at BERT-large's sizes, from which `compile_ahead` compiles without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ahead:
    """One launch of a kernel, and what is expected of its machine code. Each kernel module lists its own as AHEAD."""

    kernel: Any
    types: str  # of the arguments that are not constants, in order: "*bf16 *fp32 i32"
    constants: Mapping[str, Any]  # all arguments declared tl.constexpr
    warps: int
    variant: str = ""  # distinguishes several entries of a kernel
    aligned: tuple[str, ...] = ("columns",)  # integers that are multiples of 16, as all pointers are
    options: Mapping[str, int] | None = None  # further ones of Triton, such as num_stages
    capability: int = 80  # least compute capability times ten; fp8 needs 89
    # Least share of a multiprocessor's warps that registers and shared memory leave room for. The default keeps enough
    # loads in flight for memory-bound kernels.
    occupancy: float = 0.5
    widest_access: int = 16  # bytes of the widest access to global memory; less than 16 wastes bandwidth
    narrow_accesses: int = 0  # allowed number of one- or two-byte instructions, such as the load of a label's logit

    @property
    def name(self) -> str:
        """Module and function, and the variant."""
        name = f"{self.kernel.__module__.rpartition('.')[2]}.{self.kernel.__name__.strip('_')}"
        return f"{name} ({self.variant})" if self.variant else name
