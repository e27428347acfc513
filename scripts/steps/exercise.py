#!/usr/bin/env python3
"""Exercises: a step with its idea left out, for the reader to write.

    python3 scripts/steps/exercise.py start v05      makes steps/my_v05/kernel.cu, with holes to fill
    python3 scripts/steps/exercise.py check v05      builds it, runs it on the emulator, says what is missing
    python3 scripts/steps/exercise.py solution v05   the diff from steps/my_v05/ to the step itself

The exercise stands in steps/STEP/variants.md: its task, the holes as a change of the step, and what `check` demands
first. Then come the problems on which the edits of the lesson's "Try it" and the step's known bugs fail, and the
covering sample. docs/exercises.md says more. Needs nothing but Python and a build.
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
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps import step_diff, variants
from steps.sources import ROOT, StepError, find_step
from steps.variants import Variant

# Of a problem, by the program; the lines that follow and say more of it are indented.
VERDICT = re.compile(r"(FAIL|SKIP|CRASH|HANG|ERROR)  \S+  B=")
NEED = re.compile(r"(.+) (<=|>=|==) (.+)")
WORDS = {"<=": "at most", ">=": "at least", "==": "exactly"}
# Without nvcc an edit compiles in seconds: a build for the emulator alone goes first.
BUILDS = ("build/emulator", "build")


@dataclass
class Run:
    command: str  # as a reader types it: build/flashsteps count my_v05 --shape 1,4,256,64
    needs: list[str]  # of its counters
    may_refuse: bool  # is a step right that cannot run the problem, and says so?


@dataclass
class Exercise:
    unsolved: Variant
    kernel: str  # with the holes
    runs: list[Run]
    more: list[Run]  # after these: other problems

    @property
    def short(self) -> str:
        """v05"""
        return self.unsolved.step.partition("_")[0]

    @property
    def mine(self) -> str:
        """The reader's step."""
        return f"my_{self.short}"


def read(step: str) -> Exercise:
    found = variants.of_step(step, "exercise")
    if not found:
        raise StepError(f"{variants.page_of(step)} has no exercise")
    (unsolved,) = found
    for claim in (claim for case in unsolved.cases for claim in case.claims if not NEED.fullmatch(claim)):
        raise StepError(f"{unsolved.where}: '{claim}' is no comparison")
    kernel = "\n".join(variants.changed_lines(unsolved)) + "\n"
    runs = [Run(command, case.claims, False) for case in unsolved.cases for command in case.commands]
    exercise = Exercise(unsolved, kernel, runs, [])
    check = f"build/flashsteps check {exercise.mine}"
    exercise.more = [
        *(Run(f"{check} {problem}", [], True) for problem in other_problems(step)),
        Run(check, [], False),  # the covering sample
    ]
    return exercise


def other_problems(step: str) -> list[str]:
    """Options: the problems on which the lesson's edits and the step's known bugs fail, each once."""
    problems = {}
    for variant in variants.of_step(step):
        for case in variant.cases:
            fails = any(each.verdict in ("FAIL", "CRASH", "HANG") for each in case.outcomes)
            if variant.kind == "bug" or (variant.kind == "try" and fails):
                for command in case.commands:
                    options = command[command.index("--") :]
                    problems[re.sub(r"--(backend|mode) \w+ ", "", options)] = None
    return list(problems)


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


def start(exercise: Exercise, again: bool) -> int:
    kernel = ROOT / "steps" / exercise.mine / "kernel.cu"
    if kernel.exists() and not again:
        raise StepError(f"{kernel.relative_to(ROOT)} is there already; --again begins anew and loses what you wrote")
    kernel.parent.mkdir(exist_ok=True)
    kernel.write_text(exercise.kernel, encoding="utf-8")
    print(f"{exercise.unsolved.title}\n\n{exercise.unsolved.task}\n")
    of_hole = False
    for number, line in enumerate(exercise.kernel.splitlines(), start=1):
        if "// EXERCISE" in line:
            print(f"{kernel.relative_to(ROOT)}:{number}:")
        of_hole = line.lstrip().startswith("//") and (of_hole or "// EXERCISE" in line)
        if of_hole:
            print("  " + line.strip().removeprefix("// "))
    print(f"\nThen: python3 scripts/steps/exercise.py check {exercise.short}")
    return 0


def check(exercise: Exercise) -> int:
    folders = (ROOT / folder for folder in BUILDS)
    build = next((folder for folder in folders if (folder / "CMakeCache.txt").is_file()), None)
    if build is None:
        raise StepError("there is no build: run `bash scripts/run.sh`, or `cmake --preset emulator`")
    print(f"building in {build.relative_to(ROOT)}", flush=True)
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
    for what in exercise.unsolved.not_shown:
        print(f"Not seen: {what}")
    print(f"The step's own way: python3 scripts/steps/exercise.py solution {exercise.short}")
    return 0


def solution(exercise: Exercise) -> int:
    lines, _, _ = step_diff.diff(exercise.mine, exercise.unsolved.step)
    print("\n".join(lines))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Exercises in which you write a step's idea yourself.")
    parser.add_argument("verb", choices=("start", "check", "solution"))
    parser.add_argument("step", help="a step, or a prefix that names one: v05")
    parser.add_argument("--again", action="store_true", help="start: overwrite what is there")
    options = parser.parse_args(arguments)
    try:
        exercise = read(find_step(options.step))
        if options.verb == "start":
            return start(exercise, options.again)
        if not (ROOT / "steps" / exercise.mine / "kernel.cu").is_file():
            raise StepError(f"there is no steps/{exercise.mine}/kernel.cu: start the exercise first")
        return check(exercise) if options.verb == "check" else solution(exercise)
    except (StepError, OSError, UnicodeDecodeError) as error:
        print(f"exercise.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
