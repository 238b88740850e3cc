"""From a system's configuration to that of its rehearsal: what the device decides is decided as on the system's own,
and what computes is what this CPU can."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.rehearsal_index import IndexFile, rehearsal_index
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from implementations.pytorch.build_run import replays_graphs
from podium.config.schema import DataSettings, RunConfig
from podium.planning.batch_plan import SHAPE_STEPS
from podium.planning.hardware import attention_of

EVALUATION = Path("evaluation")  # stands for the evaluation store


@dataclass(frozen=True)
class RehearsedRun:
    """A configuration that this machine's CPU computes, and what it is made of."""

    config: RunConfig
    indices: dict[str, IndexFile]  # of every store, by its key in the configuration
    graphs: bool  # whether the system's steps are replayed as CUDA graphs


def rehearsed_run(config: RunConfig, folder: Path, samples: int) -> RehearsedRun:
    """The rehearsal of a configuration with `samples` samples in every store, whose indices are in `folder`.

    Training data has a store for each sequence length that a phase has. Checkpoints, the first weights and DALI are
    left out. Raises UsageError for settings that the system's device cannot run.
    """
    device = config.launch.device
    lengths = [phase.max_sequence_length or SEQUENCE_LENGTH for phase in config.phases]
    stores = {length: Path(f"samples-{length}") for length in (SEQUENCE_LENGTH, *lengths)}
    phases = [
        phase.model_copy(update={"max_sequence_length": length, "store": stores[length]})
        for phase, length in zip(config.phases, lengths, strict=True)
    ]
    changed = config.model_copy(
        update={
            "launch": config.launch.model_copy(update={"device": "cpu", "binding": "none"}),
            "data": DataSettings(store=stores[SEQUENCE_LENGTH], evaluation_store=EVALUATION, vocabulary=Path("words")),
            "phases": tuple(phases),
            "initial_checkpoint": None,
            "checkpoint": None,
            "shape_step": config.shape_step or SHAPE_STEPS[device],
            "gradient_wire": config.wire,
            "attention": config.attention if config.attention in ("padded", "grouped") else "grouped",
            "kernels": "auto",
            "precision": "fp32",
            "cuda_graph": "none",
            "optimizer": config.optimizer.model_copy(update={"backend": "podium"}),
            "loader": "own" if config.loader == "dali" else config.loader,
            "seed": config.seed if config.seed is not None else 1,
        }
    )
    of_length = {path: rehearsal_index(folder, samples, length) for length, path in stores.items()}
    of_length[EVALUATION] = rehearsal_index(folder, config.evaluation_samples)
    indices = {key: of_length[path] for key, path in changed.every_store.items()}
    return RehearsedRun(changed, indices, replays_graphs(config, device, attention_of(config)))
