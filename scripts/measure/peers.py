"""PyTorch beside the lab: other people's kernels on the lab's tensors, on its stream, judged and timed by it."""
from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import itertools
import statistics
import warnings
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Callable, ContextManager, Iterable

from measure.lab import Case, DeviceLost, Lab, Timer
from records.writing import one_line

# Of the peers that are packages: the module, what must be in it, and the names that it is distributed under.
FUNCTION = "flash_attn_func"
PACKAGES = {
    "flash_attn": ("flash_attn", FUNCTION, ("flash_attn",)),
    "flash_attn_3": ("fa3_fwd_interface", FUNCTION, ("fa3-fwd",)),
    "flash_attn_4": ("flash_attn.cute", FUNCTION, ("flash-attn-4",)),
    "cudnn": ("cudnn.sdpa.fwd.torch_op", "sdpa", ("nvidia-cudnn-frontend",)),
    "flashinfer": ("flashinfer", "BatchDecodeWithPagedKVCacheWrapper", ("flashinfer-python",)),
}
# The same of backward passes.
BACKWARD_PACKAGES = {
    "flash_attn_3": ("flash_attn_interface", "_flash_attn_backward", ("flash_attn_3",)),
    "flash_attn_4": ("flash_attn.cute.interface", "_flash_attn_bwd", ("flash-attn-4",)),
}
PAGE_SIZES = (16, 64)  # of FlashInfer's cache: the usual ones
FEW_ROWS = 1 << 15  # of queries, over all heads: with more, tiles of them fill any GPU, and nobody splits the keys
WAY_SAMPLES = 7  # of each way to call a peer: as many as a record has at least
NO_LOWER_RIGHT = "PyTorch has no causal mask aligned bottom-right for cuDNN"
FP8_PEERS = ("flash_attn_3", "cudnn")
LARGEST_E4M3 = 448.0
LARGEST_P = 256.0  # of cuDNN's P in e4m3: a power of two, and as large as the reference's


class Skip(Exception):
    """A contender cannot run this problem: one line that says why."""


class WrongOutput(Exception):
    """What came back cannot be compared at all: one line that says why."""


@dataclass
class Call:
    """A contender with its tensors. What the calls return is theirs to keep or to drop."""

    run: Callable[[], Any]  # the timed call
    output: Callable[[], Any]  # the same, and o as [b, h, s, d]; of a backward pass dq, dk and dv
    around: Callable[[], ContextManager] = contextlib.nullcontext  # entered once, outside what is timed
    note: str = ""


@dataclass
class Tensors:
    problem: dict[str, Any]
    q: Any  # [b, h, s, d]; so are k and v
    k: Any
    v: Any
    scales: dict[str, Any] = field(default_factory=dict)  # in FP8: q_descale, k_descale and v_descale, each [b, kv heads]
    o: Any = None  # of a backward pass, as d_o: [b, h, s, d]
    d_o: Any = None
    lse: Any = None  # of a backward pass: [b, h, s], contiguous


