"""The look that all figures share, and what makes them reproducible: colours, fonts, pinned metadata."""
from __future__ import annotations

import io
import os
import re
import textwrap
from typing import Any

from steps.sources import ROOT

# Okabe and Ito: told apart by the colour-blind, and on the figure's own background legible on dark pages too.
BAR, CEILING, INK, MUTED, BACKGROUND = "#0072B2", "#D55E00", "#222222", "#6b6b6b", "#fcfcfa"
GRID, GAP, HATCH = "#dddddd", "#eeeeec", "#c8c8c4"
# A page that is dark turns the whole picture: light becomes dark, and every hue stays what it was.
DARK = "@media (prefers-color-scheme:dark){svg{filter:invert(.95) hue-rotate(180deg)}}"
# A matrix has one colour in all pictures, also where it is being computed, copied or kept. All are light enough for
# text on them. K and V, which are treated alike, share one. Where a copy is on its way, what has arrived is paler.
Q, KV, S, P, O = "#c9c6ec", "#d9a3c1", "#7db8dc", "#f0c664", "#72c7a6"
Q_THERE, KV_THERE, P_PALE = "#ebeaf8", "#f3e3ec", "#f8e2b1"
NEUTRAL, IDLE = "#d4d4cf", "#e9e9e5"
# What is no matrix: registers, heads, tiles. Tints of Okabe and Ito's blue, yellow, green and pink.
TINTS = ("#a8cfe8", "#f5e08f", "#a3d9c5", "#eac4da")
IDEAL = "#e69f00"  # beside BAR: what the best possible would be
BEFORE = "#73899b"  # beside BAR: what came before
# Other people's kernels: colours and dashes, darker than Okabe and Ito's, as text has the colours too.
PEERS = {
    "sdpa_flash": ("FlashAttention-2", "#00755a", (0, (5, 2))),
    "sdpa_cudnn": ("cuDNN", "#a8447e", (0, (2, 1.5))),
    "flash_attn": ("flash_attn", "#00755a", (0, (5, 1, 1, 1))),
    "flash_attn_3": ("FlashAttention-3", "#7a5200", (0, (7, 2))),
    "flash_attn_4": ("FlashAttention-4", "#9c3b1b", (0, (4, 1.5, 1, 1.5))),
    "cudnn": ("cuDNN by cudnn-frontend", "#7d3f98", (0, (3, 1, 1, 1))),
    "flashinfer": ("FlashInfer", "#4a4fb5", (0, (1, 1))),
}
# From the first step of a ladder to the last.
FIRST_STEP, LAST_STEP = (0.36, 0.56, 0.70), (0.02, 0.14, 0.30)
PNG_DPI = 110
WIDTH = 8.72  # inches, 837 pixels: what a README is wide, where nothing is scaled down then
TITLE, HEADING, TEXT, NOTE = 12, 9.5, 8.5, 8.3  # sizes of type, in points: 11 pixels at least


def pyplot() -> Any:
    """matplotlib.pyplot, set up. Raises ImportError where it is missing."""
    # The font cache: the home folder may not exist, and the user's own configuration must not matter.
    os.environ["MPLCONFIGDIR"] = str(ROOT / "build" / "matplotlib")
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcdefaults()
    plt.rcParams.update(
        {
            "svg.hashsalt": "flashsteps",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
            "figure.facecolor": BACKGROUND,
            "axes.facecolor": BACKGROUND,
            "savefig.facecolor": BACKGROUND,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": MUTED,
            "xtick.color": INK,
            "ytick.color": INK,
            "hatch.color": HATCH,
            "hatch.linewidth": 0.5,
        }
    )
    return plt


def step_colours(count: int) -> list[tuple[float, ...]]:
    """One hue, darker from step to step: the order is seen without telling colours apart."""
    shares = [index / max(count - 1, 1) for index in range(count)]
    return [tuple(a + (b - a) * share for a, b in zip(FIRST_STEP, LAST_STEP)) for share in shares]


def svg_text(figure: Any) -> str:
    """The figure, which is closed: an element on a line, and with the rule for dark pages."""
    file = io.StringIO()
    save(figure, file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"<!--.*?-->", "", file.getvalue())
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", text, flags=re.DOTALL)
    return re.sub(r"\s*\n *(?! |<[a-z])", " ", text).replace("</style>", f"{DARK}</style>", 1) + "\n"


def png_bytes(figure: Any) -> bytes:
    """Of the figure, which is closed."""
    file = io.BytesIO()
    save(figure, file, format="png", metadata={"Software": None}, dpi=PNG_DPI)
    return file.getvalue()


def save(figure: Any, file: Any, **how: Any) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(file, **how)
    plt.close(figure)


MISSING = "(build/venv/bin/python has it after scripts/run.sh; or pip install -r scripts/requirements.txt)"


# Panels of a page's width, labels at the ends of lines, and steps as rows, so that a ladder of any length has level
# names.

ROW = 0.27  # inches: a step's height
LETTERS_OF_NOTES = 124  # fit side by side below a chart


def panels(down: int, across: int, height: float, **how: Any) -> tuple[Any, Any]:
    """A figure of the page's width and its axes, [down][across]."""
    return pyplot().subplots(down, across, figsize=(WIDTH, height), squeeze=False, layout="constrained", **how)


