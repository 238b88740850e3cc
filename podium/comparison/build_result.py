"""Builds a result from the logs of a folder, the system's description, and the scaling factor of its score.

The configuration of local runs is read for what logs do not contain, above all the model's size.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bert.rules import TARGET_ACCURACY
from benchmarks.bert.sizes import LARGE
from podium.comparison.anomalies import inconsistencies
from podium.comparison.discover import PackageResults
from podium.comparison.result import BERT_LARGE_TENSORS, NO_VERDICT, Cosmetic, Result, mean_if_all_known
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import attempt
from podium.core.text import one_line, printable
from podium.mllog import system as system_module
from podium.mllog.benchmarks import find_benchmark
from podium.mllog.lines import parse_bounded_json
from podium.mllog.power import RunPower
from podium.mllog.rcp import MESSAGES, Convergence, reference, rulesets
from podium.mllog.results_tree import SCALING, Package, ResultFolder
from podium.mllog.run import BERT, Run, as_number
from podium.planning.accelerators import find_accelerator
from podium.run.records import newest_by_seed, runs_of_system
from podium.run.set_record import SET


def find_configuration(system: str, runs: Sequence[Run], runs_folder: Path, anomalies: list[str]) -> RunConfig | None:
    """Return the configuration of the first run whose folder under `runs_folder` is found by its seed.

    If no folder has its seed, or if another version of Podium wrote it, return the current systems/SYSTEM.yaml. If
    there is no such file, return None and append a message to `anomalies`.
    """
    by_seed = newest_by_seed(runs_of_system(runs_folder / system))
    seed = next((seed for run in runs for seed in run.seeds if seed in by_seed), None)
    if seed is not None:
        found: RunConfig | None = attempt(getattr, by_seed[seed], "config")[0]
        if found is not None:
            return found
    config, problem = attempt(load_system, system)
    if problem is not None:
        anomalies.append(f"its configuration is unknown, and so is its size: {problem}")
    return config


def find_other_targets(
    system: str, runs: Sequence[Run], runs_folder: Path, anomalies: list[str]
) -> tuple[float | None, ...]:
    """Return the target accuracies of local BERT runs, by their folders under `runs_folder`, that are not MLPerf's.

    Of a run without a folder that ended with success below MLPerf's target, it is the accuracy that it ended with. A
    message is appended to `anomalies` if there are any.
    """
    by_seed = newest_by_seed(runs_of_system(runs_folder / system))
    other: list[float | None] = []
    for run in runs:
        seed = next((seed for seed in run.seeds if seed in by_seed), None)
        settings = None if seed is None else attempt(getattr, by_seed[seed], "settings")[0]
        if settings is not None:
            target = settings.get("target_accuracy", TARGET_ACCURACY)
            target = None if target is None else as_number(target)
        elif run.succeeded and run.evaluations and run.passing is None:
            target = run.evaluations[-1].accuracy
        else:
            continue
        if target != TARGET_ACCURACY:
            other.append(target)
    if other:
        named = ", ".join("none" if one is None else f"{one:g}" for one in dict.fromkeys(other))
        anomalies.append(
            f"{len(other)} of {len(runs)} run(s) were trained to another target accuracy ({named}) than MLPerf's "
            f"{TARGET_ACCURACY:g}: no score, and not compared with results that reached it"
        )
    return tuple(dict.fromkeys(other))


def description_fields(config: RunConfig) -> dict[str, str]:
    """Return MLPerf's description fields; missing numbers of nodes and accelerators are taken from `launch`."""
    fields = system_module.readable_fields(config.description.model_dump(by_alias=True))
    if not fields["number_of_nodes"]:
        fields["number_of_nodes"] = str(config.launch.nodes)
    if not fields["accelerators_per_node"]:
        on_cpu = config.launch.device == "cpu"
        fields["accelerators_per_node"] = "0" if on_cpu else str(config.launch.processes_per_node)
    return fields


MAX_SCALING_FILE_BYTES = 1 << 16
MAX_SCALING_FACTOR = 2.0  # a larger one is an error of the file: runs never vary that much by chance
SAME_FACTOR = 1e-6  # relative
CLOSED = "closed"


