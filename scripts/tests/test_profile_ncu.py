"""profile_ncu.py with what ncu wrote on a GPU, the rules of its record, and the blocks that show it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import STEPS, Repository, make_problem, make_record
from test_readme_tables import refused, written
from test_results import ABSENT, change

from measure import profile_ncu
from records import profiles, results
from records.problems import problem_label

# What ncu 2025.3.1 wrote on an H200 for v02_smem_tiles, cut down: most columns, addresses, opcodes are gone,
# and the number of instructions is that of the opcodes that are left.
LOG = '''\
==WARNING== Note: Running with unmodified GPU clocks. If not controlled otherwise, profiling results may be \
inconsistent.
==PROF== Connected to process 3423 (build/steps/v02_smem_tiles)
==PROF== Profiling "void v02_smem_tiles::attention_kernel<__half, (int)64, (bool)0>(flashsteps::on_cuda::\
AttentionParams<T1>)": 0%....50%....100% - 23 passes
==PROF== Disconnected from process 3423
"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","gpu__time_duration.sum","inst_executed",\
"launch__registers_per_thread","memory_l1_wavefronts_shared",\
"sass__inst_executed_per_opcode_with_modifier_all",\
"sm__warps_active.avg.pct_of_peak_sustained_active","smsp__warp_issue_stalled_barrier_per_warp_active.pct"
"","","","","byte","ns","inst","register/thread","sectors","","%",""
"0","3423","void attention_kernel<__half, 64, 0>(AttentionParams<T1>)","(128, 1, 1)","432,640","77,760",\
"1,346,720 (0x7fa8b57a0000: 64; 0x7fa8b57a0010: 64)","128 (0: 128)","389,120 (0x7fa8b57a0460: 0)",\
"1,346,720 (FFMA: 1,050,144; LDS.U16: 262,144; LDS.128: 33,280; BAR.SYNC.DEFER_BLOCKING: 1,088; LDG.E: 64)",\
"6.23","6.94"
'''
HISTOGRAM = {"FFMA": 1050144, "LDS.U16": 262144, "LDS.128": 33280}
HISTOGRAM |= {"BAR.SYNC.DEFER_BLOCKING": 1088, "LDG.E": 64}


# What ncu writes.


def test_a_real_table_is_read_without_what_this_gpu_does_not_count():
    (launch,) = profile_ncu.parse_csv(LOG)
    metrics = {
        "dram_read_bytes": 432640,
        "duration_ns": 77760,
        "instructions": 1346720,
        "registers": 128,
        "shared_wavefronts": 389120,
        "occupancy": 6.23,
        "stall_barrier": 6.94,
    }
    assert launch == {"metrics": metrics, "opcodes": HISTOGRAM}
    (launch,) = profile_ncu.parse_csv(LOG.replace('"6.94"', '"n/a"'))
    assert "stall_barrier" not in launch["metrics"] and launch["metrics"]["occupancy"] == 6.23


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("FFMA: 1,050,144", "FFMA: many", "histogram of opcodes cannot be read"),
        ('"1,346,720 (FFMA', '"n/a (FFMA', "histogram of opcodes cannot be read"),
        (LOG.splitlines()[-1], f"{LOG.splitlines()[-1]}\n{LOG.splitlines()[-1]}", "has 2 launches, it must be 1"),
    ],
)
def test_a_table_that_is_not_understood_is_no_profile(old, new, expected):
    assert old in LOG
    with pytest.raises(profile_ncu.NotProfiled, match=re.escape(expected)):
        profile_ncu.parse_csv(LOG.replace(old, new))


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", profile_ncu.ProfileError, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Failed to find metric regex:^sass__x$", profile_ncu.ProfileError, "know the metric sass__x: a newer"),
        ("==WARNING== No kernels were profiled.\n", profile_ncu.NotProfiled, "ncu: No kernels were profiled"),
        ("==ERROR== The application returned an error (9).\n==ERROR== Not X\n", profile_ncu.NotProfiled, "ncu: Not X"),
        ("", profile_ncu.NotProfiled, "v02_smem_tiles: ncu: failed without saying why"),
    ],
)
def test_why_there_is_no_table(said, kind, expected):
    error = profile_ncu.ncu_failure(said, "v02_smem_tiles")
    assert expected in str(error) and type(error) is kind


# What is made of it.


class Machine:
    """What ncu and the steps' programs write, in the place of running them."""

    def __init__(self, folder: Path, monkeypatch):
        (folder / "steps").mkdir()
        for step in STEPS[:2]:
            (folder / "steps" / step).touch()
        monkeypatch.setattr(profile_ncu, "run", self.run)
        monkeypatch.setattr(profile_ncu, "find_ncu", lambda: ("ncu", "2025.3.1.0"))
        monkeypatch.setattr(profile_ncu.sources, "all_steps", lambda: list(STEPS[:2]))
        self.folder, self.commands = folder, []
        self.problem = make_problem(batch=1, seqlen_q=256, seqlen_kv=256, causal=False, dtype="fp16")
        self.logs, self.entries, self.provenance = {"1": LOG}, {}, {}

    def run(self, command):
        if "--log-file" in command:
            self.commands.append([str(word) for word in command])
            after = {word: command[at + 1] for at, word in enumerate(command[:-1])}
            step = Path(command[command.index("check") - 1]).name
            data = make_record(steps=(step,), problems=[self.problem | {"causal": "--causal" in command}])
            data["runs"][0]["steps"][0] |= self.entries.get(step, {})
            data["provenance"] |= self.provenance.get(step, {})
            del data["provenance"]["method"]
            Path(after["--log-file"]).write_text(self.logs[after["--launch-count"]], encoding="utf-8")
            Path(after["--json"]).write_text(json.dumps(data), encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    def main(self, capsys, *words: str) -> tuple[int, str, list[str], dict]:
        """Status, what is printed and complained, the record."""
        record = self.folder / "record.json"
        status = profile_ncu.main(["--build", str(self.folder), *words, "--json", str(record)])
        said = capsys.readouterr()
        complaints = [line for line in said.err.splitlines() if not line.startswith("profiling ")]
        return status, said.out, complaints, results.load(record, profiles.SCHEMA)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_profile_is_printed_and_recorded(machine: Machine, capsys):
    status, table, complaints, data = machine.main(capsys, "v02", "v01", "--causal", "--full")
    assert (status, complaints) == (0, []) and table.startswith(problem_label(machine.problem) + "\n")
    lines = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert lines["counter"].split()[1:3] == ["v02_smem_tiles", "v01_scalar"]
    assert re.search(r"1,050,144 +1,050,144$", lines["ffma"])
    assert re.search(r"6\.2 % +6\.2 %$", lines["occupancy"]) and re.search(r" – +–$", lines["stall_gmma"])
    assert "executes mostly FFMA 78%, LDS.U16 19%" in table
    assert data["complete"] and data["provenance"]["ncu"] == "2025.3.1.0"
    assert [[step["step"] for step in run["steps"]] for run in data["runs"]] == [["v02_smem_tiles", "v01_scalar"]] * 2
    assert data["runs"][0]["steps"][0]["opcodes"] == HISTOGRAM and data["runs"][0]["problem"] == machine.problem
    # One launch of the step's kernel, with clocks left alone.
    command = " ".join(machine.commands[0])
    for words in ("--clock-control none", "--launch-count 1", r"--kernel-name regex:\bv02_smem_tiles::\w"):
        assert words in command
    assert "check --backend cuda --shape 1,4,256,64 --dtype fp16 --full --json" in command


def test_what_a_call_in_fp8_allows_reaches_the_step(machine: Machine, capsys):
    machine.main(capsys, "v02", "--dtype", "e4m3", "--fast", "--no-lse")
    assert "--dtype e4m3 --full --fast --no-lse --json" in " ".join(machine.commands[0])


def test_products_of_a_warpgroup_are_counted_in_each_type():
    opcodes = {"HGMMA.64x128x16.F32": 3, "QGMMA.64x128x32.F32.E4M3.E4M3": 4, "HMMA.16816.F32": 8}
    counted = profiles.values({}, opcodes)
    assert (counted["wgmma"], counted["mma"]) == (7, 8)


# A second kernel of the same call, as ncu's next row.
MERGE = """\
"1","3423","void merge_kernel<__half, 64>(AttentionParams<T1>)","(32, 1, 1)","1,000","240","30 (0x7fa8b57a0000: 30)",\
"40 (0: 40)","20","30 (FFMA: 20; STG.E: 10)","50.00","0"
"""


def test_several_kernels_are_added_up_and_told_apart(machine: Machine, capsys):
    machine.entries["v01_scalar"] = {"kernels": [{"resources": {}}] * 2}
    machine.logs["2"] = LOG + MERGE
    status, table, complaints, data = machine.main(capsys, "v01")
    assert (status, complaints) == (0, [])
    (profiled,) = data["runs"][0]["steps"]
    assert [kernel["metrics"]["duration_ns"] for kernel in profiled["kernels"]] == [77760, 240]
    assert [kernel["metrics"]["occupancy"] for kernel in profiled["kernels"]] == [6.23, 50]
    assert profiled["metrics"] == {
        "dram_read_bytes": 433640,
        "duration_ns": 78000,
        "instructions": 1346750,
        "registers": 128,
        "shared_wavefronts": 389140,
    }
    assert profiled["opcodes"] == HISTOGRAM | {"FFMA": 1050164, "STG.E": 10}
    lines = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert lines["counter"].split()[1:4] == ["v01_scalar", "v01_scalar[1]", "v01_scalar[2]"]
    assert re.search(r"1,346,750 +1,346,720 +30$", lines["instructions"])
    assert re.search(r" – +6\.2 % +50\.0 %$", lines["occupancy"])


def test_a_step_that_fails_or_cannot_costs_only_itself(machine: Machine, capsys):
    label = problem_label(machine.problem)
    machine.entries["v01_scalar"] = {"status": "fail", "message": "NRMSE is 0.7\nrows 3 to 5"}
    status, _, complaints, data = machine.main(capsys)
    assert complaints == [f"profile_ncu.py: v01_scalar on {label} is not profiled: fail: NRMSE is 0.7"]
    assert (status, data["complete"]) == (1, False)
    assert [step["step"] for step in data["runs"][0]["steps"]] == ["v02_smem_tiles"]
    machine.entries = {"v02_smem_tiles": {"status": "skip", "message": "needs fp16 or bf16"}}
    status, table, complaints, data = machine.main(capsys)
    assert complaints == [f"SKIP  v02_smem_tiles cannot run {label}: needs fp16 or bf16"]
    assert (status, data["complete"]) == (0, True) and "v02_smem_tiles" not in table
    assert [step["status"] for step in data["runs"][0]["steps"]] == ["pass", "skip"]


def test_steps_of_different_builds_are_no_record(machine: Machine, capsys):
    machine.provenance["v02_smem_tiles"] = {"commit": "1" * 40, "date": "2001-01-01T00:00:00Z"}
    status, _, complaints, _ = machine.main(capsys)
    said = "v02_smem_tiles is not from the same build as the steps before it (commit differs)"
    assert status == 2 and len(complaints) == 1 and said in complaints[0]


def test_what_is_missing_is_told_before_ncu_is_called(machine: Machine, capsys):
    assert profile_ncu.main(["--build", "/none", "v02"]) == 2
    said = capsys.readouterr().err
    assert "/none/steps/v02_smem_tiles does not exist: build it first" in said
    assert said.count("\n") == 1 and machine.commands == []


# The record.


def make_profiled_step(name: str, index: int) -> dict:
    metrics = {counter: 0 for counter in profiles.METRICS}
    metrics |= {
        "instructions": 1000 // 10**index,
        "occupancy": 12.5,
        "global_load_requests": 900,
        "global_store_requests": 100,
        "global_load_sectors": 64000 // 8**index,
        "shared_wavefronts": 3300 * index,
        "shared_wavefronts_ideal": 1100 * index,
    }
    mma = 4 * index
    opcodes = {"FFMA": metrics["instructions"] - mma} | ({"HMMA.16816.F32": mma} if mma else {})
    return {"step": name, "status": "pass", "message": "", "metrics": metrics, "opcodes": opcodes}


def make_profile(problems: list[dict] | None = None, commit: str = "0" * 40) -> dict:
    origin = make_record(commit=commit)["provenance"]
    return {
        "schema": profiles.SCHEMA,
        "complete": True,
        "provenance": origin | {"ncu": "2025.3.1.0", "method": dict(profiles.METHOD)},
        "runs": [
            {"problem": problem, "steps": [make_profiled_step(name, i) for i, name in enumerate(STEPS)]}
            for problem in problems or [make_problem()]
        ],
    }


STEP = "runs.0.steps.1."
CASES = [
    ("command", "run", "'command' was unexpected"),
    ("provenance.method.clocks", "locked", 'provenance.method.clocks: "not locked" was expected'),
    ("provenance.device.driver", ABSENT, 'provenance.device: "driver" is a required property'),
    ("runs.0.problem.page_size", 16, "page_size: is 16, must be absent: everybody has the problems of a profile"),
    (STEP + "step", "v01_scalar", "runs[0].steps: v01_scalar appears twice"),
    (STEP + "status", "skip", "metrics: is ..., must be absent: the step was skipped"),
    (STEP + "status", "skip", 'message: is "", must be a text'),
    (STEP + "metrics", ABSENT, 'runs[0].steps[1]: "metrics" is a required property'),
    (STEP + "metrics.speed", 1, "metrics.speed: unknown key"),
    (STEP + "metrics.instructions", 101, "the opcodes add up to 100"),
    (STEP + "metrics.instructions", ABSENT, "metrics.instructions: is null"),
    (STEP + "metrics.shared_wavefronts_ideal", 3301, "shared_wavefronts_ideal: is above shared_wavefronts"),
    (STEP + "metrics.ldmatrix_conflicts", 1, "ldmatrix_conflicts: is above ldmatrix_wavefronts"),
    (STEP + "opcodes.ffma", 1, 'opcodes: is "ffma", must be a SASS opcode'),
]


@pytest.mark.parametrize(("path", "value", "expected"), CASES)
def test_a_broken_profile_is_refused(path, value, expected):
    data = make_profile()
    assert results.check(data) == []
    change(data, path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_each_kernel_is_checked():
    data = make_profile()
    step = data["runs"][0]["steps"][1]
    kernels = [{key: step[key] for key in ("metrics", "opcodes")} for _ in range(2)]
    step |= {**profiles.sum_of(kernels), "kernels": kernels}
    assert results.check(data) == [] and "occupancy" not in step["metrics"]
    kernels[1]["opcodes"] = {"FFMA": 1}
    assert any("kernels[1].metrics.instructions: is 100, the op" in line for line in results.check(data))
    del kernels[1]
    assert any("kernels: " in line and "has less than" in line for line in results.check(data))


def test_a_gpu_may_not_count_something_and_a_problem_appears_once():
    data = make_profile()
    data["provenance"]["method"]["launch"] = "the first of the step's attention_kernel in `STEP check`"  # an older record
    del data["runs"][0]["steps"][1]["metrics"]["stall_gmma"]
    assert results.check(data) == []
    assert any("appears twice" in line for line in results.check(make_profile([make_problem(), make_problem()])))


def test_one_kind_is_not_taken_for_the_other(tmp_path):
    for data, wanted, expected in (
        (make_profile(), results.SCHEMA, "is a profile, this needs a results file"),
        (make_record(), profiles.SCHEMA, "is a results file, this needs a profile"),
    ):
        (tmp_path / "file.json").write_text(json.dumps(data))
        with pytest.raises(results.ResultsError, match=expected):
            results.load(tmp_path / "file.json", wanted)
        assert results.load(tmp_path / "file.json", None) == data


# The blocks, where no page has an example: readme_tables.py --check compares what pages have.

BLOCK = "counters file=profile.json step=v02_smem_tiles show=instructions,mma,occupancy"


@pytest.fixture
def profiled(repository: Repository) -> Repository:
    repository.record("profile.json", make_profile(commit=repository.commit))
    return repository


def test_percentages_of_several_kernels_are_those_of_the_longest(profiled: Repository, capsys):
    assert "longest kernel" not in written(profiled, capsys, BLOCK)
    data = make_profile(commit=profiled.commit)
    step = data["runs"][0]["steps"][1]
    kernels = [json.loads(json.dumps({key: step[key] for key in ("metrics", "opcodes")})) for _ in range(3)]
    for kernel, duration, occupancy in zip(kernels, (1, 900, 2), (1.5, 14.7, 3.9)):
        kernel["metrics"] |= {"duration_ns": duration, "occupancy": occupancy}
    step |= {**profiles.sum_of(kernels), "kernels": kernels}
    profiled.record("profile.json", data)
    text = written(profiled, capsys, BLOCK)
    assert "| occupancy | 12.5 % | 14.7 % |  |" in text and "| instructions | 1,000 | 300 | 0.30 |" in text
    assert "with Nsight Compute. Percentages are those of the longest kernel of a call.\n" in text


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("ladder file=profile.json", "profile.json is a profile"),
        (BLOCK.replace("show=", "show=speed,"), "its records have no 'speed'"),
        ("conformance file=gpu.json ncu=profile.json", "needs 'emulator'"),
        ("conformance file=counts.json ncu=gpu.json", "gpu.json is no profile"),
    ],
)
def test_what_a_block_asks_for_in_vain(profiled: Repository, capsys, block, expected):
    assert expected in refused(profiled, capsys, block)
