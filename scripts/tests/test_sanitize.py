"""sanitize.py reads the sanitizer's closing line, and only a line that says zero counts as clean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from measure import sanitize

CLEAN = ["ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"]
NOT_CLEAN = [
    "ERROR SUMMARY: 1 error",
    "ERROR SUMMARY: 10 errors",
    "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
    "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 2 warnings)",
]


@pytest.mark.parametrize("line", CLEAN)
def test_zero_is_clean(line: str) -> None:
    assert sanitize.is_clean(sanitize.summary_line(f"PASS  v01_scalar\n========= {line}\n"))


@pytest.mark.parametrize("line", NOT_CLEAN)
def test_anything_else_is_not(line: str) -> None:
    assert not sanitize.is_clean(sanitize.summary_line(f"========= {line}\n"))


def test_without_a_closing_line_nothing_was_checked() -> None:
    assert not sanitize.is_clean(sanitize.summary_line("========= COMPUTE-SANITIZER\nPASS  v01_scalar\n"))


def test_there_are_a_dozen_small_problems() -> None:
    assert len(sanitize.SHAPES) * 2 == 12
    assert all(int(n) <= 200 for shape in sanitize.SHAPES for n in shape.split(",")[:-1])


def test_the_record_says_what_memcheck_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sanitizer that only runs the program, and a program that skips what --memory makes it skip."""
    sanitizer, step, program = tmp_path / "compute-sanitizer", tmp_path / "steps" / "v01_scalar", tmp_path / "flashsteps"
    step.parent.mkdir()
    sanitizer.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Version 1" && exit\nshift 2\n"$@"\n'
                         'echo "========= ERROR SUMMARY: 0 errors"\n')
    step.write_text('#!/bin/sh\ncase "$*" in *--shape*) echo "PASS  v01_scalar  a problem" ;;\n'
                    '"check --backend cuda --memory 1") echo "PASS  v01_scalar  91 of 108 problems of the covering '
                    'sample, 17 skipped (needs 16.0 GiB on the device), 1 s" ;; esac\n')
    program.write_text("#!/bin/sh\n")
    for script in (sanitizer, step, program):
        script.chmod(0o755)
    out = tmp_path / "out.txt"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sys, "argv", ["sanitize.py", "v01_scalar", "--build", str(tmp_path), "--out", str(out)])
    assert sanitize.main() == 0
    memcheck, *others = out.read_text().splitlines()[-4:]
    skipped = "91 of 108 problems of the covering sample, 17 skipped (needs 16.0 GiB on the device); exit 0"
    assert "memcheck   clean" in memcheck and skipped in memcheck
    assert all("; 1 problems passed; exit 0" in line for line in others)
