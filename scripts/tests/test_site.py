"""The site: every link of every page leads somewhere, and in a browser some pages are whole, readable and do what their
buttons say."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import unquote

import pytest
from conftest import MEASURE, ROOT, Browser
from PIL import Image

from steps import sources

pytest.importorskip("sphinx", reason="no Sphinx: pip install -r scripts/requirements-site.txt")

FILES = "https://github.com/owner/name/blob/main/"
LESSON = "steps/v05_padded_smem/README.html"
PAGES = ("index.html", LESSON, "steps/v10_tma_warpspec/README.html", "steps/v25_clean_loop/README.html")
PAGES += ("docs/measuring.html", "docs/story/index.html")
# Words that are smaller than 11 pixels, pictures with how much larger they are than their files say, and by how many
# pixels the text is wider than its column.
SEEN = """(() => {
  const words = [...document.querySelectorAll("body *")].filter(
    element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  const column = document.querySelector(".content, main");
  return {
    small: words.filter(element => parseFloat(getComputedStyle(element).fontSize) < 11 && element.checkVisibility())
      .map(element => element.outerHTML),
    pictures: [...document.querySelectorAll("article img")].map(
      image => [new URL(image.src).pathname, image.getBoundingClientRect().width / image.naturalWidth]),
    beyond: column.scrollWidth - column.clientWidth,
  };
})()"""


def build(source: Path, out: Path, *options: str, **environment: str) -> Path:
    inherited = {name: value for name, value in os.environ.items() if name != "GITHUB_REPOSITORY"}
    command = [sys.executable, "-m", "sphinx", "-q", "-j", "2", *options, "-c", str(ROOT / "docs" / "site")]
    done = subprocess.run(
        [*command, str(source), str(out)], env=inherited | environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "-W" not in options or done.stderr == ""
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("site"), "-W", "--keep-going", GITHUB_REPOSITORY="owner/name")


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{opened.server_address[1]}/"
        opened.shutdown()


@pytest.fixture
def reader(chromium: Any, server: str) -> Iterator[Browser]:
    """Who comes for the first time: pages keep the theme, and when the search is left it may still ask for some."""
    came = Browser(chromium, server=server)
    yield came
    came.page.close()


# The pages as files.


def leads_nowhere(link: str, page: Path, anchors: dict[Path, set[str]]) -> bool:
    """A link to a file of the repository, or to a page of the site. All others are other people's."""
    if re.match(r"data:|https?://(?!github\.com/owner/name/)", link):
        return False
    path, _, anchor = unquote(link).partition("#")
    if path.startswith(FILES):
        file = ROOT / path.removeprefix(FILES).partition("?")[0]
        lines = [int(number) for number in re.findall(r"L(\d+)", anchor)]
        return not file.exists() or (lines != [] and max(lines) > len(file.read_bytes().splitlines()))
    if path.startswith(FILES.replace("blob", "edit")):
        return not (ROOT / path.removeprefix(FILES.replace("blob", "edit"))).is_file()
    target = (page.parent / path.partition("?")[0]).resolve() if path else page
    return not target.is_file() or (anchor != "" and anchor not in anchors.get(target, ()))


def test_every_link_leads_somewhere(site: Path):
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    texts = {page: re.sub(r"(?s)(<script[^>]*>).*?</script>", r"\1", text) for page, text in texts.items()}
    anchors = {page: set(re.findall(r'\sid="([^"]+)"', text)) for page, text in texts.items()}
    links = {(page, link) for page, text in texts.items() for link in re.findall(r'\s(?:href|src)="([^"]*)"', text)}
    assert [(page.name, link) for page, link in sorted(links) if leads_nowhere(link, page, anchors)] == []
    for kind in (r".*/kernel\.cu#L\d", r".*\.ipynb", r".*/_images/.*\.svg", r".*\.html#\w"):
        assert any(re.match(kind, link) for _, link in links), kind
    assert len(links) > 5000 and not any(re.match(r"[^:]*\.md\b", link) for _, link in links)


def test_the_sidebar_has_every_lesson_once(site: Path):
    front = (site / "index.html").read_text(encoding="utf-8")
    found = []
    for heading in (*sources.evenings(), "Side steps"):
        (pages,) = re.findall(rf'(?s)caption-text">{heading}</span>(.*?)</ul>', front)
        found += re.findall(r'href="steps/(\w+)/README.html"', pages)
    assert sorted(found) == sources.all_steps()


def test_without_a_repository_links_to_files_lead_to_this_checkout(tmp_path: Path):
    for name, text in {
        "README.md": "# The first page\n",
        "docs/page.md": "# A page\n\n[line 3](../steps/kernel.cu#L3)\n",
        "docs/story/index.html": '<a href="../page.md"></a><a href="../../figures/results/record.json"></a>',
        "steps/kernel.cu": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    out = build(tmp_path, tmp_path / "build" / "site")
    assert 'href="../../../steps/kernel.cu"' in (out / "docs/page.html").read_text(encoding="utf-8")
    links = re.findall('href="(.*?)"', (out / "docs/story/index.html").read_text(encoding="utf-8"))
    assert links == ["../page.html", "../../../../figures/results/record.json"]


# The pages in a browser.


def smallest(picture: str) -> float:
    """The size of its smallest words, in pixels of the picture at its own size."""
    sizes = re.findall(r"font-size\s*[:=]\s*\"?([\d.]+)|font:[^;}\"]*?([\d.]+)px", picture)
    width, unit, box = re.search(r'<svg[^>]*?\swidth="([\d.]+)(\w*)"[^>]*?\sviewBox="0 0 ([\d.]+)', picture).groups()
    return min(float(a or b) for a, b in sizes) * float(width) * (4 / 3 if unit == "pt" else 1) / float(box)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 838, 1400])
