"""`podium systems new --from PUBLISHED`: a system file from a published result: its description and its logs.

PUBLISHED is a folder of results (results/SYSTEM, with systems/SYSTEM.json beside results/), or the name of a result in
the built-in tables (benchmarks/bert/published), which have times and samples, but neither description nor
hyper-parameters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bert.published.hyperparameters import HyperparameterSet, hyperparameter_sets
from benchmarks.bert.published.reading import PublishedRun, PublishedScore, read_runs, read_scores
from benchmarks.bert.sizes import LARGE, SIZES
from podium.comparison.load import RunCache, load_results
from podium.comparison.result import Result
from podium.config.load import recipe_files
from podium.config.schema import Description, OptimizerSettings, is_stated
from podium.core.errors import UsageError
from podium.core.text import did_you_mean, format_list, one_line, short_repr
from podium.mllog.run import BERT, Run
from podium.mllog.system import parse_count
from podium.planning.accelerators import require_supported
from podium.system_files.compose import Draft, data_settings
from podium.system_files.recipes import IMPLEMENTATION

MAX_FIELD = 300  # characters of a field of the description
LOGGED = {
    "learning_rate": ("opt_base_learning_rate",),
    "beta1": ("opt_lamb_beta_1", "opt_adamw_beta_1", "opt_adam_beta_1"),
    "beta2": ("opt_lamb_beta_2", "opt_adamw_beta_2", "opt_adam_beta_2"),
    "epsilon": ("opt_lamb_epsilon", "opt_epsilon", "opt_adamw_epsilon"),
    "weight_decay": ("opt_lamb_weight_decay_rate", "opt_adamw_weight_decay", "opt_weight_decay"),
    "warmup_steps": ("opt_learning_rate_warmup_steps", "num_warmup_steps"),
    "start_warmup_step": ("start_warmup_step",),
    "decay_from": ("opt_learning_rate_decay_from",),
    "decay_steps": ("opt_learning_rate_training_steps",),
    "decay_power": ("opt_lamb_learning_rate_decay_poly_power",),
    "end_learning_rate": ("opt_end_learning_rate",),
}  # key of `bert.optimizer` → keys of logs, the first that a log has
WHOLE = ("warmup_steps", "start_warmup_step", "decay_from", "decay_steps")
NEVER_LOGGED = (
    "paths of the data and of the checkpoint",
    "precision, dropout and gradient clipping",
    "the container and its image",
    "binding of processes to cores and the network's settings",
    "the number of processes of a node (one for each accelerator is assumed)",
)
PACKED_ABOVE = 1.5  # samples of a row of the batch, from which on rows are packed: published ones have about 2
SAME = 1e-6  # relative difference of equal hyper-parameters
ROOM = 1.5  # max_samples, relative to the most samples that a published run needed


@dataclass(frozen=True)
class Published:
    """What is known of a published result."""

    round: str
    submitter: str
    system: str
    nodes: int | None
    accelerators: int | None  # in all nodes; 0 for CPUs
    accelerator: str
    global_batch_size: int
    seconds: tuple[float, ...]  # of the runs that reached the target
    samples: tuple[float, ...]  # to the target, of these runs, where logged
    source: str  # for the comment: where the values were read
    division: str = "open"
    description: Mapping[str, str] = field(default_factory=dict)
    accumulation_steps: int | None = None
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # by keys of `bert.optimizer`, as logged
    algorithm: str | None = None  # None: not stated
    local_rows: float | None = None  # rows of a micro-batch of a process, where logged
    trained: tuple[float, ...] = ()  # samples that the runs trained on
    family: str | None = None  # whose code it ran, where that is known
    size: str = LARGE.name
    unclear: tuple[str, ...] = ()

    unknown_hardware: str = ""  # why nodes or accelerators are not known; empty where they are

    @property
    def name(self) -> str:
        return f"{self.round} {self.submitter} {self.system}"

    @property
    def rows(self) -> float | None:
        """Rows of a global batch, fewer than its samples if rows are packed; None where they are not known."""
        if self.local_rows is None or self.accelerators is None:
            return None
        workers = self.accelerators or (self.nodes or 1) * _sockets(self.description)
        return self.local_rows * workers * (self.accumulation_steps or 1)


def find_published(text: str, nodes: int | None = None, gpus: int | None = None) -> Published:
    """Return the published result of a folder, or of a name in the built-in tables.

    `nodes` and `gpus` of a node are for results whose description does not state them. Raises UsageError if they are
    missing there, or given elsewhere; if it is neither a folder nor a name; if the folder has no result of BERT, or
    several.
    """
    path = Path(text)
    found = from_result(_only_result(path)) if path.exists() else _find_in_tables(text)
    if not found.unknown_hardware:
        given = "--nodes" if nodes is not None else "--gpus"
        if nodes is not None or gpus is not None:
            raise UsageError(f"{given}: with --from the published result states it; leave it out, and edit the file")
        return found
    if nodes is None or gpus is None:
        raise UsageError(
            f"{text}: {found.unknown_hardware}, and its logs do not state the number of nodes and accelerators; name "
            "them with --nodes and --gpus (of a node; 0 for CPUs)"
        )
    stated = f"the description ({found.unknown_hardware}): nodes and accelerators are those of --nodes and --gpus"
    return replace(found, nodes=nodes, accelerators=nodes * gpus, unclear=(*found.unclear, stated))


def _find_in_tables(text: str) -> Published:
    rows: list[PublishedRun | PublishedScore] = [*read_runs(), *read_scores()]
    tables = {_key(one): one for one in rows}
    wanted = "/".join(text.replace(" ", "/").split("/")).removeprefix("v").casefold()
    found = [one for key, one in tables.items() if wanted in (key.casefold(), key.partition("/")[2].casefold())]
    if not found:
        raise UsageError(
            f"--from {short_repr(text)}: there is no such folder, and no such name in the built-in tables"
            f"{did_you_mean(text, list(tables))}; name a folder results/SYSTEM of a round's repository, or one of "
            f"{len(tables)} results as ROUND/SUBMITTER/SYSTEM, such as {next(iter(tables))}"
        )
    return from_table(found[-1])  # of several rounds the last


def _key(row: PublishedRun | PublishedScore) -> str:
    return f"{row.round}/{row.submitter}/{row.system}"


def _only_result(path: Path) -> Result:
    results = [one for one in load_results([path], RunCache(None)).results if one.benchmark == BERT and one.runs]
    if not results:
        raise UsageError(f"{path}: has no result of BERT; name the folder results/SYSTEM of a submitter")
    if len(results) > 1:
        names = format_list([one.source for one in results], most=4)
        raise UsageError(f"{path}: has {len(results)} results of BERT; name one of them: {names}")
    return results[0]


def from_result(result: Result) -> Published:
    """Return what a result's description and logs state."""
    runs = [run for run in result.runs if run.converged] or list(result.runs)
    logged = [_logged_values(run) for run in runs]
    first = runs[0].hyperparameters
    batch = result.global_batch_size or next((int(run.global_batch_size) for run in runs if run.global_batch_size), 0)
    if batch < 1:
        raise UsageError(f"{result.source}: its logs state no global_batch_size; name another result")
    unclear = []
    differing = sorted({key for one in logged for key in one if one.get(key) != logged[0].get(key)})
    if differing:
        unclear.append(f"the runs differ in {', '.join(differing)}; those of the first one are used")
    accumulation = _whole(first.get("gradient_accumulation_steps"))
    local = first.get("d_batch_size")
    unknown = ""
    if result.nodes is None or result.accelerators is None:
        file = f"systems/{result.system}.json"
        about = (one for one in result.anomalies if one.startswith("systems/"))
        lacking = "states no number of nodes or accelerators" if result.description else "is missing"
        unknown = next(about, f"{file} {lacking}")
    size = next(
        (one.name for one in SIZES.values() if {run.eval_samples for run in runs} == {one.evaluation_samples}),
        LARGE.name,
    )
    return Published(
        round=result.round or "own",
        submitter=result.submitter,
        system=result.system,
        nodes=result.nodes,
        accelerators=result.accelerators,
        accelerator=result.accelerator or "",
        global_batch_size=batch,
        seconds=tuple(run.seconds for run in result.converged if run.seconds is not None),
        samples=tuple(run.samples for run in result.converged if run.samples is not None),
        source=f"logs of {len(result.runs)} runs",
        division=result.division or "open",
        description=result.description,
        accumulation_steps=accumulation,
        optimizer=logged[0],
        algorithm=_algorithm(first),
        local_rows=None if local is None else float(local),
        trained=tuple(run.train_samples for run in runs if run.train_samples is not None),
        size=size,
        unclear=tuple(unclear),
        unknown_hardware=unknown,
    )


