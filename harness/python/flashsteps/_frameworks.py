"""How arrays of each framework are read and made: one Framework each, chosen by an array's type.

_core reads PyTorch's tensors through DLPack's C exchange API, where PyTorch has it (2.10 and newer): that
takes nanoseconds. Everything else is described by a few attributes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from . import _core

CPU = -1  # as a device's number

# address, shape, strides in elements, type, device, and what keeps the memory alive beside the array.
Description = tuple[int, tuple[int, ...], tuple[int, ...], str, int, Any]


class Framework:
    """What _core asks of a framework."""

    name: str
    exchange_api: object = None  # DLPack's, a capsule; then describe() and current_stream() are not called
    # operator(q, k, v, …): the call as an operation of the framework. None: there is none, nor the five below.
    operator: Callable[..., Any] | None = None
    kvcache_operator: Callable[..., Any]  # the same of attention_with_kvcache()
    is_traced: Callable[[], bool]  # whoever records or changes operations must see this call, too
    is_transformed: Callable[[], bool]  # the same for arrays without memory: asked when one cannot be read
    records_gradients: Callable[[], bool]
    refuse_gradients: Callable[..., None]

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

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A contiguous array of float32 on the array's device."""
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
        if not array.dtype.isnative:
            raise TypeError(
                f"{argument}: has the other byte order: convert it with .astype({array.dtype.name!r})"
            )
        # The type by its name: bfloat16 is ml_dtypes', which NumPy itself hands over neither by DLPack nor as
        # a buffer.
        return (
            array.ctypes.data,
            array.shape,
            element_strides(argument, array),
            array.dtype.name,
            CPU,
            array,
        )

    def empty_like(self, array: Any) -> Any:
        array = self.numpy.asarray(array)
        return self.numpy.empty(array.shape, array.dtype)

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.numpy.empty(shape, self.numpy.float32)


class PyTorch(Framework):
    name = "PyTorch"

    def __init__(self) -> None:
        import torch

        from . import torch as operators

        self.torch = torch
        self.exchange_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        self.operator, self.kvcache_operator = operators.call, operators.call_with_kvcache
        self.refuse_gradients = operators.refuse_gradients
        self.is_traced, self.is_transformed = operators.is_traced, torch._C._are_functorch_transforms_active
        self.records_gradients = torch.is_grad_enabled
        self.contiguous, self.float32 = torch.contiguous_format, torch.float32
        self.empty_like_contiguous = torch.empty_like  # itself and no method around it, which would be felt

    def describe(self, argument: str, array: Any) -> Description:
        if array.layout != self.torch.strided or array.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"{argument}: is {array.layout} on {array.device}, expected a strided tensor on the CPU or "
                "on an NVIDIA GPU"
            )
        device = CPU if array.device.type == "cpu" else array.device.index
        dtype = str(array.dtype).removeprefix("torch.")
        return array.data_ptr(), tuple(array.shape), array.stride(), dtype, device, None

    def current_stream(self, device: int) -> int:
        return self.torch.cuda.current_stream(device).cuda_stream

    def empty_like(self, array: Any) -> Any:
        return self.torch.empty_like(array, memory_format=self.contiguous)

    def to_host(self, array: Any) -> Any:
        return array.detach().to("cpu", copy=True, memory_format=self.contiguous)

    def same_bits(self, one: Any, other: Any) -> bool:
        return self.torch.equal(one.view(self.torch.uint8), other.view(self.torch.uint8))

    def empty_fp32(self, array: Any, shape: tuple[int, ...]) -> Any:
        # By name: PyTorch tries whether a first argument is an integer, with an exception that would be felt.
        return array.new_empty(size=shape, dtype=self.float32)


class PyTorchSubclass(PyTorch):
    """A tensor that says itself what an operator does to it: FakeTensor, DTensor and others."""

    def __init__(self) -> None:
        super().__init__()
        self.is_traced = lambda: True


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

    def to_host(self, array: Any) -> Any:
        return self.cupy.asnumpy(array, order="C")


class Jax(Framework):
    """XLA runs the call, in the order of JAX's other work: see jax.py. _core only checks it."""

    name = "JAX"

    def __init__(self) -> None:
        from . import jax as operators

        self.operator, self.kvcache_operator = operators.call, operators.call_with_kvcache
        self.is_traced = lambda: True

    def describe(self, argument: str, array: Any) -> Description:
        """As XLA will lay it out, on a GPU: there nobody looks into it."""
        shape = tuple(array.shape)
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return self.ALIGNED_ADDRESS, shape, strides, array.dtype.name, 0, None

    ALIGNED_ADDRESS = 1 << 12


# An array is of a framework that has been imported: nothing is imported to find out.
_ARRAY_TYPES: tuple[tuple[str, str, type[Framework]], ...] = (
    ("torch", "Tensor", PyTorch),
    ("numpy", "ndarray", NumPy),
    ("cupy", "ndarray", CuPy),
    ("jax", "Array", Jax),
)
_made: dict[type[Framework], Framework] = {}
_by_type: dict[type, Framework] = {}


def made(framework: type[Framework]) -> Framework:
    return _made.get(framework) or _made.setdefault(framework, framework())


def framework_of(argument: str, array: Any) -> Framework:
    found = _by_type.get(type(array))
    if found is not None:
        return found
    for module, name, framework in _ARRAY_TYPES:
        array_type = getattr(sys.modules.get(module), name, None)
        if array_type is not None and isinstance(array, array_type):
            if framework is PyTorch and type(array) not in (array_type, sys.modules[module].nn.Parameter):
                framework = PyTorchSubclass
            found = _by_type[type(array)] = made(framework)
            return found
    raise TypeError(
        f"{argument}: is a {type(array).__name__}, expected an array of NumPy, PyTorch, JAX or CuPy"
    )
