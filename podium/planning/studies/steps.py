"""Studies of a step and a run by the cost model: the size of a bucket, and what each contribution is worth."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_samples, read_scores
from podium.config.load import load_system
from podium.core.errors import WorkError
from podium.planning.prediction.buckets import fill_buckets, gradients_of
from podium.planning.prediction.constants import Constants, load_constants
from podium.planning.prediction.from_config import plan_of_config
from podium.planning.prediction.plan import FULL, Clipping, Plan, clipping_seconds
from podium.planning.prediction.predict import network_of, predict, step_of
from podium.planning.prediction.samples_to_target import Estimate
from podium.planning.studies.balance import SYSTEM
from podium.planning.studies.study import Cell, Chart, Line, Study, Table

WAYS: tuple[Clipping, ...] = ("bucket", "after", "before")
SIZES = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 25.0, 32.0, 50.0, 64.0, 100.0, 200.0, 400.0)
TOGETHER = (
    "balancing: random samples",
    "clipping: before reduction",
    "optimizer: LAMB at 16,384",
    "wire: fp32",
)
ALL = "all: random, before, LAMB, fp32"
FLAT = 0.01  # sizes whose step is longer by at most this share count as the optimum's equals


def buckets(sizes: Sequence[float] = SIZES, system: str = SYSTEM) -> Study:
    """A step by the size of a bucket and by when gradients are clipped."""
    constants = load_constants()
    plan = plan_of_config(load_system(system), None, constants)
    network = network_of(plan, constants)
    gradients = gradients_of(plan.size, float(plan.lengths.means[0]))

    def milliseconds(way: Clipping | None, size: float) -> float:
        return 1000 * step_of(replace(plan, clipping=way, bucket_mib=size), network, constants).seconds

    steps = {way: [milliseconds(way, size) for size in sizes] for way in WAYS}
    rows: list[tuple[Cell, ...]] = [
        (size, len(fill_buckets(gradients, plan.gradient_bytes, size)), *[steps[way][number] for way in WAYS])
        for number, size in enumerate(sizes)
    ]
    optimum_rows: list[tuple[Cell, ...]] = []
    for way in WAYS:
        least = min(steps[way])
        flat = [size for size, value in zip(sizes, steps[way], strict=True) if value <= (1 + FLAT) * least]
        best = sizes[steps[way].index(least)]
        optimum_rows.append((way, best, least, f"{min(flat):g} to {max(flat):g}", max(steps[way]) / least - 1))
    published = plan.bucket_mib or 25.0
    parts = [_parts(replace(plan, clipping=way, bucket_mib=published), constants) for way in WAYS]
    bucket_step, before_step = (milliseconds(way, published) for way in ("bucket", "before"))
    name = f"{plan.machine.ranks:,} A100s, {plan.gradient_bytes * 8}-bit wire"
    return Study(
        "buckets",
        "Which size of bucket is best, and what does clipping before, after or by bucket cost?",
        (
            f"By bucket the optimum is {optimum_rows[0][1]:g} MiB on the wire; from {optimum_rows[0][3]} MiB a step is "
            f"at most {FLAT:.0%} longer.",
            f"At {published:g} MiB clipping before the reduction takes {before_step:.1f} ms a step, by bucket "
            f"{bucket_step:.1f} ({1 - bucket_step / before_step:.0%} less): the pass for the norm costs the same, and "
            "what differs is that nothing is sent until backward has ended.",
            "The last bucket has the word embedding, is complete when backward ends, and is exposed at every size.",
        ),
        (
            Table(
                f"A step by size of bucket, ms ({name})",
                "predicted by the model",
                ("MiB on the wire", "buckets", *WAYS),
                ("g", "d", ".1f", ".1f", ".1f"),
                tuple(rows),
            ),
            Table(
                "The optimum, and how flat it is",
                "predicted by the model",
                ("clipping", "MiB", "a step, ms", f"within {FLAT:.0%}, MiB", "worst size, above"),
                ("", "g", ".1f", "", ".1%"),
                tuple(optimum_rows),
            ),
            Table(
                f"What a step consists of at {published:g} MiB, ms",
                "predicted by the model",
                ("clipping", "compute", "waiting", "clip", "sent", "exposed", "update", "a step"),
                ("", *[".2f"] * 7),
                tuple((way, *values) for way, values in zip(WAYS, parts, strict=True)),
            ),
        ),
        Chart(
            f"A predicted step by size of bucket, {name}",
            "MiB of a bucket on the wire",
            "ms",
            tuple(Line(f"clipped {way}", tuple(sizes), tuple(steps[way])) for way in WAYS),
            log_x=True,
        ),
    )


def _parts(plan: Plan, constants: Constants) -> tuple[float, ...]:
    """Milliseconds of compute, waiting, passes for clipping, all sending, exposed sending, optimizer, and the step."""
    network = network_of(plan, constants)
    step = step_of(plan, network, constants)
    gradients = gradients_of(plan.size, float(plan.lengths.means[0]))
    sent = sum(network.all_reduce(b.size) for b in fill_buckets(gradients, plan.gradient_bytes, plan.bucket_mib))
    clipping = clipping_seconds(plan, constants)
    parts = (step.compute, step.imbalance, clipping, sent, step.communication, step.optimizer - clipping, step.seconds)
    return tuple(1000 * part for part in parts)


def contributions(system: str = SYSTEM) -> Study:
    """What Samsung's run is predicted to take without each of its contributions, and without all of them."""
    constants = load_constants()
    plan = plan_of_config(load_system(system), None, constants)
    rounds = _samsung()
    tables, charted, speeds = [], {}, {}
    for name, (score, samples) in rounds.items():
        whole = replace(plan, samples=samples)
        without = _without(whole)
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
    sums = sum(float(worth[name] or 0) for name in TOGETHER)
    together = float(worth[ALL] or 0)
    scores = " and ".join(f"{score:.1f} s (round {name})" for name, (score, _) in rounds.items())
    return Study(
        "contributions",
        f"What is each contribution worth in {scores}?",
        (
            "Worth most first: " + "; ".join(f"{name} {float(worth[name] or 0):+.1f} s" for name in ordered) + ".",
            "One at a time, random samples, clipping before the reduction, LAMB at 16,384 and fp32 add up to "
            f"{sums:+.1f} s; together they are worth {together:+.1f} s.",
            *_same_size_with_lamb(plan),
            f"The model's step is that of NVIDIA's code: round {newest} is predicted {speeds[newest]:.2f} times as "
            "fast as Samsung's runs were, so times are given as ratios and put on the published scores. The interval "
            "of each prediction is wide, that of the ratios is not known.",
        ),
        (*tables, _samples_table()),
        Chart(
            "What the scores would be longer by without each contribution",
            "s of the published score",
            "",
            tuple(
                Line(f"round {name}", tuple(float(row[-1] or 0) for row in rows[1:]), ())
                for name, rows in charted.items()
            ),
            names=tuple(str(row[0]) for row in charted[newest][1:]),
        ),
    )


