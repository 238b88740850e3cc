"""Clearing of caches before a run: what is dropped, what remains in memory, and the message."""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.launch import page_cache
from podium.launch.page_cache import clear_caches, resident_bytes

IN_MEMORY = Path("/dev/shm")
UNPRIVILEGED_ID = 65534
SIZE = 3 * mmap.PAGESIZE + 1


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of /proc/sys/vm/drop_caches."""
    monkeypatch.setattr(page_cache, "DROP_CACHES", tmp_path / "drop_caches")
    monkeypatch.setattr("os.sync", lambda: None)
    return tmp_path / "drop_caches"


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only shard of any configuration, of four dirty pages; skips if the disk is in memory."""
    path = tmp_path / "part.h5"
    path.write_bytes(os.urandom(SIZE))
    monkeypatch.setattr(page_cache, "_shards", lambda config: [path])
    page_cache._drop_pages(path)
    if resident_bytes(path) != 0:
        pytest.skip("the temporary folder is on a file system that keeps its pages")
    path.write_bytes(os.urandom(SIZE))
    assert resident_bytes(path) == SIZE
    return path


@pytest.fixture
def shard_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if not IN_MEMORY.is_dir() or not os.access(IN_MEMORY, os.W_OK):
        pytest.skip(f"{IN_MEMORY} is not there")
    path = IN_MEMORY / f"podium_test_{os.getpid()}.h5"
    path.write_bytes(bytes(SIZE))
    monkeypatch.setattr(page_cache, "_shards", lambda config: [path])
    yield path
    path.unlink()


def configured(caches: str) -> RunConfig:
    return load_system("laptop", settings=[f"launch.caches={caches}"])


def test_all_caches_are_cleared_where_permissions_allow(switch: Path, shard: Path) -> None:
    switch.touch()
    cleared = clear_caches(configured("all"))
    assert (cleared.samples, cleared.message) == (True, "Cleared all of the kernel's caches")
    assert switch.read_text(encoding="ascii") == "3"
    assert resident_bytes(shard) == 0


def test_missing_permission_is_reported(switch: Path, shard: Path) -> None:
    switch.mkdir()  # not even root can write it
    cleared = clear_caches(configured("all"))
    assert cleared.samples
    reason = f"{switch} cannot be written here (Is a directory)"
    assert cleared.message == f"Cleared only the samples from the page cache: {reason}"


def test_caches_samples_keeps_all_other_caches(switch: Path, shard: Path) -> None:
    switch.touch()
    cleared = clear_caches(configured("samples"))
    assert cleared.samples
    assert cleared.message.endswith("page cache: launch.caches is samples")
    assert switch.read_text(encoding="ascii") == ""
    assert resident_bytes(shard) == 0, "pages that were just written are written back first"


@pytest.mark.parametrize("caches", ["all", "samples"])
def test_pages_mapped_by_a_process_are_not_cleared(switch: Path, shard: Path, caches: str) -> None:
    switch.touch()
    with shard.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped[:]) == SIZE  # every page is read
        cleared = clear_caches(configured(caches))
    assert not cleared.samples
    assert cleared.message.startswith("0.0 of 0.0 MB of samples are still in memory after clearing caches")


def test_samples_on_a_file_system_in_memory_are_not_cleared(switch: Path, shard_in_memory: Path) -> None:
    switch.touch()
    assert not clear_caches(configured("all")).samples


def test_samples_count_as_cleared_if_pages_cannot_be_counted(
    switch: Path, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "resident_bytes", lambda path: None)
    cleared = clear_caches(configured("samples"))
    assert cleared.samples
    assert cleared.message.endswith("; for 1 of 1 shards it cannot be checked here")


def as_unprivileged_user(count: Callable[[], int | None]) -> int | None:
    """Result of a call in a process of a user without permissions."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(UNPRIVILEGED_ID)
        os.setuid(UNPRIVILEGED_ID)
        os.write(writer, repr(count()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    text = os.read(reader, 100).decode()
    os.close(reader)
    return None if text == "None" else int(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_resident_pages_of_a_file_of_another_user(shard: Path, shard_in_memory: Path) -> None:
    """For such a user mincore(2) reports all pages as resident, whether or not they are."""
    for path in (shard, shard_in_memory):
        path.chmod(0o444)
    opened = {path: path.open("rb") for path in (shard, shard_in_memory)}  # other users may not enter the folders above
    paths = {path: Path(f"/proc/self/fd/{file.fileno()}") for path, file in opened.items()}
    assert as_unprivileged_user(lambda: resident_bytes(paths[shard])) == SIZE
    page_cache._drop_pages(shard)
    assert as_unprivileged_user(lambda: resident_bytes(paths[shard])) == 0
    assert as_unprivileged_user(lambda: resident_bytes(paths[shard_in_memory])) is None
    for file in opened.values():
        file.close()
