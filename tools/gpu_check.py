#!/usr/bin/env python3
"""Check and measure this machine's GPU in ten minutes: `python3 tools/gpu_check.py [FOLDER]`.

Parts run one after another, each as a process with a time limit, the most valuable ones first. A part that fails or
takes too long does not keep the others from running. FOLDER (default: $OUT, else runs/gpu_check) receives

    summary.json     status, exit code, seconds and reason of every part, rewritten before and after each
    results.jsonl    every test and measurement, a JSON object a line, written as it is known
    log.txt          what the parts have printed
    profile_*.jsonl  the step's kernels with launches, microseconds, bytes and GB/s, by precision

Nothing is installed: packages that this machine's Python (PODIUM_PYTHON) lacks are found by PYTHONPATH. Without a GPU,
or with --cpu, tiny sizes run on the CPU, and what needs a GPU is skipped. Exit codes: 0 every part passed or was
skipped, 1 a part failed or had no time, 2 wrong usage, 130 interrupted, 143 terminated.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TESTS = "tests/implementations/pytorch/gpu"
NOT_POSSIBLE = 77  # exit code of a measurement for which the machine has no GPU
NOTHING_COLLECTED = 5  # pytest's exit code
TERMINATED = 143
TOTAL_SECONDS = 560.0  # a machine is often lent for ten minutes
SHUTDOWN_SECONDS = 5.0
PASSED, SKIPPED, FAILED, TIMED_OUT, NO_TIME = "passed", "skipped", "failed", "timed out", "no time"
RUNNING, INTERRUPTED = "running", "interrupted"


@dataclass(frozen=True)
class Part:
    """A part of the check: its command and its limit in seconds; `prints_result` if its output is one JSON object."""

    name: str
    seconds: float
    command: Sequence[str]
    prints_result: bool = False


def parts(python: str, tiny: bool) -> list[Part]:
    """Return the parts in order of value."""

    def measured(name: str, seconds: float) -> Part:
        command = [python, "-m", "implementations.pytorch.bench.gpu_check", name, *(["--tiny"] if tiny else [])]
        return Part(name, seconds, command)

    def tested(name: str, seconds: float, *files: str) -> Part:
        paths = [f"{TESTS}/test_{file}.py" for file in files]
        return Part(name, seconds, ["./run_tests.sh", "--gpu", "-o", "faulthandler_timeout=60", *paths])

    def benched(name: str, seconds: float, *options: str) -> Part:
        system = ["laptop", "--layers", "1", "--hidden", "64", "--vocabulary", "512", "--steps", "1"]
        # A seed, since a plain measurement of a system also fits its costs, which takes time.
        system = system if tiny else ["h200_1x", "--set", "seed=1"]
        return Part(name, seconds, [python, "-m", "podium.cli", "bench", *system, "--json", *options], True)

    return [
        measured("versions", 45),
        measured("peaks", 60),
        tested("kernels", 90, "kernels"),
        tested("attention", 90, "attention"),
        measured("kernel_times", 60),
        tested("fp8", 60, "fp8"),
        tested("steps", 150, "steps", "optimizer"),
        measured("step", 150),
        tested("ranks", 120, "ranks"),
        benched("bench_huggingface", 150, "--baseline", "huggingface"),
        benched("bench_ablate", 240, "--ablate"),
    ]


@dataclass
class Outcome:
    """What became of a part."""

    part: str
    status: str
    seconds: float = 0.0
    exit_code: int | None = None
    reason: str = ""


class Check:
    """Runs parts and writes the folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], total_seconds: float) -> None:
        self.folder, self.environment = folder, environment
        self.results, self.log, self.summary = (folder / name for name in ("results.jsonl", "log.txt", "summary.json"))
        self.deadline = time.monotonic() + total_seconds
        self.outcomes: list[Outcome] = []
        for path in (self.results, self.log):
            path.write_bytes(b"")

    def run(self, part: Part) -> Outcome:
        """Run a part, and write and return what became of it."""
        limit = min(part.seconds, self.deadline - time.monotonic())
        if limit < 1:
            return self._end(Outcome(part.name, NO_TIME, reason="the total time was used up before"))
        started, before = time.monotonic(), self.results.stat().st_size
        self.outcomes.append(Outcome(part.name, RUNNING))
        try:
            self._write_summary()
            code, output = self._execute(part, limit)
        except (KeyboardInterrupt, SystemExit):
            self.outcomes.pop()
            self._end(Outcome(part.name, INTERRUPTED, round(time.monotonic() - started, 1)))
            raise
        self.outcomes.pop()
        outcome = Outcome(part.name, FAILED, round(time.monotonic() - started, 1), code)
        lines = self._lines(before)
        skipped = [line for line in lines if line.get("outcome") == "skipped"]
        failed = [line for line in lines if line.get("outcome") == "failed"]
        if code is None:
            outcome.status, outcome.reason = TIMED_OUT, f"it took longer than {limit:.0f} s"
        elif code == NOT_POSSIBLE:
            outcome.status, outcome.reason = SKIPPED, self._last_line()
        elif code == NOTHING_COLLECTED or (lines and len(skipped) == len(lines)):
            outcome.status = SKIPPED
            outcome.reason = skipped[0]["reason"].removeprefix("Skipped: ") if skipped else "there are no tests for it"
        elif code == 0:
            outcome.status = PASSED
        elif failed:
            outcome.reason = f"{len(failed)} of {len(lines)} tests: " + ", ".join(line["test"] for line in failed[:5])
        else:
            outcome.reason = self._last_line()
        if part.prints_result and code == 0:
            self._append_result(part, output)
        return self._end(outcome)

    def _execute(self, part: Part, limit: float) -> tuple[int | None, bytes]:
        """Return the exit code, None after the time limit, and the output if it is the part's result."""
        with self.log.open("ab") as log:
            log.write(f"\n== {part.name}: {' '.join(part.command)}\n".encode())
            log.flush()
            environment = {**os.environ, **self.environment}
            output = subprocess.PIPE if part.prints_result else log
            try:
                process = subprocess.Popen(
                    part.command, cwd=HOME, env=environment, stdout=output, stderr=log, start_new_session=True
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
                return 127, b""
            try:
                return (lambda printed: (process.returncode, printed or b""))(process.communicate(timeout=limit)[0])
            except subprocess.TimeoutExpired:
                return None, b""
            finally:
                _end_group(process)

    def _append_result(self, part: Part, output: bytes) -> None:
        """Append what a part has printed, JSON of one or many lines, as a line of results."""
        text = output.decode(errors="replace")
        try:
            result = {"result": json.loads(text[text.index("{") :])}
        except ValueError:
            result = {"printed": text[-2000:]}
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part.name, **result}) + "\n")

    def _lines(self, start: int) -> list[dict[str, str]]:
        """Return the results written since the file had `start` bytes; a line that is cut short is left out."""
        found = []
        for line in self.results.read_bytes()[start:].splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def _last_line(self) -> str:
        """Return the last line of the log that is not empty."""
        lines = self.log.read_bytes()[-20_000:].decode(errors="replace").split("\n")
        return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")

    def _end(self, outcome: Outcome) -> Outcome:
        self.outcomes.append(outcome)
        self._write_summary()
        print(f"{outcome.part:18} {outcome.status:10} {outcome.seconds:6.1f} s  {outcome.reason}", flush=True)
        return outcome

    def _write_summary(self) -> None:
        written = self.summary.with_suffix(".part")
        written.write_text(json.dumps([asdict(outcome) for outcome in self.outcomes], indent=1), encoding="utf-8")
        written.replace(self.summary)

    @property
    def failed(self) -> list[str]:
        return [outcome.part for outcome in self.outcomes if outcome.status not in (PASSED, SKIPPED)]


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End all processes of a part's session that are left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def has_gpu(python: str) -> bool:
    """Whether there is an NVIDIA device. PyTorch is asked last: a part has to report if it sees none."""
    if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/proc/driver/nvidia/version").exists():
        return True
    asked = [python, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def positive_seconds(text: str) -> float:
    """Return a number of seconds that is finite and above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0; an example is 560")
    return seconds


def why_not_writable(folder: Path, error: OSError) -> str:
    """Return what keeps a folder from being made or written."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return f"{nearest} is not a folder" if not nearest.is_dir() else f"{error.strerror}: {error.filename}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/gpu_check.py", description=__doc__.partition("\n")[0])
    default = Path(os.environ.get("OUT") or HOME / "runs" / "gpu_check")
    parser.add_argument("folder", type=Path, nargs="?", default=default, help="folder for what is found")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU, as where there is no GPU")
    parser.add_argument("--only", help="names of parts, separated by commas")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=TOTAL_SECONDS, help="total time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    named = os.environ.get("PODIUM_PYTHON") or sys.executable
    found = shutil.which(named)
    if found is None:
        reason = f"PODIUM_PYTHON: there is no program {named!r}; name a Python with PyTorch, or unset it"
        parser.exit(2, f"{parser.prog}: {reason}\n")
    python = str(Path(found).absolute())  # parts run in another folder; links stay, since those of a venv matter
    tiny = options.cpu or not has_gpu(python)
    chosen = parts(python, tiny)
    if options.only:
        names = options.only.split(",")
        unknown = sorted(set(names) - {part.name for part in chosen})
        if unknown:
            parser.error(f"--only: there is no part {unknown[0]!r}; allowed are {', '.join(p.name for p in chosen)}")
        chosen = [part for part in chosen if part.name in names]
    folder = options.folder.resolve()
    environment = {
        "PODIUM_GPU_FOLDER": str(folder),
        "PODIUM_GPU_RESULTS": str(folder / "results.jsonl"),
        "PODIUM_PYTHON": python,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
    }
    if tiny:
        environment |= {"PODIUM_GPU_TESTS": "cpu", "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}
        environment |= {"CUDA_VISIBLE_DEVICES": ""}
        print("there is no GPU here, or --cpu was given: tiny sizes on the CPU", flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check = Check(folder, environment, options.seconds)
    except OSError as error:
        reason = f"{folder} cannot be written: {why_not_writable(folder, error)}; name another folder"
        parser.exit(2, f"{parser.prog}: folder: {reason}\n")
    try:
        for part in chosen:
            check.run(part)
    except (KeyboardInterrupt, SystemExit) as error:
        print(f"interrupted; what was found until then is in {folder}", flush=True)
        return TERMINATED if isinstance(error, SystemExit) else 130
    if check.failed:
        print(f"not passed: {', '.join(check.failed)}; see {check.log}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # before the first part
