"""flashsteps.emulate: kernels of a file of one's own, launched by their names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import flashsteps
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
ml_dtypes = pytest.importorskip("ml_dtypes")

SOURCE = """
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "width.h"
__device__ int launches;
// A row of scores in dynamic shared memory.
template <int HEAD_DIM, bool CAUSAL>
__global__ void attention(const half* q, const half* k, const half* v, float* o, int seqlen, float scale) {
  extern __shared__ float scores[];
  const int row = blockIdx.x, keys = CAUSAL ? row + 1 : seqlen;
  for (int key = threadIdx.x; key < keys; key += blockDim.x) {
    float sum = 0;
    for (int d = 0; d < HEAD_DIM; d++) sum += float(q[row * HEAD_DIM + d]) * float(k[key * HEAD_DIM + d]);
    scores[key] = expf(sum * scale);
  }
  __syncthreads();
  float total = 0, sum = 0;
  for (int key = 0; key < keys; key++) {
    total += scores[key];
    sum += scores[key] * float(v[key * HEAD_DIM + threadIdx.x]);
  }
  o[row * HEAD_DIM + threadIdx.x] = sum / total;
  if (row == 0 && threadIdx.x == 0) launches++;
}
__global__ void count(int* out) {
  *out = launches;
  printf("%d launches\\n", launches);
}
struct Pair { float first; int second; };
enum class Kind : unsigned char { kNone, kSome };
namespace numbers { namespace {
__global__ void sum(__nv_bfloat16* out, half a, __nv_bfloat16 b, double c, signed char d, bool e, Kind f, Pair g,
                    const float4* h, void* i, const unsigned long long* j) {
  *out = float(a) + float(b) + c + d + e + int(f) + g.first + g.second + h[1].w + (i == nullptr) + *j;
}
} }
__global__ void add_one(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }
__global__ void order(int* counter, int* blocks) { blocks[atomicAdd(counter, 1)] = blockIdx.x; }
__global__ void reverse(float* data) {
  __shared__ float tile[WIDTH * 90];  // more than is left for a library that is loaded late
  tile[threadIdx.x * 90] = data[threadIdx.x];
  data[threadIdx.x] = tile[(WIDTH - 1 - threadIdx.x) * 90];  // without a barrier
}
__global__ void beyond(float* data, int n) { if (threadIdx.x <= n) data[threadIdx.x] = 1; }
__global__ void pointers(float** rows, CUtensorMap map) {}
__global__ void forever(volatile int* flag) { while (*flag == 0) *flag = 0; }  // only to read it were a deadlock
__global__ void both(int*) {}
__global__ void both(float*) {}
void launch_twice(float* data, int n) {
  for (int i = 0; i < 2; i++)
    beyond<<<1, 64>>>(data, n);  // twice
  if (cudaDeviceSynchronize() != cudaSuccess) exit(3);
}
void launch_elsewhere(float* data, int n) { beyond<<<1, 64>>>(data, n); }
void refuse() { throw std::runtime_error("not today"); }
void crash() { raise_segv(); }
int main() { puts("main"); }
"""
NAMES = ("attention<64, true>", "attention<64, false>", "launch_twice", "launch_elsewhere", "refuse", "crash")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> flashsteps.Program:
    folder = tmp_path_factory.mktemp("a folder")
    (folder / "include").mkdir()
    (folder / "include" / "width.h").write_text(
        "#include <csignal>\n#define WIDTH SIZE\ninline void raise_segv() { raise(SIGSEGV); }\n"
    )
    (folder / "my.cu").write_text(SOURCE)
    program = flashsteps.emulate(folder / "my.cu", include_folders=[folder / "include"], macros={"SIZE": 128})
    for name in NAMES:
        program[name]
    return program


def line_of(text: str) -> str:
    (line,) = [number for number, line in enumerate(SOURCE.splitlines(), start=1) if text in line]
    return f"my.cu:{line}"


def test_templates_arrays_and_variables(program: flashsteps.Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"attention", "numbers::sum"} < set(program.kernels) and "launch_twice" not in program.kernels
    q, k, v = (x.astype(np.float16) for x in np.random.default_rng(1).standard_normal((3, 40, 64)))
    scores = np.exp(q.astype(np.float32) @ k.astype(np.float32).T / 8)
    for causal in (True, False):
        o = np.zeros((40, 64), np.float32)
        program[f"attention<64, {str(causal).lower()}>"][40, 64, 4 * 40](q, k, v, o, 40, 1 / 8)
        weights = np.tril(scores) if causal else scores
        assert np.allclose(o, weights @ v.astype(np.float32) / weights.sum(1, keepdims=True), atol=1e-5)
    launches = np.zeros(1, np.int32)
    for _ in range(2):
        program.count[1, 1](launches)
    assert launches[0] == 2 and capsys.readouterr().out == "2 launches\n" * 2
    assert program["attention<64, true>"].parameters == (
        "const __half*", "const __half*", "const __half*", "float*", "int", "float"
    )  # fmt: skip


def test_numbers_structs_and_null(program: flashsteps.Program) -> None:
    out = np.zeros(1, ml_dtypes.bfloat16)
    pair = np.array((64, 128), "f4, i4")[()]
    vectors, word = np.zeros((2, 4), np.float32, order="F"), np.array(256, np.uint64)
    vectors[1, 3] = 1
    for values in ((1, 2, 4, -8, True, 1, pair), (np.float16(1), ml_dtypes.bfloat16(2), 4.0, np.int8(-8), np.True_, 1,
                                                 pair.tobytes())):  # fmt: skip
        out[:] = 0
        program.sum[1, 1](out, *values, vectors, None, word)
        assert out[0] == 1 + 2 + 4 - 8 + 1 + 1 + 64 + 128 + 1 + 1 + 256
    numbers = np.arange(32, dtype=np.int32)
    program.add_one[1, 32](numbers, numbers)
    assert (numbers == np.arange(1, 33)).all()


def test_modes_and_seeds(program: flashsteps.Program) -> None:
    def order(mode: str, seed: int = 1) -> list[int]:
        program.mode, program.seed = mode, seed
        blocks = np.zeros(16, np.int32)
        program.order[(4, 4), 1](np.zeros(1, np.int32), blocks)
        return blocks.tolist()

    try:
        assert order("random") == order("random") != order("random", 2)
        assert sorted(order("late")) != order("late")
        with pytest.raises(ValueError, match="mode: is 'soon', expected 'early'"):
            order("soon")
    finally:
        program.mode, program.seed = "early", 1


def test_findings_raise_and_leave_arrays_alone(program: flashsteps.Program) -> None:
    data = np.arange(128, dtype=np.float32)
    with pytest.raises(flashsteps.EmulatorError, match="^reverse: block .*race on shared memory") as raised:
        program.reverse[1, 128](data)
    (finding,) = raised.value.findings
    assert line_of("tile[threadIdx.x * 90] = data") in finding.text and line_of("// without a barrier") in finding.text
    with pytest.raises(flashsteps.EmulatorError, match="0 bytes after the end of an allocation of 512 bytes"):
        program.beyond[1, 256](data, 128)
    with pytest.raises(flashsteps.EmulatorError, match="block .2048, 1, 1. is beyond"):
        program.beyond[1, 2048](data, 0)
    # Of launches in a loop, what is the same is said once. Another launch that looks the same has its lines, too.
    for name, launch, said in (
        ("launch_twice", "// twice", "launch_twice: the program called exit"),
        ("launch_elsewhere", "void launch_elsewhere", "launch_elsewhere: kernel launched at"),
    ):
        with pytest.raises(flashsteps.EmulatorError, match=said) as raised:
            program[name](data[:32], 32)
        (finding,) = raised.value.findings
        places = rf"launched at .*{line_of(launch)}: .* at .*{line_of('void beyond')} \[out-of-bounds-global\]$"
        assert re.search(places, finding.text), finding
    assert (data == np.arange(128)).all()
    program["launch_twice"](data, 60)
    assert (data[:61] == 1).all() and data[61] == 61


def test_a_crash_and_ctrl_c_end_a_launch_and_not_python(program: flashsteps.Program) -> None:
    with pytest.raises(flashsteps.EmulatorError, match="ended by signal 11, Segmentation fault") as raised:
        program["crash"]()
    assert raised.value.findings == ()
    with pytest.raises(flashsteps.EmulatorError, match="^refuse: not today$"):
        program["refuse"]()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs of a shell ignore
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            program.forever[1, 1](np.zeros(1, np.int32))
    finally:
        signal.signal(signal.SIGINT, handler)
    launches = np.ones(1, np.int32)
    program.count[1, 1](launches)
    assert launches[0] == 0


F4 = np.zeros(4, np.float32)
WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("their number", lambda p: p.beyond[1, 1](F4), TypeError, r"beyond\(float\*, int\): has 2 parameters, and got 1"),
    ("type", lambda p: p.beyond[1, 1](F4.astype(int), 1), TypeError, "argument 1 .float... is int64, expected float32"),
    ("strides", lambda p: p.beyond[1, 1](F4[::2], 1), ValueError, "is not contiguous"),
    ("read-only", lambda p: p.beyond[1, 1](np.broadcast_to(F4, 4), 1), ValueError, "is read-only"),
    ("no array", lambda p: p.beyond[1, 1]([1.0], 1), TypeError, "is a list, expected an array"),
    ("overlap", lambda p: p.add_one[1, 1](F4[:2].view("i4"), F4[1:3].view("i4")), ValueError, "overlaps argument 1"),
    ("a float", lambda p: p.beyond[1, 1](F4, 1.0), TypeError, "argument 2 .int.: is a float, expected a number"),
    ("too large", lambda p: p.beyond[1, 1](F4, 2**31), OverflowError, "which int32 does not hold"),
    ("a tensor map", lambda p: p.pointers[1, 1](None, b""), TypeError, "CUtensorMap.: cannot be given from Python"),
    ("pointers", lambda p: p.pointers[1, 1](F4, b""), TypeError, "only None can be given"),
    ("a template", lambda p: p.attention[1, 1](), TypeError, "attention: is a template, or there are several"),
    ("an overload", lambda p: p.both[1, 1](None), TypeError, "both: is a template, or there are several"),
    ("no launch", lambda p: p.beyond(F4, 1), TypeError, r"beyond: is a kernel, launch it: beyond\[grid, block\]"),
    ("grid alone", lambda p: p.beyond[1], TypeError, r"a launch is kernel\[grid, block\]"),
    ("extents", lambda p: p.beyond[(1, 1, 1, 1), 1], ValueError, "grid: has 4 extents"),
    ("an extent", lambda p: p.beyond[1, 1.5], TypeError, "block: is a float"),
    ("no kernel", lambda p: p.nothing, AttributeError, "has no kernel nothing"),
    ("no name", lambda p: p['"'], ValueError, "expected such as 'kernel<64, true>'"),
]


@pytest.mark.parametrize(("call", "error", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_wrong_use(program: flashsteps.Program, call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(program)


def test_names_that_come_late(program: flashsteps.Program) -> None:
    program.count[1, 1](np.zeros(1, np.int32))
    with pytest.raises(RuntimeError, match="'atention' was not declared|‘atention’ was not declared"):
        program["atention<64, true>"][1, 1]()
    program.count[1, 1](np.zeros(1, np.int32))  # as before
    out = np.zeros(1, np.int32)
    with pytest.warns(RuntimeWarning, match="starts anew.*to have static_cast"):
        program["static_cast<void (*)(int*)>(both)"][1, 1](out)


def test_files_that_cannot_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file nothing\.cu"):
        flashsteps.emulate("nothing.cu")
    file = tmp_path / "my.cu"
    file.write_text('__global__ void f() {\n  asm("vadd 0;");\n}\n')
    with pytest.raises(RuntimeError, match=r"my\.cu:2: PTX: the emulator does not know `vadd 0`"):
        flashsteps.emulate(file)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"g\+\+ cannot be run"):
        flashsteps.emulate(file)


def test_what_the_page_shows() -> None:
    page = (ROOT / "docs" / "emulate.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Exception ignored" not in done.stderr
    assert re.search(r"\n.*EmulatorError: reverse: block .* race .*missing_barrier\.cu:9", done.stderr), done.stderr
