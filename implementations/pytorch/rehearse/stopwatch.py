"""CPU time of the parts of a step, in all threads."""

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
    """Exclusive CPU time of calls of wrapped functions: without the wrapped functions that they call.

    CPU time of the thread, not wall time: on the system the GPU trains and the host's threads have free cores, while
    here they compete with the model for the cores.
    """

    def __init__(self) -> None:
        self._calls: defaultdict[str, list[float]] = defaultdict(list)
        self._local = threading.local()

    def wrap(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, with its calls timed as `part`."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            # A stack for each thread: its top collects the time of timed calls made by the current one.
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

    def wrap_method(self, instance: object, method: str, part: str) -> None:
        """Time the calls of an object's method as `part`."""
        setattr(instance, method, self.wrap(part, getattr(instance, method)))

    def clear(self) -> None:
        """Discard all times so far."""
        self._calls.clear()

    def milliseconds(self, part: str, steps_per_call: int = 1) -> dict[str, Any] | None:
        """Return median, minimum and maximum milliseconds per step of a part; None if it was not called.

        `steps_per_call`: number of steps that each call is for.
        """
        calls = [1000 * seconds / steps_per_call for seconds in self._calls[part]]
        if not calls:
            return None
        return {"median": median(calls), "least": min(calls), "greatest": max(calls), "calls": len(calls)}
