#!/usr/bin/env python3
"""The diff of two steps' kernels: what a lesson is about.

python3 scripts/steps/step_diff.py v01 v02           a prefix that names one step is enough
python3 scripts/steps/step_diff.py --brief v01 v02   code only, one line of context
"""
from __future__ import annotations

import argparse
import difflib
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT, StepError, find_step, kernel_lines

COMMENT = re.compile(r"\s*//.*$")


def numbered(lines: list[str], brief: bool) -> list[tuple[int, str, str]]:
    """Line number, line, and what of it is compared. Brief: no comments, blank lines or indentation."""
    if not brief:
        return [(number, line, line) for number, line in enumerate(lines, start=1)]
    codes = ((number, line, COMMENT.sub("", line).strip()) for number, line in enumerate(lines, start=1))
    return [(number, line, code) for number, line, code in codes if code]


def diff(before: str, after: str, root: Path = ROOT, brief: bool = False) -> tuple[list[str], int, int]:
    """The lines of a unified diff, and how many were added and removed."""
    old, new = (numbered(kernel_lines(step, root), brief) for step in (before, after))
    matcher = difflib.SequenceMatcher(
        None, [item[2] for item in old], [item[2] for item in new], autojunk=False
    )
    lines = [f"--- steps/{before}/kernel.cu", f"+++ steps/{after}/kernel.cu"]
    added = removed = 0
    for group in matcher.get_grouped_opcodes(1 if brief else 3):
        old_from, old_to, new_from, new_to = group[0][1], group[-1][2], group[0][3], group[-1][4]
        # In a brief diff lines are missing in between, so only the number of the first one is told.
        spans = [
            f"{items[start][0] if start < end else 0}" + ("" if brief else f",{end - start}")
            for items, start, end in ((old, old_from, old_to), (new, new_from, new_to))
        ]
        lines.append(f"@@ -{spans[0]} +{spans[1]} @@")
        for operation, a, b, c, d in group:
            if operation == "equal":
                lines += [" " + item[1] for item in new[c:d]]
                continue
            lines += ["-" + item[1] for item in old[a:b]]
            lines += ["+" + item[1] for item in new[c:d]]
            removed += b - a
            added += d - c
    return lines, added, removed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The diff of two steps' kernel.cu.")
    parser.add_argument("before", help="a step, or a prefix that names one: v01")
    parser.add_argument("after")
    parser.add_argument(
        "--brief", action="store_true", help="leave out comments and blank lines, 1 line of context"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    try:
        before, after = (find_step(name, options.root) for name in (options.before, options.after))
        lines, added, removed = diff(before, after, options.root, options.brief)
    except (StepError, OSError, UnicodeDecodeError) as error:
        print(f"step_diff.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    print(f"{added} lines added, {removed} removed")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` and `| less` may stop reading: no traceback
    sys.exit(main())
