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


def draw_qkv(num_keys=70):
    rng = np.random.default_rng(1)
    shapes = [(2, 4, 33, 64)] + 2 * [(2, 2, num_keys, 64)]
    return tuple(rng.standard_normal(shape, np.float32).astype(FP8) for shape in shapes)


def dequantized(array, descale):
    """In float64. Query heads share the scale of their head of k."""
    descale = np.broadcast_to(np.asarray(1 if descale is None else descale, np.float64), SCALES.shape)
    return array.astype(np.float64) * np.repeat(descale, array.shape[1] // 2, axis=1)[..., None, None]


def to_torch(array):
    """With its strides; FP8 as uint8, because PyTorch takes no other from NumPy."""
    torch = pytest.importorskip("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
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
        return self.on_host(o, lse)

    def quantized(self, q, *arrays, **options):
        o, lse = flashsteps.attention(
            *map(self.array, (q, *arrays)),
            **{name: self.array(option) for name, option in options.items()},
            quantize=True,
            return_lse=True,
        )
        assert str(o.dtype).removeprefix("torch.") == q.dtype.name
        return self.on_host(o, lse)

    def on_host(self, o, lse):
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


# Approximations


FAST_LSE = 0.084  # AttentionCall::kFastLse


@pytest.mark.parametrize("causal", [False, True])
def test_an_approximation_is_near(framework, causal):
    arrays = draw_qkv()
    scales = {"q_descale": SCALES / 2, "k_descale": SCALES / 2, "v_descale": SCALES}
    found = framework.attention(*arrays, causal=causal, fast=True, **scales)
    named = framework.attention(*arrays, causal=causal, fast=True, step="v41_bytes_of_p", **scales)
    assert all(map(np.array_equal, found, named)) and flashsteps.describe("v41_bytes_of_p").fast
    o, lse = framework.attention(*arrays, causal=causal, **scales)
    sees_keys = np.isfinite(lse)
    assert 0.005 < np.linalg.norm(found[0] - o) / np.linalg.norm(o) < 0.05
    assert np.array_equal(np.isfinite(found[1]), sees_keys)
    assert 0 < np.abs(found[1] - lse)[sees_keys].max() < FAST_LSE


# Products of 448 and 448 are beyond FP16, and so is a sum that has one of them on its way.
@pytest.mark.parametrize("beyond", [(448, 0), (-448, 0), (-448, 448), (448, -448)])
@pytest.mark.parametrize("key", [12, 290], ids=["without a mask", "with a mask"])
def test_where_an_approximation_cannot_be_right_it_is_nan(framework, beyond, key):
    q, k, v = draw_qkv(num_keys=300)  # a tile has 256 keys, so the second one has a mask
    q[0, 2, 5, [1, 40]] = 448
    k[0, 1, key, [1, 40]] = beyond  # query heads 2 and 3 share head 1 of k
    o, lse = framework.attention(q, k, v, fast=True)
    assert np.isnan(o[0, 2, 5]).all() and np.isnan(lse[0, 2, 5])
    # And no number is wrong. The other rows have products of 448 and 5, whose sum is rounded by up to 2 in FP16.
    exact, exact_lse = framework.attention(q, k, v)
    assert not np.isnan(exact).any()
    right = np.ones(lse.shape, bool)
    right[0, 2, 5] = False
    assert np.linalg.norm(o[right] - exact[right]) < 0.05 * np.linalg.norm(exact[right])
    assert np.abs(lse - exact_lse)[right].max() < FAST_LSE + 2 / np.sqrt(64)


def test_what_a_row_does_not_see_may_be_beyond(framework):
    q, k, v = draw_qkv()
    q[0, 1, 5, 7] = 448
    expected = framework.attention(q, k, v, causal=True, fast=True)
    k[0, 0, 50, 7] = -448  # query 5 sees the keys up to 42
    o, lse = framework.attention(q, k, v, causal=True, fast=True)
    assert np.array_equal(o[0, 1, 5], expected[0][0, 1, 5]) and lse[0, 1, 5] == expected[1][0, 1, 5]
    assert not np.isnan(o).any()


# v46 scales q, so that no sum is beyond FP16. What it has in FP16 as well are scores less a base.
@pytest.mark.parametrize("beyond", [(448, 0), (-448, 0), (-448, 448), (448, -448), (448, 448)])
@pytest.mark.parametrize("key", [12, 290], ids=["without a mask", "with a mask"])
def test_sums_beyond_fp16_are_right_without_a_log_sum_exp(beyond, key):
    q, k, v = draw_qkv(num_keys=300)
    q[0, 2, 5, [1, 40]] = 448
    k[0, 1, key, [1, 40]] = beyond
    found, exact = (
        np.asarray(flashsteps.attention(q, k, v, scale=0.01, step=step)).astype(np.float32)
        for step in ("v46_some_exponentials", "v40_fp8")
    )
    assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)
    assert np.linalg.norm((found - exact)[0, 2, 5]) < 0.1 * np.linalg.norm(exact[0, 2, 5])


def test_where_a_base_is_beyond_fp16_o_is_nan():
    q, k, v = draw_qkv()
    q[0, 2, 5, 1] = k[0, 1, 12, 1] = 448  # a score of 36,000 in units of log2, with the default scale
    found, exact = (
        np.asarray(flashsteps.attention(q, k, v, step=step)).astype(np.float32)
        for step in ("v46_some_exponentials", "v40_fp8")
    )
    assert np.isnan(found[0, 2, 5]).all() and not np.isnan(exact).any()
    found[0, 2, 5] = exact[0, 2, 5]
    assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)


