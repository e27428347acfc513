"""The harness's problems, judge and timer: harness/lab/lab.cpp, which is called through ctypes."""
from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from records.rules import SCHEMA
from records.writing import one_line
from steps.sources import ROOT

LIBRARY = "libflashsteps_lab.so"  # beside the program
DEFAULT = ROOT / "build" / LIBRARY

Launch = ctypes.CFUNCTYPE(ctypes.c_int)
Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
# By function, its arguments. All but close answer with JSON.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "open": (ctypes.c_char_p, ctypes.c_int),
    "close": (ctypes.c_void_p,),
    "problems": (ctypes.c_char_p,),
    "order": (ctypes.c_int, ctypes.c_int),
    "estimates": (ctypes.c_char_p, ctypes.c_int, ctypes.c_double, ctypes.c_double),
    "problem": (ctypes.c_void_p, ctypes.c_char_p, *4 * (ctypes.c_void_p,)),
    "check": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p),
    "outputs": (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p),
    "judge": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_bool),
    "timer": (ctypes.c_void_p, Launch, Record, Launch, ctypes.c_bool),
    "step_timer": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool),
    "ceiling": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    "sample": (ctypes.c_void_p,),
    "time": (ctypes.c_void_p, ctypes.c_void_p, Launch, ctypes.c_int),
    "records": (ctypes.c_char_p,),
}


class LabError(Exception):
    """One line for the user: what cannot be, or what went wrong."""


class Unavailable(LabError):
    """What is missing, and what to do about it."""


class DeviceLost(LabError):
    """After this nothing more can be launched."""


@functools.lru_cache(maxsize=None)
def load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        build = "cmake --preset release && cmake --build build --target flashsteps_lab"
        raise Unavailable(f"{error}; build it ({build})") from error
    for name, types in ARGUMENTS.items():
        function = library[f"lab_{name}"]
        function.argtypes, function.restype = types, None if name == "close" else ctypes.c_char_p
        setattr(library, name, function)
    return library


def asked(answer: bytes) -> Any:
    said = json.loads(answer)
    if "error" in said:
        raise (DeviceLost if said.get("lost") else LabError)(said["error"])
    return said


def pointers(addresses: Iterable[int]) -> Any:
    given = list(addresses)
    return (ctypes.c_void_p * len(given))(*given)


def problems(library: Path, *words: str) -> list[dict[str, Any]]:
    """What the words of `flashsteps run` mean, as results files have problems."""
    return asked(load(library).problems(json.dumps(words).encode()))["problems"]


def estimates(library: Path, problem: dict[str, Any], device: dict[str, Any]) -> list[dict[str, Any]]:
    """What the rule for the default knows of each kernel: harness/library/default_step.h. The device as in a record."""
    card = (device[name] for name in ("sm_count", "memory_bytes_per_us", "l2_bytes"))
    return asked(load(library).estimates(json.dumps(problem).encode(), *card))["estimates"]


def add_option(parser: argparse.ArgumentParser) -> None:
    told = "the library of the harness (default: build/libflashsteps_lab.so of this checkout)"
    parser.add_argument("--lab", type=Path, default=DEFAULT, help=told)


def percentiles(values: list[float], unit: str) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {f"{name}_{unit}": tenths[at] for name, at in (("median", 4), ("p10", 0), ("p90", 8))}


class Thing:
    """Something of the harness's that stays until it is closed, or nobody has it any more."""

    number = 0  # or nothing, where it could not be made

    def __init__(self, library: ctypes.CDLL, number: int):
        self.library, self.number = library, number

    def close(self) -> None:
        number, self.number = self.number, 0
        if number:
            self.library.close(number)

    def __del__(self) -> None:
        self.close()


