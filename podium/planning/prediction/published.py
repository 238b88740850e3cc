"""Plans of published A100 systems, and their division into fitted and tested ones.

The division was decided before any error was computed. The fit uses all systems of rounds 2.0 and 2.1 with a total of
eight GPUs (one node of eight or two of four), NVIDIA's 64 GPUs of 2.0 and NVIDIA's 1,024 GPUs of 2.0. All others are
tested, except runs that were republished unchanged in 2.1, and MosaicML's two open systems, which train other model
code.
"""

from collections.abc import Sequence
from functools import cache

from benchmarks.bert.lengths import quantiles, reference_masked_counts, wikipedia_histogram
from benchmarks.bert.published.reading import PublishedRun, PublishedScore, SamplesToTarget, read_samples
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.plan import HALF_BYTES, Clipping, Lengths, Machine, Plan, published_costs
from podium.planning.prediction.predict import predict
from podium.planning.prediction.samples_to_target import fit_curve

ALSO_FITTED = ("2.0 NVIDIA dgxa100_n8_ngc22.04_pytorch", "2.0 NVIDIA dgxa100_n128_ngc22.04_pytorch")
OTHER_CODE_FAMILIES = ("mosaicml",)
POOL_SAMPLES = 262_144  # quantiles that represent all of Wikipedia's samples
# By family: Baidu's and Samsung's as they describe them; NVIDIA's and code based on it are assumed to be like Baidu's.
FAMILY_STRATEGY = {"nvidia": "exchanged", "baidu": "exchanged", "hazyresearch": "exchanged", "samsung": "presorted"}
# By family and local batch size, where the published counts are not proportional to the lengths.
STRATA_COUNTS = {("samsung", 12): (4, 2, 2, 4)}
UNSHARDED_FAMILIES = ("samsung",)  # optimizer not sharded over ranks: PyTorch DDP, as described
FITTED_FAMILIES = ("nvidia", "baidu", "hazyresearch")  # with systems in the fit
FAMILY_CLIPPING: dict[str, Clipping] = {"samsung": "bucket"}  # overlapping, as described; else included in the rates
BUCKET_MIB = 25.0  # in half precision; gives the 22 buckets of Samsung's run


def is_fitted(run: PublishedRun) -> bool:
    """Return whether this run is in the fit of the constants."""
    return _is_included(run) and (run.gpus == 8 or run.name in ALSO_FITTED)


def is_tested(run: PublishedRun) -> bool:
    """Return whether this run is predicted from constants and samples that were fitted without it."""
    return _is_included(run) and not is_fitted(run)


def _is_included(run: PublishedRun) -> bool:
    return run.republished_from is None and run.family not in OTHER_CODE_FAMILIES


def known_samples(runs: Sequence[PublishedRun]) -> list[SamplesToTarget]:
    """Return the samples to target of rounds 1.0 and 1.1 and of the fitted runs, for the back-test."""
    return [*read_samples(), *(SamplesToTarget.of(run) for run in runs if is_fitted(run))]


def all_samples(runs: Sequence[PublishedRun]) -> list[SamplesToTarget]:
    """Return the samples to target of all published systems, for predictions of unpublished systems."""
    return [*read_samples(), *(SamplesToTarget.of(run) for run in runs if _is_included(run))]


@cache
def wikipedia_lengths() -> Lengths:
    """Return the lengths of Wikipedia's samples, represented by POOL_SAMPLES evenly spaced quantiles."""
    tokens = quantiles(wikipedia_histogram(), POOL_SAMPLES)
    return Lengths(tokens, reference_masked_counts(tokens))


def plan_from_published(
    run: PublishedRun | PublishedScore, constants: Constants, published: Sequence[SamplesToTarget]
) -> Plan:
    """Return the plan of a published system, with samples to target from the curve fitted to `published`."""
    samples = fit_curve(published, run.optimizer)
    assert samples is not None, "every published system has a known optimizer"
    return Plan(
        machine=Machine(run.gpu, run.nodes, run.gpus_per_node, run.adapters),
        global_batch_size=run.global_batch_size,
        lengths=wikipedia_lengths(),
        costs=published_costs(run.gpu, constants),
        samples=samples.estimate(run.global_batch_size),
        strategy=FAMILY_STRATEGY[run.family],
        accumulation_steps=run.accumulation_steps,
        strata_counts=STRATA_COUNTS.get((run.family, run.global_batch_size // run.gpus)),
        optimizer=run.optimizer,
        sharding="none" if run.family in UNSHARDED_FAMILIES else "slices",
        gradient_bytes=HALF_BYTES,
        bucket_mib=BUCKET_MIB,
        clipping=FAMILY_CLIPPING.get(run.family),
        code="fitted" if run.family in FITTED_FAMILIES else "other",
    )


def predict_rate(
    run: PublishedRun | PublishedScore, constants: Constants, published: Sequence[SamplesToTarget]
) -> float:
    """Return the predicted sequences per second of a published system, for the samples that it trained on."""
    return predict(plan_from_published(run, constants, published), constants, run.mean_samples).sequences_per_second
