#!/usr/bin/env python3
"""Writes every generated block of the Markdown pages from figures/results/*.json and steps/*/kernel.cu.

    python3 scripts/pages/readme_tables.py           rewrite the blocks
    python3 scripts/pages/readme_tables.py --check   change nothing; fail on drift, typed figures, unsound records

Kinds of block (the syntax is in markers.py). FILE is a name under figures/results/; FILTER is any of B H Hq
Hkv S Sq Skv D dtype causal kv_lengths layout inputs lse softmax_scale seed, as in `D=64 causal=true`. PAIR is
`step=vNN_name` (that step and the one before it) or `from=vMM_name to=vNN_name`.
    ladder      file=FILE [FILTER...]         one row a step: rate, x previous, error; beside FlashAttention-2
                                              if the file has peers, and with registers if it has them
    step        file=FILE PAIR [FILTER...]    one row a problem: before and after
    counters    file=FILE [PAIR] [show=NAME,...] [FILTER...]
                                              the emulator's counters of a pair, those named, or a few
                                              of every step; one problem
    profile     file=FILE PAIR [show=NAME,...] [FILTER...]
                                              the GPU's own counters of a pair, those named; one problem
    conformance file=FILE ncu=FILE [step=vNN_name] [show=NAME,...] [FILTER...]
                                              the emulator's counters beside the GPU's, of that step or of all
                                              that the ncu record has; one problem
    ablation    file=FILE step=vNN_name [show=NAME,...] [FILTER...]
                                              a step and its ablations (docs/ablations/), those named
    peers       file=FILE [show=NAME,...] [FILTER...]
                                              steps beside other people's kernels, a row a problem; shown are
                                              all, or the steps and peers that are named
    host_time   file=FILE [show=NAME,...]     how long a call keeps the host, of the same file
    provenance  file=FILE                     where and when the file was measured, in a line
    diff        PAIR [brief=true]             the diff of the kernels
"""
from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import figure_style
from pages import markers
from pages.markers import Block, MarkerError
from records import profiles, rates, results
from records.problems import problem_labels
from records.rates import rate, ratio, speedup_cell
from records.results import ResultsError
from steps import ablations, sources, step_diff
from steps.ablations import AblationError
from steps.sources import ROOT, StepError