# What these two have in FP16 are bytes of P, in units of 1/8 of an octave. A row has no base where its largest score is
# far above 0, and none where all its scores are far below.
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("options", [{"fast": True}, {"quantize": True}], ids=str)
def test_where_a_base_is_beyond_fp16_o_and_lse_are_nan(options, sign):
    q, k, v = draw_qkv()
    q[0, 2, 5, 1] = 14
    k[0, 1, 12 if sign > 0 else slice(None), 1] = sign * 14  # scores of 11,000 in units of log2
    if "quantize" in options:
        q, k, v = (x.astype(np.float16) for x in (q, k, v))
    o, lse = (np.asarray(x) for x in flashsteps.attention(q, k, v, scale=40.0, return_lse=True, **options))
    assert np.isnan(o[0, 2, 5].astype(np.float32)).all() and np.isnan(lse[0, 2, 5])
    assert np.isnan(o.astype(np.float32)).sum() == o.shape[-1] and np.isnan(lse).sum() == 1


def test_a_step_that_approximates_takes_no_other_calls(framework):
    q, k, v = map(framework.array, draw_qkv())
    refused(ValueError, "step: v41_bytes_of_p approximates, and the call asks for exact results", q, k, v, step="v41_bytes_of_p")
    refused(TypeError, "fast: is a int, expected True or False", q, k, v, fast=1)


def test_other_types_are_always_exact(framework):
    q, k, v = (framework.array(x.astype(np.float16)) for x in draw_qkv())
    exact, permitted = (np.asarray(flashsteps.attention(q, k, v, fast=fast)) for fast in (False, True))
    assert np.array_equal(exact, permitted)


# Rounded by the step


def draw_16_bits(dtype):
    rng = np.random.default_rng(2)
    shapes = [(2, 4, 33, 64)] + 2 * [(2, 2, 300, 64)]
    return tuple((rng.standard_normal(shape, np.float32) * 0.3).astype(dtype) for shape in shapes)


