"""Tiles: which are computed, what a CTA keeps of them, how they lie in the banks, what a load touches."""

from __future__ import annotations

import itertools
import operator
from pathlib import Path
from typing import Any, Callable

from draw import drawings, ideas
from draw.figure_style import BACKGROUND, BAR, GAP, INK, KV, MUTED, NEUTRAL, O, P, Q, S, TINTS
from draw.sheet import LINE, MARK, Sheet

WIDTH = 26.0  # of a picture, in its units
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
    ends = (0, access["bytes"] - 1)
    return {(offset + byte) // SECTOR_BYTES for offset in access["offsets"] for byte in ends}


def read(build: Path) -> Layouts:
    drawings.check_quotes("steps/v05_padded_smem/kernel.cu", "#pragma unroll HEAD_DIM / 8")
    drawings.check_quotes("steps/v06_vectorized_loads/kernel.cu", "#pragma unroll 4")
    return drawings.ask_layouts(build, "tiles")


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"


# ---- Which tiles are computed

TAIL = {"hatch": True, "linewidth": 0, "zorder": 2}
COMPUTED, MASKED = TINTS[:2]


def draw_mask(layouts: Layouts) -> Sheet:
    sheet = Sheet("Which tiles of keys each CTA visits, in which order, and which with a mask", 14.0, WIDTH)
    unit = 1.4 / layouts["block_n"]  # of the picture, for a key
    for mask, x in zip(layouts["masks"], (1.8, 10.3, 18.8)):
        draw_tiles(sheet, layouts, mask, x, 3.7, unit)
    sheet.legend(12.9, {"computed, no mask": COMPUTED, "with a mask": MASKED, "not even loaded": BACKGROUND})
    sheet.line((16.1, 13.2), (16.9, 13.2), linewidth=1.8)
    sheet.text(17.1, 13.2, "how far a row sees", ha="left")
    sheet.box(22.3, 12.9, 0.8, 0.6, **TAIL)
    sheet.text(23.3, 13.2, "ragged tail", ha="left")
    return sheet


def draw_tiles(sheet: Sheet, layouts: Layouts, mask: Any, x: float, y: float, unit: float) -> None:
    """One problem: its tiles, and the line up to which each row sees keys."""
    block_m, block_n = layouts["block_m"], layouts["block_n"]
    columns, rows = -(-mask["seqlen_kv"] // block_n), len(mask["masked"])
    across, down = block_n * unit, block_m * unit
    width, height = columns * across, rows * down
    kind = "causal" if mask["causal"] else "not causal"
    if mask["kv_len"] != mask["seqlen_kv"]:
        kind += f", kv_len {mask['kv_len']}"
    sheet.left(x, y - 2.0, f"{mask['seqlen_q']} queries, {mask['seqlen_kv']} keys", weight="bold")
    sheet.left(x, y - 1.45, kind)
    sheet.names(x - 0.15, y + down / 2, (f"CTA {row}" for row in range(rows)), down=down, ha="right", color=INK)
    sheet.names(x, y - 0.35, range(0, columns * block_n, block_n), across=across)
    for row, tiles in enumerate(mask["masked"]):
        for column in range(columns):
            left, top = x + column * across, y + row * down
            computed = column < len(tiles)
            tint = (MASKED if tiles[column] else COMPUTED) if computed else BACKGROUND
            sheet.box(left, top, across, down, facecolor=tint)
            if computed:
                sheet.text(left + 0.3 * across, top + 0.62 * down, str(column + 1), zorder=5)
    # What the tiles have beyond the tensors: no such queries, no such keys.
    end_x, end_y = x + mask["seqlen_kv"] * unit, y + mask["seqlen_q"] * unit
    sheet.box(end_x, y, x + width - end_x, height, **TAIL)
    sheet.box(x, end_y, end_x - x, y + height - end_y, **TAIL)
    ends = enumerate(mask["visible"])
    line = [(x + keys * unit, y + (row + down) * unit) for row, keys in ends for down in (0, 1)]
    sheet.polyline(line, color=MARK, linewidth=1.8, zorder=4)
    computed, masked = sum(map(len, mask["masked"])), sum(map(sum, mask["masked"]))
    seen = sum(mask["visible"])
    sheet.left(
        x,
        y + height + 0.3,
        f"{computed} of {rows * columns} tiles computed,\n{masked} of them with a mask;\n"
        f"{seen / (computed * block_m * block_n):.0%} of their pairs are wanted",
    )


# ---- What a CTA keeps in shared memory

PARTS = {
    "q": ("Q", Q),
    "kv": ("K, V", KV),
    "k": ("K × 2", KV),
    "v": ("V × 2", KV),
    "s": ("S", S),
    "p": ("P", P),
    "o": ("O", O),
    "rest": ("", MUTED),
}


def draw_storage(layouts: Layouts) -> Sheet:
    # Neighbouring steps that keep the same have a bar together.
    same = itertools.groupby(layouts["storage"], operator.itemgetter("64", "128"))
    groups = [(kept, ", ".join(each["step"].split("_")[0] for each in steps)) for kept, steps in same]
    bar, pitch, left, unit = 0.9, 1.15, 3.4, 18.6 / SMALLEST_LIMIT
    height = 3.1 + 2 * (len(groups) * pitch + 2.0)
    words = "fp16 or bf16; S and O are FP32. × 2: two stages. Hatched: padding. Grey, at the end: row state, mbarriers."
    sheet = Sheet("What a CTA keeps in shared memory", height, WIDTH, words)
    limit, y = left + SMALLEST_LIMIT * unit, 2.6
    for index, head_dim in enumerate((64, 128)):
        sheet.heading(0.5, y + 0.2, f"D = {head_dim}")
        y += 1.2
        top = y
        for kept, steps in groups:
            sheet.text(left - 0.3, y + bar / 2, steps, ha="right")
            x = left
            for part in kept[index]:
                name, tint = PARTS[part["name"]]
                width, net = part["bytes"] * unit, part["contents"] * unit
                words = (f"{name}, {part['bytes'] / 1024:.3g} KB", name) if name else ()
                sheet.cell(x, y, net, bar, tint, *words, edgecolor=INK, linewidth=0.6)
                sheet.box(x + net, y, width - net, bar, facecolor=BACKGROUND, hatch=True)
                x += width
            total = sum(part["bytes"] for part in kept[index])
            sheet.text(WIDTH - 0.6, y + bar / 2, f"{total:,} bytes", ha="right")
            y += pitch
        sheet.line((limit, top - 0.3), (limit, y - 0.2), linestyle="dashed")
        y += 0.7
    words = f"{SMALLEST_LIMIT:,} bytes: the most that a CTA may have on sm_86, sm_89 and sm_120"
    sheet.text(limit, height - 0.8, words, color=MARK, ha="right")
    return sheet


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


BANKS_NOTE = (
    "A column of a panel is a bank, 4 bytes wide. Filled: what lanes that are served together read, row by row"
    " of the tile.\nBelow a panel: how many different words each bank has to deliver. The largest number is the"
    " number of passes."
)


def draw_banks(layouts: Layouts) -> Sheet:
    sheet = Sheet("The eight rows that ldmatrix reads together, in the 32 banks", 16.8, WIDTH, BANKS_NOTE)
    for index, (kind, title) in enumerate(LDMATRIX.items()):
        place = 1.9 + 12.5 * (index % 2), 4.6 + 6.7 * (index // 2)
        draw_bank_panel(sheet, *place, title, ldmatrix(layouts, kind, 64), 2, 8)
    return sheet


def draw_walk(layouts: Layouts) -> Sheet:
    sheet = Sheet("v02 reads K for S = Q Kᵀ, in the 32 banks", 13.2, WIDTH, BANKS_NOTE)
    for x, title, walk in ((1.9, "all lanes at one d", "plain"), (14.4, "each lane on its own walk", "walk")):
        draw_bank_panel(sheet, x, 4.6, title, layouts["shared"][f"v02 K, {walk}"], 0, 16)
    return sheet


def draw_bank_panel(sheet: Sheet, x: float, y: float, title: str, access: Any, group: int, rows: int) -> None:
    """The lanes of one group, a row of the panel for each row of the tile that they read."""
    bank, tall = 0.347, 0.5 if rows == 8 else 0.44
    count, needed = lanes_per_group(access), passes(access, group)
    sheet.heading(x, y - 1.15, title)
    look = {"ha": "right", "color": MARK if needed > 1 else INK}
    sheet.heading(x + BANKS * bank, y - 1.15, counted(needed, "pass"), **look)
    sheet.text(x - 0.15, y - 0.3, "bank", color=MUTED, ha="right")
    sheet.names(x + bank / 2, y - 0.3, range(0, BANKS, 4), across=4 * bank)
    sheet.box(x, y, BANKS * bank, rows * tall, facecolor=BACKGROUND)
    for row in (*range(0, rows, 4), rows - 1):
        sheet.text(x - 0.15, y + (row + 0.5) * tall, f"row {row}", color=MUTED, ha="right")
    for lane, offset in enumerate(access["offsets"][group * count : (group + 1) * count]):
        for word in range(offset // BANK_BYTES, (offset + access["bytes"] - 1) // BANK_BYTES + 1):
            place = x + word % BANKS * bank, y + lane % rows * tall
            sheet.box(*place, bank, tall, facecolor=TINTS[0], edgecolor=LINE, linewidth=0.4)
    sheet.grid(x, y, BANKS * bank, rows * tall, BANKS // 4, 1)
    y += rows * tall + 0.15
    wanted = [len(words) for words in words_by_bank(access, group)]
    for words, run in itertools.groupby(range(BANKS), wanted.__getitem__):
        first, *more = run
        left, width = x + first * bank, (1 + len(more)) * bank
        deep = words == needed > 1
        look = {"color": "white", "weight": "bold"} if deep else {}
        sheet.box(left, y, width, 0.6, facecolor=MARK if deep else GAP, edgecolor=BACKGROUND)
        if words and more:
            sheet.text(left + width / 2, y + 0.3, f"{words} each", **look)
        elif words:  # more digits than a bank is wide
            sheet.text(left + width + 0.15, y + 0.3, str(words), ha="left", color=MARK, weight="bold")


# ---- The swizzle

MODES = ("128", "64", "32")
# One tint per number of a chunk, light enough for text.
CHUNK_TINTS = (*TINTS, NEUTRAL, "#f3c6a5", Q, "#d5e8a8")
COLUMN = 1  # of chunks, the one that the picture follows


def address_bits(places: list[list[int]]) -> dict[int, list[int]]:
    """For each bit of the swizzled address that is more than itself: the other bits that are in it.

    A place counts chunks of 16 bytes, so its bit 0 is the address's bit 4."""
    of_index = [place for row in places for place in row]
    bits = range(6)
    images = [of_index[1 << bit] for bit in bits]
    found = {bit + 4: [other + 4 for other in bits if other != bit and images[other] >> bit & 1] for bit in bits}
    return {bit: others for bit, others in found.items() if others}


def draw_swizzle(layouts: Layouts) -> Sheet:
    swizzle = layouts["swizzle"]
    words = (
        "A line of a panel is 128 bytes of shared memory, once around the banks; a cell is 16 bytes, 4 banks."
        f" 3:{COLUMN} is chunk {COLUMN} of the\ntile's row 3. Outlined: chunk {COLUMN} of rows 0 to 7, as"
        " ldmatrix reads it. In all three modes it is in 8 different columns."
    )
    sheet = Sheet("Where a swizzle puts the chunks of 1,024 bytes", 23.4, WIDTH, words)
    cell, tall, y = 0.98, 0.78, 5.4
    for mode, x in zip(MODES, (0.6, 9.1, 17.6)):
        places = swizzle[mode]
        chunks = len(places[0])
        sheet.heading(x, y - 1.9, f"{mode} bytes")
        sheet.left(x, y - 1.4, f"rows of {chunks} chunks, {8 // chunks} to a line")
        sheet.names(x, y - 0.3, range(0, BANKS, 4), across=cell)
        for row, its in enumerate(places):
            for chunk, place in enumerate(its):
                where = x + place % 8 * cell, y + place // 8 * tall, cell, tall
                sheet.cell(*where, CHUNK_TINTS[chunk], f"{row}:{chunk}")
                if chunk == COLUMN and row < 8:
                    sheet.mark(*where)
    draw_address_bits(sheet, swizzle, 13.6)
    draw_panels(sheet, swizzle, 13.6)
    return sheet


def draw_address_bits(sheet: Sheet, swizzle: Any, y: float) -> None:
    sheet.heading(0.6, y - 0.5, "The formula, in bits of the address")
    sheet.left(
        0.6,
        y + 0.1,
        "Bits 4 to 6: which 16 bytes of a line. Bits 7 to 9: which line.\n"
        "The bit at the arrow's tail is XORed into the one at its head;\nnothing else changes.",
    )
    cell, x = 0.95, 2.7
    centre = {bit: x + (i + 0.5) * cell for i, bit in enumerate(range(10, 1, -1))}
    for index, mode in enumerate(MODES):
        top = y + 3.6 + 2.0 * index
        sheet.text(x - 0.3, top + 0.4, f"{mode} bytes", ha="right")
        mixed = address_bits(swizzle[mode])
        arrows = [(other, bit) for bit, others in mixed.items() for other in others]
        tints = dict.fromkeys((tail for tail, _ in arrows), TINTS[0]) | dict.fromkeys(mixed, TINTS[1])
        for bit, at in centre.items():
            sheet.cell(at - cell / 2, top, cell, 0.8, tints.get(bit, GAP), str(bit))
        for tail, head in arrows:
            sheet.arrow((centre[tail], top), (centre[head], top), bend=-0.35, gap=0, linewidth=1.0)


def draw_panels(sheet: Sheet, swizzle: Any, y: float) -> None:
    x, top, side = 14.2, y + 3.3, 2.6
    sheet.heading(x, y - 0.5, "D = 128: two panels")
    words = "A row of 256 bytes is longer than the swizzle is wide.\nA tile of 64 rows lies as two panels, one"
    sheet.left(x, y + 0.1, f"{words} behind the other.")
    sheet.text(x + 2.4, top - 0.4, "the tile")
    sheet.text(x + 9.3, top - 0.4, "in memory")
    for i, name in enumerate(("columns 0–63", "columns 64–127")):
        sheet.box(x + 2.4 * i, top, 2.4, 2 * side, facecolor=TINTS[i])
        sheet.text(x + 2.4 * i + 1.2, top + side, name, rotation=90)
        sheet.cell(x + 8.0, top + side * i, side, side, TINTS[i], name.replace(" ", "\n"))
    for i, offset in enumerate((0, swizzle["second_panel"], 2 * swizzle["panel_bytes"])):
        sheet.text(x + 7.8, top + side * i, f"{offset:,}", ha="right", color=MUTED)


# ---- Sectors

WAITS = """
= A thread's loads of a K tile, D = 64
v05: 32 loads of 2 bytes | K0.3*8 x2"waits" K0.3*8 x2"waits" K0.3*8 x2"waits" K0.3*8 x2"waits" | 4 waits
v06: 4 loads of 16 bytes | K0.3*4 x2"waits" | 1 wait
> A box is a load. The thread waits for all that are in flight. Not to scale.
"""


def draw_sectors(layouts: Layouts) -> Sheet:
    words = (
        "Rows of 64 elements of 16 bits: 128 bytes, four sectors of 32. Pale: sectors that must come. Strong: bytes"
        " that a lane\nT0 to T31 asked for."
    )
    sheet = Sheet("What one load of a warp touches in global memory, and how often a thread waits", 15.6, WIDTH, words)
    ideas.add(sheet, 11.2, WAITS)
    for title, name, x, y, rows, shown in (
        ("v01, K: 2 bytes, all lanes the same", "v01 K", 0.5, 3.9, 1, 1),
        ("v02 to v05: 2 bytes a lane, neighbours", "v02", 0.5, 6.4, 1, 1),
        ("the same, a row that begins 2 bytes later", "v02, odd", 0.5, 8.9, 1, 1),
        ("v06: 16 bytes a lane, neighbours", "v06", 13.5, 3.9, 4, 4),
        ("v06, but from row to row", "v06, down", 13.5, 8.9, 32, 2),
    ):
        draw_load(sheet, layouts["global"][name], title, x, y, rows, shown)
    return sheet


def draw_load(sheet: Sheet, access: Any, title: str, x: float, y: float, rows: int, shown: int) -> None:
    """What a warp asks for in `rows` rows, of which so many are shown."""
    byte, tall = 12.0 / 128, 0.8
    touched = sectors(access)
    sheet.heading(x, y - 0.5, title)
    sheet.heading(x + 128 * byte, y - 0.5, counted(len(touched), "sector"), ha="right")
    for sector in range(4 * shown):
        place = x + sector % 4 * 32 * byte, y + sector // 4 * tall, 32 * byte, tall
        sheet.box(*place, facecolor=TINTS[0] if sector in touched else BACKGROUND)
        sheet.box(*place, edgecolor=INK, linewidth=0.8, zorder=3)
    width = access["bytes"] * byte
    for lane, offset in enumerate(access["offsets"]):
        if offset < 128 * shown and offset not in access["offsets"][:lane]:
            left, top = x + offset % 128 * byte, y + offset // 128 * tall
            sheet.box(left, top, width, tall, facecolor=BAR, edgecolor=BACKGROUND, linewidth=0.5)
            if width > 1:
                sheet.text(left + width / 2, top + tall / 2, f"T{lane}", color="white")
    first, last = min(access["offsets"]), max(access["offsets"])
    words = "T0 … T31" if first == last else "T0 … T31, one after the other" if rows == 1 else ""
    if shown < rows:
        words = f"… and so on, to T31 in row {rows - 1}"
    sheet.left(x + first * byte, y + shown * tall + 0.15, words, color=MUTED)


PICTURES: dict[str, Callable[[Layouts], Sheet]] = {
    "tiles_mask.svg": draw_mask,
    "tiles_storage.svg": draw_storage,
    "tiles_banks.svg": draw_banks,
    "tiles_walk.svg": draw_walk,
    "tiles_sectors.svg": draw_sectors,
    "tiles_swizzle.svg": draw_swizzle,
}
