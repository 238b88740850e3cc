"""Checks of a store's content: completeness, labels, lengths, duplicates, structure and masks.

- Completeness: the shards are undamaged, belong together, and no sample is missing.
- Labels: about half of the segments B are drawn from another document. The reference draws with probability ½, and
  always where a chunk is a single sentence. So ½ is the expected minimum, and texts of short documents have more:
  0.53 and 0.54 in two parts of Wikipedia, 0.54 to 0.59 in the invented language. Outside of 0.3 to 0.7 the labels are
  considered wrong or inverted.
- Lengths: the distribution of sample lengths is compared with Wikipedia's. The limits admit another dump of Wikipedia,
  whose mean length may differ by a token or two (MLPerf's own is 254.5 and the published one 255.83), and no other
  text. Sampling error is far below them: samples of one document have related lengths, so documents are the sampling
  units. 37 and 41 of them differed from Wikipedia by 0.29 and 0.41, which scales by 1/√documents to about 0.001 for 6
  million.
- Duplicates: ten passes over a document give the same sample twice only where it is very short, since each pass draws
  new masks. If each of Wikipedia's short samples were a whole document of two sentences, 1.4 in 10,000 samples would
  repeat (45 pairs of passes, none random-next, the same positions masked and the same tokens there). None did of 7,601
  and 6,569 samples of Wikipedia and of 43,364 of the invented language, and no two shards shared one. So 1 in 1,000 of
  a store and 1 in 100 of a shard are above chance. Not detected: one text in two shards whose draws differ, so that
  its samples are masked differently.
- Structure and masks: every sample is well-formed, and its masks agree with the draws of the reference.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.manifest import MANIFEST, Manifest, has_manifest, require_listed
from benchmarks.bert.shard import ADVICE, RANDOM, describe_differences, describe_duplicates, describe_misnamed
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import require_length_index, write_missing_manifest
from benchmarks.bert.verification.evidence import SIGMAS, Evidence, tolerance
from benchmarks.bert.verification.shard_stats import FAULTS, VOCABULARY_FAULTS, StoreStatistics
from podium.core.errors import attempt
from podium.core.finding import Finding, check_result

TRAINING_SAMPLES = 156_726_829
EVALUATION_SAMPLES = 10_000


def format_shard_count(shards: int) -> str:
    """Such as `1 shard` or `3 shards`."""
    return f"{shards} shard" if shards == 1 else f"{shards} shards"


def check_content(evidence: Evidence) -> Iterator[Finding]:
    """Check that every shard is readable and its content hash correct; reports each damaged one."""
    for prefix, statistics in evidence.statistics:
        broken = [*statistics.unreadable, *(shard.damage for shard in statistics.shards if shard.damage)]
        shards = format_shard_count(len(statistics.shards) + len(statistics.unreadable))
        found = f"{shards}, every SHA-256 correct"
        if broken:
            found = "\n".join([f"{len(broken)} of {shards} are unreadable or damaged", *broken])
        advice = "copy these shards again from an intact store, or follow the advice above"
        yield check_result(f"{prefix}content", not broken, found, "every byte as it was written", advice)


def write_missing_manifests(evidence: Evidence) -> None:
    """Write the manifest of each intact store that has none yet."""
    for folder, (_, statistics) in zip(evidence.request.stores, evidence.statistics, strict=True):
        attributes = statistics.attributes
        damaged = statistics.unreadable or any(shard.damage for shard in statistics.shards)
        if not (
            damaged
            or describe_differences(attributes)
            or describe_duplicates(attributes.items())
            or describe_misnamed(attributes)
        ):
            write_missing_manifest(folder, [*attributes])


def check_manifest(evidence: Evidence) -> Iterator[Finding]:
    """Check that manifest and length index match the shards of their folder; skipped where a shard is unreadable."""
    for folder, (prefix, statistics) in zip(evidence.request.stores, evidence.statistics, strict=True):
        if statistics.unreadable:
            continue
        manifest = Manifest.of_attributes(statistics.attributes)
        _, fault = attempt(require_listed, folder, manifest)
        if fault is None:
            _, fault = attempt(require_length_index, folder)
        shards = format_shard_count(len(statistics.shards))
        found = f"it lists these {shards}, " if has_manifest(folder) else f"there is none; {shards}, "
        found += f"digest {manifest.digest[:16]}…"
        advice = "make the shards again"
        if has_manifest(folder):
            advice += f", or remove {folder / MANIFEST} if they are as intended"
        yield check_result(f"{prefix}manifest", fault is None, str(fault or found), "exactly these shards", advice)


def check_compatible(evidence: Evidence) -> Iterator[Finding]:
    """Check that the shards of each store have the same vocabulary, length limits and selection."""
    for prefix, statistics in evidence.readable_statistics:
        problems = [*describe_differences(statistics.attributes), *describe_misnamed(statistics.attributes)]
        found = "\n".join([f"{len(problems)} do not belong to the store", *problems]) if problems else "all compatible"
        advice = f"remove shards of other stores, or {ADVICE}"
        yield check_result(
            f"{prefix}shards", not problems, found, "one vocabulary, length, masks and selection", advice
        )


def check_counts(evidence: Evidence) -> Iterator[Finding]:
    """Report sample and token counts; with `official`, check them against the known numbers of MLPerf's data."""
    for prefix, statistics in evidence.readable_statistics:
        found = (
            f"{statistics.samples:,} samples, {statistics.total('tokens'):,} tokens, "
            f"{statistics.total('masked_tokens'):,} masked, {format_shard_count(len(statistics.shards))}"
        )
        right, expected = True, "any number"
        if evidence.request.official and statistics is evidence.training:
            right, expected = statistics.samples == TRAINING_SAMPLES, f"{TRAINING_SAMPLES:,} samples"
        elif evidence.request.official:
            right = statistics.samples >= EVALUATION_SAMPLES
            expected = f"{EVALUATION_SAMPLES:,}, or more to pick them from samples"
        advice = (
            "samples are missing or too many; prepare all 500 parts of the text, and eval.txt (`podium data fetch`)"
        )
        yield check_result(f"{prefix}counts", right, found, expected, advice)


