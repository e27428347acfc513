#!/usr/bin/env python3
"""Draws the pictures of lessons about tiles, which one runs when, on which SM, with which code: v14, v20, v25 to v36.

python3 scripts/draw/lesson_tiles.py FLASHSTEPS --out FOLDER     draws all pictures
python3 scripts/draw/lesson_tiles.py FLASHSTEPS --check FOLDER   are they what the kernels and this script say?

They follow from the kernels' sources; the program is not asked.
"""

from __future__ import annotations

import argparse
import heapq
import math
import re
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Callable, Iterable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings, lesson_page
from draw.drawings import TINTS, DrawingError
from draw.figure_style import BACKGROUND, BAR, CEILING, INK, MUTED
from draw.lesson_page import COPY, NEUTRAL, OUTPUT, Q_TINT, READY, SCORES, SOFTMAX, WAIT
from draw.lesson_page import Page, constants, source, stream_configs
from steps import sources

SMS = 132  # of an H200

# ---- v14: the order of tiles

Placed = tuple[int, float, int, int]  # place, begin, length, head


def schedule(tiles: Iterable[tuple[int, int]], places: int) -> list[Placed]:
    """Each tile (length, head) takes the place that is free first, as the ablations' simulation says."""
    free = [(0, place) for place in range(places)]
    found = []
    for length, head in tiles:
        begin, place = free[0]
        heapq.heapreplace(free, (begin + length, place))
        found.append((place, begin, length, head))
    return found


def orders(heads: int, longest: int) -> dict[str, list[tuple[int, int]]]:
    down = range(longest, 0, -1)
    return {
        "v13: shortest first, head after head": [(n, h) for h in range(heads) for n in range(1, longest + 1)],
        "longest first, head after head": [(n, h) for h in range(heads) for n in down],
        "v14: longest first, heads side by side": [(n, h) for n in down for h in range(heads)],
    }


def draw_v14(plt: Any, _: None) -> Any:
    heads, longest, places = 3, 6, 5
    plans = {name: schedule(tiles, places) for name, tiles in orders(heads, longest).items()}
    last = max(begin + length for plan in plans.values() for _, begin, length, _ in plan)
    page = Page(plt, 15.6, "The same 18 tiles in three orders, on five places")
    rows = page.rows(2.2, 0, last)
    y = 1.7
    for name, plan in plans.items():
        end = max(begin + length for _, begin, length, _ in plan)
        page.heading(rows.left, y, name)
        for place in range(places):
            top = y + 0.8 + 0.62 * place
            rows.name(top, f"place {place}")
            done = max(begin + length for at, begin, length, _ in plan if at == place)
            rows.bar(top, done, end, WAIT, "idle", height=0.56)
            for at, begin, length, head in plan:
                if at == place:
                    rows.bar(top, begin, begin + length, TINTS[head], str(length), height=0.56)
        page.line((rows.at(end), y + 0.35), (rows.at(end), y + 0.6 + 0.62 * places))
        page.text(rows.at(end), y, f"ends at {end:g}", ha="right", weight="bold", color=CEILING)
        y += 4.3
    page.legend(14.75, {f"head {head}": TINTS[head] for head in range(heads)} | {"no tile left": WAIT})
    rows.axis(15.0, "time; a number is a tile's length, in tiles of keys")
    return page.figure


# ---- v20: a tile by the shape of the problem


