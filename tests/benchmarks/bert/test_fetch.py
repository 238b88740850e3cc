"""Lists of MLPerf's inputs as MLCommons' storage has them, and what is fetched of them."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.bert import fetch as module
from benchmarks.bert.fetch import (
    CHECKPOINT_PATH,
    DATA_SETS,
    PARTIAL_FOLDER,
    fetch,
    make_plan,
    next_steps,
    parse_list,
    parse_uri,
    path_problem,
    unknown_files,
)
from podium.core.download import HttpClient
from podium.core.errors import WorkError
from tests.file_server import Fault, FileServer, serve

INPUTS, PREPROCESSED = DATA_SETS
A, B = "a" * 32, "b" * 32


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def publish(server: FileServer, title: str, files: dict[str, bytes]) -> None:
    """Put a data set on the server as MLCommons does."""
    base = f"/data/{title}"
    server.files[f"/metadata/{title}.uri"] = f"{server.url}{base}\n".encode()
    server.files[f"/metadata/{title}.md5"] = "".join(
        f"{md5(content)}  {path}\n" for path, content in files.items()
    ).encode()
    for path, content in files.items():
        server.files[f"{base}/{path}"] = content


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as served:
        publish(
            served,
            INPUTS.title,
            {
                "License.txt": b"terms",
                "vocab.txt": b"[PAD]\n",
                CHECKPOINT_PATH: b"weights",
                "tf1_ckpt/model.ckpt-28252.index": b"index",
                "tf1_ckpt/License.txt": b"terms of the checkpoint",
                "tf2_ckpt/model.ckpt-28252.index": b"other",
                "enwiki-20200101-pages-articles-multistream.xml.bz2": b"dump",
            },
        )
        publish(served, PREPROCESSED.title, {"results_text.tar.gz": b"tar", "results_text.zip": b"zip"})
        yield served


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(timeout=5, retries=1, insecure=True, first_delay=0.01)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def plan_of(client: HttpClient, server: FileServer, out: Path, **options: bool) -> module.FetchPlan:
    return make_plan(client, DATA_SETS, f"{server.url}/metadata", out, **options)


def states(plan: module.FetchPlan) -> dict[str, str]:
    return {f"{one.data_set.name}/{file.path}": file.state for one in plan.listings for file in one.files}


def test_what_training_needs_is_fetched(client: HttpClient, server: FileServer, out: Path) -> None:
    plan = plan_of(client, server, out)
    assert not out.exists() and set(states(plan).values()) == {"missing", "left out"}
    assert plan.missing_bytes == sum(len(text) for text in ("terms", "[PAD]\n", "weights", "index", "tar")) + 23
    received: list[int] = []
    fetch(client, plan, on_bytes=received.append)
    assert sum(received) == 49 and plan.missing == []
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert found == [
        "inputs/License.txt",
        "inputs/tf1_ckpt/License.txt",
        f"inputs/{CHECKPOINT_PATH}",
        "inputs/tf1_ckpt/model.ckpt-28252.index",
        "inputs/vocab.txt",
        "preprocessed/results_text.tar.gz",
    ]
    assert not (out / PARTIAL_FOLDER).exists()
    left_out = [name for name, state in states(plan).items() if state == "left out"]
    assert [name.partition("-")[0] for name in left_out] == [
        "inputs/tf2_ckpt/model.ckpt",
        "inputs/enwiki",
        "preprocessed/results_text.zip",
    ]


def test_all_files_are_fetched_and_complete_ones_are_kept(client: HttpClient, server: FileServer, out: Path) -> None:
    fetch(client, plan_of(client, server, out))
    server.requests.clear()
    plan = plan_of(client, server, out, all_files=True)
    fetch(client, plan)
    assert list(states(plan).values()).count("present") == 6 and list(states(plan).values()).count("fetched") == 3
    assert len([1 for method, path, _ in server.requests if method == "GET" and path.startswith("/data/")]) == 3


def test_existing_files_are_not_replaced_unless_asked(client: HttpClient, server: FileServer, out: Path) -> None:
    (out / "inputs").mkdir(parents=True)
    mine = out / "inputs" / "vocab.txt"
    for content in (b"mine", b"[PAX]\n"):  # of another size, of the same size
        mine.write_bytes(content)
        with pytest.raises(WorkError, match=r"vocab\.txt: already exists and is not the listed file.*--overwrite"):
            plan_of(client, server, out)
        assert mine.read_bytes() == content
    fetch(client, plan_of(client, server, out, overwrite=True), overwrite=True)
    assert mine.read_bytes() == b"[PAD]\n"


def test_links_are_not_followed(client: HttpClient, server: FileServer, out: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (out / "inputs").mkdir(parents=True)
    (out / "inputs" / "tf1_ckpt").symlink_to(elsewhere)
    with pytest.raises(WorkError, match=r"inputs/tf1_ckpt: is a symbolic link, and fetched files must stay in"):
        plan_of(client, server, out)
    (out / "inputs" / "tf1_ckpt").unlink()
    (out / PARTIAL_FOLDER).symlink_to(elsewhere)
    with pytest.raises(WorkError, match=r"\.podium-fetch: is a symbolic link"):
        fetch(client, plan_of(client, server, out))
    (out / PARTIAL_FOLDER).unlink()
    # A link at the place of a file: right content is kept, and replacing it does not write through it.
    target = elsewhere / "vocab.txt"
    target.write_bytes(b"[PAD]\n")
    (out / "inputs" / "vocab.txt").symlink_to(target)
    assert states(plan_of(client, server, out))["inputs/vocab.txt"] == "present"
    target.write_bytes(b"mine")
    fetch(client, plan_of(client, server, out, overwrite=True), overwrite=True)
    assert target.read_bytes() == b"mine" and (out / "inputs" / "vocab.txt").read_bytes() == b"[PAD]\n"
    assert [path.name for path in elsewhere.iterdir()] == ["vocab.txt"]


def test_folder_at_the_place_of_a_file(client: HttpClient, server: FileServer, out: Path) -> None:
    (out / "inputs" / "vocab.txt").mkdir(parents=True)
    with pytest.raises(WorkError, match=r"vocab\.txt: is a folder"):
        plan_of(client, server, out, overwrite=True)


def test_disk_space_is_checked_before_the_first_byte(
    client: HttpClient, server: FileServer, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(client, server, out)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=module.SPARE_BYTES + 48))
    server.requests.clear()
    with pytest.raises(WorkError, match=r"the disk is full: the files need 0\.07 GB more, and it has 0\.07 GB free"):
        fetch(client, plan)
    assert server.requests == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=module.SPARE_BYTES + 49))
    fetch(client, plan)


def test_file_as_large_as_no_disk(client: HttpClient, server: FileServer, out: Path) -> None:
    path = f"/data/{INPUTS.title}/vocab.txt"
    server.head_faults[path] = [Fault(headers={"Content-Length": str(10**18)})]
    with pytest.raises(WorkError, match=r"the disk is full: the files need 1,000,000,000\.07 GB more"):
        fetch(client, plan_of(client, server, out))


def test_failures_are_listed_and_resumed(client: HttpClient, server: FileServer, out: Path) -> None:
    vocabulary, archive = f"/data/{INPUTS.title}/vocab.txt", f"/data/{PREPROCESSED.title}/results_text.tar.gz"
    server.faults[vocabulary], server.faults[archive] = [Fault(cut=3), Fault(cut=1)], [Fault(status=403)]
    plan = plan_of(client, server, out)
    with pytest.raises(WorkError) as caught:
        fetch(client, plan)
    lines = str(caught.value).splitlines()
    assert sorted(line.partition(": ")[0] for line in lines[:2]) == [server.url + vocabulary, server.url + archive]
    assert lines[2:] == ["2 file(s) missing; run the same command again to resume"]
    plan = plan_of(client, server, out)
    fetch(client, plan)
    assert plan.missing == [] and not (out / PARTIAL_FOLDER).exists()
    assert server.gets(vocabulary) == [None, "bytes=3-", "bytes=4-"]


def test_commands_that_follow_are_valid_shell(client: HttpClient, server: FileServer, tmp_path: Path) -> None:
    out = tmp_path / "my data"
    plan = plan_of(client, server, out)
    assert next_steps(plan) == []
    fetch(client, plan)
    steps = next_steps(plan)
    assert [step.split()[0:3] for step in steps] == [
        ["tar", "-xzf", f"'{out}/preprocessed/results_text.tar.gz'".split()[0]],
        ["podium", "data", "prepare"],
        ["podium", "data", "prepare"],
        ["ln", "-s", "model.ckpt-28252-003.data-00000-of-00001"],
        ["podium", "data", "checkpoint"],
    ]
    subprocess.run(["bash", "-c", steps[3]], check=True)
    # What `podium data checkpoint` opens: every file begins with the same prefix.
    assert (out / "inputs/tf1_ckpt/model.ckpt-28252.data-00000-of-00001").read_bytes() == b"weights"
    assert len(next_steps(plan)) == 4


def test_other_files_than_those_of_mlperf_are_named(client: HttpClient, server: FileServer, out: Path) -> None:
    notes = unknown_files(plan_of(client, server, out))
    assert [note.partition(": ")[0] for note in notes] == [f"{out}/inputs/vocab.txt", f"{out}/inputs/{CHECKPOINT_PATH}"]
    assert "64800d5d8528ce344256daf115d4965e" in notes[0] and "50797acd537880bfb5a7ade80d976129" in notes[1]


def test_list_in_the_format_of_md5sum() -> None:
    content = f"{A}  vocab.txt\n{B.upper()} *folder/a b+c.txt\r\n\n".encode()
    assert parse_list(content, "x.md5") == {"vocab.txt": A, "folder/a b+c.txt": B}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lists no file"),
        ("vocab.txt\n", "line 1 is 'vocab.txt'; expected an MD5, two spaces and a path"),
        (f"{A}\n", "line 1 is "),
        (f"{A[:-1]}  x\n", "line 1 is "),
        (f"\\{A}  a\\\\b\n", "line 1 is "),
        (f"{' ' * 32}  x\n", "line 1 is "),
        (f"{A}  x\n<html>\n", "line 2 is '<html>'"),
        (f"{A}  x\n{B}  x\n", "line 2: 'x' is 'x' a second time"),
        (f"{A}  x\n{B}  X\n", "line 2: 'X' is 'x' a second time"),
        (f"{A}  x/y\n{B}  X\n", "line 2: 'X' is a folder too"),
        (f"{A}  x\n{B}  x/y\n", "'x/y' is below 'x', which is a file"),
        (f"{A}  ../x\n", "'\\.\\./x': it has the part '\\.\\.'"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_lists_that_are_refused(content: str, message: str) -> None:
    with pytest.raises(WorkError, match=rf"^x\.md5: .*{message}"):
        parse_list(content.encode("utf-8", "surrogateescape"), "x.md5")


def test_lists_are_bounded() -> None:
    lines = "".join(f"{A}  {number}\n" for number in range(module.MAX_FILES + 1)).encode()
    with pytest.raises(WorkError, match=r"lists more than 20,000 files"):
        parse_list(lines, "x.md5")
    assert len(parse_list(lines[: lines.rindex(A.encode())], "x.md5")) == module.MAX_FILES


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "a/../../x", "a/./x", "a//x", "a/", ".", "..", "a\\..\\x", "C:x", "C:\\x", "a/NUL"),
        *("con.txt", "com1", "x.", "x ", " x", "a /x", "x*", "x?", "<x>", '"', "a|b"),
        *("x\x00", "x\x1b[2J", "x\u202e", "x\u2028y", "x\x7f"),
        *("x" * 201, "ä" * 101, "/".join("a" * 17), "/".join(["x" * 199] * 6)),
    ],
)
def test_paths_that_are_refused(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize(
    "path", ["a", ".hidden", "a..b", "...x", "ä/ö.txt", "a b", "console.txt", "x" * 200, "a,b;c$(d)'"]
)
def test_paths_that_are_allowed(path: str) -> None:
    assert path_problem(path) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"https:/", b"https", b"http://x/y", b"file:///x", b"https://x/y\nhttps://x/z", b"\xff\xfe", b"<html>"],
)
def test_uri_files_that_are_refused(content: bytes) -> None:
    with pytest.raises(WorkError, match=r"^x\.uri: found .*The file names the base URL of the data"):
        parse_uri(content, "x.uri")


def test_uri_file_names_the_base_url() -> None:
    assert parse_uri(b"https://x/y/\n", "x.uri") == "https://x/y"
    assert parse_uri(b"http://x/y", "x.uri", insecure=True) == "http://x/y"


# The lists of mlcommons/r2-infra, training/metadata, of 2026-08-06.
PUBLISHED_INPUTS = b"""\
004867db820d335c26d47fe90bc96a26  enwiki-20200101-pages-articles-multistream.xml.bz2.md5sum
00d47075e0f583fb7c0791fac1c57cb3  enwiki-20200101-pages-articles-multistream.xml.bz2
4550b87b0ea99302e44c84f6bed9aa97  License.txt
50797acd537880bfb5a7ade80d976129  tf1_ckpt/model.ckpt-28252-003.data-00000-of-00001
508515b9c73b0fff5da4484b1287ab97  tf1_ckpt/License.txt
508515b9c73b0fff5da4484b1287ab97  tf2_ckpt/License.txt
64800d5d8528ce344256daf115d4965e  vocab.txt
77d642b721cf590c740c762c7f476e04  tf2_ckpt/model.ckpt-28252.data-00000-of-00001
7f59165e21b7d566db610ff6756c926b  bert_config.json
dbd16c731e8a8113bc08eeed0326b8e7  tf1_ckpt/model.ckpt-28252.meta
f97de3ae180eb8d479555c939d50d048  tf1_ckpt/model.ckpt-28252.index
fc34dd7a54afc07f2d8e9d64471dc672  tf2_ckpt/model.ckpt-28252.index
"""
PUBLISHED_TEXT = b"""\
07d7b32b485d563d2c052ef7e0b93819  License.txt
6f71334b0458c6c85142f5b20962fcc6  results_text.tar.gz
7d3a0619cb8bf7e829af99fa5c29daa8  bert_reference_results_text_md5.txt
ed72bada4134bfa2e91036746e45e551  results_text.zip
"""


def test_published_lists_name_what_training_needs(client: HttpClient, server: FileServer, out: Path) -> None:
    for data_set, content in ((INPUTS, PUBLISHED_INPUTS), (PREPROCESSED, PUBLISHED_TEXT)):
        server.files[f"/metadata/{data_set.title}.md5"] = content
        for path in parse_list(content, "x.md5"):
            server.files[f"/data/{data_set.title}/{path}"] = b"any"
    plan = plan_of(client, server, out)
    assert unknown_files(plan) == []  # the sums of the vocabulary and the checkpoint are MLPerf's
    assert [name for name, state in states(plan).items() if state == "missing"] == [
        "inputs/License.txt",
        f"inputs/{CHECKPOINT_PATH}",
        "inputs/tf1_ckpt/License.txt",
        "inputs/vocab.txt",
        "inputs/bert_config.json",
        "inputs/tf1_ckpt/model.ckpt-28252.meta",
        "inputs/tf1_ckpt/model.ckpt-28252.index",
        "preprocessed/License.txt",
        "preprocessed/results_text.tar.gz",
        "preprocessed/bert_reference_results_text_md5.txt",
    ]
