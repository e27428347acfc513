"""docs/story/index.html: up to date, whole on every screen, without scripts too, and in agreement with the program.

What the page draws is compared with what the programs of a build said when it was built, which the page carries; that
they say the same today is for `story.py --check --build` (scripts/test.sh)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Iterator

import pytest
from conftest import MEASURE, Browser

from pages import story

TEXT = story.PAGE.read_text(encoding="utf-8")
DATA = story.kept(TEXT)
# Words that are smaller than 11 pixels, or stand beyond their picture; stages that are wider than their place.
SIZES = """(() => {
  const words = [...document.querySelectorAll("main *")].filter(
    element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  const beyond = text => {
    const [inner, outer] = [text, text.closest("svg")].map(element => element.getBoundingClientRect());
    return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 2;
  };
  return [
    ...words.filter(element => parseFloat(getComputedStyle(element).fontSize) < 11 && element.checkVisibility())
      .map(element => `small: ${element.outerHTML}`),
    ...[...document.querySelectorAll("svg text")].filter(text => text.textContent && beyond(text))
      .map(text => `beyond: ${text.closest("section").id} ${text.outerHTML}`),
    ...[...document.querySelectorAll(".stage")].filter(stage => stage.scrollWidth > stage.clientWidth)
      .map(stage => `wide: ${stage.parentElement.id} ${stage.scrollWidth} > ${stage.clientWidth}`),
  ];
})()"""

STATES = [
    {},
    {
        "matrix": {"head": 3, "causal": False, "row": 63},
        "tiles": {"seqlen_q": 1, "seqlen_kv": 1, "kv_len": 0, "causal": False},
        "softmax": {"rescale": False, "keys": 8, "score7": 3},
        "storage": {"step": 5},
        "fragments": {"operand": "v", "lane": 31},
        "split": {"splits": 10, "problem": 1, "shown": True, "weighted": False},
        "shares": {"units0": 16, "units1": 0},
        "banks": {"layout": 9, "pass": 2, "chunk": 0},
        "pipeline": {"step": 2, "time": 5000, "event": "2:100"},
        "overlap": {"time": 5000, "work": 1400, "warpgroups": 2},
        "ladder": {"step": 1, "guess": 60, "problem": 1},
        "bugs": {"bug": 1},
    },
    {
        "tiles": {"seqlen_q": 320, "seqlen_kv": 100, "kv_len": 64, "causal": True, "cta": 4},
        "storage": {"step": 32},
        "banks": {"layout": 8},
        "pipeline": {"step": 4, "time": 3000},
        "ladder": {"shown": True, "problem": 2},
        "bugs": {"bug": 9, "told": True},
    },
]


class Page:
    """The page in a browser, and the hands on it."""

    def __init__(self, browser: Browser):
        self.browser = browser
        self.evaluate = browser.evaluate

    def open(self, width: int = 838, scheme: str = "light") -> list[str]:
        self.size = width, scheme
        return self.browser.open(story.PAGE, width, scheme)

    def state(self, section: str) -> dict[str, Any]:
        return self.evaluate(f"SECTIONS.{section}.state")

    def says(self, section: str) -> str:
        return self.evaluate(f"document.querySelector('#{section} .says').textContent.replace(/\\s+/g, ' ')")

    def all(self, selector: str, what: str) -> list[str]:
        """Of all these elements."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(element => element.{what})")

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled to and painted: what is painted decides what a touch may do."""
        return tuple(
            self.evaluate(
                f"""(async () => {{
                  const element = document.querySelector({json.dumps(selector)});
                  element.scrollIntoView({{block: "center", behavior: "instant"}});
                  for (let frame = 0; frame < 2; ++frame) await new Promise(requestAnimationFrame);
                  const box = element.getBoundingClientRect();
                  return [box.x + box.width / 2, box.y + box.height / 2];
                }})()"""
            )
        )

    def click(self, selector: str, touch: bool = False) -> None:
        self.browser.pointer(self.place(selector), touch=touch)

    def hover(self, selector: str) -> None:
        self.browser.page.mouse.move(*self.place(selector))

    def drag(self, selector: str, x: float, y: float, touch: bool = False) -> None:
        begin = self.place(selector)
        end = begin[0] + x, begin[1] + y
        self.browser.pointer(begin, ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2), end, touch=touch)

    def press(self, section: str, name: str, *keys: str) -> None:
        """Keys at one of a section's controls."""
        self.evaluate(f"document.querySelector('#{section} .controls [name$={name}]').focus()")
        for key in keys:
            self.browser.page.keyboard.press(key)

    def set(self, section: str, **state: Any) -> None:
        self.evaluate(f"Object.assign(SECTIONS.{section}.state, {json.dumps(state)}), SECTIONS.{section}.show()")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = Page(browser)
    assert opened.open() == []
    yield opened
    assert opened.browser.faults == []


