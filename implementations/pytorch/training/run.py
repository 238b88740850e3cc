"""A run from init_start to run_stop: initialise, warm up, train to the target, and tell where the time went."""

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import SampleStore
from benchmarks.files import write_whole
from implementations.pytorch.data.evaluation import evaluation_batches
from implementations.pytorch.data.loader import Prefetcher, Step, TrainingOrder
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.checkpoint import load_checkpoint
from implementations.pytorch.optimization.build import build_optimizer, build_schedule, used
from implementations.pytorch.training.evaluation import Accuracy, evaluate
from implementations.pytorch.training.gradient_sync import synchronised
from implementations.pytorch.training.metrics import Metrics
from implementations.pytorch.training.phases import PHASES, PhaseClock
from implementations.pytorch.training.precision import matmul_peak, resolve_precision
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.step import Stepper
from implementations.pytorch.training.warmup import warm_up
from podium.config import RunConfig, RunFolder
from podium.mllog import ABORTED, SUCCESS, ResultLog


@dataclass
class Totals:
    """What adds up over the steps of a run."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    slots: int = 0
    flops: float = 0.0
    max_over_mean_tokens: float = 0.0
    """Sum over steps."""


class Run:
    """One run of one process; every rank holds one."""

    def __init__(self, config: RunConfig, processes: Processes, folder: RunFolder, log: ResultLog | None) -> None:
        self.config, self.processes, self.folder, self.log = config, processes, folder, log
        self.precision = resolve_precision(config.precision, processes.device)
        self.phases, self.totals = PhaseClock(), Totals()
        self.accuracy: Accuracy | None = None

    def execute(self) -> bool:
        """Train to the target or the end of the samples allowed. True if the target was reached, or none was set."""
        self._initialise()
        if self.log:
            self.log.run_starts()
        self.processes.barrier()  # no rank reads data before the line above is written
        self.started = perf_counter()
        reached = self._train()
        self._summarise(reached)
        return reached or self.config.target_accuracy is None

    # Before the clock starts: metadata and synthetic data only

    def _initialise(self) -> None:
        config, processes = self.config, self.processes
        assert config.seed is not None and config.data.store and config.data.evaluation_store and config.data.vocabulary
        store, self.evaluation_store = SampleStore(config.data.store), SampleStore(config.data.evaluation_store)
        vocabulary = Vocabulary.read(config.data.vocabulary)
        for prepared in (store, self.evaluation_store):
            prepared.require(vocabulary, config.data.vocabulary)
        self.words = len(vocabulary.words)
        self.order = TrainingOrder(
            store,
            seed=config.seed,
            strategy=config.balancing,
            global_batch_size=config.global_batch_size,
            ranks=processes.ranks,
            accumulation_steps=config.gradient_accumulation_steps,
        )
        torch.manual_seed(config.seed)
        model = BertForPreTraining(
            config.model_size, self.words, attention=config.attention, dropout_probability=config.dropout
        )
        if config.initial_checkpoint is not None:
            load_checkpoint(model, config.initial_checkpoint)
        model.to(processes.device)
        torch.manual_seed(_dropout_seed(config.seed, processes.rank))
        ddp, sync_clock = synchronised(model, processes.device)
        optimizer, schedule = build_optimizer(model, config.optimizer), build_schedule(config.optimizer)
        if self.log:
            self.log.settings(config, used(optimizer, schedule), config.model_size.tensors(self.words))
        self.stepper = Stepper(config, processes, ddp, sync_clock, optimizer, schedule, self.precision)
        warm_up(self.stepper, self.order, self.words)
        processes.barrier()
        (self.peak,) = processes.total([matmul_peak(self.precision, processes.device)])
        processes.barrier()

    # On the clock

    def _train(self) -> bool:
        config = self.config
        last_step = -(-config.max_samples // config.global_batch_size)
        with (
            Metrics(self.folder.metrics, self.processes) as self.metrics,
            Prefetcher(self.order, self.processes.rank, range(last_step), config.prefetch_batches) as steps,
        ):
            self.evaluation_batches = evaluation_batches(
                self.evaluation_store,
                samples=config.evaluation_samples,
                rank=self.processes.rank,
                ranks=self.processes.ranks,
                local_batch_size=config.evaluation.local_batch_size,
                slot_width=self.order.slot_width,
            )
            self.phases.restart()
            next_evaluation, block_start = config.evaluation_interval, 0
            for step in steps:
                self.phases.lap("data_wait")
                if self.log and self.totals.samples == block_start:
                    self.log.block_starts(block_start, next_evaluation - block_start)
                self._step(step)
                if self.totals.samples < next_evaluation and self.totals.steps < last_step:
                    continue
                self.metrics.flush()
                if self.log:
                    self.log.block_stops(block_start, self.totals.samples)
                if self._evaluate():
                    return self._stop(reached=True)
                block_start = self.totals.samples
                next_evaluation = (block_start // config.evaluation_interval + 1) * config.evaluation_interval
            return self._stop(reached=False)

    def _step(self, step: Step) -> None:
        rate = self.stepper.schedule.rate(self.stepper.steps)
        result = self.stepper.take(step, self.phases)
        whole, totals = step.whole, self.totals
        totals.steps += 1
        totals.samples += whole.samples
        totals.tokens += whole.tokens
        totals.slots += whole.slots
        totals.flops += self.config.model_size.training_flops(whole.lengths.ravel(), whole.masked, self.words)
        totals.max_over_mean_tokens += whole.max_over_mean_tokens
        self.metrics.step(totals.steps, step, result, rate)
        self.phases.lap("optimizer")

    def _evaluate(self) -> bool:
        samples = self.totals.samples
        if self.log:
            self.log.evaluation_starts(samples)
        self.accuracy = evaluate(self.stepper.model.module, self.evaluation_batches, self.processes, self.precision)
        if self.log:
            self.log.evaluation_stops(samples, self.accuracy.masked_lm)
        self.metrics.write(
            {
                "event": "evaluation",
                "samples": samples,
                "accuracy": self.accuracy.masked_lm,
                "next_sentence_accuracy": self.accuracy.next_sentence,
                "masked_lm_loss": self.accuracy.masked_lm_loss,
            }
        )
        self.phases.lap("evaluation")
        target = self.config.target_accuracy
        return target is not None and self.accuracy.masked_lm >= target

    def _stop(self, reached: bool) -> bool:
        """Stop the clock, before anything is tidied up."""
        self.seconds = perf_counter() - self.started
        if self.log:
            self.log.run_stops(SUCCESS if reached else ABORTED, self.totals.samples)
        return reached

    # After the clock has stopped

    def _summarise(self, reached: bool) -> None:
        ranks, totals, seconds = self.processes.ranks, self.totals, self.seconds
        phase_seconds = self.processes.total([self.phases.seconds[phase] for phase in PHASES])
        if not self.processes.first:
            return
        assert self.accuracy is not None
        summary: dict[str, Any] = {
            "reached_target": reached,
            "seconds": seconds,
            "samples": totals.samples,
            "steps": totals.steps,
            "accuracy": self.accuracy.masked_lm,
            "next_sentence_accuracy": self.accuracy.next_sentence,
            "sequences_per_second": totals.samples / seconds,
            "useful_tflops": totals.flops / seconds / 1e12,
            "peak_tflops": self.peak / 1e12,
            "share_of_peak": totals.flops / seconds / self.peak,
            "precision": self.precision,
            "padding_share": 1 - totals.tokens / totals.slots,
            "max_over_mean_tokens": totals.max_over_mean_tokens / totals.steps,
            "phases_ms": {
                phase: 1000 * total / ranks / totals.steps for phase, total in zip(PHASES, phase_seconds, strict=True)
            },
        }
        write_whole(self.folder.summary, json.dumps(summary, indent=2) + "\n")


def _dropout_seed(seed: int, rank: int) -> int:
    """Weights are drawn alike on all ranks; dropout differs from rank to rank, and from the weights' stream."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint32)[0])
