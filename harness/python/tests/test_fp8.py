"""FP8: flashsteps.attention of float8_e4m3fn and its scales, on arrays of each framework that has this type."""

from __future__ import annotations

import re
from pathlib import Path

import flashsteps
import numpy as np
import pytest
import reference
from flashsteps import _frameworks

ml_dtypes = pytest.importorskip("ml_dtypes")

FP8 = ml_dtypes.float8_e4m3fn
SCALES = np.array([[0.5, 2.0], [1.5, 0.25]], np.float32)  # [batch, heads of k]


def draw_qkv():
    rng = np.random.default_rng(1)
    shapes = [(2, 4, 33, 64)] + 2 * [(2, 2, 70, 64)]
    return tuple(rng.standard_normal(shape, np.float32).astype(FP8) for shape in shapes)


def dequantized(array, descale):
    """In float64. Query heads share the scale of their head of k."""
    descale = np.broadcast_to(np.asarray(1 if descale is None else descale, np.float64), SCALES.shape)
    return array.astype(np.float64) * np.repeat(descale, array.shape[1] // 2, axis=1)[..., None, None]


def to_torch(array):
    """With its strides; FP8 as uint8, because PyTorch takes no other from NumPy."""
    torch = pytest.importorskip("torch")
    if array.dtype != FP8:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)


def to_jax(array):
    return pytest.importorskip("jax").numpy.asarray(array)


class Framework:
    def __init__(self, name, monkeypatch):
        self.name = name.split(",")[0]
        if self.name == "PyTorch":
            torch = pytest.importorskip("torch")
            from flashsteps.torch import PyTorch

            reading = PyTorch()
            if name == "PyTorch, attributes":
                reading.exchange_api = None
            monkeypatch.setitem(flashsteps._call._by_type, torch.Tensor, reading)

    def array(self, x):
        """Of a NumPy array, and what is none as it is."""
        if not isinstance(x, np.ndarray) or self.name == "NumPy":
            return x
        return to_torch(x) if self.name == "PyTorch" else to_jax(x)

    def attention(self, *arrays, **options):
        o, lse = flashsteps.attention(
            *map(self.array, arrays),
            **{name: self.array(option) for name, option in options.items()},
            return_lse=True,
        )
        assert str(o.dtype).removeprefix("torch.") == "bfloat16"
        return np.asarray(o.double() if self.name == "PyTorch" else o).astype(np.float64), np.asarray(lse)


@pytest.fixture(params=["NumPy", "PyTorch, exchange API", "PyTorch, attributes", "JAX"])
def framework(request, monkeypatch):
    return Framework(request.param, monkeypatch)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "scales",
    [
        {},
        {"q_descale": SCALES, "k_descale": SCALES[::-1].copy(), "v_descale": SCALES.T.copy()},
        {"q_descale": 3, "k_descale": np.full((), 0.5, np.float32), "v_descale": np.full((1, 1), 2, np.float32)},
    ],
    ids=["none", "of each head", "one for all"],
)
@pytest.mark.parametrize("step", [None, "v01_scalar", "v40_fp8"])
def test_against_the_reference(framework, scales, causal, step):
    arrays = draw_qkv()
    o, lse = framework.attention(*arrays, causal=causal, step=step, **scales)
    exact = (dequantized(x, scales.get(name)) for x, name in zip(arrays, ("q_descale", "k_descale", "v_descale")))
    reference.check(o, lse, "float8_e4m3fn", *reference.attention(*exact, causal=causal))


def test_strides(framework):
    """Other layouts of the same numbers give the same bits; a stride of 0 is fine."""
    q, k, v = draw_qkv()
    same = SCALES[:, :1].repeat(2, axis=1)  # for both heads
    expected = framework.attention(q, k, v, q_descale=same, k_descale=SCALES, v_descale=SCALES)
    fused = np.stack([k, v], axis=3)
    found = framework.attention(
        q,
        fused[:, :, :, 0],
        fused[:, :, :, 1],
        q_descale=np.lib.stride_tricks.as_strided(same, strides=(same.strides[0], 0)),
        k_descale=SCALES.T.copy().T,
        v_descale=SCALES.repeat(3, axis=1)[:, ::3],
    )
    assert all(map(np.array_equal, found, expected))
    swapped = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    o, lse = framework.attention(*swapped, layout="bshd", q_descale=same, k_descale=SCALES, v_descale=SCALES)
    assert np.array_equal(o.transpose(0, 2, 1, 3), expected[0]) and np.array_equal(lse, expected[1])


def test_check_judges_with_the_scales():
    q, k, v = draw_qkv()
    found = flashsteps.check(q, k, v, causal=True, q_descale=SCALES, v_descale=1.25)
    assert found and "e4m3 causal" in found.problem


def test_without_queries_the_result_is_empty(framework):
    q, k, v = draw_qkv()
    o, lse = framework.attention(q[:, :, :0], k, v, k_descale=SCALES)
    assert o.shape == (2, 4, 0, 64) and lse.shape == (2, 4, 0)


def refused(error, text, *arrays, **options):
    with pytest.raises(error, match="^" + re.escape(text)):
        flashsteps.attention(*arrays, **options)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
@pytest.mark.parametrize(
    ("descale", "error", "text"),
    [
        (SCALES.astype(np.float64), TypeError, "is float64, expected float32"),
        (SCALES[:1], ValueError, "has shape [1, 2], expected [2, 2] (batch and heads of k) or one element"),
        (SCALES[0], ValueError, "has shape [2], expected [2, 2]"),
        (SCALES.reshape(1, 1, 1, 2, 2), ValueError, "has shape [1, 1, 1, 2, 2], expected at most 4 dimensions"),
        (SCALES[:, ::-1], ValueError, "has a negative stride: copy it"),
        ([1.0], TypeError, "is a list, expected an array"),
        (0, ValueError, "is 0, expected a positive number that float32 holds"),
        (float("nan"), ValueError, "is nan, expected a positive number"),
        (True, ValueError, "is True, expected a positive number"),
    ],
)
def test_what_is_wrong_with_a_scale_is_named(name, descale, error, text):
    refused(error, f"{name}: {text}", *draw_qkv(), **{name: descale})


