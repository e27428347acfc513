"""The report of a run: what its page says, and how it looks in a browser, where a Chromium is; scripts/test.sh says so
where none is. What its charts show is tested in test_charts.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MEASURE, STEPS, Browser, give_limit, make_peers_record, make_problem, make_record
from markupsafe import escape
from test_charts import profile_of

from pages import report
from records.rates import rate, tflops_spread
from steps import sources

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


def make(folder: Path, data: dict[str, Any], *options: str) -> str:
    """The page, whose text is then still escaped."""
    record = folder / "results.json"
    record.write_text(json.dumps(data), encoding="utf-8")
    assert report.main([str(record), *options, "--out", str(folder / "report")]) == 0
    return (folder / "report" / "index.html").read_text(encoding="utf-8")


def images(page: str) -> list[str]:
    return re.findall(r'<img src="data:image/(\S+?);base64,', page)


def row_of(page: str, step: str) -> str:
    [row] = [row for row in re.findall(r"<tr><td>.*?</tr>", page, re.DOTALL) if f"<code>{step}</code>" in row]
    return row


def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time."""
    monkeypatch.setattr(report.Pictures, "draw_charts", lambda *_: None)


def test_a_run_on_a_gpu(tmp_path):
    data = make_record()
    page = make(tmp_path, data)
    for words in ("Synthetic GPU", "1.2.3", "13.0.88", "GNU 12.2.0", "2000-01-01T00:00:00Z"):
        assert f"<td>{words}</td>" in page
    assert "000000000000" in page and "with uncommitted changes" not in page
    assert "B=4 H=16 S=4096 D=128 bf16 causal" in page and "1 problem: 3 passed" in page
    for step in data["runs"][0]["steps"]:
        row, timing = row_of(page, step["step"]), step["timing"]
        median, low, high = map(rate, tflops_spread(data["runs"][0]["problem"], timing))
        assert f"<td>{median}<br>" in row and f"[{low}–{high}]" in row
        assert f"<td>{timing['tflops'] / 10:.1f}</td>" in row and "PASS" not in row
        assert f"<td>{step['resources']['registers']}</td>" in row
    assert f"NRMSE {0.005 / 4:.1e}, of {STEPS[0]}; the gate is 0.005" in page
    assert "<td>4.00</td>" in row_of(page, STEPS[1])  # times the one before
    assert images(page) == ["svg+xml", "svg+xml"]  # the ladder, errors
    [story] = re.findall(r'<a href="([^"]+)">docs/story/index.html</a>', page)
    assert (tmp_path / "report" / story).is_file()
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "errors.svg",
        "index.html",
        "progression_1.svg",
    ]


