"""`podium doctor`: prepare and verify the data, run the diagnostics, and report the findings of all checks.

The diagnostics run in one process, then on all ranks; in a container or on the nodes of a Slurm job if `podium run`
would use one. The checks are listed in the order of the report, which is a table or one JSON object.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from podium.config.load import load_system, resolve_system, system_names, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import print_message, waiting
from podium.core.errors import PodiumError, UsageError, WorkError, attempt
from podium.core.files import make_folder
from podium.core.finding import Finding, has_errors, severity_counts
from podium.doctor import accelerators, devices, filesystem, network, rules, versions
from podium.doctor.context import DiagnosticContext, Places
from podium.launch.container import exec_launcher, launcher_argv, run_options
from podium.launch.launch import require_torch
from podium.launch.node_group import NodeGroup, node_group, run_worker_node
from podium.run import data as data_module
from podium.run import results as results_module
from podium.run import run_set
from podium.run.implementation import call_entry_point

Check = Callable[[DiagnosticContext], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    versions.check_python,
    versions.check_libraries,
    versions.check_torch,
    accelerators.check_accelerators,
    accelerators.check_described,
    devices.check_implementation,
    devices.check_gpus,
    devices.check_memory,
    devices.check_load,
    devices.check_capabilities,
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
# Checks that need only the repository's folder and none of the machines that would make the run.
CHECKS_HERE: tuple[Check, ...] = (
    accelerators.check_described,
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


def run_checks(context: DiagnosticContext, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run the checks and return all findings in their order."""
    return [finding for check in checks for finding in check(context)]


def diagnose_remotely(
    config: RunConfig, places: Places, system: str, options: Sequence[str], node_rank: int
) -> list[Finding]:
    """Replace this process by `podium doctor` in the container or job; return findings only if that cannot start.

    These are the reason, and what CHECKS_HERE find on this machine. `config` has its paths as written in the
    configuration, which is how they are read in the container.
    """
    argv = launcher_argv(config, system, options, node_rank, "doctor")
    found = run_checks(DiagnosticContext(config, places, None, None, None, "", None, ""), CHECKS_HERE)
    if any((finding.rule, finding.severity) == ("mounts", "error") for finding in found):
        reason = "the container's image, mounts or data are not all there"
    else:
        for finding in found:
            if finding.rule == "paths in the container":
                print_message(f"warning: {finding.message}")
        reason = str(attempt(exec_launcher, config, argv)[1])
    where = "in its container" if config.launch.launcher == "docker" else "on its nodes"
    message = f"{reason}: no diagnostics ran {where}, only checks on this machine"
    advice = "fix that, or use a machine on which `podium run` can start"
    return [Finding("launcher", "error", message, f"diagnostics {where}", advice), *found]


RANKS_SECONDS = 300.0  # timeout for all ranks to initialize and measure


def diagnose(
    system: str,
    recipe: str | None,
    settings: Sequence[str],
    on_progress: Callable[[str], None],
    as_json: bool = False,
    node_rank: int = 0,
) -> list[Finding] | None:
    """Return all findings about a run of a system; None on a node other than the first.

    With launch.launcher docker or slurm, this process is replaced by the command there, which gets `as_json` as an
    option. A configuration with errors yields only these, as findings. Raises UsageError for an unknown system or node,
    and without PyTorch.
    """
    if system not in system_names() and not Path(system).is_file():
        load_system(system)  # raises the UsageError, which must not become a finding
    try:
        loaded = resolve_system(system, recipe, settings)
    except UsageError as error:
        return [_configuration_finding(line) for line in str(error).splitlines()]
    config = loaded.config
    for warning in loaded.warnings:
        print_message(f"warning: {warning}")
    if config.launch.launcher != "torchrun":
        inside = load_system(system, recipe, settings, paths_as_written=True)
        return diagnose_remotely(inside, places(), system, run_options(1, recipe, settings, as_json), node_rank)
    require_torch()
    if node_rank > 0:
        run_worker_node(config, node_rank, places().runs, on_progress)
        return None
    context = collect_context(config, places(), on_progress)
    with waiting("Comparing what was found with the configuration"):
        return run_checks(context)


def places() -> Places:
    """Folders in which this installation's runs read and write."""
    return Places(run_set.RUNS, results_module.RESULTS, data_module.DATA)


