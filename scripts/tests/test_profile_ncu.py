"""profile_ncu.py against a stand-in for ncu, the rules of its record, and the blocks that show it."""

from __future__ import annotations

import json
import re
import sys
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


def test_a_real_table_is_read():
    (launch,) = profile_ncu.parse_csv(LOG)
    assert launch["metrics"] == {
        "dram_read_bytes": 432640,
        "duration_ns": 77760,
        "instructions": 1346720,
        "registers": 128,
        "shared_wavefronts": 389120,
        "occupancy": 6.23,
        "stall_barrier": 6.94,
    }
    assert launch["opcodes"] == HISTOGRAM


def test_what_this_gpu_does_not_count_is_left_out():
    (launch,) = profile_ncu.parse_csv(LOG.replace('"6.94"', '"n/a"'))
    assert "stall_barrier" not in launch["metrics"] and launch["metrics"]["occupancy"] == 6.23


def test_counters_from_opcodes_and_from_each_other():
    opcodes = {"HMMA.16816.F32": 8, "HMMA.16816.F32.BF16": 2, "HMMA.1688.F32": 1, "LDSM.16.M88.4": 3}
    opcodes |= {"LDS": 4, "LDSM.16.MT88.2": 5, "FFMA": 6, "FFMA2": 7, "BARRIER": 1, "BAR.SYNC": 9}
    metrics = {"global_load_requests": 10, "global_store_requests": 1, "ldmatrix_wavefronts": 20}
    found = profiles.values(metrics, opcodes)
    assert [found[name] for name in ("mma", "ldmatrix", "ffma", "barriers", "shuffles")] == [10, 8, 6, 9, 0]
    assert found["global_requests"] == 11
    assert "ldmatrix_wavefronts_ideal" not in found, "one of the two that it is made of is missing"
    assert profiles.values(metrics | {"ldmatrix_conflicts": 4}, opcodes)["ldmatrix_wavefronts_ideal"] == 16


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"432,640"', '"432,640.5"', "dram__bytes_read.sum = 432640.5, it must be a whole number"),
        ("FFMA: 1,050,144", "FFMA: many", "histogram of opcodes cannot be read"),
        ('"1,346,720 (FFMA', '"n/a (FFMA', "histogram of opcodes cannot be read"),
        ("LDG.E: 64)", "LDG.E)", "histogram of opcodes cannot be read"),
        ('\n"0","3423"', '\n"0"', "has 0 launches, it must be 1"),
    ],
)
def test_a_table_that_is_not_understood_is_no_profile(old, new, expected):
    assert old in LOG
    with pytest.raises(profile_ncu.ProfileError, match=re.escape(expected)):
        profile_ncu.parse_csv(LOG.replace(old, new))


def test_two_launches_are_not_one():
    with pytest.raises(profile_ncu.ProfileError, match="has 2 launches"):
        profile_ncu.parse_csv(LOG + LOG.splitlines()[-1] + "\n")


def test_the_table_of_counters_is_sound():
    sources = [counter.source for counter in profiles.COUNTERS]
    assert len(set(sources)) == len(sources) and len(profiles.BY_NAME) == len(sources)
    for counter in profiles.COUNTERS:
        assert counter.unit in ("", "%", "ns", "cycles", "bytes")
        assert counter.is_metric or counter.unit == ""
        for name in re.findall(r"\w+", counter.source[1:]) if counter.source[0] == "=" else []:
            assert name in profiles.METRICS
        # ncu says which metrics are percentages
        ends = counter.source.endswith((".pct", "pct_of_peak_sustained_active"))
        assert ends == (counter.unit == "%"), counter.name


# Running it: a stand-in for ncu and for a step's executable.

STAND_IN = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({here!r})
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv) + chr(10))
{body}
"""
NCU = """
if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880)")
    sys.exit(0)
program = next(i for i, word in enumerate(sys.argv) if "/steps/" in word)
launches = sys.argv[sys.argv.index("--launch-count") + 1]
log = here / ("ncu_log" + launches.removeprefix("1"))
if log.exists():
    Path(sys.argv[sys.argv.index("--log-file") + 1]).write_text(log.read_text())
if (here / "ncu_stdout").exists():
    print((here / "ncu_stdout").read_text(), flush=True)  # execv() drops what is in the buffer
if (here / "starts_no_program").exists():
    sys.exit(1)
