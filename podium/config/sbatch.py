"""Options of sbatch as it reads them itself, to find those that a configuration must not set.

sbatch parses by getopt_long: a long option may be shortened to any prefix that no other option has, its value follows
after `=` or as the next word, and options of one letter may be joined, the last of them with its value. An ambiguous
prefix, which sbatch refuses, counts as each option that it may mean.
"""

import re
from collections.abc import Iterator, Sequence

FLAGS = "HhkOQsuVvW"  # options of one letter that take no value
# Options whose value may be the next word. That of all others is written behind `=`: sbatch would take a word that
# belongs to no option for the job's script.
TAKING_NEXT = (
    *("--account", "--begin", "--clusters", "--comment", "--constraint", "--cpus-per-task", "--dependency"),
    *("--exclude", "--gpus", "--gpus-per-node", "--gres", "--job-name", "--licenses", "--mem", "--nodelist"),
    *("--ntasks", "--nodes", "--open-mode", "--partition", "--qos", "--reservation", "--time", "--time-min"),
    *("-A", "-b", "-C", "-c", "-d", "-G", "-J", "-L", "-M", "-N", "-n", "-p", "-q", "-t", "-w", "-x"),
)
# Options that say how much of a machine a job takes.
RESOURCES = (
    *("--exclusive", "--gpus", "--gpus-per-node", "--gres", "--cpus-per-task", "--cpus-per-gpu", "--contiguous"),
    *("--mem", "--mem-per-gpu", "--mem-per-cpu", "--ntasks", "--ntasks-per-node", "--nodes", "--time", "--time-min"),
    *("--tmp", "--hint", "--threads-per-core", "--cores-per-socket", "--sockets-per-node", "--switches"),
    *("--open-mode", "-G", "-c", "-N", "-n", "-t"),
)
# Options by which something else than Podium's job script runs, or its output goes elsewhere.
_CONTAINER = ("", "-id", "-image", "-mounts", "-workdir", "-name", "-save", "-mount-home", "-remap-root", "-env")
REFUSED = {
    "chooses what is run or as whom": ("--wrap", "--bb", "--bbf", "--uid", "--gid"),
    "chooses a container; name it in launch.container": (
        *(f"--container{rest}" for rest in (*_CONTAINER, "-entrypoint", "-writable", "-readonly")),
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
EXPORTED = ("ALL", "NONE")  # values of --export that set no variable
NO_LIMIT = ("0", "-1", "infinite", "unlimited")
# minutes[:seconds], hours:minutes:seconds, and days-hours[:minutes[:seconds]]
TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+)(?::(?P<seconds>\d+))?)?|(?P<short>\d+(?::\d+){0,2}))"
)


def options_named(options: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The options among these words that may mean one of `names` (`--time`, `-t`): name, words, and value."""
    for number, word in enumerate(options):
        following = options[number + 1] if number + 1 < len(options) else ""
        if word.startswith("--"):
            given, sign, value = word.partition("=")
            for name in names:
                meant = name == given if given in names else len(given) > len("--") and name.startswith(given)
                if meant:
                    yield name, word, value if sign else following
        elif word.startswith("-"):
            for place, letter in enumerate(word[1:], start=1):
                if f"-{letter}" in names:
                    yield f"-{letter}", word, word[place + 1 :] or following
                if letter not in FLAGS:
                    break  # the rest is its value


def refusal(options: Sequence[str]) -> str | None:
    """Why sbatch must not be given these words: one that is no option, or an option of REFUSED; None if it may."""
    before = ""
    for word in options:
        if not word.isprintable():
            return f"slurm_options has {word!r}, which holds a character that cannot be printed; leave it out"
        if not re.match(r"--?\w", word) and before not in TAKING_NEXT:
            return (
                f"slurm_options has {word!r}, which is no option, so that sbatch would run it instead of Podium; "
                "write each option and its value in one word, such as --partition=batch"
            )
        before = word if re.match(r"--?\w", word) and before not in TAKING_NEXT else ""
    if before in TAKING_NEXT:
        return f"slurm_options ends with {before}, whose value is missing; write {before} and its value"
    for why, names in REFUSED.items():
        for name, word, value in options_named(options, names):
            if name != "--export" or value not in EXPORTED:
                return f"slurm_options has {word}{may_mean(word, name)}, which {why}; leave it out"
    return None


def without_names(options: Sequence[str]) -> tuple[str, ...]:
    """The options that say how much of a machine a job takes, without those that name accounts, people or machines."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        following = [next(words, "")] if word in TAKING_NEXT else []
        if word.partition("=")[0] in RESOURCES or (word[:2] in RESOURCES and word[1] != "-"):
            kept += [word, *following]
    return tuple(kept)


def may_mean(word: str, name: str) -> str:
    """What to add to a word of an option that is not written as its name."""
    return "" if word.startswith(name) else f" (which may mean {name})"


def limit_seconds(value: str) -> int | None:
    """Seconds of a time limit as sbatch's --time takes it; None for no limit, and for what sbatch refuses itself."""
    found = TIME.fullmatch(value.strip())
    if found is None or value.strip().lower() in NO_LIMIT:
        return None
    if found["short"] is None:
        parts = [int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")]
    else:
        given = [int(part) for part in found["short"].split(":")]
        parts = [0, *given] if len(given) == 3 else [0, 0, *given, *[0] * (2 - len(given))]
    days, hours, minutes, seconds = parts
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
