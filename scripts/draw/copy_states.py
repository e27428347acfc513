"""Where a TMA copy puts its bytes, and what mbarriers do, from what the emulator's own functions did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from draw import drawings
from draw.figure_style import BACKGROUND, CEILING, GAP, HEADING, INK, MUTED, TINTS
from draw.sheet import Sheet

BLUE, YELLOW, GREEN, _ = TINTS
RED = "#f2b79a"  # of its vermillion: what must not happen
CHUNKS_PER_LINE = 8  # of 16 bytes, in the 128 bytes of a swizzled row
MARKED = (9, 11)  # the chunk that the picture follows: row of the tensor, chunk of that row
DIMENSIONS = ("column in the panel", "row", "panel", "head", "batch")
LIVES = ("announced_first", "announced_last", "four_arrivals")


@dataclass(frozen=True)
class State:
    """Of an mbarrier, after an event. `bytes` are those that are still to come."""

    event: str
    phase: int
    arrivals: int
    missing: int
    bytes: int
    passes: tuple[bool, bool]


@dataclass(frozen=True)
class Box:
    size: list[int]
    stride: list[int]
    box: list[int]
    origin: list[int]
    counted_bytes: int
    chunks: list[tuple[int, int] | None]  # by address: row and chunk of the tensor, None for zeros


@dataclass(frozen=True)
class Copies:
    box: Box
    lives: dict[str, list[State]]
    answers: list[tuple[bool, bool]]  # of try_wait for parity 0 and 1, by how many phases have completed


def parse(data: dict[str, Any]) -> Copies:
    box = Box(**data["box"])
    chunks = [None if chunk is None else (chunk[0], chunk[1]) for chunk in box.chunks]
    per_row = box.size[2] * CHUNKS_PER_LINE
    rows = range(box.origin[1], box.origin[1] + box.box[1])
    inside = [(row, chunk) for row in rows if row < box.size[1] for chunk in range(per_row)]
    if sorted(chunk for chunk in chunks if chunk is not None) != inside:
        raise ValueError("the tile does not hold every chunk of the box once")
    if len(chunks) != len(rows) * per_row or None not in chunks or MARKED not in chunks:
        raise ValueError("the tile is not the one that the picture is about")
    lives = {
        name: [State(**{**state, "passes": tuple(state["passes"])}) for state in data["lives"][name]]
        for name in LIVES
    }
    answers = [(bool(zero), bool(one)) for zero, one in data["answers"]]
    if not all(lives.values()) or len(answers) < 4:
        raise ValueError("a life without states, or too few phases")
    return Copies(Box(**{**data["box"], "chunks": chunks}), lives, answers)


def read(build: Path) -> Copies:
    return drawings.ask(build / "tools/copy_states", parse)


# ---- The box


def draw_tensor(sheet: Sheet, box: Box, x: float, y: float) -> None:
    """The rows around the box as they lie in global memory, and which of them it takes."""
    first, end, rows = box.origin[1], box.origin[1] + box.box[1], box.size[1]
    width, height = 0.62, 0.9
    chunks = box.size[2] * CHUNKS_PER_LINE
    sheet.text(x + chunks * width / 2, y - 1.4, "global memory", HEADING, weight="bold")
    for panel in range(box.size[2]):
        place = x + (panel + 0.5) * CHUNKS_PER_LINE * width
        sheet.text(place, y - 0.55, f"panel {panel}: {box.box[0]} columns")
    lines = [(0, row) for row in range(first - 2, rows)] + [(1, row) for row in range(end - rows)]
    for index, (head, row) in enumerate(lines):
        top = y + height * index
        taken = head == 0 and row >= first
        name = f"row {row}" if head == 0 else f"next head, row {row}"
        sheet.text(x - 0.3, top + height / 2, name, ha="right", color=INK if taken else MUTED)
        for chunk in range(chunks):
            tint = (BLUE, YELLOW)[chunk // CHUNKS_PER_LINE] if taken else GAP
            sheet.box(x + width * chunk, top, width, height, facecolor=tint)
            if taken and (row, chunk) == MARKED:
                mark = (x + width * chunk, top, width, height)
    sheet.box(*mark, edgecolor=CEILING, linewidth=2.2, zorder=5)
    last = lines.index((0, rows - 1))
    top, bottom = y + height * lines.index((0, first)), y + height * (last + 1)
    sheet.box(x - 0.06, top, chunks * width + 0.12, bottom - top, edgecolor=INK, linewidth=1.6, zorder=4)
    sheet.left(
        0.6,
        y + height * len(lines) + 0.4,
        f"The box has {box.box[1]} rows. From row {first} on, the head has only {rows - first} rows. TMA fills\n"
        f"the other {end - rows} rows with zeros, and not with the next head's rows.",
    )


def draw_tile(sheet: Sheet, box: Box, x: float, y: float) -> None:
    """Shared memory, a line per 128 bytes."""
    width, height = 1.4, 0.9
    sheet.text(x + CHUNKS_PER_LINE * width / 2, y - 1.4, "shared memory", HEADING, weight="bold")
    for line in range(len(box.chunks) // CHUNKS_PER_LINE):
        panel, row = divmod(line, box.box[1])
        top = y + height * line + 1.2 * panel
        if row == 0:
            sheet.text(x + CHUNKS_PER_LINE * width / 2, top - 0.5, f"panel {panel}")
        sheet.text(x - 0.25, top + height / 2, f"+{128 * line}", ha="right", color=MUTED)
        for place in range(CHUNKS_PER_LINE):
            chunk = box.chunks[CHUNKS_PER_LINE * line + place]
            left = x + width * place
            tint = BACKGROUND if chunk is None else (BLUE, YELLOW)[chunk[1] // CHUNKS_PER_LINE]
            sheet.box(left, top, width, height, facecolor=tint)
            words = "0" if chunk is None else f"{chunk[0]}:{chunk[1]}"
            sheet.text(left + width / 2, top + height / 2, words, color=MUTED if chunk is None else INK)
            if chunk == MARKED:
                sheet.box(left, top, width, height, edgecolor=CEILING, linewidth=2.2, zorder=5)


def draw_map(sheet: Sheet, box: Box, x: float, y: float) -> None:
    """What the tensor map says, and the coordinates of this copy."""
    columns = ((6.3, "size"), (8.8, "stride, bytes"), (11.3, "box"), (13.6, "begins at"))
    sheet.text(x, y, "dimension", ha="left", weight="bold")
    for offset, name in columns:
        sheet.text(x + offset, y, name, weight="bold")
    for index, name in enumerate(DIMENSIONS):
        top = y + 0.9 * (index + 1)
        sheet.text(x, top, f"{index}  {name}", ha="left")
        numbers = (box.size[index], box.stride[index], box.box[index], box.origin[index])
        for (offset, _), number in zip(columns, numbers):
            # Where there is one of something, no copy goes on to the next.
            alone = number == box.stride[index] and box.size[index] == 1
            sheet.text(x + offset, top, "any" if alone else f"{number:,}")
    sheet.left(
        x,
        y + 0.9 * 5 + 0.65,
        f"The mbarrier counts {box.counted_bytes} bytes: the whole box, including its zeros.",
    )


def draw_box(copies: Copies) -> Any:
    box = copies.box
    sheet = Sheet(29, 22.4)
    sheet.title("One TMA load: a box of a tensor, row by row into shared memory")
    row, chunk = MARKED
    sheet.left(
        0.55,
        1.6,
        f"{row}:{chunk}, outlined on both sides, is chunk {chunk} of row {row}: 16 bytes, "
        f"{CHUNKS_PER_LINE} columns. A row of a panel fills one line of 128 bytes,\nits chunks in the order "
        f"of the 128-byte swizzle. v10's boxes have 64 rows, this one {box.box[1]}.",
    )
    draw_tensor(sheet, box, 4.6, 5.7)
    draw_map(sheet, box, 0.6, 16.6)
    draw_tile(sheet, box, 17.2, 5.7)
    return sheet


# ---- The states of an mbarrier

TITLES = {
    "announced_first": "Full, one arrival: the bytes are announced, then they come",
    "announced_last": "The same, but the bytes come before they are announced",
    "four_arrivals": "Empty, four arrivals: one of each consumer warp, no bytes",
}


def draw_life(sheet: Sheet, states: list[State], title: str, y: float) -> float:
    """A table, a line per state. Returns where the next one may begin."""
    phase_x, arrivals_x, bytes_x, answers_x = 13.1, 16.2, 20.6, (24.9, 27.3)
    unit = 1.5 / max(1, *(abs(state.bytes) for state in states))
    sheet.left(0.55, y, title, HEADING, weight="bold")
    for index, state in enumerate(states):
        middle = y + 1.55 + 1.05 * index
        completed = index > 0 and state.phase > states[index - 1].phase
        if completed:
            sheet.box(0.5, middle - 0.5, 28.0, 1.0, facecolor="#fbe9df", edgecolor="none", zorder=0)
        sheet.text(0.6, middle, state.event, 8.3, ha="left", family="monospace")
        if completed:
            sheet.text(12.2, middle, f"phase {state.phase - 1} ends", ha="right", color=CEILING)
        sheet.text(phase_x, middle, str(state.phase))
        for arrival in range(state.arrivals):
            left = arrivals_x + 0.75 * (arrival - state.arrivals / 2)
            come = arrival < state.arrivals - state.missing
            sheet.box(
                left + 0.1, middle - 0.28, 0.55, 0.56, facecolor=INK if come else BACKGROUND, edgecolor=INK
            )
        side = 1 if state.bytes >= 0 else -1
        end = state.bytes * unit
        sheet.box(
            bytes_x + min(0.0, end),
            middle - 0.3,
            abs(end),
            0.6,
            facecolor=BLUE if side > 0 else YELLOW,
        )
        sheet.box(bytes_x, middle - 0.45, 0, 0.9, edgecolor=MUTED, linewidth=0.8)
        number = str(state.bytes).replace("-", "\u2212")
        sheet.text(bytes_x + end + 0.2 * side, middle, number, ha="left" if side > 0 else "right")
        for x, passes in zip(answers_x, state.passes):
            sheet.box(x - 0.95, middle - 0.38, 1.9, 0.76, facecolor=GREEN if passes else GAP)
            sheet.text(x, middle, "passes" if passes else "waits")
    return y + 1.55 + 1.05 * len(states) + 0.3


def draw_mbarrier(copies: Copies) -> Any:
    rows = sum(len(states) for states in copies.lives.values())
    sheet = Sheet(29, 5.2 + len(LIVES) * 1.85 + 1.05 * rows)
    sheet.title("An mbarrier from state to state")
    sheet.left(
        0.55,
        1.6,
        "A phase ends when every arrival has come and no byte is outstanding. The next phase then begins "
        "by itself.\nEach line shows an event, the state of the mbarrier after it, and what a wait would do in "
        "this state.",
    )
    headings = (
        (13.1, "phase\nunder way"),
        (16.2, "arrivals: come,\nto come"),
        (20.6, "bytes\noutstanding"),
        (24.9, "wait for\nparity 0"),
        (27.3, "wait for\nparity 1"),
    )
    for x, name in headings:
        sheet.text(x, 4.4, name, color=MUTED)
    y = 5.2
    for name in LIVES:
        y = draw_life(sheet, copies.lives[name], TITLES[name], y)
    return sheet


# ---- Parities


def draw_parity(copies: Copies) -> Any:
    """A wait knows only the parity: which phases it may be meant for."""
    answers = copies.answers
    phases = range(-1, len(answers) - 2)
    left, top, width, height = 8.4, 6.1, 3.3, 1.4
    sheet = Sheet(29, top + height * len(phases) + 2.6)
    sheet.title("A wait names a phase by its parity alone")
    sheet.left(
        0.55,
        1.6,
        "Each line is a wait for one phase, each column a moment. A cell shows what the mbarrier then answers."
        "\nIn framed cells the phase is under way or was the last to complete, and the answer is right. In red cells"
        "\nthe answer is wrong, because it is about another phase of the same parity.",
    )
    sheet.text(left + width * len(answers) / 2, top - 1.5, "phases that have completed", weight="bold")
    for completed in range(len(answers)):
        sheet.text(left + width * (completed + 0.5), top - 0.6, str(completed))
    for index, phase in enumerate(phases):
        y = top + height * index
        parity = phase % 2
        name = "before phase 0" if phase < 0 else f"phase {phase}"
        sheet.text(left - 0.4, y + height / 2, f"{name}: parity {parity}", ha="right")
        for completed, passes in enumerate(row[parity] for row in answers):
            right = passes == (completed > phase)
            tint = (GREEN if passes else GAP) if right else RED
            x = left + width * completed
            sheet.box(x, y, width, height, facecolor=tint)
            words = "passes" if passes else "waits"
            if not right:
                words += "\ntoo early" if passes else "\nfor ever?"
            sheet.text(x + width / 2, y + height / 2, words)
            if completed in (phase, phase + 1):
                sheet.box(x + 0.08, y + 0.08, width - 0.16, height - 0.16, edgecolor=INK, linewidth=1.6)
    sheet.left(
        0.55,
        top + height * len(phases) + 0.5,
        "passes too early: the phase has not begun, but an earlier phase of the same parity has completed.\n"
        "waits for ever?: the phase is over. The thread now waits for a later phase, which may never complete.\n"
        "Top left: the mbarrier is new, and a wait for parity 1 passes. A producer can therefore begin.",
    )
    return sheet


PICTURES: dict[str, Callable[[Copies], Any]] = {
    "copies_box.svg": draw_box,
    "copies_mbarrier.svg": draw_mbarrier,
    "copies_parity.svg": draw_parity,
}
