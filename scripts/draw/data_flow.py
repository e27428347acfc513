"""What passes through shared memory for a tile: of S, P and O in v03, v06, v07 and v08, one by one; and all of it in
v02 to v12, as passes by cause.

What this module says of a tile must give the counters of `flashsteps count`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from draw import drawings
from draw.drawings import DrawingError
from draw.figure_style import BACKGROUND, BAR, IDLE, INK, KV, KV_THERE, MUTED, NEUTRAL, O, P, S
from draw.sheet import LINE, Sheet
from steps import sources

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
MAXIMA = tuple(Move("exchange", **FRAGMENT, stores=stores, requests=16, bytes=32) for stores in (True, False))
# K and V on their way in, by elements or by 16 bytes; and Q, K and V on theirs to the products.
COPY, COPY_16 = (Move("copies", **ELEMENT, stores=True, requests=n, bytes=size) for n, size in ((256, 64), (32, 512)))
LDMATRIX = Move("operands", **FRAGMENT, stores=False, requests=96, bytes=512)


def row_state(requests: int) -> Move:
    """row_max, row_sum and row_scale."""
    return Move("rows", **ELEMENT, stores=False, requests=requests, bytes=128)


# v02 has no fragments: a thread loads 8 values of Q or P and 4 of K or V for each step of a product.
FP32 = (
    Move("operands", **ELEMENT, stores=False, requests=4096, bytes=64),
    Move("P", **ELEMENT, stores=False, requests=2048, bytes=128),
    S_BACK,  # as the products leave it
    *(S_LOAD, S_LOAD, Move("P", **ELEMENT, stores=True, requests=128, bytes=128)),  # two passes of the softmax
)
MOVES = {
    "v02_smem_tiles": (*FP32, COPY, row_state(42)),
    "v03_wmma": (S_STORE, S_LOAD, S_BACK, S_LOAD, P_STORE, P_LOAD, *O_MOVES, LDMATRIX, COPY, row_state(130)),
    "v04_warp_softmax": (S_STORE, S_LOAD, P_STORE, P_LOAD, *O_MOVES, LDMATRIX, COPY, row_state(144)),
    "v05_padded_smem": (S_STORE, S_LOAD, P_STORE, P_LOAD, *O_MOVES, LDMATRIX, COPY, row_state(144)),
    "v06_vectorized_loads": (S_STORE, S_LOAD, P_STORE, P_LOAD, *O_MOVES, LDMATRIX, COPY_16, row_state(144)),
    "v07_ptx_mma": (S_STORE, S_LOAD, P_STORE, P_LOAD, LDMATRIX, COPY_16, row_state(32)),
    "v08_register_softmax": (P_PAIRS, P_LOAD, *EXCHANGE, LDMATRIX, COPY_16),
    "v09_direct_rescale": (P_PAIRS, P_LOAD, *MAXIMA, LDMATRIX, COPY_16),
    "v10_tma_warpspec": (P_PAIRS, P_LOAD, *MAXIMA, LDMATRIX),  # copies by TMA are not counted
    "v11_cp_async": (P_PAIRS, P_LOAD, *MAXIMA, LDMATRIX, COPY_16),
    # A tile of 128 queries has as many as v11's of 64, but for Q, which stays in registers: so half of them for 64.
    "v12_whole_rows": (replace(LDMATRIX, requests=64), replace(COPY_16, requests=16)),
}
QUERIES = {"v12_whole_rows": 128}  # of a tile, if not 64
NAMES = {"S": "S, FP32", "P": "P, 16 bits", "O": "O, FP32", "exchange": "half_max,\nhalf_sum"}
COLOURS = {"S": S, "P": P, "O": O, "exchange": NEUTRAL, "rows": NEUTRAL, "copies": KV_THERE, "operands": KV}
FRAGMENTS = {"S": "acc_s", "P": "frag_p", "O": "acc_o", "exchange": "half_max,\nhalf_sum"}
ELEMENTS = {"S": "softmax", "P": "softmax", "O": "rescaling"}
# Of passes by cause, in their order: words -> what moves.
CAUSES = {
    "K and V arrive": ("copies",),
    "Q, K, V to products": ("operands",),
    "S": ("S",),
    "P": ("P",),
    "O": ("O",),
    "values of rows": ("rows", "exchange"),
}
CONFLICTS = "bank conflicts"


@dataclass(frozen=True)
class Counted:
    """Of a tile of 64 queries and 64 keys."""

    requests: float
    ideal: float  # passes, if no banks conflict
    passes: float


def count(program: Path, step: str) -> Counted:
    queries = QUERIES.get(step, 64)
    one, two = (
        drawings.ask_flashsteps(program, "count", step, f"1,1,1,{queries},{keys},64")["runs"][0]["steps"][0]["counters"]
        for keys in (64, 128)
    )
    keys = ("shared_requests", "shared_wavefronts_ideal", "shared_wavefronts")
    return Counted(*((two[key] - one[key]) * 64 / queries for key in keys))


def read(build: Path) -> dict[str, Counted]:
    found = {}
    for step, moves in MOVES.items():
        found[step] = counted = count(build / "flashsteps", step)
        said = sum(move.requests for move in moves), sum(move.passes for move in moves)
        if (counted.requests, counted.ideal) != said:
            raise DrawingError(f"{step}: a tile's counts are {counted}, this script says {said} requests and passes")
    return found


def kilobytes(size: int) -> str:
    return f"{size // 1024} KB"


def draw_step(sheet: Sheet, step: str, x: float, y: float, width: float, passes: float, before: str = "") -> None:
    """Registers of the products on the left, shared memory, registers of threads on the right. What `before` had
    beyond that is dotted."""
    moves = [move for move in MOVES[step] if move.what in NAMES]
    gone = [move for move in MOVES.get(before, ()) if move.what in NAMES and move not in moves]
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
        f"{kilobytes(size)} in {drawn:,} passes if no banks conflict;\nall of a tile's accesses: {passes:,g} passes",
    )


def draw_v03(counted: dict[str, Counted]) -> Sheet:
    sheet = Sheet("What of S, P and O passes through shared memory in v03, for a tile of 64 × 64, D = 64", 11.0)
    draw_step(sheet, "v03_wmma", 0.5, 1.6, 26.2, counted["v03_wmma"].ideal)
    return sheet


def draw_change(counted: dict[str, Counted], before: str, after: str) -> Sheet:
    title = f"What passes through shared memory for a tile, D = 64: {before[:3]} and {after[:3]}"
    sheet = Sheet(title, 10.2)
    draw_step(sheet, before, 0.5, 1.6, 12.6, counted[before].ideal)
    draw_step(sheet, after, 14.2, 1.6, 12.6, counted[after].ideal, before)
    return sheet


def causes(step: str, counted: Counted) -> dict[str, tuple[float, str]]:
    """Passes and colour, by cause."""
    found = {}
    for words, whats in CAUSES.items():
        found[words] = sum(move.passes for move in MOVES[step] if move.what in whats), COLOURS[whats[0]]
    return found | {CONFLICTS: (counted.passes - counted.ideal, IDLE)}


def draw_passes(counted: dict[str, Counted]) -> Sheet:
    """In two groups, or nothing would be seen of the later steps."""
    sheet = Sheet("Passes through shared memory for a tile of 64 queries and 64 keys, by cause", 0)
    sheet.legend(1.35, {words: colour for words, (_, colour) in causes("v03_wmma", counted["v03_wmma"]).items()})
    left, height, y = 1.65, 0.66, 2.6
    steps = [*counted]
    for number, group in enumerate((steps[:3], steps[3:])):
        unit = 23.3 / max(counted[step].passes for step in group)
        if number:
            times = counted[steps[0]].passes / counted[group[0]].passes
            sheet.text(0.4, y + 0.4, f"From here on all bars are {times:.3g} times as long:", ha="left", color=MUTED)
            y += 0.85
        for step in group:
            x, look = left, {"weight": "bold"} if step in sources.main_path() else {"color": MUTED}
            sheet.text(left - 0.2, y + height / 2, step[:3], ha="right", **look)
            for passes, colour in causes(step, counted[step]).values():
                if passes:
                    sheet.cell(x, y + 0.03, passes * unit, height - 0.06, colour, f"{passes:,g}")
                    x += passes * unit
            sheet.text(x + 0.2, y + height / 2, total := f"{counted[step].passes:,g}", ha="left", **look)
            x += 0.7 + 1.15 * sheet.length(total)  # which may be bold
            if number and x + sheet.length(idea := sources.heading(step)) + 0.2 < sheet.width:
                sheet.text(x, y + height / 2, idea, ha="left", color=MUTED)
            y += height
    limits = "It does not count TMA's copies (v10); nvcc merges some of v02's loads."
    sheet.note(y + 0.2, f"D = 64, fp16, as the emulator counts. {limits}")
    sheet.height = y + 0.95
    return sheet


PICTURES: dict[str, Callable[[dict[str, Counted]], Sheet]] = {
    "flow_v03.svg": draw_v03,
    "flow_v07.svg": lambda counted: draw_change(counted, "v06_vectorized_loads", "v07_ptx_mma"),
    "flow_v08.svg": lambda counted: draw_change(counted, "v07_ptx_mma", "v08_register_softmax"),
    "passes.svg": draw_passes,
}
