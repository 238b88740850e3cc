"""SIGTERM sets a flag, and ends a process that does not leave by itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from implementations.pytorch.training.stopping import StopRequest
from podium.config.patience import VARIABLE, saving_seconds

ROOT = Path(__file__).resolve().parents[4]


def soon(request: StopRequest) -> bool:
    deadline = time.monotonic() + 5
    while not request.asked and time.monotonic() < deadline:
        time.sleep(0.005)
    return request.asked


def test_sigterm_is_noticed_and_the_process_goes_on() -> None:
    handler, threads = signal.getsignal(signal.SIGTERM), threading.active_count()
    with StopRequest() as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert soon(request)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_other_signals_ask_for_nothing() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
            assert not request.asked
            os.kill(os.getpid(), signal.SIGTERM)
            assert soon(request)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_is_as_patient_as_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "15")
    assert StopRequest()._grace_seconds == saving_seconds()
    monkeypatch.delenv(VARIABLE)
    assert StopRequest()._grace_seconds == saving_seconds() == 20


def test_who_does_not_leave_is_ended_even_while_it_waits_in_a_library() -> None:
    program = (
        "import ctypes, os, signal, sys\n"
        "from implementations.pytorch.training.stopping import StopRequest\n"
        "with StopRequest(grace_seconds=0.3):\n"
        "    print('ready', flush=True)\n"
        "    wait = ctypes.CDLL(None).pause\n"
        "    while True: wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout and process.stdout.readline()
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert time.monotonic() - begun > 0.25
        words = f"process {process.pid}: asked to stop, and not saved within 0.3 seconds: gives up\n"
        assert process.stderr and process.stderr.read().decode() == words
    finally:
        process.kill()
