"""The diagnosis of an implementation for `podium doctor`: `python -m implementations.pytorch.doctor CONFIG [FOLDER]`.

With CONFIG alone, one process on this machine prints a JSON object. With FOLDER, all ranks of the system take part
(`torchrun … -m implementations.pytorch.doctor CONFIG FOLDER`), and the first rank writes FOLDER/summary.json.

Exit codes: 0 done, 1 failed (then FOLDER/failure.json has the error message), 2 wrong usage.
"""

import argparse
import json
import sys
from pathlib import Path

from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError
from podium.core.files import write_atomically
from podium.core.processes import end_with_parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.doctor", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium doctor` writes it")
    parser.add_argument("folder", type=Path, nargs="?", help="folder for summary.json; only in a process of torchrun")
    arguments = parser.parse_args()
    end_with_parent()
    try:
        config = load_resolved(arguments.config)
        if arguments.folder is None:
            # Imported only now: a wrong configuration is reported without waiting for torch.
            from implementations.pytorch.diagnostics import diagnose_device

            print(json.dumps(diagnose_device(config)))
        else:
            _diagnose_ranks(config, RunFolder(arguments.folder))
    except PodiumError as error:
        print(error, file=sys.stderr)
        if arguments.folder is not None:
            RunFolder(arguments.folder).write_failure(error)
        return error.exit_code
    return 0


def _diagnose_ranks(config: RunConfig, folder: RunFolder) -> None:
    """Diagnose all ranks together, and write summary.json on the first. A collective."""
    from implementations.pytorch.diagnostics import diagnose_ranks
    from implementations.pytorch.distributed.process_group import init_distributed

    with init_distributed(config) as processes:
        result = diagnose_ranks(config, processes, config.model_size.vocabulary_size)
        if processes.first:
            write_atomically(folder.summary, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
