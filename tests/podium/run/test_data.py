"""Data for a run: prepared once, found again, and refused in a sentence where it is missing or damaged."""

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
from benchmarks.bert.store import SampleStore, renew_manifest
from podium.config.load import load_system
from podium.config.schema import DataSettings, Evaluation, RunConfig
from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError
from podium.launch import page_cache
from podium.launch.node_data import NodeData
from podium.run.data import is_prepared, verify, with_data
from tests.benchmarks.bert.test_upgrade import write_older


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data goes in these tests, and an embedded text of a few articles only."""
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "data")
    monkeypatch.setattr("benchmarks.bert.demo_text.ARTICLES_A_PART", 3)
    monkeypatch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
    monkeypatch.setattr("podium.run.data.os.cpu_count", lambda: 1)  # no processes of their own: quicker
    return tmp_path / "data"


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Two small texts and a vocabulary, as the keys of `data:` name them."""
    words = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *"abcdefg"]
    for name, text in (("one", "a b c d\ne f\n\ng a\nb c\n"), ("two", "c c\nd a b\n\ne e\nf\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return {name: str(tmp_path / path) for name, path in zip(KEYS, ("one", "two", "vocab.txt"), strict=True)}


KEYS = ("text", "evaluation_text", "vocabulary")


def settings_of(data: dict[str, Any]) -> list[str]:
    return ["evaluation.samples=20", *(f"data.{key}={value}" for key, value in data.items())]


def config_of(data: dict[str, Any]) -> RunConfig:
    return load_system("laptop", settings=settings_of(data))


def prepared(config: RunConfig) -> tuple[RunConfig, list[str]]:
    notes: list[str] = []
    return with_data(config, notes.append), notes


def test_the_embedded_text_is_prepared_once_and_found_again(folder: Path, open_config: RunConfig) -> None:
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
    """What any write, and any file that is made or removed, changes: also one that is removed again."""
    found = {str(path): path.stat() for path in (folder, *folder.rglob("*"))}
    return {name: (state.st_ino, state.st_mtime_ns, state.st_ctime_ns) for name, state in found.items()}


def test_nothing_is_written_where_all_is_prepared(folder: Path, open_config: RunConfig) -> None:
    """The text here is not the one of which the digest is known, as with another version of the tokenizer's library."""
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
data.DATA, text.ARTICLES_A_PART, text.EVALUATION_ARTICLES = Path(sys.argv[1]), 3, 2
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


def test_a_shard_that_is_missing_is_made_again(open_config: RunConfig) -> None:
    config, _ = prepared(open_config)
    assert config.data.store
    shard = config.data.store / "part-00002.h5"
    content = shard.read_bytes()
    shard.unlink()
    _, notes = prepared(open_config)
    assert any(note.startswith("Making samples from part-00000") for note in notes)
    assert shard.read_bytes() == content


def test_shards_of_an_older_version_are_converted_and_damaged_ones_made_again(open_config: RunConfig) -> None:
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


def test_a_user_s_text_is_prepared_and_another_text_is_kept_apart(texts: dict[str, str], folder: Path) -> None:
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


def test_a_prepared_store_is_taken_as_it_is(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    config = config_of(given)
    assert prepared(config) == (config, ["Checking the data"])


def test_a_store_gets_a_manifest_when_it_is_verified_and_is_compared_with_it(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    assert data.store
    manifest = data.store / MANIFEST
    before = manifest.read_bytes()
    manifest.unlink()
    prepared(config_of(given))
    assert manifest.read_bytes() == before
    shutil.copy(data.store / "one.h5", data.store / "two.h5")
    with pytest.raises(ManifestError, match=r"two\.h5 is one shard too many, .*\(or remove .*: it is then made again"):
        prepared(config_of(given))
    (data.store / "one.h5").unlink()
    with pytest.raises(ManifestError, match=r"one\.h5 is missing, manifest\.json has it \(1 more difference\)"):
        prepared(config_of(given))
    (data.store / "two.h5").unlink()
    with pytest.raises(UsageError, match=r"no \*\.h5 shard is in it"):
        prepared(config_of(given))


def test_a_damaged_store_gets_no_manifest(texts: dict[str, str]) -> None:
    data = prepared(config_of(texts))[0].data
    assert data.store
    (data.store / MANIFEST).unlink()
    flip(data.store / "one.h5")
    with pytest.raises(WorkError, match="its content has the SHA-256"):
        prepared(config_of(texts))
    assert not (data.store / MANIFEST).exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_file_that_is_missing_is_named(texts: dict[str, str], folder: Path, key: str) -> None:
    Path(texts[key]).unlink()
    with pytest.raises(UsageError, match=f"^data.{key}: there is no file {texts[key]}; name one that exists$"):
        prepared(config_of(texts))
    assert not folder.exists()


@pytest.mark.parametrize("key", ["store", "evaluation_store", "vocabulary"])
def test_a_store_that_is_missing_is_named(texts: dict[str, str], tmp_path: Path, key: str) -> None:
    data = prepared(config_of(texts))[0].data
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    with pytest.raises(UsageError, match=f"{tmp_path}/none: there is no such "):
        prepared(config_of({**given, key: tmp_path / "none"}))


def test_a_text_without_a_document_is_a_sentence(texts: dict[str, str]) -> None:
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
def test_a_damaged_shard_is_named_with_what_to_do(open_config: RunConfig, which: str) -> None:
    config, _ = prepared(open_config)
    store: Path = getattr(config.data, which)
    shard = sorted(store.glob("*.h5"))[0]
    flip(shard)
    with pytest.raises(WorkError) as caught:
        prepared(open_config)
    words = str(caught.value)
    assert words.startswith(f"{shard}: the shard cannot be used: its content has the SHA-256 ")
    assert words.endswith(f"(or remove {store.parent}: it is then made again)")


def test_an_interruption_while_data_is_checked_is_no_reason_to_remove_it(
    open_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(open_config)

    def interrupted(*_: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(NodeData, "verify", interrupted)
    with pytest.raises(Interrupted, match=r"^interrupted$"):
        prepared(open_config)


def test_a_damaged_shard_of_the_user_s_own_is_not_to_be_removed(
    open_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepared(open_config)[0].data
    assert data.store
    flip(data.store / "part-00003.h5")
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": data.vocabulary}
    monkeypatch.setattr("podium.run.data.DATA", tmp_path / "elsewhere")
    with pytest.raises(WorkError, match=r"part-00003\.h5: .* prepare it again with `podium data prepare`$"):
        prepared(config_of(given))


def test_stores_that_do_not_fit_together_are_refused(texts: dict[str, str], tmp_path: Path) -> None:
    data = prepared(config_of(texts))[0].data
    vocabulary = tmp_path / "other.txt"
    vocabulary.write_text(Path(texts["vocabulary"]).read_text(encoding="utf-8") + "\nh", encoding="utf-8")
    given = {"store": data.store, "evaluation_store": data.evaluation_store, "vocabulary": vocabulary}
    with pytest.raises(PodiumError, match="vocabulary"):
        prepared(config_of(given))


def test_too_few_samples_to_evaluate_on_are_said_before_anything_runs(open_config: RunConfig) -> None:
    few = open_config.model_copy(update={"evaluation": Evaluation(samples=100_000)})
    with pytest.raises(UsageError, match=r"holds \d+ samples, evaluation\.samples is 100000; prepare a longer text"):
        prepared(few)


def test_the_closed_division_is_refused_a_random_subset(texts: dict[str, str], tmp_path: Path) -> None:
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
    """Two training shards and one to evaluate on, in stores of the user's own, as the keys of `data:` name them."""
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
    ("change", "said"),
    [
        (copy_evaluation, r"(train|eval)/two\.h5: has the same samples as .*(train|eval)/two\.h5, .* in common$"),
        (copy_another, r"train/three\.h5: has the same samples as .*/train/one\.h5|three\.h5: was made from one"),
        (swap, r"one\.h5: was made from three, and a shard has the name of that file"),
        (lambda train, evaluation: (train / "one.h5").unlink(), r"one\.h5 is missing, manifest\.json has it"),
        (lambda train, evaluation: (train / "manifest.unfinished").touch(), r"manifest\.unfinished: the preparation"),
    ],
)
def test_a_store_of_other_shards_than_it_was_made_of_is_refused(
    stores: dict[str, Path], change: Callable[[Path, Path], Any], said: str, listed: bool
) -> None:
    """With a manifest, which every change differs from, and without one, as far as that can be known."""
    prepared(config_of(stores))
    change(stores["store"], stores["evaluation_store"])
    if listed:
        with pytest.raises(PodiumError, match=r"(train/|manifest\.unfinished)"):
            prepared(config_of(stores))
    (stores["store"] / MANIFEST).unlink()
    if "is missing" in said:
        return  # nothing says that there ever was such a shard
    with pytest.raises(PodiumError, match=said):
        prepared(config_of(stores))
    assert "same samples as" in said or not (stores["store"] / MANIFEST).exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["balancing=packed"], "every node needs all shards: with balancing packed a rank .*; set loader to exchange"),
        (
            ["balancing=random", "attention=grouped", "capacity_overflow=0.1"],
            r"with capacity_overflow 0\.1 a rank .*; leave it",
        ),
    ],
)
def test_a_node_s_own_shards_are_too_few_where_ranks_read_those_of_others(
    stores: dict[str, Path], settings: list[str], said: str
) -> None:
    nodes = ["shards=per_rank", "launch.nodes=2", "launch.rendezvous=a:29500", "global_batch_size=8"]
    (stores["store"] / "three.h5").unlink()
    config = load_system("laptop", settings=[*settings_of(stores), *nodes, *settings])
    with pytest.raises(ManifestError, match=rf"three\.h5 is missing, .*{said}"):
        verify(config)


def test_samples_are_not_trained_and_evaluated_on(stores: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.evaluation_store: .*/train is trained on too; name samples"):
        prepared(config_of(stores | {"evaluation_store": stores["store"]}))
    shutil.copytree(stores["store"], tmp_path / "copy")
    with pytest.raises(UsageError, match=r"train/one\.h5: has the same samples as .*/copy/one\.h5, and .* in two; "):
        prepared(config_of(stores | {"evaluation_store": tmp_path / "copy"}))


def test_evaluation_samples_are_as_long_as_those_to_train_on(stores: dict[str, Path], tmp_path: Path) -> None:
    text, vocabulary = tmp_path / "two", stores["vocabulary"]
    prepare([text], vocabulary, tmp_path / "short", GenerationSettings.of_lengths(128, None))
    short = stores | {"evaluation_store": tmp_path / "short"}
    with pytest.raises(UsageError, match=r"evaluation_store: .*/short was made for 128 tokens, .* on for 512; all"):
        prepared(config_of(short))
    prepare([tmp_path / "one"], vocabulary, tmp_path / "train_short", GenerationSettings.of_lengths(128, None))
    both = prepared(config_of(short | {"store": tmp_path / "train_short"}))[0]
    prepared(config_of(stores | {"store": tmp_path / "train_short"}))  # evaluation may be longer
    closed = both.description.model_copy(update={"division": "closed"})
    with pytest.raises(UsageError, match=r"train_short: closed division, Data set: found samples of up to 128 tok"):
        verify(both.model_copy(update={"description": closed}))


def test_a_token_beyond_the_vocabulary_is_found_before_the_run(stores: dict[str, Path]) -> None:
    """Its hash is right: whoever made the shard made it wrongly."""
    path = stores["store"] / "one.h5"
    shard = Shard(path)
    arrays = {name: np.array(array) for name, array in vars(shard.samples).items()}
    arrays["masked_token_ids"][-1] = 12
    origin, number = shard.origin, len(shard) - 1
    write_shard(path, Samples(**arrays), origin)
    renew_manifest(path.parent)
    with pytest.raises(WorkError, match=rf"one\.h5: .*: sample {number}: masked_token_ids has 12, allowed are 0 to 11"):
        prepared(config_of(stores))


def test_a_store_whose_preparation_was_broken_off_is_finished_by_the_run(texts: dict[str, str]) -> None:
    config, _ = prepared(config_of(texts))
    assert config.data.store
    (config.data.store / MARKER).touch()
    _, notes = prepared(config_of(texts))
    assert notes == ["Making samples from one", "Checking the data"]
    assert not (config.data.store / MARKER).exists()


PHASES = "[{max_sequence_length: 16, samples: 32}, {max_sequence_length: 512, samples: 32}, {}]"


def test_a_phase_has_samples_of_its_own_length_beside_those_of_the_text(texts: dict[str, str]) -> None:
    config, notes = prepared(config_of(texts))
    assert config.stores == (config.data.store,)
    given = load_system("laptop", settings=[*settings_of(texts), f"phases={PHASES}"])
    assert not is_prepared(given)
    config, notes = prepared(given)
    assert notes == ["Making samples of up to 16 tokens from one", "Checking the data"]
    first, second, last = config.phases
    assert config.data.store and first.store == config.data.store.parent / "training-16-2"
    assert (first.max_sequence_length, first.max_predictions, first.samples) == (16, 2, 32)
    assert (second.store, last.store, last.max_sequence_length) == (None, None, 512)
    assert config.stores == (config.data.store, first.store)
    opened = SampleStore(first.store)
    assert (opened.max_sequence_length, np.asarray(opened.lengths).max()) == (16, 11)
    assert is_prepared(given)
    assert prepared(given) == (config, ["Checking the data"])
    assert prepared(config) == (config, ["Checking the data"])  # as a run that is resumed or searched with it
    assert config.data.evaluation_store
    cleared = {shard.parent for shard in page_cache._shards(config)}
    assert cleared == {*config.stores, config.data.evaluation_store}
    flip(opened.paths[0])
    with pytest.raises(
        WorkError, match=r"training-16-2/one\.h5: the shard cannot be used: its content has the SHA-256"
    ):
        prepared(given)


def test_a_phase_s_store_that_was_made_otherwise_is_refused(texts: dict[str, str], tmp_path: Path) -> None:
    text, vocabulary = Path(texts["text"]), Path(texts["vocabulary"])
    prepare([text], vocabulary, tmp_path / "of_16", GenerationSettings(16, 2))
    other = tmp_path / "other.txt"
    other.write_text(vocabulary.read_text(encoding="utf-8") + "\nh", encoding="utf-8")
    prepare([text], other, tmp_path / "alien", GenerationSettings(16, 2))
    for store, keys, words in (
        ("of_16", "max_sequence_length: 17", r"phases\.0\.max_sequence_length is 17, but .*/of_16 were made with 16;"),
        ("of_16", "max_predictions: 1", r"phases\.0\.max_predictions is 1, but .*/of_16 were made with 2;"),
        ("alien", "max_sequence_length: 16", r"alien/one\.h5: was made with another vocabulary than .*vocab\.txt;"),
        ("none", "max_sequence_length: 16", r"none: there is no such folder of shards"),
    ):
        phases = f"phases=[{{store: {tmp_path / store}, samples: 32, {keys}}}, {{}}]"
        with pytest.raises(UsageError, match=words):
            prepared(load_system("laptop", settings=[*settings_of(texts), phases]))
