"""MLPerf's inputs of BERT, fetched from MLCommons' storage: checkpoint, vocabulary and cleaned text.

The storage has two files for each data set in its folder `metadata`: NAME.uri holds the base URL of the files, and
NAME.md5 lists them as md5sum prints them, with paths relative to that URL. MLCommons' r2-downloader reads the same.

Sources: mlcommons/r2-infra, README.md and training/metadata; mlcommons/r2-downloader, README.md and
mlc-r2-downloader.sh; mlcommons/training, retired_benchmarks/bert/README.md (pull request 842).
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from podium.core.download import Download, HttpClient, RemoteFile, download_all, join_url, require_url
from podium.core.errors import UsageError, WorkError
from podium.core.files import has_md5, make_folder
from podium.core.locks import folder_lock
from podium.core.text import is_printable, short_repr

COMMAND = "podium data fetch"
METADATA_URL = "https://training.mlcommons-storage.org/metadata"
# What License.txt of the former folder on Google Drive states (mlcommons/training, issue 477).
LICENCE = (
    "Wikipedia's text, and what MLCommons made from it, is under the Creative Commons Attribution-ShareAlike 3.0 "
    "Unported licence (https://creativecommons.org/licenses/by-sa/3.0/)"
)
PARTIAL_FOLDER = ".podium-fetch"  # unfinished files, in the target folder
SPARE_BYTES = 64 * 2**20  # required on the disk in addition to the files

MAX_URI_BYTES = 4_096
MAX_LIST_BYTES = 8 * 2**20  # the longest list of MLCommons' has 1.5 MB
MAX_FILES = 20_000  # the longest list of MLCommons' has 18,719
MAX_PATH_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 1_000, 200, 16
LINE = re.compile(r"([0-9a-f]{32}) [ *](.+)", re.IGNORECASE)
# Names and characters that other systems refuse: the folder may be on a disk that Windows uses too.
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
FORBIDDEN = frozenset('\\:*?"<>|')

State = Literal["present", "fetched", "missing", "left out"]


@dataclass(frozen=True)
class DataSet:
    """A data set of MLCommons' storage: Podium's short name, MLCommons' name, and what training does not need."""

    name: str
    title: str
    not_needed: tuple[str, ...]  # glob patterns of paths


DATA_SETS = (
    # The dump from which the text was extracted, and the same weights for TensorFlow 2.
    DataSet("inputs", "bert-input-files", ("enwiki-*", "tf2_ckpt/*")),
    # The text is there twice, as .tar.gz and as .zip.
    DataSet("preprocessed", "bert-preprocessed-wikipedia-dataset", ("*.zip",)),
)
VOCABULARY_PATH = "vocab.txt"
ARCHIVE_PATH = "results_text.tar.gz"
ARCHIVE_FOLDER = "results4"  # in the archive
CHECKPOINT_PATH = "tf1_ckpt/model.ckpt-28252-003.data-00000-of-00001"
CHECKPOINT_PREFIX = "tf1_ckpt/model.ckpt-28252"  # TensorFlow requires that the data file begins with it


@dataclass
class ListedFile:
    """A file of a data set: its path and MD5 as listed, where it is to be, and what became of it."""

    path: str
    md5: str
    target: Path
    state: State = "missing"
    remote: RemoteFile | None = None  # None for files that are present or left out


@dataclass
class Listing:
    """The files of a data set, as listed by the server, and the folder that they are fetched to."""

    data_set: DataSet
    list_url: str
    base_url: str
    folder: Path
    files: list[ListedFile]


@dataclass
class FetchPlan:
    """All files of the data sets that are fetched, with what exists already."""

    out: Path
    listings: list[Listing]

    @property
    def missing(self) -> list[ListedFile]:
        """Files that are to be downloaded."""
        return [file for listing in self.listings for file in listing.files if file.state == "missing"]

    @property
    def missing_bytes(self) -> int:
        """Size of the files that are to be downloaded."""
        return sum(file.remote.size for file in self.missing if file.remote)


def read_listing(client: HttpClient, data_set: DataSet, metadata_url: str, out: Path) -> Listing:
    """Read NAME.uri and NAME.md5 of a data set. Raises WorkError if one cannot be read or is not of that format."""
    uri = f"{metadata_url}/{data_set.title}.uri"
    list_url = f"{metadata_url}/{data_set.title}.md5"
    base_url = parse_uri(client.read(uri, MAX_URI_BYTES), uri, client.insecure)
    folder = out / data_set.name
    files = [
        ListedFile(path, md5, folder / path)
        for path, md5 in parse_list(client.read(list_url, MAX_LIST_BYTES), list_url).items()
    ]
    return Listing(data_set, list_url, base_url, folder, files)