def rounded(array, largest):
    """By the rule of AttentionCall::quantize, in float64. Query heads share the scale of their head of k."""
    batch, heads, rows, width = array.shape
    x = array.astype(np.float32).reshape(batch, 2, heads // 2 * rows * width)
    most = np.maximum(np.abs(x).max(axis=2, keepdims=True), np.float32(2.0**-100))
    found = (x * (np.float32(largest) / most)).astype(FP8).astype(np.float64) * (most / np.float32(largest))
    return found.reshape(array.shape)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_a_step_rounds_to_fp8(framework, dtype, causal):
    arrays = draw_16_bits(dtype)
    o, lse = framework.quantized(*arrays, causal=causal)
    named = framework.quantized(*arrays, causal=causal, step="v43_quantize")
    assert all(map(np.array_equal, named, (o, lse))) and flashsteps.describe("v43_quantize").quantizes
    exact = [rounded(x, largest) for x, largest in zip(arrays, (14, 14, 448))]
    expected_o, expected_lse = reference.attention(*exact, causal=causal)
    assert 0.005 < np.linalg.norm(o - expected_o) / np.linalg.norm(expected_o) < 0.05
    assert np.abs(lse - expected_lse).max() < FAST_LSE
    # The roundings of q, k and v move it further.
    unrounded, _ = reference.attention(*(x.astype(np.float64) for x in arrays), causal=causal)
    assert np.linalg.norm(o - unrounded) > 1.2 * np.linalg.norm(o - expected_o)


def test_the_codes_and_scales_are_those_of_the_rule(framework):
    """v41 computes the same from codes and scales that are made here, bit by bit."""
    arrays = draw_16_bits(ml_dtypes.bfloat16)
    codes, scales = [], {}
    for name, array, largest in zip("qkv", arrays, np.float32([14, 14, 448])):
        x = array.astype(np.float32).reshape(2, 2, -1)
        most = np.abs(x).max(axis=2, keepdims=True)
        codes.append((x * (largest / most)).astype(FP8).reshape(array.shape))
        scales[f"{name}_descale"] = (most / largest)[..., 0]
    expected = framework.attention(*codes, causal=True, fast=True, step="v41_bytes_of_p", **scales)
    assert all(map(np.array_equal, framework.quantized(*arrays, causal=True), expected))


def test_any_magnitude_will_do(framework):
    """A power of two more in a head, and its scale has it. bfloat16 has such numbers, and the scores are as before."""
    q, k, v = draw_16_bits(ml_dtypes.bfloat16)
    o, lse = framework.quantized(q, k, v)
    factor = np.array([2.0**30, 2.0**-40], np.float32).reshape(1, 2, 1, 1)
    of_q = np.repeat(1 / factor, 2, axis=1)
    scaled = ((x * by).astype(ml_dtypes.bfloat16) for x, by in ((q, of_q), (k, factor), (v, factor)))
    found, same_lse = framework.quantized(*scaled)
    assert np.array_equal(found, o * np.repeat(factor, 2, axis=1)) and np.array_equal(same_lse, lse)


def test_what_is_zero_has_a_scale(framework):
    q, k, v = draw_16_bits(np.float16)
    mean, lse = framework.quantized(q, k * 0, v, causal=True)
    _, expected = reference.attention(q.astype(float), 0.0 * k, v.astype(float), causal=True)
    assert np.isfinite(mean).all() and np.abs(lse - expected).max() < FAST_LSE
    zero, _ = framework.quantized(q, k, v * 0, causal=True)
    assert not zero.any()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", "qkv")
def test_inf_and_nan_are_not_lost(framework, name, number):
    arrays = dict(zip("qkv", draw_16_bits(np.float16)))
    arrays[name][1, 0, 20, 5] = number
    o, lse = framework.quantized(*arrays.values())
    wrong = np.zeros(lse.shape, bool)
    wrong[1, :2] = True  # query heads 0 and 1 share head 0 of k and v
    assert np.isnan(o[wrong]).all() and np.isfinite(o[~wrong]).all()
    assert name == "v" or (np.isnan(lse[wrong]).all() and np.isfinite(lse[~wrong]).all())


def test_what_lies_beyond_a_length_has_no_part_in_the_scale(framework):
    q, k, v = draw_16_bits(np.float16)
    lengths = np.array([300, 130], np.int32)
    expected = framework.quantized(q, k, v, kv_lengths=lengths)
    for number in (np.nan, 60000):
        k[1, :, 130:] = v[1, :, 130:] = number
        assert all(map(np.array_equal, framework.quantized(q, k, v, kv_lengths=lengths), expected))


def test_strides_and_layouts_of_what_is_rounded(framework):
    q, k, v = draw_16_bits(np.float16)
    expected = framework.quantized(q, k, v)
    fused = np.stack([k, v], axis=3)
    found = framework.quantized(q, fused[:, :, :, 0], fused[:, :, :, 1])
    assert all(map(np.array_equal, found, expected))
    o, lse = framework.quantized(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), layout="bshd")
    assert np.array_equal(o.transpose(0, 2, 1, 3), expected[0]) and np.array_equal(lse, expected[1])


