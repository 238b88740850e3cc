"""What is timed is what is said to be: the same samples on all sides, in turn, and the whole of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.checkpoint.names import huggingface_parts
from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import Size
from implementations.pytorch.bench.huggingface import HuggingFace, attention_implementations, require_memory
from implementations.pytorch.bench.step_costs import measure_costs
from implementations.pytorch.bench.variants import (
    EVERYTHING,
    VARIANTS,
    Lengths,
    Podium,
    mixed_lengths,
    time_in_turn,
    variants,
)
from implementations.pytorch.build_run import build_order
from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.distributed.process_group import Processes
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

Configs = Callable[..., RunConfig]
CPU = torch.device("cpu")


def test_quantiles_have_the_mixture_of_the_whole() -> None:
    histogram = wikipedia_histogram()
    lengths = mixed_lengths(histogram, 512)
    whole = float(histogram @ np.arange(len(histogram)) / histogram.sum())
    assert float(lengths.mean()) == pytest.approx(whole, rel=0.005)
    assert np.array_equal(lengths, mixed_lengths(histogram, 512))
    assert not np.array_equal(lengths, np.sort(lengths))
    assert lengths.min() >= 5
    assert lengths.max() == 512
    assert Lengths(np.array([5, 100, 512])).masked_counts.tolist() == [1, 15, 76]


def test_every_sample_is_in_one_step(make_config: Configs) -> None:
    lengths = mixed_lengths(wikipedia_histogram(), 64)
    for balancing in ("indexed", "padded"):
        config = make_config(global_batch_size=16, balancing=balancing)
        order = build_order(config, Lengths(lengths), 100, CPU, seed=0)
        taken = np.concatenate([order.global_batch(number).indices for number in range(4)])
        assert sorted(taken.tolist()) == list(range(64))


class Noting:
    def __init__(self, name: str, taken: list[tuple[str, int]]) -> None:
        self.name, self.taken = name, taken

    def take(self, number: int) -> None:
        self.taken.append((self.name, number))


def test_sides_take_turns_and_each_begins_in_its_turn() -> None:
    taken: list[tuple[str, int]] = []
    times = time_in_turn({name: Noting(name, taken) for name in "ab"}, 2, CPU)
    rounds = [taken[i : i + 2] for i in range(0, 8, 2)]
    assert [[number for _, number in one] for one in rounds] == [[0, 0], [1, 1]] * 2
    assert [[name for name, _ in one] for one in rounds] == [["a", "b"], ["b", "a"]] * 2
    assert {len(side.seconds) for side in times.values()} == {2}
    assert times["a"].total == pytest.approx(sum(times["a"].seconds))
    times["a"].seconds[:] = [0.004, 0.002, 0.001]
    assert times["a"].milliseconds == {"least": 1.0, "median": 2.0, "greatest": 4.0}


def test_an_ablation_changes_one_thing_at_a_time(make_config: Configs) -> None:
    config = make_config()
    found = variants(config, "cpu")
    assert list(found) == ["grouping", "unpadding", "kernels", "last layer", "precision", EVERYTHING]
    by_name = {variant.name: variant for variant in VARIANTS}
    for name, (what, changed) in found.items():
        differing = {k for k, v in vars(changed).items() if v != getattr(config, k)}
        if name != EVERYTHING:
            assert differing == {k for k, v in by_name[name].changes.items() if v != getattr(config, k)}
            assert what == by_name[name].what
    assert differing == {"balancing", "attention", "kernels", "last_layer", "precision"}
    assert "CUDA graphs" in variants(config, "cuda")
    assert "precision" not in variants(config, "cuda")
    assert "kernels" not in variants(make_config(kernels="eager"), "cpu")
    for _, changed in found.values():  # each is a configuration that a user may write
        RunConfig.model_validate(changed.model_dump(by_alias=True))


def test_on_several_ranks_what_lies_between_them_is_ablated_too(make_config: Configs) -> None:
    launch = make_config().launch.model_copy(update={"processes_per_node": 2})
    config = make_config(global_batch_size=16).model_copy(update={"launch": launch})
    found = variants(config, "cpu")
    between = {
        "balancing": {"balancing"},
        "exchange": {"balancing"},
        "wire": {"gradient_wire"},
        "optimizer": {"optimizer"},
        "clipping: bucket": {"clipping"},
        "clipping: before": {"clipping"},
        "clipping": {"clipping"},
    }
    assert list(found)[: len(between)] == list(between)
    for name, keys in between.items():
        changed = found[name][1]
        assert {key for key, value in vars(changed).items() if value != getattr(config, key)} == keys
        RunConfig.model_validate(changed.model_dump(by_alias=True))
    assert (config.wire, found["wire"][1].wire) == ("fp32", "bf16")
    everything = found[EVERYTHING][1]
    assert (everything.wire, everything.optimizer) == (config.wire, config.optimizer)
    assert everything.clipping is not None and everything.clipping.when == "before"
    half = config.model_copy(update={"gradient_wire": "fp16", "clipping": None})
    assert variants(half, "cpu")["wire"][1].wire == "fp32"
    assert variants(half, "cpu")[EVERYTHING][1].wire == "fp32"
    assert not any(name.startswith("clipping") for name in variants(half, "cpu"))


@pytest.fixture
def ours(make_config: Configs, processes: Processes, small: Size, vocabulary: int) -> Podium:
    config = make_config(global_batch_size=6, seed=1, precision="fp32", dropout=0.0)
    return Podium(config, processes, np.array([60, 5, 17, 33, 33, 12] * 2), vocabulary, small)


@pytest.mark.parametrize("attention", attention_implementations(CPU))
def test_hugging_face_computes_the_same_loss(
    attention: str, ours: Podium, make_config: Configs, small: Size, vocabulary: int
) -> None:
    """With our weights, on the same samples, padded to 512: so what is compared is the same training."""
    from implementations.pytorch.model.loss import loss_sums

    config = make_config(global_batch_size=6)
    other = HuggingFace(attention, ours.steps, config, small, vocabulary, "fp32", CPU)
    model = ours.stepper.model.module
    weights = model.state_dict()
    theirs = {part.name: weights[part.podium][part.rows] for part in huggingface_parts(small, vocabulary)}
    missing, unexpected = other.model.load_state_dict(theirs, strict=False)
    assert not unexpected
    assert all("decoder" in name or "position_ids" in name for name in missing)
    for number, step in enumerate(ours.steps):
        (batch,), (inputs,) = step.micro_batches, other.batches[number]
        assert inputs["input_ids"].shape == (6, 512)
        assert int((inputs["labels"] != IGNORED).sum()) == batch.masked
        with torch.no_grad():
            expected = loss_sums(model.eval()(batch), batch).mean(batch.masked, batch.sequences)
            found = other.model.eval()(**inputs).loss
        assert float(found) == pytest.approx(float(expected), rel=1e-4)
    other.model.train()
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    other.take(0)
    assert any(not torch.equal(value, before[name]) for name, value in other.model.state_dict().items())


def test_more_logits_than_there_is_memory_are_refused() -> None:
    require_memory(1, 512, CPU)
    with pytest.raises(UsageError, match=r"its logits of 1000000 × 512 tokens and 30522 words take about \d+ GiB"):
        require_memory(1_000_000, 30_522, CPU)


def test_costs_are_measured_on_many_compositions(ours: Podium, vocabulary: int) -> None:
    parameters = [p.detach().clone() for p in ours.stepper.model.parameters()]
    costs = measure_costs(ours.stepper, np.array([60, 5, 17, 33, 33, 12]), 64, vocabulary)
    assert costs.seconds(np.full(40, 512), 3000) > costs.seconds(np.full(4, 32), 19) > 0
    assert any(not torch.equal(a, b) for a, b in zip(parameters, ours.stepper.model.parameters(), strict=True))


def test_warming_up_is_not_timed(ours: Podium) -> None:
    time_in_turn({"podium": ours}, 2, CPU)
    clocked: Any = sum(ours.clock.seconds.values())
    assert clocked > 0
    assert ours.clock.seconds["data_wait"] == ours.clock.seconds["evaluation"] == 0
