"""Downloads from a local server that breaks connections, changes files and answers wrongly."""

import errno
import hashlib
import json
import os
import random
import ssl
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from threading import Event, Thread

import pytest

from podium.core import download as module
from podium.core.download import Download, HttpClient, RemoteFile, download_all, join_url, require_url, url_problem
from podium.core.errors import Interrupted, UsageError, WorkError
from tests.file_server import Fault, FileServer, serve

CONTENT = random.Random(1).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
OTHER = bytes(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as served:
        served.files["/a.bin"] = CONTENT
        yield served


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def client(lines: list[str]) -> HttpClient:
    return HttpClient(timeout=5, retries=3, insecure=True, report=lines.append, first_delay=0.01)


@pytest.fixture
def wanted(tmp_path: Path, server: FileServer, client: HttpClient) -> Download:
    remote = client.describe(f"{server.url}/a.bin")
    return Download(remote, MD5, tmp_path / "a.bin", tmp_path / "x.partial")


def leave_partial(wanted: Download, content: bytes) -> None:
    wanted.partial.write_bytes(content)
    wanted.write_state()


def assert_downloaded(wanted: Download) -> None:
    assert wanted.target.read_bytes() == CONTENT
    assert sorted(path.name for path in wanted.target.parent.iterdir()) == ["a.bin"]


def test_file_is_downloaded_and_counted(client: HttpClient, wanted: Download) -> None:
    counted: list[int] = []
    client.download(wanted, counted.append)
    assert_downloaded(wanted)
    assert sum(counted) == len(CONTENT)
    assert wanted.remote == RemoteFile(wanted.remote.url, len(CONTENT), f'"{MD5}"')


def test_empty_file(client: HttpClient, server: FileServer, tmp_path: Path) -> None:
    server.files["/empty"] = b""
    remote = client.describe(f"{server.url}/empty")
    client.download(Download(remote, hashlib.md5(b"").hexdigest(), tmp_path / "e", tmp_path / "x.partial"))
    assert (tmp_path / "e").read_bytes() == b"" and len(list(tmp_path.iterdir())) == 1


def test_broken_connections_are_resumed_where_they_broke(
    client: HttpClient, server: FileServer, wanted: Download, lines: list[str]
) -> None:
    server.faults["/a.bin"] = [Fault(cut=100_000), Fault(cut=50_000), Fault(cut=0)]
    counted: list[int] = []
    client.download(wanted, counted.append)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-"]
    assert sum(counted) == len(CONTENT) and len(lines) == 3
    assert "the connection ended after 100,000 of 300,000 bytes; retry 1 of 3 in 0 s" in lines[0]


def test_failures_count_until_there_is_progress(
    client: HttpClient, server: FileServer, wanted: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.always["/a.bin"] = Fault(cut=60_000)
    with pytest.raises(WorkError, match="after 240,000 of 300,000 bytes, after 4 attempts; check the connection"):
        client.download(wanted)
    assert wanted.partial.stat().st_size == 240_000 == wanted.resumable_bytes()
    wanted.partial.unlink()
    monkeypatch.setattr(module, "PROGRESS_BYTES", 60_000)
    client.download(wanted)
    assert_downloaded(wanted)


def test_unfinished_file_of_an_earlier_process_is_resumed(
    client: HttpClient, server: FileServer, wanted: Download
) -> None:
    leave_partial(wanted, CONTENT[:123_456])
    counted: list[int] = []
    client.download(wanted, counted.append)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == ["bytes=123456-"] and sum(counted) == len(CONTENT)


def test_complete_unfinished_file_is_verified_without_a_request(
    client: HttpClient, server: FileServer, wanted: Download
) -> None:
    leave_partial(wanted, CONTENT)
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == []


@pytest.mark.parametrize("damage", ["etag", "size", "md5", "url", "longer", "no_state", "not_json", "link"])
def test_unfinished_file_of_another_file_is_discarded(
    client: HttpClient, server: FileServer, wanted: Download, damage: str, tmp_path: Path
) -> None:
    leave_partial(wanted, CONTENT[:1000] if damage != "longer" else CONTENT + b"x")
    if damage in ("etag", "size", "md5", "url"):
        wanted.state.write_text(json.dumps(json.loads(wanted.state.read_text()) | {damage: "other"}))
    elif damage == "no_state":
        wanted.state.unlink()
    elif damage == "not_json":
        wanted.state.write_text("[" * 10_000)
    elif damage == "link":
        secret = tmp_path.parent / "secret"
        secret.write_bytes(b"unchanged")
        wanted.partial.unlink()
        wanted.partial.symlink_to(secret)
        with pytest.raises(WorkError, match=r"x\.partial: cannot be written"):
            client.download(wanted)
        assert secret.read_bytes() == b"unchanged"
        return
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None]


def test_file_that_changes_between_two_attempts_is_begun_again(
    client: HttpClient, server: FileServer, wanted: Download, lines: list[str]
) -> None:
    """If-Range: the server sends the changed file whole instead of a range that does not belong to the rest."""
    server.faults["/a.bin"] = [Fault(body=OTHER, cut=100_000)]
    wanted = Download(RemoteFile(wanted.remote.url, 300_000, f'"{hashlib.md5(OTHER).hexdigest()}"'), *parts(wanted))
    client.download(wanted)
    assert_downloaded(wanted)
    assert any("the server sends the whole file again" in line for line in lines)


def parts(wanted: Download) -> tuple[str, Path, Path]:
    return wanted.md5, wanted.target, wanted.partial


def test_file_that_changes_its_size_is_an_error(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.files["/a.bin"] = CONTENT + b"more"
    with pytest.raises(WorkError, match="has 300,004 bytes, and had 300,000 when the download was planned"):
        client.download(wanted)
    assert not wanted.target.exists()


def test_server_without_ranges(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.faults["/a.bin"] = [Fault(cut=100_000), Fault(ignore_range=True)]
    counted: list[int] = []
    client.download(wanted, counted.append)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None, "bytes=100000-"]
    assert sum(counted) == len(CONTENT)


@pytest.mark.parametrize(
    "stated", ["bytes 0-299999/300000", "bytes 100000-299999/300001", "bytes 100000-299999/*", "nonsense", ""]
)
def test_wrong_content_range_is_not_appended(
    client: HttpClient, server: FileServer, wanted: Download, stated: str, lines: list[str]
) -> None:
    server.faults["/a.bin"] = [Fault(cut=100_000), Fault(headers={"Content-Range": stated})]
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None, "bytes=100000-", None]
    assert "not 'bytes 100000-299999/300000'" in lines[1]


def test_range_that_the_server_does_not_have(client: HttpClient, server: FileServer, wanted: Download) -> None:
    leave_partial(wanted, CONTENT[:1000])
    server.faults["/a.bin"] = [Fault(status=416)]
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == ["bytes=1000-", None]


def test_answer_206_or_204_to_a_request_of_the_whole_file(
    client: HttpClient, server: FileServer, wanted: Download
) -> None:
    server.faults["/a.bin"] = [Fault(status=206), Fault(status=204)]
    client.download(wanted)
    assert_downloaded(wanted)


def test_wrong_sum_once_is_downloaded_again(
    client: HttpClient, server: FileServer, wanted: Download, lines: list[str]
) -> None:
    server.faults["/a.bin"] = [Fault(body=OTHER)]
    client.download(wanted)
    assert_downloaded(wanted)
    assert f"its MD5 is {hashlib.md5(OTHER).hexdigest()} and not {MD5}; it was removed" in lines[0]


def test_wrong_sum_twice_is_an_error_with_both_sums(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.always["/a.bin"] = Fault(body=OTHER)
    counted: list[int] = []
    with pytest.raises(WorkError) as caught:
        client.download(wanted, counted.append)
    message = str(caught.value)
    assert message.startswith(f"{wanted.target}: downloaded twice from {server.url}/a.bin")
    assert hashlib.md5(OTHER).hexdigest() in message and MD5 in message
    assert len(server.gets("/a.bin")) == 2 and sum(counted) == 0
    assert list(wanted.target.parent.iterdir()) == []


def test_existing_file_is_replaced_only_on_request(client: HttpClient, wanted: Download) -> None:
    wanted.target.write_bytes(b"mine")
    with pytest.raises(WorkError, match="another process created it during the download"):
        client.download(wanted)
    assert wanted.target.read_bytes() == b"mine"
    client.download(Download(wanted.remote, *parts(wanted), overwrite=True))
    assert_downloaded(wanted)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_statuses_that_pass_are_retried(
    client: HttpClient, server: FileServer, wanted: Download, status: int, lines: list[str]
) -> None:
    server.faults["/a.bin"] = [Fault(status=status), Fault(status=status)]
    client.download(wanted)
    assert_downloaded(wanted)
    assert [f"HTTP {status}" in line for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "refuses access"), (403, "refuses access"), (404, "does not have this file"), (410, "does not have")],
)
def test_statuses_that_stay_are_not_retried(
    client: HttpClient, server: FileServer, wanted: Download, status: int, message: str
) -> None:
    server.always["/a.bin"] = Fault(status=status)
    with pytest.raises(WorkError, match=rf"a\.bin: the server {message}.*HTTP {status}"):
        client.download(wanted)
    assert len(server.gets("/a.bin")) == 1


