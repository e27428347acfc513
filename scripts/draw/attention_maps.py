"""The attention matrix itself, as a step computes it, beside float64, for the four structured heads.

softmax(Q K^T) never leaves a flash kernel. But O = softmax(Q K^T) V, and with a V whose columns are 1 at one key
each O is the matrix, a block of columns at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np

from draw import attention_data, figure_style
from draw.attention_data import PATTERNS, nrmse
from draw.figure_style import INK, MUTED

DTYPE, SEQLEN, HEAD_DIM = "fp16", 256, 64
TILE = 64  # keys; the ticks are its edges
SEES = {
    "local": "keys near by",
    "strided": "every 16th key",
    "anchor": "every 64th key",
    "block": "its own 32 keys",
}
FEW = ("local", "anchor", "block")  # for those who have not met such a matrix yet: as many as a page is wide
SMALL = 8.6  # points
LOWEST = 1e-4  # of the colour scale
HAIR = 0.01  # of a pixel: matplotlib rounds pictures down and images up
HIDDEN = "#d8d8d4"  # what the causal mask hides; greyer than anything in the two scales
# Steps of colour: a picture of a rounding error is noise, and noise of 256 colours is a large file.
LEVELS, DIFFERENCE_LEVELS = 24, 15


@dataclass(frozen=True)
class Maps:
    kernel: Any  # [heads, queries, keys]
    reference: Any
    causal: bool
    step: str
    backend: str


def read(build: Path, step: str = attention_data.STEP, backend: str = "emulator") -> dict[bool, Maps]:
    q, k, _ = (x[0] for x in attention_data.inputs(build, "structured", DTYPE, 1, len(PATTERNS), SEQLEN))
    exact = [attention_data.to_double(x, DTYPE) for x in (q, k)]
    maps = {}
    for causal in (False, True):
        kernel, _ = attention_data.attention_matrix(build, step, DTYPE, causal, q, k, backend)
        maps[causal] = Maps(kernel, attention_data.probabilities(*exact, causal), causal, step, backend)
    return maps


def colours_of_weights() -> dict[str, Any]:
    """What imshow() takes."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    colours = ListedColormap(colormaps["viridis"](np.linspace(0, 1, LEVELS)))
    colours.set_bad(HIDDEN)
    return {"cmap": colours, "norm": LogNorm(LOWEST, 1), "interpolation": "nearest"}


def draw_few(data: dict[bool, Maps]) -> Any:
    """The weights alone, side by side, without a mask."""
    plt, maps = figure_style.pyplot(), data[False]
    left, right, top, bottom, gap = 46, 8, 66, 64, 8
    width, height = left + len(FEW) * SEQLEN + (len(FEW) - 1) * gap + right, top + SEQLEN + bottom
    size = [(n + HAIR) / figure_style.PNG_DPI for n in (width, height)]
    edges = {"left": left / width, "right": 1 - (right + HAIR) / width}
    edges |= {"top": 1 - top / height, "bottom": (bottom + HAIR) / height, "wspace": gap / SEQLEN}
    figure, [grid] = plt.subplots(1, len(FEW), figsize=size, sharey=True, squeeze=False, gridspec_kw=edges)
    for axes, pattern in zip(grid, FEW):
        weights = np.clip(maps.kernel[PATTERNS.index(pattern)], LOWEST, None)
        shown = axes.imshow(weights, **colours_of_weights())
        axes.set_title(f"{pattern}: {SEES[pattern]}", fontsize=9, loc="left", pad=4)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("keys →", fontsize=9, labelpad=4, loc="left")
        axes.spines[:].set(linewidth=0.5, color=MUTED)
    grid[0].set_ylabel("← queries", fontsize=9, labelpad=4, loc="top")
    title = "Which keys each query looks at: P of three heads"
    figure.text(12 / width, 1 - 12 / height, title, fontsize=11, weight="bold", va="top")
    figure.text(left / width, 29 / height, f"weight in {maps.step[:3]}, log scale", fontsize=SMALL, va="center")
    at = (left + SEQLEN + gap) / width, 24 / height, (2 * SEQLEN - gap) / width, 10 / height
    bar = figure.colorbar(shown, cax=figure.add_axes(at), orientation="horizontal")
    bar.ax.tick_params(length=2.5, pad=2, labelsize=SMALL)
    bar.ax.minorticks_off()
    bar.outline.set_linewidth(0.4)
    return figure


