"""Checkpoints: what they restore, bit for bit, and when they are written."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.bert.store import SampleStore
from implementations.pytorch import checkpointing
from implementations.pytorch.checkpointing import (
    RunState,
    Saver,
    agreed_checkpoint,
    checkpoint_facts,
    verify_tensors,
)
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.checkpoint_choice import usable_checkpoint
from podium.config.run_folder import (
    UNFINISHED_MARKER,
    Checkpoint,
    RunFolder,
    checkpoint_path,
    complete_checkpoints,
    newest_checkpoint,
    rank_file,
)
from podium.config.schema import Checkpointing, Clipping, LossScaling, RunConfig
from podium.core.errors import WorkError
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

Maker = Callable[..., tuple[Stepper, TrainingOrder]]
CONFIGURATION = {"seed": 5}
DIGESTS = {"data.store": "ab" * 32}


@pytest.fixture
def start(
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
) -> Maker:
    """A run after its first step, so that its optimizer has a state."""
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))

    def begin(algorithm: str = "lamb", precision: str = "fp32", seed: int = 0) -> tuple[Stepper, TrainingOrder]:
        config = make_config(
            global_batch_size=4,
            clipping=Clipping(max_norm=1.0),
            loss_scaling=LossScaling(initial=1024.0, growth_interval=3),
            optimizer={"algorithm": algorithm, "warmup_steps": 0, "learning_rate": 0.01},
        )
        stepper, order = make_stepper(config, make_model(dropout_probability=0.1, seed=seed), precision), None
        order = make_order(store, config)
        take(stepper, order, 0)
        return stepper, order

    return begin


def take(stepper: Stepper, order: TrainingOrder, number: int) -> list[float]:
    """All of a step's results but its measured time."""
    found = vars(stepper.take(read_step(order, number, 0), PhaseClock()))
    return [float(value) for name, value in found.items() if name != "work_ms"]


def state_of(stepper: Stepper, processes: Processes) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in RunState(stepper, processes).rank_tensors().items()}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.log.write_text("a line\n", encoding="utf-8")
    folder.metrics.write_text("{}\n", encoding="utf-8")
    return folder


def saver_of(
    stepper: Stepper, processes: Processes, folder: RunFolder, samples: int = 0, **settings: Any
) -> tuple[Saver, RunState]:
    state = RunState(stepper, processes)
    return Saver(Checkpointing(**settings), folder, processes, state, samples, CONFIGURATION, DIGESTS), state


@pytest.mark.parametrize(("algorithm", "precision"), [("lamb", "fp32"), ("adamw", "bf16"), ("lamb", "fp16")])
def test_a_run_resumes_bit_for_bit(
    start: Maker, processes: Processes, folder: RunFolder, algorithm: str, precision: str
) -> None:
    """With the tensors of the moment of `capture`. In fp16 the loss scale is doubled before and after it."""
    stepper, order = start(algorithm, precision)
    for number in (1, 2, 3):
        take(stepper, order, number)
    saver, _ = saver_of(stepper, processes, folder)
    with saver:
        saver.capture(16)
        here = state_of(stepper, processes)
        expected = [take(stepper, order, number) for number in (4, 5, 6)]
        end = state_of(stepper, processes)
        saver.start_writing(4, 16, 3, {"own": 1.1})
        assert not saver.captured
    checkpoint = newest_checkpoint(folder.checkpoints)
    assert checkpoint and (checkpoint.batches, checkpoint.samples, checkpoint.facts["own"]) == (4, 16, 1.1)
    assert (checkpoint.log, checkpoint.metrics_bytes) == ("a line\n", 3)
    assert checkpoint.facts["data"] == DIGESTS

    resumed, order = start(algorithm, precision, seed=9)
    RunState(resumed, processes).load(checkpoint.path)
    found = state_of(resumed, processes)
    assert found.keys() == here.keys()
    for name, tensor in here.items():
        assert torch.equal(found[name], tensor), name
    assert [take(resumed, order, number) for number in (4, 5, 6)] == expected
    for name, tensor in state_of(resumed, processes).items():
        assert torch.equal(tensor, end[name]), name
    if precision == "fp16":
        assert [float(state["scaler.scale"]) for state in (here, end)] == [2048.0, 4096.0]
        assert int(here["scaler.growth_tracker"]) == 1


