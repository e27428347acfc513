"""What attention_maps.py and error_analysis.py draw from: inputs, what a step makes of them, what is right.

Inputs and outputs are those of the lab (measure/lab.py), which is built beside the program.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np

from draw.drawings import DrawingError
from measure.lab import LIBRARY, Lab, LabError, Unavailable

STEP = "v10_tma_warpspec"  # whose pictures stand in docs/figures
# The patterns of the structured heads, in the harness's order.
PATTERNS = ("local", "strided", "anchor", "block")


@functools.cache
def lab_of(build: Path, backend: str = "emulator") -> Lab:
    try:
        return Lab(build / LIBRARY, backend)
    except (LabError, Unavailable) as error:
        raise DrawingError(str(error)) from error


def inputs(build: Path, kind: str, dtype: str, batch: int, heads: int, seqlen: int, head_dim: int = 64) -> list[Any]:
    """The bits of the harness's q, k and v, [batch, heads, seqlen, head_dim]."""
    shape = {"batch": batch, "num_heads_q": heads, "num_heads_kv": heads, "seqlen_q": seqlen, "seqlen_kv": seqlen}
    fields = {"dtype": dtype, "causal": False, "inputs": kind, "kv_lengths": "full", "layout": "bhsd", "seed": 1}
    case = lab_of(build).problem(fields | shape | {"head_dim": head_dim})
    unit = ctypes.c_uint32 if dtype == "fp32" else ctypes.c_uint16
    size = batch * heads * seqlen * head_dim
    # The emulator's device memory is the host's.
    found = [(unit * size).from_address(tensor["data"]) for tensor in case.tensors.values()]
    return [np.array(each).reshape(batch, heads, seqlen, head_dim) for each in found]


# 16-bit types. bf16 is not one of numpy's: its bits are the upper half of a float32's.


def to_bits(values: Any, dtype: str) -> Any:
    """Rounded to the nearest, ties to even."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "fp32":
        return values.view(np.uint32)
    if dtype == "fp16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_double(bits: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(np.float16 if dtype == "fp16" else np.float32).astype(np.float64)


def rounded(values: Any, dtype: str) -> Any:
    return to_double(to_bits(values, dtype), dtype)


# The steps.


def run_step(
    build: Path, step: str, dtype: str, causal: bool, q: Any, k: Any, v: Any, backend: str = "emulator"
) -> Any:
    """The bits of a step's output for these bits. It must pass the harness's own judge."""
    try:
        case = lab_of(build, backend).given({"dtype": dtype, "causal": causal}, q, k, v)
        said = case.check(step, ({}, {"async": "random", "hostile": True, "race_detector": True}))
        if said["status"] == "pass":
            return case.outputs(step)[0]
        why = f"{said['status'].upper()}: {said['message']}"
    except LabError as error:
        why = str(error)
    raise DrawingError(f"{build}: {step} gives no output ({why.splitlines()[0]})")


# What is right.


def probabilities(q: Any, k: Any, causal: bool) -> Any:
    """softmax(Q K^T / sqrt(d)) in float64. Causal masks are aligned bottom-right."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1 + scores.shape[-1] - scores.shape[-2])
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def norm(x: Any, axis: Any = None) -> Any:
    return np.sqrt((x * x).sum(axis))


def nrmse(o: Any, reference: Any, axis: Any = None) -> Any:
    """As the harness has it: of all, or of each row."""
    return norm(o - reference, axis) / norm(reference, axis)


# The matrix itself.


def one_hot_values(keys: int, head_dim: int) -> Any:
    """[batches, keys, head_dim]: in every batch entry head_dim - 1 columns that are 1 at one key each, so that
    these columns of O are those of softmax(Q K^T). The last column is 1 at every key: O has the sum of the row.

    It is also what the judge needs. Most rows have next to nothing in most batch entries, and a
    row's error is judged relative to its norm."""
    columns = head_dim - 1
    values = np.zeros((-(-keys // columns), keys, head_dim), np.float32)
    for key in range(keys):
        values[key // columns, key, key % columns] = 1
    values[:, :, columns] = 1
    return values


def assemble(o: Any, keys: int) -> tuple[Any, Any]:
    """From O, [batches, heads, queries, head_dim]: the matrices [heads, queries, keys], and the sums of their rows
    as the kernel has them."""
    batches, heads, queries, head_dim = o.shape
    columns = np.moveaxis(o[..., : head_dim - 1], 0, 2)  # [heads, queries, batches, columns]
    return columns.reshape(heads, queries, -1)[..., :keys], o[0, ..., head_dim - 1]


def attention_matrix(
    build: Path, step: str, dtype: str, causal: bool, q: Any, k: Any, backend: str = "emulator"
) -> tuple[Any, Any]:
    """softmax(Q K^T) of heads [heads, seqlen, head_dim] of bits, as the step computes it, and its rows' sums."""
    values = one_hot_values(k.shape[1], k.shape[2])
    v = np.repeat(to_bits(values, dtype)[:, None], k.shape[0], axis=1)
    q, k = (np.repeat(x[None], len(values), axis=0) for x in (q, k))
    o = run_step(build, step, dtype, causal, q, k, v, backend)
    return assemble(to_double(o, dtype), k.shape[2])
