"""Tensors as numba sees them, and how rows are dealt out to threads."""

import numba
import numpy as np
import torch
from torch import Tensor

STORED = {torch.bfloat16: torch.uint16, torch.float32: torch.float32}
"""How elements of a type are handed to compiled code."""
CHUNKS = 32
"""Parts that rows are cut into. More than there are threads, so that they end together, and always as many, so that
sums over rows do not depend on the number of threads."""


def array(tensor: Tensor) -> np.ndarray:
    """The tensor's memory; bfloat16 as uint16."""
    return tensor.detach().contiguous().view(STORED[tensor.dtype]).numpy()


def is_supported(*tensors: Tensor) -> bool:
    return all(tensor.dtype in STORED for tensor in tensors)


def use_torchs_threads() -> None:
    """Let compiled loops run on as many threads as torch's own, whose number numba's start would change."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
