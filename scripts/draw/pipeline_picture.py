"""Who waits for whom, in v03 and v04, v09, v10, v11, v16 and v17, from what `flashsteps trace` says that warps do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable

from draw import drawings, ideas
from draw.figure_style import BACKGROUND, CEILING, IDLE, INK, KV, KV_THERE, NEUTRAL, O, P, Q, Q_THERE, S
from draw.sheet import Sheet

FIRST_COPY_TRACK = 100  # as docs/pipeline.md says


@dataclass(frozen=True)
class Event:
    track: int
    kind: str
    name: str
    begin: int
    end: int
    mbarrier: str
    phase: int
    at: str  # file:line


@dataclass(frozen=True)
class Trace:
    events: list[Event]
    tracks: list[int]

    def of(self, track: int, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.track == track and event.kind in kinds]


# What is traced, of which CTA: small problems with so many tiles that everything has happened twice. v17 has so many
# that each of its eight CTAs gets a third tile of queries.
TRACED = {
    "v03": ("v03_wmma", "1,1,1,64,128,64"),
    "v04": ("v04_warp_softmax", "1,1,1,64,128,64"),
    "v09": ("v09_direct_rescale", "1,1,1,64,128,64"),
    "v09, longer": ("v09_direct_rescale", "1,1,1,64,256,64"),
    "v10": ("v10_tma_warpspec", "1,1,1,64,256,64"),
    "v11": ("v11_cp_async", "1,1,1,64,256,64"),
    "v16": ("v16_producer_warpgroup", "1,1,1,128,192,64", "--causal"),
    "v17": ("v17_persistent", "1,24,24,256,192,64", "--cta", "0"),
}


def read_trace(program: Path, step: str, *problem: str) -> Trace:
    said = drawings.ask_flashsteps(program, "trace", step, *problem)
    found = said["traceEvents"]
    events = []
    for e in found:
        if e["ph"] in "Xi":
            args = {"mbarrier": "", "phase": -1, "at": ""} | e["args"]
            times = e["ts"], e["ts"] + e.get("dur", 0)
            events.append(Event(e["tid"], e["cat"], e["name"], *times, args["mbarrier"], args["phase"], args["at"]))
    return Trace(events, sorted(e["tid"] for e in found if e["name"] == "thread_name"))


def read(build: Path) -> dict[str, Trace]:
    quotes = "CTAS_PER_SM = 2;", "PRODUCER_REGISTERS = 24;", "CONSUMER_REGISTERS = 232;"
    drawings.check_quotes("steps/v16_producer_warpgroup/kernel.cu", *quotes)
    return {name: read_trace(build / "flashsteps", step, *how) for name, (step, *how) in TRACED.items()}


class Rows:
    """Rows of bars over time, from above to below, between two edges of a page."""

    def __init__(self, page: Sheet, y: float, left: float, begin: float, end: float, right: float | None = None):
        self.page, self.y, self.left, self.begin, self.end = page, y, left, begin, end
        self.unit = ((right or page.width - 0.4) - left) / (end - begin)

    def at(self, time: float) -> float:
        return self.left + (min(max(time, self.begin), self.end) - self.begin) * self.unit

    def next(self, name: str, **how: Any) -> float:
        """Where the next row is, which has this name."""
        y, self.y = self.y, self.y + 0.95
        self.page.text(self.left - 0.25, y, name, ha="right", **how)
        return y

    def bar(self, y: float, begin: float, end: float, colour: str, *texts: str, **how: Any) -> None:
        x = self.at(begin)
        if (width := self.at(end) - x) > 0:
            self.page.cell(x, y - 0.375, width, 0.75, colour, *texts, **how)

    def place(self, name: str, stays: Iterable[tuple[int, int, int, str]], there: str = " is there") -> float:
        """Of tiles of K or V, or both. Of each: when its copy begins, when it is there, when the place is free for the
        next one, and its name, whose first word may stand alone."""
        y = self.next(name)
        for begin, arrived, released, tile in stays:
            short = tile, tile.split(" of ")[0]
            self.bar(y, begin, arrived, KV, f"copy {tile}", *short)
            self.bar(y, arrived, released, KV_THERE, f"{tile}{there}", *short)
        return y


LEGEND = {"S = Q Kᵀ": S, "softmax": P, "O += P V": O}
NOMINAL = "Time runs to the right; widths are nominal costs, not measured times."
LEFT = 2.8  # of the rows: room for "consumer 0"


def draw_warp(rows: Rows, trace: Trace, warp: int, name: str, asks: bool = False, tiles: int = 99) -> float:
    """What a warp computes, loads, asks and waits for, in the next row. Bursts count: the n-th belongs to tile n, of so
    many for a tile of queries. If it asks for copies instead of loading, accesses to global memory are part of that."""
    y = rows.next(name, **({"weight": "bold"} if name == "producer" else {}))
    count: dict[str, int] = {}
    phases: list[tuple[str, tuple[str, ...], int, int]] = []  # colour, texts, begin, end

    def numbered(name: str) -> str:
        count[name] = count.get(name, -1) + 1
        return f"{name} {count[name] % tiles}"

    for event in trace.of(warp, "products", "work", "memory", "wait"):
        last = phases[-1][0] if phases else ""
        product = {"S": S, "O": O}[event.name[0]] if re.match(r"[SO] \+?= ", event.name) else None
        if (product or event.kind == "work" and P) == last:  # work around products is of their phase
            phases[-1] = (*phases[-1][:3], event.end)
            continue
        if product:
            name = "S" if product == S else "PV"
            colour, texts = product, (numbered(name), name)
        elif event.kind == "work":
            colour, texts = P, ("softmax", "exp")
        elif event.kind == "memory" and asks:
            colour, texts = NEUTRAL, ("ask",)
        elif event.kind == "memory":
            tensor = event.name.split()[-1]
            name = numbered(tensor) if tensor in "KV" else tensor
            colour, texts = Q if tensor == "Q" else KV, (f"load {name}", name, tensor)
        elif event.end == event.begin:
            continue
        else:
            tile = tile_of(trace, event)
            done = "is done" if "empty" in event.mbarrier else "is there"
            words = f"waits until {tile} {done}", f"until {tile} {done}", tile
            colour, texts = IDLE, words if tile else ("waits",) if event.mbarrier else ("waits at the barrier", "waits")
        phases.append((colour, texts, event.begin, event.end))
    for colour, texts, begin, end in phases:
        rows.bar(y, begin, end, colour, *texts)
    for event in trace.of(warp, "issue"):
        rows.bar(y, event.begin, event.begin + 0.07 / rows.unit, INK, linewidth=0)
    return y


def tile_of(trace: Trace, event: Event) -> str:
    """Which tile a phase of an mbarrier is about: "K 2", by the mbarrier's name, bar_k_full[0], and phase."""
    found = re.fullmatch(r"bar_([a-z])_(?:full|empty)(?:\[(\d+)\])?", event.mbarrier)
    if not found:
        return ""
    tensor, stage = found[1], found[2]
    if stage is None:
        return tensor.upper()
    stages = {e.mbarrier for e in trace.events if e.mbarrier.startswith(f"bar_{tensor}_full")}
    return f"{tensor.upper()} {event.phase * len(stages) + int(stage)}"


