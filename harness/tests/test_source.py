"""What `flashsteps source` prints: a step as one file, which compiles without this repository."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_program import BUILD, FIXTURES, FLASHSTEPS, PATIENCE, STEPS, run  # noqa: E402

CACHE = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
NVCC = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", CACHE, re.MULTILINE)
CXX = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", CACHE, re.MULTILINE)[1]


def source_of(step: str, *options: str) -> str:
    done = run(FLASHSTEPS, "source", step, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("step", STEPS)
def test_the_preprocessor_finds_every_include_and_every_macro(step: str, tmp_path: Path) -> None:
    text = source_of(step, "--main")
    assert '#include "' not in text
    for header in re.findall(r"#include <(cuda\w*\.h|mma\.h)>", text):  # there may be no CUDA here
        (tmp_path / header).touch()
    command = [CXX, "-std=gnu++20", "-D__CUDACC__", "-E", "-P", "-I", str(tmp_path), "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    ours = re.findall(r"\b(?:FLASHSTEPS_\w+|STEP_NAMESPACE|REGISTER_STEP|CUDA_CHECK)\b", done.stdout)
    assert not ours, "macros that nothing defines"
    assert f"namespace {step} {{" in done.stdout and "int main() {" in done.stdout


def test_a_file_has_what_its_step_uses_and_little_else() -> None:
    v01, v10 = source_of("v01"), source_of("v10")
    kernel = (Path(__file__).parents[2] / "steps/v01_scalar/kernel.cu").read_text(encoding="utf-8")
    assert kernel.split('#include "common/step.h"\n')[1] in v01
    for used in ("tma_load_5d(", "CUtensorMap encode_tensor_map("):
        assert used in v10 and used not in v01
    for unused in ("tma_load_5d_multicast", "common/emulator/tma", "__CUDACC__", "#pragma once", "int main("):
        assert unused not in v10


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("step", ["v01_scalar", "v10_tma_warpspec", "v36_stream_k", "v40_fp8"])
def test_nvcc_compiles_it_with_the_command_in_it(step: str, tmp_path: Path) -> None:
    text = source_of(step, "--main")
    (tmp_path / f"{step}.cu").write_text(text, encoding="utf-8")
    (command,) = re.findall(rf"^//   (nvcc .* -o {step} {step}\.cu)$", text, re.MULTILINE)
    command = [NVCC[1], *shlex.split(command)[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / step], capture_output=True, text=True, timeout=PATIENCE)
    if re.search(r"cudaErrorInsufficientDriver|cudaErrorNoDevice|has no code for sm_", done.stdout):  # no such GPU
        assert done.returncode == 1 and done.stdout.startswith(f"FAIL  {step}: ")
    else:
        types = 1 if step == "v40_fp8" else 2
        assert done.returncode == 0 and done.stdout.count(f"PASS  {step} ") >= types, done.stdout


def test_what_it_cannot_print() -> None:
    for arguments, complaint in (
        (["v01", "v02"], "source: name one step, and no configuration"),
        (["v20@128x64"], "source: name one step, and no configuration"),
        (["v99"], "'v99'"),
    ):
        done = run(FLASHSTEPS, "source", *arguments)
        assert done.returncode == 2 and complaint in done.stderr and done.stdout == ""
    done = run(FIXTURES, "source", "split")
    assert done.returncode == 2 and "source: this program does not have the source of split" in done.stderr
