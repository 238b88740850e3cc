"""`podium data fetch` from the command line, against a local server in MLCommons' format."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bert.fetch import CHECKPOINT_PATH, DATA_SETS, PARTIAL_FOLDER
from podium.core.download import HttpClient
from podium.core.errors import WorkError
from podium.core.paths import CODE_FOLDER
from tests.benchmarks.bert.test_fetch import publish
from tests.file_server import Fault, FileServer, serve
from tests.podium.conftest import run_podium

INPUTS, PREPROCESSED = DATA_SETS
FILES = {"License.txt": b"terms", "vocab.txt": b"[PAD]\n" * 1000, CHECKPOINT_PATH: b"weights", "tf2_ckpt/x": b"other"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as served:
        publish(served, INPUTS.title, FILES)
        publish(served, PREPROCESSED.title, {"License.txt": b"terms", "results_text.tar.gz": b"archive"})
        yield served


def options(server: FileServer) -> tuple[str, ...]:
    return ("--url", f"{server.url}/metadata", "--out", "out")


def test_licence_must_be_accepted(server: FileServer, tmp_path: Path) -> None:
    done = run_podium("data", "fetch", *options(server), cwd=tmp_path)
    assert done.returncode == 2
    assert "inputs/vocab.txt" in done.stdout and "6,000 bytes" in done.stdout and "left out" in done.stdout
    assert "Creative Commons Attribution-ShareAlike 3.0 Unported" in done.stderr
    assert f"{server.url}/data/{INPUTS.title}/License.txt" in done.stderr
    assert "give --accept-licence to accept it and to download 6,024 bytes" in done.stderr
    assert not (tmp_path / "out").exists() and not [
        1 for method, path, _ in server.requests if "GET /data" in f"{method} {path}"
    ]


@pytest.mark.parametrize("spelling", ["--accept-licence", "--accept-license"])
def test_files_are_fetched_and_the_next_commands_printed(server: FileServer, tmp_path: Path, spelling: str) -> None:
    done = run_podium("data", "fetch", *options(server), spelling, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/inputs/vocab.txt").read_bytes() == FILES["vocab.txt"]
    assert "Files to download to out: 5, 6,024 bytes" in done.stderr
    assert done.stdout.splitlines()[-6:] == [
        "Next:",
        "  tar -xzf out/preprocessed/results_text.tar.gz -C out/preprocessed",
        "  podium data prepare --text out/preprocessed/results4/part-* --vocab out/inputs/vocab.txt "
        "--out data/wikipedia",
        "  podium data prepare --text out/preprocessed/results4/eval.txt --evaluation 10000 "
        "--vocab out/inputs/vocab.txt --out data/evaluation",
        "  ln -s model.ckpt-28252-003.data-00000-of-00001 out/inputs/tf1_ckpt/model.ckpt-28252.data-00000-of-00001",
        "  podium data checkpoint out/inputs/tf1_ckpt/model.ckpt-28252 data/large.safetensors --size large",
    ]
    again = run_podium("data", "fetch", *options(server), cwd=tmp_path)  # nothing is left to accept
    assert again.returncode == 0 and "present" in again.stdout and "fetched" not in again.stdout


def test_one_data_set_as_json(server: FileServer, tmp_path: Path) -> None:
    done = run_podium("data", "fetch", "inputs", *options(server), "--accept-licence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (data_set,) = document["data_sets"]
    assert data_set["url"] == f"{server.url}/data/{INPUTS.title}"
    assert [file["state"] for file in data_set["files"]] == ["fetched", "fetched", "fetched", "left out"]
    assert [file["size"] for file in data_set["files"]] == [5, 6000, 7, None]
    assert len(document["next"]) == 2 and not (tmp_path / "out/preprocessed").exists()
    done = run_podium("data", "fetch", "preprocessed", *options(server), "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_http_only_where_the_user_names_it(server: FileServer, tmp_path: Path) -> None:
    server.files[f"/metadata/{INPUTS.title}.uri"] = b"ftp://x/y"
    done = run_podium("data", "fetch", *options(server), cwd=tmp_path)
    assert done.returncode == 1 and "allowed is https://HOST/PATH or http://HOST/PATH" in done.stderr
    done = run_podium("data", "fetch", "--url", "ftp://x/y", cwd=tmp_path)
    assert done.returncode == 2 and "podium: --url: found 'ftp://x/y', which cannot be used" in done.stderr


@pytest.mark.parametrize(
    ("url", "insecure"), [((), False), (("--url", "https://x/y"), False), (("--url", "http://x/y"), True)]
)
def test_base_url_may_be_http_only_with_such_a_url(
    url: tuple[str, ...], insecure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(client: HttpClient, *_: object, **__: object) -> None:
        raise WorkError(f"http is allowed: {client.insecure}")

    monkeypatch.setattr("benchmarks.bert.fetch.make_plan", show)
    assert run_podium("data", "fetch", *url).stderr == f"podium: http is allowed: {insecure}\n"


def test_hostile_list_leaves_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files[f"/metadata/{INPUTS.title}.md5"] = b"a" * 32 + b"  ../../x\x1b[2J\n"
    done = run_podium("data", "fetch", *options(server), "--accept-licence", cwd=tmp_path)
    assert done.returncode == 1 and "it has the part '..'" in done.stderr and "\x1b" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_sum_names_the_file_and_both_sums(server: FileServer, tmp_path: Path) -> None:
    server.always[f"/data/{INPUTS.title}/vocab.txt"] = Fault(body=bytes(6000))
    done = run_podium("data", "fetch", *options(server), "--accept-licence", cwd=tmp_path)
    assert done.returncode == 1
    assert "out/inputs/vocab.txt: downloaded twice" in done.stderr
    assert "1 file(s) missing; run the same command again to resume" in done.stderr
    assert not (tmp_path / "out/inputs/vocab.txt").exists() and (tmp_path / "out/inputs/License.txt").exists()


def test_second_fetch_of_a_folder_is_refused(server: FileServer, tmp_path: Path) -> None:
    from podium.core.locks import folder_lock

    (tmp_path / "out").mkdir()
    with folder_lock(tmp_path / "out", "podium data fetch"):
        done = run_podium("data", "fetch", *options(server), "--accept-licence", cwd=tmp_path)
    assert done.returncode == 2 and "another `podium data fetch` is using this folder" in done.stderr


def size_now(path: Path) -> int | None:
    """Bytes of a file that another process writes; None if it has just been renamed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_process_is_resumed_by_the_next(server: FileServer, tmp_path: Path, number: signal.Signals) -> None:
    vocabulary = f"/data/{INPUTS.title}/vocab.txt"
    server.faults[vocabulary] = [Fault(cut=4000, stall=3)]
    command = (sys.executable, "-m", "podium.cli", "data", "fetch", *options(server), "--accept-licence")
    environment = os.environ | {"PYTHONPATH": str(CODE_FOLDER)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        partials, end = tmp_path / "out" / PARTIAL_FOLDER, time.monotonic() + 30
        while not any(size_now(path) == 4000 for path in partials.glob("*.partial")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert errors.splitlines()[-2:] == [
            "podium: what was downloaded is kept in out; run the same command again to resume",
            "podium: interrupted",
        ]
    assert not (tmp_path / "out/inputs/vocab.txt").exists()
    done = run_podium("data", "fetch", *options(server), "--accept-licence", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert server.gets(vocabulary) == [None, "bytes=4000-"]
    assert (tmp_path / "out/inputs/vocab.txt").read_bytes() == FILES["vocab.txt"]