def draw(data: dict[bool, Maps], causal: bool) -> Any:
    plt = figure_style.pyplot()
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    maps, heads = data[causal], len(PATTERNS)
    # In pixels, and whole ones: an element of a matrix is one of them.
    left, right, top, bottom, gap, row_gap = 80, 96, 134, 156, 24, 37
    width = left + 3 * SEQLEN + 2 * gap + right
    height = top + heads * SEQLEN + (heads - 1) * row_gap + bottom
    edges = {"left": left / width, "right": 1 - (right + HAIR) / width}
    edges |= {"top": 1 - top / height, "bottom": (bottom + HAIR) / height}
    figure, grid = plt.subplots(
        heads,
        3,
        figsize=[(n + HAIR) / figure_style.PNG_DPI for n in (width, height)],
        sharex=True,
        sharey=True,
        gridspec_kw={**edges, "wspace": gap / SEQLEN, "hspace": row_gap / SEQLEN},
    )

    def bar_at(image: Any, x: float, y: float, wide: float, high: float, **how: Any) -> Any:
        """From the upper left corner."""
        axes = figure.add_axes((x / width, 1 - (y + high) / height, wide / width, high / height))
        bar = figure.colorbar(image, cax=axes, **how)
        bar.ax.tick_params(length=2.5, pad=2, labelsize=SMALL)
        bar.ax.minorticks_off()
        bar.outline.set_linewidth(0.4)
        return bar

    def text(x: float, y: float, words: str, size: float, **how: Any) -> None:
        how = {"ha": "left", "va": "top", "color": INK, **how}
        figure.text(x / width, 1 - y / height, words, fontsize=size, **how)

    diverging = ListedColormap(colormaps["PuOr_r"](np.linspace(0.04, 0.96, DIFFERENCE_LEVELS)))
    diverging.set_bad(HIDDEN)
    hidden = np.triu(np.ones((SEQLEN, SEQLEN), bool), 1) if causal else np.zeros((SEQLEN, SEQLEN), bool)
    mask, short = ("causal mask", "causal") if causal else ("no mask", "full")
    text(15, 14, f"What each query attends to, {mask}", 14, weight="bold")
    text(15, 52, "softmax(Q Kᵀ/√d), read out of the kernel by one-hot columns of V", 9.5, color=MUTED)
    for column, title in enumerate((maps.step, "reference, float64", "difference")):
        text(left + column * (SEQLEN + gap), top - 36, title, 10, weight="bold", va="center")
    ticks = range(0, SEQLEN + 1, TILE)
    for axes in grid.flat:
        axes.set_xticks([t - 0.5 for t in ticks], map(str, ticks))
        axes.set_yticks([t - 0.5 for t in ticks], map(str, ticks))
        axes.tick_params(length=2.5, pad=2, color=MUTED, labelsize=SMALL)
        for spine in axes.spines.values():  # around the outermost elements, not on them
            spine.set(position=("outward", 0.6), linewidth=0.5, color=MUTED)
    for axes in grid[-1]:
        axes.set_xlabel("key", fontsize=9, labelpad=2)
    for head, (row, pattern) in enumerate(zip(grid, PATTERNS)):
        difference = maps.kernel[head] - maps.reference[head]
        # The few that are larger, as the bar's ends say, would leave no colour for the others.
        largest = np.quantile(np.abs(difference[~hidden]), 0.999)
        for axes, values in zip(row, (maps.kernel[head], maps.reference[head])):
            shown = np.ma.masked_array(np.clip(values, LOWEST, None), hidden)
            weights = axes.imshow(shown, **colours_of_weights())
        shown = np.ma.masked_array(difference, hidden)
        changes = row[2].imshow(shown, diverging, vmin=-largest, vmax=largest, interpolation="nearest")
        row[0].set_ylabel("query", fontsize=9, labelpad=3)
        row[0].set_title(f"{pattern}: {SEES[pattern]}", fontsize=9, loc="left", pad=4)
        error = nrmse(maps.kernel[head], maps.reference[head])
        row[2].set_title(f"NRMSE {error:.1e}", fontsize=9, loc="left", pad=4)
        y = top + head * (SEQLEN + row_gap)
        bar = bar_at(changes, width - right + 11, y, 12, SEQLEN, extend="both", extendfrac=0.03)
        bar.set_ticks([-largest, 0, largest], labels=[f"−{largest:.0e}", "0", f"+{largest:.0e}"])
    y = height - bottom + 57
    bar_at(weights, left, y, 2 * SEQLEN + gap, 12, orientation="horizontal")
    hides = ", grey: hidden by the mask" if causal else ""
    text(left + 2 * (SEQLEN + gap), y - 3, f"weight of a key, log scale{hides}", SMALL)
    where = "the emulator" if maps.backend == "emulator" else "a GPU"
    furthest = float(np.abs(maps.kernel.sum(-1) - 1).max())
    words = (
        f"{maps.step} on {where}. Problem: H={heads} S={SEQLEN} D={HEAD_DIM} {DTYPE} {short}, "
        f"structured inputs, seed 1. Ticks: tiles of {TILE} keys.\n"
        f"Every row of the kernel's matrices sums to 1 within {furthest:.0e}. "
        "The difference has a scale of its own in every row of pictures."
    )
    text(15, y + 44, words, SMALL, color=MUTED, linespacing=1.5)
    return figure


PICTURES: dict[str, Callable[[dict[bool, Maps]], Any]] = {
    "attention_heads.png": draw_few,
    "attention_full.png": partial(draw, causal=False),
    "attention_causal.png": partial(draw, causal=True),
}
