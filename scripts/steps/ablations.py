#!/usr/bin/env python3
"""Ablations: a step with one thing changed, to see what that thing is worth.

    python3 scripts/steps/ablations.py [STEP...]             list them; exit status 1 when one does not apply
    python3 scripts/steps/ablations.py --out DIR [STEP...]   also write them, as steps: DIR/STEP_VARIANT/kernel.cu;
                                                             removes others that it made there, but overwrites no edit
    python3 scripts/steps/ablations.py --pages DIR ...       other pages: docs/exercises; harness/tests/bugs, /exercises

An ablation is a page, docs/ablations/STEP/VARIANT.md. Its heading says what is changed. Each of its ```diff
blocks is a change of steps/STEP/kernel.cu: what begins with '-' or a space must stand there, at exactly one
place, and what begins with '+' or a space takes its place.

No line numbers, and nothing is matched approximately: a page applies as long as the lines that it names are
there, and otherwise says so. It needs neither patch nor git, and is read like any other page.
"""
from __future__ import annotations

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT, StepError, all_steps, find_step, find_title, kernel_lines

VARIANT = re.compile(r"[a-z][a-z0-9_]*")
PAGES = "docs/ablations"
MADE = "// Made by scripts/steps/ablations.py from "
CHECKSUM = "kernel.cu.sha256"  # beside each kernel that was written, to tell whether somebody has edited it


class AblationError(Exception):
    """One line for the user."""


@dataclass(frozen=True)
class Change:
    line: int  # of the page, from 1
    old: list[str]
    new: list[str]


@dataclass(frozen=True)
class Ablation:
    step: str
    variant: str
    page: str  # relative to the repository
    title: str
    changes: list[Change]

    @property
    def name(self) -> str:
        return step_name(Path(self.page))


def step_name(page: Path) -> str:
    """As a step, and so as a C++ namespace: two underscores in a row are kept for the compiler."""
    return f"{page.parent.name}_{page.stem}"


def parse_change(lines: list[str], first_line: int, page: str) -> Change:
    old, new = [], []
    for number, line in enumerate(lines, start=first_line):
        kind, text = line[:1] or " ", line[1:].rstrip()  # editors take the space of an empty line away
        if kind not in " -+":
            raise AblationError(f"{page}:{number}: a line of a diff begins with '-', '+' or a space")
        if kind in " -":
            old.append(text)
        if kind in " +":
            new.append(text)
    if old == new:
        raise AblationError(f"{page}:{first_line}: changes nothing")
    if not old:
        raise AblationError(f"{page}:{first_line}: where? Add a line of the kernel before or after")
    return Change(first_line, old, new)


def parse(text: str, page: str) -> tuple[str, list[Change]]:
    """Title and changes of a page."""
    lines = text.splitlines()
    if not lines or not re.fullmatch(r"# \S.*", lines[0]):
        raise AblationError(f"{page}:1: begins with a heading that says what is changed: '# One stage'")
    changes = []
    fence, opened = "", 0
    for number, line in enumerate(lines, start=1):
        if not fence and line.startswith("```"):
            fence, opened = line, number
        elif fence and line == "```":
            if fence == "```diff":
                changes.append(parse_change(lines[opened : number - 1], opened + 1, page))
            fence = ""
    if fence:
        raise AblationError(f"{page}:{opened}: the code fence is never closed")
    if not changes:
        raise AblationError(f"{page}: has no ```diff block")
    return lines[0][2:].strip(), changes


def read(path: Path, root: Path) -> Ablation:
    page = path.relative_to(root).as_posix()
    step, variant = path.parent.name, path.stem
    if step not in all_steps(root):
        raise AblationError(f"{page}: there is no step '{step}' under steps/")
    if not VARIANT.fullmatch(variant):
        raise AblationError(f"{page}: the name must be lower-case letters, digits and '_'")
    title, changes = parse(path.read_text(encoding="utf-8"), page)
    return Ablation(step, variant, page, title, changes)


def pages(root: Path, steps: list[str], folder: str = PAGES) -> list[Path]:
    """Of these steps, or of all when none is named."""
    found = sorted((root / folder).glob("*/*.md"))
    return [path for path in found if not steps or path.parent.name in steps]


def of_step(step: str, root: Path = ROOT) -> list[Ablation]:
    return [read(path, root) for path in pages(root, [step])]