os.execv(sys.argv[program], sys.argv[program:])
"""
PROGRAM = """
if sys.argv[1:] == ["info", "--backend", "cuda"]:
    if (here / "no_gpu").exists():
        sys.exit("flashsteps: --backend cuda: no NVIDIA driver")
    sys.exit(0)
assert sys.argv[1:4] == ["check", "--backend", "cuda"], sys.argv
if (here / "refusal").exists():
    print((here / "refusal").read_text(), file=sys.stderr)
    sys.exit(2)
step = Path(sys.argv[0]).name
data = json.loads((here / "results.json").read_text())
if (here / (step + ".entry")).exists():
    data["runs"][0]["steps"] = [json.loads((here / (step + ".entry")).read_text())]
if (here / (step + ".provenance")).exists():
    data["provenance"] |= json.loads((here / (step + ".provenance")).read_text())
causal = "--causal" in sys.argv
data["runs"][0]["problem"]["causal"] = causal
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(data))
"""


class Bench:
    """A folder with a fake ncu on PATH and two fake steps in a build folder."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.build = folder, folder / "build"
        (self.build / "steps").mkdir(parents=True)
        (folder / "bin").mkdir()
        for path, body in (
            (folder / "bin/ncu", NCU),
            (self.build / "steps/v01_scalar", PROGRAM),
            (self.build / "steps/v02_smem_tiles", PROGRAM),
        ):
            path.write_text(STAND_IN.format(python=sys.executable, here=str(folder), body=body))
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder / "bin"))
        monkeypatch.setattr(profile_ncu, "USUAL_NCU", str(folder / "none"))
        monkeypatch.setattr(profile_ncu.sources, "all_steps", lambda root=None: list(STEPS[:2]))
        self.problem = make_problem(batch=1, seqlen_q=256, seqlen_kv=256, causal=False, dtype="fp16")
        data = make_record(steps=STEPS[:1], problems=[self.problem])
        del data["provenance"]["method"], data["runs"][0]["steps"][0]["timing"], data["runs"][0]["ceilings"]
        self.put("results.json", json.dumps(data | {"command": "check"}))
        self.put("ncu_log", LOG)

    def put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def run(self, *words: str) -> int:
        return profile_ncu.main(["--build", str(self.build), *words])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def refused_by(bench: Bench, capsys, status: int, *words: str) -> str:
    """The one line of complaint, besides progress."""
    assert bench.run(*words) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("profiling ")]
    assert len(lines) == 1 and lines[0].startswith("profile_ncu.py: "), lines
    return lines[0]


def test_a_profile_is_printed_and_recorded(bench: Bench, capsys, tmp_path):
    record = tmp_path / "record.json"
    assert bench.run("v02", "v01", "--json", str(record)) == 0
    table = capsys.readouterr().out
    assert table.startswith(problem_label(bench.problem) + "\n")
    lines = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert lines["counter"].split()[1:3] == ["v02_smem_tiles", "v01_scalar"]
    assert re.search(r"1,050,144 +1,050,144 +FP32 multiply-adds", lines["ffma"])
    assert re.search(r"6\.2 % +6\.2 % ", lines["occupancy"]) and re.search(r" – +– ", lines["stall_gmma"])
    assert "executes mostly FFMA 78%, LDS.U16 19%" in table
    data = results.load(record, profiles.SCHEMA)
    assert data["complete"] and data["provenance"]["ncu"] == "2025.3.1.0"
    assert [step["step"] for step in data["runs"][0]["steps"]] == ["v02_smem_tiles", "v01_scalar"]
    assert data["runs"][0]["steps"][0]["opcodes"] == HISTOGRAM
    assert data["provenance"]["commit"] == "0" * 40 and data["runs"][0]["problem"] == bench.problem
    assert list(tmp_path.glob("record.json*")) == [record]


# A second kernel of the same call, as ncu's next row.
MERGE = """\
"1","3423","void merge_kernel<__half, 64>(AttentionParams<T1>)","(32, 1, 1)","1,000","240","30 (0x7fa8b57a0000: 30)",\
"40 (0: 40)","20","30 (FFMA: 20; STG.E: 10)","50.00","0"
"""


