"""Schema of a run's configuration: its sections (frozen, without unknown keys) and checks across keys."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from benchmarks.bert.manifest import WHOLE_STORE, NodePart
from benchmarks.bert.preparation.settings import MIN_SEQUENCE_LENGTH, GenerationSettings
from benchmarks.bert.rules import MAX_SEED, TARGET_ACCURACY, closed_division_violations, evaluation_interval
from benchmarks.bert.sizes import SEQUENCE_LENGTH, SIZES, Size
from podium.config.sbatch import abbreviation_note, limit_seconds, match_options, rejection_reason
from podium.core.errors import UsageError
from podium.core.processes import processors
from podium.core.text import short_repr

INTEGER_LIMIT = 2**63


class Settings(BaseModel):
    """Base of all sections: frozen, no unknown keys, no infinities or NaN, no truth values for numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, which pydantic would convert to 1 and 0, and integers of more than 64 bits."""
        assert info.field_name is not None
        allowed = get_args(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and not any(option is value for option in allowed):
            raise PydanticCustomError("truth_value", "a truth value is not allowed")  # see podium.config.errors
        if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
            raise ValueError(f"found {short_repr(value)}; allowed are numbers below 2^63")
        return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


Paths = Annotated[tuple[Path, ...], BeforeValidator(_as_list)]


class DataSettings(Settings):
    """Source of samples: prepared shards, text to prepare them from, or (neither) the embedded text."""

    text: Paths = Field(
        default=(), description="Text to train on, in the official format: one file or a list. It is prepared once"
    )
    evaluation_text: Path | None = Field(default=None, description="Text file to evaluate on")
    store: Path | None = Field(default=None, description="Folder of prepared shards to train on")
    evaluation_store: Path | None = Field(default=None, description="Folder of prepared shards to evaluate on")
    vocabulary: Path | None = Field(default=None, description="vocab.txt for the text or the stores")

    @property
    def kind(self) -> Literal["embedded", "text", "store"]:
        return "store" if self.store else "text" if self.text else "embedded"

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
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
                raise ValueError(f"{key} has no effect without {'store' if key == 'evaluation_store' else 'text'}")
        return self


Status = Literal["Available on-premise", "Available cloud", "Preview", "Research, Development, or Internal (RDI)"]

_SUBMISSION_STATUS: dict[Status, str] = {
    "Available on-premise": "onprem",
    "Available cloud": "cloud",
    "Preview": "preview",
    "Research, Development, or Internal (RDI)": "research",
}


MAY_BE_EMPTY = ("hw_notes", "sw_notes", "other_software_stack")  # fields of a description
PLACEHOLDERS = ("", "not stated", "unknown", "todo", "tbd", "?")


def is_stated(text: str) -> bool:
    """Whether a field of a description has a value, and not a placeholder such as `unknown`."""
    return text.strip().lower() not in PLACEHOLDERS


class Description(BaseModel):
    """The 33 fields by which MLPerf describes a system, all of them text. Numbers in the YAML are read as text.

    A run needs none of them; a submission needs all, and is refused with the names of those that the file lacks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, coerce_numbers_to_str=True)

    submitter: str = Field(
        default="", description="Submitting organisation; the name of the package's folder, and in every log"
    )
    division: Literal["closed", "open"] = Field(
        default="open",
        description="MLPerf's division; a configuration that breaks a rule of the closed division is refused",
    )
    status: Status = Field(
        default="Research, Development, or Internal (RDI)", description="MLPerf's availability status"
    )
    system_name: str = Field(
        default="", description="Name of the system in the submission and in every log; unset: the name of the file"
    )
    number_of_nodes: str = Field(default="", description="Nodes of the system; unset: `launch.nodes`")
    host_processors_per_node: str = Field(default="", description="CPU sockets of a node")
    host_processor_model_name: str = Field(default="", description="Model of the CPU")
    host_processor_core_count: str = Field(default="", description="Cores of one CPU")
    host_processor_vcpu_count: str = Field(default="", description="Logical CPUs of a node")
    host_processor_frequency: str = Field(default="", description="Clock frequency of the CPU")
    host_processor_caches: str = Field(default="", description="Caches of the CPU")
    host_processor_interconnect: str = Field(default="", description="Interconnect of the CPUs of a node")
    host_memory_capacity: str = Field(default="", description="Memory of a node")
    host_storage_type: str = Field(default="", description="Type of the storage that samples are read from")
    host_storage_capacity: str = Field(default="", description="Capacity of that storage")
    host_networking: str = Field(default="", description="Network between nodes")
    host_networking_topology: str = Field(default="", description="Topology of that network")
    host_memory_configuration: str = Field(default="", description="Memory modules of a node")
    accelerators_per_node: str = Field(
        default="", description="Accelerators of a node, 0 for a CPU; unset: from `launch`"
    )
    accelerator_model_name: str = Field(
        default="",
        description="Model of the accelerator; settings that it does not support, such as fp8 on an A100, are refused",
    )
    accelerator_host_interconnect: str = Field(default="", description="Interconnect of accelerator and host")
    accelerator_frequency: str = Field(default="", description="Clock frequency of the accelerator")
    accelerator_on_chip_memories: str = Field(
        default="", alias="accelerator_on-chip_memories", description="Caches and memories of the accelerator's chip"
    )
    accelerator_memory_configuration: str = Field(default="", description="Type of the accelerator's memory")
    accelerator_memory_capacity: str = Field(default="", description="Memory of one accelerator")
    accelerator_interconnect: str = Field(default="", description="Interconnect of the accelerators of a node")
    accelerator_interconnect_topology: str = Field(default="", description="Topology of that interconnect")
    cooling: str = Field(default="", description="Cooling of the system")
    hw_notes: str = Field(default="", description="Notes on the hardware; may be empty")
    framework: str = Field(default="", description="Framework and version, such as PyTorch 2.13.0")
    other_software_stack: str = Field(default="", description="Drivers and libraries with their versions")
    operating_system: str = Field(default="", description="Operating system and version")
    sw_notes: str = Field(default="", description="Notes on the software; may be empty")

    @field_validator("*", mode="before")
    @classmethod
    def _null_to_empty_text(cls, value: Any) -> Any:
        return "" if value is None else value

    @property
    def logged_submitter(self) -> str:
        """Submitter in log lines, which must not be empty."""
        return self.submitter or "not stated"

    def missing_fields(self) -> list[str]:
        """Names of the fields, in MLPerf's spelling, that a submission needs and the system's file lacks."""
        document = self.model_dump(by_alias=True)
        return [key for key, value in document.items() if not value.strip() and key not in MAY_BE_EMPTY]

    @property
    def submission_status(self) -> str:
        """Status in the spelling of MLPerf log lines."""
        return _SUBMISSION_STATUS[self.status]