def test_retry_after_is_kept_and_bounded(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.faults["/a.bin"] = [Fault(status=429, headers={"Retry-After": "1"})]
    begin = time.monotonic()
    client.download(wanted)
    assert 1.0 <= time.monotonic() - begin < 4.0
    assert module._retry_after("999999999999999") == module.MAX_RETRY_AFTER
    assert module._retry_after(formatdate(time.time() + 100_000, usegmt=True)) == module.MAX_RETRY_AFTER
    assert module._retry_after(formatdate(time.time() - 100, usegmt=True)) == 0.0
    assert 20 < (module._retry_after(formatdate(time.time() + 30, usegmt=True)) or 0) <= 30
    assert [module._retry_after(text) for text in ("", "soon", "-1", "１")] == [None] * 4


def test_delays_are_doubled_to_a_limit(server: FileServer, wanted: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    client = HttpClient(timeout=5, retries=9, insecure=True)
    server.always["/a.bin"] = Fault(status=500)
    delays: list[float] = []
    monkeypatch.setattr(client.stopped, "wait", lambda seconds: delays.append(seconds) or False)
    with pytest.raises(WorkError, match="HTTP 500, after 10 attempts"):
        client.download(wanted)
    expected = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(0.75 * want <= delay <= 1.25 * want for delay, want in zip(delays, expected, strict=True))


def test_silent_server_is_a_broken_connection(server: FileServer, wanted: Download, lines: list[str]) -> None:
    client = HttpClient(timeout=0.2, retries=3, insecure=True, report=lines.append, first_delay=0.01)
    server.faults["/a.bin"] = [Fault(cut=100_000, stall=0.6)]
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None, "bytes=100000-"] and "no answer within the timeout" in lines[0]


def test_refused_connection_and_unknown_host(client: HttpClient, server: FileServer) -> None:
    client.retries = 1
    with pytest.raises(WorkError, match=r"connection failed \(Connection refused\), after 2 attempts"):
        client.read("http://127.0.0.1:9/x", 10)


def test_invalid_certificate_is_not_retried() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "certificate has expired"
    found = module._connection_error("https://x/y", error)
    assert isinstance(found, WorkError) and "certificate is not valid (certificate has expired)" in str(found)


def test_redirects_are_followed_up_to_a_limit(client: HttpClient, server: FileServer) -> None:
    server.files["/end"] = b"there"
    for number in range(module.MAX_REDIRECTS):
        server.always[f"/{number}"] = Fault(status=302, headers={"Location": f"/{number + 1}"})
    server.always[f"/{module.MAX_REDIRECTS}"] = Fault(status=307, headers={"Location": "/end"})
    assert client.read(f"{server.url}/1", 10) == b"there"
    with pytest.raises(WorkError, match="/0: more than 5 redirects"):
        client.read(f"{server.url}/0", 10)


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://x/y", "data:,x", "http://user:secret@x/y", "", "http://[", "http://x/\u00e4"],
)
def test_redirects_elsewhere_are_not_followed(client: HttpClient, server: FileServer, location: str) -> None:
    server.always["/r"] = Fault(status=302, headers={"Location": location})
    with pytest.raises(WorkError, match=r"/r: redirects to .* not followed"):
        client.read(f"{server.url}/r", 10)