def ends_of(trace: Trace, letter: str) -> list[int]:
    """When the last of four warps is done with the n-th product whose name begins so; one in parts with the last."""
    ends: dict[int, int] = {}
    for warp in range(4):
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


def draw_stages(rows: Rows, trace: Trace, tensor: str, name: Callable[[int], str]) -> list[int]:
    """A row for each place of K or V: tiles, named by their numbers, until the last product that reads them ends. When
    these end, of those that are traced."""
    ends = ends_of(trace, {"K": "S ", "V": "O "}[tensor])
    for stage, copies in enumerate(copies_of(trace, tensor)):
        stays = ((begin, arrived, ends[i] if i < len(ends) else rows.end, name(i)) for i, begin, arrived in copies)
        rows.place(f"{tensor}, stage {stage}", stays)
    return ends


def draw_v10(traces: dict[str, Trace]) -> Sheet:
    trace = traces["v10"]
    end = max(e.end for warp in range(4) for e in trace.of(warp, "products"))
    page = Sheet("v10: one warp asks for tiles, four warps compute on them", 14.5)
    rows = Rows(page, 2.1, LEFT, 0, end)
    read, _ = draw_stages(rows, trace, "K", "K {}".format), draw_stages(rows, trace, "V", "V {}".format)
    rows.y += 0.5
    producer_y = draw_warp(rows, trace, 4, "producer")
    rows.y += 0.55
    consumer_y = [draw_warp(rows, trace, warp, f"consumer {warp}") for warp in range(4)][0]

    # The life of one tile: the first that has to wait for its place.
    [copy] = [e for e in trace.events if e.kind == "copy" and e.name == "K tile 2"]
    products = [e for e in trace.of(0, "products") if e.name.startswith("S")][2]
    released, asked, landed, used = map(rows.at, (read[0], copy.begin, copy.end, products.begin))
    stage_y = 2.1
    page.point((released, consumer_y - 0.4), (released, producer_y + 0.4))
    page.point((asked, producer_y - 0.4), (asked, stage_y + 0.4))
    page.line((landed, stage_y - 0.6), (landed, stage_y + 0.4))
    page.point((used, stage_y + 0.4), (used, consumer_y - 0.4))
    events = (released, consumer_y), (asked, producer_y), (landed, stage_y), (used, consumer_y)
    for number, (x, at) in zip("①②③④", events):
        page.text(x, at - 0.72, number, 13, color=CEILING, weight="bold", halo=BACKGROUND)

    more = {"a copy under way": KV, "can be read": KV_THERE, "asks for a copy": INK, "waits": IDLE}
    page.legend(rows.y - 0.05, LEGEND | more)
    page.note(
        rows.y + 0.85,
        "One place for K, tile after tile.  ①  The last of four warps arrives at bar_k_empty[0]: K 0 has been read.  "
        "②  The producer,\nwhich waited for that, asks for K 2.  ③  All bytes of K 2 are there: a phase of bar_k_full[0]"
        " is complete.  ④  S 2 needs K 2,\nand no warp waits.  " + NOMINAL,
    )
    return page


