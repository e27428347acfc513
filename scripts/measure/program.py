"""What is asked of flashsteps itself, so that it is said in one place: `flashsteps problems`."""
from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

from records.problems import recorded
from steps.sources import ROOT

DEFAULT = ROOT / "build" / "flashsteps"


class Refused(Exception):
    """The program's own line: what was asked for cannot be."""


class Unavailable(Exception):
    """One line for the user: what is missing, and what to do about it."""


@functools.lru_cache(maxsize=None)
def ask(program: Path, *words: str) -> dict[str, Any]:
    """`problems`, as results files have them; `gates` by type; with --contenders also the `orders` of rounds."""
    try:
        done = subprocess.run([program, "problems", *words], capture_output=True, text=True)
    except OSError as error:
        build = "cmake --preset release && cmake --build build --target flashsteps"
        raise Unavailable(f"{program} cannot be run: {error.strerror}; build it ({build})") from error
    if done.returncode != 0:
        raise Refused(done.stderr.strip().removeprefix("flashsteps: ") or f"{program} problems failed")
    answer = json.loads(done.stdout)
    return answer | {"problems": [recorded(problem) for problem in answer["problems"]]}


def order_of_round(program: Path, contenders: int, round_: int) -> list[int]:
    """Who comes at which place. After 2 * contenders rounds the orders are those of the beginning."""
    if contenders == 0:
        return []
    orders = ask(program, f"--contenders={contenders}", f"--rounds={2 * contenders}")["orders"]
    return orders[round_ % len(orders)]
