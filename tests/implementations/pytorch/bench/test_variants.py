"""Variants: all are timed on the same samples, interleaved, and each changes what its name states."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.checkpoint.names import huggingface_parts
from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import Size
from implementations.pytorch.bench.huggingface import HuggingFaceRunner, attention_implementations
from implementations.pytorch.bench.step_costs import measure_costs
from implementations.pytorch.bench.variants import (
    EVERYTHING,
    VARIANTS,
    Lengths,
    PodiumRunner,
    mixed_lengths,
    time_interleaved,
    variants,
)
from implementations.pytorch.build_run import build_order
from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.distributed.process_group import Processes
from podium.config.schema import RunConfig

Configs = Callable[..., RunConfig]
CPU = torch.device("cpu")


def test_mixed_lengths_have_the_mean_of_the_histogram() -> None:
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


class RecordingRunner:
    """Records the steps that are run."""

    def __init__(self, name: str, taken: list[tuple[str, int]]) -> None:
        self.name, self.taken = name, taken

    def take(self, number: int) -> None:
        self.taken.append((self.name, number))


def test_runners_are_interleaved_and_each_is_first_in_turn() -> None:
    taken: list[tuple[str, int]] = []
    times = time_interleaved({name: RecordingRunner(name, taken) for name in "ab"}, 2, CPU)
    rounds = [taken[i : i + 2] for i in range(0, 8, 2)]
    assert [[number for _, number in steps] for steps in rounds] == [[0, 0], [1, 1]] * 2
    assert [[name for name, _ in steps] for steps in rounds] == [["a", "b"], ["b", "a"]] * 2
    assert {len(runner.seconds) for runner in times.values()} == {2}
    assert times["a"].total == pytest.approx(sum(times["a"].seconds))
    times["a"].seconds[:] = [0.004, 0.002, 0.001]
    assert times["a"].milliseconds == {"min": 1.0, "median": 2.0, "max": 4.0}


def test_a_variant_changes_one_thing(make_config: Configs) -> None:
    config = make_config()
    found = variants(config, "cpu")
    assert list(found) == ["grouping", "unpadding", "kernels", "last layer", "precision", EVERYTHING]
    by_name = {variant.name: variant for variant in VARIANTS}
    for name, (description, changed) in found.items():
        differing = {k for k, v in vars(changed).items() if v != getattr(config, k)}
        if name != EVERYTHING:
            assert differing == {k for k, v in by_name[name].changes.items() if v != getattr(config, k)}
            assert description == by_name[name].description
    assert differing == {"balancing", "attention", "kernels", "last_layer", "precision"}
    assert "CUDA graphs" in variants(config, "cuda")
    assert "precision" not in variants(config, "cuda")
    assert "kernels" not in variants(make_config(kernels="eager"), "cpu")
    assert "grouping" in variants(make_config(attention="grouped"), "cpu")
    for attention in ("nested", "padded"):
        assert "grouping" not in variants(make_config(attention=attention), "cpu")
    for _, changed in found.values():  # each is a valid configuration
        RunConfig.model_validate(changed.model_dump(by_alias=True))


def test_several_ranks_have_variants_of_communication_and_balancing(make_config: Configs) -> None:
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
def podium(make_config: Configs, processes: Processes, small: Size, vocabulary: int) -> PodiumRunner:
    config = make_config(global_batch_size=6, seed=1, precision="fp32", dropout=0.0)
    return PodiumRunner(config, processes, np.array([60, 5, 17, 33, 33, 12] * 2), vocabulary, small)


@pytest.mark.parametrize("attention", attention_implementations(CPU))
def test_hugging_face_computes_the_same_loss(
    attention: str, podium: PodiumRunner, make_config: Configs, small: Size, vocabulary: int
) -> None:
    """With Podium's weights, on the same samples, padded to 512: so both train the same model."""
    from implementations.pytorch.model.loss import loss_sums

    config = make_config(global_batch_size=6)
    other = HuggingFaceRunner(attention, podium.steps, config, small, vocabulary, "fp32", CPU)
    model = podium.stepper.model.module
    weights = model.state_dict()
    hf_weights = {part.name: weights[part.podium_name][part.rows] for part in huggingface_parts(small, vocabulary)}
    missing, unexpected = other.model.load_state_dict(hf_weights, strict=False)
    assert not unexpected
    assert all("decoder" in name or "position_ids" in name for name in missing)
    for number, step in enumerate(podium.steps):
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


def test_costs_are_measured_on_many_compositions(podium: PodiumRunner, vocabulary: int) -> None:
    parameters = [p.detach().clone() for p in podium.stepper.model.parameters()]
    costs = measure_costs(podium.stepper, np.array([60, 5, 17, 33, 33, 12]), 64, vocabulary)
    assert costs.seconds(np.full(40, 512), 3000) > costs.seconds(np.full(4, 32), 19) > 0
    assert any(not torch.equal(a, b) for a, b in zip(parameters, podium.stepper.model.parameters(), strict=True))


def test_the_uncounted_round_is_not_timed(podium: PodiumRunner) -> None:
    time_interleaved({"podium": podium}, 2, CPU)
    clocked: Any = sum(podium.clock.seconds.values())
    assert clocked > 0
    assert podium.clock.seconds["data_wait"] == podium.clock.seconds["evaluation"] == 0
