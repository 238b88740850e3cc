"""The process in which MLPerf's own tools run, one job after the other; `runner` communicates with it.

A job is a line of JSON on standard input, its answer a line on standard output. The tools are called as by their own
command lines, with five differences that change no verdict: what one of them has parsed or judged is cached for the
next one, their rules are parsed from YAML once and not for every file, the least mean that a reference accepts is
searched for once and not for every result, the last token of a line is searched for without a regular expression
(theirs is quadratic in the line's length), and the rules that a log names must lie in the tool's own folder. (The
compliance checker puts submission_division into a path and executes the Python that it finds there, so that a log could
name a file of its own.)
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

MEMORY_BYTES = 4 << 30  # what the process may take, unless it is told otherwise in its only argument
MAX_FILE_BYTES = 64 << 20
MAX_REMEMBERED = 4 << 20  # bytes of a log of which the parsed events are kept for the next tool
MAX_WORDS = 200
MAX_WORD_LENGTH = 2000

Answer = dict[str, Any]
Job = dict[str, Any]
Identity = tuple[int, int, int, int]


class _Words(logging.Handler):
    """Keeps what the tools log at WARNING and above, and their verdicts."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []
        self.arguments: dict[str, Any] = {}  # of the messages that were kept, by the text before their colon

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.said) < MAX_WORDS:
            words = record.getMessage()
            if record.levelno >= logging.WARNING or words.strip().startswith(_VERDICTS):
                self.said.append((record.levelname, words[:MAX_WORD_LENGTH]))
                self.arguments[words.strip().partition(":")[0]] = record.args


_VERDICTS = (
    "PACKAGE CHECKER FOUND",
    "CHECKS FAILED",
    "ALL CHECKS PASSED",
    "RCP Record: ",
    "Submission mean epochs: ",
)

_words = _Words()
_outside: list[str] = []  # rules that the log at hand named out of the tool's folder


def compliance(job: Job) -> Answer:
    """The compliance checker on one log: its verdict, its warnings and its errors."""
    from mlperf_logging.compliance_checker import mlp_compliance

    path, ruleset = job["path"], job["ruleset"]
    _outside.clear()
    mlp_compliance.enqueued_configs.clear()  # what a log that it broke off with has left
    checker = mlp_compliance.make_checker("training", ruleset, False, False)
    config = f"training_{ruleset}/common.yaml"
    valid = bool(_checked(path, config, checker))
    if _outside:
        return {"refused": _outside[0][:200]}
    errors = [*checker.overwritable.values(), *checker.not_overwritable]
    return {
        "valid": valid,
        "warnings": [text[:MAX_WORD_LENGTH] for text in list(checker.warnings.values())[:MAX_WORDS]],
        "errors": [text[:MAX_WORD_LENGTH] for text in errors[:MAX_WORDS]],
        "lines": _event_lines(path) if errors or checker.warnings else [],
    }


def package(job: Job) -> Answer:
    """The package checker, with its seed, RCP and system checkers, on a package of one system; writes scaling.json."""
    from mlperf_logging.package_checker import package_checker

    adapt_rcp()

    package_checker.check_training_package(
        job["path"], "training", job["ruleset"], False, False, False, job["train_samples"], False, os.devnull
    )
    return {"figures": _rcp_figures()}


def summary(job: Job) -> Answer:
    """The result summarizer on a package of one system: BERT's score in minutes, if there is one."""
    from mlperf_logging.result_summarizer import result_summarizer

    adapt_rcp()

    strong, *_ = result_summarizer.summarize_results(job["path"], "training", job["ruleset"])
    scores = [float(score) for score in strong["bert"] if score is not None and score == score]
    return {"minutes": scores[0] if scores else None}


def convergence(job: Job) -> Answer:
    """The RCP checker on a folder of logs; writes scaling.json into that folder."""
    from mlperf_logging.rcp_checker import rcp_checker

    adapt_rcp()

    points = {"rcp_pass": "pruned_rcps"}  # as the package checker asks
    passed, words, factor = rcp_checker.check_directory(
        job["path"], "training", job["ruleset"], False, False, set_scaling=True, **points
    )
    return {"convergence": {"passed": bool(passed), "words": words, "factor": float(factor), **_rcp_figures()}}


def _rcp_figures() -> dict[str, float | None]:
    """What the RCP checker found and compared with, which is in the arguments of its log messages alone."""
    reference, mean = (_words.arguments.get(name) for name in ("RCP Record", "Submission mean epochs"))
    return {
        "samples": float(mean[0]) if mean else None,
        "reference_samples": float(reference["RCP Mean"]) if reference else None,
        "least_samples": float(reference["Min Epochs"]) if reference else None,
        "reference_batch_size": int(reference["BS"]) if reference else None,
    }


def description(job: Job) -> Answer:
    """The system description checker on one systems/NAME.json."""
    from mlperf_logging.system_desc_checker import system_desc_checker

    return {"valid": bool(system_desc_checker.check_system_desc(job["path"], "training", job["ruleset"])[0])}


