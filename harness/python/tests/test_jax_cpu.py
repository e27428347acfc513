"""flashsteps on JAX's arrays on the CPU, called directly and below JAX's transformations."""

from __future__ import annotations

import re
from pathlib import Path

import flashsteps
import numpy as np
import pytest
import reference
from reference import same_bits

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

CPUS = jax.devices("cpu")
CPU = CPUS[0]


@pytest.fixture(autouse=True)
def beside_a_gpu():
    """Where JAX has one, it would put new arrays there."""
    with jax.default_device(CPU):
        yield


def draw_qkv(dtype="float16", batch=1, seqlen_kv=70):
    rng = np.random.default_rng(1)
    shapes = [(batch, 4, 70, 64)] + 2 * [(batch, 2, seqlen_kv, 64)]
    return tuple(
        jax.device_put(rng.standard_normal(shape, np.float32), CPU).astype(dtype) for shape in shapes
    )


def lengths_of(*numbers):
    return jax.device_put(np.array(numbers, np.int32), CPU)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_against_the_reference(dtype):
    q, k, v = draw_qkv(dtype, batch=2, seqlen_kv=90)
    lengths = lengths_of(0, 81)
    o, lse = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True)
    assert isinstance(o, jax.Array) and isinstance(lse, jax.Array)
    assert o.dtype == q.dtype and o.shape == q.shape and o.devices() == lse.devices() == {CPU}
    expected = reference.attention(q, k, v, causal=True, kv_lengths=lengths)
    reference.check(np.asarray(o).astype(np.float64), np.asarray(lse), dtype, *expected)


def test_results_are_committed_as_arguments_are():
    q, k, v = draw_qkv()
    assert q.committed and all(x.committed for x in flashsteps.attention(q, k, v, return_lse=True))
    free = tuple(jnp.asarray(np.asarray(x)) for x in (q, k, v))
    o, lse = flashsteps.attention(*free, return_lse=True)
    assert not free[0].committed and not o.committed and not lse.committed
    assert flashsteps.attention(free[0], k, free[2]).committed
    # Where they are, not where JAX would put them.
    with jax.default_device(CPUS[2]):
        elsewhere = tuple(jnp.asarray(np.asarray(x)) for x in (q, k, v))
    o = flashsteps.attention(*elsewhere)
    assert not o.committed and o.devices() == {CPUS[2]}
    assert flashsteps.attention(*(jax.device_put(x, CPUS[1]) for x in (q, k, v))).devices() == {CPUS[1]}


def test_a_deleted_array():
    q, k, v = draw_qkv()
    v.delete()
    with pytest.raises(ValueError, match="^v: has been deleted"):
        flashsteps.attention(q, k, v)


def wrong_calls():
    q, k, v = draw_qkv()
    return [
        ((q, k.astype(jnp.float32), v), {}, TypeError, "k: is float32, and q is float16"),
        ((q.astype(jnp.int8), k, v), {}, TypeError, "q: is int8, expected float16"),
        ((q[0], k, v), {}, ValueError, "q: has shape .4, 70, 64., expected 4 dimensions"),
        ((q[..., :32], k[..., :32], v[..., :32]), {}, ValueError, "q: has head_dim 32"),
        ((q[:, :3], k, v), {}, ValueError, "k: has 2 heads, and q has 3, which is not a multiple"),
        ((q, k, v[:, :, :69]), {}, ValueError, "v: has shape .1, 2, 69, 64., and k has"),
        ((q, k[:, :, :0], v[:, :, :0]), {}, ValueError, "k: has shape .1, 2, 0, 64., which is empty"),
        ((q, k, v), {"kv_lengths": lengths_of(0, 0)}, ValueError, "kv_lengths: has shape .2."),
        ((q, k, v), {"kv_lengths": lengths_of(0).astype("float16")}, TypeError, "kv_lengths: is float16"),
        ((q, k, v), {"causal": 1}, TypeError, "causal: is a int, expected True or False"),
        ((q, k, v), {"return_lse": None}, TypeError, "return_lse: is a NoneType, expected True"),
        ((q, k, v), {"scale": "1"}, TypeError, "scale: is a str, expected a number"),
        ((q, k, v), {"scale": -1.0}, ValueError, "scale: is -1, expected a positive number"),
        ((q, k, v), {"step": "v99"}, ValueError, "step: unknown step 'v99'"),
        ((q, k, v), {"layout": "sbhd"}, ValueError, "layout: is 'sbhd', expected"),
        ((q, k, v), {"device": "tpu"}, ValueError, "device: is 'tpu', expected None or 'cuda'"),
        (draw_qkv("float32"), {"step": "v03_wmma"}, ValueError, "step: v03_wmma supports fp16 and bf16"),
    ]


