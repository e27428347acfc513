#!/usr/bin/env python3
"""Draws how far a step is from attention in float64: how errors are spread, where they are, what makes them.

python3 scripts/draw/error_analysis.py FLASHSTEPS --out FOLDER     draws all pictures
python3 scripts/draw/error_analysis.py FLASHSTEPS --check FOLDER   are they what the program and this script say?

The four structured heads and one of N(0, 1), fp16 and bf16, with a causal mask and without; V is N(0, 1).
--step and --backend take another step, or a GPU.
"""
from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import attention_data, drawings
from draw.attention_data import PATTERNS, np, nrmse
from draw.figure_style import BAR, CEILING, INK, MUTED
from measure import program

# Keeps P in FP32, so that it differs in one of the two roundings.
FP32_STEP = "v02_smem_tiles"
BATCH, SEQLEN, HEAD_DIM, TILE = 3, 256, 64, 64
DTYPES = ("fp16", "bf16")
MASKS = {False: "full", True: "causal"}
HEADS = (*PATTERNS, "N(0, 1)")
SECOND = "#E69F00"  # Okabe and Ito's orange; beside blue it is also the lighter one


@dataclass(frozen=True)
class Case:
    """One type and one mask; all [batch, head, query, column]."""

    reference: Any
    step: Any


@dataclass(frozen=True)
class Rounding:
    """What there is to compare with, for one type, without a mask."""

    fp32_step: Any
    # The roundings alone, everything else in float64.
    o_rounded: Any
    both_rounded: Any


@dataclass(frozen=True)
class Errors:
    cases: dict[tuple[str, bool], Case]
    roundings: dict[str, Rounding]
    gates: dict[str, dict[str, float]]  # the program's, by type
    all_fp32: float  # NRMSE of the N(0, 1) head where nothing has 16 bits
    step: str
    backend: str


def make_inputs() -> tuple[Any, Any, Any]:
    """q, k and v, [batch, head, position, column]. The structured heads have the same q and k in each batch entry."""
    shape = (BATCH, 1, SEQLEN, HEAD_DIM)
    q, k = (
        np.concatenate(
            [
                np.repeat(attention_data.structured(is_query, SEQLEN, HEAD_DIM)[None], BATCH, axis=0),
                attention_data.normal(1, stream, shape),
            ],
            axis=1,
        )
        for is_query, stream in ((True, attention_data.STREAM_Q), (False, attention_data.STREAM_K))
    )
    return q, k, attention_data.normal(1, attention_data.STREAM_V, q.shape)


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


def read(options: argparse.Namespace) -> tuple[Errors | None, str]:
    """The errors, and the description: of the steps, their inputs, the bits that came out, the scripts."""
    inputs = make_inputs()
    given = {dtype: [attention_data.to_bits(x, dtype) for x in inputs] for dtype in DTYPES}
    given["fp32"] = [attention_data.to_bits(x[:, -1:], "fp32") for x in inputs]  # the N(0, 1) head
    runs = [(options.step, dtype, causal) for dtype in DTYPES for causal in MASKS]
    runs += [(FP32_STEP, dtype, False) for dtype in given]
    found = {}
    for step, dtype, causal in runs:
        found[step, dtype, causal] = attention_data.run_step(
            options.program, step, dtype, causal, *given[dtype], options.backend
        )
    name = f"{options.step} {options.backend}".encode()
    bits = [x.tobytes() for x in (*sum(given.values(), []), *found.values())]
    try:
        gates = program.ask(options.program)["gates"]
    except (program.Refused, program.Unavailable) as error:
        raise drawings.DrawingError(str(error)) from error
    parts = attention_data.source(), repr([gates[dtype] for dtype in DTYPES]).encode(), name, *bits
    described = drawings.description("error analysis", __file__, *parts)
    return (None if options.check else analyse(options, gates, given, found)), described


def analyse(
    options: argparse.Namespace, gates: dict[str, Any], given: dict[str, Any], found: dict[Any, Any]
) -> Errors:
    cases, roundings = {}, {}
    outputs = {key: attention_data.to_double(o, key[1]) for key, o in found.items()}
    exact = {dtype: [attention_data.to_double(x, dtype) for x in given[dtype]] for dtype in given}

    def reference(dtype: str, causal: bool) -> Any:
        q, k, v = exact[dtype]
        return attention_data.probabilities(q, k, causal) @ v

    for dtype in DTYPES:
        for causal in MASKS:
            cases[dtype, causal] = Case(reference(dtype, causal), outputs[options.step, dtype, causal])
        roundings[dtype] = Rounding(
            outputs[FP32_STEP, dtype, False],
            attention_data.rounded(cases[dtype, False].reference, dtype),
            attention_data.rounded(tile_by_tile(*exact[dtype], dtype), dtype),
        )
    all_fp32 = float(nrmse(outputs[FP32_STEP, "fp32", False], reference("fp32", False)))
    return Errors(cases, roundings, gates, all_fp32, options.step, options.backend)


