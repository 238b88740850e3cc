"""Run MLPerf's checkers on a package, each on a separate copy and within limits, and return findings.

Known defects of the tools are worked around:

- a package is checked system by system, so that a crash on one system hides no other;
- the package checker and the summarizer write scaling.json and trust an existing one: each gets a copy without it;
- BERT's samples are counted by train_samples where a log's epoch_num cannot be a number of samples.

The tools run in worker processes (`worker`), one job after the other, with a time limit for each job. Input that would
hang or crash a tool is detected before the tool is run.
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

from podium.core.console import print_command
from podium.core.errors import PodiumError, WorkError
from podium.core.files import make_folder
from podium.core.finding import Finding, has_errors
from podium.core.processes import processors
from podium.mllog.benchmarks import Progress
from podium.mllog.lines import MAX_LINE
from podium.mllog.read import read_log
from podium.mllog.results_tree import MAX_DESCRIPTION, SCALING, Package, ResultFolder
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import BERT
from podium.submission.official import parse_output, worker

MAX_ANSWER_BYTES = 8 << 20


class ToolProcess:
    """A worker process for the official tools, started with the first job and again after a job that killed it."""

    def __init__(self, memory_bytes: int = worker.MEMORY_BYTES, scratch: Path | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._folder = tempfile.TemporaryDirectory(prefix="podium-tools-", dir=scratch)

    def close(self) -> None:
        """End the process and remove its folder."""
        self._kill()
        self._folder.cleanup()

    def stop(self) -> None:
        """Kill the process during its job, from any thread; later jobs raise WorkError."""
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()

    def run_tool(self, tool: str, path: Path, ruleset: str, seconds: float, **more: Any) -> dict[str, Any]:
        """Run a tool on a file or folder and return its answer.

        `crash` in the answer is the reason where the tool broke off, its process ended, or the time limit was reached.
        """
        process = self._ensure_started()
        job = {"tool": tool, "path": str(path), "ruleset": ruleset, **more}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._abandon("its process ended before the job was sent")
        return self._read_answer(process, seconds)

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise WorkError("interrupted")
        if self._process is None:
            # One thread each: as many processes run as there are processors.
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            argv = [sys.executable, "-P", worker.__file__, str(self._memory_bytes)]
            print_command(argv)
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )
        return self._process

    def _read_answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        descriptor, received, end = process.stdout.fileno(), bytearray(), monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(end - monotonic(), 0)):
                    return self._abandon(f"did not end within {seconds:.0f} s", timed_out=True)
                piece = os.read(descriptor, 1 << 16)
                received += piece
                if not piece or len(received) > MAX_ANSWER_BYTES:
                    return self._abandon("its process ended without an answer")
        found: dict[str, Any] = json.loads(received)
        return found

    def _abandon(self, reason: str, timed_out: bool = False) -> dict[str, Any]:
        self._kill()
        return {"crash": reason, "messages": [], "printed": [], "timed_out": timed_out}

    def _kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()


EVENT = ":::MLLOG"
# Limit of a line with an event: published ones have up to 377 bytes. The official parser's regular expression is
# quadratic in the line's length: 0.2 s for this limit, ten minutes for 1 MiB.
MAX_EVENT_BYTES = 16 << 10
MAX_DEPTH = 100  # nested brackets; Python's json module recurses and fails at about 1,000


def screen_log(path: Path, display_path: str) -> Finding | None:
    """Return the first fault of a log that would hang or crash the official tools, or None."""
    with path.open(encoding="latin-1") as file:  # one character per byte, and the line ends that the tools use
        for number, whole_line in enumerate(iter(partial(file.readline, MAX_LINE + 1), ""), 1):
            line = whole_line.removesuffix("\n")
            if len(line) > MAX_LINE:
                message = f"this line has more than {MAX_LINE:,} bytes; find out what wrote it into the log"
            elif EVENT in line and len(line) > MAX_EVENT_BYTES:
                message = f"this event has {len(line):,} bytes; allowed are {MAX_EVENT_BYTES:,}: shorten its value"
            elif EVENT in line and is_deeply_nested(line.encode("latin-1")):
                message = f"this event has more than {MAX_DEPTH} brackets nested; log a flat value"
            else:
                continue
            message += "; the official tools were not run on this log"
            return Finding.error(display_path, "unsafe_log", message, line=number)
    return None


def screen_description(path: Path, display_path: str) -> Finding | None:
    """Return the fault of a system's JSON that would hang or crash the official tools, or None."""
    size = path.stat().st_size
    if size > MAX_DESCRIPTION:
        message = f"has {size:,} bytes; allowed are {MAX_DESCRIPTION:,}"
    elif is_deeply_nested(path.read_bytes()):
        message = f"has more than {MAX_DEPTH} brackets nested"
    else:
        return None
    advice = "; the official tools were not run on it; write a flat object of strings"
    return Finding.error(display_path, "unsafe_description", message + advice)


