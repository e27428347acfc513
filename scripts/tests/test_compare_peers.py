"""compare_peers.py with a stand-in for the GPU: contenders that take known times on a clock that is moved by
hand. No number in here was measured."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_peers_record, make_problem

from measure import compare_peers, peers, program, torch_lab
from measure.nvml import Nvml
from measure.peers import Call, Skip
from measure.timer import WARM_UP_SECONDS, Timer, percentiles, timing_record
from records import problems, rates, results, rules
from records.problems import flops, problem_label
from records.terminal import Progress

SMALL = ("--shape", "4,16,1024,64")
FLOPS = 4 * 64 * 64 * 1024**2
BUILD = {
    "commit": "1" * 40,
    "dirty": False,
    "build": {"compiler": "GNU 12", "nvcc": "13.0", "flags": "", "type": "Release", "architectures": "90a"},
}
GOOD = {
    "nrmse": 2e-4,
    "worst_row_nrmse": 4e-4,
    "max_abs": 0.001,
    "lse_max_abs": 1e-6,
    "nonfinite": 0,
    "wrong_rows": 0,
    "worst_place": "batch 0, head 1, row 2",
    "not_zero": 0,
    "wrong_lse": 0,
    "runs_identical": True,
    "inputs_changed": False,
}


def ask(path: Path, *words: str) -> dict:
    """What the program would say, as far as these tests ask it; itself: harness/tests/test_program.py."""
    said: dict[str, list[str]] = {}
    for word in words:
        name, _, value = word.partition("=")
        said.setdefault(name, []).append(value)
    gates = {
        dtype: {"nrmse": whole, "row": row, "lse": 1e-4, "lse_relative": 1e-6}
        for dtype, (whole, row) in rules.GATES.items()
    }
    problems = []
    for shape in said.get("--shape", ["4,16,4096,128"]):
        batch, heads, *lengths, width = (int(number) for number in shape.split(","))
        heads_kv = lengths.pop(0) if len(lengths) > 1 else heads
        for causal in [False] * ("--full" in said or "--causal" not in said) + [True] * ("--causal" in said):
            problems.append(
                make_problem(
                    batch=batch, num_heads_q=heads, num_heads_kv=heads_kv, seqlen_q=lengths[0],
                    seqlen_kv=lengths[-1], head_dim=width, dtype=said.get("--dtype", ["fp16"])[0], causal=causal,
                )
            )  # fmt: skip
    count, rounds = (int(said.get(f"--{name}", ["0"])[0]) for name in ("contenders", "rounds"))
    orders = [[(at + round_) % count for at in range(count)] for round_ in range(rounds)]
    return {"problems": problems, "gates": gates, "orders": orders}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setattr(program, "ask", ask)


class OutOfMemory(RuntimeError):
    pass


class FakeLab:
    """Contenders by name, each with the milliseconds that a launch takes on the GPU, and on the host."""

    def __init__(self, **ms: float):
        self.ms = {"v01_scalar": 8.0, "v02_smem_tiles": 5.0, "sdpa_flash": 1.0, "sdpa_cudnn": 0.5, **ms}
        self.host_ms = dict.fromkeys([*self.ms, "matmul"], 0.005)
        self.clock = 0.0  # seconds
        self.found: dict[str, dict] = {}  # what judging finds, where it is not GOOD
        self.raises: dict[tuple[str, str], Exception] = {}  # (what, who): at that moment
        self.queue_ms = 0.0
        self.launched: list[str] = []
        self.log: list[str] = []
        self.device_error = ""
        self.missing = {"flash_attn": "No module named 'flash_attn'", "flash_attn_3": "not built"}
        self.missing |= {name: "too old" for name in ("sdpa_efficient", "sdpa_math", "flash_attn_4", "flashinfer")}
        self.builds: dict[str, dict[str, str]] = {}
        self.peak = 0.0
        self.free = 1 << 40
        self.leak = 0
        self.in_use = 0
        self.capturing = False
        self.noise = iter([])
        self.released = 0
        self.is_around = False
        self.cold_l2: set[bool] = set()  # as who prepares calls is told

    def moment(self, what: str, who: str) -> None:
        if error := self.raises.get((what, who)):
            if isinstance(error, KeyboardInterrupt):
                raise error
            if "illegal" in str(error):
                self.device_error = str(error)
            raise error

    def steps(self):
        return [name for name in self.ms if name.startswith("v")]

    def missing_peers(self):
        return self.missing

    def versions(self):
        return {"torch": "2.0", "cudnn": "9.19.0"}

    def device_record(self):
        device = {"name": "Synthetic GPU", "compute_capability": "9.0", "sm_count": 10}
        return {**device, "max_sm_clock_mhz": 1600, "driver": "1.2.3", "cuda_runtime": "13.0"}

    def build_info(self):
        return copy.deepcopy(BUILD)

    def peak_tflops(self, dtype):
        return self.peak

    def now(self):
        return self.clock

    def synchronize(self):
        self.clock += self.queue_ms / 1e3
        self.queue_ms = 0
        if self.device_error:
            raise RuntimeError(self.device_error)

    def broken(self):
        return self.device_error

    def is_out_of_memory(self, error):
        return isinstance(error, OutOfMemory)

    def free_bytes(self):
        return self.free

    def memory_in_use(self):
        return self.in_use

    def release(self):
        self.released += 1

    def sm_clock_mhz(self):
        return 1500

    def launch(self, name):
        self.moment("launch", name)
        assert self.is_around or not name.startswith("sdpa_"), "outside of its context"
        self.launched.append(name)
        if self.capturing:
            return
        self.clock += self.host_ms[name] / 1e3
        self.queue_ms += self.ms.get(name, 1.0)
        self.in_use += self.leak

    def elapsed_ms(self, work, while_running):
        self.synchronize()
        work()
        while_running()
        took = self.queue_ms * next(self.noise, 1.0)
        self.log.append("elapsed")
        self.synchronize()
        return took

    def cold_ms(self, run, launches, while_running):
        times = [self.elapsed_ms(run, lambda: None) for _ in range(launches)]
        self.moment("cold", self.launched[-1])
        while_running()
        self.log = [f"{launches} alone"]
        return times

    def capture(self, work):
        self.capturing, self.launched = True, []
        try:
            work()
            self.moment("capture", self.launched[0])
        finally:
            self.capturing = False
        names = list(self.launched)

        def replay():
            self.log.append(f"replay {names[0]} x {len(names)}")
            self.queue_ms += sum(self.ms[name] for name in names)

        return replay

    def inputs(self, problem):
        self.problem = problem
        return problem

    def reference(self, tensors):
        return "reference"

    @contextlib.contextmanager
    def around(self):
        self.is_around = True
        yield
        self.is_around = False

    def prepare(self, name, tensors, cold_l2):
        self.cold_l2.add(cold_l2)
        self.moment("prepare", name)
        around = self.around if name.startswith("sdpa_") else contextlib.nullcontext
        return Call(
            lambda: self.launch(name),
            lambda with_lse: (name, None),
            around,
            "a note" * (name == "sdpa_cudnn"),
        )

    def judge(self, call, tensors, reference, gate, is_step):
        name = call.output(True)[0]
        self.moment("judge", name)
        rows = tensors["batch"] * tensors["num_heads_q"] * tensors["seqlen_q"]
        hidden = problems.rows_without_keys(tensors) * tensors["batch"] * tensors["num_heads_q"]
        found = {**GOOD, "rows_total": rows, "rows_checked": rows if is_step else rows - hidden}
        if not is_step:
            found["lse_max_abs"] = None
        return {**found, **self.found.get(name, {})}

    def matmul(self):
        self.moment("prepare", "matmul")
        return Call(lambda: self.launch("matmul"), None), "a product", 4e12


def run(lab: FakeLab, *words: str) -> int:
    return compare_peers.main(list(words), lambda: lab)


def written(lab: FakeLab, tmp_path: Path, *words: str, status: int = 0) -> dict:
    path = tmp_path / "record.json"
    assert run(lab, *words, "--json", str(path)) == status
    data = results.read(path)
    assert results.check(data) == []
    return data


def entries(data: dict, index: int = 0) -> dict[str, dict]:
    return rates.contenders_of(data["runs"][index])


# The whole.


def test_a_comparison_is_recorded(tmp_path, capsys):
    lab = FakeLab()
    data = written(lab, tmp_path, *SMALL, "--causal", "--full", "--rounds", "9")
    assert data["complete"] is True and data["command"] == "peers"
    assert data["provenance"]["commit"] == "1" * 40 and data["provenance"]["method"]["rounds"] == 9
    assert (
        data["provenance"]["peers"]["cudnn"] == "9.19.0" and "flash_attn" not in data["provenance"]["peers"]
    )
    assert [problem_label(each["problem"])[-10:] for each in data["runs"]] == [" fp16 full", "p16 causal"]
    found = entries(data)
    assert list(found) == ["v01_scalar", "v02_smem_tiles", "sdpa_flash", "sdpa_cudnn"]
    assert [entry["timing"]["median_ms"] for entry in found.values()] == pytest.approx([8, 5, 1, 0.5])
    assert {entry["timing"]["samples"] for entry in found.values()} == {9}
    assert found["sdpa_flash"]["timing"]["tflops"] == pytest.approx(FLOPS / 1e9)
    assert found["sdpa_cudnn"]["note"] == "a note" and "note" not in found["sdpa_flash"]
    assert found["v01_scalar"]["validation"]["lse_max_abs"] == 1e-6
    assert found["sdpa_flash"]["validation"]["lse_max_abs"] is None
    assert rates.ceiling_rate(data["runs"][0]["ceilings"]["matmul"]) == pytest.approx(4000)
    host = data["host_overhead"]
    assert [entry["name"] for entry in host["entries"]] == list(found)
    assert [entry["median_us"] for entry in host["entries"]] == pytest.approx([5] * 4)
    assert host["calls_per_sample"] == 200 and problem_label(host["problem"]).startswith("B=1 Hq=2 Hkv=2 Sq=64 ")
    out = capsys.readouterr()
    assert out.err == "" and "left out: flash_attn cannot be used (No module named 'flash_attn')" in out.out
    assert "results: " in out.out and lab.released == 3


def test_without_json_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(FakeLab(), *SMALL) == 0
    assert list(tmp_path.iterdir()) == [] and "results: " not in capsys.readouterr().out


def test_the_tables(tmp_path, capsys):
    lab = FakeLab()
    lab.found["sdpa_flash"] = {"runs_identical": False}
    assert run(lab, *SMALL, "--shape", "4,16,2048,64") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.split("device: ")[1].splitlines() if line.split()}
    first = out.split("B=4 Hq=16 Hkv=16 Sq=1024")[1]
    line = next(line for line in first.splitlines() if line.startswith("  v02_smem_tiles"))
    assert line.split()[1:] == ["PASS", "3.4", "3.4-3.4", "-", "0.10", "2.0e-04", "4.0e-04"]
    assert "    sdpa_cudnn: a note\n" in first and "    sdpa_flash: two runs differ\n" in first
    assert "measured ceiling: a product 4000.0 TFLOPS" in first
    grid = out[out.index("\n  TFLOPS  ") + 1 :].splitlines()
    assert grid[0].split()[1:5] == ["v01_scalar", "v02_smem_tiles", "sdpa_flash", "sdpa_cudnn"]
    assert len(grid[1:3]) == 2 and all(line.split()[-2:] == ["sdpa_cudnn", "0.10"] for line in grid[1:3])
    assert grid[3].split()[-5:] == ["0.06", "0.10", "0.50", "1.00", "0.10"]
    assert grid[4].split()[-5:] == ["2"] * 5
    assert rows["v02_smem_tiles"][1] == "5.00", "the last table is that of the host"


def test_the_geometric_mean_is_over_problems_where_both_ran():
    problems = [make_problem(), make_problem(causal=False), make_problem(seqlen_q=512)]
    runs = make_peers_record(problems=problems)["runs"]
    for at, (step, peer) in enumerate([(8.0, 2.0), (1.0, 4.0), (3.0, None)]):
        runs[at]["steps"] = runs[at]["steps"][:1]
        runs[at]["steps"][0]["timing"]["tflops"] = step
        for entry in runs[at]["peers"]:
            entry["timing"] = {**entry["timing"], "tflops": peer} if peer else None
            entry["status"] = "pass" if peer else "skip"
    assert rates.geometric_mean([4.0, 0.25]) == pytest.approx(1)
    assert rates.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert rates.geometric_mean([]) is None
    rows = [line.split() for line in compare_peers.format_grid(runs).splitlines()]
    assert rows[-2][-4:] == ["1.00", "1.00", "1.00", "1.00"] and rows[-1][-4:] == ["2", "2", "2", "2"]
    assert rows[3][-4:] == ["skip", "skip", "-", "-"]


# FlashAttention-3.

BUILT = {"commit": "2" * 40, "compiler": "nvcc 13.0.88, g++ 12.2.0", "flags": "--use_fast_math"}
LONG = ("--shape", "8,16,2048,128")
LONG_FLOPS = 4 * 128 * 8 * 16 * 2048**2


def with_fa3(percent: float, shape_flops: float = LONG_FLOPS) -> FakeLab:
    """One whose FlashAttention-3 has this share of the matrix product's rate, 4000 TFLOPS."""
    lab = FakeLab(flash_attn_3=shape_flops / (percent / 100 * 4e12))
    del lab.missing["flash_attn_3"]
    lab.builds = {"flash_attn_3": BUILT}
    return lab