MOUNT = r"^[^:,\x00-\x1f\-][^:,\x00-\x1f]*:/[^:,\x00-\x1f]*(:ro)?$"
RENDEZVOUS = r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]\-][^\s:\[\]]*):[1-9][0-9]{0,4}$"
SYSTEM_NAME = r"^\w[\w.+-]{0,99}$"  # part of the names of folders, of a Slurm job and of its files
MAX_PORT = 65_535
PLACEMENT_KEYS = (
    "launcher",
    "container",
    "slurm_options",
    "requeue",
)  # keys of `launch` that choose where a run is started
# Keys of `launch` that a resumed run may change, since no result depends on them. Nodes and processes per node are not
# among them: they determine the assignment of samples to ranks and the order of floating-point sums, as the number of
# threads does on a CPU.
RESUME_OVERRIDES = (*PLACEMENT_KEYS, "rendezvous", "binding", "caches", "max_restarts", "timeout_seconds")
RESUME_OVERRIDES_ON_GPU = ("threads_per_process",)
MAX_SIGNAL_SECONDS = 65_535  # limit of sbatch --signal
SLURM_EARLY_SECONDS = 60  # by which Slurm may send that signal early (sbatch(1), --signal)
# Options of sbatch that a job with `requeue` sets itself, and those that it cannot be combined with.
REQUEUE_OPTIONS = ("--signal", "--open-mode")
INCOMPATIBLE_WITH_REQUEUE = ("--no-requeue", "--array", "-a")
TIME_OPTIONS = ("--time", "-t")
BINDINGS = {"cpu": ("cores",), "cuda": ("node", "socket", "exclusive", "core-complex")}


# Allowed values of container.runtime by launcher; None: without a container.
CONTAINER_RUNTIMES: dict[str, tuple[str | None, ...]] = {
    "torchrun": (None,),
    "docker": ("docker",),
    "slurm": (None, "pyxis", "apptainer"),
}


class Container(Settings):
    """The container that a run's processes are started in, and its mounts."""

    runtime: Literal["docker", "pyxis", "apptainer"] = Field(
        description="`docker` requires `launcher: docker`, `pyxis` and `apptainer` require `launcher: slurm`"
    )
    image: str = Field(
        min_length=1,
        description="docker: name of an image; pyxis: name of an image or a .sqsh file; apptainer: a .sif file",
    )
    mounts: tuple[Annotated[str, Field(pattern=MOUNT)], ...] = Field(
        default=(),
        description="Folders mounted besides `results/`, `runs/` and `data/`, each as `HOST:CONTAINER` or "
        "`HOST:CONTAINER:ro` (read only); HOST may be relative to the repository",
    )

    @field_validator("image")
    @classmethod
    def _check_image(cls, image: str) -> str:
        if image.startswith("-") or not image.isprintable():
            raise ValueError(
                f"found {short_repr(image)}, which the container runtime would parse as an option or which cannot be "
                "printed; name an image or an image file"
            )
        return image


