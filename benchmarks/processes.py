"""Processors that a process may use, and processes that do not outlive the one that started them."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel end this process when its parent dies, however it dies. Does nothing where there is no prctl.

    With the parent's process id it ends at once if that one has died already.
    """
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
