"""flashsteps.attention as two operators of PyTorch, torch.ops.flashsteps.attention and attention_with_lse, and
attention_with_kvcache as two more.

flashsteps imports this module when it sees its first tensor. A program that calls torch.ops.flashsteps itself
imports it first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention
from torch.autograd import forward_ad

from . import _check_options, _core, _frameworks

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? kv_lengths=None, *, bool causal=False, float? scale=None, "
    'str? step=None, str layout="bhsd", str? device=None) -> '
)
_KVCACHE_SCHEMA = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? cache_seqlens, Tensor? page_table=None, *, "
    "bool causal=True, float? scale=None, int num_splits=0) -> "
)
_library = torch.library.Library("flashsteps", "DEF")


def _lse_shape(q: torch.Tensor, layout: str) -> tuple[int, int, int]:
    batch, heads, rows = q.shape[:3] if layout == "bhsd" else (q.shape[0], q.shape[2], q.shape[1])
    return batch, heads, rows


def _kernel(return_lse: bool) -> Callable[..., Any]:
    def kernel(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_lengths: torch.Tensor | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
        step: str | None = None,
        layout: str = "bhsd",
        device: str | None = None,
    ) -> Any:
        _check_options(step, layout, device)
        framework = _frameworks.made(_frameworks.PyTorch)
        to_gpu = device == "cuda"
        return _core.attention(
            framework, q, k, v, kv_lengths, causal, scale, step, layout == "bshd", return_lse, to_gpu
        )

    return kernel


def _check_tensors(**tensors: torch.Tensor) -> None:
    (_, q), *_ = tensors.items()
    for name, array in tensors.items():
        if array.dim() != 4:
            raise ValueError(f"{name}: has {array.dim()} dimensions, expected 4")
        if array.dtype != q.dtype:
            raise TypeError(f"{name}: is {array.dtype}, and q is {q.dtype}")


def _fake(return_lse: bool) -> Callable[..., Any]:
    """What a call returns, without its numbers. The kernel checks the shapes of k and v when it runs."""

    def fake(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_lengths: torch.Tensor | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
        step: str | None = None,
        layout: str = "bhsd",
        device: str | None = None,
    ) -> Any:
        _check_options(step, layout, device)
        _check_tensors(q=q, k=k, v=v)
        o = q.new_empty(q.shape)
        return (o, q.new_empty(_lse_shape(q, layout), dtype=torch.float32)) if return_lse else o

    return fake


def _kvcache_kernel(return_lse: bool) -> Callable[..., Any]:
    def kernel(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cache_seqlens: torch.Tensor | None,
        page_table: torch.Tensor | None = None,
        *,
        causal: bool = True,
        scale: float | None = None,
        num_splits: int = 0,
    ) -> Any:
        framework = _frameworks.made(_frameworks.PyTorch)
        return _core.attention_with_kvcache(
            framework, q, k_cache, v_cache, cache_seqlens, page_table, causal, scale, num_splits, return_lse
        )

    return kernel


def _kvcache_fake(return_lse: bool) -> Callable[..., Any]:
    def fake(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cache_seqlens: torch.Tensor | None,
        page_table: torch.Tensor | None = None,
        *,
        causal: bool = True,
        scale: float | None = None,
        num_splits: int = 0,
    ) -> Any:
        _check_tensors(q=q, k_cache=k_cache, v_cache=v_cache)
        o = q.new_empty(q.shape)
        return (o, q.new_empty(_lse_shape(q, "bshd"), dtype=torch.float32)) if return_lse else o

    return fake


_traced_by_dynamo = torch.compiler.is_dynamo_compiling
_dispatch_modes, _autocasts = torch._C._len_torch_dispatch_stack, torch._C._is_any_autocast_enabled
_traced_by_jit = torch._C._is_tracing


def is_traced() -> bool:
    """Every call pays for this: names in this module are looked up faster than torch._C's. Dynamo replaces the
    first by True and cannot trace the others."""
    return (
        _traced_by_dynamo()
        or _dispatch_modes() > 0
        or forward_ad._current_level >= 0
        or _autocasts()
        or _traced_by_jit()
    )


def refuse_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, names: tuple[str, str, str] = ("q", "k", "v")
) -> None:
    for name, array in zip(names, (q, k, v), strict=True):
        if array.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name}: requires a gradient, and there is no backward pass: call this under "
                f"torch.no_grad(), or with {name}.detach()"
            )
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(array).tangent is not None:
            raise ValueError(f"{name}: has a forward-mode tangent, and there is no derivative of attention")


def _autograd(op: Any) -> Callable[..., Any]:
    def kernel(
        keyset: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        refuse_gradients(q, k, v)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, q, k, v, *args, **options)

    return kernel


def _autocast(op: Any, device: str, key: Any) -> Callable[..., Any]:
    """As PyTorch's own attention: computed in the type of autocast, which leaves float64 alone."""

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        q, k, v = (x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return op(q, k, v, *args, **options)

    return kernel


def _define(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    # Inductor must not change the strides of arguments: rows have to be contiguous.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    _library.define(name + schema, tags=tags)
    op = getattr(torch.ops.flashsteps, name).default
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
        autocast_key = getattr(torch._C.DispatchKey, "Autocast" + key)
        _library.impl(name, _autocast(op, key.lower(), autocast_key), "Autocast" + key)
    _library.impl(name, _autograd(op), "Autograd", with_keyset=True)
    torch.library.register_fake("flashsteps::" + name, fake, lib=_library)
    return op


_attention = _define("attention", _SCHEMA + "Tensor", _kernel(False), _fake(False))
_attention_with_lse = _define("attention_with_lse", _SCHEMA + "(Tensor, Tensor)", _kernel(True), _fake(True))
_attention_with_kvcache = _define(
    "attention_with_kvcache", _KVCACHE_SCHEMA + "Tensor", _kvcache_kernel(False), _kvcache_fake(False)
)
_attention_with_kvcache_and_lse = _define(
    "attention_with_kvcache_and_lse",
    _KVCACHE_SCHEMA + "(Tensor, Tensor)",
    _kvcache_kernel(True),
    _kvcache_fake(True),
)


def call(
    q: Any,
    k: Any,
    v: Any,
    kv_lengths: Any,
    causal: bool,
    scale: float | None,
    step: str | None,
    layout: str,
    return_lse: bool,
    device: str | None,
) -> Any:
    """flashsteps.attention through the dispatcher."""
    op = _attention_with_lse if return_lse else _attention
    return op(q, k, v, kv_lengths, causal=causal, scale=scale, step=step, layout=layout, device=device)


def call_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    page_table: Any,
    causal: bool,
    scale: float | None,
    num_splits: int,
    return_lse: bool,
) -> Any:
    """flashsteps.attention_with_kvcache through the dispatcher."""
    op = _attention_with_kvcache_and_lse if return_lse else _attention_with_kvcache
    return op(
        q, k_cache, v_cache, cache_seqlens, page_table, causal=causal, scale=scale, num_splits=num_splits
    )


# Below scaled_dot_product_attention


def _scaled_dot_product_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """ATen's operator of that name: causal is bottom-right there, too."""
    if dropout_p != 0 or return_debug_mask:
        raise ValueError("flashsteps: dropout is not supported")
    refuse_gradients(query, key, value)
    # The output has the order of q's axes in memory: compilers count on it.
    swapped = query.stride(1) < query.stride(2)
    arrays = [x.transpose(1, 2) for x in (query, key, value)] if swapped else (query, key, value)
    layout = "bshd" if swapped else "bhsd"
    o, lse = _kernel(True)(*arrays, causal=is_causal, scale=scale, layout=layout)
    lengths = query.size(2), key.size(2)
    seed, offset = (torch.zeros(n, dtype=torch.uint64, device=query.device) for n in ((2,), ()))
    return o.transpose(1, 2) if swapped else o, lse, None, None, *lengths, seed, offset, query.new_empty(0)


class _Active:
    """Until removed, PyTorch's flash attention on GPUs is ours."""

    def __init__(self) -> None:
        self.library: torch.library.Library | None = torch.library.Library("aten", "IMPL", "CUDA")
        name = _scaled_dot_product_flash_attention.__name__
        self.library.impl(name, _scaled_dot_product_flash_attention)

    def remove(self) -> None:
        self.library = None


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl("flashsteps", register_fn=_Active)
