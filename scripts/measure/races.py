#!/usr/bin/env python3
"""Runs the programs of docs/races and writes down what comes of them, for the page in that folder.

    python3 scripts/measure/races.py emulator [NAME...] [--flashsteps build/flashsteps]
    python3 scripts/measure/races.py gpu [NAME...] [--runs 20] [--blocks 1056]

The first writes docs/races/emulator.json: what the emulator reports of each program. The second writes
docs/races/gpu.json: how often each program and its mended twin are wrong on a GPU, and what compute-sanitizer says of
both. It needs a GPU of sm_90, and nvcc and compute-sanitizer of the CUDA Toolkit. Of programs that are not named, the
files keep what they have. Then scripts/pages/readme_tables.py brings the page up to date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure.sanitize import summary_line
from steps.sources import ROOT

FOLDER = ROOT / "docs" / "races"
TWINS = {"bug": [], "mended": ["-DMENDED"]}
TOOLS = ("racecheck", "memcheck", "synccheck")
BLOCKS_FOR_TOOLS = "4"  # a sanitizer follows every access
PATIENCE, PATIENCE_OF_TOOLS = 20, 90  # seconds


def programs() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def two_lines(name: str) -> list[int]:
    """Those of a program's two accesses, which have a comment that says so."""
    lines = (FOLDER / f"{name}.cu").read_text(encoding="utf-8").splitlines()
    mark = re.compile(r"// +the (?:arrival|copy|load|read|store|wgmma|write)$")
    return [number for number, line in enumerate(lines, start=1) if mark.search(line)]


def recorded(where: str) -> dict[str, Any]:
    """What docs/races has of the emulator or of a GPU; nothing, if it has not been measured."""
    path = FOLDER / f"{where}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def findings(said: str) -> list[str]:
    """What `flashsteps emulate` says of races, each in a line."""
    return re.findall(r"^flashsteps: finding \d+: (.*)", said, re.MULTILINE)


def on_emulator(flashsteps: Path, name: str) -> str:
    """The first finding, without the addresses of allocations, which differ from run to run."""
    command = [flashsteps, "emulate", f"docs/races/{name}.cu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return re.sub("0x[0-9a-f]{6,}", "0x…", next(iter(findings(done.stderr)), ""))


def outcome(*command: str | Path) -> str:
    """ "ok", "wrong: 3 of 128 elements", or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return "hangs"
    said = done.stdout.strip()
    return said if done.returncode == 0 and said else f"exit status {done.returncode}"


def repeated(program: Path, blocks: int, runs: int) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    while outcomes.total() < runs and outcomes["hangs"] < 2:
        outcomes[outcome(program, str(blocks))] += 1
    return {"runs": outcomes.total(), "blocks": blocks, "outcomes": dict(outcomes.most_common())}


def sanitized(tool: str, program: Path, name: str) -> dict[str, Any]:
    command = ["compute-sanitizer", "--tool", tool, str(program), BLOCKS_FOR_TOOLS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_OF_TOOLS)
    except subprocess.TimeoutExpired:
        return {"summary": "hangs", "lines": []}
    said = done.stdout + done.stderr
    on_device = [line for line in said.splitlines() if "Host Frame" not in line]
    places = re.findall(rf"\b{name}\.cu:(\d+)", "\n".join(on_device))
    return {"summary": summary_line(said), "lines": sorted(map(int, set(places)))}


def on_gpu(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for twin, macros in TWINS.items():
        program = folder / f"{name}_{twin}"
        architecture = ["-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-lineinfo"]
        subprocess.run(["nvcc", *architecture, *macros, "-o", program, FOLDER / f"{name}.cu"], check=True)
        result[twin] = {"plain": repeated(program, options.blocks, options.runs)}
        with ThreadPoolExecutor() as pool:
            result[twin] |= zip(TOOLS, pool.map(lambda tool: sanitized(tool, program, name), TOOLS))
        print(name, twin, result[twin]["plain"]["outcomes"], result[twin]["racecheck"]["summary"], flush=True)
    return result


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def provenance() -> dict[str, str]:
    gpus = said_by("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, driver = gpus.splitlines()[0].split(", ")
    (nvcc,) = re.findall(r"release .*V(\S+)", said_by("nvcc", "--version"))
    (sanitizer,) = re.findall(r"[Vv]ersion (\S+)", said_by("compute-sanitizer", "--version"))[:1]
    return {"gpu": name, "driver": driver, "nvcc": nvcc, "sanitizer": sanitizer}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=("emulator", "gpu"))
    parser.add_argument("names", nargs="*", help="which programs (default: all)")
    parser.add_argument("--flashsteps", type=Path, default=ROOT / "build" / "flashsteps")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=1056)
    parser.add_argument("--commit", default="", help="of the programs, where there is no repository")
    parser.add_argument("--json", type=Path, help="where to write (default: in docs/races)")
    options = parser.parse_args()
    for tool in ("nvcc", "compute-sanitizer") if options.where == "gpu" else ():
        if shutil.which(tool) is None:
            parser.error(f"there is no {tool}")
    path = options.json or FOLDER / f"{options.where}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {name: each for name, each in record.get("programs", {}).items() if name in programs()}
    if options.where == "gpu":
        here = provenance()
        if record.get("provenance", here) != here:
            parser.error(f"{path} is of {record['provenance']}, and this is {here}: delete it to measure all anew")
        record["provenance"] = here
        commit = options.commit or said_by("git", "-C", str(ROOT), "rev-parse", "HEAD")
        date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or programs():
            if options.where == "emulator":
                kept[name] = on_emulator(options.flashsteps.resolve(), name)
            else:
                kept[name] = {"commit": commit, "date": date} | on_gpu(name, options, Path(folder))
            record["programs"] = dict(sorted(kept.items()))  # written each time: a session on a GPU may end
            path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
