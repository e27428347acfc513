#!/usr/bin/env python3
"""The report of a run: its tables, its charts and every failure, on one page that needs nothing but itself.

    python3 scripts/pages/report.py RESULTS.json [MORE.json...] --out DIR [--where D=64 --where causal=true]

writes DIR/index.html and the charts that are on it, DIR/*.svg. scripts/run.sh does so after every run. Several files
are of one build and device. The charts come first; tables, errors and what ran are folded away below them.
    --program build/flashsteps    also what the last step that passed attends to, and where its errors are:
                                  it is run again for that
    --profile FILE                also a roofline, of what profile_ncu.py --json wrote (repeatable)

charts.py draws the charts; how the page looks is in report.html.j2.
Whatever a file says is text: nothing of it is markup, and the page forbids scripts and the network.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import charts, figure_style
from draw.charts import Entry, Record, Run, Source
from draw.drawings import DrawingError
from pages import story
from records import results
from records.problems import AXES, problem_label, problem_labels, program_words
from records.profiles import SCHEMA as PROFILE_SCHEMA
from records.rates import (
    contenders_of,
    is_decode,
    percent_of_limit,
    percent_of_peak,
    rate,
    ratio,
    speedup_cell,
    tflops_spread,
)
from records.results import ResultsError
from records.writing import printable
from steps import sources, variants
from steps.sources import ROOT, StepError

COUNTED = {"mma": "mma", "wgmma": "wgmma", "shuffles": "shuffles", "barriers": "barriers"}
# From the worst on.
STATUSES = {"crash": "crashed", "timeout": "hung", "error": "ended in an error", "fail": "failed"}
STATUSES |= {"skip": "skipped", "pass": "passed"}
PROBLEMS_DRAWN = 6  # with a chart each; all have their tables
MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
ERRORS = "Errors"
MAPS, ERRORS_CLOSER = "What heads attend to", "Errors, looked at more closely"
FROM_PROGRAM = {
    "attention_full.png": "Attention matrices of four heads without a mask: {step}, float64, and the difference",
    "attention_causal.png": "Attention matrices with a causal mask: {step}, float64, and the difference",
    "errors_sources.svg": "What the errors of {step} come from: two roundings, alone and together (docs/errors.md)",
    "errors_histogram.svg": "How the errors of {step} are spread, element by element",
    "errors_position.svg": "The errors of {step} by position of the query",
    "errors_heads.svg": "The errors of {step} by head",
}
FOLDED = (ERRORS, MAPS, ERRORS_CLOSER)
# What all problems of a chart by length have in common. The chart itself sets heads and masks apart.
SAME_BY_LENGTH = ("dtype", *(key for key, _ in AXES))


# The charts of a run, and what its last step attends to.


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
        same = tuple(run["problem"].get(key) for key in SAME_BY_LENGTH)
        groups.setdefault((is_decode(run["problem"]), *same), []).append(run)
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
            ERRORS,
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
                if file not in FROM_PROGRAM:
                    continue
                caption = FROM_PROGRAM[file].format(step=step)
                content, _ = drawings.content(file, draw(found))
                self.pictures[file] = Picture(file, heading, f"{caption}.", caption, content)


# What the tables say. A cell is what it shows, and what it shows below, smaller.

Cell = tuple[str, str]
NOTHING = ("–", "")


def idea_of(step: str, out: Path) -> tuple[str, str]:
    """The idea and where it is explained, if it is in the tree: the program's own tests are not."""
    if step in sources.all_steps():
        folder = f"steps/{step}"
        lesson = (ROOT / folder / "README.md").is_file()  # a step of the user's own may have none
        return sources.title(step), link(f"{folder}/{'README.md' if lesson else 'kernel.cu'}", out)
    for base in sources.all_steps():
        for variant in variants.of_step(base) if step.startswith(f"{base}_") else []:
            if variant.step_name == step:
                return variant.title, link(variant.link, out)
    return "", ""


def link(file: str, out: Path) -> str:
    """From the page to a file of the tree."""
    return os.path.relpath(ROOT / file, out.resolve())


