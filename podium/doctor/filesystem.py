"""Checks of folders and files: existence, permissions, space, speed, container mounts, and the data of a run."""

import errno
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.manifest import ManifestError
from benchmarks.bert.shard import RANDOM
from benchmarks.bert.sizes import VOCABULARY_SIZE
from benchmarks.bert.verification.official_data import VOCABULARY, is_official_vocabulary
from podium.core.errors import PodiumError, WorkError
from podium.core.files import FEW_FILES, make_folder, whole_file
from podium.core.finding import Finding, check_result
from podium.doctor.context import Examination
from podium.doctor.devices import GIB
from podium.launch.mounts import known_faults, unseen_paths
from podium.launch.page_cache import DROP_CACHES
from podium.run.prepare import check_checkpoint

BLOCK = 2**20
MOST_BYTES, MOST_SECONDS = 2**28, 1.0  # reading and writing are each tried until one of these is reached


@dataclass(frozen=True)
class Speed:
    """Bytes moved and the seconds they took; `from_disk` None where the system does not tell."""

    bytes: int
    seconds: float
    from_disk: bool | None = None

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / max(self.seconds, 1e-9)


def read_speed(files: Sequence[Path]) -> Speed:
    """Read the beginnings of files that the kernel was asked to forget."""
    done, seconds = 0, 0.0
    stayed: set[bool | None] = set()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            forget(descriptor)
            stayed.add(in_memory(descriptor))
            started = time.perf_counter()
            while done < MOST_BYTES and seconds + time.perf_counter() - started < MOST_SECONDS:
                block = os.read(descriptor, BLOCK)
                if not block:
                    break
                done += len(block)
            seconds += time.perf_counter() - started
        finally:
            os.close(descriptor)
        if done >= MOST_BYTES or seconds >= MOST_SECONDS:
            break
    return Speed(done, seconds, None if None in stayed else True not in stayed)


