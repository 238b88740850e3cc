"""The data and the checkpoint that a run would begin with."""

from collections.abc import Iterable

from benchmarks.bert.store import RANDOM
from benchmarks.bert.verification.official import VOCABULARY, is_official_vocabulary
from benchmarks.errors import PodiumError, WorkError
from benchmarks.finding import Finding, check_result
from podium.doctor.examination import Examination
from podium.running import check_checkpoint

PROVE = "prove all of it with `podium data verify`"


def check_data(examination: Examination) -> Iterable[Finding]:
    """Headers, vocabulary and the hash of every byte; what a run itself would refuse."""
    wanted = "shards of one vocabulary, every byte as written"
    if examination.data_fault is not None:
        yield Finding("data", "error", str(examination.data_fault), wanted, "mend what the sentence says")
    elif examination.store is None:
        found = "text whose samples are not made yet: the run would begin with that"
        yield Finding("data", "warning", found, wanted, "make them now: `podium data prepare`, then name the store")
    else:
        store = examination.store
        yield Finding("data", "ok", f"{len(store):,} samples in {len(store.paths)} shards, hashes agree", wanted)


def check_closed_data(examination: Examination) -> Iterable[Finding]:
    """In the closed division: MLPerf's own vocabulary and the whole of the samples."""
    store, config = examination.store, examination.prepared
    if store is None or config is None or config.division != "closed" or config.data.vocabulary is None:
        return
    try:
        official = is_official_vocabulary(config.data.vocabulary)
    except WorkError as error:
        yield Finding("closed data", "error", str(error), "MLPerf's vocabulary", "see who may read it")
        return
    random = [shard.path.name for shard in store.shards if shard.attributes["selection"] == RANDOM]
    faults = ([] if official else [f"{config.data.vocabulary} is another vocabulary"]) + (
        [f"{random[0]} is a random subset"] if random else []
    )
    found = "; ".join(faults) or "MLPerf's vocabulary, no subset"
    wanted = f"MLPerf's vocab.txt (md5 {VOCABULARY.md5}) and all samples"
    yield check_result("closed data", not faults, found, wanted, f"prepare the official text; {PROVE} --official")


def check_initial_checkpoint(examination: Examination) -> Iterable[Finding]:
    """There, of the size and the vocabulary of the run, whole."""
    config = examination.prepared or examination.config
    if config.initial_checkpoint is None:
        large = config.size == "large"
        found = "none: weights are drawn from the seed"
        advice = "make MLPerf's with `podium data checkpoint` and name it in bert.initial_checkpoint"
        wanted = "MLPerf's phase-1 checkpoint for size large" if large else "none for size tiny"
        yield check_result("checkpoint", not large, found, wanted, advice, "warning")
        return
    wanted = f"size {config.size}, the vocabulary of the data"
    try:
        check_checkpoint(config)
    except PodiumError as error:
        yield Finding("checkpoint", "error", str(error), wanted, "mend what the sentence says")
    else:
        yield Finding("checkpoint", "ok", str(config.initial_checkpoint), wanted)
