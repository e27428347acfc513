"""What a generated block says, by its kind.

FILE is a name under figures/results/; FILTER is any of B H Hq Hkv S Sq Skv D dtype causal kv_lengths layout inputs lse
softmax_scale page_size seed, as in `D=64 causal=true`. A table of all steps in a record leaves out those that have left
the ladder since; `against` and `measured` may name one.
    ladder      file=FILE shapes="FILTER...; FILTER..." [parts=PART,...]
                                              a row a step: rate, x the step before and, where the file has peers, % of the
                                              fastest one, of each problem; of all parts of the ladder, or of those
                                              that are named; steps of the two evenings are bold
    step        file=FILE step=NAME [against=NAME] [FILTER...]
                                              a row a problem: the step that it comes from, or another, and the step
    counters    file=FILE [before=FILE] step=NAME [against=NAME] show=NAME,... [FILTER...]
                                              counters of the same two, the emulator's or, where the file is a profile,
                                              the GPU's own; those of the first from another file if `before` names
                                              one; one problem
    conformance file=FILE ncu=FILE [show=differences] [FILTER...]
                                              the emulator's counters beside the GPU's, of all steps; one problem;
                                              those that agree each in a row, or all of a step in one
    ablation    file=FILE step=NAME [against=NAME] [FILTER...]
                                              a step and its ablations (variants.md); or another step and the
                                              configurations and ablations of this one
    peers       file=FILE [show=NAME,...] [FILTER...]
                                              steps beside other people's kernels, a row a problem; shown are
                                              all, or the steps and peers that are named
    host_time   file=FILE [show=NAME,...]     how long a call keeps the host, of the same file
    standing    file=FILE beside=NAME [show=NAME,...] [by=FILTER] [FILTER...]
                                              of the same file, rates over that peer's, or the best one's ("best";
                                              "best deterministic", "best non-deterministic" of backward passes):
                                              a row a step, a column a head dimension and mask, or a value of `by`
    inputs      file=FILE [show=NAME,...] [FILTER...]
                                              rates over those of the same step with normal inputs: a row a step, a
                                              column a problem with other inputs
    pages       file=FILE without=FILE step=NAME [measured=NAME] [FILTER...]
                                              a step with K and V in pages, and without, of another file: times, a
                                              column a page size; `measured` names the step that was in its place
    cache       file=FILE step=NAME [against=NAME] [FILTER...]
                                              a step with K and V in FP8, and another one with both in q's type: times
    instructions file=FILE warps=N            what instructions cost beside mma.sync, with so many warps
    bound       file=FILE loop="NAME=COUNT ..." keys=N rows=N D=N step=NAME ladder=FILE
                                              the least time of a step's loop that has so many of each instruction
                                              for a tile of so many keys and rows; an error where the step is
                                              faster
    ring        file=FILE [show=NAME,...]     several GPUs: rates over those of their work without transfers, a row a
                                              problem, a column a contender; the link's rate, what was overlapped
    ring_trace  file=FILE problem=N           several GPUs: when the first GPU computed and copied in one call, as bars
    provenance  file=FILE                     where and when the file was measured, in a line
    code        file=FILE function=NAME       a function as it stands in a file of the repository
    race        program=NAME                  of a program of docs/races: its two lines and the mend, the emulator's
                                              report, and what a GPU and compute-sanitizer said
    races_table                               a row a program of docs/races: who finds its race, how often it is wrong
    try_it      step=NAME                     what the lesson tells to try, as it stands in the step's variants.md
    place       step=NAME                     the steps of the evening that docs/README.md has the step in; or, of a side
                                              step, where to go on
    side_steps  file=FILE[,FILE...]           a row a step that is in no evening: for whom, by its lesson, and its rate
                                              over that of the step that it comes from, in the first file that has both
    path                                      about how many hours the lessons of each table of docs/README.md take, and
                                              the chapters that it names before them; an estimate
"""

from __future__ import annotations

import os
import re
import statistics
import textwrap
from pathlib import Path
from typing import Any, Iterator, Sequence

from draw import figure_style
from measure import races
from records import profiles, rates, results
from records.problems import kv_bytes, problem_label, problem_labels
from records.rates import rate, ratio, speedup_cell, terabytes
from records.results import ResultsError
from records.rules import COUNTERS
from steps import sources, step_diff, variants
from steps.sources import ROOT, StepError

Record = dict[str, Any]
Run = dict[str, Any]
Entry = dict[str, Any]  # a step of a run, or a peer

SPREAD = "TFLOPS: median [p10–p90]"
# Of the peers' packages, what they are called.
PACKAGES = {
    "torch": "PyTorch",
    "cudnn": "cuDNN",
    "cudnn_frontend": "cudnn-frontend",
    "flash_attn": "flash-attn",
    "flash_attn_3": "FlashAttention-3",
    "flash_attn_4": "FlashAttention-4",
    "flashinfer": "FlashInfer",
}


class TableError(Exception):
    """One line for the user."""


# Cells.