@pytest.mark.parametrize("arrays, options, error, text", wrong_calls())
def test_errors_are_said_when_the_call_is_traced(arrays, options, error, text):
    with pytest.raises(error, match=f"^{text}"):
        flashsteps.attention(*arrays, **options)
    with pytest.raises(error, match=f"^{text}"):
        jax.eval_shape(lambda q, k, v: flashsteps.attention(q, k, v, **options), *arrays)


def test_other_frameworks_are_refused():
    q, k, v = draw_qkv()
    with pytest.raises(TypeError, match="^k: is an array of NumPy, and q is one of JAX"):
        flashsteps.attention(q, np.asarray(k), v)
    with pytest.raises(TypeError, match="^v: is an array of NumPy, and q is one of JAX"):
        jax.jit(lambda q, k: flashsteps.attention(q, k, np.asarray(v)))(q, k)


def test_what_only_a_call_of_arrays_can_do():
    q, k, v = draw_qkv()
    with pytest.raises(ValueError, match="^device: is 'cuda', and q is being traced by JAX"):
        jax.jit(lambda q: flashsteps.attention(q, k, v, device="cuda"))(q)
    with pytest.raises(TypeError, match="^scale: is a .*Tracer, expected a number"):
        jax.jit(lambda scale: flashsteps.attention(q, q, q, scale=scale))(0.5)


# Below jit


OPTIONS = [
    {},
    {"causal": True, "return_lse": True},
    {"causal": True, "scale": 0.3, "step": "v02_smem_tiles"},
    {"return_lse": True, "step": "v09_direct_rescale"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_jit(dtype, options):
    q, k, v = draw_qkv(dtype, batch=2, seqlen_kv=90)
    call = jax.jit(lambda q, k, v: flashsteps.attention(q, k, v, **options))
    same_bits(call(q, k, v), flashsteps.attention(q, k, v, **options))


def test_jit_of_float32():
    q, k, v = draw_qkv("float32")
    same_bits(jax.jit(flashsteps.attention)(q, k, v), flashsteps.attention(q, k, v))


def test_jit_with_lengths():
    q, k, v = draw_qkv(batch=2, seqlen_kv=90)
    call = jax.jit(lambda q, k, v, n: flashsteps.attention(q, k, v, causal=True, kv_lengths=n, return_lse=True))
    for lengths in (lengths_of(0, 81), lengths_of(90, 1)):
        expected = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True)
        same_bits(call(q, k, v, lengths), expected)
    refusal = (ValueError, jax.errors.JaxRuntimeError)  # by JAX's version
    with pytest.raises(refusal, match=r"kv_lengths: \[1\] is 91, expected 0 to 90"):
        jax.block_until_ready(call(q, k, v, lengths_of(0, 91)))
    same_bits(call(q, k, v, lengths_of(90, 1)), expected)


def test_what_a_direct_call_runs_on_a_gpu():
    """Compiled once for each kind of call."""
    from flashsteps import jax as operations
    from flashsteps._frameworks import Options

    q, k, v = draw_qkv(batch=2)
    before = operations._compiled._cache_size()
    for causal in (False, True, False, True):
        options = Options(causal, None, True, "v09_direct_rescale")
        found = operations._compiled((q, k, v, *[None] * 5), options, None)
        same_bits(found, flashsteps.attention(q, k, v, causal=causal, return_lse=True, step=options.step))
    assert operations._compiled._cache_size() == before + 2


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_without_queries_the_result_is_empty(axis, transform):
    q, k, v = draw_qkv(batch=2)
    q = q[:0] if axis == 0 else q[:, :0] if axis == 1 else q[:, :, :0]
    call = transform(lambda q, k, v: flashsteps.attention(q, k, v, causal=True, return_lse=True))
    o, lse = call(q, k[: len(q)], v[: len(q)])
    assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3] and lse.dtype == np.float32


def test_jit_lays_out_what_is_transposed():
    q, k, v = draw_qkv()
    call = jax.jit(
        lambda *a: flashsteps.attention(*(x.transpose(0, 2, 1, 3) for x in a), layout="bshd", return_lse=True)
    )
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    same_bits(call(q, k, v), (o.transpose(0, 2, 1, 3), lse))