def largest_error(runs: list[Run]) -> str:
    """That of all that passed, as a share of its gate."""
    found = [
        (validation["nrmse"] / validation["gate_nrmse"], validation, name)
        for run in runs
        for name, entry in contenders_of(run).items()
        if entry["status"] == "pass" and (validation := entry.get("validation"))
    ]
    if not found:
        return ""
    _, validation, name = max(found, key=lambda each: each[0])
    return f"NRMSE {validation['nrmse']:.1e}, of {name}; the gate is {validation['gate_nrmse']:g}"


def rate_cells(run: Run, device: Record, entry: Entry, before: Entry | None, is_variant: bool) -> list[Cell]:
    timing = entry.get("timing")
    if timing is None:
        return [NOTHING] * 4
    percent, speedup = percent_of_peak(run["problem"], timing, device), speedup_cell(before, entry)
    of_limit = percent_of_limit(run, timing)
    median, low, high = map(rate, tflops_spread(run["problem"], timing))
    return [
        (median, f"[{low}–{high}]"),
        (speedup, "× its step" if is_variant and speedup != "–" else ""),
        NOTHING if percent is None else (f"{percent:.1f}", ""),
        NOTHING if of_limit is None else (f"{of_limit:.1f}", f"of {timing['limit']}"),
    ]


def resource_cells(entry: Entry) -> list[Cell]:
    resources = entry.get("resources") or {}
    values = [resources.get(key) for key in ("registers", "spill_bytes")]
    return [NOTHING if value is None else (str(value), "") for value in values]


def counter_cells(entry: Entry) -> list[Cell]:
    counted = entry.get("counters")
    if counted is None:
        return [NOTHING] * (len(COUNTED) + 2)
    wavefronts, ideal = counted["shared_wavefronts"], counted["shared_wavefronts_ideal"]
    through_tma = (counted.get("tma_load_bytes") or 0) + (counted.get("tma_store_bytes") or 0)
    return [
        (f"{wavefronts:,}", f"{ratio(wavefronts, ideal)} × ideal" if ideal else ""),
        (f"{counted['global_sectors']:,}", f"and {through_tma:,} bytes by TMA" if through_tma else ""),
        *((f"{counted.get(key, 0):,}", "") for key in COUNTED.values()),
    ]


def compared_with(name: str, above: Entry | None, measured: dict[str, Entry]) -> Entry | None:
    """What a rate is divided by."""
    return measured.get(sources.compared_with(sources.bare(name), above and above["step"], measured), above)


def table_of(run: Run, device: Record, on_gpu: bool, out: Path) -> dict[str, Any]:
    """The header and the rows of a problem's table. Steps that follow each other and count the same share a row."""
    # A run beside peers has none.
    with_resources = any(entry.get("resources") for _, entry in contenders_of(run).items())
    header = ["step"]
    if on_gpu:
        header += ["TFLOPS", "× previous", "% of peak", "% of limit"]
        header += ["registers", "spilled bytes"] * with_resources
    else:
        header += ["shared wavefronts", "global sectors", *COUNTED]
    parts = charts.parts_of([run])
    headings = {part.steps[0]: part.name for part in parts} if len(parts) > 1 else {}
    rows: list[dict[str, Any]] = []
    before = None
    measured = {name: entry for name, entry in contenders_of(run).items() if entry.get("timing")}
    for name, entry in contenders_of(run).items():
        is_peer = "peer" in entry
        # An ablation stands beside its step, not beside the ablation above it.
        is_variant = before is not None and name.startswith(f"{before['step']}_")
        if on_gpu:
            previous = None if is_peer else compared_with(name, before, measured)
            cells = rate_cells(run, device, entry, previous, is_variant)
            cells += resource_cells(entry) if with_resources else []
        else:
            cells = counter_cells(entry)
        idea, page = (entry.get("note") or "", "") if is_peer else idea_of(sources.bare(name), out)
        reason = entry["message"].strip().split("\n")[0] if entry["status"] != "pass" else ""
        notes = [line for line in (entry.get("configuration"), reason) if line]
        step = {"name": name, "idea": idea, "page": page, "notes": notes, "status": entry["status"]}
        row = {"part": headings.get(name), "steps": [step], "cells": cells}
        if rows and not on_gpu and not row["part"] and cells == rows[-1]["cells"]:
            rows[-1]["steps"].append(step)
        else:
            rows.append(row)
        if not is_peer and not is_variant:
            before = entry
    return {"header": header, "rows": rows}


