"""How far the ranks' clocks are apart, from messages whose order is known.

Source: the bounds that causality gives (Cristian, Probabilistic clock synchronization, 1989): what is received was sent
before, by whichever clocks.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.training.processes import Processes

ROUNDS = 20


@dataclass(frozen=True)
class Offset:
    """A rank's clock minus rank 0's lies between these, in seconds."""

    least: float
    greatest: float

    @property
    def certain(self) -> float:
        """Seconds that the clocks are apart at least; 0 where they may be alike."""
        return max(self.least, -self.greatest, 0.0)


def measure_offsets(processes: Processes, rounds: int = ROUNDS) -> list[Offset]:
    """Of every rank, as all ranks tell each other the time again and again. On every rank the same."""
    sent, received = [], []
    for _ in range(rounds):
        dist.barrier()
        now = torch.tensor([time.time()], dtype=torch.float64, device=processes.device)
        times = [torch.empty_like(now) for _ in range(processes.ranks)]
        dist.all_gather(times, now)
        sent.append(torch.cat(times).cpu())
        received.append(time.time())
    mine = torch.tensor(received, dtype=torch.float64, device=processes.device)
    everyones = [torch.empty_like(mine) for _ in range(processes.ranks)]
    dist.all_gather(everyones, mine)
    return offsets(torch.stack(sent), torch.stack(everyones, dim=1).cpu())


def offsets(sent_NR: Tensor, received_NR: Tensor) -> list[Offset]:
    """From when, in each of N rounds, each of R ranks sent and when it had received what all had sent.

    Rank r received after rank 0 sent, so its clock is at most received[r] − sent[0] ahead; and rank 0 received after
    rank r sent, so it is at least sent[r] − received[0] ahead.
    """
    greatest_R = (received_NR - sent_NR[:, :1]).min(dim=0).values
    least_R = (sent_NR - received_NR[:, :1]).max(dim=0).values
    least_R[0] = greatest_R[0] = 0.0
    return [Offset(*pair) for pair in zip(least_R.tolist(), greatest_R.tolist(), strict=True)]
