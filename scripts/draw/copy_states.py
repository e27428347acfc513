"""Where a TMA copy puts its bytes, and what mbarriers do, from what the emulator's own functions did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from draw import drawings
from draw.figure_style import BACKGROUND, CEILING, GAP, INK, MUTED, TINTS
from draw.sheet import Sheet

BLUE, YELLOW, GREEN, _ = TINTS
PALE_RED = "#fbe9df"  # of its vermillion: where a phase ends
WIDTH = 29.0  # of a picture, in its units
CHUNKS_PER_LINE = 8  # of 16 bytes, in the 128 bytes of a swizzled row
MARKED = [9, 11]  # the chunk that the picture follows: row of the tensor, chunk of that row
DIMENSIONS = ("column in the panel", "row", "panel", "head", "batch")
TITLES = {
    "announced_first": "Full, one arrival: the bytes are announced, then they come",
    "announced_last": "The same, but the bytes come before they are announced",
    "four_arrivals": "Empty, four arrivals: one of each consumer warp, no bytes",
}

# As layouts.cpp prints it: `box`, a copy and where it has put each chunk; `lives` of mbarriers, with each state.
Copies = dict[str, Any]


def read(build: Path) -> Copies:
    return drawings.ask_layouts(build, "copies")


# ---- The box


def draw_tensor(sheet: Sheet, box: Any, x: float, y: float) -> None:
    """The rows around the box as they lie in global memory, and which of them it takes."""
    first, end, rows = box["origin"][1], box["origin"][1] + box["box"][1], box["size"][1]
    wide, tall, panels = 0.62, 0.9, box["size"][2]
    panel = CHUNKS_PER_LINE * wide
    sheet.heading(x + panels * panel / 2, y - 1.4, "global memory", ha="center")
    names = (f"panel {i}: {box['box'][0]} columns" for i in range(panels))
    sheet.names(x + panel / 2, y - 0.55, names, across=panel, color=INK)
    lines = [(0, row) for row in range(first - 2, rows)] + [(1, row) for row in range(end - rows)]
    for index, (head, row) in enumerate(lines):
        top, taken = y + tall * index, head == 0 and row >= first
        name = f"row {row}" if head == 0 else f"next head, row {row}"
        sheet.text(x - 0.3, top + tall / 2, name, ha="right", color=INK if taken else MUTED)
        for chunk in range(panels * CHUNKS_PER_LINE):
            place = x + wide * chunk, top, wide, tall
            sheet.box(*place, facecolor=(BLUE, YELLOW)[chunk // CHUNKS_PER_LINE] if taken else GAP)
            if taken and [row, chunk] == MARKED:
                sheet.mark(*place)
    top, bottom = (y + tall * lines.index((0, row)) for row in (first, rows - 1))
    sheet.box(x, top, panels * panel, bottom + tall - top, edgecolor=INK, linewidth=1.6, zorder=3)
    sheet.left(
        0.6,
        y + tall * len(lines) + 0.4,
        f"The box has {box['box'][1]} rows. From row {first} on, the head has only {rows - first} rows. TMA fills\n"
        f"the other {end - rows} rows with zeros, and not with the next head's rows.",
    )


def draw_tile(sheet: Sheet, box: Any, x: float, y: float) -> None:
    """Shared memory, a line per 128 bytes."""
    wide, tall = 1.4, 0.9
    middle = x + CHUNKS_PER_LINE * wide / 2
    sheet.heading(middle, y - 1.4, "shared memory", ha="center")
    for index, chunk in enumerate(box["chunks"]):
        line, column = divmod(index, CHUNKS_PER_LINE)
        panel, row = divmod(line, box["box"][1])
        place = x + wide * column, y + tall * line + 1.2 * panel, wide, tall
        if column == 0:
            sheet.text(x - 0.25, place[1] + tall / 2, f"+{128 * line}", ha="right", color=MUTED)
        if row == column == 0:
            sheet.text(middle, place[1] - 0.5, f"panel {panel}")
        tint = BACKGROUND if chunk is None else (BLUE, YELLOW)[chunk[1] // CHUNKS_PER_LINE]
        sheet.box(*place, facecolor=tint)
        words = "0" if chunk is None else f"{chunk[0]}:{chunk[1]}"
        sheet.text(place[0] + wide / 2, place[1] + tall / 2, words, color=MUTED if chunk is None else INK)
        if chunk == MARKED:
            sheet.mark(*place)


def draw_map(sheet: Sheet, box: Any, x: float, y: float) -> None:
    """What the tensor map says, and the coordinates of this copy."""
    sheet.text(x, y, "dimension", ha="left", weight="bold")
    sheet.names(x, y + 0.9, map("{}  {}".format, range(5), DIMENSIONS), down=0.9, ha="left", color=INK)
    for offset, name, key in (
        (6.3, "size", "size"),
        (8.8, "stride, bytes", "stride"),
        (11.3, "box", "box"),
        (13.6, "begins at", "origin"),
    ):
        sheet.text(x + offset, y, name, weight="bold")
        # Where there is one of something, no copy goes on to the next.
        alone = [key == "stride" and size == 1 for size in box["size"]]
        numbers = ("any" if a else f"{number:,}" for a, number in zip(alone, box[key]))
        sheet.names(x + offset, y + 0.9, numbers, down=0.9, color=INK)
    words = f"The mbarrier counts {box['counted_bytes']} bytes: the whole box, including its zeros."
    sheet.left(x, y + 0.9 * 5 + 0.65, words)


def draw_box(copies: Copies) -> Sheet:
    box, (row, chunk) = copies["box"], MARKED
    words = (
        f"{row}:{chunk}, outlined on both sides, is chunk {chunk} of row {row}: 16 bytes, "
        f"{CHUNKS_PER_LINE} columns. A row of a panel fills one line of 128 bytes,\nits chunks in the order "
        f"of the 128-byte swizzle. v10's boxes have 64 rows, this one {box['box'][1]}."
    )
    sheet = Sheet("One TMA load: a box of a tensor, row by row into shared memory", 22.4, WIDTH, words)
    draw_tensor(sheet, box, 4.6, 5.7)
    draw_map(sheet, box, 0.6, 16.6)
    draw_tile(sheet, box, 17.2, 5.7)
    return sheet


# ---- The states of an mbarrier

PHASE, ARRIVALS, BYTES, ANSWERS = 13.1, 16.2, 20.6, (24.9, 27.3)  # columns


def draw_state(sheet: Sheet, state: Any, y: float, ends_phase: bool, unit: float) -> None:
    """A line of the table. A byte that is still to come is so long; those that came too early count as negative."""
    if ends_phase:
        sheet.box(0.5, y - 0.5, 28.0, 1.0, facecolor=PALE_RED, edgecolor="none", zorder=0)
        sheet.text(12.2, y, f"phase {state['phase'] - 1} ends", ha="right", color=CEILING)
    sheet.text(0.6, y, state["event"], ha="left", family="monospace")
    sheet.text(PHASE, y, str(state["phase"]))
    for arrival in range(state["arrivals"]):
        left = ARRIVALS + 0.75 * (arrival - state["arrivals"] / 2) + 0.1
        come = arrival < state["arrivals"] - state["missing"]
        sheet.box(left, y - 0.28, 0.55, 0.56, facecolor=INK if come else BACKGROUND, edgecolor=INK)
    end, side = state["bytes"] * unit, 1 if state["bytes"] >= 0 else -1
    sheet.box(BYTES + min(0.0, end), y - 0.3, abs(end), 0.6, facecolor=BLUE if side > 0 else YELLOW)
    sheet.line((BYTES, y - 0.45), (BYTES, y + 0.45), color=MUTED, linewidth=0.8)
    number = str(state["bytes"]).replace("-", "\u2212")
    sheet.text(BYTES + end + 0.2 * side, y, number, ha="left" if side > 0 else "right")
    for x, passes in zip(ANSWERS, state["passes"]):
        sheet.cell(x - 0.95, y - 0.38, 1.9, 0.76, GREEN if passes else GAP, "passes" if passes else "waits")


def draw_mbarrier(copies: Copies) -> Sheet:
    lives = copies["lives"]
    height = 5.2 + len(TITLES) * 1.85 + 1.05 * sum(len(lives[name]) for name in TITLES)
    words = (
        "A phase ends when every arrival has come and no byte is outstanding. The next phase then begins "
        "by itself.\nEach line shows an event, the state of the mbarrier after it, and what a wait would do in "
        "this state."
    )
    sheet = Sheet("An mbarrier from state to state", height, WIDTH, words)
    names = ["phase\nunder way", "arrivals: come,\nto come", "bytes\noutstanding"]
    names += [f"wait for\nparity {parity}" for parity in range(2)]
    for x, name in zip((PHASE, ARRIVALS, BYTES, *ANSWERS), names):
        sheet.text(x, 4.4, name, color=MUTED)
    y = 5.2
    for name, title in TITLES.items():
        states = lives[name]
        sheet.heading(0.55, y + 0.2, title)
        unit = 1.5 / max(1, *(abs(state["bytes"]) for state in states))
        for index, state in enumerate(states):
            ends_phase = index > 0 and state["phase"] > states[index - 1]["phase"]
            draw_state(sheet, state, y + 1.55 + 1.05 * index, ends_phase, unit)
        y += 1.85 + 1.05 * len(states)
    return sheet


PICTURES: dict[str, Callable[[Copies], Sheet]] = {
    "copies_box.svg": draw_box,
    "copies_mbarrier.svg": draw_mbarrier,
}