def collect_context(config: RunConfig, places: Places, on_progress: Callable[[str], None]) -> DiagnosticContext:
    """Collect the input of the checks; errors on the way become its `*_fault` fields."""
    on_progress("Looking at this machine and its network")
    load = devices.measure_machine()  # first, before this command's processes are a load themselves
    host, rendezvous = network.look_up_host(), network.look_up_rendezvous(config)
    with ExitStack() as stack:
        nodes, fault = attempt(lambda: stack.enter_context(node_group(config, places.runs, on_progress)))
        prepared, data_fault = prepare_data(config, on_progress)
        folder = RunFolder(stack.enter_context(_folder(places.runs / config.system)))
        write_resolved((prepared or config).model_copy(update={"seed": config.seed or 0}), folder.config)
        on_progress("Trying a step on this machine")
        with waiting("Trying a step on this machine", announced=True):
            device, device_fault = attempt(call_entry_point, config.implementation, "doctor", [str(folder.config)])
        ranks: Mapping[str, Any] | None = None
        if nodes is not None:
            several = config.launch.ranks > 1
            starting = f"Starting {config.launch.ranks} ranks" if several else "Starting the rank"
            on_progress(starting)
            with waiting(starting, announced=True):
                ranks, fault = attempt(_diagnose_ranks, config, folder, nodes)
    faults = str(device_fault or ""), str(fault or "")
    return DiagnosticContext(
        config,
        places,
        prepared,
        data_fault,
        device,
        faults[0],
        ranks,
        faults[1],
        machine=load,
        other_accelerators=tuple(accelerators.other_accelerators()),
        host=host,
        rendezvous=rendezvous,
    )


def prepare_data(config: RunConfig, on_progress: Callable[[str], None]) -> tuple[RunConfig | None, PodiumError | None]:
    """Prepare and verify the data: the configuration with its stores, or the error.

    Returns neither for a user's text that is not prepared yet, which may take hours.
    """
    if config.data.kind == "text" and not data_module.is_prepared(config):
        return None, None
    return attempt(data_module.with_data, config, on_progress)


def _diagnose_ranks(config: RunConfig, folder: RunFolder, nodes: NodeGroup) -> Mapping[str, Any] | None:
    """Run the implementation's diagnostics on all ranks and return their summary; WorkError after RANKS_SECONDS."""
    started = time.monotonic()

    def check_deadline() -> None:
        if time.monotonic() - started > RANKS_SECONDS:
            raise WorkError(
                f"after {RANKS_SECONDS:.0f} s not all {config.launch.ranks} ranks were connected; check that every "
                "node can reach the first one over the network"
            )

    nodes.launch(config, folder, "doctor", [], check_deadline)
    return folder.read_summary()


@contextmanager
def _folder(runs: Path) -> Iterator[Path]:
    """A new folder under runs/, which all nodes share, or a temporary one if runs/ is not writable."""
    try:
        path = make_folder(runs / f"doctor_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}")
    except PodiumError:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        yield path


# Rules of errors that end the diagnosis before it begins, since there is no configuration to examine.
CLOSED_DIVISION, CONFIGURATION = "closed division", "configuration"


def is_invalid(findings: Sequence[Finding]) -> bool:
    """Whether the system's file, a setting or the recipe is not valid, with which every command exits with code 2."""
    return any(one.severity == "error" and one.rule in (CLOSED_DIVISION, CONFIGURATION) for one in findings)


def _configuration_finding(message: str) -> Finding:
    if re.search(r"\bclosed division, ", message):
        return Finding(CLOSED_DIVISION, "error", message, "no rule broken", "keep the rule, or run as open")
    return Finding(CONFIGURATION, "error", message, "a valid configuration", "fix the file or the setting")


JSON_FIELDS = {"check": "rule", "verdict": "severity", "found": "message", "wanted": "expected", "advice": "advice"}


def as_json(system: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The report as a JSON object."""
    return {
        "system": system,
        "ready": not has_errors(findings),
        "summary": summary(findings),
        "findings": [finding.as_json(JSON_FIELDS) for finding in findings],
    }


def summary(findings: Sequence[Finding]) -> str:
    """Format the verdict, `ready` or `not ready`, with the numbers of errors and warnings."""
    return ": ".join(filter(None, ("not ready" if has_errors(findings) else "ready", severity_counts(findings))))
