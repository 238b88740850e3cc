"""Resource usage of a process from /proc: anonymous memory, memory of files, bytes read."""

import mmap
from pathlib import Path

import numpy as np

from implementations.pytorch.rehearse.usage import bytes_read, resident_memory, seconds_since_start

SMAPS = """\
7f1000000000-7f1000400000 r--s 00000000 fe:00 1234                       /data/my index/lengths.bin
Size:               4096 kB
Rss:                4000 kB
Pss:                2000 kB
Shared_Clean:       4000 kB
Anonymous:             0 kB
VmFlags: rd sh mr mw me ms sd
7f1000400000-7f1000500000 rw-p 00000000 fe:00 99                         /usr/lib/libtorch.so (deleted)
Rss:                1024 kB
Anonymous:           100 kB
55d000000000-55d000100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 512 kB
Anonymous:           512 kB
7f2000000000-7f2000100000 rw-p 00000000 00:00 0\x20
Rss:                  64 kB
Anonymous:            64 kB
"""


def test_unmodified_pages_of_files_are_not_anonymous_memory() -> None:
    found = resident_memory(frozenset({"/data/my index/lengths.bin"}), SMAPS)
    assert found.anonymous == 1024 * (100 + 512 + 64)
    assert found.files == 1024 * (4000 + 924)
    assert found.index == 1024 * 4000
    assert resident_memory(frozenset(), SMAPS).index == 0


def test_a_mapped_file_counts_only_after_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lengths.bin"
    path.write_bytes(bytes(64 * mmap.PAGESIZE))
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    before = resident_memory(frozenset({str(path)}))
    assert mapped.sum() == 0
    after = resident_memory(frozenset({str(path)}))
    assert after.index - before.index >= 48 * mmap.PAGESIZE  # the kernel maps some pages around the first


def test_bytes_that_are_read_are_counted(tmp_path: Path) -> None:
    assert bytes_read("rchar: 700\nwchar: 1\nread_bytes: 4096\nwrite_bytes: 0\n") == (4096, 700)
    (tmp_path / "file").write_bytes(bytes(100_000))
    before = bytes_read()[1]
    (tmp_path / "file").read_bytes()
    assert bytes_read()[1] - before >= 100_000


def test_seconds_since_start_include_imports() -> None:
    assert seconds_since_start() > 0.05