def style_axes(axes: Any, title: str, grid: str, pad: float = 6) -> None:
    axes.set_title(title, fontsize=HEADING, loc="left", pad=pad)
    axes.tick_params(labelsize=TEXT)
    axes.grid(axis=grid, linewidth=0.5, color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def finish(figure: Any, title: str, notes: list[str]) -> Any:
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    figure.suptitle(title, fontsize=TITLE, x=0.012, ha="left", weight="bold")
    text = "\n".join(line for note in notes for line in textwrap.wrap(note, LETTERS_OF_NOTES))
    figure.supxlabel(text, fontsize=NOTE, color=MUTED, x=0.012, ha="left", linespacing=1.35)
    labelled = [axes for axes in figure.axes if hasattr(axes, "line_labels")]
    if labelled:
        figure.get_layout_engine().execute(figure)  # now it is known where things are
    for axes in labelled:
        spread_labels(axes)
    return figure


def log_scale(axes: Any, which: str, low: float, high: float, digits: tuple[int, ...] = (1, 2, 5)) -> None:
    """Of x or y, with ticks in numbers."""
    ticks = [n * 10.0**e for e in range(-4, 7) for n in digits if low <= n * 10.0**e <= high]
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    getattr(axes, f"set_{which}ticks")(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()


# Labels at the ends of lines: to the right of level ones, above upright ones.


def label_line(axes: Any, value: float, text: str, colour: Any, upright: bool = False, **how: Any) -> None:
    if upright:
        at, how = (value, 1), {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom", **how}
    else:
        at, how = (1, value), {"xycoords": ("axes fraction", "data"), "va": "center", **how}
    leader = {"arrowstyle": "-", "linewidth": 0.6, "color": colour, "shrinkA": 0, "shrinkB": 0}
    leader["relpos"] = (0.5, 0) if upright else (0, 0.5)
    how |= {"fontsize": TEXT, "color": colour, "linespacing": 1.1, "annotation_clip": False, "arrowprops": leader}
    label = axes.annotate(text, at, label_offset(upright, 0), textcoords="offset points", **how)
    axes.line_labels = [*getattr(axes, "line_labels", []), (value, upright, label)]


def label_offset(upright: bool, sideways: float) -> tuple[float, float]:
    """From the end of its line, in points."""
    return (sideways, 6) if upright else (7, sideways)


def spread_labels(axes: Any) -> None:
    """Moves the labels of lines sideways until none overlaps another: of two that touch, each gives way."""
    scale = 72 / axes.figure.dpi
    labels = sorted(axes.line_labels, key=lambda item: item[0])
    upright = labels[0][1]
    at = [axes.transData.transform((value, value))[0 if upright else 1] * scale for value, _, _ in labels]
    extents = [label.get_window_extent() for _, _, label in labels]
    # Still level with their values, so their own lines add nothing to the size.
    sizes = [extent.width * scale + 10 if upright else extent.height * scale for extent in extents]
    places = [*at]
    while any(over > 0.01 for over in overlaps(places, sizes)):
        for index in range(len(places) - 1):
            over = max(overlaps(places[index : index + 2], sizes[index : index + 2])[0], 0)
            places[index : index + 2] = places[index] - over / 2, places[index + 1] + over / 2
    for (_, _, label), place, value in zip(labels, places, at):
        label.set_position(label_offset(upright, place - value))


def overlaps(places: list[float], sizes: list[float]) -> list[float]:
    """Of each with the next one."""
    return [(a + b) / 2 - (y - x) for x, y, a, b in zip(places, places[1:], sizes, sizes[1:])]


# Steps as rows.


def in_two_lines(name: str) -> str:
    """If it is long, as the names of ablations are."""
    middle = name.find("_", len(name) // 2) + 1
    return f"{name[:middle]}\n{name[middle:]}" if len(name) > 23 and middle else name


def place_rows(axes: Any, rows: dict[str, bool]) -> None:
    """Rows by their names, from the top; some are headings."""
    axes.set_yticks(range(len(rows)), map(in_two_lines, rows), linespacing=0.95)
    for label, is_heading in zip(axes.get_yticklabels(), rows.values()):
        label.set(weight="bold" if is_heading else "normal", color=MUTED if is_heading else INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def say(axes: Any, row: float, text: str, right_of: float | None = None, background: str = BACKGROUND) -> None:
    """To the right of a bar's end or, without one, of the axis."""
    at, units = (right_of, "data") if right_of is not None else (0, "axes fraction")
    how = {"va": "center", "fontsize": NOTE, "color": INK, "zorder": 5, "annotation_clip": False}
    how["bbox"] = {"facecolor": background, "edgecolor": "none", "pad": 0.8}
    axes.annotate(text, (at, row), (4, 0), xycoords=(units, "data"), textcoords="offset points", **how)


def say_gap(axes: Any, row: int, text: str) -> None:
    """A step that has no value keeps its place, hatched, and says why."""
    axes.axhspan(row - 0.4, row + 0.4, facecolor=GAP, edgecolor=HATCH, hatch="///", linewidth=0)
    say(axes, row, textwrap.shorten(text, 34, placeholder="…"), background=GAP)