def from_table(row: PublishedRun | PublishedScore) -> Published:
    """Return what the built-in tables have of a result: no description, and a batch without hyper-parameters."""
    runs = row.converged if isinstance(row, PublishedRun) else [(row.score_seconds, row.mean_samples)]
    unclear = ["the description: of the built-in tables only the accelerators are known"]
    if isinstance(row, PublishedScore):
        unclear.append("single runs: of round 1.1 the tables have means only, so that no test is possible")
    return Published(
        round=f"v{row.round}",
        submitter=row.submitter,
        system=row.system,
        nodes=row.nodes,
        accelerators=row.gpus,
        accelerator={"a100_sxm": "NVIDIA A100-SXM", "a100_pcie": "NVIDIA A100-PCIe"}.get(row.gpu, row.gpu),
        global_batch_size=row.global_batch_size,
        seconds=tuple(seconds for seconds, _ in runs),
        samples=tuple(samples for _, samples in runs),
        source="the built-in tables",
        division=row.division if isinstance(row, PublishedRun) else "closed",
        accumulation_steps=row.accumulation_steps,
        algorithm=row.optimizer,
        family=row.family,
        unclear=tuple(unclear),
    )


def _logged_values(run: Run) -> dict[str, Any]:
    """Return the optimizer's values by keys of `bert.optimizer`, as far as a log states plausible ones."""
    found: dict[str, Any] = {}
    for key, names in LOGGED.items():
        value = next((run.hyperparameters[name] for name in names if name in run.hyperparameters), None)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            if key not in WHOLE:
                found[key] = float(value)
            elif float(value).is_integer() and abs(value) < 1e9:
                found[key] = int(value)
    return found


