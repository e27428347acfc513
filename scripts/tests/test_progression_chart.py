from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, STEPS, Repository, make_peers_record, make_problem, make_record

import progression_chart

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


def chart(repository: Repository, name: str = "gpu.json", *options: str) -> str:
    out = repository.root / "figures" / "progression.svg"
    record = repository.root / "figures" / "results" / name
    assert progression_chart.main([str(record), "--out", str(out), *options]) == 0
    assert out.stat().st_size <= 300_000
    return out.read_text(encoding="utf-8")


def check(repository: Repository, capsys) -> str:
    status = progression_chart.main(
        ["--root", str(repository.root), "--check", str(repository.root / "figures/progression.svg")]
    )
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return said.err


@pytest.mark.parametrize("name", ["gpu.json", "counts.json"])
def test_the_same_bytes_every_time(repository: Repository, name):
    """Also from another process, with another home and configuration of matplotlib's."""
    first = chart(repository, name)
    home = repository.root / "home"
    (home / ".config/matplotlib").mkdir(parents=True)
    (home / ".config/matplotlib/matplotlibrc").write_text("font.size: 30\n")
    again = repository.root / "again.svg"
    command = [sys.executable, str(SCRIPTS / "progression_chart.py")]
    command += [str(repository.root / "figures/results" / name), "--out", str(again)]
    subprocess.run(
        command, check=True, env={"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "Asia/Tokyo"}, cwd="/"
    )
    assert again.read_text(encoding="utf-8") == first


@pytest.mark.parametrize("name", ["gpu.json", "counts.json"])
def test_every_step_is_named(repository: Repository, name):
    text = chart(repository, name)
    for step in STEPS:
        assert f">{step}</text>" in text
    assert repository.commit[:12] in text


def test_a_gpu_chart_says_where_it_comes_from(repository: Repository):
    text = chart(repository)
    assert "Synthetic GPU" in text and "TFLOPS" in text and "<dc:date>" not in text


def test_an_emulator_chart_says_that_it_shows_no_times(repository: Repository):
    text = chart(repository, "counts.json")
    assert "emulator counts, not times" in text and "TFLOPS" not in text
    assert "global sectors" in text and "shared wavefronts" in text


def test_a_step_without_a_value_keeps_its_place_and_says_why(repository: Repository):
    data = make_record(commit=repository.commit, problems=[make_problem(), make_problem(causal=False)])
    data["runs"][0]["steps"][1] = {"step": STEPS[1], "status": "timeout", "message": "after $60 s\nmore"}
    del data["runs"][1]["steps"][2]
    repository.record("gpu.json", data)
    text = chart(repository)
    assert "timeout: after $60 s" in text and "not run" in text
    assert text.count(f">{STEPS[1]}</text>") == 2


def test_a_ceiling_is_a_line_only_when_it_does_not_flatten_the_bars(repository: Repository):
    data = make_record(commit=repository.commit)
    matmul = data["runs"][0]["ceilings"]["matmul"]
    for tflops, expected in (
        (100.0, "synthetic matmul: 100<"),
        (25000.0, "synthetic matmul: 25000, off the scale"),
    ):
        for step in data["runs"][0]["steps"]:
            step["timing"]["percent_of_matmul"] *= matmul["tflops"] / tflops
        matmul["tflops"] = tflops
        repository.record("gpu.json", data)
        assert expected in chart(repository)


def test_only_what_was_asked_for(repository: Repository):
    repository.record(
        "gpu.json",
        make_record(commit=repository.commit, problems=[make_problem(), make_problem(causal=False)]),
    )
    text = chart(repository, "gpu.json", "--where", "causal=true")
    assert "bf16 causal" in text and "bf16 full" not in text


@pytest.mark.parametrize("name", ["gpu.json", "counts.json"])
def test_a_fresh_chart_is_up_to_date(repository: Repository, capsys, name):
    chart(repository, name, "--where", "D=128", "--where", "causal=true")
    assert check(repository, capsys) == ""


def test_a_chart_of_other_data_is_stale(repository: Repository, capsys):
    chart(repository)
    repository.record("gpu.json", make_record(steps=STEPS[:2], commit=repository.commit))
    assert "is stale" in check(repository, capsys)
    (repository.root / "figures/results/gpu.json").unlink()
    assert "does not exist" in check(repository, capsys)


def test_a_chart_of_another_script_is_stale(repository: Repository, capsys, monkeypatch, tmp_path):
    chart(repository)
    for name in ("progression_chart.py", "requirements.txt"):
        (tmp_path / name).write_bytes((SCRIPTS / name).read_bytes() + b"\n# edited\n")
    monkeypatch.setattr(progression_chart, "__file__", str(tmp_path / "progression_chart.py"))
    assert "is stale" in check(repository, capsys)


def test_some_other_svg(repository: Repository, capsys):
    repository.write("figures/progression.svg", "<svg/>")
    assert "was not made by" in check(repository, capsys)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(runs=[]), "no problem was run"),
        (lambda data: data.update(schema="x"), "schema: is"),
        (
            lambda data: [
                step.update(status="fail", message="x", timing=None) for step in data["runs"][0]["steps"]
            ],
            "no step has timing",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(repository: Repository, capsys, change, expected):
    data = make_record(commit=repository.commit)
    change(data)
    record, out = repository.record("gpu.json", data), repository.root / "chart.svg"
    assert progression_chart.main([str(record), "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1 and not out.exists()


def test_a_chart_that_is_too_large_is_refused(repository: Repository, capsys, monkeypatch):
    monkeypatch.setattr(progression_chart, "MAX_BYTES", 1000)
    out = repository.root / "chart.svg"
    assert progression_chart.main([str(repository.root / "figures/results/gpu.json"), "--out", str(out)]) == 1
    assert "1000 are allowed" in capsys.readouterr().err and not out.exists()


def test_without_matplotlib_there_is_one_line(repository: Repository):
    command = [sys.executable, "-S", "-E", str(SCRIPTS / "progression_chart.py")]
    command += [str(repository.root / "figures/results/gpu.json"), "--out", str(repository.root / "x.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "scripts/requirements.txt" in done.stderr
    assert not Path(repository.root / "x.svg").exists()


def test_everything_that_matters_is_in_the_fingerprint(repository: Repository):
    record = json.dumps(make_record()).encode()
    assert progression_chart.fingerprint(record, {}) != progression_chart.fingerprint(record + b" ", {})
    assert progression_chart.fingerprint(record, {}) != progression_chart.fingerprint(record, {"D": "64"})


def test_a_comparison_with_peers_is_no_ladder(repository: Repository, capsys):
    record = repository.record("peers.json", make_peers_record(commit=repository.commit))
    out = repository.root / "figures" / "peers.svg"
    assert progression_chart.main([str(record), "--out", str(out)]) == 1
    assert "is a comparison with peers, this draws a ladder" in capsys.readouterr().err
    assert not out.exists()
