"""stress.py, ring.py, sanitize.py, races.py and fit_default.py, on the emulator in the place of GPUs. Streams, graphs
and events need a GPU and are not tested here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import BUILD, ROOT, SCRIPTS

from measure import fit_default, lab, races, sanitize, stress
from measure.lab import LIBRARY, Lab
from pages import blocks
from records import results

PAIRS = 1 << 13


# stress.py


def test_problems_cover_the_contract():
    problems = [stress.draw(1, index, 1 << 26) for index in range(3000)]
    assert problems == [stress.draw(1, index, 1 << 26) for index in range(3000)]
    for key, values in (
        ("inputs", {*stress.INPUTS} - stress.OF_SCALES),
        ("layout", stress.LAYOUTS),
        ("dtype", ("fp16", "bf16")),
        ("head_dim", (64, 128)),
        ("causal", (False, True)),
        ("kv_lengths", ("full", "random", "skewed", "zeros")),
        ("lse", (None, "none")),
    ):
        assert {p.get(key) for p in problems} == {*values}
    for p in problems:
        assert 1 <= p["batch"] * p["num_heads_q"] * p["seqlen_q"] * p["seqlen_kv"] <= 1 << 26
        assert p["num_heads_q"] % p["num_heads_kv"] == 0
    assert {1, 63, 64, 65, 127, 128, 129} <= {p["seqlen_q"] for p in problems}
    # Both configurations of v25 at D = 64, of which it takes one by the number of keys.
    assert any(p["head_dim"] == 64 and p["causal"] and p["seqlen_kv"] > 8192 for p in problems)
    assert any(p["seqlen_q"] * 100 < p["seqlen_kv"] for p in problems)
    assert any(p["seqlen_kv"] * 100 < p["seqlen_q"] for p in problems)
    assert any("softmax_scale" in p for p in problems) and any("softmax_scale" not in p for p in problems)


def test_problems_that_are_rounded_have_all_inputs_of_fp8():
    drawn = [stress.draw(1, index, PAIRS, quantize=True) for index in range(500)]
    assert {p["inputs"] for p in drawn} == {*stress.INPUTS} - stress.NOT_OF_FP8 > stress.OF_SCALES
    assert {p["dtype"] for p in drawn} == {"fp16", "bf16"} and {p["quantize"] for p in drawn} == {"yes"}


@pytest.fixture
def of() -> stress.Stress:
    return stress.Stress(Lab(BUILD / LIBRARY, "emulator"), "emulator", stress.Watch(60))


def test_problems_of_fp8_are_those_that_steps_take(of: stress.Stress, capsys):
    drawn = [stress.draw(1, index, PAIRS, fp8=True) for index in range(40)]
    of.problems(drawn, ["v01_scalar", "v40_fp8"])
    assert of.failures == 0, capsys.readouterr().out
    assert of.ran["v40_fp8"] == {"e4m3": 40} and {p["inputs"] for p in drawn} > {"mean", "outliers", "channels"}
    assert {p.get("lse") for p in drawn} == {None, "none"}


@pytest.mark.parametrize(
    ("step", "kind", "types"),
    [
        ("v41_bytes_of_p", {"fp8": True, "fast": True}, {"e4m3"}),
        ("v42_fp8_cache", {"cache": "e4m3"}, {"fp16", "bf16"}),
        ("v43_quantize", {"quantize": True}, {"fp16", "bf16"}),
        ("v46_some_exponentials", {"fp8": True, "no_lse": True}, {"e4m3"}),
        ("v58_ordered_adds", {"backward": True}, {"fp16", "bf16"}),
    ],
)
def test_so_are_those_of_steps_that_take_one_kind_only(of: stress.Stress, capsys, step, kind, types):
    of.problems([stress.draw(1, index, PAIRS, **kind) for index in range(12)], [step])
    assert of.failures == 0, capsys.readouterr().out
    assert set(of.ran[step]) == types and sum(of.ran[step].values()) == 12


def test_a_hang_ends_the_process_and_is_named(capsys):
    ended, end = [], threading.Event()

    def exit(status: int) -> None:  # in the place of os._exit
        ended.append(status)
        end.set()

    watch = stress.Watch(0.2, exit)
    watch.start()
    watch.progress(lambda: "what has ended")
    watch.progress(lambda: "what hangs")
    assert end.wait(20) and ended == [3] and "no progress for 0.2 s in what hangs\n" in capsys.readouterr().out


def test_steps_pass(of: stress.Stress, capsys):
    of.problems([stress.draw(1, index, PAIRS) for index in range(40)], ["v01_scalar", "v09_direct_rescale"])
    assert of.failures == 0, capsys.readouterr().out
    assert sum(of.ran["v09_direct_rescale"].values()) == 40
    assert 0.1 < of.worst["bf16", "nrmse"] < 1


def test_time_ends_with_the_problem_that_has_begun(of: stress.Stress):
    of.problems([stress.draw(1, index, PAIRS) for index in range(40)], ["v09_direct_rescale"], minutes=0)
    assert sum(of.ran["v09_direct_rescale"].values()) == 1


def test_processes_add_up():
    words = [sys.executable, SCRIPTS / "measure" / "stress.py", "v09", "--problems", "3", "--lab", BUILD / LIBRARY]

    def ran(*more: str) -> list[int]:
        done = subprocess.run([*words, "--pairs", str(PAIRS), *more], capture_output=True, text=True, check=True)
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("v09_direct_rescale "))
        assert done.stdout.endswith("\n0 failures\n")
        return [int(number) for number in line.split()[1:]]

    alone = [ran("--seed", seed) for seed in ("5", "6")]
    assert ran("--seed", "5", "--processes", "2") == [sum(of_type) for of_type in zip(*alone)]


def test_what_fails_is_told_with_its_command(of: stress.Stress, capsys):
    failed = {"status": "fail", "message": "2 row(s) are wrong"}
    case = SimpleNamespace(check=lambda step, modes: failed, close=lambda: None)
    of.lab = SimpleNamespace(problem=lambda problem: case)
    of.problems([stress.draw(1, index, PAIRS) for index in range(40)], ["v01_scalar"])
    lines = capsys.readouterr().out.splitlines()
    assert of.failures == len(lines) == stress.MAX_FAILURES
    assert all(line.startswith("FAIL build/flashsteps check v01_scalar --backend emulator --shape ") for line in lines)
    assert all(line.endswith(": 2 row(s) are wrong") for line in lines)


class Attention:
    """The same every time, until there are so many calls."""

    def __init__(self, torch: Any, good_calls: float):
        self.torch, self.left = torch, good_calls

    def __call__(self, q, k, v, *, causal, scale, kv_lengths, step, return_lse):
        self.left -= 1
        assert not self.torch.isnan(q).any() and q.shape[3] == k.shape[3] == v.shape[3]
        return 2 * q if self.left >= 0 else 3 * q, q.float().sum(-1)

    def backward(self, d_o, q, k, v, o, lse, *, causal, scale, kv_lengths, step):
        assert o.shape == d_o.shape == q.shape and lse.shape == q.shape[:3]
        return (self(q, k, v, causal=causal, scale=scale, kv_lengths=kv_lengths, step=step, return_lse=True)[0], k, v)


@pytest.mark.parametrize(("step", "kind"), [("v01_scalar", {}), ("v51_delta_from_o", {"backward": True})])
def test_a_soak_passes_and_finds_what_goes_wrong_in_it_only(of: stress.Stress, capsys, step, kind):
    torch = pytest.importorskip("torch", reason="this test needs PyTorch (CPU is enough)")
    drawn = [stress.draw(1, index, PAIRS, **kind) for index in range(4)]
    for good_calls in (math.inf, len(drawn) + 1):  # one of each before the soak, and one in it
        attention = Attention(torch, good_calls)
        soak = stress.Soak(of, SimpleNamespace(attention=attention, attention_backward=attention.backward))
        assert "soak: " in soak.run(drawn, [step], minutes=0.01) and bool(of.failures) == (good_calls < math.inf)
    assert f"the soak, stream 0, build/flashsteps check {step}" in capsys.readouterr().out
    torch.set_grad_enabled(True)


def test_no_step_that_may_vary_is_in_a_soak(of: stress.Stress):
    torch = pytest.importorskip("torch", reason="this test needs PyTorch (CPU is enough)")
    drawn = [stress.draw(1, 0, PAIRS, backward=True)]
    assert stress.Soak(of, SimpleNamespace()).run(drawn, ["v52_atomic_dq"], minutes=0.01) == "soak: not begun"
    assert of.failures == 0 and of.varying == {"v52_atomic_dq"}
    torch.set_grad_enabled(True)


# ring.py


def test_a_rehearsal_of_the_ring_writes_a_record(tmp_path):
    for module in ("torch", "flashsteps"):
        pytest.importorskip(module, reason=f"this test needs {module}")
    path = tmp_path / "ring.json"
    words = f"--device cpu --tokens 16 --heads 1,1 --head-dim 64 --rounds 7 --json {path}".split()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ring = [SCRIPTS / "measure" / "ring.py", "--lab", BUILD / LIBRARY, *words]
    subprocess.run([*start, *ring], check=True, timeout=400)
    data = results.load(path)
    assert data["complete"] and data["provenance"]["backend"] == "emulator"
    (problem,) = data["ring"]["problems"]
    names = {entry["name"] for entry in problem["contenders"]} | problem["failed"].keys()
    assert names == {"share", "ring", "all_gather", "local", "torch"}


# sanitize.py


@pytest.mark.parametrize(
    ("line", "is_clean"),
    [
        ("========= ERROR SUMMARY: 0 errors", True),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("========= ERROR SUMMARY: 10 errors", False),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 2 warnings)", False),
        ("========= COMPUTE-SANITIZER", False),  # without a closing line nothing was checked
    ],
)
def test_only_a_closing_line_of_zero_is_clean(line: str, is_clean: bool) -> None:
    assert (sanitize.summary_line(f"PASS  v01_scalar\n{line}\n") in sanitize.CLEAN) == is_clean


def test_how_many_errors_are_not_printed_is_no_summary() -> None:
    said = "========= ERROR SUMMARY: 224 errors\n========= ERROR SUMMARY: 124 errors were not printed. Use --print-limit"
    assert sanitize.summary_line(said) == "ERROR SUMMARY: 224 errors"


def test_what_memcheck_left_out_is_said() -> None:
    skipped = "17 skipped (needs 16.0 GiB on the device)"
    said = f"PASS  v01_scalar  91 of 108 problems, 1.0 s\n      {skipped}\n"
    assert sanitize.what_passed(said) == f"91 of 108 problems, {skipped}"
    assert sanitize.what_passed("PASS  v01_scalar  a problem\n" * 2) == "2 problems passed"


# fit_default.py


def test_costs_are_fitted_to_what_kernels_do():
    """Kernels that take exactly what other costs than those of the rule say."""
    sizes = {"batch": 4, "num_heads_q": 32, "num_heads_kv": 8, "dtype": "bf16", "head_dim": 128, "causal": True}
    sizes |= {"kv_lengths": "full", "layout": "bhsd", "inputs": "normal", "seed": 1}
    card = {"sm_count": 132, "memory_bytes_per_us": 4.9e6, "l2_bytes": 60e6}
    problems = []
    for queries in (1, 4, 16, 64, 128, 256):
        for keys in (512, 1024, 4096, 16384):
            problem = sizes | {"seqlen_q": queries, "seqlen_kv": keys}
            known = lab.estimates(BUILD / LIBRARY, problem, card)
            names = {e["step"] for e in known}
            whole = "v27_tile_shapes_overlapping_launches@few_keys"
            few = "v36_stream_k_overlapping_full_sms@ctas1"
            assert {whole, few, "v39_dependent_launch@rows64"} <= names
            us = {}
            for estimate in known:
                scale = 0.5 if estimate["step"].startswith("v27") else 1.5
                launch, keys_and_rows, rows, sharing, reading = np.multiply(estimate["work"], estimate["costs"]) * scale
                us[estimate["step"]] = launch + max(keys_and_rows, reading) + rows + sharing
            problems.append((known, us))
    rule = fit_default.Rule(problems)
    costs = rule.fitted(3000)
    assert rule.loss(costs) < 0.5 * rule.loss(rule.costs)
    now, fitted = (float(rule.score(each).split()[0]) for each in (rule.costs, costs))
    assert now < 0.95 < 0.99 < fitted


def test_a_record_must_say_how_fast_the_memory_is(capsys):
    assert fit_default.main([str(ROOT / "figures" / "results" / "h200_peers.json"), "--lab", str(BUILD / LIBRARY)]) == 2
    assert "how fast the card's memory is" in capsys.readouterr().err


# races.py, with programs in the place of those that a GPU needs


RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at maxima(const int *, int *)+0x2a0 in scratch_reused.cu:12
=========     and Read access at maxima(const int *, int *)+0x310 in /a/docs/races/scratch_reused.cu:14 [96 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
TOOLS = {
    "nvidia-smi": "echo 'NVIDIA H200, 580.1'",
    # The program's runs are wrong and right in turns, those of the twin are right.
    "nvcc": """case $* in --version) echo 'release 13.0, V13.0.88'; exit;; esac
