"""Every rule of the checker has an example that breaks it."""

from __future__ import annotations

import json
import subprocess

import jsonschema_rs
import pytest
from conftest import (
    MATMUL_TFLOPS,
    ROOT,
    Repository,
    git,
    give_limit,
    make_costs,
    make_peers_record,
    make_problem,
    make_record,
    make_ring,
    make_timing,
)

from records import problems, profiles, rates, results, rules
from records.writing import printable
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
    ("schema", "flashsteps-results/1", "schema: is flashsteps-results/1, this version reads flashsteps-results/2 and"),
    ("complete", ABSENT, 'the file: "complete" is a required property'),
    ("more", 1, "'more' was unexpected"),
    ("provenance.date", "2026-13-30T10:00:00Z", "provenance.date: is"),
    ("provenance.backend", "metal", '"metal" is not one of "cuda" or "emulator"'),
    ("provenance.device.driver", ABSENT, 'provenance.device: "driver" is a required property'),
    ("provenance.build.nvcc", None, "provenance.build.nvcc: is null"),
    ("provenance.method", ABSENT, 'provenance: "method" is a required property'),
    ("provenance.device.peak_tflops.bf16", 50.0, "% of the card's peak, above 100"),
    (STEP + "step", "v01_scalar", "runs[0].steps: v01_scalar appears twice"),
    (STEP + "status", "fail", 'message: is "", must be a text that is not empty'),
    (STEP + "status", "fail", "timing: is ..., must be absent: only what passed has one"),
    (STEP + "status", "skip", "validation: is ..., must be absent: the step was skipped"),
    (STEP + "validation", ABSENT, 'runs[0].steps[1]: "validation" is a required property'),
    (STEP + "timing", ABSENT, 'runs[0].steps[1]: "timing" is a required property'),
    (STEP + "counters", {name: 0 for name in rules.COUNTERS}, "counters: is ..., must be absent: the emulator's"),
    (STEP + "tuned", False, 'runs[0].steps[1]: "configuration" is a required property'),
    (VALIDATION + "nrmse", 0.5, "a pass needs at most"),
    (VALIDATION + "worst_row_nrmse", 0.5, "a pass needs at most"),
    (VALIDATION + "nonfinite", 1, "nonfinite: 0 was expected"),
    (VALIDATION + "rows_checked", 0, "rows_checked: is 0"),
    (VALIDATION + "gate_nrmse", 0.1, "looser than"),
    (VALIDATION + "gate_row", 0.1, "looser than"),
    (VALIDATION + "worst_element", 3.5, "worst_element: is 3.5, a pass needs at most gate_element: 3.0"),
    (VALIDATION + "worst_element", ABSENT, "worst_element: is null, a pass needs at most gate_element: 3.0"),
    (VALIDATION + "gate_element", ABSENT, "worst_element: is 1.5, a pass needs at most gate_element: null"),
    (VALIDATION + "bias", 2e-4, "bias: is 0.0002, a pass needs at most gate_bias: 0.0001"),
    (VALIDATION + "runs_identical", False, "runs_identical: true was expected"),
    ("runs.0.problem.lse", "none", "lse_max_abs: is 1e-06, must be null: the caller wanted no log-sum-exp"),
    ("runs.0.problem.lse", "no", '"no" is not one of "none" or null'),
    (VALIDATION + "modes", ["early"], "modes: is"),
    (TIMING + "tflops", 1e6, "timing.tflops: is"),
    (TIMING + "limit", "mma_sync", "timing.limit: the run has no ceilings.mma_sync"),
    ("command", "check", "timing: is ..., must be absent with 'check' and 'count'"),
    ("command", "count", 'runs[0].steps[1]: "counters" is a required property'),
]
LENGTHS_CASES = [
    ("lengths", ABSENT, 'problem: "lengths" is a required property'),
    ("lengths", [0, 4096, 3000, 7], "tflops: is"),
    ("kv_lengths", "full", "lengths: is [0, 4096, 100, 7], must be absent with kv_lengths full"),
]
EMULATOR_CASES = [
    ("provenance.device.host_threads", ABSENT, '"host_threads" is a required property'),
    (STEP + "counters.shared_wavefronts", 1, "below shared_wavefronts_ideal"),
    (STEP + "timing", make_record()["runs"][0]["steps"][1]["timing"], "timing: is ..., must be absent: a GPU's"),
    ("runs.0.ceilings", make_record()["runs"][0]["ceilings"], "ceilings: is ..., must be absent: a GPU's"),
]
COLD_CASES = [
    ("provenance.method.l2", "warm", "timing.l2: is"),
    ("provenance.method.l2", "warm", "ceilings.read_kv: is ..., must be absent, as provenance.method says"),
    (TIMING + "l2", ABSENT, 'timing: "l2" is a required property'),
    ("runs.0.ceilings.read_kv.work", 1.0, "% of ceilings.read_kv, above 100"),
    ("runs.0.ceilings.read_kv", ABSENT, "the run has no ceilings.read_kv"),
]
PEER = "runs.0.peers.1."
PEERS_CASES = [
    ("provenance.backend", "emulator", 'provenance.backend: "cuda" was expected'),
    ("provenance.method", ABSENT, 'provenance: "method" is a required property'),
    ("provenance.peers", ABSENT, 'provenance: "peers" is a required property'),
    ("runs.0.peers", ABSENT, 'runs[0]: "peers" is a required property'),
    (STEP + "timing", ABSENT, 'runs[0].steps[1]: "timing" is a required property'),
    (PEER + "peer", "sdpa_flash", "runs[0].peers: sdpa_flash appears twice"),
    (PEER + "status", "fail", "runs[0].peers[1].timing: is ..., must be absent: only what passed has one"),
    (PEER + "validation", ABSENT, 'runs[0].peers[1]: "validation" is a required property'),
    (PEER + "timing", ABSENT, 'runs[0].peers[1]: "timing" is a required property'),
    (PEER + "validation.runs_identical", ABSENT, '"runs_identical" is a required property'),
    (PEER + "validation.nrmse", 0.5, "runs[0].peers[1] (sdpa_cudnn).validation.nrmse: is 0.5"),
    ("host_overhead", ABSENT, 'the file: "host_overhead" is a required property'),
    ("command", "run", "provenance.peers: is ..., must be absent with other commands than 'peers'"),
    ("command", "run", "runs[0].peers: is ..., must be absent"),
    ("command", "run", "host_overhead: is ..., must be absent"),
]
PROBLEM = "ring.problems.0."
RING_CASES = [
    ("command", "bench", "ring: is ..., must be absent with other commands than 'ring'"),
    ("ring", None, 'ring: null is not of type "object"'),
    ("runs", make_record()["runs"], "runs: is ..., must be empty with 'ring'"),
    ("ring.problems", [], "ring.problems: [] has less than 1 item"),
    (PROBLEM + "contenders.1.name", "rings", "must be with a contender ring"),
    (PROBLEM + "nrmse", 0.006, "nrmse: 0.006 is greater than the maximum of 0.005"),
]
INFO_CASES = [
    ("command", "bench", "instructions: is ..., must be absent with other commands than 'info'"),
    ("instructions", None, 'instructions: null is not of type "object"'),
    ("runs", make_record()["runs"], "runs: is ..., must be empty with 'info'"),
]


