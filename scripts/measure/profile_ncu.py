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
from pathlib import Path
from typing import Any, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import files
from records.problems import problem_label
from records.profiles import COUNTERS, METHOD, METRICS, SCHEMA, cell, sum_of, values
from records.terminal import printable, table
from steps import sources
from steps.sources import ROOT

USUAL_NCU = "/usr/local/cuda/bin/ncu"  # where the CUDA Toolkit puts it, often not on PATH

# All executed warp instructions by SASS opcode with its modifiers, as in "HMMA.16816.F32: 320; LDS.128: 64".
HISTOGRAM = "sass__inst_executed_per_opcode_with_modifier_all"
TABLE = '"ID",'  # how the table begins in what ncu writes


class ProfileError(Exception):
    """One line for the user, and the exit status."""

    def __init__(self, line: str, status: int = 2):
        super().__init__(line)
        self.status = status


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
        raise ProfileError(f"ncu's histogram of opcodes cannot be read: '{text[:80]}'", 1)
    return counts  # type: ignore[return-value]


def parse_csv(log: str, launches: int = 1) -> list[dict[str, Any]]:
    """Metrics and opcodes of each launch in what ncu wrote: messages, then a table."""
    header, _units, *rows = csv.reader(log[log.index(TABLE) :].splitlines())
    rows = [row for row in rows if len(row) == len(header)]
    if len(rows) != launches:
        raise ProfileError(f"ncu's table has {len(rows)} launches, it must be {launches}", 1)
    return [parse_row(dict(zip(header, row))) for row in rows]


def parse_row(row: dict[str, str]) -> dict[str, Any]:
    metrics: dict[str, float] = {}
    for name, counter in METRICS.items():
        # "1,200 (0x10: 1,000; 0x20: 200)": a sum may be followed by what it is made of
        value = number(row.get(counter.source, "").split(" (")[0])
        if value is None:
            continue
        if counter.unit != "%" and not isinstance(value, int):
            raise ProfileError(f"ncu says {counter.source} = {value}, it must be a whole number", 1)
        metrics[name] = value
    return {"metrics": metrics, "opcodes": parse_histogram(row.get(HISTOGRAM, ""))}


# Running it.


def find_ncu() -> str:
    found = shutil.which("ncu") or shutil.which(USUAL_NCU)
    if found is None:
        raise ProfileError(
            "ncu (NVIDIA Nsight Compute) is missing: it comes with the CUDA Toolkit; put its folder on PATH"
        )
    return found


def run(command: list[str | Path]) -> subprocess.CompletedProcess:
    try:
        # Numbers with English commas, whatever the user's language.
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    except OSError as error:
        raise ProfileError(f"{command[0]} cannot be run: {error.strerror}") from error


def ncu_version(ncu: str) -> str:
    done = run([ncu, "--version"])
    found = re.search(r"Version ([\d.]*\d)", done.stdout)
    if found is None:
        raise ProfileError(f"{ncu} --version: says no version")
    return found[1]


def complaint(output: str) -> str:
    """The program's own last line of complaint."""
    lines = [line for line in output.splitlines() if line.startswith("flashsteps: ")]
    return lines[-1].removeprefix("flashsteps: ") if lines else ""


def need_steps(steps: list[str], build: Path) -> None:
    for step in steps:
        if not (build / "steps" / step).is_file():
            raise ProfileError(
                f"{build / 'steps' / step} does not exist: build it first (cmake --preset release && "
                f"cmake --build build --target flashsteps)"
            )


def need_gpu(program: Path) -> None:
    # Without ncu, whose message about a missing driver is about itself.
    done = run([program, "info", "--backend", "cuda"])
    if done.returncode != 0:
        reason = complaint(done.stderr).removeprefix("--backend cuda: ")
        raise ProfileError(f"there is no GPU to profile on: {reason or f'{program} info fails'}")


