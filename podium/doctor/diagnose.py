"""`podium doctor`: prepares and verifies the data, runs the diagnostics, and reports the findings of all checks.

The diagnostics run in one process, then on all ranks; in a container or on the nodes of a Slurm job where `podium
run` would. The checks are listed in the order of the report, which is printed or is one JSON object.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from podium.config.load import load_system, system_names, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import tell
from podium.core.errors import PodiumError, UsageError, WorkError, attempt
from podium.core.files import make_folder
from podium.core.finding import Finding, has_errors, severity_counts
from podium.doctor import devices, filesystem, network, rules, versions
from podium.doctor.context import Examination, Places
from podium.launch.container import become, run_options, wrapped
from podium.launch.launch import require_torch
from podium.launch.node_group import NodeGroup, follow, node_group
from podium.run import data as data_module
from podium.run import results as results_module
from podium.run import run_set
from podium.run.implementation import ask

Check = Callable[[Examination], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    versions.check_python,
    versions.check_libraries,
    versions.check_torch,
    devices.check_implementation,
    devices.check_gpus,
    devices.check_memory,
    devices.check_load,
    devices.check_possible,
    devices.check_ranks,
    devices.check_all_reduce,
    devices.check_clocks,
    network.check_host_name,
    network.check_rendezvous,
    filesystem.check_paths,
    filesystem.check_writable,
    filesystem.check_space,
    filesystem.check_read_speed,
    filesystem.check_caches,
    filesystem.check_open_files,
    filesystem.check_data,
    filesystem.check_closed_data,
    rules.check_sample_count,
    rules.check_max_samples,
    filesystem.check_initial_checkpoint,
    rules.check_description,
    rules.check_counts,
    rules.check_division,
    rules.check_seed,
    rules.check_target,
    rules.check_licence,
)
# Those that need none of the machines that would make the run, but the repository's folder, which they share.
CHECKS_HERE: tuple[Check, ...] = (
    filesystem.check_mounts,
    filesystem.check_writable,
    filesystem.check_space,
    rules.check_max_samples,
    rules.check_description,
    rules.check_counts,
    rules.check_division,
    rules.check_seed,
    rules.check_target,
    rules.check_licence,
)


def findings_of(examination: Examination, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """What every check says."""
    return [finding for check in checks for finding in check(examination)]


def go_on_elsewhere(
    config: RunConfig, places: Places, system: str, options: Sequence[str], node_rank: int
) -> list[Finding]:
    """Be `podium doctor` there from now on; where that cannot be started, return why and what is found without it.

    `config` has its paths as they are written, which is how they are read there.
    """
    words = wrapped(config, system, options, node_rank, "doctor")
    found = findings_of(Examination(config, places, None, None, None, "", None, ""), CHECKS_HERE)
    if any((finding.rule, finding.severity) == ("mounts", "error") for finding in found):
        why = "what its container is given is not all there"
    else:
        for finding in found:
            if finding.rule == "paths in the container":
                tell(f"warning: {finding.message}")
        why = str(attempt(become, config, words)[1])
    where = "in its container" if config.launch.launcher == "docker" else "on its nodes"
    message = f"{why}: nothing was examined {where}, only what is seen from here"
    advice = "mend that, or go where `podium run` can start"
    return [Finding("launcher", "error", message, f"an examination {where}", advice), *found]


RANKS_SECONDS = 300.0  # how long all ranks have to meet and measure


def diagnose(
    system: str,
    recipe: str | None,
    settings: Sequence[str],
    on_progress: Callable[[str], None],
    as_json: bool = False,
    node_rank: int = 0,
) -> list[Finding] | None:
    """Every finding about a run of a system; None on a node that has taken part in the first one's examination.

    Does not come back where the system's launcher has it go on elsewhere; `as_json` is told to the one there.
    A configuration that is refused is a finding too, and the only one, since there is nothing to examine then.
    UsageError for a system that there is not, for a node that there is not, and without PyTorch.
    """
    if system not in system_names() and not Path(system).is_file():
        load_system(system)  # which says so
    try:
        config = load_system(system, recipe, settings)
    except UsageError as error:
        return [_refused(line) for line in str(error).splitlines()]
    if config.launch.launcher != "torchrun":
        inside = load_system(system, recipe, settings, paths_as_written=True)
        return go_on_elsewhere(inside, places(), system, run_options(1, recipe, settings, as_json), node_rank)
    require_torch()
    if node_rank > 0:
        follow(config, node_rank, places().runs, on_progress)
        return None
    return findings_of(examine(config, places(), on_progress))


def places() -> Places:
    """Where this installation's runs read and write."""
    return Places(run_set.RUNS, results_module.RESULTS, data_module.DATA)


