"""The exercises of scripts/steps/exercise.py, docs/exercises/STEP/unsolved.md: what `start` gives the reader fails
`check`, and so does each known mistake; the step itself passes; and what a hint names is there.

docs/exercises/README.md says how the pages are read. Runs what a test build has made, like test_program.py; `check`
as a reader calls it, with a build of its own, is in test_own_step.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from test_bugs import BUGS, read_expected
from test_bugs import PAGES as PAGES_OF_BUGS
from test_exercises import ALL, EXERCISES, LESSONS
from test_program import BUILD, FLASHSTEPS, ROOT

from pages import check_docs
from steps import ablations, exercise

MOST_HOLES = 3
FILES = check_docs.files_of(ROOT)
# By a step of which not all types, head_dims and masks are built (CMakeLists.txt). It says nothing for or against it.
NO_INSTANCE = "this build of the step has no such instance"
WRONG = [
    *((BUGS, page) for page in PAGES_OF_BUGS if not read_expected(page).not_reported),
    *((EXERCISES, each.page) for each in ALL if any(run.changed and run.verdict != "PASS" for run in each.runs)),
    # Right where there is only one group of heads, as in all that the lesson runs.
    (EXERCISES, ROOT / exercise.TRIES / "v14_longest_first" / "try3_one_group.md"),
]
UNSEEN = [page for page in PAGES_OF_BUGS if read_expected(page).not_reported]


def page_of(step: str) -> Path:
    return ROOT / exercise.PAGES / step / "unsolved.md"


def refusal(step: str, program: Path, name: str) -> str:
    """The first thing that the grader says against an answer to the step's exercise."""
    task = exercise.read(step)
    report = (each for run in [*task.runs, *task.more] for each in exercise.judge(run, program, name))
    return next((line for right, line in report if not right and NO_INSTANCE not in line), "")


@pytest.mark.parametrize("step", LESSONS)
def test_what_the_reader_starts_with_fails(step: str) -> None:
    unsolved = ablations.read(page_of(step), ROOT)
    made = BUILD / "unsolved" / unsolved.name / "kernel.cu"
    assert made.is_file() and made.read_text(encoding="utf-8") == ablations.source(unsolved, ROOT), "build again"
    assert refusal(step, EXERCISES, unsolved.name).startswith("NOT YET")


@pytest.mark.parametrize("step", LESSONS)
def test_the_solution_passes(step: str) -> None:
    """All but the covering sample, which scripts/test.sh runs for every step."""
    task = exercise.read(step)
    assert task.more.pop().command == f"build/flashsteps check {task.mine}"
    report = list(exercise.grade(task, FLASHSTEPS, step))
    assert all(right and line.startswith("PASS") for right, line in report), report


def page_id(page: Path) -> str:
    return f"{page.parent.name}-{page.stem}"


@pytest.mark.parametrize("program, page", [pytest.param(*each, id=page_id(each[1])) for each in WRONG])
def test_a_known_mistake_is_refused(program: Path, page: Path) -> None:
    assert refusal(page.parent.name, program, ablations.read(page, ROOT).name)


@pytest.mark.parametrize("step", sorted({page.parent.name for page in UNSEEN}))
def test_where_a_mistake_is_not_seen_the_exercise_says_so(step: str) -> None:
    assert exercise.read(step).unseen


@pytest.mark.parametrize("step", LESSONS)
def test_start_and_solution(step: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder in (f"steps/{step}", f"{exercise.PAGES}/{step}"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    short = step.partition("_")[0]
    mine = tmp_path / "steps" / f"my_{short}" / "kernel.cu"

    def run(*arguments: str) -> tuple[int, str]:
        status = exercise.main(["--root", str(tmp_path), *arguments])
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


def named(text: str) -> set[str]:
    """What looks like a name of the program's: with an underscore, a call, or in backquotes."""
    return set(re.findall(r"\b\w*_\w+|\b\w+(?=[(<]\w)|(?<=`)\w+(?=`)", text))


@pytest.mark.parametrize("step", LESSONS)
def test_what_a_hint_names_is_there(step: str) -> None:
    change = ablations.read(page_of(step), ROOT)
    comments = [line for part in change.changes for line in part.new if line.lstrip().startswith("//")]
    text = page_of(step).read_text(encoding="utf-8")
    task = re.sub(r"```diff.*?```|^- .*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    # harness/problem/ has the names of inputs.
    texts = [path for path in FILES if re.fullmatch(rf"(steps/{step}|common|harness/problem)/.*\.(cu|h|cpp)", path)]
    known = set(re.findall(r"\w+", "\n".join((ROOT / path).read_text(encoding="utf-8") for path in texts)))
    assert named("\n".join([*comments, task])) <= known
