"""Pictures of boxes, lines and words, written as SVG: an element on a line, and its look in a class."""

from __future__ import annotations

import functools
import itertools
import math
from collections import namedtuple
from html import escape
from pathlib import Path
from typing import Any, Iterable

from draw.figure_style import BACKGROUND, CEILING, DARK, HATCH, HEADING, IDLE, INK, MUTED, NOTE, TITLE, WIDTH

LINE, MARK = "#8c8c88", CEILING
PIXELS = 96  # of an inch
POINT = PIXELS / 72  # what sizes of type and widths of lines are in
PAGE, LETTERS = 838, 11  # pixels: how wide a page is, which scales wider figures down, and the least height of type
FONTS = "'DejaVu Sans',Arial,Helvetica,sans-serif"
ANCHORS = {"left": "start", "center": "middle", "right": "end"}

PATTERN = (
    '<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="5" height="5" fill="{{colour}}"/><path d="M0 0V5" stroke="{HATCH}" stroke-width="1.4"/></pattern>'
)
HEAD = (
    '<marker id="{name}" viewBox="0 0 10 8" refX="9" refY="4" markerWidth="10" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L10 4L0 8z" fill="{colour}"/></marker>'
)

Place = tuple[float, float]


def short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".").replace("-0.", "-.").removeprefix("0") or "0"


Extent = namedtuple("Extent", "x0 y0 x1 y1")
Texts = dict[int, tuple[str, Any, float]]  # words, extent, size of type in points


