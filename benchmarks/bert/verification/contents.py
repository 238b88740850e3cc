"""Are the shards whole, do they belong together, and is everything in them?"""

from collections.abc import Iterator

from benchmarks.bert.store import ADVICE, RANDOM
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.bert.verification.survey import Survey
from benchmarks.finding import Finding, check_result

ALIKE = ("vocabulary_sha256", "max_sequence_length", "selection", "selection_sha256")
"""Attributes that all shards of a store have in common."""
TRAINING_SAMPLES = 156_726_829
EVALUATION_SAMPLES = 10_000


def counted(shards: int) -> str:
    """So many shards, in words."""
    return f"{shards} shard" if shards == 1 else f"{shards} shards"


def check_content(evidence: Evidence) -> Iterator[Finding]:
    """Whether every shard can be read and has the bytes that were written; every broken one is named."""
    for prefix, survey in evidence.surveys:
        broken = [*survey.unreadable, *(shard.damage for shard in survey.shards if shard.damage)]
        shards = len(survey.shards) + len(survey.unreadable)
        expected = "every byte as it was written"
        if broken:
            found = "\n".join([f"{len(broken)} of {counted(shards)} cannot be trusted", *broken])
            advice = "copy these shards again from where they are whole, or do as their sentences say"
            yield Finding(f"{prefix}content", "error", found, expected, advice)
        else:
            yield Finding(f"{prefix}content", "ok", f"{counted(shards)}, every SHA-256 right", expected)


def check_alike(evidence: Evidence) -> Iterator[Finding]:
    """Whether the shards of each store were made with one vocabulary, one length and one selection."""
    for prefix, survey in evidence.readable:
        odd = differences(survey)
        expected = "one vocabulary, length and selection"
        if odd:
            yield Finding(
                f"{prefix}shards",
                "error",
                "\n".join([f"{len(odd)} differ from the first", *odd]),
                expected,
                f"take out what is alien, or {ADVICE}",
            )
        else:
            yield Finding(f"{prefix}shards", "ok", "all made alike", expected)


def differences(survey: Survey) -> list[str]:
    """Where a shard was made otherwise than the first one, a sentence each."""
    first = survey.shards[0]
    return [
        f"{shard.path}: its {name} is {shard.attributes[name]!r}, that of {first.path.name} is "
        f"{first.attributes[name]!r}"
        for shard in survey.shards
        for name in ALIKE
        if shard.attributes[name] != first.attributes[name]
    ]


def check_counts(evidence: Evidence) -> Iterator[Finding]:
    """How much there is; of MLPerf's own data the numbers of samples are known."""
    for prefix, survey in evidence.readable:
        found = (
            f"{survey.samples:,} samples, {survey.total('tokens'):,} tokens, {survey.total('masked_tokens'):,} masked, "
            f"{counted(len(survey.shards))}"
        )
        if not evidence.official:
            yield Finding(f"{prefix}counts", "ok", found, "any number")
        elif survey is evidence.training:
            yield _official_count(f"{prefix}counts", found, survey.samples == TRAINING_SAMPLES, f"{TRAINING_SAMPLES:,}")
        else:  # a run picks its evaluation samples from more
            enough = survey.samples >= EVALUATION_SAMPLES
            yield _official_count(
                f"{prefix}counts", found, enough, f"{EVALUATION_SAMPLES:,}, or more to pick them from"
            )


def _official_count(check: str, found: str, right: bool, expected: str) -> Finding:
    advice = "samples are missing or too many; prepare all 500 parts of the text, and eval.txt"
    return check_result(check, right, found, f"{expected} samples", advice)


def check_selection(evidence: Evidence) -> Iterator[Finding]:
    """Whether samples were left out at random, which is not the whole data set."""
    for prefix, survey in evidence.readable:
        drawn_from = _random_subset(survey)
        if drawn_from is None:
            kind = survey.shards[0].attributes["selection"]
            yield Finding(f"{prefix}selection", "ok", kind, "no random subset")
        else:
            found = f"a random subset of {drawn_from:,} samples"
            advice = "it is for trials, not for the closed division; prepare it without --samples for that"
            yield Finding(f"{prefix}selection", evidence.fault, found, "no random subset", advice)


def _random_subset(survey: Survey) -> int | None:
    """How many samples there were to draw from; None for no random subset."""
    for shard in survey.shards:
        if shard.attributes["selection"] == RANDOM:
            return int(shard.attributes["selected_from"])
    return None
