#!/usr/bin/env python3
"""Draws the pictures of lessons about what runs beside what: v11, v16 to v18, v21 to v24.

python3 scripts/draw/lesson_timelines.py FLASHSTEPS --out FOLDER     draws all pictures
python3 scripts/draw/lesson_timelines.py FLASHSTEPS --check FOLDER   are they what the program and this script say?

FLASHSTEPS is the program whose command `trace` is asked: build/flashsteps or build/ci/flashsteps. v11, v16 and v17 are
drawn from what it says that their warps do, the others from small models: the emulator does not know that warpgroups
share the tensor cores.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings, lesson_page, pipeline_picture
from draw.drawings import TINTS
from draw.figure_style import CEILING, INK, MUTED
from draw.lesson_page import COPY, NEUTRAL, OUTPUT, Q_TINT, READY, SCORES, SOFTMAX, WAIT
from draw.lesson_page import Page, Rows, StreamConfig, constants, stream_configs
from draw.pipeline_picture import LEGEND, Trace, draw_warp

NOMINAL = (
    "The axis is the emulator's nominal time: it shows what waits for what, not how long anything takes."
)

# step -> the problem that is traced, and the CTA. v17: so many tiles that each of its eight CTAs gets a third one.
TRACED = {
    "v09_direct_rescale": ("1,1,1,64,256,64",),
    "v11_cp_async": ("1,1,1,64,256,64",),
    "v16_producer_warpgroup": ("1,1,1,128,192,64", "--causal"),
    "v17_persistent": ("1,24,24,256,192,64", "--cta", "0"),
}


def draw_v11(plt: Any, traces: dict[str, Trace]) -> Any:
    before, trace = traces["v09_direct_rescale"], traces["v11_cp_async"]
    products = trace.of(0, "products")
    end = products[-1].end
    page = Page(plt, 11.8, "v11 copies the next tile while all warps compute on this one")
    rows = page.rows(3.0, 0, end)
    page.heading(0.4, 1.8, "v09")
    rows.name(2.7, "every warp")
    draw_warp(rows, before, 0, 2.7)

    page.heading(0.4, 4.0, "v11")
    groups = {int(e.name.split()[-1]): e for track in trace.tracks for e in trace.of(track, "copy")}
    for stage in range(2):
        y = 4.9 + 1.0 * stage
        rows.name(y, f"stage {stage}")
        for group, copy in sorted(groups.items()):
            if group % 2 == stage:
                rows.bar(y, copy.begin, copy.end, COPY, f"K{group}, V{group}", f"{group}")
                rows.bar(y, copy.end, products[2 * group + 1].end, READY, f"K{group}, V{group}")
    y = 7.3
    rows.name(y, "every warp")
    draw_warp(rows, trace, 0, y, asks=True)
    asks = [e for e in trace.of(0, "memory") if e.end < end]
    for group in (1, 2, 3):
        copy = groups[group]
        page.point((rows.at(copy.begin), y - 0.4), (rows.at(copy.begin), 4.9 + (group % 2) + 0.4))
    barriers = [ask.begin for ask in asks[1:]] + [products[6].begin]
    for number, time in enumerate(barriers):
        page.line((rows.at(time), y - 0.55), (rows.at(time), y + 0.75))
        page.text(rows.at(time), y + 1.0, "barrier", color=CEILING)
    page.legend(9.2, LEGEND | {"a copy on its way": COPY, "can be read": READY, "requests copies": NEUTRAL})
    page.note(
        10.1,
        "At the barrier every lane's copies have arrived, and every warp has read the stage that is filled next.\n"
        + NOMINAL,
    )
    return page.figure


def ends_of(trace: Trace, warps: range, letter: str) -> list[int]:
    """When the last of these warps is done with the n-th product whose name begins so; one in parts with the last."""
    ends: dict[int, int] = {}
    for warp in warps:
        number = -1
        for event in trace.of(warp, "products"):
            number += event.name.startswith("S ")
            if event.name.startswith(letter):
                ends[number] = max(ends.get(number, 0), event.end)
    return [ends[number] for number in sorted(ends)]


def copies_of(trace: Trace, tensor: str) -> list[list[tuple[int, int, int]]]:
    """For each of a tensor's places: number, begin and end of each copy to it; numbers count all its copies."""
    places = [[e for e in trace.of(track, "copy") if e.name.split()[0] == tensor] for track in trace.tracks]
    order = sorted((e.begin, e.end) for place in places for e in place)
    return [[(order.index((e.begin, e.end)), e.begin, e.end) for e in place] for place in places if place]


