"""Data for a run: shards prepared once from the text that the configuration names, and reused."""

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
from benchmarks.bert.shard import repeats
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import SampleStore
from benchmarks.bert.upgrade import is_older
from podium.config.schema import IN_ORDER, DataSettings, RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.paths import WORKING_FOLDER
from podium.launch.node_data import NodeData

DATA = WORKING_FOLDER / "data"
GENERATION_VERSION = 2  # another one where the same text is made into other samples


def with_data(config: RunConfig, on_progress: Callable[[str], None], node: NodeData | None = None) -> RunConfig:
    """The configuration with its data prepared and verified, its `data` and `phases` naming nothing but stores.

    `on_progress` is told what takes time, and `node` remembers what was verified. Raises UsageError for files that are
    missing or do not fit together and WorkError for damaged shards.
    """
    config = _prepared(config, on_progress)
    on_progress("Checking the data")
    made_for = verify(config, node)
    data = config.data
    assert data.store and data.evaluation_store
    SampleStore(data.evaluation_store).require_samples(config.evaluation_samples, "evaluation.samples")
    phases = []
    for phase in config.phases:
        length, masked = made_for[phase.store or data.store]
        # what data.store has in common with the others is its own affair
        known = {"max_predictions": masked} if phase.store else {}
        phases.append(phase.model_copy(update={"max_sequence_length": length, **known}))
    return config.model_copy(update={"phases": tuple(phases)})


def verify(config: RunConfig, node: NodeData | None = None) -> dict[Path, tuple[int, int]]:
    """Check vocabulary, division's rules, composition, and every byte that this node reads: UsageError or WorkError.

    No two shards of any of the stores have the same content, and evaluation samples are as long as training's. A store
    that has no manifest gets one then. Returns the most tokens and the most masked tokens of a sample that each store
    was made for.
    """
    data = config.data
    assert data.store and data.evaluation_store and data.vocabulary
    vocabulary = Vocabulary.read(data.vocabulary)
    if data.evaluation_store in config.stores:
        raise UsageError(
            f"data.evaluation_store: {data.evaluation_store} is trained on too; name samples that no run is trained on"
        )
    node, made_for, shards = node or NodeData(), {}, {}
    parts = config.store_parts(node.node)
    for key, store in config.every_store.items():
        try:
            opened = SampleStore(store, parts[key])
            opened.require(vocabulary, data.vocabulary)
            if config.division == "closed":
                opened.require_whole()
            node.verify(opened)
        except WorkError as error:
            hint = f" (or remove {store.parent}: it is then made again)" if DATA in store.parents else ""
            if isinstance(error, ManifestError) and config.shards == "per_rank" and not config.reads_own_part:
                moved = "balancing" if config.balancing not in IN_ORDER else "capacity_overflow"
                instead = "set loader to exchange" if moved == "balancing" else "leave it out"
                hint += (
                    f" (every node needs all shards: with {moved} {getattr(config, moved)} a rank reads samples of the "
                    f"other ranks' parts; {instead} to do with a node's own)"
                )
            raise type(error)(f"{error}{hint}") from None
        opened.keep_manifest()
        listed = zip(opened.paths, opened.manifest.shards, strict=True)
        shards[store] = [(path, {"content_sha256": entry.content_sha256}) for path, entry in listed]
        made_for[store] = opened.max_sequence_length, opened.max_predictions
        if opened.max_sequence_length > config.model_size.positions:
            raise UsageError(
                f"{store}: has samples of up to {opened.max_sequence_length} tokens, and size {config.size} has "
                f"{config.model_size.positions} positions; prepare samples of at most as many tokens"
            )
    for length in {made_for[store] for store in config.stores}:  # short samples are the same for several lengths
        alike = [store for store in config.stores if made_for[store] == length]
        if repeated := repeats(shard for store in (data.evaluation_store, *alike) for shard in shards[store]):
            raise UsageError(f"{repeated[0]}, neither in one store nor in two; name stores without a shard in common")
    _require_lengths(config, made_for)
    for number, phase in enumerate(config.phases):
        store = phase.store or data.store
        for key, found in zip(("max_sequence_length", "max_predictions"), made_for[store], strict=True):
            if (wanted := getattr(phase, key)) not in (None, found):
                raise UsageError(
                    f"phases.{number}.{key} is {wanted}, but the samples in {store} were made with {found}; name a "
                    f"folder of such samples in phases.{number}.store, or leave {key} out"
                )
    return made_for


