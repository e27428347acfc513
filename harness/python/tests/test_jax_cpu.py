"""flashsteps on JAX's arrays on the CPU."""

from __future__ import annotations

import flashsteps
import numpy as np
import pytest
import reference

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

CPU = jax.devices("cpu")[0]


def draw_qkv(dtype="float16", batch=1, seqlen_kv=70):
    rng = np.random.default_rng(1)
    shapes = [(batch, 4, 70, 64)] + 2 * [(batch, 2, seqlen_kv, 64)]
    return tuple(
        jax.device_put(rng.standard_normal(shape, np.float32), CPU).astype(dtype) for shape in shapes
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_against_the_reference(dtype):
    q, k, v = draw_qkv(dtype, batch=2, seqlen_kv=90)
    lengths = jax.device_put(np.array([0, 81], np.int32), CPU)
    o, lse = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True)
    assert isinstance(o, jax.Array) and isinstance(lse, jax.Array)
    assert o.dtype == q.dtype and o.shape == q.shape and o.devices() == lse.devices() == {CPU}
    expected = reference.attention(q, k, v, causal=True, kv_lengths=lengths)
    reference.check(np.asarray(o).astype(np.float64), np.asarray(lse), dtype, *expected)


def test_against_jax():
    q, k, v = (x.transpose(0, 2, 1, 3) for x in draw_qkv("float32"))
    o = flashsteps.attention(q, k, v, causal=True, layout="bshd")
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    assert np.allclose(np.asarray(o), np.asarray(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda *a: f(*a).sum())])
def test_transforms_are_refused(transform):
    arrays = [x[None] for x in draw_qkv("float32")] if transform is jax.vmap else draw_qkv("float32")
    with pytest.raises(TypeError, match="^q: is being traced by JAX"):
        transform(lambda q, k, v: flashsteps.attention(q, k, v))(*arrays)


def test_results_are_fresh():
    q, k, v = draw_qkv()
    o = flashsteps.attention(q, k, v)
    flashsteps.attention(2 * q, k, v)
    assert bool(jnp.all(o == flashsteps.attention(q, k, v)))


def test_a_deleted_array():
    q, k, v = draw_qkv()
    v.delete()
    with pytest.raises(ValueError, match="^v: has been deleted"):
        flashsteps.attention(q, k, v)


def test_wrong_type():
    q, k, v = draw_qkv()
    with pytest.raises(TypeError, match="^k: is float32, and q is float16"):
        flashsteps.attention(q, k.astype(jnp.float32), v)
    with pytest.raises(TypeError, match="^k: is an array of NumPy, and q is one of JAX"):
        flashsteps.attention(q, np.asarray(k), v)