def test_jit_of_a_program_around_it():
    """Results of JAX go in, and JAX goes on with the result; constants that JAX does not trace, too."""
    q, k, v = draw_qkv()
    call = jax.jit(lambda q: (flashsteps.attention(q + q, k, v) * 2, flashsteps.attention(k, k, v)))
    expected = (flashsteps.attention(q + q, k, v) * 2, flashsteps.attention(k, k, v))
    same_bits(call(q), expected)
    same_bits(jax.lax.map(lambda q: flashsteps.attention(q, k, v), q[None])[0], flashsteps.attention(q, k, v))


def test_eval_shape_and_compile_ahead_of_time():
    q, k, v = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in draw_qkv("bfloat16", batch=2))
    call = lambda q, k, v: flashsteps.attention(q, k, v, return_lse=True)  # noqa: E731
    o, lse = jax.eval_shape(call, q, k, v)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (2, 4, 70), np.float32)
    arrays = draw_qkv("bfloat16", batch=2)
    same_bits(jax.jit(call).lower(q, k, v).compile()(*arrays), flashsteps.attention(*arrays, return_lse=True))


# Exported, with symbols for sizes


def exported(call, *shapes, dtype="float16"):
    """Its program, whose arguments are numbers of `dtype` if they have four dimensions."""
    scope = jax.export.SymbolicScope()
    arguments = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(shape, scope=scope), dtype if shape.count(",") == 3 else "int32"
        )
        for shape in shapes
    ]
    allowed = [jax.export.DisabledSafetyCheck.custom_call("flashsteps_attention")]
    program = jax.export.export(jax.jit(call), disabled_checks=allowed, platforms=["cpu"])(*arguments)
    return jax.jit(program.call)


def test_export():
    def call(q, k, v, n):
        return flashsteps.attention(q, k, v, causal=True, kv_lengths=n, return_lse=True)

    program = exported(call, "b, 4, s, 64", "b, 2, t, 64", "b, 2, t, 64", "b")
    for batch, rows, keys in ((2, 70, 90), (1, 3, 70), (3, 70, 1)):
        q, k, v = draw_qkv(batch=batch, seqlen_kv=keys)
        arrays = (q[:, :, :rows], k, v, lengths_of(*range(1, batch + 1))[::-1] % (keys + 1))
        same_bits(program(*arrays), call(*arrays))
    # One symbol for the queries and keys, and heads beside the rows.
    self_attention = lambda q: flashsteps.attention(q, q, q, layout="bshd")  # noqa: E731
    program = exported(self_attention, "1, 2*s + 1, 4, 64", dtype="bfloat16")
    for rows in (3, 69):
        q = draw_qkv("bfloat16")[0].swapaxes(1, 2)[:, :rows]
        same_bits(program(q), self_attention(q))


def test_export_of_a_cache():
    def call(q, k, v, n, table):
        return flashsteps.attention_with_kvcache(q, k, v, cache_seqlens=n, page_table=table)

    program = exported(call, "b, 1, 4, 64", "p, 16, 2, 64", "p, 16, 2, 64", "b", "b, m")
    k, v = (x[:, :, :64].swapaxes(1, 2).reshape(-1, 16, 2, 64) for x in draw_qkv(batch=2)[1:])
    for batch in (1, 2):
        q = draw_qkv(batch=batch)[0][:, :, :1].swapaxes(1, 2)
        table = jnp.arange(8, dtype=np.int32)[::-1].reshape(2, 4)[:batch]
        arrays = (q, k, v, lengths_of(33, 64)[:batch], table)
        same_bits(program(*arrays), call(*arrays))


def test_what_is_wrong_with_symbols_is_said_when_the_call_is_exported():
    attend = flashsteps.attention
    with pytest.raises(ValueError, match="^k: has batch 2048, and q has 32; for example with b = 32, c = 2048"):
        exported(attend, "b, 4, 70, 64", "c, 2, 70, 64", "c, 2, 70, 64")
    with pytest.raises(ValueError, match="^q: has head_dim 1024, the steps support 64 and 128; for example with d ="):
        exported(attend, "1, 4, 70, d", "1, 2, 70, d", "1, 2, 70, d")
    with pytest.raises(TypeError, match="^q: is int8, expected float16"):
        exported(attend, "b, 4, s, 64", "b, 4, s, 64", "b, 4, s, 64", dtype="int8")


