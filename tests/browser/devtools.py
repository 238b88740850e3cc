"""Drives a headless Chromium through its DevTools protocol, over a pipe: no library, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
TYPED = {"Enter": "\r", " ": " "}
PATIENCE_S = 60.0


def chromium() -> str | None:
    """Where Chromium is; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab, and everything that it has asked for and complained about."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        """Every URL requested since the last `open`."""
        self.complaints: list[str] = []
        """Console messages, exceptions and violations of the content security policy."""
        self.dialogs: list[str] = []
        """Texts of alert(), confirm() and prompt()."""
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; AssertionError with the browser's error where it fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, path: Path) -> Self:
        """Load a file and wait until it is loaded."""
        self.requests.clear()
        self.complaints.clear()
        self.dialogs.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self._loaded:
            self._next()
        return self

    def value(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self, seconds: float = 0.2) -> None:
        """Wait until the page has finished pending work."""
        self.value(f"new Promise((done) => setTimeout(done, {1000 * seconds}))")

    def press(self, key: str, *modifiers: str) -> None:
        pressed = sum({"Alt": 1, "Control": 2, "Shift": 8}[name] for name in modifiers)
        typed = {"text": TYPED[key]} if key in TYPED else {"text": key} if len(key) == 1 else {}
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": pressed}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def show(self, width: int, height: int, dark: bool = False, phone: bool = False, **features: str) -> None:
        """Set the window's size in CSS pixels and the media features that the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + phone, mobile=phone
        )
        preferred: Mapping[str, str] = {"prefers-color-scheme": "dark" if dark else "light", **features}
        listed = [{"name": name, "value": value} for name, value in preferred.items()]
        self.call("Emulation.setEmulatedMedia", media="", features=listed)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self, path: Path) -> None:
        """Save a PDF in the paper size of the page's style sheet."""
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        """The next message; the events in it are recorded."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, "the browser sends nothing"
            piece = self._from.read(1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, parameters: Mapping[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded"):
            self.complaints.append(json.dumps(parameters))
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            self._number += 1
            message = {"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            self._to.write(json.dumps({**message, "sessionId": self._session}).encode() + b"\0")
        elif event == "Page.loadEventFired":
            self._loaded = True


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """A tab of a Chromium that ends with the block, whatever it does."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        options += [f"--user-data-dir={profile}"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
        script = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        process = subprocess.Popen(
            ["bash", "-c", script, program, *options],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        try:
            yield Page(our_out, our_in)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
