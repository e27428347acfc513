"""Every command of README.md, docs/ and the lessons that is not marked with what it needs: run here, as it
stands there, and with the outcome that the page promises. scripts/pages/check_docs.py says which they are;
FLASHSTEPS_BUILD as in test_program.py.

A command that is added to a page belongs into RUN, or gets a mark. Those of the exercises and of a step of
one's own are in test_variants.py and test_own_step.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_own_step
import test_variants
from test_program import BUILD, PATIENCE, ROOT

from measure.lab import LIBRARY, Lab  # in scripts/, which test_program adds to the path
from pages import check_docs
from steps import variants

MUTANTS = "build/ci/tests/flashsteps_mutants check"
BUGS = "build/ci/tests/flashsteps_variants check v10_tma_warpspec_"
PASS, FAIL, CRASH = 0, 1, 3

COUNTED = "--shape 1,4,256,64"
EMULATOR = "--backend emulator --shape 1,2,200,64"

MAPS = "build/venv/bin/python"
# Exit status, and what must be said.
RUN: dict[str, tuple[int, list[str]]] = {
    "build/flashsteps list": (PASS, ["v01_scalar", "v10_tma_warpspec"]),
    "build/flashsteps run --shape 1,2,2,300,200,64 --causal": (PASS, ["PASS", "v10_tma_warpspec"]),
    "build/flashsteps count v02_smem_tiles --shape 1,4,256,64": (PASS, ["x ideal"]),
    "build/flashsteps trace v10_tma_warpspec --json trace.json": (PASS, ["trace.json"]),
    "build/flashsteps trace v10_tma_warpspec --shape 1,1,384,64 --json trace.json": (PASS, ["trace.json"]),
    "build/flashsteps trace v16_producer_warpgroup --shape 1,1,384,64 --causal --json trace.json": (
        PASS,
        ["trace.json"],
    ),
    "build/flashsteps trace v17_persistent --shape 1,10,256,64 --cta 0 --json trace.json": (PASS, ["CTA 0 of 8"]),
    "build/flashsteps source v10_tma_warpspec --main > v10_tma_warpspec.cu": (PASS, []),  # test_source.py reads it
    "build/flashsteps problems --grid paper --causal": (PASS, ["B=1 Hq=16 Hkv=16 Sq=16384 Skv=16384 D=128 bf16 causal"]),
    "build/steps/v02_smem_tiles run --shape 1,2,100,64": (PASS, ["PASS  v02_smem_tiles"]),
    "python3 scripts/steps/variants.py": (PASS, ["one_stage"]),
    "python3 scripts/steps/variants.py --kind bug --out /tmp/kernels v10": (PASS, ["k_released_early"]),
    f"{MUTANTS} mutant_tail_not_masked --shape 1,2,64,64": (PASS, ["PASS"]),
    f"{MUTANTS} mutant_tail_not_masked --shape 1,2,65,64": (FAIL, ["FAIL", "130 of 130 checked rows"]),
    f"{MUTANTS} mutant_mask_off_by_one --shape 1,2,100,64 --causal": (FAIL, ["on the diagonal"]),
    f"{MUTANTS} mutant_padding_read --shape 2,2,100,64 --kv-lengths random": (FAIL, ["0 * NaN is NaN"]),
    # The message that the page quotes; how many rows are wrong may depend on the compiler.
    f"{MUTANTS} mutant_o_not_rescaled --shape 1,2,200,64": (
        FAIL,
        [
            "NRMSE 5.9e-01, worst row 2.1e+00",
            "of 400 checked rows are wrong; worst: batch 0, head 0, row 61 (row 61 of tile 0 of 4), which sees 200",
            "heads 0-1 of 2; batches 0 of 1; columns 0-63 of 64",
            "hint: every lse is right, so scores, mask and row sums are right: look at P V, at the rescaling of o, "
            "or at the store",
        ],
    ),
    f"{MUTANTS} mutant_no_max --shape 1,2,100,64": (PASS, ["PASS"]),
    f"{MUTANTS} mutant_no_max --shape 1,2,100,64 --inputs shifted": (FAIL, ["element(s) of o are NaN"]),
    f"{MUTANTS} mutant_none --shape 1,2,100,64": (PASS, ["PASS"]),
    f"{MUTANTS} mutant_not_deterministic --shape 1,2,100,64": (
        FAIL,
        ["two runs on the same inputs differ, first at", "the result depends on the order of CTAs, threads or copies"],
    ),
    f"{BUGS}no_barrier_after_p --shape 1,1,1,64,330,64": (FAIL, ["race on shared", "is not ordered after"]),
    f"{BUGS}k_released_early --shape 1,1,1,64,330,64": (FAIL, ["Was the memory released too early"]),
    f"{BUGS}k_empty_initial_parity --shape 1,1,1,64,150,64": (CRASH, ["HANG", "nobody has ever arrived"]),
    f"{BUGS}expect_tx_double --shape 1,1,1,64,330,64": (CRASH, ["lacks 0 of 1 arrivals and 8192 bytes"]),
    f"{BUGS}expect_tx_half --shape 1,1,1,64,330,64": (FAIL, ["announced 4096 bytes", "brought 8192"]),
    f"{BUGS}no_init_fence --shape 1,1,1,64,330,64": (FAIL, ["is not known to the copy engine"]),
    "build/flashsteps count v04_warp_softmax v05_padded_smem --shape 1,4,256,64": (
        PASS,
        ["x ideal", " 3.84 ", " 1.00 "],
    ),
    "build/flashsteps count v07_ptx_mma v08_register_softmax --shape 1,4,256,64": (PASS, ["v08_register"]),
    # The lessons, with the numbers that they quote.
    f"build/flashsteps count v01_scalar {COUNTED}": (PASS, ["1052704"]),
    f"build/flashsteps count v03_wmma {COUNTED}": (PASS, [" 102560 "]),
    f"build/flashsteps count v04_warp_softmax {COUNTED}": (PASS, [" 3.84 "]),
    f"build/flashsteps count v05_padded_smem {COUNTED}": (PASS, ["x ideal", " 1.00 "]),
    f"build/flashsteps count v05_padded_smem {COUNTED} --json FILE": (PASS, ["results: FILE"]),
    f"build/flashsteps count v06_vectorized_loads {COUNTED}": (PASS, ["wavefronts"]),
    f"build/flashsteps count v07_ptx_mma {COUNTED}": (PASS, [" 1.00 "]),
    f"build/flashsteps count v08_register_softmax {COUNTED}": (PASS, [" 4096 "]),
    f"build/flashsteps count v09_direct_rescale {COUNTED}": (PASS, [" 2688 ", " 1152 "]),
    f"build/flashsteps count v09_direct_rescale v10_tma_warpspec {COUNTED}": (PASS, [" 1152 ", " 128 ", " 720 "]),
    f"build/flashsteps count v12_whole_rows {COUNTED}": (PASS, [" 1280 "]),
    "build/flashsteps count v14_longest_first --shape 1,4,512,64": (PASS, [" 1024 "]),
    f"build/flashsteps count v15_integer_max v16_producer_warpgroup {COUNTED}": (
        PASS,
        [" 1664 ", " 192 ", " 128 ", " 64 "],
    ),
    "build/flashsteps count v16_producer_warpgroup --shape 1,10,256,64": (PASS, [" 160 "]),
    "build/flashsteps count v18_woven --shape 1,4,512,64 --causal": (PASS, [" 36864 ", " 2048 "]),
    f"build/flashsteps count v18_woven {COUNTED}": (PASS, [" 5456 "]),
    "build/flashsteps count v19_stmatrix --shape 1,4,512,64 --json FILE": (PASS, ["results: FILE"]),
    f"build/flashsteps count v20_by_shape {COUNTED}": (PASS, ["(256x64)", " 128 "]),
    f"build/flashsteps count v20_by_shape v21_wgmma {COUNTED}": (PASS, [" 4680 ", " 364 "]),
    "build/flashsteps count v20_by_shape@all --shape 1,4,512,64 --json FILE": (PASS, ["@256x64", "@128x64"]),
    "build/flashsteps count v24_by_turns --shape 1,10,256,64": (PASS, ["(narrow)", " 1232 "]),
    "build/flashsteps count v26_optimistic --shape 1,4,512,64": (PASS, ["(free)", " 2048 "]),
    "build/flashsteps count v27_tile_shapes --shape 1,4,512,64": (PASS, ["(few_keys)", " 2000 "]),
    "build/flashsteps count v27_tile_shapes@all --shape 1,4,768,128 --json FILE": (PASS, ["@many_keys", "@few_keys"]),
    "build/flashsteps count v13_lazy_rescale v28_split_keys --shape 1,4,2,1,1000,64": (PASS, [" 32768 ", " 4032 "]),
    "python3 scripts/steps/step_diff.py v01 v02": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v02 v03": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v03 v04": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v04 v05": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v05 v06": (PASS, ["23 lines added, 12 removed"]),
    "python3 scripts/steps/step_diff.py v06 v07": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v07 v08": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v08 v09": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v09 v10": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v09 v11": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v10 v11": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v11 v12": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v12 v13": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py --brief v13 v14": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v14 v15": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v15 v16": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v16 v17": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v17 v18": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v18 v19": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v19 v20": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v17 v21": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v21 v22": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v22 v23": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v23 v24": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v24 v25": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v25 v26": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v25 v27": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v26 v27": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v13 v28": (PASS, ["lines added"]),
    "python3 scripts/steps/step_diff.py v28 v29": (PASS, ["lines added"]),
    "build/flashsteps count v28_split_keys v29_packed_heads --shape 1,8,2,1,1000,64": (PASS, [" 8064 ", " 2016 "]),
    "python3 scripts/steps/step_diff.py v29 v30": (PASS, ["lines added"]),
    "build/flashsteps count v29_packed_heads v30_one_launch --shape 1,8,2,1,1000,64": (PASS, [" 19976 ", " 17096 "]),
    "python3 scripts/steps/step_diff.py v30 v31": (PASS, ["lines added"]),
    "build/flashsteps count v30_one_launch v31_in_turn --shape 1,8,2,1,1000,64": (PASS, [" 17096 ", " 2016 "]),
    "python3 scripts/steps/step_diff.py v31 v32": (PASS, ["lines added"]),
    "build/flashsteps count v31_in_turn v32_few_splits --shape 1,8,2,1,1000,64": (PASS, [" 17096 ", " 16392 "]),
    "python3 scripts/steps/step_diff.py v32 v33": (PASS, ["lines added"]),
    "build/flashsteps problems --shape 32,32,8,1,32768,128 --kv-lengths full --kv-lengths skewed": (
        PASS,
        ['"kv_bytes": 4294967296.0', '"kv_bytes": 422060032.0'],
    ),
    "build/flashsteps count v33_paged --shape 1,8,2,1,1000,64 --page-size 16": (PASS, [" 1258 ", " 136 "]),
    "build/flashsteps check v36_stream_k --shape 4,8,2,1,500,64 --kv-lengths skewed --page-size 1 --page-size 64": (
        PASS,
        ["PASS"],
    ),
    "build/flashsteps count v33_paged v36_stream_k --shape 1,9,9,1,4096,128": (PASS, ["(splits1)", "(ctas2)"]),
    "python3 scripts/steps/step_diff.py v33 v36": (PASS, ["lines added"]),
    f"build/flashsteps check v10_tma_warpspec {EMULATOR}": (PASS, ["PASS"]),
    f"build/flashsteps check v10_tma_warpspec {EMULATOR} --mode random --seeds 3": (PASS, ["PASS"]),
}
# Run by something else, as too long for here: where, and the line that does it.
ELSEWHERE = {
    "build/flashsteps check": ("scripts/test.sh", "build/ci/flashsteps check --backend emulator"),
    f"{MAPS} scripts/draw/attention_maps.py build/flashsteps --step v07_ptx_mma --out build/maps": (
        "scripts/draw/make_figures.py",
        '"attention_maps": "flashsteps"',
    ),
    f"{MAPS} scripts/draw/error_analysis.py build/flashsteps --step v07_ptx_mma --out build/maps": (
        "scripts/draw/make_figures.py",
        '"error_analysis": "flashsteps"',
    ),
}


def unmarked() -> dict[str, str]:
    commands, errors = check_docs.all_commands(ROOT)
    assert errors == []
    return {command.text: f"{command.page}:{command.line}" for command in commands if not command.needs}


def test_every_command_is_run_or_marked() -> None:
    tried = {command for each in test_variants.TRIES for case in each.cases for command in case.commands}
    known = {*RUN, *ELSEWHERE, *tried, *test_own_step.OUTCOMES}
    shown = unmarked()
    unknown = {text: at for text, at in shown.items() if text not in known}
    assert not unknown, "neither run by this test nor marked with <!-- needs: ... -->"
    gone = [text for text in (*RUN, *ELSEWHERE) if text not in shown]
    assert not gone, "no page shows these any more"
    for script, line in ELSEWHERE.values():
        assert line in (ROOT / script).read_text(encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What a user has after a build, made of links: what a command writes stays in here."""
    root = tmp_path / "flashsteps"
    (root / "build").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (root / entry.name).symlink_to(entry)
    for name in ("flashsteps", LIBRARY, "steps", "tests"):
        (root / "build" / name).symlink_to(BUILD / name)
    (root / "build" / "ci").symlink_to(BUILD)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"  # not a link: it would not find its virtual environment
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return root


@pytest.mark.parametrize("command", RUN)
def test_the_command_does_what_the_page_says(command: str, repository: Path, tmp_path: Path) -> None:
    status, words = RUN[command]
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # The pages speak of a machine without a GPU.
    environment = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
    line = command.replace("/tmp/", f"{tmp_path}/")
    done = subprocess.run(
        ["bash", "-c", line], cwd=repository, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    for word in words:
        assert word in output


# ---- The tables of docs/debugging.md and docs/copies.md.

DEBUGGING = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
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