def test_a_record_says_how_flash_attention_3_was_built(tmp_path):
    data = written(with_fa3(85), tmp_path, *LONG)
    timing = entries(data)["flash_attn_3"]["timing"]
    assert rates.percent_of_ceiling(data["runs"][0], timing, "matmul") == pytest.approx(85)
    assert data["provenance"]["peers"]["builds"] == {"flash_attn_3": BUILT}
    data["provenance"]["peers"]["builds"] = {}
    assert results.check(data) == [
        "runs[0].peers[2] (flash_attn_3): provenance.peers.builds does not say how it was built"
    ]


def test_a_flash_attention_3_below_its_best_is_no_peer(tmp_path, capsys):
    data = written(with_fa3(64), tmp_path, *LONG)
    found = entries(data)["flash_attn_3"]
    assert found["status"] == "skip" and "timing" not in found
    assert found["message"].startswith("64 % of the matrix product's rate: was it built with all flags?")
    assert "flash_attn_3: 64 % of the matrix product's rate" in capsys.readouterr().out
    # Elsewhere its share says nothing: few tiles, a mask, short rows, another card.
    few = ("--shape", "1,16,2048,128")
    for words in (few, (*LONG, "--causal"), ("--shape", "32,16,512,128"), ("--shape", "8,16,2048,64")):
        assert entries(written(with_fa3(64), tmp_path, *words))["flash_attn_3"]["timing"]
    lab = with_fa3(64)
    device = {**lab.device_record(), "compute_capability": "8.0"}
    lab.device_record = lambda: device
    assert entries(written(lab, tmp_path, *LONG))["flash_attn_3"]["timing"]


