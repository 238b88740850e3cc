"""Shutdown timeouts: how long processes have to save a checkpoint between SIGTERM and SIGKILL.

torchrun waits 30 seconds, and newer versions as long as an environment variable sets. Podium sets it to a minute,
unless it is set already. Whatever ends Podium must wait as long: under Slurm that is KillWait, 30 seconds by
default, after which all processes are killed, whatever torchrun would have allowed. Where it is shorter, set the
variable to less.
"""

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from podium.core.errors import UsageError

VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
READERS = ("distributed/launcher/api.py", "distributed/run.py")
FIXED_SECONDS = 30  # what a torchrun gives that does not know the variable, and others where it is not set
ASKED_SECONDS = 60
LEAVING_SECONDS = 10.0  # kept of it for leaving once saving is given up, or a third where that is less


def asked(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable as torchrun gets it: as it is set, else a minute."""
    return {VARIABLE: environment.get(VARIABLE, str(ASKED_SECONDS))}


def torchrun_seconds(environment: Mapping[str, str] = os.environ) -> int:
    """Seconds that torchrun gives processes between SIGTERM and SIGKILL; UsageError where the variable is none."""
    given = environment.get(VARIABLE)
    if given is None or not variable_is_known(_torch()):
        return FIXED_SECONDS
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"the environment's {VARIABLE} is {given!r}; allowed are whole seconds from 1 on, or unset it")
    return int(given)


def saving_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """After so long a process gives up saving itself, in time to leave before it is ended by force."""
    seconds = torchrun_seconds(environment)
    return seconds - min(LEAVING_SECONDS, seconds / 3)


@cache
def variable_is_known(torch: Path | None) -> bool:
    """Whether the torch in this folder reads the variable. Builds of one version number differ, so it is looked up."""
    if torch is None:
        return False
    texts = (torch / name for name in READERS)
    return any(VARIABLE in text.read_text(encoding="utf-8", errors="replace") for text in texts if text.is_file())


def _torch() -> Path | None:
    """The folder of the installed torch, found without importing it."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None
