"""Parsing of sbatch options, to refuse those that a configuration must not set.

sbatch uses getopt_long: a long option may be abbreviated to a unique prefix, its value follows after `=` or as the next
argument, and one-letter options may be joined, the last of them with its value. An ambiguous prefix, which sbatch
refuses, counts as every option that it may abbreviate.
"""

import re
from collections.abc import Iterator, Sequence

SHORT_FLAGS = "HhkOQsuVvW"  # one-letter options without a value
# Options whose value may be the next argument. Values of all others must follow `=`: sbatch would run an argument that
# belongs to no option as the job's script.
OPTIONS_WITH_SEPARATE_VALUE = (
    *("--account", "--begin", "--clusters", "--comment", "--constraint", "--cpus-per-task", "--dependency"),
    *("--exclude", "--gpus", "--gpus-per-node", "--gres", "--job-name", "--licenses", "--mem", "--nodelist"),
    *("--ntasks", "--nodes", "--open-mode", "--partition", "--qos", "--reservation", "--time", "--time-min"),
    *("-A", "-b", "-C", "-c", "-d", "-G", "-J", "-L", "-M", "-N", "-n", "-p", "-q", "-t", "-w", "-x"),
)
# Options that request resources.
RESOURCE_OPTIONS = (
    *("--exclusive", "--gpus", "--gpus-per-node", "--gres", "--cpus-per-task", "--cpus-per-gpu", "--contiguous"),
    *("--mem", "--mem-per-gpu", "--mem-per-cpu", "--ntasks", "--ntasks-per-node", "--nodes", "--time", "--time-min"),
    *("--tmp", "--hint", "--threads-per-core", "--cores-per-socket", "--sockets-per-node", "--switches"),
    *("--open-mode", "-G", "-c", "-N", "-n", "-t"),
)
# Options that would run something other than Podium's job script, or redirect its output.
_CONTAINER_SUFFIXES = (
    "",
    "-id",
    "-image",
    "-mounts",
    "-workdir",
    "-name",
    "-save",
    "-mount-home",
    "-remap-root",
    "-env",
)
FORBIDDEN_OPTIONS = {
    "chooses the program or the user that runs it": ("--wrap", "--bb", "--bbf", "--uid", "--gid"),
    "chooses a container; name it in launch.container": (
        *(f"--container{rest}" for rest in (*_CONTAINER_SUFFIXES, "-entrypoint", "-writable", "-readonly")),
        *(f"--no-container{rest}" for rest in ("-mount-home", "-remap-root", "-entrypoint")),
    ),
    "sets environment variables of the job; allowed are --export=ALL and --export=NONE": ("--export", "--export-file"),
    "chooses files or a folder, which Podium does": (
        *("--output", "-o", "--error", "-e", "--input", "-i", "--chdir", "-D"),
    ),
    "changes what sbatch prints, from which Podium takes the job's number": (
        *("--parsable", "--quiet", "-Q", "--test-only", "--help", "-h", "--usage", "-u", "--version", "-V"),
    ),
}
ALLOWED_EXPORTS = ("ALL", "NONE")  # values of --export that set no variable
UNLIMITED_VALUES = ("0", "-1", "infinite", "unlimited")
# minutes[:seconds], hours:minutes:seconds, and days-hours[:minutes[:seconds]]
TIME_FORMAT = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+)(?::(?P<seconds>\d+))?)?|(?P<short>\d+(?::\d+){0,2}))"
)


def match_options(options: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, argument, value) for each argument that may mean one of `names`, such as `--time` or `-t`."""
    for number, argument in enumerate(options):
        following = options[number + 1] if number + 1 < len(options) else ""
        if argument.startswith("--"):
            given, sign, value = argument.partition("=")
            for name in names:
                meant = name == given if given in names else len(given) > len("--") and name.startswith(given)
                if meant:
                    yield name, argument, value if sign else following
        elif argument.startswith("-"):
            for place, letter in enumerate(argument[1:], start=1):
                if f"-{letter}" in names:
                    yield f"-{letter}", argument, argument[place + 1 :] or following
                if letter not in SHORT_FLAGS:
                    break  # the rest of the argument is its value


def rejection_reason(options: Sequence[str]) -> str | None:
    """Reason why sbatch must not get these arguments, such as one of FORBIDDEN_OPTIONS; None if it may."""
    before = ""
    for argument in options:
        if not argument.isprintable():
            return f"slurm_options has {argument!r}, which has a character that cannot be printed; leave it out"
        if not re.match(r"--?\w", argument) and before not in OPTIONS_WITH_SEPARATE_VALUE:
            return (
                f"slurm_options has {argument!r}, which is not an option, so that sbatch would run it instead of "
                "Podium; write each option and its value as one entry, such as --partition=batch"
            )
        before = argument if re.match(r"--?\w", argument) and before not in OPTIONS_WITH_SEPARATE_VALUE else ""
    if before in OPTIONS_WITH_SEPARATE_VALUE:
        return f"slurm_options ends with {before}, whose value is missing; write {before} and its value"
    for why, names in FORBIDDEN_OPTIONS.items():
        for name, argument, value in match_options(options, names):
            if name != "--export" or value not in ALLOWED_EXPORTS:
                return f"slurm_options has {argument}{abbreviation_note(argument, name)}, which {why}; leave it out"
    return None


def resource_options(options: Sequence[str]) -> tuple[str, ...]:
    """Select the options that request resources; the others may name accounts, people or machines."""
    selected: list[str] = []
    arguments = iter(options)
    for argument in arguments:
        following = [next(arguments, "")] if argument in OPTIONS_WITH_SEPARATE_VALUE else []
        if argument.partition("=")[0] in RESOURCE_OPTIONS or (argument[:2] in RESOURCE_OPTIONS and argument[1] != "-"):
            selected += [argument, *following]
    return tuple(selected)


def abbreviation_note(argument: str, name: str) -> str:
    """Text that names the option which an argument abbreviates; empty if it is not abbreviated."""
    return "" if argument.startswith(name) else f" (which may mean {name})"


def limit_seconds(value: str) -> int | None:
    """Convert a value of sbatch's --time to seconds; None for no limit and for values that sbatch itself refuses."""
    found = TIME_FORMAT.fullmatch(value.strip())
    if found is None or value.strip().lower() in UNLIMITED_VALUES:
        return None
    if found["short"] is None:
        parts = [int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")]
    else:
        given = [int(part) for part in found["short"].split(":")]
        parts = [0, *given] if len(given) == 3 else [0, 0, *given, *[0] * (2 - len(given))]
    days, hours, minutes, seconds = parts
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