# Who takes part.


def test_prefixes_and_named_peers(tmp_path):
    data = written(FakeLab(), tmp_path, "v02", *SMALL, "--peers", "sdpa_cudnn")
    assert list(entries(data)) == ["v02_smem_tiles", "sdpa_cudnn"]


def test_steps_come_in_the_ladders_order(tmp_path):
    data = written(FakeLab(), tmp_path, "v02", "v01", "v02_smem_tiles", *SMALL)
    assert [step["step"] for step in data["runs"][0]["steps"]] == ["v01_scalar", "v02_smem_tiles"]


@pytest.mark.parametrize(
    ("moment", "error", "status", "message"),
    [
        ("prepare", Skip("no such mask"), "skip", "no such mask"),
        ("prepare", ValueError("needs sm_90a\nor newer"), "skip", "needs sm_90a"),
        ("judge", RuntimeError("No available kernel"), {"v01_scalar": "error"}, "No available kernel"),
        ("judge", OutOfMemory("tried to allocate"), "skip", "not enough free memory"),
        ("judge", torch_lab.WrongOutput("o is float32"), "fail", "o is float32"),
        ("judge", KeyError("dtype"), "error", "KeyError: 'dtype'"),
        ("launch", OutOfMemory("tried to allocate"), "skip", "while being timed: there is not enough"),
        ("launch", KeyError("x"), "error", "while being timed: KeyError: 'x'"),
        ("launch", RuntimeError("a launch failed"), "error", "while being timed: RuntimeError: a launch"),
    ],
)
@pytest.mark.parametrize("who", ["v01_scalar", "sdpa_flash"])
def test_whoever_cannot_run_costs_nobody_else(tmp_path, capsys, moment, error, status, message, who):
    # A peer refuses with any exception, a step with ValueError: else its launch has failed.
    status = status if isinstance(status, str) else status.get(who, "skip")
    lab = FakeLab()
    lab.raises[moment, who] = error
    expected = 1 if who == "v01_scalar" and status != "skip" else 0
    data = written(lab, tmp_path, *SMALL, status=expected)
    found = entries(data)
    assert found[who]["status"] == status and message in found[who]["message"]
    assert found[who].get("timing") is None
    assert all(entry["timing"] for name, entry in found.items() if name != who)
    assert who not in [entry["name"] for entry in data["host_overhead"]["entries"]]
    out = capsys.readouterr().out
    assert f"    {who}: " in out and f"  {who} has no host overhead: " in out


