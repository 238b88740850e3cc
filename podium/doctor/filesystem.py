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
from podium.core.files import OTHER_OPEN_FILES, atomic_file, make_folder
from podium.core.finding import Finding, check_result
from podium.doctor.context import DiagnosticContext
from podium.doctor.devices import GIB
from podium.launch.mounts import container_errors, unmounted_paths_warning
from podium.launch.page_cache import DROP_CACHES
from podium.run.prepare import check_checkpoint

BLOCK = 2**20
MAX_BYTES, MAX_SECONDS = 2**28, 1.0  # reading and writing are each tried until one of these is reached


@dataclass(frozen=True)
class Speed:
    """Result of a speed test: bytes and seconds; `from_disk` is None if it is unknown."""

    bytes: int
    seconds: float
    from_disk: bool | None = None

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / max(self.seconds, 1e-9)


def read_speed(files: Sequence[Path]) -> Speed:
    """Read the beginnings of files after dropping them from the page cache, up to MAX_BYTES or MAX_SECONDS."""
    done, seconds = 0, 0.0
    stayed: set[bool | None] = set()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            drop_pages(descriptor)
            stayed.add(is_cached(descriptor))
            started = time.perf_counter()
            while done < MAX_BYTES and seconds + time.perf_counter() - started < MAX_SECONDS:
                block = os.read(descriptor, BLOCK)
                if not block:
                    break
                done += len(block)
            seconds += time.perf_counter() - started
        finally:
            os.close(descriptor)
        if done >= MAX_BYTES or seconds >= MAX_SECONDS:
            break
    return Speed(done, seconds, None if None in stayed else True not in stayed)


