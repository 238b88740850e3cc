"""Data of a run: prepared once and reused; missing, damaged or unsuitable data are errors."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.manifest import MANIFEST, MARKER, ManifestError
from benchmarks.bert.preparation.prepare import prepare, prepare_subset
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Shard, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from podium.config.load import load_system
from podium.config.schema import DataSettings, Evaluation, RunConfig
from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError
from podium.launch import page_cache
from podium.launch.node_data import NodeData
from podium.run.data import is_prepared, verify, with_data
from tests.benchmarks.bert.test_upgrade import write_older


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a test, with an embedded text of only a few articles."""
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "data")
    monkeypatch.setattr("benchmarks.bert.demo_text.ARTICLES_PER_PART", 3)
    monkeypatch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
    monkeypatch.setattr("podium.run.data.os.cpu_count", lambda: 1)  # no worker processes, which is faster
    return tmp_path / "data"


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Two small texts and a vocabulary, as keys and values of `data:`."""
    vocabulary = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *"abcdefg"]
    for name, text in (("one", "a b c d\ne f\n\ng a\nb c\n"), ("two", "c c\nd a b\n\ne e\nf\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return {name: str(tmp_path / path) for name, path in zip(KEYS, ("one", "two", "vocab.txt"), strict=True)}


KEYS = ("text", "evaluation_text", "vocabulary")


def settings_of(data: dict[str, Any]) -> list[str]:
    return ["evaluation.samples=20", *(f"data.{key}={value}" for key, value in data.items())]


def config_of(data: dict[str, Any]) -> RunConfig:
    return load_system("laptop", settings=settings_of(data))


def prepared(config: RunConfig) -> tuple[RunConfig, list[str]]:
    notes: list[str] = []
    return with_data(config, notes.append), notes


def test_embedded_text_is_prepared_once_and_reused(folder: Path, open_config: RunConfig) -> None:
    config, notes = prepared(open_config)
    assert config.data.kind == "store"
    assert config.data.store and config.data.evaluation_store and config.data.vocabulary
    assert all(path.is_relative_to(folder) for path in (config.data.store, config.data.vocabulary))
    names = [path.name for path in SampleStore(config.data.store).paths]
    assert names == [f"part-{number:05d}.h5" for number in range(4)]
    assert len(SampleStore(config.data.evaluation_store)) > 0
    assert [note for note in notes if note.startswith("Making samples from")] == [
        "Making samples from part-00000, part-00001, part-00002, part-00003",
        "Making samples from eval.txt",
    ]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.h5")}
    again, notes = prepared(open_config)
    assert again == config
    assert not [note for note in notes if note.startswith("Making samples")]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.h5")} == before
    assert config.model_copy(update={"data": open_config.data}) == open_config


def states(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inodes and times of a folder and its files, which every write and every new or removed file changes."""
    found = {str(path): path.stat() for path in (folder, *folder.rglob("*"))}
    return {name: (state.st_ino, state.st_mtime_ns, state.st_ctime_ns) for name, state in found.items()}


def test_nothing_is_written_if_everything_is_prepared(folder: Path, open_config: RunConfig) -> None:
    """The text differs from the one with the known digest, as with another version of the tokenizers library."""
    prepared(open_config)
    before = states(folder)
    prepared(open_config)
    assert states(folder) == before


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 77
exec "$2" -c '
import sys
from pathlib import Path
import benchmarks.bert.demo_text as text, podium.run.data as data
from podium.config.load import load_system
data.DATA, text.ARTICLES_PER_PART, text.EVALUATION_ARTICLES = Path(sys.argv[1]), 3, 2
try:
    (data.DATA / "probe").touch()
except OSError:
    config = load_system("laptop", settings=["evaluation.samples=20"])
    print(data.with_data(config, lambda _: None).data.store)