def test_names_of_the_tensors_in_a_checkpoint(start: Maker, processes: Processes) -> None:
    stepper, _ = start("adamw", "fp16")
    names = set(state_of(stepper, processes))
    for name, _ in stepper.model.module.named_parameters():
        assert {f"model.{name}", *(f"optimizer.{name}.{key}" for key in ("step", "exp_avg", "exp_avg_sq"))} <= names
    assert {"steps_taken", "scaler.scale", "scaler.growth_tracker", "random.cpu"} <= names
    lamb, _ = start("lamb")
    assert {f"group.{number}.step" for number in range(3)} <= set(state_of(lamb, processes))


def test_states_sharded_over_ranks_are_written_once_and_restored(
    start: Maker, processes: Processes, tmp_path: Path
) -> None:
    stepper, order = start()
    whole = state_of(stepper, processes)
    second = Processes(1, 2, processes.device)
    states = [RunState(stepper, processes), RunState(stepper, second)]
    owners = {name: number % 2 for number, name in enumerate(states[0]._owners)}
    written = []
    for rank, state in enumerate(states):
        state._owners = owners
        written.append(state.rank_tensors())
        save_file({name: tensor.clone() for name, tensor in written[rank].items()}, rank_file(tmp_path, rank))
    shared = set(written[0]) & set(written[1])
    assert shared == {"group.0.step", "group.1.step", "group.2.step", "random.cpu"}
    assert not any(name.startswith(("model", "steps")) for name in written[1])
    assert set(written[0]) | set(written[1]) == set(whole)
    for state in states:
        take(stepper, order, 1)
        state.load(tmp_path)
        for name, tensor in state_of(stepper, processes).items():
            assert torch.equal(tensor, whole[name]), name


def test_the_lowest_rank_with_a_state_owns_it(start: Maker, processes: Processes) -> None:
    stepper, _ = start()
    parameters = list(stepper.model.module.parameters())
    stepper.optimizer.state.pop(parameters[2])
    owners = list(RunState(stepper, processes)._owners.values())
    assert owners[:4] == [0, 0, 1, 0]  # 1, the number of ranks: no rank has it


def test_each_rank_restores_its_random_state(start: Maker, processes: Processes, tmp_path: Path) -> None:
    stepper, _ = start()
    states = [RunState(stepper, processes), RunState(stepper, Processes(1, 2, processes.device))]
    drawn = []
    for rank, state in enumerate(states):
        torch.manual_seed(100 + rank)
        save_file({name: tensor.clone() for name, tensor in state.rank_tensors().items()}, rank_file(tmp_path, rank))
        drawn.append(torch.rand(3))
    for state, expected in zip(states, drawn, strict=True):
        state.load(tmp_path)
        assert torch.equal(torch.rand(3), expected)


# When checkpoints are written


def test_checkpoints_are_due_at_multiples_of_samples(start: Maker, processes: Processes, folder: RunFolder) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder, samples=120, every_samples=50)
    assert [saver.due_by_samples(samples) for samples in (120, 149, 150, 200)] == [False, False, True, True]
    saver.capture(163)
    assert [saver.due_by_samples(samples) for samples in (199, 200)] == [False, True]
    assert not saver.due_by_time()
    never, _ = saver_of(stepper, processes, folder)
    assert not never.due_by_samples(10**9) and not never.due_by_time()


