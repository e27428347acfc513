#!/usr/bin/env python3
"""Draws the ladder from a results file: rates of a CUDA run, or counters of an emulator run.

python3 scripts/progression_chart.py RESULTS.json --out FILE.svg [--where D=64 --where causal=true]

It is for a run of your own; the figures of recorded runs are drawn by make_figures.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import charts
import figure_style
import results
from figure_style import MAX_BYTES
from results import ResultsError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the ladder from a results file.")
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("--out", type=Path, metavar="FILE.svg", required=True)
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only matching problems"
    )
    options = parser.parse_args(arguments)
    if not all("=" in word for word in options.where):
        parser.error("--where takes KEY=VALUE")
    filters = dict(word.split("=", 1) for word in options.where)
    try:
        data = results.load(options.results)
        runs = results.select_runs(data, filters)
        figure = charts.progression(figure_style.pyplot(), [data], [runs])
        text = figure_style.svg_text(figure, Source=options.results.name)
        if len(text.encode()) > MAX_BYTES:
            size = f"{len(text.encode())} bytes, {MAX_BYTES} are allowed"
            raise ResultsError(f"the chart has {size}: choose problems with --where")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    except (ResultsError, OSError) as error:
        print(f"progression_chart.py: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"progression_chart.py: {error} {figure_style.MISSING}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
