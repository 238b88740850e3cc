"""Masked-LM accuracy on the evaluation samples, over all ranks, without dropout; optionally during training.

An asynchronous evaluation copies the weights, and a thread evaluates the copy on a separate stream while training
continues. After every step the ranks exchange whether their evaluation has ended, by one all-reduce of a few numbers
in a separate gloo group that is read one step late, so that all of them know the accuracy after the same step.

The samples that count are those that the evaluated weights were trained on. The steps taken meanwhile cost time,
which MLPerf's clock counts until the accuracy is known, and are discarded if the target was reached.
"""

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.distributed.process_group import Processes, cpu_group
from implementations.pytorch.graphs import StepGraphs
from implementations.pytorch.kernels.cpu.common import use_torch_num_threads
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import correct_predictions, loss_sums
from implementations.pytorch.precision import autocast
from implementations.pytorch.streams import new_stream
from podium.core.errors import WorkError


@dataclass(frozen=True)
class Accuracy:
    """Results of an evaluation: averages over all masked tokens, or all sequences, of all ranks' samples."""

    masked_lm: float
    next_sentence: float
    masked_lm_loss: float
    sequences: int


def evaluate(
    model: BertForPreTraining,
    batches: Iterable[RaggedBatch],
    processes: Processes,
    precision: str,
    graphs: StepGraphs | None = None,
) -> Accuracy:
    """Evaluate this rank's batches, and return the accuracy over all ranks, on every rank. A collective.

    Leaves the model in training mode. `graphs` of this model, from `capture_evaluation`, are replayed if given.
    """
    model.eval()
    sums = evaluation_sums(model, batches, processes.device, precision, graphs)
    model.train()
    return accuracy_of(processes.all_reduce_sum(sums.tolist()))


def evaluation_sums(
    model: BertForPreTraining,
    batches: Iterable[RaggedBatch],
    device: torch.device,
    precision: str,
    graphs: StepGraphs | None = None,
) -> Tensor:
    """Evaluate batches with a model in evaluation mode. Returns float64 [5] on the device, to be summed over ranks.

    Correct masked tokens, correct next-sentence labels, sum of masked-LM losses, masked tokens, sequences.
    """
    # float64: float32 counts exactly only up to 2^24 tokens, and the loss is a sum over all of them. On the device, so
    # that batches are queued without waiting for results.
    sums = torch.zeros(5, dtype=torch.float64, device=device)
    for batch in batches:
        counts = torch.tensor([batch.masked, batch.sequences], dtype=torch.float64)
        counts = counts.pin_memory() if device.type == "cuda" else counts
        if graphs is not None:
            (of_batch,) = graphs.replay(batch, counts)
        else:
            (of_batch,) = _batch_sums(model, precision, batch.to(device), counts.to(device, non_blocking=True))
        sums += of_batch
    return sums


@torch.no_grad()
def _batch_sums(model: BertForPreTraining, precision: str, batch: RaggedBatch, counts_2: Tensor) -> list[Tensor]:
    """Return the sums of `evaluation_sums` for a batch; its masked tokens and sequences are given as float64 [2].

    On the device they are inputs of a CUDA graph, which a number of the host would be fixed in.
    """
    with autocast(precision, counts_2.device):
        scores = model(batch)
    loss = loss_sums(scores, batch, model.model_options.kernels).masked_lm
    return [torch.stack([*correct_predictions(scores, batch), loss, *counts_2]).double()]


def capture_evaluation(
    model: BertForPreTraining,
    examples: Sequence[RaggedBatch],
    device: torch.device,
    precision: str,
    shared: StepGraphs | None = None,
) -> StepGraphs:
    """Capture the evaluation of a batch as CUDA graphs, for the shapes of `examples`, which are evaluated once before.

    The graphs read the model's weights as they are when replayed. With `shared`, which must not run at the same time,
    they use the same memory pool. Leaves the model in the mode in which it was.
    """
    training = model.training
    model.eval()
    evaluation_sums(model, examples, device, precision)
    graphs = StepGraphs(partial(_batch_sums, model, precision), device, shared)
    for example in examples:
        graphs.capture(example, torch.zeros(2, dtype=torch.float64))
    model.train(training)
    return graphs


def accuracy_of(sums: Sequence[float]) -> Accuracy:
    """Return the accuracy from the sums of `evaluation_sums` over all ranks."""
    masked_lm, next_sentence, loss_sum, masked, sequences = sums
    return Accuracy(masked_lm / masked, next_sentence / sequences, loss_sum / masked, int(sequences))


# Positions in the float64 [7] that ranks all-reduce: number of ranks done, number failed, first of the five sums.
DONE, FAILED, SUMS = 0, 1, 2


