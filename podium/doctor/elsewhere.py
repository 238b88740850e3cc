"""An examination that goes on where `podium run` would: in a container, or on the nodes of a Slurm job."""

from collections.abc import Sequence

from benchmarks.errors import Interrupted, PodiumError
from benchmarks.finding import Finding
from podium.config import RunConfig
from podium.doctor.checks import CHECKS_HERE, findings_of
from podium.doctor.examination import Examination, Places
from podium.launching.elsewhere import become, wrapped


def go_on_elsewhere(
    config: RunConfig, places: Places, system: str, options: Sequence[str], node_rank: int
) -> list[Finding]:
    """Be `podium doctor` there from now on, or wait for it and end as it does.

    Comes back only where that cannot be started, with why, and with what is found without it. UsageError for a node's
    number where the launcher numbers nodes itself.
    """
    words = wrapped(config, system, options, node_rank, "doctor")
    found = findings_of(Examination(config, places, None, None, None, "", None, ""), CHECKS_HERE)
    if any((finding.rule, finding.severity) == ("mounts", "error") for finding in found):
        return [_not_started(config, "what its container is given is not all there"), *found]
    try:
        become(config, words)
    except Interrupted:
        raise
    except PodiumError as error:
        return [_not_started(config, str(error)), *found]


def _not_started(config: RunConfig, why: str) -> Finding:
    where = "in its container" if config.launch.launcher == "docker" else "on its nodes"
    found = f"{why}: nothing was examined {where}, only what is seen from here"
    return Finding(
        "launcher", "error", found, f"an examination {where}", "mend that, or go where `podium run` can start"
    )
