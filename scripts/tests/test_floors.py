"""scripts/ is a house of floors: a room imports from those below it only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import SCRIPTS

FLOORS = ("steps", "records", "measure", "draw", "pages")
MODULES = sorted(path for floor in FLOORS for path in (SCRIPTS / floor).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_module_imports_from_a_floor_above(path: Path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    imported += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    rooms = {(name or "").split(".")[0] for name in imported}
    assert rooms.isdisjoint(FLOORS[FLOORS.index(path.parent.name) + 1 :])
    # By its room, or a module would be there twice, with two copies of its state.
    assert rooms.isdisjoint({each.stem for each in MODULES})
