"""The form that all lessons share: whoever has read one finds his way in the next. What they say is checked
elsewhere: figures and diffs by readme_tables.py, links by rumdl.

A step of your own needs no lesson. One with recorded figures does: then it is part of the ladder."""

from __future__ import annotations

import functools
import re

import pytest
from conftest import SCRIPTS

from pages.readme_tables import find_blocks
from records import results
from steps import sources, variants

ROOT = SCRIPTS.parent
HEADINGS = [
    "1. Bottleneck seen",
    "2. Idea",
    "3. Diff",
    "4. Prediction, then result",
    "5. What it did not fix",
    "6. Try it",
    "7. Exercise and quiz",
]
LADDER = (
    "h200_ladder.json",
    "h100_ladder_hopper.json",
    "h200_decode.json",
    "h200_stream_k_lengths.json",
    "h100_even_shares.json",
    "h200_fp8.json",
    "h200_fp8_fast.json",
    "h200_fp8_cache.json",
    "h200_fp8_quantize.json",
    "h200_fp8_mma_sync.json",
    "h200_fp8_default.json",
    "h200_backward_ladder.json",
)
QUESTION = re.compile(r"^<details>\n<summary>(.*?)</summary>\n\n(.*?)\n\n</details>$", re.MULTILINE | re.DOTALL)
QUESTIONS = (2, 3)
# Section 4: the reader chooses, before the prediction and the result fold out. The prediction begins with when it was
# written: before measuring, after drafts had been timed, or in one commit with the result.
PREDICT_FIRST = re.compile(
    r"\n[^\n<|-][^<]*?\?[^<]*?\n\n"
    r"- \*\*A\.\*\* [^<]+?\n- \*\*B\.\*\* [^<]+?\n- \*\*C\.\*\* [^<]+?\n\n"
    r"<details>\n<summary>Our prediction</summary>\n\n\*(Written|Committed) [^*]+\.\*\s.+?\n\n</details>\n\n"
    r"<details>\n<summary>The result</summary>\n\n((?:\*\*[ABC]\*\* is|None of them is) right\.\n\n.+?|[^<]* is not recorded yet\.)\n\n</details>\n\n",
    re.DOTALL,
)
STEPS = sources.all_steps()
LESSONS = [step for step in STEPS if (ROOT / "steps" / step / "README.md").is_file()]


@functools.cache
def recorded_steps() -> list[str]:
    files = [ROOT / "figures/results" / name for name in LADDER]
    names = {step["step"] for file in files for run in results.load(file)["runs"] for step in run["steps"]}
    return [step for step in STEPS if step in names]  # without variants, and v27 in another type


def chapters_before(step: str) -> list[str]:
    """What docs/README.md says to read before a step."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(rf"^\| \[v\d+\]\(\.\./steps/{step}/README\.md\) \|([^|]*)\|", index, re.MULTILINE)
    return re.findall(r"\]\(([^)#]+)", "".join(cells))


def text_of(step: str) -> str:
    return (ROOT / "steps" / step / "README.md").read_text(encoding="utf-8")


def complaints(step: str, text: str, before: str | None, after: list[str], chapters: list[str]) -> list[str]:
    """What is not as in the other lessons. Before and after are the lessons that it must link to at its end."""
    page, number = f"steps/{step}/README.md", step.partition("_")[0]
    found: list[str] = []

    def demand(fulfilled: object, complaint: str) -> None:
        if not fulfilled:
            found.append(f"{page}: {complaint}")

    lines = text.splitlines()
    title = f"# {number} · "
    whose = "is it another step's lesson? A step of your own needs none: delete the file"
    demand(lines[0].startswith(title), f"its first line must begin with '{title}'; {whose}")
    blocks = find_blocks(text, page)
    headings = [line[3:] for line in lines if line.startswith("## ")]
    demand(headings == HEADINGS, f"its headings must be {HEADINGS}")
    if found:
        return found  # the rest looks into the sections

    demand(blocks[:1] and blocks[0].kind == "place", "its title must be followed by a generated block 'place'")
    opening, *sections = re.split(r"^## .*\n", text, flags=re.MULTILINE)
    idea, diff, measured, ending = sections[1], sections[2], sections[3], sections[6]
    demand("".join(opening.splitlines()[1:]).strip(), "it must say first what it teaches")
    for chapter in chapters:
        link = f"](../../docs/{chapter})"
        demand(link in opening, f"docs/README.md has {chapter} before it: link it above section 1")
    picture = re.search(r"^!\[[^\]]+\]\(\.\./\.\./(docs/)?figures/\w+\.svg\)$", idea, re.MULTILINE)
    demand(picture, "section 2 must show a picture of figures/ or docs/figures/")
    if before:
        command = rf"`python3 scripts/steps/step_diff\.py (--brief )?{before.partition('_')[0]} {number}`"
        demand(re.search(command, diff), f"section 3 must say how to see the diff: {command}")
    form = "a question, three choices, and two details: 'Our prediction', and 'The result', which begins with '**B** is right.', or A, C or none"
    demand(PREDICT_FIRST.match(measured), f"section 4 must begin with {form}")
    own = find_blocks(measured, page)
    if step in recorded_steps():
        kinds = {block.kind for block in own}
        demand(kinds & {"step", "cache"}, "section 4 must have a generated block 'step', or 'cache' of K and V in FP8")
    else:
        demand("is not recorded yet" in measured, "section 4 must say that its run 'is not recorded yet'")
    # `standing` names its steps with `show`: in a lesson that is the lesson's own.
    others = [
        block.where
        for block in blocks
        if block.kind != "code" and block.arguments.get("step", block.arguments.get("show")) != step
    ]
    demand(not others, f"generated blocks of other steps: {', '.join(others)}")
    name = "".join(each.title for each in variants.of_step(step, "exercise"))
    start = f"*{name}*: `python3 scripts/steps/exercise.py start {number}`"
    demand(start in " ".join(ending.split()), f"section 7 must say how to start the exercise: {start}")
    asked = QUESTION.findall(ending)
    complete = len(asked) in QUESTIONS and all(part.strip() for each in asked for part in each)
    demand(complete, "section 7 must have two or three questions, each with an answer that folds out")
    demand(re.search(r"^Sources: ", ending, re.MULTILINE), "it must end with its sources")
    for word, others in (("Before", [before] if before else []), ("Next", after)):
        line = f"{word}: {' or '.join(f'[{other}](../{other}/README.md)' for other in others)}."
        complaint = f"at its end there must be {line!r}" if others else f"at its end there must be no '{word}:'"
        demand(line in " ".join(ending.split()) if others else f"{word}:" not in ending, complaint)
    return found


def neighbours(step: str) -> tuple[str | None, list[str]]:
    """The step that it comes from. And the next one of the main path; or, of a side step, those that come from it, or
    else the next one, so that the way goes on behind the end of a branch."""
    at = LESSONS.index(step)
    path = sources.main_path()
    following = path[path.index(step) + 1 :][:1] if step in path else [each for each in LESSONS if sources.after(each) == step]
    return sources.after(step), following or LESSONS[at + 1 : at + 2]


@pytest.mark.parametrize("step", STEPS)
def test_a_lesson_has_the_form_of_all(step: str):
    if step not in LESSONS:
        pytest.skip(f"steps/{step} has no README.md: a step of your own needs none")
    found = complaints(step, text_of(step), *neighbours(step), chapters_before(step))
    assert not found, "\n".join(found)


def test_every_recorded_step_has_a_lesson():
    missing = [step for step in recorded_steps() if step not in LESSONS]
    assert not missing, f"{' or '.join(LADDER)} has their figures: write steps/STEP/README.md"
