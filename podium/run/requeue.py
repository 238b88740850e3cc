"""Record files of a Slurm job that requeues itself, so that its next start resumes the same run.

docker/slurm.sub names them with --job-record PREFIX, and decides by them whether to requeue the job:

- PREFIX.run contains the path of the run's folder. While it exists, the job's next start resumes that run.
- PREFIX.stopped exists if the run was stopped before its end. It contains `BEFORE NOW FOLDER`: the samples in the
  newest checkpoint when this start of the job began, those when it was stopped, and the run's folder, if there is one.
  A run that has ended, or that failed for a reason that another start would not change, leaves no such file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podium.config.run_folder import RunFolder, newest_checkpoint
from podium.core.errors import Interrupted, StoppedAfterSaving, WorkError
from podium.core.files import make_folder, write_atomically
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import portable_path

# Sections whose settings may be changed when a run is resumed; all others are fixed by the run's configuration.
CHANGEABLE_SECTIONS = ("launch",)


@dataclass(frozen=True)
class JobRecord:
    """The record files of one Slurm job, or of a chain of dependent jobs."""

    prefix: Path  # relative to the repository, so that it is the same path inside containers

    @property
    def run_file(self) -> Path:
        return WORKING_FOLDER / f"{self.prefix}.run"

    @property
    def stopped_file(self) -> Path:
        return WORKING_FOLDER / f"{self.prefix}.stopped"

    def run(self) -> RunFolder | None:
        """Return the run that an earlier start of the job began, None at the first start. WorkError if it is gone."""
        try:
            text = self.run_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WorkError(f"{self.run_file}: cannot be read ({error}); resume the run by hand") from None
        run = RunFolder((WORKING_FOLDER / text).resolve())
        if not text or not run.config.is_file():
            raise WorkError(
                f"{self.run_file}: names {text or 'nothing'}, which is not the folder of a run; resume the run by "
                "hand, with `podium run SYSTEM --resume FOLDER`"
            )
        return run

    def record_run(self, run: RunFolder) -> None:
        """Write the run file. The run's folder must already contain its configuration."""
        make_folder(self.run_file.parent)
        write_atomically(self.run_file, f"{portable_path(run.path)}\n")

    @contextmanager
    def record_stop(self, resumed: RunFolder | None) -> Iterator[None]:
        """Context manager that writes the file PREFIX.stopped if the run inside is stopped before its end.

        `resumed` is the run that is resumed inside, if any; it is recorded as the job's run.
        """
        if resumed is not None:
            self.record_run(resumed)
        before = self._samples()
        try:
            yield
        except (StoppedAfterSaving, Interrupted):
            run = self.run()
            folder = portable_path(run.path) if run else ""
            make_folder(self.stopped_file.parent)
            write_atomically(self.stopped_file, f"{before} {self._samples()} {folder}\n")
            raise

    def _samples(self) -> int:
        """Return the number of samples in the newest complete checkpoint, 0 if there is none."""
        run = self.run()
        checkpoint = newest_checkpoint(run.checkpoints) if run else None
        return checkpoint.samples if checkpoint else 0


def settings_to_resume(settings: list[str]) -> list[str]:
    """Return those of a job's --set options that are also allowed when its run is resumed."""
    return [setting for setting in settings if setting.partition("=")[0].split(".")[0].strip() in CHANGEABLE_SECTIONS]