def examine(config: RunConfig, places: Places, on_progress: Callable[[str], None]) -> Examination:
    """Everything that checks look at; what could not be found out is there as a sentence."""
    load = devices.machine()  # before anything of ours runs
    host, rendezvous = network.look_up_host(), network.look_up_rendezvous(config)
    with ExitStack() as stack:
        nodes, fault = attempt(lambda: stack.enter_context(node_group(config, places.runs, on_progress)))
        prepared, data_fault = prepared_data(config, on_progress)
        folder = RunFolder(stack.enter_context(_folder(places.runs / config.system)))
        write_resolved((prepared or config).model_copy(update={"seed": config.seed or 0}), folder.config)
        on_progress("Trying a step on this machine")
        device, device_fault = attempt(ask, config.implementation, "doctor", [str(folder.config)])
        ranks: Mapping[str, Any] | None = None
        if nodes is not None:
            several = config.launch.ranks > 1
            on_progress(f"Having {config.launch.ranks} ranks meet" if several else "Starting the rank")
            ranks, fault = attempt(_together, config, folder, nodes)
    faults = str(device_fault or ""), str(fault or "")
    return Examination(
        config,
        places,
        prepared,
        data_fault,
        device,
        faults[0],
        ranks,
        faults[1],
        machine=load,
        host=host,
        rendezvous=rendezvous,
    )


def prepared_data(config: RunConfig, on_progress: Callable[[str], None]) -> tuple[RunConfig | None, PodiumError | None]:
    """The data verified, or why they cannot be; neither for a user's own text, whose preparation may take hours."""
    if config.data.kind == "text" and not data_module.is_prepared(config):
        return None, None
    return attempt(data_module.with_data, config, on_progress)


def _together(config: RunConfig, folder: RunFolder, nodes: NodeGroup) -> Mapping[str, Any] | None:
    started = time.monotonic()

    def in_time() -> None:
        if time.monotonic() - started > RANKS_SECONDS:
            raise WorkError(
                f"after {RANKS_SECONDS:.0f} s not all {config.launch.ranks} ranks had met; see that every node can "
                "reach the first one by its network"
            )

    nodes.launch(config, folder, "doctor", [], in_time)
    return folder.read_summary()


@contextmanager
def _folder(runs: Path) -> Iterator[Path]:
    """One under runs/, which all nodes see, or where that cannot be written a temporary one."""
    try:
        path = make_folder(runs / f"doctor_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}")
    except PodiumError:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        yield path


def _refused(sentence: str) -> Finding:
    if re.search(r"\bclosed division, ", sentence):
        return Finding("closed division", "error", sentence, "no rule broken", "keep the rule, or run as open")
    return Finding("configuration", "error", sentence, "what the sentence allows", "mend the file or the setting")


JSON_FIELDS = {"check": "rule", "verdict": "severity", "found": "message", "wanted": "expected", "advice": "advice"}


def as_json(system: str, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "system": system,
        "ready": not has_errors(findings),
        "summary": summary(findings),
        "findings": [finding.as_json(JSON_FIELDS) for finding in findings],
    }


def summary(findings: Sequence[Finding]) -> str:
    """`ready` or `not ready`, with the numbers of errors and warnings."""
    return ": ".join(filter(None, ("not ready" if has_errors(findings) else "ready", severity_counts(findings))))
