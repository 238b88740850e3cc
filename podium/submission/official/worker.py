"""Worker process that runs MLPerf's tools, one job after the other; `runner` starts it and communicates with it.

A job is a line of JSON on standard input, its answer a line of JSON on standard output. The tools are called as from
their command lines, with five patches that change no verdict:

- logs that one tool has parsed or checked are cached for the next one;
- the tools' rules are parsed from YAML once, not for every file;
- the smallest mean that a reference accepts is searched for once, not for every result;
- the last token of a line is found without the tools' regular expression, which is quadratic in the line's length;
- the rules that a log names must be in the tool's folder: the compliance checker puts submission_division into a path
  and executes the Python that it finds there, so that a log could have any file executed.
"""

import io
import json
import logging
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30  # default limit of address space; the process gets its limit as its only argument
MAX_FILE_BYTES = 64 << 20
MAX_CACHED_BYTES = 4 << 20  # size of a log up to which its parsed events are kept for the next tool
MAX_MESSAGES = 200
MAX_MESSAGE_LENGTH = 2000

Answer = dict[str, Any]
Job = dict[str, Any]
Identity = tuple[int, int, int, int]


class _MessageHandler(logging.Handler):
    """Collect the tools' log messages of level WARNING and above, and their verdicts."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[str, str]] = []
        self.arguments: dict[str, Any] = {}  # of the collected messages, by the text before their colon

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.messages) < MAX_MESSAGES:
            text = record.getMessage()
            if record.levelno >= logging.WARNING or text.strip().startswith(_VERDICTS):
                self.messages.append((record.levelname, text[:MAX_MESSAGE_LENGTH]))
                self.arguments[text.strip().partition(":")[0]] = record.args


_VERDICTS = (
    "PACKAGE CHECKER FOUND",
    "CHECKS FAILED",
    "ALL CHECKS PASSED",
    "RCP Record: ",
    "Submission mean epochs: ",
)

_messages = _MessageHandler()
_foreign_rules: list[str] = []  # rules outside of the tool's folder that the present log named


def compliance(job: Job) -> Answer:
    """Run the compliance checker on one log: its verdict, warnings and errors."""
    from mlperf_logging.compliance_checker import mlp_compliance

    path, ruleset = job["path"], job["ruleset"]
    _foreign_rules.clear()
    mlp_compliance.enqueued_configs.clear()  # left over if the checker broke off on the log before
    checker = mlp_compliance.make_checker("training", ruleset, False, False)
    config = f"training_{ruleset}/common.yaml"
    valid = bool(_check_once(path, config, checker))
    if _foreign_rules:
        return {"refused": _foreign_rules[0][:200]}
    errors = [*checker.overwritable.values(), *checker.not_overwritable]
    return {
        "valid": valid,
        "warnings": [text[:MAX_MESSAGE_LENGTH] for text in list(checker.warnings.values())[:MAX_MESSAGES]],
        "errors": [text[:MAX_MESSAGE_LENGTH] for text in errors[:MAX_MESSAGES]],
        "lines": _event_lines(path) if errors or checker.warnings else [],
    }


def package(job: Job) -> Answer:
    """Run the package checker (with seed, RCP and system checkers) on a package of one system; writes scaling.json."""
    from mlperf_logging.package_checker import package_checker

    patch_rcp_checker()

    package_checker.check_training_package(
        job["path"], "training", job["ruleset"], False, False, False, job["train_samples"], False, os.devnull
    )
    return {"figures": _rcp_figures()}


def summary(job: Job) -> Answer:
    """Run the result summarizer on a package of one result: the benchmark's score in minutes, or None."""
    from mlperf_logging.result_summarizer import result_summarizer

    patch_rcp_checker()

    strong, *_ = result_summarizer.summarize_results(job["path"], "training", job["ruleset"])
    scores = [float(score) for score in strong[job["benchmark"]] if score is not None and score == score]
    return {"minutes": scores[0] if scores else None}


def convergence(job: Job) -> Answer:
    """Run the RCP checker on a folder of logs; writes scaling.json into that folder."""
    from mlperf_logging.rcp_checker import rcp_checker

    patch_rcp_checker()

    points = {"rcp_pass": "pruned_rcps"}  # as the package checker calls it
    passed, text, factor = rcp_checker.check_directory(
        job["path"], "training", job["ruleset"], False, False, set_scaling=True, **points
    )
    return {"convergence": {"passed": bool(passed), "message": text, "factor": float(factor), **_rcp_figures()}}


def _rcp_figures() -> dict[str, float | None]:
    """Return the figures that the RCP checker compared; only the arguments of its log messages have them."""
    reference, mean = (_messages.arguments.get(name) for name in ("RCP Record", "Submission mean epochs"))
    return {
        "samples": float(mean[0]) if mean else None,
        "reference_samples": float(reference["RCP Mean"]) if reference else None,
        "least_samples": float(reference["Min Epochs"]) if reference else None,
        "reference_batch_size": int(reference["BS"]) if reference else None,
    }


def description(job: Job) -> Answer:
    """Run the system description checker on one systems/NAME.json."""
    from mlperf_logging.system_desc_checker import system_desc_checker

    return {"valid": bool(system_desc_checker.check_system_desc(job["path"], "training", job["ruleset"])[0])}


def repository(job: Job) -> Answer:
    """Run the repository checker on a whole package."""
    from mlperf_logging.repo_checker import repo_checker

    repo_checker.run_checks(job["path"])
    return {}


TOOLS: dict[str, Callable[[Job], Answer]] = {
    "compliance_checker": compliance,
    "package_checker": package,
    "result_summarizer": summary,
    "rcp_checker": convergence,
    "system_desc_checker": description,
    "repo_checker": repository,
}


