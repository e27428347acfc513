"""scripts/ and harness/ are houses of floors: a room takes from those below it only."""

from __future__ import annotations

import ast
import re
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


# As harness/CMakeLists.txt tells them; library/ is for other programs.
ROOMS = {name: floor for floor, name in enumerate(("base", "problem", "device", "judge", "run", "emulate", "program"))}
ROOMS["library"] = ROOMS["device"]
HARNESS = SCRIPTS.parent / "harness"


@pytest.mark.parametrize("room", ["common", *ROOMS])
def test_no_source_includes_from_a_room_above(room: str):
    folder = SCRIPTS.parent / "common" if room == "common" else HARNESS / room
    sources = [path for path in folder.rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
    sources = [path for path in sources if "tests" not in path.relative_to(folder).parts]
    assert sources
    for path in sources:
        for included in re.findall(r'#include "harness/(\w+)/', path.read_text(encoding="utf-8")):
            # What programs are promised: the rooms define it.
            assert included == "include" or ROOMS[included] <= ROOMS.get(room, -1), f"{path} includes harness/{included}/"