def is_deeply_nested(text: bytes) -> bool:
    """Whether JSON text has more than MAX_DEPTH brackets open at once; brackets in strings are counted as well."""
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


# `unread`: the tool broke off; `not run`: it was not run on the file, for the reason in a finding.
Verdict = Literal["passed", "failed", "unread", "not run"]

LOG_TIMEOUT_SECONDS = 60.0  # a log of 1.5 MB takes 0.1 s
FOLDER_TIMEOUT_SECONDS = 180.0
MAX_SCALING = 4096  # bytes of scaling.json that are read
SAME_FACTOR = 1e-9  # relative: the package checker writes all digits of a factor
# Jobs of one package that may reach their time limit; after that the tools are not run on the rest of the package.
MAX_TIMEOUTS = 3

CountedBy = Literal["epoch_num", "samples_count", "step_num", "train_samples"]
_PARAMETERS = ("rcp-bypass", "seed-checker-bypass")


@dataclass(frozen=True)
class Score:
    """The official summarizer's score of one system's results."""

    path: str
    # Time-to-train without scaling for RCPs, even where the package contains a scaling.json.
    minutes: float | None
    scaling: float | None  # the factor by which the package checker scales the score; None where it does not
    # The key by which the RCP check counted; None in the open division, which has no RCP check.
    samples_from: CountedBy | None

    @property
    def official_minutes(self) -> float | None:
        """The score as MLPerf publishes it: scaled where the package checker scales it."""
        return None if self.minutes is None else self.minutes * (1 if self.scaling is None else self.scaling)


@dataclass
class OfficialResults:
    """Verdicts, findings and scores of the official tools on packages."""

    # By path: of the compliance checker on each log, of the system description checker on each description.
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


