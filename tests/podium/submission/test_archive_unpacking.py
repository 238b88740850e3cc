"""Unpacking of archives: nothing is written outside of the folder, and size and memory are bounded."""

import io
import lzma
import stat
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from podium.submission.archive import Limits, Tally, archive_stem, is_archive, unpack

KINDS = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz"]
FILES = {"ORG/results/S/bert/result_0.txt": b"log\n" * 50_000, "ORG/systems/S.json": b"{}"}


def write(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        modes = {".tar": "w", ".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}
        with tarfile.open(path, modes[path.suffix]) as tar:  # type: ignore[call-overload]
            for name, content in files.items():
                add(tar, name, content)
    return path


def add(tar: Any, name: str, content: bytes = b"", **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content))


def unpacked(path: Path, **limits: int) -> tuple[dict[str, bytes], Tally]:
    tally, target = Tally(Limits(**limits)), path.parent / "inside" / "target"
    target.parent.mkdir()
    unpack(path, target, tally)
    everything = {p.relative_to(target).as_posix(): p for p in target.rglob("*") if not p.is_dir() or p.is_symlink()}
    assert not any(p.is_symlink() for p in everything.values())
    assert [p.name for p in target.parent.iterdir()] == ["target"]
    return {name: p.read_bytes() for name, p in everything.items()}, tally


def rules(tally: Tally) -> list[str]:
    return [finding.rule for finding in tally.findings]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_is_unpacked_unchanged(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"mine{kind}", FILES)
    assert is_archive(path) and archive_stem(path) == "mine"
    found, tally = unpacked(path)
    assert found == FILES
    assert tally.findings == [] and tally.whole


def test_other_suffixes_are_not_archives() -> None:
    assert not any(is_archive(Path(name)) for name in ("result_0.txt", "zip", "a.gz", "a.xz"))
    assert archive_stem(Path("..zip")) == "package"


@pytest.mark.parametrize("kind", [".zip", ".tar"])
@pytest.mark.parametrize("name", ["../out", "/tmp/podium_out", "a/../../out", "a/..", "..\\out", "a\\..\\..\\out"])
def test_members_outside_the_folder_are_not_written(tmp_path: Path, kind: str, name: str) -> None:
    found, tally = unpacked(write(tmp_path / f"slip{kind}", {name: b"x", "good": b"y"}))
    assert found == {"good": b"y"}
    assert rules(tally) == ["member_outside"] and tally.whole
    assert not Path("/tmp/podium_out").exists()


def test_links_are_refused_and_nothing_is_written_through_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        add(tar, "d", type=tarfile.SYMTYPE, linkname=str(outside))
        add(tar, "d/evil", b"x")
        add(tar, "hard", type=tarfile.LNKTYPE, linkname="../../links.tar")
        add(tar, "device", type=tarfile.CHRTYPE)
        add(tar, "pipe", type=tarfile.FIFOTYPE)
    found, tally = unpacked(tmp_path / "links.tar")
    assert found == {"d/evil": b"x"}  # in a folder of the copy
    assert rules(tally) == ["link_outside", "link_outside", "special_file", "special_file"]
    assert list(outside.iterdir()) == []


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        info = zipfile.ZipInfo("d")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    found, tally = unpacked(tmp_path / "link.zip")
    assert found == {} and rules(tally) == ["link_outside"]
    assert "/etc/passwd" in tally.findings[0].message


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_a_duplicate_member_is_an_error(tmp_path: Path, names: tuple[str, str]) -> None:
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for number, name in enumerate(names):
            add(tar, name, str(number).encode())
    found, tally = unpacked(tmp_path / "twice.tar")
    assert found == {names[0]: b"0"} and rules(tally) == ["member_twice"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_above_the_size_limit_is_not_unpacked(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"bomb{kind}", {"a": bytes(3 << 20), "b": bytes(3 << 20)})
    found, tally = unpacked(path, file_bytes=2 << 20)
    assert found == {} and rules(tally) == ["large_file", "large_file"]


@pytest.mark.parametrize("kind", [".zip", ".tar.xz"])
def test_unpacking_stops_at_the_limit_of_total_bytes(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"bomb{kind}", {str(n): bytes(1 << 20) for n in range(5)})
    _, tally = unpacked(path, total_bytes=3 << 20)
    assert rules(tally) == ["too_many_bytes"] and not tally.whole


def test_unpacking_stops_at_the_limit_of_files(tmp_path: Path) -> None:
    path = write(tmp_path / "many.zip", {str(n): b"" for n in range(50)})
    found, tally = unpacked(path, files=20)
    assert len(found) == 20 and rules(tally) == ["too_many_files"] and not tally.whole


def test_an_oversized_pax_header_is_not_read_into_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 900 << 20
    path = tmp_path / "header.tar.xz"
    with lzma.open(path, "wb", preset=0) as file:
        file.write(info.tobuf())
        for _ in range(128):
            file.write(bytes(1 << 20))
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from podium.submission.archive import *\n"
        "resource.setrlimit(resource.RLIMIT_AS, (128 << 20, 128 << 20))\n"
        "tally = Tally(Limits())\nunpack(Path(sys.argv[1]), Path(sys.argv[2]), tally)\n"
        "print(tally.whole, *[f.rule + ': ' + f.message for f in tally.findings])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("False bad_archive: "), done.stderr
    assert "headers of more than 16 KiB" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_archive_is_an_error(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"broken{kind}", FILES)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, tally = unpacked(path)
    assert rules(tally) == ["bad_archive"] and not tally.whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_an_archive_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"not{kind}"
    path.write_bytes(b"\x1b[31mnothing of an archive" * 100)
    _, tally = unpacked(path)
    assert rules(tally) == ["bad_archive"]
    assert "\x1b" not in tally.findings[0].message


def test_a_zip_with_a_wrong_size_is_truncated_and_an_encrypted_one_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "lies.zip", {"a": b"x" * 1000})
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
    path.write_bytes(content)
    found, _ = unpacked(path)
    assert len(found.get("a", b"")) <= 10
    content[entry + 8] |= 1
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.zip").write_bytes(content)
    _, tally = unpacked(other / "secret.zip")
    assert rules(tally) == ["bad_archive"]


def header(kind: bytes, content: bytes = b"", name: str = "x") -> bytes:
    """Return a tar header with its content."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(-len(content) % 512 + len(content), b"\0")


def pax(*pairs: tuple[str, str]) -> bytes:
    """Return the content of a pax header."""
    lines = (f" {key}={value}\n".encode() for key, value in pairs)
    return b"".join(str(next(n for n in range(9999) if n == len(line) + len(str(n)))).encode() + line for line in lines)


SPARSE_1_0 = pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "x"))
GREAT = pax(*((f"k{number}", "") for number in range(5_000)))
FEW = pax(*((f"k{number}", "") for number in range(100)))
BOMBS = {
    "sparse": header(tarfile.GNUTYPE_SPARSE),
    "sparse by pax": header(tarfile.XHDTYPE, SPARSE_1_0) + header(tarfile.REGTYPE, b"999999999\n" + b"0\n" * 1000),
    "sparse by old pax": header(tarfile.XHDTYPE, pax(("GNU.sparse.map", "0,1"))) + header(tarfile.REGTYPE, b"x"),
    "great header": header(tarfile.XHDTYPE, GREAT) + header(tarfile.REGTYPE),
    "great header of all": header(tarfile.XGLTYPE, GREAT) + header(tarfile.REGTYPE),
    "many headers of all": (header(tarfile.XGLTYPE, FEW) + header(tarfile.REGTYPE, name="a")) * 50,
    "chained headers": header(tarfile.XHDTYPE, FEW) * 300 + header(tarfile.REGTYPE),
    "long name": header(tarfile.GNUTYPE_LONGNAME, b"a" * 100_000) + header(tarfile.REGTYPE),
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS.keys())
def test_excessive_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bomb.tar"
    path.write_bytes(content + bytes(1024))
    _, tally = unpacked(path)
    assert rules(tally)[-1] == "bad_archive"
    assert any(text in tally.findings[-1].message for text in ("a sparse file", "it has headers of more than 16 KiB"))


def test_members_and_their_headers_are_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.tar"
    common = header(tarfile.XGLTYPE, pax(*((f"k{number}", "") for number in range(1_000))))
    path.write_bytes(
        common + b"".join(header(tarfile.DIRTYPE, name=f"d{number}") for number in range(1_000)) + bytes(1024)
    )
    tracemalloc.start()
    try:
        _, tally = unpacked(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tally.findings == []
    assert peak < 8 << 20  # 40 MB if each were kept


def test_headers_of_git_archive_and_gnu_tar_are_read(tmp_path: Path) -> None:
    path = tmp_path / "usual.tar"
    name = f"ORG/{'a' * 150}"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "f" * 40}) as tar:
        add(tar, name, b"x")
    assert unpacked(path)[0] == {name: b"x"}
    (tmp_path / "gnu").mkdir()
    with tarfile.open(tmp_path / "gnu" / "usual.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, name, b"x")
    assert unpacked(tmp_path / "gnu" / "usual.tar")[0] == {name: b"x"}
