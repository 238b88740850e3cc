"""Work on many files in processes: every file is made, and a failure leaves no process and nothing half-written."""

import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.bert.parallel import WorkerDied, results_in_processes, run_in_processes
from benchmarks.files import write_whole


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_every_file_is_made_once(tmp_path: Path, processes: int) -> None:
    jobs = {tmp_path / str(number): (tmp_path / str(number), str(number)) for number in range(5)}
    finished = list(run_in_processes(write_whole, jobs, processes))
    assert sorted(finished) == sorted(jobs) == sorted(tmp_path.iterdir())
    assert [file.read_text() for file in jobs] == ["0", "1", "2", "3", "4"]
    assert multiprocessing.active_children() == []


def test_each_result_comes_with_its_file(tmp_path: Path) -> None:
    jobs = {tmp_path / str(number): (2, number) for number in range(5)}
    assert dict(results_in_processes(pow, jobs, 2)) == {tmp_path / str(number): 2**number for number in range(5)}


def test_no_job_needs_no_process() -> None:
    assert list(run_in_processes(os.abort, {}, 3)) == []


def test_what_a_job_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(results_in_processes(int, {tmp_path / "a": ("1",), tmp_path / "b": ("x",)}, 1))
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_known_by_its_file(tmp_path: Path) -> None:
    good, bad, never = tmp_path / "good", tmp_path / "bad", tmp_path / "never"
    half, other = tmp_path / ".bad.0123abcd.partial", tmp_path / ".other.0123abcd.partial"
    half.touch()
    other.touch()
    finished = []
    with pytest.raises(WorkerDied, match=r"bad: the worker process that made it died; .* enough memory") as caught:
        jobs = {good: (0,), bad: (signal.SIGKILL,), never: (0,)}
        for file in run_in_processes(signal.raise_signal, jobs, 1):
            finished.append(file)
    assert (caught.value.file, caught.value.exit_code, finished) == (bad, 1, [good])
    assert list(tmp_path.iterdir()) == [other]
    assert multiprocessing.active_children() == []


def test_a_generator_that_is_closed_ends_its_workers(tmp_path: Path) -> None:
    start = time.monotonic()
    with closing(run_in_processes(time.sleep, {tmp_path / "a": (0,), tmp_path / "b": (60,)}, 2)) as finished:
        assert next(finished) == tmp_path / "a"
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []


def test_children_of_others_are_left_alone(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with closing(run_in_processes(time.sleep, {tmp_path / "a": (0,), tmp_path / "b": (60,)}, 1)) as finished:
            assert next(finished) == tmp_path / "a"
        assert other.is_alive()
    finally:
        other.kill()
        other.join()