def test_who_rounds_is_asked_for_it(framework):
    q, k, v = map(framework.array, draw_16_bits(np.float16))
    unasked = "step: v43_quantize rounds to e4m3, and the call does not ask for that"
    refused(ValueError, unasked, q, k, v, step="v43_quantize")
    cannot = "step: v01_scalar does not round q, k and v to e4m3"
    refused(ValueError, cannot, q, k, v, step="v01_scalar", quantize=True)
    refused(TypeError, "quantize: is a int, expected True or False", q, k, v, quantize=1)
    others = {"float32": np.float32, "float8_e4m3fn": FP8}
    for name, dtype in others.items():
        arrays = (framework.array(x.astype(dtype)) for x in draw_16_bits(np.float16))
        refused(TypeError, f"q: is {name}: quantize=True is for float16 and bfloat16", *arrays, quantize=True)


def test_check_says_what_the_rounding_costs():
    found = flashsteps.check(*draw_16_bits(np.float16), causal=True, quantize=True)
    assert found and "quantize=yes" in found.problem
    assert 0.02 < found.figures["quantization_nrmse"] < 0.1 and found.figures["gate_nrmse"] == 0.06
    assert "quantization_nrmse" not in flashsteps.check(*draw_16_bits(np.float16)).figures


def test_check_judges_a_step_without_a_log_sum_exp():
    step = "v46_some_exponentials"
    assert flashsteps.describe(step).no_lse
    found = flashsteps.check(*draw_qkv(), step=step, return_lse=False)
    assert found and "lse=none" in found.problem and "lse_max_abs" not in found.figures and "lse_max" not in str(found)
    with pytest.raises(ValueError, match="computes no log-sum-exp"):
        flashsteps.check(*draw_qkv(), step=step)


def test_check_judges_with_the_scales():
    q, k, v = draw_qkv()
    found = flashsteps.check(q, k, v, causal=True, q_descale=SCALES, v_descale=1.25)
    assert found and "e4m3 causal" in found.problem
    assert flashsteps.check(q, k, v, causal=True, q_descale=SCALES, v_descale=1.25, fast=True)
    found = flashsteps.check(q, k, v, q_descale=SCALES, k_descale=SCALES, fast=True, step="v41_bytes_of_p")
    assert found and "fast=yes" in found.problem


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


# Caches in FP8, with q in 16 bits