def check_convergence(result: Result, folder: ResultFolder, anomalies: list[str]) -> tuple[str | None, float | None]:
    """Return the verdict on the result's reference convergence points, and the factor by which its score is scaled.

    The verdict is in the words of the official summarizer; None where the rules do not compare the result. The factor
    is read from scaling.json, which the official package checker leaves beside the logs, since that is the one that
    counts; for a local result it is computed. None: the score is not scaled. Problems are appended to `anomalies`.
    """
    path = next((path for path in folder.others if path.name == SCALING), None)
    stated = None if path is None else _read_scaling_factor(path, anomalies)
    if result.division != CLOSED or not result.comparable or not result.runs or result.rules is None:
        return None, stated
    ruleset = f"{(result.round or result.rules.rounds[-1]).removeprefix('v')}.0"
    points = reference(result.benchmark, ruleset) if ruleset in rulesets() else None
    if points is None:
        return ("No RCP" if ruleset in rulesets() else None), stated
    batch, progress = result.global_batch_size, result.progress_of_runs
    if batch is None or progress is None or len(progress) <= 2 * points.dropped:
        return NO_VERDICT, stated
    found = points.verdict(batch, progress)
    if result.own and path is None:
        if result.score_minutes is None:
            return None, None
        if not found.passed:
            anomalies.append(f"needs fewer samples than ruleset {ruleset} accepts: {found.message}")
        return _verdict(found), found.factor if found.passed and points.scaled and found.factor > 1 else None
    expected = found.factor if found.passed and points.scaled else 1.0
    if found.passed and not math.isclose(stated or 1.0, expected, rel_tol=SAME_FACTOR):
        anomalies.append(
            f"its score is scaled by {stated or 1.0:.6g}; by ruleset {ruleset}'s reference points it is {expected:.6g}"
        )
    return _verdict(found), stated


def _verdict(found: Convergence) -> str:
    """Return a verdict in the words of the official summarizer."""
    if found.passed:
        return "Pass"
    failures = {MESSAGES["found"]: "Fail", MESSAGES["interpolated"]: "Interp. Fail"}
    return failures.get(found.message, "Missing" if "Missing" in found.message else NO_VERDICT)


