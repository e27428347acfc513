#!/usr/bin/env python3
"""Reads the GPU's own counters of a step with NVIDIA Nsight Compute (ncu), and prints what the lessons use.

    python3 scripts/measure/profile_ncu.py v02            in seconds, on the small problem of the counters record
    python3 scripts/measure/profile_ncu.py v01 v02 --shape 4,32,4096,64 --dtype bf16 --causal
    python3 scripts/measure/profile_ncu.py --json FILE    every step, recorded (docs/results-schema.md)

Profiled is one call of the step, the first in `build/steps/STEP check`, which also says whether the result was
right. ncu repeats its kernel for every group of counters, with cold caches and the clocks as they are. So the counts
are the point here, and the time is no benchmark (`flashsteps bench` is one). Of a step that launches several kernels,
counts and times are added up, and each kernel has its own besides; percentages are the kernels' alone.

Exit status: 0 when every launch was profiled; 1 when one was not, or its result was wrong; 2 for wrong use or
something that is missing.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import writing
from records.problems import problem_label
from records.profiles import COUNTERS, METHOD, METRICS, SCHEMA, cell, sum_of, values
from records.writing import COLUMNS, one_line, printable, table
from steps import sources
from steps.sources import ROOT

USUAL_NCU = "/usr/local/cuda/bin/ncu"  # where the CUDA Toolkit puts it, often not on PATH

# All executed warp instructions by SASS opcode with its modifiers, as in "HMMA.16816.F32: 320; LDS.128: 64".
HISTOGRAM = "sass__inst_executed_per_opcode_with_modifier_all"
TABLE = '"ID",'  # how the table begins in what ncu writes


class ProfileError(Exception):
    """One line for the user: nothing can be profiled."""


class NotProfiled(Exception):
    """One line for the user: this step cannot be."""


# What ncu writes.


def number(text: str) -> float | None:
    """A number of ncu's CSV, with its commas. None for what this GPU does not count."""
    text = text.replace(",", "")
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        return None
    return float(text) if "." in text else int(text)


def parse_histogram(text: str) -> dict[str, int]:
    """'1,200 (FFMA: 1,000; LDS.128: 200)' by opcode."""
    found = re.fullmatch(r"[\d,]+ \((.*)\)", text)
    pairs = [item.rsplit(": ", 1) for item in found[1].split("; ")] if found else []
    counts = {pair[0]: number(pair[-1]) for pair in pairs}
    if not counts or any(not isinstance(count, int) for count in counts.values()):
        raise NotProfiled(f"ncu's histogram of opcodes cannot be read: '{text[:80]}'")
    return counts  # type: ignore[return-value]


def parse_csv(log: str, launches: int = 1) -> list[dict[str, Any]]:
    """Metrics and opcodes of each launch in what ncu wrote: messages, then a table."""
    header, _units, *rows = csv.reader(log[log.index(TABLE) :].splitlines())
    rows = [row for row in rows if len(row) == len(header)]
    if len(rows) != launches:
        raise NotProfiled(f"ncu's table has {len(rows)} launches, it must be {launches}")
    return [parse_row(dict(zip(header, row))) for row in rows]


def parse_row(row: dict[str, str]) -> dict[str, Any]:
    # "1,200 (0x10: 1,000; 0x20: 200)": a sum may be followed by what it is made of
    read = {name: number(row.get(counter.source, "").split(" (")[0]) for name, counter in METRICS.items()}
    metrics = {name: value for name, value in read.items() if value is not None}
    return {"metrics": metrics, "opcodes": parse_histogram(row.get(HISTOGRAM, ""))}


# Running it.


def run(command: list[str | Path]) -> subprocess.CompletedProcess:
    try:
        # Numbers with English commas, whatever the user's language.
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    except OSError as error:
        raise ProfileError(f"{command[0]} cannot be run: {error.strerror}") from error


def find_ncu() -> tuple[str, str]:
    """Where it is, and its version."""
    ncu = shutil.which("ncu") or shutil.which(USUAL_NCU)
    if ncu is None:
        raise ProfileError(
            "ncu (NVIDIA Nsight Compute) is missing: it comes with the CUDA Toolkit; put its folder on PATH"
        )
    found = re.search(r"Version ([\d.]*\d)", run([ncu, "--version"]).stdout)
    if found is None:
        raise ProfileError(f"{ncu} --version: says no version")
    return ncu, found[1]