while [ "$1" != -o ]; do [ "$1" != -DMENDED ] || mended=1; shift; done
wrong="[ \"$mended\" ] || exec echo wrong: 3 of 128 elements"
echo "#!/bin/sh\nrm $2.ran 2>/dev/null || { >$2.ran; $wrong; }; echo ok" >$2
chmod +x $2""",
    "compute-sanitizer": f"""case $* in --version) echo 'Version 2025.3.1';; "--tool racecheck "*_bug*) cat <<'E'
{RACECHECK}
E
;; *) echo '========= ERROR SUMMARY: 0 errors';; esac""",
}


def test_what_a_gpu_says_of_the_gallery(tmp_path, monkeypatch):
    for name, script in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    written = tmp_path / "gpu.json"
    options = ["gpu", "scratch_reused", "--runs", "4", "--blocks", "7", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["races.py", *options])
    assert races.main() == 0
    record = json.loads(written.read_text())
    assert record["provenance"]["gpu"] == "NVIDIA H200" and record["provenance"]["sanitizer"] == "2025.3.1"
    monkeypatch.setattr(races, "recorded", lambda where: record)
    bug, mended = (record["programs"]["scratch_reused"][twin] for twin in ("bug", "mended"))
    assert blocks.how_often(bug["plain"]) + blocks.worst(bug["plain"]) == "2 of 4 runs (at most 3 of 128 elements)"
    assert blocks.how_often(mended["plain"]) + blocks.worst(mended["plain"]) == "0 of 4 runs"
    assert blocks.of_a_tool(bug["racecheck"]) == "1 hazard (1 error, 0 warnings), in lines 12 and 14"
    assert blocks.of_a_tool(mended["racecheck"]) == "0 errors"