class Requeue(Settings):
    """A Slurm job that saves its run before the job's time limit and requeues itself, to resume the same run."""

    time_limit: int | None = Field(
        default=None,
        ge=1,
        description="Time limit of each job in minutes (sbatch --time); unset: of `slurm_options` or the partition",
    )
    signal_seconds: int = Field(
        default=120,
        ge=1,
        le=MAX_SIGNAL_SECONDS,
        description="Seconds before the limit at which the run is signalled to save a checkpoint and stop "
        "(sbatch --signal); Slurm may be up to a minute early",
    )

    @model_validator(mode="after")
    def _check_time_limit(self) -> Self:
        if self.time_limit is not None:
            self.require_time(60 * self.time_limit, f"time_limit is {self.time_limit} minutes")
        return self

    def require_time(self, seconds: int, found: str) -> None:
        """Raise ValueError if a time limit of `seconds` leaves no time before the stop signal; `found`: its source."""
        earliest = self.signal_seconds + SLURM_EARLY_SECONDS
        if seconds <= earliest:
            raise ValueError(
                f"{found}, but the run may be signalled to stop {earliest} s before its end (signal_seconds and the "
                f"minute by which Slurm may be early); allowed are more than {earliest / 60:g} minutes"
            )


class Launch(Settings):
    """Start of a run's processes: launcher, nodes, devices, container, restarts and timeouts."""

    launcher: Literal["torchrun", "docker", "slurm"] = Field(
        default="torchrun",
        description="`torchrun`: on this machine; `docker`: on this machine, in a container; `slurm`: on the nodes of "
        "a job that is submitted for the run",
    )
    nodes: int = Field(default=1, ge=1, description="Number of nodes")
    processes_per_node: int = Field(ge=1, description="Training processes per node: one for each GPU")
    device: Literal["cpu", "cuda"] = Field(description="Device to train on")
    threads_per_process: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPU threads of each process; unset: an even share of the cores that it may use",
    )
    binding: Literal["none", "cores", "node", "socket", "exclusive", "core-complex"] = Field(
        default="none",
        description="Which CPUs a process may run on. `cores` (CPU): an even share, of whole NUMA nodes where there "
        "are enough. The others (GPU) are those of torchrun's `--numa-binding`, by the NUMA node of the process's "
        "GPU",
    )
    caches: Literal["all", "samples"] = Field(
        default="all",
        description="Page cache dropped before a run: `all` caches of the kernel, where permissions allow it, or only "
        "the pages of the `samples`",
    )
    rendezvous: Annotated[str, Field(pattern=RENDEZVOUS)] | None = Field(
        default=None,
        description="`HOST:PORT` of the first node, where several nodes are started by hand: host name, IPv4 or "
        "`[IPv6]` address. PORT + 1 is used too",
    )
    container: Container | None = Field(default=None, description="Container of the run; unset: none")
    slurm_options: tuple[str, ...] = Field(
        default=(), description="Options of sbatch besides the number of nodes, such as `--partition=batch`"
    )
    requeue: Requeue | None = Field(
        default=None,
        description="Continuation of the run in further Slurm jobs after the time limit; unset: it ends with the job",
    )
    max_restarts: int = Field(
        default=0,
        ge=0,
        description="Number of times that torchrun restarts all processes from the last checkpoint after one has died",
    )
    timeout_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Time without progress on any rank after which the run is stopped and the rank that blocks the "
        "others is named",
    )

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads(self) -> int:
        """CPU threads per process: as set, else an even share of the cores that this process may use."""
        cores = processors()
        return self.threads_per_process or max(1, cores // self.processes_per_node)

    @model_validator(mode="after")
    def _check_launcher(self) -> Self:
        runtimes = CONTAINER_RUNTIMES[self.launcher]
        runtime = self.container.runtime if self.container else None
        if runtime not in runtimes:
            allowed = " or ".join(f"container.runtime {name}" if name else "no container" for name in runtimes)
            found = f"container.runtime is {runtime}" if runtime else "there is no container"
            raise ValueError(f"launcher is {self.launcher}, but {found}; allowed with it is {allowed}")
        if self.slurm_options and self.launcher != "slurm":
            raise ValueError(f"launcher is {self.launcher}, which does not use slurm_options; leave them out")
        if self.requeue is not None:
            self._check_requeue(self.requeue)
        if refused := rejection_reason(self.slurm_options):
            raise ValueError(refused)
        if self.rendezvous is not None and int(self.rendezvous.rpartition(":")[2]) > MAX_PORT - 1:
            raise ValueError(f"rendezvous is {self.rendezvous}; allowed are ports up to {MAX_PORT - 1}")
        if self.binding not in ("none", *BINDINGS[self.device]):
            raise ValueError(
                f"binding is {self.binding}, but device is {self.device}; allowed with it are "
                f"{', '.join(('none', *BINDINGS[self.device]))}"
            )
        return self

    def _check_requeue(self, requeue: Requeue) -> None:
        if self.launcher != "slurm":
            raise ValueError(f"launcher is {self.launcher}, which does not support requeue; leave it out")
        options, limited = self.slurm_options, requeue.time_limit is not None
        refused = {
            "cannot be combined with requeue: the job requeues itself, for a single run": INCOMPATIBLE_WITH_REQUEUE,
            "requeue sets already": (*REQUEUE_OPTIONS, *(TIME_OPTIONS if limited else ())),
        }
        for why, names in refused.items():
            for name, option, _ in match_options(options, names):
                means = abbreviation_note(option, name)
                raise ValueError(f"slurm_options has {option}{means}, which {why}; leave one of them out")
        for name, _, value in match_options(options, (*TIME_OPTIONS, "--time-min")):
            seconds = limit_seconds(value)
            if seconds is not None:
                requeue.require_time(seconds, f"slurm_options has {name} {value}")


class OptimizerSettings(Settings):
    """The optimizer and its learning rate schedule."""

    algorithm: Literal["lamb", "adamw"] = Field(
        description="Set by the recipe, unless the system or `--set` overrides it; the closed division requires LAMB"
    )
    learning_rate: float = Field(gt=0, description="Learning rate at the end of the warm-up")
    beta1: float = Field(ge=0, lt=1, description="Decay rate of the running mean of gradients")
    beta2: float = Field(ge=0, lt=1, description="Decay rate of the running mean of squared gradients")
    epsilon: float = Field(gt=0, description="Added to the root of the mean of squared gradients")
    weight_decay: float = Field(ge=0, description="Weight decay; none on biases and LayerNorm")
    warmup_steps: int = Field(ge=0, description="Steps of linear warm-up, counted from `start_warmup_step`")
    start_warmup_step: int = Field(
        default=0, le=0, description="Step at which the warm-up begins; negative if the first step has a rate above 0"
    )
    decay_from: int = Field(
        default=0,
        ge=0,
        description="Step, counted from 0, at which the decay passes through `learning_rate`. Between the end of the "
        "warm-up and this step the rate is on the same curve, above `learning_rate`, as in Samsung's published runs",
    )
    decay_steps: int = Field(ge=1, description="Step, counted from 0, at which the decay ends")
    decay_power: float = Field(default=1.0, gt=0, description="Power of the polynomial decay; 1 is linear")
    end_learning_rate: float = Field(default=0.0, ge=0, description="Learning rate from `decay_steps` on")
    backend: Literal["podium", "apex"] = Field(
        default="podium",
        description="Implementation of LAMB: Podium's, or the fused kernels of NVIDIA's apex (a GPU is required)",
    )
    sharded_from: int | None = Field(
        default=None,
        ge=1,
        description="Number of ranks from which LAMB's large tensors are sharded: each rank updates some of them and "
        "sends them to the others. Results are the same and memory is saved; by `podium predict` no time is saved on "
        "the A100 systems described here. Unset: never",
    )

    @model_validator(mode="after")
    def _check_decay(self) -> Self:
        if self.decay_from >= self.decay_steps:
            raise ValueError(
                f"decay_from is {self.decay_from}, where decay begins, and decay_steps is {self.decay_steps}, where it "
                "ends; allowed is a decay_from below decay_steps"
            )
        return self

    @model_validator(mode="after")
    def _check_lamb_only(self) -> Self:
        lamb_only = (
            "backend is apex" if self.backend == "apex" else "sharded_from is set" if self.sharded_from else None
        )
        if lamb_only and self.algorithm != "lamb":
            raise ValueError(f"{lamb_only}, which requires lamb, but algorithm is {self.algorithm}; leave it out")
        if self.backend == "apex" and self.sharded_from:
            raise ValueError("sharded_from is set, but backend is apex; leave one of them out")
        if self.backend == "apex" and self.weight_decay == 0:
            raise ValueError(
                "backend is apex, which takes no trust ratios without weight decay, but weight_decay is 0; "
                "allowed with it is backend podium"
            )
        return self


class Clipping(Settings):
    """Gradient clipping: scaling down to a norm of at most `max_norm`, before or after the all-reduce."""

    max_norm: float = Field(gt=0, description="Largest allowed norm")
    when: Literal["after", "before", "bucket"] = Field(
        default="after",
        description="`after` the all-reduce: the averaged gradient, by its global norm. `before` it: each rank's "
        "gradient, by its local norm, so that no bucket is sent before the end of backward. `bucket`: each bucket of a "
        "rank's gradient, to max_norm / √buckets by the bucket's norm, as soon as backward has filled it; it is then "
        "sent at once",
    )


class LossScaling(Settings):
    """Dynamic loss scaling: halved after an overflow, doubled after `growth_interval` steps without one.

    Published runs that began at 2^17 lost six to eight steps before they settled near 1024.
    """

    initial: float = Field(default=1024.0, ge=1, description="Loss scale of the first step")
    growth_interval: int = Field(
        default=2000, ge=1, description="Steps without an overflow after which the scale is doubled"
    )


class Checkpointing(Settings):
    """Checkpoints to resume a run from. With neither interval, one is written when the run is stopped by a signal."""

    every_samples: int | None = Field(
        default=None, ge=1, description="Samples between two checkpoints, rounded up to whole batches"
    )
    every_minutes: float | None = Field(
        default=None, gt=0, description="Minutes between two checkpoints, by the clock of rank 0"
    )
    keep: int = Field(default=2, ge=1, description="Number of checkpoints that are kept, the newest")


class Evaluation(Settings):
    """Size and interval of evaluations, in samples; unset: those of the benchmark."""

    samples: int | None = Field(
        default=None, ge=1, description="Samples per evaluation; unset: the benchmark's number for the model size"
    )
    interval_samples: int | None = Field(
        default=None,
        ge=1,
        description="Samples trained on between two evaluations; unset: that of the model size, or by MLPerf's rule",
    )
    local_batch_size: int = Field(default=64, ge=1, description="Samples per rank in an evaluation batch")
    overlap: Literal["none", "training"] = Field(
        default="none",
        description="`training`: a copy of the weights is evaluated concurrently with the next steps; steps after the "
        "one that reached the target do not count",
    )


class TrainingPhase(Settings):
    """A phase of a run, which trains on samples prepared for one maximum sequence length."""

    max_sequence_length: int | None = Field(
        default=None,
        ge=MIN_SEQUENCE_LENGTH,
        le=SEQUENCE_LENGTH,
        description="Maximum number of tokens of a sample, for samples made from text; unset: that of the store",
    )
    max_predictions: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of masked tokens of a sample; unset: 76 with length 512, 20 with 128, else 0.15 of "
        "the length",
    )
    store: Path | None = Field(
        default=None,
        description="Folder of prepared shards of this length; unset: samples are made from the text, or are those of "
        "`data.store`",
    )
    samples: int | None = Field(
        default=None, ge=1, description="Length of the phase in samples, rounded to whole global batches"
    )
    share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Length of the phase as a fraction of `max_samples`, or of the samples before the learning rate "
        "reaches 0 if these are fewer. The last phase has neither `samples` nor `share`; it lasts to the run's end",
    )
    gradient_accumulation_steps: int | None = Field(
        default=None, ge=1, description="Overrides the run's value, since shorter sequences need less memory"
    )

    @property
    def generation(self) -> GenerationSettings:
        """Settings for making samples of this phase from text."""
        return GenerationSettings.from_lengths(self.max_sequence_length, self.max_predictions)

    @model_validator(mode="after")
    def _check_masks_fit(self) -> Self:
        try:
            assert self.generation
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self


