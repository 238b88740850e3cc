"""Makes a result of the logs of a folder, of what the system's description says, and of what scales its score."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.bert.accelerators import accelerator_named
from benchmarks.bert.sizes import LARGE
from benchmarks.text import one_line, printable
from podium.comparison import stated
from podium.comparison.configured import configured, description
from podium.comparison.inconsistencies import inconsistencies
from podium.comparison.places import Place
from podium.comparison.result import Result
from podium.comparison.scaling import factor
from podium.reading.package import Package, ResultFolder
from podium.reading.run_log import Run

LARGE_TENSORS = 398
"""Of BERT-large."""


def build(
    place: Place, folder: ResultFolder, round_name: str | None, runs: Sequence[Run], problems: Sequence[str]
) -> Result:
    """The result of a folder's runs. `problems` are why other logs of the folder cannot be read."""
    odd = list(problems)
    fields, full_size = _described(place.package, folder.system, odd), True
    if not place.package.systems and round_name is None:
        config = configured(folder.system, runs, place.package.root / "runs", odd)
        if config is not None:
            fields, full_size = description(config), config.size == LARGE.name
    nodes, each = stated.count(fields.get("number_of_nodes")), stated.count(fields.get("accelerators_per_node"))
    accelerator = stated.name(fields.get("accelerator_model_name"))
    result = Result(
        round=round_name,
        submitter=stated.name(fields.get("submitter"))
        or one_line(_first(run.org for run in runs) or place.package.name),
        system=one_line(folder.system),
        division=stated.division(fields.get("division")) or stated.division(_first(run.division for run in runs)),
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
    return stated.texts(found.fields or {})


def _first(texts: Iterable[str | None]) -> str | None:
    return next((text for text in texts if text), None)
