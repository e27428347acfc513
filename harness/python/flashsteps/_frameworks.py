"""What a call is told beside its arrays, and how arrays of each framework are read and made: one Framework each.
PyTorch's and JAX's stand beside their operators, in torch.py and jax.py.

_core reads PyTorch's tensors, and asks for a step's workspace, through DLPack's C exchange API, where PyTorch has it
(2.10 and newer): that takes nanoseconds, or a microsecond for memory. Everything else is described by a few attributes.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core

CPU = -1  # as a device's number

# q, k, v, kv_lengths, page_table, q_descale, k_descale and v_descale. All but the first three are None where there are
# none. For gradients d_o, o and lse follow.
Arrays = tuple[Any, ...]
# address, shape, strides in elements, type, device, and what keeps the memory alive beside the array.
Description = tuple[int, tuple[int, ...], tuple[int, ...], str, int, Any]

STEPS = {fields[0]: fields for fields in _core.steps()}


def check_step(step: Any) -> None:
    if not isinstance(step, str):
        raise TypeError(f"step: is a {type_name(step)}, expected a step's name")
    if step not in STEPS:
        raise ValueError(f"step: unknown step {step!r}; there are {', '.join(STEPS)}")


def positive_number(argument: str, value: Any) -> float:
    """That float32 holds."""
    if isinstance(value, bool) or not 2.0**-149 <= value <= 2.0**127:
        raise ValueError(f"{argument}: is {value!r}, expected a positive number that float32 holds")
    return float(value)


def type_name(value: Any) -> str:
    """With the module: NumPy has a bool of its own."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


class Options(NamedTuple):
    """The parameters of attention(), attention_backward() and attention_with_kvcache() that are no arrays. _core reads
    them by their order: src/arguments.h."""

    causal: bool = False
    scale: float | None = None
    return_lse: bool = False
    step: str | None = None
    layout: str = "bhsd"
    device: str | None = None
    num_splits: int = 0
    kvcache: bool = False  # it is attention_with_kvcache()
    fast: bool = False
    quantize: bool = False
    backward: bool = False  # it is attention_backward()

    def checked(self) -> Options:
        """With the scale as a float."""
        causal, scale, return_lse, step, layout, device, num_splits, _, fast, quantize, _ = self
        if not type(causal) is type(return_lse) is type(fast) is type(quantize) is bool:
            flags = {"causal": causal, "return_lse": return_lse, "fast": fast, "quantize": quantize}
            name, flag = next(each for each in flags.items() if type(each[1]) is not bool)
            raise TypeError(f"{name}: is a {type_name(flag)}, expected True or False")
        if step is not None:
            check_step(step)
        if not isinstance(layout, str) or layout not in ("bhsd", "bshd"):
            raise ValueError(f"layout: is {layout!r}, expected 'bhsd' or 'bshd'")
        if device is not None and not (isinstance(device, str) and device == "cuda"):
            raise ValueError(f"device: is {device!r}, expected None or 'cuda'")
        if type(num_splits) is not int:
            raise TypeError(f"num_splits: is a {type_name(num_splits)}, expected an int")
        if not 0 <= num_splits < 2**31:
            raise ValueError(f"num_splits: is {num_splits}, expected 0 or more")
        if scale is None or type(scale) is float:
            return self
        if not isinstance(scale, numbers.Real) or isinstance(scale, bool):
            raise TypeError(f"scale: is a {type(scale).__name__}, expected a number")
        try:
            return self._replace(scale=float(scale))
        except OverflowError:
            raise ValueError("scale: is beyond the range of a float") from None

    def names(self) -> tuple[str, ...]:
        """What the arrays are called."""
        first = ("q", "k_cache", "v_cache", "cache_seqlens") if self.kvcache else ("q", "k", "v", "kv_lengths")
        names = (*first, "page_table", "q_descale", "k_descale", "v_descale")
        return (*names, "d_o", "o", "lse") if self.backward else names

    def lse_shape(self, q: Any) -> tuple[int, int, int]:
        batch, heads, rows = q.shape[:3] if self.layout == "bhsd" else (q.shape[0], q.shape[2], q.shape[1])
        return batch, heads, rows


