"""flashsteps.attention, attention_backward and attention_with_kvcache as operations of JAX: every call of JAX's arrays
comes here.

flashsteps imports this module when it sees its first array of JAX.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from . import _core
from ._frameworks import Arrays, Description, Framework, NumPy, Options

_TARGET = "flashsteps_attention"  # its name in XLA's programs
_NUMPY = NumPy()

for _platform, _handler in _core.xla_handlers().items():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)


def _placement(arrays: list[Any]) -> dict[str, Any]:
    """Of the results. Below shard_map they vary over the axes of the mesh over which an argument does."""
    types = [jax.typeof(array) for array in arrays]
    meshes = [each.sharding.mesh for each in types if not each.sharding.mesh.empty]
    if not meshes:
        return {}
    varying = frozenset().union(*(each.manual_axis_type.varying for each in types))
    return {
        "sharding": jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec()),
        "manual_axis_type": jax.sharding.ManualAxisType(varying=varying),
    }


def _without_gradients(operation: Any, options: Options, names: tuple[str, ...]) -> Any:
    """Refuses them by a rule for custom_jvp, which reverse-mode differentiation uses, too."""
    what = "attention_with_kvcache" if options.kvcache else "attention in FP8"

    def rule(arrays: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        for name, tangent in zip(names, tangents):
            if type(tangent) is jax.custom_derivatives.SymbolicZero:
                continue
            if options.backward:
                raise ValueError("attention_backward: is differentiated, and attention has no second derivative")
            raise ValueError(
                f"{name}: is being differentiated, and there is no derivative of {what}: call this "
                f"with jax.lax.stop_gradient({name})"
            )
        results = operation(*arrays)
        return results, tuple(jax.numpy.zeros_like(result) for result in results)

    differentiable = jax.custom_jvp(operation)
    differentiable.defjvp(rule, symbolic_zeros=True)
    return differentiable


@jax.custom_vjp
def _without_gradient(lse: Any) -> Any:
    return lse


def _refuse_gradient(_: None, gradient: Any) -> Any:
    raise ValueError("lse: has a gradient, and attention_backward takes none: use jax.lax.stop_gradient(lse)")


_without_gradient.defvjp(lambda lse: (lse, None), _refuse_gradient)


def _with_gradients(operation: Any, options: Options, gpu: int | None) -> Any:
    """A function of q, k, v and, where there are any, kv_lengths."""
    backward_options = Options(options.causal, options.scale, layout=options.layout, backward=True)

    def forward(*given: Any) -> Any:
        q, k, v, kv_lengths = (*given, None)[:4]
        arrays = (q, k, v, kv_lengths, *[None] * 4)
        o, lse = _traced(arrays, options._replace(return_lse=True), gpu)
        return (o, lse) if options.return_lse else (o,), (arrays, o, lse)

    def backward(kept: Any, cotangents: Any) -> Any:
        arrays, o, lse = kept
        gradients = _traced((*arrays, cotangents[0], o, lse), backward_options, gpu)
        return gradients if arrays[3] is None else (*gradients, None)

    differentiable = jax.custom_vjp(operation)
    differentiable.defvjp(forward, backward)

    def of_varying(*given: Any) -> Any:
        """Below shard_map a gradient varies over the mesh where a result does: JAX then sums it up where an argument
        does not."""
        axes = [jax.typeof(array).manual_axis_type.varying for array in given]
        missing = [frozenset().union(*axes) - own for own in axes]
        cast = [jax.lax.pcast(x, tuple(m), to="varying") if m else x for x, m in zip(given, missing, strict=True)]
        o, *lse = differentiable(*cast)
        return (o, *map(_without_gradient, lse))

    return of_varying


def _plan(arrays: Arrays, options: Options, gpu: int | None) -> tuple[float, int]:
    """The scale, and the bytes of memory that the call needs. Below jax.export symbols may stand for sizes, which
    XLA knows when the program runs. Numbers take their places here: of a call that fills a GPU with few queries and
    many keys, which is what needs memory."""
    shapes = [() if array is None else array.shape for array in arrays]
    symbols = [size for size in dict.fromkeys(sum(shapes, ())) if not isinstance(size, int)]
    numbers = {symbol: 1024 << place for place, symbol in enumerate(symbols)}
    if symbols:
        batch, rows = shapes[0][:1], shapes[0][1 if options.layout == "bshd" else 2 :][:1]
        numbers |= {size: number for size, number in zip(batch + rows, (32, 16)) if size in numbers}
        arrays = tuple(
            None if array is None else jax.ShapeDtypeStruct([numbers.get(n, n) for n in shape], array.dtype)
            for array, shape in zip(arrays, shapes, strict=True)
        )
    try:
        return _core.plan(Jax(), arrays, options, gpu)
    except ValueError as error:
        if not symbols:
            raise
        sizes = ", ".join(f"{symbol} = {number}" for symbol, number in numbers.items())
        raise ValueError(f"{error}; for example with {sizes}") from None


def _in_full(arrays: Arrays, options: Options) -> Arrays:
    """Of FP8 XLA gets all scales, each [batch, heads]: jax.vmap puts its dimension in front."""
    q, k = arrays[:2]
    shape = (q.shape[0], k.shape[1 if options.layout == "bhsd" else 2])

    def in_full(of: Any, scale: Any) -> Any:
        if of.dtype != jax.numpy.float8_e4m3fn:
            return scale
        return jax.numpy.broadcast_to(jax.numpy.float32(1 if scale is None else scale), shape)

    return (*arrays[:5], *map(in_full, arrays[:3], arrays[5:8]), *arrays[8:])


def _operation(arrays: Arrays, options: Options, gpu: int | None) -> Any:
    """A function of those of the arrays that are given. It returns a tuple."""
    scale, memory_bytes = _plan(arrays, options, gpu)
    placement = _placement([array for array in arrays if array is not None])
    q, pages = arrays[0], arrays[4] is not None
    if options.backward:
        results = [jax.ShapeDtypeStruct(array.shape, array.dtype, **placement) for array in arrays[:3]]
    else:
        o_dtype = jax.numpy.bfloat16 if q.dtype == jax.numpy.float8_e4m3fn else q.dtype
        results = [jax.ShapeDtypeStruct(q.shape, o_dtype, **placement)]
    if options.return_lse:
        results.append(jax.ShapeDtypeStruct(options.lse_shape(q), np.float32, **placement))
    num_results = len(results)
    if memory_bytes > 0:
        # Counters and a workspace. A result, since command buffers go on using it; and longer, to be aligned.
        results.append(jax.ShapeDtypeStruct((memory_bytes + 256,), np.uint8, **placement))
    attributes = {
        "backward": options.backward,
        "bshd": options.layout == "bshd",
        "causal": options.causal,
        "fast": options.fast,
        "num_splits": np.int32(options.num_splits),
        "pages": pages,
        "quantize": options.quantize,
        "return_lse": options.return_lse,
        "scale": np.float32(scale),
        "step": options.step or "",
    }
    # vmap adds a dimension to all arguments and results: one call with more batches. Pages are of no batch.
    foreign = jax.ffi.ffi_call(_TARGET, results, vmap_method="sequential" if pages else "broadcast_all")

    return lambda *given: tuple(foreign(*given, **attributes))[:num_results]


def _traced(arrays: Arrays, options: Options, gpu: int | None) -> Any:
    """The call as an operation of XLA: what is wrong with it is said now. `gpu`: that will run it, if it is known."""
    operation = _operation(arrays, options, gpu)
    arrays = _in_full(arrays, options)
    named = {name: array for name, array in zip(options.names(), arrays, strict=True) if array is not None}
    fp8 = options.quantize or arrays[0].dtype == jax.numpy.float8_e4m3fn
    if fp8 or options.kvcache or options.backward:
        operation = _without_gradients(operation, options, tuple(named))
    else:
        operation = _with_gradients(operation, options, gpu)
    found = operation(*named.values())
    return found if len(found) > 1 else found[0]


_compiled = jax.jit(_traced, static_argnums=(1, 2))  # for arrays with contents on a GPU


class Jax(Framework):
    name = "JAX"
    is_traced = staticmethod(lambda: True)

    def operation(self, arrays: Arrays, options: Options) -> Any:
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            if options.device is not None:
                raise ValueError("device: is 'cuda', and q is being traced by JAX: where it is, JAX says")
            return _traced(arrays, options, None)
        given = {name: a for name, a in zip(options.names(), arrays, strict=True) if a is not None}
        places = {}
        for name, array in given.items():
            if array.is_deleted():
                raise ValueError(f"{name}: has been deleted, or donated")
            devices = array.devices()
            if len(devices) != 1:
                raise ValueError(f"{name}: is spread over {len(devices)} devices: call this below jax.shard_map")
            (device,) = devices
            places[name] = "on the CPU" if device.platform == "cpu" else f"on {device}"
            if places[name] != places["q"]:
                raise ValueError(f"{name}: is {places[name]}, and q is {places['q']}")
        # As with JAX's own functions, a result is committed to its device if an argument is. Where none is, the result
        # is where q is, and not where JAX would put it.
        committed = [array for array in given.values() if array.committed]
        (device,) = (committed or [arrays[0]])[0].devices()
        with jax.default_device(device):
            if device.platform != "cpu":
                return _compiled(arrays, options, device.local_hardware_id)
            # Not by XLA, below which Ctrl-C and errors in the contents of an argument wait for its program's end.
            found = _core.attention(_NUMPY, arrays, options)
            return jax.device_put(found, device if committed else None)

    def full_fp32(self, array: Any, number: float) -> Any:
        place = None if isinstance(array, jax.core.Tracer) else next(iter(array.devices()))
        with jax.default_device(place):
            return jax.numpy.full((), number, np.float32)

    def describe(self, argument: str, array: Any) -> Description:
        """As XLA will lay it out, on a GPU: there nobody looks into it. _core only checks it."""
        shape = tuple(array.shape)
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        aligned_address = 1 << 12
        return aligned_address, shape, strides, array.dtype.name, 0, None
