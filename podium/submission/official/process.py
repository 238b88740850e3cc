"""A process of `tools`, asked one job after the other, with a time limit for each."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.errors import WorkError
from podium.submission.official import tools

MAX_ANSWER_BYTES = 8 << 20


class ToolProcess:
    """Starts its process at the first job, and anew after one that took it down."""

    def __init__(self, memory_bytes: int = tools.MEMORY_BYTES, scratch: Path | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._folder = tempfile.TemporaryDirectory(prefix="podium-tools-", dir=scratch)

    def close(self) -> None:
        """End the process and remove its folder."""
        self._end()
        self._folder.cleanup()

    def stop(self) -> None:
        """End the process in the middle of a job, from any thread; nothing is asked any more."""
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()

    def ask(self, tool: str, path: Path, ruleset: str, seconds: float, **more: Any) -> dict[str, Any]:
        """What a tool says of a file or folder; `{"crash": why}` where its process ended or did not answer in time."""
        process = self._started()
        job = {"tool": tool, "path": str(path), "ruleset": ruleset, **more}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._lost("ended before it was asked")
        return self._answer(process, seconds)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise WorkError("interrupted")
        if self._process is None:
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", tools.__file__, str(self._memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        descriptor, received, end = process.stdout.fileno(), bytearray(), monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(end - monotonic(), 0)):
                    return self._lost(f"did not end within {seconds:.0f} s", late=True)
                piece = os.read(descriptor, 1 << 16)
                received += piece
                if not piece or len(received) > MAX_ANSWER_BYTES:
                    return self._lost("its process ended without an answer")
        found: dict[str, Any] = json.loads(received)
        return found

    def _lost(self, why: str, late: bool = False) -> dict[str, Any]:
        self._end()
        return {"crash": why, "words": [], "printed": [], "late": late}

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()
