"""The lab: what scripts get of the harness, on the emulator and, where there is one, on a GPU.

The contender is attention in NumPy, which is no step. FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_program import FLASHSTEPS, ROOT, check_file, needs_gpu, run

from draw.attention_data import to_bits, to_double  # in scripts/, which test_program adds to the path
from measure import lab
from records.problems import flops, problem_label
from records.rules import FAST_GATES, GATES

LIBRARY = FLASHSTEPS.parent / lab.LIBRARY
SHAPE = "--shape=2,4,2,70,130,64"


@pytest.fixture(scope="module")
def emulator() -> lab.Lab:
    return lab.Lab(LIBRARY, "emulator")


def case_of(where: lab.Lab, *words: str) -> lab.Case:
    (problem,) = lab.problems(LIBRARY, *words)
    return where.problem(problem)


def inputs_of(case: lab.Case, names: Sequence[str] = "qkv") -> list[np.ndarray]:
    """On the emulator: [batch, heads, rows, head_dim] in float64, as they lie in memory."""
    found = []
    for name in names:
        tensor = case.tensors[name]
        shape, strides = tensor["shape"], [2 * stride for stride in tensor["strides"]]
        size = 2 + sum((n - 1) * stride for n, stride in zip(shape, strides))
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor["data"])).view(np.uint16)
        found.append(to_double(np.lib.stride_tricks.as_strided(raw, shape, strides).copy(), case.problem["dtype"]))
    return found


def attention(case: lab.Case) -> tuple[np.ndarray, np.ndarray]:
    """o and lse in float64."""
    q, k, v = inputs_of(case)
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if case.problem["causal"]:
        scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1 + k.shape[2] - q.shape[2]), -np.inf, scores)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(-1))
    return np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None]) @ v, lse


def judged(case: lab.Case, o: np.ndarray, lse: np.ndarray | None) -> dict[str, Any]:
    bits = np.ascontiguousarray(to_bits(o, case.problem["dtype"]))
    lse = None if lse is None else np.ascontiguousarray(lse, np.float32)
    return case.judge([bits.ctypes.data], None if lse is None else lse.ctypes.data)


def test_problems_are_the_programs() -> None:
    words = ("--shape=1,2,40,64", "--causal", "--full", "--dtype=bf16", "--kv-lengths=random")
    assert [problem_label(problem) for problem in lab.problems(LIBRARY, *words)] == [
        f"B=1 Hq=2 Hkv=2 Sq=40 Skv=40 D=64 bf16 {mask} kv_lengths=random" for mask in ("full", "causal")
    ]
    # Without a shape: those that a GPU is timed on.
    assert [problem_label(problem) for problem in lab.problems(LIBRARY)] == [
        "B=4 Hq=32 Hkv=32 Sq=4096 Skv=4096 D=64 fp16 causal",
        "B=4 Hq=16 Hkv=16 Sq=4096 Skv=4096 D=128 bf16 full",
    ]
    with pytest.raises(lab.LabError, match="--shape"):
        lab.problems(LIBRARY, "--shape=1,1,8")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("mask", ["--causal", "--full"])
def test_a_right_contender_passes(emulator: lab.Lab, dtype: str, mask: str) -> None:
    case = case_of(emulator, SHAPE, f"--dtype={dtype}", mask)
    o, lse = attention(case)
    found = judged(case, o, lse)
    assert (found["status"], found["message"]) == ("pass", "")
    assert 0 < found["validation"]["nrmse"] < found["validation"]["gate_nrmse"] / 2
    assert found["validation"]["bias"] < found["validation"]["gate_bias"]


def one_element(o: np.ndarray) -> np.ndarray:
    """Far too large for what its addends are, and nothing for its row."""
    o = o.copy()
    at = np.unravel_index(abs(o[0, 0, 60]).argmin(), o.shape[-1:])
    o[0, 0, 60][at] += 0.0016 * np.linalg.norm(o[0, 0, 60])
    return o


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda o, lse: (1.004 * o, lse), "is above the gate of 1e-03 for fp16"),
        (lambda o, lse: (np.where(np.arange(70)[:, None] == 7, 1.004 * o, o), lse), "8 of 560 checked rows are wrong"),
        (lambda o, lse: (one_element(o), lse), "an element is too far off"),
        (lambda o, lse: (0.9994 * o, lse), "o is too short by 6"),
        (lambda o, lse: (o, lse + 1e-3), "lse wrong"),
        (lambda o, lse: (np.where(np.arange(70)[:, None] == 69, np.nan, o), lse), "element(s) of o are NaN"),
        (lambda o, lse: (np.roll(o, 1, axis=1), lse), "every lse is right"),
    ],
    ids=["all", "row", "element", "bias", "lse", "nan", "heads"],
)
def test_every_gate_refuses_what_is_wrong(emulator: lab.Lab, wrong: Any, said: str) -> None:
    case = case_of(emulator, SHAPE, "--dtype=fp16")
    found = judged(case, *wrong(*attention(case)))
    assert found["status"] == "fail" and said in found["message"], found["message"]


def test_a_peer_is_not_judged_by_rows_that_see_no_key(emulator: lab.Lab) -> None:
    case = case_of(emulator, "--shape=1,2,2,100,60,64", "--causal")
    o, lse = attention(case)
    assert judged(case, o, lse)["status"] == "pass" and np.isneginf(lse[..., :40]).all()
    o[..., :40, :] = np.nan
    assert "sees no key" in judged(case, o, lse)["message"]
    assert judged(case, o, None)["status"] == "pass"
    o[..., 40, 0] = np.nan
    assert judged(case, o, None)["status"] == "fail"


def test_who_writes_to_an_input_is_told_and_costs_nobody_else(emulator: lab.Lab) -> None:
    case = case_of(emulator, SHAPE)
    o, lse = attention(case)
    ctypes.memset(case.tensors["v"]["data"] + 2, 60, 2)
    assert "v" in judged(case, o, lse)["message"]
    assert judged(case, o, lse)["status"] == "pass"
    assert np.array_equal(attention(case)[0], o)


def test_a_step_is_judged_as_the_program_judges_it(emulator: lab.Lab, tmp_path: Any) -> None:
    out = tmp_path / "r.json"
    done = run(FLASHSTEPS, "run", "v09", "--backend", "emulator", SHAPE, "--causal", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    check_file(out)
    theirs = json.loads(out.read_text())["runs"][0]["steps"][0]["validation"]
    case = case_of(emulator, SHAPE, "--causal")
    ours = case.check("v09_direct_rescale")
    assert ours["status"] == "pass"
    assert ours["validation"] == {key: theirs[key] for key in ours["validation"]}
    o, lse = case.outputs("v09_direct_rescale")
    assert case.judge([np.ascontiguousarray(o).ctypes.data], lse.ctypes.data)["validation"] == ours["validation"]
    refused = case_of(emulator, "--shape=1,1,8,64", "--dtype=fp32").check("v09_direct_rescale")
    assert refused["status"] == "skip" and "fp32" in refused["message"]


@pytest.mark.parametrize(("layout", "strides"), [("bhsd", [2, 1]), ("qkv", [0, 0])])
def test_fp8_has_scales_and_an_output_in_bf16(emulator: lab.Lab, layout: str, strides: list[int]) -> None:
    case = case_of(emulator, SHAPE, "--dtype=e4m3", f"--layout={layout}")
    scales = [case.tensors[f"{name}_descale"] for name in "qkv"]
    assert all(scale["shape"] == [2, 2] and scale["strides"] == strides for scale in scales)
    o, lse = case.outputs("v01_scalar")
    found = case.judge([o.ctypes.data], lse.ctypes.data)
    assert found["status"] == "pass" and found["validation"]["gate_nrmse"] == 4e-2, found
    assert 0 < found["validation"]["nrmse"] < 4e-3  # that of bf16
    o[1, 3, 69] = to_bits(1.5 * to_double(o[1, 3, 69], "bf16"), "bf16")
    assert case.judge([o.ctypes.data], lse.ctypes.data)["status"] == "fail"


@pytest.mark.parametrize("layout", ["bhsd", "qkv"])
def test_pytorch_reads_fp8_as_the_steps_do(emulator: lab.Lab, layout: str) -> None:
    torch = pytest.importorskip("torch", reason="this test needs PyTorch")
    from measure.peers import Call, TorchLab

    pytorch = TorchLab(torch, None, emulator)
    case = case_of(emulator, SHAPE, "--dtype=e4m3", f"--layout={layout}")
    tensors = pytorch.tensors(case)

    def values(name: str) -> Any:
        x, scale = getattr(tensors, name).double(), tensors.scales[f"{name}_descale"]
        return (x * scale.repeat_interleave(x.shape[1] // 2, 1)[..., None, None]).repeat_interleave(4 // x.shape[1], 1)

    q, k, v = map(values, "qkv")
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v).to(torch.bfloat16)
    assert pytorch.judge(Call(lambda: right, lambda: right), case, tensors)["status"] == "pass"


def gradients(case: lab.Case) -> list[np.ndarray]:
    """dq, dk and dv in float64, from the case's own o and lse."""
    q, k, v, o, d_o = inputs_of(case, ("q", "k", "v", "o", "d_o"))
    tensor, group = case.tensors["lse"], q.shape[1] // k.shape[1]
    rows = q.shape[:3]
    assert tensor["strides"] == [rows[1] * rows[2], rows[2], 1] and tuple(tensor["shape"]) == rows
    lse = np.ctypeslib.as_array((ctypes.c_float * np.prod(rows)).from_address(tensor["data"])).reshape(rows)
    assert np.allclose(lse, attention(case)[1], atol=1e-4)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if case.problem["causal"]:
        scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1 + k.shape[2] - q.shape[2]), -np.inf, scores)
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None])
    ds = weights * (d_o @ v.swapaxes(-1, -2) - (d_o * o).sum(-1, keepdims=True)) * q.shape[-1] ** -0.5
    of_heads = (ds.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_o)
    return [ds @ k, *(x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in of_heads)]


