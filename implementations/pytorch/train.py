"""Training of BERT as one process of a run: `torchrun … -m implementations.pytorch.train CONFIG FOLDER`.

CONFIG is a resolved configuration; all output is written into FOLDER. Exit codes: 0 the run ended as requested, 1 it
did not reach its target or failed (then FOLDER/failure.json has the error message), 2 wrong usage, 143 it was
stopped by SIGTERM and has saved a checkpoint. Started in a FOLDER in which a run has begun, it resumes from the last
checkpoint.
"""

import argparse
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from podium.config.checkpoint_choice import usable_checkpoint
from podium.config.load import load_resolved
from podium.config.run_folder import Checkpoint, RunFolder, require_same_configuration, require_same_data
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError
from podium.core.files import write_error
from podium.core.locks import shared_lock
from podium.core.processes import end_with_parent
from podium.mllog.write import ResultLog


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.train", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium run` writes it")
    parser.add_argument("folder", type=Path, help="folder of the run: log, metrics and summary are written there")
    parser.add_argument(
        "--caches-cleared", action="store_true", help="the page cache was cleared before the run; logged as cache_clear"
    )
    parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="number of steps to profile")
    parser.add_argument("--profile-all-ranks", action="store_true", help="profile all ranks, not only the first")
    parser.add_argument(
        "--swept", action="store_true", help="a run of `podium sweep`, whose log is marked as no result"
    )
    arguments = parser.parse_args()
    end_with_parent()
    folder = RunFolder(arguments.folder)
    try:
        with shared_lock(folder.lock), _report_full_disk(folder):
            profile = Profile(arguments.profile, arguments.profile_all_ranks)
            return _train(arguments.config, folder, arguments.caches_cleared, profile, arguments.swept)
    except PodiumError as error:
        with suppress(PodiumError):  # the disk may be full, which the launcher reports
            folder.write_failure(error)
        with suppress(OSError):  # standard error may be a file on the same disk
            print(error, file=sys.stderr)
        return error.exit_code


@contextmanager
def _report_full_disk(folder: RunFolder) -> Iterator[None]:
    """Convert the OSError of a full disk or quota, from any write in the block, to WorkError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise write_error(Path(error.filename) if error.filename else folder.path, error) from error


@dataclass(frozen=True)
class Profile:
    """The number of steps to profile, 0 for none, and on which ranks."""

    steps: int
    all_ranks: bool

    @property
    def own_steps(self) -> int:
        """The number of steps of this rank."""
        return self.steps if self.all_ranks or int(os.environ["RANK"]) == 0 else 0


def _train(config_path: Path, folder: RunFolder, caches_cleared: bool, profile: Profile, swept: bool) -> int:
    config = load_resolved(config_path)
    if failure := folder.read_failure(final_only=True):
        raise failure  # torchrun restarts failed processes; a final failure would only repeat
    if summary := folder.read_summary():
        return 0 if summary["reached_target"] or config.target_accuracy is None else 1
    with ExitStack() as stack:
        log, checkpoint = None, None
        if int(os.environ["RANK"]) == 0:
            log, checkpoint = _open_log(config, folder, caches_cleared)
            stack.enter_context(log)
            if profile.steps:
                log.log_profile(profile.steps)
            if swept and config.seed is not None:
                log.log_sweep(config.seed)
        # Imported only now: importing torch takes seconds, and init_start is to be logged before.
        from implementations.pytorch.distributed.process_group import init_distributed
        from implementations.pytorch.trainer import Trainer

        processes = stack.enter_context(init_distributed(config))
        return 0 if Trainer(config, processes, folder, log, checkpoint, profile.own_steps).run() else 1


def _open_log(config: RunConfig, folder: RunFolder, caches_cleared: bool) -> tuple[ResultLog, Checkpoint | None]:
    """Open the log. Returns it and the checkpoint to resume from; None for a new run or one without a checkpoint."""
    # Either a user resumed the run, or torchrun restarted its processes.
    again = folder.was_started or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    checkpoint = None
    if again:
        checkpoint = usable_checkpoint(folder.checkpoints, lambda text: print(text, file=sys.stderr, flush=True))
        if checkpoint is not None:  # checked before the next lines change any file of the run
            require_same_configuration(checkpoint, config, folder.config)
            require_same_data(checkpoint, folder)
        folder.reset_for_restart(checkpoint)
    log = ResultLog(folder.log)
    if checkpoint is None:
        log.log_submission(config, caches_cleared)
    if again:
        log.log_restart(folder.restarts, checkpoint.samples if checkpoint else 0)
    return log, checkpoint


if __name__ == "__main__":
    sys.exit(main())
