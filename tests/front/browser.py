"""A headless Chromium for tests, spoken to in its DevTools protocol over two pipes: no driver and no library between.

Whatever the page writes to its console, throws or asks for is kept. Chromium's own traffic is cut off.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-proxy-server",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # containers often have 64 MB there
    "--disable-gpu",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "Space": 32}


def find() -> str | None:
    """Chromium's command, if there is one that runs. (Ubuntu's package is a stub where snaps are not.)"""
    for name in NAMES:
        if (path := shutil.which(name)) and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


class Browser:
    """One Chromium, as a context; each `page` is a tab with a profile of its own."""

    def __init__(self, command: str) -> None:
        self._stack = ExitStack()
        profile = self._stack.enter_context(TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True))
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # As root it refuses to work in its sandbox; what it loads here is ours.
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={profile}"]
        with open(os.devnull, "r+b") as nothing:
            # It reads commands from descriptor 3 and answers on 4. Copies above those first: ours may be 3 and 4.
            copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (nothing.fileno(), theirs_in, theirs_out)]
            sources = [copies[0], copies[0], copies[0], copies[1], copies[2]]
            self._pid = os.posix_spawn(
                command,
                [command, *flags, "about:blank"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources)],
                setpgroup=0,
            )
        for fd in (theirs_in, theirs_out, *copies):
            os.close(fd)
        self._buffer = b""
        self._last_id = 0
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._out)  # the pipe's end tells it to leave
        deadline = time.monotonic() + 10
        while not os.waitpid(self._pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
            time.sleep(0.01)
        os.close(self._in)
        self._stack.close()

    def page(self, width: int = 1280, height: int = 800, scheme: str = "light", scale: float = 1) -> "Page":
        """A new tab of this size in CSS pixels. `scheme` is "light" or "dark"."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height, scale)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._receive(30)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, seconds: float) -> dict[str, Any]:
        """The next message. An event is handed to its page on the way."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"Chromium said nothing for {seconds} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise AssertionError("Chromium left")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if page := self._pages.get(message.get("sessionId", "")):
            page.hear(message)
        return message


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []  # of the console and of scripts that threw
        self.requests: list[str] = []  # addresses
        self.sent: list[Any] = []  # JSON bodies

    def hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(" ".join(str(value.get("value", "?")) for value in params["args"]))
            case "Log.entryAdded":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
                if body := params["request"].get("postData"):
                    self.sent.append(json.loads(body))

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def open(self, address: str) -> None:
        """Loads the page, also where it is open already."""
        before = self.run("performance.timeOrigin")
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && performance.timeOrigin !== {before}")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def run(self, script: str) -> Any:
        """The value of an expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {done['exceptionDetails']['exception']['description']}")
        return done["result"].get("value")

    def wait(self, script: str, seconds: float = 20) -> Any:
        """The expression's value as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {script}\nthe page says:\n{self.text()}\n{self.complaints}")
            time.sleep(0.02)
        return value

    def text(self, selector: str = "body") -> str:
        """What a person can read of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def write(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        name = " " if key == "Space" else key
        press = {"key": name, "code": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **press)
        self.call("Input.dispatchKeyEvent", type="keyUp", **press)

    def click(self, selector: str) -> None:
        """With the mouse, in the element's middle."""
        quoted = json.dumps(selector)
        self.run(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
                       f"(document.querySelector({quoted}).getBoundingClientRect())")  # fmt: skip
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
