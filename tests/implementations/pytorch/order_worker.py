"""A rank of a run that records in a file when it reads samples and when it logs events.

Arguments: the file, and those of implementations.pytorch.train.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bert import shard
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch import train
from podium.mllog.write import ResultLog


def main() -> int:
    calls_file = Path(sys.argv.pop(1))

    def record(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **more: Any) -> Any:
            with calls_file.open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
            return original(*arguments, **more)

        setattr(owner, name, call)

    record(shard, "map_file")
    record(BulkReader, "prefetch")
    record(ResultLog, "log_submission")
    record(ResultLog, "log_run_start")
    return train.main()


if __name__ == "__main__":
    sys.exit(main())
