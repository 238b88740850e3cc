"""Before a run: data, costs and checkpoint once for a set; seed, configuration and page caches for each run."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rules import MAX_SEED
from podium.config.checkpoint_choice import checkpoint_faults, likely_checkpoint, usable_checkpoint
from podium.config.load import load_resumed, write_resolved
from podium.config.run_data import RunData, read_run_data, write_run_data
from podium.config.run_folder import RunFolder, require_same_configuration, require_same_data
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder, write_atomically
from podium.launch.node_group import NodeGroup
from podium.launch.page_cache import Cleared
from podium.planning.costs import with_measured_costs
from podium.run.data import verify, with_data
from podium.run.source import add_resumed_code, current_source, write_source


@dataclass(frozen=True)
class PreparedRun:
    """A run whose folder contains everything that its processes read."""

    config: RunConfig
    folder: RunFolder
    caches: Cleared
    data: RunData | None = None
    fault: str | None = None  # why its log is not a result, known before it begins
    swept: bool = False  # a run of a sweep, whose log is marked

    @property
    def options(self) -> list[str]:
        """The command-line options of the implementation's `train`."""
        return [*(["--caches-cleared"] if self.caches.samples else []), *(["--swept"] if self.swept else [])]


def prepare_set(config: RunConfig, note: Callable[[str], None], nodes: NodeGroup) -> RunConfig:
    """Prepare and verify data and initial checkpoint, and return the configuration with stores and measured costs.

    Raises UsageError or WorkError, as `check_checkpoint` and `with_data`.
    """
    check_checkpoint(config)  # before samples are made, which may take hours
    config = with_measured_costs(with_data(config, note, nodes.data))
    check_checkpoint(config)  # again, since the vocabulary of the embedded text exists only now
    return config


def prepare_run(config: RunConfig, folder: Path, nodes: NodeGroup, set_data: RunData | None = None) -> PreparedRun:
    """Draw the seed, write configuration, data manifests and code hash, verify the data of all nodes, clear caches.

    `set_data` is the data of the set's earlier runs. Raises WorkError if the data differs from it or is damaged.
    """
    run = RunFolder(make_folder(folder))
    seed = config.seed if config.seed is not None else secrets.randbelow(MAX_SEED + 1)
    config = config.model_copy(update={"seed": seed})
    data = nodes.data.of(config)
    if set_data is not None and (found := data.difference(set_data, config.all_stores, "the first run of this set")):
        raise WorkError(f"{found}; all runs of a set need the same samples: put them back, or start another set")
    write_run_data(run.data, data)
    write_resolved(config, run.config)
    write_source(run.source, current_source())
    write_atomically(run.hosts, json.dumps(nodes.hosts) + "\n")
    nodes.verify_data(config, run)
    # Last, since MLPerf's rules require cold caches at the start: from here on nothing may read samples.
    return PreparedRun(config, run, nodes.clear_caches(config, run), data)


def prepare_resumed(config: RunConfig, run: RunFolder, nodes: NodeGroup, note: Callable[[str], None]) -> PreparedRun:
    """Verify the data, write the configuration to the run's folder, where all nodes read it, and mark it as resumed.

    Newer checkpoints that cannot be used are set aside. Raises WorkError if there are checkpoints but none is usable,
    or if the data differs from what the run began with. Runs of older versions have no record of their data.
    """
    note("Checking the checkpoint")
    if checkpoint := usable_checkpoint(run.checkpoints, note):
        require_same_configuration(checkpoint, config, run.config)
        require_same_data(checkpoint, run)
    note("Checking the data")
    verify(config, nodes.data)
    began_with = read_run_data(run.data)
    if began_with is None:
        note(
            f"{run.data} does not exist, as for runs of older versions: the data is undamaged, but whether it is the "
            "run's data is not checked"
        )
    else:
        nodes.data.require(config, began_with, "the run")
    write_resolved(config, run.config)
    nodes.verify_data(config, run)
    # Only after all checks have passed: a run that is marked as resumed never becomes a result.
    run.mark_resumed()
    add_resumed_code(run.source, current_source(), note)
    run.clear_failure()
    return PreparedRun(config, run, Cleared(False, ""))


def load_resumable(run: RunFolder, system: str, settings: Sequence[str] = (), from_start: bool = False) -> RunConfig:
    """Return the configuration to resume a run with: the run's, with the launch settings of `system` and `settings`.

    `system` is a name in systems/ or a path. Changes no file. Raises UsageError if the run cannot be resumed. A run
    without a checkpoint can be resumed only `from_start`.
    """
    config = load_resumed(run, system, settings)
    if run.read_summary() is not None:
        raise UsageError(f"{run.path}: this run is complete and cannot be resumed; start another one")
    checkpoint = likely_checkpoint(run.checkpoints)
    if checkpoint is None and from_start:
        return config
    if checkpoint is None and (faults := checkpoint_faults(run.checkpoints)):
        raise UsageError(f"{'; '.join(faults)}; no checkpoint is left to resume from: put back the missing files")
    if checkpoint is None:
        raise UsageError(
            f"{run.path}: contains no complete checkpoint to resume from; start another run with "
            "checkpoint.every_samples set"
        )
    require_same_configuration(checkpoint, config, run.config)
    require_same_data(checkpoint, run)
    return config


def check_checkpoint(config: RunConfig, place: str = "initial_checkpoint") -> None:
    """Check the header of the initial checkpoint against the configuration; does nothing without one.

    `place` is the key, or the file and the key, for messages. Raises UsageError if the checkpoint is missing or has
    another model size or vocabulary size, WorkError if it is damaged.
    """
    if config.initial_checkpoint is None:
        return
    vocabulary = config.data.vocabulary
    exists = vocabulary is not None and vocabulary.is_file()  # the embedded text's is written with its first store
    vocabulary_size = len(Vocabulary.read(vocabulary).tokens) if vocabulary and exists else None
    try:
        PodiumCheckpoint(config.initial_checkpoint).require_model_size(config.model_size, vocabulary_size)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    except WorkError as error:
        raise WorkError(f"{place}: {error}") from None
