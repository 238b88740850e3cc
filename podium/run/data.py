"""Prepares and verifies the data of a run. Shards are made once from the configured text, and reused."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path

from benchmarks.bert.demo_text import EmbeddedText, write_embedded_text
from benchmarks.bert.manifest import MARKER, ManifestError
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.shard import describe_duplicates
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import SampleStore
from benchmarks.bert.upgrade import has_older_shards
from podium.config.schema import WITHOUT_REASSIGNMENT, DataSettings, RunConfig
from podium.core.console import waiting
from podium.core.errors import UsageError, WorkError
from podium.core.paths import WORKING_FOLDER
from podium.launch.node_data import NodeData

DATA = WORKING_FOLDER / "data"
GENERATION_VERSION = 2  # increased whenever the same text gives other samples, so that old stores are not reused


def with_data(config: RunConfig, on_progress: Callable[[str], None], node: NodeData | None = None) -> RunConfig:
    """Prepare and verify the data, and return the configuration with `data` and `phases` naming only stores.

    `on_progress` is called with a description of each long operation; `node` caches what was verified. UsageError for
    files that are missing or do not fit together, WorkError for damaged shards.
    """
    config = _prepared(config, on_progress)
    on_progress("Checking the data")
    with waiting("Checking the data", announced=True):
        limits = verify(config, node)
    data = config.data
    assert data.store and data.evaluation_store
    SampleStore(data.evaluation_store).require_samples(config.evaluation_samples, "evaluation.samples")
    phases = []
    for phase in config.phases:
        length, masked = limits[phase.store or data.store]
        # Phases on data.store keep max_predictions unset, since data.store determines it.
        update = {"max_sequence_length": length} | ({"max_predictions": masked} if phase.store else {})
        phases.append(phase.model_copy(update=update))
    return config.model_copy(update={"phases": tuple(phases)})


def verify(config: RunConfig, node: NodeData | None = None) -> dict[Path, tuple[int, int]]:
    """Verify the configured stores, and return for each the maximum tokens and masked tokens of a sample.

    Checks the vocabulary, the rules of the division, that no two shards of the stores have the same content, that
    evaluation samples are as long as training samples, and the digest of every shard that this node reads. Writes the
    manifest of a store that has none. UsageError or WorkError for what is found.
    """
    data = config.data
    assert data.store and data.evaluation_store and data.vocabulary
    vocabulary = Vocabulary.read(data.vocabulary)
    if data.evaluation_store in config.stores:
        raise UsageError(
            f"data.evaluation_store: {data.evaluation_store} is also a training store; name a store that is not "
            "trained on"
        )
    node, limits, shards = node or NodeData(), {}, {}
    parts = config.store_parts(node.node)
    for key, store in config.all_stores.items():
        try:
            opened = SampleStore(store, parts[key])
            opened.require_vocabulary(vocabulary, data.vocabulary)
            if config.division == "closed":
                opened.require_all_samples()
            node.verify(opened)
        except WorkError as error:
            hint = f" (or remove {store.parent}: it is prepared again then)" if DATA in store.parents else ""
            if isinstance(error, ManifestError) and config.shards == "per_rank" and not config.reads_own_part:
                key = "balancing" if config.balancing not in WITHOUT_REASSIGNMENT else "capacity_overflow"
                remedy = "set loader to exchange" if key == "balancing" else f"leave out {key}"
                hint += (
                    f" (every node needs all shards, since with {key} {getattr(config, key)} a rank also reads samples "
                    f"of other ranks' parts; {remedy} if each node has only its part)"
                )
            raise type(error)(f"{error}{hint}") from None
        opened.write_missing_manifest()
        listed = zip(opened.paths, opened.manifest.shards, strict=True)
        shards[store] = [(path, {"content_sha256": entry.content_sha256}) for path, entry in listed]
        limits[store] = opened.max_sequence_length, opened.max_predictions
        if opened.max_sequence_length > config.model_size.positions:
            raise UsageError(
                f"{store}: has samples of up to {opened.max_sequence_length} tokens, but size {config.size} has only "
                f"{config.model_size.positions} positions; prepare samples of at most that many tokens"
            )
    # Stores of different lengths are compared only within each length: from documents that are shorter than both
    # limits, the same text gives the same samples in both stores.
    for length in {limits[store] for store in config.stores}:
        same_length = [store for store in config.stores if limits[store] == length]
        if repeated := describe_duplicates(
            shard for store in (data.evaluation_store, *same_length) for shard in shards[store]
        ):
            raise UsageError(f"{repeated[0]}, neither in one store nor in two; name stores without a shard in common")
    _require_lengths(config, limits)
    for number, phase in enumerate(config.phases):
        store = phase.store or data.store
        for key, found in zip(("max_sequence_length", "max_predictions"), limits[store], strict=True):
            if (wanted := getattr(phase, key)) not in (None, found):
                raise UsageError(
                    f"phases.{number}.{key} is {wanted}, but the samples in {store} were made with {found}; name a "
                    f"store with that limit in phases.{number}.store, or leave out {key}"
                )
    return limits


def _require_lengths(config: RunConfig, limits: Mapping[Path, tuple[int, int]]) -> None:
    """UsageError for evaluation samples shorter than training samples, and in closed for lengths other than MLPerf's.

    `limits` has the maximum tokens and masked tokens of a sample of each store.
    """
    evaluation, default = config.data.evaluation_store, GenerationSettings()
    assert evaluation is not None
    longest = max(limits[store][0] for store in config.stores)
    if limits[evaluation][0] < longest:
        raise UsageError(
            f"data.evaluation_store: {evaluation} was made for {limits[evaluation][0]} tokens, and the training "
            f"samples for {longest}; allowed is {longest} or more: prepare it with --max-sequence-length {longest}"
        )
    official = default.max_sequence_length, default.max_predictions
    for store, found in limits.items():
        if config.division == "closed" and found != official:
            raise UsageError(
                f"{store}: closed division, Data set: found samples of up to {found[0]} tokens with up to {found[1]} "
                f"masked, allowed are {official[0]} with {official[1]}; prepare it without --max-sequence-length"
            )


def is_prepared(config: RunConfig) -> bool:
    """Whether the stores of the configured text exist already. True for data that is not a user's text."""
    data = config.data
    if data.kind != "text":
        return True
    assert data.evaluation_text and data.vocabulary
    files = (*data.text, data.evaluation_text, data.vocabulary)
    if not all(path.is_file() for path in files):
        return False
    plans = _plan_stores(config, "text", data.text, data.evaluation_text, data.vocabulary)
    return all(_is_complete(store, texts) for store, texts, _ in plans)


