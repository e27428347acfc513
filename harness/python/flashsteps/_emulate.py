"""Kernels of somebody's own on the emulator, called by their names.

g++ compiles the file to a program that waits for calls in the place of its main(). It runs as a process of its own, so
that a crash does not end Python. A library that is loaded late would also have too little thread-local memory for
__shared__ variables. common/emulator/kernel_server.cpp is the other end of the socket: numbers have 64 bits, and a text is
its length and its bytes.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _core
from ._call import framework_of
from ._frameworks import CPU, type_name

_MODES = ("early", "late", "random")  # as emulator::AsyncMode counts them
_PACKED = {  # of numbers, by NumPy's names of their types
    **{f"{kind}int{bits}".removeprefix("s"): code.upper() if kind == "u" else code
       for kind in "su" for bits, code in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))},
    "float16": "e", "float32": "f", "float64": "d", "bool": "?",
}  # fmt: skip


class Finding(NamedTuple):
    """A bug that the emulator has found in a kernel."""

    text: str  #: which thread of which block, what, and at which lines


class EmulatorError(RuntimeError):
    """A launch did not come to its end as it should: its arrays are as they were before."""

    findings: tuple[Finding, ...]  #: empty where the process that ran it ended, or the program called exit()

    def __init__(self, message: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class _Parameter(NamedTuple):
    """As common/emulator/kernel_server.h describes it; of a pointer, what it points to."""

    type: str
    dtype: str
    bytes: int
    is_pointer: bool
    is_const: bool


class _Memory(NamedTuple):
    """An array that a pointer points to."""

    argument: str
    address: int
    bytes: int
    returns: bool
    owner: Any

    def view(self) -> memoryview:
        return memoryview((ctypes.c_char * self.bytes).from_address(self.address)).cast("B")


class Program:
    """A CUDA file, compiled for the emulator. emulate() makes it.

    program.kernel is the kernel of that name. program["kernel<64, true>"] is an instance of a template. Other functions
    are named in the same way: one of the host is called without [grid, block], and may launch kernels itself.

    g++ compiles the file before the first launch. An instance that is first named afterwards has it compiled once
    more. Then the process that runs the launches starts anew, and with it all variables: a RuntimeWarning says so.
    """

    mode: str  #: of the next launches: "early", "late" or "random"
    seed: int  #: of their random order

    def __init__(
        self,
        file: str | os.PathLike[str],
        include_folders: Iterable[str | os.PathLike[str]],
        macros: Mapping[str, Any],
        mode: str,
        seed: int,
    ) -> None:
        self.mode, self.seed = mode, seed
        self._order()
        self._file = os.fspath(file)
        if not Path(self._file).is_file():
            raise FileNotFoundError(f"flashsteps.emulate: there is no file {self._file}")
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="flashsteps-emulate-")
        folders = [os.fspath(folder) for folder in include_folders]
        definitions = [f"{name}={value}" for name, value in macros.items()]
        self._text, self._kernels = _core.translate_program(
            _tools(self._folder.name), self._file, folders, definitions, self._folder.name
        )
        self._instances: list[str] = []
        self._compiled: list[str] | None = None  # those of the instances that the program on disk has
        self._program = ""
        self._process: _Process | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the file's kernels and of their templates."""
        return tuple(self._kernels)

    def __repr__(self) -> str:
        return f"<flashsteps.emulate({self._file!r}): {', '.join(self._kernels) or 'no kernels'}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name.rsplit("::")[-1] for name in self._kernels)]

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__") or "_kernels" not in self.__dict__:  # as copy.copy() and others ask
            raise AttributeError(name)
        kernel = self._kernel_named(name)
        if kernel is None:
            raise AttributeError(f"{self!r} has no kernel {name}")
        return Kernel(self, kernel)

    def __getitem__(self, name: str) -> Kernel:
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name: is a {type_name(name)}, expected a str")
        kernel = self._kernel_named(name)
        if kernel is None:
            if not name.strip() or re.search(r'["\\\n]', name):
                raise ValueError(f"a kernel's name: is {name!r}, expected such as 'kernel<64, true>'")
            kernel = name.strip()
            if kernel not in self._instances:
                self._instances.append(kernel)
        return Kernel(self, kernel)

    def close(self) -> None:
        """Ends the process that runs the launches. A later launch starts it anew, with all variables as at first."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _kernel_named(self, name: str) -> str | None:
        """With its namespace, which `name` need not have."""
        found = [kernel for kernel in self._kernels if kernel == name or kernel.endswith(f"::{name}")]
        return name if name in found else found[0] if len(found) == 1 else None

    def _is_kernel(self, name: str) -> bool:
        return self._kernel_named(name.split("<")[0].strip().removeprefix("::")) is not None

    def _order(self) -> tuple[int, int]:
        if self.mode not in _MODES:
            raise ValueError(f"mode: is {self.mode!r}, expected 'early', 'late' or 'random'")
        if type(self.seed) is not int or not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: is {self.seed!r}, expected a number from 0 to 2^64 - 1")
        return _MODES.index(self.mode), self.seed

    def _running(self) -> _Process:
        """With all instances that have been named."""
        if self._process is not None and self._process.pid_of_python != os.getpid():
            raise RuntimeError("this program runs in the process that os.fork() was called in: call emulate() here")
        if self._process is not None and not self._process.is_alive():
            self.close()
        if self._compiled != self._instances:
            self._compile()
        if self._process is None:
            self._process = _Process(self._folder.name, self._program)
        return self._process

    def _compile(self) -> None:
        added = self._instances[len(self._compiled or []) :]
        program = f"{self._folder.name}/program{len(self._instances)}"  # the one before may still run
        try:
            tools = _tools(self._folder.name)
            _core.compile_kernels(tools, self._text, self._kernels, self._instances, self._folder.name, program)
        except RuntimeError:
            self._instances = list(self._compiled or [])  # or a name that is none would stay for ever
            raise
        if self._process is not None and self._process.has_run:
            warnings.warn(
                f"{self._file} starts anew, with its variables as at first, to have {', '.join(added)}: name all "
                "instances before the first launch",
                RuntimeWarning,
                stacklevel=5,
            )
        self.close()
        self._compiled, self._program = list(self._instances), program

    def _call(self, name: str, configuration: tuple[int, ...] | None, values: tuple[Any, ...]) -> None:
        with self._lock:
            process = self._running()
            if name in process.unclear:
                raise TypeError(
                    f"{name}: is a template, or there are several functions of that name: name one of them, as "
                    f'program["{name}<64>"]'
                )
            if name not in process.functions:  # another thread's emulation of it did not compile
                raise RuntimeError(f"{name}: was not compiled")
            process.call(name, self._order(), configuration, _Arguments(name, process.functions[name][1], values))


def _tools(folder: str) -> tuple[str, str, str, str]:
    emulator = Path(__file__).parent / "emulator"
    return "g++", str(emulator), str(emulator / "libflashsteps_emulator.a"), f"{folder}/messages"


class Kernel:
    """A function of a Program. kernel[grid, block, smem_bytes] is its launch, to be called with its arguments.

    grid and block are numbers, or tuples of up to three; smem_bytes of dynamic shared memory may be missing.
    """

    def __init__(self, program: Program, name: str) -> None:
        self._program, self.__name__ = program, name

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self._program!r}>"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Their types. g++ compiles the file to find out."""
        with self._program._lock:
            process = self._program._running()
            return tuple(its.type for its in process.functions.get(self.__name__, (0, ()))[1])

    def __getitem__(self, configuration: Any) -> Launch:
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3):
            raise TypeError(f"{self.__name__}: a launch is kernel[grid, block] or kernel[grid, block, smem_bytes]")
        grid, block = (
            _extents(name, size) for name, size in zip(("grid", "block"), configuration[:2], strict=True)
        )
        smem_bytes = _extent("smem_bytes", configuration[2] if len(configuration) == 3 else 0)
        return Launch(self, (*grid, *block, smem_bytes))

    def __call__(self, *arguments: Any) -> None:
        """Calls a function of the host."""
        if self._program._is_kernel(self.__name__):
            raise TypeError(f"{self.__name__}: is a kernel, launch it: {self.__name__}[grid, block](...)")
        self._program._call(self.__name__, None, arguments)