def _algorithm(hyperparameters: Mapping[str, Any]) -> str | None:
    name = str(hyperparameters.get("opt_name", "")).casefold()
    return name if name in ("lamb", "adamw") else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and 1 <= value < 1e6 and float(value).is_integer() else None


def _sockets(description: Mapping[str, str]) -> int:
    return parse_count(description.get("host_processors_per_node")) or 1


def nearest_recipe(published: Published) -> tuple[str, str]:
    """Return the recipe that is nearest to how a result was trained, and the reason as a sentence fragment."""
    submitter, batch = published.submitter.casefold(), published.global_batch_size
    if "samsung" in submitter or published.family == "samsung":
        return "presorted", "Samsung published it as its method, with AdamW, which its logs call LAMB"
    if ("baidu" in submitter and published.family != "nvidia") or published.family == "baidu":
        return "exchanged", "Baidu published it as its method"
    if published.rows is not None and batch / published.rows >= PACKED_ABOVE:
        return "packed", (
            f"logs state d_batch_size, by which a step has {published.rows:,.0f} rows for {batch:,} samples: "
            f"{batch / published.rows:.3g} sequences are packed into a row"
        )
    if "graphcore" in submitter:
        return "packed", "Graphcore published packing (arXiv 2107.02027)"
    if published.rows is not None and published.trained and any(count % batch for count in published.trained):
        unit = published.rows / max(1, published.accumulation_steps or 1)
        if any(count % unit for count in published.trained):
            return "packed", "train_samples are no multiple of a step's samples, as with packed rows"
    if published.rows is not None:
        return "indexed", (
            f"logs state d_batch_size, by which a step has a row for each of its {batch:,} samples: they are not "
            "packed; whether their padding was removed no log states"
        )
    return "indexed", "no log states whether samples were packed or padded; this one trains them without padding"


