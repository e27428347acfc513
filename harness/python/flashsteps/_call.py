"""What a call does: it finds the framework of its arrays, and asks _core, or the framework's own operation."""

from __future__ import annotations

import numbers
import sys
from typing import Any

from . import _core
from ._frameworks import Arrays, CuPy, Framework, NumPy, Options, positive_number

# An array is of a framework that has been imported: nothing is imported to find out.
_ARRAY_TYPES = (("torch", "Tensor"), ("numpy", "ndarray"), ("cupy", "ndarray"), ("jax", "Array"))
_by_type: dict[type, Framework] = {}


def _make(module: str, array_type: type) -> Framework:
    if module == "torch":
        from . import torch

        return torch.PLAIN if array_type in torch.PLAIN_TYPES else torch.SUBCLASS
    if module == "jax":
        from . import jax

        return jax.Jax()
    return NumPy() if module == "numpy" else CuPy()


def framework_of(argument: str, array: Any) -> Framework:
    found = _by_type.get(type(array))
    if found is not None:
        return found
    for module, name in _ARRAY_TYPES:
        array_type = getattr(sys.modules.get(module), name, None)
        if array_type is not None and isinstance(array, array_type):
            found = _by_type[type(array)] = _make(module, type(array))
            return found
    raise TypeError(
        f"{argument}: is a {type(array).__name__}, expected an array of NumPy, PyTorch, JAX or CuPy"
    )


def with_scales(framework: Framework, arrays: Arrays, names: tuple[str, ...]) -> Arrays:
    """Descales that are numbers become arrays of one element."""
    made = [
        framework.full_fp32(arrays[0], positive_number(name, x)) if isinstance(x, numbers.Real) else x
        for name, x in zip(names[5:], arrays[5:], strict=True)
    ]
    return (*arrays[:5], *made)


def _is_one_of_a_subclass(framework: Framework, arrays: Arrays, names: tuple[str, ...]) -> bool:
    """Of PyTorch's tensor. Arrays of another framework are refused."""
    found = False
    for place, (name, array) in enumerate(zip(names, arrays, strict=True)):
        if array is None and 2 < place < 8:
            continue
        other = framework_of(name, array)
        if other.name != framework.name:
            raise TypeError(f"{name}: is an array of {other.name}, and q is one of {framework.name}")
        found = found or other is not framework
    return found


def call_backward(arrays: Arrays, options: Options) -> Any:
    """What attention_backward() returns."""
    framework = framework_of("q", arrays[0])
    traced = _is_one_of_a_subclass(framework, arrays, options.names())
    if framework.operation is not None and (
        traced
        or framework.is_traced()
        or framework.is_transformed()
        or (framework.records_gradients() and any(getattr(array, "requires_grad", False) for array in arrays))
    ):
        return framework.operation(arrays, options)
    return _core.attention(framework, arrays, options)


def call(arrays: Arrays, options: Options) -> Any:
    """What attention() and attention_with_kvcache() return. Where steps are short, the host's time counts here: of
    options that are all the default but causal, scale and return_lse, _core sees itself whether they are right."""
    q, k, v, kv_lengths, page_table, q_descale, k_descale, v_descale = arrays
    framework = _by_type.get(type(q)) or framework_of("q", q)
    traced = requires_grad = False
    if not (q_descale is k_descale is v_descale is None):
        arrays = with_scales(framework, arrays, options.names())
        requires_grad = any(getattr(x, "requires_grad", False) for x in arrays[5:])
    if (
        type(k) is not type(q)
        or type(v) is not type(q)
        or not (kv_lengths is page_table is q_descale is k_descale is v_descale is None)
    ):
        traced = _is_one_of_a_subclass(framework, arrays, options.names())
    if framework.operation is not None:
        if traced or framework.is_traced():
            return framework.operation(arrays, options.checked())
        if framework.records_gradients() and (
            q.requires_grad or k.requires_grad or v.requires_grad or requires_grad
        ):
            return framework.operation(arrays, options.checked())
    try:
        return _core.attention(framework, arrays, options)
    except ValueError:
        if framework.operation is None or not framework.is_transformed():
            raise
    return framework.operation(arrays, options.checked())
