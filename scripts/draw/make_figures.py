#!/usr/bin/env python3
"""Draws every figure in figures/ from the recorded runs in figures/results/, and those of docs/figures/.

python3 scripts/draw/make_figures.py           draws those that are not up to date
python3 scripts/draw/make_figures.py --check   changes nothing; names what is stale, edited, missing or left over
                    ... --build build/ci  the same, and for docs/figures/ too: these show what programs of a build
                                          with tests do (preset ci), which are run for it

A figure carries a hash of all that it follows from (its row below, the record, scripts, versions of libraries).
--check compares it, so it draws nothing and needs no package. That the texts are those of the record, too, is tested
by drawing again (scripts/tests/test_charts.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import charts, drawings, figure_style, panels
from records import results
from records.results import ResultsError
from steps import sources
from steps.sources import ROOT


@dataclass(frozen=True)
class Figure:
    name: str  # of the file in figures/
    kind: str  # of charts.KINDS
    records: tuple[str, ...]  # in figures/results/
    where: tuple[str, ...] = ("",)  # which of their problems, each as a block of readme_tables.py would say it
    part: str = ""  # of the ladder; while the record has no step of it, there is no figure


# For each part of the ladder the records, and two problems of the first one. The second one has the ceilings that the
# first one lacks.
PARTS = {
    "memory": (
        ("h200_peers.json", "h200_ladder.json"),
        ("S=4096 D=128 dtype=bf16 causal=false", "S=4096 D=64 dtype=fp16 causal=true"),
    ),
    "mma.sync": (
        ("h200_peers_mma_sync.json", "h200_ladder.json"),
        ("S=4096 D=128 dtype=bf16 causal=false", "S=4096 D=64 dtype=bf16 causal=true"),
    ),
    "Hopper": (
        ("h200_peers_hopper.json", "h200_ladder.json"),
        ("S=4096 D=128 dtype=bf16 causal=false", "S=4096 D=64 dtype=bf16 causal=true"),
    ),
    "decode": (("h200_decode.json",), ("B=1 Hkv=8 Skv=4096", "B=32 Hkv=8 Skv=4096")),
}
FIGURES = (
    *(
        Figure(f"progression_{part.lower().replace('.', '_')}.svg", "progression", records, problems, part)
        for part, (records, problems) in PARTS.items()
    ),
    Figure("lengths.svg", "lengths", ("h200_peers_hopper.json",), ("dtype=bf16",)),
    Figure("counters.svg", "counters", ("emulator_counters.json",), ("S=256 D=64 causal=false",)),
    Figure(
        "roofline.svg",
        "roofline",
        ("h200_profile.json", "h200_peers.json"),
        ("S=4096 D=64 dtype=fp16 causal=false",),
    ),
    Figure("instructions.svg", "instructions", ("h200_profile.json",), ("S=4096 D=64 causal=false",)),
)

# Of docs/figures/: who draws, from which program of a build.
DRAWINGS = {
    "fragment_layouts": "tools/fragment_layouts",
    "memory_layouts": "tools/memory_layouts",
    "copy_states": "tools/copy_states",
    "data_flow": "flashsteps",
    "online_softmax": "flashsteps",
    "pipeline_picture": "flashsteps",
    "ideas": "flashsteps",
    "grids": "flashsteps",
    "attention_maps": "flashsteps",
    "error_analysis": "flashsteps",
}

DRAWN = {".svg", ".png"}  # what may be left over
REMEDY = "build/venv/bin/python scripts/draw/make_figures.py"


def records_folder(root: Path) -> Path:
    return root / "figures" / "results"


def figures(root: Path) -> list[Figure]:
    """Those that there are to be."""

    def is_recorded(figure: Figure) -> bool:
        path = records_folder(root) / figure.records[0]
        runs = results.read(path)["runs"] if figure.part and path.is_file() else []
        return not runs or figure.part in (part.name for part in charts.parts_of(runs))

    return [figure for figure in FIGURES if is_recorded(figure)]


def description(figure: Figure, root: Path) -> str:
    """Of all that the figure follows from. Not of its name."""
    paths = [*(records_folder(root) / record for record in figure.records), Path(panels.__file__)]
    try:
        data = [path.read_bytes() for path in paths]
    except OSError as error:
        raise ResultsError(f"its record {error.filename}: {error.strerror}") from error
    runs = [run for path in paths[:-1] for run in results.read(path).get("runs", [])]
    gone = {step["step"] for run in runs for step in run["steps"] if sources.has_left(step["step"], root)}
    chosen = " ".join(map(str, (figure.kind, figure.records, figure.where, figure.part, *sorted(gone))))
    return drawings.description("figure", charts.__file__, chosen.encode(), *data)


def sources_of(figure: Figure, root: Path) -> list[charts.Source]:
    """Without the steps that have left the ladder since they were recorded."""
    filters = [dict(word.split("=") for word in problem.split()) for problem in figure.where]
    found = []
    for file in figure.records:
        data = results.load(records_folder(root) / file, schema=None)
        for run in data["runs"]:
            run["steps"] = [step for step in run["steps"] if not sources.has_left(step["step"], root)]
        found.append(charts.Source(file, data, [run for each in filters for run in results.select_runs(data, each)]))
    return found


def draw(figure: Figure, root: Path) -> str:
    of_part = {"part": figure.part} if figure.part else {}
    drawn = charts.KINDS[figure.kind](figure_style.pyplot(), sources_of(figure, root), **of_part)
    carried = {"Source": ", ".join(figure.records), "Description": description(figure, root)}
    text = figure_style.svg_text(drawn, **carried)
    if reason := drawings.too_large(len(text.encode())):
        raise ResultsError(reason)
    return text


def left_over(root: Path) -> list[str]:
    known = {figure.name for figure in figures(root)}
    found = (root / "figures").glob("*")
    return sorted(path.name for path in found if path.suffix in DRAWN and path.name not in known)


def draw_from_programs(build: Path, root: Path, check: bool) -> list[str]:
    """Lets each script of DRAWINGS draw, or check; what went wrong it has said itself."""
    errors = []
    action = ["--check" if check else "--out", str(root / "docs" / "figures")]
    for script, program in DRAWINGS.items():
        if importlib.import_module(f"draw.{script}").main([str(build / program), *action]) != 0:
            errors.append(f"docs/figures: {script}.py failed, see above")
    return errors


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the figures from the recorded runs.")
    parser.add_argument("--check", action="store_true", help="change nothing; say what is not up to date")
    parser.add_argument("--build", type=Path, metavar="DIR", help="docs/figures/ too, from its programs")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    errors, drawn = [], 0
    wanted = figures(options.root)
    for figure in wanted:
        path = options.root / "figures" / figure.name
        try:
            reason = drawings.why_not(path, description(figure, options.root))
            if options.check and reason:
                errors.append(f"figures/{figure.name}: {reason} ({REMEDY})")
            elif reason:
                path.write_text(draw(figure, options.root), encoding="utf-8")
                print(f"figures/{figure.name}: drawn")
                drawn += 1
        except (ResultsError, OSError) as error:
            errors.append(f"figures/{figure.name}: {error}")
        except ImportError as error:
            print(f"make_figures.py: {error} {figure_style.MISSING}", file=sys.stderr)
            return 1
    errors += [
        f"figures/{name}: left over, make_figures.py draws no such figure (delete it)"
        for name in left_over(options.root)
    ]
    if options.build:
        errors += draw_from_programs(options.build.resolve(), options.root.resolve(), options.check)
    for error in errors:
        print(error, file=sys.stderr)
    if not errors:
        print(f"{len(wanted)} figure(s) up to date" + (f", {drawn} drawn" if drawn else ""))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
