"""The variants of all steps, steps/STEP/variants.md: each is built, its commands are run, and must have the outcome
that the page gives. What a lesson tells to try is what is run. As answers to the step's exercise, what `start` gives
the reader and all variants that are wrong are refused, and the step itself passes.

docs/variants.md says how the pages are read. Runs what a test build has made, like test_program.py; exercise.py as a
reader calls it, with a build of its own, is in test_own_step.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import without_separators
from test_program import BUILD, FLASHSTEPS, ROOT, STEPS, run

from steps import exercise, one_file, sources, variants
from steps.variants import Case, Variant

VARIANTS = BUILD / "tests" / "flashsteps_variants"
# A step of one's own may have none.
LESSONS = [step for step in STEPS if (ROOT / "steps" / step / "README.md").is_file()]
ALL = [variant for step in STEPS for variant in variants.of_step(step)]
STATUS = {"PASS": 0, "FAIL": 1, "SKIP": 1, "CRASH": 3, "HANG": 3}


def verdicts(variant: Variant) -> set[str]:
    """Of the changed kernel."""
    cases = [case for case in variant.cases if any(variant.step in command for command in case.commands)]
    return {each.verdict for case in cases for each in case.outcomes if variant.changes}


TRIES = [each for each in ALL if each.kind == "try"]
BUGS = [each for each in ALL if each.kind == "bug"]
WRONG = [each for each in (*TRIES, *BUGS) if verdicts(each) & {"FAIL", "CRASH", "HANG"}]
# Right where there is only one group of heads, as in all that the lesson runs.
WRONG += [each for each in TRIES if each.step_name == "v14_longest_first_try3_one_group"]
UNSEEN = [each for each in BUGS if verdicts(each) == {"PASS"}]


def kernel_of(variant: Variant) -> str:
    """What was built."""
    kernel = variants.source(variant, tested=variant.kind != "library")
    folder = BUILD / "library" if variant.kind == "library" else BUILD / "variants" / variant.kind
    made = folder / variant.step_name / "kernel.cu"
    assert made.is_file() and made.read_text(encoding="utf-8") == kernel, "not what was built: build again"
    return kernel


# ---- The variants do what their pages say.


def runs_of(variant: Variant, case: Case) -> Iterator[tuple[Path, list[str]]]:
    """The programs and their arguments, once for each mode that a command names."""
    for command in case.commands:
        modes = re.findall(r" --mode (\w+)", command)
        first, verb, *options = shlex.split(re.sub(r" --mode \w+", "", command))
        is_alone = first.startswith("build/steps/")  # a program with this one step, and without worker processes
        step = Path(first).name if is_alone else options.pop(0)
        if variant.changes and step == variant.step:
            program = FLASHSTEPS if variant.kind == "library" else VARIANTS
            told = [verb, variant.step_name, *options, *["--in-process"] * is_alone]
        elif is_alone:
            program, told = BUILD / "steps" / step, [verb, *options]
        else:
            program, told = FLASHSTEPS, [verb, step, *options]
        yield from ((program, [*told, "--mode", mode]) for mode in modes)
        if not modes:
            yield program, told


def counters(out: Path) -> SimpleNamespace:
    (entry,) = json.loads(out.read_text())["runs"][0]["steps"]
    counted = entry["counters"]
    conflicts = counted["shared_wavefronts"] - counted["shared_wavefronts_ideal"]
    return SimpleNamespace(**counted, conflicts=conflicts)


def line_of(part: str, kernel: str) -> int:
    found = [number for number, line in enumerate(kernel.splitlines(), start=1) if part in line]
    assert len(found) == 1, f"'{part}' stands in lines {found} of the changed kernel"
    return found[0]


@pytest.mark.parametrize(
    "variant", [each for each in ALL if each.kind != "exercise" and each.compiles], ids=lambda each: each.step_name
)
def test_the_variant_has_the_outcome(variant: Variant, tmp_path: Path) -> None:
    kernel = kernel_of(variant) if variant.changes else ""
    out = tmp_path / "results.json"
    for case in variant.cases:
        file = f"{variant.step_name}/kernel.cu"
        places = [{f"{file}:{line_of(place, kernel)}" for place in each.places} for each in case.outcomes]
        for program, arguments in runs_of(variant, case):
            done = run(program, *arguments, "--json", str(out))
            output = done.stdout + done.stderr
            is_now = set(re.findall(r"^([A-Z]+)  \w", output, re.MULTILINE))
            named = set(re.findall(r"\w+/kernel\.cu:\d+", output))
            assert any(
                is_now == {each.verdict}
                and done.returncode == STATUS[each.verdict]
                and all(word in output for word in each.words)
                and lines <= named
                for each, lines in zip(case.outcomes, places)
            ), f"{arguments}: none of {case.outcomes}\n{output}"
            names: dict[str, object] = {}
            if case.claims:
                here = counters(out)
                names = {**vars(here), "here": here}
            for prefix in sorted(set(re.findall(r"\bv\d\d\b", " ".join(case.claims)))):
                (step,) = (step for step in STEPS if step.startswith(prefix))
                unchanged = [step if word == variant.step_name else word for word in arguments]
                done = run(FLASHSTEPS, *unchanged, "--json", str(out))
                assert done.returncode == 0, done.stdout + done.stderr
                names[prefix] = counters(out)
            for claim in case.claims:
                assert eval(claim, {"__builtins__": {}}, names), f"'{claim}' is wrong with {names}"


@pytest.mark.parametrize("variant", [each for each in ALL if not each.compiles], ids=lambda each: each.step_name)
def test_the_compiler_refuses_the_variant(variant: Variant, tmp_path: Path) -> None:
    changed = tmp_path / "kernel.cu"
    changed.write_text(variants.source(variant), encoding="utf-8")
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    (command,) = (c for c in commands if c["file"].endswith(f"/{variant.step}_on_emulator.cpp"))
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

    assert compile(ROOT / "steps" / variant.step / "kernel.cu").returncode == 0
    done = compile(changed)
    assert done.returncode != 0
    for word in (word for case in variant.cases for each in case.outcomes for word in each.words):
        assert word in done.stderr


@pytest.mark.parametrize(
    "what", [pytest.param(what, id=each.step_name) for each in TRIES for what in each.not_shown]
)
def test_what_a_lesson_says_and_nothing_here_shows(what: str) -> None:
    pytest.skip(what)


@pytest.mark.parametrize("step", sorted({each.step for each in BUGS}))
def test_without_the_bug_there_is_nothing_to_report(step: str) -> None:
    """Also where sequences differ in length. (The bugs' own problems are among those of the exercise.)"""
    unchanged = [replace(each, changes=[]) for each in BUGS if each.step == step]
    runs = [arguments for each in unchanged for case in each.cases for _, arguments in runs_of(each, case)]
    for arguments in [arguments for at, arguments in enumerate(runs) if arguments not in runs[:at]]:
        if "--kv-lengths" not in arguments:
            done = run(FLASHSTEPS, *arguments, "--kv-lengths", "random")
            assert done.returncode == 0, done.stdout + done.stderr


# ---- What a lesson tells to try is what is run.


def items_of(step: str) -> dict[int, str]:
    text = variants.introduction(step, "Try it")
    items = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return {int(number): " ".join(item.split()) for number, item in items}


def item_of(variant: Variant) -> int:
    found = re.match(r"try(\d+)_", variant.name)
    assert found, f"{variant.where}: which item of the lesson? The name begins with tryN_"
    return int(found[1])


@pytest.mark.parametrize("step", LESSONS)
def test_every_item_has_its_variants(step: str) -> None:
    items = items_of(step)
    assert list(items) == list(range(1, len(items) + 1)) and len(items) >= 2
    assert {item_of(each) for each in TRIES if each.step == step} == set(items)


def holds(text: str, part: str) -> bool:
    """Whatever space is between its words. `PAD = 1` is not in `PAD = 16`, `ldmatrix` is in `ldmatrix_x4`."""
    pattern = r"\s+".join(re.escape(word) for word in part.split())
    before = "(?<![^\\W_])" if part.strip()[0].isalnum() else ""
    after = "(?![^\\W_])" if part.strip()[-1].isalnum() else ""
    return re.search(before + pattern + after, text) is not None


def evidence(variant: Variant) -> Iterator[str]:
    for change in variant.changes:
        yield "\n".join(change.old)
        yield "\n".join(change.new)
    for case in variant.cases:
        yield from (*case.commands, *case.claims)
        yield from (text for each in case.outcomes for text in (*each.words, *each.places))
    yield from variant.not_shown


@pytest.mark.parametrize("step, number", [(step, number) for step in LESSONS for number in items_of(step)], ids=str)
def test_the_variants_are_what_the_item_says(step: str, number: int) -> None:
    item = items_of(step)[number]
    mine = [each for each in TRIES if (each.step, item_of(each)) == (step, number)]
    texts = [text for each in mine for text in evidence(each)]
    # What the item quotes is in a change or in an expectation. An ellipsis stands for anything.
    quotes = re.findall(r"`([^`]+)`", item)
    quotes += re.findall(r"\*([^*]+)\*", re.sub(r"`[^`]+`", "", item))
    for quote in quotes:
        for part in filter(str.strip, re.split(r"…|\.\.\.", quote)):
            assert any(holds(text, part) for text in texts), f"'{part}' is in no variant"
    # So are its verdicts, and there are no others. 'Race' and 'does not compile' are what the lessons say.
    said = set(re.findall(rf"\b({'|'.join(STATUS)}|{variants.REFUSED})\b", item))
    if "race report" in item:
        said.add("FAIL")
    expected = {each.verdict for variant in mine for case in variant.cases for each in case.outcomes}
    not_shown = " ".join(text for each in mine for text in each.not_shown)
    assert expected <= said and all(word in expected or word in not_shown for word in said), (expected, said)
    # Its numbers are somewhere, too.
    plain = re.sub(r"`[^`]+`|\[[^]]*\]\([^)]*\)|\bv\d\d\b", "", item)
    texts += [text for each in mine for text in (each.title, each.task)]
    texts += [without_separators(text) for text in texts]
    for digits in re.findall(r"(?<!\w)\d+(?:[.,]\d+)*", plain):  # not that of FP32
        pattern = rf"(?<![\w.]){re.escape(without_separators(digits))}(?![\d.]*\d)"
        assert any(re.search(pattern, text) for text in texts), f"{digits} is in no variant"
    # And what is run is what the section tells to run.
    quoted = re.findall(r"`([^`]+)`", variants.introduction(step, "Try it"))
    told = {word for code in quoted for word in code.split()}
    for command in (command for each in mine for case in each.cases for command in case.commands):
        words = re.sub(r"\bv\d\d_\w+", step, command).split()
        assert set(words) <= told, f"the lesson does not say '{command}'"


def test_the_race_of_the_chapter() -> None:
    """It deletes a barrier, and quotes what the emulator then says of the learner's own kernel."""
    variant = variants.find("v02_smem_tiles", "try2_no_barrier")
    step, name = variant.step, variant.step_name
    page = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"steps/{step}/kernel\.cu#L(\d+)", page)
    (change,) = variant.changes
    deleted = (ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert deleted in change.old and deleted not in change.new
    (options,) = re.findall(rf"^build/flashsteps run {step} (.*?)  #", page, re.MULTILINE)
    done = run(VARIANTS, "run", name, *options.split(), "--in-process")
    said = " ".join(re.search(r"FAIL .*?\n\n", done.stdout, re.DOTALL)[0].split())
    # The variant's kernel.cu begins with a line more.
    said = re.sub(rf"[\w/]*{name}/kernel\.cu:(\d+)", lambda at: f"steps/{step}/kernel.cu:{int(at[1]) - 1}", said)
    assert said.replace(name, step) in " ".join(page.split())


# ---- The exercises tell right from wrong.

MOST_HOLES = 3
# By a step of which not all types, head_dims and masks are built. It says nothing for or against it.
NO_INSTANCE = "this build of the step has no such instance"


def refusal(variant: Variant) -> str:
    """The first thing that the grader says against this answer to the step's exercise."""
    task = exercise.read(variant.step)
    answers = (each for run in [*task.runs, *task.more] for each in exercise.judge(run, VARIANTS, variant.step_name))
    return next((line for right, line in answers if not right and NO_INSTANCE not in line), "")


@pytest.mark.parametrize("step", LESSONS)
def test_what_the_reader_starts_with_fails(step: str) -> None:
    unsolved = variants.find(step, "unsolved")
    kernel_of(unsolved)
    assert refusal(unsolved).startswith("NOT YET")


@pytest.mark.parametrize("step", LESSONS)
def test_the_solution_passes(step: str) -> None:
    """All but the covering sample, which scripts/test.sh runs for every step."""
    task = exercise.read(step)
    assert task.more.pop().command == f"build/flashsteps check {task.mine}"
    report = list(exercise.grade(task, FLASHSTEPS, step))
    assert all(right and line.startswith("PASS") for right, line in report), report


@pytest.mark.parametrize("variant", WRONG, ids=lambda each: each.step_name)
def test_a_known_mistake_is_refused(variant: Variant) -> None:
    assert refusal(variant)


@pytest.mark.parametrize("step", sorted({each.step for each in UNSEEN}))
def test_where_a_mistake_is_not_seen_the_exercise_says_so(step: str) -> None:
    assert variants.find(step, "unsolved").not_shown


@pytest.mark.parametrize("step", LESSONS)
def test_start_and_solution(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for module in (exercise, one_file, sources, variants):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    shutil.copytree(ROOT / "steps" / step, tmp_path / "steps" / step)
    short = step.partition("_")[0]
    mine = tmp_path / "steps" / f"my_{short}" / "kernel.cu"

    def run(*arguments: str) -> tuple[int, str]:
        status = exercise.main([*arguments])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    assert run("solution", short)[0] == 2, "there is nothing yet to compare"
    status, said = run("start", short)
    holes = [f"EXERCISE {number}:" for number in range(1, 1 + said.count("EXERCISE"))]
    assert status == 0 and 1 <= len(holes) <= MOST_HOLES and all(hole in said for hole in holes)
    kernel = mine.read_text(encoding="utf-8")
    assert re.findall(r"// (EXERCISE \d+:)", kernel) == holes
    assert run("start", short)[0] == 2, "it must not overwrite what the reader has written"
    status, said = run("solution", short)
    assert status == 0 and all(f"-{line}\n" in said for line in kernel.splitlines() if "EXERCISE" in line)
    # Solved, there is nothing left to show.
    mine.write_text((ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8"), encoding="utf-8")
    assert "@@" not in run("solution", short)[1]


@pytest.mark.parametrize(
    "said, first",
    [
        # nvcc
        (
            'steps/my_v05/kernel.cu(4): error: identifier "z" is undefined\n    *p = z;\n         ^\n\n1 error',
            'steps/my_v05/kernel.cu:4: identifier "z" is undefined\n    *p = z;\n         ^',
        ),
        # GCC, of a header: the kernel's line is the one that the reader can change.
        (
            "../../common/mma.h: In instantiation of 'void g(int*) [with int N = 2]':\n"
            "../../steps/my_v05/kernel.cu:3:7:   required from 'void k(int*) [with int N = 2]'\n"
            "../../steps/my_v05/kernel.cu:5:22:   required from here\n"
            "../../common/mma.h:1:50: error: static assertion failed\n    1 | static_assert(N > 3);\n",
            "steps/my_v05/kernel.cu:3, in common/mma.h:1: static assertion failed\n    1 | static_assert(N > 3);",
        ),
        ("line 1\nninja: error: loading 'build.ninja'", "line 1\nninja: error: loading 'build.ninja'"),
    ],
    ids=["nvcc", "header", "none"],
)
def test_of_a_compiler_s_errors_the_first_is_told(said: str, first: str) -> None:
    assert exercise.first_error(said) == first


def named(text: str) -> set[str]:
    """What looks like a name of the program's: with an underscore, a call, or in backquotes."""
    return set(re.findall(r"\b\w*_\w+|\b\w+(?=[(<]\w)|(?<=`)\w+(?=`)", text))


@pytest.mark.parametrize("step", LESSONS)
def test_each_hole_has_hints_and_what_they_name_is_there(step: str) -> None:
    unsolved = variants.find(step, "unsolved")
    kernel = variants.changed_lines(unsolved)
    holes = [int(found[1]) for line in kernel if (found := exercise.HOLE.search(line))]
    assert list(unsolved.hints) == holes and all(len(hints) >= 2 for hints in unsolved.hints.values())
    comments = [line for part in unsolved.changes for line in part.new if line.lstrip().startswith("//")]
    # harness/problem/ has the names of inputs.
    files = [path for folder in (f"steps/{step}", "common", "harness/problem") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".cu", ".h", ".cpp")]
    known = set(re.findall(r"\w+", "\n".join(texts)))
    hints = [text for each in unsolved.hints.values() for text in each]
    assert named("\n".join([*comments, *hints, unsolved.task])) <= known
