"""flashsteps.attention_with_kvcache on arrays of NumPy and of PyTorch on the CPU: on the emulator."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import flashsteps
import numpy as np
import pytest
import reference

BATCH, HEADS_Q, HEADS_KV, HEAD_DIM = 3, 8, 2, 64
MOST = 80  # keys of a sequence


def draw(shape, dtype="float16", seed=1):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


class Cache:
    """Keys and values of each sequence in one piece, and the same in shuffled pages. What no sequence has is NaN,
    and the table is garbage behind the last pages."""

    def __init__(self, lengths, page_size, dtype="float16", head_dim=HEAD_DIM, most=MOST, seed=7):
        self.lengths = np.array(lengths, np.int32)
        pages = [-(-int(length) // page_size) for length in lengths]
        shuffled = np.random.default_rng(seed).permutation(len(lengths) * -(-most // page_size))
        shape = (len(lengths), most, HEADS_KV, head_dim)
        self.k, self.v = draw(shape, dtype, seed + 1), draw(shape, dtype, seed + 2)
        pool = (len(shuffled), page_size, HEADS_KV, head_dim)
        self.k_pages, self.v_pages = (np.full(pool, np.nan, dtype) for _ in range(2))
        self.table = np.full((len(lengths), -(-most // page_size)), -7, np.int32)
        taken = 0
        for b, length in enumerate(lengths):
            self.k[b, length:] = self.v[b, length:] = np.nan
            self.table[b, : pages[b]] = shuffled[taken : taken + pages[b]]
            taken += pages[b]
            for j in range(length):
                place = self.table[b, j // page_size], j % page_size
                self.k_pages[place], self.v_pages[place] = self.k[b, j], self.v[b, j]

    def call(self, q, **options):
        arrays = {"cache_seqlens": self.lengths, "page_table": self.table} | options
        return flashsteps.attention_with_kvcache(q, self.k_pages, self.v_pages, **arrays)


def check(q, cache, **options):
    """In pages, against the reference; and in one piece, which gives the same bits with a step for decoding, if the
    keys are split in the same way. The default step splits them by how many a sequence has room for."""
    options = {"return_lse": True} | options
    o, lse = cache.call(q, **options)
    assert o.shape == q.shape and o.dtype == q.dtype and o.flags.c_contiguous
    if q.shape[1] <= 16:
        split = {"num_splits": 1} | options
        in_one_piece = flashsteps.attention_with_kvcache(q, cache.k, cache.v, cache_seqlens=cache.lengths, **split)
        same(cache.call(q, **split), in_one_piece)
    described = {"causal": options.get("causal", True), "scale": options.get("scale")}
    bhsd = [x.transpose(0, 2, 1, 3) for x in (q, cache.k, cache.v)]
    expected = reference.attention(*bhsd, kv_lengths=cache.lengths, **described)
    reference.check(o.transpose(0, 2, 1, 3).astype(np.float64), lse, q.dtype.name, *expected)


@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
@pytest.mark.parametrize("lengths", [[0, 1, MOST], [33, 64, 17]])
def test_pages(page_size, lengths):
    check(draw((BATCH, 2, HEADS_Q, HEAD_DIM)), Cache(lengths, page_size))


@pytest.mark.parametrize("options", [{"causal": False}, {"scale": 0.3}, {"num_splits": 2}])
def test_options(options):
    check(draw((BATCH, 3, HEADS_Q, HEAD_DIM)), Cache([5, 70, 16], 16), **options)


def test_many_queries_and_another_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = draw((1, 70, HEADS_Q, 128), ml_dtypes.bfloat16)
    check(q, Cache([MOST], 16, ml_dtypes.bfloat16, head_dim=128))


def test_without_lengths_every_sequence_fills_its_pages():
    q, cache = draw((BATCH, 1, HEADS_Q, HEAD_DIM)), Cache([MOST] * BATCH, 16)
    expected = cache.call(q, num_splits=1)
    assert np.array_equal(cache.call(q, cache_seqlens=None, num_splits=1), expected)
    o = flashsteps.attention_with_kvcache(q, cache.k, cache.v, cache_seqlens=None, num_splits=1)
    assert np.array_equal(o, expected)


@pytest.mark.parametrize("heads_kv", [1, HEADS_KV])
def test_caches_with_room_for_one_key(heads_kv):
    """An axis of extent 1 may have any stride. In pages of one key, and in one piece."""
    q, k, v = (draw((1, 1, heads, HEAD_DIM), seed=seed) for seed, heads in enumerate((8, heads_kv, heads_kv)))
    arrays = {"cache_seqlens": np.array([1], np.int32), "return_lse": True}
    strides = [2, -6, k.strides[2] if heads_kv > 1 else 10, 2]
    changed = [np.lib.stride_tricks.as_strided(x, strides=strides) for x in (k, v)]
    for table in (None, np.zeros((1, 1), np.int32)):
        expected = flashsteps.attention_with_kvcache(q, k, v, page_table=table, **arrays)
        same(flashsteps.attention_with_kvcache(q, *changed, page_table=table, **arrays), expected)


@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_without_queries_the_result_is_empty(axis, in_pages):
    cache = Cache([5, 70, 16], 16)
    q = draw((BATCH, 2, HEADS_Q, HEAD_DIM)).take([], axis)
    batch = len(q)
    k, v = (cache.k_pages, cache.v_pages) if in_pages else (cache.k[:batch], cache.v[:batch])
    arrays = {"cache_seqlens": cache.lengths[:batch], "page_table": cache.table[:batch] if in_pages else None}
    for caches in ((k, v), (k[:, :0], v[:, :0])):
        if caches[0].shape[1] == 0:
            arrays["cache_seqlens"] = np.zeros(batch, np.int32)
        o, lse = flashsteps.attention_with_kvcache(q, *caches, return_lse=True, **arrays)
        assert o.shape == q.shape and o.dtype == q.dtype
        assert lse.shape == (batch, q.shape[2], q.shape[1]) and lse.dtype == np.float32


def test_sequences_may_share_pages():
    """A prompt that two sequences begin with is there once."""
    q, cache = draw((2, 1, HEADS_Q, HEAD_DIM)), Cache([40, 40], 16)
    cache.table[1, 0] = cache.table[0, 0]
    cache.k[1, :16], cache.v[1, :16] = cache.k[0, :16], cache.v[0, :16]
    check(q, cache)


def test_entries_behind_the_last_key_may_be_anything():
    q, cache = draw((BATCH, 1, HEADS_Q, HEAD_DIM)), Cache([0, 33, MOST], 16)
    expected = cache.call(q)
    cache.table[0], cache.table[1, 3:] = 2**31 - 1, 99
    assert np.array_equal(cache.call(q), expected)


def test_only_one_layer_of_a_pool():
    """Engines have the layers' pools in one tensor: strides are as they are."""
    q, cache = draw((BATCH, 1, HEADS_Q, HEAD_DIM)), Cache([0, 1, MOST], 16)
    expected = cache.call(q)
    layers = np.full((*cache.k_pages.shape[:2], 4, *cache.k_pages.shape[2:]), np.nan, np.float16)
    layers[:, :, 1], layers[:, :, 3] = cache.k_pages, cache.v_pages
    cache.k_pages, cache.v_pages = layers[:, :, 1], layers[:, :, 3]
    assert np.array_equal(cache.call(q), expected)