def test_a_step_that_was_named_must_run_somewhere(tmp_path, capsys):
    lab = FakeLab()
    lab.raises["prepare", "v01_scalar"] = ValueError("too small")
    written(lab, tmp_path, *SMALL, "v01", "v02", status=2)
    assert "compare_peers.py: v01_scalar cannot run any of the problems here\n" in capsys.readouterr().err
    written(lab, tmp_path, *SMALL, status=0)


def test_nothing_could_run(tmp_path):
    lab = FakeLab()
    for name in ("v01_scalar", "v02_smem_tiles"):
        lab.raises["prepare", name] = ValueError("too small")
    written(lab, tmp_path, *SMALL, status=1)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"nrmse": 2e-3}, "NRMSE 2.00e-03 is above the gate of 1e-03"),
        (
            {"nrmse": math.nan, "max_abs": math.nan, "worst_row_nrmse": math.nan, "nonfinite": 3},
            "3 element(s) are NaN",
        ),
        ({"nrmse": math.nan}, "NRMSE nan is above the gate"),
        (
            {"wrong_rows": 2, "worst_row_nrmse": 0.5},
            "2 row(s) are wrong; worst: batch 0, head 1, row 2, error 5.00e-01",
        ),
        ({"worst_row_nrmse": math.inf}, "error inf (gate 2e-03)"),
        ({"not_zero": 1}, "1 row(s) see no key and are not exactly zero"),
        ({"wrong_lse": 4, "lse_max_abs": 0.3}, "4 lse value(s) are wrong, by up to 3.00e-01"),
        ({"inputs_changed": True}, "wrote to its inputs"),
    ],
)
@pytest.mark.parametrize("who", ["v02_smem_tiles", "sdpa_cudnn"])
def test_what_is_wrong_is_not_timed(tmp_path, found, message, who):
    lab = FakeLab()
    lab.found[who] = found
    data = written(lab, tmp_path, *SMALL, status=1 if who == "v02_smem_tiles" else 0)
    entry = entries(data)[who]
    assert entry["status"] == "fail" and message in entry["message"] and "timing" not in entry
    assert entry["validation"]["nrmse"] == (
        None if math.isnan(found.get("nrmse", 0)) else found.get("nrmse", 2e-4)
    )


def test_runs_that_differ_fail_a_step_and_inform_about_a_peer(tmp_path):
    lab = FakeLab()
    lab.found["v01_scalar"] = lab.found["sdpa_cudnn"] = {"runs_identical": False}
    found = entries(written(lab, tmp_path, *SMALL, status=1))
    assert found["v01_scalar"]["status"] == "fail" and "two runs" in found["v01_scalar"]["message"]
    assert found["sdpa_cudnn"]["status"] == "pass"
    assert found["sdpa_cudnn"]["validation"]["runs_identical"] is False


def test_rows_that_see_no_key_are_left_out_for_peers(tmp_path):
    data = written(FakeLab(), tmp_path, "--shape", "1,2,2,10,4,64", "--causal")
    found = entries(data)
    assert found["sdpa_flash"]["note"] == "not compared: 6 row(s) a head, which see no key"
    assert found["sdpa_flash"]["validation"]["rows_checked"] == 8
    assert found["v01_scalar"]["validation"]["rows_checked"] == 20