def _prepared(config: RunConfig, on_progress: Callable[[str], None]) -> RunConfig:
    """Return the configuration with stores as its data, prepared from the configured text where they are missing."""
    data = config.data
    if data.kind == "store":
        return config
    if data.kind == "embedded":
        text = EmbeddedText.of(DATA / "embedded" / "text")
        if not text.is_written():
            on_progress("Writing the embedded text")
            write_embedded_text(DATA / "embedded" / "text")
        return _from_text(config, "embedded", text.training, text.evaluation, text.vocabulary, on_progress)
    assert data.evaluation_text and data.vocabulary
    return _from_text(config, "text", data.text, data.evaluation_text, data.vocabulary, on_progress)


def _from_text(
    config: RunConfig,
    name: str,
    texts: tuple[Path, ...],
    evaluation: Path,
    vocabulary: Path,
    on_progress: Callable[[str], None],
) -> RunConfig:
    """Return the configuration with stores of these texts, prepared or converted where necessary.

    The stores' folder is named by a hash of everything that determines the samples.
    """
    inputs = [("text", path) for path in texts] + [("evaluation_text", evaluation), ("vocabulary", vocabulary)]
    for key, path in inputs:
        if not path.is_file():
            raise UsageError(f"data.{key}: there is no file {path}; name one that exists")
    plans = _plan_stores(config, name, texts, evaluation, vocabulary)
    for store, sources, settings in plans:
        if _is_complete(store, sources):
            if not has_older_shards(store):
                continue
            on_progress(f"Converting the samples in {store}, made by an older version")
        else:
            names = ", ".join(source.name for source in sources)
            length = settings.max_sequence_length
            of_length = f" of up to {length} tokens" if length != SEQUENCE_LENGTH else ""
            on_progress(f"Making samples{of_length} from {names}")
        prepare(sources, vocabulary, store, settings, processes=min(len(sources), os.cpu_count() or 1))
    (training, _, default), (evaluation_store, _, _), *_ = plans
    by_settings = {settings: store for store, sources, settings in plans if sources == texts and settings != default}
    phases = [p if p.store else p.model_copy(update={"store": by_settings.get(p.generation)}) for p in config.phases]
    data = DataSettings(store=training, evaluation_store=evaluation_store, vocabulary=vocabulary)
    return config.model_copy(update={"data": data, "phases": tuple(phases)})


StorePlan = tuple[Path, tuple[Path, ...], GenerationSettings]  # a store, the texts that it is made from, and how


def _plan_stores(
    config: RunConfig, name: str, texts: tuple[Path, ...], evaluation: Path, vocabulary: Path
) -> list[StorePlan]:
    """Return the training and the evaluation store, and a training store for each other length of the phases."""
    folder, default = DATA / name / f"samples-{_digest((*texts, evaluation, vocabulary))}", GenerationSettings()
    of_phases = dict.fromkeys(phase.generation for phase in config.phases if phase.store is None)
    others = [settings for settings in of_phases if settings != default]
    return [
        (folder / "training", texts, default),
        (folder / "evaluation", (evaluation,), default),
        *((folder / f"training-{s.max_sequence_length}-{s.max_predictions}", texts, s) for s in others),
    ]


def _is_complete(store: Path, sources: tuple[Path, ...]) -> bool:
    finished = not (store / MARKER).exists()  # the marker is removed after the last shard was written
    return finished and all((store / f"{source.name}.h5").is_file() for source in sources)


def _digest(files: tuple[Path, ...]) -> str:
    """Return 16 hex digits of SHA-256 over the files' names and contents and the generation's version and defaults."""
    digest = hashlib.sha256(repr((GENERATION_VERSION, astuple(GenerationSettings()))).encode())
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
