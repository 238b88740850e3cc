"""Ranks whose Triton kernels are interpreted: forked from one process, since imports take most of a start.

`start(WORKER, ARGUMENTS OF EACH RANK)` runs this file with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def start(worker: Path, arguments: Sequence[Sequence[object]]) -> None:
    """Run the worker's `main` once for each rank; all of them must end with 0."""
    texts = [[str(argument) for argument in of_rank] for of_rank in arguments]
    done = subprocess.run(
        [sys.executable, __file__, worker, json.dumps(texts)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


def run_rank(main: Any, worker: str, arguments: Sequence[str]) -> None:
    sys.argv = [worker, *arguments]
    main()


if __name__ == "__main__":
    from tests.implementations.pytorch.kernels.gpu import lasting_language  # imports Triton, which `start` must not

    lasting_language.install()
    _, worker, texts = sys.argv
    main = runpy.run_path(worker)["main"]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_rank, args=(main, worker, each), daemon=True) for each in json.loads(texts)]
    for rank in ranks:
        rank.start()
    running = {rank.sentinel: rank for rank in ranks}
    while running:  # a rank that fails ends this process, and with it those that wait for that rank
        for sentinel in wait(list(running)):
            rank = running.pop(sentinel)  # type: ignore[call-overload]
            rank.join()
            if rank.exitcode:
                sys.exit(f"a rank ended with {rank.exitcode}")