def test_several_kernels_are_added_up_and_told_apart(bench: Bench, capsys, tmp_path):
    step = make_record(steps=STEPS[:1], problems=[bench.problem])["runs"][0]["steps"][0]
    bench.put("v01_scalar.entry", json.dumps(step | {"kernels": [{"resources": step["resources"]}] * 2}))
    bench.put("ncu_log2", LOG + MERGE)
    record = tmp_path / "record.json"
    assert bench.run("v01", "--json", str(record)) == 0
    (profiled,) = results.load(record, profiles.SCHEMA)["runs"][0]["steps"]
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
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["counter"].split()[1:4] == ["v01_scalar", "v01_scalar[1]", "v01_scalar[2]"]
    assert re.search(r"1,346,750 +1,346,720 +30 +warp", lines["instructions"])
    assert re.search(r" – +6\.2 % +50\.0 % ", lines["occupancy"])
    bench.put("ncu_log2", LOG)
    assert "ncu's table has 1 launches, it must be 2" in refused_by(bench, capsys, 1, "v01")


def test_ncu_is_asked_for_one_launch_of_the_kernel_with_clocks_left_alone(bench: Bench):
    assert bench.run("v02") == 0
    command = next(call for call in bench.calls() if "--metrics" in call)
    for words in (
        ["--clock-control", "none"],
        ["--launch-count", "1"],
        ["--kernel-name", r"regex:\bv02_smem_tiles::\w"],
        ["check", "--backend", "cuda", "--shape", "1,4,256,64", "--dtype", "fp16", "--full", "--json"],
    ):
        assert words in [command[i : i + len(words)] for i in range(len(command))]
    asked = command[command.index("--metrics") + 1].split(",")
    assert profile_ncu.HISTOGRAM in asked and "dram__bytes_read.sum" in asked and "@FFMA" not in asked


def test_every_shape_type_and_mask(bench: Bench, tmp_path):
    words = ["v02", "--shape", "1,1,64,64", "--shape", "1,1,8,128", "--dtype", "bf16", "--causal", "--full"]
    assert bench.run(*words, "--json", str(tmp_path / "r.json")) == 0
    asked = [call[call.index("--shape") :][:5] for call in bench.calls() if "--metrics" in call]
    assert asked == [
        ["--shape", shape, "--dtype", "bf16", mask]
        for shape in ("1,1,64,64", "1,1,8,128")
        for mask in ("--full", "--causal")
    ]
    # The fake program knows one problem, with and without a mask: each is recorded once, whatever the words.
    assert [len(run["steps"]) for run in json.loads((tmp_path / "r.json").read_text())["runs"]] == [1, 1]
    bench.run("v02", "--causal")
    assert bench.calls()[-1][-3] == "--causal"


def test_without_names_all_steps_and_one_that_cannot_is_skipped(bench: Bench, capsys, tmp_path):
    entry = {"step": "v02_smem_tiles", "status": "skip", "message": "needs fp16 or bf16"}
    bench.put("v02_smem_tiles.entry", json.dumps(entry))
    assert bench.run("--json", str(tmp_path / "r.json")) == 0
    said = capsys.readouterr()
    assert f"SKIP  v02_smem_tiles cannot run {problem_label(bench.problem)}: needs fp16 or bf16" in said.err
    assert "v01_scalar" in said.out and "v02_smem_tiles" not in said.out
    steps = results.load(tmp_path / "r.json", profiles.SCHEMA)["runs"][0]["steps"]
    assert [step["status"] for step in steps] == ["pass", "skip"] and steps[1] == entry
    line = refused_by(bench, capsys, 2, "v02")
    assert line.endswith(f"v02_smem_tiles cannot run {problem_label(bench.problem)}: needs fp16 or bf16")


def test_ncu_is_missing(bench: Bench, capsys):
    (bench.folder / "bin/ncu").unlink()
    line = refused_by(bench, capsys, 2, "v02")
    assert "ncu (NVIDIA Nsight Compute) is missing" in line and "PATH" in line


def test_ncu_where_the_toolkit_puts_it(bench: Bench, monkeypatch):
    (bench.folder / "bin/ncu").rename(bench.folder / "none")
    monkeypatch.setenv("PATH", "")
    assert bench.run("v02") == 0


def test_the_step_is_not_built(bench: Bench, capsys):
    (bench.build / "steps/v02_smem_tiles").unlink()
    line = refused_by(bench, capsys, 2)
    assert "steps/v02_smem_tiles does not exist: build it first" in line and "--target flashsteps)" in line


def test_the_step_is_no_program(bench: Bench, capsys):
    (bench.build / "steps/v02_smem_tiles").chmod(0o644)
    assert "steps/v02_smem_tiles cannot be run: Permission denied" in refused_by(bench, capsys, 2, "v02")