class Lab(Thing):
    """A device, and all steps that can run there."""

    def __init__(self, library: Path = DEFAULT, backend: str = "cuda", device: int = 0):
        super().__init__(load(library), 0)
        said = asked(self.library.open(backend.encode(), device))
        self.number, self.on_gpu = said.pop("lab"), backend == "cuda"
        self.device: dict[str, Any] = said["device"]
        self.steps: list[str] = said["steps"]
        self.stream: int = said["stream"]  # CUDA's, where steps run and everything is timed
        self.gates: dict[str, dict[str, float]] = said["gates"]  # by type
        self.provenance = {key: said[key] for key in ("commit", "dirty", "build")}

    def order(self, contenders: int, round_: int) -> list[int]:
        """In which order a round takes them, as the program's rounds do."""
        return asked(self.library.order(contenders, round_))["order"]

    def record(self, command: str, method: dict[str, Any]) -> dict[str, Any]:
        """The beginning of a results file, by this command."""
        provenance = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), **self.provenance}
        provenance |= {"backend": "cuda" if self.on_gpu else "emulator", "device": self.device, "method": method}
        return {"schema": SCHEMA, "command": command, "complete": False, "provenance": provenance, "runs": []}

    def python_module(self, name: str = "flashsteps") -> Any:
        """flashsteps, of the lab's commit. Steps choose their configurations themselves: nobody else has the tuning
        file."""
        os.environ["FLASHSTEPS_TUNING"] = ""
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: a library is missing
            said = f"the Python module flashsteps is missing: {one_line(error)} (pip install . in the repository)"
            raise Unavailable(said) from error
        flashsteps = importlib.import_module("flashsteps")
        if flashsteps.build_info()["commit"] != self.provenance["commit"]:
            raise Unavailable("the Python module flashsteps and the lab are of different commits: build both anew")
        return flashsteps

    def problem(self, problem: dict[str, Any]) -> Case:
        return Case(self, asked(self.library.problem(self.number, json.dumps(problem).encode(), *4 * [None])))

    def given(self, problem: dict[str, Any], q: Any, k: Any, v: Any, kv_lengths: Any = None) -> Case:
        """With inputs of one's own: NumPy arrays [batch, heads, rows, head_dim], of the type or of its bits."""
        import numpy as np

        arrays = [np.ascontiguousarray(x) for x in (q, k, v)]
        if kv_lengths is not None:
            arrays.append(np.ascontiguousarray(kv_lengths, np.int32))
        (batch, heads_q, seqlen_q, head_dim), (_, heads_kv, seqlen_kv, _) = arrays[0].shape, arrays[1].shape
        sizes = {"batch": batch, "num_heads_q": heads_q, "num_heads_kv": heads_kv, "seqlen_q": seqlen_q}
        sizes |= {"seqlen_kv": seqlen_kv, "head_dim": head_dim}
        fields = {"causal": False, "kv_lengths": "full", "layout": "bhsd", "inputs": "normal", "seed": 1}
        text = json.dumps({**fields, **sizes, **problem}).encode()
        data = [array.ctypes.data for array in arrays] + [None] * (4 - len(arrays))
        return Case(self, asked(self.library.problem(self.number, text, *data)))

    def timer(
        self,
        launch: Callable[[], Any],
        record: Callable[[int], Callable[[], Any] | None] | None = None,
        cold_l2: bool = False,
        around: Callable[[], AbstractContextManager] = nullcontext,
    ) -> Timer:
        """Of what `launch` puts on this stream. record(launches) returns what replays so many, or None. `around` is
        entered outside of what is timed."""
        calls = Calls(launch, record, around)
        with calls:
            said = self.library.timer(self.number, calls.launch, calls.record, calls.replay, cold_l2)
        return Timer(self, asked(said), calls)

    def ceiling(self, name: str, kv_bytes: int = 0) -> Timer | None:
        """None where the device does not have it."""
        said = asked(self.library.ceiling(self.number, name.encode(), kv_bytes))
        return Timer(self, said) if said["timer"] else None

    def time_ms(self, stream: int, launch: Callable[[], Any], launches: int) -> float:
        """Milliseconds of a launch on another stream of this device, of so many between two events."""
        calls = Calls(launch)
        with calls:
            said = self.library.time(self.number, stream, calls.launch, launches)
        return asked(said)["ms"]

    def records(self, request: dict[str, Any]) -> dict[str, Any]:
        return asked(self.library.records(json.dumps(request).encode()))


