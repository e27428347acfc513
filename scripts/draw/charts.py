"""The charts of recorded runs, and of the user's own. Each takes records that records/results.py has checked.

A kind draws the problems that were chosen of its records into one figure. It types no number: what it shows is in
the records, or follows from them. Of rates there is a panel for each part of the ladder, on a scale of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from draw import figure_style
from draw.figure_style import BACKGROUND, BAR, BEFORE, CEILING, IDEAL, INK, MUTED, ROW, TEXT, TITLE
from draw.figure_style import finish, label_line, log_scale, panels, place_rows, say, say_gap, style_axes
from draw.sheet import Sheet
from records.problems import flops, problem_label, problem_labels
from records.profiles import SCHEMA as PROFILE_SCHEMA
from records.rates import ceiling_rate, contenders_of, rate, terabytes, tflops_spread
from records.results import ResultsError
from steps import sources

Record = dict[str, Any]
Run = dict[str, Any]
Entry = dict[str, Any]  # a step of a run, or a peer

FAR_OFF = 2.7  # a line this many times beyond the longest bar would flatten all of them: it is told, not drawn
LOG_FROM = 50.0  # counters that span more than this factor are drawn on a log scale
MOST_LINES = 6  # in a chart with a line for each step; of more, the last step of each part has one
SECTOR = 32  # bytes
WAVEFRONT = 32 * 4  # bytes: what the banks of shared memory pass in a clock, on every SM
COUNTED = {
    "shared_wavefronts": "Shared memory: wavefronts,\nand × ideal (orange)",
    "global_sectors": "Global memory:\nsectors of 32 bytes",
    "shuffles": "Shuffles: a register\nfrom lane to lane",
}
# Of the lines that bars are held against: in words, and at the line itself.
CEILINGS = {"matmul": ("measured matmul", "matmul"), "mma_sync": ("mma.sync alone", "mma.sync")}
READS = {"read_kv": ("reads alone", "reads alone")}  # where it is K and V that count
THREAD = re.compile(r"block \([\d, ]*\)( warp \d+)?( lane \d+)?: ")  # before what the emulator says of it


@dataclass(frozen=True)
class Source:
    """A record, and those of its problems that are to be drawn."""

    file: str
    data: Record
    runs: list[Run]


@dataclass(frozen=True)
class Part:
    """Of the ladder: its steps, after the last one of the part before, which says where it begins."""

    name: str
    before: str | None
    steps: list[str]

    def names(self) -> list[str]:
        return [self.before, *self.steps] if self.before else self.steps

    def rows(self) -> dict[str, bool]:
        return dict.fromkeys(self.names(), False)


# What records say.


def plain(text: str) -> str:
    """Text from a file: a dollar sign is no mathematics, and XML has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")


def label_of(run: Run) -> str:
    return plain(problem_labels([run])[0])


def step_names(runs: list[Run]) -> list[str]:
    """Every step of any of the runs, in the order of the file."""
    return list(dict.fromkeys(step["step"] for run in runs for step in run["steps"]))


def step_of(run: Run, name: str) -> Entry | None:
    return next((step for step in run["steps"] if step["step"] == name), None)


def peers_of(run: Run) -> dict[str, Entry]:
    """The peers that charts show: the fast ones."""
    return {p["peer"]: p for p in run.get("peers") or [] if p["peer"] in figure_style.PEERS}


def part_of(name: str, runs: list[Run]) -> str:
    """Records that are older than parts do not say it; then the step's source does."""
    said = [step.get("part") for run in runs if (step := step_of(run, name))]
    return next(filter(None, said), None) or sources.part(name) or "others"


def parts_of(runs: list[Run]) -> list[Part]:
    parts: dict[str, Part] = {}
    before = None
    for name in step_names(runs):
        part = part_of(name, runs)
        parts.setdefault(part, Part(part, before, [])).steps.append(name)
        before = name
    return list(parts.values())


def rows_of(runs: list[Run]) -> dict[str, bool]:
    """All steps. With several parts, each begins with its name as a heading, which is true."""
    parts = parts_of(runs)
    rows = {}
    for part in parts:
        rows |= ({part.name: True} if len(parts) > 1 else {}) | dict.fromkeys(part.steps, False)
    return rows


def status_word(status: str) -> str:
    """As the program's tables, the lessons and docs/debugging.md have it."""
    return "hang" if status == "timeout" else status


