"""Result files in MLPerf's layout: results/SYSTEM/bert/result_0.txt and on, one set of runs at a time."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.files import make_folder
from podium.config import RunFolder
from podium.config.loading import ROOT
from podium.mllog import close_as_aborted

RESULTS = ROOT / "results"


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

    def add(self, run: RunFolder) -> Path | None:
        """Give an ended run's log its place; a log without run_stop is closed as aborted first.

        None where the run did not get as far as run_start: then there is no result.
        """
        if not close_as_aborted(run.log):
            return None
        make_folder(self.folder)
        if not self.files:
            self._move_earlier_away()
        path = self.folder / f"result_{len(self.files)}.txt"
        shutil.move(run.log, path)
        self.files.append(path)
        return path

    def _move_earlier_away(self) -> None:
        for earlier in sorted(self.folder.glob("result_*.txt")):
            shutil.move(earlier, make_folder(self.replaced) / earlier.name)
