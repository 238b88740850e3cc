"""Inconsistencies in a result: each is reported, and none is corrected by a guess."""

from collections import Counter
from collections.abc import Iterator

from benchmarks.bert.rules import RUNS
from podium.comparison.result import Result
from podium.core.text import one_line
from podium.mllog import system
from podium.mllog.lines import HARMLESS, Oddity

APART = 0.01  # of the samples to the target: train_samples may be rounded to whole batches or steps, and no more


def inconsistencies(result: Result) -> list[str]:
    """A sentence fragment each."""
    finders = (_count, _failed, _refused, _size, _batches, _divisions, _samples, _copies, _logs)
    return [one for find in finders for one in find(result)]


def _count(result: Result) -> Iterator[str]:
    if len(result.runs) != RUNS:
        yield f"has {len(result.runs)} run(s); a score is of {RUNS}"


def _failed(result: Result) -> Iterator[str]:
    failed = sum(not run.succeeded for run in result.runs)
    if failed:
        told = Counter(run.status or "no status" if run.stop_ms is not None else "no run_stop" for run in result.runs)
        words = ", ".join(f"{count} {one_line(status)}" for status, count in sorted(told.items()))
        yield f"{failed} run(s) did not reach the target ({words})"


def _refused(result: Result) -> Iterator[str]:
    refused = [run.refused for run in result.runs if run.succeeded and run.refused is not None]
    if refused:
        yield f"{len(refused)} run(s) count as ones that did not reach the target: the first {refused[0]}"


def _size(result: Result) -> Iterator[str]:
    if result.description and result.accelerators is None:
        nodes, each = (result.description.get(key) for key in ("number_of_nodes", "accelerators_per_node"))
        yield f"number_of_nodes {nodes!r} and accelerators_per_node {each!r} do not tell how many accelerators it has"
    if result.accelerators == 0 and result.accelerator is not None:
        yield f"has 0 accelerators, and their model is {result.accelerator!r}"


def _batches(result: Result) -> Iterator[str]:
    sizes = Counter(run.global_batch_size for run in result.runs)
    if len(sizes) > 1:
        words = ", ".join(f"{count} of {_number(size)}" for size, count in sorted(sizes.items(), key=str))
        yield f"runs have other global batch sizes than others: {words}"


def _divisions(result: Result) -> Iterator[str]:
    logged = {run.division for run in result.runs} - {None}
    if logged and any(system.division(name) != result.division for name in logged):
        names = ", ".join(sorted(repr(name) for name in logged))
        yield f"logs say division {names}, the description {result.description.get('division')!r}"


def _samples(result: Result) -> Iterator[str]:
    unknown = sum(run.samples is None for run in result.converged)
    if unknown:
        yield f"{unknown} run(s) do not tell how many samples they took"
    apart = [
        run
        for run in result.converged
        if run.samples and run.train_samples is not None and abs(run.train_samples - run.samples) > APART * run.samples
    ]
    if apart:
        yield (
            f"{len(apart)} run(s) log train_samples that are not those of the passing evaluation, which count here: "
            f"{_number(apart[0].train_samples)} against {_number(apart[0].samples)}"
        )


def _copies(result: Result) -> Iterator[str]:
    twice = [count for count in Counter(run.digest for run in result.runs).values() if count > 1]
    if twice:
        yield f"{sum(twice)} logs are copies of one another"
    seeds = Counter(run.seeds for run in result.runs if run.seeds)
    same = sum(count for count in seeds.values() if count > 1)
    if same:
        yield f"{same} runs have a seed that another has too"


def _logs(result: Result) -> Iterator[str]:
    found: dict[str, list[Oddity]] = {}
    for run in result.runs:
        for kind, oddity in {one.kind: one for one in reversed(run.oddities)}.items():
            found.setdefault(kind, []).append(oddity)
    for kind, oddities in sorted(found.items()):
        what = oddities[0].what if kind not in HARMLESS else oddities[0].what.partition(",")[0]
        counted = what[:1].isdigit()
        where = f"line {oddities[0].line:,} " if oddities[0].line and not counted else ""
        yield f"{len(oddities)} log(s): {where}{what}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}"
