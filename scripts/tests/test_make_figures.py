"""What make_figures.py finds. That the figures of this repository are up to date it says itself (scripts/test.sh)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

from draw import make_figures
from draw.drawings import DrawingError
from draw.sheet import Sheet
from steps import sources


def picture(*words: str) -> Sheet:
    sheet = Sheet("A title", 10)
    for row, text in enumerate(words):
        sheet.text(5, 2 + row / 10, text)
    return sheet


def unreadable() -> Sheet:
    raise DrawingError("the program says nothing")


def test_what_is_stale_missing_unreadable_or_left_over(tmp_path: Path, monkeypatch, capsys):
    known = {tmp_path / f"{name}.svg": lambda name=name: picture(name) for name in ("one", "two")}
    monkeypatch.setattr(make_figures, "all_charts", lambda: known)
    assert make_figures.main([]) == 0
    assert make_figures.main(["--check"]) == 0 and make_figures.main(["--check", "t"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 figure(s) up to date"
    known |= {tmp_path / "two.svg": lambda: picture("two", "upon two"), tmp_path / "three.svg": unreadable}
    (tmp_path / "one.svg").rename(tmp_path / "four.svg")
    (tmp_path / "README.md").touch()
    assert make_figures.main(["--check"]) == 1
    assert [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{tmp_path}/four.svg: left over, make_figures.py draws no such figure",
        f"{tmp_path}/one.svg: is missing",
        "two.svg: 'two' overlaps 'upon two'",
        f"{tmp_path}/two.svg: is stale",
        f"{tmp_path}/three.svg: the program says nothing",
    ]


@pytest.mark.parametrize("kept,is_kept", [('x="1.004"', True), ('x="2"', False), ('x="1" y="2"', False)])
def test_how_far_a_picture_may_be_from_what_would_be_drawn(tmp_path: Path, kept: str, is_kept: bool):
    (tmp_path / "a.svg").write_text(f"<text {kept}>1.1</text>", encoding="utf-8")
    assert make_figures.is_as_drawn(tmp_path / "a.svg", b'<text x="1">1.1</text>') == is_kept
    assert not make_figures.is_as_drawn(tmp_path / "a.svg", b'<text x="1">1.2</text>')


def test_every_part_of_the_ladder_has_a_figure():
    parts = {sources.part(step) for step in sources.all_steps() if step[0] == "v"}
    assert parts <= {part for _, part in make_figures.CHARTS}


def test_pages_show_every_figure_with_a_text_for_those_who_do_not_see_it():
    figures = {path for folder in ("figures", "docs/figures") for path in (ROOT / folder).glob("*.[sp][vn]g")}
    shown = set()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("steps/*/README.md")]
    for page in pages:
        for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert len(alternative) > 30 and path in figures, f"{page}: {target}"
            shown.add(path)
    assert shown == figures