def draw_v16(plt: Any, traces: dict[str, Trace]) -> Any:
    trace, of = traces["v16_producer_warpgroup"], constants("v16_producer_warpgroup")
    page = Page(plt, 18.7, "Registers move to the warps that compute, and these meet at no barrier")
    threads, ctas = 128, of["CTAS_PER_SM"]
    launch = 65536 // (ctas * 2 * threads)
    page.heading(0.4, 1.8, "One SM's 65,536 registers, for two CTAs")
    left, wide = 4.2, page.width - 4.6
    for row, (name, numbers) in enumerate(
        {
            "at launch": (launch, launch),
            "after setmaxnreg": (of["PRODUCER_REGISTERS"], of["CONSUMER_REGISTERS"]),
        }.items()
    ):
        y, x = 2.4 + 1.25 * row, left
        page.text(left - 0.25, y + 0.55, name, ha="right")
        for _ in range(ctas):
            for number, colour, who in zip(numbers, (NEUTRAL, SCORES), ("producer", "consumers")):
                width = wide * number * threads / 65536
                page.cell(x, y, width, 1.1, colour, f"{who}\n{threads} × {number}", f"{number}")
                x += width

    page.heading(0.4, 5.7, "One CTA: 192 keys in three tiles, a causal mask")
    end = max(e.end for warp in range(4) for e in trace.of(warp, "products", "work"))
    rows = page.rows(4.2, 0, end)
    y = 6.5
    for tensor, letter in (("K", "S "), ("V", "O ")):
        done = ends_of(trace, range(4), letter)
        for stage, copies in enumerate(copies_of(trace, tensor)):
            rows.name(y, f"{tensor}, stage {stage}")
            for number, begin, arrived in copies:
                rows.bar(y, begin, arrived, COPY, f"{tensor}{number}")
                rows.bar(y, arrived, done[number], READY, f"{tensor}{number}")
            y += 0.95
    y += 0.35
    rows.name(y, "producer", weight="bold")
    draw_warp(rows, trace, 4, y)
    producer = y
    y += 1.25
    places = {}
    for warp in range(4):
        places[warp] = y
        rows.name(y, f"warp {warp}")
        draw_warp(rows, trace, warp, y)
        y += 0.95
    released = ends_of(trace, range(4), "S ")[0]
    page.point((rows.at(released), places[0] - 0.4), (rows.at(released), producer + 0.4))
    page.point((rows.at(released), producer - 0.4), (rows.at(released), 6.5 + 0.4))
    idle = max(e.end for e in trace.of(0, "products", "work", "wait"))
    page.text(rows.at(idle) + 0.2, places[0], "K2, V2 released unread", ha="left", color=CEILING)
    page.legend(16.3, LEGEND | {"a copy on its way": COPY, "can be read": READY, "waits": WAIT, "asks": INK})
    page.note(
        17.2,
        "Arrows: when all four warps have released K0, the producer asks for K2. It waits at one mbarrier after the other.\n"
        + NOMINAL,
    )
    return page.figure


