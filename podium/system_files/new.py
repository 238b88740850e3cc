"""`podium systems new`: a system file for this machine, with the detected hardware and the nearest published set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from podium.config.load import read_configuration, recipe_files
from podium.core.errors import UsageError
from podium.core.paths import WORKING_FOLDER
from podium.doctor.accelerators import GIB, NvidiaGpu, nvidia_gpus, same_kind
from podium.planning.accelerators import (
    find_accelerator,
    memory_gigabytes,
    require_supported,
    unknown_gpu_warning,
)
from podium.submission.describe import detect, same_accelerator
from podium.system_files.compose import CHECKPOINT, DATA, Draft, data_settings

HOPPER = (9, 0)
SAMPLES_PER_GIB = 1  # of a micro-batch: published are 56 of 80 GB (A100) to 96 of 80 GB (H100)
DEFAULT_MEMORY = 16  # GB of a GPU that is neither here nor in the table of accelerators: the least in the table
TINY_BATCH = 16
RUNTIMES = {"docker": "docker", ".sif": "apptainer"}  # by launcher or by the image's suffix; else pyxis
MAX_SAMPLES_SHARE = 1.8  # max_samples, relative to the known samples to target


@dataclass(frozen=True)
class NewOptions:
    """Choices of the user for a new system; None: by what is detected."""

    nodes: int = 1
    gpus: int | None = None  # of a node
    accelerator: str | None = None  # model of GPUs that are not of this machine
    launcher: str | None = None
    image: str | None = None
    recipe: str = "indexed"
    size: str | None = None
    data: str = "data"


def draft_for_machine(name: str, options: NewOptions) -> Draft:
    """Return the draft of a system for this machine. Raises UsageError for options that exclude each other."""
    if options.accelerator is not None:
        require_supported(options.accelerator, "--accelerator")
    found = nvidia_gpus()
    gpus = len(found) if options.gpus is None else options.gpus
    if options.gpus and not found and options.accelerator is None:
        raise UsageError("--gpus: nvidia-smi lists no GPU here; name their model with --accelerator, such as H200")
    launcher = options.launcher or ("torchrun" if options.nodes == 1 else "slurm")
    if options.image is not None and launcher == "torchrun":
        raise UsageError("--image: has no effect with --launcher torchrun; choose docker or slurm")
    if launcher == "docker" and options.nodes > 1:
        raise UsageError("--launcher docker: starts a run on one machine, but --nodes is more; choose slurm")
    on_gpus = gpus > 0
    size = options.size or ("large" if on_gpus and not missing_data(options.data) else "tiny")
    model = options.accelerator or same_kind(gpu.name for gpu in found) or ""
    is_here = _is_this_machine(options, launcher, gpus, found)
    description = dict(detect(None).fields) if is_here else {}
    if on_gpus:
        description["accelerators_per_node"] = str(gpus)
        if model:
            description["accelerator_model_name"] = model
        if found and is_here:
            description["accelerator_memory_capacity"] = f"{min(gpu.total_bytes for gpu in found) / GIB:.0f} GB"
    launch: dict[str, Any] = {
        "launcher": launcher,
        "nodes": options.nodes,
        **({"rendezvous": None} if needs_rendezvous(launcher, options.nodes) else {}),
        "processes_per_node": gpus or 1,
        "device": "cuda" if on_gpus else "cpu",
        "caches": "samples",
    }
    image = options.image or ("podium:latest" if launcher == "docker" else None)
    if image is not None:
        runtime = RUNTIMES.get(launcher) or RUNTIMES.get(Path(image).suffix, "pyxis")
        launch["container"] = {"runtime": runtime, "image": image}
    ranks = options.nodes * (gpus or 1)
    comments = {
        "rendezvous": "HOST:PORT of the first node, such as node0:29500, which all nodes must reach. No run starts "
        "without it.",
        "processes_per_node": "One process for each GPU." if on_gpus else "One process uses all cores.",
        "caches": "Permissions to drop the kernel's page cache are not needed so; a submission needs `all`.",
    }
    if size == "tiny":
        bert, why = _tiny(options, ranks)
    else:
        bert, why, more = _large(options, ranks, model, found if is_here else [])
        comments |= more
    hardware = f"{gpus}×{model or 'GPU'}" if on_gpus else "no NVIDIA GPU"
    nodes = f"{options.nodes} nodes of {hardware}" if options.nodes > 1 else f"a node of {hardware}"
    where = f"this machine ({hardware})" if is_here else f"{nodes}, started by {launcher}"
    described = (
        "The description is what was detected on this machine"
        if is_here
        else "The description has only what the options state: the machine on which the file was written is not taken "
        "for one of its nodes, and nothing of it was detected"
    )
    head = (
        f"{name}: written by `podium systems new` for {where}. Run it with `{run_command(name, launch)}`, look at "
        f"the machine before with `podium doctor {name}`. {why}",
        f"{described}; a run needs none of it. A submission needs all 33 fields (docs/configuration.md), and "
        "`podium submit describe` on a node completes them.",
    )
    notes = (why,) if is_here else (why, "the description is left to a node: `podium submit describe` completes it")
    unknown = unknown_gpu_warning(model) if on_gpus else None
    if unknown is not None:
        notes = (*notes, f"warning: {unknown}")
    return Draft(head, description, launch, bert, comments=comments, notes=notes)


def needs_rendezvous(launcher: str, nodes: int) -> bool:
    """Whether the user starts `podium run` on every node, so that the nodes need an address to meet at."""
    return launcher == "torchrun" and nodes > 1


def run_command(name: str, launch: Mapping[str, Any]) -> str:
    """Return the command that runs a new system, with the options without which it fails."""
    command = f"podium run {name}"
    if needs_rendezvous(launch["launcher"], launch["nodes"]) and not launch.get("rendezvous"):
        command += " --set launch.rendezvous=HOST:PORT --node-rank RANK"  # RANK: 0 and up, on each node
    return command


def _is_this_machine(options: NewOptions, launcher: str, gpus: int, found: Sequence[NvidiaGpu]) -> bool:
    """Whether the system is this machine: a single node that is not started by Slurm, with the GPUs that are here."""
    if options.nodes > 1 or launcher == "slurm":
        return False
    if gpus == 0:
        return True
    wanted = options.accelerator
    return gpus <= len(found) and (wanted is None or all(same_accelerator(wanted, gpu.name) for gpu in found))


def missing_data(folder: str) -> list[str]:
    """Return names of data for BERT-large that are not in a folder, which may be relative to the working folder."""
    return [name for name in (*DATA.values(), CHECKPOINT) if not (WORKING_FOLDER / folder / name).exists()]


def _tiny(options: NewOptions, ranks: int) -> tuple[dict[str, Any], str]:
    bert: dict[str, Any] = {
        "implementation": "pytorch",
        "recipe": options.recipe,
        "size": "tiny",
        "global_batch_size": ranks * -(-TINY_BATCH // ranks),
        "gradient_accumulation_steps": 1,
        "max_samples": 60_000,
    }
    if options.recipe == "indexed":
        bert["optimizer"] = {"algorithm": "adamw"}  # as `laptop`: more reliable than LAMB at 16 samples a step
    bert["hyperparameters"] = ["tiny_adamw_16", "tiny_lamb_16"]
    why = (
        "It trains the tiny BERT on the embedded text, which needs no data. For BERT-large, prepare MLPerf's data "
        f"in {options.data}/ (docs/data.md) and write another file with --size large."
    )
    return bert, why


def _large(
    options: NewOptions, ranks: int, model: str, found: Sequence[NvidiaGpu]
) -> tuple[dict[str, Any], str, dict[str, str]]:
    nearest = nearest_set(ranks, model)
    batch = ranks * max(1, round(nearest.used_at[0] / ranks))
    _require_writable(options.recipe, nearest, batch)
    local = batch // ranks
    here, of_model = min((gpu.total_bytes for gpu in found), default=0), memory_gigabytes(model)
    memory = here / GIB if here else of_model or DEFAULT_MEMORY
    assumed = "" if here or of_model else ", as is assumed of a GPU whose memory is not known"
    accumulation = _accumulation_steps(local, int(memory * SAMPLES_PER_GIB))
    bert: dict[str, Any] = {
        "implementation": "pytorch",
        "recipe": options.recipe,
        "size": "large",
        **data_settings(options.data),
        "global_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "max_samples": _max_samples(nearest),
        "hyperparameters": nearest.name,
    }
    missing = missing_data(options.data)
    nearness = "the nearest in number and kind"
    if find_accelerator(model) is None:
        nearness = "the nearest in number of GPUs before Hopper, since the kind is not known,"
    why = (
        f"Batch and hyper-parameters are those published for {', '.join(nearest.published_on)} "
        f"({nearest.name}: {nearest.source}), {nearness} to {ranks}×{model or 'GPU'}."
    )
    if missing:
        why += f" Before a run, prepare what is missing in {options.data}/: {', '.join(missing)} (docs/data.md)."
    comments = {
        "global_batch_size": f"Published: {nearest.used_at[0]:,}; a multiple of the {ranks} processes is needed.",
        "gradient_accumulation_steps": f"{local} samples a process in micro-batches that fit into {memory:.0f} GB"
        f"{assumed}; not measured: try less.",
        "max_samples": f"A run that misses the target ends here; {nearest.samples or 0:,} samples were published.",
    }
    return bert, why, comments


def _require_writable(recipe: str, nearest: HyperparameterSet, batch: int) -> None:
    """Raise UsageError for a recipe that trains BERT-large on what no option names: optimizer, phase's store."""
    keys = read_configuration(next(path for path in recipe_files("pytorch") if path.stem == recipe))
    algorithm = keys["optimizer"]["algorithm"]
    phases = [phase for phase in keys.get("phases", ()) if "max_sequence_length" in phase and "share" in phase]
    if algorithm != nearest.algorithm:
        known = [
            one.name for one in hyperparameter_sets().values() if (one.size, one.algorithm) == ("large", algorithm)
        ]
        why = (
            f"trains with {algorithm}, and no hyper-parameters for it are known near {batch:,} samples a step, the "
            f"batch for these GPUs; known are {', '.join(known)}"
        )
        setting = f"hyperparameters={known[0]}"
        rest = ", or set optimizer.learning_rate and the other values of the optimizer"
    elif phases:
        length = phases[0]["max_sequence_length"]
        why = (
            f"has a phase of {length} tokens, which needs shards of that length (`podium data prepare "
            f"--max-sequence-length {length}`), for whose folder there is no option"
        )
        first = f"{{max_sequence_length: {length}, share: {phases[0]['share']}, store: FOLDER}}"
        setting, rest = f"'phases=[{first}, {{max_sequence_length: 512}}]'", ""
    else:
        return
    raise UsageError(
        f"--recipe {recipe}: {why}. Write the file without --recipe, and run it by `podium run NAME --recipe {recipe} "
        f"--set {setting}`{rest}"
    )