# The page as a file.


def test_the_page_is_up_to_date():
    """As far as that can be told without a build."""
    assert story.stale(TEXT, story.from_files()) == []


def test_its_links_lead_to_files():
    links = {link for link in re.findall(r'href="([^"]+)"', TEXT.split("<script")[0]) if not link.startswith("data:")}
    targets = {link: story.PAGE.parent / link for link in links if link[0] != "#"}
    assert len(links) > 20 and [link for link, target in targets.items() if not target.is_file()] == []
    assert {link[1:] for link in links if link[0] == "#"} <= set(story.SECTIONS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 838, 1400])
def test_the_page_is_whole_and_readable(page, width, scheme):
    """As it opens, and with what it may come to."""
    found = page.open(width, scheme)
    for states in STATES:
        for section, state in states.items():
            page.set(section, **state)
        seen = page.evaluate(MEASURE)
        assert seen["needed"] <= seen["width"] == width and (seen["paper"] < 0.2) == (scheme == "dark")
        found += page.evaluate(SIZES) + [f"too faint: {element}" for element in seen["faint"]]
    assert found == []


def test_the_still_pictures_are_those_that_the_scripts_draw(page):
    live = page.all(".stage", "outerHTML")
    assert len(live) == len(story.SECTIONS) and all("<svg" in stage or "<pre" in stage for stage in live)
    assert [stage for stage in live if stage not in TEXT] == []


def test_without_scripts_the_pictures_stand_there(chromium):
    page = Page(Browser(chromium, scripts=False))
    assert page.open(360) == []
    visible = "[...document.querySelectorAll('{}')].filter(element => element.checkVisibility()).length"
    assert page.evaluate(visible.format(".controls, .do")) == 0
    assert page.evaluate(visible.format(".stage > :first-child")) == len(story.SECTIONS)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("width", [0, 1, 120, 300])
def test_a_narrow_frame_says_nothing_to_the_console(page, width, tmp_path):
    """The fixture looks at what it said. A browser's own window cannot be so narrow, but a frame can."""
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe src="{story.PAGE.as_uri()}" width="{width}" height="300"></iframe>', encoding="utf-8")
    page.browser.opened = frame.as_uri()
    page.browser.page.goto(page.browser.opened)
    inner = page.browser.page.frames[1]
    assert inner.evaluate("window.innerWidth") == width
    assert inner.evaluate("document.querySelectorAll('.stage > :first-child').length") == len(story.SECTIONS)
    assert [f for f in page.browser.faults if f != f"request: {story.PAGE.as_uri()}"] == []
    page.browser.faults.clear()


def test_the_address_follows_the_reader_and_leads_back(page):
    address = "window.location.hash"
    assert page.evaluate(address) == ""
    for section in story.SECTIONS:
        page.place(f"#{section} .controls")  # scrolls there
        assert page.evaluate(address) == f"#{section}"
        assert page.all("nav [aria-current=true]", "hash") == [f"#{section}"]
    top = "document.querySelector('#{}').getBoundingClientRect().top"
    for section in story.SECTIONS[::3]:
        for width in (360, 1400):  # where pictures are not as tall as the still ones
            page.open(width)
            page.browser.page.goto("about:blank")  # else nothing would be loaded
            page.browser.page.goto(f"{story.PAGE.as_uri()}#{section}")
            assert -1 < page.evaluate(top.format(section)) < 300, (section, width)
    page.click("#tiles h2 a")
    assert page.evaluate(address) == "#tiles"


# Its functions, beside the program.


def test_the_pages_visible_keys_and_tiles_are_the_programs(page):
    found = page.evaluate(
        """DATA.layouts.masks.map(mask => [
          mask.visible.every((keys, row) => visibleKeys(row, mask) === keys),
          JSON.stringify(mask.masked.map((_, cta) => tilesOfCta(cta, mask))) === JSON.stringify(mask.masked)])"""
    )
    assert len(found) == len(DATA["layouts"]["masks"]) >= 3 and all(all(each) for each in found)


