"""Processes that do not outlive the one that started them."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """Have the kernel end this process when its parent dies, however it dies. Does nothing where there is no prctl."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
