"""Exact attention and its gradients, by any step of the FlashSteps ladder: on an NVIDIA GPU, or on a CPU emulator.

import numpy as np
import flashsteps

q = k = v = np.random.randn(1, 4, 256, 64).astype(np.float16)
o = flashsteps.attention(q, k, v, causal=True)
"""

from __future__ import annotations

import warnings as _warnings
from importlib.metadata import version as _version
from typing import Any, NamedTuple

from . import _call, _core
from ._check import Check, check, check_backward
from ._emulate import EmulatorError, Finding, Kernel, Launch, Program, emulate
from ._frameworks import STEPS as _STEPS
from ._frameworks import Options as _Options
from ._frameworks import check_step as _check_step

__all__ = [
    "Check",
    "EmulatorError",
    "Finding",
    "Kernel",
    "Launch",
    "Program",
    "Step",
    "attention",
    "attention_backward",
    "attention_with_kvcache",
    "build_info",
    "check",
    "check_backward",
    "describe",
    "emulate",
    "missing_gpu",
    "peak_tflops",
    "steps",
]
__version__ = _version("flashsteps")


class Step(NamedTuple):
    """A step of the ladder, as it describes itself."""

    name: str  #: its folder's, as in attention(step=...)
    title: str  #: the one idea, in a line
    removes: str  #: the bottleneck of the step before that this one takes away
    part: str  #: of the ladder: "memory", "mma.sync", "Hopper", "decode", "FP8" or "backward"
    purpose: str  #: "prefill", or "decode": a few queries against many keys
    dtypes: tuple[str, ...]  #: of "fp16", "bf16", "fp32", "e4m3" (float8_e4m3fn)
    alignment_bytes: int  #: that every row of q, k and v must have; 0: the element's own
    needs_sm: int  #: oldest compute capability of a GPU that it runs on, 90 for 9.0
    needs_sm_exactly: bool  #: and of no other, as code with wgmma
    configurations: tuple[str, ...]  #: tile sizes that it chooses from; empty where there is one
    pages: bool  #: it can find K and V by a page table: attention_with_kvcache()
    fast: bool  #: it approximates: attention(fast=True)
    no_lse: bool  #: it computes o alone: attention(return_lse=False)
    fp8_cache: bool  #: it is for k_cache and v_cache of float8_e4m3fn, with q of another type
    quantizes: bool  #: it rounds q, k and v to FP8: attention(quantize=True)
    backward: bool  #: it computes gradients: attention_backward()
    varies: str | None  #: why two runs of a call may differ in the last bits, where they may
    spills: str | None  #: why it spills registers, where it does
    has_cuda: bool  #: this build has it for GPUs; for the emulator it always has


if _ignored := _core.take_tuning_warning():
    _warnings.warn(_ignored, RuntimeWarning, stacklevel=2)