def ncu_command(ncu: str, step: str, log: Path, launches: int) -> list[str]:
    return [
        ncu, "--log-file", str(log), "--csv", "--page", "raw", "--print-units", "base",
        "--print-metric-instances", "details", "--clock-control", "none", "--cache-control", "all",
        "--kernel-name-base", "demangled", "--kernel-name", rf"regex:\b{step}::\w",
        "--launch-count", str(launches), "--metrics", ",".join([*(c.source for c in METRICS.values()), HISTOGRAM]),
    ]  # fmt: skip


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def ncu_failure(log: str, step: str) -> ProfileError:
    """Why there is no profile, as far as ncu says."""
    if "ERR_NVGPUCTRPERM" in log:
        return ProfileError(
            "the GPU's counters are locked for this user (ERR_NVGPUCTRPERM): run this as root (sudo), or "
            "have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; NVIDIA's page "
            "'ERR_NVGPUCTRPERM: Permission issue with Performance Counters' says how"
        )
    if "No kernels were profiled" in log:
        return ProfileError(f"ncu saw no launch of a kernel of {step}", 1)
    if unknown := re.search(r"Failed to find metric \W*(?:regex:\^)?(\w+)", log):
        return ProfileError(f"this ncu does not know the metric {unknown[1]}: a newer one is needed")
    errors = re.findall(r"==ERROR== (.*)", log)
    errors = [line for line in errors if "application returned an error" not in line] or errors
    return ProfileError(f"{step}: ncu: {errors[0].strip() if errors else 'failed without saying why'}", 1)


