"""Rounds by names, by what was cloned, and by dates."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from podium.comparison.rounds import round_by_dates, round_named, round_of


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("training_results_v2.1", "v2.1"),
        ("training_results_v4.0-main", "v4.0"),
        ("published-bert-v2.0", "v2.0"),
        ("v5.0", "v5.0"),
        ("V3.1", "v3.1"),
        ("0.7", "v0.7"),
        ("2.1.0", "v2.1"),
        ("round 1.1", "v1.1"),
        ("mlperf v1.0 and v1.1", "v1.1"),
        ("v2.2", None),
        ("2.13.0", None),
        ("python3.1", None),
        ("ngc22.04", None),
        ("v2.10", None),
        ("podium", None),
        ("", None),
    ],
)
def test_names(name: str, found: str | None) -> None:
    assert round_named(name) == found


def test_the_nearest_folder_names_it(tmp_path: Path) -> None:
    top = tmp_path / "v2.0" / "training_results_v2.1"
    assert round_of(top / "ORG", top) == "v2.1"
    assert round_of(top / "closed" / "ORG", top) == "v2.1"
    assert round_of(tmp_path / "a" / "ORG", tmp_path / "a" / "ORG") is None


def test_what_was_cloned_names_it(tmp_path: Path) -> None:
    (tmp_path / "here" / ".git").mkdir(parents=True)
    config = tmp_path / "here" / ".git" / "config"
    config.write_text('[remote "origin"]\n\turl = https://host/mlcommons/training_results_v3.0.git\n', encoding="utf-8")
    assert round_of(tmp_path / "here" / "ORG", tmp_path / "here") == "v3.0"
    config.write_bytes(b"\xff training_results_v9.9")
    assert round_of(tmp_path / "here" / "ORG", tmp_path / "here") is None


def at(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e3


@pytest.mark.parametrize(
    ("days", "found"),
    [
        (["2022-05-10"], "v2.0"),
        (["2022-09-30"], "v2.1"),
        (["2022-05-10"] * 4 + ["2022-09-30"] * 5, "v2.1"),
        (["2022-09-30"] * 9 + ["2035-01-01"], "v2.1"),
        (["2026-11-20"], None),
        ([], None),
    ],
)
def test_dates(days: list[str], found: str | None) -> None:
    assert round_by_dates([at(day) for day in days]) == found
