"""The report of a run of the program itself: what scripts/pages/report.py makes of its file, and of its steps.
FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_program import FLASHSTEPS, MUTANTS, run

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

from markupsafe import escape

from draw import attention_maps  # in scripts/, which test_program adds to the path
from draw import error_analysis
from pages import report


def test_a_run_has_its_page_with_all_pictures(tmp_path: Path, monkeypatch) -> None:
    for script in (attention_maps, error_analysis):
        monkeypatch.setattr(script, "SEQLEN", 64)  # they are drawn in full for docs/figures
    monkeypatch.setattr(error_analysis, "BATCH", 1)
    out = tmp_path / "r.json"
    steps = ["v08_register_softmax", "v09_direct_rescale"]
    done = run(FLASHSTEPS, "run", *steps, "--backend", "emulator", "--shape", "1,1,64,64", "--json", str(out))
    assert done.returncode == 0, done.stdout
    assert report.main([str(out), "--out", str(tmp_path), "--program", str(FLASHSTEPS)]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 8 and "without a mask: v09_direct_rescale, float64" in page


def test_what_the_program_says_of_a_failure_is_on_the_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report.Pictures, "draw_charts", lambda *_: None)
    out = tmp_path / "r.json"
    words = ["--backend", "emulator", "--shape", "1,2,100,64", "--json", str(out)]
    assert run(MUTANTS, "run", "mutant_k_transposed", *words).returncode == 1
    assert report.main([str(out), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    message = json.loads(out.read_text())["runs"][0]["steps"][0]["message"]
    assert len(message.splitlines()) > 2 and escape(message.strip()) in page


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("v09_direct_rescale", "--shape 1,2,40,64"),
        (
            "v09_direct_rescale",
            "--shape 1,4,2,40,70,64 --causal --dtype bf16 --layout gapped --kv-lengths random --inputs sharp --seed 3 "
            "--no-lse --softmax-scale 0.30000001",
        ),
        ("v25_clean_loop_merging", "--shape 1,1,40,64 --earlier --num-sms 3"),
    ],
)
def test_the_command_on_the_page_runs_the_same_problem(tmp_path: Path, step: str, words: str) -> None:
    def problem_of(*arguments: str) -> dict:
        out = tmp_path / "r.json"
        done = run(FLASHSTEPS, "run", step, *arguments, "--json", str(out))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())["runs"][0]["problem"]

    problem = problem_of("--backend", "emulator", *words.split())
    program, command, *again = report.repeat_command(problem, "emulator").split()
    assert (program, command) == ("build/flashsteps", "run") and problem_of(*again) == problem
