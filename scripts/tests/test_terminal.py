"""What others have written into a file or into its name does not command the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import make_record

from measure import compare_peers, profile_ncu
from pages import report
from records import results
from records.terminal import printable
from steps import step_diff

ESCAPE = "\x1b[31m"


def test_control_characters_are_spelled_out():
    assert printable(f"é↓ {ESCAPE}\n\x9b\x7f\ud800") == "é↓ \\x1b[31m\\n\\x9b\\x7f\\ud800"


@pytest.mark.parametrize("where", ["name", "key", "step", "text"])
@pytest.mark.parametrize("script", [results, report])
def test_a_file_of_others(script, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = make_record()
    step = record["runs"][0]["steps"][0]
    if where == "key":
        record[ESCAPE] = 1
    elif where == "step":
        step["step"] += ESCAPE
    elif where == "text":
        step["status"] = ESCAPE
    path = tmp_path / (f"{ESCAPE}.json" if where == "name" else "r.json")
    path.write_text(json.dumps(record), encoding="utf-8")
    arguments = ["check", str(path)] if script is results else [str(path), "--out", str(tmp_path / "out")]
    status = script.main(arguments)
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert status == (0 if where == "name" else 1)
    assert printed.count("\n") == (0 if script is report and status == 0 else 1)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [(profile_ncu, ["v01", "--build", ESCAPE]), (compare_peers, ["v01", "--peers", ESCAPE])],
)
def test_an_argument(script, arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert script.main(arguments) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and "\\x1b[31m" in printed


def test_a_name_that_is_no_step(capsys: pytest.CaptureFixture[str]):
    assert step_diff.main([ESCAPE, "v01"]) == 2
    assert capsys.readouterr().err == "step_diff.py: there is no step '\\x1b[31m' under steps/\n"
