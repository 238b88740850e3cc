"""Loading of a RunConfig from a system's file, a recipe and command-line overrides, and storage of it as YAML.

A resumed run uses the configuration stored in its folder; only launch options that change no result can be overridden.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from podium.config.errors import Location, Origins, Source, format_validation_error, key_path
from podium.config.hyperparameters import choose_hyperparameters, names_of_sets, other_batch_size_warning
from podium.config.run_folder import RunFolder
from podium.config.schema import (
    CONTAINER_RUNTIMES,
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
from podium.core.text import did_you_mean, short_repr
from podium.core.yaml_files import dump_yaml, parse_yaml, read_yaml

SYSTEMS = SHIPPED_FOLDER / "systems"
USER_SYSTEMS = WORKING_FOLDER / "systems"
SECTIONS = ("description", "launch", "bert", "reproduces")
REQUIRED_SECTIONS = ("launch", "bert")
OPTIONAL_SECTION = "description"
COMMAND_LINE = "--set"
ON_COMMAND_LINE = Source("command line", COMMAND_LINE)
PUBLISHED_RECIPES = ("academic", "exchanged", "packed", "presorted")  # methods of papers; the others are Podium's
# Keys of recipes that depend on the system's memory, or whose entries have folders of the system.
NOT_OF_THE_METHOD = ("gradient_accumulation_steps", "phases", "precision")
MAX_KEY_DEPTH = 4


class IncompatibleConfiguration(UsageError):
    """A run's stored configuration is valid YAML but not of this version's schema: of another version, or edited."""


def system_names() -> list[str]:
    """Sorted names of the systems in the working folder and of the shipped ones."""
    return sorted({path.stem for folder in user_and_shipped_paths(USER_SYSTEMS) for path in folder.glob("*.yaml")})


@dataclass(frozen=True)
class LoadedSystem:
    """The configuration of a run, where its values come from, and what a user should know about it."""

    config: RunConfig
    origins: Origins
    warnings: tuple[str, ...]  # one line each


def load_system(
    system: str, recipe: str | None = None, settings: Sequence[str] = (), paths_as_written: bool = False
) -> RunConfig:
    """Load the configuration of a run on a system: a name in systems/, or the path of a YAML file.

    Later sources override earlier ones: the recipe (`recipe`, else the system's), a set of hyper-parameters, the
    system's `bert:` section, and `settings` (key=value with dotted keys). Paths are made absolute unless
    `paths_as_written`, for use inside a container. Raises UsageError with the file and key of each fault.
    """
    return resolve_system(system, recipe, settings, paths_as_written).config


def resolve_system(
    system: str, recipe: str | None = None, settings: Sequence[str] = (), paths_as_written: bool = False
) -> LoadedSystem:
    """Load a configuration as `load_system` does, with the origins of its values and with warnings."""
    path = system_path(system)
    file = SystemFile(path, shown_path(path), read_configuration(path))
    _require_sections(file)
    overrides = parse_settings(settings)
    layers = _merge_layers(file, recipe, overrides)
    origins = layers.origins
    try:
        config = RunConfig.model_validate(layers.values)
    except ValidationError as error:
        blame = partial(_options_to_blame, file, recipe, overrides)
        raise UsageError(format_validation_error(error, RunConfig, origins, blame)) from None
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
    config = _with_derived_description(config, origins)
    warnings = (*layers.notes, *_recipe_warnings(config, layers, overrides, file))
    return LoadedSystem(config if paths_as_written else _with_absolute_paths(config), origins, warnings)


@dataclass(frozen=True)
class SystemFile:
    """A system's file: its path, as shown in messages, and its sections."""

    path: Path
    shown: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Layers:
    """The merged keys of all sources, before their validation."""

    values: dict[str, Any]
    origins: Origins
    recipe_keys: Mapping[str, Any]
    notes: tuple[str, ...]


def _require_sections(file: SystemFile) -> None:
    """Raise UsageError for unknown, missing and empty sections, and for keys that are in the wrong section."""
    for section in file.document:
        if section not in SECTIONS:
            raise UsageError(f"{file.shown}: there is no section {section!r}; allowed are {', '.join(SECTIONS)}")
    if not isinstance(_description(file), dict):
        raise UsageError(f"{file.shown}: section {OPTIONAL_SECTION!r} has no keys; add some, or leave it out")
    missing = [section for section in REQUIRED_SECTIONS if not isinstance(file.document.get(section), dict)]
    if missing:
        raise UsageError(f"{file.shown}: section {missing[0]!r} is missing or has no keys; add it")


def _description(file: SystemFile) -> Any:
    found = file.document.get(OPTIONAL_SECTION)
    return {} if found in (None, "", "null", "~") else found  # values of this section are read as text


def _merge_layers(file: SystemFile, recipe: str | None, overrides: Mapping[str, Any]) -> Layers:
    """Merge recipe, hyper-parameters, system and overrides. Raises UsageError where no recipe or set is found."""
    own = dict(file.document["bert"])
    for source, given, reserved in (
        (f"{file.shown}: bert.", own, ("system", *(key for key in SECTIONS if key != "bert"))),
        (f"{COMMAND_LINE} ", overrides, ("system",)),
    ):
        for key in reserved:
            if key in given and key in SECTIONS:
                raise UsageError(f"{source}{key}: there is no such key; {key} belongs at the top level, beside bert")
            if key in given:
                raise UsageError(
                    f"{source}{key}: there is no such key; see the shipped systems for the layout of the sections"
                )
    implementation = str(own.get("implementation", "pytorch"))
    recipe_name = recipe or overrides.get("recipe") or own.get("recipe")
    if recipe_name is None:
        raise UsageError(
            f"{file.shown}: bert.recipe is missing; name one of {', '.join(_recipe_names(implementation))}"
        )
    named_by = (
        "--recipe" if recipe else f"{COMMAND_LINE} recipe" if "recipe" in overrides else f"{file.shown}: bert.recipe"
    )
    if not isinstance(recipe_name, str):
        found = "a list" if isinstance(recipe_name, list) else short_repr(recipe_name)
        raise UsageError(
            f"{named_by}: found {found}; one name is allowed, of {', '.join(_recipe_names(implementation))}"
        )
    recipe_keys = read_configuration(_recipe_path(implementation, str(recipe_name), file.shown, named_by))
    system_algorithm = _algorithm(own) or _algorithm(_system_recipe_keys(implementation, own, file.shown))
    if recipe_name != own.get("recipe") and isinstance(own.get("optimizer"), dict):  # the recipe chooses the algorithm
        own["optimizer"] = {key: value for key, value in own["optimizer"].items() if key != "algorithm"}
    chosen = choose_hyperparameters(file.shown, str(recipe_name), (recipe_keys, own, overrides), system_algorithm)
    launch, notes = _launch_of_chosen_launcher(file, overrides)

    name = f"recipe {recipe_name}"
    of_file, of_launch = Source(f"system {file.shown}", file.shown, "bert"), Source(f"system {file.shown}", file.shown)
    origins, values = Origins(file.shown, shown_under="bert"), dict[str, Any]()
    origins.merge(values, recipe_keys, Source(name, file.shown, "bert", name))
    if chosen is not None:
        name = f"hyperparameters {chosen.name}"
        origins.merge(values, {"optimizer": chosen.optimizer}, Source(name, file.shown, "bert", name))
    origins.merge(values, own, of_file)
    others = {"description": _description(file), "launch": launch}
    if "reproduces" in file.document:
        others["reproduces"] = file.document["reproduces"]
    origins.merge(values, others, of_launch)
    origins.merge(values, overrides, ON_COMMAND_LINE)
    if chosen is not None and chosen.name not in names_of_sets(values):
        origins.record(("hyperparameters",), Source("the set published for this optimizer and batch size", file.shown))
    values["hyperparameters"] = chosen.name if chosen else None
    if recipe:
        origins.record(("recipe",), Source("command line", "--recipe"))
    values["recipe"] = recipe_name
    values["system"] = file.path.stem
    origins.record(("system",), Source("name of the file", file.shown))
    warning = other_batch_size_warning(chosen, own, overrides)
    return Layers(values, origins, recipe_keys, (*notes, *([warning] if warning else [])))


def _launch_of_chosen_launcher(
    file: SystemFile, overrides: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the file's `launch` without the keys that another launcher, chosen on the command line, has no use for.

    The second value has a note if there are any. A file's container is replaced as a whole, but for its mounts, where
    the command line names another image. UsageError, with all settings that are needed besides, if some are.
    """
    launch, found = file.document["launch"], overrides.get("launch")
    given: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    chosen = given.get("launcher")
    if chosen not in CONTAINER_RUNTIMES or chosen == launch.get("launcher", "torchrun"):
        return launch, ()
    kept, left_out = dict(launch), []
    for key in ("slurm_options", "requeue") if chosen != "slurm" else ():
        if kept.pop(key, None):
            left_out.append(f"launch.{key}")
    container, own_container = launch.get("container"), given.get("container")
    runtime = container.get("runtime") if isinstance(container, Mapping) else None
    if runtime not in CONTAINER_RUNTIMES[chosen] and isinstance(container, Mapping):
        kept.pop("container")
        left_out.append("launch.container")
        if isinstance(own_container, Mapping) and "mounts" in container:
            kept["container"] = {"mounts": container["mounts"]}
            left_out[-1] = "launch.container but for its mounts"
    needed = []
    if chosen == "docker":
        image = own_container.get("image") if isinstance(own_container, Mapping) else None
        if "runtime" not in kept.get("container", {}) and image is None:
            needed.append("launch.container.image=IMAGE (such as podium:latest, which is built from docker/)")
        kept["container"] = {"runtime": "docker"} | kept.get("container", {})
    if chosen != "slurm" and not (launch.get("rendezvous") or given.get("rendezvous")):
        nodes = given.get("nodes", launch.get("nodes", 1))
        if isinstance(nodes, int) and nodes > 1:
            needed.append(f"launch.rendezvous=HOST:PORT (of the first of {nodes} nodes; or launch.nodes=1)")
    if needed:
        raise UsageError(
            f"{COMMAND_LINE} launch.launcher: found {chosen}, for which {file.shown} lacks settings; add "
            f"{' and '.join(f'{COMMAND_LINE} {setting}' for setting in needed)}"
        )
    note = (
        f"{COMMAND_LINE} launch.launcher={chosen} has no use for {', '.join(left_out)} of {file.shown}, left out "
        "for this run" + (f"; the container is that of {COMMAND_LINE}" if isinstance(own_container, Mapping) else "")
    )
    return kept, (note,) if left_out else ()


def _options_to_blame(
    file: SystemFile, recipe: str | None, overrides: Mapping[str, Any], location: Location, kind: str
) -> str | None:
    """Return the options of the command line without any one of which a fault of several keys disappears.

    If several cause it each on its own, a smallest set of options that has it; None if it is in the file itself.
    """
    fault = (location, kind)
    settings = [(f"{COMMAND_LINE} {'.'.join(key)}", recipe, _without(overrides, key)) for key in _leaf_keys(overrides)]
    attempts = [*settings, *([(f"--recipe {recipe}", None, overrides)] if recipe else [])]
    if not attempts or fault in _faults(file, None, {}):
        return None
    causes = [option for option, name, given in attempts if fault not in _faults(file, name, given)]
    if not causes:
        left, chosen = overrides, recipe
        if chosen and fault in _faults(file, None, left):
            chosen = None
        for key in _leaf_keys(overrides):
            if fault in _faults(file, chosen, _without(left, key)):
                left = _without(left, key)
        causes = [f"{COMMAND_LINE} {'.'.join(key)}" for key in _leaf_keys(left)]
        causes += [f"--recipe {chosen}"] if chosen else []
    return ", ".join(causes)


def _faults(file: SystemFile, recipe: str | None, overrides: Mapping[str, Any]) -> set[tuple[Location, str]]:
    """Return key and kind of all faults of a configuration."""
    try:
        RunConfig.model_validate(_merge_layers(file, recipe, overrides).values)
    except ValidationError as error:
        return {(key_path(detail["loc"], RunConfig), detail["type"]) for detail in error.errors()}
    except UsageError:  # of the choice of hyper-parameters, which comes before all others
        return set()
    return set()


def _leaf_keys(values: Mapping[str, Any], above: Location = ()) -> list[Location]:
    """Return the keys that settings give, such as ("launch", "nodes")."""
    found: list[Location] = []
    for key, value in values.items():
        here = (*above, str(key))
        found += _leaf_keys(value, here) if isinstance(value, Mapping) and value else [here]
    return found


def _without(values: Mapping[str, Any], key: Location) -> dict[str, Any]:
    """Return nested settings without one of their keys."""
    rest = {name: value for name, value in values.items() if name != key[0]}
    inner = _without(values[key[0]], key[1:]) if len(key) > 1 else {}
    return rest | ({key[0]: inner} if inner else {})


def _recipe_warnings(
    config: RunConfig, layers: Layers, overrides: Mapping[str, Any], file: SystemFile
) -> Iterator[str]:
    """Yield a warning for each source that overrides keys by which a recipe is the method of a paper."""
    if config.recipe not in PUBLISHED_RECIPES:
        return
    resolved, recipe_keys = config.model_dump(mode="json"), layers.recipe_keys
    changed = [
        key
        for key in _leaf_keys(recipe_keys)
        if key[0] not in NOT_OF_THE_METHOD
        and _value(recipe_keys, key) != "auto"
        and _value(resolved, key) != _value(recipe_keys, key)
    ]
    set_keys = _leaf_keys(overrides)
    on_command_line = [key for key in changed if any(key[: len(one)] == one for one in set_keys)]
    own = file.document["bert"]
    in_file = [
        key
        for key in changed
        if key not in on_command_line and _value(own, key[:1]) is not None and _value(own, key) == _value(resolved, key)
    ]

    def describe(keys: Sequence[Location]) -> str:
        return "; ".join(
            f"{'.'.join(key)} is {_format(_value(resolved, key))} ({_format(_value(recipe_keys, key))} in the recipe)"
            for key in keys
        )

    overridden = f"what makes recipe {config.recipe} the published method"
    if in_file:
        yield (
            f"{file.shown} overrides {overridden}: {describe(in_file)}. To train as published, remove these keys from "
            "the file"
        )
    if on_command_line:
        options = " ".join(
            f"{COMMAND_LINE} {'.'.join(key)}={_format(_value(resolved, key))}" for key in on_command_line
        )
        yield (
            f"{options} overrides {overridden}: {describe(on_command_line)}. To train as published, leave "
            f"{'it' if len(on_command_line) == 1 else 'them'} out"
        )


def _value(values: Any, key: Location) -> Any:
    for part in key:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _format(value: Any) -> str:
    return "null" if value is None else str(value)


def shown_path(path: Path) -> str:
    """Path for messages: relative to the current folder if the file is in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def _with_derived_description(config: RunConfig, origins: Origins) -> RunConfig:
    """Fill the fields of the description that follow from the rest of the configuration, where they are not stated."""
    launch = config.launch
    derived = {
        "system_name": config.system,
        "number_of_nodes": str(launch.nodes),
        "accelerators_per_node": str(launch.processes_per_node if launch.device == "cuda" else 0),
    }
    unset = {key: value for key, value in derived.items() if not getattr(config.description, key).strip()}
    for key in unset:
        origins.record(("description", key), Source("file name" if key == "system_name" else "launch", config.system))
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
        if given.exists() and not given.is_file():
            kind = "a folder" if given.is_dir() else "not a regular file"
            raise UsageError(f"{given}: is {kind}; give the path of a system's YAML file")
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
            f"there is no system {system!r} in {places}{did_you_mean(system, system_names())}; "
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


def _recipe_path(implementation: str, recipe: str, system: str, named_by: str) -> Path:
    names = _recipe_names(implementation)
    if not names:
        raise UsageError(f"{system}: bert.implementation is {implementation!r}; allowed is pytorch")
    if recipe not in names:
        raise UsageError(
            f"{named_by}: there is no recipe {recipe!r}{did_you_mean(recipe, names)}; "
            f"the recipes are {', '.join(names)}"
        )
    return _recipe_folder(implementation) / f"{recipe}.yaml"


def _system_recipe_keys(implementation: str, own: Mapping[str, Any], system: str) -> dict[str, Any]:
    """Keys of the recipe that a system's file names; {} if it names none."""
    recipe = own.get("recipe")
    if recipe is None:
        return {}
    return read_configuration(_recipe_path(implementation, str(recipe), system, f"{system}: bert.recipe"))


def _algorithm(keys: Mapping[str, Any]) -> str | None:
    optimizer = keys.get("optimizer")
    algorithm = optimizer.get("algorithm") if isinstance(optimizer, Mapping) else None
    return None if algorithm is None else str(algorithm)


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
    in_folder = Source(f"run {folder.path}", str(folder.config))
    origins.merge(values, stored.model_dump(mode="json", by_alias=True), in_folder)
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
    of_system = Source(f"system {path}", str(path))
    origins.merge(values, {"launch": {key: own[key] for key in PLACEMENT_KEYS}}, of_system)
    origins.merge(values, given, ON_COMMAND_LINE)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(format_validation_error(error, RunConfig, origins)) from None


def _setting_error(message: str, free: Sequence[str]) -> UsageError:
    return UsageError(
        f"{COMMAND_LINE} {message}; with --resume leave it out, or start another run. Allowed are "
        f"{', '.join(f'launch.{key}' for key in free)}"
    )
