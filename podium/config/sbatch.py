"""Options of sbatch as it reads them itself, to find those that a configuration must not set besides.

sbatch parses by getopt_long: a long option may be shortened to any prefix that no other option has, its value follows
after `=` or as the next word, and options of one letter may be joined, the last of them with its value. An ambiguous
prefix, which sbatch refuses, counts as each option that it may mean.
"""

import re
from collections.abc import Iterator, Sequence

FLAGS = "HhkOQsuVvW"  # options of one letter that take no value
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
                if len(given) > len("--") and name.startswith(given):
                    yield name, word, value if sign else following
        elif word.startswith("-"):
            for place, letter in enumerate(word[1:], start=1):
                if f"-{letter}" in names:
                    yield f"-{letter}", word, word[place + 1 :] or following
                if letter not in FLAGS:
                    break  # the rest is its value


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
