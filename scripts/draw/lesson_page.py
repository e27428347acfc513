"""What the pictures of lessons are drawn with: a page of the width at which lessons are shown, so that nothing is
scaled down; boxes with as much text as they have room for; rows of bars over time; constants of a step's kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draw import drawings
from draw.drawings import LINE, Sheet
from draw.figure_style import BACKGROUND, CEILING, MUTED, NOTE
from steps import sources

# Okabe and Ito's, and tints of them where text stands on it. They mean the same in all lessons.
COPY, READY, SCORES, SOFTMAX, OUTPUT, WAIT = "#d9a3c1", "#f3e3ec", "#7db8dc", "#f0c664", "#72c7a6", "#e9e9e5"
Q_TINT, NEUTRAL = "#c9c6ec", "#d4d4cf"
LETTER = 0.218  # the mean width of a letter of size NOTE, in units of a page


def source(step: str) -> str:
    return (sources.ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8")


def constants(step: str) -> dict[str, int]:
    """Those that a kernel gives as plain numbers: BLOCK_M = 64."""
    found = re.findall(r"constexpr \w+ (\w+) = (\d+)(?:\.0f)?;", source(step))
    return {name: int(value) for name, value in found}


@dataclass(frozen=True)
class StreamConfig:
    """What a kernel of the part Hopper gives as template arguments of that name."""

    head_dim: int
    pipelines: int
    warpgroups: int  # of each pipeline, of 64 queries each
    keys: int
    takes_turns: bool


def stream_configs(step: str) -> dict[tuple[int, str], StreamConfig]:
    """By head dimension and the kernel's name for it."""
    pattern = r"using (\w+) = std::conditional_t<D64, StreamConfig<(.*?)>,\s*StreamConfig<(.*?)>>;"
    found = {}
    for name, *both in re.findall(pattern, source(step)):
        for arguments in both:
            numbers = arguments.split(", ")
            config = StreamConfig(*map(int, numbers[:4]), numbers[6] == "true")
            found[config.head_dim, name] = config
    return found


def description(script: str, *data: Any) -> str:
    """What a lesson's picture carries, made by this script, of bytes and of numbers from kernels."""
    return drawings.description("lesson", script, Path(__file__).read_bytes(), repr(data).encode())


class Page(Sheet):
    """A unit is 0.32 inches, enough for two lines of text."""

    def __init__(self, plt: Any, height: float, title: str):
        self.width = 27.25
        super().__init__(plt, self.width, height)
        self.title(title)

    def text(self, x: float, y: float, text: str, size: float = NOTE, **how: Any) -> None:
        super().text(x, y, text, size, **how)

    def left(self, x: float, y: float, text: str, size: float = NOTE, **how: Any) -> None:
        super().left(x, y, text, size, **how)

    def heading(self, x: float, y: float, text: str, **how: Any) -> None:
        self.text(x, y, text, 9, **{"ha": "left", "weight": "bold", **how})

    def note(self, y: float, text: str, x: float = 0.4) -> None:
        self.left(x, y, text, NOTE, color=MUTED)

    def cell(
        self, x: float, y: float, width: float, height: float, colour: str, *texts: str, **how: Any
    ) -> None:
        """With the first of the texts that has room."""
        look = {"facecolor": colour, "edgecolor": BACKGROUND, "linewidth": 0.8, **how}
        self.box(x, y, width, height, **look)
        for text in texts:
            lines = text.split("\n")
            if max(map(len, lines)) * LETTER + 0.1 <= width and len(lines) * 0.46 <= height + 0.05:
                self.text(x + width / 2, y + height / 2, text, zorder=6, linespacing=1.15)
                return

    def idle(self, x: float, y: float, width: float, height: float, *texts: str) -> None:
        look = {"edgecolor": LINE, "linewidth": 0.5, "hatch": "////"}
        self.cell(x, y, width, height, WAIT, **look)
        for text in texts:
            if len(text) * LETTER + 0.3 <= width:
                box = {"facecolor": WAIT, "edgecolor": "none", "pad": 1.2}
                self.text(x + width / 2, y + height / 2, text, zorder=6, bbox=box)
                return

    def line(self, start: tuple[float, float], end: tuple[float, float], **how: Any) -> None:
        how = {"color": CEILING, "linewidth": 1.3, "zorder": 7, **how}
        self.axes.plot([start[0], end[0]], [start[1], end[1]], **how)

    def point(self, start: tuple[float, float], end: tuple[float, float], **how: Any) -> None:
        """An arrow that is meant to be seen."""
        self.arrow(start, end, **{"color": CEILING, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0, **how})

    def mark(self, x: float, y: float, letter: str) -> None:
        box = {"boxstyle": "circle,pad=0.2", "facecolor": CEILING, "edgecolor": BACKGROUND, "linewidth": 0.8}
        self.text(x, y, letter, color="white", weight="bold", zorder=9, bbox=box)

    def legend(self, y: float, entries: dict[str, str], x: float = 0.4) -> None:
        """Words -> colour."""
        for words, colour in entries.items():
            hatch = "////" if colour == WAIT else None
            self.box(x, y, 0.8, 0.5, facecolor=colour, edgecolor=LINE, linewidth=0.4, hatch=hatch)
            self.text(x + 1.0, y + 0.25, words, ha="left")
            x += 1.5 + len(words) * LETTER

    def rows(self, left: float, begin: float, end: float, right: float = 0.4) -> Rows:
        return Rows(self, left, self.width - right, begin, end)


class Rows:
    """Rows of bars over time, between two edges of a page."""

    def __init__(self, page: Page, left: float, right: float, begin: float, end: float):
        self.page, self.left, self.right, self.begin, self.end = page, left, right, begin, end
        self.unit = (right - left) / (end - begin)

    def at(self, time: float) -> float:
        return self.left + (min(max(time, self.begin), self.end) - self.begin) * self.unit

    def name(self, y: float, name: str, **how: Any) -> None:
        self.page.text(self.left - 0.25, y, name, **{"ha": "right", **how})

    def bar(
        self, y: float, begin: float, end: float, colour: str, *texts: str, height: float = 0.75, **how: Any
    ) -> None:
        x = self.at(begin)
        if (width := self.at(end) - x) > 0:
            draw = self.page.idle if colour == WAIT else self.page.cell
            draw(x, y - height / 2, width, height, *(() if colour == WAIT else (colour,)), *texts, **how)

    def axis(self, y: float, text: str) -> None:
        self.page.text(self.right, y, text + "  →", ha="right", color=MUTED)
