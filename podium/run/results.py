"""Result files in MLPerf's layout: results/SYSTEM/bert/result_0.txt, result_1.txt and so on, for one set of runs."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from podium.config.run_folder import RunFolder
from podium.core.errors import PodiumError, WorkError
from podium.core.files import make_folder, write_whole
from podium.core.paths import WORKING_FOLDER
from podium.mllog.write import close_as_aborted

RESULTS = WORKING_FOLDER / "results"


@dataclass
class ResultSet:
    """The results of consecutive runs on a system.

    The first result of a new set moves those of the set before out of the way, into `replaced`: a set never mixes
    runs of two settings, and nothing is lost.
    """

    system: str
    replaced: Path
    root: Path = RESULTS
    files: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / self.system / "bert"

    def check_place(self) -> None:
        """See before a run that its result will find a place: UsageError or WorkError where it will not."""
        make_folder(self.folder)
        if not os.access(self.folder, os.W_OK):
            raise WorkError(f"{self.folder}: results cannot be written there; see who may write")

    def add(self, run: RunFolder) -> Path | None:
        """Give an ended run's log its place; a log without run_stop is closed as aborted first.

        None where the run did not get as far as run_start: then there is no result. The log of a run that was restarted
        or resumed is no result either, whatever it holds: it stays in the run's folder under a name that says so, and
        the results that are there stay where they are. Raises WorkError where the result cannot be written; its log is
        then still in the run's folder.
        """
        if not close_as_aborted(run.log, run.samples_trained()):
            return None
        if run.gone_on_with:
            _move(run.log, run.restarted_result)
            return run.restarted_result
        try:
            make_folder(self.folder)
            if not self.files:
                for earlier in sorted(self.folder.glob("result_*.txt")):
                    _move(earlier, make_folder(self.replaced) / earlier.name)
            path = self.folder / f"result_{len(self.files)}.txt"
            _move(run.log, path)
        except PodiumError as error:
            raise WorkError(f"{error}; the run's log is kept: {run.log}") from None
        self.files.append(path)
        return path


def set_aside(run: RunFolder) -> None:
    """Give the log of a run whose data was changed meanwhile a name in the run's folder that says so."""
    if run.log.exists():
        _move(run.log, run.changed_data_result)


def _move(source: Path, destination: Path) -> None:
    """Also to another file system, and never half."""
    write_whole(destination, source.read_bytes())
    source.unlink()
