"""Weights from a checkpoint of Podium's, made with `podium data checkpoint`."""

from pathlib import Path

import torch

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from implementations.pytorch.model.bert import BertForPreTraining


@torch.no_grad()
def load_checkpoint(model: BertForPreTraining, path: Path) -> None:
    """Replace every weight of the model by the checkpoint's, one tensor at a time.

    Raises UsageError for a checkpoint that is missing or of another size or vocabulary, WorkError for a damaged one.
    """
    checkpoint = PodiumCheckpoint(path)
    checkpoint.require(model.size, model.vocabulary)
    weights = model.state_dict()
    assert sorted(weights) == sorted(checkpoint.names), "the table of names is that of the model"
    for name, weight in weights.items():
        values = torch.from_numpy(checkpoint.read(name))
        assert weight.shape == values.shape
        weight.copy_(values)