def where_they_belong(runs: list[Run]) -> list[Run]:
    """A decode step that passed is left out of a problem with many queries, if there is one with few for it."""

    def passed_decode(entry: Entry) -> bool:
        return entry["status"] == "pass" and charts.part_of(entry["step"], runs) == "decode"

    few, many = ([run for run in runs if is_decode(run["problem"]) == wanted] for wanted in (True, False))
    shown = {entry["step"] for run in few for entry in run["steps"] if passed_decode(entry)}
    left = {id(run): [e for e in run["steps"] if e["step"] not in shown or not passed_decode(e)] for run in many}
    return [{**run, "steps": left.get(id(run), run["steps"])} for run in runs]


def counts(runs: list[Run]) -> str:
    statuses = [entry["status"] for run in runs for _, entry in contenders_of(run).items()]
    found = [f"{statuses.count(status)} {words}" for status, words in STATUSES.items() if status in statuses]
    return ", ".join(reversed(found)) or "no step was run"


def failures(runs: list[Run]) -> list[dict[str, Any]]:
    """Whatever did not pass, with all that was said about it. The same of several problems is told once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        for name, entry in contenders_of(run).items():
            if entry["status"] != "pass":
                found.setdefault((name, entry["status"], entry["message"].strip()), []).append(label_of(run))
    told = [dict(zip(("name", "status", "message"), key), labels=labels) for key, labels in found.items()]
    return sorted(told, key=lambda failure: list(STATUSES).index(failure["status"]))


def facts_of(data: Record) -> dict[str, Any]:
    """Where the numbers come from: all that the record says."""
    origin = data["provenance"]
    groups = {"": origin["device"], "build ": origin["build"]}
    groups |= {f"{key} ": origin.get(key) or {} for key in ("method", "peers")}
    facts = {f"{group}{key}".replace("_", " "): value for group, own in groups.items() for key, value in own.items()}
    return {**facts, "commit": charts.origin_of(data), "date": origin["date"], "command": f"flashsteps {data['command']}"}


# Commands.


def repeat_command(problem: dict[str, Any], backend: str) -> str:
    return shlex.join(["build/flashsteps", "run", "--backend", backend, *program_words(problem)])


def how_to_go_on(data: Record, runs: list[Run]) -> dict[str, str]:
    """Commands, by what they are for."""
    entries = [step for run in runs for step in run["steps"]]
    wrong = lessons([step for step in entries if step["status"] not in ("pass", "skip")])
    step = [*wrong, *reversed(lessons(entries)), "vNN_name"][0]
    # Where it was wrong, as it may be right on the problem that run.sh takes otherwise.
    own = [(run["problem"], charts.step_of(run, step)) for run in runs]
    where = [problem for problem, entry in own if entry and entry["status"] not in ("pass", "skip")]
    again = shlex.join(["bash", "scripts/run.sh", step, *(program_words(where[0]) if where else [])])
    commands = {
        "Write a step's idea yourself (docs/exercises.md):": "python3 scripts/steps/exercise.py next",
        f"Change steps/{step}/kernel.cu, and run it again:": again,
        "Does it hold for every kind of problem?": f"build/flashsteps check {step}",
    }
    if data["provenance"]["backend"] == "cuda":
        problem = {**runs[0]["problem"], **dict(AXES)}  # the profiler takes no others
        profile = ["python3", "scripts/measure/profile_ncu.py", *program_words(problem)]
        report = "build/venv/bin/python scripts/pages/report.py build/report/results.json --out build/report"
        commands["The GPU's own counters, and then this page with a roofline:"] = (
            f"{shlex.join(profile)} --json build/profile.json\n"
            f"{report} --program build/flashsteps --profile build/profile.json"
        )
    else:
        trace = f"build/flashsteps trace {step} --json trace.json"
        commands["Who waits for whom, for Perfetto (docs/pipeline.md):"] = trace
    return commands


# The page.


def only_text(value: Any) -> Any:
    """Without control characters; lines stay lines. Jinja escapes what comes of it."""
    if not isinstance(value, str):
        return value
    clean = (letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in value)
    return type(value)("".join(clean))


def page(data: Record, runs: list[Run], drawn: Pictures, out: Path) -> str:
    import jinja2  # here, so that without it there are charts at least

    backend = data["provenance"]["backend"]
    on_gpu = backend == "cuda"
    sections = []
    others = dict(drawn.pictures)
    for number, run in enumerate(runs, start=1):
        picture = others.pop(f"progression_{number}.svg", None)
        own = {"run": run, "label": label_of(run), "picture": picture, "decode": is_decode(run["problem"])}
        table = table_of(run, data["provenance"]["device"], on_gpu, out)
        sections.append({**own, "again": repeat_command(run["problem"], backend), **table})
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=only_text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2").render(
        device=data["provenance"]["device"]["name"] if on_gpu else "the CPU emulator",
        date=data["provenance"]["date"],
        origin=charts.origin_of(data),
        runs=runs,
        complete=data["complete"],
        on_gpu=on_gpu,
        not_drawn=drawn.not_drawn,
        failures=failures(runs),
        largest_error=largest_error(runs),
        sections=sections,
        problems_drawn=PROBLEMS_DRAWN,
        groups=[(heading, list(own)) for heading, own in itertools.groupby(others.values(), lambda each: each.heading)],
        folded=FOLDED,
        facts=facts_of(data),
        commands=how_to_go_on(data, runs),
        story=os.path.relpath(story.PAGE, out.resolve()),
        counts=counts,
        word=lambda status: charts.status_word(status).upper(),
    )


def make(options: argparse.Namespace, filters: dict[str, str]) -> None:
    data, *more = [results.load(path) for path in options.results]
    for path, each in zip(options.results[1:], more):
        if any(each["provenance"].get(key) != data["provenance"].get(key) for key in ("commit", "backend", "device")):
            raise ResultsError(f"{path} is not of the same build and device as {options.results[0]}")
    data["runs"] += [run for each in more for run in each["runs"]]
    data["complete"] = all(each["complete"] for each in (data, *more))
    data["command"] = ", flashsteps ".join(each["command"] for each in (data, *more))
    runs = results.select_runs(data, filters)
    source = Source(options.results[0].name, data, where_they_belong(runs) if more else runs)
    loaded = [(path.name, results.load(path, PROFILE_SCHEMA)) for path in options.profile]
    profiles = [Source(name, profile, profile["runs"]) for name, profile in loaded]
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = Pictures()
    drawn.draw_charts(source, profiles)
    if options.program:
        drawn.draw_from_program(source, options.program)
    for line in drawn.not_drawn:
        print(f"report.py: not drawn. {printable(line)}", file=sys.stderr)
    for picture in drawn.pictures.values():
        (options.out / picture.file).write_bytes(picture.content)
    whole = page(data, source.runs, drawn, options.out)
    (options.out / "index.html").write_text(whole, encoding="utf-8", newline="\n")


def main(arguments: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True)
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="only matching problems")
    parser.add_argument("--program", type=Path, metavar="FLASHSTEPS")
    parser.add_argument("--profile", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    if not all("=" in word for word in options.where):
        parser.error("--where takes KEY=VALUE")
    try:
        make(options, dict(word.split("=", 1) for word in options.where))
    except (ResultsError, StepError, OSError, UnicodeDecodeError) as error:
        print(f"report.py: {printable(error)}", file=sys.stderr)
    except ImportError as error:
        print(f"report.py: {error} {figure_style.MISSING}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
