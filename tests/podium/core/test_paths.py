"""Paths in texts that are published."""

import os

import pytest

from podium.core.paths import WORKING_FOLDER, shorten_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{WORKING_FOLDER}/runs/laptop", "runs/laptop"),
        (
            f"what it printed is in {WORKING_FOLDER}/runs/a b/output.txt; see it",
            "what it printed is in runs/a b/output.txt; see it",
        ),
        ("[/home/me/part-0, /home/me/part-1]", "[part-0, part-1]"),
        ("/home/me/", ""),
        ("sequences/s, and/or, 3 / 4, /tmp, a/b/c, ../x/y", "sequences/s, and/or, 3 / 4, /tmp, a/b/c, ../x/y"),
        ("https://github.com/mlcommons/training", "https://github.com/mlcommons/training"),
    ],
)
def test_absolute_paths_are_shortened(text: str, shown: str) -> None:
    assert shorten_paths(text) == shown


def test_paths_in_the_current_folder_become_relative(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten_paths(f"{tmp_path}/mine/results") == "mine/results"