# The pictures.


def finish(figure: Any, data: Errors, title: str, words: str) -> Any:
    where = "the emulator" if data.backend == "emulator" else "a GPU"
    figure.suptitle(title, fontsize=12, x=0.01, ha="left", weight="bold")
    caption = (
        f"{data.step} on {where}. Problem: B={BATCH} H={len(HEADS)} S={SEQLEN} D={HEAD_DIM}; "
        f"reference: float64.\n{words}"
    )
    figure.text(0.01, 0.012, caption, fontsize=8, color=MUTED, ha="left", va="bottom", linespacing=1.45)
    return figure


def plain_axes(axes: Any, title: str, grid: str = "y") -> None:
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.grid(axis=grid, linewidth=0.5, color="#dddddd")
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_histogram(plt: Any, data: Errors) -> Any:
    figure, grid = plt.subplots(1, 2, figsize=(8.2, 3.9), sharey=True)
    figure.subplots_adjust(left=0.09, right=0.985, top=0.84, bottom=0.28, wspace=0.08)
    for axes, dtype in zip(grid, DTYPES):
        case, gate = data.cases[dtype, False], data.gates[dtype]["nrmse"]
        # A row's norm is that of 64 elements: relative to a typical one of them.
        typical = attention_data.norm(case.reference, -1)[..., None] / np.sqrt(HEAD_DIM)
        edges = np.linspace(-1.5 * gate, 1.5 * gate, 121)
        looks = (
            (data.step, case.step, {"color": BAR, "alpha": 0.85}),
            (FP32_STEP, data.roundings[dtype].fp32_step, {"color": CEILING, "histtype": "step", "linewidth": 1.4}),
        )
        for name, o, look in looks:
            relative = ((o - case.reference) / typical).ravel()
            weights = np.full(relative.size, 100 / relative.size)
            label = f"{name}: rms {np.sqrt(np.mean(relative**2)):.1e}"
            axes.hist(np.clip(relative, edges[0], edges[-1]), edges, weights=weights, label=label, **look)
        for sign in (-1, 1):
            axes.axvline(sign * gate, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            place = (sign * gate, 1), ("data", "axes fraction")
            axes.annotate("gate", place[0], xycoords=place[1], fontsize=7.5, ha="center", va="bottom")
        axes.set_yscale("log")
        axes.set_ylim(1e-4, 300)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks([-gate, 0, gate], [f"−{gate:g}", "0", f"{gate:g}"])
        axes.legend(fontsize=7.5, loc="upper center", frameon=False, borderaxespad=0.1)
        plain_axes(axes, dtype)
        axes.set_xlabel("error / a typical element of its row", fontsize=8.5)
    grid[0].set_ylabel("% of all elements", fontsize=8.5)
    words = (
        f"All heads, no mask. {FP32_STEP} keeps P in FP32. The gate is for the root mean square (rms), not for "
        "an\nelement. Errors beyond the axis are counted at its ends."
    )
    return finish(figure, data, "How errors are spread", words)


def draw_position(plt: Any, data: Errors) -> Any:
    figure, grid = plt.subplots(1, 2, figsize=(8.2, 3.9))
    figure.subplots_adjust(left=0.1, right=0.975, top=0.85, bottom=0.275, wspace=0.22)
    query = np.arange(1, SEQLEN + 1)
    for axes, dtype in zip(grid, DTYPES):
        for causal, colour in ((True, BAR), (False, SECOND)):
            case = data.cases[dtype, causal]
            rows = nrmse(case.step, case.reference, -1)[:, -1]  # of the N(0, 1) head: [batch, query]
            axes.fill_between(query, rows.min(0), rows.max(0), color=colour, alpha=0.3, linewidth=0)
            axes.plot(query, np.median(rows, 0), color=colour, linewidth=1.2, label=MASKS[causal])
        gate = data.gates[dtype]
        axes.axhline(gate["nrmse"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"gate {gate['nrmse']:g} (of a row: {gate['row']:g})",
            (SEQLEN, gate["nrmse"]),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=7.5,
            ha="right",
        )
        axes.set_xscale("log", base=2)
        ticks = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlim(1, SEQLEN)
        axes.set_ylim(0, 1.15 * gate["nrmse"])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.02, 0.86), frameon=False)
        plain_axes(axes, dtype)
        axes.set_xlabel("query, counted from 1", fontsize=8.5)
    grid[0].set_ylabel("error of a row / its norm", fontsize=8.5)
    words = (
        f"Head {HEADS[-1]}; lines: median of {BATCH} batch entries, bands: all of them. The first causal query sees "
        "one key:\nits weight is exactly 1, and O is that row of V, without an error."
    )
    return finish(figure, data, "Errors by position of the query", words)


