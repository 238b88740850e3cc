"""Checks of the tree of a package: the code that made the results, the places of files, and names valid in git."""

from podium.core.finding import Finding
from podium.core.text import quoted
from podium.mllog.results_tree import folders
from podium.mllog.rulesets import Ruleset
from podium.run.set_record import SET
from podium.submission.checks.context import CheckedRun, Findings, Whole
from podium.submission.checks.sets import fingerprints

MAX_PATH = 255
FORBIDDEN = frozenset('<>:"|?*')  # what Windows cannot check out
RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))})
CODE = (".py", ".sh", ".sub", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh")
READMES = ("readme.md", "readme.txt", "readme.rst", "readme")


def _code(whole: Whole, ruleset: Ruleset) -> Findings:
    """Without benchmarks/ these may be results whose code is elsewhere: a question. Half of it is wrong."""
    root = whole.package.root
    if not (root / "results").is_dir() or not whole.sets:
        return
    if not (root / "benchmarks").is_dir():
        message = "there is no benchmarks/; the code that made the results is submitted too"
        yield Finding.warning(".", "code_missing", message)
        return
    benchmark = root / "benchmarks" / "bert"
    implementations = benchmark / "implementations"
    found = list(folders(implementations))
    if not found:
        message = "there is no benchmarks/bert/implementations/NAME; the code that made the results belongs there"
        yield Finding.error("benchmarks", "code_missing", message)
    for folder in found:
        if not any(path.name.lower() in READMES and path.is_file() for path in folder.iterdir()):
            message = "has no README; it gives the exact command that runs the benchmark"
            yield Finding.error(whole.package.relative(folder), "readme_missing", message)
        if not any(path.suffix in CODE for path in folder.rglob("*")):
            yield Finding.error(whole.package.relative(folder), "code_missing", "holds no code")
    for runs in whole.sets:
        folder = benchmark / runs.folder.system
        if not folder.is_dir():
            missing = f"there is no benchmarks/bert/{runs.folder.system}"
            message = f"{missing}; the rules want its set-up and run scripts there"
            yield Finding.warning("benchmarks/bert", "system_code_missing", message)


def _names(whole: Whole, ruleset: Ruleset) -> Findings:
    """Names that break a checkout; `archive` has refused links, large files and unprintable names before."""
    lower: dict[str, str] = {}
    for path in sorted(whole.package.root.rglob("*")):
        name, whole_name = path.name, whole.package.relative(path)
        if name.startswith(".") or " " in name:
            message = "the name begins with a dot or has a space, which repo_checker refuses; rename it"
            yield Finding.error(whole_name, "file_name", message)
        elif not FORBIDDEN.isdisjoint(name):
            message = "the name has characters that not every system can check out; rename it"
            yield Finding.error(whole_name, "file_name", message)
        elif name.endswith(".") or name.split(".")[0].lower() in RESERVED:
            yield Finding.warning(whole_name, "file_name", "the name cannot be checked out on Windows; rename it")
        if len(whole_name) > MAX_PATH:
            message = f"the path has {len(whole_name)} characters; keep it to {MAX_PATH}"
            yield Finding.warning(whole_name, "file_name", message)
        other = lower.setdefault(whole_name.lower(), whole_name)
        if other != whole_name:
            message = f"differs from {other} in case alone; some systems keep one of them"
            yield Finding.warning(whole_name, "file_name", message)


def _places(whole: Whole, ruleset: Ruleset) -> Findings:
    """Files between the folders of systems and benchmarks, and benchmarks that are not checked."""
    root = whole.package.root
    if not (root / "results").is_dir():
        return
    systems = root / "systems"
    for path in sorted(systems.iterdir()) if systems.is_dir() else ():
        if path.suffix != ".json":
            message = "is no description; systems/ holds NAME.json alone"
            yield Finding.warning(whole.package.relative(path), "unknown_file", message)
    for above in (root / "results", *folders(root / "results")):
        for path in sorted(above.iterdir()):
            own = path.name == SET and not whole.package.systems  # of one's own results/, which is no package
            if not path.is_dir() and path.name != "package_checker_params" and not own:
                message = "lies among folders of results; results/SYSTEM/BENCHMARK holds the logs"
                yield Finding.warning(whole.package.relative(path), "unknown_file", message)
    for folder in whole.package.results:
        name, place = folder.benchmark, whole.package.relative(folder.path)
        if name != "bert" and name.strip().casefold() == "bert":
            message = f"{quoted(name)} is not checked as results of BERT; rename the folder to bert"
            yield Finding.error(place, "benchmark_unknown", message)
        elif name != "bert" and whole.package.systems:
            near = " (bert is spelled so)" if name.casefold() in ("bert-large", "bert_large") else ""
            message = f"results of {quoted(name)} were not checked: Podium knows bert alone{near}"
            yield Finding.warning(place, "benchmark_unknown", message)


def check_judged(whole: Whole, judged_elsewhere: bool) -> Findings:
    """A package none of whose logs is judged as one of BERT; of a round's, some hold other benchmarks alone."""
    if not any(runs.runs for runs in whole.sets):
        message = "there is no results/SYSTEM/bert/result_*.txt: no result of BERT was checked"
        yield Finding("no_results", "warning" if judged_elsewhere else "error", message, path=".")


def _copies(whole: Whole, ruleset: Ruleset) -> Findings:
    """One run submitted twice, in a set or for two systems."""
    seen: dict[tuple[object, ...], CheckedRun] = {}
    for runs in whole.sets:
        in_set: dict[tuple[object, ...], CheckedRun] = {}
        for run in runs.runs:
            marks = fingerprints(run)
            if first := next((in_set[mark] for mark in marks if mark in in_set), None):
                yield run.error("copied", f"is the same run as {first.log.name}; every result is a run of its own")
            if first := next((seen[mark] for mark in marks if mark in seen), None):
                yield run.error("copied", f"is the same run as {first.path}; a run is submitted for one system")
            in_set = dict.fromkeys(marks, run) | in_set
        seen = in_set | seen


LAYOUT = (_code, _names, _places, _copies)