def _require_lengths(config: RunConfig, made_for: Mapping[Path, tuple[int, int]]) -> None:
    """UsageError for evaluation samples that are shorter than training's, and in closed for any but MLPerf's."""
    evaluation, usual = config.data.evaluation_store, GenerationSettings()
    assert evaluation is not None
    longest = max(made_for[store][0] for store in config.stores)
    if made_for[evaluation][0] < longest:
        raise UsageError(
            f"data.evaluation_store: {evaluation} was made for {made_for[evaluation][0]} tokens, and the samples to "
            f"train on for {longest}; allowed is {longest} or more: prepare it with --max-sequence-length {longest}"
        )
    official = usual.max_sequence_length, usual.max_predictions
    for store, found in made_for.items():
        if config.division == "closed" and found != official:
            raise UsageError(
                f"{store}: closed division, Data set: found samples of up to {found[0]} tokens with up to {found[1]} "
                f"masked, allowed are {official[0]} with {official[1]}; prepare it without --max-sequence-length"
            )


def is_prepared(config: RunConfig) -> bool:
    """Whether the samples of the text that a configuration names are there already; of anything else they are."""
    data = config.data
    if data.kind != "text":
        return True
    assert data.evaluation_text and data.vocabulary
    files = (*data.text, data.evaluation_text, data.vocabulary)
    if not all(path.is_file() for path in files):
        return False
    wanted = _wanted(config, "text", data.text, data.evaluation_text, data.vocabulary)
    return all(_is_made(store, texts) for store, texts, _ in wanted)


def _prepared(config: RunConfig, on_progress: Callable[[str], None]) -> RunConfig:
    """With the stores that the settings name, or those of the text named, made where they are not there yet."""
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
    """Shards in a folder named for the content of all that goes into them, made where they are not there yet."""
    named = [("text", path) for path in texts] + [("evaluation_text", evaluation), ("vocabulary", vocabulary)]
    for key, path in named:
        if not path.is_file():
            raise UsageError(f"data.{key}: there is no file {path}; name one that exists")
    wanted = _wanted(config, name, texts, evaluation, vocabulary)
    for store, sources, settings in wanted:
        if _is_made(store, sources):
            if not is_older(store):
                continue
            on_progress(f"Converting the samples in {store}, which an older version has made")
        else:
            names = ", ".join(source.name for source in sources)
            length = settings.max_sequence_length
            of_length = f" of up to {length} tokens" if length != SEQUENCE_LENGTH else ""
            on_progress(f"Making samples{of_length} from {names}")
        prepare(sources, vocabulary, store, settings, processes=min(len(sources), os.cpu_count() or 1))
    (training, _, usual), (evaluated, _, _), *_ = wanted
    made = {settings: store for store, sources, settings in wanted if sources == texts and settings != usual}
    phases = [p if p.store else p.model_copy(update={"store": made.get(p.generation)}) for p in config.phases]
    data = DataSettings(store=training, evaluation_store=evaluated, vocabulary=vocabulary)
    return config.model_copy(update={"data": data, "phases": tuple(phases)})


Wanted = tuple[Path, tuple[Path, ...], GenerationSettings]  # a store, the texts that it is made of, and how


def _wanted(config: RunConfig, name: str, texts: tuple[Path, ...], evaluation: Path, vocabulary: Path) -> list[Wanted]:
    """The stores to train and to evaluate on, and one for each other length that phases train on."""
    folder, usual = DATA / name / f"samples-{_digest((*texts, evaluation, vocabulary))}", GenerationSettings()
    of_phases = dict.fromkeys(phase.generation for phase in config.phases if phase.store is None)
    others = [settings for settings in of_phases if settings != usual]
    return [
        (folder / "training", texts, usual),
        (folder / "evaluation", (evaluation,), usual),
        *((folder / f"training-{s.max_sequence_length}-{s.max_predictions}", texts, s) for s in others),
    ]


def _is_made(store: Path, sources: tuple[Path, ...]) -> bool:
    whole = not (store / MARKER).exists()
    return whole and all((store / f"{source.name}.h5").is_file() for source in sources)


def _digest(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(repr((GENERATION_VERSION, astuple(GenerationSettings()))).encode())
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
