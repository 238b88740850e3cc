"""Shutdown timeouts: how long processes have to save a checkpoint between SIGTERM and SIGKILL.

torchrun waits 30 seconds, newer versions as long as an environment variable sets. Podium sets the variable to a minute
if it is not set. The process that stops Podium must wait as long: under Slurm this is KillWait, 30 seconds by default,
after which all processes are killed, whatever torchrun would have allowed. If KillWait is shorter, set the variable to
less.
"""

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from podium.core.errors import UsageError

VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
READERS = ("distributed/launcher/api.py", "distributed/run.py")
DEFAULT_SECONDS = 30  # of a torchrun that does not read the variable, and of others if it is not set
REQUESTED_SECONDS = 60
EXIT_SECONDS = 10.0  # part of the timeout that is left to exit in after the deadline for saving; at most a third of it


def shutdown_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variable with the shutdown timeout for torchrun: unchanged if it is set, else a minute."""
    return {VARIABLE: environment.get(VARIABLE, str(REQUESTED_SECONDS))}


def shutdown_seconds(environment: Mapping[str, str] = os.environ) -> int:
    """Seconds that torchrun waits between SIGTERM and SIGKILL; UsageError for an invalid value of the variable."""
    value = environment.get(VARIABLE)
    if value is None or not reads_variable(_torch()):
        return DEFAULT_SECONDS
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(
            f"the environment variable {VARIABLE} is {value!r}; use a whole number of seconds, 1 or more, or unset it"
        )
    return int(value)


def saving_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds after SIGTERM at which a process gives up saving a checkpoint, in time to exit before SIGKILL."""
    seconds = shutdown_seconds(environment)
    return seconds - min(EXIT_SECONDS, seconds / 3)


@cache
def reads_variable(torch: Path | None) -> bool:
    """Whether the torch package in this folder reads the variable."""
    # The version does not answer this: builds of one version number differ.
    if torch is None:
        return False
    texts = (torch / name for name in READERS)
    return any(VARIABLE in text.read_text(encoding="utf-8", errors="replace") for text in texts if text.is_file())


def _torch() -> Path | None:
    """Folder of the installed torch package, found without the seconds that its import takes."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None
