"""Who holds what of ldmatrix and mma.sync, in v08, v12 and v19, too, from the emulator's own mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from draw import drawings
from draw.figure_style import BACKGROUND, BAR, CEILING, HEADING, INK, MUTED, NEUTRAL, TINTS, O
from draw.sheet import MARK, Page, Sheet

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


def parse(said: dict[str, Any]) -> Mapping:
    """name -> lane -> element -> (row, column)"""
    mapping = {name: [[tuple(position) for position in lane] for lane in said[name]] for name in SHAPES}
    for name, (elements, rows, columns) in SHAPES.items():
        held = {position for lane in mapping[name] for position in lane}
        every = {(row, column) for row in range(rows) for column in range(columns)}
        if [len(lane) for lane in mapping[name]] != [elements] * 32 or held != every:
            raise ValueError(f"{name} does not hold every element of {rows} x {columns} once")
    return mapping


def read(build: Path) -> Mapping:
    drawings.check_quotes("steps/v11_cp_async/kernel.cu", "BLOCK_M = 64;", "BLOCK_N = 64;", "WARPS_N = 2;")
    drawings.check_quotes("steps/v12_whole_rows/kernel.cu", "NUM_WARPS = 4;", "WARP_M = 32;", "BLOCK_N = 64;")
    return drawings.ask(build / "tools/fragment_layouts", parse)


class MatrixSheet(Sheet):
    """In units of matrix elements: so wide, and HIGH high."""

    HIGH = 0.8

    def fragment(
        self,
        x: float,
        y: float,
        lanes: list[list[tuple[int, int]]],
        per_register: int,
        name: Callable[[int], str],
        tint: Callable[[int], str],
    ) -> None:
        """A matrix, a cell per register (per_register elements beside or below each other) with its lane; those of
        LANE with their names."""
        for lane, positions in enumerate(lanes):
            for register in range(len(positions) // per_register):
                cell = positions[register * per_register : (register + 1) * per_register]
                (top, first), (bottom, last) = min(cell), max(cell)
                width, height = last - first + 1, (bottom - top + 1) * self.HIGH
                place = (x + first, y + top * self.HIGH, width, height)
                self.box(*place, facecolor=tint(register))
                if lane == LANE:  # on top of the neighbours' lines
                    self.box(*place, edgecolor=MARK, linewidth=2.2, zorder=4)
                self.text(place[0] + width / 2, place[1] + height / 2, name(register) if lane == LANE else f"T{lane}")

    def indices(self, x: float, y: float, count: int, downwards: bool, name: str) -> None:
        for i in range(count):
            place = (x, y + (i + 0.5) * self.HIGH) if downwards else (x + i + 0.5, y)
            self.text(*place, str(i), color=MUTED)
        end = (x, y + count * self.HIGH + 0.4) if downwards else (x + count + 0.4, y)
        self.text(*end, name, style="italic", weight="bold")


def draw_mma(mapping: Mapping) -> Any:
    """The three matrices of mma.m16n8k16, where a product on paper has them: B above C, A to its left."""
    sheet = MatrixSheet(28.4, 31.8)
    tint = TINTS.__getitem__
    sheet.title("mma.m16n8k16: acc += A B")
    sheet.left(
        0.5,
        1.6,
        "A warp multiplies as one. Each of its 32 lanes, T0 to T31, holds a part of\n"
        "every matrix in its own registers.\n\n"
        "A cell is what one lane holds of one place: two neighbours. In A and B\n"
        "they share a 32-bit register, the first one in its lower half. In acc each\n"
        "is an FP32 register of its own.\n\n"
        "Four neighbouring lanes, a quad, hold a row of A and of acc (and the row\n"
        "8 below), and a column of B.",
    )
    legend = ["a[0],  b[0],  acc[0] and acc[1]", "a[1],  b[1],  acc[2] and acc[3]", "a[2]", "a[3]"]
    for index, words in enumerate(legend):
        sheet.box(0.6, 7.4 + 1.1 * index, 1.4, 0.8, facecolor=TINTS[index])
        sheet.text(2.4, 7.8 + 1.1 * index, words, ha="left")
    sheet.box(0.6, 11.8, 1.4, 0.8, edgecolor=MARK, linewidth=2.2)
    sheet.text(2.4, 12.2, f"all that T{LANE} holds, by the names of its registers", ha="left")

    b_left, b_top, a_left, a_top = 19.6, 2.4, 1.4, 18.0
    for x, top, name, rows, columns, down, across in (
        (b_left, b_top, "B: 16 × 8 (k × n), 16-bit", 16, 8, "k", "n"),
        (a_left, a_top, "A: 16 × 16 (m × k), 16-bit", 16, 16, "m", "k"),
        (b_left, a_top, "acc: 16 × 8 (m × n), FP32", 16, 8, "m", "n"),
    ):
        sheet.text(x + columns / 2, top - 1.2, name, HEADING, weight="bold")
        sheet.indices(x, top - 0.4, columns, downwards=False, name=across)
        sheet.indices(x - 0.5, top, rows, downwards=True, name=down)
    sheet.fragment(b_left, b_top, mapping["mma_b"], 2, "b[{}]".format, tint)
    sheet.fragment(a_left, a_top, mapping["mma_a"], 2, "a[{}]".format, tint)
    names = ("acc[0,1]", "acc[2,3]")
    sheet.fragment(b_left, a_top, mapping["mma_c"], 2, names.__getitem__, tint)
    return sheet


def draw_ldmatrix(mapping: Mapping) -> Any:
    """What ldmatrix.x4 takes, and what it gives with and without .trans."""
    sheet = MatrixSheet(28.5, 26.6)
    title = "ldmatrix.x4: four 8 × 8 matrices from shared memory into registers"
    sheet.title(title)
    sheet.left(0.5, 2.0, "1   Every lane hands in the address of one row: 8 elements of 16 bits.", HEADING)
    sheet.left(0.5, 13.0, "2   Every lane receives two elements of each matrix, in one register per matrix.", HEADING)
    for matrix in range(4):
        x, y = 1.0 + 7.0 * matrix, 4.6
        sheet.text(x + 3.0, y - 0.6, f"matrix {matrix}: registers[{matrix}]", weight="bold")
        for row in range(8):
            lane = 8 * matrix + row
            sheet.text(x + 0.4, y + (row + 0.5) * 0.9, f"T{lane}")
            sheet.arrow((x + 0.9, y + (row + 0.5) * 0.9), (x + 1.9, y + (row + 0.5) * 0.9))
            sheet.box(x + 1.9, y + row * 0.9, 4.1, 0.9, facecolor=TINTS[matrix])
            sheet.text(x + 3.95, y + (row + 0.5) * 0.9, f"row {row}")
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
        sheet.text(x + 5, 14.8, title, HEADING, weight="bold")
        sheet.text(x + 5, 15.6, gist)
        # The cells are wider than high, so that text fits: the matrix is stretched to 10 x 8.
        for i in range(8):
            sheet.text(x + 1.25 * (i + 0.5), 16.55, str(i), color=MUTED)
            sheet.text(x - 0.45, 17.0 + i + 0.5, str(i), color=MUTED)
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
                sheet.text(cell[0] + cell[2] / 2, cell[1] + cell[3] / 2, f"T{lane}")
    sheet.left(
        0.5,
        25.4,
        "Both show matrix 0 as it lies in shared memory. The first element of a pair goes into the register's"
        " lower half.",
        color=MUTED,
    )
    return sheet


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


def draw_attention(mapping: Mapping) -> Any:
    """Q, K, P, V as stored: which rows a lane hands to ldmatrix, and what it is to get."""
    sheet = MatrixSheet(28.5, 36.6)
    sheet.title("Attention: K needs no .trans, V does")
    sheet.left(
        0.5,
        1.6,
        "Each square is 16 × 16 elements as they lie in shared memory: four 8 × 8 matrices for the four "
        "registers\n"
        "of one ldmatrix.x4, with the lanes that hand in their rows beside them. Outlined: what "
        f"T{LANE} is to get. A product\n"
        "sums over k, and a register of A or B holds two neighbours along k. In Q, K and P they lie side by "
        "side.\nIn V they lie in two rows.",
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
        sheet.text(x + block, y - 2.5, title, HEADING, weight="bold")
        sheet.text(x + block, y - 1.55, function, color=MARK if transposed else INK)
        for place, name, angle in (
            ((x + block, y - 0.55), across, 0),
            ((x - 1.6, y + block), down, 270),
        ):
            look = {"weight": "bold"} if name.endswith("= k") else {"color": MUTED}
            sheet.text(*place, f"{name}  →", rotation=angle, **look)
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
                halo=TINTS[register],
            )
            sheet.text(
                left + (-0.6 if block_column == 0 else block + 0.6),
                top + block / 2,
                f"T{8 * register} … T{8 * register + 7}",
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
                    x + (position[1] + 0.5) * cell, y + (position[0] + 0.5) * cell, half, 8.3, zorder=5
                )
        sheet.grid(x, y, 2 * block, 2 * block, 16, 16)
    sheet.left(
        0.5,
        35.4,
        f"lo, hi: the lower and the upper half of a register. T{LANE} hands in one row and receives parts of"
        " rows that others hand in.",
        color=MUTED,
    )
    return sheet


# ---- v08: a row of S in two warps

EXCHANGED = ("half_max", "half_sum")  # a float each, of every row; data_flow.py compares their bytes with the counters


def draw_quads(mapping: Mapping) -> Any:
    """One row of a tile: which lanes of two warps hold it, and what passes between them."""
    sheet = Sheet(28.4, 20.6)
    row = mapping["mma_c"][LANE][0][0]
    quad = [lane for lane in range(32) if mapping["mma_c"][lane][0][0] == row]
    names = EXCHANGED
    sheet.title(f"Row {row} of S in v08: a quad in each of two warps, and what the quads exchange")
    unit = 4.4 / 64
    x, y = 1.0, 2.6
    sheet.text(x + 2.2, y - 0.5, "S, a tile")
    for warp in range(4):
        place = x + 2.2 * (warp % 2), y + 2.2 * (warp // 2)
        sheet.box(*place, 2.2, 2.2, edgecolor=INK, linewidth=0.8)
        sheet.text(place[0] + 1.1, place[1] + 1.2, f"warp {warp}")
    sheet.box(x, y + row * unit, 4.4, 0.14, facecolor=MARK, edgecolor=MARK, zorder=4)
    size = len(names) * 2 * 64 * 4
    sheet.left(
        6.4,
        y - 0.2,
        f"Each warp holds 32 rows × 32 keys of the tile, and a row of them lies in one quad, here T{quad[0]} to "
        f"T{quad[-1]}.\nInside a quad two shuffles find the maximum or the sum of half a row, without any memory.\n\n"
        f"Between the two warps {len(names)} values per half and row pass through shared memory: {len(names)} × 2 "
        f"halves × 64 rows ×\n4 bytes = {size:,} bytes per tile. v07 wrote all of S and read it again, "
        f"{64 * 64 * 4:,} bytes each way.",
    )
    cell, wide, lefts = 0.79, 12.64, (0.7, 15.06)
    for half, left in enumerate(lefts):
        middle = left + wide / 2
        sheet.left(left, 7.4, f"warp {half}: keys {32 * half} to {32 * half + 31}", HEADING, weight="bold")
        for n in range(4):
            sheet.text(left + 4 * n * cell + 0.3, 8.5, str(32 * half + 8 * n), color=MUTED)
            for lane in quad:
                _, column = mapping["mma_c"][lane][0]  # and its neighbour
                at = left + (8 * n + column) * cell / 2
                sheet.box(at, 8.8, cell, 0.8, facecolor=TINTS[quad.index(lane)])
                sheet.text(at + cell / 2, 9.2, f"T{lane}")
        centres = [left + 1.64 + 3.12 * index for index in range(4)]
        for centre, lane, tint in zip(centres, quad, TINTS):
            sheet.box(centre - 1.4, 10.4, 2.8, 0.9, facecolor=tint)
            sheet.text(centre, 10.85, f"T{lane}: its 8")
        for step, bend, colour in ((1, 0.3, MUTED), (2, 0.38, BAR)):
            for index in (0, 3 - step):
                ends = (centres[index], 11.35), (centres[index + step], 11.35)
                sheet.arrow(*ends, both=True, bend=bend, gap=0, color=colour)
        words = "two shuffles, by xor 1 and by xor 2 (blue):\nall four lanes know " + " and ".join(names)
        sheet.text(middle, 13.6, words)
        sheet.arrow((middle, 14.3), (middle, 15.55))
        sheet.text(middle + 0.4, 14.9, f"T{quad[0]} writes", ha="left", color=MUTED)
        sheet.box(left, 15.6, wide, 1.0, facecolor=NEUTRAL)
        sheet.text(middle, 16.1, "shared memory: " + ", ".join(f"{name}[{half}][{row}]" for name in names))
        other = lefts[1 - half] + wide / 2
        sheet.arrow((middle, 16.65), (other, 18.55), color=MARK)
        sheet.box(left, 18.6, wide, 1.5, facecolor=BACKGROUND, edgecolor=INK)
        sheet.text(
            middle,
            19.35,
            f"warp {half}: new_max is the largest of row_max and both half_max;\n"
            "P = p · half_scale; both half_sums, scaled alike, join row_sum",
        )
    sheet.text(14.2, 18.3, "all four lanes read", color=MUTED)
    return sheet


# ---- Lessons: whose registers become what


def draw_pairs(page: Page, x: float, y: float, tiles: list[Any], mark: int | None = None) -> None:
    """Of 16 rows: pairs of neighbouring columns, each with its lane, tinted by the register of 16-bit pairs that it
    becomes. Each of the tiles, side by side, is lane -> (row, column) of its elements."""
    wide, tall = 1.44, 0.52
    column, register = 0, 0
    for tile in tiles:
        for lane, positions in enumerate(tile):
            for pair, (row, first) in enumerate(positions[::2]):
                place = x + (column + first) / 2 * wide, y + row * tall, wide, tall
                page.cell(*place, TINTS[register + pair], f"T{lane}")
                if lane == mark:
                    page.box(*place, edgecolor=MARK, linewidth=2, zorder=4)
        register += len(tile[0]) // 2
        column += 1 + max(first for lane in tile for _, first in lane)
    for row in (0, 8):
        page.text(x - 0.15, y + (row + 0.5) * tall, str(row), ha="right", color=MUTED)


def draw_v12(mapping: Mapping) -> Any:
    page = Page(20.2, "A warp that owns whole rows keeps P in its registers")
    for x, name, rows, across in ((2.0, "v11", 64, 2), (16.0, "v12", 128, 1)):
        page.heading(x, 1.9, f"{name}: S of {rows} × 64")
        wide, tall = 5.6 / across, 1.45
        for warp in range(4):
            at = x + warp % across * wide, 2.6 + warp // across * tall
            page.cell(*at, wide, tall, TINTS[warp // across], f"warp {warp}")
            if warp % across == 0:
                first = warp // across * 32
                page.text(x - 0.2, at[1] + tall / 2, f"{first}–{first + 31}", ha="right", color=MUTED)
            else:
                page.point((at[0] + 0.75, at[1] + 0.3), (at[0] - 0.75, at[1] + 0.3), both=True)
    page.left(
        8.0,
        2.6,
        "Two warps have a row: they\nexchange maxima, and each\nstores P in shared memory for\nthe other. Two more barriers.",
        color=CEILING,
    )
    page.left(22.0, 2.6, "Nothing is\nexchanged, and a\ncopied tile serves\n128 rows, not 64.")

    page.heading(0.4, 9.4, "v12: two tiles of S, as lanes hold them …")
    page.heading(14.6, 9.4, "… are an operand A of P V")
    for x, name in ((3.8, "acc of keys 0–7"), (9.6, "acc of keys 8–15"), (20.9, "P: 16 rows × 16 keys")):
        page.text(x, 10.35, name)
    draw_pairs(page, 0.9, 10.9, [mapping["mma_c"], mapping["mma_c"]], LANE)
    draw_pairs(page, 15.1, 10.9, [mapping["mma_a"]], LANE)
    page.legend(19.5, {f"register a[{i}]": TINTS[i] for i in range(4)})
    words = f"outlined: what T{LANE} holds, before and after rounding"
    page.text(page.width - 0.4, 19.75, words, ha="right", color=CEILING)
    return page


def draw_v19(mapping: Mapping) -> Any:
    page = Page(18.6, "stmatrix stores 16 × 16 elements of O with one instruction instead of four")
    wide, tall, y = 1.44, 0.52, 3.6
    page.heading(0.4, 1.8, "who holds which 4 bytes")
    page.text(0.4, 2.5, "v18: a store for each tint, 4 bytes of each lane", ha="left")
    page.heading(14.6, 1.8, "who passes the address of which 16 bytes")
    page.text(14.6, 2.5, "v19: one stmatrix.x4 stores all four matrices", ha="left")
    draw_pairs(page, 1.0, y, [mapping["mma_c"], mapping["mma_c"]])
    draw_pairs(page, 15.2, y, [])
    for lane in range(32):  # operand_row(lane) and operand_col(lane)
        row, chunk = lane % 16, lane // 16
        page.cell(15.2 + 4 * wide * chunk, y + row * tall, 4 * wide, tall, TINTS[lane // 8], f"T{lane}")
    for x in (1.0, 15.2):
        for i, name in enumerate(("columns 0–7", "columns 8–15")):
            page.text(x + (4 * i + 2) * wide, y - 0.35, name, color=MUTED)
    page.legend(12.3, {f"register {i}, matrix {i}": TINTS[i] for i in range(4)})

    y, cell = 14.6, 0.92
    page.heading(0.4, 13.5, "matrix 0 in shared memory: 8 rows, 8 places")
    page.box(1.0, y, 8 * cell, 8 * 0.45)
    page.grid(1.0, y, 8 * cell, 8 * 0.45, 8, 8)
    for row in range(8):  # chunk 0 of a row lies at place 0 ^ row
        page.cell(1.0 + cell * row, y + 0.45 * row, cell, 0.45, TINTS[0], f"T{row}")
    page.text(1.0 + 4 * cell, y - 0.3, "32 banks, 4 to a place: one wavefront", color=MUTED)
    page.heading(14.6, 13.5, "a warp's O of 32 × 64, in all")
    for y, name, count, waves in ((14.4, "v18", 32, "1 wavefront"), (16.1, "v19", 8, "4 wavefronts")):
        page.text(15.9, y + 0.35, name, ha="right", weight="bold")
        for i in range(count):
            page.cell(16.1 + 10.6 / count * i, y, 10.6 / count, 0.7, O)
        page.text(16.1, y + 1.05, f"{count} instructions × {waves}", ha="left")
    return page


PICTURES: dict[str, Callable[[Mapping], Any]] = {
    "fragments_mma.svg": draw_mma,
    "fragments_ldmatrix.svg": draw_ldmatrix,
    "fragments_attention.svg": draw_attention,
    "fragments_quads.svg": draw_quads,
    "lesson_v12.svg": draw_v12,
    "lesson_v19.svg": draw_v19,
}
