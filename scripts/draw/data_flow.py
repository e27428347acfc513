"""What of S, P and O passes between registers and shared memory for a tile, in v03, v06, v07 and v08.

What this module says of a tile must give the counters of `flashsteps count`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from draw import drawings
from draw.drawings import DrawingError
from draw.figure_style import BACKGROUND, BAR, INK, MUTED, NEUTRAL, O, P, S
from draw.sheet import LINE, Sheet

PASS_BYTES = 128  # what all banks of shared memory deliver together


@dataclass(frozen=True)
class Move:
    """Between shared memory and registers, for a tile of 64 queries and 64 keys, D = 64."""

    what: str
    from_fragments: bool  # else: element by element, by threads of the softmax or of the rescaling
    stores: bool
    requests: int
    bytes: int  # of a request: what all its lanes move

    @property
    def passes(self) -> int:
        return self.requests * -(-self.bytes // PASS_BYTES)


FRAGMENT = {"from_fragments": True}
ELEMENT = {"from_fragments": False}
S_STORE = Move("S", **FRAGMENT, stores=True, requests=64, bytes=256)
S_LOAD = Move("S", **ELEMENT, stores=False, requests=128, bytes=128)
S_BACK = Move("S", **ELEMENT, stores=True, requests=128, bytes=128)
P_STORE = Move("P", **ELEMENT, stores=True, requests=128, bytes=64)
P_PAIRS = Move("P", **FRAGMENT, stores=True, requests=64, bytes=128)
P_LOAD = Move("P", **FRAGMENT, stores=False, requests=32, bytes=512)
O_MOVES = (
    Move("O", **FRAGMENT, stores=False, requests=64, bytes=256),
    Move("O", **FRAGMENT, stores=True, requests=64, bytes=256),
    Move("O", **ELEMENT, stores=False, requests=128, bytes=128),
    Move("O", **ELEMENT, stores=True, requests=128, bytes=128),
)
EXCHANGE = tuple(Move("exchange", **FRAGMENT, stores=stores, requests=32, bytes=32) for stores in (True, False))

# What is drawn; and requests and passes of the rest: Q, K and V by ldmatrix, K and V on their way in, row_scale.
MOVES = {
    "v03_wmma": ((S_STORE, S_LOAD, S_BACK, S_LOAD, P_STORE, P_LOAD, *O_MOVES), (96 + 256 + 130, 384 + 256 + 130)),
    "v06_vectorized_loads": ((S_STORE, S_LOAD, P_STORE, P_LOAD, *O_MOVES), (96 + 32 + 144, 384 + 128 + 144)),
    "v07_ptx_mma": ((S_STORE, S_LOAD, P_STORE, P_LOAD), (96 + 32 + 32, 384 + 128 + 32)),
    "v08_register_softmax": ((P_PAIRS, P_LOAD, *EXCHANGE), (96 + 32, 384 + 128)),
}
NAMES = {"S": "S, FP32", "P": "P, 16 bits", "O": "O, FP32", "exchange": "half_max,\nhalf_sum"}
COLOURS = {"S": S, "P": P, "O": O, "exchange": NEUTRAL}
FRAGMENTS = {"S": "acc_s", "P": "frag_p", "O": "acc_o", "exchange": "half_max,\nhalf_sum"}
ELEMENTS = {"S": "softmax", "P": "softmax", "O": "rescaling"}


def count(program: Path, step: str, keys: int) -> tuple[int, int]:
    """Requests of shared memory, and the passes that they take without bank conflicts."""
    [entry] = drawings.ask_flashsteps(program, "count", step, f"1,1,1,64,{keys},64")["runs"][0]["steps"]
    return entry["counters"]["shared_requests"], entry["counters"]["shared_wavefronts_ideal"]


def read(build: Path) -> dict[str, int]:
    """The passes that a tile takes, by step."""
    passes = {}
    for step, (moves, rest) in MOVES.items():
        one, two = (count(build / "flashsteps", step, keys) for keys in (64, 128))
        counted = tuple(b - a for a, b in zip(one, two))
        said = rest[0] + sum(move.requests for move in moves), rest[1] + sum(move.passes for move in moves)
        if counted != said:
            raise DrawingError(f"{step}: a tile's requests and passes are {counted}, this script says {said}")
        passes[step] = counted[1]
    return passes


def kilobytes(size: int) -> str:
    return f"{size // 1024} KB"


def draw_step(sheet: Sheet, step: str, x: float, y: float, width: float, passes: int, before: str = "") -> None:
    """Registers of the products on the left, shared memory, registers of threads on the right. What `before` had
    beyond that is dotted."""
    moves = list(MOVES[step][0])
    gone = [move for move in MOVES[before][0] if move not in moves] if before else []
    box, pitch = 2.9, 0.75
    gap = (width - 3 * box) / 2
    columns = (x, x + box + gap, x + 2 * (box + gap))
    sheet.heading(x, y + 0.2, step)
    for left, name in zip(columns, ("fragments", "shared memory", "elements")):
        sheet.text(left + box / 2, y + 1.1, name, color=MUTED)
    top = y + 1.6
    for what in sorted({move.what for move in (*gone, *moves)}, key=list(NAMES).index):
        its = [move for move in moves if move.what == what]
        both = its + [move for move in gone if move.what == what]
        sides = [[move for move in both if move.from_fragments == side] for side in (True, False)]
        height = max(pitch * max(map(len, sides)) + 0.3, 1.2)
        stays = "" if its else "\nstays here"
        fragments = ("acc_s,\nfrag_p" if P_PAIRS in its else FRAGMENTS[what]) + stays
        for left, name, lives, tint in (
            (columns[0], fragments, True, COLOURS[what] if stays else BACKGROUND),
            (columns[1], NAMES[what], its, COLOURS[what] if its else BACKGROUND),
            (columns[2], ELEMENTS.get(what, ""), [move for move in its if not move.from_fragments], BACKGROUND),
        ):
            if name:
                look = {"edgecolor": INK} if lives else {"edgecolor": LINE, "linestyle": "dotted"}
                sheet.box(left, top, box, height, facecolor=tint, **look)
                sheet.text(left + box / 2, top + height / 2, name, color=INK if lives else MUTED)
        for side, (left, right) in zip(sides, ((columns[0] + box, columns[1]), (columns[1] + box, columns[2]))):
            for index, move in enumerate(side):
                at = top + height / 2 + pitch * (index - (len(side) - 1) / 2)
                ends = ((left, at), (right, at)) if move.stores == move.from_fragments else ((right, at), (left, at))
                if move in its:
                    sheet.arrow(*ends, color=BAR, gap=1)
                    sheet.text((left + right) / 2, at, kilobytes(move.requests * move.bytes), halo=BACKGROUND)
                else:
                    sheet.arrow(*ends, color=LINE, linestyle="dotted", linewidth=1.0, gap=1)
        top += height + 0.35
    size = sum(move.requests * move.bytes for move in moves)
    drawn = sum(move.passes for move in moves)
    sheet.left(
        x,
        top + 0.1,
        f"{kilobytes(size)} in {drawn:,} passes if no banks conflict;\nall of a tile's accesses: {passes:,} passes",
    )


def draw_v03(passes: dict[str, int]) -> Sheet:
    sheet = Sheet("What of S, P and O passes through shared memory in v03, for a tile of 64 × 64, D = 64", 11.0)
    draw_step(sheet, "v03_wmma", 0.5, 1.6, 26.2, passes["v03_wmma"])
    return sheet


def draw_change(passes: dict[str, int], before: str, after: str) -> Sheet:
    title = f"What passes through shared memory for a tile, D = 64: {before[:3]} and {after[:3]}"
    sheet = Sheet(title, 10.2)
    draw_step(sheet, before, 0.5, 1.6, 12.6, passes[before])
    draw_step(sheet, after, 14.2, 1.6, 12.6, passes[after], before)
    return sheet


PICTURES: dict[str, Callable[[dict[str, int]], Sheet]] = {
    "flow_v03.svg": draw_v03,
    "flow_v07.svg": lambda passes: draw_change(passes, "v06_vectorized_loads", "v07_ptx_mma"),
    "flow_v08.svg": lambda passes: draw_change(passes, "v07_ptx_mma", "v08_register_softmax"),
}