def complaint(output: str) -> str:
    """The program's own last line of complaint."""
    lines = re.findall(r"^flashsteps: (?:--backend cuda: )?(.*)", output, re.MULTILINE)
    return lines[-1] if lines else ""


def need_program(program: Path) -> None:
    """And a GPU. Without ncu, whose message about a missing driver is about itself."""
    if not program.is_file():
        build = "cmake --preset release && cmake --build build --target flashsteps"
        raise ProfileError(f"{program} does not exist: build it first ({build})")
    done = run([program, "info", "--backend", "cuda"])
    if done.returncode != 0:
        raise ProfileError(f"there is no GPU to profile on: {complaint(done.stderr) or f'{program} info fails'}")


def ncu_command(ncu: str, step: str, log: Path, launches: int) -> list[str]:
    return [
        ncu, "--log-file", str(log), "--csv", "--page", "raw", "--print-units", "base",
        "--print-metric-instances", "details", "--clock-control", "none", "--cache-control", "all",
        "--kernel-name-base", "demangled", "--kernel-name", rf"regex:\b{step}::\w",
        "--launch-count", str(launches), "--metrics", ",".join([*(c.source for c in METRICS.values()), HISTOGRAM]),
    ]  # fmt: skip


def ncu_failure(log: str, step: str) -> Exception:
    """Why there is no profile, as far as ncu says."""
    if "ERR_NVGPUCTRPERM" in log:
        return ProfileError(
            "the GPU's counters are locked for this user (ERR_NVGPUCTRPERM): run this as root (sudo), or "
            "have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; NVIDIA's page "
            "'ERR_NVGPUCTRPERM: Permission issue with Performance Counters' says how"
        )
    if unknown := re.search(r"Failed to find metric \W*(?:regex:\^)?(\w+)", log):
        return ProfileError(f"this ncu does not know the metric {unknown[1]}: a newer one is needed")
    said = re.findall(r"(No kernels were profiled|(?<===ERROR== ).*)", log)
    said = [line for line in said if "application returned an error" not in line] or said
    return NotProfiled(f"{step}: ncu: {said[0].strip() if said else 'failed without saying why'}")


