"""The error of a loss that is not finite: samples of the batch, with shard and position."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.bert.store import SampleStore
from implementations.pytorch.step import NotFinite, error_with_samples
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder


def test_every_sample_is_named_with_its_rank_and_shard(tmp_path: Path, write_store: Callable[..., Path]) -> None:
    for number, count in enumerate((9, 4, 12)):
        write_store(tmp_path, np.arange(5, 5 + count)).rename(tmp_path / f"part-{number}.h5")
    store = SampleStore([*tmp_path.glob("*.h5")])
    order = TrainingOrder(
        store, seed=3, strategy="random", global_batch_size=8, spec=AssignmentSpec(2, 2), accumulation_steps=2
    )
    global_batch = order.global_batch(1)
    error = error_with_samples(NotFinite(2, math.nan, global_batch), store, tmp_path / "not_finite.json")
    report = json.loads((tmp_path / "not_finite.json").read_text(encoding="utf-8"))
    assert (report["step"], report["loss"]) == (2, "nan")
    assert [sample["index"] for sample in report["samples"]] == global_batch.indices.tolist()
    assert [sample["rank"] for sample in report["samples"]] == [0] * 4 + [1] * 4
    assert [sample["micro_batch"] for sample in report["samples"]] == [0, 0, 1, 1] * 2
    assert {Path(sample["shard"]).name for sample in report["samples"]} > {"part-0.h5"}
    for sample in report["samples"]:
        shard = SampleStore([Path(sample["shard"])])
        assert len(shard.read(sample["sample_of_shard"]).token_ids) == store.lengths[sample["index"]]
    first = report["samples"][0]
    named = f"{first['index']} ({Path(first['shard']).name} {first['sample_of_shard']})"
    assert str(error).startswith(f"the loss of step 2 is nan on samples {named}, ")
    assert f" and 4 more, all of which are in {tmp_path / 'not_finite.json'}; lower optimizer.learning_rate" in str(
        error
    )
    assert error.exit_code == 1


def test_all_samples_of_a_small_batch_are_named(tmp_path: Path, make_store: Callable[..., SampleStore]) -> None:
    store = make_store(np.arange(5, 25))
    order = TrainingOrder(
        store, seed=3, strategy="random", global_batch_size=3, spec=AssignmentSpec(1, 1), accumulation_steps=1
    )
    error = error_with_samples(NotFinite(1, math.inf, order.global_batch(0)), store, tmp_path / "x.json")
    assert " more, " not in str(error)
    assert all(f"{index} (samples.h5 {index})" in str(error) for index in order.global_batch(0).indices.tolist())
