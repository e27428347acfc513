"""What the charts show, and that it can be read: texts are measured as matplotlib draws them."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any, Iterator

import pytest
from conftest import STEPS, make_peers_record, make_problem, make_record, make_timing
from test_profile_ncu import make_profile

from draw import charts, figure_style, make_figures
from records import results

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


@pytest.fixture
def plt() -> Iterator[Any]:
    pyplot = figure_style.pyplot()
    yield pyplot
    pyplot.close("all")


def draw(plt: Any, kind: str, *records: dict[str, Any], **where: str) -> Any:
    return charts.KINDS[kind](plt, list(records), [results.select_runs(data, where) for data in records])


def drawn_texts(figure: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[tuple[str, Any, float]]]:
    """The file; and text, extent in points, rotation of all that reaches it (labels of ticks beyond an axis do not)."""
    from matplotlib.text import Text

    found: dict[int, tuple[str, Any, float]] = {}  # by text: the last time that it is drawn counts
    original = Text.draw

    def draw_and_note(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = (self.get_text(), Text.get_window_extent(self, renderer), self.get_rotation())
        original(self, renderer)

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", draw_and_note)
        svg = figure_style.svg_text(figure)
    return svg, list(found.values())


def faults(figure: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return svg_and_faults(figure, monkeypatch)[1]


def svg_and_faults(figure: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    width, height = (inches * 72 for inches in figure.get_size_inches())
    svg, texts = drawn_texts(figure, monkeypatch)
    assert len(texts) > 3
    wrong = [
        f"'{words}' is clipped"
        for words, box, _ in texts
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    level = [(words, box) for words, box, rotation in texts if rotation in (0, 90)]
    for (first, a), (second, b) in itertools.combinations(level, 2):
        # A point is what the extents have around the letters.
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            wrong.append(f"'{first}' overlaps '{second}'")
    return svg, wrong


def many_steps(data: dict[str, Any], count: int, ratio: float) -> dict[str, Any]:
    """The ladder with as many steps, each faster than the one before it by the ratio."""
    for run in data["runs"]:
        steps = []
        for index in range(count):
            step = copy.deepcopy(run["steps"][0])
            step["step"] = f"v{index + 1:02d}_quite_vectorized_name"
            if step.get("timing"):
                step["timing"] = make_timing(run["problem"], 40.0 / ratio**index, 250.0)
            steps.append(step)
        run["steps"] = steps
    return data


def by_length(**more: Any) -> dict[str, Any]:
    problems = [
        make_problem(
            batch=16384 // length, seqlen_q=length, seqlen_kv=length, head_dim=head_dim, causal=causal
        )
        for head_dim in (64, 128)
        for causal in (False, True)
        for length in (512, 1024, 2048)
    ]
    return make_peers_record(problems=problems, **more)


def profile_of(problems: list[dict[str, Any]]) -> dict[str, Any]:
    data = make_profile(problems)
    for run in data["runs"]:
        for index, step in enumerate(run["steps"]):
            step["metrics"] |= {
                "duration_ns": 10**9 // 4**index,
                "dram_read_bytes": 10**8,
                "dram_write_bytes": 10**6,
            }
            step["metrics"]["shared_wavefronts"] *= 10**6
    return data


# That it can be read.


@pytest.mark.parametrize("figure", make_figures.FIGURES, ids=lambda figure: figure.name)
def test_the_figures_of_the_readme(plt, monkeypatch, figure):
    """Nothing overlaps or is clipped. And those in figures/ say the same, which their hash does not cover: other
    scripts put labels and numbers into words."""
    folder = make_figures.records_folder(make_figures.ROOT)
    records = [results.load(folder / record, schema=None) for record in figure.records]
    drawn = draw(plt, figure.kind, *records, **figure.where)
    assert drawn.get_size_inches()[0] * 96 <= 820  # a README is no wider: it would scale the letters down
    svg, wrong = svg_and_faults(drawn, monkeypatch)
    assert wrong == []
    kept = (make_figures.ROOT / "figures" / figure.name).read_text(encoding="utf-8")
    kept_texts, texts = (re.findall(r">([^<>\n]+)</text>", each) for each in (kept, svg))
    assert len(kept_texts) > 20 and kept_texts == texts


@pytest.mark.parametrize(("count", "ratio"), [(1, 1.0), (11, 1.0), (20, 1.1)])
def test_nothing_overlaps_whatever_the_ladder(plt, monkeypatch, count, ratio):
    data = many_steps(make_peers_record(), count, ratio)
    assert faults(draw(plt, "progression", data), monkeypatch) == []


@pytest.mark.parametrize("ratio", [1.0, 1.1])
def test_nothing_overlaps_among_many_lines(plt, monkeypatch, ratio):
    data = many_steps(by_length(), 20, ratio)
    assert faults(draw(plt, "lengths", data), monkeypatch) == []


@pytest.mark.parametrize("count", [1, 12, 20])
def test_nothing_overlaps_among_counters(plt, monkeypatch, count):
    data = many_steps(make_record("emulator"), count, 1)
    for step in data["runs"][0]["steps"]:
        step["counters"]["shared_wavefronts"] = 999000  # as in a problem of the emulator's size
    assert faults(draw(plt, "counters", data), monkeypatch) == []


@pytest.mark.parametrize("kind", ["counters", "errors"])
def test_long_names_leave_room_to_say_why_there_is_nothing(plt, monkeypatch, kind):
    data = make_record("emulator")
    first, second, third = data["runs"][0]["steps"]
    first["step"] = "v01_of_many_words_as_ablations_have_them"
    second.update(status="fail", message="NRMSE 1 is above the gate")
    message = "block (0, 0, 0) warp 2 lane 31: race on shared memory at smem + 8: the read at k.cu:1"
    third.update(status="crash", message=message, counters=None, validation=None)
    figure = draw(plt, kind, data)
    assert faults(figure, monkeypatch) == []
    assert "crash: race on shared memory at…" in words_of(figure)


@pytest.mark.parametrize("count", [12, 20])
def test_nothing_overlaps_among_errors(plt, monkeypatch, count):
    data = many_steps(make_record(problems=[make_problem(), make_problem(dtype="fp16")]), count, 1.1)
    failed = data["runs"][0]["steps"][0]
    failed.update(status="fail", message="wrong", timing=None)
    failed["validation"].update(nrmse=0.8, worst_row_nrmse=3.0)
    assert faults(draw(plt, "errors", data), monkeypatch) == []


def test_peers_and_ceiling_close_together(plt, monkeypatch):
    data = make_peers_record(("sdpa_flash", "sdpa_cudnn", "flash_attn_3"))
    run = data["runs"][0]
    for peer in run["peers"]:
        peer["timing"] = make_timing(run["problem"], 3.0, 250.0)
    assert faults(draw(plt, "progression", data), monkeypatch) == []


def test_these_checks_can_fail(plt, monkeypatch):
    def figure(*texts: tuple[float, float, str]) -> Any:
        drawn = plt.figure(figsize=(4, 3))
        for x, y, words in ((0.5, 0.9, "title"), (0.5, 0.1, "note"), *texts):
            drawn.text(x, y, words)
        return drawn

    assert faults(figure((0.1, 0.5, "one"), (0.5, 0.5, "two")), monkeypatch) == []
    assert faults(figure((0.1, 0.5, "one"), (0.13, 0.51, "two")), monkeypatch) == ["'one' overlaps 'two'"]
    assert faults(figure((0.1, 0.5, "one"), (0.95, 0.5, "too far")), monkeypatch) == ["'too far' is clipped"]
    without = many_steps(by_length(), 11, 1.02)
    monkeypatch.setattr(charts, "spread_labels", lambda *_: None)
    assert "overlaps" in faults(draw(plt, "lengths", without), monkeypatch)[0]


# What is shown.


def level_lines(axes: Any) -> dict[float, Any]:
    """Those from one side of the axes to the other, by height."""
    return {line.get_ydata()[0]: line for line in axes.lines if list(line.get_xdata()) == [0, 1]}


def words_of(figure: Any) -> str:
    figure.set_layout_engine("none")  # wherever they are
    return figure_style.svg_text(figure)


def test_peers_are_dashed_lines_at_their_rates(plt):
    data = make_peers_record(("sdpa_flash", "sdpa_cudnn", "sdpa_math"))
    figure = draw(plt, "progression", data)
    run = data["runs"][0]
    lines = level_lines(figure.axes[0])
    for name in ("sdpa_flash", "sdpa_cudnn"):
        [peer] = [peer for peer in run["peers"] if peer["peer"] == name]
        assert lines[peer["timing"]["tflops"]].get_linestyle() == "--"
    # Not PyTorch's mathematics: it is there to be compared with, and no kernel.
    assert {tflops for tflops, line in lines.items() if line.get_linestyle() == "--"} == {
        peer["timing"]["tflops"] for peer in run["peers"][:2]
    }
    text = words_of(figure)
    assert "FlashAttention-2<" in text and "cuDNN<" in text and "interleaved run" in text


def test_a_peer_without_a_time_is_told(plt):
    data = make_peers_record()
    del data["runs"][0]["peers"][1]["timing"]
    data["runs"][0]["peers"][1].update(status="skip", message="no kernel for $5\nmore")
    text = words_of(draw(plt, "progression", data))
    assert "cuDNN: skip: no kernel for $5." in text and "FlashAttention-2<" in text


def test_bars_and_whiskers_are_those_of_the_record(plt):
    data = make_record()
    axes = draw(plt, "progression", data).axes[0]
    timings = [step["timing"] for step in data["runs"][0]["steps"]]
    assert [bar.get_height() for bar in axes.patches] == [timing["tflops"] for timing in timings]
    ends = [container[2][0].get_segments()[0][:, 1] for container in axes.containers if len(container) == 3]
    ends = [list(each) for each in ends if len(each) == 2]
    for timing, (low, high) in zip(timings, ends, strict=True):
        assert (low, high) == pytest.approx((timing["tflops_p10"], timing["tflops_p90"]))


def points(axes: Any) -> set[tuple[float, bool]]:
    """Height, and whether it is filled: of all points."""
    marked = [line for line in axes.lines if line.get_marker() != "None"]
    return {(line.get_ydata()[0], line.get_markerfacecolor() == line.get_color()) for line in marked}


def test_errors_are_points_below_their_gates(plt):
    data = make_record(problems=[make_problem(), make_problem(causal=False)])
    validation = data["runs"][1]["steps"][1]["validation"]
    validation.update(nrmse=0.0042, worst_row_nrmse=0.0043)
    figure = draw(plt, "errors", data)
    [axes] = figure.axes
    first = data["runs"][0]["steps"][0]["validation"]
    expected = {(first["nrmse"], True), (first["worst_row_nrmse"], False), (0.0042, True), (0.0043, False)}
    assert points(axes) == expected
    assert set(level_lines(axes)) == set(results.GATES["bf16"])
    text = words_of(figure)
    assert ">4.2e-03<" in text and "Synthetic GPU" in text and "bf16, 2 problems" in text


def test_errors_of_failed_steps_are_crosses_and_what_has_none_says_why(plt):
    data = make_record("emulator")
    first, second, third = data["runs"][0]["steps"]
    first.update(status="fail", message="wrong")
    first["validation"]["nrmse"] = 0.7
    second.update(status="fail", message="it wrote NaN\x1b")
    second["validation"]["nrmse"] = None
    third.update(status="skip", message="needs sm_90", validation=None)
    figure = draw(plt, "errors", data)
    crosses = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_marker() == "X"]
    text = words_of(figure)
    assert crosses == [0.7] and "fail: it wrote NaN" in text and "skip: needs sm_90" in text
    assert "on the CPU emulator" in text and "\x1b" not in text


def test_an_error_of_zero_stands_at_the_foot(plt):
    data = make_record()
    data["runs"][0]["steps"][0]["validation"].update(nrmse=0.0, worst_row_nrmse=0.0)
    figure = draw(plt, "errors", data)
    foot = figure.axes[0].get_ylim()[0]
    assert {(foot, True), (foot, False)} <= points(figure.axes[0]) and ">0.0e+00<" in words_of(figure)


def test_without_validation_there_are_no_errors_to_draw(plt):
    data = make_record()
    for step in data["runs"][0]["steps"]:
        step["validation"] = None
    with pytest.raises(results.ResultsError, match="no step was validated"):
        draw(plt, "errors", data)


def test_a_ceiling_is_a_line_only_when_it_does_not_flatten_the_bars(plt):
    data = make_record()
    run = data["runs"][0]
    highest = max(step["timing"]["tflops_p90"] for step in run["steps"])
    for tflops, is_line in ((highest * 1.1, True), (highest * 4, False)):
        run["ceilings"]["matmul"]["tflops"] = tflops
        figure = draw(plt, "progression", data)
        assert (tflops in level_lines(figure.axes[0])) == is_line
        text = words_of(figure)
        assert ("Measured matmul: synthetic matmul." in text) == is_line
        assert (f"Measured matmul: synthetic matmul: {tflops:.0f}, off the scale." in text) != is_line


def test_what_is_off_the_scale_is_told_once_for_all_problems(plt):
    data = make_record(problems=[make_problem(), make_problem(causal=False)])
    for run, tflops in zip(data["runs"], (5000, 4000)):
        run["ceilings"]["matmul"]["tflops"] = tflops
    text = words_of(draw(plt, "progression", data))
    assert "Measured matmul: synthetic matmul: 4000 to 5000, off the scale." in text


def test_the_peak_is_told_where_it_is_known(plt):
    data = make_record()
    assert "tensor peak at the maximum clock: 1000, off the scale" in words_of(draw(plt, "progression", data))
    for step in data["runs"][0]["steps"]:
        step["timing"]["percent_of_peak"] = None
    assert "peak" not in words_of(draw(plt, "progression", data))


def test_a_step_without_a_value_keeps_its_place_and_says_why(plt, monkeypatch):
    data = make_peers_record(problems=[make_problem(), make_problem(causal=False)])
    data["runs"][0]["steps"][1] = {"step": STEPS[1], "status": "timeout", "message": "after $60 s\nmore"}
    del data["runs"][1]["steps"][2]
    figure = draw(plt, "progression", data)
    for axes in figure.axes:
        assert len(axes.get_xticks()) == 3
    assert faults(figure, monkeypatch) == []
    text = words_of(figure)
    assert "hang: after $60 s" in text and "not run" in text


def test_a_counter_that_is_missing_keeps_its_place(plt):
    data = make_record("emulator")
    data["runs"][0]["steps"][1] = {"step": STEPS[1], "status": "crash", "message": "signal 11"}
    figure = draw(plt, "counters", data)
    assert [len(axes.get_xticks()) for axes in figure.axes] == [3, 3, 3]
    assert words_of(figure).count("crash: signal 11") == 3


def test_counts_of_a_wrong_result_are_marked(plt):
    data = make_record("emulator")
    assert "Red" not in words_of(draw(plt, "counters", data))
    data["runs"][0]["steps"][1].update(status="fail", message="above the gate")
    figure = draw(plt, "counters", data)
    wrong = plt.matplotlib.colors.to_rgba(figure_style.CEILING)
    red = [bar for axes in figure.axes for bar in axes.patches if bar.get_facecolor() == wrong]
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in red] == [1] * len(red) and len(red) >= 2
    words = words_of(figure)
    assert ">fail<" in words and "Red: what a step counted whose result is wrong." in words


def test_wavefronts_stand_beside_their_ideal(plt):
    data = make_record("emulator")
    axes = draw(plt, "counters", data).axes[0]
    counted = [step["counters"] for step in data["runs"][0]["steps"]]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [
        each[key] for each in counted[1:] for key in ("shared_wavefronts", "shared_wavefronts_ideal")
    ]
    assert "3.00 ×" in words_of(axes.figure)


def test_bytes_through_tma_are_not_hidden(plt):
    data = make_record("emulator")
    counted = data["runs"][0]["steps"][2]["counters"]
    through_tma = counted["tma_load_bytes"] // 32
    figure = draw(plt, "counters", data)
    [hatched] = [bar for bar in figure.axes[1].patches if bar.get_hatch() and bar.get_x() > 1.5]
    assert (hatched.get_y(), hatched.get_height()) == (counted["global_sectors"], through_tma)
    assert f"+ {through_tma:,}" in words_of(figure)
    for step in data["runs"][0]["steps"]:
        for key in results.LATER_COUNTERS:
            del step["counters"][key]
    assert "TMA" not in words_of(draw(plt, "counters", data))


def test_a_line_for_each_step_and_peer(plt):
    data = by_length()
    figure = draw(plt, "lengths", data)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "D = 64, full",
        "D = 64, causal",
        "D = 128, full",
        "D = 128, causal",
    ]
    for index, axes in enumerate(figure.axes):
        assert len(axes.lines) == len(STEPS) + 2
        own = data["runs"][3 * index : 3 * index + 3]
        assert list(axes.lines[1].get_ydata()) == [run["steps"][1]["timing"]["tflops"] for run in own]
        assert list(axes.lines[-1].get_ydata()) == [run["peers"][1]["timing"]["tflops"] for run in own]
        assert [line.get_linestyle() for line in axes.lines] == ["-"] * len(STEPS) + ["--"] * 2


def test_a_point_that_is_missing_is_a_hole_in_its_line_and_told(plt):
    data = by_length()
    data["runs"][1]["steps"][2].update(status="fail", message="row 7 is wrong", timing=None)
    figure = draw(plt, "lengths", data)
    values = list(figure.axes[0].lines[2].get_ydata())
    assert values[1] != values[1] and values[0] > 0 and values[2] > 0
    assert "D = 64, full: v03_wmma at 1024 (fail: row 7 is wrong)" in words_of(figure).replace("\n", " ")


def test_two_problems_of_one_length_are_refused(plt):
    data = by_length()
    data["runs"].append(copy.deepcopy(data["runs"][0]))
    with pytest.raises(results.ResultsError, match="D = 64, full have the same length: add a filter"):
        draw(plt, "lengths", data)


@pytest.mark.parametrize(("kind", "what"), [("progression", "timing"), ("lengths", "timing")])
def test_nothing_to_draw(plt, kind, what):
    data = make_record()
    for step in data["runs"][0]["steps"]:
        step.update(status="fail", message="x", timing=None)
    with pytest.raises(results.ResultsError, match=f"no step has {what}, so there is nothing to draw"):
        draw(plt, kind, data)


def test_a_roofline_has_each_step_at_its_bytes(plt, monkeypatch):
    profile, ladder = profile_of([make_problem()]), make_record()
    figure = draw(plt, "roofline", profile, ladder)
    [axes] = figure.axes
    marks = {
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() in "os" and len(line.get_xdata())
    }
    expected = set()
    for step in profile["runs"][0]["steps"]:
        flops, values = make_problem()["flops"], step["metrics"]
        tflops = flops / values["duration_ns"] / 1e3
        if values["shared_wavefronts"]:
            expected.add(("o", flops / (128 * values["shared_wavefronts"]), tflops))
        expected.add(("s", flops / (values["dram_read_bytes"] + values["dram_write_bytes"]), tflops))
    assert marks == expected and len({mark for mark, _, _ in marks}) == 2
    # The corner of the roof: where all SMs' shared memory would feed the measured matmul.
    [slanted, flat] = [line for line in axes.lines if line.get_color() == figure_style.CEILING]
    device, matmul = profile["provenance"]["device"], ladder["runs"][0]["ceilings"]["matmul"]["tflops"]
    corner = matmul / (128 * device["sm_count"] * device["max_sm_clock_mhz"] / 1e6)
    assert (slanted.get_xdata()[1], slanted.get_ydata()[1]) == pytest.approx((corner, matmul))
    assert flat.get_xdata()[0] == pytest.approx(corner) and list(flat.get_ydata()) == [matmul] * 2
    assert "bandwidth was not recorded" in words_of(figure).replace("\n", " ")


def test_a_roofline_takes_a_step_from_the_first_profile_that_has_it(plt):
    first, second = profile_of([make_problem()]), profile_of([make_problem()])
    [run] = first["runs"]
    del run["steps"][2:]
    for step in second["runs"][0]["steps"]:
        step["metrics"]["duration_ns"] *= 10
    points = charts.profiled_points([first, second], [first["runs"], second["runs"]])
    flops = run["problem"]["flops"]
    for index, step in enumerate(second["runs"][0]["steps"]):
        share = 1 if index > 1 else 10
        expected = share * flops / step["metrics"]["duration_ns"] / 1e3
        assert points[step["step"]]["tflops"] == pytest.approx(expected)


def test_a_step_that_was_not_profiled_is_told(plt):
    data = profile_of([make_problem()])
    data["runs"][0]["steps"][1].update(status="skip", message="needs sm_90a", metrics=None, opcodes=None)
    figure = draw(plt, "roofline", data)
    assert "Not there: v02_smem_tiles (skip: needs sm_90a)." in words_of(figure)


def test_a_counter_that_ncu_did_not_give_is_no_point(plt):
    data = profile_of([make_problem()])
    data["runs"][0]["steps"][1]["metrics"] |= {"dram_read_bytes": None, "dram_write_bytes": None}
    data["runs"][0]["steps"][2]["metrics"] |= {"duration_ns": None}
    points = charts.profiled_points([data], [data["runs"]])
    assert list(points) == ["v01_scalar", "v02_smem_tiles"] and "dram" not in points["v02_smem_tiles"]


def test_a_roofline_of_two_problems_is_refused(plt):
    profile = profile_of([make_problem(), make_problem(causal=False)])
    with pytest.raises(results.ResultsError, match="of one problem: add a filter"):
        draw(plt, "roofline", profile)
    draw(plt, "roofline", profile, causal="true")  # also without a ceiling


def test_steps_get_darker(plt):
    import colorsys

    lightness = [colorsys.rgb_to_hls(*colour)[1] for colour in figure_style.step_colours(10)]
    assert lightness == sorted(lightness, reverse=True) and len(figure_style.step_colours(1)) == 1


def contrast(first: str, second: str) -> float:
    """As WCAG defines it."""
    from matplotlib.colors import to_rgb

    def luminance(colour: Any) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_every_colour_is_seen_on_the_background():
    """Of a figure's own, light one, which it has on dark pages too. Text needs 4.5, lines and areas 3."""
    texts = [figure_style.INK, figure_style.MUTED, *(look[1] for look in figure_style.PEERS.values())]
    assert min(contrast(colour, figure_style.BACKGROUND) for colour in texts) >= 4.5
    others = [figure_style.BAR, figure_style.CEILING, *figure_style.step_colours(10)]
    assert min(contrast(colour, figure_style.BACKGROUND) for colour in others) >= 3