class Caches:
    """Of two sequences, with NaN behind their last keys, in one piece and in shuffled pages of 16."""

    def __init__(self, q_dtype, head_dim=64):
        rng = np.random.default_rng(3)
        self.q = rng.standard_normal((2, 3, 4, head_dim), np.float32).astype(q_dtype)
        self.k, self.v = (rng.standard_normal((2, 80, 2, head_dim), np.float32).astype(FP8) for _ in range(2))
        self.lengths = np.array([80, 37], np.int32)
        self.table = np.array([[3, 9, 0, 6, 4], [8, 2, 5, -7, -7]], np.int32)
        self.k_pages, self.v_pages = (np.full((10, 16, 2, head_dim), np.nan, FP8) for _ in range(2))
        for b, length in enumerate(self.lengths):
            self.k[b, length:] = self.v[b, length:] = np.nan
            for j in range(length):
                place = self.table[b, j // 16], j % 16
                self.k_pages[place], self.v_pages[place] = self.k[b, j], self.v[b, j]

    def expected(self, k_descale=None, v_descale=None):
        k, v = (
            dequantized(x.transpose(0, 2, 1, 3), scale) for x, scale in ((self.k, k_descale), (self.v, v_descale))
        )
        q = self.q.transpose(0, 2, 1, 3)
        return reference.attention(q, k, v, causal=True, kv_lengths=self.lengths)


def to_any(framework, array):
    """As its array(), also of bfloat16, which PyTorch does not take from NumPy."""
    if framework.name == "PyTorch" and array.dtype == ml_dtypes.bfloat16:
        torch = pytest.importorskip("torch")
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return framework.array(array)


def with_kvcache(framework, caches, in_pages, **scales):
    k, v, table = (caches.k_pages, caches.v_pages, caches.table) if in_pages else (caches.k, caches.v, None)
    arrays = (to_any(framework, x) for x in (caches.q, k, v))
    named = {"cache_seqlens": caches.lengths, "page_table": table} | scales
    o, lse = flashsteps.attention_with_kvcache(
        *arrays, return_lse=True, **{name: framework.array(x) for name, x in named.items()}
    )
    assert str(o.dtype).removeprefix("torch.") == caches.q.dtype.name and tuple(o.shape) == caches.q.shape
    o = np.asarray(o.double() if framework.name == "PyTorch" else o).astype(np.float64)
    return o.transpose(0, 2, 1, 3), np.asarray(lse)


@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("q_dtype", [ml_dtypes.bfloat16, np.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    "scales",
    [{}, {"k_descale": SCALES, "v_descale": SCALES.T.copy()}, {"k_descale": 0.5, "v_descale": 3}],
    ids=["none", "of each head", "one for all"],
)
def test_a_cache_in_fp8(framework, scales, q_dtype, head_dim, in_pages):
    caches = Caches(q_dtype, head_dim)
    o, lse = with_kvcache(framework, caches, in_pages, **scales)
    reference.check(o, lse, caches.q.dtype.name, *caches.expected(**scales))


def test_wrong_caches():
    caches = Caches(ml_dtypes.bfloat16)
    q, k, v = caches.q, caches.k, caches.v
    call = flashsteps.attention_with_kvcache
    for error, message, arrays, named in (
        (TypeError, "v_cache: is bfloat16, and k_cache is float8_e4m3fn", (q, k, v.astype(q.dtype)), {}),
        (TypeError, "v_cache: is float8_e4m3fn, and k_cache is bfloat16", (q, k.astype(q.dtype), v), {}),
        (
            TypeError,
            "k_cache: is float8_e4m3fn, and q is float32: a cache in FP8 is for float16 and bfloat16",
            (q.astype(np.float32), k, v),
            {},
        ),
        (
            TypeError,
            "k_cache: is float16, and q is bfloat16: expected that, or float8_e4m3fn",
            (q, k.astype(np.float16), v),
            {},
        ),
        (
            ValueError,
            "k_descale: is given, and q is bfloat16: only float8_e4m3fn has scales",
            (q, k.astype(q.dtype), v.astype(q.dtype)),
            {"k_descale": 2},
        ),
    ):
        with pytest.raises(error, match="^" + re.escape(message)):
            call(*arrays, cache_seqlens=None, **named)
    with pytest.raises(TypeError, match="^k: is float8_e4m3fn, and q is bfloat16"):
        flashsteps.attention(q, k, v)


def test_the_operator_of_a_cache_in_fp8():
    torch = pytest.importorskip("torch")
    caches = Caches(np.float16)
    q, k, v, lengths, table, scales = map(
        to_torch, (caches.q, caches.k_pages, caches.v_pages, caches.lengths, caches.table, SCALES)
    )

    def call(q, k, v, lengths, table, scales):
        return flashsteps.attention_with_kvcache(
            q, k, v, cache_seqlens=lengths, page_table=table, k_descale=scales, v_descale=0.5, return_lse=True
        )

    expected = call(q, k, v, lengths, table, scales)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(q, k, v, lengths, table, scales), expected))
    with torch.autocast("cpu", torch.float16):  # which leaves FP8 alone
        assert all(map(torch.equal, call(q, k, v, lengths, table, scales), expected))


