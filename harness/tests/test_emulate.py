"""`flashsteps emulate`: ordinary CUDA programs, right ones and wrong ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_program import FLASHSTEPS, PATIENCE, ROOT, run

PROGRAMS = Path(__file__).resolve().parent / "emulate"
RIGHT = [
    "bytes",
    "clusters",
    "constants_and_streams",
    "cuda_barrier",
    "device_heap",
    "dynamic_shared",
    "grid_sync",
    "groups",
    "ptx_bulk_copy",
    "ptx_gemm",
    "ptx_instructions",
    "ptx_instructions_sm90",
    "ptx_wgmma",
    "reduce",
    "runtime",
    "static_shared",
    "templates",
    "vector_add",
]
ADVICE = {"ptx_instructions_sm90": [("notice", "mbarrier-init-fence")]}  # which leaves the exit status 0
# What is found: a launch, a rule, words, and text of the lines that are named.
WRONG = {
    "barrier_missing_wait": [
        ("arrives<<<", "race-shared", "is not ordered after the read", ["// a copy", "// before the wait"]),
        ("reads<<<", "missing-wait", "is a cp.async.wait_group missing", ["// a group's copy", "// and no wait"]),
        ("reads<<<", "race-shared", "Is a __syncwarp()", ["// a group's copy", "// and no wait"]),
    ],
    "byte_race": [
        ("rotate<<<", "race-shared", "is not ordered after", ["tile[threadIdx.x] = data", "= tile[(threadIdx"])
    ],
    "missing_cluster_waits": [
        ("neighbours<<<", "cluster-misuse", "has exited, and its shared memory with it", ["// of a CTA that may be"]),
        ("overwrites<<<", "race-shared", "race on shared memory at `tile`", ["// before", "// or behind this"]),
        ("without_grid_sync, dim3", "race-global", "race between CTAs", ["by each block", "of the other block"]),
    ],
    "device_asserts": [
        ("asserts<<<", "device-assert", "the assertion `int(threadIdx.x) < n` does not hold", ["// a promise"]),
        ("traps<<<", "trap", "__trap()", ["__trap();"]),
        ("frees_twice<<<", "heap-misuse", "which is free, or which no malloc() of a kernel has returned", ["// again"]),
        ("writes_beyond<<<", "out-of-bounds-global", "global memory access out of bounds", ["// far away"]),
    ],
    "missing_barrier": [
        ("reverse<<<", "race-shared", "is not ordered after", ["tile[threadIdx.x] = data", "= tile[127 -"])
    ],
    "out_of_bounds": [
        ("fill<<<", "out-of-bounds-global", "0 bytes after the end of an allocation of 4000 bytes", ["if (i <= n)"]),
        ("shift<<<", "out-of-bounds-shared", "for 0 bytes, and the 512 of __shared__ variables", ["neighbour"]),
    ],
    "ptx_missing_wait": [
        ("sum_tiles<<<", "missing-wait", "last cp.async.wait_group leaves it", ["tiles[tile % 2][i]", "cp.async.ca"]),
        ("sum_tiles<<<", "missing-wait", "last cp.async.wait_group leaves it", ["cp.async.ca"]),  # the next one
    ],
    "ptx_bugs": [
        ("sum_two_tiles<<<", "mbarrier-init-fence", "should execute fence.mbarrier_init", ["// the copy", ".init."]),
        ("sum_two_tiles<<<", "missing-wait", "is an mbarrier.try_wait missing", ["tiles[1][i]", "// the copy"]),
        ("add_twice<<<", "missing-wait", "may still be reading", ["// the next numbers", "// adds"]),
        ("store_early<<<", "race-shared", "race on shared memory", ["// fills", "// stores"]),
        ("meet<<<", "barrier-misuse", "threads come in multiples of 32", ["// 100"]),
    ],
    "divides_by_zero": [("divide<<<", "division-by-zero", "an integer is divided by zero", ["1000 / in"])],
    "two_bugs": [
        ("neighbour<<<", "race-shared", "race on shared memory", ["tile[threadIdx.x] = in", "without a barrier"]),
        ("count<<<", "race-global", "race between CTAs on global memory", ["by every block"]),
    ],
    "three_bugs": [
        ("shift<<<", "race-shared", "race on shared memory", ["tile[threadIdx.x] = in", "without a barrier"]),
        ("shift<<<", "out-of-bounds-global", "4 bytes before an allocation of 2048", ["ends block 0 alone"]),
        ("shift<<<", "race-global", "race between CTAs on global memory", ["by every block"]),
    ],
}  # fmt: skip
ALL_MODES = ["--mode", "early", "--mode", "late", "--mode", "random"]
RUNS = [{"mode": "early"}, {"mode": "late"}, {"mode": "random", "seed": 1}, {"mode": "random", "seed": 2}]
RULES = re.findall(r'^    \{"([\w-]+)", Bug::', (ROOT / "common/emulator/rules.h").read_text(), re.MULTILINE)


def is_sm90_here() -> bool:
    if shutil.which("nvcc") is None or shutil.which("nvidia-smi") is None:
        return False
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.startswith("9.0")


def line_of(program: str, text: str) -> str:
    """"missing_barrier.cu:8": where this text stands, and nowhere else."""
    lines = (PROGRAMS / f"{program}.cu").read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"{program}.cu:{found}"


def annotation(line: str) -> tuple[str, str, str] | None:
    """What GitHub makes of a line, by our problem matcher: severity, place and rule."""
    for matcher in json.loads((ROOT / ".github" / "problem-matcher.json").read_text())["problemMatcher"]:
        (pattern,) = matcher["pattern"]
        if found := re.match(pattern["regexp"], line):
            file, number, rule = (found[pattern[key]] for key in ("file", "line", "code"))
            return matcher["severity"], f"{file}:{number}", rule
    return None


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_says_what_it_says_on_a_gpu(program: str) -> None:
    done = run(FLASHSTEPS, "emulate", str(PROGRAMS / f"{program}.cu"))
    assert done.returncode == 0, done.stderr
    said = [annotation(line) for line in done.stderr.splitlines()]
    assert [each and each[::2] for each in said] == ADVICE.get(program, []), done.stderr
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.skipif(not is_sm90_here(), reason="no nvcc, or no GPU of sm_90")
@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_is_right_on_a_gpu(program: str, tmp_path: Path) -> None:
    nvcc = ["nvcc", "-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-o", str(tmp_path / program)]
    subprocess.run([*nvcc, str(PROGRAMS / f"{program}.cu")], check=True)
    assert run(tmp_path / program).stdout.splitlines()[-1] == "ok"


def named(line: str) -> set[str]:
    """The places in what was printed, but for that of the launch."""
    return set(re.findall(r"[\w.]+:\d+\b", line.split(": block ")[1]))


def as_text(place: dict[str, Any]) -> str:
    return f"{Path(place['file']).name}:{place['line']}"


@pytest.mark.parametrize("program", WRONG)
def test_what_is_wrong_is_named_with_its_lines_in_every_mode(program: str, tmp_path: Path) -> None:
    files = [tmp_path / "report.json", tmp_path / "report.sarif"]
    reports = [word for file in files for word in ("--report", str(file))]
    done = run(FLASHSTEPS, "emulate", str(PROGRAMS / f"{program}.cu"), *ALL_MODES, "--seeds", "2", *reports)
    assert done.returncode == 1
    assert re.findall(r"^mode .*", done.stdout, re.MULTILINE) == [
        "mode early", "mode late", "mode random, seed 1", "mode random, seed 2",
    ]  # fmt: skip
    findings = json.loads(files[0].read_text())["findings"]
    assert len(findings) == len(WRONG[program]), done.stderr
    lines = re.findall(r"^flashsteps: .*", done.stderr, re.MULTILINE)
    assert len(lines) == 4 * len(findings), done.stderr
    (sarif,) = json.loads(files[1].read_text())["runs"]
    for launch, rule, said, texts in WRONG[program]:
        places = {line_of(program, text) for text in texts}
        (finding,) = (
            each for each in findings if each["rule"] == rule and places == set(map(as_text, each["places"]))
        )
        assert as_text(finding["launch"]) == line_of(program, launch)
        assert finding["runs"] == RUNS and finding["help"] == f"docs/findings.md#{rule}"
        assert said in finding["text"] and finding["advice"]
        level = "note" if rule == "mbarrier-init-fence" else "error"
        assert finding["level"] == level and len(finding["block"]) == len(finding["thread"]) == 3
        # The same on stderr, once in each run, and as GitHub would show it.
        printed = [line for line in lines if line.endswith(f"[{rule}]") and named(line) == places]
        assert len(printed) == 4 and f": kernel launched at {finding['launch']['file']}:" in printed[0]
        for line in printed:
            severity, place, code = annotation(line)
            assert Path(place).name in places and code == rule and severity == {"note": "notice"}.get(level, level)
        # And in SARIF.
        (result,) = (each for each in sarif["results"] if each["message"]["text"] == finding["text"])
        (at,) = result["locations"]
        its_rule = sarif["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert result["ruleId"] == its_rule["id"] == rule and its_rule["helpUri"].endswith(finding["help"])
        assert result["level"] == level and len(result["relatedLocations"]) == len(finding["places"])
        assert at["physicalLocation"]["region"]["startLine"] == finding["places"][0]["line"]


def test_the_page_has_every_rule_and_its_examples_break_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (.*)$", page, re.MULTILINE)) == sorted(RULES)
    blocks = re.findall(r"^```cuda\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    kernels = re.findall(r"^__global__ void (\w+)\(int\* data\) \{  // (<<<.*>>>)$", page, re.MULTILINE)
    assert len(kernels) == len(blocks) - 1 > 20
    main = "int main() {\n  int* data;\n  cudaMalloc(&data, 1024);\n"
    for name, launch in kernels:
        main += f"  cudaMemset(data, 0, 1024);\n  {name}{launch}(data);\n"
    text = "#include <cuda_runtime.h>\n#include <cstdint>\n" + "".join(blocks) + main + "}\n"
    done = emulate(tmp_path, text, "--report", "report.json", "program.cu")
    assert done.returncode == 1, done.stderr
    found = [
        (text.splitlines()[finding["launch"]["line"] - 1].split("<<<")[0].strip(), finding["rule"])
        for finding in json.loads((tmp_path / "report.json").read_text())["findings"]
    ]
    assert found == [(name, name.replace("_", "-")) for name, _ in kernels]
    assert all(annotation(line) for line in done.stderr.splitlines())


def test_there_are_at_most_a_hundred_findings(tmp_path: Path) -> None:
    line = "tile[threadIdx.x] += tile[63 - threadIdx.x] + data[0]; __syncwarp();\n"
    text = f"__global__ void f(int* data) {{\n__shared__ int tile[64];\n{105 * line}}}\n"
    text += "int main() { int* data; cudaMalloc(&data, 4); for (int i = 0; i < 9; i++) f<<<1, 64>>>(data); }\n"
    done = emulate(tmp_path, text, "--report", "report.json", "program.cu")
    assert len(json.loads((tmp_path / "report.json").read_text())["findings"]) == 100
    assert done.returncode == 1 and done.stderr.splitlines()[100:] == ["flashsteps: there are more than 100 findings"]


def test_memory_that_nobody_has_written_holds_no_zeros() -> None:
    done = run(FLASHSTEPS, "emulate", str(PROGRAMS / "uninitialised.cu"))
    assert (done.returncode, done.stdout) == (0, "wrong\n")


MAIN = "#include <cstdio>\nint main(int argc, char** argv) { for (int i = 1; i < argc; i++) puts(argv[i]); return N; }\n"


def emulate(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.cu").write_text(text)
    command = [str(FLASHSTEPS), "emulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)


def test_the_program_gets_its_arguments_and_its_status_counts(tmp_path: Path) -> None:
    done = emulate(tmp_path, MAIN, "-D", "N=0", "program.cu", "--", "--mode", "7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "--mode\n7\n", "")
    assert emulate(tmp_path, MAIN, "-D", "N=5", "program.cu").returncode == 1
    text = "#if M == 3 && defined(T)\nint main() { return K(4) - 4; }\n#endif\n"
    assert emulate(tmp_path, text, "-D", "M=3", "-D", "T", "-D", "K(x)=x", "program.cu").returncode == 0


def test_headers_of_a_folder_are_translated_too(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    header = "inline void launch() { fill<<<1, 32>>>(); }\n"
    (tmp_path / "include" / "launch.h").write_text("__global__ void fill() {}\n" + header)
    text = '#include "launch.h"\nint main() { launch(); }\n'
    assert emulate(tmp_path, text, "-I", "include", "program.cu").returncode == 0
    done = emulate(tmp_path, text, "program.cu")
    assert done.returncode == 2 and "launch.h: No such file" in done.stderr


def test_what_only_may_have_no_value_is_compiled(tmp_path: Path) -> None:
    text = """