def test_the_pages_passes_are_the_emulators(page):
    found = page.evaluate(
        """Object.fromEntries(Object.entries(DATA.layouts.shared).map(
          ([name, {offsets, bytes}]) => [name, sum(bankPasses(offsets, bytes))]))"""
    )
    assert found == {name: access["passes"] for name, access in DATA["layouts"]["shared"].items()} and len(found) > 30


def test_the_pages_swizzle_is_the_programs(page):
    for mode in (128, 64, 32):
        places = DATA["layouts"]["swizzle"][str(mode)]
        found = page.evaluate(
            f"range({len(places)}).map(row => range({mode} / 16).map(chunk => swizzlePlace({mode}, row, chunk)))"
        )
        assert found == places


# Hands on each section.


def test_a_row_of_the_matrix_shows_its_weights(page):
    weights = DATA["attention"]["weights"]
    shown = "[...document.querySelectorAll('#matrix .bar')].map(bar => +bar.dataset.weight)"
    left, top = page.evaluate(
        """(() => { const svg = document.querySelector("#matrix svg"); svg.scrollIntoView();
        const corner = svg.getBoundingClientRect(); return [corner.x, corner.y + SECTIONS.matrix.own.top]; })()"""
    )
    for row in (0, 17, 63):
        page.browser.page.mouse.move(left + 100, top + (row + 0.5) * page.evaluate("SECTIONS.matrix.own.cell"))
        assert page.state("matrix")["row"] == row and page.evaluate(shown) == weights["causal"][0][row]
        assert f"sees {row + 1} key" in page.says("matrix")
    page.press("matrix", "causal", " ")
    assert page.evaluate(shown) == weights["full"][0][63] and "sees 64 keys" in page.says("matrix")
    page.press("matrix", "row", "ArrowLeft")
    assert page.evaluate(shown) == weights["full"][0][62]
    page.click('#matrix [name="matrix-head"][value="3"]')
    assert page.evaluate(shown) == weights["full"][3][62]


def test_s_p_and_o_leave_shared_memory_one_by_one(page):
    """And do not come back on the rest of the ladder."""
    expected = {"v01": "", "v02": "sp", "v03": "spo", "v06": "spo", "v07": "sp", "v08": "p", "v11": "p"}
    steps = page.evaluate("STORAGE.map(each => each.step)")
    assert steps == story.sources.all_steps()
    layouts = {each["step"]: {part["name"]: part for part in each["64"]} for each in DATA["layouts"]["storage"]}
    page.press("storage", "step", "Home")
    for step, counted in zip(steps, DATA["counted"]):
        where = "" if step[:3] >= "v12" else expected.get(step[:3])
        if where is not None:
            lives = page.all("#storage [data-lives]", "dataset.lives")
            assert lives == [f"{x} {'shared' if x in where else 'registers'}" for x in "spo"], step
            kept = layouts.get(step, {})
            arrows = page.all("#storage [data-bytes]", "textContent")
            assert arrows == [f"{kept.get(x, kept.get('s', {}))['contents']:,}" for x in where]
        assert page.all("#storage [data-total]", "dataset.total") == [str(counted["bytes"])]
        if step in layouts:
            assert 0 <= counted["bytes"] - sum(part["bytes"] for part in layouts[step].values()) <= 1024, step
        told = page.says("storage")
        assert f"counts {math.floor(counted['wavefronts'] + 0.5):,} pass" in told
        uses_wgmma = any(re.match('#include "common/.*(wgmma|fp16_scores|bytes_of_p)', line) for line in story.sources.kernel_lines(step))
        assert ("for wgmma" in told) == uses_wgmma
        page.press("storage", "step", "ArrowRight")
    page.click('#storage [data-choose="0"]', touch=True)
    assert page.state("storage") == {"step": 0}


def test_pointing_at_t6_lights_its_cells(page):
    page.set("fragments", lane=0)
    page.hover('#fragments [data-lane="6"]')
    assert page.state("fragments")["lane"] == 6
    lit = page.all("#fragments .mark[data-lane]", "dataset.cell")
    held = [
        f"{title} {own[first][0]} {own[first][1]}"
        for title, name in zip("ABa", ("mma_a", "mma_b", "mma_c"))
        for own in [DATA["fragments"][name][6]]
        for first in range(0, len(own), 2)
    ]
    assert lit == held and len(lit) == 8
    page.click('#fragments [data-lane="9"]', touch=True)
    assert page.state("fragments")["lane"] == 9