def test_checkpoints_by_time_are_due_once_and_on_the_first_rank(
    start: Maker, processes: Processes, folder: RunFolder
) -> None:
    stepper, _ = start()
    saver, state = saver_of(stepper, processes, folder, every_minutes=0.2 / 60)
    assert not saver.due_by_time()
    time.sleep(0.25)
    second_rank = Processes(1, 2, processes.device)
    second = Saver(Checkpointing(every_minutes=0.1 / 60), folder, second_rank, state, 0, CONFIGURATION)
    assert [saver.due_by_time(), saver.due_by_time(), second.due_by_time()] == [True, False, False]
    saver.capture(1)
    assert not saver.due_by_time()
    time.sleep(0.25)
    assert saver.due_by_time()


def test_training_continues_while_a_checkpoint_is_written(
    start: Maker, processes: Processes, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder)
    write_tensors = checkpointing.write_tensors

    def write_slowly(*arguments: Any) -> None:
        time.sleep(0.5)
        write_tensors(*arguments)

    monkeypatch.setattr(checkpointing, "write_tensors", write_slowly)
    with saver:
        saver.capture(16)
        begun = time.monotonic()
        saver.start_writing(1, 16, 0, {})
        assert time.monotonic() - begun < 0.3
        assert newest_checkpoint(folder.checkpoints) is None
        saver.capture(32)  # waits for the previous checkpoint, since it overwrites the copies
        assert newest_checkpoint(folder.checkpoints)
        saver.start_writing(2, 32, 0, {})
    newest = newest_checkpoint(folder.checkpoints)
    assert newest and newest.batches == 2


def test_only_the_newest_checkpoints_are_kept(start: Maker, processes: Processes, folder: RunFolder) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder, keep=2)
    with saver:
        for batches in range(1, 6):
            saver.capture(16 * batches)
            saver.start_writing(batches, 16 * batches, 0, {})
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["batch_00000004", "batch_00000005"]
    assert sorted(path.name for path in checkpoint_path(folder.checkpoints, 5).iterdir()) == [
        "facts.json",
        "rank_0.safetensors",
    ]


def test_the_checkpoint_has_the_log_of_the_moment_of_capture(
    start: Maker, processes: Processes, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder)
    monkeypatch.setattr(checkpointing, "write_tensors", lambda *_: time.sleep(0.3))
    saver.capture(16)
    saver.start_writing(1, 16, 0, {})
    with folder.log.open("a", encoding="utf-8") as log:
        log.write("another\n")
    saver.finish()
    facts = json.loads((checkpoint_path(folder.checkpoints, 1) / "facts.json").read_text(encoding="utf-8"))
    assert facts["log"] == "a line\n"


def test_errors_of_writing_are_raised_by_the_next_call(start: Maker, processes: Processes, folder: RunFolder) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder)
    path = checkpoint_path(folder.checkpoints, 1)
    rank_file(path, 0).mkdir(parents=True)  # a folder in place of the file
    saver.capture(16)
    saver.start_writing(1, 16, 0, {})
    with pytest.raises(WorkError, match=r"rank_0\.safetensors: a folder exists at this path"):
        saver.capture(32)
    assert newest_checkpoint(folder.checkpoints) is None
    assert not list(path.glob(".*"))


# Faults


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"no"), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read"),
        (lambda path: change_tensors(path, lambda t: t.pop("steps_taken")), "has no steps_taken"),  # type: ignore[arg-type,return-value]
        (
            lambda path: change_tensors(path, lambda t: t.update({"steps_taken": torch.zeros(2)})),
            r"steps_taken is torch.float32",
        ),
    ],
)
def test_a_file_that_does_not_match_the_run_is_an_error(
    start: Maker, processes: Processes, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    stepper, _ = start()
    state = RunState(stepper, processes)
    save_file({name: tensor.clone() for name, tensor in state.rank_tensors().items()}, rank_file(tmp_path, 0))
    damage(rank_file(tmp_path, 0))
    with pytest.raises(WorkError, match=message):
        state.load(tmp_path)


def test_all_ranks_resume_from_the_first_ranks_checkpoint(
    start: Maker, processes: Processes, folder: RunFolder
) -> None:
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder)
    with saver:
        saver.capture(16)
        saver.start_writing(1, 16, 0, {})
    found = newest_checkpoint(folder.checkpoints)
    assert agreed_checkpoint(folder, processes, None) is None
    assert found and agreed_checkpoint(folder, processes, found) == found
    with pytest.raises(WorkError, match="rank 0 does not see this checkpoint; all ranks need one shared file system"):
        agreed_checkpoint(RunFolder(folder.path / "elsewhere"), processes, found)


