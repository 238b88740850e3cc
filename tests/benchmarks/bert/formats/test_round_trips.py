"""Export and import: shards come back byte for byte, files of other projects value by value, with their origin."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.formats import hdf5, tfrecord
from benchmarks.bert.formats import rows as rows_module
from benchmarks.bert.formats.convert import FORMATS, export_shard, export_store, import_file
from benchmarks.bert.formats.rows import VocabularyFacts, concatenate_samples
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples
from benchmarks.bert.shard import EVALUATION, Origin, Shard, write_shard
from podium.core.errors import UsageError
from podium.core.files import sha256_of

HDF5 = ("hdf5-fixed", "hdf5-variable")
WIKIPEDIA = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "wikipedia_sample"

MakeSamples = Callable[..., Samples]
WriteForeign = Callable[[str, Path, dict[str, Any]], Path]
ForeignArrays = Callable[[str], dict[str, Any]]


def of_text(allowed: VocabularyFacts, **chosen: Any) -> Origin:
    return Origin.of_text("tëxt", "ef" * 32, allowed.sha256, GenerationSettings(**chosen))


def assert_equal(one: Samples, two: Samples) -> None:
    for name, dtype in SAMPLE_DTYPES.items():
        first, second = getattr(one, name), getattr(two, name)
        assert first.dtype == second.dtype == dtype
        assert np.array_equal(first, second), name


@pytest.mark.parametrize("format_name", HDF5)
@given(
    st.lists(st.integers(5, 512), min_size=1, max_size=12),
    st.integers(0, 1000),
    st.sampled_from(["text", "evaluation", "imported"]),
)
@settings(deadline=None, max_examples=40)
def test_exported_shard_is_imported_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory,
    make_samples: MakeSamples,
    allowed: VocabularyFacts,
    format_name: str,
    lengths: list[int],
    seed: int,
    kind_of_origin: str,
) -> None:
    folder = tmp_path_factory.mktemp("exchange")
    origin = of_text(allowed, seed=seed, masked_lm_probability=0.1 + 0.2, max_sequence_length=512 + seed)
    if kind_of_origin == "evaluation":
        one = of_text(allowed)
        origin = Origin(**{**vars(one), "selection": EVALUATION, "selected_from": 7, "selection_sha256": "12" * 32})
    if kind_of_origin == "imported":
        origin = Origin("a/b", "", allowed.sha256, 600, 80, made_by="tfrecord")
    shard = folder / "a.h5"
    write_shard(shard, make_samples(lengths, seed), origin)
    export_shard(shard, format_name, folder / "a.hdf5")
    import_file(folder / "a.hdf5", "auto", allowed, folder / "back.h5")
    assert (folder / "back.h5").read_bytes() == shard.read_bytes()


@pytest.mark.parametrize("format_name", FORMATS)
def test_handmade_rows_are_read(
    tmp_path: Path,
    foreign_arrays: ForeignArrays,
    write_foreign: WriteForeign,
    allowed: VocabularyFacts,
    format_name: str,
) -> None:
    file = write_foreign(format_name, tmp_path / "a", foreign_arrays(format_name))
    for name in (format_name, "auto"):
        import_file(file, name, allowed, tmp_path / "a.h5")
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0), "HDF5's time limit would end the process"
        shard = Shard(tmp_path / "a.h5")
        shard.verify()
        rows = [shard.read(row) for row in range(3)]
        assert [row.token_ids.tolist() for row in rows] == [
            [2, 10, 3, 11, 3],
            [2, 20, 4, 22, 3, 23, 4, 24, 3],
            [2, 30, 31, 32, 33, 34, 35, 3, 4, 4, 4, 4, 46, 47, 48, 3],
        ]
        assert [row.first_segment_length for row in rows] == [3, 5, 8]
        assert [row.masked_positions.tolist() for row in rows] == [[1], [2, 6], [8, 9, 10, 11]]
        assert [row.masked_token_ids.tolist() for row in rows] == [[12], [25, 26], [0, 999, 41, 42]]
        assert [row.next_sentence_label for row in rows] == [0, 1, 0]
        widths = (512, 76) if format_name == "hdf5-variable" else (16, 4)
        assert shard.origin == Origin("a", sha256_of(file), allowed.sha256, *widths, made_by=format_name)


def test_long_variable_rows_increase_the_recorded_widths(
    tmp_path: Path, make_samples: MakeSamples, write_foreign: WriteForeign, allowed: VocabularyFacts
) -> None:
    samples = make_samples([700, 5], least=77, most=90)
    rows: dict[str, Any] = rows_module.pad_rows(samples, 700, 90)
    lengths, counts = np.diff(samples.sample_offsets), np.diff(samples.masked_offsets)
    assert counts[0] > 76
    del rows["input_mask"]
    for name, values in rows.items():
        of = counts if name.startswith("masked") else lengths
        rows[name] = [values[row, :count] for row, count in enumerate(of)] if values.ndim == 2 else values[:, None]
    import_file(write_foreign("hdf5-variable", tmp_path / "a", rows), "hdf5-variable", allowed, tmp_path / "a.h5")
    shard = Shard(tmp_path / "a.h5")
    assert_equal(shard.samples, samples)
    assert (shard.origin.max_sequence_length, shard.origin.max_predictions) == (700, counts[0])


@pytest.mark.parametrize("format_name", FORMATS)
def test_given_settings_are_recorded_for_files_without_padding(
    tmp_path: Path,
    foreign_arrays: ForeignArrays,
    write_foreign: WriteForeign,
    allowed: VocabularyFacts,
    format_name: str,
) -> None:
    file, shard = write_foreign(format_name, tmp_path / "a", foreign_arrays(format_name)), tmp_path / "a.h5"
    stated = (128, 20) if format_name == "hdf5-variable" else (16, 4)
    import_file(file, format_name, allowed, shard, GenerationSettings.from_lengths(*stated))
    assert (Shard(shard).origin.max_sequence_length, Shard(shard).origin.max_predictions) == stated
    with pytest.raises(UsageError, match=r"up to 16 tokens, 4 of them masked, .* --max-sequence-length 15 and"):
        import_file(file, format_name, allowed, tmp_path / "wrong.h5", GenerationSettings.from_lengths(15, 4))
    assert not (tmp_path / "wrong.h5").exists()


def test_settings_that_contradict_an_exported_shard_are_an_error(
    tmp_path: Path, make_samples: MakeSamples, allowed: VocabularyFacts
) -> None:
    origin = of_text(allowed, max_sequence_length=128, max_predictions=20)
    write_shard(tmp_path / "a.h5", make_samples([5, 64], most=9), origin)
    for format_name in ("hdf5-fixed", "hdf5-variable"):
        export_shard(tmp_path / "a.h5", format_name, tmp_path / "a.hdf5")
        import_file(tmp_path / "a.hdf5", "auto", allowed, tmp_path / "b.h5", GenerationSettings.from_lengths(128, None))
        assert Shard(tmp_path / "b.h5").origin == origin
        with pytest.raises(UsageError, match="has samples of up to 128 tokens, 20 of them masked"):
            import_file(tmp_path / "a.hdf5", "auto", allowed, tmp_path / "c.h5", GenerationSettings())


@pytest.mark.parametrize("kind", ["<i8", ">i4", "<u2"])
def test_any_integer_type_and_labels_in_a_column_are_read(
    tmp_path: Path, foreign_arrays: ForeignArrays, write_foreign: WriteForeign, allowed: VocabularyFacts, kind: str
) -> None:
    arrays = {name: values.astype(kind) for name, values in foreign_arrays("hdf5-fixed").items()}
    arrays["next_sentence_labels"] = arrays["next_sentence_labels"][:, None]
    plain = write_foreign("hdf5-fixed", tmp_path / "plain", foreign_arrays("hdf5-fixed"))
    other = write_foreign("hdf5-fixed", tmp_path / "other", arrays)
    for file in (plain, other):
        import_file(file, "auto", allowed, tmp_path / f"{file.name}.h5")
    assert_equal(Shard(tmp_path / "plain.h5").samples, Shard(tmp_path / "other.h5").samples)


def test_imported_fixed_file_is_exported_unchanged(
    tmp_path: Path, foreign_arrays: ForeignArrays, write_foreign: WriteForeign, allowed: VocabularyFacts
) -> None:
    arrays = foreign_arrays("hdf5-fixed")
    import_file(write_foreign("hdf5-fixed", tmp_path / "a", arrays), "auto", allowed, tmp_path / "a.h5")
    export_shard(tmp_path / "a.h5", "hdf5-fixed", tmp_path / "back.hdf5")
    with h5py.File(tmp_path / "back.hdf5") as file:
        assert sorted(file) == sorted(arrays)
        for name, values in arrays.items():
            assert file[name].dtype == values.dtype
            assert np.array_equal(file[name][:], values)


def test_variable_file_has_the_layout_of_nvidia(
    tmp_path: Path, make_samples: MakeSamples, allowed: VocabularyFacts
) -> None:
    samples = make_samples([5, 9])
    write_shard(tmp_path / "a.h5", samples, of_text(allowed))
    export_shard(tmp_path / "a.h5", "hdf5-variable", tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        kinds = {name: h5py.check_vlen_dtype(dataset.dtype) for name, dataset in file.items()}
        assert kinds.pop("next_sentence_labels") is None
        assert kinds == {
            "input_ids": np.int16,
            "segment_ids": np.int8,
            "masked_lm_positions": np.int16,
            "masked_lm_ids": np.int16,
        }
        assert (file["next_sentence_labels"].dtype, file["next_sentence_labels"].shape) == (np.int8, (2,))
        first = samples.first_segment_lengths
        assert [row.tolist() for row in file["segment_ids"][:]] == [
            [0] * first[0] + [1] * (5 - first[0]),
            [0] * first[1] + [1] * (9 - first[1]),
        ]
        assert file["input_ids"][1].tolist() == samples.token_ids[5:].tolist()
        assert file.attrs["podium_source"].decode() == "tëxt"


@pytest.mark.parametrize("format_name", HDF5)
def test_the_same_samples_give_the_same_bytes(
    tmp_path: Path, make_samples: MakeSamples, allowed: VocabularyFacts, format_name: str
) -> None:
    write_shard(tmp_path / "a.h5", make_samples([5, 512, 77]), of_text(allowed))
    export_shard(tmp_path / "a.h5", format_name, tmp_path / "one")
    time.sleep(1.1)  # HDF5 counts its times in seconds
    export_shard(tmp_path / "a.h5", format_name, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("format_name", FORMATS)
def test_blocks_of_rows_are_concatenated(
    tmp_path: Path,
    make_samples: MakeSamples,
    write_foreign: WriteForeign,
    allowed: VocabularyFacts,
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
) -> None:
    for module, name in ((rows_module, "ROWS_PER_BLOCK"), (hdf5, "ROWS_PER_BLOCK"), (tfrecord, "MAX_ROWS_IN_MEMORY")):
        monkeypatch.setattr(module, name, 3)
    monkeypatch.setattr(hdf5, "ROWS_PER_CHUNK", 2)
    blocks: list[list[int]] = []
    for module in (hdf5, tfrecord):
        monkeypatch.setattr(
            module, "concatenate_samples", lambda parts: blocks.append([*map(len, parts)]) or concatenate_samples(parts)
        )
    for count in (3, 7):
        samples = make_samples([5 + 7 * row for row in range(count)], seed=count)
        write_shard(tmp_path / "a.h5", samples, of_text(allowed))
        file = tmp_path / "a.file"
        if format_name == "tfrecord":
            arrays = rows_module.pad_rows(samples, 512, 76)
            arrays["masked_lm_weights"] = np.arange(76) < np.diff(samples.masked_offsets)[:, None]
            write_foreign(format_name, file, arrays)
        else:
            export_shard(tmp_path / "a.h5", format_name, file)
        import_file(file, format_name, allowed, tmp_path / "back.h5")
        assert_equal(Shard(tmp_path / "back.h5").samples, samples)
    assert blocks == [[3], [3, 3, 1]]


def drop_attribute(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__delitem__(f"podium_{name}")


def set_attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        if isinstance(value, bytes):
            file.attrs.create(f"podium_{name}", value, dtype=h5py.string_dtype("utf-8", len(value)))
        else:
            file.attrs[f"podium_{name}"] = value

    return edit


def relabel(file: h5py.File) -> None:
    file["next_sentence_labels"][0] ^= 1


@pytest.mark.parametrize(
    "edit",
    [
        relabel,
        drop_attribute("content_sha256"),
        drop_attribute("max_predictions"),
        drop_attribute("seed"),
        set_attribute("content_sha256", b"00" * 32),
        set_attribute("content_sha256", "ab" * 32),
        set_attribute("format", b"podium-other"),
        set_attribute("format_version", 4),
        set_attribute("selection", b"some"),
        set_attribute("max_sequence_length", 6),
        set_attribute("max_sequence_length", 512.0),
        set_attribute("max_predictions", 0),
        set_attribute("max_predictions", 1),
        set_attribute("selected_from", [1, 2]),
        set_attribute("masked_lm_probability", 1.5),
        set_attribute("source", b"\xff"),
    ],
)
@pytest.mark.parametrize("format_name", HDF5)
def test_recorded_attributes_that_do_not_match_the_samples_are_ignored(
    tmp_path: Path,
    make_samples: MakeSamples,
    allowed: VocabularyFacts,
    edit: Callable[[h5py.File], None],
    format_name: str,
) -> None:
    write_shard(tmp_path / "a.h5", make_samples([5, 17]), of_text(allowed))
    file = tmp_path / "a.hdf5"
    export_shard(tmp_path / "a.h5", format_name, file)
    with h5py.File(file, "r+") as opened:
        edit(opened)
    import_file(file, "auto", allowed, tmp_path / "back.h5")
    origin = Shard(tmp_path / "back.h5").origin
    assert origin == Origin("a.hdf5", sha256_of(file), allowed.sha256, 512, 76, made_by=format_name)


def test_exported_shard_of_another_vocabulary_is_an_error(
    tmp_path: Path, make_samples: MakeSamples, allowed: VocabularyFacts
) -> None:
    write_shard(tmp_path / "a.h5", make_samples([5]), Origin("t", "", "ab" * 32, 512, 76, made_by="tfrecord"))
    export_shard(tmp_path / "a.h5", "hdf5-fixed", tmp_path / "a.hdf5")
    with pytest.raises(UsageError, match=r"a\.hdf5: was exported from .* another vocabulary .*; give .* abababab"):
        import_file(tmp_path / "a.hdf5", "auto", allowed, tmp_path / "back.h5")
    assert not (tmp_path / "back.h5").exists()


@pytest.mark.skipif(not WIKIPEDIA.is_dir(), reason="the reference's samples lie in ../shared, which is not here")
@pytest.mark.parametrize("format_name", HDF5)
def test_samples_of_the_reference_survive_export_and_import(tmp_path: Path, format_name: str) -> None:
    stored = np.load(WIKIPEDIA / "reference_samples_part-00000.npz")
    samples = Samples(**{name: stored[name] for name in SAMPLE_DTYPES})
    allowed = VocabularyFacts.from_file(WIKIPEDIA / "vocab.txt")
    shard = tmp_path / "part-00000.h5"
    write_shard(shard, samples, Origin.of_text("part-00000", "ef" * 32, allowed.sha256, GenerationSettings()))
    (file,) = export_store(tmp_path, format_name, tmp_path / "out")
    import_file(file, format_name, allowed, tmp_path / "back.h5")
    assert (tmp_path / "back.h5").read_bytes() == shard.read_bytes()
    assert_equal(Shard(tmp_path / "back.h5").samples, samples)
