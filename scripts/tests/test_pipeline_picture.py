from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree
from pathlib import Path
from typing import Any, Iterator

import pytest
from conftest import edited

from draw import pipeline_picture

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

TILES = 5


class Trace:
    """Events of a trace file, made up."""

    def __init__(self, warps: int):
        self.events: list[dict[str, Any]] = []
        for warp in range(warps):
            self.name_track(warp, f"warp {warp}")

    def name_track(self, track: int, name: str) -> None:
        self.events.append({"ph": "M", "tid": track, "name": "thread_name", "args": {"name": name}})

    def add(self, track: int, kind: str, name: str, begin: int, end: int, **arguments: Any) -> None:
        arguments["at"] = "kernel.cu:1"
        event = {"tid": track, "cat": kind, "name": name, "ts": begin, "args": arguments}
        self.events.append(
            event | ({"ph": "X", "dur": end - begin} if end > begin else {"ph": "i", "s": "t"})
        )


def producer_and_consumers() -> Trace:
    """v10 with two stages: tile j is there from 100 j, and done with 100 later."""
    trace = Trace(5)
    trace.add(4, "issue", "issue Q tile 0", 0, 1)
    for tile in range(TILES):
        begin, phase = 100 * tile + 200, tile // 2
        for offset, tensor in ((0, "K"), (50, "V")):
            full, empty = (f"bar_{tensor.lower()}_{side}[{tile % 2}]" for side in ("full", "empty"))
            track, asked = 100 + 2 * (tensor == "V") + tile % 2, max(0, begin - 160) + offset
            if tile < 2:
                trace.name_track(track, f"copies of {tensor}")
            if tile >= 2:
                trace.add(4, "wait", f"wait: {empty}", asked - 20, asked, mbarrier=empty, phase=phase - 1)
            trace.add(4, "issue", f"issue {tensor} tile {tile}", asked, asked + 1, mbarrier=full, phase=phase)
            trace.add(
                track, "copy", f"{tensor} tile {tile}", asked, begin + offset, mbarrier=full, phase=phase
            )
            for warp in range(4):
                trace.add(warp, "arrival", f"arrive: {empty}", begin + offset + 40, begin + offset + 40)
                trace.events[-1]["args"] |= {"mbarrier": empty, "phase": phase}
        for warp in range(4):
            trace.add(warp, "products", "S = Q K^T", begin, begin + 40)
            trace.add(warp, "work", "Softmax", begin + 40, begin + 50)
            trace.add(warp, "products", "O = O * row_scale + P V", begin + 50, begin + 90)
    return trace


def in_turns() -> Trace:
    trace = Trace(4)
    for warp in range(4):
        trace.add(warp, "memory", "global memory: Q", 0, 10)
        for tile in range(2):
            begin = 10 + 50 * tile
            trace.add(warp, "wait", "wait: __syncthreads", begin, begin + 5)
            trace.add(warp, "memory", "global memory: K", begin + 5, begin + 15)
            trace.add(warp, "products", "S = Q K^T", begin + 15, begin + 25)
            trace.add(warp, "work", "Softmax", begin + 25, begin + 30)
            trace.add(warp, "memory", "global memory: V", begin + 30, begin + 40)
            trace.add(warp, "products", "O = O * row_scale + P V", begin + 40, begin + 50)
    return trace


def make_program(folder: Path, v10: Any = None, costs: Any = None) -> Path:
    """Stands in for build/ci/flashsteps."""
    for step, *_ in pipeline_picture.TRACED.values():
        trace = (v10 or producer_and_consumers()) if step == "v10_tma_warpspec" else in_turns()
        whole = {"traceEvents": trace.events, "otherData": {"units": costs or {"mma": 8}}}
        (folder / f"{step}.json").write_text(json.dumps(whole), encoding="utf-8")
    program = folder / "flashsteps"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $3 $5" = "trace --shape --json" ] && exec cp "{folder}/$2.json" "$6"\nexit 9\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module", autouse=True)
def without_lessons() -> Iterator[None]:
    """Theirs are traces of the real program, which `make_figures.py --build` draws from."""
    with pytest.MonkeyPatch.context() as patch:
        lessons = ("v09, longer", "v11", "v16", "v17")
        traced = {name: how for name, how in pipeline_picture.TRACED.items() if name not in lessons}
        pictures = {name: how for name, how in pipeline_picture.PICTURES.items() if name.startswith("pipeline_")}
        patch.setattr(pipeline_picture, "TRACED", traced)
        patch.setattr(pipeline_picture, "PICTURES", pictures)
        yield


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return make_program(tmp_path)