@pytest.mark.parametrize("words", [("--dtype=fp16", "--causal"), ("--dtype=fp32",)])
def test_gradients_of_a_step_are_judged_as_the_program_judges_them(emulator: lab.Lab, words: tuple[str, ...]) -> None:
    case = case_of(emulator, SHAPE, "--backward", *words)
    ours = case.check("v50_five_formulas")
    assert ours["status"] == "pass" and "varies" not in ours, ours
    found = [np.ascontiguousarray(x) for x in case.outputs("v50_five_formulas")]
    assert case.judge([x.ctypes.data for x in found], None)["validation"] == ours["validation"]
    forward = case.check("v09_direct_rescale")
    assert forward["status"] == "skip", forward


def judged_gradients(case: lab.Case, found: Sequence[np.ndarray]) -> dict[str, Any]:
    bits = [np.ascontiguousarray(to_bits(x, case.problem["dtype"])) for x in found]
    return case.judge([x.ctypes.data for x in bits], None)


@pytest.mark.parametrize("mask", ["--causal", "--full"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "qkv"])
def test_right_gradients_pass_and_wrong_ones_fail(emulator: lab.Lab, mask: str, layout: str) -> None:
    case = case_of(emulator, SHAPE, "--dtype=bf16", "--backward", mask, f"--layout={layout}")
    right = gradients(case)
    found = judged_gradients(case, right)
    assert (found["status"], found["message"]) == ("pass", "")
    assert 0 < found["validation"]["nrmse"] < found["validation"]["gate_nrmse"]
    for at, name in enumerate(("dq", "dk", "dv")):
        wrong = [1.03 * x if at == i else x for i, x in enumerate(right)]
        found = judged_gradients(case, wrong)
        assert found["status"] == "fail" and f"of {name} is above the gate" in found["message"], found["message"]
    assert judged_gradients(case, [right[0], right[2], right[1]])["status"] == "fail"