def escape(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def table(header: list[str], rows: list[list[str]], right_from: int = 1) -> str:
    """A Markdown table; columns from `right_from` on hold numbers."""
    rule = ["---" if column < right_from else "---:" for column in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def status_cell(entry: Entry) -> str:
    """Why there is no figure."""
    first_line = entry["message"].strip().split("\n")[0]
    if len(first_line) > 80:
        first_line = first_line[:79].rstrip() + "…"
    return escape(f"{entry['status']}: {first_line}" if first_line else entry["status"])


def rate_cell(run: Run, entry: Entry | None, spread: bool = True) -> str:
    if entry is None:
        return "not recorded"
    timing = entry.get("timing")
    if timing is None:
        return status_cell(entry)
    median, low, high = rates.tflops_spread(run["problem"], timing)
    if of_memory := terabytes(run["problem"], entry):
        median, low, high = (f"{each * of_memory:.2f}" for each in (median, low, high))
    else:
        median, low, high = map(rate, (median, low, high))
    return median + (f" [{low}–{high}]" if spread else "")


def spread_of(*timed: tuple[Run, Entry]) -> str:
    reads = any(terabytes(run["problem"], entry) for run, entry in timed)
    return "TB/s of K and V, each counted once, L2 cold: median [p10–p90]" if reads else SPREAD


# What the blocks refer to.


class Request:
    """A block's arguments, each taken once; what nobody takes is an error."""

    def __init__(self, page: Path, arguments: dict[str, str], loaded: dict[Path, Record]):
        self.folder, self.loaded, self.left = page.parent, loaded, dict(arguments)

    def need(self, name: str) -> str:
        if name not in self.left:
            raise TableError(f"{name}=... is missing")
        return self.left.pop(name)

    def link(self, target: str) -> str:
        """To a file of the repository, from the page."""
        return os.path.relpath(ROOT / target, self.folder)

    def record(self, argument: str = "file", backend: str = "", profile: bool | None = False) -> tuple[str, Record]:
        """Its name and what it holds; a profile, none, or either."""
        name = self.need(argument).removesuffix(".json") + ".json"
        path = ROOT / "figures" / "results" / name
        if not path.is_file():
            raise TableError(f"{argument}={name}: there is no figures/results/{name}")
        if path not in self.loaded:
            self.loaded[path] = results.load(path, None)
        data = self.loaded[path]
        if profile not in (None, results.is_profile(data)):
            raise TableError(f"{name} is {'no' if profile else 'a'} profile")
        found = data["provenance"]["backend"]
        if backend and found != backend:
            raise TableError(f"{name} comes from backend '{found}', this block needs '{backend}'")
        return name, data

    def pair(self) -> list[str]:
        """A step, and before it the one that it is held against: `against`, which may have left the ladder since the
        run was recorded or be `none`, or the one that it comes from. The first step of all comes from none."""
        step = sources.find_step(self.need("step"))
        if "against" in self.left:
            against = self.need("against")
            return [step] if against == "none" else [against, step]
        before = sources.after(step)
        return [before, step] if before else [step]

    def filters(self) -> dict[str, str]:
        """All arguments that are left."""
        found, self.left = self.left, {}
        return found

    def runs(self, data: Record) -> list[Run]:
        return results.select_runs(data, self.filters())

    def one_run(self, data: Record, file: str, filters: dict[str, str]) -> Run:
        runs = results.select_runs(data, filters)
        if len(runs) > 1:
            raise TableError(f"{len(runs)} problems match in {file}, this block is of one: add a filter")
        return runs[0]

    def show(self, known: list[str]) -> list[str] | None:
        """The names that are asked for, in that order, or None for all."""
        names = self.left.pop("show", "").split(",")
        for name in filter(None, names):
            if name not in known:
                raise TableError(f"show={name}: there are {', '.join(known)}")
        return names if names != [""] else None

    def contenders(self, data: Record, peers: bool = False, more: Sequence[str] = ()) -> list[str]:
        """The steps that are shown, and then the peers. A step that has left the ladder is shown if it is named, and so
        is one of `more`."""
        known = [name for name in contenders_in(data) if peers or name not in rates.PEERS]
        here = [name for name in known if name in rates.PEERS or not sources.has_left(name)]
        return sorted(self.show([*known, *more]) or here, key=lambda name: name in rates.PEERS)


def contenders_in(data: Record) -> list[str]:
    return list(dict.fromkeys(name for run in data["runs"] for name in rates.contenders_of(run)))


def steps_of(run: Run) -> dict[str, Entry]:
    return {step["step"]: step for step in run["steps"]}


# Rates.


def heading_of(common: str, runs: list[Run]) -> str:
    """What the problems of a table have in common, unless it stands in the only row."""
    return f"{common}. " if len(runs) > 1 and common else ""


def ladder(request: Request) -> str:
    _, data = request.record(backend="cuda")
    shapes = request.need("shapes").split(";")
    parts = request.left.pop("parts", "").split(",")
    names = [name for name in sources.all_steps() if parts == [""] or sources.part(name) in parts]
    runs = [request.one_run(data, "file", dict(word.split("=", 1) for word in shape.split())) for shape in shapes]
    common, labels = problem_labels(runs)
    measured = {name for run in runs for name in rates.contenders_of(run)}
    peers = [name for name in figure_style.PEERS if name in measured]
    header = ["step", "idea"]
    for label in labels:
        header += [label or common, "×"] + ["%"] * bool(peers)

    def row(cells: list[str], name: str, previous: str | None) -> list[str]:
        for run in runs:
            entries = rates.contenders_of(run)
            cells.append(rate_cell(run, entries.get(name), spread=False))
            cells.append(speedup_cell(entries.get(previous), entries.get(name)))
            if peers:
                share = rates.ratio_to(run, name)
                cells.append("–" if share is None else f"{100 * share:.0f}")
        return cells

    rows = []
    branches = []  # what is not compared with the row above
    main = sources.main_path()
    for above, name in zip([None, *names], names):
        previous = sources.compared_with(name, above, measured)
        if previous != above:
            branches.append(f"{name.partition('_')[0]} is compared with {previous.partition('_')[0]}")
        link = f"[{name.partition('_')[0]}]({request.link(f'steps/{name}')}/)"
        rows.append(row([f"**{link}**" if name in main else link, escape(sources.heading(name))], name, previous))
    for name in peers:
        rows.append(row(["", f"*{figure_style.PEERS[name][0]}*"], name, None))
    unit = spread_of(*((runs[0], step) for step in runs[0]["steps"])).replace(": median [p10–p90]", ", medians")
    heading = f"{common}. {unit}." if len(shapes) > 1 and common else f"{unit}."
    heading += " ×: over the row above" + "; %: of the fastest peer's rate" * bool(peers) + "."
    if branches:
        heading += f" {' and '.join(branches)}, from which {'they come' if len(branches) > 1 else 'it comes'}."
    return f"{heading}\n\n{table(header, rows, 2)}"


def step(request: Request) -> str:
    _, data = request.record(backend="cuda")
    names = request.pair()
    runs = request.runs(data)
    common, labels = problem_labels(runs)
    timings = [steps_of(run)[names[-1]].get("timing") for run in runs]
    device = data["provenance"]["device"]
    wholes = {}
    if not terabytes(runs[0]["problem"], steps_of(runs[0])[names[-1]]):
        wholes["peak"] = lambda run, timing: rates.percent_of_peak(run["problem"], timing, device)
    if limit := next(filter(None, ((timing or {}).get("limit") for timing in timings)), None):
        wholes[limit] = rates.percent_of_limit
    rows = []
    for run, label, timing in zip(runs, labels, timings):
        entries = [steps_of(run)[name] for name in names]
        row = [label or common, *(rate_cell(run, entry) for entry in entries)]
        row += [speedup_cell(*entries)] if len(names) == 2 else []
        shares = [timing and percent_of(run, timing) for percent_of in wholes.values()]
        rows.append(row + ["–" if share is None else f"{share:.1f}" for share in shares])
    header = ["problem", *names, *(["×"] if len(names) == 2 else []), *(f"% of {whole}" for whole in wholes)]
    spread = spread_of((runs[0], steps_of(runs[0])[names[-1]]))
    return f"{heading_of(common, runs)}{spread}. Measured on {device['name']}.\n\n{table(header, rows)}"


def ablation(request: Request) -> str:
    file, data = request.record(backend="cuda")
    step = sources.find_step(request.need("step"))
    other = request.left.pop("against", step)
    ablations = [*variants.of_step(step, "ablation"), *variants.of_step(step, "library")]
    runs = request.runs(data)
    known = [step, *(each.step_name for each in ablations)]
    changed = (f"{step}_", f"{step}@")  # its ablations, and its configurations
    recorded = dict.fromkeys(name for run in runs for name in steps_of(run) if name.startswith(changed))
    # The row of a variant that was renamed since would silently be gone.
    if gone := [name for name in recorded if name.partition("@")[0] not in known]:
        raise TableError(f"{file} has '{gone[0]}', which is not in {variants.page_of(step)}: measure again")
    # Those that came later have a record of their own, or none; docs/ablations.md says so.
    ablations = [each for each in ablations if each.step_name in recorded]
    unchanged = [steps_of(run)[other] for run in runs]
    common, labels = problem_labels(runs)

    def row(text: str, entries: list[Entry | None]) -> list[str]:
        cells = [text]
        for run, before, entry in zip(runs, unchanged, entries):
            cells += [rate_cell(run, entry), speedup_cell(before, entry)]
        for key in ("registers", "spill_bytes", "ctas_per_sm"):
            values = [((entry or {}).get("resources") or {}).get(key) for entry in entries]
            words = ["–" if value is None else str(value) for value in values]
            cells.append(" / ".join(words if len(set(words)) > 1 else words[:1]))  # one each, in order
        return cells

    rows = [row(f"{other}, unchanged", unchanged)]
    for each in ablations:
        link = f"[{escape(each.title)}]({request.link(each.link)})"
        rows.append(row(link, [steps_of(run).get(each.step_name) for run in runs]))
    for name in recorded:
        if "@" in name:
            rows.append(row(f"`{name.partition('@')[2]}`", [steps_of(run).get(name) for run in runs]))
    header, spread = ["kernel"], spread_of(*zip(runs, unchanged))
    for label in labels:
        header += [label if len(runs) > 1 else "TFLOPS" if spread == SPREAD else "TB/s", "×"]
    header += ["registers", "spilled bytes", "CTAs per SM"]
    whose = "the unchanged kernel's rate" if other == step else f"the rate of {other}"
    ratio = f"× is a row's rate divided by {whose}."
    return f"{common}. {spread}. {ratio}\n\n{table(header, rows)}"


def peers(request: Request) -> str:
    _, data = request.record()
    names = request.contenders(data, peers=True)
    steps = [name for name in names if name not in rates.PEERS]
    runs = request.runs(data)
    common, labels = problem_labels(runs)
    rows, ratios = [], []
    for run, label in zip(runs, labels):
        entries = rates.contenders_of(run)
        best, step = rates.best_peer(run), rates.best_step(run, steps)
        found = rates.ratio_to(run, step) if step else None
        ratios += [found] if found else []
        missed = {name: " (misses a gate)" for name, each in entries.items() if each["status"] == "fail" and "timing" in each}
        row = [label or common, *(rate_cell(run, entries.get(name)) + missed.get(name, "") for name in names)]
        row.append(f"{rate_cell(run, entries[best[0]], spread=False)} ({best[0]})" if best else "–")
        rows.append(row + ([f"{found:.2f}" if found else "–"] if steps else []))
    header = ["problem", *names, "best peer"]
    if steps:
        header.append(f"{steps[0] if len(steps) == 1 else 'best step'} / best peer")
        if len(ratios) > 1:
            mean = f"{statistics.geometric_mean(ratios):.2f}"
            rows.append([f"geometric mean of {len(ratios)}", *([""] * (len(names) + 1)), mean])
    # Whoever is not shown still counts.
    left_out = [name for name in contenders_in(data) if name in rates.PEERS and name not in names]
    others = f" The best peer is that of all that were measured, {', '.join(left_out)} too."
    spread = spread_of(*((runs[0], entry) for entry in rates.contenders_of(runs[0]).values()))
    return f"{heading_of(common, runs)}{spread}.{others if left_out else ''}\n\n{table(header, rows)}"


def group_of(problem: dict[str, Any], by: str | None) -> str:
    """A column of `standing`. by=kind: of the grid `shapes`."""
    if by is None:
        return f"D={problem['head_dim']} {'causal' if problem['causal'] else 'full'}"
    if by != "kind":
        return f"{by}={problem.get(results.FILTERS[by][0])}"
    if problem["batch"] == 1 and problem["num_heads_q"] == problem["num_heads_kv"]:
        return "few heads"
    if problem["seqlen_q"] == problem["seqlen_kv"] <= 512:
        return "short"
    return f"Sq={problem['seqlen_q']}"


def standing(request: Request) -> str:
    """Beside the steps there are two more contenders: what attention() takes, and the fastest step of the run."""
    file, data = request.record()
    beside = request.need("beside")
    names = request.contenders(data, more=["default", "fastest"])
    by = request.left.pop("by", None)
    runs = request.runs(data)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(group_of(run["problem"], by), []).append(run)

    def ratio(run: Run, name: str) -> float | None:
        meant = {"default": run.get("default") or "", "fastest": rates.best_step(run) or ""}
        return rates.ratio_to(run, meant.get(name, name), meant.get(beside, beside))

    rows = []
    for name in names:
        found = {title: [ratio(run, name) for run in group] for title, group in groups.items()}
        ratios = [each for group in found.values() for each in group]
        if None in ratios:
            raise TableError(f"{file}: {name} or {beside} has no time for some problem")
        means = [f"{statistics.geometric_mean(group):.3f}" for group in found.values()]
        rows.append([name, *means, f"{statistics.geometric_mean(ratios):.3f}", f"{min(ratios):.3f}"])
    header = ["× best peer" if beside == "best" else f"× {beside}", *groups, f"all {len(runs)}", "smallest"]
    return f"Geometric means of ratios of medians.\n\n{table(header, rows)}"


def inputs(request: Request) -> str:
    _, data = request.record(backend="cuda")
    names = request.contenders(data)
    runs = request.runs(data)

    def like(run: Run) -> str:  # what the problem is but for its inputs
        return problem_label(run["problem"] | {"inputs": "normal"})

    normal = {like(run): run for run in runs if run["problem"]["inputs"] == "normal"}
    others = [run for run in runs if run["problem"]["inputs"] != "normal"]
    rows = []
    for name in names:
        pairs = [[steps_of(each)[name] for each in (normal[like(run)], run)] for run in others]
        rows.append([name, *(speedup_cell(*pair) for pair in pairs)])
    common, labels = problem_labels(others)
    return f"{common}. Rates over those with normal inputs.\n\n{table(['step', *labels], rows)}"


def without_cache(data: Record, run: Run) -> Run:
    """The same problem with K and V in q's type."""
    wanted = problem_label(run["problem"] | {"cache": None})
    found = [each for each in data["runs"] if problem_label(each["problem"]) == wanted]
    if not found:
        raise TableError(f"its records have no {wanted}, without an FP8 cache")
    return found[0]


def cache(request: Request) -> str:
    _, data = request.record(backend="cuda")
    before, step = request.pair()
    runs = [run for run in request.runs(data) if run["problem"].get("cache")]
    likes = [without_cache(data, run) for run in runs]
    common, labels = problem_labels(likes)
    rows = []
    for run, like, label in zip(runs, likes, labels):
        entries = [steps_of(like)[before], steps_of(run)[step]]
        times = [f"{1e3 * entry['timing']['median_ms']:.1f}" if entry.get("timing") else status_cell(entry) for entry in entries]
        share = rates.percent_of_ceiling(run, entries[1]["timing"], "read_kv") if entries[1].get("timing") else None
        size = f"{kv_bytes(like['problem']) / 1e6:,.0f}"
        cells = [rate_cell(run, entries[1], spread=False), "–" if share is None else f"{share:.0f}"]
        rows.append([label or common, size, *times, speedup_cell(*entries), *cells])
    header = ["problem", "K and V in 16 bits, MB", f"{before}, µs", f"{step}, µs", "×", "TB/s of FP8", "% of read_kv"]
    return f"{common}, L2 cold. {before} has K and V in q's type, and {step} in FP8: median times.\n\n{table(header, rows)}"


def pages(request: Request) -> str:
    """Times, because looking pages up adds about as much to a short call as to a long one."""
    _, data = request.record(backend="cuda")
    _, without = request.record("without", "cuda")
    name = sources.find_step(request.need("step"))
    name = request.left.pop("measured", name)
    runs = request.runs(data)
    sizes = list(dict.fromkeys(run["problem"].get("page_size") for run in runs))
    by_label = {problem_label(run["problem"]): steps_of(run)[name] for run in runs}
    likes = {problem_label(run["problem"] | {"page_size": None}) for run in runs}
    contiguous = [run for run in without["runs"] if problem_label(run["problem"]) in likes]

    def cell(entry: Entry, bare: Entry | None = None) -> str:
        if not entry.get("timing"):
            return status_cell(entry)
        times = [1e3 * entry["timing"][key] for key in ("median_ms", "p10_ms", "p90_ms")]
        return "{:.2f} [{:.2f}–{:.2f}]".format(*times) + (f", {speedup_cell(bare, entry)} ×" if bare else "")

    common, labels = problem_labels(contiguous)
    rows = []
    for run, label in zip(contiguous, labels):
        bare = steps_of(run)[name]
        paged = [by_label.get(problem_label(run["problem"] | {"page_size": size})) for size in sizes]
        cells = [cell(entry, bare) if entry else "not recorded" for entry in paged]
        rows.append([label or common, cell(bare), *cells])
    cold = ", L2 cold" if terabytes(run["problem"], bare) else ""
    header = ["problem", "no pages", *(f"pages of {size}" for size in sizes)]
    return f"{heading_of(common, contiguous)}{name}, µs{cold}: median [p10–p90], and the rate over that without pages.\n\n{table(header, rows)}"


def host_time(request: Request) -> str:
    host = request.record()[1]["host_overhead"]
    entries = {entry["name"]: entry for entry in host["entries"]}
    show = request.show(list(entries)) or list(entries)
    keys = ("median_us", "p10_us", "p90_us")
    rows = [[name, *(f"{entries[name][key]:.1f}" for key in keys)] for name in show]
    heading = f"{problem_label(host['problem'])}, on the host, without waiting for the GPU."
    return f"{heading}\n\n{table(['one call', 'median µs', 'p10', 'p90'], rows)}"


# Counters.


def counted(file: str, data: Record, run: Run, name: str) -> dict[str, float]:
    """What the emulator counted of a step, or what a profile says that the GPU did."""
    entry = steps_of(run)[name]
    is_profile = results.is_profile(data)
    if entry["status"] != "pass" or (not is_profile and entry.get("counters") is None):
        raise TableError(f"{file} has no counters of {name}: {status_cell(entry)}")
    return profiles.of_step(entry) if is_profile else entry["counters"]


def counters(request: Request) -> str:
    records = [request.record(profile=None)]
    on_gpu = results.is_profile(records[0][1])
    if "before" in request.left:
        records.insert(0, request.record(argument="before", profile=True))
    names = request.pair()
    show, filters = request.need("show").split(","), request.filters()
    runs, columns = [], []
    for (file, data), name in zip(records if len(records) == len(names) else records * 2, names):
        runs.append(request.one_run(data, file, filters))
        columns.append(counted(file, data, runs[-1], name))
    if len({problem_label(each["problem"]) for each in runs}) > 1:
        raise TableError("before=: is of another problem, add a filter")
    rows = []
    for key in show:
        cells = [profiles.cell(key, each[key]) if on_gpu else f"{each[key]:,}" for each in columns]
        # A share of another whole before and after: what would their ratio say?
        is_share = on_gpu and profiles.BY_NAME[key].unit == "%"
        cells += ["" if is_share else ratio(columns[1][key], columns[0][key])] if len(names) == 2 else []
        rows.append([key.replace("_", " "), *cells])
    if not on_gpu and any(each["shared_wavefronts_ideal"] for each in columns):
        conflicts = [ratio(each["shared_wavefronts"], each["shared_wavefronts_ideal"]) for each in columns]
        rows.append(["shared wavefronts / ideal", *conflicts, *([""] if len(names) == 2 else [])])
    how = f"Read on {data['provenance']['device']['name']} with Nsight Compute" if on_gpu else "Counted on the emulator"
    heading = f"{problem_labels(runs[:1])[0]}. {how}."
    if any("kernels" in steps_of(run)[name] for run, name in zip(runs, names)) and on_gpu:
        heading += " Percentages are those of the longest kernel of a call."
    return f"{heading}\n\n{table(['counter', *names, *(['×'] if len(names) == 2 else [])], rows)}"


def conformance(request: Request) -> str:
    file, data = request.record(backend="emulator")
    ncu_file, ncu_data = request.record(argument="ncu", profile=True)
    differences = request.show(["differences"])
    filters = request.filters()
    run, ncu_run = request.one_run(data, file, filters), request.one_run(ncu_data, ncu_file, filters)
    labels = [problem_label(each["problem"]) for each in (run, ncu_run)]
    if labels[0] != labels[1]:
        raise TableError(f"{file} is of {labels[0]}, {ncu_file} of {labels[1]}: add a filter")
    rows = []
    for name in (each["step"] for each in ncu_run["steps"] if not sources.has_left(each["step"])):
        emulated, measured = counted(file, data, run, name), counted(ncu_file, ncu_data, ncu_run, name)
        keys = [key for key in COUNTERS if key in profiles.BY_NAME]
        pairs = {key: (emulated.get(key), measured.get(key)) for key in keys}
        # A record that is older than a counter does not have it; what both call 0 says nothing.
        pairs = {key: pair for key, pair in pairs.items() if None not in pair and any(pair)}
        lines = []
        for key, pair in pairs.items():
            lines.append((key, pair, ","))
            if not differences and all(ideal := pairs.get(f"{key}_ideal", (0, 0))):
                lines.append((f"{key} / ideal", (pair[0] / ideal[0], pair[1] / ideal[1]), ".2f"))
        if differences:
            lines = [line for line in lines if line[1][0] != line[1][1]]
            rows.append([name, f"{len(pairs) - len(lines)} of {len(pairs)} counters", "", "", "="])
        for key, pair, form in lines:
            # An exact match is told apart from one that is merely close.
            same = "=" if pair[0] == pair[1] else ratio(pair[1], pair[0])
            rows.append([name, key.replace("_", " "), *(format(value, form) for value in pair), same])
    heading = (
        f"{problem_labels([run])[0]}. Counted on the emulator, and read on "
        f"{ncu_data['provenance']['device']['name']} with Nsight Compute. What both call 0 is left out.\n\n"
    )
    return heading + table(["step", "counter", "emulator", "GPU", "GPU / emulator"], rows, 2)


# The additive law.

PRODUCT = "HMMA"


def instruction_costs(request: Request) -> tuple[Record, Record, str]:
    """The device, the costs, and a line that says where they were measured."""
    name, data = request.record(backend="cuda")
    device, link = data["provenance"]["device"], request.link(f"figures/results/{name}")
    return device, data["instructions"], f"Measured on {device['name']}: [{name}]({link})."


PLACES = ("spread", "together")


def first_and_last(other: Record, place: str, bare: float) -> tuple[float, float]:
    """Clocks that one of the instruction adds: of the fewest, and of those that the fullest round has beyond the
    one before. The three counts do not lie on a line."""
    counts, clocks = other["beside"], other[place]
    return (clocks[0] - bare) / counts[0], (clocks[-1] - clocks[-2]) / (counts[-1] - counts[-2])


def least_added(costs: Record) -> dict[str, float]:
    """Clocks that one of an instruction adds where it adds least. Of all loops, the one without others that is
    fastest is what they are held against: one warp alone does not even keep the products going."""
    found: dict[str, float] = {}
    for place in PLACES:
        bare = min(of_warps[place] for of_warps in costs["warps"])
        for other in (other for of_warps in costs["warps"] for other in of_warps["others"]):
            added = min((clocks - bare) / count for clocks, count in zip(other[place], other["beside"]))
            name = other["instruction"]
            found[name] = max(min(added, found.get(name, added)), 0.0)
    return found


def instructions(request: Request) -> str:
    warps = int(request.need("warps"))
    _, costs, source = instruction_costs(request)
    of_warps = {each["warps"]: each for each in costs["warps"]}[warps]
    rows = []
    for other in of_warps["others"]:
        row = [other["instruction"], str(other["banks"]), ", ".join(map(str, other["beside"]))]
        for place in PLACES:
            row.append(", ".join(f"{clocks:.1f}" for clocks in other[place]))
            row += [f"{each:.1f}" for each in first_and_last(other, place, of_warps[place])]
        rows.append(row)
    header = ["instruction", "banks", "per round"]
    for place in PLACES:
        header += [f"{place}: clocks", "first", "last"]
    bare = " and ".join(f"{of_warps[place]:.1f} ({place})" for place in PLACES)
    heading = f"{warps} warp{'s' * (warps > 1)} a scheduler. Without other instructions a round takes {bare}"
    return f"{heading} clocks. {source}\n\n{table(header, rows)}"


def bound(request: Request) -> str:
    """What was not measured counts as much as a LOP3: most of it is integer work."""
    words = (word.split("=", 1) for word in request.need("loop").split())
    counts = {name: int(count) for name, count in words}
    keys, rows_of_tile, width = (int(request.need(name)) for name in ("keys", "rows", "D"))
    step = sources.find_step(request.need("step"))
    file, ladder = request.record("ladder", "cuda")
    device, costs, source = instruction_costs(request)
    if ladder["provenance"]["device"]["name"] != device["name"]:
        raise TableError(f"{file} is of another GPU than the costs")
    added = least_added(costs)
    clocks = {name: added.get(name, added["LOP3"]) for name in counts}
    clocks[PRODUCT] = min(each["spread"] for each in costs["warps"]) / costs["products_of_round"]
    rows = []
    for name, count in counts.items():
        remark = "" if name in {PRODUCT, *added} else " (as LOP3)"
        rows.append([name, str(count), f"{clocks[name]:.2f}{remark}", f"{count * clocks[name]:.0f}"])
    total = sum(count * clocks[name] for name, count in counts.items())
    rows.append(["**sum**", str(sum(counts.values())), "", f"**{total:.0f}**"])
    schedulers, clock = 4 * device["sm_count"], device["max_sm_clock_mhz"] * 1e6
    tflops = 4 * width * keys * rows_of_tile / total * schedulers * clock / 1e12
    timed = [
        entry["timing"]["tflops"]
        for run in ladder["runs"]
        for entry in run["steps"]
        if run["problem"]["head_dim"] == width and entry["step"] == step and entry.get("timing")
    ]
    if max(timed, default=0) > tflops:
        raise TableError(f"the bound is {rate(tflops)} TFLOPS, but {step} reaches {rate(max(timed))}: it is none")
    share = 100 * counts[PRODUCT] * clocks[PRODUCT] / total
    text = f"At the maximum clock, {device['max_sm_clock_mhz']:.0f} MHz: {rate(tflops)} TFLOPS at most, "
    text += f"{share:.0f} % of what the products alone allow. "
    if timed:
        text += f"{step} reaches {rate(max(timed))}, {100 * max(timed) / tflops:.0f} % of the bound. {source}"
    else:
        text += f"{file} has no rate of {step}. {source}"
    return f"{table(['instruction', 'in the loop', 'clocks of one', 'clocks'], rows)}\n{text}\n"


# Where numbers come from.


def ring(request: Request) -> str:
    found = request.record()[1]["ring"]
    known = dict.fromkeys(entry["name"] for each in found["problems"] for entry in each["contenders"])
    known = [name for name in known if name not in ("share", "local")]  # local: of the process's own rows alone
    shown = request.show(known) or known
    rows = []
    for each in found["problems"]:
        ms = {entry["name"]: entry["median_ms"] for entry in each["contenders"]}
        whole, own = (rates.ring_problem(found, each, is_whole) for is_whole in (True, False))
        traced = each.get("trace")
        row = [f"{each['tokens']:,}", str(each["num_heads_kv"]), rate(rates.tflops_at(whole, ms["share"]))]
        row += [f"{ms['share'] / ms[name]:.3f}" if name in ms else "–" for name in shown]
        row += [f"{kv_bytes(own) / each['transfer']['median_ms'] / 1e6:.0f}"]
        rows.append([*row, f"{100 * traced['overlapped']:.0f} %" if traced else "–"])
    first = found["problems"][0]
    nccl = f", NCCL {found['nccl']}" if found.get("nccl") else ""
    heading = f"{found['processes']} GPUs, PyTorch {found['torch']}{nccl}. H={first['num_heads_q']} D={first['head_dim']} "
    heading += "bf16 causal, zigzag. Medians; rates over the GPUs' work without transfers."
    header = ["tokens per GPU", "KV heads", "TFLOPS without transfers", *shown, "GB/s", "overlapped"]
    return f"{heading}\n\n{table(header, rows, 0)}"


def ring_trace(request: Request) -> str:
    problem = request.record()[1]["ring"]["problems"][int(request.need("problem")) - 1]
    lanes = problem["trace"]["timeline_us"]
    columns, last = 90, max(end for spans in lanes.values() for _, end in spans)
    lines = []
    for lane in ("step", "transfer", "other"):
        bar = [" "] * columns
        for begin, end in lanes.get(lane, []):
            if end - begin >= last / columns:  # not the kernels of a microsecond
                first, after = (round(time / last * columns) for time in (begin, end))
                bar[first:after] = "█" * (after - first)
        lines.append(f"    {lane:8} |{''.join(bar)}|")
    about = f"{problem['tokens']:,} tokens per GPU, {problem['num_heads_kv']} KV heads: {last:.0f} µs of one GPU."
    return f"{about}\n\n" + "\n".join(lines) + "\n"


def provenance(request: Request) -> str:
    file, data = request.record(profile=None)
    origin, device = data["provenance"], data["provenance"]["device"]
    if origin["backend"] == "emulator":
        where = f" on {device['host_cpu']}" if device.get("host_cpu") else ""
        parts = [f"emulator{where}", "counts, not times"]
    else:
        cuda = f"CUDA {device['cuda_runtime']} (nvcc {origin['build']['nvcc']})"
        parts = [device["name"], f"driver {device['driver']}", cuda]
        versions = origin.get("peers") or {}
        parts += [f"{text} {versions[key]}" for key, text in PACKAGES.items() if versions.get(key)]
        parts += [f"Nsight Compute {origin['ncu']}"] if "ncu" in origin else []
        timings = [step.get("timing") or {} for run in data["runs"] for step in run["steps"]]
        if clocks := [timing["sm_clock_mhz"] for timing in timings if timing.get("sm_clock_mhz")]:
            span = "–".join(dict.fromkeys(f"{clock:.0f}" for clock in (min(clocks), max(clocks))))
            highest = device.get("max_sm_clock_mhz")
            parts.append(f"SM clock {span} MHz while timing" + (f" (maximum {highest:.0f})" if highest else ""))
    parts += [f"commit {(origin['commit'] or 'unknown')[:12]}", origin["date"][:10]]
    return f"Measured on: {', '.join(parts)}. Record: [{file}]({request.link(f'figures/results/{file}')}).\n"


# How long it takes.

READERS = re.compile(r"^This step is for readers who ([^.]+(?:\.\w[^.]*)*)\.$", re.MULTILINE)  # in side steps' lessons
REFERENCE = "\n## Reference\n"  # the rest of a chapter is to look up
WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_AN_EDIT = 100, 10, 5
# A reader opens prediction and result, but the answers of the quiz only if stuck.
NOT_READ = re.compile(
    r"^<!-- generated: (?!try_it ).*?^<!-- /generated -->|<!-- prints: .*?-->|^```.*?^```"
    r"|^<details>\n<summary>(?!Our prediction|The result).*?^</details>",
    re.DOTALL | re.M,
)


def minutes(text: str, lines: int = 0) -> float:
    """Of a page's words, lines of code and edits to try."""
    text = NOT_READ.sub("", text)
    edits = re.findall(r"^\d+\. ", text.partition("\n## 6. Try it")[2], re.MULTILINE)
    return len(text.split()) / WORDS_A_MINUTE + lines / LINES_A_MINUTE + len(edits) * MINUTES_AN_EDIT


def minutes_of_lesson(step: str) -> float:
    if before := sources.after(step):
        _, lines, _ = step_diff.diff(before, step, brief=True)
    else:
        lines = len(sources.kernel_lines(step))
    return minutes(sources.lesson(step).read_text(encoding="utf-8"), lines)


def minutes_of_chapter(link: str) -> float:
    """Of the section that the link names, or of the chapter up to what is only to look up."""
    page, _, anchor = link.partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for section in re.split(r"\n#+ ", text) if anchor else []:
        if re.sub(r"[^\w -]", "", section.partition("\n")[0].lower()).replace(" ", "-") == anchor:
            return minutes(section)
    return minutes(text.partition(REFERENCE)[0])


def try_it(request: Request) -> str:
    step = sources.find_step(request.need("step"))
    link = request.link(variants.page_of(step))
    text = variants.introduction(step, "Try it")
    return f"{text}\n\n[variants.md]({link}#try-it) shows each edit as a diff, and what comes of it.\n"


def code(request: Request) -> str:
    text = (ROOT / request.need("file")).read_text(encoding="utf-8")
    name = request.need("function")
    found = re.search(rf"^[^\n]*\b{name}\(.*?^}}\n", text, re.DOTALL | re.MULTILINE)
    if not found:
        raise TableError(f"there is no function {name}")
    return f"```cpp\n{found[0]}```\n"


# The gallery of races.


def lines_to_show(name: str) -> str:
    """A program's two accesses and its mend, with the numbers of their lines."""
    lines = (races.FOLDER / f"{name}.cu").read_text(encoding="utf-8").splitlines()
    begin, end = lines.index("#ifdef MENDED") + 1, lines.index("#endif") + 1
    found = {*range(begin, end + 1)}
    for constant in re.findall(r"constexpr int (\w+)", "\n".join(lines[begin:end])):
        found |= {number for number, line in enumerate(lines, start=1) if re.search(rf"\b{constant}\b", line)}
    for number in races.two_lines(name):  # to the end of the statement
        while not lines[number - 1].split("  //")[0].endswith(";"):
            found.add(number)
            number += 1
        found.add(number)
    shown = sorted(found)
    texts = []
    for before, number in zip([shown[0] - 1, *shown], shown):
        texts += [] if number == before + 1 else ["   ⋮"]
        texts.append(f"{number:4}  {lines[number - 1]}".rstrip())
    return "\n".join(texts)


def of_a_tool(said: Record) -> str:
    """3 hazards (1 error, 2 warnings), in lines 12 and 14"""
    text = re.sub(r"^\w+ SUMMARY: | displayed| \(0 errors, 0 warnings\)", "", said["summary"])
    numbers = [str(line) for line in said["lines"]]
    listed = ", ".join(numbers[:-1]) + (" and " if numbers[1:] else "") + numbers[-1] if numbers else ""
    return text + (f", in line{'s' if numbers[1:] else ''} {listed}" if numbers else "")


def how_often(plain: Record) -> str:
    """3 of 30 runs"""
    return f"{plain['runs'] - plain['outcomes'].get('ok', 0)} of {plain['runs']} runs"


def worst(plain: Record) -> str:
    """, at most 128 of 1,024 elements; 1 hangs"""
    counts = [re.findall(r"\d+", text) for text in plain["outcomes"] if text.startswith("wrong")]
    parts = []
    if counts:
        most, of = max((int(bad), int(of)) for bad, of in counts)
        parts.append(f"at most {most:,} of {of:,} elements")
    others = [each for each in plain["outcomes"].items() if not each[0].startswith(("ok", "wrong"))]
    parts += [f"{text}: {runs} of them" for text, runs in others]
    return f" ({'; '.join(parts)})" if parts else ""


def race(request: Request) -> str:
    name = request.need("program")
    report = races.recorded("emulator")["programs"][name]
    wrapped = textwrap.fill(f"flashsteps: finding 1: {report}" if report else "ok", 118, break_on_hyphens=False)
    text = f"In [{name}.cu]({request.link(f'docs/races/{name}.cu')}):\n\n"
    text += f"```\n{lines_to_show(name)}\n```\n\nThe emulator says:\n\n```\n{wrapped}\n```\n"
    found = races.recorded("gpu")
    if name not in found.get("programs", {}):
        return text
    bug, mended = (found["programs"][name][twin] for twin in ("bug", "mended"))
    text += f"\n- On an {found['provenance']['gpu']}, {how_often(bug['plain'])} are wrong{worst(bug['plain'])}.\n"
    text += f"- racecheck: {of_a_tool(bug['racecheck'])}.\n"
    for tool in ("memcheck", "synccheck"):
        if bug[tool]["summary"] != "ERROR SUMMARY: 0 errors":
            text += f"- {tool}: {of_a_tool(bug[tool])}.\n"
    text += f"- Mended: {how_often(mended['plain'])} are wrong; racecheck: {of_a_tool(mended['racecheck'])}.\n"
    return text


def races_table(request: Request) -> str:
    found = races.recorded("gpu")
    rows = []
    for name, report in races.recorded("emulator")["programs"].items():
        named = ("the line", "both lines")[len(races.two_lines(name)) - 1] if report else "nothing"
        cells = [f"[{name}]({request.link(f'docs/races/{name}.cu')})", named]
        if each := found.get("programs", {}).get(name):
            cells += [of_a_tool(each["bug"]["racecheck"]), of_a_tool(each["mended"]["racecheck"])]
            cells += [how_often(each["bug"]["plain"]), how_often(each["mended"]["plain"])]
        rows.append(cells)
    header = ["program", "the emulator names", "racecheck", "racecheck, mended", "wrong", "wrong, mended"]
    if not found:
        return table(header[:2], rows, 2)
    origin = found["provenance"]
    where = f"{origin['gpu']}, driver {origin['driver']}, nvcc {origin['nvcc']}, compute-sanitizer {origin['sanitizer']}"
    record = f"[gpu.json]({request.link('docs/races/gpu.json')})"
    return f"{table(header, rows, 4)}\nMeasured on: {where}. Record: {record}.\n"


def place(request: Request) -> str:
    name = sources.find_step(request.need("step"))

    def link(step: str) -> str:
        number = step.partition("_")[0]
        return f"**{number}**" if step == name else f"[{number}]({request.link(f'steps/{step}/README.md')})"

    for heading, steps in sources.evenings().items():
        if name in steps:
            return f"*{heading.partition(':')[0]}:* {' → '.join(map(link, steps))}\n"
    text = f"*A side step.* A table has [what it gains]({request.link('docs/README.md')}#side-steps)."
    steps = sources.all_steps()
    next_ = [step for step in sources.main_path() if steps.index(step) > steps.index(name)]
    return text + (f" The main path goes on with {link(next_[0])}.\n" if next_ else "\n")


def earlier_steps(step: str | None) -> Iterator[str]:
    """The step that this one comes from, the one that that one comes from, and so on."""
    while step and (step := sources.after(step)):
        yield step


def side_steps(request: Request) -> str:
    records = []
    for name in request.need("file").split(","):
        request.left["file"] = name
        records.append(request.record(backend="cuda"))
    rows = []
    for step in sources.side_steps():
        whom = READERS.search(sources.lesson(step).read_text(encoding="utf-8"))
        if not whom:
            raise TableError(f"{step}'s lesson does not say 'This step is for readers who ...'")
        before = sources.after(step)
        for file, data in records:
            # A step that computes in FP8 alone may stand beside one in bf16: the one before it, or the run's only one.
            # Or beside one that came earlier, where the one before takes no such problems.
            measured = dict.fromkeys(name for run in data["runs"] for name in steps_of(run))
            in_bf16 = (name for name in measured if name.endswith(":bf16"))
            others = [before, f"{before}:bf16", *in_bf16, *earlier_steps(before)]
            other = next((name for name in others if name in measured), before)
            # And one with K and V in FP8 beside one that has them in q's type.
            olds = [without_cache(data, run) if run["problem"].get("cache") else run for run in data["runs"]]
            entries = [(steps_of(old).get(other), steps_of(new).get(step)) for old, new in zip(olds, data["runs"])]
            times = [[(entry or {}).get("timing") for entry in pair] for pair in entries]
            gains = sorted(old["median_ms"] / new["median_ms"] for old, new in times if old and new)
            if gains:
                gain = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (gains[0], gains[-1])))
                name = other.partition("_")[0] + (" in bf16" if other.endswith(":bf16") else "")
                gain = f"[{gain} × {name}]({request.link(f'figures/results/{file}')})"
                break
        else:
            gain = "not recorded yet"
        link = request.link(f"steps/{step}/README.md")
        rows.append([f"[{step.partition('_')[0]}]({link})", " ".join(whom[1].split()), gain])
    return table(["step", "for readers who", "its rate, over all problems of a run"], rows, 2)