def make_cold(data):
    """The record, as if L2 had been flushed, and as if the problems had a few queries."""
    data["provenance"]["method"]["l2"] = "cold: flushed before every launch, outside of its time"
    for run in data["runs"]:
        read = {"what": "only read", "unit": "bytes", "work": 4e12}
        run["ceilings"]["read_kv"] = read | {key: 1.0 for key in ("median_ms", "p10_ms", "p90_ms")}
        for step in run["steps"]:
            step["timing"] |= {"l2": "cold", "limit": "read_kv"}
    return data


def problem_with_lengths(**changes):
    return make_problem(**({"kv_lengths": "random", "lengths": [0, 4096, 100, 7]} | changes))


RECORDS = [
    (make_record, CUDA_CASES),
    (lambda: make_record("emulator"), EMULATOR_CASES),
    (make_peers_record, PEERS_CASES),
    (lambda: make_cold(make_record()), COLD_CASES),
    (make_ring, RING_CASES),
    (make_costs, INFO_CASES),
    (
        lambda: make_record(problems=[problem_with_lengths()]),
        [(f"runs.0.problem.{path}", *case) for path, *case in LENGTHS_CASES],
    ),
]
CASES = [pytest.param(make, *case, id=f"{case[0]}-{case[2]}") for make, cases in RECORDS for case in cases]