def _read_scaling_factor(path: Path, anomalies: list[str]) -> float | None:
    try:
        # A link could point out of the tree, and a FIFO would block open().
        if not path.is_file() or path.is_symlink():
            raise ValueError("is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_SCALING_FILE_BYTES + 1)
        if len(content) > MAX_SCALING_FILE_BYTES:
            raise ValueError(f"is larger than {MAX_SCALING_FILE_BYTES:,} bytes")
        fields, _ = parse_bounded_json(content.decode("utf-8"))
        found = as_number(fields.get("scaling_factor")) if isinstance(fields, dict) else None
        if found is None or not 1 <= found <= MAX_SCALING_FACTOR:
            raise ValueError(f"has no scaling_factor from 1 to {MAX_SCALING_FACTOR:g}")
    except (OSError, ValueError) as error:
        anomalies.append(f"{SCALING} is not used: it {error}")
        return None
    return found


def build_result(
    package_results: PackageResults,
    folder: ResultFolder,
    round_name: str | None,
    runs: Sequence[Run],
    problems: Sequence[str],
    logs: Sequence[str] = (),
) -> Result:
    """Return the result of a folder's runs.

    `problems` are the reasons why other logs of the folder cannot be read, `logs` the names of the runs' logs.
    """
    anomalies, cosmetic = list(problems), list[Cosmetic]()
    fields, full_size = _read_description(package_results.package, folder.system, anomalies, cosmetic), True
    other_targets: tuple[float | None, ...] = ()
    if not package_results.package.systems and round_name is None and _is_local(folder, runs):
        in_set = (folder.path / SET).is_file()  # of runs/SYSTEM/DATE_TIME
        runs_folder = folder.path.absolute().parents[1] if in_set else package_results.package.root / "runs"
        config = find_configuration(folder.system, runs, runs_folder, anomalies)
        if config is not None:
            fields, full_size = description_fields(config), config.size == LARGE.name
        other_targets = find_other_targets(folder.system, runs, runs_folder, anomalies)
    nodes, per_node = (
        system_module.parse_count(fields.get(key)) for key in ("number_of_nodes", "accelerators_per_node")
    )
    accelerator = system_module.parse_name(fields.get("accelerator_model_name"))
    benchmark = _benchmark(folder, runs, anomalies)
    result = Result(
        benchmark=benchmark,
        round=round_name,
        submitter=system_module.parse_name(fields.get("submitter"))
        or one_line(next((run.org for run in runs if run.org), package_results.package.name)),
        system=one_line(folder.system),
        division=system_module.parse_division(fields.get("division"))
        or system_module.parse_division(next((run.division for run in runs if run.division), None)),
        source=printable(str(folder.path)),
        runs=tuple(runs),
        logs=tuple(map(one_line, logs)),
        description=fields,
        nodes=nodes,
        accelerators=None if nodes is None or per_node is None else nodes * per_node,
        accelerator=accelerator,
        kind=None if accelerator is None else find_accelerator(accelerator),
        other_targets=other_targets,
        full_size=benchmark != BERT
        or (full_size and (round_name is not None or all(run.tensors in (0, BERT_LARGE_TENSORS) for run in runs))),
    )
    verdict, scaling_factor = check_convergence(result, folder, anomalies)
    found = inconsistencies(result)
    return replace(
        result,
        rcp=verdict,
        scaling_factor=scaling_factor,
        anomalies=tuple(one_line(one) for one in (*anomalies, *found.affecting)),
        cosmetic=tuple(one._replace(message=one_line(one.message)) for one in (*cosmetic, *found.cosmetic)),
    )


def add_energy(result: Result, powers: Sequence[RunPower]) -> Result:
    """Return the result with the mean energy of its scored runs, scaled as its score, from the powers of its runs.

    As in the official value, there is none if the power of a run that converged is not known.
    """
    measured = [
        None if run.seconds is None else one.joules(run.seconds) for run, one in zip(result.runs, powers, strict=True)
    ]
    energy = None
    if all(joules is not None for run, joules in zip(result.runs, measured, strict=True) if run.converged):
        energy = mean_if_all_known([measured[number] for number in result.scored_indices])
    if energy is not None and result.score_minutes is not None and result.scaling_factor is not None:
        energy *= result.scaling_factor
    unknown = [one.problems[-1] for one in powers if one.watts is None]
    noted = [problem for one in powers if one.watts is not None for problem in one.problems]
    messages = [f"the power of {len(unknown)} run(s) is not known: {unknown[0]}"] if unknown else []
    messages += [f"{len(noted):,} note(s) on power logs: {noted[0]}"] if noted else []
    return replace(result, energy_joules=energy, anomalies=(*result.anomalies, *map(one_line, messages)))


def _is_local(folder: ResultFolder, runs: Sequence[Run]) -> bool:
    """Whether the runs may be Podium's: only these have configurations."""
    return any(run.benchmark == BERT for run in runs) or (not runs and BERT in folder.benchmark.lower())


def _benchmark(folder: ResultFolder, runs: Sequence[Run], anomalies: list[str]) -> str:
    """Return the benchmark that most logs name, or else the name of the folder; note in `anomalies` if they differ."""
    logged = Counter(run.benchmark for run in runs if run.benchmark is not None)
    named = find_benchmark(folder.benchmark)
    if not logged:
        return one_line(named.name if named is not None else folder.benchmark)
    name = logged.most_common(1)[0][0]
    if len(logged) > 1 or (named is not None and named.name != name):
        names = ", ".join(sorted(logged))
        anomalies.append(f"its logs are of {names}, its folder is named {folder.benchmark}")
    return name


# Fields of a description that a figure depends on.
FIGURE_FIELDS = ("number_of_nodes", "accelerators_per_node", "accelerator_model_name", "division")


def _read_description(package: Package, system: str, anomalies: list[str], cosmetic: list[Cosmetic]) -> dict[str, str]:
    """Return the fields of systems/SYSTEM.json; if it is missing or invalid, no fields and a message in `anomalies`."""
    found = package.system(system)
    if found is None:
        found = next((one for one in package.systems if one.name.casefold() == system.casefold()), None)
        if found is not None:
            what = "description(s) whose name differs in case"
            message = f"systems/{found.name}.json is used as its description: the names differ in case"
            cosmetic.append(Cosmetic(what, message))
    if found is None:
        if package.systems:
            anomalies.append(f"systems/{system}.json is missing: the system's size is unknown")
        return {}
    if found.problem is not None:
        message = f"systems/{found.name}.json {found.problem}"
        if found.fields is None or any(field in found.problem for field in FIGURE_FIELDS):
            anomalies.append(message)
        else:
            cosmetic.append(Cosmetic("description(s) with numbers or duplicate keys that JSON does not allow", message))
    return system_module.readable_fields(found.fields or {})


MIN_COMMON_RUNS = 2  # one run with equal seconds and samples may be chance


def mark_repeats(results: Sequence[Result]) -> list[Result]:
    """Return the results in their order, with `repeats` set where at least half of the runs are an earlier result's.

    Earlier means of an earlier round, or earlier in the sequence within a round. Runs are the same if they have the
    same seconds, to the millisecond, and the same samples: clocks and names in a log may be edited when it is submitted
    again.
    """
    first: dict[tuple[float, float | None], int] = {}
    marked = list(results)
    for number in sorted(range(len(results)), key=lambda n: (results[n].own, results[n].round or "", n)):
        result = results[number]
        fingerprints = [(run.seconds, run.samples) for run in result.converged if run.seconds is not None]
        origins = Counter(first[one] for one in fingerprints if one in first)
        origin, common = origins.most_common(1)[0] if origins else (number, 0)
        if common >= MIN_COMMON_RUNS and 2 * common >= len(fingerprints):
            marked[number] = replace(result, repeats=_full_name(results[origin], result))
        for one in fingerprints:
            first.setdefault(one, number)
    return marked


def _full_name(origin: Result, result: Result) -> str:
    """Return the name of `origin`, with its package's folder if both results have the same name."""
    package = Path(origin.source).parts[-4:-3]
    return f"{origin.name} (in {package[0]})" if origin.name == result.name and package else origin.name
