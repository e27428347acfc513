"""How far a step is from attention in float64: how errors are spread, where they are, what makes them.

The four structured heads and one of N(0, 1), fp16 and bf16, with a causal mask and without; V is N(0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy as np

from draw import attention_data
from draw.attention_data import PATTERNS, nrmse
from draw.figure_style import BAR, CEILING, INK, TEXT
from draw.figure_style import IDEAL as SECOND
from draw.figure_style import finish, label_line, log_scale, panels, place_rows, say, style_axes

# Keeps P in FP32, so that it differs in one of the two roundings.
FP32_STEP = "v02_smem_tiles"
BATCH, SEQLEN, HEAD_DIM, TILE = 3, 256, 64, 64
DTYPES = ("fp16", "bf16")
MASKS = {False: "full", True: "causal"}
HEADS = (*PATTERNS, "N(0, 1)")
# Beside the steps: in float64, and with the roundings alone, everything else in float64.
EXACT, O_ROUNDED, BOTH_ROUNDED = "float64", "float64, O rounded", "float64, P and O rounded"


@dataclass(frozen=True)
class Errors:
    outputs: dict[tuple[str, bool], dict[str, Any]]  # of a type and a mask, whose, [batch, head, query, column]
    gates: dict[str, dict[str, float]]  # the program's, by type
    all_fp32: float  # NRMSE of the N(0, 1) head where nothing has 16 bits
    step: str
    backend: str


def make_inputs(build: Path, dtype: str) -> list[Any]:
    """The bits of q, k and v, [batch, head, position, column]. The structured heads have the same q and k in each batch
    entry."""
    structured = attention_data.inputs(build, "structured", dtype, 1, len(PATTERNS), SEQLEN)
    normal = attention_data.inputs(build, "normal", dtype, BATCH, 1, SEQLEN)
    *_, v = attention_data.inputs(build, "normal", dtype, BATCH, len(HEADS), SEQLEN)
    return [*(np.concatenate([np.repeat(a, BATCH, 0), b], 1) for a, b in zip(structured[:2], normal)), v]


def tile_by_tile(q: Any, k: Any, v: Any, dtype: str) -> Any:
    """Attention with P rounded as the tensor core steps do it: relative to the largest score so far, in tiles of
    keys. The sum of a row is that of the weights before they are rounded."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    largest = np.full(scores.shape[:-1], -np.inf)
    total, o = np.zeros(largest.shape), np.zeros(q.shape)
    for first in range(0, scores.shape[-1], TILE):
        tile = scores[..., first : first + TILE]
        new = np.maximum(largest, tile.max(-1))
        shrink, p = np.exp(largest - new), np.exp(tile - new[..., None])
        total = total * shrink + p.sum(-1)
        o = o * shrink[..., None] + attention_data.rounded(p, dtype) @ v[..., first : first + TILE, :]
        largest = new
    return o / total[..., None]


def read(build: Path, step: str = attention_data.STEP, backend: str = "emulator") -> Errors:
    given = {dtype: make_inputs(build, dtype) for dtype in (*DTYPES, "fp32")}
    given["fp32"] = [x[:, -1:] for x in given["fp32"]]  # the N(0, 1) head
    exact = {dtype: [attention_data.to_double(x, dtype) for x in bits] for dtype, bits in given.items()}

    def output(step: str, dtype: str, causal: bool = False) -> Any:
        o = attention_data.run_step(build, step, dtype, causal, *given[dtype], backend)
        return attention_data.to_double(o, dtype)

    def reference(dtype: str, causal: bool = False) -> Any:
        q, k, v = exact[dtype]
        return attention_data.probabilities(q, k, causal) @ v

    outputs = {}
    for dtype in DTYPES:
        for causal in MASKS:
            outputs[dtype, causal] = {EXACT: reference(dtype, causal), step: output(step, dtype, causal)}
        both = tile_by_tile(*exact[dtype], dtype)
        outputs[dtype, False] |= {
            FP32_STEP: output(FP32_STEP, dtype),
            O_ROUNDED: attention_data.rounded(outputs[dtype, False][EXACT], dtype),
            BOTH_ROUNDED: attention_data.rounded(both, dtype),
        }
    all_fp32 = float(nrmse(output(FP32_STEP, "fp32"), reference("fp32")))
    return Errors(outputs, attention_data.lab_of(build, backend).gates, all_fp32, step, backend)