# Below vmap: one call, in which the examples are batches


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_vmap(transform):
    q, k, v = (jnp.stack([x, 2 * x, 3 * x]) for x in draw_qkv(batch=2))
    lengths = jnp.array([[0, 70], [3, 4], [70, 69]], np.int32)

    def call(q, k, v, lengths):
        return flashsteps.attention(q, k, v, kv_lengths=lengths, return_lse=True)

    def merge(x):
        return x.reshape(-1, *x.shape[2:])

    mapped = transform(jax.vmap(call))(q, k, v, lengths)
    same_bits([merge(x) for x in mapped], call(*map(merge, (q, k, v, lengths))))
    # Of q alone, along another axis; and twice. All have the same tiles with this step.
    def call_one(q):
        return flashsteps.attention(q, k[0], v[0], step="v09_direct_rescale")

    expected = [call_one(each) for each in q]
    same_bits(list(transform(jax.vmap(call_one, in_axes=1))(q.swapaxes(0, 1))), expected)
    same_bits(list(transform(jax.vmap(jax.vmap(call_one)))(q[None])[0]), expected)


# Gradients


def draw_d_o(o):
    return jax.device_put(np.random.default_rng(2).standard_normal(o.shape, np.float32), CPU).astype(o.dtype)


def gradients(call, arrays, d_o):
    _, pullback = jax.vjp(call, *arrays)
    return pullback(d_o)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients(dtype):
    """Directly, and below jit; with lengths, which have no gradient."""
    q, k, v = draw_qkv(dtype, batch=2, seqlen_kv=90)
    lengths, options = lengths_of(0, 81), {"causal": True, "scale": 0.2}

    def call(q, k, v):
        return flashsteps.attention(q, k, v, kv_lengths=lengths, **options)

    o, lse = flashsteps.attention(q, k, v, kv_lengths=lengths, return_lse=True, **options)
    d_o = draw_d_o(o)
    found = flashsteps.attention_backward(d_o, q, k, v, o, lse, kv_lengths=lengths, **options)
    assert all(x.dtype == q.dtype and x.devices() == {CPU} for x in found)
    expected = reference.gradients(d_o, q, k, v, o, kv_lengths=lengths, **options)
    reference.check_gradients([np.asarray(x).astype(np.float64) for x in found], dtype, expected)
    same_bits(gradients(call, (q, k, v), d_o), found)
    same_bits(jax.jit(lambda *arrays: gradients(call, arrays, d_o))(q, k, v), found)
    same_bits(gradients(jax.jit(call), (q, k, v), d_o), found)
    same_bits(gradients(jax.checkpoint(call), (q, k, v), d_o), found)


def test_gradients_of_some_arguments_and_without_queries():
    q, k, v = draw_qkv()
    expected = gradients(flashsteps.attention, (q, k, v), q)
    same_bits(gradients(lambda k: flashsteps.attention(q, k, v), (k,), q), [expected[1]])
    stopped = lambda q, k, v: flashsteps.attention(q, jax.lax.stop_gradient(k), v)  # noqa: E731
    dq, dk, dv = gradients(stopped, (q, k, v), q)
    same_bits((dq, dv), (expected[0], expected[2]))
    assert not dk.any()
    _, dk, dv = gradients(flashsteps.attention, (q[:, :, :0], k, v), q[:, :, :0])
    assert dk.shape == k.shape and not dk.any() and not dv.any()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_gradients_below_vmap(transform):
    """Of keys that all examples share, the gradients are sums."""
    q, k, v = draw_qkv("float32")
    queries = jnp.stack([q, 2 * q, 3 * q])
    loss = lambda q, k, v: (flashsteps.attention(q, k, v) ** 2).sum()  # noqa: E731
    grad = jax.grad(loss, argnums=(0, 1, 2))
    examples = [grad(each, k, v) for each in queries]
    found = transform(jax.vmap(grad, in_axes=(0, None, None)))(queries, k, v)
    same_bits(found, [jnp.stack(each) for each in zip(*examples)])
    of_all = transform(jax.grad(lambda k: jax.vmap(loss, in_axes=(0, None, None))(queries, k, v).sum()))(k)
    assert np.allclose(of_all, sum(dk for _, dk, _ in examples), rtol=1e-5, atol=1e-5)


def test_gradients_below_shard_map():
    """Of keys that all devices share, the gradients are sums."""
    q, k, v = draw_qkv("bfloat16")
    queries, k, v = (jnp.asarray(np.asarray(x)) for x in (jnp.concatenate([q, 2 * q, 3 * q, 4 * q]), k, v))
    mesh = jax.sharding.Mesh(np.array(CPUS), ("x",))
    spec, everywhere = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()

    def loss(q, k, v):
        return (flashsteps.attention(q, k, v, step="v09_direct_rescale").astype(jnp.float32) ** 2).sum()[None]

    sharded = jax.shard_map(loss, mesh=mesh, in_specs=(spec, everywhere, everywhere), out_specs=spec)
    dq, dk = jax.jit(jax.grad(lambda q, k: sharded(q, k, v).sum(), argnums=(0, 1)))(queries, k)
    examples = [jax.grad(lambda q, k: loss(q, k, v)[0], argnums=(0, 1))(queries[i : i + 1], k) for i in range(4)]
    same_bits(dq, jnp.concatenate([each for each, _ in examples]))
    expected = sum(np.asarray(each, np.float32) for _, each in examples)
    assert np.linalg.norm(np.asarray(dk, np.float32) - expected) <= 0.01 * np.linalg.norm(expected)


