"""The last collectives of each rank in the report of a hang."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from implementations.pytorch.distributed.flight_recorder import describe, last_collectives
from podium.config.run_folder import RunFolder


def entry(number: int, name: str = "nccl:all_reduce", ended: bool = True, **changes: Any) -> dict[str, Any]:
    """An entry as PyTorch 2.13 writes it, without the fields that are not read."""
    state = {"retired": ended, "state": "completed" if ended else "started"}
    group = {"process_group": ["0", "default_pg"], "input_sizes": [[4]]}
    return {"collective_seq_id": number, "profiling_name": name, **group, **state, **changes}


def test_last_collective_of_each_process_group() -> None:
    other = entry(9, "nccl:broadcast", process_group=["3", ""])
    trace = {"entries": [entry(7, ended=False), entry(6), other]}
    assert last_collectives([trace]) == {
        "default_pg": (7, "nccl:all_reduce of [4]", False),
        "3": (9, "nccl:broadcast of [4]", True),
    }


@pytest.mark.parametrize("damaged", [{}, {"entries": 3}, {"entries": [{}, 1, entry(1, process_group=[])]}])
def test_entries_of_another_form_are_left_out(damaged: dict[str, Any]) -> None:
    assert last_collectives([damaged, {"entries": [entry(2)]}]) == {"default_pg": (2, "nccl:all_reduce of [4]", True)}


def last(*entries: dict[str, Any]) -> dict[str, tuple[int, str, bool]]:
    return last_collectives([{"entries": list(entries)}])


def test_rank_that_is_behind_is_named() -> None:
    waiting = last(entry(57, ended=False))
    assert describe([waiting, last(entry(56)), waiting]) == (
        "process group default_pg: ranks 0, 2 are in collective 57 (nccl:all_reduce of [4]), "
        "rank 1 behind, last in collective 56 (nccl:all_reduce of [4])"
    )


def test_ranks_in_different_collectives_are_named() -> None:
    text = describe([last(entry(5, ended=False)), last(entry(5, "nccl:broadcast", ended=False))])
    assert "rank 0 is in collective 5 (nccl:all_reduce" in text and "rank 1 is in collective 5 (nccl:broadcast" in text
    assert text.endswith("ranks have called different collectives")


def test_rank_without_a_report_is_named() -> None:
    assert describe([last(entry(5, ended=False)), None]).endswith("; rank 1 reported no collectives")


def test_nothing_to_describe() -> None:
    assert describe([None, None]) == ""
    assert describe([last(entry(5)), last(entry(5))]) == ""


def test_hang_of_two_ranks_with_gloo(
    tmp_path: Path, start_ranks: Any, rank_environments: Callable[[int], list[dict[str, str]]]
) -> None:
    worker = Path(__file__).with_name("hang_worker.py")
    start_ranks(worker, [[str(tmp_path)]] * 2, rank_environments(2), 1)
    message = str(RunFolder(tmp_path).read_failure())
    assert message.startswith("rank 1 (process ")
    assert "rank 0 is in collective 4 (gloo:all_reduce of [3, 5]), rank 1 behind, last in collective 3" in message
    (trace,) = json.loads((RunFolder(tmp_path).flight_recorder / "rank_0.json").read_text(encoding="utf-8"))
    assert trace["entries"][-1]["input_sizes"] == [[3, 5]]
