"""Studies with the cost model: bucket size and time of clipping, and the worth of each of Samsung's contributions."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_samples, read_scores
from podium.config.load import load_system
from podium.core.errors import WorkError
from podium.planning.prediction.buckets import backward_gradients, fill_buckets
from podium.planning.prediction.constants import Constants, load_constants
from podium.planning.prediction.from_config import plan_from_config
from podium.planning.prediction.plan import FULL_BYTES, Clipping, Plan, clipping_seconds
from podium.planning.prediction.predict import build_network, predict, predict_step
from podium.planning.prediction.samples_to_target import Estimate
from podium.planning.studies.balance import SYSTEM
from podium.planning.studies.study import Cell, Chart, Line, Study, Table

CLIPPING_OPTIONS: tuple[Clipping, ...] = ("bucket", "after", "before")
BUCKET_SIZES_MIB = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 25.0, 32.0, 50.0, 64.0, 100.0, 200.0, 400.0)
COMBINED_CHANGES = (
    "balancing: random samples",
    "clipping: before reduction",
    "optimizer: LAMB at 16,384",
    "wire: fp32",
)
ALL_CHANGES = "all: random, before, LAMB, fp32"
FLAT_TOLERANCE = 0.01  # bucket sizes with a step at most this much longer are reported as equal to the optimum


def buckets(sizes: Sequence[float] = BUCKET_SIZES_MIB, system: str = SYSTEM) -> Study:
    """Study the step time by bucket size and by the time of clipping."""
    constants = load_constants()
    plan = plan_from_config(load_system(system), None, constants)
    network = build_network(plan, constants)
    gradients = backward_gradients(plan.size, float(plan.lengths.means[0]))

    def milliseconds(clipping: Clipping | None, size: float) -> float:
        return 1000 * predict_step(replace(plan, clipping=clipping, bucket_mib=size), network, constants).seconds

    steps = {clipping: [milliseconds(clipping, size) for size in sizes] for clipping in CLIPPING_OPTIONS}
    rows: list[tuple[Cell, ...]] = [
        (
            size,
            len(fill_buckets(gradients, plan.gradient_bytes, size)),
            *[steps[clipping][number] for clipping in CLIPPING_OPTIONS],
        )
        for number, size in enumerate(sizes)
    ]
    optimum_rows: list[tuple[Cell, ...]] = []
    for clipping in CLIPPING_OPTIONS:
        least = min(steps[clipping])
        flat = [
            size for size, value in zip(sizes, steps[clipping], strict=True) if value <= (1 + FLAT_TOLERANCE) * least
        ]
        best = sizes[steps[clipping].index(least)]
        optimum_rows.append(
            (clipping, best, least, f"{min(flat):g} to {max(flat):g}", max(steps[clipping]) / least - 1)
        )
    published = plan.bucket_mib or 25.0
    parts = [
        _step_parts(replace(plan, clipping=clipping, bucket_mib=published), constants) for clipping in CLIPPING_OPTIONS
    ]
    bucket_step, before_step = (milliseconds(clipping, published) for clipping in ("bucket", "before"))
    name = f"{plan.machine.ranks:,} A100s, {plan.gradient_bytes * 8}-bit wire"
    return Study(
        "buckets",
        "Which size of bucket is best, and what does clipping before, after or by bucket cost?",
        (
            f"With clipping by bucket the optimum is {optimum_rows[0][1]:g} MiB on the wire; from {optimum_rows[0][3]} "
            f"MiB a step is at most {FLAT_TOLERANCE:.0%} longer.",
            f"At {published:g} MiB clipping before the reduction takes {before_step:.1f} ms a step, by bucket "
            f"{bucket_step:.1f} ({1 - bucket_step / before_step:.0%} less): the pass for the norm costs the same, but "
            "before the reduction nothing is sent until backward has ended.",
            "The last bucket has the word embedding, is complete when backward ends, and is exposed at every size.",
        ),
        (
            Table(
                f"A step by size of bucket, ms ({name})",
                "predicted by the model",
                ("MiB on the wire", "buckets", *CLIPPING_OPTIONS),
                ("g", "d", ".1f", ".1f", ".1f"),
                tuple(rows),
            ),
            Table(
                "The optimum, and the sizes near it",
                "predicted by the model",
                ("clipping", "MiB", "a step, ms", f"within {FLAT_TOLERANCE:.0%}, MiB", "worst size, above"),
                ("", "g", ".1f", "", ".1%"),
                tuple(optimum_rows),
            ),
            Table(
                f"Parts of a step at {published:g} MiB, ms",
                "predicted by the model",
                ("clipping", "compute", "waiting", "clip", "sent", "exposed", "update", "a step"),
                ("", *[".2f"] * 7),
                tuple((clipping, *values) for clipping, values in zip(CLIPPING_OPTIONS, parts, strict=True)),
            ),
        ),
        Chart(
            f"A predicted step by size of bucket, {name}",
            "MiB of a bucket on the wire",
            "ms",
            tuple(Line(f"clipped {clipping}", tuple(sizes), tuple(steps[clipping])) for clipping in CLIPPING_OPTIONS),
            log_x=True,
        ),
    )


def _step_parts(plan: Plan, constants: Constants) -> tuple[float, ...]:
    """Return the ms of compute, waiting, clipping passes, communication, exposed communication, optimizer and step."""
    network = build_network(plan, constants)
    step = predict_step(plan, network, constants)
    gradients = backward_gradients(plan.size, float(plan.lengths.means[0]))
    sent = sum(network.all_reduce(b.size) for b in fill_buckets(gradients, plan.gradient_bytes, plan.bucket_mib))
    clipping = clipping_seconds(plan, constants)
    parts = (step.compute, step.imbalance, clipping, sent, step.communication, step.optimizer - clipping, step.seconds)
    return tuple(1000 * part for part in parts)


def contributions(system: str = SYSTEM) -> Study:
    """Study the predicted time of Samsung's run without each of its contributions, and without all of them."""
    constants = load_constants()
    plan = plan_from_config(load_system(system), None, constants)
    rounds = _samsung_results()
    tables, charted, speeds = [], {}, {}
    for name, (score, samples) in rounds.items():
        whole = replace(plan, samples=samples)
        without = _plans_without_contributions(whole)
        base = predict(whole, constants)
        rows: list[tuple[Cell, ...]] = []
        for label, changed in {"as trained": whole, **without}.items():
            found = predict(changed, constants)
            ratio = found.seconds / base.seconds
            rows.append(
                (
                    label,
                    changed.samples.mean / 1e6,
                    found.step_milliseconds,
                    found.seconds,
                    found.low,
                    found.high,
                    ratio,
                    score * (ratio - 1),
                )
            )
        charted[name] = rows
        speeds[name] = score / base.seconds
        tables.append(
            Table(
                f"Round {name}, published {score:.1f} s: without each contribution",
                "predicted by the model",
                ("instead", "10⁶ samples", "step, ms", "s", "from", "to", "times", "worth, s"),
                ("", ".3f", ".1f", ".1f", ".1f", ".1f", ".2f", "+.1f"),
                tuple(rows),
            )
        )
    newest = list(charted)[-1]
    worth = {str(row[0]): row[-1] for row in charted[newest]}
    ordered = sorted((name for name in worth if name != "as trained"), key=lambda name: -float(worth[name] or 0))
    sums = sum(float(worth[name] or 0) for name in COMBINED_CHANGES)
    together = float(worth[ALL_CHANGES] or 0)
    scores = " and ".join(f"{score:.1f} s (round {name})" for name, (score, _) in rounds.items())
    return Study(
        "contributions",
        f"What is each contribution worth in {scores}?",
        (
            "In order of worth: " + "; ".join(f"{name} {float(worth[name] or 0):+.1f} s" for name in ordered) + ".",
            "One at a time, random samples, clipping before the reduction, LAMB at 16,384 and fp32 add up to "
            f"{sums:+.1f} s; together they are worth {together:+.1f} s.",
            *_lamb_findings(plan),
            f"The model's step is that of NVIDIA's code: round {newest} is predicted {speeds[newest]:.2f} times as "
            "fast as Samsung's runs, so the worth is the predicted ratio applied to the published score. The interval "
            "of each prediction is wide, and that of the ratios is not known.",
        ),
        (*tables, _samples_table()),
        Chart(
            "Increase of the scores without each contribution",
            "s of the published score",
            "",
            tuple(
                Line(f"round {name}", tuple(float(row[-1] or 0) for row in rows[1:]), ())
                for name, rows in charted.items()
            ),
            names=tuple(str(row[0]) for row in charted[newest][1:]),
        ),
    )


