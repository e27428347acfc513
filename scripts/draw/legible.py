"""Whether a picture can be read on a page: letters are large enough, and none is cut off or lies on another.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

PAGE, LETTERS = 838, 11  # pixels: how wide a page is, which scales wider figures down, and the least height of type
POINT = 96 / 72  # pixels


@dataclass(frozen=True)
class Box:
    x0: float
    y0: float
    x1: float
    y1: float


Texts = dict[int, tuple[str, Any, float]]  # words, extent, size of type in points


@functools.cache
def advance(letter: str, bold: bool) -> float:
    """Of DejaVu Sans, which comes with matplotlib, at size 1."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf")))
    font.set_size(100, 72)
    return font.load_char(ord(letter)).linearHoriAdvance / 65536 / 100


def width(words: str, size: float, bold: bool = False) -> float:
    return sum(advance(letter, bold) for letter in words) * size


@contextlib.contextmanager
def noting_texts() -> Iterator[Texts]:
    """All texts that matplotlib draws to a file meanwhile (labels of ticks beyond an axis are not)."""
    from matplotlib.text import Text

    found: Texts = {}  # the last time that a text is drawn counts
    original = Text.draw

    def draw_and_note(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = (self.get_text(), Text.get_window_extent(self, renderer), self.get_size())
        original(self, renderer)

    with mock.patch.object(Text, "draw", draw_and_note):
        yield found


def faults(width: float, height: float, point: float, texts: Texts) -> list[str]:
    """Of a picture of that size, with a point of so many of its units."""
    found = []
    for words, box, size in texts.values():
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height:
            found.append(f"'{words}' is clipped")
        if pixels(size, width / point) < LETTERS:
            found.append(f"'{words}' is small")
    for (first, a, _), (second, b, _) in itertools.combinations(texts.values(), 2):
        # A point is what the extents have around the letters.
        if min(a.x1, b.x1) - max(a.x0, b.x0) > point and min(a.y1, b.y1) - max(a.y0, b.y0) > point:
            found.append(f"'{first}' overlaps '{second}'")
    return found


def pixels(size: float, width: float) -> float:
    """Of type of this size, in a figure of this width, both in points, on a page."""
    return size * min(POINT, PAGE / width)