@pytest.mark.parametrize("descale", [SCALES, 0.5])
def test_other_types_have_no_scales(framework, descale):
    q, k, v = (framework.array(x.astype(np.float16)) for x in draw_qkv())
    text = "k_descale: is given, and q is float16: only float8_e4m3fn has scales"
    refused(ValueError, text, q, k, v, k_descale=framework.array(descale))


def test_scales_on_another_device(monkeypatch):
    def describe(self, argument, array):
        found = original(self, argument, array)
        return (*found[:4], 1, *found[5:]) if argument == "v_descale" else found

    original = _frameworks.NumPy.describe
    monkeypatch.setattr(_frameworks.NumPy, "describe", describe)
    refused(ValueError, "v_descale: is on cuda:1, and q is on the CPU", *draw_qkv(), v_descale=SCALES)


def test_steps_and_calls_without_fp8_say_so(framework):
    q, k, v = map(framework.array, draw_qkv())
    refused(ValueError, "step: v02_smem_tiles supports fp16, bf16 and fp32", q, k, v, step="v02_smem_tiles")
    # The end of a line, not of the text: where JAX traces a call, as on a GPU, it adds a note to the exception.
    with pytest.raises(TypeError, match=r"^q: is float8_e4m3fn, expected float16, bfloat16 or float32(\n|$)"):
        flashsteps.attention_with_kvcache(q, k, v, cache_seqlens=None)


# In PyTorch


def draw_tensors():
    torch = pytest.importorskip("torch")
    return torch, *map(to_torch, draw_qkv()), to_torch(SCALES)


def call_with_scales(q, k, v, scales):
    return flashsteps.attention(q, k, v, causal=True, q_descale=scales, v_descale=0.5, return_lse=True)


def test_the_operator():
    torch, q, k, v, scales = draw_tensors()
    op = torch.ops.flashsteps.attention_with_lse.default
    utilities = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")  # the other multiplies q
    torch.library.opcheck(op, (q, k, v, None, scales), {"causal": True}, test_utils=utilities)
    expected = call_with_scales(q, k, v, scales)
    compiled = torch.compile(call_with_scales, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.float16):  # which leaves FP8 alone
        under_autocast = call_with_scales(q, k, v, scales)
    for found in (compiled(q, k, v, scales), under_autocast):
        assert all(map(torch.equal, found, expected))


def test_scales_have_no_gradient_in_pytorch():
    torch, q, k, v, scales = draw_tensors()
    for function in (call_with_scales, torch.compile(call_with_scales, backend="aot_eager")):
        with pytest.raises((ValueError, RuntimeError), match="q_descale: requires a gradient"):
            function(q, k, v, scales.clone().requires_grad_())


def test_the_page_shows_what_works():
    pytest.importorskip("torch")
    page = Path(__file__).parents[3] / "docs" / "frameworks.md"
    if not page.exists():
        pytest.skip("an sdist has no docs/")
    (code,) = re.findall("```python\n(.*?)```", page.read_text().split("\n## FP8\n")[1].split("\n## ")[0], re.DOTALL)
    shown = {}
    exec(code, shown)
    assert str(shown["o"].dtype) == "torch.bfloat16"


# In JAX


@pytest.mark.parametrize("scales", [SCALES, 0.5, None], ids=["of each head", "a number", "none"])
def test_below_transformations_of_jax(scales):
    jax = pytest.importorskip("jax")
    q, k, v = map(to_jax, draw_qkv())
    scales = to_jax(scales) if isinstance(scales, np.ndarray) else scales
    expected = flashsteps.attention(q, k, v, causal=True, k_descale=scales, return_lse=True)

    def call(q, k, v):
        return flashsteps.attention(q, k, v, causal=True, k_descale=scales, return_lse=True)

    reference.same_bits(jax.jit(call)(q, k, v), expected)
    many = [jax.numpy.stack([x, x]) for x in (q, k, v)]
    reference.same_bits(jax.vmap(call)(*many), [jax.numpy.stack([x, x]) for x in expected])


def test_below_shard_map_each_device_has_its_scales():
    jax = pytest.importorskip("jax")
    cpus = jax.devices("cpu")[:2]
    mesh = jax.sharding.Mesh(np.array(cpus), ("x",))
    spec = jax.sharding.PartitionSpec(None, "x")
    placed = {"mesh": mesh, "in_specs": spec, "out_specs": spec}
    sharded = jax.jit(jax.shard_map(call_with_scales, **placed))
    # Where JAX has a GPU, it would put the arrays there, and a GPU's bits are not those of the emulator.
    with jax.default_device(cpus[0]):
        q, k, v, scales = map(to_jax, (*draw_qkv(), SCALES))
        found, expected = sharded(q, k, v, scales), call_with_scales(q, k, v, scales)
    assert [x.devices() for x in (*found, *expected)] == 2 * [set(cpus)] + 2 * [{cpus[0]}]
    reference.same_bits(found, expected)


def test_scales_have_no_derivative_in_jax():
    jax = pytest.importorskip("jax")
    q, k, v, scales = map(to_jax, (*draw_qkv(), SCALES))
    with pytest.raises(ValueError, match="^q_descale: is being differentiated"):
        jax.grad(lambda scales: call_with_scales(q, k, v, scales)[1].sum())(scales)