_DEFAULT_LAYOUT = "bhsd"


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    kv_lengths: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    step: str | None = None,
    layout: str = _DEFAULT_LAYOUT,
    return_lse: bool = False,
    device: str | None = None,
    fast: bool = False,
    quantize: bool = False,
) -> Any:
    """softmax(scale · q kᵀ + mask) v, accumulated in FP32. Exactly, unless `fast` or `quantize`. PyTorch and JAX can
    differentiate it once, with respect to q, k and v (docs/frameworks.md).

    Arguments:
        q: [batch, heads_q, seqlen_q, head_dim], of float16 or bfloat16; float32 exists in v01 and v02 only, and
            float8_e4m3fn in v01. head_dim is 64 or 128. An array of PyTorch, NumPy, JAX or CuPy. bfloat16 and
            float8_e4m3fn in NumPy are ml_dtypes'; float8_e4m3fn may not come from CuPy.
        k, v: [batch, heads_kv, seqlen_kv, head_dim]; type, device and framework are those of q. heads_q is a
            multiple of heads_kv (GQA, MQA). seqlen_kv need not be seqlen_q.
        causal: query i sees key j only when j <= i + kv_length - seqlen_q. The last query is aligned with the
            last key, bottom-right; PyTorch's is_causal aligns the first ones, its causal_lower_right does as
            here.
        scale: of the scores, positive. None: 1 / sqrt(head_dim). Scores are float32; where |scale · q·k| goes
            beyond 2^26, or beyond 5,500 in float8_e4m3fn, a row may become Inf or NaN in every element, but not wrong
            otherwise.
        kv_lengths: [batch], int32, contiguous, on the device of q. How many of its keys each batch has, from
            0 to seqlen_kv; what lies beyond is never used, even NaN. On the CPU the range is checked. On a
            GPU that would mean to wait for it: it is yours to keep, or memory beyond k and v is read.
        q_descale, k_descale, v_descale: for float8_e4m3fn: what the elements of q, k and v are multiplied by, a
            positive number. None: 1. A number or an array of one element is for all of them. An array [batch,
            heads_kv] has one for each head of k and v; query heads that share a head of k share its q_descale. The
            array is float32, on the device of q, of any strides that are not negative.
        step: name of a step, see steps(). None: the one that a rule takes for the fastest on this device
            (docs/frameworks.md).
        layout: "bhsd" as above, or "bshd": q, k, v and the result are [batch, seqlen, heads, head_dim].
        return_lse: also return the log-sum-exp of every row.
        device: for arrays on the CPU. None: the emulator runs the step, which is slow (it is there to learn
            and to test). "cuda": copies them to the current GPU and the result back.
        fast: for float8_e4m3fn, and ignored for other types: may a step approximate, to be faster? Then no element
            of q and k, without its descale, may be above 14 in magnitude: a larger one makes NaN of o and lse in
            rows that see it, and in others beside them. o is off by about 3 % (without: 2.5 to 2.8 %), and lse by up to
            0.084 and what rounding scores to float16 moves it.
        quantize: for float16 and bfloat16: the step rounds q, k and v to FP8 (e4m3), each with one scale for each head
            of k and v, and computes in FP8 as with `fast`. What the rounding alone changes of o depends on the
            tensors: check(quantize=True) says it. Any magnitudes will do. Inf or NaN in a head of q, k or v makes NaN
            of o in all rows of the query heads that share it.

    A step that has several configurations takes the one that `flashsteps tune` has kept for such calls on this
    GPU, if there is one, and else chooses itself. FLASHSTEPS_TUNING in the environment names another file than
    that of `flashsteps tune`; if it is empty, steps always choose themselves.

    torch.compile, torch.export and all that record PyTorch's operations see torch.ops.flashsteps.attention.
    Under torch.autocast, q, k and v are converted to its type. Below jax.jit, jax.vmap and jax.shard_map the
    call becomes one of XLA's, on XLA's stream, and what is wrong with its arguments is said when it is traced.

    Any strides will do, slices of a fused QKV tensor too, if each row's head_dim elements are contiguous. The
    stride of an axis of extent 1 does not matter. Steps from v06 on need rows that are 16-byte aligned, those with
    TMA strides that are not negative.

    Returns:
        o, of q's shape, type, framework and device, contiguous; if q is float8_e4m3fn, o is bfloat16. With
        return_lse (o, lse): lse is float32 [batch, heads_q, seqlen_q] in both layouts, natural logarithm. A query
        that sees no key has o = 0 and lse = -inf. Where there are no queries (an empty batch, say) the result is
        empty, and nothing is launched.

    On a GPU the call only queues: on PyTorch's or CuPy's current stream of q's device, or on XLA's. Like theirs,
    it returns at once, allocates from their allocators (but for 4 MB of counters that a GPU keeps),
    and can be captured into a CUDA graph. JAX compiles the first call of each kind, as it does with its own
    functions. For arrays on the CPU all calls wait, without the GIL. Ctrl-C ends a call on the emulator within a
    moment, and os.fork() waits for such calls.

    Raises:
        TypeError, ValueError: an argument is wrong; the text begins with its name. Nothing was launched.
        RuntimeError: there is no GPU, CUDA reports an error, or the emulator finds a bug in the kernel.
    """
    options = _Options(causal, scale, return_lse, step, layout, device, fast=fast, quantize=quantize)
    checks = step is not None or layout is not _DEFAULT_LAYOUT or device is not None
    if checks or fast is not False or quantize is not False:
        options = options.checked()
    return _call.call((q, k, v, kv_lengths, None, q_descale, k_descale, v_descale), options)


