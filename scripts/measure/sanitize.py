#!/usr/bin/env python3
"""Runs compute-sanitizer over steps and prints a summary: memcheck on the covering sample, but for layout far,
whose tensors reserve 16 GiB, and racecheck, initcheck and synccheck on a dozen named problems.

    python3 scripts/measure/sanitize.py [STEP...] [--build build]

Needs a GPU, and compute-sanitizer from the CUDA Toolkit. Exit status: 0 when every run is clean, 1 when one is not,
2 for something that is missing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT, StepError, all_steps, find_step

# Small, since racecheck follows every shared access. Ragged, one tile and several, unequal lengths, GQA, MQA.
SHAPES = ("1,2,64,64", "2,4,2,65,127,64", "1,2,200,64", "1,3,1,127,200,128", "2,2,2,150,40,128", "1,8,2,1,200,64")
PROBLEMS = [*(word for shape in SHAPES for word in ("--shape", shape)), "--causal", "--full"]
TOOLS = {
    "memcheck": ["--memory", "1"],  # no problems: the covering sample, but for layout far
    "racecheck": PROBLEMS,
    "initcheck": PROBLEMS,
    "synccheck": PROBLEMS,
}
CLEAN = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")


def summary_line(output: str) -> str:
    """The sanitizer's own closing line; without one nothing was checked."""
    lines = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: (?!.* not printed).*\S)", output)
    return lines[-1] if lines else "no summary: the sanitizer did not finish"


def what_passed(output: str) -> str:
    """How many problems; of the covering sample also how many were skipped, and why."""
    covered = re.search(r"(\d+ of \d+ problems), .*s(?:\n +(\d+ skipped \([^)]*\)))?", output)
    return ", ".join(filter(None, covered.groups())) if covered else f"{len(re.findall(r'^PASS  ', output, re.MULTILINE))} problems passed"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    plain = os.environ | {"NO_COLOR": "1"}  # its words are read
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=plain)


def sanitize(options: argparse.Namespace, steps: list[str]) -> bool:
    """Was every run clean?"""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    version = run(sanitizer, "--version").stdout.strip().splitlines()[-1]
    info = run(options.build / "flashsteps", "info").stdout.splitlines()
    print(f"compute-sanitizer {version}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}")
    for line in info:
        if line.split()[:1] in (["commit"], ["name"], ["driver"]):
            print(line)
    print(f"named problems: {' '.join(PROBLEMS)}\n", flush=True)
    all_clean = True
    for step in steps:
        for tool, problems in TOOLS.items():
            started = time.monotonic()
            check = (options.build / "steps" / step, "check", "--backend", "cuda", *problems)
            done = run(sanitizer, "--tool", tool, *check)
            line = summary_line(done.stdout + done.stderr)
            clean = done.returncode == 0 and line in CLEAN
            all_clean = all_clean and clean
            print(
                f"{step:24} {tool:10} {'clean' if clean else 'NOT CLEAN'}: {line}; {what_passed(done.stdout)}; "
                f"exit {done.returncode}; {time.monotonic() - started:.0f} s",
                flush=True,
            )
            if not clean:
                print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), file=sys.stderr)
    return all_clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help="which steps, or the beginnings of their names (default: all)")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    try:
        return 0 if sanitize(options, [find_step(name) for name in options.steps] or all_steps()) else 1
    except (StepError, OSError) as error:  # OSError: the sanitizer or the program does not exist
        print(f"sanitize.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
