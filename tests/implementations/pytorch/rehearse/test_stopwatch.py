"""Stopwatch: exclusive CPU time of functions, per thread."""

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


def test_the_time_of_a_part_excludes_the_parts_that_it_calls() -> None:
    stopwatch, worker = Stopwatch(), Worker()
    stopwatch.wrap_method(worker, "inner", "inner")
    stopwatch.wrap_method(worker, "outer", "outer")
    assert worker.outer() == 5
    inner, outer = stopwatch.milliseconds("inner"), stopwatch.milliseconds("outer")
    assert inner is not None and outer is not None
    assert inner["median"] >= 20 > outer["median"] >= 4
    assert stopwatch.milliseconds("another") is None


def test_calls_of_all_threads_are_counted_per_step() -> None:
    stopwatch = Stopwatch()
    wrap = stopwatch.wrap("plan", burn)
    threads = [threading.Thread(target=wrap, args=[10.0]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stopwatch.milliseconds("plan", steps_per_call=10)
    assert found is not None
    assert found["calls"] == 2
    assert 1 <= found["least"] <= found["median"] <= found["greatest"]
    stopwatch.clear()
    assert stopwatch.milliseconds("plan") is None
