"""Signals during the start of the `podium` command."""

import subprocess
import sys

import pytest

INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "podium.cli.main":
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Interrupting())
from podium.cli.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_during_imports_exits_without_traceback(name: str) -> None:
    program = INTERRUPTED_IMPORT.format(signal=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "podium: interrupted\n")
