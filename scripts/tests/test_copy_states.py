from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree
from pathlib import Path

import pytest
from conftest import make_tool

from draw import copy_states

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


class Mbarrier:
    """As PTX has it: a phase is over when no arrival is pending and tx-count is zero."""

    def __init__(self, arrivals: int):
        self.arrivals = self.missing = arrivals
        self.phase = self.tx = 0
        self.states: list[dict] = []
        self.note(f"mbarrier_init(bar, {arrivals})")

    def note(self, event: str) -> None:
        if self.missing == self.tx == 0:
            self.phase, self.missing = self.phase + 1, self.arrivals
        state = {"event": event, "phase": self.phase, "arrivals": self.arrivals, "missing": self.missing}
        self.states.append({**state, "bytes": self.tx, "passes": [self.phase % 2 != p for p in (0, 1)]})

    def arrive(self, count: int = 0) -> None:
        self.missing, self.tx = self.missing - 1, self.tx + count
        self.note(f"mbarrier_arrive_expect_tx(bar, {count})" if count else "mbarrier_arrive(bar)")

    def copied(self) -> None:
        self.tx -= 1024
        self.note("a copy of 1024 bytes is done")


def model() -> dict:
    """What build/ci/tools/copy_states prints."""
    first, last, four, many = (Mbarrier(arrivals) for arrivals in (1, 1, 4, 1))
    for _ in range(2):
        first.arrive(2048), first.copied(), first.copied()
    last.copied(), last.copied(), last.arrive(2048)
    for _ in range(4):
        four.arrive()
    for _ in range(5):
        many.arrive()
    places = [(panel, row, chunk) for panel in range(2) for row in range(8) for chunk in range(8)]
    chunks = [[8 + row, 8 * panel + (chunk ^ row)] if row < 5 else None for panel, row, chunk in places]
    box = {"size": [64, 13, 2, 2, 1], "stride": [2, 256, 128, 3328, 16], "box": [64, 8, 2, 1, 1]}
    box.update(origin=[0, 8, 0, 0, 0], counted_bytes=2048, chunks=chunks)
    lives = {"announced_first": first.states, "announced_last": last.states, "four_arrivals": four.states}
    return {"box": box, "lives": lives, "answers": [state["passes"] for state in many.states]}


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return make_tool(tmp_path, model())


def draw(tool: Path, folder: Path) -> None:
    assert copy_states.main([str(tool), "--out", str(folder)]) == 0


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    draw(make_tool(folder, model()), folder / "out")
    return folder / "out"


@pytest.fixture
def drawn(drawn_once: Path, tmp_path: Path) -> Path:
    """A folder with all pictures, which are up to date."""
    return shutil.copytree(drawn_once, tmp_path / "out")


def check(tool: Path, folder: Path, capsys) -> str:
    status = copy_states.main([str(tool), "--check", str(folder)])
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return said.err


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]+)</text>", svg)


def test_the_pictures_show_what_the_tool_says(drawn: Path):
    pictures = {path.name: path.read_text(encoding="utf-8") for path in drawn.iterdir()}
    assert set(pictures) == set(copy_states.PICTURES)
    for text in pictures.values():
        xml.etree.ElementTree.fromstring(text)
        assert len(text.encode()) <= 300_000 and "<dc:date>" not in text
    in_box = texts(pictures["copies_box.svg"])
    for row in range(8, 13):
        for chunk in range(16):
            assert in_box.count(f"{row}:{chunk}") == 1
    assert in_box.count("0") >= 48 and "13:0" not in in_box
    in_life = texts(pictures["copies_mbarrier.svg"])
    assert in_life.count("passes") == in_life.count("waits") == 16
    assert in_life.count("2048") == 2 and in_life.count("\u22122048") == 1
    assert in_life.count("phase 0 ends") == 3 and in_life.count("phase 1 ends") == 1


def test_wrong_answers_are_those_of_another_phase(drawn: Path, tmp_path: Path, monkeypatch):
    picture = drawn / "copies_parity.svg"
    words = texts(picture.read_text(encoding="utf-8"))
    assert words.count("too early") == 4 and words.count("for ever?") == 9
    # Were every wait answered for the phase that it is meant for, none would be wrong.
    data = model()
    data["answers"] = [[True, True]] * 6
    monkeypatch.setattr(copy_states, "PICTURES", {picture.name: copy_states.PICTURES[picture.name]})
    draw(make_tool(tmp_path, data), drawn)
    words = texts(picture.read_text(encoding="utf-8"))
    assert words.count("too early") == 10 and words.count("for ever?") == 0


def test_pictures_of_other_states_are_stale(tool: Path, tmp_path: Path, drawn: Path, capsys):
    assert check(tool, drawn, capsys) == ""
    other = model()
    other["answers"].append([False, True])
    make_tool(tmp_path, other)
    assert check(tool, drawn, capsys).count("is stale") == len(copy_states.PICTURES)


def broken(name: str) -> object:
    data = model()
    if name == "a chunk twice":
        data["box"]["chunks"][0] = data["box"]["chunks"][1]
    elif name == "rows beyond the tensor":
        data["box"]["chunks"] = [chunk or [13, 0] for chunk in data["box"]["chunks"]]
    elif name == "no answers":
        data["answers"] = []
    elif name == "a life that is missing":
        del data["lives"]["announced_last"]
    elif name == "a life without states":
        data["lives"]["four_arrivals"] = []
    elif name == "another field":
        data["lives"]["four_arrivals"][0]["parity"] = 1
    else:
        return []
    return data


@pytest.mark.parametrize(
    "name",
    [
        "a chunk twice",
        "rows beyond the tensor",
        "no answers",
        "a life that is missing",
        "a life without states",
        "another field",
        "a list",
    ],
)
def test_what_says_nothing_about_copies_is_one_line(tmp_path: Path, capsys, name):
    tool = make_tool(tmp_path, broken(name))
    assert copy_states.main([str(tool), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("copy_states.py: ") and message.count("\n") == 1
    assert not (tmp_path / "out").exists()
