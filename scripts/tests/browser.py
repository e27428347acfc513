"""A headless Chromium for tests of pages: opens one, and says what went wrong with it.

It speaks the DevTools protocol, which needs nothing beside the browser. `scripts/lib.sh` finds that."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from pages.story import find_browser

# As a page of /tmp, as root, in a container. What it would ask of its maker's servers would be noise.
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-port=0 "
    "--hide-scrollbars --no-first-run --no-default-browser-check --disable-sync "
    "--disable-background-networking --disable-component-update"
).split()
PATIENCE = 1800  # seconds, far beyond what a busy machine takes


class Browser:
    def __init__(self, program: str, profile: Path):
        import websocket

        profile.mkdir()
        self.log = (profile / "log").open("w")
        command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.count, self.events, self.session = 0, [], None
        try:
            port, path = self.wait_for_port(profile / "DevToolsActivePort").split()
            self.socket = websocket.create_connection(
                f"ws://127.0.0.1:{port}{path}", timeout=PATIENCE, suppress_origin=True
            )
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def wait_for_port(self, file: Path) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if file.exists() and len(words := file.read_text().split()) == 2:
                return " ".join(words)
            time.sleep(0.05)
        pytest.fail(f"the browser does not start: {Path(self.log.name).read_text()[-2000:]}")

    def receive(self) -> dict[str, Any]:
        message = json.loads(self.socket.recv())
        if "method" in message:
            self.events.append(message)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while (answer := self.receive()).get("id") != self.count:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, page: Path, width: int, scheme: str) -> list[str]:
        """What went wrong by the time that the page had loaded, in the browser's words."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url="about:blank")
        self.call("Log.clear")
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.receive()
        self.evaluate("document.fonts.ready.then(() => 0)")
        return self.faults(page)

    def faults(self, page: Path) -> list[str]:
        """Since it was opened."""
        return [fault for event in self.events if (fault := fault_of(event, page.as_uri()))]

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def pointer(self, *places: tuple[float, float], touch: bool = False) -> None:
        """To the first place, pressed there, over the others, released at the last one."""
        if touch:
            kinds = ["touchStart", *["touchMove"] * (len(places) - 1), "touchEnd"]
            for kind, place in zip(kinds, (*places, None)):
                points = [dict(zip("xy", place))] if place else []
                self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
                self.evaluate("new Promise(requestAnimationFrame).then(() => 0)")  # which moves wait for
            return
        kinds = ["mouseMoved", "mousePressed", *["mouseMoved"] * (len(places) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, (places[0], *places, places[-1])):
            held = {"button": "none" if kind == "mouseMoved" and (x, y) == places[0] else "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}[key]
        text = {"text": key} if key == " " else {}
        for kind in ("keyDown", "keyUp"):
            own = {"key": key, "code": "Space" if text else key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type=kind, **own, **(text if kind == "keyDown" else {}))

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def fault_of(event: dict[str, Any], page: str) -> str:
    """What an event of the protocol says against the page; empty when it says nothing."""
    told = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            return f"exception: {told['exceptionDetails'].get('exception', {}).get('description', '?')}"
        case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
            return f"console: {told['args']}"
        case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
            return f"log: {told['entry']['text']}"
        case "Network.requestWillBeSent":
            url = told["request"]["url"]
            return "" if url == page or url.startswith("data:") else f"request: {url}"
        case "Network.loadingFailed":
            return f"failed: {told.get('errorText')} ({told.get('type')})"
    return ""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium (apt-get install -y chromium)")
    opened = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    yield opened
    opened.close()
