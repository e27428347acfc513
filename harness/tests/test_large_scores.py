"""Scores of any size that FP32 holds, in every step, on the emulator and, where there is one, on a GPU.

The keys of a row have the same score or its opposite, and the score is exact in FP32. So the reference knows the
result, and what differs from it is the step's own error. FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_program import FLASHSTEPS, STEPS_OF_FP16, needs_gpu, run

from draw import attention_data  # in scripts/, which test_program adds to the path

# |softmax_scale * (q . k)| below which every step is right: common/call.h.
LARGEST = 2.0**26
# Up to v08 the row's maximum is subtracted from scores that were scaled and rounded before: equal ones give 0.
UNLIMITED = [step for step in STEPS_OF_FP16 if step < "v09"]

backends = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=needs_gpu)])


def make_tensors(dtype: str, head_dim: int, scores: np.ndarray, keys: int, unit: float = 2.0**14) -> tuple:
    """A row for each score, which is that of all keys in head 0. In head 1 every other tile of 64 has minus it. V
    nearly cancels out, so that a wrong weight shows."""
    q, k, v = (np.zeros((1, 2, rows, head_dim)) for rows in (len(scores), keys, keys))
    q[:] = (scores / (unit * np.sqrt(head_dim)))[:, None]
    k[:] = unit
    k[:, 1, np.arange(keys) // 64 % 2 == 0] *= -1
    v[:] = np.where(np.arange(keys) < keys // 2, 1, -1)[:, None] + 1 / 64
    return dtype, *(attention_data.to_bits(tensor, dtype) for tensor in (q, k, v))


def check(backend: str, tensors: tuple) -> dict[str, dict]:
    """{step: what the judge says}, for the steps that this machine can run."""
    dtype, *qkv = tensors
    case = attention_data.lab_of(FLASHSTEPS.parent, backend).given({"dtype": dtype}, *qkv)
    found = {step: case.check(step) for step in STEPS_OF_FP16}
    said = {step: verdict for step, verdict in found.items() if verdict["status"] != "skip"}
    assert "v09_direct_rescale" in said, found
    return said


@backends
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_scores_are_right(backend: str, dtype: str, head_dim: int) -> None:
    # Rounding to the type leaves them below the bound.
    scores = LARGEST * np.concatenate([np.linspace(0.01, 0.995, 39), 2.0 ** -np.arange(1, 26)])
    said = check(backend, make_tensors(dtype, head_dim, np.concatenate([scores, -scores]), keys=200))
    assert all(verdict["status"] == "pass" for verdict in said.values()), said


@backends
def test_an_unchanged_maximum_leaves_earlier_tiles_as_they_are(backend: str) -> None:
    # Scores of a size that models have; but a factor of 1.0001 for each of 64 tiles would show.
    said = check(backend, make_tensors("fp16", 64, np.linspace(500, 3000, 16), keys=4096, unit=8))
    assert all(verdict["status"] == "pass" for verdict in said.values()), said


@backends
def test_still_larger_scores_are_right_or_not_finite(backend: str) -> None:
    scores = LARGEST * np.geomspace(1, 2.0**8 * 0.995, 64)
    said = check(backend, make_tensors("fp16", 64, np.concatenate([scores, -scores]), keys=200, unit=2.0**15))
    for step, verdict in said.items():
        text = verdict["message"]
        wrong = sum(int(n) for n in re.findall(r"(\d+) of 256 checked rows are wrong", text))
        not_finite = sum(int(n) for n in re.findall(r"(\d+) element\(s\) of o are (?:NaN|Inf)", text))
        assert not_finite == 64 * wrong, text
        assert (wrong == 0) == (step in UNLIMITED) == (verdict["status"] == "pass"), text


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_steep_scores_are_right_and_the_worst_case(tmp_path: Path, dtype: str) -> None:
    """Counted without a mask: with one, the first tile of queries sees too few keys for anything to happen."""
    out = tmp_path / "counts.json"
    kinds = [word for kind in ("normal", "rising", "falling") for word in ("--inputs", kind)]
    problems = ["--shape", "1,1,384,64", "--shape", "1,1,384,128", "--dtype", dtype, *kinds]
    lazy = ["v13_lazy_rescale", "v14_longest_first", "v15_integer_max"]
    steps = ["v12_whole_rows", *lazy]
    done = run(FLASHSTEPS, "count", *steps, *problems, "--backend", "emulator", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    of: dict = {}
    for each in json.loads(out.read_text())["runs"]:
        counters = {step["step"]: step["counters"] for step in each["steps"]}
        of[each["problem"]["head_dim"], each["problem"]["inputs"]] = counters
    for head_dim in (64, 128):
        normal, rising, falling = (of[head_dim, kind] for kind in ("normal", "rising", "falling"))
        # v12 looks for a maximum in every tile, whatever the inputs.
        every_tile = normal["v12_whole_rows"]["shuffles"]
        assert normal["v13_lazy_rescale"]["shuffles"] < every_tile / 2
        for step in lazy:
            assert rising[step]["shuffles"] == every_tile, step
            assert falling[step]["shuffles"] == normal[step]["shuffles"], step
