"""The models that pictures of lessons are drawn from say what the lessons say."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib", reason="build/venv has it")

from draw import lesson_page, lesson_tiles, lesson_timelines


def end(order: list[tuple[int, int]], places: int) -> int:
    return max(begin + length for _, begin, length, _ in lesson_tiles.schedule(order, places))


@pytest.mark.parametrize(
    "heads,longest,places,ends",
    [(3, 6, 5, [16, 14, 13]), (64, 32, 264, [149, 148, 129]), (128, 32, 264, [277, 275, 257])],
)
def test_orders_of_tiles_end_when_v14_says(heads, longest, places, ends):
    assert [end(order, places) for order in lesson_tiles.orders(heads, longest).values()] == ends


def test_careful_tiles_are_those_of_v25():
    careful, clean, unseen = lesson_tiles.CAREFUL, lesson_tiles.CLEAN, lesson_tiles.UNSEEN
    kinds = lesson_tiles.kinds_of_tiles
    assert kinds(320, 64, 512, 512, from_the_last=False) == [careful, *[clean] * 4, careful, unseen, unseen]
    assert kinds(320, 64, 512, 512, from_the_last=True) == [*[clean] * 5, careful, unseen, unseen]
    assert kinds(0, 64, 100, 330, from_the_last=True) == [*[clean] * 3, careful, careful, unseen]
    assert [lesson_tiles.seen(query, 100, 330) for query in (0, 63)] == [231, 294]


@pytest.mark.parametrize(
    "scores,careful,does",
    [
        ([0, 2, 1], False, "M··"),
        ([0, 40, 41], False, "M·M"),
        ([0, 110, 0, 0], False, "M×M·"),
        ([0, 110, 0], True, "MMM"),
    ],
)
def test_sums_of_v26(scores, careful, does):
    assert "".join(lesson_tiles.follow_sums(scores, careful)[1]) == does


def test_clocks_of_a_tile_are_those_of_v27():
    assert [lesson_timelines.clocks(keys, 128)[:2] for keys in (128, 64)] == [(512, 512), (256, 256)]
    assert lesson_timelines.clocks(128, 64)[:2] == (
        256,
        512,
    )  # of one product: the two take as long as all exponentials


def test_shapes_of_streams_are_found():
    assert lesson_page.stream_configs("v24_by_turns")[128, "Wide"] == lesson_page.StreamConfig(
        128, 1, 3, 80, False
    )
    assert len(lesson_page.stream_configs("v27_tile_shapes")) == 6


def test_the_rule_of_v35_is_its_table():
    lesson = (lesson_tiles.sources.ROOT / "steps" / "v35_whole_waves" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| [\d,]+ \| \d+ \|.* ([\d.]+) \|$", lesson, re.MULTILINE)
    times = lesson_tiles.rule_of_v35(lesson_tiles.WAVES_TILES, lesson_tiles.WAVES_KEYS)
    assert rows and all(f"{times[int(splits)] / 1e6:.1f}" == estimate for splits, estimate in rows)
    assert min(times, key=lambda splits: times[splits]) == 8


def test_pieces_of_v36_are_those_of_its_kernel():
    text = lesson_page.source("v36_stream_k")
    (formula,) = re.findall(r"return (cta \* \(num_units / num_ctas\) .*);", text)
    for units, ctas in [(32, 4), (31, 4), (1000, 264), (264, 264)]:
        for cta in range(ctas + 1):
            values = {"cta": cta, "num_units": units, "num_ctas": ctas}
            assert lesson_tiles.begin_of_v36(cta, units, ctas) == eval(formula.replace("/", "//"), values)
    assert f"kv_lengths != nullptr ? {lesson_tiles.LINE_START} : 0" in text
    assert lesson_tiles.pieces_of_v36([5, 3], 2) == [[(0, 0, 4)], [(0, 4, 5), (1, 0, 3)]]
