"""torchrun's shutdown is begun by the first signal, and further ones do not break it off."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from podium.core.paths import CODE_FOLDER
from podium.launch.launch import TORCHRUN

RANK = """
import os, signal, sys, time
from pathlib import Path

folder = Path(sys.argv[1])

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(2):  # torchrun's second and third, while it waits for this rank
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.3)
    (folder / "saved").write_text("")
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
print(os.getppid(), flush=True)
time.sleep(60)
"""


def test_torchrun_waits_for_ranks_that_save_themselves_whatever_else_is_signalled(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    torchrun = subprocess.Popen(
        [sys.executable, *TORCHRUN, "--standalone", "--nproc-per-node=1", str(tmp_path / "rank.py"), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(CODE_FOLDER)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with torchrun:
        assert torchrun.stdout is not None
        assert torchrun.stdout.readline() == f"{torchrun.pid}\n"
        torchrun.send_signal(signal.SIGTERM)
        assert torchrun.wait(60)
        assert (tmp_path / "saved").exists()