def check_selection(evidence: Evidence) -> Iterator[Finding]:
    """Check that the store is not a random subset of the data set."""
    for prefix, statistics in evidence.readable_statistics:
        random = [shard for shard in statistics.shards if shard.attributes["selection"] == RANDOM]
        found = statistics.shards[0].attributes["selection"]
        if random:
            found = f"a random subset of {random[0].attributes['selected_from']:,} samples"
        advice = "use it only for trials; for the closed division prepare the data without --samples"
        yield check_result(
            f"{prefix}selection", not random, found, "no random subset", advice, evidence.deviation_severity
        )


USUAL_SHARE = (0.5, 0.6)
POSSIBLE_SHARE = (0.3, 0.7)
# For limits below BERT's shortest samples (128 tokens): a single sentence often fills one, and then B is random.
SHORT_LENGTH, POSSIBLE_SHARE_SHORT = 128, (0.3, 1.0)
UNUSUAL_ADVICE = "documents of one sentence increase it above a half; the reference never makes less than a half"
IMPOSSIBLE_ADVICE = f"the labels are wrong, or most documents are one sentence; check the text, and {ADVICE}"


def check_labels(evidence: Evidence) -> Iterator[Finding]:
    """Check the share of samples whose segment B is from a random document."""
    for prefix, statistics in evidence.readable_statistics:
        share = statistics.total("random_next") / statistics.samples
        widest = POSSIBLE_SHARE_SHORT if len(statistics.lengths) <= SHORT_LENGTH else POSSIBLE_SHARE
        possible, usual = (_is_within(share, limits, statistics.samples) for limits in (widest, USUAL_SHARE))
        yield Finding(
            f"{prefix}random-next share",
            "ok" if usual else "note" if possible else "error",
            f"{share:.4f} of samples",
            f"{USUAL_SHARE[0]} to {USUAL_SHARE[1]}, never outside of {widest[0]} to {widest[1]}",
            "" if usual else UNUSUAL_ADVICE if possible else IMPOSSIBLE_ADVICE,
        )


def _is_within(share: float, limits: tuple[float, float], samples: int) -> bool:
    """Whether a share of `samples` samples is within limits, up to the statistical tolerance."""
    low, high = limits
    return low - tolerance(low, samples) <= share <= high + tolerance(high, samples)


BIN_WIDTH = 32  # lengths in one bin when two histograms are compared
MAX_DISTANCE = 0.05  # total variation distance from Wikipedia's histogram
MAX_MEAN_DIFFERENCE = 5.0  # tokens, from Wikipedia's mean length


