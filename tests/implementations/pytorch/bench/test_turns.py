"""Sides in turn: one at a time is alive, ratios are of a round, and a side that fails does not end the others."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import pytest
import torch

from benchmarks.bert.sizes import Size
from implementations.pytorch.bench import turns
from implementations.pytorch.bench.sides import Problem, hugging_face_side, podium_side
from implementations.pytorch.bench.turns import Side, SideResult, time_in_turns
from implementations.pytorch.bench.variants import PodiumRunner, variants
from implementations.pytorch.build_run import warm_up
from implementations.pytorch.distributed.process_group import Processes
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

CPU = torch.device("cpu")
Configs = Callable[..., RunConfig]


class FakeRunner:
    """Records its steps; fails at step `fails_at`."""

    alive: ClassVar[WeakSet["FakeRunner"]] = WeakSet()
    events: ClassVar[list[tuple[str, object]]] = []

    def __init__(self, name: str, fails_at: int | None = None) -> None:
        assert not FakeRunner.alive, "the runner before is still alive"
        FakeRunner.alive.add(self)
        self.name, self.fails_at, self.itself = name, fails_at, self  # a cycle, as models have
        FakeRunner.events.append((name, "built"))

    def take(self, number: int) -> None:
        FakeRunner.events.append((self.name, number))
        if number == self.fails_at:
            raise RuntimeError("CUDA error: an illegal memory access\nmore lines")

    def close(self) -> None:
        FakeRunner.events.append((self.name, "closed"))


@pytest.fixture(autouse=True)
def fresh() -> None:
    FakeRunner.events.clear()


def side(name: str, fails_at: int | None = None, needed: int = 0) -> Side:
    return Side(name, lambda: FakeRunner(name, fails_at), needed)


def built() -> list[str]:
    return [name for name, event in FakeRunner.events if event == "built"]


def test_one_side_at_a_time_is_alive_and_the_order_alternates(processes: Processes) -> None:
    results = time_in_turns([side(name) for name in "abc"], 5, 2, processes)
    assert built() == [*"abc", *"cba"]
    assert [event for name, event in FakeRunner.events if name == "b"] == [
        *("built", 0, 2, 4, 0, 2, 4, "closed"),  # uncounted and counted
        *("built", 1, 3, 1, 3, "closed"),
    ]
    assert {name: sorted(result.steps) for name, result in results.items()} == {name: [0, 1, 2, 3, 4] for name in "abc"}
    assert not FakeRunner.alive


def test_models_of_real_sides_are_freed(
    processes: Processes, make_config: Configs, small: Size, vocabulary: int
) -> None:
    """Of all models that are ever built, that of one side is alive at a time."""
    config = make_config(global_batch_size=3, seed=1, precision="fp32")
    problem = Problem(processes, np.array([60, 5, 17] * 2), vocabulary, small)
    alive = WeakSet[torch.nn.Module]()
    most = []

    def build(of: Side) -> Any:
        assert not alive
        runner: Any = of.build()
        model = runner.stepper.model.module if isinstance(runner, PodiumRunner) else runner.model
        alive.add(model)
        most.append(len(alive))
        return runner

    changed = {name: variant for name, (_, variant) in variants(config, "cpu").items()}
    sides = [
        podium_side("podium", config, problem),
        podium_side("kernels", changed["kernels"], problem),
        hugging_face_side("sdpa", config, problem),
    ]
    counted = [replace(each, build=lambda each=each: build(each)) for each in sides]  # type: ignore[misc]
    results = time_in_turns(counted, 2, 2, processes)
    assert [result.obstacle for result in results.values()] == [None] * 3
    assert most == [1] * 6
    assert not alive


def test_a_ratio_is_of_the_same_round() -> None:
    full = SideResult(0, rounds={0: {0: 1.0, 2: 3.0}, 1: {1: 8.0}, 2: {3: 1.0}})
    other = SideResult(0, rounds={0: {0: 2.0, 2: 4.0}, 1: {1: 24.0}})
    assert other.ratios(full) == [1.5, 3.0]
    assert full.ratios(full) == [1.0] * 3
    assert SideResult(0).ratios(full) == []


def test_times_are_means_of_the_repetitions(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper(FakeRunner):
        def take(self, number: int) -> None:
            super().take(number)
            if len(FakeRunner.events) > 7:  # built, three uncounted repetitions of two steps
                time.sleep(0.01 * (1 + number))

    monkeypatch.setitem(turns.REPETITIONS, "cpu", 3)
    (result,) = time_in_turns([Side("a", lambda: Sleeper("a"), 0)], 2, 1, processes).values()
    first, second = result.times.seconds
    assert 0.01 <= first < 0.02 <= second < 0.1


def test_results_survive_a_side_that_fails(processes: Processes) -> None:
    saved: list[dict[str, int]] = []

    def save(results: Mapping[str, SideResult]) -> None:
        saved.append({name: len(result.rounds) for name, result in results.items()})

    results = time_in_turns([side("full"), side("bad", fails_at=1), side("good")], 4, 2, processes, save)
    assert results["bad"].failure == "RuntimeError: CUDA error: an illegal memory access"
    assert results["bad"].ratios(results["full"]) != []  # of the first round, in which it did not fail
    assert len(results["good"].rounds) == len(results["full"].rounds) == 2
    assert [event for name, event in FakeRunner.events if name == "bad"].count("closed") == 2
    assert all(sum(after.values()) >= sum(before.values()) for before, after in pairwise(saved))
    assert not FakeRunner.alive


def test_a_side_that_has_failed_is_not_built_again(processes: Processes) -> None:
    time_in_turns([side("full"), side("bad", fails_at=0)], 3, 3, processes)
    assert built().count("bad") == 1
    assert built().count("full") == 3


def test_a_failure_of_the_baseline(processes: Processes) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_in_turns([side("full", fails_at=0), side("other")], 3, 3, processes)
    assert built() == ["full"]
    assert FakeRunner.events[-1] == ("full", "closed")
    FakeRunner.events.clear()
    FakeRunner.alive.clear()
    results = time_in_turns([side("full", fails_at=1), side("other")], 3, 3, processes)
    assert results["full"].failure is not None
    assert results["other"].ratios(results["full"]) != []
    assert built() == ["full", "other", "other", "full"]


def test_ranks_that_may_wait_for_each_other_do_not_continue(processes: Processes) -> None:
    pair = TwoRanks(0, 2, CPU)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_in_turns([side("full"), side("bad", fails_at=0)], 2, 2, pair)
    assert FakeRunner.events[-1] == ("bad", "closed")

    def refuse() -> FakeRunner:
        raise UsageError("kernels: found triton on cpu")

    FakeRunner.alive.clear()
    results = time_in_turns([side("full"), Side("bad", refuse, 0)], 2, 2, pair)
    assert results["bad"].failure == "kernels: found triton on cpu"


class TwoRanks(Processes):
    """The first of two ranks that always have the same."""

    def all_reduce_max(self, number: int) -> int:
        return number


def test_a_side_that_does_not_fit_is_not_built(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "free_memory", lambda device: 78 * 2**30)
    results = time_in_turns([side("full", needed=20 * 2**30), side("large", needed=91 * 2**30)], 2, 1, processes)
    assert results["large"].misfit == "does not fit: needs about 91 GiB of 78"
    assert results["large"].failure is None
    assert built() == ["full"]


def test_graphs_are_closed_if_the_warm_up_fails(
    processes: Processes, make_config: Configs, small: Size, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def fail(stepper: Any, *arguments: object, **options: object) -> None:
        stepper.use_graphs()
        stepper.graphs.close = lambda: closed.append("closed")
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(f"{PodiumRunner.__module__}.{warm_up.__name__}", fail)
    config = make_config(global_batch_size=3, seed=1, precision="fp32")
    with pytest.raises(torch.OutOfMemoryError):
        PodiumRunner(config, processes, np.array([60, 5, 17]), vocabulary, small)
    assert closed == ["closed"]


def test_results_are_json(processes: Processes) -> None:
    results = time_in_turns([side("full")], 1, 1, processes)
    assert json.loads(json.dumps(results["full"].rounds))["0"]["0"] > 0
