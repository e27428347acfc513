"""What compare_peers.py prints."""
from __future__ import annotations

from typing import Any

from records.rates import best_peer, best_step, contenders_of, geometric_mean, ratio_to_best_peer
from records.terminal import table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def rate_of(timing: dict[str, Any], which: str = "tflops") -> str:
    """In TFLOPS; with few queries in TB/s, of K and V."""
    if (of_memory := timing.get("kv_bytes_per_second")) is not None:
        return f"{timing[which] / timing['tflops'] * of_memory / 1e12:.2f}"
    return number(timing.get(which), ".1f")


def unit_of(run: dict[str, Any]) -> str:
    timings = [entry.get("timing") or {} for entry in contenders_of(run).values()]
    reads = any(timing.get("kv_bytes_per_second") is not None for timing in timings)
    cold = ", cold L2" if any(timing.get("l2") for timing in timings) else ""
    return ("TB/s of K, V" if reads else "TFLOPS") + cold


def format_run(run: dict[str, Any]) -> str:
    rows = [["contender", "result", unit_of(run), "p10-p90", "% peak", "x best peer", "NRMSE", "worst row"]]
    notes = []
    for name, entry in contenders_of(run).items():
        timing, validation = entry.get("timing") or {}, entry.get("validation") or {}
        rows.append(
            [
                name,
                entry["status"].upper(),
                rate_of(timing),
                f"{rate_of(timing, 'tflops_p10')}-{rate_of(timing, 'tflops_p90')}" if timing else "-",
                number(timing.get("percent_of_peak"), ".1f"),
                number(ratio_to_best_peer(run, name), ".2f"),
                number(validation.get("nrmse"), ".1e"),
                number(validation.get("worst_row_nrmse"), ".1e"),
            ]
        )
        said = [entry["message"].replace("\n", "\n      "), entry.get("note") or ""]
        if validation and not validation["runs_identical"] and "peer" in entry:
            said.append("two runs differ")
        notes += [f"    {name}: {text}\n" for text in said if text]
    text = f"{run['problem']['label']}\n{table(rows)}{''.join(notes)}"
    if matmul := (run.get("ceilings") or {}).get("matmul"):
        text += f"  measured ceiling: {matmul['what']} {matmul['tflops']:.1f} TFLOPS\n"
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
            cells.append(rate_of(timing) if timing else entry.get("status", "-"))
        best, step = best_peer(run), best_step(run)
        ratio = ratio_to_best_peer(run, step) if step else None
        rows.append([run["problem"]["label"], *cells, best[0] if best else "-", number(ratio, ".2f")])
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
    return f"{host['problem']['label']}, {host['calls_per_sample']} calls a sample\n{table(rows)}"
