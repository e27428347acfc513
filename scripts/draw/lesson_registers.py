#!/usr/bin/env python3
"""Draws the pictures of lessons about what lanes hold, and what they do with it: v12, v13, v15, v19.

python3 scripts/draw/lesson_registers.py TOOL --out FOLDER     draws all pictures
python3 scripts/draw/lesson_registers.py TOOL --check FOLDER   are they what the mapping and this script say?

TOOL is the program that prints the mapping: build/ci/tools/fragment_layouts (common/emulator/tools/).
"""

from __future__ import annotations

import argparse
import math
import struct
import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings, fragment_layouts, lesson_page
from draw.drawings import LINE, MARK, TINTS
from draw.figure_style import BACKGROUND, BAR, CEILING, GRID, INK, MUTED
from draw.fragment_layouts import LANE, Mapping
from draw.lesson_page import NEUTRAL, OUTPUT, SCORES, SOFTMAX, Page, constants

# ---- Fragments of 16 x 16


def draw_fragment(
    page: Page, x: float, y: float, tiles: list[Any], wide: float, tall: float, marked: bool = True
) -> None:
    """Pairs of neighbouring columns, each with its lane; tinted by the register of 16-bit pairs that it becomes.
    Each of the tiles, side by side, is lane -> (row, column) of its elements."""
    column, register = 0, 0
    outlined = []
    for tile in tiles:
        for lane, positions in enumerate(tile):
            for pair in range(0, len(positions), 2):
                row, first = positions[pair]
                at = x + (column + first) / 2 * wide, y + row * tall
                page.cell(*at, wide, tall, TINTS[register + pair // 2], f"T{lane}")
                if lane == LANE and marked:
                    outlined.append(at)
        register += len(tile[0]) // 2
        column += 1 + max(first for lane in tile for _, first in lane)
    for at in outlined:
        page.box(*at, wide, tall, edgecolor=MARK, linewidth=2, zorder=8)


def draw_v12(plt: Any, mapping: Mapping) -> Any:
    before, of = constants("v11_cp_async"), constants("v12_whole_rows")
    page = Page(plt, 20.2, "A warp that owns whole rows keeps P in its registers")
    scale = 2.9 / 64
    for x, name, rows, across, keys in (
        (2.0, "v11", before["BLOCK_M"], before["WARPS_N"], before["BLOCK_N"]),
        (16.0, "v12", of["NUM_WARPS"] * of["WARP_M"], 1, of["BLOCK_N"]),
    ):
        page.heading(x, 1.9, f"{name}: S of {rows} × {keys}")
        wide, tall = 5.6 / across, of["WARP_M"] * scale
        for warp in range(rows // of["WARP_M"] * across):
            at = x + warp % across * wide, 2.6 + warp // across * tall
            page.cell(*at, wide, tall, TINTS[warp // across], f"warp {warp}")
            if warp % across == 0:
                first = warp // across * of["WARP_M"]
                page.text(
                    x - 0.2, at[1] + tall / 2, f"{first}–{first + of['WARP_M'] - 1}", ha="right", color=MUTED
                )
            if across == 2 and warp % 2:
                page.point((at[0] + 0.75, at[1] + 0.3), (at[0] - 0.75, at[1] + 0.3), arrowstyle="<|-|>")
    page.left(
        8.0,
        2.6,
        "Two warps have a row: they\nexchange maxima, and each\nstores P in shared memory for\nthe other. Two more barriers.",
        color=CEILING,
    )
    page.left(
        22.0,
        2.6,
        f"Nothing is\nexchanged, and a\ncopied tile serves\n{of['NUM_WARPS'] * of['WARP_M']} rows, not {before['BLOCK_M']}.",
    )

    page.heading(0.4, 9.4, "v12: two tiles of S, as lanes hold them …")
    page.heading(14.6, 9.4, "… are an operand A of P V")
    wide, tall = 1.48, 0.52
    for x in (0.9, 15.1):
        for row in (0, 8):
            page.text(x - 0.15, 10.9 + (row + 0.5) * tall, str(row), ha="right", color=MUTED)
    for i, name in enumerate(("acc of keys 0–7", "acc of keys 8–15")):
        page.text(0.9 + (4 * i + 2) * wide, 10.35, name)
    page.text(15.1 + 4 * wide, 10.35, "P: 16 rows × 16 keys")
    draw_fragment(page, 0.9, 10.9, [mapping["mma_c"], mapping["mma_c"]], wide, tall)
    draw_fragment(page, 15.1, 10.9, [mapping["mma_a"]], wide, tall)
    page.legend(19.5, {f"register a[{i}]": TINTS[i] for i in range(4)})
    page.text(
        page.width - 0.4,
        19.75,
        f"outlined: what T{LANE} holds, before and after rounding",
        ha="right",
        color=CEILING,
    )
    return page.figure


# ---- v13: the base of a row


def draw_path(page: Page, y: float, name: str, words: list[str], colour: str, x: float = 2.2) -> list[float]:
    """Boxes in a row, and where each begins."""
    page.text(x - 0.25, y + 0.35, name, ha="right", weight="bold")
    begins = []
    for i, word in enumerate(words):
        width = 0.225 * len(word) + 0.5
        begins.append(x)
        page.cell(x, y, width, 0.7, colour, word, edgecolor=LINE, linewidth=0.4)
        if i + 1 < len(words):
            page.point((x + width, y + 0.35), (x + width + 0.5, y + 0.35), color=INK)
        x += width + 0.5
    return [*begins, x]


def draw_v13(plt: Any) -> Any:
    growth = constants("v13_lazy_rescale")["MAX_GROWTH"]
    largest = [3.1, 5.0, 2.2, 20.4, 19.0]  # of one row, made up
    page = Page(plt, 19.0, "A base that stays: v13 rescales O only when a score outgrows it by more than 15")
    draw_path(
        page,
        1.8,
        "v12",
        ["max", "quad", "base", "row_scale", "O, l × row_scale", "FFMA", "exp2", "P"],
        NEUTRAL,
    )
    begins = draw_path(page, 3.1, "v13", ["max", "FFMA", "vote"], OUTPUT)
    rest = draw_path(page, 3.1, "", ["FFMA", "exp2", "P"], OUTPUT, x=16.4)
    page.point((begins[-1] - 0.5, 3.45), (rest[0], 3.45), color=INK)
    page.text((begins[-1] + rest[0]) / 2 - 0.3, 3.2, "no: nearly always")
    rare = draw_path(page, 4.6, "", ["mask?", "max", "quad", "base", "O, l × row_scale"], SOFTMAX, x=5.9)
    page.point((begins[2] + 0.5, 3.8), (rare[0] + 0.2, 4.6))
    page.point((rare[-1] - 0.5, 4.95), (rest[0] + 0.5, 3.8))
    page.text(rare[0] - 0.4, 4.95, "yes", ha="right", color=CEILING)

    page.heading(0.4, 6.3, "One row, five tiles of keys; scores in units of log2")
    left, top, wide, tall, least, most = 5.0, 6.9, 4.3, 6.6, -6, 40

    def at(tile: float, value: float) -> tuple[float, float]:
        return left + wide * tile, top + tall * (most - value) / (most - least)

    running, base, bases, runnings = -math.inf, -math.inf, [], []
    for value in largest:
        running = max(running, value)
        base = value if value - base > growth else base
        bases.append(base)
        runnings.append(running)
    page.box(left, top, wide * len(largest), tall, facecolor="white")
    for tile, base in enumerate(bases):
        page.box(
            *at(tile, base + growth),
            wide,
            tall * growth / (most - least),
            facecolor="#cfe8dd",
            edgecolor="#cfe8dd",
            zorder=1.5,
        )
        page.line(at(tile, base), at(tile + 1, base), color="#00755a", linewidth=2)
    for value in (0, 10, 20, 30, 40):
        page.text(left - 0.2, at(0, value)[1], str(value), ha="right", color=MUTED)
    page.axes.plot(
        *zip(*[at(tile + 0.5, value) for tile, value in enumerate(largest)]), "o", color=BAR, zorder=8
    )
    for tile, value in enumerate(largest):
        above = -0.32 if value >= bases[tile] else 0.4
        page.text(at(tile + 0.5, 0)[0] + 0.25, at(0, value)[1] + above, f"{value}", ha="left")
    page.text(
        left + 0.2,
        at(0, bases[0] + growth)[1] + 0.35,
        f"up to base + {growth}: the vote says no",
        ha="left",
        color="#00755a",
    )
    page.text(left + 0.2, at(0, bases[0])[1] + 0.32, "base", ha="left", color="#00755a")

    def factor(before: float, after: float) -> str:
        return "0" if before == -math.inf else "1" if before == after else f"2^−{after - before:.1f}"

    table = {
        "growth over the base": [],
        "vote: rescale?": [],
        "v13: O, l times": [],
        "v12: O, l times": [],
        "v13: largest p": [],
    }
    for tile, value in enumerate(largest):
        before = bases[tile - 1] if tile else -math.inf
        grown = value - before
        table["growth over the base"].append("+∞" if grown == math.inf else f"{grown:.1f}".replace("-", "−"))
        table["vote: rescale?"].append("yes" if grown > growth else "no")
        table["v13: O, l times"].append(factor(before, bases[tile]) if grown > growth else "–")
        table["v12: O, l times"].append(factor(runnings[tile - 1] if tile else -math.inf, runnings[tile]))
        table["v13: largest p"].append(f"{2 ** (value - bases[tile]):.1f}".removesuffix(".0"))
    y = top + tall + 0.5
    for name, row in table.items():
        page.text(left - 0.2, y, name, ha="right")
        for tile, word in enumerate(row):
            touched = word not in ("–", "no") and name in ("vote: rescale?", "v13: O, l times")
            look = {"weight": "bold", "color": CEILING} if touched else {}
            page.text(left + wide * (tile + 0.5), y, word, **look)
        y += 0.75
    page.note(
        y + 0.2, "Blue: the largest score of a tile. The scores are made up; the rest follows from them."
    )
    return page.figure


# ---- v15: maxima of integers


def draw_v15(plt: Any) -> Any:
    page = Page(plt, 15.7, "Floats compared as integers, three at a time")
    page.heading(0.4, 1.8, "The bits of a float, read as an integer")

    def bits(value: float) -> int:
        return struct.unpack("<i", struct.pack("<f", value))[0]

    values = [-2.5, -1.0, -0.0, 0.0, 1.0, 2.5]
    in_order = sorted(values, key=bits)

    def place(order: list[float], value: float) -> float:
        return 4.8 + 3.95 * [bits(each) for each in order].index(bits(value))

    page.text(0.4, 2.8, "floats", ha="left", weight="bold")
    page.text(0.4, 6.0, "integers", ha="left", weight="bold")
    for value in values:
        colour = BAR if bits(value) >= 0 else CEILING
        page.point((place(values, value), 3.2), (place(in_order, value), 5.6), color=colour, linewidth=1.6)
        page.text(place(values, value), 2.8, f"{value}".replace("-", "−"))
        page.text(place(in_order, value), 6.0, f"{bits(value):,}".replace("-", "−"))
        page.text(place(in_order, value), 6.5, f"{bits(value) & 0xFFFFFFFF:08x}", color=MUTED)
    page.text(place(values, -1.0), 7.3, "sign bit 1: the reverse order, but all below 0", color=CEILING)
    page.text(place(values, 1.0), 7.3, "sign bit 0: the order of the floats", color=BAR)
    page.heading(0.4, 8.6, "A row's 16 scores in a lane")
    step, x0 = 1.35, 5.4
    for y, name, each, first in ((10.6, "v14: FMNMX", 1, "−∞"), (13.5, "v15: VIMNMX3", 2, "0")):
        page.text(0.4, y + 0.35, name, ha="left", weight="bold")
        page.text(x0 - 0.45, y + 0.35, first, ha="right")
        for i in range(0, 16, each):
            x = x0 + step * i + step * (each - 1)
            for j in range(i, i + each):
                page.cell(x0 + step * j, y - 1.25, 1.1, 0.6, SCORES, f"s{j}")
                page.point(
                    (x0 + step * j + 0.55, y - 0.65),
                    (x + (0.4 if j < i + each - 1 else 0.7), y),
                    color=MUTED,
                    linewidth=0.9,
                )
            page.cell(x, y, 1.1, 0.7, SOFTMAX if each == 1 else OUTPUT, str(i // each + 1))
            begin = x0 - 0.4 if i == 0 else x - step * each + 1.1
            page.point((begin, y + 0.35), (x, y + 0.35), color=INK, linewidth=1)
    page.note(
        14.8,
        "A number counts instructions, each of which needs the result of the one before: 16 with two inputs, 8 with three.",
    )
    return page.figure


# ---- v19: stmatrix


def draw_v19(plt: Any, mapping: Mapping) -> Any:
    page = Page(plt, 18.6, "stmatrix stores 16 × 16 elements of O with one instruction instead of four")
    wide, tall, y = 1.44, 0.52, 3.6
    page.heading(0.4, 1.8, "who holds which 4 bytes")
    page.text(0.4, 2.5, "v18: a store for each tint, 4 bytes of each lane", ha="left")
    page.heading(14.6, 1.8, "who passes the address of which 16 bytes")
    page.text(14.6, 2.5, "v19: one stmatrix.x4 stores all four matrices", ha="left")
    draw_fragment(page, 1.0, y, [mapping["mma_c"], mapping["mma_c"]], wide, tall, marked=False)
    for lane in range(32):  # operand_row(lane) and operand_col(lane)
        row, chunk = lane % 16, lane // 16
        page.cell(15.2 + 4 * wide * chunk, y + row * tall, 4 * wide, tall, TINTS[lane // 8], f"T{lane}")
    for x in (1.0, 15.2):
        for i, name in enumerate(("columns 0–7", "columns 8–15")):
            page.text(x + (4 * i + 2) * wide, y - 0.35, name, color=MUTED)
        for row in (0, 8):
            page.text(x - 0.15, y + (row + 0.5) * tall, str(row), ha="right", color=MUTED)
    page.legend(12.3, {f"register {i}, matrix {i}": TINTS[i] for i in range(4)})

    y, cell = 14.6, 0.92
    page.heading(0.4, 13.5, "matrix 0 in shared memory: 8 rows, 8 places")
    for row in range(8):
        for chunk in range(8):
            here = chunk == row  # chunk 0 of a row lies at place 0 ^ row
            page.cell(
                1.0 + cell * chunk,
                y + 0.45 * row,
                cell,
                0.45,
                TINTS[0] if here else BACKGROUND,
                f"T{row}" if here else "",
                edgecolor=GRID,
            )
    page.text(1.0 + 4 * cell, y - 0.3, "32 banks, 4 to a place: one wavefront", color=MUTED)
    page.heading(14.6, 13.5, "a warp's O of 32 × 64, in all")
    blocks = 32 // 16 * 64 // 16
    for i, (name, each, waves, colour) in enumerate((("v18", 4, 1, SOFTMAX), ("v19", 1, 4, OUTPUT))):
        top = 14.4 + 1.7 * i
        page.text(15.9, top + 0.35, name, ha="right", weight="bold")
        count = blocks * each
        for j in range(count):
            page.box(
                16.1 + 10.6 / 32 * j * waves,
                top,
                10.6 / 32 * waves,
                0.7,
                facecolor=colour,
                edgecolor=BACKGROUND,
                linewidth=0.8,
            )
        page.text(16.1, top + 1.05, f"{count} instructions × {waves} wavefront{'s' * (waves > 1)}", ha="left")
    return page.figure


PICTURES: dict[str, Callable[[Any, Mapping], Any]] = {
    "lesson_v12.svg": draw_v12,
    "lesson_v13.svg": lambda plt, mapping: draw_v13(plt),
    "lesson_v15.svg": lambda plt, mapping: draw_v15(plt),
    "lesson_v19.svg": draw_v19,
}


def read(options: argparse.Namespace) -> tuple[Mapping, str]:
    mapping, text = drawings.ask(options.program, fragment_layouts.parse)
    numbers = [constants(step) for step in ("v11_cp_async", "v12_whole_rows", "v13_lazy_rescale")]
    return mapping, lesson_page.description(__file__, text, numbers)


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
