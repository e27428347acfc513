#!/usr/bin/env python3
"""Exercises: a step with its idea left out, for the reader to write.

    python3 scripts/steps/exercise.py next           the exercise to do now: makes steps/my_v01/kernel.cu, with holes
    python3 scripts/steps/exercise.py watch          whenever you save: builds it, runs it on the emulator, says what
                                                     is missing; ends when it is solved
    python3 scripts/steps/exercise.py hint           one more hint for the first hole that is left; `hint 2` for the
                                                     second hole
    python3 scripts/steps/exercise.py list           all exercises, and which of them are solved

    start v05      as next, for a step of your choice; --again begins anew
    check          as watch, once
    solution       the diff from your kernel to the step itself

Where no step is named, it is the one that `next` or `start` gave last. The exercise stands in steps/STEP/variants.md:
its task, the holes as a change of the step, hints, and what `check` demands first. Then come the problems on which the
edits of the lesson's "Try it" and the step's known bugs fail, and the covering sample. docs/exercises.md says more.
Needs nothing but Python and a build.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps import step_diff, variants
from steps.sources import ROOT, StepError, all_steps, find_step
from steps.variants import Variant

CALL = "python3 scripts/steps/exercise.py"
# Of a problem, by the program; the lines that follow and say more of it are indented.
VERDICT = re.compile(r"(FAIL|CRASH|HANG|ERROR)  \S+  B=")
NEED = re.compile(r"(.+) (<=|>=|==) (.+)")
WORDS = {"<=": "at most", ">=": "at least", "==": "exactly"}
# Without nvcc an edit compiles in seconds: a build for the emulator alone goes first.
BUILDS = ("build/emulator", "build")
HOLE = re.compile(r"// EXERCISE (\d+): ")
# As GCC, clang and nvcc write it.
COMPILER_ERROR = re.compile(r"(\S+?)[:(](\d+)(?::\d+:|\):) (?:fatal )?error: (.*)")
PLACE = re.compile(r"(steps/\w+/kernel\.cu)[:(](\d+)")
POLL_SECONDS = 0.3
WIDTH = 100  # of a line
COLOURS = {"PASS": 32, "Solved.": 32, "NOT YET": 31, "FAIL": 31, "CRASH": 31, "HANG": 31}


@dataclass
class Run:
    command: str  # as in a page: build/flashsteps count my_v05 --shape 1,4,256,64
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

    @property
    def file(self) -> str:
        return f"steps/{self.mine}/kernel.cu"

    @property
    def holes(self) -> dict[int, int]:
        """The holes whose comment still stands in the reader's kernel, and at which line."""
        lines = enumerate((ROOT / self.file).read_text(encoding="utf-8").splitlines(), start=1)
        return {int(found[1]): number for number, line in lines if (found := HOLE.search(line))}


@dataclass
class Progress:
    """What the reader has done, kept beside the reader's kernels."""

    now: str = ""  # the step whose exercise was started last
    solved: list[str] = field(default_factory=list)
    hints: dict[str, dict[str, int]] = field(default_factory=dict)  # how many were shown, by step and hole

    @staticmethod
    def file() -> Path:
        return ROOT / "steps" / "my_progress.json"

    @classmethod
    def load(cls) -> Progress:
        if not cls.file().is_file():
            return cls()
        try:
            found = cls(**json.loads(cls.file().read_text(encoding="utf-8")))
            if [type(each) for each in vars(found).values()] != [str, list, dict]:
                raise ValueError("it is not what this script writes")
            return found
        except (ValueError, TypeError) as error:
            raise StepError(f"{cls.file()} cannot be read ({error}): mend it, or delete it to begin anew") from error

    def save(self) -> None:
        self.file().write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")


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
        command = [os.path.relpath(program, ROOT), verb, step, *options]
        typed = shlex.join(command)
        command += ["--backend", "emulator", "--json", str(out)]
        passed = True
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        without_colours = os.environ | {"NO_COLOR": "1"}
        with subprocess.Popen(command, cwd=ROOT, env=without_colours, **pipe) as process:
            try:
                for verdict in verdicts(process):
                    if not (run.may_refuse and " cannot run " in verdict):
                        passed = False
                        yield False, f"NOT YET  {typed}\n{verdict}"
            finally:
                process.kill()  # if the caller has heard enough
        if not passed:
            return
        yield True, f"PASS     {typed}"
        names = counters(json.loads(out.read_text(encoding="utf-8"))) if run.needs else {}
        for need in run.needs:
            complaint = unmet(need, names)
            yield not complaint, f"NOT YET    {complaint}" if complaint else f"PASS       {need}"


