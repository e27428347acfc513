"""What the charts show of records that the figures of this repository are not drawn from (these are drawn again, and
compared, by make_figures.py --check), and that it can be read: texts are measured as matplotlib draws them."""

from __future__ import annotations

import copy
from typing import Any, Iterator

import pytest
from conftest import STEPS, make_ceiling, make_peers_record, make_problem, make_record, make_timing
from test_profile_ncu import make_profile
from test_results import make_cold

from draw import charts, drawings, figure_style
from records import results, rules
from records.problems import flops
from records.rates import ceiling_rate, tflops_spread

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

from matplotlib.colors import to_rgba


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    figure_style.pyplot().close("all")


def sources(*records: dict[str, Any], **where: str) -> list[charts.Source]:
    return [
        charts.Source(f"record_{n}.json", data, results.select_runs(data, where))
        for n, data in enumerate(records)
    ]


def draw(kind: str, *records: dict[str, Any], **where: str) -> Any:
    return charts.KINDS[kind](sources(*records, **where))


def faults(figure: Any) -> list[str]:
    return drawings.content("a.svg", figure)[1]


def many_steps(data: dict[str, Any], count: int, ratio: float) -> dict[str, Any]:
    """The ladder with as many steps, each faster than the one before it by the ratio: a quarter of them in the first
    part, half in the second, a quarter in the third."""
    for run in data["runs"]:
        steps = []
        for index in range(count):
            step = copy.deepcopy(run["steps"][0])
            step["step"] = f"v{index + 1:02d}_quite_vectorized_name"
            if data["schema"] == results.SCHEMA:
                step["part"] = ("memory", "mma.sync", "mma.sync", "Hopper")[4 * index // count]
            if step.get("metrics"):
                step["metrics"] |= {"duration_ns": int(10**9 / ratio**index), "shared_wavefronts": 10**6 + index}
            if step.get("timing"):
                step["timing"] = make_timing(run["problem"], 40.0 / ratio**index)
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


@pytest.mark.parametrize(("count", "ratio"), [(1, 1.0), (11, 1.0), (25, 1.1)])
@pytest.mark.parametrize("kind", ["progression", "lengths", "errors", "roofline"])
def test_nothing_overlaps_whatever_the_ladder(kind, count, ratio):
    if kind == "progression":
        data = make_peers_record(problems=[make_problem(), make_problem(head_dim=64, num_heads_q=32, num_heads_kv=32)])
    elif kind == "errors":
        data = make_record(problems=[make_problem(), make_problem(dtype="fp16")])
    else:
        data = by_length() if kind == "lengths" else profile_of([make_problem()])
    data = many_steps(data, count, ratio)
    assert faults(draw(kind, data)) == []


@pytest.mark.parametrize("count", [1, 12, 25])
def test_nothing_overlaps_among_counters(count):
    data = many_steps(make_record("emulator"), count, 1)
    for step in data["runs"][0]["steps"]:
        step["counters"]["shared_wavefronts"] = 999000  # as in a problem of the emulator's size
    assert faults(draw("counters", data)) == []


@pytest.mark.parametrize("kind", ["counters", "errors"])
def test_long_names_leave_room_to_say_why_there_is_nothing(kind):
    data = make_record("emulator")
    first, second, third = data["runs"][0]["steps"]
    first["step"] = "v01_of_many_words_as_ablations_have_them"
    second.update(status="fail", message="NRMSE 1 is above the gate")
    message = "block (0, 0, 0) warp 2 lane 31: race on shared memory at smem + 8: the read at k.cu:1"
    third.update(status="crash", message=message, counters=None, validation=None)
    figure = draw(kind, data)
    assert faults(figure) == []
    assert "crash: race on shared memory at…" in words_of(figure)


# What is shown.


def upright_lines(axes: Any) -> dict[float, Any]:
    """Those from the foot of the axes to their top, by place."""
    return {line.get_xdata()[0]: line for line in axes.lines if list(line.get_ydata()) == [0, 1]}


def words_of(figure: Any) -> str:
    figure.set_layout_engine("none")  # wherever they are
    return figure_style.svg_text(figure)


def test_bars_and_whiskers_are_those_of_the_record():
    data = make_record()
    axes = draw("progression", data).axes[0]
    timings = [step["timing"] for step in data["runs"][0]["steps"]]
    assert [bar.get_width() for bar in axes.patches][:3] == [timing["tflops"] for timing in timings]
    ends = [container[2][0].get_segments()[0][:, 0] for container in axes.containers if len(container) == 3]
    ends = [list(each) for each in ends if len(each) == 2]
    for timing, (low, high) in zip(timings, ends, strict=True):
        assert (low, high) == pytest.approx(tflops_spread(data["runs"][0]["problem"], timing)[1:])


FEW_QUERIES = make_problem(seqlen_q=16)


def points(axes: Any) -> set[tuple[float, bool]]:
    """Place, and whether it is filled: of all points."""
    marked = [line for line in axes.lines if line.get_marker() != "None"]
    return {(line.get_xdata()[0], line.get_markerfacecolor() == line.get_color()) for line in marked}


def test_errors_are_points_below_their_gates():
    data = make_record(problems=[make_problem(), make_problem(causal=False)])
    validation = data["runs"][1]["steps"][1]["validation"]
    validation.update(nrmse=0.0042, worst_row_nrmse=0.0043)
    figure = draw("errors", data)
    [axes] = figure.axes
    first = data["runs"][0]["steps"][0]["validation"]
    expected = {(first["nrmse"], True), (first["worst_row_nrmse"], False), (0.0042, True), (0.0043, False)}
    assert points(axes) == expected
    assert set(upright_lines(axes)) == set(rules.GATES["bf16"])
    text = words_of(figure)
    assert ">4.2e-03<" in text and "Synthetic GPU" in text and "bf16, 2 problems" in text


def test_errors_of_failed_steps_are_crosses_and_what_has_none_says_why():
    data = make_record("emulator")
    first, second, third = data["runs"][0]["steps"]
    first.update(status="fail", message="wrong")
    first["validation"]["nrmse"] = 0.7
    second.update(status="fail", message="it wrote NaN\x1b")
    second["validation"]["nrmse"] = None
    third.update(status="skip", message="needs sm_90", validation=None)
    figure = draw("errors", data)
    crosses = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "X"]
    text = words_of(figure)
    assert crosses == [0.7] and "fail: it wrote NaN" in text and "skip: needs sm_90" in text
    assert "on the CPU emulator" in text and "\x1b" not in text