def repository(job: Job) -> Answer:
    """The repository checker on a whole package."""
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


def answer(job: Job) -> Answer:
    """What a tool said; `crash` where it broke off instead."""
    _words.said.clear()
    _words.arguments.clear()
    printed = io.StringIO()
    found: Answer = {"crash": None}
    with warnings.catch_warnings(record=True) as warned, redirect_stdout(printed), redirect_stderr(io.StringIO()):
        warnings.simplefilter("always", UserWarning)
        try:
            found |= TOOLS[job["tool"]](job)
        except Exception as error:  # noqa: BLE001
            found["crash"] = traceback.format_exception_only(error)[-1].strip()[:MAX_WORD_LENGTH]
    found["words"] = list(_words.said)
    found["words"] += [
        ("WARNING", str(w.message)[:MAX_WORD_LENGTH]) for w in warned[:MAX_WORDS] if w.category is UserWarning
    ]
    found["printed"] = printed.getvalue()[: MAX_WORDS * MAX_WORD_LENGTH].splitlines()[:MAX_WORDS]
    return found


def adapt() -> None:
    """Let the tools remember what they have read, and hold them to their own rules; once a process."""
    import yaml
    from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

    parse, enqueue = mlp_parser.parse_file, mlp_compliance.enqueue_config

    @lru_cache(32)
    def parsed(identity: Identity, path: str, ruleset: str) -> Any:
        return parse(path, ruleset=ruleset)

    def parse_once(filename: str, ruleset: str) -> Any:
        if Path(filename).stat().st_size > MAX_REMEMBERED:
            return parse(filename, ruleset=ruleset)
        lines, errors = parsed(_identity(filename), filename, ruleset)
        return list(lines), list(errors)

    def enqueue_own(config: str) -> None:
        if "/" in config.partition("/")[2]:
            _outside.append(config)
            raise ValueError("rules out of the tool's own folder")
        enqueue(config)

    @lru_cache(64)
    def rules(text: str) -> Any:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506

    class Rules:
        """In the place of the yaml module."""

        BaseLoader = yaml.BaseLoader

        @staticmethod
        def load(file: Any, Loader: Any) -> Any:
            return rules(file.read())

    for name in dir(mlp_parser):
        if name.startswith("ruleset_"):
            getattr(mlp_parser, name).re = LastToken
    mlp_parser.parse_file = parse_once
    mlp_compliance.enqueue_config = enqueue_own
    mlp_compliance.yaml = Rules
    mlp_compliance.main = lambda path, config, checker: (_checked(path, config, checker), None, None, None)


def adapt_rcp() -> None:
    """As `adapt`, for the RCP checker: a module that takes half a second to import."""
    from mlperf_logging.rcp_checker import rcp_checker

    if rcp_checker.re is LastToken:
        return
    read = rcp_checker.read_submission_file

    @lru_cache(1024)
    def remembered(identity: Identity, path: str, ruleset: str, by_train_samples: bool) -> Any:
        return read(path, ruleset, by_train_samples)

    search = rcp_checker.RCP_Checker._find_min_acceptable_mean
    found: dict[tuple[Any, ...], Any] = {}

    def search_once(self: Any, mean: Any, stdev: Any, samples: Any) -> Any:
        key = (self.submission_runs, self.tolerance, self.alpha, type(mean), mean, stdev, samples)
        if key not in found:
            found[key] = search(self, mean, stdev, samples)
        return found[key]

    rcp_checker.RCP_Checker._find_min_acceptable_mean = search_once
    rcp_checker.re = LastToken
    rcp_checker.read_submission_file = lambda path, ruleset, by: remembered(_identity(path), path, ruleset, by)


class LastToken:
    """In the place of the re module where it only ever drops what stands before a line's last token."""

    @staticmethod
    def sub(pattern: str, token: str, line: str) -> str:
        """As re.sub(".*" + token, token, line) for one line with one line end at most."""
        assert pattern == ".*" + token
        return line[line.rfind(token) :] if token in line else line


_judged: dict[tuple[Identity, str], bool] = {}


def _checked(path: str, config: str, checker: Any) -> bool:
    """The compliance checker's verdict, asked once a file."""
    key = (_identity(path), config)
    if key not in _judged:
        _judged[key] = bool(checker.check_file(path, config))
    return _judged[key]


def _identity(path: str) -> Identity:
    """The same for all hard links of a file."""
    state = Path(path).stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _event_lines(path: str) -> list[int]:
    """The line in the file, from 1, of each line that the tools count: those with an event."""
    with open(path, encoding="latin-1") as file:  # noqa: PTH123
        return [number for number, line in enumerate(file, 1) if ":::MLLOG " in line]


def _limit(kind: int, most: int) -> None:
    """Set one of this process's limits, or keep the one that whoever started Podium has set, if that is less."""
    _, hard = resource.getrlimit(kind)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (least, least))


def main() -> None:
    _limit(resource.RLIMIT_AS, int(sys.argv[1]))
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, handlers=[_words])
    adapt()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