def grade(exercise: Exercise, program: Path, step: str) -> Iterator[tuple[bool, str]]:
    """Whether `step` of `program` solves the exercise, line by line: what the page demands, then the other problems,
    up to the first one that is not right."""
    for run in exercise.runs:
        solved = True
        for right, line in judge(run, program, step):
            solved = solved and right
            yield right, line
        if not solved:
            return
    for run in exercise.more:
        for right, line in judge(run, program, step):
            yield right, line
            if not right:
                return


def first_error(said: str) -> str:
    """Of all that compilers say, the first error: where it is in a kernel, and the lines that they show."""
    used_at, lines = "", said.splitlines()
    for at, line in enumerate(lines):
        found, place = COMPILER_ERROR.match(line), PLACE.search(line)
        if found is None:
            # An error in a header is told below the lines of the kernel that lead there, the innermost first.
            if "In instantiation of" in line:
                used_at = ""
            elif place and not used_at and "required from" in line:
                used_at = f"{place[1]}:{place[2]}, in "
            continue
        where = f"{place[1]}:{place[2]}" if place else f"{used_at}{found[1].lstrip('./')}:{found[2]}"
        shown = [f"{where}: {found[3]}"]
        for below in lines[at + 1 :]:
            if not below.startswith("  "):
                break
            shown.append(below)
        return "\n".join(shown)
    return "\n".join(lines[-20:])


def say(text: str) -> None:
    """In colour, where a terminal has it. What a report says on a long line goes on below; commands stay whole."""
    for line in text.splitlines():
        if line.startswith("  "):
            line = fold(line, " " * (len(line) - len(line.lstrip()) + 2))
        for word, colour in COLOURS.items():
            if line.startswith(word):
                line = step_diff.colored(word, colour) + line.removeprefix(word)
        print(line, flush=True)


def fold(text: str, indent: str) -> str:
    """The first line has its own indent."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def exercises() -> list[str]:
    """The steps that have one, in the ladder's order."""
    return [step for step in all_steps() if variants.of_step(step, "exercise")]


def start(exercise: Exercise, again: bool) -> int:
    kernel = ROOT / exercise.file
    if kernel.exists() and not again:
        raise StepError(f"{exercise.file} is there already; --again begins anew and loses what you wrote")
    kernel.parent.mkdir(exist_ok=True)
    kernel.write_text(exercise.kernel, encoding="utf-8")
    return show(exercise)


def show(exercise: Exercise) -> int:
    """The task; from now on it is the reader's."""
    progress = Progress.load()
    progress.now = exercise.unsolved.step
    progress.save()
    print(f"{exercise.short}  {exercise.unsolved.title}\n\n{exercise.unsolved.task}")
    of_hole = False
    for number, line in enumerate((ROOT / exercise.file).read_text(encoding="utf-8").splitlines(), start=1):
        begins = HOLE.search(line)
        if begins:
            print(f"\n{exercise.file}:{number}")
        of_hole = line.lstrip().startswith("//") and (of_hole or begins is not None)
        if of_hole:
            print("  " + line.strip().removeprefix("// "))
    print("\nDelete a hole's comment when you have filled the hole.")
    print(f"  {CALL} watch    checks your kernel whenever you save it")
    print(f"  {CALL} hint     if you are stuck")
    return 0


def go_on(progress: Progress) -> int:
    """The exercise that is not solved yet, or the next one above it on the ladder."""
    steps = exercises()
    at = steps.index(progress.now) if progress.now in steps else 0
    for step in (*steps[at:], *steps[:at]):
        if step not in progress.solved:
            exercise = read(step)
            return show(exercise) if (ROOT / exercise.file).is_file() else start(exercise, again=False)
    print(f"All {len(steps)} exercises are solved.")
    return 0


def hint(exercise: Exercise, hole: int | None) -> int:
    """One more for this hole, below those that were shown before."""
    hints = exercise.unsolved.hints
    if hole is None:
        hole = next(iter(exercise.holes), max(hints))
    if hole not in hints:
        raise StepError(f"the exercise of {exercise.short} has the holes {', '.join(map(str, sorted(hints)))}")
    progress = Progress.load()
    shown = progress.hints.setdefault(exercise.unsolved.step, {})
    shown[str(hole)] = min(shown.get(str(hole), 0) + 1, len(hints[hole]))
    progress.save()
    for number, text in enumerate(hints[hole][: shown[str(hole)]], start=1):
        print(f"EXERCISE {hole}, hint {number} of {len(hints[hole])}:")
        print(fold(f"  {text}", "  "))
    if shown[str(hole)] == len(hints[hole]):
        print(f"There are no more. The step's own way: {CALL} solution {exercise.short}")
    return 0


