"""Loading of a RunConfig from a system's file, a recipe and command-line overrides, and storage of it as YAML.

A resumed run uses the configuration stored in its folder; only launch options that change no result can be overridden.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.bert.published.hyperparameters import PATH as HYPERPARAMETERS
from podium.config.errors import Origins, format_validation_error
from podium.config.hyperparameters import choose_hyperparameters
from podium.config.run_folder import RunFolder
from podium.config.schema import (
    PLACEMENT_KEYS,
    RESUME_OVERRIDES,
    RESUME_OVERRIDES_ON_GPU,
    STRATIFIED,
    SYSTEM_NAME,
    Launch,
    RunConfig,
)
from podium.core.errors import UsageError
from podium.core.files import write_atomically
from podium.core.paths import CODE_FOLDER, SHIPPED_FOLDER, WORKING_FOLDER, user_and_shipped_paths, user_or_shipped_path
from podium.core.text import short_repr
from podium.core.yaml_files import dump_yaml, parse_yaml, read_yaml

SYSTEMS = SHIPPED_FOLDER / "systems"
USER_SYSTEMS = WORKING_FOLDER / "systems"
SECTIONS = ("description", "launch", "bert", "reproduces")
REQUIRED_SECTIONS = ("launch", "bert")
OPTIONAL_SECTION = "description"
COMMAND_LINE = "--set"
MAX_KEY_DEPTH = 4


class IncompatibleConfiguration(UsageError):
    """A run's stored configuration is valid YAML but not of this version's schema: of another version, or edited."""


def system_names() -> list[str]:
    """Sorted names of the systems in the working folder and of the shipped ones."""
    return sorted({path.stem for folder in user_and_shipped_paths(USER_SYSTEMS) for path in folder.glob("*.yaml")})


def load_system(
    system: str, recipe: str | None = None, settings: Sequence[str] = (), paths_as_written: bool = False
) -> RunConfig:
    """Load the configuration of a run on a system: a name in systems/, or the path of a YAML file.

    Later sources override earlier ones: the recipe (`recipe`, else the system's), a set of hyper-parameters, the
    system's `bert:` section, and `settings` (key=value with dotted keys). Paths are made absolute unless
    `paths_as_written`, for use inside a container. Raises UsageError with the file and key of each fault.
    """
    path = system_path(system)
    document = read_configuration(path)
    for section in document:
        if section not in SECTIONS:
            raise UsageError(f"{path}: there is no section {section!r}; allowed are {', '.join(SECTIONS)}")
    if document.get(OPTIONAL_SECTION) in (None, "", "null", "~"):  # values of this section are read as text
        document[OPTIONAL_SECTION] = {}
    if not isinstance(document[OPTIONAL_SECTION], dict):
        raise UsageError(f"{path}: section {OPTIONAL_SECTION!r} has no keys; add some, or leave it out")
    missing = [section for section in REQUIRED_SECTIONS if not isinstance(document.get(section), dict)]
    if missing:
        raise UsageError(f"{path}: section {missing[0]!r} is missing or has no keys; add it")

    own = dict(document["bert"])
    overrides = parse_settings(settings)
    for source, given, reserved in (
        (f"{path}: bert.", own, ("system", "description", "launch", "reproduces")),
        (f"{COMMAND_LINE} ", overrides, ("system",)),
    ):
        for key in reserved:
            if key in given:
                raise UsageError(
                    f"{source}{key}: there is no such key; see the shipped systems for the layout of the sections"
                )
    implementation = str(own.get("implementation", "pytorch"))
    recipe_name = recipe or overrides.get("recipe") or own.get("recipe")
    if recipe_name is None:
        raise UsageError(f"{path}: bert.recipe is missing; name one of {', '.join(_recipe_names(implementation))}")
    recipe_path = _recipe_path(implementation, str(recipe_name), path)
    recipe_keys = read_configuration(recipe_path)
    system_algorithm = _algorithm(own) or _algorithm(_system_recipe_keys(implementation, own, path))
    if recipe_name != own.get("recipe") and isinstance(own.get("optimizer"), dict):  # the recipe chooses the algorithm
        own["optimizer"] = {key: value for key, value in own["optimizer"].items() if key != "algorithm"}
    hyperparameters = choose_hyperparameters(path, str(recipe_name), (recipe_keys, own, overrides), system_algorithm)
    origins = Origins(path, shown_under="bert")
    values: dict[str, Any] = {}
    origins.merge(values, recipe_keys, str(recipe_path))
    if hyperparameters is not None:
        origins.merge(values, {"optimizer": hyperparameters.optimizer}, f"{HYPERPARAMETERS}: {hyperparameters.name}")
    origins.merge(values, own, str(path), shown_under="bert")
    origins.merge(values, {key: document[key] for key in SECTIONS if key != "bert" and key in document}, str(path))
    origins.merge(values, overrides, COMMAND_LINE)
    values["hyperparameters"] = hyperparameters.name if hyperparameters else None
    values["recipe"] = recipe_name
    values["system"] = path.stem
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(format_validation_error(error, RunConfig, origins)) from None
    if overrides.get("strata_counts") is not None and config.balancing not in STRATIFIED:
        raise UsageError(
            f"{COMMAND_LINE} strata_counts: has no effect with balancing {config.balancing}, which draws no strata; "
            "leave it out"
        )
    if config.division == "closed" and config.seed is not None:
        raise UsageError(
            f"{origins.locate(('seed',))}: closed division, Random seeds: found {config.seed}, allowed is none: "
            "it is drawn for every run"
        )
    config = _with_derived_description(config)
    return config if paths_as_written else _with_absolute_paths(config)


def _with_derived_description(config: RunConfig) -> RunConfig:
    """Fill the fields of the description that follow from the rest of the configuration, where they are not stated."""
    launch = config.launch
    derived = {
        "system_name": config.system,
        "number_of_nodes": str(launch.nodes),
        "accelerators_per_node": str(launch.processes_per_node if launch.device == "cuda" else 0),
    }
    unset = {key: value for key, value in derived.items() if not getattr(config.description, key).strip()}
    return config.model_copy(update={"description": config.description.model_copy(update=unset)})


def write_resolved(config: RunConfig, path: Path) -> None:
    """Write a run's configuration as YAML, atomically."""
    document = config.model_dump(mode="json", by_alias=True)
    write_atomically(path, dump_yaml(document))


def load_resolved(path: Path) -> RunConfig:
    """Read a configuration that `write_resolved` wrote; IncompatibleConfiguration if it does not match the schema."""
    try:
        return RunConfig.model_validate(read_configuration(path))
    except ValidationError as error:
        raise IncompatibleConfiguration(format_validation_error(error, RunConfig, Origins(path))) from None


def system_path(system: str) -> Path:
    """Path of a system's file, for a name in systems/ or a path. Raises UsageError if there is none."""
    given = Path(system)
    if given.suffix in (".yaml", ".yml"):
        if not given.is_file():
            raise UsageError(f"{given}: there is no such system file; the systems are {', '.join(system_names())}")
        if not re.fullmatch(SYSTEM_NAME, given.stem):
            raise UsageError(
                f"{given}: the file's name is the system's name, and {short_repr(given.stem)} cannot name folders "
                "and jobs; rename the file to up to 100 letters, digits and _ . + - that begin with a letter or a digit"
            )
        return given
    if system not in system_names():
        places = " or ".join(map(str, user_and_shipped_paths(USER_SYSTEMS)))
        raise UsageError(
            f"there is no system {system!r} in {places}{_did_you_mean(system, system_names())}; "
            f"the systems are {', '.join(system_names())}; or give the path of a YAML file"
        )
    return user_or_shipped_path(USER_SYSTEMS / f"{system}.yaml")


def _recipe_folder(implementation: str) -> Path:
    return CODE_FOLDER / "implementations" / implementation / "recipes"


def recipe_files(implementation: str) -> list[Path]:
    """Paths of an implementation's recipes, sorted by name."""
    return sorted(_recipe_folder(implementation).glob("*.yaml"))


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
    return _recipe_folder(implementation) / f"{recipe}.yaml"


def _system_recipe_keys(implementation: str, own: Mapping[str, Any], system: Path) -> dict[str, Any]:
    """Keys of the recipe that a system's file names; {} if it names none."""
    recipe = own.get("recipe")
    return read_configuration(_recipe_path(implementation, str(recipe), system)) if recipe is not None else {}


def _algorithm(keys: Mapping[str, Any]) -> str | None:
    optimizer = keys.get("optimizer")
    algorithm = optimizer.get("algorithm") if isinstance(optimizer, Mapping) else None
    return None if algorithm is None else str(algorithm)


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the keys of a system, a recipe or a run's configuration; values below `description` are kept as text."""
    return read_yaml(path, text_keys=("description",))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse key=value pairs with dotted keys into a nested mapping; a `bert.` prefix is dropped, values are YAML."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        parts = [part.strip() for part in key.removeprefix("bert.").split(".")]
        if not sign or not all(parts) or len(parts) > MAX_KEY_DEPTH:
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
    """Make paths absolute: relative to the current folder if they exist there, else to the working folder."""
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
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of symbolic links, a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"the path {short_repr(str(path))} is invalid ({reason}); name a file or a folder") from None