def profile(ncu: str, program: Path, words: list[str], launches: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """One step, one problem: the program's own results file, and the step's entry of the record."""
    step = program.name
    with tempfile.TemporaryDirectory(prefix="flashsteps-ncu-") as folder:
        log_file, results_file = Path(folder, "log"), Path(folder, "results.json")
        check = [str(program), "check", "--backend", "cuda", *words, "--json", str(results_file)]
        done = run([*ncu_command(ncu, step, log_file, launches), *check])
        table, written = (
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            for path in (log_file, results_file)
        )
    output = done.stdout + done.stderr
    log = table + output  # ncu may complain in either
    if "ERR_NVGPUCTRPERM" in log:
        raise ncu_failure(log, step)
    try:
        results = json.loads(written)
        entry = results["runs"][0]["steps"][0]
    except (ValueError, LookupError):  # the program did not get that far, or ncu did not start it
        reason = complaint(output)
        raise (ProfileError(reason) if reason else ncu_failure(log, step)) from None
    if entry["status"] == "skip":
        return results, {"step": step, "status": "skip", "message": entry["message"]}
    if entry["status"] != "pass":
        label = problem_label(results["runs"][0]["problem"])
        raise NotProfiled(f"{step} on {label} is not profiled: {entry['status']}: {one_line(entry['message'])}")
    if TABLE not in table:
        raise ncu_failure(log, step)
    needed = len(entry.get("kernels") or [entry])
    if needed > launches:  # only the program knows how many, and it says so at its end
        return profile(ncu, program, words, needed)
    kernels = parse_csv(table, launches)
    counted = kernels[0] if launches == 1 else {**sum_of(kernels), "kernels": kernels}
    return results, {"step": step, "status": "pass", "message": "", **counted}


def add(record: dict[str, Any], results: dict[str, Any], entry: dict[str, Any]) -> None:
    origin = results["provenance"] | {"ncu": record["provenance"]["ncu"], "method": METHOD}
    first = {**origin, **record["provenance"]}
    # The date is that of the first launch. All else must be the same for all.
    if different := [key for key in origin if key != "date" and origin[key] != first[key]]:
        said = f"{entry['step']} is not from the same build as the steps before it ({different[0]} differs)"
        raise ProfileError(f"{said}: build all of them")
    record["provenance"], problem = first, results["runs"][0]["problem"]
    runs = [each for each in record["runs"] if each["problem"] == problem]
    if not runs:
        runs = [{"problem": problem, "steps": []}]
        record["runs"] += runs
    if entry["step"] not in [step["step"] for step in runs[0]["steps"]]:  # or the same problem in other words
        runs[0]["steps"].append(entry)


# The table in the terminal.


def format_run(problem_run: dict[str, Any]) -> str:
    passed = [step for step in problem_run["steps"] if step["status"] == "pass"]
    counted = {step["step"]: step for step in passed}
    for step in passed:
        counted |= {f"{step['step']}[{k}]": kernel for k, kernel in enumerate(step.get("kernels", []), start=1)}
    columns = [values(each["metrics"], each["opcodes"]) for each in counted.values()]
    rows = [[counter.name, *(cell(counter.name, its.get(counter.name)) for its in columns)] for counter in COUNTERS]
    lines = [problem_label(problem_run["problem"]), table([["counter", *counted], *rows])]
    lines += [f"  {counter.name}: {counter.meaning}" for counter in COUNTERS]
    lines.append("")
    for step in passed:
        total = sum(step["opcodes"].values())
        top = sorted(step["opcodes"].items(), key=lambda item: -item[1])[:10]
        shares = ", ".join(f"{opcode} {count / total:.0%}" for opcode, count in top)
        lines += textwrap.wrap(f"  {step['step']} executes mostly {shares}", COLUMNS, subsequent_indent="    ")
    return "\n".join(lines)


def problems(options: argparse.Namespace) -> Iterator[list[str]]:
    """The words of one problem after the other, in the order of flashsteps itself."""
    masks = ["--full"] if options.full or not options.causal else []
    masks += ["--causal"] if options.causal else []
    allowed = ["--fast"] * options.fast + ["--no-lse"] * options.no_lse
    for shape, dtype, mask in itertools.product(options.shape or ["1,4,256,64"], options.dtype or ["fp16"], masks):
        yield ["--shape", shape, "--dtype", dtype, mask, *allowed]


def complain(error: object) -> None:
    print(f"profile_ncu.py: {printable(error)}", file=sys.stderr)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps_help = "a step, or the beginning of its name, as v02 (default: all)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--shape", action="append", help="as flashsteps takes it, e.g. 4,32,4096,64 (repeatable)")
    parser.add_argument("--dtype", action="append", help="element type: fp32, fp16, bf16 or e4m3 (repeatable)")
    parser.add_argument("--causal", action="store_true", help="causal mask (with --full: both)")
    parser.add_argument("--full", action="store_true", help="no mask (the default)")
    parser.add_argument("--fast", action="store_true", help="e4m3: steps may approximate")
    parser.add_argument("--no-lse", action="store_true", help="no log-sum-exp is wanted")
    parser.add_argument("--json", type=writing.writable, metavar="FILE", help="write a record to this file")
    return parser.parse_intermixed_args(arguments)


def profile_all(options: argparse.Namespace) -> int:
    named = [sources.find_step(name) for name in options.steps]
    programs = [options.build / "steps" / step for step in dict.fromkeys(named) or sources.all_steps()]
    need_program(programs[0])
    ncu, version = find_ncu()
    record: dict[str, Any] = {"schema": SCHEMA, "complete": False, "provenance": {"ncu": version}, "runs": []}
    failed, printed = False, 0
    for words in problems(options):
        for program in programs:
            print(f"profiling {program.name} {' '.join(words)}", file=sys.stderr, flush=True)
            try:
                results, entry = profile(ncu, program, words)
            except NotProfiled as error:
                complain(error)
                failed = True
                continue
            if entry["status"] == "skip":
                line = f"{program.name} cannot run {problem_label(results['runs'][0]['problem'])}: {entry['message']}"
                if named:
                    raise ProfileError(line)
                print(f"SKIP  {line}", file=sys.stderr)
            add(record, results, entry)
            writing.save(options.json, record)
        for problem_run in record["runs"][printed:]:
            print(format_run(problem_run) + "\n", flush=True)
            printed += 1
    record["complete"] = not failed
    if record["runs"]:
        writing.save(options.json, record)
    return int(failed)


def main(arguments: list[str] | None = None) -> int:
    try:
        return profile_all(parse(arguments))
    except (ProfileError, sources.StepError) as error:
        complain(error)
    except OSError as error:
        complain(f"the record could not be written: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