# The pictures: a panel for each type.


def finished(figure: Any, data: Errors, title: str, words: str) -> Any:
    where = "the emulator" if data.backend == "emulator" else "a GPU"
    problem = f"Problem: B={BATCH} H={len(HEADS)} S={SEQLEN} D={HEAD_DIM}; reference: float64."
    return finish(figure, title, [f"{data.step} on {where}. {problem}", words])


def draw_gate(axes: Any, gate: float, words: str, upright: bool = False) -> None:
    (axes.axvline if upright else axes.axhline)(gate, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    label_line(axes, gate, words, INK, upright)


def draw_histogram(data: Errors) -> Any:
    figure, grid = panels(1, 2, 4.2, sharey=True)
    for axes, dtype in zip(grid[0], DTYPES):
        outputs, gate = data.outputs[dtype, False], data.gates[dtype]["nrmse"]
        # A row's norm is that of 64 elements: relative to a typical one of them.
        typical = attention_data.norm(outputs[EXACT], -1)[..., None] / np.sqrt(HEAD_DIM)
        edges = np.linspace(-1.5 * gate, 1.5 * gate, 121)
        looks = (
            (data.step, {"color": BAR, "alpha": 0.85}),
            (FP32_STEP, {"color": CEILING, "histtype": "step", "linewidth": 1.4}),
        )
        for name, look in looks:
            relative = ((outputs[name] - outputs[EXACT]) / typical).ravel()
            weights = np.full(relative.size, 100 / relative.size)
            label = f"{name}: rms {np.sqrt(np.mean(relative**2)):.1e}"
            axes.hist(np.clip(relative, edges[0], edges[-1]), edges, weights=weights, label=label, **look)
        for sign in (-1, 1):
            draw_gate(axes, sign * gate, "gate", upright=True)
        log_scale(axes, "y", 1e-4, 3e3, digits=(1,))
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks([-gate, 0, gate], [f"−{gate:g}", "0", f"{gate:g}"])
        axes.legend(fontsize=TEXT, loc="upper center", frameon=False, borderaxespad=0.1)
        style_axes(axes, dtype, "y", pad=20)
        axes.set_xlabel("error / a typical element of its row", fontsize=TEXT)
    grid[0][0].set_ylabel("% of all elements", fontsize=TEXT)
    words = (
        f"All heads, no mask. {FP32_STEP} keeps P in FP32. The gate is for the root mean square (rms), not for an "
        "element. Errors beyond the axis are counted at its ends."
    )
    return finished(figure, data, "How errors are spread", words)


def draw_position(data: Errors) -> Any:
    figure, grid = panels(1, 2, 4.2)
    query = np.arange(1, SEQLEN + 1)
    for axes, dtype in zip(grid[0], DTYPES):
        for causal, colour in ((True, BAR), (False, SECOND)):
            outputs = data.outputs[dtype, causal]
            rows = nrmse(outputs[data.step], outputs[EXACT], -1)[:, -1]  # of the N(0, 1) head: [batch, query]
            axes.fill_between(query, rows.min(0), rows.max(0), color=colour, alpha=0.3, linewidth=0)
            axes.plot(query, np.median(rows, 0), color=colour, linewidth=1.2, label=MASKS[causal])
        gate = data.gates[dtype]
        draw_gate(axes, gate["nrmse"], f"gate\n{gate['nrmse']:g}\n(of a row:\n{gate['row']:g})")
        axes.set_xscale("log", base=2)
        ticks = [1, 4, 16, 64, 256]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set(xlim=(1, SEQLEN), ylim=(0, 1.15 * gate["nrmse"]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(fontsize=TEXT, loc="upper left", bbox_to_anchor=(0.02, 0.86), frameon=False)
        style_axes(axes, dtype, "y")
        axes.set_xlabel("query, counted from 1", fontsize=TEXT)
    grid[0][0].set_ylabel("error of a row / its norm", fontsize=TEXT)
    words = (
        f"Head {HEADS[-1]}; lines: median of {BATCH} batch entries, bands: all of them. The first causal query sees "
        "one key: its weight is exactly 1, and O is that row of V, without an error."
    )
    return finished(figure, data, "Errors by position of the query", words)


def draw_heads(data: Errors) -> Any:
    figure, grid = panels(1, 2, 4.2)
    for axes, dtype in zip(grid[0], DTYPES):
        gate = data.gates[dtype]
        for (causal, mask), colour, shift in zip(MASKS.items(), (SECOND, BAR), (-0.2, 0.2)):
            outputs, at = data.outputs[dtype, causal], np.arange(len(HEADS)) + shift
            whole, rows = (nrmse(outputs[data.step], outputs[EXACT], over) for over in ((0, 2, 3), -1))
            bars = axes.bar(at, whole, width=0.36, color=colour, label=mask)
            axes.plot(at, rows.max((0, 2)), marker="D", markersize=3.5, color=INK, linestyle="none")
            look = {"label_type": "center", "fontsize": TEXT, "color": "white" if causal else INK, "rotation": 90}
            axes.bar_label(bars, [f"{share:.2f}" for share in whole / gate["nrmse"]], **look)
        axes.plot([], [], marker="D", markersize=3.5, color=INK, linestyle="none", label="worst row")
        draw_gate(axes, gate["nrmse"], f"gate\n{gate['nrmse']:g}")
        draw_gate(axes, gate["row"], f"of a row\n{gate['row']:g}")
        axes.set_xticks(range(len(HEADS)), HEADS)
        axes.set_ylim(0, 1.14 * gate["row"])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(fontsize=TEXT, loc="upper left", bbox_to_anchor=(0, 0.88), frameon=False)
        style_axes(axes, dtype, "y")
    grid[0][0].set_ylabel("NRMSE", fontsize=TEXT)
    return finished(figure, data, "Errors by head, beside the gates", "Numbers: the NRMSE as a part of its gate.")


def draw_sources(data: Errors) -> Any:
    figure, grid = panels(1, 2, 3.6, sharey=True)
    for axes, dtype in zip(grid[0], DTYPES):
        outputs, gate = data.outputs[dtype, False], data.gates[dtype]["nrmse"]
        rows = {O_ROUNDED: SECOND, FP32_STEP: BAR, BOTH_ROUNDED: SECOND, data.step: BAR}
        found = [(nrmse(outputs[name][:, -1], outputs[EXACT][:, -1]), colour) for name, colour in rows.items()]
        place_rows(axes, dict.fromkeys([*rows, f"{FP32_STEP}, fp32"], False))
        axes.set(xscale="log", xlim=(3e-8, 1))
        axes.set_xticks(ticks := [1e-7, 1e-5, 1e-3, 1e-1], [f"{tick:.0e}" for tick in ticks])
        axes.minorticks_off()
        for row, (value, colour) in enumerate([*found, (data.all_fp32, BAR)]):
            axes.barh(row, value, height=0.66, color=colour)
            say(axes, row, f"{value:.2e}", right_of=max(value, gate))
        draw_gate(axes, gate, f"gate {gate:g}", upright=True)
        style_axes(axes, dtype, "x", pad=20)
        axes.set_xlabel("NRMSE, log scale", fontsize=TEXT)
    words = (
        f"Head {HEADS[-1]}, no mask. Orange: all in float64, but for the roundings. {FP32_STEP} keeps P in FP32; "
        "where inputs and outputs are fp32 too, what is left is the error of FP32 sums and of exp2."
    )
    return finished(figure, data, "Errors beside those of the roundings alone", words)


PICTURES: dict[str, Callable[[Errors], Any]] = {
    "errors_sources.svg": draw_sources,
    "errors_histogram.svg": draw_histogram,
    "errors_position.svg": draw_position,
    "errors_heads.svg": draw_heads,
}
