"""What is cleared before a run, and what is said where more was not allowed."""

from pathlib import Path

import pytest

from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.launch import page_cache
from podium.launch.page_cache import clear_caches


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the kernel's; samples cannot be dropped unless a test says so."""
    monkeypatch.setattr(page_cache, "DROP_CACHES", tmp_path / "drop_caches")
    monkeypatch.setattr(page_cache.os, "sync", lambda: None)
    monkeypatch.setattr(page_cache, "drop_from_page_cache", lambda config: False)
    return tmp_path / "drop_caches"


@pytest.fixture
def everything() -> RunConfig:
    return load_system("laptop", settings=["launch.caches=all"])


def test_all_is_cleared_where_the_rights_allow(switch: Path, everything: RunConfig) -> None:
    switch.touch()
    cleared = clear_caches(everything)
    assert (cleared.samples, cleared.words) == (True, "Cleared all of the kernel's caches")
    assert switch.read_text(encoding="ascii") == "3"


@pytest.mark.parametrize("dropped", [True, False])
def test_what_was_not_allowed_is_said(
    switch: Path, everything: RunConfig, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    switch.mkdir()  # so that it cannot be written, whoever asks
    monkeypatch.setattr(page_cache, "drop_from_page_cache", lambda config: dropped)
    cleared = clear_caches(everything)
    assert cleared.samples is dropped
    what = "Cleared the samples from the page cache" if dropped else "Cleared no caches"
    assert cleared.words == f"{what}, and no more: {switch} cannot be written here (Is a directory)"


def test_the_laptop_keeps_the_rest_of_its_caches(switch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch.touch()
    monkeypatch.setattr(page_cache, "drop_from_page_cache", lambda config: True)
    cleared = clear_caches(load_system("laptop"))
    assert cleared.samples
    assert cleared.words.endswith("and no more: launch.caches is samples")
    assert switch.read_text(encoding="ascii") == ""