def _lamb_findings(plan: Plan) -> list[str]:
    """Return a finding for each published system with the plan's number of GPUs that trained with LAMB."""
    own = plan.machine.adapters
    return [
        f"{run.submitter}'s LAMB at {run.global_batch_size:,} was published with {run.score_seconds:.1f} s on as many "
        f"A100s, with {run.adapters[0]} adapters per node (here {own[0]}) and reduce-scattered gradients: the worth of "
        "the batch size depends on the network."
        for run in read_runs()
        if (run.optimizer, run.gpus) == ("lamb", plan.machine.ranks)
        and run.republished_from is None
        and run.adapters is not None
        and own is not None
    ]


def _plans_without_contributions(plan: Plan) -> dict[str, Plan]:
    """Return the plan without each contribution, by the name of what replaces it."""
    lamb = _lamb_samples(16_384)
    random, before, wide = {"strategy": "random"}, {"clipping": "before"}, {"gradient_bytes": FULL_BYTES}
    adam: dict[str, object] = {"optimizer": "lamb", "samples": lamb}
    changes: dict[str, dict[str, object]] = {
        "balancing: random samples": dict(random),
        "clipping: before reduction": dict(before),
        "clipping: after reduction": {"clipping": "after"},
        "optimizer: LAMB at 16,384": adam,
        "and batch: LAMB at 4,096": {  # presorting refuses its 4 samples per rank
            "optimizer": "lamb",
            "samples": _lamb_samples(4096),
            "global_batch_size": 4096,
            "strategy": "exchanged",
        },
        "wire: fp32": dict(wide),
        ALL_CHANGES: {**random, **before, **adam, **wide},
    }
    return {name: replace(plan, **change) for name, change in changes.items()}  # type: ignore[arg-type]


