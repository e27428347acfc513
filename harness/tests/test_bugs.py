"""Steps with one bug each, bugs/STEP/NAME.md: the emulator must say what is wrong, and name the lines.

What is expected stands in the pages; bugs/README.md says how they are read. Runs what a test build has made, like
test_program.py."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_program import BUILD, FLASHSTEPS, ROOT, run

from steps import ablations

BUGS = BUILD / "tests" / "flashsteps_bugs"
PAGES = ablations.pages(ROOT, [], "harness/tests/bugs")
MODES = ["early", "late", "random"]
# Several tiles of keys, so that stages are used again; ragged tails; several CTAs; both sizes of a tile, both masks. The
# steps are built for these only, in CMakeLists.txt.
SHAPES = ["1,2,1,100,330,64", "1,1,1,64,330,128"]
MASKS = ["--full", "--causal"]


@dataclass
class Way:
    """One way in which a bug may be reported."""

    words: list[str]
    places: list[str] = field(default_factory=list)


@dataclass
class Expected:
    ways: list[Way] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    problem: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)


def read_expected(page: Path) -> Expected:
    expected = Expected()
    for line in page.read_text(encoding="utf-8").splitlines():
        if item := re.fullmatch(r"- (Reported|At|Modes|Problem|Shapes): (.*)", line):
            parts = re.findall(r"`([^`]+)`", item[2])
            assert parts, f"{page.name}: nothing between backquotes in '{line}'"
            if item[1] == "Reported":
                expected.ways.append(Way(parts))
            elif item[1] == "At":
                expected.ways[-1].places += parts
            elif item[1] == "Modes":
                expected.modes += parts
            elif item[1] == "Shapes":
                expected.shapes += parts
            else:
                expected.problem += " ".join(parts).split()
    expected.shapes = expected.shapes or SHAPES
    assert expected.ways, f"{page.name} does not say what is reported"
    return expected


def line_of(part: str, kernel: str) -> int:
    found = [number for number, line in enumerate(kernel.splitlines(), start=1) if part in line]
    assert len(found) == 1, f"'{part}' stands in lines {found} of the changed kernel"
    return found[0]


def check(program: Path, step: str, *options: str, out: Path) -> tuple[int, dict]:
    """Exit status, and what became of the step."""
    done = run(program, "check", step, "--backend", "emulator", *options, "--json", str(out))
    assert out.is_file(), done.stdout + done.stderr
    ((entry,),) = [each["steps"] for each in json.loads(out.read_text())["runs"]]
    return done.returncode, entry


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_bug_is_named(page: Path, tmp_path: Path) -> None:
    bug = ablations.read(page, ROOT)
    kernel = ablations.source(bug, ROOT)
    made = BUILD / "bugs" / bug.name / "kernel.cu"
    assert made.is_file() and made.read_text(encoding="utf-8") == kernel, "built from another page: build again"
    expected = read_expected(page)
    ways = [
        (way.words, {f"{bug.name}/kernel.cu:{line_of(place, kernel)}" for place in way.places})
        for way in expected.ways
    ]
    problems = zip(expected.shapes, MASKS, strict=True)
    for mode, (shape, mask) in itertools.product(expected.modes or MODES, problems):
        options = ["--mode", mode, "--shape", shape, mask, *expected.problem]
        status, entry = check(BUGS, bug.name, *options, out=tmp_path / "results.json")
        message = entry["message"]
        named = set(re.findall(r"\w+/kernel\.cu:\d+", message))
        fits = [all(word in message for word in words) and lines <= named for words, lines in ways]
        assert any(fits), f"{options}: '{message or entry['status']}' is none of {ways}"
        assert status == (3 if entry["status"] in ("timeout", "crash") else 1)


@pytest.mark.parametrize("step", sorted({page.parent.name for page in PAGES}))
@pytest.mark.parametrize("problem", [[], ["--kv-lengths", "random"]], ids=["full", "random lengths"])
def test_without_the_bug_there_is_nothing_to_report(step: str, problem: list[str], tmp_path: Path) -> None:
    shapes = [read_expected(page).shapes for page in PAGES if page.parent.name == step]
    problems = sorted({each for of_page in shapes for each in zip(of_page, MASKS)})
    for mode, (shape, mask) in itertools.product(MODES, problems):
        options = ["--mode", mode, "--shape", shape, mask, *problem]
        status, entry = check(FLASHSTEPS, step, *options, out=tmp_path / "results.json")
        assert (status, entry["status"]) == (0, "pass"), entry