def show_list(progress: Progress) -> int:
    steps = exercises()
    for step in steps:
        exercise = read(step)
        used = sum(progress.hints.get(step, {}).values())
        begun = (ROOT / exercise.file).is_file()
        state = "solved" if step in progress.solved else "begun" if begun else ""
        state += f", {used} hint{'s' * (used > 1)}" if used else ""
        here = ">" if step == progress.now else " "
        print(f"{here} {exercise.short}  {exercise.unsolved.title:<44}{state}".rstrip())
    print(f"\n{len(progress.solved)} of {len(steps)} solved. The next one: {CALL} next")
    return 0


def check(exercise: Exercise) -> int:
    folders = (ROOT / folder for folder in BUILDS)
    build = next((folder for folder in folders if (folder / "CMakeCache.txt").is_file()), None)
    if build is None:
        raise StepError("there is no build: run `bash scripts/run.sh`, or `cmake --preset emulator`")
    relative = build.relative_to(ROOT)
    print(f"building {exercise.file} in {relative}", flush=True)
    command = ["cmake", "--build", str(relative), "--target", "flashsteps"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    if made.returncode != 0:
        error = first_error(made.stdout + made.stderr)
        print(error)
        say("NOT YET  it does not compile")
        if error.startswith("steps/my_") and not error.startswith(exercise.file):
            print("This is another kernel of yours, which is in the same build: mend it, or delete its folder.")
        print(f"This is the first error. To see all: {shlex.join(command)}")
        return 1
    print("running it; the last command takes longest", flush=True)
    solved = True
    for right, line in grade(exercise, build / "flashsteps", exercise.mine):
        solved = solved and right
        say(line)
    if not solved:
        left = [f"EXERCISE {hole} at line {line}" for hole, line in exercise.holes.items()]
        print(f"Left to fill: {', '.join(left)}" if left else "Not yet.")
        return 1
    progress = Progress.load()
    progress.solved = sorted({*progress.solved, exercise.unsolved.step})
    progress.save()
    print()
    say("Solved.")
    for what in exercise.unsolved.not_shown:
        print(f"Not seen: {what}")
    print(f"  {CALL} solution {exercise.short}    shows the step's own way")
    print(f"  {CALL} next            goes on")
    return 0


def watch(exercise: Exercise) -> int:
    """Checks the kernel now and whenever it was saved, until it is solved."""
    saved = 0
    while True:
        try:
            latest = (ROOT / exercise.file).stat().st_mtime_ns
        except FileNotFoundError:  # an editor is just replacing it
            latest = saved
        if latest != saved:
            saved = latest
            if sys.stdout.isatty():
                print("\033[2J\033[H", end="")
            if check(exercise) == 0:
                return 0
            print(f"\nWaiting until you save {exercise.file}. Stuck? {CALL} hint. Ctrl-C ends this.", flush=True)
        time.sleep(POLL_SECONDS)


def solution(exercise: Exercise) -> int:
    lines, _, _ = step_diff.diff(exercise.mine, exercise.unsolved.step)
    print("\n".join(lines))
    return 0


def act(options: argparse.Namespace) -> int:
    progress = Progress.load()
    words = list(options.words)
    if options.again and options.verb != "start":
        raise StepError("--again is for start")
    if options.verb in ("next", "list"):
        if words:
            raise StepError(f"{options.verb} takes no step; one exercise begins with: {CALL} start {words[0]}")
        return go_on(progress) if options.verb == "next" else show_list(progress)
    hole = int(words.pop()) if options.verb == "hint" and words and words[-1].isdecimal() else None
    if len(words) > 1:
        raise StepError(f"one step at a time, not {' '.join(words)}")
    if not words and not progress.now:
        raise StepError(f"which step? Name one, as v05, or begin with: {CALL} next")
    exercise = read(find_step(words[0].removeprefix("my_") if words else progress.now))
    if options.verb == "start":
        return start(exercise, options.again)
    if not (ROOT / exercise.file).is_file():
        raise StepError(f"there is no {exercise.file}: begin with: {CALL} start {exercise.short}")
    if options.verb == "hint":
        return hint(exercise, hole)
    return {"check": check, "watch": watch, "solution": solution}[options.verb](exercise)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = ("next", "start", "watch", "check", "hint", "solution", "list")
    parser.add_argument("verb", choices=verbs, metavar="VERB", help=", ".join(verbs))
    parser.add_argument("words", nargs="*", metavar="STEP", help="a step, or the beginning of its name: v05")
    parser.add_argument("--again", action="store_true", help="start: overwrite what is there")
    try:
        return act(parser.parse_args(arguments))
    except (StepError, OSError, UnicodeDecodeError) as error:
        print(f"exercise.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # what reads the output may end before all of it is written
    sys.exit(main())
