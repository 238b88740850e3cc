"""The configuration that a run goes on with: the one kept in its folder, and anew how its processes are started."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from benchmarks.errors import UsageError
from podium.config.errors import Origins, explain
from podium.config.folder import RunFolder
from podium.config.launch import FREE, FREE_ON_GPU, PLACE, Launch
from podium.config.loading import COMMAND_LINE, load_resolved, load_system, parse_settings, system_path
from podium.config.model import RunConfig


def load_resumed(folder: RunFolder, system: str, settings: Sequence[str] = ()) -> RunConfig:
    """The kept configuration of a run on this system (a name or a path), started as system and `settings` say.

    Raises UsageError for a folder without one, for the run of another system, and for settings that a run cannot be
    gone on with.
    """
    if not folder.config.is_file():
        raise UsageError(
            f"{folder.path}: holds no {folder.config.name}; name the folder of a run, runs/SYSTEM/DATE_TIME/run_N"
        )
    kept, path = load_resolved(folder.config), system_path(system)
    if kept.system != path.stem:
        raise UsageError(f"{folder.path}: is a run of {kept.system}, and {path.stem} is named; name {kept.system}")
    own, given = load_system(system).launch.model_dump(mode="json"), parse_settings(settings)
    free = (*FREE, *(FREE_ON_GPU if kept.launch.device == "cuda" else ()))
    origins, values = Origins(folder.config), dict[str, Any]()
    origins.merge(values, kept.model_dump(mode="json", by_alias=True), str(folder.config))
    for section, keys in given.items():
        if section != "launch" or not isinstance(keys, Mapping):
            raise _refused(f"{section}: a run goes on as it was configured", free)
        for key in keys:
            before = values["launch"].get(key)
            if key in Launch.model_fields and key not in free and keys[key] != before:
                raise _refused(f"launch.{key}: found {keys[key]}, but the run was made with {before}", free)
    # Where a run goes on is the system's: what a run keeps of it is what was said inside its container or its job.
    values["launch"] |= {key: None for key in PLACE}  # not the system's container upon the kept one's keys
    origins.merge(values, {"launch": {key: own[key] for key in PLACE}}, str(path))
    origins.merge(values, given, COMMAND_LINE)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(explain(error, RunConfig, origins)) from None


def _refused(words: str, free: Sequence[str]) -> UsageError:
    return UsageError(
        f"{COMMAND_LINE} {words}; with --resume leave it out, or start another run. Allowed are "
        f"{', '.join(f'launch.{key}' for key in free)}"
    )
