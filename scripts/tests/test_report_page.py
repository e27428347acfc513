"""The report in a browser: nothing missing or broken, readable on wide and narrow screens, in light and dark.

It runs where a Chromium is; scripts/test.sh says so where none is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser, chromium  # noqa: F401  (fixtures)
from conftest import make_problem, make_record

from pages import report

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

LINES = [
    "NRMSE 6.77e-01 is above the gate of 1e-03",
    '<script>throw new Error("from a file")</script><img src="http://127.0.0.1:9/x.png">',
    "& \"quoted\" 'too' $x^2$ \x1b[31m",
    "hint: " + "a_long_word_" * 40,
]
# Elements whose text must stand out against what is behind it, and how much: WCAG 2's ratio for text.
CONTRAST = 4.5
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


def with_failures(data: dict[str, Any]) -> dict[str, Any]:
    steps = data["runs"][0]["steps"]
    steps[1].update(status="fail", message="\n".join(LINES), timing=None, counters=None)
    steps[1]["validation"].update(nrmse=0.677, runs_identical=False)
    steps[2].update(status="skip", message="needs sm_90, this is sm_80", validation=None, timing=None)
    steps[2]["counters"] = None
    return data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on the emulator, and one on a GPU with all charts that there are; both with failures."""
    problems = [make_problem(seqlen_q=length, seqlen_kv=length) for length in (512, 1024)]
    made = {}
    for name, data in (
        ("emulator", make_record("emulator", problems=[make_problem(dtype="fp16")])),
        ("gpu", make_record(problems=problems)),
    ):
        folder = tmp_path_factory.mktemp(name)
        (folder / "results.json").write_text(json.dumps(with_failures(data)), encoding="utf-8")
        assert report.main([str(folder / "results.json"), "--out", str(folder)]) == 0
        made[name] = folder / "index.html"
    return made


def faults(browser: Browser, page: Path, width: int, scheme: str, charts: int) -> list[str]:
    found = browser.open(page, width, scheme)
    seen = browser.evaluate(MEASURE)
    if len(seen["images"]) != charts:
        found.append(f"{len(seen['images'])} charts instead of {charts}")
    for image in seen["images"]:
        if not (image["natural"] and image["width"] > 100 and image["height"] > 50 and image["visible"]):
            found.append(f"broken or not to be seen: {image}")
        if not image["alt"]:
            found.append("an image without words")
    if seen["needed"] > seen["width"]:
        found.append(f"{seen['needed']} pixels wide, {seen['width']} are there")
    if (seen["paper"] < 0.2) != (scheme == "dark"):
        found.append(f"not {scheme}")
    found += [f"too faint: {element}" for element in seen["faint"]]
    wanted = (line.replace("\x1b", "\ufffd") for line in LINES)
    found += [f"does not say: {line}" for line in wanted if line not in seen["text"]]
    if "needs sm_90, this is sm_80" not in seen["text"]:
        found.append("does not say why a step was skipped")
    return found


CHARTS = {"emulator": 2, "gpu": 4}  # a ladder a problem, by length, errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("name", CHARTS)
def test_the_report_is_whole_and_readable(browser, pages, name, width, scheme):
    assert faults(browser, pages[name], width, scheme, CHARTS[name]) == []