def draw_v20(plt: Any, _: None) -> Any:
    of = constants("v20_by_shape")
    warp_rows, keys = of["WARP_M"], of["BLOCK_N"]
    page = Page(plt, 15.0, "Larger tiles read less, smaller tiles reach more SMs")
    page.heading(0.4, 1.7, "D = 64: what one SM reads from L2 for a tile of keys")
    kilobytes = 2 * keys * 64 * 2 // 1024
    cell, height = 1.22, 1.0
    for x, name, ctas, warps in ((0.4, "v19", 2, 4), (13.6, "v20", 1, 8)):
        page.text(
            x,
            2.75,
            f"{name}: {ctas} CTA{'s' * (ctas > 1)} of {warps * warp_rows} rows",
            ha="left",
            weight="bold",
        )
        for cta in range(ctas):
            y = 3.3 + 1.5 * cta
            for warp in range(warps):
                page.cell(x + cell * warp, y, cell, height, TINTS[cta], "warp")
            end = x + cell * warps
            page.point((end + 1.3, y + height / 2), (end + 0.1, y + height / 2), color=INK)
            page.cell(end + 1.4, y, 1.9, height, COPY, f"{kilobytes} KB")
            page.text(end + 0.7, y + 0.15, "K, V", color=MUTED)
        rows = ctas * warps * warp_rows
        page.text(x, 6.45, f"{rows} rows, {ctas * kilobytes} KB", ha="left", weight="bold")

    heads, length = 16, 1024
    page.heading(0.4, 7.9, f"D = 128, {heads} heads of {length:,} tokens: which of {SMS} SMs have a tile")
    side, across = 0.38, 33
    for x, block_m in ((0.4, 256), (13.6, 128)):
        tiles = heads * length // block_m
        page.text(x, 8.95, f"{tiles} tiles of {block_m} rows", ha="left", weight="bold")
        for sm in range(SMS):
            at = x + side * (sm % across), 9.4 + 2.25 * side * (sm // across)
            empty = {"facecolor": WAIT, "hatch": "/////"} if sm >= tiles else {"facecolor": BACKGROUND}
            page.box(*at, side, 2 * side, linewidth=0.4, **empty)
            if sm < tiles:
                tall = 2 * side * block_m / 256
                page.box(at[0], at[1] + 2 * side - tall, side, tall, facecolor=BAR, linewidth=0.4)
        page.text(
            x, 13.3, f"{tiles} SMs compute {block_m} rows each, {max(SMS - tiles, 0)} have none", ha="left"
        )
    page.legend(14.15, {"rows that an SM computes, at most 256": BAR, "an SM without a tile": WAIT})
    return page.figure


# ---- v25: keys from the last to the first

CAREFUL, CLEAN, UNSEEN = SOFTMAX, OUTPUT, BACKGROUND


def seen(query: int, seqlen_q: int, seqlen_kv: int) -> int:
    """How many keys a query sees, causal."""
    return max(0, min(seqlen_kv, query + 1 + seqlen_kv - seqlen_q))


def kinds_of_tiles(first: int, rows: int, seqlen_q: int, seqlen_kv: int, from_the_last: bool) -> list[str]:
    """For each tile of 64 keys what it is for these queries: what v24 and v25 treat with care."""
    least, most = (seen(query, seqlen_q, seqlen_kv) for query in (first, first + rows - 1))
    last_careful = (max(least, 1) - 1) // 64  # the tile with the last key that all rows see, as v25 has it
    found = []
    for tile in range(-(-seqlen_kv // 64)):
        masked = 64 * (tile + 1) > least
        careful = tile >= last_careful if from_the_last else masked or tile == 0
        found.append(UNSEEN if 64 * tile >= most else CAREFUL if careful else CLEAN)
    return found


def draw_v25(plt: Any, _: None) -> Any:
    page = Page(plt, 19.2, "The careful tiles come first, and leave a loop without masks")
    count, side = 8, 0.98
    for x, name, backwards in (
        (2.3, "v24: from the first key to the last", False),
        (16.6, "v25: from the last key to the first", True),
    ):
        page.heading(x, 1.8, name)
        for row in range(count):
            y = 3.4 + side * row
            kinds = kinds_of_tiles(64 * row, 64, 64 * count, 64 * count, backwards)
            for tile, kind in enumerate(kinds):
                page.cell(x + side * tile, y, side, side, kind, edgecolor="#bbbbb6", linewidth=0.4)
            order = [tile for tile, kind in enumerate(kinds) if kind != UNSEEN]
            for number, tile in enumerate(reversed(order) if backwards else order, start=1):
                aside = 0.2 if tile == row else 0  # of the diagonal
                page.text(x + side * (tile + 0.5 - aside), y + side * (0.5 + aside), str(number), zorder=6)
            page.text(x - 0.2, y + side / 2, f"{64 * row}", ha="right", color=MUTED)
        for tile in range(0, count, 2):
            page.text(x + side * tile, 3.1, f"{64 * tile}", color=MUTED)
        page.text(x + side * count / 2, 2.6, "keys", color=MUTED)
        page.text(x - 1.35, 3.4 + side * count / 2, "queries", rotation=90, color=MUTED)
        page.line((x, 3.4), (x + side * count, 3.4 + side * count), linewidth=1.1)
    page.legend(11.75, {"careful: mask, first base": CAREFUL, "in the loop": CLEAN, "not seen": UNSEEN})
    page.text(page.width - 0.4, 12.0, "a number: when a warpgroup takes the tile", ha="right")

    queries, keys, rows = 100, 330, 64
    page.heading(
        0.4, 13.4, f"Two tiles can be careful: queries 0 to {rows - 1} of {queries}, with {keys} keys"
    )
    left, wide, tall = 2.3, 22.0 / 384, 2.6
    kinds = kinds_of_tiles(0, rows, queries, keys, True)
    for tile, kind in enumerate(kinds):
        page.cell(left + 64 * tile * wide, 14.4, 64 * wide, tall, kind, edgecolor="#bbbbb6", linewidth=0.4)
        text = f"tile {tile}"
        if tile == (seen(0, queries, keys) - 1) // 64:
            text += "\nlast_careful"
        page.text(left + 64 * (tile + 0.5) * wide, 14.4 + tall * 0.5, text, zorder=8)
    ends = [left + seen(query, queries, keys) * wide for query in (0, rows - 1)]
    page.line((ends[0], 14.4), (ends[1], 14.4 + tall))
    page.text(ends[0], 14.1, f"query 0 sees {seen(0, queries, keys)} keys", color=CEILING)
    page.text(
        ends[1], 14.4 + tall + 0.35, f"query {rows - 1} sees {seen(rows - 1, queries, keys)}", color=CEILING
    )
    page.note(
        18.1,
        "The line is the diagonal: a query sees the keys to the left of it. last_careful is the tile with the last key\n"
        "that all 64 queries see: after it every row has a base, and no later tile needs a mask.",
    )
    return page.figure


# ---- v26: no maximum


def limits_of_sums() -> tuple[int, int]:
    """kGrownSum and kLostSum, as powers of two."""
    text = (sources.ROOT / "common" / "blocks" / "online_softmax.h").read_text(encoding="utf-8")
    found = re.search(r"kGrownSum = 0x1p(\d+)f, kLostSum = 0x1p(\d+)f", text)
    if not found:
        raise DrawingError("online_softmax.h: no kGrownSum and kLostSum to draw")
    return int(found[1]), int(found[2])


def follow_sums(scores: list[float], careful: bool) -> tuple[list[float], list[str]]:
    """The logarithms of a row's sum, relative to its base, after each tile of keys whose largest scores are these,
    until it is lost; and what each tile does: M looks for maxima. A model of v26's rule, of one row."""
    grown, lost = limits_of_sums()
    base, log_sum, looks = scores[0], -math.inf, True
    sums, does = [], []
    for score in scores:
        if looks or careful:  # the base rises, to the largest score or by the sum's logarithm at least
            higher = max(base, score, base + log_sum)
            base, log_sum = higher, log_sum + base - higher
        does.append("M" if looks or careful else "·")
        log_sum = math.log2(2.0**log_sum + 2.0 ** (score - base))
        sums.append(log_sum)
        looks = log_sum > grown
        if log_sum >= lost:  # the tile after makes the sum NaN, which is above nothing
            rest = len(scores) - len(sums)
            return sums, [*does[:-1], "×", *("M" if i == 0 else "·" for i in range(rest))]
    return sums, does


def draw_v26(plt: Any, _: None) -> Any:
    page = Page(plt, 17.4, "A sum shows that the base is too low, without any maximum")
    usual = [0, 1.4, 0.3, 2.1, -0.8, 1.7, 0.9, 2.4, 1.1, 0.4]
    rising = [0, 5, 12, 19, 28, 36, 42, 47, 50, 52]
    outlier = [0, 1.4, 0.3, 110, -0.8, 1.7, 0.9, 2.4, 1.1, 0.4]
    panels = (
        ("nothing grows", usual, False),
        ("scores rise", rising, False),
        ("one score far above", outlier, False),
        ("the same, second try", outlier, True),
    )
    wide, left, top, tall = 5.2, 2.0, 3.1, 6.6
    limits = limits_of_sums()

    def height_of(value: float) -> float:
        return top + tall * (1 - max(0, min(value, 115)) / 115)

    for index, (name, scores, careful) in enumerate(panels):
        x = left + (wide + 1.1) * index
        page.heading(x, 2.2, name)
        page.box(x, top, wide, tall, facecolor="white")
        for value in limits:
            page.line((x, height_of(value)), (x + wide, height_of(value)), linestyle=(0, (4, 2)), linewidth=1)
        sums, does = follow_sums(scores, careful)
        cell = wide / len(scores)
        points = [(x + cell * (i + 0.5), height_of(value)) for i, value in enumerate(sums)]
        page.axes.plot(*zip(*points), color=BAR, marker="o", markersize=4, linewidth=1.4, zorder=8)
        if "×" in does:
            page.left(points[-1][0] + 0.25, top + 2.6, "from the next\ntile on NaN", color=CEILING)
        for i, what in enumerate(does):
            colour = {"M": SOFTMAX, "·": OUTPUT, "×": CEILING}[what]
            page.cell(x + cell * i, top + tall + 0.2, cell, 0.75, colour)
            look = {"color": "white", "weight": "bold"} if what == "×" else {}
            page.text(x + cell * (i + 0.5), top + tall + 0.57, what, zorder=7, **look)
    for value in (0, *limits):
        page.text(left - 0.2, height_of(value), f"2^{value}" if value else "1", ha="right")
    page.text(0.45, top + tall / 2, "a row's sum of P", rotation=90, color=MUTED)
    page.text(left + wide / 2, top + tall + 1.35, "tiles of keys, last to first →", color=MUTED)
    page.legend(
        11.9,
        {
            "M: looks for maxima": SOFTMAX,
            "·: takes the base as it is": OUTPUT,
            "×: overflow, O will not be stored": CEILING,
        },
    )
    given = ["Q0", "Q1", "Q2", "Q1 again", "Q3", "pause", "pause", "end"]
    page.heading(0.4, 13.6, "What the loader hands out when Q1 is lost")
    for index, name in enumerate(given):
        x = 0.4 + 3.3 * index
        colour = SOFTMAX if "again" in name else NEUTRAL if name in ("pause", "end") else Q_TINT
        page.cell(x, 14.3, 3.2, 0.8, colour, name)
    lost = 0.4 + 3.3 * 2.5
    page.text(lost, 15.75, "meanwhile O of Q1 should be\nwritten, and is found lost", color=CEILING)
    page.text(0.4 + 3.3 * 6, 15.75, "a tile that is lost late\ncomes in place of a pause", color=MUTED)
    page.note(
        16.8, "A model of one row: ten tiles, whose largest scores are made up. The two limits are v26's."
    )
    return page.figure


# ---- v27: a tile for each shape


def chosen_by_v27() -> dict[tuple[int, bool], list[tuple[int, str]]]:
    """(head_dim, causal) -> from how many keys on which configuration; as v27's choose says it."""
    text = source("v27_tile_shapes")
    at64 = re.search(r"keys > \(call.causal \? (\d+) : (\d+)\)\) return kManyKeys", text)
    at128 = re.search(r"keys <= (\d+)\) return call.causal \? kFewKeys : kSomeKeys", text)
    if not at64 or not at128:
        raise DrawingError("v27_tile_shapes: its choice is not what this script draws")
    causal64, full64, both128 = int(at64[1]), int(at64[2]), int(at128[1])
    return {
        (64, False): [(0, "FewKeys"), (full64, "ManyKeys")],
        (64, True): [(0, "SomeKeys"), (causal64, "ManyKeys")],
        (128, False): [(0, "SomeKeys"), (both128, "ManyKeys")],
        (128, True): [(0, "FewKeys"), (both128, "ManyKeys")],
    }


def draw_v27(plt: Any, _: None) -> Any:
    tiles, chosen = stream_configs("v27_tile_shapes"), chosen_by_v27()
    page = Page(plt, 17.6, "Which tile v27 takes, by head dimension, mask and number of keys")
    names = {"ManyKeys": "many_keys", "SomeKeys": "some_keys", "FewKeys": "few_keys"}
    tints = dict(zip(names, TINTS))
    first, last = 512, 32768
    left, right = 4.6, page.width - 0.4

    def at(keys: int) -> float:
        return left + (right - left) * math.log2(max(keys, first) / first) / math.log2(last / first)

    for row, ((head_dim, causal), limits) in enumerate(chosen.items()):
        y = 1.7 + 1.65 * row
        page.text(left - 0.3, y + 0.75, f"D = {head_dim}, {'causal' if causal else 'full'}", ha="right")
        for (begin, name), (end, _) in zip(limits, [*limits[1:], (last, "")]):
            tile = tiles[head_dim, name]
            words = f"{names[name]}\n{64 * tile.warpgroups} × {tile.keys}"
            if (head_dim, name) == (128, "FewKeys"):
                words += "\n3 places of Q"
            page.cell(at(begin), y, at(end) - at(begin), 1.5, tints[name], words)
    y = 1.7 + 1.65 * len(chosen) + 0.35
    keys = first
    while keys <= last:
        how = {first: {"ha": "left"}, last: {"ha": "right"}}.get(keys, {})
        page.text(at(keys), y, f"{keys:,}", color=MUTED, **how)
        keys *= 2
    page.text(left - 0.3, y, "keys", ha="right", color=MUTED)

    page.heading(
        0.4,
        9.7,
        "The tiles at D = 128, to scale: queries down, keys across; a band is a warpgroup's 64 queries",
    )
    scale = 4.4 / 192
    for x, title, name in (
        (0.4, "v25, and v27 up to 1,024 keys", "SomeKeys"),
        (14.0, "v27 beyond", "ManyKeys"),
    ):
        warpgroups, keys = tiles[128, name].warpgroups, tiles[128, name].keys
        page.text(x, 10.8, f"{title}: {64 * warpgroups} × {keys}", ha="left", weight="bold")
        for warpgroup in range(warpgroups):
            page.cell(x, 11.3 + 64 * scale * warpgroup, keys * scale, 64 * scale, tints[name], f"{warpgroup}")
        end = x + keys * scale
        kilobytes = 2 * keys * 128 * 2 // 1024
        flop = 64 * warpgroups * keys * 128 * 4 // (kilobytes * 1024)
        clocks = 64 * keys * 128 * 4 // 4096
        words = [
            f"K and V of a tile: {kilobytes} KB from L2",
            f"{flop} FLOP for each byte of K and V",
            f"products {warpgroups} × {clocks:,} clocks",
            f"exponentials {warpgroups} × {64 * keys // 16} clocks",
            f"while one exponentiates, {warpgroups - 1} can multiply",
        ]
        page.left(end + 0.4, 11.3, "\n".join(words), linespacing=1.6)
    page.note(
        16.1,
        "Clocks: the tensor cores of an SM make 4,096 FLOP a clock, its exponential units 16 exponentials.\n"
        "Over 1,024 keys at D = 128, some_keys instead of many_keys where that takes fewer rounds of all SMs.",
    )
    return page.figure


# ---- v28: the keys of a head are split


def draw_v28(plt: Any, _: None) -> Any:
    numbers = constants("v28_split_keys")
    warps, places, keys = numbers["NUM_WARPS"], numbers["CTAS_PER_SM"], 12288
    heads = 32
    splits = SMS * places // heads
    page = Page(plt, 17.3, f"One query, {heads} heads and {keys:,} keys, on the {SMS} SMs of an H200")
    left, width = 5.2, (page.width - 5.6) / SMS
    page.text(left - 0.3, 2.4, "v27", ha="right", weight="bold")
    for sm in range(SMS):
        if sm < heads:
            page.cell(left + sm * width, 1.9, width, 1.0, OUTPUT)
    page.idle(left + heads * width, 1.9, (SMS - heads) * width, 1.0, f"{SMS - heads} SMs without work")
    box = {"facecolor": BACKGROUND, "pad": 1.2, "edgecolor": "none"}
    page.text(left + heads * width / 2, 2.4, f"{heads} CTAs: a head each", zorder=8, bbox=box)
    page.text(left - 0.3, 4.8, "v28", ha="right", weight="bold")
    for cta in range(heads * splits):
        place, sm = divmod(cta, SMS)
        tint = OUTPUT if cta // splits % 2 == 0 else SCORES
        page.cell(left + sm * width, 3.6 + 0.8 * place, width, 0.75, tint)
    free = SMS * places - heads * splits
    page.idle(left + (SMS - free) * width, 3.6 + 0.8 * (places - 1), free * width, 0.75)
    words = f"{heads} × {splits} CTAs, up to {places} on an SM; neighbours of one colour belong to one head."
    page.note(6.5, f"{words} {free} places are left.", left)

    page.heading(0.4, 8.0, f"The keys of one head: {splits} CTAs of {warps} warps are {splits * warps} parts")
    parts = splits * warps
    part = (page.width - 0.8) / parts
    for i in range(parts):
        page.cell(0.4 + i * part, 8.6, part, 1.0, COPY if i // warps % 2 == 0 else Q_TINT)
    for i in range(0, splits, 3):
        page.text(0.4 + (i + 0.5) * warps * part, 9.1, f"CTA {i}", zorder=8)
    tiles = -(-keys // numbers["BLOCK_N"])
    each = -(-tiles // parts)
    page.note(10.1, f"A part is {each} tiles of {numbers['BLOCK_N']} keys, which one warp reads and computes alone.")
    for i in range(parts):
        page.line((0.4 + (i + 0.5) * part, 10.7), (0.4 + (i + 0.5) * part, 11.2), linewidth=0.5)
        page.cell(0.4 + i * part, 11.3, part, 0.9, SOFTMAX)
    words = "The workspace: of every part, for each row, base and sum of P, and O that is not divided yet (FP32)."
    page.note(12.4, words)
    middle = page.width / 2
    page.point((middle, 13.2), (middle, 13.9))
    page.cell(
        middle - 11.5,
        14.0,
        23.0,
        1.5,
        OUTPUT,
        "a warp of the second kernel: base = the largest base; then, part by part,\n"
        "weight = 2^(base of the part − base);  sum += weight · sum of the part;  O += weight · O of the part",
    )
    page.point((middle, 15.6), (middle, 16.2))
    page.text(middle, 16.6, "O / sum, rounded, and LSE = ln 2 · base + ln sum")
    return page.figure


# ---- v29: heads in the rows of a tile


def draw_v29(plt: Any, _: None) -> Any:
    rows, heads = constants("v29_packed_heads")["BLOCK_M"], 4
    page = Page(plt, 12.6, f"One query, {heads} heads that share a head of K and V")
    height = 0.42
    tile = rows * height

    def draw_tile(x: float, y: float, used: list[str], width: float) -> None:
        for row in range(rows):
            text = used[row] if row < len(used) else ""
            tint = Q_TINT if text else NEUTRAL
            page.cell(x, y + row * height, width, height, tint, *([text] if text else []), linewidth=0.4)

    page.heading(0.4, 1.9, f"v28: a tile for each head, 1 of {rows} rows in use")
    for head in range(heads):
        x = 0.4 + 3.4 * head
        draw_tile(x, 3.0, [f"head {head}"], 2.6)
        page.point((x + 1.3, 3.0 + tile + 1.0), (x + 1.3, 3.0 + tile + 0.15))
        page.cell(x, 3.0 + tile + 1.1, 2.6, 0.8, COPY, "K, V")
    page.heading(15.6, 1.9, f"v29: a row for each head, {heads} of {rows} rows in use")
    draw_tile(15.6, 3.0, [f"head {head}" for head in range(heads)], 2.6)
    page.point((16.9, 3.0 + tile + 1.0), (16.9, 3.0 + tile + 0.15))
    page.cell(15.6, 3.0 + tile + 1.1, 2.6, 0.8, COPY, "K, V")
    queries = [f"query {row // heads}, head {row % heads}" for row in range(rows)]
    page.left(19.2, 2.5, f"with {rows // heads} queries:", color=MUTED)
    draw_tile(19.2, 3.0, queries, 5.2)
    page.point((21.8, 3.0 + tile + 1.0), (21.8, 3.0 + tile + 0.15))
    page.cell(19.2, 3.0 + tile + 1.1, 5.2, 0.8, COPY, "K, V")
    return page.figure


# ---- v30: merged in one launch


def draw_v30(plt: Any, _: None) -> Any:
    warps, splits = constants("v30_one_launch")["NUM_WARPS"], 6
    page = Page(plt, 15.6, f"The keys of a row, divided among {splits} CTAs of {warps} warps")
    wide, pitch = 1.96, 2.16

    def draw_parts(x: float, each: int) -> None:
        """The CTAs of a row, and the parts that each of them leaves."""
        for cta in range(splits):
            left = x + pitch * cta
            page.text(left + wide / 2, 2.75, f"CTA {cta}")
            for warp in range(warps):
                page.cell(left + wide / warps * warp, 3.1, wide / warps, 0.8, COPY, str(warp))
            for part in range(each):
                middle = left + wide / each * (part + 0.5)
                page.line((middle, 5.4 if each == 1 else 4.0), (middle, 5.8), color=MUTED, linewidth=0.8)
                page.cell(left + wide / each * part, 5.8, wide / each, 0.7, SOFTMAX)
            if each == 1:
                for warp in range(warps):
                    middle = left + wide / warps * (warp + 0.5)
                    page.line((middle, 4.0), (middle, 4.5), color=MUTED, linewidth=0.8)
                page.cell(left, 4.5, wide, 0.9, OUTPUT, "merge")
        page.point((x + pitch * splits / 2, 6.7), (x + pitch * splits / 2, 7.4))

    page.heading(0.4, 1.9, f"v29: {splits * warps} parts, one from each warp")
    draw_parts(0.4, warps)
    page.cell(0.4, 7.5, pitch * splits - 0.2, 0.9, OUTPUT, f"second kernel: merges {splits * warps} parts")
    page.heading(14.0, 1.9, f"v30: {splits} parts, one from each CTA")
    draw_parts(14.0, 1)
    page.cell(14.0, 7.5, pitch * splits - 0.2, 0.9, OUTPUT, f"the last CTA to end: merges {splits} parts")

    page.heading(0.4, 9.5, "v30 in time: the CTA that is counted last merges")
    rows = page.rows(2.2, 0, 29)
    ends = [11.0, 9.2, 12.6, 10.1, 8.4, 11.8]  # made up
    counted = sorted(range(splits), key=lambda cta: ends[cta])
    for cta, end in enumerate(ends):
        y, before = 10.4 + 0.68 * cta, counted.index(cta)
        rows.name(y, f"CTA {cta}")
        rows.bar(y, 0, end, COPY, "reads its keys", height=0.6)
        rows.bar(y, end, end + 0.9, OUTPUT, height=0.6)
        rows.bar(y, end + 0.9, end + 1.3, SOFTMAX, height=0.6)
        words = f"{before} counted before: " + ("the last" if before == splits - 1 else "ends")
        if before == splits - 1:
            rows.bar(y, end + 1.3, end + 4.3, OUTPUT, f"{splits} parts", height=0.6)
            end += 3.0
            words += "; counter 0 again"
        page.text(rows.at(end + 1.6), y, words, ha="left")
    page.legend(14.75, {"K and V": COPY, "merges": OUTPUT, "a part in the workspace": SOFTMAX})
    page.text(rows.right, 15.0, "time (made up)  →", ha="right", color=MUTED)
    return page.figure


# ---- v31: which bytes the warps of a CTA read at a time


def draw_v31(plt: Any, _: None) -> Any:
    numbers = constants("v31_in_turn")
    warps, per_warp, shown = numbers["NUM_WARPS"], 6, 3
    tiles = warps * per_warp
    kilobytes = numbers["BLOCK_N"] * 128 * 2 // 1024
    ctas = SMS * numbers["CTAS_PER_SM"]
    title = f"{tiles} tiles of K that a CTA reads, {kilobytes} KB each (D = 128): what its warps read at a time"
    page = Page(plt, 13.0, title)
    left = 4.6
    width = (page.width - left - 0.4) / tiles

    def draw(y: float, tile_of: Callable[[int, int], int]) -> None:
        for turn in range(shown):
            top = y + turn * 1.05
            page.text(left - 0.3, top + 0.4, f"tile {turn + 1} of each warp", ha="right")
            reads = {tile_of(warp, turn): f"w{warp}" for warp in range(warps)}
            done = {tile_of(warp, earlier) for warp in range(warps) for earlier in range(turn)}
            for tile in range(tiles):
                tint = COPY if tile in reads else READY if tile in done else NEUTRAL
                page.cell(left + tile * width, top, width, 0.8, tint, reads.get(tile, ""))

    page.heading(0.4, 1.9, "v30: each warp has a range of keys")
    draw(2.5, lambda warp, turn: warp * per_warp + turn)
    all_read = f"The {ctas} CTAs of an H200 read {{:,}} pieces at a time.".format
    words = f"{warps} pieces of {kilobytes} KB, and as many of V. {all_read(warps * ctas * 2)}"
    page.note(5.9, words, left)
    page.heading(0.4, 7.2, "v31: the CTA has a range of keys, and its warps take the tiles in turn")
    draw(7.8, lambda warp, turn: warp + turn * warps)
    page.note(11.2, f"1 piece of {warps * kilobytes} KB, and one of V. {all_read(ctas * 2)}", left)
    page.text(page.width - 0.4, 1.9, "addresses  →", ha="right", color=MUTED)
    words = {"read now, by warp w0 to w3": COPY, "read before": READY, "read later": NEUTRAL}
    page.legend(12.1, words, left)
    return page.figure


# ---- v32: one CTA for each SM, a deeper ring


def draw_v32(plt: Any, _: None) -> Any:
    before, now = constants("v31_in_turn"), constants("v32_few_splits")
    heads, warps = 8, now["NUM_WARPS"]
    page = Page(plt, 12.9, f"One query of one sequence, {heads} heads of K and V, on the {SMS} SMs of an H200")
    left, width = 1.9, (page.width - 2.3) / SMS
    y = 1.9
    for name, places in (("v31", before["CTAS_PER_SM"]), ("v32", 1)):
        splits = SMS * places // heads
        page.text(left - 0.3, y + 0.4 * places, name, ha="right", weight="bold")
        for cta in range(heads * splits):
            place, sm = divmod(cta, SMS)
            page.cell(left + sm * width, y + 0.8 * place, width, 0.75, OUTPUT if cta // splits % 2 == 0 else SCORES)
        free = SMS * places - heads * splits
        page.idle(left + (SMS - free) * width, y + 0.8 * (places - 1), free * width, 0.75)
        y += 0.8 * places + 0.5
        page.note(y, f"{heads} × {splits} CTAs: the last CTA of a head merges {splits} parts of each row.", left)
        y += 1.3

    for name, numbers in (("v31", before), ("v32", now)):
        stages = numbers["NUM_STAGES"]
        page.text(left - 0.3, y + 0.55, name, ha="right", weight="bold")
        for warp in range(warps):
            x = left + warp * 6.3
            for stage in range(stages):
                tint = SOFTMAX if stage == 0 else COPY
                page.cell(x + stage * 2.02, y, 1.96, 1.1, tint, "computed" if stage == 0 else "coming")
        y += 1.7
    page.note(y, f"Tiles of the {warps} warps of a CTA in shared memory, of K and V each.", left)
    return page.figure


# ---- v33: pages


def draw_v33(plt: Any, _: None) -> Any:
    keys = constants("v33_paged")["BLOCK_N"]
    used = {"A": 5, "B": 2}  # pages of each sequence
    most = 6
    places = {("A", 0): 9, ("A", 1): 2, ("A", 2): 12, ("A", 3): 5, ("A", 4): 0, ("B", 0): 7, ("B", 1): 3}
    tints = {"A": Q_TINT, "B": COPY}
    page = Page(plt, 12.0, "Two sequences, whose lengths nobody knows before they end")
    page.heading(0.4, 1.9, "In one piece: room for the longest")
    for row, (name, count) in enumerate(used.items()):
        y = 3.0 + 1.9 * row
        page.left(0.4, y + 0.35, name, weight="bold")
        for i in range(count):
            page.cell(1.1 + 1.25 * i, y, 1.25, 1.0, tints[name], f"{name} {i}")
        page.idle(1.1 + 1.25 * count, y, 1.25 * (most - count), 1.0, "empty", "")
    page.note(7.2, "A cell is the keys of a page, here", 0.4)
    page.note(7.8, f"those of one tile: {keys}.", 0.4)

    page.heading(10.0, 1.9, "The page table")
    cell = 0.85
    for row, (name, count) in enumerate(used.items()):
        y = 3.0 + 1.9 * row
        page.left(10.0, y + 0.35, name, weight="bold")
        for i in range(most):
            x = 10.6 + cell * i
            if i < count:
                page.cell(x, y, cell, 1.0, tints[name], str(places[name, i]))
            else:
                page.idle(x, y, cell, 1.0, "?")
    page.note(7.2, "?: anything; no kernel may", 10.0)
    page.note(7.8, "look there", 10.0)

    pages = 14
    left = 16.6
    page.heading(left, 1.9, f"The pool: {pages} pages, for all sequences")
    owners = {place: who for who, place in places.items()}
    for number in range(pages):
        column, row = number % 7, number // 7
        x, y = left + 1.5 * column, 3.0 + 1.9 * row
        if number in owners:
            name, i = owners[number]
            page.cell(x, y, 1.5, 1.0, tints[name], f"{name} {i}")
        else:
            page.idle(x, y, 1.5, 1.0)
        page.text(x + 0.75, y + 1.3, str(number), color=MUTED)
    page.note(7.2, "hatched: free, or of another sequence", left)

    page.heading(0.4, 9.1, "A warp")
    x = 2.8
    for words, length, tint in (
        ("look up 0, 1, 2", 4.2, NEUTRAL),
        ("copy 0", 1.9, COPY),
        ("copy 1", 1.9, COPY),
        ("copy 2", 1.9, COPY),
        ("look up 3", 2.4, NEUTRAL),
        ("compute on 0", 3.4, SCORES),
        ("copy 3", 1.9, COPY),
        ("look up 4", 2.4, NEUTRAL),
        ("compute on 1", 3.4, SCORES),
    ):
        page.cell(x, 9.6, length, 1.0, tint, words)
        x += length
    page.note(11.1, "The numbers are its tiles. It waits for the first look-ups only; the others arrive while it computes.")
    return page.figure


# ---- v34: what waits for what


def draw_v34(plt: Any, _: None) -> Any:
    eight, sixteen = (constants(step)["MERGED_AT_ONCE"] for step in ("v30_one_launch", "v34_short_path"))
    page = Page(plt, 12.6, f"A tile of rows with {sixteen} CTAs: each link waits for the one before")
    left, gap, height, short, middle, trip = 1.6, 0.4, 1.2, 1.55, 2.4, 3.0

    def chain(y: float, name: str, links: list[tuple[float, str, str]]) -> None:
        """Each with its length, tint and words. Without words, it is only the place of one."""
        page.text(left - 0.3, y + height / 2, name, ha="right", weight="bold")
        x, end = left, left  # where the last link ends that is there
        for length, tint, words in links:
            if words:
                if end > left:
                    page.point((end, y + height / 2), (x, y + height / 2))
                page.cell(x, y, length, height, tint, words)
                end = x + length
            else:
                page.box(x, y, length, height, linewidth=0.9, linestyle=(0, (4, 3)))
            x += length + gap

    page.heading(0.4, 1.9, "From the launch to the products")
    begin = [(short, NEUTRAL, "launch"), (middle, NEUTRAL, "parameters")]
    rest = [(middle, NEUTRAL, "request\nQ, K, V"), (trip, COPY, "Q, K, V\nfrom memory"), (middle, SCORES, "S, P V")]
    chain(2.5, "v33", [*begin, (2 * middle + gap, SOFTMAX, "divisions of integers"), *rest])
    chain(4.1, "v34", [*begin, (middle, SOFTMAX, "multiply,\nshift"), (middle, "", ""), *rest])

    page.heading(0.4, 6.5, "From the products to O")
    begin = [(short, OUTPUT, "merge\nwarps"), (short, NEUTRAL, "write\npart")]
    rest = [(short, OUTPUT, "merge\nparts"), (short, OUTPUT, "write\nO")]
    fence, count, gone = (trip, SOFTMAX, "fence"), (trip, COPY, "count in L2"), (trip, "", "")
    parts = [(trip, COPY, f"parts {i + 1} to {i + eight}\nfrom L2") for i in range(0, sixteen, eight)]
    chain(7.1, "v33", [*begin, fence, count, fence, *parts, *rest])
    all_parts = (trip, COPY, f"parts 1 to {sixteen}\nfrom L2")
    chain(8.7, "v34", [*begin, (trip, SOFTMAX, "release"), count, gone, all_parts, gone, *rest])
    page.legend(10.8, {"a trip to memory or to L2": COPY, "what v34 replaces or leaves out": SOFTMAX})
    page.note(11.7, "Dashed: not in v34. The lengths of the boxes are made up.")
    return page.figure


# ---- v35: waves of CTAs

WAVES_TILES, WAVES_KEYS = 34 * 8, 16384  # 34 sequences, 8 heads of K and V, D = 128, 16 bits


def rule_of_v35(tiles: int, keys: int) -> dict[int, int]:
    """What the kernel's time_of says on an H200 for each number of splits that leaves each warp a tile of keys."""
    text, of = source("v35_whole_waves"), constants("v35_whole_waves")
    (cost_of_cta,) = (int(a) * int(b) for a, b in re.findall(r"kCostOfCta = (\d+) \* (\d+);", text))
    (list_of_splits,) = re.findall(r"kSplits\[\] = \{(.*?)\}", text)
    room, times = of["CTAS_PER_SM"], {}  # at D = 128 an H200 has room for no more
    for splits in map(int, list_of_splits.split(", ")):
        if splits > max(1, -(-keys // (of["BLOCK_N"] * of["NUM_WARPS"]))):
            break
        read, ctas = -(-keys // splits) * 2 * 128 * 2, tiles * splits
        waves = -(-ctas // (room * SMS))
        all_waves = waves * room * (read + cost_of_cta) + (read if waves > 1 else 0)
        times[splits] = read + cost_of_cta if ctas <= SMS else all_waves
    return times


def draw_v35(plt: Any, _: None) -> Any:
    per_sm, times = constants("v35_whole_waves")["CTAS_PER_SM"], rule_of_v35(WAVES_TILES, WAVES_KEYS)
    places, best = SMS * per_sm, min(times, key=lambda splits: times[splits])
    faster = 2 * per_sm  # a CTA alone on an SM reads at twice the SM's share of memory's rate, as v32's lesson says
    page = Page(plt, 12.2, f"{WAVES_TILES} tiles of rows on the {SMS} SMs of an H200, {places} CTAs at a time")
    top, full, across = 2.9, 5.4, 12.4  # full: how high a wave is whose CTAs have all keys of a tile
    box = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 1.5}

    def wave_of(first: int, ctas: int, splits: int, x: float, y: float, width: float, height: float) -> None:
        """CTAs side by side; those of a tile have one colour."""
        for tile in range(first // splits, -(-(first + ctas) // splits)):
            begin, end = (min(max(n * splits - first, 0), ctas) for n in (tile, tile + 1))
            tint = OUTPUT if tile % 2 == 0 else SCORES
            page.cell(x + begin * width, y, (end - begin) * width, height, tint, linewidth=0)

    ends = []
    for left, name, splits in ((1.2, "v34", 1), (14.45, "v35", best)):
        waves, last = divmod(WAVES_TILES * splits, places)
        if not 0 < faster * last <= places:
            raise DrawingError(f"{name}: {last} CTAs of the last wave would share memory's rate")
        height, short = full / splits, full / splits / faster
        words = f"{splits} CTAs for each tile, each with 1/{splits} of its keys"
        page.heading(left, 1.9, f"{name}: " + ("1 CTA for each tile" if splits == 1 else words))
        for wave in range(waves):
            gap = 0.05 if splits > 1 else 0
            wave_of(wave * places, places, splits, left, top + wave * height, across / places, height - gap)
        end = top + waves * height + short
        wave_of(waves * places, last, splits, left, end - short, across / SMS, short)
        idle = last * across / SMS
        words = f"{last} CTAs run, {SMS - last} SMs have no work"
        page.idle(left + idle, end - short, across - idle, short, words)
        words = f"{places} CTAs run" if waves == 1 else f"{waves} waves of {places} CTAs"
        page.text(left + across / 2, top + waves * height / 2, words, zorder=8, bbox=box)
        if waves > 1:
            page.text(left, end + 0.45, f"then {last} CTAs on {last} SMs", ha="left")
        words = f"ends after {(end - top) / full:.2f} × v34's first wave"
        page.text(left + across, end + 0.45, words, ha="right", weight="bold", color=CEILING)
        ends.append(end)
    page.line((1.2, max(ends)), (page.width - 0.4, max(ends)), linewidth=0.8, linestyle=(0, (4, 3)))
    page.point((0.75, top), (0.75, max(ends)), color=MUTED)
    page.text(0.4, top + full / 2, "time", rotation=90, color=MUTED)
    page.note(10.6, f"Across: {SMS} SMs. Neighbours of one colour belong to one tile.", 1.2)
    words = f"Alone on an SM, a CTA of the last wave reads {faster} times as fast. Starts and ends of CTAs are left out."
    page.note(11.2, words, 1.2)
    return page.figure


# ---- v36: one line of all keys

LINE_KEYS, LINE_CTAS = (16, 3, 7, 2), 4  # units of keys of each tile
LINE_START = 1  # a unit without keys, at each tile's start


def begin_of_v36(cta: int, units: int, ctas: int) -> int:
    """A CTA's first unit, on a line of at least as many units as there are CTAs."""
    return cta * units // ctas


def pieces_of_v36(tiles: list[int], ctas: int) -> list[list[tuple[int, int, int]]]:
    """For each CTA: tile, and the first unit and the end of what it has of this tile."""
    ends = list(accumulate(tiles))
    borders = [begin_of_v36(cta, ends[-1], ctas) for cta in range(ctas + 1)]
    spans = [(tile, end - units, end) for tile, (units, end) in enumerate(zip(tiles, ends))]
    return [
        [(tile, max(b, begin) - b, min(e, end) - b) for tile, b, e in spans if max(b, begin) < min(e, end)]
        for begin, end in pairwise(borders)
    ]


def draw_v36(plt: Any, _: None) -> Any:
    numbers = constants("v36_stream_k")
    tiles = [LINE_START + keys for keys in LINE_KEYS]
    total, longest = sum(tiles), max(tiles)
    pieces, tints = pieces_of_v36(tiles, LINE_CTAS), (SCORES, SOFTMAX, OUTPUT, COPY)
    page = Page(plt, 16.1, f"{len(tiles)} tiles of rows, with sequences of different lengths, on {LINE_CTAS} SMs")
    left, unit, height = 2.4, 0.76, 0.75

    def units_of(tile: int, begin: int, end: int, x: float, y: float) -> None:
        """Units of one tile, side by side; those without keys are pale."""
        for n in range(begin, end):
            look = {"alpha": 0.35} if n < LINE_START else {}
            page.cell(x + (n - begin) * unit, y, unit, height, tints[tile], **look)
        with_keys = max(begin, LINE_START)
        if (end - with_keys) * unit >= 1.4:
            middle = x + (with_keys - begin + (end - with_keys) / 2) * unit
            box = {"facecolor": tints[tile], "edgecolor": "none", "pad": 0.5}
            page.text(middle, y + height / 2, f"tile {tile}", zorder=8, bbox=box)

    page.heading(0.4, 1.9, "v35: equally many CTAs for each tile, here one")
    for tile, units in enumerate(tiles):
        y = 2.4 + 0.9 * tile
        page.text(left - 0.3, y + height / 2, f"CTA {tile}", ha="right")
        units_of(tile, 0, units, left, y)
        if units < longest:
            page.idle(left + units * unit, y, (longest - units) * unit, height, "the SM has no work")
    x = left + longest * unit
    page.line((x, 2.2), (x, 6.1), linewidth=0.8, linestyle=(0, (4, 3)))
    page.text(x + 0.3, 4.15, f"ends after {longest} units", ha="left", weight="bold", color=CEILING)

    page.heading(0.4, 7.1, f"v36: all tiles on one line of {total} units, cut into {LINE_CTAS} equal pieces")
    x, y = left, 8.5
    for tile, units in enumerate(tiles):
        units_of(tile, 0, units, x, y)
        x += units * unit
    for cta in range(LINE_CTAS + 1):
        x = left + begin_of_v36(cta, total, LINE_CTAS) * unit
        page.line((x, y - 0.75), (x, y + height + 0.3))
        if cta < LINE_CTAS:
            middle = (x + left + begin_of_v36(cta + 1, total, LINE_CTAS) * unit) / 2
            page.text(middle, y - 0.45, f"piece of CTA {cta}", color=CEILING)

    top = 10.3
    for cta, piece in enumerate(pieces):
        y, x = top + 0.9 * cta, left
        page.text(left - 0.3, y + height / 2, f"CTA {cta}", ha="right")
        for tile, begin, end in piece:
            units_of(tile, begin, end, x, y)
            x += (end - begin) * unit
    x = left + max(sum(end - begin for _, begin, end in piece) for piece in pieces) * unit
    page.line((x, top - 0.2), (x, top + 3.7), linewidth=0.8, linestyle=(0, (4, 3)))
    ends = -(-total // LINE_CTAS)
    page.text(x + 0.3, top + 0.4, f"ends after {ends} units", ha="left", weight="bold", color=CEILING)
    y = top + 1.5
    for tile in range(len(tiles)):
        *others, last = (cta for cta, piece in enumerate(pieces) if tile in (of for of, _, _ in piece))
        words = f"CTA {last} has all of tile {tile} and leaves no part."
        if others:
            names = f"{', '.join(map(str, others))} and {last}"
            words = f"CTAs {names} share tile {tile}. Each leaves a part, and the last one counted merges them."
        page.cell(x + 0.4, y - 0.25, 0.8, 0.5, tints[tile])
        page.text(x + 1.4, y, words, ha="left")
        y += 0.7
    keys = numbers["NUM_WARPS"] * numbers["BLOCK_N"]
    words = "A pale box has no keys and stands for what a tile's start costs."
    page.note(14.6, f"Each box is a unit of {keys} keys. {words}")
    page.note(15.3, "Across, the bars of CTAs show time. The merges are left out, and each SM runs one CTA.")
    return page.figure


PICTURES: dict[str, Callable[[Any, None], Any]] = {
    "lesson_v14.svg": draw_v14,
    "lesson_v20.svg": draw_v20,
    "lesson_v25.svg": draw_v25,
    "lesson_v26.svg": draw_v26,
    "lesson_v27.svg": draw_v27,
    "lesson_v28.svg": draw_v28,
    "lesson_v29.svg": draw_v29,
    "lesson_v30.svg": draw_v30,
    "lesson_v31.svg": draw_v31,
    "lesson_v32.svg": draw_v32,
    "lesson_v33.svg": draw_v33,
    "lesson_v34.svg": draw_v34,
    "lesson_v35.svg": draw_v35,
    "lesson_v36.svg": draw_v36,
}


def read(options: argparse.Namespace) -> tuple[None, str]:
    shapes = [*stream_configs("v27_tile_shapes").items()]
    numbers = [constants("v20_by_shape"), limits_of_sums(), shapes, constants("v28_split_keys")]
    decode = ("v29_packed_heads", "v30_one_launch", "v31_in_turn", "v32_few_splits", "v33_paged", "v34_short_path")
    numbers += [constants(step) for step in (*decode, "v36_stream_k")]
    waves = rule_of_v35(WAVES_TILES, WAVES_KEYS)
    return None, lesson_page.description(__file__, b"", [*numbers, [*chosen_by_v27().items()], waves])


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