class Launch:
    """A kernel with its grid and block. Calling it runs the kernel, and returns when it is done."""

    def __init__(self, kernel: Kernel, configuration: tuple[int, ...]) -> None:
        self._kernel, self._configuration = kernel, configuration

    def __repr__(self) -> str:
        grid, block, smem_bytes = self._configuration[:3], self._configuration[3:6], self._configuration[6]
        return f"<{self._kernel.__name__}[{grid}, {block}, {smem_bytes}]>"

    def __call__(self, *arguments: Any) -> None:
        """Arrays for pointers, None for a null pointer, and numbers."""
        self._kernel._program._call(self._kernel.__name__, self._configuration, arguments)


def emulate(
    file: str | os.PathLike[str],
    *,
    include_folders: Iterable[str | os.PathLike[str]] = (),
    macros: Mapping[str, Any] | None = None,
    mode: str = "early",
    seed: int = 1,
) -> Program:
    """A CUDA file, whose kernels can be launched by their names, on the emulator. Needs g++.

    program = flashsteps.emulate("my.cu")
    program.attention_kernel[grid, block, smem_bytes](q, k, v, o, 128, 0.5)
    program["attention_kernel<64, true>"][(8, 2), 128](q, k, v, o)

    Arguments of the launch:
        a pointer: an array of its element type, of NumPy, or of PyTorch or JAX on the CPU, contiguous. bfloat16 and
            float8_e4m3fn are ml_dtypes' in NumPy. Where the pointer is to a vector or another struct, any array whose
            bytes are a multiple of its size; where it is to void, any. The array is copied to memory that has pages
            around it that nobody may touch, and back when the launch is done, unless the pointer is to const. An array
            that is given twice is one in this memory, too. None is a null pointer.
        a number: converted to the parameter's type.
        a struct: bytes or numpy.void of its size.
    A tensor map (CUtensorMap) cannot be given. A function of the host that makes one and launches the kernel can be
    called by its name, without [grid, block]: program["launch_attention"](q, k, v, o, 128).

    Arguments:
        file: as `flashsteps emulate` takes it. Its main() is not called, and may be missing.
        include_folders, macros: for the compiler: folders, and {"HEAD_DIM": 64}.
        mode, seed: in which order CTAs, warps and lanes run, and when asynchronous copies take effect: "early",
            "late", or "random" by this seed. They are attributes of the result, and may be changed between launches.

    __device__ and __constant__ variables keep their values from one launch to the next, for as long as the program
    lives. What kernels print goes to sys.stdout when the launch is done. Ctrl-C ends the process that runs the
    launches; the next launch starts it anew.

    Raises:
        RuntimeError: the file cannot be compiled; the text is that of g++ or of the translation. There is no g++.
        TypeError, ValueError, OverflowError: an argument is wrong. Nothing was launched.
        EmulatorError: the kernel has a bug, or CUDA would refuse the launch.
    """
    return Program(file, include_folders, macros or {}, mode, seed)


