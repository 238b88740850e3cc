"""The configuration of a run, resolved: all of its sections together, and what they say to one another."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarks.bert.rules import LARGEST_SEED, TARGET_ACCURACY, Terms, closed_breaches, evaluation_interval
from benchmarks.bert.sizes import SIZES, Size
from podium.config.data import DataSettings
from podium.config.description import Description
from podium.config.launch import Launch
from podium.config.optimizing import Clipping, LossScaling, OptimizerSettings
from podium.config.settings import Settings


class Checkpointing(Settings):
    """Checkpoints of a run to go on from. Without either interval one is made when the run is asked to stop."""

    every_samples: int | None = Field(default=None, ge=1)
    """Samples trained on between two checkpoints, rounded up to whole batches."""
    every_minutes: float | None = Field(default=None, gt=0)
    """Minutes between two checkpoints, as the first rank counts them."""
    keep: int = Field(default=2, ge=1)
    """How many are kept, the newest ones."""


class Evaluation(Settings):
    """How many samples an evaluation takes and how many are trained on between two; unset: the benchmark's own."""

    samples: int | None = Field(default=None, ge=1)
    interval_samples: int | None = Field(default=None, ge=1)
    local_batch_size: int = Field(default=64, ge=1)
    overlap: Literal["none", "training"] = "none"
    """`training`: a copy of the weights is evaluated beside the next steps, which count if it misses the target."""


class TrainingPhase(Settings):
    """A part of a run that draws only samples of so many tokens; unset: of any number, and to the end of the run."""

    max_sequence_length: int | None = Field(default=None, ge=1)
    samples: int | None = Field(default=None, ge=1)
    """Rounded up to whole global batches."""