def parse_uri(content: bytes, where: str, insecure: bool = False) -> str:
    """The base URL in the content of a .uri file. Raises WorkError if it is not one https:// URL on one line."""
    text = content.decode("utf-8", "replace").strip()
    try:
        return require_url(text, where, insecure)
    except UsageError as error:
        raise WorkError(f"{error}. The file names the base URL of the data; check --url") from None


def parse_list(content: bytes, where: str) -> dict[str, str]:
    """Paths and MD5 sums of a list in md5sum's format. Raises WorkError for a line of another format and unsafe paths.

    A path that leaves the folder, is absolute, has a reserved name or characters that are not printable, or that
    collides with another one, also where upper and lower case are the same, is refused with the whole list.
    """
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise WorkError(f"{where}: is not UTF-8 text (byte {error.start:,})") from None
    files: dict[str, str] = {}
    folded: dict[str, str] = {}  # paths of files and of their folders, in lower case → as listed
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise WorkError(f"{where}: line {number} is {short_repr(line)}; expected an MD5, two spaces and a path")
        md5, path = match[1].lower(), match[2]
        if problem := path_problem(path):
            raise WorkError(f"{where}: line {number} has the path {short_repr(path)}: {problem}; nothing was fetched")
        if len(files) == MAX_FILES:
            raise WorkError(f"{where}: lists more than {MAX_FILES:,} files; check --url")
        if (other := folded.get(path.lower())) is not None:
            what = f"is {short_repr(other)} a second time" if other else "is a folder too"
            raise WorkError(f"{where}: line {number}: {short_repr(path)} {what}; nothing was fetched")
        files[path] = md5
        folded[path.lower()] = path
        for folder in _folders(path):
            folded.setdefault(folder.lower(), "")
    for path in files:
        for folder in _folders(path):
            if folded[folder.lower()]:
                raise WorkError(f"{where}: {short_repr(path)} is below {short_repr(folder)}, which is a file")
    if not files:
        raise WorkError(f"{where}: lists no file; check --url")
    return files


def _folders(path: str) -> Iterator[str]:
    """Paths of the folders that a path is in."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def path_problem(path: str) -> str:
    """The reason why a listed path is not used, or an empty string."""
    names = path.split("/")
    if path.startswith("/"):
        return "it is absolute"
    if len(path.encode()) > MAX_PATH_BYTES or len(names) > MAX_DEPTH:
        return f"it has more than {MAX_PATH_BYTES:,} bytes or {MAX_DEPTH} parts"
    for name in names:
        if name in ("", ".", ".."):
            return f"it has the part {name!r}, with which it may leave the folder"
        if len(name.encode()) > MAX_NAME_BYTES:
            return f"it has a name of more than {MAX_NAME_BYTES} bytes"
        if not is_printable(name) or not name.isprintable():
            return "it has characters that cannot be printed"
        if FORBIDDEN & set(name) or RESERVED.fullmatch(name) or name != name.strip(" ") or name.endswith("."):
            return "it has a name that is not allowed on all systems"
    return ""


def make_plan(
    client: HttpClient,
    data_sets: Sequence[DataSet],
    metadata_url: str,
    out: Path,
    *,
    all_files: bool = False,
    overwrite: bool = False,
) -> FetchPlan:
    """Read the lists of data sets, find out which files exist with the listed MD5, and the sizes of the others.

    Raises WorkError for an existing file with another content, unless `overwrite`, and for links below `out`.
    """
    listings = [read_listing(client, data_set, metadata_url, out) for data_set in data_sets]
    for listing in listings:
        for file in listing.files:
            if not all_files and any(fnmatchcase(file.path, glob) for glob in listing.data_set.not_needed):
                file.state = "left out"
                continue
            _require_no_links(out, file.target)
            file.remote = client.describe(join_url(listing.base_url, file.path))
            if not os.path.lexists(file.target):
                continue
            if file.target.is_dir():
                raise WorkError(f"{file.target}: is a folder, and the list has a file of this name; name another --out")
            # A link to a file with the right content is as good as the file.
            if file.target.exists() and has_md5(file.target, file.remote.size, file.md5):
                file.state = "present"
            elif not overwrite:
                raise WorkError(
                    f"{file.target}: already exists and is not the listed file (MD5 {file.md5}, {file.remote.size:,} "
                    "bytes); it is not replaced: remove it, give --overwrite, or name another --out"
                )
    return FetchPlan(out, listings)


def _require_no_links(out: Path, target: Path) -> None:
    """Raise WorkError if a folder between `out` and the target is a link, which may lead elsewhere."""
    for folder in target.parents:
        if folder == out:
            return
        if folder.is_symlink():
            raise WorkError(f"{folder}: is a symbolic link, and fetched files must stay in {out}; name another --out")


def fetch(
    client: HttpClient,
    plan: FetchPlan,
    jobs: int = 4,
    *,
    overwrite: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Download the missing files of a plan over up to `jobs` connections, each verified before it gets its name.

    What is unfinished after an error or an interruption is resumed by the next call. Raises WorkError with the reasons
    if files could not be fetched, and before the first byte if the disk has too little space.
    """
    if not plan.missing:
        return
    partials = plan.out / PARTIAL_FOLDER
    with folder_lock(make_folder(plan.out), COMMAND):
        if partials.is_symlink():
            raise WorkError(f"{partials}: is a symbolic link, which is not followed; remove it")
        make_folder(partials)
        downloads = [_download(plan.out, file, overwrite) for file in plan.missing]
        _require_space(plan.out, downloads)
        for one in downloads:
            make_folder(one.target.parent)
        errors = download_all(client, downloads, jobs, on_bytes)
        for file, one in zip(plan.missing, downloads, strict=True):
            if not os.path.lexists(one.partial) and os.path.lexists(one.target):
                file.state = "fetched"
        if not plan.missing and not any(partials.iterdir()):
            partials.rmdir()
    if errors:
        count = len(plan.missing)
        raise WorkError(
            "\n".join([*map(str, errors), f"{count} file(s) missing; run the same command again to resume"])
        )


