"""Runs MLPerf's own checkers on a package, each on a separate copy and with limits, and returns findings.

Their known defects are worked around: packages are checked system by system, so that one on which a tool crashes
hides no other; each tool gets a fresh copy, since the package checker and the summarizer write scaling.json, without
one that a package contains, which they would trust; samples are counted by train_samples where a log's epoch_num
cannot be samples.

The tools run in a process of `worker`, one job after the other, with a time limit for each. Input that would hang or
crash a tool is found before it starts.
"""

import json
import math
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, Literal

from podium.core.errors import PodiumError, WorkError
from podium.core.files import make_folder
from podium.core.finding import Finding
from podium.core.processes import processors
from podium.mllog.lines import MAX_LINE
from podium.mllog.read import read_log
from podium.mllog.results_tree import MAX_DESCRIPTION, SCALING, Package, ResultFolder
from podium.mllog.rulesets import Ruleset
from podium.submission.official import parse_output, worker

MAX_ANSWER_BYTES = 8 << 20


class ToolProcess:
    """Starts its process at the first job, and anew after one that took it down."""

    def __init__(self, memory_bytes: int = worker.MEMORY_BYTES, scratch: Path | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._folder = tempfile.TemporaryDirectory(prefix="podium-tools-", dir=scratch)

    def close(self) -> None:
        """End the process and remove its folder."""
        self._end()
        self._folder.cleanup()

    def stop(self) -> None:
        """End the process in the middle of a job, from any thread; nothing is asked any more."""
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()

    def ask(self, tool: str, path: Path, ruleset: str, seconds: float, **more: Any) -> dict[str, Any]:
        """What a tool says of a file or folder; `{"crash": why}` where its process ended or did not answer in time."""
        process = self._started()
        job = {"tool": tool, "path": str(path), "ruleset": ruleset, **more}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._lost("ended before it was asked")
        return self._answer(process, seconds)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise WorkError("interrupted")
        if self._process is None:
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", worker.__file__, str(self._memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        descriptor, received, end = process.stdout.fileno(), bytearray(), monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(end - monotonic(), 0)):
                    return self._lost(f"did not end within {seconds:.0f} s", late=True)
                piece = os.read(descriptor, 1 << 16)
                received += piece
                if not piece or len(received) > MAX_ANSWER_BYTES:
                    return self._lost("its process ended without an answer")
        found: dict[str, Any] = json.loads(received)
        return found

    def _lost(self, why: str, late: bool = False) -> dict[str, Any]:
        self._end()
        return {"crash": why, "words": [], "printed": [], "late": late}

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()


EVENT = ":::MLLOG"
# Of a line that holds an event: published ones have up to 377 bytes, and the official parser's regular expression takes
# time by the square of a line's length: 0.2 s for this many bytes, ten minutes for a MiB.
MAX_EVENT_BYTES = 16 << 10
MAX_DEPTH = 100  # brackets within brackets: Python's JSON recurses, and stops at about a thousand


def screen_log(path: Path, shown_path: str) -> Finding | None:
    """The first thing in a log that keeps the official tools from reading it; None where they may."""
    with path.open(encoding="latin-1") as file:  # a character a byte, and line ends as the tools have them
        for number, whole_line in enumerate(iter(partial(file.readline, MAX_LINE + 1), ""), 1):
            line = whole_line.removesuffix("\n")
            if len(line) > MAX_LINE:
                message = f"this line has more than {MAX_LINE:,} bytes; see what was written into the log here"
            elif EVENT in line and len(line) > MAX_EVENT_BYTES:
                message = f"this event has {len(line):,} bytes and may have {MAX_EVENT_BYTES:,}; shorten its value"
            elif EVENT in line and is_deep(line.encode("latin-1")):
                message = f"this event has more than {MAX_DEPTH} brackets within brackets; log a flat value"
            else:
                continue
            message += "; the official tools were not run on it"
            return Finding.error(shown_path, "unsafe_log", message, line=number)
    return None


def screen_description(path: Path, shown_path: str) -> Finding | None:
    """What in a system's JSON keeps the official tools from reading it; None where they may."""
    size = path.stat().st_size
    if size > MAX_DESCRIPTION:
        message = f"has {size:,} bytes and may have {MAX_DESCRIPTION:,}"
    elif is_deep(path.read_bytes()):
        message = f"has more than {MAX_DEPTH} brackets within brackets"
    else:
        return None
    advice = "; the official tools were not run on it: write a flat object of strings"
    return Finding.error(shown_path, "unsafe_description", message + advice)


def is_deep(text: bytes) -> bool:
    """Whether JSON has more than MAX_DEPTH brackets open at once; brackets in strings may count too."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for byte in text:
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"]}":
            depth = max(depth - 1, 0)
    return False


# `unread`: the tool broke off; `not run`: it was not given the file, for a reason that is a finding.
Verdict = Literal["passed", "failed", "unread", "not run"]

LOG_SECONDS = 60.0  # a log of 1.5 MB takes 0.1 s
FOLDER_SECONDS = 180.0
MAX_SCALING = 4096  # bytes of it that are read
SAME_FACTOR = 1e-9  # relative: the package checker writes all digits of a factor
# Jobs of one package that may run into their time limit; after that the tools are not run on the rest of it.
PATIENCE = 3

_PARAMETERS = ("rcp-bypass", "seed-checker-bypass")


@dataclass(frozen=True)
class Score:
    """What the official summarizer makes of one system's results."""

    path: str
    # Time-to-train without scaling for RCPs, also where the package brings a scaling.json of its own.
    minutes: float | None
    scaling: float | None  # the factor by which the package checker scales it; None where it does not
    # What the RCP check counted samples by; None where it does not apply: in the open division.
    samples_from: Literal["epoch_num", "train_samples"] | None


@dataclass
class Official:
    """The official tools' words on packages."""

    # Of the compliance checker on each log, and of the system checker on each description, by path.
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


def ask_official(
    packages: list[Package],
    root: Path,
    scratch: Path,
    ruleset: Ruleset,
    told: Callable[[int], None] = lambda logs: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Official:
    """Run the official tools on packages below `root`, a copy of our own; `scratch` is an empty folder for more copies.

    Paths in what is returned are relative to `root`. `told` is called with the number of logs judged, from any thread;
    `meanwhile` is called once, in this thread, while the tools are at work.
    """
    tasks: list[_Task] = []
    for package in packages:
        late: list[str] = []
        tasks.append(_Task(package, (), late, root, scratch, ruleset, told))
        for system in dict.fromkeys(result.system for result in package.results):
            results = tuple(result for result in package.results if result.system == system)
            tasks.append(_Task(package, results, late, root, scratch, ruleset, told))
    tasks.sort(key=lambda task: -sum(len(result.logs) for result in task.results))
    processes = SimpleQueue[ToolProcess]()
    at_once = max(1, min(processors(), 16, len(tasks)))
    whole = Official()
    pool = [ToolProcess(scratch=scratch) for _ in range(at_once)]
    for process in pool:
        processes.put(process)

    def run(task: _Task) -> Official:
        task.process = processes.get()
        try:
            return task.run()
        finally:
            processes.put(task.process)

    executor = ThreadPoolExecutor(at_once)
    try:
        answers = executor.map(run, tasks)
        meanwhile()
        for found in answers:
            whole.verdicts |= found.verdicts
            whole.findings += found.findings
            whole.scores += found.scores
    finally:
        for process in pool:
            process.stop()
        executor.shutdown(cancel_futures=True)
        for process in pool:
            process.close()
    return whole


@dataclass
class _Task:
    """What one process is asked about one package: a system's results, or all besides the results."""

    package: Package
    results: tuple[ResultFolder, ...]
    late: list[str]  # of the package: the tools that ran into their time limit
    root: Path
    scratch: Path
    ruleset: Ruleset
    told: Callable[[int], None]
    process: ToolProcess | None = None
    found: Official = field(default_factory=Official)

    def run(self) -> Official:
        if not self.results:
            self._ask_about_package()
        for result in self.results:
            self._ask_about_results(result)
        return self.found

    @property
    def _is_patient(self) -> bool:
        return len(self.late) < PATIENCE

    def _ask(self, tool: str, path: Path, seconds: float = FOLDER_SECONDS, **more: Any) -> dict[str, Any]:
        assert self.process is not None
        answer = self.process.ask(tool, path, self.ruleset.name, seconds, **more)
        if answer.get("late"):
            self.late.append(tool)
        return answer

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _ask_about_package(self) -> None:
        """The system description checker on every description, the repository checker on all of it."""
        for system in self.package.systems:
            path = self._shown(system.path)
            unsafe = screen_description(system.path, path)
            if unsafe is not None or not self._is_patient:
                self.found.verdicts[path] = "not run"
                self.found.findings.append(unsafe or _impatient(path))
                continue
            answer = self._ask("system_desc_checker", system.path, LOG_SECONDS)
            self.found.verdicts[path] = _verdict(answer)
            self.found.findings += parse_output.of_description(answer, path)
        root = self.package.root
        if self.ruleset.repo_checker and ((root / "systems").is_dir() or (root / "results").is_dir()):
            answer = self._ask("repo_checker", root)
            self.found.findings += parse_output.of_repository(answer, self._shown(root), root)

    def _ask_about_results(self, result: ResultFolder) -> None:
        """The compliance checker on every log, then the package checker and the summarizer on all logs together."""
        folder, verdicts = self._shown(result.path), self.found.verdicts
        about_logs: list[Finding] = []
        for log in result.logs:
            path = self._shown(log)
            unsafe = screen_log(log, path)
            if unsafe is not None or not self._is_patient:
                verdicts[path] = "not run"
                about_logs.append(unsafe or _impatient(path))
            else:
                answer = self._ask("compliance_checker", log, LOG_SECONDS)
                about_logs += parse_output.of_compliance(answer, path)
                verdicts[path] = "not run" if answer.get("refused") else _verdict(answer)
            self.told(1)
        about_folder: list[Finding] = []
        if result.benchmark == "bert" and (self.package.root / "systems").is_dir():
            if any(verdicts[self._shown(log)] in ("unread", "not run") for log in result.logs):
                about_folder.append(_not_run(folder, "a log of it could not be read"))
            elif not self._is_patient:
                about_folder.append(_impatient(folder))
            else:
                about_folder = self._ask_about_set(result)
        if any(finding.rule == "one_failed" for finding in about_folder):
            # Of the one log of a set that may fail: the slowest run, which is dropped.
            about_logs = [replace(finding, severity="warning") for finding in about_logs]
        self.found.findings += [*about_logs, *about_folder, *self._parameters(result)]

    def _ask_about_set(self, result: ResultFolder) -> list[Finding]:
        """The tools that take a whole package, on copies that hold this one set of results."""
        folder, system = self._shown(result.path), self.package.system(result.system)
        if system is None or screen_description(system.path, "") is not None:
            return [_not_run(folder, f"systems/{result.system}.json is missing or cannot be given to them")]
        closed = system.fields is not None and system.fields.get("division") == "closed"
        by_train_samples = closed and _counts_by_train_samples(result)
        for_package, for_summary = (
            _alone(self.package, result, self.scratch / tool) for tool in ("package", "summary")
        )
        answer = self._ask("package_checker", for_package, train_samples=by_train_samples)
        findings = parse_output.of_package(answer, folder, for_package, self.ruleset)
        scaling = _factor(for_package / "results" / result.system / result.benchmark / SCALING)
        if closed and self.ruleset.scaled:
            findings += _compare_scaling(result.path / SCALING, scaling, f"{folder}/{SCALING}")
        summed = self._ask("result_summarizer", for_summary)
        findings += parse_output.of_summary(summed, folder, for_summary)
        self.found.scores.append(
            Score(
                path=folder,
                minutes=summed.get("minutes"),
                scaling=scaling if self.ruleset.scaled and closed else None,
                samples_from=None if not closed else "train_samples" if by_train_samples else "epoch_num",
            )
        )
        return findings

    def _parameters(self, result: ResultFolder) -> Iterator[Finding]:
        """The tool compares whole lines with their ends, so that a flag counts on a last line without an end alone."""
        for path in (result.path / "package_checker_params", result.path.parent / "package_checker_params"):
            if not path.is_file():
                continue
            for number, line in enumerate(path.read_bytes()[:4096].splitlines(keepends=True), 1):
                if line.decode("latin-1").strip() in _PARAMETERS and line.decode("latin-1") not in _PARAMETERS:
                    ignored = "the package checker ignores this flag, for the line's end"
                    message = f"{ignored}; write it last, without a line end"
                    yield Finding.warning(self._shown(path), "ignored_flag", message, line=number)


def _verdict(answer: dict[str, Any]) -> Verdict:
    return "unread" if answer["crash"] else "passed" if answer["valid"] else "failed"


def _alone(package: Package, result: ResultFolder, target: Path) -> Path:
    """A package of one set of results, by hard links, without a scaling.json that it brings: no tool is to use that."""
    target.mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=target)) / package.name
    systems, results = (make_folder(place / name) for name in ("systems", f"results/{result.system}"))
    system = package.system(result.system)
    assert system is not None
    os.link(system.path, systems / system.path.name)
    above = result.path.parent / "package_checker_params"
    if above.is_file():
        os.link(above, results / above.name)
    shutil.copytree(
        result.path, results / result.benchmark, copy_function=os.link, ignore=shutil.ignore_patterns(SCALING)
    )
    return place