def test_there_is_no_gpu(bench: Bench, capsys):
    bench.put("no_gpu", "")
    line = refused_by(bench, capsys, 2, "v02")
    assert line == "profile_ncu.py: there is no GPU to profile on: no NVIDIA driver"


@pytest.mark.parametrize("place", ["ncu_log", "ncu_stdout"])
@pytest.mark.parametrize("program", ["passes", "fails", "does not start"])
def test_the_counters_are_locked(bench: Bench, capsys, place, program):
    (bench.folder / "ncu_log").unlink()
    bench.put(
        place,
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
        "Counters on the target device 0.\n",
    )
    if program == "does not start":
        bench.put("starts_no_program", "")
    if program == "fails":
        entry = {"step": "v02_smem_tiles", "status": "crash", "message": "the launch failed"}
        bench.put("v02_smem_tiles.entry", json.dumps(entry))
    line = refused_by(bench, capsys, 2, "v02")
    for words in ("locked", "root (sudo)", "NVreg_RestrictProfilingToAdminUsers=0", "NVIDIA's page"):
        assert words in line


def test_a_problem_that_nobody_can_run(bench: Bench, capsys):
    bench.put("refusal", "flashsteps: --shape '1,4,256,65': head_dim is 65, the steps support 64 and 128")
    line = refused_by(bench, capsys, 2, "v02", "--shape", "1,4,256,65")
    assert line == "profile_ncu.py: --shape '1,4,256,65': head_dim is 65, the steps support 64 and 128"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("==WARNING== No kernels were profiled.\n", "ncu saw no launch of a kernel of v02_smem_tiles"),
        ("==ERROR== The application returned an error code (9).\n==ERROR== Cannot X\n", "ncu: Cannot X"),
        ("", "v02_smem_tiles: ncu: failed without saying why"),
    ],
)
def test_ncu_fails(bench: Bench, capsys, said, expected):
    bench.put("ncu_log", said)
    assert refused_by(bench, capsys, 1, "v02").endswith(expected)


def test_an_ncu_that_is_too_old(bench: Bench, capsys):
    bench.put("ncu_log", r"==ERROR== Failed to find metric regex:^sass__x\.(sum|min|max|avg|pct|ratio)$")
    line = refused_by(bench, capsys, 2, "v02")
    assert line == "profile_ncu.py: this ncu does not know the metric sass__x: a newer one is needed"


def test_a_wrong_result_is_not_profiled_and_the_others_are(bench: Bench, capsys, tmp_path):
    entry = {"step": "v01_scalar", "status": "fail", "message": "NRMSE is 0.7\nrows 3 to 5"}
    bench.put("v01_scalar.entry", json.dumps(entry))
    line = refused_by(bench, capsys, 1, "--json", str(tmp_path / "r.json"))
    assert line.endswith(f"v01_scalar on {problem_label(bench.problem)} is not profiled: fail: NRMSE is 0.7")
    data = results.load(tmp_path / "r.json", profiles.SCHEMA)
    assert data["complete"] is False
    assert [step["step"] for step in data["runs"][0]["steps"]] == ["v02_smem_tiles"]


def test_steps_of_different_builds_are_no_record(bench: Bench, capsys, tmp_path):
    bench.put("v02_smem_tiles.provenance", json.dumps({"commit": "1" * 40, "date": "2001-01-01T00:00:00Z"}))
    line = refused_by(bench, capsys, 2, "--json", str(tmp_path / "r.json"))
    assert "v02_smem_tiles is not from the same build as the steps before it (commit differs)" in line


def test_a_record_that_cannot_be_written(bench: Bench, capsys, tmp_path):
    line = refused_by(bench, capsys, 2, "v02", "--json", str(tmp_path / "none/r.json"))
    assert line.endswith("none/r.json: No such file or directory")
    assert "is not a regular file" in refused_by(bench, capsys, 2, "v02", "--json", str(tmp_path))
    assert not (tmp_path / "calls").exists(), "it was found out only after ncu was called"