def test_an_error_of_zero_stands_at_the_foot():
    data = make_record()
    data["runs"][0]["steps"][0]["validation"].update(nrmse=0.0, worst_row_nrmse=0.0)
    figure = draw("errors", data)
    foot = figure.axes[0].get_xlim()[0]
    assert {(foot, True), (foot, False)} <= points(figure.axes[0]) and ">0.0e+00<" in words_of(figure)


def test_a_ceiling_is_a_line_only_when_it_does_not_flatten_the_bars():
    data = make_record()
    run = data["runs"][0]
    highest = max(tflops_spread(run["problem"], step["timing"])[2] for step in run["steps"])
    for tflops, is_line in ((highest * 1.1, True), (highest * 4, False)):
        run["ceilings"]["matmul"] = make_ceiling(tflops)
        figure = draw("progression", data)
        assert any(at == pytest.approx(tflops) for at in upright_lines(figure.axes[0])) == is_line
        text = words_of(figure)
        assert ("where not drawn: measured matmul" in text) != is_line and "measured matmul: synthetic matmul" in text


def test_each_part_of_the_ladder_begins_with_the_last_step_of_the_one_before():
    data = many_steps(make_record(), 8, 2.0)
    figure = draw("progression", data)
    names = [[label.get_text()[:3] for label in axes.get_yticklabels()] for axes in figure.axes]
    assert names == [["v01", "v02"], ["v02", "v03", "v04", "v05", "v06"], ["v06", "v07", "v08"]]
    quiet = to_rgba(figure_style.BEFORE)
    bars = [[bar.get_facecolor() == quiet for bar in axes.patches[: len(own)]] for axes, own in zip(figure.axes, names)]
    assert bars == [[False] * 2, [True, *[False] * 4], [True, False, False]]


def test_a_step_without_a_value_keeps_its_place_and_says_why():
    data = make_peers_record(problems=[make_problem(), make_problem(causal=False)])
    data["runs"][0]["steps"][1] = {"step": STEPS[1], "status": "timeout", "message": "after $60 s\nmore"}
    del data["runs"][1]["steps"][2]
    figure = draw("progression", data)
    for axes in figure.axes:
        assert len(axes.get_yticks()) == 3
    assert faults(figure) == []
    text = words_of(figure)
    assert "hang: after $60 s" in text and "not run" in text


def test_counts_of_a_wrong_result_are_marked():
    data = make_record("emulator")
    assert "Red" not in words_of(draw("counters", data))
    data["runs"][0]["steps"][1].update(status="fail", message="above the gate")
    figure = draw("counters", data)
    wrong = to_rgba(figure_style.CEILING)
    red = [bar for axes in figure.axes for bar in axes.patches if bar.get_facecolor() == wrong]
    assert [round(bar.get_y() + bar.get_height() / 2) for bar in red] == [1] * len(red) and len(red) >= 2
    words = words_of(figure)
    assert ", fail<" in words and "Red: what a step" in words


def test_a_point_that_is_missing_is_a_hole_in_its_line_and_told():
    data = by_length()
    data["runs"][1]["steps"][2].update(status="fail", message="row 7 is wrong", timing=None)
    figure = draw("lengths", data)
    values = list(figure.axes[0].lines[2].get_ydata())
    assert values[1] != values[1] and values[0] > 0 and values[2] > 0
    assert "D = 64, full: v03_wmma at 1024 (fail: row 7 is wrong)" in words_of(figure).replace("\n", " ")


