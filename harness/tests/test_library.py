"""The installed C++ library and the emulator: their CMake package, its examples, and what it shows to other programs.

Installs from a test build; FLASHSTEPS_BUILD names its folder (build/ci by default)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_program import BUILD, PATIENCE, ROOT

pytestmark = pytest.mark.xdist_group("library")  # of which one installation is enough


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("prefix dir")
    run("cmake", "--install", BUILD, "--component", "library", "--prefix", prefix)
    return prefix


def library_of(prefix: Path) -> Path:
    (library,) = prefix.rglob("libflashsteps.so")
    return library


def test_only_headers_libraries_package_and_tool_are_installed(installed: Path) -> None:
    files = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    files = {re.sub(r"^lib(64)?/([a-z0-9_]+-linux-gnu/)?", "lib/", name) for name in files}
    headers = {name for name in files if name.startswith("include/flashsteps/")}
    assert {"include/flashsteps/flashsteps.h", "include/flashsteps/common/call.h"} <= headers
    assert not [name for name in headers if re.search(r"[.](cpp|cmake|sh|txt)$|/tests/|/common/cuda/", name)]
    rest = r"lib/(libflashsteps\.so|libflashsteps_emulator\.a|cmake/flashsteps/flashsteps-)|libexec/flashsteps/flashsteps_"
    assert all(re.match(rest, name) for name in files - headers), files - headers


def test_the_examples_build_and_run_against_the_package(installed: Path, tmp_path: Path) -> None:
    # A copy, so that nothing of this tree can be found by accident.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "harness" / "examples", source)
    run("cmake", "-G", "Ninja", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}",
        "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
    run("cmake", "--build", tmp_path / "build")
    out = run(tmp_path / "build" / "attention")
    numbers = dict(re.findall(r"(\w+)\[0\] (-?[\d.]+)", out))
    assert out.startswith("v02_smem_tiles on the "), out  # of the two steps with fp32 the faster one
    assert numbers["o"] == numbers["v"] and float(numbers["v"]) != 0, out

    # The CUDA file on the emulator: a header that changes has it compiled again, and a finding fails its tests.
    assert "100% tests passed, 0 tests failed out of 3" in run("ctest", "--test-dir", tmp_path / "build")
    kernel = source / "reverse.cu"
    kernel.write_text('#include "barrier.h"\n' + kernel.read_text().replace("__syncthreads();", "BARRIER"))
    for barrier, status in (("__syncthreads();", 0), ("", 1)):
        (source / "barrier.h").write_text(f"#define BARRIER {barrier}\n")
        run("cmake", "--build", tmp_path / "build")
        assert "no work to do" in run("cmake", "--build", tmp_path / "build")
        done = subprocess.run([tmp_path / "build" / "reverse"], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, "is not ordered after the" in done.stderr) == (status, status == 1), done.stderr


def test_other_programs_see_the_functions_of_the_header_and_nothing_else(installed: Path) -> None:
    # Above all not the CUDA runtime inside: a program's own must not be mistaken for it.
    symbols = run("nm", "-DC", "--defined-only", library_of(installed))
    names = {re.match(r"\w+ \w (?:flashsteps::)?([\w:]+)", line).group(1) for line in symbols.splitlines()}
    header = (ROOT / "harness" / "include" / "flashsteps.h").read_text()
    declared = set(re.findall(r"^(?!inline)[\w:<>]+ (\w+)\(", header, re.MULTILINE))
    assert declared == names and "attention" in names


def test_it_can_be_loaded_late(installed: Path) -> None:
    # dlopen() has about 1.6 KB left for the thread-local variables of all libraries that ask for fast ones, as the
    # emulator does.
    headers = run("readelf", "-lW", library_of(installed))
    size = int(re.search(r"^ *TLS( +0x\w+){4} +(0x\w+)", headers, re.MULTILINE).group(2), 16)
    assert 0 < size <= 512, size


def test_a_caller_of_another_version_is_refused(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(flashsteps 0.2 REQUIRED)\n"
    )
    done = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_PREFIX_PATH={installed}"],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0 and "0.1.0" in done.stderr