class RunConfig(Settings):
    """Everything that a run is made of, resolved. What is None here is settled by `resolve` before a run."""

    system: str
    description: Description
    launch: Launch
    implementation: Literal["pytorch"] = "pytorch"
    recipe: str
    size: Literal["large", "tiny"]
    data: DataSettings = DataSettings()
    initial_checkpoint: Path | None = None
    """Weights to start from, as `podium data checkpoint` writes them; None draws them from the seed."""

    balancing: Literal["padded", "random", "exchanged", "stratified", "presorted", "packed", "indexed"]
    balancing_counts: Literal["equal", "free"] = "equal"
    """Whether `indexed` gives all ranks equally many samples, or what costs them equally much."""
    pair_cost: float | None = Field(default=None, ge=0)
    """What a pair of tokens within a sequence costs in units of a token's cost, as `indexed` balances it; None: as
    `podium bench` measured it on this system, or where it has not, by the operations of matrix products."""
    sequence_cost: float | None = Field(default=None, ge=0)
    """What a sequence costs besides, in the same unit and with the same default."""
    strata_counts: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=4, max_length=4)] | None = None
    """Samples of each length stratum in a local batch, as stratified strategies draw them, or in a micro-batch where
    gradients are accumulated; None: in proportion to the data, by largest remainder."""
    shards: Literal["shared", "per_rank"] = "shared"
    """Whether every rank may come to train on every sample of the data, or draws its samples from a part of its own."""
    phases: tuple[TrainingPhase, ...] = ()
    """Phases of sequence length, one after the other; none: samples of all lengths from the start."""
    attention: Literal["padded", "grouped", "flash", "nested"]
    attention_widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None = None
    """Upper lengths of the groups of `grouped` attention, such as [128, 256, 384, 512]; None finds the cheapest cut of
    each batch."""
    kernels: Literal["auto", "eager", "compiled", "numba", "triton"] = "auto"
    """Who does the element-wise work; `auto` is numba on a CPU and compiled (torch.compile) on a GPU."""
    last_layer: Literal["needed", "all"] = "needed"
    """For which tokens the last layer is computed after its attention: those that the heads read, or all."""
    cuda_graph: Literal["auto", "step", "none"] = "auto"
    """`step` replays the whole step as one CUDA graph for each shape; `auto` does so on a GPU where it can."""
    shape_step: int | None = Field(default=None, ge=1)
    """Token slots are rounded up to multiples of this; None is 64 on a CPU and 512 on a GPU."""
    capacity_overflow: float | None = Field(default=None, gt=0, le=0.25)
    """Gives all micro-batches of the run one shape, which about this share of the steps exceeds: a sequence that does
    not fit goes to another micro-batch or to the next step. None: each batch has a shape of its own, and none
    overflows."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"]
    """`auto` is bf16 where the processor has instructions for it, else fp32."""
    loss_scaling: LossScaling = LossScaling()
    """Of fp16 alone, as `precision` or as `gradient_wire`."""
    dropout: float = Field(ge=0, le=0.9)
    loss: Literal["global", "per_rank"]
    """`global`: sums over the global batch's counts. `per_rank`: the mean of the ranks' means, as published."""
    loader: Literal["own", "dali", "exchange"] = "own"
    """Who reads batches ahead: Podium's own reader, NVIDIA DALI where it is installed, or readers that each read the
    samples that were drawn for their own rank and pass them on to the ranks that train on them, over the CPUs."""
    exchange_steps: int = Field(default=100, ge=1)
    """Steps whose samples are passed on at once, while the steps before them are trained on."""
    prefetch_batches: int = Field(default=4, ge=1)

    global_batch_size: int = Field(ge=1)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    optimizer: OptimizerSettings
    clipping: Clipping | None
    gradient_wire: Literal["fp32", "fp16", "bf16"] = "fp32"
    """What gradients are sent as between ranks. fp16 comes with loss scaling, whatever `precision` is."""
    gradient_bucket_mib: float | None = Field(default=None, gt=0)
    """Gradients are sent in buckets of about so many MiB of fp32; None: PyTorch's own, the first of 1 and the others
    of 25."""
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpointing | None = None
    """None makes no checkpoints: a run that is broken off is lost."""
    target_accuracy: float | None = Field(default=TARGET_ACCURACY, gt=0, le=1)
    """None trains to the end of `max_samples`, whatever the accuracy."""
    max_samples: int = Field(ge=1)
    """A run that has not reached its target by then, rounded up to whole batches, is aborted."""
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Drawn from the system's randomness for each run, unless it is fixed here."""

    @property
    def model_size(self) -> Size:
        return SIZES[self.size]

    @property
    def division(self) -> str:
        return self.description.division

    @property
    def local_batch_size(self) -> int:
        return self.global_batch_size // self.launch.ranks

    @property
    def evaluation_samples(self) -> int:
        return self.evaluation.samples or self.model_size.evaluation_samples

    @property
    def evaluation_interval(self) -> int:
        """Samples trained on between two evaluations."""
        return (
            self.evaluation.interval_samples
            or self.model_size.evaluation_interval
            or evaluation_interval(self.global_batch_size)
        )

    @model_validator(mode="after")
    def _splits_evenly(self) -> Self:
        parts = self.launch.ranks * self.gradient_accumulation_steps
        if self.global_batch_size % parts:
            raise ValueError(
                f"global_batch_size is {self.global_batch_size}, which {self.launch.ranks} ranks × "
                f"{self.gradient_accumulation_steps} accumulation steps cannot share evenly; "
                f"allowed are multiples of {parts}"
            )
        return self

    @model_validator(mode="after")
    def _backend_fits(self) -> Self:
        if self.optimizer.backend == "apex" and self.launch.device != "cuda":
            raise ValueError(
                f"optimizer.backend is apex, which needs a GPU, but launch.device is {self.launch.device}; "
                "allowed there is podium"
            )
        return self

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.balancing_counts == "free" and self.balancing != "indexed":
            raise ValueError(f"balancing_counts is free, but balancing is {self.balancing}; allowed with it is equal")
        if self.loss == "per_rank" and (self.balancing_counts == "free" or self.balancing == "packed"):
            raise ValueError(
                "loss is per_rank, which takes equally many samples on all ranks, but balancing shares them out "
                "unequally; allowed with it is global"
            )
        return self

    @model_validator(mode="after")
    def _strata_fit(self) -> Self:
        strata = self.balancing in ("stratified", "presorted")
        if self.strata_counts is not None:
            batch = self.local_batch_size // self.gradient_accumulation_steps
            if not strata:
                raise ValueError(f"strata_counts has no use with balancing {self.balancing}; leave it out")
            if sum(self.strata_counts) != batch:
                raise ValueError(
                    f"strata_counts is {list(self.strata_counts)}, which are {sum(self.strata_counts)} samples; "
                    f"allowed are {batch} in all, those of a local batch (of a micro-batch, where gradients are "
                    "accumulated)"
                )
        for key, found, only in (("shards", self.shards, "shared"), ("phases", self.phases and "set", ())):
            if strata and found != only:
                raise ValueError(
                    f"{key} is {found}, but balancing is {self.balancing}, which draws strata from the whole data; "
                    f"leave {key} out, or use another balancing"
                )
        return self

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        for number, phase in enumerate(self.phases):
            last = number == len(self.phases) - 1
            if last != (phase.samples is None):
                found = "nothing" if phase.samples is None else phase.samples
                raise ValueError(
                    f"phases.{number}.samples is {found}; allowed is a number of samples in every phase but the last, "
                    "which goes on to the end of the run and names none"
                )
        return self

    @model_validator(mode="after")
    def _checkpoints_fit(self) -> Self:
        if self.checkpoint is not None and self.evaluation.overlap != "none":
            raise ValueError(
                "checkpoint is set, and evaluation.overlap is training: a checkpoint holds no evaluation that is under "
                "way; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _capacity_fits(self) -> Self:
        if self.capacity_overflow is None:
            return self
        for key, allowed in (("attention", ("flash", "grouped")), ("loss", ("global",))):
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"capacity_overflow is set, but {key} is {getattr(self, key)}; allowed with it is "
                    f"{' or '.join(allowed)}"
                )
        if self.phases or self.loader == "exchange":
            key = "phases is set" if self.phases else "loader is exchange"
            raise ValueError(f"capacity_overflow is set, but {key}, which it does not go with; leave one of them out")
        if self.balancing == "padded":
            raise ValueError("capacity_overflow is set, but with balancing padded all batches have one shape already")
        return self

    @model_validator(mode="after")
    def _attention_fits(self) -> Self:
        if self.attention in ("flash", "nested") and self.balancing == "padded":
            raise ValueError(
                f"attention is {self.attention}, which takes no padding, but balancing is padded; "
                "allowed with it are padded, grouped"
            )
        if self.attention_widths is not None and self.attention != "grouped":
            raise ValueError(f"attention_widths has no use with attention {self.attention}; leave it out")
        return self

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        if self.division != "closed":
            return self
        breaches = closed_breaches(
            Terms(
                size=self.size,
                optimizer=self.optimizer.algorithm,
                dropout=self.dropout,
                target_accuracy=self.target_accuracy,
                evaluation_samples=self.evaluation_samples,
                evaluation_interval=self.evaluation_interval,
                global_batch_size=self.global_batch_size,
                initial_checkpoint=self.initial_checkpoint is not None,
            )
        )
        if breaches:
            raise ValueError("; ".join(str(breach) for breach in breaches))
        return self
