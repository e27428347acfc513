"""Tiles: which are computed, what a CTA keeps of them, how they lie in the banks, what a load touches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Callable

from draw import drawings
from draw.drawings import DrawingError
from draw.figure_style import BACKGROUND, BAR, GAP, HEADING, INK, KV, MUTED, NEUTRAL, O, P, Q, S, TINTS
from draw.sheet import LINE, MARK, Sheet

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


def parse(layouts: Layouts) -> Layouts:
    check(layouts)
    return layouts


def read(build: Path) -> Layouts:
    for step, (_, _, unrolled) in LOADS.items():
        drawings.check_quotes(f"steps/{step}/kernel.cu", unrolled)
    return drawings.ask(build / "tools/memory_layouts", parse)


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"


# ---- Which tiles are computed


def draw_mask(layouts: Layouts) -> Any:
    sheet = Sheet(WIDTH, 14.0)
    sheet.title("Which tiles of keys each CTA visits, in which order, and which with a mask")
    unit = 1.4 / layouts["block_n"]  # of the picture, for a key
    for mask, x in zip(layouts["masks"], (1.8, 10.3, 18.8)):
        draw_tiles(sheet, layouts, mask, x, 3.7, unit)
    for x, tint, words in (
        (0.5, TINTS[0], "computed, no mask"),
        (6.3, TINTS[1], "with a mask"),
        (10.7, BACKGROUND, "not even loaded"),
    ):
        sheet.box(x, 12.9, 0.8, 0.6, facecolor=tint)
        sheet.text(x + 1.0, 13.2, words, ha="left")
    sheet.polyline([(16.1, 13.2), (16.9, 13.2)], color=MARK, linewidth=1.8)
    sheet.text(17.1, 13.2, "how far a row sees", ha="left")
    sheet.box(22.3, 12.9, 0.8, 0.6, **TAIL)
    sheet.text(23.3, 13.2, "ragged tail", ha="left")
    return sheet


TAIL = {"hatch": True, "linewidth": 0, "zorder": 2}


def draw_tiles(sheet: Sheet, layouts: Layouts, mask: Any, x: float, y: float, unit: float) -> None:
    """One problem: its tiles, and the line up to which each row sees keys."""
    block_m, block_n = layouts["block_m"], layouts["block_n"]
    columns = -(-mask["seqlen_kv"] // block_n)
    rows = len(mask["masked"])
    across, down = block_n * unit, block_m * unit
    width, height = columns * across, rows * down
    lines = [
        f"{mask['seqlen_q']} queries, {mask['seqlen_kv']} keys",
        "causal" if mask["causal"] else "not causal",
    ]
    if mask["kv_len"] != mask["seqlen_kv"]:
        lines[1] += f", kv_len {mask['kv_len']}"
    sheet.left(x, y - 2.0, lines[0], weight="bold")
    sheet.left(x, y - 1.45, lines[1])
    computed = masked = seen = 0
    for row, tiles in enumerate(mask["masked"]):
        top = y + row * down
        sheet.text(x - 0.15, top + down / 2, f"CTA {row}", ha="right")
        for column in range(columns):
            left = x + column * across
            tint = BACKGROUND
            if column < len(tiles):
                tint = TINTS[1] if tiles[column] else TINTS[0]
                computed, masked = computed + 1, masked + tiles[column]
                sheet.text(left + 0.3 * across, top + 0.62 * down, str(column + 1), zorder=5)
            seen += pairs_of_tile(layouts, mask, row, column)[0]
            sheet.box(left, top, across, down, facecolor=tint)
    for column in range(columns):
        sheet.text(x + column * across, y - 0.35, str(column * block_n), color=MUTED)
    # What the tiles have beyond the tensors: no such queries, no such keys.
    end_x, end_y = x + mask["seqlen_kv"] * unit, y + mask["seqlen_q"] * unit
    sheet.box(end_x, y, x + width - end_x, height, **TAIL)
    sheet.box(x, end_y, end_x - x, y + height - end_y, **TAIL)
    ends = enumerate(mask["visible"])
    line = [(x + keys * unit, y + (row + down) * unit) for row, keys in ends for down in (0, 1)]
    sheet.polyline(line, color=MARK, linewidth=1.8, zorder=4)
    pairs = computed * block_m * block_n
    sheet.left(
        x,
        y + height + 0.3,
        f"{computed} of {rows * columns} tiles computed,\n{masked} of them with a mask;\n"
        f"{seen / pairs:.0%} of their pairs are wanted",
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


def draw_storage(layouts: Layouts) -> Any:
    groups = storage_groups(layouts)
    bar, pitch = 0.9, 1.15
    height = 3.1 + 2 * (len(groups) * pitch + 2.0)
    sheet = Sheet(WIDTH, height)
    sheet.title("What a CTA keeps in shared memory")
    sheet.left(
        0.5,
        1.25,
        "fp16 or bf16; S and O are FP32. × 2: two stages. Hatched: padding. Grey, at the end: row state,"
        " mbarriers.",
    )
    left, unit = 3.4, 18.6 / SMALLEST_LIMIT
    y = 2.6
    for head_dim in ("64", "128"):
        sheet.left(0.5, y, f"D = {head_dim}", HEADING, weight="bold")
        y += 1.2
        top = y
        for steps, kept in groups:
            names = [step.split("_")[0] for step in steps]
            sheet.text(left - 0.3, y + bar / 2, ", ".join(names), ha="right")
            x = left
            for part in kept[head_dim]:
                name, tint = PARTS[part["name"]]
                width, net = part["bytes"] * unit, part["contents"] * unit
                sheet.box(x, y, width, bar, facecolor=tint, edgecolor=INK, linewidth=0.6)
                if net < width:
                    sheet.box(x + net, y, width - net, bar, facecolor=BACKGROUND, hatch=True)
                size = f"{part['bytes'] / 1024:.3g} KB"
                if name:
                    room = f"{name}, {size}" if net > 0.23 * len(name + size) + 0.6 else name
                    sheet.text(x + net / 2, y + bar / 2, room)
                x += width
            total = sum(part["bytes"] for part in kept[head_dim])
            sheet.text(WIDTH - 0.6, y + bar / 2, f"{total:,} bytes", ha="right")
            y += pitch
        limit = left + SMALLEST_LIMIT * unit
        sheet.polyline([(limit, top - 0.3), (limit, y - 0.2)], color=MARK, linewidth=1.4, linestyle="dashed")
        y += 0.7
    sheet.text(
        left + SMALLEST_LIMIT * unit,
        height - 0.8,
        f"{SMALLEST_LIMIT:,} bytes: the most that a CTA may have on sm_86, sm_89 and sm_120",
        color=MARK,
        ha="right",
    )
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


def draw_banks(layouts: Layouts) -> Any:
    sheet = Sheet(WIDTH, 16.8)
    sheet.title("The eight rows that ldmatrix reads together, in the 32 banks")
    sheet.left(0.5, 1.25, BANKS_NOTE)
    for index, (kind, title) in enumerate(LDMATRIX.items()):
        place = 1.9 + 12.5 * (index % 2), 4.6 + 6.7 * (index // 2)
        draw_bank_panel(sheet, *place, title, ldmatrix(layouts, kind, 64), 2, 8)
    return sheet


def draw_walk(layouts: Layouts) -> Any:
    sheet = Sheet(WIDTH, 13.2)
    sheet.title("v02 reads K for S = Q Kᵀ, in the 32 banks")
    sheet.left(0.5, 1.25, BANKS_NOTE)
    for x, title, walk in ((1.9, "all lanes at one d", "plain"), (14.4, "each lane on its own walk", "walk")):
        draw_bank_panel(sheet, x, 4.6, title, layouts["shared"][f"v02 K, {walk}"], 0, 16)
    return sheet


def draw_bank_panel(
    sheet: Sheet, x: float, y: float, title: str, access: Any, group: int, rows: int
) -> None:
    """The lanes of one group, a row of the panel for each row of the tile that they read."""
    bank = 0.347
    row_height = 0.5 if rows == 8 else 0.44
    count = lanes_per_group(access)
    offsets = access["offsets"][group * count : (group + 1) * count]
    needed = passes(access, group)
    sheet.left(x, y - 1.35, title, HEADING, weight="bold")
    look = {"ha": "right", "weight": "bold", "color": MARK if needed > 1 else INK}
    sheet.left(x + BANKS * bank, y - 1.35, counted(needed, "pass"), HEADING, **look)
    sheet.text(x - 0.15, y - 0.3, "bank", color=MUTED, ha="right")
    for i in range(0, BANKS, 4):
        sheet.text(x + (i + 0.5) * bank, y - 0.3, str(i), color=MUTED)
    sheet.box(x, y, BANKS * bank, rows * row_height, facecolor=BACKGROUND)
    for row in range(rows):
        if row % 4 == 0 or row == rows - 1:
            sheet.text(x - 0.15, y + (row + 0.5) * row_height, f"row {row}", color=MUTED, ha="right")
    for lane, offset in enumerate(offsets):
        words = range(offset // BANK_BYTES, (offset + access["bytes"] - 1) // BANK_BYTES + 1)
        for word in words:
            place = x + word % BANKS * bank, y + lane % rows * row_height
            sheet.box(*place, bank, row_height, facecolor=TINTS[0], edgecolor=LINE, linewidth=0.4)
    sheet.grid(x, y, BANKS * bank, rows * row_height, BANKS // 4, 1)
    y += rows * row_height + 0.15
    wanted = [len(words) for words in words_by_bank(access, group)]
    for words, run in itertools.groupby(range(BANKS), wanted.__getitem__):
        first, *more = run
        width = (1 + len(more)) * bank
        deep = words == needed > 1
        sheet.box(x + first * bank, y, width, 0.6, facecolor=MARK if deep else GAP, edgecolor=BACKGROUND)
        if words and more:
            look = {"color": "white", "weight": "bold"} if deep else {}
            sheet.text(x + first * bank + width / 2, y + 0.3, f"{words} each", **look)
        elif words:  # more digits than a bank is wide
            sheet.text(x + first * bank + width + 0.15, y + 0.3, str(words), ha="left", color=MARK, weight="bold")


# ---- The swizzle

MODES = ("128", "64", "32")
# One tint per number of a chunk, light enough for text.
CHUNK_TINTS = (*TINTS, NEUTRAL, "#f3c6a5", "#c9c6ec", "#d5e8a8")
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


def draw_swizzle(layouts: Layouts) -> Any:
    swizzle = layouts["swizzle"]
    sheet = Sheet(WIDTH, 23.4)
    sheet.title("Where a swizzle puts the chunks of 1,024 bytes")
    sheet.left(
        0.5,
        1.25,
        "A line of a panel is 128 bytes of shared memory, once around the banks; a cell is 16 bytes, 4 banks."
        f" 3:{COLUMN} is chunk {COLUMN} of the\ntile's row 3. Outlined: chunk {COLUMN} of rows 0 to 7, as"
        " ldmatrix reads it. In all three modes it is in 8 different columns.",
    )
    cell, height = 0.98, 0.78
    for mode, x in zip(MODES, (0.6, 9.1, 17.6)):
        places = swizzle[mode]
        chunks = len(places[0])
        y = 5.4
        sheet.left(x, y - 2.1, f"{mode} bytes", HEADING, weight="bold")
        sheet.left(x, y - 1.4, f"rows of {chunks} chunks, {8 // chunks} to a line")
        for i in range(8):
            sheet.text(x + i * cell, y - 0.3, str(4 * i), color=MUTED)
        for row, its in enumerate(places):
            for chunk, place in enumerate(its):
                where = x + place % 8 * cell, y + place // 8 * height
                sheet.box(*where, cell, height, facecolor=CHUNK_TINTS[chunk])
                sheet.text(where[0] + cell / 2, where[1] + height / 2, f"{row}:{chunk}")
                if chunk == COLUMN and row < 8:
                    sheet.box(*where, cell, height, edgecolor=MARK, linewidth=2.0, zorder=4)
    draw_address_bits(sheet, swizzle, 13.6)
    draw_panels(sheet, swizzle, 13.6)
    return sheet


def draw_address_bits(sheet: Sheet, swizzle: Any, y: float) -> None:
    sheet.left(0.6, y - 0.7, "The formula, in bits of the address", HEADING, weight="bold")
    sheet.left(
        0.6,
        y + 0.1,
        "Bits 4 to 6: which 16 bytes of a line. Bits 7 to 9: which line.\n"
        "The bit at the arrow's tail is XORed into the one at its head;\nnothing else changes.",
    )
    bits = list(range(10, 1, -1))
    cell = 0.95
    x = 2.7
    for index, mode in enumerate(MODES):
        top = y + 3.6 + 2.0 * index
        sheet.text(x - 0.3, top + 0.4, f"{mode} bytes", ha="right")
        centre = {bit: x + (i + 0.5) * cell for i, bit in enumerate(bits)}
        mixed = address_bits(swizzle[mode])
        for bit in bits:
            tint = (
                TINTS[1] if bit in mixed else TINTS[0] if any(bit in its for its in mixed.values()) else GAP
            )
            sheet.box(centre[bit] - cell / 2, top, cell, 0.8, facecolor=tint)
            sheet.text(centre[bit], top + 0.4, str(bit))
        for bit, others in mixed.items():
            for other in others:
                sheet.arrow((centre[other], top), (centre[bit], top), bend=-0.35, gap=0, linewidth=1.0)


def draw_panels(sheet: Sheet, swizzle: Any, y: float) -> None:
    x = 14.2
    panel_bytes, second = swizzle["panel_bytes"], swizzle["second_panel"]
    sheet.left(x, y - 0.7, "D = 128: two panels", HEADING, weight="bold")
    sheet.left(
        x,
        y + 0.1,
        "A row of 256 bytes is longer than the swizzle is wide.\nA tile of 64 rows lies as two panels, one"
        " behind the other.",
    )
    names = ("columns 0–63", "columns 64–127")
    top = y + 3.3
    sheet.text(x + 2.4, top - 0.4, "the tile")
    for i, name in enumerate(names):
        sheet.box(x + 2.4 * i, top, 2.4, 5.2, facecolor=TINTS[i])
        sheet.text(x + 2.4 * i + 1.2, top + 2.6, name, rotation=90)
        sheet.box(x + 8.0, top + 2.6 * i, 2.6, 2.6, facecolor=TINTS[i])
        sheet.text(x + 9.3, top + 2.6 * (i + 0.5), name.replace(" ", "\n"))
        sheet.text(x + 7.8, top + 2.6 * i + 0.2, f"{i * second:,}", ha="right", color=MUTED)
    sheet.text(x + 7.8, top + 5.1, f"{2 * panel_bytes:,}", ha="right", color=MUTED)
    sheet.text(x + 9.3, top - 0.4, "in memory")


# ---- Sectors, and waits for them

# step -> bytes of a load, how many loads of a tile of K a thread has under way before it waits, at D = 64, and why
LOADS = {
    "v05_padded_smem": (2, 64 // 8, "#pragma unroll HEAD_DIM / 8"),
    "v06_vectorized_loads": (16, 4, "#pragma unroll 4"),
}


def draw_sectors(layouts: Layouts) -> Any:
    sheet = Sheet(WIDTH, 16.4)
    sheet.title("What one load of a warp touches in global memory, and how often a thread waits")
    sheet.left(
        0.5,
        1.25,
        "Rows of 64 elements of 16 bits: 128 bytes, four sectors of 32. Pale: sectors that must come. Strong: bytes"
        " that a lane\nT0 to T31 asked for.",
    )
    for title, name, x, y, rows, shown in (
        ("v01, K: 2 bytes, all lanes the same", "v01 K", 0.5, 3.9, 1, 1),
        ("v02 to v05: 2 bytes a lane, neighbours", "v02", 0.5, 6.4, 1, 1),
        ("the same, a row that begins 2 bytes later", "v02, odd", 0.5, 8.9, 1, 1),
        ("v06: 16 bytes a lane, neighbours", "v06", 13.5, 3.9, 4, 4),
        ("v06, but from row to row", "v06, down", 13.5, 8.9, 32, 2),
    ):
        draw_load(sheet, layouts["global"][name], title, x, y, rows, shown)
    sheet.left(0.5, 11.7, "A thread's loads of a K tile, D = 64", HEADING, weight="bold")
    sheet.left(0.5, 12.4, "Empty: a load. Hatched: the thread waits for all of them. Not to scale.")
    for index, (step, (size, together, _)) in enumerate(LOADS.items()):
        loads = layouts["block_n"] * 64 * 2 // (128 * size)
        name = f"{step[:3]}: {loads} loads\nof {size} bytes"
        draw_waits(sheet, name, loads // together, together, 13.4 + 1.4 * index)
    return sheet


def draw_load(sheet: Sheet, access: Any, title: str, x: float, y: float, rows: int, shown: int) -> None:
    """What a warp asks for in `rows` rows, of which so many are shown."""
    byte, height = 12.0 / 128, 0.8
    sheet.left(x, y - 0.75, title, HEADING, weight="bold")
    touched = sectors(access)
    sheet.left(x + 128 * byte, y - 0.75, counted(len(touched), "sector"), HEADING, ha="right", weight="bold")
    for sector in range(4 * shown):
        place = x + sector % 4 * 32 * byte, y + sector // 4 * height
        sheet.box(*place, 32 * byte, height, facecolor=TINTS[0] if sector in touched else BACKGROUND)
        sheet.box(*place, 32 * byte, height, edgecolor=INK, linewidth=0.8, zorder=3)
    width = access["bytes"] * byte
    for lane, offset in enumerate(access["offsets"]):
        if offset >= 128 * shown or offset in access["offsets"][:lane]:
            continue
        place = x + offset % 128 * byte, y + offset // 128 * height
        sheet.box(*place, width, height, facecolor=BAR, edgecolor=BACKGROUND, linewidth=0.5)
        if width > 1:
            sheet.text(place[0] + width / 2, place[1] + height / 2, f"T{lane}", color="white")
    first, last = min(access["offsets"]), max(access["offsets"])
    words = "T0 … T31" if first == last else "T0 … T31, one after the other" if rows == 1 else ""
    if shown < rows:
        words = f"… and so on, to T31 in row {rows - 1}"
    sheet.left(x + first * byte, y + shown * height + 0.15, words, color=MUTED)


def draw_waits(sheet: Sheet, name: str, times: int, together: int, y: float) -> None:
    load, wait = 0.28, 2.3
    sheet.text(0.5, y + 0.5, name, ha="left")
    x = 4.4
    for _ in range(times):
        for _ in range(together):
            sheet.box(x, y, load, 1.0, facecolor=BACKGROUND, edgecolor=BAR, linewidth=1.0)
            x += load
        sheet.box(x, y, wait, 1.0, facecolor=GAP, edgecolor=LINE, hatch=True)
        x += wait
    sheet.text(x + 0.3, y + 0.5, counted(times, "wait"), ha="left", weight="bold")


PICTURES: dict[str, Callable[[Layouts], Any]] = {
    "tiles_mask.svg": draw_mask,
    "tiles_storage.svg": draw_storage,
    "tiles_banks.svg": draw_banks,
    "tiles_walk.svg": draw_walk,
    "tiles_sectors.svg": draw_sectors,
    "tiles_swizzle.svg": draw_swizzle,
}