' "$1"
"""


def test_prepared_data_in_a_read_only_folder_is_used(folder: Path, open_config: RunConfig) -> None:
    config, _ = prepared(open_config)
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", str(folder), sys.executable]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command[:2], "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this user may not mount")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this user may not mount")
    assert (done.returncode, done.stdout) == (0, f"{config.data.store}\n"), done.stderr


def test_missing_shard_is_prepared_again(open_config: RunConfig) -> None:
    config, _ = prepared(open_config)
    assert config.data.store
    shard = config.data.store / "part-00002.h5"
    content = shard.read_bytes()
    shard.unlink()
    _, notes = prepared(open_config)
    assert any(note.startswith("Making samples from part-00000") for note in notes)
    assert shard.read_bytes() == content


def test_older_shards_are_converted_and_damaged_ones_prepared_again(open_config: RunConfig) -> None:
    config, _ = prepared(open_config)
    assert config.data.store
    shards = sorted(config.data.store.glob("*.h5"))
    contents = [shard.read_bytes() for shard in shards]
    for shard in shards:
        write_older(shard)
    shards[1].write_bytes(shards[1].read_bytes()[:-9])
    _, notes = prepared(open_config)
    assert any(note.startswith("Converting the samples in ") for note in notes)
    assert [shard.read_bytes() for shard in shards] == contents


def test_each_text_is_prepared_in_its_own_folder(texts: dict[str, str], folder: Path) -> None:
    config, _ = prepared(config_of(texts))
    assert (config.data.text, config.data.evaluation_text) == ((), None)
    assert config.data.vocabulary == Path(texts["vocabulary"])
    assert config.data.store and config.data.store.is_relative_to(folder / "text")
    again, notes = prepared(config_of(texts))
    assert (again.data.store, len(notes)) == (config.data.store, 1)
    Path(texts["text"]).write_text("g g\ng\n\na a\nb\n", encoding="utf-8")
    other, notes = prepared(config_of(texts))
    assert other.data.store != config.data.store
    assert config.data.store.is_dir()
    assert len(notes) == 3


def test_prepared_store_is_used_unchanged(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    config = config_of(given)
    assert prepared(config) == (config, ["Checking the data"])


def test_manifest_is_written_once_and_compared_later(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    assert data.store
    manifest = data.store / MANIFEST
    before = manifest.read_bytes()
    manifest.unlink()
    prepared(config_of(given))
    assert manifest.read_bytes() == before
    shutil.copy(data.store / "one.h5", data.store / "two.h5")
    with pytest.raises(
        ManifestError, match=r"two\.h5 is one shard too many, .*\(or remove .*: it is prepared again then"
    ):
        prepared(config_of(given))
    (data.store / "one.h5").unlink()
    with pytest.raises(ManifestError, match=r"one\.h5 is missing, manifest\.json has it \(1 more difference\)"):
        prepared(config_of(given))
    (data.store / "two.h5").unlink()
    with pytest.raises(UsageError, match=r"no \*\.h5 shard is in it"):
        prepared(config_of(given))


def test_damaged_store_gets_no_manifest(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    assert data.store
    (data.store / MANIFEST).unlink()
    flip(data.store / "one.h5")
    with pytest.raises(WorkError, match="its content has the SHA-256"):
        prepared(config_of(texts))
    assert not (data.store / MANIFEST).exists()


@pytest.mark.parametrize("key", KEYS)
def test_missing_text_or_vocabulary_is_a_usage_error(texts: dict[str, str], folder: Path, key: str) -> None:
    Path(texts[key]).unlink()
    with pytest.raises(UsageError, match=f"^data.{key}: there is no file {texts[key]}; name one that exists$"):
        prepared(config_of(texts))
    assert not folder.exists()


@pytest.mark.parametrize("key", ["store", "evaluation_store", "vocabulary"])
def test_missing_store_is_a_usage_error(texts: dict[str, str], tmp_path: Path, key: str) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    with pytest.raises(UsageError, match=f"{tmp_path}/none: there is no such "):
        prepared(config_of({**given, key: tmp_path / "none"}))


def test_text_without_a_document_is_an_error(texts: dict[str, str]) -> None:
    Path(texts["text"]).write_text("\n", encoding="utf-8")
    with pytest.raises(WorkError, match="one: there is no document in it"):
        prepared(config_of(texts))


def flip(path: Path) -> None:
    """Change one bit of the samples' tokens."""
    tokens = Shard(path).read(0).token_ids.tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(tokens)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", ["store", "evaluation_store"])
