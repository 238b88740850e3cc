"""All checks of a sample store, in the order of the report, and the evidence that they need."""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.verification import content, official_data
from benchmarks.bert.verification.duplicates import find_duplicates
from benchmarks.bert.verification.evidence import Evidence, Subject
from benchmarks.bert.verification.shard_stats import Survey, survey_store
from podium.core.errors import UsageError
from podium.core.finding import Finding

Check = Callable[[Evidence], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    content.check_content,
    content.check_manifest,
    content.check_alike,
    content.check_counts,
    content.check_selection,
    content.check_structure,
    content.check_shared,
    content.check_repeated,
    content.check_in_a_row,
    content.check_masked_share,
    content.check_replacements,
    content.check_labels,
    content.check_lengths,
    official_data.check_vocabulary,
    official_data.check_texts,
    official_data.check_evaluation_samples,
)


def gather_evidence(subject: Subject, processors: int = 1, on_read: Callable[[int], None] | None = None) -> Evidence:
    """Read everything once, on so many processors; `on_read` is told of the bytes of each shard that was read.

    Memory: 8 bytes a sample, 400 MB for finding duplicates, and for each processor the offsets of the shard in work (16
    bytes a sample of it). Raises UsageError for what is not there, and WorkError if a file goes away meanwhile.
    """
    if subject.official and not (subject.vocabulary and subject.evaluation):
        raise UsageError("--official: needs --vocab and --evaluation too; without them no store can be proved official")
    for text in subject.texts:
        if not text.is_file():
            raise UsageError(f"{text}: there is no such text file")
    vocabulary = Vocabulary.read(subject.vocabulary) if subject.vocabulary else None
    training, *evaluation = [survey_store(store, vocabulary, processors, on_read) for store in subject.stores]
    shards = [shard for survey in (training, *evaluation) for shard in survey.shards]
    duplicates = find_duplicates([shard.path for shard in shards], [shard.hashes for shard in shards])
    return Evidence(subject, training, evaluation[0] if evaluation else None, duplicates, vocabulary)


def findings_of(evidence: Evidence) -> list[Finding]:
    """What every check says."""
    return [finding for check in CHECKS for finding in check(evidence)]


def statistics_of(evidence: Evidence) -> dict[str, Any]:
    """The numbers behind the findings, for programs."""
    return {
        "training": _store_statistics(evidence.training),
        "evaluation": None if evidence.evaluation is None else _store_statistics(evidence.evaluation),
        "repeated_samples": evidence.duplicates.repeated,
        "repeats_compared": evidence.duplicates.compared,
        "hash_collisions": evidence.duplicates.unequal,
    }


def _store_statistics(survey: Survey) -> dict[str, Any]:
    counts: dict[str, Any] = {"shards": len(survey.shards) + len(survey.unreadable), "readable": len(survey.shards)}
    if not survey.shards:
        return counts
    lengths, wikipedia = survey.lengths, wikipedia_histogram()
    return counts | {
        "samples": survey.samples,
        "tokens": survey.total("tokens"),
        "masked_tokens": survey.total("masked_tokens"),
        "masked_share": survey.total("masked_tokens") / max(1, survey.text_tokens),
        "random_next_share": survey.total("random_next") / survey.samples,
        "mean_length": content.mean_length(lengths),
        "distance_from_wikipedia": content.distance(lengths, wikipedia) if len(lengths) == len(wikipedia) else None,
        "lengths": lengths.tolist(),
    }
