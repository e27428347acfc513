#!/usr/bin/env python3
"""Draws who holds what of ldmatrix and mma.sync, from the emulator's own mapping.

python3 scripts/draw/fragment_layouts.py TOOL --out FOLDER     draws all pictures
python3 scripts/draw/fragment_layouts.py TOOL --check FOLDER   are they what the mapping and this script say?

TOOL is the program that prints the mapping: build/ci/tools/fragment_layouts (common/emulator/tools/).
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings
from draw.drawings import LINE, MARK, TINTS, Sheet
from draw.figure_style import BACKGROUND, INK, MUTED

LANE = 6  # the one that the pictures follow
# Elements a lane holds, and rows and columns of the matrix.
SHAPES = {
    "ldmatrix": (2, 8, 8),
    "ldmatrix_trans": (2, 8, 8),
    "mma_a": (8, 16, 16),
    "mma_b": (4, 16, 8),
    "mma_c": (4, 16, 8),
}

Mapping = dict[str, list[list[tuple[int, int]]]]


def parse(text: bytes) -> Mapping:
    """name -> lane -> element -> (row, column)"""
    whole = json.loads(text)
    mapping = {name: [[tuple(position) for position in lane] for lane in whole[name]] for name in SHAPES}
    for name, (elements, rows, columns) in SHAPES.items():
        held = {position for lane in mapping[name] for position in lane}
        every = {(row, column) for row in range(rows) for column in range(columns)}
        if [len(lane) for lane in mapping[name]] != [elements] * 32 or held != every:
            raise ValueError(f"{name} does not hold every element of {rows} x {columns} once")
    return mapping


def read(options: argparse.Namespace) -> tuple[Mapping, str]:
    mapping, text = drawings.ask(options.program, parse)
    return mapping, drawings.description("fragment layouts", __file__, text)


class MatrixSheet(Sheet):
    """In units of matrix elements."""

    def fragment(
        self,
        x: float,
        y: float,
        lanes: list[list[tuple[int, int]]],
        per_register: int,
        label: Callable[[int, int], str],
        tint: Callable[[int], str],
        size: float = 6.5,
    ) -> None:
        """A matrix, a cell per register (per_register elements beside or below each other)."""
        marked = []
        for lane, positions in enumerate(lanes):
            for register in range(len(positions) // per_register):
                cell = positions[register * per_register : (register + 1) * per_register]
                (top, first), (bottom, last) = min(cell), max(cell)
                width, height = last - first + 1, bottom - top + 1
                self.box(x + first, y + top, width, height, facecolor=tint(register))
                self.text(x + first + width / 2, y + top + height / 2, label(lane, register), size)
                if lane == LANE:
                    marked.append((x + first, y + top, width, height))
        for cell in marked:  # on top of the neighbours' lines
            self.box(*cell, edgecolor=MARK, linewidth=2.2, zorder=4)

    def indices(self, x: float, y: float, count: int, downwards: bool, name: str) -> None:
        for i in range(count):
            place = (x, y + i + 0.5) if downwards else (x + i + 0.5, y)
            self.text(*place, str(i), 6, color=MUTED)
        end = (x, y + count + 0.4) if downwards else (x + count + 0.4, y)
        self.text(*end, name, 7.5, style="italic", weight="bold")


def draw_mma(plt: Any, mapping: Mapping) -> Any:
    """The three matrices of mma.m16n8k16, where a product on paper has them: B above C, A to its left."""
    sheet = MatrixSheet(plt, 28.4, 37.9)
    tint = TINTS.__getitem__
    sheet.left(0.6, 0.5, "mma.m16n8k16: acc += A B", 13, weight="bold")
    sheet.left(
        0.6,
        2.6,
        "A warp multiplies as one. Each of its 32 lanes, T0 to T31, holds\n"
        "a part of every matrix in its own registers.\n\n"
        "A cell is what one lane holds of one place: two neighbours.\n"
        "In A and B they share a 32-bit register, the first one in its\n"
        "lower half. In acc each is an FP32 register of its own.\n\n"
        "Four neighbouring lanes, a quad, hold a row of A and of acc\n"
        "(and the row 8 below), and a column of B.",
        8.5,
    )
    legend = ["a[0],  b[0],  acc[0] and acc[1]", "a[1],  b[1],  acc[2] and acc[3]", "a[2]", "a[3]"]
    for index, words in enumerate(legend):
        sheet.box(0.7, 10.6 + 1.3 * index, 1.4, 0.9, facecolor=TINTS[index])
        sheet.text(2.6, 11.05 + 1.3 * index, words, 8.5, ha="left")
    sheet.box(0.7, 15.8, 1.4, 0.9, edgecolor=MARK, linewidth=2.2)
    sheet.text(2.6, 16.25, f"all that T{LANE} holds", 8.5, ha="left")

    b_left, b_top = 19.4, 2.2
    a_left, a_top = 1.5, 20.8
    sheet.text(b_left + 4, 0.6, "B: 16 × 8 (k × n), 16-bit", 9.5, weight="bold")
    sheet.indices(b_left, b_top - 0.35, 8, downwards=False, name="n")
    sheet.indices(b_left - 0.5, b_top, 16, downwards=True, name="k")
    sheet.fragment(
        b_left,
        b_top,
        mapping["mma_b"],
        2,
        lambda lane, register: f"T{lane}\nb[{register}]",
        tint,
        6,
    )
    sheet.text(a_left + 8, 19.4, "A: 16 × 16 (m × k), 16-bit", 9.5, weight="bold")
    sheet.indices(a_left, a_top - 0.35, 16, downwards=False, name="k")
    sheet.indices(a_left - 0.5, a_top, 16, downwards=True, name="m")
    sheet.fragment(
        a_left, a_top, mapping["mma_a"], 2, lambda lane, register: f"T{lane} a[{register}]", tint
    )
    sheet.text(b_left + 4, 19.4, "acc: 16 × 8 (m × n), FP32", 9.5, weight="bold")
    sheet.indices(b_left, a_top - 0.35, 8, downwards=False, name="n")
    sheet.indices(b_left - 0.5, a_top, 16, downwards=True, name="m")
    sheet.fragment(
        b_left,
        a_top,
        mapping["mma_c"],
        2,
        lambda lane, pair: f"T{lane} acc[{2 * pair},{2 * pair + 1}]",
        tint,
        5.8,
    )
    return sheet.figure


def draw_ldmatrix(plt: Any, mapping: Mapping) -> Any:
    """What ldmatrix.x4 takes, and what it gives with and without .trans."""
    sheet = MatrixSheet(plt, 28.5, 26.6)
    title = "ldmatrix.x4: four 8 × 8 matrices from shared memory into registers"
    sheet.left(0.6, 0.5, title, 13, weight="bold")
    sheet.left(0.6, 2.2, "1   Every lane hands in the address of one row: 8 elements of 16 bits.", 9)
    sheet.left(
        0.6, 13.0, "2   Every lane receives two elements of each matrix, in one register per matrix.", 9
    )
    for matrix in range(4):
        x, y = 1.0 + 7.0 * matrix, 4.6
        sheet.text(x + 3.0, y - 0.6, f"matrix {matrix}: registers[{matrix}]", 8.5, weight="bold")
        for row in range(8):
            lane = 8 * matrix + row
            sheet.text(x + 0.4, y + (row + 0.5) * 0.9, f"T{lane}", 7.5)
            sheet.arrow((x + 0.9, y + (row + 0.5) * 0.9), (x + 1.9, y + (row + 0.5) * 0.9))
            sheet.box(x + 1.9, y + row * 0.9, 4.1, 0.9, facecolor=TINTS[matrix])
            sheet.text(x + 3.95, y + (row + 0.5) * 0.9, f"row {row}", 7.5)
            if lane == LANE:
                sheet.box(x - 0.2, y + row * 0.9, 6.2, 0.9, edgecolor=MARK, linewidth=2.2, zorder=4)
    row, column = mapping["ldmatrix"][LANE][0][0], mapping["ldmatrix_trans"][LANE][0][1]
    for x, name, title, gist in (
        (1.9, "ldmatrix", "ldmatrix", f"two neighbours of a row: T{LANE}'s is row {row}"),
        (
            16.9,
            "ldmatrix_trans",
            "ldmatrix .trans",
            f"two neighbours of a column: T{LANE}'s is column {column}",
        ),
    ):
        sheet.text(x + 5, 14.9, title, 9.5, weight="bold")
        sheet.text(x + 5, 15.7, gist, 8.5)
        # The cells are wider than high, so that text fits: the matrix is stretched to 10 x 8.
        for i in range(8):
            sheet.text(x + 1.25 * (i + 0.5), 16.55, str(i), 6, color=MUTED)
            sheet.text(x - 0.45, 17.0 + i + 0.5, str(i), 6, color=MUTED)
        for marked in (False, True):
            for lane, positions in enumerate(mapping[name]):
                if marked and lane != LANE:
                    continue
                (top, first), (bottom, last) = min(positions), max(positions)
                cell = (
                    x + 1.25 * first,
                    17.0 + top,
                    1.25 * (last - first + 1),
                    bottom - top + 1,
                )
                if marked:
                    sheet.box(*cell, edgecolor=MARK, linewidth=2.2, zorder=4)
                    continue
                sheet.box(*cell, facecolor=TINTS[0])
                sheet.text(cell[0] + cell[2] / 2, cell[1] + cell[3] / 2, f"T{lane}", 7.5)
    sheet.left(
        0.6,
        25.4,
        "Both show matrix 0 as it lies in shared memory. The first element of a pair goes into the register's"
        " lower half.",
        8.5,
        color=MUTED,
    )
    return sheet.figure


# How attention's four operands lie in shared memory, and which of mma's operands they become. For each 8 x 8
# block of what is stored: the register of ldmatrix.x4 that takes it is found from mma's own mapping.
def operand_blocks(mapping: Mapping, operand: str) -> dict[tuple[int, int], int]:
    """(block row, block column) of the 16 x 16 block as stored -> register of ldmatrix.x4."""
    blocks = {}
    if operand in ("q", "p"):  # stored as A is: row, k
        for register in range(4):
            row, k = mapping["mma_a"][0][2 * register]
            blocks[row // 8, k // 8] = register
        return blocks
    for n_tile in range(2):  # two B operands, each with its registers for the lower and the upper k
        for register in range(2):
            k, _ = mapping["mma_b"][0][2 * register]
            block = (n_tile, k // 8) if operand == "k" else (k // 8, n_tile)
            blocks[block] = 2 * n_tile + register
    return blocks


def stored_position(
    mapping: Mapping, operand: str, lane: int, register: int, element: int
) -> tuple[int, int]:
    """Where in the stored 16 x 16 block the element lies that the product wants in this register."""
    if operand in ("q", "p"):
        return mapping["mma_a"][lane][2 * register + element]
    n_tile = register // 2
    k, n = mapping["mma_b"][lane][2 * (register % 2) + element]
    return (8 * n_tile + n, k) if operand == "k" else (k, 8 * n_tile + n)


def draw_attention(plt: Any, mapping: Mapping) -> Any:
    """Q, K, P, V as stored: which rows a lane hands to ldmatrix, and what it is to get."""
    sheet = MatrixSheet(plt, 28.5, 36.6)
    sheet.left(0.6, 0.5, "Attention: K needs no .trans, V does", 13, weight="bold")
    sheet.left(
        0.6,
        2.2,
        "Each square is 16 × 16 elements as they lie in shared memory: four 8 × 8 matrices for the four "
        "registers\n"
        "of one ldmatrix.x4, with the lanes that hand in their rows beside them. Outlined: what "
        f"T{LANE} is to get. A product\n"
        "sums over k, and a register of A or B holds two neighbours along k. In Q, K and P they lie side by "
        "side.\nIn V they lie in two rows.",
        8.5,
    )
    panels = (
        (3.2, 8.6, "q", "Q is A of S = Q Kᵀ", "ldmatrix_x4", "query = m", "d = k"),
        (17.2, 8.6, "k", "K is B of S = Q Kᵀ", "ldmatrix_x4", "key = n", "d = k"),
        (3.2, 23.7, "p", "P is A of O = P V", "ldmatrix_x4", "query = m", "key = k"),
        (17.2, 23.7, "v", "V is B of O = P V", "ldmatrix_x4_trans", "key = k", "d = n"),
    )
    cell = 0.62
    block = 8 * cell
    for x, y, operand, title, function, down, across in panels:
        transposed = function.endswith("_trans")
        sheet.text(x + block, y - 2.5, title, 10, weight="bold")
        sheet.text(x + block, y - 1.55, function, 9, color=MARK if transposed else INK)
        for place, name, angle in (
            ((x + block, y - 0.55), across, 0),
            ((x - 1.6, y + block), down, 270),
        ):
            look = {"weight": "bold"} if name.endswith("= k") else {"color": MUTED}
            sheet.text(*place, f"{name}  →", 8, rotation=angle, **look)
        for (block_row, block_column), register in operand_blocks(mapping, operand).items():
            left, top = x + block * block_column, y + block * block_row
            sheet.box(left, top, block, block, facecolor=TINTS[register], edgecolor=INK, linewidth=0.8)
            if operand in "qp":
                name = f"a[{register}]"
            else:
                n = 8 * (register // 2)
                name = f"b[{register % 2}], {'keys' if operand == 'k' else 'd'} {n}–{n + 7}"
            sheet.text(
                left + block / 2,
                top + 6.5 * cell,
                f"registers[{register}]\n= {name}",
                7,
                zorder=3,
                bbox={"facecolor": TINTS[register], "edgecolor": "none", "pad": 1.5},
            )
            sheet.text(
                left + (-0.6 if block_column == 0 else block + 0.6),
                top + block / 2,
                f"T{8 * register} … T{8 * register + 7}",
                7.5,
                rotation=270,
            )
            positions = [stored_position(mapping, operand, LANE, register, element) for element in range(2)]
            (first_row, first), (last_row, last) = min(positions), max(positions)
            sheet.box(
                x + first * cell,
                y + first_row * cell,
                (last - first + 1) * cell,
                (last_row - first_row + 1) * cell,
                facecolor=BACKGROUND,
                edgecolor=MARK,
                linewidth=2.2,
                zorder=4,
            )
            for position, half in zip(positions, ("lo", "hi")):
                sheet.text(
                    x + (position[1] + 0.5) * cell, y + (position[0] + 0.5) * cell, half, 6, zorder=5
                )
        lines: tuple[list[float], list[float]] = ([], [])
        for i in range(17):
            at = i * cell
            lines[0].extend((x, x + 2 * block, float("nan"), x + at, x + at, float("nan")))
            lines[1].extend((y + at, y + at, float("nan"), y, y + 2 * block, float("nan")))
        sheet.axes.plot(*lines, color=LINE, linewidth=0.35, zorder=2)
    sheet.left(
        0.6,
        35.4,
        f"lo, hi: the lower and the upper half of a register. T{LANE} hands in one row and receives parts of"
        " rows that others hand in.",
        8,
        color=MUTED,
    )
    return sheet.figure


PICTURES: dict[str, Callable[[Any, Mapping], Any]] = {
    "fragments_mma.svg": draw_mma,
    "fragments_ldmatrix.svg": draw_ldmatrix,
    "fragments_attention.svg": draw_attention,
}


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