def pictures_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    assert pipeline_picture.main([str(make_program(folder)), "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def drawn(drawn_once: Path, tmp_path: Path) -> Path:
    """A folder with all pictures, which are up to date."""
    return shutil.copytree(drawn_once, tmp_path / "out")


def check(program: Path, folder: Path, capsys) -> str:
    status = pipeline_picture.main([str(program), "--check", str(folder)])
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return said.err


def test_every_picture_is_an_svg_with_what_it_is_about(drawn: Path):
    pictures = pictures_in(drawn)
    assert set(pictures) == set(pipeline_picture.PICTURES)
    for text in pictures.values():
        xml.etree.ElementTree.fromstring(text)
        assert len(text.encode()) <= 300_000 and "<dc:date>" not in text and "not measured" in text
    v10, v09 = pictures["pipeline_v10.svg"], pictures["pipeline_v09.svg"]
    for tile in range(TILES):
        assert v10.count(f">S {tile}<") == v10.count(f">PV {tile}<") == 4  # of each consumer
        assert f">copy K {tile}<" in v10 and f">copy V {tile}<" in v10
    assert v10.count(">producer<") == 1 and ">consumer 4<" not in v10
    v04 = pictures["pipeline_v04.svg"]
    assert v04.count(">load K 1<") == v04.count(">PV 1<") == 8 and ">load K 0<" not in v04
    for tile in range(2):
        assert v09.count(f">load K {tile}<") == v09.count(f">PV {tile}<") == 4


def test_fresh_pictures_are_up_to_date_whatever_the_compiler(program: Path, tmp_path: Path, drawn: Path, capsys):
    assert check(program, drawn, capsys) == ""
    other = producer_and_consumers()
    for event in other.events:  # other times, other lines
        if event["ph"] == "X":
            event["dur"] += 1
        event["args"]["at"] = "kernel.cu:2"
    other.add(0, "work", "of an access more", 0, 1)
    make_program(tmp_path, v10=other)
    assert check(program, drawn, capsys) == ""


def change(trace: Trace, what: str) -> None:
    [event] = [e for e in trace.events if e["name"] == "K tile 2"]
    if what == "a name":
        event["name"] = "K tile 7"
    elif what == "a phase":
        event["args"]["phase"] += 1
    elif what == "a kind":
        event["cat"] = "wait"
    elif what == "an order":
        events = [e for e in trace.events if e["tid"] == 4 and e["ph"] != "M"]
        first, last = (trace.events.index(events[i]) for i in (0, -1))
        trace.events[first], trace.events[last] = trace.events[last], trace.events[first]


@pytest.mark.parametrize("what", ["a name", "a phase", "a kind", "an order"])
def test_pictures_of_another_trace_are_stale(program: Path, tmp_path: Path, drawn: Path, capsys, what):
    other = producer_and_consumers()
    change(other, what)
    make_program(tmp_path, v10=other)
    assert check(program, drawn, capsys).count("is stale") == len(pipeline_picture.PICTURES)


def test_pictures_of_other_costs_or_another_script_are_stale(
    program: Path, tmp_path: Path, drawn: Path, capsys, monkeypatch
):
    make_program(tmp_path, costs={"mma": 16})
    assert "is stale" in check(program, drawn, capsys)
    make_program(tmp_path)
    assert check(program, drawn, capsys) == ""
    monkeypatch.setattr(pipeline_picture, "__file__", edited(pipeline_picture, tmp_path))
    assert "is stale" in check(program, drawn, capsys)


def test_a_program_that_traces_nothing_is_one_line(tmp_path: Path, capsys):
    program = tmp_path / "flashsteps"
    for text in (
        "exit 2",
        'echo "flashsteps: no" >&2; exit 2',
        'echo "{}" >"$6"',
        'echo "[" >"$6"',
        "exit 0",
    ):
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
        assert pipeline_picture.main([str(program), "--out", str(tmp_path / "out")]) == 1
        message = capsys.readouterr().err
        assert message.startswith("pipeline_picture.py: ") and message.count("\n") == 1
    assert pipeline_picture.main([str(tmp_path / "none"), "--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "mbarrier,phase,tile",
    [
        ("bar_k_full[0]", 0, "K 0"),
        ("bar_k_full[1]", 0, "K 1"),
        ("bar_v_empty[1]", 1, "V 3"),
        ("bar_q_full", 0, "Q"),
        ("my_barrier", 0, ""),
    ],
)
def test_which_tile_a_phase_is_about(program: Path, mbarrier, phase, tile):
    trace = pipeline_picture.read_trace(program, "v10_tma_warpspec", "1,1,1,64,256,64")
    event = pipeline_picture.Event(0, "wait", "wait", 0, 1, mbarrier, phase)
    assert pipeline_picture.tile_of(trace, event) == tile
