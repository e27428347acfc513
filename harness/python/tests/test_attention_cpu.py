"""flashsteps on arrays of NumPy: on the emulator, whatever is plugged in."""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import flashsteps
import numpy as np
import pytest
import reference
from flashsteps import _frameworks

PACKAGE = Path(flashsteps.__file__).parent
STEPS = [
    name
    for name, step in ((name, flashsteps.describe(name)) for name in flashsteps.steps())
    if "fp16" in step.dtypes and not step.fp8_cache and not step.quantizes and not step.backward
]
BACKWARD_STEPS = [name for name in flashsteps.steps() if flashsteps.describe(name).backward]


def draw(shape, dtype="float16", seed=1):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def draw_qkv(batch=1, heads_q=2, heads_kv=2, seqlen_q=70, seqlen_kv=70, head_dim=64, dtype="float16"):
    return (
        draw((batch, heads_q, seqlen_q, head_dim), dtype, 1),
        draw((batch, heads_kv, seqlen_kv, head_dim), dtype, 2),
        draw((batch, heads_kv, seqlen_kv, head_dim), dtype, 3),
    )


def check(q, k, v, **options):
    """Against the reference; `options` for both."""
    o, lse = flashsteps.attention(q, k, v, return_lse=True, **options)
    assert type(o) is type(lse) is np.ndarray and o.dtype == q.dtype and o.flags.c_contiguous
    described = {name: value for name, value in options.items() if name in ("causal", "scale", "kv_lengths")}
    bshd = options.get("layout") == "bshd"
    q, k, v, o = (x.transpose(0, 2, 1, 3) if bshd else x for x in (q, k, v, o))
    expected = reference.attention(q, k, v, **described)
    reference.check(o.astype(np.float64), lse, q.dtype.name, *expected)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_step(step, causal):
    q, k, v = draw_qkv(heads_q=2, heads_kv=1, seqlen_q=70, seqlen_kv=130)
    check(q, k, v, step=step, causal=causal, kv_lengths=np.array([101], np.int32))


@pytest.mark.parametrize(
    ("shape", "causal"),
    [
        ({"seqlen_q": 1, "seqlen_kv": 1}, False),
        ({"seqlen_q": 130, "seqlen_kv": 5}, True),  # queries that see nothing
        ({"batch": 2, "heads_q": 6, "heads_kv": 2, "seqlen_q": 3}, True),
        ({"heads_q": 4, "heads_kv": 1, "head_dim": 128}, False),
    ],
)
def test_shapes(shape, causal):
    check(*draw_qkv(**shape), causal=causal)


def test_bf16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    check(*draw_qkv(dtype=ml_dtypes.bfloat16), causal=True)


@pytest.mark.parametrize("step", ["v01_scalar", "v02_smem_tiles", None])
def test_fp32(step):
    check(*draw_qkv(dtype="float32"), causal=True, step=step)


@pytest.mark.parametrize("scale", [0.3, 1, np.float32(0.05)])
def test_scale(scale):
    check(*draw_qkv(), scale=scale)


def test_what_lies_beyond_a_length_never_matters():
    q, k, v = draw_qkv(batch=3, seqlen_kv=90)
    lengths = np.array([0, 33, 90], np.int32)
    for b, length in enumerate(lengths):
        k[b, :, length:] = v[b, :, length:] = np.nan
    check(q, k, v, kv_lengths=lengths, causal=True)


def test_bshd_is_bhsd_transposed():
    q, k, v = draw_qkv(heads_q=4, heads_kv=2, seqlen_kv=80)
    o, lse = flashsteps.attention(q, k, v, causal=True, return_lse=True)
    bshd = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    other, other_lse = flashsteps.attention(*bshd, causal=True, return_lse=True, layout="bshd")
    assert other.flags.c_contiguous and np.array_equal(other.transpose(0, 2, 1, 3), o)
    assert np.array_equal(other_lse, lse)


