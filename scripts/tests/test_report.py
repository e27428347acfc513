"""The report of a run: what its page says. What its charts show is tested in test_charts.py, how it looks in a
browser in test_report_page.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import STEPS, give_limit, make_peers_record, make_problem, make_record
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
    assert report.main([str(record), "--out", str(folder / "report"), *options]) == 0
    return (folder / "report" / "index.html").read_text(encoding="utf-8")


def images(page: str) -> list[str]:
    return re.findall(r'<img src="data:image/(\S+?);base64,', page)


def row_of(page: str, step: str) -> str:
    [row] = re.findall(rf"<tr><td><code>{step}</code>.*?</tr>", page, re.DOTALL)
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
        assert f"<td>{timing['tflops'] / 10:.1f}</td>" in row and ">PASS<" in row
        assert f"<td>{step['validation']['nrmse']:.1e}<br><small>of 0.005</small></td>" in row
        assert f"<td>{step['resources']['registers']}</td>" in row
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
    row = row_of(page, STEPS[1])
    assert "<td>8,000</td>" in row and "<td>3,000<br><small>3.00 × ideal</small></td>" in row
    assert images(page) == ["svg+xml", "svg+xml"]


def test_steps_of_the_tree_have_their_idea_and_lesson(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    page = make(tmp_path, make_record(steps=("v01_scalar", "v10_tma_warpspec_one_stage", "v99_gone")))
    assert str(escape(sources.title("v01_scalar"))) in row_of(page, "v01_scalar")
    assert "steps/v01_scalar/README.md" in row_of(page, "v01_scalar")
    assert "steps/v10_tma_warpspec/variants.md#one_stage" in row_of(page, "v10_tma_warpspec_one_stage")
    assert "README.md" not in row_of(page, "v99_gone")


def test_a_step_without_a_lesson_is_shown_its_kernel(tmp_path, monkeypatch):
    kernel = tmp_path / "steps" / "v11_mine" / "kernel.cu"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report.sources, "all_steps", lambda: ["v11_mine"])
    monkeypatch.setattr(report.sources, "title", lambda step: "mine")
    assert report.idea_of("v11_mine") == ("mine", "steps/v11_mine/kernel.cu")
    (kernel.parent / "README.md").touch()
    assert report.idea_of("v11_mine") == ("mine", "steps/v11_mine/README.md")


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
        assert page.count(f"<tr><td><code>{step}</code>") == 2 and f'">{status}</span>' in page


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
    monkeypatch.setattr(report.pictures, "PROBLEMS_DRAWN", 1)
    lengths = (512, 1024, 2048)
    data = make_record(problems=[make_problem(seqlen_q=length, seqlen_kv=length) for length in lengths])
    page = make(tmp_path, data)
    assert page.count("<thead>") == 3 and page.count("<details>") == 2
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
    monkeypatch.setattr(report.pictures, "PROBLEMS_DRAWN", 0)
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


def test_nothing_from_elsewhere_is_needed(tmp_path, monkeypatch):
    without_charts(monkeypatch)
    page = make(tmp_path, make_record())
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert "default-src 'none'" in page  # so not even what was overlooked could be loaded or run


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
        (b"[1]", "the file: [1] is not of type 'object'"),
        (json.dumps(make_record() | {"runs": []}).encode(), "no problem was run"),
        (json.dumps(make_record() | {"schema": "x"}).encode(), "schema: is"),
        (json.dumps(profile_of([make_problem()])).encode(), "is a profile, this needs a results file"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, capsys, content, expected):
    record, out = tmp_path / "results.json", tmp_path / "report"
    if content is not None:
        record.write_bytes(content)
    assert report.main([str(record), "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1 and not out.exists()


