"""What is done before a run: data, costs and checkpoint once for a set; seed, configuration and caches for each run."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rules import LARGEST_SEED
from podium.config.load import load_resumed, write_resolved
from podium.config.run_folder import RunFolder, newest_checkpoint, require_kept
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import make_folder
from podium.launch.node_group import Crew
from podium.launch.page_cache import Cleared
from podium.planning.costs import with_measured_costs
from podium.run.data import with_data
from podium.run.source import source_here, write_source


@dataclass(frozen=True)
class PreparedRun:
    """A run whose folder holds all that its processes read."""

    config: RunConfig
    folder: RunFolder
    caches: Cleared

    @property
    def options(self) -> list[str]:
        """Command-line options of the implementation's `train`."""
        return ["--caches-cleared"] if self.caches.samples else []


def prepare_set(config: RunConfig, note: Callable[[str], None]) -> RunConfig:
    """The configuration with verified data and the costs measured on its system; its checkpoint fits the data."""
    check_checkpoint(config)  # before samples are made, which may take hours
    config = with_measured_costs(with_data(config, note))
    check_checkpoint(config)  # the embedded text's vocabulary is there now
    return config


def prepare_run(config: RunConfig, folder: Path, nodes: Crew) -> PreparedRun:
    """Draw the seed, write the configuration and the source's hash, and clear the caches of all nodes."""
    run = RunFolder(make_folder(folder))
    seed = config.seed if config.seed is not None else secrets.randbelow(LARGEST_SEED + 1)
    config = config.model_copy(update={"seed": seed})
    write_resolved(config, run.config)
    write_source(run.source, source_here())
    return PreparedRun(config, run, nodes.clear_caches(config, run.config))


def prepare_resumed(config: RunConfig, run: RunFolder) -> PreparedRun:
    """Mark a run as resumed with this configuration, which all nodes read from its folder."""
    write_resolved(config, run.config)
    run.mark_resumed()
    run.forget_failure()
    return PreparedRun(config, run, Cleared(False, ""))


def resumable(run: RunFolder, system: str, settings: Sequence[str] = (), from_start: bool = False) -> RunConfig:
    """The configuration that a run which broke off resumes with: its own, started as system and `settings` say.

    Changes nothing. `system` is a name in systems/ or a path. Raises UsageError where the run cannot be resumed, which
    a run without a checkpoint can only be `from_start`.
    """
    config = load_resumed(run, system, settings)
    if run.read_summary() is not None:
        raise UsageError(f"{run.path}: this run has come to its end; start another one")
    checkpoint = newest_checkpoint(run.checkpoints)
    if checkpoint is None and from_start:
        return config
    if checkpoint is None:
        raise UsageError(
            f"{run.path}: holds no whole checkpoint to go on from; set checkpoint.every_samples in another run"
        )
    require_kept(checkpoint, config, run.config)
    return config


def check_checkpoint(config: RunConfig) -> None:
    """Refuse an initial checkpoint that the run could not start from, as far as its header and the data show.

    Raises UsageError for one that is missing or of another size or vocabulary, WorkError for one that is damaged.
    """
    if config.initial_checkpoint is None:
        return
    vocabulary = config.data.vocabulary
    known = vocabulary is not None and vocabulary.is_file()  # the embedded text's is not, before it is written
    words = len(Vocabulary.read(vocabulary).words) if vocabulary and known else None
    PodiumCheckpoint(config.initial_checkpoint).require(config.model_size, words)
