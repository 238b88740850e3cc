"""Hugging Face's BertForPreTraining on the same samples, with every sequence padded to the full length, as is usual."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.bert.sizes import SEQUENCE_LENGTH, Size
from implementations.pytorch.data.batch import IGNORED, RaggedBatch
from implementations.pytorch.data.reader import Step
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.precision import autocast
from podium.config.schema import RunConfig
from podium.core.errors import UsageError


def attention_implementations(device: torch.device) -> list[str]:
    """Return the attention implementations of transformers that run here. Raises UsageError if it is not installed."""
    if find_spec("transformers") is None:
        raise UsageError(
            "--baseline huggingface: transformers is not installed; run `.venv/bin/python -m pip install transformers`"
        )
    flash = device.type == "cuda" and find_spec("flash_attn") is not None
    return ["eager", "sdpa", *(["flash_attention_2"] if flash else [])]


class HuggingFaceRunner:
    """Runs whole steps with the same precision, dropout, clipping and optimizer as Podium's."""

    def __init__(
        self,
        attention: str,
        steps: list[Step],
        config: RunConfig,
        size: Size,
        vocabulary_size: int,
        precision: str,
        device: torch.device,
    ) -> None:
        from transformers import BertConfig, BertForPreTraining

        torch.manual_seed(0)
        settings = BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.feed_forward,
            hidden_act="gelu_pytorch_tanh",
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            max_position_embeddings=size.positions,
            layer_norm_eps=1e-12,
            attn_implementation=attention,
        )
        with device:  # random numbers for all weights take seconds on a CPU
            self.model: nn.Module = BertForPreTraining(settings).train()
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.batches = [[_padded(batch) for batch in step.micro_batches] for step in steps]
        self.clipping, self.device = config.clipping, device
        self.autocast = partial(autocast, precision, device)

    def take(self, number: int) -> None:
        """Run step `number`."""
        self.optimizer.zero_grad(set_to_none=False)
        micro_batches = self.batches[number]
        for batch in micro_batches:
            inputs = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
            with self.autocast():
                loss = self.model(**inputs).loss
            (loss / len(micro_batches)).backward()
        if self.clipping is not None:
            clip_grad_norm_(self.model.parameters(), self.clipping.max_norm, foreach=True)
        self.optimizer.step()

    def close(self) -> None:
        """Do nothing: nothing outlives the last reference."""


def _padded(batch: RaggedBatch) -> dict[str, Any]:
    """Return transformers' inputs for an unpadded batch: [sequences, 512], a mask, and -100 for ignored labels."""
    shape = (batch.sequences, SEQUENCE_LENGTH)
    lengths = torch.tensor(batch.lengths)
    inside = torch.arange(SEQUENCE_LENGTH) < lengths[:, None]
    tensors = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    used = batch.tokens
    tensors["input_ids"][inside] = batch.token_ids[:used]
    tensors["token_type_ids"][inside] = batch.segment_ids[:used]
    flat = torch.full((used,), IGNORED)
    flat[batch.masked_positions[: batch.masked]] = batch.masked_labels[: batch.masked]
    labels = torch.full(shape, IGNORED)
    labels[inside] = flat
    return {
        **tensors,
        "attention_mask": inside.to(torch.int64),
        "labels": labels,
        "next_sentence_label": batch.next_sentence,
    }
