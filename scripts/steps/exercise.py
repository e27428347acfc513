#!/usr/bin/env python3
"""Exercises: a step with its idea left out, for the reader to write.

    python3 scripts/steps/exercise.py start v05      makes steps/my_v05/kernel.cu, with holes to fill
    python3 scripts/steps/exercise.py check v05      builds it, runs it on the emulator, says what is missing
    python3 scripts/steps/exercise.py solution v05   the diff from steps/my_v05/ to the step itself

docs/exercises/STEP/unsolved.md is the exercise: its task, the holes as a change of the step, and what `check` demands
first. Then come the problems on which known mistakes fail, from the pages of harness/tests/exercises and
harness/tests/bugs, and the covering sample. docs/exercises/README.md says more. Needs nothing but Python and a build.
"""
from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps import ablations, step_diff
from steps.sources import ROOT, StepError, find_step

PAGES = "docs/exercises"
TRIES = "harness/tests/exercises"  # what the lessons tell to try, with its outcome
BUGS = "harness/tests/bugs"
# What a bug's page is run on unless it says otherwise: several tiles of keys, so that stages are used again; ragged
# tails; several CTAs; both sizes of a tile, both masks.
SHAPES = ["1,2,1,100,330,64", "1,1,1,64,330,128"]
MASKS = ["", " --causal"]
# Of a problem, by the program; the lines that follow and say more of it are indented.
VERDICT = re.compile(r"(FAIL|SKIP|CRASH|HANG|ERROR)  \S+  B=")
NEED = re.compile(r"(.+) (<=|>=|==) (.+)")
WORDS = {"<=": "at most", ">=": "at least", "==": "exactly"}
# Without nvcc an edit compiles in seconds: a build for the emulator alone goes first.
BUILDS = ("build/emulator", "build")


@dataclass
class Run:
    command: str  # as a reader types it: build/flashsteps count my_v05 --shape 1,4,256,64
    needs: list[str] = field(default_factory=list)  # of its counters
    may_refuse: bool = False  # is a step right that cannot run the problem, and says so?


@dataclass
class Exercise:
    step: str
    title: str
    task: str
    kernel: str  # with the holes
    runs: list[Run]
    more: list[Run]  # after these: other problems
    unseen: list[str]  # what no run can show

    @property
    def mine(self) -> str:
        """The reader's step."""
        return "my_" + self.step.partition("_")[0]


def read(step: str, root: Path = ROOT) -> Exercise:
    path = root / PAGES / step / "unsolved.md"
    if not path.is_file():
        raise StepError(f"{step} has no exercise: there is no {PAGES}/{step}/unsolved.md")
    change = ablations.read(path, root)
    text = path.read_text(encoding="utf-8")
    runs: list[Run] = []
    unseen: list[str] = []
    for key, value in re.findall(r"^- (\w[\w ]*): (.*)", text, re.MULTILINE):
        code = value.removeprefix("`").removesuffix("`")
        if key == "Not seen":
            unseen.append(value)
        elif key == "Run":
            runs.append(Run(code))
        elif key == "Needs" and runs and NEED.fullmatch(code):
            runs[-1].needs.append(code)
        else:
            raise StepError(f"{change.page}: what is '- {key}: {value}'?")
    task = text[text.index("\n") : text.index("```diff")].strip()
    kernel = "\n".join(ablations.changed_lines(change, root)) + "\n"
    exercise = Exercise(step, change.title, task, kernel, runs, [], unseen)
    check = f"build/flashsteps check {exercise.mine}"
    exercise.more = [
        *(Run(f"{check} {problem}", may_refuse=True) for problem in other_problems(step, root)),
        Run(check),  # the covering sample
    ]
    return exercise


def problems_of_bug(page: Path) -> list[str]:
    """Options: the problems on which the page's bug must be reported."""
    told = dict(re.findall(r"^- (Shapes|Problem): (.*)", page.read_text(encoding="utf-8"), re.MULTILINE))
    shapes = re.findall(r"`([^`]+)`", told.get("Shapes", "")) or SHAPES
    options = re.findall(r"`([^`]+)`", told.get("Problem", ""))
    return [" ".join([f"--shape {shape}{mask}", *options]) for shape, mask in zip(shapes, MASKS, strict=True)]


def other_problems(step: str, root: Path) -> list[str]:
    """Options: the problems on which the lesson's edits and the step's known bugs fail, each once."""
    found = []
    for page in ablations.pages(root, [step], TRIES):
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"^- Run: `([^`]+)`\n- Expect: `(?:FAIL|CRASH|HANG)`", text, re.MULTILINE):
            found.append(command[command.index("--") :].replace("--backend emulator ", ""))
    for page in ablations.pages(root, [step], BUGS):
        found += problems_of_bug(page)
    return list(dict.fromkeys(found))


