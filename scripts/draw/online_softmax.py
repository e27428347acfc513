"""How v01 goes through the keys of a row, from the outputs of a run.

All queries of the run are the same. With a causal mask the query in row i sees keys 0 to i, so its output is what v01
has after that key. V has a column for each key, which gives the key's weight, and one more for the O that is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy as np

from draw import attention_data
from draw.figure_style import BACKGROUND, INK, MUTED, P_PALE, P, S
from draw.sheet import LINE, MARK, Sheet

STEP, HEAD_DIM = "v01_scalar", 64
SCORES = (1, 0, 3, 2, 2, 5, 1, 4)  # in units of log2, so that every factor is a power of two
VALUES = (4, 8, 2, 6, 1, 3, 5, 7)  # of V, in the column of O that is shown


@dataclass(frozen=True)
class After:
    """What the thread has after a key."""

    row_max: int
    row_scale: float  # by which this key has shrunk the sums
    sums: list[float]  # what each key so far adds to row_sum
    o: float  # acc_o / row_sum


def stream(o: Any) -> list[After]:
    """From the outputs, [query, column]."""
    after: list[After] = []
    for row, score in enumerate(SCORES):
        row_max = max(SCORES[: row + 1])
        row_sum = 1 / o[row, : row + 1].max()  # as the largest score has p = 1
        row_scale = 2.0 ** (after[-1].row_max - row_max) if after else 0.0
        sums = [float(weight * row_sum) for weight in o[row, : row + 1]]
        after.append(After(row_max, row_scale, sums, float(o[row, len(SCORES)])))
    return after


def read(build: Path) -> list[After]:
    keys = len(SCORES)
    q, k, v = np.zeros((3, 1, 1, keys, HEAD_DIM))
    q[..., 0] = 1
    k[0, 0, :, 0] = np.array(SCORES) * math.log(2) * math.sqrt(HEAD_DIM)
    v[0, 0, :, :keys] = np.eye(keys)
    v[0, 0, :, keys] = VALUES
    bits = [attention_data.to_bits(x, "fp32") for x in (q, k, v)]
    o = attention_data.run_step(build, STEP, "fp32", True, *bits)
    return stream(attention_data.to_double(o, "fp32")[0, 0])


def power(x: float) -> str:
    return f"1/{round(1 / x)}" if x < 0.75 else "1"


def draw(after: list[After]) -> Any:
    grows = [key for key, state in enumerate(after) if key and state.row_scale < 1]
    words = (
        f"Scores are in units of log2. Keys {' and '.join(map(str, grows))} have larger scores than all keys before"
        " them: row_scale shrinks both sums."
    )
    sheet = Sheet("One thread, one row, eight keys: what v01 keeps, after each key", 18.3, words=words)
    left, pitch, bar = 5.0, 2.75, 1.1
    centres = [left + pitch * (key + 0.5) for key in range(len(after))]
    base, unit, sums_base, sums_unit = 6.6, 0.66, 14.6, 1.75
    for y, name, what in (
        (4.9, "score", "line: row_max"),
        (7.9, "row_scale", "exp2(old − new max)"),
        (9.2, "p", "exp2(score − row_max)"),
        (12.7, "row_sum", "strong: this key's p"),
        (15.9, "V, one column", ""),
        (17.1, "O so far", "acc_o / row_sum"),
    ):
        sheet.text(0.45, y - (0.25 if what else 0), name, ha="left", weight="bold")
        sheet.text(0.45, y + 0.3, what, ha="left", color=MUTED)
    for key, (x, state) in enumerate(zip(centres, after)):
        if key in grows:
            sheet.box(x - pitch / 2, 2.1, pitch, 15.7, facecolor="#fbe9df", edgecolor="none", zorder=0)
        sheet.text(x, 2.5, f"key {key}", weight="bold")
        sheet.box(x - bar / 2, base - unit * SCORES[key], bar, unit * SCORES[key], facecolor=S, edgecolor=INK)
        sheet.text(x, base + 0.4, str(SCORES[key]))
        level = base - unit * state.row_max
        sheet.polyline([(x - pitch / 2, level), (x + pitch / 2, level)], color=MARK, linewidth=1.8)
        look = {"color": MARK, "weight": "bold"} if key in grows else {}
        scale = "0" if key == 0 else power(state.row_scale)
        sheet.text(x, 7.9, f"× {scale}", **look)
        sheet.text(x, 9.2, power(state.sums[-1]))
        top = sums_base
        for other, share in enumerate(state.sums):
            tint = P if other == key else P_PALE
            top -= sums_unit * share
            sheet.box(x - bar / 2, top, bar, sums_unit * share, facecolor=tint, edgecolor=BACKGROUND, linewidth=0.8)
        if key in grows:
            before = sums_unit * sum(after[key - 1].sums)
            sheet.box(x - bar / 2, sums_base - before, bar, before, edgecolor=MARK, linestyle="dashed", linewidth=1.2)
            top = min(top, sums_base - before)
        sheet.text(x, top - 0.35, f"{sum(state.sums):.4g}")
        sheet.text(x, 15.9, str(VALUES[key]))
        sheet.text(x, 17.1, f"{state.o:.3g}", weight="bold")
    for y in (base, sums_base):
        sheet.polyline([(left, y), (left + pitch * len(after), y)], color=LINE, linewidth=0.8)
    sheet.text(0.45, 13.6, "dashed: before the", ha="left", color=MARK)
    sheet.text(0.45, 14.1, "rescaling", ha="left", color=MARK)
    return sheet


PICTURES: dict[str, Callable[[list[After]], Any]] = {"online_softmax.svg": draw}
