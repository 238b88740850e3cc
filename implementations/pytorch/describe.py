"""What `podium submit describe` asks: `python -m implementations.pytorch.describe` prints a JSON object with the
versions and the GPUs of this machine, as PyTorch sees them. Exit code 0.
"""

import argparse
import json
import sys

from benchmarks.processes import end_with_parent


def main() -> int:
    argparse.ArgumentParser(prog="implementations.pytorch.describe", description=__doc__).parse_args()
    end_with_parent()
    from implementations.pytorch.examining.device import visible_device

    print(json.dumps(visible_device()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
