"""`podium submit package --description`: build a package from logs of any framework, for every benchmark.

The logs are copied byte for byte, and so is a system's JSON. What has no record, as Podium's own runs have, cannot be
compared: what the logs state is left to the checks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from podium.config.load import load_system
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder
from podium.core.text import format_list, printable, short_repr
from podium.mllog import rcp
from podium.mllog.benchmarks import Benchmark, find_benchmark
from podium.mllog.power import POWER
from podium.mllog.results_tree import LOGS, SCALING, read_description
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import RunLog
from podium.submission.archive import Limits, Tally, copy_file, copy_tree
from podium.submission.checks.layout import READMES
from podium.submission.describe import require_complete, stated, system_json
from podium.submission.package.build import (
    BuiltPackage,
    Checker,
    is_name,
    prepare_output,
    validate_name,
    write_checked,
)
from podium.submission.package.files import (
    RUN_SCRIPTS,
    SubmittedLogs,
    forwarding_script,
    logs_json,
    logs_readme,
    write_script,
)
from podium.submission.package.find_runs import read_by_time
from podium.submission.package.select_runs import select_window
from podium.submission.rcp import convergence

MAX_LOGS = 200  # of a folder, all of which are in memory at once
DIVISIONS = ("closed", "open")


@dataclass(frozen=True)
class LogsRequest:
    """The options of `podium submit package` with a description."""

    logs: tuple[Path, ...]  # folders, each with the logs of one benchmark
    description: Path  # a system's JSON, or a system file of Podium
    code: tuple[str, ...]  # FOLDER, or BENCHMARK=FOLDER where benchmarks have different ones
    out: Path
    org: str
    ruleset: Ruleset
    division: str | None = None  # a description of the other division is refused


@dataclass(frozen=True)
class _System:
    """A system's description."""

    name: str
    division: str
    framework: str
    content: bytes  # of systems/NAME.json


def package_logs(request: LogsRequest, checker: Checker, on_progress: Callable[[str], None]) -> BuiltPackage:
    """Build the package OUT/ORG from folders of logs.

    Raises UsageError for invalid options, WorkError with every reason for logs that cannot be submitted and for a
    package in which `checker` finds an error; then nothing is left behind.
    """
    validate_name(request.org, "--org")
    out = prepare_output(request.out)
    system = _read_system(request.description)
    if request.division not in (None, system.division):
        raise UsageError(
            f"--division {request.division}: {request.description} is of the {system.division} division, which the "
            "logs must have too; package it without --division"
        )
    sets: dict[str, list[RunLog]] = {}
    for folder in request.logs:
        on_progress(f"Reading the logs in {folder}")
        runs, rules = _read_set(folder, request.ruleset)
        if rules.name in sets:
            raise UsageError(
                f"{folder}: has logs of {rules.name}, as {sets[rules.name][0].path.parent} has; a system has one "
                "result of a benchmark: put all its consecutive runs into one folder"
            )
        sets[rules.name] = runs
    folders = _code_folders(request.code, tuple(sets), out)
    results = []
    for name, runs in sets.items():
        rules, code = request.ruleset.benchmarks[name], folders[name]
        selection = select_window(runs, rules.runs, rules.dropped)
        points = rcp.reference(name, request.ruleset.name) if system.division == "closed" else None
        found = None
        if points is not None:
            on_progress(f"Running the official RCP checker on {name}")
            found = convergence([run.path for run in selection.selected_runs], request.ruleset)
        unit = "samples" if points is None else points.unit
        results.append(
            SubmittedLogs(system.name, name, system.division, system.framework, selection, found, unit, code, code.name)
        )
    written: list[SubmittedLogs] = []

    def write(folder: Path) -> None:
        (make_folder(folder / "systems") / f"{system.name}.json").write_bytes(system.content)
        written.extend(_write_result(folder, one) for one in results)

    findings = write_checked(out / request.org, request.ruleset, write, checker, on_progress)
    return BuiltPackage(out / request.org, tuple(written), findings)