def test_a_peer_is_not_judged_by_rows_of_dq_that_see_no_key(emulator: lab.Lab) -> None:
    case = case_of(emulator, "--shape=1,2,2,100,60,64", "--causal", "--dtype=fp16", "--backward")
    dq, dk, dv = gradients(case)
    dq[..., :40, :] = np.nan
    assert judged_gradients(case, (dq, dk, dv))["status"] == "pass"
    dk[..., 59, 0] = np.nan
    assert "of dk are NaN" in judged_gradients(case, (dq, dk, dv))["message"]


def test_pytorch_reads_what_a_backward_pass_begins_with(emulator: lab.Lab) -> None:
    torch = pytest.importorskip("torch", reason="this test needs PyTorch")
    from measure.peers import Call, TorchLab

    pytorch = TorchLab(torch, None, emulator)
    case = case_of(emulator, SHAPE, "--dtype=bf16", "--causal", "--backward", "--layout=bshd")
    tensors = pytorch.tensors(case)
    q, o, d_o = inputs_of(case, ("q", "o", "d_o"))
    assert all(np.array_equal(getattr(tensors, name).double(), x) for name, x in (("q", q), ("o", o), ("d_o", d_o)))
    assert tensors.lse.shape == q.shape[:3] and tensors.lse.is_contiguous()
    right = tuple(torch.from_numpy(x).to(torch.bfloat16) for x in gradients(case))
    assert pytorch.judge(Call(lambda: right, lambda: right), case, tensors)["status"] == "pass"


