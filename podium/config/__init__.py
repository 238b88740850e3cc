"""The contract between harness and implementation: one typed, frozen configuration of a run."""

from podium.config.checkpoints import Checkpoint, newest_checkpoint, whole_checkpoints
from podium.config.data import DataSettings
from podium.config.description import Description
from podium.config.folder import RunFolder
from podium.config.launch import Container, Launch
from podium.config.loading import load_resolved, load_system, system_names, write_resolved
from podium.config.model import Checkpointing, Evaluation, RunConfig
from podium.config.optimizing import Clipping, LossScaling, OptimizerSettings
from podium.config.resuming import load_resumed

__all__ = [
    "Checkpoint",
    "Checkpointing",
    "Clipping",
    "Container",
    "DataSettings",
    "Description",
    "Evaluation",
    "Launch",
    "LossScaling",
    "OptimizerSettings",
    "RunConfig",
    "RunFolder",
    "load_resolved",
    "load_resumed",
    "load_system",
    "newest_checkpoint",
    "system_names",
    "whole_checkpoints",
    "write_resolved",
]
