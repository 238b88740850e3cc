"""CPU time of functions, each without that of others that are timed too."""

import threading
import time

from implementations.pytorch.rehearse.stopwatch import Stopwatch


def burn(milliseconds: float) -> None:
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        pass


class Worker:
    def inner(self) -> int:
        burn(20)
        return 5

    def outer(self) -> int:
        burn(4)
        return self.inner()


def test_a_part_is_without_the_parts_in_it() -> None:
    stopwatch, worker = Stopwatch(), Worker()
    stopwatch.watch(worker, "inner", "inner")
    stopwatch.watch(worker, "outer", "outer")
    assert worker.outer() == 5
    inner, outer = stopwatch.milliseconds("inner"), stopwatch.milliseconds("outer")
    assert inner is not None and outer is not None
    assert inner["median"] >= 20 > outer["median"] >= 4
    assert stopwatch.milliseconds("another") is None


def test_calls_of_all_threads_count_for_as_many_steps_as_they_are_for() -> None:
    stopwatch = Stopwatch()
    timed = stopwatch.timed("plan", burn)
    threads = [threading.Thread(target=timed, args=[10.0]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stopwatch.milliseconds("plan", steps_a_call=10)
    assert found is not None
    assert found["calls"] == 2
    assert 1 <= found["least"] <= found["median"] <= found["greatest"]
    stopwatch.clear()
    assert stopwatch.milliseconds("plan") is None
