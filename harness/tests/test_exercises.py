"""What the lessons tell to try, exercises/STEP/tryN_NAME.md: every edit is built and run, and must have the
outcome that the lesson gives.

exercises/README.md says how the pages are read, and what keeps them and the lessons together. Runs what a
test build has made, like test_program.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_bugs import line_of
from test_program import BUILD, FLASHSTEPS, ROOT, STEPS, run

from steps import ablations

EXERCISES = BUILD / "tests" / "flashsteps_exercises"
# A step of one's own may have none.
LESSONS = [step for step in STEPS if (ROOT / "steps" / step / "README.md").is_file()]
PAGES = ablations.pages(ROOT, [], "harness/tests/exercises")
STATUS = {"PASS": 0, "FAIL": 1, "SKIP": 1, "CRASH": 3, "HANG": 3}


@dataclass
class Run:
    command: str
    changed: bool
    verdict: str = ""
    words: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)


@dataclass
class Exercise:
    page: Path
    runs: list[Run] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)

    @property
    def step(self) -> str:
        return self.page.parent.name

    @property
    def item(self) -> int:
        found = re.match(r"try(\d+)_", self.page.stem)
        assert found, f"{self.page.name}: which item of the lesson? The name begins with tryN_"
        return int(found[1])


def read(page: Path) -> Exercise:
    exercise = Exercise(page)
    for line in page.read_text(encoding="utf-8").splitlines():
        if not (item := re.fullmatch(r"- (\w[\w ]*): (.*)", line)):
            continue
        key, parts = item[1], re.findall(r"`([^`]+)`", item[2])
        if key == "Not shown":
            exercise.not_shown.append(item[2])
            continue
        assert parts, f"{page.name}: nothing between backquotes in '{line}'"
        if key in ("Run", "Run unchanged"):
            exercise.runs.append(Run(parts[0], changed=key == "Run"))
        elif key == "Expect":
            exercise.runs[-1].verdict = parts[0]
        elif key == "Says":
            exercise.runs[-1].words += parts
        elif key == "At":
            exercise.runs[-1].places += parts
        elif key == "Holds":
            exercise.runs[-1].claims += parts
        elif key == "Refused":
            exercise.refused += parts
        else:
            raise AssertionError(f"{page.name}: '{key}' is none of the keys that are read")
    assert exercise.runs or exercise.refused, f"{page.name} expects nothing"
    assert all(each.verdict for each in exercise.runs), f"{page.name}: a run without a verdict"
    return exercise


ALL = [read(page) for page in PAGES]


def name_of(exercise: Exercise) -> str:
    return f"{exercise.step}-{exercise.page.stem}"


# ---- The exercises do what their pages say.


def program_of(command: str, changed: str | None) -> tuple[Path, list[str]]:
    """What a lesson's command runs; with the name of a changed step, the same of that one."""
    first, subcommand, *options = shlex.split(command)
    if changed is None:
        return BUILD / Path(first).relative_to("build"), [subcommand, *options]
    if first.startswith("build/steps/"):  # the step alone, and no worker process
        return EXERCISES, [subcommand, changed, *options, "--in-process"]
    return EXERCISES, [subcommand, changed, *options[1:]]


def counters(out: Path) -> SimpleNamespace:
    (entry,) = json.loads(out.read_text())["runs"][0]["steps"]
    counted = entry["counters"]
    conflicts = counted["shared_wavefronts"] - counted["shared_wavefronts_ideal"]
    return SimpleNamespace(**counted, conflicts=conflicts)