def _read_system(path: Path) -> _System:
    """Read a system's JSON, whose bytes are kept, or the description in a system file of Podium."""
    fields: Mapping[str, Any] | None
    if path.suffix in (".yaml", ".yml"):
        description = stated(load_system(str(path)))
        require_complete(str(path), description)
        fields, content = description, system_json(description).encode()
    else:
        if path.suffix != ".json" or not path.is_file():
            raise UsageError(
                f"--description {path}: is no such file; name the system's description as MLPerf has it, "
                "systems/NAME.json, or a system file of Podium, NAME.yaml"
            )
        fields, problem = read_description(path)
        if fields is None:
            raise UsageError(f"--description {path}: {problem}; correct the file")
        content = path.read_bytes()
    division, named, framework = (fields.get(key) for key in ("division", "system_name", "framework"))
    if division not in DIVISIONS:
        raise UsageError(f"{path}: division: found {short_repr(division)}, allowed is closed or open")
    name = named if isinstance(named, str) and is_name(named) else path.stem
    return _System(validate_name(name, f"--description {path}"), division, str(framework or ""), content)


def _read_set(folder: Path, ruleset: Ruleset) -> tuple[list[RunLog], Benchmark]:
    """Read the logs of one benchmark, the earliest run first, and return them with the benchmark.

    Raises UsageError for a folder without logs or with others than regular files, and for a benchmark that the ruleset
    does not have, WorkError with every reason for logs that are not one set.
    """
    runs = read_by_time(_find_logs(folder), "put the log itself there")
    reasons = list(_rejection_reasons(runs))
    if reasons:
        raise WorkError("\n".join(f"{folder}: {reason}" for reason in reasons))
    name = runs[0].benchmark
    known = find_benchmark(name)
    rules = None if known is None else ruleset.benchmarks.get(known.name)
    if rules is None:
        where = "" if known is None else f", but of the rounds {format_list(known.rounds)}"
        raise UsageError(
            f"{folder}: submission_benchmark is {_format(name)}, which is not a benchmark of ruleset {ruleset.name}"
            f"{where}; allowed are {', '.join(sorted(ruleset.benchmarks))}"
        )
    if len(runs) < rules.runs:
        raise WorkError(
            f"{folder}: has {len(runs)} runs; a result of {rules.name} needs {rules.runs} consecutive ones: "
            f"{rules.runs - len(runs)} more"
        )
    return runs, rules


def _find_logs(folder: Path) -> list[Path]:
    """Return all result_*.txt of a folder, or without any all *.txt and *.log."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder; name the folder of one benchmark's logs")
    found = sorted(folder.glob(LOGS)) or sorted({*folder.glob("*.txt"), *folder.glob("*.log")})
    logs = [path for path in found if not path.name.startswith(".")]
    if not logs:
        raise UsageError(f"{folder}: has no logs; allowed are {LOGS}, or *.txt and *.log")
    if len(logs) > MAX_LOGS:
        raise UsageError(f"{folder}: has {len(logs):,} logs; allowed are {MAX_LOGS}: leave those of one set")
    limit = Limits().file_bytes
    for path in logs:
        size = path.stat(follow_symlinks=False).st_size
        if size > limit:
            raise UsageError(
                f"{path}: has {size / (1 << 20):,.1f} MiB; a package takes files of up to {limit >> 20} MiB"
            )
    return logs


def _rejection_reasons(runs: Sequence[RunLog]) -> Iterator[str]:
    """Yield why logs are not those of one benchmark's runs on one system."""
    without = [run.name for run in runs if run.start_ms is None]
    if without:
        yield (
            f"run_start: not in {format_list(without, 3)}; every log must be that of a run: remove what is none, or "
            "restore the log"
        )
    started = [run for run in runs if run.start_ms is not None]
    for key, values in (
        ("submission_benchmark", [run.benchmark for run in started]),
        ("submission_platform", [run.platform for run in started]),
        ("submission_division", [run.division for run in started]),
        ("global_batch_size", [run.global_batch_size for run in started]),
    ):
        names = dict[Any, str]()
        for run, value in zip(started, values, strict=True):
            names.setdefault(value, run.name)
        if len(names) > 1:
            listed = ", ".join(f"{_format(value)} in {name}" for value, name in list(names.items())[:3])
            yield f"{key}: is {listed}; put each set of runs into its own folder"


def _format(value: Any) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float | int) else short_repr(value)