@pytest.mark.parametrize(("make", "path", "value", "expected"), CASES)
def test_each_rule_catches_its_example(make, path, value, expected):
    data = make()
    assert results.check(data) == []
    change(data, path, value)
    assert any(expected in line for line in results.check(data)), results.check(data)


def test_no_object_of_the_schema_takes_an_unknown_key():
    """So that a word that is misspelled is told, and not taken for one that is left out."""
    objects = [rules.SHAPE]
    for each in objects:
        inner = [child for key, child in each.items() if key not in ("if", "is_cold")] if isinstance(each, dict) else each
        objects += [child for child in inner if isinstance(child, (dict, list))]
    described = [each for each in objects if "properties" in each and "object" in each.get("type", ())]
    assert len(described) > 20 and all(each["additionalProperties"] is False for each in described)


def test_a_peer_in_fp8_that_misses_a_gate_has_a_time():
    data = make_peers_record(problems=[make_problem(dtype="e4m3")])
    step, (_, peer) = data["runs"][0]["steps"][1], data["runs"][0]["peers"]
    peer |= {"status": "fail", "message": "o is too short by 2.4e-01"}
    peer["validation"] |= {"nrmse": 0.24, "worst_row_nrmse": 0.3}
    assert results.check(data) == []
    assert rates.best_peer(data["runs"][0])[0] == peer["peer"]
    for found in ({"nrmse": 0.98}, {"nrmse": None}, {"nonfinite": 1}, {"worst_row_nrmse": 0.98}):
        peer["validation"] |= {"nrmse": 0.24, "worst_row_nrmse": 0.3, "nonfinite": 0} | found
        assert any("only if it computes attention" in line for line in results.check(data)), found
    peer |= {"status": "pass", "message": "", "validation": data["runs"][0]["peers"][0]["validation"]}
    step |= {"status": "fail", "message": "wrong"}
    assert any("only what passed has one" in line for line in results.check(data))


def test_backward_passes_that_repeat_themselves_are_compared_alone():
    names = ("sdpa_cudnn", "flash_attn_4", "flash_attn_4_deterministic")
    data = make_peers_record(names, problems=[make_problem(backward="yes", seqlen_q=8)])
    (run,) = data["runs"]
    assert not rates.is_decode(run["problem"]) and rates.is_decode(run["problem"] | {"backward": None})
    cudnn, any_order, deterministic = run["peers"]
    any_order["validation"]["runs_identical"] = False
    assert results.check(data) == []
    best = {among: rates.best_peer(run, among)[0] for among in rates.BEST}
    assert best == {"best": names[2], "best non-deterministic": names[1], "best deterministic": names[2]}
    step = run["steps"][0]
    expected = step["timing"]["tflops"] / any_order["timing"]["tflops"]
    assert rates.ratio_to(run, step["step"], "best non-deterministic") == pytest.approx(expected)
    deterministic["validation"]["runs_identical"] = False
    assert any("is called deterministic" in line for line in results.check(data))
    del run["peers"][1:]
    assert rates.ratio_to(run, step["step"], "best deterministic") is None