def _samsung_results() -> dict[str, tuple[float, Estimate]]:
    """Return the score in seconds and the samples to target of Samsung's 1,024 A100s by round."""
    (score,) = (one for one in read_scores() if one.submitter == "Samsung")
    (first,) = (one for one in read_samples() if (one.submitter, one.round) == ("Samsung", score.round))
    run = next(r for r in read_runs() if r.submitter == "Samsung" and r.gpus == 1024 and r.republished_from is None)
    second = SamplesToTarget.of(run)
    return {
        score.round: (score.score_seconds, Estimate(first.mean, first.least, first.greatest)),
        run.round: (run.score_seconds, Estimate(second.mean, second.least, second.greatest)),
    }


def _lamb_samples(batch: int) -> Estimate:
    """Return LAMB's published samples to target at a batch size in rounds 2.0 and 2.1: the mean over systems.

    Raises WorkError if no such run is published.
    """
    found = [
        SamplesToTarget.of(run)
        for run in read_runs()
        if run.optimizer == "lamb"
        and run.division == "closed"
        and run.global_batch_size == batch
        and run.republished_from is None
    ]
    if not found:
        raise WorkError(f"published figures: no run with LAMB at {batch:,} samples")
    return Estimate(
        mean(one.mean for one in found), min(one.least for one in found), max(one.greatest for one in found)
    )


def _samples_table() -> Table:
    """Return the table of published scores and samples to target of LAMB and ADAM by batch size."""
    runs = [run for run in read_runs() if run.republished_from is None and run.global_batch_size >= 4096]
    (score,) = (one for one in read_scores() if one.submitter == "Samsung")
    (first,) = (one for one in read_samples() if (one.submitter, one.round) == ("Samsung", score.round))
    found = [(SamplesToTarget.of(run), run.gpus, run.score_seconds) for run in runs]
    found.append((first, score.gpus, score.score_seconds))
    rows: list[tuple[Cell, ...]] = [
        (
            f"{one.round} {one.submitter} {one.optimizer}",
            one.global_batch_size,
            gpus,
            seconds,
            one.mean,
            one.least,
            one.greatest,
        )
        for one, gpus, seconds in sorted(found, key=lambda row: (row[0].optimizer, row[0].global_batch_size, row[1]))
    ]
    return Table(
        "Scores and samples to target at large batches",
        "published",
        ("system", "batch", "GPUs", "s", "samples, mean", "least", "greatest"),
        ("", ",d", ",d", ".1f", ",.0f", ",.0f", ",.0f"),
        tuple(rows),
    )