def why_missing(entry: Entry | None) -> str:
    if entry is None:
        return "not run"
    reason = THREAD.sub("", entry["message"].strip().split("\n")[0], count=1)
    return ": ".join(text for text in (status_word(entry["status"]), reason) if text)


def origin_of(data: Record) -> str:
    origin = data["provenance"]
    commit = (origin.get("commit") or "unknown")[:12]
    return f"commit {commit}" + (" with uncommitted changes" if origin.get("dirty") else "")


def device_of(data: Record) -> str:
    on_gpu = data["provenance"]["backend"] == "cuda"
    return plain(data["provenance"]["device"]["name"]) if on_gpu else "the CPU emulator"


def filled_rows(
    axes: Any, rows: dict[str, bool], values: dict[str, Any], why: Callable[[str], str]
) -> Iterator[tuple[int, str, Any]]:
    """The number, step and value of rows that have one. Another step keeps its place and says why it has none."""
    place_rows(axes, rows)
    for row, (name, is_heading) in enumerate(rows.items()):
        if values.get(name) is not None:
            yield row, name, values[name]
        elif not is_heading:
            say_gap(axes, row, plain(why(name)))


# The ladder of a run on a GPU: a bar a step, a panel for each part and problem.


@dataclass(frozen=True)
class Line:
    """What the bars of a problem are to be compared with."""

    words: str
    brief: str  # at its end
    rate: float
    spread: tuple[float, float]
    colour: str
    dashes: Any = "-"


def ceiling_of(run: Run, key: str, records: list[Source]) -> Entry | None:
    """A ceiling of the first record with one, best of the same problem. How fast K and V can be read depends on the
    problem, and nothing else will do."""
    if key in READS:
        return (run.get("ceilings") or {}).get(key)
    for source in records:
        found = [own for own in source.runs if (own.get("ceilings") or {}).get(key)]
        found.sort(key=lambda own: problem_label(own["problem"]) != problem_label(run["problem"]))
        if found:
            return found[0]["ceilings"][key]
    return None


def scale_of(run: Run) -> float | None:
    """What takes TFLOPS to TB/s of K and V, if these count."""
    of_memory = (terabytes(run["problem"], entry) for entry in contenders_of(run).values())
    return next(filter(None, of_memory), None)


def ceilings_of(run: Run) -> dict[str, tuple[str, str]]:
    return READS if scale_of(run) else CEILINGS


def rates_of(timing: dict[str, float], run: Run) -> tuple[float, float, float]:
    """p10, median and p90, in the unit of the run."""
    middle, low, high = (each * (scale_of(run) or 1) for each in tflops_spread(run["problem"], timing))
    return low, middle, high


def written(value: float, run: Run) -> str:
    return f"{value:.2f}" if scale_of(run) else rate(value)


def lines_of(run: Run, records: list[Source]) -> list[Line]:
    lines = []
    for name, peer in peers_of(run).items():
        words, colour, dashes = figure_style.PEERS[name]
        if peer.get("timing"):
            low, middle, high = rates_of(peer["timing"], run)
            brief = words.replace("FlashAttention-", "FA")
            lines.append(Line(words, brief, middle, (low, high), colour, dashes))
    for key, (words, label) in ceilings_of(run).items():
        if found := ceiling_of(run, key, records):
            middle = ceiling_rate(found)
            lines.append(Line(words, label, middle, (middle, middle), CEILING))
    return lines


def draw_bars(axes: Any, run: Run, part: Part) -> float:
    """The highest rate of any."""
    top = 0.0
    timings = {step["step"]: step.get("timing") for step in run["steps"]}
    for row, name, timing in filled_rows(axes, part.rows(), timings, lambda name: why_missing(step_of(run, name))):
        low, middle, high = rates_of(timing, run)
        axes.barh(row, middle, height=0.66, color=BEFORE if name == part.before else BAR)
        # Rounding in the file may put a percentile on the wrong side of the median by a hair.
        spread = [[max(middle - low, 0)], [max(high - middle, 0)]]
        axes.errorbar(middle, row, xerr=spread, color=INK, capsize=2.5, linewidth=1)
        say(axes, row, written(middle, run), right_of=max(middle, high))
        top = max(top, high)
    for label in axes.get_yticklabels()[: 1 if part.before else 0]:
        label.set_color(MUTED)
    return top


