"""Faults and attacks, one row each, put to real `podium` processes on a copy of the project: what must happen then.

`./run_tests.sh` takes a sample of them; all of them, in some 20 minutes on two cores:

    .venv/bin/pytest tests/test_faults.py -m ""

docs/faults.md is made of the rows by `.venv/bin/python tests/test_faults.py`. With PODIUM_FAULTS_PROJECT=FOLDER the
rows are put to another version of Podium, whose commit is checked out there.
"""

import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = Path(os.environ.get("PODIUM_FAULTS_PROJECT", ROOT))
DOCUMENT = ROOT / "docs" / "faults.md"
COPIED = ("benchmarks", "implementations", "podium", "systems", "pyproject.toml")
SHORT = (
    "target_accuracy=null",
    "max_samples=64",
    "evaluation.samples=32",
    "evaluation.interval_samples=64",
    "launch.threads_per_process=1",
)
LONG = (*SHORT[:1], "max_samples=100000", "evaluation.samples=4", "evaluation.interval_samples=160", SHORT[-1])
SAVING = ("checkpoint.every_samples=64", "checkpoint.keep=9")
TWO = "launch.processes_per_node=2"
SECONDS = 240  # that any command may take, also on a busy machine
IS_ROOT = os.geteuid() == 0


# --- The rows: what goes wrong, and what must happen ---------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, and what Podium must do about it."""

    part: str
    what: str
    command: str
    before: str  # what the first round (commit edd8213) did
    now: str
    check: Callable[["Project"], None]
    sampled: bool
    needs_root: bool


FAULTS: list[Fault] = []


def fault(
    part: str, what: str, command: str, before: str, now: str, sampled: bool = False, needs_root: bool = False
) -> Callable[[Callable[["Project"], None]], Callable[["Project"], None]]:
    def add(check: Callable[["Project"], None]) -> Callable[["Project"], None]:
        FAULTS.append(Fault(part, what, command, before, now, check, sampled, needs_root))
        return check

    return add


def _row(row: Fault) -> Any:
    marks = [pytest.mark.slow]
    if not row.sampled:
        marks.append(pytest.mark.exhaustive)
    if row.needs_root and not IS_ROOT:
        marks.append(pytest.mark.skip(reason="needs root"))
    return pytest.param(row, id=re.sub(r"[^a-z0-9]+", "-", f"{row.part} {row.what}".lower()), marks=marks)


# --- A copy of the project, and commands in it ---------------------------------------------------------------------


@dataclass
class Ended:
    """A command that has ended: its exit code, and all that it printed on one line."""

    code: int
    text: str


class Project:
    """A copy of the project with the embedded text prepared, in which `podium` is started as a user does."""

    def __init__(self, home: Path, tmp: Path) -> None:
        self.home, self.tmp = home, tmp
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PODIUM_")}
        self.env |= {"PYTHONPATH": str(home), "COLUMNS": "200", "NO_COLOR": "1"}

    def argv(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "podium.cli", *map(str, arguments)]

    def start(
        self,
        *arguments: object,
        settings: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """A command that is at work; `wrapper` is what starts it, such as `unshare --uts`."""
        words = [word for setting in settings for word in ("--set", setting)]
        return subprocess.Popen(
            [*wrapper, *self.argv(*arguments), *words],
            cwd=self.home,
            env=self.env | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            **options,
        )

    def end(self, process: subprocess.Popen[str], code: int | tuple[int, ...], *patterns: str) -> Ended:
        """Wait for a command: its exit code, what its output must have, and what no output may have."""
        try:
            text, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            raise AssertionError(f"still at work after {SECONDS} s: {text[-2000:]}") from None
        line = " ".join(text.split())
        codes = (code,) if isinstance(code, int) else code
        assert process.returncode in codes, f"exit code {process.returncode}, allowed {codes}: {line[-3000:]}"
        assert "Traceback (most recent call last)" not in text, line[-3000:]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", text), f"control characters: {text!r}"
        for pattern in patterns:
            assert re.search(pattern, line), f"no {pattern!r} in: {line[-3000:]}"
        return Ended(process.returncode, line)

    def podium(
        self, code: int | tuple[int, ...], *arguments: object, match: str | Sequence[str] = (), **options: Any
    ) -> Ended:
        """Run a command to its end; `match` are patterns that its output must have, all on one line."""
        return self.end(self.start(*arguments, **options), code, *([match] if isinstance(match, str) else match))

    def run(
        self, code: int | tuple[int, ...], *arguments: object, settings: Sequence[str] = (), **options: Any
    ) -> Ended:
        """`podium run laptop` with a short run's settings."""
        return self.podium(code, "run", "laptop", *arguments, settings=(*SHORT, *settings), **options)

    @property
    def stores(self) -> Path:
        (folder,) = self.home.glob("data/embedded/samples-*")
        return folder

    @property
    def training(self) -> Path:
        return self.stores / "training"

    @property
    def shard(self) -> Path:
        return self.training / "part-00001.h5"

    def runs(self) -> list[Path]:
        return sorted((self.home / "runs").glob("*/*/run_*"))

    def logs(self) -> list[Path]:
        """All logs that are results: of results/ and of the sets' own folders."""
        return sorted({*self.home.glob("results/*/bert/result_*.txt"), *self.home.glob("runs/*/*/result_*.txt")})

    def statuses(self) -> list[str]:
        return [status_of(log) for log in sorted(self.home.glob("results/*/bert/result_*.txt"))]

    def trained(self, process: subprocess.Popen[str], samples: int, number: int = 0) -> Path:
        """The folder of the newest set's run `number`, as soon as it was trained on so many samples."""
        deadline = time.monotonic() + SECONDS
        known = set()
        while process.poll() is None and time.monotonic() < deadline:
            for folder in reversed(self.runs()):
                metrics = folder / "metrics.jsonl"
                if folder.name != f"run_{number}" or (folder / "summary.json").exists() or not metrics.is_file():
                    continue
                known.add(folder)
                lines = [line for line in metrics.read_text().splitlines() if line.endswith("}")]
                if lines and json.loads(lines[-1])["samples"] >= samples:
                    return folder
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"no run has got so far in {known}: {process.communicate()[0]}")

    def processes(self) -> dict[int, str]:
        """Living processes that were started in this project, with their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment, command = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
            except OSError:
                continue
            if f"PYTHONPATH={self.home}".encode() in environment.split(b"\0") and command:
                found[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def ranks(self) -> list[int]:
        """Process ids of the ranks, in the order of their numbers."""
        return [
            pid
            for pid, line in sorted(self.processes().items())
            if "implementations.pytorch.train " in line + " " and "torch.distributed.run" not in line
        ]

    def torchrun(self) -> int:
        (pid,) = [pid for pid, line in self.processes().items() if "torch.distributed.run" in line]
        return pid

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, left

    def kill_all(self) -> None:
        for pid in self.processes():
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break


def status_of(log: Path) -> str:
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return str([event["metadata"]["status"] for event in events if event["key"] == "run_stop"][-1])


def flip(path: Path, place: int | None = None) -> None:
    """Change a byte in place, as a failing disk does: size, inode and the folder stay as they are."""
    with path.open("r+b") as file:
        place = path.stat().st_size // 2 if place is None else place
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def overwrite_tokens(shard: Path) -> None:
    """Write other token ids into a shard, whose hash then is not theirs."""
    with h5py.File(shard, "r+", locking=False) as file:
        tokens = file["token_ids"]
        tokens[1000:3000] = np.roll(tokens[1000:3000], 1)


def rehash(project: Project, shard: Path) -> None:
    """Give a shard that was edited the hash of its content, and its store no manifest that says otherwise."""
    program = (
        "import h5py, sys; from benchmarks.bert.store import content_sha256, SAMPLE_DTYPES\n"
        "with h5py.File(sys.argv[1], 'r+') as f:\n"
        "    f.attrs.modify('content_sha256', content_sha256({name: f[name][...] for name in SAMPLE_DTYPES}))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(shard)], cwd=project.home, env=project.env, check=True)
    (shard.parent / "manifest.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A project in which the embedded text is prepared and kernels are compiled."""
    if PROJECT == ROOT:
        return Path(request.getfixturevalue("warm_project"))
    home = tmp_path_factory.mktemp("prepared")
    _copy(PROJECT, home)
    project = Project(home, home)
    project.run(0)
    return home


