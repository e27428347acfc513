"""The charts of recorded runs, and of the user's own. Each takes records that records/results.py has checked.

A kind draws the problems that were chosen of its records into one figure. It types no number: what it shows is
in the records, or follows from them.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any, Callable, Sequence

from draw import figure_style
from draw.figure_style import BACKGROUND, BAR, CEILING, GAP, GRID, HATCH, HEADING, IDEAL, INK, MUTED, NOTE
from draw.figure_style import TEXT, TITLE, WIDTH
from records.problems import problem_labels
from records.profiles import SCHEMA as PROFILE_SCHEMA
from records.rates import rate
from records.results import ResultsError
from steps import sources

Record = dict[str, Any]
Run = dict[str, Any]
Placed = Sequence[tuple[Any, list[Any]]]  # labels at the ends of lines, by their axes
Told = tuple[str, float | None]  # what it is, and the rate that is off the scale

FLATTENS_BARS = 1.5  # a ceiling this many times above all else is told, not drawn
LOG_FROM = 50.0  # counters that span more than this factor are drawn on a log scale
THIN_UNTIL = 0.6  # of the steps, in a chart with a line for each: the last ones are what it is about
SECTOR = 32  # bytes
WAVEFRONT = 32 * 4  # bytes: what the banks of shared memory pass in a clock, on every SM
LETTERS_BELOW = 106  # fit side by side below the bars of a chart
LEVEL_NUMBERS = 12  # of seven letters fit side by side in one; more are turned
THREAD = re.compile(r"block \([\d, ]*\)( warp \d+)?( lane \d+)?: ")  # before what the emulator says of it


# What the charts share.


def plain(text: str) -> str:
    """Text from a file: a dollar sign is no mathematics, and XML has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")


def label_of(run: Run) -> str:
    return plain(problem_labels([run])[0])


def step_names(runs: list[Run]) -> list[str]:
    """Every step of any of the runs, in the order of the file."""
    return list(dict.fromkeys(step["step"] for run in runs for step in run["steps"]))