def test_things_may_end_in_any_order() -> None:
    where = lab.Lab(LIBRARY, "emulator")
    case = case_of(where, "--shape=1,1,8,64")
    where.close()
    assert case.check("v01_scalar")["status"] == "pass"


def test_a_step_whose_lse_nobody_wants_is_judged_by_o_alone(emulator: lab.Lab) -> None:
    with_lse, without = (case_of(emulator, SHAPE, *more).check("v12_whole_rows") for more in ((), ("--no-lse",)))
    assert with_lse["status"] == without["status"] == "pass"
    assert with_lse["validation"]["lse_max_abs"] > 0
    assert without["validation"] == with_lse["validation"] | {"lse_max_abs": None}


def test_rounds_and_gates(emulator: lab.Lab) -> None:
    assert [emulator.order(4, round_) for round_ in range(2)] == [[0, 1, 3, 2], [1, 2, 0, 3]]
    assert [emulator.order(3, round_) for round_ in range(3)] == [[0, 1, 2], [2, 1, 0], [1, 2, 0]]
    assert {dtype: (gate["nrmse"], gate["row"]) for dtype, gate in emulator.gates.items()} == GATES
    (fast,) = lab.problems(LIBRARY, "--shape=1,1,8,64", "--dtype=e4m3", "--fast")
    found = emulator.problem(fast).check("v01_scalar")["validation"]
    assert (found["gate_nrmse"], found["gate_row"]) == FAST_GATES
    (rounded,) = lab.problems(LIBRARY, "--shape=1,1,8,64", "--dtype=bf16", "--quantize")
    found = emulator.problem(rounded).check("v43_quantize")["validation"]
    assert (found["gate_nrmse"], found["gate_row"]) == FAST_GATES and found["quantization_nrmse"] > 0.01


@pytest.mark.parametrize("more", [(), ("--backward", "--causal")])
def test_records_are_the_programs_own(emulator: lab.Lab, more: tuple[str, ...]) -> None:
    (problem,) = lab.problems(LIBRARY, "--shape=1,2,256,64", *more)
    method = {"launches_per_sample": 3, "graph": True, "what": "x", "unit": "FLOP", "work": 1e9}
    samples = {"ms": [3.0, 1.0, 2.0], "clocks": [1980, 1900], "method": method}
    said = emulator.records(
        {"problem": problem, "ceilings": {"matmul": samples}, "contenders": {"sdpa_flash": samples}}
    )
    timing = said["contenders"]["sdpa_flash"]
    assert (timing["median_ms"], timing["p10_ms"], timing["samples"], timing["graph"]) == (2.0, 1.2, 3, True)
    pairs = 256 * 257 // 2 if more else 256 * 256
    assert flops(problem) == (10 if more else 4) * 64 * 2 * pairs
    assert timing["tflops"] == flops(problem) / 2e9 and "limit" not in timing
    assert said["ceilings"]["matmul"]["work"] == 1e9


def test_what_a_call_raises_comes_back(emulator: lab.Lab) -> None:
    def wrong() -> None:
        raise ZeroDivisionError("of one's own")

    calls = lab.Calls(wrong)
    with pytest.raises(ZeroDivisionError, match="of one's own"), calls:
        assert calls.launch() == 1
    with pytest.raises(lab.LabError, match="the emulator has no timing model"):
        emulator.timer(lambda: None)
    with pytest.raises(lab.Unavailable, match="cannot open .*build it"):
        lab.Lab(LIBRARY.parent / "nowhere.so")


