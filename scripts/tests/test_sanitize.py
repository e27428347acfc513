"""sanitize.py reads the sanitizer's closing line, and only a line that says zero counts as clean."""

from __future__ import annotations

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




def test_what_memcheck_left_out_is_said() -> None:
    said = "91 of 108 problems of the covering sample, 17 skipped (needs 16.0 GiB on the device)"
    assert sanitize.what_passed(f"PASS  v01_scalar  {said}, 1 s\n") == said
    assert sanitize.what_passed("PASS  v01_scalar  a problem\n" * 2) == "2 problems passed"