@pytest.mark.parametrize(("word", "expected"), [("v7", "there is no step 'v7'"), ("v0", "'v0' may be")])
def test_a_step_that_does_not_exist(bench: Bench, capsys, word, expected):
    assert expected in refused_by(bench, capsys, 2, word)


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
    ("schema", "flashsteps-profile/9", "schema: is"),
    ("complete", ABSENT, "complete: missing"),
    ("extra", 1, "extra: unknown key"),
    ("command", "run", "command: unknown key"),
    ("provenance.ncu", ABSENT, "provenance.ncu: missing"),
    ("provenance.ncu", "", "provenance.ncu: is"),
    ("provenance.backend", "emulator", "must be one of cuda"),
    ("provenance.commit", "abc", "40 hex digits"),
    ("provenance.device.driver", ABSENT, "provenance.device.driver: missing"),
    ("provenance.build.nvcc", ABSENT, "provenance.build.nvcc: missing"),
    ("provenance.method.clocks", "locked", "provenance.method.clocks: is"),
    ("provenance.method.rounds", 7, "provenance.method.rounds: unknown key"),
    ("runs.0.problem.label", "fast one", "label: unknown key"),
    ("runs.0.problem.lse", "none", "runs[0].problem.lse: a profile's has none"),
    (STEP + "step", "v01_scalar", "appears twice in a run"),
    (STEP + "status", "fail", "must be one of pass, skip"),
    (STEP + "status", "skip", "metrics: a skipped step has none"),
    (STEP + "status", "skip", "a skipped step must say why"),
    (STEP + "timing", {}, "timing: unknown key"),
    (STEP + "metrics", ABSENT, "metrics: missing"),
    (STEP + "opcodes", ABSENT, "opcodes: missing"),
    (STEP + "metrics.mma", 4, "metrics.mma: unknown key"),
    (STEP + "metrics.registers", -1, "metrics.registers: is -1, must be a number >= 0"),
    (STEP + "metrics.registers", 12.5, "metrics.registers: is 12.5, must be a whole number"),
    (STEP + "metrics.occupancy", 100.5, "a percentage, 0 to 100"),
    (STEP + "metrics.occupancy", -0.5, "metrics.occupancy: is -0.5, must be a number >= 0"),
    (STEP + "metrics.instructions", 101, "the opcodes add up to 100"),
    (STEP + "metrics.instructions", ABSENT, "metrics.instructions: is null"),
    (STEP + "metrics.shared_wavefronts_ideal", 3301, "shared_wavefronts_ideal: is above shared_wavefronts"),
    (STEP + "metrics.ldmatrix_wavefronts", 3301, "ldmatrix_wavefronts: is above shared_wavefronts"),
    (STEP + "metrics.ldmatrix_conflicts", 1, "ldmatrix_conflicts: is above ldmatrix_wavefronts"),
    (STEP + "opcodes", [], "opcodes: must be an object"),
    (STEP + "opcodes.ffma", 1, 'opcodes: is "ffma", must be a SASS opcode'),
    (STEP + "opcodes.FFMA", 0, "an integer >= 1"),
]


@pytest.mark.parametrize(("path", "value", "expected"), CASES)
def test_a_broken_profile_is_refused(path, value, expected):
    data = make_profile()
    assert results.check(data) == []
    change(data, path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_kernels_add_up():
    data = make_profile()
    step = data["runs"][0]["steps"][1]
    kernels = [{key: step[key] for key in ("metrics", "opcodes")} for _ in range(2)]
    step |= {**profiles.sum_of(kernels), "kernels": kernels}
    assert results.check(data) == [] and "occupancy" not in step["metrics"]
    step["metrics"]["duration_ns"] += 1
    assert any("kernels: do not add up" in line for line in results.check(data))
    kernels[1]["opcodes"] = {"FFMA": 1}
    assert any("kernels[1].metrics.instructions: is 100, the op" in line for line in results.check(data))
    del kernels[1]
    assert any("kernels: a step with one kernel has none" in line for line in results.check(data))
    step["status"] = "skip"
    assert any("kernels: a skipped step has none" in line for line in results.check(data))


def test_older_records_are_of_one_kernel():
    data = make_profile()
    data["provenance"]["method"]["launch"] = profiles.OLDER_LAUNCH
    assert results.check(data) == []


def test_a_problem_appears_once():
    data = make_profile([make_problem(), make_problem()])
    assert any("appears twice" in line for line in results.check(data))


def test_what_a_gpu_does_not_count_may_be_absent():
    data = make_profile()
    del data["runs"][0]["steps"][1]["metrics"]["stall_gmma"]
    assert results.check(data) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("complete", False, "must be complete"),
        ("provenance.dirty", True, "clean tree"),
        ("provenance.dirty", None, "clean tree"),
        ("provenance.commit", None, "a recorded run needs one"),
        ("provenance.commit", "1" * 40, "is not in this repository"),
        ("runs", [], "at least one problem"),
    ],
)
def test_a_recorded_profile_is_clean_and_complete(repository: Repository, path, value, expected):
    data = make_profile(commit=repository.commit)
    assert results.check_recorded(data, repository.root) == []
    change(data, path, value)
    assert any(expected in line for line in results.check_recorded(data, repository.root))


