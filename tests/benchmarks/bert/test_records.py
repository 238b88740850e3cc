"""Records: packing and unpacking of samples."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.records import pack, record_lengths, unpack, unpack_at
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples, offsets_of
from tests.benchmarks.bert.test_store import make_samples


def assert_equal(one: Samples, other: Samples) -> None:
    for name in SAMPLE_DTYPES:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@given(st.lists(st.integers(5, 512), min_size=1, max_size=12), st.integers(0, 100), st.data())
@settings(deadline=None)
def test_samples_are_packed_and_unpacked(lengths: list[int], seed: int, data: st.DataObject) -> None:
    samples = make_samples(lengths, seed)
    masked = np.diff(samples.masked_offsets)
    records = pack(samples)
    assert records.dtype == np.uint16 and len(records) == record_lengths(np.array(lengths), masked).sum()
    assert_equal(unpack(records, np.array(lengths), masked), samples)
    order = np.array(data.draw(st.permutations(range(len(lengths)))))
    starts = offsets_of(record_lengths(np.array(lengths), masked))[order]
    found = unpack_at(records.ctypes.data + 2 * starts, np.array(lengths)[order], masked[order])
    assert_equal(unpack(pack(found), np.array(lengths)[order], masked[order]), found)
    assert np.diff(found.sample_offsets).tolist() == np.array(lengths)[order].tolist()
    assert found.next_sentence_labels.tolist() == samples.next_sentence_labels[order].tolist()


def test_label_above_one_byte_does_not_become_a_valid_label() -> None:
    samples = make_samples([5])
    records = pack(samples)
    records[-1] = 256
    assert unpack(records, np.array([5]), np.array([1])).next_sentence_labels.tolist() == [255]