def path(request: Request) -> str:
    rows, known, total = [], set(), [0.0, 0.0]
    for heading, steps in [*sources.evenings().items(), ("Side steps", {step: [] for step in sources.side_steps()})]:
        needed = dict.fromkeys(link for links in steps.values() for link in links)
        spent = [
            sum(map(minutes_of_lesson, steps)),
            sum(minutes_of_chapter(link) for link in needed if link not in known),
        ]
        rows.append([heading, *(f"{each / 60:.1f}" for each in (*spent, sum(spent)))])
        known |= set(needed)
        total = [a + b for a, b in zip(total, spent)]
    rows.append(["**all**", *(f"**{each / 60:.0f}**" for each in (*total, sum(total)))])
    rule = f"An estimate, not a measurement: {WORDS_A_MINUTE} words a minute, {LINES_A_MINUTE} new lines of code a "
    rule += f"minute, and {MINUTES_AN_EDIT} minutes\nfor each edit to try."
    return f"{rule}\n\n{table(['hours', 'lessons', 'chapters before them', 'together'], rows, 1)}"


KINDS = {
    kind.__name__: kind
    for kind in (
        *(ladder, step, counters, conformance, ablation, peers, host_time, standing, inputs, cache, pages),
        *(instructions, bound, ring, ring_trace, provenance, code, race, races_table, try_it, place, side_steps, path),
    )
}


def generate(kind: str, request: Request) -> str:
    try:
        text = KINDS[kind](request)
    except LookupError as error:
        raise TableError(f"its records have no {error}") from error
    except (ResultsError, StepError, OSError, ValueError) as error:
        raise TableError(str(error)) from error
    if request.left:
        raise TableError(f"does not know {', '.join(request.left)}")
    return text
