"""Train BERT as one process of a run: `torchrun … -m implementations.pytorch.train CONFIG FOLDER`.

CONFIG is a resolved configuration; everything that is written goes into FOLDER. Exit codes: 0 the run ended as asked,
1 it did not reach its target or failed (then FOLDER/failure.json has the sentence), 2 wrong use.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.errors import PodiumError
from benchmarks.processes import end_with_parent
from podium.config import RunFolder, load_resolved
from podium.mllog import ResultLog


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.train", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium run` writes it")
    parser.add_argument("folder", type=Path, help="where to write log, metrics and summary")
    parser.add_argument("--caches-cleared", action="store_true", help="the data was dropped from the page cache before")
    arguments = parser.parse_args()
    end_with_parent()
    folder = RunFolder(arguments.folder)
    try:
        return _train(arguments.config, folder, arguments.caches_cleared)
    except PodiumError as error:
        print(error, file=sys.stderr)
        folder.tell_failure(error)
        return error.exit_code


def _train(config_path: Path, folder: RunFolder, caches_cleared: bool) -> int:
    config = load_resolved(config_path)
    with ExitStack() as stack:
        log = None
        if int(os.environ["RANK"]) == 0:
            log = stack.enter_context(ResultLog(folder.log))
            log.submission(config, caches_cleared)
        from implementations.pytorch.training.processes import joined
        from implementations.pytorch.training.run import Run

        processes = stack.enter_context(joined(config))
        return 0 if Run(config, processes, folder, log).execute() else 1


if __name__ == "__main__":
    sys.exit(main())
