"""Checks of the files of a package: the code that made the results, unexpected entries, and names valid in git."""

from podium.core.finding import Finding
from podium.core.text import short_repr
from podium.mllog.results_tree import list_folders
from podium.mllog.rulesets import Ruleset
from podium.run.set_record import SET
from podium.submission.checks.context import CheckedPackage, CheckedRun, Findings
from podium.submission.checks.sets import fingerprints

MAX_PATH = 255
FORBIDDEN_CHARACTERS = frozenset('<>:"|?*')  # characters that Windows does not allow in names
RESERVED_NAMES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))}
)
CODE_SUFFIXES = (".py", ".sh", ".sub", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh")
READMES = ("readme.md", "readme.txt", "readme.rst", "readme")


def _check_code(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check that the code of each benchmark is there. Accepted packages have it in other places too, a warning."""
    root = checked.package.root
    if not (root / "results").is_dir() or not checked.sets:
        return
    if not (root / "benchmarks").is_dir():
        message = "there is no benchmarks/; the code that made the results is part of a submission"
        yield Finding.warning(".", "code_missing", message)
        return
    for name in sorted({runs.folder.benchmark for runs in checked.sets}):
        yield from _check_benchmark_code(checked, name)


def _check_benchmark_code(checked: CheckedPackage, name: str) -> Findings:
    benchmark = checked.package.root / "benchmarks" / name
    found = list(list_folders(benchmark / "implementations"))
    if not found:
        message = f"there is no benchmarks/{name}/implementations/NAME; the code that made the results belongs there"
        yield Finding.warning("benchmarks", "code_missing", message)
    for folder in found:
        if not any(path.name.lower() in READMES and path.is_file() for path in folder.iterdir()):
            message = "has no README; add one with the exact command that runs the benchmark"
            yield Finding.warning(checked.package.relative(folder), "readme_missing", message)
        if not any(path.suffix in CODE_SUFFIXES for path in folder.rglob("*")):
            yield Finding.error(checked.package.relative(folder), "code_missing", "has no source file")
    for system in dict.fromkeys(runs.folder.system for runs in checked.sets if runs.folder.benchmark == name):
        if not (benchmark / system).is_dir():
            message = f"there is no benchmarks/{name}/{system}; the rules require its set-up and run scripts there"
            yield Finding.warning(f"benchmarks/{name}", "system_code_missing", message)


def _check_file_names(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check for names that break a checkout; `archive` has refused links, large files and unprintable names before."""
    lower: dict[str, str] = {}
    for path in sorted(checked.package.root.rglob("*")):
        name, whole_name = path.name, checked.package.relative(path)
        if name.startswith(".") or " " in name:
            message = "the name begins with a dot or has a space, which repo_checker rejects; rename it"
            yield Finding.error(whole_name, "file_name", message)
        elif not FORBIDDEN_CHARACTERS.isdisjoint(name):
            message = "the name has characters that cannot be checked out on Windows; rename it"
            yield Finding.error(whole_name, "file_name", message)
        elif name.endswith(".") or name.split(".")[0].lower() in RESERVED_NAMES:
            yield Finding.warning(whole_name, "file_name", "the name cannot be checked out on Windows; rename it")
        if len(whole_name) > MAX_PATH:
            message = f"the path has {len(whole_name)} characters; allowed are {MAX_PATH}"
            yield Finding.warning(whole_name, "file_name", message)
        other = lower.setdefault(whole_name.lower(), whole_name)
        if other != whole_name:
            message = f"differs from {other} in case only; file systems that ignore case keep one of them"
            yield Finding.warning(whole_name, "file_name", message)


def _check_unknown_entries(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check for files that are no description or result, and for benchmarks that are not checked."""
    root = checked.package.root
    if not (root / "results").is_dir():
        return
    systems = root / "systems"
    for path in sorted(systems.iterdir()) if systems.is_dir() else ():
        if path.suffix != ".json":
            message = "is not a description; systems/ has NAME.json only"
            yield Finding.warning(checked.package.relative(path), "unknown_file", message)
    for above in (root / "results", *list_folders(root / "results")):
        for path in sorted(above.iterdir()):
            # The results/ of a working folder, which is not a package, has a set record per system.
            own = path.name == SET and not checked.package.systems
            if not path.is_dir() and path.name != "package_checker_params" and not own:
                message = "is a file beside folders of results; logs belong in results/SYSTEM/BENCHMARK"
                yield Finding.warning(checked.package.relative(path), "unknown_file", message)
    for folder in checked.package.results:
        name, location = folder.benchmark, checked.package.relative(folder.path)
        if name not in ruleset.benchmarks and checked.package.systems:
            message = (
                f"{short_repr(name)} is not a benchmark of ruleset {ruleset.name}, and its results are not checked; "
                f"of: {', '.join(sorted(ruleset.benchmarks))}"
            )
            yield Finding.error(location, "benchmark_unknown", message)


def check_has_results(checked: CheckedPackage, ruleset: Ruleset, other_results: bool) -> Findings:
    """Check that any log was checked; with `other_results` another package has some, so that this one may have none."""
    if not any(runs.runs for runs in checked.sets):
        message = (
            f"there is no results/SYSTEM/BENCHMARK/result_*.txt of a benchmark of ruleset {ruleset.name}; no result "
            f"was checked"
        )
        yield Finding("no_results", "warning" if other_results else "error", message, path=".")


def _check_copies(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check for a run that is submitted twice, in a set or for two systems."""
    seen: dict[tuple[object, ...], CheckedRun] = {}
    for runs in checked.sets:
        in_set: dict[tuple[object, ...], CheckedRun] = {}
        for run in runs.runs:
            marks = fingerprints(run)
            if first := next((in_set[mark] for mark in marks if mark in in_set), None):
                yield run.error("copied", f"is the same run as {first.log.name}; each result must be a different run")
            if first := next((seen[mark] for mark in marks if mark in seen), None):
                yield run.error("copied", f"is the same run as {first.path}; a run is submitted for one system only")
            in_set = dict.fromkeys(marks, run) | in_set
        seen = in_set | seen


LAYOUT_CHECKS = (_check_code, _check_file_names, _check_unknown_entries, _check_copies)