def _copy(source: Path, home: Path, *more: str) -> None:
    for name in (*COPIED, *more):
        if (source / name).is_dir():
            shutil.copytree(source / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, home / name)


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Iterator[Project]:
    home = tmp_path / "project"
    home.mkdir()
    _copy(prepared, home, "data")
    project = Project(home, tmp_path)
    try:
        yield project
    finally:
        project.kill_all()


# --- Data ----------------------------------------------------------------------------------------------------------

DATA = "Data"
RUN = "podium run laptop"
SILENT = "trained on, exit 0"


@fault(DATA, "A byte of a shard has changed on the disk", RUN, "refused", "exit 1, names the shard", sampled=True)
def _(project: Project) -> None:
    flip(project.shard)
    project.run(1, match=r"part-00001\.h5.*SHA-256")
    assert not project.logs()


@fault(DATA, "Token ids are overwritten while a run is trained on them", RUN, SILENT, "exit 1, no result", sampled=True)
def _(project: Project) -> None:
    process = project.start("run", "laptop", settings=(*LONG[:1], "max_samples=320", *LONG[2:]))
    folder = project.trained(process, 64)
    overwrite_tokens(project.shard)
    project.end(process, 1, r"part-00001\.h5.*changed")
    assert (folder / "result.changed_data.txt").is_file() and not project.logs()


@fault(
    DATA, "Token ids are overwritten between two runs of a set", RUN + " --runs 2", SILENT, "exit 1, names the shard"
)
def _(project: Project) -> None:
    process = project.start("run", "laptop", "--runs", 2, settings=SHORT)
    folder = project.trained(process, 64)
    while not (folder / "summary.json").exists():
        time.sleep(0.002)
    overwrite_tokens(project.shard)
    project.end(process, 1, r"part-00001\.h5")
    assert not (folder.parent / "run_1" / "metrics.jsonl").exists()


def _interrupted(project: Project, *settings: str) -> Path:
    """A run that has saved a checkpoint and was then asked to stop."""
    process = project.start("run", "laptop", settings=(*LONG, *SAVING, *settings))
    folder = project.trained(process, 144)
    os.killpg(process.pid, signal.SIGTERM)
    project.end(process, 143, "--resume")
    assert list((folder / "checkpoints").iterdir())
    return folder


def _resume(project: Project, folder: Path, code: int | tuple[int, ...], *match: str) -> None:
    project.podium(code, "run", "laptop", "--resume", folder, match=match)


@fault(
    DATA, "Token ids are overwritten before a run resumes", RUN + " --resume FOLDER", SILENT, "exit 1, names the shard"
)
def _(project: Project) -> None:
    folder = _interrupted(project)
    overwrite_tokens(project.shard)
    _resume(project, folder, 1, r"part-00001\.h5")


@fault(
    DATA,
    "Another store of the same shape is put in its place before a run resumes",
    RUN + " --resume FOLDER",
    SILENT,
    "exit 1, names what differs",
)
def _(project: Project) -> None:
    folder = _interrupted(project)
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["token_ids"][1000] = int(file["token_ids"][1001])
    rehash(project, project.shard)
    _resume(project, folder, 1, r"part-00001\.h5.*content_sha256")


@fault(
    DATA, "A shard is deleted between two runs of a set", RUN + " --runs 2", "the second trained on the rest", "exit 1"
)
def _(project: Project) -> None:
    process = project.start("run", "laptop", "--runs", 2, settings=SHORT)
    folder = project.trained(process, 64)
    while not (folder / "summary.json").exists():
        time.sleep(0.002)
    project.shard.unlink()
    project.end(process, 1, r"part-00001\.h5")


