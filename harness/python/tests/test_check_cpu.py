"""flashsteps.check and `python -m flashsteps check`, on the emulator. The judge's own tests are the harness's."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import flashsteps
import numpy as np
import pytest
from flashsteps import _check, _core
from flashsteps._frameworks import NumPy, Options


def draw(dtype: Any = "float16", batch: int = 1, head_dim: int = 64, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = [(batch, heads, rows, head_dim) for heads, rows in ((4, 70), (2, 90), (2, 90))]
    return [(scale * rng.standard_normal(shape)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("step", ["v01_scalar", "v10_tma_warpspec", None])
def test_steps_are_right(step: str | None) -> None:
    found = flashsteps.check(*draw(), causal=True, step=step)
    assert found and found.message == "" and found.step == step
    assert found.problem == "B=1 Hq=4 Hkv=2 Sq=70 Skv=90 D=64 fp16 causal inputs=given"
    assert 0 < found.figures["nrmse"] < found.figures["gate_nrmse"]
    assert str(found).startswith(f"PASS  {step or 'the default step'}  B=1 Hq=4")


def test_lengths_layout_scale_and_what_lies_beyond() -> None:
    q, k, v = draw(batch=3)
    lengths = np.array([90, 0, 33], np.int32)
    for b, length in enumerate(lengths):
        k[b, :, length:] = v[b, :, length:] = np.nan
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    options = {"kv_lengths": lengths, "scale": 0.3, "step": "v09_direct_rescale"}
    one, other = flashsteps.check(q, k, v, **options), flashsteps.check(*swapped, layout="bshd", **options)
    assert one and other and one.figures == other.figures
    assert one.problem.endswith("full kv_lengths=given inputs=given softmax_scale=0.300000012")


def test_bf16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert flashsteps.check(*draw(ml_dtypes.bfloat16, head_dim=128))


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in draw())
    found = flashsteps.check(q, k, v.transpose(1, 2).contiguous().transpose(1, 2))
    assert found and "bf16" in found.problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda o, lse: (o * np.float16(1.01), lse), "is above the gate of 1e-03 for fp16"),
        (lambda o, lse: (np.where(np.arange(64) == 3, np.float16("nan"), o), lse), "element(s) of o are NaN"),
        (lambda o, lse: (o, lse / np.float32(np.log(2))), "log2 instead of natural logarithms"),
        (lambda o, lse: (np.roll(o, 1, axis=2), lse), "280 of 280 checked rows are wrong"),
    ],
)
def test_a_wrong_output_is_refused(change: Any, said: str) -> None:
    q, k, v = draw()
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    arguments = (NumPy(), (q, k, v, *[None] * 5), Options())
    assert _core.judge(*arguments, (o, lse))[0]
    passed, message, *_ = _core.judge(*arguments, change(o, lse))
    assert not passed and said in message


def test_two_runs_that_differ_and_a_changed_input(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = draw()
    right = _check.call
    runs = []

    def call(*arguments: Any) -> Any:
        runs.append(right(*arguments))
        runs[-1][0][0, 0, 0, 0] += np.float16(2e-4) * (len(runs) - 1)
        v[0, 0, 0, 0] = 7
        return runs[-1]

    monkeypatch.setattr(_check, "call", call)
    found = flashsteps.check(q, k, v)
    assert not found and "two runs on the same inputs differ" in found.message
    assert found.message.endswith("wrote to its inputs")
    assert str(found).startswith("FAIL  the default step  B=1") and "\n      wrote to its inputs\n" in str(found)


def test_what_nothing_can_be_judged_by_is_refused() -> None:
    q, k, v = draw()
    with_nan = k.copy()
    with_nan[0, 1, 5, 7] = np.nan
    with pytest.raises(ValueError, match="^k: is NaN or Inf in batch 0, head 1, row 5, column 7"):
        flashsteps.check(q, with_nan, v)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    with pytest.raises(ValueError, match="^q: holds values of up to .*: their dot products may overflow float32"):
        flashsteps.check(wide[0] * np.float32(1e20), wide[1] * np.float32(1e18), wide[2], step="v01_scalar")
    with pytest.raises(ValueError, match="^v: holds values of up to .*: sums over its rows"):
        flashsteps.check(wide[0], wide[1], wide[2] * np.float32(5e37), step="v01_scalar")
    with pytest.raises(ValueError, match="^step: unknown step 'v99'"):
        flashsteps.check(q, k, v, step="v99")


def gradients(d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, wrong: str = "") -> tuple[np.ndarray, ...]:
    """Of a causal call, by the formulas; or with a part of them forgotten."""
    d_o, q, k, v, o = (x.astype(np.float64) for x in (d_o, q, k, v, o))
    scale, heads_kv, rows, keys = q.shape[3] ** -0.5, k.shape[1], q.shape[2], k.shape[2]
    k, v = (np.repeat(x, q.shape[1] // heads_kv, axis=1) for x in (k, v))
    p = np.exp(scale * q @ k.swapaxes(2, 3) - lse[..., None])
    if wrong != "the mask":
        p *= np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
    delta = 0 if wrong == "o" else (d_o * o).sum(-1, keepdims=True)
    ds = p * (d_o @ v.swapaxes(2, 3) - delta) * (1 if wrong == "the scale" else scale)
    of_group = lambda x: x.reshape(len(x), heads_kv, -1, keys, x.shape[3]).sum(2)  # noqa: E731
    found = ds @ k, of_group(ds.swapaxes(2, 3) @ q), of_group(p.swapaxes(2, 3) @ d_o)
    return tuple(x.astype(np.float16) for x in found)


def backward_arguments() -> tuple[np.ndarray, ...]:
    q, k, v = draw()
    o, lse = flashsteps.attention(q, k, v, causal=True, return_lse=True)
    return np.roll(q, 1, axis=2), q, k, v, o, lse


@pytest.mark.parametrize("step", [None, "v52_atomic_dq", "v58_ordered_adds", gradients])
def test_gradients_are_right(step: Any) -> None:
    found = flashsteps.check_backward(*backward_arguments(), causal=True, step=step)
    assert found and found.step == (None if step is None else getattr(step, "__name__", step))
    assert found.problem == "B=1 Hq=4 Hkv=2 Sq=70 Skv=90 D=64 fp16 causal inputs=given backward=yes"
    assert 0 < found.figures["nrmse"] < found.figures["gate_nrmse"] and "lse_max_abs" not in found.figures


@pytest.mark.parametrize(("wrong", "output"), [("o", "dq"), ("the scale", "dq"), ("the mask", "dv")])
def test_a_function_whose_gradients_are_wrong_is_refused(wrong: str, output: str) -> None:
    function = functools.partial(gradients, wrong=wrong)
    found = flashsteps.check_backward(*backward_arguments(), causal=True, step=function)
    assert not found and found.step == "partial" and f" of {output}" in found.message


def test_what_is_no_gradient_is_refused() -> None:
    arguments = backward_arguments()
    for step, said in (
        (lambda *arrays: arrays[1:3], "^step: has returned 2 arrays, expected dq, dk and dv"),
        (lambda *arrays: arrays[:3], r"^dk: is float16 \(1, 4, 70, 64\), expected float16 \(1, 2, 90, 64\)"),
    ):
        with pytest.raises(ValueError, match=said):
            flashsteps.check_backward(*arguments, causal=True, step=step)
    arguments[5][0, 1, 5] = np.inf
    with pytest.raises(ValueError, match="^lse: is NaN or Inf in batch 0, head 1, row 5, which sees keys"):
        flashsteps.check_backward(*arguments, causal=True)


def command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "flashsteps", "check", *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    path = tmp_path / "qkv.safetensors"
    tensors = dict(zip(("q", "k", "v"), draw(batch=2)))
    save_file(tensors | {"kv_lengths": np.array([90, 7], np.int64), "mask": np.ones(3, np.float32)}, path)
    status, out, _ = command(str(path), "--step", "v09_direct_rescale", "--causal", "--scale", "0.25")
    assert status == 0 and out.startswith("PASS  v09_direct_rescale  B=2 Hq=4") and "kv_lengths=given" in out
    # Values that fp16 has few digits for: right, and beyond the gates.
    save_file(tensors | {"v": (tensors["v"] * np.float16(1e-6)).astype(np.float16)}, path)
    status, out, _ = command(str(path))
    assert status == 1 and out.startswith("FAIL  the default step") and "the gates were set for inputs like" in out
    save_file({name: tensors[name] for name in "qk"}, path)
    assert command(str(path)) == (2, "", f"python -m flashsteps check: {path}: has no tensor v\n")
    path.write_bytes(b"no file of this kind")
    assert command(str(path))[0] == 2
    status, _, said = command(str(tmp_path / "nowhere"))
    assert status == 2 and said.startswith("python -m flashsteps check: ") and said.count("\n") == 1
