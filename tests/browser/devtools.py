"""Driver of a headless Chromium through the DevTools protocol over a pipe: no library, no port, no network."""

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

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEY_CODES = {
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
KEY_TEXT = {"Enter": "\r", " ": " "}
MESSAGE_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, and the requests, console messages and dialogs since the last `open`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []  # URLs
        self.console_messages: list[str] = []  # JSON events: console calls, exceptions, CSP violations
        self.dialogs: list[str] = []  # messages of alert() and the like
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises AssertionError with the browser's error message if it fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read_message()
            # Other messages are events, which _read_message has recorded.
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, path: Path) -> Self:
        """Load a file and wait until it is loaded."""
        self.requests.clear()
        self.console_messages.clear()
        self.dialogs.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self._loaded:
            self._read_message()
        return self

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, seconds: float = 0.2) -> None:
        """Wait in the page, so that its pending events are handled and recorded."""
        self.evaluate(f"new Promise((done) => setTimeout(done, {1000 * seconds}))")

    def press(self, key: str, *modifiers: str) -> None:
        modifier_bits = sum({"Alt": 1, "Control": 2, "Shift": 8}[name] for name in modifiers)
        typed = {"text": KEY_TEXT[key]} if key in KEY_TEXT else {"text": key} if len(key) == 1 else {}
        code = KEY_CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifier_bits}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def move_mouse(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def set_viewport(self, width: int, height: int, dark: bool = False, phone: bool = False, **features: str) -> None:
        """Set the size of the window, and the media features that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + phone, mobile=phone
        )
        preferred: Mapping[str, str] = {"prefers-color-scheme": "dark" if dark else "light", **features}
        listed = [{"name": name, "value": value} for name, value in preferred.items()]
        self.call("Emulation.setEmulatedMedia", media="", features=listed)

    def screenshot(self, path: Path, full_page: bool = False) -> None:
        """Write a PNG of the window, or of the full page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full_page)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self, path: Path) -> None:
        """Write a PDF of the page, with the paper size of its style sheet."""
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _read_message(self) -> dict[str, Any]:
        """Read the next message and record its event. Raises AssertionError on timeout or if the browser exits."""
        deadline = time.monotonic() + MESSAGE_TIMEOUT_S
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, f"the browser sent no message for {MESSAGE_TIMEOUT_S:g} s"
            data = self._from.read(1 << 20)
            assert data, "the browser has exited"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._record_event(message.get("method"), message.get("params", {}))
        return message

    def _record_event(self, event: str | None, event_parameters: Mapping[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(event_parameters["request"]["url"])
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded"):
            self.console_messages.append(json.dumps(event_parameters))
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(event_parameters["message"])
            # An open dialog blocks the page. Its answer is sent without waiting: this runs inside `call`.
            self._number += 1
            message = {"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            self._to.write(json.dumps({**message, "sessionId": self._session}).encode() + b"\0")
        elif event == "Page.loadEventFired":
            self._loaded = True


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """Start Chromium and yield a tab; the process is ended when the block is left."""
    browser_input, to_browser = os.pipe()
    from_browser, browser_output = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        options += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
        options += [f"--user-data-dir={profile}"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
        # Chromium reads commands from descriptor 3 and writes to 4; bash can assign them without a preexec_fn.
        script = f'exec "$0" "$@" 3<&{browser_input} 4>&{browser_output}'
        process = subprocess.Popen(
            ["bash", "-c", script, program, *options],
            pass_fds=(browser_input, browser_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Close the parent's copies: otherwise the exit of the browser would not be seen as end of file.
        os.close(browser_input)
        os.close(browser_output)
        try:
            yield Page(to_browser, from_browser)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