__global__ void sum(volatile float* out, int n) {
  float value;
  if (n > 0) {
    for (int i = 0; i < 3; i++) out[0] += i;
    value = out[0];
  }
  if (threadIdx.x < n) atomicAdd((float*)out, value);
}
int main() { sum<<<1, 1>>>(nullptr, 0); }
"""
    done = emulate(tmp_path, text, "program.cu")
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('__global__ void f() { asm("vadd 0;"); }', "program.cu:1: PTX: the emulator does not know `vadd 0`"),
        ("int main() { return x; }", "program.cu:1:21: error: 'x' was not declared"),
        (
            "#include <mma.h>\nnvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 8, float> a;",
            "flashsteps: program.cu:2: only 16 x 16 x 16 is emulated\n",
        ),
        (
            "int f();\nint main() { return f(); }",
            "program.cu:2: a program is one file, which may #include others: it does not define f()",
        ),
        (
            "__global__ void f() {}\nint main() { void* g = (void*)f; cudaLaunchKernel(g, 1, 32, nullptr); }",
            "program.cu:2:50: error: call to 'emulator::cuda::cudaLaunchKernel' declared with attribute error: "
            "give cudaLaunchKernel the kernel itself, without a cast to void*",
        ),
    ],
)
def test_what_cannot_be_compiled_is_said_at_its_line(tmp_path: Path, text: str, said: str) -> None:
    os.environ.setdefault("LC_ALL", "C")
    done = emulate(tmp_path, text, "program.cu")
    assert done.returncode == 2 and said in done.stderr.replace("‘", "'").replace("’", "'"), done.stderr


def test_wrong_use(tmp_path: Path) -> None:
    assert "there is no file nothing.cu" in emulate(tmp_path, "", "nothing.cu").stderr
    unknown = emulate(tmp_path, MAIN, "--report", "findings.txt", "program.cu")
    assert unknown.returncode == 2 and "must end in .json or .sarif" in unknown.stderr
    assert emulate(tmp_path, "").returncode == 2
    crash = emulate(tmp_path, "#include <csignal>\nint main() { raise(SIGABRT); }", "program.cu")
    assert crash.returncode == 3 and "was ended by signal 6" in crash.stderr