def draft_from(published: Published, name: str, recipe: str | None = None, data: str = "data") -> Draft:
    """Return the draft of a system that reproduces a published result."""
    nearest, why = nearest_recipe(published)
    if recipe is not None:
        names = [path.stem for path in recipe_files(IMPLEMENTATION)]
        if recipe not in names:
            raise UsageError(
                f"--recipe: there is no recipe {recipe!r}{did_you_mean(recipe, names)}; the recipes are "
                f"{', '.join(names)}"
            )
        why = f"{'as chosen' if recipe == nearest else f'as chosen; nearest is {nearest}'}, since {why}"
    chosen = recipe or nearest
    algorithm = "adamw" if chosen == "presorted" and published.size == LARGE.name else (published.algorithm or "lamb")
    unclear, comments = list(published.unclear), dict[str, str]()
    launch = _launch(published, unclear)
    ranks = launch["nodes"] * launch["processes_per_node"]
    bert: dict[str, Any] = {"implementation": IMPLEMENTATION, "recipe": chosen, "size": published.size}
    if published.size == LARGE.name:
        bert |= data_settings(data)
        comments["data"] = "No log states where the data was. Yours: docs/data.md."
    bert["global_batch_size"] = published.global_batch_size
    steps = _accumulation(published, ranks, unclear)
    if steps != 1:
        bert["gradient_accumulation_steps"] = steps
    optimizer, known = _optimizer(published, algorithm, unclear)
    most = max((*published.samples, known.samples or 0 if known else 0), default=0)
    decay = (known.optimizer if known else optimizer).get("decay_steps", 1)
    bert["max_samples"] = _max_samples(most, decay * published.global_batch_size)
    comments["max_samples"] = "A run that has not reached the target by then ends: 1.5 times the most published."
    if known is not None:
        bert["hyperparameters"] = known.name
        comments["hyperparameters"] = (
            f"Of {known.source} (benchmarks/bert/published/hyperparameters.yaml): {_list_values(known)}."
        )
        if published.size != LARGE.name or algorithm != _recipe_algorithm(chosen):
            bert["optimizer"] = {"algorithm": algorithm}
    else:
        bert["optimizer"] = {"algorithm": algorithm, **optimizer}
        comments["optimizer"] = "As logged."
    comments["recipe"] = f"The nearest: {why}." if recipe is None else f"{why}."
    unknown = [*unclear, *NEVER_LOGGED]
    head = (
        f"Reproduces MLPerf Training {published.name}, from {published.source}. Run it with `podium run {name}`, then "
        f"`podium compare --published {name}`.",
        f"Not in the logs, or unclear: {'; '.join(unknown)}.",
        "The description is that of the published system; replace it by that of yours before you publish a result.",
    )
    reproduces: dict[str, Any] = {
        "round": _bounded(published.round),
        "submitter": _bounded(published.submitter),
        "system": _bounded(published.system),
        "seconds": [round(value, 3) for value in published.seconds[:1000]],
        "samples": [round(value) for value in published.samples[:1000]],
        "size": published.size,
        "global_batch_size": published.global_batch_size,
    }
    if published.accelerators is not None:
        reproduces |= {"accelerators": published.accelerators, "accelerator": _bounded(published.accelerator)}
    notes = (f"recipe {chosen}: {why}", *(f"not in the logs, or unclear: {one}" for one in unknown))
    return Draft(head, _description(published, name, launch), launch, bert, reproduces, comments, notes)


def _list_values(known: HyperparameterSet) -> str:
    return ", ".join(f"{key} {value}" for key, value in known.optimizer.items() if key != "algorithm")


def _recipe_algorithm(recipe: str) -> str:
    return "adamw" if recipe == "presorted" else "lamb"


def _bounded(text: str) -> str:
    return one_line(text)[:MAX_FIELD]


def _description(published: Published, name: str, launch: Mapping[str, Any]) -> dict[str, str]:
    """Return MLPerf's fields that the description states, bounded and printable, with those that Podium checks set."""
    keys = [one.alias or key for key, one in Description.model_fields.items()]
    own = ("submitter", "status", "division", "system_name", "number_of_nodes", "accelerators_per_node")
    given = published.description
    stated = {key: _bounded(given[key]) for key in keys if is_stated(given.get(key, ""))}
    fields = {
        "division": published.division,
        "system_name": name,
        "number_of_nodes": str(launch["nodes"]),
        "accelerators_per_node": str(launch["processes_per_node"] if launch["device"] == "cuda" else 0),
    }
    if published.accelerator and launch["device"] == "cuda":
        fields["accelerator_model_name"] = _bounded(published.accelerator)
    return {**fields, **{key: value for key, value in stated.items() if key not in (*own, *fields)}}


