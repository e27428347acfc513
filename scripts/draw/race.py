"""A picture that moves: a barrier of v02 is struck out, a command is typed, and the emulator names the two lines.

A build with tests has the changed kernel as a step, a variant of v02. Its run is shown as that of the kernel that a
reader has changed: with v02's name and file, and without the line that variants.py writes above the kernel.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from draw.drawings import DrawingError
from draw.figure_style import CEILING, IDLE, INK, MUTED, TINTS, WIDTH, P
from draw.sheet import PIXELS, POINT, Sheet
from steps import variants

STEP, CHANGE, SHAPE = "v02_smem_tiles", "try2_no_barrier", "1,1,128,64"
# Around the barrier and the lines of the race: how the shown lines of the kernel begin. None: some are left out.
SHOWN = ("const int from_row =", "{write}", None, "for (int kv_tile", "// Load K.", "{barrier}", "load_tile(shared.kv,")
SHOWN += (None, "for (int key = 0;", "{read}")
PLACE = re.compile(r"the (write|read) at (\S+kernel\.cu):(\d+)")
TINT = {"write": P, "read": TINTS[0]}

SCREEN, TYPE = IDLE, "DejaVu Sans Mono,Consolas,Menlo,monospace"
SIZE = 9  # of the type, in points
LETTER = 0.602 * SIZE * POINT  # how wide it is, with every font
EDGE, LEFT, PITCH = 8.0, 50.0, 20.0

# When, in seconds: begins and ends, or begins.
STRIKES, TYPES, PRINTS, LIGHTS, FADES, AGAIN = (0.9, 1.5), (2.1, 4.0), 4.5, {"write": 5.8, "read": 6.9}, 10.5, 11.0


@dataclass(frozen=True)
class Race:
    code: list[str]  # of the kernel, as it was; an empty line where some are left out
    barrier: str
    lines: dict[str, str]  # the write, and the read
    command: str
    report: list[str]


def read(build: Path) -> Race:
    variant = variants.find(STEP, CHANGE)
    [change] = variant.changes
    [barrier] = [line for line in change.old if line not in change.new]
    words = ["run", variant.step_name, "--backend", "emulator", "--shape", SHAPE]
    program = build / "tests" / "flashsteps_variants"
    try:
        plain = os.environ | {"NO_COLOR": "1"}
        said = subprocess.run([program, *words], capture_output=True, text=True, check=False, env=plain).stdout
    except OSError as error:
        raise DrawingError(f"{program}: {error}") from error
    # From the verdict to the next empty line: its own line, and the message.
    verdict, *message = said[max(said.find("FAIL"), 0) :].partition("\n\n")[0].splitlines()
    places = PLACE.findall(" ".join(map(str.strip, message)))
    if [what for what, _, _ in places] != ["write", "read"]:
        raise DrawingError(f"{program}: reports no race of {variant.step_name}")
    above = len(variants.source(variant).splitlines()) - len(changed := variants.changed_lines(variant))
    lines = {what: changed[int(number) - above - 1] for what, _, number in places}
    known = {f"{{{what}}}": line for what, line in (*lines.items(), ("barrier", barrier))}
    code, rest = [], iter(variants.kernel_lines(STEP))
    for begin in SHOWN:
        begin = known.get(begin, begin)
        code.append(next((line for line in rest if line.strip().startswith(begin.strip())), None) if begin else "")
        if code[-1] is None:
            raise DrawingError(f"steps/{STEP}/kernel.cu: no line begins with '{begin}', below the ones before it")

    def as_of_the_step(text: str) -> str:
        text = PLACE.sub(lambda at: f"the {at[1]} at steps/{STEP}/kernel.cu:{int(at[3]) - above}", text)
        return text.replace(variant.step_name, STEP)

    text = as_of_the_step(" ".join(map(str.strip, message)))
    text = re.sub(r" (?=the read at|the write at|Is a barrier)", "\n", text)
    command = shlex.join(["build/flashsteps", *words]).replace(variant.step_name, STEP.split("_")[0])
    report = [as_of_the_step(verdict), *(f"      {line}" for line in text.split("\n"))]
    return Race(code, barrier, lines, command, report)


# What moves. Where nothing may, or can, the picture is as at the end: so say the first rules.

STILL = ".gone{opacity:.5}.cursor{opacity:0}.cover{transform:scaleX(0);transform-origin:right}"
STILL += ".cover,.strike{transform-box:fill-box}"


def moves(sheet: Sheet, name: str, frames: dict[float, str], how: str = "linear") -> str:
    """Frames: seconds -> what holds then."""
    steps = "".join(f"{100 * at / AGAIN:.4g}%{{{look}}}" for at, look in frames.items())
    sheet.rules.append(f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {AGAIN:g}s {how} infinite}}")
    return name


def appears(sheet: Sheet, name: str, at: float) -> str:
    shown = {at + 0.25: "opacity:1", FADES: "opacity:1"}
    return moves(sheet, name, {0: "opacity:0", at: "opacity:0", **shown, AGAIN: "opacity:0"})


def mono(sheet: Sheet, x: float, y: float, text: str, **how: Any) -> tuple[float, float]:
    """A line of type, y being its middle. Returns where its letters begin, and how long they are."""
    x += LETTER * (len(text) - len(text.lstrip()))
    text = text.strip().replace("  ", "\u00a0 ")  # or the two would be shown as one
    length = LETTER * len(text)
    sheet.text(x, y, text, SIZE, **{"ha": "left", "family": TYPE, "length": length, **how})
    return x, length


def bar(sheet: Sheet, x: float, y: float, width: float, height: float, colour: str, **how: Any) -> None:
    """About a height."""
    sheet.box(x, y - height / 2, width, height, facecolor=colour, edgecolor="none", **how)


def draw_code(sheet: Sheet, y: float, race: Race) -> float:
    numbers = {what: number for what, _, number in PLACE.findall(" ".join(race.report))}
    for line in race.code:
        what = next((what for what, own in race.lines.items() if own == line), None)
        if what:
            bar(sheet, EDGE, y, sheet.width - 2 * EDGE, PITCH, TINT[what], moves=what)
            sheet.text(LEFT - 8, y, numbers[what], SIZE, ha="right", weight="bold", moves=what)
        if line == race.barrier:
            x, length = mono(sheet, LEFT - 2 * LETTER, y, line, moves="gone")
            bar(sheet, x - 4, y, length + 8, 1.8, CEILING, zorder=4, moves="strike")
        elif line:
            mono(sheet, LEFT - 2 * LETTER, y, line, color=MUTED if line.strip().startswith("//") else INK)
        else:
            sheet.text(LEFT - 26, y, "⋮", color=MUTED)
        y += PITCH if line else 0.75 * PITCH
    begin, end = STRIKES
    uncut = {0: "transform:scaleX(0)", begin: "transform:scaleX(0)"}
    moves(sheet, "strike", uncut | {end: "opacity:1;transform:none", FADES: "opacity:1", AGAIN: "opacity:0"})
    grey = {end + 0.4: "opacity:.5", FADES: "opacity:.5"}
    moves(sheet, "gone", {0: "opacity:1", end: "opacity:1", **grey, AGAIN: "opacity:1"})
    for what, at in LIGHTS.items():
        appears(sheet, what, at)
    return y


def draw_terminal(sheet: Sheet, y: float, race: Race) -> float:
    left = 2.4 * EDGE
    mono(sheet, left, y, "$", color=MUTED)
    x, length = mono(sheet, left + 2 * LETTER, y, race.command, weight="bold")
    # What is not typed yet is covered, and the cursor goes before the cover.
    bar(sheet, x, y, length, PITCH, SCREEN, zorder=4, moves="cover")
    bar(sheet, x, y, LETTER, 0.8 * PITCH, MUTED, zorder=4, moves="cursor")
    nothing, all_of_it, end = "transform:none", "transform:scaleX(0)", f"opacity:1;transform:translateX({length:.1f}px)"
    typed = f"steps({len(race.command)})"
    moves(sheet, "cover", {0: nothing, TYPES[0]: nothing, TYPES[1]: all_of_it, AGAIN: all_of_it}, typed)
    begin = {at: f"opacity:1;{nothing}" for at in (0, TYPES[0])}
    moves(sheet, "cursor", begin | {TYPES[1]: end, PRINTS: end, PRINTS + 0.01: "opacity:0", AGAIN: "opacity:0"}, typed)
    for number, line in enumerate(race.report):
        y += PITCH
        for found in PLACE.finditer(line):
            begins, ends = (left + LETTER * at for at in found.span())
            bar(sheet, begins - 3, y, ends - begins + 6, 0.9 * PITCH, TINT[found[1]], moves=found[1])
        look = {"color": CEILING, "weight": "bold"} if number == 0 else {}
        mono(sheet, left, y, line, moves=appears(sheet, f"line{number}", PRINTS + 0.2 * number), **look)
    return y + PITCH


def draw(race: Race) -> Sheet:
    sheet = Sheet("A barrier is deleted from v02, and the emulator names the two lines that race", 0, PIXELS * WIDTH)
    top, wide = 44.0, sheet.width - 2 * EDGE
    bottom = draw_code(sheet, top + 1.9 * PITCH, race)
    sheet.box(EDGE, top, wide, bottom - top, zorder=2)
    sheet.left(EDGE + 10, top + 6, f"steps/{STEP}/kernel.cu", color=MUTED)
    screen = bottom + 12
    end = draw_terminal(sheet, screen + 0.9 * PITCH, race)
    sheet.box(EDGE, screen, wide, end - screen, facecolor=SCREEN, zorder=0)
    sheet.height = end + 12
    sheet.rules = [STILL, "@media (prefers-reduced-motion:no-preference){", *sheet.rules, "}"]
    return sheet


PICTURES: dict[str, Callable[[Race], Sheet]] = {"race.svg": draw}
