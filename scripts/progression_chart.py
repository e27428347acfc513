#!/usr/bin/env python3
"""Draws the ladder from a results file: rates of a CUDA run, or counters of an emulator run.

python3 scripts/progression_chart.py RESULTS.json --out FILE.svg [--where D=64 --where causal=true]
python3 scripts/progression_chart.py --check FILE.svg...   is each what figures/results/ and this script say?
"""
from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import figure_style
import results
from figure_style import BAR, CEILING, INK, MAX_BYTES, MUTED, ROOT
from results import ResultsError

FLATTENS_BARS = 2.5  # a ceiling this many times above the tallest bar is told, not drawn
LOG_FROM = 50.0  # counters that span more than this factor are drawn on a log scale
COUNTER_PANELS = (("global_sectors", "global sectors"), ("shared_wavefronts", "shared wavefronts"))
FINGERPRINT = re.compile(r"flashsteps progression chart; where: (.*?); sha256: ([0-9a-f]{64})")
SOURCE = re.compile(r"<dc:source>\s*(?:<[^>]*>\s*)?([^<\s]+)")


def fingerprint(record: bytes, filters: dict[str, str]) -> str:
    """Names all that the picture follows from: data, what was selected of it, scripts, library versions."""
    where = " ".join(f"{name}={value}" for name, value in sorted(filters.items())) or "all"
    digest = figure_style.digest(__file__, where.encode(), record)
    return f"flashsteps progression chart; where: {where}; sha256: {digest}"


def step_names(runs: list[dict[str, Any]]) -> list[str]:
    """Every step of any of the runs, in the order of the file."""
    return list(dict.fromkeys(step["step"] for run in runs for step in run["steps"]))


def plain(text: str) -> str:
    """Text from a file: a dollar sign is no mathematics."""
    return text.replace("$", r"\$")


