"""Does a sample occur more than once?

Ten passes over a document give the same sample twice only where it is very short, since the masks are drawn anew. If
each of Wikipedia's short samples were a whole document of two sentences, 1.4 in 10,000 samples would repeat (45 pairs
of passes, none random-next, the same positions masked and the same words there). None did of 7,601 and 6,569 samples
of Wikipedia and of 43,364 of the invented language, and no two shards shared one. So 1 in 1,000 of a store and 1 in
100 of a shard are beyond chance. What is not seen: one text in two shards whose draws differ, so that its samples are
masked otherwise.
"""

import math
from collections.abc import Iterator

import numpy as np

from benchmarks.bert.store import ADVICE
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.bert.verification.tolerance import SIGMAS
from benchmarks.finding import Finding, check_result

MOST_REPEATED = 0.001
MOST_SHARED = 0.01
SHOWN = 5
"""Pairs of shards that are named."""


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
    yield Finding(
        "shared samples", "error", found, expected, f"see that each shard has a text of its own, and {ADVICE}"
    )


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
