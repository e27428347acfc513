"""Attention and its gradients in float64 with NumPy, and how near a step must come to it; and when results of JAX have
the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

TYPES = {"Fp32": "float32", "Fp16": "float16", "Bf16": "bfloat16", "E4m3": "float8_e4m3fn"}


def read_gates():
    """By type: NRMSE over all rows, NRMSE of the worst row, error of the log-sum-exp."""
    text = (Path(__file__).parents[2] / "judge" / "gates.h").read_text()
    entry = r"case DType::k(\w+):\s+(?://.*\s+)*return {\.nrmse = (\S+), \.row_nrmse = (\S+), \.lse_abs = (\S+),"
    return {TYPES[name]: tuple(map(float, gates)) for name, *gates in re.findall(entry, text)}


GATES = read_gates()


def _weights(q, k, v, causal, scale, kv_lengths):
    """q, k and v in float64, for each query head, with what lies beyond kv_lengths zero; P; and lse."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    batch, heads_q, seqlen_q, head_dim = q.shape
    heads_kv, seqlen_kv = k.shape[1:3]
    k, v = (np.repeat(x, heads_q // heads_kv, axis=1) for x in (k, v))
    lengths = np.full(batch, seqlen_kv) if kv_lengths is None else np.asarray(kv_lengths)
    key = np.arange(seqlen_kv)
    seen = np.broadcast_to(key[None, None, :] < lengths[:, None, None], (batch, seqlen_q, seqlen_kv))
    if causal:
        last = np.arange(seqlen_q)[None, :, None] + lengths[:, None, None] - seqlen_q
        seen = seen & (key[None, None, :] <= last)
    seen = seen[:, None]
    k, v = (np.where((key[:, None] < lengths[:, None, None])[:, None], x, 0.0) for x in (k, v))
    scores = (q @ k.swapaxes(-1, -2)) * (head_dim**-0.5 if scale is None else scale)
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = scores.max(-1, keepdims=True)
        weights = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0.0)), 0.0)
        total = weights.sum(-1, keepdims=True)
        lse = (np.log(total) + top)[..., 0]
    return q, k, v, weights / np.where(total > 0, total, 1.0), lse


def attention(q, k, v, causal=False, scale=None, kv_lengths=None):
    """[batch, heads, seqlen, head_dim] of any type -> o, lse in float64."""
    _, _, v, p, lse = _weights(q, k, v, causal, scale, kv_lengths)
    return p @ v, lse


def gradients(d_o, q, k, v, o=None, causal=False, scale=None, kv_lengths=None):
    """The same, and o as a call has rounded it, or exactly -> dq, dk and dv in float64, each with which of its rows have a
    gradient: those of queries that see a key, and of keys that a query sees."""
    heads_kv, head_dim = k.shape[1], k.shape[3]
    q, k, v, p, _ = _weights(q, k, v, causal, scale, kv_lengths)
    d_o, o = (np.asarray(x).astype(np.float64) for x in (d_o, p @ v if o is None else o))
    dp = d_o @ v.swapaxes(-1, -2)
    ds = p * (dp - (d_o * o).sum(-1, keepdims=True)) * (head_dim**-0.5 if scale is None else scale)

    def of_group(x):
        return x.reshape(len(x), heads_kv, -1, *x.shape[2:]).sum(2)

    dk, dv = of_group(ds.swapaxes(-1, -2) @ q), of_group(p.swapaxes(-1, -2) @ d_o)
    queries, keys = p.any(-1), of_group(p.any(-2)) > 0
    return (ds @ k, queries), (dk, keys), (dv, keys)


def check_gradients(found, dtype, expected):
    """dq, dk and dv in float64, which were computed from tensors of `dtype`, and what gradients() returns; everything
    in [batch, heads, seqlen, head_dim]."""
    for ours, (theirs, is_there) in zip(found, expected, strict=True):
        assert ours.dtype == np.float64 and ours.shape == theirs.shape and np.isfinite(ours).all()
        assert (ours[~is_there] == 0).all(), "a row without a gradient is not zero"
        assert np.linalg.norm(ours - theirs) <= GATES[dtype][0] * np.linalg.norm(theirs)


def check(o, lse, dtype, expected, expected_lse):
    """o in float64, which was computed from q, k and v of `dtype`; everything in [batch, heads, seqlen, head_dim]."""
    gate, row_gate, lse_gate = GATES[dtype]
    assert o.dtype == np.float64 and o.shape == expected.shape and np.isfinite(o).all()
    norm = np.linalg.norm(expected, axis=-1)
    error = np.linalg.norm(o - expected, axis=-1)
    assert (error[norm == 0] == 0).all(), "a row that sees no key is not zero"
    assert np.linalg.norm(error) <= gate * np.linalg.norm(norm)
    assert (error <= row_gate * norm).all()
    nothing = np.isneginf(expected_lse)
    assert lse.dtype == np.float32 and lse.shape == expected_lse.shape
    assert (np.isneginf(lse) == nothing).all()
    difference = np.abs(lse[~nothing].astype(np.float64) - expected_lse[~nothing])
    assert (difference <= lse_gate + 1e-6 * np.abs(expected_lse[~nothing])).all()


def same_bits(found, expected):
    import jax

    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