def _download(out: Path, file: ListedFile, overwrite: bool) -> Download:
    assert file.remote is not None
    # A hash, since names of the list must not collide with those of unfinished files.
    name = hashlib.sha256(file.target.relative_to(out).as_posix().encode()).hexdigest()[:32]
    return Download(file.remote, file.md5, file.target, out / PARTIAL_FOLDER / f"{name}.partial", overwrite)


def _require_space(out: Path, downloads: Sequence[Download]) -> None:
    """Raise WorkError where the disk has too little space for what is still to be downloaded."""
    needed = sum(one.remote.size - one.resumable_bytes() for one in downloads) + SPARE_BYTES
    free = shutil.disk_usage(out).free
    if needed > free:
        raise WorkError(
            f"{out}: the disk is full: the files need {needed / 1e9:,.2f} GB more, and it has {free / 1e9:,.2f} GB "
            "free; make room, or name a folder on another disk"
        )


def unknown_files(plan: FetchPlan) -> list[str]:
    """Notes on files whose listed MD5 is not the one that MLPerf published."""
    from benchmarks.bert.checkpoint.convert import OFFICIAL_MD5
    from benchmarks.bert.verification.official_data import VOCABULARY

    published = {VOCABULARY_PATH: VOCABULARY.md5, CHECKPOINT_PATH: OFFICIAL_MD5}
    return [
        f"{file.target}: the server lists the MD5 {file.md5}, and MLPerf published {published[file.path]}: a run with "
        "this file is not MLPerf's"
        for listing in plan.listings
        for file in listing.files
        if listing.data_set.name == "inputs" and file.path in published and file.md5 != published[file.path]
    ]


def next_steps(plan: FetchPlan) -> list[str]:
    """Shell commands that prepare the fetched files for training."""
    folders = {listing.data_set.name: listing.folder for listing in plan.listings}
    have = {file.target for listing in plan.listings for file in listing.files if file.state in ("present", "fetched")}
    inputs, texts = (folders.get(name, plan.out / name) for name in ("inputs", "preprocessed"))
    vocabulary = _quote(inputs / VOCABULARY_PATH)
    steps = []
    if texts / ARCHIVE_PATH in have:
        text = texts / ARCHIVE_FOLDER
        steps += [
            f"tar -xzf {_quote(texts / ARCHIVE_PATH)} -C {_quote(texts)}",
            f"podium data prepare --text {_quote(text)}/part-* --vocab {vocabulary} --out data/wikipedia",
            f"podium data prepare --text {_quote(text / 'eval.txt')} --evaluation 10000 --vocab {vocabulary} "
            "--out data/evaluation",
        ]
    if inputs / CHECKPOINT_PATH in have:
        prefix = inputs / CHECKPOINT_PREFIX
        link = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
        if not os.path.lexists(link):
            steps.append(f"ln -s {Path(CHECKPOINT_PATH).name} {_quote(link)}")
        steps.append(f"podium data checkpoint {_quote(prefix)} data/large.safetensors --size large")
    return steps


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
