"""docs/cuda_on_the_emulator.md: what its tables call supported compiles, runs and gives what they say; what they
call unsupported stops with one error, the sentence that they quote. And nothing that the emulator refuses is missing
there.

Compiles with the flags of a test build; FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_program import BUILD, ROOT

PAGE = ROOT / "docs" / "cuda_on_the_emulator.md"
EMULATOR = ROOT / "common" / "emulator"
UNSUPPORTED = EMULATOR / "unsupported.h"
WRAP = EMULATOR / "wrap_kernel.cmake"

BEFORE_KERNELS = """
#include "common/launch.h"
using namespace flashsteps;
#include <cstdio>
template <typename T>
__device__ double number(T value) {
  if constexpr (std::is_arithmetic_v<T>) return double(value); else return double(float(value));
}
"""
CONTEXT = """
  const int lane = threadIdx.x;
  const float f = 2;
  const __half h = f;
  const __half2 h2 = __floats2half2_rn(1, 2);
  const __nv_bfloat16 b = f;
  const __nv_bfloat162 b2 = __floats2bfloat162_rn(1, 2);
  float* const p = in + lane;
  *p = 2;
  int* const n = reinterpret_cast<int*>(smem) + lane;
  unsigned* const u = reinterpret_cast<unsigned*>(smem) + 32 + lane;
  *n = 0;
  *u = 0;
"""
MAIN = """
#include "common/emulator/emulator.h"
namespace flashsteps {
std::vector<LaunchRecord>*& launch_recorder() {
  static std::vector<LaunchRecord>* none = nullptr;
  return none;
}
}
int main() {
  emulator::options().race_detector = true;
  float* in = static_cast<float*>(emulator::allocate(32 * sizeof(float)));
  launch(page_kernel, 1, 32, 256, nullptr, in);
  return 0;
}
"""


@dataclass
class Row:
    line: int
    code: list[str]
    rest: list[str]  # the other cells


def rows(text: str, begin: str, end: str | None) -> list[Row]:
    """Of all tables between two headings, without the tables' own headings."""
    found = []
    lines = text.splitlines()
    stop = lines.index(end) if end else len(lines)
    for number in range(lines.index(begin), stop):
        line = lines[number]
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        found.append(Row(number + 1, re.findall(r"`([^`]*)`", cells[0]), cells[1:]))
    return found


def plain(cell: str) -> str:
    return cell.replace("\\_", "_")


NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}{os.pathsep}/usr/local/cuda/bin")
CLANG = shutil.which("clang++")
needs_clang = pytest.mark.skipif(CLANG is None, reason="needs clang++")
TEXT = PAGE.read_text(encoding="utf-8")
SUPPORTED = rows(TEXT, "## What there is", "## What there is not")
REFUSED = rows(TEXT, "## What there is not", None)


def compiler() -> list[str]:
    """How a kernel is compiled for the emulator, without its source and output."""
    commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    (command,) = (c for c in commands if c["file"].endswith("/v01_scalar_on_emulator.cpp"))
    words = shlex.split(command["command"])
    words = words[: words.index("-o")]
    return words[1:] if words[0].endswith("ccache") else words


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def supported() -> str:
    """A kernel with everything that the page calls supported."""
    first, kernel, count = [BEFORE_KERNELS], ["__global__ void page_kernel(float* in) {", CONTEXT], 0
    for row in SUPPORTED:
        value = re.fullmatch("`(.*)`", row.rest[0])
        for code in row.code:
            place = f'#line {row.line} "{PAGE.name}"'
            if code.startswith("#include"):
                first.append(f"{place}\n{code}")
            elif re.match(r"__(constant|device|global)__", code):
                first.append(f"{place}\n{code}")
            elif value is None:
                assert code.endswith(";"), f"line {row.line}: `{code}` gives nothing and is no statement"
                kernel.append(f"{place}\n{{ {code} }}")
                count += 1
            else:
                quoted = json.dumps(f"line {row.line}: {code} gives ")
                kernel.append(
                    f"{place}\n{{ const double got = number({code}), wanted = number({value[1]}); "
                    f'if (got != wanted) printf("%s%g in lane %d\\n", {quoted}, got, lane); }}'
                )
                count += 1
    assert count > 80
    return "\n".join([*first, *kernel, "}\n"])


