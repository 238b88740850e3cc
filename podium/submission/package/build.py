"""`podium submit package`: build a folder that can be uploaded to MLPerf from the runs of one or several systems.

The package is built under a temporary name beside its destination, checked by every check, and renamed. Where a check
fails, nothing is left behind. The names of its folders and files are validated.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from podium.config.load import load_system, shown_path, system_path
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.files import PARTIAL_SUFFIX, make_folder
from podium.core.finding import Finding, has_errors
from podium.core.paths import CODE_FOLDER, INSTALLED
from podium.mllog.lines import TOKEN
from podium.mllog.results_tree import SCALING
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import RunLog
from podium.run.records import RunRecord
from podium.run.results import BENCHMARK
from podium.run.source import ADD_LICENCE, NO_LICENCE, has_licence, licence_files
from podium.submission.checks.context import CheckedRun
from podium.submission.checks.runs import check_configured
from podium.submission.describe import require_complete, stated, system_json
from podium.submission.package.code import find_code, third_party, unpack
from podium.submission.package.compare_records import RecordedRuns, describe_comparison, find_contradictions
from podium.submission.package.data import compare_data
from podium.submission.package.files import (
    IMPLEMENTATION,
    PROJECT_README,
    SubmittedLogs,
    SubmittedSystem,
    code_readme,
    implementation_json,
    init_datasets_script,
    render_system_file,
    run_and_time_script,
    setup_script,
    submitted_config,
    system_readme,
    third_party_notice,
    write_script,
)
from podium.submission.package.find_runs import find_records, locate_runs, logs_folder, read_runs, runs_folder
from podium.submission.package.select_runs import rejection_reasons, select_window
from podium.submission.rcp import convergence

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def is_name(name: str) -> bool:
    """Whether git and MLPerf's repo_checker accept a folder's name."""
    return NAME.fullmatch(name) is not None and ".." not in name and not name.endswith(".")


def validate_name(name: str, what: str) -> str:
    """Return a folder name that git and MLPerf's repo_checker accept.

    Raises UsageError for any other name; `what` is the option or key it comes from.
    """
    if not is_name(name):
        raise UsageError(
            f"{what}: found {name!r}; allowed is a name of up to 100 letters, digits and _ . + - that begins with a "
            "letter or a digit, since it becomes a folder of MLPerf's repository"
        )
    return name


Checker = Callable[[Path, Ruleset], Sequence[Finding]]


@dataclass(frozen=True)
class PackageRequest:
    """The options of `podium submit package`."""

    systems: tuple[str, ...]  # names or files of systems, sets of their runs, or their folders under results/
    out: Path
    org: str
    ruleset: Ruleset
    division: str | None = None  # systems of the other division are refused
    results: Path | None = None  # instead of results/, or a folder of logs
    runs: Path | None = None  # instead of runs/
    allow_other_code: bool = False
    repository: Path = CODE_FOLDER  # the git repository with the code of the runs


@dataclass(frozen=True)
class BuiltPackage:
    """A package that was built, and the findings of the checks, which are warnings only."""

    folder: Path  # OUT/ORG
    systems: tuple[SubmittedSystem | SubmittedLogs, ...]
    findings: tuple[Finding, ...]


def package(request: PackageRequest, checker: Checker, on_progress: Callable[[str], None]) -> BuiltPackage:
    """Build the package OUT/ORG.

    Raises UsageError for invalid options and in an installation without a repository, WorkError with every reason for
    runs that cannot be submitted and for a package in which `checker` finds an error; then nothing is left behind.
    """
    if INSTALLED:
        raise UsageError(
            "a package contains the code of the runs from its git repository; run and package in a clone of Podium"
        )
    validate_name(request.org, "--org")
    out = prepare_output(request.out)
    systems = [_select_system(system, request, on_progress) for system in request.systems]
    _check_distinct_names(systems)
    findings = write_checked(
        out / request.org,
        request.ruleset,
        lambda folder: _write_package(folder, systems, request),
        checker,
        on_progress,
    )
    return BuiltPackage(out / request.org, tuple(systems), findings)


def write_checked(
    package: Path,
    ruleset: Ruleset,
    write: Callable[[Path], None],
    checker: Checker,
    on_progress: Callable[[str], None],
) -> tuple[Finding, ...]:
    """Have `write` fill the package OUT/ORG under a temporary name, check it and rename it; return the warnings.

    Raises WorkError where `checker` finds an error, or the package cannot be written; then nothing is left behind.
    """
    out, org = package.parent, package.name
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        make_folder(temporary / org)
        on_progress("Writing the package")
        write(temporary / org)
        on_progress("Running all checks")
        findings = sorted(
            [*checker(temporary / org, ruleset), *_licence_findings(temporary / org)],
            key=lambda finding: (finding.path, finding.rule, finding.message),
        )
        if has_errors(findings):
            raise WorkError(_rejection_message(findings, ruleset))
        temporary.replace(out)
    except OSError as error:
        raise WorkError(
            f"{out}: cannot be written ({error.strerror or error}); check permissions and free space"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return tuple(findings)


def prepare_output(out: Path) -> Path:
    """Return the absolute path of the output folder; UsageError unless it is missing or empty."""
    out = out.absolute()
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"--out {out}: exists and is not an empty folder; name a new one")
    make_folder(out.parent)
    return out


def _select_system(system_or_runs: str, request: PackageRequest, on_progress: Callable[[str], None]) -> SubmittedSystem:
    """Return a system's runs and configuration, with the present description in its file.

    Raises WorkError with every reason if the runs cannot be submitted, UsageError if there are none.
    """
    location = locate_runs(system_or_runs)
    system = location.system
    now = load_system(system)
    description = now.description
    require_complete(shown_path(system_path(system)), stated(now))
    name = validate_name(description.system_name, f"{system}: description.system_name")
    if request.division not in (None, description.division):
        raise UsageError(
            f"--division {request.division}: {system} is of the {description.division} division, and so are its logs; "
            "package it without --division, or set description.division and run again"
        )
    on_progress(f"Reading the runs of {now.system}")
    logs = logs_folder(location, now.system, request.results)
    runs = read_runs(logs)
    folder = runs_folder(logs, now.system, request.runs)
    records = find_records(runs, folder)
    recorded = RecordedRuns(runs, records, description)
    reasons = rejection_reasons(runs, description, request.org)
    reasons += find_contradictions(recorded)
    selection = None if reasons else select_window(runs)
    kept = [records[run.path] for run in selection.selected_runs if run.path in records] if selection else []
    if selection and not kept:
        reasons.append(
            f"resolved configuration: no folder in {folder} is of these runs (none has their seeds), so that their "
            "configuration is not known; name the folder of all runs with --runs"
        )
    reasons += [
        f"same settings: {difference}" for difference in _configuration_differences([record.config for record in kept])
    ]
    data_reasons, notes = compare_data(kept, now.launch, on_progress) if kept and not reasons else ([], [])
    reasons += data_reasons
    if selection:
        reasons += _log_differences(selection.selected_runs, records)
    if reasons or selection is None:
        raise WorkError("\n".join(f"{now.system}: {reason}" for reason in reasons))
    code = find_code(selection.selected_runs, records, request.allow_other_code, request.repository)
    found = None
    if description.division == "closed":
        on_progress("Running the official RCP checker")
        found = convergence([run.path for run in selection.selected_runs], request.ruleset)
    config = submitted_config(kept[0].config.model_copy(update={"description": description}), now)
    same, unknown = describe_comparison(recorded)
    return SubmittedSystem(name, config, selection, found, code, compared=tuple(same), notes=(*unknown, *notes))


def _configuration_differences(configs: Sequence[RunConfig]) -> Iterable[str]:
    """Yield the first key in which resolved configurations differ, other than seed and description."""
    settings = [config.model_dump(mode="json", exclude={"seed", "description"}) for config in configs]
    for first, other in pairwise(settings):
        for key in first:
            if first[key] != other[key]:
                yield f"the resolved configurations differ in {key}: {first[key]} and {other[key]}"
                return


def _log_differences(runs: Sequence[RunLog], records: Mapping[Path, RunRecord]) -> Iterator[str]:
    """Yield the logged settings that differ from the configuration kept with each run."""
    for run in runs:
        config = records[run.path].config if run.path in records else None
        if config is not None and config.seed is not None:
            for finding in check_configured(CheckedRun(run.name, run, None), {config.seed: config}):
                yield f"{finding.rule}: {run.name}: {finding.message}"


def _check_distinct_names(systems: Sequence[SubmittedSystem]) -> None:
    names = [one.system.lower() for one in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two systems have the description.system_name {twice}; each needs a different one")


def _write_package(folder: Path, systems: Sequence[SubmittedSystem], request: PackageRequest) -> None:
    """Write the folder ORG: systems/, results/ and benchmarks/, with one implementation for each commit."""
    for number, code in enumerate(dict.fromkeys(one.code for one in systems)):
        implementation = IMPLEMENTATION if number == 0 else f"{IMPLEMENTATION}_{number + 1}"
        made = [replace(one, implementation=implementation) for one in systems if one.code == code]
        for one in made:
            _write_system(folder, one)
        _write_code(folder / "benchmarks" / BENCHMARK / "implementations" / implementation, made, request)


def _write_system(folder: Path, one: SubmittedSystem) -> None:
    description = make_folder(folder / "systems") / f"{one.system}.json"
    description.write_text(system_json(stated(one.config)), encoding="utf-8")
    results = make_folder(folder / "results" / one.system / BENCHMARK)
    for number, run in enumerate(one.selection.selected_runs):
        (results / f"result_{number}.txt").write_bytes(strip_log(run.path.read_bytes()))
    if one.convergence is not None and one.convergence.scaling is not None:
        (results / SCALING).write_bytes(one.convergence.scaling)
    own = make_folder(folder / "benchmarks" / BENCHMARK / one.system)
    (own / "README.md").write_text(system_readme(one), encoding="utf-8")
    (own / f"{one.system}_{one.implementation}.json").write_text(implementation_json(one), encoding="utf-8")
    write_script(own / "setup.sh", setup_script(one))
    write_script(own / "init_datasets.sh", init_datasets_script(one))
    write_script(own / "run_and_time.sh", run_and_time_script(one))


def _write_code(place: Path, systems: Sequence[SubmittedSystem], request: PackageRequest) -> None:
    left_out = unpack(systems[0].code.commit, make_folder(place), request.repository)
    readme = place / "README.md"
    readme.rename(place / PROJECT_README)
    readme.write_text(code_readme(systems, left_out, licence_files(place), request.org), encoding="utf-8")
    notice = third_party_notice(third_party(place / "pyproject.toml"))
    (place / "THIRD_PARTY.md").write_text(notice, encoding="utf-8")
    for one in systems:
        file = place / one.configuration
        make_folder(file.parent)
        file.write_text(render_system_file(one.config), encoding="utf-8")


def _licence_findings(folder: Path) -> Iterator[Finding]:
    """Yield a warning for each folder of code in ORG's folder that has no licence file."""
    for place in sorted((folder / "benchmarks").glob("*/implementations/*")):
        if not has_licence(place):
            yield Finding.warning(place.relative_to(folder).as_posix(), "licence", f"{NO_LICENCE}; {ADD_LICENCE}")


def strip_log(log: bytes) -> bytes:
    """Return a log's MLLOG lines, each from its token on and otherwise unchanged."""
    lines = (line.rpartition(TOKEN) for line in log.splitlines())
    return b"".join(TOKEN + event + b"\n" for _, found, event in lines if found)


def _rejection_message(findings: Sequence[Finding], ruleset: Ruleset) -> str:
    errors = sorted({f"{f.rule}: {f.path}: {f.message} ({f.source})" for f in findings if f.severity == "error"})
    return "\n".join([f"the package would be rejected under ruleset {ruleset.name} and was not made:", *errors])