def test_a_step_in_another_type_is_judged_as_that():
    data = make_peers_record(problems=[make_problem(dtype="e4m3")])
    step = data["runs"][0]["steps"][1]
    step["timing"] = make_timing(data["runs"][0]["problem"], 1.5)  # the fastest
    assert rates.best_step(data["runs"][0]) == step["step"]
    step["step"] += ":bf16"
    assert any("looser than 0.005 for bf16" in line for line in results.check(data))
    step["validation"] |= {"nrmse": 2e-3, "gate_nrmse": 5e-3, "worst_row_nrmse": 3e-3, "gate_row": 1e-2}
    assert results.check(data) == []
    assert rates.best_step(data["runs"][0]) != step["step"]
    # Of bf16 it has the peak, too, which is half of FP8's.
    peaks = data["provenance"]["device"]["peak_tflops"]
    peaks |= {"e4m3": 2 * step["timing"]["tflops"], "bf16": 0.9 * step["timing"]["tflops"]}
    assert any("% of the card's peak, above 100" in line for line in results.check(data))


def test_a_step_that_rounds_has_the_gates_and_the_peak_of_fp8_and_peers_have_not():
    data = make_peers_record(problems=[make_problem(dtype="bf16", quantize="yes")])
    (run,) = data["runs"]
    assert results.check(data) == []
    step, peer = run["steps"][1], run["peers"][0]
    for entry, passes in ((step, True), (peer, False)):
        before = dict(entry["validation"])
        entry["validation"] |= {"nrmse": 3e-2, "gate_nrmse": 6e-2, "worst_row_nrmse": 5e-2, "gate_row": 13e-2}
        assert (results.check(data) == []) == passes
        entry["validation"] = before
    peaks = data["provenance"]["device"]["peak_tflops"]
    fastest = max(entry["timing"]["tflops"] for entry in rates.contenders_of(run).values() if "timing" in entry)
    peaks |= {"e4m3": 2 * fastest, "bf16": 0.5 * peer["timing"]["tflops"]}
    above = [line for line in results.check(data) if "% of the card's peak, above 100" in line]
    timed = [each for each in run["peers"] if "timing" in each and each["timing"]["tflops"] > peaks["bf16"]]
    assert timed and len(above) == len(timed) and all(".peers[" in line for line in above)


@pytest.mark.parametrize("make", [make_peers_record, make_ring, make_costs, make_record])
def test_a_sound_record_may_be_quoted_from(make, repository: Repository, capsys):
    data = make(commit=repository.commit)
    path = str(repository.record("sound.json", data))
    assert results.main(["check", "--recorded", path]) == 0
    assert f"{path}: ok, {len(data['runs'])} problem(s)" in capsys.readouterr().out


def test_an_unfinished_comparison_may_lack_what_comes_last():
    data = make_peers_record()
    del data["host_overhead"], data["runs"][0]["peers"][1]["timing"]
    assert len(results.check(data)) == 2
    data["complete"] = False
    assert results.check(data) == []


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


def test_null_error_only_where_no_row_sees_a_key():
    problem = make_problem(kv_lengths="zeros")
    data = make_record("emulator", problems=[problem])
    for step in data["runs"][0]["steps"]:
        step["validation"] |= {"nrmse": None, "worst_row_nrmse": None}
    assert any("a pass needs at most" in line for line in results.check(data))
    problem["lengths"] = [0] * problem["batch"]
    assert results.check(data) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("{", "Expecting"),
        ("[" * 100000, "recursion"),
        ("[]", '[] is not of type "object"'),
    ],
)
def test_what_is_no_results_file_is_one_line(tmp_path, capsys, text, expected):
    path = tmp_path / "file.json"
    path.write_text(text)
    assert results.main(["check", str(path)]) == 1
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1 and message.startswith(str(path))


