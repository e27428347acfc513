#!/usr/bin/env python3
"""Draws every figure in figures/ from the recorded runs in figures/results/, and those of docs/figures/.

python3 scripts/draw/make_figures.py           draws those that are not up to date
python3 scripts/draw/make_figures.py --check   changes nothing; names what is stale, missing or left over
        ... --build build/ci          the same, and for docs/figures/ too: these show what programs of a build with
                                      tests do (preset ci), which are run for it
        ... --build build/ci copies   only those whose names begin so

Nothing but the picture decides whether it is up to date: all are drawn again, and compared.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import charts, drawings, figure_style, ladder, pipeline_picture
from draw.drawings import DrawingError
from records import results
from records.results import ResultsError
from steps import sources
from steps.sources import ROOT

# Of figures/: by kind, the records in figures/results/, and which of their problems, each as a block of
# readme_tables.py would say it.
CHARTS = {
    "staircase": (("h200_staircase.json",), ("D=128 causal=false",)),
    "decode": (("h200_decode_parts.json",), ("B=1 Skv=1", "B=1 Skv=1024", "B=1 Skv=4096", "B=1 Skv=32768")),
    "lengths": (("h200_peers_hopper.json",), ("dtype=bf16",)),
    "roofline": (("h200_profile.json", "h200_peers.json"), ("S=4096 D=64 dtype=fp16 causal=false",)),
    "instructions": (("h200_profile.json",), ("S=4096 D=64 causal=false",)),
}
KINDS = charts.KINDS | ladder.KINDS
# Of docs/figures/: who draws.
MODULES = ("fragment_layouts", "memory_layouts", "copy_states", "data_flow", "online_softmax", "pipeline_picture")
MODULES += ("ideas", "attention_maps", "error_analysis", "race")
PLACE = re.compile(rb' (?:d|x|y|width|height|transform)="([^"]*)"')
REMEDY = "build/venv/bin/python scripts/draw/make_figures.py"

Drawings = dict[Path, Callable[[], Any]]


def draw_chart(kind: str) -> Any:
    """Without the steps that have left the ladder since they were recorded."""
    records, where = CHARTS[kind]
    filters = [dict(word.split("=") for word in problem.split()) for problem in where]
    found = []
    for file in records:
        data = results.load(ROOT / "figures" / "results" / file, schema=None)
        for run in data["runs"]:
            run["steps"] = [step for step in run["steps"] if not sources.has_left(step["step"])]
        found.append(charts.Source(file, data, [run for each in filters for run in results.select_runs(data, each)]))
    return KINDS[kind](found)


def all_charts() -> Drawings:
    return {ROOT / "figures" / f"{kind}.svg": partial(draw_chart, kind) for kind in CHARTS}


def all_drawings(module: str, build: Path) -> Drawings:
    """What they are drawn from is read when the first one is."""
    drawn_by = importlib.import_module(f"draw.{module}")
    read = functools.cache(lambda: drawn_by.read(build))
    folder = ROOT / "docs" / "figures"
    return {folder / name: lambda draw=draw: draw(read()) for name, draw in drawn_by.PICTURES.items()}


def is_as_drawn(path: Path, made: bytes) -> bool:
    """Another processor may round the last digit of a place otherwise. And how many plain accesses a kernel has is the
    compiler's choice: in pictures of traces all places follow from it, but neither words nor the number of boxes."""
    both = path.read_bytes(), made
    words = [PLACE.sub(b" ", each) for each in both]
    places = [re.findall(rb"-?[\d.]+", b" ".join(PLACE.findall(each))) for each in both]
    tolerance = math.inf if path.name in pipeline_picture.PICTURES else 0.01
    return (words[0], len(places[0])) == (words[1], len(places[1])) and all(
        abs(float(a) - float(b)) < tolerance for a, b in zip(*places)
    )


def update(path: Path, draw: Callable[[], Any], check: bool) -> list[str]:
    """Draws it if it is not up to date, or only says so. What is wrong; what cannot be read is drawn all the same."""
    try:
        made, errors = drawings.content(path.name, draw())
        if path.is_file() and is_as_drawn(path, made):
            return errors
        if check:
            return [*errors, f"{path}: is {'stale' if path.is_file() else 'missing'} ({REMEDY})"]
        path.write_bytes(made)
        print(f"{path}: drawn")
        return errors
    except (DrawingError, ResultsError, OSError) as error:
        return [f"{path}: {error}"]


def left_over(known: Drawings) -> list[str]:
    """Deleting is for whoever knows why it is there."""
    found = sorted(path for folder in {path.parent for path in known} for path in folder.iterdir())
    found = [path for path in found if path.suffix in (".svg", ".png") and path not in known]
    return [f"{path}: left over, make_figures.py draws no such figure (delete it)" for path in found]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; say what is not up to date")
    parser.add_argument("--build", type=Path, metavar="DIR", help="docs/figures/ too, from its programs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only figures whose names begin so")
    options = parser.parse_args(arguments)
    try:
        wanted = all_charts()
        for module in MODULES if options.build else ():
            wanted |= all_drawings(module, options.build.resolve())
        errors = [] if options.names else left_over(wanted)
        wanted = {path: draw for path, draw in wanted.items() if path.name.startswith(tuple(options.names or [""]))}
        for path, draw in wanted.items():
            errors += update(path, draw, options.check)
    except ImportError as error:
        print(f"make_figures.py: {error} {figure_style.MISSING}", file=sys.stderr)
        return 1
    for error in errors:
        print(error, file=sys.stderr)
    if not errors:
        print(f"{len(wanted)} figure(s) up to date")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
