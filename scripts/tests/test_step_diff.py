from __future__ import annotations

import pytest
from conftest import Repository

from steps import sources, step_diff

OLD = "// one\nint a = 1;  // first\n\nint b = 2;\nint c = 3;\nint d = 4;\n"
NEW = "// two\nint a = 1;  // initial\nint b = 2;\nint c = 33;\nint d = 4;\n"


@pytest.fixture
def pair(repository: Repository) -> Repository:
    repository.write("steps/v01_scalar/kernel.cu", OLD)
    repository.write("steps/v02_smem_tiles/kernel.cu", NEW)
    return repository


def test_the_diff_as_it_is(pair: Repository):
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles")
    assert lines[:3] == [
        "--- steps/v01_scalar/kernel.cu",
        "+++ steps/v02_smem_tiles/kernel.cu",
        "@@ -1 +1 @@",
    ]
    assert "-// one" in lines and "+// two" in lines and "+int c = 33;" in lines
    assert (added, removed) == (3, 4)


def test_brief_is_about_code_only(pair: Repository):
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles", brief=True)
    assert lines[2:] == ["@@ -4 +3 @@", " int b = 2;", "-int c = 3;", "+int c = 33;", " int d = 4;"]
    assert (added, removed) == (1, 1)


def test_code_that_moves_into_a_block_is_no_difference(pair: Repository):
    helper = "int helper(int x) {\n  x += 1;\n  x *= 2;\n  return x;\n}\n"
    unused = "int unused() { return 0; }\n"
    header = f"// Of v01.\n#pragma once\n\nnamespace flashsteps {{\n\n{helper}\n{unused}}}\n"
    pair.write("common/blocks/helper.h", header)
    kernel = "int main() { return helper(NUMBER); }\n"
    pair.write("steps/v01_scalar/kernel.cu", f"{helper}\n{kernel}")
    pair.write("steps/v02_smem_tiles/kernel.cu", f'#include "common/blocks/helper.h"\n\n{kernel}')
    assert step_diff.diff("v01_scalar", "v02_smem_tiles", brief=True)[1:] == (0, 0)
    # What a block changes is one.
    pair.write("common/blocks/helper.h", f"#pragma once\n{helper.replace('2', '3')}{unused}")
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles", brief=True)
    assert lines[2:] == ["@@ -2 +common/blocks/helper.h:3 @@", "   x += 1;", "-  x *= 2;", "+  x *= 3;", "   return x;"]


def test_lines_that_stand_elsewhere_are_no_difference(pair: Repository):
    a, b = ("".join(f"  {name} += {i};\n" for i in range(count)) for name, count in (("a", 3), ("b", 4)))
    pair.write("steps/v01_scalar/kernel.cu", f"int kernel() {{\n{a}{b}  return 1;\n}}\n")
    indented = "".join(f"  {line}\n" for line in a.splitlines())
    kernel = f"int kernel() {{\n{b}  if (c) {{\n{indented}  }}\n  return 1;\n}}\n"
    pair.write("steps/v02_smem_tiles/kernel.cu", kernel)
    lines, added, removed = step_diff.diff("v01_scalar", "v02_smem_tiles", brief=True)
    assert (added, removed) == (2, 0)
    stays = [f" {line}" for line in indented.splitlines()]
    assert lines[2:] == ["@@ -8 +5 @@", "   b += 3;", "+  if (c) {", *stays, "+  }", "   return 1;"]


def test_a_terminal_shows_colours(pair: Repository, capsys, monkeypatch):
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert step_diff.main(["v01", "v02"]) == 0 and "\x1b[32m+// two\x1b[0m\n" in capsys.readouterr().out


def test_one_step_is_compared_with_the_one_that_it_comes_from(pair: Repository, capsys):
    registration = 'constexpr StepInfo kStep = {.title = "", .after = "AFTER"};\n'
    pair.write("steps/v03_wmma/kernel.cu", registration.replace("AFTER", "v01_scalar"))
    assert step_diff.main(["v03"]) == 0
    assert capsys.readouterr().out.startswith("--- steps/v01_scalar/kernel.cu\n")
    assert step_diff.main(["v02"]) == 0
    assert capsys.readouterr().out.startswith("--- steps/v01_scalar/kernel.cu\n")
    assert sources.after("v01_scalar") is None
    pair.write("steps/v03_wmma/kernel.cu", registration.replace("AFTER", "v04"))
    assert step_diff.main(["v03"]) == 2
    assert "comes after 'v04', which is not under steps/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v09", "there is no step 'v09'; there are v01_scalar, v02"),
        ("v2", "there is no step 'v2'; did you mean v02_smem_tiles?"),
        ("v02_smen", "did you mean v02_smem_tiles?"),
        ("v0", "'v0' may be v01_scalar or"),
    ],
)
def test_a_step_that_is_not_there(pair: Repository, capsys, name, expected):
    assert step_diff.main([name, "v02"]) == 2
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1


def test_steps_come_in_order(pair: Repository):
    pair.write("steps/v10_last/kernel.cu", "")
    pair.write("steps/notes/README.md", "")
    assert sources.all_steps() == ["v01_scalar", "v02_smem_tiles", "v03_wmma", "v10_last"]


def test_the_beginning_of_a_name_means_the_step_and_not_its_variant():
    known = ["v25_clean_loop", "v25_clean_loop_merging", "v27_tile_shapes"]
    assert sources.match_step("v25", known) == "v25_clean_loop" and sources.match_step(known[1], known) == known[1]