def _launch(published: Published, unclear: list[str]) -> dict[str, Any]:
    nodes = published.nodes or 1
    on_cpu = published.accelerators == 0
    per_node = _sockets(published.description) if on_cpu else max(1, (published.accelerators or nodes) // nodes)
    if not on_cpu:
        require_supported(published.accelerator, f"--from: {published.name}")
    divisor = _largest_divisor(per_node, published.global_batch_size // nodes) if nodes else 1
    if published.global_batch_size % (nodes * per_node):
        unclear.append(
            f"{published.global_batch_size:,} samples cannot be divided by {nodes * per_node} processes: {divisor} a "
            "node are started, as where a model is split over several accelerators"
        )
        per_node = divisor
    launch: dict[str, Any] = {"launcher": "torchrun" if nodes == 1 else "slurm", "nodes": nodes}
    launch |= {"processes_per_node": per_node, "device": "cpu" if on_cpu else "cuda", "caches": "samples"}
    return launch


def _largest_divisor(limit: int, number: int) -> int:
    return next((one for one in range(min(limit, number), 1, -1) if number % one == 0), 1)


def _accumulation(published: Published, ranks: int, unclear: list[str]) -> int:
    wanted, local = published.accumulation_steps or 1, published.global_batch_size // ranks
    if published.accumulation_steps is None:
        unclear.append("gradient accumulation: none is assumed")
    if local % wanted == 0:
        return wanted
    steps = _largest_divisor(wanted, local)
    unclear.append(
        f"{wanted} accumulation steps are logged, which do not divide {local} samples a process: {steps} are used"
    )
    return steps


def _optimizer(
    published: Published, algorithm: str, unclear: list[str]
) -> tuple[dict[str, Any], HyperparameterSet | None]:
    """Return the logged values, or the named set that has them or stands for them."""
    logged = dict(published.optimizer)
    sets = [one for one in hyperparameter_sets().values() if (one.size, one.algorithm) == (published.size, algorithm)]
    same = next((one for one in sets if _is_same(one, published, logged)), None)
    if same is not None:
        of_set = OptimizerSettings.model_validate(same.optimizer)  # adds defaults
        differing = sorted(key for key, value in logged.items() if _differs(getattr(of_set, key), value))
        if differing and logged:
            unclear.append(
                f"{', '.join(differing)}: the logs state other values than {same.name}, which explains them in its file"
            )
        return logged, same
    required = [key for key, one in OptimizerSettings.model_fields.items() if one.is_required() and key != "algorithm"]
    missing = [key for key in required if key not in logged]
    if not missing:
        if logged.get("decay_power") == 1.0:
            del logged["decay_power"]
        if logged["weight_decay"] == 0 and algorithm == "lamb":
            unclear.append("weight decay: logged as 0, which NVIDIA's code of rounds up to 2.1 logged whatever it used")
        return {
            key: value
            for key, value in logged.items()
            if not (key in ("start_warmup_step", "decay_from") and not value)
        }, None
    if not sets:
        raise UsageError(f"{published.name}: its logs do not state {', '.join(missing)}, and no set stands for them")
    nearest = min(sets, key=lambda one: abs(math.log(one.used_at[0] / published.global_batch_size)))
    unclear.append(f"{', '.join(missing)}: {nearest.name} is used, the set of the nearest batch ({nearest.source})")
    return logged, nearest


def _is_same(known: HyperparameterSet, published: Published, logged: Mapping[str, Any]) -> bool:
    """Whether a set is that of a result: by its source, or by equal values where the logs have them."""
    if published.global_batch_size not in known.used_at:
        return False
    if f"v{known.source}" == published.name:
        return True
    keys: tuple[str, ...] = ("learning_rate", "beta1", "beta2", "weight_decay", "decay_steps", "warmup_steps")
    if known.algorithm == "adamw" and logged:  # Samsung's schedule is logged otherwise than it was
        keys = ("learning_rate", "beta1", "beta2")
    return bool(logged) and not any(key not in logged or _differs(known.optimizer[key], logged[key]) for key in keys)


def _differs(a: float, b: float) -> bool:
    return not math.isclose(a, b, rel_tol=SAME, abs_tol=1e-12)


def _max_samples(most: float, until_decay: float) -> int:
    wanted = ROOM * most if most else until_decay
    unit = 100_000 if wanted > 1e6 else 1000 if wanted > 1e4 else 1
    return max(1, math.ceil(wanted / unit) * unit)