class Case(Thing):
    """A problem, its tensors on the device, and what is right."""

    def __init__(self, lab: Lab, said: dict[str, Any]):
        super().__init__(lab.library, said["case"])
        self.problem: dict[str, Any] = said["problem"]
        self.default: str | None = said["default"]  # the step, or step@configuration, that attention() takes on a GPU
        # q, k and v; in FP8 their scales, [batch, num_heads_kv] in FP32; of a backward pass o, d_o and, in FP32, lse.
        # Strides are in elements.
        names = ("q", "k", "v", "q_descale", "k_descale", "v_descale", "o", "d_o", "lse")
        self.tensors: dict[str, dict[str, Any]] = {name: said[name] for name in names if name in said}

    def check(self, step: str, modes: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Of a step: its status, message and validation, as results files have them. By default it runs twice."""
        mode = {"async": "early", "hostile": False, "last_cta_first": False, "race_detector": False}
        mode |= {"count": False, "seed": 1}
        text = json.dumps([mode | more for more in modes or ({}, {})])
        return asked(self.library.check(self.number, step.encode(), text.encode()))

    def outputs(self, step: str) -> tuple[Any, ...]:
        """o and lse of one run, or dq, dk and dv, as NumPy arrays; all but lse as bits."""
        import numpy as np

        p = self.problem
        of_q, of_kv = ([p["batch"], p[f"num_heads_{x}"], p[f"seqlen_{x}"], p["head_dim"]] for x in ("q", "kv"))
        bits = np.uint32 if p["dtype"] == "fp32" else np.uint16
        found = [np.empty(shape, bits) for shape in ((of_q, of_kv, of_kv) if p.get("backward") else (of_q,))]
        lse = np.empty(of_q[:3], np.float32)
        asked(self.library.outputs(self.number, step.encode(), pointers(x.ctypes.data for x in found), lse.ctypes.data))
        return (*found, *([] if p.get("backward") else [lse]))

    def judge(self, outputs: Sequence[int], lse: int | None, runs_identical: bool = True) -> dict[str, Any]:
        """As check() says it, of what somebody else's kernel has left: addresses of contiguous arrays on the device,
        [batch, heads, rows, head_dim], of o or, of a backward pass, of dq, dk and dv. Without lse, rows of o and dq
        that see no key are not judged."""
        return asked(self.library.judge(self.number, pointers(outputs), lse, runs_identical))

    def step_timer(self, step: str, cold_l2: bool = False) -> Timer:
        return Timer(self, asked(self.library.step_timer(self.number, step.encode(), cold_l2)))


class Calls:
    """Python's calls as the harness makes them. What one raises is raised behind the `with` of whoever uses them."""

    def __init__(
        self,
        launch: Callable[[], Any],
        record: Callable[[int], Any] | None = None,
        around: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.around = around
        self.raised: BaseException | None = None
        self.replay_call: Callable[[], Any] | None = None

        def guarded(call: Callable[[], Any]) -> int:
            try:
                call()
            except BaseException as error:  # through C++ nothing may be thrown
                self.raised = error
                return 1
            return 0

        def recorded(launches: int) -> int:
            def call() -> None:
                self.replay_call = record(launches)

            return guarded(call) or int(self.replay_call is None)

        self.launch = Launch(lambda: guarded(launch))
        self.record = Record(recorded) if record else Record()
        self.replay = Launch(lambda: guarded(self.replay_call))

    def __enter__(self) -> None:
        self.entered = self.around()
        self.entered.__enter__()

    def __exit__(self, *what: Any) -> None:
        self.entered.__exit__(*what)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


class Timer(Thing):
    """One contender. Its samples stay."""

    def __init__(self, owner: Lab | Case, said: dict[str, Any], calls: Calls | None = None):
        super().__init__(owner.library, said["timer"])
        self.calls = calls  # which the library calls
        self.method: dict[str, Any] = said["method"]
        self.note = ""  # for whoever reads its times
        self.ms: list[float] = []
        self.clocks: list[int] = []

    def sample(self, keep: bool = True) -> float:
        with self.calls or nullcontext():
            answer = self.library.sample(self.number)
        said = asked(answer)
        if keep:
            self.ms.append(said["ms"])
            self.clocks += [said["sm_clock_mhz"]] if said["sm_clock_mhz"] > 0 else []
        return said["ms"]

    def samples(self) -> dict[str, Any]:
        return {"ms": self.ms, "clocks": self.clocks, "method": self.method}