def attention_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    kv_lengths: Any = None,
    step: str | None = None,
    layout: str = _DEFAULT_LAYOUT,
    device: str | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of a number that depends on attention's result o, with respect to q, k and v.

    Arguments:
        d_o: the gradient of that number with respect to o; of o's shape and type.
        q, k, v, causal, scale, kv_lengths, layout: as attention() had them, of float16, bfloat16 or float32.
        o, lse: what attention(return_lse=True) has returned for them. lse is contiguous.
        step: one for gradients, see describe(step).backward. None: the last of the ladder that can run the call.
        device: as in attention().

    Strides, streams, memory, errors and what is checked: as in attention(). PyTorch and JAX call this themselves when
    they differentiate attention().

    Returns:
        dq, dk and dv, of the shapes and types of q, k and v, contiguous. Under GQA, dk and dv are sums over the query
        heads that share a head of k and v. A query that sees no key has zeros in dq, and a key that no query sees has
        zeros in dk and dv, as those at or beyond kv_lengths have.
    """
    options = _Options(causal, scale, False, step, layout, device, backward=True).checked()
    arrays = (q, k, v, kv_lengths, None, None, None, None, d_o, o, lse)
    return _call.call_backward(arrays, options)


def attention_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    cache_seqlens: Any,
    page_table: Any = None,
    causal: bool = True,
    scale: float | None = None,
    num_splits: int = 0,
    return_lse: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """attention() of a few queries of each sequence to the keys and values that its cache has: decoding.

    Nothing is appended: the caches have the new keys and values already, and cache_seqlens counts them.

    Arguments:
        q: [batch, seqlen_q, heads_q, head_dim], as in attention() with layout "bshd", but not float8_e4m3fn. Any
            seqlen_q will do; the steps for decoding are for up to 16.
        k_cache, v_cache: [batch, seqlen, heads_kv, head_dim], or with a page_table [pages, page_size, heads_kv,
            head_dim]: a pool of pages for all sequences. page_size is a power of two. Strides as in attention(). Both
            are of q's type, or both of float8_e4m3fn where q is float16 or bfloat16. Then rows must be 16-byte aligned.
        cache_seqlens: [batch], int32, contiguous, on the device of q. How many keys each sequence has, those of
            its queries among them: 0 to seqlen, or to max_pages * page_size. What lies beyond is never used, even
            NaN. None: all have the most.
        page_table: [batch, max_pages], int32, contiguous, on the device of q. Key j of sequence b is row
            j % page_size of page page_table[b, j // page_size]. Entries behind a sequence's last key are never
            used. Sequences may share pages.
        causal: the last query of a sequence sees all its keys, each query before it one key less.
        scale: of the scores, as in attention().
        num_splits: among how many CTAs the keys of a head are shared. 0: the step decides, as it does for caches of
            float8_e4m3fn in any case.
        return_lse: also return the log-sum-exp of every row.
        k_descale, v_descale: for caches of float8_e4m3fn: what their elements are multiplied by, as in attention().

    On the CPU, cache_seqlens and page_table are checked by value. On a GPU that would mean to wait for it: there
    the numbers are yours to keep in range, or memory beyond the caches is read.

    Returns, raises, and where and when it runs: as attention(), with lse [batch, heads_q, seqlen_q]. PyTorch's
    tracers record torch.ops.flashsteps.attention_with_kvcache.
    """
    options = _Options(causal, scale, return_lse, None, "bshd", None, num_splits, kvcache=True)
    arrays = (q, k_cache, v_cache, cache_seqlens, page_table, None, k_descale, v_descale)
    return _call.call(arrays, options.checked())


def steps() -> list[str]:
    """The names of all steps, in the order of the ladder."""
    return list(_STEPS)


def describe(step: str) -> Step:
    """What a step says of itself. ValueError when there is none of that name."""
    _check_step(step)
    return Step(*_STEPS[step])


def build_info() -> dict[str, Any]:
    """How this module was built.

    {"commit": 40 hex digits or None, "dirty": bool or None, "build": {"compiler", "flags", "type", "nvcc",
    "architectures"}}; the last two are None in a build without CUDA. None elsewhere is: not known.
    """
    return _core.build_info()


def missing_gpu() -> str | None:
    """Why no GPU can be used here, in a line; None when one can."""
    return _core.missing_gpu() or None


def peak_tflops(dtype: str, device: int = 0) -> float | None:
    """Dense peak of a GPU at its highest clock in TFLOPS, as the program's tables use it.

    Arguments:
        dtype: "fp16", "bf16" or "e4m3" (tensor cores) or "fp32" (FMA).
        device: as CUDA numbers them.

    None for a card that is not in the table. RuntimeError without a GPU, ValueError for another dtype.
    """
    if dtype not in ("fp16", "bf16", "e4m3", "fp32"):
        raise ValueError(f"dtype: is {dtype!r}, expected 'fp16', 'bf16', 'e4m3' or 'fp32'")
    if type(device) is not int or not 0 <= device < 2**31:
        raise ValueError(f"device: is {device!r}, expected a number of CUDA's")
    return _core.peak_tflops(dtype, device) or None
