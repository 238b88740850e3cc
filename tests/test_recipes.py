"""Every recipe from its file to a compliant result on several processes; the same losses of the same samples."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from benchmarks.bert.rules import RULESETS
from benchmarks.bert.store import SampleStore, join_stores
from implementations.pytorch.build_run import build_order
from implementations.pytorch.optim.schedule import rate_table
from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder, checkpoint_path
from podium.mllog.compliance import check_compliance
from tests.conftest import without_times

SHORT = ("target_accuracy=null", "max_samples=96", "evaluation.samples=16", "evaluation.interval_samples=48")
EXACT = ("dropout=0", "precision=fp32", "attention_widths=null", "optimizer.algorithm=lamb")
SHORTER = ("max_samples=48", "evaluation.interval_samples=32")
ALIKE = ("shards=shared", "phases=[]", "clipping.when=after", "gradient_wire=fp32")
FIRST_AND_LAST = (RULESETS[0], RULESETS[-1])  # the main job's log is checked under all
Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(train: Callable[..., RunFolder]) -> Run:
    """(recipe, ranks, settings) → the totals of a compliant run, and its steps."""

    def run(recipe: str, ranks: int, *settings: str) -> dict[str, Any]:
        folder = train(recipe, ranks, *SHORT, "seed=11", *settings)
        assert not any(check_compliance(folder.log, FIRST_AND_LAST).values())
        found: dict[str, Any] = json.loads(folder.summary.read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
        trained, evaluated = ([line for line in lines if line["event"] == event] for event in ("step", "evaluation"))
        return {**found, "trained": trained, "evaluated": evaluated, "log": folder.log}

    return run


@pytest.fixture(scope="module")
def expected(run: Run) -> dict[str, Any]:
    """`indexed` on two processes."""
    return run("indexed", 2, *EXACT, *SHORTER)


def values(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines]


@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        *(("indexed", 1), ("padded", 2), ("packed", 2), ("exchanged", 4)),
        *(
            pytest.param(*one, marks=pytest.mark.exhaustive)
            for one in (("indexed", 4), ("packed", 4), ("random", 2), ("academic", 2))
        ),
    ],
)
def test_recipes_follow_the_same_losses_where_the_samples_are_the_same(
    run: Run, expected: dict[str, Any], recipe: str, ranks: int
) -> None:
    found = run(recipe, ranks, *EXACT, *SHORTER, *ALIKE)
    for key in ("loss", "gradient_norm", "samples"):
        assert values(found["trained"], key) == pytest.approx(values(expected["trained"], key), rel=1e-4)
    for key in ("accuracy", "masked_lm_loss", "samples"):
        assert values(found["evaluated"], key) == pytest.approx(values(expected["evaluated"], key), rel=1e-4)
    pads = recipe in ("padded", "academic")
    assert found["padding_share"] > 0.3 if pads else found["padding_share"] < (0.3 if recipe == "packed" else 0.05)
    assert found["samples"] == 48 and len(found["evaluated"]) == 2
    assert ("exchange" in found) is (recipe == "exchanged")


def test_the_exchange_passes_on_samples_that_each_rank_read_of_its_part(run: Run) -> None:
    found = run("exchanged", 2, "exchange_steps=2")
    assert found["exchange"]["pieces"] == 3
    assert found["exchange"]["samples"] == 48
    assert found["exchange"]["sent_bytes"] > 0
    assert found["max_over_mean_tokens"] < 1.25


def test_presorted_draws_the_counts_that_are_asked_for(run: Run) -> None:
    found = run("presorted", 2, "strata_counts=[3, 2, 1, 2]")
    assert found["max_over_mean_tokens"] < 1.2
    assert len({line["tokens"] for line in found["trained"]}) == 6


PHASES = "phases=[{max_sequence_length: 128, share: 0.5, gradient_accumulation_steps: 1}, {max_sequence_length: 512}]"
ACADEMIC = (PHASES, "checkpoint.every_samples=16", "checkpoint.keep=99")


@pytest.fixture(scope="module")
def academic(train: Callable[..., RunFolder]) -> RunFolder:
    """Three steps of each phase on two processes, with a checkpoint after each."""
    return train("academic", 2, *SHORT, "seed=11", *ACADEMIC)


def steps_of(folder: RunFolder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == "step"]


def test_academic_trains_on_samples_made_for_128_tokens_first_with_one_optimizer_and_schedule(
    academic: RunFolder,
) -> None:
    steps = steps_of(academic)
    assert [line["slots"] // 16 for line in steps] == [128] * 3 + [512] * 3
    config = load_resolved(academic.config)
    store, main = join_stores([SampleStore(folder) for folder in config.stores]), len(SampleStore(config.stores[0]))
    order = build_order(config, store, 0, torch.device("cpu"))
    for number, line in enumerate(steps):
        whole = order.global_batch(number)
        assert ((whole.indices >= main) == (number < 3)).all()
        assert line["tokens"] == whole.tokens
    rates = rate_table(config.optimizer, config.steps, torch.device("cpu")).tolist()
    assert values(steps, "learning_rate") == pytest.approx(rates)
    assert not any(check_compliance(academic.log, FIRST_AND_LAST).values())
    for batches in (3, 4, 5):  # the optimizer's own count and the steps without overflow continue over the boundary
        file = checkpoint_path(academic.checkpoints, batches) / "rank_0.safetensors"
        with safe_open(file, framework="pt") as tensors:
            counted = [name for name in tensors.keys() if name.endswith(("step", "growth_tracker", "taken"))]  # noqa: SIM118
            assert {round(float(tensors.get_tensor(name).max())) for name in counted} == {batches}
            assert any(name.endswith("growth_tracker") for name in counted)


@pytest.mark.parametrize("batches", [3, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 4))])
def test_academic_resumes_bit_for_bit_in_either_phase_and_between_them(
    academic: RunFolder, start_training: Callable[..., None], tmp_path: Path, batches: int
) -> None:
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(academic.path, folder.path)
    folder.summary.unlink()
    for number in range(batches + 1, 7):
        shutil.rmtree(checkpoint_path(folder.checkpoints, number), ignore_errors=True)
    start_training(folder, 2)
    assert folder.restarts == 1
    assert without_times(folder.metrics) == without_times(academic.metrics)


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", [("loader=exchange", "exchange_steps=4"), ("shards=shared",)])
def test_academic_trains_in_two_phases_with_every_loader(run: Run, academic: RunFolder, settings: tuple[str]) -> None:
    found = run("academic", 2, PHASES, *settings)
    assert [line["slots"] // 16 for line in found["trained"]] == [128] * 3 + [512] * 3
    if "loader=exchange" in settings:  # the same samples in the same order
        assert values(found["trained"], "loss") == values(steps_of(academic), "loss")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_academic_reaches_the_target_from_two_stores(train: Callable[..., RunFolder], seed: int) -> None:
    phases = "phases=[{max_sequence_length: 128, samples: 4096, gradient_accumulation_steps: 1}, {}]"
    folder = train("academic", 2, phases, f"seed={seed}", "max_samples=24576")
    summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    assert summary["reached_target"] and summary["samples"] > 4096


def test_a_target_found_beside_training_counts_the_samples_that_reached_it(run: Run) -> None:
    """Steps taken until it was known are discarded; the log has the samples of the evaluated weights."""
    settings = ("target_accuracy=1.0e-6", "evaluation.overlap=training", "evaluation.samples=320", "max_samples=480")
    found = run("indexed", 2, *settings)
    assert found["reached_target"]
    assert found["samples"] % 48 == 0  # of an evaluation, and 16 a step
    assert found["evaluation"]["steps_thrown_away"] > 0
    assert found["evaluation"]["seconds_beside_training"] > 0
    log: Path = found["log"]
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text(encoding="utf-8").splitlines()]
    samples = {event["key"]: event["metadata"].get("epoch_num", event["value"]) for event in events}
    assert samples["train_samples"] == samples["run_stop"] == samples["eval_accuracy"] == found["samples"]
    assert samples["block_stop"] == found["samples"] + 16 * found["evaluation"]["steps_thrown_away"]
    assert len(found["trained"]) == found["steps"] + found["evaluation"]["steps_thrown_away"]
