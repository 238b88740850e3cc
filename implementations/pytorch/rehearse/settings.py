"""Configuration of a rehearsal: batches as on the system's device, computed with what this CPU supports."""

from podium.config.schema import RunConfig
from podium.planning.batch_plan import SHAPE_STEPS


def on_cpu(config: RunConfig) -> RunConfig:
    """Return the configuration for this CPU, with the batches of the system's device.

    `left_out` lists what the rehearsal does not cover.
    """
    changed = {
        "launch": config.launch.model_copy(update={"device": "cpu", "binding": "none"}),
        "initial_checkpoint": None,
        "checkpoint": None,
        "shape_step": config.shape_step or SHAPE_STEPS[config.launch.device],
        "gradient_wire": config.wire,  # resolved: `auto` depends on launch.device, which is changed above
        "attention": config.attention if config.attention in ("padded", "grouped") else "grouped",
        "kernels": "auto",
        "precision": "fp32",
        "cuda_graph": "none",
        "optimizer": config.optimizer.model_copy(update={"backend": "podium"}),
        "loader": "own" if config.loader == "dali" else config.loader,
    }
    return config.model_copy(update=changed)


def left_out(config: RunConfig) -> list[str]:
    """Return what a run of this configuration does and its rehearsal does not, as phrases for the report."""
    return [
        "the model, its warm-up and its evaluations (a tiny model on this CPU stands for it, evaluations are prepared)",
        "communication",
        "reading of samples (synthetic ones stand for them)",
        *(["DALI (Podium's own loader stands for it)"] if config.loader == "dali" else []),
        *(["loading of initial weights"] if config.initial_checkpoint else []),
        *(["checkpoints"] if config.checkpoint else []),
    ]