@needs_gpu
def test_a_call_is_timed_as_a_step_is() -> None:
    """A step that Python launches takes as long as one that the harness does: of long ones, which need no graph."""
    torch = pytest.importorskip("torch", reason="this test needs PyTorch")
    from measure.peers import Call, TorchLab

    gpu = lab.Lab(LIBRARY)
    pytorch = TorchLab(torch, None, gpu)
    case = case_of(gpu, "--shape=1,4,512,64", "--dtype=bf16")
    q, k, v = (x.contiguous() for x in vars(pytorch.tensors(case)).values() if torch.is_tensor(x))
    product = torch.empty_like(q)
    for cold in (False, True):
        call = Call(lambda: torch.mul(q, 2, out=product), lambda: product)
        timer, step = pytorch.timer(call, cold), case.step_timer("v01_scalar", cold)
        for _ in range(7):
            timer.sample(), step.sample()
        assert 0 < min(timer.ms) < min(step.ms)
        assert timer.method["graph"] is not cold and (timer.method.get("l2") == "cold") is cold
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    found = pytorch.judge(Call(lambda: right, lambda: right.clone()), case, pytorch.tensors(case))
    assert found["status"] == "pass" and found["validation"]["compared_with_v01"], found
    assert pytorch.judge(Call(lambda: q, lambda: q.clone()), case, pytorch.tensors(case))["status"] == "fail"

    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gpu.timer(wrong)


@needs_gpu
def test_a_comparison_with_peers_is_a_sound_record(tmp_path: Any) -> None:
    for needed in ("torch", "flashsteps"):
        pytest.importorskip(needed, reason=f"this test needs {needed}")
    out = tmp_path / "peers.json"
    words = ["v09", "v16", "--peers", "sdpa_flash", "sdpa_math", "--shape", "1,4,2048,64", "--shape", "2,4,2,300,300,64"]
    script = [sys.executable, str(ROOT / "scripts" / "measure" / "compare_peers.py"), *words, "--causal"]
    for more in ([], ["--cold-l2"]):
        done = run(*script, "--lab", str(LIBRARY), "--json", str(out), *more)
        assert done.returncode == 0, done.stdout + done.stderr
        check_file(out)
        for found in json.loads(out.read_text())["runs"]:
            assert [entry["status"] for entry in found["steps"] + found["peers"]] == ["pass"] * 4, found
            assert all(entry["timing"]["samples"] == 7 for entry in found["steps"] + found["peers"])


@needs_gpu
def test_a_comparison_of_backward_passes_is_a_sound_record(tmp_path: Any) -> None:
    for needed in ("torch", "flashsteps"):
        pytest.importorskip(needed, reason=f"this test needs {needed}")
    out = tmp_path / "peers.json"
    words = ["v50", "--backward", "--peers", "sdpa_flash", "sdpa_cudnn", "--dtype", "bf16", "--causal"]
    words += ["--shape", "1,4,1024,64", "--shape", "2,4,2,320,320,128"]
    script = [sys.executable, str(ROOT / "scripts" / "measure" / "compare_peers.py"), *words]
    done = run(*script, "--lab", str(LIBRARY), "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    check_file(out)
    for found in json.loads(out.read_text())["runs"]:
        assert [entry["status"] for entry in found["steps"] + found["peers"]] == ["pass"] * 3, found
        assert all(entry["timing"]["samples"] == 7 for entry in found["steps"] + found["peers"])


@needs_gpu
def test_a_comparison_in_fp8_has_steps_in_another_type(tmp_path: Any) -> None:
    for needed in ("torch", "flashsteps"):
        pytest.importorskip(needed, reason=f"this test needs {needed}")
    out = tmp_path / "peers.json"
    words = ["v40", "v27:bf16", "--peers", "sdpa_math", "--dtype", "e4m3", "--shape", "1,4,2048,64", "--layout", "qkv"]
    script = [sys.executable, str(ROOT / "scripts" / "measure" / "compare_peers.py"), *words]
    done = run(*script, "--lab", str(LIBRARY), "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    check_file(out)
    (found,) = json.loads(out.read_text())["runs"]
    entries = {entry["step"]: entry for entry in found["steps"]}
    assert list(entries) == ["v40_fp8", "v27_tile_shapes:bf16"] and found["peers"][0]["status"] == "skip"
    gates = {name: entry["validation"]["gate_nrmse"] for name, entry in entries.items()}
    assert gates == {"v40_fp8": 4e-2, "v27_tile_shapes:bf16": 5e-3}
    assert all(entry["status"] == "pass" and entry["timing"]["samples"] == 7 for entry in entries.values())
