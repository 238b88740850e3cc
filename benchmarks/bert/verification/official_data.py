"""Checks against the checksums and counts that MLPerf and NVIDIA published for the official data."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bert.preparation.prepare import pick_evaluation_indices
from benchmarks.bert.shard import describe_differences
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import SampleStore
from benchmarks.bert.verification.content import EVALUATION_SAMPLES
from benchmarks.bert.verification.evidence import Evidence
from podium.core.files import has_md5, sha256_of
from podium.core.finding import Finding, Severity, check_result

EVALUATION_TEXT_NAME = "eval.txt"
# NVIDIA's md5 of the token ids of the 10,000 evaluation samples in fixed-length HDF5; see `input_ids_md5`.
EVALUATION_MD5 = "611d8bae26646145e1c33338a27ba124"


class PublishedFile(NamedTuple):
    """Size in bytes and md5 of a published file."""

    size: int
    md5: str


VOCABULARY = PublishedFile(231_508, "64800d5d8528ce344256daf115d4965e")
EVALUATION_TEXT = PublishedFile(32_851_144, "2a220f790517261547b1b45ed3ada07a")


def is_official_vocabulary(path: Path) -> bool:
    """Whether a vocab.txt is byte for byte MLPerf's. Raises WorkError where it cannot be read."""
    return has_md5(path, *VOCABULARY)


def input_ids_md5(rows: Iterator[Sequence[int]]) -> str:
    """NVIDIA's md5 of token ids, md5(str([md5(str(row.tolist())) for row in rows])), each row padded with zeros to 512.

    The publication does not define the form of the inner md5. This uses its hexadecimal digits: the outer hash is that
    of a text like ['0123…', '4567…'], the inner ones are those of texts like [101, 2023, …, 0, 0].
    """
    return _md5(str([_md5(str([*row, *[0] * (SEQUENCE_LENGTH - len(row))])) for row in rows]))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def check_vocabulary(evidence: Evidence) -> Iterator[Finding]:
    """Check that the stores were made with the given vocabulary, and that it is MLPerf's."""
    vocabulary, file = evidence.vocabulary, evidence.request.vocabulary
    if vocabulary is None or file is None:
        return
    for prefix, statistics in evidence.readable_statistics:
        found = {shard.attributes["vocabulary_sha256"] for shard in statistics.shards}
        right = found == {vocabulary.sha256}
        yield check_result(
            f"{prefix}vocabulary",
            right,
            f"the shards were made with SHA-256 {', '.join(sorted(sha[:16] + '…' for sha in found))}",
            f"{vocabulary.sha256[:16]}… of {file}",
            "name the vocabulary that the shards were made with",
        )
    yield _check_official(
        "official vocabulary", file, VOCABULARY, "the vocab.txt of MLPerf's BERT", evidence.deviation_severity
    )


def _check_official(check: str, file: Path, published: PublishedFile, wanted: str, otherwise: Severity) -> Finding:
    official = has_md5(file, *published)
    return check_result(
        check,
        official,
        f"{file} {'is' if official else 'is not'} MLPerf's, to the byte",
        f"md5 {published.md5}",
        f"use {wanted} if results are to be compared with those of other submitters",
        otherwise,
    )


def check_texts(evidence: Evidence) -> Iterator[Finding]:
    """Check that shards were made from the given texts, and that eval.txt is MLPerf's."""
    made_from = {
        shard.attributes["source"]: shard.attributes["source_sha256"]
        for _, statistics in evidence.statistics
        for shard in statistics.shards
    }
    for text in evidence.request.texts:
        if text.name in made_from:
            same = sha256_of(text) == made_from[text.name]
            result = "is what its shard was made from" if same else "is not what its shard was made from"
            advice = "the text has changed since, or is another one of that name; prepare it again"
            yield check_result("text", same, f"{text} {result}", "the same SHA-256", advice)
        else:
            advice = "a shard records the file that it was made from, an imported one the imported file"
            yield Finding(
                "text",
                evidence.deviation_severity,
                f"{text}: no shard was made from it",
                "a shard of that name",
                advice,
            )
        if text.name == EVALUATION_TEXT_NAME or text.stat().st_size == EVALUATION_TEXT.size:
            check = "official evaluation text"
            yield _check_official(check, text, EVALUATION_TEXT, "MLPerf's eval.txt", evidence.deviation_severity)


def check_evaluation_samples(evidence: Evidence) -> Iterator[Finding]:
    """Check that the evaluation samples are MLPerf's, by the published md5 of their token ids."""
    statistics = evidence.evaluation
    if statistics is None or statistics.unreadable or statistics.samples < EVALUATION_SAMPLES:
        return
    attributes = statistics.attributes
    if len(statistics.lengths) != SEQUENCE_LENGTH + 1 or describe_differences(attributes):
        return
    store = SampleStore([*attributes])
    picked = pick_evaluation_indices(len(store), EVALUATION_SAMPLES)
    found = input_ids_md5(store.read(int(index)).token_ids.tolist() for index in picked)
    same = found == EVALUATION_MD5
    yield check_result(
        "official evaluation samples",
        same,
        f"md5 {found} of the token ids",
        f"md5 {EVALUATION_MD5}",
        "expect this of another text; of MLPerf's eval.txt prepare them again with its vocab.txt",
        evidence.deviation_severity,
    )