def draw_part(row: Any, titles: list[str], part: Part, records: list[Source]) -> dict[str, list[float]]:
    """A panel a problem. Returns the lines that are too far off to be drawn, and their rates."""
    runs = records[0].runs
    top = max(draw_bars(axes, run, part) for axes, run in zip(row, runs))
    lines = [lines_of(run, records) for run in runs]
    rates: dict[str, list[float]] = {}
    for line in sum(lines, []):
        rates.setdefault(line.words, []).append(line.rate)
    # The same ones for all problems, or one panel would seem to lack some.
    far = {words: values for words, values in rates.items() if max(values) > FAR_OFF * top}
    near = [value for words, values in rates.items() if words not in far for value in values]
    row[0].set_xlim(0, max([1.15 * top, *(1.06 * value for value in near)]) or 1)
    for axes, run, own, title in zip(row, runs, lines, titles):
        for line in own:
            if line.words not in far:
                axes.axvspan(*line.spread, color=line.colour, alpha=0.18, linewidth=0)
                axes.axvline(line.rate, color=line.colour, linewidth=1.4, linestyle=line.dashes, zorder=1.5)
                label_line(axes, line.rate, f"{line.brief}\n{written(line.rate, run)}", line.colour, upright=True)
        style_axes(axes, title, "x", pad=30 if near else 6)
        axes.set_xlabel("TB/s of K and V, L2 cold" if scale_of(run) else "TFLOPS", fontsize=TEXT)
    return far


def progression(records: list[Source]) -> Any:
    """The ladder: rates of a run on a GPU, or counters of one on the emulator. The problems are columns, the ladder's
    parts are rows."""
    data, runs = records[0].data, records[0].runs
    if data["provenance"]["backend"] != "cuda":
        return counters(records)
    parts = parts_of(runs)
    names = [name for each in parts for name in each.steps]
    if not any((step_of(run, name) or {}).get("timing") for run in runs for name in names):
        raise ResultsError("no step has timing, so there is nothing to draw")
    timed = [run for run in runs if any(entry.get("timing") for entry in contenders_of(run).values())]
    if len({scale_of(run) is None for run in timed}) > 1:
        raise ResultsError("rates of K and V do not share an axis with TFLOPS")
    heights = [ROW * len(each.names()) + 0.9 for each in parts]
    shared = {"sharex": "row", "sharey": "row", "height_ratios": heights}
    figure, grid = panels(len(parts), len(runs), 1.15 + sum(heights), **shared)
    off_scale: dict[str, list[float]] = {}
    for row, each in zip(grid, parts):
        titles = [label_of(run) for run in runs]
        if len(parts) > 1:
            titles = [each.name] if len(runs) == 1 else [f"{each.name}\n{title}" for title in titles]
        off_scale |= draw_part(row, titles, each, records)
    device = device_of(data)
    any_near = any(hasattr(axes, "line_labels") for axes in figure.axes)
    notes = [*notes_on_lines(records, off_scale, any_near), f"{device}, {origin_of(data)}."]
    if any(each.before for each in parts):
        notes[0] += " Grey: the last step of the part before."
    if len(parts) > 1 and len(runs) == 1:
        notes[-1] += f" {label_of(runs[0])}."
    return finish(figure, f"FlashSteps: one idea a step, on {device}", notes)


def notes_on_lines(records: list[Source], off_scale: dict[str, list[float]], any_near: bool) -> list[str]:
    runs = records[0].runs
    notes = ["Bars: median; whiskers: p10 to p90."]
    if any(run.get("peers") for run in runs):
        notes[0] += " Dashed: other people's kernels (FA2: FlashAttention-2)." if any_near else ""
        notes[0] += " All of one interleaved run."
    peak = (records[0].data["provenance"]["device"].get("peak_tflops") or {}).get(runs[0]["problem"]["dtype"])
    if peak and not scale_of(runs[0]):  # nobody has seen a kernel come near, so it is only told
        off_scale = off_scale | {"dense tensor peak at the maximum clock": [peak]}
    told = [
        f"{words} {' and '.join(dict.fromkeys(written(each, runs[0]) for each in all_of))}"
        for words, all_of in off_scale.items()
    ]
    notes += [f"Off the scale, where not drawn: {', '.join(told)}."] if told else []
    whats: dict[str, list[str]] = {}  # of a line, what the problems' records say
    for run in runs:
        for name, peer in peers_of(run).items():
            if not peer.get("timing"):
                whats.setdefault(figure_style.PEERS[name][0], []).append(why_missing(peer))
        for key, (words, _) in ceilings_of(run).items():
            if found := ceiling_of(run, key, records):
                whats.setdefault(words, []).append(found["what"])
    said = [f"{words}: {' and '.join(dict.fromkeys(what))}" for words, what in whats.items()]
    return notes + ([plain("; ".join(said)) + "."] if said else [])


