"""Names that the command line completes and lists in its help, read from file names: no import of a slow library."""

from collections.abc import Iterable
from pathlib import Path

from podium.core.paths import CODE_FOLDER, WORKING_FOLDER, user_and_shipped_paths

SIZES = ("large", "tiny")  # keys of benchmarks.bert.sizes.SIZES, which imports numpy


def systems() -> list[str]:
    """Names of the systems in the working folder and of the shipped ones, sorted."""
    return _stems(user_and_shipped_paths(WORKING_FOLDER / "systems"))


def recipes() -> list[str]:
    """Names of the recipes, sorted."""
    return _stems([CODE_FOLDER / "implementations" / "pytorch" / "recipes"])


def searches() -> list[str]:
    """Names of the search spaces of `podium tune`, sorted."""
    return _stems(user_and_shipped_paths(WORKING_FOLDER / "systems" / "search"))


def benchmarks() -> list[str]:
    """MLPerf's names of benchmarks, sorted."""
    from podium.mllog.benchmarks import benchmarks

    return sorted(benchmarks())


def settings() -> list[str]:
    """Dotted keys of --set, each with `=`."""
    from podium.config.schema import RunConfig

    schema = RunConfig.model_json_schema()

    def keys(properties: dict[str, dict[str, object]], prefix: str = "") -> Iterable[str]:
        for name, value in properties.items():
            yield f"{prefix}{name}="
            for section, definition in schema["$defs"].items():
                if not prefix and f"'#/$defs/{section}'" in str(value) and "properties" in definition:
                    yield from keys(definition["properties"], f"{name}.")

    return sorted(set(keys(schema["properties"])))


def matching(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what was typed."""
    return [name for name in names if name.startswith(incomplete)]


def _stems(folders: Iterable[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})
