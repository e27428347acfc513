"""What a step may say of itself, at the program: configurations, several kernels, a workspace, the GPUs it runs on.

The steps are the tests' own: harness/tests/kernels/split.cu and wgmma_only.cu."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_program import BUILD, FIXTURES, FLASHSTEPS, STEPS, results, run  # noqa: E402

SHAPE = ["--backend", "emulator", "--shape", "1,2,100,64", "--dtype", "bf16"]


def steps_of(path: Path) -> dict[str, dict]:
    return {step["step"]: step for step in json.loads(path.read_text())["runs"][0]["steps"]}


def test_a_step_is_listed_with_all_that_it_says():
    listed = run(FIXTURES, "list", "--backend", "emulator")
    assert listed.returncode == 0
    assert "part: decode; for decode; types: bf16\n" in listed.stdout
    assert "configurations: 2splits; 3splits" in listed.stdout
    assert "GPU: sm_90a and nothing else" in listed.stdout
    assert "cannot run on this device" not in listed.stdout
    # Bytes of shared memory for every type that a step has.
    assert re.search(r"^  split +0 +0( +-){4}$", listed.stdout, re.MULTILINE)


def test_configurations_are_named_in_table_and_json(tmp_path: Path):
    file = tmp_path / "out.json"
    done = run(FIXTURES, "run", "split", "split@all", *SHAPE, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = steps_of(file)
    assert {name: step["configuration"] for name, step in steps.items()} == {
        "split": "3splits",  # the step's choice for 100 keys
        "split@2splits": "2splits",
        "split@3splits": "3splits",
    }
    assert steps["split"]["counters"] == steps["split@3splits"]["counters"]
    assert steps["split"]["counters"] != steps["split@2splits"]["counters"]
    assert "split (3splits)" in done.stdout and "split@2splits" in done.stdout
    results.load(file)  # checks it


def test_several_kernels_have_their_resources_and_counters(tmp_path: Path):
    file = tmp_path / "out.json"
    assert run(FIXTURES, "run", "split", "v01", *SHAPE, "--json", str(file)).returncode == 0
    steps = steps_of(file)
    assert "kernels" not in steps["v01_scalar"] and "configuration" not in steps["v01_scalar"]
    split, merge = steps["split"]["kernels"]
    assert split["resources"]["grid"] == [12, 2, 1] and merge["resources"]["grid"] == [4, 2, 1]
    for key, value in steps["split"]["counters"].items():
        assert value == split["counters"][key] + merge["counters"][key]
    assert split["counters"]["global_requests"] > merge["counters"]["global_requests"] > 0


def test_a_kernel_that_resets_a_counter_is_not_taken_for_the_step(tmp_path: Path):
    file, problem = tmp_path / "out.json", ["v17", "--shape", "1,10,256,64"]
    assert run(FLASHSTEPS, "run", *problem, "--backend", "emulator", "--json", str(file)).returncode == 0
    resources = steps_of(file)["v17_persistent"]["resources"]
    assert (resources["grid"], resources["block"]) == ([8, 1, 1], [256, 1, 1])
    assert "CTA 7 of 8" in run(FLASHSTEPS, "trace", *problem, "--json", str(tmp_path / "trace.json")).stdout


@pytest.mark.parametrize(
    "shape, mask, configuration, resets",
    [
        ("1,2,256,64", "--full", "128x64", False),  # 4 small tiles for the emulator's 4 SMs
        ("1,3,256,64", "--full", "256x64", False),
        ("1,4,256,64", "--causal", "128x64", False),  # two small tiles per SM
        ("1,4,4,256,512,64", "--causal", "256x64", False),  # all tiles have many keys
        ("1,5,256,64", "--causal", "256x64", True),  # 5 large tiles for 4 CTAs: they count
    ],
)
def test_v20_takes_small_tiles_and_counts_by_the_shape(
    shape: str, mask: str, configuration: str, resets: bool, tmp_path: Path
):
    file, problem = tmp_path / "out.json", ["--shape", shape, mask]
    assert run(FLASHSTEPS, "run", "v20", *problem, "--backend", "emulator", "--json", str(file)).returncode == 0
    step = steps_of(file)["v20_by_shape"]
    assert step["configuration"] == configuration and ("kernels" in step) == resets


def test_the_table_is_grouped_by_the_ladders_parts(tmp_path: Path):
    file = tmp_path / "out.json"
    memory = [step for step in STEPS if step < "v07"]  # so many that they have a line each
    done = run(FIXTURES, "run", "split", *memory, "wgmma", *SHAPE, "--json", str(file))
    table = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    wanted = ["memory", *memory, "decode", "split", "Hopper", "wgmma_only"]
    assert [word for word in table if word in wanted] == wanted  # the ladder first
    parts = {name: step["part"] for name, step in steps_of(file).items()}
    assert parts == {
        **dict.fromkeys(memory, "memory"), "split": "decode", "wgmma_only": "Hopper"
    }


@pytest.mark.parametrize(
    "step, complaint",
    [
        ("split@4", "'split@4': split has the configurations all, 2splits, 3splits"),
        ("v01@all", "'v01@all': v01_scalar has no configurations"),
        ("split@", "'split@': split has the configurations all, 2splits, 3splits"),
        ("@2splits", "'' may be v01_scalar or "),
    ],
)
def test_a_configuration_that_is_not_there(step: str, complaint: str):
    done = run(FIXTURES, "run", step, *SHAPE)
    assert done.returncode == 2 and complaint in done.stderr and done.stderr.count("\n") == 1


def test_the_limit_that_a_step_states_itself():
    long = ["--backend", "emulator", "--shape", "1,1,1,40,600,64", "--dtype", "bf16"]
    assert run(FIXTURES, "run", "split", *long).returncode == 0  # it chooses the other one
    done = run(FIXTURES, "run", "split@2splits", *long)
    assert done.returncode == 2 and "needs three splits beyond 500 keys" in done.stderr


def test_code_for_one_gpu_is_compiled_for_that_alone():
    """In particular not to PTX, which would fail on every other GPU only when it is loaded."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    of_step = [entry["command"] for entry in commands if "wgmma_only.cu" in entry["command"]]
    if "CMAKE_CUDA_COMPILER:" not in (BUILD / "CMakeCache.txt").read_text():
        assert of_step == []
        return
    assert len(of_step) == 1
    assert re.findall(r"code=(\S+)", of_step[0]) == ["sm_90a"]
    assert "arch=compute_90a" in shlex.split(of_step[0]) or "compute_90a,code=sm_90a" in of_step[0]
