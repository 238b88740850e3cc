"""Only the first shutdown signal reaches a module's handlers."""

import os
import subprocess
import sys
from pathlib import Path

from podium.core.paths import CODE_FOLDER
from podium.launch.launch import TORCHRUN

MODULE = """
import os, signal, socket, sys

def handle(number, frame):
    print(signal.Signals(number).name, flush=True)

for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, handle)
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    os.kill(os.getpid(), number)
print(__name__, sys.argv[1:])
print(socket.getfqdn("a" * 64), socket.getfqdn("no host"))  # as torchrun looks up this machine's name
"""


def test_only_the_first_shutdown_signal_reaches_the_module(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(MODULE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *TORCHRUN[:-1], "launcher", "--nnodes=1"],
        env=os.environ | {"PYTHONPATH": f"{CODE_FOLDER}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = ["SIGUSR1", "SIGTERM", "SIGUSR1", "__main__ ['--nnodes=1']", f"{'a' * 64} no host"]
    assert done.stdout.splitlines() == lines