def test_a_file_of_others_does_not_command_the_terminal(tmp_path, capsys):
    assert printable("é↓ \x1b[31m\n\x9b\x7f\ud800") == "é↓ \\x1b[31m\\n\\x9b\\x7f\\ud800"
    record, path = make_record(), tmp_path / "\x1b[31m.json"
    record["runs"][0]["steps"][0] |= {"step": "v01\x1b[31m", "status": "\x1b[31m"}
    for data in (record, make_record() | {"\x1b[31m": 1}):
        path.write_text(json.dumps(data), encoding="utf-8")
        assert results.main(["check", str(path)]) == 1
        printed = "".join(capsys.readouterr())
        assert "\x1b" not in printed and "\\x1b[31m" in printed


def test_one_bad_file_does_not_hide_the_others(repository: Repository, capsys):
    bad = repository.write("bad.json", "{}")
    good = repository.root / "figures/results/gpu.json"
    assert results.main(["check", str(bad), str(good)]) == 1
    said = capsys.readouterr()
    assert f"{good}: ok" in said.out and f'{bad}: the file: "schema" is a required property' in said.err


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("provenance.dirty", True, "a recorded run comes from a clean tree"),
        ("provenance.dirty", None, "a recorded run comes from a clean tree"),
        ("provenance.commit", None, "40 hex digits in a recorded run"),
        ("provenance.commit", "1" * 40, "is not an ancestor of HEAD, or this clone is shallow"),
        ("provenance.method.rounds", 6, "at least 7 in a recorded run"),
        ("complete", False, "true in a recorded run"),
        ("runs", [], "at least one problem in a recorded run"),
        ("runs.0.steps", [], "at least one step in a recorded run"),
        ("runs.0.steps.1.step", "v09_other", "'v09_other' is neither a step nor a variant of commit"),
        ("runs.0.steps.1.tuned", True, "nobody else has the file"),
    ],
)
def test_what_is_not_recorded(path, value, expected, repository: Repository):
    data = make_record(commit=repository.commit)
    data["runs"][0]["steps"][1] |= {"configuration": "64x64", "tuned": False}
    assert results.check(data) == [] and results.check_recorded(data) == []
    change(data, path, value)
    assert results.check(data) == []
    assert any(expected in line for line in results.check_recorded(data))


def recorded(repository: Repository, commit: str = "") -> list[str]:
    return results.check_recorded(make_record(commit=commit or repository.commit))


def test_a_commit_that_is_no_ancestor(repository: Repository):
    git(repository.root, "checkout", "-q", "-b", "other")
    repository.write("file", "x")
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "elsewhere")
    elsewhere = git(repository.root, "rev-parse", "HEAD")
    assert recorded(repository, commit=elsewhere) == []
    git(repository.root, "checkout", "-q", "main")
    assert any("is not an ancestor of HEAD" in line for line in recorded(repository, commit=elsewhere))


def test_no_clone_is_not_a_pass(repository: Repository, tmp_path, monkeypatch):
    for folder in (tmp_path / "archive", repository.root / "archive"):  # the second is inside of another repository
        folder.mkdir()
        monkeypatch.setattr(results, "ROOT", folder)
        errors = recorded(repository)
        assert len(errors) == 1 and "is no git clone" in errors[0]


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
    script, out = ROOT / "harness" / "base" / "build_info.cmake", tmp_path / "build_info.inc"
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
    assert jsonschema_rs.meta.is_valid(rules.SHAPE)
    known = rules.SHAPE["$defs"]
    assert known["profile"]["properties"]["schema"]["const"] == profiles.SCHEMA
    method = known["profile"]["properties"]["provenance"]["properties"]["method"]["properties"]
    assert method["launch"]["enum"][0] == profiles.METHOD["launch"]
    assert {key: each["const"] for key, each in method.items() if key != "launch"} == {
        key: words for key, words in profiles.METHOD.items() if key != "launch"
    }
    assert tuple(known["peer"]["properties"]["peer"]["enum"]) == rates.PEERS
    assert known["part"]["enum"] == [*sources.PARTS.values(), None]
