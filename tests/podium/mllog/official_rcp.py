"""The official RCP checker's verdict on numbers instead of logs, and random sets near the bound of its check."""

import random
from collections.abc import Sequence
from functools import cache
from unittest import mock

from mlperf_logging.rcp_checker import rcp_checker

from podium.mllog import rcp
from podium.mllog.rcp import Reference

NO_FOLDER = "/nonexistent/folder"  # the checker would remove scaling.json from a folder that exists


class OfficialChecker(rcp_checker.RCP_Checker):  # type: ignore[misc]
    """The official checker, which searches for the least accepted mean of the same figures once."""

    found: dict[tuple[float, float, int, int], float] = {}  # noqa: RUF012

    def _find_min_acceptable_mean(self, mean: float, stdev: float, num_samples_ref: int) -> float:
        key = (float(mean), float(stdev), num_samples_ref, self.submission_runs)
        if key not in self.found:
            self.found[key] = super()._find_min_acceptable_mean(mean, stdev, num_samples_ref)
        return self.found[key]

    def verdict(self, batch_size: int, samples: Sequence[float | None]) -> tuple[bool, str, float]:
        """Verdict, message and factor of `check_directory` for logs with these samples to the target."""
        unconverged = sum(count is None for count in samples)
        limit = 4 if self.benchmark == "unet3d" else 1  # as get_submission_epochs
        read = [1e9 if count is None else count for count in samples] if unconverged <= limit else None
        logs = (batch_size, read, self.benchmark)
        with (
            mock.patch.object(rcp_checker, "get_submission_epochs", lambda *_: logs),
            mock.patch.object(rcp_checker, "RCP_Checker", lambda *_: self),
        ):
            passed, message, factor = rcp_checker.check_directory(
                NO_FOLDER, "training", self.ruleset, False, False, rcp_pass="pruned_rcps"
            )
        return bool(passed), str(message), float(factor)


@cache
def official(benchmark: str, ruleset: str) -> OfficialChecker:
    """The official checker; dlrm, which it no longer knows, with the runs of its rules."""
    with mock.patch.dict(rcp_checker.submission_runs["training"], {"dlrm": 5}):
        return OfficialChecker("training", ruleset, benchmark, False)


def all_references() -> list[Reference]:
    return [
        rcp.require_reference(benchmark, ruleset) for ruleset in rcp.rulesets() for benchmark in rcp.benchmarks(ruleset)
    ]


def random_set(reference: Reference, numbers: random.Random) -> tuple[int, list[float | None]]:
    """A batch size and samples to the target, near the bound of the check, some with runs that did not converge."""
    sizes = [record.batch_size for record in reference.points]
    batch_size = numbers.randint(max(1, sizes[0] // 2), int(sizes[-1] * 1.1))
    if numbers.random() < 0.4:
        batch_size = numbers.choice(sizes)
    point = reference.at(batch_size) or reference.at(sizes[-1])
    assert point is not None
    middle = numbers.choice([point.mean, point.least]) * numbers.choice([1, 1, 0.99, 1.02, 0.9])
    drawn = [max(1e-3, numbers.gauss(middle, point.sd)) for _ in range(reference.runs)]
    runs: list[float | None] = [round(count, 3) if reference.unit == "epochs" else int(count) + 1 for count in drawn]
    failed = numbers.choice([0, 0, 0, 0, 1, 1, 2, 5])
    for index in numbers.sample(range(reference.runs), min(failed, reference.runs)):
        runs[index] = None
    return batch_size, runs