def test_k_needs_no_trans_and_v_does(page):
    for operand, trans, right in (("k", False, True), ("k", True, False), ("v", True, True), ("v", False, False)):
        page.click(f'#fragments [value="{operand}"]')
        if page.state("fragments")["trans"] != trans:
            page.press("fragments", "trans", " ")
        assert ("All 32 lanes get" in page.says("fragments")) == right
        got, needed = (page.all(f"#fragments [data-{it}]", f"dataset.{it}") for it in ("gets", "needs"))
        assert (sorted(got) == sorted(needed)) == right and len(got) == len(needed) == 2


def test_tiles_follow_the_drag_of_a_handle_and_the_keys(page):
    for touch in (False, True):
        page.set("tiles", seqlen_q=300, seqlen_kv=300, kv_len=300, causal=True, cta=2)
        page.drag('#tiles [data-handle="seqlen_kv"]', -100, 0, touch)
        state = page.state("tiles")
        assert 200 < state["seqlen_kv"] < 260 and state["kv_len"] == state["seqlen_kv"]
    page.press("tiles", "kv_len", "ArrowLeft", "ArrowLeft")
    assert page.state("tiles")["kv_len"] == state["kv_len"] - 2
    page.press("tiles", "causal", " ")
    assert page.state("tiles")["causal"] is False
    page.click('#tiles [data-cta="1"]')
    assert page.says("tiles").startswith("CTA 1 computes 4 tiles")
    for mask in DATA["layouts"]["masks"]:
        sizes = {key: mask[key] for key in ("seqlen_q", "seqlen_kv", "kv_len", "causal")}
        for cta, masked in enumerate(mask["masked"]):
            page.set("tiles", **sizes, cta=cta)
            looks = page.all(f'#tiles [data-cta="{cta}"]', 'getAttribute("class")')
            wanted = ["tint1" if its else "tint0" for its in masked]
            assert looks == wanted + ["idle"] * (-(-mask["seqlen_kv"] // 64) - len(masked))


def test_softmax_is_right_with_the_rescale_and_wrong_without(page):
    expected = re.compile(r"O / sum = (\S+)\. Softmax of the same keys in one go gives (\S+)\. (.*)")
    for keys in range(1, 9):
        page.set("softmax", keys=keys)
        mine, right, told = expected.search(page.says("softmax")).groups()
        assert mine == right and told == "The two agree."
    page.press("softmax", "rescale", " ")
    mine, right, told = expected.search(page.says("softmax")).groups()
    assert mine != right and "count too much" in told
    page.press("softmax", "score0", "End")  # now the first key has the largest score
    assert page.state("softmax")["score0"] == 3 and "has not grown" in page.says("softmax")
    for touch in (False, True):
        page.set("softmax", score1=-1)
        page.drag('#softmax [data-key="1"] .mark', 0, -40, touch)
        assert page.state("softmax")["score1"] == 1


def test_padding_of_8_and_any_swizzle_need_one_pass(page):
    layouts = page.evaluate("LAYOUTS.map(layout => layout.name)")
    assert len(layouts) == 12
    page.press("banks", "layout", "Home")
    passes = {}
    for index, name in enumerate(layouts):
        assert page.state("banks")["layout"] == index
        turns = page.all("#banks [data-turn]", "dataset.turn")
        assert len(turns) == 8
        passes[name] = int(max(turns))
        told, counted = page.says("banks"), DATA["layouts"]["shared"][f"ldmatrix, D=64, {name}"]["passes"]
        assert f" in {passes[name]} pass" in told and f"take {counted} passes, as the emulator" in told
        assert counted == 4 * passes[name]
        page.press("banks", "layout", "ArrowRight")
    good = [name for name in layouts if passes[name] == 1]
    assert good == [*(f"padded by {n}" for n in (8, 24, 40, 56)), *(f"swizzle {n}" for n in (32, 64, 128))]
    assert passes["padded by 0"] == 8 and passes["padded by 16"] == 2


def test_a_chosen_chunk_shows_its_passes_and_its_address(page):
    page.press("banks", "layout", "End")
    page.click('#banks [data-place="5:6"]')
    assert page.state("banks")["chunk"] == 6
    page.click('#banks [data-place="3:2"]', touch=True)
    bits = page.all('#banks [data-bit^="swizzled "]', "nextElementSibling.textContent")
    assert int("".join(bits), 2) == DATA["layouts"]["swizzle"]["128"][3][2]
    page.click('#banks [data-name="layout"][data-step="-1"]', touch=True)
    page.press("banks", "layout", "Home")
    page.press("banks", "pass", "End")
    page.click('#banks [data-name="pass"][data-step="-1"]')
    assert page.state("banks") == {"layout": 0, "pass": 7, "chunk": 2}
    assert page.all("#banks .mark[data-turn]", "dataset.place") == ["6:2"]


def test_k_2_is_copied_only_after_the_fourth_arrival(page):
    """In v10's time line: its place is free when all four consumer warps have arrived."""
    [v10] = [index for index, trace in enumerate(DATA["traces"]) if trace["step"] == "v10_tma_warpspec"]
    page.set("pipeline", step=v10)
    copy = f"""#pipeline [data-event^="{v10}:"][data-name="K tile 2"]"""
    begin, left, arrivals, edges = page.evaluate(
        f"""(() => {{
          const copy = document.querySelector({json.dumps(copy)});
          const own = [...document.querySelectorAll('#pipeline [data-arrival="bar_k_empty[0] 0"]')];
          const edge = element => element.getBoundingClientRect().left;
          return [+copy.dataset.begin, edge(copy), own.map(tick => +tick.dataset.at), own.map(edge)];
        }})()"""
    )
    assert len(arrivals) == 4 and max(arrivals) <= begin and max(edges) <= left + 1.5
    [traced] = [e for e in DATA["traces"][v10]["events"] if (e["kind"], e["name"]) == ("copy", "K tile 2")]
    assert begin == traced["begin"]
    page.hover(copy)
    assert f"K tile 2. The source line: {traced['line']}" in page.says("pipeline") and "tma_load" in traced["line"]


def test_the_playhead_tells_what_is_under_way_and_which_phase(page):
    for touch in (False, True):
        page.set("pipeline", time=2000, step=1)
        page.drag("#pipeline [data-handle] .grab", 60, 0, touch)
        assert page.state("pipeline")["time"] > 2150
    page.press("pipeline", "time", "Home", *["ArrowRight"] * 3)
    assert page.state("pipeline")["time"] == 60
    for index, trace in enumerate(DATA["traces"]):
        page.click(f'#pipeline [name="pipeline-step"][value="{index}"]')
        page.set("pipeline", time=1500)
        told = page.evaluate("document.querySelector('#pipeline table').innerText")
        now = [e for e in trace["events"] if e["kind"] != "arrival" and e["begin"] <= 1500 < e["end"]]
        assert len(now) >= 4 and all(each["track"] in told and each["line"] in told for each in now)
        names, times = (page.all("#pipeline [data-phase]", f"dataset.{it}") for it in ("phase", "end"))
        ends = dict(zip(names, times))
        arrivals = [e for e in trace["events"] if e["kind"] == "arrival" and re.search("[kvKV].*empty", e["mbarrier"])]
        last = {f"{e['mbarrier']} {e['phase']}": str(e["begin"]) for e in sorted(arrivals, key=lambda e: e["begin"])}
        few = trace["step"][:3] in ("v10", "v16")
        assert bool(ends) == few and (last.items() <= ends.items() or not few)


def test_a_play_button_plays_to_the_end_and_begins_again(page):
    for section in ("pipeline", "overlap"):
        time = f"SECTIONS.{section}.state.time"
        button = f"#{section} [data-play]"
        end = page.evaluate(f"+document.querySelector('#{section} [name=time]').max")
        page.set(section, time=0)
        page.click(button, touch=section == "overlap")
        assert page.all(button, "textContent") == ["❚❚ pause"]
        page.browser.page.wait_for_timeout(400)
        page.evaluate(f"document.querySelector('{button}').focus()")
        page.browser.page.keyboard.press("Enter")
        stopped = page.evaluate(time)
        assert 0 < stopped < end / 2 and page.all(button, "textContent") == ["▶ play"]
        page.browser.page.wait_for_timeout(100)
        assert page.evaluate(time) == stopped
        page.set(section, time=end - end / 50)
        page.click(button)
        page.browser.page.wait_for_timeout(600)
        assert page.evaluate(time) == end and page.all(button, "textContent") == ["▶ play"]
        page.click(button)
        page.browser.page.wait_for_timeout(100)
        assert page.evaluate(time) < end / 4
        page.click(button)


def test_a_warps_time_is_told_for_every_64_queries(page):
    """Grey is waiting, and nothing else."""
    times = page.evaluate("TRACES.map(trace => [trace.queries, timesOf(trace)])")
    assert [queries for queries, _ in times] == [64, 64, 128, 256, 1]
    first = [e for e in DATA["traces"][1]["events"] if e["track"] == "warp 0" and e["kind"] not in ("arrival", "issue")]
    assert sum(times[1][1].values()) == sum(e["end"] - e["begin"] for e in first)
    assert times[1][1]["idle"] == sum(e["end"] - e["begin"] for e in first if e["kind"] == "wait")
    shares = [times["idle"] + times["tint3"] for _, times in times]
    assert shares[1] < shares[0], "v10 waits for less than v09 spends on loads"
    for index in range(4):  # one query has no 64
        page.click(f'#pipeline [data-choose="{index}"]', touch=index % 2 == 1)
        assert page.state("pipeline")["step"] == index
        grey = page.all("#pipeline .idle[data-event]", "dataset.event")
        assert {DATA["traces"][index]["events"][int(each.split(":")[1])]["kind"] for each in grey} == {"wait"}


def test_the_pages_v21_is_the_emulators_and_v22_computes_while_a_product_runs(page):
    costs, bars = DATA["overlap"], "overlapped('{}', {}, {})"
    found = page.evaluate(bars.format("v21", costs["work"], 1))
    begins = [bar["begin"] for bar in found if bar["name"].startswith("S")]
    # The first exponentials of a tile of queries take a little longer in the trace.
    assert [b - begins[1] for b in begins[1:]] == [b - costs["s_begins"][1] for b in costs["s_begins"][1:]]
    for step in ("v21", "v22"):
        for work in (100, 500, 1300):
            for warpgroups in (1, 2):
                found = page.evaluate(bars.format(step, work, warpgroups))
                cores = sorted((bar["begin"], bar["end"]) for bar in found if bar["who"] == "tensor cores")
                assert len(cores) == 8 * warpgroups and all(a[1] <= b[0] for a, b in zip(cores, cores[1:]))
                both = sum(
                    bar["begin"] < end and begin < bar["end"]
                    for bar in found if bar["who"] == "warps" for begin, end in cores
                )
                assert (both > 0) == (step == "v22" or warpgroups == 2)


def test_a_reader_finds_when_the_overlap_pays(page):
    def ratio() -> float:
        return float(re.search(r"v22: ([0-9.]+) ×", page.says("overlap"))[1])

    page.press("overlap", "work", "Home")
    short = ratio()
    page.press("overlap", "work", "End")
    long = ratio()
    page.set("overlap", work=DATA["overlap"]["product"])
    even = ratio()
    assert even > short and even > long, "it pays most where both take the same time"
    page.click('#overlap [value="2"]', touch=True)
    assert ratio() < even and len(page.all("#overlap [data-bar]", "dataset.bar")) == 2 * 2 * 12
    page.press("overlap", "time", "Home")
    page.drag("#overlap [data-handle] .grab", 80, 0, touch=True)
    told = page.evaluate("document.querySelector('#overlap .now').innerText")
    assert page.state("overlap")["time"] > 100 and "v21: " in told and "v22: " in told


def test_more_ctas_give_more_sms_work_and_parts_need_their_weights(page):
    expected = re.compile(r"O = (\S+); with one CTA it is (\S+)\.")
    for index, problem in enumerate(DATA["split"]["problems"]):
        page.click(f'#split [name="split-problem"][value="{index}"]')
        page.press("split", "splits", "Home")
        for at, entry in enumerate(problem["times"]):
            assert page.state("split")["splits"] == at
            busy = page.all("#split [data-sm=busy]", "dataset.sm")
            assert len(busy) == min(132, 8 * entry["splits"])
            assert len(page.all("#split [data-part]", "dataset.part")) == min(8, entry["splits"])
            mine, right = expected.search(page.says("split")).groups()
            assert mine == right
            page.press("split", "splits", "ArrowRight")
    assert page.all("#split [data-us]", "dataset.us") == []
    page.press("split", "weighted", " ")
    mine, right = expected.search(page.says("split")).groups()
    assert mine != right
    page.press("split", "splits", "Home")
    assert len(set(expected.search(page.says("split")).groups())) == 1, "one part needs no weight"
    page.press("split", "shown", " ")
    page.click('#split [data-choose="7"]', touch=True)
    took = problem["times"][7]
    assert took["splits"] == 16 and f"Measured: {took['us']:.1f} µs" in page.says("split")
    assert took["us"] == min(entry["us"] for entry in problem["times"]) > problem["read"]


def test_v36_cuts_all_keys_into_equal_pieces(page):
    for lengths in ([2, 5, 1, 4, 3, 16], [3, 3, 3, 3, 0, 0], [0] * 6, [16] * 6):
        page.set("shares", **{f"units{index}": length for index, length in enumerate(lengths)})
        pieces, units = (page.all("#shares [data-piece]", f"dataset.{it}") for it in ("piece", "units"))
        found = [(*map(int, piece.split()), int(its)) for piece, its in zip(pieces, units)]
        for way in (0, 1):
            for sequence, length in enumerate(lengths):
                own = [its for w, _, s, its in found if (w, s) == (way, sequence)]
                assert sum(own) == 1 + max(length, 1) and (way or len(own) == 1)
        shares = [sum(its for w, sm, _, its in found if (w, sm) == (1, number)) for number in range(4)]
        assert max(shares) - min(shares) <= 1
        slow, fast = map(int, re.search(r"v33 takes (\d+) units of time, v36 (\d+)", page.says("shares")).groups())
        assert fast == max(shares) <= slow
    for touch in (False, True):
        page.set("shares", units2=10)
        page.drag('#shares [data-handle][data-sequence="2"] .mark', -100, 0, touch)
        assert page.state("shares")["units2"] < 9
    page.press("shares", "units4", "Home", "ArrowRight", "ArrowRight")
    assert page.state("shares")["units4"] == 2


def test_a_drawn_path_gets_a_score_beside_the_measured_one(page):
    """A flat one 0, the measured one nearly 100: a guess has notches."""
    problems = DATA["ladder"]["problems"]
    assert [each["steps"][-1]["step"][:3] for each in problems] == ["v27", "v27", "v36", "v36"]
    surface = "#ladder [data-handle=path] .grab"
    for index, problem in enumerate(problems):
        page.click(f'#ladder [name="ladder-problem"][value="{index}"]', touch=index % 2 == 1)
        rates = [step["rate"] for step in problem["steps"]]
        assert page.evaluate("document.querySelectorAll('#ladder [data-measured]').length") == 1
        page.press("ladder", "shown", " ")
        assert "Score: 0 of 100." in page.says("ladder")
        page.evaluate(f"SECTIONS.ladder.own.played[{index}].shown = false")
        page.set("ladder", shown=False)
        notches = [round(20 * math.log2(rate / before)) for before, rate in zip(rates, rates[1:])]
        page.place(surface)
        corner = f"document.querySelector('{surface}').getBoundingClientRect()"
        left, top = page.evaluate(f"(box => [box.x, box.y])({corner})")
        wide, tall, unit = page.evaluate("(own => [own.wide, own.tall, own.unit])(SECTIONS.ladder.own)")
        levels = [sum(notches[: at + 1]) / 20 for at in range(len(notches))]
        places = [(left + (at + 1.5) * wide, top + 4 + tall - level * unit) for at, level in enumerate(levels)]
        page.browser.pointer(*places, touch=index % 2 == 1)
        assert page.evaluate(f"SECTIONS.ladder.own.played[{index}].notches") == notches
        page.press("ladder", "shown", " ")
        last, told = problem["steps"][-1], page.says("ladder")
        assert int(re.search(r"Score: (\d+) of 100", told)[1]) >= 90
        assert f"The last step is {rates[-1] / rates[0]:.1f} × as fast" in told
        peers = [float(rate) for rate in page.all("#ladder [data-peer]", "dataset.peer")]
        assert len(peers) == len(problem["peers"]) == (0 if problem["unit"] == "TB/s" else 3)
        assert all(rate < rates[-1] for rate in peers)
        assert f"measured at {last['text'][0]} {problem['unit']} [{last['text'][1]}–{last['text'][2]}]" in told
        assert len(page.all("#ladder [data-measured]", "dataset.measured")) == len(rates)


def test_a_path_can_be_drawn_by_keys(page):
    page.press("ladder", "step", "Home", *["ArrowRight"] * 3)
    page.press("ladder", "guess", *["ArrowRight"] * 20)
    notches = "SECTIONS.ladder.own.played[0].notches.slice(0, 5)"
    assert page.evaluate(notches) == [0, 0, 0, 20, 0] and page.state("ladder")["step"] == 4
    page.press("ladder", "step", "ArrowLeft")
    page.press("ladder", "guess", "ArrowLeft")
    assert page.evaluate(notches) == [0, 0, -1, 20, 0]
    page.press("ladder", "step", "ArrowRight")
    assert page.state("ladder")["guess"] == 20
    page.press("ladder", "shown", " ")
    page.press("ladder", "guess", "End")
    assert page.evaluate(notches) == [0, 0, -1, 20, 0], "whoever has seen the answer guesses no more"


def test_rates_and_peers_of_a_path_are_of_one_run():
    for problem in DATA["ladder"]["problems"]:
        record = story.results.load(story.RECORDS / problem["record"])
        [run] = story.results.select_runs(record, story.MEASURED[problem["name"]][1])
        entries = [*run["steps"], *run.get("peers", [])]
        times = {entry.get("step", entry.get("peer")): entry["timing"]["median_ms"] for entry in entries}
        first, *others = problem["steps"]
        for step in others:
            assert step["rate"] / first["rate"] == pytest.approx(times[first["step"]] / times[step["step"]])
        for name, peer in zip(story.PEERS, problem["peers"]):
            assert peer["peer"] == story.PEERS[name]
            assert peer["rate"] / first["rate"] == pytest.approx(times[first["step"]] / times[name])


def test_a_bugs_report_shows_when_as_many_lines_are_marked(page):
    report = "document.querySelector('#bugs .stage .report')"
    page.press("bugs", "bug", "Home")
    found = total = 0
    for index, bug in enumerate(DATA["bugs"]):
        assert page.state("bugs") == {"bug": index, "told": False, "marked": []} and page.evaluate(f"!{report}")
        named = [f"{each['file']}:{line['number']}" for each in bug["files"] for line in each["lines"] if line["named"]]
        assert sorted(named) == sorted(set(re.findall(r"[\w/]+\.(?:cu|h):\d+", bug["report"]))) and named
        every = page.all("#bugs .line", "dataset.line")
        other = next(line for line in every if line not in named)
        for number, line in enumerate([other, *named[1:]] if index == 0 else named):
            if number:
                assert page.evaluate(f"!{report}"), "told before all lines were marked"
            page.click(f'#bugs [data-line="{line}"]', touch=index % 2 == 1)
        found += len(named) - (index == 0)
        total += len(named)
        assert page.evaluate(f"{report}.textContent") == bug["report"]
        looks = {look: page.all(f"#bugs .{look}", "dataset.line") for look in ("hit", "missed", "wrong")}
        wanted = (named[1:], named[:1], [other]) if index == 0 else (named, [], [])
        assert [sorted(lines) for lines in looks.values()] == [sorted(lines) for lines in wanted]
        assert f"so far: {found} of {total}." in page.says("bugs")
        page.press("bugs", "bug", "ArrowRight")
    page.press("bugs", "bug", "Home")
    assert page.state("bugs")["told"], "a bug is as the reader left it"


def test_lines_are_marked_by_keys_and_a_reader_may_give_up(page):
    lines = page.all("#bugs .line", "id")
    page.evaluate(f"document.getElementById({json.dumps(lines[2])}).focus()")
    page.browser.page.keyboard.press("Enter")
    assert page.all("#bugs .marked", "id") == [lines[2]] == [page.evaluate("document.activeElement.id")]
    page.browser.page.keyboard.press(" ")
    assert page.all("#bugs .marked", "id") == []
    page.browser.page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == lines[3]
    page.press("bugs", "told", " ")
    assert page.evaluate("document.querySelector('#bugs .stage .report').textContent") == DATA["bugs"][0]["report"]
    assert "You found 0 of" in page.says("bugs") and len(page.all("#bugs .missed", "id")) >= 2
