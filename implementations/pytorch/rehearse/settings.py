"""From a system's configuration to that of its rehearsal: what depends on the device is as on the system's own, and
what computes is what this CPU can."""

from podium.config.schema import RunConfig
from podium.planning.batch_plan import SHAPE_STEPS


def on_cpu(config: RunConfig) -> RunConfig:
    """The configuration as this CPU computes it, with the batches of the system's device.

    Checkpoints, the first weights and DALI are left out.
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