@pytest.mark.parametrize("clang", [False, pytest.param(True, marks=needs_clang)])
def test_what_is_supported_runs_and_gives_what_the_page_says(tmp_path: Path, clang: bool) -> None:
    (tmp_path / "page.cpp").write_text(supported() + MAIN, encoding="utf-8")
    library = BUILD / "common" / "emulator" / "libflashsteps_emulator.a"
    words = compiler()
    if clang:  # its hooks see what gcc's do not
        words = [str(CLANG), *(word for word in words[1:] if not word.startswith(("--param", "-fno-tree-sra")))]
    built = run([*words, "-w", "-o", "page.o", "-c", "page.cpp"], tmp_path)
    assert built.returncode == 0, built.stderr
    # As CMake links: without the option that would add ThreadSanitizer's own runtime.
    linked = run([words[0], "-o", "page", "page.o", str(library), "-lpthread", "-ldl"], tmp_path)
    assert linked.returncode == 0, linked.stderr
    done = run([str(tmp_path / "page")], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lane 31\n" in done.stdout, "printf in a kernel"
    assert [line for line in done.stdout.splitlines() if line.startswith("line ")] == []


LESSON = ROOT / "steps" / "v10_tma_warpspec"
EDITS = re.findall(r"^\| `(.*)` \| (?:`(.*)`|nothing) \| (.*) \|$", (LESSON / "README.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize(("old", "new", "said"), [("PASS", "PASS", "*PASS*"), *EDITS])  # the first: as it is
def test_v10s_toy_says_what_its_lesson_quotes(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert len(EDITS) == 5
    text = (LESSON / "one_mbarrier.cu").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (tmp_path / "toy.cpp").write_text(text.replace(old, new), encoding="utf-8")
    core = BUILD / "harness" / "libflashsteps_core.a"
    emulator = BUILD / "common" / "emulator" / "libflashsteps_emulator.a"
    words = compiler()
    built = run([*words, "-w", "-o", "toy.o", "-c", "toy.cpp"], tmp_path)
    assert built.returncode == 0, built.stderr
    linked = run([words[0], "-o", "toy", "toy.o", str(core), str(emulator), "-lpthread", "-ldl"], tmp_path)
    assert linked.returncode == 0, linked.stderr
    done = run([str(tmp_path / "toy")], tmp_path)
    assert done.returncode == (old != "PASS")
    for quoted in re.findall(r"\*(.*?)\*", said) or ["race on shared memory"]:
        assert quoted in done.stdout, done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_nvcc_takes_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "page.cu").write_text(supported(), encoding="utf-8")
    options = ["-std=c++20", "--expt-relaxed-constexpr", "-w", f"-I{ROOT}", "-arch=sm_90a", "-cubin", "-o", "page.cubin"]
    done = run([str(NVCC), *options, "page.cu"], tmp_path)
    assert done.returncode == 0, done.stderr


def snippets() -> list[tuple[int, str, str]]:
    """The line of a snippet in the test's kernel, the snippet, the sentence that it must give."""
    found = []
    for row in REFUSED:
        found += [(code, plain(row.rest[0])) for code in row.code]
    return [(2 * i + 1, code, sentence) for i, (code, sentence) in enumerate(found)]


def wrapped(tmp_path: Path, text: str) -> str:
    kernel, output = tmp_path / "kernel.cu", tmp_path / "kernel.cpp"
    kernel.write_text(text, encoding="utf-8")
    done = run(["cmake", f"-DKERNEL={kernel}", f"-DOUTPUT={output}", "-P", str(WRAP)], tmp_path)
    assert done.returncode == 0, done.stderr
    return output.read_text(encoding="utf-8")


def errors(stderr: str, name: str) -> dict[int, list[str]]:
    by_line: dict[int, list[str]] = {}
    for line, message in re.findall(rf"{re.escape(name)}:(\d+):\d+: (?:fatal )?error: (.*)", stderr):
        by_line.setdefault(int(line), []).append(message)
    return by_line


def test_what_is_refused_stops_with_the_sentence_that_the_page_quotes(tmp_path: Path) -> None:
    wanted = snippets()
    output = wrapped(tmp_path, "\n\n".join(code for _, code, _ in wanted))
    said = errors(run([*compiler(), "-fsyntax-only", "-c", "kernel.cpp"], tmp_path).stderr, "kernel.cu")
    assert output.count("#error") == len(said) > 5

    # What is C++ as far as the preprocessor is concerned: a function for each.
    lines = [BEFORE_KERNELS, "#include <cooperative_groups.h>", "__constant__ float table[2];"]
    for line, code, _ in wanted:
        if line in said:
            continue
        lines.append(f'#line {line} "page.cu"')
        is_declaration = code.startswith(("__managed__", "__global__"))
        lines.append(code if is_declaration else f"void function_{line}(int lane, float f, float* p) {{ {code} }}")
    (tmp_path / "page.cpp").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run([*compiler(), "-w", "-fsyntax-only", "-c", "page.cpp"], tmp_path)
    by_line = {**said, **errors(done.stderr, "page.cu")}
    # A static_assert is found in the header that has it.
    asserted = re.findall(r"error: static assertion failed: (.*)", done.stderr)
    for line, code, sentence in wanted:
        if sentence in asserted and line not in by_line:
            asserted.remove(sentence)
            assert f"page.cu:{line}:" in done.stderr
            continue
        messages = [message.removeprefix("#error ") for message in by_line.get(line, [])]
        assert messages == [sentence], code
    assert asserted == []


def test_the_page_has_everything_that_is_refused() -> None:
    code = " ".join(code for row in REFUSED for code in row.code)
    names = re.findall(r"^#define (\w+)", UNSUPPORTED.read_text(encoding="utf-8"), re.M)
    assert len(names) > 30
    for name in names:
        assert name.startswith("FLASHSTEPS_") or re.search(rf"\b{name}\b", code), name


@pytest.mark.parametrize(
    "text",
    [
        "// kernel<<<1, 32>>>();",
        "/* extern __shared__ float a[];\n\n kernel<<<1, 32>>>(); */ int x;",
        'const char* text = "<<< \\" <<<";',
        "const char quote = '\"'; const char* text = \"<<<\";",
        "#ifdef __CUDACC__\nvoid f() { kernel<<<1, 32>>>(); }\n#else\nvoid f();\n#endif",
        "#if defined(__CUDACC__)\n#include <cub/cub.cuh>\n#endif",
        'extern "C" void f(float);\nextern template void g<1>();\n__shared__ int x;',
        "__attribute__((__noinline__)) void f();",
        "#include <cuda_fp16.h>\n#include <cooperative_groups/reduce.h>\n#include <cstdio>",
        "constexpr int kMillion = 1'000'000;  // one apostrophe: don't\nint a = 1 << 2, b = a<3;",
        "__shared__ __align__(16) float a[2];\nvoid f() {\n  __shared__ int b;\n  b = 1;\n}",
        "template <int N> void f() { __shared__ float a[N == 2 ? 1 : 2]; }",
        "__device__ float* __mine(float* x);\nint g() { return __mine(0) != nullptr; }",
        "#define __mine(x) (x)\nint g() { return __mine(0) + __builtin_ctz(1); }",
        '#define __other(x) (x)\n// __exp2f(x)\nconst char* text = "__exp2f(x)";',
        "float h(float x) {\n  return __expf(x) + __mulhi(1, 2) + __ldg(&x);\n}",
    ],
)
def test_what_only_looks_like_it_is_left_alone(tmp_path: Path, text: str) -> None:
    assert wrapped(tmp_path, text) == f'#include "{tmp_path / "kernel.cu"}"\n'


@pytest.mark.parametrize(
    "text, line",
    [
        ("// <<<\nkernel<<<1, 32>>>();", 2),
        ("/* <<<\n*/ int x;\nauto f = R; kernel<float>\n<<<1, 32>>>();", 4),
        ("#ifndef __CUDACC__\nint x; kernel<<<1, 32>>>();\n#endif", 2),
        ("#ifdef __CUDACC__\nint x; kernel<<<1, 32>>>();\n#else\nkernel<<<1, 32>>>();\n#endif", 4),
        ('"//"; kernel<<<1, 32>>>();', 1),
        ("extern\n__shared__ __align__(16)\nfloat a[];", 1),
        ("float f(float x) {\n  return __exp2f(x);\n}", 2),
        ("constinit static __shared__ float a[2];", 1),
        ("int x;\n__shared__ float a[2][3]\n= {};", 2),
    ],
)
def test_it_is_found_in_its_line(tmp_path: Path, text: str, line: int) -> None:
    found = re.findall(r"#line (\d+)", wrapped(tmp_path, text))
    assert found == [str(line)]
