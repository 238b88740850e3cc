"""Loads a RunConfig from systems/NAME.yaml, a recipe and command-line overrides, and writes it back as YAML.

A resumed run takes the configuration stored in its folder, and only the options of starting its processes anew.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.bert.published.hyperparameters import PATH as HYPERPARAMETERS
from podium.config.errors import Origins, explain
from podium.config.hyperparameters import choose_hyperparameters
from podium.config.run_folder import RunFolder
from podium.config.schema import FREE, FREE_ON_GPU, PLACE, STRATIFIED, SYSTEM_NAME, Launch, RunConfig
from podium.core.errors import UsageError
from podium.core.files import write_whole
from podium.core.paths import CODE_FOLDER, SHIPPED_FOLDER, WORKING_FOLDER, own_and_shipped, own_or_shipped
from podium.core.text import quoted
from podium.core.yaml_files import dump_yaml, parse_yaml, read_yaml

SYSTEMS = SHIPPED_FOLDER / "systems"
OWN_SYSTEMS = WORKING_FOLDER / "systems"
SECTIONS = ("description", "launch", "bert")
COMMAND_LINE = "--set"
DEEPEST_KEY = 4


class UnknownConfiguration(UsageError):
    """A run's configuration is whole YAML, and not one of this version: another made it, or somebody changed it."""


def system_names() -> list[str]:
    """Of the working folder's systems and of those that are shipped."""
    return sorted({path.stem for folder in own_and_shipped(OWN_SYSTEMS) for path in folder.glob("*.yaml")})


def load_system(
    system: str, recipe: str | None = None, settings: Sequence[str] = (), paths_as_written: bool = False
) -> RunConfig:
    """The configuration of a run on a system: a name in systems/, or the path of a YAML file.

    The recipe (`recipe`, else the system's own) gives defaults, a set of hyper-parameters the optimizer's numbers, the
    system's `bert:` section overrides both, and `settings` (key=value with dotted keys) override all. Paths are
    absolute, or `paths_as_written`, as a container reads them. Raises UsageError for what is wrong with any of them.
    """
    path = system_path(system)
    document = read_configuration(path)
    for section in document:
        if section not in SECTIONS:
            raise UsageError(f"{path}: there is no section {section!r}; allowed are {', '.join(SECTIONS)}")
    missing = [section for section in SECTIONS if not isinstance(document.get(section), dict)]
    if missing:
        raise UsageError(f"{path}: section {missing[0]!r} is missing or holds no keys; add it")

    own = dict(document["bert"])
    overrides = parse_settings(settings)
    for source, given, reserved in (
        (f"{path}: bert.", own, ("system", "description", "launch")),
        (f"{COMMAND_LINE} ", overrides, ("system",)),
    ):
        for key in reserved:
            if key in given:
                raise UsageError(f"{source}{key}: there is no such key; see the other systems for where things belong")
    implementation = str(own.get("implementation", "pytorch"))
    recipe_name = recipe or overrides.get("recipe") or own.get("recipe")
    if recipe_name is None:
        raise UsageError(f"{path}: bert.recipe is missing; name one of {', '.join(_recipe_names(implementation))}")
    recipe_path = _recipe_path(implementation, str(recipe_name), path)
    recipe_keys = read_configuration(recipe_path)
    own_algorithm = _algorithm(own) or _algorithm(_own_recipe_keys(implementation, own, path))
    if recipe_name != own.get("recipe") and isinstance(own.get("optimizer"), dict):  # the algorithm is the recipe's
        own["optimizer"] = {key: value for key, value in own["optimizer"].items() if key != "algorithm"}
    hyperparameters = choose_hyperparameters(path, str(recipe_name), (recipe_keys, own, overrides), own_algorithm)
    origins = Origins(path, shown_under="bert")
    values: dict[str, Any] = {}
    origins.merge(values, recipe_keys, str(recipe_path))
    if hyperparameters is not None:
        origins.merge(values, {"optimizer": hyperparameters.optimizer}, f"{HYPERPARAMETERS}: {hyperparameters.name}")
    origins.merge(values, own, str(path), shown_under="bert")
    origins.merge(values, {key: document[key] for key in ("description", "launch")}, str(path))
    origins.merge(values, overrides, COMMAND_LINE)
    values["hyperparameters"] = hyperparameters.name if hyperparameters else None
    values["recipe"] = recipe_name
    values["system"] = path.stem
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(explain(error, RunConfig, origins)) from None
    if overrides.get("strata_counts") is not None and config.balancing not in STRATIFIED:
        raise UsageError(
            f"{COMMAND_LINE} strata_counts: has no use with balancing {config.balancing}, which draws no strata; "
            "leave it out"
        )
    if config.division == "closed" and config.seed is not None:
        raise UsageError(
            f"{origins.place(('seed',))}: closed division, Random seeds: found {config.seed}, allowed is none: "
            "it is drawn for every run"
        )
    return config if paths_as_written else _with_absolute_paths(config)


