"""What compare_peers.py does with PyTorch and the GPU: inputs, reference, errors, timing, the calls.

Nothing here decides anything: what is timed when, what passes and what is recorded is said in
compare_peers.py, whose tests put a stand-in in the place of this class.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from measure import peers
from measure.nvml import Nvml
from measure.peers import Call, Tensors
from records.terminal import one_line

MATMUL_SIZE = 8192
CHUNK = 1 << 25  # elements that are float64 at a time: 256 MiB a tensor
ADDENDS = 1024  # keys, of a sum in the reference
WAIT_CYCLES = 200_000  # of the GPU's clock: a tenth of a millisecond
MAX_WAIT_CYCLES = WAIT_CYCLES << 7
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


class LateLaunch(Exception):
    """A call keeps the host longer than the GPU can be made to wait: its time would be the host's."""


@dataclass
class Reference:
    o: Any  # float32 [b, h, s, d]: its rounding is far below every gate
    lse: Any  # float64 [b, h, s]


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


class TorchLab:
    def __init__(self, torch: Any, flashsteps: Any, device: str = "cuda"):
        self.torch, self.flashsteps, self.device = torch, flashsteps, torch.device(device)
        # Nobody differentiates: SDPA would keep what a backward pass needs.
        torch.set_grad_enabled(False)
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.packages: dict[str, Any] = {}
        self.builds: dict[str, dict[str, str]] = {}  # of those that people build themselves
        self.events: tuple[Any, Any] | None = None
        self.flush: Callable[[], Any] | None = None  # of L2
        if self.device.type == "cuda":
            self.index = torch.cuda.current_device()
            self.properties = torch.cuda.get_device_properties(self.index)
            at = [getattr(self.properties, f"pci_{what}_id", 0) for what in ("domain", "bus", "device")]
            self.nvml = Nvml("{:08x}:{:02x}:{:02x}.0".format(*at))

    # Who and where.

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

    def device_record(self) -> dict[str, Any]:
        p = self.properties
        runtime = self.torch.version.cuda
        found = {
            "name": p.name,
            "compute_capability": f"{p.major}.{p.minor}",
            "sm_count": p.multi_processor_count,
            "l2_bytes": getattr(p, "L2_cache_size", None),
            "memory_bytes": p.total_memory,
            "smem_optin_bytes": getattr(p, "shared_memory_per_block_optin", None),
            "max_sm_clock_mhz": self.nvml.max_sm_clock_mhz(),
            "driver": self.nvml.driver_version() or f"unknown, for CUDA {runtime}",
            "cuda_runtime": runtime,
        }
        return {key: value for key, value in found.items() if value is not None}

    def steps(self) -> list[str]:
        return list(self.flashsteps.steps())

    def build_info(self) -> dict[str, Any]:
        return self.flashsteps.build_info()

    def peak_tflops(self, dtype: str) -> float:
        return self.flashsteps.peak_tflops(dtype, self.index) or 0.0

    # Memory and time.

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
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

    def memory_in_use(self) -> int:
        return self.torch.cuda.memory_allocated()

    def release(self) -> None:
        gc.collect()
        self.torch.cuda.empty_cache()

    def sm_clock_mhz(self) -> int | None:
        return self.nvml.sm_clock_mhz()

    def elapsed_ms(self, work: Callable[[], None], while_running: Callable[[], None]) -> float:
        """Time on the GPU between two events. `while_running` is called when all is launched."""
        if self.events is None:
            self.events = tuple(self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin, end = self.events
        begin.record()
        work()
        end.record()
        while_running()
        end.synchronize()
        return begin.elapsed_time(end)

    def cold_ms(self, run: Callable[[], Any], launches: int, while_running: Callable[[], None]) -> list[float]:
        """Of each of so many launches the time on the GPU. Before each L2 is filled with four times as many bytes as
        it holds, which are read: as time_cold() of harness/device/cuda_timer.cpp does it. The GPU waits before
        that, because a call may have much to do on the host, in Python. Where the first event has passed when the
        second one is queued, the GPU may have waited for the host between them: such a launch is made again, behind
        twice the wait. No time that is returned has any of the host's in it."""
        torch = self.torch
        if self.flush is None:
            size = self.properties.L2_cache_size  # in FP32, so four times as many bytes
            self.flush = functools.partial(torch.sum, torch.ones(size, device=self.device))
        events: list[tuple[Any, ...]] = []
        wait = WAIT_CYCLES
        while len(events) < launches:
            if wait > MAX_WAIT_CYCLES:
                raise LateLaunch(f"the GPU waited {MAX_WAIT_CYCLES} cycles, and the host was still not ahead of it")
            begin, end = around = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(wait)
            self.flush()
            begin.record()
            run()
            end.record()
            if begin.query():
                wait *= 2
            else:
                events.append(around)
        while_running()
        events[-1][1].synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of the work: what replays it. What the work allocates lies in the graph's own pool."""
        graph = self.torch.cuda.CUDAGraph()
        stream = self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        finally:
            # A capture that fails leaves torch.cuda.graph's own stream behind as the current one.
            self.torch.cuda.set_stream(stream)
        return graph.replay

    # Inputs, reference, errors.

    def inputs(self, problem: dict[str, Any]) -> Tensors:
        """N(0, 1), rounded to the type before anybody reads it."""
        torch, p = self.torch, problem
        generator = torch.Generator(self.device).manual_seed(p["seed"])

        def draw(heads: int, rows: int) -> Any:
            shape = (p["batch"], heads, rows, p["head_dim"])
            drawn = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
            return drawn.to(self.dtypes[p["dtype"]])

        q = draw(p["num_heads_q"], p["seqlen_q"])
        k, v = (draw(p["num_heads_kv"], p["seqlen_kv"]) for _ in range(2))
        return Tensors(problem, q, k, v, None, (q, k, v), tuple(tensor.clone() for tensor in (q, k, v)))

    def reference(self, tensors: Tensors) -> Reference:
        """Exact softmax in float64, of the inputs as they are rounded, some heads of K and V and some rows at a time:
        all rows of the query heads that share them.

        Not float32, which PyTorch may multiply as TF32, and whose own error would have to be argued about. A
        data center's GPU has fast float64; elsewhere the largest problems take some seconds each.
        """
        torch, p = self.torch, tensors.problem
        rows_q, rows_kv, width = p["seqlen_q"], p["seqlen_kv"], p["head_dim"]
        heads, rows_all = p["batch"] * p["num_heads_kv"], p["num_heads_q"] // p["num_heads_kv"] * rows_q
        q = tensors.q.reshape(heads, rows_all, width)
        k, v = (t.reshape(heads, rows_kv, width) for t in (tensors.k, tensors.v))
        o = torch.empty(q.shape, dtype=torch.float32, device=self.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float64, device=self.device)
        rows = max(1, min(rows_all, CHUNK // max(rows_kv, width)))
        at_once = max(1, CHUNK // max(rows * max(rows_kv, width), rows_kv * width))
        key = torch.arange(rows_kv, device=self.device)
        addends = ADDENDS if rows_kv % ADDENDS == 0 else rows_kv
        for first in range(0, heads, at_once):
            head = torch.arange(first, min(first + at_once, heads), device=self.device)
            here = slice(first, first + len(head))
            keys = torch.full_like(head, rows_kv)
            k_part, v_part = k[here].double(), v[here].double()
            if tensors.lengths is not None:
                keys = tensors.lengths.long()[head // p["num_heads_kv"]]
                v_part.masked_fill_((key >= keys[:, None])[..., None], 0)  # whatever is there, as NaN
            for row in range(0, rows_all, rows):
                part = slice(row, min(row + rows, rows_all))
                q_part = q[here, part].double()
                scores = torch.matmul(q_part, k_part.transpose(1, 2)).mul_(p.get("softmax_scale") or width**-0.5)
                visible = keys[:, None]
                if p["causal"]:  # aligned bottom-right
                    query = torch.arange(part.start, part.stop, device=self.device) % rows_q
                    visible = visible + query + 1 - rows_q
                scores.masked_fill_(key >= visible[..., None], -torch.inf)
                sums = torch.logsumexp(scores, dim=-1)
                # A row that sees no key: exp(-inf - 0) is the 0 that it should be.
                weights = scores.sub_(sums.masked_fill(sums == -torch.inf, 0)[..., None]).exp_()
                # A sum over all keys of a few rows would be one CTA's work.
                weights = weights.unflatten(-1, (-1, addends)).transpose(1, 2)
                o[here, part] = torch.matmul(weights, v_part.unflatten(1, (-1, addends))).sum(1).float()
                lse[here, part] = sums
        return Reference(o.reshape(tensors.q.shape), lse.reshape(tensors.q.shape[:3]))

    def judge(
        self, call: Call, tensors: Tensors, reference: Reference, gate: dict[str, float], is_step: bool
    ) -> dict[str, Any]:
        """Runs a contender twice, and compares: numbers that compare_peers.verdict() judges."""
        torch = self.torch
        with call.around():
            self.poison(tensors, torch.nan)
            output, lse = call.output(True)
            self.poison(tensors, 60000.0)
            again, lse_again = call.output(False)
        self.synchronize()
        for name, tensor, like in (("o", output, tensors.q), ("the second o", again, tensors.q)):
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise WrongOutput(
                    f"{name} is {tensor.dtype} {list(tensor.shape)}, not {like.dtype} {list(like.shape)}"
                )
        if is_step and (lse is None or lse.shape != reference.lse.shape or lse.dtype != torch.float32):
            raise WrongOutput("lse is not a float32 tensor [b, h, s]")
        found = self.errors(output, lse if is_step else None, reference, gate)
        found["runs_identical"] = self.same(output, again) and (lse_again is None or self.same(lse, lse_again))
        found["inputs_changed"] = not all(map(self.same, tensors.memory, tensors.copies))
        for tensor, copy in zip(tensors.memory, tensors.copies):
            tensor.copy_(copy)  # or all that come after would pay for it
        return found

    def same(self, one: Any, other: Any) -> bool:
        """As bits: NaN is not equal to itself."""
        bits = self.torch.int16 if one.itemsize == 2 else self.torch.int32
        return self.torch.equal(one.view(bits), other.view(bits))

    def poison(self, tensors: Tensors, value: float) -> None:
        """This where an output is likely to be: PyTorch hands freed blocks out again as they are."""
        torch = self.torch
        blocks = [torch.full_like(tensors.q, value, memory_format=torch.contiguous_format) for _ in range(2)]
        blocks.append(torch.full(tensors.q.shape[:3], value, dtype=torch.float32, device=self.device))
        del blocks

    def errors(self, output: Any, lse: Any, reference: Reference, gate: dict[str, float]) -> dict[str, Any]:
        """The whole output, as validate.cpp judges it. Without an lse (a peer's) the rows that see no key are
        left out."""
        torch = self.torch
        batch, heads, rows, width = output.shape
        seen = reference.lse > -torch.inf
        compared = seen if lse is None else torch.ones_like(seen)
        error = torch.empty((batch, heads, rows), dtype=torch.float64, device=self.device)
        norm = torch.empty_like(error)
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        max_abs, nonfinite, not_zero = zero.double(), zero.clone(), zero.clone()
        at_once = max(1, CHUNK // (rows * width))
        for b in range(batch):
            for h in range(0, heads, at_once):
                here = (b, slice(h, h + at_once))
                part, expected = output[here], reference.o[here].double()
                difference = part.double() - expected
                error[here], norm[here] = difference.square().sum(-1), expected.square().sum(-1)
                counts = compared[here][..., None]
                # maximum and amax keep a NaN.
                max_abs = torch.maximum(max_abs, torch.where(counts, difference.abs(), 0).amax())
                nonfinite += (~torch.isfinite(part) & counts).sum()
                # Bitwise: no -0, no tiny remainder.
                not_zero += ((part.view(torch.int16) != 0).any(-1) & ~seen[here]).sum()
        total_error, total_norm = error[seen].sum(), norm[seen].sum()
        # A row whose norm is 0 is judged by its absolute error.
        row_error = torch.where(seen, torch.where(norm > 0, error / norm, error), 0).sqrt()
        worst = int(row_error.argmax())  # a NaN counts as the largest
        found = {
            "nrmse": float((total_error / total_norm if total_norm > 0 else total_error).sqrt()),
            "worst_row_nrmse": float(row_error.max()),
            "max_abs": float(max_abs),
            "lse_max_abs": None,
            "nonfinite": int(nonfinite),
            "rows_checked": int(compared.sum()),
            "rows_total": batch * heads * rows,
            "wrong_rows": int((~(row_error <= gate["row"])).sum()),
            "worst_place": "batch {}, head {}, row {}".format(
                worst // rows // heads, worst // rows % heads, worst % rows
            ),
            "not_zero": int(not_zero) if lse is not None else 0,
            "wrong_lse": 0,
        }
        if lse is not None:
            difference = torch.where(seen, (lse.double() - reference.lse).abs(), 0)
            found["lse_max_abs"] = float(difference.max())
            share = difference / (gate["lse"] + gate["lse_relative"] * reference.lse.abs())
            found["lse_share"] = float(share.max())  # of what is allowed
            found["wrong_lse"] = int((~(share <= 1)).sum())
            found["nonfinite"] += int((~torch.where(seen, lse.isfinite(), lse == -torch.inf)).sum())
        return found

    # The contenders.

    def prepare(self, name: str, tensors: Tensors, cold_l2: bool = False) -> Call:
        return peers.prepare(self, name, tensors, cold_l2)

    def matmul(self) -> tuple[Call, str, float]:
        """The measured ceiling: its call, what it is, its FLOPs."""
        torch, n = self.torch, MATMUL_SIZE
        generator = torch.Generator(self.device).manual_seed(1)
        a, b = (
            torch.randn((n, n), generator=generator, device=self.device, dtype=torch.bfloat16)
            for _ in range(2)
        )
        c = torch.empty_like(a)
        run = functools.partial(torch.matmul, a, b, out=c)
        return Call(run, lambda with_lse: (run(), None)), f"torch.matmul bf16 {n}x{n}x{n}", 2.0 * n**3
