#!/usr/bin/env python3
"""The report of a run: its tables, its charts and every failure, on one page that needs nothing but itself.

    python3 scripts/pages/report.py RESULTS.json --out DIR [--where D=64 --where causal=true]

writes DIR/index.html and the charts that are on it, DIR/*.svg. scripts/run.sh does so after every run.
    --program build/flashsteps    also what the last step that passed attends to, and where its errors are:
                                  it is run again for that
    --profile FILE                also a roofline, of what profile_ncu.py --json wrote (repeatable)

The charts are those of the README, drawn by charts.py. Without matplotlib there is a page without charts.
Whatever a file says is text: nothing of it is markup, and the page forbids scripts and the network.
"""

from __future__ import annotations

import argparse
import base64
import html
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import charts, figure_style
from draw.drawings import DrawingError
from records import results
from records.problems import AXES, axis_text, problem_labels
from records.profiles import SCHEMA as PROFILE_SCHEMA
from records.rates import rate, ratio, speedup_cell
from records.results import ResultsError
from records.terminal import printable
from steps import ablations, sources
from steps.ablations import AblationError
from steps.sources import ROOT, StepError

Record = dict[str, Any]
Run = dict[str, Any]
Entry = dict[str, Any]  # a step of a run, or a peer

PROBLEMS_DRAWN = 6  # with a chart each; all have their tables
MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
COUNTED = {"global sectors": "global_sectors", "MMA": "mma", "barriers": "barriers", "shuffles": "shuffles"}
STATUSES = {
    "crash": "crashed",
    "timeout": "hung",
    "error": "ended in an error",
    "fail": "failed",
    "skip": "skipped",
    "pass": "passed",
}
MAPS = "What heads attend to"
ERRORS_CLOSER = "Errors, looked at more closely"
FROM_PROGRAM = {
    "attention_full.png": "Attention matrices of four heads with known patterns, with no mask: {step}, float64, "
    "and the difference",
    "attention_causal.png": "Attention matrices of four heads with known patterns, with a causal mask: {step}, "
    "float64, and the difference",
    "errors_sources.svg": "What the errors of {step} come from: the two roundings, alone and together "
    "(docs/errors.md)",
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


@dataclass
class Pictures:
    """What was drawn, by the names of the files, and what was not."""

    drawn: dict[str, Picture] = field(default_factory=dict)
    not_drawn: list[str] = field(default_factory=list)

    def add(self, file: str, heading: str, alt: str, caption: str, draw: Callable[[], Any]) -> None:
        """A chart; one that cannot be drawn is told."""
        try:
            text = figure_style.svg_text(draw())
        except ResultsError as error:
            self.not_drawn.append(f"{heading}: {error}")
            return
        self.drawn[file] = Picture(file, heading, caption, alt, text.encode("utf-8", "replace"))


def lessons(entries: list[Entry]) -> list[str]:
    """Those of the steps that have a folder under steps/, in the ladder's order."""
    there = {entry["step"] for entry in entries}
    return [step for step in sources.all_steps() if step in there]


# What is drawn.


def label_of(run: Run) -> str:
    return problem_labels([run])[0]


def ladder_file(number: int) -> str:
    """Of a problem, counted from 1."""
    return f"progression_{number}.svg"


def groups_by_length(runs: list[Run]) -> list[list[Run]]:
    """Problems that can stand in one chart by sequence length."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run["problem"].get(key) for key in SAME_BY_LENGTH), []).append(run)
    return [group for group in groups.values() if len({run["problem"]["seqlen_q"] for run in group}) > 1]


def draw_charts(pictures: Pictures, data: Record, runs: list[Run], profiles: list[Record]) -> None:
    plt = figure_style.pyplot()
    file = "results.json"
    on_gpu = data["provenance"]["backend"] == "cuda"
    for number, run in enumerate(runs[:PROBLEMS_DRAWN], start=1):
        label = label_of(run)
        if on_gpu:
            alt = f"Bar chart of TFLOPS: a bar for each step in order, for {label}"
            caption = "Every step. A step without a value keeps its place and says why."
        else:
            alt = f"Bar charts of shared wavefronts, global sectors and products, by step, for {label}"
            caption = "What the emulator counted. A step without counters keeps its place and says why."
        pictures.add(
            ladder_file(number),
            f"The steps, {label}",
            alt,
            caption,
            lambda: charts.progression(plt, [charts.Source(file, data, [run])]),
        )
    if on_gpu:
        for number, group in enumerate(groups_by_length(runs), start=1):
            pictures.add(
                f"lengths_{number}.svg",
                "By sequence length",
                "Line charts of TFLOPS by sequence length, a line for each step",
                "Every step. Batch and heads of the problems may differ too, as the tables have it.",
                lambda: charts.lengths(plt, [charts.Source(file, data, group)]),
            )
    pictures.add(
        "errors.svg",
        "Errors",
        "Chart of each step's NRMSE and that of its worst row, on a log scale, beside the gates",
        "How far each step is from the reference, and how far it may be (docs/errors.md).",
        lambda: charts.errors(plt, [charts.Source(file, data, runs)]),
    )
    labels = dict.fromkeys(run["problem"]["label"] for profile in profiles for run in profile["runs"])
    for number, label in enumerate(labels, start=1):
        chosen = [
            charts.Source(name, record, [run for run in own if run["problem"]["label"] == label])
            for name, record, own in [*((file, profile, profile["runs"]) for profile in profiles), (file, data, runs)]
        ]
        pictures.add(
            f"roofline_{number}.svg",
            f"The roofline, {label}",
            "Chart of each step's TFLOPS by FLOPs per byte of shared memory and of DRAM, below the roofs",
            "Where the bytes are, as Nsight Compute counted them (docs/counters.md).",
            lambda: charts.roofline(plt, [source for source in chosen if source.runs]),
        )


def draw_from_program(pictures: Pictures, data: Record, runs: list[Run], program: Path, out: Path) -> None:
    """What the last step that passed attends to, and what its errors are, on the run's backend."""
    from draw import attention_maps  # they take numpy, which comes with matplotlib
    from draw import drawings
    from draw import error_analysis

    passed = lessons([step for run in runs for step in run["steps"] if step["status"] == "pass"])
    if not passed:
        pictures.not_drawn.append(f"{MAPS}, {ERRORS_CLOSER}: no step of the ladder passed")
        return
    step, backend = passed[-1], data["provenance"]["backend"]
    options = argparse.Namespace(program=program, step=step, backend=backend, check=None)
    for heading, script in ((MAPS, attention_maps), (ERRORS_CLOSER, error_analysis)):
        try:
            found, described = script.read(options)
            drawings.draw_all(script.PICTURES, found, described, out, as_png=False)
        except DrawingError as error:
            pictures.not_drawn.append(f"{heading}: {error}")
            continue
        for file in script.PICTURES:
            caption = FROM_PROGRAM[file].format(step=step)
            pictures.drawn[file] = Picture(file, heading, f"{caption}.", caption, (out / file).read_bytes())


# The page's parts. Whatever comes from a file goes through text().


def text(words: Any) -> str:
    """Escaped, without control characters; lines stay lines."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in str(words))
    return html.escape(clean)


def code(words: str) -> str:
    return f"<code>{text(words)}</code>"


def idea_of(step: str) -> tuple[str, str]:
    """The idea and where it is explained, if it is in the tree: the program's own tests are not."""
    try:
        if step in sources.all_steps():
            folder = f"steps/{step}"
            lesson = (ROOT / folder / "README.md").is_file()  # a step of the user's own may have none
            return sources.title(step), f"{folder}/{'README.md' if lesson else 'kernel.cu'}"
        for base in sources.all_steps():
            for ablation in ablations.of_step(base, ROOT) if step.startswith(f"{base}_") else []:
                if ablation.name == step:
                    return ablation.title, ablation.page
    except (StepError, AblationError, OSError, UnicodeDecodeError):
        pass  # the tree is being edited: an idea is not worth a report
    return "", ""


def entries_of(run: Run) -> list[tuple[str, Entry]]:
    steps = [(step["step"], step) for step in run["steps"]]
    return steps + [(peer["peer"], peer) for peer in run.get("peers") or []]


def status_of(entry: Entry) -> str:
    return f'<span class="{entry["status"]}">{charts.status_word(entry["status"]).upper()}</span>'


def step_cell(name: str, entry: Entry) -> str:
    """The name, its idea, where that is explained, and why it did not pass."""
    idea, page = (entry.get("note") or "", "") if "peer" in entry else idea_of(name.split("@")[0])
    configuration = entry.get("configuration") or ""
    reason = entry["message"].strip().split("\n")[0] if entry["status"] != "pass" else ""
    small = (f"<small>{text(line)}</small>" for line in (configuration, page, reason) if line)
    lines = [code(name), text(idea), *small]
    return "<br>".join(line for line in lines if line)


def error_cell(entry: Entry) -> str:
    validation = entry.get("validation") or {}
    value = validation.get("nrmse")
    return "–" if value is None else f"{value:.1e}<br><small>of {validation['gate_nrmse']:g}</small>"


def rate_cells(entry: Entry, before: Entry | None) -> list[str]:
    timing = entry.get("timing")
    if timing is None:
        return ["–"] * 3
    percent = timing.get("percent_of_peak")
    spread = f"[{rate(timing['tflops_p10'])}–{rate(timing['tflops_p90'])}]"
    return [
        f"{rate(timing['tflops'])}<br><small>{spread}</small>",
        speedup_cell(before, entry),
        "–" if percent is None else f"{percent:.1f}",
    ]


def counter_cells(entry: Entry) -> list[str]:
    counted = entry.get("counters")
    if counted is None:
        return ["–"] * (len(COUNTED) + 2)
    wavefronts, ideal = counted["shared_wavefronts"], counted["shared_wavefronts_ideal"]
    through_tma = (counted.get("tma_load_bytes") or 0) + (counted.get("tma_store_bytes") or 0)
    return [
        *(f"{counted[key]:,}" for key in COUNTED.values()),
        f"{through_tma:,}",
        f"{wavefronts:,}" + (f"<br><small>{ratio(wavefronts, ideal)} × ideal</small>" if ideal else ""),
    ]


def resource_cells(entry: Entry) -> list[str]:
    resources = entry.get("resources") or {}
    values = [resources.get(key) for key in ("registers", "spill_bytes")]
    return ["–" if value is None else str(value) for value in values]


def wide(table: str) -> str:
    """What may be wider than the page scrolls on its own."""
    return f'<div class="wide"><table>\n{table}\n</table></div>'


def step_table(run: Run, on_gpu: bool) -> str:
    header = ["step", "status", "NRMSE"]
    with_resources = any(entry.get("resources") for _, entry in entries_of(run))  # a run beside peers has none
    if on_gpu:
        header += ["TFLOPS", "× previous", "% of peak"]
        header += ["registers", "spilled bytes"] if with_resources else []
    else:
        header += [*COUNTED, "bytes by TMA", "shared wavefronts"]
    rows, before, part = [], None, None
    several = len({charts.part_of(entry["step"], [run]) for entry in run["steps"]}) > 1  # parts of the ladder
    for name, entry in entries_of(run):
        is_peer = "peer" in entry
        # An ablation stands beside its step, not beside the ablation above it.
        is_variant = before is not None and name.startswith(f"{before['step']}_")
        row = [step_cell(name, entry), status_of(entry), error_cell(entry)]
        if on_gpu:
            rates = rate_cells(entry, None if is_peer else before)
            if is_variant and rates[1] != "–":
                rates[1] += "<br><small>× its step</small>"
            row += rates + (resource_cells(entry) if with_resources else [])
        else:
            row += counter_cells(entry)
        if several and not is_peer and charts.part_of(name, [run]) != part:
            part = charts.part_of(name, [run])
            rows.append(f'<th scope="rowgroup" colspan="{len(header)}">{text(part)}</th>')
        rows.append("".join(f"<td>{cell}</td>" for cell in row))
        if not is_peer and not is_variant:
            before = entry
    head = "".join(f'<th scope="col">{text(words)}</th>' for words in header)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return wide(f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>")


def problem_options(problem: dict[str, Any]) -> list[str]:
    """The program's own words for one problem."""
    if problem["inputs"] == "file":
        words = ["--tensors", problem["tensors"]["file"], "--layout", problem["layout"]]
    else:
        shape = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv", "head_dim")
        words = ["--shape", ",".join(str(problem[key]) for key in shape), "--dtype", problem["dtype"]]
        for option, key, default in (
            ("--layout", "layout", "bhsd"),
            ("--kv-lengths", "kv_lengths", "full"),
            ("--inputs", "inputs", "normal"),
            ("--seed", "seed", 1),
        ):
            words += [option, str(problem[key])] if problem[key] != default else []
    if problem.get("lse") is not None:
        words += ["--no-lse"]
    if problem.get("softmax_scale") is not None:
        words += ["--softmax-scale", axis_text(problem["softmax_scale"])]
    return [*words, "--causal" if problem["causal"] else "--full"]


def repeat_command(problem: dict[str, Any], backend: str) -> str:
    return shlex.join(["build/flashsteps", "run", "--backend", backend, *problem_options(problem)])


def figure(picture: Picture) -> str:
    kind = MEDIA_TYPES[Path(picture.file).suffix]
    # An image, not inline: ids of two of matplotlib's SVGs would clash in one document.
    data = base64.b64encode(picture.content).decode("ascii")
    return (
        f'<figure><img src="data:{kind};base64,{data}" alt="{text(picture.alt)}">'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
    )


def counts(runs: list[Run]) -> str:
    statuses = [entry["status"] for run in runs for _, entry in entries_of(run)]
    found = [f"{statuses.count(status)} {words}" for status, words in STATUSES.items() if status in statuses]
    return ", ".join(reversed(found)) or "no step was run"


def failures(runs: list[Run]) -> str:
    """Whatever did not pass, with all that was said about it. The same of several problems is told once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        for name, entry in entries_of(run):
            if entry["status"] != "pass":
                found.setdefault((name, entry["status"], entry["message"]), []).append(label_of(run))
    if not found:
        return ""
    parts = []
    worst_first = list(STATUSES)
    for (name, status, message), labels in sorted(
        found.items(), key=lambda item: worst_first.index(item[0][1])
    ):
        where = f"<p>{text('; '.join(labels))}</p>\n" if len(runs) > 1 else ""
        parts.append(
            f'<h3>{code(name)} <span class="{status}">{charts.status_word(status).upper()}</span></h3>\n'
            f"{where}<pre>{text(message.strip())}</pre>"
        )
    last = "<p>docs/debugging.md leads from symptoms to causes.</p>"
    return "\n".join(["<h2>What did not pass</h2>", *parts, last])


def what_ran(data: Record) -> str:
    origin = data["provenance"]
    device, build, method = origin["device"], origin["build"], origin.get("method") or {}
    peers = origin.get("peers") or {}
    on_gpu = origin["backend"] == "cuda"
    clock = device.get("max_sm_clock_mhz")
    rows = {
        "device": device["name"] if on_gpu else "CPU emulator: no GPU in use",
        "compute capability": device.get("compute_capability"),
        "SMs": device.get("sm_count"),
        "maximum SM clock": f"{clock:g} MHz" if clock else None,
        "driver": device.get("driver"),
        "CUDA": device.get("cuda_runtime"),
        "host": device.get("host_cpu"),
        "host threads": device.get("host_threads"),
        "compiler": build["compiler"],
        "nvcc": build.get("nvcc"),
        "flags": build["flags"],
        "build": build["type"],
        "architectures": build.get("architectures"),
        "commit": charts.origin_of(data).removeprefix("commit "),
        "date": origin["date"],
        "command": f"flashsteps {data['command']}",
        "timer": method.get("timer"),
        "rounds": method.get("rounds"),
        "PyTorch": peers.get("torch"),
        "cuDNN": peers.get("cudnn"),
    }
    known = {words: text(value) for words, value in rows.items() if value}
    cells = (f'<tr><th scope="row">{words}</th><td>{value}</td></tr>' for words, value in known.items())
    return "<h2>What ran</h2>\n" + wide('<tbody class="facts">\n' + "\n".join(cells) + "\n</tbody>")


def how_to_go_on(data: Record, runs: list[Run]) -> str:
    entries = [step for run in runs for step in run["steps"]]
    wrong = lessons([step for step in entries if step["status"] not in ("pass", "skip")])
    step = [*wrong, *reversed(lessons(entries)), "vNN_name"][0]
    # Where it was wrong, as it may be right on the problem that run.sh takes otherwise.
    where = [
        run["problem"]
        for run in runs
        for entry in run["steps"]
        if entry["step"] == step and entry["status"] not in ("pass", "skip")
    ]
    again = shlex.join(["bash", "scripts/run.sh", step, *(problem_options(where[0]) if where else [])])
    commands = {
        f"Change steps/{step}/kernel.cu, and run it again:": again,
        "Does it hold for every kind of problem?": f"build/flashsteps check {step}",
    }
    if data["provenance"]["backend"] == "cuda":
        problem = runs[0]["problem"]
        shape = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv", "head_dim")
        commands["The GPU's own counters, and then this page with a roofline:"] = (
            f"python3 scripts/measure/profile_ncu.py --shape {','.join(str(problem[key]) for key in shape)} "
            f"--dtype {problem['dtype']} {'--causal' if problem['causal'] else '--full'} "
            "--json build/profile.json\n"
            "build/venv/bin/python scripts/pages/report.py build/report/results.json "
            "--profile build/profile.json --program build/flashsteps --out build/report"
        )
    else:
        commands["Who waits for whom, for Perfetto (docs/pipeline.md):"] = (
            f"build/flashsteps trace {step} --json trace.json"
        )
    parts = [f"<p>{text(why)}</p>\n<pre>{text(command)}</pre>" for why, command in commands.items()]
    last = "<p>The lesson of a step is in its folder, steps/NAME/README.md. docs/README.md leads on.</p>"
    return "\n".join(["<h2>How to go on</h2>", *parts, last])


def problem_sections(runs: list[Run], on_gpu: bool, pictures: Pictures) -> list[str]:
    parts = []
    backend = "cuda" if on_gpu else "emulator"
    for number, run in enumerate(runs, start=1):
        again = f"<p>Again: {code(repeat_command(run['problem'], backend))}</p>"
        table = step_table(run, on_gpu)
        heading = text(label_of(run))
        if number <= PROBLEMS_DRAWN:
            picture = pictures.drawn.get(ladder_file(number))
            parts += [f"<h2>{heading}</h2>", table, figure(picture) if picture else "", again]
        else:
            summary = f"<summary>{heading}: {counts([run])}</summary>"
            parts.append(f"<details>{summary}\n{table}\n{again}</details>")
    return parts


STYLE = """
:root { color-scheme: light dark; --ink: #222; --muted: #5f5f5f; --paper: #fff; --line: #ddd; --code: #f4f4f1;
  --good: #00694f; --bad: #a52a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e0; --muted: #a8a8a2; --paper: #16181b; --line: #3a3d41; --code: #23262a;
    --good: #4fc7a2; --bad: #ff9466; } }
body { margin: 0 auto; max-width: 66rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "DejaVu Sans", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; overflow-wrap: normal; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; vertical-align: top; }
th:nth-child(-n+2), td:nth-child(-n+2), .facts td { text-align: left; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child, .facts td { min-width: 17rem; white-space: normal; overflow-wrap: anywhere; }
small, figcaption, p.note { color: var(--muted); }
code, pre { background: var(--code); font: .85rem/1.45 "DejaVu Sans Mono", monospace; border-radius: 3px; }
code { padding: .1em .25em; } pre { padding: .6rem; white-space: pre-wrap; }
figure { margin: 1rem 0; overflow-x: auto; }
img { max-width: 100%; min-width: 38rem; height: auto; border-radius: 4px; }
.pass { color: var(--good); } .fail, .crash, .timeout, .error { color: var(--bad); font-weight: bold; }
summary { padding: .3rem 0; }
""".strip()


def page(data: Record, runs: list[Run], pictures: Pictures) -> str:
    on_gpu = data["provenance"]["backend"] == "cuda"
    device = data["provenance"]["device"]["name"] if on_gpu else "the CPU emulator"
    title, origin = text(f"FlashSteps on {device}"), text(charts.origin_of(data))
    problems = "1 problem" if len(runs) == 1 else f"{len(runs)} problems"
    notes = [] if data["complete"] else ["The run did not come to its end: what was measured until then."]
    if not on_gpu:
        notes.append("The emulator counts what a GPU would do. It has no timing model.")
    if len(runs) > PROBLEMS_DRAWN:
        notes.append(
            f"The first {PROBLEMS_DRAWN} of {len(runs)} problems have charts of their own, all have their "
            "tables. Others: report.py --where D=64 --where causal=true."
        )
    notes += [f"Not drawn. {line}." for line in pictures.not_drawn]
    ladders = {ladder_file(number) for number in range(1, len(runs) + 1)}
    more, heading = [], ""
    for picture in pictures.drawn.values():
        if picture.file not in ladders:
            more += [f"<h2>{text(picture.heading)}</h2>"] if picture.heading != heading else []
            more.append(figure(picture))
            heading = picture.heading
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{problems}: {counts(runs)}. {text(data['provenance']['date'])}, {origin}.</p>",
        *(f'<p class="note">{text(note)}</p>' for note in notes),
        failures(runs),
        *problem_sections(runs, on_gpu, pictures),
        *more,
        what_ran(data),
        how_to_go_on(data, runs),
    ]
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n"
    )
    body = "\n".join(part for part in parts if part)
    return f"{head}<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"


def make(options: argparse.Namespace, filters: dict[str, str]) -> None:
    data = results.load(options.results)
    runs = results.select_runs(data, filters)
    profiles = [results.load(path, PROFILE_SCHEMA) for path in options.profile]
    options.out.mkdir(parents=True, exist_ok=True)
    pictures = Pictures()
    try:
        draw_charts(pictures, data, runs, profiles)
        if options.program:
            draw_from_program(pictures, data, runs, options.program, options.out)
    except ImportError as error:
        pictures.not_drawn.append(f"Charts: {error} {figure_style.MISSING}")
    for line in pictures.not_drawn:
        print(f"report.py: not drawn. {printable(line)}", file=sys.stderr)
    for picture in pictures.drawn.values():
        (options.out / picture.file).write_bytes(picture.content)
    whole = page(data, runs, pictures)
    (options.out / "index.html").write_text(whole, encoding="utf-8", newline="\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True)
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only matching problems"
    )
    parser.add_argument("--program", type=Path, metavar="FLASHSTEPS", help="draw attention maps with it")
    parser.add_argument(
        "--profile", type=Path, action="append", default=[], metavar="FILE", help="a record of profile_ncu.py"
    )
    options = parser.parse_args(arguments)
    if not all("=" in word for word in options.where):
        parser.error("--where takes KEY=VALUE")
    try:
        make(options, dict(word.split("=", 1) for word in options.where))
    except (ResultsError, OSError) as error:
        print(f"report.py: {printable(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