def mean_length(histogram: NDArray[np.int64]) -> float:
    """Mean length in tokens of a histogram of lengths 0, 1, 2, …"""
    return float(histogram @ np.arange(len(histogram))) / float(histogram.sum())


def total_variation_distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Total variation distance of two histograms in bins of lengths 1–32, 33–64, …: 0 if equal, 1 if disjoint.

    Both are [longest + 1], samples of length 0, 1, 2, …; length 0 must not occur.
    """
    shares = []
    for histogram in (one, other):
        padded = np.zeros(-(-(len(histogram) - 1) // BIN_WIDTH) * BIN_WIDTH)
        padded[: len(histogram) - 1] = histogram[1:]
        shares.append(padded.reshape(-1, BIN_WIDTH).sum(axis=1) / histogram.sum())
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def check_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Check that the lengths of the training samples are distributed like Wikipedia's."""
    if not evidence.training.shards:
        return
    wikipedia, own = wikipedia_histogram(), evidence.training.lengths
    if len(own) != len(wikipedia):
        found = f"samples of up to {len(own) - 1} tokens, which Wikipedia's published histogram does not cover"
        yield Finding("lengths", evidence.deviation_severity, found, f"samples of up to {SEQUENCE_LENGTH} tokens", "")
        return
    far, mean, wanted = total_variation_distance(own, wikipedia), mean_length(own), mean_length(wikipedia)
    near = far <= MAX_DISTANCE and abs(mean - wanted) <= MAX_MEAN_DIFFERENCE
    yield check_result(
        "lengths",
        near,
        f"mean {mean:.2f} tokens, distance from Wikipedia's {far:.4f}",
        f"mean {wanted:.2f} ± {MAX_MEAN_DIFFERENCE:g}, distance at most {MAX_DISTANCE}",
        "normal for another text or a small part of Wikipedia; if this is all of Wikipedia, samples are missing",
        evidence.deviation_severity,
    )


MAX_REPEATED_SHARE = 0.001
MAX_SHARED_SHARE = 0.01
MAX_LISTED_PAIRS = 5  # pairs of shards in a message


def check_repeated(evidence: Evidence) -> Iterator[Finding]:
    """Check the share of samples that equal an earlier one in either store."""
    found = evidence.duplicates
    if not found.samples:
        return
    share = found.repeated / found.samples
    right = share <= MAX_REPEATED_SHARE
    yield check_result(
        "repeated samples",
        right,
        f"{found.repeated:,} of {found.samples:,} ({share:.4%})",
        f"at most {MAX_REPEATED_SHARE:.1%}",
        f"a text was used more than once, or a shuffle repeated its order; check the texts, and {ADVICE}",
    )


def check_shared_samples(evidence: Evidence) -> Iterator[Finding]:
    """Check that no two shards have many samples in common, a fault that limits the accuracy to about 0.62."""
    shards = [shard for _, statistics in evidence.statistics for shard in statistics.shards]
    if len(shards) < 2:
        return
    shares = evidence.duplicates.shares([shard.samples for shard in shards])
    pairs = sorted(
        (-float(shares[one, other]), int(one), int(other)) for one, other in np.argwhere(shares > MAX_SHARED_SHARE)
    )
    expected = f"at most {MAX_SHARED_SHARE:.0%} of the smaller shard"
    if not pairs:
        found = f"at most {shares.max():.2%}, of any two of {len(shards)} shards"
        yield Finding("shared samples", "ok", found, expected)
        return
    if len(shards) > 2 and len(pairs) == len(shards) * (len(shards) - 1) // 2:
        found = f"all {len(shards)} shards hold the same samples: any two share at least {-pairs[-1][0]:.1%}"
    else:
        lines = [
            f"{shards[one].path} and {shards[other].path} share {-share:.1%}"
            for share, one, other in pairs[:MAX_LISTED_PAIRS]
        ]
        more = [f"and {len(pairs) - MAX_LISTED_PAIRS:,} more"] if len(pairs) > MAX_LISTED_PAIRS else []
        found = "\n".join([f"{len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'} of shards", *lines, *more])
    advice = f"make sure that each shard has a different text, and {ADVICE}"
    yield Finding("shared samples", "error", found, expected, advice)