def test_a_share_of_the_limit_stands_beside_its_name(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    row = row_of(make(tmp_path, give_limit(make_record())), STEPS[1])
    assert "13.7" in row and "of mma_sync" in row


def test_a_run_on_the_emulator(tmp_path):
    page = make(tmp_path, make_record("emulator"))
    assert "FlashSteps on the CPU emulator" in page and "It has no timing model" in page
    assert "TFLOPS" not in page and "Synthetic CPU" in page
    # It needs nothing from elsewhere, and even what was overlooked could not be loaded or run.
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page and "default-src 'none'" in page
    row = row_of(page, STEPS[1])
    assert "<td>8,000<br><small>and 16,384 bytes by TMA</small></td>" in row
    assert "<td>3,000<br><small>3.00 × ideal</small></td>" in row
    assert images(page) == ["svg+xml", "svg+xml"]


def test_steps_that_count_the_same_share_a_row(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    data = make_record("emulator", steps=("v01_a", "v02_b", "v03_c"))
    steps = data["runs"][0]["steps"]
    steps[1]["counters"] = {**steps[0]["counters"], "wgmma": 0}
    steps[2]["counters"]["wgmma"] = 1152
    page = make(tmp_path, data)
    assert row_of(page, "v01_a") == row_of(page, "v02_b") and "v03_c" not in row_of(page, "v01_a")
    assert "<td>1,152</td>" in row_of(page, "v03_c")


def test_decode_steps_are_shown_on_a_decode_problem(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    steps = ("v01_scalar", "v28_split_keys", "v29_packed_heads")
    square = make_record("emulator", steps=steps)
    square["runs"][0]["steps"][2].update(status="fail", message="only here", validation=None)
    decode = make_record("emulator", steps=steps[1:], problems=[make_problem(seqlen_q=1, seqlen_kv=1024)])
    more = tmp_path / "decode.json"
    more.write_text(json.dumps(decode), encoding="utf-8")
    page = make(tmp_path, square, str(more))
    assert "2 problems: 3 passed, 1 failed" in page
    first, second = page.split("<thead>")[1:]
    assert "v01_scalar" in first and "v28_split_keys" not in first and "v28_split_keys" in second
    assert "v29_packed_heads" in first and "v29_packed_heads" in second


def test_steps_of_the_tree_have_their_idea_and_lesson(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    page = make(tmp_path, make_record(steps=("v01_scalar", "v10_tma_warpspec_one_stage", "v99_gone")))
    assert str(escape(sources.title("v01_scalar"))) in row_of(page, "v01_scalar")
    assert "steps/v01_scalar/README.md" in row_of(page, "v01_scalar")
    assert "steps/v10_tma_warpspec/variants.md#one_stage" in row_of(page, "v10_tma_warpspec_one_stage")
    assert "README.md" not in row_of(page, "v99_gone")


def test_an_ablation_stands_beside_its_step(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    names = ("v01_a", "v01_a_one", "v01_a_two", "v02_b")
    data = make_record(steps=names)
    before = data["runs"][0]["steps"][0]["timing"]["median_ms"]
    page = make(tmp_path, data)
    for step in data["runs"][0]["steps"][1:]:
        cell = f"<td>{report.ratio(before, step['timing']['median_ms'])}"
        small = "<br><small>× its step</small>" if step["step"] != "v02_b" else ""
        assert f"{cell}{small}</td>" in row_of(page, step["step"])


def test_every_failure_is_there_and_is_only_text(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    problems = [make_problem(), make_problem(causal=False)]
    data = make_record(problems=problems)
    message = "above the gate\n<script>alert(1)</script> & \"x\" 'y' \x1b[31m \ud800\n  hint: look"
    skipped = "needs sm_100"
    statuses = [("fail", message), ("crash", "signal 11"), ("timeout", "hung after 60 s")]
    for (status, words), step in zip(statuses, data["runs"][0]["steps"]):
        step.update(status=status, message=words, timing=None, validation=None)
    for run in data["runs"]:
        run["steps"].append({"step": "v04_later", "status": "skip", "message": skipped})
    data["complete"] = False
    data["provenance"]["device"]["name"] = "<b>GPU</b>"
    page = make(tmp_path, data)
    assert "<script" not in page and "<b>" not in page and "\x1b" not in page
    assert escape(message.replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")) in page
    sections = page[page.index("What did not pass") : page.index("<thead>")]
    order = [sections.index(words) for words in ("signal 11", "hung after", "above the gate", skipped)]
    assert order == sorted(order)
    assert sections.count(skipped) == 1 and "D=128 bf16 causal; B=4 H=16 S=4096 D=128 bf16 full" in sections
    assert "2 problems: 3 passed, 2 skipped, 1 failed, 1 hung, 1 crashed" in page
    assert "did not come to its end" in page
    assert "Change steps/v01_scalar/kernel.cu" in page  # the first that failed, and where
    assert "bash scripts/run.sh v01_scalar --shape 4,16,16,4096,4096,128 --dtype bf16 --causal<" in page
    for step, status in zip(STEPS, ("FAIL", "CRASH", "HANG")):
        assert len(re.findall(rf'<code>{step}</code>(?:</a>)? <span class="\w+">{status}</span>', page)) == 2


@pytest.mark.parametrize("backend", ["cuda", "emulator"])
def test_a_run_in_which_everything_failed(tmp_path, capsys, backend):
    data = make_record(backend)
    for step in data["runs"][0]["steps"]:
        step.update(status="crash", message="signal 11", timing=None, counters=None, validation=None)
    page = make(tmp_path, data, "--program", "/nonexistent")
    assert "3 crashed" in page and images(page) == [] and page.count("signal 11") == 6
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith("report.py: not drawn. ") for line in said)
    for line in said:
        assert escape(line.removeprefix("report.py: not drawn. ")) in page


def test_of_many_problems_the_first_have_charts_and_all_have_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PROBLEMS_DRAWN", 1)
    lengths = (512, 1024, 2048)
    data = make_record(problems=[make_problem(seqlen_q=length, seqlen_kv=length) for length in lengths])
    page = make(tmp_path, data)
    assert page.count("<thead>") == 3 and page.count("<summary>All numbers") == 1
    assert "The first 1 of 3 problems have charts" in page
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {"index.html", "progression_1.svg", "lengths_1.svg", "errors.svg"}
    without_charts(monkeypatch)
    page = make(tmp_path, data, "--where", "S=2048")
    assert "S=2048" in page and "S=512" not in page and "1 problem:" in page


def test_peers_have_rows_too(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    data = make_peers_record()
    data["runs"][0]["peers"][1].update(status="skip", message="no kernel", validation=None, timing=None)
    page = make(tmp_path, data)
    assert rate(data["runs"][0]["peers"][0]["timing"]["tflops"]) in row_of(page, "sdpa_flash")
    assert "<td>2.11.0+cu130</td>" in page and "no kernel" in row_of(page, "sdpa_cudnn")


def test_a_profile_gives_a_roofline(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PROBLEMS_DRAWN", 0)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(profile_of([make_problem(), make_problem(causal=False)])), encoding="utf-8")
    page = make(tmp_path, make_record(), "--profile", str(profile))
    svgs = [(tmp_path / f"report/roofline_{number}.svg").read_text("utf-8") for number in (1, 2)]
    assert "bf16 causal" in svgs[0] and "bf16 full" in svgs[1] and "The roofline" in page
    assert ">matmul<" in svgs[0] and ">matmul<" not in svgs[1]  # of which the run knows nothing


def test_a_missing_lab_costs_only_the_maps(tmp_path, monkeypatch, capsys):
    without_charts(monkeypatch)
    page = make(tmp_path, make_record("emulator", steps=("v01_scalar",)), "--program", "/bin/false")
    line = "What heads attend to: /bin/libflashsteps_lab.so: cannot open"
    assert images(page) == [] and line in page and line in capsys.readouterr().err


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_package_it_is_one_line_and_what_can_be_drawn(tmp_path, monkeypatch, capsys, package):
    (tmp_path / "results.json").write_text(json.dumps(make_record()), encoding="utf-8")
    monkeypatch.setitem(sys.modules, package, None)
    assert report.main([str(tmp_path / "results.json"), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and package in said and "scripts/requirements.txt" in said
    assert not (tmp_path / "index.html").exists()
    assert (tmp_path / "errors.svg").exists() == (package == "jinja2")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "Expecting value"),
        (b"\xff\x00", "can't decode"),
        (b"[1]", 'the file: [1] is not of type "object"'),
        (json.dumps(make_record() | {"runs": []}).encode(), "no problem was run"),
        (json.dumps(make_record() | {"schema": "x"}).encode(), "schema: is"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, capsys, content, expected):
    record, out = tmp_path / "\x1b[31m.json", tmp_path / "report"
    if content is not None:
        record.write_bytes(content)
    assert report.main([str(record), "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1 and "\x1b" not in message and not out.exists()


# In a browser: nothing missing or broken, readable on wide and narrow screens, in light and dark.

LINES = [
    "NRMSE 6.77e-01 is above the gate of 1e-03",
    '<script>throw new Error("from a file")</script><img src="http://127.0.0.1:9/x.png">',
    "& \"quoted\" 'too' $x^2$ \x1b[31m",
    "hint: " + "a_long_word_" * 40,
]


def with_failures(data: dict[str, Any]) -> dict[str, Any]:
    steps = data["runs"][0]["steps"]
    steps[1].update(status="fail", message="\n".join(LINES), timing=None, counters=None)
    steps[1]["validation"].update(nrmse=0.677, runs_identical=False)
    steps[2].update(status="skip", message="needs sm_90, this is sm_80", validation=None, timing=None)
    steps[2]["counters"] = None
    return data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on the emulator, and one on a GPU with all charts that there are; both with failures."""
    problems = [make_problem(seqlen_q=length, seqlen_kv=length) for length in (512, 1024)]
    made = {}
    for name, data in (
        ("emulator", make_record("emulator", problems=[make_problem(dtype="fp16")])),
        ("gpu", make_record(problems=problems)),
    ):
        folder = tmp_path_factory.mktemp(name)
        (folder / "results.json").write_text(json.dumps(with_failures(data)), encoding="utf-8")
        assert report.main([str(folder / "results.json"), "--out", str(folder)]) == 0
        made[name] = folder / "index.html"
    return made


def faults(browser: Browser, page: Path, width: int, scheme: str, charts: int) -> list[str]:
    found = browser.open(page, width, scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    seen = browser.evaluate(MEASURE)
    if len(seen["images"]) != charts:
        found.append(f"{len(seen['images'])} charts instead of {charts}")
    for image in seen["images"]:
        if not (image["natural"] and image["width"] > 100 and image["height"] > 50 and image["visible"]):
            found.append(f"broken or not to be seen: {image}")
        if not image["alt"]:
            found.append("an image without words")
    if seen["needed"] > seen["width"]:
        found.append(f"{seen['needed']} pixels wide, {seen['width']} are there")
    if (seen["paper"] < 0.2) != (scheme == "dark"):
        found.append(f"not {scheme}")
    found += [f"too faint: {element}" for element in seen["faint"]]
    wanted = (line.replace("\x1b", "\ufffd") for line in LINES)
    found += [f"does not say: {line}" for line in wanted if line not in seen["text"]]
    if "needs sm_90, this is sm_80" not in seen["text"]:
        found.append("does not say why a step was skipped")
    return found


CHARTS = {"emulator": 2, "gpu": 4}  # a ladder a problem, by length, errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 838, 360])
@pytest.mark.parametrize("name", CHARTS)
def test_the_report_is_whole_and_readable(browser, pages, name, width, scheme):
    assert faults(browser, pages[name], width, scheme, CHARTS[name]) == []


@pytest.mark.parametrize("width", [1400, 838, 360])
def test_of_the_whole_ladder_it_has_three_screens(browser, tmp_path, width):
    """What run.sh reports where all is well: the ladder, and the decode steps on a problem of their own."""
    ladder = tuple(step for step in sources.all_steps() if sources.part(step) != "backward")
    decode = tuple(step for step in ladder if sources.part(step) == "decode")
    few = make_problem(seqlen_q=1, seqlen_kv=1024)
    more = tmp_path / "decode.json"
    more.write_text(json.dumps(make_record("emulator", decode, [few])), encoding="utf-8")
    make(tmp_path, make_record("emulator", ladder), str(more))
    assert browser.open(tmp_path / "report" / "index.html", width, "light") == []
    assert browser.evaluate("document.documentElement.scrollHeight") <= 3 * 900
