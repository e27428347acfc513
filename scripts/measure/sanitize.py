#!/usr/bin/env python3
"""Runs compute-sanitizer over steps and writes a summary: memcheck on the covering sample, but for layout far,
whose tensors reserve 16 GiB, and racecheck, initcheck and synccheck on a dozen named problems.

    python3 scripts/measure/sanitize.py [STEP...] [--build build] [--out FILE.txt]

Needs a GPU, and compute-sanitizer from the CUDA Toolkit. Exit status: 0 when every run is clean.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT, all_steps

# Small, since racecheck follows every shared access. Ragged, one tile and several, unequal lengths, GQA, MQA.
SHAPES = [
    "1,2,64,64",
    "2,4,2,65,127,64",
    "1,2,200,64",
    "1,3,1,127,200,128",
    "2,2,2,150,40,128",
    "1,8,2,1,200,64",
]
PROBLEMS = [*(word for shape in SHAPES for word in ("--shape", shape)), "--causal", "--full"]

TOOLS = {
    "memcheck": ["--memory", "1"],  # no problems: the covering sample, but for layout far
    "racecheck": PROBLEMS,
    "initcheck": PROBLEMS,
    "synccheck": PROBLEMS,
}


def find_sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def summary_line(output: str) -> str:
    """The sanitizer's own closing line; without one nothing was checked."""
    lines = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
    return lines[-1] if lines else "no summary: the sanitizer did not finish"


def what_passed(output: str) -> str:
    """How many problems; of the covering sample also how many were skipped, and why."""
    covered = re.search(r"\d+ of \d+ problems of the covering sample(, \d+ skipped \([^)]*\))?", output)
    return covered[0] if covered else f"{len(re.findall(r'^PASS  ', output, re.MULTILINE))} problems passed"


def is_clean(line: str) -> bool:
    clean = r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)"
    return re.fullmatch(clean, line) is not None


def run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help="which steps (default: all)")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--out", type=Path, help="write the summary here as well")
    options = parser.parse_args()

    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("sanitize.py: compute-sanitizer is missing; it comes with the CUDA Toolkit", file=sys.stderr)
        return 2
    steps = options.steps or all_steps()
    for step in steps:
        if not (options.build / "steps" / step).exists():
            print(f"sanitize.py: {options.build / 'steps' / step} does not exist; build it first", file=sys.stderr)
            return 2

    info = run([options.build / "flashsteps", "info"]).stdout.splitlines()
    version = run([sanitizer, "--version"]).stdout.strip().splitlines()[-1]
    lines = [
        f"compute-sanitizer {version}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        *(line for line in info if line.startswith("commit") or '"name"' in line or '"driver"' in line),
        "named problems: " + " ".join(PROBLEMS),
        "",
    ]
    print("\n".join(lines), flush=True)
    all_clean = True
    for step in steps:
        for tool, problems in TOOLS.items():
            started = time.monotonic()
            check = [options.build / "steps" / step, "check", "--backend", "cuda", *problems]
            done = run([sanitizer, "--tool", tool, *check])
            line = summary_line(done.stdout + done.stderr).strip()
            clean = done.returncode == 0 and is_clean(line)
            all_clean = all_clean and clean
            lines.append(
                f"{step:24} {tool:10} {'clean' if clean else 'NOT CLEAN'}: {line}; {what_passed(done.stdout)}; "
                f"exit {done.returncode}; {time.monotonic() - started:.0f} s"
            )
            print(lines[-1], flush=True)
            if not clean:
                print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all_clean else 1


if __name__ == "__main__":
    sys.exit(main())
