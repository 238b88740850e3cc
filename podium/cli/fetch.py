"""`podium data fetch`: downloads MLPerf's inputs of BERT from MLCommons' storage, resumable and verified by MD5."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from podium.cli.options import AsJson, print_output
from podium.core.console import Console, print_line, print_message, print_note, print_text, progress_bar, text_table
from podium.core.errors import Interrupted, UsageError

if TYPE_CHECKING:  # each command imports its libraries itself, so that the other commands start faster
    from benchmarks.bert.fetch import FetchPlan

ACCEPT = "--accept-licence"


def fetch(
    data_set: Annotated[
        Literal["inputs", "preprocessed", "all"],
        typer.Argument(
            metavar="inputs|preprocessed|all",
            help="inputs: vocabulary and checkpoint (MLCommons' bert-input-files); preprocessed: the cleaned text of "
            "Wikipedia (bert-preprocessed-wikipedia-dataset); all: both.",
        ),
    ] = "all",
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="Folder for the files, in which each data set gets a folder."),
    ] = Path("data/mlperf"),
    accept_licence: Annotated[
        bool,
        typer.Option(
            ACCEPT, "--accept-license", help="Accept the licence of the data. Without it nothing is downloaded."
        ),
    ] = False,
    all_files: Annotated[
        bool,
        typer.Option(
            "--all-files",
            help="Also fetch what training does not need: the dump, TensorFlow 2's checkpoint, the text as .zip.",
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="Folder of the .uri and .md5 files on another server. Default: MLCommons'."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Number of files to download in parallel.")
    ] = 4,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="Seconds without a byte after which a connection counts as broken.",
        ),
    ] = 60.0,
    retries: Annotated[int, typer.Option(min=0, max=1000, help="Number of retries after failures of a file.")] = 5,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing files whose content is not the listed one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch MLPerf's inputs from MLCommons' storage: list them, download, resume and verify them by MD5.

    Has no prompt and opens no browser. Run the same command again to resume after an interruption; files that are
    complete are not downloaded again. A proxy is taken from HTTPS_PROXY.
    """
    from benchmarks.bert.fetch import DATA_SETS, LICENCE, METADATA_URL, make_plan, unknown_files
    from benchmarks.bert.fetch import fetch as fetch_files
    from podium.core.download import HttpClient, require_url

    # A user who names an http:// URL, such as of a mirror in a cluster, accepts that it is not encrypted.
    insecure = url is not None and url.startswith("http://")
    metadata_url = METADATA_URL if url is None else require_url(url, "--url", insecure)
    client = HttpClient(timeout=timeout, retries=retries, insecure=insecure, report=print_message)
    data_sets = [one for one in DATA_SETS if data_set in (one.name, "all")]
    with progress_bar() as bar:
        bar.add_task("Reading the lists, checking existing files", total=None)
        plan = make_plan(client, data_sets, metadata_url, out, all_files=all_files, overwrite=overwrite)
    for note in unknown_files(plan):
        print_note(note)
    if plan.missing and not accept_licence:
        if not as_json:
            _print_plan(Console(), plan)
        raise UsageError(
            f"{LICENCE}; License.txt in each folder has the terms, also of the checkpoint:\n"
            + "".join(f"    {one}\n" for one in _licence_urls(plan))
            + f"Read it, and give {ACCEPT} to accept it and to download {_gigabytes(plan.missing_bytes)}"
        )
    if plan.missing:
        print_note(f"Files to download to {out}: {len(plan.missing)}, {_gigabytes(plan.missing_bytes)}")
    try:
        with progress_bar() as bar:
            task = bar.add_task("Downloading", total=plan.missing_bytes)
            fetch_files(client, plan, jobs, overwrite=overwrite, on_bytes=lambda number: bar.advance(task, number))
    except Interrupted:
        print_message(f"what was downloaded is kept in {out}; run the same command again to resume")
        raise
    print_output(as_json, _as_json(plan), lambda to: _print_plan(to, plan))
    if not as_json:
        _print_next(plan)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e7 else f"{size:,} bytes"


def _licence_urls(plan: "FetchPlan") -> list[str]:
    from podium.core.download import join_url

    return [
        join_url(listing.base_url, file.path)
        for listing in plan.listings
        for file in listing.files
        if file.path.rpartition("/")[2].lower() in ("license.txt", "licence.txt") and file.state != "left out"
    ]


def _print_plan(to: Console, plan: "FetchPlan") -> None:
    table = text_table("file", "size", "state")
    for listing in plan.listings:
        for file in listing.files:
            size = _gigabytes(file.remote.size) if file.remote else "–"
            table.add_row(f"{listing.data_set.name}/{file.path}", size, file.state)
    to.print(table)
    if any(file.state == "left out" for listing in plan.listings for file in listing.files):
        print_line(to, "Left out: files that training does not need; --all-files fetches them too.")


def _print_next(plan: "FetchPlan") -> None:
    from benchmarks.bert.fetch import next_steps

    if steps := next_steps(plan):
        print_text("\nNext:")
        for step in steps:
            print_text(f"  {step}")


def _as_json(plan: "FetchPlan") -> dict[str, Any]:
    from benchmarks.bert.fetch import LICENCE, next_steps

    return {
        "out": str(plan.out),
        "licence": LICENCE,
        "data_sets": [
            {
                "name": listing.data_set.name,
                "list": listing.list_url,
                "url": listing.base_url,
                "folder": str(listing.folder),
                "files": [
                    {
                        "path": file.path,
                        "size": file.remote.size if file.remote else None,
                        "md5": file.md5,
                        "state": file.state,
                    }
                    for file in listing.files
                ],
            }
            for listing in plan.listings
        ],
        "next": next_steps(plan),
    }
