"""The exercises of scripts/steps/exercise.py, docs/exercises/STEP/unsolved.md: what `start` gives the reader fails
`check`, the step itself passes, and what a hint names is there.

docs/exercises/README.md says how the pages are read. Runs what a test build has made, like test_program.py; `check`
as a reader calls it, with a build of its own, is in test_own_step.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from test_exercises import EXERCISES, LESSONS
from test_program import BUILD, FLASHSTEPS, ROOT

from pages import check_docs
from steps import ablations, exercise

MOST_HOLES = 3
FILES = check_docs.files_of(ROOT)


def page_of(step: str) -> Path:
    return ROOT / exercise.PAGES / step / "unsolved.md"


@pytest.mark.parametrize("step", LESSONS)
def test_what_the_reader_starts_with_fails(step: str) -> None:
    unsolved = ablations.read(page_of(step), ROOT)
    made = BUILD / "unsolved" / unsolved.name / "kernel.cu"
    assert made.is_file() and made.read_text(encoding="utf-8") == ablations.source(unsolved, ROOT), "build again"
    solved, report = exercise.grade(exercise.read(step), EXERCISES, unsolved.name)
    assert not solved, report
    assert any(line.startswith("NOT YET") for line in report)


@pytest.mark.parametrize("step", LESSONS)
def test_the_solution_passes(step: str) -> None:
    solved, report = exercise.grade(exercise.read(step), FLASHSTEPS, step)
    assert solved, report
    assert all(line.startswith("PASS") for line in report)


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
