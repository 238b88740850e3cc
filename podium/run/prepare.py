"""What is done before a run: data, costs and checkpoint once for a set; seed, configuration and caches for each run."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rules import LARGEST_SEED
from podium.config.checkpoint_choice import faults_of, likely_checkpoint, usable_checkpoint
from podium.config.load import load_resumed, write_resolved
from podium.config.run_data import RunData, read_run_data, write_run_data
from podium.config.run_folder import RunFolder, require_kept, require_same_data
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder
from podium.launch.node_group import NodeGroup
from podium.launch.page_cache import Cleared
from podium.planning.costs import with_measured_costs
from podium.run.data import verify, with_data
from podium.run.source import add_resumed_code, source_here, write_source


@dataclass(frozen=True)
class PreparedRun:
    """A run whose folder holds all that its processes read."""

    config: RunConfig
    folder: RunFolder
    caches: Cleared
    data: RunData | None = None

    @property
    def options(self) -> list[str]:
        """Command-line options of the implementation's `train`."""
        return ["--caches-cleared"] if self.caches.samples else []


def prepare_set(config: RunConfig, note: Callable[[str], None], nodes: NodeGroup) -> RunConfig:
    """The configuration with verified data and the costs measured on its system; its checkpoint fits the data."""
    check_checkpoint(config)  # before samples are made, which may take hours
    config = with_measured_costs(with_data(config, note, nodes.data))
    check_checkpoint(config)  # the embedded text's vocabulary is there now
    return config


def prepare_run(config: RunConfig, folder: Path, nodes: NodeGroup, set_data: RunData | None = None) -> PreparedRun:
    """Draw the seed, write configuration, data and the source's hash, verify the data of all nodes and clear caches.

    Nothing reads samples any more once the caches are cleared. `set_data` is what the runs before it in its set were
    trained on. Raises WorkError where the data is another now, or is damaged.
    """
    run = RunFolder(make_folder(folder))
    seed = config.seed if config.seed is not None else secrets.randbelow(LARGEST_SEED + 1)
    config = config.model_copy(update={"seed": seed})
    data = nodes.data.of(config)
    if set_data is not None and (found := data.difference(set_data, config.every_store, "the first run of this set")):
        raise WorkError(f"{found}; runs of a set have the same samples: put them back, or start another set")
    write_run_data(run.data, data)
    write_resolved(config, run.config)
    write_source(run.source, source_here())
    nodes.verify_data(config, run)
    return PreparedRun(config, run, nodes.clear_caches(config, run), data)


def prepare_resumed(config: RunConfig, run: RunFolder, nodes: NodeGroup, note: Callable[[str], None]) -> PreparedRun:
    """Verify the data and mark a run as resumed with this configuration, which all nodes read from its folder.

    Newer checkpoints that cannot be used are set aside. Raises WorkError where there are checkpoints and none can be
    used, and where the data is not what the run began with. A run of an older version does not say what it was.
    """
    note("Checking the checkpoint")
    if checkpoint := usable_checkpoint(run.checkpoints, note):
        require_kept(checkpoint, config, run.config)
        require_same_data(checkpoint, run)
    note("Checking the data")
    verify(config, nodes.data)
    began_with = read_run_data(run.data)
    if began_with is None:
        note(f"{run.data} is not there, as with runs of older versions: the data is whole, and compared with nothing")
    else:
        nodes.data.require(config, began_with, "the run")
    write_resolved(config, run.config)
    nodes.verify_data(config, run)
    run.mark_resumed()
    add_resumed_code(run.source, source_here(), note)
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
    checkpoint = likely_checkpoint(run.checkpoints)
    if checkpoint is None and from_start:
        return config
    if checkpoint is None and (faults := faults_of(run.checkpoints)):
        raise UsageError(f"{'; '.join(faults)}; no checkpoint is left to resume from: put back what is missing")
    if checkpoint is None:
        raise UsageError(
            f"{run.path}: holds no whole checkpoint to go on from; set checkpoint.every_samples in another run"
        )
    require_kept(checkpoint, config, run.config)
    require_same_data(checkpoint, run)
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
