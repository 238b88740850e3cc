"""Search spaces: the configuration keys that are searched, their ranges, and fixed values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator

from podium.config.errors import Origins, format_validation_error
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.paths import WORKING_FOLDER, user_and_shipped_paths, user_or_shipped_path
from podium.core.text import format_list
from podium.core.yaml_files import read_yaml

SEARCHES = WORKING_FOLDER / "systems" / "search"
# Keys that change the objective. They are set with `--set`, for all searches and for the shipped settings alike, so
# that results stay comparable.
NOT_SEARCHED = (
    "system",
    "description",
    "launch",
    "data",
    "size",
    "seed",
    "target_accuracy",
    "max_samples",
    "evaluation",
)
OPTIONAL_SECTIONS = ("clipping",)  # sections that may be null


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Range(_Model):
    """Numbers from low to high: uniform, uniform in the logarithm (`log`), or integers (`int`)."""

    kind: Literal["uniform", "log", "int"]
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; allowed is low below high")
        if self.kind == "log" and self.low <= 0:
            raise ValueError(f"low is {self.low:g}; with kind log, allowed are numbers above 0")
        if self.kind == "int" and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; with kind int, allowed are whole numbers")
        return self

    @property
    def distribution(self) -> BaseDistribution:
        if self.kind == "int":
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, log=self.kind == "log")

    @property
    def examples(self) -> tuple[float, ...]:
        """Ends of the range, with the type of a trial's value."""
        return (int(self.low), int(self.high)) if self.kind == "int" else (self.low, self.high)


class Choice(_Model):
    """Choice from a list of values."""

    kind: Literal["categorical"]
    choices: tuple[str | int | float | bool | None, ...] = Field(min_length=2)

    @property
    def distribution(self) -> BaseDistribution:
        return CategoricalDistribution(self.choices)

    @property
    def examples(self) -> tuple[Any, ...]:
        return self.choices


class SearchSpace(_Model):
    """Content of a search file in systems/search/."""

    name: str
    system: str  # the system that the search is for
    trials: int = Field(ge=1)
    seed: int = Field(ge=0)  # of every trial's training, and of the sampler that draws settings
    global_batch_size: tuple[PositiveInt, ...] = ()  # that the search is for, one or a list; none: any
    # Trainings of each trial, with seeds from `seed` on. The objective is their mean, which is poor for settings that
    # sometimes fail.
    repeats_per_trial: int = Field(1, ge=1, le=100)
    settings: Mapping[str, Any] = {}  # configuration keys with the same value in all trials
    space: Mapping[str, Annotated[Range | Choice, Field(discriminator="kind")]] = Field(min_length=1)

    @field_validator("global_batch_size", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) else value

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        for section in ("settings", "space"):
            for key in getattr(self, section):
                if key.partition(".")[0] in NOT_SEARCHED:
                    raise ValueError(
                        f"{section}: found {key}, which changes the objective; set it for all trials with --set"
                    )
        both = sorted(set(self.settings) & set(self.space))
        if both:
            raise ValueError(f"{both[0]} is both fixed in settings and searched over; remove one of them")
        return self

    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distribution of each searched key."""
        return {key: one.distribution for key, one in self.space.items()}

    def base(self, shipped: RunConfig) -> RunConfig:
        """Return the configuration that all trials start from.

        Raises UsageError for an unknown key, an end of a range or a choice that the configuration does not allow, and a
        batch size that the search is not for.
        """
        sizes = self.global_batch_size
        if sizes and shipped.global_batch_size not in sizes:
            made_for = format_list([f"{size:,}" for size in sizes])
            raise UsageError(
                f"{self.name}: is for global_batch_size {made_for}, found {shipped.global_batch_size:,}; "
                f"use --set global_batch_size={sizes[0]}"
            )
        base = with_values(shipped, self.settings, f"{self.name}: settings")
        for key, one in self.space.items():
            for value in one.examples:
                with_values(base, {key: value}, f"{self.name}: space")
        return base

    def values_of(self, config: RunConfig) -> dict[str, Any] | None:
        """Return a configuration's values of the searched keys; None if one is outside of the space."""
        values = {key: value_of(config, key) for key in self.space}
        for key, one in self.space.items():
            distribution = one.distribution
            if values[key] is None and None not in one.examples:
                return None
            try:
                inside = distribution._contains(distribution.to_internal_repr(values[key]))
            except (ValueError, TypeError):
                return None
            if not inside:
                return None
        return values


def load_space(name: str) -> SearchSpace:
    """Load a search by its name in systems/search/ or the path of a YAML file. Raises UsageError for an invalid one."""
    given = Path(name)
    path = given if given.suffix in (".yaml", ".yml") else user_or_shipped_path(SEARCHES / f"{name}.yaml")
    names = ", ".join(_search_names())
    if not path.is_file():
        raise UsageError(f"there is no search {name!r}; there are {names}, or give the path of a YAML file")
    try:
        return SearchSpace.model_validate({"name": path.stem, **read_yaml(path)})
    except ValidationError as error:
        raise UsageError(format_validation_error(error, SearchSpace, Origins(path))) from None


def searches_of(config: RunConfig) -> list[str]:
    """Names of the searches for a system at its batch size: those for that size, or else those for any."""
    spaces = [space for space in map(load_space, _search_names()) if space.system == config.system]
    made_for = [space.name for space in spaces if config.global_batch_size in space.global_batch_size]
    return made_for or [space.name for space in spaces if not space.global_batch_size]


def _search_names() -> list[str]:
    return sorted({path.stem for folder in user_and_shipped_paths(SEARCHES) for path in folder.glob("*.yaml")})


def with_values(config: RunConfig, values: Mapping[str, Any], source: str) -> RunConfig:
    """Return the configuration with the values of dotted keys replaced, and validated.

    Raises UsageError, with `source` as the start of its message.
    """
    document = config.model_dump(mode="json", by_alias=True)
    for key, value in values.items():
        *above, last = key.split(".")
        section = document
        for part in above:
            inner = section.get(part)
            if inner is None and part in OPTIONAL_SECTIONS:
                inner = section[part] = {}
            if not isinstance(inner, dict):
                raise UsageError(f"{source}: there is no such key as {key}; docs/configuration.md lists all keys")
            section = inner
        section[last] = value
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        first_line = format_validation_error(error, RunConfig, Origins(Path(source))).splitlines()[0]
        raise UsageError(first_line) from None


def value_of(config: RunConfig, key: str) -> Any:
    """Return a configuration's value of a dotted key; None if a section above it is null."""
    value: Any = config.model_dump(mode="json", by_alias=True)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
