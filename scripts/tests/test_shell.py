"""The two commands, in a checkout whose project is small: what cmake builds there is a link to a program. All else is
real, and the environment is as hostile as those that people have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, SCRIPTS, git

STEPS = ("v01_scalar", "v02_smem_tiles")
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
add_library(compiled OBJECT compiled.cpp)
add_custom_target(flashsteps ALL ${CMAKE_COMMAND} -E create_symlink $ENV{PROGRAM} flashsteps)
"""
SMALL = ["--backend", "emulator", "--shape", "1,1,40,64"]


class Checkout:
    """Its python3 is the one that runs these tests, and so is that of its build/venv. There is no network."""

    def __init__(self, root: Path, program: Path):
        self.root, self.bin = root, root.parent / "bin"
        shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("tests", "__pycache__"))
        for name in ("CMakePresets.json", "docs/results.schema.json", *(f"steps/{step}/kernel.cu" for step in STEPS)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        (root / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        (root / "compiled.cpp").touch()
        self.environment = {**os.environ, "PROGRAM": str(program), "PATH": f"{self.bin}:{os.environ['PATH']}"}
        self.environment["PIP_NO_INDEX"] = "1"
        venv = root / "build" / "venv"
        for python in (self.bin / "python3", venv / "bin" / "python"):
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
            python.chmod(0o755)

    def run(self, *command: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd or self.root, env=self.environment | environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=1800,
        )  # fmt: skip

    def library(self, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs commands after sourcing lib.sh."""
        return self.run("bash", "-c", f"set -euo pipefail; ROOT=$PWD; . scripts/lib.sh; {commands}", **environment)

    def main_job(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "scripts/run.sh", *arguments, **environment)


@pytest.fixture
def checkout(tmp_path: Path, request: pytest.FixtureRequest) -> Checkout:
    folder = getattr(request, "param", "a,b")
    return Checkout(tmp_path / folder / "my checkout", BUILD / "tests" / "flashsteps_fixtures")


@pytest.mark.parametrize("checkout", ["a,b", "a,b $c"], indirect=True)
def test_a_run_in_a_hostile_environment(checkout: Checkout, tmp_path: Path):
    """From another folder, by sh; no home, so that ccache has no place of its own; a notebook's way to draw; another
    repository, as in a git hook; and a path that is hard to quote."""
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    hostile = {"HOME": "/dev/null", "MPLBACKEND": "no such"}
    hostile |= {"GIT_DIR": "/other/.git", "GIT_WORK_TREE": "/other", "PYTHONHOME": "/other", "PYTHONPATH": "/other"}
    script = str(checkout.root / "scripts" / "run.sh")
    command = ["sh", script, "v01_scalar", *SMALL, "--json", "my results.json"]
    done = checkout.run(*command, cwd=elsewhere, CXX="ccache g++", **hostile)
    page = checkout.root / "build/report/index.html"
    assert done.returncode == 0 and "no report" not in done.stderr, done.stdout + done.stderr
    assert done.stdout.endswith(f"results: my results.json\nreport:  {page}\n")
    assert [path.name for path in elsewhere.iterdir()] == ["my results.json"]
    assert "FlashSteps on the CPU emulator" in page.read_text(encoding="utf-8")
    assert "emulator counts" in (page.parent / "progression_1.svg").read_text(encoding="utf-8")
    git(checkout.root, "init", "-q")
    other = {"GIT_DIR": "/other/.git", "GIT_WORK_TREE": "/other"}
    assert checkout.library("git rev-parse --show-toplevel", **other).stdout == f"{checkout.root}\n"


def test_the_exit_status_is_the_programs_and_its_results_are_those_of_this_run(checkout: Checkout, tmp_path: Path):
    done = checkout.main_job("fixture_wrong", "v01_scalar", *SMALL)
    report = checkout.root / "build" / "report"
    assert done.returncode == 1 and "flashsteps exit status 1" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith(f"results: {report}/results.json\nreport:  {report}/index.html\n")
    (report / "mine.json").touch()
    # Moved, it is built from scratch; by way of a link, it is the same build.
    checkout.root = checkout.root.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(checkout.root)
    for script, fresh in (("scripts/run.sh", True), (str(tmp_path / "link/scripts/run.sh"), False)):
        done = checkout.run("bash", script, "--no-such-option")
        assert done.returncode == 2 and "results:" not in done.stdout and "report:" not in done.stdout
        assert ("configuring once more, from scratch\n" in done.stderr) == fresh
    report = checkout.root / "build" / "report"
    assert [path.name for path in report.iterdir() if path.name[0] != "."] == ["mine.json"]


def test_decode_steps_also_run_on_a_problem_of_their_own(tmp_path: Path):
    program, calls = tmp_path / "program", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$*" >>"{calls}"\nexit $(grep -c v28 "{calls}")\n', encoding="utf-8")
    program.chmod(0o755)
    checkout = Checkout(tmp_path / "checkout", program)
    (checkout.root / "steps/v28_split_keys").mkdir()
    shutil.copy(ROOT / "steps/v28_split_keys/kernel.cu", checkout.root / "steps/v28_split_keys")
    report = checkout.root / "build" / "report"
    assert checkout.main_job("--backend", "emulator").returncode == 1  # of the second run
    assert calls.read_text(encoding="utf-8").splitlines() == [
        f"run --json {report}/results.json --backend emulator",
        f"run v28_split_keys --shape 1,8,2,1,1024,64 --json {report}/decode.json --backend emulator",
    ]
    calls.unlink()
    assert checkout.main_job("v01_scalar", *SMALL).returncode == 0
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 1  # the reader has named steps and a problem


def test_without_a_network_another_pythons_packages_draw(checkout: Checkout):
    shutil.rmtree(checkout.root / "build" / "venv")
    done = checkout.main_job("v01_scalar", *SMALL, MPLBACKEND="no such")
    assert done.returncode == 0 and "report:  " in done.stdout, done.stdout + done.stderr
    assert "no Python packages: ERROR: No matching distribution found for " in done.stderr


def test_without_a_compiler_or_ninja_it_is_a_line_each(checkout: Checkout, tmp_path: Path):
    few = tmp_path / "few"
    few.mkdir()
    tools = "bash env dirname readlink cmake git objdump sed sort flock mkdir cat grep id python3"
    for tool in tools.split():
        (few / tool).symlink_to(shutil.which(tool))
    done = checkout.main_job(PATH=str(few))
    missing, cannot = [line for line in done.stderr.splitlines() if line != "continuing without"]
    packages = "g++ ninja-build nlohmann-json3-dev libcli11-dev"
    assert missing == f"missing: {packages} (no apt-get here). Install with: apt-get install -y {packages}"
    assert done.returncode == 1 and cannot == "cannot build: g++ is missing" and "report" not in done.stdout


def test_the_second_of_two_waits(checkout: Checkout):
    script = "set -eu; ROOT=$PWD; . scripts/lib.sh; lock run.sh; echo locked; read -r line; echo $line >>order"

    def start(says: str) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(["bash", "-c", script], cwd=checkout.root, text=True, **pipes)
        assert process.stdout.readline() == says
        return process

    first = start("locked\n")
    second = start(f"another run.sh is running in {checkout.root}: waiting until it ends\n")
    second.stdin.write("second\n")
    second.stdin.flush()
    assert checkout.library("lock test.sh").stderr == ""  # another lock is free; meanwhile the second would go on
    first.communicate("first\n")
    second.communicate()
    assert (checkout.root / "order").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("argument", ["v9", "v0", "--fast"])
def test_what_is_no_step_is_wrong_use(checkout: Checkout, argument: str):
    done = checkout.run("sh", "scripts/test.sh", argument)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert ("usage: " if argument == "--fast" else f"'{argument}' is not the name of one step") in done.stderr


@pytest.mark.parametrize("character", [";", "#", '"', "[", "]", "*", "?", "<", "|", "${"])
def test_a_path_that_cmake_cannot_take_is_a_sentence(tmp_path: Path, character: str):
    source = tmp_path / f"a{character}b"
    source.mkdir()
    shutil.copy(ROOT / "CMakeLists.txt", source)
    done = subprocess.run(["cmake", "-B", "build"], cwd=source, capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert f"CMake cannot build in a folder whose path has '{character}' in it: move or rename {source}" in said
    assert done.returncode == 1 and said.count("CMake Error") == 1
