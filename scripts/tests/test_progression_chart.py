"""The chart of a user's own run: the command. What it shows is tested in test_charts.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, STEPS, Repository, make_peers_record, make_problem, make_record

import progression_chart

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")


def chart(repository: Repository, name: str = "gpu.json", *options: str) -> str:
    out = repository.root / "report" / "progression.svg"
    record = repository.root / "figures" / "results" / name
    assert progression_chart.main([str(record), "--out", str(out), *options]) == 0
    assert out.stat().st_size <= 300_000
    return out.read_text(encoding="utf-8")


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
        for word in step.split("_"):
            assert f">{word}</text>" in text
    assert repository.commit[:12] in text


def test_names_that_do_not_fit_side_by_side_are_slanted_and_whole(repository: Repository):
    steps = tuple(f"v{number:02d}_quite_vectorized_name" for number in range(1, 21))
    data = make_record(steps=steps, commit=repository.commit)
    for step in data["runs"][0]["steps"]:
        step["timing"] = data["runs"][0]["steps"][0]["timing"]
    repository.record("gpu.json", data)
    text = chart(repository)
    assert all(f">{step}</text>" in text for step in steps)


def test_a_gpu_chart_says_where_it_comes_from(repository: Repository):
    text = chart(repository)
    assert "Synthetic GPU" in text and "TFLOPS" in text and "<dc:date>" not in text


def test_an_emulator_chart_says_that_it_shows_no_times(repository: Repository):
    text = chart(repository, "counts.json")
    assert "emulator counts, not times" in text and "TFLOPS" not in text
    assert "Global memory: sectors" in text and "Shared memory: wavefronts" in text and "m16n8k16" in text


def test_only_what_was_asked_for(repository: Repository):
    repository.record(
        "gpu.json",
        make_record(commit=repository.commit, problems=[make_problem(), make_problem(causal=False)]),
    )
    text = chart(repository, "gpu.json", "--where", "causal=true")
    assert "bf16 causal" in text and "bf16 full" not in text


def test_a_comparison_with_peers_shows_them(repository: Repository):
    repository.record("peers.json", make_peers_record(commit=repository.commit))
    text = chart(repository, "peers.json")
    assert ">FlashAttention-2</text>" in text and ">cuDNN</text>" in text


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