class TorchLab:
    """From here on PyTorch's current stream is the lab's. (Soaks and tests use it on the emulator as well.)"""

    def __init__(self, torch: Any, flashsteps: Any, lab: Lab):
        self.torch, self.flashsteps, self.lab = torch, flashsteps, lab
        self.device = torch.device("cuda" if lab.on_gpu else "cpu")
        if lab.on_gpu:
            torch.cuda.set_stream(torch.cuda.ExternalStream(lab.stream))
        # Nobody differentiates: SDPA would keep what a backward pass needs.
        torch.set_grad_enabled(False)
        gc.collect()
        gc.freeze()  # of all that is imported, release() need not look for garbage again
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
        self.known = PACKAGES
        self.packages: dict[str, Any] = {}

    def missing_peers(self, backward: bool = False) -> dict[str, str]:
        """The packages that cannot be used, by their peers, and what importing them says."""
        self.known, missing = BACKWARD_PACKAGES if backward else PACKAGES, {}
        for name, (module, needed, _) in self.known.items():
            try:
                self.packages[name] = importlib.import_module(module)
                getattr(self.packages[name], needed)
            except Exception as error:  # one built for another PyTorch fails in many ways
                self.packages.pop(name, None)
                missing[name] = one_line(error)
        return missing

    def versions(self) -> dict[str, str | None]:
        cudnn = self.torch.backends.cudnn.version()  # 91900 is 9.19.0
        found: dict[str, str | None] = {"torch": self.torch.__version__, "cudnn": None}
        if cudnn:
            found["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
        for name, module in self.packages.items():
            version = getattr(module, "__version__", "unknown")  # FlashAttention-4's is always 0.0.0
            for package in self.known[name][2]:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    version = importlib.metadata.version(package)
            found["cudnn_frontend" if name == "cudnn" else name] = version
        if "cudnn" in self.packages:  # which may have found another library than PyTorch has
            found["cudnn_frontend"] += f" with cuDNN {importlib.import_module('cudnn').backend_version_string()}"
        return found

    def synchronize(self) -> None:
        if self.lab.on_gpu:
            self.torch.cuda.synchronize()

    def attempt(self, work: Callable[[], Any], refusals: tuple[type[Exception], ...] = ()) -> Any:
        """The result; Skip where it was refused, by one of these exceptions or for want of memory; DeviceLost where
        nothing works any more."""
        try:
            result = work()
            self.synchronize()
            return result
        except (Skip, WrongOutput, DeviceLost):
            raise
        except Exception as error:
            try:
                self.synchronize()
            except Exception as broken:
                raise DeviceLost(one_line(broken)) from error
            if isinstance(error, self.torch.cuda.OutOfMemoryError):
                raise Skip("there is not enough free memory on the device") from error
            if isinstance(error, refusals):
                raise Skip(one_line(error)) from error
            raise

    def release(self) -> None:
        gc.collect()
        self.torch.cuda.empty_cache()

    # The contenders.

    def tensors(self, case: Case) -> Tensors:
        def view(name: str, dtype: Any) -> Any:
            tensor, size = case.tensors[name], dtype.itemsize
            axes = list(zip(tensor["shape"], tensor["strides"]))
            # Of an axis of extent 1 the lab's may be anything. FlashAttention-3's tensor maps need one of 16 bytes.
            whole = max((size * n * s for n, s in axes if n > 1), default=size)
            memory = {
                "data": (tensor["data"], False),
                "shape": tuple(tensor["shape"]),
                "strides": tuple(size * s if n > 1 else whole for n, s in axes),
                "typestr": f"<i{size}",  # the bits: it has no word for bf16 and FP8
                "version": 3,
            }
            if self.lab.on_gpu:
                bits = self.torch.as_tensor(SimpleNamespace(__cuda_array_interface__=memory), device=self.device)
            else:
                import numpy

                bits = self.torch.from_numpy(numpy.asarray(SimpleNamespace(__array_interface__=memory)))
            return bits.view(dtype)

        scales = {name: view(name, self.torch.float32) for name in case.tensors if name.endswith("_descale")}
        of_q = self.dtypes[case.problem["dtype"]]
        of_kv = self.dtypes[case.problem.get("cache") or case.problem["dtype"]]
        types = {"q": of_q, "k": of_kv, "v": of_kv, "o": of_q, "d_o": of_q, "lse": self.torch.float32}
        views = {name: view(name, dtype) for name, dtype in types.items() if name in case.tensors}
        return Tensors(case.problem, **views, scales=scales)

    def step(self, name: str, tensors: Tensors) -> Call:
        """As users of the Python module call it."""
        if tensors.problem.get("backward"):
            given = (tensors.d_o, tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse)
            more = {"causal": tensors.problem["causal"], "step": name}
            gradients = functools.partial(self.flashsteps.attention_backward, *given, **more)
            return Call(gradients, gradients)
        flags = {flag: True for flag in ("fast", "quantize") if tensors.problem.get(flag)}
        more = {"causal": tensors.problem["causal"], "step": name, **flags, **tensors.scales}
        call = functools.partial(self.flashsteps.attention, tensors.q, tensors.k, tensors.v, **more)
        return Call(call, call)

    def judge(self, call: Call, case: Case, tensors: Tensors) -> dict[str, Any]:
        """Runs a peer twice, and has the first outputs judged. Its runs may differ: that is recorded."""
        dtype = self.torch.bfloat16 if case.problem["dtype"] == "e4m3" else tensors.q.dtype
        likes = {"o": tensors.q}
        if case.problem.get("backward"):
            likes = {"dq": tensors.q, "dk": tensors.k, "dv": tensors.v}
        runs = []
        with call.around():
            for poison in (self.torch.nan, 60000.0):
                self.poison(likes.values(), poison, dtype)
                found = call.output()
                runs.append(found if "dq" in likes else (found,))
        for which, outputs in zip(("", "the second "), runs):
            for (name, like), tensor in zip(likes.items(), outputs, strict=True):
                if tensor.shape != like.shape or tensor.dtype != dtype:
                    wanted = f"{dtype} {list(like.shape)}"
                    raise WrongOutput(f"{which}{name} is {tensor.dtype} {list(tensor.shape)}, not {wanted}")
        first, again = ([tensor.contiguous() for tensor in outputs] for outputs in runs)
        bits = self.torch.int16
        identical = all(self.torch.equal(one.view(bits), other.view(bits)) for one, other in zip(first, again))
        self.synchronize()
        found = case.judge([tensor.data_ptr() for tensor in first], None, identical)
        return {key: found[key] for key in ("status", "message", "validation")}

    def poison(self, likes: Iterable[Any], value: float, dtype: Any = None) -> None:
        """This where outputs are likely to be: PyTorch hands freed blocks out again as they are."""
        more = {"dtype": dtype, "memory_format": self.torch.contiguous_format}
        blocks = [self.torch.full_like(like, value, **more) for like in likes for _ in range(2)]
        del blocks

    def timer(self, call: Call, cold_l2: bool) -> Timer:
        """Of a CUDA graph of its calls where that can be; its note says why where it cannot."""
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
        gc.disable()  # garbage may be an earlier graph, and one that ends during a capture breaks it
        graph = self.torch.cuda.CUDAGraph()
        stream = self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(launches):
                    call.run()
        finally:
            # A capture that fails leaves torch.cuda.graph's own stream behind as the current one.
            self.torch.cuda.set_stream(stream)
            gc.enable()
        return graph.replay


# How each peer is called.


def prepare(lab: TorchLab, name: str, tensors: Tensors, cold_l2: bool) -> Call:
    """A contender on these tensors. Raises Skip, or what it itself raises when it is called. Of several ways to call
    it, the fastest with such an L2."""
    if tensors.problem.get("backward"):
        return backward(lab, name, tensors, cold_l2)
    if tensors.scales and name not in FP8_PEERS:
        raise Skip(f"in FP8 only {' and '.join(FP8_PEERS)} are called")
    if name.startswith("sdpa_"):
        return sdpa(lab, name, tensors)
    if name == "flash_attn":
        return flash_attn(lab, name, tensors)
    return {
        "flash_attn_3": flash_attn_3,
        "flash_attn_4": flash_attn_4,
        "cudnn": cudnn,
        "flashinfer": flashinfer,
    }[name](lab, tensors, cold_l2)


def sdpa(lab: TorchLab, name: str, tensors: Tensors) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {
        "sdpa_flash": SDPBackend.FLASH_ATTENTION,
        "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
        "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
        "sdpa_math": SDPBackend.MATH,
    }[name]
    p, notes = tensors.problem, []
    mask = {"is_causal": p["causal"]}
    if p["causal"] and p["seqlen_q"] != p["seqlen_kv"]:  # is_causal is aligned top-left
        mask = lower_right(lab, name, p)
        notes.append("mask: a tensor" if name == "sdpa_math" else "mask: causal_lower_right")
    around = functools.partial(sdpa_kernel, [backend])
    grouped = p["num_heads_q"] != p["num_heads_kv"]

    def prepared(k: Any, v: Any, **more: Any) -> Call:
        run = functools.partial(
            lab.torch.nn.functional.scaled_dot_product_attention, tensors.q, k, v, **mask, **more
        )
        with around():
            try_sdpa(lab, run, name, tensors.q, k, v, mask, **more)
        return Call(run, run, around, "; ".join(notes))

    if not grouped:
        return prepared(tensors.k, tensors.v)
    try:
        return prepared(tensors.k, tensors.v, enable_gqa=True)
    except Skip:
        group = p["num_heads_q"] // p["num_heads_kv"]
        notes.append("heads of K and V repeated beforehand: no grouped heads")
        return prepared(*(t.repeat_interleave(group, dim=1) for t in (tensors.k, tensors.v)))


def lower_right(lab: TorchLab, name: str, p: dict[str, Any]) -> dict[str, Any]:
    rows, keys = p["seqlen_q"], p["seqlen_kv"]
    if name == "sdpa_cudnn":
        raise Skip(NO_LOWER_RIGHT)
    if name == "sdpa_math":
        # What causal_lower_right would make anew in every call.
        allowed = lab.torch.ones((rows, keys), dtype=lab.torch.bool, device=lab.device)
        return {"attn_mask": allowed.tril(keys - rows)}
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some rows see no key; they are not compared
        return {"attn_mask": causal_lower_right(rows, keys)}


def try_sdpa(lab: TorchLab, run: Callable[[], Any], name: str, q: Any, k: Any, v: Any, mask: Any, **more: Any):
    """Once, for its refusal. PyTorch says why a backend will not do in warnings only."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            lab.attempt(run, (RuntimeError,))
        except Skip as refused:
            raise Skip(sdpa_refusal(refused, [str(each.message) for each in said])) from refused
    bias = mask.get("attn_mask")
    if bias is None or name == "sdpa_math" or lab.device.type != "cuda":
        return
    # Where its kernel will not do, causal_lower_right quietly makes the whole mask in every call.
    from torch.backends import cuda

    can_use = cuda.can_use_flash_attention if name == "sdpa_flash" else cuda.can_use_efficient_attention
    if not can_use(cuda.SDPAParams(q, k, v, None, 0.0, False, more.get("enable_gqa", False))):
        raise Skip("causal_lower_right would materialise the mask")


def flash_attn(lab: TorchLab, name: str, tensors: Tensors, **more: Any) -> Call:
    return transposed(lab.packages[name].flash_attn_func, tensors, **more)


def transposed(function: Callable[..., Any], tensors: Tensors, **more: Any) -> Call:
    """Of a function that wants [b, s, h, d]."""
    q, k, v = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v))
    run = functools.partial(function, q, k, v, causal=tensors.problem["causal"], **tensors.scales, **more)

    def output() -> Any:
        found = run()
        # Some versions return (o, lse).
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return Call(run, output, note="transposed views of the same tensors")


def packings(p: dict[str, Any]) -> tuple[bool | None, ...]:
    """Whether the query heads of a group share the rows of a tile: both, where there are such groups."""
    return (None,) if p["num_heads_q"] == p["num_heads_kv"] else (True, False)


def few_rows(p: dict[str, Any]) -> bool:
    """Can it pay to split the keys, because tiles of queries leave SMs without work?"""
    return p["batch"] * p["num_heads_q"] * p["seqlen_q"] <= FEW_ROWS


def flash_attn_3(lab: TorchLab, tensors: Tensors, cold_l2: bool) -> Call:
    """With num_splits=0 its heuristics choose the splits."""
    p, ways = tensors.problem, {}
    for pack_gqa, num_splits in itertools.product(packings(p), (0, 1) if few_rows(p) else (1,)):
        what = f"flash_attn_func, num_splits={num_splits}, pack_gqa={pack_gqa}"
        more = {"num_splits": num_splits, "pack_gqa": pack_gqa}
        ways[what] = functools.partial(flash_attn, lab, "flash_attn_3", tensors, **more)
    if few_rows(p):
        what = "flash_attn_with_kvcache, cache_seqlens and scheduler_metadata"
        ways[what] = functools.partial(flash_attn_3_cache, lab, tensors)
    return fastest(lab, ways, cold_l2)


def flash_attn_3_cache(lab: TorchLab, tensors: Tensors) -> Call:
    """As a model calls it that generates text, with the lengths of the keys: their schedule is made beforehand, once
    for all layers."""
    package, p = lab.packages["flash_attn_3"], tensors.problem
    lengths = lab.torch.full((p["batch"],), p["seqlen_kv"], dtype=lab.torch.int32, device=lab.device)
    sizes = [p[key] for key in ("batch", "seqlen_q", "seqlen_kv", "num_heads_q", "num_heads_kv", "head_dim")]
    plan = package.get_scheduler_metadata(*sizes, lengths, qkv_dtype=tensors.q.dtype, causal=p["causal"])
    more = {"cache_seqlens": lengths, "scheduler_metadata": plan, "num_splits": 0}
    return transposed(package.flash_attn_with_kvcache, tensors, **more)


def flash_attn_4(lab: TorchLab, tensors: Tensors, cold_l2: bool) -> Call:
    """Its kernel for Hopper cannot split the keys."""
    ways = {
        f"pack_gqa={pack_gqa}": functools.partial(flash_attn, lab, "flash_attn_4", tensors, pack_gqa=pack_gqa)
        for pack_gqa in packings(tensors.problem)
    }
    return fastest(lab, ways, cold_l2)


def cudnn(lab: TorchLab, tensors: Tensors, cold_l2: bool) -> Call:
    """Through cudnn-frontend: a graph of cuDNN's library, or kernels that are part of the package."""
    if tensors.scales:
        return cudnn_fp8(lab, tensors, cold_l2)
    ways = {"graph": lambda: cudnn_graph(lab, tensors), "flex_attn_func": lambda: cudnn_flex(lab, tensors)}
    return fastest(lab, ways, cold_l2)


def cudnn_graph(lab: TorchLab, tensors: Tensors) -> Call:
    """The first call builds the graph, and the package keeps it."""
    p = tensors.problem
    mask = {"is_causal": p["causal"], "causal_bottom_right": p["causal"] and p["seqlen_q"] != p["seqlen_kv"]}
    run = functools.partial(lab.packages["cudnn"].sdpa, tensors.q, tensors.k, tensors.v, **mask)
    return Call(run, run)


def cudnn_flex(lab: TorchLab, tensors: Tensors) -> Call:
    """Its open kernels for Hopper. The mask, which is planned beforehand, is how many keys each query sees."""
    flex, p = importlib.import_module("cudnn.flex_attention"), tensors.problem
    rows, keys = p["seqlen_q"], p["seqlen_kv"]
    first = keys - rows + 1 if p["causal"] else keys
    seen = lab.torch.arange(first, first + rows, dtype=lab.torch.int32, device=lab.device).clamp(0, keys)
    q, k, v = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v))
    plan = flex.create_mask_plan(seen.repeat(p["batch"])[None, None], q, k, v)
    run = functools.partial(flex.flex_attn_func, q, k, v, mask_plan=plan)
    return Call(run, lambda: run().transpose(1, 2))