def test_the_command_line_checks_both_kinds(repository: Repository, capsys):
    good = repository.record("profile.json", make_profile(commit=repository.commit))
    arguments = ["check", "--recorded", "--root", str(repository.root), str(good)]
    assert results.main([*arguments, str(repository.root / "figures/results/gpu.json")]) == 0
    assert f"{good}: ok, 1 problem(s), 3 step(s)" in capsys.readouterr().out
    repository.record("profile.json", make_profile(commit="1" * 40))
    assert results.main(arguments) == 1


def test_one_kind_is_not_taken_for_the_other(tmp_path):
    for data, wanted, expected in (
        (make_profile(), results.SCHEMA, "is a profile, this needs a results file"),
        (make_record(), profiles.SCHEMA, "is a results file, this needs a profile"),
    ):
        (tmp_path / "file.json").write_text(json.dumps(data))
        with pytest.raises(results.ResultsError, match=expected):
            results.load(tmp_path / "file.json", wanted)
        assert results.load(tmp_path / "file.json", None) == data


def test_a_file_of_the_older_form_is_refused_as_such(tmp_path):
    for data, wanted in ((make_profile(), profiles.SCHEMA), (make_record(), results.SCHEMA)):
        (tmp_path / "file.json").write_text(json.dumps(data | {"schema": wanted.replace("/2", "/1")}))
        with pytest.raises(results.ResultsError, match="/1 is an older form, which this version does not read"):
            results.load(tmp_path / "file.json", wanted)


# The blocks.

BLOCK = "profile file=profile.json step=v02_smem_tiles"
CONFORMANCE = "conformance file=counts.json ncu=profile.json"


@pytest.fixture
def profiled(repository: Repository) -> Repository:
    repository.record("profile.json", make_profile(commit=repository.commit))
    return repository


def test_profile_block(profiled: Repository, capsys):
    text = written(profiled, capsys, BLOCK)
    assert "B=4 H=16 S=4096 D=128 bf16 causal. Read on Synthetic GPU with Nsight Compute.\n" in text
    assert "| counter | v01_scalar | v02_smem_tiles | × |" in text
    assert "| instructions | 1,000 | 100 | 0.10 |" in text and "| mma | 0 | 4 | – |" in text
    assert "| occupancy | 12.5 % | 12.5 % |  |" in text
    assert "| shuffles |" not in text, "0 before and after"
    data = make_profile(commit=profiled.commit)
    del data["runs"][0]["steps"][1]["metrics"]["occupancy"]
    profiled.record("profile.json", data)
    assert "| occupancy | 12.5 % | – |  |" in written(profiled, capsys, BLOCK)
    text = written(profiled, capsys, BLOCK + " show=shuffles,global_requests")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["| shuffles | 0 | 0 | – |", "| global requests | 1,000 | 1,000 | 1.00 |"]
    text = written(profiled, capsys, BLOCK.replace("v02_smem_tiles", "v01_scalar") + " show=instructions")
    assert "| counter | v01_scalar |\n" in text and "| instructions | 1,000 |\n" in text


def test_the_step_before_may_be_in_another_profile(profiled: Repository, capsys):
    data = make_profile(commit=profiled.commit)
    data["runs"][0]["steps"][0]["metrics"]["occupancy"] = 44
    profiled.record("older.json", data)
    text = written(profiled, capsys, BLOCK + " before=older.json")
    assert "| counter | v01_scalar | v02_smem_tiles | × |" in text and "| occupancy | 44.0 % | 12.5 % |  |" in text
    profiled.record("older.json", make_profile([make_problem(causal=False)], commit=profiled.commit))
    assert "before=: is of another problem" in refused(profiled, capsys, BLOCK + " before=older.json")


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