def draw_v09(traces: dict[str, Trace]) -> Sheet:
    trace = traces["v09"]
    end = max(e.end for t in trace.tracks for e in trace.of(t, "products"))
    page = Sheet("v09: the same warps load and compute, in turns", 0.95 * len(trace.tracks) + 3.9)
    rows = Rows(page, 2.1, 2.4, 0, end)
    for warp in trace.tracks:
        draw_warp(rows, trace, warp, f"warp {warp}")
    page.legend(rows.y - 0.05, {"loads a tile": KV} | LEGEND)
    page.note(rows.y + 0.85, "While the CTA loads it does not compute. " + NOMINAL)
    return page


def draw_v04(traces: dict[str, Trace]) -> Sheet:
    """The second of two tiles, once in each of both steps, on one scale."""
    spans = {}
    for step in ("v03", "v04"):
        load = [e for e in traces[step].of(0, "memory") if e.name.endswith(" K")][1]
        ends = [e.end for e in traces[step].of(0, "products", "work") if e.name.endswith("P V")]
        spans[step] = load.begin, max(ends)
    longest = max(last - first for first, last in spans.values())
    page = Sheet("A tile in v03, where two of four warps compute the softmax, and in v04", 12.3)
    y = 2.1
    for step, (first, last) in spans.items():
        whole = Rows(page, y, LEFT, first, first + longest)
        rows = Rows(page, y, LEFT, first, last, right=whole.at(last))
        for warp in traces[step].tracks:
            draw_warp(rows, traces[step], warp, f"{step}, warp {warp}")
        y = rows.y + 0.5
    page.legend(y - 0.45, {"loads a tile": KV} | LEGEND | {"waits": IDLE})
    words = "A warp's plain accesses count where it next acts as one, so some of the softmax's are in its load of V.\n"
    page.note(y + 0.4, words + NOMINAL)
    return page


def draw_v11(traces: dict[str, Trace]) -> Sheet:
    before, trace = traces["v09, longer"], traces["v11"]
    products = trace.of(0, "products")
    end = products[-1].end
    page = Sheet("v11 copies the next tile while all warps compute on this one", 11.8)
    page.heading(0.4, 1.8, "v09")
    draw_warp(Rows(page, 2.7, 3.0, 0, end), before, 0, "every warp")
    page.heading(0.4, 4.0, "v11")
    rows = Rows(page, 4.9, 3.0, 0, end)
    groups = {int(e.name.split()[-1]): e for track in trace.tracks for e in trace.of(track, "copy")}
    stages = []
    for stage in range(2):
        its = [(group, copy) for group, copy in sorted(groups.items()) if group % 2 == stage]
        stays = [(copy.begin, copy.end, products[2 * group + 1].end, f"K{group}, V{group}") for group, copy in its]
        stages.append(rows.place(f"stage {stage}", stays, there=""))
    rows.y += 0.5
    y = draw_warp(rows, trace, 0, "every warp", asks=True)
    asks = [e for e in trace.of(0, "memory") if e.end < end]
    for group in (1, 2, 3):
        at = rows.at(groups[group].begin)
        page.point((at, y - 0.4), (at, stages[group % 2] + 0.4))
    for time in [ask.begin for ask in asks[1:]] + [products[6].begin]:
        page.line((rows.at(time), y - 0.55), (rows.at(time), y + 0.75))
        page.text(rows.at(time), y + 1.0, "barrier", color=CEILING)
    page.legend(9.2, LEGEND | {"a copy on its way": KV, "can be read": KV_THERE, "requests copies": NEUTRAL})
    words = "At the barrier every lane's copies have arrived, and every warp has read the stage that is filled next.\n"
    page.note(10.1, words + NOMINAL)
    return page


