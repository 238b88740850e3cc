"""CPU time of the parts of a step, in whichever thread they are computed."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Seconds of CPU time of every call of some functions, without those of timed functions that they call.

    It is the time of the thread: beside a GPU that does the training the host's threads run alone, and here they share
    two cores with the model.
    """

    def __init__(self) -> None:
        self._calls: defaultdict[str, list[float]] = defaultdict(list)
        self._local = threading.local()

    def timed(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function, whose calls count as `part`."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            inner: list[float] = vars(self._local).setdefault("inner", [])
            inner.append(0.0)
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.thread_time() - began
                self._calls[part].append(whole - inner.pop())
                if inner:
                    inner[-1] += whole

        return call

    def watch(self, holder: object, method: str, part: str) -> None:
        """Have the calls of an object's method count as `part`."""
        setattr(holder, method, self.timed(part, getattr(holder, method)))

    def clear(self) -> None:
        """Forget all calls so far."""
        self._calls.clear()

    def milliseconds(self, part: str, steps_a_call: int = 1) -> dict[str, Any] | None:
        """Median, least and greatest time a step of a part whose every call is for so many steps; None for no call."""
        calls = [1000 * seconds / steps_a_call for seconds in self._calls[part]]
        if not calls:
            return None
        return {"median": median(calls), "least": min(calls), "greatest": max(calls), "calls": len(calls)}
