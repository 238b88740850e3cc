"""Checks of a store's content: completeness, labels, lengths, duplicates, structure and masks.

- Completeness: the shards are undamaged, belong together, and none of their samples is missing.
- Labels: about every second segment B is drawn from another document. The reference draws it with probability ½, and
  always where a chunk is a single sentence. So ½ is the minimum to be expected, and texts of short documents have
  more: 0.53 and 0.54 in two parts of Wikipedia, 0.54 to 0.59 in the invented language. Outside of 0.3 to 0.7 the
  labels are taken for wrong or inverted.
- Lengths: the distribution of sample lengths is compared with Wikipedia's. The limits leave room for another dump of
  Wikipedia, whose mean length may differ by a token or two (MLPerf's own is 254.5 and the published one 255.83), and
  none for another text. Sampling error is far below them: samples of one document have related lengths, so documents
  are the units that are drawn. 37 and 41 of them differed from Wikipedia by 0.29 and 0.41, so with 1/√documents
  about 0.001 is left for 6 million.
- Duplicates: ten passes over a document give the same sample twice only where it is very short, since the masks are
  drawn anew. If each of Wikipedia's short samples were a whole document of two sentences, 1.4 in 10,000 samples
  would repeat (45 pairs of passes, none random-next, the same positions masked and the same tokens there). None did
  of 7,601 and 6,569 samples of Wikipedia and of 43,364 of the invented language, and no two shards shared one. So 1
  in 1,000 of a store and 1 in 100 of a shard are beyond chance. Not detected: one text in two shards whose draws
  differ, so that its samples are masked differently.
- Structure and masks: every sample is well-formed, and its masks are what the reference's draws give.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.manifest import MANIFEST, Manifest, has_manifest, require_listed
from benchmarks.bert.shard import ADVICE, RANDOM, differences, misnamed, repeats
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import keep_manifest, require_index
from benchmarks.bert.verification.evidence import SIGMAS, Evidence, tolerance
from benchmarks.bert.verification.shard_stats import FAULTS, WORD_FAULTS, Survey
from podium.core.errors import attempt
from podium.core.finding import Finding, check_result

TRAINING_SAMPLES = 156_726_829
EVALUATION_SAMPLES = 10_000


def counted(shards: int) -> str:
    """So many shards, in words."""
    return f"{shards} shard" if shards == 1 else f"{shards} shards"


def check_content(evidence: Evidence) -> Iterator[Finding]:
    """Whether every shard can be read and has the bytes that were written; every broken one is named."""
    for prefix, survey in evidence.surveys:
        broken = [*survey.unreadable, *(shard.damage for shard in survey.shards if shard.damage)]
        shards = counted(len(survey.shards) + len(survey.unreadable))
        found = f"{shards}, every SHA-256 right"
        if broken:
            found = "\n".join([f"{len(broken)} of {shards} cannot be trusted", *broken])
        advice = "copy these shards again from where they are whole, or do as their sentences say"
        yield check_result(f"{prefix}content", not broken, found, "every byte as it was written", advice)


def keep_manifests(evidence: Evidence) -> None:
    """Write the manifest of each store that is whole and has none yet."""
    for folder, (_, survey) in zip(evidence.subject.stores, evidence.surveys, strict=True):
        attributes = survey.attributes
        damaged = survey.unreadable or any(shard.damage for shard in survey.shards)
        if not (damaged or differences(attributes) or repeats(attributes.items()) or misnamed(attributes)):
            keep_manifest(folder, [*attributes])


def check_manifest(evidence: Evidence) -> Iterator[Finding]:
    """Whether the shards are those that the manifest in their folder lists; not where a shard cannot be read."""
    for folder, (prefix, survey) in zip(evidence.subject.stores, evidence.surveys, strict=True):
        if survey.unreadable:
            continue
        manifest = Manifest.of_attributes(survey.attributes)
        _, fault = attempt(require_listed, folder, manifest)
        if fault is None:
            _, fault = attempt(require_index, folder)
        found = f"{'it lists these' if has_manifest(folder) else 'none; these are'} {counted(len(survey.shards))}, "
        found += f"digest {manifest.digest[:16]}…"
        advice = "make the shards again"
        if has_manifest(folder):
            advice += f", or remove {folder / MANIFEST} if they are as intended"
        yield check_result(f"{prefix}manifest", fault is None, str(fault or found), "no shard more or less", advice)


def check_alike(evidence: Evidence) -> Iterator[Finding]:
    """Whether the shards of each store were made with one vocabulary, one length and one selection."""
    for prefix, survey in evidence.readable:
        odd = [*differences(survey.attributes), *misnamed(survey.attributes)]
        found = "\n".join([f"{len(odd)} do not belong there", *odd]) if odd else "all made alike"
        advice = f"take out what is alien, or {ADVICE}"
        yield check_result(f"{prefix}shards", not odd, found, "one vocabulary, length, masks and selection", advice)


def check_counts(evidence: Evidence) -> Iterator[Finding]:
    """How much there is; of MLPerf's own data the numbers of samples are known."""
    for prefix, survey in evidence.readable:
        found = (
            f"{survey.samples:,} samples, {survey.total('tokens'):,} tokens, {survey.total('masked_tokens'):,} masked, "
            f"{counted(len(survey.shards))}"
        )
        right, expected = True, "any number"
        if evidence.subject.official and survey is evidence.training:
            right, expected = survey.samples == TRAINING_SAMPLES, f"{TRAINING_SAMPLES:,} samples"
        elif evidence.subject.official:
            right = survey.samples >= EVALUATION_SAMPLES
            expected = f"{EVALUATION_SAMPLES:,}, or more to pick them from samples"
        advice = "samples are missing or too many; prepare all 500 parts of the text, and eval.txt"
        yield check_result(f"{prefix}counts", right, found, expected, advice)