@pytest.mark.parametrize("exercise", [each for each in ALL if each.runs], ids=name_of)
def test_the_exercise_has_the_outcome(exercise: Exercise, tmp_path: Path) -> None:
    changed = ablations.read(exercise.page, ROOT)
    kernel = ablations.source(changed, ROOT)
    made = BUILD / "exercises" / changed.name / "kernel.cu"
    assert made.is_file() and made.read_text(encoding="utf-8") == kernel, "not what was built: build again"
    for each in exercise.runs:
        program, arguments = program_of(each.command, changed.name if each.changed else None)
        out = tmp_path / "changed.json"
        done = run(program, *arguments, "--json", str(out))
        output = done.stdout + done.stderr
        assert re.search(rf"^{each.verdict}  \w", output, re.MULTILINE), f"{each.command}\n{output}"
        assert done.returncode == STATUS[each.verdict], output
        for word in each.words:
            assert word in output, f"'{word}' is not in\n{output}"
        lines = {f"{changed.name}/kernel.cu:{line_of(place, kernel)}" for place in each.places}
        assert lines <= set(re.findall(r"\w+/kernel\.cu:\d+", output)), output
        names = {"here": counters(out)} if each.claims else {}
        for prefix in sorted(set(re.findall(r"\bv\d\d\b", " ".join(each.claims)))):
            (step,) = (step for step in STEPS if step.startswith(prefix))
            unchanged = [step if argument == changed.name else argument for argument in arguments]
            done = run(FLASHSTEPS, *unchanged, "--json", str(out))
            assert done.returncode == 0, done.stdout + done.stderr
            names[prefix] = counters(out)
        for claim in each.claims:
            assert eval(claim, {"__builtins__": {}}, names), f"'{claim}' is wrong with {names}"


