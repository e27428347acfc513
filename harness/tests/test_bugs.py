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

from steps import ablations, exercise

BUGS = BUILD / "tests" / "flashsteps_bugs"
PAGES = ablations.pages(ROOT, [], exercise.BUGS)
MODES = ["early", "late", "random"]


@dataclass
class Way:
    """One way in which a bug may be reported."""

    words: list[str]
    places: list[str] = field(default_factory=list)


@dataclass
class Expected:
    ways: list[Way] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    not_reported: str = ""  # why


def read_expected(page: Path) -> Expected:
    expected = Expected()
    for line in page.read_text(encoding="utf-8").splitlines():
        if item := re.fullmatch(r"- Not reported: (.*)", line):
            expected.not_reported = item[1]
        elif item := re.fullmatch(r"- (Reported|At|Modes|Problem|Shapes): (.*)", line):
            parts = re.findall(r"`([^`]+)`", item[2])
            assert parts, f"{page.name}: nothing between backquotes in '{line}'"
            if item[1] == "Reported":
                expected.ways.append(Way(parts))
            elif item[1] == "At":
                expected.ways[-1].places += parts
            elif item[1] == "Modes":
                expected.modes += parts
    assert bool(expected.ways) != bool(expected.not_reported), f"{page.name} does not say what is reported"
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
    for mode, problem in itertools.product(expected.modes or MODES, exercise.problems_of_bug(page)):
        options = ["--mode", mode, *problem.split()]
        status, entry = check(BUGS, bug.name, *options, out=tmp_path / "results.json")
        message = entry["message"]
        if expected.not_reported:
            assert (status, entry["status"]) == (0, "pass"), f"{options}: '{message}': so the emulator does report it"
            continue
        named = set(re.findall(r"\w+/kernel\.cu:\d+", message))
        fits = [all(word in message for word in words) and lines <= named for words, lines in ways]
        assert any(fits), f"{options}: '{message or entry['status']}' is none of {ways}"
        assert status == (3 if entry["status"] in ("timeout", "crash") else 1)


@pytest.mark.parametrize("step", sorted({page.parent.name for page in PAGES}))
def test_without_the_bug_there_is_nothing_to_report(step: str, tmp_path: Path) -> None:
    """Also where sequences differ in length. (The pages' own problems are among those of test_unsolved.py.)"""
    problems = [each for page in PAGES if page.parent.name == step for each in exercise.problems_of_bug(page)]
    for mode, problem in itertools.product(MODES, dict.fromkeys(problems)):
        if "--kv-lengths" in problem:
            continue
        options = ["--mode", mode, *problem.split(), "--kv-lengths", "random"]
        status, entry = check(FLASHSTEPS, step, *options, out=tmp_path / "results.json")
        assert (status, entry["status"]) == (0, "pass"), entry
