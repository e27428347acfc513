"""A headless Chromium for tests of pages: opens one, and says what went wrong with it. `scripts/lib.sh` finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import pytest

from pages.story import find_browser

# Elements whose text must stand out against what is behind it, and how much: WCAG 2's ratio for text.
CONTRAST = 4.5
# Run in a page, it says what is on it.
MEASURE = """(() => {
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (rgb(colour)[3] !== 0) return rgb(colour);
    }
    return [255, 255, 255];
  };
  const luminance = colour => colour.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = element => {
    const two = [rgb(getComputedStyle(element).color), behind(element)].map(luminance);
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
  };
  const words = [...document.querySelectorAll("body *")].filter(
    element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return {
    images: [...document.images].map(image => {
      const box = image.getBoundingClientRect();
      return {alt: image.alt, natural: image.complete ? image.naturalWidth : 0, width: box.width,
              height: box.height, visible: image.checkVisibility()};
    }),
    text: document.body.innerText,
    width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth,
    paper: luminance(behind(document.body)),
    faint: words.filter(element => contrast(element) < CONTRAST).map(element => element.outerHTML),
  };
})()""".replace("CONTRAST", str(CONTRAST))

Place = tuple[float, float]


class Browser:
    """With one page, and the hands on it. With scripts off, Playwright's own still run."""

    def __init__(self, chromium: Any, scripts: bool = True):
        self.page = chromium.new_page(java_script_enabled=scripts)
        self.wire = self.page.context.new_cdp_session(self.page)  # for what Playwright has no word for
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.page.on("request", self.note_request)
        self.page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url[:80]}"))
        self.evaluate = self.page.evaluate

    def note_request(self, request: Any) -> None:
        if request.url != self.opened and not request.url.startswith("data:"):
            self.faults.append(f"request: {request.url}")

    def open(self, page: Path, width: int, scheme: str) -> list[str]:
        """What went wrong by the time that the page had loaded, in the browser's words."""
        self.opened = page.as_uri()
        self.faults.clear()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.goto(self.opened)
        self.evaluate("document.fonts.ready.then(() => 0)")
        return self.faults[:]

    def pointer(self, *places: Place, touch: bool = False) -> None:
        """To the first place, pressed there, over the others, released at the last one."""
        if touch:
            kinds = ["touchStart", *["touchMove"] * (len(places) - 1), "touchEnd"]
            for kind, place in zip(kinds, (*places, None)):
                points = [dict(zip("xy", place))] if place else []
                self.wire.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
                self.evaluate("new Promise(requestAnimationFrame).then(() => 0)")  # which moves wait for
            return
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place)
        self.page.mouse.up()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium (apt-get install -y chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, in a container.
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Browser:
    return Browser(chromium)
