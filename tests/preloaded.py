"""What processes that tests fork have imported: the implementation, and what numba needs to read its cache."""

import torch._dynamo  # noqa: F401
from numba.core.registry import cpu_target

import implementations.pytorch.trainer  # noqa: F401

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