def write_speed(folder: Path, most: int = 2**24) -> Speed:
    """Write a file of `most` bytes, have it on the disk, and remove it. Raises WorkError where that is not possible."""
    path, block = folder / "doctor.tmp", os.urandom(BLOCK)
    started = time.perf_counter()
    try:
        with whole_file(path) as temporary, temporary.open("xb") as file:
            for _ in range(most // BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
    finally:
        with suppress(OSError):  # where it could not be written it is not there
            path.unlink()
    return Speed(most, seconds)


def forget(descriptor: int) -> None:
    """Ask the kernel to drop a file's pages, where it takes such wishes."""
    if hasattr(os, "posix_fadvise"):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(descriptor: int) -> bool | None:
    """Whether the beginning of a file can be read without waiting for a disk; None where that cannot be asked."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None


RUN_BYTES = GIB  # for logs, metrics and what processes print
STATE_BYTES = 12  # a parameter and the two moments of its optimizer in float32, as a checkpoint of a run holds them
CHECKPOINTS = 2  # the last one and the next, while it is written
SHARD_BYTES_A_TEXT_BYTE = 8.2  # Wikipedia's 13.4 GB of text become up to 110 GB of shards
# Samples/s of a process as fast as any published or measured one: what its disk has to keep up with.
FASTEST_SAMPLES = {"cpu": 500, "cuda": 1_500}
LEAST_WRITE = 10e6


def check_paths(examination: Examination) -> Iterable[Finding]:
    """Every file and folder that the configuration names, on this machine and as the ranks see them."""
    given = examination.config.named_paths
    faults = [f"{key}: {path} {_fault(path)}" for key, path in given.items() if _fault(path)]
    for rank in examination.ranks["ranks"] if examination.ranks else ():
        faults += [f"rank {rank['rank']} on {rank['host']} cannot read {path}" for path in rank["missing_paths"]]
    advice = "mount the file system on every node, or name a path that is there"
    found = "; ".join(faults) if faults else f"{len(given)} named" if given else "the embedded text needs none"
    yield check_result("paths", not faults, found, "all there and readable", advice)


def check_writable(examination: Examination) -> Iterable[Finding]:
    """By writing: a mount may be read-only whatever the permissions say."""
    places = examination.places
    for what, folder in (("runs", places.runs), ("results", places.results), ("data", places.data)):
        try:
            speed = write_speed(make_folder(folder), 2**24 if what == "runs" else 2**20)
        except PodiumError as error:
            yield Finding(f"{what} folder", "error", str(error), "can be written", "see who may write there")
            continue
        if what == "runs":
            found = f"{folder}: {speed.rate / 1e6:,.0f} MB/s"
            advice = "checkpoints and logs will hold up the run; use another disk"
            wanted = f"written at {LEAST_WRITE / 1e6:.0f} MB/s"
            yield check_result(f"{what} folder", speed.rate >= LEAST_WRITE, found, wanted, advice, "warning")
        else:
            yield Finding(f"{what} folder", "ok", str(folder), "can be written")


def check_space(examination: Examination) -> Iterable[Finding]:
    """For a run's files and checkpoints, and for samples where they are still to be made."""
    config, places = examination.config, examination.places
    state = CHECKPOINTS * STATE_BYTES * config.model_size.parameters(VOCABULARY_SIZE)
    needs = [("runs", places.runs, RUN_BYTES + state), ("results", places.results, RUN_BYTES // 64)]
    if config.data.kind == "text" and examination.prepared is None:
        texts = sum(path.stat().st_size for path in config.data.text if path.is_file())
        needs.append(("data", places.data, round(SHARD_BYTES_A_TEXT_BYTE * texts)))
    for what, folder, wanted in needs:
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        free = shutil.disk_usage(existing).free
        found = f"{free / GIB:,.1f} GiB free for {folder}"
        advice = "make space there, or have the folder on another disk"
        yield check_result(f"{what} space", free >= wanted, found, f"{wanted / GIB:,.1f} GiB", advice)


def check_read_speed(examination: Examination) -> Iterable[Finding]:
    """Of the shards, against what all processes of a node would read at the best speed known."""
    store = examination.store
    if store is None:
        return
    shards = store.shards  # those that this node reads
    size = sum(shard.path.stat().st_size for shard in shards)
    launch = examination.config.launch
    wanted = FASTEST_SAMPLES[launch.device] * launch.processes_per_node * size / sum(map(len, shards))
    speed = read_speed([shard.path for shard in shards])
    source = {True: "from the disk", False: "from memory", None: "from disk or memory"}[speed.from_disk]
    found = f"{speed.rate / 1e6:,.0f} MB/s {source}"
    advice = "copy the shards to a faster disk of the node"
    yield check_result("data speed", speed.rate >= wanted, found, f"{wanted / 1e6:,.1f} MB/s", advice, "warning")


def check_caches(examination: Examination) -> Iterable[Finding]:
    """Whether the samples can be dropped from the page cache before each run, as the rules ask."""
    all_caches = os.access(DROP_CACHES, os.W_OK)
    stays: bool | None = None
    if examination.store is not None:
        first = [examination.store.shards[0].path]
        read_speed(first)
        again = read_speed(first)
        stays = None if again.from_disk is None else not again.from_disk
    one_by_one = hasattr(os, "posix_fadvise") and stays is not True
    ways = [way for way, can in (("all caches", all_caches), ("the shards' pages", one_by_one)) if can]
    found = f"{' and '.join(ways)} can be dropped" if ways else "nothing can be dropped"
    if stays is None and one_by_one:
        found += "; whether the pages then go, this file system does not tell"
    closed = examination.config.division == "closed"
    advice = f"run as a user who may write {DROP_CACHES}, or keep the shards on a local disk"
    yield check_result("caches", bool(ways), found, "cleared before each run", advice, "error" if closed else "warning")


def check_open_files(examination: Examination) -> Iterable[Finding]:
    """A process holds every shard of a store mapped."""
    prepared = examination.prepared or examination.config
    named = (*prepared.stores, prepared.data.evaluation_store)
    stores = [store for store in named if store is not None and store.is_dir()]
    wanted = FEW_FILES + sum(len(list(store.glob("*.h5"))) for store in stores)
    limit = examination.machine["limit"]
    advice = f"raise the hard limit: `ulimit -Hn {wanted}`, or LimitNOFILE of the service"
    yield check_result("open files", limit >= wanted, f"a limit of {limit:,.0f}", f"{wanted:,}", advice)


def _fault(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    return "" if os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) else "cannot be read"


def check_mounts(examination: Examination) -> Iterable[Finding]:
    """What the container is given, and what the configuration, with its paths as written, names in it."""
    config = examination.config
    if config.launch.container is None:
        return
    faults, wanted = known_faults(config), "image, mounts and what is named in them are there"
    advice = "make what is missing (docs/clusters.md is about images, docs/data.md about data) or change the setting"
    found = "; ".join(faults) or f"{len(config.launch.container.mounts)} named"
    yield check_result("mounts", not faults, found, wanted, advice)
    if warning := unseen_paths(config, Path(f"{config.system}.yaml")):
        yield Finding("paths in the container", "warning", warning, "each under a mount", "mount them")


def check_data(examination: Examination) -> Iterable[Finding]:
    """Headers, vocabulary and the hash of every byte; what a run itself would refuse."""
    wanted = "shards of one vocabulary, every byte as written"
    if isinstance(examination.data_fault, ManifestError):
        advice = "do what the message says, on every node"
        yield Finding("manifest", "error", str(examination.data_fault), "the shards that manifest.json lists", advice)
    elif examination.data_fault is not None:
        yield Finding("data", "error", str(examination.data_fault), wanted, "mend what the sentence says")
    elif examination.store is None:
        found = "text whose samples are not made yet: the run would begin with that"
        yield Finding("data", "warning", found, wanted, "make them now: `podium data prepare`, then name the store")
    else:
        store = examination.store
        here = f", of which node 0 reads {len(store.shards)}" if len(store.shards) < len(store.paths) else ""
        found = f"{len(store):,} samples in {len(store.paths)} shards{here}, hashes agree"
        yield Finding("data", "ok", found, wanted)
        digests = ", ".join(f"{part.manifest.digest[:16]}…" for part in store.stores)
        yield Finding("manifest", "ok", f"digest {digests}", "the same on all nodes")


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
    random = [part.paths[0].parent for part in store.stores if part.manifest.selection == RANDOM]
    faults = ([] if official else [f"{config.data.vocabulary} is another vocabulary"]) + (
        [f"{random[0]} is a random subset"] if random else []
    )
    found = "; ".join(faults) or "MLPerf's vocabulary, no subset"
    wanted = f"MLPerf's vocab.txt (md5 {VOCABULARY.md5}) and all samples"
    advice = "prepare the official text; prove all of it with `podium data verify --official`"
    yield check_result("closed data", not faults, found, wanted, advice)


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
