"""What `podium doctor` asks: `python -m implementations.pytorch.doctor CONFIG` for one process on this machine, which
prints a JSON object; `torchrun … -m implementations.pytorch.doctor CONFIG FOLDER` for all ranks of the system, of
which the first writes FOLDER/summary.json.

Exit codes: 0 done, 1 it failed (then FOLDER/failure.json has the sentence), 2 wrong use.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.errors import PodiumError
from benchmarks.files import write_whole
from benchmarks.processes import end_with_parent
from podium.config import RunConfig, RunFolder, load_resolved


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.doctor", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium doctor` writes it")
    parser.add_argument("folder", type=Path, nargs="?", help="of a process that torchrun started: where to write")
    arguments = parser.parse_args()
    end_with_parent()
    try:
        config = load_resolved(arguments.config)
        if arguments.folder is None:
            from implementations.pytorch.examining.possible import examine_device

            print(json.dumps(examine_device(config)))
        else:
            _together(config, RunFolder(arguments.folder))
    except PodiumError as error:
        print(error, file=sys.stderr)
        if arguments.folder is not None:
            RunFolder(arguments.folder).tell_failure(error)
        return error.exit_code
    return 0


def _together(config: RunConfig, folder: RunFolder) -> None:
    from implementations.pytorch.examining.together import examine_together
    from implementations.pytorch.training.processes import joined

    with joined(config) as processes:
        found = examine_together(config, processes, config.model_size.vocabulary_size)
        if processes.first:
            write_whole(folder.summary, json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
