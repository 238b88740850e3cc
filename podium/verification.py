"""`podium data verify`: prove a store right, and say so in a table or as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bert.verification.checks import Subject, findings_of, gather_evidence, statistics_of
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.bert.verification.findings import Finding, is_sound, verdict
from benchmarks.bert.verification.official import is_official_vocabulary
from benchmarks.errors import UsageError
from benchmarks.processes import processors
from podium.initial_accuracy import Evaluation, check_initial_accuracy

MARKS = {"ok": "[green]✓[/green]", "note": "[yellow]![/yellow]", "fail": "[red]✗[/red]"}


@dataclass(frozen=True)
class Verification:
    """Everything that was found of a store."""

    findings: tuple[Finding, ...]
    statistics: dict[str, Any]
    evidence: Evidence

    @property
    def sound(self) -> bool:
        return is_sound(self.findings)

    def as_json(self) -> dict[str, Any]:
        """One object for programs."""
        findings = [asdict(finding) for finding in self.findings]
        return {"verdict": verdict(self.findings), "findings": findings, "statistics": self.statistics}


def checkpoint_evaluation(
    subject: Subject, checkpoint: Path | None, size: str, samples: int | None
) -> Evaluation | None:
    """What to evaluate, if anything; UsageError, before long work, for what does not go together or is not there."""
    if checkpoint is None:
        if samples is not None:
            raise UsageError("--samples: has no use without --checkpoint; it says how many samples to evaluate")
        return None
    if subject.evaluation is None or subject.vocabulary is None:
        raise UsageError("--checkpoint: needs --evaluation and --vocab too; it is evaluated on those samples")
    if not checkpoint.is_file():
        raise UsageError(f"{checkpoint}: there is no such checkpoint; make it with `podium data checkpoint`")
    return Evaluation(checkpoint, subject.evaluation, subject.vocabulary, size, samples)


def verify(
    subject: Subject, evaluation: Evaluation | None = None, on_read: Callable[[int], None] | None = None
) -> Verification:
    """Make every check; `on_read` is told of the bytes of each shard that was read. Errors as `gather_evidence`."""
    started = perf_counter()
    evidence = gather_evidence(subject, processors(), on_read)
    findings = findings_of(evidence)
    seconds = perf_counter() - started
    if evaluation is not None and evidence.evaluation is not None and evidence.evaluation.shards:
        survey = evidence.evaluation
        compared = subject.official or is_official_vocabulary(evaluation.vocabulary)
        masked_a_sample = survey.total("masked_tokens") / survey.samples
        findings.append(check_initial_accuracy(evaluation, masked_a_sample, compared, subject.official))
    return Verification(tuple(findings), statistics_of(evidence) | {"seconds": seconds}, evidence)


def print_verification(console: Console, found: Verification) -> None:
    """A line a finding, what to do where something is wrong, and the verdict last."""
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "found", "expected", ""):
        table.add_column(heading, overflow="fold")
    for finding in found.findings:
        first_line = finding.found.partition("\n")[0]
        table.add_row(*map(escape, (finding.check, first_line, finding.expected)), MARKS[finding.level])
    console.print(table)
    for line in details(found.findings):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(verdict(found.findings), style="bold green" if found.sound else "bold red", highlight=False)


def details(findings: Sequence[Finding]) -> Iterator[str]:
    """Of each finding with advice: what to do, and below it what was found beyond its first line."""
    for finding in findings:
        if finding.advice:
            yield f"{finding.check}: {finding.advice}"
        yield from (f"    {line}" for line in finding.found.splitlines()[1:])