def test_gradients_that_are_refused():
    """Of the log-sum-exp, of gradients, and of FP8; and forward-mode derivatives, by JAX."""
    q, k, v = draw_qkv("float32")
    both = lambda q: sum(x.sum() for x in flashsteps.attention(q, k, v, return_lse=True))  # noqa: E731
    square = lambda q: (flashsteps.attention(q, k, v) ** 2).sum()  # noqa: E731
    fp8 = [x.astype(jnp.float8_e4m3fn) for x in (q, k, v)]
    in_fp8 = lambda q: flashsteps.attention(q, *fp8[1:]).sum()  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(ValueError, match="^lse: has a gradient, and attention_backward takes none.*stop_gr"):
            jax.grad(transform(both))(q)
        with pytest.raises(ValueError, match="^attention_backward: is differentiated, and attention has no second"):
            jax.grad(lambda q: jax.grad(transform(square))(q).sum())(q)
        with pytest.raises(ValueError, match="^q: is being differentiated, and there is no derivative of attention in"):
            jax.grad(transform(in_fp8))(fp8[0])
        with pytest.raises(TypeError, match="custom_vjp"):
            jax.jvp(transform(square), (q,), (q,))
    stopped = lambda q: flashsteps.attention(q, k, v, return_lse=True)[0].sum()  # noqa: E731
    expected = jax.grad(lambda q: flashsteps.attention(q, k, v).sum())(q)
    for transform in (lambda f: f, jax.jit):
        same_bits(jax.grad(transform(stopped))(q), expected)


# Below shard_map


@pytest.mark.parametrize("axis, spec", [("batch", ("x",)), ("heads", (None, "x"))])
def test_shard_map(axis, spec):
    """Four devices, each with some batches or some heads; lengths are on all of them, or on each its own."""
    spec = jax.sharding.PartitionSpec(*spec)
    mesh = jax.sharding.Mesh(np.array(CPUS), ("x",))
    dimension = 1 if axis == "heads" else 0
    q, k, v = (
        jnp.asarray(np.concatenate([x, 2 * x], axis=dimension))
        for x in draw_qkv(batch=2)
    )
    lengths = jnp.array([70, 33, 1, 0][: q.shape[0]], np.int32)
    lengths_spec = spec if axis == "batch" else jax.sharding.PartitionSpec()

    def call(q, k, v, lengths):
        step = "v09_direct_rescale"  # whose tiles do not depend on how many there are
        return flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True, step=step)

    specs = (spec, spec, spec, lengths_spec)
    sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=spec))
    o, lse = sharded(q, k, v, lengths)
    same_bits((o, lse), call(q, k, v, lengths))
    assert len(o.devices()) == 4
    if axis == "batch":  # what is not mapped is on all devices
        one = {"step": "v09_direct_rescale"}
        placed = {"mesh": mesh, "in_specs": spec, "out_specs": spec}
        mapped = jax.shard_map(lambda q: flashsteps.attention(q, k[:1], v[:1], **one), **placed)
        same_bits(mapped(q)[3], flashsteps.attention(q[3:], k[:1], v[:1], **one)[0])
        mapped = jax.shard_map(lambda k: flashsteps.attention(q[:1], k, v[:1], **one), **placed)
        same_bits(mapped(k)[3], flashsteps.attention(q[:1], k[3:], v[:1], **one)[0])
    with pytest.raises(ValueError, match="^q: is spread over 4 devices: call this below jax.shard_map"):
        flashsteps.attention(o, o, o)


def test_the_page_shows_what_works():
    page = Path(__file__).parents[3] / "docs" / "frameworks.md"
    if not page.exists():
        pytest.skip("an sdist has no docs/")
    (code,) = re.findall("```python\n(.*?)```", page.read_text().split("## In a program of JAX")[1], re.DOTALL)
    shown = {}
    exec(code, shown)
    assert shown["o"].shape == (2, 4, 100, 64) and shown["lse"].dtype == np.float32
