"""A real browser (Debian's Chromium, without a screen), driven by the DevTools protocol over a pipe.

    with Browser(tmp_path) as browser:
        page = browser.open("http://127.0.0.1:7080/")
        page.eventually("document.title === 'Addend: 1 job'")
"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

from tests.support.processes import DIES_WITH_THE_TEST, eventually

COMMAND = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
           "--force-color-profile=srgb", "--remote-debugging-pipe", "about:blank"]
TIMEOUT_S = 30


class Browser:
    def __init__(self, folder):
        self.folder = folder / "browser"
        self._last_id = 0
        self._answers = {}
        self._buffer = b""
        self.pages = {}  # by session

    def __enter__(self):
        # Chromium reads commands from its descriptor 3 and writes to its descriptor 4.
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        # First moved to descriptors from 10 on: either may already be 3 or 4.
        commands, answers = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (from_us, to_us))
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", *DIES_WITH_THE_TEST, *COMMAND, f"--user-data-dir={self.folder}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(commands, answers),
            start_new_session=True)
        os.close(commands)
        os.close(answers)
        os.close(from_us)
        os.close(to_us)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.folder, ignore_errors=True)

    def open(self, url, width=1280, height=900):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call("Page.navigate", url=url)
        return page

    def call(self, method, session=None, **parameters):
        self._last_id += 1
        number = self._last_id
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while number not in self._answers:
            self._read(deadline, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self, deadline, waiting_for):
        ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"the browser does not answer {waiting_for}"
        data = os.read(self._from, 1 << 20)
        assert data, "the browser has ended"
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].take(message["method"], message["params"])


class Page:
    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.errors = []  # errors of scripts, of the console, and of resources that failed to load

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def take(self, event, parameters):
        if event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} ({parameters['entry'].get('url', '')})")
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str([argument.get("value") for argument in parameters["args"]]))

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def text(self, selector="body"):
        """The text as a reader sees it; empty if the selector matches no element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def eventually(self, expression, timeout=15):
        return eventually(lambda: self.evaluate(expression), timeout, f"{expression} in the page:\n{self.text()[-3000:]}", interval=0.1)

    def shows(self, text, selector="body", timeout=15):
        """Waits until the element contains the text."""
        return self.eventually(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})", timeout)

    def resize(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path):
        self.call("Page.bringToFront")
        # Changes are drawn first: a frame may still be pending.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def press_tab(self):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def accessible(self):
        """The accessibility tree for assistive technology: a list of (role, name)."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored") and "role" in node]
