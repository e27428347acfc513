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
LEFT, GAP, TOP = 80, 24, 134  # where the matrices are, in pixels
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


def draw(data: dict[bool, Maps], causal: bool) -> Any:
    plt = figure_style.pyplot()
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    maps = data[causal]
    heads = len(PATTERNS)
    # In pixels, and whole ones: an element of a matrix is one of them.
    size, row_gap, right, bottom = SEQLEN, 37, 96, 156
    left, gap, top = LEFT, GAP, TOP
    width = left + 3 * size + 2 * gap + right
    height = top + heads * size + (heads - 1) * row_gap + bottom
    figure = plt.figure(figsize=[(n + HAIR) / figure_style.PNG_DPI for n in (width, height)])

    def axes_at(x: float, y: float, wide: float, high: float) -> Any:
        """From the upper left corner."""
        edges = x / width, 1 - (y + high) / height
        return figure.add_axes((*edges, (wide - HAIR) / width, (high - HAIR) / height))

    def text(x: float, y: float, words: str, size: float, **how: Any) -> None:
        how = {"ha": "left", "va": "top", "color": INK, **how}
        figure.text(x / width, 1 - y / height, words, fontsize=size, **how)

    sequential = ListedColormap(colormaps["viridis"](np.linspace(0, 1, LEVELS)))
    diverging = ListedColormap(colormaps["PuOr_r"](np.linspace(0.04, 0.96, DIFFERENCE_LEVELS)))
    for colours in (sequential, diverging):
        colours.set_bad(HIDDEN)
    hidden = np.triu(np.ones((SEQLEN, SEQLEN), bool), 1) if causal else np.zeros((SEQLEN, SEQLEN), bool)
    mask, short = ("causal mask", "causal") if causal else ("no mask", "full")
    text(15, 14, f"What each query attends to, {mask}", 14, weight="bold")
    text(15, 52, "softmax(Q Kᵀ/√d), read out of the kernel by one-hot columns of V", 9.5, color=MUTED)
    for column, title in enumerate((maps.step, "reference, float64", "difference")):
        text(left + column * (size + gap), top - 36, title, 10, weight="bold", va="center")
    image = None
    for head, pattern in enumerate(PATTERNS):
        y = top + head * (size + row_gap)
        difference = maps.kernel[head] - maps.reference[head]
        # The few that are larger, as the bar's ends say, would leave no colour for the others.
        largest = np.quantile(np.abs(difference[~hidden]), 0.999)
        for column, values in enumerate((maps.kernel[head], maps.reference[head], difference)):
            axes = axes_at(left + column * (size + gap), y, size, size)
            shown = np.ma.masked_array(values, hidden)
            if column < 2:
                shown = np.ma.masked_array(np.clip(values, LOWEST, None), hidden)
                image = axes.imshow(shown, sequential, LogNorm(LOWEST, 1), interpolation="nearest")
            else:
                changes = axes.imshow(
                    shown, diverging, vmin=-largest, vmax=largest, interpolation="nearest"
                )
            for spine in axes.spines.values():  # around the outermost elements, not on them
                spine.set(position=("outward", 0.6), linewidth=0.5, color=MUTED)
            ticks = range(0, SEQLEN + 1, TILE)
            axes.set_xticks([t - 0.5 for t in ticks], [str(t) for t in ticks], fontsize=8.6)
            axes.set_yticks([t - 0.5 for t in ticks], [str(t) for t in ticks], fontsize=8.6)
            axes.tick_params(length=2.5, pad=2, color=MUTED)
            if column > 0:
                axes.set_yticklabels([])
            if head < heads - 1:
                axes.set_xticklabels([])
            else:
                axes.set_xlabel("key", fontsize=9, labelpad=2)
            if column == 0:
                axes.set_ylabel("query", fontsize=9, labelpad=3)
                axes.set_title(f"{pattern}: {SEES[pattern]}", fontsize=9, loc="left", pad=4)
            if column == 2:
                error = nrmse(maps.kernel[head], maps.reference[head])
                axes.set_title(f"NRMSE {error:.1e}", fontsize=9, loc="left", pad=4)
        bar_axes = axes_at(left + 3 * size + 2 * gap + 11, y, 12, size)
        bar = figure.colorbar(changes, cax=bar_axes, extend="both", extendfrac=0.03)
        bar.set_ticks([-largest, 0, largest])
        bar.ax.set_yticklabels([f"−{largest:.0e}", "0", f"+{largest:.0e}"], fontsize=8.6)
        bar.ax.tick_params(length=2.5, pad=2)
        bar.outline.set_linewidth(0.4)
    y = height - bottom + 57
    bar = figure.colorbar(image, cax=axes_at(left, y, 2 * size + gap, 12), orientation="horizontal")
    bar.ax.tick_params(length=2.5, pad=2, labelsize=8.6)
    bar.ax.minorticks_off()
    bar.outline.set_linewidth(0.4)
    hides = ", grey: hidden by the mask" if causal else ""
    text(left + 2 * (size + gap), y - 3, f"weight of a key, log scale{hides}", 8.6, color=INK)
    where = "the emulator" if maps.backend == "emulator" else "a GPU"
    furthest = float(np.abs(maps.kernel.sum(-1) - 1).max())
    words = (
        f"{maps.step} on {where}. Problem: H={heads} S={SEQLEN} D={HEAD_DIM} {DTYPE} {short}, "
        f"structured inputs, seed 1. Ticks: tiles of {TILE} keys.\n"
        f"Every row of the kernel's matrices sums to 1 within {furthest:.0e}. "
        "The difference has a scale of its own in every row of pictures."
    )
    text(15, y + 44, words, 8.6, color=MUTED, linespacing=1.5)
    return figure


PICTURES: dict[str, Callable[[dict[bool, Maps]], Any]] = {
    "attention_full.png": partial(draw, causal=False),
    "attention_causal.png": partial(draw, causal=True),
}
