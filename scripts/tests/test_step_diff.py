from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import SCRIPTS, Repository

from steps import sources, step_diff

OLD = "// one\nint a = 1;  // first\n\nint b = 2;\nint c = 3;\nint d = 4;\n"
NEW = "// two\nint a = 1;  // initial\nint b = 2;\nint c = 33;\nint d = 4;\n"


@pytest.fixture
def pair(repository: Repository) -> Repository:
    repository.write("steps/v01_scalar/kernel.cu", OLD)
    repository.write("steps/v02_smem_tiles/kernel.cu", NEW)
    return repository


def test_the_diff_as_it_is(pair: Repository):
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles", pair.root)
    assert lines[:3] == [
        "--- steps/v01_scalar/kernel.cu",
        "+++ steps/v02_smem_tiles/kernel.cu",
        "@@ -1,6 +1,5 @@",
    ]
    assert "-// one" in lines and "+// two" in lines and "+int c = 33;" in lines
    assert (added, removed) == (3, 4)


def test_brief_is_about_code_only(pair: Repository):
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles", pair.root, brief=True)
    assert lines[2:] == ["@@ -4 +3 @@", " int b = 2;", "-int c = 3;", "+int c = 33;", " int d = 4;"]
    assert (added, removed) == (1, 1)


def test_equal_steps_have_no_hunk(pair: Repository):
    lines, added, removed = step_diff.diff("v01_scalar", "v01_scalar", pair.root)
    assert len(lines) == 2 and added == removed == 0


def test_a_prefix_is_enough(pair: Repository, capsys):
    assert step_diff.main(["v01", "v02", "--brief", "--root", str(pair.root)]) == 0
    assert capsys.readouterr().out.endswith("1 lines added, 1 removed\n")


@pytest.mark.parametrize(
    ("name", "expected"), [("v09", "there is no step 'v09'"), ("v0", "'v0' may be v01_scalar or")]
)
def test_a_step_that_is_not_there(pair: Repository, capsys, name, expected):
    assert step_diff.main([name, "v02", "--root", str(pair.root)]) == 2
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1


def test_steps_come_in_order(pair: Repository):
    pair.write("steps/v10_last/kernel.cu", "")
    pair.write("steps/notes/README.md", "")
    assert sources.all_steps(pair.root) == ["v01_scalar", "v02_smem_tiles", "v03_wmma", "v10_last"]


def test_a_reader_that_has_seen_enough_is_no_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, SCRIPTS / "steps" / "step_diff.py", "v01", "v02"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert done.stderr == b""
