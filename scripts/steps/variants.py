#!/usr/bin/env python3
"""Variants: a step with one thing changed, and what must come of it.

    python3 scripts/steps/variants.py [STEP...]               list them; exit status 1 when one does not apply
    python3 scripts/steps/variants.py --kind KIND [STEP...]   only those of a kind: try, bug, ablation, library or exercise
    python3 scripts/steps/variants.py --out DIR [STEP...]     also write them, as steps: DIR/STEP_NAME/kernel.cu; the
                                                              next call overwrites or removes them

They stand in steps/STEP/variants.md; docs/variants.md says how that file is read. It is read line by line and without
a package for Markdown, because CMake and exercise.py run this with any python3. A diff has no line numbers, and is not
matched approximately: it applies as long as the lines that it names are in the kernel, at exactly one place.
"""
from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT, StepError, all_steps, find_step, find_title, kernel_lines

KINDS = {"Try it": "try", "Bugs": "bug", "Ablations": "ablation", "In the library": "library", "Exercise": "exercise"}
REFUSED = "does not compile"
VERDICT = re.compile(rf"PASS|FAIL|SKIP|CRASH|HANG|{REFUSED}")
HINT = re.compile(r"Hint (\d)")
MADE = "// Made by scripts/steps/variants.py from "


@dataclass(frozen=True)
class Change:
    where: str  # file and line
    diff: list[str]
    old: list[str]
    new: list[str]


@dataclass
class Outcome:
    verdict: str
    words: list[str]  # of the report
    places: list[str] = field(default_factory=list)  # lines of the changed kernel that the report names


@dataclass
class Case:
    """Commands, and one outcome that each of them must have."""

    commands: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)  # about counters


@dataclass
class Variant:
    step: str
    kind: str
    name: str
    where: str  # file and line
    title: str
    task: str  # the text between the title and the first diff
    changes: list[Change]
    cases: list[Case]
    not_shown: list[str]
    hints: dict[int, list[str]]  # by the number of the exercise's hole, each saying more than the one before
    on: str  # the variant whose kernel is changed; empty: the step's own

    @property
    def step_name(self) -> str:
        """As a step, and so as a C++ namespace: two underscores in a row are kept for the compiler."""
        return f"{self.step}_{self.name}"

    @property
    def link(self) -> str:
        return f"{page_of(self.step)}#{self.name}"

    @property
    def compiles(self) -> bool:
        return all(each.verdict != REFUSED for case in self.cases for each in case.outcomes)


def page_of(step: str) -> str:
    return f"steps/{step}/variants.md"


def parse_change(lines: list[str], page: str, first_line: int) -> Change:
    where = f"{page}:{first_line}"
    lines = [line.rstrip() or " " for line in lines]  # editors take the space of an empty line away
    for number, line in enumerate(lines, start=first_line):
        if line[0] not in " -+":
            raise StepError(f"{page}:{number}: a line of a diff begins with '-', '+' or a space")
    old, new = ([line[1:] for line in lines if line[0] in signs] for signs in (" -", " +"))
    if old == new:
        raise StepError(f"{where}: changes nothing")
    if not old:
        raise StepError(f"{where}: where? Add a line of the kernel before or after")
    return Change(where, lines, old, new)


Part = tuple[int, str, Any]  # of a page: its line, what it is, what it says


def parts_of(text: str, page: str) -> list[Part]:
    """Headings, diffs, items with the indented lines below them, and other lines."""
    parts: list[Part] = []
    fence, opened, lines = "", 0, text.splitlines()
    for number, line in enumerate(lines, start=1):
        if fence:
            if line == "```":
                if fence == "```diff":
                    parts.append((opened, "diff", parse_change(lines[opened : number - 1], page, opened + 1)))
                fence = ""
        elif line.startswith("```"):
            fence, opened = line, number
        elif found := re.match(r"(##|###) (.*)|- ([A-Z][a-z ]*(?: \d)?): (.*)", line):
            parts.append((number, found[1] or found[3], found[2] or found[4]))
        elif line.startswith("  ") and parts and parts[-1][1] not in ("text", "diff", "##", "###"):
            parts[-1] = (*parts[-1][:2], f"{parts[-1][2]} {line.strip()}")
        else:
            parts.append((number, "text", line))
    if fence:
        raise StepError(f"{page}:{opened}: the code fence is never closed")
    return parts


def split(parts: Iterable[Part], heading: str) -> list[list[Part]]:
    """What stands above the first of these headings, then each of them with what stands below it."""
    groups: list[list[Part]] = [[]]
    for part in parts:
        if part[1] == heading:
            groups.append([])
        groups[-1].append(part)
    return groups


