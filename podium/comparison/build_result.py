"""Builds a result from the logs of a folder, the system's description, and the scaling of its score.

The configuration of local runs is read for what no log contains, above all the model's size.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bert.sizes import LARGE
from podium.comparison.anomalies import inconsistencies
from podium.comparison.discover import Place
from podium.comparison.result import Result
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import attempt
from podium.core.text import one_line, printable
from podium.mllog import system as system_module
from podium.mllog.lines import parse
from podium.mllog.results_tree import SCALING, Package, ResultFolder
from podium.mllog.rulesets import LATEST, ruleset
from podium.mllog.run import Run, as_number
from podium.planning.accelerators import accelerator_named
from podium.run.records import newest_by_seed, runs_of_system
from podium.run.set_record import SET
from podium.submission.rcp import convergence


def configured(system: str, runs: Sequence[Run], kept: Path, odd: list[str]) -> RunConfig | None:
    """The configuration that the first of the runs was made with, which its folder under `kept`, runs/, holds.

    Where no folder has its seed, or another version of Podium made it, what systems/SYSTEM.yaml says now. None, and a
    word in `odd`, where there is no such file.
    """
    by_seed = newest_by_seed(runs_of_system(kept / system))
    seed = next((seed for run in runs for seed in run.seeds if seed in by_seed), None)
    if seed is not None:
        found: RunConfig | None = attempt(getattr, by_seed[seed], "config")[0]
        if found is not None:
            return found
    config, problem = attempt(load_system, system)
    if problem is not None:
        odd.append(f"how it was configured is not known, and so not its size: {problem}")
    return config


def description(config: RunConfig) -> dict[str, str]:
    """MLPerf's fields; what it was launched on where its size is left out."""
    fields = system_module.texts(config.description.model_dump(by_alias=True))
    if not fields["number_of_nodes"]:
        fields["number_of_nodes"] = str(config.launch.nodes)
    if not fields["accelerators_per_node"]:
        on_cpu = config.launch.device == "cpu"
        fields["accelerators_per_node"] = "0" if on_cpu else str(config.launch.processes_per_node)
    return fields


MAX_BYTES = 1 << 16
MOST = 2.0  # that a factor can be: twice as many samples are never within what chance allows
CLOSED = "closed"


def factor(result: Result, folder: ResultFolder, odd: list[str]) -> float | None:
    """The factor in scaling.json, which the official package checker leaves beside the logs; None where it scales not.

    For one's own ten runs of the closed division the official checker is asked, by the latest ruleset. What is wrong is
    added to `odd`.
    """
    path = next((path for path in folder.others if path.name == SCALING), None)
    if path is not None:
        return _published(path, odd)
    if not result.own or result.division != CLOSED or not result.full_size or result.score_minutes is None:
        return None
    found, problem = attempt(convergence, folder.logs, ruleset(LATEST))
    if found is None:
        odd.append(f"how it converges against the reference is not known: {problem}")
        return None
    if not found.passed:
        odd.append(f"needs fewer samples than ruleset {LATEST} accepts: {found.words}")
        return None
    return found.factor if found.scaling is not None else None


def _published(path: Path, odd: list[str]) -> float | None:
    try:
        if not path.is_file() or path.is_symlink():
            raise ValueError("is no plain file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES:,} bytes")
        fields, _ = parse(content.decode("utf-8"))
        found = as_number(fields.get("scaling_factor")) if isinstance(fields, dict) else None
        if found is None or not 1 <= found <= MOST:
            raise ValueError(f"has no scaling_factor from 1 to {MOST:g}")
    except (OSError, ValueError) as error:
        odd.append(f"{SCALING} is not used: it {error}")
        return None
    return found


LARGE_TENSORS = 398  # of BERT-large


def build(
    place: Place, folder: ResultFolder, round_name: str | None, runs: Sequence[Run], problems: Sequence[str]
) -> Result:
    """The result of a folder's runs. `problems` are why other logs of the folder cannot be read."""
    odd = list(problems)
    fields, full_size = _described(place.package, folder.system, odd), True
    if not place.package.systems and round_name is None:
        in_set = (folder.path / SET).is_file()  # of runs/SYSTEM/DATE_TIME
        kept = folder.path.absolute().parents[1] if in_set else place.package.root / "runs"
        config = configured(folder.system, runs, kept, odd)
        if config is not None:
            fields, full_size = description(config), config.size == LARGE.name
    nodes, each = (system_module.count(fields.get(key)) for key in ("number_of_nodes", "accelerators_per_node"))
    accelerator = system_module.name(fields.get("accelerator_model_name"))
    result = Result(
        round=round_name,
        submitter=system_module.name(fields.get("submitter"))
        or one_line(next((run.org for run in runs if run.org), place.package.name)),
        system=one_line(folder.system),
        division=system_module.division(fields.get("division"))
        or system_module.division(next((run.division for run in runs if run.division), None)),
        source=printable(str(folder.path)),
        runs=tuple(runs),
        description=fields,
        nodes=nodes,
        accelerators=None if nodes is None or each is None else nodes * each,
        accelerator=accelerator,
        kind=None if accelerator is None else accelerator_named(accelerator),
        full_size=full_size and (round_name is not None or all(run.tensors in (0, LARGE_TENSORS) for run in runs)),
    )
    scaling_factor = factor(result, folder, odd)
    told = [*odd, *inconsistencies(result)]
    return replace(result, scaling_factor=scaling_factor, oddities=tuple(one_line(one) for one in told))


def _described(package: Package, system: str, odd: list[str]) -> dict[str, str]:
    """What systems/SYSTEM.json says; nothing, and an oddity, where it is missing or cannot be read."""
    found = package.system(system)
    if found is None:
        found = next((one for one in package.systems if one.name.casefold() == system.casefold()), None)
        if found is not None:
            odd.append(f"systems/{found.name}.json is taken for its description: the names differ in case")
    if found is None:
        if package.systems:
            odd.append(f"systems/{system}.json is missing, so that the system's size is not known")
        return {}
    if found.problem is not None:
        odd.append(f"systems/{found.name}.json {found.problem}")
    return system_module.texts(found.fields or {})


FEWEST = 2  # runs in common that are no chance, if they are also half of all


def mark_repeats(results: Sequence[Result]) -> list[Result]:
    """The results, in their order, those with `repeats` set that have at least half of their runs from an earlier one.

    Earlier is the earlier round, within a round the one before. Runs are the same if they took equally long, to the
    millisecond, and as many samples: a log may be edited when it is handed in again, its clock and names too.
    """
    first: dict[tuple[float, float | None], int] = {}
    marked = list(results)
    for number in sorted(range(len(results)), key=lambda n: (results[n].own, results[n].round or "", n)):
        result = results[number]
        prints = [(run.seconds, run.samples) for run in result.converged if run.seconds is not None]
        origins = Counter(first[one] for one in prints if one in first)
        origin, common = origins.most_common(1)[0] if origins else (number, 0)
        if common >= FEWEST and 2 * common >= len(prints):
            marked[number] = replace(result, repeats=_named(results[origin], result))
        for one in prints:
            first.setdefault(one, number)
    return marked


def _named(origin: Result, result: Result) -> str:
    """With the package's folder where both have the same name."""
    package = Path(origin.source).parts[-4:-3]
    return f"{origin.name} (in {package[0]})" if origin.name == result.name and package else origin.name
