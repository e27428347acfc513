#!/usr/bin/env python3
"""Draws who waits for whom in v03 and v04, in v09 and in v10, from what the emulator says that their warps do.

python3 scripts/draw/pipeline_picture.py FLASHSTEPS --out FOLDER     draws all pictures
python3 scripts/draw/pipeline_picture.py FLASHSTEPS --check FOLDER   are they what the program and this script say?

FLASHSTEPS is the program whose command `trace` is asked: build/flashsteps or build/ci/flashsteps.
"""
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings, lesson_page
from draw.drawings import LINE, DrawingError
from draw.figure_style import INK
from draw.lesson_page import COPY, NEUTRAL, OUTPUT, READY, SCORES, SOFTMAX, WAIT, Page, Rows

FIRST_COPY_TRACK = 100  # as docs/pipeline.md says


@dataclass(frozen=True)
class Event:
    track: int
    kind: str
    name: str
    begin: int
    end: int
    mbarrier: str = ""
    phase: int = -1
    at: str = ""  # file:line


@dataclass(frozen=True)
class Trace:
    events: list[Event]
    tracks: list[int]
    costs: dict[str, int]

    def of(self, track: int, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.track == track and event.kind in kinds]


# Small problems: one CTA, so many K/V tiles that everything has happened twice.
PROBLEMS = {
    "v03_wmma": "1,1,1,64,128,64",
    "v04_warp_softmax": "1,1,1,64,128,64",
    "v09_direct_rescale": "1,1,1,64,128,64",
    "v10_tma_warpspec": "1,1,1,64,256,64",
}


