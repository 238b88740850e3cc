"""Data for a run: shards prepared once from the text that the configuration names, and reused."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

from benchmarks.bert.demo_text import EmbeddedText, write_embedded_text
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import FORMAT_VERSION, SampleStore
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.paths import WORKING_FOLDER

DATA = WORKING_FOLDER / "data"


def with_data(config: RunConfig, on_progress: Callable[[str], None]) -> RunConfig:
    """The configuration with its data prepared and verified, its `data` naming nothing but stores.

    `on_progress` is told what takes time. Raises UsageError for files that are missing or do not fit together and
    WorkError for damaged shards.
    """
    data = _prepared(config.data, on_progress)
    on_progress("Checking the data")
    verify(data, config.division)
    assert data.evaluation_store
    SampleStore(data.evaluation_store).require_samples(config.evaluation_samples, "evaluation.samples")
    return config.model_copy(update={"data": data})


def verify(data: DataSettings, division: str) -> None:
    """Check the vocabulary, the division's rule for samples, and every byte of both stores: UsageError or WorkError.

    A store that has no manifest gets one then.
    """
    assert data.store and data.evaluation_store and data.vocabulary
    vocabulary = Vocabulary.read(data.vocabulary)
    for store in (data.store, data.evaluation_store):
        try:
            opened = SampleStore(store)
            opened.require(vocabulary, data.vocabulary)
            if division == "closed":
                opened.require_whole()
            opened.verify()
        except WorkError as error:
            hint = f" (or remove {store.parent}: it is then made again)" if DATA in store.parents else ""
            raise type(error)(f"{error}{hint}") from None
        opened.keep_manifest()


def is_prepared(config: RunConfig) -> bool:
    """Whether the samples of the text that a configuration names are there already; of anything else they are."""
    data = config.data
    if data.kind != "text":
        return True
    assert data.evaluation_text and data.vocabulary
    files = (*data.text, data.evaluation_text, data.vocabulary)
    if not all(path.is_file() for path in files):
        return False
    stores = _stores("text", files)
    sources = (data.text, (data.evaluation_text,))
    return all(_is_made(store, names) for store, names in zip(stores, sources, strict=True))


def _prepared(data: DataSettings, on_progress: Callable[[str], None]) -> DataSettings:
    """The stores that the settings name, or those of the text that they name, made where they are not there yet."""
    if data.kind == "store":
        return data
    if data.kind == "embedded":
        text = EmbeddedText.of(DATA / "embedded" / "text")
        if not text.is_written():
            on_progress("Writing the embedded text")
            write_embedded_text(DATA / "embedded" / "text")
        return _from_text("embedded", text.training, text.evaluation, text.vocabulary, on_progress)
    assert data.evaluation_text and data.vocabulary
    return _from_text("text", data.text, data.evaluation_text, data.vocabulary, on_progress)


def _from_text(
    name: str, texts: tuple[Path, ...], evaluation: Path, vocabulary: Path, on_progress: Callable[[str], None]
) -> DataSettings:
    """Shards in a folder named for the content of all that goes into them, made where they are not there yet."""
    named = [("text", path) for path in texts] + [("evaluation_text", evaluation), ("vocabulary", vocabulary)]
    for key, path in named:
        if not path.is_file():
            raise UsageError(f"data.{key}: there is no file {path}; name one that exists")
    stores = _stores(name, (*texts, evaluation, vocabulary))
    for store, sources in zip(stores, (texts, (evaluation,)), strict=True):
        if _is_made(store, sources):
            continue
        on_progress(f"Making samples from {', '.join(source.name for source in sources)}")
        prepare(sources, vocabulary, store, processes=min(len(sources), os.cpu_count() or 1))
    return DataSettings(store=stores[0], evaluation_store=stores[1], vocabulary=vocabulary)


def _stores(name: str, files: tuple[Path, ...]) -> tuple[Path, Path]:
    """Where the samples to train and to evaluate on belong that are made of these files."""
    folder = DATA / name / f"samples-{_digest(files)}"
    return folder / "training", folder / "evaluation"


def _is_made(store: Path, sources: tuple[Path, ...]) -> bool:
    return all((store / f"{source.name}.h5").is_file() for source in sources)


def _digest(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(repr((FORMAT_VERSION, astuple(GenerationSettings()))).encode())
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
