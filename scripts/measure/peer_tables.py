"""What compare_peers.py prints."""
from __future__ import annotations

from typing import Any

from records.problems import flops, kv_bytes, problem_label
from records.rates import (
    best_peer,
    best_step,
    ceiling_rate,
    contenders_of,
    geometric_mean,
    is_decode,
    percent_of_peak,
    ratio_to_best_peer,
    tflops_spread,
)
from records.terminal import table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def rates_of(problem: dict[str, Any], timing: dict[str, Any]) -> tuple[str, str]:
    """The median, and p10 to p90: in TFLOPS; with few queries in TB/s, of K and V."""
    rates = tflops_spread(problem, timing)
    if is_decode(problem):
        median, low, high = (f"{rate * kv_bytes(problem) / flops(problem):.2f}" for rate in rates)
    else:
        median, low, high = (f"{rate:.1f}" for rate in rates)
    return median, f"{low}-{high}"


def unit_of(run: dict[str, Any]) -> str:
    timings = [entry.get("timing") or {} for entry in contenders_of(run).values()]
    cold = ", cold L2" if any(timing.get("l2") for timing in timings) else ""
    return ("TB/s of K, V" if is_decode(run["problem"]) else "TFLOPS") + cold


def format_run(run: dict[str, Any], device: dict[str, Any]) -> str:
    rows = [["contender", "result", unit_of(run), "p10-p90", "% peak", "x best peer", "NRMSE", "worst row"]]
    notes = []
    for name, entry in contenders_of(run).items():
        timing, validation = entry.get("timing"), entry.get("validation") or {}
        rows.append(
            [
                name,
                entry["status"].upper(),
                *(rates_of(run["problem"], timing) if timing else ("-", "-")),
                number(percent_of_peak(run["problem"], timing, device) if timing else None, ".1f"),
                number(ratio_to_best_peer(run, name), ".2f"),
                number(validation.get("nrmse"), ".1e"),
                number(validation.get("worst_row_nrmse"), ".1e"),
            ]
        )
        said = [entry["message"].replace("\n", "\n      "), entry.get("note") or ""]
        if validation and not validation["runs_identical"] and "peer" in entry:
            said.append("two runs differ")
        notes += [f"    {name}: {text}\n" for text in said if text]
    text = f"{problem_label(run['problem'])}\n{table(rows)}{''.join(notes)}"
    if matmul := (run.get("ceilings") or {}).get("matmul"):
        text += f"  measured ceiling: {matmul['what']} {ceiling_rate(matmul):.1f} TFLOPS\n"
    return text


def format_grid(runs: list[dict[str, Any]]) -> str:
    """One row a problem; at the end the geometric mean of each contender's ratios to the best peer."""
    names = list(dict.fromkeys(name for run in runs for name in contenders_of(run)))
    units = dict.fromkeys(unit_of(run) for run in runs)
    rows = [[" or ".join(units), *names, "best peer", "best step / best peer"]]
    for run in runs:
        entries = contenders_of(run)
        cells = []
        for name in names:
            entry = entries.get(name) or {}
            timing = entry.get("timing")
            cells.append(rates_of(run["problem"], timing)[0] if timing else entry.get("status", "-"))
        best, step = best_peer(run), best_step(run)
        ratio = ratio_to_best_peer(run, step) if step else None
        rows.append([problem_label(run["problem"]), *cells, best[0] if best else "-", number(ratio, ".2f")])
    means = [[ratio_to_best_peer(run, name) for run in runs] for name in names]
    means.append([ratio_to_best_peer(run, step) for run in runs if (step := best_step(run))])
    known = [[ratio for ratio in column if ratio is not None] for column in means]
    rows.append(["x best peer, geometric mean", *(number(geometric_mean(each), ".2f") for each in known)])
    rows.append(["... over problems", *(str(len(each)) for each in known)])
    for row in rows[-2:]:
        row.insert(-1, "")  # nobody's mean: the column of the best peer's name
    return table(rows)


def format_host_overhead(host: dict[str, Any]) -> str:
    rows = [["host overhead of a call", "us", "p10-p90"]]
    for entry in host["entries"]:
        span = f"{entry['p10_us']:.2f}-{entry['p90_us']:.2f}"
        rows.append([entry["name"], f"{entry['median_us']:.2f}", span])
    return f"{problem_label(host['problem'])}, {host['calls_per_sample']} calls a sample\n{table(rows)}"
