"""What a learner does, in a copy of this tree: edits a kernel, builds, runs; goes through the notebook; and adds a
step, as docs/your_own_step.md tells. What has not changed ccache takes from the test build, where there is ccache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from test_program import PATIENCE, ROOT

from steps import variants

PAGE = "docs/your_own_step.md"
STEP = "my_idea"
FAIL = 1
# What is compiled after an edit of v05's kernel: the kernel, and the text that `flashsteps source` prints.
EDITED = {"v05_padded_smem_on_emulator", "flashsteps_harness"}
# The tests of a module share what one of them builds. Groups are begun before all else, and these take longest.
pytestmark = pytest.mark.xdist_group("own step")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree, built without a GPU; without steps of the reader."""
    root = tmp_path_factory.mktemp("copy") / "flash, steps"  # a comma is nothing to stumble over
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("build", ".git", "__pycache__", "my_*"))
    # For ccache, to which paths are relative, build/ is as deep as the test build, and its commands are the same.
    (root / "made" / "ci").mkdir(parents=True)
    (root / "build").symlink_to("made/ci")
    launcher = "ccache" if shutil.which("ccache") else ""
    build(root, f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", "-DFLASHSTEPS_WERROR=ON")
    return root


def environment(root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{root.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "CCACHE_BASEDIR": str(root),
        "CCACHE_NOHASHDIR": "1",
    }


def run(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """As a reader does at a machine without a GPU, of which the pages speak; python3 is the one that runs this."""
    bin = root.parent / "bin"
    if not bin.exists():
        bin.mkdir()
        # Not a link: it would not find its virtual environment.
        (bin / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (bin / "python3").chmod(0o755)
    return subprocess.run(
        ["bash", "-c", command], cwd=root, env=environment(root), capture_output=True, text=True, timeout=PATIENCE
    )


def shell(root: Path, command: str, status: int = 0) -> str:
    done = run(root, command)
    assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def build(root: Path, *options: str) -> set[str]:
    """Builds as a learner does, and says for which targets something was compiled."""
    if options:
        shell(root, f"cmake --preset emulator {' '.join(options)}")
    output = shell(root, "cmake --build build")
    return set(re.findall(r"Building CXX object \S*?CMakeFiles/(\w+)\.dir/", output))


def replace(kernel: Path, old: str, new: str) -> None:
    text = kernel.read_text(encoding="utf-8")
    assert text.count(old) == 1
    kernel.write_text(text.replace(old, new), encoding="utf-8")


def counters(root: Path, *steps: str) -> list[dict[str, int]]:
    shell(root, f"build/flashsteps count {' '.join(steps)} --shape 1,4,256,64 --json counts.json")
    entries = json.loads((root / "counts.json").read_text())["runs"][0]["steps"]
    assert [entry["status"] for entry in entries] == ["pass"] * len(steps)
    return [entry["counters"] for entry in entries]


def x_ideal(root: Path, step: str) -> float:
    (counted,) = counters(root, step)
    return counted["shared_wavefronts"] / counted["shared_wavefronts_ideal"]


def test_an_edit_of_a_kernel_compiles_that_step_and_shows(tree: Path) -> None:
    assert build(tree) == set()  # nothing is left to do
    kernel = tree / "steps" / "v05_padded_smem" / "kernel.cu"
    assert x_ideal(tree, "v05_padded_smem") < 1.01
    replace(kernel, "constexpr int PAD = 8;", "constexpr int PAD = 0;")
    assert build(tree) == EDITED
    assert x_ideal(tree, "v05_padded_smem") == x_ideal(tree, "v04_warp_softmax") > 3.8

    replace(kernel, "constexpr int PAD = 0;", "constexpr int PAD = 8;")
    replace(kernel, "needs_mask && col >= visible;", "needs_mask && col > visible;")
    assert build(tree) == EDITED
    run = "build/steps/v05_padded_smem run --backend emulator --causal"
    output = shell(tree, f"{run} --shape 1,2,100,64", FAIL)
    assert "wrong rows 0-62, 64-99 of 100" in output and "who sees whom on the diagonal" in output
    replace(kernel, "needs_mask && col > visible;", "needs_mask && col >= visible;")


def test_the_notebook_in_its_order(tree: Path) -> None:
    first_steps = ["v01_scalar", "v02_smem_tiles", "v03_wmma"]
    v01, v02, v03 = counters(tree, *first_steps)
    cells = json.loads((ROOT / "docs" / "first_three_steps.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    output = shell(tree, f"python3 - <<'END'\n{code}\nEND")
    assert re.findall(r"^PASS  (v\d\d_\w+) +NRMSE", output, re.MULTILINE) == first_steps
    for words in ("6400 element(s) of o are NaN", "race on shared memory", "there is no GPU"):
        assert words in output
    # It has broken kernels in between, and counts the right ones.
    for words in (
        f"{v01['global_sectors']:,} in v01, {v02['global_sectors']:,} in v02",
        f"{v01['shared_wavefronts']:,} in v01, {v02['shared_wavefronts']:,} in v02",
        f"v02: {v02['mma']:,} products of the tensor cores, {v02['shared_wavefronts']:,} passes",
        f"v03: {v03['mma']:,} products of the tensor cores, {v03['shared_wavefronts']:,} passes",
        f"{v03['shared_wavefronts'] / v03['shared_wavefronts_ideal']:.2f} times the ideal",
    ):
        assert words in output
    # At its end the kernels are as they were, and so is the program.
    for step in first_steps:
        kernel = f"steps/{step}/kernel.cu"
        assert (tree / kernel).read_bytes() == (ROOT / kernel).read_bytes()
    assert build(tree) == set()


def test_the_chapter_in_its_order(tree: Path) -> None:
    kernel = tree / "steps" / STEP / "kernel.cu"
    for fence in commands.blocks_of((ROOT / PAGE).read_text(encoding="utf-8")):
        if fence.info == "diff":
            change = variants.parse_change(fence.content.splitlines(), PAGE, fence.map[0] + 2)
            now = kernel.read_text(encoding="utf-8").splitlines()
            at = variants.place(change, now, str(kernel))
            now[at : at + len(change.old)] = change.new
            kernel.write_text("\n".join(now) + "\n", encoding="utf-8")
        for command in commands.of_block(PAGE, fence, set()) if fence.info == "bash" else []:
            done = run(tree, command.text)
            command.check(done)
    # The report of the last command names the read, which is the kernel's own.
    output = done.stdout
    named = {int(line) for line in re.findall(rf"{STEP}/kernel\.cu:(\d+)", output)}
    (read,) = (number for number, line in enumerate(now, start=1) if "ldmatrix_x4(frag_q[" in line)
    assert read in named, output
    one_file = (tree / f"{STEP}.cu").read_text(encoding="utf-8")
    assert f"#define FLASHSTEPS_STEP {STEP}\n" in one_file and "Q is loaded into registers once" in one_file
    # Others see it, too.
    assert f"{STEP}\n  Q is loaded into registers once" in shell(tree, "build/flashsteps list")
    entries = json.loads((tree / "mine.json").read_text())["runs"][0]["steps"]
    assert [(entry["step"], entry["status"]) for entry in entries] == [
        ("v09_direct_rescale", "pass"),
        (STEP, "pass"),
    ]


def test_an_exercise_from_its_start_to_its_end(tree: Path) -> None:
    run, mine = "python3 scripts/steps/exercise.py", tree / "steps" / "my_v05"
    assert "steps/my_v05/kernel.cu" in shell(tree, f"{run} start v05")
    output = shell(tree, f"{run} check", FAIL)
    assert "NOT YET    shared_wavefronts / shared_wavefronts_ideal must be at most 1, is 3." in output
    replace(mine / "kernel.cu", "S_STRIDE = BLOCK_N;", "S_STRIDE = BLOCK_N")
    output = shell(tree, f"{run} check", FAIL)
    kernel = (mine / "kernel.cu").read_text(encoding="utf-8").splitlines()
    at = kernel.index("constexpr int S_STRIDE = BLOCK_N") + 1
    # Compilers see what is missing in the next line. Of hundreds of lines of theirs these are left.
    assert re.search(rf"^steps/my_v05/kernel\.cu:({at}|{at + 1}): ", output, re.MULTILINE)
    assert "NOT YET  it does not compile" in output and output.count("\n") < 10
    assert "EXERCISE 1, hint 1 of 2" in shell(tree, f"{run} hint")
    assert "\n+constexpr int S_STRIDE = BLOCK_N + PAD;\n" in shell(tree, f"{run} solution")
    command = [sys.executable, f"{tree}/scripts/steps/exercise.py", "watch", "v05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tree)) as watch:
        while "Waiting until you save" not in (line := watch.stdout.readline()):
            assert line, "it has ended"
        shutil.copy(tree / "steps" / "v05_padded_smem" / "kernel.cu", mine)  # newer than what was built
        assert "Solved." in watch.communicate(timeout=PATIENCE)[0] and watch.returncode == 0
    assert "> v05  Move every row to other banks               solved, 1 hint\n" in shell(tree, f"{run} list")
    # From v05 on.
    assert "steps/my_v06/kernel.cu" in shell(tree, f"{run} next")