def _extent(name: str, value: Any) -> int:
    try:
        extent = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: is a {type_name(value)}, expected a whole number") from None
    if not 0 <= extent < 2**31:
        raise ValueError(f"{name}: is {extent}, expected 0 to 2^31 - 1")
    return extent


def _extents(name: str, value: Any) -> tuple[int, int, int]:
    """Of up to three numbers."""
    extents = tuple(_extent(name, each) for each in (value if isinstance(value, tuple) else (value,)))
    if not 1 <= len(extents) <= 3:
        raise ValueError(f"{name}: has {len(extents)} extents, expected one to three")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


class _Arguments:
    """The arguments of a call, checked, and as they are sent."""

    def __init__(self, function: str, parameters: list[_Parameter], values: tuple[Any, ...]) -> None:
        if len(values) != len(parameters):
            types = ", ".join(its.type for its in parameters)
            raise TypeError(f"{function}({types}): has {len(parameters)} parameters, and got {len(values)} arguments")
        self.memories: list[_Memory] = []
        self.values: list[bytes | int] = []  # an int is the number of a memory
        for place, (parameter, value) in enumerate(zip(parameters, values, strict=True), start=1):
            argument = f"{function}: argument {place} ({parameter.type})"
            if not parameter.is_pointer:
                self.values.append(_bytes_of(argument, parameter, value))
            elif value is None:
                self.values.append(bytes(8))
            else:
                self.values.append(self._number_of(_memory_of(argument, parameter, value)))

    def _number_of(self, memory: _Memory) -> int:
        """An array that is given twice has one memory. Where two overlap, a copy of each would not be what is meant."""
        for number, other in enumerate(self.memories):
            if (memory.address, memory.bytes) == (other.address, other.bytes):
                self.memories[number] = other._replace(returns=other.returns or memory.returns)
                return number
            if memory.address < other.address + other.bytes and other.address < memory.address + memory.bytes:
                raise ValueError(f"{memory.argument}: overlaps {other.argument.split(': ')[1]}: copy one of them")
        self.memories.append(memory)
        return len(self.memories) - 1


