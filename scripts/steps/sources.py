"""The kernels' sources: which steps there are, and what each says of itself in its registration."""
from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TITLE = re.compile(r'\.title\s*=\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
PART = re.compile(r"\.part\s*=\s*Part::(\w+)")
AFTER = re.compile(r'\.after\s*=\s*"([^"]*)"')
# The ladder's parts, by their names in common/interface.h.
PARTS = {
    "kMemory": "memory",
    "kMmaSync": "mma.sync",
    "kHopper": "Hopper",
    "kDecode": "decode",
    "kFp8": "FP8",
    "kBackward": "backward",
}
GENERATED = re.compile(r"^<!-- generated: .*?^<!-- /generated -->", re.DOTALL | re.M)


class StepError(Exception):
    """One line for the user."""


def all_steps() -> list[str]:
    """The names of all steps: those of the ladder in its order, then others."""
    names = (path.parent.name for path in (ROOT / "steps").glob("*/kernel.cu"))
    return sorted(names, key=lambda name: (re.match(r"v\d", name) is None, name))


def bare(name: str) -> str:
    """The step whose configuration or other type it is: of v20_tiles@128x64, and of v27_tile_shapes:bf16."""
    return re.split("[@:]", name)[0]


def has_left(name: str) -> bool:
    """Whether a step in a record is no longer under steps/, nor the step whose configuration or variant it is. A table
    or a figure of all steps in a record leaves it out; one that names it still shows what was measured."""
    steps = all_steps()
    return bare(name) not in steps and not name.startswith(tuple(f"{step}_" for step in steps))


def match_step(name: str, known: list[str]) -> str:
    """The step called `name`, or the only one whose name begins with it. A variant's name begins with its step's, which is
    then the one that is meant."""
    begin = [step for step in known if step.startswith(name)]
    found = [name] if name in known else [step for step in begin if not step.startswith(tuple(f"{each}_" for each in begin))]
    if len(found) > 1:
        raise StepError(f"{name!r} may be {' or '.join(found)}")
    if not found:
        raise StepError(f"there is no step {name!r}{did_you_mean(name, known)}")
    return found[0]


def did_you_mean(name: str, known: list[str]) -> str:
    """v05_padded_smem for v5 or v05_paded; and all names if none is like it."""
    typed = re.sub(r"^v?(\d)(?!\d)", r"v0\1", name.lower())
    likely = (step for step in known if difflib.SequenceMatcher(None, typed, step[: len(typed) + 1]).ratio() > 0.8)
    guess = next(likely, "")
    return f"; did you mean {guess}?" if guess else f"; there are {', '.join(known)}"


def find_step(name: str) -> str:
    """As match_step(), of the steps in the tree."""
    return match_step(name, all_steps())


def kernel(step: str) -> str:
    return (ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8")


def kernel_lines(step: str) -> list[str]:
    return kernel(step).splitlines()


def has_idea(step: str) -> bool:
    """Whether its lesson's picture is a text beside it, which scripts/draw/ideas.py draws."""
    return (ROOT / "steps" / step / "idea.txt").is_file()


def find_title(source: str, step: str) -> re.Match[str]:
    """`.title` of the registration in a kernel's source; group 1 is the string, in C++."""
    found = TITLE.search(source)
    if found is None:
        raise StepError(f"steps/{step}/kernel.cu registers no .title")
    return found


def title(step: str) -> str:
    """The one idea of a step, in its own words."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', find_title(kernel(step), step)[1])
    return re.sub(r"\\(.)", r"\1", "".join(parts))


def evenings() -> dict[str, dict[str, list[str]]]:
    """The main path, as docs/README.md has it in its tables: by heading, the steps, and the chapters that each needs."""
    found: dict[str, dict[str, list[str]]] = {}
    page = ROOT / "docs" / "README.md"
    text = GENERATED.sub("", page.read_text(encoding="utf-8")) if page.is_file() else ""
    for section in text.split("\n## "):
        rows = re.findall(r"^\| \[v\d+\]\(\.\./steps/(\w+)/README\.md\) \|([^|]*)", section, re.MULTILINE)
        if rows:
            needs = {step: re.findall(r"\]\(([^)]+)\)", cell) for step, cell in rows}
            found[section.partition("\n")[0]] = needs
    return found


def main_path() -> list[str]:
    return [step for steps in evenings().values() for step in steps]


def side_steps() -> list[str]:
    """The steps with a lesson that are not on the main path."""
    on_it = main_path()
    return [step for step in all_steps() if step not in on_it and lesson(step).is_file()]


def lesson(step: str) -> Path:
    return ROOT / "steps" / step / "README.md"


def heading(step: str) -> str:
    """Of its lesson: the idea in a few words. A step without one has only its title."""
    if not lesson(step).is_file():
        return title(step)
    first = lesson(step).read_text(encoding="utf-8").partition("\n")[0]
    return first.partition(" · ")[2]


def after(step: str) -> str | None:
    """The step that this one comes from: the one that its registration names, or the one before it on the ladder; None
    for the first, and for a step that is not under steps/."""
    steps = all_steps()
    if step not in steps:
        return None
    found = AFTER.search(kernel(step))
    if found is None:
        at = steps.index(step)
        return steps[at - 1] if at else None
    if found[1] not in steps:
        raise StepError(f"steps/{step}/kernel.cu comes after '{found[1]}', which is not under steps/")
    return found[1]


def compared_with(step: str, above: str | None, measured: Collection[str]) -> str | None:
    """The step that a rate in a table is divided by: the one that the step comes from if the run has measured it, or
    the one in the row above."""
    comes_from = after(step)
    return comes_from if comes_from in measured else above


def part(step: str) -> str | None:
    """The part of the ladder that a step belongs to; None for a step that is not under steps/."""
    if step not in all_steps():
        return None
    found = PART.search(kernel(step))
    return PARTS[found[1] if found else "kMemory"]
