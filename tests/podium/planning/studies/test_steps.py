"""Studies with the cost model: DDP's bucket counts, an optimum inside the range, and published figures."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.bert.sizes import LARGE
from podium.planning.prediction.buckets import MIB, backward_gradients
from podium.planning.prediction.published import wikipedia_lengths
from podium.planning.studies.steps import ALL_CHANGES, BUCKET_SIZES_MIB, COMBINED_CHANGES, buckets, contributions
from podium.planning.studies.study import Study


@pytest.fixture(scope="module")
def by_size() -> Study:
    return buckets()


def test_bucket_counts_match_ddp(by_size: Study) -> None:
    gradients = backward_gradients(LARGE, float(wikipedia_lengths().means[0]))
    tensors = [torch.empty(gradient.elements, device="meta") for gradient in gradients]
    for size, count, *_ in by_size.tables[0].rows:
        assert isinstance(size, float)
        expected, _ = dist._compute_bucket_assignment_by_size(tensors, [int(2 * size * MIB)], [False] * len(tensors))
        assert count == len(expected)


def test_the_optimum_is_inside_the_range(by_size: Study) -> None:
    named = {row[0]: row for row in by_size.tables[1].rows}
    for clipping in ("bucket", "after"):
        assert BUCKET_SIZES_MIB[0] < float(named[clipping][1]) < BUCKET_SIZES_MIB[-1]  # type: ignore[arg-type]
    assert named["before"][1] == BUCKET_SIZES_MIB[-1]  # nothing overlaps, so that fewer buckets are always better


def test_the_parts_of_a_step_add_up(by_size: Study) -> None:
    for clipping, *values in by_size.tables[2].rows:
        compute, waiting, clip, sent, exposed, update, step = (float(value) for value in values)  # type: ignore[arg-type]
        assert compute + waiting + clip + exposed + update == pytest.approx(step)
        assert (exposed == pytest.approx(sent)) == (clipping == "before")
        assert exposed <= sent * (1 + 1e-9)


def test_worth_of_each_contribution_follows_from_its_prediction() -> None:
    study = contributions()
    first, second, published = study.tables
    assert study.question == "What is each contribution worth in 25.1 s (round 1.1) and 22.3 s (round 2.0)?"
    assert [
        finding for finding in study.findings if finding.startswith("NVIDIA's LAMB at 4,096 was published with 25.3 s")
    ]
    predicted = next(float(row[3]) for row in second.rows if row[0] == "as trained")  # type: ignore[arg-type]
    assert f"round 2.0 is predicted {22.320375 / predicted:.2f} times as fast as" in study.findings[-1]
    assert "1.1, published 25.1 s" in first.title
    assert "2.0, published 22.3 s" in second.title
    for table, score in ((first, 25.056), (second, 22.313)):
        rows = {row[0]: [float(value) for value in row[1:]] for row in table.rows}  # type: ignore[arg-type]
        trained = rows["as trained"]
        assert trained[-2:] == [1.0, 0.0]
        for values in rows.values():
            _, _, seconds, low, high, ratio, worth = values
            assert low < seconds < high
            assert ratio == pytest.approx(seconds / trained[2])
            assert worth == pytest.approx(score * (ratio - 1), rel=0.01, abs=0.05)
        assert rows[ALL_CHANGES][-1] > max(rows[name][-1] for name in COMBINED_CHANGES) > 0
    figures = {(row[0], row[1]): (row[3], row[4]) for row in published.rows}
    assert figures["2.0 NVIDIA lamb", 16_384] == (pytest.approx(12.34, abs=0.01), pytest.approx(5_468_895, abs=1))
    assert figures["2.0 NVIDIA lamb", 4096] == (pytest.approx(25.25, abs=0.01), pytest.approx(2_786_616, abs=1))
    assert figures["2.0 Samsung adamw", 16_384] == (pytest.approx(22.32, abs=0.01), 2_932_736)
    assert figures["1.1 Samsung adamw", 16_384] == (25.056, 3_096_576)