@pytest.fixture
def two(start: Maker, processes: Processes, folder: RunFolder) -> list[Checkpoint]:
    """Two checkpoints of a run."""
    stepper, _ = start()
    saver, _ = saver_of(stepper, processes, folder)
    with saver:
        for batches in (1, 2):
            saver.capture(16 * batches)
            saver.start_writing(batches, 16 * batches, 0, {"totals": {"steps": batches}})
    return complete_checkpoints(folder.checkpoints)


def test_written_checkpoints_pass_verification(two: list[Checkpoint]) -> None:
    for checkpoint in two:
        assert checkpoint.facts["configuration"] == CONFIGURATION
        verify_tensors(checkpoint, 0)


def test_a_file_of_another_checkpoint_rank_or_run_is_an_error(
    two: list[Checkpoint], start: Maker, processes: Processes, folder: RunFolder
) -> None:
    first, second = (rank_file(checkpoint.path, 0) for checkpoint in two)
    whole = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with pytest.raises(
        WorkError, match=rf"^{second}: belongs to another checkpoint: its batches is 1, expected 2; restore"
    ):
        verify_tensors(two[1], 0)
    rank_file(two[1].path, 1).write_bytes(whole)
    with pytest.raises(WorkError, match=r"rank_1\.safetensors: belongs to another .*: its rank is 0, expected 1"):
        verify_tensors(two[1], 1)
    state = RunState(start()[0], processes)
    with Saver(Checkpointing(), folder, processes, state, 0, {"seed": 6}) as saver:
        saver.capture(32)
        saver.start_writing(2, 32, 0, {})
    with pytest.raises(WorkError, match="belongs to another checkpoint: its configuration is "):
        verify_tensors(two[1], 0)
    save_file({"x": torch.zeros(1)}, second)
    with pytest.raises(WorkError, match="belongs to another checkpoint: its batches is None"):
        verify_tensors(two[1], 0)


def test_incomplete_facts_are_an_error(two: list[Checkpoint]) -> None:
    for wrong in (lambda facts: facts["position"], lambda facts: SimpleNamespace(**facts["totals"], **{"steps": 1})):
        with (
            pytest.raises(WorkError, match=r"batch_00000002/facts\.json: is not a checkpoint that this version"),
            checkpoint_facts(two[1]) as facts,
        ):
            wrong(facts)
    with checkpoint_facts(two[1]) as facts:
        assert facts["totals"] == {"steps": 2}


def test_a_flipped_bit_in_the_newest_checkpoint_selects_the_previous_one(
    two: list[Checkpoint], folder: RunFolder
) -> None:
    """With files as the saver writes them; none is left marked as unfinished."""
    notes: list[str] = []
    assert usable_checkpoint(folder.checkpoints, notes.append) == two[1] and not notes
    assert not list(folder.checkpoints.rglob(UNFINISHED_MARKER))
    file = rank_file(two[1].path, 0)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert usable_checkpoint(folder.checkpoints, notes.append) == two[0]
    assert "rank_0.safetensors: is damaged" in notes[0] and "resumes from batch_00000001" in notes[0]
    assert (folder.checkpoints / "unusable_batch_00000002" / "rank_0.safetensors").read_bytes() == content