@functools.cache
def advance(letter: str, bold: bool) -> float:
    """Of DejaVu Sans, which comes with matplotlib, at size 1."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf")))
    font.set_size(100, 72)
    return font.load_char(ord(letter)).linearHoriAdvance / 65536 / 100


def text_width(words: str, size: float, bold: bool = False) -> float:
    return sum(advance(letter, bold) for letter in words) * size


def faults_of(width: float, height: float, point: float, texts: Texts) -> list[str]:
    """Of a picture of that size, with a point of so many of its units."""
    found = []
    for words, box, size in texts.values():
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height:
            found.append(f"'{words}' is clipped")
        if size * min(POINT, PAGE / (width / point)) < LETTERS:
            found.append(f"'{words}' is small")
    for (first, a, _), (second, b, _) in itertools.combinations(texts.values(), 2):
        # A point is what the extents have around the letters.
        if min(a.x1, b.x1) - max(a.x0, b.x0) > point and min(a.y1, b.y1) - max(a.y0, b.y0) > point:
            found.append(f"'{first}' overlaps '{second}'")
    return found


class Sheet:
    """A picture as wide as a page, in units of its own: it is `width` of them wide. y goes downwards. By default a unit
    is 0.32 inches, enough for two lines of text. There may be words below the title.

    What has a higher zorder lies on top; boxes have 1, lines and arrows 2, and texts 3 unless they say otherwise."""

    def __init__(self, title: str, height: float, width: float = 27.25, words: str = ""):
        self.width, self.height = width, height
        self.unit = PIXELS * WIDTH / width
        self.drawn: list[tuple[float, str]] = []
        self.looks: dict[str, str] = {}  # of a class -> its name
        self.patterns: dict[str, str] = {}  # colour under the hatching -> name
        self.heads: dict[str, str] = {}  # colour of an arrow -> name
        self.texts: Texts = {}
        self.rules: list[str] = []  # CSS of a picture that moves
        inch = PIXELS / self.unit
        self.left(0.14 * inch, 0.12 * inch, title, TITLE, weight="bold")
        self.left(0.14 * inch, 0.42 * inch, words)

    def text(self, x: float, y: float, text: str, size: float = NOTE, **how: Any) -> None:
        """Of one or more lines. A halo, of the colour that is behind it, keeps lines off the letters. With a `length`
        every font fills just that."""
        how = {"ha": "center", "va": "center", "color": INK, "linespacing": 1.35, "rotation": 0, "zorder": 3} | how
        letters = size * POINT
        look = f"font-size:{short(letters)}px"
        for name in ("weight", "style", "family"):
            look += f";font-{name}:{how[name]}" if name in how else ""
        look += f";fill:{how['color']}" if how["color"] != INK else ""
        look += f";text-anchor:{ANCHORS[how['ha']]}" if how["ha"] != "left" else ""
        if "halo" in how:
            look += f";paint-order:stroke;stroke:{how['halo']};stroke-width:5px"
        lines, pitch = text.split("\n"), letters * how["linespacing"]
        x, y = x * self.unit, y * self.unit
        first = 0.36 * letters - pitch * (len(lines) - 1) / 2 if how["va"] == "center" else 0.95 * letters
        more = f' transform="rotate({-how["rotation"]} {short(x)} {short(y)})"' if how["rotation"] else ""
        more += f' textLength="{short(how["length"] * self.unit)}"' if "length" in how else ""
        for index, line in enumerate(lines):
            if line:
                at = y + first + pitch * index
                classes = self.classes(look, how)
                words = f'<text class="{classes}" x="{short(x)}" y="{short(at)}"{more}>{escape(line)}</text>'
                self.drawn.append((how["zorder"], words))
                self.measure(line, x, at, first + pitch * index, size, how)

    def measure(self, words: str, x: float, y: float, down: float, size: float, how: dict[str, Any]) -> None:
        """Where the letters are, for faults()."""
        letters = size * POINT
        wide = text_width(words, letters, how.get("weight") == "bold")
        wide = how["length"] * self.unit if "length" in how else wide
        begin = {"left": 0.0, "center": -wide / 2, "right": -wide}[how["ha"]]
        top, bottom = y - 0.73 * letters, y + 0.2 * letters
        box = x + begin, top, x + begin + wide, bottom
        if how["rotation"]:  # by a quarter, about (x, y - down), and centred
            box = x + down + top - y, y - down + begin, x + down + bottom - y, y - down + begin + wide
        self.texts[len(self.texts)] = (words, Extent(*box), size)

    def left(self, x: float, y: float, text: str, size: float = NOTE, **how: Any) -> None:
        self.text(x, y, text, size, **{"ha": "left", "va": "top", **how})

    def box(self, x: float, y: float, width: float, height: float, **how: Any) -> None:
        how = {"facecolor": "none", "edgecolor": LINE, "linewidth": 0.5, "zorder": 1} | how
        fill = self.pattern(how["facecolor"]) if how.get("hatch") else how["facecolor"]
        look = f"fill:{fill}" + self.stroke(how["edgecolor"], how["linewidth"], how.get("linestyle"))
        sides = " ".join(
            f'{name}="{short(value * self.unit)}"'
            for name, value in (("x", x), ("y", y), ("width", width), ("height", height))
        )
        self.drawn.append((how["zorder"], f'<rect class="{self.classes(look, how)}" {sides}/>'))

    def polyline(self, points: Iterable[Place], **how: Any) -> None:
        self.path("M" + "L".join(f"{short(x * self.unit)} {short(y * self.unit)}" for x, y in points), **how)

    def grid(self, x: float, y: float, width: float, height: float, columns: int, rows: int) -> None:
        """Thin lines between the elements of a matrix, which lie on what is below them."""
        path = ""
        for column in range(1, columns):
            at = x + width * column / columns
            path += f"M{short(at * self.unit)} {short(y * self.unit)}v{short(height * self.unit)}"
        for row in range(1, rows):
            at = y + height * row / rows
            path += f"M{short(x * self.unit)} {short(at * self.unit)}h{short(width * self.unit)}"
        self.path(path, color=LINE, linewidth=0.35)

    def arrow(self, start: Place, end: Place, both: bool = False, bend: float = 0, gap: float = 2, **how: Any) -> None:
        """`gap` points are left free at both ends. Bent, its middle lies aside by that share of its length."""
        x0, y0, x1, y1 = (value * self.unit for value in (*start, *end))
        length = math.hypot(x1 - x0, y1 - y0)
        right, down = (x1 - x0) / length, (y1 - y0) / length
        free = gap * POINT
        begin, stop = (x0 + right * free, y0 + down * free), (x1 - right * free, y1 - down * free)
        path = f"M{short(begin[0])} {short(begin[1])}"
        if bend:
            middle = (x0 + x1) / 2 - down * length * bend, (y0 + y1) / 2 + right * length * bend
            path += f"Q{short(middle[0])} {short(middle[1])} "
        else:
            path += "L"
        path += f"{short(stop[0])} {short(stop[1])}"
        how = {"color": MUTED, "linewidth": 1.2, **how}
        name = self.heads.setdefault(how["color"], f"a{len(self.heads)}")
        self.path(path, f";marker-end:url(#{name})" + f";marker-start:url(#{name})" * both, **how)

    def path(self, path: str, more: str = "", **how: Any) -> None:
        how = {"color": LINE, "linewidth": 1.0, "zorder": 2, **how}
        look = "fill:none" + self.stroke(how["color"], how["linewidth"], how.get("linestyle")) + more
        self.drawn.append((how["zorder"], f'<path class="{self.look(look)}" d="{path}"/>'))

    def stroke(self, colour: str, width: float, dashes: str | None) -> str:
        if colour == "none" or not width:
            return ""
        dashed = {None: "", "dashed": ";stroke-dasharray:5 3", "dotted": ";stroke-dasharray:1.5 2.5"}[dashes]
        return f";stroke:{colour};stroke-width:{short(width * POINT)}{dashed}"

    def pattern(self, colour: str) -> str:
        return f"url(#{self.patterns.setdefault(colour, f'h{len(self.patterns)}')})"

    def look(self, look: str) -> str:
        return self.looks.setdefault(look, f"c{len(self.looks)}")

    def classes(self, look: str, how: dict[str, Any]) -> str:
        """With the class that one of the rules moves, if it is to move."""
        return " ".join([self.look(look), *([how["moves"]] if "moves" in how else [])])

    def svg(self) -> str:
        wide, high = (short(size * self.unit) for size in (self.width, self.height))
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">']
        lines += ["<style>", f"text{{font-family:{FONTS};fill:{INK}}}"]
        lines += [f".{name}{{{look}}}" for look, name in self.looks.items()]
        lines += [*self.rules, DARK, "</style>"]
        lines += [PATTERN.format(name=name, colour=colour) for colour, name in self.patterns.items()]
        lines += [HEAD.format(name=name, colour=colour) for colour, name in self.heads.items()]
        lines += [f'<rect width="100%" height="100%" fill="{BACKGROUND}"/>']
        lines += [element for _, element in sorted(self.drawn, key=lambda each: each[0])]
        return "\n".join([*lines, "</svg>\n"])

    def faults(self) -> list[str]:
        """What cannot be read of it."""
        return faults_of(self.width * self.unit, self.height * self.unit, POINT, self.texts)

    # Of boxes with words in them.

    def heading(self, x: float, y: float, text: str, **how: Any) -> None:
        self.text(x, y, text, HEADING, **{"ha": "left", "weight": "bold", **how})

    def note(self, y: float, text: str, x: float = 0.4) -> None:
        self.left(x, y, text, color=MUTED)

    def names(self, x: float, y: float, names: Iterable[Any], across: float = 0, down: float = 0, **how: Any) -> None:
        """Along an edge of a matrix: the middle of the first, and from there to each next one."""
        for index, name in enumerate(names):
            self.text(x + index * across, y + index * down, str(name), **{"color": MUTED, **how})

    def mark(self, x: float, y: float, width: float, height: float) -> None:
        """An outline, on top of the neighbours' lines."""
        self.box(x, y, width, height, edgecolor=MARK, linewidth=2.2, zorder=4)

    def length(self, text: str) -> float:
        """Of its longest line."""
        return max(text_width(line, NOTE * POINT) for line in text.split("\n")) / self.unit

    def cell(self, x: float, y: float, width: float, height: float, colour: str, *texts: str, **how: Any) -> None:
        """With the first of the texts that has room. What is idle is hatched."""
        idle = {"edgecolor": LINE, "linewidth": 0.5, "hatch": True} if colour == IDLE else {}
        self.box(x, y, width, height, **({"facecolor": colour, "edgecolor": BACKGROUND, "linewidth": 0.8} | idle | how))
        for text in texts:
            if self.length(text) + 0.1 <= width and (text.count("\n") + 1) * 0.46 <= height + 0.05:
                self.text(x + width / 2, y + height / 2, text, linespacing=1.15, **({"halo": IDLE} if idle else {}))
                break

    def line(self, start: Place, end: Place, **how: Any) -> None:
        self.polyline([start, end], **{"color": CEILING, "linewidth": 1.3, **how})

    def point(self, start: Place, end: Place, **how: Any) -> None:
        """An arrow that is meant to be seen."""
        self.arrow(start, end, **{"color": CEILING, "linewidth": 1.3, "gap": 0, **how})

    def legend(self, y: float, entries: dict[str, str], x: float = 0.4) -> None:
        """Words -> colour."""
        for words, colour in entries.items():
            self.box(x, y, 0.8, 0.5, facecolor=colour, edgecolor=LINE, linewidth=0.4, hatch=colour == IDLE)
            self.text(x + 1.0, y + 0.25, words, ha="left")
            x += 1.6 + self.length(words)