def check_selection(evidence: Evidence) -> Iterator[Finding]:
    """Whether samples were left out at random, which is not the whole data set."""
    for prefix, survey in evidence.readable:
        random = [shard for shard in survey.shards if shard.attributes["selection"] == RANDOM]
        found = survey.shards[0].attributes["selection"]
        if random:
            found = f"a random subset of {random[0].attributes['selected_from']:,} samples"
        advice = "it is for trials, not for the closed division; prepare it without --samples for that"
        yield check_result(f"{prefix}selection", not random, found, "no random subset", advice, evidence.fault)


USUAL = (0.5, 0.6)
POSSIBLE = (0.3, 0.7)
# Of samples of fewer tokens than BERT's shortest: a single sentence often fills one, and its B is random then.
SHORT, POSSIBLE_OF_SHORT = 128, (0.3, 1.0)
UNUSUAL = "documents of one sentence give more than half; less than half is not what the reference makes"
IMPOSSIBLE = f"the labels are wrong, or most documents are one sentence; look at the text, and {ADVICE}"


def check_labels(evidence: Evidence) -> Iterator[Finding]:
    """The share of samples whose B is random."""
    for prefix, survey in evidence.readable:
        share = survey.total("random_next") / survey.samples
        widest = POSSIBLE_OF_SHORT if len(survey.lengths) <= SHORT else POSSIBLE
        possible, usual = (_within(share, limits, survey.samples) for limits in (widest, USUAL))
        yield Finding(
            f"{prefix}random-next share",
            "ok" if usual else "note" if possible else "error",
            f"{share:.4f} of samples",
            f"{USUAL[0]} to {USUAL[1]}, and never beyond {widest[0]} to {widest[1]}",
            "" if usual else UNUSUAL if possible else IMPOSSIBLE,
        )


def _within(share: float, limits: tuple[float, float], samples: int) -> bool:
    low, high = limits
    return low - tolerance(low, samples) <= share <= high + tolerance(high, samples)