def draw_v17(plt: Any, traces: dict[str, Trace]) -> Any:
    trace = traces["v17_persistent"]
    tiles_of_keys = 3
    page = Page(plt, 13.6, "While a tile of queries ends, Q and K of the next one are on their way")
    done_s = ends_of(trace, range(4), "S ")
    leaving = sorted(
        (e.begin, e.end) for track in trace.tracks for e in trace.of(track, "copy") if e.name[0] == "O"
    )
    end = leaving[7][1]
    rows = page.rows(4.2, 0, end)
    y = 3.0
    for tile, (begin, last) in enumerate(zip((0, leaving[0][0]), (leaving[0][0], end))):
        page.text(rows.at((begin + last) / 2), 1.9, f"tile of queries {'AB'[tile]}", weight="bold")
    loads = sorted(
        (e.begin, e.end) for track in trace.tracks for e in trace.of(track, "copy") if e.name[0] == "Q"
    )
    for stage in range(2):
        rows.name(y, f"Q, stage {stage}")
        for tile in range(stage, 3, 2):
            its = loads[4 * tile : 4 * tile + 4]
            begin, arrived = its[0][0], max(last for _, last in its)
            name = f"Q of {'ABC'[tile]}"
            rows.bar(y, begin, arrived, COPY, name, "ABC"[tile])
            if tile < 2:
                out = leaving[4 * tile : 4 * tile + 4]
                rows.bar(y, arrived, out[0][0], READY, f"{name} is used", name)
                rows.bar(y, out[0][0], max(last for _, last in out), OUTPUT)
        y += 0.95
    for stage, copies in enumerate(copies_of(trace, "K")):
        rows.name(y, f"K, stage {stage}")
        for number, begin, arrived in copies:
            name = f"K{number % tiles_of_keys}"
            of = f"{name} of {'ABC'[min(number // tiles_of_keys, 2)]}"
            rows.bar(y, begin, arrived, COPY, of, name)
            rows.bar(y, arrived, (done_s + [end] * 9)[number], READY, of, name)
        y += 0.95
    y += 0.4
    rows.name(y, "producer", weight="bold")
    draw_warp(rows, trace, 4, y)
    y += 1.2
    for warp in (0, 3):
        rows.name(y, f"warp {warp}")
        draw_warp(rows, trace, warp, y, tiles=tiles_of_keys)
        y += 0.95
    page.line((rows.at(leaving[0][0]), 2.4), (rows.at(leaving[0][0]), y - 0.4), zorder=0.5)
    page.legend(y + 0.1, LEGEND | {"on its way": COPY, "can be read": READY, "waits": WAIT, "asks": INK})
    page.note(
        y + 1.0, "Green in the rows of Q: O leaves from Q's place. V has three stages, too.\n" + NOMINAL
    )
    return page.figure


# ---- From models. What takes how long: an SM's tensor cores make 4,096 FLOP a clock, its exponential units 16
# exponentials; to round P takes an instruction for two scores, and that two clocks. Nothing else takes time.


def clocks(keys: int, head_dim: int) -> tuple[int, int, int]:
    """Of one warpgroup's tile: a product, all exponentials, rounding P."""
    return 2 * 64 * keys * head_dim // 4096, 64 * keys // 16, 64 * keys // 128 // 2 * 2


def draw_v18(plt: Any) -> Any:
    page = Page(plt, 14.4, "v18 weaves the exponentials of one half among the products of the other")
    product, vote, early, late = 8.0, 0.9, 1.6, 4.6  # of a whole tile; only the order is meant
    block = product + vote
    rows = page.rows(4.2, 0, 4.15 * block)

    def draw_vote(y: float, time: float) -> None:
        rows.bar(y, time, time + vote, INK)

    page.heading(0.4, 1.9, "v17: S of a whole tile")
    names = ("tensor cores", "exponentials", "vote")
    for i, name in enumerate(names):
        rows.name(2.8 + 0.95 * i, name)
    time = 0.0
    for tile in ("j", "j+1"):
        rows.bar(2.8, time, time + product, SCORES, f"S {tile}")
        time += product
        draw_vote(4.7, time)
        rows.bar(3.75, time + vote, time + vote + early, SOFTMAX, "16 keys")
        time += vote + early
        rows.bar(2.8, time, time + product, OUTPUT, f"P V {tile}")
        rows.bar(3.75, time, time + late, SOFTMAX, f"48 keys of P {tile}", "48 keys")
        time += product

    page.heading(0.4, 6.1, "v18: S of two halves, a: keys 0–31, b: keys 32–63")
    for i, name in enumerate((*names, "array first", "array second")):
        rows.name(7.0 + 0.95 * i, name)
    halves = ["j a", "j b", "j+1 a", "j+1 b", "j+2 a"]
    for i in range(4):
        time = i * block
        done, made = halves[i], halves[i + 1]
        rows.bar(7.0, time, time + product / 2, SCORES, f"S {made}")
        rows.bar(7.95, time + 0.4, time + product / 2 - 0.2, SOFTMAX, f"P {done}")
        rows.bar(7.0, time + product / 2, time + product, OUTPUT, f"P V {done}")
        draw_vote(8.9, time + product)
        used, new = (9.85, 10.8) if i % 2 == 0 else (10.8, 9.85)
        rows.bar(used, time, time + product, NEUTRAL, f"{done}: S becomes P")
        rows.bar(new, time, time + product, READY, f"{made}: S is new")
        page.line(
            (rows.at(time + product), 6.6),
            (rows.at(time + product), 11.2),
            linestyle=(0, (4, 2)),
            linewidth=0.9,
        )
        page.text(rows.at(time + product / 2), 11.5, f"block {1 + i % 2}", color=MUTED)
    page.legend(
        12.1, {"S = Q Kᵀ": SCORES, "exponentials": SOFTMAX, "O += P V": OUTPUT, "vote, a branch": INK}
    )
    page.note(
        13.0,
        "What the source allows, not what the compiler makes of it (below): within a block, between two votes,\n"
        "it may mix all that stands one above the other. Only the order is meant, no width.",
    )
    return page.figure


