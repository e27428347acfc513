"""What make_figures.py finds, and that the pictures of lessons say what the lessons say: the texts that they are drawn
from, and the models. That the figures of this repository are up to date make_figures.py says itself (scripts/test.sh)."""

from __future__ import annotations

import heapq
import math
import re
import struct
from itertools import groupby
from pathlib import Path

import pytest
from conftest import BUILD, ROOT

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

from draw import fragment_layouts, ideas, make_figures, memory_layouts
from draw.drawings import DrawingError
from draw.ideas import Row, parse_row
from draw.sheet import Sheet
from steps import sources

# ---- Files


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


def test_every_step_of_the_ladder_is_drawn():
    """Or, if it is for other problems than these two, has a table among the records; or is not recorded yet."""
    drawn = "".join((ROOT / "figures" / name).read_text(encoding="utf-8") for name in ("staircase.svg", "decode.svg"))
    _, few_tiles, _ = re.split(r"## Few tiles of queries|## Few keys", (ROOT / "docs/records.md").read_text(encoding="utf-8"))
    missing = [step for step in sources.all_steps() if sources.lesson(step).is_file() and f">{step.split('_')[0]}<" not in drawn]
    missing = [step for step in missing if f"/steps/{step}/" not in few_tiles]
    assert [step for step in missing if "is not recorded yet" not in sources.lesson(step).read_text(encoding="utf-8")] == []


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


# ---- Lessons


def rows_of(name: str, heading: str = "") -> list[Row]:
    """Those of a step's picture, or of one of its headings."""
    [step] = [step for step in ideas.STEPS.values() if step.startswith(f"{name}_")]
    _, *lines = ideas.source(step).strip().splitlines()
    at, found = "", []
    for line in lines:
        at = line.lstrip("= ") if line[0] == "=" else at
        if line[0] not in "=:>#" and at.startswith(heading):
            found.append(parse_row(line))
    return found


def words(row: Row) -> list[str]:
    return [box.text for box in row.boxes]


# ---- The renderer


def test_a_text_becomes_boxes_arrows_and_words():
    lines = "A title", "= A heading", 'a row | S2"S" -> K*2"1,2" _ -> O"O" | behind', ': x"idle"', "> a note", "# a quote"
    drawn = ideas.draw("\n".join(lines))
    svg = drawn.svg()
    for text in ("A title", "A heading", "a row", "S", "1", "2", "O", "behind", "idle", "a note"):
        assert svg.count(f">{text}<") == 1
    assert svg.count("<path ") == 4 and svg.count("url(#a0)") == 1  # two arrows; a head and a hatching have paths, too
    assert "quote" not in svg and drawn.faults() == []


@pytest.mark.parametrize("row", ['a | S"too long a text" S100', "a | ?2", 'a | S*3"1,2"', "a | Z", 'a | S2"open'])
def test_what_cannot_be_drawn_is_said(row):
    with pytest.raises(DrawingError):
        ideas.draw(f"A title\n{row}")


def test_a_text_that_hides_another_is_a_fault():
    assert ideas.draw('A title\na | !"one mark" .0.1 !"another" S9').faults() == ["'one mark' overlaps 'another'"]


def test_numbers_of_a_kernel_are_quoted_from_it(monkeypatch):
    monkeypatch.setattr(ideas, "source", lambda step: "A title\n# BLOCK_N = 17;\n")
    with pytest.raises(DrawingError, match=r"kernel.cu no longer says 'BLOCK_N = 17;'"):
        ideas.read(None)


# ---- What follows from a rule


def test_the_loads_of_v05_and_v06_are_a_tile():
    for line, size in zip(re.findall(r"^v.*", memory_layouts.WAITS, re.MULTILINE), (2, 16), strict=True):
        row = parse_row(line)
        loads = [box.colour for box in row.boxes].count("K")
        assert loads * size * 128 == 64 * 64 * 2 and f"{loads} loads of {size} bytes" in row.name


def schedule(tiles: list[tuple[int, int]], places: int) -> list[list[tuple[int, int]]]:
    """For each place its tiles (length, head): the place that is free first takes the next tile."""
    free = [(0, place) for place in range(places)]
    found: list[list[tuple[int, int]]] = [[] for _ in free]
    for length, head in tiles:
        end, place = free[0]
        found[place].append((length, head))
        heapq.heapreplace(free, (end + length, place))
    return found


def orders(heads: int, longest: int) -> dict[str, list[tuple[int, int]]]:
    down = range(longest, 0, -1)
    return {
        "v13": [(n, h) for h in range(heads) for n in range(1, longest + 1)],
        "Longest first, head after head": [(n, h) for h in range(heads) for n in down],
        "v14": [(n, h) for n in down for h in range(heads)],
    }


@pytest.mark.parametrize("heads,longest,places,ends", [(64, 32, 264, [149, 148, 129]), (128, 32, 264, [277, 275, 257])])
def test_orders_of_tiles_end_when_v14_says(heads, longest, places, ends):
    plans = [schedule(tiles, places) for tiles in orders(heads, longest).values()]
    assert [max(sum(length for length, _ in place) for place in plan) for plan in plans] == ends


def test_orders_of_tiles_are_drawn_as_they_run():
    for heading, tiles in orders(3, 6).items():
        rows, plan = rows_of("v14", heading), schedule(tiles, 5)
        assert [[(b.length, "abc".index(b.colour)) for b in row.boxes if b.colour != "x"] for row in rows] == plan
        end = max(row.length for row in rows)
        assert all(row.words == f"ends at {end:g}" or row.boxes[-1].colour == "x" for row in rows)
        assert {row.length for row in rows} <= {end, *(sum(n for n, _ in place) for place in plan)}


