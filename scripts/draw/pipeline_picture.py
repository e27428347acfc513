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

from draw import drawings
from draw.drawings import LINE, DrawingError
from draw.figure_style import BACKGROUND, CEILING, INK, MUTED, TEXT, TITLE, WIDTH

# Okabe and Ito's, and tints of them where text stands on it.
COPY, READY, SCORES, SOFTMAX, OUTPUT, WAIT = "#d9a3c1", "#f3e3ec", "#7db8dc", "#f0c664", "#72c7a6", "#e9e9e5"
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
    return traces, drawings.description("pipeline", __file__, doing(traces))


class Sheet:
    """Rows of bars over nominal time; heights in units of a row."""

    def __init__(self, plt: Any, rows: float, end: int):
        left, right = 1.27, 0.1
        self.figure = plt.figure(figsize=(WIDTH, 0.3 * rows))
        inner = ((left / WIDTH), 0, (WIDTH - left - right) / WIDTH, 1)
        self.axes = self.figure.add_axes(inner)
        self.axes.set_xlim(0, end)
        self.axes.set_ylim(rows, 0)
        self.axes.axis("off")
        self.per_inch = end / (WIDTH - left - right)
        self.left = -left * self.per_inch
        self.rectangle = plt.Rectangle

    def text(self, x: float, y: float, text: str, size: float = TEXT, **how: Any) -> None:
        how = {"ha": "center", "va": "center", "color": INK, "zorder": 6, **how}
        self.axes.text(x, y, text, fontsize=size, clip_on=False, **how)

    def row_name(self, y: float, name: str, **how: Any) -> None:
        self.text(-0.07 * self.per_inch, y, name, ha="right", **how)

    def bar(self, y: float, begin: float, end: float, colour: str, *texts: str, **how: Any) -> None:
        """With the first of the texts that has room."""
        edge = {"edgecolor": LINE, "linewidth": 0.4} if colour in (WAIT, READY) else {"edgecolor": BACKGROUND, "linewidth": 0.6}
        look = {"facecolor": colour, "hatch": "////" if colour == WAIT else None, **edge, **how}
        self.axes.add_patch(self.rectangle((begin, y - 0.4), end - begin, 0.8, clip_on=False, **look))
        behind = {"bbox": {"facecolor": colour, "edgecolor": "none", "pad": 1.2}} if colour == WAIT else {}
        for text in texts:
            if (end - begin) / self.per_inch > 0.066 * len(text) + (0.06 if behind else 0):
                self.text((begin + end) / 2, y, text, **behind)
                return

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        look = {"arrowstyle": "-|>", "color": CEILING, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", end, start, arrowprops=look, zorder=7)

    def mark(self, x: float, y: float, number: int) -> None:
        self.text(
            x,
            y,
            str(number),
            color=BACKGROUND,
            weight="bold",
            zorder=9,
            bbox={
                "boxstyle": "circle,pad=0.22",
                "facecolor": CEILING,
                "edgecolor": BACKGROUND,
                "linewidth": 0.8,
            },
        )

    def legend(self, y: float, entries: list[tuple[str, str]]) -> None:
        x = self.left + 0.14 * self.per_inch
        for colour, words in entries:
            self.bar(y, x, x + 0.24 * self.per_inch, colour)
            self.text(x + 0.31 * self.per_inch, y, words, ha="left")
            x += (0.31 + 0.073 * len(words) + 0.2) * self.per_inch

    def caption(self, y: float, text: str) -> None:
        self.text(self.left + 0.14 * self.per_inch, y, text, ha="left", va="top", color=MUTED, linespacing=1.4)

    def title(self, text: str) -> None:
        self.text(self.left + 0.14 * self.per_inch, 0.75, text, TITLE, ha="left", weight="bold")


PHASES = [(SCORES, "S = Q Kᵀ"), (SOFTMAX, "softmax"), (OUTPUT, "O += P V")]
NOMINAL = "Time runs to the right; widths are nominal costs, not measured times."


def draw_warp(sheet: Sheet, trace: Trace, warp: int, y: float, end: int, begin: int = 0) -> None:
    """What a warp computes, loads and waits for from `begin` to `end`. Bursts count: the n-th belongs to tile n."""
    count: dict[str, int] = {}
    phases: list[tuple[str, tuple[str, ...], int, int]] = []  # colour, texts, begin, end

    def numbered(name: str) -> str:
        count[name] = count.get(name, -1) + 1
        return f"{name} {count[name]}"

    for event in trace.of(warp, "products", "work", "memory", "wait"):
        last = phases[-1][0] if phases else ""
        product = {"S": SCORES, "O": OUTPUT}.get(event.name[0]) if event.name[1:4] == " = " else None
        if (product or event.kind == "work" and SOFTMAX) == last:  # work around products is of their phase
            phases[-1] = (*phases[-1][:3], event.end)
            continue
        if product:
            colour, texts = product, (numbered("S" if product == SCORES else "PV"),)
        elif event.kind == "work":
            colour, texts = SOFTMAX, ("softmax",)
        elif event.kind == "memory":
            tensor = event.name.split()[-1]
            colour, texts = COPY, ("load Q" if tensor == "Q" else numbered(f"load {tensor}"), tensor)
        elif event.end == event.begin:
            continue
        else:
            tile = tile_of(trace, event)
            done = "is done" if "empty" in event.mbarrier else "is there"
            words = f"waits until {tile} {done}", f"until {tile} {done}", tile
            colour, texts = WAIT, words if tile else ("waits at the barrier", "waits")
        phases.append((colour, texts, event.begin, event.end))
    for colour, texts, first, last in phases:
        if begin <= first < end:
            sheet.bar(y, first - begin, last - begin, colour, *texts)


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


def draw_stage(sheet: Sheet, trace: Trace, track: int, y: float) -> None:
    """A stage: each of its tiles on its way, and then there until the consumers have released it."""
    for copy in trace.of(track, "copy"):
        tensor, _, number = copy.name.split()
        released = phase_end(trace, copy.mbarrier.replace("full", "empty"), copy.phase)
        sheet.bar(y, copy.begin, copy.end, COPY, f"copy {tensor} {number}")
        texts = f"{tensor} {number} is there", f"{tensor} {number}"
        sheet.bar(y, copy.end, released, READY, *texts)


def draw_v10(plt: Any, traces: dict[str, Trace]) -> Any:
    trace = traces["v10_tma_warpspec"]
    [producer] = {e.track for e in trace.events if e.kind == "issue" and " K " in e.name}
    consumers = [t for t in trace.tracks if t < FIRST_COPY_TRACK and t != producer]
    stages = [t for t in trace.tracks if t >= FIRST_COPY_TRACK and trace.of(t, "copy")[0].name[0] in "KV"]
    end = max(e.end for t in consumers for e in trace.of(t, "products"))
    sheet = Sheet(plt, len(stages) + len(consumers) + 7.0, end)
    sheet.title("v10: one warp asks for tiles, four warps compute on them")
    y = 2.1
    place: dict[tuple[str, int], float] = {}
    for track in stages:
        tensor = trace.of(track, "copy")[0].name[0]
        stage = sum(key[0] == tensor for key in place)
        place[tensor, stage] = y
        sheet.row_name(y, f"{tensor}, stage {stage}")
        draw_stage(sheet, trace, track, y)
        y += 1
    y += 0.5
    producer_y = y
    sheet.row_name(y, "producer warp", weight="bold")
    draw_warp(sheet, trace, producer, y, end)
    for event in trace.of(producer, "issue"):
        if event.name.split()[1] in "KV":
            sheet.bar(y, event.begin, event.begin + 0.035 * sheet.per_inch, INK, linewidth=0)
    y += 1.5
    consumer_y = y
    for warp in consumers:
        sheet.row_name(y, f"consumer warp {warp}")
        draw_warp(sheet, trace, warp, y, end)
        y += 1

    # The life of one tile: the first that has to wait for its place.
    [copy] = [e for e in trace.events if e.kind == "copy" and e.name == "K tile 2"]
    released = phase_end(trace, copy.mbarrier.replace("full", "empty"), copy.phase - 1)
    products = [e for e in trace.of(consumers[0], "products") if e.name.startswith("S")][2]
    stage_y = place["K", 0]
    sheet.arrow((released, consumer_y - 0.4), (released, producer_y + 0.42))
    sheet.arrow((copy.begin, producer_y - 0.4), (copy.begin, stage_y + 0.42))
    sheet.axes.plot(
        [copy.end, copy.end],
        [stage_y - 0.62, stage_y + 0.4],
        color=CEILING,
        linewidth=1.3,
        clip_on=False,
        zorder=7,
    )
    sheet.arrow((products.begin, stage_y + 0.4), (products.begin, consumer_y - 0.42))
    sheet.mark(released, consumer_y - 0.75, 1)
    sheet.mark(copy.begin, producer_y - 0.75, 2)
    sheet.mark(copy.end, stage_y - 0.72, 3)
    sheet.mark(products.begin, consumer_y - 0.75, 4)

    sheet.legend(
        y + 0.3,
        [
            *PHASES,
            (COPY, "a copy under way"),
            (READY, "can be read"),
            (INK, "asks for a copy"),
            (WAIT, "waits"),
        ],
    )
    sheet.caption(
        y + 1.1,
        "One place for K, tile after tile.  ①  The last of four warps arrives at bar_k_empty[0]: K 0 has been read.  "
        "②  The\nproducer, which waited for that, asks for K 2.  ③  All bytes of K 2 are there: a phase of bar_k_full[0]"
        " is complete.\n④  S 2 needs K 2, and no warp waits.  " + NOMINAL,
    )
    return sheet.figure


def draw_v09(plt: Any, traces: dict[str, Trace]) -> Any:
    trace = traces["v09_direct_rescale"]
    warps = trace.tracks
    end = max(e.end for t in warps for e in trace.of(t, "products"))
    sheet = Sheet(plt, len(warps) + 4.0, end)
    sheet.title("v09: the same warps load and compute, in turns")
    for index, warp in enumerate(warps):
        sheet.row_name(2.1 + index, f"warp {warp}")
        draw_warp(sheet, trace, warp, 2.1 + index, end)
    y = 2.1 + len(warps) + 0.1
    sheet.legend(y, [(COPY, "loads a tile"), *PHASES])
    sheet.caption(y + 0.75, "While the CTA loads it does not compute. " + NOMINAL)
    return sheet.figure


def draw_v04(plt: Any, traces: dict[str, Trace]) -> Any:
    """The second of two tiles, once in each of both steps."""
    spans = {}
    for step in ("v03_wmma", "v04_warp_softmax"):
        load = [e for e in traces[step].of(0, "memory") if e.name.endswith(" K")][1]
        ends = [e.end for e in traces[step].of(0, "products", "work") if e.name.endswith("P V")]
        spans[step] = load.begin, max(ends)
    end = max(last - first for first, last in spans.values())
    sheet = Sheet(plt, 13.2, end)
    sheet.title("A tile in v03, where two of four warps compute the softmax, and in v04")
    y = 2.1
    for step, (first, last) in spans.items():
        for warp in traces[step].tracks:
            sheet.row_name(y, f"{step[:3]}, warp {warp}")
            draw_warp(sheet, traces[step], warp, y, last, first)
            y += 1
        y += 0.5
    sheet.legend(y, [(COPY, "loads a tile"), *PHASES, (WAIT, "waits")])
    sheet.caption(y + 0.75, "A warp's plain accesses count where it next acts as one, so some of the softmax's are in its load of V.\n" + NOMINAL)
    return sheet.figure


PICTURES: dict[str, Callable[[Any, dict[str, Trace]], Any]] = {
    "pipeline_v04.svg": draw_v04,
    "pipeline_v10.svg": draw_v10,
    "pipeline_v09.svg": draw_v09,
}


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments)


if __name__ == "__main__":
    sys.exit(main())
