"""`podium submit package`: builds a folder that can be uploaded to MLPerf from the runs of one or several systems.

Nothing is left behind unless all of it is right: the package is built under a temporary name beside its destination,
checked by every check, and renamed. The names of its folders and files are validated.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.files import UNFINISHED, make_folder
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
from podium.submission.describe import stated, system_json
from podium.submission.package.code import code_of, third_party, unpack
from podium.submission.package.compare_records import Recorded, compared, contradictions
from podium.submission.package.data import compare_data
from podium.submission.package.files import (
    IMPLEMENTATION,
    PROJECT_README,
    Submitted,
    code_readme,
    implementation_json,
    init_datasets,
    run_and_time,
    setup,
    submitted,
    system_file,
    system_readme,
    third_party_notice,
    write_script,
)
from podium.submission.package.find_runs import find_place, find_records, logs_folder, read_runs, runs_folder
from podium.submission.package.select_runs import choose, refusals
from podium.submission.rcp import convergence

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def checked_name(name: str, what: str) -> str:
    """A name of a folder that git and MLPerf's repo_checker take; else UsageError. `what` says where it was given."""
    if not NAME.fullmatch(name) or ".." in name or name.endswith("."):
        raise UsageError(
            f"{what}: found {name!r}; allowed is a name of up to 100 letters, digits and _ . + - that begins with a "
            "letter or a digit, since it becomes a folder of MLPerf's repository"
        )
    return name


Judge = Callable[[Path, Ruleset], Sequence[Finding]]


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    systems: tuple[str, ...]  # or sets of their runs, or their folders under results/
    out: Path
    org: str
    ruleset: Ruleset
    division: str | None = None  # refuses systems of the other one
    results: Path | None = None  # instead of results/, or a folder of logs
    runs: Path | None = None  # instead of runs/
    allow_other_code: bool = False
    repository: Path = CODE_FOLDER  # whose commits hold the code


@dataclass(frozen=True)
class Packaged:
    """A package that was made, and what the checks said of it: no errors, warnings perhaps."""

    folder: Path  # ORG's
    systems: tuple[Submitted, ...]
    findings: tuple[Finding, ...]


def package(wish: Wish, judge: Judge, on_progress: Callable[[str], None]) -> Packaged:
    """Make the package OUT/ORG.

    Raises UsageError for a wish that cannot be and in an installation, WorkError for runs that cannot be submitted and
    for a package in which the judge finds an error, with every reason; then nothing is left behind.
    """
    if INSTALLED:
        raise UsageError(
            "a package holds the code of the runs as its repository has it; run and package in a clone of Podium"
        )
    checked_name(wish.org, "--org")
    out = _free(wish.out)
    systems = [_chosen(system, wish, on_progress) for system in wish.systems]
    _distinct(systems)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        make_folder(temporary / wish.org)
        on_progress("Writing the package")
        _write(temporary / wish.org, systems, wish)
        on_progress("Asking every checker")
        found = [*judge(temporary / wish.org, wish.ruleset), *_licence_findings(temporary / wish.org)]
        findings = sorted(found, key=lambda one: (one.path, one.rule, one.message))
        if has_errors(findings):
            raise WorkError(_rejection(findings, wish.ruleset))
        temporary.replace(out)
    except OSError as error:
        raise WorkError(f"{out}: cannot be written ({error.strerror or error}); see that the disk has space") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Packaged(out / wish.org, tuple(systems), tuple(findings))


def _free(out: Path) -> Path:
    """The place of the package, where nothing is yet."""
    out = out.absolute()
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"--out {out}: is there and is not an empty folder; name a new one")
    make_folder(out.parent)
    return out


def _chosen(asked: str, wish: Wish, on_progress: Callable[[str], None]) -> Submitted:
    """The system's runs and configuration, with the description that its file has at present."""
    place = find_place(asked)
    system = place.system
    now = load_system(system)
    description = now.description
    name = checked_name(description.system_name, f"{system}: description.system_name")
    if wish.division not in (None, description.division):
        raise UsageError(
            f"--division {wish.division}: {system} is of the {description.division} division, and so are its logs; "
            "package it without --division, or set description.division and run again"
        )
    on_progress(f"Reading the runs of {now.system}")
    logs = logs_folder(place, now.system, wish.results)
    runs = read_runs(logs)
    folder = runs_folder(logs, now.system, wish.runs)
    records = find_records(runs, folder)
    recorded = Recorded(runs, records, description)
    reasons = refusals(runs, description, wish.org)
    reasons += contradictions(recorded)
    choice = None if reasons else choose(runs)
    kept = [records[run.path] for run in choice.chosen if run.path in records] if choice else []
    if choice and not kept:
        reasons.append(
            f"resolved configuration: no folder in {folder} is of these runs (their seeds are in none), so that it is "
            "not known how they were configured; name the folder of all runs with --runs"
        )
    reasons += [f"same settings: {words}" for words in _unlike([record.config for record in kept])]
    unlike, notes = compare_data(kept, now.launch, on_progress) if kept and not reasons else ([], [])
    reasons += unlike
    if choice:
        reasons += _not_as_configured(choice.chosen, records)
    if reasons or choice is None:
        raise WorkError("\n".join(f"{now.system}: {reason}" for reason in reasons))
    code = code_of(choice.chosen, records, wish.allow_other_code, wish.repository)
    found = None
    if description.division == "closed":
        on_progress("Asking the official RCP checker")
        found = convergence([run.path for run in choice.chosen], wish.ruleset)
    config = submitted(kept[0].config.model_copy(update={"description": description}), now)
    same, unknown = compared(recorded)
    return Submitted(name, config, choice, found, code, compared=tuple(same), notes=(*unknown, *notes))