def test_damaged_shard_is_an_error_with_advice(open_config: RunConfig, which: str) -> None:
    config, _ = prepared(open_config)
    store: Path = getattr(config.data, which)
    shard = sorted(store.glob("*.h5"))[0]
    flip(shard)
    with pytest.raises(WorkError) as caught:
        prepared(open_config)
    message = str(caught.value)
    assert message.startswith(f"{shard}: the shard cannot be used: its content has the SHA-256 ")
    assert message.endswith(f"(or remove {store.parent}: it is prepared again then)")


def test_interruption_of_the_check_does_not_advise_removal(
    open_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(open_config)

    def interrupted(*_: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(NodeData, "verify", interrupted)
    with pytest.raises(Interrupted, match=r"^interrupted$"):
        prepared(open_config)


def test_removal_of_a_users_damaged_store_is_not_advised(
    open_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepared(open_config)[0].data
    assert data.store
    flip(data.store / "part-00003.h5")
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "elsewhere")
    with pytest.raises(WorkError, match=r"part-00003\.h5: .* prepare it again with `podium data prepare`$"):
        prepared(config_of(given))


def test_store_of_another_vocabulary_is_an_error(texts: dict[str, str], tmp_path: Path) -> None:
    data = prepared(config_of(texts))[0].data
    vocabulary = tmp_path / "other.txt"
    vocabulary.write_text(Path(texts["vocabulary"]).read_text(encoding="utf-8") + "\nh", encoding="utf-8")
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": vocabulary}
    with pytest.raises(PodiumError, match="vocabulary"):
        prepared(config_of(given))


def test_too_few_evaluation_samples_are_a_usage_error(open_config: RunConfig) -> None:
    few = open_config.model_copy(update={"evaluation": Evaluation(samples=100_000)})
    with pytest.raises(UsageError, match=r"holds \d+ samples, evaluation\.samples is 100000; prepare a longer text"):
        prepared(few)


def test_random_subset_is_an_error_in_the_closed_division(texts: dict[str, str], tmp_path: Path) -> None:
    text, vocabulary = Path(texts["text"]), Path(texts["vocabulary"])
    whole, subset, evaluation = (tmp_path / name for name in ("whole", "subset", "evaluation"))
    prepare([text], vocabulary, whole)
    prepare([Path(texts["evaluation_text"])], vocabulary, evaluation)
    prepare_subset([text], vocabulary, subset, 5)

    def check(store: Path, division: str) -> None:
        config = load_system("laptop", settings=["evaluation.samples=20"])
        data = DataSettings(store=store, evaluation_store=evaluation, vocabulary=vocabulary)
        description = config.description.model_copy(update={"division": division})
        verify(config.model_copy(update={"data": data, "description": description}))

    check(whole, "closed")
    check(subset, "open")
    with pytest.raises(UsageError, match="closed division, Data set: found a random subset of the whole 32 samples"):
        check(subset, "closed")


@pytest.fixture
def stores(texts: dict[str, str]) -> dict[str, Path]:
    """A training store of two shards and an evaluation store of one, as keys and values of `data:`."""
    vocabulary, folder = Path(texts["vocabulary"]), Path(texts["vocabulary"]).parent
    (folder / "three").write_text("a a b\nc d\n\ng g\n\nf\n", encoding="utf-8")
    prepare([folder / "one", folder / "three"], vocabulary, folder / "train")
    prepare([folder / "two"], vocabulary, folder / "eval")
    return {"store": folder / "train", "evaluation_store": folder / "eval", "vocabulary": vocabulary}


def copy_evaluation(train: Path, evaluation: Path) -> None:
    shutil.copy(evaluation / "two.h5", train)


def copy_another(train: Path, evaluation: Path) -> None:
    shutil.copy(train / "one.h5", train / "three.h5")


def swap(train: Path, evaluation: Path) -> None:
    (train / "one.h5").rename(train / "swap")
    (train / "three.h5").rename(train / "one.h5")
    (train / "swap").rename(train / "three.h5")


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (copy_evaluation, r"(train|eval)/two\.h5: has the same samples as .*(train|eval)/two\.h5, .* in common$"),
        (copy_another, r"train/three\.h5: has the same samples as .*/train/one\.h5|three\.h5: was made from one"),
        (swap, r"one\.h5: was made from three, and a shard has the name of that file"),
        (lambda train, evaluation: (train / "one.h5").unlink(), r"one\.h5 is missing, manifest\.json has it"),
        (lambda train, evaluation: (train / "manifest.unfinished").touch(), r"manifest\.unfinished: the preparation"),
    ],
)
def test_store_with_other_shards_than_its_own_is_an_error(
    stores: dict[str, Path], change: Callable[[Path, Path], Any], message: str, listed: bool
) -> None:
    """With a manifest every change is detected; without one, those that the shards themselves show."""
    prepared(config_of(stores))
    change(stores["store"], stores["evaluation_store"])
    if listed:
        with pytest.raises(PodiumError, match=r"(train/|manifest\.unfinished)"):
            prepared(config_of(stores))
    (stores["store"] / MANIFEST).unlink()
    if "is missing" in message:
        return  # without a manifest there is no trace of a removed shard
    with pytest.raises(PodiumError, match=message):
        prepared(config_of(stores))
    assert "same samples as" in message or not (stores["store"] / MANIFEST).exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["balancing=packed"],
            "every node needs all shards, since with balancing packed a rank .*; set loader to exchange",
        ),
        (
            ["balancing=random", "attention=grouped", "capacity_overflow=0.1"],
            r"with capacity_overflow 0\.1 a rank .*; leave out capacity_overflow",
        ),
    ],
)
def test_missing_shards_of_other_nodes_are_an_error_if_ranks_read_them(
    stores: dict[str, Path], settings: list[str], message: str
) -> None:
    nodes = ["shards=per_rank", "launch.nodes=2", "launch.rendezvous=a:29500", "global_batch_size=8"]
    (stores["store"] / "three.h5").unlink()
    config = load_system("laptop", settings=[*settings_of(stores), *nodes, *settings])
    with pytest.raises(ManifestError, match=rf"three\.h5 is missing, .*{message}"):
        verify(config)


