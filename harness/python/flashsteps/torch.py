"""flashsteps.attention as two operators of PyTorch, torch.ops.flashsteps.attention and attention_with_lse,
attention_with_kvcache as two more, and attention_backward as one.

flashsteps imports this module when it sees its first tensor. A program that calls torch.ops.flashsteps itself
imports it first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.attention
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from . import _core
from ._frameworks import CPU, Arrays, Description, Framework, Options

_traced_by_dynamo = torch.compiler.is_dynamo_compiling
_dispatch_modes, _autocasts = torch._C._len_torch_dispatch_stack, torch._C._is_any_autocast_enabled
_traced_by_jit = torch._C._is_tracing


def _is_traced() -> bool:
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
    what: str, arrays: Sequence[torch.Tensor | None], names: tuple[str, ...] = ("q", "k", "v")
) -> None:
    for name, array in zip(names, arrays):
        if array is not None and array.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name}: requires a gradient, and {what} has no backward pass: call this under "
                f"torch.no_grad(), or with {name}.detach()"
            )


def _refuse_tangents(arrays: Sequence[torch.Tensor | None], names: tuple[str, ...]) -> None:
    for name, array in zip(names, arrays):
        if array is not None and forward_ad.unpack_dual(array).tangent is not None:
            raise ValueError(f"{name}: has a forward-mode tangent, and attention has no forward-mode derivative")


def _below_autograd(op: Any, keyset: Any, *arrays: torch.Tensor | None, **options: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arrays, **options)


def _autograd(op: Any, names: tuple[str, ...], record: Callable[..., Any]) -> Callable[..., Any]:
    """`record` makes the call where an argument requires a gradient."""

    def kernel(keyset: Any, *arrays: torch.Tensor | None, **options: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(arrays, names)
        if torch.is_grad_enabled() and any(array is not None and array.requires_grad for array in arrays):
            return record(keyset, *arrays, **options)
        return _below_autograd(op, keyset, *arrays, **options)

    return kernel


def _autocast(op: Any, device: str, key: Any) -> Callable[..., Any]:
    """As PyTorch's own attention: computed in the type of autocast, which leaves float64 alone; and here FP8, whose
    numbers mean nothing without their scales."""
    untouched = (torch.float64, torch.float8_e4m3fn)

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        q, k, v = (x if x.dtype in untouched else x.to(dtype) for x in (q, k, v))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return op(q, k, v, *args, **options)

    return kernel


_library = torch.library.Library("flashsteps", "DEF")


def _define(name: str, schema: str, defaults: Options, record: Callable[..., Any]) -> Any:
    def kernel(*arrays: torch.Tensor | None, **named: Any) -> Any:
        given = dict(zip(names, arrays))
        every: Any = tuple(map(given.get, defaults.names()))
        return _core.attention(PLAIN, every, defaults._replace(**named).checked())

    def fake(*arrays: torch.Tensor, **named: Any) -> Any:
        """What a call returns, without its numbers. The kernel checks the shapes of k and v when it runs."""
        options = defaults._replace(**named).checked()
        given = dict(zip(names, arrays))
        q, k, v = (given[argument] for argument in options.names()[:3])
        for argument, array in given.items():
            if argument not in (*options.names()[:3], "d_o", "o"):
                continue
            if array.dim() != 4:
                raise ValueError(f"{argument}: has {array.dim()} dimensions, expected 4")
            cached = options.kvcache and argument != "q" and array.dtype == torch.float8_e4m3fn
            if array.dtype != q.dtype and not cached:
                raise TypeError(f"{argument}: is {array.dtype}, and q is {q.dtype}")
        if options.backward:
            return tuple(array.new_empty(array.shape) for array in (q, k, v))
        o = q.new_empty(q.shape, dtype=torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype)
        return (o, q.new_empty(options.lse_shape(q), dtype=torch.float32)) if options.return_lse else o

    count = 3 if defaults.backward else 1 + defaults.return_lse
    results = f"({', '.join(count * ['Tensor'])})"
    # Inductor must not change the strides of arguments: rows have to be contiguous.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    _library.define(f"{name}({schema}) -> {results}", tags=tags)
    op = getattr(torch.ops.flashsteps, name).default
    names = tuple(argument.name for argument in op._schema.arguments if not argument.kwarg_only)
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
        if not defaults.backward:  # which has the types that the forward call has had
            autocast_key = getattr(torch._C.DispatchKey, "Autocast" + key)
            _library.impl(name, _autocast(op, key.lower(), autocast_key), "Autocast" + key)
    _library.impl(name, _autograd(op, names, record), "Autograd", with_keyset=True)
    torch.library.register_fake("flashsteps::" + name, fake, lib=_library)
    return op


_SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? kv_lengths=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    'Tensor? v_descale=None, *, bool causal=False, float? scale=None, str? step=None, str layout="bhsd", '
    "str? device=None, bool fast=False, bool quantize=False"
)
_KVCACHE_SCHEMA = (
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor? cache_seqlens, Tensor? page_table=None, "
    "Tensor? k_descale=None, Tensor? v_descale=None, *, bool causal=True, float? scale=None, int num_splits=0"
)
_BACKWARD_SCHEMA = (
    "Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? kv_lengths=None, *, bool causal=False, "
    'float? scale=None, str? step=None, str layout="bhsd", str? device=None'
)
_KVCACHE = Options(causal=True, layout="bshd", kvcache=True)
_NAMES = tuple(name for name in Options().names() if name != "page_table")
_KVCACHE_NAMES = tuple(name for name in _KVCACHE.names() if name != "q_descale")


# Gradients


# torch.autograd.Function would look for torch.func's transformations, one of which calls the kernel that asks for this.
class _Differentiable(_SingleLevelFunction):
    """attention_with_lse of tensors of which one requires a gradient."""

    @staticmethod
    def forward(keyset: Any, options: dict[str, Any], *arrays: torch.Tensor | None) -> Any:
        return _below_autograd(_attention_with_lse, keyset, *arrays, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, options, *arrays = inputs
        ctx.num_arrays = len(arrays)
        q, k, v, kv_lengths = (*arrays, None)[:4]
        ctx.save_for_backward(q, k, v, kv_lengths, *output)
        ctx.options = {name: options[name] for name in ("causal", "scale", "layout", "device") if name in options}
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
        if d_lse is not None:
            raise ValueError("lse: has a gradient, and attention_backward takes none: use lse.detach()")
        others = (None,) * (ctx.num_arrays - 3)
        if d_o is None:
            return None, None, None, None, None, *others
        q, k, v, kv_lengths, o, lse = ctx.saved_tensors
        arrays = (_with_aligned_rows(d_o), q, k, v, o, lse, kv_lengths)
        return None, None, *_attention_backward(*arrays, **ctx.options), *others


def _with_aligned_rows(d_o: torch.Tensor) -> torch.Tensor:
    """Nobody chooses the strides of a gradient: that of a sum has strides of 0. Fast steps want 16-byte rows."""
    *others, last = d_o.stride()
    if last == 1 and all(stride > 0 and stride * d_o.element_size() % 16 == 0 for stride in others):
        return d_o
    return d_o.contiguous()


class _DifferentiatedOnce(_SingleLevelFunction):
    """attention_backward of tensors of which one requires a gradient: where it is wanted, that is refused."""

    @staticmethod
    def forward(keyset: Any, options: dict[str, Any], *arrays: torch.Tensor | None) -> Any:
        return _below_autograd(_attention_backward, keyset, *arrays, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        raise ValueError("attention_backward: is differentiated, and attention has no second derivative")


def _record(keyset: Any, *arrays: torch.Tensor | None, **options: Any) -> Any:
    if options.get("quantize") or arrays[0].dtype == torch.float8_e4m3fn:
        refuse_gradients("attention in FP8", arrays, _NAMES)
    with enable_single_level_autograd_function():
        return _Differentiable.apply(keyset, options, *arrays)


def _record_backward(keyset: Any, *arrays: torch.Tensor | None, **options: Any) -> Any:
    with enable_single_level_autograd_function():
        return _DifferentiatedOnce.apply(keyset, options, *arrays)


def _refuse_to_record(keyset: Any, *arrays: torch.Tensor | None, **options: Any) -> Any:
    refuse_gradients("attention_with_kvcache", arrays, _KVCACHE_NAMES)


_attention_with_lse = _define("attention_with_lse", _SCHEMA, Options(return_lse=True), _record)
_attention = _define(
    "attention", _SCHEMA, Options(), lambda keyset, *arrays, **options: _attention_with_lse(*arrays, **options)[0]
)
_attention_backward = _define("attention_backward", _BACKWARD_SCHEMA, Options(backward=True), _record_backward)
_attention_with_kvcache = _define("attention_with_kvcache", _KVCACHE_SCHEMA, _KVCACHE, _refuse_to_record)
_attention_with_kvcache_and_lse = _define(
    "attention_with_kvcache_and_lse", _KVCACHE_SCHEMA, _KVCACHE._replace(return_lse=True), _refuse_to_record
)


class PyTorch(Framework):
    name = "PyTorch"
    exchange_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    is_traced = staticmethod(_is_traced)
    is_transformed = staticmethod(torch._C._are_functorch_transforms_active)
    records_gradients = staticmethod(torch.is_grad_enabled)
    empty_like_contiguous = staticmethod(torch.empty_like)  # no method around it, which would be felt

    def operation(self, arrays: Arrays, options: Options) -> Any:
        """The call through the dispatcher."""
        causal, scale, return_lse, step, layout, device, num_splits, kvcache, fast, quantize, backward = options
        if backward:
            q, k, v, kv_lengths, *_, d_o, o, lse = arrays
            named = {"causal": causal, "scale": scale, "step": step, "layout": layout, "device": device}
            return _attention_backward(d_o, q, k, v, o, lse, kv_lengths, **named)
        if kvcache:
            op = _attention_with_kvcache_and_lse if return_lse else _attention_with_kvcache
            return op(*arrays[:5], *arrays[6:], causal=causal, scale=scale, num_splits=num_splits)
        op = _attention_with_lse if return_lse else _attention
        tensors = (*arrays[:4], *arrays[5:])
        flags = {"fast": fast, "quantize": quantize}
        return op(*tensors, causal=causal, scale=scale, step=step, layout=layout, device=device, **flags)

    def describe(self, argument: str, array: Any) -> Description:
        if array.layout != torch.strided or array.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"{argument}: is {array.layout} on {array.device}, expected a strided tensor on the CPU or "
                "on an NVIDIA GPU"
            )
        device = CPU if array.device.type == "cpu" else array.device.index
        dtype = str(array.dtype).removeprefix("torch.")
        return array.data_ptr(), tuple(array.shape), array.stride(), dtype, device, None

    def current_stream(self, device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    def empty_like(self, array: Any) -> Any:
        return torch.empty_like(array, memory_format=torch.contiguous_format)

    def bf16_like(self, array: Any) -> Any:
        return array.new_empty(size=array.shape, dtype=torch.bfloat16)

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        # By name: PyTorch tries whether a first argument is an integer, with an exception that would be felt.
        return array.new_empty(size=shape, dtype=torch.float32)

    def full_fp32(self, array: Any, number: float) -> Any:
        return array.new_full((), number, dtype=torch.float32)

    def to_host(self, array: Any) -> Any:
        return array.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)

    def same_bits(self, one: Any, other: Any) -> bool:
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


class _Subclass(PyTorch):
    """Of a tensor that says itself what an operator does to it: FakeTensor, DTensor and others."""

    is_traced = staticmethod(lambda: True)


PLAIN, SUBCLASS = PyTorch(), _Subclass()
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


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
    # The output has the order of q's axes in memory: compilers count on it.
    swapped = query.stride(1) < query.stride(2)
    arrays = [x.transpose(1, 2) for x in (query, key, value)] if swapped else (query, key, value)
    layout = "bshd" if swapped else "bhsd"
    options = Options(is_causal, scale, return_lse=True, layout=layout)
    o, lse = _core.attention(PLAIN, (*arrays, *[None] * 5), options)
    lengths = query.size(2), key.size(2)
    seed, offset = (torch.zeros(n, dtype=torch.uint64, device=query.device) for n in ((2,), ()))
    return o.transpose(1, 2) if swapped else o, lse, None, None, *lengths, seed, offset, query.new_empty(0)


def _scaled_dot_product_flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Of what the function above has returned."""
    swapped = query.stride(1) < query.stride(2)
    q, k, v, d_o, o = (
        x.transpose(1, 2) if swapped else x for x in (query, key, value, _with_aligned_rows(grad_out), out)
    )
    options = Options(is_causal, scale, layout="bshd" if swapped else "bhsd", backward=True)
    found = _core.attention(PLAIN, (q, k, v, *[None] * 5, d_o, o, logsumexp), options)

    def ordered_as(array: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(array)
        return gradient if gradient.stride() == result.stride() else result.copy_(gradient)

    gradients = (x.transpose(1, 2) if swapped else x for x in found)
    return tuple(map(ordered_as, (query, key, value), gradients))


class _Active:
    """Until removed, PyTorch's flash attention on GPUs is ours, and so is its backward pass."""

    def __init__(self) -> None:
        self.library: torch.library.Library | None = torch.library.Library("aten", "IMPL", "CUDA")
        for function in (_scaled_dot_product_flash_attention, _scaled_dot_product_flash_attention_backward):
            self.library.impl(function.__name__, function)

    def remove(self) -> None:
        self.library = None


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl("flashsteps", register_fn=_Active)
