"""Readers of published MLPerf results. The JSON files in this folder have one system a line."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

from podium.core.paths import package_file

RUNS, SAMPLES, TINY, SCORES, RATES = (
    package_file("benchmarks.bert.published", f"{name}.json")
    for name in ("runs", "samples", "tiny", "scores_1_1", "learning_rates")
)


@dataclass(frozen=True)
class _Result:
    """Fields of every published result."""

    round: str
    submitter: str
    system: str
    optimizer: str
    global_batch_size: int


@dataclass(frozen=True)
class _System(_Result):
    """Fields of every system whose runs were published, singly or as a mean."""

    family: str  # origin of the training code; many submitters ran NVIDIA's
    gpu: str  # kind of GPU: a100_sxm, a100_pcie
    nodes: int
    gpus_per_node: int
    adapters: tuple[int, float] | None  # number of a node's network adapters for training, Gb/s of each; None: one node
    accumulation_steps: int

    @property
    def name(self) -> str:
        return f"{self.round} {self.submitter} {self.system}"

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class PublishedRun(_System):
    """One system's set of BERT runs in one round of MLPerf Training."""

    division: str
    gpu_memory_gb: int
    republished_from: str | None  # ROUND/SYSTEM of an earlier round with the same runs, else None
    seconds: tuple[float, ...]  # run_start to run_stop of each run
    samples: tuple[int | None, ...]  # samples to target of each run; None for a run that did not reach it
    not_converged: int

    @property
    def converged(self) -> list[tuple[float, int]]:
        """Seconds and samples of the runs that reached the target."""
        pairs = zip(self.seconds, self.samples, strict=True)
        return [(seconds, samples) for seconds, samples in pairs if samples is not None]

    @property
    def mean_samples(self) -> float:
        """Mean samples to target of the runs that reached it."""
        return mean(samples for _, samples in self.converged)

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of the runs that reached the target."""
        return mean(seconds for seconds, _ in self.converged)

    @property
    def sequences_per_second(self) -> float:
        """Mean throughput of whole runs, evaluation included."""
        return self.mean_samples / self.mean_seconds

    @property
    def score_seconds(self) -> float:
        """MLPerf's score before RCP scaling: the mean without the fastest and the slowest run.

        A run that missed the target counts as infinitely slow.
        """
        pairs = zip(self.seconds, self.samples, strict=True)
        counted = sorted(math.inf if samples is None else seconds for seconds, samples in pairs)[1:-1]
        return mean(counted)


@dataclass(frozen=True)
class SamplesToTarget(_Result):
    """Samples to target of a system's runs at a global batch size: mean, least and greatest."""

    division: str
    mean: float
    least: float
    greatest: float
    converged: int
    runs: int

    @classmethod
    def of(cls, run: PublishedRun) -> "SamplesToTarget":
        samples = [samples for _, samples in run.converged]
        return cls(
            **{field.name: getattr(run, field.name) for field in fields(_Result)},
            division=run.division,
            mean=mean(samples),
            least=min(samples),
            greatest=max(samples),
            converged=len(samples),
            runs=len(run.seconds),
        )


@dataclass(frozen=True)
class PublishedScore(_System):
    """A system of several nodes in round 1.1, with the means of its runs only."""

    mean_samples: float
    score_seconds: float

    @property
    def sequences_per_second(self) -> float:
        """Mean samples divided by the score."""
        return self.mean_samples / self.score_seconds


@dataclass(frozen=True)
class LearningRate:
    """A published base learning rate that reached the target."""

    optimizer: str
    global_batch_size: int
    learning_rate: float
    source: str


def read_runs(path: Path = RUNS) -> list[PublishedRun]:
    """Read the A100 systems of rounds 2.0 and 2.1. Raises ValueError for rows with other fields."""
    return [PublishedRun(**row) for row in _rows(path, "runs", PublishedRun)]


def read_samples(path: Path = SAMPLES) -> list[SamplesToTarget]:
    """Read samples to target of rounds 1.0 and 1.1 (BERT-large from the checkpoint, target 0.720)."""
    return [SamplesToTarget(**row) for row in _rows(path, "systems", SamplesToTarget)]


def read_scores() -> list[PublishedScore]:
    """Read the A100 systems of several nodes in round 1.1."""
    return [PublishedScore(**row) for row in _rows(SCORES, "systems", PublishedScore)]


def read_tiny_samples() -> list[SamplesToTarget]:
    """Read samples to target of the tiny BERT, measured with Podium."""
    return read_samples(TINY)


def read_learning_rates() -> list[LearningRate]:
    """Read published base learning rates of BERT-large by optimizer and batch size."""
    return [LearningRate(**row) for row in _rows(RATES, "rates", LearningRate)]


def _rows(path: Path, key: str, kind: type) -> list[dict[str, Any]]:
    """Read rows with exactly the fields of the dataclass `kind`; lists become tuples. Raises ValueError for others."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[key]
    wanted = {field.name for field in fields(kind)}
    for number, row in enumerate(rows):
        if set(row) != wanted:
            raise ValueError(f"{path}: {key}[{number}] has the keys {sorted(row)}, not {sorted(wanted)}")
    return [{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]
