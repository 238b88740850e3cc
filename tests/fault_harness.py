"""A copy of the project in which faults are put to real `podium` processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

COPIED = ("benchmarks", "implementations", "podium", "requirements", "systems", "pyproject.toml")
SHORT = (
    "target_accuracy=null",
    "max_samples=64",
    "evaluation.samples=32",
    "evaluation.interval_samples=64",
    "launch.threads_per_process=1",
)
LONG = (*SHORT[:1], "max_samples=100000", "evaluation.samples=4", "evaluation.interval_samples=160", SHORT[-1])
SECONDS = 240  # that any command may take, also on a busy machine


@dataclass
class Ended:
    """A command that has ended: its exit code, and all that it printed on one line."""

    code: int
    text: str


def _as_in_a_terminal() -> None:
    """Take the signals that a closed terminal or Ctrl-C sends, which nohup and background jobs of a shell ignore."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


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
        overrides = [argument for setting in settings for argument in ("--set", setting)]
        return subprocess.Popen(
            [*wrapper, *self.argv(*arguments), *overrides],
            cwd=self.home,
            env=self.env | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
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
        return [status_of(log) for log in sorted(self.home.glob("runs/*/*/result_*.txt"))]

    def trained(self, process: subprocess.Popen[str], samples: int, number: int = 0) -> Path:
        """The folder of the newest set's run `number`, as soon as it was trained on `samples` samples."""
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
        tokens = slice(1, int(file["lengths"][0]) - 1)  # of the first sample, whose record begins with its token ids
        file["records"][tokens] = np.roll(file["records"][tokens], 1)


def rehash(project: Project, shard: Path) -> None:
    """Give a shard that was edited the hash of its content, and remove its store's manifest, which has the old hash."""
    program = (
        "import h5py, pathlib, sys; from benchmarks.bert.shard import Shard, content_sha256, stored_arrays\n"
        "found = content_sha256(stored_arrays(Shard(pathlib.Path(sys.argv[1])).samples))\n"
        "with h5py.File(sys.argv[1], 'r+') as f:\n"
        "    f.attrs.modify('content_sha256', found)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(shard)], cwd=project.home, env=project.env, check=True)
    (shard.parent / "manifest.json").unlink(missing_ok=True)


def copy(source: Path, home: Path, *more: str) -> None:
    for name in (*COPIED, *more):
        if (source / name).is_dir():
            shutil.copytree(source / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, home / name)
