"""What others have written into a file or into its name does not command the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import make_record

from measure import profile_ncu
from pages import report
from records import results
from records.terminal import printable
from steps import step_diff

ESCAPE = "\x1b[31m"


def test_control_characters_are_spelled_out():
    assert printable(f"é↓ {ESCAPE}\n\x9b\x7f\ud800") == "é↓ \\x1b[31m\\n\\x9b\\x7f\\ud800"


@pytest.mark.parametrize("script", [results, report])
def test_a_file_of_others(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record, path = make_record(), tmp_path / f"{ESCAPE}.json"
    record["runs"][0]["steps"][0] |= {"step": f"v01{ESCAPE}", "status": ESCAPE}
    for data in (record, make_record() | {ESCAPE: 1}):
        path.write_text(json.dumps(data), encoding="utf-8")
        arguments = ["check", str(path)] if script is results else [str(path), "--out", str(tmp_path / "out")]
        assert script.main(arguments) == 1
        printed = "".join(capsys.readouterr())
        assert "\x1b" not in printed and "\\x1b[31m" in printed


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (profile_ncu, ["v01", "--build", ESCAPE]),
        (step_diff, [ESCAPE, "v01"]),
    ],
)
def test_an_argument(script, arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert script.main(arguments) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and "\\x1b[31m" in printed