def unlike(what: str, two: dict[str, Any]) -> dict[str, Any]:
    """A record that cannot be drawn."""
    for run in two["runs"]:
        for step in run["steps"]:
            if what == "no times":
                step.update(status="fail", message="x", timing=None)
            elif what == "no validation":
                step["validation"] = None
            elif what == "two units":
                step["timing"]["l2"] = "warm" if run is two["runs"][1] else "cold"
    return two


@pytest.mark.parametrize(
    ("kind", "what", "said"),
    [
        ("progression", "no times", "no step has timing, so there is nothing to draw"),
        ("lengths", "no times", "no step has timing, so there is nothing to draw"),
        ("errors", "no validation", "no step was validated"),
        ("progression", "two units", "do not share an axis"),
        ("lengths", "one length", "D = 128, causal have the same length: add a filter"),
        ("roofline", "two problems", "of one problem: add a filter"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(kind, what, said):
    problems = [FEW_QUERIES, FEW_QUERIES | {"num_heads_q": 32}]
    data = profile_of(problems) if kind == "roofline" else unlike(what, make_cold(make_record(problems=problems)))
    with pytest.raises(results.ResultsError, match=said):
        draw(kind, data)


def test_a_roofline_has_each_step_at_its_bytes():
    profile, ladder = profile_of([make_problem()]), make_record()
    figure = draw("roofline", profile, ladder)
    [axes] = figure.axes
    marks = {
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() == "o" and len(line.get_xdata())
    }
    expected = set()
    for step in profile["runs"][0]["steps"]:
        work, values = flops(make_problem()), step["metrics"]
        tflops = work / values["duration_ns"] / 1e3
        if values["shared_wavefronts"]:
            expected.add(("o", work / (128 * values["shared_wavefronts"]), tflops))
    assert marks == expected
    assert "Not there: v01_scalar (uses no shared memory)." in words_of(figure)
    # The corner of the roof: where all SMs' shared memory would feed the measured matmul.
    [slanted, flat] = [line for line in axes.lines if line.get_color() == figure_style.CEILING]
    device, matmul = profile["provenance"]["device"], ceiling_rate(ladder["runs"][0]["ceilings"]["matmul"])
    corner = matmul / (128 * device["sm_count"] * device["max_sm_clock_mhz"] / 1e6)
    assert (slanted.get_xdata()[1], slanted.get_ydata()[1]) == pytest.approx((corner, matmul))
    assert flat.get_xdata()[0] == pytest.approx(corner) and list(flat.get_ydata()) == [matmul] * 2
    assert "Of DRAM, steps do " in words_of(figure).replace("\n", " ")


def test_a_roofline_takes_a_step_from_the_first_profile_that_has_it():
    first, second = profile_of([make_problem()]), profile_of([make_problem()])
    [run] = first["runs"]
    del run["steps"][2:]
    for step in second["runs"][0]["steps"]:
        step["metrics"]["duration_ns"] *= 10
    points = charts.profiled_points(sources(first, second))
    work = flops(run["problem"])
    for index, step in enumerate(second["runs"][0]["steps"]):
        share = 1 if index > 1 else 10
        expected = share * work / step["metrics"]["duration_ns"] / 1e3
        assert points[step["step"]]["tflops"] == pytest.approx(expected)


def test_a_counter_that_ncu_did_not_give_is_no_point():
    data = profile_of([make_problem()])
    data["runs"][0]["steps"][1]["metrics"] |= {"dram_read_bytes": None, "dram_write_bytes": None}
    data["runs"][0]["steps"][2]["metrics"] |= {"duration_ns": None}
    points = charts.profiled_points(sources(data))
    assert list(points) == ["v01_scalar", "v02_smem_tiles"] and "dram" not in points["v02_smem_tiles"]


def test_the_instructions_of_a_score_are_not_less_than_the_source_asks_for():
    run, lanes = {"problem": make_problem(), "steps": []}, 32
    scores = flops(run["problem"]) / (4 * run["problem"]["head_dim"])
    opcodes = {"FMUL": 5, "FADD": 2, "FSETP.GEU.AND": 1, "MUFU.EX2": 1, "FMNMX": 1, "HMMA.16816.F32": 2, "IMAD": 3}
    counts = {opcode: count * scores / lanes for opcode, count in opcodes.items()}
    run["steps"].append({"step": "v08_register_softmax", "opcodes": counts})
    nine, four = charts.left_of([]), charts.left_of([*charts.CHANGES])
    assert (len(list(filter(None, nine))), len(list(filter(None, four)))) == (9, 4)
    assert charts.per_score(run, "v08_register_softmax", nine) == pytest.approx(sum(opcodes.values()))
    counts["FADD"] /= 4
    with pytest.raises(results.ResultsError, match="has fewer FADD than its softmax takes"):
        charts.per_score(run, "v08_register_softmax", nine)
    with pytest.raises(results.ResultsError, match="v09_direct_rescale was not profiled"):
        charts.per_score(run, "v09_direct_rescale", four)


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
    others = [figure_style.BAR, figure_style.BEFORE, figure_style.CEILING, *figure_style.step_colours(10)]
    assert min(contrast(colour, figure_style.BACKGROUND) for colour in others) >= 3