def test_a_cache_in_fp8_below_jit():
    jax = pytest.importorskip("jax")
    caches = Caches(ml_dtypes.bfloat16)
    arrays = [to_jax(x) for x in (caches.q, caches.k_pages, caches.v_pages, caches.lengths, caches.table, SCALES)]

    def call(q, k, v, lengths, table, scales):
        return flashsteps.attention_with_kvcache(
            q, k, v, cache_seqlens=lengths, page_table=table, k_descale=scales, return_lse=True
        )

    reference.same_bits(jax.jit(call)(*arrays), call(*arrays))


# In PyTorch


def draw_tensors():
    torch = pytest.importorskip("torch")
    return torch, *map(to_torch, draw_qkv()), to_torch(SCALES)


def call_with_scales(q, k, v, scales, fast=False):
    return flashsteps.attention(q, k, v, causal=True, q_descale=scales, v_descale=0.5, return_lse=True, fast=fast)


def quantized_and_causal(q, k, v):
    return flashsteps.attention(q, k, v, causal=True, return_lse=True, quantize=True)


def test_the_operator_rounds():
    torch = pytest.importorskip("torch")
    arrays = tuple(map(to_torch, draw_16_bits(np.float16)))
    op = torch.ops.flashsteps.attention_with_lse.default
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, arrays, {"causal": True, "quantize": True}, test_utils=utilities)
    expected = quantized_and_causal(*arrays)
    compiled = torch.compile(quantized_and_causal, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(*arrays), expected))


@pytest.mark.parametrize("fast", [False, True])
def test_the_operator(fast):
    torch, q, k, v, scales = draw_tensors()
    op = torch.ops.flashsteps.attention_with_lse.default
    utilities = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")  # the other multiplies q
    torch.library.opcheck(op, (q, k, v, None, scales), {"causal": True, "fast": fast}, test_utils=utilities)
    expected = call_with_scales(q, k, v, scales, fast)
    compiled = torch.compile(call_with_scales, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.float16):  # which leaves FP8 alone
        under_autocast = call_with_scales(q, k, v, scales, fast)
    for found in (compiled(q, k, v, scales, fast), under_autocast):
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
@pytest.mark.parametrize("fast", [False, True])
def test_below_transformations_of_jax(scales, fast):
    jax = pytest.importorskip("jax")
    q, k, v = map(to_jax, draw_qkv())
    scales = to_jax(scales) if isinstance(scales, np.ndarray) else scales

    def call(q, k, v):
        return flashsteps.attention(q, k, v, causal=True, k_descale=scales, return_lse=True, fast=fast)

    expected = call(q, k, v)

    reference.same_bits(jax.jit(call)(q, k, v), expected)
    many = [jax.numpy.stack([x, x]) for x in (q, k, v)]
    reference.same_bits(jax.vmap(call)(*many), [jax.numpy.stack([x, x]) for x in expected])


def test_below_transformations_of_jax_a_step_rounds():
    jax = pytest.importorskip("jax")
    q, k, v = map(to_jax, draw_16_bits(np.float16))
    expected = quantized_and_causal(q, k, v)
    reference.same_bits(jax.jit(quantized_and_causal)(q, k, v), expected)
    many = [jax.numpy.stack([x, x]) for x in (q, k, v)]
    reference.same_bits(jax.vmap(quantized_and_causal)(*many), [jax.numpy.stack([x, x]) for x in expected])


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
