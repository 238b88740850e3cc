"""Is every sample well-formed, and are its masks what the reference's draws give?"""

from collections.abc import Iterator

from benchmarks.bert.store import ADVICE
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.bert.verification.structure import FAULTS, WORD_FAULTS
from benchmarks.bert.verification.survey import Survey
from benchmarks.bert.verification.tolerance import SIGMAS, tolerance
from benchmarks.finding import Finding, check_result

AS_MASK, KEPT, DRAWN = 0.8, 0.1, 0.1
"""Of masked tokens: become [MASK], stay what they are, become any word of the vocabulary."""


def check_structure(evidence: Evidence) -> Iterator[Finding]:
    """Whether every sample is [CLS] A [SEP] B [SEP] with masks where they may be; first offender and number of each."""
    for prefix, survey in evidence.readable:
        faults = [line for fault in range(len(FAULTS)) if (line := _offenders(survey, fault))]
        expected = "[CLS] A [SEP] B [SEP], masked as its length says"
        if faults:
            advice = f"these shards were made wrongly, so {ADVICE}, or import them again"
            yield Finding(
                f"{prefix}structure",
                "error",
                "\n".join([f"{len(faults)} of {len(FAULTS)} kinds of fault", *faults]),
                expected,
                advice,
            )
        else:
            yield Finding(f"{prefix}structure", "ok", f"{survey.samples:,} samples, all well-formed", expected)
        if not survey.words_seen:
            found = f"not looked at: {'; '.join(FAULTS[WORD_FAULTS:])}"
            why = "name the store's own vocabulary" if evidence.vocabulary else "give --vocab"
            yield Finding(f"{prefix}words", "note", found, "a look at every token", why)


def _offenders(survey: Survey, fault: int) -> str:
    """How many samples have a fault and the first of them; empty where none has."""
    offending = [shard for shard in survey.shards if shard.structure.faults[fault]]
    if not offending:
        return ""
    count = sum(int(shard.structure.faults[fault]) for shard in offending)
    first = offending[0]
    which = "sample has" if count == 1 else "samples have"
    return f"{count:,} {which} {FAULTS[fault]}; the first is {first.path}, sample {first.structure.first[fault]}"


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
            ("[MASK] share", sum(shard.structure.masked_as_mask for shard in survey.shards), AS_MASK + by_chance),
            ("kept share", sum(shard.structure.masked_kept for shard in survey.shards), KEPT + by_chance),
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