def test_redirect_from_https_to_http_is_not_followed(client: HttpClient) -> None:
    with pytest.raises(WorkError, match="allowed is https://HOST/PATH"):
        client._redirected("https://x/a", "https://x/a", "http://x/a")
    assert client._redirected("http://x/a", "http://x/a", "https://y/b?c=d") == "https://y/b?c=d"


def test_login_page_of_restricted_storage(client: HttpClient, server: FileServer) -> None:
    login = "https://mlcommons.cloudflareaccess.com/cdn-cgi/access/login/x"
    server.always["/r"] = Fault(status=302, headers={"Location": login})
    with pytest.raises(WorkError, match="requires a login"):
        client.read(f"{server.url}/r", 10)


def test_small_files_are_bounded_and_complete(client: HttpClient, server: FileServer, lines: list[str]) -> None:
    server.files["/list"] = b"0123456789"
    assert client.read(f"{server.url}/list", 10) == b"0123456789"
    with pytest.raises(WorkError, match="has more than 9 bytes"):
        client.read(f"{server.url}/list", 9)
    server.faults["/list"] = [Fault(cut=4)]
    assert client.read(f"{server.url}/list", 10) == b"0123456789"
    assert "the connection ended after 4 of 10 bytes" in lines[0]
    server.faults["/list"] = [Fault(no_length=True, body=bytes(10_000_000))]
    with pytest.raises(WorkError, match="has more than 10 bytes"):
        client.read(f"{server.url}/list", 10)


