"""Compare the data that the runs of a package were trained on, between runs and with the stores on this machine."""

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
    """Return why these runs cannot be one result, as "RULE: a sentence", and what could not be compared.

    Every byte of a store on this machine is read and compared with the manifest that the runs recorded. `launch` is
    from the present system file; its mounts map paths in a container to paths of this machine.
    """
    found = {record.name: attempt(read_run_data, record.folder.data) for record in records}
    if broken := [f"same data: {failure}" for _, failure in found.values() if failure is not None]:
        return broken, []
    data = {name: one for name, (one, _) in found.items() if one is not None}
    if not data:
        return [], ["data not compared: these runs have no record of it (data.json), as those of older versions"]
    if lacking := [name for name in found if name not in data]:
        reason = f"same data: {', '.join(lacking)}: data.json is missing, and other runs of the set have it; restore it"
        return [reason], []
    (name, first), *others = data.items()
    folders, parts = records[0].config.all_stores, records[0].config.store_parts(0)
    reasons = [
        f"same data: {other}: {difference}; runs of a result must have the same samples: make a new set"
        for other, one in others
        if (difference := one.difference(first, folders, name))
    ]
    notes = []
    for key, folder in folders.items() if not reasons else ():
        local = _local_path(folder, launch)
        if not local.is_dir():
            notes.append(
                f"{key} not compared with what the runs were trained on: the store {folder} is not on this machine"
            )
            continue
        on_progress(f"Comparing {key} with what the runs were trained on")
        store, failure = attempt(SampleStore, local)
        if isinstance(failure, ManifestError) and parts[key] != WHOLE_STORE:
            store, failure = attempt(SampleStore, local, parts[key])
            notes.append(f"{key}: only the part of {folder} that node 0 reads is on this machine and was compared")
        reasons += [f"data as trained on: {failure}"] if store is None else _store_differences(key, store, local, first)
    return reasons, notes


def _store_differences(key: str, store: SampleStore, folder: Path, expected: RunData) -> list[str]:
    """Return why a store, as far as it was opened, is not what the runs were trained on; empty if it is."""
    try:
        found = RunData({key: NodeData().verify(store)})
    except PodiumError as error:
        return [f"data as trained on: {error}"]
    recorded = RunData({name: manifest for name, manifest in expected.manifests.items() if name == key})
    difference = found.difference(recorded, {key: folder}, "the runs")
    return [f"data as trained on: {difference}; restore the samples of the runs"] if difference else []


def _local_path(folder: Path, launch: Launch) -> Path:
    """Return a store's path on this machine for a path that may be one in a container."""
    if not folder.exists() and folder.is_relative_to(INSIDE):
        return WORKING_FOLDER / folder.relative_to(INSIDE)
    return folder if folder.exists() else WORKING_FOLDER / on_host(folder, launch)