# The emulator's counters.


def sectors_through_tma(values: dict[str, int]) -> int:
    return (values.get("tma_load_bytes", 0) + values.get("tma_store_bytes", 0)) // SECTOR


def short(count: float) -> str:
    """Three digits."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:
            digits = 2 if count < 9.995 * unit else 1 if count < 99.95 * unit else 0
            return f"{count / unit:.{digits}f}{letter}"
    return f"{count:g}"


def draw_counter(axes: Any, run: Run, rows: dict[str, bool], key: str, title: str) -> None:
    values = {step["step"]: step["counters"] for step in run["steps"] if step.get("counters") is not None}
    beside = {
        "shared_wavefronts": lambda counted: counted["shared_wavefronts_ideal"],
        "global_sectors": sectors_through_tma,
    }.get(key, lambda counted: 0)
    seen = [n for counted in values.values() for n in (counted[key], beside(counted)) if n > 0]
    use_log = bool(seen) and max(seen) > LOG_FROM * min(seen)
    if use_log:
        axes.set_xscale("log")
        axes.set_xlim(min(seen) / 3, max(seen) * (max(seen) / min(seen)) ** 0.8)
    else:
        axes.set_xlim(0, 1.75 * max(seen, default=1))
    for row, name, counts in filled_rows(axes, rows, values, lambda name: why_missing(step_of(run, name))):
        counted, other, status = counts[key], beside(counts), step_of(run, name)["status"]
        wrong = status != "pass"
        colour = CEILING if wrong else BAR
        text, end = short(counted), counted
        if key == "shared_wavefronts" and other > 0:
            axes.barh(row - 0.18, counted, height=0.34, color=colour)
            axes.barh(row + 0.18, other, height=0.34, color=IDEAL)
            text += f", {counted / other:.2f} ×"
        elif counted > 0:
            axes.barh(row, counted, height=0.66, color=colour)
        if key == "global_sectors" and other > 0:
            how = {"facecolor": "none", "edgecolor": colour, "hatch": "////", "linewidth": 0.8}
            axes.barh(row, other, left=counted, height=0.66, **how)
            text += f" + {short(other)}"
            end += other
        if wrong:
            text += f", {status_word(status)}"
        say(axes, row, text, right_of=end or None)
    style_axes(axes, title, "x")
    axes.set_xlabel("log scale" if use_log else "", fontsize=TEXT)
    axes.set_xticks([])  # every bar has its number
    axes.minorticks_off()


def counters(records: list[Source]) -> Any:
    """What the emulator counted of a problem: a panel a counter."""
    data, [run] = records[0].data, records[0].runs
    counted = [step for step in run["steps"] if step.get("counters")]
    if not counted:
        raise ResultsError("no step has counters, so there is nothing to draw")
    rows = rows_of([run])
    figure, [row] = panels(1, len(COUNTED), 1.65 + ROW * len(rows), sharey="row")
    for axes, (key, title) in zip(row, COUNTED.items()):
        draw_counter(axes, run, rows, key, title)
    notes = [f"{label_of(run)}. CPU emulator, {origin_of(data)}. Lower is less work; this is no timing model."]
    notes.append("Ideal: without bank conflicts.")
    if any(sectors_through_tma(step["counters"]) for step in counted):
        notes[-1] += " Hatched: as many bytes through TMA, which are no sectors."
    if any(step["status"] != "pass" for step in counted):
        notes[-1] += " Red: what a step counted whose result is wrong."
    return finish(figure, "FlashSteps: emulator counts, not times", notes)


# Rates by sequence length: a line a step.


def draw_lengths(axes: Any, runs: list[Run], names: list[str], lengths: list[int]) -> list[str]:
    """What is missing."""
    by_length = {run["problem"]["seqlen_q"]: run for run in runs}
    missing = []

    def line(find: Callable[[Run], Entry | None], words: str, brief: str, colour: Any, **how: Any) -> None:
        found = {length: find(run) for length, run in by_length.items()}
        timings = [(found.get(length) or {}).get("timing") for length in lengths]
        for length, timing in zip(lengths, timings):
            if timing is None and length in by_length:
                missing.append(f"{words} at {length} ({why_missing(found[length])})")
        values = [timing["tflops"] if timing else float("nan") for timing in timings]
        known = [value for value in values if value == value]
        if known:
            axes.plot(range(len(lengths)), values, color=colour, marker="o", markersize=3.2, **how)
            label_line(axes, known[-1], brief, colour, weight="bold" if how["linewidth"] > 2 else "normal")

    for name, colour in zip(names, figure_style.step_colours(len(names))):
        width = 2.2 if name == names[-1] else 1.5
        line(lambda run: step_of(run, name), name, name.split("_")[0], colour, linewidth=width)
    for name in dict.fromkeys(name for run in runs for name in peers_of(run)):
        words, colour, dashes = figure_style.PEERS[name]
        brief = words.replace("FlashAttention-", "FA")
        line(lambda run: peers_of(run).get(name), words, brief, colour, linewidth=1.6, linestyle=dashes)
    return missing


def lengths(records: list[Source]) -> Any:
    """TFLOPS by sequence length: a panel for each head dimension and mask."""
    data, runs = records[0].data, records[0].runs
    names = step_names(runs)
    if is_choice := len(names) > MOST_LINES:
        names = [part.steps[-1] for part in parts_of(runs)]
    all_lengths = sorted({run["problem"]["seqlen_q"] for run in runs})
    heads = sorted({run["problem"]["head_dim"] for run in runs})
    masks = sorted({run["problem"]["causal"] for run in runs})
    entries = [each for run in runs for each in (*(step_of(run, name) for name in names), *peers_of(run).values())]
    rates = [entry["timing"]["tflops"] for entry in entries if entry and entry.get("timing")]
    if not rates:
        raise ResultsError("no step has timing, so there is nothing to draw")
    figure, grid = panels(len(heads), len(masks), 1.0 + 2.6 * len(heads), sharex=True, sharey=True)
    missing = []
    for row, head_dim in zip(grid, heads):
        for axes, causal in zip(row, masks):
            problems = [(run["problem"]["head_dim"], run["problem"]["causal"]) for run in runs]
            own = [run for run, problem in zip(runs, problems) if problem == (head_dim, causal)]
            title = f"D = {head_dim}, {'causal' if causal else 'full'}"
            if len({run["problem"]["seqlen_q"] for run in own}) < len(own):
                raise ResultsError(f"several problems of {title} have the same length: add a filter")
            missing += [f"{title}: {text}" for text in draw_lengths(axes, own, names, all_lengths)]
            log_scale(axes, "y", min(rates) / 1.25, max(rates) * 1.25)
            axes.set_xticks(range(len(all_lengths)), [str(length) for length in all_lengths])
            axes.set_xlim(-0.25, len(all_lengths) - 1 + 0.1)
            style_axes(axes, title, "y")
            axes.set_ylabel("TFLOPS, log scale" if axes is row[0] else "", fontsize=TEXT)
            axes.set_xlabel("sequence length" if row is grid[-1] else "", fontsize=TEXT)
    tokens = {run["problem"]["batch"] * run["problem"]["seqlen_q"] for run in runs}
    types = ", ".join(dict.fromkeys(run["problem"]["dtype"] for run in runs))
    what = "The last step of each part of the ladder" if is_choice else "Steps"
    note = f"{what}: {', '.join(names)}. Medians, {types}"
    notes = [plain(note) + (f", batch × length = {tokens.pop():,}." if len(tokens) == 1 else ".")]
    if any(run.get("peers") for run in runs):
        notes.append("Dashed: other people's kernels (FA2: FlashAttention-2), of the same interleaved run.")
    if missing:
        notes.append(f"Not there: {plain('; '.join(missing))}.")
    device = device_of(data)
    return finish(figure, f"FlashSteps by sequence length, on {device}", [*notes, f"{device}, {origin_of(data)}."])


# How far from the reference, and how far that may be.


def draw_errors(axes: Any, runs: list[Run], rows: dict[str, bool], title: str) -> None:
    judged = [step["validation"] for run in runs for step in run["steps"] if step.get("validation")]
    keys = ("nrmse", "worst_row_nrmse", "gate_nrmse", "gate_row")
    seen = [value for validation in judged for key in keys if (value := validation.get(key))]
    low, high = min(seen, default=1e-4), max(seen, default=1e-2)
    low, high = low / (high / low) ** 0.5, high * 2  # with room for the numbers
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    known: dict[str, list[Entry]] = {}
    for step in (step for run in runs for step in run["steps"]):
        if (step.get("validation") or {}).get("nrmse") is not None:
            known.setdefault(step["step"], []).append(step)

    def why(name: str) -> str:
        reason = why_missing(next((step for run in runs if (step := step_of(run, name))), None))
        return "no row sees a key" if reason == "pass" else reason

    for row, _, steps in filled_rows(axes, rows, known, why):
        for step in steps:
            passed = step["status"] == "pass"
            colour = BAR if passed else CEILING
            for key, marker, face in (
                ("worst_row_nrmse", "o", BACKGROUND),
                ("nrmse", "o" if passed else "X", colour),
            ):
                # An error of 0 has no place on a log scale: at its foot.
                if (value := step["validation"].get(key)) is not None:
                    at = max(value, low)
                    axes.plot(at, row, marker, markersize=5.5, color=colour, mfc=face, zorder=3, clip_on=False)
        say(axes, row, f"{max(step['validation']['nrmse'] for step in steps):.1e}")
    for key, words, dashes in (("gate_nrmse", "gate", "-"), ("gate_row", "of a row", (0, (4, 2)))):
        for gate in dict.fromkeys(validation[key] for validation in judged):
            axes.axvline(gate, color=CEILING, linewidth=1.3, linestyle=dashes, zorder=1.5)
            label_line(axes, gate, f"{words}\n{gate:g}", CEILING, upright=True)
    style_axes(axes, title, "x", pad=30)
    axes.minorticks_off()
    axes.set_xlabel("relative error, log scale", fontsize=TEXT)


def errors(records: list[Source]) -> Any:
    """NRMSE and that of the worst row, by step, beside what a pass may have: a panel a type."""
    data, runs = records[0].data, records[0].runs
    if not any(step.get("validation") for run in runs for step in run["steps"]):
        raise ResultsError("no step was validated, so there is nothing to draw")
    rows = rows_of(runs)
    types = list(dict.fromkeys(run["problem"]["dtype"] for run in runs))
    figure, grid = panels(1, len(types), 1.9 + ROW * len(rows), sharey=True)
    for axes, dtype in zip(grid[0], types):
        own = [run for run in runs if run["problem"]["dtype"] == dtype]
        draw_errors(axes, own, rows, label_of(own[0]) if len(own) == 1 else f"{dtype}, {len(own)} problems")
    device = device_of(data)
    notes = [
        "Filled, and the largest in numbers: NRMSE of the whole output, a point a problem. Open: of its worst row. "
        "Crosses: of a step that failed.",
        f"{device[0].upper()}{device[1:]}, {origin_of(data)}.",
    ]
    return finish(figure, f"FlashSteps: errors of each step, on {device}", notes)


# Where the bytes are: the roofline.


def profiled_points(records: list[Source]) -> dict[str, dict[str, float]]:
    """By step, of the first profile that has it: its rate, and FLOPs by byte of DRAM and of shared memory."""
    points: dict[str, dict[str, float]] = {}
    for source in records:
        run = source.runs[0]
        for step in run["steps"] if source.data["schema"] == PROFILE_SCHEMA else []:
            values = step.get("metrics") or {}
            if not values.get("duration_ns") or step["step"] in points:
                continue
            work = flops(run["problem"])
            known = {key: value or 0 for key, value in values.items()}  # null: ncu did not say
            moved = {
                "dram": known["dram_read_bytes"] + known["dram_write_bytes"],
                "shared": known["shared_wavefronts"] * WAVEFRONT,
            }
            points[step["step"]] = {key: work / count for key, count in moved.items() if count} | {
                "tflops": work / values["duration_ns"] / 1e3
            }
    return points


def draw_points(axes: Any, points: dict[str, dict[str, float]], part: Part) -> list[float]:
    """Their rates."""
    names = [name for name in part.names() if "shared" in points.get(name, {})]
    for name, colour in zip(names, figure_style.step_colours(len(names))):
        colour = BEFORE if name == part.before else colour
        axes.plot(points[name]["shared"], points[name]["tflops"], "o", markersize=6, color=colour, zorder=3)
        label_line(axes, points[name]["tflops"], f"{name.split('_')[0]}: {rate(points[name]['tflops'])}", colour)
    return [points[name]["tflops"] for name in names]


def roofline(records: list[Source]) -> Any:
    """Rates by FLOPs per byte, of profiles of one problem: a panel for each part of the ladder. The ceiling comes
    from results beside them."""
    profiles = [source for source in records if source.data["schema"] == PROFILE_SCHEMA]
    runs = [source.runs[0] for source in profiles]
    points = profiled_points(records)
    if len({problem_label(run["problem"]) for run in runs}) > 1 or any(len(source.runs) > 1 for source in records):
        raise ResultsError("a roofline is of one problem: add a filter")
    per_byte = [point["shared"] for point in points.values() if "shared" in point]
    if not per_byte:
        raise ResultsError("no step that uses shared memory was profiled, so there is nothing to draw")
    device = profiles[0].data["provenance"]["device"]
    matmul = ceiling_of(runs[0], "matmul", records)
    highest = ceiling_rate(matmul) if matmul else max(point["tflops"] for point in points.values())
    roof = None  # TFLOPS by FLOP per byte
    if device.get("sm_count") and device.get("max_sm_clock_mhz"):
        roof = WAVEFRONT * device["sm_count"] * device["max_sm_clock_mhz"] / 1e6
    left, right = min(per_byte) / 2, max(per_byte) * 4
    parts = [part for part in parts_of(runs) if any("shared" in points.get(name, {}) for name in part.steps)]

    across = min(len(parts), 2)
    down = -(-len(parts) // across)
    figure, grid = panels(down, across, 1.4 + 3.2 * down)
    for axes in grid.flat[len(parts) :]:
        axes.set_axis_off()
    for axes, part in zip(grid.flat, parts):
        rates = draw_points(axes, points, part)
        flat_from = highest / roof if roof else left
        if roof:
            axes.plot([left, flat_from], [left * roof, highest], color=CEILING, linewidth=1.2, zorder=1.5)
        if matmul:
            axes.plot([flat_from, right], [highest] * 2, color=CEILING, linewidth=1.2, zorder=1.5)
            label_line(axes, highest, f"matmul\n{rate(highest)}", CEILING)
        log_scale(axes, "x", left, right)
        log_scale(axes, "y", min(rates) / 2, highest * 1.5)
        style_axes(axes, part.name if len(parts) > 1 else label_of(runs[0]), "y")
        axes.set_ylabel("TFLOPS, log scale" if axes in grid[:, 0] else "", fontsize=TEXT)
        axes.set_xlabel("FLOPs per byte of shared memory, log scale", fontsize=TEXT)
    notes = ["A byte of shared memory: of its wavefronts, 32 banks × 4 bytes. Copies by TMA are no wavefronts."]
    if roof:
        notes.append("Slanted: a wavefront a clock on every SM, at the maximum clock.")
    if per_byte := [point["dram"] for point in points.values() if "dram" in point]:
        notes.append(f"Of DRAM, steps do {rate(min(per_byte))} to {rate(max(per_byte))} FLOPs per byte.")
    if matmul:
        notes.append(f"Matmul: {plain(matmul['what'])}, of another run.")
    gone = {step: "uses no shared memory" for step, point in points.items() if "shared" not in point}
    gone |= {step["step"]: why_missing(step) for run in runs for step in run["steps"] if step["step"] not in points}
    if gone:
        gone = [f"{step} ({reason})" for step, reason in gone.items()]
        notes.append(f"Not there: {plain('; '.join(gone))}.")
    commits = ", ".join(dict.fromkeys(origin_of(source.data) for source in profiles))
    words = "Rates: of one launch under Nsight Compute, caches cold."
    notes.append(f"{label_of(runs[0])}. {words} {plain(device['name'])}, {commits}.")
    return finish(figure, "FlashSteps: FLOPs per byte, below the roofs", notes)


# The instructions of a score: v08's, struck out until v09's are left.

# In the order of v08's source: the opcode, what it is for, and what takes it away.
OF_A_SCORE = (
    ("FMUL", "scale", "one FFMA"),
    ("FMNMX", "maximum", ""),
    ("FADD", "subtract", "one FFMA"),
    ("FSETP", "tiny?", "ex2.approx"),
    ("FMUL", "if tiny", "ex2.approx"),
    ("MUFU", "exp2", ""),
    ("FMUL", "if tiny", "ex2.approx"),
    ("FADD", "sum", ""),
    ("FMUL", "correct P", "maxima first"),
)
CHANGES = {
    "maxima first": "P needs no correction",
    "one FFMA": "in place of two",
    "ex2.approx": "tiny P become 0",
}
JOINED, JOINS = 2, ("FFMA", "both")  # where it stands, and what "one FFMA" leaves there
SCORE_STEPS = ("v08_register_softmax", "v09_direct_rescale")


def left_of(taken: list[str]) -> list[tuple[str, str] | None]:
    """Each place's instruction, after these changes."""
    left = [None if cause in taken else (opcode, what) for opcode, what, cause in OF_A_SCORE]
    if "one FFMA" in taken:
        left[JOINED] = JOINS
    return left