def shown(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def unmet(need: str, names: dict[str, float]) -> str:
    """What is wrong, or nothing."""
    left, relation, right = NEED.fullmatch(need).groups()
    is_now, must_be = (eval(side, {"__builtins__": {}}, names) for side in (left, right))
    if {"<=": is_now <= must_be, ">=": is_now >= must_be, "==": is_now == must_be}[relation]:
        return ""
    return f"{left} must be {WORDS[relation]} {shown(must_be)}, is {shown(is_now)}"


def counters(written: dict) -> dict[str, float]:
    """Of a results file or, with verb `trace`, of a trace."""
    if "traceEvents" not in written:
        (entry,) = written["runs"][0]["steps"]
        return {**entry["counters"], **entry["resources"], "configuration": entry.get("configuration", "")}
    events = written["traceEvents"]
    # A track for what a warp does, another for its wgmma: "wgmma of warp 3".
    warp = {each["tid"]: each["args"]["name"].split()[-1] for each in events if each["name"] == "thread_name"}

    def spans(kind: str) -> list[tuple[str, float, float]]:
        found = [each for each in events if each.get("cat") == kind]
        return [(warp[each["tid"]], each["ts"], each["ts"] + each["dur"]) for each in found]

    beside = sum(
        max(0, min(end, until) - max(begin, since))
        for one, begin, end in spans("wgmma")
        for other, since, until in spans("work")
        if one == other
    )
    products = {name: sum(each.get("args", {}).get(name, 0) for each in events) for name in ("mma", "wgmma")}
    return {**products, "wgmma_beside_work": beside}


def verdicts(process: subprocess.Popen[str]) -> Iterator[str]:
    """What the program says of each problem that is not right, or all it says if it fails and names none."""
    said, verdict, named = "", "", False
    for line in process.stdout:
        if verdict and not line.startswith("      "):
            yield verdict.rstrip()
            verdict = ""
        if verdict or VERDICT.match(line):
            verdict, named = verdict + line, True
        said += line
    if verdict:
        yield verdict.rstrip()
    if process.wait() != 0 and not named:
        yield said.rstrip()


def judge(run: Run, program: Path, step: str) -> Iterator[tuple[bool, str]]:
    """Whether `step` of `program` does what the run demands, line by line."""
    _, verb, _, *options = shlex.split(run.command)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(program), verb, step, *options, "--backend", "emulator", "--json", str(out)]
        passed = True
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        with subprocess.Popen(command, **pipe) as process:
            try:
                for verdict in verdicts(process):
                    if not (run.may_refuse and " cannot run " in verdict):
                        passed = False
                        yield False, f"NOT YET  {run.command}\n{verdict}"
            finally:
                process.kill()  # if the caller has heard enough
        if not passed:
            return
        yield True, f"PASS     {run.command}"
        names = counters(json.loads(out.read_text(encoding="utf-8"))) if run.needs else {}
        for need in run.needs:
            complaint = unmet(need, names)
            yield not complaint, f"NOT YET    {complaint}" if complaint else f"PASS       {need}"


def grade(exercise: Exercise, program: Path, step: str) -> Iterator[tuple[bool, str]]:
    """Whether `step` of `program` solves the exercise, line by line: what the page demands, then the other problems,
    up to the first one that is not right."""
    solved = True
    for run in exercise.runs:
        for right, line in judge(run, program, step):
            solved = solved and right
            yield right, line
    for run in exercise.more:
        if not solved:
            return
        for solved, line in judge(run, program, step):
            yield solved, line
            if not solved:
                break


def start(exercise: Exercise, root: Path, again: bool) -> int:
    kernel = root / "steps" / exercise.mine / "kernel.cu"
    if kernel.exists() and not again:
        raise StepError(f"{kernel.relative_to(root)} is there already; --again begins anew and loses what you wrote")
    kernel.parent.mkdir(exist_ok=True)
    kernel.write_text(exercise.kernel, encoding="utf-8")
    print(f"{exercise.title}\n\n{exercise.task}\n")
    of_hole = False
    for number, line in enumerate(exercise.kernel.splitlines(), start=1):
        if "// EXERCISE" in line:
            print(f"{kernel.relative_to(root)}:{number}:")
        of_hole = line.lstrip().startswith("//") and (of_hole or "// EXERCISE" in line)
        if of_hole:
            print("  " + line.strip().removeprefix("// "))
    print(f"\nThen: python3 scripts/steps/exercise.py check {exercise.step.partition('_')[0]}")
    return 0


def check(exercise: Exercise, root: Path) -> int:
    folders = (root / folder for folder in BUILDS)
    build = next((folder for folder in folders if (folder / "CMakeCache.txt").is_file()), None)
    if build is None:
        raise StepError("there is no build: run `bash scripts/run.sh`, or `cmake --preset emulator`")
    print(f"building in {build.relative_to(root)}", flush=True)
    command = ["cmake", "--build", str(build), "--target", "flashsteps"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        print(made.stdout + made.stderr)
        print("NOT YET  it does not compile")
        return 1
    print("running it; the last command takes longest", flush=True)
    solved = True
    for right, line in grade(exercise, build / "flashsteps", exercise.mine):
        solved = solved and right
        print(line, flush=True)
    if not solved:
        print("\nNot yet.")
        return 1
    print("\nSolved.")
    for what in exercise.unseen:
        print(f"Not seen: {what}")
    print(f"The step's own way: python3 scripts/steps/exercise.py solution {exercise.step.partition('_')[0]}")
    return 0


def solution(exercise: Exercise, root: Path) -> int:
    lines, _, _ = step_diff.diff(exercise.mine, exercise.step, root)
    print("\n".join(lines))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Exercises in which you write a step's idea yourself.")
    parser.add_argument("verb", choices=("start", "check", "solution"))
    parser.add_argument("step", help="a step, or a prefix that names one: v05")
    parser.add_argument("--again", action="store_true", help="start: overwrite what is there")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: the one of this script)")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        exercise = read(find_step(options.step, root), root)
        if options.verb == "start":
            return start(exercise, root, options.again)
        if not (root / "steps" / exercise.mine / "kernel.cu").is_file():
            raise StepError(f"there is no steps/{exercise.mine}/kernel.cu: start the exercise first")
        return check(exercise, root) if options.verb == "check" else solution(exercise, root)
    except (ablations.AblationError, StepError, OSError, UnicodeDecodeError) as error:
        print(f"exercise.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
