"""The trainer: a run from init_start to run_stop. Initialisation, warm-up, training to the target, summary."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.bert.store import SampleStore, join_stores
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.build_run import build_order, build_stepper, uses_graphs, warm_up
from implementations.pytorch.checkpointing import (
    RunState,
    Saver,
    agreed_checkpoint,
    checkpoint_facts,
    verify_tensors,
)
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.evaluation import EvaluationPlan
from implementations.pytorch.data.loader import LOADERS, ExchangePrefetcher, Loader
from implementations.pytorch.data.open_stores import open_stores
from implementations.pytorch.data.reader import Step
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.distributed.watchdog import StopRequest, Watchdog, connect_status_store
from implementations.pytorch.evaluation import Accuracy, OverlappedEvaluation, capture_evaluation, evaluate
from implementations.pytorch.graphs import StepGraphs
from implementations.pytorch.lowest_precision import describe_precision
from implementations.pytorch.metrics import Metrics
from implementations.pytorch.optim.build import describe_optimizer
from implementations.pytorch.phase_clock import PHASES, PhaseClock
from implementations.pytorch.precision import matmul_peak
from implementations.pytorch.profiling import StepProfiler
from implementations.pytorch.step import NotFinite, error_with_samples
from podium.config.run_folder import Checkpoint, RunFolder, fixed_configuration
from podium.config.schema import RunConfig
from podium.core.clock import boot_seconds
from podium.core.errors import StoppedAfterSaving, WorkError
from podium.core.files import write_atomically
from podium.mllog.write import ABORTED, SUCCESS, ResultLog
from podium.planning.batch_plan import GlobalBatch, run_shapes


@dataclass
class Totals:
    """Sums over the steps of a run."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    slots: int = 0
    useful_flops: float = 0.0  # of the operations that are needed
    model_flops: float = 0.0  # as counted for published MFU: with the whole last layer
    max_over_mean_tokens: float = 0.0  # sum over steps
    moved: int = 0  # sequences that did not fit into the part that they were assigned to

    def add(self, global_batch: GlobalBatch, config: RunConfig, vocabulary_size: int, times: int = 1) -> None:
        """Add the step of a global batch; `times` -1 subtracts it again."""
        size, sums = (
            config.model_size,
            (global_batch.samples, global_batch.tokens, global_batch.token_pairs, global_batch.masked),
        )
        self.steps += times
        self.samples += times * global_batch.samples
        self.tokens += times * global_batch.tokens
        self.slots += times * global_batch.slots
        self.useful_flops += times * size.flops_from_totals(*sums, vocabulary_size, config.last_layer)
        self.model_flops += times * size.flops_from_totals(*sums, vocabulary_size)
        self.max_over_mean_tokens += times * global_batch.max_over_mean_tokens
        self.moved += times * global_batch.moved


@dataclass
class Position:
    """Position of a run between two steps."""

    next_evaluation: int  # number of samples after which the next evaluation is due
    batches: int = 0  # global batches taken from the order, including those of skipped steps
    block_start: int = 0  # number of samples at which the current or next block of the MLPerf log starts
    in_block: bool = False  # whether its block_start is written


