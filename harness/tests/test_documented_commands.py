"""Every command of README.md, docs/ and the lessons that is not marked with what it needs: run here, as it stands
there, and with the outcome that stands beside it. commands.py says how; FLASHSTEPS_BUILD as in
test_program.py. And what pages say of the tests' broken kernels and of the sources."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import commands
import numpy as np
import pytest
import test_own_step
import test_variants
from test_program import BUILD, PATIENCE, ROOT

from measure.lab import LIBRARY, Lab  # in scripts/, which test_program adds to the path
from steps import variants

FAIL = 1
DEBUGGING = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
# The edits of lessons are tried in test_variants.py, and the chapter on a step of one's own in test_own_step.py.
ELSEWHERE = {command for each in test_variants.TRIES for case in each.cases for command in case.commands}
SHOWN = [each for each in commands.all_commands() if each.page != test_own_step.PAGE]
RUN = [each for each in SHOWN if not each.needs and each.text not in ELSEWHERE]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What a user has after a build, made of links: what a command writes stays in here."""
    root = tmp_path / "flashsteps"
    (root / "build" / "venv" / "bin").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (root / entry.name).symlink_to(entry)
    for name in ("flashsteps", LIBRARY, "steps", "tests"):
        (root / "build" / name).symlink_to(BUILD / name)
    (root / "build" / "ci").symlink_to(BUILD)
    (root / "build" / "venv" / "bin" / "python").symlink_to(tmp_path / "bin" / "python3")
    return root


@pytest.mark.parametrize("text", dict.fromkeys(each.text for each in RUN))
def test_the_command_does_what_the_page_says(text: str, repository: Path, tmp_path: Path) -> None:
    done = test_own_step.run(repository, text.replace("/tmp/", f"{tmp_path}/"))
    for command in (each for each in RUN if each.text == text):  # one may stand on several pages
        command.check(done)


def test_the_message_that_debugging_explains(repository: Path) -> None:
    (quoted,) = re.findall(r"^```\n(FAIL .*?)\n```$", DEBUGGING, re.MULTILINE | re.DOTALL)
    (command,) = (each for each in RUN if f" {quoted.split()[1]} " in each.text)
    said = test_own_step.run(repository, command.text).stdout
    # How many rows are wrong may depend on the compiler.
    for part in re.split(r"…|\n +|\d+ of 400|wrong rows .*of 200", quoted):
        assert part.strip() in said


# ---- The tables of docs/debugging.md and docs/copies.md.

MUTANT_ROWS = re.findall(r"^\|.*\| `(\w+)` \| `(--shape [^`]+)` \|$", DEBUGGING, re.MULTILINE)


def test_the_mutants_table_is_found() -> None:
    assert len(MUTANT_ROWS) >= 15


@pytest.mark.parametrize("name, options", MUTANT_ROWS, ids=[name for name, _ in MUTANT_ROWS])
def test_the_mutant_of_the_table_fails(name: str, options: str) -> None:
    program = BUILD / "tests" / "flashsteps_mutants"
    arguments = ["check", f"mutant_{name}", *options.split(), "--backend", "emulator"]
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == FAIL, done.stdout + done.stderr


@pytest.mark.parametrize("page, least", [("debugging", 6), ("copies", 12), ("wgmma", 7)])
def test_the_reports_of_the_table_are_those_of_the_bugs(page: str, least: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^*\n]*\*([^*|\n]+)\*.*\| ((?:\[\w+\](?:, )?)+) \|$", text, re.MULTILINE)
    rows = [(words, re.findall(r"\[(\w+)\]", names)) for words, names in rows]
    assert len(rows) >= least
    for words, names in rows:
        pattern = r"^\[{0}\]: \.\./steps/(\w+)/variants\.md#{0}$"
        links = [re.search(pattern.format(name), text, re.MULTILINE) for name in names]
        assert all(links), f"{names}: a link is missing"
        bugs = [variants.find(link[1], name) for link, name in zip(links, names)]
        assert any(words in text for bug in bugs for text in test_variants.evidence(bug)), f"'{words}' in none of {names}"


@pytest.mark.parametrize("page, steps, least", [("copies", "v1?_*", 8), ("wgmma", "v21_wgmma", 7)])
def test_the_page_quotes_the_steps(page: str, steps: str, least: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("  //")[0] for block in blocks for line in block.splitlines()]
    kernels = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(f"steps/{steps}/kernel.cu")))
    assert len(lines) >= least
    for line in lines:
        assert line in kernels


def test_the_page_on_copies_names_what_is_there() -> None:
    page = (ROOT / "docs" / "copies.md").read_text(encoding="utf-8")
    kinds = set(re.findall(r"`(k[A-Z]\w+)`", page))
    header = (ROOT / "common/emulator/emulator.h").read_text(encoding="utf-8")
    assert len(kinds) >= 6
    for kind in kinds:
        assert f"  {kind}," in header


# ---- The kernel of docs/attention.md, beside one of the ladder.


def test_the_numpy_kernel_agrees_with_the_emulator() -> None:
    page = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(code, "docs/attention.md", "exec"), names)
    inputs = np.random.default_rng(1).standard_normal((3, 1, 2, 100, 64)).astype(np.float16)
    case = Lab(BUILD / LIBRARY, "emulator").given({"dtype": "fp16", "causal": True}, *(x.view(np.uint16) for x in inputs))
    outputs, lses = case.outputs("v10_tma_warpspec")
    for head in range(2):
        q, k, v = inputs[:, 0, head].astype(np.float64)
        o, lse = names["attention"](q, k, v, 64**-0.5, causal=True)
        assert np.linalg.norm(outputs[0, head].view(np.float16) - o) <= 1e-3 * np.linalg.norm(o)
        np.testing.assert_allclose(lses[0, head], lse, atol=1e-4, rtol=1e-6)