def cases_of(parts: list[Part], page: str) -> list[Case]:
    cases: list[Case] = []
    for line, key, value in parts:
        if key in ("text", "diff", "Not shown", "On", "##", "###") or HINT.fullmatch(key):
            continue
        quoted = re.findall(r"`([^`]+)`", value)
        if key == "Run" and quoted:
            if not cases or cases[-1].outcomes:
                cases.append(Case())
            cases[-1].commands += quoted
        elif key == "Expect" and (verdict := VERDICT.match(value)):
            if not cases:
                cases.append(Case())  # of the section's commands
            cases[-1].outcomes.append(Outcome(verdict[0], quoted))
        elif key in ("At", "Holds") and quoted and cases and cases[-1].outcomes:
            (cases[-1].claims if key == "Holds" else cases[-1].outcomes[-1].places).extend(quoted)
        else:
            raise StepError(f"{page}:{line}: what is '- {key}: {value}'?")
    return cases


def variant_of(parts: list[Part], step: str, kind: str, of_section: list[Case]) -> Variant:
    page = page_of(step)
    (first, _, name), *parts = parts
    where = f"{page}:{first}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise StepError(f"{where}: the name must be lower-case letters, digits and '_'")
    cases = cases_of(parts, page) or [case for case in of_section if case.outcomes]
    if not cases:
        raise StepError(f"{where}: expects nothing")
    for case in cases:
        if not case.commands and case.outcomes[0].verdict != REFUSED:
            case.commands = [command for each in of_section for command in each.commands]
        if not case.outcomes or not case.commands and case.outcomes[0].verdict != REFUSED:
            raise StepError(f"{where}: a command without an outcome, or an outcome without a command")
    diffs = [i for i, (_, what, _) in enumerate(parts) if what == "diff"]
    text = "\n".join(line for _, what, line in parts[: diffs[0] if diffs else None] if what == "text")
    title = re.match(r"\n*\*\*(.+)\*\*(?=\n|$)", text)
    if title is None:
        raise StepError(f"{where}: begins with what is changed: '**One stage**'")
    task = re.sub(r"^<.*\n", "", text[title.end() :], flags=re.MULTILINE).strip()
    not_shown = [value for _, what, value in parts if what == "Not shown"]
    hints: dict[int, list[str]] = {}
    for _, what, value in parts:
        if found := HINT.fullmatch(what):
            hints.setdefault(int(found[1]), []).append(value)
    on = "".join(value.strip("`") for _, what, value in parts if what == "On")
    return Variant(step, kind, name, where, title[1], task, [parts[i][2] for i in diffs], cases, not_shown, hints, on)


def parse(text: str, step: str) -> list[Variant]:
    page = page_of(step)
    found: list[Variant] = []
    for section in split(parts_of(text, page), "##")[1:]:
        (line, _, title), *parts = section
        if title not in KINDS:
            raise StepError(f"{page}:{line}: '{title}' is none of {', '.join(KINDS)}")
        above, *variants = split(parts, "###")
        of_section = cases_of(above, page)
        found += [variant_of(each, step, KINDS[title], of_section) for each in variants]
    names = [each.name for each in found]
    for each in found:
        if names.count(each.name) > 1:
            raise StepError(f"{each.where}: there are two '{each.name}'")
    return found


def of_step(step: str, kind: str = "") -> list[Variant]:
    """All, or those of a kind."""
    path = ROOT / page_of(step)
    found = parse(path.read_text(encoding="utf-8"), step) if path.is_file() else []
    return [each for each in found if kind in ("", each.kind)]


def find(step: str, name: str) -> Variant:
    for each in of_step(step):
        if each.name == name:
            return each
    raise StepError(f"{page_of(step)} has no '{name}'")


