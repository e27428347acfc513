"""PyTorch beside the lab: other people's kernels on the lab's tensors, in its stream, judged and timed by it."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any, Callable

from measure import peers
from measure.lab import Case, Lab, Timer
from measure.peers import Call, Tensors
from records.terminal import one_line

# Of the peers that are packages: the module, what must be in it, and the names that it is distributed under.
FUNCTION = "flash_attn_func"
PACKAGES = {
    "flash_attn": ("flash_attn", FUNCTION, ("flash_attn",)),
    "flash_attn_3": ("flash_attn_interface", FUNCTION, ("flash_attn_3", "flashattn-hopper", "hopper")),
    "flash_attn_4": ("flash_attn.cute", FUNCTION, ("flash-attn-4",)),
    "flashinfer": ("flashinfer", "BatchDecodeWithPagedKVCacheWrapper", ("flashinfer-python",)),
}


class WrongOutput(Exception):
    """What came back cannot be compared at all: one line that says why."""


def read_build(interface: str) -> dict[str, str]:
    """What the builder of FlashAttention-3 says of it, beside the extension; see docs/measuring.md."""
    path = Path(interface).parent / "flash_attn_3" / "BUILD.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing, which says how it was built: docs/measuring.md")
    build = json.loads(path.read_text(encoding="utf-8"))
    said = {key: build.pop(key, None) for key in ("commit", "compiler", "flags")}
    if build or not all(isinstance(text, str) and text.strip() for text in said.values()):
        raise ValueError(f"{path} must have the texts commit, compiler and flags, and nothing else")
    if not re.fullmatch(r"[0-9a-f]{40}", said["commit"]):
        raise ValueError(f"{path}: commit must be 40 hex digits")
    return said


def cudnn_version(number: int | None) -> str | None:
    """91900 is 9.19.0; up to version 8 there was a digit less: 8907 is 8.9.7."""
    if not number:
        return None
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


class Memory:
    """The lab's, as PyTorch takes it."""

    def __init__(self, tensor: dict[str, Any], bytes_each: int):
        self.__cuda_array_interface__ = {
            "data": (tensor["data"], False),
            "shape": tuple(tensor["shape"]),
            "strides": tuple(bytes_each * stride for stride in tensor["strides"]),
            "typestr": f"<i{bytes_each}",  # the bits: there is none for bf16
            "version": 3,
        }


class TorchLab:
    """From here on PyTorch's current stream is the lab's."""

    def __init__(self, torch: Any, flashsteps: Any, lab: Lab):
        self.torch, self.flashsteps, self.lab, self.device = torch, flashsteps, lab, torch.device("cuda")
        torch.cuda.set_stream(torch.cuda.ExternalStream(lab.stream))
        # Nobody differentiates: SDPA would keep what a backward pass needs.
        torch.set_grad_enabled(False)
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.packages: dict[str, Any] = {}
        self.builds: dict[str, dict[str, str]] = {}  # of those that people build themselves

    def missing_peers(self) -> dict[str, str]:
        """The peers that cannot be used, and what importing them says."""
        missing = {}
        for name, (module, needed, _) in PACKAGES.items():
            try:
                self.packages[name] = importlib.import_module(module)
                getattr(self.packages[name], needed)
                if name == "flash_attn_3":
                    self.builds[name] = read_build(self.packages[name].__file__)
            except Exception as error:  # one built for another PyTorch fails in many ways
                self.packages.pop(name, None)
                missing[name] = one_line(error)
        return missing

    def versions(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {
            "torch": self.torch.__version__,
            "cudnn": cudnn_version(self.torch.backends.cudnn.version()),
        }
        for name, module in self.packages.items():
            found[name] = getattr(module, "__version__", None)
            for package in PACKAGES[name][2]:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found[name] = found[name] or importlib.metadata.version(package)
            if name in self.builds:
                found[name] = f"{found[name] or ''} commit {self.builds[name]['commit'][:12]}".strip()
            found[name] = found[name] or "unknown"
        return found

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def broken(self) -> str:
        """What is wrong with the device, so that nothing more can be done with it; empty when it is fine."""
        try:
            self.synchronize()
        except Exception as error:
            return one_line(error)
        return ""

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, self.torch.cuda.OutOfMemoryError)

    def free_bytes(self) -> int:
        """Free on the device, or kept by PyTorch's allocator for whoever comes next."""
        cuda = self.torch.cuda
        return cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated()

    def release(self) -> None:
        gc.collect()
        self.torch.cuda.empty_cache()

    # The contenders.

    def tensors(self, case: Case) -> Tensors:
        def view(name: str) -> Any:
            bits = self.torch.as_tensor(Memory(case.tensors[name], 2), device=self.device)
            return bits.view(self.dtypes[case.problem["dtype"]])

        return Tensors(case.problem, *map(view, "qkv"))

    def prepare(self, name: str, tensors: Tensors, cold_l2: bool = False) -> Call:
        return peers.prepare(self, name, tensors, cold_l2)

    def step(self, name: str, tensors: Tensors) -> Call:
        """As users of the Python module call it."""
        causal = tensors.problem["causal"]
        call = functools.partial(self.flashsteps.attention, tensors.q, tensors.k, tensors.v, causal=causal, step=name)
        return Call(call, call)

    def judge(self, call: Call, case: Case, tensors: Tensors) -> dict[str, Any]:
        """Runs a peer twice, and has the first output judged. Its runs may differ: that is recorded."""
        with call.around():
            self.poison(tensors.q, self.torch.nan)
            output = call.output()
            self.poison(tensors.q, 60000.0)
            again = call.output()
        for name, tensor in (("o", output), ("the second o", again)):
            if tensor.shape != tensors.q.shape or tensor.dtype != tensors.q.dtype:
                wanted = f"{tensors.q.dtype} {list(tensors.q.shape)}"
                raise WrongOutput(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {wanted}")
        output, again = output.contiguous(), again.contiguous()
        identical = self.torch.equal(output.view(self.torch.int16), again.view(self.torch.int16))
        self.synchronize()
        found = case.judge(output.data_ptr(), None, identical)
        return {key: found[key] for key in ("status", "message", "validation")}

    def poison(self, like: Any, value: float) -> None:
        """This where an output is likely to be: PyTorch hands freed blocks out again as they are."""
        blocks = [self.torch.full_like(like, value, memory_format=self.torch.contiguous_format) for _ in range(2)]
        del blocks

    def timer(self, call: Call, cold_l2: bool) -> Timer:
        """Its calls' `around` must be entered for every sample too: sample()."""
        note = ""

        def record(launches: int) -> Callable[[], Any] | None:
            nonlocal note
            try:
                return self.capture(call, launches)
            except Exception as error:  # if nothing works any more, whoever waits for the device next is told
                note = f"not in a CUDA graph ({one_line(error)}): its times include launching"
                return None

        timer = self.lab.timer(call.run, record, cold_l2, call.around)
        timer.note = note
        return timer

    def capture(self, call: Call, launches: int) -> Callable[[], Any]:
        """By PyTorch itself, whose allocator must know. What the calls allocate lies in the graph's own pool."""
        graph = self.torch.cuda.CUDAGraph()
        stream = self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(launches):
                    call.run()
        finally:
            # A capture that fails leaves torch.cuda.graph's own stream behind as the current one.
            self.torch.cuda.set_stream(stream)
        return graph.replay