def test_more_than_the_peak_is_refused(tmp_path):
    lab = FakeLab()
    lab.peak = 10
    data = written(lab, tmp_path, *SMALL, "--full")
    found, device = entries(data), data["provenance"]["device"]
    percent = rates.percent_of_peak(data["runs"][0]["problem"], found["v01_scalar"]["timing"], device)
    assert percent == pytest.approx(10 * FLOPS / 8e9)
    for name in ("sdpa_flash", "sdpa_cudnn"):
        assert (
            found[name]["status"] == "fail"
            and "above the card's peak of 10.0: a bug" in found[name]["message"]
        )
        assert "timing" not in found[name]
    lab = FakeLab(v02_smem_tiles=1e-3)
    lab.peak = 1
    written(lab, tmp_path, *SMALL, status=1)


def test_an_unknown_peak_is_absent(tmp_path):
    assert "peak_tflops" not in written(FakeLab(), tmp_path, *SMALL)["provenance"]["device"]


def test_no_ceiling_costs_nobody(tmp_path, capsys):
    lab = FakeLab()
    lab.raises["prepare", "matmul"] = OutOfMemory("three matrices")
    data = written(lab, tmp_path, *SMALL)
    assert "ceilings" not in data["runs"][0]
    assert "  no measured ceiling: there is not enough free memory" in capsys.readouterr().out


def test_kept_outputs_are_noticed(capsys):
    lab = FakeLab()
    assert run(lab, *SMALL) == 0 and "who keeps outputs" not in capsys.readouterr().out
    lab.leak = 3
    assert run(lab, *SMALL) == 0 and "who keeps outputs?" in capsys.readouterr().out


# When the GPU is lost, or the process is.


@pytest.mark.parametrize("moment", ["judge", "launch"])
@pytest.mark.parametrize("who", ["v02_smem_tiles", "sdpa_flash"])
def test_a_lost_gpu_ends_the_run(tmp_path, capsys, moment, who):
    lab = FakeLab()
    lab.raises[moment, who] = RuntimeError("an illegal memory access was encountered")
    data = written(lab, tmp_path, *SMALL, status=3)
    assert data["complete"] is False and "host_overhead" not in data
    assert entries(data)[who]["status"] == "crash" and "illegal" in entries(data)[who]["message"]
    said = capsys.readouterr()
    assert said.err == (
        "compare_peers.py: the GPU cannot be used any more: an illegal memory access was encountered\n"
    )
    assert who in said.out


def test_an_error_that_comes_late_is_blamed_on_who_ran(tmp_path):
    """What a kernel does wrong may be said only when its end is waited for."""
    lab = FakeLab()
    judge = lab.judge

    def judge_and_break(call, *rest):
        if call.output(True)[0] == "v02_smem_tiles":
            lab.device_error = "misaligned address"
        return judge(call, *rest)

    lab.judge = judge_and_break
    data = written(lab, tmp_path, *SMALL, status=3)
    assert {name: entry["status"] for name, entry in entries(data).items()} == {
        "v01_scalar": "pass",
        "v02_smem_tiles": "crash",
    }


def test_a_killed_run_leaves_a_valid_file(tmp_path):
    lab = FakeLab()
    path = tmp_path / "record.json"
    judge = lab.judge

    def killed_at_the_second(call, tensors, *rest):
        if tensors["causal"]:
            raise KeyboardInterrupt
        return judge(call, tensors, *rest)

    lab.judge = killed_at_the_second
    assert run(lab, *SMALL, "--causal", "--full", "--json", str(path)) == 130
    data = results.read(path)
    assert results.check(data) == []
    assert data["complete"] is False and len(data["runs"]) == 1 and entries(data)["v01_scalar"]["timing"]
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_killed_before_anything_was_measured(tmp_path):
    lab = FakeLab()
    lab.raises["judge", "v01_scalar"] = KeyboardInterrupt()
    path = tmp_path / "record.json"
    assert run(lab, *SMALL, "--json", str(path)) == 130
    data = results.read(path)
    assert results.check(data) == [] and data["runs"] == [] and data["complete"] is False


def test_an_unsound_record_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "check", lambda data: ["runs[0]: is odd"])
    assert run(FakeLab(), *SMALL) == 1
    assert "the record is unsound: runs[0]: is odd" in capsys.readouterr().err


# Timing.


def make_timer(ms: float, **more) -> tuple[FakeLab, Timer]:
    lab = FakeLab(v05_x=ms)
    lab.host_ms["v05_x"] = 0.005
    return lab, Timer(lab, "v05_x", lab.prepare("v05_x", None, False), **more)


@pytest.mark.parametrize(
    ("ms", "launches", "graph"),
    [
        (45.0, 1, False),
        (8.0, 1, False),
        (3.0, 3, False),
        (0.2, 40, False),
        (0.19, 43, True),
        (0.004, 200, True),
    ],
)
def test_batches_of_eight_milliseconds(ms, launches, graph):
    lab, timer = make_timer(ms)
    assert (timer.launches, timer.replay is not None) == (launches, graph)
    assert lab.clock >= WARM_UP_SECONDS
    lab.log.clear()
    timer.sample()
    assert timer.ms == pytest.approx([ms]) and timer.clocks == [1500]
    replays = [f"replay v05_x x {launches}"] * 2 if graph else []
    assert lab.log == [*replays, "elapsed"], "one replay goes ahead of the one that counts"


def test_the_unmeasured_round_leaves_nothing():
    _, timer = make_timer(1.0)
    timer.sample(keep=False)
    assert timer.ms == [] and timer.clocks == []


def test_the_matmul_is_not_captured():
    assert make_timer(0.1, may_capture=False)[1].replay is None