FOLDERS = ("steps", "common", "harness", "scripts", "docs", "figures")
SOURCE_FOLDERS = ("steps", "common", "harness", "scripts")
SOURCE_SUFFIXES = {".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".py", ".sh", ".cmake", ".txt"}
# Its own examples: the tools' tests.
EXEMPT = ("scripts/tests/",)
# A number, unless it ends a name such as v02 or H200, and a unit; markup and "+" may stand between them.
TYPED_FIGURE = re.compile(
    r"(?<![\w.,])\d[\d.,_]*(?:e[+-]?\d+)?[+%)\]]?(?:\*\*|`)?[\s\u00a0\u202f-]*(?:\*\*|`)?"
    r"(?:[TGP]|tera|giga|peta)flop",
    re.IGNORECASE,
)


class TableError(Exception):
    """One line for the user."""


# Numbers and cells.


def escape(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def table(header: list[str], rows: list[list[str]], right_from: int) -> str:
    """A Markdown table; columns from `right_from` on hold numbers."""
    rule = ["---" if column < right_from else "---:" for column in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def status_cell(step: dict[str, Any]) -> str:
    """Why there is no figure."""
    first_line = step["message"].strip().split("\n")[0]
    if len(first_line) > 80:
        first_line = first_line[:79].rstrip() + "…"
    return escape(f"{step['status']}: {first_line}" if first_line else step["status"])


def rate_cell(step: dict[str, Any] | None) -> str:
    if step is None:
        return "not recorded"
    timing = step.get("timing")
    if timing is None:
        return status_cell(step)
    return f"{rate(timing['tflops'])} [{rate(timing['tflops_p10'])}–{rate(timing['tflops_p90'])}]"


def worst(values: list[Any], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(max(known), form) if known else "–"


# What the blocks refer to.


class Request:
    """A block's arguments, each taken once; what nobody takes is an error."""

    def __init__(self, block: Block, root: Path):
        self.block, self.root = block, root
        self.left = dict(block.arguments)

    def take(self, name: str) -> str | None:
        return self.left.pop(name, None)

    def need(self, name: str) -> str:
        value = self.take(name)
        if value is None:
            raise TableError(f"{name}=... is missing")
        return value

    def record(self, argument: str = "file", schema: str | None = results.SCHEMA) -> tuple[str, dict]:
        name = self.need(argument).removesuffix(".json") + ".json"
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
            raise TableError(f"{argument}={name}: must be the name of a file under figures/results/")
        if not (self.root / "figures" / "results" / name).is_file():
            raise TableError(f"figures/results/{name} does not exist")
        return name, results.load(self.root / "figures" / "results" / name, schema)

    def step(self, name: str) -> str:
        steps = sources.all_steps(self.root)
        if name not in steps:
            raise TableError(f"there is no step '{name}' under steps/")
        return name

    def pair(self, required: bool = True) -> tuple[str | None, str | None]:
        """The step before and the step. The first step of all has none before it."""
        step, before, after = self.take("step"), self.take("from"), self.take("to")
        if step is not None and before is None and after is None:
            steps = sources.all_steps(self.root)
            position = steps.index(self.step(step))
            return (steps[position - 1] if position else None), step
        if before is not None and after is not None and step is None:
            return self.step(before), self.step(after)
        if required or (step, before, after) != (None, None, None):
            raise TableError("give either step=... or both from=... and to=...")
        return None, None

    def runs(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        """The problems that match the filters: all arguments that are left."""
        return results.select_runs(data, {name: self.left.pop(name) for name in list(self.left)})

    def one_run(self, data: dict[str, Any], file: str) -> dict[str, Any]:
        runs = self.runs(data)
        if len(runs) > 1:
            raise TableError(f"{len(runs)} problems match in {file}, counters are of one: add a filter")
        return runs[0]

    def show(self, known: list[str]) -> list[str] | None:
        """The names that are asked for, in that order, or None for all."""
        names = self.take("show")
        for name in names.split(",") if names else []:
            if name not in known:
                raise TableError(f"show={name}: there are {', '.join(known)}")
        return names.split(",") if names else None

    def done(self) -> None:
        if self.left:
            raise TableError(f"does not know {', '.join(self.left)}")


def steps_of(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in run["steps"]}


def recorded_step(run: dict[str, Any], name: str, file: str) -> dict[str, Any]:
    if name not in steps_of(run):
        raise TableError(f"{file} has no step '{name}' for {run['problem']['label']}")
    return steps_of(run)[name]


def need_backend(data: dict[str, Any], file: str, backend: str) -> None:
    found = data["provenance"]["backend"]
    if found != backend:
        raise TableError(f"{file} comes from backend '{found}', this block needs '{backend}'")


def need_program(data: dict[str, Any], file: str) -> None:
    """In a comparison with peers steps were launched from Python, on other inputs: not for the lessons' tables."""
    if results.is_peers(data):
        raise TableError(f"{file} is a comparison with peers: for the blocks 'ladder' and 'peers'")


# The kinds.


def fa2_of(run: dict[str, Any]) -> dict[str, Any] | None:
    """FlashAttention-2: PyTorch's, or else its authors' package."""
    entries = rates.contenders_of(run)
    return next((entries[name] for name in ("sdpa_flash", "flash_attn") if name in entries), None)


def ladder(request: Request) -> str:
    file, data = request.record()
    need_backend(data, file, "cuda")
    runs = request.runs(data)
    names = sources.all_steps(request.root)
    if not names:
        raise TableError("there are no steps under steps/")
    for run in runs:
        # A step that was renamed or removed since: its row would silently be gone.
        if gone := [name for name in steps_of(run) if name not in names]:
            raise TableError(f"{file} has '{gone[0]}', which is not under steps/: measure again")
    common, labels = problem_labels(runs)
    single = len(runs) == 1
    beside_fa2 = any(fa2_of(run) for run in runs)
    with_resources = any(record.get("resources") for run in runs for record in run["steps"])
    header = ["step", "idea"]
    for label in labels:
        header += ["TFLOPS" if single else label, "× previous"]
        header += (["× FA2"] if beside_fa2 else []) + (["% of peak"] if single else [])
    header += ["NRMSE" if single else "worst NRMSE"]
    header += ["registers", "spilled bytes"] if with_resources else []

    def row(cells: list[str], records: list[dict[str, Any] | None], previous: str | None) -> list[str]:
        for run, record in zip(runs, records):
            cells += [rate_cell(record), speedup_cell(steps_of(run).get(previous), record)]
            cells += [speedup_cell(fa2_of(run), record)] if beside_fa2 else []
            if single:
                cells.append(worst([((record or {}).get("timing") or {}).get("percent_of_peak")], ".1f"))
        known = [record for record in records if record is not None]
        cells.append(worst([(record.get("validation") or {}).get("nrmse") for record in known], ".1e"))
        for key in ("registers", "spill_bytes") if with_resources else ():
            cells.append(worst([(record.get("resources") or {}).get(key) for record in known], "d"))
        return cells

    rows = []
    folder = os.path.relpath(request.root / "steps", request.block.path.parent)
    parts = [sources.part(name, request.root) for name in names]
    for position, name in enumerate(names):
        if len(set(parts)) > 1 and parts[position] not in parts[:position]:
            rows.append([f"**{parts[position]}**"] + [""] * (len(header) - 1))
        cells = [f"[{name}]({folder}/{name}/)", escape(sources.title(name, request.root))]
        records = [steps_of(run).get(name) for run in runs]
        rows.append(row(cells, records, names[position - 1] if position else None))
    for name, (words, *_) in figure_style.PEERS.items():
        records = [rates.contenders_of(run).get(name) for run in runs]
        if any(records):
            rows.append(row([f"*{words}*", f"`{name}`, for comparison"], records, None))
    return f"{common}. TFLOPS: median [p10–p90].\n\n{table(header, rows, 2)}"


def step(request: Request) -> str:
    file, data = request.record()
    need_backend(data, file, "cuda")
    need_program(data, file)
    before, after = request.pair()
    runs = request.runs(data)
    common, labels = problem_labels(runs)
    names = [name for name in (before, after) if name]
    rows = []
    for run, label in zip(runs, labels):
        records = [recorded_step(run, name, file) for name in names]
        row = [label or common, *(rate_cell(record) for record in records)]
        if before:
            row.append(speedup_cell(*records))
        row.append(worst([(records[-1].get("timing") or {}).get("percent_of_peak")], ".1f"))
        rows.append(row)
    header = ["problem", *names, *(["×"] if before else []), "% of peak"]
    heading = f"{common}. " if len(runs) > 1 and common else ""
    return f"{heading}TFLOPS: median [p10–p90].\n\n{table(header, rows, 1)}"


def ablation(request: Request) -> str:
    file, data = request.record()
    need_backend(data, file, "cuda")
    need_program(data, file)
    step = request.step(request.need("step"))
    variants = {each.variant: each for each in ablations.of_step(step, request.root)}
    show = request.show(list(variants)) or list(variants)
    if not show:
        raise TableError(f"{step} has no page under docs/ablations/")
    runs = request.runs(data)
    known = {*sources.all_steps(request.root), *(each.name for each in variants.values())}
    for run in runs:
        # As in the ladder: the row of an ablation that is gone would silently be gone as well.
        if gone := [name for name in steps_of(run) if name.startswith(f"{step}_") and name not in known]:
            raise TableError(f"{file} has '{gone[0]}', which is not in docs/ablations/: measure again")
    unchanged = [recorded_step(run, step, file) for run in runs]
    common, labels = problem_labels(runs)

    def row(text: str, records: list[dict[str, Any] | None]) -> list[str]:
        cells = [text]
        for before, record in zip(unchanged, records):
            cells += [rate_cell(record), speedup_cell(before, record)]
        for key in ("registers", "spill_bytes", "ctas_per_sm"):
            values = [((record or {}).get("resources") or {}).get(key) for record in records]
            words = ["–" if value is None else str(value) for value in values]
            cells.append(" / ".join(words if len(set(words)) > 1 else words[:1]))  # one each, in order
        return cells

    rows = [row(f"{step} as it is", unchanged)]
    for each in (variants[variant] for variant in show):
        page = os.path.relpath(request.root / each.page, request.block.path.parent)
        rows.append(row(f"[{escape(each.title)}]({page})", [steps_of(run).get(each.name) for run in runs]))
    header = ["kernel"]
    for label in labels:
        header += [label if len(runs) > 1 else "TFLOPS", "×"]
    header += ["registers", "spilled bytes", "CTAs per SM"]
    heading = f"{common}. TFLOPS: median [p10–p90]; × beside the kernel as it is.\n\n"
    return heading + table(header, rows, 1)


def peers(request: Request) -> str:
    file, data = request.record()
    if not results.is_peers(data):
        raise TableError(f"{file} is no comparison with peers (scripts/measure/compare_peers.py makes them)")
    every_run = data["runs"]
    known = list(dict.fromkeys(name for run in every_run for name in rates.contenders_of(run)))
    show = request.show(known) or known
    steps = [request.step(name) for name in show if name not in rates.PEERS]
    names = steps + [name for name in show if name in rates.PEERS]
    runs = request.runs(data)
    common, labels = problem_labels(runs)
    rows, ratios = [], []
    for run, label in zip(runs, labels):
        entries = rates.contenders_of(run)
        best, step = rates.best_peer(run), rates.best_step(run, steps)
        found = rates.ratio_to_best_peer(run, step) if step else None
        ratios += [found] if found else []
        row = [label or common, *(rate_cell(entries.get(name)) for name in names)]
        row.append(f"{rate(best[1])} ({best[0]})" if best else "–")
        rows.append(row + ([f"{found:.2f}" if found else "–"] if steps else []))
    header = ["problem", *names, "best peer"]
    if steps:
        header.append(f"{steps[0] if len(steps) == 1 else 'best step'} / best peer")
        if len(ratios) > 1:
            mean = f"{rates.geometric_mean(ratios):.2f}"
            over = f"geometric mean of {len(ratios)}"
            rows.append([over, *([""] * (len(names) + 1)), mean])
    heading = f"{common}. " if len(runs) > 1 and common else ""
    # Whoever is not shown still counts.
    left_out = [name for name in known if name in rates.PEERS and name not in names]
    others = f" The best peer is that of all that were measured, {', '.join(left_out)} too."
    return f"{heading}TFLOPS: median [p10–p90].{others if left_out else ''}\n\n{table(header, rows, 1)}"


def host_time(request: Request) -> str:
    file, data = request.record()
    if data.get("host_overhead") is None:
        raise TableError(f"{file} has no times of the host (scripts/measure/compare_peers.py takes them)")
    host = data["host_overhead"]
    entries = {entry["name"]: entry for entry in host["entries"]}
    show = request.show(list(entries)) or list(entries)
    request.done()
    rows = [
        [name, *(f"{entries[name][key]:.1f}" for key in ("median_us", "p10_us", "p90_us"))] for name in show
    ]
    heading = f"{host['problem']['label']}, on the host, without waiting for the GPU.\n\n"
    return heading + table(["one call", "median µs", "p10", "p90"], rows, 1)


def emulated_counters(run: dict[str, Any], name: str, file: str) -> dict[str, int]:
    record = recorded_step(run, name, file)
    if record["status"] != "pass" or record.get("counters") is None:
        raise TableError(f"{file} has no counters of {name}: {status_cell(record)}")
    return record["counters"]


def counters(request: Request) -> str:
    file, data = request.record()
    need_backend(data, file, "emulator")
    before, after = request.pair(required=False)
    show = request.show(list(results.COUNTERS)) if after else None
    runs = [request.one_run(data, file)]
    # A pair, the first step alone (there is none before it), or all of them.
    names = [name for name in (before, after) if name] or sources.all_steps(request.root)
    columns = {name: emulated_counters(runs[0], name, file) for name in names}
    heading = f"{problem_labels(runs)[0]}. Counted on the emulator.\n\n"

    def conflicts(values: dict[str, int]) -> str:
        return ratio(values["shared_wavefronts"], values["shared_wavefronts_ideal"])

    if after:
        rows = []
        for key in show or results.COUNTERS:
            row = [key.replace("_", " "), *(f"{columns[name][key]:,}" for name in names)]
            rows.append(row + ([ratio(columns[after][key], columns[before][key])] if before else []))
        if any(columns[name]["shared_wavefronts_ideal"] for name in names):
            rows.append(["shared wavefronts / ideal", *(conflicts(columns[name]) for name in names)])
            rows[-1] += [""] if before else []
        return heading + table(["counter", *names, *(["×"] if before else [])], rows, 1)
    keys = ("global_sectors", "shared_wavefronts", "barriers", "shuffles")
    rows = [[name, *(f"{columns[name][key]:,}" for key in keys), conflicts(columns[name])] for name in names]
    return heading + table(
        ["step", *(key.replace("_", " ") for key in keys), "shared wavefronts / ideal"], rows, 1
    )


def profiled(run: dict[str, Any], name: str, file: str) -> dict[str, float]:
    record = recorded_step(run, name, file)
    if record["status"] != "pass":
        raise TableError(f"{file} has no counters of {name}: {status_cell(record)}")
    return profiles.values(record["metrics"], record["opcodes"])


def profile(request: Request) -> str:
    file, data = request.record(schema=profiles.SCHEMA)
    names = [name for name in request.pair() if name]
    show = request.show(list(profiles.BY_NAME))
    run = request.one_run(data, file)
    columns = [profiled(run, name, file) for name in names]
    rows = []
    for name in show or [name for name in profiles.BY_NAME if any(each.get(name) for each in columns)]:
        missing = [step for step, each in zip(names, columns) if name not in each]
        if show and missing:
            raise TableError(f"{file} has no {name} of {missing[0]}")
        row = [name.replace("_", " "), *(profiles.cell(name, each.get(name)) for each in columns)]
        if len(names) == 2:  # a share of another whole before and after: what would their ratio say?
            is_share = profiles.BY_NAME[name].unit == "%"
            row.append("" if is_share or missing else ratio(columns[1][name], columns[0][name]))
        rows.append(row)
    device = data["provenance"]["device"]["name"]
    heading = f"{problem_labels([run])[0]}. Read on {device} with Nsight Compute.\n\n"
    return heading + table(["counter", *names, *(["×"] if len(names) == 2 else [])], rows, 1)


def conformance_rows(step: str, emulated: dict[str, int], measured: dict[str, float], show: list[str]):
    def row(counter: str, pair: tuple[Any, Any], form: str) -> list[str]:
        # An exact match is told apart from one that is merely close.
        same = "=" if pair[0] == pair[1] else ratio(pair[1], pair[0])
        return [step, counter.replace("_", " "), *(format(value, form) for value in pair), same]

    pairs = {key: (emulated.get(key), measured.get(key)) for key in show}
    # A record that is older than a counter does not have it; what both call 0 says nothing.
    pairs = {key: pair for key, pair in pairs.items() if None not in pair and any(pair)}
    for key, pair in pairs.items():
        yield row(key, pair, ",")
        if all(ideal := pairs.get(f"{key}_ideal", (0, 0))):
            yield row(f"{key} / ideal", (pair[0] / ideal[0], pair[1] / ideal[1]), ".2f")


def conformance(request: Request) -> str:
    file, data = request.record()
    need_backend(data, file, "emulator")
    ncu_file, ncu_data = request.record("ncu", profiles.SCHEMA)
    known = [name for name in results.COUNTERS if name in profiles.BY_NAME]
    show = request.show(known) or known
    step = request.take("step")
    filters = dict(request.left)
    run = request.one_run(data, file)
    request.left = filters  # the same for the other file
    ncu_run = request.one_run(ncu_data, ncu_file)
    labels = [each["problem"]["label"] for each in (run, ncu_run)]
    if labels[0] != labels[1]:
        raise TableError(f"{file} is of {labels[0]}, {ncu_file} of {labels[1]}: add a filter")
    names = [request.step(step)] if step else [each["step"] for each in ncu_run["steps"]]
    rows = []
    for name in names:
        counted = emulated_counters(run, name, file)
        rows += conformance_rows(name, counted, profiled(ncu_run, name, ncu_file), show)
    heading = (
        f"{problem_labels([run])[0]}. Counted on the emulator, and read on "
        f"{ncu_data['provenance']['device']['name']} with Nsight Compute. What both call 0 is left out.\n\n"
    )
    return heading + table(["step", "counter", "emulator", "GPU", "GPU / emulator"], rows, 2)


# Of the peers' packages, what they are called.
PACKAGES = {
    "torch": "PyTorch",
    "cudnn": "cuDNN",
    "flash_attn": "flash-attn",
    "flash_attn_3": "FlashAttention-3",
}


def provenance(request: Request) -> str:
    file, data = request.record(schema=None)
    request.done()
    origin = data["provenance"]
    device = origin["device"]
    if origin["backend"] == "cuda":
        clocks = [
            step["timing"]["sm_clock_mhz"]
            for run in data["runs"]
            for step in run["steps"]
            if (step.get("timing") or {}).get("sm_clock_mhz")
        ]
        parts = [
            device["name"],
            f"driver {device['driver']}",
            f"CUDA {device['cuda_runtime']} (nvcc {origin['build']['nvcc']})",
        ]
        if versions := origin.get("peers"):
            parts += [f"{text} {versions[key]}" for key, text in PACKAGES.items() if versions.get(key)]
        if "ncu" in origin:
            parts.append(f"Nsight Compute {origin['ncu']}")
        if clocks:
            low, high = f"{min(clocks):.0f}", f"{max(clocks):.0f}"
            span = low if low == high else f"{low}–{high}"
            parts.append(
                f"SM clock {span} MHz while timing"
                + (f" (maximum {device['max_sm_clock_mhz']:.0f})" if device.get("max_sm_clock_mhz") else "")
            )
    else:
        parts = [
            "emulator" + (f" on {device['host_cpu']}" if device.get("host_cpu") else ""),
            "counts, not times",
        ]
    parts += [f"commit {(origin['commit'] or 'unknown')[:12]}", origin["date"][:10]]
    path = os.path.relpath(request.root / "figures" / "results" / file, request.block.path.parent)
    return f"Measured on: {', '.join(parts)}. Record: [{file}]({path}).\n"


def diff(request: Request) -> str:
    before, after = request.pair()
    brief = request.take("brief") or "false"
    request.done()
    if brief not in ("true", "false"):
        raise TableError(f"brief={brief}: must be true or false")
    if not before or not after:
        raise TableError(f"{after} is the first step: there is none before it")
    lines, added, removed = step_diff.diff(before, after, request.root, brief == "true")
    fence = "````" if any("```" in line for line in lines) else "```"
    return "\n".join([fence + "diff", *lines, fence, "", f"{added} lines added, {removed} removed.", ""])


KINDS = {
    "ladder": ladder,
    "step": step,
    "ablation": ablation,
    "peers": peers,
    "host_time": host_time,
    "counters": counters,
    "profile": profile,
    "conformance": conformance,
    "provenance": provenance,
    "diff": diff,
}


def generate(block: Block, root: Path) -> str:
    try:
        request = Request(block, root)
        return markers.generate(block, {block.kind: lambda _: KINDS[block.kind](request)})
    except (TableError, ResultsError, StepError, AblationError, OSError, ValueError) as error:
        raise TableError(f"{block.where}: {block.kind}: {error}") from error


# The pages.


def files_under(root: Path, folders: tuple[str, ...], suffixes: set[str]) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts
    )


def is_exempt(path: Path, root: Path) -> bool:
    return path.relative_to(root).as_posix().startswith(EXEMPT)


def pages(root: Path) -> list[Path]:
    found = sorted(root.glob("*.md")) + files_under(root, FOLDERS, {".md"})
    return [path for path in found if not is_exempt(path, root)]


def typed_figures(lines: list[tuple[int, str]], path: Path, root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{number}: '{found[0]}' is typed by hand; figures come from a record "
        "in figures/results/ through a generated block"
        for number, line in lines
        if (found := TYPED_FIGURE.search(line))
    ]


def check_page(path: Path, root: Path, write: bool) -> list[str]:
    """Brings a page up to date, or says how it is not."""
    # newline="" keeps whatever line ends the page has
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    relative = path.relative_to(root)
    try:
        blocks = markers.find_blocks(text, relative, KINDS)
    except MarkerError as error:
        return [str(error)]
    errors, bodies = [], []
    for block in blocks:
        try:
            at_root = Block(root / block.path, block.line, block.end, block.kind, block.arguments, block.body)
            body = generate(at_root, root)
        except (TableError, MarkerError) as error:
            errors.append(str(error).replace(f"{root}{os.sep}", ""))
            continue
        if body == block.body:
            continue
        bodies.append((block, body))
        if not write:
            errors.append(
                f"{block.where}: {block.kind}: not what its source says "
                f"(python3 scripts/pages/readme_tables.py brings it up to date)\n"
                + markers.short_diff(block.body, body)
            )
    if write:
        if bodies and not errors:
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(markers.replace(text, bodies))
            print(f"{relative}: {len(bodies)} block(s) rewritten")
        return errors
    return errors + typed_figures(markers.outside(text, blocks), path, root)


def check_records(root: Path) -> list[str]:
    errors = []
    for path in sorted((root / "figures" / "results").glob("*.json")):
        try:
            data = results.read(path)
        except ResultsError as error:
            errors.append(str(error).replace(f"{root}{os.sep}", ""))
            continue
        found = results.check(data) or results.check_recorded(data, root)
        errors += [f"{path.relative_to(root)}: {line}" for line in found]
    return errors


def check_sources(root: Path) -> list[str]:
    errors = []
    for path in files_under(root, SOURCE_FOLDERS, SOURCE_SUFFIXES):
        if not is_exempt(path, root):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            errors += typed_figures(list(enumerate(lines, start=1)), path, root)
    return errors


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Rewrites, or checks, the generated blocks of all Markdown pages."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit status 1 on drift, a typed figure or an unsound record",
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    errors = [] if not options.check else check_records(root) + check_sources(root)
    for path in pages(root):
        errors += check_page(path, root, write=not options.check)
    for line in errors:
        print(line, file=sys.stderr)
    if not errors:
        print("all generated blocks are up to date")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