def run_official_tools(
    packages: list[Package],
    root: Path,
    scratch: Path,
    ruleset: Ruleset,
    on_checked: Callable[[int], None] = lambda logs: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> OfficialResults:
    """Run the official tools on packages below `root`, a private copy; `scratch` is an empty folder for more copies.

    Paths in the results are relative to `root`. `on_checked` is called with the number of logs checked since its last
    call, from any thread. `meanwhile` is called once, in this thread, while the tools run.
    """
    tasks: list[_Task] = []
    for package in packages:
        timed_out: list[str] = []
        tasks.append(_Task(package, (), timed_out, root, scratch, ruleset, on_checked))
        for system in dict.fromkeys(result.system for result in package.results):
            results = tuple(result for result in package.results if result.system == system)
            tasks.append(_Task(package, results, timed_out, root, scratch, ruleset, on_checked))
    # The largest first, so that no large one is left for a single process at the end.
    tasks.sort(key=lambda task: -sum(len(result.logs) for result in task.results))
    processes = SimpleQueue[ToolProcess]()
    at_once = max(1, min(processors(), 16, len(tasks)))
    whole = OfficialResults()
    pool = [ToolProcess(scratch=scratch) for _ in range(at_once)]
    for process in pool:
        processes.put(process)

    def run(task: _Task) -> OfficialResults:
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
        # Processes are killed before the threads are awaited: after an interruption these wait for answers.
        for process in pool:
            process.stop()
        executor.shutdown(cancel_futures=True)
        for process in pool:
            process.close()
    return whole


@dataclass
class _Task:
    """The jobs of one process on one package: on one system's results, or on all other parts of the package."""

    package: Package
    results: tuple[ResultFolder, ...]
    timed_out: list[str]  # tools that reached their time limit, shared by all tasks of the package
    root: Path
    scratch: Path
    ruleset: Ruleset
    on_checked: Callable[[int], None]
    process: ToolProcess | None = None
    found: OfficialResults = field(default_factory=OfficialResults)

    def run(self) -> OfficialResults:
        if not self.results:
            self._check_package()
        for result in self.results:
            self._check_results(result)
        return self.found

    @property
    def _below_timeout_limit(self) -> bool:
        return len(self.timed_out) < MAX_TIMEOUTS

    def _run_tool(self, tool: str, path: Path, seconds: float = FOLDER_TIMEOUT_SECONDS, **more: Any) -> dict[str, Any]:
        assert self.process is not None
        answer = self.process.run_tool(tool, path, self.ruleset.name, seconds, **more)
        if answer.get("timed_out"):
            self.timed_out.append(tool)
        return answer

    def _display_path(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _check_package(self) -> None:
        """Run the system description checker on every description, and the repository checker on the whole package."""
        for system in self.package.systems:
            path = self._display_path(system.path)
            unsafe = screen_description(system.path, path)
            if unsafe is not None or not self._below_timeout_limit:
                self.found.verdicts[path] = "not run"
                self.found.findings.append(unsafe or _timeout_finding(path))
                continue
            answer = self._run_tool("system_desc_checker", system.path, LOG_TIMEOUT_SECONDS)
            self.found.verdicts[path] = _verdict(answer)
            self.found.findings += parse_output.parse_description(answer, path)
        root = self.package.root
        if self.ruleset.repo_checker and ((root / "systems").is_dir() or (root / "results").is_dir()):
            answer = self._run_tool("repo_checker", root)
            self.found.findings += parse_output.parse_repository(answer, self._display_path(root), root)

    def _check_results(self, result: ResultFolder) -> None:
        """Run the compliance checker on every log, then the package checker and the summarizer on all logs together."""
        folder, verdicts = self._display_path(result.path), self.found.verdicts
        about_logs: list[Finding] = []
        for log in result.logs:
            path = self._display_path(log)
            unsafe = screen_log(log, path)
            if unsafe is not None or not self._below_timeout_limit:
                verdicts[path] = "not run"
                about_logs.append(unsafe or _timeout_finding(path))
            else:
                answer = self._run_tool("compliance_checker", log, LOG_TIMEOUT_SECONDS)
                about_logs += parse_output.parse_compliance(answer, path)
                verdicts[path] = "not run" if answer.get("refused") else _verdict(answer)
            self.on_checked(1)
        about_folder: list[Finding] = []
        if result.benchmark in self.ruleset.benchmarks and (self.package.root / "systems").is_dir():
            if any(verdicts[self._display_path(log)] in ("unread", "not run") for log in result.logs):
                about_folder.append(_not_run_finding(folder, "one of its logs could not be read"))
            elif not self._below_timeout_limit:
                about_folder.append(_timeout_finding(folder))
            else:
                about_folder = self._check_set(result)
        if any(finding.rule == "one_failed" for finding in about_folder):
            # These are about the one log of a set that may fail: it counts as the slowest run, which is dropped.
            about_logs = [replace(finding, severity="warning") for finding in about_logs]
        self.found.findings += [*about_logs, *about_folder, *self._check_parameters(result)]

    def _check_set(self, result: ResultFolder) -> list[Finding]:
        """Run the tools that take a whole package, on copies that have this set of results only."""
        folder, system = self._display_path(result.path), self.package.system(result.system)
        if system is None or screen_description(system.path, "") is not None:
            return [_not_run_finding(folder, f"systems/{result.system}.json is missing or cannot be read by them")]
        closed = system.fields is not None and system.fields.get("division") == "closed"
        rules = self.ruleset.benchmarks[result.benchmark]
        progress = rules.progress_in(self.ruleset.round)
        by_train_samples = closed and rules.name == BERT and _needs_train_samples(result)
        for_package, for_summary = (
            _isolate(self.package, result, self.scratch / tool) for tool in ("package", "summary")
        )
        answer = self._run_tool("package_checker", for_package, train_samples=by_train_samples)
        counted_by: CountedBy | None = "train_samples" if by_train_samples else progress.key if progress else None
        findings = parse_output.parse_package(answer, folder, for_package, self.ruleset, _unit(progress))
        scaling = _read_scaling_factor(for_package / "results" / result.system / result.benchmark / SCALING)
        # Of a set that the package checker rejects it writes no factor, whatever the right one is.
        if closed and self.ruleset.scaled and not has_errors(findings):
            findings += _compare_scaling(result.path / SCALING, scaling, f"{folder}/{SCALING}")
        summed = self._run_tool("result_summarizer", for_summary, benchmark=result.benchmark)
        findings += parse_output.parse_summary(summed, folder, for_summary)
        self.found.scores.append(
            Score(
                path=folder,
                minutes=summed.get("minutes"),
                scaling=scaling if self.ruleset.scaled and closed else None,
                samples_from=counted_by if closed else None,
            )
        )
        return findings

    def _check_parameters(self, result: ResultFolder) -> Iterator[Finding]:
        """Warn of flags with a line end: the package checker compares whole lines, so that it ignores these."""
        for path in (result.path / "package_checker_params", result.path.parent / "package_checker_params"):
            if not path.is_file():
                continue
            for number, line in enumerate(path.read_bytes()[:4096].splitlines(keepends=True), 1):
                if line.decode("latin-1").strip() in _PARAMETERS and line.decode("latin-1") not in _PARAMETERS:
                    ignored = "the package checker ignores this flag because of its line end"
                    message = f"{ignored}; write it as the last line, without a line end"
                    yield Finding.warning(self._display_path(path), "ignored_flag", message, line=number)


def _unit(progress: Progress | None) -> str:
    """The unit of a benchmark's reference convergence points, for a message."""
    if progress is None or progress.key == "samples_count" or progress.samples == 1:
        return "samples"
    # GPT-3's epoch_num counts tokens.
    return "tokens" if progress.samples is not None and progress.samples < 1 else "epochs"


def _verdict(answer: dict[str, Any]) -> Verdict:
    return "unread" if answer["crash"] else "passed" if answer["valid"] else "failed"


def _isolate(package: Package, result: ResultFolder, target: Path) -> Path:
    """Make a package of one set of results, by hard links, without its scaling.json, which the tools would trust."""
    target.mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=target)) / package.name
    systems, results = (make_folder(root / name) for name in ("systems", f"results/{result.system}"))
    system = package.system(result.system)
    assert system is not None
    os.link(system.path, systems / system.path.name)
    above = result.path.parent / "package_checker_params"
    if above.is_file():
        os.link(above, results / above.name)
    shutil.copytree(
        result.path, results / result.benchmark, copy_function=os.link, ignore=shutil.ignore_patterns(SCALING)
    )
    return root