def test_what_cannot_be_captured_is_launched_and_says_so(tmp_path, capsys):
    lab = FakeLab(v02_smem_tiles=0.01, sdpa_flash=0.01)
    for name in ("v02_smem_tiles", "sdpa_flash"):
        lab.raises["capture", name] = RuntimeError("operation not permitted when stream is capturing")
    found = entries(written(lab, tmp_path, *SMALL))
    assert found["v02_smem_tiles"]["timing"]["graph"] is False
    text = (
        "not in a CUDA graph (operation not permitted when stream is capturing): its times include launching"
    )
    assert found["sdpa_flash"]["note"] == text
    assert f"  v02_smem_tiles: {text}" in capsys.readouterr().out


def test_a_capture_that_breaks_the_gpu_is_a_crash(tmp_path):
    lab = FakeLab(sdpa_flash=0.01)
    lab.raises["capture", "sdpa_flash"] = RuntimeError("an illegal memory access")
    assert entries(written(lab, tmp_path, *SMALL, status=3))["sdpa_flash"]["status"] == "crash"


def test_percentiles_of_equal_times_are_equal():
    for value in (0.1, 0.3, 1 / 3, 0.7):
        assert set(percentiles([value] * 7, "ms").values()) == {value}


def test_medians_and_percentiles_of_the_samples():
    lab, timer = make_timer(10.0)
    lab.noise = iter([1.0, 1.3, 1.1, 0.9, 1.2, 1.0, 1.0])
    for _ in range(7):
        timer.sample()
    problem = make_problem()
    timing = timing_record(timer, problem)
    assert "l2" not in timing
    assert [timing[key] for key in ("p10_ms", "median_ms", "p90_ms")] == pytest.approx([9.6, 10, 12.4])
    assert timing["tflops"] == pytest.approx(flops(problem) / 1e10)
    assert (timing["sm_clock_mhz"], timing["samples"], timing["graph"]) == (1500, 7, False)


DECODE = ("--shape", "1,8,2,1,1000,64", "--dtype", "bf16", "--cold-l2")


def test_with_a_cold_l2_launches_are_timed_alone(tmp_path, capsys):
    lab, timer = make_timer(0.01, cold_l2=True)
    assert timer.launches == 50 and timer.replay is None
    lab.noise = iter([3.0, *[1.0] * 49])
    timer.sample()
    assert timer.ms == pytest.approx([0.01]) and lab.log == ["50 alone"]
    lab = FakeLab()
    data = written(lab, tmp_path, *DECODE)
    method = data["provenance"]["method"]
    assert results.check(data) == [] and method["l2"].startswith("cold") and lab.cold_l2 == {True}
    assert f"; before a launch the GPU waits {torch_lab.WAIT_CYCLES} cycles and flushes L2;" in method["timer"]
    timing = entries(data)["sdpa_flash"]["timing"]
    assert timing["l2"] == "cold" and timing["graph"] is False
    rate = 2 * 2 * 1000 * 64 * 2 * 1e3  # of K and V, in a millisecond
    problem, entry = data["runs"][0]["problem"], entries(data)["sdpa_flash"]
    assert timing["tflops"] * 1e12 * rates.terabytes(problem, entry) == pytest.approx(rate)
    out = capsys.readouterr().out
    assert "TB/s of K, V, cold L2" in out and "measured ceiling: a product" in out


@pytest.mark.parametrize("who", ["v01_scalar", "sdpa_flash"])
def test_a_cold_launch_that_is_always_late_is_an_error_and_no_time(tmp_path, capsys, who):
    lab = FakeLab()
    lab.raises["cold", who] = torch_lab.LateLaunch("the GPU waited in vain")
    found = entries(written(lab, tmp_path, *DECODE, status=int(who == "v01_scalar")))
    assert found[who]["status"] == "error" and "timing" not in found[who]
    assert found[who]["message"] == "while being timed: LateLaunch: the GPU waited in vain"
    assert all(entry["timing"] for name, entry in found.items() if name != who)
    assert f"    {who}: while being timed: LateLaunch" in capsys.readouterr().out


def test_the_order_changes(monkeypatch):
    order = []
    sample = Timer.sample
    monkeypatch.setattr(
        Timer, "sample", lambda self, keep: (order.append((self.name, keep)), sample(self, keep))
    )
    run(FakeLab(), *SMALL, "v01", "--peers", "sdpa_flash")
    names = ["v01_scalar", "sdpa_flash", "matmul"]
    expected = [(names[(at + round_) % 3], round_ > 0) for round_ in range(8) for at in range(3)]
    assert order == expected


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (SMALL, "B=1 Hq=2 Hkv=2 Sq=64 Skv=64 D=64 fp16 full"),
        (DECODE, "B=1 Hq=32 Hkv=8 Sq=1 Skv=1024 D=128 bf16 full"),
        ((*DECODE, "--shape", "1,8,2,2,1000,64"), "B=1 Hq=2 Hkv=2 Sq=64 Skv=64 D=64 fp16 full"),
    ],
)
def test_one_query_has_the_host_overhead_of_one(tmp_path, words, label):
    host = written(FakeLab(), tmp_path, *words)["host_overhead"]
    assert problem_label(host["problem"]) == label and len(host["entries"]) == 4