def write_resolved(config: RunConfig, path: Path) -> None:
    """Keep a run's configuration as YAML, whole or not at all."""
    document = config.model_dump(mode="json", by_alias=True)
    write_whole(path, dump_yaml(document))


def load_resolved(path: Path) -> RunConfig:
    """Read back what `write_resolved` wrote. UnknownConfiguration where its keys or values are not this version's."""
    try:
        return RunConfig.model_validate(read_configuration(path))
    except ValidationError as error:
        raise UnknownConfiguration(explain(error, RunConfig, Origins(path))) from None


def system_path(system: str) -> Path:
    """The file of a system: of a name in systems/, or the path itself. UsageError where there is none."""
    given = Path(system)
    if given.suffix in (".yaml", ".yml"):
        if not given.is_file():
            raise UsageError(f"{given}: there is no such system file; the systems are {', '.join(system_names())}")
        if not re.fullmatch(SYSTEM_NAME, given.stem):
            raise UsageError(
                f"{given}: a system is called as its file, and {quoted(given.stem)} would be the name of folders and "
                "jobs; rename the file to up to 100 letters, digits and _ . + - that begin with a letter or a digit"
            )
        return given
    if system not in system_names():
        places = " or ".join(map(str, own_and_shipped(OWN_SYSTEMS)))
        raise UsageError(
            f"there is no system {system!r} in {places}{_did_you_mean(system, system_names())}; "
            f"the systems are {', '.join(system_names())}; or give the path of a YAML file"
        )
    return own_or_shipped(OWN_SYSTEMS / f"{system}.yaml")


def _recipes(implementation: str) -> Path:
    return CODE_FOLDER / "implementations" / implementation / "recipes"


def recipe_files(implementation: str) -> list[Path]:
    """The recipes of an implementation, by name."""
    return sorted(_recipes(implementation).glob("*.yaml"))


def _recipe_names(implementation: str) -> list[str]:
    return [path.stem for path in recipe_files(implementation)]


def _recipe_path(implementation: str, recipe: str, system: Path) -> Path:
    names = _recipe_names(implementation)
    if not names:
        raise UsageError(f"{system}: bert.implementation is {implementation!r}; allowed is pytorch")
    if recipe not in names:
        raise UsageError(
            f"there is no recipe {recipe!r}{_did_you_mean(recipe, names)}; the recipes are {', '.join(names)}"
        )
    return _recipes(implementation) / f"{recipe}.yaml"


def _own_recipe_keys(implementation: str, own: Mapping[str, Any], system: Path) -> dict[str, Any]:
    """The keys of the recipe that a system names for itself; nothing where it names none."""
    recipe = own.get("recipe")
    return read_configuration(_recipe_path(implementation, str(recipe), system)) if recipe is not None else {}


def _algorithm(keys: Mapping[str, Any]) -> str | None:
    optimizer = keys.get("optimizer")
    algorithm = optimizer.get("algorithm") if isinstance(optimizer, Mapping) else None
    return None if algorithm is None else str(algorithm)


def _did_you_mean(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read_configuration(path: Path) -> dict[str, Any]:
    """The keys of a system, a recipe or a run's configuration; values of the description are text as it is written."""
    return read_yaml(path, text_keys=("description",))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """key=value pairs as a nested mapping; `bert.` may be left out, and values are read as YAML."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        parts = [part.strip() for part in key.removeprefix("bert.").split(".")]
        if not sign or not all(parts) or len(parts) > DEEPEST_KEY:
            raise UsageError(
                f"{COMMAND_LINE} {setting}: give it as key=value, such as {COMMAND_LINE} global_batch_size=32"
            )
        if parts == ["launch", "rendezvous"] and text.startswith("["):
            value: Any = text  # [IPv6]:PORT, which YAML would take for a list
        else:
            value = parse_yaml(text, f"{COMMAND_LINE} {key}", as_text=parts[0] == "description")
        target = values
        for part in parts[:-1]:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise UsageError(f"{COMMAND_LINE} {setting}: {part} was set to a value before and cannot hold keys")
        target[parts[-1]] = value
    return values


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """Paths as given, where they exist from the current folder; else from the working folder."""
    data = {
        key: _absolute(value) if isinstance(value, Path) else tuple(_absolute(path) for path in value)
        for key, value in config.data
        if value
    }
    checkpoint = config.initial_checkpoint and _absolute(config.initial_checkpoint)
    phases = tuple(p.model_copy(update={"store": p.store and _absolute(p.store)}) for p in config.phases)
    update = {"data": config.data.model_copy(update=data), "initial_checkpoint": checkpoint, "phases": phases}
    return config.model_copy(update=update)


def _absolute(path: Path) -> Path:
    try:
        return path.resolve() if path.exists() else (WORKING_FOLDER / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"the path {quoted(str(path))} cannot be one ({reason}); name a file or a folder") from None


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
