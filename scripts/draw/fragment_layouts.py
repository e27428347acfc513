"""Who holds what of ldmatrix, mma.sync, stmatrix and wgmma, from the emulator's own mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from draw import drawings, ideas
from draw.figure_style import BACKGROUND, BAR, CEILING, HEADING, INK, KV, MUTED, NEUTRAL, TINTS, O, P, Q, S
from draw.sheet import MARK, Sheet

LANE = 6  # the one that the pictures follow

Lanes = list[list[list[int]]]  # lane -> element -> row, column
Mapping = dict[str, Lanes]


def read(build: Path) -> Mapping:
    drawings.check_quotes("steps/v11_cp_async/kernel.cu", "BLOCK_M = 64;", "BLOCK_N = 64;", "WARPS_N = 2;")
    drawings.check_quotes("steps/v12_whole_rows/kernel.cu", "NUM_WARPS = 4;", "WARP_M = 32;", "BLOCK_N = 64;")
    drawings.check_quotes("steps/v21_wgmma/kernel.cu", "WARPGROUP_M = 64;", "BLOCK_N = 128;")
    return drawings.ask_layouts(build, "fragments")


def fragment(
    sheet: Sheet,
    x: float,
    y: float,
    lanes: Lanes,
    wide: float,
    tall: float,
    name: Callable[[int], str] | None = None,
    first: int = 0,
    mark: bool = True,
) -> None:
    """A matrix of elements so wide and tall: for each register, whose numbers begin with `first`, a cell of two
    neighbours with its lane. Those of LANE are outlined, and may have names."""
    for lane, positions in enumerate(lanes):
        for register in range(len(positions) // 2):
            (top, left), (bottom, right) = sorted(positions[2 * register : 2 * register + 2])
            place = x + left * wide, y + top * tall, (right - left + 1) * wide, (bottom - top + 1) * tall
            words = name(register) if name and lane == LANE else f"T{lane}"
            sheet.cell(*place, TINTS[first + register], words)
            if mark and lane == LANE:
                sheet.mark(*place)


def draw_mma(mapping: Mapping) -> Sheet:
    """The three matrices of mma.m16n8k16, where a product on paper has them: B above C, A to its left."""
    words = (
        "A warp multiplies as one. Each of its 32 lanes, T0 to T31, holds a part of\n"
        "every matrix in its own registers.\n\n"
        "A cell is what one lane holds of one place: two neighbours. In A and B\n"
        "they share a 32-bit register, the first one in its lower half. In acc each\n"
        "is an FP32 register of its own.\n\n"
        "Four neighbouring lanes, a quad, hold a row of A and of acc (and the row\n"
        "8 below), and a column of B."
    )
    sheet = Sheet("mma.m16n8k16: acc += A B", 31.8, 28.4, words)
    legend = ["a[0],  b[0],  acc[0] and acc[1]", "a[1],  b[1],  acc[2] and acc[3]", "a[2]", "a[3]"]
    for index, (words, colour) in enumerate(zip(legend, TINTS)):
        sheet.legend(7.5 + 1.1 * index, {words: colour})
    sheet.mark(0.4, 11.9, 0.8, 0.5)
    sheet.text(1.4, 12.15, f"all that T{LANE} holds, by the names of its registers", ha="left")
    tall, left, top = 0.8, 19.6, 18.0  # of acc
    names = ("acc[0,1]", "acc[2,3]")
    for x, y, name, lanes, title, rows, columns, down, across in (
        (left, 2.4, "b[{}]".format, "mma_b", "B: 16 × 8 (k × n), 16-bit", 16, 8, "k", "n"),
        (1.4, top, "a[{}]".format, "mma_a", "A: 16 × 16 (m × k), 16-bit", 16, 16, "m", "k"),
        (left, top, names.__getitem__, "mma_c", "acc: 16 × 8 (m × n), FP32", 16, 8, "m", "n"),
    ):
        sheet.heading(x + columns / 2, y - 1.2, title, ha="center")
        sheet.names(x + 0.5, y - 0.4, range(columns), across=1)
        sheet.names(x - 0.5, y + tall / 2, range(rows), down=tall)
        sheet.text(x - 0.5, y + rows * tall + 0.4, down, style="italic", weight="bold")
        sheet.text(x + columns + 0.4, y - 0.4, across, style="italic", weight="bold")
        fragment(sheet, x, y, mapping[lanes], 1, tall, name)
    return sheet


def draw_ldmatrix(mapping: Mapping) -> Sheet:
    """What ldmatrix.x4 takes, and what it gives with and without .trans."""
    sheet = Sheet("ldmatrix.x4: four 8 × 8 matrices from shared memory into registers", 26.6, 28.5)
    sheet.left(0.5, 2.0, "1   Every lane hands in the address of one row: 8 elements of 16 bits.", HEADING)
    sheet.left(0.5, 13.0, "2   Every lane receives two elements of each matrix, in one register per matrix.", HEADING)
    for matrix in range(4):
        x = 1.0 + 7.0 * matrix
        sheet.text(x + 3.0, 4.0, f"matrix {matrix}: registers[{matrix}]", weight="bold")
        for row in range(8):
            lane, y = 8 * matrix + row, 4.6 + 0.9 * row
            sheet.text(x + 0.4, y + 0.45, f"T{lane}")
            sheet.arrow((x + 0.9, y + 0.45), (x + 1.9, y + 0.45))
            sheet.cell(x + 1.9, y, 4.1, 0.9, TINTS[matrix], f"row {row}")
            if lane == LANE:
                sheet.mark(x - 0.2, y, 6.2, 0.9)
    row, column = mapping["ldmatrix"][LANE][0][0], mapping["ldmatrix_trans"][LANE][0][1]
    for x, lanes, title, gist in (
        (1.9, "ldmatrix", "ldmatrix", f"two neighbours of a row: T{LANE}'s is row {row}"),
        (16.9, "ldmatrix_trans", "ldmatrix .trans", f"two neighbours of a column: T{LANE}'s is column {column}"),
    ):
        sheet.heading(x + 5, 14.8, title, ha="center")
        sheet.text(x + 5, 15.6, gist)
        sheet.names(x + 0.625, 16.55, range(8), across=1.25)
        sheet.names(x - 0.45, 17.5, range(8), down=1)
        fragment(sheet, x, 17.0, mapping[lanes], 1.25, 1)
    words = "Both show matrix 0 as it lies in shared memory. The first element of a pair goes into the register's"
    sheet.note(25.4, f"{words} lower half.")
    return sheet


# How attention's four operands lie in shared memory, and which of mma's operands they become: which register of
# ldmatrix.x4 takes an 8 x 8 block of what is stored is found from mma's own mapping.


def stored_position(mapping: Mapping, operand: str, lane: int, register: int, element: int) -> list[int]:
    """Where in the stored 16 x 16 block the element lies that the product wants in this register."""
    if operand in "qp":  # stored as A is: row, k
        return mapping["mma_a"][lane][2 * register + element]
    n_tile = register // 2  # of two B operands, each with its registers for the lower and the upper k
    k, n = mapping["mma_b"][lane][2 * (register % 2) + element]
    return [8 * n_tile + n, k] if operand == "k" else [k, 8 * n_tile + n]


def draw_attention(mapping: Mapping) -> Sheet:
    """Q, K, P, V as stored: which rows a lane hands to ldmatrix, and what it is to get."""
    words = (
        "Each square is 16 × 16 elements as they lie in shared memory: four 8 × 8 matrices for the four registers\n"
        "of one ldmatrix.x4, with the lanes that hand in their rows beside them. Outlined: what "
        f"T{LANE} is to get. A product\n"
        "sums over k, and a register of A or B holds two neighbours along k. In Q, K and P they lie side by side.\n"
        "In V they lie in two rows."
    )
    sheet = Sheet("Attention: K needs no .trans, V does", 36.6, 28.5, words)
    cell, block = 0.62, 8 * 0.62
    for x, y, operand, title, function, down, across in (
        (3.2, 8.6, "q", "Q is A of S = Q Kᵀ", "ldmatrix_x4", "query = m", "d = k"),
        (17.2, 8.6, "k", "K is B of S = Q Kᵀ", "ldmatrix_x4", "key = n", "d = k"),
        (3.2, 23.7, "p", "P is A of O = P V", "ldmatrix_x4", "query = m", "key = k"),
        (17.2, 23.7, "v", "V is B of O = P V", "ldmatrix_x4_trans", "key = k", "d = n"),
    ):
        sheet.heading(x + block, y - 2.5, title, ha="center")
        sheet.text(x + block, y - 1.55, function, color=MARK if function.endswith("_trans") else INK)
        for place, name, angle in (((x + block, y - 0.55), across, 0), ((x - 1.6, y + block), down, 270)):
            look = {"weight": "bold"} if name.endswith("= k") else {"color": MUTED}
            sheet.text(*place, f"{name}  →", rotation=angle, **look)
        for register in range(4):
            its = [stored_position(mapping, operand, LANE, register, element) for element in range(2)]
            left, top = x + its[0][1] // 8 * block, y + its[0][0] // 8 * block
            sheet.box(left, top, block, block, facecolor=TINTS[register], edgecolor=INK, linewidth=0.8)
            n = 8 * (register // 2)
            of_b = f"b[{register % 2}], {'keys' if operand == 'k' else 'd'} {n}–{n + 7}"
            words = f"registers[{register}]\n= {f'a[{register}]' if operand in 'qp' else of_b}"
            sheet.text(left + block / 2, top + 6.5 * cell, words, halo=TINTS[register])
            beside = left + (block + 0.6 if left > x else -0.6)
            sheet.text(beside, top + block / 2, f"T{8 * register} … T{8 * register + 7}", rotation=270)
            (top, left), (bottom, right) = min(its), max(its)
            place = x + left * cell, y + top * cell, (right - left + 1) * cell, (bottom - top + 1) * cell
            sheet.box(*place, facecolor=BACKGROUND, edgecolor=MARK, linewidth=2.2, zorder=4)
            for (row, column), half in zip(its, ("lo", "hi")):
                sheet.text(x + (column + 0.5) * cell, y + (row + 0.5) * cell, half, zorder=5)
        sheet.grid(x, y, 2 * block, 2 * block, 16, 16)
    words = f"lo, hi: the lower and the upper half of a register. T{LANE} hands in one row and receives parts of"
    sheet.note(35.4, f"{words} rows that others hand in.")
    return sheet


# ---- v08: a row of S in two warps

EXCHANGED = ("half_max", "half_sum")  # a float each, of every row; data_flow.py compares their bytes with the counters


def draw_quads(mapping: Mapping) -> Sheet:
    """One row of a tile: which lanes of two warps hold it, and what passes between them."""
    row = mapping["mma_c"][LANE][0][0]
    quad = [lane for lane in range(32) if mapping["mma_c"][lane][0][0] == row]
    title = f"Row {row} of S in v08: a quad in each of two warps, and what the quads exchange"
    sheet = Sheet(title, 20.6, 28.4)
    x, y = 1.0, 2.6
    sheet.text(x + 2.2, y - 0.5, "S, a tile")
    for warp in range(4):
        place = x + 2.2 * (warp % 2), y + 2.2 * (warp // 2)
        sheet.cell(*place, 2.2, 2.2, BACKGROUND, f"warp {warp}", edgecolor=INK)
    sheet.box(x, y + row * 4.4 / 64, 4.4, 0.14, facecolor=MARK, edgecolor=MARK, zorder=4)
    count = len(EXCHANGED)
    sheet.left(
        6.4,
        y - 0.2,
        f"Each warp holds 32 rows × 32 keys of the tile, and a row of them lies in one quad, here T{quad[0]} to "
        f"T{quad[-1]}.\nInside a quad two shuffles find the maximum or the sum of half a row, without any memory.\n\n"
        f"Between the two warps {count} values per half and row pass through shared memory: {count} × 2 halves × 64 "
        f"rows ×\n4 bytes = {count * 2 * 64 * 4:,} bytes per tile. v07 wrote all of S and read it again, "
        f"{64 * 64 * 4:,} bytes each way.",
    )
    cell, wide, lefts = 0.79, 12.64, (0.7, 15.06)
    for half, left in enumerate(lefts):
        middle = left + wide / 2
        sheet.heading(left, 7.6, f"warp {half}: keys {32 * half} to {32 * half + 31}")
        for n in range(4):
            sheet.text(left + 4 * n * cell + 0.3, 8.5, str(32 * half + 8 * n), color=MUTED)
            for lane, tint in zip(quad, TINTS):
                _, column = mapping["mma_c"][lane][0]  # and its neighbour
                sheet.cell(left + (8 * n + column) * cell / 2, 8.8, cell, 0.8, tint, f"T{lane}")
        centres = [left + 1.64 + 3.12 * index for index in range(4)]
        for centre, lane, tint in zip(centres, quad, TINTS):
            sheet.cell(centre - 1.4, 10.4, 2.8, 0.9, tint, f"T{lane}: its 8")
        for step, bend, colour in ((1, 0.3, MUTED), (2, 0.38, BAR)):
            for index in (0, 3 - step):
                ends = (centres[index], 11.35), (centres[index + step], 11.35)
                sheet.arrow(*ends, both=True, bend=bend, gap=0, color=colour)
        words = "two shuffles, by xor 1 and by xor 2 (blue):\nall four lanes know " + " and ".join(EXCHANGED)
        sheet.text(middle, 13.6, words)
        sheet.arrow((middle, 14.3), (middle, 15.55))
        sheet.text(middle + 0.4, 14.9, f"T{quad[0]} writes", ha="left", color=MUTED)
        words = "shared memory: " + ", ".join(f"{name}[{half}][{row}]" for name in EXCHANGED)
        sheet.cell(left, 15.6, wide, 1.0, NEUTRAL, words)
        sheet.arrow((middle, 16.65), (lefts[1 - half] + wide / 2, 18.55), color=MARK)
        words = f"warp {half}: new_max is the largest of row_max and both half_max;\n"
        words += "P = p · half_scale; both half_sums, scaled alike, join row_sum"
        sheet.cell(left, 18.6, wide, 1.5, BACKGROUND, words, edgecolor=INK)
    sheet.text(14.2, 18.3, "all four lanes read", color=MUTED)
    return sheet


# ---- Lessons: whose registers become what

WIDE, TALL = 0.72, 0.52  # an element


def draw_v12(mapping: Mapping) -> Sheet:
    sheet = Sheet("A warp that owns whole rows keeps P in its registers", 20.2)
    for x, name, rows, across in ((2.0, "v11", 64, 2), (16.0, "v12", 128, 1)):
        sheet.heading(x, 1.9, f"{name}: S of {rows} × 64")
        wide, tall = 5.6 / across, 1.45
        for warp in range(4):
            at = x + warp % across * wide, 2.6 + warp // across * tall
            sheet.cell(*at, wide, tall, TINTS[warp // across], f"warp {warp}")
            if warp % across == 0:
                first = warp // across * 32
                sheet.text(x - 0.2, at[1] + tall / 2, f"{first}–{first + 31}", ha="right", color=MUTED)
            else:
                sheet.point((at[0] + 0.75, at[1] + 0.3), (at[0] - 0.75, at[1] + 0.3), both=True)
    words = "Two warps have a row: they\nexchange maxima, and each\nstores P in shared memory for\n"
    sheet.left(8.0, 2.6, f"{words}the other. Two more barriers.", color=CEILING)
    sheet.left(22.0, 2.6, "Nothing is\nexchanged, and a\ncopied tile serves\n128 rows, not 64.")

    sheet.heading(0.4, 9.4, "v12: two tiles of S, as lanes hold them …")
    sheet.heading(14.6, 9.4, "… are an operand A of P V")
    for x, lanes, first, name, middle in (
        (0.9, "mma_c", 0, "acc of keys 0–7", 4),
        (0.9 + 8 * WIDE, "mma_c", 2, "acc of keys 8–15", 4),
        (15.1, "mma_a", 0, "P: 16 rows × 16 keys", 8),
    ):
        sheet.text(x + middle * WIDE, 10.35, name)
        fragment(sheet, x, 10.9, mapping[lanes], WIDE, TALL, first=first)
    for x in (0.75, 14.95):
        sheet.names(x, 10.9 + TALL / 2, (0, 8), down=8 * TALL, ha="right")
    sheet.legend(19.5, {f"register a[{i}]": TINTS[i] for i in range(4)})
    words = f"outlined: what T{LANE} holds, before and after rounding"
    sheet.text(sheet.width - 0.4, 19.75, words, ha="right", color=CEILING)
    return sheet


def draw_v19(mapping: Mapping) -> Sheet:
    sheet = Sheet("stmatrix stores 16 × 16 elements of O with one instruction instead of four", 18.6)
    y, panel = 3.6, 8 * WIDE
    sheet.heading(0.4, 1.8, "who holds which 4 bytes")
    sheet.text(0.4, 2.5, "v18: a store for each tint, 4 bytes of each lane", ha="left")
    sheet.heading(14.6, 1.8, "who passes the address of which 16 bytes")
    sheet.text(14.6, 2.5, "v19: one stmatrix.x4 stores all four matrices", ha="left")
    for half in range(2):
        fragment(sheet, 1.0 + half * panel, y, mapping["mma_c"], WIDE, TALL, first=2 * half, mark=False)
    for lane in range(32):  # operand_row(lane) and operand_col(lane)
        row, chunk = lane % 16, lane // 16
        sheet.cell(15.2 + panel * chunk, y + row * TALL, panel, TALL, TINTS[lane // 8], f"T{lane}")
    for x in (1.0, 15.2):
        sheet.names(x + panel / 2, y - 0.35, ("columns 0–7", "columns 8–15"), across=panel)
        sheet.names(x - 0.15, y + TALL / 2, (0, 8), down=8 * TALL, ha="right")
    sheet.legend(12.3, {f"register {i}, matrix {i}": TINTS[i] for i in range(4)})

    y, cell = 14.6, 0.92
    sheet.heading(0.4, 13.5, "matrix 0 in shared memory: 8 rows, 8 places")
    sheet.box(1.0, y, 8 * cell, 8 * 0.45)
    sheet.grid(1.0, y, 8 * cell, 8 * 0.45, 8, 8)
    for row in range(8):  # chunk 0 of a row lies at place 0 ^ row
        sheet.cell(1.0 + cell * row, y + 0.45 * row, cell, 0.45, TINTS[0], f"T{row}")
    sheet.text(1.0 + 4 * cell, y - 0.3, "32 banks, 4 to a place: one wavefront", color=MUTED)
    sheet.heading(14.6, 13.5, "a warp's O of 32 × 64, in all")
    for y, name, count, waves in ((14.4, "v18", 32, "1 wavefront"), (16.1, "v19", 8, "4 wavefronts")):
        sheet.text(15.9, y + 0.35, name, ha="right", weight="bold")
        for i in range(count):
            sheet.cell(16.1 + 10.6 / count * i, y, 10.6 / count, 0.7, O)
        sheet.text(16.1, y + 1.05, f"{count} instructions × {waves}", ha="left")
    return sheet


def draw_product(sheet: Sheet, x: float, y: float, names: tuple[str, ...], colours: tuple[str, ...]) -> None:
    """A product of a warpgroup as on paper, 64 × 128 × 128: B above the result, A to its left, in steps of 16."""
    (a, b, acc), step, side = names, 5.0 / 8, 5.0
    top, left = y + side + 0.3, x + side + 0.3
    for i in range(8):
        sheet.cell(x + step * i, top, step, side / 2, colours[0], str(i))
        sheet.cell(left, y + step * i, side, step, colours[1], str(i))
    for warp in range(4):
        words = f"{acc}: warp {warp}, rows {16 * warp}–{16 * warp + 15}"
        sheet.cell(left, top + step * warp, side, step, colours[2], words)
    sheet.mark(x, top, step, side / 2)
    sheet.mark(left, y, side, step)
    sheet.text(x, top + side / 2 + 0.4, a, ha="left")
    sheet.text(x + side - 0.1, y + 1.2, b, ha="right", linespacing=1.5)


TURN = """
= One turn of a warpgroup
tensor cores | S8"S: 8 wgmma" .9"rounds P" O8"O: 8 wgmma"
its four warps | !"K is there" x8"wait<0>" !"K is released" P8"vote, exp" n1 !"V is there" x8"wait<0>" !"V is released"
> Tile of 128 keys, D = 128. Widths: 4,096 FLOP and 16 exponentials a clock, two clocks to round two scores a lane.
"""


def draw_v21(_: Mapping) -> Sheet:
    sheet = Sheet("wgmma: a warpgroup multiplies 64 rows, and names places in shared memory", 17.6)
    sheet.heading(0.4, 1.8, "S = Q Kᵀ: 8 × m64n128k16")
    sheet.heading(14.2, 1.8, "O += P V: 8 × m64n128k16")
    names = "Q: 64 queries × D, a descriptor each", "Kᵀ: D × 128 keys,\na descriptor each", "S"
    draw_product(sheet, 0.4, 2.5, names, (Q, KV, S))
    names = "P: 64 queries × 128 keys, in registers", "V: 128 keys × D,\na descriptor each", "O"
    draw_product(sheet, 14.2, 2.5, names, (P, KV, O))
    colours = {"Q, in shared memory": Q, "K and V, in shared memory": KV, "registers: S": S, "P": P, "O": O}
    sheet.legend(11.6, colours)
    sheet.text(sheet.width - 0.4, 11.85, "outlined: what the first wgmma reads", ha="right", color=CEILING)
    ideas.add(sheet, 12.4, TURN)

    return sheet


PICTURES: dict[str, Callable[[Mapping], Sheet]] = {
    "fragments_mma.svg": draw_mma,
    "fragments_ldmatrix.svg": draw_ldmatrix,
    "fragments_attention.svg": draw_attention,
    "fragments_quads.svg": draw_quads,
    "lesson_v12.svg": draw_v12,
    "lesson_v19.svg": draw_v19,
    "lesson_v21.svg": draw_v21,
}