def test_the_pages_example():
    path = Path(__file__).parents[3] / "docs" / "kv_cache.md"
    if not path.exists():
        pytest.skip("an sdist has no docs/")
    page = path.read_text(encoding="utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    o = names["o"]
    names["page_table"][1, 2] = 12
    names["cache_seqlens"][1] = 40
    names["page_table"][1, 1] = 3
    with pytest.raises(ValueError) as caught:
        flashsteps.attention_with_kvcache(
            names["q"],
            names["k_cache"],
            names["v_cache"],
            cache_seqlens=names["cache_seqlens"],
            page_table=names["page_table"],
        )
    assert f"    {caught.value}\n" in page
    assert o.shape == (2, 1, 8, 64) and np.isfinite(o).all()


def test_wrong_arguments_are_named():
    q, cache = draw((BATCH, 1, HEADS_Q, HEAD_DIM)), Cache([0, 33, 80], 16)

    def refused(error, text, **options):
        with pytest.raises(error) as caught:
            cache.call(options.pop("q", q), **options)
        assert str(caught.value).startswith(text), caught.value

    def table(place, page):
        changed = cache.table.copy()
        changed[place] = page
        return changed

    pages = len(cache.k_pages)
    refused(
        ValueError,
        f"page_table: [1][2] is {pages}, it must be 0 to {pages - 1}: sequence 1 has 33 keys",
        page_table=table((1, 2), pages),
    )
    refused(ValueError, "page_table: [2][4] is -1, it must be 0", page_table=table((2, 4), -1))
    refused(ValueError, "page_table: has shape [2, 5], and the batch is 3", page_table=cache.table[:2])
    refused(ValueError, "page_table: has shape [5], expected 2 dimensions", page_table=cache.table[0])
    refused(TypeError, "page_table: is int64, expected int32", page_table=cache.table.astype(np.int64))
    refused(ValueError, "page_table: is not contiguous", page_table=np.asfortranarray(cache.table))
    refused(ValueError, "page_table: is not contiguous", page_table=np.repeat(cache.table, 2, 1)[:, ::2])
    refused(ValueError, "cache_seqlens: [2] is 81, expected 0 to 80", cache_seqlens=np.array([0, 33, 81], np.int32))
    refused(TypeError, "cache_seqlens: is a int, expected an array", cache_seqlens=5)
    refused(TypeError, "num_splits: is a float", num_splits=1.0)
    refused(ValueError, "num_splits: is -1, expected 0 or more", num_splits=-1)
    refused(TypeError, "causal: is a int", causal=1)
    refused(ValueError, "k_cache: has 2 heads, and q has 3, which is not a multiple", q=q[:, :, :3])
    cache.v_pages = cache.v_pages[1:]
    refused(ValueError, f"v_cache: has shape [{pages - 1}, 16, 2, 64], and k_cache has")
    cache.k_pages, cache.v_pages = cache.k_pages[1:, :12], cache.v_pages[:, :12]
    refused(ValueError, "k_cache: has pages of 12 keys, expected a power of two")
    with pytest.raises(ValueError, match="^k_cache: has batch 2, and q has 3"):
        flashsteps.attention_with_kvcache(q, cache.k[:2], cache.v[:2], cache_seqlens=cache.lengths)


def test_a_cache_in_one_piece():
    q, cache = draw((BATCH, 2, HEADS_Q, HEAD_DIM)), Cache([0, 33, MOST], 16)
    arrays = {"cache_seqlens": cache.lengths, "return_lse": True}
    o, lse = flashsteps.attention_with_kvcache(q, cache.k, cache.v, **arrays)
    options = {"causal": True, "kv_lengths": cache.lengths, "layout": "bshd", "return_lse": True}
    expected = flashsteps.attention(q, cache.k, cache.v, **options)
    assert np.array_equal(o, expected[0]) and np.array_equal(lse, expected[1])


def test_pytorch():
    torch = pytest.importorskip("torch")
    q, cache = draw((BATCH, 2, HEADS_Q, HEAD_DIM)), Cache([0, 33, 80], 16)
    arrays = (q, cache.k_pages, cache.v_pages, cache.lengths, cache.table)
    tensors = [torch.from_numpy(x) for x in arrays]
    expected, expected_lse = cache.call(q, return_lse=True)

    def call(q, k, v, lengths, table):
        return flashsteps.attention_with_kvcache(
            q, k, v, cache_seqlens=lengths, page_table=table, return_lse=True
        )

    for function in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        o, lse = function(*tensors)
        assert type(o) is torch.Tensor and np.array_equal(o.numpy(), expected)
        assert np.array_equal(lse.numpy(), expected_lse)
    with pytest.raises(ValueError, match="^k_cache: requires a gradient"):
        call(tensors[0], tensors[1].clone().requires_grad_(), *tensors[2:])
    with pytest.raises(TypeError, match="^page_table: is an array of NumPy, and q is one of PyTorch"):
        call(*tensors[:4], cache.table)
    for lse in (False, True):
        name = "attention_with_kvcache" + ("_and_lse" if lse else "")
        torch.library.opcheck(getattr(torch.ops.flashsteps, name).default, tensors)


@pytest.fixture
def of_jax():
    """The arrays of a call with pages, and of the same call with NumPy."""
    jax = pytest.importorskip("jax")
    cache = Cache([0, 33, MOST], 16)
    arrays = draw((BATCH, 2, HEADS_Q, HEAD_DIM)), cache.k_pages, cache.v_pages, cache.lengths, cache.table
    with jax.default_device(jax.devices("cpu")[0]):  # where JAX has a GPU, it would put new arrays there
        yield jax, cache, [jax.numpy.asarray(x) for x in arrays]


def call(q, k, v, lengths, table=None, **options):
    return flashsteps.attention_with_kvcache(q, k, v, cache_seqlens=lengths, page_table=table, **options)


def same(found, expected):
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("options", [{}, {"causal": False, "scale": 0.3, "num_splits": 2, "return_lse": True}])
def test_jax(of_jax, options):
    jax, cache, arrays = of_jax
    q, k, v, lengths, table = map(np.asarray, arrays)
    for function in (call, jax.jit(call, static_argnames=options)):
        same(function(*arrays, **options), cache.call(q, **options))
    # In one piece; with all keys that there is room for; and all keys of pages.
    jitted = jax.jit(call, static_argnames=options)
    k, v, full = *(np.nan_to_num(x) for x in (k, v)), np.zeros((BATCH, 2), np.int32)
    for others in ((cache.k, cache.v, lengths), (k[:BATCH], v[:BATCH], None), (k, v, None, full)):
        found = jitted(*jax.tree.map(jax.numpy.asarray, [q, *others]), **options)
        same(found, call(q, *others, **options))


def test_jax_vmap(of_jax):
    """Of some queries in one pool of pages; and of everything where there are no pages."""
    jax, cache, (q, *pool) = of_jax
    many = jax.numpy.stack([q, 2 * q])
    found = jax.jit(jax.vmap(call, in_axes=(0, None, None, None, None)))(many, *pool)
    same(tuple(found), tuple(cache.call(np.asarray(x)) for x in many))
    k, v, lengths = (jax.numpy.stack([x, x[::-1]]) for x in (cache.k, cache.v, cache.lengths))
    one = functools.partial(call, num_splits=1)  # as in one call, where each sequence has more neighbours
    found = jax.vmap(one)(many, k, v, lengths)
    same(tuple(found), tuple(one(*map(np.asarray, each)) for each in zip(many, k, v, lengths)))


def test_jax_errors(of_jax):
    jax, _, arrays = of_jax
    for name, place in (("q", 0), ("k_cache", 1)):
        with pytest.raises(ValueError, match=f"^{name}: is being differentiated"):
            jax.grad(lambda *a: call(*a, *arrays[3:]).astype("float32").sum(), place)(*arrays[:3])
    *others, table = arrays
    for function in (call, lambda *a: jax.eval_shape(call, *a)):
        with pytest.raises(TypeError, match="^page_table: is float16, expected int32"):
            function(*others, table.astype("float16"))
    wrong = table.at[1, 2].set(100)
    for function in (call, jax.jit(call)):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"page_table:? ?\[1\]\[2\] is 100"):
            jax.block_until_ready(function(*others, wrong))
