from __future__ import annotations

import json
from pathlib import Path

import pytest

from draw import data_flow

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


def make_program(folder: Path, passes: int = 0) -> Path:
    """Stands in for build/ci/flashsteps: counts what the script says, and so many passes more for each tile."""
    for step, (moves, rest) in data_flow.MOVES.items():
        for keys in (64, 128):
            tiles = keys // 64
            counters = {
                "shared_requests": 9 + tiles * (rest[0] + sum(move.requests for move in moves)),
                "shared_wavefronts_ideal": 9 + tiles * (rest[1] + sum(move.passes for move in moves) + passes),
            }
            whole = {"runs": [{"steps": [{"counters": counters}]}]}
            (folder / f"{step} 1,1,1,64,{keys},64").write_text(json.dumps(whole), encoding="utf-8")
    program = folder / "flashsteps"
    script = f'#!/bin/sh\n[ "$1 $3 $5" = "count --shape --json" ] && exec cp "{folder}/$2 $4" "$6"\nexit 9\n'
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    return program


def test_arrows_vanish_from_step_to_step(tmp_path: Path, capsys):
    program, out = make_program(tmp_path), tmp_path / "out"
    assert data_flow.main([str(program), "--out", str(out)]) == 0
    assert data_flow.main([str(program), "--check", str(out)]) == 0
    said = {name: (out / f"flow_{name}.svg").read_text(encoding="utf-8").count(" KB<") for name in ("v03", "v07", "v08")}
    assert said == {"v03": 10, "v07": 8 + 4, "v08": 4 + 4}  # an arrow each
    assert capsys.readouterr() == ("", "")


def test_what_is_drawn_must_be_what_the_emulator_counts(tmp_path: Path, capsys):
    assert data_flow.main([str(make_program(tmp_path, passes=1)), "--out", str(tmp_path)]) == 1
    assert "v03_wmma: a tile's requests and passes are" in capsys.readouterr().err
    assert data_flow.main([str(tmp_path / "none"), "--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
