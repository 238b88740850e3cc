"""Prepare a sample store: one shard for each text file, in several processes."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

from benchmarks.bert.preparation.literal import generate_literally as generate_samples
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import SUFFIX, Origin, write_shard
from benchmarks.errors import UsageError, WorkError
from benchmarks.files import make_folder, remove_unfinished, sha256_of
from benchmarks.processes import end_with_parent


def prepare(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    on_finished: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Make the shard out/NAME.h5 of each text file NAME and return the shards in the order of the texts.

    A shard that is there already is replaced. At most `processes` worker processes share the texts; the shards do
    not depend on their number. `on_finished` is told of each finished shard, in the order of finishing.

    Raises UsageError, before anything is written, for inputs that cannot serve, and WorkError for a text that is
    not UTF-8 or has no document, and for a disk that is full. After a failure the finished shards are whole and
    nothing half-written remains.
    """
    settings = settings or GenerationSettings()
    _check_texts(texts)
    if processes < 1:
        raise UsageError(f"{processes} processes were asked for; give 1 or more")
    words = Vocabulary.read(vocabulary)
    make_folder(out)
    shards = {text: out / f"{text.name}{SUFFIX}" for text in texts}
    finished = (
        _prepare_here(shards, words, settings)
        if processes == 1
        else _prepare_in_processes(shards, words, settings, min(processes, len(texts)))
    )
    with closing(finished):
        for shard in finished:
            if on_finished is not None:
                on_finished(shard)
    return list(shards.values())


def prepare_text(text: Path, vocabulary: Vocabulary, shard: Path, settings: GenerationSettings) -> None:
    """Make the shard of one text file; raises WorkError if the text or the disk does not allow it."""
    samples = generate_samples(read_lines(text), vocabulary, settings, source=str(text))
    write_shard(shard, samples, Origin.of_text(text.name, sha256_of(text), vocabulary.sha256, settings))


def read_lines(text: Path) -> Iterator[str]:
    r"""The lines of a UTF-8 file, which end at \n and nowhere else.

    Raises WorkError that names the first byte that is not UTF-8, counted from 0.
    """
    start = 0
    try:
        with text.open("rb") as file:
            for line in file:
                yield line.decode("utf-8")
                start += len(line)
    except UnicodeDecodeError as error:
        where = f"at byte {start + error.start}"
        raise WorkError(f"{text}: the text is not UTF-8 {where} ({error.reason}); convert it to UTF-8") from error
    except OSError as error:
        raise WorkError(f"{text}: the text cannot be read ({error.strerror})") from error


def _check_texts(texts: Sequence[Path]) -> None:
    """Raise UsageError unless there are texts, all can be opened, and each has a name of its own."""
    if not texts:
        raise UsageError("no text files were given; give the parts of the text, one sentence a line")
    for text in texts:
        try:
            with text.open("rb"):
                pass
        except FileNotFoundError:
            raise UsageError(f"{text}: there is no such text file") from None
        except IsADirectoryError:
            raise UsageError(f"{text}: this is a folder; give the text files in it") from None
        except OSError as error:
            raise UsageError(f"{text}: the text file cannot be read ({error.strerror})") from error
    name, occurrences = Counter(text.name for text in texts).most_common(1)[0]
    if occurrences > 1:
        raise UsageError(
            f"{occurrences} text files have the name {name}; a shard is named for its text, so rename them"
        )


def _prepare_here(
    shards: dict[Path, Path], vocabulary: Vocabulary, settings: GenerationSettings
) -> Generator[Path, None, None]:
    for text, shard in shards.items():
        prepare_text(text, vocabulary, shard, settings)
        yield shard


def _prepare_in_processes(
    shards: dict[Path, Path], vocabulary: Vocabulary, settings: GenerationSettings, processes: int
) -> Generator[Path, None, None]:
    """Yields the shards as they are finished; after a failure no further text is begun."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker) as pool:
        futures = {
            pool.submit(prepare_text, text, vocabulary, shard, settings): shard for text, shard in shards.items()
        }
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BrokenProcessPool as error:
            for shard in shards.values():
                remove_unfinished(shard)
            advice = "see that the machine has enough memory, or use fewer processes"
            raise WorkError(f"a worker process died while it prepared a text; {advice}") from error
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.terminate()
            for shard in shards.values():
                remove_unfinished(shard)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Ctrl-C is the parent's to answer, and a worker does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