REGISTERS = r"""
= One SM's 65,536 registers, for two CTAs
at launch | n128"producer\n128 × 128" a128"consumers\n128 × 128" n128"producer\n128 × 128" a128"consumers\n128 × 128"
after setmaxnreg | n24"24" a232"consumers\n128 × 232" n24"24" a232"consumers\n128 × 232"
"""


def draw_v16(traces: dict[str, Trace]) -> Sheet:
    trace = traces["v16"]
    page = Sheet("Registers move to the warps that compute, and these meet at no barrier", 18.1)
    y = ideas.add(page, 1.3, REGISTERS)
    page.heading(0.4, y + 0.4, "One CTA: 192 keys in three tiles, a causal mask")
    y += 1.3
    end = max(e.end for warp in range(4) for e in trace.of(warp, "products", "work"))
    rows = Rows(page, y, 4.2, 0, end)
    read, _ = draw_stages(rows, trace, "K", "K{}".format), draw_stages(rows, trace, "V", "V{}".format)
    rows.y += 0.35
    producer = draw_warp(rows, trace, 4, "producer")
    rows.y += 0.3
    first = [draw_warp(rows, trace, warp, f"warp {warp}") for warp in range(4)][0]
    released = rows.at(read[0])
    page.point((released, first - 0.4), (released, producer + 0.4))
    page.point((released, producer - 0.4), (released, y + 0.4))
    idle = max(e.end for e in trace.of(0, "products", "work", "wait"))
    page.text(rows.at(idle) + 0.2, first, "K2, V2 released unread", ha="left", color=CEILING)
    page.legend(rows.y - 0.05, LEGEND | {"a copy on its way": KV, "can be read": KV_THERE, "waits": IDLE, "asks": INK})
    words = "Arrows: when all four warps have released K0, the producer asks for K2. It waits at one mbarrier after the"
    page.note(rows.y + 0.85, f"{words} other.\n{NOMINAL}")
    return page


def draw_v17(traces: dict[str, Trace]) -> Sheet:
    trace = traces["v17"]
    tiles_of_keys = 3
    page = Sheet("While a tile of queries ends, Q and K of the next one are on their way", 13.6)
    copies = [(e.name[0], e.begin, e.end) for track in trace.tracks for e in trace.of(track, "copy")]
    # Of each tile of queries four copies bring Q, and four take O away: when the first begins, and the last ends.
    loads, leaving = (
        [(its[n][0], max(end for _, end in its[n : n + 4])) for n in range(0, len(its) - 3, 4)]
        for its in (sorted((begin, end) for name, begin, end in copies if name == tensor) for tensor in "QO")
    )
    end = leaving[1][1]
    rows = Rows(page, 3.0, 4.2, 0, end)
    for name, begin, last in (("A", 0, leaving[0][0]), ("B", leaving[0][0], end)):
        page.text(rows.at((begin + last) / 2), 1.9, f"tile of queries {name}", weight="bold")
    for stage in range(2):
        y = rows.next(f"Q, stage {stage}")
        for tile in range(stage, 3, 2):
            name = f"Q of {'ABC'[tile]}"
            rows.bar(y, *loads[tile], Q, name, "ABC"[tile])
            if tile < 2:
                rows.bar(y, loads[tile][1], leaving[tile][0], Q_THERE, f"{name} is used", name)
                rows.bar(y, *leaving[tile], O)
    draw_stages(rows, trace, "K", lambda i: f"K{i % tiles_of_keys} of {'ABC'[min(i // tiles_of_keys, 2)]}")
    rows.y += 0.4
    draw_warp(rows, trace, 4, "producer")
    rows.y += 0.25
    for warp in (0, 3):
        draw_warp(rows, trace, warp, f"warp {warp}", tiles=tiles_of_keys)
    page.line((rows.at(leaving[0][0]), 2.4), (rows.at(leaving[0][0]), rows.y - 0.4), zorder=0.5)
    more = {"Q is copied": Q, "K is copied": KV, "can be read": KV_THERE, "waits": IDLE, "asks": INK}
    page.legend(rows.y + 0.1, LEGEND | more)
    page.note(rows.y + 1.0, "Green in the rows of Q: O leaves from Q's place. V has three stages, too.\n" + NOMINAL)
    return page


PICTURES: dict[str, Callable[[dict[str, Trace]], Sheet]] = {
    "pipeline_v04.svg": draw_v04,
    "pipeline_v10.svg": draw_v10,
    "pipeline_v09.svg": draw_v09,
    "lesson_v11.svg": draw_v11,
    "lesson_v16.svg": draw_v16,
    "lesson_v17.svg": draw_v17,
}