def test_training_on_evaluation_samples_is_an_error(stores: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.evaluation_store: .*/train is also a training store; name a store"):
        prepared(config_of(stores | {"evaluation_store": stores["store"]}))
    shutil.copytree(stores["store"], tmp_path / "copy")
    with pytest.raises(UsageError, match=r"train/one\.h5: has the same samples as .*/copy/one\.h5, and .* in two; "):
        prepared(config_of(stores | {"evaluation_store": tmp_path / "copy"}))


def test_evaluation_samples_shorter_than_training_samples_are_an_error(stores: dict[str, Path], tmp_path: Path) -> None:
    text, vocabulary = tmp_path / "two", stores["vocabulary"]
    prepare([text], vocabulary, tmp_path / "short", GenerationSettings.from_lengths(128, None))
    short = stores | {"evaluation_store": tmp_path / "short"}
    with pytest.raises(
        UsageError, match=r"evaluation_store: .*/short was made for 128 tokens, .* samples for 512; all"
    ):
        prepared(config_of(short))
    prepare([tmp_path / "one"], vocabulary, tmp_path / "train_short", GenerationSettings.from_lengths(128, None))
    both = prepared(config_of(short | {"store": tmp_path / "train_short"}))[0]
    prepared(config_of(stores | {"store": tmp_path / "train_short"}))  # evaluation may be longer
    closed = both.description.model_copy(update={"division": "closed"})
    with pytest.raises(UsageError, match=r"train_short: closed division, Data set: found samples of up to 128 tok"):
        verify(both.model_copy(update={"description": closed}))


def test_token_id_beyond_the_vocabulary_is_an_error(stores: dict[str, Path]) -> None:
    """The shard's hash is valid, so only a check of the tokens can find it."""
    path = stores["store"] / "one.h5"
    shard = Shard(path)
    arrays = {name: np.array(array) for name, array in vars(shard.samples).items()}
    arrays["masked_token_ids"][-1] = 12
    origin, number = shard.origin, len(shard) - 1
    write_shard(path, Samples(**arrays), origin)
    update_manifest(path.parent)
    with pytest.raises(WorkError, match=rf"one\.h5: .*: sample {number}: masked_token_ids has 12, allowed are 0 to 11"):
        prepared(config_of(stores))


def test_unfinished_preparation_is_completed(texts: dict[str, str]) -> None:
    config, _ = prepared(config_of(texts))
    assert config.data.store
    (config.data.store / MARKER).touch()
    _, notes = prepared(config_of(texts))
    assert notes == ["Making samples from one", "Checking the data"]
    assert not (config.data.store / MARKER).exists()


PHASES = "[{max_sequence_length: 16, samples: 32}, {max_sequence_length: 512, samples: 32}, {}]"


def test_phase_with_another_length_gets_its_own_store(texts: dict[str, str]) -> None:
    config, notes = prepared(config_of(texts))
    assert config.stores == (config.data.store,)
    with_phases = load_system("laptop", settings=[*settings_of(texts), f"phases={PHASES}"])
    assert not is_prepared(with_phases)
    config, notes = prepared(with_phases)
    assert notes == ["Making samples of up to 16 tokens from one", "Checking the data"]
    first, second, last = config.phases
    assert config.data.store and first.store == config.data.store.parent / "training-16-2"
    assert (first.max_sequence_length, first.max_predictions, first.samples) == (16, 2, 32)
    assert (second.store, last.store, last.max_sequence_length) == (None, None, 512)
    assert config.stores == (config.data.store, first.store)
    opened = SampleStore(first.store)
    assert (opened.max_sequence_length, np.asarray(opened.lengths).max()) == (16, 11)
    assert is_prepared(with_phases)
    assert prepared(with_phases) == (config, ["Checking the data"])
    assert prepared(config) == (config, ["Checking the data"])  # as for a resumed run or a trial
    assert config.data.evaluation_store
    cleared = {shard.parent for shard in page_cache._shards(config)}
    assert cleared == {*config.stores, config.data.evaluation_store}
    flip(opened.paths[0])
    with pytest.raises(
        WorkError, match=r"training-16-2/one\.h5: the shard cannot be used: its content has the SHA-256"
    ):
        prepared(with_phases)


def test_phase_store_that_does_not_match_the_settings_is_an_error(texts: dict[str, str], tmp_path: Path) -> None:
    text, vocabulary = Path(texts["text"]), Path(texts["vocabulary"])
    prepare([text], vocabulary, tmp_path / "of_16", GenerationSettings(16, 2))
    other = tmp_path / "other.txt"
    other.write_text(vocabulary.read_text(encoding="utf-8") + "\nh", encoding="utf-8")
    prepare([text], other, tmp_path / "alien", GenerationSettings(16, 2))
    for store, keys, message in (
        ("of_16", "max_sequence_length: 17", r"phases\.0\.max_sequence_length is 17, but .*/of_16 were made with 16;"),
        ("of_16", "max_predictions: 1", r"phases\.0\.max_predictions is 1, but .*/of_16 were made with 2;"),
        ("alien", "max_sequence_length: 16", r"alien/one\.h5: was made with another vocabulary than .*vocab\.txt;"),
        ("none", "max_sequence_length: 16", r"none: there is no such folder of shards"),
    ):
        phases = f"phases=[{{store: {tmp_path / store}, samples: 32, {keys}}}, {{}}]"
        with pytest.raises(UsageError, match=message):
            prepared(load_system("laptop", settings=[*settings_of(texts), phases]))