def _unlike(configs: Sequence[RunConfig]) -> Iterable[str]:
    """The first key in which the resolved configurations differ, seeds and descriptions left out."""
    settings = [config.model_dump(mode="json", exclude={"seed", "description"}) for config in configs]
    for first, other in pairwise(settings):
        for key in first:
            if first[key] != other[key]:
                yield f"the resolved configurations differ in {key}: {first[key]} and {other[key]}"
                return


def _not_as_configured(runs: Sequence[RunLog], records: Mapping[Path, RunRecord]) -> Iterator[str]:
    """What logs say of the settings against the configuration that is kept with each run."""
    for run in runs:
        config = records[run.path].config if run.path in records else None
        if config is not None and config.seed is not None:
            for finding in check_configured(CheckedRun(run.name, run, None), {config.seed: config}):
                yield f"{finding.rule}: {run.name}: {finding.message}"


def _distinct(systems: Sequence[Submitted]) -> None:
    names = [one.system.lower() for one in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"two systems have the description.system_name {twice}; each folder of a package is one system's"
        )


def _write(folder: Path, systems: Sequence[Submitted], wish: Wish) -> None:
    """ORG's folder: systems/, results/ and benchmarks/."""
    for number, code in enumerate(dict.fromkeys(one.code for one in systems)):
        implementation = IMPLEMENTATION if number == 0 else f"{IMPLEMENTATION}_{number + 1}"
        made = [replace(one, implementation=implementation) for one in systems if one.code == code]
        for one in made:
            _write_system(folder, one)
        _write_code(folder / "benchmarks" / BENCHMARK / "implementations" / implementation, made, wish)


def _write_system(folder: Path, one: Submitted) -> None:
    description = make_folder(folder / "systems") / f"{one.system}.json"
    description.write_text(system_json(stated(one.config)), encoding="utf-8")
    results = make_folder(folder / "results" / one.system / BENCHMARK)
    for number, run in enumerate(one.choice.chosen):
        (results / f"result_{number}.txt").write_bytes(stripped(run.path.read_bytes()))
    if one.convergence is not None and one.convergence.scaling is not None:
        (results / SCALING).write_bytes(one.convergence.scaling)
    own = make_folder(folder / "benchmarks" / BENCHMARK / one.system)
    (own / "README.md").write_text(system_readme(one), encoding="utf-8")
    (own / f"{one.system}_{one.implementation}.json").write_text(implementation_json(one), encoding="utf-8")
    write_script(own / "setup.sh", setup(one))
    write_script(own / "init_datasets.sh", init_datasets(one))
    write_script(own / "run_and_time.sh", run_and_time(one))


def _write_code(place: Path, systems: Sequence[Submitted], wish: Wish) -> None:
    left_out = unpack(systems[0].code.commit, make_folder(place), wish.repository)
    readme = place / "README.md"
    readme.rename(place / PROJECT_README)
    readme.write_text(code_readme(systems, left_out, licence_files(place), wish.org), encoding="utf-8")
    notice = third_party_notice(third_party(place / "pyproject.toml"))
    (place / "THIRD_PARTY.md").write_text(notice, encoding="utf-8")
    for one in systems:
        file = place / one.configuration
        make_folder(file.parent)
        file.write_text(system_file(one.config), encoding="utf-8")


def _licence_findings(folder: Path) -> Iterator[Finding]:
    """A warning for each folder of code in ORG's folder that has no licence file."""
    for place in sorted((folder / "benchmarks" / BENCHMARK / "implementations").iterdir()):
        if not has_licence(place):
            yield Finding.warning(place.relative_to(folder).as_posix(), "licence", f"{NO_LICENCE}; {ADD_LICENCE}")


def stripped(log: bytes) -> bytes:
    """A log's MLLOG lines, each from its token on and with no other change."""
    lines = (line.rpartition(TOKEN) for line in log.splitlines())
    return b"".join(TOKEN + event + b"\n" for _, found, event in lines if found)


def _rejection(findings: Sequence[Finding], ruleset: Ruleset) -> str:
    errors = sorted({f"{f.rule}: {f.path}: {f.message} ({f.source})" for f in findings if f.severity == "error"})
    return "\n".join([f"the package would be rejected under ruleset {ruleset.name}, so that it is not made:", *errors])