def _code_folders(given: Sequence[str], names: Sequence[str], out: Path) -> Mapping[str, Path]:
    """Return the folder of each benchmark's code. Raises UsageError for one that cannot be packaged."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        known = find_benchmark(name) if equals else None
        key, path = ("", Path(text)) if known is None else (known.name, Path(folder))
        if key in found:
            raise UsageError(
                f"--code {text}: is the second one; allowed is one FOLDER, and one BENCHMARK=FOLDER for each"
            )
        if key and key not in names:
            raise UsageError(f"--code {text}: there are no logs of {key}, but of {', '.join(names)}")
        found[key] = _validate_code(path, text, out)
    missing = [name for name in names if name not in found and "" not in found]
    if missing:
        raise UsageError(f"--code: no folder is named for {', '.join(missing)}; add --code {missing[0]}=FOLDER")
    if "" in found and set(names) <= found.keys():
        raise UsageError(f"--code {found['']}: every benchmark has another folder; leave it out")
    return {name: found.get(name, found.get("", Path())) for name in names}


def _validate_code(path: Path, text: str, out: Path) -> Path:
    if not path.is_dir():
        raise UsageError(f"--code {text}: is not a folder; name the folder of the code that made the runs")
    path = path.resolve()
    validate_name(path.name, f"--code {text}: the folder's name")
    if out.resolve().is_relative_to(path):
        raise UsageError(f"--code {text}: contains --out; name a folder outside of the code with --out")
    if not any(entry.name.lower() in READMES and entry.is_file() for entry in path.iterdir()):
        raise UsageError(
            f"--code {text}: has no README; MLPerf requires one: add README.md with the exact command of a run"
        )
    return path


def _write_result(folder: Path, one: SubmittedLogs) -> SubmittedLogs:
    """Write a benchmark's logs and code into ORG's folder; return the result with notes on what the package lacks."""
    tally = Tally(Limits(), leave_out=_is_rejected_name)
    results = make_folder(folder / "results" / one.system / one.benchmark)
    for number, run in enumerate(one.selection.selected_runs):
        copy_file(run.path, results / f"result_{number}.txt", tally, PurePosixPath(run.path))
    if one.convergence is not None and one.convergence.scaling is not None:
        (results / SCALING).write_bytes(one.convergence.scaling)
    benchmark = folder / "benchmarks" / one.benchmark
    code = make_folder(benchmark / "implementations") / one.implementation
    copy_tree(one.code, code, tally)
    if tally.findings:
        listed = [f"{finding.path}: {finding.message}" for finding in tally.findings]
        raise WorkError("\n".join([f"files of {one.label} cannot be part of a package, which was not made:", *listed]))
    _set_modes(one.code, code)
    for path in results.iterdir():
        path.chmod(0o644)
    scripts = [name for name in RUN_SCRIPTS if (code / name).is_file()]
    one = replace(one, notes=tuple(_notes(one, scripts, tally.left_out)))
    own = make_folder(benchmark / one.system)
    (own / "README.md").write_text(logs_readme(one), encoding="utf-8")
    (own / f"{one.system}_{one.implementation}.json").write_text(logs_json(one), encoding="utf-8")
    for name in scripts:
        write_script(own / name, forwarding_script(one, name))
    return one


def _notes(one: SubmittedLogs, scripts: Sequence[str], left_out: Sequence[PurePosixPath]) -> Iterator[str]:
    missing = [name for name in RUN_SCRIPTS if name not in scripts]
    if missing:
        yield (
            f"the code has no {', '.join(missing)} at its top; MLPerf's rules require such scripts in "
            f"benchmarks/{one.benchmark}/{one.system}: add them"
        )
    if left_out:
        names = format_list([printable(str(path)) for path in left_out])
        yield f"left out of the code, since MLPerf's repositories do not accept such names: {names}"
    if (one.selection.runs[0].path.parent / POWER).exists():
        yield f"{POWER}/ is not packaged; add the power logs of the submitted runs, numbered as these"


def _is_rejected_name(name: str) -> bool:
    """Whether MLPerf's repositories do not accept the name of a file or folder."""
    return name.startswith(".") or " " in name


def _set_modes(source: Path, copy: Path) -> None:
    """Make folders and files readable, and executable what is so in the source."""
    copy.chmod(0o755)
    for path in copy.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
        else:
            mode = (source / path.relative_to(copy)).stat(follow_symlinks=False).st_mode
            path.chmod(0o755 if mode & 0o100 else 0o644)