def run_job(job: Job) -> Answer:
    """Run one job and return the tool's answer and messages; `crash` is the reason if it broke off, else None."""
    _messages.messages.clear()
    _messages.arguments.clear()
    printed = io.StringIO()
    found: Answer = {"crash": None}
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed), redirect_stderr(io.StringIO()):
        warnings.simplefilter("always", UserWarning)
        try:
            found |= TOOLS[job["tool"]](job)
        except Exception as error:  # noqa: BLE001 — a tool may break off with anything on a hostile package
            found["crash"] = traceback.format_exception_only(error)[-1].strip()[:MAX_MESSAGE_LENGTH]
    found["messages"] = list(_messages.messages)
    found["messages"] += [
        ("WARNING", str(w.message)[:MAX_MESSAGE_LENGTH]) for w in caught[:MAX_MESSAGES] if w.category is UserWarning
    ]
    found["printed"] = printed.getvalue()[: MAX_MESSAGES * MAX_MESSAGE_LENGTH].splitlines()[:MAX_MESSAGES]
    return found


def patch_tools() -> None:
    """Patch the tools to cache what they parse and to reject rules outside of their folder; called once per process."""
    import yaml
    from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

    parse, enqueue = mlp_parser.parse_file, mlp_compliance.enqueue_config

    @lru_cache(32)
    def parse_cached(identity: Identity, path: str, ruleset: str) -> Any:
        return parse(path, ruleset=ruleset)

    def parse_once(filename: str, ruleset: str) -> Any:
        if Path(filename).stat().st_size > MAX_CACHED_BYTES:
            return parse(filename, ruleset=ruleset)
        lines, errors = parse_cached(_file_identity(filename), filename, ruleset)
        return list(lines), list(errors)

    def enqueue_checked(config: str) -> None:
        if "/" in config.partition("/")[2]:
            _foreign_rules.append(config)
            raise ValueError("rules outside of the tool's folder")
        enqueue(config)

    @lru_cache(64)
    def load_cached(text: str) -> Any:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506

    class CachedYaml:
        """Stands in for the yaml module."""

        BaseLoader = yaml.BaseLoader

        @staticmethod
        def load(file: Any, Loader: Any) -> Any:
            return load_cached(file.read())

    for name in dir(mlp_parser):
        if name.startswith("ruleset_"):
            getattr(mlp_parser, name).re = LastTokenRegex
    mlp_parser.parse_file = parse_once
    mlp_compliance.enqueue_config = enqueue_checked
    mlp_compliance.yaml = CachedYaml
    mlp_compliance.main = lambda path, config, checker: (_check_once(path, config, checker), None, None, None)


def patch_rcp_checker() -> None:
    """Patch the RCP checker; apart from `patch_tools`, since importing it takes half a second."""
    from mlperf_logging.rcp_checker import rcp_checker

    if rcp_checker.re is LastTokenRegex:
        return
    read = rcp_checker.read_submission_file

    @lru_cache(1024)
    def read_cached(identity: Identity, path: str, ruleset: str, by_train_samples: bool) -> Any:
        return read(path, ruleset, by_train_samples)

    search = rcp_checker.RCP_Checker._find_min_acceptable_mean
    found: dict[tuple[Any, ...], Any] = {}  # by all that the search depends on

    def search_once(self: Any, mean: Any, stdev: Any, samples: Any) -> Any:
        key = (self.submission_runs, self.tolerance, self.alpha, type(mean), mean, stdev, samples)
        if key not in found:
            found[key] = search(self, mean, stdev, samples)
        return found[key]

    rcp_checker.RCP_Checker._find_min_acceptable_mean = search_once
    rcp_checker.re = LastTokenRegex
    rcp_checker.read_submission_file = lambda path, ruleset, by: read_cached(_file_identity(path), path, ruleset, by)


class LastTokenRegex:
    """Stands in for the re module where the tools use it only to drop the text before a line's last token."""

    @staticmethod
    def sub(pattern: str, token: str, line: str) -> str:
        """Return re.sub(".*" + token, token, line), for one line with at most one line end, in linear time."""
        assert pattern == ".*" + token
        return line[line.rfind(token) :] if token in line else line


_verdicts_by_file: dict[tuple[Identity, str], bool] = {}


def _check_once(path: str, config: str, checker: Any) -> bool:
    """Return the compliance checker's verdict, run once per file."""
    key = (_file_identity(path), config)
    if key not in _verdicts_by_file:
        _verdicts_by_file[key] = bool(checker.check_file(path, config))
    return _verdicts_by_file[key]


def _file_identity(path: str) -> Identity:
    """Return a key that all hard links of an unchanged file share."""
    state = Path(path).stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _event_lines(path: str) -> list[int]:
    """Return the line number in the file, from 1, of each line with an event: the tools count only these."""
    with open(path, encoding="latin-1") as file:  # noqa: PTH123
        return [number for number, line in enumerate(file, 1) if ":::MLLOG " in line]


def _lower_limit(kind: int, most: int) -> None:
    """Lower one of this process's resource limits, unless the inherited hard limit is lower already."""
    _, hard = resource.getrlimit(kind)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (least, least))


def main() -> None:
    _lower_limit(resource.RLIMIT_AS, int(sys.argv[1]))
    _lower_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower_limit(resource.RLIMIT_CORE, 0)
    # Answers go to a copy of standard output, and standard output itself to standard error: whatever a tool prints by
    # its file descriptor cannot be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, handlers=[_messages])
    patch_tools()
    for line in sys.stdin:
        answers.write(json.dumps(run_job(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