def short(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def label_gap(axes: Any, position: int, text: str) -> None:
    """A step that has no value keeps its place, hatched, and says why."""
    axes.axvspan(
        position - 0.4, position + 0.4, facecolor="#eeeeec", edgecolor="#c8c8c4", hatch="///", linewidth=0
    )
    axes.text(
        position,
        0.04,
        plain(textwrap.shorten(text, 34, placeholder="…")),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=7,
        color=INK,
        transform=axes.get_xaxis_transform(),
        zorder=5,
        bbox={"facecolor": "#eeeeec", "edgecolor": "none", "pad": 1},
    )


def why_missing(step: dict[str, Any] | None) -> str:
    if step is None:
        return "not run"
    return ": ".join(text for text in (step["status"], step["message"].strip().split("\n")[0]) if text)


def finish_axes(axes: Any, names: list[str], title: str, unit: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(unit, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", linewidth=0.5, color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_rates(axes: Any, run: dict[str, Any], names: list[str]) -> None:
    steps = {step["step"]: step for step in run["steps"]}
    top = 0.0
    for position, name in enumerate(names):
        timing = (steps.get(name) or {}).get("timing")
        if timing is None:
            label_gap(axes, position, why_missing(steps.get(name)))
            continue
        low, middle, high = timing["tflops_p10"], timing["tflops"], timing["tflops_p90"]
        axes.bar(position, middle, width=0.7, color=BAR)
        # Rounding in the file may put a percentile on the wrong side of the median by a hair.
        axes.errorbar(
            position,
            middle,
            yerr=[[max(middle - low, 0)], [max(high - middle, 0)]],
            color=INK,
            capsize=3,
            linewidth=1,
        )
        axes.annotate(
            short(middle),
            (position, high),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=INK,
        )
        top = max(top, high)
    title = run["problem"]["label"]
    matmul = (run.get("ceilings") or {}).get("matmul")
    if matmul is not None:
        text = plain(f"{matmul['what']}: {short(matmul['tflops'])}")
        if matmul["tflops"] <= FLATTENS_BARS * top:
            axes.axhline(matmul["tflops"], color=CEILING, linewidth=1.2, linestyle="--")
            axes.annotate(
                text,
                (0, matmul["tflops"]),
                xytext=(2, 3),
                textcoords="offset points",
                xycoords=("axes fraction", "data"),
                fontsize=7,
                color=CEILING,
            )
            top = max(top, matmul["tflops"])
        else:
            title += f"\n{text}, off the scale"
    axes.set_ylim(0, top * 1.15 or 1)
    finish_axes(axes, names, title, "TFLOPS")


def draw_counter(axes: Any, run: dict[str, Any], names: list[str], key: str, title: str) -> None:
    steps = {step["step"]: step for step in run["steps"]}
    values = {name: step["counters"] for name, step in steps.items() if step.get("counters") is not None}
    seen = [value[key] for value in values.values() if value[key] > 0]
    if key == "shared_wavefronts":
        title += " (orange: ideal, without bank conflicts)"
        seen += [
            value["shared_wavefronts_ideal"]
            for value in values.values()
            if value["shared_wavefronts_ideal"] > 0
        ]
    use_log = bool(seen) and max(seen) > LOG_FROM * min(seen)
    if use_log:
        axes.set_yscale("log")
        axes.set_ylim(min(seen) / 3, max(seen) * 3)
    else:
        axes.set_ylim(0, max(seen, default=1) * 1.2)
    for position, name in enumerate(names):
        if name not in values:
            label_gap(axes, position, why_missing(steps.get(name)))
            continue
        value = values[name][key]
        if value > 0:
            axes.bar(position, value, width=0.7, color=BAR)
        axes.annotate(
            f"{value:,}",
            (position, value if value > 0 else 0),
            xytext=(0, 3),
            ha="center",
            fontsize=6.5,
            textcoords="offset points",
            color=INK,
            xycoords="data" if value > 0 else ("data", "axes fraction"),
        )
        if key == "shared_wavefronts" and values[name]["shared_wavefronts_ideal"] > 0:
            axes.hlines(
                values[name]["shared_wavefronts_ideal"],
                position - 0.42,
                position + 0.42,
                color=CEILING,
                linewidth=2,
            )
    finish_axes(
        axes, names, f"{title}\n{run['problem']['label']}", "count, log scale" if use_log else "count"
    )


def caption(data: dict[str, Any]) -> str:
    origin = data["provenance"]
    commit = (origin.get("commit") or "unknown")[:12] + (
        " with uncommitted changes" if origin.get("dirty") else ""
    )
    if origin["backend"] == "cuda":
        return f"{plain(origin['device']['name'])}, commit {commit}. Bars: median; whiskers: p10 to p90."
    return f"Emulator, commit {commit}. Lower is less work; this is no timing model."


def draw(data: dict[str, Any], runs: list[dict[str, Any]], out: Path, metadata: dict[str, Any]) -> None:
    plt = figure_style.pyplot()
    names = step_names(runs)
    is_cuda = data["provenance"]["backend"] == "cuda"
    panels = (
        [(run, None) for run in runs]
        if is_cuda
        else [(run, panel) for run in runs for panel in COUNTER_PANELS]
    )
    width = max(6.5, 1.2 + 0.62 * len(names))
    figure, grid = plt.subplots(
        len(panels), 1, figsize=(width, 0.9 + 3.1 * len(panels)), squeeze=False, layout="constrained"
    )
    for axes, (run, panel) in zip(grid[:, 0], panels):
        if panel is None:
            draw_rates(axes, run, names)
        else:
            draw_counter(axes, run, names, *panel)
    figure.suptitle(
        "FlashSteps: one idea a step" if is_cuda else "FlashSteps: emulator counts, not times", fontsize=11
    )
    figure.supxlabel(caption(data), fontsize=7.5, color=MUTED)
    figure.savefig(out, format="svg", metadata=figure_style.svg_metadata(**metadata))
    plt.close(figure)


def check_chart(path: Path, root: Path) -> str:
    """Why the chart is not what its record and this script give; empty when it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: {error}"
    found, source = FINGERPRINT.search(text), SOURCE.search(text)
    if not found or not source:
        return f"{path}: was not made by progression_chart.py"
    if len(text.encode()) > MAX_BYTES:
        return f"{path}: is {len(text.encode())} bytes, {MAX_BYTES} are allowed"
    record = root / "figures" / "results" / Path(source[1]).name
    if not record.is_file():
        return f"{path}: its record figures/results/{record.name} does not exist"
    filters = {} if found[1] == "all" else dict(word.split("=", 1) for word in found[1].split())
    if fingerprint(record.read_bytes(), filters) != found[0]:
        where = "".join(f" --where {name}={value}" for name, value in filters.items())
        return (
            f"{path}: is stale (build/venv/bin/python scripts/progression_chart.py "
            f"figures/results/{record.name} --out {path}{where})"
        )
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the ladder from a results file.")
    parser.add_argument("results", nargs="?", type=Path, metavar="RESULTS.json")
    parser.add_argument("--out", type=Path, metavar="FILE.svg")
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only matching problems"
    )
    parser.add_argument(
        "--check", nargs="+", type=Path, metavar="FILE.svg", help="are these charts up to date?"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    if options.check:
        if options.results or options.out or options.where:
            parser.error("--check takes charts only")
        errors = [error for path in options.check if (error := check_chart(path, options.root))]
        for error in errors:
            print(error, file=sys.stderr)
        if not errors:
            print(f"{len(options.check)} chart(s) up to date")
        return 1 if errors else 0
    if options.results is None or options.out is None:
        parser.error("give RESULTS.json and --out FILE.svg, or --check")
    if not all("=" in word for word in options.where):
        parser.error("--where takes KEY=VALUE")
    filters = dict(word.split("=", 1) for word in options.where)
    try:
        data = results.load(options.results)
        if results.is_peers(data):
            raise ResultsError(f"{options.results}: is a comparison with peers, this draws a ladder")
        runs = results.select_runs(data, filters)
        key = "timing" if data["provenance"]["backend"] == "cuda" else "counters"
        if not any(step.get(key) for run in runs for step in run["steps"]):
            raise ResultsError(f"{options.results}: no step has {key}, so there is nothing to draw")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        draw(
            data,
            runs,
            options.out,
            {
                "Source": options.results.name,
                "Description": fingerprint(options.results.read_bytes(), filters),
            },
        )
    except (ResultsError, OSError) as error:
        print(f"progression_chart.py: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"progression_chart.py: {error} {figure_style.MISSING}", file=sys.stderr)
        return 1
    size = options.out.stat().st_size
    if size > MAX_BYTES:
        options.out.unlink()
        print(
            f"progression_chart.py: the chart has {size} bytes, {MAX_BYTES} are allowed: "
            "choose problems with --where",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
