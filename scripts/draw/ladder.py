"""The ladder, whole: its rates as one staircase beside other people's kernels, and the microseconds of its part decode.

What these pictures share is the look of a step, which is strong if the step is on the short path through the ladder.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from draw import figure_style
from draw.charts import Entry, Run, Source, device_of, label_of, origin_of, peers_of
from draw.figure_style import BACKGROUND, BAR, GRID, HEADING, IDEAL, INK, MUTED, NOTE, P_PALE, TINTS, WIDTH
from draw.sheet import PIXELS, POINT, Sheet, text_width
from records.rates import contenders_of, rate
from records.results import ResultsError
from steps import sources

LOW, HIGH, TICKS = 2.0, 1000.0, (2, 5, 10, 20, 50, 100, 200, 500)  # TFLOPS
LEFT, TOP, RIGHT, GAP, NOTES = 50.0, 70.0, 12.0, 6.0, 13.44  # pixels
ROW, ROOM = 19.0, 76.0  # of a bar of decode, and behind its end
PITCH, SIZE = {True: 22.0, False: 15.5}, {True: HEADING, False: NOTE}  # pixels; points. By whether a step is strong


# Of the time of decode: what it is, and its colour.
TIMES = {
    "K and V at the rate of long reads": IDEAL,
    "the same call with one key: launches": P_PALE,
    "the rest: slower reads, merging": BAR,
}


@dataclass(frozen=True)
class Stair:
    name: str
    tflops: float
    is_strong: bool

    def width(self, text: str) -> float:
        return text_width(text, SIZE[self.is_strong] * POINT, self.is_strong)


def place(tflops: float) -> float:
    return LEFT + (PIXELS * WIDTH - RIGHT - LEFT) * math.log(tflops / LOW) / math.log(HIGH / LOW)


def draw_stair(sheet: Sheet, y: float, stair: Stair) -> None:
    """Its idea stands in the bar, or behind its rate where the bar has no room."""
    end, strong = place(stair.tflops), stair.is_strong
    middle = y + PITCH[strong] / 2
    idea, value = sources.heading(stair.name), rate(stair.tflops)

    def text(x: float, words: str, colour: str = INK, **how: Any) -> None:
        weight = {"weight": "bold"} if strong else {}
        sheet.text(x, middle, words, SIZE[strong], **{"ha": "left", "color": colour, **weight, **how})

    sheet.box(LEFT, y + 1, end - LEFT, PITCH[strong] - 2, facecolor=BAR if strong else TINTS[0], edgecolor="none")
    text(LEFT - GAP, stair.name.split("_")[0], INK if strong else MUTED, ha="right")
    text(end + GAP, value, halo=BACKGROUND)
    if stair.width(idea) + 2 * GAP < end - LEFT:
        text(LEFT + GAP, idea, BACKGROUND if strong else INK)
    else:
        text(end + 3 * GAP + stair.width(value), idea, halo=BACKGROUND)


def draw_peers(sheet: Sheet, run: Run, stairs: list[Stair], tops: list[float]) -> None:
    """Each has a line down to the step from which on all are faster. The fastest has its label to the right of the
    line, the others have it to the left, as far as there is room."""
    room, right = sheet.width, "left"
    for name, peer in sorted(peers_of(run).items(), key=lambda item: -item[1]["timing"]["tflops"]):
        words, colour, _ = figure_style.PEERS[name]
        tflops = peer["timing"]["tflops"]
        slower = [stair for stair in stairs if stair.tflops < tflops]
        x, text = place(tflops), f"{words.replace('FlashAttention-', 'FA')} {rate(tflops)}"
        at = min(x, room)
        sheet.text(at, TOP - 20, text, HEADING, weight="bold", color=colour, ha=right)
        line = [(at, TOP - 14), (x, TOP - 3), (x, tops[len(slower)])]
        sheet.polyline(line, color=colour, linewidth=1.5, linestyle="dashed", zorder=1.5)
        room = at - (right == "right") * text_width(text, HEADING * POINT, True) - 2 * GAP
        right = "right"


def staircase(records: list[Source]) -> Sheet:
    data, [run] = records[0].data, records[0].runs
    if without := [name for name, entry in contenders_of(run).items() if not entry.get("timing")]:
        raise ResultsError(f"{', '.join(without)}: no timing, and a staircase has no gaps")
    rates = {step["step"]: step["timing"]["tflops"] for step in run["steps"]}
    stairs = [Stair(name, tflops, name in sources.main_path() or name == [*rates][-1]) for name, tflops in rates.items()]
    tops = [*itertools.accumulate((PITCH[stair.is_strong] for stair in stairs), initial=TOP)]
    first, last = rate(stairs[0].tflops), rate(stairs[-1].tflops)
    sheet = Sheet(f"From {first} to {last} TFLOPS, one idea a step", tops[-1] + 62, PIXELS * WIDTH)
    for tick in TICKS:
        sheet.line((place(tick), TOP - 3), (place(tick), tops[-1] + 3), color=GRID, linewidth=0.5, zorder=0)
        sheet.text(place(tick), tops[-1] + 11, f"{tick}", color=MUTED)
    draw_peers(sheet, run, stairs, tops)
    for stair, top in zip(stairs, tops):
        draw_stair(sheet, top, stair)
    where = f"{label_of(run)}, {device_of(data)}, {origin_of(data)}."
    sheet.note(tops[-1] + 24, f"TFLOPS, log scale; medians of one interleaved run. {where}", NOTES)
    path = "Bold: the short path through the ladder, and its end. Pale: side steps."
    sheet.note(tops[-1] + 41, f"{path} FA2, FA3: FlashAttention-2 and -3.", NOTES)
    return sheet


def times_of(run: Run, entry: Entry, with_one_key: Entry) -> list[float]:
    """Microseconds, as TIMES names them."""
    long, own = (run["ceilings"][key] for key in ("read", "read_kv"))
    floor = own["work"] / (long["work"] / long["median_ms"])
    launches = with_one_key["timing"]["median_ms"]
    return [1000 * each for each in (floor, launches, entry["timing"]["median_ms"] - floor - launches)]


def draw_times(sheet: Sheet, y: float, run: Run, with_one_key: Run) -> float:
    """A bar a step; the problems have scales of their own. What all steps share has its number once. Returns where the
    next problem may begin."""
    steps = {step["step"]: times_of(run, step, one) for step, one in zip(run["steps"], with_one_key["steps"])}
    unit = (sheet.width - LEFT - ROOM) / max(map(sum, steps.values()))
    sheet.heading(NOTES, y, label_of(run))
    y += 14
    for name, times in steps.items():
        strong, x = name in sources.main_path(), LEFT
        look = {"weight": "bold", "color": INK} if strong else {"color": MUTED}
        sheet.text(LEFT - GAP, y + ROW / 2, name.split("_")[0], SIZE[strong], ha="right", **look)
        for time, colour in zip(times, TIMES.values()):
            sheet.box(x, y + 1, time * unit, ROW - 2, facecolor=colour, edgecolor="none")
            number = f"{time:.1f}" if colour != IDEAL or name == [*steps][0] else ""
            if text_width(number, NOTE * POINT) + GAP < time * unit:
                sheet.text(x + time * unit / 2, y + ROW / 2, number, color=BACKGROUND if colour == BAR else INK)
            x += time * unit
        sheet.text(x + GAP, y + ROW / 2, f"{sum(times):.1f} µs", SIZE[strong], ha="left", **look)
        y += ROW
    return y + 24


def decode(records: list[Source]) -> Sheet:
    """Microseconds of calls with one query, stacked by what is known of them."""
    data, runs = records[0].data, records[0].runs
    sheet = Sheet("Decode: from what memory needs to what a call takes", 0, PIXELS * WIDTH)
    x = NOTES
    for words, colour in TIMES.items():
        sheet.box(x, 40, 16, 11, facecolor=colour, edgecolor="none")
        sheet.text(x + 22, 45.5, words, ha="left")
        x += 38 + text_width(words, NOTE * POINT)
    y = 80.0
    with_one_key, *others = runs
    for run in others:
        y = draw_times(sheet, y, run, with_one_key)
    sheet.note(y - 14, f"Medians of one interleaved run, L2 cold. {device_of(data)}, {origin_of(data)}.", NOTES)
    sheet.height = y + 10
    return sheet


KINDS = {kind.__name__: kind for kind in (staircase, decode)}
