"""Finds runs and their logs, and reads the records in run folders under runs/."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from podium.config.load import load_resolved, read_configuration
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.files import open_regular
from podium.core.json_files import parse_json, read_json
from podium.mllog.results_tree import LOGS
from podium.run.source import Source, read_source

RUN_NAME = re.compile(r"run_(\d{1,9})", re.ASCII)
SET_NAME = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}(_\d+)?", re.ASCII)
SEED_LINE = re.compile(rb"^seed: (\d{1,19})\s*$", re.MULTILINE)
REPLACED = "replaced_results"  # a folder in a set's, with files that were in results/ and were not copies of a set
MAX_CONFIG = 1 << 20  # bytes of a resolved configuration that are searched for the seed; usually it has 3 kB


# Settings that are known only when the data is prepared, or that differ between the runs of a set.
PREPARED = frozenset({"seed", "description", "data", "phases"})
MEASURED = ("pair_cost", "sequence_cost")  # which a resolved configuration has even if none were set


def differing_settings(ran: RunConfig, wanted: RunConfig) -> list[str]:
    """Return the keys in which a run's resolved configuration differs from one that is not yet prepared."""
    found, other = (one.model_dump(mode="json", by_alias=True, exclude=set(PREPARED)) for one in (ran, wanted))
    return [key for key in other if found[key] != other[key] and not (key in MEASURED and other[key] is None)]


@dataclass(frozen=True)
class RunRecord:
    """One run, identified by its folder. Files are read when a property is used."""

    folder: RunFolder

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def set_folder(self) -> Path:
        """The folder runs/SYSTEM/DATE_TIME."""
        return self.path.parent

    @property
    def system(self) -> str:
        return self.path.parent.parent.name

    @property
    def name(self) -> str:
        """The text SYSTEM/DATE_TIME/run_N."""
        return "/".join(self.path.parts[-3:])

    @property
    def number(self) -> int:
        """N of run_N; 0 for a folder with another name, such as a trial's."""
        match = RUN_NAME.fullmatch(self.path.name)
        return int(match[1]) if match else 0

    @property
    def configured(self) -> bool:
        """Whether the folder contains a resolved configuration, the first file that `podium run` writes."""
        return self.folder.config.is_file()

    @property
    def written(self) -> bool:
        """Whether a run, or a trial of `podium tune`, has written to the folder."""
        folder = self.folder
        if folder.metrics.is_file():
            return True
        named = RUN_NAME.fullmatch(self.path.name) is not None
        return named and any(file.is_file() for file in (folder.config, folder.summary, folder.output))

    @cached_property
    def seed(self) -> int | None:
        """The seed of the resolved configuration; None if there is none.

        Found by a search in the text, since parsing the YAML of thousands of runs takes too long.
        """
        if not self.configured:
            return None
        with self.folder.config.open("rb") as file:
            seeds = SEED_LINE.findall(file.read(MAX_CONFIG))
        return int(seeds[-1]) if seeds else None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The keys of the resolved configuration, written by any version of Podium. UsageError if it is unreadable."""
        return read_configuration(self.folder.config)

    @cached_property
    def config(self) -> RunConfig:
        """The resolved configuration. UsageError if it is not valid in this version of Podium."""
        return load_resolved(self.folder.config)

    @cached_property
    def source(self) -> Source | None:
        """The version of the code that made the run; None for runs of versions that did not record it."""
        return read_source(self.folder.source)

    def summary_number(self, key: str) -> float | None:
        """Return a number of the run's summary; None without one under that key, or if the run did not finish."""
        try:
            value = read_json(self.folder.summary)[key]
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def summary_flag(self, key: str) -> bool | None:
        """Return a boolean of the run's summary; None without one under that key, or if the run did not finish."""
        try:
            value = read_json(self.folder.summary)[key]
        except (ValueError, KeyError, TypeError):
            return None
        return value if isinstance(value, bool) else None

    @property
    def evaluations(self) -> list[tuple[float, float]] | None:
        """Samples and masked-LM accuracy of every evaluation in the run's metrics; None if they cannot be read."""
        evaluations: list[tuple[float, float]] = []
        try:
            with open_regular(self.folder.metrics) as lines:
                for line in lines:
                    # The search for the text skips the far more frequent step events without parsing them.
                    if b'"evaluation"' in line and (event := parse_json(line))["event"] == "evaluation":
                        evaluations.append((float(event["samples"]), float(event["accuracy"])))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None
        return evaluations


def runs_of_set(folder: Path) -> list[RunRecord]:
    """Return the runs in runs/SYSTEM/DATE_TIME, ordered by number."""
    return _records(folder.glob("run_*"))


def runs_of_system(folder: Path) -> list[RunRecord]:
    """Return the runs of all sets in runs/SYSTEM, the newest set last."""
    return _records(folder.glob("*/run_*"))


def runs_of_all_systems(folder: Path) -> list[RunRecord]:
    """Return the runs of all systems in runs/, ordered by system, set and number."""
    return _records(folder.glob("*/*/run_*"))


def _records(paths: Iterable[Path]) -> list[RunRecord]:
    records = (RunRecord(RunFolder(path)) for path in paths if RUN_NAME.fullmatch(path.name) and path.is_dir())
    return sorted(records, key=lambda record: (record.set_folder, record.number, record.path.name))


def log_folders(sets: Iterable[Path], results: Path) -> list[Path]:
    """Return the folders that may contain logs of these sets of one system's runs.

    These are the sets' folders and, for sets of older versions, results/SYSTEM/bert and the folders to which later sets
    have moved files from there.
    """
    own = list(dict.fromkeys(sets))
    systems = dict.fromkeys(folder.parent for folder in own)
    replaced = [folder for system in systems for folder in sorted(system.glob(f"*/{REPLACED}*"))]
    return [*own, *(results / system.name / "bert" for system in systems), *replaced]


def logs_in(folder: Path) -> list[Path]:
    """Return the result logs in a folder, without symbolic links."""
    return sorted(log for log in folder.glob(LOGS) if log.is_file() and not log.is_symlink())


def newest_by_seed(records: Iterable[RunRecord]) -> dict[int, RunRecord]:
    """Return the last record of each seed."""
    return {record.seed: record for record in records if record.seed is not None}
