"""What attention_maps.py and error_analysis.py draw from: inputs, what a step makes of them, what is right.

The inputs are the harness's own (harness/problem/tensors.cpp: `normal` and `structured`), made once more here, because
these come with values of their own. harness/tests/test_attention_matrix.py compares the two. The lab (measure/lab.py),
which is built beside the program, runs the steps.

Pictures carry a digest of the output's bits. Those are the same with every compiler that does not fuse
multiplications and additions on its own, as none does on x86-64 unless asked to.
"""
from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from draw.drawings import DrawingError
from measure.lab import LIBRARY, Lab, LabError, Unavailable

try:
    import numpy as np
except ImportError as error:
    from draw.figure_style import MISSING

    raise SystemExit(f"{error} {MISSING}") from error

STEP = "v10_tma_warpspec"  # whose pictures stand in docs/figures
# The patterns of the structured heads, in the harness's order.
PATTERNS = ("local", "strided", "anchor", "block")
STREAM_Q, STREAM_K, STREAM_V, STREAM_ANCHOR, STREAM_BLOCK, STREAM_NOISE = range(1, 7)



def source() -> bytes:
    """Of this script: the pictures follow from it too."""
    return Path(__file__).read_bytes()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of both scripts: which step, and where it runs."""
    parser.add_argument("--step", default=STEP, metavar="vNN_name", help=f"(default: {STEP})")
    parser.add_argument("--backend", default="emulator", choices=("emulator", "cuda"))


# Inputs.


def hash64(x: Any) -> Any:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def normal_pairs(seed: int, stream: int, index: Any) -> Any:
    """harness/base/random.h: for every index two values of N(0, 1), along a new last axis.

    Functions in double, rounded: the C library's single ones are as good as correctly rounded, and double does
    not depend on this machine's vector instructions as numpy's single ones do."""
    with np.errstate(over="ignore"):  # wraps around, as it should
        start = hash64(np.array([seed], np.uint64) * np.uint64(0x100000001B3) + np.uint64(stream))
        bits = hash64(start + np.asarray(index).astype(np.uint64))
    u = ((bits >> np.uint64(40)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
    turn = np.float32(6.2831853) * np.float32(2.0**-24)
    angle = ((bits >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float32) * turn
    radius = np.sqrt(np.float32(-2) * single(np.log, u))
    return np.stack([radius * single(np.cos, angle), radius * single(np.sin, angle)], -1)


def single(function: Any, x: Any) -> Any:
    return function(np.asarray(x, np.float64)).astype(np.float32)


def normal(seed: int, stream: int, shape: tuple[int, ...]) -> Any:
    return normal_pairs(seed, stream, np.arange(np.prod(shape) // 2)).reshape(shape)


def structured_head(pattern: str, is_query: bool, seqlen: int, head_dim: int, seed: int = 1) -> Any:
    """[seqlen, head_dim]: q or k of this head of batch entry 0, as structured_row() makes it."""
    amplitude = np.sqrt(np.float32(10) * np.sqrt(np.float32(head_dim)))
    unit = amplitude / np.sqrt(np.float32(head_dim) / np.float32(2))
    group = PATTERNS.index(pattern)
    position, f = np.arange(seqlen), np.arange(0, head_dim, 2)
    if pattern in ("local", "strided"):
        if pattern == "local":
            exponent = f.astype(np.float32) / np.float32(head_dim)
            power = np.power(np.float64(np.float32(0.02)), exponent.astype(np.float64)).astype(np.float32)
            frequency = np.float32(0.5) * power
        else:
            frequency = np.float32(6.2831853) / np.float32(16) * (1 + f // 2 % 7).astype(np.float32)
            position = position % 16
        angle = frequency * position.astype(np.float32)[:, None]
        pairs = unit * np.stack([single(np.cos, angle), single(np.sin, angle)], -1)
    elif pattern == "anchor":
        anchor = normal_pairs(seed, STREAM_ANCHOR, group * 512 + f)
        index = (group * 2 + is_query) * (1 << 32) + position[:, None] * 512 + f
        noise = normal_pairs(seed, STREAM_NOISE, index)
        aligned = is_query | (position % 64 == 0)
        pairs = np.where(aligned[:, None, None], anchor + np.float32(0.3) * noise, noise)
    else:
        index = (group * (1 << 32) + position[:, None] // 32) * 512 + f
        pairs = normal_pairs(seed, STREAM_BLOCK, index)
    return pairs.reshape(seqlen, head_dim).astype(np.float32)


def structured(is_query: bool, seqlen: int, head_dim: int) -> Any:
    """[4, seqlen, head_dim]"""
    return np.stack([structured_head(pattern, is_query, seqlen, head_dim) for pattern in PATTERNS])


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


@functools.lru_cache(maxsize=None)
def lab_of(program: Path, backend: str) -> Lab:
    return Lab(program.parent / LIBRARY, backend)


def gates_of(program: Path, backend: str) -> dict[str, dict[str, float]]:
    """By type."""
    return lab_of(program, backend).gates


def run_step(
    program: Path, step: str, dtype: str, causal: bool, q: Any, k: Any, v: Any, backend: str = "emulator"
) -> Any:
    """The bits of a step's output for these bits. It must pass the harness's own judge."""
    try:
        case = lab_of(program, backend).given({"dtype": dtype, "causal": causal}, q, k, v)
        said = case.check(step, ({}, {"async": "random", "hostile": True, "race_detector": True}))
        if said["status"] == "pass":
            return case.outputs(step)[0]
        why = f"{said['status'].upper()}: {said['message']}"
    except (LabError, Unavailable) as error:
        why = str(error)
    raise DrawingError(f"{program}: {step} gives no output ({why.splitlines()[0]})")


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
    program: Path, step: str, dtype: str, causal: bool, q: Any, k: Any, backend: str = "emulator"
) -> tuple[Any, Any]:
    """softmax(Q K^T) of heads [heads, seqlen, head_dim] of bits, as the step computes it, and its rows' sums."""
    values = one_hot_values(k.shape[1], k.shape[2])
    v = np.repeat(to_bits(values, dtype)[:, None], k.shape[0], axis=1)
    q, k = (np.repeat(x[None], len(values), axis=0) for x in (q, k))
    o = run_step(program, step, dtype, causal, q, k, v, backend)
    return assemble(to_double(o, dtype), k.shape[2])