class OverlappedEvaluation:
    """Asynchronous evaluation of a copy of the model, one at a time.

    Construction, `begin`, `poll` and `finish` are collectives: all ranks call them in the same order.
    """

    def __init__(
        self,
        model: BertForPreTraining,
        processes: Processes,
        precision: str,
        examples: Sequence[RaggedBatch] = (),
        use_graphs: bool = False,
    ) -> None:
        """Evaluate `examples` once with the copy, so that no kernels are compiled after run_start.

        With `use_graphs` evaluations replay CUDA graphs, of which the examples have all shapes.
        """
        self._model, self._processes, self._precision = model, processes, precision
        self._copy = copy.deepcopy(model).requires_grad_(False).eval()
        # A separate gloo group: its all-reduces are not ordered with those of gradients, and do not use the GPU.
        self._group = cpu_group()
        self._stream = new_stream(processes.device) if processes.device.type == "cuda" else None
        self._thread: threading.Thread | None = None
        self._result: list[float] | BaseException | None = None
        self._exchange: tuple[Tensor, dist.Work] | None = None
        self.seconds = 0.0  # spent on evaluations by this rank's thread
        # Not in the memory pool of training, and captured on the stream of evaluations: they run at the same time as
        # the graphs of training, and a graph keeps the cuBLAS workspace of the stream that it was captured on.
        with self._on_own_stream():
            self._graphs = capture_evaluation(self._copy, examples, processes.device, precision) if use_graphs else None
            if self._graphs is None:
                evaluation_sums(self._copy, examples, processes.device, precision)

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Run the block on the stream of evaluations, after all work of the current stream and before its next."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._processes.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    @property
    def running(self) -> bool:
        """Whether an evaluation has begun and its accuracy is not known yet."""
        return self._thread is not None

    @torch.no_grad()
    def begin(self, batches: Sequence[RaggedBatch]) -> None:
        """Copy the weights and begin to evaluate them on this rank's batches."""
        assert not self.running, "one at a time"
        # On the stream of training: after the last step and before the next changes the weights.
        torch._foreach_copy_(list(self._copy.state_dict().values()), list(self._model.state_dict().values()))
        if self._stream is not None:
            # The evaluation's stream must not read the copy before it is complete.
            self._stream.wait_stream(torch.cuda.current_stream(self._processes.device))
        self._result = None
        self._thread = threading.Thread(target=self._evaluate, args=[batches], name="evaluation", daemon=True)
        self._thread.start()

    def poll(self) -> Accuracy | None:
        """Return the accuracy once all ranks have ended their evaluation, else None. Called on all ranks after a step.

        Waits only for the all-reduce that was started one step before. Raises the error of this rank's thread, and
        WorkError on the other ranks.
        """
        if not self.running:
            return None
        if self._exchange is not None and (accuracy := self._finish_exchange()) is not None:
            return accuracy
        self._begin_exchange()
        return None

    def finish(self) -> Accuracy:
        """Wait for the running evaluation on all ranks and return its accuracy. Raises like `poll`."""
        assert self._thread is not None, "no evaluation is running"
        if self._exchange is not None and (accuracy := self._finish_exchange()) is not None:
            return accuracy
        self._thread.join()
        self._begin_exchange()
        accuracy = self._finish_exchange()
        assert accuracy is not None, "all threads have ended"
        return accuracy

    def _begin_exchange(self) -> None:
        """Start the all-reduce of this rank's status and, if it is done, its sums."""
        result = self._result  # read once: the thread may set it meanwhile
        numbers = torch.zeros(SUMS + 5, dtype=torch.float64)
        if isinstance(result, BaseException):
            numbers[FAILED] = 1
        elif result is not None:
            numbers[DONE] = 1
            numbers[SUMS:] = torch.tensor(result, dtype=torch.float64)
        self._exchange = numbers, self._processes.all_reduce_sum_async(numbers, self._group)

    def _finish_exchange(self) -> Accuracy | None:
        """Wait for the all-reduce. Returns the accuracy if all ranks were done when it was started, else None."""
        assert self._exchange is not None
        numbers, work = self._exchange
        self._exchange = None
        work.wait()
        done, failed, *sums = numbers.tolist()
        if failed:
            if isinstance(self._result, BaseException):
                raise self._result
            raise WorkError("an evaluation during training failed on another rank; see the error of that rank")
        if done < self._processes.ranks:
            return None
        self._thread = None
        return accuracy_of(sums)

    def _evaluate(self, batches: Sequence[RaggedBatch]) -> None:
        began = perf_counter()
        try:
            if self._stream is None:
                use_torch_num_threads()
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                sums = evaluation_sums(self._copy, batches, self._processes.device, self._precision, self._graphs)
                result: list[float] = sums.tolist()  # waits for the stream
            self.seconds += perf_counter() - began
            self._result = result  # last: a result means that all attributes of the evaluation are final
        except BaseException as error:  # noqa: BLE001 — raised in the training thread by poll or finish
            self._result = error
