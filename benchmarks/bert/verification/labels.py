"""Is about every second B drawn from another document?

The reference draws it with probability ½, and always where a chunk is a single sentence. So ½ is the least that can be
expected, and texts of short documents have more: 0.53 and 0.54 in two parts of Wikipedia, 0.54 to 0.59 in the invented
language. Beyond 0.3 to 0.7 the labels are taken for wrong or turned round.
"""

from collections.abc import Iterator

from benchmarks.bert.store import ADVICE
from benchmarks.bert.verification.evidence import Evidence
from benchmarks.bert.verification.tolerance import tolerance
from benchmarks.finding import Finding

USUAL = (0.5, 0.6)
POSSIBLE = (0.3, 0.7)
UNUSUAL = "documents of one sentence give more than half; less than half is not what the reference makes"
IMPOSSIBLE = f"the labels are wrong, or most documents are one sentence; look at the text, and {ADVICE}"


def check_labels(evidence: Evidence) -> Iterator[Finding]:
    """The share of samples whose B is random."""
    for prefix, survey in evidence.readable:
        share = survey.total("random_next") / survey.samples
        possible, usual = (_within(share, limits, survey.samples) for limits in (POSSIBLE, USUAL))
        yield Finding(
            f"{prefix}random-next share",
            "ok" if usual else "note" if possible else "error",
            f"{share:.4f} of samples",
            f"{USUAL[0]} to {USUAL[1]}, and never beyond {POSSIBLE[0]} to {POSSIBLE[1]}",
            "" if usual else UNUSUAL if possible else IMPOSSIBLE,
        )


def _within(share: float, limits: tuple[float, float], samples: int) -> bool:
    low, high = limits
    return low - tolerance(low, samples) <= share <= high + tolerance(high, samples)
