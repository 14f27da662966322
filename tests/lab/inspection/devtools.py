"""A headless browser: over pipes by the DevTools protocol, or for a page's end result alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
_KEYS |= {"PageUp": 33, "PageDown": 34, "Tab": 9}
_LIMIT_SECONDS = 30
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_MOVE = """
import os, sys
for end, wanted in ((int(sys.argv[1]), 3), (int(sys.argv[2]), 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One open page: what it said, what it asked the network for, and what can be done on it."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._buffer, self._number, self._session = b"", 0, None
        self.events = []

    def open(self, url, width, height, dark=False):
        """Show a file in a fresh tab, its network, console and errors watched from the start.

        The size of the window is in CSS pixels; ``dark``: the reader prefers dark colours.
        """
        self._session, self.events = None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def call(self, method, **parameters):
        """One command of the protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        end = time.monotonic() + _LIMIT_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._answers, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def run(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def until(self, condition):
        """Wait for a JavaScript expression to be true."""
        end = time.monotonic() + _LIMIT_SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def press(self, key, shift=False):
        code = _KEYS.get(key, ord(key.upper()[0]))
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        if len(key) == 1:
            event["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def point(self, x, y):
        """Move the mouse to a place of the window, in CSS pixels."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def box(self, selector):
        """Left, top, width and height of an element in the window, scrolled into sight."""
        return self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.left, b.top, b.width, b.height]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def choose(self, selector, value):
        """Set a select or a checkbox as a user does, with the event it sends."""
        name = "checked" if isinstance(value, bool) else "value"
        self.run(
            f"(e => {{ e.{name} = {json.dumps(value)}; "
            f"e.dispatchEvent(new Event('change', {{bubbles: true}})); }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def screenshot(self, path):
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def complaints(self):
        """Everything of the console, errors of scripts and what the policy refused."""
        self.run("0")
        wanted = (
            "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
            "Audits.issueAdded", "Page.javascriptDialogOpening",
        )  # fmt: skip
        return [event for event in self.events if event["method"] in wanted]

    def requests(self):
        """Addresses the page asked for, ``data:`` aside."""
        self.run("0")
        sent = [e["params"]["request"]["url"] for e in self.events
                if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
        return [url for url in sent if not url.startswith("data:")]


def find_browser():
    """The path of a browser; without one, a skip."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser, one of {', '.join(_NAMES)}")
    return program


@dataclass(frozen=True)
class Opened:
    """What a browser made of a page."""

    document: str
    """Its elements after all scripts ran."""
    console: tuple[str, ...]


def open_page(path: Path, folder: Path) -> Opened:
    """Open a page and let its scripts run to their end; the profile goes into ``folder``."""
    done = subprocess.run(
        [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--log-level=0", "--window-size=1200,2000",
         "--virtual-time-budget=20000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, errors="replace", timeout=240, check=True,
    )  # fmt: skip
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE:" in line)
    return Opened(document=done.stdout, console=console)


@contextmanager
def browser(folder):
    """A :class:`Page` of a fresh browser, its profile in ``folder``; without one, a skip."""
    program = find_browser()
    # The browser reads from 3 and writes to 4; nothing that is moved there may lie there already.
    (read, commands), (answers, write) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
    process = subprocess.Popen(
        [sys.executable, "-c", _MOVE, *map(str, ends), program, "--headless", "--no-sandbox",
         "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
         "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe"],
        pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in (read, write, *ends):
        os.close(end)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)  # the browser ends with its pipe
        os.close(answers)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
