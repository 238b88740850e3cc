"""Sample files that violate their format: each fault is an error of one line, and no shard is left."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.bert.formats import hdf5, rows, tfrecord
from benchmarks.bert.formats.convert import FORMATS, export_shard, import_file
from benchmarks.bert.formats.rows import VocabularyFacts
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Origin, write_shard
from podium.core.errors import PodiumError, UsageError, WorkError

Arrays = dict[str, Any]
Edit = Callable[[Arrays], object]
HDF5 = ("hdf5-fixed", "hdf5-variable")
PADDED = ("hdf5-fixed", "tfrecord")


@pytest.fixture
def error_of(
    tmp_path: Path,
    foreign_arrays: Callable[[str], Arrays],
    write_foreign: Callable[[str, Path, Arrays], Path],
    allowed: VocabularyFacts,
) -> Callable[..., str]:
    """Function that returns the import error of a file after an edit of its arrays or of the file itself."""

    def import_edited(
        format_name: str, edit: Edit | None = None, edit_file: Callable[[Path], object] | None = None
    ) -> str:
        arrays = foreign_arrays(format_name)
        if edit is not None:
            edit(arrays)
        file = write_foreign(format_name, tmp_path / "file", arrays)
        if edit_file is not None:
            edit_file(file)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(WorkError) as caught:
            import_file(file, format_name, allowed, tmp_path / "shard.h5")
        assert sorted(tmp_path.iterdir()) == before
        sentence = str(caught.value)
        start, end = f"{file}: the file cannot be imported: ", "; see how the file was made, or get it again"
        assert sentence.startswith(start) and sentence.endswith(end) and "\n" not in sentence
        return sentence.removeprefix(start).removesuffix(end)

    return import_edited


def set_value(name: str, column: int, value: float, row: int = 1) -> Edit:
    return lambda arrays: arrays[name][row].__setitem__(column, value)


def set_label(value: int) -> Edit:
    return lambda arrays: arrays["next_sentence_labels"].__setitem__(1, value)


def all_of(*edits: Edit) -> Edit:
    return lambda arrays: [edit(arrays) for edit in edits]


def fill(name: str, columns: slice, value: int) -> Edit:
    return lambda arrays: arrays[name][1].__setitem__(columns, value)


VOCABULARY = "which is perhaps not the vocabulary that the samples were made with"


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (set_value("input_ids", 3, 1000), "input_ids has the token 1000, and {vocabulary} has 0 to 999"),
        (set_value("input_ids", 3, -1), "input_ids has the token -1, and {vocabulary} has 0 to 999"),
        (set_value("masked_lm_ids", 0, 1000), "masked_lm_ids has the token 1000, and {vocabulary} has 0 to 999"),
        (set_value("masked_lm_ids", 1, -5), "masked_lm_ids has the token -5, and {vocabulary} has 0 to 999"),
        (set_value("segment_ids", 1, 1), "segment_ids are not zeros and then ones"),
        (set_value("segment_ids", 8, 0), "segment_ids are not zeros and then ones"),
        (set_value("segment_ids", 8, 2), "segment_ids are not zeros and then ones"),
        (set_value("segment_ids", 2, -1), "segment_ids are not zeros and then ones"),
        (
            fill("segment_ids", slice(5, 9), 0),
            "segment_ids have 9 zeros and 0 ones, and [CLS] A [SEP] has 3 or more tokens, B [SEP] 2 or more",
        ),
        (
            fill("segment_ids", slice(2, 9), 1),
            "segment_ids have 2 zeros and 7 ones, and [CLS] A [SEP] has 3 or more tokens, B [SEP] 2 or more",
        ),
        (set_value("input_ids", 0, 7), f"its first token is 7, and [CLS] is 2 in {{vocabulary}}, {VOCABULARY}"),
        (
            set_value("input_ids", 4, 7),
            f"its last token of segment 0 is 7, and [SEP] is 3 in {{vocabulary}}, {VOCABULARY}",
        ),
        (set_value("input_ids", 8, 7), f"its last token is 7, and [SEP] is 3 in {{vocabulary}}, {VOCABULARY}"),
        (set_value("masked_lm_positions", 1, 9), "masked_lm_positions has 9, and 9 tokens have 1 to 8 to mask"),
        (set_value("masked_lm_positions", 0, -2), "masked_lm_positions has -2, and 9 tokens have 1 to 8 to mask"),
        (set_value("masked_lm_positions", 1, 2), "masked_lm_positions do not ascend"),
        (set_value("masked_lm_positions", 1, 1), "masked_lm_positions do not ascend"),
        (set_label(2), "next_sentence_labels is 2, not 0 or 1"),
        (set_label(-1), "next_sentence_labels is -1, not 0 or 1"),
    ],
)
def test_invalid_row_is_an_error(
    error_of: Callable[..., str], vocabulary: Path, format_name: str, edit: Edit, found: str
) -> None:
    expected = f"row 1, counted from 0: {found.replace('{vocabulary}', str(vocabulary))}"
    assert error_of(format_name, edit) == expected


NO_POSITIONS = all_of(fill("masked_lm_positions", slice(0, 4), 0), fill("masked_lm_ids", slice(0, 4), 0))
FOUR_TOKENS = all_of(
    *(fill(name, slice(4, 9), 0) for name in ("input_ids", "input_mask", "segment_ids")),
    set_value("segment_ids", 3, 1),
)


@pytest.mark.parametrize("format_name", PADDED)
@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (set_value("input_mask", 2, 0), "input_mask is not ones and then zeros"),
        (set_value("input_mask", 0, 0), "input_mask is not ones and then zeros"),
        (set_value("input_mask", 11, 1), "input_mask is not ones and then zeros"),
        (set_value("input_mask", 2, 2), "input_mask is not ones and then zeros"),
        (set_value("input_mask", 8, -1), "input_mask is not ones and then zeros"),
        (set_value("input_ids", 9, 5), "the padding of input_ids is not zero"),
        (set_value("segment_ids", 15, 1), "the padding of segment_ids is not zero"),
        (set_value("masked_lm_ids", 2, 30), "the padding of masked_lm_ids is not zero"),
        (set_value("masked_lm_positions", 3, 7), "the padding of masked_lm_positions is not zero"),
        (FOUR_TOKENS, "it has 4 tokens, and [CLS] A [SEP] B [SEP] has 5 to 65535"),
        (
            all_of(*(fill(name, slice(0, 16), 0) for name in ("input_ids", "input_mask", "segment_ids"))),
            "it has 0 tokens, and [CLS] A [SEP] B [SEP] has 5 to 65535",
        ),
    ],
)
def test_invalid_padding_is_an_error(error_of: Callable[..., str], format_name: str, edit: Edit, found: str) -> None:
    assert error_of(format_name, edit) == f"row 1, counted from 0: {found}"


def test_masked_positions_that_begin_with_zero_are_an_error(error_of: Callable[..., str]) -> None:
    """In HDF5 the first 0 ends the positions; in TFRecord the weights determine where they end."""
    begins_with_zero = set_value("masked_lm_positions", 0, 0)
    assert error_of("hdf5-fixed", begins_with_zero).endswith("the padding of masked_lm_positions is not zero")
    for format_name in ("tfrecord", "hdf5-variable"):
        expected = "row 1, counted from 0: masked_lm_positions has 0, and 9 tokens have 1 to 8 to mask"
        assert error_of(format_name, begins_with_zero) == expected


def test_row_without_a_masked_token_is_an_error(error_of: Callable[..., str]) -> None:
    def no_row(arrays: Arrays) -> None:
        for name in ("masked_lm_positions", "masked_lm_ids"):
            arrays[name][1] = arrays[name][1][:0]

    expected = "row 1, counted from 0: no token of it is masked"
    assert error_of("hdf5-fixed", NO_POSITIONS) == expected
    assert error_of("tfrecord", all_of(NO_POSITIONS, fill("masked_lm_weights", slice(0, 4), 0))) == expected
    assert error_of("hdf5-variable", no_row) == expected


@pytest.mark.parametrize(
    ("column", "weight"), [(1, float("nan")), (0, 0.5), (3, 1.0), (0, 0.0), (1, float("inf")), (2, -1.0)]
)
def test_weights_other_than_ones_and_then_zeros_are_an_error(
    error_of: Callable[..., str], column: int, weight: float
) -> None:
    found = error_of("tfrecord", set_value("masked_lm_weights", column, weight))
    assert found == "row 1, counted from 0: masked_lm_weights are not 1.0 for masked tokens and then 0.0"


def test_weights_that_contradict_the_positions_are_an_error(error_of: Callable[..., str]) -> None:
    found = error_of("tfrecord", set_value("masked_lm_weights", 1, 0))
    assert found == "row 1, counted from 0: the padding of masked_lm_positions is not zero"
    found = error_of("tfrecord", set_value("masked_lm_weights", 2, 1))
    assert found == "row 1, counted from 0: masked_lm_positions has 0, and 9 tokens have 1 to 8 to mask"


@pytest.mark.parametrize(
    ("name", "like", "lengths"),
    [("segment_ids", "input_ids", (8, 9)), ("masked_lm_ids", "masked_lm_positions", (1, 2))],
)
def test_variable_rows_of_different_lengths_are_an_error(
    error_of: Callable[..., str], name: str, like: str, lengths: tuple[int, int]
) -> None:
    def shorten(arrays: Arrays) -> None:
        arrays[name][1] = arrays[name][1][:-1]

    found = error_of("hdf5-variable", shorten)
    assert found == f"row 1, counted from 0: {name} has {lengths[0]} elements, and {like} has {lengths[1]}"


def test_variable_row_of_invalid_length_is_an_error(error_of: Callable[..., str]) -> None:
    def resize(length: int) -> Edit:
        def edit(arrays: Arrays) -> None:
            for name in ("input_ids", "segment_ids"):
                arrays[name][1] = np.resize(arrays[name][1], length)

        return edit

    for length in (0, 4, 65_536):
        found = error_of("hdf5-variable", resize(length))
        assert found == f"row 1, counted from 0: it has {length} tokens, and [CLS] A [SEP] B [SEP] has 5 to 65535"


@pytest.mark.parametrize("format_name", FORMATS)
def test_reported_row_is_counted_from_the_start_of_the_file(
    error_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    for module, name in ((rows, "ROWS_PER_BLOCK"), (hdf5, "ROWS_PER_BLOCK"), (tfrecord, "MAX_ROWS_IN_MEMORY")):
        monkeypatch.setattr(module, name, 2)
    edit = set_value("masked_lm_positions", 3, 10, row=2)
    assert error_of(format_name, edit) == "row 2, counted from 0: masked_lm_positions do not ascend"


def remove(name: str) -> Edit:
    return lambda arrays: arrays.pop(name)


def replace(name: str, change: Callable[[Any], Any]) -> Edit:
    return lambda arrays: arrays.__setitem__(name, change(arrays[name]))


FIXED_NAMES = ("input_ids", "input_mask", "masked_lm_ids", "masked_lm_positions", "next_sentence_labels", "segment_ids")


def no_dataset(name: str) -> str:
    others = ", ".join(repr(other) for other in FIXED_NAMES if other != name)
    return f"it has no dataset {name}; it has {others}"


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (remove("input_mask"), no_dataset("input_mask")),
        (remove("next_sentence_labels"), no_dataset("next_sentence_labels")),
        (replace("input_ids", lambda a: a.astype("f4")), "input_ids is float32, not an integer type"),
        (replace("segment_ids", lambda a: a.astype("?")), "segment_ids is bool, not an integer type"),
        (replace("masked_lm_ids", lambda a: a.astype("S3")), "masked_lm_ids is |S3, not an integer type"),
        (replace("next_sentence_labels", lambda a: a * 0.5), "next_sentence_labels is float64, not an integer type"),
        (replace("input_mask", np.ravel), "input_mask is [48], not [rows, columns]"),
        (replace("masked_lm_ids", lambda a: a[:, :, None]), "masked_lm_ids is [3, 4, 1], not [rows, columns]"),
        (
            replace("next_sentence_labels", lambda a: np.stack([a, a], axis=1)),
            "next_sentence_labels is [3, 2], not [rows] or [rows, 1]",
        ),
        (replace("next_sentence_labels", lambda a: a[0]), "next_sentence_labels is [], not [rows] or [rows, 1]"),
        (replace("segment_ids", lambda a: a[:2]), "segment_ids has 2 rows, and input_ids has 3"),
        (replace("next_sentence_labels", lambda a: a[:2]), "next_sentence_labels has 2 rows, and input_ids has 3"),
        (
            replace("input_mask", lambda a: a[:, :15]),
            "a row of input_mask has 15 columns, and one of input_ids has 16",
        ),
        (
            replace("masked_lm_ids", lambda a: a[:, :3]),
            "a row of masked_lm_ids has 3 columns, and one of masked_lm_positions has 4",
        ),
        (
            lambda arrays: [
                replace(name, lambda a: a[:, :4])(arrays) for name in ("input_ids", "input_mask", "segment_ids")
            ],
            "a row of input_ids has 4 columns, and 5 to 65535 are allowed",
        ),
        (
            lambda arrays: [
                replace(name, lambda a: np.zeros((3, 65_536), "i1"))(arrays)
                for name in ("input_ids", "input_mask", "segment_ids")
            ],
            "a row of input_ids has 65536 columns, and 5 to 65535 are allowed",
        ),
        (
            lambda arrays: [
                replace(name, lambda a: a[:, :0])(arrays) for name in ("masked_lm_positions", "masked_lm_ids")
            ],
            "a row of masked_lm_positions has 0 columns, and 1 to 65535 are allowed",
        ),
        (lambda arrays: [replace(name, lambda a: a[:0])(arrays) for name in arrays], "there is no row in it"),
    ],
)
def test_fixed_datasets_that_violate_the_format_are_errors(
    error_of: Callable[..., str], edit: Edit, found: str
) -> None:
    assert error_of("hdf5-fixed", edit) == found


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (
            remove("segment_ids"),
            "it has no dataset segment_ids; it has 'input_ids', 'masked_lm_ids', 'masked_lm_positions', "
            "'next_sentence_labels'",
        ),
        (
            replace("input_ids", lambda a: np.zeros((3, 16), "i2")),
            "input_ids is int16 [3, 16], not integers in rows of variable length",
        ),
        (
            replace("masked_lm_ids", lambda a: np.zeros(3, "i2")),
            "masked_lm_ids is int16 [3], not integers in rows of variable length",
        ),
        (replace("masked_lm_ids", lambda a: a[:2]), "masked_lm_ids has 2 rows, and input_ids has 3"),
        (
            replace("next_sentence_labels", lambda a: np.append(a, a)),
            "next_sentence_labels has 6 rows, and input_ids has 3",
        ),
    ],
)
def test_variable_datasets_that_violate_the_format_are_errors(
    error_of: Callable[..., str], edit: Edit, found: str
) -> None:
    assert error_of("hdf5-variable", edit) == found


@pytest.mark.parametrize(
    ("inside", "shape", "found"),
    [
        (np.dtype("f4"), (3,), "a row of input_ids is float32, not an integer type"),
        (np.dtype("i2"), (3, 1), "input_ids is [3, 1], not [rows]"),
        (np.dtype("i2"), (), "input_ids is [], not [rows]"),
        (None, (3,), "input_ids is object [3], not integers in rows of variable length"),
    ],
)
def test_variable_rows_of_another_type_are_errors(
    error_of: Callable[..., str], inside: Any, shape: tuple[int, ...], found: str
) -> None:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file["input_ids"]
            file.create_dataset("input_ids", shape, h5py.vlen_dtype(inside) if inside else h5py.string_dtype())

    assert error_of("hdf5-variable", edit_file=edit) == found


def external_storage(file: h5py.File, name: str, dataset: Any) -> None:
    Path(file.filename).with_name("other").write_bytes(b"\1" * 10_000)
    file.create_dataset(name, dataset.shape, dataset.dtype, external=[("other", 0, 10_000)])


def virtual(file: h5py.File, name: str, dataset: Any) -> None:
    layout = h5py.VirtualLayout(dataset.shape, dataset.dtype)
    layout[:] = h5py.VirtualSource("other", name, dataset.shape)
    file.create_virtual_dataset(name, layout)


def soft_link(file: h5py.File, name: str, dataset: Any) -> None:
    file["elsewhere"] = dataset
    file[name] = h5py.SoftLink("/elsewhere")


def external_link(file: h5py.File, name: str, dataset: Any) -> None:
    with h5py.File(Path(file.filename).with_name("other"), "w") as other:
        other[name] = dataset[:]
    file[name] = h5py.ExternalLink("other", name)


def unknown_filter(file: h5py.File, name: str, dataset: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((1,) * dataset.ndim)
    properties.set_filter(32_123, h5py.h5z.FLAG_OPTIONAL)
    space = h5py.h5s.create_simple(dataset.shape)
    h5py.h5d.create(file.id, name.encode(), dataset.id.get_type(), space, properties)


@pytest.mark.parametrize("format_name", HDF5)
@pytest.mark.parametrize("name", ["input_ids", "next_sentence_labels"])
@pytest.mark.parametrize(
    ("replace_dataset", "found"),
    [
        (external_storage, "is stored in other files, which are not read"),
        (virtual, "is stored in other files, which are not read"),
        (soft_link, "is a soft or external link, which is not followed"),
        (external_link, "is a soft or external link, which is not followed"),
        (lambda file, name, dataset: file.create_group(name), "is not a dataset"),
        (lambda file, name, dataset: file.__setitem__(name, np.dtype("i2")), "is not a dataset"),
        (lambda file, name, dataset: file.__setitem__(name, h5py.Empty("i2")), "is empty, without a shape"),
        (unknown_filter, "is compressed with the HDF5 filter 32123, which is not supported"),
    ],
)
def test_links_external_data_and_non_datasets_are_errors(
    error_of: Callable[..., str],
    format_name: str,
    name: str,
    replace_dataset: Callable[[h5py.File, str, Any], object],
    found: str,
) -> None:
    if format_name == "hdf5-variable" and name == "input_ids" and replace_dataset in (external_storage, virtual):
        pytest.skip("HDF5 has no such rows of variable length")

    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            dataset = file[name]
            del file[name]
            replace_dataset(file, name, dataset)

    assert error_of(format_name, edit_file=edit) == f"{name} {found}"


@pytest.mark.parametrize("format_name", HDF5)
@pytest.mark.parametrize("keep", [0, 7, 100, 1000, -1, -2000])
def test_truncated_hdf5_is_an_error(error_of: Callable[..., str], format_name: str, keep: int) -> None:
    found = error_of(format_name, edit_file=lambda path: path.write_bytes(path.read_bytes()[:keep]))
    assert found.startswith("it cannot be read as HDF5 (")


def test_exports_of_unrepresentable_values_are_errors(tmp_path: Path, make_samples: Callable[..., Samples]) -> None:
    samples = make_samples([5, 9])
    origin = Origin("t", "", "ab" * 32, 512, 76, made_by="tfrecord")

    def export_error(kind: type[PodiumError], origin: Origin = origin, **changes: Any) -> str:
        path = tmp_path / "a.h5"
        write_shard(path, Samples(**{**vars(samples), **changes}), origin)
        for format_name in HDF5:
            with pytest.raises(kind) as caught:
                export_shard(path, format_name, tmp_path / "a.hdf5")
        assert list(tmp_path.iterdir()) == [path]
        start = f"{path}: cannot be exported: "
        assert str(caught.value).startswith(start)
        return str(caught.value).removeprefix(start)

    too_large = "is larger than 32767, the maximum of the 16-bit integers of these HDF5 formats"
    large = np.where(np.arange(14) == 6, 32_768, samples.token_ids).astype(np.uint16)
    assert export_error(UsageError, token_ids=large).startswith(f"the token 32768 {too_large}; keep the samples")
    masked = samples.masked_token_ids + np.uint16(40_000)
    assert export_error(UsageError, masked_token_ids=masked).startswith(f"the masked token {masked.max()} {too_large}")
    wide = Origin("t", "", "ab" * 32, 40_000, 50_000, made_by="tfrecord")
    assert export_error(UsageError, wide).startswith(f"the length 40000 {too_large}")
    many = Origin("t", "", "ab" * 32, 512, 32_768, made_by="tfrecord")
    assert export_error(UsageError, many).startswith(f"the number of masked tokens 32768 {too_large}")
    positions = samples.masked_positions.copy()
    positions[samples.masked_offsets[1]] = 0
    assert export_error(WorkError, masked_positions=positions).startswith(
        "a sample masks its position 0, which is [CLS]"
    )


def test_largest_representable_values_are_exported(tmp_path: Path, make_samples: Callable[..., Samples]) -> None:
    samples = make_samples([5, 9])
    large = np.where(np.arange(14) == 6, 32_767, samples.token_ids).astype(np.uint16)
    origin = Origin("t", "", "ab" * 32, 32_767, 76, made_by="tfrecord")
    write_shard(tmp_path / "a.h5", Samples(**{**vars(samples), "token_ids": large}), origin)
    export_shard(tmp_path / "a.h5", "hdf5-fixed", tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["input_ids"].shape == (2, 32_767)
        assert file["input_ids"][:].max() == 32_767


@pytest.mark.parametrize(
    ("row_count", "chunk", "found"),
    [
        (2**17, (2**17, 512), "has chunks of 134,217,728 bytes and 134,217,728 in all"),
        (2**24, (64, 512), "has chunks of 65,536 bytes and 17,179,869,184 in all"),
        (2**24, None, "17,179,869,184 in all"),
    ],
)
def test_dataset_far_larger_than_its_file_is_an_error(
    error_of: Callable[..., str], row_count: int, chunk: tuple[int, ...] | None, found: str
) -> None:
    def inflate(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file["input_ids"]
            file.create_dataset("input_ids", (row_count, 512), "i2", chunks=chunk, compression=chunk and "gzip")

    message = error_of("hdf5-fixed", edit_file=inflate)
    assert message.startswith("input_ids has chunks of ") and found in message


def test_rows_that_all_refer_to_one_long_row_exceed_the_memory_limit(
    tmp_path: Path, allowed: VocabularyFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference to the heap has 16 bytes, so that a file of 2 MB can represent 8 GB of rows."""
    rows, long = 2048, np.full(250_000, 5, np.int64)
    file, places = tmp_path / "file", []
    with h5py.File(file, "w") as hdf5_file:
        for name in hdf5.ROW_DTYPES:
            dataset = hdf5_file.create_dataset(name, (rows,), h5py.vlen_dtype(long.dtype))
            dataset[0] = long
            places.append(dataset.id.get_offset())
        hdf5_file.create_dataset("next_sentence_labels", data=np.zeros(rows, np.int8))
    content = bytearray(file.read_bytes())
    for place in places:
        content[place : place + 16 * rows] = content[place : place + 16] * rows
    file.write_bytes(content)
    monkeypatch.setattr(hdf5, "MEMORY_LIMIT_BYTES", 2**26)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(WorkError, match=r"it cannot be read as HDF5 \(.*memory"):
        import_file(file, "hdf5-variable", allowed, tmp_path / "shard.h5")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert sorted(tmp_path.iterdir()) == [file]
