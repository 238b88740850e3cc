"""Logged values that are not the configured ones, for runs that Podium made and whose folders are still there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.errors import UsageError
from benchmarks.text import quoted
from podium.config import RunConfig
from podium.mllog import UsedOptimizer
from podium.records import runs_of_system
from podium.submission.checks.subjects import CheckedRun, Findings


def configurations_in(runs: Path) -> dict[int, RunConfig]:
    """The configurations of the runs under a folder such as runs/SYSTEM, by seed; of two with one seed the newest.

    A folder that cannot be read as a run of Podium's is none of ours and left out.
    """
    found = {}
    for record in runs_of_system(runs):
        try:
            config = record.config
        except UsageError:
            continue
        if config.seed is not None:
            found[config.seed] = config
    return found


def check_configured(run: CheckedRun, configurations: Mapping[int, RunConfig]) -> Findings:
    config = next((configurations[seed] for seed in run.log.seeds if seed in configurations), None)
    if config is None:
        return
    for key, expected in _expected(config):
        event = run.log.first(key)
        if event is None:
            yield run.error("not_as_configured", f"{key} is not logged; the run was configured with {quoted(expected)}")
        elif event.value != expected:
            message = f"{key} is {quoted(event.value)}, but the run was configured with {quoted(expected)}"
            yield run.error("not_as_configured", message, event)


def _expected(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Key and value of every line that a configuration determines."""
    settings, description = config.optimizer, config.description
    yield constants.SUBMISSION_ORG, description.submitter
    yield constants.SUBMISSION_DIVISION, description.division
    yield constants.SUBMISSION_PLATFORM, description.system_name
    yield constants.GLOBAL_BATCH_SIZE, config.global_batch_size
    yield constants.GRADIENT_ACCUMULATION_STEPS, config.gradient_accumulation_steps
    yield constants.EVAL_SAMPLES, config.evaluation_samples
    yield from UsedOptimizer(
        algorithm=settings.algorithm,
        learning_rate=settings.learning_rate,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        start_warmup_step=settings.start_warmup_step,
        decay_steps=settings.decay_steps,
        decay_power=settings.decay_power,
        end_learning_rate=settings.end_learning_rate,
    ).lines()
