"""All checks, in the order in which they are told."""

from collections.abc import Callable, Iterable

from benchmarks.finding import Finding
from podium.doctor.contents import check_closed_data, check_data, check_initial_checkpoint
from podium.doctor.devices import (
    check_all_reduce,
    check_clocks,
    check_gpus,
    check_implementation,
    check_load,
    check_memory,
    check_possible,
    check_ranks,
)
from podium.doctor.examination import Examination
from podium.doctor.mounts import check_mounts
from podium.doctor.places import (
    check_caches,
    check_open_files,
    check_paths,
    check_read_speed,
    check_space,
    check_writable,
)
from podium.doctor.rules import (
    check_counts,
    check_description,
    check_division,
    check_max_samples,
    check_sample_count,
    check_seed,
    check_target,
)
from podium.doctor.versions import check_libraries, check_python, check_torch

Check = Callable[[Examination], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    check_python,
    check_libraries,
    check_torch,
    check_implementation,
    check_gpus,
    check_memory,
    check_load,
    check_possible,
    check_ranks,
    check_all_reduce,
    check_clocks,
    check_paths,
    check_writable,
    check_space,
    check_read_speed,
    check_caches,
    check_open_files,
    check_data,
    check_closed_data,
    check_sample_count,
    check_max_samples,
    check_initial_checkpoint,
    check_description,
    check_counts,
    check_division,
    check_seed,
    check_target,
)
CHECKS_HERE: tuple[Check, ...] = (
    check_mounts,
    check_writable,
    check_space,
    check_max_samples,
    check_description,
    check_counts,
    check_division,
    check_seed,
    check_target,
)
"""Those that need none of the machines that would make the run, but the repository's folder, which they share."""


def findings_of(examination: Examination, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """What every check says."""
    return [finding for check in checks for finding in check(examination)]