@fault(DATA, "A shard is replaced by a copy of another", RUN, SILENT, "exit 1, names both", sampled=True)
def _(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    project.run(1, match=r"part-0000[01]\.h5")


@fault(DATA, "A shard is replaced by a copy of another, and there is no manifest", RUN, SILENT, "exit 1, names both")
def _(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    (project.training / "manifest.json").unlink()
    project.run(1, match=r"part-0000[01]\.h5", settings=_own_stores(project))


@fault(DATA, "Two shards are swapped", RUN, SILENT, "exit 1, names them")
def _(project: Project) -> None:
    other = project.training / "part-00002.h5"
    other.rename(project.tmp / "x")
    project.shard.rename(other)
    (project.tmp / "x").rename(project.shard)
    project.run(1, match=r"part-0000[12]\.h5")


def _own_stores(project: Project) -> tuple[str, ...]:
    """Settings that name the stores, so that nothing is prepared anew."""
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    return (
        f"data.store={project.training}",
        f"data.evaluation_store={project.stores / 'evaluation'}",
        f"data.vocabulary={vocabulary}",
    )


@fault(DATA, "A shard is missing", RUN + " --set data.store=STORE", "trained on the rest, exit 0", "exit 1, names it")
def _(project: Project) -> None:
    project.shard.unlink()
    project.run(1, match=r"part-00001\.h5 is missing", settings=_own_stores(project))


@fault(DATA, "An evaluation shard is among the training shards", RUN, SILENT, "exit 1, names it")
def _(project: Project) -> None:
    shutil.copy(project.stores / "evaluation" / "eval.txt.h5", project.training)
    project.run(1, match=r"eval\.txt\.h5", settings=_own_stores(project))


@fault(DATA, "data.store and data.evaluation_store are the same", RUN, SILENT, "exit 1 or 2, says so")
def _(project: Project) -> None:
    settings = _own_stores(project)
    same = f"data.evaluation_store={project.training}"
    project.run((1, 2), match="evaluation", settings=(settings[0], same, settings[2]))
    project.podium((1, 2), "doctor", "laptop", match="not ready", settings=(settings[0], same, settings[2]))


@fault(DATA, "The doctor looks at a store with a copied shard", "podium doctor laptop", "ready", "not ready, exit 1")
def _(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    project.podium(1, "doctor", "laptop", match="not ready", settings=_own_stores(project))


@fault(
    DATA, "Masked token ids are beyond the vocabulary, with a valid hash", RUN, "read out of range, exit 0", "exit 1"
)
def _(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["masked_token_ids"][7] = 65_000
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample \d+.*65,?000", settings=_own_stores(project))


@fault(DATA, "A first segment is longer than its sample, with a valid hash", RUN, SILENT, "exit 1, names the sample")
def _(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["first_segment_lengths"][3] = 600
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample 3", settings=_own_stores(project))


@fault(DATA, "A masked position is beyond its sample, with a valid hash", RUN, SILENT, "exit 1, names the sample")
def _(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["masked_positions"][0] = 511
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample 0", settings=_own_stores(project))


def _truncate(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


@fault(DATA, "A shard is cut short", RUN, "refused", "exit 1, names it")
def _(project: Project) -> None:
    _truncate(project.shard, 0.7)
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@fault(DATA, "A shard is empty", RUN, "refused", "exit 1, names it")
def _(project: Project) -> None:
    _truncate(project.shard, 0)
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@fault(DATA, "A shard is a FIFO", RUN, "hung", "exit 1 or 2, names it")
def _(project: Project) -> None:
    project.shard.unlink()
    os.mkfifo(project.shard)
    project.run((1, 2), match=r"part-00001\.h5", settings=_own_stores(project))


@fault(DATA, "A shard is a link that leads nowhere", RUN, "refused", "exit 1 or 2, names it")
def _(project: Project) -> None:
    project.shard.unlink()
    project.shard.symlink_to("/nowhere")
    project.run((1, 2), match=r"part-00001\.h5", settings=_own_stores(project))


@fault(DATA, "A shard's array lies in another file", RUN, "refused", "exit 1, names it")
def _(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        del file["token_ids"]
        file["token_ids"] = h5py.ExternalLink("part-00000.h5", "token_ids")
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@fault(DATA, "The manifest is no JSON", RUN, "no manifest", "exit 1, names it")
def _(project: Project) -> None:
    (project.training / "manifest.json").write_text("{")
    project.run(1, match=r"manifest\.json", settings=_own_stores(project))


@fault(DATA, "The manifest names a file elsewhere", RUN, "no manifest", "exit 1, names it")
def _(project: Project) -> None:
    manifest = project.training / "manifest.json"
    manifest.write_text(manifest.read_text().replace("part-00001.h5", "../evaluation/eval.txt.h5"))
    project.run(1, match=r"manifest\.json", settings=_own_stores(project))


@fault(
    DATA, "A preparation was killed: some shards are there, and no manifest", RUN, "trained on some, exit 0", "exit 1"
)
def _(project: Project) -> None:
    text, out = project.home / "data/embedded/text", project.tmp / "store"
    process = project.start(
        *("data", "prepare", *(word for number in range(4) for word in ("--text", text / f"part-0000{number}"))),
        *("--vocab", text / "vocab.txt", "--out", out, "--processes", 1),
    )
    while not list(out.glob("*.h5")) and process.poll() is None:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    settings = _own_stores(project)
    project.run(1, match="unfinished|not finished", settings=(f"data.store={out}", *settings[1:]))


@fault(DATA, "A worker of a preparation is killed", "podium data prepare", "not tried", "exit 1, nothing half-written")
def _(project: Project) -> None:
    text, out = project.home / "data/embedded/text", project.tmp / "store"
    process = project.start(
        *("data", "prepare", *(word for number in range(4) for word in ("--text", text / f"part-0000{number}"))),
        *("--vocab", text / "vocab.txt", "--out", out, "--processes", 2),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        workers = [pid for pid, line in project.processes().items() if "spawn_main" in line]
        if workers and out.is_dir():
            break
        time.sleep(0.005)
    os.kill(workers[0], signal.SIGKILL)
    project.end(process, 1, "died")
    project.assert_nothing_left()
    whole = [path for path in out.iterdir() if path.suffix == ".h5"]
    assert {path.name for path in out.iterdir()} <= {path.name for path in whole} | {"manifest.unfinished"}


@fault(DATA, "The vocabulary is another one", RUN + " --set data.vocabulary=FILE", "refused", "exit 1 or 2, says so")
def _(project: Project) -> None:
    settings = _own_stores(project)
    words = (project.home / "data/embedded/text/vocab.txt").read_text().splitlines()
    words[-2:] = reversed(words[-2:])
    (project.tmp / "vocab.txt").write_text("\n".join(words) + "\n")
    project.run((1, 2), match="vocabulary", settings=(*settings[:2], f"data.vocabulary={project.tmp / 'vocab.txt'}"))


@fault(DATA, "The store is not there", RUN + " --set data.store=FOLDER", "refused", "exit 2, names the key")
def _(project: Project) -> None:
    settings = _own_stores(project)
    project.run((1, 2), match=r"data\.store", settings=("data.store=/nowhere", *settings[1:]))


@fault(DATA, "Files are only touched", RUN, "harmless", "exit 0")
def _(project: Project) -> None:
    for path in project.stores.rglob("*"):
        path.touch()
    project.run(0)
    assert project.statuses() == ["aborted"] or project.statuses() == ["success"]


@fault(DATA, "The prepared data lies in a folder that cannot be written", RUN, "refused", "exit 0", needs_root=True)
def _(project: Project) -> None:
    mount = f'mount --bind -o ro {project.home}/data {project.home}/data && exec "$@"'
    project.run(0, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"))


# --- The log says what happened ------------------------------------------------------------------------------------

LOG = "Log"


def _logged(log: Path, key: str) -> list[Any]:
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return [event["value"] for event in events if event["key"] == key]


def _only_log(project: Project) -> Path:
    return sorted(project.home.glob("results/laptop/bert/result_*.txt"))[-1]


@fault(LOG, "The samples are on a file system in memory", RUN, "logs cache_clear: true", "not cleared, and says so")
def _(project: Project) -> None:
    memory = Path(f"/dev/shm/podium_faults_{os.getpid()}")
    shutil.copytree(project.stores, memory)
    try:
        settings = [one.replace(str(project.stores), str(memory)) for one in _own_stores(project)]
        project.run(0, settings=settings, match="memory")
    finally:
        shutil.rmtree(memory)
    assert _logged(_only_log(project), "cache_clear") in ([False], [])


@fault(LOG, "Another process keeps the samples in memory", RUN, "logs cache_clear: true", "not cleared, and says so")
def _(project: Project) -> None:
    program = (
        "import mmap, sys, time; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(m[place] for place in range(0, len(m), 4096)); print('mapped', flush=True)\n"
        "while True: sum(m[place] for place in range(0, len(m), 4096)); time.sleep(0.001)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, project.shard], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline() == b"mapped\n"
            project.run(0, match="memory|cleared")
        finally:
            other.kill()
    assert _logged(_only_log(project), "cache_clear") in ([False], [])


@fault(LOG, "The samples were copied a moment ago (pages not yet written)", RUN, "logs cache_clear: true", "cleared")
def _(project: Project) -> None:
    copied = project.tmp / "copied"
    shutil.copytree(project.stores, copied)
    settings = [one.replace(str(project.stores), str(copied)) for one in _own_stores(project)]
    project.run(0, settings=settings)
    assert _logged(_only_log(project), "cache_clear") == [True]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long step(void) {
    FILE *file = fopen(getenv("STEP_FILE"), "r");
    long seconds = 0;
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += step();
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec; now->tv_usec = time.tv_nsec / 1000;
    return result;
}
time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


def _stepped(project: Project, seconds: int) -> tuple[Ended, Path]:
    """A run in which the machine's clock is set by so many seconds."""
    shim, step = project.tmp / "clock.so", project.tmp / "step"
    command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(shim), "-ldl"]
    subprocess.run(command, input=SHIM, text=True, check=True)
    environment = {"LD_PRELOAD": str(shim), "STEP_FILE": str(step)}
    process = project.start("run", "laptop", settings=(LONG[0], "max_samples=320", *LONG[2:]), env=environment)
    folder = project.trained(process, 64)
    step.write_text(str(seconds))
    return project.end(process, 1, "clock"), folder


for _step in (3600, -3600, 3, -3):

    @fault(
        LOG,
        f"The clock is set by {_step:+d} s in a run",
        RUN,
        "the false time in the log, exit 0",
        "exit 1, times right, no result",
        sampled=_step == -3,
    )
    def _(project: Project, step: int = _step) -> None:
        _, folder = _stepped(project, step)
        logs = [*project.logs(), *folder.glob("result*.txt")]
        assert logs and {status_of(log) for log in logs} == {"aborted"}
        for log in logs:
            times = [json.loads(line.removeprefix(":::MLLOG "))["time_ms"] for line in log.read_text().splitlines()]
            assert times == sorted(times) and times[-1] - times[0] < 1000 * SECONDS


# --- Disks ---------------------------------------------------------------------------------------------------------

DISKS = "Disks"


def _on_small_disk(project: Project, folder: str, size: str) -> tuple[str, ...]:
    """What starts a command with that folder on a disk of this size, filled but for 64 KiB."""
    target = project.home / folder
    target.mkdir(parents=True, exist_ok=True)
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none {target} && exec "$@"', "sh")


@fault(DISKS, "The disk of runs/ is full from the start", RUN, "refused", "exit 1, names the disk", needs_root=True)
def _(project: Project) -> None:
    project.run(1, wrapper=_on_small_disk(project, "runs", "4k"), match="runs|disk|space|room")


@fault(DISKS, "The disk of runs/ is full in a run", RUN, "refused", "exit 1, names the disk", needs_root=True)
def _(project: Project) -> None:
    settings = (*LONG, "checkpoint.every_samples=32", "checkpoint.keep=99")
    project.podium(
        1, "run", "laptop", settings=settings, wrapper=_on_small_disk(project, "runs", "5m"), match="disk|space|room"
    )
    assert not project.logs()


@fault(DISKS, "results/ cannot be written", RUN, "refused", "exit 1 before anything is trained", needs_root=True)
def _(project: Project) -> None:
    results = project.home / "results"
    results.mkdir()
    mount = f'mount --bind -o ro {results} {results} && exec "$@"'
    project.run(1, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"), match="results")


@fault(DISKS, "The disk is full while data is prepared", "podium data prepare", "refused", "exit 1", needs_root=True)
def _(project: Project) -> None:
    text = project.home / "data/embedded/text"
    out = project.home / "small" / "store"
    project.podium(
        *(1, "data", "prepare", "--text", text / "part-00000", "--vocab", text / "vocab.txt", "--out", out),
        wrapper=_on_small_disk(project, "small", "400k"),
        match="disk|space|room",
    )


@fault(DISKS, "The journal of a search is on a full disk", "podium tune laptop", "not tried", "exit 1", needs_root=True)
def _(project: Project) -> None:
    project.podium(
        *(1, "tune", "laptop", "--trials", 3),
        settings=SHORT,
        wrapper=_on_small_disk(project, "runs", "16k"),
        match="disk|space|room|journal",
    )


# --- Users ---------------------------------------------------------------------------------------------------------

USERS = "Users"


@fault(
    USERS,
    "An ordinary user starts a project of another user",
    RUN,
    "not tried",
    "exit 1, names the folder",
    needs_root=True,
)
def _(project: Project) -> None:
    for path in (project.tmp, *project.tmp.parents):
        if path.owner() == "root" and path.is_relative_to("/tmp/") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    wrapper = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    project.run((1, 2), wrapper=wrapper, match=r"runs|results|data", env={"HOME": "/nonexistent"})


@fault(USERS, "There is no home folder", RUN, "not tried", "exit 0")
def _(project: Project) -> None:
    project.run(0, env={"HOME": "/nonexistent"})


# --- Machines and their names --------------------------------------------------------------------------------------

NAMES = "Host names"
for _title, _name in (
    ("does not resolve", "podium-nowhere"),
    ("has a space", "my laptop"),
    ("has 64 letters", "a" * 64),
):

    @fault(NAMES, f"The machine's name {_title}", RUN, "hung or a traceback", "exit 0", needs_root=True)
    def _(project: Project, name: str = _name) -> None:
        program = "import socket, sys, os; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
        project.run(0, wrapper=("unshare", "--uts", sys.executable, "-c", program, name), settings=(TWO,))


@fault(NAMES, "There is no network but the loopback", RUN, "not tried", "exit 0", needs_root=True)
def _(project: Project) -> None:
    project.run(0, wrapper=("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"), settings=(TWO,))


# --- Processes -----------------------------------------------------------------------------------------------------

PROCESSES = "Processes"
IMPATIENT = "launch.timeout_seconds=4"


def _while_training(project: Project, *settings: str, samples: int = 64) -> tuple[subprocess.Popen[str], Path]:
    process = project.start("run", "laptop", settings=(*LONG, *settings))
    return process, project.trained(process, samples)


def _placed(folder: Path) -> list[str]:
    """The statuses of the logs of a set, by which a run that was aborted is known as such."""
    return [status_of(log) for log in sorted(folder.parent.glob("result_*.txt"))]


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    _held = _number in (signal.SIGINT, signal.SIGTERM)

    @fault(
        PROCESSES,
        f"`podium run` gets {_number.name}",
        RUN,
        "aborted result, hint how to resume" if _held else "died, no result, no hint",
        "exit 130, an aborted result, no process is left",
        sampled=_number == signal.SIGQUIT,
    )
    def _(project: Project, number: int = _number) -> None:
        process, folder = _while_training(project, TWO)
        process.send_signal(number)
        project.end(process, 130, "interrupted")
        project.assert_nothing_left()
        assert _placed(folder) == ["aborted"]


@fault(PROCESSES, "A rank is killed", RUN, "exit 1, names the rank", "the same")
def _(project: Project) -> None:
    process, folder = _while_training(project, TWO)
    os.kill(project.ranks()[1], signal.SIGKILL)
    project.end(process, 1, r"rank [01].*SIGKILL")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@fault(PROCESSES, "A rank is killed, and may be started again", RUN, "goes on from the last checkpoint", "the same")
def _(project: Project) -> None:
    settings = (LONG[0], "max_samples=320", *LONG[2:], *SAVING, TWO, "launch.max_restarts=1")
    process = project.start("run", "laptop", settings=settings)
    folder = project.trained(process, 144)
    os.kill(project.ranks()[1], signal.SIGKILL)
    project.end(process, 0)
    assert json.loads((folder / "summary.json").read_text())["restarts"] == 1
    assert not project.logs() or not _placed(folder), "a run that was restarted is no result"


@fault(PROCESSES, "torchrun is killed", RUN, "exit 1", "exit 1, no process is left")
def _(project: Project) -> None:
    process, folder = _while_training(project, TWO)
    os.kill(project.torchrun(), signal.SIGKILL)
    project.end(process, 1, "SIGKILL")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@fault(
    PROCESSES,
    "`podium run` is killed, and started again",
    RUN,
    "no aborted result, results/ as before",
    "the next command closes what was left as aborted and says so",
)
def _(project: Project) -> None:
    process, folder = _while_training(project)
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    project.run(0, match=re.escape(folder.parent.name))
    assert _placed(folder) == ["aborted"]


@fault(PROCESSES, "`podium run` is killed, and its run resumed", RUN + " --resume FOLDER", "resumed", "the same")
def _(project: Project) -> None:
    process, folder = _while_training(project, *SAVING, samples=144)
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    resumed = project.start("run", "laptop", "--resume", folder)
    project.trained(resumed, 208)
    resumed.send_signal(signal.SIGTERM)
    project.end(resumed, (130, 143))


@fault(
    PROCESSES, "All ranks are stopped (SIGSTOP, a frozen container)", RUN, "not noticed", "exit 1 after the time-out"
)
def _(project: Project) -> None:
    process, folder = _while_training(project, TWO, IMPATIENT)
    for pid in project.ranks():
        os.kill(pid, signal.SIGSTOP)
    project.end(process, 1, "stopped")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@fault(PROCESSES, "One rank is stopped", RUN, "exit 1, names the rank", "the same")
def _(project: Project) -> None:
    process, _ = _while_training(project, TWO, IMPATIENT)
    os.kill(project.ranks()[1], signal.SIGSTOP)
    project.end(process, 1, "rank 1")
    project.assert_nothing_left()


@fault(
    PROCESSES,
    "One rank is stopped, then Ctrl-C",
    RUN,
    "a process was left",
    "exit 130, no process is left",
    sampled=True,
)
def _(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    os.kill(project.ranks()[1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    project.end(process, 130, "interrupted")
    project.assert_nothing_left()


@fault(PROCESSES, "torchrun is stopped, then Ctrl-C", RUN, "not tried", "exit 130, no process is left")
def _(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    os.kill(project.torchrun(), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    project.end(process, 130, "interrupted")
    project.assert_nothing_left()


@fault(PROCESSES, "All processes are stopped and continued (Ctrl-Z, fg)", RUN, "went on", "goes on; the time counts")
def _(project: Project) -> None:
    process = project.start("run", "laptop", settings=(LONG[0], "max_samples=480", *LONG[2:], IMPATIENT))
    folder = project.trained(process, 64)
    pids = [process.pid, *(pid for pid in project.processes() if pid != process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    project.end(process, 0)
    assert json.loads((folder / "summary.json").read_text())["seconds"] > 6


@fault(PROCESSES, "A second `podium run` of the system is started", RUN, "refused", "exit 2, the first goes on")
def _(project: Project) -> None:
    process, _ = _while_training(project)
    project.run(2, match="another `podium run`")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    project.end(process, 130)


@fault(PROCESSES, "A rank ends with an error of one line", RUN, "only: exit code 1", "exit 1, shows the line")
def _(project: Project) -> None:
    train = project.home / "implementations/pytorch/train.py"
    train.write_text(train.read_text() + "\n    raise RuntimeError('the one line that is the cause')\n")
    train.write_text(
        train.read_text().replace(
            'if __name__ == "__main__":',
            'if __name__ == "__main__":\n    raise RuntimeError("the one line that is the cause")',
        )
    )
    project.run(1, match="the one line that is the cause")


@fault(PROCESSES, "There is not enough memory for the ranks", RUN, "a generic message", "exit 1, shows the cause")
def _(project: Project) -> None:
    project.run(1, wrapper=("prlimit", "--data=400000000"), match="emory|allocat")


# --- Training ------------------------------------------------------------------------------------------------------

TRAINING = "Training"
HOT = ("optimizer.learning_rate=1.0e+30", "optimizer.warmup_steps=0", "clipping=null", "precision=fp32")


@fault(
    TRAINING,
    "The loss is no number",
    RUN + " --set optimizer.learning_rate=1e30",
    "exit 1",
    "exit 1, lists the samples",
)
def _(project: Project) -> None:
    project.run(1, settings=HOT, match=r"the loss of step \d+ is (nan|inf)")
    assert not any(status_of(log) == "success" for log in project.logs())


@fault(
    TRAINING,
    "Gradients are not finite in the last step before an evaluation",
    RUN,
    "not tried",
    "exit 1, the evaluation is no result",
)
def _(project: Project) -> None:
    settings = (*HOT, "max_samples=16", "evaluation.interval_samples=16", "target_accuracy=1.0e-9")
    ended = project.run((0, 1), settings=settings)
    for log in project.logs():
        accuracies = _logged(log, "eval_accuracy")
        assert all(isinstance(one, float) and np.isfinite(one) for one in accuracies), ended.text


# --- Checkpoints ---------------------------------------------------------------------------------------------------

CHECKPOINTS = "Checkpoints"
RESUME = RUN + " --resume FOLDER"


def _two_checkpoints(project: Project) -> tuple[Path, list[Path]]:
    folder = _interrupted(project)
    checkpoints = sorted((folder / "checkpoints").glob("batch_*"))
    assert len(checkpoints) > 1
    return folder, checkpoints


def _resumed_from_before(project: Project, folder: Path, newest: Path, kept: Sequence[Path]) -> None:
    """The checkpoint before is used, that is said, and nothing is deleted."""
    process = project.start("run", "laptop", "--resume", folder)
    project.trained(process, int(newest.name.removeprefix("batch_")) * 16 + 16)
    process.send_signal(signal.SIGTERM)
    project.end(process, (130, 143), re.escape(newest.name))
    found = {path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    assert all(content in found for content in (path.read_bytes() for path in kept))


@fault(
    CHECKPOINTS,
    "A bit of the newest checkpoint flips",
    RESUME,
    "deleted it",
    "uses the one before, sets it aside",
    sampled=True,
)
def _(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    rank_file = checkpoints[-1] / "rank_0.safetensors"
    flip(rank_file)
    kept = project.tmp / "kept"
    shutil.copy(rank_file, kept)
    _resumed_from_before(project, folder, checkpoints[-1], [kept])


@fault(CHECKPOINTS, "A rank's file of the newest checkpoint is missing", RESUME, "deleted it", "uses the one before")
def _(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    (checkpoints[-1] / "rank_0.safetensors").unlink()
    kept = project.tmp / "kept"
    shutil.copy(checkpoints[-1] / "facts.json", kept)
    _resumed_from_before(project, folder, checkpoints[-1], [kept])


@fault(CHECKPOINTS, "The newest checkpoint is of a newer version", RESUME, "deleted it", "exit 2, nothing is touched")
def _(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    facts = checkpoints[-1] / "facts.json"
    facts.write_text(re.sub(r'"version": \d+', '"version": 99', facts.read_text(), count=1))
    before = {path: path.read_bytes() for path in checkpoints[-1].iterdir()}
    project.podium((1, 2), "run", "laptop", "--resume", folder, match="version")
    assert before == {path: path.read_bytes() for path in checkpoints[-1].iterdir()}


@fault(
    CHECKPOINTS, "Facts of a checkpoint are deeply nested JSON", RESUME, "a traceback", "a sentence, or the one before"
)
def _(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    for checkpoint in checkpoints:
        (checkpoint / "facts.json").write_text("[" * 200_000)
    project.podium((1, 2), "run", "laptop", "--resume", folder)


@fault(CHECKPOINTS, "A checkpoint holds a pickle", RESUME, "refused", "refused, nothing is executed")
def _(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    proof = project.tmp / "executed"
    pickle = b"cos\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR."
    for checkpoint in checkpoints:
        (checkpoint / "rank_0.safetensors").write_bytes(pickle)
    project.podium((1, 2), "run", "laptop", "--resume", folder)
    assert not proof.exists()


@fault(
    CHECKPOINTS,
    "The code was changed before a run resumes",
    RESUME,
    "resumed, not recorded",
    "both hashes are kept and printed",
)
def _(project: Project) -> None:
    folder = _interrupted(project)
    before = json.loads((folder / "source.json").read_text())["code"]
    (project.home / "podium/added.py").write_text("")
    process = project.start("run", "laptop", "--resume", folder)
    project.trained(process, 208)
    process.send_signal(signal.SIGTERM)
    project.end(process, (130, 143), before[:8])
    after = (folder / "source.json").read_text()
    assert before in after and len(set(re.findall(r"[0-9a-f]{64}", after))) == 2


@fault(CHECKPOINTS, "The configuration in the run's folder was edited", RESUME, "refused", "exit 2, names the key")
def _(project: Project) -> None:
    folder = _interrupted(project)
    config = folder / "config.yaml"
    config.write_text(re.sub(r"global_batch_size: \d+", "global_batch_size: 8", config.read_text()))
    project.podium((1, 2), "run", "laptop", "--resume", folder, match="global_batch_size")


# --- Results -------------------------------------------------------------------------------------------------------

RESULTS = "Results"


@fault(
    RESULTS,
    "A later run is stopped by Ctrl-C",
    RUN,
    "displaced the good result",
    "results/ stays as it is",
    sampled=True,
)
def _(project: Project) -> None:
    project.run(0)
    before = {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}
    process, _ = _while_training(project)
    process.send_signal(signal.SIGINT)
    project.end(process, 130)
    assert before == {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}


@fault(RESULTS, "A setting of a later run is misspelt", RUN, "refused", "exit 2, results/ stays as it is")
def _(project: Project) -> None:
    project.run(0)
    before = {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}
    project.run(2, settings=("optimizer.lerning_rate=1",), match="lerning_rate")
    assert before == {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}


@fault(
    RESULTS,
    "A set of one run follows a set of two",
    RUN,
    "moved the two into the other's folder",
    "each set has its logs",
)
def _(project: Project) -> None:
    project.run(0, "--runs", 2)
    first = {path.parent for path in project.runs()}
    project.run(0)
    (other,) = {path.parent for path in project.runs()} - first
    assert [len(list(folder.glob("result_*.txt"))) for folder in (*first, other)] == [2, 1]


# --- Files of others -----------------------------------------------------------------------------------------------

FILES = "Files of others"
MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print('KILOBYTES', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True); sys.exit(code)"
)


def _within(project: Project, megabytes: int, code: int | tuple[int, ...], *arguments: object, **options: Any) -> None:
    """A command of which no process takes more memory than so many megabytes."""
    ended = project.podium(code, *arguments, wrapper=(sys.executable, "-c", MEASURED), **options)
    kilobytes = re.search(r"KILOBYTES (\d+)", ended.text)
    assert kilobytes and int(kilobytes[1]) < 1000 * megabytes, f"{ended.text[-500:]}"


def _tar(path: Path, *members: tarfile.TarInfo, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def _member(name: str, **attributes: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(member, key, value)
    return member


CHECK = "podium submit check FILE.tar.gz"


@fault(FILES, "An archive's member leads out of the folder", CHECK, "refused", "exit 1, nothing is written there")
def _(project: Project) -> None:
    archive = _tar(project.tmp / "p.tar.gz", _member("../../outside.txt"), _member("/tmp/podium_outside.txt"))
    project.podium((1, 2), "submit", "check", archive)
    assert not list(project.tmp.rglob("outside.txt")) and not Path("/tmp/podium_outside.txt").exists()


@fault(FILES, "An archive's member is a link out of the folder", CHECK, "refused", "exit 1")
def _(project: Project) -> None:
    link = _member("Org/results/s/bert/result_0.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    ended = project.podium((1, 2), "submit", "check", _tar(project.tmp / "p.tar.gz", link))
    assert "root:x" not in ended.text


@fault(FILES, "11 kB of sparse maps in an archive", CHECK, "1.75 GB, 34 s", "exit 1, under 600 MB")
def _(project: Project) -> None:
    maps = ",".join(f"{place},1" for place in range(0, 4_000_000, 2))
    member = _member(
        "Org/a", pax_headers={"GNU.sparse.map": maps, "GNU.sparse.size": "9000000", "GNU.sparse.numblocks": "9"}
    )
    _within(project, 600, (1, 2), "submit", "check", _tar(project.tmp / "p.tar.gz", member))


@fault(FILES, "Very many global headers in an archive", CHECK, "1.9 GB", "exit 1, under 600 MB")
def _(project: Project) -> None:
    path = project.tmp / "p.tar.gz"
    with gzip.open(path, "wb") as file:
        for number in range(200):
            info = (
                tarfile.TarInfo.create_pax_global_header({f"key{number}_{i}": "v" * 1000 for i in range(1000)}, "utf-8")
                if hasattr(tarfile.TarInfo, "create_pax_global_header")
                else b""
            )
            file.write(info)
    _within(project, 600, (1, 2), "submit", "check", path)


@fault(FILES, "A gigabyte of zeros in 1 MB of archive", CHECK, "refused", "exit 1, under 600 MB")
def _(project: Project) -> None:
    path = project.tmp / "p.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        member = _member("Org/results/s/bert/result_0.txt", size=2**30)
        archive.addfile(member, _Zeros(2**30))
    _within(project, 600, (1, 2), "submit", "check", path)


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


IMPORT = "podium data import FILE.hdf5"


def _import(project: Project, file: Path, code: int | tuple[int, ...] = (1, 2), megabytes: int = 1500) -> None:
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    _within(project, megabytes, code, "data", "import", file, "--vocab", vocabulary, "--out", project.tmp / "imported")
    assert not list(project.tmp.glob("imported/*.h5"))


@fault(FILES, "2 MB of HDF5 whose chunk unpacks to 2 GB", IMPORT, "2.15 GB", "exit 1, under 1.5 GB")
def _(project: Project) -> None:
    path = project.tmp / "file.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("input_ids", (2**21, 512), "i2", chunks=(2**21, 512), compression="gzip", fillvalue=0)
        file["input_ids"].id.write_direct_chunk((0, 0), zlib.compress(bytes(2**20)))
        for name in ("input_mask", "segment_ids"):
            file.create_dataset(name, (2**21, 512), "i1", chunks=(1024, 512))
        for name in ("masked_lm_positions", "masked_lm_ids"):
            file.create_dataset(name, (2**21, 76), "i2", chunks=(1024, 76))
        file.create_dataset("next_sentence_labels", (2**21,), "i1", chunks=(1024,))
    _import(project, path)


@fault(
    FILES, "4 MB of HDF5 whose 8,192 rows are all the same long one", IMPORT, "24 GB, killed", "exit 1, under 1.5 GB"
)
def _(project: Project) -> None:
    path, rows, places = project.tmp / "file.hdf5", 8192, []
    with h5py.File(path, "w") as file:
        for name in ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
            dataset = file.create_dataset(name, (rows,), h5py.vlen_dtype(np.int32))
            dataset[0] = np.full(200_000, 5, np.int32)
            places.append(dataset.id.get_offset())
        file.create_dataset("next_sentence_labels", data=np.zeros(rows, np.int8))
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + 16 * rows] = content[place : place + 16] * rows
    path.write_bytes(content)
    _import(project, path)


@fault(FILES, "The file to import is a FIFO", IMPORT, "hung", "exit 1 or 2")
def _(project: Project) -> None:
    os.mkfifo(project.tmp / "file.hdf5")
    _import(project, project.tmp / "file.hdf5")


@fault(
    FILES, "The text is /dev/zero", "podium data prepare --text /dev/zero", "took 23 GB", "exit 1 or 2, under 1.5 GB"
)
def _(project: Project) -> None:
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    _within(
        project,
        1500,
        (1, 2),
        "data",
        "prepare",
        "--text",
        "/dev/zero",
        "--vocab",
        vocabulary,
        "--out",
        project.tmp / "o",
    )


@fault(
    FILES,
    "The vocabulary is /dev/zero",
    "podium data prepare --vocab /dev/zero",
    "took 23 GB",
    "exit 1 or 2, under 1.5 GB",
)
def _(project: Project) -> None:
    text = project.home / "data/embedded/text/part-00000"
    _within(
        project, 1500, (1, 2), "data", "prepare", "--text", text, "--vocab", "/dev/zero", "--out", project.tmp / "o"
    )


@fault(FILES, "A result to report on is a FIFO", "podium report FOLDER", "hung", "exit 1 or 2, or left out")
def _(project: Project) -> None:
    project.run(0)
    (folder,) = project.runs()
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    project.podium((0, 1, 2), "report", folder)


@fault(FILES, "A summary is deeply nested JSON", "podium report FOLDER", "a traceback", "a sentence")
def _(project: Project) -> None:
    project.run(0)
    (folder,) = project.runs()
    (folder / "summary.json").write_text("[" * 200_000)
    project.podium((0, 1, 2), "report", folder)


@fault(
    FILES,
    "Escape sequences are in a checkpoint's configuration",
    "podium data checkpoint",
    "acted on the terminal",
    "shown as text",
)
def _(project: Project) -> None:
    folder = project.tmp / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "\x1b[31mred\x1b]0;title\x07", "hidden_act": "\x9b2J"})
    )
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    project.podium((1, 2), "data", "checkpoint", folder, "--out", project.tmp / "c")


@fault(
    FILES,
    "Escape sequences are in a shard's attributes",
    "podium data verify",
    "acted on the terminal",
    "shown as text",
)
def _(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file.attrs["source"] = "\x1b[31mred\x1b]0;title\x07"
    project.podium((1, 2), "data", "verify", project.training)


@fault(FILES, "A search's journal is damaged", "podium tune laptop", "a traceback", "exit 1, names it")
def _(project: Project) -> None:
    folder = project.tmp / "tune"
    arguments = ("tune", "laptop", "--search", "laptop_adamw", "--trials", 1, "--repeats", 0, "--folder", folder)
    settings = ("max_samples=32", "evaluation.samples=32", "evaluation.interval_samples=32", SHORT[-1])
    project.podium((0, 1), *arguments, settings=settings)
    journals = [path for path in folder.rglob("*") if path.is_file() and "journal" in path.name]
    assert journals
    for journal in journals:
        journal.write_bytes(b'{"op_code": 0, \xff\n' + journal.read_bytes()[:-20])
    project.podium((1, 2), *arguments, settings=settings, match="journal")


# --- System files --------------------------------------------------------------------------------------------------

SYSTEMS = "System files"
for _what, _setting, _before in (
    ("replace the script (--wrap)", "launch.slurm_options=[--wrap=id]", "accepted"),
    ("choose the output", "launch.slurm_options=[--output=/tmp/x]", "accepted"),
    ("replace the script, abbreviated", "launch.slurm_options=[--wra=id]", "accepted"),
    ("set the environment", "launch.slurm_options=['--export=LD_PRELOAD=/tmp/x']", "accepted"),
):

    @fault(
        SYSTEMS,
        f"Slurm's options {_what}",
        f"podium run dgxa100_n8 --set {_setting}",
        _before,
        "exit 2, names the option",
    )
    def _(project: Project, setting: str = _setting) -> None:
        project.podium(
            2, "run", "dgxa100_n8", "--dry-run", settings=(setting,), match=r"slurm_options.*--(wra|output|export)"
        )


@fault(SYSTEMS, "An image is called like an option of docker", "podium run dgxa100_n1", "became an option", "exit 2")
def _(project: Project) -> None:
    image = "launch.container={runtime: docker, image: --privileged}"
    project.podium(2, "run", "dgxa100_n1", "--dry-run", settings=(image,), match="--privileged")


@fault(
    SYSTEMS,
    "A system file is called so that its runs are written elsewhere",
    "podium run ...yaml",
    "written outside runs/",
    "exit 2",
)
def _(project: Project) -> None:
    shutil.copy(project.home / "systems/laptop.yaml", project.tmp / "...yaml")
    project.podium(2, "run", project.tmp / "...yaml", settings=SHORT)
    assert not project.logs()


@fault(SYSTEMS, "A system file has an alias bomb", "podium run FILE.yaml", "refused", "exit 2, in seconds")
def _(project: Project) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (project.tmp / "bomb.yaml").write_text("\n".join(lines))
    project.podium(2, "run", project.tmp / "bomb.yaml")


@fault(
    SYSTEMS, "A system file has an object of Python", "podium run FILE.yaml", "refused", "exit 2, nothing is executed"
)
def _(project: Project) -> None:
    proof = project.tmp / "executed"
    (project.tmp / "mine.yaml").write_text(f"launch: !!python/object/apply:os.system ['touch {proof}']\n")
    project.podium(2, "run", project.tmp / "mine.yaml")
    assert not proof.exists()


for _what, _text in (
    ("a huge integer where text is meant", "description: {system_name: " + "9" * 5000 + "}"),
    ("a sexagesimal integer of 100,000 digits", "bert: {seed: " + ":".join(["1"] * 50_000) + "}"),
    ("a NUL in a path", 'bert: {data: {store: "a\\0b"}}'),
    ("10,000 characters of path", "bert: {data: {store: " + "a" * 10_000 + "}}"),
):

    @fault(
        SYSTEMS, f"A system file has {_what}", "podium run FILE.yaml", "a traceback, or minutes", "exit 2, a sentence"
    )
    def _(project: Project, text: str = _text) -> None:
        (project.tmp / "mine.yaml").write_text(text)
        project.podium((1, 2), "run", project.tmp / "mine.yaml")


# --- Network and caches --------------------------------------------------------------------------------------------

NETWORK = "Network and caches"


@fault(
    NETWORK,
    "A stranger looks for a port of a one-node run",
    RUN,
    "code executed through torchrun's store",
    "no port but on the loopback",
    sampled=True,
)
def _(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    sockets = set()
    for pid in project.processes():
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    open_to_all = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            loopback = fields[1].startswith(
                ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
            )
            if fields[3] == "0A" and fields[9] in sockets and not loopback:
                open_to_all.append(fields[1])
    process.send_signal(signal.SIGTERM)
    project.end(process, 130)
    assert not open_to_all


@fault(NETWORK, "Another user has prepared numba's cache", RUN, "executed", "not used", needs_root=True)
def _(project: Project) -> None:
    cache = project.tmp / "cache"
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    cache.chmod(0o777)
    project.run(
        0, env={"NUMBA_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    )
    assert not list(cache.rglob("*.nbi"))


# --- The rows as tests, and as a document --------------------------------------------------------------------------


@pytest.mark.parametrize("row", [_row(row) for row in FAULTS])
def test_fault(row: Fault, project: Project) -> None:
    row.check(project)


def document() -> str:
    """docs/faults.md."""
    lines = [_HEAD]
    for part in dict.fromkeys(row.part for row in FAULTS):
        lines += ["", f"## {part}", "", "| what goes wrong | command | before | now |", "|---|---|---|---|"]
        lines += [f"| {row.what} | `{row.command}` | {row.before} | {row.now} |" for row in FAULTS if row.part == part]
    return "\n".join(lines) + "\n"


_HEAD = """# Faults and attacks

FILL"""


def test_the_document_is_that_of_the_rows() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), f"{sys.executable} {__file__} > {DOCUMENT}"


if __name__ == "__main__":
    print(document(), end="")