def nearest_set(gpus: int, model: str) -> HyperparameterSet:
    """Return the published LAMB set for BERT-large whose GPUs are nearest in number, of the same kind first.

    Kinds are GPUs from Hopper on, and older ones. An unknown GPU is taken for an older one, whose batches are smaller.
    """
    kind = find_accelerator(model)
    is_new = kind is not None and kind.compute_capability is not None and kind.compute_capability >= HOPPER

    def distance(known: HyperparameterSet) -> tuple[bool, float]:
        return min(_distance(one, gpus, is_new) for one in known.published_on)

    published = [one for one in hyperparameter_sets().values() if one.published_on and one.algorithm == "lamb"]
    return min(published, key=distance)


def _distance(published_on: str, gpus: int, is_new: bool) -> tuple[bool, float]:
    """Distance from GPUs such as `8 H100`: whether they are of another kind, then the ratio of the numbers."""
    number, _, name = published_on.partition(" ")
    kind = find_accelerator(name)
    assert kind is not None and kind.compute_capability is not None
    return (kind.compute_capability >= HOPPER) != is_new, abs(math.log(int(number) / gpus))


def _accumulation_steps(local: int, largest: int) -> int:
    """Return the fewest micro-batches of equal size, at most `largest` samples each."""
    return next(steps for steps in range(1, local + 1) if local % steps == 0 and local // steps <= max(1, largest))


def _max_samples(known: HyperparameterSet) -> int:
    decay = int(known.optimizer["decay_steps"]) * known.used_at[0]
    wanted = int((known.samples or decay) * MAX_SAMPLES_SHARE)
    return round(wanted, -5)


def as_json(name: str, path: Path, draft: Draft) -> Mapping[str, Any]:
    """Return a new system as a JSON object."""
    return {
        "name": name,
        "file": str(path),
        "notes": list(draft.notes),
        "launch": dict(draft.launch),
        "bert": dict(draft.bert),
        "reproduces": dict(draft.reproduces) or None,
    }
