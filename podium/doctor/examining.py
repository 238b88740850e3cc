"""Find out what takes long: prepare and verify the data, ask one process, then all ranks."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.errors import PodiumError, UsageError, WorkError
from benchmarks.files import make_folder
from benchmarks.finding import Finding
from podium import data as data_module
from podium import results as results_module
from podium import running
from podium.asking import ask
from podium.config import RunConfig, RunFolder, load_system, system_names, write_resolved
from podium.doctor.checks import findings_of
from podium.doctor.elsewhere import go_on_elsewhere
from podium.doctor.examination import Examination, Places
from podium.doctor.machine import machine
from podium.doctor.rules import breaks_closed_rule
from podium.launching import Interrupted, launch
from podium.launching.crew import Crew, gathered
from podium.launching.elsewhere import run_options
from podium.launching.following import follow

RANKS_SECONDS = 300.0
"""How long all ranks have to meet and measure."""


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
    UsageError for a system that there is not, and for a node that there is not.
    """
    if system not in system_names() and not Path(system).is_file():
        load_system(system)  # which says so
    try:
        config = load_system(system, recipe, settings)
    except UsageError as error:
        return [_refused(line) for line in str(error).splitlines()]
    if config.launch.launcher != "torchrun":
        return go_on_elsewhere(config, places(), system, run_options(1, recipe, settings, as_json), node_rank)
    if node_rank > 0:
        follow(config, node_rank, on_progress)
        return None
    return findings_of(examine(config, places(), on_progress))


def places() -> Places:
    """Where this installation's runs read and write."""
    return Places(running.RUNS, results_module.RESULTS, data_module.DATA)


def examine(config: RunConfig, places: Places, on_progress: Callable[[str], None]) -> Examination:
    """Everything that checks look at; what could not be found out is there as a sentence."""
    load = machine()  # before anything of ours runs
    with _gathered(config, on_progress) as (crew, crew_fault):
        return _examine(config, places, on_progress, load, crew, crew_fault)


def _examine(
    config: RunConfig,
    places: Places,
    on_progress: Callable[[str], None],
    load: Mapping[str, float],
    crew: Crew | None,
    crew_fault: str,
) -> Examination:
    prepared, data_fault = prepared_data(config, on_progress)
    device, device_fault, ranks, ranks_fault = None, "", None, crew_fault
    with _folder(places.runs / config.system) as path:
        folder = RunFolder(path)
        write_resolved((prepared or config).model_copy(update={"seed": config.seed or 0}), folder.config)
        on_progress("Trying a step on this machine")
        try:
            device = ask(config.implementation, "doctor", [str(folder.config)])
        except Interrupted:
            raise
        except PodiumError as error:
            device_fault = str(error)
        if crew is not None:
            several = config.launch.ranks > 1
            on_progress(f"Having {config.launch.ranks} ranks meet" if several else "Starting the rank")
            try:
                ranks = _together(config, folder, crew)
            except Interrupted:
                raise
            except PodiumError as error:
                ranks_fault = str(error)
    return Examination(config, places, prepared, data_fault, device, device_fault, ranks, ranks_fault, machine=load)


def prepared_data(config: RunConfig, on_progress: Callable[[str], None]) -> tuple[RunConfig | None, PodiumError | None]:
    """The configuration with its data verified, or why it cannot be; neither for text that is to be prepared.

    Embedded text is prepared here, as it takes seconds; a user's own may take hours and is not.
    """
    if config.data.kind == "text" and not data_module.is_prepared(config):
        return None, None
    try:
        return data_module.with_data(config, on_progress), None
    except Interrupted:
        raise
    except PodiumError as error:
        return None, error


@contextmanager
def _gathered(config: RunConfig, on_progress: Callable[[str], None]) -> Iterator[tuple[Crew | None, str]]:
    """The nodes of the system, or why they have not met."""
    with ExitStack() as stack:
        try:
            met: tuple[Crew | None, str] = stack.enter_context(gathered(config, on_progress)), ""
        except Interrupted:
            raise
        except PodiumError as error:
            met = None, str(error)
        yield met


def _together(config: RunConfig, folder: RunFolder, crew: Crew) -> Mapping[str, Any] | None:
    started = time.monotonic()

    def in_time() -> None:
        if time.monotonic() - started > RANKS_SECONDS:
            raise WorkError(
                f"after {RANKS_SECONDS:.0f} s not all {config.launch.ranks} ranks had met; see that every node can "
                "reach the first one by its network"
            )

        crew.watch()

    crew.start(folder, "doctor", [])
    launch(config, folder, "doctor", [], in_time, crew.node)
    crew.finish()
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
    if breaks_closed_rule(sentence):
        return Finding("closed division", "error", sentence, "no rule broken", "keep the rule, or run as open")
    return Finding("configuration", "error", sentence, "what the sentence allows", "mend the file or the setting")
