"""All checks of a sample store in the order of the report, and the reading of the stores."""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.verification import content, official_data
from benchmarks.bert.verification.duplicates import find_duplicates
from benchmarks.bert.verification.evidence import Evidence, VerificationRequest
from benchmarks.bert.verification.shard_stats import StoreStatistics, compute_store_statistics
from podium.core.errors import UsageError
from podium.core.finding import Finding

Check = Callable[[Evidence], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    content.check_content,
    content.check_manifest,
    content.check_compatible,
    content.check_counts,
    content.check_selection,
    content.check_structure,
    content.check_shared_samples,
    content.check_repeated,
    content.check_consecutive_repeats,
    content.check_masked_share,
    content.check_replacements,
    content.check_labels,
    content.check_lengths,
    official_data.check_vocabulary,
    official_data.check_texts,
    official_data.check_evaluation_samples,
)


def gather_evidence(
    request: VerificationRequest, processors: int = 1, on_read: Callable[[int], None] | None = None
) -> Evidence:
    """Read the stores once, in `processors` threads. `on_read` is called with the bytes of each shard.

    Memory: 8 bytes a sample, 400 MB for finding duplicates, and for each thread the samples of one shard. Raises
    UsageError for missing files, and WorkError for a shard that is removed during the call.
    """
    if request.official and not (request.vocabulary and request.evaluation):
        raise UsageError(
            "--official: needs --vocab and --evaluation too; without them the data cannot be verified as MLPerf's"
        )
    for text in request.texts:
        if not text.is_file():
            raise UsageError(f"{text}: there is no such text file")
    vocabulary = Vocabulary.read(request.vocabulary) if request.vocabulary else None
    training, *evaluation = [
        compute_store_statistics(store, vocabulary, processors, on_read) for store in request.stores
    ]
    shards = [shard for statistics in (training, *evaluation) for shard in statistics.shards]
    duplicates = find_duplicates([shard.path for shard in shards], [shard.hashes for shard in shards])
    return Evidence(request, training, evaluation[0] if evaluation else None, duplicates, vocabulary)


def run_checks(evidence: Evidence) -> list[Finding]:
    """Run all checks and return their findings."""
    return [finding for check in CHECKS for finding in check(evidence)]


def collect_statistics(evidence: Evidence) -> dict[str, Any]:
    """The numbers behind the findings, as a JSON document."""
    return {
        "training": _store_statistics(evidence.training),
        "evaluation": None if evidence.evaluation is None else _store_statistics(evidence.evaluation),
        "repeated_samples": evidence.duplicates.repeated,
        "repeats_compared": evidence.duplicates.compared,
        "hash_collisions": evidence.duplicates.collisions,
    }


def _store_statistics(statistics: StoreStatistics) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "shards": len(statistics.shards) + len(statistics.unreadable),
        "readable": len(statistics.shards),
    }
    if not statistics.shards:
        return counts
    lengths, wikipedia = statistics.lengths, wikipedia_histogram()
    return counts | {
        "samples": statistics.samples,
        "tokens": statistics.total("tokens"),
        "masked_tokens": statistics.total("masked_tokens"),
        "masked_share": statistics.total("masked_tokens") / max(1, statistics.text_tokens),
        "random_next_share": statistics.total("random_next") / statistics.samples,
        "mean_length": content.mean_length(lengths),
        "distance_from_wikipedia": content.total_variation_distance(lengths, wikipedia)
        if len(lengths) == len(wikipedia)
        else None,
        "lengths": lengths.tolist(),
    }
