"""flashsteps.attention as an operation of JAX: what jax.jit and JAX's other transformations see of it.

flashsteps imports this module when it sees its first array of JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from . import _check_numbers, _check_options, _core, _frameworks

_TARGET = "flashsteps_attention"  # its name in XLA's programs

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


def _refuse_gradients(operation: Any) -> Any:
    """A rule for custom_jvp, which reverse-mode differentiation uses, too."""

    def rule(arrays: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        for name, tangent in zip(("q", "k", "v"), tangents, strict=False):
            if type(tangent) is not jax.custom_derivatives.SymbolicZero:
                raise ValueError(
                    f"{name}: is being differentiated, and there is no derivative of attention: call this "
                    f"with jax.lax.stop_gradient({name})"
                )
        results = operation(*arrays)
        return results, tuple(jax.numpy.zeros_like(result) for result in results)

    return rule


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
    """flashsteps.attention for arrays that JAX traces: what is wrong with the call is said now."""
    scale = _check_numbers(causal, scale, return_lse)
    _check_options(step, layout, device)
    if device is not None:
        raise ValueError("device: is 'cuda', and q is being traced by JAX: where it is, JAX says")
    bshd = layout == "bshd"
    framework = _frameworks.made(_frameworks.TracedJax)
    scale, memory_bytes = _core.plan(framework, q, k, v, kv_lengths, causal, scale, step, bshd)
    arrays = [q, k, v] if kv_lengths is None else [q, k, v, kv_lengths]
    placement = _placement(arrays)
    batch, heads, rows = q.shape[:3] if not bshd else (q.shape[0], q.shape[2], q.shape[1])
    results = [jax.ShapeDtypeStruct(q.shape, q.dtype, **placement)]
    if return_lse:
        results.append(jax.ShapeDtypeStruct((batch, heads, rows), np.float32, **placement))
    if memory_bytes > 0:
        # Counters and a workspace. A result, since command buffers go on using it; and longer, to be aligned.
        results.append(jax.ShapeDtypeStruct((memory_bytes + 256,), np.uint8, **placement))
    attributes = {
        "bshd": bshd,
        "causal": causal,
        "return_lse": return_lse,
        "scale": np.float32(scale),
        "step": step or "",
    }
    # vmap adds a dimension to all arguments and results: one call with more batches.
    foreign = jax.ffi.ffi_call(_TARGET, results, vmap_method="broadcast_all")

    def operation(*arrays: Any) -> tuple[Any, ...]:
        return tuple(foreign(*arrays, **attributes))[: 1 + return_lse]

    differentiable = jax.custom_jvp(operation)
    differentiable.defjvp(_refuse_gradients(operation), symbolic_zeros=True)
    found = differentiable(*arrays)
    return found if return_lse else found[0]
