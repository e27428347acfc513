"""The pictures on a report's page: the charts of a run, and what its last step attends to."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from draw import charts, figure_style
from draw.charts import Entry, Run, Source
from draw.drawings import DrawingError
from records.problems import AXES, problem_label, problem_labels
from records.results import ResultsError
from steps import sources

PROBLEMS_DRAWN = 6  # with a chart each; all have their tables
MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
MAPS, ERRORS_CLOSER = "What heads attend to", "Errors, looked at more closely"
FROM_PROGRAM = {
    "attention_full.png": "Attention matrices of four heads without a mask: {step}, float64, and the difference",
    "attention_causal.png": "Attention matrices with a causal mask: {step}, float64, and the difference",
    "errors_sources.svg": "What the errors of {step} come from: two roundings, alone and together (docs/errors.md)",
    "errors_histogram.svg": "How the errors of {step} are spread, element by element",
    "errors_position.svg": "The errors of {step} by position of the query",
    "errors_heads.svg": "The errors of {step} by head",
}
# What all problems of a chart by length have in common. The chart itself sets heads and masks apart.
SAME_BY_LENGTH = ("dtype", *(key for key, _ in AXES))


@dataclass(frozen=True)
class Picture:
    file: str
    heading: str
    caption: str
    alt: str
    content: bytes

    def data_url(self) -> str:
        """An image, not inline: ids of two of matplotlib's SVGs would clash in one document."""
        data = base64.b64encode(self.content).decode("ascii")
        return f"data:{MEDIA_TYPES[Path(self.file).suffix]};base64,{data}"


def label_of(run: Run) -> str:
    return problem_labels([run])[0]


def lessons(entries: list[Entry]) -> list[str]:
    """Those of the steps that have a folder under steps/, in the ladder's order."""
    there = {entry["step"] for entry in entries}
    return [step for step in sources.all_steps() if step in there]


def groups_by_length(runs: list[Run]) -> list[list[Run]]:
    """Problems that can stand in one chart by sequence length."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run["problem"].get(key) for key in SAME_BY_LENGTH), []).append(run)
    return [group for group in groups.values() if len({run["problem"]["seqlen_q"] for run in group}) > 1]


@dataclass
class Pictures:
    """What was drawn, by the names of the files, and what was not."""

    pictures: dict[str, Picture] = field(default_factory=dict)
    not_drawn: list[str] = field(default_factory=list)

    def add(self, file: str, heading: str, alt: str, caption: str, draw: Callable[[], Any]) -> None:
        """A chart; one that cannot be drawn is told."""
        try:
            text = figure_style.svg_text(draw())
        except ResultsError as error:
            self.not_drawn.append(f"{heading}: {error}")
            return
        self.pictures[file] = Picture(file, heading, caption, alt, text.encode("utf-8", "replace"))

    def draw_charts(self, source: Source, profiles: list[Source]) -> None:
        file, data, runs = source.file, source.data, source.runs
        on_gpu = data["provenance"]["backend"] == "cuda"
        what = "Bar chart of TFLOPS" if on_gpu else "Bar charts of shared wavefronts, global sectors and products"
        for number, run in enumerate(runs[:PROBLEMS_DRAWN], start=1):
            self.add(
                f"progression_{number}.svg",
                f"The steps, {label_of(run)}",
                f"{what}: a bar for each step in order, for {label_of(run)}",
                f"{'Every step' if on_gpu else 'What the emulator counted'}. A step without a value keeps its place.",
                lambda: charts.progression([Source(file, data, [run])]),
            )
        for number, group in enumerate(groups_by_length(runs) if on_gpu else [], start=1):
            self.add(
                f"lengths_{number}.svg",
                "By sequence length",
                "Line charts of TFLOPS by sequence length, a line for each step, or for the last one of each part",
                "Batch and heads of the problems may differ too, as the tables have it.",
                lambda: charts.lengths([Source(file, data, group)]),
            )
        self.add(
            "errors.svg",
            "Errors",
            "Chart of each step's NRMSE and that of its worst row, on a log scale, beside the gates",
            "How far each step is from the reference, and how far it may be (docs/errors.md).",
            lambda: charts.errors([source]),
        )
        labels = dict.fromkeys(problem_label(run["problem"]) for profile in profiles for run in profile.runs)
        for number, label in enumerate(labels, start=1):
            of_problem = [
                Source(each.file, each.data, [run for run in each.runs if problem_label(run["problem"]) == label])
                for each in (*profiles, source)
            ]
            self.add(
                f"roofline_{number}.svg",
                f"The roofline, {label}",
                "Chart of each step's TFLOPS by FLOPs per byte of shared memory, below the roofs",
                "Where the bytes are, as Nsight Compute counted them (docs/counters.md).",
                lambda: charts.roofline([each for each in of_problem if each.runs]),
            )

    def draw_from_program(self, source: Source, program: Path) -> None:
        """What the last step that passed attends to, and what its errors are, on the run's backend."""
        from draw import attention_maps, drawings, error_analysis  # they take numpy, which comes with matplotlib

        passed = lessons([step for run in source.runs for step in run["steps"] if step["status"] == "pass"])
        if not passed:
            self.not_drawn.append(f"{MAPS}, {ERRORS_CLOSER}: no step of the ladder passed")
            return
        step, backend = passed[-1], source.data["provenance"]["backend"]
        for heading, script in ((MAPS, attention_maps), (ERRORS_CLOSER, error_analysis)):
            try:
                found = script.read(program.parent, step, backend)
            except DrawingError as error:
                self.not_drawn.append(f"{heading}: {error}")
                continue
            for file, draw in script.PICTURES.items():
                caption = FROM_PROGRAM[file].format(step=step)
                content, _ = drawings.content(file, draw(found))
                self.pictures[file] = Picture(file, heading, f"{caption}.", caption, content)
