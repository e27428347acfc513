"""Inline PTX: the table of instructions, the functions that carry them out, and the page that lists them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from test_program import FLASHSTEPS, ROOT, run

PRINT_ALL = """
#include <iostream>
#include "harness/emulate/ptx.h"
int main() {
  for (const auto pattern : flashsteps::known_ptx()) std::cout << pattern << '\\n';
  std::cout << '\\n';
  for (const auto& name : flashsteps::ptx_functions()) std::cout << name << '\\n';
}
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The patterns of opcodes, and the names of the functions."""
    folder = tmp_path_factory.mktemp("ptx")
    (folder / "print_all.cpp").write_text(PRINT_ALL)
    sources = [str(folder / "print_all.cpp"), str(ROOT / "harness/emulate/ptx.cpp")]
    subprocess.run(["g++", "-std=c++20", f"-I{ROOT}", *sources, "-o", str(folder / "print_all")], check=True)
    printed = subprocess.run([str(folder / "print_all")], check=True, capture_output=True, text=True).stdout
    patterns, functions = printed.split("\n\n")
    return patterns.splitlines(), functions.splitlines()


def test_every_instruction_has_its_function(known: tuple[list[str], list[str]], tmp_path: Path) -> None:
    using = "".join(f"using ::emulator::ptx::{name};\n" for name in known[1])
    (tmp_path / "all.cu").write_text(f"{using}int main() {{}}\n")
    done = run(FLASHSTEPS, "emulate", str(tmp_path / "all.cu"))
    assert done.returncode == 0, done.stderr


def families(pattern: str) -> list[str]:
    """Of "(min|max).f32", min and max; of "cp.async.<...>", cp.async."""
    for prefix in ("cp.async.bulk", "cp.reduce.async.bulk", "cp.async"):
        if pattern.startswith(prefix):
            return [prefix]
    choice = re.match(r"\(([^)]*)\)", pattern)
    words = choice.group(1).split("|") if choice else [pattern]
    return [re.match(r"[a-z0-9_]+", word).group() for word in words]


def test_the_page_lists_what_is_known(known: tuple[list[str], list[str]]) -> None:
    page = (ROOT / "docs/emulate.md").read_text()
    (table,) = re.findall(r"^\| instructions \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    first_cells = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    listed = [word for cell in first_cells for word in re.findall(r"`([^`]*)`", cell)]
    assert sorted(listed) == sorted({family for pattern in known[0] for family in families(pattern)})
