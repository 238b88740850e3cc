"""The data of the runs of a package: compared with each other, and with the stores themselves where these are here."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bert.manifest import WHOLE_STORE, ManifestError
from benchmarks.bert.store import SampleStore
from podium.config.run_data import RunData, read_run_data
from podium.config.schema import Launch
from podium.core.errors import PodiumError, attempt
from podium.core.paths import WORKING_FOLDER
from podium.launch.mounts import INSIDE, on_host
from podium.launch.node_data import NodeData
from podium.run.records import RunRecord


def compare_data(
    records: Sequence[RunRecord], launch: Launch, on_progress: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Why runs with these records cannot be one result ("RULE: a sentence" each), and what could not be compared.

    Every byte of a store that is on this machine is read and compared with what the runs were trained on. `launch` is
    what the system's file says at present, by which paths in a container are found here.
    """
    found = {record.name: attempt(read_run_data, record.folder.data) for record in records}
    if broken := [f"same data: {failure}" for _, failure in found.values() if failure is not None]:
        return broken, []
    data = {name: one for name, (one, _) in found.items() if one is not None}
    if not data:
        return [], ["data not compared: these runs keep no record of it (data.json), as those of older versions"]
    if lacking := [name for name in found if name not in data]:
        others = (
            f"same data: {', '.join(lacking)}: data.json is missing, and other runs of the set have it; put it back"
        )
        return [others], []
    (name, first), *others_of_set = data.items()
    folders, parts = records[0].config.every_store, records[0].config.store_parts(0)
    reasons = [
        f"same data: {other}: {difference}; runs of a result have the same samples: make a new set"
        for other, one in others_of_set
        if (difference := one.difference(first, folders, name))
    ]
    notes = []
    for key, folder in folders.items() if not reasons else ():
        here = _here(folder, launch)
        if not here.is_dir():
            notes.append(f"{key} not compared with what the runs were trained on: the store {folder} is not here")
            continue
        on_progress(f"Comparing {key} with what the runs were trained on")
        store, failure = attempt(SampleStore, here)
        if isinstance(failure, ManifestError) and parts[key] != WHOLE_STORE:
            store, failure = attempt(SampleStore, here, parts[key])
            notes.append(f"{key}: of {folder} only the part that node 0 reads is here and was compared")
        reasons += [f"data as trained on: {failure}"] if store is None else _unlike(key, store, here, first)
    return reasons, notes


def _unlike(key: str, store: SampleStore, folder: Path, expected: RunData) -> list[str]:
    """Why a store, of which all that was opened is read, is not what the runs were trained on."""
    try:
        found = RunData({key: NodeData().verify(store)})
    except PodiumError as error:
        return [f"data as trained on: {error}"]
    wanted = RunData({name: manifest for name, manifest in expected.manifests.items() if name == key})
    difference = found.difference(wanted, {key: folder}, "the runs")
    return [f"data as trained on: {difference}; put the samples of the runs back"] if difference else []


def _here(folder: Path, launch: Launch) -> Path:
    """Where a store is on this machine, whose path may be one in a container."""
    if not folder.exists() and folder.is_relative_to(INSIDE):
        return WORKING_FOLDER / folder.relative_to(INSIDE)
    return folder if folder.exists() else WORKING_FOLDER / on_host(folder, launch)