def read_trace(program: Path, step: str, *problem: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        command = [str(program), "trace", step, "--shape", *problem, "--json", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                reason = (done.stderr or done.stdout).strip().replace("\n", " ")
                raise DrawingError(f"{program}: traces no {step} ({reason})")
            whole = json.loads(path.read_text(encoding="utf-8"))
            found = whole["traceEvents"]
            tracks = sorted(e["tid"] for e in found if e["name"] == "thread_name")
            events = [
                Event(
                    e["tid"],
                    e["cat"],
                    e["name"],
                    e["ts"],
                    e["ts"] + e.get("dur", 0),
                    e["args"].get("mbarrier", ""),
                    e["args"].get("phase", -1),
                    e["args"].get("at", ""),
                )
                for e in found
                if e["ph"] in "Xi"
            ]
            return Trace(events, tracks, whole["otherData"]["units"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DrawingError(f"{program}: traces no {step} ({error})") from error


def doing(traces: dict[str, Trace]) -> bytes:
    """What pictures of traces follow from: who does what in which order.

    Not the times: how many plain accesses a kernel has is the compiler's choice, and a picture that was drawn
    with another one is no worse. Nor places in the source: a comment more in a kernel changes no picture."""
    found = {}
    for step, trace in traces.items():
        kinds = ("products", "arrival", "wait", "issue", "copy")
        tracks = {
            t: [(e.kind, e.name.split(": ")[-1], e.phase) for e in trace.of(t, *kinds)] for t in trace.tracks
        }
        found[step] = [trace.costs, tracks]
    return json.dumps(found, sort_keys=True).encode()


def read(options: argparse.Namespace) -> tuple[dict[str, Trace], str]:
    """The traces, and the description: of what they do, the scripts, library versions."""
    traces = {step: read_trace(options.program, step, problem) for step, problem in PROBLEMS.items()}
    page = Path(lesson_page.__file__).read_bytes()
    return traces, drawings.description("pipeline", __file__, page, doing(traces))


LEGEND = {"S = Q Kᵀ": SCORES, "softmax": SOFTMAX, "O += P V": OUTPUT}
NOMINAL = "Time runs to the right; widths are nominal costs, not measured times."
LEFT = 2.8  # of the rows: room for "consumer 0"


def draw_warp(rows: Rows, trace: Trace, warp: int, y: float, asks: bool = False, tiles: int = 99) -> None:
    """What a warp computes, loads, asks and waits for. Bursts count: the n-th belongs to tile n, of so many for a tile
    of queries. If it asks for copies instead of loading, accesses to global memory are part of that."""
    count: dict[str, int] = {}
    phases: list[tuple[str, tuple[str, ...], int, int]] = []  # colour, texts, begin, end

    def numbered(name: str) -> str:
        count[name] = count.get(name, -1) + 1
        return f"{name} {count[name] % tiles}"

    for event in trace.of(warp, "products", "work", "memory", "wait"):
        last = phases[-1][0] if phases else ""
        product = {"S": SCORES, "O": OUTPUT}[event.name[0]] if re.match(r"[SO] \+?= ", event.name) else None
        if (product or event.kind == "work" and SOFTMAX) == last:  # work around products is of their phase
            phases[-1] = (*phases[-1][:3], event.end)
            continue
        if product:
            name = "S" if product == SCORES else "PV"
            colour, texts = product, (numbered(name), name)
        elif event.kind == "work":
            colour, texts = SOFTMAX, ("softmax", "exp")
        elif event.kind == "memory" and asks:
            colour, texts = NEUTRAL, ("ask",)
        elif event.kind == "memory":
            tensor = event.name.split()[-1]
            name = numbered(tensor) if tensor in "KV" else tensor
            colour, texts = COPY, (f"load {name}", name, tensor)
        elif event.end == event.begin:
            continue
        else:
            tile = tile_of(trace, event)
            done = "is done" if "empty" in event.mbarrier else "is there"
            words = f"waits until {tile} {done}", f"until {tile} {done}", tile
            colour, texts = WAIT, words if tile else ("waits",) if event.mbarrier else ("waits at the barrier", "waits")
        phases.append((colour, texts, event.begin, event.end))
    for colour, texts, begin, end in phases:
        rows.bar(y, begin, end, colour, *texts)
    for event in trace.of(warp, "issue"):
        rows.bar(y, event.begin, event.begin + 0.07 / rows.unit, INK, linewidth=0)


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


def phase_end(trace: Trace, mbarrier: str, phase: int) -> int:
    """When a phase of an empty barrier completes: at the last arrival."""
    return max(
        e.begin for e in trace.events if e.kind == "arrival" and (e.mbarrier, e.phase) == (mbarrier, phase)
    )


def draw_stage(rows: Rows, trace: Trace, track: int, y: float) -> None:
    """A stage: each of its tiles on its way, and then there until the consumers have released it."""
    for copy in trace.of(track, "copy"):
        tensor, _, number = copy.name.split()
        released = phase_end(trace, copy.mbarrier.replace("full", "empty"), copy.phase)
        rows.bar(y, copy.begin, copy.end, COPY, f"copy {tensor} {number}")
        rows.bar(y, copy.end, released, READY, f"{tensor} {number} is there", f"{tensor} {number}", edgecolor=LINE)


def draw_v10(plt: Any, traces: dict[str, Trace]) -> Any:
    trace = traces["v10_tma_warpspec"]
    [producer] = {e.track for e in trace.events if e.kind == "issue" and " K " in e.name}
    consumers = [t for t in trace.tracks if t < FIRST_COPY_TRACK and t != producer]
    stages = [t for t in trace.tracks if t >= FIRST_COPY_TRACK and trace.of(t, "copy")[0].name[0] in "KV"]
    end = max(e.end for t in consumers for e in trace.of(t, "products"))
    page = Page(plt, 0.95 * (len(stages) + len(consumers)) + 6.9, "v10: one warp asks for tiles, four warps compute on them")
    rows = page.rows(LEFT, 0, end)
    y = 2.1
    place: dict[tuple[str, int], float] = {}
    for track in stages:
        tensor = trace.of(track, "copy")[0].name[0]
        stage = sum(key[0] == tensor for key in place)
        place[tensor, stage] = y
        rows.name(y, f"{tensor}, stage {stage}")
        draw_stage(rows, trace, track, y)
        y += 0.95
    producer_y = y + 0.5
    rows.name(producer_y, "producer", weight="bold")
    draw_warp(rows, trace, producer, producer_y)
    y = consumer_y = producer_y + 1.5
    for warp in consumers:
        rows.name(y, f"consumer {warp}")
        draw_warp(rows, trace, warp, y)
        y += 0.95

    # The life of one tile: the first that has to wait for its place.
    [copy] = [e for e in trace.events if e.kind == "copy" and e.name == "K tile 2"]
    products = [e for e in trace.of(consumers[0], "products") if e.name.startswith("S")][2]
    released = phase_end(trace, copy.mbarrier.replace("full", "empty"), copy.phase - 1)
    released, asked, landed, used = map(rows.at, (released, copy.begin, copy.end, products.begin))
    stage_y = place["K", 0]
    page.point((released, consumer_y - 0.4), (released, producer_y + 0.4))
    page.point((asked, producer_y - 0.4), (asked, stage_y + 0.4))
    page.line((landed, stage_y - 0.6), (landed, stage_y + 0.4))
    page.point((used, stage_y + 0.4), (used, consumer_y - 0.4))
    for number, (x, at) in enumerate(
        ((released, consumer_y), (asked, producer_y), (landed, stage_y), (used, consumer_y)), start=1
    ):
        page.mark(x, at - 0.72, str(number))

    more = {"a copy under way": COPY, "can be read": READY, "asks for a copy": INK, "waits": WAIT}
    page.legend(y - 0.05, LEGEND | more)
    page.note(
        y + 0.85,
        "One place for K, tile after tile.  ①  The last of four warps arrives at bar_k_empty[0]: K 0 has been read.  "
        "②  The producer,\nwhich waited for that, asks for K 2.  ③  All bytes of K 2 are there: a phase of bar_k_full[0]"
        " is complete.  ④  S 2 needs K 2,\nand no warp waits.  " + NOMINAL,
    )
    return page.figure


def draw_v09(plt: Any, traces: dict[str, Trace]) -> Any:
    trace = traces["v09_direct_rescale"]
    end = max(e.end for t in trace.tracks for e in trace.of(t, "products"))
    page = Page(plt, 0.95 * len(trace.tracks) + 3.9, "v09: the same warps load and compute, in turns")
    rows, y = page.rows(2.4, 0, end), 2.1
    for warp in trace.tracks:
        rows.name(y, f"warp {warp}")
        draw_warp(rows, trace, warp, y)
        y += 0.95
    page.legend(y - 0.05, {"loads a tile": COPY} | LEGEND)
    page.note(y + 0.85, "While the CTA loads it does not compute. " + NOMINAL)
    return page.figure


def draw_v04(plt: Any, traces: dict[str, Trace]) -> Any:
    """The second of two tiles, once in each of both steps, on one scale."""
    spans = {}
    for step in ("v03_wmma", "v04_warp_softmax"):
        load = [e for e in traces[step].of(0, "memory") if e.name.endswith(" K")][1]
        ends = [e.end for e in traces[step].of(0, "products", "work") if e.name.endswith("P V")]
        spans[step] = load.begin, max(ends)
    longest = max(last - first for first, last in spans.values())
    page = Page(plt, 12.3, "A tile in v03, where two of four warps compute the softmax, and in v04")
    y = 2.1
    for step, (first, last) in spans.items():
        whole = page.rows(LEFT, first, first + longest)
        rows = Rows(page, LEFT, whole.at(last), first, last)
        for warp in traces[step].tracks:
            rows.name(y, f"{step[:3]}, warp {warp}")
            draw_warp(rows, traces[step], warp, y)
            y += 0.95
        y += 0.5
    page.legend(y - 0.45, {"loads a tile": COPY} | LEGEND | {"waits": WAIT})
    words = "A warp's plain accesses count where it next acts as one, so some of the softmax's are in its load of V.\n"
    page.note(y + 0.4, words + NOMINAL)
    return page.figure


PICTURES: dict[str, Callable[[Any, dict[str, Trace]], Any]] = {
    "pipeline_v04.svg": draw_v04,
    "pipeline_v10.svg": draw_v10,
    "pipeline_v09.svg": draw_v09,
}


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