@pytest.mark.parametrize("stated", ["-1", "1e3", "9" * 30, str(2**61), "abc", "１"])
def test_sizes_that_cannot_be_right(client: HttpClient, server: FileServer, stated: str) -> None:
    server.head_faults["/a.bin"] = [Fault(headers={"Content-Length": stated.encode().decode("latin-1")})]
    with pytest.raises(WorkError, match=r"states a size of .* which cannot be right"):
        client.describe(f"{server.url}/a.bin")


def test_size_must_be_stated_and_weak_etags_are_not_used(client: HttpClient, server: FileServer) -> None:
    server.head_faults["/a.bin"] = [
        Fault(no_length=True),
        Fault(headers={"ETag": 'W/"x"'}),
        Fault(headers={"ETag": "x"}),
    ]
    with pytest.raises(WorkError, match="does not state the size"):
        client.describe(f"{server.url}/a.bin")
    assert client.describe(f"{server.url}/a.bin").etag is None
    assert client.describe(f"{server.url}/a.bin").etag is None


def test_compressed_answer_is_refused(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.always["/a.bin"] = Fault(headers={"Content-Encoding": "gzip"})
    with pytest.raises(WorkError, match="Content-Encoding 'gzip', allowed is identity"):
        client.download(wanted)


def test_full_disk_stops_all_downloads(
    client: HttpClient, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = []
    for number in range(4):
        server.files[f"/{number}"] = CONTENT
        remote = client.describe(f"{server.url}/{number}")
        downloads.append(Download(remote, MD5, tmp_path / f"{number}", tmp_path / f"{number}.partial"))
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".partial":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    errors = download_all(client, downloads, 1)
    assert [str(error) for error in errors] == [
        f"{tmp_path}/0.partial: the disk is full (No space left on device); free some space on it"
    ]
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    assert download_all(client, downloads, 4) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_files_are_downloaded_in_parallel_and_one_failure_does_not_stop_the_others(
    client: HttpClient, server: FileServer, tmp_path: Path
) -> None:
    downloads = []
    for number in range(6):
        server.files[f"/{number}"] = CONTENT
        remote = client.describe(f"{server.url}/{number}")
        server.always[f"/{number}"] = Fault(stall=0.2)
        downloads.append(Download(remote, MD5, tmp_path / f"{number}", tmp_path / f"{number}.partial"))
    server.always["/2"] = Fault(status=403)
    counted: list[int] = []
    errors = download_all(client, downloads, 3, counted.append)
    assert len(errors) == 1 and "/2: the server refuses access" in str(errors[0])
    assert server.most_at_once == 3
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == "") == ["0", "1", "3", "4", "5"]
    assert sum(counted) == 5 * len(CONTENT)


def test_defect_in_a_thread_is_raised(client: HttpClient, wanted: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HttpClient, "download", fail)
    with pytest.raises(ZeroDivisionError):
        download_all(client, [wanted], 1)


def test_interruption_keeps_what_was_received(client: HttpClient, server: FileServer, wanted: Download) -> None:
    server.faults["/a.bin"] = [Fault(cut=100_000, stall=0.5)]

    def interrupt(_: int) -> None:
        if wanted.partial.exists() and wanted.partial.stat().st_size == 100_000:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        download_all(client, [wanted], 1, interrupt)
    assert client.stopped.is_set() and wanted.resumable_bytes() == 100_000
    with pytest.raises(Interrupted):
        client.read(wanted.remote.url, 10)
    client.stopped = Event()
    client.download(wanted)
    assert_downloaded(wanted)
    assert server.gets("/a.bin") == [None, "bytes=100000-"]


def test_waiting_for_a_retry_ends_with_an_interruption(client: HttpClient, server: FileServer) -> None:
    server.always["/a.bin"] = Fault(status=503, headers={"Retry-After": "100"})
    timer = Thread(target=lambda: (time.sleep(0.2), client.stopped.set()))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(Interrupted):
        client.read(f"{server.url}/a.bin", 10)
    timer.join()
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "https:/", "https://", "//x/y", "http://x/y", "https://u:p@x/y", "https://x/y?z", "https://x/y#z"),
        *(
            "https://x:99999/y",
            "https://x y/z",
            "https://x/\x1b",
            "https://x/ä",
            "https://[/",
            f"https://x/{'y' * 5000}",
        ),
    ],
)
def test_urls_that_cannot_be_used(url: str) -> None:
    assert url_problem(url)
    with pytest.raises(UsageError, match=r"--url: found .* cannot be used"):
        require_url(url, "--url")


def test_urls_and_paths_are_joined() -> None:
    assert require_url("https://x/y//", "--url") == "https://x/y"
    assert require_url("http://x:80/y", "--url", insecure=True) == "http://x:80/y"
    assert join_url("https://x/y", "a b/c#d%?ä.txt") == "https://x/y/a%20b/c%23d%25%3F%C3%A4.txt"