def test_strides():
    """The same numbers, laid out in other ways, give the same bits."""
    q, k, v = draw_qkv(batch=2, heads_q=3, heads_kv=3)
    expected = flashsteps.attention(q, k, v, step="v09_direct_rescale")

    def same(*arrays, step="v09_direct_rescale"):
        o = flashsteps.attention(*arrays, step=step)
        assert o.flags.c_contiguous and np.array_equal(o, expected)

    fused = np.stack([x.transpose(0, 2, 1, 3) for x in (q, k, v)], axis=2)  # [b, s, 3, h, d]
    same(*(fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3)))
    gaps = np.full((2, 3, 140, 72), np.nan, np.float16)
    gaps[:, :, ::2, :64] = q
    same(gaps[:, :, ::2, :64], k, v)
    same(q[:, ::-1].copy()[:, ::-1], k[:, :, ::-1].copy()[:, :, ::-1], v)  # negative strides
    fortran = np.asfortranarray(q.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    assert fortran.strides[3] == 2
    same(fortran, k, v)
    for array in (q, k, v):
        array.flags.writeable = False
    same(q, k, v)


@pytest.mark.parametrize("step", [*STEPS, None])
@pytest.mark.parametrize("seqlen_kv", [1, 70])
def test_strides_of_axes_of_extent_1_may_be_anything(step, seqlen_kv):
    """In bytes: not even whole elements."""
    arrays = draw_qkv(heads_q=1, heads_kv=1, seqlen_q=1, seqlen_kv=seqlen_kv)
    expected = flashsteps.attention(*arrays, step=step, return_lse=True)
    for anything in (2, -3, 2**62 + 1):
        changed = [
            np.lib.stride_tricks.as_strided(
                x, strides=[anything if size == 1 else stride for size, stride in zip(x.shape, x.strides)]
            )
            for x in arrays
        ]
        found = flashsteps.attention(*changed, step=step, return_lse=True)
        assert all(map(np.array_equal, found, expected)) and found[0].flags.c_contiguous


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("axis", ["batch", "heads_q", "seqlen_q"])
def test_without_queries_the_result_is_empty(axis, layout):
    q, k, v = draw_qkv(**{"batch": 2, "heads_q": 4} | {axis: 0})
    swap = (0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)
    for number_of_keys in (70, 0):
        for heads_kv in (2, 0):
            arrays = [x.transpose(swap) for x in (q, k[:, :heads_kv, :number_of_keys], v[:, :heads_kv, :number_of_keys])]
            options = {"layout": layout, "causal": True, "kv_lengths": np.zeros(len(q), np.int32)}
            for step in (None, "v01_scalar", STEPS[-1]):
                o, lse = flashsteps.attention(*arrays, step=step, return_lse=True, **options)
                assert o.shape == arrays[0].shape and o.dtype == q.dtype
                assert lse.shape == q.shape[:3] and lse.dtype == np.float32
    refused(ValueError, "step: unknown step 'v99'", q, k, v, step="v99")
    refused(ValueError, "v: has shape", q, k, v[:, :, 1:])
    refused(TypeError, "k: is float32, and q is float16", q, k.astype("float32"), v)


def test_rows_of_odd_length_take_a_step_that_can():
    """From v06 on rows are 16-byte aligned; without a step's name that is looked after."""
    odd = [np.zeros((1, 2, 70, 65), np.float16)[..., :64] for _ in range(3)]
    for array, numbers in zip(odd, draw_qkv()):
        array[:] = numbers
    check(*odd)
    check(*odd, step="v05_padded_smem")
    with pytest.raises(
        ValueError, match="^step: v06_vectorized_loads needs every row of q to be 16-byte aligned"
    ):
        flashsteps.attention(*odd, step="v06_vectorized_loads")


@pytest.mark.parametrize("said", [(2, 2, 70, 64), (2, 2, 2**20, 64), (1, 1, 1, 64)])
def test_what_a_subclass_says_of_its_shape_does_not_matter(said):
    class Liar(np.ndarray):
        shape = said

    arrays = draw_qkv()
    o = flashsteps.attention(*(x.view(Liar) for x in arrays))
    assert type(o) is np.ndarray and np.array_equal(o, flashsteps.attention(*arrays))


# What is refused


def refused(error, text, *arrays, **options):
    with pytest.raises(error, match="^" + re.escape(text)):
        flashsteps.attention(*arrays, **options)


Q, K, V = draw_qkv(batch=2, heads_q=8, heads_kv=4)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q": Q.tolist()}, TypeError, "q: is a list, expected an array of NumPy, PyTorch, JAX or CuPy"),
        ({"v": None}, TypeError, "v: is a NoneType, expected an array"),
        ({"q": Q.astype("float64")}, TypeError, "q: is float64, expected float16, bfloat16, float32 or float8_e4m3fn"),
        ({"q": Q.astype("int16")}, TypeError, "q: is int16, expected"),
        ({"v": np.ma.masked_less(V, 0)}, TypeError, "v: is a masked array, whose mask would not be seen"),
        ({"q": Q.astype(">f2")}, TypeError, "q: has the other byte order"),
        ({"k": K.astype("float32")}, TypeError, "k: is float32, and q is float16"),
        ({"v": V.astype("float32")}, TypeError, "v: is float32, and q is float16"),
        ({"q": Q[0]}, ValueError, "q: has shape [8, 70, 64], expected 4 dimensions"),
        ({"k": K[None]}, ValueError, "k: has shape [1, 2, 4, 70, 64], expected 4 dimensions"),
        ({"q": Q[:0]}, ValueError, "k: has batch 2, and q has 0"),
        ({"q": Q[..., :0]}, ValueError, "q: has head_dim 0, the steps support 64 and 128"),
        ({"k": K[:, :0], "v": V[:, :0]}, ValueError, "k: has shape [2, 0, 70, 64], which is empty"),
        ({"k": K[:, :, :0], "v": V[:, :, :0]}, ValueError, "k: has shape [2, 4, 0, 64], which is empty"),
        ({"q": Q[..., :32]}, ValueError, "q: has head_dim 32, the steps support 64 and 128"),
        ({"k": K[:1]}, ValueError, "k: has batch 1, and q has 2"),
        ({"k": draw((2, 4, 70, 128))}, ValueError, "k: has head_dim 128, and q has 64"),
        ({"k": K[:, :3]}, ValueError, "k: has 3 heads, and q has 8, which is not a multiple"),
        ({"v": V[:, :2]}, ValueError, "v: has shape [2, 2, 70, 64], and k has [2, 4, 70, 64]"),
        ({"v": V[:, :, 1:]}, ValueError, "v: has shape [2, 4, 69, 64], and k has [2, 4, 70, 64]"),
        ({"q": draw((2, 8, 70, 128))[..., ::2]}, ValueError,
         "q: has rows that are not contiguous (the stride of head_dim is 2): call .contiguous()"),
        ({"k": K[..., ::-1]}, ValueError, "k: has rows that are not contiguous"),
        ({"v": np.zeros(V.nbytes + 1, np.uint8)[1:].view(np.float16).reshape(V.shape)}, ValueError,
         "v: is not aligned to the 2 bytes of its element"),
        ({"q": np.zeros((2, 8, 70, 131), np.uint8)[..., :128].view(np.float16)}, ValueError,
         "q: has strides that are not whole elements"),
        ({"kv_lengths": np.array([5, 6])}, TypeError, "kv_lengths: is int64, expected int32"),
        ({"kv_lengths": [5, 6]}, TypeError, "kv_lengths: is a list"),
        ({"kv_lengths": np.array([5], np.int32)}, ValueError, "kv_lengths: has shape [1], and the batch"),
        ({"kv_lengths": np.array([[5, 6]], np.int32)}, ValueError, "kv_lengths: has shape [1, 2], expected"),
        ({"kv_lengths": np.arange(4, dtype=np.int32)[::2]}, ValueError, "kv_lengths: is not contiguous"),
        ({"kv_lengths": np.array([5, 71], np.int32)}, ValueError, "kv_lengths: [1] is 71, expected 0 to 70"),
        ({"kv_lengths": np.array([-1, 7], np.int32)}, ValueError, "kv_lengths: [0] is -1, expected 0 to 70"),
        ({"scale": 0.0}, ValueError, "scale: is 0, expected a positive number that float32 holds"),
        ({"scale": 1e-60}, ValueError, "scale: is 1e-60, expected a positive number that float32 holds"),
        ({"scale": True}, TypeError, "scale: is a bool, expected a number"),
        ({"scale": -1}, ValueError, "scale: is -1"),
        ({"scale": float("nan")}, ValueError, "scale: is nan"),
        ({"scale": 3e38}, ValueError, "scale: is 3"),
        ({"scale": "1"}, TypeError, "scale: is a str, expected a number"),
        ({"scale": 10**400}, ValueError, "scale: is beyond the range of a float"),
        ({"causal": 1}, TypeError, "causal: is a int, expected True or False"),
        ({"causal": np.True_}, TypeError, "causal: is a numpy.bool"),
        ({"layout": np.array("bhsd")}, ValueError, "layout: is array('bhsd'"),
        ({"return_lse": None}, TypeError, "return_lse: is a NoneType, expected True or False"),
        ({"step": "v99_nothing"}, ValueError, "step: unknown step 'v99_nothing'; there are v01_scalar, "),
        ({"step": ""}, ValueError, "step: unknown step ''; there are v01_scalar, "),
        ({"step": "v01\ud800"}, ValueError, "step: unknown step 'v01\\ud800'; there are v01_scalar, "),
        ({"step": "\x1b[31m"}, ValueError, "step: unknown step '\\x1b[31m'; there are v01_scalar, "),
        ({"step": np.array("v01_scalar")}, TypeError, "step: is a numpy.ndarray, expected a step's name"),
        ({"step": 3}, TypeError, "step: is a int, expected a step's name"),
        ({"layout": "sbhd"}, ValueError, "layout: is 'sbhd', expected 'bhsd' or 'bshd'"),
        ({"device": "cpu"}, ValueError, "device: is 'cpu', expected None or 'cuda'"),
        ({"device": np.zeros(2)}, ValueError, "device: is array([0., 0.]), expected None or 'cuda'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change, error, text):
    options = {"q": Q, "k": K, "v": V} | change
    refused(error, text, options.pop("q"), options.pop("k"), options.pop("v"), **options)


def test_the_layout_says_where_the_heads_are():
    refused(ValueError, "k: has 70 heads, and q has 8", Q.transpose(0, 2, 1, 3), K, V, layout="bshd")


@pytest.mark.parametrize("name", ["k", "v", "kv_lengths"])
def test_arguments_on_several_devices(monkeypatch, name):
    def describe(self, argument, array):
        found = original(self, argument, array)
        return (*found[:4], 1, *found[5:]) if argument == name else found

    original = _frameworks.NumPy.describe
    monkeypatch.setattr(_frameworks.NumPy, "describe", describe)
    lengths = np.array([5, 6], np.int32)
    refused(ValueError, f"{name}: is on cuda:1, and q is on the CPU", Q, K, V, kv_lengths=lengths)


def test_without_a_gpu_cuda_is_refused():
    if flashsteps.missing_gpu() is None:
        pytest.skip("there is a GPU")
    refused(RuntimeError, f"device: {flashsteps.missing_gpu()}", Q, K, V, device="cuda")


# Gradients


def check_gradients(q, k, v, step=None, **options):
    """Against the reference; `options` for both, and for the forward call."""
    bshd = options.get("layout") == "bshd"
    o, lse = flashsteps.attention(q, k, v, return_lse=True, **options)
    d_o = draw(o.shape, o.dtype, 4)
    found = flashsteps.attention_backward(d_o, q, k, v, o, lse, step=step, **options)
    for gradient, array in zip(found, (q, k, v), strict=True):
        assert type(gradient) is np.ndarray and gradient.dtype == array.dtype and gradient.flags.c_contiguous
    swap = (lambda x: x.transpose(0, 2, 1, 3)) if bshd else (lambda x: x)  # noqa: E731
    described = {name: value for name, value in options.items() if name != "layout"}
    expected = reference.gradients(*map(swap, (d_o, q, k, v, o)), **described)
    reference.check_gradients([swap(x).astype(np.float64) for x in found], q.dtype.name, expected)


@pytest.mark.parametrize("step", [None, *BACKWARD_STEPS])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(step, causal):
    """Of queries that see no key, and of keys that no query sees."""
    q, k, v = draw_qkv(batch=3, heads_q=4, heads_kv=2, seqlen_q=70, seqlen_kv=90)
    k[2, :, 20:] = v[2, :, 20:] = np.nan
    check_gradients(q, k, v, step, causal=causal, kv_lengths=np.array([90, 0, 20], np.int32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_other_types_layouts_and_scales(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (x.transpose(0, 2, 1, 3).copy() for x in draw_qkv(heads_q=3, heads_kv=1, head_dim=128, dtype=dtype))
    check_gradients(q, k, v, layout="bshd", scale=0.3, causal=True)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gradients_without_queries(axis):
    q, k, v = draw_qkv(seqlen_q=5, seqlen_kv=6)
    q = q[:0] if axis == 0 else q[:, :0] if axis == 1 else q[:, :, :0]
    k, v = k[: len(q)], v[: len(q)]
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    dq, dk, dv = flashsteps.attention_backward(o, q, k, v, o, lse)
    assert dq.shape == q.shape and dk.shape == dv.shape == k.shape and not dk.any() and not dv.any()


def test_wrong_arguments_of_gradients():
    q, k, v = draw_qkv(seqlen_q=5, seqlen_kv=6)
    o, lse = flashsteps.attention(q, k, v, return_lse=True)

    def refused(error, text, **changed):
        arguments = {"d_o": o, "q": q, "k": k, "v": v, "o": o, "lse": lse} | changed
        with pytest.raises(error, match=f"^{text}"):
            flashsteps.attention_backward(**arguments)

    refused(ValueError, "d_o: has shape .1, 2, 4, 64., expected .1, 2, 5, 64.", d_o=o[:, :, 1:])
    refused(TypeError, "d_o: is float32, and q is float16", d_o=o.astype(np.float32))
    refused(TypeError, "o: is a NoneType, expected an array", o=None)
    refused(TypeError, "lse: is float16, expected float32", lse=lse.astype(np.float16))
    refused(ValueError, "lse: has shape .1, 2, 4., expected .1, 2, 5.", lse=lse[..., 1:].copy())
    refused(ValueError, "lse: is not contiguous", lse=np.repeat(lse, 2, axis=2)[..., ::2])
    refused(ValueError, "step: v01_scalar computes no gradients", step="v01_scalar")
    refused(TypeError, "causal: is a int", causal=1)
    for step in BACKWARD_STEPS:
        with pytest.raises(ValueError, match=f"^step: {step} computes gradients, and the call does not ask for"):
            flashsteps.attention(q, k, v, step=step)


# Beside attention


def test_steps():
    folders = Path(__file__).parents[3] / "steps"
    variants = [  # every build makes steps of them
        "v25_clean_loop_merging",
        "v27_tile_shapes_overlapping_launches",
        "v36_stream_k_overlapping_full_sms",
        "v36_stream_k_overlapping_six_stages",
        "v42_fp8_cache_overlapping_full_sms",
    ]
    assert flashsteps.steps() == sorted([*variants, *(path.parent.name for path in folders.glob("*/kernel.cu"))])


def test_describe():
    for name in flashsteps.steps():
        step = flashsteps.describe(name)
        assert step.name == name and step.title and step.alignment_bytes in (0, 16) and step.needs_sm >= 80
        more = {"v01": ("fp32", "e4m3"), "v02": ("fp32",), "v50": ("fp32",), "v51": ("fp32",)}.get(name[:3], ())
        assert step.backward == (step.part == "backward")
        assert step.varies is None or step.varies
        assert step.fp8_cache == (name[:3] == "v42")
        assert step.quantizes == (name == "v43_quantize")
        alone = step.part == "FP8" and not step.fp8_cache and not step.quantizes
        assert step.dtypes == (("e4m3",) if alone else ("fp16", "bf16", *more))
        assert step.spills is None or step.spills
        assert step.has_cuda == (flashsteps.build_info()["build"]["nvcc"] is not None)
    assert "TMA" in flashsteps.describe("v10_tma_warpspec").title
    assert flashsteps.describe("v10_tma_warpspec").needs_sm == 90
    with pytest.raises(ValueError, match="^step: unknown step 'v10'; there are v01_scalar, "):
        flashsteps.describe("v10")
    with pytest.raises(TypeError, match="^step: is a list, expected a step's name"):
        flashsteps.describe(["v10"])


def test_build_info():
    info = flashsteps.build_info()
    assert set(info) == {"commit", "dirty", "build"}
    assert info["commit"] is None or re.fullmatch("[0-9a-f]{40}", info["commit"])
    assert info["dirty"] in (True, False, None)
    assert set(info["build"]) == {"compiler", "flags", "type", "nvcc", "architectures"}
    assert info["build"]["compiler"] and info["build"]["type"] == "Release"
    assert (info["build"]["nvcc"] is None) == (info["build"]["architectures"] is None)


def test_peak_tflops():
    for dtype in ("fp8", "\ud800", "\x1b[31m", 16, None, ["fp16"]):
        text = f"dtype: is {dtype!r}, expected 'fp16', 'bf16', 'e4m3' or 'fp32'"
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            flashsteps.peak_tflops(dtype)
    for device in (-1, 2**31, 0.0, "0", None, True):
        with pytest.raises(ValueError, match=f"^device: is {device!r}, expected a number of CUDA's"):
            flashsteps.peak_tflops("fp16", device)
    if flashsteps.missing_gpu() is not None:
        with pytest.raises(RuntimeError, match=f"^{flashsteps.missing_gpu()}$"):
            flashsteps.peak_tflops("bf16")


def test_everything_public_is_documented_and_annotated():
    for name in flashsteps.__all__:
        member = getattr(flashsteps, name)
        assert inspect.getdoc(member), name
        if inspect.isfunction(member):
            parameters = inspect.signature(member).parameters
            assert set(member.__annotations__) == set(parameters) | {"return"}, name
            for parameter in parameters:
                assert re.search(rf"\b{parameter}\b", member.__doc__), (
                    f"{name} does not say what {parameter} is"
                )
    assert (PACKAGE / "py.typed").exists()
    assert "float32 exists in v01 and v02 only" in flashsteps.attention.__doc__


def test_nothing_is_imported_for_other_frameworks():
    code = "import flashsteps, sys; print(sorted({'numpy', 'torch', 'jax', 'cupy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_other_threads_go_on():
    """A call lets go of the GIL: this thread, which gives it away in every turn, gets it back in the meantime."""
    q, k, v = draw_qkv(heads_q=4, heads_kv=4, seqlen_q=1024, seqlen_kv=1024)
    thread = threading.Thread(target=flashsteps.attention, args=(q, k, v))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0)
        turns += 1
    thread.join()
    assert turns > 100  # a call that keeps it leaves a few, before and after


def test_calls_from_several_threads():
    q, k, v = draw_qkv()
    expected = flashsteps.attention(q, k, v)
    done = []
    threads = [threading.Thread(target=lambda: done.append(flashsteps.attention(q, k, v))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4 and all(np.array_equal(o, expected) for o in done)


def test_ctrl_c_ends_a_call():
    code = """
import os, signal, threading, time, numpy as np, flashsteps
q = np.ones((1, 2, 130, 64), np.float16)
many = np.ones((1, 64, 32 * 130, 64), np.float16)  # 32,768 times as much work
flashsteps.attention(q, q, q)
start = time.monotonic()
flashsteps.attention(q, q, q)
at_once = time.monotonic()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    flashsteps.attention(many, many, many)
except KeyboardInterrupt:
    waited = time.monotonic() - at_once
    print(waited < 10_000 * (at_once - start), float(flashsteps.attention(q, q, q).min()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, check=True
    )
    assert done.stdout == "True 1.0\n"


def test_handlers_of_signals_run_during_a_call():
    q, k, v = draw_qkv(heads_q=4, heads_kv=4, seqlen_q=512, seqlen_kv=512)
    expected = flashsteps.attention(q, k, v)
    frames = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: frames.append(frame.f_code.co_name))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.02)
    try:
        found = flashsteps.attention(q, k, v)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "call" in frames and np.array_equal(found, expected)


def test_fork_during_a_call():
    """The child has none of the threads that were in a call, and can call nevertheless."""
    code = """
import os, threading, numpy as np, flashsteps
q = np.ones((1, 2, 256, 64), np.float16)
small = q[:, :1, :64].copy()
flashsteps.attention(small, small, small)  # a fork during an import is Python's own affair
ready, done = threading.Event(), []
def call():
    while not done:
        ready.set()
        flashsteps.attention(q, q, q)
threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(3):
    ready.wait()
    ready.clear()
    child = os.fork()
    if child == 0:
        os._exit(int(flashsteps.attention(small, small, small).min()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
done.append(True)
for thread in threads:
    thread.join()
print(float(flashsteps.attention(small, small, small).min()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "1.0\n", done.stdout + done.stderr


def test_the_readme_shows_what_works():
    text = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    section = text.split("## Call a step from Python")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["o"].shape == names["q"].shape and names["o"].dtype == names["q"].dtype


def test_python_may_end_during_a_call():
    """A thread that nobody waits for is in a kernel when the interpreter ends: its memory must still be there."""
    code = """
import threading, time, numpy as np, flashsteps
q = np.ones((1, 8, 512, 64), np.float16)
threading.Thread(target=lambda: flashsteps.attention(q, q, q, step="v02_smem_tiles"), daemon=True).start()
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and done.stderr == ""
