"""Selection of the attention backend for a device: by a table, and after a check on the device.

The table is ATTENTION_CHOICES in podium/planning/hardware.py. A backend for GPUs is used only after a small forward and
backward pass has given the right result there, about 0.1 seconds, or some seconds where a library compiles kernels.
"""

import sys
from itertools import pairwise

import torch

from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.attention.check import measure_deviations
from implementations.pytorch.model.attention.cudnn_varlen import missing_package
from implementations.pytorch.model.attention.dispatch import BACKENDS
from implementations.pytorch.model.attention.varlen import HALF_DTYPES, is_flash_available
from podium.core.errors import UsageError
from podium.planning.hardware import FLASH_CAPABILITY, VARLEN_ATTENTION, attention_candidates

# Backend, device and dtype → why the backend cannot be used there, None if it can. Kept for the life of the process, so
# that all later calls agree with the first, in which ranks agree with each other.
_failures: dict[tuple[str, torch.device, torch.dtype], str | None] = {}


def resolve_attention(
    setting: str, device: torch.device, dtype: torch.dtype, processes: Processes | None = None
) -> str:
    """Return the backend to use for the configured `setting` on this device.

    `auto` selects grouped on a CPU, on a GPU the first backend of the table that passes the check; why another one does
    not is printed to standard error by rank 0. With `processes` a collective operation: a backend that fails on one
    rank is used on none. Raises UsageError for a backend that is configured and cannot be used here with activations of
    this dtype.
    """
    if setting != "auto":
        _require(setting, device, dtype)
        reason = _failure(setting, device, dtype, processes)
        if reason is not None:
            allowed = ", ".join(["auto", *(name for name in BACKENDS if name != setting)])
            raise UsageError(f"attention: found {setting}, but {reason}; allowed here are {allowed}")
        return setting
    if device.type == "cpu":
        return "grouped"
    candidates = attention_candidates(torch.cuda.get_device_capability(device), dtype in HALF_DTYPES)
    for backend, other in pairwise(candidates):
        known = (backend, device, dtype) in _failures
        reason = _failure(backend, device, dtype, processes)
        if reason is None:
            return backend
        if not known and (processes is None or processes.first):
            print(f"attention: auto is not {backend}, but {other}: {reason}", file=sys.stderr, flush=True)
    return candidates[-1]


def _failure(backend: str, device: torch.device, dtype: torch.dtype, processes: Processes | None) -> str | None:
    """Return why a backend cannot be used on the device; None if it can."""
    if backend not in VARLEN_ATTENTION:
        return None
    key = backend, device, dtype
    if key not in _failures:
        _failures[key] = _check(backend, device, dtype)
        if processes is not None and processes.all_reduce_max(int(_failures[key] is not None)):
            _failures[key] = _failures[key] or "the check failed on another rank"
    return _failures[key]


def _check(backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Run the backend on a small batch; return what is wrong, None if nothing is."""
    if backend == "cudnn" and (missing := missing_package()):
        return missing
    try:
        wrong = measure_deviations(backend, device, dtype).describe_failure()
    except Exception as error:  # noqa: BLE001 — whatever a library raises, the backend cannot be used
        lines = str(error).strip().splitlines() or [""]
        wrong = f"{type(error).__name__}: {lines[0]}"
    return wrong and f"its check on {torch.cuda.get_device_name(device)} failed: {wrong}"


def _require(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    if backend in VARLEN_ATTENTION and not is_flash_available(device, dtype):
        where = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        if device.type == "cuda":
            where += " of compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
        allowed = ", ".join(["auto", *(name for name in BACKENDS if name not in VARLEN_ATTENTION)])
        raise UsageError(
            f"attention: found {backend} with {where}, but it needs bf16 or fp16 on cuda of compute capability "
            f"{'.'.join(map(str, FLASH_CAPABILITY))} or more; allowed here are {allowed}"
        )