def test_conformance_block(profiled: Repository, capsys):
    text = written(profiled, capsys, CONFORMANCE)
    assert "B=4 H=16 S=4096 D=128 bf16 causal. Counted on the emulator, and read on Synthetic GPU" in text
    assert "| v02_smem_tiles | global requests | 1,000 | 1,000 | = |" in text
    assert "| v02_smem_tiles | shared wavefronts | 3,000 | 3,300 | 1.10 |" in text
    assert "| v02_smem_tiles | shared wavefronts / ideal | 3.00 | 3.00 | = |" in text
    assert "| v01_scalar | shared wavefronts" not in text, "both say 0"
    assert "| v01_scalar | shuffles | 5 | 0 | 0.00 |" in text
    assert "global bytes" not in text, "the GPU has no such counter"
    text = written(profiled, capsys, CONFORMANCE + " show=differences")
    rows = [line for line in text.splitlines() if line.startswith("| v02_smem_tiles")]
    assert rows[0] == "| v02_smem_tiles | 2 of 11 counters |  |  | = |"
    assert "| v02_smem_tiles | shared wavefronts | 3,000 | 3,300 | 1.10 |" in rows
    assert len(rows) == 10 and not any(row.endswith("| = |") for row in rows[1:]), rows


def test_the_blocks_are_of_one_problem(profiled: Repository, capsys):
    both = [make_problem(), make_problem(causal=False)]
    profiled.record("profile.json", make_profile(both, commit=profiled.commit))
    assert "2 problems match in profile.json" in refused(profiled, capsys, BLOCK)
    assert "| instructions |" in written(profiled, capsys, BLOCK + " causal=true")
    assert "2 problems match in profile.json" in refused(profiled, capsys, CONFORMANCE)
    assert "no problem matches causal=false" in refused(profiled, capsys, CONFORMANCE + " causal=false")
    profiled.record("counts.json", make_record("emulator", problems=both, commit=profiled.commit))
    assert "bf16 full. Counted" in written(profiled, capsys, CONFORMANCE + " causal=false")
    profiled.record("counts.json", make_record("emulator", problems=both[:1], commit=profiled.commit))
    profiled.record("profile.json", make_profile(both[1:], commit=profiled.commit))
    message = refused(profiled, capsys, CONFORMANCE)
    assert "counts.json is of B=4 Hq=16" in message and "bf16 causal, profile.json of B=4 Hq=16" in message


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("profile file=profile.json", "step=... is missing"),
        ("profile file=gpu.json step=v02_smem_tiles", "is a results file, this needs a profile"),
        ("ladder file=profile.json", "is a profile, this needs a results file"),
        (BLOCK + " show=speed", "show=speed: there are duration_ns, sm_cycles"),
        ("conformance file=counts.json", "ncu=... is missing"),
        ("conformance file=counts.json ncu=none", "figures/results/none.json does not exist"),
        ("conformance file=gpu.json ncu=profile.json", "needs 'emulator'"),
        ("conformance file=counts.json ncu=gpu.json", "is a results file, this needs a profile"),
    ],
)
def test_what_a_block_asks_for_in_vain(profiled: Repository, capsys, block, expected):
    assert expected in refused(profiled, capsys, block)


def test_a_step_or_a_counter_that_the_profile_lacks(profiled: Repository, capsys):
    data = make_profile(commit=profiled.commit)
    del data["runs"][0]["steps"][1]["metrics"]["dram_read_bytes"]
    data["runs"][0]["steps"][2] = {"step": STEPS[2], "status": "skip", "message": "needs sm_90a"}
    profiled.record("profile.json", data)
    block = BLOCK + " show=dram_read_bytes"
    assert "has no dram_read_bytes of v02_smem_tiles" in refused(profiled, capsys, block)
    assert "no counters of v03_wmma: skip: needs sm_90a" in refused(profiled, capsys, CONFORMANCE)
    del data["runs"][0]["steps"][2]
    profiled.record("profile.json", data)
    message = refused(profiled, capsys, BLOCK.replace("v02_smem_tiles", "v03_wmma"))
    assert "profile.json has no step 'v03_wmma'" in message
    assert "v03_wmma" not in written(profiled, capsys, CONFORMANCE)  # which has the record's steps


def test_provenance_of_a_profile(profiled: Repository, capsys):
    text = written(profiled, capsys, "provenance file=profile.json")
    assert "driver 1.2.3, CUDA 13.0 (nvcc 13.0.88), Nsight Compute 2025.3.1.0, commit" in text