class Trainer:
    """One rank's trainer of a run."""

    def __init__(
        self,
        config: RunConfig,
        processes: Processes,
        folder: RunFolder,
        log: ResultLog | None,
        checkpoint: Checkpoint | None = None,
        profile_steps: int = 0,
    ) -> None:
        """`log` is None on ranks other than the first; `profile_steps` are profiled on this rank. A collective.

        `checkpoint`: what the first rank found to resume from, None on others; `log` then has the lines up to it.
        """
        self.config, self.processes, self.folder, self.log = config, processes, folder, log
        self.profile_steps = profile_steps
        self.phases, self.totals = PhaseClock(), Totals()
        self.position = Position(config.evaluation_interval)
        self.accuracy: Accuracy | None = None
        self.overlapped: OverlappedEvaluation | None = None
        self.evaluation_graphs: StepGraphs | None = None
        self.evaluations, self.steps_thrown_away = 0, 0
        self.saver: Saver | None = None
        self.digests: dict[str, str] | None = None  # of the stores, if the run's folder lists them
        self.checkpoint = agreed_checkpoint(folder, processes, checkpoint)
        self.skipped, self.seconds_before = 0, 0.0
        if self.checkpoint:
            with checkpoint_facts(self.checkpoint) as facts:
                self.totals, self.position = Totals(**facts["totals"]), Position(**facts["position"])
                self.phases.seconds.update(facts["phases"])
                self.skipped, self.seconds_before = facts["skipped"], facts["seconds"]

    def run(self) -> bool:
        """Train to the target or the maximum of samples. Returns True if the target was reached or is not set."""
        self._initialise()
        if self.log and not self.checkpoint:
            self.log.log_run_start()
        # MLPerf: no rank may read training data before run_start is logged, by the first rank.
        self.processes.barrier()
        # The boot clock, which steps of the wall clock do not change. A resumed run continues its time.
        self.started = boot_seconds() - self.seconds_before
        reached = self._train()
        self._write_summary(reached)
        return reached or self.config.target_accuracy is None

    # Before run_start: only metadata and synthetic data may be read

    def _initialise(self) -> None:
        config, processes = self.config, self.processes
        assert config.seed is not None and config.data.store and config.data.evaluation_store and config.data.vocabulary
        self._open_data()
        self._build_order()
        self._build_model()
        self.precision = self.stepper.precision
        if self.log and not self.checkpoint:
            in_use = describe_optimizer(self.stepper.optimizer, config.optimizer)
            precision = describe_precision(self.stepper)
            tensors = config.model_size.tensors(self.vocabulary_size)
            self.log.log_settings(config, in_use, precision, self.order.micro_batch_size, tensors)
        self.last_step = config.steps
        self._find_shapes()
        self._warm_up()
        self._prepare_evaluation(self.vocabulary_size)
        if config.checkpoint or self.checkpoint:
            self.state = RunState(self.stepper, processes)
        # After the warm-up, which creates the optimizer's state. In place, since graphs hold the tensors' addresses.
        if self.checkpoint:
            verify_tensors(self.checkpoint, processes.rank)
            self.state.load(self.checkpoint.path)
        self.loader = self._make_loader()
        # Between barriers, so that all ranks multiply at the same time, as in training.
        processes.barrier()
        (self.peak,) = processes.all_reduce_sum([self._measure_peak()])
        processes.barrier()

    def _open_data(self) -> None:
        """Open the training and evaluation stores."""
        config, processes = self.config, self.processes
        assert config.data.vocabulary is not None
        parts = config.store_parts(processes.rank // config.launch.processes_per_node)
        opened, vocabulary = open_stores(config.all_stores, config.data.vocabulary, processes, self.folder.data, parts)
        *stores, self.evaluation_store = opened
        if self.folder.data.exists():
            self.digests = {key: store.manifest.digest for key, store in zip(config.all_stores, opened, strict=True)}
        self.store: SampleStore = join_stores(stores)
        self.vocabulary_size = len(vocabulary.tokens)

    def _build_order(self) -> None:
        self.order = build_order(self.config, self.store, self.vocabulary_size, self.processes.device)

    def _build_model(self) -> None:
        self.stepper = build_stepper(self.config, self.processes, self.vocabulary_size)

    def _uses_graphs(self) -> bool:
        return uses_graphs(self.config, self.processes.device)

    def _find_shapes(self) -> None:
        """Plan the evaluation, and find all batch shapes of all ranks' steps if CUDA graphs are used; else None."""
        graphs = self._uses_graphs()
        self.shapes = run_shapes(self.order, self.last_step) if graphs else None
        self.evaluation_plan = EvaluationPlan(
            self.evaluation_store,
            self.order.spec,
            samples=self.config.evaluation_samples,
            local_batch_size=self.config.evaluation.local_batch_size,
            slot_width=self.evaluation_store.max_sequence_length if self.order.pads else None,
            for_graphs=graphs,
        )

    def _warm_up(self) -> None:
        warm_up(self.stepper, self.order, self.vocabulary_size, graph_shapes=self.shapes)

    def _prepare_evaluation(self, vocabulary_size: int) -> None:
        """Build the asynchronous evaluation, and capture evaluations where training replays CUDA graphs.

        On synthetic batches, and after the warm-up: an evaluation changes nothing that a step uses.
        """
        model, processes, precision = self.stepper.model.module, self.processes, self.precision
        training = self.stepper.graphs
        if self.config.evaluation.overlap == "training":
            examples: Sequence[RaggedBatch] = (
                synthetic_step(self.order, 0, processes.rank, vocabulary_size).micro_batches
                if training is None
                else self.evaluation_plan.examples(vocabulary_size)
            )
            self.overlapped = OverlappedEvaluation(model, processes, precision, examples, training is not None)
        elif training is not None:
            examples = self.evaluation_plan.examples(vocabulary_size)
            self.evaluation_graphs = capture_evaluation(model, examples, processes.device, precision, training)

    def _measure_peak(self) -> float:
        """Measure the peak FLOP/s of this rank's device in matrix products."""
        return matmul_peak(self.precision, self.processes.device)

    def _make_loader(self) -> Loader:
        config, processes = self.config, self.processes
        return LOADERS[config.loader](
            self.order,
            processes.rank,
            range(self.position.batches, self.last_step),
            config.prefetch_batches,
            masked_slots=self.shapes.masked_slots if self.shapes else None,
            pin_memory=processes.device.type == "cuda",
            **({"window": config.exchange_steps} if config.loader == "exchange" else {}),
        )

    def _read_evaluation_batches(self, reader: Callable[[SampleStore], BulkReader] = BulkReader) -> list[RaggedBatch]:
        """Read this rank's evaluation samples and collate them into batches."""
        batches = self.evaluation_plan.read(self.processes.rank, reader)
        on_gpu = self.processes.device.type == "cuda"
        return [batch.pin_memory() for batch in batches] if on_gpu else batches

    # Between run_start and run_stop

    def _train(self) -> bool:
        """Run all steps and evaluations. Returns whether the target was reached."""
        config, position, processes = self.config, self.position, self.processes
        with ExitStack() as stack:
            self.watch = stack.enter_context(
                Watchdog(
                    processes, self.phases, self.folder, config.launch.timeout_seconds, connect_status_store(processes)
                )
            )
            self.metrics = stack.enter_context(Metrics(self.folder.metrics, processes, self.skipped))
            if config.checkpoint:
                self.stop_request = stack.enter_context(StopRequest())
                saver = Saver(
                    config.checkpoint,
                    self.folder,
                    processes,
                    self.state,
                    self.totals.samples,
                    fixed_configuration(config),
                    self.digests,
                )
                self.saver = stack.enter_context(saver)
            steps: Iterable[Step] = stack.enter_context(self.loader)
            if self.profile_steps:
                profiler = StepProfiler(
                    self.profile_steps, self.folder.profile, processes.rank, processes.device, self.phases.restart
                )
                self.stepper.profiler = stack.enter_context(profiler)
                self.stepper.sync.when_ready = profiler.begin_synchronisation
                steps = profiler.steps(steps)
            self.evaluation_batches = self._read_evaluation_batches()
            self.phases.restart()
            for number, step in enumerate(steps, start=position.batches + 1):
                self.watch.batch = number
                self.phases.lap("data_wait")
                if self.log and not position.in_block:
                    self.log.log_block_start(position.block_start, position.next_evaluation - position.block_start)
                position.in_block = True
                self._step(step)
                position.batches = number
                if self._overlapped_evaluation_reached_target(position.block_start):
                    return self._stop_clock(reached=True)
                due = self.totals.samples >= position.next_evaluation or number == self.last_step
                if due:
                    self._flush()  # the last step may turn out to be skipped: then no evaluation is due
                if self.totals.samples < position.next_evaluation and number < self.last_step:
                    self._save()
                    continue
                if not self.totals.steps:
                    raise WorkError(
                        f"loss_scaling.initial: with {config.loss_scaling.initial:g} all {number} steps overflowed "
                        "in fp16; lower it, or use precision fp32"
                    )
                if self.log:
                    self.log.log_block_stop(position.block_start, self.totals.samples)
                if self._evaluate(last=number == self.last_step):
                    return self._stop_clock(reached=True)
                position.block_start, position.in_block = self.totals.samples, False
                interval = config.evaluation_interval
                position.next_evaluation = (position.block_start // interval + 1) * interval
                if number < self.last_step:
                    self._save()
            return self._stop_clock(reached=False)

    def _step(self, step: Step) -> None:
        """Take a step and record its metrics. The host stays one step ahead of the device."""
        result = self.stepper.take(step, self.phases)
        self._flush()  # of the step before: only now, so that the device has work while the host waits
        self.totals.add(step.global_batch, self.config, self.vocabulary_size)
        stop, save = (self.stop_request.requested, self.saver.due_by_time()) if self.saver else (False, False)
        self.metrics.step(self.totals.steps, self.totals.samples, step, result, stop, save)
        self.phases.lap("optimizer")

    def _flush(self) -> None:
        """Write the metrics of the last step. A step skipped for overflow counts neither as a step nor as samples."""
        try:
            skipped = self.metrics.flush()
        except NotFinite as error:
            raise error_with_samples(error, self.store, self.folder.not_finite) from None
        if skipped is not None:
            self.totals.add(skipped, self.config, self.vocabulary_size, times=-1)
        if self.saver and self.saver.captured:
            resume_facts = {
                "totals": asdict(self.totals),
                "position": asdict(self.position),
                "phases": dict(self.phases.seconds),
                "skipped": self.metrics.skipped,
                "seconds": boot_seconds() - self.started,
            }
            self.saver.start_writing(self.position.batches, self.totals.samples, self.metrics.size_bytes, resume_facts)

    def _save(self) -> None:
        """Write a checkpoint if one is due. After a request to stop, wait and raise StoppedAfterSaving on all ranks.

        The tensors are captured here. The counts that belong to them are known at the next `_flush`, which writes.
        """
        if self.saver is None:
            return
        stop = self.metrics.stop_requested
        if not (stop or self.metrics.save_requested or self.saver.due_by_samples(self.totals.samples)):
            return
        self.metrics.save_requested = False
        self.saver.capture(self.totals.samples)
        if stop or not self.metrics.pending:
            self._flush()
        if stop:
            self.saver.finish()
            self.processes.barrier()  # the checkpoint is complete only when all ranks have written their files
            raise StoppedAfterSaving(f"asked to stop, and saved after {self.totals.samples:,} samples")

    def _evaluate(self, last: bool) -> bool:
        """Evaluate, or begin an asynchronous evaluation. Returns whether the target is known to be reached."""
        if self.overlapped is not None and self.overlapped.running and self._record_accuracy(self.overlapped.finish()):
            return True
        self.evaluated_totals = replace(self.totals)
        if self.log:
            self.log.log_evaluation_start(self.evaluated_totals.samples)
        # Each batch counts as progress for the watchdog.
        batches = self.watch.track_progress(self.evaluation_batches)
        if self.overlapped is None:
            model, graphs = self.stepper.model.module, self.evaluation_graphs
            return self._record_accuracy(evaluate(model, batches, self.processes, self.precision, graphs))
        self.overlapped.begin(self.evaluation_batches)
        self.phases.lap("evaluation")
        return last and self._record_accuracy(self.overlapped.finish())

    def _overlapped_evaluation_reached_target(self, block_start: int) -> bool:
        """Whether an asynchronous evaluation has ended on all ranks and reached the target."""
        accuracy = self.overlapped.poll() if self.overlapped is not None else None
        if accuracy is None:
            return False
        if self._reaches_target(accuracy):
            self._flush()
            if self.log:
                self.log.log_block_stop(block_start, self.totals.samples)
        return self._record_accuracy(accuracy)

    def _record_accuracy(self, accuracy: Accuracy) -> bool:
        """Log an accuracy. Returns whether it reaches the target; steps since the evaluated weights then do not count.

        Raises WorkError on all ranks if the loss is not finite: weights that the last step before an evaluation made
        not finite would otherwise only show in the loss of the step after it.
        """
        if not math.isfinite(accuracy.masked_lm_loss):
            step, loss = self.evaluated_totals.steps, accuracy.masked_lm_loss
            raise WorkError(
                f"the evaluation after step {step} has a loss of {loss}: the weights are not finite, or close to it; "
                "lower optimizer.learning_rate or use precision fp32, and start again"
            )
        self.accuracy, samples = accuracy, self.evaluated_totals.samples
        self.evaluations += 1
        if self.log:
            self.log.log_evaluation_stop(samples, accuracy.masked_lm)
        line = {
            "event": "evaluation",
            "samples": samples,
            "accuracy": accuracy.masked_lm,
            "next_sentence_accuracy": accuracy.next_sentence,
            "masked_lm_loss": accuracy.masked_lm_loss,
        }
        if self.overlapped is not None:
            line["known_after"] = self.totals.samples
        self.metrics.write(line)
        self.phases.lap("evaluation")
        if not self._reaches_target(accuracy):
            return False
        self.steps_thrown_away = self.totals.steps - self.evaluated_totals.steps
        self.totals = self.evaluated_totals
        return True

    def _reaches_target(self, accuracy: Accuracy) -> bool:
        target = self.config.target_accuracy
        return target is not None and accuracy.masked_lm >= target

    def _stop_clock(self, reached: bool) -> bool:
        """Log run_stop and take the time, before resources are released. Returns `reached`."""
        self.seconds = boot_seconds() - self.started
        if self.log:
            self.log.log_run_stop(SUCCESS if reached else ABORTED, self.totals.samples)
        return reached

    # After run_stop

    def _write_summary(self, reached: bool) -> None:
        """Reduce timings over ranks, and write summary.json on the first rank. A collective."""
        ranks, totals, seconds = self.processes.ranks, self.totals, self.seconds
        phase_seconds = self.processes.all_reduce_sum([self.phases.seconds[phase] for phase in PHASES])
        evaluation = self._evaluation_summary(phase_seconds[PHASES.index("evaluation")] / ranks)
        exchanged = self._exchange_summary(self.loader) if isinstance(self.loader, ExchangePrefetcher) else {}
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
            "useful_tflops": totals.useful_flops / seconds / 1e12,
            "peak_tflops": self.peak / 1e12,
            "share_of_peak": totals.useful_flops / seconds / self.peak,
            "model_flops_utilization": totals.model_flops / seconds / self.peak,
            "precision": self.precision,
            "attention": self.stepper.model.module.model_options.attention,
            "padding_share": 1 - totals.tokens / totals.slots,
            "max_over_mean_tokens": totals.max_over_mean_tokens / totals.steps,
            "moved_sequences": totals.moved,
            "restarts": self.folder.restarts,
            "phases_ms": {
                phase: 1000 * phase_total / ranks / totals.steps
                for phase, phase_total in zip(PHASES, phase_seconds, strict=True)
            },
            "evaluation": evaluation,
            **exchanged,
        }
        write_atomically(self.folder.summary, json.dumps(summary, indent=2) + "\n")

    def _exchange_summary(self, loader: ExchangePrefetcher) -> dict[str, Any]:
        """Return the exchange loader's measurements over the whole run, averaged over ranks. A collective."""
        stats = vars(loader.stats)
        sums = self.processes.all_reduce_sum([float(value) for value in stats.values()])
        return {"exchange": {key: value / self.processes.ranks for key, value in zip(stats, sums, strict=True)}}

    def _evaluation_summary(self, seconds: float) -> dict[str, Any]:
        """Return cost and balance of evaluations. `seconds`: time that training waited for them. A collective."""
        tokens, slots = (sum(getattr(batch, name) for batch in self.evaluation_batches) for name in ("tokens", "slots"))
        overlapped_seconds = self.overlapped.seconds if self.overlapped is not None else 0.0
        max_tokens = self.processes.all_reduce_max(tokens)
        all_tokens, all_slots, all_seconds = self.processes.all_reduce_sum([tokens, slots, overlapped_seconds])
        return {
            "evaluations": self.evaluations,
            "share_of_run": seconds / self.seconds,
            "seconds_beside_training": all_seconds / self.processes.ranks,
            "steps_thrown_away": self.steps_thrown_away,
            "max_over_mean_tokens": max_tokens * self.processes.ranks / all_tokens,
            "padding_share": 1 - all_tokens / all_slots,
        }
