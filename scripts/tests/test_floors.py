"""scripts/ is a house of floors: a room imports from those below it only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import SCRIPTS

FLOORS = ("steps", "records", "measure", "draw", "pages")
MODULES = sorted(path for floor in FLOORS for path in (SCRIPTS / floor).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_module_imports_from_a_floor_above(path: Path):
    text = path.read_text(encoding="utf-8")
    imported = re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)
    above = FLOORS[FLOORS.index(path.parent.name) + 1 :]
    assert [name for name in imported if name in above] == []
    # By its room, or a module would be there twice, with two copies of its state.
    assert [name for name in imported if name in {each.stem for each in MODULES} - {"__init__"}] == []