def test_the_table_of_v13_follows_from_its_scores():
    rows = {row.name: words(row) for row in rows_of("v13", "One row")}
    base, largest, table = -math.inf, -math.inf, []

    def factor(before: float, after: float) -> str:
        return "0" if before == -math.inf else "1" if before == after else f"2^−{after - before:.1f}"

    for score in map(float, rows["largest score of the tile"]):
        growth, grown = score - base, max(largest, score)
        after = score if growth > 15 else base
        says = "+∞" if growth == math.inf else f"{growth:.1f}".replace("-", "−")
        v13 = factor(base, after) if growth > 15 else "–"
        p = f"{2 ** (score - after):.1f}".removesuffix(".0")
        table.append((says, "yes" if growth > 15 else "no", v13, factor(largest, grown), p))
        base, largest = after, grown
    names = "growth over v13's base", "vote: rescale?", "v13: O, l times", "v12: O, l times", "v13: largest p"
    assert [*zip(*(rows[name] for name in names))] == table


def test_the_integers_of_v15_are_those_of_its_floats():
    for row in rows_of("v15", "The bits"):
        for text in words(row):
            value, integer, hexadecimal = text.replace("−", "-").replace(",", "").split("\n")
            bits = struct.pack(">f", float(value))
            assert (int(integer), hexadecimal) == (*struct.unpack(">i", bits), bits.hex())
    integers = [int(text.split("\n")[1].replace("−", "-").replace(",", "")) for text in words(rows_of("v15")[1])]
    assert integers == sorted(integers)


def test_what_a_tile_of_v27_costs():
    said = " ".join(row.words for row in rows_of("v27", "D = 128"))
    for warpgroups, keys in ((2, 128), (3, 64)):
        kilobytes = 2 * keys * 128 * 2 // 1024
        flop = 64 * warpgroups * keys * 128 * 4 // (kilobytes * 1024)
        assert f"{kilobytes} KB of K and V from L2 for a tile: {flop} FLOP for each byte" in said
        products, exponentials = 64 * keys * 128 * 4 // 4096, 64 * keys // 16
        assert f"products {warpgroups} × {products:,} clocks, exponentials {warpgroups} × {exponentials}" in said


@pytest.mark.parametrize("step", ["v28", "v32"])
def test_ctas_have_places_on_132_sms(step):
    assert {row.length for row in rows_of(step)[:4]} == {132}


def test_the_cta_of_v30_that_ends_last_is_counted_last():
    rows = rows_of("v30", "v30 in time")
    ends = [row.boxes[0].length for row in rows]
    assert [row.words.split()[0] for row in rows] == [str(sorted(ends).index(end)) for end in ends]


def test_the_ctas_of_v36_have_equal_pieces_of_the_line():
    pieces, [line] = rows_of("v36", "v36 in time")[:4], [row for row in rows_of("v36") if row.name == "the line"]
    cut = [[box for box in row.boxes if box.colour != "."] for row in pieces]
    assert [sum(box.length for box in piece) for piece in cut] == [line.length / 4] * 4
    together = groupby((box for piece in cut for box in piece), key=lambda box: box.colour)
    runs = [(colour, sum(box.length for box in boxes)) for colour, boxes in together]
    assert runs == [(box.colour, box.length) for box in line.boxes]


# ---- Models


def kinds_of_tiles(first: int, seqlen_q: int, seqlen_kv: int, from_the_last: bool) -> list[str]:
    """For each tile of 64 keys what it is for 64 queries, causal, in the picture's letters: v24 and v25 treat b with
    care."""
    least, most = (min(seqlen_kv, query + 1 + seqlen_kv - seqlen_q) for query in (first, first + 63))
    last_careful = (least - 1) // 64  # the tile with the last key that all rows see, as v25 has it
    found = []
    for tile in range(-(-most // 64)):
        careful = tile >= last_careful if from_the_last else 64 * (tile + 1) > least or tile == 0
        found.append("b" if careful else "c")
    return found


def test_careful_tiles_are_those_of_v25():
    _, *rows, tiles, least, most = rows_of("v25")
    assert len(rows) == 8
    for index, row in enumerate(rows):
        boxes = [(box.colour, box.text) for box in row.boxes if box.colour != "."]
        before, after = boxes[: index + 1], boxes[index + 1 :]
        kinds = [kinds_of_tiles(64 * index, 512, 512, from_the_last) for from_the_last in (False, True)]
        assert before == [*zip(kinds[0], map(str, range(1, index + 2)))]
        assert after == [*zip(kinds[1], map(str, range(index + 1, 0, -1)))]
    assert [box.colour for box in tiles.boxes] == [*kinds_of_tiles(0, 100, 330, True), "_"]
    assert (words(least), words(most)) == (["231 keys"], ["294 keys"]) and (least.length, most.length) == (231, 294)
    assert [box.text for box in tiles.boxes][(231 - 1) // 64].endswith("last_careful")


@pytest.mark.parametrize("operand", ["q", "k", "p", "v"])
def test_the_drawn_loads_give_the_operands_that_the_products_want(operand):
    """ldmatrix of the drawn blocks, plain or .trans as drawn, puts every element where mma.sync wants it."""
    mapping = fragment_layouts.read(BUILD)
    loads = mapping["ldmatrix_trans" if operand == "v" else "ldmatrix"]
    blocks = set()
    for register in range(4):
        elements = [(lane, register, element) for lane in range(32) for element in range(2)]
        its = [fragment_layouts.stored_position(mapping, operand, *element) for element in elements]
        block_row, block_column = its[0][0] // 8, its[0][1] // 8
        assert its == [[8 * block_row + row, 8 * block_column + column] for lane in loads for row, column in lane]
        blocks.add((block_row, block_column))
    assert len(blocks) == 4
