"""Checksums and counts that MLPerf and NVIDIA published of the official data, compared with a file or a store."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bert.preparation.prepare import evaluation_pick
from benchmarks.bert.shard import differences
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import SampleStore
from benchmarks.bert.verification.content import EVALUATION_SAMPLES
from benchmarks.bert.verification.evidence import Evidence
from podium.core.files import has_md5, sha256_of
from podium.core.finding import Finding, Severity, check_result

EVALUATION_TEXT_NAME = "eval.txt"
# NVIDIA's md5 of the 10,000 evaluation samples in HDF5 of fixed length, over their token ids; see `input_ids_md5`.
EVALUATION_MD5 = "611d8bae26646145e1c33338a27ba124"


class Published(NamedTuple):
    """A file as published: its bytes and the md5 of them."""

    size: int
    md5: str


VOCABULARY = Published(231_508, "64800d5d8528ce344256daf115d4965e")
EVALUATION_TEXT = Published(32_851_144, "2a220f790517261547b1b45ed3ada07a")


def is_official_vocabulary(path: Path) -> bool:
    """Whether a vocab.txt is MLPerf's own, to the byte; WorkError if it cannot be read."""
    return has_md5(path, *VOCABULARY)


def input_ids_md5(rows: Iterator[Sequence[int]]) -> str:
    """NVIDIA's md5 of token ids, md5(str([md5(str(row.tolist())) for row in rows])), each row padded with zeros to 512.

    What is published does not say what the inner md5 is: it is taken to be the text of its hexadecimal digits, so
    that what is hashed at last reads ['0123…', '4567…'], and a row reads [101, 2023, …, 0, 0].
    """
    return _md5(str([_md5(str([*row, *[0] * (SEQUENCE_LENGTH - len(row))])) for row in rows]))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def check_vocabulary(evidence: Evidence) -> Iterator[Finding]:
    """Whether the vocabulary given is the stores' own, and whether it is MLPerf's."""
    vocabulary, file = evidence.vocabulary, evidence.subject.vocabulary
    if vocabulary is None or file is None:
        return
    for prefix, survey in evidence.readable:
        found = {shard.attributes["vocabulary_sha256"] for shard in survey.shards}
        right = found == {vocabulary.sha256}
        yield check_result(
            f"{prefix}vocabulary",
            right,
            f"the shards were made with SHA-256 {', '.join(sorted(sha[:16] + '…' for sha in found))}",
            f"{vocabulary.sha256[:16]}… of {file}",
            "name the vocabulary that the shards were made with",
        )
    yield _check_official("official vocabulary", file, VOCABULARY, "the vocab.txt of MLPerf's BERT", evidence.fault)


def _check_official(check: str, file: Path, published: Published, wanted: str, otherwise: Severity) -> Finding:
    official = has_md5(file, *published)
    return check_result(
        check,
        official,
        f"{file} {'is' if official else 'is not'} MLPerf's, to the byte",
        f"md5 {published.md5}",
        f"take {wanted}, if results are to be compared with others'",
        otherwise,
    )


def check_texts(evidence: Evidence) -> Iterator[Finding]:
    """Whether the texts are what the shards of their names were made from, and eval.txt MLPerf's."""
    made_from = {
        shard.attributes["source"]: shard.attributes["source_sha256"]
        for _, survey in evidence.surveys
        for shard in survey.shards
    }
    for text in evidence.subject.texts:
        if text.name in made_from:
            same = sha256_of(text) == made_from[text.name]
            said = "is what its shard was made from" if same else "is not what its shard was made from"
            advice = "the text was changed since, or is another of that name; prepare it again"
            yield check_result("text", same, f"{text} {said}", "the same SHA-256", advice)
        else:
            advice = "a shard names the file that it was made from; imported ones name that of the samples"
            yield Finding("text", evidence.fault, f"{text}: no shard was made from it", "a shard of that name", advice)
        if text.name == EVALUATION_TEXT_NAME or text.stat().st_size == EVALUATION_TEXT.size:
            check = "official evaluation text"
            yield _check_official(check, text, EVALUATION_TEXT, "MLPerf's eval.txt", evidence.fault)


def check_evaluation_samples(evidence: Evidence) -> Iterator[Finding]:
    """Whether the evaluation samples are the published ones, by the md5 of their token ids."""
    survey = evidence.evaluation
    if survey is None or survey.unreadable or survey.samples < EVALUATION_SAMPLES:
        return
    attributes = survey.attributes
    if len(survey.lengths) != SEQUENCE_LENGTH + 1 or differences(attributes):
        return
    store = SampleStore([*attributes])
    picked = evaluation_pick(len(store), EVALUATION_SAMPLES)
    found = input_ids_md5(store.read(int(index)).token_ids.tolist() for index in picked)
    same = found == EVALUATION_MD5
    yield check_result(
        "official evaluation samples",
        same,
        f"md5 {found} of the token ids",
        f"md5 {EVALUATION_MD5}",
        "expect this of another text; of MLPerf's eval.txt prepare them again with its vocab.txt",
        evidence.fault,
    )