BIN = 32  # lengths that are counted together when two histograms are compared
FARTHEST = 0.05  # total variation distance
FARTHEST_MEAN = 5.0  # tokens between the mean lengths


def mean_length(histogram: NDArray[np.int64]) -> float:
    """Mean length in tokens; `histogram` has the samples of length 0, 1, 2, …"""
    return float(histogram @ np.arange(len(histogram))) / float(histogram.sum())


def distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Total variation distance of two histograms in bins of lengths 1–32, 33–64, …: 0 for the same shares, 1 for none.

    Both have the samples of length 0, 1, 2, … up to the same length, and length 0 does not occur.
    """
    shares = []
    for histogram in (one, other):
        padded = np.zeros(-(-(len(histogram) - 1) // BIN) * BIN)
        padded[: len(histogram) - 1] = histogram[1:]
        shares.append(padded.reshape(-1, BIN).sum(axis=1) / histogram.sum())
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def check_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Whether the training samples are as long as Wikipedia's."""
    if not evidence.training.shards:
        return
    wikipedia, own = wikipedia_histogram(), evidence.training.lengths
    if len(own) != len(wikipedia):
        found = f"samples of up to {len(own) - 1} tokens, which Wikipedia's published lengths do not speak of"
        yield Finding("lengths", evidence.fault, found, f"samples of up to {SEQUENCE_LENGTH} tokens", "")
        return
    far, mean, wanted = distance(own, wikipedia), mean_length(own), mean_length(wikipedia)
    near = far <= FARTHEST and abs(mean - wanted) <= FARTHEST_MEAN
    yield check_result(
        "lengths",
        near,
        f"mean {mean:.2f} tokens, distance from Wikipedia's {far:.4f}",
        f"mean {wanted:.2f} ± {FARTHEST_MEAN:g}, distance at most {FARTHEST}",
        "expect this of another text or of a small part of it; of all of Wikipedia something is missing",
        evidence.fault,
    )


MOST_REPEATED = 0.001
MOST_SHARED = 0.01
SHOWN = 5  # pairs of shards that are named


def check_repeated(evidence: Evidence) -> Iterator[Finding]:
    """Samples that equal an earlier one, anywhere in both stores."""
    found = evidence.duplicates
    if not found.samples:
        return
    share = found.repeated / found.samples
    right = share <= MOST_REPEATED
    yield check_result(
        "repeated samples",
        right,
        f"{found.repeated:,} of {found.samples:,} ({share:.4%})",
        f"at most {MOST_REPEATED:.1%}",
        f"the same text went in more than once, or a shuffle stood still; look at the text, and {ADVICE}",
    )


def check_shared(evidence: Evidence) -> Iterator[Finding]:
    """Pairs of shards with samples in common: the fault that keeps an accuracy near 0.62."""
    shards = [shard for _, survey in evidence.surveys for shard in survey.shards]
    if len(shards) < 2:
        return
    shares = evidence.duplicates.shares([shard.samples for shard in shards])
    pairs = sorted(
        (-float(shares[one, other]), int(one), int(other)) for one, other in np.argwhere(shares > MOST_SHARED)
    )
    expected = f"at most {MOST_SHARED:.0%} of the smaller shard"
    if not pairs:
        found = f"at most {shares.max():.2%}, of any two of {len(shards)} shards"
        yield Finding("shared samples", "ok", found, expected)
        return
    if len(shards) > 2 and len(pairs) == len(shards) * (len(shards) - 1) // 2:
        found = f"all {len(shards)} shards hold the same samples: any two share at least {-pairs[-1][0]:.1%}"
    else:
        lines = [
            f"{shards[one].path} and {shards[other].path} share {-share:.1%}" for share, one, other in pairs[:SHOWN]
        ]
        more = [f"and {len(pairs) - SHOWN:,} more"] if len(pairs) > SHOWN else []
        found = "\n".join([f"{len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'} of shards", *lines, *more])
    advice = f"see that each shard has a text of its own, and {ADVICE}"
    yield Finding("shared samples", "error", found, expected, advice)