def _same_size_with_lamb(plan: Plan) -> list[str]:
    """A finding for each published system of as many GPUs that trained with LAMB."""
    own = plan.machine.adapters
    return [
        f"{run.submitter}'s LAMB at {run.global_batch_size:,} was published with {run.score_seconds:.1f} s on as many "
        f"A100s, with {run.adapters[0]} adapters a node for the {own[0]} here and gradients shared out in slices: what "
        "the batch is worth depends on the network."
        for run in read_runs()
        if (run.optimizer, run.gpus) == ("lamb", plan.machine.ranks)
        and run.republished_from is None
        and run.adapters is not None
        and own is not None
    ]


def _without(plan: Plan) -> dict[str, Plan]:
    """The plan without each contribution, and what is done in its place."""
    lamb = _lamb(16_384)
    random, before, wide = {"strategy": "random"}, {"clipping": "before"}, {"gradient_bytes": FULL}
    adam: dict[str, object] = {"optimizer": "lamb", "samples": lamb}
    changes: dict[str, dict[str, object]] = {
        "balancing: random samples": dict(random),
        "clipping: before reduction": dict(before),
        "clipping: after reduction": {"clipping": "after"},
        "optimizer: LAMB at 16,384": adam,
        "and batch: LAMB at 4,096": {  # whose 4 samples a rank presorting refuses
            "optimizer": "lamb",
            "samples": _lamb(4096),
            "global_batch_size": 4096,
            "strategy": "exchanged",
        },
        "wire: fp32": dict(wide),
        ALL: {**random, **before, **adam, **wide},
    }
    return {name: replace(plan, **change) for name, change in changes.items()}  # type: ignore[arg-type]


def _samsung() -> dict[str, tuple[float, Estimate]]:
    """Score and samples of Samsung's 1,024 A100s by round."""
    (score,) = (one for one in read_scores() if one.submitter == "Samsung")
    (first,) = (one for one in read_samples() if (one.submitter, one.round) == ("Samsung", score.round))
    run = next(r for r in read_runs() if r.submitter == "Samsung" and r.gpus == 1024 and r.republished_from is None)
    second = SamplesToTarget.of(run)
    return {
        score.round: (score.score_seconds, Estimate(first.mean, first.least, first.greatest)),
        run.round: (run.score_seconds, Estimate(second.mean, second.least, second.greatest)),
    }


def _lamb(batch: int) -> Estimate:
    """Samples to target that LAMB was published with at a batch size in rounds 2.0 and 2.1, by the mean of systems."""
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
    """Published samples to target and scores of LAMB and ADAM by batch size."""
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