def _memory_of(argument: str, parameter: _Parameter, value: Any) -> _Memory:
    if not parameter.dtype:
        raise TypeError(f"{argument}: points to what Python has no arrays of: only None can be given")
    framework = framework_of(argument, value)
    writable = framework.name != "JAX" and getattr(getattr(value, "flags", None), "writeable", True)
    if framework.name == "JAX":
        import numpy

        value = numpy.asarray(value)
        framework = framework_of(argument, value)
    address, shape, strides, dtype, device, owner = framework.describe(argument, value)
    if device != CPU:
        raise ValueError(f"{argument}: is on cuda:{device}, expected an array on the CPU")
    size = math.prod(shape) * value.itemsize
    if parameter.dtype not in (dtype, "void", "bytes"):
        raise TypeError(f"{argument}: is {dtype}, expected {parameter.dtype}")
    if size % parameter.bytes != 0:
        raise ValueError(f"{argument}: has {size} bytes, expected a multiple of {parameter.bytes}")
    if size > 0 and not _is_dense(shape, strides):
        raise ValueError(f"{argument}: is not contiguous: copy it")
    if not parameter.is_const and not writable:
        raise ValueError(f"{argument}: is read-only, and the parameter is no pointer to const")
    return _Memory(argument, address, size, not parameter.is_const, (value, owner))


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Contiguous, row by row or column by column."""
    axes = [(stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent > 1]

    def is_dense(axes: Iterable[tuple[int, int]]) -> bool:
        expected = 1
        for stride, extent in axes:
            if stride != expected:
                return False
            expected *= extent
        return True

    return is_dense(axes) or is_dense(reversed(axes))


def _bytes_of(argument: str, parameter: _Parameter, value: Any) -> bytes:
    """Of a number or a struct."""
    dtype = parameter.dtype
    if not dtype:
        raise TypeError(f"{argument}: cannot be given from Python: let a function of the host make it, and call that")
    if dtype == "bytes" or getattr(getattr(value, "dtype", None), "name", "") == dtype:
        if not hasattr(value, "tobytes") and not isinstance(value, (bytes, bytearray)):
            raise TypeError(f"{argument}: is a {type_name(value)}, expected bytes or a numpy.void")
        raw = bytes(value) if isinstance(value, (bytes, bytearray)) else value.tobytes()
        if len(raw) != parameter.bytes:
            raise ValueError(f"{argument}: has {len(raw)} bytes, expected {parameter.bytes}")
        return raw
    try:
        if dtype == "bool":
            if type_name(value) not in ("bool", "numpy.bool"):
                raise TypeError
            return struct.pack("?", value)
        if dtype == "bfloat16":
            (bits,) = struct.unpack("I", struct.pack("f", float(value)))
            is_nan = bits & 0x7FFFFFFF > 0x7F800000
            return struct.pack("H", bits >> 16 | 0x40 if is_nan else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        if dtype not in _PACKED:
            raise TypeError
        return struct.pack(_PACKED[dtype], float(value) if dtype.startswith("float") else operator.index(value))
    except TypeError:
        raise TypeError(f"{argument}: is a {type_name(value)}, expected a number of {dtype}") from None
    except (struct.error, OverflowError):
        raise OverflowError(f"{argument}: is {value!r}, which {dtype} does not hold") from None


class _Process:
    """The program, which runs and waits for calls."""

    def __init__(self, folder: str, program: str) -> None:
        self.pid_of_python = os.getpid()
        self.has_run = False
        self._socket, other = socket.socketpair()
        with other, open(f"{folder}/output", "wb") as output:
            self._process = subprocess.Popen(
                [program, str(other.fileno())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[other.fileno()],
            )  # fmt: skip
        self._output = open(f"{folder}/output", "rb")
        self.functions: dict[str, tuple[int, list[_Parameter]]] = {}
        try:
            for number in range(self._number()):
                name = self._text()
                parameters = [
                    _Parameter(_readable(self._text()), self._text(), self._number(), *map(bool, self._numbers(2)))
                    for _ in range(self._number())
                ]
                self.functions[name] = (number, parameters)
            self.unclear = {self._text() for _ in range(self._number())}
        except BaseException:
            self._kill()
            raise

    def is_alive(self) -> bool:
        return self._socket.fileno() != -1 and self._process.poll() is None

    def end(self) -> None:
        """It ends when the socket does."""
        self._socket.close()
        self._output.close()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_output") and self.pid_of_python == os.getpid():
            self._kill()

    def call(
        self, name: str, order: tuple[int, int], configuration: tuple[int, ...] | None, arguments: _Arguments
    ) -> None:
        number, _ = self.functions[name]
        self.has_run = True
        try:
            launched = configuration is not None
            self._send(number, *order, int(launched), *(configuration or (0,) * 7), len(arguments.memories))
            for memory in arguments.memories:
                self._send(memory.bytes, int(memory.returns))
                self._socket.sendall(memory.view())
            for value in arguments.values:
                self._send(*((1, value) if isinstance(value, int) else (0, len(value))))
                if not isinstance(value, int):
                    self._socket.sendall(value)
            error = self._text()
            findings = tuple(Finding(self._text()) for _ in range(self._number()))
            if not error and not findings:
                for memory in arguments.memories:
                    if memory.returns:
                        self._receive_into(memory.view())
        except (EOFError, OSError):
            raise EmulatorError(f"{name}: {self._how_it_ended()}") from None
        except BaseException:  # Ctrl-C
            self._kill()
            raise
        finally:
            self._show_output()
        if error:
            self._kill()
        if error or findings:
            texts = [finding.text for finding in findings] + ([error] if error else [])
            raise EmulatorError("\n".join(f"{name}: {text}" for text in texts), findings)

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        self._socket.close()
        if status < 0:
            what = signal.strsignal(-status)
            return f"the process that runs the program was ended by signal {-status}, {what}"
        return f"the process that runs the program ended with status {status}"

    def _kill(self) -> None:
        self._process.kill()
        self.end()

    def _show_output(self) -> None:
        if not self._output.closed:
            if text := self._output.read().decode(errors="replace"):
                sys.stdout.write(text)

    def _send(self, *numbers: int) -> None:
        self._socket.sendall(struct.pack(f"{len(numbers)}Q", *numbers))

    def _receive_into(self, memory: memoryview) -> None:
        while memory:
            count = self._socket.recv_into(memory)
            if count == 0:
                raise EOFError
            memory = memory[count:]

    def _received(self, size: int) -> bytearray:
        received = bytearray(size)
        self._receive_into(memoryview(received))
        return received

    def _numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{count}Q", self._received(8 * count))

    def _number(self) -> int:
        return self._numbers(1)[0]

    def _text(self) -> str:
        return self._received(self._number()).decode(errors="replace")


def _readable(cpp_type: str) -> str:
    return cpp_type.replace("emulator::cuda::", "")
