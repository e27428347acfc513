from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from conftest import SCRIPTS, edited, make_tool

from draw import drawings, figure_style, fragment_layouts

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


def ptx_mapping() -> fragment_layouts.Mapping:
    """Written out from the PTX ISA: groupID is lane / 4, threadID_in_group lane % 4."""

    def lanes(elements, position):
        return [[position(lane // 4, lane % 4, i) for i in range(elements)] for lane in range(32)]

    return {
        "ldmatrix": lanes(2, lambda group, thread, i: (group, 2 * thread + i)),
        "ldmatrix_trans": lanes(2, lambda group, thread, i: (2 * thread + i, group)),
        "mma_a": lanes(
            8,
            lambda group, thread, i: (
                group if i < 2 or 4 <= i < 6 else group + 8,
                thread * 2 + (i & 1) + (0 if i < 4 else 8),
            ),
        ),
        "mma_b": lanes(4, lambda group, thread, i: (thread * 2 + (i & 1) + (0 if i < 2 else 8), group)),
        "mma_c": lanes(4, lambda group, thread, i: (group if i < 2 else group + 8, thread * 2 + (i & 1))),
    }


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return make_tool(tmp_path, ptx_mapping())


def pictures_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    assert fragment_layouts.main([str(make_tool(folder, ptx_mapping())), "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def drawn(drawn_once: Path, tmp_path: Path) -> Path:
    """A folder with all pictures, which are up to date."""
    return shutil.copytree(drawn_once, tmp_path / "out")


def check(tool: Path, folder: Path, capsys) -> str:
    status = fragment_layouts.main([str(tool), "--check", str(folder)])
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return said.err


def test_every_picture_is_an_svg_of_its_own(drawn: Path):
    pictures = pictures_in(drawn)
    assert set(pictures) == set(fragment_layouts.PICTURES)
    for text in pictures.values():
        xml.etree.ElementTree.fromstring(text)
        assert len(text.encode()) <= 300_000 and "<dc:date>" not in text
    mma, quads = pictures["fragments_mma.svg"], pictures["fragments_quads.svg"]
    for lane in range(32):
        # Four registers of A, two of B, two pairs of acc; one lane's are named instead.
        assert mma.count(f">T{lane}<") == (0 if lane == fragment_layouts.LANE else 8)
        assert f">T{lane}<" in pictures["fragments_ldmatrix.svg"]
        assert quads.count(f">T{lane}<") == (8 if lane // 4 == 1 else 0)  # row 1, four blocks in each of two warps
    for name in (*(f"a[{i}]" for i in range(4)), "b[0]", "b[1]", "acc[0,1]", "acc[2,3]"):
        assert mma.count(f">{name}<") == (2 if name in ("a[2]", "a[3]") else 1)  # in the legend, too
    assert "1,024 bytes per tile" in quads


def test_the_same_bytes_every_time(tool: Path, tmp_path: Path, drawn: Path):
    """Also from another process, with another home and configuration of matplotlib's."""
    home = tmp_path / "home"
    (home / ".config/matplotlib").mkdir(parents=True)
    (home / ".config/matplotlib/matplotlibrc").write_text("font.size: 30\n")
    command = [sys.executable, str(SCRIPTS / "draw" / "fragment_layouts.py"), str(tool)]
    command += ["--out", str(tmp_path / "again")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "Asia/Tokyo"}
    subprocess.run(command, check=True, env=environment, cwd="/")
    assert pictures_in(tmp_path / "again") == pictures_in(drawn)


def test_fresh_pictures_are_up_to_date(tool: Path, drawn: Path, capsys):
    assert check(tool, drawn, capsys) == ""


def test_pictures_of_another_mapping_are_stale(tool: Path, tmp_path: Path, drawn: Path, capsys):
    other = ptx_mapping()
    other["mma_b"][6], other["mma_b"][7] = other["mma_b"][7], other["mma_b"][6]
    make_tool(tmp_path, other)
    assert check(tool, drawn, capsys).count("is stale") == len(fragment_layouts.PICTURES)


def test_pictures_of_another_script_are_stale(tool: Path, tmp_path: Path, drawn: Path, capsys, monkeypatch):
    for module in (fragment_layouts, drawings, figure_style):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__file__", edited(module, tmp_path))
            assert "is stale" in check(tool, drawn, capsys)


def test_missing_and_foreign_pictures(tool: Path, drawn: Path, capsys):
    (drawn / "fragments_mma.svg").unlink()
    (drawn / "fragments_ldmatrix.svg").write_text("<svg/>", encoding="utf-8")
    errors = check(tool, drawn, capsys)
    assert "is missing" in errors and "was not made by" in errors and errors.count("\n") == 2


def broken(name: str) -> object:
    mapping = ptx_mapping()
    if name == "an element twice":
        mapping["mma_a"][3][0] = mapping["mma_a"][4][0]
    elif name == "a lane too few":
        mapping["ldmatrix"].pop()
    elif name == "no B":
        del mapping["mma_b"]
    else:
        return []
    return mapping


@pytest.mark.parametrize("name", ["an element twice", "a lane too few", "no B", "a list"])
def test_what_is_no_mapping_is_one_line(tmp_path: Path, capsys, name):
    tool = make_tool(tmp_path, broken(name))
    assert fragment_layouts.main([str(tool), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("fragment_layouts.py: ") and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_no_tool_is_one_line(tmp_path: Path, capsys):
    assert fragment_layouts.main([str(tmp_path / "none"), "--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_picture_that_is_too_large_is_refused(tool: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(drawings, "MAX_BYTES", 1000)
    assert fragment_layouts.main([str(tool), "--out", str(tmp_path / "out")]) == 1
    assert "1000 are allowed" in capsys.readouterr().err


@pytest.mark.parametrize("operand", ["q", "k", "p", "v"])
def test_the_drawn_loads_give_the_operands_that_the_products_want(operand):
    """ldmatrix of the drawn blocks, plain or .trans as drawn, puts every element where mma.sync wants it."""
    mapping = ptx_mapping()
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