def draw_heads(plt: Any, data: Errors) -> Any:
    figure, grid = plt.subplots(1, 2, figsize=(8.2, 3.9))
    figure.subplots_adjust(left=0.1, right=0.985, top=0.85, bottom=0.21, wspace=0.2)
    for axes, dtype in zip(grid, DTYPES):
        for (causal, mask), colour, shift in zip(MASKS.items(), (SECOND, BAR), (-0.2, 0.2)):
            case = data.cases[dtype, causal]
            for head in range(len(HEADS)):
                o, reference = case.step[:, head], case.reference[:, head]
                whole, worst = nrmse(o, reference), nrmse(o, reference, -1).max()
                label = {"label": mask} if head == 0 else {}
                axes.bar(head + shift, whole, width=0.36, color=colour, **label)
                axes.plot(head + shift, worst, marker="D", markersize=3.5, color=INK, linestyle="none")
                axes.annotate(
                    f"{whole / data.gates[dtype]['nrmse']:.2f}",
                    (head + shift, 0),
                    xytext=(0, 4),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=7,
                    color="white" if causal else INK,
                )
        axes.plot([], [], marker="D", markersize=3.5, color=INK, linestyle="none", label="worst row")
        for kind, words in (("nrmse", "gate"), ("row", "gate of a row")):
            gate = data.gates[dtype][kind]
            axes.axhline(gate, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{words}: {gate:g}",
                (1, gate),
                xytext=(0, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=7.5,
                ha="right",
            )
        axes.set_xticks(range(len(HEADS)), HEADS)
        axes.set_ylim(0, 1.14 * data.gates[dtype]["row"])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.88), frameon=False, ncols=1)
        plain_axes(axes, dtype)
    grid[0].set_ylabel("NRMSE", fontsize=8.5)
    words = "Numbers: the NRMSE as a part of its gate."
    return finish(figure, data, "Errors by head, beside the gates", words)


def draw_sources(plt: Any, data: Errors) -> Any:
    figure, grid = plt.subplots(1, 2, figsize=(8.2, 3.5), sharey=True)
    figure.subplots_adjust(left=0.225, right=0.985, top=0.81, bottom=0.295, wspace=0.06)
    for axes, dtype in zip(grid, DTYPES):
        case = data.cases[dtype, False]
        reference, roundings = case.reference[:, -1], data.roundings[dtype]
        rows = [
            ("float64, O rounded", nrmse(roundings.o_rounded[:, -1], reference), SECOND),
            (FP32_STEP, nrmse(roundings.fp32_step[:, -1], reference), BAR),
            ("float64, P and O rounded", nrmse(roundings.both_rounded[:, -1], reference), SECOND),
            (data.step, nrmse(case.step[:, -1], reference), BAR),
            (f"{FP32_STEP}, fp32", data.all_fp32, BAR),
        ]
        for position, (name, value, colour) in enumerate(rows):
            axes.barh(position, value, height=0.66, color=colour)
            axes.annotate(
                f"{value:.2e}",
                (value, position),
                xytext=(-5, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
                color="white" if colour == BAR else INK,
            )
        gate = data.gates[dtype]["nrmse"]
        axes.axvline(gate, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"gate {gate:g}",
            (gate, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=7.5,
            ha="center",
        )
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.set_xscale("log")
        axes.set_xlim(3e-8, 3e-2)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        plain_axes(axes, dtype, grid="x")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("NRMSE, log scale", fontsize=8.5)
    words = (
        f"Head {HEADS[-1]}, no mask. Orange: all in float64, but for the roundings. {FP32_STEP} keeps P in FP32;\n"
        "where inputs and outputs are fp32 too, what is left is the error of FP32 sums and of exp2."
    )
    return finish(figure, data, "Errors beside those of the roundings alone", words)


PICTURES: dict[str, Callable[[Any, Errors], Any]] = {
    "errors_sources.svg": draw_sources,
    "errors_histogram.svg": draw_histogram,
    "errors_position.svg": draw_position,
    "errors_heads.svg": draw_heads,
}


def main(arguments: list[str] | None = None) -> int:
    return drawings.main(__file__, __doc__, PICTURES, read, arguments, attention_data.add_options)


if __name__ == "__main__":
    sys.exit(main())