def peer_lines(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """The peers that charts show: the fast ones."""
    return [(p["peer"], p) for p in run.get("peers") or [] if p["peer"] in figure_style.PEERS]


def status_word(status: str) -> str:
    """As the program's tables, the lessons and docs/debugging.md have it."""
    return "hang" if status == "timeout" else status


def why_missing(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "not run"
    reason = THREAD.sub("", entry["message"].strip().split("\n")[0], count=1)
    return ": ".join(text for text in (status_word(entry["status"]), reason) if text)


def label_gap(axes: Any, position: int, text: str) -> None:
    """A step that has no value keeps its place, hatched, and says why."""
    axes.axvspan(position - 0.4, position + 0.4, facecolor=GAP, edgecolor=HATCH, hatch="///", linewidth=0)
    axes.text(
        position,
        0.04,
        plain(textwrap.shorten(text, 34, placeholder="…")),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=NOTE,
        color=INK,
        transform=axes.get_xaxis_transform(),
        zorder=5,
        bbox={"facecolor": GAP, "edgecolor": "none", "pad": 1},
    )


def finish_axes(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=HEADING, loc="left")
    axes.set_ylabel(unit, fontsize=TEXT)
    axes.tick_params(labelsize=TEXT)
    axes.grid(axis="y", linewidth=0.5, color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def names_fit(names: list[str]) -> bool:
    """Below the axis, a word a line."""
    words = [name.split("_") for name in names]
    room = LETTERS_BELOW / max(len(names), 1)
    return all(len(each) <= 4 and max(map(len, each)) <= room for each in words)


def slanted_height(names: list[str]) -> float:
    """Inches that a panel needs more than with a word a line."""
    return 0 if names_fit(names) else max(0.04 * max(map(len, names)) - 0.3, 0)


def part_of(step: str, run: Run) -> str | None:
    """Of the ladder. Records that are older than parts have none; then the step's source says it."""
    entry = next((entry for entry in run["steps"] if entry["step"] == step), {})
    return entry.get("part") or sources.part(step)


def mark_parts(axes: Any, names: list[str], run: Run) -> None:
    """Where the ladder's parts begin, in a chart of several."""
    parts = [part_of(name, run) for name in names]
    if len(set(parts)) < 2:
        return
    for position, part in enumerate(parts):
        if position > 0 and part == parts[position - 1]:
            continue
        if position > 0:
            axes.axvline(position - 0.5, color=MUTED, linewidth=0.8, linestyle=":")
        axes.text(
            position - 0.42,
            1.01,
            part or "others",
            fontsize=NOTE,
            color=MUTED,
            va="bottom",
            transform=axes.get_xaxis_transform(),
        )
    axes.set_title(axes.get_title(loc="left"), fontsize=HEADING, loc="left", pad=20)  # above the parts


def name_steps(axes: Any, names: list[str]) -> None:
    """The names below the axis: a word a line where that fits, otherwise slanted."""
    if names_fit(names):
        words = [name.replace("_", "\n") for name in names]
        axes.set_xticks(range(len(names)), words, fontsize=NOTE)
    else:
        axes.set_xticks(
            range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=NOTE
        )
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(names) - 0.4)


def label_at_the_end(axes: Any, value: float, text: str, colour: Any, **how: Any) -> Any:
    """Of a line: to the right of the axes. `spread_labels` then moves what would overlap."""
    return axes.annotate(
        text,
        (1, value),
        xytext=(7, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=TEXT,
        color=colour,
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": colour, "shrinkA": 0, "shrinkB": 0},
        **{"linespacing": 1.1, **how},
    )


def spread_labels(axes: Any, labels: list[Any]) -> None:
    """Moves labels at the end of lines up and down until none overlaps another."""
    scale = 72 / axes.figure.dpi
    labels = sorted(labels, key=lambda label: label.xy[1])
    wanted = [axes.transData.transform((0, label.xy[1]))[1] * scale for label in labels]
    # Still level with their values, so their own lines add nothing to the height.
    heights = [label.get_window_extent().height * scale for label in labels]
    groups: list[list[int]] = (
        []
    )  # of labels that touch, and so stand around the middle of where each should be

    def bottom_of(group: list[int]) -> float:
        below, middle = 0.0, 0.0
        for index in group:
            middle += wanted[index] - below - heights[index] / 2
            below += heights[index]
        return middle / len(group)

    def top_of(group: list[int]) -> float:
        return bottom_of(group) + sum(heights[index] for index in group)

    for index in range(len(labels)):
        groups.append([index])
        while len(groups) > 1 and bottom_of(groups[-1]) < top_of(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    for group in groups:
        place = bottom_of(group)
        for index in group:
            labels[index].set_position((7, place + heights[index] / 2 - wanted[index]))
            place += heights[index]


def origin_of(data: Record) -> str:
    origin = data["provenance"]
    commit = (origin.get("commit") or "unknown")[:12]
    return f"commit {commit}" + (" with uncommitted changes" if origin.get("dirty") else "")


def finish(figure: Any, title: str, note: str, placed: Placed = ()) -> Any:
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    figure.suptitle(title, fontsize=TITLE, x=0.012, ha="left", weight="bold")
    text = "\n".join(line for part in note.split("\n") for line in textwrap.wrap(part, 132))
    figure.supxlabel(text, fontsize=NOTE, color=MUTED, x=0.012, ha="left", linespacing=1.35)
    if placed:
        figure.get_layout_engine().execute(figure)  # now it is known where things are
    for axes, labels in placed:
        spread_labels(axes, labels)
    return figure


# The ladder of a run on a GPU: a bar a step.


def tensor_peak(run: Run) -> float | None:
    """The card's, as far as the run knows it: what its percentages are of."""
    for entry in (*run["steps"], *(run.get("peers") or [])):
        timing = entry.get("timing") or {}
        if timing.get("percent_of_peak"):
            return 100 * timing["tflops"] / timing["percent_of_peak"]
    return None


def draw_rates(axes: Any, run: Run, names: list[str]) -> tuple[list[Any], list[Told]]:
    """The labels of lines, still to be spread, and what is to be told below."""
    steps = {step["step"]: step for step in run["steps"]}
    labels, told = [], []
    top = 0.0
    for position, name in enumerate(names):
        timing = (steps.get(name) or {}).get("timing")
        if timing is None:
            label_gap(axes, position, why_missing(steps.get(name)))
            continue
        low, middle, high = timing["tflops_p10"], timing["tflops"], timing["tflops_p90"]
        axes.bar(position, middle, width=0.7, color=BAR)
        # Rounding in the file may put a percentile on the wrong side of the median by a hair.
        spread = [[max(middle - low, 0)], [max(high - middle, 0)]]
        axes.errorbar(position, middle, yerr=spread, color=INK, capsize=3, linewidth=1)
        axes.annotate(
            rate(middle),
            (position, high),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=TEXT,
            color=INK,
            bbox={"facecolor": BACKGROUND, "edgecolor": "none", "pad": 0.8},
            zorder=4,
        )
        top = max(top, high)
    for name, peer in peer_lines(run):
        words, colour, dashes = figure_style.PEERS[name]
        timing = peer.get("timing")
        if timing is None:
            told.append((plain(f"{words}: {why_missing(peer)}"), None))
            continue
        axes.axhspan(timing["tflops_p10"], timing["tflops_p90"], color=colour, alpha=0.18, linewidth=0)
        axes.axhline(timing["tflops"], color=colour, linewidth=1.5, linestyle=dashes, zorder=1.5)
        labels.append(label_at_the_end(axes, timing["tflops"], f"{words}\n{rate(timing['tflops'])}", colour))
        top = max(top, timing["tflops_p90"])
    highest = top
    if matmul := (run.get("ceilings") or {}).get("matmul"):
        what = f"Measured matmul: {plain(matmul['what'])}"
        if matmul["tflops"] > FLATTENS_BARS * top:
            told.append((what, matmul["tflops"]))
        else:
            told.append((what, None))
            axes.axhline(matmul["tflops"], color=CEILING, linewidth=1.2, zorder=1.5)
            text = f"measured matmul\n{rate(matmul['tflops'])}"
            labels.append(label_at_the_end(axes, matmul["tflops"], text, CEILING))
            highest = max(highest, matmul["tflops"])
    if peak := tensor_peak(run):  # nobody has seen a kernel come near, so it is only told
        told.append(("Dense tensor peak at the maximum clock", peak))
    axes.set_ylim(0, highest * 1.08 or 1)
    finish_axes(axes, label_of(run), "TFLOPS")
    mark_parts(axes, names, run)
    name_steps(axes, names)
    return labels, told


def progression(plt: Any, records: list[Record], chosen: list[list[Run]]) -> Any:
    """The ladder: rates of a run on a GPU, or counters of one on the emulator."""
    [data], [runs] = records, chosen
    if data["provenance"]["backend"] != "cuda":
        return counters(plt, records, chosen)
    if not any(step.get("timing") for run in runs for step in run["steps"]):
        raise ResultsError("no step has timing, so there is nothing to draw")
    names = step_names(runs)
    figure, grid = plt.subplots(
        len(runs),
        1,
        figsize=(WIDTH, 1.1 + (3.7 + slanted_height(names)) * len(runs)),
        squeeze=False,
        layout="constrained",
    )
    told: dict[str, list[float]] = {}
    placed = []
    for axes, run in zip(grid[:, 0], runs):
        labels, more = draw_rates(axes, run, names)
        placed.append((axes, labels))
        for text, tflops in more:
            told.setdefault(text, []).extend([] if tflops is None else [tflops])
    note = "Bars: median; whiskers: p10 to p90."
    if any(run.get("peers") for run in runs):
        note = "Bars and dashed lines: median; whiskers and bands: p10 to p90; all of one interleaved run."
    for text, values in told.items():
        span = " to ".join(dict.fromkeys(rate(pick(values)) for pick in (min, max) if values))
        note += f"\n{text}: {span}, off the scale." if values else f"\n{text}."
    note += f"\n{plain(data['provenance']['device']['name'])}, {origin_of(data)}."
    device = plain(data["provenance"]["device"]["name"])
    return finish(figure, f"FlashSteps: one idea a step, on {device}", note, placed)


# The emulator's counters.


def sectors_through_tma(values: dict[str, int]) -> int:
    return (values.get("tma_load_bytes", 0) + values.get("tma_store_bytes", 0)) // SECTOR


def draw_counter(axes: Any, run: Run, names: list[str], key: str, title: str) -> None:
    steps = {step["step"]: step for step in run["steps"]}
    values = {name: step["counters"] for name, step in steps.items() if step.get("counters") is not None}
    beside = {
        "shared_wavefronts": lambda counted: counted["shared_wavefronts_ideal"],
        "global_sectors": sectors_through_tma,
    }.get(key, lambda counted: 0)
    seen = [n for counted in values.values() for n in (counted[key], beside(counted)) if n > 0]
    use_log = bool(seen) and max(seen) > LOG_FROM * min(seen)
    level = len(names) <= LEVEL_NUMBERS
    wrong = {name for name in values if steps[name]["status"] != "pass"}
    if use_log:
        axes.set_yscale("log")
        above = (10 if wrong else 3) if level else max(seen) / min(seen)
        axes.set_ylim(min(seen) / 3, max(seen) * above)
    else:
        above = (1.45 if wrong else 1.25) if level else 2.1
        axes.set_ylim(0, max(seen, default=1) * above)
    for position, name in enumerate(names):
        if name not in values:
            label_gap(axes, position, why_missing(steps.get(name)))
            continue
        counted, other = values[name][key], beside(values[name])
        colour = CEILING if name in wrong else BAR
        text = f"{status_word(steps[name]['status'])}\n{counted:,}" if name in wrong else f"{counted:,}"
        if key == "shared_wavefronts" and other > 0:
            axes.bar(position - 0.19, counted, width=0.36, color=colour)
            axes.bar(position + 0.19, other, width=0.36, color=IDEAL)
            text += f"\n{counted / other:.2f} ×"
        elif counted > 0:
            axes.bar(position, counted, width=0.7, color=colour)
        if key == "global_sectors" and other > 0:
            how = {"facecolor": "none", "edgecolor": colour, "hatch": "////", "linewidth": 0.8}
            axes.bar(position, other, bottom=counted, width=0.7, **how)
            text += f"\n+ {other:,}"
        tallest = counted + other if key == "global_sectors" else counted
        axes.annotate(
            text,
            (position, tallest),
            xytext=(0, 3),
            ha="center",
            rotation=0 if level else 90,
            fontsize=NOTE,
            linespacing=1.15,
            textcoords="offset points",
            color=INK,
            xycoords="data" if tallest > 0 else ("data", "axes fraction"),
        )
    finish_axes(axes, title, "count, log scale" if use_log else "count")
    if not use_log:
        axes.yaxis.set_major_formatter("{x:,.0f}")
    if not seen:
        axes.set_yticks([0])
    mark_parts(axes, names, run)
    name_steps(axes, names)


def counter_panels(runs: list[Run]) -> list[tuple[str, str]]:
    through_tma = any(
        sectors_through_tma(step["counters"]) for run in runs for step in run["steps"] if step.get("counters")
    )
    sectors = "Global memory: sectors of 32 bytes"
    if through_tma:
        sectors += " (hatched: as many bytes through TMA, which are no sectors)"
    ideal = "ideal (orange: ideal, without bank conflicts)"
    return [
        ("shared_wavefronts", f"Shared memory: wavefronts, and × {ideal}"),
        ("global_sectors", sectors),
        ("mma", "Tensor cores: m16n8k16 products"),
    ]


def counters(plt: Any, records: list[Record], chosen: list[list[Run]]) -> Any:
    """What the emulator counted, a panel a counter."""
    [data], [runs] = records, chosen
    if not any(step.get("counters") for run in runs for step in run["steps"]):
        raise ResultsError("no step has counters, so there is nothing to draw")
    names = step_names(runs)
    panels = [(run, *panel) for run in runs for panel in counter_panels(runs)]
    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(WIDTH, 0.9 + (2.5 + slanted_height(names)) * len(panels)),
        squeeze=False,
        layout="constrained",
    )
    for axes, (run, key, title) in zip(grid[:, 0], panels):
        more = f"\n{label_of(run)}" if len(runs) > 1 else ""
        draw_counter(axes, run, names, key, title + more)
    problem = f"{label_of(runs[0])}. " if len(runs) == 1 else ""
    note = f"{problem}CPU emulator, {origin_of(data)}. Lower is less work; this is no timing model."
    if any(step.get("counters") and step["status"] != "pass" for run in runs for step in run["steps"]):
        note += "\nRed: what a step counted whose result is wrong."
    return finish(figure, "FlashSteps: emulator counts, not times", note)


# Rates by sequence length: a line a step.


def nice_ticks(low: float, high: float) -> list[float]:
    return [n * 10.0**e for e in range(-4, 7) for n in (1, 2, 5) if low <= n * 10.0**e <= high]


def draw_lengths(axes: Any, runs: list[Run], names: list[str], lengths: list[int]) -> tuple[list, list]:
    by_length = {run["problem"]["seqlen_q"]: run for run in runs}
    labels, missing = [], []

    def line(find: Callable[[Run], dict | None], words: str, brief: str, colour: Any, **how: Any) -> None:
        found = {length: find(run) for length, run in by_length.items()}
        timings = [(found.get(length) or {}).get("timing") for length in lengths]
        for length, timing in zip(lengths, timings):
            if timing is None and length in by_length:
                missing.append(f"{words} at {length} ({why_missing(found[length])})")
        values = [timing["tflops"] if timing else float("nan") for timing in timings]
        if all(timing is None for timing in timings):
            return
        axes.plot(range(len(lengths)), values, color=colour, marker="o", **how)
        last = [value for value in values if value == value][-1]
        weight = "bold" if how["linewidth"] > 2 else "normal"
        labels.append(label_at_the_end(axes, last, brief, colour, weight=weight))

    colours = figure_style.step_colours(len(names))
    for index, name in enumerate(names):
        thin = index < THIN_UNTIL * len(names)
        width = 2.2 if index == len(names) - 1 else 0.9 if thin else 1.5
        line(
            lambda run: {step["step"]: step for step in run["steps"]}.get(name),
            name,
            name.split("_")[0],
            colours[index],
            linewidth=width,
            markersize=2 if thin else 3.2,
        )
    for name in dict.fromkeys(name for run in runs for name, _ in peer_lines(run)):
        words, colour, dashes = figure_style.PEERS[name]
        brief = words.replace("FlashAttention-", "FA")
        line(
            lambda run: dict(peer_lines(run)).get(name),
            words,
            brief,
            colour,
            linewidth=1.6,
            linestyle=dashes,
            markersize=3.2,
        )
    return labels, missing


def lengths(plt: Any, records: list[Record], chosen: list[list[Run]]) -> Any:
    """TFLOPS by sequence length: a panel for each head dimension and mask."""
    [data], [runs] = records, chosen
    names = step_names(runs)
    all_lengths = sorted({run["problem"]["seqlen_q"] for run in runs})
    heads = sorted({run["problem"]["head_dim"] for run in runs})
    masks = sorted({run["problem"]["causal"] for run in runs})
    rates = [
        entry["timing"]["tflops"]
        for run in runs
        for entry in (*run["steps"], *(peer for _, peer in peer_lines(run)))
        if entry.get("timing")
    ]
    if not rates:
        raise ResultsError("no step has timing, so there is nothing to draw")
    figure, grid = plt.subplots(
        len(heads),
        len(masks),
        figsize=(WIDTH, 1.0 + max(3.3, 0.8 + 0.165 * len(names)) * len(heads)),  # room for their labels
        squeeze=False,
        layout="constrained",
        sharex=True,
        sharey=True,
    )
    placed, missing = [], []
    for row, head_dim in enumerate(heads):
        for column, causal in enumerate(masks):
            axes = grid[row, column]
            own = [
                run
                for run in runs
                if (run["problem"]["head_dim"], run["problem"]["causal"]) == (head_dim, causal)
            ]
            title = f"D = {head_dim}, {'causal' if causal else 'full'}"
            if len({run["problem"]["seqlen_q"] for run in own}) < len(own):
                raise ResultsError(f"several problems of {title} have the same length: add a filter")
            labels, gone = draw_lengths(axes, own, names, all_lengths)
            placed.append((axes, labels))
            missing += [f"{title}: {text}" for text in gone]
            axes.set_yscale("log")
            axes.set_ylim(min(rates) / 1.25, max(rates) * 1.25)
            ticks = nice_ticks(min(rates) / 1.25, max(rates) * 1.25)
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_xticks(range(len(all_lengths)), [str(length) for length in all_lengths])
            axes.set_xlim(-0.25, len(all_lengths) - 1 + 0.1)
            finish_axes(axes, title, "TFLOPS, log scale" if column == 0 else "")
            if row == len(heads) - 1:
                axes.set_xlabel("sequence length", fontsize=TEXT)
    tokens = {run["problem"]["batch"] * run["problem"]["seqlen_q"] for run in runs}
    types = ", ".join(dict.fromkeys(run["problem"]["dtype"] for run in runs))
    first, last = (name.split("_")[0] for name in (names[0], names[-1]))
    note = f"{first} to {last}: the steps. Medians, {types}"
    note += f", batch × length = {tokens.pop():,}." if len(tokens) == 1 else "."
    if any(run.get("peers") for run in runs):
        note += "\nDashed: other people's kernels (FA2: FlashAttention-2), of the same interleaved run."
    if missing:
        note += f"\nNot there: {plain('; '.join(missing))}."
    device = plain(data["provenance"]["device"]["name"])
    note += f"\n{device}, {origin_of(data)}."
    return finish(figure, f"FlashSteps by sequence length, on {device}", note, placed)


# How far from the reference, and how far that may be.


def draw_errors(axes: Any, runs: list[Run], names: list[str], title: str) -> list[Any]:
    """The gates' labels, still to be spread."""
    entries = {
        name: [step for run in runs for step in run["steps"] if step["step"] == name] for name in names
    }
    judged = [step["validation"] for each in entries.values() for step in each if step.get("validation")]
    gates = [
        (gate, words, dashes)
        for key, words, dashes in (("gate_nrmse", "gate", "-"), ("gate_row", "gate of\na row", (0, (4, 2))))
        for gate in dict.fromkeys(validation[key] for validation in judged)
    ]
    seen = [
        value
        for validation in judged
        for key in ("nrmse", "worst_row_nrmse", "gate_nrmse", "gate_row")
        if (value := validation.get(key))
    ]
    level = len(names) <= LEVEL_NUMBERS
    low, high = min(seen, default=1e-4) / (4 if level else 30), max(seen, default=1e-2) * 2
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    for position, name in enumerate(names):
        known = [step for step in entries[name] if (step.get("validation") or {}).get("nrmse") is not None]
        if not known:
            reasons = [why_missing(step) for step in entries[name]] or [why_missing(None)]
            label_gap(axes, position, "no row sees a key" if reasons[0] == "pass" else reasons[0])
            continue
        for step in known:
            colour = BAR if step["status"] == "pass" else CEILING
            for key, shift, marker, face in (
                ("nrmse", -0.1, "o" if step["status"] == "pass" else "X", colour),
                ("worst_row_nrmse", 0.1, "o", BACKGROUND),
            ):
                # An error of 0 has no place on a log scale: at its foot.
                if (value := step["validation"].get(key)) is not None:
                    at = position + shift, max(value, low)
                    axes.plot(*at, marker, markersize=5.5, color=colour, mfc=face, zorder=3, clip_on=False)
        values = [step["validation"]["nrmse"] for step in known]
        axes.annotate(
            f"{max(values):.1e}",
            (position - 0.1, max(min(values), low)),
            xytext=(0, -6),
            textcoords="offset points",
            ha="center",
            va="top",
            rotation=0 if level else 90,
            fontsize=NOTE,
            color=INK,
            zorder=4,
            bbox={"facecolor": BACKGROUND, "edgecolor": "none", "pad": 0.8},
        )
    labels = []
    for gate, words, dashes in gates:
        axes.axhline(gate, color=CEILING, linewidth=1.3, linestyle=dashes, zorder=1.5)
        labels.append(label_at_the_end(axes, gate, f"{words} {gate:g}", CEILING))
    finish_axes(axes, title, "relative error, log scale")
    name_steps(axes, names)
    return labels


def errors(plt: Any, records: list[Record], chosen: list[list[Run]]) -> Any:
    """NRMSE and that of the worst row, by step, beside what a pass may have: a panel a type."""
    [data], [runs] = records, chosen
    if not any(step.get("validation") for run in runs for step in run["steps"]):
        raise ResultsError("no step was validated, so there is nothing to draw")
    names = step_names(runs)
    types = list(dict.fromkeys(run["problem"]["dtype"] for run in runs))
    figure, grid = plt.subplots(
        len(types),
        1,
        figsize=(WIDTH, 1.1 + (3.1 + slanted_height(names)) * len(types)),
        squeeze=False,
        layout="constrained",
    )
    placed = []
    for axes, dtype in zip(grid[:, 0], types):
        own = [run for run in runs if run["problem"]["dtype"] == dtype]
        title = label_of(own[0]) if len(own) == 1 else f"{dtype}, {len(own)} problems, points for each"
        placed.append((axes, draw_errors(axes, own, names, title)))
    on_gpu = data["provenance"]["backend"] == "cuda"
    device = plain(data["provenance"]["device"]["name"]) if on_gpu else "the CPU emulator"
    note = (
        "Filled, and the largest in numbers: NRMSE of the whole output. Open: of its worst row. "
        "Crosses: of a step that failed."
    )
    note += f"\n{device[0].upper()}{device[1:]}, {origin_of(data)}."
    return finish(figure, f"FlashSteps: errors of each step, on {device}", note, placed)


# Where the bytes are: the roofline.


def profiled_points(records: list[Record], chosen: list[list[Run]]) -> dict[str, dict[str, float]]:
    """By step, of the first profile that has it: its rate, and FLOPs by byte of DRAM and of shared memory."""
    points: dict[str, dict[str, float]] = {}
    for data, runs in zip(records, chosen):
        for step in runs[0]["steps"] if data["schema"] == PROFILE_SCHEMA else []:
            values = step.get("metrics") or {}
            if not values.get("duration_ns") or step["step"] in points:
                continue
            flops = runs[0]["problem"]["flops"]
            known = {key: value or 0 for key, value in values.items()}  # null: ncu did not say
            moved = {
                "dram": known["dram_read_bytes"] + known["dram_write_bytes"],
                "shared": known["shared_wavefronts"] * WAVEFRONT,
            }
            points[step["step"]] = {key: flops / count for key, count in moved.items() if count} | {
                "tflops": flops / values["duration_ns"] / 1e3
            }
    return points


def roofline(plt: Any, records: list[Record], chosen: list[list[Run]]) -> Any:
    """Rates by FLOPs per byte, of profiles of one problem; the ceiling from results beside them."""
    profiles = [data for data in records if data["schema"] == PROFILE_SCHEMA]
    runs = [each[0] for data, each in zip(records, chosen) if data["schema"] == PROFILE_SCHEMA]
    points = profiled_points(records, chosen)
    if len({run["problem"]["label"] for run in runs}) > 1 or any(len(each) > 1 for each in chosen):
        raise ResultsError("a roofline is of one problem: add a filter")
    if not points:
        raise ResultsError("no step was profiled, so there is nothing to draw")
    device = profiles[0]["provenance"]["device"]
    matmuls = [(each[0].get("ceilings") or {}).get("matmul") for each in chosen]
    ceiling = next((matmul for matmul in matmuls if matmul), None)

    figure, axes = plt.subplots(figsize=(WIDTH, 5.2), layout="constrained")
    axes.set_xscale("log")
    axes.set_yscale("log")
    names = sorted(points)
    labels = []
    for name, colour in zip(names, figure_style.step_colours(len(names))):
        point = points[name]
        ends = [point[key] for key in ("shared", "dram") if key in point]
        axes.plot(ends, [point["tflops"]] * len(ends), color=colour, linewidth=0.9, zorder=2)
        for key, face in (("shared", colour), ("dram", BACKGROUND)):
            if key in point:
                marker = "o" if key == "shared" else "s"
                axes.plot(point[key], point["tflops"], marker, markersize=6, color=colour, mfc=face, zorder=3)
        text = f"{name.split('_')[0]}: {rate(point['tflops'])}"
        labels.append(label_at_the_end(axes, point["tflops"], text, colour))
    intensities = [point[key] for point in points.values() for key in ("shared", "dram") if key in point]
    left, right = min(intensities) / 2, max(intensities) * 2
    slowest = min(point["tflops"] for point in points.values())
    highest = ceiling["tflops"] if ceiling else max(point["tflops"] for point in points.values())
    note = (
        "Each step twice: FLOPs per byte of shared memory (its wavefronts, 32 banks × 4 bytes) and of DRAM."
    )
    flat_from = left
    if device.get("sm_count") and device.get("max_sm_clock_mhz"):
        roof = WAVEFRONT * device["sm_count"] * device["max_sm_clock_mhz"] / 1e6  # TFLOPS by FLOP per byte
        flat_from = highest / roof
        axes.plot([left, flat_from], [left * roof, highest], color=CEILING, linewidth=1.2, zorder=1.5)
        middle = (left * flat_from) ** 0.5
        axes.annotate(
            "a wavefront a clock\non every SM",
            (middle, middle * roof),
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            fontsize=TEXT,
            color=CEILING,
        )
        note += " Slanted: what shared memory allows at the maximum clock; copies by TMA are no wavefronts."
    if ceiling:
        axes.plot([flat_from, right], [highest] * 2, color=CEILING, linewidth=1.2, zorder=1.5)
        labels.append(label_at_the_end(axes, highest, f"measured matmul\n{rate(highest)}", CEILING))
        note += f"\nMeasured matmul: {plain(ceiling['what'])}, of another run."
    note += " DRAM's bandwidth was not recorded, so it has no roof here."
    axes.set_xlim(left, right)
    axes.set_ylim(slowest / 2, highest * 1.5)
    ticks = nice_ticks(slowest / 2, highest * 1.5)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    powers = [tick for tick in nice_ticks(left, right) if f"{tick:e}"[0] == "1"]
    axes.set_xticks(powers, [f"{tick:,g}" for tick in powers])
    axes.minorticks_off()
    finish_axes(axes, label_of(runs[0]), "TFLOPS, log scale")
    axes.set_xlabel("FLOPs per byte, log scale", fontsize=TEXT)
    for marker, face, words in (
        ("o", INK, "per byte of shared memory"),
        ("s", BACKGROUND, "per byte of DRAM"),
    ):
        axes.plot([], [], marker, color=INK, mfc=face, markersize=6, label=words)
    axes.legend(loc="lower center", fontsize=TEXT, frameon=False)
    entries = [step for each in runs for step in each["steps"] if step["step"] not in points]
    if entries:
        gone = dict.fromkeys(f"{step['step']} ({why_missing(step)})" for step in entries)
        note += f"\nNot there: {plain('; '.join(gone))}."
    commits = ", ".join(dict.fromkeys(origin_of(data) for data in profiles))
    note += f"\nRates: of one launch under Nsight Compute, caches cold. {plain(device['name'])}, {commits}."
    return finish(figure, "FlashSteps: FLOPs per byte, below the roofs", note, [(axes, labels)])


KINDS: dict[str, Callable[[Any, list[Record], list[list[Run]]], Any]] = {
    "progression": progression,
    "counters": counters,
    "lengths": lengths,
    "errors": errors,
    "roofline": roofline,
}