def introduction(step: str, section: str) -> str:
    """The text of a section, above its variants."""
    text = (ROOT / page_of(step)).read_text(encoding="utf-8")
    found = re.search(rf"^## {section}\n+(.*?)\n*^###? ", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise StepError(f"{page_of(step)} has no section '{section}'")
    return found[1]


def place(change: Change, lines: list[str], kernel: str) -> int:
    """Where in the kernel the change belongs: an index of its lines."""
    length = len(change.old)
    found = [i for i in range(len(lines) - length + 1) if lines[i : i + length] == change.old]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(str(i + 1) for i in found)
        raise StepError(f"{change.where}: stands in {kernel} at lines {numbers}: add a line before or after")
    missing = [line for line in change.old if line not in lines]
    why = f"has no line '{missing[0].strip()}'" if missing else "has these lines, but not one after the other"
    raise StepError(f"{change.where}: no longer applies: {kernel} {why}")


def changed_lines(variant: Variant) -> list[str]:
    """Of the changed kernel.cu, with the step's own title."""
    lines, kernel = kernel_lines(variant.step), f"steps/{variant.step}/kernel.cu"
    if variant.on:
        other = find(variant.step, variant.on)
        if other.on:
            raise StepError(f"{variant.where}: '{variant.on}' is itself on another variant")
        lines, kernel = changed_lines(other), other.link
    places = sorted(((place(change, lines, kernel), change) for change in variant.changes), key=lambda item: item[0])
    for (before, first), (after, second) in zip(places, places[1:]):
        if before + len(first.old) > after:
            raise StepError(f"{second.where}: these lines are also in the change at {first.where}")
    for index, change in reversed(places):  # from the end, so that places stay true
        lines[index : index + len(change.old)] = change.new
    return lines


def instances(variant: Variant) -> str:
    """Which of a step's instances its commands run, as common/step.h asks."""
    conditions: dict[str, None] = {}
    for command in (command for case in variant.cases for command in case.commands):
        words = command.split()
        shapes = [shape for option, shape in zip(words, words[1:]) if option == "--shape"]
        masks = [mask for option, mask in (("--causal", "CAUSAL"), ("--full", "!CAUSAL")) if option in words]
        masks = masks or ["!CAUSAL" if shapes else "CAUSAL"]  # the program's own problem is causal
        dtype = next((dtype for option, dtype in zip(words, words[1:]) if option == "--dtype"), "fp16")
        element = {"fp16": "__half", "bf16": "__nv_bfloat16", "e4m3": "__nv_fp8_e4m3"}[dtype]
        for head_dim in [shape.split(",")[-1] for shape in shapes] or ["64"]:
            conditions |= dict.fromkeys(
                f"(std::is_same_v<Element,{element}>&&{mask}&&HEAD_DIM=={head_dim})" for mask in masks
            )
    return f"({'||'.join(conditions)})"


def source(variant: Variant, tested: bool = False) -> str:
    """The changed kernel.cu; for the tests, which compile only what they run, its first line says what that is."""
    text = "\n".join(changed_lines(variant)) + "\n"
    # The program shows the title, which tells the variant from the step.
    old_title = find_title(text, variant.step)
    title = f"{variant.step}, changed: {variant.title}".replace("\\", "\\\\").replace('"', '\\"')
    text = f'{text[: old_title.start(1)]}"{title}"{text[old_title.end(1) :]}'
    only = f"#define FLASHSTEPS_COMPILED(Element, HEAD_DIM, CAUSAL) {instances(variant)}  " if tested else ""
    return f"{only}{MADE}{variant.link}\n{text}"


def write(sources: dict[str, str], out: Path) -> None:
    """The folder then has these variants and no others; it must have no step that was not made here."""
    found = {kernel.parent.name: kernel for kernel in out.glob("*/kernel.cu")}
    for kernel in found.values():
        if MADE not in kernel.read_text(encoding="utf-8", errors="replace").partition("\n")[0]:
            raise StepError(f"{kernel} was not made here: name another folder")
    for name in found.keys() - sources.keys():
        shutil.rmtree(found[name].parent)
    for name, text in sources.items():
        # What is as it was would be compiled again.
        if name not in found or found[name].read_text(encoding="utf-8") != text:
            (out / name).mkdir(parents=True, exist_ok=True)
            (out / name / "kernel.cu").write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lists, checks and makes the variants of steps/STEP/variants.md.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="or a prefix that names one; default: all")
    parser.add_argument("--kind", choices=KINDS.values(), default="", help="default: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write them to DIR/STEP_NAME/kernel.cu")
    parser.add_argument(
        "--tested", action="store_true", help="as the tests build them: those that compile, and of these what is run"
    )
    options = parser.parse_args(arguments)
    sources: dict[str, str] = {}
    status = 0
    try:
        steps = [find_step(step) for step in options.steps] or all_steps()
        for variant in (each for step in steps for each in of_step(step, options.kind)):
            try:
                text = source(variant, options.tested)
            except StepError as error:
                print(error, file=sys.stderr)
                status = 1
                continue
            print(f"{variant.step_name}\n  {variant.title}")
            if variant.changes and (variant.compiles or not options.tested):
                sources[variant.step_name] = text
        if options.out:
            write(sources, options.out)
    except (StepError, OSError, UnicodeDecodeError) as error:
        print(f"variants.py: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
