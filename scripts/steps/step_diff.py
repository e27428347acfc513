#!/usr/bin/env python3
"""The diff of two steps: what a lesson is about.

python3 scripts/steps/step_diff.py v01 v02           a prefix that names one step is enough
python3 scripts/steps/step_diff.py v02               from the step that v02 comes from
python3 scripts/steps/step_diff.py --brief v01 v02   code only, one line of context

It is about what runs: the kernel and what it uses of common/blocks/. Code that only moves from the one to the other is
no difference, nor is any other run of lines that stands elsewhere.
"""
from __future__ import annotations

import argparse
import difflib
import itertools
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps import one_file
from steps.one_file import Line
from steps.sources import StepError, after, find_step, kernel_lines

COMMENT = re.compile(r"\s*//.*$")
BLOCKS = "common/blocks/"


COLORS = {"-": 31, "+": 32, "@": 36}  # of a diff's lines, on a terminal
MOVED = 3  # at least so many lines that follow each other count as moved, not as new


@dataclass
class Part:
    """A declaration, with the lines above it."""

    name: str  # to find it in the other step
    place: str  # its file, or nothing if that is the step's kernel.cu
    lines: list[Line]


@dataclass
class Compared:
    at: str  # place and number of the line
    text: str
    key: str  # what is compared


def what_runs(step: str) -> list[Part]:
    """The step's kernel, below what it uses of common/blocks/."""
    kernel = f"steps/{step}/kernel.cu"
    sources = one_file.with_headers(kernel)
    kept = one_file.used(sources, kernel)
    parts = []
    for source in sources:
        if source.path.startswith(BLOCKS):
            declarations = (piece for piece in source.pieces if id(piece) in kept and piece.kind == "declaration")
            parts += [Part(" ".join(each.names), source.path, [Line(0, ""), *each.lines]) for each in declarations]
    # All lines of the kernel, but for those that name a block.
    lines = [Line(number, text) for number, text in enumerate(kernel_lines(step), start=1)]
    lines = [line for line in lines if not line.text.startswith(f'#include "{BLOCKS}')]
    begin = 0
    for piece in sources[-1].pieces:
        end = next((i for i, line in enumerate(lines) if line.number > piece.lines[-1].number), len(lines))
        parts.append(Part(" ".join(piece.names) or piece.lines[-1].code, "", lines[begin:end]))
        begin = end
    return [*parts, Part("", "", lines[begin:])]


def in_the_order_of(new: list[Part], old: list[Part]) -> list[Part]:
    """Each part stands where the one of its name does, and one without such behind that which it stood behind."""
    places: dict[str, list[int]] = {}  # of overloads, several
    for index, part in enumerate(new):
        places.setdefault(part.name, []).append(index)
    at, order = -1, []
    for part in old:
        if found := places.get(part.name):
            at = found.pop(0)
        order.append(at)
    return [old[index] for index in sorted(range(len(old)), key=lambda index: order[index])]


def lines_of(parts: list[Part], brief: bool) -> list[Compared]:
    """Brief: no comments, blank lines or indentation."""
    lines = []
    for part in parts:
        for line in part.lines:
            key = COMMENT.sub("", line.text).strip() if brief else line.text
            if key or not brief:
                lines.append(Compared(f"{part.place}:{line.number}".lstrip(":"), line.text, key))
    return lines


def moved(old: list[Compared], new: list[Compared], removed: set[int], added: set[int]) -> tuple[set[int], set[int]]:
    """Of what was removed and what was added, the lines that are the same, however far they are indented."""
    by_key: dict[str, list[int]] = {}
    for index in sorted(removed):
        by_key.setdefault(old[index].key.strip(), []).append(index)
    from_, to = set(), set()

    def same(a: int, b: int) -> bool:
        return a in removed - from_ and b in added and old[a].key.strip() == new[b].key.strip()

    for b in sorted(added):
        runs = []
        for a in by_key.get(new[b].key.strip(), []) if b not in to else []:
            length = next(n for n in itertools.count() if not same(a + n, b + n))
            runs.append((length, a))
        length, a = max(runs, default=(0, 0))
        if length >= MOVED:
            from_ |= set(range(a, a + length))
            to |= set(range(b, b + length))
    return from_, to


def diff(first: str, second: str, brief: bool = False) -> tuple[list[str], int, int]:
    """The lines of a unified diff, and how many were added and removed. What has only moved, as from a kernel into a
    block, is neither."""
    new_parts = what_runs(second)
    old = lines_of(in_the_order_of(new_parts, what_runs(first)), brief)
    new = lines_of(new_parts, brief)
    matcher = difflib.SequenceMatcher(None, [line.key for line in old], [line.key for line in new], autojunk=False)
    removed, added = set(range(len(old))), set(range(len(new)))
    for a, b, size in matcher.get_matching_blocks():
        removed -= set(range(a, a + size))
        added -= set(range(b, b + size))
    from_, to = moved(old, new, removed, added)
    removed, added = removed - from_, added - to
    lines = [f"--- steps/{first}/kernel.cu", f"+++ steps/{second}/kernel.cu"]
    for group in matcher.get_grouped_opcodes(1 if brief else 3):
        hunk = []
        for operation, a, b, c, d in group:
            hunk += ["-" + old[index].text for index in range(a, b) if index in removed]
            hunk += [("+" if index in added else " ") + new[index].text for index in range(c, d)]
        if all(line.startswith(" ") for line in hunk):
            continue
        # Lines may be missing in between, or be another file's, so only the place of the first one is told.
        old_from, old_to, new_from, new_to = group[0][1], group[-1][2], group[0][3], group[-1][4]
        old_at = old[old_from].at if old_from < old_to else "0"
        new_at = new[new_from].at if new_from < new_to else "0"
        lines += [f"@@ -{old_at} +{new_at} @@", *hunk]
    return lines, len(added), len(removed)


def colored(text: str, code: int) -> str:
    """In this colour where stdout shows colours, as the program decides it (harness/base/text.cpp)."""
    forced = os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0")
    wanted = not os.environ.get("NO_COLOR") and (forced or sys.stdout.isatty())
    return f"\033[{code}m{text}\033[0m" if wanted else text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The diff of two steps' kernels, with what they use of common/blocks/.")
    parser.add_argument(
        "steps", nargs="+", help="two steps, or prefixes that name them: v01 v02; or one, to see what it changes"
    )
    parser.add_argument(
        "--brief", action="store_true", help="leave out comments and blank lines, 1 line of context"
    )
    options = parser.parse_args(arguments)
    try:
        steps = [find_step(name) for name in options.steps]
        if len(steps) == 1:
            steps.insert(0, after(steps[0]) or steps[0])
        if len(steps) > 2:
            raise StepError("a diff is of two steps")
        lines, added, removed = diff(*steps, options.brief)
    except (StepError, OSError, UnicodeDecodeError) as error:
        print(f"step_diff.py: {error}", file=sys.stderr)
        return 2
    for line in lines:
        color = COLORS.get(line[:1])
        print(colored(line, color) if color else line)
    print(f"{added} lines added, {removed} removed")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` and `| less` may stop reading: no traceback
    sys.exit(main())
