#!/usr/bin/env python3
"""Draws tiles: which are computed, what a CTA keeps of them, how they lie in the banks, what a load touches.

python3 scripts/draw/memory_layouts.py TOOL --out FOLDER     draws all pictures
python3 scripts/draw/memory_layouts.py TOOL --check FOLDER   are they what the tool and this script say?

TOOL is the program that prints it all: build/ci/tools/memory_layouts (common/emulator/tools/).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings
from draw.drawings import LINE, MARK, TINTS, DrawingError, Sheet
from draw.figure_style import BACKGROUND, BAR, GAP, INK, MUTED

WIDTH = 26.0  # of a picture; in Sheet's units, about 0.3 inches
BANKS, BANK_BYTES, SECTOR_BYTES = 32, 4, 32
# Of sm_86, sm_89 and sm_120, in bytes per CTA: the static_assert of every kernel.
SMALLEST_LIMIT = 101376

Layouts = dict[str, Any]


def lanes_per_group(access: Any) -> int:
    """How many lanes are served together."""
    return 32 * BANK_BYTES // max(4, access["bytes"])


def words_by_bank(access: Any, group: int) -> list[set[int]]:
    """For each bank the different words that a group of lanes wants of it."""
    banks: list[set[int]] = [set() for _ in range(BANKS)]
    lanes = lanes_per_group(access)
    for offset in access["offsets"][group * lanes : (group + 1) * lanes]:
        for word in range(offset // BANK_BYTES, (offset + access["bytes"] - 1) // BANK_BYTES + 1):
            banks[word % BANKS].add(word)
    return banks


def passes(access: Any, group: int) -> int:
    return max(map(len, words_by_bank(access, group)))


def sectors(access: Any) -> set[int]:
    return {
        byte // SECTOR_BYTES
        for offset in access["offsets"]
        for byte in (offset, offset + access["bytes"] - 1)
    }


def check(layouts: Layouts) -> None:
    """What is drawn from offsets must be what the emulator has counted, and the tiles what the rows see."""
    for name, access in layouts["shared"].items():
        if sum(passes(access, group) for group in range(32 // lanes_per_group(access))) != access["passes"]:
            raise DrawingError(f"shared access '{name}': its offsets do not give {access['passes']} passes")
    for name, access in layouts["global"].items():
        if len(sectors(access)) != access["sectors"]:
            raise DrawingError(
                f"global access '{name}': its offsets do not give {access['sectors']} sectors"
            )
    for mask in layouts["masks"]:
        for row, masked in enumerate(mask["masked"]):
            for column in range(-(-mask["seqlen_kv"] // layouts["block_n"])):
                seen, present = pairs_of_tile(layouts, mask, row, column)
                kind = "skipped" if column >= len(masked) else "masked" if masked[column] else "full"
                if kind != ("skipped" if seen == 0 else "full" if seen == present else "masked"):
                    raise DrawingError(
                        f"tile ({row}, {column}) is {kind}, but {seen} of {present} pairs are seen"
                    )
    for mode in MODES:
        places = layouts["swizzle"][mode]
        address_bits(places)
        for chunk in range(len(places[0])):
            if {places[row][chunk] % 8 for row in range(8)} != set(range(8)):
                raise DrawingError(f"swizzle {mode}: a column of chunks is not in 8 groups of banks")
    if layouts["swizzle"]["second_panel"] != layouts["swizzle"]["panel_bytes"]:
        raise DrawingError("the second panel does not begin where the first one ends")
    for kind in LDMATRIX:
        if ldmatrix(layouts, kind, 64)["passes"] != ldmatrix(layouts, kind, 128)["passes"]:
            raise DrawingError(f"ldmatrix, {kind}: another number of passes at D=128")


def pairs_of_tile(layouts: Layouts, mask: Any, row: int, column: int) -> tuple[int, int]:
    """Of one tile: pairs of query and key that are seen, and pairs that a whole tile of these queries has."""
    block_m, block_n = layouts["block_m"], layouts["block_n"]
    visible = mask["visible"][row * block_m : (row + 1) * block_m]
    seen = sum(min(max(keys - column * block_n, 0), block_n) for keys in visible)
    return seen, len(visible) * block_n


def parse(text: bytes) -> Layouts:
    layouts = json.loads(text)
    check(layouts)
    return layouts


def read(options: argparse.Namespace) -> tuple[Layouts, str]:
    layouts, text = drawings.ask(options.program, parse)
    return layouts, drawings.description("memory layouts", __file__, text)


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"


# ---- Which tiles are computed


def draw_mask(plt: Any, layouts: Layouts) -> Any:
    sheet = Sheet(plt, WIDTH, 15.0)
    sheet.left(0.6, 0.4, "Which tiles a kernel computes, and which with a mask", 13, weight="bold")
    unit = 1.45 / layouts["block_n"]  # of the picture, for a key
    for mask, x in zip(layouts["masks"], (1.3, 9.9, 18.5)):
        draw_tiles(sheet, layouts, mask, x, 4.6, unit)
    for x, tint, words in (
        (1.3, TINTS[0], "computed, no mask"),
        (7.6, TINTS[1], "computed with a mask"),
        (14.5, BACKGROUND, "not even loaded"),
    ):
        sheet.box(x, 13.9, 1.0, 0.7, facecolor=tint)
        sheet.text(x + 1.2, 14.25, words, 7.5, ha="left")
    sheet.axes.plot((20.1, 21.1), (14.25, 14.25), color=MARK, linewidth=1.8)
    sheet.text(21.3, 14.25, "how far a row sees", 7.5, ha="left")
    return sheet.figure


def draw_tiles(sheet: Sheet, layouts: Layouts, mask: Any, x: float, y: float, unit: float) -> None:
    """One problem: its tiles, and the line up to which each row sees keys."""
    block_m, block_n = layouts["block_m"], layouts["block_n"]
    columns = -(-mask["seqlen_kv"] // block_n)
    rows = len(mask["masked"])
    width, height = columns * block_n * unit, rows * block_m * unit
    lines = [
        f"{mask['seqlen_q']} queries, {mask['seqlen_kv']} keys",
        "causal" if mask["causal"] else "not causal",
    ]
    if mask["kv_len"] != mask["seqlen_kv"]:
        lines[1] += f", kv_len {mask['kv_len']}"
    sheet.left(x, y - 2.6, lines[0], 8.5, weight="bold")
    sheet.left(x, y - 1.7, lines[1], 8.5)
    computed = masked = seen = 0
    for row, tiles in enumerate(mask["masked"]):
        sheet.text(x - 0.15, y + row * block_m * unit, str(row * block_m), 6.5, color=MUTED, ha="right")
        for column in range(columns):
            tint = BACKGROUND
            if column < len(tiles):
                tint = TINTS[1] if tiles[column] else TINTS[0]
                computed, masked = computed + 1, masked + tiles[column]
            seen += pairs_of_tile(layouts, mask, row, column)[0]
            place = x + column * block_n * unit, y + row * block_m * unit
            sheet.box(*place, block_n * unit, block_m * unit, facecolor=tint)
    for column in range(columns):
        sheet.text(x + column * block_n * unit, y - 0.4, str(column * block_n), 6.5, color=MUTED)
    # What the tiles have beyond the tensors: no such queries, no such keys.
    look = {"edgecolor": MUTED, "hatch": "//////", "linewidth": 0, "zorder": 2}
    end_x, end_y = x + mask["seqlen_kv"] * unit, y + mask["seqlen_q"] * unit
    sheet.box(end_x, y, x + width - end_x, height, **look)
    sheet.box(x, end_y, end_x - x, y + height - end_y, **look)
    across, down = [], []
    for row, keys in enumerate(mask["visible"]):
        across += [x + keys * unit] * 2
        down += [y + row * unit, y + (row + 1) * unit]
    sheet.axes.plot(across, down, color=MARK, linewidth=1.8, zorder=4)
    pairs = computed * block_m * block_n
    sheet.left(
        x,
        y + height + 0.3,
        f"{computed} of {rows * columns} tiles computed,\n{masked} of them with a mask;\n"
        f"{seen / pairs:.0%} of their pairs are wanted",
        7.5,
    )


# ---- What a CTA keeps in shared memory

PARTS = {
    "q": ("Q", TINTS[0]),
    "kv": ("K, V", TINTS[1]),
    "k": ("K × 2", TINTS[1]),
    "v": ("V × 2", TINTS[1]),
    "s": ("S", TINTS[2]),
    "p": ("P", TINTS[3]),
    "o": ("O", "#d4d4cf"),
    "rest": ("", MUTED),
}


def storage_groups(layouts: Layouts) -> list[tuple[list[str], Any]]:
    """Neighbouring steps that keep the same are one: their names, and what they keep."""
    groups: list[tuple[list[str], Any]] = []
    for storage in layouts["storage"]:
        kept = {head_dim: storage[head_dim] for head_dim in ("64", "128")}
        if groups and groups[-1][1] == kept:
            groups[-1][0].append(storage["step"])
        else:
            groups.append(([storage["step"]], kept))
    return groups


def draw_storage(plt: Any, layouts: Layouts) -> Any:
    groups = storage_groups(layouts)
    bar, pitch = 1.0, 1.4
    height = 3.6 + 2 * (len(groups) * pitch + 2.0)
    sheet = Sheet(plt, WIDTH, height)
    sheet.left(0.6, 0.4, "What a CTA keeps in shared memory", 13, weight="bold")
    sheet.left(
        0.6,
        1.9,
        "fp16 or bf16; S and O are FP32. × 2: two stages. Hatched: padding. Dark, at the end: row state,"
        " mbarriers.",
        8.5,
    )
    left, unit = 3.4, 18.6 / SMALLEST_LIMIT
    y = 3.3
    for head_dim in ("64", "128"):
        sheet.left(0.6, y, f"D = {head_dim}", 9.5, weight="bold")
        y += 1.2
        top = y
        for steps, kept in groups:
            names = [step.split("_")[0] for step in steps]
            sheet.text(left - 0.3, y + bar / 2, ", ".join(names), 8, ha="right")
            x = left
            for part in kept[head_dim]:
                name, tint = PARTS[part["name"]]
                width, net = part["bytes"] * unit, part["contents"] * unit
                sheet.box(x, y, width, bar, facecolor=tint, edgecolor=INK, linewidth=0.6)
                if net < width:
                    look = {"facecolor": BACKGROUND, "edgecolor": MUTED, "hatch": "////////"}
                    sheet.box(x + net, y, width - net, bar, **look)
                size = f"{part['bytes'] / 1024:.3g} KB"
                if name:
                    room = f"{name}, {size}" if width > 2.6 else name
                    sheet.text(x + net / 2, y + bar / 2, room, 6.5)
                x += width
            total = sum(part["bytes"] for part in kept[head_dim])
            sheet.text(WIDTH - 0.6, y + bar / 2, f"{total:,} bytes", 7.5, ha="right")
            y += pitch
        limit = left + SMALLEST_LIMIT * unit
        sheet.axes.plot(
            (limit, limit), (top - 0.3, y - 0.2), color=MARK, linewidth=1.4, linestyle=(0, (4, 2))
        )
        y += 0.7
    sheet.text(
        left + SMALLEST_LIMIT * unit,
        height - 0.8,
        f"{SMALLEST_LIMIT:,} bytes: the most that a CTA may have on sm_86, sm_89 and sm_120",
        7.5,
        color=MARK,
        ha="right",
    )
    return sheet.figure


# ---- Banks

# One picture stands for rows of 64 and of 128 elements.
LDMATRIX = {
    "padded by 0": "ldmatrix, rows as they are",
    "padded by 8": "padded by 8 elements, 16 bytes",
    "padded by 16": "padded by 16 elements, 32 bytes",
    "swizzle 128": "128-byte swizzle, no padding",
}


def ldmatrix(layouts: Layouts, kind: str, head_dim: int) -> Any:
    return layouts["shared"][f"ldmatrix, D={head_dim}, {kind}"]


def draw_banks(plt: Any, layouts: Layouts) -> Any:
    shared = layouts["shared"]
    sheet = Sheet(plt, WIDTH, 27.5)
    sheet.left(0.6, 0.4, "Eight rows of ldmatrix, and v02's walk, in the 32 banks", 13, weight="bold")
    sheet.left(
        0.6,
        1.9,
        "Each column of a panel is a bank, 4 bytes wide. Filled: what lanes that are served together read,"
        " row by row\nof the tile. Below: how many different words each bank has to deliver. The largest"
        " number is the number of passes.",
        8.5,
    )
    panels = [(title, ldmatrix(layouts, kind, 64), 2, 8) for kind, title in LDMATRIX.items()]
    panels += [
        ("v02: S = Q Kᵀ, all lanes at one d", shared["v02 K, plain"], 0, 16),
        ("v02: each lane on its own walk", shared["v02 K, walk"], 0, 16),
    ]
    for index, (title, access, group, rows) in enumerate(panels):
        draw_bank_panel(
            sheet, 2.0 + 12.4 * (index % 2), 5.6 + 7.0 * (index // 2), title, access, group, rows
        )
    return sheet.figure


def draw_bank_panel(
    sheet: Sheet, x: float, y: float, title: str, access: Any, group: int, rows: int
) -> None:
    """The lanes of one group, a row of the panel for each row of the tile that they read."""
    bank = 0.33
    row_height = 0.5 if rows == 8 else 0.4
    count = lanes_per_group(access)
    offsets = access["offsets"][group * count : (group + 1) * count]
    needed = passes(access, group)
    sheet.left(x, y - 1.5, title, 8.5, weight="bold")
    look = {"ha": "right", "weight": "bold", "color": MARK if needed > 1 else INK}
    sheet.left(x + BANKS * bank, y - 1.5, counted(needed, "pass"), 8.5, **look)
    for i in range(0, BANKS, 4):
        sheet.text(x + (i + 0.5) * bank, y - 0.3, str(i), 5.5, color=MUTED)
    sheet.box(x, y, BANKS * bank, rows * row_height, facecolor=BACKGROUND)
    for row in range(rows):
        if row % 4 == 0 or row == rows - 1:
            sheet.text(x - 0.15, y + (row + 0.5) * row_height, f"row {row}", 6, color=MUTED, ha="right")
    for lane, offset in enumerate(offsets):
        words = range(offset // BANK_BYTES, (offset + access["bytes"] - 1) // BANK_BYTES + 1)
        for word in words:
            place = x + word % BANKS * bank, y + lane % rows * row_height
            sheet.box(*place, bank, row_height, facecolor=TINTS[0], edgecolor=LINE, linewidth=0.4)
    lines: tuple[list[float], list[float]] = ([], [])
    for i in range(4, BANKS, 4):
        lines[0].extend((x + i * bank, x + i * bank, float("nan")))
        lines[1].extend((y, y + rows * row_height, float("nan")))
    sheet.axes.plot(*lines, color=LINE, linewidth=0.35, zorder=2)
    y += rows * row_height + 0.15
    for index, words in enumerate(words_by_bank(access, group)):
        deep = len(words) == needed > 1
        sheet.box(x + index * bank, y, bank, 0.6, facecolor=MARK if deep else GAP, edgecolor=BACKGROUND)
        if words:
            look = {"color": "white", "weight": "bold"} if deep else {}
            sheet.text(x + (index + 0.5) * bank, y + 0.3, str(len(words)), 5.5, **look)


# ---- The swizzle

MODES = ("128", "64", "32")
# One tint per number of a chunk, light enough for text.
CHUNK_TINTS = (*TINTS, "#d4d4cf", "#f3c6a5", "#c9c6ec", "#d5e8a8")
COLUMN = 1  # of chunks, the one that the picture follows


def address_bits(places: list[list[int]]) -> dict[int, list[int]]:
    """For each bit of the swizzled address that is more than itself: the other bits that are in it.

    A place counts chunks of 16 bytes, so its bit 0 is the address's bit 4. That the places follow from these
    bits alone is checked for all of them."""
    of_index = [place for row in places for place in row]
    images = [of_index[1 << bit] for bit in range(6)]
    for index, place in enumerate(of_index):
        whole = 0
        for bit in range(6):
            whole ^= images[bit] if index >> bit & 1 else 0
        if whole != place:
            raise DrawingError("a swizzle that is no XOR of address bits")
    found = {
        bit + 4: [other + 4 for other in range(6) if other != bit and images[other] >> bit & 1]
        for bit in range(6)
    }
    return {bit: others for bit, others in found.items() if others}


def draw_swizzle(plt: Any, layouts: Layouts) -> Any:
    swizzle = layouts["swizzle"]
    sheet = Sheet(plt, WIDTH, 24.0)
    sheet.left(0.6, 0.4, "Where a swizzle puts the chunks of 1,024 bytes", 13, weight="bold")
    sheet.left(
        0.6,
        1.9,
        "A line of a panel is 128 bytes of shared memory, once around the banks; a cell is 16 bytes, 4 banks."
        f" 3:{COLUMN} is chunk {COLUMN}\nof the tile's row 3. Outlined: chunk {COLUMN} of rows 0 to 7, as"
        " ldmatrix reads it. In all three modes it is in 8 different columns.",
        8.5,
    )
    cell, height = 0.98, 0.78
    for mode, x in zip(MODES, (0.7, 9.1, 17.5)):
        places = swizzle[mode]
        chunks = len(places[0])
        y = 6.2
        sheet.left(x, y - 2.2, f"{mode} bytes", 9.5, weight="bold")
        sheet.left(x, y - 1.3, f"rows of {chunks} chunks, {8 // chunks} to a line", 7.5)
        for i in range(8):
            sheet.text(x + (i + 0.5) * cell, y - 0.25, f"{4 * i}–{4 * i + 3}", 5.5, color=MUTED)
        for row, its in enumerate(places):
            for chunk, place in enumerate(its):
                where = x + place % 8 * cell, y + place // 8 * height
                sheet.box(*where, cell, height, facecolor=CHUNK_TINTS[chunk])
                sheet.text(where[0] + cell / 2, where[1] + height / 2, f"{row}:{chunk}", 7)
                if chunk == COLUMN and row < 8:
                    sheet.box(*where, cell, height, edgecolor=MARK, linewidth=2.0, zorder=4)
    draw_address_bits(sheet, swizzle, 14.6)
    draw_panels(sheet, swizzle, 14.6)
    return sheet.figure


def draw_address_bits(sheet: Sheet, swizzle: Any, y: float) -> None:
    sheet.left(0.7, y - 0.7, "The formula, in bits of the address", 9.5, weight="bold")
    sheet.left(
        0.7,
        y + 0.4,
        "Bits 4 to 6: which 16 bytes of a line. Bits 7 to 9: which line. The bit at\n"
        "the arrow's tail is XORed into the one at its head; nothing else changes.",
        7.5,
    )
    bits = list(range(10, 1, -1))
    cell = 0.95
    x = 2.7
    for index, mode in enumerate(MODES):
        top = y + 3.6 + 2.0 * index
        sheet.text(x - 0.3, top + 0.4, f"{mode} bytes", 7.5, ha="right")
        centre = {bit: x + (i + 0.5) * cell for i, bit in enumerate(bits)}
        mixed = address_bits(swizzle[mode])
        for bit in bits:
            tint = (
                TINTS[1] if bit in mixed else TINTS[0] if any(bit in its for its in mixed.values()) else GAP
            )
            sheet.box(centre[bit] - cell / 2, top, cell, 0.8, facecolor=tint)
            sheet.text(centre[bit], top + 0.4, str(bit), 7)
        for bit, others in mixed.items():
            for other in others:
                look = {"linewidth": 1.0, "connectionstyle": "arc3,rad=-0.35", "shrinkA": 0, "shrinkB": 0}
                sheet.arrow((centre[other], top), (centre[bit], top), **look)


def draw_panels(sheet: Sheet, swizzle: Any, y: float) -> None:
    x = 14.2
    panel_bytes, second = swizzle["panel_bytes"], swizzle["second_panel"]
    sheet.left(x, y - 0.7, "D = 128: two panels", 9.5, weight="bold")
    sheet.left(
        x,
        y + 0.4,
        "A row of 256 bytes is longer than the swizzle is wide. A tile of\n64 rows lies as two panels, one"
        " behind the other.",
        7.5,
    )
    names = ("columns 0–63", "columns 64–127")
    top = y + 3.0
    sheet.text(x + 2.4, top - 0.4, "the tile", 7.5)
    for i, name in enumerate(names):
        sheet.box(x + 2.4 * i, top, 2.4, 5.2, facecolor=TINTS[i])
        sheet.text(x + 2.4 * i + 1.2, top + 2.6, name, 7.5, rotation=90)
        sheet.box(x + 8.0, top + 2.6 * i, 2.4, 2.6, facecolor=TINTS[i])
        sheet.text(x + 9.2, top + 2.6 * (i + 0.5), name.replace(" ", "\n"), 7.5)
        sheet.text(x + 7.8, top + 2.6 * i + 0.15, f"{i * second:,}", 7, ha="right", color=MUTED)
    sheet.text(x + 7.8, top + 5.1, f"{2 * panel_bytes:,}", 7, ha="right", color=MUTED)
    sheet.text(x + 9.2, top - 0.4, "in memory", 7.5)


# ---- Sectors


def draw_sectors(plt: Any, layouts: Layouts) -> Any:
    accesses = layouts["global"]
    sheet = Sheet(plt, WIDTH, 18.9)
    sheet.left(0.6, 0.4, "What one load of a warp touches in global memory", 13, weight="bold")
    sheet.left(
        0.6,
        1.9,
        "Rows of 64 elements of 16 bits: 128 bytes, four sectors of 32. Light: sectors that must come.\n"
        "Dark: bytes that a lane asked for.",
        8.5,
    )
    panels = (
        ("v01, K: 2 bytes, all lanes the same", "v01 K", 1, 0.7, 5.0, 0.9),
        ("v02 to v05: 2 bytes a lane, neighbours", "v02", 1, 0.7, 8.2, 0.9),
        ("the same, if the row begins 2 bytes later", "v02, odd", 1, 0.7, 11.4, 0.9),
        ("v06: 16 bytes a lane, neighbours", "v06", 4, 0.7, 14.6, 0.9),
        ("v06, but from row to row", "v06, down", 32, 14.2, 5.0, 0.42),
    )
    for title, name, rows, x, y, height in panels:
        access = accesses[name]
        byte = 11.2 / 128
        sheet.left(x, y - 1.1, title, 8.5, weight="bold")
        touched = sectors(access)
        words = counted(len(touched), "sector")
        sheet.left(x + 128 * byte, y - 1.1, words, 8.5, ha="right", weight="bold")
        for sector in range(4 * rows):
            place = x + sector % 4 * 32 * byte, y + sector // 4 * height
            tint = TINTS[0] if sector in touched else BACKGROUND
            sheet.box(*place, 32 * byte, height, facecolor=tint)
            sheet.box(*place, 32 * byte, height, edgecolor=INK, linewidth=0.8, zorder=3)
        for offset in sorted(set(access["offsets"])):
            lanes = [lane for lane, its in enumerate(access["offsets"]) if its == offset]
            place = x + offset % 128 * byte, y + offset // 128 * height
            width = access["bytes"] * byte
            sheet.box(*place, width, height, facecolor=BAR, edgecolor=BACKGROUND, linewidth=0.5)
            if width > 1:
                sheet.text(
                    place[0] + width / 2,
                    place[1] + height / 2,
                    f"T{lanes[0]}",
                    6 if height < 0.6 else 7,
                    color="white",
                )
        first, last = min(access["offsets"]), max(access["offsets"])
        if access["bytes"] == 2:
            who = "T0 … T31" if first == last else "T0 … T31, one after the other"
            sheet.left(x + first * byte, y + height + 0.15, who, 7, color=MUTED)
    return sheet.figure


PICTURES: dict[str, Callable[[Any, Layouts], Any]] = {
    "tiles_mask.svg": draw_mask,
    "tiles_storage.svg": draw_storage,
    "tiles_banks.svg": draw_banks,
    "tiles_sectors.svg": draw_sectors,
    "tiles_swizzle.svg": draw_swizzle,
}


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