def test_pages_are_whole_and_readable(reader: Browser, server: str, site: Path, width: int, scheme: str):
    pictures = 0
    for page in PAGES:
        found = reader.open(server + page, width, scheme)
        measured, seen = reader.evaluate(MEASURE), reader.evaluate(SEEN)
        assert measured["needed"] <= measured["width"] <= width and seen["beyond"] <= 0, page
        assert (measured["paper"] < 0.2) == (scheme == "dark"), page
        assert found + measured["faint"] + seen["small"] == [], page
        for path, scale in seen["pictures"]:
            size = scale * smallest((site / path.lstrip("/")).read_text(encoding="utf-8"))
            assert size >= 11, f"{page}: words of {size:.1f} pixels in {path}"
            pictures += 1
    assert pictures >= len(PAGES)


def brightness(reader: Browser, selector: str) -> float:
    """Of an element as it is drawn, from 0 to 255."""
    pixels = reader.page.locator(selector).first.screenshot()
    histogram = Image.open(io.BytesIO(pixels)).convert("L").histogram()
    return sum(value * count for value, count in enumerate(histogram)) / sum(histogram)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_turns_pages_and_pictures(reader: Browser, server: str, scheme: str):
    assert reader.open(server + LESSON, 1400, scheme) == []
    looks = []
    for theme in ("auto", *(("light", "dark") if scheme == "dark" else ("dark", "light"))):
        assert reader.evaluate("document.body.dataset.theme") == theme
        looks.append(brightness(reader, "article img"))
        reader.page.locator(".theme-toggle:visible").click()
    assert [look < 80 for look in looks] == [scheme == "dark", scheme == "light", scheme == "dark"]
    assert all(look < 80 or look > 170 for look in looks)
    assert all(re.fullmatch(r"console: Changed to \w+ mode\.", fault) for fault in reader.faults)  # which Furo says


def test_the_search_finds_a_word(reader: Browser, server: str):
    assert reader.open(server, 1400, "light") == []
    reader.page.locator(".sidebar-search").click()
    reader.page.keyboard.type("swizzle")
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_selector("#search-results p.context")
    found = reader.evaluate("[...document.querySelectorAll('#search-results li a')].map(link => link.href)")
    assert {f"{server}{page}" for page in ("docs/tiles.html", "docs/story/index.html")} <= {
        link.partition("#")[0].partition("?")[0] for link in found
    }
    assert reader.faults == []


def test_the_sidebar_shows_where_the_reader_is(reader: Browser, server: str):
    for page in PAGES[1:4]:
        assert reader.open(server + page, 1400, "light") == []
        top, bottom = reader.evaluate(
            """(({top, bottom}) => [top, bottom])(document.querySelector(".current-page").getBoundingClientRect())"""
        )
        assert 100 < top < bottom < 900


def test_an_answer_opens_by_a_click(reader: Browser, server: str):
    assert reader.open(server + LESSON, 838, "light") == []
    visible = "[...document.querySelectorAll('details')].map(each => each.lastElementChild.checkVisibility())"
    folded = reader.evaluate(visible)
    assert folded == [False] * len(folded) and len(folded) > 2
    reader.page.locator("summary").nth(1).click()
    assert reader.evaluate(visible) == [at == 1 for at in range(len(folded))]
