"""The keys that say how gradients become new weights: optimizer, clipping, loss scaling."""

from typing import Literal, Self

from pydantic import Field, model_validator

from podium.config.settings import Settings


class OptimizerSettings(Settings):
    """The optimizer and its schedule."""

    algorithm: Literal["lamb", "adamw"]
    learning_rate: float = Field(gt=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    warmup_steps: int = Field(ge=0)
    start_warmup_step: int = Field(default=0, le=0)
    decay_steps: int = Field(ge=1)
    decay_power: float = Field(default=1.0, gt=0)
    end_learning_rate: float = Field(default=0.0, ge=0)
    backend: Literal["podium", "apex"] = "podium"
    """Who computes LAMB: Podium's own, or the fused kernels of NVIDIA's apex, where it is installed."""
    sharded_from: int | None = Field(default=None, ge=1)
    """From so many ranks on each rank updates some of LAMB's large tensors and sends them to the others; None: never.

    It saves memory and the optimizer's time and costs sending the weights, which by `podium predict` takes longer on
    every A100 system described here (docs/lab-notebook.md).
    """

    @model_validator(mode="after")
    def _is_lambs(self) -> Self:
        asked = "backend is apex" if self.backend == "apex" else "sharded_from is set" if self.sharded_from else None
        if asked and self.algorithm != "lamb":
            raise ValueError(f"{asked}, which is for lamb alone, but algorithm is {self.algorithm}; leave it out")
        if self.backend == "apex" and self.sharded_from:
            raise ValueError("sharded_from is set, but backend is apex; leave one of them out")
        if self.backend == "apex" and self.weight_decay == 0:
            raise ValueError(
                "backend is apex, which takes no trust ratios without weight decay, but weight_decay is 0; "
                "allowed with it is backend podium"
            )
        return self


class Clipping(Settings):
    """Gradients scaled down to a norm of `max_norm` at most, before or after they are averaged over ranks."""

    max_norm: float = Field(gt=0)
    when: Literal["after", "before", "bucket"] = "after"
    """`after`: the averaged gradient, by its global norm. `before`: each rank's own gradient, by its local norm, which
    needs the whole backward pass, so that nothing is sent before its end. `bucket`: each bucket of a rank's own
    gradient, to max_norm / √buckets by its own norm, as soon as backward has filled it; it is then sent at once."""


class LossScaling(Settings):
    """Dynamic loss scaling: halved after a step that overflowed, doubled after `growth_interval` that did not.

    Published runs that began at 2^17 lost six to eight steps before they settled near 1024.
    """

    initial: float = Field(default=1024.0, ge=1)
    growth_interval: int = Field(default=2000, ge=1)