def per_score(run: Run, name: str, wanted: list[tuple[str, str] | None]) -> float:
    """Instructions of a lane, of which at least the wanted ones must be there."""
    step = step_of(run, name)
    if not (step or {}).get("opcodes"):
        raise ResultsError(f"{name} was not profiled, so there is nothing to draw")
    problem = run["problem"]
    scores = flops(problem) / (4 * problem["head_dim"])  # that are wanted
    counts: dict[str, float] = {}
    for opcode, count in step["opcodes"].items():
        kind = opcode.split(".")[0]
        counts[kind] = counts.get(kind, 0) + 32 * count / scores
    asked = [instruction[0] for instruction in wanted if instruction]
    if lacking := [kind for kind in dict.fromkeys(asked) if counts.get(kind, 0) < asked.count(kind)]:
        raise ResultsError(f"{name} has fewer {', '.join(lacking)} than its softmax takes")
    return sum(counts.values())


def instructions(records: list[Source]) -> Sheet:
    """The instructions of v08 for a score, struck out one by one, and how many instructions a profile has in all."""
    data, [run] = records[0].data, records[0].runs
    sheet = Sheet("The nine instructions of v08 for a score, and the four that v09 has left", 9.3)
    left, wide, high, pitch = 4.75, 2.24, 1.05, 1.3
    taken: list[str] = []
    for row, change in enumerate(("", *CHANGES, "")):
        y = 1.5 + pitch * row
        before, after = left_of(taken), left_of(taken := [*taken, *filter(None, [change])])
        sheet.heading(0.45, y + (0.32 if change else high / 2), change or SCORE_STEPS[row > 0][:3])
        sheet.text(0.45, y + 0.8, CHANGES.get(change, ""), ha="left", color=MUTED)
        for place, (old, new) in enumerate(zip(before, after)):
            if not old:
                continue
            x, fill = left + wide * place, figure_style.S if new == old else figure_style.P
            look = {"facecolor": fill, "edgecolor": "none"} if new else {"edgecolor": MUTED, "linestyle": "dotted"}
            sheet.box(x, y, wide - 0.12, high, **look)
            for down, text, weight in zip((0.32, 0.76), new or old, ("bold", "normal")):
                sheet.text(x + wide / 2 - 0.06, y + down, text, weight=weight, color=INK if new else MUTED)
            if not new:
                sheet.line((x + 0.15, y + 0.32), (x + wide - 0.27, y + 0.32), linewidth=1.6, zorder=4)
        number = str(sum(map(bool, after)))
        sheet.text(left + wide * len(OF_A_SCORE) + 0.2, y + high / 2, number, TITLE, ha="left", weight="bold")
    counts = [per_score(run, name, left_of([*CHANGES][:n])) for name, n in zip(SCORE_STEPS, (0, len(CHANGES)))]
    both = " and ".join(f"{count:.3g} in {name[:3]}" for name, count in zip(SCORE_STEPS, counts))
    what = f"Instructions of a lane for each score, with those of products, loads and rows: {both}."
    sheet.note(8.1, f"{what}\n{label_of(run)}, {device_of(data)}, {origin_of(data)}.")
    return sheet


KINDS = {kind.__name__: kind for kind in (progression, counters, lengths, errors, roofline, instructions)}