def place(change: Change, lines: list[str], ablation: Ablation) -> int:
    """Where in the kernel the change belongs: an index of its lines."""
    length = len(change.old)
    found = [i for i in range(len(lines) - length + 1) if lines[i : i + length] == change.old]
    if len(found) == 1:
        return found[0]
    where, kernel = f"{ablation.page}:{change.line}", f"steps/{ablation.step}/kernel.cu"
    if found:
        numbers = ", ".join(str(i + 1) for i in found)
        raise AblationError(f"{where}: stands in {kernel} at lines {numbers}: add a line before or after")
    missing = [line for line in change.old if line not in lines]
    why = f"has no line '{missing[0].strip()}'" if missing else "has these lines, but not one after the other"
    raise AblationError(f"{where}: no longer applies: {kernel} {why}")


def as_c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def changed_lines(ablation: Ablation, root: Path = ROOT) -> list[str]:
    """Of the changed kernel.cu, with the step's own title."""
    lines = kernel_lines(ablation.step, root)
    places = [(place(change, lines, ablation), change) for change in ablation.changes]
    places.sort(key=lambda item: item[0])
    for (before, first), (after, second) in zip(places, places[1:]):
        if before + len(first.old) > after:
            where = f"{ablation.page}:{second.line}"
            raise AblationError(f"{where}: these lines are also in the change of line {first.line}")
    for index, change in reversed(places):  # from the end, so that places stay true
        lines[index : index + len(change.old)] = change.new
    return lines


def source(ablation: Ablation, root: Path = ROOT) -> str:
    """The changed kernel.cu."""
    text = "\n".join(changed_lines(ablation, root)) + "\n"
    # The program shows the title, which tells the variant from the step.
    old_title = find_title(text, ablation.step)
    new_title = as_c_string(f"{ablation.step}, changed: {ablation.title}")
    text = text[: old_title.start(1)] + new_title + text[old_title.end(1) :]
    return f"{MADE}steps/{ablation.step}/kernel.cu and {ablation.page}\n{text}"


def is_ours(kernel: Path) -> bool:
    # \S*: a build folder may be older than a move of this script.
    return re.match(r"// Made by \S*ablations\.py from ", kernel.read_text(encoding="utf-8", errors="replace")) is not None


def checksum(kernel: Path) -> str:
    return hashlib.sha256(kernel.read_bytes()).hexdigest()


def check_unedited(kernel: Path) -> None:
    if kernel.is_symlink() or not is_ours(kernel):
        raise AblationError(f"{kernel} was not made here and is not overwritten")
    written = kernel.with_name(CHECKSUM)  # not there: an older version of this script made it
    if written.is_file() and written.read_text(encoding="utf-8") != checksum(kernel):
        raise AblationError(f"{kernel} was edited since it was made: move it away, or name another folder")


def write(sources: dict[str, str], out: Path) -> None:
    """A folder with these ablations, and none that was made before; or all as it was, if somebody's work is there."""
    kernels = {name: out / name / "kernel.cu" for name in sources}
    others = [path for path in out.glob("*/kernel.cu") if path.parent.name not in sources]
    gone = [path for path in others if path.is_file() and is_ours(path)]
    for kernel in [*gone, *kernels.values()]:
        if kernel.is_symlink() or kernel.is_file():
            check_unedited(kernel)
    for kernel in gone:
        kernel.unlink()
        kernel.with_name(CHECKSUM).unlink(missing_ok=True)
        if not any(kernel.parent.iterdir()):
            kernel.parent.rmdir()
        print(f"removed {kernel}, made by an earlier call")
    for name, kernel in kernels.items():
        # What is as it was would be compiled again.
        if not kernel.is_file() or kernel.read_text(encoding="utf-8") != sources[name]:
            kernel.parent.mkdir(parents=True, exist_ok=True)
            kernel.write_text(sources[name], encoding="utf-8")
        kernel.with_name(CHECKSUM).write_text(checksum(kernel), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lists, checks and makes the ablations of docs/ablations/.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="or a prefix that names one; default: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write them to DIR/STEP_VARIANT/kernel.cu")
    parser.add_argument(
        "--pages", default=PAGES, metavar="DIR", help=f"where they are, in the repository (default: {PAGES})"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    sources: dict[str, str] = {}
    errors: list[str] = []
    try:
        if not (root / options.pages).is_relative_to(root):
            raise AblationError(f"--pages: {options.pages} is not a folder of {root}")
        steps = [find_step(step, root) for step in options.steps]
        for step in steps:
            if not pages(root, [step], options.pages):
                raise AblationError(f"{step} has no page under {options.pages}/")
        for path in pages(root, steps, options.pages):
            try:
                ablation = read(path, root)
                sources[ablation.name] = source(ablation, root)
                print(f"{ablation.name}\n  {ablation.title}")
            except (AblationError, StepError) as error:
                errors.append(str(error))
        if options.out:
            write(sources, options.out)
    except (AblationError, StepError, OSError, UnicodeDecodeError) as error:
        print(f"ablations.py: {error}", file=sys.stderr)
        return 2
    for line in errors:
        print(line, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
