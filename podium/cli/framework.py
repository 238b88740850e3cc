"""What all commands have in common: -h, -v and -q, usage lines, metavars, and an example in errors of usage."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ParameterInfo

from podium.core.console import verbosity
from podium.core.errors import UsageError
from podium.core.text import printable, truncate

HELP_OPTIONS = MappingProxyType({"help_option_names": ["--help", "-h"]})
# Names of values in help and usage, by type, where an option or argument does not name one.
METAVARS: Mapping[Any, str] = MappingProxyType({bool: "", int: "N", float: "X", str: "NAME", Path: "PATH"})
NUMBERS = MappingProxyType({METAVARS[int]: "whole numbers", METAVARS[float]: "numbers"})  # by the metavar of their type
MAX_FOUND = 60  # characters of a value in an error

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print the commands that are run, and where the time goes.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors, no progress and no notes.")]


class PodiumCommand(TyperCommand):
    """A command with a usage line in the style of manual pages, and an error for missing arguments with an example."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line after the command's name, such as [OPTIONS] SYSTEM."""
        return ["[OPTIONS]", *map(_usage, (param for param in self.params if isinstance(param, TyperArgument)))]

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, without a metavar."""
        return _without_metavar(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options; the help has no column with the Python types of arguments."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperArgument):
                param.display_type_rich = _no_type  # type: ignore[method-assign]
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. The error for one that is missing ends in the example of the command's help.

        That for a number states what was found and which numbers are allowed.
        """
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error).__name__ == "MissingParameter" and self.epilog:
                error.message = Text.from_markup(self.epilog).plain
            error.message = _number_error(error) or error.message
            raise


class PodiumGroup(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, without a metavar."""
        return _without_metavar(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's options. Those that typer adds, for shell completion, have no metavar either."""
        return [_without_metavar(param) for param in super().get_params(ctx)]


class CommandGroup(typer.Typer):
    """A group of commands that have -h, -v and -q; made and used like a `typer.Typer`."""

    def __init__(self, *, cls: type[PodiumGroup] = PodiumGroup, **settings: Any) -> None:
        defaults: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": "rich"}
        defaults |= {"context_settings": dict(HELP_OPTIONS), "pretty_exceptions_enable": False}
        super().__init__(cls=cls, **(defaults | settings))

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """Decorator that registers a function as a command, and returns it unchanged."""
        defaults: dict[str, Any] = {"cls": PodiumCommand, "context_settings": dict(HELP_OPTIONS)}

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register = super(CommandGroup, self).command(name, **({"help": _help(function)} | defaults | settings))
            register(_with_verbosity(function))
            return function

        return decorate


def _with_verbosity(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the options -v and -q, and a metavar for each of its other options and arguments."""
    hints = get_type_hints(function, include_extras=True)
    for hint in (*hints.values(), Verbose, Quiet):
        _set_metavar(hint)

    @functools.wraps(function)
    def command(*args: Any, verbose: bool, quiet: bool, **kwargs: Any) -> Any:
        set_verbosity(verbose, quiet)
        with verbosity.timed():
            return function(*args, **kwargs)

    added = {"verbose": Verbose, "quiet": Quiet}
    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(one.replace(annotation=hints.get(one.name, one.annotation)) for one in signature.parameters.values()),
        *(inspect.Parameter(name, keyword, default=False, annotation=hint) for name, hint in added.items()),
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints | added
    return command


def set_verbosity(verbose: bool, quiet: bool) -> None:
    """Set how much is printed; neither option leaves it as it is. UsageError for both."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet exclude each other; give one of them")
    if verbose or quiet:
        verbosity.level = 1 if verbose else -1


def _help(function: Callable[..., Any]) -> str:
    """The docstring with each paragraph on one line, which the help wraps at the terminal's width."""
    return "\n\n".join(" ".join(text.split()) for text in (inspect.getdoc(function) or "").split("\n\n"))


def _set_metavar(hint: Any) -> None:
    if get_origin(hint) is not Annotated:
        return
    value, *annotations = get_args(hint)
    for info in annotations:
        if isinstance(info, ParameterInfo) and info.metavar is None:
            info.metavar = _metavar(value)


def _metavar(hint: Any) -> str:
    """The metavar of values of a type; that of its elements for a list, the choices for a Literal."""
    if hint in METAVARS:
        return METAVARS[hint]
    inner = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) is Literal:
        return "|".join(map(str, inner))
    if get_origin(hint) in (list, Union, UnionType):
        return _metavar(inner[0])
    return " ".join(map(_metavar, inner))


def _number_error(error: typer.BadParameter) -> str:
    """What was found in place of a number, and the numbers that are allowed; "" for an error of another kind."""
    cause, descriptor = error.__cause__, getattr(error.param, "type_descriptor", None)
    if descriptor is None or not isinstance(cause, ValueError) or not hasattr(cause, "errors"):
        return ""  # from before typer checked numbers by pydantic, its messages have both
    detail, info = cause.errors()[0], descriptor.parameter_info
    kind = NUMBERS.get(_metavar(descriptor.annotation))
    if kind is None:
        return ""
    low, high = info.min, info.max
    above, below = ("" if limit is None else f"{limit:,}" for limit in (low, high))
    limits = f" from {above}" if above else ""
    limits += f" {'to' if above else 'up to'} {below}" if below else " on" if above else ""
    return f"found {truncate(printable(str(detail['input'])), MAX_FOUND)}, allowed are {kind}{limits}"


def _usage(argument: TyperArgument) -> str:
    name = argument.metavar or str(argument.name).upper()
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _no_type(ctx: Any) -> None:
    """The Python type of an argument, which is not printed."""


def _without_metavar(option: Any) -> Any:
    if option is not None:
        option.metavar = "" if option.metavar is None else option.metavar
    return option
