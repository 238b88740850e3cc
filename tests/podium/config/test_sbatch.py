"""Parsing of sbatch options (abbreviated, joined, with separate values) and of time limits."""

import pytest

from podium.config.sbatch import limit_seconds, match_options

NAMES = ("--time", "-t", "--array", "-a")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--time=5"], [("--time", "--time=5", "5")]),
        (["--tim", "5"], [("--time", "--tim", "5")]),
        (["--time-min=5", "--tmp=3", "--account=a"], []),
        (["-t5"], [("-t", "-t5", "5")]),
        (["-Hvt", "5"], [("-t", "-Hvt", "5")]),
        (["-a0-3", "-t"], [("-a", "-a0-3", "0-3"), ("-t", "-t", "")]),
        (["-pta", "-Jat", "--", "-", ""], []),  # partition ta; a job with the name at
    ],
)
def test_options_are_matched_as_sbatch_parses_them(options: list[str], found: list[tuple[str, str, str]]) -> None:
    assert list(match_options(options, NAMES)) == found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:05:30", 3930),
        ("1-2", 93_600),
        ("1-02:03", 93_780),
        ("1-02:03:04", 93_784),
        ("0", None),
        ("UNLIMITED", None),
        ("an hour", None),
        ("", None),
    ],
)
def test_time_limits_are_parsed_in_sbatch_formats(text: str, seconds: int | None) -> None:
    assert limit_seconds(text) == seconds
