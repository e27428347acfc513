"""The scripts that draw docs/figures/, with the programs of the test build: they draw what lies there, to the byte, and
tell what is stale. That what lies there is up to date: make_figures.py --check --build (scripts/test.sh)."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, SCRIPTS, edited

from draw import drawings, figure_style, fragment_layouts, make_figures, pipeline_picture, sheet

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

KEPT = ROOT / "docs" / "figures"
# The others compute for a while, and are drawn small in test_attention_figures.py.
QUICK = [script for script in make_figures.DRAWINGS if script not in ("attention_maps", "error_analysis")]


def words(svg: str) -> list[str]:
    return re.findall(r">([^<>\n]*[A-Za-z][^<>\n]*)</text>", svg)


@pytest.mark.parametrize("script", QUICK)
def test_what_is_drawn_is_what_lies_there(script: str, tmp_path: Path):
    """Also by another process, with another home and configuration of matplotlib's."""
    home, out = tmp_path / "home", tmp_path / "out"
    (home / ".config/matplotlib").mkdir(parents=True)
    (home / ".config/matplotlib/matplotlibrc").write_text("font.size: 30\n")
    program = [sys.executable, SCRIPTS / "draw" / f"{script}.py", BUILD / make_figures.DRAWINGS[script], "--out", out]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    done = subprocess.run(program, env=environment, cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # so all can be read, too
    assert {path.name for path in out.iterdir()} == set(importlib.import_module(f"draw.{script}").PICTURES)
    for path in out.iterdir():
        drawn, kept = path.read_bytes(), (KEPT / path.name).read_bytes()
        # What a trace takes how long is the compiler's, and so is where its bars begin.
        assert drawn == kept or (script == "pipeline_picture" and words(drawn.decode()) == words(kept.decode())), path


def test_what_is_stale_missing_or_foreign(tmp_path: Path, capsys, monkeypatch):
    folder, tool = shutil.copytree(KEPT, tmp_path / "figures"), BUILD / "tools" / "fragment_layouts"

    def complaints(program: Path = tool) -> str:
        status = fragment_layouts.main([str(program), "--check", str(folder)])
        said = capsys.readouterr().err
        assert status == bool(said)
        return said

    assert complaints() == ""
    for module in (fragment_layouts, drawings, figure_style, sheet):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__file__", edited(module, tmp_path))
            assert complaints().count("is stale") == len(fragment_layouts.PICTURES)
    # Another mapping: two lanes have each other's elements.
    mapping = subprocess.run([tool], capture_output=True, text=True, check=True).stdout
    lanes = re.findall(r"\[\[\d+, ?\d+\](?:, ?\[\d+, ?\d+\])+\]", mapping)
    other = tmp_path / "tool"
    swapped = mapping.replace(lanes[0], "X", 1).replace(lanes[1], lanes[0], 1).replace("X", lanes[1], 1)
    assert swapped != mapping
    other.write_text(f"#!/bin/sh\ncat <<'END'\n{swapped}\nEND\n", encoding="utf-8")
    other.chmod(0o755)
    assert complaints(other).count("is stale") == len(fragment_layouts.PICTURES)
    other.write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    for program in (other, tmp_path / "none"):
        said = complaints(program)
        assert said.startswith(f"fragment_layouts.py: {program}: prints nothing to draw") and said.count("\n") == 1
    (folder / "fragments_mma.svg").unlink()
    (folder / "fragments_ldmatrix.svg").write_text("<svg/>", encoding="utf-8")
    said = complaints()
    assert "is missing" in said and "was not made by" in said and said.count("\n") == 2


def test_a_traced_time_or_line_makes_no_picture_stale_and_what_is_done_does():
    step, *problem = pipeline_picture.TRACED["v10"]
    trace = pipeline_picture.read_trace(BUILD / "flashsteps", step, *problem)
    before = pipeline_picture.doing({"v10": trace})
    at = next(i for i, event in enumerate(trace.events) if event.name == "K tile 2")

    def doing(**changes: object) -> bytes:
        events = [*trace.events]
        events[at] = dataclasses.replace(events[at], **changes)
        return pipeline_picture.doing({"v10": dataclasses.replace(trace, events=events)})

    assert doing(end=trace.events[at].end + 1, at="kernel.cu:2") == before
    for change in ({"name": "K tile 7"}, {"phase": 5}, {"kind": "wait"}):
        assert doing(**change) != before, change


@pytest.mark.parametrize("operand", ["q", "k", "p", "v"])
def test_the_drawn_loads_give_the_operands_that_the_products_want(operand):
    """ldmatrix of the drawn blocks, plain or .trans as drawn, puts every element where mma.sync wants it."""
    mapping, _ = drawings.ask(BUILD / "tools" / "fragment_layouts", fragment_layouts.parse)
    loads = mapping["ldmatrix_trans" if operand == "v" else "ldmatrix"]
    blocks = fragment_layouts.operand_blocks(mapping, operand)
    assert sorted(blocks.values()) == [0, 1, 2, 3]
    for (block_row, block_column), register in blocks.items():
        for lane in range(32):
            for element in range(2):
                row, column = loads[lane][element]
                assert fragment_layouts.stored_position(mapping, operand, lane, register, element) == (
                    8 * block_row + row,
                    8 * block_column + column,
                )
