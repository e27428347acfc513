"""The picture of v26, whose plots follow from a small model."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from draw import drawings
from draw.figure_style import BAR, CEILING, MUTED, NEUTRAL, TINTS, Q
from draw.sheet import Sheet

# ---- v26: no maximum

GROWN, LOST = 30, 100  # kGrownSum and kLostSum, as powers of two


def follow_sums(scores: list[float], careful: bool) -> tuple[list[float], list[str]]:
    """The logarithms of a row's sum, relative to its base, after each tile of keys whose largest scores are these,
    until it is lost; and what each tile does: M looks for maxima. A model of v26's rule, of one row."""
    base, log_sum, looks = scores[0], -math.inf, True
    sums, does = [], []
    for score in scores:
        if looks or careful:  # the base rises, to the largest score or by the sum's logarithm at least
            higher = max(base, score, base + log_sum)
            base, log_sum = higher, log_sum + base - higher
        does.append("M" if looks or careful else "·")
        log_sum = math.log2(2.0**log_sum + 2.0 ** (score - base))
        sums.append(log_sum)
        looks = log_sum > GROWN
        if log_sum >= LOST:  # the tile after makes the sum NaN, which is above nothing
            rest = len(scores) - len(sums)
            return sums, [*does[:-1], "×", *("M" if i == 0 else "·" for i in range(rest))]
    return sums, does


def draw_v26(_: None) -> Any:
    page = Sheet("A sum shows that the base is too low, without any maximum", 17.4)
    usual = [0, 1.4, 0.3, 2.1, -0.8, 1.7, 0.9, 2.4, 1.1, 0.4]
    rising = [0, 5, 12, 19, 28, 36, 42, 47, 50, 52]
    outlier = [0, 1.4, 0.3, 110, -0.8, 1.7, 0.9, 2.4, 1.1, 0.4]
    names = "nothing grows", "scores rise", "one score far above", "the same, second try"
    wide, left, top, tall = 5.2, 2.0, 3.1, 6.6
    colour_of = {"M": TINTS[1], "·": TINTS[2], "×": CEILING}

    def height_of(value: float) -> float:
        return top + tall * (1 - max(0, min(value, 115)) / 115)

    for index, (name, scores) in enumerate(zip(names, (usual, rising, outlier, outlier))):
        x = left + (wide + 1.1) * index
        page.heading(x, 2.2, name)
        page.box(x, top, wide, tall, facecolor="white")
        for value in (GROWN, LOST):
            page.line((x, height_of(value)), (x + wide, height_of(value)), linestyle="dashed", linewidth=1)
        sums, does = follow_sums(scores, careful=index == 3)
        cell = wide / len(scores)
        points = [(x + cell * (i + 0.5), height_of(value)) for i, value in enumerate(sums)]
        for line in pairwise(points):
            page.line(*line, color=BAR)
        for at, y in points:
            page.box(at - 0.1, y - 0.1, 0.2, 0.2, facecolor=BAR, edgecolor=BAR, zorder=4)
        if "×" in does:
            page.left(points[-1][0] + 0.25, top + 2.6, "from the next\ntile on NaN", color=CEILING)
        for i, what in enumerate(does):
            page.cell(x + cell * i, top + tall + 0.2, cell, 0.75, colour_of[what])
            look = {"color": "white", "weight": "bold"} if what == "×" else {}
            page.text(x + cell * (i + 0.5), top + tall + 0.57, what, **look)
    for value, name in ((0, "1"), (GROWN, f"2^{GROWN}"), (LOST, f"2^{LOST}")):
        page.text(left - 0.2, height_of(value), name, ha="right")
    page.text(0.45, top + tall / 2, "a row's sum of P", rotation=90, color=MUTED)
    page.text(left + wide / 2, top + tall + 1.35, "tiles of keys, last to first →", color=MUTED)
    what = "M: looks for maxima", "·: takes the base as it is", "×: overflow, O will not be stored"
    page.legend(11.9, dict(zip(what, colour_of.values())))

    page.heading(0.4, 13.6, "What the loader hands out when Q1 is lost")
    colour_of = {"Q1 again": TINTS[1], "pause": NEUTRAL, "end": NEUTRAL}
    for index, name in enumerate(("Q0", "Q1", "Q2", "Q1 again", "Q3", "pause", "pause", "end")):
        page.cell(0.4 + 3.3 * index, 14.3, 3.2, 0.8, colour_of.get(name, Q), name)
    page.text(8.65, 15.75, "meanwhile O of Q1 should be\nwritten, and is found lost", color=CEILING)
    page.text(20.2, 15.75, "a tile that is lost late\ncomes in place of a pause", color=MUTED)
    page.note(16.8, "A model of one row: ten tiles, whose largest scores are made up. The two limits are v26's.")
    return page


PICTURES = {"lesson_v26.svg": draw_v26}


def read(_: Path) -> None:
    limits = f"kGrownSum = 0x1p{GROWN}f, kLostSum = 0x1p{LOST}f;"
    drawings.check_quotes("common/blocks/online_softmax.h", limits)
