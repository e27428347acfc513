"""The pictures of lessons that are rows of boxes, each from a text beside its step: steps/STEP/idea.txt. Rows that are
part of another picture are such a text, too, which add() draws.

A text is made of these lines, the first of which is the picture's title:

    = HEADING                   begins a group of rows
    == HEADING                  the same, and its rows have a scale of their own
    NAME | BOXES | WORDS        a row: its name, its boxes, and words behind them, if any
    : BOXES                     a legend
    > NOTE                      small print
    # QUOTE                     a line of kernel.cu that the picture's numbers come from: it must still stand there
    # STEP: QUOTE               the same, of another step

A box is COLOUR, LENGTH, *COUNT and "TEXT", of which all but the colour may be missing: S2 is two units long, and
K*3"0,1,2" are three boxes with a text each. Several letters take turns: ab*4 is four boxes. Behind -> a box has an
arrow from the one before, behind ->> each of several has. /2 halves its height. The letters are the keys of COLOURS,
and three more:

    .    leaves room, in which a text may stand
    _    leaves room for what other rows have: dashed, and an arrow passes through
    !    a mark with its text below; it takes no room
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from draw import drawings
from draw.drawings import DrawingError
from draw.figure_style import BACKGROUND, CEILING, IDLE, INK, KV, KV_THERE, MUTED, NEUTRAL, Q_THERE, TINTS, O, P, Q, S
from draw.sheet import Sheet
from steps import sources

# Matrices have their letters, K also stands for V, and q and k for what has arrived; n is neutral, x idle, i ink. With
# a to d a picture tells apart what is no matrix: heads, warps, tiles.
COLOURS = {"Q": Q, "q": Q_THERE, "K": KV, "k": KV_THERE, "S": S, "P": P, "O": O, "n": NEUTRAL, "x": IDLE, "i": INK}
COLOURS |= dict(zip("abcd", TINTS))
LOOKS = {".": {"color": MUTED, "halo": BACKGROUND}, "x": {"halo": IDLE}}  # of the words in it
BOX = re.compile(r'\s*(->>|->)?\s*([.!_]|[A-Za-z]+)([\d.]*)(/2)?(?:\*(\d+))?(?:"([^"]*)")?(?=\s|$)')
MARGIN, GAP, ARROW, LINE_HEIGHT, LONGEST = 0.42, 0.2, 0.52, 0.46, 3.9  # in a sheet's units; the last of a box of 1


@dataclass(frozen=True)
class Box:
    colour: str
    length: float
    text: str
    half: bool
    behind_arrow: bool


@dataclass(frozen=True)
class Row:
    name: str
    boxes: tuple[Box, ...]
    words: str

    @property
    def length(self) -> float:
        return sum(box.length for box in self.boxes)

    @property
    def height(self) -> float:
        texts = [box.text for box in self.boxes if box.colour != "!"]
        half = any(box.half for box in self.boxes)
        return 0.33 + LINE_HEIGHT * max([text.count("\n") + 1 for text in texts], default=1) + 0.26 * half


def parse_boxes(text: str) -> list[Box]:
    boxes, at = [], 0
    while at < len(text.rstrip()):
        if not (found := BOX.match(text, at)):
            raise DrawingError(f"no box begins with '{text[at:].strip()}'")
        at = found.end()
        arrow, letters, length, half, count, words = found.groups()
        texts = (words or "").replace("\\n", "\n").split(",") if count else [(words or "").replace("\\n", "\n")]
        texts = texts * int(count or 1) if len(texts) == 1 else texts
        if len(texts) != int(count or 1) or not set(letters) <= {*COLOURS, *".!_"}:
            raise DrawingError(f"'{found[0].strip()}' has no such colour, or another number of texts")
        size = 0.0 if letters == "!" else float(length or 1)
        for index, (colour, label) in enumerate(zip(cycle(letters), texts)):
            boxes.append(Box(colour, size, label, bool(half), arrow == "->>" or arrow == "->" and index == 0))
    return boxes


def parse_row(line: str) -> Row:
    name, boxes, *words = (part.strip() for part in line.split("|"))
    return Row(name, tuple(parse_boxes(boxes)), " ".join(words))


def draw_row(sheet: Sheet, y: float, row: Row, left: float, unit: float) -> float:
    """Where the next one is."""
    x, middle, last = left, y + row.height / 2, None
    sheet.text(left - 0.25, middle, row.name, ha="right")
    for box in row.boxes:
        begin = x + ARROW * box.behind_arrow
        width, height = x + box.length * unit - begin, row.height / (1 + box.half)
        if box.behind_arrow and box.colour not in "._" and last is not None:
            sheet.arrow((last, middle), (begin, middle), color=CEILING, gap=0)
        if box.colour == "!":
            sheet.line((x, y - 0.07), (x, y + row.height + 0.26), zorder=4)
            room = sheet.length(box.text) / 2
            at = min(max(x, MARGIN + room), sheet.width - MARGIN - room)
            sheet.text(at, y + row.height + 0.55, box.text, color=CEILING)
        elif box.colour == "_":
            sheet.box(begin, y, width, row.height, linestyle="dashed", linewidth=0.8)
        elif box.colour != ".":
            sheet.cell(begin, middle - height / 2, width, height, COLOURS[box.colour])
            last = begin + width
        if box.text and box.colour != "!":
            if sheet.length(box.text) > width + 0.03:
                raise DrawingError(f"no room for '{box.text}'")
            sheet.text(begin + width / 2, middle, box.text, linespacing=1.15, **LOOKS.get(box.colour, {}))
        x += box.length * unit
    if row.words:
        sheet.text(x + 0.33, middle, row.words, ha="left")
    return y + row.height + GAP + 0.72 * any(box.colour == "!" for box in row.boxes)


def add(sheet: Sheet, y: float, text: str) -> float:
    """Draws the lines of a text from there downwards, and says where they end."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    scales: list[list[Row]] = [[]]
    rows: dict[int, tuple[Row, int]] = {}  # by line: the row, and its scale
    for number, line in enumerate(lines):
        if line.startswith("=="):
            scales.append([])
        elif line[0] not in "=:>":
            rows[number] = parse_row(line), len(scales) - 1
            scales[-1].append(rows[number][0])
    left = MARGIN + 0.25 + max((sheet.length(row.name) for row, _ in rows.values()), default=0)
    units = []
    for scale in scales:
        behind = {row: sheet.length(row.words) + 0.33 if row.words else 0 for row in scale}
        room = sheet.width - MARGIN - left
        units.append(min([LONGEST, *((room - behind[row]) / row.length for row in scale if row.length)]))
    for number, line in enumerate(lines):
        if number in rows:
            row, scale = rows[number]
            y = draw_row(sheet, y, row, left, units[scale])
        elif line[0] == "=":
            sheet.heading(MARGIN, y + 0.59, line.lstrip("= "))
            y += 1.11
        elif line[0] == ":":
            sheet.legend(y + 0.23, {box.text: COLOURS[box.colour] for box in parse_boxes(line[1:])}, MARGIN)
            y += 0.98
        else:
            sheet.note(y + 0.14, line[1:].strip(), MARGIN)
            y += 0.55
    return y


def draw(text: str) -> Sheet:
    title, _, lines = text.strip().partition("\n")
    sheet = Sheet(title, 0)
    sheet.height = add(sheet, 1.3, lines) + 0.26
    return sheet


def source(step: str) -> str:
    return (sources.ROOT / "steps" / step / "idea.txt").read_text(encoding="utf-8")


def draw_step(_: None, step: str) -> Sheet:
    try:
        return draw(source(step))
    except DrawingError as error:
        raise DrawingError(f"steps/{step}/idea.txt: {error}") from error


STEPS = {f"lesson_{step.split('_')[0]}.svg": step for step in sources.all_steps() if sources.has_idea(step)}
PICTURES = {name: partial(draw_step, step=step) for name, step in STEPS.items()}


def read(_: Path) -> None:
    for step in STEPS.values():
        for other, quote in re.findall(r"^# (?:(v\d+_\w+): )?(.*)$", source(step), re.MULTILINE):
            drawings.check_quotes(f"steps/{other or step}/kernel.cu", quote)
