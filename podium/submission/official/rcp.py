"""The official RCP check as a process: `python -m podium.submission.official.rcp FOLDER RULESET`, one JSON object.

FOLDER contains a result's logs and is written to: the official checker leaves scaling.json in it where the score has
to be scaled. The record that it compares with and the mean that it finds are only in its log messages, and are taken
from their arguments.
"""

import argparse
import json
import logging
import sys
from typing import Any


class _Overhear(logging.Handler):
    """Keeps what the checker says by the text that it says it with."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.heard[str(record.msg).strip()] = record.args


def main() -> int:
    parser = argparse.ArgumentParser(prog="podium.submission.official.rcp", description=__doc__)
    parser.add_argument("folder", help="a copy of results/SYSTEM/bert")
    parser.add_argument("ruleset")
    arguments = parser.parse_args()
    from mlperf_logging.rcp_checker import rcp_checker

    overhear = _Overhear()
    logging.getLogger().addHandler(overhear)
    logging.getLogger().setLevel(logging.INFO)
    points = {"rcp_pass": "pruned_rcps"}  # as the package checker asks
    passed, words, factor = rcp_checker.check_directory(
        arguments.folder, "training", arguments.ruleset, False, False, set_scaling=True, **points
    )
    reference = overhear.heard.get("RCP Record: %s") or {}
    mean = overhear.heard.get("Submission mean epochs: %.4f") or (None,)
    told = {
        "passed": bool(passed),
        "words": words,
        "factor": float(factor),
        "samples": None if mean[0] is None else float(mean[0]),
        "reference_samples": float(reference["RCP Mean"]) if reference else None,
        "least_samples": float(reference["Min Epochs"]) if reference else None,
        "reference_batch_size": int(reference["BS"]) if reference else None,
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