def _compare_scaling(brought: Path, due: float | None, path: str) -> Iterator[Finding]:
    """The summarizer multiplies a score by whatever a package's scaling.json says: it must say what is due."""
    if not os.path.lexists(brought):
        return
    found = _factor(brought)
    if due is None:
        message = "the package checker writes no scaling.json for these results, so that none may change their score"
        yield Finding.error(path, "scaling", f"{message}; take it out")
    elif found is None or not math.isclose(found, due, rel_tol=SAME_FACTOR):
        said = "no factor" if found is None else f"the factor {found:.9g}"
        message = f"says {said}, where the package checker writes {due:.9g}; take it out, or have the checker write it"
        yield Finding.error(path, "scaling", message)


def _factor(path: Path) -> float | None:
    """What a scaling.json says; None where there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            factor = json.loads(file.read(MAX_SCALING))["scaling_factor"]
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        return float(factor) if is_number else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _counts_by_train_samples(result: ResultFolder) -> bool:
    """Whether epoch_num of a log cannot be a number of samples, so that the RCP check needs --bert-train-samples."""
    for log in result.logs:
        try:
            if not read_log(log).epochs_are_samples:
                return True
        except PodiumError:
            continue
    return False


def _impatient(path: str) -> Finding:
    return _not_run(path, f"{PATIENCE} of this package ran into their time limit before")


def _not_run(path: str, why: str) -> Finding:
    return Finding.error(path, "not_run", f"the official tools were not run on this, since {why}; mend that first")
