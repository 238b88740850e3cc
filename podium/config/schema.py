"""The schema of a run's configuration: its sections, frozen and without unknown keys, and what fits together."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from benchmarks.bert.manifest import WHOLE_STORE, NodePart
from benchmarks.bert.preparation.settings import SHORTEST_LENGTH, GenerationSettings
from benchmarks.bert.rules import LARGEST_SEED, TARGET_ACCURACY, closed_breaches, evaluation_interval
from benchmarks.bert.sizes import SEQUENCE_LENGTH, SIZES, Size
from podium.config.sbatch import limit_seconds, may_mean, options_named, refusal
from podium.core.errors import UsageError
from podium.core.processes import processors
from podium.core.text import quoted

LARGEST_NUMBER = 2**63


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Numbers are not to be given as true or false; only a field that names them takes them."""
        assert info.field_name is not None
        allowed = get_args(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and not any(option is value for option in allowed):
            raise ValueError(f"found {str(value).lower()}; a truth value is not allowed here")
        if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
            raise ValueError(f"found {quoted(value)}; allowed are numbers below 2^63")
        return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


Paths = Annotated[tuple[Path, ...], BeforeValidator(_as_list)]


class DataSettings(Settings):
    """Where samples come from: prepared shards, text to prepare them from, or (neither) the embedded language."""

    text: Paths = ()  # text files to train on, in the official format
    evaluation_text: Path | None = None  # A text file whose samples are evaluated on
    store: Path | None = None  # A folder of prepared shards to train on
    evaluation_store: Path | None = None  # A folder of prepared shards to evaluate on
    vocabulary: Path | None = None  # vocab.txt of the text or the store

    @property
    def kind(self) -> Literal["embedded", "text", "store"]:
        return "store" if self.store else "text" if self.text else "embedded"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.text and self.store:
            raise ValueError("name either text or store, not both")
        needed = {
            "text": ("evaluation_text", "vocabulary"),
            "store": ("evaluation_store", "vocabulary"),
            "embedded": (),
        }[self.kind]
        for key in type(self).model_fields:
            given = getattr(self, key) not in (None, ())
            if key in needed and not given:
                raise ValueError(f"{key} is missing: with {self.kind}, {' and '.join(needed)} must be named too")
            if given and key not in (*needed, self.kind):
                raise ValueError(f"{key} has no use without {'store' if key == 'evaluation_store' else 'text'}")
        return self


Status = Literal["Available on-premise", "Available cloud", "Preview", "Research, Development, or Internal (RDI)"]

_SUBMISSION_STATUS: dict[Status, str] = {
    "Available on-premise": "onprem",
    "Available cloud": "cloud",
    "Preview": "preview",
    "Research, Development, or Internal (RDI)": "research",
}


class Description(BaseModel):
    """The 33 fields that MLPerf requires of a system, all of them text. Numbers in the YAML are taken as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, coerce_numbers_to_str=True)

    submitter: str = Field(min_length=1)
    division: Literal["closed", "open"]
    status: Status
    system_name: str = Field(min_length=1)
    number_of_nodes: str
    host_processors_per_node: str
    host_processor_model_name: str
    host_processor_core_count: str
    host_processor_vcpu_count: str
    host_processor_frequency: str
    host_processor_caches: str
    host_processor_interconnect: str
    host_memory_capacity: str
    host_storage_type: str
    host_storage_capacity: str
    host_networking: str
    host_networking_topology: str
    host_memory_configuration: str
    accelerators_per_node: str
    accelerator_model_name: str
    accelerator_host_interconnect: str
    accelerator_frequency: str
    accelerator_on_chip_memories: str = Field(alias="accelerator_on-chip_memories")
    accelerator_memory_configuration: str
    accelerator_memory_capacity: str
    accelerator_interconnect: str
    accelerator_interconnect_topology: str
    cooling: str
    hw_notes: str
    framework: str
    other_software_stack: str
    operating_system: str
    sw_notes: str

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_is_empty_text(cls, value: Any) -> Any:
        return "" if value is None else value

    @property
    def submission_status(self) -> str:
        """The status as log lines spell it."""
        return _SUBMISSION_STATUS[self.status]


MOUNT = r"^[^:,\x00-\x1f\-][^:,\x00-\x1f]*:/[^:,\x00-\x1f]*(:ro)?$"
RENDEZVOUS = r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]\-][^\s:\[\]]*):[1-9][0-9]{0,4}$"
SYSTEM_NAME = r"^\w[\w.+-]{0,99}$"  # it names folders, a Slurm job and its files
LARGEST_PORT = 65_535
PLACE = ("launcher", "container", "slurm_options", "requeue")  # keys that say where a run goes on
# Keys that may be others when a run is gone on with, since they change no number of it. Nodes and processes a node say
# who takes which samples and in which order sums add up, and threads on a CPU do the latter.
FREE = (*PLACE, "rendezvous", "binding", "caches", "max_restarts", "timeout_seconds")
FREE_ON_GPU = ("threads_per_process",)
LONGEST_SIGNAL_SECONDS = 65_535  # of sbatch's --signal
SLURM_EARLY_SECONDS = 60  # by which Slurm may send that signal early, as sbatch's manual says
# Options of sbatch that a job which requeues itself depends on, and those that it does not go with.
REQUEUE_OPTIONS = ("--signal", "--open-mode")
NEVER_REQUEUED = ("--no-requeue", "--array", "-a")
TIME_OPTIONS = ("--time", "-t")
BINDINGS = {"cpu": ("cores",), "cuda": ("node", "socket", "exclusive", "core-complex")}


class Container(Settings):
    """The container that a whole `podium run` goes on in, and what of this machine is seen there."""

    runtime: Literal["docker", "pyxis", "apptainer"]
    # docker: an image's name; pyxis: an image's name or a .sqsh file; apptainer: a .sif file.
    image: str = Field(min_length=1)
    # HERE:THERE or HERE:THERE:ro, HERE relative to the repository; results/, runs/ and data/ are mounted besides
    mounts: tuple[Annotated[str, Field(pattern=MOUNT)], ...] = ()

    @field_validator("image")
    @classmethod
    def _no_option(cls, image: str) -> str:
        if image.startswith("-") or not image.isprintable():
            raise ValueError(
                f"found {quoted(image)}, which the container's program would take for an option or which cannot be "
                "printed; name an image or a file of one"
            )
        return image


class Requeue(Settings):
    """A Slurm job that saves its run before the job's time limit and requeues itself, to resume the same run."""

    # Minutes, sbatch's --time; unset: the limit of slurm_options or of the partition
    time_limit: int | None = Field(default=None, ge=1)
    # Seconds before the limit at which the run is asked to save itself and stop. Slurm may be up to a minute early.
    signal_seconds: int = Field(default=120, ge=1, le=LONGEST_SIGNAL_SECONDS)

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.time_limit is not None:
            self.require_time(60 * self.time_limit, f"time_limit is {self.time_limit} minutes")
        return self

    def require_time(self, seconds: int, found: str) -> None:
        """ValueError for a time limit that ends before a job may be asked to stop; `found` says where it is set."""
        earliest = self.signal_seconds + SLURM_EARLY_SECONDS
        if seconds <= earliest:
            raise ValueError(
                f"{found}, but the run may be asked to stop {earliest} s before its end (signal_seconds and the minute "
                f"by which Slurm may be early); allowed are more than {earliest / 60:g} minutes"
            )


class Launch(Settings):
    """How the processes of a run are started."""

    # torchrun: here. docker: here, in a container. slurm: on the nodes of a job that is submitted for it.
    launcher: Literal["torchrun", "docker", "slurm"] = "torchrun"
    nodes: int = Field(default=1, ge=1)
    processes_per_node: int = Field(ge=1)
    device: Literal["cpu", "cuda"]
    # CPU threads of each process; without it the machine's cores are shared out evenly
    threads_per_process: int | None = Field(default=None, ge=1, le=4096)
    # Which CPUs a process may run on. cores: an even share, of whole NUMA nodes where there are enough. The others are
    # torchrun's, which go by the NUMA node of the process's GPU.
    binding: Literal["none", "cores", "node", "socket", "exclusive", "core-complex"] = "none"
    # What is cleared before a run: all of the kernel's caches, where that is allowed, or the samples' pages alone
    caches: Literal["all", "samples"] = "all"
    # HOST:PORT of the first of several nodes. Port + 1 is used too.
    rendezvous: Annotated[str, Field(pattern=RENDEZVOUS)] | None = None
    container: Container | None = None
    slurm_options: tuple[str, ...] = ()  # options of sbatch besides the number of nodes, such as --partition=batch
    # How a Slurm job goes on after its time limit; None: it ends there, and the run with it
    requeue: Requeue | None = None

    # How often all processes are started again after one died; the run goes on from its last checkpoint
    max_restarts: int = Field(default=0, ge=0)
    # For so long all ranks may stand still before the one that holds up the others is named and the run broken off
    timeout_seconds: float = Field(default=600.0, gt=0)

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads(self) -> int:
        """CPU threads of one process: as set, else an even share of the cores that this process may use."""
        cores = processors()
        return self.threads_per_process or max(1, cores // self.processes_per_node)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        runtimes = {"torchrun": (None,), "docker": ("docker",), "slurm": (None, "pyxis", "apptainer")}[self.launcher]
        runtime = self.container.runtime if self.container else None
        if runtime not in runtimes:
            allowed = " or ".join(f"container.runtime {name}" if name else "no container" for name in runtimes)
            found = f"container.runtime is {runtime}" if runtime else "there is no container"
            raise ValueError(f"launcher is {self.launcher}, but {found}; allowed with it is {allowed}")
        if self.slurm_options and self.launcher != "slurm":
            raise ValueError(f"launcher is {self.launcher}, which has no use for slurm_options; leave them out")
        if self.requeue is not None:
            self._can_requeue(self.requeue)
        if refused := refusal(self.slurm_options):
            raise ValueError(refused)
        if self.rendezvous is not None and int(self.rendezvous.rpartition(":")[2]) > LARGEST_PORT - 1:
            raise ValueError(f"rendezvous is {self.rendezvous}; allowed are ports up to {LARGEST_PORT - 1}")
        if self.binding not in ("none", *BINDINGS[self.device]):
            raise ValueError(
                f"binding is {self.binding}, but device is {self.device}; allowed with it are "
                f"{', '.join(('none', *BINDINGS[self.device]))}"
            )
        return self

    def _can_requeue(self, requeue: Requeue) -> None:
        if self.launcher != "slurm":
            raise ValueError(f"launcher is {self.launcher}, which has no use for requeue; leave it out")
        options, limited = self.slurm_options, requeue.time_limit is not None
        refused = {
            "does not go with requeue: the job requeues itself, and makes one run": NEVER_REQUEUED,
            "requeue sets already": (*REQUEUE_OPTIONS, *(TIME_OPTIONS if limited else ())),
        }
        for why, names in refused.items():
            for name, option, _ in options_named(options, names):
                means = may_mean(option, name)
                raise ValueError(f"slurm_options has {option}{means}, which {why}; leave one of them out")
        for name, _, value in options_named(options, (*TIME_OPTIONS, "--time-min")):
            seconds = limit_seconds(value)
            if seconds is not None:
                requeue.require_time(seconds, f"slurm_options has {name} {value}")


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
    # The decay's line has its full rate at this step and its end rate at `decay_steps`, both counted from 0. Between
    # the warm-up's end and this step the line goes on upwards, above `learning_rate`: Samsung's published runs.
    decay_from: int = Field(default=0, ge=0)
    decay_steps: int = Field(ge=1)
    decay_power: float = Field(default=1.0, gt=0)
    end_learning_rate: float = Field(default=0.0, ge=0)
    # Who computes LAMB: Podium's own, or the fused kernels of NVIDIA's apex, where it is installed
    backend: Literal["podium", "apex"] = "podium"
    # From so many ranks on each rank updates some of LAMB's large tensors and sends them to the others; None: never. It
    # saves memory and the optimizer's time and costs sending the weights, which by `podium predict` takes longer on
    # every A100 system described here (docs/lab-notebook.md).
    sharded_from: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _decays(self) -> Self:
        if self.decay_from >= self.decay_steps:
            raise ValueError(
                f"decay_from is {self.decay_from}, where decay begins, and decay_steps is {self.decay_steps}, where it "
                "ends; allowed is a decay_from below decay_steps"
            )
        return self

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
    # `after`: the averaged gradient, by its global norm. `before`: each rank's own gradient, by its local norm, which
    # needs the whole backward pass, so that nothing is sent before its end. `bucket`: each bucket of a rank's own
    # gradient, to max_norm / √buckets by its own norm, as soon as backward has filled it; it is then sent at once.
    when: Literal["after", "before", "bucket"] = "after"


class LossScaling(Settings):
    """Dynamic loss scaling: halved after a step that overflowed, doubled after `growth_interval` that did not.

    Published runs that began at 2^17 lost six to eight steps before they settled near 1024.
    """

    initial: float = Field(default=1024.0, ge=1)
    growth_interval: int = Field(default=2000, ge=1)


class Checkpointing(Settings):
    """Checkpoints of a run to go on from. Without either interval one is made when the run is asked to stop."""

    # Samples trained on between two checkpoints, rounded up to whole batches
    every_samples: int | None = Field(default=None, ge=1)
    # Minutes between two checkpoints, as the first rank counts them
    every_minutes: float | None = Field(default=None, gt=0)
    keep: int = Field(default=2, ge=1)  # how many are kept, the newest ones


class Evaluation(Settings):
    """How many samples an evaluation takes and how many are trained on between two; unset: the benchmark's own."""

    samples: int | None = Field(default=None, ge=1)
    interval_samples: int | None = Field(default=None, ge=1)
    local_batch_size: int = Field(default=64, ge=1)
    # `training`: a copy of the weights is evaluated beside the next steps, which count if it misses the target
    overlap: Literal["none", "training"] = "none"


class TrainingPhase(Settings):
    """A part of a run that trains on samples made for one sequence length."""

    # Most tokens of a sample. Samples of the text are made for it; None: those of data.store, or of the phase's store
    max_sequence_length: int | None = Field(default=None, ge=SHORTEST_LENGTH, le=SEQUENCE_LENGTH)
    # Most masked tokens of a sample; None: 76 with length 512, 20 with 128, else 0.15 of the length
    max_predictions: int | None = Field(default=None, ge=1)
    # A folder of prepared shards of this length; None: made of the text, or data.store
    store: Path | None = None
    # How long the phase is, in samples or as a share of max_samples (or of what comes before the rate is 0, where that
    # is less), in whole global batches; the last phase has neither, and lasts to the end of the run.
    samples: int | None = Field(default=None, ge=1)
    share: float | None = Field(default=None, gt=0, lt=1)
    # In place of the run's: shorter sequences need less memory
    gradient_accumulation_steps: int | None = Field(default=None, ge=1)

    @property
    def generation(self) -> GenerationSettings:
        """How samples of this phase are made of text."""
        return GenerationSettings.of_lengths(self.max_sequence_length, self.max_predictions)

    @model_validator(mode="after")
    def _has_room_for_masks(self) -> Self:
        try:
            assert self.generation
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self


IN_ORDER = ("padded", "random")  # balancing strategies that leave every sample with the rank that it is drawn for
STRATIFIED = ("stratified", "presorted")  # balancing strategies that draw a fixed count of each length stratum


class RunConfig(Settings):
    """Everything that a run is made of, resolved. podium.run.prepare gives a value to what is None here."""

    system: str = Field(pattern=SYSTEM_NAME)
    description: Description
    launch: Launch
    implementation: Literal["pytorch"] = "pytorch"
    recipe: str
    # The set of benchmarks/bert/published/hyperparameters.yaml that the optimizer's numbers come from; None: no set
    hyperparameters: str | None = None
    size: Literal["large", "tiny"]
    data: DataSettings = DataSettings()
    # Weights to start from, as `podium data checkpoint` writes them; None draws them from the seed
    initial_checkpoint: Path | None = None

    balancing: Literal["padded", "random", "exchanged", "stratified", "presorted", "packed", "indexed"]
    # Whether `indexed` gives all ranks equally many samples, or what costs them equally much
    balancing_counts: Literal["equal", "free"] = "equal"
    # What a pair of tokens within a sequence costs in units of a token's cost, as `indexed` balances it; None: as
    # `podium bench` measured it on this system, or where it has not, by the operations of matrix products.
    pair_cost: float | None = Field(default=None, ge=0)
    # What a sequence costs besides, in the same unit and with the same default
    sequence_cost: float | None = Field(default=None, ge=0)
    # Samples of each length stratum in a local batch, as stratified strategies draw them, or in a micro-batch where
    # gradients are accumulated; None: in proportion to the data, by largest remainder. Other strategies draw no strata.
    strata_counts: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=4, max_length=4)] | None = None
    # Whether every rank may come to train on every sample of the data, or draws its samples from a part of its own
    shards: Literal["shared", "per_rank"] = "shared"
    # Phases of sequence length, one after the other, each with samples of its own; none: those of the data throughout
    phases: tuple[TrainingPhase, ...] = ()
    # `auto` is flash on a GPU that has it, else nested; on a CPU grouped
    attention: Literal["auto", "padded", "grouped", "flash", "nested"]
    # Upper lengths of the groups of `grouped` attention, such as [128, 256, 512]; None: the cheapest cut of each batch
    attention_widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None = None
    # Who does the element-wise work; `auto` is numba on a CPU and compiled (torch.compile) on a GPU.
    kernels: Literal["auto", "eager", "compiled", "numba", "triton"] = "auto"
    # For which tokens the last layer is computed after its attention: those that the heads read, or all
    last_layer: Literal["needed", "all"] = "needed"
    # `step` replays the whole step as one CUDA graph for each shape; `auto` does so on a GPU where it can
    cuda_graph: Literal["auto", "step", "none"] = "auto"
    # Token slots are rounded up to multiples of this; None is 64 on a CPU and 512 on a GPU
    shape_step: int | None = Field(default=None, ge=1)
    # Gives all micro-batches of the run one shape, which about this share of the steps exceeds: a sequence that does
    # not fit goes to another micro-batch or to the next step. None: each batch has a shape of its own, and none
    # overflows.
    capacity_overflow: float | None = Field(default=None, gt=0, le=0.25)
    # `auto` is bf16 where the processor has instructions for it, else fp16 on a GPU and fp32 on a CPU
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"]
    loss_scaling: LossScaling = LossScaling()  # of fp16 alone, as `precision` or as `gradient_wire`
    dropout: float = Field(ge=0, le=0.9)
    # `global`: sums over the global batch's counts. `per_rank`: the mean of the ranks' means, as published.
    loss: Literal["global", "per_rank"]
    # Who reads batches ahead: Podium's own reader, NVIDIA DALI where it is installed, or readers that each read the
    # samples that were drawn for their own rank and pass them on to the ranks that train on them, over the CPUs.
    loader: Literal["own", "dali", "exchange"] = "own"
    # Steps whose samples are passed on at once, while the steps before them are trained on
    exchange_steps: int = Field(default=100, ge=1)
    prefetch_batches: int = Field(default=4, ge=1)

    global_batch_size: int = Field(ge=1)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    optimizer: OptimizerSettings
    clipping: Clipping | None
    # What gradients are sent as between ranks. fp16 comes with loss scaling, whatever `precision` is. `auto` is fp16
    # between GPUs, as all published systems have sent them, and fp32 on CPUs and in a single process.
    gradient_wire: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    # Size of the buckets that gradients are sent in, MiB as they are sent: BERT-large in fp16 makes 20 of 25 MiB.
    # None: PyTorch's own, 25 MiB of fp32, the first 1
    gradient_bucket_mib: float | None = Field(default=None, gt=0)
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpointing | None = None  # None makes no checkpoints: a run that is broken off is lost
    # None trains to the end of `max_samples`, whatever the accuracy
    target_accuracy: float | None = Field(default=TARGET_ACCURACY, gt=0, le=1)
    # A run that has not reached its target by then, rounded up to whole batches, is aborted
    max_samples: int = Field(ge=1)
    # Drawn from the system's randomness for each run, unless it is fixed here
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)

    @property
    def model_size(self) -> Size:
        return SIZES[self.size]

    @property
    def division(self) -> str:
        return self.description.division

    @property
    def wire(self) -> Literal["fp32", "fp16", "bf16"]:
        """What gradients are sent as: `gradient_wire` with `auto` resolved."""
        if self.gradient_wire != "auto":
            return self.gradient_wire
        return "fp16" if self.launch.device == "cuda" and self.launch.ranks > 1 else "fp32"

    @property
    def local_batch_size(self) -> int:
        return self.global_batch_size // self.launch.ranks

    @property
    def steps(self) -> int:
        """Global batches of a run that does not reach its target."""
        return -(-self.max_samples // self.global_batch_size)

    @property
    def most_accumulation_steps(self) -> int:
        """Micro-batches of a local batch, in the phase that has most."""
        own = self.gradient_accumulation_steps
        return max((phase.gradient_accumulation_steps or own for phase in self.phases), default=own)

    @property
    def named_stores(self) -> dict[str, Path]:
        """Where prepared samples to train on are, by key: data.store and those of the phases, each once."""
        named = {f"phases.{number}.store": phase.store for number, phase in enumerate(self.phases)}
        keys: dict[Path, str] = {}
        for key, store in ({"data.store": self.data.store} | named).items():
            if store is not None:
                keys.setdefault(store, key)
        return {key: store for store, key in keys.items()}

    @property
    def stores(self) -> tuple[Path, ...]:
        return tuple(self.named_stores.values())

    @property
    def every_store(self) -> dict[str, Path]:
        """Where all prepared samples are, by key: those to train on, then those to evaluate on."""
        evaluation = self.data.evaluation_store
        return self.named_stores | ({"data.evaluation_store": evaluation} if evaluation is not None else {})

    @property
    def named_paths(self) -> dict[str, Path]:
        """Every file and folder that is read, by its key."""
        data = self.data
        named = {
            "data.store": data.store,
            "data.evaluation_store": data.evaluation_store,
            "data.evaluation_text": data.evaluation_text,
            "data.vocabulary": data.vocabulary,
            "initial_checkpoint": self.initial_checkpoint,
            **{f"data.text[{number}]": path for number, path in enumerate(data.text)},
            **{f"phases.{number}.store": phase.store for number, phase in enumerate(self.phases)},
        }
        return {key: path for key, path in named.items() if path is not None}

    @property
    def reads_own_part(self) -> bool:
        """Whether a rank reads no sample to train on but those of its own part: what others train on it is sent."""
        in_order = self.balancing in IN_ORDER and self.capacity_overflow is None
        return self.shards == "per_rank" and (in_order or self.loader == "exchange")

    def store_parts(self, node: int) -> dict[str, NodePart]:
        """The part of each store that a node's ranks read, by its key: all of it unless they read their own alone."""
        own = NodePart(node, self.launch.nodes) if self.reads_own_part else WHOLE_STORE
        return {key: own if key in self.named_stores else WHOLE_STORE for key in self.every_store}

    def phase_samples(self, phase: TrainingPhase) -> int | None:
        """Samples of a phase, whole global batches where it is a share of max_samples; None of the last one.

        Where the learning rate ends at 0 before, the share is of the samples until then.
        """
        if phase.share is None:
            return phase.samples
        trained = self.steps
        if self.optimizer.end_learning_rate == 0:  # steps at rate 0 train nothing
            trained = min(trained, self.optimizer.decay_steps)
        return max(1, round(phase.share * trained)) * self.global_batch_size

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
    def _batch_fits(self) -> Self:
        of_phases = [phase.gradient_accumulation_steps for phase in self.phases]
        for steps in (self.gradient_accumulation_steps, *filter(None, of_phases)):
            parts = self.launch.ranks * steps
            if self.global_batch_size % parts:
                raise ValueError(
                    f"global_batch_size is {self.global_batch_size}, which {self.launch.ranks} ranks × "
                    f"{steps} accumulation steps cannot share evenly; allowed are multiples of {parts}"
                )
        if self.optimizer.backend == "apex" and self.launch.device != "cuda":
            raise ValueError(
                f"optimizer.backend is apex, which needs a GPU, but launch.device is {self.launch.device}; "
                "allowed there is podium"
            )
        if self.balancing_counts == "free" and self.balancing != "indexed":
            raise ValueError(f"balancing_counts is free, but balancing is {self.balancing}; allowed with it is equal")
        if self.loss == "per_rank" and (self.balancing_counts == "free" or self.balancing == "packed"):
            raise ValueError(
                "loss is per_rank, which takes equally many samples on all ranks, but balancing shares them out "
                "unequally; allowed with it is global"
            )
        return self

    @model_validator(mode="after")
    def _strata_and_phases_fit(self) -> Self:
        strata = self.balancing in STRATIFIED
        if strata and self.strata_counts is not None:
            batch = self.local_batch_size // self.gradient_accumulation_steps
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
        for number, phase in enumerate(self.phases):
            last = number == len(self.phases) - 1
            given = {key: getattr(phase, key) for key in ("samples", "share") if getattr(phase, key) is not None}
            if len(given) != (0 if last else 1):
                found = " and ".join(f"{key} {value}" for key, value in given.items()) or "neither samples nor share"
                raise ValueError(
                    f"phases.{number} has {found}; allowed is one of samples and share in every phase but the last, "
                    "which goes on to the end of the run and has neither"
                )
            short = phase.max_sequence_length not in (None, SEQUENCE_LENGTH)
            if self.data.store and phase.store is None and short and self.division != "closed":  # which has no phases
                raise ValueError(
                    f"phases.{number}.store is missing: with data.store a phase of {phase.max_sequence_length} tokens "
                    "has prepared shards of that length; make them with `podium data prepare --max-sequence-length "
                    f"{phase.max_sequence_length}` and name their folder, or leave max_sequence_length out where "
                    "data.store has that length"
                )
        before_last = sum(self.phase_samples(phase) or 0 for phase in self.phases[:-1])
        if self.phases and before_last >= self.max_samples:
            raise ValueError(
                f"phases before the last have {before_last:,} samples in all, and max_samples is {self.max_samples:,}, "
                "so that the last one would never begin; allowed is less in all"
            )
        if sum(phase.share or 0 for phase in self.phases) >= 1:
            raise ValueError(
                f"phases have shares {[phase.share for phase in self.phases if phase.share]}, which leave nothing for "
                "the last one; allowed is less than 1 in all"
            )
        return self

    @model_validator(mode="after")
    def _requeued_job_finds_a_checkpoint(self) -> Self:
        if self.launch.requeue is not None and self.checkpoint is None:
            raise ValueError(
                "launch.requeue is set, but checkpoint is not, so that a requeued job would train from the start "
                "again; set checkpoint={} (one checkpoint when the job is asked to stop), checkpoint.every_samples or "
                "checkpoint.every_minutes"
            )
        return self

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.checkpoint is not None and self.evaluation.overlap != "none":
            raise ValueError(
                "checkpoint is set, and evaluation.overlap is training: a checkpoint holds no evaluation that is under "
                "way; leave one of them out"
            )
        if self.attention in ("auto", "flash", "nested") and self.balancing == "padded":
            raise ValueError(
                f"attention is {self.attention}, which takes no padding, but balancing is padded; "
                "allowed with it are padded, grouped"
            )
        if self.attention_widths is not None and self.attention != "grouped":
            raise ValueError(f"attention_widths has no use with attention {self.attention}; leave it out")
        return self

    @model_validator(mode="after")
    def _capacity_fits(self) -> Self:
        if self.capacity_overflow is None:
            return self
        for key, allowed in (("attention", ("auto", "flash", "grouped")), ("loss", ("global",))):
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
    def _keeps_the_rules(self) -> Self:
        if self.division != "closed":
            return self
        breaches = closed_breaches(
            size=self.size,
            optimizer=self.optimizer.algorithm,
            dropout=self.dropout,
            target_accuracy=self.target_accuracy,
            evaluation_samples=self.evaluation_samples,
            interval_samples=self.evaluation_interval,
            global_batch_size=self.global_batch_size,
            initial_checkpoint=self.initial_checkpoint is not None,
            phases=len(self.phases),
        )
        if breaches:
            raise ValueError("; ".join(breaches))
        return self
