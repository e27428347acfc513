"""Every rule of the checker has an example that breaks it."""

from __future__ import annotations

import json
import os
import subprocess

import jsonschema
import pytest
from conftest import (
    MATMUL_TFLOPS,
    Repository,
    git,
    give_limit,
    make_costs,
    make_peers_record,
    make_problem,
    make_record,
    make_ring,
)

from records import files, problems, profiles, rates, results, shape
from steps import sources

ABSENT = object()


def change(data, path: str, value):
    """Sets (or, with ABSENT, removes) what a path such as 'runs.0.steps.1.status' names."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        data = data[part]
    if value is ABSENT:
        del data[last]
    else:
        data[last] = value


STEP = "runs.0.steps.1."
TIMING = STEP + "timing."
VALIDATION = STEP + "validation."
CUDA_CASES = [
    ("schema", "flashsteps-results/9", "schema: is"),
    ("schema", "flashsteps-results/1", "schema: flashsteps-results/1 is an older form, which this version does not"),
    ("schema", "flashsteps-profile/1", "schema: flashsteps-profile/1 is an older form"),
    ("command", "runs", "command: is"),
    ("complete", 1, "complete: is 1, must be true or false"),
    ("complete", ABSENT, "complete: missing"),
    ("extra", 1, "extra: unknown key"),
    ("provenance.extra", 1, "provenance.extra: unknown key"),
    ("provenance.date", "2026-02-30T10:00:00Z", "provenance.date"),
    ("provenance.date", "2026-11-21", "provenance.date"),
    ("provenance.commit", "abc", "40 hex digits"),
    ("provenance.dirty", "no", "true or false"),
    ("provenance.backend", "metal", "one of cuda, emulator"),
    ("provenance.device.driver", ABSENT, "provenance.device.driver: missing, cuda has one"),
    ("provenance.device.name", "", "provenance.device.name"),
    ("provenance.device.sm_count", 1.5, "an integer >= 1"),
    ("provenance.build.nvcc", ABSENT, "provenance.build.nvcc: missing"),
    ("provenance.build.type", ABSENT, "provenance.build.type: missing"),
    ("provenance.method", ABSENT, "nobody knows how it was measured"),
    ("provenance.method.rounds", 0, "an integer >= 1"),
    ("runs", {}, "runs: must be a list"),
    ("runs.0.problem", [], "runs[0].problem: must be an object"),
    ("runs.0.problem.batch", True, "an integer >= 1"),
    ("runs.0.problem.batch", 0, "an integer >= 1"),
    ("runs.0.problem.batch", 10**400, "an integer >= 1"),
    ("runs.0.problem.dtype", "fp8", "one of fp32, fp16, bf16"),
    ("runs.0.problem.layout", "sbhd", "one of bhsd"),
    ("runs.0.problem.num_heads_kv", 3, "not a multiple of num_heads_kv"),
    ("runs.0.problem.label", "fast one", "runs[0].problem.label: unknown key"),
    ("runs.0.problem.lengths", [1, 2, 3, 4], "lengths: belongs to other kv_lengths than full"),
    ("runs.0.problem.kv_lengths", "random", "lengths: missing"),
    ("runs.0.problem.kv_lengths", "some", "one of full"),
    ("runs.0.ceilings.matmul.work", 0, "a number > 0"),
    ("runs.0.ceilings.matmul.unit", "mul", "one of FLOP, exp2"),
    ("runs.0.ceilings.matmul.p10_ms", 2.05, "p10_ms <= median_ms"),
    ("runs.0.ceilings.conv", {}, "unknown key"),
    ("provenance.device.peak_tflops.fp8", 1.0, "peak_tflops.fp8: unknown key"),
    ("provenance.device.peak_tflops.bf16", 50.0, "% of the card's peak, above 100"),
    (STEP + "step", "V 2", "a step name"),
    (STEP + "step", "v01_scalar", "appears twice in a run"),
    (STEP + "status", "ok", "one of pass"),
    (STEP + "status", "fail", "must say why"),
    (STEP + "status", "fail", "a step with status fail has none"),
    (STEP + "status", "skip", "a skipped step has none"),
    (STEP + "message", None, "message: is null"),
    (STEP + "validation", ABSENT, "validation: missing from a step that passed"),
    (STEP + "timing", ABSENT, "timing: missing from a step that passed"),
    (STEP + "counters", {name: 0 for name in shape.COUNTERS}, "counters: belong to the emulator"),
    (STEP + "seconds", -1, "a number >= 0"),
    (STEP + "tuned", 1, "true or false"),
    (STEP + "tuned", False, "tuned: belongs to a configuration"),
    (STEP + "resources.grid", [1, 1], "three integers >= 1"),
    (STEP + "resources.grid", [1, 1, 0], "resources.grid[2]: is 0, must be an integer >= 1"),
    (STEP + "resources.registers", "64", "an integer >= 0"),
    (VALIDATION + "nrmse", 0.5, "a pass needs at most"),
    (VALIDATION + "nrmse", None, "a pass needs at most"),
    (VALIDATION + "worst_row_nrmse", 0.5, "a pass needs at most"),
    (VALIDATION + "nonfinite", 1, "nonfinite: a pass has none"),
    (VALIDATION + "rows_checked", 0, "a pass has checked some"),
    (VALIDATION + "rows_checked", 10**9, "rows_checked: are 1000000000, the problem has 262144"),
    (VALIDATION + "gate_nrmse", 0.1, "looser than"),
    (VALIDATION + "gate_row", 0.1, "looser than"),
    (VALIDATION + "worst_element", 3.5, "worst_element: is 3.5, a pass needs at most gate_element: 3.0"),
    (VALIDATION + "worst_element", ABSENT, "worst_element: is null, a pass needs at most gate_element: 3.0"),
    (VALIDATION + "gate_element", ABSENT, "worst_element: is 1.5, a pass needs at most gate_element: null"),
    (VALIDATION + "bias", 2e-4, "bias: is 0.0002, a pass needs at most gate_bias: 0.0001"),
    (VALIDATION + "bias", None, "bias: is null, a pass needs at most gate_bias: 0.0001"),
    (VALIDATION + "gate_bias", None, "bias: is 1e-05, a pass needs at most gate_bias: null"),
    (VALIDATION + "runs_identical", False, "runs_identical: a pass needs true"),
    (VALIDATION + "modes", ["early"], "modes: belongs to the emulator"),
    (VALIDATION + "race_detector", True, "race_detector: belongs to the emulator"),
    (TIMING + "tflops", 1e6, "timing.tflops: is"),
    (TIMING + "p10_ms", 1e6, "p10_ms <= median_ms"),
    (TIMING + "median_ms", float("inf"), "a number > 0"),
    (TIMING + "limit", "exp2", "must be one of mma_sync, wgmma, fma"),
    (TIMING + "limit", "mma_sync", "timing.limit: the run has no ceilings.mma_sync"),
    (TIMING + "raw_ms", [1.0], "raw_ms: unknown key"),
    ("command", "check", "timing: 'check' has none"),
]
EMULATOR_CASES = [
    ("provenance.device.host_threads", ABSENT, "emulator has one"),
    (STEP + "counters.shared_wavefronts", 1, "below shared_wavefronts_ideal"),
    (STEP + "counters.cycles", 1, "cycles: unknown key"),
    (STEP + "counters.barriers", ABSENT, "barriers: missing"),
    (STEP + "resources.registers", 3, "registers: belongs to cuda"),
    (STEP + "validation.modes", ["fast"], "one of early, late, random"),
    (STEP + "timing", make_record()["runs"][0]["steps"][1]["timing"], "timing: the emulator has none"),
    ("runs.0.ceilings", make_record()["runs"][0]["ceilings"], "ceilings: belong to cuda"),
]


PEER = "runs.0.peers.1."
HOST = "host_overhead."
PEERS_CASES = [
    ("provenance.backend", "emulator", "provenance.backend: 'peers' needs cuda"),
    ("provenance.method", ABSENT, "provenance.method: missing, 'peers' has one"),
    ("provenance.peers", ABSENT, "provenance.peers: missing, 'peers' has one"),
    ("provenance.peers.torch", ABSENT, "provenance.peers.torch: missing"),
    ("provenance.peers.method", "", "provenance.peers.method"),
    ("provenance.peers.jax", "1.0", "provenance.peers.jax: unknown key"),
    ("provenance.peers.builds", {"torch": {}}, "provenance.peers.builds.torch: unknown key"),
    ("provenance.peers.builds", {"flash_attn_3": {}}, "provenance.peers.builds.flash_attn_3.commit: missing"),
    ("runs.0.peers", ABSENT, "runs[0].peers: missing, 'peers' has one"),
    (STEP + "validation", ABSENT, "validation: missing from a step that passed"),
    (STEP + "timing", ABSENT, "steps[1] (v02_smem_tiles).timing: missing from a step that passed"),
    (VALIDATION + "runs_identical", False, "runs_identical: a pass needs true"),
    (PEER + "peer", "flash_attn_9", "one of sdpa_flash, sdpa_cudnn"),
    (PEER + "peer", "sdpa_flash", "runs[0].peers[1] (sdpa_flash): appears twice in a run"),
    (PEER + "status", "timeout", "one of pass, fail, skip, crash, error"),
    (PEER + "status", "fail", "peers[1] (sdpa_cudnn).message: a step with status fail must say why"),
    (PEER + "status", "fail", "timing: a step with status fail has none"),
    (PEER + "status", "skip", "validation: a skipped step has none"),
    (PEER + "note", "", "note: is"),
    (PEER + "resources", {}, "resources: unknown key"),
    (PEER + "validation", ABSENT, "peers[1] (sdpa_cudnn).validation: missing from a step that passed"),
    (PEER + "timing", ABSENT, "peers[1] (sdpa_cudnn).timing: missing from a step that passed"),
    (PEER + "validation.nrmse", 0.5, "validation.nrmse: is 0.5, a pass needs at most"),
    (PEER + "validation.nonfinite", 2, "nonfinite: a pass has none"),
    (PEER + "validation.rows_checked", 10**9, "rows_checked: are 1000000000, the problem has"),
    (PEER + "validation.gate_row", 0.1, "looser than"),
    (PEER + "validation.runs_identical", ABSENT, "runs_identical: a pass needs true or false"),
    (PEER + "validation.modes", ["early"], "modes: belongs to the emulator"),
    (PEER + "timing.tflops", 1e6, "timing.tflops: is"),
    (PEER + "timing.p90_ms", 0.001, "p10_ms <= median_ms <= p90_ms does not hold"),
    ("host_overhead", ABSENT, "host_overhead: missing, 'peers' has one"),
    (HOST + "problem.num_heads_kv", 3, "host_overhead.problem.num_heads_q: is not a multiple"),
    (HOST + "calls_per_sample", 0, "an integer >= 1"),
    (HOST + "entries.3.median_us", 4.4, "entries[3] (sdpa_flash): p10_us <= median_us <= p90_us does not"),
    (HOST + "entries.3.median_us", 6.1, "entries[3] (sdpa_flash): p10_us <= median_us <= p90_us does not"),
    (HOST + "entries.3.name", "v01_scalar", "entries[3] (v01_scalar): appears twice"),
    (
        HOST + "entries.3.name",
        "v09_other",
        "entries[3] (v09_other): is neither a step of the runs nor a peer",
    ),
    ("command", "run", "provenance.peers: belongs to the command 'peers'"),
    ("command", "run", "runs[0].peers: belongs to the command 'peers'"),
    ("command", "run", "host_overhead: belongs to the command 'peers'"),
]


@pytest.mark.parametrize("backend", ["cuda", "emulator"])
def test_a_sound_file_passes(backend):
    assert results.check(make_record(backend)) == []


@pytest.mark.parametrize(("path", "value", "expected"), CUDA_CASES)
def test_each_rule_catches_its_example(cuda_record, path, value, expected):
    change(cuda_record, path, value)
    assert any(expected in line for line in results.check(cuda_record)), results.check(cuda_record)


@pytest.mark.parametrize(("path", "value", "expected"), EMULATOR_CASES)
def test_each_rule_of_the_emulator_catches_its_example(emulator_record, path, value, expected):
    change(emulator_record, path, value)
    assert any(expected in line for line in results.check(emulator_record)), results.check(emulator_record)


@pytest.mark.parametrize(("path", "value", "expected"), PEERS_CASES)
def test_each_rule_of_a_comparison_catches_its_example(path, value, expected):
    data = make_peers_record()
    change(data, path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_a_sound_comparison_passes(repository: Repository, capsys):
    data = make_peers_record(rates.PEERS, commit=repository.commit)
    data["runs"][0]["peers"][2]["validation"]["runs_identical"] = False
    assert results.check(data) == [] and results.check_recorded(data, repository.root) == []
    path = repository.record("peers.json", data)
    assert results.main(["check", "--recorded", "--root", str(repository.root), str(path)]) == 0
    assert "ok, 1 problem(s), 3 step(s), 8 peer(s)" in capsys.readouterr().out


def test_an_unfinished_comparison_may_lack_what_comes_last():
    data = make_peers_record()
    del data["host_overhead"], data["runs"][0]["peers"][1]["timing"]
    assert len(results.check(data)) == 2
    data["complete"] = False
    assert results.check(data) == []


def test_a_comparison_is_recorded_by_the_same_rules(repository: Repository):
    data = make_peers_record(commit=repository.commit)
    data["provenance"]["method"]["rounds"] = 6
    data["provenance"]["dirty"] = True
    found = results.check_recorded(data, repository.root)
    assert any("rounds: is 6" in line for line in found) and any("dirty" in line for line in found)


def test_a_share_of_a_limit_follows_from_the_ceiling(cuda_record):
    data = give_limit(cuda_record)
    run, timing = data["runs"][0], data["runs"][0]["steps"][2]["timing"]
    run["ceilings"]["exp2"] = run["ceilings"]["matmul"] | {"unit": "exp2", "sm_clock_mhz": None}
    assert results.check(data) == []
    assert rates.ceiling_rate(run["ceilings"]["mma_sync"]) == pytest.approx(0.4 * MATMUL_TFLOPS)
    assert rates.percent_of_limit(run, timing) == pytest.approx(timing["tflops"])  # the limit is at 100 TFLOPS
    run["ceilings"]["mma_sync"]["work"] /= 4
    assert any("% of ceilings.mma_sync, above 100" in line for line in results.check(data))
    timing["limit"] = "wgmma"
    assert any("the run has no ceilings.wgmma" in line for line in results.check(data))


def test_rates_follow_from_the_times(cuda_record):
    run, device = cuda_record["runs"][0], cuda_record["provenance"]["device"]
    problem, timing = run["problem"], run["steps"][1]["timing"]
    assert rates.tflops_spread(problem, timing) == pytest.approx(
        [problems.flops(problem) / timing[key] / 1e9 for key in ("median_ms", "p90_ms", "p10_ms")]
    )
    assert rates.percent_of_peak(problem, timing, device) == pytest.approx(timing["tflops"] / 10)
    assert rates.percent_of_peak(problem, timing, {"name": "unknown"}) is None
    assert rates.percent_of_limit(run, timing) is None


def make_cold(data):
    """The record, as if L2 had been flushed, and as if the problems had a few queries."""
    data["provenance"]["method"]["l2"] = "cold: flushed before every launch, outside of its time"
    for run in data["runs"]:
        read = {"what": "only read", "unit": "bytes", "work": 4e12}
        run["ceilings"]["read_kv"] = read | {key: 1.0 for key in ("median_ms", "p10_ms", "p90_ms")}
        for step in run["steps"]:
            step["timing"] |= {"l2": "cold", "limit": "read_kv"}
    return data


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("provenance.method.l2", "warm", "timing.l2: is not what provenance.method says of L2"),
        ("provenance.method.l2", "warm", "ceilings.read_kv: belongs to a run with a cold L2"),
        (TIMING + "l2", ABSENT, "timing.l2: is not what provenance.method says of L2"),
        (TIMING + "l2", "warm", "timing.l2: is"),
        ("runs.0.ceilings.read_kv.work", 1.0, "% of ceilings.read_kv, above 100"),
        ("runs.0.ceilings.read_kv", ABSENT, "the run has no ceilings.read_kv"),
    ],
)
def test_a_cold_run_says_so_of_each_timing_and_may_be_limited_by_reads(cuda_record, path, value, expected):
    data = make_cold(cuda_record)
    assert results.check(data) == []
    change(data, path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_several_gpus_are_a_record_without_runs(repository: Repository):
    data = make_ring(repository.commit)
    assert results.check(data) == [] and results.check_recorded(data, repository.root) == []
    for change_, expected in (
        ({"command": "bench"}, "ring: belongs to the command 'ring'"),
        ({"ring": None}, "ring: belongs to the command 'ring'"),
        ({"runs": make_record()["runs"]}, "runs: 'ring' has none"),
        ({"ring": data["ring"] | {"problems": []}}, "ring.problems: a complete record has some"),
    ):
        assert any(expected in line for line in results.check(data | change_)), expected
    problem = "ring.problems.0."
    for path, value, expected in (
        (problem + "contenders.0.name", "ring", "a contender appears twice"),
        (problem + "contenders.1.name", "rings", "needs the contenders share and ring"),
        (problem + "contenders.1.p10_ms", 9, "ring.p10_ms <= median_ms"),
        (problem + "transfer.p10_ms", 9, "transfer.p10_ms <= median_ms"),
        (problem + "nrmse", 0.006, "nrmse: is 0.006, above 0.005"),
        (problem + "trace.overlapped", ABSENT, "trace.overlapped: missing"),
        (problem + "tokens", 0, "tokens: is 0"),
    ):
        broken = make_ring(repository.commit)
        change(broken, path, value)
        assert any(expected in line for line in results.check(broken)), expected


def test_costs_of_instructions_are_a_record_without_runs(repository: Repository, capsys):
    data = make_costs(repository.commit)
    assert results.check(data) == [] and results.check_recorded(data, repository.root) == []
    path = repository.record("costs.json", data)
    assert results.main(["check", "--recorded", "--root", str(repository.root), str(path)]) == 0
    costs = data["instructions"]
    two_warps = costs["warps"][1]
    other = two_warps["others"][0]

    def with_other(others: list[dict]) -> dict:
        return {"instructions": costs | {"warps": [two_warps | {"others": others}]}}

    for change_, expected in (
        ({"command": "bench"}, "instructions: belong to the command 'info'"),
        ({"instructions": None}, "instructions: belong to the command 'info'"),
        ({"runs": make_record()["runs"]}, "runs: 'info' has none"),
        ({"instructions": costs | {"products_of_round": 0}}, "products_of_round: is 0"),
        ({"instructions": costs | {"warps": [two_warps | {"spread": 0}]}}, "spread: is 0, must be a number > 0"),
        ({"instructions": costs | {"warps": [two_warps, two_warps]}}, "warps: 2 appears twice"),
        (with_other([other | {"beside": [8]}]), "beside: is [8]"),
        (with_other([other | {"beside": [8, 8, 16]}]), "FFMA, 2 banks: beside does not grow"),
        (with_other([other, other]), "FFMA, 2 banks: appears twice"),
    ):
        assert any(expected in line for line in results.check(data | change_)), expected
    data["provenance"]["dirty"] = True
    assert any("dirty" in line for line in results.check_recorded(data, repository.root))


def test_a_count_needs_counters(emulator_record):
    emulator_record["command"] = "count"
    assert results.check(emulator_record) == []
    del emulator_record["runs"][0]["steps"][0]["counters"]
    assert any("counters: missing" in line for line in results.check(emulator_record))


def test_a_skipped_step_has_no_counters(emulator_record):
    emulator_record["runs"][0]["steps"][0] |= {"status": "skip", "message": "why", "validation": None}
    assert any("counters: a skipped step has none" in line for line in results.check(emulator_record))


def test_the_same_problem_twice(cuda_record):
    cuda_record["runs"].append(cuda_record["runs"][0])
    assert results.check(cuda_record) == ["runs[1].problem: appears twice"]


def problem_with_lengths(**changes):
    return make_problem(**({"kv_lengths": "random", "lengths": [0, 4096, 100, 7]} | changes))


@pytest.mark.parametrize("scale, words", [(0.05, "0.05"), (1.0, "1"), (0.123456789, "0.123456789"), (1e-20, "1e-20")])
def test_the_label_tells_a_scale_that_is_not_the_default(scale, words):
    problem = make_problem(softmax_scale=scale)
    assert problems.problem_label(problem).endswith(f" causal softmax_scale={words}")
    assert results.check(make_record(problems=[problem])) == []


def test_the_label_tells_the_size_of_pages():
    problem = make_problem(page_size=16, kv_lengths="skewed")
    assert problems.problem_label(problem).endswith(" causal kv_lengths=skewed page_size=16")
    assert results.check(make_record(problems=[problem])) == []


@pytest.mark.parametrize("causal", [False, True])
def test_flops_follow_from_the_lengths(causal):
    problem = problem_with_lengths(batch=2, seqlen_q=5, seqlen_kv=9, lengths=[0, 7], causal=causal)
    pairs = sum(1 for i in range(5) for j in range(7) if not causal or j <= i + 7 - 5)
    assert problems.flops(problem) == 4 * 128 * 16 * pairs
    assert problems.kv_bytes(problem) == 2 * 2 * 16 * 128 * 7


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("lengths", ABSENT, "lengths: missing"),
        ("lengths", [1, 2, 3], "lengths: are 3, the batch is 4"),
        ("lengths", [1, 2, 3, 4097], "lengths: one is above seqlen_kv, which is 4096"),
        ("lengths", [1, 2, 3, -1], "lengths[3]: is -1"),
        ("lengths", [0, 4096, 3000, 7], "tflops: is"),
        ("kv_lengths", "full", "lengths: belongs to other kv_lengths than full"),
    ],
)
def test_each_rule_of_lengths_catches_its_example(path, value, expected):
    data = make_record(problems=[problem_with_lengths()])
    change(data, "runs.0.problem." + path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_null_error_only_where_no_row_sees_a_key():
    problem = make_problem(kv_lengths="zeros")
    data = make_record("emulator", problems=[problem])
    for step in data["runs"][0]["steps"]:
        step["validation"] |= {"nrmse": None, "worst_row_nrmse": None}
    assert any("a pass needs at most" in line for line in results.check(data))
    problem["lengths"] = [0] * problem["batch"]
    assert results.check(data) == []


def test_older_records_lack_the_gates_of_elements(cuda_record):
    for key in ("worst_element", "gate_element", "bias", "gate_bias"):
        del cuda_record["runs"][0]["steps"][1]["validation"][key]
    assert results.check(cuda_record) == []


def test_an_unfinished_run_may_lack_timings(cuda_record):
    del cuda_record["runs"][0]["steps"][1]["timing"]
    cuda_record["complete"] = False
    assert results.check(cuda_record) == []


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_flops_are_the_unmasked_pairs(rows, keys, causal):
    pairs = sum(1 for i in range(rows) for j in range(keys) if not causal or j <= i + keys - rows)
    problem = make_problem(
        batch=2, num_heads_q=6, num_heads_kv=3, seqlen_q=rows, seqlen_kv=keys, causal=causal
    )
    assert problems.flops(problem) == 4 * 128 * 2 * 6 * pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": Infinity}', "Infinity is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1, "a": 2}', "appears twice"),
        ("{", "Expecting"),
        ("[" * 100000, "recursion"),
        ("[]", "must be an object"),
    ],
)
def test_what_is_no_results_file_is_one_line(tmp_path, capsys, text, expected):
    path = tmp_path / "file.json"
    path.write_text(text)
    assert results.main(["check", str(path)]) == 1
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1 and message.startswith(str(path))


def test_huge_numbers_are_not_finite(cuda_record):
    text = json.dumps(cuda_record).replace('"seconds": 0.5', '"seconds": 1e999', 1)
    assert any("seconds" in line for line in results.check(results.parse(text)))


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert results.main(["check", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_one_bad_file_does_not_hide_the_others(repository: Repository, capsys):
    bad = repository.write("bad.json", "{}")
    good = repository.root / "figures/results/gpu.json"
    assert results.main(["check", str(bad), str(good)]) == 1
    said = capsys.readouterr()
    assert f"{good}: ok" in said.out and f"{bad}: schema: missing" in said.err


def recorded(repository: Repository, **provenance) -> list[str]:
    data = make_record(commit=repository.commit)
    data["provenance"].update(provenance)
    assert results.check(data) == []
    return results.check_recorded(data, repository.root)


def test_a_recorded_run_passes(repository: Repository, capsys):
    assert recorded(repository) == []
    path = str(repository.root / "figures/results/gpu.json")
    assert results.main(["check", "--recorded", "--root", str(repository.root), path]) == 0
    assert "ok, 1 problem(s), 3 step(s)" in capsys.readouterr().out


def test_a_dirty_tree_is_not_recorded(repository: Repository):
    assert any("dirty" in line for line in recorded(repository, dirty=True))
    assert any("dirty" in line for line in recorded(repository, dirty=None))


def test_a_tuned_step_is_not_recorded(repository: Repository):
    data = make_record(commit=repository.commit)
    for tuned in (False, True):
        data["runs"][0]["steps"][0].update(configuration="64x64", tuned=tuned)
        assert results.check(data) == []
        assert any("is tuned" in line for line in results.check_recorded(data, repository.root)) == tuned


def test_an_incomplete_or_empty_run_is_not_recorded(repository: Repository):
    data = make_record(commit=repository.commit)
    data["complete"] = False
    assert any("complete" in line for line in results.check_recorded(data, repository.root))
    data["complete"], data["runs"] = True, []
    assert any("at least one problem" in line for line in results.check_recorded(data, repository.root))


def test_too_few_rounds_are_not_recorded(repository: Repository):
    data = make_record(commit=repository.commit)
    data["provenance"]["method"]["rounds"] = 6
    assert any("rounds: is 6" in line for line in results.check_recorded(data, repository.root))


def test_a_commit_that_is_no_ancestor(repository: Repository):
    git(repository.root, "checkout", "-q", "-b", "other")
    repository.write("file", "x")
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "elsewhere")
    elsewhere = git(repository.root, "rev-parse", "HEAD")
    assert recorded(repository, commit=elsewhere) == []
    git(repository.root, "checkout", "-q", "main")
    assert any("is not an ancestor of HEAD" in line for line in recorded(repository, commit=elsewhere))


def test_a_commit_that_is_unknown_or_missing(repository: Repository):
    assert any("is not in this repository" in line for line in recorded(repository, commit="1" * 40))
    assert any("needs one" in line for line in recorded(repository, commit=None))


def test_a_shallow_clone_is_not_a_pass(repository: Repository, tmp_path):
    repository.write("file", "x")
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "second")
    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository.root}", str(clone))
    errors = results.check_recorded(make_record(commit=repository.commit), clone)
    assert len(errors) == 1 and "git fetch --unshallow" in errors[0]


def test_no_clone_is_not_a_pass(repository: Repository, tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    errors = results.check_recorded(make_record(commit=repository.commit), folder)
    assert len(errors) == 1 and "use git clone" in errors[0]
    inside = repository.root / "archive"  # of another repository
    inside.mkdir()
    errors = results.check_recorded(make_record(commit=repository.commit), inside)
    assert len(errors) == 1 and "use git clone" in errors[0]


def test_no_commit_yet_is_not_a_pass(tmp_path):
    git(tmp_path, "init", "-q")
    errors = results.check_recorded(make_record(), tmp_path)
    assert len(errors) == 1 and "no commit yet" in errors[0]


def test_no_git_is_not_a_pass(repository: Repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert any("git is not installed" in line for line in recorded(repository))


def test_a_surrounding_hook_does_not_matter(repository: Repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert recorded(repository) == []


def test_a_build_is_of_its_own_repository(repository: Repository, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    script, out = sources.ROOT / "harness" / "base" / "build_info.cmake", tmp_path / "build_info.inc"
    command = ["cmake", f"-DSOURCE_DIR={repository.root}", f"-DOUTPUT={out}", "-DCOMMIT=", "-DDIRTY=", "-P", str(script)]
    subprocess.run(command, check=True)
    # The fixture's records are not committed.
    expected = f'#define FLASHSTEPS_COMMIT "{repository.commit}"\n#define FLASHSTEPS_DIRTY true\n'
    assert out.read_text(encoding="utf-8") == expected


def test_filters(cuda_record):
    data = make_record(
        problems=[make_problem(), make_problem(head_dim=64), make_problem(head_dim=64, causal=False)]
    )
    assert len(results.select_runs(data, {})) == 3
    assert len(results.select_runs(data, {"D": "64"})) == 2
    assert len(results.select_runs(data, {"D": "64", "causal": "true", "S": "4096", "dtype": "bf16"})) == 1
    with pytest.raises(results.ResultsError, match="no problem matches D=32"):
        results.select_runs(data, {"D": "32"})
    with pytest.raises(results.ResultsError, match="'colour' is no filter"):
        results.select_runs(data, {"colour": "red"})


def test_the_schema_is_one_and_says_what_others_say():
    jsonschema.Draft202012Validator.check_schema(shape.SHAPE)
    known = shape.SHAPE["$defs"]
    assert known["results"]["properties"]["schema"]["const"] == results.SCHEMA
    assert known["profile"]["properties"]["schema"]["const"] == profiles.SCHEMA
    method = known["profile"]["properties"]["provenance"]["properties"]["method"]["properties"]
    assert method["launch"]["enum"] == [profiles.METHOD["launch"], profiles.OLDER_LAUNCH]
    assert {key: each["const"] for key, each in method.items() if key != "launch"} == {
        key: words for key, words in profiles.METHOD.items() if key != "launch"
    }
    assert tuple(known["peer"]["properties"]["peer"]["enum"]) == rates.PEERS
    assert known["part"]["enum"] == [*sources.PARTS.values(), None]


def test_without_jsonschema_only_the_shape_is_not_checked(cuda_record, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shape, "jsonschema", None)
    cuda_record["runs"][0]["steps"][1]["seconds"] = "soon"
    assert results.check(cuda_record) == []
    cuda_record["runs"][0]["steps"][1]["timing"]["tflops"] = 1e6
    assert "timing.tflops: is" in results.check(cuda_record)[0]
    for data in ({}, [], {"schema": "x", "provenance": 1}):
        (line,) = results.check(data)
        assert line.startswith("has another shape than results.schema.json says; jsonschema says where")
    path = tmp_path / "good.json"
    path.write_text(json.dumps(make_record()), encoding="utf-8")
    assert results.main(["check", str(path)]) == 1
    assert "the shape of files cannot be checked" in capsys.readouterr().err


def test_a_link_with_the_temporary_name_is_not_followed(tmp_path):
    record, other = tmp_path / "record.json", tmp_path / "other"
    other.write_text("somebody's", encoding="utf-8")
    (tmp_path / f"record.json.{os.getpid()}.tmp").symlink_to(other)
    files.replace(record, "{}\n")
    assert record.read_text(encoding="utf-8") == "{}\n" and not record.is_symlink()
    assert other.read_text(encoding="utf-8") == "somebody's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "record.json"]