def test_host_overhead_does_not_wait_for_the_gpu():
    lab = FakeLab(v05_x=30.0)
    lab.host_ms["v05_x"] = 0.0125
    host = compare_peers.Session(lab, program.DEFAULT, [], ["v05_x"], [], 7).host_overhead()
    assert host["entries"] == [
        {"name": "v05_x", "median_us": pytest.approx(12.5), "p10_us": pytest.approx(12.5),
         "p90_us": pytest.approx(12.5), "samples": compare_peers.HOST_ROUNDS}
    ]  # fmt: skip


# Wrong use.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*SMALL, "--rounds", "6"], "--rounds is 6, it must be 7 to 10000"),
        ([*SMALL, "--rounds", "many"], "--rounds is many"),
        ([*SMALL, "--dtype", "fp32"], "--dtype fp32: peers know fp16 and bf16 only"),
        ([*SMALL, "--nonsense"], "--nonsense"),
        ([*SMALL, "v"], "'v' may be v01_scalar or v02_smem_tiles"),
        ([*SMALL, "v99"], "unknown step 'v99'; the module flashsteps has v01_scalar, v02_smem_tiles"),
        ([*SMALL, "--peers", "fa4"], "--peers: unknown peer 'fa4'; there are sdpa_flash"),
        ([*SMALL, "--peers", "flash_attn_3"], "--peers: flash_attn_3 cannot be used: not built"),
        (["--shape", "4096,64,65536,64"], "GiB on the device, which has 1024.0 GiB free"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(tmp_path, capsys, words, expected):
    path = tmp_path / "record.json"
    assert run(FakeLab(), *words, "--json", str(path)) == 2
    said = capsys.readouterr()
    assert expected in said.err and said.err.count("\n") == 1 and said.err.startswith("compare_peers.py: ")
    assert said.out == "" and list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    assert run(FakeLab(), *SMALL, "--json", str(tmp_path / "none" / "file.json")) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert run(FakeLab(), *SMALL, "--json", str(tmp_path)) == 2
    assert "is not a regular file" in capsys.readouterr().err
    assert run(FakeLab(), *SMALL, "--json", "") == 2
    assert "--json: the name is empty" in capsys.readouterr().err
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert run(FakeLab(), *SMALL, "--json", str(loop)) == 2
    assert f"--json {loop}: " in capsys.readouterr().err
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    assert run(FakeLab(), *SMALL, "--json", str(link)) == 0
    assert link.is_symlink() and results.check(results.read(tmp_path / "target.json")) == []


def test_what_the_program_refuses_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()  # ask() itself
    stand_in = tmp_path / "flashsteps"
    stand_in.write_text('#!/bin/sh\necho "flashsteps: asked $*" >&2\nexit 2\n', encoding="utf-8")
    stand_in.chmod(0o755)
    words = ["--shape=-1,2,9,64", "--grid", "big", "--seed", "3", "--causal", "--dtype", "bf16", "--shape", "1"]
    assert run(FakeLab(), *words, "--program", str(stand_in)) == 2
    asked = "problems --causal --grid=big --seed=3 --shape=-1,2,9,64 --shape=1 --dtype=bf16"
    assert capsys.readouterr().err == f"compare_peers.py: asked {asked}\n"
    assert run(FakeLab(), *SMALL, "--program", str(tmp_path / "none")) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"compare_peers.py: {tmp_path}/none cannot be run: No such file") and "--build" in said


# What is missing.


def test_no_torch_no_gpu_no_module(monkeypatch, capsys):
    def said() -> str:
        assert compare_peers.main(list(SMALL)) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and line.startswith("compare_peers.py: ")
        return line

    class Torch:
        __version__ = "2.0"

        class version:
            cuda = None

        class cuda:
            is_available = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch is missing: " in said()
    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert "there is no NVIDIA GPU to compare on: PyTorch 2.0 is built without CUDA" in said()
    Torch.version.cuda = "13.0"
    assert "PyTorch 2.0 sees none: is the driver loaded?" in said()
    Torch.cuda.is_available = staticmethod(lambda: True)
    monkeypatch.setitem(sys.modules, "flashsteps", None)
    assert "the Python module flashsteps is missing: " in said()


def test_an_installed_peer_that_does_not_import(monkeypatch, tmp_path):
    class Torch:
        device = staticmethod(lambda name: type("Device", (), {"type": "cpu"}))
        set_grad_enabled = staticmethod(lambda on: None)
        bfloat16 = float16 = None

    class Package:
        __version__ = "2.8"
        flash_attn_func = None

    lab = torch_lab.TorchLab(Torch, None, "cpu")
    monkeypatch.setitem(sys.modules, "flash_attn", Package)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", object())  # without the function
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    monkeypatch.setitem(sys.modules, "flashinfer", Package)  # without its class
    assert list(lab.missing_peers()) == ["flash_attn_3", "flash_attn_4", "flashinfer"]
    assert list(lab.packages) == ["flash_attn"] and lab.builds == {}

    # FlashAttention-3 is taken when it says how it was built.
    Package.__file__ = str(tmp_path / "flash_attn_interface.py")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", Package)
    path = tmp_path / "flash_attn_3" / "BUILD.json"
    path.parent.mkdir()
    good = {"commit": "0" * 40, "compiler": "nvcc 13.0.88", "flags": "--use_fast_math"}
    bad = [{**good, "commit": "main"}, {**good, "flags": " "}, {**good, "more": "x"}, {"commit": "0" * 40}]
    for text in ("", "{}", "[]", *map(json.dumps, bad)):
        path.write_text(text, encoding="utf-8")
        assert "flash_attn_3" in lab.missing_peers() and lab.builds == {} and "flash_attn_3" not in lab.packages
    path.unlink()
    assert f"{path} is missing" in lab.missing_peers()["flash_attn_3"]
    path.write_text(json.dumps(good), encoding="utf-8")
    Package.BatchDecodeWithPagedKVCacheWrapper = None
    assert list(lab.missing_peers()) == ["flash_attn_4"] and lab.builds == {"flash_attn_3": good}