def write_speed(folder: Path, size: int = 2**24) -> Speed:
    """Write a file of `size` bytes, flush it to the disk, and remove it. WorkError if the folder is not writable."""
    path, block = folder / "doctor.tmp", os.urandom(BLOCK)
    started = time.perf_counter()
    try:
        with atomic_file(path) as temporary, temporary.open("xb") as file:
            for _ in range(size // BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
    finally:
        with suppress(OSError):  # the file does not exist if it could not be written
            path.unlink()
    return Speed(size, seconds)


def drop_pages(descriptor: int) -> None:
    """Advise the kernel to drop a file's pages from the page cache, if the system supports that."""
    if hasattr(os, "posix_fadvise"):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def is_cached(descriptor: int) -> bool | None:
    """Whether the beginning of a file is in the page cache; None if the file system does not support RWF_NOWAIT."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None


RUN_BYTES = GIB  # for logs, metrics and output of processes
STATE_BYTES = 12  # per parameter in a checkpoint: weight and two moments of the optimizer in float32
CHECKPOINTS = 2  # the last one and the next, while it is written
SHARD_BYTES_PER_TEXT_BYTE = 8.2  # Wikipedia's 13.4 GB of text become up to 110 GB of shards
# Upper bound on samples/s of a process, from published and measured runs: its disk must be as fast.
MAX_SAMPLE_RATES = {"cpu": 500, "cuda": 1_500}
MIN_WRITE_RATE = 10e6


def check_paths(context: DiagnosticContext) -> Iterable[Finding]:
    """Files and folders that the configuration names: readable on this machine and by all ranks."""
    named = context.config.named_paths
    faults = [f"{key}: {path} {error}" for key, path in named.items() if (error := _path_error(path))]
    for rank in context.ranks["ranks"] if context.ranks else ():
        faults += [f"rank {rank['rank']} on {rank['host']} cannot read {path}" for path in rank["missing_paths"]]
    advice = "mount the file system on every node, or name a path that exists"
    found = "; ".join(faults) if faults else f"{len(named)} named" if named else "the embedded text needs none"
    yield check_result("paths", not faults, found, "all exist and are readable", advice)


def check_writable(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether the folders are writable, by writing a file: a mount may be read-only whatever the permissions are."""
    places = context.places
    for what, folder in (("runs", places.runs), ("results", places.results), ("data", places.data)):
        try:
            speed = write_speed(make_folder(folder), 2**24 if what == "runs" else 2**20)
        except PodiumError as error:
            yield Finding(f"{what} folder", "error", str(error), "can be written", "check the folder's permissions")
            continue
        if what == "runs":
            found = f"{folder}: {speed.rate / 1e6:,.0f} MB/s"
            advice = "checkpoints and logs will delay the run; use another disk"
            wanted = f"written at {MIN_WRITE_RATE / 1e6:.0f} MB/s"
            yield check_result(f"{what} folder", speed.rate >= MIN_WRITE_RATE, found, wanted, advice, "warning")
        else:
            yield Finding(f"{what} folder", "ok", str(folder), "can be written")


def check_space(context: DiagnosticContext) -> Iterable[Finding]:
    """Disk space for a run's files and checkpoints, and for samples that are not prepared yet."""
    config, places = context.config, context.places
    state = CHECKPOINTS * STATE_BYTES * config.model_size.parameters(VOCABULARY_SIZE)
    needs = [("runs", places.runs, RUN_BYTES + state), ("results", places.results, RUN_BYTES // 64)]
    if config.data.kind == "text" and context.prepared is None:
        texts = sum(path.stat().st_size for path in config.data.text if path.is_file())
        needs.append(("data", places.data, round(SHARD_BYTES_PER_TEXT_BYTE * texts)))
    for what, folder, wanted in needs:
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        free = shutil.disk_usage(existing).free
        found = f"{free / GIB:,.1f} GiB free for {folder}"
        advice = "free space there, or move the folder to another disk"
        yield check_result(f"{what} space", free >= wanted, found, f"{wanted / GIB:,.1f} GiB", advice)


def check_read_speed(context: DiagnosticContext) -> Iterable[Finding]:
    """Read speed of the shards, compared with what all processes of a node would read at the best speed known."""
    store = context.store
    if store is None:
        return
    shards = store.shards  # those that this node reads
    size = sum(shard.path.stat().st_size for shard in shards)
    launch = context.config.launch
    wanted = MAX_SAMPLE_RATES[launch.device] * launch.processes_per_node * size / sum(map(len, shards))
    speed = read_speed([shard.path for shard in shards])
    source = {True: "from the disk", False: "from memory", None: "from disk or memory"}[speed.from_disk]
    found = f"{speed.rate / 1e6:,.0f} MB/s {source}"
    advice = "copy the shards to a faster disk of the node"
    yield check_result("data speed", speed.rate >= wanted, found, f"{wanted / 1e6:,.1f} MB/s", advice, "warning")


def check_caches(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether the samples can be dropped from the page cache before each run, which MLPerf's rules require."""
    all_caches = os.access(DROP_CACHES, os.W_OK)
    remain_cached: bool | None = None
    if context.store is not None:
        first = [context.store.shards[0].path]
        read_speed(first)
        again = read_speed(first)
        remain_cached = None if again.from_disk is None else not again.from_disk
    one_by_one = hasattr(os, "posix_fadvise") and remain_cached is not True
    ways = [way for way, can in (("all caches", all_caches), ("the shards' pages", one_by_one)) if can]
    found = f"{' and '.join(ways)} can be dropped" if ways else "nothing can be dropped"
    if remain_cached is None and one_by_one:
        found += "; whether pages are dropped cannot be checked on this file system"
    closed = context.config.division == "closed"
    advice = f"run as a user who may write {DROP_CACHES}, or keep the shards on a local disk"
    yield check_result("caches", bool(ways), found, "cleared before each run", advice, "error" if closed else "warning")


def check_open_files(context: DiagnosticContext) -> Iterable[Finding]:
    """Limit of open files: a process maps all shards of its stores."""
    prepared = context.prepared or context.config
    named = (*prepared.stores, prepared.data.evaluation_store)
    stores = [store for store in named if store is not None and store.is_dir()]
    wanted = OTHER_OPEN_FILES + sum(len(list(store.glob("*.h5"))) for store in stores)
    limit = context.machine["limit"]
    advice = f"raise the hard limit: `ulimit -Hn {wanted}`, or LimitNOFILE of the service"
    yield check_result("open files", limit >= wanted, f"a limit of {limit:,.0f}", f"{wanted:,}", advice)


def _path_error(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    return "" if os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) else "cannot be read"


def check_mounts(context: DiagnosticContext) -> Iterable[Finding]:
    """Image, mounts and data paths of the container; the configuration has its paths as written."""
    config = context.config
    if config.launch.container is None:
        return
    faults, wanted = container_errors(config), "image, mounts and data paths exist"
    advice = "make what is missing (docs/clusters.md is about images, docs/data.md about data) or change the setting"
    found = "; ".join(faults) or f"{len(config.launch.container.mounts)} named"
    yield check_result("mounts", not faults, found, wanted, advice)
    if warning := unmounted_paths_warning(config, Path(f"{config.system}.yaml")):
        yield Finding("paths in the container", "warning", warning, "each under a mount", "mount them")


def check_data(context: DiagnosticContext) -> Iterable[Finding]:
    """Headers, vocabulary and SHA-256 of the samples: every error by which a run would refuse the data."""
    wanted = "shards of one vocabulary, every byte as written"
    if isinstance(context.data_fault, ManifestError):
        advice = "follow the message, on every node"
        yield Finding("manifest", "error", str(context.data_fault), "the shards that manifest.json lists", advice)
    elif context.data_fault is not None:
        yield Finding("data", "error", str(context.data_fault), wanted, "fix the reported error")
    elif context.store is None:
        found = "text whose samples are not made yet: the run would make them at its start"
        yield Finding("data", "warning", found, wanted, "make them now: `podium data prepare`, then name the store")
    else:
        store = context.store
        here = f", of which node 0 reads {len(store.shards)}" if len(store.shards) < len(store.paths) else ""
        found = f"{len(store):,} samples in {len(store.paths)} shards{here}, hashes agree"
        yield Finding("data", "ok", found, wanted)
        digests = ", ".join(f"{part.manifest.digest[:16]}…" for part in store.stores)
        yield Finding("manifest", "ok", f"digest {digests}", "the same on all nodes")


def check_closed_data(context: DiagnosticContext) -> Iterable[Finding]:
    """MLPerf's vocabulary and all of the samples, which the closed division requires."""
    store, config = context.store, context.prepared
    if store is None or config is None or config.division != "closed" or config.data.vocabulary is None:
        return
    try:
        official = is_official_vocabulary(config.data.vocabulary)
    except WorkError as error:
        yield Finding("closed data", "error", str(error), "MLPerf's vocabulary", "check the file's permissions")
        return
    random = [part.paths[0].parent for part in store.stores if part.manifest.selection == RANDOM]
    faults = ([] if official else [f"{config.data.vocabulary} is another vocabulary"]) + (
        [f"{random[0]} is a random subset"] if random else []
    )
    found = "; ".join(faults) or "MLPerf's vocabulary, no subset"
    wanted = f"MLPerf's vocab.txt (md5 {VOCABULARY.md5}) and all samples"
    advice = "prepare the official text (`podium data fetch`), verify all of it with `podium data verify --official`"
    yield check_result("closed data", not faults, found, wanted, advice)


def check_initial_checkpoint(context: DiagnosticContext) -> Iterable[Finding]:
    """The initial checkpoint: it exists, is undamaged, and has the size and vocabulary of the run."""
    config = context.prepared or context.config
    if config.initial_checkpoint is None:
        large = config.size == "large"
        found = "none: weights are drawn from the seed"
        advice = (
            "fetch MLPerf's with `podium data fetch inputs`, convert it with `podium data checkpoint`, and name it in "
            "bert.initial_checkpoint"
        )
        wanted = "MLPerf's phase-1 checkpoint for size large" if large else "none for size tiny"
        yield check_result("checkpoint", not large, found, wanted, advice, "warning")
        return
    wanted = f"size {config.size}, the vocabulary of the data"
    try:
        check_checkpoint(config)
    except PodiumError as error:
        yield Finding("checkpoint", "error", str(error), wanted, "fix the reported error")
    else:
        yield Finding("checkpoint", "ok", str(config.initial_checkpoint), wanted)