WITHOUT_REASSIGNMENT = (
    "padded",
    "random",
)  # balancing strategies in which every rank trains on the samples that it draws
STRATIFIED = (
    "stratified",
    "presorted",
)  # balancing strategies that draw a fixed number of samples of each length stratum


class Reproduces(Settings):
    """The published result that a system reproduces, for `podium compare --published`."""

    round: str = Field(max_length=300, description="Round of MLPerf Training, such as v5.0")
    submitter: str = Field(max_length=300, description="Submitter of the result")
    system: str = Field(max_length=300, description="Name of the system in that round")
    seconds: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(), max_length=1000, description="Time of each published run that reached the target"
    )
    samples: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(), max_length=1000, description="Samples to target of these runs, as far as their logs state them"
    )
    size: Literal["large", "tiny"] = Field(default="large", description="Size of the model of these runs")
    global_batch_size: int | None = Field(default=None, ge=1, description="Global batch size of these runs")
    accelerators: int | None = Field(default=None, ge=0, description="Number of their accelerators, in all nodes")
    accelerator: str = Field(default="", max_length=300, description="Model of their accelerators; empty: not stated")


class RunConfig(Settings):
    """Complete configuration of a run. podium.run.prepare resolves values that are still None here."""

    system: str = Field(pattern=SYSTEM_NAME, description="Name of the system's file; not a key")
    description: Description = Field(
        default=Description(), description="MLPerf's description of the system; may be left out until a submission"
    )
    launch: Launch = Field(description="Start of the run's processes")
    reproduces: Reproduces | None = Field(
        default=None, description="The published result that the system reproduces; unset: none"
    )
    implementation: Literal["pytorch"] = Field(
        default="pytorch", description="Implementation: a folder of `implementations/`"
    )
    recipe: str = Field(description="Published method of training, as defaults of the other keys: a file of `recipes/`")
    hyperparameters: str | None = Field(
        default=None,
        description="Set of optimizer settings in `benchmarks/bert/published/hyperparameters.yaml`; a system may name "
        "a list, of which the set for the recipe's algorithm is used. Unset: a published set for this algorithm and "
        "global batch size",
    )
    size: Literal["large", "tiny"] = Field(
        description="Size of the model: MLPerf's BERT-large, or tiny (2 layers of hidden size 128)"
    )
    data: DataSettings = Field(default=DataSettings(), description="Source of samples; unset: the embedded text")
    initial_checkpoint: Path | None = Field(
        default=None,
        description="Initial weights, in the format that `podium data checkpoint` writes; unset: drawn from the seed",
    )

    balancing: Literal["padded", "random", "exchanged", "stratified", "presorted", "packed", "indexed"] = Field(
        description="Strategy that assigns the samples of a global batch to ranks"
    )
    balancing_counts: Literal["equal", "free"] = Field(
        default="equal",
        description="For `indexed`: `equal` numbers of samples on all ranks, or `free` ones, which balance the cost "
        "better if a rank has few samples",
    )
    pair_cost: float | None = Field(
        default=None,
        ge=0,
        description="Cost of a pair of tokens in the same sequence, relative to the cost of a token, for the balancing "
        "of `indexed`; unset: as `podium bench` measured it on this system, else from the FLOPs of matrix products",
    )
    sequence_cost: float | None = Field(
        default=None,
        ge=0,
        description="Cost of a sequence besides its tokens and pairs; unit and default as for `pair_cost`",
    )
    strata_counts: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=4, max_length=4)] | None = Field(
        default=None,
        description="Samples of each length stratum in a local batch (in a micro-batch, if gradients are "
        "accumulated), for `stratified` and `presorted`; unset: in proportion to the data, by largest remainder",
    )
    shards: Literal["shared", "per_rank"] = Field(
        default="shared",
        description="`shared`: every rank may train on every sample. `per_rank`: each rank draws from a separate part "
        "of the data, and its node need not have the rest",
    )
    phases: tuple[TrainingPhase, ...] = Field(
        default=(),
        description="Phases of sequence length, one after the other, such as "
        "`[{max_sequence_length: 128, share: 0.9}, {max_sequence_length: 512}]`; none: a single phase",
    )
    attention: Literal["auto", "padded", "grouped", "cudnn", "flash", "nested"] = Field(
        description="Attention backend; `auto` is chosen by GPU and after a check at the start of the run: cudnn on "
        "Hopper, flash on Ampere, Ada and Blackwell, else nested; on a CPU grouped"
    )
    attention_widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Maximum lengths of the groups of `grouped` attention, such as `[128, 256, 384, 512]`; unset: the "
        "cheapest grouping for each batch",
    )
    kernels: Literal["auto", "eager", "compiled", "numba", "triton"] = Field(
        default="auto",
        description="Implementation of what lies between matrix products: `numba` (CPU), `triton` (GPU; required for "
        "`precision: fp8`), `compiled` (torch.compile), `eager` (plain PyTorch); `auto` is numba on a CPU and triton "
        "on a GPU",
    )
    last_layer: Literal["needed", "all"] = Field(
        default="needed",
        description="Tokens that the last layer is computed for after its attention: `needed` are the masked and [CLS] "
        "tokens, the only ones that the heads read, so that the result is exact",
    )
    cuda_graph: Literal["auto", "step", "none"] = Field(
        default="auto",
        description="`step`: the whole step is replayed as a CUDA graph, one per shape of the run, and so is the "
        "evaluation of a batch, all captured before the run's clock starts; `auto`: on a GPU where that is possible",
    )
    shape_step: int | None = Field(
        default=None,
        ge=1,
        description="Multiple to which the number of token slots is rounded up; unset: 64 on a CPU, 512 on a GPU",
    )
    capacity_overflow: float | None = Field(
        default=None,
        gt=0,
        le=0.25,
        description="Fraction of steps, such as 0.01, that may exceed the capacity of a single shape for all "
        "micro-batches; a sequence that does not fit moves to another micro-batch or to the next step, and is counted. "
        "Unset: each batch has the shape it needs",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        description="Precision of matrix products. `fp16` implies loss scaling and is very slow on a CPU; `fp8` "
        "(Hopper and later) is used for the encoder's products; `auto` is bf16 where the processor has instructions "
        "for it, else fp16 on a GPU and fp32 on a CPU"
    )
    loss_scaling: LossScaling = Field(
        default=LossScaling(), description="Loss scaling, used if `precision` or `gradient_wire` is fp16"
    )
    dropout: float = Field(ge=0, le=0.9, description="Dropout probability; BERT's is 0.1")
    loss: Literal["global", "per_rank"] = Field(
        description="`global`: sums over the global batch divided by its counts. `per_rank`: the mean of the ranks' "
        "means, to reproduce published runs"
    )
    loader: Literal["own", "dali", "exchange"] = Field(
        default="own",
        description="Data loader: `own` is Podium's; `dali` is NVIDIA DALI (`pip install .[dali]`); with `exchange` "
        "each rank reads the samples of its part of the data and sends them over the CPUs to the ranks that train on "
        "them. The batches are the same",
    )
    exchange_steps: int = Field(
        default=100,
        ge=1,
        description="For `loader: exchange`: steps whose samples are sent at once, during training on earlier steps",
    )
    prefetch_batches: int = Field(default=4, ge=1, description="Number of steps that are prefetched")

    global_batch_size: int = Field(ge=1, description="Samples per optimizer step, over all ranks")
    gradient_accumulation_steps: int = Field(default=1, ge=1, description="Number of micro-batches of a local batch")
    optimizer: OptimizerSettings = Field(description="The optimizer and its learning rate schedule")
    clipping: Clipping | None = Field(description="Gradient clipping; null: none")
    gradient_wire: Literal["auto", "fp32", "fp16", "bf16"] = Field(
        default="auto",
        description="Data type of gradients in the all-reduce; fp16 implies loss scaling. `auto` is fp16 between GPUs, "
        "as in all published systems, and fp32 between CPUs and in a single process",
    )
    gradient_bucket_mib: float | None = Field(
        default=None,
        gt=0,
        description="Size of a gradient bucket in MiB as sent: BERT-large in fp16 has 20 buckets of 25 MiB. "
        "Unset: PyTorch's default, 25 MiB of fp32, and 1 MiB for the first",
    )
    evaluation: Evaluation = Field(default=Evaluation(), description="Size and interval of evaluations")
    checkpoint: Checkpointing | None = Field(
        default=None,
        description="Checkpoints, written in the background; `{}` writes one when the run is stopped by a signal. "
        "Unset: none, and an interrupted run is lost",
    )
    target_accuracy: float | None = Field(
        default=TARGET_ACCURACY,
        gt=0,
        le=1,
        description="Masked-LM accuracy at which the run ends. With null it trains to `max_samples` at any accuracy; "
        "the exit code is then 0, and for MLPerf the run is aborted",
    )
    max_samples: int = Field(
        ge=1,
        description="Samples, rounded up to whole batches, after which a run that missed its target is aborted",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SEED,
        description="Seed of the run; unset: a new random one for every run",
    )

    @property
    def model_size(self) -> Size:
        return SIZES[self.size]

    @property
    def division(self) -> str:
        return self.description.division

    @property
    def wire(self) -> Literal["fp32", "fp16", "bf16"]:
        """Data type of gradients in the all-reduce: `gradient_wire` with `auto` resolved."""
        if self.gradient_wire != "auto":
            return self.gradient_wire
        return "fp16" if self.launch.device == "cuda" and self.launch.ranks > 1 else "fp32"

    @property
    def config_filename(self) -> str:
        """Path of the run's resolved configuration in a package, from the folder of the code. Logged by every run."""
        return f"submitted/{self.description.system_name}.yaml"

    @property
    def local_batch_size(self) -> int:
        return self.global_batch_size // self.launch.ranks

    @property
    def steps(self) -> int:
        """Number of global batches of a run that does not reach its target."""
        return -(-self.max_samples // self.global_batch_size)

    @property
    def max_accumulation_steps(self) -> int:
        """Largest number of micro-batches per local batch of any phase."""
        own = self.gradient_accumulation_steps
        return max((phase.gradient_accumulation_steps or own for phase in self.phases), default=own)

    @property
    def training_stores(self) -> dict[str, Path]:
        """Folders of prepared training samples by key: data.store and those of the phases, without duplicates."""
        named = {f"phases.{number}.store": phase.store for number, phase in enumerate(self.phases)}
        keys: dict[Path, str] = {}
        for key, store in ({"data.store": self.data.store} | named).items():
            if store is not None:
                keys.setdefault(store, key)
        return {key: store for store, key in keys.items()}

    @property
    def stores(self) -> tuple[Path, ...]:
        return tuple(self.training_stores.values())

    @property
    def all_stores(self) -> dict[str, Path]:
        """Folders of all prepared samples by key: those to train on, then those to evaluate on."""
        evaluation = self.data.evaluation_store
        return self.training_stores | ({"data.evaluation_store": evaluation} if evaluation is not None else {})

    @property
    def named_paths(self) -> dict[str, Path]:
        """All input files and folders, by key."""
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
        """Whether each rank reads training samples only of its part of the data (samples may then be exchanged)."""
        in_order = self.balancing in WITHOUT_REASSIGNMENT and self.capacity_overflow is None
        return self.shards == "per_rank" and (in_order or self.loader == "exchange")

    def store_parts(self, node: int) -> dict[str, NodePart]:
        """Part of each store that a node's ranks read, by key: the whole store unless `reads_own_part`."""
        own = NodePart(node, self.launch.nodes) if self.reads_own_part else WHOLE_STORE
        return {key: own if key in self.training_stores else WHOLE_STORE for key in self.all_stores}

    def phase_samples(self, phase: TrainingPhase) -> int | None:
        """Number of samples of a phase; None for the last one.

        A share is rounded to whole global batches. It is a fraction of max_samples, or of the samples before the
        learning rate reaches 0 if these are fewer.
        """
        if phase.share is None:
            return phase.samples
        trained = self.steps
        if self.optimizer.end_learning_rate == 0:  # steps at learning rate 0 change no weight
            trained = min(trained, self.optimizer.decay_steps)
        return max(1, round(phase.share * trained)) * self.global_batch_size

    @property
    def evaluation_samples(self) -> int:
        return self.evaluation.samples or self.model_size.evaluation_samples

    @property
    def evaluation_interval(self) -> int:
        """Number of samples trained on between two evaluations."""
        return (
            self.evaluation.interval_samples
            or self.model_size.evaluation_interval
            or evaluation_interval(self.global_batch_size)
        )

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        of_phases = [phase.gradient_accumulation_steps for phase in self.phases]
        for steps in (self.gradient_accumulation_steps, *filter(None, of_phases)):
            parts = self.launch.ranks * steps
            if self.global_batch_size % parts:
                raise ValueError(
                    f"global_batch_size is {self.global_batch_size}, which is not divisible by {self.launch.ranks} "
                    f"ranks × {steps} accumulation steps; allowed are multiples of {parts}"
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
                "loss is per_rank, which requires equal numbers of samples on all ranks, but balancing assigns "
                "unequal numbers; allowed with it is global"
            )
        return self

    @model_validator(mode="after")
    def _check_strata_and_phases(self) -> Self:
        strata = self.balancing in STRATIFIED
        if strata and self.strata_counts is not None:
            batch = self.local_batch_size // self.gradient_accumulation_steps
            if sum(self.strata_counts) != batch:
                raise ValueError(
                    f"strata_counts is {list(self.strata_counts)}, which are {sum(self.strata_counts)} samples; "
                    f"allowed are {batch} in all, the samples of a local batch (of a micro-batch, if gradients are "
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
                    f"bert.phases.{number} has {found}; allowed is one of samples and share in every phase but the "
                    "last, which lasts to the end of the run and has neither"
                )
            short = phase.max_sequence_length not in (None, SEQUENCE_LENGTH)
            if self.data.store and phase.store is None and short and self.division != "closed":  # which has no phases
                raise ValueError(
                    f"bert.phases.{number}.store is missing: with data.store a phase of {phase.max_sequence_length} "
                    "tokens needs prepared shards of that length; make them with `podium data prepare "
                    f"--max-sequence-length {phase.max_sequence_length}` and name their folder, or leave "
                    "max_sequence_length out where data.store has that length"
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
    def _check_requeue_has_checkpoints(self) -> Self:
        if self.launch.requeue is not None and self.checkpoint is None:
            raise ValueError(
                "launch.requeue is set, but checkpoint is not, so that a requeued job would train from the start "
                "again; set checkpoint={} (one checkpoint when the job is signalled to stop), checkpoint.every_samples "
                "or checkpoint.every_minutes"
            )
        return self

    @model_validator(mode="after")
    def _check_overlap_and_attention(self) -> Self:
        if self.checkpoint is not None and self.evaluation.overlap != "none":
            raise ValueError(
                "checkpoint is set, and evaluation.overlap is training: the state of a running evaluation cannot be "
                "saved in a checkpoint; leave one of them out"
            )
        if self.attention in ("auto", "cudnn", "flash", "nested") and self.balancing == "padded":
            raise ValueError(
                f"attention is {self.attention}, which does not support padding, but balancing is padded; "
                "allowed with it are padded, grouped"
            )
        if self.attention_widths is not None and self.attention != "grouped":
            raise ValueError(f"attention_widths has no effect with attention {self.attention}; leave it out")
        return self

    @model_validator(mode="after")
    def _check_capacity(self) -> Self:
        if self.capacity_overflow is None:
            return self
        for key, allowed in (("attention", ("auto", "cudnn", "flash", "grouped")), ("loss", ("global",))):
            if getattr(self, key) not in allowed:
                raise ValueError(
                    f"capacity_overflow is set, but {key} is {getattr(self, key)}; allowed with it is "
                    f"{' or '.join(allowed)}"
                )
        if self.phases or self.loader == "exchange":
            key = "phases is set" if self.phases else "loader is exchange"
            raise ValueError(f"capacity_overflow is set, but {key}; they cannot be combined, leave one of them out")
        if self.balancing == "padded":
            raise ValueError(
                "capacity_overflow is set, but with balancing padded all batches have the same shape; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_closed_rules(self) -> Self:
        if self.division != "closed":
            return self
        breaches = closed_division_violations(
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
