"""`flashsteps emulate`: ordinary CUDA programs, right ones and wrong ones."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from test_program import FLASHSTEPS, PATIENCE, run

PROGRAMS = Path(__file__).resolve().parent / "emulate"
RIGHT = [
    "bytes",
    "constants_and_streams",
    "dynamic_shared",
    "groups",
    "ptx_bulk_copy",
    "ptx_gemm",
    "ptx_instructions",
    "ptx_instructions_sm90",
    "ptx_wgmma",
    "reduce",
    "runtime",
    "templates",
    "vector_add",
]
# What is found: a launch, and text of the lines that are named.
WRONG = {
    "byte_race": [("rotate<<<", "is not ordered after", ["tile[threadIdx.x] = data", "= tile[(threadIdx"])],
    "missing_barrier": [("reverse<<<", "is not ordered after", ["tile[threadIdx.x] = data", "= tile[127 -"])],
    "out_of_bounds": [("fill<<<", "0 bytes after the end of an allocation of 4000 bytes", ["if (i <= n)"])],
    "ptx_missing_wait": [
        ("sum_tiles<<<", "last cp_async_wait leaves it pending", ["tiles[tile % 2][i]", "cp.async.ca"])
    ],
    "ptx_missing_mbarrier_wait": [
        ("sum_two_tiles<<<", "this thread has not waited for that", ["tiles[1][i]", "// the copy"])
    ],
    "divides_by_zero": [("divide<<<", "an integer is divided by zero", ["1000 / in"])],
    "two_bugs": [
        ("neighbour<<<", "race on shared memory", ["tile[threadIdx.x] = in", "without a barrier"]),
        ("count<<<", "race between CTAs on global memory", ["by every block"]),
    ],
}
ALL_MODES = ["--mode", "early", "--mode", "late", "--mode", "random"]


def line_of(program: str, text: str) -> str:
    """"missing_barrier.cu:8": where this text stands, and nowhere else."""
    lines = (PROGRAMS / f"{program}.cu").read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"{program}.cu:{found}"


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_says_what_it_says_on_a_gpu(program: str) -> None:
    done = run(FLASHSTEPS, "emulate", str(PROGRAMS / f"{program}.cu"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.parametrize("program", WRONG)
def test_what_is_wrong_is_named_with_its_lines_in_every_mode(program: str) -> None:
    done = run(FLASHSTEPS, "emulate", str(PROGRAMS / f"{program}.cu"), *ALL_MODES, "--seeds", "2")
    assert done.returncode == 1
    assert re.findall(r"^mode .*", done.stdout, re.MULTILINE) == [
        "mode early", "mode late", "mode random, seed 1", "mode random, seed 2",
    ]  # fmt: skip
    findings = re.findall(r"^flashsteps: finding \d+: .*", done.stderr, re.MULTILINE)
    assert len(findings) == 4 * len(WRONG[program]), done.stderr
    for number, finding in enumerate(findings):
        launch, said, places = WRONG[program][number % len(WRONG[program])]
        assert f"finding {number % len(WRONG[program]) + 1}: kernel launched at " in finding
        for place in (launch, *places):
            assert re.search(re.escape(line_of(program, place)) + r"\b", finding), (place, finding)
        assert said in finding


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
        ("int f();\nint main() { return f(); }", "a program is one file, which may #include others"),
        ("__global__ void __cluster_dims__(2) f() {}", "clusters are not supported by flashsteps emulate"),
        (
            "__global__ void f() {}\nint main() { cudaLaunchKernel((void*)f, 1, 32, nullptr); }",
            "program.cu:2:30: error: call to 'emulator::cuda::cudaLaunchKernel' declared with attribute error: "
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
    assert emulate(tmp_path, "").returncode == 2
    crash = emulate(tmp_path, "#include <csignal>\nint main() { raise(SIGABRT); }", "program.cu")
    assert crash.returncode == 3 and "was ended by signal 6" in crash.stderr
