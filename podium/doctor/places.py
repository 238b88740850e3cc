"""Folders and files: there, readable, writable, with space, and fast enough."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from benchmarks.bert.sizes import VOCABULARY_SIZE
from benchmarks.errors import PodiumError
from benchmarks.files import FEW_FILES, make_folder
from benchmarks.finding import Finding, check_result
from podium.config import RunConfig
from podium.doctor.disk import read_speed, write_speed
from podium.doctor.examination import Examination
from podium.doctor.machine import DROP_CACHES

GIB = 2**30
RUN_BYTES = GIB
"""For logs, metrics and what processes print."""
STATE_BYTES = 12
"""A parameter and the two moments of its optimizer in float32, as a checkpoint of a run holds them."""
CHECKPOINTS = 2
"""The last one and the next, while it is written."""
SHARD_BYTES_A_TEXT_BYTE = 8.2
"""Wikipedia's 13.4 GB of text become up to 110 GB of shards."""
FASTEST_SAMPLES = {"cpu": 500, "cuda": 1_500}
"""Samples/s of a process as fast as any published or measured one: what its disk has to keep up with."""
LEAST_WRITE = 10e6


def named_paths(config: RunConfig) -> dict[str, Path]:
    """Every file and folder that is read, by its key."""
    data = config.data
    named = {
        "data.store": data.store,
        "data.evaluation_store": data.evaluation_store,
        "data.evaluation_text": data.evaluation_text,
        "data.vocabulary": data.vocabulary,
        "initial_checkpoint": config.initial_checkpoint,
        **{f"data.text[{number}]": path for number, path in enumerate(data.text)},
    }
    return {key: path for key, path in named.items() if path is not None}


def check_paths(examination: Examination) -> Iterable[Finding]:
    """Every file and folder that the configuration names, on this machine and as the ranks see them."""
    given = named_paths(examination.config)
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
        free = shutil.disk_usage(_existing(folder)).free
        found = f"{free / GIB:,.1f} GiB free for {folder}"
        advice = "make space there, or have the folder on another disk"
        yield check_result(f"{what} space", free >= wanted, found, f"{wanted / GIB:,.1f} GiB", advice)


def check_read_speed(examination: Examination) -> Iterable[Finding]:
    """Of the shards, against what all processes of a node would read at the best speed known."""
    store = examination.store
    if store is None:
        return
    size = sum(path.stat().st_size for path in store.paths)
    launch = examination.config.launch
    wanted = FASTEST_SAMPLES[launch.device] * launch.processes_per_node * size / len(store)
    speed = read_speed(store.paths)
    source = {True: "from the disk", False: "from memory", None: "from disk or memory"}[speed.from_disk]
    found = f"{speed.rate / 1e6:,.0f} MB/s {source}"
    advice = "copy the shards to a faster disk of the node"
    yield check_result("data speed", speed.rate >= wanted, found, f"{wanted / 1e6:,.1f} MB/s", advice, "warning")


def check_caches(examination: Examination) -> Iterable[Finding]:
    """Whether the samples can be dropped from the page cache before each run, as the rules ask."""
    all_caches = os.access(DROP_CACHES, os.W_OK)
    stays: bool | None = None
    if examination.store is not None:
        first = examination.store.paths[:1]
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
    data = examination.config.data
    prepared = examination.prepared.data if examination.prepared else data
    stores = [store for store in (prepared.store, prepared.evaluation_store) if store is not None and store.is_dir()]
    wanted = FEW_FILES + sum(len(list(store.glob("*.h5"))) for store in stores)
    limit = examination.machine["limit"]
    advice = f"raise the hard limit: `ulimit -Hn {wanted}`, or LimitNOFILE of the service"
    yield check_result("open files", limit >= wanted, f"a limit of {limit:,.0f}", f"{wanted:,}", advice)


def _fault(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    return "" if os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) else "cannot be read"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())