def draw_products_v21(
    page: Page,
    x: float,
    y: float,
    names: tuple[str, str, str],
    colours: tuple[str, str, str],
    sizes: tuple[int, int, int],
) -> None:
    """A product of a warpgroup as on paper: B above the result, A to its left, in steps of 16."""
    (a, b, acc), (rows, depth, columns), scale = names, sizes, 5.0 / 128
    step, wide, tall = 16 * scale, columns * scale, rows * scale
    top, left = y + depth * scale + 0.3, x + depth * scale + 0.3
    for i in range(depth // 16):
        page.cell(x + step * i, top, step, tall, colours[0], str(i) if i else "0")
        page.cell(left, y + step * i, wide, step, colours[1], str(i))
    for warp in range(4):
        page.cell(
            left,
            top + tall / 4 * warp,
            wide,
            tall / 4,
            colours[2],
            f"{acc}: warp {warp}, rows {16 * warp}–{16 * warp + 15}",
        )
    page.box(x, top, step, tall, edgecolor=CEILING, linewidth=2, zorder=8)
    page.box(left, y, wide, step, edgecolor=CEILING, linewidth=2, zorder=8)
    page.text(x, top + tall + 0.4, a, ha="left")
    page.text(x + depth * scale - 0.1, y + 1.2, b, ha="right", linespacing=1.5)


def draw_v21(plt: Any) -> Any:
    of = constants("v21_wgmma")
    rows_of, keys, head_dim = of["WARPGROUP_M"], of["BLOCK_N"], 128
    page = Page(plt, 18.0, "wgmma: a warpgroup multiplies 64 rows, and names places in shared memory")
    page.heading(0.4, 1.8, f"S = Q Kᵀ: {head_dim // 16} × m64n{keys}k16")
    page.heading(14.2, 1.8, f"O += P V: {keys // 16} × m64n{head_dim}k16")
    draw_products_v21(
        page,
        0.4,
        2.5,
        ("Q: 64 queries × D, a descriptor each", f"Kᵀ: D × {keys} keys,\na descriptor each", "S"),
        (Q_TINT, Q_TINT, SCORES),
        (rows_of, head_dim, keys),
    )
    draw_products_v21(
        page,
        14.2,
        2.5,
        (f"P: 64 queries × {keys} keys, in registers", f"V: {keys} keys × D,\na descriptor each", "O"),
        (SOFTMAX, Q_TINT, OUTPUT),
        (rows_of, keys, head_dim),
    )
    page.legend(
        11.6,
        {"shared memory": Q_TINT, "registers: S": SCORES, "registers: P": SOFTMAX, "registers: O": OUTPUT},
    )
    page.text(page.width - 0.4, 11.85, "outlined: what the first wgmma reads", ha="right", color=CEILING)
    product, softmax, pack = clocks(keys, head_dim)
    page.heading(0.4, 13.0, "One turn of a warpgroup")
    rows = page.rows(4.2, 0, 2 * product + softmax + 2 * pack)
    rows.name(13.9, "tensor cores")
    rows.name(14.85, "its four warps")
    times = [0, product, product + softmax, product + softmax + pack, 2 * product + softmax + pack]
    rows.bar(13.9, times[0], times[1], SCORES, f"S: {head_dim // 16} wgmma")
    rows.bar(14.85, times[0], times[1], WAIT, "warpgroup_wait<0>")
    rows.bar(14.85, times[1], times[2], SOFTMAX, "vote, exponentials")
    rows.bar(14.85, times[2], times[3], NEUTRAL)
    page.text(rows.at(times[3]) - 0.1, 13.9, "rounds P", ha="right", color=MUTED)
    rows.bar(13.9, times[3], times[4], OUTPUT, f"O: {keys // 16} wgmma")
    rows.bar(14.85, times[3], times[4], WAIT, "warpgroup_wait<0>")
    for time, words in zip(
        (times[0], times[1], times[3], times[4]),
        ("K is there", "K is released", "V is there", "V is released"),
    ):
        page.line((rows.at(time), 15.25), (rows.at(time), 15.6))
        page.text(
            rows.at(time),
            15.85,
            words,
            ha="left" if time == 0 else "right" if time == times[4] else "center",
            color=CEILING,
        )
    page.note(
        16.7,
        f"Tile of {keys} keys, D = {head_dim}. Widths: 4,096 FLOP and 16 exponentials a clock, two clocks to round two scores a lane.",
    )
    return page.figure


def draw_v22(plt: Any) -> Any:
    of = constants("v22_overlap")
    product, softmax, pack = clocks(of["BLOCK_N"], 128)
    tiles = 4
    page = Page(plt, 12.0, "v22: exponentials of the next tile while P of this one is multiplied by V")
    rows = page.rows(3.4, 0, tiles * (2 * product + softmax + pack))

    def mark(time: float, words: str, side: str) -> None:
        page.line((rows.at(time), 7.15 - 0.4), (rows.at(time), 7.15 + 0.6))
        page.text(
            rows.at(time) + (0.3 if side == "right" else -0.3), 7.15 + 0.9, words, color=CEILING, ha=side
        )

    page.heading(0.4, 1.9, "v21")
    time = 0
    rows.name(2.8, "tensor cores")
    rows.name(3.75, "a warpgroup")
    for tile in range(tiles):
        rows.bar(2.8, time, time + product, SCORES, f"S {tile}")
        rows.bar(3.75, time, time + product, WAIT, "wait<0>")
        time += product
        rows.bar(3.75, time, time + softmax, SOFTMAX, f"softmax {tile}", f"exp {tile}")
        time += softmax
        rows.bar(3.75, time, time + pack, NEUTRAL)
        time += pack
        rows.bar(2.8, time, time + product, OUTPUT, f"P V {tile}")
        rows.bar(3.75, time, time + product, WAIT, "wait<0>")
        time += product

    page.heading(0.4, 5.3, "v22")
    rows.name(6.2, "tensor cores")
    rows.name(7.15, "a warpgroup")
    time = 0
    for tile in range(tiles + 1):
        if tile < tiles:
            rows.bar(6.2, time, time + product, SCORES, f"S {tile}")
            rows.bar(7.15, time, time + product, WAIT, "wait<1>" if tile else "wait<0>")
            time += product
            if tile == 2:
                mark(time, "S is there, K released", "right")
        if tile:
            rows.bar(6.2, time, time + product, OUTPUT, f"P V {tile - 1}")
            if tile == 2:
                mark(time + product, "O is there, V released", "left")
        if tile < tiles:
            rows.bar(7.15, time, time + softmax, SOFTMAX, f"softmax {tile}", f"exp {tile}")
            rows.bar(7.15, time + softmax, time + softmax + pack, NEUTRAL)
            time += softmax + pack
        else:
            rows.bar(7.15, time, time + product, WAIT, "wait<0>")
    page.legend(9.2, LEGEND | {"pack P, rescale O": NEUTRAL, "waits": WAIT})
    page.note(
        10.1,
        f"One warpgroup alone, {tiles} tiles of {of['BLOCK_N']} keys, D = 128. Widths: 4,096 FLOP and 16 exponentials a clock, two clocks to\n"
        "round two scores a lane. wait<0> ends behind all products, wait<1> behind all but the last group.",
    )
    return page.figure


def draw_v23(plt: Any) -> Any:
    product, softmax, _ = clocks(constants("v22_overlap")["BLOCK_N"], 128)
    write, store = 1.0 * product, 1.2 * product  # made up: only their order is meant
    page = Page(plt, 15.9, "The seam between two tiles of queries, A and B")
    rows = page.rows(4.2, 0, 11.3 * product)

    def draw_loop(y: float, time: float, turns: list[tuple[str, str, str]]) -> float:
        """Of S, P V and softmax that each turn begins with."""
        for s, pv, exp in turns:
            rows.bar(y, time, time + product, SCORES, s)
            rows.bar(y, time + product, time + 2 * product, OUTPUT, pv)
            rows.bar(y + 0.95, time + product, time + product + softmax, SOFTMAX, exp)
            time += 2 * product
        return time

    page.heading(0.4, 1.8, "v22")
    for i, name in enumerate(("tensor cores", "a warpgroup", "its lane 0")):
        rows.name(2.7 + 0.95 * i, name)
    time = draw_loop(2.7, 0, [("S3", "PV2", "exp 3")])
    rows.bar(2.7, time, time + product, OUTPUT, "PV3")
    begin = time = time + product
    rows.bar(3.65, time, time + write, NEUTRAL, "write O")
    rows.bar(4.6, time + write, time + write + store, COPY, "store O", "store")
    rows.bar(3.65, time + write, time + write + store, WAIT, "waits")
    time += write + store
    rows.bar(2.7, time, time + product, SCORES, "S0 B")
    rows.bar(3.65, time, time + product, WAIT, "waits")
    rows.bar(3.65, time + product, time + product + softmax, SOFTMAX, "exp 0")
    end = time + product + softmax
    page.line((rows.at(begin), 5.35), (rows.at(end), 5.35))
    page.text(rows.at((begin + time) / 2), 5.7, "no product of this warpgroup, but for S0", color=CEILING)
    draw_loop(2.7, end, [("S1 B", "PV0 B", "exp 1"), ("S2 B", "PV1 B", "exp 2")])

    page.heading(0.4, 6.9, "v23")
    names = ("tensor cores", "a warpgroup", "warp 9", "Q, place 0", "Q, place 1")
    y_of = {name: 7.8 + 0.95 * i for i, name in enumerate(names)}
    for name, y in y_of.items():
        rows.name(y, name)
    done = draw_loop(7.8, 0, [("S3", "PV2", "exp 3"), ("S0 B", "PV3", "exp 0")])
    y = y_of["a warpgroup"]
    rows.bar(y, done, done + write, NEUTRAL, "write O")
    end = draw_loop(7.8, done + write, [("S1 B", "PV0 B", "exp 1"), ("S2 B", "PV1 B", "exp 2")])
    stored = done + write + store
    rows.bar(y_of["warp 9"], done + write, stored, COPY, "store O")
    page.point((rows.at(done + write), y + 0.4), (rows.at(done + write), y_of["warp 9"] - 0.4))
    loaded = stored + 1.6 * product
    y = y_of["Q, place 0"]
    rows.bar(y, 0, done, READY, "Q of A")
    rows.bar(y, done, stored, OUTPUT, "O of A")
    rows.bar(y, stored, loaded, COPY, "loads C")
    rows.bar(y, loaded, end, READY, "Q of C")
    y = y_of["Q, place 1"]
    rows.bar(y, 0, 1.6 * product, COPY, "loads B")
    rows.bar(y, 1.6 * product, end, READY, "Q of B")
    page.legend(13.0, LEGEND | {"on its way": COPY, "can be read": READY, "writes O": NEUTRAL, "waits": WAIT})
    page.note(
        13.9,
        "S3, PV3: of A's last tile of keys; S0 B, PV0 B, …: the same of tile of queries B. Products and exponentials have\n"
        "their widths (D = 128, tiles of 128 keys, 4,096 FLOP and 16 exponentials a clock). To write and to store O take\n"
        "made-up times: only their order is meant. In v23 the loop does not end at the seam; only Q differs.",
    )
    return page.figure


def draw_shape(page: Page, x: float, y: float, title: str, config: StreamConfig) -> None:
    """The warpgroups of a CTA, and which of them read the same K and V."""
    page.text(x, y, title, ha="left", weight="bold")
    y += 0.6
    for pipeline in range(config.pipelines):
        tall = 0.6 * config.warpgroups
        for warpgroup in range(config.warpgroups):
            page.cell(x, y + 0.6 * warpgroup, 2.5, 0.6, TINTS[pipeline], "64 queries")
        page.point((x + 3.2, y + tall / 2), (x + 2.55, y + tall / 2), color=INK)
        page.cell(x + 3.2, y, 2.1, tall, COPY, f"{config.keys} keys")
        y += tall + 0.25


def draw_v24(plt: Any) -> Any:
    product, softmax, _ = clocks(128, 64)
    page = Page(plt, 16.5, "Two warpgroups take turns at the tensor cores")
    turns, whole = 3, 2 * product  # a turn has both products
    rows = page.rows(4.6, 0, 2 * turns * (whole + softmax))

    def draw_turn(y: float, begin: float, share: float) -> None:
        """With a share of each unit."""
        behind = begin + whole / share
        rows.bar(y, begin, behind, SCORES, "products", height=share)
        rows.bar(y, behind, behind + softmax / share, SOFTMAX, "exponentials", "exp", height=share)

    page.heading(
        0.4, 1.9, "D = 64, without turns: both need the same unit at the same time, and each gets half of it"
    )
    page.heading(0.4, 4.9, "D = 64, in turns: while one multiplies, the other exponentiates")
    for warpgroup in range(2):
        rows.name(2.8 + 0.85 * warpgroup, f"warpgroup {warpgroup}")
        for turn in range(turns):
            draw_turn(2.8 + 0.85 * warpgroup, turn * 2 * (whole + softmax), 0.5)
    asks = []  # time and row of each turn: one ends when its products are in the queue
    for turn in range(turns):
        for warpgroup in range(2):
            y = 5.9 + 1.5 * warpgroup
            rows.name(y, f"warpgroup {warpgroup}") if not turn else None
            begin = turn * (whole + softmax) + warpgroup * whole
            asks.append((begin if turn or not warpgroup else 0.12 * whole, y))
            draw_turn(y, begin, 1)
    rows.bar(asks[1][1], asks[1][0], whole, WAIT, height=1.0)
    for time, y in asks:
        rows.bar(y, time, time + 0.07 / rows.unit, INK, height=1.0, linewidth=0)
    for (time, y), (following, other) in zip(asks, asks[1:]):
        side = 0.5 if other > y else -0.5
        page.point((rows.at(time), y + side), (rows.at(following), other - side))
    end = turns * (whole + softmax) + whole
    page.text(rows.at(end) + 0.3, 6.65, f"{turns} tiles each are done", ha="left", color=CEILING)
    page.legend(
        8.5,
        {"products: S and P V": SCORES, "exponentials": SOFTMAX, "issues its products": INK, "waits": WAIT},
    )
    page.text(page.width - 0.4, 8.75, "arrow: gives the turn", ha="right", color=CEILING)
    page.heading(
        0.4,
        10.1,
        "The shapes: a band is a warpgroup; one tile of K and V serves all warpgroups of a pipeline",
    )
    for i, ((head_dim, name), config) in enumerate(stream_configs("v24_by_turns").items()):
        turn = "turns" if config.takes_turns else "no turns"
        draw_shape(page, 0.4 + 6.8 * i, 11.1, f"{name.lower()}, D = {head_dim}, {turn}", config)
    page.note(
        15.1,
        "Above: two warpgroups with a tile of 128 keys each, 4,096 FLOP and 16 exponentials a clock, and nothing else takes\n"
        "time. A turn is black: it ends when the products are in the queue of the tensor cores.",
    )
    return page.figure


PICTURES: dict[str, Callable[[Any, dict[str, Trace]], Any]] = {
    "lesson_v11.svg": draw_v11,
    "lesson_v16.svg": draw_v16,
    "lesson_v17.svg": draw_v17,
    "lesson_v18.svg": lambda plt, traces: draw_v18(plt),
    "lesson_v21.svg": lambda plt, traces: draw_v21(plt),
    "lesson_v22.svg": lambda plt, traces: draw_v22(plt),
    "lesson_v23.svg": lambda plt, traces: draw_v23(plt),
    "lesson_v24.svg": lambda plt, traces: draw_v24(plt),
}


def read(options: argparse.Namespace) -> tuple[dict[str, Trace], str]:
    """The traces and the description, as in pipeline_picture.py. Of v17 not what it does: which tiles a CTA gets
    after its first depends on the others, and the picture shows two."""
    traces = {step: pipeline_picture.read_trace(options.program, step, *how) for step, how in TRACED.items()}
    same = {step: trace for step, trace in traces.items() if step != "v17_persistent"}
    numbers = [constants(step) for step in ("v16_producer_warpgroup", "v21_wgmma", "v22_overlap")]
    doing = pipeline_picture.doing(same), Path(pipeline_picture.__file__).read_bytes()
    return traces, lesson_page.description(
        __file__, doing, numbers, [*stream_configs("v24_by_turns").items()]
    )


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
