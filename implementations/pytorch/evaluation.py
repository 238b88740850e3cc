"""Masked-LM accuracy on the evaluation samples, over all ranks, without dropout; optionally beside training.

An asynchronous evaluation copies the weights, and a thread evaluates the copy on a separate stream while training
continues. After every step the ranks exchange whether their evaluation has ended, by one all-reduce of a few numbers
in a separate gloo group that is read one step late, so that all of them know the accuracy after the same step.

The samples that count are those that the evaluated weights were trained on. The steps taken meanwhile cost time,
which MLPerf's clock counts until the accuracy is known, and are discarded if the target was reached.
"""

import copy
import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.distributed.process_group import Processes, cpu_group
from implementations.pytorch.kernels.cpu.common import use_torchs_threads
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import correct_predictions, loss_sums
from implementations.pytorch.precision import autocast
from podium.core.errors import WorkError


@dataclass(frozen=True)
class Accuracy:
    """Micro-averages over all masked tokens, or all sequences, of the evaluation samples."""

    masked_lm: float
    next_sentence: float
    masked_lm_loss: float
    sequences: int


def evaluate(
    model: BertForPreTraining, batches: Iterable[RaggedBatch], processes: Processes, precision: str
) -> Accuracy:
    """Evaluate this rank's batches, add up over ranks and tell every rank. Leaves the model in training mode."""
    model.eval()
    sums = evaluation_sums(model, batches, processes.device, precision)
    model.train()
    return accuracy_of(processes.total(sums.tolist()))


@torch.no_grad()
def evaluation_sums(
    model: BertForPreTraining, batches: Iterable[RaggedBatch], device: torch.device, precision: str
) -> Tensor:
    """What a model in evaluation mode gets right of some batches: float64 [5] on the device, to be added up over ranks.

    Masked tokens right, next sentences right, sum of masked-LM losses, masked tokens, sequences.
    """
    sums = torch.zeros(5, dtype=torch.float64, device=device)
    for batch in batches:
        batch = batch.to(device)
        with autocast(precision, device):
            scores = model(batch)
        masked_lm_right, next_sentence_right = correct_predictions(scores, batch)
        loss = loss_sums(scores, batch, model.making.kernels).masked_lm
        counts = torch.tensor([batch.masked, batch.sequences], dtype=torch.float64).to(device)
        sums += torch.stack([masked_lm_right, next_sentence_right, loss, *counts]).double()
    return sums


def accuracy_of(sums: Sequence[float]) -> Accuracy:
    """From `evaluation_sums` of all ranks together."""
    masked_lm, next_sentence, loss_sum, masked, sequences = sums
    return Accuracy(masked_lm / masked, next_sentence / sequences, loss_sum / masked, int(sequences))


DONE, FAILED, SUMS = 0, 1, 2  # positions in the numbers that ranks add up


class OverlappedEvaluation:
    """One evaluation at a time of a copy of the model. All ranks make one together and call it in the same order."""

    def __init__(
        self, model: BertForPreTraining, processes: Processes, precision: str, examples: Iterable[RaggedBatch] = ()
    ) -> None:
        """The copy is run on `examples` once, so that nothing is left to be compiled on the clock."""
        self._model, self._processes, self._precision = model, processes, precision
        self._copy = copy.deepcopy(model).requires_grad_(False).eval()
        self._group = cpu_group()
        on_gpu = processes.device.type == "cuda"
        self._stream = torch.cuda.Stream(processes.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._thread: threading.Thread | None = None
        self._found: list[float] | BaseException | None = None
        self._told: tuple[Tensor, dist.Work] | None = None
        self.seconds = 0.0  # time that this rank's thread has spent on evaluations
        evaluation_sums(self._copy, examples, processes.device, precision)

    @property
    def running(self) -> bool:
        """Whether an evaluation has begun whose accuracy is not known yet."""
        return self._thread is not None

    @torch.no_grad()
    def begin(self, batches: Sequence[RaggedBatch]) -> None:
        """Copy the weights and evaluate them on this rank's batches from now on."""
        assert not self.running, "one at a time"
        torch._foreach_copy_(list(self._copy.state_dict().values()), list(self._model.state_dict().values()))
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._processes.device))
        self._found = None
        self._thread = threading.Thread(target=self._evaluate, args=[batches], name="evaluation", daemon=True)
        self._thread.start()

    def poll(self) -> Accuracy | None:
        """The accuracy, once all ranks have told that theirs has ended: to be called on all ranks after every step.

        Waits for nothing but numbers that were on their way during the last step. Raises what went wrong in the thread,
        and on the other ranks WorkError.
        """
        if not self.running:
            return None
        if self._told is not None and (accuracy := self._heard()) is not None:
            return accuracy
        self._tell()
        return None

    def finish(self) -> Accuracy:
        """Wait for the accuracy of the evaluation that runs. Raises as `poll` does."""
        assert self._thread is not None, "none runs"
        if self._told is not None and (accuracy := self._heard()) is not None:
            return accuracy
        self._thread.join()
        self._tell()
        accuracy = self._heard()
        assert accuracy is not None, "all threads have ended"
        return accuracy

    def _tell(self) -> None:
        """Send what this rank has to say by now."""
        found = self._found
        numbers = torch.zeros(SUMS + 5, dtype=torch.float64)
        if isinstance(found, BaseException):
            numbers[FAILED] = 1
        elif found is not None:
            numbers[DONE] = 1
            numbers[SUMS:] = torch.tensor(found, dtype=torch.float64)
        self._told = numbers, self._processes.begin_total(numbers, self._group)

    def _heard(self) -> Accuracy | None:
        """The accuracy, if by what was told last all ranks have ended."""
        assert self._told is not None
        numbers, work = self._told
        self._told = None
        work.wait()
        done, failed, *sums = numbers.tolist()
        if failed:
            if isinstance(self._found, BaseException):
                raise self._found
            raise WorkError("an evaluation beside training failed on another rank; see what that one says")
        if done < self._processes.ranks:
            return None
        self._thread = None
        return accuracy_of(sums)

    def _evaluate(self, batches: Sequence[RaggedBatch]) -> None:
        began = perf_counter()
        try:
            if self._stream is None:
                use_torchs_threads()
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                sums = evaluation_sums(self._copy, batches, self._processes.device, self._precision)
                found: list[float] = sums.tolist()
            self.seconds += perf_counter() - began
            self._found = found
        except BaseException as error:  # noqa: BLE001 — handed over to the thread that trains
            self._found = error