def load_resumed(folder: RunFolder, system: str, settings: Sequence[str] = ()) -> RunConfig:
    """Load the stored configuration of a run, with placement from the system and launch options from `settings`.

    Raises UsageError for a folder without a configuration, for a run of another system (a name or a path), and for
    settings that a resumed run cannot change.
    """
    if not folder.config.is_file():
        raise UsageError(
            f"{folder.path}: holds no {folder.config.name}; name the folder of a run, runs/SYSTEM/DATE_TIME/run_N"
        )
    stored, path = load_resolved(folder.config), system_path(system)
    if stored.system != path.stem:
        raise UsageError(f"{folder.path}: is a run of {stored.system}, not of {path.stem}; name {stored.system}")
    own, given = load_system(system).launch.model_dump(mode="json"), parse_settings(settings)
    free = (*RESUME_OVERRIDES, *(RESUME_OVERRIDES_ON_GPU if stored.launch.device == "cuda" else ()))
    origins, values = Origins(folder.config), dict[str, Any]()
    origins.merge(values, stored.model_dump(mode="json", by_alias=True), str(folder.config))
    for section, keys in given.items():
        if section != "launch" or not isinstance(keys, Mapping):
            raise _setting_error(f"{section}: a resumed run keeps its configuration", free)
        for key in keys:
            before = values["launch"].get(key)
            if key in Launch.model_fields and key not in free and keys[key] != before:
                raise _setting_error(f"launch.{key}: found {keys[key]}, but the run was started with {before}", free)
    # Placement is taken from the system's file: the stored configuration was written inside the container or the job,
    # where it has none. The stored keys are reset first, so that a container's keys are replaced and not merged.
    values["launch"] |= {key: None for key in PLACEMENT_KEYS}
    origins.merge(values, {"launch": {key: own[key] for key in PLACEMENT_KEYS}}, str(path))
    origins.merge(values, given, COMMAND_LINE)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(format_validation_error(error, RunConfig, origins)) from None


def _setting_error(message: str, free: Sequence[str]) -> UsageError:
    return UsageError(
        f"{COMMAND_LINE} {message}; with --resume leave it out, or start another run. Allowed are "
        f"{', '.join(f'launch.{key}' for key in free)}"
    )