def test_cudnns_version():
    assert [torch_lab.cudnn_version(n) for n in (91900, 90100, 8907, None)] == [
        "9.19.0",
        "9.1.0",
        "8.9.7",
        None,
    ]


def test_the_reason_of_a_refusal_is_in_the_warnings():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at a.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at a.cpp:2.)",
        "Flash attention kernel not used because: (Triggered internally at a.cpp:3.)",
        "Flash attention does not support fp8. (Triggered internally at a.cpp:4.)",
    ]
    error = RuntimeError("No available kernel. Aborting execution.\nat x")
    assert peers.sdpa_refusal(error, said) == "Flash attention does not support fp8."
    assert peers.sdpa_refusal(error, said[:3]) == "No available kernel. Aborting execution."


# Progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals():
    stream, file = Terminal(), io.StringIO()
    for each in (stream, file):
        progress = Progress(8, each)
        progress.show("two", units=2)
        progress.show("many", units=100)
        progress.clear()
    assert file.getvalue() == ""
    shown = stream.getvalue().split("\r\033[K")
    assert shown[1] == "[######..................]  25 % two"
    assert shown[2] == f"[{'#' * 24}] 100 % many" and shown[3] == ""


def test_progress_does_not_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    stream = Terminal()
    Progress(2, stream).show("x" * 100)
    assert len(stream.getvalue().removeprefix("\r\033[K")) == 49


def test_output_that_cannot_be_written_is_one_line():
    # A process of its own, whose standard output is really full.
    command = "import sys; sys.path[:0] = ['scripts', 'scripts/tests']; import test_compare_peers as t; "
    command += "t.program.ask = t.ask; sys.exit(t.compare_peers.main(list(t.SMALL), t.FakeLab))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", command], stdout=full, stderr=subprocess.PIPE, text=True, cwd=results.ROOT
        )
    assert done.returncode == 1
    assert done.stderr == "compare_peers.py: the output could not be written: No space left on device\n"


def test_progress_ends_where_the_work_does(monkeypatch):
    seen = []
    monkeypatch.setattr(Progress, "show", lambda self, text, units=0: seen.append((self.total, units)))
    run(FakeLab(), *SMALL, "--causal", "--full", "--rounds", "8")
    # The ceiling is warmed up as well, and the host's problem is checked.
    assert sum(units for _, units in seen) - 2 == seen[0][0]


# NVML.

NVML = r"""
#include <string.h>
int nvmlInit_v2(void) { return %(init)d; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  *device = (void*)0x123456789abcdef0;
  return strcmp(id, "00000000:1b:00.0");
}
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* mhz) {
  *mhz = 1755;
  return !(device == (void*)0x123456789abcdef0 && type == 1);
}
int nvmlDeviceGetMaxClockInfo(void* device, int type, unsigned* mhz) {
  *mhz = 1980;
  return !(device == (void*)0x123456789abcdef0 && type == 1);
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  if (length < 80) return 1;
  strcpy(text, "580.159.04");
  return 0;
}
"""


@pytest.fixture
def make_nvml(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    def make(init: int = 0, **renamed: str) -> str:
        source = NVML % {"init": init}
        for old, new in renamed.items():
            source = source.replace(old, new)
        library = tmp_path / f"libnvml{len(list(tmp_path.iterdir()))}.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
        subprocess.run(command, input=source.encode(), check=True)
        return str(library)

    return make


def test_nvml_answers(make_nvml):
    nvml = Nvml("00000000:1b:00.0", make_nvml())
    assert (nvml.sm_clock_mhz(), nvml.max_sm_clock_mhz(), nvml.driver_version()) == (1755, 1980, "580.159.04")


def test_nvml_that_has_no_answer(make_nvml):
    other_gpu = Nvml("00000000:2b:00.0", make_nvml())
    assert (other_gpu.sm_clock_mhz(), other_gpu.driver_version()) == (None, "580.159.04")
    for nvml in (
        Nvml("00000000:1b:00.0", "libno-such-library.so.1"),
        Nvml("00000000:1b:00.0", make_nvml(init=999)),
    ):
        assert (nvml.sm_clock_mhz(), nvml.max_sm_clock_mhz(), nvml.driver_version()) == (None, None, None)
    old = Nvml(
        "00000000:1b:00.0", make_nvml(nvmlDeviceGetMaxClockInfo="other", nvmlSystemGetDriver="x")
    )
    assert (old.sm_clock_mhz(), old.max_sm_clock_mhz(), old.driver_version()) == (1755, None, None)


def test_a_message_names_no_folder_of_the_machine():
    said = compare_peers.outcome(compare_peers.Skip("at /home/me/fa-3/flash_api.cpp:397, no FP16, 1/2 and a/b stay"))
    assert said["message"] == "at flash_api.cpp:397, no FP16, 1/2 and a/b stay"
