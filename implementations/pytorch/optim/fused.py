"""LAMB and AdamW in which unscaling, clipping and clearing of gradients are part of the Triton update.

Their state is that of the plain optimizers, so that each can resume the other's checkpoints. A step:

1. `measure_gradients`, only with loss scaling, and `clip_gradients`, only with clipping of the averaged gradient, read
   all gradients once, together. They change no gradient; their factors are kept in device memory for the update.
2. `step` updates and then sets gradients to 0, so that the next step needs no `zero_grad`. A parameter with the
   attribute `overwritten_gradient = True` keeps its gradient, for a backward pass that overwrites it.

Nothing waits for the device, so a step can be captured in a CUDA graph. Addresses of tensors are part of a table in
device memory, which is rebuilt when one changes; not during a capture, before which steps must have been taken.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from implementations.pytorch.optim.lamb import Lamb
from implementations.pytorch.optim.sharded_lamb import ShardedLamb

if TYPE_CHECKING:
    from implementations.pytorch.kernels.gpu.optimizer import TensorTable

CLIP_EPS = 1e-6  # that of torch.nn.utils.clip_grad_norm_


class FusedOptimizer(Optimizer):
    """Norm, clipping and finiteness of gradients for the optimizers below."""

    _table: "TensorTable | None" = None
    _key: object = None  # what the table was built of
    # Factors of the gradients (0-d), between their computation and the update; and the norm of unscaled gradients.
    _unscale: Tensor | None = None
    _clip: Tensor | None = None
    _norm: Tensor | None = None

    def measure_gradients(self, unscale: Tensor) -> Tensor:
        """Return 1 if any gradient is not finite, else 0 (0-d). The next update multiplies gradients by `unscale`."""
        table = self._current_table()
        self._unscale, self._clip = unscale, None
        if table is None:
            self._norm = torch.zeros_like(unscale)
            return torch.zeros_like(unscale)
        self._norm, not_finite = table.measure(unscale)
        return not_finite

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Return the norm of all unscaled gradients (0-d). The next update scales them to a norm of at most `max_norm`.

        As torch.nn.utils.clip_grad_norm_.
        """
        if self._norm is None:
            self.measure_gradients(torch.ones((), device=self.param_groups[0]["params"][0].device))
        assert self._norm is not None
        self._clip = (max_norm / (self._norm + CLIP_EPS)).clamp(max=1.0)
        return self._norm

    def _gradient_scalars(self, device: torch.device) -> Tensor:
        """Return both factors of the gradients, and 1 if the step is skipped, else 0: float32 [3]. Resets them."""
        one = torch.ones((), device=device)
        unscale, clip = one if self._unscale is None else self._unscale, one if self._clip is None else self._clip
        # torch.amp.GradScaler sets the scale if it did not unscale, and whether it has found non-finite gradients.
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if scale is not None:
            unscale = unscale * scale.double().reciprocal().float()
        skip = torch.zeros_like(one) if found_inf is None else (found_inf > 0).float()
        self._unscale = self._clip = self._norm = None
        return torch.stack([value.view(()) for value in (unscale, clip, skip)])

    def _current_table(self) -> "TensorTable | None":
        """Return the table of all tensors at their current addresses; None if no parameter has a gradient."""
        # Imported only when used: Triton is not installed on machines without a GPU.
        from implementations.pytorch.kernels.gpu.optimizer import Piece, TensorTable, addresses

        rows = self._rows()
        tensors: list[tuple[int, Tensor, list[Tensor]]] = []
        for number, (_, parameters) in enumerate(rows):
            for parameter in parameters:
                assert parameter.grad is not None
                tensors.append((number, parameter, [parameter, parameter.grad, *self._moments(parameter)]))
        if not tensors:
            return None
        constants = [
            (*group["betas"], group["eps"], group["weight_decay"], float(group.get("adapt", True))) for group, _ in rows
        ]
        key = constants, [(addresses(four), _keeps_gradient(parameter)) for _, parameter, four in tensors]
        if self._table is None or key != self._key:
            assert not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()), (
                "steps are taken before a capture"
            )
            pieces = []
            for number, parameter, four in tensors:
                parts = rows[number][0].get("parts", 1)
                for p, g, *moments in zip(*(t.detach().chunk(parts) for t in four), strict=True):
                    pieces.append(Piece(p, g, tuple(moments), number, clears=not _keeps_gradient(parameter)))
            self._table, self._key = TensorTable(pieces, constants), key
        return self._table

    def _rows(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        """Return the group and the parameters with a gradient of each step count."""
        raise NotImplementedError

    def _moments(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return the moments m and v, zero at first; none if another process updates this parameter."""
        raise NotImplementedError


def _keeps_gradient(parameter: Tensor) -> bool:
    return bool(getattr(parameter, "overwritten_gradient", False))


def _learning_rates(groups: Sequence[dict[str, Any]], device: torch.device) -> Tensor:
    """Return the learning rates of groups: float64 [groups]."""
    rates = [group["lr"] for group in groups]
    tensors = [rate if isinstance(rate, Tensor) else torch.full((), rate, device=device) for rate in rates]
    return torch.stack(tensors).double()


class FusedLamb(FusedOptimizer, Lamb):
    """`Lamb` as two launches over all tensors. float32 parameters only."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        table = self._current_table()
        if table is not None:
            groups = [group for group, _ in self._rows()]
            device = groups[0]["params"][0].device
            scalars = self._gradient_scalars(device)
            for group in groups:
                group.setdefault("step", torch.zeros((), dtype=torch.float64, device=device))
                group["step"] += 1 - scalars[2]
            # At least 1: if the very first step overflows, the count is 0 and the correction would divide by 0.
            steps = torch.stack([group["step"] for group in groups]).clamp(min=1)
            values = torch.cat([table.corrections(steps), _learning_rates(groups, device)[:, None]], dim=1)
            table.update_lamb(values.float(), scalars)
        self._exchange_parameters()

    def _rows(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        rows = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        return [(group, parameters) for group, parameters in rows if parameters]

    def _moments(self, parameter: Tensor) -> tuple[Tensor, ...]:
        if not self._is_updated_here(parameter):
            return ()
        state = self.state[parameter]
        if not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state["m"], state["v"]


class FusedShardedLamb(FusedLamb, ShardedLamb):
    """`ShardedLamb` with the update of `FusedLamb`. Every rank sets all of its gradients to 0."""


class FusedAdamW(FusedOptimizer, AdamW):
    """torch.optim.AdamW as one launch over all tensors. float32 parameters only; no amsgrad, no maximize."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        table = self._current_table()
        if table is None:
            return
        rows = self._rows()
        counts = [self.state[parameter]["step"] for _, (parameter,) in rows]
        scalars = self._gradient_scalars(counts[0].device)
        torch._foreach_add_(counts, [1 - scalars[2]] * len(counts))
        corrections = table.corrections(torch.stack(counts).double().clamp(min=1))
        rates = _learning_rates([group for group, _ in rows], counts[0].device)
        values = torch.stack([corrections[:, 0], corrections[:, 1].sqrt(), rates], dim=1)
        table.update_adamw(values.float(), scalars)

    def _rows(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        return [(group, [p]) for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _moments(self, parameter: Tensor) -> tuple[Tensor, ...]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state["exp_avg"], state["exp_avg_sq"]
