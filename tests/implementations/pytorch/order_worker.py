"""A rank of a run that notes in a file what it reads of samples and what it logs, in that order.

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
    notes = Path(sys.argv.pop(1))

    def note(owner: Any, name: str) -> None:
        really: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **more: Any) -> Any:
            with notes.open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
            return really(*arguments, **more)

        setattr(owner, name, call)

    note(shard, "mapped_file")
    note(BulkReader, "will_need")
    note(ResultLog, "submission")
    note(ResultLog, "run_starts")
    return train.main()


if __name__ == "__main__":
    sys.exit(main())
