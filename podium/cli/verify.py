"""`podium data verify`: runs all checks of a store and of the initial checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.bert.verification.checks import collect_statistics, gather_evidence, run_checks
from benchmarks.bert.verification.content import write_missing_manifests
from benchmarks.bert.verification.evidence import Evidence, VerificationRequest
from benchmarks.bert.verification.official_data import is_official_vocabulary
from podium.core.errors import UsageError
from podium.core.finding import Finding, has_errors
from podium.core.processes import processors
from podium.launch.launch import require_torch
from podium.run.implementation import Evaluation, check_initial_accuracy

JSON_FIELDS = {"check": "rule", "level": "severity", "found": "message", "expected": "expected", "advice": "advice"}


@dataclass(frozen=True)
class Verification:
    """The findings of all checks of a store, with its statistics and the evidence that they are based on."""

    findings: tuple[Finding, ...]
    statistics: dict[str, Any]
    evidence: Evidence

    @property
    def sound(self) -> bool:
        """Whether no check failed."""
        return not has_errors(self.findings)

    @property
    def verdict(self) -> str:
        """The text `sound`, or `not sound: …` with the number of failed checks."""
        failed = sum(finding.severity == "error" for finding in self.findings)
        return f"not sound: {failed} {'check' if failed == 1 else 'checks'} failed" if failed else "sound"

    def as_json(self) -> dict[str, Any]:
        """The JSON object of `--json`."""
        findings = [finding.as_json(JSON_FIELDS) for finding in self.findings]
        for finding in findings:
            finding["level"] = "fail" if finding["level"] == "error" else finding["level"]
        return {"verdict": self.verdict, "findings": findings, "statistics": self.statistics}


def checkpoint_evaluation(
    request: VerificationRequest, checkpoint: Path | None, size: str, samples: int | None
) -> Evaluation | None:
    """Return the evaluation of the checkpoint that the options request, None without a checkpoint.

    UsageError for options that cannot be combined and for a missing file, before any shard is read.
    """
    if checkpoint is None:
        if samples is not None:
            raise UsageError("--samples: has no effect without --checkpoint, which is evaluated on that many samples")
        return None
    if request.evaluation is None or request.vocabulary is None:
        raise UsageError("--checkpoint: needs --evaluation and --vocab too; it is evaluated on those samples")
    if not checkpoint.is_file():
        raise UsageError(f"{checkpoint}: there is no such checkpoint; make it with `podium data checkpoint`")
    require_torch()
    return Evaluation(checkpoint, request.evaluation, request.vocabulary, size, samples)


def verify_store(
    request: VerificationRequest, evaluation: Evaluation | None = None, on_read: Callable[[int], None] | None = None
) -> Verification:
    """Run all checks of a store, and evaluate a checkpoint on it if there is an `evaluation`.

    `on_read` is called with the number of bytes of each shard that was read. Writes the manifest of a complete store
    that has none. Raises what `gather_evidence` raises.
    """
    started = perf_counter()
    evidence = gather_evidence(request, processors(), on_read)
    write_missing_manifests(evidence)
    findings = run_checks(evidence)
    seconds = perf_counter() - started
    if evaluation is not None and evidence.evaluation is not None and evidence.evaluation.shards:
        survey = evidence.evaluation
        # The reference accuracy is that of MLPerf's data, so samples of another vocabulary are not compared with it.
        comparable = request.official or is_official_vocabulary(evaluation.vocabulary)
        masked_per_sample = survey.total("masked_tokens") / survey.samples
        findings.append(check_initial_accuracy(evaluation, masked_per_sample, comparable, request.official))
    return Verification(tuple(findings), collect_statistics(evidence) | {"seconds": seconds}, evidence)
