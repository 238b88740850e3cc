"""Compilation of parts of the model with torch.compile."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# Compiled versions of one function. PyTorch counts them for the whole process, over all models and all layers: one for
# each combination of dtype, autocast, dropout on or off, training or evaluation, and frozen weights. The default, 8,
# is reached by a bench that compares precisions (10 counted in all). With `fullgraph` the next one is an error.
RECOMPILE_LIMIT = 64


def compile_function(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function compiled by torch.compile, in one graph for all sizes of its tensors.

    Raises the process's limit of compiled versions of a function.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
    return torch.compile(function, dynamic=True, fullgraph=True)
