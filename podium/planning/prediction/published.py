"""Published A100 systems as plans, and which of them the constants are fitted to.

Decided before any error was computed: the fit uses all systems with eight GPUs in all (one node of eight or two of
four) of rounds 2.0 and 2.1, NVIDIA's 64 GPUs of 2.0 and NVIDIA's 1,024 GPUs of 2.0; all others are tested. Left out
are runs that were republished unchanged in 2.1, and MosaicML's two open systems, which train another model code.
"""

from collections.abc import Sequence
from functools import cache

from benchmarks.bert.lengths import quantiles, reference_masked_counts, wikipedia_histogram
from benchmarks.bert.published.reading import PublishedRun, PublishedScore, SamplesToTarget, read_samples
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.plan import HALF, Clipping, Lengths, Machine, Plan, published_costs
from podium.planning.prediction.predict import predict
from podium.planning.prediction.samples_to_target import curve

ALSO_FITTED = ("2.0 NVIDIA dgxa100_n8_ngc22.04_pytorch", "2.0 NVIDIA dgxa100_n128_ngc22.04_pytorch")
OTHER_CODE = ("mosaicml",)
POOL = 262_144  # samples that stand for Wikipedia's
# By family: Baidu's and Samsung's as they describe them; NVIDIA's and what is built on it are taken to be Baidu's.
STRATEGY = {"nvidia": "exchanged", "baidu": "exchanged", "hazyresearch": "exchanged", "samsung": "presorted"}
# By family and samples of a local batch, where published counts are not those that the lengths give.
STRATA_COUNTS = {("samsung", 12): (4, 2, 2, 4)}
UNSHARDED = ("samsung",)  # families whose optimizer is not sharded over ranks: PyTorch DDP, as described
FITTED_FAMILIES = ("nvidia", "baidu", "hazyresearch")  # whose code ran on systems that the constants are fitted to
CLIPPED: dict[str, Clipping] = {"samsung": "bucket"}  # where clipping overlaps as described; else part of the rates
BUCKET_MIB = 25.0  # in half precision: with them Samsung's run had 22 buckets


def is_fitted(run: PublishedRun) -> bool:
    """Whether the constants are fitted on this run."""
    return _counts(run) and (run.gpus == 8 or run.name in ALSO_FITTED)


def is_tested(run: PublishedRun) -> bool:
    """Whether this run is predicted by constants and samples that were fitted without it."""
    return _counts(run) and not is_fitted(run)


def _counts(run: PublishedRun) -> bool:
    return run.republished_from is None and run.family not in OTHER_CODE


def known_samples(runs: Sequence[PublishedRun]) -> list[SamplesToTarget]:
    """Samples to target of rounds 1.0 and 1.1 and of the runs that are fitted on."""
    return [*read_samples(), *(SamplesToTarget.of(run) for run in runs if is_fitted(run))]


def all_samples(runs: Sequence[PublishedRun]) -> list[SamplesToTarget]:
    """Of all published systems that count, for predictions of what is not published."""
    return [*read_samples(), *(SamplesToTarget.of(run) for run in runs if _counts(run))]


@cache
def wikipedia() -> Lengths:
    """The lengths of Wikipedia's samples, for which those at evenly spaced quantiles stand."""
    tokens = quantiles(wikipedia_histogram(), POOL)
    return Lengths(tokens, reference_masked_counts(tokens))


def plan_of(run: PublishedRun | PublishedScore, constants: Constants, published: Sequence[SamplesToTarget]) -> Plan:
    """The plan of a published system, samples to target by the curve through `published`."""
    samples = curve(published, run.optimizer)
    assert samples is not None, "the optimizers of published systems are known"
    return Plan(
        machine=Machine(run.gpu, run.nodes, run.gpus_per_node, run.adapters),
        global_batch_size=run.global_batch_size,
        lengths=wikipedia(),
        costs=published_costs(run.gpu, constants),
        samples=samples.at(run.global_batch_size),
        strategy=STRATEGY[run.family],
        accumulation_steps=run.accumulation_steps,
        strata_counts=STRATA_COUNTS.get((run.family, run.global_batch_size // run.gpus)),
        optimizer=run.optimizer,
        sharing="none" if run.family in UNSHARDED else "slices",
        gradient_bytes=HALF,
        bucket_mib=BUCKET_MIB,
        clipping=CLIPPED.get(run.family),
        code="fitted" if run.family in FITTED_FAMILIES else "other",
    )


def predicted_rate(
    run: PublishedRun | PublishedScore, constants: Constants, published: Sequence[SamplesToTarget]
) -> float:
    """Sequences per second of a published system, for the samples that it took."""
    return predict(plan_of(run, constants, published), constants, run.mean_samples).sequences_per_second
