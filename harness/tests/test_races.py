"""The gallery of docs/races: each program has a race, which the emulator names with its two lines in every mode; its
mended twin is right and silent. And the page quotes what the emulator says."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from test_program import FLASHSTEPS, PATIENCE, ROOT

from measure import races  # in scripts/, which test_program adds to the path

MODES = ["--mode", "early", "--mode", "late", "--mode", "random", "--seeds", "2"]
QUOTED = json.loads((races.FOLDER / "emulator.json").read_text(encoding="utf-8"))["programs"]
FOUND = [name for name, report in QUOTED.items() if report]


def emulate(name: str, *options: str) -> tuple[int, str, list[list[str]]]:
    """Its exit status, what it prints, and what is found in each mode."""
    command = [str(FLASHSTEPS), "emulate", f"docs/races/{name}.cu", *MODES, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    findings: list[list[str]] = []
    for number, finding in re.findall(r"^flashsteps: finding (\d+): (.*)", done.stderr, re.MULTILINE):
        findings += [[]] if number == "1" else []
        findings[-1].append(finding)
    return done.returncode, done.stdout, findings


def without_luck(report: str) -> str:
    """Which thread and which CTA comes first, and where memory is, may differ."""
    return re.sub(r"\(\d+, 0, 0\)|\b(warp|lane|CTA number) \d+|0x[0-9a-f…]+", "…", report)


def test_all_programs_are_in_the_gallery() -> None:
    assert list(QUOTED) == races.programs() and len(FOUND) >= 12
    page = (races.FOLDER / "README.md").read_text(encoding="utf-8")
    for name in QUOTED:
        assert f"<!-- generated: race program={name} -->" in page
        text = (races.FOLDER / f"{name}.cu").read_text(encoding="utf-8")
        assert text.count("#ifdef MENDED") == 1 and len(text.splitlines()) <= 60


@pytest.mark.parametrize("name", FOUND)
def test_the_race_is_named_with_its_two_lines_in_every_mode(name: str) -> None:
    status, _, findings = emulate(name)
    assert status == 1 and len(findings) == 4
    lines = races.two_lines(name)
    assert len(lines) == (1 if name == "cluster_exit" else 2)  # that a CTA exits has no line
    for first, *_ in findings:
        assert all(re.search(rf"\b{name}\.cu:{line}\b", first) for line in lines), first
    assert without_luck(findings[0][0]) == without_luck(QUOTED[name])


@pytest.mark.parametrize("name", QUOTED)
def test_the_mended_twin_is_right_and_silent(name: str) -> None:
    status, printed, findings = emulate(name, "-D", "MENDED")
    assert (status, findings) == (0, []) and re.findall(r"^(?!mode ).+", printed, re.MULTILINE) == ["ok"] * 4
