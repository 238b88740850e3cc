"""From a system's configuration to that of its rehearsal: what depends on the device is as on the system's own, and
what computes is what this CPU can."""

from podium.config.schema import RunConfig
from podium.planning.batch_plan import SHAPE_STEPS


def on_cpu(config: RunConfig) -> RunConfig:
    """The configuration as this CPU computes it, with the batches of the system's device.

    What it leaves out is in `left_out`.
    """
    changed = {
        "launch": config.launch.model_copy(update={"device": "cpu", "binding": "none"}),
        "initial_checkpoint": None,
        "checkpoint": None,
        "shape_step": config.shape_step or SHAPE_STEPS[config.launch.device],
        "gradient_wire": config.wire,
        "attention": config.attention if config.attention in ("padded", "grouped") else "grouped",
        "kernels": "auto",
        "precision": "fp32",
        "cuda_graph": "none",
        "optimizer": config.optimizer.model_copy(update={"backend": "podium"}),
        "loader": "own" if config.loader == "dali" else config.loader,
    }
    return config.model_copy(update=changed)


def left_out(config: RunConfig) -> list[str]:
    """What a run of this configuration does and its rehearsal does not."""
    return [
        "the model, its warm-up and its evaluations (a tiny model on this CPU stands for it, evaluations are prepared)",
        "communication",
        "reading of samples (synthetic ones stand for them)",
        *(["DALI (Podium's own loader stands for it)"] if config.loader == "dali" else []),
        *(["loading of initial weights"] if config.initial_checkpoint else []),
        *(["checkpoints"] if config.checkpoint else []),
    ]