def cudnn_fp8(lab: TorchLab, tensors: Tensors, cold_l2: bool) -> Call:
    """A graph of cuDNN's library, which has one scale for each tensor."""
    if any(bool((scales != scales[0, 0]).any()) for scales in tensors.scales.values()):
        raise Skip("cuDNN has one scale for q, k and v each, and here each head has its own: ask with --layout qkv")
    ways = {
        f"sdpa_fp8, generate_stats={stats}": functools.partial(cudnn_fp8_graph, lab, tensors, stats)
        for stats in (False, True)
    }
    call = fastest(lab, ways, cold_l2)
    call.note += "; o is in e4m3, by a scale that an earlier call has found"
    return call


def cudnn_fp8_graph(lab: TorchLab, tensors: Tensors, stats: bool) -> Call:
    """On Hopper it refuses an output in bf16. As in training, the scale of O comes from the largest value of an
    earlier call."""
    torch, p, package = lab.torch, tensors.problem, importlib.import_module("cudnn")
    fp8, fp32 = package.data_type.FP8_E4M3, package.data_type.FLOAT
    handle = package.create_handle()
    graph = package.pygraph(io_data_type=fp8, intermediate_data_type=fp32, compute_data_type=fp32, handle=handle)

    def number(value: float) -> Any:
        return torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=lab.device)

    given = {name: getattr(tensors, name) for name in "qkv"}
    given |= {f"descale_{name}": number(float(tensors.scales[f"{name}_descale"][0, 0])) for name in "qkv"}
    given |= {"descale_s": number(1 / LARGEST_P), "scale_s": number(LARGEST_P), "scale_o": number(1.0)}
    nodes = {
        name: graph.tensor(dim=list(t.shape), stride=list(t.stride()), data_type=fp32 if t.numel() == 1 else fp8)
        for name, t in given.items()
    }
    square = p["seqlen_q"] == p["seqlen_kv"]
    mask = {("use_causal_mask" if square else "use_causal_mask_bottom_right"): True} if p["causal"] else {}
    more = {"attn_scale": p["head_dim"] ** -0.5, "generate_stats": stats, **mask}
    o, lse, largest_p, largest_o = graph.sdpa_fp8(**nodes, **more)
    made = {o: torch.empty_like(tensors.q), largest_p: number(0.0), largest_o: number(0.0)}
    if stats:
        made[lse] = torch.empty((*tensors.q.shape[:3], 1), dtype=torch.float32, device=lab.device)
    for node, t in made.items():
        kind = fp8 if node is o else fp32
        node.set_output(True).set_dim(list(t.shape)).set_stride(list(t.stride())).set_data_type(kind)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([package.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    memory = {nodes[name]: t for name, t in given.items()} | made
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=lab.device)

    def write(to: Any) -> Any:
        package.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(memory | {o: to}, workspace, handle=handle)
        return to

    def run() -> Any:
        return write(torch.empty_like(tensors.q))

    def output() -> Any:
        to = torch.empty_like(tensors.q)
        to.view(torch.uint8).fill_(0x7F)  # NaN: where judge() has poison, there is hardly an output of half the size
        return (write(to).float() / given["scale_o"]).to(torch.bfloat16)

    run()
    given["scale_o"].copy_(LARGEST_E4M3 / made[largest_o])
    return Call(run, output)


def flashinfer(lab: TorchLab, tensors: Tensors, cold_l2: bool) -> Call:
    """K and V themselves, seen as pages in their order, and of one sequence as they are. What it plans, it plans
    outside of the time."""
    p = tensors.problem
    if p["layout"] != "bhsd":
        raise Skip("its pages are only timed where the keys of a head lie one after the other")
    ways: dict[str, Callable[[], Call]] = {}
    for page_size in PAGE_SIZES:
        if p["seqlen_kv"] % page_size == 0:
            ways |= flashinfer_paged(lab, tensors, page_size)
    if p["batch"] == 1 and few_rows(p):
        ways |= flashinfer_single(lab, tensors)
    if not ways:
        raise Skip(f"several sequences, or many queries, are only timed with whole pages of {PAGE_SIZES[0]} keys")
    return fastest(lab, ways, cold_l2)


def flashinfer_single(lab: TorchLab, tensors: Tensors) -> dict[str, Callable[[], Call]]:
    package, k, v = lab.packages["flashinfer"], tensors.k[0], tensors.v[0]

    def decode(tensor_cores: bool) -> Call:
        more = {"kv_layout": "HND", "use_tensor_cores": tensor_cores}
        run = functools.partial(package.single_decode_with_kv_cache, tensors.q[0, :, 0], k, v, **more)
        return Call(run, lambda: run()[None, :, None])

    def prefill() -> Call:
        more = {"kv_layout": "HND", "causal": tensors.problem["causal"], "backend": "fa2"}
        run = functools.partial(package.single_prefill_with_kv_cache, tensors.q[0].transpose(0, 1), k, v, **more)
        return Call(run, lambda: run().transpose(0, 1)[None])

    ways = {"for tensor cores": lambda: decode(True), "for CUDA cores": lambda: decode(False)}
    if tensors.problem["seqlen_q"] > 1:
        ways = {"fa2": prefill}
    return {f"one sequence without pages, {what}": make for what, make in ways.items()}


def flashinfer_paged(lab: TorchLab, tensors: Tensors, page_size: int) -> dict[str, Callable[[], Call]]:
    torch, p, package = lab.torch, tensors.problem, lab.packages["flashinfer"]
    batch, heads, keys, width = tensors.k.shape
    per_head = keys // page_size
    # Page i begins i pages into the tensor, its other heads so many keys later: [page, head, key, d].
    pages = ((batch - 1) * heads + 1) * per_head
    shape, strides = (pages, heads, page_size, width), (page_size * width, keys * width, width, 1)
    cache = tuple(t.as_strided(shape, strides) for t in (tensors.k, tensors.v))
    first = torch.arange(batch, dtype=torch.int32, device=lab.device) * (heads * per_head)
    table = first[:, None] + torch.arange(per_head, dtype=torch.int32, device=lab.device)
    ends = torch.arange(batch + 1, dtype=torch.int32) * per_head
    last = torch.full((batch,), page_size, dtype=torch.int32)
    rows = tensors.q.transpose(1, 2).flatten(0, 1)  # copied with several queries of several sequences
    workspace = functools.partial(torch.zeros, 1 << 28, dtype=torch.uint8, device=lab.device)
    sizes = (p["num_heads_q"], heads, width, page_size)
    types = {"q_data_type": rows.dtype, "kv_data_type": rows.dtype}
    backend = "fa2" if few_rows(p) else "fa3"  # only fa2 splits the keys; to compile both would take minutes

    def call(run: Callable[[], Any]) -> Call:
        return Call(run, lambda: run().unflatten(0, (batch, p["seqlen_q"])).transpose(1, 2))

    def planned(tensor_cores: bool) -> Call:
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper
        decode = wrapper(workspace(), "HND", use_tensor_cores=tensor_cores)
        decode.plan(ends, table.flatten(), last, *sizes, **types)
        return call(functools.partial(decode.run, rows, cache))

    def prefill() -> Call:
        wrapper = package.BatchPrefillWithPagedKVCacheWrapper(workspace(), "HND", backend=backend)
        starts = torch.arange(batch + 1, dtype=torch.int32) * p["seqlen_q"]
        wrapper.plan(starts, ends, table.flatten(), last, *sizes, causal=p["causal"], **types)
        return call(functools.partial(wrapper.run, rows, cache))

    def xqa() -> Call:
        lengths = torch.full((batch,), keys, dtype=torch.int32, device=lab.device)
        more = {"bmm1_scale": width**-0.5, "kv_layout": "HND"}
        decode = package.decode.xqa_batch_decode_with_kv_cache
        return call(functools.partial(decode, rows, cache, workspace(), table, lengths, keys, **more))

    ways = {"for tensor cores": lambda: planned(True), "for CUDA cores": lambda: planned(False), "XQA": xqa}
    if p["seqlen_q"] > 1:
        ways = {backend: prefill}
    return {f"pages of {page_size} keys in order, {what}": make for what, make in ways.items()}


# Backward passes: from the o and lse that the steps get, too. The calls are those that autograd makes.


def backward(lab: TorchLab, name: str, tensors: Tensors, cold_l2: bool) -> Call:
    """In each order of the axes, since some of them copy what lies in another one."""
    p, make, ways = tensors.problem, BACKWARD[name], {}
    for order in dict.fromkeys((p["layout"], *ORDERS)):
        what = ORDERS.get(order, "q, k and v fused") + ("" if order == p["layout"] else ", copied beforehand")
        ways[what] = lambda order=order: make(lab, in_order(tensors, order))
        if name.startswith("sdpa_") and p["num_heads_q"] != p["num_heads_kv"]:
            what += ", heads of K and V repeated beforehand, and their gradients summed up"
            ways[what] = lambda order=order: of_repeated_heads(lab, make, in_order(tensors, order))
    return fastest(lab, ways, cold_l2)


ORDERS = {"bhsd": "[b, h, s, d]", "bshd": "[b, s, h, d]"}


def in_order(tensors: Tensors, order: str) -> Tensors:
    if order == tensors.problem["layout"]:
        return tensors

    def copy(tensor: Any) -> Any:
        return tensor.contiguous() if order == "bhsd" else tensor.transpose(1, 2).contiguous().transpose(1, 2)

    return replace(tensors, **{name: copy(getattr(tensors, name)) for name in ("q", "k", "v", "o", "d_o")})


def of_repeated_heads(lab: TorchLab, make: Callable[[TorchLab, Tensors], Call], tensors: Tensors) -> Call:
    """Who calls an operator that knows no groups has to sum up, too."""
    group = tensors.problem["num_heads_q"] // tensors.problem["num_heads_kv"]
    k, v = (t.repeat_interleave(group, dim=1) for t in (tensors.k, tensors.v))
    repeated = make(lab, replace(tensors, k=k, v=v))

    def run() -> Any:
        dq, *others = repeated.run()
        return dq, *(t.unflatten(1, (-1, group)).sum(2) for t in others)

    return Call(run, run)


def sdpa_flash_backward(lab: TorchLab, tensors: Tensors) -> Call:
    """Called by its operator, a causal mask is aligned bottom-right. What a forward call keeps besides o and lse comes
    from such a call."""
    aten, t, causal = lab.torch.ops.aten, tensors, tensors.problem["causal"]
    kept = aten._scaled_dot_product_flash_attention(t.q, t.k, t.v, 0.0, causal, False)
    lse = t.lse.view_as(kept[1])
    arguments = (t.d_o, t.q, t.k, t.v, t.o, lse, *kept[2:6], 0.0, causal, *kept[6:8])
    run = functools.partial(aten._scaled_dot_product_flash_attention_backward, *arguments)
    return Call(run, run)


def sdpa_cudnn_backward(lab: TorchLab, tensors: Tensors) -> Call:
    p = tensors.problem
    if p["causal"] and p["seqlen_q"] != p["seqlen_kv"]:
        raise Skip(NO_LOWER_RIGHT)
    aten, t, causal = lab.torch.ops.aten, tensors, p["causal"]
    kept = aten._scaled_dot_product_cudnn_attention(t.q, t.k, t.v, None, True, 0.0, causal, False)
    lse = t.lse.view_as(kept[1])
    arguments = (t.d_o, t.q, t.k, t.v, t.o, lse, *kept[6:8], None, *kept[2:6], 0.0, causal)
    run = functools.partial(aten._scaled_dot_product_cudnn_attention_backward, *arguments)
    return Call(run, run)


def flash_attn_3_backward(lab: TorchLab, tensors: Tensors, deterministic: bool = False) -> Call:
    """Some versions return the gradients, and all write them where they are told to."""
    p, empty_like = tensors.problem, lab.torch.empty_like
    q, k, v, o, d_o = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v, tensors.o, tensors.d_o))
    no_lengths, scale = [None] * 6, p["head_dim"] ** -0.5
    function = lab.packages["flash_attn_3"]._flash_attn_backward

    def run() -> Any:
        gradients = [empty_like(t) for t in (q, k, v)]
        inputs = (d_o, q, k, v, o, tensors.lse, *no_lengths)
        function(*inputs, *gradients, scale, p["causal"], deterministic=deterministic)
        return gradients

    return Call(run, lambda: tuple(t.transpose(1, 2) for t in run()))