def check_in_a_row(evidence: Evidence) -> Iterator[Finding]:
    """Whether the same sample comes several times in a row, beyond what chance gives in random order."""
    for prefix, survey in evidence.readable:
        found, by_chance = survey.total("repeats_in_a_row"), survey.total("expected_repeats_in_a_row")
        allowed = by_chance + SIGMAS * math.sqrt(by_chance) + 1
        right = found <= allowed
        worst = max(survey.shards, key=lambda shard: shard.repeats_in_a_row)
        yield check_result(
            f"{prefix}repeats in a row",
            right,
            f"{found:,}" + ("" if right else f", most of them in {worst.path} ({worst.repeats_in_a_row:,})"),
            f"at most {math.floor(allowed):,}",
            f"the samples are not in random order, or one was written many times, so {ADVICE}",
        )


# Of masked tokens: become [MASK], stay what they are, become any word of the vocabulary.
AS_MASK, KEPT, DRAWN = 0.8, 0.1, 0.1


def check_structure(evidence: Evidence) -> Iterator[Finding]:
    """Whether every sample is [CLS] A [SEP] B [SEP] with masks where they may be; first offender and number of each."""
    for prefix, survey in evidence.readable:
        faults = [line for fault in range(len(FAULTS)) if (line := _offenders(survey, fault))]
        found = f"{survey.samples:,} samples, all well-formed"
        if faults:
            found = "\n".join([f"{len(faults)} of {len(FAULTS)} kinds of fault", *faults])
        expected = "[CLS] A [SEP] B [SEP], masked as its length says"
        advice = f"these shards were made wrongly, so {ADVICE}, or import them again"
        yield check_result(f"{prefix}structure", not faults, found, expected, advice)
        if not survey.words_seen:
            found = f"not looked at: {'; '.join(FAULTS[WORD_FAULTS:])}"
            why = "name the store's own vocabulary" if evidence.vocabulary else "give --vocab"
            yield Finding(f"{prefix}words", "note", found, "a look at every token", why)


def _offenders(survey: Survey, fault: int) -> str:
    """How many samples have a fault and the first of them; empty where none has."""
    offending = [shard for shard in survey.shards if shard.faults[fault]]
    if not offending:
        return ""
    count = sum(int(shard.faults[fault]) for shard in offending)
    first = offending[0]
    which = "sample has" if count == 1 else "samples have"
    return f"{count:,} {which} {FAULTS[fault]}; the first is {first.path}, sample {first.first_offenders[fault]}"


def check_masked_share(evidence: Evidence) -> Iterator[Finding]:
    """Masked tokens of all but [CLS] and [SEP]; exactly known, since a sample's length says how many are masked."""
    for prefix, survey in evidence.readable:
        masked, expected = survey.total("masked_tokens"), survey.total("expected_masked_tokens")
        text = max(1, survey.text_tokens)
        right = masked == expected
        yield check_result(
            f"{prefix}masked share",
            right,
            f"{masked / text:.6f} ({masked:,} tokens)",
            f"{expected / text:.6f} ({expected:,} tokens)",
            f"samples are masked too much or too little, so {ADVICE}",
        )


def check_replacements(evidence: Evidence) -> Iterator[Finding]:
    """What stands at masked positions: [MASK] at 0.8, the original at 0.1; a drawn word may be either by chance."""
    if evidence.vocabulary is None:
        return
    by_chance = DRAWN / len(evidence.vocabulary.words)
    for prefix, survey in evidence.readable:
        if not survey.words_seen:
            continue
        masked = survey.total("masked_tokens")
        counts = (
            ("[MASK] share", survey.total("masked_as_mask"), AS_MASK + by_chance),
            ("kept share", survey.total("masked_kept"), KEPT + by_chance),
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