def _compare_scaling(submitted: Path, expected: float | None, path: str) -> Iterator[Finding]:
    """Compare a package's scaling.json with the factor that the package checker writes.

    The summarizer multiplies a score by any factor in it.
    """
    if not os.path.lexists(submitted):
        return
    found = _read_scaling_factor(submitted)
    if expected is None:
        message = "the package checker writes no scaling.json for these results"
        yield Finding.error(path, "scaling", f"{message}; remove the file")
    elif found is None or not math.isclose(found, expected, rel_tol=SAME_FACTOR):
        text = "no factor" if found is None else f"the factor {found:.9g}"
        message = f"has {text}; the package checker writes {expected:.9g}: remove the file, or let the checker write it"
        yield Finding.error(path, "scaling", message)


def _read_scaling_factor(path: Path) -> float | None:
    """Return the factor in a scaling.json; None where the file is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            factor = json.loads(file.read(MAX_SCALING))["scaling_factor"]
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        return float(factor) if is_number else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _needs_train_samples(result: ResultFolder) -> bool:
    """Whether a BERT log's epoch_num cannot be a number of samples: the RCP check then needs --bert-train-samples."""
    for log in result.logs:
        try:
            if not read_log(log).epochs_are_samples:
                return True
        except PodiumError:
            continue
    return False


def _timeout_finding(path: str) -> Finding:
    return _not_run_finding(path, f"{MAX_TIMEOUTS} of them reached their time limit on this package")


def _not_run_finding(path: str, reason: str) -> Finding:
    return Finding.error(path, "not_run", f"the official tools were not run on this, since {reason}; fix that first")