def profile(
    ncu: str, program: Path, words: list[str], launches: int = 1
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One step, one problem: the program's own results file, and the step's entry of the record."""
    step = program.name
    with tempfile.TemporaryDirectory(prefix="flashsteps-ncu-") as folder:
        log_file, results_file = Path(folder, "log"), Path(folder, "results.json")
        check = [str(program), "check", "--backend", "cuda", *words, "--json", str(results_file)]
        done = run([*ncu_command(ncu, step, log_file, launches), *check])
        table, written = read_text(log_file), read_text(results_file)
    output = done.stdout + done.stderr
    log = table + output  # ncu may complain in either
    if "ERR_NVGPUCTRPERM" in log:
        raise ncu_failure(log, step)
    try:
        results = json.loads(written)
        label = problem_label(results["runs"][0]["problem"])
        entry = results["runs"][0]["steps"][0]
    except (ValueError, KeyError, IndexError):  # the program did not get that far, or ncu did not start it
        reason = complaint(output)
        raise (ProfileError(reason) if reason else ncu_failure(log, step)) from None
    if entry["status"] == "skip":
        return results, {"step": step, "status": "skip", "message": entry["message"]}
    if entry["status"] != "pass":
        first_line = entry["message"].strip().split("\n")[0]
        raise ProfileError(f"{step} on {label} is not profiled: {entry['status']}: {first_line}", 1)
    if TABLE not in table:
        raise ncu_failure(log, step)
    needed = len(entry.get("kernels") or [entry])
    if needed > launches:  # only the program knows how many, and it says so at its end
        return profile(ncu, program, words, needed)
    kernels = parse_csv(table, launches)
    counted = kernels[0] if launches == 1 else {**sum_of(kernels), "kernels": kernels}
    return results, {"step": step, "status": "pass", "message": "", **counted}


# The record.


class Record:
    """The file that is written with --json, after every launch."""

    def __init__(self, path: Path | None, version: str):
        self.path, self.version = path, version
        self.data: dict[str, Any] = {"schema": SCHEMA, "complete": False, "provenance": None, "runs": []}

    def add(self, results: dict[str, Any], entry: dict[str, Any]) -> None:
        origin = {**results["provenance"], "ncu": self.version, "method": METHOD}
        first = self.data["provenance"] = self.data["provenance"] or origin
        # The date is that of the first launch. All else must be the same for all.
        for key in origin:
            if key != "date" and origin[key] != first[key]:
                raise ProfileError(
                    f"{entry['step']} is not from the same build as the steps before it ({key} differs): "
                    "build all of them"
                )
        run_of = [each for each in self.data["runs"] if each["problem"] == results["runs"][0]["problem"]]
        if not run_of:
            run_of = [{"problem": results["runs"][0]["problem"], "steps": []}]
            self.data["runs"] += run_of
        if entry["step"] in [step["step"] for step in run_of[0]["steps"]]:
            return  # the same problem in other words
        run_of[0]["steps"].append(entry)
        self.save()

    def save(self) -> None:
        if self.path is None or not self.data["runs"]:
            return
        files.replace(self.path, files.record_text(self.data))


# The table in the terminal.


def format_run(problem_run: dict[str, Any]) -> str:
    passed = [step for step in problem_run["steps"] if step["status"] == "pass"]
    counted = {step["step"]: step for step in passed}
    for step in passed:
        counted |= {f"{step['step']}[{k}]": kernel for k, kernel in enumerate(step.get("kernels", []), start=1)}
    columns = [values(each["metrics"], each["opcodes"]) for each in counted.values()]
    rows = [[counter.name, *(cell(counter.name, its.get(counter.name)) for its in columns)] for counter in COUNTERS]
    meanings = ["what it is", *(counter.meaning for counter in COUNTERS)]
    lines = [problem_label(problem_run["problem"])]
    lines += map("  ".join, zip(table([["counter", *counted], *rows]).splitlines(), meanings))
    for step in passed:
        total = sum(step["opcodes"].values())
        top = sorted(step["opcodes"].items(), key=lambda item: -item[1])[:10]
        shares = ", ".join(f"{opcode} {count / total:.0%}" for opcode, count in top)
        lines.append(f"  {step['step']} executes mostly {shares}")
    return "\n".join(lines)


def problems(options: argparse.Namespace) -> Iterator[list[str]]:
    """The words of one problem after the other, in the order of flashsteps itself."""
    masks = ["--full"] if options.full or not options.causal else []
    masks += ["--causal"] if options.causal else []
    shapes, dtypes = options.shape or ["1,4,256,64"], options.dtype or ["fp16"]
    for shape, dtype, mask in itertools.product(shapes, dtypes, masks):
        yield ["--shape", shape, "--dtype", dtype, mask]


def complain(error: object) -> None:
    print(f"profile_ncu.py: {printable(error)}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps_help = "a step, or the beginning of its name, as v02 (default: all)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--shape", action="append", help="as flashsteps takes it, e.g. 4,32,4096,64 (repeatable)")
    parser.add_argument("--dtype", action="append", help="element type: fp32, fp16 or bf16 (repeatable)")
    parser.add_argument("--causal", action="store_true", help="causal mask (with --full: both)")
    parser.add_argument("--full", action="store_true", help="no mask (the default)")
    parser.add_argument("--json", metavar="FILE", help="write a record to this file")
    options = parser.parse_intermixed_args(arguments)
    try:
        return profile_all(options)
    except (ProfileError, sources.StepError, files.NotWritable) as error:
        complain(error)
        return getattr(error, "status", 2)
    except OSError as error:
        complain(f"the record could not be written: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        return 130


def profile_all(options: argparse.Namespace) -> int:
    named = [sources.find_step(name) for name in options.steps]
    steps = list(dict.fromkeys(named)) or sources.all_steps()
    need_steps(steps, options.build)
    path = None if options.json is None else files.writable(options.json)
    ncu = find_ncu()
    need_gpu(options.build / "steps" / steps[0])
    record = Record(path, ncu_version(ncu))
    complete, printed = True, 0
    for words in problems(options):
        for step in steps:
            print(f"profiling {step} {' '.join(words)}", file=sys.stderr, flush=True)
            try:
                results, entry = profile(ncu, options.build / "steps" / step, words)
            except ProfileError as error:
                if error.status == 2:
                    raise
                complain(error)
                complete = False
                continue
            if entry["status"] == "skip":
                line = f"{step} cannot run {problem_label(results['runs'][0]['problem'])}: {entry['message']}"
                if named:
                    raise ProfileError(line)
                print(f"SKIP  {line}", file=sys.stderr)
            record.add(results, entry)
        for problem_run in record.data["runs"][printed:]:
            print(format_run(problem_run) + "\n", flush=True)
            printed += 1
    record.data["complete"] = complete
    record.save()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
