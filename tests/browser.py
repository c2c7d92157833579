"""A real headless Chromium, driven over its DevTools pipe; needs nothing but the browser."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def find_browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser with one page open at a time."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="fedkin-chromium-", ignore_cleanup_errors=True
        )
        command_read, self._commands = map(_high, os.pipe())
        self._answers, answer_write = map(_high, os.pipe())
        arguments = [path, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(command_read), str(answer_write), *arguments],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict] = []

    def close(self) -> None:
        try:
            self.call("Browser.close", on_page=False)
        except (TimeoutError, OSError, EOFError):
            self._process.kill()
        self._process.wait(30)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method, on_page=True, timeout=120.0, **parameters):
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if on_page and self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, until):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            received = os.read(self._answers, 1 << 20)
            if not received:
                raise EOFError("the browser has ended")
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url, *, width=1000, height=900, dark=False, script=True) -> None:
        """Open a new page and wait until it is loaded."""
        self.events, self._session = [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        loader = self.call("Page.navigate", url=url)["loaderId"]
        until = time.monotonic() + 120
        while not self._is_loaded(loader):
            self.events.append(self._read(until))

    def _is_loaded(self, loader) -> bool:
        """Tell whether a page is loaded; on a busy machine the empty page before it may be so later."""
        begun = False
        for event in self.events:
            if event.get("method") == "Page.frameNavigated":
                begun = begun or event["params"]["frame"]["loaderId"] == loader
            elif begun and event.get("method") == "Page.loadEventFired":
                return True
        return False

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, expression):
        """Evaluate JavaScript and return its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key):
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **text,
            )

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, whole=True) -> None:
        answer = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **_clip(self, whole)
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """What the console and the page complained about."""
        wrong = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                wrong.append(json.dumps(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "warning",
            ):
                wrong.append(json.dumps(parameters["args"]))
            elif method == "Log.entryAdded":
                wrong.append(parameters["entry"]["text"])
        return wrong

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


def _clip(browser, whole):
    if not whole:
        return {}
    size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
    return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


def _high(descriptor: int) -> int:
    """Move a descriptor out of the way of 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(descriptor)
    return moved
