"""Whether a figure can be read on a page: letters are large enough, and none is cut off or lies on another.

It measures what matplotlib draws and changes nothing, so no figure is stale because of an edit here.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any, Iterator
from unittest import mock

PAGE, LETTERS = 838, 11  # pixels: how wide a page is, which scales wider figures down, and the least height of type
POINT = 96 / 72  # pixels

Texts = dict[int, tuple[str, Any, float]]  # words, extent in points, size of type


@contextlib.contextmanager
def noting_texts() -> Iterator[Texts]:
    """All texts that are drawn to an SVG meanwhile (labels of ticks beyond an axis are not)."""
    from matplotlib.text import Text

    found: Texts = {}  # the last time that a text is drawn counts
    original = Text.draw

    def draw_and_note(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = (self.get_text(), Text.get_window_extent(self, renderer), self.get_size())
        original(self, renderer)

    with mock.patch.object(Text, "draw", draw_and_note):
        yield found


def faults(figure: Any, texts: Texts) -> list[str]:
    width, height = (inches * 72 for inches in figure.get_size_inches())
    found = []
    for words, box, size in texts.values():
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height:
            found.append(f"'{words}' is clipped")
        if pixels(size, width) < LETTERS:
            found.append(f"'{words}' is small")
    for (first, a, _), (second, b, _) in itertools.combinations(texts.values(), 2):
        # A point is what the extents have around the letters.
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            found.append(f"'{first}' overlaps '{second}'")
    return found


def pixels(size: float, width: float) -> float:
    """Of type of this size, in a figure of this width, both in points, on a page."""
    return size * min(POINT, PAGE / width)


def smallest_letters(svg: str) -> float:
    """In pixels on a page, of a file that matplotlib wrote."""
    width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1])
    return pixels(min(map(float, re.findall(r"font-size: ([\d.]+)px", svg))), width)