@pytest.mark.parametrize("exercise", [each for each in ALL if each.refused], ids=name_of)
def test_the_compiler_refuses_the_exercise(exercise: Exercise, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(ablations.source(ablations.read(exercise.page, ROOT), ROOT), encoding="utf-8")
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    (command,) = (c for c in commands if c["file"].endswith(f"/{exercise.step}_on_emulator.cpp"))
    words = shlex.split(command["command"])
    options = words[: words.index("-o")]  # what follows names the object and its source

    def compile(kernel: Path) -> subprocess.CompletedProcess[str]:
        wrapper = tmp_path / "wrapper.cpp"
        wrapper.write_text(f'#include "{kernel}"\n')
        return subprocess.run(
            [*options, "-fsyntax-only", str(wrapper)],
            cwd=command["directory"],
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
        )

    assert compile(ROOT / "steps" / exercise.step / "kernel.cu").returncode == 0
    done = compile(source)
    assert done.returncode != 0
    for word in exercise.refused:
        assert word in done.stderr


@pytest.mark.parametrize(
    "exercise, what", [pytest.param(e, what, id=name_of(e)) for e in ALL for what in e.not_shown]
)
def test_what_a_lesson_says_and_nothing_here_shows(exercise: Exercise, what: str) -> None:
    pytest.skip(what)


# ---- The pages and the lessons belong together.


def lesson_items(step: str) -> tuple[str, dict[int, str]]:
    """Section 6 of a lesson, and its numbered items."""
    text = (ROOT / "steps" / step / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## 6\. Try it\n(.*?)^## 7\. ", text, re.MULTILINE | re.DOTALL)
    items = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    return section, {int(number): " ".join(item.split()) for number, item in items}


@pytest.mark.parametrize("step", LESSONS)
def test_every_item_has_its_pages(step: str) -> None:
    _, items = lesson_items(step)
    assert list(items) == list(range(1, len(items) + 1)) and len(items) >= 2
    assert {each.item for each in ALL if each.step == step} == set(items)


def holds(text: str, part: str) -> bool:
    """Whatever space is between its words. `PAD = 1` is not in `PAD = 16`, `ldmatrix` is in `ldmatrix_x4`."""
    pattern = r"\s+".join(re.escape(word) for word in part.split())
    before = "(?<![^\\W_])" if part.strip()[0].isalnum() else ""
    after = "(?![^\\W_])" if part.strip()[-1].isalnum() else ""
    return re.search(before + pattern + after, text) is not None


@pytest.mark.parametrize(
    "step, number", [(step, number) for step in LESSONS for number in lesson_items(step)[1]], ids=str
)
def test_the_pages_are_what_the_item_says(step: str, number: int) -> None:
    section, items = lesson_items(step)
    item = items[number]
    mine = [each for each in ALL if (each.step, each.item) == (step, number)]
    # What the item quotes is in a change or in an expectation. An ellipsis stands for anything.
    evidence = []
    for each in mine:
        for change in ablations.read(each.page, ROOT).changes:
            evidence += ["\n".join(change.old), "\n".join(change.new)]
        page = each.page.read_text(encoding="utf-8")
        evidence += [line for line in page.splitlines() if line.startswith("- ")]
    quotes = re.findall(r"`([^`]+)`", item)
    quotes += re.findall(r"\*([^*]+)\*", re.sub(r"`[^`]+`", "", item))
    for quote in quotes:
        for part in filter(str.strip, re.split(r"…|\.\.\.", quote)):
            assert any(holds(text, part) for text in evidence), f"'{part}' is in no page"
    # So are its verdicts, and there are no others. 'Race' and 'does not compile' are what the lessons say.
    texts = " ".join(text for each in mine for text in each.not_shown)
    said = set(re.findall(r"\b(PASS|FAIL|SKIP|CRASH|HANG)\b", item))
    if "race report" in item:
        said.add("FAIL")
    expected = {each.verdict for exercise in mine for each in exercise.runs}
    assert expected <= said and all(word in expected or word in texts for word in said), (expected, said)
    assert any(each.refused for each in mine) == ("does not compile" in item)
    # Its numbers are somewhere on the pages.
    plain = re.sub(r"`[^`]+`|\[[^]]*\]\([^)]*\)|\bv\d\d\b", "", item)
    pages = "\n".join(each.page.read_text(encoding="utf-8") for each in mine)
    for digits in re.findall(r"(?<!\w)\d+(?:[.,]\d+)*", plain):  # not that of FP32
        number = re.escape(digits.replace(",", ""))
        assert re.search(rf"(?<![\w.]){number}(?![\d.]*\d)", pages), f"{digits} is on no page"
    # And what is run is what the section tells to run.
    told = {word for code in re.findall(r"`([^`]+)`", section) for word in code.split()}
    for each in (each for exercise in mine for each in exercise.runs):
        words = re.sub(r"\bv\d\d_\w+", step, each.command).split()
        assert set(words) <= told, f"the lesson does not say '{each.command}'"


# ---- README.md shows one of them.


def test_the_race_of_the_readme() -> None:
    """It deletes a barrier, and quotes what the emulator then says of the learner's own kernel."""
    step, variant = "v02_smem_tiles", "v02_smem_tiles_try2_no_barrier"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## A race") :].split("\n## ")[0]
    (line,) = re.findall(rf"steps/{step}/kernel\.cu#L(\d+)", section)
    (deleted,) = re.findall(r"^-( *\S.*)", section, re.MULTILINE)
    kernel = (ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "harness/tests/exercises" / step / f"{variant.removeprefix(step + '_')}.md").read_text(encoding="utf-8")
    assert kernel[int(line) - 1] == deleted and f"-{deleted}\n" in page

    (command,) = re.findall(r"^\$ build/flashsteps (run v02 .*)", section, re.MULTILINE)
    done = run(EXERCISES, *command.replace("run v02 ", f"run {variant} ").split(), "--in-process")
    said = " ".join(re.search(r"FAIL .*?\n\n", done.stdout, re.DOTALL)[0].split())
    # The exercise's kernel.cu begins with a line that says where it comes from.
    said = re.sub(rf"[\w/]*{variant}/kernel\.cu:(\d+)", lambda at: f"steps/{step}/kernel.cu:{int(at[1]) - 1}", said)
    assert said.replace(variant, step) in " ".join(section.split())
