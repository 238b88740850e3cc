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


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_during_imports_exits_without_traceback(name: str, code: int) -> None:
    program = INTERRUPTED_IMPORT.format(signal=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "podium: interrupted\n")