class Framework:
    """What _core and _call ask of a framework."""

    name: str
    exchange_api: object = None  # DLPack's, a capsule; then describe() and current_stream() are not called
    # The call as an operation of the framework. None: there is none, nor the three below.
    operation: Callable[[Arrays, Options], Any] | None = None
    is_traced: Callable[[], bool]  # whoever records or changes operations must see this call, too
    is_transformed: Callable[[], bool]  # the same for arrays without memory: asked when one cannot be read
    records_gradients: Callable[[], bool]

    def describe(self, argument: str, array: Any) -> Description:
        raise NotImplementedError

    def current_stream(self, device: int) -> int:
        raise NotImplementedError

    def empty_like(self, array: Any) -> Any:
        """A contiguous array of the same shape and type, on the same device."""
        raise NotImplementedError

    def empty_like_contiguous(self, array: Any) -> Any:
        """The same, for an array that is contiguous itself."""
        return self.empty_like(array)

    def bf16_like(self, array: Any) -> Any:
        """The same, but of bfloat16, for one of float8_e4m3fn."""
        raise TypeError(f"q: is float8_e4m3fn, which flashsteps does not take from {self.name}")

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A contiguous array of float32 on the array's device."""
        raise NotImplementedError

    def full_fp32(self, array: Any, number: float) -> Any:
        """The number in float32 without dimensions, on the array's device."""
        raise NotImplementedError

    def to_host(self, array: Any) -> Any:
        """A contiguous copy in the CPU's memory: of NumPy, unless the framework has such arrays itself."""
        import numpy

        return numpy.array(array, order="C")

    def same_bits(self, one: Any, other: Any) -> bool:
        """Of two copies that to_host() has made: NaN is equal to itself."""
        return one.tobytes() == other.tobytes()


def element_strides(argument: str, array: Any) -> tuple[int, ...]:
    """Of an array whose strides are in bytes. Those of axes of extent 1 may be anything."""
    if any(stride % array.itemsize for size, stride in zip(array.shape, array.strides, strict=True) if size > 1):
        raise ValueError(f"{argument}: has strides that are not whole elements: copy it")
    return tuple(stride // array.itemsize for stride in array.strides)


class NumPy(Framework):
    name = "NumPy"

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def describe(self, argument: str, array: Any) -> Description:
        if hasattr(array, "mask"):  # numpy.ma would be imported here, in the middle of a call
            raise TypeError(f"{argument}: is a masked array, whose mask would not be seen")
        array = self.numpy.asarray(array)  # a subclass may say of itself what is not so
        dtype = array.dtype.name
        if not array.dtype.isnative:
            raise TypeError(f"{argument}: has the other byte order: convert it with .astype({dtype!r})")
        # The type by its name: bfloat16 is ml_dtypes', which NumPy itself hands over neither by DLPack nor as
        # a buffer.
        return array.ctypes.data, array.shape, element_strides(argument, array), dtype, CPU, array

    def empty_like(self, array: Any) -> Any:
        array = self.numpy.asarray(array)
        return self.numpy.empty(array.shape, array.dtype)

    def bf16_like(self, array: Any) -> Any:
        import ml_dtypes  # of which float8_e4m3fn is

        return self.numpy.empty(self.numpy.asarray(array).shape, ml_dtypes.bfloat16)

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.numpy.empty(shape, self.numpy.float32)

    def full_fp32(self, array: Any, number: float) -> Any:
        return self.numpy.full((), number, self.numpy.float32)


class CuPy(Framework):
    name = "CuPy"

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def describe(self, argument: str, array: Any) -> Description:
        # Not through __dlpack__, which makes streams wait for each other.
        strides = element_strides(argument, array)
        return array.data.ptr, array.shape, strides, array.dtype.name, array.device.id, None

    def current_stream(self, device: int) -> int:
        return self.cupy.cuda.get_current_stream(device).ptr

    def empty_like(self, array: Any) -> Any:
        with array.device:
            return self.cupy.empty(array.shape, array.dtype)

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        with array.device:
            return self.cupy.empty(shape, self.cupy.float32)

    def full_fp32(self, array: Any, number: float) -> Any:
        with array.device:
            return self.cupy.full((), number, self.cupy.float32)

    def to_host(self, array: Any) -> Any:
        return self.cupy.asnumpy(array, order="C")