def flash_attn_4_backward(lab: TorchLab, tensors: Tensors, deterministic: bool = False) -> Call:
    q, k, v, o, d_o = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v, tensors.o, tensors.d_o))
    more = {"causal": tensors.problem["causal"], "deterministic": deterministic}
    run = functools.partial(lab.packages["flash_attn_4"]._flash_attn_bwd, q, k, v, o, d_o, tensors.lse, **more)
    return Call(run, lambda: tuple(t.transpose(1, 2) for t in run()))


BACKWARD: dict[str, Callable[[TorchLab, Tensors], Call]] = {
    "sdpa_flash": sdpa_flash_backward,
    "sdpa_cudnn": sdpa_cudnn_backward,
    "flash_attn_3": flash_attn_3_backward,
    "flash_attn_3_deterministic": functools.partial(flash_attn_3_backward, deterministic=True),
    "flash_attn_4": flash_attn_4_backward,
    "flash_attn_4_deterministic": functools.partial(flash_attn_4_backward, deterministic=True),
}


def fastest(lab: TorchLab, ways: dict[str, Callable[[], Call]], cold_l2: bool) -> Call:
    """Of several ways to call a peer the one that takes the least time: a peer shall be as fast as it can. They are
    timed as a record's contenders are, each warmed up, and then in turns. Its note says which, and why others are
    not among them."""
    calls: dict[str, Call] = {}
    timers: dict[str, Timer] = {}
    refused: dict[str, str] = {}

    def careful(what: str, work: Callable[[], Any]) -> Any:
        try:
            return lab.attempt(work, (Exception,))  # an older version may lack a way, or not compile it
        except Skip as why:
            timers.pop(what, None)
            refused[what] = str(why)
            return None

    def timer_of(what: str, make: Callable[[], Call]) -> Timer:
        calls[what] = make()
        return lab.timer(calls[what], cold_l2)

    for what, make in ways.items():
        if timer := careful(what, functools.partial(timer_of, what, make)):
            timers[what] = timer
    for _ in range(WAY_SAMPLES):
        for what, timer in list(timers.items()):
            careful(what, timer.sample)
    said = [f"{what}: {why}" for what, why in refused.items()]
    if not timers:
        alike = len(set(refused.values())) == 1
        raise Skip(next(iter(refused.values())) if alike else "; ".join(said))
    best = min(timers, key=lambda what: statistics.median(timers[what].ms))
    call = calls[best]
    call.note = "; ".join([f"{best} (fastest of {len(timers)})" if len(timers) > 1 else best, *said])
    return call


def sdpa_refusal(error: Exception, said: list[str]) -> str:
    """The reason among the warnings; the error itself is 'No available kernel. Aborting execution.'"""
    reasons = []
    for line in said:
        line = line.split(" (Triggered internally")[0].strip()
        # Headings, and the backends that are switched off on purpose.
        if line and not line.endswith("because:") and "runtime disabled" not in line:
            reasons.append(line)
    return one_line(Exception(reasons[0])) if reasons else one_line(error)
