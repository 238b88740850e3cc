"""PyTorch's versions and the GPUs of this machine: `python -m implementations.pytorch.describe`.

Prints one JSON object, for `podium submit describe`. Exit code 0.
"""

import argparse
import json
import sys

from podium.core.processes import end_with_parent


def main() -> int:
    argparse.ArgumentParser(prog="implementations.pytorch.describe", description=__doc__).parse_args()
    end_with_parent()
    # Imported only now, so that --help does not wait for torch.
    from implementations.pytorch.diagnostics import visible_device

    print(json.dumps(visible_device()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