def check_consecutive_repeats(evidence: Evidence) -> Iterator[Finding]:
    """Check that equal samples do not follow each other more often than in random order."""
    for prefix, statistics in evidence.readable_statistics:
        found, by_chance = statistics.total("repeats_in_a_row"), statistics.total("expected_repeats_in_a_row")
        allowed = by_chance + SIGMAS * math.sqrt(by_chance) + 1
        right = found <= allowed
        worst = max(statistics.shards, key=lambda shard: shard.repeats_in_a_row)
        yield check_result(
            f"{prefix}repeats in a row",
            right,
            f"{found:,}" + ("" if right else f", most of them in {worst.path} ({worst.repeats_in_a_row:,})"),
            f"at most {math.floor(allowed):,}",
            f"the samples are not in random order, or one was written many times, so {ADVICE}",
        )


# Shares of masked tokens that are replaced by [MASK], kept, and replaced by a random token of the vocabulary.
MASK_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.8, 0.1, 0.1


def check_structure(evidence: Evidence) -> Iterator[Finding]:
    """Check that every sample is a well-formed [CLS] A [SEP] B [SEP] with masks at allowed positions."""
    for prefix, statistics in evidence.readable_statistics:
        faults = [line for fault in range(len(FAULTS)) if (line := _describe_fault(statistics, fault))]
        found = f"{statistics.samples:,} samples, all well-formed"
        if faults:
            found = "\n".join([f"{len(faults)} of {len(FAULTS)} kinds of fault", *faults])
        expected = "[CLS] A [SEP] B [SEP], with the masked tokens of its length"
        advice = f"these shards were written wrongly, so {ADVICE}, or import them again"
        yield check_result(f"{prefix}structure", not faults, found, expected, advice)
        if not statistics.tokens_checked:
            found = f"not checked: {'; '.join(FAULTS[VOCABULARY_FAULTS:])}"
            why = "name the store's own vocabulary" if evidence.vocabulary else "give --vocab"
            yield Finding(f"{prefix}words", "note", found, "a check of every token", why)


def _describe_fault(statistics: StoreStatistics, fault: int) -> str:
    """Number of samples with fault number `fault`, and the first of them; empty where there is none."""
    offending = [shard for shard in statistics.shards if shard.faults[fault]]
    if not offending:
        return ""
    count = sum(int(shard.faults[fault]) for shard in offending)
    first = offending[0]
    which = "sample has" if count == 1 else "samples have"
    return f"{count:,} {which} {FAULTS[fault]}; the first is {first.path}, sample {first.first_offenders[fault]}"


def check_masked_share(evidence: Evidence) -> Iterator[Finding]:
    """Check the number of masked tokens, which the lengths of the samples determine exactly."""
    for prefix, statistics in evidence.readable_statistics:
        masked, expected = statistics.total("masked_tokens"), statistics.total("expected_masked_tokens")
        text = max(1, statistics.text_tokens)
        right = masked == expected
        yield check_result(
            f"{prefix}masked share",
            right,
            f"{masked / text:.6f} ({masked:,} tokens)",
            f"{expected / text:.6f} ({expected:,} tokens)",
            f"samples are masked too much or too little, so {ADVICE}",
        )


def check_replacements(evidence: Evidence) -> Iterator[Finding]:
    """Check the tokens at masked positions: 80% [MASK], 10% the original; a random token may be either by chance."""
    if evidence.vocabulary is None:
        return
    by_chance = RANDOM_SHARE / len(evidence.vocabulary.tokens)
    for prefix, statistics in evidence.readable_statistics:
        if not statistics.tokens_checked:
            continue
        masked = statistics.total("masked_tokens")
        counts = (
            ("[MASK] share", statistics.total("masked_as_mask"), MASK_SHARE + by_chance),
            ("kept share", statistics.total("masked_kept"), KEPT_SHARE + by_chance),
        )
        for name, count, expected in counts:
            allowed = tolerance(expected, masked)
            right = abs(count / masked - expected) <= allowed
            yield check_result(
                f"{prefix}{name}",
                right,
                f"{count / masked:.5f} of masked tokens",
                f"{expected:.5f} ± {allowed:.5f} ({SIGMAS:g} sd)",
                f"the masks were not drawn as the reference draws them, so {ADVICE}",
            )
