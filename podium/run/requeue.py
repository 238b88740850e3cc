"""Records of a Slurm job that requeues itself, by which its next start resumes the same run.

docker/slurm.sub names them with --job-record PREFIX and decides by them whether to requeue:

- PREFIX.run holds the run's folder. While it exists, the job's next start resumes that run.
- PREFIX.stopped exists once the run was asked to stop before its end: `BEFORE NOW FOLDER`, the samples in the newest
  checkpoint when this start of the job began and when it was stopped, and the run's folder (or nothing). A run that
  has ended, or failed for a reason that another start would not change, leaves none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podium.config.run_folder import RunFolder, newest_checkpoint
from podium.core.errors import Interrupted, Saved, WorkError
from podium.core.files import make_folder, write_whole
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import seen_anywhere

# Sections whose settings may be given again to a run that resumes; all others are in the run's folder.
GIVEN_AGAIN = ("launch",)


@dataclass(frozen=True)
class JobRecord:
    """The record files of one Slurm job, or of a chain of jobs that depend on each other."""

    prefix: Path  # from the repository's folder on, as containers see it too

    @property
    def run_file(self) -> Path:
        return WORKING_FOLDER / f"{self.prefix}.run"

    @property
    def stopped_file(self) -> Path:
        return WORKING_FOLDER / f"{self.prefix}.stopped"

    def run(self) -> RunFolder | None:
        """The run that an earlier start of the job began; None on the first. WorkError where it is gone."""
        try:
            text = self.run_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WorkError(f"{self.run_file}: cannot be read ({error}); resume the run by hand") from None
        run = RunFolder((WORKING_FOLDER / text).resolve())
        if not text or not run.config.is_file():
            raise WorkError(
                f"{self.run_file}: names {text or 'nothing'}, which is no run's folder; resume the run by hand, with "
                "`podium run SYSTEM --resume FOLDER`"
            )
        return run

    def begin(self, run: RunFolder) -> None:
        """Record the run, whose folder holds its configuration already."""
        make_folder(self.run_file.parent)
        write_whole(self.run_file, f"{seen_anywhere(run.path)}\n")

    @contextmanager
    def watch(self, resumed: RunFolder | None) -> Iterator[None]:
        """Record that the run in this block was asked to stop, if it was, and how far it had come before and since.

        `resumed` is the run that the block resumes, which is recorded as the job's.
        """
        if resumed is not None:
            self.begin(resumed)
        before = self._samples()
        try:
            yield
        except (Saved, Interrupted):
            run = self.run()
            folder = seen_anywhere(run.path) if run else ""
            make_folder(self.stopped_file.parent)
            write_whole(self.stopped_file, f"{before} {self._samples()} {folder}\n")
            raise

    def _samples(self) -> int:
        """Samples that the newest whole checkpoint was trained on; 0 where there is none."""
        run = self.run()
        checkpoint = newest_checkpoint(run.checkpoints) if run else None
        return checkpoint.samples if checkpoint else 0


def settings_to_resume(settings: list[str]) -> list[str]:
    """Of the --set options of a job's first start those that a run may be resumed with."""
    return [setting for setting in settings if setting.partition("=")[0].split(".")[0].strip() in GIVEN_AGAIN]
